//! Stage 3: what the policies say (RFC 4301 §5.1 and §5.2 step 4) and where the route leads.
//!
//! Three questions, each asked of the rows it concerns, together:
//! 1. may it come in? — what was opened must match the inbound selectors of the SA that opened it;
//!    what came in clear by an unprotected port must match a BYPASS policy;
//! 2. where does it go? — to this machine, or to a port by its route;
//! 3. may it go out? — whatever leaves by an unprotected port passes the outbound SPD, whether it
//!    came from a protected port, an SA, or this machine.
//!
//! The flow cache is asked before the SPD, and before the route outbound. It remembers what depends
//! on the flow alone: what the SPD said and where the route led. What depends on more is asked of
//! each packet: whether an SA opened it that its policy names, whose address it comes from, what an
//! ICMP error quotes, whether it is for the machine itself, what `allow_host` says of it.
//!
//! What each stage asks and how it reads the answer are functions of a row and a snapshot, so that
//! `explain` says what the walk does because it runs the same code.

mod asking;

use policy::{Direction, Match, PolicyIndex};
use wire::{Flow, Frames, icmp, packet::is_link_local};

use crate::actions::ResolvedAction;
use crate::addresses::is_inside;
use crate::cache::{Answer, FlowCache, Lane, Lanes, Way, Words};
use crate::carve_out::{CarveOut, carve_out};
use crate::ids::{NextHopId, SetIndex};
use crate::outputs::ToHost;
use crate::port::{Egress, Medium, Side};
use crate::routes::{Near, RouteTarget};
use crate::row::{Origin, Quote, Row, State};
use crate::snapshot::Snapshot;
use crate::turn::Turn;
use crate::verdict::{DropReason, Verdict};
pub(crate) use asking::Asking;
use asking::{Entry, Search};

/// What decides a row for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    Forward(Egress),
    Protect(SetIndex),
    Host,
}

/// Judges every row that is an IP packet in clear.
pub(crate) fn decide<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut [Row],
    asking: &mut Asking,
    mut cache: Option<&mut FlowCache>,
) {
    if let Some(cache) = &mut cache {
        cache.look_at(turn.snapshot);
    }
    let from_outside = |row: &Row| {
        matches!(row.origin, Origin::Opened(_))
            || turn.snapshot.path_port(row.ingress).side == Side::Unprotected
    };
    if rows.iter().any(from_outside) {
        enter(turn, rows, asking, cache.as_deref_mut());
    }
    leave(turn, rows, asking, cache);
}

/// The first question, for the rows that it concerns. Those that go from it straight to a protected
/// port are settled too.
fn enter<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut [Row],
    asking: &mut Asking,
    mut cache: Option<&mut FlowCache>,
) {
    let Asking { lanes, search } = asking;
    lanes.clear();
    search.clear();
    for (number, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.state == State::Clear) {
        let flow = &row.packet.flow;
        let domain = turn.snapshot.domain(row.ingress, Direction::Inbound, flow.family);
        match inbound_question(turn.snapshot, row, row.bytes(turn.frames)) {
            Question::Pass => {}
            Question::Ask => {
                let opened_by = match row.origin {
                    Origin::Opened(set) => Some(turn.snapshot.set(set).id),
                    Origin::Received | Origin::Host | Origin::Made(_) => None,
                };
                let is_served = cache.as_ref().is_some_and(|cache| cache.serves(domain));
                if !(is_served && lanes.push(number, domain, opened_by, flow)) {
                    search.ask(number, domain, *flow);
                }
            }
            Question::AskInstead(flow) => search.ask(number, domain, flow),
            Question::Decided(decision) => settle(turn, row, decision),
            Question::Refused(reason) => turn.drop(row, reason),
        }
    }
    if let Some(cache) = &mut cache {
        let Lanes { v4, v6 } = lanes;
        recall_inbound(turn, rows, v4, search, cache);
        recall_inbound(turn, rows, v6, search, cache);
    }
    search.run(turn.snapshot, turn.counters);
    for (asked, answer) in search.answers() {
        let row = &mut rows[asked.row()];
        count(turn, row, Direction::Inbound, answer);
        let refused = may_enter(turn.snapshot, row, turn.frames, answer).err();
        let way = match (refused, &cache) {
            (None, Some(_)) => inbound_way(turn.snapshot, row),
            (Some(_), _) | (None, None) => Way::Unknown,
        };
        if let (Some(cache), Some(entry)) = (&mut cache, asked.entry()) {
            remember(lanes, entry, (Answer::Said(answer), way), cache, turn);
        }
        match (refused, way) {
            (Some(reason), _) => turn.drop(row, reason),
            (None, Way::Via(hop)) => forward(turn, row, hop),
            (None, Way::Other | Way::Unknown) => {}
        }
    }
}

/// Answers the first question for the packets of a lane; those that are not remembered go to the
/// search.
fn recall_inbound<F: Frames, const WORDS: usize>(
    turn: &mut Turn<'_, F>,
    rows: &mut [Row],
    lane: &mut Lane<WORDS>,
    search: &mut Search,
    cache: &mut FlowCache,
) where
    Flow: Words<WORDS>,
{
    cache.look_up(lane);
    let mut misses = 0;
    for at in 0..lane.len() {
        let row = &mut rows[lane.row(at)];
        let Some((Answer::Said(answer), mut way)) = cache.found(lane, at) else {
            misses += usize::from(search.ask_once(lane, at, row.packet.flow));
            continue;
        };
        count(turn, row, Direction::Inbound, answer);
        if let Err(reason) = may_enter(turn.snapshot, row, turn.frames, answer) {
            turn.drop(row, reason);
            continue;
        }
        if way == Way::Unknown {
            way = inbound_way(turn.snapshot, row);
            let counters = &mut turn.counters.cache;
            counters.routes += 1;
            cache.remember(lane, at, (Answer::Said(answer), way), counters);
        }
        if let Way::Via(hop) = way {
            forward(turn, row, hop);
        }
    }
    turn.counters.cache.count(lane.len(), misses);
}

/// What is remembered of the way of a packet that may come in.
fn inbound_way(snapshot: &Snapshot, row: &Row) -> Way {
    match route(snapshot, row) {
        Ok(Routed::Inside(hop)) => Way::Via(hop),
        Ok(Routed::Outside(_) | Routed::Host) | Err(_) => Way::Other,
    }
}

/// The second and the third question.
fn leave<F: Frames>(
    turn: &mut Turn<'_, F>,
    rows: &mut [Row],
    asking: &mut Asking,
    mut cache: Option<&mut FlowCache>,
) {
    let Asking { lanes, search } = asking;
    lanes.clear();
    search.clear();
    for (number, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.state == State::Clear) {
        let flow = &row.packet.flow;
        let domain = turn.snapshot.domain(row.ingress, Direction::Outbound, flow.family);
        // Of what is not forwarded other checks are made: its routes are not in the cache.
        let is_served = |cache: &&mut FlowCache| row.origin.is_forwarded() && cache.serves(domain);
        if cache.as_ref().is_some_and(is_served) && lanes.push(number, domain, None, flow) {
            continue;
        }
        let flow = *flow;
        if let Some(hop) = go_or_ask(turn, row) {
            search.ask_via(number, domain, flow, hop);
        }
    }
    if let Some(cache) = &mut cache {
        let Lanes { v4, v6 } = lanes;
        recall_outbound(turn, rows, v4, search, cache);
        recall_outbound(turn, rows, v6, search, cache);
    }
    search.run(turn.snapshot, turn.counters);
    for (asked, answer) in search.answers() {
        if let (Some(cache), Some(entry)) = (&mut cache, asked.entry()) {
            let said = (Answer::Said(answer), Way::Via(asked.hop()));
            remember(lanes, entry, said, cache, turn);
        }
        leave_as_said(turn, &mut rows[asked.row()], asked.hop(), answer);
    }
}

/// Answers the second and the third question for the packets of a lane; those that are not
/// remembered go to the search.
fn recall_outbound<F: Frames, const WORDS: usize>(
    turn: &mut Turn<'_, F>,
    rows: &mut [Row],
    lane: &mut Lane<WORDS>,
    search: &mut Search,
    cache: &mut FlowCache,
) where
    Flow: Words<WORDS>,
{
    cache.look_up(lane);
    let mut misses = 0;
    for at in 0..lane.len() {
        let row = &mut rows[lane.row(at)];
        match cache.found(lane, at) {
            Some((Answer::Said(answer), Way::Via(hop))) => leave_as_said(turn, row, hop, answer),
            Some((Answer::NotAsked, Way::Via(hop))) => forward(turn, row, hop),
            found => {
                let Some(hop) = go_or_ask_remembering(turn, row, lane, at, cache) else {
                    misses += usize::from(found.is_none());
                    continue;
                };
                if let Some((Answer::Said(answer), _)) = found {
                    // The routes have changed, and the packet leaves on the same side.
                    let counters = &mut turn.counters.cache;
                    counters.routes += 1;
                    cache.remember(lane, at, (Answer::Said(answer), Way::Via(hop)), counters);
                    leave_as_said(turn, row, hop, answer);
                } else {
                    misses += usize::from(search.ask_once(lane, at, row.packet.flow));
                    search.last_goes_via(hop);
                }
            }
        }
    }
    turn.counters.cache.count(lane.len(), misses);
}

/// Remembers what was said of the packet of a lane.
fn remember<F>(
    lanes: &Lanes,
    entry: Entry,
    said: (Answer, Way),
    cache: &mut FlowCache,
    turn: &mut Turn<'_, F>,
) {
    let counters = &mut turn.counters.cache;
    match entry {
        Entry::V4(at) => cache.remember(&lanes.v4, at.into(), said, counters),
        Entry::V6(at) => cache.remember(&lanes.v6, at.into(), said, counters),
    }
}

/// Settles a row that no policy has to be asked about. Else by which next hop it leaves the
/// protected side, if the outbound SPD says so.
#[inline]
fn go_or_ask<F: Frames>(turn: &mut Turn<'_, F>, row: &mut Row) -> Option<NextHopId> {
    match route_near(turn.snapshot, &mut turn.near, row) {
        Ok(Routed::Outside(hop)) => return Some(hop),
        Ok(Routed::Inside(hop)) => forward(turn, row, hop),
        Ok(Routed::Host) => settle(turn, row, Decision::Host),
        Err(reason) => turn.drop(row, reason),
    }
    None
}

/// The same for the packet of a lane; that no policy has to be asked about it is remembered.
fn go_or_ask_remembering<F: Frames, const WORDS: usize>(
    turn: &mut Turn<'_, F>,
    row: &mut Row,
    lane: &Lane<WORDS>,
    at: usize,
    cache: &mut FlowCache,
) -> Option<NextHopId> {
    let routed = route(turn.snapshot, row);
    if let Ok(Routed::Inside(hop)) = routed {
        cache.remember(lane, at, (Answer::NotAsked, Way::Via(hop)), &mut turn.counters.cache);
    }
    go_or_ask(turn, row)
}

#[inline]
fn leave_as_said<F: Frames>(turn: &mut Turn<'_, F>, row: &mut Row, hop: NextHopId, answer: Match) {
    count(turn, row, Direction::Outbound, answer);
    match outbound_answer(turn.snapshot, row, hop, answer) {
        Ok(decision) => settle(turn, row, decision),
        Err(reason) => turn.drop(row, reason),
    }
}

#[inline]
fn forward<F: Frames>(turn: &mut Turn<'_, F>, row: &mut Row, hop: NextHopId) {
    let egress = turn.snapshot.egress(hop, row.packet.flow.destination_address());
    settle(turn, row, Decision::Forward(egress));
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
            match carve_out(snapshot, row, bytes) {
                CarveOut::Always => Question::Decided(Decision::Host),
                // `allow_host` decides only what no policy wants (RFC 4301 §5.2).
                CarveOut::UnlessWanted | CarveOut::No => Question::Ask,
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

/// Whether a packet may come in, by the inbound SPD's answer or, where no policy matches, by
/// `allow_host`.
///
/// # Errors
/// Why it may not.
#[inline]
fn may_enter<F: Frames>(
    snapshot: &Snapshot,
    row: &Row,
    frames: &F,
    answer: Match,
) -> Result<(), DropReason> {
    match inbound_answer(snapshot, row.origin, answer) {
        Err(DropReason::NoMatch) => without_policy(snapshot, row, row.bytes(frames)),
        said => said,
    }
}

/// Whether a cleartext packet from outside that no policy matches may come in: `allow_host` lists
/// it. `bytes` is the packet.
///
/// # Errors
/// It may not.
#[cold]
pub(crate) fn without_policy(
    snapshot: &Snapshot,
    row: &Row,
    bytes: &[u8],
) -> Result<(), DropReason> {
    match carve_out(snapshot, row, bytes) {
        CarveOut::No => Err(DropReason::NoMatch),
        CarveOut::UnlessWanted | CarveOut::Always => Ok(()),
    }
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
#[derive(Clone, Copy)]
pub(crate) enum Routed {
    /// To this machine.
    Host,
    /// To a next hop on the protected side: nobody has to be asked.
    Inside(NextHopId),
    /// To a next hop on the unprotected side, if the outbound SPD says so of its flow.
    Outside(NextHopId),
}

/// Where does it go?
///
/// # Errors
/// Why it goes nowhere.
#[inline]
pub(crate) fn route(snapshot: &Snapshot, row: &Row) -> Result<Routed, DropReason> {
    route_near(snapshot, &mut Near::nothing(), row)
}

/// [`route`], which first looks near the route that was found last.
#[inline(always)]
fn route_near(snapshot: &Snapshot, near: &mut Near, row: &Row) -> Result<Routed, DropReason> {
    let flow = &row.packet.flow;
    let routes = snapshot.routes();
    // RFC 1812 §5.3.8: nobody else sends from our own or a broadcast address.
    if routes.is_ours(flow.source_address()) && row.origin.is_forwarded() {
        return Err(DropReason::BadAddress);
    }
    let target = near.lookup(routes, flow.destination_address());
    let stays_on_link =
        is_link_local(flow.family, flow.source) || is_link_local(flow.family, flow.destination);
    match target {
        Some(RouteTarget::Via(hop)) if !stays_on_link => Ok(match snapshot.side_of(hop) {
            Side::Unprotected => Routed::Outside(hop),
            Side::Protected => Routed::Inside(hop),
        }),
        Some(RouteTarget::Local) => Ok(Routed::Host),
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

/// How the outbound SPD's answer is read, of a packet that leaves by this next hop.
///
/// # Errors
/// Why it may not leave.
#[inline]
pub(crate) fn outbound_answer(
    snapshot: &Snapshot,
    row: &Row,
    hop: NextHopId,
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
            Ok(Decision::Forward(snapshot.egress(hop, destination)))
        }
    }
}
