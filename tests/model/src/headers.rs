//! Reads frames with `etherparse`: link header, IP header, extension headers, ports.
//!
//! All defects of a header are collected: in which order a gateway looks for them is its own
//! affair, and any of them is a right reason to drop the packet.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use dataplane::DropReason;
use etherparse::{
    Ethernet2HeaderSlice, Ipv4HeaderSlice, Ipv6FragmentHeaderSlice, Ipv6HeaderSlice,
    Ipv6RawExtHeaderSlice, SingleVlanHeaderSlice,
};
use wire::{Family, Flow, Upper};

/// A link header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Destination link address.
    pub destination: [u8; 6],
    /// Source link address.
    pub source: [u8; 6],
    /// VLAN id; a priority tag is none.
    pub vlan: Option<u16>,
    /// More than one tag, or a service tag.
    pub stacked: bool,
    /// EtherType behind the tag.
    pub ethertype: u16,
    /// Bytes behind the header.
    pub payload: Vec<u8>,
}

/// Reads a link header; `None`: truncated.
pub fn link(frame: &[u8]) -> Option<Link> {
    let header = Ethernet2HeaderSlice::from_slice(frame).ok()?;
    let mut link = Link {
        destination: header.destination(),
        source: header.source(),
        vlan: None,
        stacked: false,
        ethertype: header.ether_type().0,
        payload: frame[14..].to_vec(),
    };
    if link.ethertype == 0x8100 || link.ethertype == 0x88a8 {
        let tag = SingleVlanHeaderSlice::from_slice(&link.payload).ok()?;
        let (id, inner) = (tag.vlan_identifier().value(), tag.ether_type().0);
        link.stacked = link.ethertype == 0x88a8 || inner == 0x8100 || inner == 0x88a8;
        link.vlan = (id != 0).then_some(id);
        link.ethertype = inner;
        link.payload.drain(..4);
    }
    Some(link)
}

/// Part of a datagram that a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// The first fragment.
    First,
    /// A later fragment.
    Later,
}

/// An IP packet without defects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ip {
    /// Flow that selectors see.
    pub flow: Flow,
    /// The packet, link padding cut off.
    pub bytes: Vec<u8>,
    /// Offset of the upper layer.
    pub upper: usize,
    /// Offset of the byte that names the upper layer.
    pub names_upper: usize,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Type of service or traffic class.
    pub traffic_class: u8,
    /// Part of a datagram that the packet is.
    pub part: Part,
    /// Number of a fragment's datagram; 0 if the packet is whole.
    pub identification: u32,
    /// Offset and length of a fragment's data in the datagram, and whether more follows.
    pub data: (usize, usize, bool),
    /// Set if routers may not fragment it.
    pub dont_fragment: bool,
}

/// The reasons to drop a packet: each of them is true of it.
pub type Defects = BTreeSet<DropReason>;

/// Extent of a packet that there is to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// All of it, and it is to be forwarded.
    Received,
    /// A group's or broadcast packet: as received, but the address is none to forward to.
    Group,
    /// A packet that an ICMP error quotes: the end may be missing.
    Quote,
}

/// Reads a received packet.
///
/// # Errors
/// Its defects, at least one.
pub fn ip(bytes: &[u8]) -> Result<Ip, Defects> {
    read(bytes, Reading::Received)
}

/// Reads a packet to a group or another that is not to be forwarded; `None`: it cannot be told.
pub fn group(bytes: &[u8]) -> Option<Ip> {
    read(bytes, Reading::Group).ok()
}

/// The flow of the packet that an ICMP error quotes; `None`: it cannot be told.
pub fn quoted_flow(bytes: &[u8]) -> Option<Flow> {
    read(bytes, Reading::Quote).ok().map(|ip| ip.flow)
}

fn read(bytes: &[u8], reading: Reading) -> Result<Ip, Defects> {
    let mut defects = Defects::new();
    let ip = match bytes.first().map(|byte| byte >> 4) {
        Some(4) => ipv4(bytes, reading, &mut defects),
        Some(6) => ipv6(bytes, reading, &mut defects),
        Some(_) => Err(DropReason::NotIp),
        None => Err(DropReason::Malformed),
    };
    match ip {
        Ok(ip) if defects.is_empty() => Ok(ip),
        Ok(_) => Err(defects),
        Err(reason) => {
            defects.insert(reason);
            Err(defects)
        }
    }
}

/// RFC 791, RFC 1812 §5.2.2. What can be said goes to `defects`; `Err` where reading ends.
fn ipv4(bytes: &[u8], reading: Reading, defects: &mut Defects) -> Result<Ip, DropReason> {
    let header = Ipv4HeaderSlice::from_slice(bytes).map_err(|_| DropReason::Malformed)?;
    let header_bytes = header.slice().len();
    if reading == Reading::Received {
        if header.to_header().calc_header_checksum() != header.header_checksum() {
            defects.insert(DropReason::Checksum);
        }
        match source_routed(header.options()) {
            None => _ = defects.insert(DropReason::Malformed),
            Some(true) => _ = defects.insert(DropReason::SourceRoute),
            Some(false) => {}
        }
        if !may_travel_v4(header.source_addr()) || !may_travel_v4(header.destination_addr()) {
            defects.insert(DropReason::BadAddress);
        }
        if header.ttl() == 0 {
            defects.insert(DropReason::HopLimit);
        }
    }
    let total = usize::from(header.total_len());
    if total < header_bytes || (reading != Reading::Quote && total > bytes.len()) {
        return Err(DropReason::Malformed);
    }
    let packet = &bytes[..total.min(bytes.len())];
    let (offset, more) = (header.fragments_offset().byte_offset(), header.more_fragments());
    let data_bytes = total - header_bytes;
    if (more && !data_bytes.is_multiple_of(8)) || usize::from(offset) + data_bytes > 65_515 {
        return Err(DropReason::Malformed);
    }
    let part = part(offset.into(), more);
    let protocol = header.protocol().0;
    Ok(Ip {
        flow: Flow {
            family: Family::V4,
            source: header.source_addr().to_bits().into(),
            destination: header.destination_addr().to_bits().into(),
            protocol,
            upper: upper(protocol, Family::V4, &packet[header_bytes..], part, reading)?,
            opens: opens(protocol, &packet[header_bytes..], part, reading),
        },
        bytes: packet.to_vec(),
        upper: header_bytes,
        names_upper: 9,
        hop_limit: header.ttl(),
        traffic_class: header.dcp().value() << 2 | header.ecn().value(),
        part,
        identification: if part == Part::Whole { 0 } else { header.identification().into() },
        data: (offset.into(), data_bytes, more),
        dont_fragment: header.dont_fragment(),
    })
}

/// RFC 8200. As [`ipv4`].
fn ipv6(bytes: &[u8], reading: Reading, defects: &mut Defects) -> Result<Ip, DropReason> {
    let header = Ipv6HeaderSlice::from_slice(bytes).map_err(|_| DropReason::Malformed)?;
    let (source, destination) = (header.source_addr(), header.destination_addr());
    if reading == Reading::Received {
        if !may_travel_v6(source) || !may_travel_v6(destination) {
            defects.insert(DropReason::BadAddress);
        }
        if header.hop_limit() == 0 {
            defects.insert(DropReason::HopLimit);
        }
    }
    let total = 40 + usize::from(header.payload_length());
    if reading != Reading::Quote && total > bytes.len() {
        return Err(DropReason::Malformed);
    }
    let packet = &bytes[..total.min(bytes.len())];
    let mut next = header.next_header().0;
    let (mut at, mut names_next) = (40, 6);
    let (mut part, mut identification, mut data) = (Part::Whole, 0, (0, 0, false));
    let mut fragment_headers = 0;
    while matches!(next, 0 | 43 | 44 | 60 | 135 | 139 | 140) {
        if part == Part::Later {
            // RFC 4301 §7: what this is a fragment of is told only by the first fragment.
            return Err(DropReason::FragmentPorts);
        }
        let rest = &packet[at..];
        if next == 44 {
            let fragment =
                Ipv6FragmentHeaderSlice::from_slice(rest).map_err(|_| DropReason::Malformed)?;
            let offset = usize::from(fragment.fragment_offset().byte_offset());
            let (more, length) = (fragment.more_fragments(), rest.len() - 8);
            let torn = more && !length.is_multiple_of(8) && reading == Reading::Received;
            fragment_headers += 1;
            if torn || offset + length > 65_535 || fragment_headers > 1 {
                return Err(DropReason::Malformed);
            }
            part = self::part(offset, more);
            if part != Part::Whole {
                identification = fragment.identification();
                data = (offset, length, more);
            }
            next = fragment.next_header().0;
            (names_next, at) = (at, at + 8);
            continue;
        }
        let extension =
            Ipv6RawExtHeaderSlice::from_slice(rest).map_err(|_| DropReason::Malformed)?;
        if next == 0 && at != 40 {
            return Err(DropReason::Malformed);
        }
        // Segments left is the second byte behind next header and length.
        if next == 43 && extension.payload()[1] != 0 && reading == Reading::Received {
            defects.insert(DropReason::SourceRoute);
        }
        next = extension.next_header().0;
        (names_next, at) = (at, at + extension.slice().len());
    }
    Ok(Ip {
        flow: Flow {
            family: Family::V6,
            source: source.to_bits(),
            destination: destination.to_bits(),
            protocol: next,
            upper: upper(next, Family::V6, &packet[at..], part, reading)?,
            opens: opens(next, &packet[at..], part, reading),
        },
        bytes: packet.to_vec(),
        upper: at,
        names_upper: names_next,
        hop_limit: header.hop_limit(),
        traffic_class: header.traffic_class(),
        part,
        identification,
        data,
        dont_fragment: true,
    })
}

fn part(offset: usize, more: bool) -> Part {
    match (offset, more) {
        (0, false) => Part::Whole,
        (0, true) => Part::First,
        (_, _) => Part::Later,
    }
}

/// RFC 4301 §4.4.1.1: ports of the protocols that have them, type and code of ICMP.
fn upper(
    protocol: u8,
    family: Family,
    data: &[u8],
    part: Part,
    reading: Reading,
) -> Result<Upper, DropReason> {
    if part == Part::Later {
        return Ok(Upper::Fragment);
    }
    let is_icmp = protocol == if family == Family::V4 { 1 } else { 58 };
    let fixed_header = match protocol {
        6 => 20,
        17 | 136 => 8,
        33 | 132 => 12,
        _ if is_icmp => 8,
        _ => return Ok(Upper::None),
    };
    // RFC 792: a quote holds 8 bytes; so does the smallest fragment.
    let least = match (part, reading) {
        (Part::Whole, Reading::Received) => fixed_header,
        _ => 8,
    };
    if data.len() < least {
        return Err(DropReason::Malformed);
    }
    if is_icmp {
        return Ok(Upper::Icmp { kind: data[0], code: data[1] });
    }
    let number = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
    Ok(Upper::Ports { source: number(0), destination: number(2) })
}

/// Returns whether a packet is a TCP segment with SYN and without ACK (RFC 9293 §3.1), as far as it
/// is there; what an ICMP error quotes says nothing of flags.
fn opens(protocol: u8, data: &[u8], part: Part, reading: Reading) -> bool {
    let has_flags = protocol == 6 && part != Part::Later && reading != Reading::Quote;
    let Some(flags) = data.get(13).filter(|_| has_flags) else { return false };
    let (ack, syn) = (flags >> 4 & 1, flags >> 1 & 1);
    (syn, ack) == (1, 0)
}

/// Returns whether options hold LSRR (131) or SSRR (137); `None`: their lengths lie.
fn source_routed(options: &[u8]) -> Option<bool> {
    let mut found = false;
    let mut at = 0;
    while at < options.len() && options[at] != 0 {
        if options[at] == 1 {
            at += 1;
            continue;
        }
        let length = usize::from(*options.get(at + 1)?);
        if length < 2 || at + length > options.len() {
            return None;
        }
        found |= options[at] == 131 || options[at] == 137;
        at += length;
    }
    Some(found)
}

/// RFC 1812 §5.3.7: addresses that a router drops.
fn may_travel_v4(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    !(first == 0 || address.is_loopback() || address.is_multicast() || first >= 240)
}

/// RFC 4291 §2.5 and §2.7.
fn may_travel_v6(address: Ipv6Addr) -> bool {
    !(address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address.to_ipv4_mapped().is_some())
}
