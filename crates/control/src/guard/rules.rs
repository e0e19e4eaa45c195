//! The rules of one policy as text for `nft`.

use std::fmt::{self, Write};

use policy::{AddressRange, IcmpRange, PortRange, Selector, TcpSegments, UpperSelector};
use wire::Family;
use wire::flow::protocol;

use config::validated::{Action, Policy};

/// Protocols that have ports, for a selector that names ports and no protocol.
const WITH_PORTS: [u8; 5] =
    [protocol::TCP, protocol::UDP, protocol::DCCP, protocol::SCTP, protocol::UDP_LITE];

/// Writes the rules of a policy: one or more for each family that it names. Returns how many.
pub(super) fn rules(text: &mut String, policy: &Policy) -> usize {
    let mut count = 0;
    let verdict = match policy.action {
        Action::Bypass => "accept",
        Action::Protect(_) | Action::Discard => "counter drop",
    };
    for family in [Family::V4, Family::V6] {
        for matches in combined(&matches(&policy.selector, family)) {
            let _ = writeln!(text, "    {matches}{verdict} comment \"{}\"", policy.name);
            count += 1;
        }
    }
    count
}

/// Returns the lists of a selector's matches in one family: a packet must match a member of each.
/// An empty list: the selector does not name this family.
fn matches(selector: &Selector, family: Family) -> Vec<AnyOf> {
    let (keyword, version) = match family {
        Family::V4 => ("ip", "ipv4"),
        Family::V6 => ("ip6", "ipv6"),
    };
    let of_family = |ranges: &[AddressRange]| {
        merged_addresses(ranges.iter().filter(|range| range.family == family))
    };
    let everything = [AddressRange::any(family)];
    let (local, remote) = (of_family(&selector.local), of_family(&selector.remote));
    if local.is_empty() || remote.is_empty() {
        return vec![AnyOf::none()];
    }
    let mut all = Vec::new();
    if local == everything && remote == everything {
        // An address that is matched says which family it is of.
        all.push(AnyOf::one(format!("meta nfproto {version} ")));
    }
    for (which, ranges) in [("saddr", &local), ("daddr", &remote)] {
        if *ranges != everything {
            all.push(AnyOf::of(&format!("{keyword} {which}"), ranges));
        }
    }
    all.extend(upper(selector, family));
    all
}

/// One kind of match and the values that it takes.
struct AnyOf {
    /// Single values.
    single: Vec<String>,
    /// All of them by one anonymous set; empty: nftables takes no such set.
    set: String,
}

impl AnyOf {
    fn of<T: fmt::Display>(keyword: &str, values: &[T]) -> AnyOf {
        let texts: Vec<String> = values.iter().map(T::to_string).collect();
        AnyOf {
            single: texts.iter().map(|text| format!("{keyword} {text} ")).collect(),
            set: format!("{keyword} {{ {} }} ", texts.join(", ")),
        }
    }

    fn one(text: String) -> AnyOf {
        AnyOf { single: vec![text], set: String::new() }
    }

    fn none() -> AnyOf {
        AnyOf { single: Vec::new(), set: String::new() }
    }
}

/// The matches of a policy's rules. Few values make a rule each, because the kernel takes several
/// times as long to make a rule with a set; many share one.
fn combined(all: &[AnyOf]) -> Vec<String> {
    /// Rules without sets that a policy is written as at most.
    const MAX_RULES: usize = 8;
    let product = all.iter().fold(1usize, |n, any| n.saturating_mul(any.single.len()));
    let mut rules = vec![String::new()];
    for AnyOf { single, set } in all {
        if product > MAX_RULES && single.len() > 1 && !set.is_empty() {
            rules.iter_mut().for_each(|rule| rule.push_str(set));
            continue;
        }
        let longer = |rule: String| single.iter().map(move |text| format!("{rule}{text}"));
        rules = rules.into_iter().flat_map(longer).collect();
    }
    rules
}

/// Ranges without overlap, which nftables does not take.
pub(super) fn merged_addresses<'a>(
    ranges: impl Iterator<Item = &'a AddressRange>,
) -> Vec<AddressRange> {
    let mut sorted: Vec<AddressRange> = ranges.copied().collect();
    sorted.sort_by_key(|range| (range.lo, range.hi));
    let mut merged: Vec<AddressRange> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.lo <= last.hi.saturating_add(1) => last.hi = last.hi.max(range.hi),
            _ => merged.push(range),
        }
    }
    merged
}

fn merged_ports(ports: &[PortRange]) -> Vec<PortRange> {
    let mut sorted = ports.to_vec();
    sorted.sort_by_key(|range| (range.lo, range.hi));
    let mut merged: Vec<PortRange> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.lo <= last.hi.saturating_add(1) => last.hi = last.hi.max(range.hi),
            _ => merged.push(range),
        }
    }
    merged
}

/// The matches of ports; an empty list matches any.
fn ports(local: &[PortRange], remote: &[PortRange]) -> Vec<AnyOf> {
    let named = [("th sport", local), ("th dport", remote)].into_iter();
    let listed = named.filter(|(_, ports)| !ports.is_empty());
    listed.map(|(which, ports)| AnyOf::of(which, &merged_ports(ports))).collect()
}

/// The matches of the upper layer.
fn upper(selector: &Selector, family: Family) -> Vec<AnyOf> {
    let protocol = selector.protocol;
    let named = |number: u8| AnyOf::one(format!("meta l4proto {number} "));
    match &selector.upper {
        UpperSelector::Ports { local, remote } if !(local.is_empty() && remote.is_empty()) => {
            let mut all = match protocol {
                Some(number) if protocol::has_ports(number) => vec![named(number)],
                Some(_) => return vec![AnyOf::none()],
                None => {
                    let numbers = WITH_PORTS.map(|number| number.to_string()).join(", ");
                    vec![AnyOf::one(format!("meta l4proto {{ {numbers} }} "))]
                }
            };
            all.extend(ports(local, remote));
            all
        }
        UpperSelector::Tcp { segments, local, remote } => {
            if protocol.is_some_and(|named| named != protocol::TCP) {
                return vec![AnyOf::none()];
            }
            let is = match segments {
                TcpSegments::New => "==",
                TcpSegments::Established => "!=",
            };
            let mut all = vec![named(protocol::TCP)];
            all.push(AnyOf::one(format!("tcp flags & (syn | ack) {is} syn ")));
            all.extend(ports(local, remote));
            all
        }
        UpperSelector::Icmp(messages) => {
            let number = match family {
                Family::V4 => protocol::ICMP,
                Family::V6 => protocol::ICMPV6,
            };
            if protocol.is_some_and(|named| named != number) {
                return vec![AnyOf::none()];
            }
            // Type and code are the first two bytes; a set of raw bytes nftables does not take.
            let of = |range: &IcmpRange| format!("@th,0,16 {}-{} ", range.lo, range.hi);
            let mut all = vec![named(number)];
            if !messages.is_empty() {
                let single = messages.iter().map(of).collect();
                all.push(AnyOf { single, set: String::new() });
            }
            all
        }
        _ => protocol.map(named).into_iter().collect(),
    }
}
