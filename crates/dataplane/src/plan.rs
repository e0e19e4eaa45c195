//! Stage 4: what leaves is made fit to leave: hop limit, path MTU, MSS, fragments; and each
//! departure gets its SA.

use std::iter;

use wire::flow::protocol;
use wire::icmp::{self, Error};
use wire::link::{ETHERNET_BYTES, ethertype};
use wire::packet::IPV4_BYTES;
use wire::{Address, Descriptor, Family, Fragment, FrameId, Frames, HEADROOM};

use crate::departures::Departures;
use crate::fragment::{pieces, write};
use crate::ids::{PortId, SetIndex};
use crate::limiter::RateLimiter;
use crate::mss;
use crate::outputs::ToHost;
use crate::path::{self, Exit, Protection, Way};
use crate::port::{Egress, Medium, Side};
use crate::row::{Origin, Quote, Row, State};
use crate::share;
use crate::snapshot::Snapshot;
use crate::turn::Turn;
use crate::verdict::{DropReason, Verdict};

/// Bytes in front of a packet that its outer headers begin within.
const HEADERS_BYTES: usize = 48;
/// Bytes that a packet in clear is looked at and changed in, link header included. The shortest
/// packets are longer.
const CHANGED_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES;

/// The ways that the rows before went: most packets of a batch go one of them.
#[derive(Default)]
struct Last {
    clear: Option<Way>,
    /// A set's way, at this place of the departures.
    sealed: Option<(SetIndex, u32)>,
}

/// Turns decided rows into departures. ICMP about those that cannot leave goes to `made`, as rows
/// that are to be decided in their turn; fragments become rows behind the others.
pub(crate) fn plan<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut Vec<Row>,
    made: &mut Vec<Row>,
    limiter: &mut RateLimiter,
    departures: &mut Departures,
) {
    departures.clear();
    let mut last = Last::default();
    for number in 0..rows.len() {
        let row = &mut rows[number];
        let otherwise = match row.state {
            State::Forward(egress) => {
                let way = match &mut last.clear {
                    Some(way) if way.exit.egress == egress => way,
                    other => other.insert(in_clear(turn.snapshot, egress)),
                };
                match fits(row, way.mtu) {
                    // Nothing before it waits for the cipher: it leaves at once, and in order.
                    true if departures.is_empty() => {
                        if !leave_at_once(turn, row, &way.exit) {
                            pass_on(turn, row, way);
                            path::leave_in_clear(turn, row, &way.exit);
                        }
                        continue;
                    }
                    true => {
                        pass_on(turn, row, way);
                        let place = departures.take(way);
                        departures.push(number, place);
                        continue;
                    }
                    false => *way,
                }
            }
            State::Protect(set) => {
                let place = match last.sealed {
                    Some((known, place)) if known == set => place,
                    _ => match protected(turn, set) {
                        Ok(way) => last.sealed.insert((set, departures.take(&way))).1,
                        Err(reason) => {
                            turn.drop(row, reason);
                            continue;
                        }
                    },
                };
                let way = departures.way(place);
                if fits(row, way.mtu) {
                    pass_on(turn, row, way);
                    departures.push(number, place);
                    continue;
                }
                *way
            }
            State::Host => {
                to_host(turn, row);
                continue;
            }
            State::Outer(_) | State::Clear | State::Ended => continue,
        };
        send_otherwise(turn, rows, number, otherwise, made, limiter, departures);
    }
}

fn to_host<F: Frames>(turn: &mut Turn<'_, F>, row: &mut Row) {
    turn.end(row, Verdict::Host);
    let packet = wire::Descriptor { frame: row.frame, offset: row.ip, length: row.packet.length };
    turn.out.host.push(ToHost { ingress: row.ingress, form: Medium::Ip, packet });
}

fn in_clear(snapshot: &Snapshot, egress: Egress) -> Way {
    let mtu = snapshot.path_port(egress.port).mtu;
    Way { exit: Exit::of(snapshot, egress), protection: None, mtu }
}

#[cold]
fn protected<F>(turn: &Turn<'_, F>, set: SetIndex) -> Result<Way, DropReason> {
    let sas = &turn.snapshot.set(set).outbound;
    let sa = share::sealing_sa(turn.snapshot, sas, turn.share).ok_or(DropReason::NoSa)?;
    let egress = turn.snapshot.set_egress(set).ok_or(DropReason::NoRoute)?;
    let (exit, protection) = (Exit::of(turn.snapshot, egress), Some(Protection { set, sa }));
    Ok(Way { exit, protection, mtu: turn.snapshot.set_mtu(set) })
}

/// Returns whether a row's packet may leave whole.
#[inline(always)]
fn fits(row: &Row, mtu: u32) -> bool {
    row.packet.length <= mtu && (row.packet.hop_limit > 1 || !row.origin.is_forwarded())
}

/// Returns whether a tunnel that a packet came by, or `sealed` if it leaves by one, may want its
/// MSS clamped.
#[inline(always)]
fn may_be_clamped(row: &Row, sealed: bool) -> bool {
    row.packet.flow.protocol == protocol::TCP && (sealed || matches!(row.origin, Origin::Opened(_)))
}

/// The common packet that we forward in clear, in one go: hop limit, link header, verdict. `false`:
/// it is not one, and nothing was done.
#[inline(always)]
fn leave_at_once<F: Frames>(turn: &mut Turn<'_, F>, row: &Row, exit: &Exit) -> bool {
    let Some(untagged) = &exit.untagged else { return false };
    if !row.origin.is_forwarded() || may_be_clamped(row, false) {
        return false;
    }
    let offset = row.ip.wrapping_sub(ETHERNET_BYTES as u32);
    let behind = turn.frames.bytes_mut(row.frame).get_mut(offset as usize..);
    let Some(head) = behind.and_then(<[u8]>::first_chunk_mut::<CHANGED_BYTES>) else {
        return false;
    };
    let Some((link, ip)) = head.split_first_chunk_mut::<ETHERNET_BYTES>() else { return false };
    match row.packet.flow.family {
        Family::V4 => {
            wire::packet::decrement_hop_limit(ip, Family::V4);
            untagged.write(link, ethertype::IPV4);
        }
        Family::V6 => {
            wire::packet::decrement_hop_limit(ip, Family::V6);
            untagged.write(link, ethertype::IPV6);
        }
    }
    let length = row.packet.length + ETHERNET_BYTES as u32;
    let packet = Descriptor { frame: row.frame, offset, length };
    path::leave(turn, row, exit.egress, packet, Verdict::Forward(exit.egress.port));
    true
}

/// Does a router's part for a packet that it passes on: hop limit, and the MSS for a tunnel.
#[inline(always)]
fn pass_on<F: Frames>(turn: &mut Turn<'_, F>, row: &Row, way: &Way) {
    if may_be_clamped(row, way.protection.is_some()) {
        clamp(turn, row, way);
    }
    let ip = row.ip as usize;
    let frame = turn.frames.bytes_mut(row.frame);
    if way.protection.is_some() {
        // Where the outer headers and the trailer will be written, one pass from now: stores into
        // lines that are far away hold up everything behind them.
        cpu::prefetch(frame, ip.saturating_sub(HEADERS_BYTES));
        cpu::prefetch(frame, ip + row.packet.length as usize);
    }
    if row.origin.is_forwarded() {
        let packet = frame.get_mut(ip..).unwrap_or_default();
        wire::packet::decrement_hop_limit(packet, row.packet.flow.family);
    }
}

/// Clamps the MSS of a TCP packet for the tunnels of its way that want it.
#[inline(never)]
fn clamp<F: Frames>(turn: &mut Turn<'_, F>, row: &Row, way: &Way) {
    if let Some(mtu) = tunnel_mtu(turn, row, way) {
        mss::clamp(row.bytes_mut(turn.frames), &row.packet, mtu);
    }
}

/// A packet that may not leave whole: its hop limit is used up, or it is too big.
#[cold]
fn send_otherwise<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut Vec<Row>,
    number: usize,
    way: Way,
    made: &mut Vec<Row>,
    limiter: &mut RateLimiter,
    departures: &mut Departures,
) {
    let row = &mut rows[number];
    if row.origin.is_forwarded() && row.packet.hop_limit == 1 {
        answer(turn, row, way, Error::TimeExceeded, made, limiter);
        return turn.drop(row, DropReason::HopLimit);
    }
    if row.packet.dont_fragment {
        answer(turn, row, way, Error::TooBig { mtu: way.mtu }, made, limiter);
        return turn.drop(row, DropReason::TooBig);
    }
    pass_on(turn, row, &way);
    fragment(turn, rows, number, way, departures);
}

/// Returns the MTU of the narrowest tunnel on a packet's way that wants its MSS clamped, if there
/// is one: of the one it leaves by and the one it came by (for the answers).
fn tunnel_mtu<F>(turn: &Turn<'_, F>, row: &Row, way: &Way) -> Option<u32> {
    let left_by = way.protection.map(|protection| protection.set);
    let came_by = match row.origin {
        Origin::Opened(set) => Some(set),
        _ => None,
    };
    let clamped =
        |set: SetIndex| turn.snapshot.set(set).mss_clamp.then(|| turn.snapshot.set_mtu(set));
    match (left_by.and_then(clamped), came_by.and_then(clamped)) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Replaces a packet by fragments that go its way: all of them, or none. A way too narrow for any
/// data is too narrow for the packet.
fn fragment<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut Vec<Row>,
    number: usize,
    way: Way,
    departures: &mut Departures,
) {
    let (row, first_new) = (rows[number], rows.len());
    departures.fragment.resize(MAX_FRAGMENT_BYTES, 0);
    let mut ended = Err(DropReason::TooBig);
    for piece in pieces(&row.packet, way.mtu as usize) {
        // Both frames lie in one memory: the fragment passes through the scratch memory.
        let fragment = &mut departures.fragment;
        ended = write(fragment, row.bytes(turn.frames), &row.packet, piece)
            .and_then(|length| store(turn, &fragment[..length]))
            .ok_or(DropReason::NoFrame);
        let Ok((frame, length)) = ended else { break };
        let packet = wire::Packet { length, fragment: Fragment::Later, ..row.packet };
        rows.push(Row { frame, ip: HEADROOM as u32, hint: 0, state: State::Ended, packet, ..row });
    }
    if let Err(reason) = ended {
        for piece in rows.drain(first_new..) {
            turn.frames.give(piece.frame);
        }
        return turn.drop(&mut rows[number], reason);
    }
    let taken = departures.take(&way);
    for (place, piece) in rows.iter_mut().enumerate().skip(first_new) {
        piece.place = turn.make(row.ingress);
        departures.push(place, taken);
    }
    turn.end(&mut rows[number], Verdict::Consumed);
    turn.counters.ledger(Some(row.ingress)).consumed += 1;
    turn.frames.give(row.frame);
}

/// Bytes of the largest IPv4 packet.
const MAX_FRAGMENT_BYTES: usize = 65_535;

/// Puts an IP packet that we made into a free frame, behind its headroom; returns the frame and the
/// packet's bytes. `None`: no frame is free, or it is too small.
fn store<F: Frames>(turn: &mut Turn<'_, F>, packet: &[u8]) -> Option<(FrameId, u32)> {
    let frame = turn.frames.take()?;
    let Some(into) = turn.frames.bytes_mut(frame).get_mut(HEADROOM..HEADROOM + packet.len()) else {
        turn.frames.give(frame);
        return None;
    };
    into.copy_from_slice(packet);
    Some((frame, packet.len() as u32))
}

/// Makes an ICMP error about a row's packet, if one may be made, and the rate limit lets it.
#[cold]
fn answer<F: Frames>(
    turn: &mut Turn<'_, F>,
    row: &Row,
    way: Way,
    error: Error,
    made: &mut Vec<Row>,
    limiter: &mut RateLimiter,
) {
    if !icmp::may_answer(&row.packet) {
        return;
    }
    let Some(source) = speaker(turn, row, way) else { return };
    if !limiter.allows(turn.now_ns) {
        turn.counters.icmp_limited += 1;
        return;
    }
    let mut message = [0u8; icmp::MAX_V6_BYTES];
    let written =
        icmp::write_error(&mut message, error, source, row.bytes(turn.frames), &row.packet);
    let Some(length) = written else { return };
    let Ok(packet) = wire::packet::parse(&message[..length]) else { return };
    let Some((frame, _)) = store(turn, &message[..length]) else { return };
    let quote = match row.origin {
        Origin::Opened(_) => Quote::Protected,
        _ if way.protection.is_some() => Quote::Protected,
        _ => Quote::Clear,
    };
    made.push(Row {
        place: turn.make(row.ingress),
        frame,
        ip: HEADROOM as u32,
        hint: 0,
        ingress: row.ingress,
        origin: Origin::Made(quote),
        state: State::Clear,
        packet,
    });
}

/// The address we speak from: for a sender behind a tunnel one that the tunnel's policies are
/// likely to speak of, that is one on the protected side.
fn speaker<F>(turn: &Turn<'_, F>, row: &Row, way: Way) -> Option<Address> {
    let family: Family = row.packet.flow.family;
    let snapshot = turn.snapshot;
    let own = |port: PortId| {
        snapshot.port(port).addresses.iter().copied().find(|address| address.family == family)
    };
    let inside = |port: &PortId| snapshot.path_port(*port).side == Side::Protected;
    let spoken = match row.origin {
        Origin::Opened(_) => {
            let every_port = snapshot.ports().map(|(port, _)| port);
            iter::once(way.exit.egress.port).chain(every_port).filter(inside).find_map(own)
        }
        Origin::Received | Origin::Host | Origin::Made(_) => own(row.ingress),
    };
    spoken.or_else(|| snapshot.own_address(row.ingress, family))
}
