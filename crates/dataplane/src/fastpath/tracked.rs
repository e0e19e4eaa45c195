//! Decides about packets of gateways that track connections: verdicts come from where
//! [`judge`](super::judge) has them from, and connections from where the general walk has them.
//!
//! Packets are taken in order, up to the first that is the general walk's: what is behind that one
//! goes there, too, so that each connection sees its packets in the order in which they came.
//!
//! Most packets change nothing of their connection. Once a second that is looked up: packets of
//! which the cache says the same together, and [`steady`](Judge::steady) decides about each by a
//! few compares. Then their entry is [marked](super::marked), and no connection is looked at. All
//! other packets are asked about one by one.

use std::ops::Range;

use policy::{DomainId, FlowVerdict, GroupSide, KnownConnections, Scope, TrackedVerdict, Tracks};
use wire::flow::protocol;
use wire::packet::{IPV4_BYTES, IPV6_BYTES};
use wire::{BATCH, Family, Frames};

use super::connection_keys::TrackedHead;
use super::judge::{FramesOf, Judge, Learning, PacketGroup, PendingLookup, first};
use super::marked::Markable;
use super::prepared_path::{Decision, PathId, PreparedPaths};
use crate::batch_context::BatchContext;
use crate::cache::{CachedRoute, Column, FlowCache, Said, Tick, Value, bits};
use crate::connections::{
    Connections, EventClass, FlowHead, Judgement, KeyColumn, KeyWords, SteadyConnection, Zone,
};
use crate::ids::{NextHopId, PortId};
use crate::snapshot::Snapshot;
use crate::tracking::{Appearance, Tracker};

/// Offset of the flags in a TCP header (RFC 9293 §3.1).
const TCP_FLAGS: usize = 13;
/// Set in the identity of a flow that has no ports ([`UpperKind`](wire::glance::UpperKind)).
const WITHOUT_PORTS: u64 = 0x03 << 40;

/// The answer about a flow: from the cache, or from the tables.
struct Answer<'a> {
    verdict: &'a FlowVerdict,
    tracked: Option<&'a TrackedVerdict>,
    hop: NextHopId,
}

/// A port that tracks connections, and the judgements of its groups that still hold.
#[derive(Clone, Copy)]
struct TrackingPort {
    zone: u64,
    /// [`Judgement::by`] of both sides' groups as they are now.
    holds: [u64; 2],
}

impl TrackingPort {
    fn new(snapshot: &Snapshot, port: PortId, family: Family) -> TrackingPort {
        let class = snapshot.path_port(port).class;
        let holds = GroupSide::ALL.map(|side| {
            let domain = DomainId::new(class, side.book(), family);
            let generation = snapshot.spd().generation(domain);
            Judgement { domain, generation, ..Judgement::UNKNOWN }.by()
        });
        TrackingPort { zone: Zone::of_port(port).key_word(), holds }
    }

    /// The connection of a packet that changes nothing of it, if its judgement still holds.
    #[inline(always)]
    fn found<K: KeyWords>(
        &self,
        connections: &Connections,
        keys: &KeyColumn<K>,
        packet: (usize, EventClass),
        now_s: u32,
    ) -> Option<SteadyConnection> {
        let found = connections.steady(keys, packet, now_s)?;
        ((self.holds[0] == found.by) | (self.holds[1] == found.by)).then_some(found)
    }
}

/// Packets that follow each other, and of which the cache says the same.
struct Alike<'a> {
    places: Range<usize>,
    connections: &'a Connections,
    now_s: u32,
    tracked: TrackedVerdict,
    hop: NextHopId,
    /// The port by which they came, and the one by which they leave, where these track.
    ports: [Option<TrackingPort>; 2],
    /// The decision on packets of connections that these rules let begin.
    last: Option<(KnownConnections, GivenDecision)>,
}

/// The packets of a group that the cache knows, and what is known of their marks.
struct Known<'a> {
    known: u64,
    marked: u64,
    markable: Option<Markable<'a>>,
}

/// A packet that changed nothing of its connections.
struct SteadyPacket {
    known: KnownConnections,
    /// Changes that were counted before the connections were looked at.
    changes: u8,
    may_be_marked: bool,
}

/// Marks the entry of a packet that changed nothing of its connections, if it may be.
#[inline(always)]
fn mark<const HEAD: usize, const WORDS: usize>(
    cache: &mut FlowCache,
    column: &Column<HEAD>,
    at: (usize, Scope),
    (tracked, steady): (&TrackedVerdict, &SteadyPacket),
    tick: Tick,
) {
    if steady.may_be_marked {
        let (said, mark) = ((tracked, steady.known), tick.mark(steady.changes));
        cache.mark_head::<HEAD, WORDS>(column, at, said, mark);
    }
}

/// Maximum unmarked packets of a batch beside marked ones.
const MOST_APART: u32 = 16;

/// Returns whether the ends of all `others` differ from the ends of all `marked` packets.
#[inline(never)]
fn are_apart<const HEAD: usize>(column: &Column<HEAD>, marked: u64, others: u64) -> bool
where
    [u64; HEAD]: FlowHead,
{
    if others.count_ones() > MOST_APART {
        return false;
    }
    let mut ends = [0u32; BATCH];
    for (place, (ends, head)) in ends.iter_mut().zip(&column.heads).enumerate() {
        *ends = if marked >> place & 1 != 0 { head.ends() | 1 } else { 0 };
    }
    bits(others).all(|place| {
        let of = column.heads[place].ends() | 1;
        !ends.iter().fold(false, |is_shared, ends| is_shared | (*ends == of))
    })
}

/// Returns the bits below the lowest bit of a mask; all bits for an empty mask.
#[inline(always)]
fn below(mask: u64) -> u64 {
    (mask & mask.wrapping_neg()).wrapping_sub(1)
}

/// Returns the second of a batch.
fn now_s<F>(context: &BatchContext<'_, F>) -> u32 {
    (context.now_ns / 1_000_000_000) as u32
}

/// The part of a decision that a packet's row takes.
#[derive(Clone, Copy)]
struct GivenDecision {
    path: PathId,
    place: u16,
    mtu: u32,
}

impl GivenDecision {
    const NONE: GivenDecision = GivenDecision { path: PathId::NONE, place: 0, mtu: 0 };
}

impl From<Decision> for GivenDecision {
    fn from(said: Decision) -> GivenDecision {
        GivenDecision { path: said.path, place: said.place, mtu: said.mtu }
    }
}

impl Judge<'_> {
    /// Writes path and decision of each packet into its row, as [`judge`](Self::judge) does, and
    /// moves connections on. Returns which packets have a path and fit: the first ones.
    #[inline(never)]
    pub(super) fn judge_tracked<const HEAD: usize, const WORDS: usize, F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        cache: Option<&mut FlowCache>,
        column: &mut Column<HEAD>,
        group: &PacketGroup<'_>,
    ) -> u64
    where
        [u64; HEAD]: TrackedHead,
    {
        let PacketGroup { scopes, ingress, mask, .. } = *group;
        let mut cache = cache.filter(|cache| cache.serves(scopes.of(first(mask))));
        let range = first(mask)..64 - mask.leading_zeros() as usize;
        let (mut known, mut markable) = (0, None);
        if let Some(cache) = &mut cache {
            known = mask & !cache.look_up_marked::<HEAD, WORDS>(scopes, column, range.clone());
            markable = context.snapshot.connections().and_then(|connections| {
                let tick = cache.tick(ingress, connections, now_s(context))?;
                Some(Markable { changes: connections.changes(), tick })
            });
        }
        let marked = match &markable {
            Some(markable) => self.marked(context, (column, group), markable, (range, known)),
            None => 0,
        };
        let of = Known { known, marked, markable };
        match cache {
            Some(cache) if marked == mask => {
                self.resolve::<HEAD, WORDS, F>(context, cache, column, group)
            }
            Some(cache) if marked != 0 && are_apart(column, marked, mask & !marked) => {
                self.judge_apart::<HEAD, WORDS, F>(context, cache, (column, group), of)
            }
            cache => self.judge_in_order::<HEAD, WORDS, F>(context, cache, (column, group), of),
        }
    }

    /// Decides about the packets of marked entries together, then about the others in order. The
    /// others belong to other connections. If another packet evicts a marked connection, the marked
    /// packets of this batch still pass, as beside an eviction by another worker.
    #[inline(never)]
    fn judge_apart<const HEAD: usize, const WORDS: usize, F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        cache: &mut FlowCache,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        Known { known, marked, markable }: Known<'_>,
    ) -> u64
    where
        [u64; HEAD]: TrackedHead,
    {
        let of_marked = PacketGroup { mask: marked, ..*group };
        let fit = self.resolve::<HEAD, WORDS, F>(context, cache, column, &of_marked);
        let unfit = marked & !fit;
        // The general walk takes all packets behind the first unfit one.
        let others = group.mask & !marked & below(unfit);
        let of_others = PacketGroup { mask: others, ..*group };
        let known = Known { known: known & others, marked: 0, markable };
        let others_fit = match others {
            0 => 0,
            _ => self.judge_in_order::<HEAD, WORDS, F>(
                context,
                Some(cache),
                (column, &of_others),
                known,
            ),
        };
        (fit | others_fit) & below(unfit | others & !others_fit)
    }

    /// Decides about packets one after the other.
    #[inline(never)]
    fn judge_in_order<const HEAD: usize, const WORDS: usize, F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        mut cache: Option<&mut FlowCache>,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        Known { known, marked, markable }: Known<'_>,
    ) -> u64
    where
        [u64; HEAD]: TrackedHead,
    {
        let missing = group.mask & !known;
        self.learning.pending.clear();
        if missing != 0 {
            let of = cache.as_deref();
            self.learning.collect::<HEAD, WORDS, F>(context, of, column, group, missing);
            self.learning.look_up_tracked(context);
        }
        let (mut learned, mut fit, mut behind, mut alike) = (0, 0, 0, None);
        let mut last = (Value::OF_NO_ENTRY, GivenDecision::NONE);
        for place in bits(group.mask) {
            if let (Some(cache), Some(markable)) = (&cache, &markable)
                && marked >> place & 1 != 0
                && self.is_marked(context, (column, group), markable, place)
            {
                let of = (place, &mut last);
                if !self.one_marked::<HEAD, WORDS, F>(context, cache, (column, group), of) {
                    break;
                }
                fit |= 1 << place;
                continue;
            }
            let pending = self.learning.pending.get(learned).copied();
            let pending = pending.filter(|it| it.place == place);
            if place >= behind {
                alike = match (pending, &cache) {
                    (Some(_), None) => self.alike_pending(context, (column, group), learned),
                    (Some(_), Some(_)) => self.alike_new(context, (column, group), learned),
                    (None, Some(cache)) => {
                        let of = (place, known & !marked);
                        self.alike::<HEAD, F>(context, cache, (column, group), of)
                    }
                    (None, None) => None,
                };
                behind = alike.as_ref().map_or(place + 1, |alike| alike.places.end);
            }
            learned += usize::from(pending.is_some());
            // What the cache is to remember goes the other way.
            if let Some(alike) = alike.as_mut().filter(|_| pending.is_none() || cache.is_none())
                && let Some(steady) =
                    self.steady::<HEAD, WORDS, F>(context, (column, group), alike, place)
            {
                if let (Some(cache), Some(markable)) = (&mut cache, &markable) {
                    let at = (place, group.scopes.of(place));
                    let of = (&alike.tracked, &steady);
                    mark::<HEAD, WORDS>(cache, column, at, of, markable.tick);
                }
                fit |= 1 << place;
                continue;
            }
            let is_missing = pending.is_none() && missing >> place & 1 != 0;
            let (cache, of) = (cache.as_deref_mut(), (place, pending));
            if is_missing
                || !self.one_tracked::<HEAD, WORDS, F>(context, cache, (column, group), of)
            {
                break;
            }
            fit |= 1 << place;
        }
        fit
    }

    /// Decides about a packet whose entry is marked, and returns whether it has a path and fits.
    #[inline(always)]
    fn one_marked<const HEAD: usize, const WORDS: usize, F>(
        &mut self,
        context: &BatchContext<'_, F>,
        cache: &FlowCache,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        (place, last): (usize, &mut (Value, GivenDecision)),
    ) -> bool {
        let value = column.values[place];
        if value != last.0 {
            let destination = || column.flow::<WORDS>(place).destination_address();
            let by = (group.heading, group.family);
            let said = self.paths.by_entry(context, (value, cache), by, destination);
            let of = if said.is_on_link { Value::OF_NO_ENTRY } else { value };
            *last = (of, said.into());
        }
        self.give(place, last.1)
    }

    /// Finds the packets from a place on of which the cache says the same, and writes the keys of
    /// their connections. `None`: no connections are tracked there.
    #[inline(never)]
    fn alike<'s, const HEAD: usize, F>(
        &mut self,
        context: &BatchContext<'s, F>,
        cache: &FlowCache,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        (place, known): (usize, u64),
    ) -> Option<Alike<'s>>
    where
        [u64; HEAD]: TrackedHead,
    {
        let value = column.values[place];
        if known >> place & 1 == 0 {
            return None;
        }
        let tracked = *cache.said_tracked(value)?;
        let CachedRoute::Via(hop) = cache.said(value).1 else { return None };
        let run = (known >> place).trailing_ones() as usize;
        let values = &column.values[place..place + run];
        let same = values.iter().take_while(|other| **other == value).count();
        self.prepare(context, (column, group), place..place + same, (tracked, hop))
    }

    /// Finds the packets, from one on whose flow the tables were asked about, of which they said
    /// the same, as [`alike`](Self::alike) does.
    #[inline(never)]
    fn alike_pending<'s, const HEAD: usize, F>(
        &mut self,
        context: &BatchContext<'s, F>,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        learned: usize,
    ) -> Option<Alike<'s>>
    where
        [u64; HEAD]: TrackedHead,
    {
        let learning = &*self.learning;
        let first = learning.pending[learned];
        let said = |pending: &PendingLookup| learning.tracked[pending.flow?];
        let tracked = said(&first)?;
        let follows = |(at, it): &(usize, &PendingLookup)| {
            it.place == first.place + at && it.hop == first.hop && said(it) == Some(tracked)
        };
        let same = learning.pending[learned..].iter().enumerate().take_while(follows).count();
        let places = first.place..first.place + same;
        self.prepare(context, (column, group), places, (tracked, first.hop))
    }

    /// Finds packets as [`alike_pending`](Self::alike_pending) does, behind a miss of the cache: a
    /// flow without an entry mostly has no connection. A search without a result reads all
    /// candidate lines, so all are prefetched.
    #[inline(never)]
    fn alike_new<'s, const HEAD: usize, F>(
        &mut self,
        context: &BatchContext<'s, F>,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        learned: usize,
    ) -> Option<Alike<'s>>
    where
        [u64; HEAD]: TrackedHead,
    {
        let alike = self.alike_pending(context, (column, group), learned)?;
        for (port, keys) in alike.ports.iter().zip(<[u64; HEAD]>::columns(self.tracking)) {
            if port.is_some() {
                alike.connections.prefetch_buckets(keys, alike.places.clone());
            }
        }
        Some(alike)
    }

    /// Writes the keys of connections of packets, and asks for the memory where these are.
    #[inline(always)]
    fn prepare<'s, const HEAD: usize, F>(
        &mut self,
        context: &BatchContext<'s, F>,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        places: Range<usize>,
        (tracked, hop): (TrackedVerdict, NextHopId),
    ) -> Option<Alike<'s>>
    where
        [u64; HEAD]: TrackedHead,
    {
        let snapshot: &'s Snapshot = context.snapshot;
        let connections = snapshot.connections()?;
        let place = places.start;
        let port = |port| TrackingPort::new(snapshot, port, group.family);
        let Tracks { ingress, egress } = tracked.tracks;
        let ports =
            [ingress.then(|| port(group.ingress)), egress.then(|| port(snapshot.egress(hop)))];
        let keys = <[u64; HEAD]>::columns(self.tracking);
        for (port, keys) in ports.iter().zip(keys) {
            let Some(port) = port else { continue };
            connections.prepare(keys, &column.heads[places.clone()], (place, port.zone));
        }
        let now_s = now_s(context);
        Some(Alike { places, connections, now_s, tracked, hop, ports, last: None })
    }

    /// Decides about a packet that changes nothing of its connections. `None`: it is none, or does
    /// not fit.
    #[inline(always)]
    fn steady<const HEAD: usize, const WORDS: usize, F: Frames>(
        &mut self,
        context: &BatchContext<'_, F>,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        alike: &mut Alike<'_>,
        place: usize,
    ) -> Option<SteadyPacket>
    where
        [u64; HEAD]: TrackedHead,
    {
        let head = &column.heads[place];
        if head[1] & WITHOUT_PORTS != 0 {
            return None;
        }
        let class = match (head[1] >> 32) as u8 {
            protocol::TCP => EventClass::of_flags(self.tcp_flags(context, group, place)),
            _ => EventClass::OTHER,
        };
        // The count before the connections: what changes afterwards has another one.
        let changes = head.changes(&alike.connections.changes());
        let [of_ingress, of_egress] = <[u64; HEAD]>::columns(self.tracking);
        let (packet, now_s) = ((place, class), alike.now_s);
        let mut known = KnownConnections::default();
        let mut may_be_marked = matches!(class, EventClass::ACK | EventClass::OTHER);
        if let Some(port) = &alike.ports[0] {
            let found = port.found(alike.connections, of_ingress, packet, now_s)?;
            known.ingress = Some(found.rule);
            may_be_marked &= found.may_be_marked;
        }
        if let Some(port) = &alike.ports[1] {
            let found = port.found(alike.connections, of_egress, packet, now_s)?;
            known.egress = Some(found.rule);
            may_be_marked &= found.may_be_marked;
        }
        let said = match alike.last {
            Some((last, said)) if last == known => said,
            _ => {
                let of = (column, group);
                self.steady_decision::<HEAD, WORDS, F>(context, of, alike, (place, known))?
            }
        };
        self.give(place, said).then_some(SteadyPacket { known, changes, may_be_marked })
    }

    /// Decides about packets of these connections. `None`: they do not pass.
    #[inline(never)]
    fn steady_decision<const HEAD: usize, const WORDS: usize, F>(
        &mut self,
        context: &BatchContext<'_, F>,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        alike: &mut Alike<'_>,
        (place, known): (usize, KnownConnections),
    ) -> Option<GivenDecision> {
        let verdict = alike.tracked.with(known);
        if !verdict.passes() {
            return None;
        }
        let by = (group.heading, group.family);
        let said = self.paths.by_verdict(context, (&verdict, alike.hop), by, || {
            column.flow::<WORDS>(place).destination_address()
        });
        // A decision for one destination says nothing of the next packet.
        let given = GivenDecision::from(said);
        alike.last = (!said.is_on_link).then_some((known, given));
        Some(given)
    }

    /// Decides about a packet, and returns whether it has a path and fits.
    fn one_tracked<const HEAD: usize, const WORDS: usize, F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        cache: Option<&mut FlowCache>,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        (place, pending): (usize, Option<PendingLookup>),
    ) -> bool {
        let PacketGroup { heading, family, ingress, .. } = *group;
        let answer = match (pending, &cache) {
            (Some(pending), _) => self.learning.answer(pending),
            (None, Some(cache)) => {
                let value = column.values[place];
                let (verdict, route) = cache.said(value);
                let Some(tracked) = cache.said_tracked(value) else {
                    let destination = || column.flow::<WORDS>(place).destination_address();
                    let (entry, by) = ((value, &**cache), (heading, family));
                    let said = self.paths.by_entry(context, entry, by, destination);
                    return self.give(place, said);
                };
                let CachedRoute::Via(hop) = route else { return false };
                Answer { verdict, tracked: Some(tracked), hop }
            }
            (None, None) => return false,
        };
        let flow = column.flow::<WORDS>(place);
        let hop = answer.hop;
        let Some(tracked) = answer.tracked else {
            let (verdict, by) = (*answer.verdict, (heading, family));
            let said =
                self.paths.by_verdict(context, (&verdict, hop), by, || flow.destination_address());
            let said_of = Said::Verdict(&verdict);
            self.remember::<HEAD, WORDS, F>(context, cache, (column, group), (pending, said_of));
            return self.give(place, said);
        };
        let is_icmp = matches!(flow.protocol, protocol::ICMP | protocol::ICMPV6);
        if is_icmp {
            return false;
        }
        let tracked = *tracked;
        let appearance = Appearance::of_flow(&flow, self.tcp_flags(context, group, place), None);
        let tracker = Tracker::new(context.snapshot, context.now_ns);
        let egress = Some(context.snapshot.gate(context.snapshot.egress(hop)));
        let ingress = context.snapshot.gate(ingress);
        let way = tracker.find(&tracked, appearance.as_ref(), (ingress, egress));
        let verdict = tracked.with(way.known());
        let decide = |verdict: &FlowVerdict, paths: &mut PreparedPaths| {
            paths.by_verdict(context, (verdict, hop), (heading, family), || {
                flow.destination_address()
            })
        };
        let mut said = decide(&verdict, self.paths);
        if self.rows[place].length > said.mtu {
            return false;
        }
        let mut settled = verdict;
        if verdict.passes() {
            let way = (way, ingress, egress);
            settled = tracker.go_on(&tracked, appearance.as_ref(), way, verdict);
            if settled != verdict {
                said = decide(&settled, self.paths);
            }
        }
        let said_of = Said::Tracked(&tracked, &settled);
        self.remember::<HEAD, WORDS, F>(context, cache, (column, group), (pending, said_of));
        self.give(place, said)
    }

    /// Gives a packet its path, and returns whether it has one and fits.
    #[inline(always)]
    fn give(&mut self, place: usize, said: impl Into<GivenDecision>) -> bool {
        let (said, row): (GivenDecision, _) = (said.into(), &mut self.rows[place]);
        (row.path, row.decision) = (said.path, said.place);
        row.length <= said.mtu
    }

    /// Has the cache remember what the tables said of a packet that is the first of its flow.
    fn remember<const HEAD: usize, const WORDS: usize, F>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        cache: Option<&mut FlowCache>,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        (pending, said): (Option<PendingLookup>, Said<'_>),
    ) {
        let (Some(cache), Some(pending)) = (cache, pending) else { return };
        if !pending.is_first {
            return;
        }
        let (place, counters) = (pending.place, &mut context.counters.cache);
        let scope = group.scopes.of(place);
        let said = (said, CachedRoute::Via(pending.hop));
        cache.remember_head::<HEAD, WORDS>(column, place, scope, said, counters);
        *self.misses |= 1 << place;
    }

    /// The flags of a TCP segment; of another packet something else.
    #[inline(always)]
    pub(super) fn tcp_flags<F: Frames>(
        &self,
        context: &BatchContext<'_, F>,
        group: &PacketGroup<'_>,
        place: usize,
    ) -> u8 {
        let frame = match group.frames {
            FramesOf::Received(packets) => packets[place].packet.frame,
            FramesOf::Opened(jobs) => jobs[place].frame,
        };
        let header = if group.family == Family::V4 { IPV4_BYTES } else { IPV6_BYTES };
        let at = self.rows[place].ip as usize + header + TCP_FLAGS;
        context.frames.bytes(frame).get(at).copied().unwrap_or(0)
    }
}

impl Learning {
    /// Asks the tables about all flows, those of one question together; each book by itself where
    /// connections are tracked.
    fn look_up_tracked<F>(&mut self, context: &mut BatchContext<'_, F>) {
        let Learning { flows, questions, verdicts, tracked, said, .. } = self;
        let tables = context.snapshot.tables();
        verdicts.clear();
        verdicts.resize(flows.len(), FlowVerdict::NOT_ASKED);
        tracked.clear();
        tracked.resize(flows.len(), None);
        let mut start = 0;
        for alike in questions.chunk_by(|a, b| a == b) {
            let range = start..start + alike.len();
            start = range.end;
            let ((scope, exit), flows) = (alike[0], &flows[range.clone()]);
            if tables.tracks(scope, exit) == Tracks::default() {
                tables.classify(scope, exit, flows, &mut verdicts[range]);
                continue;
            }
            said.clear();
            said.resize(flows.len(), TrackedVerdict::NOT_ASKED);
            tables.classify_tracked(scope, exit, flows, said);
            tracked[range].iter_mut().zip(&*said).for_each(|(of, said)| *of = Some(*said));
        }
        context.counters.full_lookups += flows.len() as u64;
    }

    /// The tables' answer about the flow of a packet.
    fn answer(&self, pending: PendingLookup) -> Answer<'_> {
        let hop = pending.hop;
        match pending.flow {
            None => Answer { verdict: &FlowVerdict::NOT_ASKED, tracked: None, hop },
            Some(flow) => match &self.tracked[flow] {
                Some(tracked) => Answer { verdict: tracked.plain(), tracked: Some(tracked), hop },
                None => Answer { verdict: &self.verdicts[flow], tracked: None, hop },
            },
        }
    }
}
