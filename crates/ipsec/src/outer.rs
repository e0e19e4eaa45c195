//! The outer headers of a tunnel: IP, and UDP where ESP travels in it. ESP header and IV follow.
//!
//! Everything that is the same in all packets of an SA is prepared once. On the path whole
//! integers are written into the frame, in byte order already, and never a struct: a struct is
//! built on the stack and reloaded wider than it was stored, which stalls.

use std::net::IpAddr;

use wire::checksum;
use wire::flow::protocol::{ESP, UDP};
use wire::{Family, Fragment, Packet};

use crate::encapsulation::{DontFragment, Dscp, Encapsulation, UdpPorts};
use crate::{SaError, ecn};

/// Bytes of the outer IPv4 header: no options.
const V4_BYTES: usize = 20;
/// Bytes of the outer IPv6 header.
const V6_BYTES: usize = 40;
/// Bytes of a UDP header.
pub(crate) const UDP_BYTES: usize = 8;
/// TTL and hop limit of outer packets.
const HOP_LIMIT: u8 = 64;
/// Don't fragment, in flags and fragment offset of an IPv4 header. With it the identification may
/// stay 0 (RFC 6864 §4.1).
const DONT_FRAGMENT: u16 = 0x4000;

/// What the outer headers of an SA have in common.
#[derive(Clone, Copy)]
pub(crate) struct OuterHeader {
    ip: Ip,
    udp: Option<UdpPorts>,
    dscp: Dscp,
    dont_fragment: DontFragment,
    bytes: usize,
}

/// What the outer IP headers of an SA have in common.
#[derive(Clone, Copy)]
enum Ip {
    V4 {
        /// TTL, protocol, a checksum of 0, source: bytes 8 to 16.
        middle: u64,
        /// Bytes 16 to 20.
        destination: u32,
        /// Sum of all 16-bit words but type of service, total length, identification and flags.
        sum: u32,
    },
    V6 {
        /// Source and destination as they stand in the header.
        addresses: [u8; 32],
        /// ESP or UDP.
        next_header: u8,
    },
}

/// What changes from packet to packet.
pub(crate) struct Variables {
    /// DSCP and ECN of the outer header.
    pub(crate) traffic_class: u8,
    /// Flags, fragment offset 0.
    pub(crate) flags: u16,
    /// Identification, of use only where the packet may be fragmented.
    pub(crate) identification: u16,
    /// Bytes of the whole outer packet, at most [`OuterHeader::largest_packet`].
    pub(crate) total: usize,
}

impl OuterHeader {
    /// # Errors
    /// [`SaError::MixedFamilies`].
    pub(crate) fn new(encapsulation: &Encapsulation) -> Result<OuterHeader, SaError> {
        let Encapsulation { tunnel, udp, dscp, dont_fragment, .. } = *encapsulation;
        let protocol = if udp.is_some() { UDP } else { ESP };
        let ip = match (tunnel.local, tunnel.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let (source, destination) = (local.to_bits(), remote.to_bits());
                let start = u16::from_be_bytes([HOP_LIMIT, protocol]);
                let halves = |address: u32| (address >> 16) + (address & 0xffff);
                Ip::V4 {
                    middle: u64::from(start) << 48 | u64::from(source),
                    destination,
                    sum: 0x4500 + u32::from(start) + halves(source) + halves(destination),
                }
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let mut addresses = [0; 32];
                addresses[..16].copy_from_slice(&local.octets());
                addresses[16..].copy_from_slice(&remote.octets());
                Ip::V6 { addresses, next_header: protocol }
            }
            (local, remote) => return Err(SaError::MixedFamilies { local, remote }),
        };
        let ip_bytes = match ip {
            Ip::V4 { .. } => V4_BYTES,
            Ip::V6 { .. } => V6_BYTES,
        };
        let bytes = ip_bytes + if udp.is_some() { UDP_BYTES } else { 0 };
        Ok(OuterHeader { ip, udp, dscp, dont_fragment, bytes })
    }

    /// Bytes of the headers in front of ESP.
    #[inline]
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the largest outer packet whose header can say its length.
    #[inline]
    pub(crate) const fn largest_packet(&self) -> usize {
        match (&self.ip, self.udp) {
            (Ip::V4 { .. }, _) => u16::MAX as usize,
            (Ip::V6 { .. }, _) => V6_BYTES + u16::MAX as usize,
        }
    }

    /// What a packet's outer header says of it: DSCP by option, ECN by RFC 6040 §4.1, and whether
    /// routers may fragment it (RFC 4301 §8.1). `sequence` makes the identification.
    #[inline]
    pub(crate) fn variables(&self, inner: &Packet, total: usize, sequence: u64) -> Variables {
        let dscp = match self.dscp {
            Dscp::Copy => inner.traffic_class & !ecn::MASK,
            Dscp::Fixed(dscp) => dscp << 2,
        };
        let set = match self.dont_fragment {
            DontFragment::Set => true,
            DontFragment::Copy => inner.dont_fragment,
            DontFragment::Clear => false,
        };
        Variables {
            traffic_class: dscp | ecn::encapsulate(inner.traffic_class),
            flags: if set { DONT_FRAGMENT } else { 0 },
            identification: if set { 0 } else { sequence as u16 },
            total,
        }
    }

    /// Writes the headers to the start of `packet`. `None` if it is too short.
    #[inline]
    pub(crate) fn write(&self, packet: &mut [u8], variables: &Variables) -> Option<()> {
        let Variables { traffic_class, flags, identification, total } = *variables;
        let behind = match self.ip {
            Ip::V4 { middle, destination, sum } => {
                let (head, behind) = packet.split_first_chunk_mut::<V4_BYTES>()?;
                let low = u32::from(identification) << 16 | u32::from(flags);
                // Eleven words and the class: far from overflowing 32 bits, so two folds are
                // enough.
                let sum =
                    sum + u32::from(traffic_class) + total as u32 + (low >> 16) + (low & 0xffff);
                let sum = (sum & 0xffff) + (sum >> 16);
                let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
                let start = 0x45 << 56
                    | u64::from(traffic_class) << 48
                    | (total as u64) << 32
                    | u64::from(low);
                head[..8].copy_from_slice(&start.to_be_bytes());
                head[8..16].copy_from_slice(&(middle | u64::from(checksum) << 32).to_be_bytes());
                head[16..].copy_from_slice(&destination.to_be_bytes());
                behind
            }
            Ip::V6 { ref addresses, next_header } => {
                let (head, behind) = packet.split_first_chunk_mut::<V6_BYTES>()?;
                let start = 6 << 60
                    | u64::from(traffic_class) << 52
                    | ((total - V6_BYTES) as u64) << 16
                    | u64::from(next_header) << 8
                    | u64::from(HOP_LIMIT);
                head[..8].copy_from_slice(&start.to_be_bytes());
                head[8..].copy_from_slice(addresses);
                behind
            }
        };
        if let Some(ports) = self.udp {
            let length = total - (self.bytes - UDP_BYTES);
            *behind.first_chunk_mut()? = udp_header(ports, length as u16);
        }
        Some(())
    }

    /// The family of the outer packets.
    #[inline]
    pub(crate) const fn family(&self) -> Family {
        match self.ip {
            Ip::V4 { .. } => Family::V4,
            Ip::V6 { .. } => Family::V6,
        }
    }
}

/// A UDP header with a checksum of 0, which says that there is none (RFC 3948 §2.1). `length` is
/// that of the UDP header and all behind it, bytes.
#[inline]
pub(crate) fn udp_header(ports: UdpPorts, length: u16) -> [u8; UDP_BYTES] {
    let header = u64::from(ports.local) << 48 | u64::from(ports.remote) << 32;
    (header | u64::from(length) << 16).to_be_bytes()
}

/// Fills in the checksum of an IPv6 packet's UDP header, which must not be 0 (RFC 8200 §8.1):
/// `packet` begins with the IPv6 header and ends with the datagram; in transport mode extension
/// headers may stand between them. After the cipher, whose text it covers. `false`: it is no such
/// packet, and nothing was written.
pub fn finish_udp(packet: &mut [u8]) -> bool {
    let Some(start) = udp_in_v6(packet) else { return false };
    let (head, datagram) = packet.split_at_mut(start);
    datagram[6..8].fill(0);
    let sum = checksum::sum(&head[8..V6_BYTES])
        + datagram.len() as u64
        + u64::from(UDP)
        + checksum::sum(datagram);
    let checksum = match checksum::finish(sum) {
        0 => 0xffff, // RFC 768: 0 would say that there is none
        checksum => checksum,
    };
    datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// Where the UDP header of a whole IPv6 packet is.
fn udp_in_v6(packet: &[u8]) -> Option<usize> {
    let parsed = wire::packet::parse(packet).ok()?;
    let is_udp = parsed.flow.family == Family::V6 && parsed.flow.protocol == UDP;
    let is_whole = parsed.fragment == Fragment::Whole && parsed.length as usize == packet.len();
    (is_udp && is_whole).then_some(usize::from(parsed.upper_offset))
}
