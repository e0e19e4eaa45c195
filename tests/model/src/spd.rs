//! The security policy database as RFC 4301 §4.4.1 tells it, to be held beside the text.
//!
//! Each selector of an entry is asked one question of a packet, and has three answers: it
//! matches, it does not, or the packet does not hold the value (OPAQUE). No rules are compiled
//! and nothing is mirrored in advance: "local" and "remote" are read from the packet.
//!
//! Beyond the RFC, as Lockgate's design has it: an entry has a priority instead of a place in a
//! list, and may be limited to a direction.

use std::cmp::Ordering;

use policy::{Action, Direction, GroupSide, Policy, PolicyId, TcpSegments, UpperSelector};
use wire::{Family, Flow, Upper};

/// The database's answer for a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// This entry decides, and says this.
    Entry(PolicyId, Action),
    /// This entry may be the one, but the packet is a fragment without the value that it asks
    /// for: "an arriving fragment without ports MUST be discarded".
    Opaque(PolicyId),
    /// No entry matches: the packet is discarded.
    Nothing,
}

/// One selector's answer for one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Matches,
    Differs,
    /// The value that is asked for is not in this packet but in another fragment of it.
    Opaque,
}

/// A selector's value as found in a packet.
#[derive(Clone, Copy)]
enum Value {
    Is(u16),
    /// In another fragment.
    Opaque,
    /// Packets of this protocol have no such value.
    Absent,
}

/// The packet's values, named as RFC 4301 §4.4.1.1 names them.
struct Packet {
    family: Family,
    local_address: u128,
    remote_address: u128,
    next_layer_protocol: Option<u8>,
    local_port: Value,
    remote_port: Value,
    /// Type in the most significant 8 bits, code in the least.
    icmp_type_code: Value,
    /// Beyond the RFC: true for a TCP segment with SYN and without ACK.
    opens: bool,
}

/// Judges a packet that crosses the boundary in `direction`.
///
/// 1. Put the entries in order.
/// 2. Read the packet's values.
/// 3. The first entry that matches decides; one that would need a value which the packet does not
///    hold stops the search.
/// 4. What nothing matches is discarded.
pub fn judge(policies: &[Policy], direction: Direction, flow: &Flow) -> Judgement {
    let of_spd = policies.iter().filter(|policy| policy.group.is_none());
    let applies = |entry: &&Policy| match (entry.only, direction) {
        (Some(Direction::Inbound), Direction::Outbound) => false,
        (Some(Direction::Outbound), Direction::Inbound) => false,
        (Some(_), _) | (None, _) => true,
    };
    first(of_spd.filter(applies).collect(), &read(direction, flow))
}

/// Judges a packet by the security groups of a port, on the side by which it passes the port.
/// `None`: the port has none there.
///
/// A group's rule says source and destination as the packet has them: the source is local, as
/// outbound.
pub fn judge_groups(
    policies: &[Policy],
    side: GroupSide,
    port: u16,
    flow: &Flow,
) -> Option<Judgement> {
    let of_port = |rule: &&Policy| {
        let ports = rule.ingress.as_deref().unwrap_or_default();
        rule.group == Some(side) && ports.contains(&port)
    };
    let rules: Vec<&Policy> = policies.iter().filter(of_port).collect();
    let has_rules = |rule: &&Policy| {
        let of_family = |ranges: &[policy::AddressRange]| {
            ranges.iter().any(|range| range.family == flow.family)
        };
        of_family(&rule.selector.local) && of_family(&rule.selector.remote)
    };
    if !rules.iter().any(has_rules) {
        return None;
    }
    Some(first(rules, &read(Direction::Outbound, flow)))
}

/// The first entry that matches, in their order.
fn first(mut entries: Vec<&Policy>, packet: &Packet) -> Judgement {
    // "The SPD is ordered": here by priority; among equals the newest first.
    entries.sort_by(|a, b| match b.priority.cmp(&a.priority) {
        Ordering::Equal => b.id.0.cmp(&a.id.0),
        unequal => unequal,
    });
    for entry in entries {
        match compare(entry, packet) {
            Answer::Matches => return Judgement::Entry(entry.id, entry.action),
            Answer::Opaque => return Judgement::Opaque(entry.id),
            Answer::Differs => {}
        }
    }
    Judgement::Nothing
}

/// All selectors of an entry must match. One that differs settles it, whatever is opaque.
fn compare(entry: &Policy, packet: &Packet) -> Answer {
    let answers = [
        local_addresses(entry, packet),
        remote_addresses(entry, packet),
        next_layer_protocol(entry, packet),
        local_ports(entry, packet),
        remote_ports(entry, packet),
        icmp(entry, packet),
        tcp_segments(entry, packet),
    ];
    if answers.contains(&Answer::Differs) {
        return Answer::Differs;
    }
    if answers.contains(&Answer::Opaque) {
        return Answer::Opaque;
    }
    Answer::Matches
}

/// "Local IP Address(es): a list of ranges of IP addresses". A range of the other IP
/// version holds none of the packet's addresses.
fn local_addresses(entry: &Policy, packet: &Packet) -> Answer {
    for range in &entry.selector.local {
        let above = packet.local_address >= range.lo;
        let below = packet.local_address <= range.hi;
        if range.family == packet.family && above && below {
            return Answer::Matches;
        }
    }
    Answer::Differs
}

/// "Remote IP Address(es): a list of ranges of IP addresses".
fn remote_addresses(entry: &Policy, packet: &Packet) -> Answer {
    for range in &entry.selector.remote {
        let above = packet.remote_address >= range.lo;
        let below = packet.remote_address <= range.hi;
        if range.family == packet.family && above && below {
            return Answer::Matches;
        }
    }
    Answer::Differs
}

/// "Next Layer Protocol: an individual protocol number, ANY, or for IPv6 only, OPAQUE".
fn next_layer_protocol(entry: &Policy, packet: &Packet) -> Answer {
    match (entry.selector.protocol, packet.next_layer_protocol) {
        (None, _) => Answer::Matches,
        (Some(_), None) => Answer::Opaque,
        (Some(wanted), Some(there)) if wanted == there => Answer::Matches,
        (Some(_), Some(_)) => Answer::Differs,
    }
}

/// "If the Next Layer Protocol uses two ports, there are selectors for Local and Remote Ports.
/// Each has a list of ranges of values." An empty list is ANY, which asks nothing.
fn local_ports(entry: &Policy, packet: &Packet) -> Answer {
    let Some([local, _]) = entry.selector.upper.ports() else { return Answer::Matches };
    if local.is_empty() {
        return Answer::Matches;
    }
    within(packet.local_port, local.iter().map(|range| (range.lo, range.hi)))
}

/// Compares the ports of the other end, as [`local_ports`] does.
fn remote_ports(entry: &Policy, packet: &Packet) -> Answer {
    let Some([_, remote]) = entry.selector.upper.ports() else { return Answer::Matches };
    if remote.is_empty() {
        return Answer::Matches;
    }
    within(packet.remote_port, remote.iter().map(|range| (range.lo, range.hi)))
}

/// "If the Next Layer Protocol value is ICMP, there is a 16-bit selector for the ICMP message
/// type and code." An entry with an empty list asks for ICMP of any type and code.
fn icmp(entry: &Policy, packet: &Packet) -> Answer {
    let UpperSelector::Icmp(messages) = &entry.selector.upper else { return Answer::Matches };
    if messages.is_empty() {
        return within(packet.icmp_type_code, [(0, 0xffff)].into_iter());
    }
    within(packet.icmp_type_code, messages.iter().map(|range| (range.lo, range.hi)))
}

/// Beyond the RFC: a rule of a group may ask for TCP segments with SYN and without ACK, or for all
/// others. Later fragments show no flags.
fn tcp_segments(entry: &Policy, packet: &Packet) -> Answer {
    let Some(asked) = entry.selector.upper.segments() else { return Answer::Matches };
    if entry.selector.protocol.is_some_and(|protocol| protocol != 6) {
        return Answer::Differs;
    }
    match (packet.next_layer_protocol, packet.local_port) {
        (None, _) | (Some(6), Value::Opaque) => Answer::Opaque,
        (Some(6), Value::Is(_)) if (asked == TcpSegments::New) == packet.opens => Answer::Matches,
        _ => Answer::Differs,
    }
}

/// Returns whether a value lies in one of the ranges of a list.
fn within(value: Value, ranges: impl Iterator<Item = (u16, u16)>) -> Answer {
    let value = match value {
        Value::Is(value) => value,
        // "In a non-initial fragment, port values will not be available."
        Value::Opaque => return Answer::Opaque,
        Value::Absent => return Answer::Differs,
    };
    for (lo, hi) in ranges {
        if lo <= value && value <= hi {
            return Answer::Matches;
        }
    }
    Answer::Differs
}

/// Reads a packet's values: outbound the source is local, inbound the destination.
fn read(direction: Direction, flow: &Flow) -> Packet {
    let (source_port, destination_port, icmp_type_code) = upper_values(flow);
    // A later IPv6 fragment's next header is not looked at by who reassembles (RFC 8200 §4.5).
    let is_opaque = flow.family == Family::V6 && flow.upper == Upper::Fragment;
    let next_layer_protocol = if is_opaque { None } else { Some(flow.protocol) };
    match direction {
        Direction::Outbound => Packet {
            family: flow.family,
            local_address: flow.source,
            remote_address: flow.destination,
            next_layer_protocol,
            local_port: source_port,
            remote_port: destination_port,
            icmp_type_code,
            opens: flow.opens,
        },
        Direction::Inbound => Packet {
            family: flow.family,
            local_address: flow.destination,
            remote_address: flow.source,
            next_layer_protocol,
            local_port: destination_port,
            remote_port: source_port,
            icmp_type_code,
            opens: flow.opens,
        },
    }
}

/// Source port, destination port, ICMP type and code.
fn upper_values(flow: &Flow) -> (Value, Value, Value) {
    // Internet Control Message Protocol of the packet's IP version.
    let icmp = match flow.family {
        Family::V4 => 1,
        Family::V6 => 58,
    };
    // TCP, UDP, DCCP, SCTP, UDP-Lite.
    let two_ports = [6, 17, 33, 132, 136];
    match flow.upper {
        Upper::Ports { source, destination } => {
            (Value::Is(source), Value::Is(destination), Value::Absent)
        }
        Upper::Icmp { kind, code } if flow.protocol == icmp => {
            (Value::Absent, Value::Absent, Value::Is(u16::from(kind) * 256 + u16::from(code)))
        }
        Upper::Icmp { .. } | Upper::None => (Value::Absent, Value::Absent, Value::Absent),
        Upper::Fragment if flow.family == Family::V6 => {
            (Value::Opaque, Value::Opaque, Value::Opaque)
        }
        Upper::Fragment if two_ports.contains(&flow.protocol) => {
            (Value::Opaque, Value::Opaque, Value::Absent)
        }
        Upper::Fragment if flow.protocol == icmp => (Value::Absent, Value::Absent, Value::Opaque),
        Upper::Fragment => (Value::Absent, Value::Absent, Value::Absent),
    }
}
