//! Stage 4: what the policies say (RFC 4301 §5.1 and §5.2 step 4) and where the route leads.
//!
//! Three questions, each asked of the rows it concerns, together:
//! 1. may it come in? — what was opened must match the inbound selectors of the SA that opened it;
//!    what came in clear by an unprotected port must match a BYPASS policy;
//! 2. where does it go? — to this machine, or to a port by its route;
//! 3. may it go out? — whatever leaves by an unprotected port passes the outbound SPD, whether it
//!    came from a protected port, an SA, or this machine.
//!
//! The security groups of a port judge what comes by it, in clear or opened, before the SPD does;
//! those of the port that a packet leaves by judge after it. A packet that stays inside is asked
//! all that with its first question, so its route is looked up before it is asked.
//!
//! The first and the third are asked of [`Tables`]. The flow cache is asked before them, and before
//! the route. It remembers what depends on the flow alone: their verdict and where the route led.
//! What depends on more is asked of each packet: whose address it comes from, what an ICMP error
//! quotes, whether it is for the machine itself, what `allow_host` says of it.
//!
//! [`decide_one`] asks the same questions of one packet, without cache and counters: the twin that
//! `explain` and captures run, and that the batch is tested against.

mod audited;
mod crossing;
mod lookup_batch;
mod routing;
mod tagged;

use policy::{
    Consultation, Direction, EgressClass, Exit, FlowAction, FlowVerdict, KnownConnections,
    Question, Refusal, Scope, Tables, TrackedVerdict, Tracks,
};
use wire::{Flow, Frames, icmp};

use self::audited::audit;
use crate::addresses::is_inside;
use crate::audit::FastTier;
use crate::batch_context::BatchContext;
use crate::cache::{CachedRoute, FlowCache, Lane, Lanes, Said, Words};
use crate::carve_out::{CarveOut, carve_out};
use crate::connections::Gate;
use crate::ids::NextHopId;
use crate::mtu_messages;
use crate::port::{Adjacency, Side};
use crate::row::{Origin, Quote, Row, State};
use crate::snapshot::Snapshot;
use crate::tracking::{Appearance, Foreseen, SeenConnection, Tracker};
use crate::verdict::DropReason;
pub(crate) use crossing::{
    asks_inside, cross_again, judge_inside, may_carry_fragment, question_inside, tenants_fragment,
    tenants_packet, too_big,
};
use lookup_batch::{Answer, Entry, LookupBatch};
use routing::route;
pub(crate) use routing::{Routed, route_carried, route_flow};
pub(crate) use tagged::route_inside;

/// Lists that are filled anew for each round of lookups; kept so that a batch allocates nothing.
#[derive(Default)]
pub(crate) struct LookupLists {
    lanes: Lanes,
    batch: LookupBatch,
    crossing: crossing::Crossing,
}

/// Decides about every row that is an IP packet in cleartext. Requires a cache that is in step with
/// the snapshot.
pub(crate) fn decide<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut [Row],
    lookups: &mut LookupLists,
    mut cache: Option<&mut FlowCache>,
) {
    let from_outside = |row: &Row| {
        matches!(row.origin, Origin::Opened(_))
            || context.snapshot.path_port(row.ingress).side == Side::Unprotected
    };
    if rows.iter().any(from_outside) {
        decide_inbound(context, rows, lookups, cache.as_deref_mut());
    }
    if context.snapshot.overlays().is_some() {
        crossing::cross(context, rows, lookups, cache.as_deref_mut());
    }
    decide_outbound(context, rows, lookups, cache);
}

/// The first question, for the rows that it concerns. Those that go from it straight to a protected
/// port are settled too.
fn decide_inbound<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut [Row],
    lookups: &mut LookupLists,
    mut cache: Option<&mut FlowCache>,
) {
    let LookupLists { lanes, batch, .. } = lookups;
    lanes.clear();
    batch.clear();
    for (number, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.state == State::Clear) {
        let flow = &row.packet.flow;
        match inbound_check(context.snapshot, row, row.bytes(context.frames)) {
            InboundCheck::Skip => {}
            InboundCheck::Lookup => {
                if row.origin == Origin::Received && icmp::is_too_big(flow) {
                    mtu_messages::learn(context, row);
                }
                let scope = inbound_scope(context.snapshot, row);
                let is_served = cache.as_ref().is_some_and(|cache| cache.serves(scope));
                if !(is_served && lanes.push(number, scope, flow)) {
                    let route = inbound_route(context.snapshot, row);
                    let exit = inbound_exit(context.snapshot, route);
                    batch.enqueue(number, (scope, exit), *flow, route.hop());
                }
            }
            InboundCheck::LookupQuoted(quoted) => {
                let asked = Asked::quoting(context.snapshot, row, &quoted);
                let (verdict, tracked) = asked.classify(context.snapshot.tables());
                let verdict = settle(context, row, (&verdict, tracked.as_ref()), None);
                context.counters.full_lookups += 1;
                count(context, row, Direction::Inbound, &verdict);
                let bytes = || row.bytes(context.frames);
                if let Err(reason) = may_enter(context.snapshot, row, &verdict, bytes) {
                    context.drop(row, reason);
                }
            }
            InboundCheck::Host => row.state = State::Host,
            InboundCheck::Drop(reason) => context.drop(row, reason),
        }
    }
    if let Some(cache) = &mut cache {
        let Lanes { v4, v6 } = lanes;
        recall_inbound(context, rows, v4, batch, cache);
        recall_inbound(context, rows, v6, batch, cache);
    }
    batch.run(context.snapshot, context.counters);
    for Answer { pending, verdict, tracked } in batch.answers() {
        let row = &mut rows[pending.row()];
        let settled = settle(context, row, (verdict, tracked), pending.hop());
        count(context, row, Direction::Inbound, &settled);
        let bytes = || row.bytes(context.frames);
        let refused = may_enter(context.snapshot, row, &settled, bytes).err();
        if let (Some(cache), Some(entry)) = (&mut cache, pending.entry()) {
            let route = match (refused, verdict.egress, pending.hop()) {
                (Some(_), EgressClass::Any, _) => CachedRoute::Unknown,
                (_, _, Some(hop)) => CachedRoute::Via(hop),
                (_, _, None) => CachedRoute::Other,
            };
            remember(lanes, entry, (said(verdict, tracked, &settled), route), cache, context);
        }
        match (refused, pending.hop()) {
            (Some(reason), _) => context.drop(row, reason),
            (None, Some(hop)) => forward(context, row, hop),
            (None, None) => {}
        }
    }
}

/// Answers the first question for the packets of a lane; those that are not remembered go to the
/// batch of lookups.
fn recall_inbound<F: Frames, const WORDS: usize>(
    context: &mut BatchContext<'_, F>,
    rows: &mut [Row],
    lane: &mut Lane<WORDS>,
    batch: &mut LookupBatch,
    cache: &mut FlowCache,
) where
    Flow: Words<WORDS>,
{
    cache.look_up(lane);
    batch.begin_lane();
    let mut misses = 0;
    for at in 0..lane.len() {
        let row = &mut rows[lane.row(at)];
        let found = cache.found(lane, at).map(|(verdict, route)| (*verdict, route));
        let now = match found {
            Some((_, route)) if route != CachedRoute::Unknown => route,
            // Refused whatever its way.
            Some((verdict, route)) if !verdict.passes() && verdict.egress == EgressClass::Any => {
                route
            }
            Some(_) | None => inbound_route(context.snapshot, row),
        };
        let exit = inbound_exit(context.snapshot, now);
        let egress = context.snapshot.tables().egress_class(lane.scope(at), exit);
        // Where the routes have changed the packet may leave by a port with other groups.
        let still_holds = |(verdict, _): &(FlowVerdict, CachedRoute)| verdict.egress.admits(egress);
        let Some((verdict, route)) = found.filter(still_holds) else {
            let flow = row.packet.flow;
            misses += usize::from(batch.enqueue_unique(lane, at, (flow, exit), now.hop()));
            continue;
        };
        let tracked = cache.found_tracked(lane, at).copied();
        if tracked.is_none() {
            let about = (row.ingress, &row.packet.flow);
            audit(context, FastTier::Cache, about, (lane.scope(at), exit), &verdict);
        }
        let settled = settle(context, row, (&verdict, tracked.as_ref()), now.hop());
        if now != route {
            let counters = &mut context.counters.cache;
            counters.routes += 1;
            let said = said(&verdict, tracked.as_ref(), &settled);
            cache.remember(lane, at, (said, now), counters);
        }
        count(context, row, Direction::Inbound, &settled);
        let bytes = || row.bytes(context.frames);
        if let Err(reason) = may_enter(context.snapshot, row, &settled, bytes) {
            context.drop(row, reason);
            continue;
        }
        if let CachedRoute::Via(hop) = now {
            forward(context, row, hop);
        }
    }
    context.counters.cache.count(lane.len(), misses);
}

/// Returns the route to remember for a packet that may come in.
fn inbound_route(snapshot: &Snapshot, row: &Row) -> CachedRoute {
    match route(snapshot, row) {
        Ok(Routed::Inside(hop)) => CachedRoute::Via(hop),
        Ok(Routed::Outside(_) | Routed::Host) | Err(_) => CachedRoute::Other,
    }
}

/// The way out, as far as the first question asks about it.
fn inbound_exit(snapshot: &Snapshot, route: CachedRoute) -> Exit {
    route.hop().map_or(Exit::Other, |hop| snapshot.exit(hop))
}

/// The second and the third question.
fn decide_outbound<F: Frames>(
    context: &mut BatchContext<'_, F>,
    rows: &mut [Row],
    lookups: &mut LookupLists,
    mut cache: Option<&mut FlowCache>,
) {
    let LookupLists { lanes, batch, .. } = lookups;
    lanes.clear();
    batch.clear();
    for (number, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.state == State::Clear) {
        let flow = &row.packet.flow;
        let scope = outbound_scope(context.snapshot, row);
        if let Some((hop, verdict)) = tagged::tagged(context, row, scope) {
            apply_verdict(context, row, hop, &verdict);
            continue;
        }
        // Of what is not forwarded other checks are made: its routes are not in the cache.
        let is_served = |cache: &&mut FlowCache| row.origin.is_forwarded() && cache.serves(scope);
        if cache.as_ref().is_some_and(is_served) && lanes.push(number, scope, flow) {
            continue;
        }
        let flow = *flow;
        let routed = route(context.snapshot, row);
        if let Some((hop, exit)) = settle_or_ask(context, row, scope, routed) {
            batch.enqueue(number, (scope, exit), flow, Some(hop));
        }
    }
    if let Some(cache) = &mut cache {
        let Lanes { v4, v6 } = lanes;
        recall_outbound(context, rows, v4, batch, cache);
        recall_outbound(context, rows, v6, batch, cache);
    }
    batch.run(context.snapshot, context.counters);
    for Answer { pending, verdict, tracked } in batch.answers() {
        let (hop, row) =
            (pending.hop().expect("what asks has a next hop"), &mut rows[pending.row()]);
        let settled = settle(context, row, (verdict, tracked), Some(hop));
        if let (Some(cache), Some(entry)) = (&mut cache, pending.entry()) {
            let said = said(verdict, tracked, &settled);
            remember(lanes, entry, (said, CachedRoute::Via(hop)), cache, context);
        }
        apply_verdict(context, row, hop, &settled);
    }
}

/// Answers the second and the third question for the packets of a lane; those that are not
/// remembered go to the batch of lookups.
fn recall_outbound<F: Frames, const WORDS: usize>(
    context: &mut BatchContext<'_, F>,
    rows: &mut [Row],
    lane: &mut Lane<WORDS>,
    batch: &mut LookupBatch,
    cache: &mut FlowCache,
) where
    Flow: Words<WORDS>,
{
    cache.look_up(lane);
    batch.begin_lane();
    let mut misses = 0;
    for at in 0..lane.len() {
        let row = &mut rows[lane.row(at)];
        match cache.found(lane, at) {
            Some((verdict, CachedRoute::Via(hop))) => match cache.found_tracked(lane, at) {
                None => {
                    let question = (lane.scope(at), context.snapshot.exit(hop));
                    let about = (row.ingress, &row.packet.flow);
                    audit(context, FastTier::Cache, about, question, verdict);
                    apply_verdict(context, row, hop, verdict);
                }
                tracked => {
                    let settled = settle(context, row, (verdict, tracked), Some(hop));
                    apply_verdict(context, row, hop, &settled);
                }
            },
            found => {
                let found = found.map(|(verdict, _)| *verdict);
                let tracked = cache.found_tracked(lane, at).copied();
                let (scope, routed) = (lane.scope(at), route(context.snapshot, row));
                let Some((hop, exit)) = settle_or_ask(context, row, scope, routed) else {
                    if let Ok(Routed::Inside(hop)) = routed {
                        let said = Said::Verdict(&FlowVerdict::NOT_ASKED);
                        let route = CachedRoute::Via(hop);
                        cache.remember(lane, at, (said, route), &mut context.counters.cache);
                    }
                    misses += usize::from(found.is_none());
                    continue;
                };
                let egress = context.snapshot.tables().egress_class(scope, exit);
                let is_asked = |verdict: &FlowVerdict| verdict.is_asked() || tracked.is_some();
                let still_holds =
                    |verdict: &FlowVerdict| is_asked(verdict) && verdict.egress.admits(egress);
                match found.filter(still_holds) {
                    // The routes have changed, and the packet leaves on the same side, by a port
                    // with the same groups.
                    Some(verdict) => {
                        let tracked = tracked.as_ref();
                        let settled = settle(context, row, (&verdict, tracked), Some(hop));
                        let said = said(&verdict, tracked, &settled);
                        let counters = &mut context.counters.cache;
                        counters.routes += 1;
                        cache.remember(lane, at, (said, CachedRoute::Via(hop)), counters);
                        apply_verdict(context, row, hop, &settled);
                    }
                    None => {
                        let asked = (row.packet.flow, exit);
                        misses += usize::from(batch.enqueue_unique(lane, at, asked, Some(hop)));
                    }
                }
            }
        }
    }
    context.counters.cache.count(lane.len(), misses);
}

/// Remembers what was said of the packet of a lane.
fn remember<F>(
    lanes: &Lanes,
    entry: Entry,
    said: (Said<'_>, CachedRoute),
    cache: &mut FlowCache,
    context: &mut BatchContext<'_, F>,
) {
    let counters = &mut context.counters.cache;
    match entry {
        Entry::V4(at) => cache.remember(&lanes.v4, at.into(), said, counters),
        Entry::V6(at) => cache.remember(&lanes.v6, at.into(), said, counters),
    }
}

/// Settles a row that nothing has to be asked about; else returns the next hop by which it leaves
/// if the tables say so, and the way out.
fn settle_or_ask<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &mut Row,
    scope: Scope,
    routed: Result<Routed, DropReason>,
) -> Option<(NextHopId, Exit)> {
    match routed {
        Ok(Routed::Outside(hop) | Routed::Inside(hop)) => {
            let exit = context.snapshot.exit(hop);
            if context.snapshot.tables().asks(scope, exit) {
                return Some((hop, exit));
            }
            forward(context, row, hop);
        }
        Ok(Routed::Host) => row.state = State::Host,
        Err(reason) => context.drop(row, reason),
    }
    None
}

fn apply_verdict<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &mut Row,
    hop: NextHopId,
    verdict: &FlowVerdict,
) {
    count(context, row, Direction::Outbound, verdict);
    match may_leave(context.snapshot, row, hop, verdict) {
        Ok(state) => row.state = state,
        Err(reason) => context.drop(row, reason),
    }
}

/// The part of an answer that is remembered of a flow: the verdict, or each book's answer.
fn said<'a>(
    verdict: &'a FlowVerdict,
    tracked: Option<&'a TrackedVerdict>,
    settled: &'a FlowVerdict,
) -> Said<'a> {
    tracked.map_or(Said::Verdict(verdict), |tracked| Said::Tracked(tracked, settled))
}

/// Settles the verdict on a packet that is to leave by a next hop, or of which that is not asked:
/// where connections are tracked it is of one, or begins one.
#[inline]
fn settle<F: Frames>(
    context: &BatchContext<'_, F>,
    row: &Row,
    (verdict, tracked): (&FlowVerdict, Option<&TrackedVerdict>),
    hop: Option<NextHopId>,
) -> FlowVerdict {
    match tracked {
        None => *verdict,
        Some(tracked) => settle_tracked(context, row, tracked, hop),
    }
}

#[inline(never)]
fn settle_tracked<F: Frames>(
    context: &BatchContext<'_, F>,
    row: &Row,
    tracked: &TrackedVerdict,
    hop: Option<NextHopId>,
) -> FlowVerdict {
    let appearance = Appearance::of(row, row.bytes(context.frames));
    let egress = hop.map(|hop| context.snapshot.gate(context.snapshot.egress(hop)));
    let ingress = context.snapshot.gate(row.ingress);
    let tracker = Tracker::new(context.snapshot, context.now_ns);
    tracker.settle(tracked, appearance.as_ref(), (ingress, egress))
}

fn forward<F: Frames>(context: &mut BatchContext<'_, F>, row: &mut Row, hop: NextHopId) {
    row.state = forwarded(context.snapshot, row, hop);
}

/// The state of a row that leaves in clear by a next hop.
fn forwarded(snapshot: &Snapshot, row: &Row, hop: NextHopId) -> State {
    let destination = row.packet.flow.destination_address();
    match row.origin {
        Origin::Carried(Some(mac)) if snapshot.is_on_link(hop) => {
            State::Forward(Adjacency { port: snapshot.egress(hop), mac: Some(mac) })
        }
        _ => State::Forward(snapshot.adjacency(hop, destination)),
    }
}

/// The check of a row before it comes in.
enum InboundCheck {
    /// None.
    Skip,
    /// The verdict on the packet's own flow.
    Lookup,
    /// The verdict on the flow that the packet quotes, in its stead.
    LookupQuoted(Flow),
    /// None, it is Linux's.
    Host,
    /// None, it is dropped.
    Drop(DropReason),
}

fn count<F>(
    context: &mut BatchContext<'_, F>,
    row: &Row,
    direction: Direction,
    verdict: &FlowVerdict,
) {
    for slot in verdict.deciders.slots() {
        context.counters.policy(direction, slot, row.packet.length as usize);
    }
}

/// The scope in which a packet is asked whether it may come in.
fn inbound_scope(snapshot: &Snapshot, row: &Row) -> Scope {
    let opened_by = match row.origin {
        Origin::Opened(set) => Some(set),
        Origin::Received
        | Origin::Host
        | Origin::Made(_)
        | Origin::Sealed(_)
        | Origin::Carried(_) => None,
    };
    snapshot.scope(row.ingress, Question::Enter, row.packet.flow.family, opened_by)
}

/// The scope in which a packet is asked whether it may leave: what came in clear by a protected
/// port was not asked before whether it may come.
fn outbound_scope(snapshot: &Snapshot, row: &Row) -> Scope {
    let is_new =
        row.origin == Origin::Received && snapshot.path_port(row.ingress).side == Side::Protected;
    let question = if is_new { Question::Through } else { Question::Leave };
    snapshot.scope(row.ingress, question, row.packet.flow.family, None)
}

/// The tables' verdict, and where connections are tracked what each book says by itself.
type Replied = (FlowVerdict, Option<TrackedVerdict>);

/// A question to the tables about one packet.
pub(crate) struct Asked<'a> {
    scope: Scope,
    exit: Exit,
    flow: &'a Flow,
    /// The flow that the SPD judges in its stead: an opened ICMP error quotes the answer to it.
    quoted: Option<&'a Flow>,
}

impl<'a> Asked<'a> {
    /// A question about a packet's own flow.
    fn of(scope: Scope, exit: Exit, flow: &'a Flow) -> Asked<'a> {
        Asked { scope, exit, flow, quoted: None }
    }

    fn quoting(snapshot: &Snapshot, row: &'a Row, quoted: &'a Flow) -> Asked<'a> {
        let (scope, flow) = (inbound_scope(snapshot, row), &row.packet.flow);
        Asked { scope, exit: Exit::Other, flow, quoted: Some(quoted) }
    }

    /// Says of each book that is asked about a packet of these connections why it says so.
    pub(crate) fn explain(
        &self,
        tables: &Tables,
        known: KnownConnections,
        told: &mut impl FnMut(Consultation),
    ) {
        let Asked { scope, exit, flow, quoted } = *self;
        match quoted {
            Some(quoted) => tables.explain_quoting(scope, (flow, quoted), known, told),
            None => tables.explain(scope, exit, flow, known, told),
        }
    }

    /// Asks the tables.
    fn classify(&self, tables: &Tables) -> Replied {
        if self.is_tracked(tables) {
            let mut tracked = [TrackedVerdict::NOT_ASKED];
            match self.quoted {
                Some(quoted) => tracked[0] = tables.track_quoting(self.scope, self.flow, quoted),
                None => {
                    let flow = std::slice::from_ref(self.flow);
                    tables.classify_tracked(self.scope, self.exit, flow, &mut tracked);
                }
            }
            return (*tracked[0].plain(), Some(tracked[0]));
        }
        if let Some(quoted) = self.quoted {
            return (tables.judge_quoting(self.scope, self.flow, quoted), None);
        }
        let mut verdict = [FlowVerdict::NOT_ASKED];
        tables.classify(self.scope, self.exit, std::slice::from_ref(self.flow), &mut verdict);
        (verdict[0], None)
    }

    /// Asks the tables, and looks for connections at the gates of the packet's way, where they are
    /// tracked; changes none. `begun`: the connection that the packet has begun on its way in.
    fn foresee(
        &self,
        (snapshot, now_ns): (&Snapshot, u64),
        appearance: impl FnOnce() -> Option<Appearance>,
        gates: (Gate, Option<Gate>),
        begun: Option<SeenConnection>,
    ) -> Foreseen {
        let (verdict, tracked) = self.classify(snapshot.tables());
        tracked.map_or(Foreseen::of(verdict), |tracked| {
            let appearance = appearance();
            Tracker::new(snapshot, now_ns).foresee(&tracked, appearance.as_ref(), gates, begun)
        })
    }

    /// Returns whether connections are tracked where the packet passes.
    pub(crate) fn is_tracked(&self, tables: &Tables) -> bool {
        tables.tracks(self.scope, self.exit) != Tracks::default()
    }

    /// The question that is asked.
    pub(crate) fn question(&self, tables: &Tables) -> Question {
        tables.question(self.scope)
    }
}

/// Decides about one packet as [`decide`] does; `bytes` is the packet, and `now_ns` the time by the
/// walk's clock. `told` hears each question to the policy tables, and what follows from the answer.
/// Counts nothing, and changes no connection.
///
/// # Errors
/// The reason why it is dropped.
pub(crate) fn decide_one(
    (snapshot, now_ns): (&Snapshot, u64),
    row: &Row,
    bytes: &[u8],
    mut told: impl FnMut(&Asked<'_>, &Foreseen),
) -> Result<State, DropReason> {
    let flow = &row.packet.flow;
    let tables = snapshot.tables();
    let foresee = |asked: &Asked<'_>, row: &Row, hop: Option<NextHopId>, begun| {
        let appearance = || Appearance::of(row, bytes);
        let egress = hop.map(|hop| snapshot.gate(snapshot.egress(hop)));
        let gates = (snapshot.gate(row.ingress), egress);
        asked.foresee((snapshot, now_ns), appearance, gates, begun)
    };
    let mut begun = None;
    let mut verdict_on = |asked: &Asked<'_>, hop: Option<NextHopId>| {
        let foreseen = foresee(asked, row, hop, None);
        told(asked, &foreseen);
        begun = foreseen.connections[0].filter(|connection| connection.is.is_none());
        foreseen.verdict
    };
    match inbound_check(snapshot, row, bytes) {
        InboundCheck::Skip => {}
        InboundCheck::Lookup => {
            let route = inbound_route(snapshot, row);
            let (scope, exit) = (inbound_scope(snapshot, row), inbound_exit(snapshot, route));
            let verdict = verdict_on(&Asked { scope, exit, flow, quoted: None }, route.hop());
            may_enter(snapshot, row, &verdict, || bytes)?;
            if let CachedRoute::Via(hop) = route {
                return Ok(forwarded(snapshot, row, hop));
            }
        }
        InboundCheck::LookupQuoted(quoted) => {
            let verdict = verdict_on(&Asked::quoting(snapshot, row, &quoted), None);
            may_enter(snapshot, row, &verdict, || bytes)?;
        }
        InboundCheck::Host => return Ok(State::Host),
        InboundCheck::Drop(reason) => return Err(reason),
    }
    let crossed = crossing::cross_one((snapshot, now_ns), row, bytes, &mut told)?;
    let crossed = crossed.map(|flow| row.carried(flow));
    // What a virtual network carried on is another packet.
    let begun = begun.filter(|_| crossed.is_none());
    let row = crossed.as_ref().unwrap_or(row);
    let flow = &row.packet.flow;
    match route(snapshot, row)? {
        Routed::Host => Ok(State::Host),
        Routed::Inside(hop) | Routed::Outside(hop) => {
            let (scope, exit) = (outbound_scope(snapshot, row), snapshot.exit(hop));
            if !tables.asks(scope, exit) {
                return Ok(forwarded(snapshot, row, hop));
            }
            let asked = Asked { scope, exit, flow, quoted: None };
            let foreseen = foresee(&asked, row, Some(hop), begun);
            told(&asked, &foreseen);
            may_leave(snapshot, row, hop, &foreseen.verdict)
        }
    }
}

/// Returns the check of a row before it comes in; `bytes` is the packet.
fn inbound_check(snapshot: &Snapshot, row: &Row, bytes: &[u8]) -> InboundCheck {
    match row.origin {
        Origin::Opened(set) if !snapshot.may_come_by(set, row.packet.flow.source_address()) => {
            InboundCheck::Drop(DropReason::SelectorMismatch)
        }
        Origin::Opened(_) if icmp::is_from_routers(&row.packet.flow) => {
            match judged_by_quote(snapshot, row, bytes) {
                Some(flow) => InboundCheck::LookupQuoted(flow),
                None => InboundCheck::Drop(DropReason::SelectorMismatch),
            }
        }
        Origin::Opened(_) => InboundCheck::Lookup,
        Origin::Received if snapshot.path_port(row.ingress).side == Side::Unprotected => {
            // Before the carve-out: nobody outside speaks from an address of ours or inside.
            if is_inside(snapshot, row.packet.flow.source_address()) {
                return InboundCheck::Drop(DropReason::BadAddress);
            }
            match carve_out(snapshot, row, bytes) {
                CarveOut::Always => InboundCheck::Host,
                // `allow_host` decides only what no policy wants (RFC 4301 §5.2).
                CarveOut::UnlessWanted | CarveOut::No => InboundCheck::Lookup,
            }
        }
        Origin::Received
        | Origin::Host
        | Origin::Made(_)
        | Origin::Sealed(_)
        | Origin::Carried(_) => InboundCheck::Skip,
    }
}

/// The flow that an opened ICMP error is judged by. It comes from a router that no selector names,
/// so that is the answer to the packet it quotes (RFC 4301 §6.2).
///
/// `None`: the peer may not send it. It quotes nothing, or another error; it is not for who sent
/// what it quotes; or it claims to come from our side, where the peer has no routers.
pub(crate) fn judged_by_quote(snapshot: &Snapshot, row: &Row, bytes: &[u8]) -> Option<Flow> {
    let flow = &row.packet.flow;
    let quoted = icmp::quoted_flow(bytes, &row.packet)?;
    let may_come = quoted.source == flow.destination
        && !icmp::is_error(&quoted)
        && !is_inside(snapshot, flow.source_address());
    may_come.then(|| quoted.reversed())
}

/// Says whether a packet that an SA opened may come in, as the first question does, and counts it;
/// for ESP in it that is to be opened in its turn.
///
/// # Errors
/// The reason why it may not.
#[cold]
pub(crate) fn admit<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &Row,
) -> Result<(), DropReason> {
    match inbound_check(context.snapshot, row, row.bytes(context.frames)) {
        InboundCheck::Lookup => {}
        InboundCheck::Drop(reason) => return Err(reason),
        // No ESP that was opened.
        InboundCheck::Skip | InboundCheck::Host | InboundCheck::LookupQuoted(_) => {
            return Err(DropReason::SelectorMismatch);
        }
    }
    let asked = Asked::of(inbound_scope(context.snapshot, row), Exit::Other, &row.packet.flow);
    let (verdict, tracked) = asked.classify(context.snapshot.tables());
    let verdict = settle(context, row, (&verdict, tracked.as_ref()), None);
    context.counters.full_lookups += 1;
    count(context, row, Direction::Inbound, &verdict);
    let bytes = || row.bytes(context.frames);
    may_enter(context.snapshot, row, &verdict, bytes)
}

/// Says whether a packet may come in, by the verdict on it or, where no rule matches, by
/// `allow_host`, for which `bytes` shows the packet.
///
/// # Errors
/// The reason why it may not.
fn may_enter<'b>(
    snapshot: &Snapshot,
    row: &Row,
    verdict: &FlowVerdict,
    bytes: impl FnOnce() -> &'b [u8],
) -> Result<(), DropReason> {
    match verdict.action {
        FlowAction::Permit | FlowAction::Protect(_) => Ok(()),
        FlowAction::Refuse(Refusal::NoMatch) => without_policy(snapshot, row, bytes()),
        FlowAction::Refuse(refusal) => Err(refusal.into()),
    }
}

/// Says whether a cleartext packet from outside that no rule matches may come in: `allow_host`
/// lists it. `bytes` is the packet.
///
/// # Errors
/// [`DropReason::NoMatch`]: `allow_host` does not list it.
#[cold]
fn without_policy(snapshot: &Snapshot, row: &Row, bytes: &[u8]) -> Result<(), DropReason> {
    match carve_out(snapshot, row, bytes) {
        CarveOut::No => Err(DropReason::NoMatch),
        CarveOut::UnlessWanted | CarveOut::Always => Ok(()),
    }
}

/// Returns the state of a row that leaves by a next hop, by the verdict on it.
///
/// # Errors
/// The reason why it may not leave.
fn may_leave(
    snapshot: &Snapshot,
    row: &Row,
    hop: NextHopId,
    verdict: &FlowVerdict,
) -> Result<State, DropReason> {
    match verdict.action {
        FlowAction::Protect(set) => Ok(State::Protect(set)),
        FlowAction::Permit
            if row.origin == Origin::Made(Quote::Protected)
                && snapshot.side_of(hop) == Side::Unprotected =>
        {
            Err(DropReason::IcmpInClear)
        }
        FlowAction::Permit => Ok(forwarded(snapshot, row, hop)),
        FlowAction::Refuse(refusal) => Err(refusal.into()),
    }
}
