//! Longest-prefix routing. Exact for both families.

mod trie;

use imbl::OrdSet;
use wire::{Address, Family};

use self::trie::{Around, Bits, Trie};
use crate::ids::{NextHopId, PortId};

/// A route's next hop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NextHop {
    /// The port to leave by.
    pub port: PortId,
    /// The router on that link; `None`: the destination itself is on the link.
    pub gateway: Option<Address>,
}

/// A prefix of either family; bits of `address` behind `length` are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix {
    /// First address.
    pub address: Address,
    /// Leading bits that count.
    pub length: u8,
}

impl Prefix {
    /// Last address of the prefix, as a number.
    pub fn last(&self) -> u128 {
        let host_bits = self.address.family.address_bits().saturating_sub(self.length);
        let host_mask = 1u128.checked_shl(host_bits.into()).map_or(u128::MAX, |bit| bit - 1);
        self.address.value | host_mask
    }
}

/// Target of a prefix; `H` is a next hop's number, or the next hop itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RouteTarget<H = NextHopId> {
    /// One of our own addresses.
    Local,
    /// A subnet's broadcast address: never forwarded.
    Broadcast,
    /// Drop (`blackhole`).
    Blackhole,
    /// By a netdev that is no port, or by a way that is not ours to judge: as if there were no
    /// route, but no wider one takes its place.
    Elsewhere,
    /// Forward.
    Via(H),
}

impl<H> RouteTarget<H> {
    /// Returns the target with its next hop in another form.
    pub fn map<G>(self, other: impl FnOnce(H) -> G) -> RouteTarget<G> {
        match self {
            RouteTarget::Local => RouteTarget::Local,
            RouteTarget::Broadcast => RouteTarget::Broadcast,
            RouteTarget::Blackhole => RouteTarget::Blackhole,
            RouteTarget::Elsewhere => RouteTarget::Elsewhere,
            RouteTarget::Via(hop) => RouteTarget::Via(other(hop)),
        }
    }
}

/// A route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteEntry {
    /// Destinations.
    pub prefix: Prefix,
    /// Target of packets to them.
    pub target: RouteTarget,
}

/// A routing table. Cheap to copy; a changed copy shares what did not change.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    v4: Trie<u32>,
    v6: Trie<u128>,
    /// Prefixes that are our own or broadcast addresses.
    own: OrdSet<Prefix>,
    /// One bit per hash of these: a source that has none is a stranger's, which almost all are, and
    /// needs no search.
    own_filter: [u64; FILTER_BITS / 64],
}

const FILTER_BITS: usize = 1024;

/// The word and the bit of an address in the filter.
#[inline]
fn filter_place(value: u128) -> (usize, u64) {
    let folded = (value ^ value >> 64) as u64;
    let bit = (folded ^ folded >> 10 ^ folded >> 32) as usize % FILTER_BITS;
    (bit / 64, 1 << (bit % 64))
}

impl RouteTable {
    /// A table of routes. Of two with one prefix the later in the list wins.
    pub fn new(entries: &[RouteEntry]) -> RouteTable {
        let mut table = RouteTable::default();
        for RouteEntry { prefix, target } in entries {
            table.insert(*prefix, *target);
        }
        table
    }

    /// Gives a prefix a target, and returns the one that it had.
    pub fn insert(&mut self, prefix: Prefix, target: RouteTarget) -> Option<RouteTarget> {
        let Prefix { address, length } = prefix;
        match target {
            RouteTarget::Local | RouteTarget::Broadcast => {
                self.own.insert(prefix);
                self.note_own(&prefix);
            }
            _ => self.forget_own(&prefix),
        }
        match address.family {
            Family::V4 => self.v4.insert(address.value as u32, length, target),
            Family::V6 => self.v6.insert(address.value, length, target),
        }
    }

    /// Takes a prefix out, and returns its target.
    pub fn remove(&mut self, prefix: Prefix) -> Option<RouteTarget> {
        let Prefix { address, length } = prefix;
        self.forget_own(&prefix);
        match address.family {
            Family::V4 => self.v4.remove(address.value as u32, length),
            Family::V6 => self.v6.remove(address.value, length),
        }
    }

    /// The target of a prefix; not that of a wider one.
    pub fn get(&self, prefix: Prefix) -> Option<RouteTarget> {
        let Prefix { address, length } = prefix;
        match address.family {
            Family::V4 => self.v4.get(address.value as u32, length),
            Family::V6 => self.v6.get(address.value, length),
        }
    }

    /// Returns whether the table has no prefix.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    fn forget_own(&mut self, prefix: &Prefix) {
        if self.own.remove(prefix).is_some() {
            self.own_filter = [0; FILTER_BITS / 64];
            let own = self.own.clone();
            own.iter().for_each(|prefix| self.note_own(prefix));
        }
    }

    fn note_own(&mut self, prefix: &Prefix) {
        if prefix.length < prefix.address.family.address_bits() {
            self.own_filter = [u64::MAX; FILTER_BITS / 64];
        }
        let (word, bit) = filter_place(prefix.address.value);
        self.own_filter[word] |= bit;
    }

    /// Returns whether an address may be one of our own or a broadcast address; false is sure.
    #[inline(always)]
    pub(crate) fn may_be_ours(&self, value: u128) -> bool {
        let (word, bit) = filter_place(value);
        self.own_filter[word] & bit != 0
    }

    /// Returns whether an address is one of our own or a broadcast address: no stranger's source.
    #[inline]
    pub fn is_ours(&self, address: Address) -> bool {
        self.may_be_ours(address.value) && self.leads_to_us(address)
    }

    #[inline(never)]
    fn leads_to_us(&self, address: Address) -> bool {
        matches!(self.lookup(address), Some(RouteTarget::Local | RouteTarget::Broadcast))
    }

    /// The route of the longest prefix that holds `destination`.
    #[inline]
    pub fn lookup(&self, destination: Address) -> Option<RouteTarget> {
        match destination.family {
            Family::V4 => self.v4.lookup(destination.value as u32),
            Family::V6 => self.v6.lookup(destination.value),
        }
    }

    /// Returns the route of an address, with the addresses around it that have the same one.
    #[inline(never)]
    pub(crate) fn lookup_range(&self, destination: Address) -> LastRoute {
        let Address { family, value } = destination;
        match family {
            Family::V4 => LastRoute::of(family, self.v4.around(value as u32)),
            Family::V6 => LastRoute::of(family, self.v6.around(value)),
        }
    }
}

/// The route found last and the range of addresses that share it. Most packets of a batch have the
/// route of the packet before, and need no search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastRoute {
    /// `None`: nothing was looked up yet.
    family: Option<Family>,
    first: u128,
    /// Number of addresses behind the first.
    behind: u128,
    target: Option<RouteTarget>,
}

impl LastRoute {
    /// Nothing was looked up yet.
    pub(crate) const fn nothing() -> LastRoute {
        LastRoute { family: None, first: 0, behind: 0, target: None }
    }

    fn of<N: Bits + Into<u128>>(family: Family, around: Around<N>) -> LastRoute {
        let Around { first, length, target } = around;
        let behind = u128::MAX.checked_shr((128 - N::WIDTH + length).into()).unwrap_or(0);
        LastRoute { family: Some(family), first: first.into(), behind, target }
    }

    /// The addresses of a family that were found last, from the first on, and their next hop.
    pub(crate) fn via(&self, of: Family) -> Option<(u128, u128, NextHopId)> {
        match self.target {
            Some(RouteTarget::Via(hop)) if self.family == Some(of) => {
                Some((self.first, self.behind, hop))
            }
            _ => None,
        }
    }

    /// The route of an address in `routes`; always the same table between two
    /// [`LastRoute::nothing`].
    #[inline(always)]
    pub(crate) fn lookup(
        &mut self,
        routes: &RouteTable,
        destination: Address,
    ) -> Option<RouteTarget> {
        let Address { family, value } = destination;
        if self.family != Some(family) || value.wrapping_sub(self.first) > self.behind {
            *self = routes.lookup_range(destination);
        }
        self.target
    }
}

#[cfg(test)]
mod tests;
