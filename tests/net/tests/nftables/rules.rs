//! Random stateless rules, written for Lockgate and for nftables.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use net::Random;
use wire::{Address, Family};

pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// Protocols that rules name, as Lockgate calls them.
const PROTOCOLS: [(&str, u8); 7] = [
    ("tcp", 6),
    ("tcp", 6),
    ("udp", 17),
    ("sctp", 132),
    ("dccp", 33),
    ("udplite", 136),
    ("47", 47),
];
/// Protocols with ports, as nftables writes them.
const WITH_PORTS: &str = "{ 6, 17, 33, 132, 136 }";
/// Most rules of a list, and most entries of a list of addresses or ports.
const MOST: (u64, u64) = (12, 5);

/// The network that all addresses are of.
fn network(family: Family) -> (u128, u32) {
    match family {
        Family::V4 => (10 << 24, 24),
        Family::V6 => (0x2001_0db8 << 96, 96),
    }
}

/// Addresses of one family from `lo` to `hi`, as a person writes them.
#[derive(Clone)]
pub(crate) struct Range {
    pub(crate) family: Family,
    pub(crate) lo: u128,
    pub(crate) hi: u128,
    text: String,
}

/// ICMP types, and codes if there is one type.
#[derive(Clone, Copy)]
pub(crate) struct Messages {
    pub(crate) types: (u8, u8),
    pub(crate) codes: Option<(u8, u8)>,
}

/// The TCP segments that a rule matches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segments {
    New,
    Established,
}

/// A rule. An empty list matches everything.
#[derive(Clone)]
pub(crate) struct Rule {
    permits: Action,
    pub(crate) ends: [Vec<Range>; 2],
    pub(crate) protocol: Option<(&'static str, u8)>,
    pub(crate) ports: [Vec<(u16, u16)>; 2],
    pub(crate) icmp: Vec<Messages>,
    segments: Option<Segments>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Permit,
    Deny,
}

/// Returns an address of the network: few high bits, and up to 16 low ones.
pub(crate) fn a_point(random: &mut Random, family: Family) -> u128 {
    let (base, _) = network(family);
    let bits = random.below(17);
    let low = u128::from(random.below(4) << 16 | random.below(1 << bits));
    base | match (family, random.below(2)) {
        (Family::V4, _) | (Family::V6, 0) => low,
        (Family::V6, _) => low << 64,
    }
}

pub(crate) fn is_inside(family: Family, address: u128) -> bool {
    let (base, bits) = network(family);
    address >> bits == base >> bits
}

fn text(family: Family, value: u128) -> String {
    match family {
        Family::V4 => Ipv4Addr::from_bits(value as u32).to_string(),
        Family::V6 => Ipv6Addr::from_bits(value).to_string(),
    }
}

impl Range {
    fn random(random: &mut Random, family: Family) -> Range {
        let [a, b] = [(); 2].map(|()| a_point(random, family));
        match random.below(3) {
            0 => Range { family, lo: a, hi: a, text: text(family, a) },
            1 => {
                let (lo, hi) = (a.min(b), a.max(b));
                let text = format!("{}-{}", text(family, lo), text(family, hi));
                Range { family, lo, hi, text }
            }
            _ => {
                let behind = random.below(network(family).1.into()) as u32;
                let host = (1u128 << behind) - 1;
                let length = u32::from(family.address_bits()) - behind;
                let text = format!("{}/{length}", text(family, a & !host));
                Range { family, lo: a & !host, hi: a | host, text }
            }
        }
    }
}

/// Returns a list of rules.
pub(crate) fn a_list(random: &mut Random) -> Vec<Rule> {
    (0..1 + random.below(MOST.0)).map(|_| Rule::random(random)).collect()
}

fn some<T>(random: &mut Random, mut one: impl FnMut(&mut Random) -> T) -> Vec<T> {
    (0..1 + random.below(MOST.1)).map(|_| one(random)).collect()
}

impl Rule {
    fn random(random: &mut Random) -> Rule {
        let of = [&FAMILIES[..1], &FAMILIES[1..], &FAMILIES[..]][random.below(3) as usize];
        let end = |random: &mut Random| match random.below(4) {
            0 => Vec::new(),
            _ => {
                let each = |family| some(random, |random| Range::random(random, family));
                of.iter().copied().flat_map(each).collect()
            }
        };
        let ends = [end(random), end(random)];
        let permits = [Action::Permit, Action::Deny][random.below(2) as usize];
        let mut rule = Rule {
            permits,
            ends,
            protocol: None,
            ports: [vec![], vec![]],
            icmp: vec![],
            segments: None,
        };
        match random.below(6) {
            0 => {}
            1 if of.len() == 1 => rule.ask_icmp(random, of[0]),
            kind => {
                let is_named = kind > 2;
                let named = PROTOCOLS[random.below(PROTOCOLS.len() as u64) as usize];
                rule.protocol = is_named.then_some(named);
                if named.1 == 6 && is_named {
                    let all = [None, Some(Segments::New), Some(Segments::Established)];
                    rule.segments = all[random.below(3) as usize];
                }
                if named.1 != 47 || !is_named {
                    rule.ports = [a_port_list(random), a_port_list(random)];
                }
            }
        }
        rule
    }

    fn ask_icmp(&mut self, random: &mut Random, family: Family) {
        let is_v4 = family == Family::V4;
        self.protocol = Some(if is_v4 { ("icmp", 1) } else { ("icmpv6", 58) });
        let low = if is_v4 { 0 } else { 126 };
        self.icmp = some(random, |random| {
            let kind = low + random.below(6) as u8;
            let more = kind + random.below(4) as u8;
            let codes = (random.below(4) as u8, 4 + random.below(4) as u8);
            match random.below(3) {
                0 => Messages { types: (kind, more), codes: None },
                1 => Messages { types: (kind, kind), codes: Some((codes.0, codes.0)) },
                _ => Messages { types: (kind, kind), codes: Some(codes) },
            }
        });
    }

    /// Writes the rule for Lockgate.
    pub(crate) fn write_lockgate(&self, name: &str, sets: &mut String) -> String {
        let action = if self.permits == Action::Permit { "permit" } else { "deny" };
        let mut out =
            format!("[[rule]]\ngroup = \"g\"\nname = \"{name}\"\naction = \"{action}\"\n");
        for (key, ranges) in ["from", "to"].iter().zip(&self.ends) {
            let list: Vec<String> =
                ranges.iter().map(|range| format!("{:?}", range.text)).collect();
            let list = match list.len() {
                0 => "\"any\"".into(),
                1 | 2 => list.join(", "),
                _ => {
                    let list = list.join(", ");
                    let _ = writeln!(sets, "[set.{name}-{key}]\naddresses = [{list}]");
                    format!("\"@{name}-{key}\"")
                }
            };
            let _ = writeln!(out, "{key} = [{list}]");
        }
        if let Some((protocol, _)) = self.protocol {
            let _ = writeln!(out, "protocol = \"{protocol}\"");
        }
        for (key, ports) in ["from_ports", "to_ports"].iter().zip(&self.ports) {
            let list: Vec<_> = ports.iter().map(|ports| format!("{:?}", span(*ports))).collect();
            if !list.is_empty() {
                let _ = writeln!(out, "{key} = [{}]", list.join(", "));
            }
        }
        let messages = self.icmp.iter().map(|messages| match messages.codes {
            None => span(messages.types),
            Some((lo, hi)) => format!("{0}/{lo}-{0}/{hi}", messages.types.0),
        });
        let messages: Vec<String> = messages.map(|text| format!("{text:?}")).collect();
        if !messages.is_empty() {
            let _ = writeln!(out, "icmp = [{}]", messages.join(", "));
        }
        match self.segments {
            Some(Segments::New) => out.push_str("tcp = \"new\"\n"),
            Some(Segments::Established) => out.push_str("tcp = \"established\"\n"),
            None => {}
        }
        out
    }

    /// Returns the lines that the rule is in nftables: one for each family and kind of message.
    /// Writes the sets that they name.
    pub(crate) fn write_nftables(&self, name: &str, sets: &mut String) -> Vec<String> {
        let verdict = if self.permits == Action::Permit { "accept" } else { "drop" };
        let mut lines = Vec::new();
        for family in FAMILIES {
            let Some(ends) = self.ends_in_nftables(name, family, sets) else { continue };
            let upper = self.upper_in_nftables(name, sets);
            let word = if family == Family::V4 { "icmp" } else { "icmpv6" };
            let mut messages: Vec<String> = Vec::new();
            for Messages { types, codes } in &self.icmp {
                let codes = codes.map(|codes| format!(" {word} code {}", span(codes)));
                messages.push(format!("{word} type {}{}", span(*types), codes.unwrap_or_default()));
            }
            if messages.is_empty() {
                messages.push(String::new());
            }
            lines.extend(messages.iter().map(|it| format!("{ends} {upper} {it} {verdict}")));
        }
        lines
    }

    /// `None`: the rule matches nothing of the family.
    fn ends_in_nftables(&self, name: &str, family: Family, sets: &mut String) -> Option<String> {
        let (of, word, kind) = match family {
            Family::V4 => ("ipv4", "ip", "ipv4_addr"),
            Family::V6 => ("ipv6", "ip6", "ipv6_addr"),
        };
        let mut out = format!("meta nfproto {of}");
        for (key, ranges) in ["saddr", "daddr"].iter().zip(&self.ends) {
            let here = ranges.iter().filter(|range| range.family == family);
            let list: Vec<&str> = here.map(|range| range.text.as_str()).collect();
            match list.as_slice() {
                [] if ranges.is_empty() => {}
                [] => return None,
                list => {
                    let of = format!("{name}-{word}-{key}").replace('-', "_");
                    let _ = write!(out, " {word} {key} {}", a_set(&of, kind, list, sets));
                }
            }
        }
        let is_of_another = !self.icmp.is_empty()
            && (self.protocol.is_some_and(|(_, number)| number == 1) != (family == Family::V4));
        (!is_of_another).then_some(out)
    }

    fn upper_in_nftables(&self, name: &str, sets: &mut String) -> String {
        let has_ports = self.ports.iter().any(|ports| !ports.is_empty());
        let mut out = match self.protocol {
            Some((_, number)) => format!("meta l4proto {number}"),
            None if has_ports => format!("meta l4proto {WITH_PORTS}"),
            None => String::new(),
        };
        for (key, ports) in ["sport", "dport"].iter().zip(&self.ports) {
            let list: Vec<String> = ports.iter().map(|ports| span(*ports)).collect();
            let list: Vec<&str> = list.iter().map(String::as_str).collect();
            if !list.is_empty() {
                let of = format!("{name}_{key}");
                let _ = write!(out, " th {key} {}", a_set(&of, "inet_service", &list, sets));
            }
        }
        match self.segments {
            Some(Segments::New) => out + " tcp flags & (syn | ack) == syn",
            Some(Segments::Established) => out + " tcp flags & (syn | ack) != syn",
            None => out,
        }
    }
}

/// Returns the expression that names a list, which becomes a set if it has several entries.
fn a_set(name: &str, kind: &str, list: &[&str], sets: &mut String) -> String {
    if let [one] = list {
        return (*one).to_owned();
    }
    let head = format!("set {name} {{ type {kind}; flags interval; auto-merge;");
    let all = format!("{head} elements = {{ {} }} }}\n", list.join(", "));
    // Rules of both families name the same ports.
    if !sets.contains(&head) {
        sets.push_str(&all);
    }
    format!("@{name}")
}

fn a_port_list(random: &mut Random) -> Vec<(u16, u16)> {
    if random.below(2) == 0 {
        return Vec::new();
    }
    some(random, |random| {
        let bits = 1 + random.below(16);
        let (a, b) = (random.below(1 << bits) as u16, random.below(1 << bits) as u16);
        if random.below(2) == 0 { (a, a) } else { (a.min(b), a.max(b)) }
    })
}

/// Two numbers as Lockgate and nftables write a range.
fn span<T: PartialEq + std::fmt::Display>((lo, hi): (T, T)) -> String {
    if lo == hi { lo.to_string() } else { format!("{lo}-{hi}") }
}

pub(crate) fn address(family: Family, value: u128) -> Address {
    Address { family, value }
}
