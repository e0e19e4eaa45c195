//! Stage 1: link header, VLAN, who the frame is for, the IP header's checks; ESP to the gateway is
//! set apart.

use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use wire::flow::protocol;
use wire::link::{Link, LinkAddress, Tag, ethertype};
use wire::{Descriptor, Fragment, Frames, Packet, ParseError, Received, Upper};

use crate::addresses::{is_to_us, may_speak};
use crate::batch_context::BatchContext;
use crate::card_sas;
use crate::carve_out::{is_host_service, refused_group};
use crate::esp;
use crate::esp_fragments::Datagram;
use crate::follow;
use crate::ids::{NetdevId, PortId};
use crate::outputs::ToHost;
use crate::port::{Medium, Side};
use crate::reassemble::{self, Taken};
use crate::row::{Origin, Row, State};
use crate::snapshot::Snapshot;
use crate::verdict::{DropReason, Verdict};

/// Result of a closer look at a frame.
enum Inspection {
    /// An IP packet at this offset of the frame.
    Packet(PortId, usize, Packet),
    /// Left to Linux, because Lockgate does not forward it.
    LeftToLinux(PortId),
    /// Dropped, on the ledger of this port if it belongs to one.
    Drop(Option<PortId>, DropReason),
}

/// Parses each packet into a row; what is dropped or left to Linux ends here.
pub(crate) fn receive<F: Frames>(
    context: &mut BatchContext<'_, F>,
    netdev: NetdevId,
    packets: &[Received],
    rows: &mut Vec<Row>,
) {
    for (place, received) in (context.first as usize..).zip(packets) {
        let Received { packet: descriptor, hint } = *received;
        match look(context, netdev, &descriptor) {
            Inspection::Packet(ingress, ip, packet) => {
                let (place, ip, frame) = (place as u32, ip as u32, descriptor.frame);
                let (origin, state) = (origin_of(context.snapshot, ingress), State::Clear);
                let (echo, tenant) = (None, None);
                let row =
                    Row { place, frame, ip, hint, echo, tenant, ingress, origin, state, packet };
                match card_sas::opener(context, netdev, &row) {
                    None => take_in(context, netdev, &row, rows),
                    Some(sa) => card_sas::take_in(context, row, sa, rows),
                }
            }
            Inspection::LeftToLinux(ingress) => {
                context.counters.ledger(Some(ingress)).received += 1;
                context.out.verdicts[place] = Some(Verdict::Host);
                let packet = descriptor;
                context.out.host.push(ToHost { ingress, form: Medium::Ethernet, packet });
            }
            Inspection::Drop(ingress, reason) => {
                context.counters.ledger(ingress).received += 1;
                context.counters.drop(ingress, reason);
                context.out.verdicts[place] = Some(Verdict::Drop(reason));
                context.frames.give(descriptor.frame);
            }
        }
    }
}

/// Adds the row of an IP packet, set apart if it is sealed, or drops it.
#[inline(always)]
fn take_in<F: Frames>(
    context: &mut BatchContext<'_, F>,
    netdev: NetdevId,
    row: &Row,
    rows: &mut Vec<Row>,
) {
    match row.packet.fragment {
        Fragment::Whole if context.handing.is_some() && follow::carries_fragment(context, row) => {
            take_in_tenants(context, row, rows);
        }
        Fragment::Whole => set_apart(context, row, rows),
        Fragment::First | Fragment::Later => take_in_fragment(context, netdev, row, rows),
    }
}

/// Takes a fragment in. One whose datagram is another worker's is handed over; of a peer's ESP all
/// are put together.
#[cold]
fn take_in_fragment<F: Frames>(
    context: &mut BatchContext<'_, F>,
    netdev: NetdevId,
    row: &Row,
    rows: &mut Vec<Row>,
) {
    let mut row = *row;
    if let Some(worker) = follow::owner(context, &row) {
        return context.hand_over(&mut row, worker);
    }
    match reassemble::take_in(context, netdev, &mut row, rows) {
        Taken::Other => {
            set_apart(context, &row, rows);
            reassemble::release(context, rows);
        }
        Taken::Whole => set_apart(context, &row, rows),
        Taken::Large => rows.push(row),
        Taken::Ended => {}
    }
}

/// Takes an overlay packet in with a fragment of a tenant's datagram. One whose datagram is another
/// worker's is handed over.
#[cold]
fn take_in_tenants<F: Frames>(context: &mut BatchContext<'_, F>, row: &Row, rows: &mut Vec<Row>) {
    match follow::owner(context, row) {
        Some(worker) => context.hand_over(&mut { *row }, worker),
        None => set_apart(context, row, rows),
    }
}

/// Adds a row by what its packet carries, or drops it.
#[inline(always)]
fn set_apart<F: Frames>(context: &mut BatchContext<'_, F>, row: &Row, rows: &mut Vec<Row>) {
    let state = state_of(context, row);
    // A sealed packet is on the ledger of the worker that opens it: `decapsulate` counts it, or
    // hands it over.
    let is_the_openers = context.handing.is_some() && matches!(state, Ok(State::Outer(_)));
    if !is_the_openers {
        context.counters.ledger(Some(row.ingress)).received += 1;
    }
    match state {
        Ok(state) => rows.push(Row { state, ..*row }),
        Err(reason) => context.drop(&mut { *row }, reason),
    }
}

/// Returns the state of a packet by what it carries: ESP to us is to be opened.
///
/// # Errors
/// A keepalive, or a fragment of a stranger's ESP: dropped. A first fragment says what its datagram
/// is; of a later one of UDP only its first fragment did.
#[inline(always)]
fn state_of<F: Frames>(context: &mut BatchContext<'_, F>, row: &Row) -> Result<State, DropReason> {
    let Row { ingress, packet, .. } = row;
    let (is_esp, fragment) = (carries_esp(packet), packet.fragment);
    if !(is_esp || fragment != Fragment::Whole) || !is_to_us(context.snapshot, *ingress, packet) {
        return Ok(State::Clear);
    }
    let state = match is_esp {
        true => esp::state(row.bytes(context.frames), packet),
        false => Ok(State::Clear),
    };
    let Some(datagram) = Datagram::of(packet, *ingress) else { return state };
    let is_udp = packet.flow.protocol == protocol::UDP;
    match fragment {
        Fragment::Later if context.dropped.holds(datagram, context.now_ns) => {
            return Err(DropReason::EspFragment);
        }
        Fragment::First if state.is_err() && is_udp => {
            context.dropped.remember(datagram, context.now_ns);
        }
        Fragment::First => context.dropped.forget(datagram),
        Fragment::Whole | Fragment::Later => {}
    }
    state
}

fn look<F: Frames>(
    context: &BatchContext<'_, F>,
    netdev: NetdevId,
    descriptor: &Descriptor,
) -> Inspection {
    let untagged = context.snapshot.port_of(netdev, None);
    let start = descriptor.offset as usize;
    let end = start + descriptor.length as usize;
    let Some(bytes) = context.frames.bytes(descriptor.frame).get(start..end) else {
        return Inspection::Drop(untagged, DropReason::Oversize);
    };
    match context.snapshot.medium(netdev) {
        Some(Medium::Ethernet) => ethernet(context, netdev, bytes, start),
        Some(Medium::Ip) => match untagged {
            Some(port) => ip(port, bytes, start),
            None => Inspection::Drop(None, DropReason::Vlan),
        },
        None => Inspection::Drop(None, DropReason::Vlan),
    }
}

fn ethernet<F>(
    context: &BatchContext<'_, F>,
    netdev: NetdevId,
    bytes: &[u8],
    start: usize,
) -> Inspection {
    let Some(link) = Link::parse(bytes) else {
        return Inspection::Drop(context.snapshot.port_of(netdev, None), DropReason::Malformed);
    };
    let port = match link.tag {
        Tag::Untagged => context.snapshot.port_of(netdev, None),
        Tag::Vlan(id) => context.snapshot.port_of(netdev, Some(id)),
        Tag::Stacked => None,
    };
    let Some(port) = port else {
        return Inspection::Drop(None, DropReason::Vlan);
    };
    let info = context.snapshot.path_port(port);
    if LinkAddress::new(link.destination) != info.mac {
        return not_to_us(context, port, &link, &bytes[link.length..]);
    }
    match link.ethertype {
        ethertype::IPV4 | ethertype::IPV6 => ip(port, &bytes[link.length..], start + link.length),
        ethertype::ARP => Inspection::LeftToLinux(port),
        _ if info.side == Side::Protected => Inspection::LeftToLinux(port),
        _ => Inspection::Drop(Some(port), DropReason::NotIp),
    }
}

fn ip(port: PortId, bytes: &[u8], offset: usize) -> Inspection {
    match wire::packet::parse(bytes) {
        Ok(packet) => Inspection::Packet(port, offset, packet),
        Err(error) => Inspection::Drop(Some(port), error.into()),
    }
}

/// Frames to another link address, broadcast and multicast are never forwarded. They are Linux's on
/// a protected port; on an unprotected one a broadcast or multicast is the world's clear traffic
/// and passes only as ARP, neighbour discovery or what `allow_host` lists and no policy wants.
#[cold]
fn not_to_us<F>(
    context: &BatchContext<'_, F>,
    port: PortId,
    link: &Link,
    bytes: &[u8],
) -> Inspection {
    let info = context.snapshot.port(port);
    if info.side == Side::Protected || !link.is_group() || link.ethertype == ethertype::ARP {
        return Inspection::LeftToLinux(port);
    }
    match wire::packet::parse_group(bytes) {
        Some(flow)
            if may_speak(context.snapshot, &flow) && is_host_service(&info.allow_host, &flow) =>
        {
            match refused_group(context.snapshot, port, &flow) {
                Some(reason) => Inspection::Drop(Some(port), reason),
                None => Inspection::LeftToLinux(port),
            }
        }
        _ => Inspection::Drop(Some(port), DropReason::LinkMulticast),
    }
}

fn origin_of(snapshot: &Snapshot, ingress: PortId) -> Origin {
    match snapshot.host() == Some(ingress) {
        true => Origin::Host,
        false => Origin::Received,
    }
}

/// Returns whether a packet may be ESP, alone or in UDP.
fn carries_esp(packet: &Packet) -> bool {
    packet.flow.protocol == protocol::ESP
        || matches!(packet.flow.upper, Upper::Ports { destination: NAT_TRAVERSAL_PORT, .. })
            && packet.flow.protocol == protocol::UDP
}

impl From<ParseError> for DropReason {
    fn from(error: ParseError) -> DropReason {
        match error {
            ParseError::NotIp => DropReason::NotIp,
            ParseError::Malformed => DropReason::Malformed,
            ParseError::Checksum => DropReason::Checksum,
            ParseError::SourceRoute => DropReason::SourceRoute,
            ParseError::BadAddress => DropReason::BadAddress,
            ParseError::HopLimit => DropReason::HopLimit,
            ParseError::ProtocolElsewhere => DropReason::FragmentPorts,
        }
    }
}
