//! The outer IP header of a tunnel, with the ESP header and IV that follow it.
//!
//! Everything that is the same in all packets of an SA is prepared once. On the path whole
//! integers are written into the frame, in byte order already, and never a struct (FACTS
//! "The walk" 4). The ESP header is one store of the width in which the cipher reads it.

use std::net::IpAddr;

use wire::flow::protocol::ESP;

use crate::esp::{HEADER_BYTES, IV_BYTES};
use crate::{SaError, Tunnel};

/// Bytes of the outer IPv4 header: no options.
const V4_BYTES: usize = 20;
/// Bytes of the outer IPv6 header.
const V6_BYTES: usize = 40;
/// TTL and hop limit of outer packets.
const HOP_LIMIT: u8 = 64;
/// Flags and fragment offset of the outer IPv4 header: don't fragment. With it the
/// identification may stay 0 (RFC 6864 §4.1).
const DONT_FRAGMENT: u16 = 0x4000;

/// What the outer headers of an SA have in common.
#[derive(Clone, Copy)]
pub(crate) enum OuterHeader {
    V4 {
        /// TTL, protocol, a checksum of 0, source: bytes 8 to 16.
        middle: u64,
        /// Bytes 16 to 20.
        destination: u32,
        /// Sum of all 16-bit words but type of service and total length.
        sum: u32,
    },
    V6 {
        /// Source and destination as they stand in the header.
        addresses: [u8; 32],
    },
}

/// What changes from packet to packet.
pub(crate) struct Variables {
    /// DSCP and ECN.
    pub(crate) traffic_class: u8,
    /// Bytes of the whole outer packet, at most [`OuterHeader::largest_packet`].
    pub(crate) total: usize,
    /// SPI ‖ low half of the sequence number.
    pub(crate) esp_header: u64,
    /// The IV that the packet carries.
    pub(crate) iv: u64,
}

impl OuterHeader {
    /// # Errors
    /// [`SaError::MixedFamilies`].
    pub(crate) fn new(tunnel: Tunnel) -> Result<OuterHeader, SaError> {
        match (tunnel.local, tunnel.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let (source, destination) = (local.to_bits(), remote.to_bits());
                let start = u16::from_be_bytes([HOP_LIMIT, ESP]);
                let halves = |address: u32| (address >> 16) + (address & 0xffff);
                Ok(OuterHeader::V4 {
                    middle: u64::from(start) << 48 | u64::from(source),
                    destination,
                    sum: 0x4500
                        + u32::from(DONT_FRAGMENT)
                        + u32::from(start)
                        + halves(source)
                        + halves(destination),
                })
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let mut addresses = [0; 32];
                addresses[..16].copy_from_slice(&local.octets());
                addresses[16..].copy_from_slice(&remote.octets());
                Ok(OuterHeader::V6 { addresses })
            }
            (local, remote) => Err(SaError::MixedFamilies { local, remote }),
        }
    }

    /// Bytes of the outer IP header.
    #[inline]
    pub(crate) const fn ip_bytes(&self) -> usize {
        match self {
            OuterHeader::V4 { .. } => V4_BYTES,
            OuterHeader::V6 { .. } => V6_BYTES,
        }
    }

    /// Bytes of all that is written in front of the inner packet.
    #[inline]
    pub(crate) const fn bytes(&self) -> usize {
        self.ip_bytes() + HEADER_BYTES + IV_BYTES
    }

    /// Bytes of the largest outer packet whose header can say its length.
    #[inline]
    pub(crate) const fn largest_packet(&self) -> usize {
        match self {
            OuterHeader::V4 { .. } => u16::MAX as usize,
            OuterHeader::V6 { .. } => V6_BYTES + u16::MAX as usize,
        }
    }

    /// Writes IP header, ESP header and IV to the start of `packet`. `None` if it is too short.
    #[inline]
    pub(crate) fn write(&self, packet: &mut [u8], variables: &Variables) -> Option<()> {
        let Variables { traffic_class, total, esp_header, iv } = *variables;
        match *self {
            OuterHeader::V4 { middle, destination, sum } => {
                let head: &mut [u8; V4_BYTES + HEADER_BYTES + IV_BYTES] =
                    packet.first_chunk_mut()?;
                // Nine words and the class: far from overflowing 32 bits, so two folds are enough.
                let sum = sum + u32::from(traffic_class) + total as u32;
                let sum = (sum & 0xffff) + (sum >> 16);
                let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
                let start = 0x45 << 56
                    | u64::from(traffic_class) << 48
                    | (total as u64) << 32
                    | u64::from(DONT_FRAGMENT);
                head[..8].copy_from_slice(&start.to_be_bytes());
                head[8..16].copy_from_slice(&(middle | u64::from(checksum) << 32).to_be_bytes());
                head[16..20].copy_from_slice(&destination.to_be_bytes());
                head[20..28].copy_from_slice(&esp_header.to_be_bytes());
                head[28..].copy_from_slice(&iv.to_be_bytes());
            }
            OuterHeader::V6 { ref addresses } => {
                let head: &mut [u8; V6_BYTES + HEADER_BYTES + IV_BYTES] =
                    packet.first_chunk_mut()?;
                let start = 6 << 60
                    | u64::from(traffic_class) << 52
                    | ((total - V6_BYTES) as u64) << 16
                    | u64::from(ESP) << 8
                    | u64::from(HOP_LIMIT);
                head[..8].copy_from_slice(&start.to_be_bytes());
                head[8..40].copy_from_slice(addresses);
                head[40..48].copy_from_slice(&esp_header.to_be_bytes());
                head[48..].copy_from_slice(&iv.to_be_bytes());
            }
        }
        Some(())
    }
}
