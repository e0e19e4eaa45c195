//! Verdicts by number: an entry has 32 bits for what it says.
//!
//! A number stands for one verdict as long as the table lives; numbers are never given again. Where
//! connections are tracked it stands for what each book says by itself.

use policy::{FlowVerdict, KnownConnections, TrackedVerdict};

use super::ENTRIES_A_FLOW;
use super::place_index::PlaceIndex;

/// Number of a verdict, from 1, beside what the table itself asks about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct VerdictNumber(pub(super) u32);

/// Set in the number of a verdict that says that no rule matched.
const NEGATIVE: u32 = 1 << 31;
/// Set in the number of a verdict of which no book was asked.
const NOT_ASKED: u32 = 1 << 30;
/// Set in the number of what each book says by itself.
const TRACKED: u32 = 1 << 29;
/// The bits of the number itself.
const PLACE: u32 = TRACKED - 1;
/// Verdicts at most: one for each of 100,000 policies in either direction, and a seventh of that.
const MOST: usize = 7 << 15;
const _: () = assert!(MOST < 1 << super::marks::MARK_SHIFT, "a mark is above the number");
/// Verdicts that there is always room for.
const LEAST: usize = 7 << 11;
/// Slots whose last verdict is looked at before the others are searched.
const RECENT: usize = 64;

impl VerdictNumber {
    /// Returns whether it says that no rule matched.
    pub(super) fn is_negative(self) -> bool {
        self.0 & NEGATIVE != 0
    }

    /// Returns whether a book was asked.
    pub(super) fn is_asked(self) -> bool {
        self.0 & NOT_ASKED == 0
    }

    /// Returns whether it stands for what each book says by itself.
    #[inline(always)]
    pub(super) fn is_tracked(self) -> bool {
        self.0 & TRACKED != 0
    }

    fn place(self) -> usize {
        (self.0 & PLACE) as usize
    }
}

/// The answer that is remembered of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Said<'a> {
    /// The verdict.
    Verdict(&'a FlowVerdict),
    /// The answer of each book by itself, and the verdict on the packet from which it is known.
    Tracked(&'a TrackedVerdict, &'a FlowVerdict),
    /// The answer of each book by itself, and the connections that let the packet pass.
    Steady(&'a TrackedVerdict, KnownConnections),
}

/// The answers of each book by itself, with the connections of packets.
type OfConnections = (TrackedVerdict, KnownConnections);

/// The answers of each book by itself, by number.
struct TrackedVerdicts {
    list: Vec<OfConnections>,
    /// The verdicts on packets of these connections.
    steady: Vec<FlowVerdict>,
    places: PlaceIndex,
    last: u32,
}

impl TrackedVerdicts {
    fn new(room: usize) -> TrackedVerdicts {
        TrackedVerdicts {
            list: Vec::with_capacity(room),
            steady: Vec::with_capacity(room),
            places: PlaceIndex::new(room),
            last: 0,
        }
    }

    /// The place of a verdict; `None`: it has none, and there are `most` already.
    fn place(&mut self, said: OfConnections, most: usize) -> Option<u32> {
        if self.list.get(self.last as usize) == Some(&said) {
            return Some(self.last);
        }
        let place = match self.places.find(&self.list, &said) {
            Ok(place) => place,
            Err(slot) if self.list.len() < most => {
                let place = self.list.len() as u32;
                self.list.push(said);
                self.steady.push(said.0.with(said.1));
                self.places.insert(slot, place);
                place
            }
            Err(_) => return None,
        };
        self.last = place;
        Some(place)
    }
}

/// All verdicts that entries name.
pub(super) struct Verdicts {
    /// Verdicts by number; the first is of no entry.
    list: Vec<FlowVerdict>,
    places: PlaceIndex,
    recent: [VerdictNumber; RECENT],
    tracked: TrackedVerdicts,
    room: usize,
}

impl Verdicts {
    /// Makes room for the numbers of a table of `entries` entries: a number for each of the table's
    /// flows. The memory is reserved, and never grows. The kernel provides it at the first use, or
    /// by [`touch`](Self::touch).
    pub(super) fn new(entries: usize) -> Verdicts {
        let room = room(entries);
        let mut list = Vec::with_capacity(room);
        list.push(FlowVerdict::NOT_ASKED);
        let (recent, tracked) = ([VerdictNumber(0); RECENT], TrackedVerdicts::new(room));
        Verdicts { list, places: PlaceIndex::new(room), recent, tracked, room }
    }

    /// Bytes of the numbers of a table of `entries` entries, where connections are tracked.
    pub(super) fn bytes(entries: usize) -> usize {
        let room = room(entries);
        let tracked = size_of::<OfConnections>() + size_of::<FlowVerdict>();
        room * (size_of::<FlowVerdict>() + tracked) + 2 * PlaceIndex::bytes(room)
    }

    /// Makes the kernel provide the memory now, but for the memory of tracked connections.
    pub(super) fn touch(&mut self) {
        let given = self.list.len();
        self.list.resize(self.room, FlowVerdict::NOT_ASKED);
        self.list.truncate(given);
        self.places.touch();
    }

    /// The verdict with a number.
    #[inline(always)]
    pub(super) fn get(&self, number: VerdictNumber) -> &FlowVerdict {
        match number.is_tracked() {
            false => &self.list[number.place()],
            true => self.tracked.list[number.place()].0.plain(),
        }
    }

    /// Returns whether a number stands for packets of these connections.
    pub(super) fn is_steady(&self, number: VerdictNumber, known: KnownConnections) -> bool {
        number.is_tracked() && self.tracked.list[number.place()].1 == known
    }

    /// The verdict with a number; where connections are tracked, that on packets of the connections
    /// that were known.
    #[inline(always)]
    pub(super) fn steady(&self, number: VerdictNumber) -> &FlowVerdict {
        match number.is_tracked() {
            false => &self.list[number.place()],
            true => &self.tracked.steady[number.place()],
        }
    }

    /// The answer of each book by itself, if the number stands for that.
    #[inline(always)]
    pub(super) fn tracked(&self, number: VerdictNumber) -> Option<&TrackedVerdict> {
        number.is_tracked().then(|| &self.tracked.list[number.place()].0)
    }

    /// Returns whether no number is left.
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= self.room || self.tracked.list.len() >= self.room
    }

    /// The number of what is remembered; `None`: none is left.
    #[inline]
    pub(super) fn number_of(&mut self, said: Said<'_>) -> Option<VerdictNumber> {
        match said {
            Said::Verdict(verdict) => self.number(*verdict),
            Said::Tracked(verdict, of_packet) => {
                let said = (*verdict, KnownConnections::default());
                let place = self.tracked.place(said, self.room)?;
                let negative = if of_packet.is_negative() { NEGATIVE } else { 0 };
                Some(VerdictNumber(place | TRACKED | negative))
            }
            Said::Steady(verdict, known) => {
                let place = self.tracked.place((*verdict, known), self.room)?;
                Some(VerdictNumber(place | TRACKED))
            }
        }
    }

    /// The number of a verdict; `None`: none is left.
    #[inline]
    pub(super) fn number(&mut self, verdict: FlowVerdict) -> Option<VerdictNumber> {
        let recent = verdict.deciders.first().map_or(0, |slot| slot.0 as usize) % RECENT;
        let number = self.recent[recent];
        if number.0 != 0 && *self.get(number) == verdict {
            return Some(number);
        }
        let number = self.find_or_add(verdict)?;
        self.recent[recent] = number;
        Some(number)
    }

    #[inline(never)]
    fn find_or_add(&mut self, verdict: FlowVerdict) -> Option<VerdictNumber> {
        let place = match self.places.find(&self.list, &verdict) {
            Ok(place) => place,
            Err(slot) if self.list.len() < self.room => {
                let place = self.list.len() as u32;
                self.list.push(verdict);
                self.places.insert(slot, place);
                place
            }
            Err(_) => return None,
        };
        let negative = if verdict.is_negative() { NEGATIVE } else { 0 };
        let not_asked = if verdict.is_asked() { 0 } else { NOT_ASKED };
        Some(VerdictNumber(place | negative | not_asked))
    }
}

/// Most verdicts of a table of `entries` entries.
fn room(entries: usize) -> usize {
    (entries / ENTRIES_A_FLOW).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use policy::{Deciders, EgressClass, FlowAction, PolicyIndex, Refusal, SetIndex};
    use proptest::prelude::*;

    use super::*;

    fn deciders() -> impl Strategy<Value = Deciders> {
        let slot = prop_oneof![0u32..3, Just(u32::MAX - 1)].prop_map(PolicyIndex);
        proptest::collection::vec(slot, 0..=3).prop_map(|slots| Deciders::of(&slots))
    }

    fn verdict() -> impl Strategy<Value = FlowVerdict> {
        let action = prop_oneof![
            Just(FlowAction::Permit),
            (0u32..2).prop_map(|set| FlowAction::Protect(SetIndex(set))),
            Just(FlowAction::Refuse(Refusal::NoMatch)),
            Just(FlowAction::Refuse(Refusal::Discard)),
        ];
        let egress = prop_oneof![Just(EgressClass::Any), (0u16..2).prop_map(EgressClass::Only)];
        (action, deciders(), egress).prop_map(|(action, deciders, egress)| FlowVerdict {
            action,
            deciders,
            egress,
        })
    }

    proptest! {
        #[test]
        fn a_number_says_the_verdict_that_it_was_given_for(
            said in proptest::collection::vec(verdict(), 1..200),
        ) {
            let mut verdicts = Verdicts::new(0);
            for verdict in &said {
                let number = verdicts.number(*verdict).unwrap();
                prop_assert_eq!(verdicts.get(number), verdict);
                prop_assert_eq!(number.is_negative(), verdict.is_negative());
                prop_assert_eq!(number.is_asked(), verdict.is_asked());
                prop_assert!(number.0 != 0);
            }
            let different: BTreeSet<u32> =
                said.iter().map(|verdict| verdicts.number(*verdict).unwrap().0).collect();
            let as_said: std::collections::HashSet<FlowVerdict> = said.iter().copied().collect();
            prop_assert_eq!(different.len(), as_said.len());
        }
    }

    #[test]
    fn where_no_number_is_left_known_verdicts_keep_theirs() {
        let of = |slot: u32| FlowVerdict {
            deciders: Deciders::one(PolicyIndex(slot)),
            ..FlowVerdict::NOT_ASKED
        };
        let mut verdicts = Verdicts::new(0);
        let most = LEAST as u32 - 1;
        let numbers: Vec<_> = (0..most).map(|slot| verdicts.number(of(slot))).collect();
        assert!(verdicts.is_full() && verdicts.number(of(most)).is_none());
        assert!((0..most).map(|slot| verdicts.number(of(slot))).eq(numbers.iter().copied()));
        verdicts.touch();
        assert!((0..most).map(|slot| verdicts.number(of(slot))).eq(numbers));
    }

    #[test]
    fn numbers_take_the_memory_that_was_reserved_for_them() {
        let of = |slot: u32| FlowVerdict {
            deciders: Deciders::one(PolicyIndex(slot)),
            ..FlowVerdict::NOT_ASKED
        };
        let mut verdicts = Verdicts::new(0);
        let rooms = |of: &Verdicts| {
            [of.list.capacity(), of.tracked.list.capacity(), of.tracked.steady.capacity()]
        };
        let reserved = rooms(&verdicts);
        assert!(reserved.iter().all(|room| *room >= LEAST));
        let known = |slot| KnownConnections { ingress: Some(PolicyIndex(slot)), egress: None };
        for slot in 0..LEAST as u32 + 10 {
            let said = Said::Steady(&TrackedVerdict::NOT_ASKED, known(slot));
            let number = verdicts.number_of(said);
            assert_eq!(number.is_some(), (slot as usize) < LEAST);
            assert_eq!(number, verdicts.number_of(said), "it keeps its number");
            verdicts.number(of(slot));
        }
        assert!(verdicts.is_full());
        assert_eq!(rooms(&verdicts), reserved);
    }
}
