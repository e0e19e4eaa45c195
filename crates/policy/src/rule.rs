//! A rule: one combination of the entries of a policy's lists, and what it says of a flow. The
//! linear search over rules is the authority.

use std::sync::Arc;

use wire::flow::protocol;
use wire::{Family, Flow, Upper};

use crate::ids::PolicyIndex;
use crate::list::List;
use crate::selector::{IcmpRange, PortRange, TcpSegments};
use crate::verdict::Decider;

/// One combination of the entries of a policy's lists, as a packet of one direction shows them.
/// The family is that of the table.
#[derive(Debug)]
pub(crate) struct Rule {
    /// Lowest and highest source address.
    pub(crate) source: (u128, u128),
    /// Lowest and highest destination address.
    pub(crate) destination: (u128, u128),
    /// The source and destination addresses between those, where they are many ranges.
    pub(crate) lists: [Option<Arc<List>>; 2],
    /// Upper-layer protocol, or any.
    pub(crate) protocol: Option<u8>,
    /// The condition on the upper-layer header.
    pub(crate) upper: UpperRule,
    /// The slot of the rule's policy.
    pub(crate) index: PolicyIndex,
}

/// [`UpperSelector`] with one range for each list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UpperRule {
    Any,
    Ports {
        source: PortRange,
        destination: PortRange,
    },
    Icmp(IcmpRange),
    /// The rule's protocol is TCP.
    Tcp {
        segments: TcpSegments,
        source: PortRange,
        destination: PortRange,
    },
}

impl Rule {
    /// Returns whether the rule tells TCP segments that open a connection from others.
    pub(crate) fn tells_segments(&self) -> bool {
        matches!(self.upper, UpperRule::Tcp { .. })
    }

    /// Returns the rule's verdict on a flow of its family: [`Decider::None`] if it does not concern
    /// it.
    pub(crate) fn judge(&self, flow: &Flow) -> Decider {
        let within = |value: u128, (lo, hi): (u128, u128)| lo <= value && value <= hi;
        if !within(flow.source, self.source) || !within(flow.destination, self.destination) {
            return Decider::None;
        }
        let is_listed = |list: &Option<Arc<List>>, address| {
            list.as_ref().is_none_or(|list| list.contains(address))
        };
        let [sources, destinations] = &self.lists;
        if !is_listed(sources, flow.source) || !is_listed(destinations, flow.destination) {
            return Decider::None;
        }
        // A later IPv6 fragment says a protocol, but only the first one's counts (RFC 8200 §4.5):
        // it is opaque, or a sender could choose the policy of its fragments one by one.
        if flow.family == Family::V6 && flow.upper == Upper::Fragment {
            let asks_nothing = self.protocol.is_none() && self.upper == UpperRule::Any;
            return match asks_nothing {
                true => Decider::Policy(self.index),
                false => Decider::FragmentPorts(self.index),
            };
        }
        if self.protocol.is_some_and(|protocol| protocol != flow.protocol) {
            return Decider::None;
        }
        self.judge_upper(flow)
    }

    /// Returns the rule's verdict on a flow whose addresses and protocol it matches.
    fn judge_upper(&self, flow: &Flow) -> Decider {
        let decides_if = |matches| {
            if matches { Decider::Policy(self.index) } else { Decider::None }
        };
        // RFC 4301 §4.4.1.1: ports cannot match a non-initial fragment, which must then be
        // dropped; falling through to the next rule would let it choose its policy.
        let lacking_if = |concerned| {
            if concerned { Decider::FragmentPorts(self.index) } else { Decider::None }
        };
        match (self.upper, flow.upper) {
            (UpperRule::Any, _) => Decider::Policy(self.index),
            (UpperRule::Ports { source, destination }, Upper::Ports { .. }) => {
                decides_if(has_ports(flow, source, destination))
            }
            (UpperRule::Tcp { segments, source, destination }, Upper::Ports { .. }) => {
                decides_if(segments.has(flow) && has_ports(flow, source, destination))
            }
            (UpperRule::Icmp(range), Upper::Icmp { kind, code }) => {
                let message = u16::from_be_bytes([kind, code]);
                decides_if(is_icmp(flow) && (range.lo..=range.hi).contains(&message))
            }
            (UpperRule::Ports { .. } | UpperRule::Tcp { .. }, Upper::Fragment) => {
                lacking_if(protocol::has_ports(flow.protocol))
            }
            (UpperRule::Icmp(_), Upper::Fragment) => lacking_if(is_icmp(flow)),
            (UpperRule::Ports { .. } | UpperRule::Tcp { .. }, Upper::Icmp { .. } | Upper::None)
            | (UpperRule::Icmp(_), Upper::Ports { .. } | Upper::None) => Decider::None,
        }
    }
}

/// Returns whether a flow has ports, and they lie in these ranges.
fn has_ports(flow: &Flow, sources: PortRange, destinations: PortRange) -> bool {
    let Upper::Ports { source, destination } = flow.upper else { return false };
    (sources.lo..=sources.hi).contains(&source)
        && (destinations.lo..=destinations.hi).contains(&destination)
}

/// Returns whether the flow's protocol is its family's ICMP.
pub(crate) fn is_icmp(flow: &Flow) -> bool {
    match flow.family {
        Family::V4 => flow.protocol == protocol::ICMP,
        Family::V6 => flow.protocol == protocol::ICMPV6,
    }
}
