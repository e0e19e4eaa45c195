//! ICMP errors (RFC 792, RFC 4443): which messages are errors, what they quote, and making them.

use crate::checksum;
use crate::flow::{Address, Family, Flow, Upper, protocol};
use crate::ip_header::IpHeader;
use crate::packet::{self, Fragment, Packet};

/// Bytes of an ICMP error's own header, both families.
pub const HEADER_BYTES: usize = 8;
/// Largest IPv4 error (RFC 1812 §4.3.2.3).
pub const MAX_V4_BYTES: usize = 576;
/// Largest IPv6 error: the minimum MTU (RFC 4443 §2.4 c).
pub const MAX_V6_BYTES: usize = 1280;
/// TTL and hop limit of what we make.
pub const HOP_LIMIT: u8 = 64;

/// An ICMP error that a router sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// TTL or hop limit used up on the way.
    TimeExceeded,
    /// Larger than the next link (or tunnel) carries: "fragmentation needed", "packet too big".
    TooBig {
        /// Largest packet that would have passed, bytes.
        mtu: u32,
    },
}

/// Returns whether a message is an error, so that nobody answers it with another (RFC 1122 §3.2.2,
/// RFC 4443 §2.4 e). IPv4 redirects count as errors.
pub fn is_error(flow: &Flow) -> bool {
    match (flow.family, flow.upper) {
        (Family::V4, Upper::Icmp { kind, .. }) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        (Family::V6, Upper::Icmp { kind, .. }) => kind < 128,
        _ => false,
    }
}

/// Returns whether a message is an error that any router on the way may send: unreachable, too big,
/// time exceeded, parameter problem. Redirects and source quench are not: they come from next door.
pub fn is_from_routers(flow: &Flow) -> bool {
    match (flow.family, flow.upper) {
        (Family::V4, Upper::Icmp { kind, .. }) => matches!(kind, 3 | 11 | 12),
        (Family::V6, Upper::Icmp { kind, .. }) => (1..=4).contains(&kind),
        _ => false,
    }
}

/// Returns whether a message tells of a packet that was too big for a link: "fragmentation needed
/// and DF set" (RFC 792, RFC 1191 §4), "packet too big" (RFC 4443 §3.2).
#[inline]
pub fn is_too_big(flow: &Flow) -> bool {
    match (flow.family, flow.upper) {
        (Family::V4, Upper::Icmp { kind, code }) => (kind, code) == (3, 4),
        (Family::V6, Upper::Icmp { kind, .. }) => kind == 2,
        _ => false,
    }
}

/// An ICMP error that tells of a packet that was too big for a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooBigMessage<'b> {
    /// MTU of the link, bytes; of IPv4 at most 65,535, and 0 where the router names none.
    pub mtu: u32,
    /// The beginning of the packet that did not fit, from its IP header on.
    pub quote: &'b [u8],
    /// That packet, by its own header; neither lengths nor checksum are judged.
    pub quoted: Packet,
}

/// Reads a message that [`is_too_big`]. `None`: it is another one, a fragment, its checksum is
/// wrong, or the quote is too short or of the other family. `bytes` begins with the IP header of
/// the parsed `packet`. Cost: reads all of the message.
pub fn too_big_message<'b>(bytes: &'b [u8], packet: &Packet) -> Option<TooBigMessage<'b>> {
    let Packet { flow, fragment, .. } = packet;
    if !is_too_big(flow) || *fragment != Fragment::Whole {
        return None;
    }
    let message = bytes.get(usize::from(packet.upper_offset)..packet.length as usize)?;
    if !is_intact(flow, message) {
        return None;
    }
    let (header, quote) = message.split_first_chunk::<HEADER_BYTES>()?;
    let low = u16::from_be_bytes([header[6], header[7]]);
    let mtu = match flow.family {
        Family::V4 => low.into(),
        Family::V6 => u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
    };
    let quoted = packet::quoted(quote)?;
    let is_same_family = quoted.flow.family == flow.family;
    is_same_family.then_some(TooBigMessage { mtu, quote, quoted })
}

/// The flow of the packet that an ICMP error quotes; `None`: no error, or the quote is too short or
/// of the other family. `bytes` begins with the IP header of the parsed `packet`.
pub fn quoted_flow(bytes: &[u8], packet: &Packet) -> Option<Flow> {
    quoted(bytes, packet).map(|(flow, _)| flow)
}

/// The flow of the packet that an ICMP error quotes, as [`quoted_flow`] says it, and the identifier
/// if that packet is an ICMP echo.
pub fn quoted(bytes: &[u8], packet: &Packet) -> Option<(Flow, Option<u16>)> {
    if !is_error(&packet.flow) {
        return None;
    }
    let start = usize::from(packet.upper_offset) + HEADER_BYTES;
    let quote = bytes.get(start..packet.length as usize)?;
    let quoted = packet::quoted(quote)?;
    let is_same_family = quoted.flow.family == packet.flow.family;
    is_same_family.then(|| (quoted.flow, echo_identifier(&quoted, quote)))
}

/// The identifier of an ICMP echo request or reply (RFC 792, RFC 4443 §4). `None`: another message,
/// or a fragment that does not hold it. `bytes` begins with the IP header of the parsed `packet`.
pub fn echo_identifier(packet: &Packet, bytes: &[u8]) -> Option<u16> {
    let Upper::Icmp { kind, code: 0 } = packet.flow.upper else { return None };
    let is_echo = match packet.flow.family {
        Family::V4 => matches!(kind, 0 | 8),
        Family::V6 => matches!(kind, 128 | 129),
    };
    if !is_echo || packet.fragment == Fragment::Later {
        return None;
    }
    let identifier = bytes.get(usize::from(packet.upper_offset) + 4..)?.first_chunk()?;
    Some(u16::from_be_bytes(*identifier))
}

/// Returns whether a packet may be answered by an ICMP error at all: not an ICMP error itself, nor
/// a later fragment (RFC 1812 §4.3.2.7, RFC 4443 §2.4 e). Packets to group addresses never get
/// here: the parser drops them.
pub fn may_answer(packet: &Packet) -> bool {
    packet.fragment != Fragment::Later && !is_error(&packet.flow)
}

/// Writes an ICMP error about `original` (which begins with its IP header) into `into`, from
/// `source` to the original's source, and returns its length; `None` if it does not fit.
pub fn write_error(
    into: &mut [u8],
    error: Error,
    source: Address,
    original: &[u8],
    packet: &Packet,
) -> Option<usize> {
    let destination = packet.flow.source_address();
    if source.family != destination.family {
        return None;
    }
    let header_bytes = IpHeader::bytes(source.family);
    let limit = match source.family {
        Family::V4 => MAX_V4_BYTES,
        Family::V6 => MAX_V6_BYTES,
    };
    let quote = original.get(..packet.length as usize)?;
    let quote = &quote[..quote.len().min(limit - header_bytes - HEADER_BYTES)];
    let length = header_bytes + HEADER_BYTES + quote.len();
    let out = into.get_mut(..length)?;
    out[header_bytes..header_bytes + HEADER_BYTES].fill(0);
    out[header_bytes + HEADER_BYTES..].copy_from_slice(quote);
    let (kind, code, value) = match (source.family, error) {
        (Family::V4, Error::TimeExceeded) => (11, 0, 0),
        (Family::V4, Error::TooBig { mtu }) => (3, 4, mtu.min(65_535)),
        (Family::V6, Error::TimeExceeded) => (3, 0, 0),
        (Family::V6, Error::TooBig { mtu }) => (2, 0, mtu),
    };
    let icmp = &mut out[header_bytes..];
    icmp[0] = kind;
    icmp[1] = code;
    icmp[4..8].copy_from_slice(&value.to_be_bytes());
    write_checksum(icmp, source, destination);
    let protocol = match source.family {
        Family::V4 => protocol::ICMP,
        Family::V6 => protocol::ICMPV6,
    };
    let header = IpHeader {
        source,
        destination,
        protocol,
        traffic_class: 0,
        hop_limit: HOP_LIMIT,
        dont_fragment: false,
    };
    header.write(out);
    Some(length)
}

/// Returns the sum of the pseudo-header that an ICMP message's checksum covers: ICMPv6's has one
/// (RFC 4443 §2.3), ICMP's has none (RFC 792).
fn pseudo_header(source: Address, destination: Address, length: usize) -> u64 {
    match source.family {
        Family::V4 => 0,
        Family::V6 => checksum::pseudo_header(source, destination, protocol::ICMPV6, length),
    }
}

/// Returns whether the checksum of the ICMP message of a packet is right. `message` is the whole
/// message. Cost: reads all of it.
pub(crate) fn is_intact(flow: &Flow, message: &[u8]) -> bool {
    let (source, destination) = (flow.source_address(), flow.destination_address());
    let pseudo = pseudo_header(source, destination, message.len());
    checksum::finish(checksum::sum(message) + pseudo) == 0
}

/// Writes the checksum of a whole ICMP message, whose field is 0 so far.
pub(crate) fn write_checksum(message: &mut [u8], source: Address, destination: Address) {
    let pseudo = pseudo_header(source, destination, message.len());
    let sum = checksum::finish(checksum::sum(message) + pseudo);
    if let Some(field) = message.get_mut(2..4) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::PacketBuilder;
    use crate::packet::parse;
    use std::vec;

    #[test]
    fn an_error_quotes_the_packet_it_answers() {
        let originals = [
            PacketBuilder::v4("10.1.0.1", "10.2.0.2").udp(7, 8).payload_of(2000),
            PacketBuilder::v4("10.1.0.1", "10.2.0.2").options(&[1; 8]).icmp(8, 0, [1, 2, 3, 4]),
            PacketBuilder::v6("2001:db8::1", "2001:db8::2").tcp(7, 8).payload_of(2000),
            PacketBuilder::v6("2001:db8::1", "2001:db8::2").extension(60, &[]).udp(7, 8),
        ];
        for original in originals {
            let bytes = original.ip();
            let packet = parse(&bytes).unwrap();
            let own = match packet.flow.family {
                Family::V4 => Address::v4(0x0a01_00fe),
                Family::V6 => Address::v6(0x2001_0db8 << 96 | 0xfe),
            };
            let mut out = vec![0xaa; 2048];
            for error in [Error::TimeExceeded, Error::TooBig { mtu: 1400 }] {
                let length = write_error(&mut out, error, own, &bytes, &packet).unwrap();
                let answer = parse(&out[..length]).unwrap();
                assert_eq!(answer.flow.destination, packet.flow.source);
                assert_eq!(answer.length as usize, length);
                assert!(length <= if own.family == Family::V4 { 576 } else { 1280 });
                assert_eq!(quoted_flow(&out, &answer), Some(packet.flow));
                assert!(is_error(&answer.flow) && !may_answer(&answer));
                let upper = &out[answer.upper_offset.into()..length];
                let pseudo = match own.family {
                    Family::V4 => 0,
                    Family::V6 => checksum::pseudo_header(
                        answer.flow.source_address(),
                        answer.flow.destination_address(),
                        protocol::ICMPV6,
                        upper.len(),
                    ),
                };
                assert_eq!(checksum::finish(checksum::sum(upper) + pseudo), 0);
            }
        }
    }

    #[test]
    fn later_fragments_and_errors_are_not_answered() {
        let later = PacketBuilder::v4("10.1.0.1", "10.2.0.2").fragment(3, false).payload_of(8).ip();
        assert!(!may_answer(&parse(&later).unwrap()));
        let echo = PacketBuilder::v6("2001:db8::1", "2001:db8::2").icmp(128, 0, [0; 4]).ip();
        assert!(may_answer(&parse(&echo).unwrap()));
    }
}
