//! Finds values in a list without a second copy of the values.

use std::hash::{BuildHasher, Hash};

use foldhash::quality::RandomState;

/// The places of a list's values, by hash. The list only grows, up to a bound. The memory is
/// reserved at the start and never grows.
pub(super) struct PlaceIndex {
    /// Places plus 1, or [`VACANT`]. At least half of the slots stay vacant, so searches end after
    /// few steps.
    slots: Box<[u32]>,
    hash: RandomState,
}

const VACANT: u32 = 0;

/// A slot for a new value.
#[derive(Clone, Copy)]
pub(super) struct VacantSlot(usize);

impl PlaceIndex {
    /// An index for a list of at most `room` values.
    pub(super) fn new(room: usize) -> PlaceIndex {
        let slots = (2 * room.max(1)).next_power_of_two();
        PlaceIndex { slots: vec![VACANT; slots].into(), hash: RandomState::default() }
    }

    /// Bytes of an index for `room` values.
    pub(super) const fn bytes(room: usize) -> usize {
        (2 * room).next_power_of_two() * size_of::<u32>()
    }

    /// Returns the place of a value in the list.
    ///
    /// # Errors
    /// The value is not in the list: the slot to [insert](Self::insert) its place into.
    pub(super) fn find<T: Hash + Eq>(&self, list: &[T], value: &T) -> Result<u32, VacantSlot> {
        let mask = self.slots.len() - 1;
        let mut at = self.hash.hash_one(value) as usize & mask;
        loop {
            match self.slots[at] {
                VACANT => return Err(VacantSlot(at)),
                place if list[place as usize - 1] == *value => return Ok(place - 1),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Notes the place of a new value in the slot from [`find`](Self::find).
    pub(super) fn insert(&mut self, VacantSlot(slot): VacantSlot, place: u32) {
        self.slots[slot] = place + 1;
    }

    /// Makes the kernel provide all memory now.
    pub(super) fn touch(&mut self) {
        self.slots.iter_mut().for_each(|slot| *slot = std::hint::black_box(*slot));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_index_finds_what_a_map_finds(
            values in prop::collection::vec(0u16..40, 0..200),
            room in 1usize..40,
        ) {
            let (mut list, mut map) = (Vec::new(), HashMap::new());
            let mut index = PlaceIndex::new(room);
            for value in values {
                match index.find(&list, &value) {
                    Ok(place) => prop_assert_eq!(Some(&place), map.get(&value)),
                    Err(slot) => {
                        prop_assert!(!map.contains_key(&value));
                        if list.len() < room {
                            index.insert(slot, list.len() as u32);
                            map.insert(value, list.len() as u32);
                            list.push(value);
                        }
                    }
                }
                index.touch();
            }
            prop_assert_eq!(PlaceIndex::bytes(room), size_of_val(&*index.slots));
        }
    }
}
