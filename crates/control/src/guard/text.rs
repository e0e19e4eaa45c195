//! The guard's table as text for `nft`.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use dataplane::Side;
use policy::{AddressRange, Direction, IcmpRange, PortRange, Selector, UpperSelector};
use wire::Family;
use wire::flow::protocol;

use super::GUARD_TABLE;
use crate::mirror::{LinkKind, View};
use crate::validated::{Action, Policy};
use crate::{HOST_NETDEV, Validated};

/// A netdev whose name nftables cannot write.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the guard cannot name netdev {name}: only letters, digits and . _ - @ + can be written in \
     nftables; rename it (ip link set {name} name NEW)"
)]
pub struct UnwritableName {
    /// The name.
    pub name: String,
}

/// Protocols that have ports, for a selector that names ports and no protocol.
const WITH_PORTS: [u8; 5] =
    [protocol::TCP, protocol::UDP, protocol::DCCP, protocol::SCTP, protocol::UDP_LITE];

/// Drops whatever the kernel would forward, by whatever netdev.
pub(super) fn of_everything() -> String {
    let mut text = head();
    text.push_str(FORWARD);
    text.push_str("    counter drop\n  }\n}\n");
    text
}

/// The table of a configuration; `view` names the VLANs and what else is stacked on its netdevs.
pub(super) fn of_configuration(config: &Validated, view: &View) -> Result<String, UnwritableName> {
    let mut text = head();
    text.push_str(FORWARD);
    let closed = closed_netdevs(config, view)?;
    for direction in ["iifname", "oifname"] {
        for netdev in &closed {
            let _ = writeln!(text, "    {direction} \"{netdev}\" counter drop");
        }
    }
    text.push_str("  }\n");
    text.push_str("  chain output {\n    type filter hook output priority filter - 10;\n");
    text.push_str("    policy accept;\n");
    for netdev in unprotected_netdevs(config, view)? {
        let _ = writeln!(text, "    oifname \"{netdev}\" goto outbound");
    }
    text.push_str("  }\n  chain outbound {\n");
    text.push_str("    meta l4proto esp accept\n");
    text.push_str("    udp sport { 500, 4500 } accept\n    udp dport { 500, 4500 } accept\n");
    // Router and neighbour discovery (RFC 4861).
    text.push_str("    icmpv6 type 133-137 accept\n");
    for policy in in_order(&config.policies) {
        rules(&mut text, policy);
    }
    text.push_str("  }\n}\n");
    Ok(text)
}

/// Head of a transaction: whatever table was there is replaced.
fn head() -> String {
    format!(
        "table inet {GUARD_TABLE} {{}}\ndelete table inet {GUARD_TABLE}\n\
         table inet {GUARD_TABLE} {{\n"
    )
}

const FORWARD: &str =
    "  chain forward {\n    type filter hook forward priority filter - 10;\n    policy accept;\n";

/// A netdev name, checked.
fn checked(name: &str) -> Result<&str, UnwritableName> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@+".contains(c);
    match name.chars().all(is_plain) && !name.is_empty() {
        true => Ok(name),
        false => Err(UnwritableName { name: name.into() }),
    }
}

/// Netdevs by which nothing is forwarded: our ports', the host port's, and what sends its frames
/// by them as they are, also if its name is only the usual one of a VLAN.
fn closed_netdevs(config: &Validated, view: &View) -> Result<BTreeSet<String>, UnwritableName> {
    let mut names = BTreeSet::from([HOST_NETDEV.to_owned()]);
    for port in &config.ports {
        let netdev = checked(&port.netdev)?;
        names.insert(netdev.into());
        names.insert(format!("{netdev}.*"));
        let index = view.link_named(netdev).map(|link| link.index);
        for link in view.links.values().filter(|link| index.is_some() && link.lower == index) {
            if is_stacked(&link.kind) {
                names.insert(checked(&link.name)?.into());
            }
        }
    }
    Ok(names)
}

/// Whether frames that leave by such a netdev leave by the one below it, not wrapped in packets
/// that are judged themselves.
fn is_stacked(kind: &LinkKind) -> bool {
    match kind {
        LinkKind::Vlan { .. } => true,
        LinkKind::Other(kind) => {
            ["macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"].contains(&kind.as_str())
        }
        _ => false,
    }
}

/// Netdevs of the unprotected ports; for a tagged one without a VLAN netdev, its usual name.
fn unprotected_netdevs(
    config: &Validated,
    view: &View,
) -> Result<BTreeSet<String>, UnwritableName> {
    let mut names = BTreeSet::new();
    for port in config.ports.iter().filter(|port| port.side == Side::Unprotected) {
        let netdev = checked(&port.netdev)?;
        let Some(vlan) = port.vlan else {
            names.insert(netdev.to_owned());
            continue;
        };
        let device = view.link_named(netdev);
        match device.and_then(|device| view.vlan_on(device.index, vlan)) {
            Some(link) => names.insert(checked(&link.name)?.to_owned()),
            None => names.insert(format!("{netdev}.{vlan}")),
        };
    }
    Ok(names)
}

/// Outbound policies, the one that wins first.
fn in_order(policies: &[Policy]) -> Vec<&Policy> {
    let outbound = policies.iter().filter(|policy| policy.only != Some(Direction::Inbound));
    let mut policies: Vec<&Policy> = outbound.collect();
    // Among equals the later in the file wins; the sort is stable.
    policies.reverse();
    policies.sort_by_key(|policy| std::cmp::Reverse(policy.priority));
    policies
}

/// The rules of a policy: one or more for each family that it names.
fn rules(text: &mut String, policy: &Policy) {
    let verdict = match policy.action {
        Action::Bypass => "accept",
        Action::Protect(_) | Action::Discard => "counter drop",
    };
    for family in [Family::V4, Family::V6] {
        let Some(addresses) = addresses(&policy.selector, family) else { continue };
        for upper in upper(&policy.selector, family) {
            let name = &policy.name;
            let _ = writeln!(text, "    {addresses}{upper}{verdict} comment \"{name}\"");
        }
    }
}

/// The match of both addresses; `None`: the selector does not name this family at both ends.
fn addresses(selector: &Selector, family: Family) -> Option<String> {
    let (keyword, version) = match family {
        Family::V4 => ("ip", "ipv4"),
        Family::V6 => ("ip6", "ipv6"),
    };
    let mut text = format!("meta nfproto {version} ");
    for (which, ranges) in [("saddr", &selector.local), ("daddr", &selector.remote)] {
        let ranges = merged(ranges.iter().filter(|range| range.family == family));
        if ranges.is_empty() {
            return None;
        }
        if ranges != [AddressRange::any(family)] {
            let _ = write!(text, "{keyword} {which} {} ", Set(&ranges));
        }
    }
    Some(text)
}

/// Ranges without overlap, which nftables does not take.
fn merged<'a>(ranges: impl Iterator<Item = &'a AddressRange>) -> Vec<AddressRange> {
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

/// The matches of the upper layer, any of which will do.
fn upper(selector: &Selector, family: Family) -> Vec<String> {
    let protocol = selector.protocol;
    match &selector.upper {
        UpperSelector::Ports { local, remote } if !(local.is_empty() && remote.is_empty()) => {
            let mut text = match protocol {
                Some(number) if protocol::has_ports(number) => format!("meta l4proto {number} "),
                Some(_) => return Vec::new(),
                None => format!("meta l4proto {} ", Set(&WITH_PORTS)),
            };
            for (which, ports) in [("sport", local), ("dport", remote)] {
                if !ports.is_empty() {
                    let _ = write!(text, "th {which} {} ", Set(&merged_ports(ports)));
                }
            }
            vec![text]
        }
        UpperSelector::Icmp(messages) => {
            let number = match family {
                Family::V4 => protocol::ICMP,
                Family::V6 => protocol::ICMPV6,
            };
            if protocol.is_some_and(|named| named != number) {
                return Vec::new();
            }
            let of = |range: &IcmpRange| {
                // Type and code are the first two bytes.
                format!("meta l4proto {number} @th,0,16 {}-{} ", range.lo, range.hi)
            };
            match messages.is_empty() {
                true => vec![format!("meta l4proto {number} ")],
                false => messages.iter().map(of).collect(),
            }
        }
        _ => vec![protocol.map(|number| format!("meta l4proto {number} ")).unwrap_or_default()],
    }
}

/// One value as it is, several as an anonymous set.
struct Set<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Set<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [only] => write!(f, "{only}"),
            several => {
                let several: Vec<String> = several.iter().map(T::to_string).collect();
                write!(f, "{{ {} }}", several.join(", "))
            }
        }
    }
}
