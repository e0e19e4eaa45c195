//! Transport mode (RFC 4303 §3.1.1): ESP between a packet's own IP header and its upper layer.
//!
//! The sealed or opened bytes do not move; the IP header, with its options or extension headers,
//! moves to where ESP begins, or back to where the upper layer begins.

use std::ops::Range;

use wire::flow::protocol::{ESP, NONE, UDP};
use wire::packet::{IPV6_BYTES, upper_next_header};
use wire::{Family, Fragment, Packet, checksum};

use super::write_trailer;
use crate::layout::Sizes;
use crate::outer::{UDP_BYTES, udp_header};
use crate::{OutboundSa, SealJob};

impl OutboundSa {
    /// [`OutboundSa::encapsulate`] in transport mode.
    #[cold]
    pub(super) fn around_upper_layer(
        &self,
        mut job: SealJob,
        frame: &mut [u8],
        ip: usize,
        packet: &Packet,
        sequence: u64,
    ) -> Option<(SealJob, Range<usize>)> {
        // RFC 4301 §4.1: between the two ends themselves, and only whole packets (§7).
        let ends = self.encapsulation.tunnel;
        let between = packet.flow.source_address() == ends.local.into()
            && packet.flow.destination_address() == ends.remote.into();
        // §2.6 of RFC 4303: the receiver would take a packet without an upper layer for a dummy.
        let carries_nothing = packet.flow.protocol == NONE;
        if !between || packet.fragment != Fragment::Whole || carries_nothing {
            return None;
        }
        let Sizes { front, icv, .. } = self.sizes;
        let header = usize::from(packet.upper_offset);
        let payload = (packet.length as usize).checked_sub(header)?;
        let text_length = self.sizes.text(payload);
        let total = header + front + text_length + icv;
        if total > self.outer.largest_packet() {
            return None;
        }
        let start = ip.checked_sub(front)?;
        let end = start.checked_add(total)?;
        u32::try_from(end).ok()?;
        let whole = frame.get_mut(start..end)?;
        let next_header = upper_next_header(whole.get(front..)?, packet)?;
        whole.copy_within(front..front + header, 0);
        let (own, behind) = whole.split_at_mut_checked(header)?;
        let carries = if self.encapsulation.udp.is_some() { UDP } else { ESP };
        rewrite(own, packet.flow.family, next_header, carries, total)?;
        let mut esp = 0;
        if let Some(ports) = self.encapsulation.udp {
            let length = u16::try_from(total - header).ok()?;
            *behind.first_chunk_mut()? = udp_header(ports, length);
            esp = UDP_BYTES;
        }
        let nonce = self.cipher.nonce(sequence);
        let (head, upper) = behind.split_at_mut_checked(front)?;
        self.write_esp_header(head.get_mut(esp..)?, sequence, nonce)?;
        write_trailer(upper.get_mut(payload..)?, text_length - payload, packet.flow.protocol)?;
        job.aad = (start + header + esp) as u32;
        job.text = (start + header + front) as u32;
        job.text_length = text_length as u32;
        job.nonce = nonce.to_ne_bytes();
        job.sequence = sequence;
        Some((job, start..end))
    }
}

/// Puts a packet together again that came in transport mode: `packet` is the one that carried it,
/// its IP header at `ip`; `upper` the place of its upper layer in the frame, `protocol` that
/// layer's. The header moves to in front of it. Returns where the packet begins.
///
/// `None`: the parts do not lie in the frame, or the header does not fit them. The frame's bytes
/// are then of no use.
pub fn restore(
    frame: &mut [u8],
    ip: usize,
    packet: &Packet,
    protocol: u8,
    upper: Range<usize>,
) -> Option<usize> {
    let header = usize::from(packet.upper_offset);
    let next_header = upper_next_header(frame.get(ip..)?, packet)?;
    let start = upper.start.checked_sub(header)?;
    if start < ip || upper.end > frame.len() {
        return None;
    }
    // Where the header comes from and where it goes to, before it moves.
    frame.get(ip..ip.checked_add(header)?)?;
    frame.get(start..upper.start)?;
    let length = upper.end.checked_sub(upper.start)?.checked_add(header)?;
    frame.copy_within(ip..ip + header, start);
    let own = frame.get_mut(start..upper.start)?;
    rewrite(own, packet.flow.family, next_header, protocol, length)?;
    Some(start)
}

/// Says in an IP header what follows it and how long the packet is. `next_header` is the place of
/// the byte that names the upper layer, `length` that of the whole packet.
fn rewrite(
    header: &mut [u8],
    family: Family,
    next_header: usize,
    protocol: u8,
    length: usize,
) -> Option<()> {
    *header.get_mut(next_header)? = protocol;
    match family {
        Family::V4 => {
            let length = u16::try_from(length).ok()?;
            header.get_mut(2..4)?.copy_from_slice(&length.to_be_bytes());
            header.get_mut(10..12)?.fill(0);
            let checksum = checksum::finish(checksum::sum(header));
            header.get_mut(10..12)?.copy_from_slice(&checksum.to_be_bytes());
        }
        Family::V6 => {
            let length = u16::try_from(length.checked_sub(IPV6_BYTES)?).ok()?;
            header.get_mut(4..6)?.copy_from_slice(&length.to_be_bytes());
        }
    }
    Some(())
}
