//! Half-open connections of all zones in order of their beginning: the oldest gives way at the cost
//! of a few reads. Lock-free; the code also runs over the atomics of a model checker.
//!
//! The ring has at least two slots for each allowed half-open connection. A connection takes the
//! next empty slot at the tail, and empties the slot when the connection is assured or ends. A hand
//! moves towards the tail in search of the oldest connection. A hand at the tail, or overtaken by
//! the tail, goes on at the oldest slot.
//!
//! Each zone has two hands, and so has the table ([`EvictionHands`]). The first hand begins where
//! the first half-open connection begins. Many slots of other zones, or empty ones, may lie between
//! that hand and the next connection. If an eviction finds none within its steps, the second hand
//! goes on. The second hand begins where the count reaches half of its bound: the newer half of the
//! connections lies behind, in a flood without gaps. If that hand finds none either, the latest
//! connections of the zone are tried (`latest_slots`).
//!
//! **An entry is a hint.** An entry names a line and a zone; the evicting thread checks the line. A
//! race may leave a stale entry behind: the line has another tenant. The next thread at a stale
//! entry empties the slot. The tail skips slots of connections that are still half-open. After
//! [`PROBES`] taken slots the new connection replaces the last entry, and the replaced connection
//! stays until its time-out.

use super::key::ZoneSlot;
use super::lines::Word;

/// Maximum slots for one insertion to read.
const PROBES: usize = 16;
/// Slots of the smallest ring.
const LEAST_SLOTS: usize = 256;

/// A half-open connection: its line and its zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HalfOpenEntry {
    pub(super) line: u32,
    pub(super) zone: ZoneSlot,
}

impl HalfOpenEntry {
    fn word(self) -> u64 {
        u64::from(self.zone.0) << 32 | (u64::from(self.line) + 1)
    }

    /// `None`: the slot is empty.
    fn of_word(word: u64) -> Option<HalfOpenEntry> {
        let line = (word as u32).checked_sub(1)?;
        Some(HalfOpenEntry { line, zone: ZoneSlot((word >> 32) as u16) })
    }
}

/// Slot of a half-open connection in the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RingSlot(pub(super) u64);

impl RingSlot {
    /// No slot: the connection was never half-open.
    pub(super) const NONE: RingSlot = RingSlot(u64::MAX);
}

/// Positions where the search for a connection that gives way goes on.
#[derive(Default)]
pub(super) struct EvictionHands<W> {
    /// At or before the oldest connection.
    oldest: W,
    /// Before the newer half of the connections at the bound, and moved on by evictions since.
    newer: W,
}

/// A hand that begins anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EvictionHand {
    Oldest,
    Newer,
}

impl<W: Word> EvictionHands<W> {
    /// Returns the hand that begins at the tail when the half-open connections go from one count to
    /// another. The bound of 1 needs no second hand.
    #[inline]
    pub(super) fn moves([before, after]: [u32; 2], bound: u32) -> Option<EvictionHand> {
        let half = bound / 2;
        match before {
            0 if after > 0 => Some(EvictionHand::Oldest),
            _ if before <= half && half < after => Some(EvictionHand::Newer),
            _ => None,
        }
    }

    /// Puts a hand at a position.
    #[cold]
    pub(super) fn put(&self, hand: EvictionHand, position: u64) {
        match hand {
            EvictionHand::Oldest => self.oldest.store(position),
            EvictionHand::Newer => self.newer.store(position),
        }
    }

    /// The hands in the order of a search.
    pub(super) fn in_order(&self) -> [&W; 2] {
        [&self.oldest, &self.newer]
    }
}

/// The ring.
pub(super) struct HalfOpenRing<W> {
    slots: Box<[W]>,
    /// Position of the next insertion; positions never repeat.
    tail: W,
}

/// Returns the slots of a ring for so many half-open connections.
pub(super) fn slots_for(half_open: u32) -> usize {
    (half_open as usize * 2).next_power_of_two().max(LEAST_SLOTS)
}

impl<W: Word> HalfOpenRing<W> {
    /// An empty ring. `slots` is a power of two.
    pub(super) fn new(slots: usize) -> Self {
        assert!(slots.is_power_of_two());
        HalfOpenRing { slots: (0..slots).map(|_| W::new()).collect(), tail: W::new() }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Position of the next insertion.
    #[inline]
    pub(super) fn tail(&self) -> u64 {
        self.tail.load()
    }

    fn slot(&self, position: u64) -> usize {
        position as usize & (self.slots.len() - 1)
    }

    /// Inserts a connection behind all others. `is_stale` is true if an entry's line has no
    /// half-open connection of the entry's zone.
    pub(super) fn push(
        &self,
        entry: HalfOpenEntry,
        is_stale: impl Fn(HalfOpenEntry) -> bool,
    ) -> RingSlot {
        for probe in 1.. {
            let at = self.slot(self.tail.fetch_add(1));
            let found = self.slots[at].load();
            let is_empty = HalfOpenEntry::of_word(found).is_none_or(&is_stale);
            if (is_empty || probe == PROBES)
                && self.slots[at].compare_exchange(found, entry.word()).is_ok()
            {
                return RingSlot(at as u64);
            }
            if probe == PROBES {
                break;
            }
        }
        RingSlot::NONE
    }

    /// Empties a slot. False: the slot has another entry or none.
    pub(super) fn remove(&self, slot: RingSlot, entry: HalfOpenEntry) -> bool {
        let of = self.slots.get(slot.0 as usize);
        of.is_some_and(|of| of.compare_exchange(entry.word(), 0).is_ok())
    }

    /// Returns the entry of a slot. `None`: the slot is empty.
    pub(super) fn entry(&self, slot: RingSlot) -> Option<HalfOpenEntry> {
        HalfOpenEntry::of_word(self.slots.get(slot.0 as usize)?.load())
    }

    /// Returns the entry at a hand. `None`: the slot is empty.
    pub(super) fn peek(&self, hand: &W) -> Option<HalfOpenEntry> {
        HalfOpenEntry::of_word(self.slots[self.slot(hand.load())].load())
    }

    /// Moves a hand past the next entry of a filter, and returns the entry. `steps` bounds the
    /// slots to read, and each slot lowers it.
    pub(super) fn advance(
        &self,
        hand: &W,
        steps: &mut usize,
        filter: impl Fn(HalfOpenEntry) -> bool,
    ) -> Option<(RingSlot, HalfOpenEntry)> {
        let (tail, slots) = (self.tail.load(), self.slots.len() as u64);
        let begin = hand.load();
        let mut at = begin;
        // Overtaken by the tail, or at the tail.
        if at >= tail || tail - at > slots {
            at = tail.saturating_sub(slots);
        }
        let mut found = None;
        while *steps > 0 && at < tail && found.is_none() {
            let slot = self.slot(at);
            let entry = HalfOpenEntry::of_word(self.slots[slot].load());
            found = entry.filter(|it| filter(*it)).map(|entry| (RingSlot(slot as u64), entry));
            at += 1;
            *steps -= 1;
        }
        // Another thread has moved the hand meanwhile, or the hand begins anew: that move stands.
        let _ = hand.compare_exchange(begin, at);
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;

    fn entry(line: u32, zone: u16) -> HalfOpenEntry {
        HalfOpenEntry { line, zone: ZoneSlot(zone) }
    }

    fn oldest(
        ring: &HalfOpenRing<AtomicU64>,
        hand: &AtomicU64,
        zone: Option<u16>,
    ) -> Option<(RingSlot, HalfOpenEntry)> {
        let mut steps = usize::MAX;
        ring.advance(hand, &mut steps, |it| zone.is_none_or(|zone| it.zone.0 == zone))
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(u16),
        /// Removes the connection at a place of the order.
        Remove(usize),
        /// Evicts the oldest one of a zone, or of all.
        Evict(Option<u16>),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            5 => (0u16..3).prop_map(Step::Push),
            2 => any::<usize>().prop_map(Step::Remove),
            3 => proptest::option::of(0u16..3).prop_map(Step::Evict),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn the_oldest_of_a_zone_gives_way_until_the_tail_comes_round(steps in steps()) {
            let ring = HalfOpenRing::new(256);
            let hands: [AtomicU64; 4] = Default::default();
            let mut model: VecDeque<(HalfOpenEntry, RingSlot)> = VecDeque::new();
            for (line, step) in (0..).zip(steps) {
                match step {
                    Step::Push(zone) => {
                        let entry = entry(line, zone);
                        model.push_back((entry, ring.push(entry, |_| false)));
                    }
                    Step::Remove(place) if !model.is_empty() => {
                        let (entry, slot) = model.remove(place % model.len()).unwrap();
                        prop_assert!(ring.remove(slot, entry));
                    }
                    Step::Remove(_) => {}
                    Step::Evict(zone) => {
                        let hand = &hands[zone.map_or(3, usize::from)];
                        let found = oldest(&ring, hand, zone);
                        let is_of = |(entry, _): &(HalfOpenEntry, RingSlot)| {
                            zone.is_none_or(|zone| entry.zone.0 == zone)
                        };
                        let expected = model.iter().position(is_of);
                        let expected = expected.and_then(|place| model.remove(place));
                        prop_assert_eq!(found.map(|it| it.1), expected.map(|it| it.0));
                        if let Some((slot, entry)) = found {
                            prop_assert!(ring.remove(slot, entry));
                        }
                    }
                }
            }
        }

        /// At most half of the slots are taken, by the limits of the table.
        #[test]
        fn every_connection_is_found_however_often_the_tail_comes_round(
            lives in proptest::collection::vec(1usize..64, 1..600),
        ) {
            let ring = HalfOpenRing::new(16);
            let mut there: VecDeque<(HalfOpenEntry, RingSlot, usize)> = VecDeque::new();
            for (line, life) in (0..).zip(lives) {
                there.retain_mut(|(entry, slot, life)| {
                    *life -= 1;
                    *life > 0 || !ring.remove(*slot, *entry)
                });
                if there.len() == 8 {
                    let hand = AtomicU64::new(0);
                    let (slot, entry) = oldest(&ring, &hand, None).unwrap();
                    prop_assert!(ring.remove(slot, entry));
                    there.retain(|it| it.0 != entry);
                }
                let entry = entry(line, 1);
                there.push_back((entry, ring.push(entry, |_| false), life));
                let (hand, mut found) = (AtomicU64::new(0), HashSet::new());
                let mut steps = 16;
                while let Some((_, entry)) = ring.advance(&hand, &mut steps, |_| true) {
                    found.insert(entry.line);
                }
                prop_assert_eq!(found, there.iter().map(|it| it.0.line).collect());
            }
        }
    }

    #[test]
    fn a_hand_begins_at_the_first_connection_and_another_in_the_middle() {
        use EvictionHand::{Newer, Oldest};
        let moves =
            |before, after, bound| EvictionHands::<AtomicU64>::moves([before, after], bound);
        for bound in [1, 2, 3, 64, 65, u32::MAX] {
            assert_eq!(moves(0, 1, bound), Some(Oldest), "{bound}");
            assert_eq!(moves(bound - 1, bound - 1, bound), None, "none begins");
            let half = bound / 2;
            if half > 0 {
                assert_eq!(moves(half, half + 1, bound), Some(Newer), "{bound}");
                // IPv6 counts two.
                assert_eq!(
                    moves(half - 1, half + 1, bound),
                    if half == 1 { Some(Oldest) } else { Some(Newer) }
                );
            }
        }
        assert_eq!(moves(0, 2, 64), Some(Oldest));
        assert_eq!((moves(31, 32, 64), moves(33, 34, 64)), (None, None));
    }

    #[test]
    fn a_hand_that_another_thread_moves_during_a_scan_stays_there() {
        let ring = HalfOpenRing::new(256);
        (0..100).for_each(|line| _ = ring.push(entry(line, 1), |_| false));
        let (hand, mut steps) = (AtomicU64::new(0), 20);
        let moved = |_| {
            Word::store(&hand, 60);
            false
        };
        assert_eq!(ring.advance(&hand, &mut steps, moved), None);
        assert_eq!((Word::load(&hand), steps), (60, 0));
    }

    #[test]
    fn a_full_ring_keeps_the_new_connection_and_forgets_an_old_one() {
        let ring = HalfOpenRing::new(16);
        for line in 0..17 {
            assert_ne!(ring.push(entry(line, 1), |_| false), RingSlot::NONE);
        }
        let (hand, mut steps, mut lines) = (AtomicU64::new(0), 64, Vec::new());
        while let Some((slot, entry)) = ring.advance(&hand, &mut steps, |_| true) {
            lines.push(entry.line);
            ring.remove(slot, entry);
        }
        assert!(lines.len() == 16 && lines.contains(&16), "{lines:?}");
    }

    #[test]
    fn an_entry_left_behind_makes_room() {
        let ring = HalfOpenRing::new(16);
        for line in 0..160 {
            ring.push(entry(line, 1), |old| old.line + 8 < line);
        }
        let (hand, mut steps, mut newest) = (AtomicU64::new(0), 64, 0);
        while let Some((slot, entry)) = ring.advance(&hand, &mut steps, |_| true) {
            newest = newest.max(entry.line);
            ring.remove(slot, entry);
        }
        assert_eq!(newest, 159);
    }
}
