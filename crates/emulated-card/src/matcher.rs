//! The card's own table of entries: each a range of bytes as they are on the wire.

use std::net::IpAddr;

use offload::{CardRule, Order, Pattern, Segments, Span, Tag, UpperPattern};

use crate::parse::Seen;

/// TCP's SYN.
const SYN: u8 = 0x02;
/// TCP's ACK.
const ACK: u8 = 0x10;

/// An entry: a rule's pattern for one port.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    port: u16,
    version: u8,
    source: ([u8; 16], [u8; 16]),
    destination: ([u8; 16], [u8; 16]),
    upper: Upper,
}

/// Conditions on what is behind the IP header; ports and messages in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Upper {
    Any,
    Protocol(u8),
    Ports { protocol: u8, lowest: [u8; 4], highest: [u8; 4], segments: Segments },
    Message { protocol: u8, lowest: [u8; 2], highest: [u8; 2] },
}

/// A rule in the card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Loaded {
    pub(crate) tag: Tag,
    rank: u64,
    entries: Vec<Entry>,
    pub(crate) drops: bool,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// Rules in the card, in the order in which they came.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Table {
    pub(crate) rules: Vec<Loaded>,
}

impl Table {
    /// Entries of the whole card.
    pub(crate) fn entries(&self) -> usize {
        self.rules.iter().map(|rule| rule.entries.len()).sum()
    }

    /// Takes a rule in.
    pub(crate) fn insert(&mut self, tag: Tag, rule: &CardRule) {
        let entries = rule.ports.iter().flat_map(|port| {
            let entry = |pattern| entry(*port, pattern);
            rule.patterns.iter().map(entry)
        });
        let drops = rule.effect == offload::Effect::Drop;
        let (entries, rank) = (entries.collect(), rule.rank);
        self.rules.push(Loaded { tag, rank, entries, drops, packets: 0, bytes: 0 });
    }

    /// Takes a rule out.
    pub(crate) fn remove(&mut self, tag: Tag) {
        self.rules.retain(|rule| rule.tag != tag);
    }

    /// The rule that tags a packet which comes by a port: the highest that matches, or, where there
    /// is no order, any: `any` says which.
    pub(crate) fn find(
        &mut self,
        port: u16,
        seen: &Seen,
        order: Order,
        any: impl FnOnce(usize) -> usize,
    ) -> Option<&mut Loaded> {
        let matches = |rule: &Loaded| rule.entries.iter().any(|entry| entry.matches(port, seen));
        let found = self.rules.iter().enumerate().filter(|(_, rule)| matches(rule));
        let place = match order {
            Order::Priority => found.max_by_key(|(_, rule)| rule.rank)?.0,
            Order::None => {
                let found: Vec<usize> = found.map(|(place, _)| place).collect();
                *found.get(any(found.len()))?
            }
        };
        Some(&mut self.rules[place])
    }
}

/// The patterns of a policy, whatever port a packet is of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PolicyEntries(Vec<Entry>);

impl PolicyEntries {
    pub(crate) fn of(patterns: &[Pattern]) -> PolicyEntries {
        PolicyEntries(patterns.iter().map(|pattern| entry(0, pattern)).collect())
    }

    /// Returns whether one of them matches.
    pub(crate) fn match_(&self, seen: &Seen) -> bool {
        self.0.iter().any(|entry| entry.matches(0, seen))
    }
}

fn entry(port: u16, pattern: &Pattern) -> Entry {
    let version = match pattern.source.first {
        IpAddr::V4(_) => 4,
        IpAddr::V6(_) => 6,
    };
    let ends = |span: Span| (octets(span.first), octets(span.last));
    let upper = match pattern.upper {
        UpperPattern::Any => Upper::Any,
        UpperPattern::Protocol(protocol) => Upper::Protocol(protocol),
        UpperPattern::Ports { protocol, source, destination, segments } => {
            let both = |source: u16, destination: u16| {
                let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
                [a, b, c, d]
            };
            let (lowest, highest) = (both(source.0, destination.0), both(source.1, destination.1));
            Upper::Ports { protocol, lowest, highest, segments }
        }
        UpperPattern::Messages { protocol, messages: (lowest, highest) } => {
            let (lowest, highest) = (lowest.to_be_bytes(), highest.to_be_bytes());
            Upper::Message { protocol, lowest, highest }
        }
    };
    let (source, destination) = (ends(pattern.source), ends(pattern.destination));
    Entry { port, version, source, destination, upper }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            octets
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// Bytes in network order compare as the numbers that they are.
fn within<const N: usize>(value: [u8; N], lowest: [u8; N], highest: [u8; N]) -> bool {
    lowest <= value && value <= highest
}

impl Entry {
    fn matches(&self, port: u16, seen: &Seen) -> bool {
        self.port == port
            && self.version == seen.version
            && within(seen.source, self.source.0, self.source.1)
            && within(seen.destination, self.destination.0, self.destination.1)
            && self.upper.matches(seen)
    }
}

impl Upper {
    fn matches(&self, seen: &Seen) -> bool {
        match *self {
            Upper::Any => true,
            Upper::Protocol(protocol) => seen.protocol == protocol,
            Upper::Ports { protocol, lowest: [a, b, c, d], highest: [e, f, g, h], segments } => {
                let Some([s0, s1, d0, d1]) = seen.upper else { return false };
                seen.protocol == protocol
                    && within([s0, s1], [a, b], [e, f])
                    && within([d0, d1], [c, d], [g, h])
                    && is_of(segments, seen)
            }
            Upper::Message { protocol, lowest, highest } => {
                let Some([kind, code, ..]) = seen.upper else { return false };
                seen.protocol == protocol && within([kind, code], lowest, highest)
            }
        }
    }
}

/// Returns whether a packet is of a kind of segments.
fn is_of(segments: Segments, seen: &Seen) -> bool {
    let flags = seen.tcp_flags.unwrap_or(0);
    let opens = flags & (SYN | ACK) == SYN;
    match segments {
        Segments::All => true,
        Segments::New => opens,
        Segments::Established => !opens,
    }
}
