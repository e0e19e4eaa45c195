//! ESP as it arrives and leaves: alone or in UDP (RFC 3948), around whole packets or, in transport
//! mode, around our own upper layers.

use std::ops::Range;

use ipsec::{InboundSa, Payload};
use wire::flow::protocol;
use wire::{Fragment, Frames, Packet, Upper, UpperChecksum};

use crate::row::{Carrier, Row, State};
use crate::verdict::DropReason;

/// Bytes of a UDP header.
const UDP_BYTES: usize = 8;
/// Payload of a NAT keepalive (RFC 3948 §2.3).
pub(crate) const KEEPALIVE: [u8; 1] = [0xff];

/// Returns the state of a packet to us that is ESP, or UDP to port 4500, which ESP shares with IKE
/// and keepalives (RFC 3948 §2).
///
/// # Errors
/// A keepalive, or a fragment of ESP: dropped.
pub(crate) fn state(bytes: &[u8], packet: &Packet) -> Result<State, DropReason> {
    if packet.flow.protocol == protocol::UDP {
        let payload = in_udp(bytes, packet).unwrap_or_default();
        if payload == KEEPALIVE {
            return Err(DropReason::Keepalive);
        }
        // IKE begins with four zero bytes where ESP has its SPI; what is too short to tell is
        // judged like any other packet.
        if payload.first_chunk().is_none_or(|marker: &[u8; 4]| *marker == [0; 4]) {
            return Ok(State::Clear);
        }
    }
    match packet.fragment {
        Fragment::Whole => Ok(State::Outer(carrier(packet))),
        Fragment::First | Fragment::Later => Err(DropReason::EspFragment),
    }
}

/// The form in which a packet that is ESP carries another one.
pub(crate) fn carrier(packet: &Packet) -> Carrier {
    match packet.flow.upper {
        Upper::Ports { source, .. } => Carrier::EspInUdp { source },
        _ => Carrier::Esp,
    }
}

/// Returns the payload of a UDP datagram, by its own length; `None`: that length does not fit the
/// packet. Of a first fragment it is as much as there is.
fn in_udp<'b>(bytes: &'b [u8], packet: &Packet) -> Option<&'b [u8]> {
    let datagram = bytes.get(usize::from(packet.upper_offset)..packet.length as usize)?;
    let length = match packet.fragment {
        Fragment::Whole => u16::from_be_bytes([*datagram.get(4)?, *datagram.get(5)?]).into(),
        Fragment::First | Fragment::Later => datagram.len(),
    };
    datagram.get(UDP_BYTES..length)
}

/// Returns the offsets in a packet at which ESP begins and ends. `None`: it is not there.
pub(crate) fn place(bytes: &[u8], packet: &Packet, carrier: Carrier) -> Option<(usize, usize)> {
    let start = usize::from(packet.upper_offset);
    match carrier {
        Carrier::Esp => Some((start, packet.length as usize)),
        Carrier::EspInUdp { .. } => {
            let length = in_udp(bytes, packet)?.len();
            let start = start + UDP_BYTES;
            Some((start, start + length))
        }
    }
}

/// Returns the sender's address and UDP port, if an opened packet came from elsewhere than its SA
/// says.
pub(crate) fn elsewhere(
    sa: &InboundSa,
    carrier: Carrier,
    packet: &Packet,
) -> Option<(wire::Address, u16)> {
    let (Some(ports), Carrier::EspInUdp { source }) = (sa.encapsulation.udp, carrier) else {
        return None;
    };
    let address = packet.flow.source_address();
    let moved = address != sa.tunnel().remote.into() || source != ports.remote;
    moved.then_some((address, source))
}

/// Makes what an opened packet carried the row's packet.
///
/// # Errors
/// The reason why it is dropped.
pub(crate) fn decapsulate<F: Frames>(
    frames: &mut F,
    row: &mut Row,
    payload: Payload,
) -> Result<(), DropReason> {
    match payload {
        Payload::Packet(inner) => {
            let bytes = frames.bytes(row.frame);
            let bytes = bytes.get(inner.offset..inner.offset + inner.length).unwrap_or_default();
            row.packet = wire::packet::parse(bytes)?;
            row.ip = inner.offset as u32;
            match row.packet.flow.family == inner.family {
                true => Ok(()),
                false => Err(DropReason::Malformed),
            }
        }
        Payload::Upper { protocol, offset, length } => {
            restore_packet(frames.bytes_mut(row.frame), row, protocol, offset..offset + length)
        }
    }
}

/// Restores a packet that came in transport mode: `upper` is the place of its upper layer, of this
/// protocol, in the frame.
///
/// # Errors
/// The reason why it is dropped.
#[cold]
fn restore_packet(
    frame: &mut [u8],
    row: &mut Row,
    protocol: u8,
    upper: Range<usize>,
) -> Result<(), DropReason> {
    let (end, in_udp) = (upper.end, row.packet.flow.protocol == protocol::UDP);
    let start = ipsec::esp::restore(frame, row.ip as usize, &row.packet, protocol, upper)
        .ok_or(DropReason::Malformed)?;
    let bytes = frame.get_mut(start..end).ok_or(DropReason::Malformed)?;
    row.packet = wire::packet::parse(bytes)?;
    row.ip = start as u32;
    if in_udp {
        mend_checksum(bytes, &row.packet);
    }
    Ok(())
}

/// Makes the upper layer's checksum right for the addresses that a NAT has put in the place of
/// those it was made with (RFC 3948 §3.1.2, second way: the packet is authentic, so its checksum
/// is made anew).
#[cold]
fn mend_checksum(bytes: &mut [u8], packet: &Packet) {
    // What is no datagram by its own length stays as it is: the receiver drops it.
    if let Some(checksum) = UpperChecksum::find(bytes, packet)
        && !checksum.is_left_out(packet.flow.family)
    {
        checksum.complete(bytes);
    }
}
