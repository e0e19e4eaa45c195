//! Stage 5: what leaves is made fit to leave: hop limit, path MTU, MSS, fragments; and each output
//! row gets its SA.

use ipsec::{Mode, OutboundSa};
use wire::flow::protocol;
use wire::icmp::{self, Error};
use wire::packet::IPV6_BYTES;
use wire::{Address, Family, Fragment, FrameId, Frames, HEADROOM};

use crate::batch_context::BatchContext;
use crate::fragment::{Piece, pieces, write};
use crate::icmp_limiter::{IcmpKind, IcmpLimiter};
use crate::ids::{PortId, SetIndex};
use crate::mss::{self, SegmentMtu};
use crate::output_batch::OutputBatch;
use crate::output_path::{OutputPath, Protection};
use crate::outputs::ToHost;
use crate::packet_sender::PacketSender;
use crate::port::{Adjacency, Medium, Side};
use crate::row::{Origin, Quote, Row, State};
use crate::snapshot::{LEAST_MTU_V6, SetSizes, Snapshot};
use crate::verdict::{DropReason, Verdict};
use crate::{acquire, card_sas, decide, nested};

/// Turns decided rows into output rows. ICMP about those that cannot leave goes to `made`, as rows
/// that are to be decided in their turn; fragments become rows behind the others.
pub(crate) fn plan<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut Vec<Row>,
    made: &mut Vec<Row>,
    limiter: &mut IcmpLimiter,
    output_batch: &mut OutputBatch,
) {
    output_batch.clear();
    for number in 0..rows.len() {
        let row = &mut rows[number];
        let path = match row.state {
            State::Forward(adjacency) => Ok(in_clear(context.snapshot, adjacency)),
            State::Protect(set) => protected(context, set, row),
            State::Host => {
                to_host(context, row);
                continue;
            }
            State::Outer(_) | State::Large | State::Clear | State::Ended => continue,
        };
        match path {
            Ok(path) if fits(row, path.mtu) => {
                pass_on(context, row, &path);
                output_batch.push(number, &path);
            }
            Ok(path) => send_otherwise(context, rows, number, path, made, limiter, output_batch),
            Err(DropReason::NoSa) => acquire::wait(context, row),
            Err(reason) => context.drop(row, reason),
        }
    }
}

fn to_host<F: Frames>(context: &mut BatchContext<'_, F>, row: &mut Row) {
    context.end(row, Verdict::Host);
    let packet = wire::Descriptor { frame: row.frame, offset: row.ip, length: row.packet.length };
    context.out.host.push(ToHost { ingress: row.ingress, form: Medium::Ip, packet });
}

fn in_clear(snapshot: &Snapshot, adjacency: Adjacency) -> OutputPath {
    let mtu = snapshot.path_port(adjacency.port).mtu;
    OutputPath { adjacency, protection: None, mtu, cut_at: None, outer: None }
}

/// The path of a row's packet to be sealed.
fn protected<F: Frames>(
    context: &BatchContext<'_, F>,
    set: SetIndex,
    row: &Row,
) -> Result<OutputPath, DropReason> {
    let sa = context.snapshot.ready_sa(set, context.share)?;
    let adjacency = context.snapshot.sealing_adjacency(set, sa).ok_or(DropReason::NoRoute)?;
    let sizes = context.snapshot.sealing_sizes(set, sa, context.now_ns);
    let sealing = context.snapshot.outbound_sa(sa);
    let card = sealing.card;
    if let Some(seat) = card {
        if card_sas::is_spent(sealing.allowance.as_ref()) {
            return Err(DropReason::SaHardLimit);
        }
        if !card_sas::leads_there(context.snapshot, adjacency.port, seat) {
            return Err(DropReason::DevMismatch);
        }
    }
    let mtu = match row.packet.length <= sizes.whole {
        true => sizes.whole,
        false => sizes.whole.max(least_mtu(context, &sizes, sealing, row)),
    };
    let outer = context.snapshot.outer_of(set);
    if let Some(outer) = outer {
        nested::may_seal(context, card, outer)?;
    }
    let cut_at = (mtu > sizes.whole).then_some(sizes.outer);
    Ok(OutputPath { adjacency, protection: Some(Protection { set, sa, card }), mtu, cut_at, outer })
}

/// Bytes of the largest packet of a row's kind on the narrowest path, in fragments of the outer
/// packet. 0: the path alone bounds the packet.
///
/// * IPv6: the least MTU of a link.
/// * IPv6 of a tenant: the same, and the headers of the overlay packet.
/// * ESP of a peer behind this one: all. The inner layer has judged the size.
/// * IPv4: none. Its hosts obey any MTU.
#[cold]
fn least_mtu<F: Frames>(
    context: &BatchContext<'_, F>,
    sizes: &SetSizes,
    sa: &OutboundSa,
    row: &Row,
) -> u32 {
    let (Row { packet, .. }, is_possible) = (row, sizes.fragments && sizes.outer > 0);
    // Routers read extension headers in front of ESP in each fragment: such packets stay whole.
    let is_bare = match packet.flow.family {
        Family::V4 => true,
        Family::V6 => usize::from(packet.upper_offset) == IPV6_BYTES,
    };
    match row.origin {
        _ if !is_possible => 0,
        Origin::Sealed(_) => packet.length,
        _ if sa.encapsulation.mode == Mode::Transport && !is_bare => 0,
        Origin::Carried(_) => {
            let tenants = decide::tenants_packet(context.snapshot, row, row.bytes(context.frames));
            let tenants = tenants.filter(|(_, packet)| packet.flow.family == Family::V6);
            tenants.map_or(0, |(around, _)| around as u32 + LEAST_MTU_V6)
        }
        _ if packet.flow.family == Family::V4 => 0,
        _ => LEAST_MTU_V6,
    }
}

/// Returns whether a row's packet may leave whole.
fn fits(row: &Row, mtu: u32) -> bool {
    row.packet.length <= mtu && (row.packet.hop_limit > 1 || !row.origin.is_forwarded())
}

/// Does a router's part for a packet that it passes on: hop limit, and the MSS for a tunnel.
fn pass_on<F: Frames>(context: &mut BatchContext<'_, F>, row: &Row, path: &OutputPath) {
    if row.packet.flow.protocol == protocol::TCP
        && let Some(mtu) = segment_mtu(context, row, path).of(row.packet.flow.family)
    {
        mss::clamp(row.bytes_mut(context.frames), &row.packet, mtu);
    }
    if row.origin.is_forwarded() {
        wire::packet::decrement_hop_limit(row.bytes_mut(context.frames), row.packet.flow.family);
    }
}

/// A packet that may not leave whole: its hop limit is used up, or it is too big.
#[cold]
fn send_otherwise<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut Vec<Row>,
    number: usize,
    path: OutputPath,
    made: &mut Vec<Row>,
    limiter: &mut IcmpLimiter,
    output_batch: &mut OutputBatch,
) {
    let row = &mut rows[number];
    if matches!(row.origin, Origin::Sealed(_)) {
        // Ours, and cut to size before it was sealed.
        return context.drop(row, DropReason::TooBig);
    }
    if row.origin.is_forwarded() && row.packet.hop_limit == 1 {
        answer(context, row, path, Error::TimeExceeded, made, limiter);
        return context.drop(row, DropReason::HopLimit);
    }
    if matches!(row.origin, Origin::Carried(_)) {
        // RFC 7348 §4.3: outer packets are not fragmented. What is in them may be.
        if let Some(inside) = Cut::inside(context, row) {
            return fragment(context, rows, number, (path, inside), output_batch);
        }
        decide::too_big(context, row, &path, made, limiter);
        return context.drop(row, DropReason::TooBig);
    }
    if row.packet.dont_fragment {
        answer(context, row, path, Error::TooBig { mtu: path.mtu }, made, limiter);
        return context.drop(row, DropReason::TooBig);
    }
    if path.packet_card().is_some() {
        // The card would drop the pieces.
        return context.drop(row, DropReason::CardFragmentTx);
    }
    pass_on(context, row, &path);
    let whole = Cut { around: 0, packet: row.packet };
    fragment(context, rows, number, (path, whole), output_batch);
}

/// The packet that is cut into fragments: that of a row, or a tenant's in it.
struct Cut {
    /// Bytes of headers around a tenant's packet, which each fragment has.
    around: usize,
    packet: wire::Packet,
}

impl Cut {
    /// The tenant's packet in a row that goes on; `None`: it may not be fragmented.
    fn inside<F: Frames>(context: &BatchContext<'_, F>, row: &Row) -> Option<Cut> {
        let (around, packet) =
            decide::tenants_packet(context.snapshot, row, row.bytes(context.frames))?;
        (!packet.dont_fragment).then_some(Cut { around, packet })
    }

    /// Writes a fragment of `original` to the start of `into`; returns its length. `None`: it does
    /// not fit.
    fn write(&self, into: &mut [u8], original: &[u8], udp: usize, piece: Piece) -> Option<usize> {
        let Cut { around, packet } = *self;
        let (headers, rest) = into.split_at_mut_checked(around)?;
        let (original_headers, inner) = original.split_at_checked(around)?;
        let length = around + write(rest, inner, &packet, piece)?;
        if around > 0 {
            headers.copy_from_slice(original_headers);
            wire::outer::set_length(into.get_mut(..length)?, udp)?;
        }
        Some(length)
    }
}

/// Returns the MTU that clamps the MSS: of the tunnel out, and of the tunnel in (for the answers).
fn segment_mtu<F>(context: &BatchContext<'_, F>, row: &Row, path: &OutputPath) -> SegmentMtu {
    let left_by = path.protection.map(|protection| protection.set);
    let came_by = match row.origin {
        Origin::Opened(set) => Some(set),
        _ => None,
    };
    let of_set = |set| SegmentMtu::of_set(context.snapshot, set, context.now_ns);
    let both = [left_by, came_by].into_iter().flatten().map(of_set);
    both.fold(SegmentMtu::NONE, SegmentMtu::narrower)
}

/// Replaces a packet by fragments that take its path: all of them, or none. A path too narrow for
/// any data is too narrow for the packet.
fn fragment<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut Vec<Row>,
    number: usize,
    (path, cut): (OutputPath, Cut),
    output_batch: &mut OutputBatch,
) {
    let (row, first_new) = (rows[number], rows.len());
    let upper = usize::from(row.packet.upper_offset);
    output_batch.fragment.resize(MAX_FRAGMENT_BYTES, 0);
    let mut ended = Err(DropReason::TooBig);
    for piece in pieces(&cut.packet, (path.mtu as usize).saturating_sub(cut.around)) {
        // Both frames lie in one memory: the fragment passes through the scratch memory.
        let fragment = &mut output_batch.fragment;
        ended = cut
            .write(fragment, row.bytes(context.frames), upper, piece)
            .and_then(|length| store(context, &fragment[..length]))
            .ok_or(DropReason::NoFrame);
        let Ok((frame, length)) = ended else { break };
        let kind = if cut.around == 0 { Fragment::Later } else { Fragment::Whole };
        let place = wire::FragmentFields::UNKNOWN;
        let packet = wire::Packet { length, fragment: kind, fragment_fields: place, ..row.packet };
        rows.push(Row { frame, ip: HEADROOM as u32, hint: 0, state: State::Ended, packet, ..row });
    }
    if let Err(reason) = ended {
        for piece in rows.drain(first_new..) {
            context.frames.give(piece.frame);
        }
        return context.drop(&mut rows[number], reason);
    }
    for (place, piece) in rows.iter_mut().enumerate().skip(first_new) {
        piece.place = context.make(row.ingress);
        output_batch.push(place, &path);
    }
    context.end(&mut rows[number], Verdict::Consumed);
    context.counters.ledger(Some(row.ingress)).consumed += 1;
    context.frames.give(row.frame);
}

/// Bytes of the largest IPv4 packet.
const MAX_FRAGMENT_BYTES: usize = 65_535;

/// Puts an IP packet that we made into a free frame, behind its headroom; returns the frame and the
/// packet's bytes. `None`: no frame is free, or it is too small.
fn store<F: Frames>(context: &mut BatchContext<'_, F>, packet: &[u8]) -> Option<(FrameId, u32)> {
    let frame = context.frames.take()?;
    let Some(into) = context.frames.bytes_mut(frame).get_mut(HEADROOM..HEADROOM + packet.len())
    else {
        context.frames.give(frame);
        return None;
    };
    into.copy_from_slice(packet);
    Some((frame, packet.len() as u32))
}

/// Makes an ICMP error about a row's packet, if RFC 1122 and the rate limits allow one.
#[cold]
fn answer<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &Row,
    path: OutputPath,
    error: Error,
    made: &mut Vec<Row>,
    limiter: &mut IcmpLimiter,
) {
    if !icmp::may_answer(&row.packet) {
        return;
    }
    let Some(source) = speaker(context, row, path) else { return };
    let kind = match error {
        Error::TooBig { .. } => IcmpKind::TooBig,
        _ => IcmpKind::Other,
    };
    let sender = PacketSender::behind(row.ingress, row.packet.flow.source_address());
    if !limiter.allows(context.now_ns, kind, &sender) {
        context.counters.icmp_limited += 1;
        return;
    }
    let mut message = [0u8; icmp::MAX_V6_BYTES];
    let written =
        icmp::write_error(&mut message, error, source, row.bytes(context.frames), &row.packet);
    let Some(length) = written else { return };
    let Ok(packet) = wire::packet::parse(&message[..length]) else { return };
    let Some((frame, _)) = store(context, &message[..length]) else {
        context.counters.icmp_no_frame += 1;
        return;
    };
    let quote = match row.origin {
        Origin::Opened(_) => Quote::Protected,
        _ if path.protection.is_some() => Quote::Protected,
        _ => Quote::Clear,
    };
    made.push(Row {
        place: context.make(row.ingress),
        frame,
        ip: HEADROOM as u32,
        hint: 0,
        echo: None,
        tenant: None,
        ingress: row.ingress,
        origin: Origin::Made(quote),
        state: State::Clear,
        packet,
    });
}

/// The address we speak from: for a sender behind a tunnel one that the tunnel's policies are
/// likely to speak of, that is one on the protected side.
fn speaker<F>(context: &BatchContext<'_, F>, row: &Row, path: OutputPath) -> Option<Address> {
    let family: Family = row.packet.flow.family;
    let snapshot = context.snapshot;
    let own = |port: PortId| snapshot.port(port).address_of(family);
    let spoken = match row.origin {
        Origin::Opened(_) => {
            let egress = path.adjacency.port;
            let is_inside = snapshot.path_port(egress).side == Side::Protected;
            let of_egress = if is_inside { own(egress) } else { None };
            of_egress.or_else(|| snapshot.address_inside(family))
        }
        Origin::Received
        | Origin::Host
        | Origin::Made(_)
        | Origin::Sealed(_)
        | Origin::Carried(_) => own(row.ingress),
    };
    spoken.or_else(|| snapshot.own_address(row.ingress, family))
}
