//! Answers that the gateway itself gives inside a network: the link addresses of known endpoints,
//! and ICMP about packets that do not fit. Nothing is said to senders that the network does not
//! know.

use wire::icmp::{self, Error};
use wire::link::{self, ETHERNET_BYTES, ethertype};
use wire::outer::{self, Outer};
use wire::{Family, FrameId, Frames, HEADROOM, LinkAddress, Packet};
use wire::{arp, discovery};

use super::open::{Content, TenantFrame, open};
use crate::batch_context::BatchContext;
use crate::icmp_limiter::{IcmpKind, IcmpLimiter};
use crate::output_path::OutputPath;
use crate::overlays::{Overlay, Overlays};
use crate::packet_sender::PacketSender;
use crate::row::{Origin, Quote, Row, State};
use crate::snapshot::Snapshot;
use crate::verdict::DropReason;
use endpoints::Found;

/// The answer to a question for a link address.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// The frame of an ARP request becomes its reply in place.
    Arp(LinkAddress),
    /// The frame of an advertisement.
    Advertisement([u8; discovery::ADVERTISEMENT_BYTES]),
}

/// Returns the answer to what a tenant asks. `bytes` is the outer packet.
///
/// Of an address that only the asker has there is none: it would learn that its own address is
/// taken (RFC 5227 §2.1, RFC 4862 §5.4).
///
/// # Errors
/// The reason why it is dropped.
pub(super) fn resolve(
    overlays: &Overlays,
    frame: &TenantFrame,
    content: Content,
    bytes: &[u8],
) -> Result<Answer, DropReason> {
    let behind = frame.at as usize + frame.link.length;
    let packet = bytes.get(behind..).unwrap_or_default();
    let asks = frame.link.source;
    let has = |sender, target| {
        frame.check_address(overlays, sender)?;
        let found = frame.find(overlays, target).ok_or(DropReason::NoEndpoint)?;
        match found.host == frame.host && found.mac.bytes() == asks {
            true => Err(DropReason::NoFlooding),
            false => Ok(found.mac),
        }
    };
    match content {
        Content::Arp => {
            let request = arp::parse_request(packet).ok_or(DropReason::NoFlooding)?;
            if request.sender_mac != asks {
                return Err(DropReason::OverlaySource);
            }
            Ok(Answer::Arp(has(request.sender, request.target)?))
        }
        Content::Solicitation | Content::Packet(_) => {
            let asked = discovery::parse_solicitation(packet).ok_or(DropReason::Malformed)?;
            if asked.source_mac.is_some_and(|mac| mac != asks) {
                return Err(DropReason::OverlaySource);
            }
            let mac = has(asked.source, asked.target)?;
            Ok(Answer::Advertisement(discovery::advertisement(&asked, asks, mac)))
        }
    }
}

/// Answers a tenant that asks for a link address, in the frame in which it asked; the row goes on
/// as the packet to its host.
#[cold]
pub(super) fn answer<F: Frames>(
    context: &mut BatchContext<'_, F>,
    overlays: &Overlays,
    row: &mut Row,
    frame: &TenantFrame,
    content: Content,
) {
    let answered = resolve(overlays, frame, content, row.bytes(context.frames))
        .and_then(|answer| write_answer(context, overlays, row, frame, &answer));
    match answered {
        Ok(()) => row.origin = Origin::Carried(None),
        Err(reason) => context.drop(row, reason),
    }
}

fn write_answer<F: Frames>(
    context: &mut BatchContext<'_, F>,
    overlays: &Overlays,
    row: &mut Row,
    frame: &TenantFrame,
    answer: &Answer,
) -> Result<(), DropReason> {
    let start = (row.ip + frame.at) as usize;
    let memory = context.frames.bytes_mut(row.frame);
    let length = match answer {
        Answer::Arp(mac) => {
            let place = memory.get_mut(start..).ok_or(DropReason::Malformed)?;
            if !arp::reply_in_place(place, *mac) {
                return Err(DropReason::Malformed);
            }
            ETHERNET_BYTES + arp::BYTES
        }
        Answer::Advertisement(frame) => {
            let place = memory.get_mut(start..start + frame.len()).ok_or(DropReason::NoFrame)?;
            place.copy_from_slice(frame);
            frame.len()
        }
    };
    let overlay = overlays.overlay(frame.overlay);
    let entrance = row.packet.flow.destination_address();
    let headers = Outer {
        source: entrance,
        destination: frame.host,
        source_port: source_port(&row.packet),
        udp_port: overlay.udp_port,
        kind: overlay.kind,
        vni: frame.network.vni,
        traffic_class: 0,
        hop_limit: outer::HOP_LIMIT,
    };
    wrap(context, row, &headers, (start, length))
}

/// Writes an overlay packet's outer headers anew, for a host of the other family; the overlay
/// header's options stay behind.
#[cold]
pub(super) fn wrap_anew<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &mut Row,
    overlay: &Overlay,
    frame: &TenantFrame,
    to: Found,
) -> Result<(), DropReason> {
    let source = overlay.entrance(to.host.family).ok_or(DropReason::NoRoute)?;
    let (start, end) = (row.ip + frame.at, row.ip + row.packet.length);
    let memory = context.frames.bytes_mut(row.frame);
    let place = memory.get_mut(start as usize..).and_then(|frame| frame.first_chunk_mut::<6>());
    *place.ok_or(DropReason::Malformed)? = to.mac.bytes();
    let headers = Outer {
        source,
        destination: to.host,
        source_port: source_port(&row.packet),
        udp_port: overlay.udp_port,
        kind: overlay.kind,
        vni: frame.network.vni,
        traffic_class: row.packet.traffic_class,
        hop_limit: row.packet.hop_limit - 1,
    };
    wrap(context, row, &headers, (start as usize, (end - start) as usize))
}

/// Makes a row the outer packet with new headers in front of a tenant's frame: where it begins in
/// the frame's memory, and its length.
fn wrap<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &mut Row,
    headers: &Outer,
    (start, length): (usize, usize),
) -> Result<(), DropReason> {
    let memory = context.frames.bytes_mut(row.frame);
    let ip = headers.write(memory, start, length).ok_or(DropReason::NoFrame)?;
    let packet = memory.get(ip..start + length).ok_or(DropReason::NoFrame)?;
    row.packet = wire::packet::parse(packet)?;
    row.ip = ip as u32;
    Ok(())
}

/// UDP source port of a packet.
fn source_port(packet: &Packet) -> u16 {
    match packet.flow.upper {
        wire::Upper::Ports { source, .. } => source,
        _ => 0,
    }
}

/// Tells a tenant that its packet does not fit the way of the overlay packet that it is in, which a
/// row is and which leaves by `path` if at all: "too big" from the address that the packet was for,
/// as if its link carried less (RFC 1191, RFC 8201). It becomes a row in `made`.
#[cold]
pub(crate) fn too_big<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &Row,
    path: &OutputPath,
    made: &mut Vec<Row>,
    limiter: &mut IcmpLimiter,
) {
    let mut message = [0u8; icmp::MAX_V6_BYTES];
    let Some(about) = message_about(context, row, path, &mut message) else { return };
    let TenantMessage { headers, link, length, sender } = about;
    if !limiter.allows(context.now_ns, IcmpKind::TooBig, &sender) {
        context.counters.icmp_limited += 1;
        return;
    }
    let Some((frame, ip)) = store(context, &headers, &link, &message[..length]) else {
        context.counters.icmp_no_frame += 1;
        return;
    };
    let end = HEADROOM + headers.bytes() + ETHERNET_BYTES + length;
    let packet = context.frames.bytes(frame).get(ip..end).map(wire::packet::parse);
    let Some(Ok(packet)) = packet else { return context.frames.give(frame) };
    let quote = match path.protection {
        Some(_) => Quote::Protected,
        None => Quote::Clear,
    };
    made.push(Row {
        place: context.make(row.ingress),
        frame,
        ip: ip as u32,
        hint: 0,
        echo: None,
        tenant: None,
        ingress: row.ingress,
        origin: Origin::Made(quote),
        state: State::Clear,
        packet,
    });
}

/// The overlay, and the tenant's packet in a row that goes on, with its frame. `bytes` is the
/// row's packet.
pub(super) fn carried<'o>(
    overlays: &'o Overlays,
    row: &Row,
    bytes: &[u8],
) -> Option<(&'o Overlay, TenantFrame, Packet)> {
    let wire::Upper::Ports { destination: udp_port, .. } = row.packet.flow.upper else {
        return None;
    };
    let entrance = row.packet.flow.source_address();
    let (id, overlay) = overlays.of_entrance(udp_port, entrance)?;
    match open(overlays, (id, overlay), &row.packet, bytes).ok()? {
        (frame, Content::Packet(packet)) => Some((overlay, frame, packet)),
        _ => None,
    }
}

/// Returns where the tenant's packet begins in a row that goes on, and that packet. `bytes` is the
/// row's packet. `None`: the row has none.
#[cold]
pub(crate) fn tenants_packet(
    snapshot: &Snapshot,
    row: &Row,
    bytes: &[u8],
) -> Option<(usize, Packet)> {
    let (_, frame, packet) = carried(snapshot.overlays()?, row, bytes)?;
    Some((frame.at as usize + frame.link.length, packet))
}

/// An ICMP message to a tenant.
struct TenantMessage {
    headers: Outer,
    link: [u8; ETHERNET_BYTES],
    /// Bytes of the message.
    length: usize,
    /// The tenant.
    sender: PacketSender,
}

/// Writes the ICMP message about the tenant's packet in a row that goes on. `None`: nobody is told.
fn message_about<F: Frames>(
    context: &BatchContext<'_, F>,
    row: &Row,
    path: &OutputPath,
    message: &mut [u8],
) -> Option<TenantMessage> {
    let overlays = context.snapshot.overlays()?;
    let bytes = row.bytes(context.frames);
    let (overlay, frame, packet) = carried(overlays, row, bytes)?;
    if !icmp::may_answer(&packet) {
        return None;
    }
    let behind = frame.at as usize + frame.link.length;
    let mtu = path.mtu.saturating_sub(behind as u32);
    let (asks, quoted) = (packet.flow.source_address(), bytes.get(behind..)?);
    let speaker = packet.flow.destination_address();
    let length = icmp::write_error(message, Error::TooBig { mtu }, speaker, quoted, &packet)?;
    let back = frame.find(overlays, asks)?;
    let speaks = frame.find(overlays, speaker)?;
    let headers = Outer {
        source: overlay.entrance(back.host.family)?,
        destination: back.host,
        source_port: source_port(&row.packet),
        udp_port: overlay.udp_port,
        kind: overlay.kind,
        vni: frame.network.vni,
        traffic_class: 0,
        hop_limit: outer::HOP_LIMIT,
    };
    let mut link = [0; ETHERNET_BYTES];
    let ethertype = match packet.flow.family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    };
    link::write(&mut link, ETHERNET_BYTES, back.mac, speaks.mac, None, ethertype)?;
    let sender = PacketSender::inside(row.ingress, frame.network.vni, asks);
    Some(TenantMessage { headers, link, length, sender })
}

/// Puts an overlay packet that we make into a free frame; returns where it begins. `None`: no frame
/// is free, or it is too small.
fn store<F: Frames>(
    context: &mut BatchContext<'_, F>,
    headers: &Outer,
    link: &[u8; ETHERNET_BYTES],
    packet: &[u8],
) -> Option<(FrameId, usize)> {
    let frame = context.frames.take()?;
    let memory = context.frames.bytes_mut(frame);
    let start = HEADROOM + headers.bytes();
    let length = ETHERNET_BYTES + packet.len();
    let Some(place) = memory.get_mut(start..start + length) else {
        context.frames.give(frame);
        return None;
    };
    place[..ETHERNET_BYTES].copy_from_slice(link);
    place[ETHERNET_BYTES..].copy_from_slice(packet);
    let ip = headers.write(memory, start, length);
    if ip.is_none() {
        context.frames.give(frame);
    }
    Some((frame, ip?))
}
