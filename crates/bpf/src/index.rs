//! An index of the kernel tier: leads keys to slots, as `find` in `c/overlay.bpf.c` reads it.
//!
//! A key has two buckets of eight places (two-choice hashing, Azar et al. 1994). A place is one
//! word: the upper half of the key's hash, its *tag*, and the slot. The kernel's own hash table
//! costs a call, and the cache lines of a chain. Here most keys are in the first of their buckets,
//! whose 64 bytes lie in two neighbouring lines: an array's values do not begin at a line.
//!
//! The program compares the record of a slot with the key, so a place that it reads while it is
//! written, or a tag that two keys share, leads to no other key's record: the packet is a miss.

use std::num::NonZero;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use wire::shared::Shared;

use crate::BpfError;
use crate::layout::{BUCKET_PLACES, BucketEntry, HASH_FACTOR};
use crate::maps::make;

/// An index; there is one writer.
pub(crate) struct Index {
    pub(crate) map: MapHandle,
    table: &'static str,
    seed: u32,
}

/// A key's hash, and what follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Hash(u64);

impl Hash {
    fn of(seed: u32, words: &[u32]) -> Hash {
        Hash(words.iter().fold(seed.into(), |sum: u64, word| {
            let sum = (sum ^ u64::from(*word)).wrapping_mul(HASH_FACTOR);
            sum ^ (sum >> 32)
        }))
    }

    /// The word that a place of the key begins with: odd, so never that of an empty place.
    fn tag(self) -> NonZero<u32> {
        NonZero::<u32>::MIN | (self.0 >> 32) as u32
    }

    /// The key's two buckets, which differ.
    fn buckets(self, mask: u32) -> [u32; 2] {
        let first = self.0 as u32 & mask;
        [first, (first ^ self.tag().get()) & mask]
    }
}

impl Index {
    /// Makes an empty index with two places for each of `keys` keys. `seed` is a secret random
    /// number: tenants choose addresses, and must not be able to fill one bucket with them.
    ///
    /// # Errors
    /// [`BpfError::Table`]: the kernel has not that much memory, say.
    pub(crate) fn new(
        name: &'static str,
        table: &'static str,
        keys: u32,
        seed: u32,
    ) -> Result<Index, BpfError> {
        let buckets = (2 * keys.next_power_of_two() / BUCKET_PLACES as u32).max(2);
        let map = make(name, MapType::Array, (4, size_of::<BucketEntry>()), buckets)?;
        Ok(Index { map, table, seed })
    }

    /// The number of the last bucket: all bits of a bucket's number.
    pub(crate) fn mask(&self) -> u32 {
        self.map.max_entries() - 1
    }

    /// Makes a key lead to a slot. It leads to none so far.
    ///
    /// # Errors
    /// [`BpfError::NoPlace`]: its buckets are full, or another key has its tag there.
    /// [`BpfError::Table`].
    pub(crate) fn publish(&self, words: &[u32], slot: u32) -> Result<(), BpfError> {
        let hash = Hash::of(self.seed, words);
        let tag = hash.tag().get();
        let mut roomiest: Option<(u32, BucketEntry, usize)> = None;
        for number in hash.buckets(self.mask()) {
            let bucket = self.bucket(number)?;
            if bucket.places.iter().any(|place| tag_of(*place) == tag) {
                return Err(BpfError::NoPlace { table: self.table });
            }
            let room = bucket.places.iter().filter(|place| **place == 0).count();
            if roomiest.as_ref().is_none_or(|(_, _, most)| room > *most) {
                roomiest = Some((number, bucket, room));
            }
        }
        let place = roomiest.and_then(|(number, bucket, _)| {
            let place = bucket.places.iter().position(|place| *place == 0)?;
            Some((number, bucket, place))
        });
        let (number, mut bucket, place) = place.ok_or(BpfError::NoPlace { table: self.table })?;
        bucket.places[place] = place_of(hash, slot);
        self.set(number, &bucket)
    }

    /// Makes a key that may lead to a slot lead nowhere.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub(crate) fn withdraw(&self, words: &[u32], slot: u32) -> Result<(), BpfError> {
        let hash = Hash::of(self.seed, words);
        let own = place_of(hash, slot);
        for number in hash.buckets(self.mask()) {
            let mut bucket = self.bucket(number)?;
            if let Some(place) = bucket.places.iter_mut().find(|place| **place == own) {
                *place = 0;
                return self.set(number, &bucket);
            }
        }
        Ok(())
    }

    fn bucket(&self, number: u32) -> Result<BucketEntry, BpfError> {
        let bytes = self.map.lookup(&number.bytes(), MapFlags::ANY).map_err(self.error())?;
        bytes.map(|bytes| BucketEntry::read(&bytes)).ok_or(BpfError::Shape { part: "a bucket" })
    }

    /// Writes a bucket of which one place is another. The other bytes are written as they are.
    fn set(&self, number: u32, bucket: &BucketEntry) -> Result<(), BpfError> {
        let set = self.map.update(&number.bytes(), &bucket.bytes(), MapFlags::ANY);
        set.map_err(self.error())
    }

    fn error(&self) -> impl Fn(libbpf_rs::Error) -> BpfError {
        let table = self.table;
        move |source| BpfError::Table { table, source }
    }
}

/// The word of a place that leads from a key to a slot.
fn place_of(hash: Hash, slot: u32) -> u64 {
    u64::from(hash.tag().get()) << 32 | u64::from(slot)
}

fn tag_of(place: u64) -> u32 {
    (place >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_two_buckets_and_no_tag_is_that_of_an_empty_place() {
        for mask in [1, 3, 0xffff] {
            for word in (0..=300).chain([u32::MAX - 1, u32::MAX]) {
                let hash = Hash::of(word, &[word, !word]);
                let [first, second] = hash.buckets(mask);
                assert_ne!(first, second);
                assert!(first <= mask && second <= mask);
                // From either of them the tag leads to the other.
                assert_eq!((second ^ hash.tag().get()) & mask, first);
            }
        }
    }
}
