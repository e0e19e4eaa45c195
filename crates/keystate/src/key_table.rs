//! A table by the first 8 bytes of fingerprints, in parts: no single growth or walk takes long.

use std::collections::HashMap;

/// Parts of a table.
pub(crate) const PARTS: usize = 64;

/// Values by the first halves of fingerprints.
pub(crate) struct KeyTable<V> {
    parts: Box<[HashMap<u64, V>; PARTS]>,
    count: usize,
}

impl<V> KeyTable<V> {
    pub(crate) fn new() -> KeyTable<V> {
        KeyTable { parts: Box::new(std::array::from_fn(|_| HashMap::new())), count: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn contains(&self, half: u64) -> bool {
        self.get(half).is_some()
    }

    pub(crate) fn get(&self, half: u64) -> Option<&V> {
        self.parts[half as usize % PARTS].get(&half)
    }

    pub(crate) fn get_mut(&mut self, half: u64) -> Option<&mut V> {
        self.parts[half as usize % PARTS].get_mut(&half)
    }

    /// Sets the value of a half. Returns whether the half is new.
    pub(crate) fn insert(&mut self, half: u64, value: V) -> bool {
        let is_new = self.parts[half as usize % PARTS].insert(half, value).is_none();
        self.count += usize::from(is_new);
        is_new
    }

    /// Keeps those halves of a part whose values pass, and returns spare memory.
    pub(crate) fn retain_in_part(&mut self, part: usize, passes: impl Fn(&V) -> bool) {
        let part = &mut self.parts[part];
        let before = part.len();
        part.retain(|_, value| passes(value));
        self.count -= before - part.len();
        if part.capacity() / 8 > part.len() {
            part.shrink_to_fit();
        }
    }
}

/// The first 8 bytes of a fingerprint.
pub(crate) fn first_half(fingerprint: u128) -> u64 {
    (fingerprint >> 64) as u64
}

/// The finalizer of SplitMix64.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
