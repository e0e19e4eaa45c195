//! The checksum of TCP and UDP: where it lies, whether it is right, how it is made.
//!
//! A sender whose device offers to compute checksums leaves the folded sum of the pseudo-header in
//! the field, not complemented (Linux: `CHECKSUM_PARTIAL`). A virtual device may pass such a packet
//! on as it is: its checksum is *unfinished*.
//!
//! Not handled here: UDP-Lite, DCCP and SCTP (another sum), fragments (one sum for all of them),
//! the headers inside a tunnel.

use crate::flow::{Family, protocol};
use crate::{Fragment, Packet, checksum};

/// The checksum of a whole TCP or UDP packet. Offsets count from the start of the IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpperChecksum {
    protocol: u8,
    /// The offset at which the upper layer begins.
    start: usize,
    /// The offset at which the upper layer ends: of UDP by its own length, which excludes padding
    /// behind it (RFC 4303 §2.7) and options (RFC 9868).
    end: usize,
    /// The offset of the checksum.
    field: usize,
    /// The field's value.
    value: u16,
    /// Sum of the pseudo-header, not folded.
    pseudo: u64,
}

impl UpperChecksum {
    /// Finds the checksum of the packet in `bytes`, which was parsed as `packet`. `None`: it is
    /// neither TCP nor UDP, it is a fragment, or its lengths contradict each other.
    #[inline]
    pub fn find(bytes: &[u8], packet: &Packet) -> Option<UpperChecksum> {
        let flow = &packet.flow;
        let start = usize::from(packet.upper_offset);
        if packet.fragment != Fragment::Whole {
            return None;
        }
        let upper = bytes.get(start..packet.length as usize)?;
        let (at, length) = match flow.protocol {
            protocol::TCP => (16, upper.len()),
            protocol::UDP => {
                let length = usize::from(u16::from_be_bytes([*upper.get(4)?, *upper.get(5)?]));
                ((8..=upper.len()).contains(&length)).then_some((6, length))?
            }
            _ => return None,
        };
        let value = u16::from_be_bytes([*upper.get(at)?, *upper.get(at + 1)?]);
        let (source, destination) = (flow.source_address(), flow.destination_address());
        Some(UpperChecksum {
            protocol: flow.protocol,
            start,
            end: start + length,
            field: start + at,
            value,
            pseudo: checksum::pseudo_header(source, destination, flow.protocol, length),
        })
    }

    /// Returns whether the sender made no checksum, which UDP may leave out: over IPv4 always (RFC
    /// 768), over IPv6 in tunnels (RFC 6935).
    #[inline]
    pub fn is_absent(&self) -> bool {
        self.protocol == protocol::UDP && self.value == 0
    }

    /// Returns whether the checksum [`is_absent`](Self::is_absent) and the family lets every sender
    /// leave it out.
    #[inline]
    pub fn is_left_out(&self, family: Family) -> bool {
        self.is_absent() && family == Family::V4
    }

    /// Returns whether the field holds the sum of the pseudo-header, as senders leave it that
    /// expect their device to do the rest. One in 65,536 finished checksums has that value too; to
    /// complete it changes nothing.
    #[inline]
    pub fn is_unfinished(&self) -> bool {
        self.value == checksum::fold(self.pseudo)
    }

    /// Returns whether the checksum is right. Cost: reads all bytes of the upper layer.
    pub fn is_good(&self, bytes: &[u8]) -> bool {
        let covered = bytes.get(self.start..self.end).unwrap_or_default();
        (self.pseudo + checksum::sum(covered)).is_multiple_of(0xffff)
    }

    /// Writes the right checksum. Cost: reads all bytes of the upper layer.
    pub fn complete(&self, bytes: &mut [u8]) {
        let Some(field) = bytes.get_mut(self.field..self.field + 2) else { return };
        field.fill(0);
        let covered = bytes.get(self.start..self.end).unwrap_or_default();
        let checksum = match checksum::finish(self.pseudo + checksum::sum(covered)) {
            // 0 would say that there is none (RFC 768).
            0 if self.protocol == protocol::UDP => 0xffff,
            checksum => checksum,
        };
        if let Some(field) = bytes.get_mut(self.field..self.field + 2) {
            field.copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
