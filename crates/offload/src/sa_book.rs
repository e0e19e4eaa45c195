//! The book of a card's SAs: which were placed, and what became of them.
//!
//! ```text
//! place ─▶ pending ─ live ─▶ live ─ a look without it, withdrawn, down, reset … ─▶ lost
//!             └─ refused                   └─ withdraw: the host wants it no more
//! ```
//!
//! In packet mode an SA has a policy beside it, and the two are one: news tell of the SA alone. It
//! is live when the card has both, refused when it refuses either (by the name of that half), and
//! lost with either. What is left of the other half is a stray.
//!
//! An SA that is lost does not come back: its numbers and its window were the card's (RFC 4303
//! §3.3.3). Whoever has SAs by the book's tags takes them out of use, and asks its peer for new
//! keys.

use std::collections::BTreeMap;

use crate::card::{CardEvent, Limit, Reading, Refusal};
use crate::handle::{Handle, Incarnation, Tag};

/// The book of one card's SAs.
#[derive(Debug)]
pub struct SaBook {
    incarnation: Incarnation,
    next: u32,
    entries: BTreeMap<Handle, Entry>,
}

/// An SA that was placed.
#[derive(Clone, Copy, Debug)]
struct Entry {
    is_live: bool,
    use_: SaUse,
    part: Part,
}

/// The part of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// An SA by itself.
    Alone,
    /// An SA with this policy beside it.
    With(Handle),
    /// The policy beside this SA.
    PolicyOf(Handle),
}

/// The use of an SA, as the card counted it when it was last looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SaUse {
    /// Packets, and bytes that the cipher processed.
    pub reading: Reading,
    /// Of an SA that opens: the right edge of its window. Of one that seals: the last number, if
    /// the card tells it.
    pub edge: u64,
}

/// News of an SA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SaNews {
    /// The card has it.
    Live(Tag),
    /// The card refused it.
    Refused(Tag, Refusal),
    /// The card has it no more, though it was wanted.
    Lost(Tag),
    /// It reached a limit.
    Limit(Tag, Limit),
    /// The card says that it has one that nobody wants: it is to be withdrawn.
    Stray(Tag),
}

impl SaBook {
    /// An empty book. `incarnation` is one that no earlier book of the card had.
    pub fn beginning(incarnation: Incarnation) -> SaBook {
        SaBook { incarnation, next: Handle::FIRST_OF_SAS, entries: BTreeMap::new() }
    }

    /// Returns whether no SA is in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Notes an SA that the card is about to be asked for, and names it. `None`: all names were
    /// given.
    pub fn place(&mut self) -> Option<Tag> {
        let handle = Handle::new(self.next)?;
        self.next += 1;
        let part = Part::Alone;
        self.entries.insert(handle, Entry { is_live: false, use_: SaUse::default(), part });
        Some(Tag { handle, incarnation: self.incarnation })
    }

    /// As [`place`](Self::place), with a policy beside the SA, which the card is to be asked for
    /// behind it: returns the names of both.
    pub fn place_with_policy(&mut self) -> Option<[Tag; 2]> {
        let [sa, policy] = [self.place()?, self.place()?];
        let set = |book: &mut SaBook, of: Tag, part| {
            if let Some(entry) = book.entries.get_mut(&of.handle) {
                entry.part = part;
            }
        };
        set(self, sa, Part::With(policy.handle));
        set(self, policy, Part::PolicyOf(sa.handle));
        Some([sa, policy])
    }

    /// Forgets an SA that the card is about to be asked to take out. Returns whether it was there.
    pub fn withdraw(&mut self, tag: Tag) -> bool {
        self.is_of(tag) && self.remove(tag.handle).is_some()
    }

    /// The policy beside an SA.
    pub fn policy_of(&self, tag: Tag) -> Option<Tag> {
        match self.entry(tag)?.part {
            Part::With(policy) => Some(self.tag(policy)),
            Part::Alone | Part::PolicyOf(_) => None,
        }
    }

    /// Returns whether the card has an SA, as far as it told, and the policy beside it.
    pub fn is_live(&self, tag: Tag) -> bool {
        self.entry(tag).is_some_and(|entry| entry.is_live && self.has_other_half(entry))
    }

    /// Returns whether the card has what is beside an item, if anything is.
    fn has_other_half(&self, entry: &Entry) -> bool {
        let other = match entry.part {
            Part::Alone => return true,
            Part::With(other) | Part::PolicyOf(other) => self.entries.get(&other),
        };
        other.is_some_and(|other| other.is_live)
    }

    /// Removes an item and what is beside it; returns its SA, and what is left of the two.
    fn remove(&mut self, handle: Handle) -> Option<(Handle, Option<Handle>)> {
        let removed = self.entries.remove(&handle)?;
        Some(match removed.part {
            Part::Alone => (handle, None),
            Part::With(policy) => {
                self.entries.remove(&policy);
                (handle, Some(policy))
            }
            Part::PolicyOf(sa) => {
                self.entries.remove(&sa);
                (sa, None)
            }
        })
    }

    /// Takes an item and what is beside it out of the book: the SA is lost, or refused.
    fn fail(&mut self, handle: Handle, refusal: Option<Refusal>) -> Vec<SaNews> {
        let is_policy =
            self.entries.get(&handle).is_some_and(|of| matches!(of.part, Part::PolicyOf(_)));
        let Some((sa, policy)) = self.remove(handle) else { return Vec::new() };
        let left = match (is_policy, policy) {
            // Its SA is: whoever hears that it is lost or refused withdraws it.
            (true, _) => Some(sa),
            (false, policy) => policy,
        };
        let news = match refusal {
            None => SaNews::Lost(self.tag(sa)),
            Some(refusal) if policy.is_none() && !is_policy => {
                SaNews::Refused(self.tag(sa), refusal)
            }
            Some(refusal) => {
                let half = if is_policy { "policy beside the SA" } else { "SA beside its policy" };
                let text = format!("the {half} was not taken: {}", refusal.text).into();
                SaNews::Refused(self.tag(sa), Refusal { text, ..refusal })
            }
        };
        let stray = left.map(|left| SaNews::Stray(self.tag(left)));
        stray.into_iter().chain([news]).collect()
    }

    /// The use of an SA at the last look.
    pub fn use_of(&self, tag: Tag) -> Option<SaUse> {
        self.entry(tag).map(|entry| entry.use_)
    }

    /// SAs that the card has, as far as it told, with their use at the last look.
    pub fn live(&self) -> impl Iterator<Item = (Tag, SaUse)> {
        let is_sa = |entry: &Entry| !matches!(entry.part, Part::PolicyOf(_));
        let live = self.entries.iter().filter(move |(_, entry)| entry.is_live && is_sa(entry));
        live.map(|(handle, entry)| (self.tag(*handle), entry.use_))
    }

    /// Takes an event of the card in. Those that are not of SAs tell nothing, but for those by
    /// which the card forgets everything.
    pub fn event(&mut self, event: &CardEvent) -> Vec<SaNews> {
        let (tag, of) = match event {
            CardEvent::Live(tag) => (*tag, SaNews::Live(*tag)),
            CardEvent::Refused(tag, refusal) => (*tag, SaNews::Refused(*tag, refusal.clone())),
            CardEvent::Withdrawn(tag) => (*tag, SaNews::Lost(*tag)),
            CardEvent::Limit(tag, limit) => (*tag, SaNews::Limit(*tag, *limit)),
            CardEvent::Down | CardEvent::Reset | CardEvent::Reloaded | CardEvent::Unplugged => {
                return self.lose();
            }
            CardEvent::Up | CardEvent::Acquire(_) => return Vec::new(),
        };
        if !tag.handle.is_of_sa() {
            return Vec::new();
        }
        let (is_of, is_whole) = (self.is_of(tag), self.is_live(tag));
        let Some(entry) = self.entries.get_mut(&tag.handle).filter(|_| is_of) else {
            let is_live = matches!(of, SaNews::Live(_));
            return if is_live { vec![SaNews::Stray(tag)] } else { Vec::new() };
        };
        match of {
            SaNews::Live(_) if entry.is_live => Vec::new(),
            SaNews::Live(_) => {
                entry.is_live = true;
                let entry = *entry;
                let sa = match entry.part {
                    Part::PolicyOf(sa) => self.tag(sa),
                    Part::Alone | Part::With(_) => tag,
                };
                if self.has_other_half(&entry) { vec![SaNews::Live(sa)] } else { Vec::new() }
            }
            // What was told late, of one that is there: it takes back what it said.
            SaNews::Refused(..) if is_whole => self.fail(tag.handle, None),
            SaNews::Refused(_, refusal) => self.fail(tag.handle, Some(refusal)),
            SaNews::Lost(_) => self.fail(tag.handle, None),
            SaNews::Limit(..) if entry.is_live => vec![of],
            SaNews::Limit(..) | SaNews::Stray(_) => Vec::new(),
        }
    }

    /// Looks at what the card has, at one moment after all that it has told: SAs that it does not
    /// have any more are lost.
    pub fn look(&mut self, found: impl Fn(Handle) -> Option<SaUse>) -> Vec<SaNews> {
        let mut lost = Vec::new();
        for (handle, entry) in &mut self.entries {
            match found(*handle) {
                Some(now) => {
                    // Nothing that was counted is counted back.
                    let Reading { packets, bytes, as_of_ms } = now.reading;
                    let before = entry.use_;
                    let packets = packets.max(before.reading.packets);
                    let bytes = bytes.max(before.reading.bytes);
                    let reading = Reading { packets, bytes, as_of_ms };
                    entry.use_ = SaUse { reading, edge: now.edge.max(before.edge) };
                }
                None if entry.is_live => lost.push(*handle),
                // Its answer is still to come.
                None => {}
            }
        }
        lost.into_iter().flat_map(|handle| self.fail(handle, None)).collect()
    }

    /// The card has lost everything; what it was asked for is lost too.
    pub fn lose(&mut self) -> Vec<SaNews> {
        let lost = std::mem::take(&mut self.entries).into_iter();
        let lost = lost.filter(|(_, entry)| !matches!(entry.part, Part::PolicyOf(_)));
        let lost = lost.map(|(handle, _)| SaNews::Lost(self.tag(handle))).collect();
        self.incarnation = Incarnation(self.incarnation.0.wrapping_add(1));
        lost
    }

    fn tag(&self, handle: Handle) -> Tag {
        Tag { handle, incarnation: self.incarnation }
    }

    fn is_of(&self, tag: Tag) -> bool {
        tag.incarnation == self.incarnation
    }

    fn entry(&self, tag: Tag) -> Option<&Entry> {
        self.entries.get(&tag.handle).filter(|_| self.is_of(tag))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::card::RefusalKind;

    fn refusal() -> Refusal {
        Refusal { kind: RefusalKind::Full, code: -28, text: "full".into() }
    }

    fn reading(packets: u64, edge: u64) -> SaUse {
        SaUse { reading: Reading { packets, bytes: packets * 100, as_of_ms: 7 }, edge }
    }

    #[test]
    fn an_sa_is_live_when_the_card_says_so_and_lost_when_a_look_does_not_find_it() {
        let mut book = SaBook::beginning(Incarnation(9));
        let [one, two] = [book.place().unwrap(), book.place().unwrap()];
        assert!(one.handle.is_of_sa() && one != two && !book.is_live(one));
        // A look before the answer proves nothing.
        assert_eq!(book.look(|_| None), []);
        assert_eq!(book.event(&CardEvent::Live(one)), [SaNews::Live(one)]);
        assert_eq!(book.event(&CardEvent::Live(one)), [], "told twice");
        let refused = CardEvent::Refused(two, refusal());
        assert_eq!(book.event(&refused), [SaNews::Refused(two, refusal())]);
        assert_eq!(book.event(&refused), [], "told twice");
        assert_eq!(book.look(|_| Some(reading(5, 8))), []);
        assert_eq!(book.use_of(one), Some(reading(5, 8)));
        assert_eq!(book.look(|_| Some(reading(3, 7))), [], "a count that went back");
        assert_eq!(book.use_of(one), Some(reading(5, 8)));
        assert_eq!(book.look(|_| None), [SaNews::Lost(one)]);
        assert_eq!((book.is_empty(), book.use_of(one)), (true, None));
        assert_eq!(book.event(&CardEvent::Live(one)), [SaNews::Stray(one)]);
        assert_eq!(book.event(&CardEvent::Limit(one, Limit::Hard)), []);
    }

    #[test]
    fn a_card_that_forgets_everything_loses_each_sa_once_and_no_tag_of_before_counts() {
        for event in [CardEvent::Down, CardEvent::Reset, CardEvent::Reloaded, CardEvent::Unplugged]
        {
            let mut book = SaBook::beginning(Incarnation(u32::MAX));
            let tags = [book.place().unwrap(), book.place().unwrap()];
            book.event(&CardEvent::Live(tags[0]));
            assert_eq!(book.event(&event), tags.map(SaNews::Lost));
            assert_eq!(book.event(&event), []);
            // What the card says late of one of them names none.
            assert_eq!(book.event(&CardEvent::Live(tags[1])), [SaNews::Stray(tags[1])]);
            assert!(book.is_empty());
            assert_eq!(book.place().unwrap().incarnation, Incarnation(1));
        }
    }

    #[test]
    fn what_is_withdrawn_is_not_lost() {
        let mut book = SaBook::beginning(Incarnation(1));
        let tag = book.place().unwrap();
        book.event(&CardEvent::Live(tag));
        assert!(book.withdraw(tag) && !book.withdraw(tag));
        assert_eq!(book.event(&CardEvent::Withdrawn(tag)), []);
        assert_eq!(book.look(|_| None), []);
    }

    // XO-04
    #[test]
    fn an_sa_and_the_policy_beside_it_are_there_both_or_not_at_all() {
        let pair = || {
            let mut book = SaBook::beginning(Incarnation(1));
            let [sa, policy] = book.place_with_policy().unwrap();
            assert_eq!(book.policy_of(sa), Some(policy));
            (book, sa, policy)
        };
        // Both, in either order.
        for turn in [false, true] {
            let (mut book, sa, policy) = pair();
            let [first, second] = if turn { [policy, sa] } else { [sa, policy] };
            assert_eq!(book.event(&CardEvent::Live(first)), []);
            assert!(!book.is_live(sa), "half of it is there");
            assert_eq!(book.event(&CardEvent::Live(second)), [SaNews::Live(sa)]);
            assert!(book.is_live(sa));
            // With either it is lost, and nothing of the other is left.
            let mut other =
                SaBook { entries: book.entries.clone(), ..SaBook::beginning(Incarnation(1)) };
            let news = book.event(&CardEvent::Withdrawn(policy));
            assert_eq!(news, [SaNews::Stray(sa), SaNews::Lost(sa)]);
            let news = other.look(|handle| (handle != sa.handle).then(SaUse::default));
            assert_eq!(news, [SaNews::Stray(policy), SaNews::Lost(sa)]);
            assert!(book.is_empty() && other.is_empty());
        }
        // One of them alone is refused by the name of the half that is missing.
        for (is_policy, half) in [(true, "policy beside the SA"), (false, "SA beside its policy")] {
            let (mut book, sa, policy) = pair();
            let [there, refused] = if is_policy { [sa, policy] } else { [policy, sa] };
            assert_eq!(book.event(&CardEvent::Live(there)), []);
            let news = book.event(&CardEvent::Refused(refused, refusal()));
            assert_eq!(news[0], SaNews::Stray(there));
            let SaNews::Refused(of, told) = &news[1] else { panic!("{news:?}") };
            assert_eq!((*of, told.code, news.len()), (sa, -28, 2));
            assert!(told.text.contains(half), "{told}");
            assert_eq!(book.event(&CardEvent::Live(there)), [SaNews::Stray(there)]);
            assert!(book.is_empty());
        }
        let (mut book, sa, _) = pair();
        assert!(book.withdraw(sa) && book.is_empty());
        let (mut book, sa, _) = pair();
        assert_eq!(book.event(&CardEvent::Reset), [SaNews::Lost(sa)]);
    }

    proptest! {
        /// Whatever a card says, in whichever order: an SA becomes live at most once and is lost at
        /// most once, no number is given twice, and nothing is told of what was never placed.
        #[test]
        fn a_card_that_says_anything_makes_no_sa_live_twice(
            said in prop::collection::vec((0u8..10, 0u32..6, any::<bool>()), 0..60),
        ) {
            let mut book = SaBook::beginning(Incarnation(3));
            let (mut placed, mut live, mut lost) = (Vec::new(), Vec::new(), Vec::new());
            for (what, number, is_other) in said {
                let handle = Handle::new(Handle::FIRST_OF_SAS + number).unwrap();
                let incarnation = Incarnation(if is_other { 2 } else { 3 });
                let tag = Tag { handle, incarnation };
                let news = match what {
                    0 | 1 => {
                        placed.push(book.place().unwrap());
                        Vec::new()
                    }
                    2 | 3 => book.event(&CardEvent::Live(tag)),
                    4 => book.event(&CardEvent::Refused(tag, refusal())),
                    5 => book.event(&CardEvent::Withdrawn(tag)),
                    6 => book.event(&CardEvent::Limit(tag, Limit::Soft)),
                    7 => book.event(&CardEvent::Reset),
                    8 => book.look(|of| (of != handle).then(SaUse::default)),
                    _ => {
                        book.withdraw(tag);
                        Vec::new()
                    }
                };
                for one in news {
                    match one {
                        SaNews::Live(tag) => live.push(tag),
                        SaNews::Lost(tag) | SaNews::Refused(tag, _) => lost.push(tag),
                        SaNews::Limit(tag, _) => prop_assert!(live.contains(&tag)),
                        SaNews::Stray(tag) => prop_assert!(!book.is_live(tag)),
                    }
                }
                for tag in live.iter().chain(&lost) {
                    prop_assert!(placed.contains(tag));
                }
                prop_assert!(book.live().all(|(tag, _)| live.contains(&tag)));
                prop_assert!(book.live().all(|(tag, _)| !lost.contains(&tag)));
            }
            for all in [&mut placed, &mut live, &mut lost] {
                let count = all.len();
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), count);
            }
        }
    }
}
