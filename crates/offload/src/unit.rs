//! Rules as the planner compares them, and whether two have packets in common.

use policy::{AddressRange, Policy, PortRange, UpperSelector};
use wire::Family;
use wire::flow::protocol;

use crate::decision::Decision;
use crate::reason::{Inexact, RuleKey};

/// Pairs of ranges up to which two lists are compared; longer ones count as overlapping.
const MOST_PAIRS: usize = 4096;
/// Combinations of a rule's address lists that become areas of their own; of more, one around all.
const FEW_AREAS: usize = 16;

/// A rule of one family that ports of the card ask.
#[derive(Debug)]
pub(crate) struct Unit<'p> {
    pub(crate) key: RuleKey,
    pub(crate) policy: &'p Policy,
    /// The higher wins.
    pub(crate) rank: u64,
    pub(crate) decision: Decision,
    /// Ports of the card that ask it, ascending.
    pub(crate) ports: Box<[u16]>,
    /// Number of this list of ports.
    pub(crate) ports_number: u32,
    /// Entries that it takes in the card, or the reason why it cannot be there.
    pub(crate) entries: Result<u32, Inexact>,
    /// Packets that it decided.
    pub(crate) hits: u64,
}

impl Unit<'_> {
    /// Returns whether a packet of a port matches both rules, which are of one family. Lists that
    /// are too long to be compared count as overlapping.
    pub(crate) fn overlaps(&self, other: &Unit<'_>) -> bool {
        share_one(&self.ports, &other.ports) && overlap(self.policy, other.policy, self.key.family)
    }
}

/// Returns whether a packet of a family may match both policies.
pub(crate) fn overlap(one: &Policy, other: &Policy, family: Family) -> bool {
    let (one, other) = (&one.selector, &other.selector);
    let is_long = |one: &[AddressRange], other: &[AddressRange]| {
        one.len().saturating_mul(other.len()) > MOST_PAIRS
    };
    is_long(&one.local, &other.local)
        || is_long(&one.remote, &other.remote)
        || one.overlaps_in(other, family)
}

/// Returns whether two ascending lists have a number in common.
pub(crate) fn share_one(one: &[u16], other: &[u16]) -> bool {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        match a.cmp(b) {
            std::cmp::Ordering::Less => one.next(),
            std::cmp::Ordering::Greater => other.next(),
            std::cmp::Ordering::Equal => return true,
        };
    }
    false
}

/// Bounds of packets: all that a rule matches, and perhaps more, lies in its areas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Area {
    /// Source and destination addresses.
    pub(crate) addresses: [(u128, u128); 2],
    /// Source and destination ports; of ICMP the message is where the destination port is.
    pub(crate) ports: [(u16, u16); 2],
    pub(crate) protocols: (u8, u8),
}

impl Area {
    #[inline]
    pub(crate) fn meets(&self, other: &Area) -> bool {
        fn meet<T: Ord + Copy>(one: (T, T), other: (T, T)) -> bool {
            one.0 <= other.1 && other.0 <= one.1
        }
        meet(self.addresses[0], other.addresses[0])
            && meet(self.addresses[1], other.addresses[1])
            && meet(self.ports[1], other.ports[1])
            && meet(self.ports[0], other.ports[0])
            && meet(self.protocols, other.protocols)
    }

    pub(crate) fn around(&self, other: &Area) -> Area {
        fn around<T: Ord + Copy>(one: (T, T), other: (T, T)) -> (T, T) {
            (one.0.min(other.0), one.1.max(other.1))
        }
        let both = |i: usize| around(self.addresses[i], other.addresses[i]);
        let ports = |i: usize| around(self.ports[i], other.ports[i]);
        Area {
            addresses: [both(0), both(1)],
            ports: [ports(0), ports(1)],
            protocols: around(self.protocols, other.protocols),
        }
    }
}

/// The relation of a rule to its areas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    /// The rule matches every packet of its area: two such rules have packets in common if their
    /// areas meet.
    Exact,
    /// The rule matches packets of its areas, and perhaps not all.
    Around,
}

/// The relation of a rule of a family to its areas.
pub(crate) fn fit(policy: &Policy, family: Family) -> Fit {
    let selector = &policy.selector;
    let of_family =
        |ranges: &[AddressRange]| ranges.iter().filter(|range| range.family == family).count();
    let is_one = of_family(&selector.local) == 1 && of_family(&selector.remote) == 1;
    let is_exact = match (&selector.upper, selector.protocol) {
        (UpperSelector::Any, _) => true,
        (UpperSelector::Ports { local, remote }, asked) => {
            let is_any = local.is_empty() && remote.is_empty();
            let has_ports = asked.is_some_and(protocol::has_ports);
            is_any || has_ports && local.len() <= 1 && remote.len() <= 1
        }
        // Of another family's protocol no packet has messages.
        (UpperSelector::Icmp(messages), None) => messages.len() <= 1,
        (UpperSelector::Icmp(_) | UpperSelector::Tcp { .. }, _) => false,
    };
    if is_one && is_exact { Fit::Exact } else { Fit::Around }
}

/// The areas of a rule in one family, each to `visit`.
pub(crate) fn areas(policy: &Policy, family: Family, mut visit: impl FnMut(Area)) {
    let selector = &policy.selector;
    let of = |ranges: &[AddressRange]| -> Vec<(u128, u128)> {
        let ranges = ranges.iter().filter(|range| range.family == family);
        ranges.map(|range| (range.lo, range.hi)).collect()
    };
    let (sources, destinations) = (of(&selector.local), of(&selector.remote));
    let (ports, protocols) = upper(&selector.upper, selector.protocol, family);
    let mut area = |source, destination| {
        visit(Area { addresses: [source, destination], ports, protocols });
    };
    if sources.len().saturating_mul(destinations.len()) <= FEW_AREAS {
        for &source in &sources {
            destinations.iter().for_each(|&destination| area(source, destination));
        }
    } else if let (Some(source), Some(destination)) = (hull(&sources), hull(&destinations)) {
        area(source, destination);
    }
}

fn hull<T: Ord + Copy>(ranges: &[(T, T)]) -> Option<(T, T)> {
    ranges.iter().copied().reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
}

/// Bounds of the upper-layer headers that a rule matches.
fn upper(upper: &UpperSelector, asked: Option<u8>, family: Family) -> ([(u16, u16); 2], (u8, u8)) {
    const ANY: (u16, u16) = (0, u16::MAX);
    let around = |ports: &[PortRange]| {
        let ends: Vec<_> = ports.iter().map(|range| (range.lo, range.hi)).collect();
        hull(&ends).unwrap_or(ANY)
    };
    let of = |lo: u8, hi: u8| asked.map_or((lo, hi), |asked| (asked, asked));
    match upper {
        UpperSelector::Any => ([ANY, ANY], of(0, u8::MAX)),
        UpperSelector::Ports { local, remote } if local.is_empty() && remote.is_empty() => {
            ([ANY, ANY], of(0, u8::MAX))
        }
        UpperSelector::Ports { local, remote } => {
            ([around(local), around(remote)], of(protocol::TCP, protocol::UDP_LITE))
        }
        UpperSelector::Tcp { local, remote, .. } => {
            ([around(local), around(remote)], of(protocol::TCP, protocol::TCP))
        }
        UpperSelector::Icmp(messages) => {
            let ends: Vec<_> = messages.iter().map(|range| (range.lo, range.hi)).collect();
            let number = match family {
                Family::V4 => protocol::ICMP,
                Family::V6 => protocol::ICMPV6,
            };
            ([ANY, hull(&ends).unwrap_or(ANY)], of(number, number))
        }
    }
}
