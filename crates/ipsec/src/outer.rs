//! The outer headers of a tunnel: IP, and UDP where ESP travels in it. ESP header and IV follow.
//!
//! Everything that is the same in all packets of an SA is prepared once. On the path whole
//! integers are written into the frame, in byte order already, and never a struct: a struct is
//! built on the stack and reloaded wider than it was stored, which stalls.

use std::net::IpAddr;

use wire::checksum;
use wire::flow::protocol::{ESP, UDP};
use wire::{Family, Fragment, Packet};

use crate::ecn;
use crate::encapsulation::{DontFragment, Dscp, Encapsulation, Identifications, UdpPorts};
use crate::error::SaError;

/// Bytes of the outer IPv4 header: no options.
pub(crate) const V4_BYTES: usize = 20;
/// Bytes of the outer IPv6 header.
pub(crate) const V6_BYTES: usize = 40;
/// Bytes of a UDP header.
pub(crate) const UDP_BYTES: usize = 8;
/// TTL and hop limit of outer packets.
pub const HOP_LIMIT: u8 = 64;
/// Don't fragment, in flags and fragment offset of an IPv4 header. With it the identification may
/// stay 0 (RFC 6864 §4.1).
const DONT_FRAGMENT: u16 = 0x4000;

/// The fields that all outer headers of an SA share.
#[derive(Clone, Copy)]
pub(crate) struct OuterHeader {
    ip: Ip,
    udp: Option<UdpPorts>,
    /// Bits of the inner traffic class that the outer one takes over: ECN (RFC 6040 §4.1), and DSCP
    /// by option.
    copied_class: u8,
    /// Bits of the outer traffic class that are always set.
    fixed_class: u8,
    dont_fragment: DontFragment,
    pub(crate) identifications: Identifications,
    bytes: usize,
    largest_packet: usize,
}

/// The fields that all outer IP headers of an SA share.
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
        let largest_packet = match ip {
            Ip::V4 { .. } => usize::from(u16::MAX),
            Ip::V6 { .. } => V6_BYTES + usize::from(u16::MAX),
        };
        let (copied_class, fixed_class) = match dscp {
            Dscp::Copy => (u8::MAX, 0),
            Dscp::Fixed(dscp) => (ecn::MASK, dscp << 2),
        };
        let identifications = Identifications::ALL;
        Ok(OuterHeader {
            ip,
            udp,
            copied_class,
            fixed_class,
            dont_fragment,
            identifications,
            bytes,
            largest_packet,
        })
    }

    /// Bytes of the headers in front of ESP.
    #[inline]
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the largest outer packet whose header can say its length.
    #[inline]
    pub(crate) const fn largest_packet(&self) -> usize {
        self.largest_packet
    }

    /// Bytes 4 to 8 of an outer IPv4 header: identification, and whether routers may fragment the
    /// packet (RFC 4301 §8.1). `sequence` makes the identification, of use only where they may.
    #[inline(always)]
    fn fragmentation(&self, inner: &Packet, sequence: u64) -> u32 {
        let set = match self.dont_fragment {
            DontFragment::Set => true,
            DontFragment::Copy => inner.dont_fragment,
            DontFragment::Clear => false,
        };
        match set {
            true => u32::from(DONT_FRAGMENT),
            false => u32::from(self.identifications.of(sequence)) << 16,
        }
    }

    /// Writes the headers of an outer packet of `total` bytes, at most
    /// [`largest_packet`](Self::largest_packet), around `inner`, and returns what is behind them.
    /// `None` if `into` is too short.
    #[inline(always)]
    pub(crate) fn write<'p>(
        &self,
        into: &'p mut [u8],
        inner: &Packet,
        total: usize,
        sequence: u64,
    ) -> Option<&'p mut [u8]> {
        let traffic_class =
            ecn::encapsulate(inner.traffic_class) | inner.traffic_class & self.copied_class;
        let traffic_class = traffic_class | self.fixed_class;
        let behind = match self.ip {
            Ip::V4 { middle, destination, sum } => {
                let (head, behind) = into.split_first_chunk_mut::<V4_BYTES>()?;
                let low = self.fragmentation(inner, sequence);
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
                let (head, behind) = into.split_first_chunk_mut::<V6_BYTES>()?;
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
        match self.udp {
            None => Some(behind),
            Some(ports) => {
                let length = total - (self.bytes - UDP_BYTES);
                let (udp, behind) = behind.split_first_chunk_mut()?;
                *udp = udp_header(ports, length as u16);
                Some(behind)
            }
        }
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

/// Returns the offset of the UDP header in a whole IPv6 packet.
fn udp_in_v6(packet: &[u8]) -> Option<usize> {
    let parsed = wire::packet::parse(packet).ok()?;
    let is_udp = parsed.flow.family == Family::V6 && parsed.flow.protocol == UDP;
    let is_whole = parsed.fragment == Fragment::Whole && parsed.length as usize == packet.len();
    (is_udp && is_whole).then_some(usize::from(parsed.upper_offset))
}
