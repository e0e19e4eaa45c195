//! Headers of the common packet at a glance: one chain of compares, and only what a flow cache and
//! a forwarder need.
//!
//! Whatever is not common is `None` here and is judged by [`packet::parse`](crate::packet::parse),
//! the authority; a property test holds that both say the same of what is common. A glance does
//! not look at addresses: it serves who knows the flow already.
//!
//! Common is: IPv4 without options, a right checksum, no fragment; IPv6 without extension headers;
//! the whole fixed header of an upper layer that has one.
//!
//! A view is a prefix of fixed length that may reach beyond the packet, as far as the frame does:
//! so the compiler checks no bounds, and the callers compare the length once.

use crate::flow::{Family, protocol};
use crate::packet::{IPV4_BYTES, IPV6_BYTES};

/// Bytes of an IPv4 packet that a glance sees: up to the flags of TCP.
pub const V4_SEEN: usize = IPV4_BYTES + 14;
/// Bytes of an IPv6 packet that a glance sees: up to the flags of TCP.
pub const V6_SEEN: usize = IPV6_BYTES + 14;

/// The kind of an upper layer, by what a selector sees of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum UpperKind {
    /// Source and destination port.
    Ports = 0,
    /// ICMP's type and code.
    Icmp = 1,
    /// Nothing.
    None = 2,
}

/// The fields of a common packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Glance {
    /// Bytes of the packet by its own header.
    pub length: u32,
    /// Number of the upper layer's protocol.
    pub protocol: u8,
    /// `source << 16 | destination` port; `type << 8 | code`; or 0: by the kind of the protocol.
    pub upper: u32,
    /// True for a segment of TCP with SYN.
    pub is_syn: bool,
    /// True for a segment of TCP with SYN and without ACK, which opens a connection.
    pub opens: bool,
}

/// Properties of an upper layer's protocol, on 4 bytes.
#[derive(Clone, Copy)]
struct Layer {
    /// Bytes of its fixed header.
    least: u8,
    /// Bits by which its first 4 bytes are shifted to become what a selector sees.
    shift: u8,
    kind: UpperKind,
    /// Bits of byte 13 that say that a segment has SYN.
    syn: u8,
}

/// A mark for IPv6 extension headers, which are not common.
const EXTENSION: u8 = u8::MAX;

const fn layer(number: u8, icmp: u8) -> Layer {
    match number {
        protocol::TCP => Layer { least: 20, shift: 0, kind: UpperKind::Ports, syn: 0x02 },
        protocol::SCTP | protocol::DCCP => {
            Layer { least: 12, shift: 0, kind: UpperKind::Ports, syn: 0 }
        }
        protocol::UDP | protocol::UDP_LITE => {
            Layer { least: 8, shift: 0, kind: UpperKind::Ports, syn: 0 }
        }
        _ if number == icmp => Layer { least: 8, shift: 16, kind: UpperKind::Icmp, syn: 0 },
        _ => Layer { least: 0, shift: 32, kind: UpperKind::None, syn: 0 },
    }
}

const V4_LAYERS: [Layer; 256] = {
    let (mut layers, mut number) = ([layer(0, protocol::ICMP); 256], 0);
    while number < 256 {
        layers[number] = layer(number as u8, protocol::ICMP);
        number += 1;
    }
    layers
};

const V6_LAYERS: [Layer; 256] = {
    let (mut layers, mut number) = ([layer(0, protocol::ICMPV6); 256], 0);
    while number < 256 {
        layers[number] = layer(number as u8, protocol::ICMPV6);
        if crate::packet::is_extension(number as u8) {
            layers[number].least = EXTENSION;
        }
        number += 1;
    }
    layers
};

/// Returns the kind of upper layer that a glance says of an IPv4 packet of this protocol.
pub const fn kind_v4(protocol: u8) -> UpperKind {
    V4_LAYERS[protocol as usize].kind
}

/// Returns the kind of upper layer that a glance says of an IPv6 packet of this protocol.
pub const fn kind_v6(protocol: u8) -> UpperKind {
    V6_LAYERS[protocol as usize].kind
}

/// Looks at an IPv4 packet that has a hop left to go: its TTL is above 1.
#[inline(always)]
pub fn v4(ip: &[u8; V4_SEEN]) -> Option<Glance> {
    let length = u32::from(u16::from_be_bytes([ip[2], ip[3]]));
    let layer = V4_LAYERS[usize::from(ip[9])];
    let good = header_v4(ip) & (ip[8] > 1) & (length >= IPV4_BYTES as u32 + u32::from(layer.least));
    good.then(|| glance(layer, ip[9], length, word(ip, 20), ip[33]))
}

/// Looks at an IPv6 packet that has a hop left to go: its hop limit is above 1.
#[inline(always)]
pub fn v6(ip: &[u8; V6_SEEN]) -> Option<Glance> {
    let payload = u32::from(u16::from_be_bytes([ip[4], ip[5]]));
    let layer = V6_LAYERS[usize::from(ip[6])];
    let good = (ip[0] >> 4 == 6)
        & (ip[7] > 1)
        & (payload >= u32::from(layer.least))
        & (layer.least != EXTENSION);
    good.then(|| glance(layer, ip[6], payload + IPV6_BYTES as u32, word(ip, 40), ip[53]))
}

#[inline(always)]
fn glance(layer: Layer, protocol: u8, length: u32, upper: u32, flags: u8) -> Glance {
    // ACK lies three bits above SYN.
    let without_ack = !(flags >> 3);
    Glance {
        length,
        protocol,
        upper: (u64::from(u32::from_be(upper)) >> layer.shift) as u32,
        is_syn: flags & layer.syn != 0,
        opens: flags & layer.syn & without_ack != 0,
    }
}

/// Returns whether a packet begins with an IPv4 header without options whose checksum is right, and
/// is no fragment. Looks neither at TTL, length nor addresses.
#[inline(always)]
pub fn header_v4<const N: usize>(ip: &[u8; N]) -> bool {
    const { assert!(N >= IPV4_BYTES) };
    // As they lie in memory: ones' complement sums do not mind the order of bytes (RFC 1071 §2).
    let (first, second) = (double(ip, 0), double(ip, 8));
    // Carries go around: 2^64 is 1 more than a multiple of 0xffff, as 2^16 is.
    let (sum, carry) = first.overflowing_add(second);
    let (sum, again) = (sum + u64::from(carry)).overflowing_add(u64::from(word(ip, 16)));
    let sum = sum + u64::from(again);
    let fixed = u64::from_ne_bytes([0xff, 0, 0, 0, 0, 0, 0x3f, 0xff]);
    let differs = first & fixed ^ u64::from_ne_bytes([0x45, 0, 0, 0, 0, 0, 0, 0]);
    (differs == 0) & is_multiple_of_ffff(sum)
}

/// Returns whether a sum is a multiple of 0xffff: times the inverse of that, modulo 2^64, it is
/// then at most 2^64 / 0xffff, and else it is more (Granlund and Montgomery, "Division by
/// Invariant Integers using Multiplication", §9).
#[inline(always)]
fn is_multiple_of_ffff(sum: u64) -> bool {
    const INVERSE: u64 = 0xfffe_fffe_fffe_ffff;
    const { assert!(INVERSE.wrapping_mul(0xffff) == 1) };
    sum.wrapping_mul(INVERSE) <= u64::MAX / 0xffff
}

/// Four bytes of a view, as they lie in memory.
///
/// # Panics
/// If they are not in it, which the compiler sees where `at` is a constant.
#[inline(always)]
pub fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().expect("it lies in the view"))
}

/// Eight bytes of a view, as they lie in memory.
///
/// # Panics
/// As [`word`].
#[inline(always)]
pub fn double<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from_ne_bytes(*bytes[at..].first_chunk().expect("it lies in the view"))
}

/// Lowers the TTL of an IPv4 packet by 1, with the checksum: its third word, as it lies in memory.
/// The TTL is above 0 and the checksum right.
#[inline(always)]
pub fn lowered_v4(word: u32) -> u32 {
    // TTL in the highest byte, checksum in the low half: one less above is 0x0100 more below
    // (RFC 1141), and where the sum then has reached 0xffff it begins anew behind 0 (RFC 1624 §3).
    let word = u32::from_be(word).wrapping_sub(0x0100_0000);
    let sum = (word & 0xffff) + 0x0100;
    let sum = sum + u32::from(sum >= 0xffff);
    (word & 0xffff_0000 | sum & 0xffff).to_be()
}

/// Lowers the hop limit of a packet, which is above 0, and returns its traffic class and whether
/// routers may not fragment it.
#[inline(always)]
pub fn pass_on(start: &mut [u8; IPV4_BYTES], family: Family) -> (u8, bool) {
    match family {
        Family::V4 => {
            let lowered = lowered_v4(word(start, 8));
            start[8..12].copy_from_slice(&lowered.to_ne_bytes());
            (start[1], start[6] & 0x40 != 0)
        }
        Family::V6 => {
            start[7] = start[7].wrapping_sub(1);
            (start[0] << 4 | start[1] >> 4, true)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::build::{PacketBuilder, chosen_packet};
    use crate::flow::{Address, Upper};
    use crate::packet::{self, Fragment};

    proptest! {
        #[test]
        fn lowering_a_ttl_is_what_decrement_hop_limit_does(
            mut header: [u8; 20], ttl in 1u8..=255, protocol: u8,
        ) {
            (header[0], header[8], header[9]) = (0x45, ttl, protocol);
            header[10..12].fill(0);
            let sum = crate::checksum::finish(crate::checksum::sum(&header));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            let lowered = lowered_v4(word(&header, 8)).to_ne_bytes();
            let original = header;
            packet::decrement_hop_limit(&mut header, Family::V4);
            prop_assert_eq!(&header[8..12], &lowered[..]);
            packet::restore_hop_limit(&mut header, Family::V4);
            prop_assert_eq!(header, original);
        }

        #[test]
        fn multiples_of_ffff_are_told(factor in 0..=u64::MAX / 0xffff, any: u64) {
            prop_assert!(is_multiple_of_ffff(factor * 0xffff));
            prop_assert_eq!(is_multiple_of_ffff(any), any % 0xffff == 0);
        }

        #[test]
        fn whatever_is_common_is_what_the_parser_says(
            is_v6: bool,
            number in prop_oneof![
                Just(6u8), Just(17), Just(1), Just(58), Just(50), Just(132), Just(33), Just(136),
                any::<u8>()
            ],
            ttl in prop_oneof![Just(0u8), Just(1), Just(2), any::<u8>()],
            payload in prop::collection::vec(any::<u8>(), 0..60),
            flip in prop::option::of((0usize..60, 0u8..8)),
        ) {
            let builder = match is_v6 {
                false => PacketBuilder::v4("10.1.2.3", "10.9.8.7"),
                true => PacketBuilder::v6("2001:db8::1", "2001:db8:1::2"),
            };
            let mut bytes = builder.protocol(number).hop_limit(ttl).payload(&payload).ip();
            if let Some((at, bit)) = flip && at < bytes.len() {
                bytes[at] ^= 1 << bit;
            }
            check(&bytes)?;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn of_chosen_headers_a_packet_is_common_or_the_parser_finds_what_is_uncommon(
            is_v6: bool,
            choices in prop::collection::vec(any::<u8>(), 0..48),
        ) {
            let ends = match is_v6 {
                false => [Address::v4(0x0a01_0203), Address::v4(0x0a09_0807)],
                true => [1, 2].map(|host| Address::v6(0x2001_0db8 << 96 | host)),
            };
            check(&chosen_packet(ends[0], ends[1], &choices))?;
        }
    }

    /// Compares a glance at a packet, behind which stands something else, with the parser.
    fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
        let behind: Vec<u8> = bytes.iter().copied().chain([0xff; V6_SEEN]).collect();
        let (seen, header) = match behind[0] >> 4 {
            4 => (v4(behind.first_chunk().unwrap()), IPV4_BYTES),
            6 => (v6(behind.first_chunk().unwrap()), IPV6_BYTES),
            _ => return Ok(()),
        };
        let is_common = packet::parse(bytes).is_ok_and(|parsed| {
            let has_bare_header = usize::from(parsed.upper_offset) == header;
            has_bare_header && parsed.fragment == Fragment::Whole && parsed.hop_limit > 1
        });
        prop_assert!(seen.is_some() || !is_common);
        let Some(seen) = seen.filter(|seen| seen.length as usize <= bytes.len()) else {
            return Ok(());
        };
        let parsed = match packet::parse(bytes) {
            // A glance does not look at addresses.
            Err(packet::ParseError::BadAddress) => return Ok(()),
            parsed => parsed.map_err(|error| TestCaseError::fail(std::format!("{error:?}")))?,
        };
        let upper = match parsed.flow.upper {
            Upper::Ports { source, destination } => {
                (UpperKind::Ports, u32::from(source) << 16 | u32::from(destination))
            }
            Upper::Icmp { kind, code } => (UpperKind::Icmp, u32::from(kind) << 8 | u32::from(code)),
            Upper::None => (UpperKind::None, 0),
            Upper::Fragment => return Err(TestCaseError::fail("a fragment")),
        };
        let kind = match parsed.flow.family {
            Family::V4 => kind_v4(seen.protocol),
            Family::V6 => kind_v6(seen.protocol),
        };
        prop_assert_eq!((kind, seen.upper), upper);
        prop_assert_eq!((seen.length, seen.protocol), (parsed.length, parsed.flow.protocol));
        prop_assert_eq!(parsed.fragment, Fragment::Whole);
        prop_assert!(parsed.hop_limit > 1);
        let start = usize::from(parsed.upper_offset);
        let is_syn = parsed.flow.protocol == protocol::TCP && bytes[start + 13] & 2 != 0;
        prop_assert_eq!(seen.is_syn, is_syn);
        prop_assert_eq!(seen.opens, parsed.flow.opens);
        Ok(())
    }

    #[test]
    fn common_packets_are_common() {
        for (is_v6, number) in [(false, 6u8), (true, 6), (false, 17), (true, 17), (false, 1)] {
            let builder = match is_v6 {
                false => PacketBuilder::v4("10.1.2.3", "10.9.8.7"),
                true => PacketBuilder::v6("2001:db8::1", "2001:db8:1::2"),
            };
            let bytes = builder.protocol(number).payload(&[1; 40]).ip();
            let seen = match is_v6 {
                false => v4(bytes.first_chunk().unwrap()),
                true => v6(bytes.first_chunk().unwrap()),
            };
            assert_eq!(seen.map(|seen| seen.length as usize), Some(bytes.len()));
        }
    }
}
