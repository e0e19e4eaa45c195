//! Decides about packets whose flows are in a column: asks the cache first, then the policy tables
//! about misses.
//!
//! Every verdict comes from where the general walk has it from: the cache, or the route and
//! [`Tables::classify`](policy::Tables::classify). What the general walk looks at besides, it looks
//! at before it remembers a flow; what is remembered here is looked at likewise
//! (see [`leads_on`]).

use ipsec::OpenJob;
use policy::{EgressClass, Exit, FlowVerdict, Scope, TrackedVerdict};
use wire::{BATCH, Family, Flow, Frames, Received};

use super::Row;
use super::ahead;
use super::connection_keys::{TrackedHead, TrackingColumns};
use super::prepared_path::{Decision, Heading, PreparedPaths};
use crate::batch_context::BatchContext;
use crate::cache::{CachedRoute, Column, Firsts, FlowCache, Said, Scopes, Value, bits};
use crate::decide::{Routed, route_flow};
use crate::ids::{NextHopId, PortId};
use crate::routes::LastRoute;
use crate::snapshot::Snapshot;

/// Lists for flows that the cache does not know, kept over batches.
#[derive(Default)]
pub(super) struct Learning {
    pub(super) pending: Vec<PendingLookup>,
    /// Flows that the tables are asked about, with their scopes and ways out.
    pub(super) flows: Vec<Flow>,
    pub(super) questions: Vec<(Scope, Exit)>,
    /// Verdicts of the tables; behind them what is left of larger batches.
    pub(super) verdicts: Vec<FlowVerdict>,
    /// The answer of each book by itself, of the flows whose connections are tracked.
    pub(super) tracked: Vec<Option<TrackedVerdict>>,
    /// Those answers while a question is asked.
    pub(super) said: Vec<TrackedVerdict>,
}

/// A packet whose flow is not known.
#[derive(Clone, Copy)]
pub(super) struct PendingLookup {
    pub(super) place: usize,
    pub(super) hop: NextHopId,
    /// The place of its flow among those that the tables are asked about; `None`: none has to be.
    pub(super) flow: Option<usize>,
    /// True if no packet of the batch before it has its flow.
    pub(super) is_first: bool,
}

/// The frames of packets, by place.
#[derive(Clone, Copy)]
pub(super) enum FramesOf<'a> {
    /// Of packets as they were received.
    Received(&'a [Received]),
    /// Of packets that were opened.
    Opened(&'a [OpenJob; BATCH]),
}

/// The packets that are decided together.
pub(super) struct PacketGroup<'a> {
    pub(super) ingress: PortId,
    pub(super) frames: FramesOf<'a>,
    pub(super) scopes: Scopes<'a>,
    pub(super) heading: Heading,
    pub(super) family: Family,
    /// A bit a packet.
    pub(super) mask: u64,
}

/// The lists that decisions are written into.
pub(super) struct Judge<'a> {
    pub(super) rows: &'a mut [Row; BATCH],
    pub(super) paths: &'a mut PreparedPaths,
    pub(super) learning: &'a mut Learning,
    pub(super) tracking: &'a mut TrackingColumns,
    /// A bit for each packet whose flow had no entry.
    pub(super) misses: &'a mut u64,
}

impl Judge<'_> {
    /// Writes path and decision of each packet into its row, and returns which packets have a path
    /// and fit: the others are for the general walk.
    #[inline(always)]
    pub(super) fn judge<const HEAD: usize, const WORDS: usize, F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        cache: Option<&mut FlowCache>,
        column: &mut Column<HEAD>,
        group: &PacketGroup<'_>,
    ) -> u64
    where
        [u64; HEAD]: TrackedHead,
    {
        let PacketGroup { scopes, mask, .. } = *group;
        if context.snapshot.spd().tracks_any(group.family) {
            return self.judge_tracked::<HEAD, WORDS, F>(context, cache, column, group);
        }
        let Some(cache) = cache.filter(|cache| cache.serves(scopes.of(first(mask)))) else {
            return self.learn::<HEAD, WORDS, F>(context, None, column, group, mask);
        };
        let range = first(mask)..64 - mask.leading_zeros() as usize;
        let missing = cache.look_up_column::<HEAD, WORDS>(scopes, column, range) & mask;
        let mut fit = self.resolve::<HEAD, WORDS, F>(context, cache, column, group);
        if missing != 0 {
            fit |= self.learn::<HEAD, WORDS, F>(context, Some(cache), column, group, missing);
        }
        fit
    }

    /// Makes decisions of what the cache said.
    #[inline(always)]
    pub(super) fn resolve<const HEAD: usize, const WORDS: usize, F>(
        &mut self,
        context: &BatchContext<'_, F>,
        cache: &FlowCache,
        column: &Column<HEAD>,
        group: &PacketGroup<'_>,
    ) -> u64 {
        let Judge { rows, paths, .. } = self;
        let PacketGroup { heading, family, mask, .. } = *group;
        let (mut last, mut said) = (Value::default(), Decision::NONE);
        let mut one = |place: usize, row: &mut Row, value: Value| {
            if value != last {
                let destination = || column.flow::<WORDS>(place).destination_address();
                said = paths.by_entry(context, (value, cache), (heading, family), destination);
                // A decision for one destination says nothing of the next packet.
                last = if said.is_on_link { Value::OF_NO_ENTRY } else { value };
            }
            (row.path, row.decision) = (said.path, said.place);
            row.length <= said.mtu
        };
        let range = first(mask)..64 - mask.leading_zeros() as usize;
        let mut fit = 0u64;
        if mask >> range.start == u64::MAX >> (64 - range.len()) {
            let values = &column.values[range.clone()];
            if heading == Heading::Out {
                ahead::ask(context.snapshot, cache, values);
            }
            let rows = rows[range.clone()].iter_mut().zip(values);
            for (at, (row, value)) in rows.enumerate() {
                fit |= u64::from(one(range.start + at, row, *value)) << at;
            }
            fit << range.start
        } else {
            for place in bits(mask) {
                fit |= u64::from(one(place, &mut rows[place], column.values[place])) << place;
            }
            fit
        }
    }

    /// Asks the tables about all packets, which leave by one next hop; without a cache.
    #[inline(always)]
    pub(super) fn search<const HEAD: usize, const WORDS: usize, F>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        hop: NextHopId,
        column: &Column<HEAD>,
        group: &PacketGroup<'_>,
    ) -> u64 {
        let Judge { rows, paths, learning, .. } = self;
        let PacketGroup { scopes, heading, family, mask, .. } = *group;
        let Learning { flows, verdicts, .. } = &mut **learning;
        flows.clear();
        flows.extend(bits(mask).map(|place| column.flow::<WORDS>(place)));
        if verdicts.len() < flows.len() {
            verdicts.resize(flows.len(), FlowVerdict::NOT_ASKED);
        }
        let verdicts = &mut verdicts[..flows.len()];
        let (scope, exit) = (scopes.of(first(mask)), context.snapshot.exit(hop));
        context.snapshot.tables().classify(scope, exit, flows, verdicts);
        context.counters.full_lookups += flows.len() as u64;
        let (mut last, mut said, mut fit) = (None, Decision::NONE, 0u64);
        for (place, verdict) in bits(mask).zip(&*verdicts) {
            if last != Some(verdict) || said.is_on_link {
                last = Some(verdict);
                let destination = || column.flow::<WORDS>(place).destination_address();
                said = paths.by_verdict(context, (verdict, hop), (heading, family), destination);
            }
            let row = &mut rows[place];
            (row.path, row.decision) = (said.path, said.place);
            fit |= u64::from(row.length <= said.mtu) << place;
        }
        fit
    }

    /// Asks routes and tables about flows that the cache does not know, together, and has it
    /// remember what they say; returns which packets then have a path and fit.
    #[inline(never)]
    fn learn<const HEAD: usize, const WORDS: usize, F>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        mut cache: Option<&mut FlowCache>,
        column: &Column<HEAD>,
        group: &PacketGroup<'_>,
        missing: u64,
    ) -> u64 {
        let PacketGroup { scopes, heading, family, .. } = *group;
        let of = cache.as_deref();
        self.learning.collect::<HEAD, WORDS, F>(context, of, column, group, missing);
        self.learning.look_up(context);
        let Judge { rows, paths, learning, misses, .. } = self;
        let (mut last, mut said, mut fit) = (None, Decision::NONE, 0u64);
        for PendingLookup { place, hop, flow, is_first } in learning.pending.drain(..) {
            let verdict = flow.map_or(FlowVerdict::NOT_ASKED, |flow| learning.verdicts[flow]);
            if is_first && let Some(cache) = &mut cache {
                let (scope, counters) = (scopes.of(place), &mut context.counters.cache);
                let goes_nowhere = !verdict.passes() && verdict.egress == EgressClass::Any;
                let route = match heading == Heading::In && goes_nowhere {
                    true => CachedRoute::Unknown,
                    false => CachedRoute::Via(hop),
                };
                let told = (Said::Verdict(&verdict), route);
                cache.remember_head::<HEAD, WORDS>(column, place, scope, told, counters);
                **misses |= 1 << place;
            }
            if last != Some((verdict, hop)) || said.is_on_link {
                last = Some((verdict, hop));
                let destination = || column.flow::<WORDS>(place).destination_address();
                said = paths.by_verdict(context, (&verdict, hop), (heading, family), destination);
            }
            let row = &mut rows[place];
            (row.path, row.decision) = (said.path, said.place);
            fit |= u64::from(row.length <= said.mtu) << place;
        }
        fit
    }
}

impl Learning {
    /// Collects the flows that are to be asked about; with a cache, equal ones once. What has no
    /// route that the fast path goes is left out.
    pub(super) fn collect<const HEAD: usize, const WORDS: usize, F>(
        &mut self,
        context: &BatchContext<'_, F>,
        cache: Option<&FlowCache>,
        column: &Column<HEAD>,
        group: &PacketGroup<'_>,
        missing: u64,
    ) {
        let Learning { pending, flows, questions, .. } = self;
        pending.clear();
        flows.clear();
        questions.clear();
        let (mut firsts, mut last_route) = (Firsts::default(), LastRoute::nothing());
        let mut last_asked = None;
        for place in bits(missing) {
            let same = |other: usize| {
                column.heads[other] == column.heads[place]
                    && group.scopes.of(other) == group.scopes.of(place)
            };
            if cache.is_some()
                && let Some(first) =
                    firsts.find(column.hash(place), pending.len(), |at| same(pending[at].place))
            {
                pending.push(PendingLookup { place, is_first: false, ..pending[first] });
                continue;
            }
            let flow = column.flow::<WORDS>(place);
            let hop = leads_on(context.snapshot, &mut last_route, &flow, group.heading);
            let Some(hop) = hop else {
                firsts.forget_last();
                continue;
            };
            let question = (group.scopes.of(place), context.snapshot.exit(hop));
            let is_asked = match last_asked {
                Some((asked, is_asked)) if asked == question => is_asked,
                _ => context.snapshot.tables().asks(question.0, question.1),
            };
            last_asked = Some((question, is_asked));
            pending.push(PendingLookup {
                place,
                hop,
                flow: is_asked.then_some(flows.len()),
                is_first: true,
            });
            if is_asked {
                flows.push(flow);
                questions.push(question);
            }
        }
    }

    /// Asks the tables about all flows, those of one question together.
    fn look_up<F>(&mut self, context: &mut BatchContext<'_, F>) {
        let Learning { flows, questions, verdicts, .. } = self;
        if verdicts.len() < flows.len() {
            verdicts.resize(flows.len(), FlowVerdict::NOT_ASKED);
        }
        let mut start = 0;
        for alike in questions.chunk_by(|a, b| a == b) {
            let range = start..start + alike.len();
            start = range.end;
            let verdicts = &mut verdicts[range.clone()];
            let (scope, exit) = alike[0];
            context.snapshot.tables().classify(scope, exit, &flows[range], verdicts);
        }
        context.counters.full_lookups += flows.len() as u64;
    }
}

/// Returns the next hop of a flow whose packets the fast path can carry on: all that the general
/// walk looks at before it remembers a flow. `None`: the general walk says what becomes of them.
pub(super) fn leads_on(
    snapshot: &Snapshot,
    last_route: &mut LastRoute,
    flow: &Flow,
    heading: Heading,
) -> Option<NextHopId> {
    let is_unicast = |address: u128| match flow.family {
        Family::V4 => wire::packet::ipv4_is_unicast(address as u32),
        Family::V6 => wire::packet::ipv6_is_unicast(address),
    };
    if !is_unicast(flow.source) || !is_unicast(flow.destination) {
        return None;
    }
    match (route_flow(snapshot, last_route, flow).ok()?, heading) {
        (Routed::Inside(hop) | Routed::Outside(hop), Heading::Out)
        | (Routed::Inside(hop), Heading::In) => Some(hop),
        (Routed::Outside(_), Heading::In) | (Routed::Host, _) => None,
    }
}

/// The place of the lowest bit.
#[inline(always)]
pub(super) fn first(mask: u64) -> usize {
    mask.trailing_zeros() as usize
}
