//! A builder of packets for tests, benches and demonstrations: what is right by default, wrong
//! where asked.
//!
//! ```
//! use wire::build::PacketBuilder;
//! let packet = PacketBuilder::v4("10.1.0.1", "10.2.0.1").udp(1000, 53).payload_of(18).ip();
//! assert_eq!(wire::packet::parse(&packet).unwrap().length, 46);
//! ```

use alloc::vec::Vec;
use core::net::IpAddr;

use crate::checksum;
use crate::flow::{Address, Family, protocol};
use crate::link::{self, LinkAddress};
use crate::packet::{IPV4_BYTES, IPV6_BYTES};

/// The layer above IP.
#[derive(Clone, Debug)]
enum UpperSpec {
    Udp { source: u16, destination: u16 },
    Tcp { source: u16, destination: u16, flags: u8, mss: Option<u16> },
    Icmp { kind: u8, code: u8, rest: [u8; 4] },
    Raw(u8),
}

/// The content of the upper layer's checksum field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChecksumSpec {
    Right,
    Wrong,
    /// The value that a sender leaves to its device to finish: see [`crate::upper_checksum`].
    Unfinished,
    Zero,
}

/// TCP flags, RFC 9293.
pub mod tcp_flags {
    /// Synchronise.
    pub const SYN: u8 = 0x02;
    /// Acknowledge.
    pub const ACK: u8 = 0x10;
}

/// Returns an IP packet whose headers `choices` choose: each kind that a parser tells apart, in any
/// order, at the edges of its fields, up to two more than a parser takes; now and then cut short,
/// padded, or with one byte changed. For tests that compare parsers.
pub fn chosen_packet(source: Address, destination: Address, choices: &[u8]) -> Vec<u8> {
    const UPPER: [u8; 12] = [17, 6, 1, 58, 50, 51, 59, 132, 33, 136, 253, 17];
    let mut choices = choices.iter().copied();
    let mut choose = |count: usize| usize::from(choices.next().unwrap_or(0)) % count;
    let mut packet = PacketBuilder::new(source, destination);
    if source.family == Family::V4 {
        let options: [&[u8]; 6] = [&[], &[], &[], &[1], &[0x94, 4, 0, 0], &[131, 3, 4]];
        packet = packet.options(options[choose(6)]);
        let fragments = [(0, true), (1, false), (1, true), (8189, false), (8190, false)];
        if let Some((offset, more)) = fragments.get(choose(12)) {
            packet = packet.fragment(*offset, *more);
        }
    } else {
        for place in 0..[0, 0, 1, 1, 1, 2, 2, 3, 7, 8, 9, 10][choose(12)] {
            let number = match (choose(16), place) {
                (0, _) | (1..=4, 0) => protocol::HOP_BY_HOP,
                (5..=8, _) => protocol::FRAGMENT,
                (9, _) => protocol::ROUTING,
                (number @ 10..=12, _) => [135, 139, 140][number - 10],
                _ => protocol::DESTINATION,
            };
            let field = [0u16, 1, 8, 9, 0xfff8, 0xfff9, 6, 7][choose(8)].to_be_bytes();
            let rests: [&[u8]; 4] = [&[1, 4], &[4, 0], &[4, 1], &[0; 14]];
            packet = match number {
                protocol::FRAGMENT => packet.extension(number, &[field[0], field[1], 1, 2, 3, 4]),
                _ => packet.extension(number, rests[choose(4)]),
            };
        }
    }
    let mut payload: Vec<u8> = (0..[0, 7, 8, 11, 12, 19, 20, 24, 40][choose(9)]).collect();
    // The destination port of UDP, and the flags of TCP.
    let (port, flags) = ([[0, 53], [0x12, 0xb5]][choose(2)], [0x10, 2, 0x12, 0][choose(4)]);
    payload.get_mut(2..4).into_iter().for_each(|at| at.copy_from_slice(&port));
    payload.get_mut(13).into_iter().for_each(|at| *at = flags);
    let packet = packet.protocol(UPPER[choose(12)]).hop_limit([64, 1, 255, 0][choose(4)]);
    let mut bytes = packet.payload(&payload).ip();
    match (choose(8), choose(bytes.len()), choose(256)) {
        (5, kept, _) => bytes.truncate(kept),
        (6, place, value) => bytes[place] = value as u8,
        (7, padding, value) => bytes.resize(bytes.len() + padding % 8, value as u8),
        _ => {}
    }
    if let Some(header) = bytes.first_chunk_mut::<IPV4_BYTES>()
        && header[0] == 0x45
        && choose(8) != 7
    {
        header[10..12].fill(0);
        let sum = checksum::finish(checksum::sum(header));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

/// A packet in the making.
#[derive(Clone, Debug)]
pub struct PacketBuilder {
    source: Address,
    destination: Address,
    hop_limit: u8,
    traffic_class: u8,
    identification: u32,
    dont_fragment: bool,
    fragment_offset: u16,
    more_fragments: bool,
    fragment_header: bool,
    options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    upper: UpperSpec,
    payload: Vec<u8>,
    upper_checksum: ChecksumSpec,
}

impl PacketBuilder {
    /// A packet between two addresses of one family: TTL 64, protocol 253, no payload.
    pub fn new(source: Address, destination: Address) -> Self {
        PacketBuilder {
            source,
            destination,
            hop_limit: 64,
            traffic_class: 0,
            identification: 0,
            dont_fragment: false,
            fragment_offset: 0,
            more_fragments: false,
            fragment_header: false,
            options: Vec::new(),
            extensions: Vec::new(),
            upper: UpperSpec::Raw(253),
            payload: Vec::new(),
            upper_checksum: ChecksumSpec::Right,
        }
    }

    /// Makes a packet as [`PacketBuilder::new`] does, from text.
    ///
    /// # Panics
    /// If the text is not an address: this is for tests.
    pub fn between(source: &str, destination: &str) -> Self {
        let address = |text: &str| {
            let ip: IpAddr = text.parse().expect("an address written in a test");
            Address::from(ip)
        };
        PacketBuilder::new(address(source), address(destination))
    }

    /// An IPv4 packet; [`PacketBuilder::between`] under the name that says so.
    ///
    /// # Panics
    /// As [`PacketBuilder::between`].
    pub fn v4(source: &str, destination: &str) -> Self {
        PacketBuilder::between(source, destination)
    }

    /// An IPv6 packet; [`PacketBuilder::between`] under the name that says so.
    ///
    /// # Panics
    /// As [`PacketBuilder::between`].
    pub fn v6(source: &str, destination: &str) -> Self {
        PacketBuilder::between(source, destination)
    }

    /// UDP.
    pub fn udp(mut self, source: u16, destination: u16) -> Self {
        self.upper = UpperSpec::Udp { source, destination };
        self
    }

    /// TCP with ACK set.
    pub fn tcp(self, source: u16, destination: u16) -> Self {
        self.tcp_with(source, destination, tcp_flags::ACK, None)
    }

    /// TCP with these flags and perhaps an MSS option.
    pub fn tcp_with(mut self, source: u16, destination: u16, flags: u8, mss: Option<u16>) -> Self {
        self.upper = UpperSpec::Tcp { source, destination, flags, mss };
        self
    }

    /// ICMP or ICMPv6, whichever the family has; `rest` is the second word.
    pub fn icmp(mut self, kind: u8, code: u8, rest: [u8; 4]) -> Self {
        self.upper = UpperSpec::Icmp { kind, code, rest };
        self
    }

    /// Any protocol; the payload is all there is of it.
    pub fn protocol(mut self, number: u8) -> Self {
        self.upper = UpperSpec::Raw(number);
        self
    }

    /// Payload bytes.
    pub fn payload(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }

    /// A payload of `length` counting bytes.
    pub fn payload_of(mut self, length: usize) -> Self {
        self.payload = (0..length).map(|i| i as u8).collect();
        self
    }

    /// TTL or hop limit.
    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// TOS or traffic class.
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// Sets IPv4's "don't fragment".
    pub fn dont_fragment(mut self) -> Self {
        self.dont_fragment = true;
        self
    }

    /// IPv4 identification, or that of an IPv6 fragment header.
    pub fn identification(mut self, identification: u32) -> Self {
        self.identification = identification;
        self
    }

    /// Makes it a fragment. `offset` in units of 8 bytes. With an offset the upper-layer header is
    /// not written: the payload is all there is.
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        self.fragment_offset = offset;
        self.more_fragments = more;
        self.fragment_header = true;
        self
    }

    /// IPv4 options, padded with zeros to a multiple of 4.
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self.options.resize(options.len().next_multiple_of(4), 0);
        self
    }

    /// Appends an IPv6 extension header: its number and its bytes from the third on, padded with
    /// zeros to a multiple of 8.
    pub fn extension(mut self, number: u8, rest: &[u8]) -> Self {
        let mut bytes = rest.to_vec();
        bytes.resize((rest.len() + 2).next_multiple_of(8) - 2, 0);
        self.extensions.push((number, bytes));
        self
    }

    /// Makes the upper-layer checksum wrong.
    pub fn bad_upper_checksum(mut self) -> Self {
        self.upper_checksum = ChecksumSpec::Wrong;
        self
    }

    /// Leaves the upper-layer checksum to the device, as a sender with transmit offload does: the
    /// field holds the folded sum of the pseudo-header.
    pub fn unfinished_upper_checksum(mut self) -> Self {
        self.upper_checksum = ChecksumSpec::Unfinished;
        self
    }

    /// Writes 0 for the upper-layer checksum: of UDP, there is none.
    pub fn no_upper_checksum(mut self) -> Self {
        self.upper_checksum = ChecksumSpec::Zero;
        self
    }

    /// The IP packet.
    pub fn ip(&self) -> Vec<u8> {
        match self.source.family {
            Family::V4 => self.ipv4(),
            Family::V6 => self.ipv6(),
        }
    }

    /// The IP packet in an Ethernet frame.
    pub fn frame(&self, destination: [u8; 6], source: [u8; 6], vlan: Option<u16>) -> Vec<u8> {
        let ethertype = match self.source.family {
            Family::V4 => link::ethertype::IPV4,
            Family::V6 => link::ethertype::IPV6,
        };
        let mut header = [0u8; link::ETHERNET_BYTES + link::VLAN_TAG_BYTES];
        let end = header.len();
        let (to, from) = (LinkAddress::new(destination), LinkAddress::new(source));
        let start = link::write(&mut header, end, to, from, vlan, ethertype);
        let mut frame = header[start.unwrap_or(0)..].to_vec();
        frame.extend(self.ip());
        frame
    }

    fn protocol_number(&self) -> u8 {
        match self.upper {
            UpperSpec::Udp { .. } => protocol::UDP,
            UpperSpec::Tcp { .. } => protocol::TCP,
            UpperSpec::Icmp { .. } if self.source.family == Family::V4 => protocol::ICMP,
            UpperSpec::Icmp { .. } => protocol::ICMPV6,
            UpperSpec::Raw(number) => number,
        }
    }

    /// Upper-layer header and payload, with checksum.
    fn upper(&self) -> Vec<u8> {
        if self.fragment_offset != 0 {
            return self.payload.clone();
        }
        let mut bytes = Vec::new();
        let checksum_at = match &self.upper {
            UpperSpec::Udp { source, destination } => {
                bytes.extend(source.to_be_bytes());
                bytes.extend(destination.to_be_bytes());
                bytes.extend((8 + self.payload.len() as u16).to_be_bytes());
                bytes.extend([0, 0]);
                Some(6)
            }
            UpperSpec::Tcp { source, destination, flags, mss } => {
                bytes.extend(source.to_be_bytes());
                bytes.extend(destination.to_be_bytes());
                bytes.extend([0, 0, 0, 1, 0, 0, 0, 2]);
                let words = if mss.is_some() { 6 } else { 5 };
                bytes.extend([words << 4, *flags, 0x20, 0, 0, 0, 0, 0]);
                if let Some(mss) = mss {
                    bytes.extend([2, 4]);
                    bytes.extend(mss.to_be_bytes());
                }
                Some(16)
            }
            UpperSpec::Icmp { kind, code, rest } => {
                bytes.extend([*kind, *code, 0, 0]);
                bytes.extend(rest);
                Some(2)
            }
            UpperSpec::Raw(_) => None,
        };
        bytes.extend(&self.payload);
        if let Some(at) = checksum_at {
            let number = self.protocol_number();
            let pseudo = match number {
                protocol::ICMP => 0,
                _ => checksum::pseudo_header(self.source, self.destination, number, bytes.len()),
            };
            let mut value = checksum::finish(checksum::sum(&bytes) + pseudo);
            if value == 0 && number == protocol::UDP {
                value = 0xffff;
            }
            value = match self.upper_checksum {
                ChecksumSpec::Right => value,
                ChecksumSpec::Wrong => value ^ 0x1234,
                ChecksumSpec::Unfinished => checksum::fold(pseudo),
                ChecksumSpec::Zero => 0,
            };
            bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        }
        bytes
    }

    fn ipv4(&self) -> Vec<u8> {
        let upper = self.upper();
        let header_length = IPV4_BYTES + self.options.len();
        let mut bytes = Vec::with_capacity(header_length + upper.len());
        bytes.extend([0x40 | (header_length / 4) as u8, self.traffic_class]);
        bytes.extend(((header_length + upper.len()) as u16).to_be_bytes());
        bytes.extend((self.identification as u16).to_be_bytes());
        let flags = u16::from(self.dont_fragment) << 14 | u16::from(self.more_fragments) << 13;
        bytes.extend((flags | self.fragment_offset).to_be_bytes());
        bytes.extend([self.hop_limit, self.protocol_number(), 0, 0]);
        bytes.extend((self.source.value as u32).to_be_bytes());
        bytes.extend((self.destination.value as u32).to_be_bytes());
        bytes.extend(&self.options);
        let checksum = checksum::finish(checksum::sum(&bytes));
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes.extend(upper);
        bytes
    }

    fn ipv6(&self) -> Vec<u8> {
        let mut extensions = self.extensions.clone();
        if self.fragment_header {
            let field = self.fragment_offset << 3 | u16::from(self.more_fragments);
            let mut rest = field.to_be_bytes().to_vec();
            rest.extend(self.identification.to_be_bytes());
            extensions.push((protocol::FRAGMENT, rest));
        }
        let mut chain = Vec::new();
        for (i, (number, rest)) in extensions.iter().enumerate() {
            let next = extensions.get(i + 1).map_or(self.protocol_number(), |(number, _)| *number);
            let units = if *number == protocol::FRAGMENT { 0 } else { (rest.len() + 2) / 8 - 1 };
            chain.extend([next, units as u8]);
            chain.extend(rest);
        }
        chain.extend(self.upper());
        let mut bytes = Vec::with_capacity(IPV6_BYTES + chain.len());
        bytes.extend((6u32 << 28 | u32::from(self.traffic_class) << 20).to_be_bytes());
        bytes.extend((chain.len() as u16).to_be_bytes());
        bytes.push(extensions.first().map_or(self.protocol_number(), |(number, _)| *number));
        bytes.push(self.hop_limit);
        bytes.extend(self.source.value.to_be_bytes());
        bytes.extend(self.destination.value.to_be_bytes());
        bytes.extend(chain);
        bytes
    }
}
