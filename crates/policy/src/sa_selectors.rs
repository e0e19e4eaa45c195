//! Traffic selectors of an SA: the check of a packet that the SA opened (RFC 4301 §5.2 step 4).
//!
//! IKE agrees on a list of selectors for each end (RFC 7296 §3.13.1). A packet is inside if some
//! selector of each end has it:
//!
//! ```text
//! source address, protocol, source port or ICMP message            ── in `remote`
//! destination address, protocol, destination port or ICMP message  ── in `local`
//! ```
//!
//! Each end is searched by itself: a check takes a step for each selector, and none for each pair.

use wire::flow::protocol;
use wire::{Address, Family, Flow, Upper};

use crate::rule::is_icmp;
use crate::selector::AddressRange;
use crate::verdict::Refusal;

/// Selectors of both ends of an SA, seen from this gateway. An end with an empty list has no
/// packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct SaSelectors {
    /// Selectors of the gateway's side.
    pub local: Vec<EndSelector>,
    /// Selectors of the far side.
    pub remote: Vec<EndSelector>,
}

/// A traffic selector of one end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EndSelector {
    /// Addresses of the end.
    pub addresses: AddressRange,
    /// Upper-layer protocol, or any.
    pub protocol: Option<u8>,
    /// Ports of the end or ICMP messages.
    pub upper: EndUpper,
}

/// Values of the upper-layer header that a selector of one end has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EndUpper {
    /// All packets: with ports, without, and fragments.
    Any,
    /// Numbers `lo ..= hi`: ports or, where the selector's protocol is ICMP or ICMPv6, messages as
    /// `type << 8 | code`. An inverted range has no packet: OPAQUE of RFC 7296 is one, and no
    /// policy has OPAQUE ports.
    Range {
        /// Lowest number.
        lo: u16,
        /// Highest number.
        hi: u16,
    },
}

/// Match of a packet with selectors of one end, the weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum EndMatch {
    Outside,
    /// A later fragment lacks the header that a selector of its addresses names.
    FragmentPorts,
    Inside,
}

impl SaSelectors {
    /// Checks that an opened packet is inside the selectors. An ICMP error of a router is checked
    /// by the reversed flow of the packet that it quotes (RFC 4301 §6).
    ///
    /// # Errors
    /// [`Refusal::FragmentPorts`]: a later fragment lacks the header that a selector names.
    /// [`Refusal::SelectorMismatch`]: the packet is outside.
    pub fn admit(&self, flow: &Flow) -> Result<(), Refusal> {
        let [source_port, destination_port] = match flow.upper {
            Upper::Ports { source, destination } => [source, destination],
            Upper::Icmp { kind, code } => [u16::from_be_bytes([kind, code]); 2],
            Upper::None | Upper::Fragment => [0; 2],
        };
        let source = best_match(&self.remote, flow, flow.source_address(), source_port);
        let destination =
            best_match(&self.local, flow, flow.destination_address(), destination_port);
        match source.min(destination) {
            EndMatch::Inside => Ok(()),
            EndMatch::FragmentPorts => Err(Refusal::FragmentPorts),
            EndMatch::Outside => Err(Refusal::SelectorMismatch),
        }
    }
}

/// Returns the best match of an end's selectors. `number` is the port of the end or the ICMP
/// message, where the packet has one.
fn best_match(selectors: &[EndSelector], flow: &Flow, address: Address, number: u16) -> EndMatch {
    let mut best = EndMatch::Outside;
    for selector in selectors.iter().filter(|selector| selector.addresses.contains(address)) {
        best = best.max(selector.match_upper(flow, number));
        if best == EndMatch::Inside {
            break;
        }
    }
    best
}

impl EndSelector {
    /// Returns the match of a packet whose address at this end the selector has.
    fn match_upper(&self, flow: &Flow, number: u16) -> EndMatch {
        let lacking_if =
            |concerned| if concerned { EndMatch::FragmentPorts } else { EndMatch::Outside };
        // Only the first IPv6 fragment's protocol counts (RFC 8200 §4.5): a later one is opaque.
        if flow.family == Family::V6 && flow.upper == Upper::Fragment {
            return match self.protocol.is_none() && self.upper == EndUpper::Any {
                true => EndMatch::Inside,
                false => EndMatch::FragmentPorts,
            };
        }
        if self.protocol.is_some_and(|protocol| protocol != flow.protocol) {
            return EndMatch::Outside;
        }
        let EndUpper::Range { lo, hi } = self.upper else { return EndMatch::Inside };
        let names_messages = matches!(self.protocol, Some(protocol::ICMP | protocol::ICMPV6));
        let has_number = match flow.upper {
            Upper::Ports { .. } => !names_messages,
            Upper::Icmp { .. } => names_messages && is_icmp(flow),
            // RFC 4301 §4.4.1.1: a range cannot match a later fragment.
            Upper::Fragment if names_messages => return lacking_if(is_icmp(flow)),
            Upper::Fragment => return lacking_if(protocol::has_ports(flow.protocol)),
            Upper::None => false,
        };
        if has_number && (lo..=hi).contains(&number) { EndMatch::Inside } else { EndMatch::Outside }
    }
}

#[cfg(test)]
mod tests;
