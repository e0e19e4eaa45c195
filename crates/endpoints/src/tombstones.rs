//! The revisions of deleted keys, so that a change that comes late does not bring one back.

use std::collections::{BTreeSet, HashMap};

use crate::endpoint::{EndpointKey, KeyWords};

/// Tombstones, of bounded number.
///
/// If there are too many, those of the lowest revision are forgotten, and the **floor** rises to
/// that revision: a change of an unknown key is then stale if its revision is not above the floor.
/// That a key is brought back by a change older than its deletion is thus impossible, whatever was
/// forgotten. The price: a change that has overtaken nothing, of a key that was never there, is
/// taken for stale if it comes so late that a whole bound of later deletions came before it.
pub(crate) struct Tombstones {
    by_key: HashMap<KeyWords, u64, foldhash::quality::RandomState>,
    by_revision: BTreeSet<(u64, KeyWords)>,
    max: usize,
    floor: u64,
}

impl Tombstones {
    pub(crate) fn new(max: usize) -> Tombstones {
        Tombstones { by_key: HashMap::default(), by_revision: BTreeSet::new(), max, floor: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// Revision of a key's deletion, if it is remembered.
    #[inline]
    pub(crate) fn revision(&self, key: &KeyWords) -> Option<u64> {
        if self.by_key.is_empty() { None } else { self.by_key.get(key).copied() }
    }

    /// Remembers a deletion. An earlier one of the key is replaced.
    pub(crate) fn put(&mut self, key: KeyWords, revision: u64) {
        self.remove(&key);
        if revision <= self.floor {
            return;
        }
        self.by_key.insert(key, revision);
        self.by_revision.insert((revision, key));
        if self.by_key.len() > self.max
            && let Some((oldest, _)) = self.by_revision.first()
        {
            self.forget_up_to(*oldest);
        }
    }

    /// Drops the tombstone of a key that is live again.
    pub(crate) fn remove(&mut self, key: &KeyWords) {
        if let Some(revision) = self.by_key.remove(key) {
            self.by_revision.remove(&(revision, *key));
        }
    }

    /// Raises the floor to a revision, unless it is there already, and forgets what it covers.
    pub(crate) fn forget_up_to(&mut self, revision: u64) {
        self.floor = self.floor.max(revision);
        while let Some((oldest, key)) = self.by_revision.first().copied()
            && oldest <= self.floor
        {
            self.by_revision.pop_first();
            self.by_key.remove(&key);
        }
    }

    /// Deleted keys and their revisions, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EndpointKey, u64)> {
        self.by_revision.iter().map(|(revision, key)| (EndpointKey::from_words(*key), *revision))
    }
}
