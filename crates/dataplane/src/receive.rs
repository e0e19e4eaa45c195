//! Stage 1: link header, VLAN, who the frame is for, the IP header's checks.

use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use wire::flow::protocol;
use wire::link::{ETHERNET_BYTES, Link, LinkAddress, Tag, ethertype};
use wire::{Address, Descriptor, Fragment, Frames, Packet, ParseError, Received, Upper};

use crate::addresses::{is_to_us, is_to_us_as_before, may_speak};
use crate::carve_out::{is_host_service, refused_group};
use crate::esp;
use crate::esp_fragments::Datagram;
use crate::ids::{NetdevId, PortId};
use crate::outputs::ToHost;
use crate::port::{Medium, Side};
use crate::row::{Carrier, Origin, Row, State};
use crate::snapshot::Snapshot;
use crate::turn::Turn;
use crate::verdict::{DropReason, Verdict};

/// Result of a closer look at a frame.
enum Seen {
    /// An IP packet at this offset of the frame.
    Packet(PortId, usize, Packet),
    /// Not ours to forward: Linux decides.
    LeftToLinux(PortId),
    /// Dropped, on the ledger of this port if it belongs to one.
    Drop(Option<PortId>, DropReason),
}

/// Parses each packet into a row; what is dropped or left to Linux ends here.
///
/// The common packet (untagged, to us, known to the common parser) is recognised by a handful of
/// compares; a closer look is taken at all others.
pub(crate) fn receive<F: Frames>(
    turn: &mut Turn<'_, F>,
    netdev: NetdevId,
    packets: &[Received],
    rows: &mut Vec<Row>,
) {
    for Received { packet, .. } in packets {
        turn.frames.prefetch(packet.frame, packet.offset);
    }
    let common = Common::of(turn.snapshot, netdev);
    let mut common_packets = 0;
    // Sealed packets come to few of our addresses: most to the one of the packet before.
    let mut last = None;
    let sealed_is = whose_sealed(turn);
    for (place, received) in (turn.first as usize..).zip(packets) {
        let look = match &common {
            Some(common) => common.look(turn.frames, place as u32, received, rows),
            None => Look::Uncommon,
        };
        match look {
            Look::Clear => common_packets += 1,
            Look::PerhapsEsp => {
                let whose = set_apart(turn, rows, &mut last, sealed_is);
                common_packets += u64::from(whose == Whose::Ours);
            }
            Look::Uncommon => look_closer(turn, netdev, place, received, rows),
        }
    }
    if let Some(common) = common {
        turn.counters.ledger(Some(common.ingress)).received += common_packets;
    }
}

/// The untagged port of a netdev, prepared for a batch.
struct Common {
    ingress: PortId,
    origin: Origin,
    station: LinkAddress,
}

/// Result of the common look at a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// A row in clear.
    Clear,
    /// A row that may be ESP.
    PerhapsEsp,
    /// Not a common packet: look closer.
    Uncommon,
}

impl Common {
    /// `None` for a netdev without an untagged port, or without link headers.
    fn of(snapshot: &Snapshot, netdev: NetdevId) -> Option<Common> {
        let ingress = snapshot.port_of(netdev, None)?;
        let station = snapshot.path_port(ingress).mac;
        let is_ethernet = snapshot.medium(netdev) == Some(Medium::Ethernet);
        is_ethernet.then_some(Common { ingress, origin: origin_of(snapshot, ingress), station })
    }

    /// Makes a common packet a row. Each family has a way of its own from the frame to the row: a
    /// packet that could be of either would be put together on the stack and copied.
    #[inline(always)]
    fn look<F: Frames>(
        &self,
        frames: &F,
        place: u32,
        received: &Received,
        rows: &mut Vec<Row>,
    ) -> Look {
        let Received { packet: Descriptor { frame, offset, length }, hint } = *received;
        let end = offset as usize + length as usize;
        let Some(bytes) = frames.bytes(frame).get(offset as usize..end) else {
            return Look::Uncommon;
        };
        let ip = bytes.get(ETHERNET_BYTES..).unwrap_or_default();
        let row = |packet| Row {
            place,
            frame,
            ip: offset + ETHERNET_BYTES as u32,
            hint,
            ingress: self.ingress,
            origin: self.origin,
            state: State::Clear,
            packet,
        };
        let esp = match Link::ethertype_to(bytes, self.station) {
            Some(ethertype::IPV4) => {
                let Some(packet) = wire::packet::parse_common_v4(ip) else {
                    return Look::Uncommon;
                };
                rows.push(row(packet));
                carries_esp(&packet)
            }
            Some(ethertype::IPV6) => {
                let Some(packet) = wire::packet::parse_common_v6(ip) else {
                    return Look::Uncommon;
                };
                rows.push(row(packet));
                carries_esp(&packet)
            }
            _ => return Look::Uncommon,
        };
        if esp { Look::PerhapsEsp } else { Look::Clear }
    }
}

/// The worker on whose ledger a packet is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// This one's: it is counted as received.
    Ours,
    /// That of the worker that opens it: `decapsulate` counts it, or hands it over.
    TheOpeners,
}

/// Returns whose sealed packets are.
fn whose_sealed<F>(turn: &Turn<'_, F>) -> Whose {
    if turn.handing.is_some() { Whose::TheOpeners } else { Whose::Ours }
}

/// Says of the last row, which may be ESP, whether it is sealed; takes it off if it is dropped.
#[inline]
fn set_apart<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut Vec<Row>,
    last: &mut Option<(Address, bool)>,
    sealed_is: Whose,
) -> Whose {
    let Some(row) = rows.last_mut() else { return Whose::Ours };
    if !is_to_us_as_before(turn.snapshot, row.ingress, &row.packet, last) {
        return Whose::Ours;
    }
    let state =
        match row.packet.flow.protocol == protocol::ESP && row.packet.fragment == Fragment::Whole {
            true => Ok(State::Outer(Carrier::Esp)),
            false => esp::state(row.bytes(turn.frames), &row.packet),
        };
    match state {
        Ok(state) => {
            row.state = state;
            if matches!(state, State::Outer(_)) { sealed_is } else { Whose::Ours }
        }
        Err(reason) => {
            turn.drop(row, reason);
            rows.pop();
            Whose::Ours
        }
    }
}

/// Takes the last row, a fragment, off if it is one of ESP to us. A first fragment says what its
/// datagram is; of a later one of UDP only its first fragment did.
#[cold]
fn look_at_fragment<F: Frames>(turn: &mut Turn<'_, F>, rows: &mut Vec<Row>) {
    let Some(row) = rows.last_mut().filter(|row| is_to_us(turn.snapshot, row.ingress, &row.packet))
    else {
        return;
    };
    let bytes = row.bytes(turn.frames);
    let datagram = Datagram::of(bytes, &row.packet, row.ingress);
    let mut state = match carries_esp(&row.packet) {
        true => esp::state(bytes, &row.packet),
        false => Ok(State::Clear),
    };
    match (datagram, row.packet.fragment) {
        (Some(datagram), Fragment::Later) if turn.dropped.holds(datagram, turn.now_ns) => {
            state = Err(DropReason::EspFragment);
        }
        (Some(datagram), Fragment::First)
            if state.is_err() && row.packet.flow.protocol == protocol::UDP =>
        {
            turn.dropped.remember(datagram, turn.now_ns);
        }
        (Some(datagram), Fragment::First) => turn.dropped.forget(datagram),
        _ => {}
    }
    match state {
        Ok(state) => row.state = state,
        Err(reason) => {
            turn.drop(row, reason);
            rows.pop();
        }
    }
}

/// Judges a frame that is not the common packet.
#[cold]
fn look_closer<F: Frames>(
    turn: &mut Turn<'_, F>,
    netdev: NetdevId,
    place: usize,
    received: &Received,
    rows: &mut Vec<Row>,
) {
    let Received { packet: descriptor, hint } = received;
    match look(turn, netdev, descriptor) {
        Seen::Packet(ingress, ip, packet) => {
            let origin = origin_of(turn.snapshot, ingress);
            let (place, ip, frame) = (place as u32, ip as u32, descriptor.frame);
            let (hint, state) = (*hint, State::Clear);
            rows.push(Row { place, frame, ip, hint, ingress, origin, state, packet });
            let whose = match packet.fragment {
                Fragment::Whole if carries_esp(&packet) => {
                    let sealed_is = whose_sealed(turn);
                    set_apart(turn, rows, &mut None, sealed_is)
                }
                Fragment::Whole => Whose::Ours,
                Fragment::First | Fragment::Later => {
                    look_at_fragment(turn, rows);
                    Whose::Ours
                }
            };
            if whose == Whose::Ours {
                turn.counters.ledger(Some(ingress)).received += 1;
            }
        }
        Seen::LeftToLinux(ingress) => {
            turn.counters.ledger(Some(ingress)).received += 1;
            turn.out.verdicts[place] = Some(Verdict::Host);
            let packet = *descriptor;
            turn.out.host.push(ToHost { ingress, form: Medium::Ethernet, packet });
        }
        Seen::Drop(ingress, reason) => {
            turn.counters.ledger(ingress).received += 1;
            turn.counters.drop(ingress, reason);
            turn.out.verdicts[place] = Some(Verdict::Drop(reason));
            turn.frames.give(descriptor.frame);
        }
    }
}

fn look<F: Frames>(turn: &Turn<'_, F>, netdev: NetdevId, descriptor: &Descriptor) -> Seen {
    let untagged = turn.snapshot.port_of(netdev, None);
    let start = descriptor.offset as usize;
    let end = start + descriptor.length as usize;
    let Some(bytes) = turn.frames.bytes(descriptor.frame).get(start..end) else {
        return Seen::Drop(untagged, DropReason::Oversize);
    };
    match turn.snapshot.medium(netdev) {
        Some(Medium::Ethernet) => ethernet(turn, netdev, bytes, start),
        Some(Medium::Ip) => match untagged {
            Some(port) => ip(port, bytes, start),
            None => Seen::Drop(None, DropReason::Vlan),
        },
        None => Seen::Drop(None, DropReason::Vlan),
    }
}

fn ethernet<F>(turn: &Turn<'_, F>, netdev: NetdevId, bytes: &[u8], start: usize) -> Seen {
    let Some(link) = Link::parse(bytes) else {
        return Seen::Drop(turn.snapshot.port_of(netdev, None), DropReason::Malformed);
    };
    let port = match link.tag {
        Tag::Untagged => turn.snapshot.port_of(netdev, None),
        Tag::Vlan(id) => turn.snapshot.port_of(netdev, Some(id)),
        Tag::Stacked => None,
    };
    let Some(port) = port else {
        return Seen::Drop(None, DropReason::Vlan);
    };
    let info = turn.snapshot.path_port(port);
    if LinkAddress::new(link.destination) != info.mac {
        return not_to_us(turn, port, &link, &bytes[link.length..]);
    }
    match link.ethertype {
        ethertype::IPV4 | ethertype::IPV6 => ip(port, &bytes[link.length..], start + link.length),
        ethertype::ARP => Seen::LeftToLinux(port),
        _ if info.side == Side::Protected => Seen::LeftToLinux(port),
        _ => Seen::Drop(Some(port), DropReason::NotIp),
    }
}

fn ip(port: PortId, bytes: &[u8], offset: usize) -> Seen {
    match wire::packet::parse(bytes) {
        Ok(packet) => Seen::Packet(port, offset, packet),
        Err(error) => Seen::Drop(Some(port), error.into()),
    }
}

/// Frames to another link address, broadcast and multicast are never forwarded. They are Linux's on
/// a protected port; on an unprotected one a broadcast or multicast is the world's clear traffic
/// and passes only as ARP, neighbour discovery or what `allow_host` lists and no policy wants.
#[cold]
fn not_to_us<F>(turn: &Turn<'_, F>, port: PortId, link: &Link, bytes: &[u8]) -> Seen {
    let info = turn.snapshot.port(port);
    if info.side == Side::Protected || !link.is_group() || link.ethertype == ethertype::ARP {
        return Seen::LeftToLinux(port);
    }
    match wire::packet::parse_group(bytes) {
        Some(flow)
            if may_speak(turn.snapshot, &flow) && is_host_service(&info.allow_host, &flow) =>
        {
            match refused_group(turn.snapshot, port, &flow) {
                Some(reason) => Seen::Drop(Some(port), reason),
                None => Seen::LeftToLinux(port),
            }
        }
        _ => Seen::Drop(Some(port), DropReason::LinkMulticast),
    }
}

fn origin_of(snapshot: &Snapshot, ingress: PortId) -> Origin {
    match snapshot.host() == Some(ingress) {
        true => Origin::Host,
        false => Origin::Received,
    }
}

/// Returns whether a packet may be ESP, alone or in UDP.
#[inline]
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
