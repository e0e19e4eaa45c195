//! Explains the walk's verdict on a flow: asks the walk's own questions about one packet that is
//! never sent (DESIGN I9: nothing is counted, sealed or moved).

mod inside;
mod tag;

use ipsec::{Mode, OutboundSa, SaId, SeatCarrier};
use policy::Consultation;
use wire::flow::protocol;
use wire::{Family, Flow, Fragment, FrameId, Packet, Upper};

use crate::card_sas;
use crate::decide::decide_one;
use crate::ids::{PortId, SetIndex};
use crate::routes::RouteTarget;
use crate::row::{Origin, Row, State};
use crate::snapshot::Snapshot;
pub use crate::tracking::SeenConnection;
use crate::verdict::{DropReason, HoldKind, Verdict};
use crate::worker_share::WorkerShare;
pub use inside::{Carried, Found, Inside, InsideError, explain_inside};
pub use tag::{TagUnused, tag_decides, tag_unused};

/// The way by which the packet in question came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// In clear, by this port.
    Clear(PortId),
    /// By this port, opened by an SA of this set.
    Opened(PortId, SetIndex),
}

/// The verdict on a packet, with the lookups that led to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The packet's verdict.
    pub verdict: Verdict,
    /// The books, as far as they were asked.
    pub consultations: Vec<Consultation>,
    /// The connections that it is of, or would begin, at the ports of its way.
    pub connections: Vec<SeenConnection>,
    /// The route of its destination; `None`: no route, or dropped before.
    pub route: Option<RouteTarget>,
    /// The port it leaves by, sealed or not.
    pub egress: Option<PortId>,
    /// The SA that seals it, of a packet that leaves sealed.
    pub sealed_by: Option<SaId>,
    /// The set and SA that seal it again, of a packet for a peer behind another one.
    pub sealed_again_by: Option<(SetIndex, SaId)>,
    /// Largest inner packet on its way, bytes, if it leaves.
    pub mtu: Option<u32>,
    /// Of a packet in a virtual network, the overlay packet that carries it on.
    pub carried: Option<Carried>,
}

impl Explanation {
    fn nothing() -> Explanation {
        Explanation {
            verdict: Verdict::Host,
            consultations: Vec::new(),
            connections: Vec::new(),
            route: None,
            egress: None,
            sealed_by: None,
            sealed_again_by: None,
            mtu: None,
            carried: None,
        }
    }
}

/// Explains the verdict that the walk would give packets of a flow.
///
/// Not judged, because a flow does not say them: checksums, options and source routes, hop limit,
/// size, whether it is a first fragment, what an ICMP error quotes (so an error that was opened is
/// always refused), and whether the neighbour and the transmit ring are ready. ESP from outside to
/// one of our addresses is judged as if it could not be opened; UDP 4500 as IKE. Of several workers
/// it is the first that seals.
///
/// `now_ns` is the time by the walk's clock. A TCP segment is taken for the SYN of its connection,
/// whether that is known or not.
pub fn explain((snapshot, now_ns): (&Snapshot, u64), arrival: Arrival, flow: Flow) -> Explanation {
    let row = row_of(snapshot, arrival, flow);
    let mut told = Explanation::nothing();
    let judged = judge((snapshot, now_ns), &row, &mut told);
    told.verdict = conclude((snapshot, now_ns), &row.packet, judged, &mut told);
    told
}

/// Returns the verdict on a packet that leaves or not, and tells how it leaves.
fn conclude(
    (snapshot, now_ns): (&Snapshot, u64),
    packet: &Packet,
    judged: Result<State, DropReason>,
    told: &mut Explanation,
) -> Verdict {
    match judged {
        Ok(State::Forward(adjacency)) => {
            told.egress = Some(adjacency.port);
            told.mtu = Some(snapshot.port(adjacency.port).mtu);
            Verdict::Forward(adjacency.port)
        }
        Ok(State::Protect(set)) => match protected_by_all(snapshot, set, packet) {
            Ok((egress, sa, again)) => {
                (told.egress, told.sealed_by) = (Some(egress), Some(sa.id));
                told.sealed_again_by = again;
                let sizes = snapshot.sealing_sizes(set, sa.id, now_ns);
                told.mtu = Some(sizes.inner(packet.flow.family));
                Verdict::Protect(set)
            }
            Err(DropReason::NoSa) if awaits_sa(snapshot, set) => Verdict::Hold(HoldKind::Sa),
            Err(reason) => Verdict::Drop(reason),
        },
        Ok(State::Host | State::Outer(_) | State::Large | State::Clear | State::Ended) => {
            Verdict::Host
        }
        Err(reason) => Verdict::Drop(reason),
    }
}

fn judge(
    (snapshot, now_ns): (&Snapshot, u64),
    row: &Row,
    told: &mut Explanation,
) -> Result<State, DropReason> {
    if let Some(reason) = wire_check(&row.packet.flow) {
        return Err(reason);
    }
    told.route = snapshot.routes().lookup(row.packet.flow.destination_address());
    let bytes: &[u8] = if row.packet.flow.protocol == protocol::TCP { &SYN } else { &IKE };
    ask((snapshot, now_ns), row, bytes, told)
}

/// Asks what the walk asks about a packet, and tells what the books and the connections say.
fn ask(
    (snapshot, now_ns): (&Snapshot, u64),
    row: &Row,
    bytes: &[u8],
    told: &mut Explanation,
) -> Result<State, DropReason> {
    let tables = snapshot.tables();
    decide_one((snapshot, now_ns), row, bytes, |asked, foreseen| {
        asked.explain(tables, foreseen.known, &mut |book| told.consultations.push(book));
        told.connections.extend(foreseen.connections.iter().flatten());
    })
}

/// Returns whether a packet waits for an SA of a set, or of the one around it.
fn awaits_sa(snapshot: &Snapshot, set: SetIndex) -> bool {
    snapshot.awaits_sa(set) || snapshot.outer_of(set).is_some_and(|set| snapshot.awaits_sa(set))
}

/// A port, the SA that seals, and set and SA that seal again.
type Ways<'s> = (PortId, &'s OutboundSa, Option<(SetIndex, SaId)>);

/// Returns the port by which a packet leaves that is to be sealed with an SA of this set, the SA,
/// and the SA that seals again.
///
/// # Errors
/// Those of [`protected`], of both layers.
fn protected_by_all<'s>(
    snapshot: &'s Snapshot,
    set: SetIndex,
    packet: &Packet,
) -> Result<Ways<'s>, DropReason> {
    let (egress, sa) = protected(snapshot, set, packet)?;
    let Some(outer) = snapshot.outer_of(set) else { return Ok((egress, sa, None)) };
    if sa.card.is_some() {
        return Err(DropReason::DevMismatch);
    }
    let ends = sa.tunnel();
    let flow = Flow::between(ends.local.into(), ends.remote.into(), protocol::ESP);
    let esp = Packet { flow, fragment: Fragment::Whole, ..*packet };
    let (egress, again) = protected(snapshot, outer, &esp)?;
    Ok((egress, sa, Some((outer, again.id))))
}

/// Returns the port by which a packet leaves that is to be sealed with an SA of this set, and the
/// SA.
///
/// # Errors
/// The reason why it does not, in the order of the walk: an SA, a route, the SA's card on it, the
/// limits of the SA, a sequence number, the packets that the SA can carry.
fn protected<'s>(
    snapshot: &'s Snapshot,
    set: SetIndex,
    packet: &Packet,
) -> Result<(PortId, &'s OutboundSa), DropReason> {
    let sa = snapshot.outbound_sa(snapshot.ready_sa(set, WorkerShare::ALL)?);
    let adjacency = snapshot.sealing_adjacency(set, sa.id).ok_or(DropReason::NoRoute)?;
    if let Some(seat) = sa.card {
        if seat.carrier == SeatCarrier::Linux {
            // Linux has the packet in front of the workers, and sends it by this port.
            return Ok((adjacency.port, sa));
        }
        // A card that encrypts needs a number too, which is asked below.
        let is_whole = sa.packet_card().is_some();
        if !card_sas::leads_there(snapshot, adjacency.port, seat) {
            return Err(DropReason::DevMismatch);
        }
        if card_sas::is_spent(sa.allowance.as_ref()) {
            return Err(DropReason::SaHardLimit);
        }
        if is_whole {
            return card_sas::fits(sa, packet).map(|()| (adjacency.port, sa));
        }
        card_sas::may_encrypt(sa, packet)?;
    }
    if sa.allowance.as_ref().is_some_and(|allowance| allowance.is_spent()) {
        return Err(DropReason::SaHardLimit);
    }
    if sa.sequence.is_exhausted() {
        return Err(DropReason::SequenceExhausted);
    }
    if sa.sequence.last() >= sa.sequence.reserved() {
        return Err(DropReason::SequenceNotReserved);
    }
    match sa.encapsulation.mode {
        Mode::Transport if !fits_transport(sa, packet) => Err(DropReason::TransportMode),
        Mode::Transport | Mode::Tunnel => Ok((adjacency.port, sa)),
    }
}

/// Returns whether an SA in transport mode carries a packet: one between its two ends, whole, with
/// an upper layer (RFC 4301 §4.1, RFC 4303 §3.3.4 and §2.6).
fn fits_transport(sa: &OutboundSa, packet: &Packet) -> bool {
    let (source, destination) = (packet.flow.source_address(), packet.flow.destination_address());
    source == sa.tunnel().local.into()
        && destination == sa.tunnel().remote.into()
        && packet.fragment == Fragment::Whole
        && packet.flow.protocol != protocol::NONE
}

/// The bytes that a UDP packet is taken to have: behind its header the zero marker of IKE on port
/// 4500 (RFC 3948 §2.2). ESP in UDP is another question than one about a flow.
const IKE: [u8; 12] = [0; 12];
/// The bytes that a TCP segment is taken to have: its flags say SYN.
const SYN: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// Returns the reason why the parser refuses a flow's addresses, if it does.
fn wire_check(flow: &Flow) -> Option<DropReason> {
    let is_unicast = |address: u128| match flow.family {
        Family::V4 => wire::packet::ipv4_is_unicast(address as u32),
        Family::V6 => wire::packet::ipv6_is_unicast(address),
    };
    let good = is_unicast(flow.source) && is_unicast(flow.destination);
    (!good).then_some(DropReason::BadAddress)
}

/// A row for a packet that has no bytes: only its flow is looked at.
fn row_of(snapshot: &Snapshot, arrival: Arrival, flow: Flow) -> Row {
    let fragment = match flow.upper {
        Upper::Fragment => Fragment::Later,
        _ => Fragment::Whole,
    };
    let packet = Packet {
        flow,
        length: 0,
        upper_offset: 0,
        hop_limit: 64,
        traffic_class: 0,
        fragment,
        fragment_fields: wire::FragmentFields::UNKNOWN,
        dont_fragment: false,
    };
    row_with(snapshot, arrival, packet)
}

fn row_with(snapshot: &Snapshot, arrival: Arrival, packet: Packet) -> Row {
    let (ingress, origin) = match arrival {
        Arrival::Clear(port) if snapshot.host() == Some(port) => (port, Origin::Host),
        Arrival::Clear(port) => (port, Origin::Received),
        Arrival::Opened(port, set) => (port, Origin::Opened(set)),
    };
    let state = State::Clear;
    Row {
        place: 0,
        frame: FrameId(0),
        ip: 0,
        hint: 0,
        echo: None,
        tenant: None,
        ingress,
        origin,
        state,
        packet,
    }
}
