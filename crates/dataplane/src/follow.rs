//! Stage 3: a later fragment is judged by the upper layer of its datagram's first one (RFC 4301 §7
//! approach 3, RFC 8200 §4.5).
//!
//! **Who.** All fragments of a datagram that come in clear go to one worker, by a keyed hash of
//! source, destination, identification and (IPv4) protocol: [`owner`]. They are handed over as they
//! were received, before anything else is done with them. A fragment that an SA opened stays with
//! the worker that opened it.
//!
//! **When.** [`follow`] runs before the policies are asked. It gives a later fragment the upper
//! layer of the first; from then on the fragment is a packet like any other of that flow. One that
//! comes before its first waits for it, but only if policies want to know its upper layer: if they
//! can judge it without, it goes on at once.
//!
//! **In virtual networks** likewise: a fragment of a tenant's datagram in an overlay packet, where
//! groups of its network are asked. It is known by its network, and taken in only if its sender and
//! its destination are endpoints.

use wire::flow::protocol;
use wire::{Fragment, Frames, Packet, Upper, icmp};

use crate::batch_context::BatchContext;
use crate::decide::{decide_one, may_carry_fragment, tenants_fragment};
use crate::large_packet;
use crate::reassembly::{Answer, Datagram, First, Part, Piece, Way};
use crate::routes::RouteTarget;
use crate::row::{Origin, Row, State};
use crate::snapshot::Snapshot;
use crate::upper_layer::UpperLayer;
use crate::verdict::{DropReason, HoldKind, Verdict};

/// Bytes of TCP's header that a first fragment shows at least: its flags among them (RFC 1858 §3).
const LEAST_TCP_BYTES: u32 = 16;

/// The worker that a fragment belongs to, if it is another one and packets go over to it.
#[cold]
pub(crate) fn owner<F: Frames>(context: &BatchContext<'_, F>, row: &Row) -> Option<u32> {
    context.handing?;
    let (fragment, _) = fragment(context.snapshot, row, row.bytes(context.frames))?;
    let header = fragment.packet.fragment_header()?;
    let datagram = Datagram::of(&fragment.packet, &header, fragment.way);
    let owner = context.reassembly.owner(&datagram, context.share.workers);
    (owner != context.share.worker).then_some(owner)
}

/// Gives the later fragments among rows of IP packets the upper layer of their first ones, which
/// policies are to see.
///
/// 1. drops what has waited too long
/// 2. each fragment: an overlap, or a first one that is too small, makes its datagram invalid; an
///    exact duplicate is dropped alone
/// 3. a first one: those that waited for it follow it, as rows behind it
/// 4. a later one whose first is known goes on, one whose first is not waits, if policies want
///    to see the first
///
/// What is to be opened behind the batch goes to `later`. `spare` is scratch memory.
#[inline]
pub(crate) fn follow<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut Vec<Row>,
    spare: &mut Vec<Row>,
    later: &mut Vec<Row>,
) {
    context.reassembly.expire(context.now_ns, context.frames, context.counters);
    let has_overlays = context.snapshot.overlays().is_some();
    if rows.iter().any(is_fragment)
        || has_overlays && rows.iter().any(|row| carries_fragment(context, row))
    {
        follow_fragments(context, rows, spare, later);
    }
}

/// Returns whether a row may be an overlay packet with a fragment of a tenant's datagram, whose
/// first one is not known.
#[inline]
pub(crate) fn carries_fragment<F: Frames>(context: &BatchContext<'_, F>, row: &Row) -> bool {
    let Some(overlays) = context.snapshot.overlays() else { return false };
    row.state == State::Clear
        && row.tenant.is_none()
        && may_carry_fragment(overlays, &row.packet, || row.bytes(context.frames))
}

/// A fragment that is followed: the packet of a row, or a tenant's in it.
struct Followed {
    packet: Packet,
    way: Way,
}

/// Returns the fragment of a row, with its bytes; `bytes` is the row's packet. `None`: the packet
/// is whole, or it is a tenant's fragment in a network without groups.
fn fragment<'b>(snapshot: &Snapshot, row: &Row, bytes: &'b [u8]) -> Option<(Followed, &'b [u8])> {
    let opened_by = match row.origin {
        Origin::Opened(set) => Some(snapshot.set(set).id),
        Origin::Received
        | Origin::Host
        | Origin::Made(_)
        | Origin::Sealed(_)
        | Origin::Carried(_) => None,
    };
    let way = Way { ingress: row.ingress, opened_by, network: None };
    if row.packet.fragment != Fragment::Whole {
        return Some((Followed { packet: row.packet, way }, bytes));
    }
    let (vni, at, packet) = tenants_fragment(snapshot, row, bytes)?;
    let way = Way { network: Some(vni), ..way };
    Some((Followed { packet, way }, bytes.get(at..)?))
}

fn is_fragment(row: &Row) -> bool {
    row.packet.fragment != Fragment::Whole && matches!(row.state, State::Clear | State::Large)
}

#[cold]
fn follow_fragments<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut Vec<Row>,
    spare: &mut Vec<Row>,
    later: &mut Vec<Row>,
) {
    std::mem::swap(rows, spare);
    rows.clear();
    for mut row in spare.drain(..) {
        if row.state == State::Large {
            later.push(row);
        } else if is_fragment(&row) || carries_fragment(context, &row) {
            take_in(context, &mut row, rows);
            context.reassembly.drop_waiting(context.frames, context.counters);
        } else {
            rows.push(row);
        }
    }
}

/// Takes a fragment in: it goes on, as a row and with those that waited for it, or waits, or is
/// dropped.
fn take_in<F: Frames>(context: &mut BatchContext<'_, F>, row: &mut Row, rows: &mut Vec<Row>) {
    let bytes = row.bytes(context.frames);
    let Some((fragment, shown)) = fragment(context.snapshot, row, bytes) else {
        return rows.push(*row);
    };
    let Some(piece) = piece(&fragment, shown) else {
        return refuse(context, row, DropReason::Malformed, rows);
    };
    match context.reassembly.take_in(context.now_ns, &piece) {
        Answer::First => {
            let upper_layer = upper_layer(&fragment.packet, shown);
            rows.push(*row);
            release(context, (row, upper_layer), rows);
        }
        Answer::Known(upper_layer) => rows.push(of_flow(*row, upper_layer)),
        Answer::Unknown(place) if !wants_first((context.snapshot, context.now_ns), row, bytes) => {
            place.release();
            rows.push(*row);
        }
        // A large packet lies in memory of the batch.
        Answer::Unknown(place) if row.frame == large_packet::FRAME => {
            place.release();
            context.drop(row, DropReason::FragmentLimit);
        }
        Answer::Unknown(place) => match place.hold(*row) {
            Ok(()) => {
                context.end(row, Verdict::Hold(HoldKind::Fragment));
                context.counters.ledger(Some(row.ingress)).held += 1;
            }
            Err(reason) => context.drop(row, reason),
        },
        Answer::Duplicate => context.drop(row, DropReason::FragmentDuplicate),
        Answer::Refused { reason, .. } => refuse(context, row, reason, rows),
        Answer::Part(_) | Answer::Complete => unreachable!("nothing of this table is ESP"),
    }
}

/// Drops a fragment, unless it is Linux's as it is: one for this machine of which nothing has to be
/// known. Linux puts such fragments together itself, and mostly has them from the XDP program.
pub(crate) fn refuse<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &mut Row,
    reason: DropReason,
    rows: &mut Vec<Row>,
) {
    let BatchContext { snapshot, now_ns, .. } = *context;
    let to = row.packet.flow.destination_address();
    let is_for_linux = row.origin == Origin::Received
        && snapshot.routes().lookup(to) == Some(RouteTarget::Local)
        && decide_one((snapshot, now_ns), row, row.bytes(context.frames), |_, _| {})
            == Ok(State::Host);
    match is_for_linux {
        true => rows.push(*row),
        false => context.drop(row, reason),
    }
}

/// Adds the fragments that waited for a first one, as rows with verdicts of their own.
fn release<F: Frames>(
    context: &mut BatchContext<'_, F>,
    (first, upper_layer): (&Row, UpperLayer),
    rows: &mut Vec<Row>,
) {
    let BatchContext { reassembly, counters, out, .. } = context;
    for waited in reassembly.released() {
        counters.ledger(Some(waited.ingress)).held -= 1;
        out.verdicts.push(None);
        let place = out.verdicts.len() as u32 - 1;
        // Of the same set as then, wherever this snapshot has it.
        let row = Row { place, origin: first.origin, ..waited };
        rows.push(of_flow(row, upper_layer));
    }
}

/// The row of a later fragment as one of its datagram's flow.
fn of_flow(mut row: Row, upper_layer: UpperLayer) -> Row {
    if row.packet.fragment == Fragment::Whole {
        return Row { tenant: Some(upper_layer), ..row };
    }
    let UpperLayer { protocol, upper, opens, echo } = upper_layer;
    let flow = &mut row.packet.flow;
    (flow.protocol, flow.upper, flow.opens) = (protocol, upper, opens);
    Row { echo, ..row }
}

/// Returns whether policies want to see the first fragment to judge this later one, or a connection
/// may be known by it. A packet that is dropped for another reason does not wait for that.
fn wants_first((snapshot, now_ns): (&Snapshot, u64), row: &Row, bytes: &[u8]) -> bool {
    let mut is_tracked = false;
    let decided = decide_one((snapshot, now_ns), row, bytes, |asked, _| {
        is_tracked |= asked.is_tracked(snapshot.tables());
    });
    match decided {
        Err(DropReason::FragmentPorts) => true,
        Err(DropReason::GroupNoMatch | DropReason::GroupDeny) => is_tracked,
        _ => false,
    }
}

/// The part of its datagram that a fragment is; `bytes` begins with it. `None`: it carries nothing.
fn piece(fragment: &Followed, bytes: &[u8]) -> Option<Piece> {
    let Followed { packet, way } = fragment;
    let header = packet.fragment_header()?;
    let datagram = Datagram::of(packet, &header, *way);
    let part = Part::of(&header)?;
    let is_first = packet.fragment == Fragment::First;
    let first = is_first.then(|| first(packet, bytes).map(First::Shows));
    Some(Piece { datagram, part, first })
}

/// The upper layer that a first fragment shows.
///
/// # Errors
/// It shows too little of it.
fn first(packet: &Packet, bytes: &[u8]) -> Result<UpperLayer, DropReason> {
    let shown = packet.length.saturating_sub(packet.upper_offset.into());
    match packet.flow.protocol == protocol::TCP && shown < LEAST_TCP_BYTES {
        true => Err(DropReason::FragmentTiny),
        false => Ok(upper_layer(packet, bytes)),
    }
}

/// The upper layer that later fragments have of a first one. ICMP errors are judged by what they
/// quote, which later fragments do not: these are fragments of something.
pub(crate) fn upper_layer(first: &Packet, bytes: &[u8]) -> UpperLayer {
    let flow = &first.flow;
    let upper = if icmp::is_error(flow) { Upper::Fragment } else { flow.upper };
    let echo = icmp::echo_identifier(first, bytes);
    UpperLayer { protocol: flow.protocol, upper, opens: flow.opens, echo }
}
