//! Longest-prefix routing as disjoint intervals: prefixes are flattened once, a lookup is one
//! binary search over their first addresses. Exact for both families.

use wire::{Address, Family};

use crate::ids::{NextHopId, PortId};

/// Where a route leads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NextHop {
    /// The port to leave by.
    pub port: PortId,
    /// The router on that link; `None`: the destination itself is on the link.
    pub gateway: Option<Address>,
}

/// A prefix of either family; bits of `address` behind `length` are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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

/// What a prefix means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RouteTarget {
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
    Via(NextHopId),
}

/// One route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteEntry {
    /// Destinations.
    pub prefix: Prefix,
    /// What becomes of them.
    pub target: RouteTarget,
}

/// A routing table. Immutable.
pub struct RouteTable {
    v4: Intervals<u32>,
    v6: Intervals<u128>,
    /// One bit per hash of our own and broadcast addresses: a source that has none is a stranger's,
    /// which almost all are, and needs no search.
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
    /// Flattens routes. Of two with one prefix the later in the list wins.
    pub fn new(entries: &[RouteEntry]) -> RouteTable {
        let of = |family| {
            let mut list: Vec<&RouteEntry> =
                entries.iter().filter(|e| e.prefix.address.family == family).collect();
            list.sort_by_key(|e| e.prefix.length);
            flatten(&list, family)
        };
        let (v4_starts, v4_targets) = of(Family::V4);
        let (v6_starts, v6_targets) = of(Family::V6);
        let v4_starts = v4_starts.iter().map(|start| *start as u32).collect();
        RouteTable {
            v4: Intervals { starts: v4_starts, targets: v4_targets },
            v6: Intervals { starts: v6_starts, targets: v6_targets },
            own_filter: own_filter(entries),
        }
    }

    /// Whether an address is one of our own or a broadcast address: no stranger's source.
    #[inline]
    pub fn is_ours(&self, address: Address) -> bool {
        let (word, bit) = filter_place(address.value);
        self.own_filter[word] & bit != 0
            && matches!(self.lookup(address), Some(RouteTarget::Local | RouteTarget::Broadcast))
    }

    /// The route of the longest prefix that holds `destination`.
    #[inline]
    pub fn lookup(&self, destination: Address) -> Option<RouteTarget> {
        match destination.family {
            Family::V4 => self.v4.lookup(destination.value as u32),
            Family::V6 => self.v6.lookup(destination.value),
        }
    }

    /// The same, with the addresses around it that have its route.
    #[inline(never)]
    fn around(&self, destination: Address) -> Near {
        let Address { family, value } = destination;
        let last = family.highest_address();
        let (first, end, target) = match family {
            Family::V4 => self.v4.around(value as u32),
            Family::V6 => self.v6.around(value),
        };
        let behind = end.map_or(last, |end| end - 1) - first;
        Near { family: Some(family), first, behind, target }
    }
}

/// The addresses around the one that was looked up last, which all have its route: most packets of
/// a batch go where the one before went, and need no search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Near {
    /// `None`: nothing was looked up yet.
    family: Option<Family>,
    first: u128,
    /// How many addresses behind the first.
    behind: u128,
    target: Option<RouteTarget>,
}

impl Near {
    /// Nothing was looked up yet.
    pub(crate) const fn nothing() -> Near {
        Near { family: None, first: 0, behind: 0, target: None }
    }

    /// The route of an address in `routes`; always the same table between two [`Near::nothing`].
    #[inline(always)]
    pub(crate) fn lookup(
        &mut self,
        routes: &RouteTable,
        destination: Address,
    ) -> Option<RouteTarget> {
        let Address { family, value } = destination;
        if self.family != Some(family) || value.wrapping_sub(self.first) > self.behind {
            *self = routes.around(destination);
        }
        self.target
    }
}

fn own_filter(entries: &[RouteEntry]) -> [u64; FILTER_BITS / 64] {
    let mut filter = [0; FILTER_BITS / 64];
    let own = entries
        .iter()
        .filter(|entry| matches!(entry.target, RouteTarget::Local | RouteTarget::Broadcast));
    for RouteEntry { prefix, .. } in own {
        if prefix.length < prefix.address.family.address_bits() {
            return [u64::MAX; FILTER_BITS / 64];
        }
        let (word, bit) = filter_place(prefix.address.value);
        filter[word] |= bit;
    }
    filter
}

struct Intervals<N> {
    /// First address of each interval, ascending, the first is 0.
    starts: Box<[N]>,
    /// What the interval from the same place of `starts` to the next one means.
    targets: Box<[Option<RouteTarget>]>,
}

impl<N: Ord + Copy> Intervals<N> {
    #[inline]
    fn lookup(&self, address: N) -> Option<RouteTarget> {
        let behind = self.starts.partition_point(|start| *start <= address);
        self.targets[behind.checked_sub(1)?]
    }

    /// The interval that an address is in: its first address, that of the next, its target.
    fn around(&self, address: N) -> (u128, Option<u128>, Option<RouteTarget>)
    where
        N: Into<u128>,
    {
        // The first interval begins at 0, so every address is in one.
        let behind = self.starts.partition_point(|start| *start <= address);
        let place = behind.saturating_sub(1);
        let end = self.starts.get(place + 1).map(|end| (*end).into());
        (self.starts[place].into(), end, self.targets[place])
    }
}

type Flat = (Box<[u128]>, Box<[Option<RouteTarget>]>);

/// Flattens prefixes, shortest first, into disjoint intervals that cover the family.
///
/// Prefixes nest or are disjoint, so a stack of the open ones gives at every address the longest:
/// 1. sort by first address, shorter prefixes first among equals;
/// 2. before opening a prefix close those that end before it, resuming what lies around them;
/// 3. merge neighbours with one target.
fn flatten(by_length: &[&RouteEntry], family: Family) -> Flat {
    let mut entries: Vec<&RouteEntry> = by_length.to_vec();
    entries.sort_by_key(|e| e.prefix.address.value); // stable: shorter stays first
    let mut starts: Vec<u128> = vec![0];
    let mut targets: Vec<Option<RouteTarget>> = vec![None];
    let mut begin = |at: u128, target: Option<RouteTarget>| {
        if *starts.last().expect("never empty") == at {
            *targets.last_mut().expect("never empty") = target;
        } else if *targets.last().expect("never empty") != target {
            starts.push(at);
            targets.push(target);
        }
    };
    let mut open: Vec<(u128, RouteTarget)> = Vec::new();
    let around = |open: &[(u128, RouteTarget)]| open.last().map(|(_, target)| *target);
    for entry in entries {
        let first = entry.prefix.address.value;
        while let Some((last, _)) = open.last().copied().filter(|(last, _)| *last < first) {
            open.pop();
            begin(last + 1, around(&open));
        }
        begin(first, Some(entry.target));
        open.push((entry.prefix.last(), entry.target));
    }
    while let Some((last, _)) = open.pop() {
        if last < family.highest_address() {
            begin(last + 1, around(&open));
        }
    }
    (starts.into(), targets.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Prefixes around a few places, so that they nest, meet and lie apart.
    fn prefixes() -> impl Strategy<Value = Vec<(u32, u8)>> {
        let place = prop_oneof![
            Just(0u32),
            Just(u32::MAX),
            Just(0x0a01_0000),
            Just(0x0a01_ffff),
            Just(0x0a02_0000),
            any::<u32>(),
        ];
        prop::collection::vec((place, 0u8..=32), 0..40)
    }

    fn entry(number: usize, (address, length): (u32, u8)) -> RouteEntry {
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        let prefix = Prefix { address: Address::v4(address & mask), length };
        RouteEntry { prefix, target: RouteTarget::Via(NextHopId(number as u32)) }
    }

    proptest! {
        #[test]
        fn the_longest_prefix_wins(
            prefixes in prefixes(),
            others: Vec<u32>,
        ) {
            let entries = prefixes.iter().enumerate();
            let entries: Vec<_> = entries.map(|(number, prefix)| entry(number, *prefix)).collect();
            let table = RouteTable::new(&entries);
            let mut near = Near::nothing();
            let edges = entries.iter().flat_map(|entry| {
                let (first, last) = (entry.prefix.address.value as u32, entry.prefix.last() as u32);
                [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
            });
            for address in edges.chain(others).chain([0, u32::MAX]) {
                let holds = |entry: &&RouteEntry| {
                    let Prefix { address: first, .. } = entry.prefix;
                    (first.value..=entry.prefix.last()).contains(&u128::from(address))
                };
                let expected = entries.iter().filter(holds).max_by_key(|e| e.prefix.length);
                let expected = expected.map(|entry| entry.target);
                let address = Address::v4(address);
                prop_assert_eq!(table.lookup(address), expected, "{}", address);
                // From wherever the one before was, and from where it is itself.
                for _ in 0..2 {
                    prop_assert_eq!(near.lookup(&table, address), expected, "{}", address);
                }
                prop_assert_eq!(near.lookup(&table, Address::v6(address.value)), None);
            }
        }
    }
}
