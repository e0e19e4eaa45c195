//! The keys of live endpoints in order, and how many each network has.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use wire::{Address, Family, Vni};

use crate::endpoint::{EndpointKey, KeyWords};

/// The keys of all networks that have some.
///
/// Changes are noted first and then made sorted, all at once: keys that are near each other are
/// then in the cache together, which takes a third of the time.
#[derive(Default)]
pub(crate) struct Order {
    networks: BTreeMap<Vni, Addresses>,
    noted: Vec<(KeyWords, Step)>,
}

/// A change of the set of keys.
#[derive(Clone, Copy)]
enum Step {
    Insert,
    Remove,
}

/// Changes that are noted at most, so that they take little memory.
const MAX_NOTED: usize = 65_536;

/// Addresses of a network. Those of IPv4 are apart, in a quarter of the memory.
#[derive(Default)]
struct Addresses {
    v4: BTreeSet<u32>,
    v6: BTreeSet<u128>,
}

impl Addresses {
    fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    fn change(&mut self, key: KeyWords, step: Step) {
        let EndpointKey { vni: _, address: Address { family, value } } =
            EndpointKey::from_words(key);
        let is_done = match (family, step) {
            (Family::V4, Step::Insert) => self.v4.insert(value as u32),
            (Family::V4, Step::Remove) => self.v4.remove(&(value as u32)),
            (Family::V6, Step::Insert) => self.v6.insert(value),
            (Family::V6, Step::Remove) => self.v6.remove(&value),
        };
        debug_assert!(is_done, "a key is inserted once and removed once");
    }

    /// Addresses behind `after`, in order.
    fn behind(&self, after: Option<Address>) -> impl Iterator<Item = Address> {
        let whole = (Bound::Unbounded, Bound::Unbounded);
        let (v4, v6) = match after {
            None => (Some(whole), (Bound::Unbounded, Bound::Unbounded)),
            Some(Address { family: Family::V4, value }) => {
                // One of more than 32 bits is behind all.
                let start = u32::try_from(value).ok().map(Bound::Excluded);
                (start.map(|start| (start, Bound::Unbounded)), (Bound::Unbounded, Bound::Unbounded))
            }
            Some(Address { family: Family::V6, value }) => {
                (None, (Bound::Excluded(value), Bound::Unbounded))
            }
        };
        let v4 = v4.into_iter().flat_map(|range| self.v4.range(range)).copied().map(Address::v4);
        v4.chain(self.v6.range(v6).copied().map(Address::v6))
    }
}

impl Order {
    /// Notes a key that is not there. Its address is not longer than its family allows.
    pub(crate) fn insert(&mut self, key: KeyWords) {
        self.note(key, Step::Insert);
    }

    /// Notes that a key that is there goes.
    pub(crate) fn remove(&mut self, key: KeyWords) {
        self.note(key, Step::Remove);
    }

    fn note(&mut self, key: KeyWords, step: Step) {
        self.noted.push((key, step));
        if self.noted.len() >= MAX_NOTED {
            self.settle();
        }
    }

    /// Makes the changes that were noted. Those of one key stay in their order.
    pub(crate) fn settle(&mut self) {
        let mut noted = std::mem::take(&mut self.noted);
        noted.sort_by_key(|(key, _)| *key);
        for same in noted.chunk_by(|(one, _), (other, _)| one[0] >> 1 == other[0] >> 1) {
            let Some((first, _)) = same.first() else { continue };
            let vni = EndpointKey::from_words(*first).vni;
            let addresses = self.networks.entry(vni).or_default();
            same.iter().for_each(|(key, step)| addresses.change(*key, *step));
            if addresses.len() == 0 {
                self.networks.remove(&vni);
            }
        }
        noted.clear();
        self.noted = noted;
    }

    /// Networks that have settled keys, in order, and how many each has.
    pub(crate) fn live(&self) -> impl Iterator<Item = (Vni, usize)> {
        self.networks.iter().map(|(vni, addresses)| (*vni, addresses.len()))
    }

    /// Settled keys behind `after`, in order: of one network, or of all.
    pub(crate) fn keys(
        &self,
        vni: Option<Vni>,
        after: Option<EndpointKey>,
    ) -> impl Iterator<Item = EndpointKey> {
        let first = [vni, after.map(|after| after.vni)].into_iter().flatten().max();
        let first = first.map_or(Bound::Unbounded, Bound::Included);
        let networks = self.networks.range((first, Bound::Unbounded));
        networks.take_while(move |(network, _)| vni.is_none_or(|vni| **network == vni)).flat_map(
            move |(vni, addresses)| {
                let after = after.filter(|after| after.vni == *vni).map(|after| after.address);
                addresses.behind(after).map(|address| EndpointKey { vni: *vni, address })
            },
        )
    }
}
