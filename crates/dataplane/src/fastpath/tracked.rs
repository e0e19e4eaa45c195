//! Decides about packets of gateways that track connections: verdicts come from where
//! [`judge`](super::judge) has them from, and connections from where the general walk has them.
//!
//! Packets are taken in order, up to the first that is the general walk's: what is behind that one
//! goes there, too, so that each connection sees its packets in the order in which they came.

use policy::{FlowVerdict, TrackedVerdict, Tracks};
use wire::flow::protocol;
use wire::packet::{IPV4_BYTES, IPV6_BYTES};
use wire::{BATCH, Family, Frames};

use super::judge::{FramesOf, Judge, Learning, PacketGroup, PendingLookup, first};
use super::prepared_path::{Decision, PreparedPaths};
use crate::batch_context::BatchContext;
use crate::cache::{CachedRoute, Column, FlowCache, Said, bits};
use crate::ids::NextHopId;
use crate::tracking::{Appearance, Tracker};

/// Offset of the flags in a TCP header (RFC 9293 §3.1).
const TCP_FLAGS: usize = 13;

/// The answer about a flow: from the cache, or from the tables.
struct Answer<'a> {
    verdict: &'a FlowVerdict,
    tracked: Option<&'a TrackedVerdict>,
    hop: NextHopId,
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
    ) -> u64 {
        let PacketGroup { scopes, mask, .. } = *group;
        let mut cache = cache.filter(|cache| cache.serves(scopes.of(first(mask))));
        let missing = match &cache {
            None => mask,
            Some(cache) => {
                let range = first(mask)..64 - mask.leading_zeros() as usize;
                cache.look_up_column::<HEAD, WORDS>(scopes, column, range) & mask
            }
        };
        self.learning.collect::<HEAD, WORDS, F>(context, cache.as_deref(), column, group, missing);
        self.learning.look_up_tracked(context);
        let (mut learned, mut fit) = (0, 0);
        for place in bits(mask) {
            let pending =
                self.learning.pending.get(learned).filter(|it| it.place == place).copied();
            if pending.is_none() && missing >> place & 1 != 0 {
                break;
            }
            learned += usize::from(pending.is_some());
            let is_taken = self.one_tracked::<HEAD, WORDS, F>(
                context,
                cache.as_deref_mut(),
                (column, group),
                (place, pending),
            );
            if !is_taken {
                break;
            }
            fit |= 1 << place;
        }
        fit
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
                    let entry = (value, (verdict, route));
                    let said = self.paths.by_entry(context, entry, (heading, family), destination);
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
        let egress = Some(context.snapshot.egress(hop));
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
    fn give(&mut self, place: usize, said: Decision) -> bool {
        let row = &mut self.rows[place];
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
    fn tcp_flags<F: Frames>(
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
        let Learning { flows, questions, verdicts, tracked, .. } = self;
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
            let mut said = [TrackedVerdict::NOT_ASKED; BATCH];
            let said = &mut said[..flows.len()];
            tables.classify_tracked(scope, exit, flows, said);
            tracked[range].iter_mut().zip(said).for_each(|(of, said)| *of = Some(*said));
        }
        context.counters.full_lookups += flows.len() as u64;
    }

    /// What the tables said of the flow of a packet.
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
