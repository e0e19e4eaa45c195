//! Headers and trailers of an outbound tunnel SA, prepared as whole words.
//!
//! Only for AEADs and for [`Suite::Null`] in tunnel mode: their text ends on a multiple of 4 bytes,
//! and their IV is the sequence number or nothing.

use std::net::IpAddr;

use wire::flow::protocol;

use crate::encapsulation::{DontFragment, Dscp, Encapsulation, Identifications, Mode};
use crate::ids::Spi;
use crate::layout::{HEADER_BYTES, MAX_TAIL_BYTES, PADDINGS, Sizes, TRAILER_BYTES};
use crate::outer::{HOP_LIMIT, UDP_BYTES, V4_BYTES, V6_BYTES};
use crate::{ecn, suite::Suite};

/// Bytes behind a packet that a store may touch: padding, trailer, ICV, and what a store of 8 bytes
/// writes beyond a trailer without an ICV.
pub const TAIL_BYTES: usize = 3 + TRAILER_BYTES + 16;
// Behind the largest packet of a frame there is so much room.
const _: () = assert!(TAIL_BYTES <= MAX_TAIL_BYTES);

/// Bytes of the outer headers by the form of a template.
pub const OUTER_V4: usize = V4_BYTES;
/// Outer IPv4 and UDP.
pub const OUTER_V4_UDP: usize = V4_BYTES + UDP_BYTES;
/// Outer IPv6.
pub const OUTER_V6: usize = V6_BYTES;
/// Outer IPv6 and UDP.
pub const OUTER_V6_UDP: usize = V6_BYTES + UDP_BYTES;
/// Bytes of the longest outer headers, ESP header and IV.
pub const MOST_FRONT: usize = OUTER_V6_UDP + HEADER_BYTES + 8;

/// The words of an SA's headers, in the byte order of the wire once they are turned round.
#[derive(Clone, Copy)]
pub(crate) struct Template {
    /// The first 8 bytes of the IP header, without length, class bits that are copied, and
    /// identification.
    first: u64,
    /// IPv4: TTL, protocol, no checksum, source.
    second: u64,
    /// Source and destination of IPv6; in its last 4 bytes the destination of IPv4.
    addresses: [u8; 32],
    /// The UDP header without its length; 0: there is none.
    udp: u64,
    spi: u32,
    /// IPv4: sum of all words that are always the same.
    sum: u32,
    /// Bytes around the text: everything in front of it, and the ICV.
    pub(crate) around: u32,
    copied_class: u8,
    dont_fragment: DontFragment,
    pub(crate) identifications: Identifications,
    pub(crate) outer: u8,
    pub(crate) iv: u8,
}

/// ESP trailers (padding bytes 1, 2, 3, padding length, next header) as words in memory order,
/// indexed by the number of padding bytes.
pub(crate) struct Trailers(pub(crate) [u64; 4]);

impl Trailers {
    pub(crate) const V4: Trailers = Trailers::of(protocol::IPV4);
    pub(crate) const V6: Trailers = Trailers::of(protocol::IPV6);

    const fn of(next_header: u8) -> Trailers {
        let (mut trailers, mut padding) = ([0; 4], 0);
        while padding < 4 {
            let next_header = (next_header as u64) << (48 - 8 * padding);
            trailers[padding] = (PADDINGS[padding] | next_header).to_be();
            padding += 1;
        }
        Trailers(trailers)
    }
}

impl Template {
    /// `None`: the SA has no such form.
    pub(crate) fn new(
        suite: Suite,
        encapsulation: &Encapsulation,
        spi: Spi,
        sizes: Sizes,
    ) -> Option<Template> {
        let Encapsulation { mode, tunnel, udp, dscp, dont_fragment } = *encapsulation;
        let has_form = suite == Suite::Null || suite.salt_bytes() == 4;
        if mode != Mode::Tunnel || !has_form || sizes.alignment != 4 || sizes.icv > 16 {
            return None;
        }
        let protocol = if udp.is_some() { protocol::UDP } else { protocol::ESP };
        let (copied_class, fixed_class) = match dscp {
            Dscp::Copy => (u8::MAX, 0),
            Dscp::Fixed(dscp) => (ecn::MASK, dscp << 2),
        };
        let class = u64::from(fixed_class);
        let (mut addresses, mut sum, mut second) = ([0; 32], 0, 0);
        let first = match (tunnel.local, tunnel.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let start = u64::from(u16::from_be_bytes([HOP_LIMIT, protocol]));
                second = start << 48 | u64::from(local.to_bits());
                addresses[28..].copy_from_slice(&remote.octets());
                let halves = |word: u64| {
                    (word >> 48) + (word >> 32 & 0xffff) + (word >> 16 & 0xffff) + (word & 0xffff)
                };
                let fixed = 0x45 << 56 | class << 48;
                let fixed = match dont_fragment {
                    DontFragment::Set => fixed | 0x4000,
                    DontFragment::Copy | DontFragment::Clear => fixed,
                };
                let all = halves(fixed) + halves(second) + halves(u64::from(remote.to_bits()));
                sum = all as u32;
                fixed
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                addresses[..16].copy_from_slice(&local.octets());
                addresses[16..].copy_from_slice(&remote.octets());
                6 << 60 | class << 52 | u64::from(protocol) << 8 | u64::from(HOP_LIMIT)
            }
            _ => return None,
        };
        // The checksum of UDP over IPv6 is made of what the cipher has written.
        if suite == Suite::Null && udp.is_some() && tunnel.local.is_ipv6() {
            return None;
        }
        let ip = if tunnel.local.is_ipv4() { V4_BYTES } else { V6_BYTES };
        let outer = ip + if udp.is_some() { UDP_BYTES } else { 0 };
        Some(Template {
            first,
            second,
            addresses,
            udp: udp
                .map_or(0, |ports| u64::from(ports.local) << 48 | u64::from(ports.remote) << 32),
            spi: spi.value(),
            sum,
            copied_class: copied_class | ecn::MASK,
            dont_fragment,
            identifications: Identifications::ALL,
            around: (outer + HEADER_BYTES + sizes.iv + sizes.icv) as u32,
            outer: outer as u8,
            iv: sizes.iv as u8,
        })
    }

    /// Returns whether other SAs between the same ends have a part of the identifications of outer
    /// IPv4 headers.
    #[inline(always)]
    pub(crate) fn shares_identifications(&self) -> bool {
        usize::from(self.outer) <= OUTER_V4_UDP && self.identifications != Identifications::ALL
    }

    /// Writes outer headers, ESP header and IV of an outer packet of `total` bytes into `head`,
    /// which is of `OUTER`, 8 and `IV` bytes; `class` is the inner packet's traffic class. `SHARED`
    /// is what [`shares_identifications`](Self::shares_identifications) returns.
    #[inline(always)]
    pub(crate) fn write_head<const OUTER: usize, const IV: usize, const SHARED: bool>(
        &self,
        head: &mut [u8],
        (class, may_not_fragment): (u8, bool),
        total: u32,
        sequence: u64,
    ) -> Option<()> {
        let class = class & self.copied_class;
        let (outer, esp) = head.split_at_mut_checked(OUTER)?;
        let behind = if OUTER <= OUTER_V4_UDP {
            let (ip, behind) = outer.split_first_chunk_mut::<V4_BYTES>()?;
            // Identification and flags: one of them is 0.
            let (low, word) = match self.dont_fragment {
                DontFragment::Set => (0, 0),
                DontFragment::Copy if may_not_fragment => (0x4000, 0x4000),
                DontFragment::Copy | DontFragment::Clear => {
                    let identifications =
                        if SHARED { self.identifications } else { Identifications::ALL };
                    let identification = u32::from(identifications.of(sequence));
                    (identification << 16, identification)
                }
            };
            // Ten words: far from overflowing 32 bits. The carry out of the lower half of both
            // halves' sum is the one that is folded in.
            let sum = self.sum + u32::from(class) + total + word;
            let checksum = !(sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16;
            let first =
                self.first | u64::from(class) << 48 | u64::from(total) << 32 | u64::from(low);
            let second = self.second | u64::from(checksum) << 32;
            ip[..8].copy_from_slice(&first.to_be_bytes());
            ip[8..16].copy_from_slice(&second.to_be_bytes());
            ip[16..].copy_from_slice(&self.addresses[28..]);
            behind
        } else {
            let (ip, behind) = outer.split_first_chunk_mut::<V6_BYTES>()?;
            let payload = total - V6_BYTES as u32;
            let first = self.first | u64::from(class) << 52 | u64::from(payload) << 16;
            ip[..8].copy_from_slice(&first.to_be_bytes());
            ip[8..].copy_from_slice(&self.addresses);
            behind
        };
        if OUTER == OUTER_V4_UDP || OUTER == OUTER_V6_UDP {
            let ip_bytes = (OUTER - UDP_BYTES) as u32;
            let udp = self.udp | u64::from(total - ip_bytes) << 16;
            *behind.first_chunk_mut::<UDP_BYTES>()? = udp.to_be_bytes();
        }
        let header = u64::from(self.spi) << 32 | sequence & u64::from(u32::MAX);
        let (at, iv) = esp.split_first_chunk_mut::<HEADER_BYTES>()?;
        *at = header.to_be_bytes();
        if IV == 8 {
            *iv.first_chunk_mut()? = sequence.to_be_bytes();
        }
        Some(())
    }
}

/// The form of an SA's headers: constants for the code that writes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// Bytes of the outer IP and UDP headers: one of [`OUTER_V4`], [`OUTER_V4_UDP`], [`OUTER_V6`],
    /// [`OUTER_V6_UDP`].
    pub outer: usize,
    /// Bytes of the IV: 8, or 0 where there is nothing to encrypt.
    pub iv: usize,
}
