//! Packets at the edges of rules. Each ends with its number.

use net::Random;
use wire::Family;
use wire::build::{PacketBuilder, tcp_flags};

use crate::rules::{FAMILIES, Messages, Range, Rule, a_point, address, is_inside};

/// Protocols of packets: those that rules name, the other family's ICMP, and one of nobody's.
const PROTOCOLS: [u8; 10] = [6, 6, 17, 17, 132, 33, 136, 47, 253, 1];
const FLAGS: [u8; 6] = [
    tcp_flags::SYN,
    tcp_flags::SYN,
    tcp_flags::SYN | tcp_flags::ACK,
    tcp_flags::ACK,
    0x04,
    tcp_flags::SYN | 0x01,
];

/// Bytes of a packet's number.
const NUMBER_BYTES: usize = 4;

/// Returns the number of a packet, as it is written at its end.
pub(crate) fn number_of(packet: &[u8]) -> u32 {
    let last = packet.last_chunk::<NUMBER_BYTES>().expect("a packet has a number");
    u32::from_be_bytes(*last)
}

/// Returns a packet that a rule nearly matches, or just about.
pub(crate) fn a_packet(random: &mut Random, rules: &[Rule], number: u32) -> PacketBuilder {
    let rule = &rules[random.below(rules.len() as u64) as usize];
    let family = a_family(random, rule);
    let [from, to] = rule.ends.each_ref().map(|ranges| an_address(random, ranges, family));
    let builder = PacketBuilder::new(address(family, from), address(family, to));
    let own_icmp = if family == Family::V4 { 1 } else { 58 };
    let any = PROTOCOLS[random.below(PROTOCOLS.len() as u64) as usize];
    let named = rule.protocol.map_or(any, |(_, protocol)| protocol);
    let protocol = if random.below(6) == 0 { any } else { named };
    let [source, destination] = rule.ports.each_ref().map(|ports| a_port(random, ports));
    let tail = number.to_be_bytes();
    let mut payload = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    payload.extend([[0; 16].as_slice(), &tail].concat());
    match protocol {
        6 => {
            let flags = FLAGS[random.below(FLAGS.len() as u64) as usize];
            builder.tcp_with(source, destination, flags, None).payload(&tail)
        }
        17 => builder.udp(source, destination).payload(&tail),
        icmp if icmp == own_icmp => {
            let (kind, code) = a_message(random, &rule.icmp, family);
            builder.icmp(kind, code, [0; 4]).payload(&tail)
        }
        other => builder.protocol(other).payload(&payload),
    }
}

fn a_family(random: &mut Random, rule: &Rule) -> Family {
    let ranges: Vec<&Range> = rule.ends.iter().flatten().collect();
    match ranges.len() as u64 {
        0 => FAMILIES[random.below(2) as usize],
        count => ranges[random.below(count) as usize].family,
    }
}

/// Returns an address at an edge of one of the ranges, on either side of it, or anywhere.
fn an_address(random: &mut Random, ranges: &[Range], family: Family) -> u128 {
    let here: Vec<&Range> = ranges.iter().filter(|range| range.family == family).collect();
    if here.is_empty() || random.below(6) == 0 {
        return a_point(random, family);
    }
    let range = here[random.below(here.len() as u64) as usize];
    let edges = [range.lo, range.hi, range.lo, range.hi, range.lo - 1, range.hi + 1];
    let edge = edges[random.below(6) as usize];
    if is_inside(family, edge) { edge } else { range.lo }
}

fn a_port(random: &mut Random, ports: &[(u16, u16)]) -> u16 {
    if ports.is_empty() || random.below(6) == 0 {
        return random.below(1 << 16) as u16;
    }
    let (lo, hi) = ports[random.below(ports.len() as u64) as usize];
    [lo, hi, lo, hi, lo.saturating_sub(1), hi.saturating_add(1)][random.below(6) as usize]
}

fn a_message(random: &mut Random, asked: &[Messages], family: Family) -> (u8, u8) {
    let low = if family == Family::V4 { 0 } else { 126 };
    if asked.is_empty() || random.below(6) == 0 {
        return (low + random.below(12) as u8, random.below(9) as u8);
    }
    let Messages { types, codes } = asked[random.below(asked.len() as u64) as usize];
    let (lo, hi) = codes.unwrap_or((0, 255));
    let edge = |random: &mut Random, lo: u8, hi: u8| {
        [lo, hi, lo, hi, lo.saturating_sub(1), hi.saturating_add(1)][random.below(6) as usize]
    };
    (edge(random, types.0, types.1), edge(random, lo, hi))
}
