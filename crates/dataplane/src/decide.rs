//! Stage 3: what the policies say (RFC 4301 §5.1 and §5.2 step 4) and where the route leads.
//!
//! Three questions, each asked of the rows it concerns, together:
//! 1. may it come in? — what was opened must match the inbound selectors of the SA that opened it;
//!    what came in clear by an unprotected port must match a BYPASS policy;
//! 2. where does it go? — to this machine, or to a port by its route;
//! 3. may it go out? — whatever leaves by an unprotected port passes the outbound SPD, whether it
//!    came from a protected port, an SA, or this machine.
//!
//! What each stage asks and how it reads the answer are functions of a row and a snapshot, so that
//! `explain` says what the walk does because it runs the same code.

use policy::{Direction, Match, PolicyIndex};
use wire::flow::protocol;
use wire::{Address, Flow, Frames, Upper, icmp, packet::is_link_local};

use crate::receive::is_host_service;
use crate::snapshot::ResolvedAction;
use crate::walk::{Origin, Quote, Row, Scratch, State, ToHost, Turn};
use crate::{DropReason, FlowCache, Medium, RouteTarget, Side, Snapshot, Verdict};

/// What decides a row for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    Forward(crate::snapshot::Egress),
    Protect(crate::SetIndex),
    Host,
}

/// Judges every row that is an IP packet in clear.
pub(crate) fn decide<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut [Row],
    scratch: &mut Scratch,
    cache: Option<&mut FlowCache>,
) {
    if let Some(cache) = cache {
        cache.look_at(turn.snapshot);
    }
    let from_outside = |row: &Row| {
        matches!(row.origin, Origin::Opened(_))
            || turn.snapshot.path_port(row.ingress).side == Side::Unprotected
    };
    if rows.iter().any(from_outside) {
        enter(turn, rows, scratch);
    }
    ask(turn, rows, scratch, Direction::Outbound, |turn, row| match route(turn.snapshot, row) {
        Ok(Routed::Ask) => Question::Ask,
        Ok(Routed::Decided(decision)) => Question::Decided(decision),
        Err(reason) => Question::Refused(reason),
    });
    for (i, number) in scratch.asked.iter().enumerate() {
        let row = &mut rows[*number];
        count(turn, row, Direction::Outbound, scratch.matches[i]);
        match outbound_answer(turn.snapshot, row, scratch.matches[i]) {
            Ok(decision) => settle(turn, row, decision),
            Err(reason) => turn.drop(row, reason),
        }
    }
}

/// The first question, for the rows that it concerns.
fn enter<F: Frames>(turn: &mut Turn<'_, F>, rows: &mut [Row], scratch: &mut Scratch) {
    ask(turn, rows, scratch, Direction::Inbound, |turn, row| {
        inbound_question(turn.snapshot, row, row.bytes(turn.frames))
    });
    for (i, number) in scratch.asked.iter().enumerate() {
        let row = &mut rows[*number];
        count(turn, row, Direction::Inbound, scratch.matches[i]);
        if let Err(reason) = inbound_answer(turn.snapshot, row.origin, scratch.matches[i]) {
            turn.drop(row, reason);
        }
    }
}

/// What a row has to ask the SPD.
pub(crate) enum Question {
    /// Nothing.
    Pass,
    /// What it says of the packet's own flow.
    Ask,
    /// What it says of this flow in its stead.
    AskInstead(Flow),
    /// Nothing, it is decided.
    Decided(Decision),
    /// Nothing, it is dropped.
    Refused(DropReason),
}

/// Collects the questions of all rows in clear and has them answered together.
#[inline]
fn ask<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut [Row],
    scratch: &mut Scratch,
    direction: Direction,
    question: impl Fn(&Turn<'_, F>, &Row) -> Question,
) {
    scratch.asked.clear();
    scratch.flows.clear();
    for (number, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.state == State::Clear) {
        match question(turn, row) {
            Question::Pass => {}
            Question::Ask => {
                scratch.asked.push(number);
                scratch.flows.push(row.packet.flow);
            }
            Question::AskInstead(flow) => {
                scratch.asked.push(number);
                scratch.flows.push(flow);
            }
            Question::Decided(decision) => settle(turn, row, decision),
            Question::Refused(reason) => turn.drop(row, reason),
        }
    }
    if scratch.flows.is_empty() {
        return;
    }
    scratch.matches.clear();
    scratch.matches.resize(scratch.flows.len(), Match::None);
    classify(turn.snapshot, rows, direction, scratch);
    turn.counters.full_lookups += scratch.flows.len() as u64;
}

/// Has the flows answered that are asked about, together where they are of one domain.
fn classify(snapshot: &Snapshot, rows: &[Row], direction: Direction, scratch: &mut Scratch) {
    let Scratch { asked, flows, matches, .. } = scratch;
    let domain = |i: usize| snapshot.domain(rows[asked[i]].ingress, direction, flows[i].family);
    let mut start = 0;
    while start < flows.len() {
        let of = domain(start);
        let end = (start..flows.len()).find(|i| domain(*i) != of).unwrap_or(flows.len());
        snapshot.spd().classify(of, &flows[start..end], &mut matches[start..end]);
        start = end;
    }
}

#[inline]
fn settle<F: Frames>(turn: &mut Turn<'_, F>, row: &mut Row, decision: Decision) {
    match decision {
        Decision::Forward(egress) => row.state = State::Forward(egress),
        Decision::Protect(set) => row.state = State::Protect(set),
        Decision::Host => {
            turn.end(row, Verdict::Host);
            let packet =
                wire::Descriptor { frame: row.frame, offset: row.ip, length: row.packet.length };
            turn.out.host.push(ToHost { ingress: row.ingress, form: Medium::Ip, packet });
        }
    }
}

fn count<F>(turn: &mut Turn<'_, F>, row: &Row, direction: Direction, answer: Match) {
    if let Match::Policy(policy) | Match::FragmentPorts(policy) = answer {
        turn.counters.policy(direction, policy, row.packet.length as usize);
    }
}

/// May it come in? `bytes` is the packet.
pub(crate) fn inbound_question(snapshot: &Snapshot, row: &Row, bytes: &[u8]) -> Question {
    match row.origin {
        Origin::Opened(set) if !snapshot.may_come_by(set, row.packet.flow.source_address()) => {
            Question::Refused(DropReason::SelectorMismatch)
        }
        Origin::Opened(_) if icmp::is_from_routers(&row.packet.flow) => {
            match judged_by_quote(snapshot, row, bytes) {
                Some(flow) => Question::AskInstead(flow),
                None => Question::Refused(DropReason::SelectorMismatch),
            }
        }
        Origin::Opened(_) => Question::Ask,
        Origin::Received if snapshot.path_port(row.ingress).side == Side::Unprotected => {
            // Before the carve-out: nobody outside speaks from an address of ours or inside.
            if is_inside(snapshot, row.packet.flow.source_address()) {
                return Question::Refused(DropReason::BadAddress);
            }
            match is_carved_out(snapshot, row, bytes) {
                true => Question::Decided(Decision::Host),
                false => Question::Ask,
            }
        }
        Origin::Received | Origin::Host | Origin::Made(_) => Question::Pass,
    }
}

/// The flow that an opened ICMP error is judged by. It comes from a router that no selector names,
/// so that is the answer to the packet it quotes (RFC 4301 §6.2).
///
/// `None`: the peer may not send it. It quotes nothing, or another error; it is not for who sent
/// what it quotes; or it claims to come from our side, where the peer has no routers.
fn judged_by_quote(snapshot: &Snapshot, row: &Row, bytes: &[u8]) -> Option<Flow> {
    let flow = &row.packet.flow;
    let quoted = icmp::quoted_flow(bytes, &row.packet)?;
    let may_come = quoted.source == flow.destination
        && !icmp::is_error(&quoted)
        && !is_inside(snapshot, flow.source_address());
    may_come.then(|| quoted.reversed())
}

/// Whether an address is our own, a broadcast address, or lives behind a protected port.
pub(crate) fn is_inside(snapshot: &Snapshot, address: Address) -> bool {
    match snapshot.routes().lookup(address) {
        Some(RouteTarget::Local | RouteTarget::Broadcast) => true,
        Some(RouteTarget::Via(hop)) => {
            snapshot.path_port(snapshot.next_hop(hop).port).side == Side::Protected
        }
        Some(RouteTarget::Blackhole | RouteTarget::Elsewhere) | None => false,
    }
}

/// Whether a clear packet from an unprotected port is for this machine and `allow_host` lists it.
/// Only our addresses on unprotected ports and on the link are meant: those inside are the
/// policies' affair.
/// UDP 4500 is shared: with the zero marker it is IKE, else ESP in UDP (RFC 3948 §2.2).
fn is_carved_out(snapshot: &Snapshot, row: &Row, bytes: &[u8]) -> bool {
    let flow = &row.packet.flow;
    let services = &snapshot.port(row.ingress).allow_host;
    let destination = flow.destination_address();
    let is_ours = snapshot.is_own_outside(destination)
        || is_link_local(flow.family, flow.destination)
            && snapshot.routes().lookup(destination) == Some(RouteTarget::Local);
    if !is_ours || !is_host_service(services, flow) {
        return false;
    }
    let nat_traversal = flow.protocol == protocol::UDP
        && matches!(flow.upper, Upper::Ports { destination: 4500, .. });
    let payload = bytes.get(usize::from(row.packet.upper_offset) + 8..).unwrap_or_default();
    !nat_traversal || payload.starts_with(&[0; 4])
}

/// How the inbound SPD's answer is read.
pub(crate) fn inbound_answer(
    snapshot: &Snapshot,
    origin: Origin,
    answer: Match,
) -> Result<(), DropReason> {
    let action = match answer {
        Match::Policy(policy) => Some(snapshot.action(policy)),
        Match::FragmentPorts(_) => return Err(DropReason::FragmentPorts),
        Match::None => None,
    };
    match (origin, action) {
        // The policy that decides must be one that this SA serves, no other peer's.
        (Origin::Opened(own), Some(ResolvedAction::Protect(set))) if own == set => Ok(()),
        (Origin::Opened(_), _) => Err(DropReason::SelectorMismatch),
        (_, Some(ResolvedAction::Bypass)) => Ok(()),
        (_, Some(ResolvedAction::Protect(_))) => Err(DropReason::Unprotected),
        (_, Some(ResolvedAction::Discard)) => Err(DropReason::PolicyDiscard),
        (_, None) => Err(DropReason::NoMatch),
    }
}

/// Where a packet goes.
pub(crate) enum Routed {
    /// Nobody has to be asked.
    Decided(Decision),
    /// Out by an unprotected port, if the outbound SPD says so of its flow.
    Ask,
}

/// Where does it go?
///
/// # Errors
/// Why it goes nowhere.
#[inline]
pub(crate) fn route(snapshot: &Snapshot, row: &Row) -> Result<Routed, DropReason> {
    let flow = &row.packet.flow;
    let routes = snapshot.routes();
    // RFC 1812 §5.3.8: nobody else sends from our own or a broadcast address.
    if routes.is_ours(flow.source_address()) && row.origin.is_forwarded() {
        return Err(DropReason::BadAddress);
    }
    let destination = flow.destination_address();
    let target = routes.lookup(destination);
    let stays_on_link =
        is_link_local(flow.family, flow.source) || is_link_local(flow.family, flow.destination);
    match target {
        Some(RouteTarget::Via(hop)) if !stays_on_link => match snapshot.side_of(hop) {
            Side::Unprotected => Ok(Routed::Ask),
            Side::Protected => {
                Ok(Routed::Decided(Decision::Forward(snapshot.egress(hop, destination))))
            }
        },
        Some(RouteTarget::Local) => Ok(Routed::Decided(Decision::Host)),
        _ => Err(no_way(target, stays_on_link)),
    }
}

/// Why a packet with this route goes nowhere.
#[cold]
fn no_way(target: Option<RouteTarget>, stays_on_link: bool) -> DropReason {
    match target {
        _ if stays_on_link => DropReason::BadAddress,
        Some(RouteTarget::Broadcast) => DropReason::BadAddress,
        Some(RouteTarget::Blackhole) => DropReason::Blackhole,
        _ => DropReason::NoRoute,
    }
}

/// How the outbound SPD's answer is read.
///
/// # Errors
/// Why it may not leave.
#[inline]
pub(crate) fn outbound_answer(
    snapshot: &Snapshot,
    row: &Row,
    answer: Match,
) -> Result<Decision, DropReason> {
    let policy: PolicyIndex = match answer {
        Match::Policy(policy) => policy,
        Match::FragmentPorts(_) => return Err(DropReason::FragmentPorts),
        Match::None => return Err(DropReason::NoMatch),
    };
    match snapshot.action(policy) {
        ResolvedAction::Protect(set) => Ok(Decision::Protect(set)),
        ResolvedAction::Discard => Err(DropReason::PolicyDiscard),
        ResolvedAction::Bypass if row.origin == Origin::Made(Quote::Protected) => {
            Err(DropReason::IcmpInClear)
        }
        ResolvedAction::Bypass => {
            let destination = row.packet.flow.destination_address();
            match snapshot.routes().lookup(destination) {
                Some(RouteTarget::Via(hop)) => {
                    Ok(Decision::Forward(snapshot.egress(hop, destination)))
                }
                _ => Err(DropReason::NoRoute),
            }
        }
    }
}
