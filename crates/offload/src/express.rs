//! A rule in the card's words, exactly, or the reason why there are none (DESIGN I5).
//!
//! What a card cannot say is not said by more or less: a protocol that it cannot ask for is not
//! left out (HA-18), "any" is not a range of addresses (HA-19), and a range that is no prefix is
//! as many prefixes as it takes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use policy::{AddressRange, GroupSide, IcmpRange, Policy, PortRange, TcpSegments, UpperSelector};
use wire::Family;
use wire::flow::protocol;

use crate::capabilities::{AddressForm, PortForm, Protocols, RuleAbilities};
use crate::decision::Decision;
use crate::item::{CardRule, Effect};
use crate::pattern::{Pattern, Segments, Span, UpperPattern};
use crate::reason::Inexact;

/// Entries that one rule may take at most.
pub const MOST_ENTRIES_A_RULE: usize = 256;

/// Protocols with ports.
const WITH_PORTS: [u8; 5] =
    [protocol::TCP, protocol::UDP, protocol::SCTP, protocol::DCCP, protocol::UDP_LITE];

/// The lists that a rule is the product of.
pub(crate) struct Expressed {
    ports: Arc<[u16]>,
    sources: Vec<Span>,
    destinations: Vec<Span>,
    uppers: Vec<UpperPattern>,
}

impl Expressed {
    /// Says a rule of groups for what comes by ports of a card, which are ascending.
    ///
    /// # Errors
    /// [`Inexact`]: the card cannot.
    pub(crate) fn new(
        policy: &Policy,
        family: Family,
        ports: &[u16],
        card: &RuleAbilities,
    ) -> Result<Expressed, Inexact> {
        match policy.group {
            None => return Err(Inexact::Policy),
            Some(GroupSide::Out) if !card.egress.is_there() => return Err(Inexact::Egress),
            // Items say "comes by": no card that looks at what leaves is known yet.
            Some(GroupSide::Out) => return Err(Inexact::Egress),
            Some(GroupSide::In) => {}
        }
        let ports = common_ports(policy, ports);
        if ports.is_empty() {
            return Err(Inexact::OtherPort);
        }
        if Decision::of(policy.action) == Decision::Reflect {
            return Err(Inexact::Reflect);
        }
        if family == Family::V6 && !card.ipv6.is_there() {
            return Err(Inexact::Ipv6);
        }
        let uppers = uppers(policy, family, card)?;
        let spans = |ranges| spans(ranges, family, card.addresses);
        let sources = spans(&policy.selector.local)?;
        let destinations = spans(&policy.selector.remote)?;
        let expressed = Expressed { ports: ports.into(), sources, destinations, uppers };
        match expressed.entries() {
            0 => Err(Inexact::MatchesNothing),
            1..=MOST_ENTRIES_A_RULE => Ok(expressed),
            _ => Err(Inexact::TooManyEntries),
        }
    }

    /// Entries that the rule takes.
    pub(crate) fn entries(&self) -> usize {
        let lists = [self.sources.len(), self.destinations.len(), self.uppers.len()];
        lists.into_iter().fold(self.ports.len(), usize::saturating_mul)
    }

    /// The rule.
    pub(crate) fn rule(self, rank: u64, effect: Effect) -> CardRule {
        let Expressed { ports, sources, destinations, uppers } = self;
        let mut patterns = Vec::with_capacity(sources.len() * destinations.len() * uppers.len());
        for &source in &sources {
            for &destination in &destinations {
                let pattern = |&upper| Pattern { source, destination, upper };
                patterns.extend(uppers.iter().map(pattern));
            }
        }
        CardRule { ports, rank, effect, patterns: patterns.into() }
    }
}

/// The ports of a card that a rule of groups judges.
pub(crate) fn common_ports(policy: &Policy, ports: &[u16]) -> Vec<u16> {
    let judges = |port: &&u16| policy.ingress.as_ref().is_some_and(|of| of.contains(port));
    ports.iter().filter(judges).copied().collect()
}

/// The upper-layer headers of a rule, each once.
fn uppers(
    policy: &Policy,
    family: Family,
    card: &RuleAbilities,
) -> Result<Vec<UpperPattern>, Inexact> {
    let selector = &policy.selector;
    let can_ask = |number: u8| match card.protocols {
        Protocols::All => true,
        Protocols::TcpUdp => matches!(number, protocol::TCP | protocol::UDP),
    };
    let ask = |number: u8| if can_ask(number) { Ok(number) } else { Err(Inexact::Protocol) };
    match &selector.upper {
        UpperSelector::Any => match selector.protocol {
            None => Ok(vec![UpperPattern::Any]),
            Some(number) => Ok(vec![UpperPattern::Protocol(ask(number)?)]),
        },
        UpperSelector::Ports { local, remote } if local.is_empty() && remote.is_empty() => {
            match selector.protocol {
                None => Ok(vec![UpperPattern::Any]),
                Some(number) => Ok(vec![UpperPattern::Protocol(ask(number)?)]),
            }
        }
        UpperSelector::Ports { local, remote } => {
            let of = |number: &u8| selector.protocol.is_none_or(|asked| asked == *number);
            let mut patterns = Vec::new();
            for number in WITH_PORTS.into_iter().filter(of) {
                port_patterns(ask(number)?, Segments::All, (local, remote), card, &mut patterns)?;
            }
            Ok(patterns)
        }
        UpperSelector::Tcp { segments, local, remote } => {
            if selector.protocol.is_some_and(|asked| asked != protocol::TCP) {
                return Ok(Vec::new());
            }
            if !card.segments.is_there() {
                return Err(Inexact::Segments);
            }
            let segments = match segments {
                TcpSegments::New => Segments::New,
                TcpSegments::Established => Segments::Established,
            };
            let mut patterns = Vec::new();
            let ports = (&local[..], &remote[..]);
            port_patterns(ask(protocol::TCP)?, segments, ports, card, &mut patterns)?;
            Ok(patterns)
        }
        UpperSelector::Icmp(messages) => {
            let number = match family {
                Family::V4 => protocol::ICMP,
                Family::V6 => protocol::ICMPV6,
            };
            if selector.protocol.is_some_and(|asked| asked != number) {
                return Ok(Vec::new());
            }
            let protocol = ask(number)?;
            if !card.messages.is_there() {
                return Err(Inexact::Messages);
            }
            let any = [IcmpRange::ANY];
            let messages = if messages.is_empty() { &any } else { &messages[..] };
            let pattern = |range: &IcmpRange| {
                let messages = (range.lo, range.hi);
                UpperPattern::Messages { protocol, messages }
            };
            Ok(messages.iter().map(pattern).collect())
        }
    }
}

/// Appends the combinations of source and destination ports.
fn port_patterns(
    protocol: u8,
    segments: Segments,
    (sources, destinations): (&[PortRange], &[PortRange]),
    card: &RuleAbilities,
    patterns: &mut Vec<UpperPattern>,
) -> Result<(), Inexact> {
    let form = *card.ports.get().ok_or(Inexact::Ports)?;
    let (sources, destinations) = (port_list(sources, form)?, port_list(destinations, form)?);
    if sources.len().saturating_mul(destinations.len()) > MOST_ENTRIES_A_RULE {
        return Err(Inexact::TooManyEntries);
    }
    for &source in &sources {
        let pattern =
            |&destination| UpperPattern::Ports { protocol, source, destination, segments };
        patterns.extend(destinations.iter().map(pattern));
    }
    Ok(())
}

/// Ports in the card's form; an empty list means any.
fn port_list(ports: &[PortRange], form: PortForm) -> Result<Vec<(u16, u16)>, Inexact> {
    let any = [PortRange::ANY];
    let ports = if ports.is_empty() { &any } else { ports };
    let mut list = Vec::new();
    for range in ports {
        match form {
            PortForm::Single if *range != PortRange::ANY => {
                if usize::from(range.hi - range.lo) >= MOST_ENTRIES_A_RULE {
                    return Err(Inexact::Ports);
                }
                list.extend((range.lo..=range.hi).map(|port| (port, port)));
            }
            PortForm::Single | PortForm::Ranges => list.push((range.lo, range.hi)),
        }
    }
    if list.len() > MOST_ENTRIES_A_RULE { Err(Inexact::TooManyEntries) } else { Ok(list) }
}

/// Address ranges of a family in the card's form.
fn spans(ranges: &[AddressRange], family: Family, form: AddressForm) -> Result<Vec<Span>, Inexact> {
    let mut spans = Vec::new();
    for range in ranges.iter().filter(|range| range.family == family) {
        match form {
            AddressForm::Ranges => spans.push(span(range)),
            AddressForm::Prefixes => prefixes(range, &mut spans),
        }
        if spans.len() > MOST_ENTRIES_A_RULE {
            return Err(Inexact::TooManyEntries);
        }
    }
    Ok(spans)
}

fn span(range: &AddressRange) -> Span {
    let ip = |value: u128| match range.family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(value as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(value)),
    };
    Span { first: ip(range.lo), last: ip(range.hi) }
}

/// Appends the prefixes that a range is, the fewest: each the largest that begins where the one
/// before it ended.
fn prefixes(range: &AddressRange, into: &mut Vec<Span>) {
    let mut lo = range.lo;
    loop {
        let host_bits = (0..u32::from(range.family.address_bits())).take_while(|bits| {
            let mask = (2u128 << bits).wrapping_sub(1);
            lo & mask == 0 && lo | mask <= range.hi
        });
        // Of all 128 bits the mask above is one too many for a number, and wraps to all ones.
        let hi = host_bits.last().map_or(lo, |bits| lo | ((2u128 << bits).wrapping_sub(1)));
        into.push(span(&AddressRange { family: range.family, lo, hi }));
        if hi >= range.hi {
            break;
        }
        lo = hi + 1;
    }
}

#[cfg(test)]
mod tests;
