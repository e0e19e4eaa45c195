//! Flows and rules as the search sees them: five ranges of 32-bit numbers and a class.
//!
//! An IPv4 address is itself, an IPv6 address its [rank](super::rank). The *class* is what is left
//! of the upper layer once ports are numbers: `opens << 15 | kind << 8 | protocol`. ICMP type and
//! code lie where the destination port does.
//!
//! Rules see a whole packet and a non-first fragment so differently (RFC 4301 §4.4.1.1, and
//! [`Rule::judge`]) that they become two sets of [`Area`]s.

use wire::flow::protocol;
use wire::{Family, Flow, Upper};

use crate::rule::{Rule, UpperRule, is_icmp};
use crate::selector::{PortRange, TcpSegments};

/// Dimensions of an area: source, destination, source port, destination port, protocol.
pub(super) const DIMENSIONS: usize = 5;
/// Bounds of each dimension, both included.
pub(super) type Ranges = [(u32, u32); DIMENSIONS];

/// The region of all headers.
pub(super) const EVERYTHING: Ranges =
    [(0, u32::MAX), (0, u32::MAX), (0, 0xffff), (0, 0xffff), (0, 0xff)];

/// Kind of a packet with ports.
const PORTS: u32 = 1 << 8;
/// Kind of a packet of the family's ICMP.
const ICMP: u32 = 2 << 8;
/// The bits of a class that are its kind.
const KIND: u32 = 0x7f00;
/// The bit of a class for a TCP segment that opens a connection ([`Flow::opens`]).
const OPENS: u32 = 0x8000;
/// The bits of a class that are its protocol.
const PROTOCOL: u32 = 0xff;

/// A flow as four numbers: source, destination, ports (source in the low half, destination or ICMP
/// message in the high half), class.
pub(super) type Header = [u32; 4];

/// The place of each dimension in a [`Header`]: the number that holds it, and by how many bits that
/// must be shifted left and then right.
pub(super) const PLACES: [(usize, u32, u32); DIMENSIONS] =
    [(0, 0, 0), (1, 0, 0), (2, 16, 16), (2, 0, 16), (3, 24, 24)];

/// The ports and class of a flow, as the third and fourth number of a [`Header`]. A fragment has
/// the kind of the packet that it is of, and no ports.
#[inline(always)]
pub(super) fn upper(flow: &Flow) -> (u32, u32) {
    let protocol = u32::from(flow.protocol);
    match flow.upper {
        Upper::Ports { source, destination } => {
            let opens = u32::from(flow.opens) << OPENS.trailing_zeros();
            (u32::from(destination) << 16 | u32::from(source), opens | PORTS | protocol)
        }
        Upper::Icmp { kind, code } if is_icmp(flow) => {
            (u32::from(kind) << 24 | u32::from(code) << 16, ICMP | protocol)
        }
        Upper::Fragment => (0, fragment_kind(flow) | protocol),
        Upper::Icmp { .. } | Upper::None => (0, protocol),
    }
}

/// The kind that the missing header of a fragment would have had.
#[inline(always)]
fn fragment_kind(flow: &Flow) -> u32 {
    match () {
        () if protocol::has_ports(flow.protocol) => PORTS,
        () if is_icmp(flow) => ICMP,
        () => 0,
    }
}

/// The packets that a rule is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sees {
    /// Packets that show their upper-layer header.
    Whole,
    /// Non-first fragments: a rule concerns those whose header might match, whatever the ports.
    Fragment,
}

/// A rule in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Area {
    pub(super) ranges: Ranges,
    /// The class that it wants in the low half, the bits that it asks for in the high half.
    pub(super) class: u32,
}

/// The class of no packet: lanes without a rule.
pub(super) const NO_CLASS: u32 = KIND << 16 | KIND;

impl Area {
    /// The rule with its addresses as `source` and `destination` numbers.
    pub(super) fn new(
        rule: &Rule,
        family: Family,
        source: (u32, u32),
        destination: (u32, u32),
        sees: Sees,
    ) -> Area {
        let [_, _, any_port, _, any_protocol] = EVERYTHING;
        if (family, sees) == (Family::V6, Sees::Fragment) {
            return Area {
                ranges: [source, destination, any_port, any_port, any_protocol],
                class: 0,
            };
        }
        let protocol = rule.protocol.map(u32::from);
        let wide = |range: PortRange| (u32::from(range.lo), u32::from(range.hi));
        let (kind, source_port, destination_port) = match rule.upper {
            UpperRule::Any => (None, any_port, any_port),
            UpperRule::Ports { source, destination }
            | UpperRule::Tcp { source, destination, .. } => {
                (Some(PORTS), wide(source), wide(destination))
            }
            UpperRule::Icmp(range) => {
                (Some(ICMP), any_port, (u32::from(range.lo), u32::from(range.hi)))
            }
        };
        let segments = match rule.upper {
            UpperRule::Tcp { segments, .. } => Some(segments),
            UpperRule::Any | UpperRule::Ports { .. } | UpperRule::Icmp(_) => None,
        };
        let (source_port, destination_port, segments) = match sees {
            Sees::Whole => (source_port, destination_port, segments),
            Sees::Fragment => (any_port, any_port, None),
        };
        let opens = if segments == Some(TcpSegments::New) { OPENS } else { 0 };
        let want = opens | kind.unwrap_or(0) | protocol.unwrap_or(0);
        let mask = segments.map_or(0, |_| OPENS)
            | kind.map_or(0, |_| KIND)
            | protocol.map_or(0, |_| PROTOCOL);
        let protocols = protocol.map_or(any_protocol, |protocol| (protocol, protocol));
        Area {
            ranges: [source, destination, source_port, destination_port, protocols],
            class: mask << 16 | want,
        }
    }

    /// Returns whether the area holds every header of `region` that is of its class.
    pub(super) fn covers(&self, region: &Ranges) -> bool {
        self.ranges.iter().zip(region).all(|(&(lo, hi), &(from, to))| lo <= from && to <= hi)
    }

    /// Returns whether the area holds every header of `region` that `other` holds.
    pub(super) fn hides(&self, other: &Area, region: &Ranges) -> bool {
        let pairs = self.ranges.iter().zip(&other.ranges).zip(region);
        includes(self.class, other.class)
            && pairs.into_iter().all(|((&(lo, hi), &(other_lo, other_hi)), &(from, to))| {
                lo <= other_lo.max(from) && other_hi.min(to) <= hi
            })
    }
}

/// Returns whether `class` takes every class that `other` takes.
pub(super) fn includes(class: u32, other: u32) -> bool {
    let (mask, other_mask) = (class >> 16, other >> 16);
    mask & !other_mask == 0 && (class ^ other) & mask == 0
}
