//! Ring slots of the latest half-open connections, by zone.
//!
//! A hand of a zone stands still for many evictions if other zones begin thousands of connections
//! for each of the zone. The latest connections of the zone then give way, the oldest of them
//! first. Zones share a list if the ring has fewer than 16 slots for each zone; a slot is a hint.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::half_open::RingSlot;
use super::key::ZoneSlot;

/// Slots of a list: with the number of insertions, a line of a processor's cache.
const SLOTS: usize = 15;
/// Slots of the ring for each list.
const RING_SLOTS: usize = 16;

/// Slots of the latest insertions, in turn.
#[derive(Default)]
#[repr(align(64))]
struct SlotList {
    /// Number of insertions.
    inserted: AtomicU32,
    /// Each slot plus 1; 0: none.
    slots: [AtomicU32; SLOTS],
}

/// The lists, by zone.
pub(super) struct LatestSlots {
    /// A power of two.
    lists: Box<[SlotList]>,
}

/// Returns the bytes of the lists beside a ring with so many slots.
pub(super) fn bytes_for(ring_slots: usize) -> usize {
    ring_slots / RING_SLOTS * size_of::<SlotList>()
}

impl LatestSlots {
    /// Empty lists beside a ring with so many slots, a power of two.
    pub(super) fn new(ring_slots: usize) -> LatestSlots {
        LatestSlots { lists: (0..ring_slots / RING_SLOTS).map(|_| SlotList::default()).collect() }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.lists)
    }

    fn list(&self, zone: ZoneSlot) -> &SlotList {
        &self.lists[usize::from(zone.0) & (self.lists.len() - 1)]
    }

    /// Adds the slot of a zone's latest connection.
    pub(super) fn push(&self, zone: ZoneSlot, slot: RingSlot) {
        let list = self.list(zone);
        let at = list.inserted.fetch_add(1, Relaxed) as usize % SLOTS;
        // `RingSlot::NONE` becomes 0.
        list.slots[at].store((slot.0 as u32).wrapping_add(1), Relaxed);
    }

    /// Slots of a zone's latest connections, the oldest first.
    pub(super) fn of(&self, zone: ZoneSlot) -> impl Iterator<Item = RingSlot> + '_ {
        let list = self.list(zone);
        let first = list.inserted.load(Relaxed) as usize;
        let slots =
            (0..SLOTS).map(move |at| list.slots[(first % SLOTS + at) % SLOTS].load(Relaxed));
        slots.filter_map(|slot| Some(RingSlot(slot.checked_sub(1)?.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_last_15_slots_the_oldest_first() {
        let latest = LatestSlots::new(256);
        let of = |zone| latest.of(ZoneSlot(zone)).map(|slot| slot.0).collect::<Vec<_>>();
        for slot in 0..20 {
            assert_eq!(of(3), (slot.max(15) - 15..slot).collect::<Vec<u64>>());
            latest.push(ZoneSlot(3), RingSlot(slot));
        }
        latest.push(ZoneSlot(3), RingSlot::NONE);
        assert_eq!(of(3), (6..20).collect::<Vec<u64>>());
        assert_eq!((of(2), latest.bytes()), (vec![], bytes_for(256)));
    }
}
