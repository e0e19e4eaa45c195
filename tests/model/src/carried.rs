//! Reads what a packet to us bears, and the packet that ESP carried in it: RFC 3948 §2 and §3, RFC
//! 4303 §2 and §3.1, RFC 6040 §4.2.

use dataplane::DropReason;
use wire::{Family, Upper};

use crate::esp::Text;
use crate::headers::{self, Defects, Ip, Part};
use crate::icmp;

/// Kind of a packet to us, by its protocol and by RFC 3948 §2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bearing<'p> {
    /// ESP, alone or in UDP.
    Esp(&'p [u8], Carrier),
    /// Keeps a NAT's memory awake.
    Keepalive,
    /// Anything else.
    Clear,
}

/// Layer that carried ESP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// Behind the IP header.
    Ip,
    /// In UDP from this port.
    Udp(u16),
}

/// Tells the kind of a packet by RFC 3948 §2: UDP to port 4500 is ESP unless it begins with four
/// zero bytes, which is IKE, or is one byte 0xff, a keepalive. A datagram that is too short for an
/// SPI, or says that it is longer than it is, is UDP and no more. A first fragment says the length
/// of a datagram that is not all here.
pub fn bearing(packet: &Ip) -> Bearing<'_> {
    let data = &packet.bytes[packet.upper..];
    match (packet.flow.protocol, packet.flow.upper) {
        (50, _) => Bearing::Esp(data, Carrier::Ip),
        (17, Upper::Ports { source, destination: 4500 }) => {
            let length = match packet.part {
                Part::Whole => usize::from(u16::from_be_bytes([data[4], data[5]])),
                Part::First | Part::Later => data.len(),
            };
            match data.get(8..length) {
                Some([0xff]) => Bearing::Keepalive,
                Some([0, 0, 0, 0, ..]) => Bearing::Clear,
                Some(payload @ [_, _, _, _, ..]) => Bearing::Esp(payload, Carrier::Udp(source)),
                Some(_) | None => Bearing::Clear,
            }
        }
        _ => Bearing::Clear,
    }
}

/// RFC 4303 §2.4 to §2.6: what a text carries, and which protocol that is.
fn stripped(text: &Text) -> Result<(&[u8], u8), Defects> {
    let mut defects = Defects::new();
    let Some(carried) = text.carried() else {
        return Err(Defects::from([DropReason::BadPadding]));
    };
    let expected: Vec<u8> = (1..=text.pad_length).collect();
    if text.payload[carried.len()..] != expected[..] {
        defects.insert(DropReason::BadPadding);
    }
    if text.next_header == 59 {
        defects.insert(DropReason::Dummy);
    }
    if defects.is_empty() { Ok((carried, text.next_header)) } else { Err(defects) }
}

/// RFC 4303 §3.1.2 and §2.7: the packet in a text that came in a packet of this class.
///
/// # Errors
/// The reasons to drop it.
pub fn whole(text: &Text, outer_class: u8) -> Result<Ip, Defects> {
    // Padding and next header may both be wrong: either is a reason.
    let is_ip = [4, 41, 59].contains(&text.next_header);
    let bad_next_header = || (!is_ip).then_some(DropReason::BadNextHeader);
    let (carried, next_header) = stripped(text)
        .map_err(|defects| defects.into_iter().chain(bad_next_header()).collect::<Defects>())?;
    if let Some(reason) = bad_next_header() {
        return Err(Defects::from([reason]));
    }
    let family = if next_header == 4 { Family::V4 } else { Family::V6 };
    let inner = headers::ip(carried)?;
    if inner.flow.family != family {
        return Err(Defects::from([DropReason::Malformed]));
    }
    congestion(inner, outer_class)
}

/// RFC 4303 §3.1.1: the packet's own IP header with what ESP carried behind it. It says which
/// protocol that is and how long the packet is now; the rest of it is as it came.
///
/// # Errors
/// The reasons to drop it.
pub fn restored(outer: &Ip, text: &Text, carrier: Carrier) -> Result<Ip, Defects> {
    let (carried, protocol) = stripped(text)?;
    let mut bytes = outer.bytes[..outer.upper].to_vec();
    bytes[outer.names_upper] = protocol;
    bytes.extend(carried);
    let length = bytes.len();
    match outer.flow.family {
        Family::V4 => {
            bytes[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            rewrite_checksum(&mut bytes);
        }
        Family::V6 => bytes[4..6].copy_from_slice(&(length as u16 - 40).to_be_bytes()),
    }
    let mut packet = headers::ip(&bytes)?;
    if matches!(carrier, Carrier::Udp(_)) && packet.part == Part::Whole {
        mend_checksum(&mut packet);
    }
    Ok(packet)
}

/// RFC 3948 §3.1.2: a NAT has changed the addresses that the checksum of TCP or UDP covers, so it
/// is made anew. A UDP datagram over IPv4 without one keeps none.
fn mend_checksum(packet: &mut Ip) {
    let flow = packet.flow;
    let (upper, data) = (packet.upper, packet.bytes[packet.upper..].to_vec());
    let (at, covered) = match flow.protocol {
        6 => (16, data.len()),
        17 => match usize::from(u16::from_be_bytes([data[4], data[5]])) {
            length if (8..=data.len()).contains(&length) => (6, length),
            // Its length lies: it is no datagram.
            _ => return,
        },
        _ => return,
    };
    let Some(field) = data.get(at..at + 2) else { return };
    if flow.protocol == 17 && flow.family == Family::V4 && field == [0, 0] {
        return;
    }
    let mut summed = match flow.family {
        Family::V4 => {
            [(flow.source as u32).to_be_bytes(), (flow.destination as u32).to_be_bytes()].concat()
        }
        Family::V6 => [flow.source.to_be_bytes(), flow.destination.to_be_bytes()].concat(),
    };
    summed.extend((covered as u32).to_be_bytes());
    summed.extend([0, 0, 0, flow.protocol]);
    summed.extend(&data[..at]);
    summed.extend([0, 0]);
    summed.extend(&data[at + 2..covered]);
    let checksum = match icmp::internet_checksum(&summed) {
        0 if flow.protocol == 17 => 0xffff,
        checksum => checksum,
    };
    packet.bytes[upper + at..upper + at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// RFC 6040 §4.2, Figure 4, row by row: Not-ECT 0, ECT(1) 1, ECT(0) 2, CE 3.
fn congestion(mut inner: Ip, outer_class: u8) -> Result<Ip, Defects> {
    let ecn = match (inner.traffic_class & 3, outer_class & 3) {
        (0, 3) => return Err(Defects::from([DropReason::Ecn])),
        (0, _) => 0,
        (1 | 2, 3) => 3,
        (2, 1) => 1,
        (inner, _) => inner,
    };
    inner.traffic_class = inner.traffic_class & 0b1111_1100 | ecn;
    let class = inner.traffic_class;
    match inner.flow.family {
        Family::V4 => {
            inner.bytes[1] = class;
            rewrite_checksum(&mut inner.bytes);
        }
        Family::V6 => {
            inner.bytes[0] = 0x60 | class >> 4;
            inner.bytes[1] = inner.bytes[1] & 0x0f | class << 4;
        }
    }
    Ok(inner)
}

/// Computes an IPv4 header's checksum anew. The header was right before.
pub(crate) fn rewrite_checksum(bytes: &mut [u8]) {
    let header_bytes = usize::from(bytes[0] & 15) * 4;
    bytes[10..12].fill(0);
    let checksum = icmp::internet_checksum(&bytes[..header_bytes]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
}
