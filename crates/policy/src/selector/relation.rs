//! Relations of selectors: whether two have packets in common, and whether one has all packets of
//! another. A selector is a cross product of lists, so each list is compared on its own.

use wire::Family;
use wire::flow::protocol;

use super::{AddressRange, IcmpRange, PortRange, Selector, TcpSegments, UpperSelector};

/// Pairs of entries that are compared to find out whether one list holds another.
const MOST_PAIRS: usize = 4096;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

impl AddressRange {
    /// Returns whether an address lies in both ranges.
    pub fn overlaps(&self, other: &AddressRange) -> bool {
        self.family == other.family && self.lo <= other.hi && other.lo <= self.hi
    }
}

impl PortRange {
    /// Returns whether a port lies in both ranges.
    pub fn overlaps(&self, other: &PortRange) -> bool {
        self.lo <= other.hi && other.lo <= self.hi
    }

    /// Returns whether all of another range lies in this one.
    pub fn contains_range(&self, other: &PortRange) -> bool {
        self.lo <= other.lo && other.hi <= self.hi
    }
}

impl IcmpRange {
    /// Returns whether a message lies in both ranges.
    pub fn overlaps(&self, other: &IcmpRange) -> bool {
        self.lo <= other.hi && other.lo <= self.hi
    }

    /// Returns whether all of another range lies in this one.
    pub fn contains_range(&self, other: &IcmpRange) -> bool {
        self.lo <= other.lo && other.hi <= self.hi
    }
}

/// The condition of a selector on the upper-layer header of packets of a family.
#[derive(Clone, Copy)]
enum Upper<'s> {
    /// Nothing.
    Any,
    /// Ports, of a protocol that has them; an empty list means any. Perhaps a kind of TCP segments,
    /// which no other protocol has.
    Ports(&'s [PortRange], &'s [PortRange], Option<TcpSegments>),
    /// Messages of the family's ICMP; an empty list means any.
    Icmp(&'s [IcmpRange]),
}

impl Selector {
    /// Returns whether some packet matches both selectors. Exact, later fragments aside: they match
    /// only what asks for neither ports nor ICMP messages, and there whole packets do too.
    pub fn overlaps(&self, other: &Selector) -> bool {
        FAMILIES.into_iter().any(|family| self.overlaps_in(other, family))
    }

    /// Returns whether some packet of a family matches both selectors; exact as
    /// [`overlaps`](Self::overlaps) is. Cost: each entry of a list with each of the other's.
    pub fn overlaps_in(&self, other: &Selector, family: Family) -> bool {
        any_overlap(&self.local, &other.local, family)
            && any_overlap(&self.remote, &other.remote, family)
            && self.upper_overlaps(other, family)
    }

    /// Returns whether every packet that matches `other` matches this selector; `false` too where
    /// only several of its ranges together hold one of the other's, and where lists are so long
    /// that comparing them all takes too long.
    pub fn covers(&self, other: &Selector) -> bool {
        let addresses = |family| {
            !other.has(family)
                || (all_within(&self.local, &other.local, family)
                    && all_within(&self.remote, &other.remote, family))
        };
        let protocols = match (self.asked_protocol(), other.asked_protocol()) {
            (_, None) => return true,
            (None, _) => return false,
            (Some(wide), Some(narrow)) => wide.is_none() || wide == narrow,
        };
        protocols && self.upper_covers(other) && FAMILIES.into_iter().all(addresses)
    }

    /// Returns whether packets of a family can match.
    fn has(&self, family: Family) -> bool {
        let has = |ranges: &[AddressRange]| ranges.iter().any(|range| range.family == family);
        has(&self.local) && has(&self.remote)
    }

    /// The protocol that it asks for, if it asks for one; `None`: no packet matches.
    pub(crate) fn asked_protocol(&self) -> Option<Option<u8>> {
        match (self.upper.segments(), self.protocol) {
            (Some(_), None | Some(protocol::TCP)) => Some(Some(protocol::TCP)),
            (Some(_), Some(_)) => None,
            (None, protocol) => Some(protocol),
        }
    }

    fn asks(&self) -> Upper<'_> {
        match &self.upper {
            UpperSelector::Any => Upper::Any,
            UpperSelector::Ports { local, remote } if local.is_empty() && remote.is_empty() => {
                Upper::Any
            }
            UpperSelector::Ports { local, remote } => Upper::Ports(local, remote, None),
            UpperSelector::Tcp { segments, local, remote } => {
                Upper::Ports(local, remote, Some(*segments))
            }
            UpperSelector::Icmp(messages) => Upper::Icmp(messages),
        }
    }

    fn upper_overlaps(&self, other: &Selector, family: Family) -> bool {
        let protocol = match (self.asked_protocol(), other.asked_protocol()) {
            (None, _) | (_, None) => return false,
            (Some(Some(one)), Some(Some(other))) if one != other => return false,
            (Some(one), Some(other)) => one.or(other),
        };
        let icmp = match family {
            Family::V4 => protocol::ICMP,
            Family::V6 => protocol::ICMPV6,
        };
        let has_ports = || protocol.is_none_or(protocol::has_ports);
        let is_icmp = || protocol.is_none_or(|protocol| protocol == icmp);
        match (self.asks(), other.asks()) {
            (Upper::Any, Upper::Any) => true,
            (Upper::Any, Upper::Ports(..)) | (Upper::Ports(..), Upper::Any) => has_ports(),
            (Upper::Any, Upper::Icmp(_)) | (Upper::Icmp(_), Upper::Any) => is_icmp(),
            (Upper::Ports(local, remote, one), Upper::Ports(other_local, other_remote, other)) => {
                let meet = |one: &[PortRange], other: &[PortRange]| {
                    in_common(one, other, PortRange::overlaps)
                };
                let segments = one.is_none() || other.is_none() || one == other;
                let ports = meet(local, other_local) && meet(remote, other_remote);
                has_ports() && segments && ports
            }
            (Upper::Icmp(one), Upper::Icmp(other)) => {
                is_icmp() && in_common(one, other, IcmpRange::overlaps)
            }
            (Upper::Ports(..), Upper::Icmp(_)) | (Upper::Icmp(_), Upper::Ports(..)) => false,
        }
    }

    fn upper_covers(&self, other: &Selector) -> bool {
        match (self.asks(), other.asks()) {
            (Upper::Any, _) => true,
            (
                Upper::Ports(local, remote, wide),
                Upper::Ports(other_local, other_remote, narrow),
            ) => {
                let hold = |wide: &[PortRange], narrow: &[PortRange]| {
                    holds_all(wide, narrow, &PortRange::ANY, PortRange::contains_range)
                };
                let segments = wide.is_none() || wide == narrow;
                segments && hold(local, other_local) && hold(remote, other_remote)
            }
            (Upper::Icmp(wide), Upper::Icmp(narrow)) => {
                holds_all(wide, narrow, &IcmpRange::ANY, IcmpRange::contains_range)
            }
            _ => false,
        }
    }
}

fn any_overlap(one: &[AddressRange], other: &[AddressRange], family: Family) -> bool {
    let mut of_family = one.iter().filter(|range| range.family == family);
    of_family.any(|range| other.iter().any(|other| range.overlaps(other)))
}

fn all_within(wide: &[AddressRange], narrow: &[AddressRange], family: Family) -> bool {
    let mut of_family = narrow.iter().filter(|range| range.family == family);
    are_few(wide, narrow)
        && of_family.all(|range| wide.iter().any(|wide| wide.contains_range(range)))
}

fn are_few<T>(wide: &[T], narrow: &[T]) -> bool {
    wide.len().saturating_mul(narrow.len()) <= MOST_PAIRS
}

/// Returns whether two lists, of which an empty one means any, have something in common.
fn in_common<T>(one: &[T], other: &[T], overlaps: impl Fn(&T, &T) -> bool) -> bool {
    one.is_empty()
        || other.is_empty()
        || one.iter().any(|range| other.iter().any(|other| overlaps(range, other)))
}

/// Returns whether each entry of the narrow list lies in one of the wide list. An empty list means
/// `any`.
fn holds_all<T>(wide: &[T], narrow: &[T], any: &T, contains: impl Fn(&T, &T) -> bool) -> bool {
    let narrow = if narrow.is_empty() { std::slice::from_ref(any) } else { narrow };
    wide.is_empty()
        || are_few(wide, narrow)
            && narrow.iter().all(|range| wide.iter().any(|wide| contains(wide, range)))
}

#[cfg(test)]
mod tests;
