//! Fragments of outer packets: no router may report an IPv6 packet of up to 1280 bytes as too big.
//! If the sealed packet is too large for the path, the outer packet leaves in fragments
//! (RFC 2473 §7.1, RFC 4213 §3.2.1; RFC 4303 §3.3.4: in tunnel mode a gateway may fragment a
//! sealed packet). The peer reassembles the outer packet before it opens the packet.
//!
//! * A peer behind another one: only the packets of the outer layer are cut. An inner ESP packet
//!   over IPv4 above the size of the path behind the outer peer leaves with DF clear, so routers
//!   behind the outer peer may cut it. Over IPv6 no router cuts: the packet leaves whole.
//! * A tenant's IPv6 packet in an overlay packet: the limit counts the tenant's packet.
//! * Transport mode: the host's packet is cut behind ESP (RFC 4303 §3.3.4). A packet with extension
//!   headers in front of ESP stays whole.
//! * A card in crypto mode: software encrypts the packet, since nothing cuts behind a card. A card
//!   in packet mode has the SA's numbers: its sets cut nothing.
//!
//! Path MTUs come from ICMP without authentication: an observer of the path, or of the path behind
//! the outer peer, can forge the floor, and must not end IPv6 in the tunnel.
//!
//! Routers may cut the fragments again: IPv4's DF is clear. The identification of the fragments is
//! the packet's own: of IPv4 the SA's number for packets without DF (RFC 6864), of IPv6 the sum of
//! SPI and sequence number, unpredictable off the path (RFC 7739).

use ipsec::{EspHeader, OutboundSa};
use wire::flow::protocol;
use wire::packet::{IPV4_BYTES, IPV6_BYTES};
use wire::{Descriptor, Family, Frames, HEADROOM};

use crate::batch_context::BatchContext;
use crate::fragment::{self, Piece};
use crate::verdict::DropReason;

/// Bytes of the fragment header of IPv6 (RFC 8200 §4.5).
const FRAGMENT_HEADER_BYTES: usize = 8;
const UDP_BYTES: usize = 8;

/// Memory for the fragments of a packet, kept over batches.
#[derive(Default)]
pub(crate) struct Cuts {
    /// A fragment with its link header, on its way to its frame.
    bytes: Vec<u8>,
    /// The fragments, in frames of their own.
    pub(crate) pieces: Vec<Descriptor>,
}

/// A sealed packet that is to be cut.
pub(crate) struct Whole<'a> {
    /// The packet with its link header. It stays where it is.
    pub(crate) packet: Descriptor,
    /// Bytes of the link header.
    pub(crate) link: usize,
    /// Largest fragment, bytes.
    pub(crate) mtu: u32,
    /// The SA that has sealed it.
    pub(crate) sa: &'a OutboundSa,
}

impl Cuts {
    /// Cuts a packet into fragments: `pieces` are all of them, in their order. The caller keeps the
    /// packet's frame.
    ///
    /// # Errors
    /// The reason why there are none: no frame is free for one of them, or the path has no room for
    /// any data.
    #[cold]
    pub(crate) fn cut<F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        whole: &Whole<'_>,
    ) -> Result<(), DropReason> {
        self.pieces.clear();
        let cut = self.all(context, whole);
        if cut.is_err() || self.pieces.is_empty() {
            self.pieces.drain(..).for_each(|piece| context.frames.give(piece.frame));
        }
        cut.and(if self.pieces.is_empty() { Err(DropReason::TooBig) } else { Ok(()) })
    }

    fn all<F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        whole: &Whole<'_>,
    ) -> Result<(), DropReason> {
        let Whole { packet: place, link, mtu, sa } = *whole;
        let start = place.offset as usize;
        let range = start..start + place.length as usize;
        let outer = context.frames.bytes(place.frame).get(range.clone()).unwrap_or_default();
        let ip = outer.get(link..).unwrap_or_default();
        let packet = wire::packet::parse(ip)?;
        let identification = identification(sa, ip, &packet).ok_or(DropReason::Malformed)?;
        let (header, added) = match packet.flow.family {
            Family::V4 => (usize::from(packet.upper_offset), 0),
            Family::V6 => (IPV6_BYTES, FRAGMENT_HEADER_BYTES),
        };
        let total = packet.length as usize;
        for piece in fragment::cut((header, added), total, mtu as usize) {
            // Both frames lie in one memory: the fragment passes through the scratch memory.
            self.bytes.resize(link + added + total, 0);
            let frame = context.frames.bytes(place.frame);
            let (before, ip) = frame[range.clone()].split_at(link);
            self.bytes[..link].copy_from_slice(before);
            let into = &mut self.bytes[link..];
            let written = match packet.flow.family {
                Family::V4 => write_v4(into, ip, &packet, piece, identification as u16),
                Family::V6 => write_v6(into, ip, piece, identification),
            };
            let length = link + written.ok_or(DropReason::NoFrame)?;
            let frame = context.frames.take().ok_or(DropReason::NoFrame)?;
            let offset = HEADROOM - link;
            let into = context.frames.bytes_mut(frame).get_mut(offset..offset + length);
            let Some(into) = into else {
                context.frames.give(frame);
                return Err(DropReason::NoFrame);
            };
            into.copy_from_slice(&self.bytes[..length]);
            let (offset, length) = (offset as u32, length as u32);
            self.pieces.push(Descriptor { frame, offset, length });
        }
        Ok(())
    }
}

/// Clears DF in a sealed packet of IPv4, and writes the identification of the fragments.
#[cold]
pub(crate) fn let_routers_cut(sa: &OutboundSa, ip: &mut [u8]) {
    let Ok(packet) = wire::packet::parse(ip) else { return };
    if packet.flow.family == Family::V4
        && let Some(identification) = identification(sa, ip, &packet)
    {
        let header = ip.get_mut(..usize::from(packet.upper_offset));
        write_identification(header.unwrap_or_default(), identification as u16);
    }
}

/// The identification of a sealed packet's fragments; `None`: it carries no ESP.
fn identification(sa: &OutboundSa, ip: &[u8], packet: &wire::Packet) -> Option<u32> {
    let in_udp = if packet.flow.protocol == protocol::UDP { UDP_BYTES } else { 0 };
    let esp = ip.get(usize::from(packet.upper_offset) + in_udp..)?;
    let EspHeader { spi, sequence_low } = EspHeader::read(esp)?;
    Some(match packet.flow.family {
        Family::V4 => sa.identifications().of(sequence_low.into()).into(),
        Family::V6 => spi?.value().wrapping_add(sequence_low),
    })
}

/// Writes a fragment of an IPv4 packet without options, with DF clear; returns its bytes.
fn write_v4(
    into: &mut [u8],
    original: &[u8],
    packet: &wire::Packet,
    piece: Piece,
    identification: u16,
) -> Option<usize> {
    let length = fragment::write(into, original, packet, piece)?;
    write_identification(into.get_mut(..usize::from(packet.upper_offset))?, identification);
    Some(length)
}

/// Writes the identification of a header of IPv4, with DF clear.
fn write_identification(header: &mut [u8], identification: u16) {
    if header.len() < IPV4_BYTES {
        return;
    }
    header[4..6].copy_from_slice(&identification.to_be_bytes());
    header[6] &= !0x40;
    header[10..12].fill(0);
    let sum = wire::checksum::finish(wire::checksum::sum(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Writes a fragment of an IPv6 packet without extension headers (RFC 8200 §4.5); returns its
/// bytes.
fn write_v6(into: &mut [u8], original: &[u8], piece: Piece, identification: u32) -> Option<usize> {
    let (fixed, _) = original.split_first_chunk::<IPV6_BYTES>()?;
    let total = IPV6_BYTES + FRAGMENT_HEADER_BYTES + piece.length;
    let (head, data) = into.get_mut(..total)?.split_at_mut(IPV6_BYTES + FRAGMENT_HEADER_BYTES);
    head[..IPV6_BYTES].copy_from_slice(fixed);
    let payload = (FRAGMENT_HEADER_BYTES + piece.length) as u16;
    head[4..6].copy_from_slice(&payload.to_be_bytes());
    head[6] = protocol::FRAGMENT;
    let offset = (piece.from - IPV6_BYTES) as u16;
    head[IPV6_BYTES..IPV6_BYTES + 2].copy_from_slice(&[fixed[6], 0]);
    let field = offset | u16::from(piece.more);
    head[IPV6_BYTES + 2..IPV6_BYTES + 4].copy_from_slice(&field.to_be_bytes());
    head[IPV6_BYTES + 4..].copy_from_slice(&identification.to_be_bytes());
    data.copy_from_slice(original.get(piece.from..piece.from + piece.length)?);
    Some(total)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::Fragment;
    use wire::build::PacketBuilder;

    use super::*;

    proptest! {
        /// Oracle: the data of the fragments in their order is the packet's.
        #[test]
        fn fragments_of_ipv6_fit_and_hold_the_packet(
            payload in 8usize..4000, mtu in 56usize..1500, identification: u32,
        ) {
            let original = PacketBuilder::v6("2001:db8::1", "2001:db8::2")
                .traffic_class(0xb9).protocol(protocol::ESP).payload_of(payload).ip();
            let added = (IPV6_BYTES, FRAGMENT_HEADER_BYTES);
            let (mut data, mut last) = (Vec::<u8>::new(), false);
            for piece in fragment::cut(added, original.len(), mtu) {
                let mut bytes = vec![0xee; 8192];
                let length = write_v6(&mut bytes, &original, piece, identification).unwrap();
                bytes.truncate(length);
                prop_assert!(length <= mtu && !last);
                let packet = wire::packet::parse(&bytes).unwrap();
                prop_assert_eq!(packet.length as usize, length);
                prop_assert_eq!(packet.traffic_class, 0xb9);
                prop_assert_eq!(packet.flow.protocol, protocol::ESP);
                match packet.fragment_header() {
                    None => {
                        // An atomic fragment: all of the packet in one.
                        prop_assert_eq!(packet.fragment, Fragment::Whole);
                        last = true;
                    }
                    Some(header) => {
                        prop_assert_eq!(header.identification, identification);
                        prop_assert_eq!(usize::from(header.offset), data.len());
                        last = !header.more;
                    }
                }
                data.extend(&bytes[packet.upper_offset.into()..]);
            }
            prop_assert!(last);
            prop_assert_eq!(&data[..], &original[IPV6_BYTES..]);
        }
    }
}
