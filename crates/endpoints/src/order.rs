//! The keys of live endpoints in order, and how many each network has.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use wire::{Address, Family, Vni};

use crate::endpoint::EndpointKey;

/// The keys of all networks that have some.
#[derive(Default)]
pub(crate) struct Order {
    networks: BTreeMap<Vni, Addresses>,
}

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
    /// Puts in a key that is not there. Its address is not longer than its family allows.
    pub(crate) fn insert(&mut self, key: EndpointKey) {
        let EndpointKey { vni, address: Address { family, value } } = key;
        let addresses = self.networks.entry(vni).or_default();
        let is_new = match family {
            Family::V4 => addresses.v4.insert(value as u32),
            Family::V6 => addresses.v6.insert(value),
        };
        debug_assert!(is_new, "{key} is there once");
    }

    /// Takes out a key that is there.
    pub(crate) fn remove(&mut self, key: EndpointKey) {
        let EndpointKey { vni, address: Address { family, value } } = key;
        let Some(addresses) = self.networks.get_mut(&vni) else { return };
        let was_there = match family {
            Family::V4 => addresses.v4.remove(&(value as u32)),
            Family::V6 => addresses.v6.remove(&value),
        };
        debug_assert!(was_there, "{key} is there");
        if addresses.len() == 0 {
            self.networks.remove(&vni);
        }
    }

    /// Networks that have keys, in order, and how many each has.
    pub(crate) fn live(&self) -> impl Iterator<Item = (Vni, usize)> {
        self.networks.iter().map(|(vni, addresses)| (*vni, addresses.len()))
    }

    /// Keys behind `after`, in order: of one network, or of all.
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
