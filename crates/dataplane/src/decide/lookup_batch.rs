//! The lookups of a batch: those in the cache, and those in the tables.

use policy::{Exit, FlowVerdict, Scope, TrackedVerdict, Tracks};
use wire::{BATCH, Flow};

use crate::cache::{Firsts, Lane, Words};
use crate::counters::Counters;
use crate::ids::NextHopId;
use crate::snapshot::Snapshot;

/// Lookups in the tables, and the rows that wait for them.
#[derive(Default)]
pub(super) struct LookupBatch {
    pending: Vec<PendingLookup>,
    /// Flows that are looked up; those in `pending` count into it.
    flows: Vec<Flow>,
    /// Scope and way out: one entry a flow.
    questions: Vec<(Scope, Exit)>,
    /// One entry a flow, once it is looked up; behind them what is left of larger batches.
    verdicts: Vec<FlowVerdict>,
    /// The answer of each book by itself, by the place of the flow, where connections are tracked.
    tracked: Vec<(u16, TrackedVerdict)>,
    /// The first of the packets of a lane that have one key and wait, by their places in `pending`.
    firsts: Firsts,
}

/// A row that waits for a verdict.
#[derive(Clone, Copy)]
pub(super) struct PendingLookup {
    row: u16,
    flow: u16,
    hop: Option<NextHopId>,
    entry: Option<Entry>,
}

/// Place to remember the answer at: in the lane of a family.
#[derive(Clone, Copy)]
pub(super) enum Entry {
    V4(u16),
    V6(u16),
}

impl PendingLookup {
    pub(super) fn row(&self) -> usize {
        self.row.into()
    }

    /// The next hop by which the packet will leave, as it was given.
    pub(super) fn hop(&self) -> Option<NextHopId> {
        self.hop
    }

    pub(super) fn entry(&self) -> Option<Entry> {
        self.entry
    }
}

impl LookupBatch {
    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.flows.clear();
        self.questions.clear();
    }

    /// Adds a row that waits for what the tables say of a flow in a scope, for a way out, with the
    /// next hop by which its packet would leave then.
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        row: usize,
        question: (Scope, Exit),
        flow: Flow,
        hop: Option<NextHopId>,
    ) {
        let place = self.flows.len() as u16;
        self.pending.push(PendingLookup { row: row as u16, flow: place, hop, entry: None });
        self.flows.push(flow);
        self.questions.push(question);
    }

    /// Begins with the packets of a lane: none of them waits yet.
    pub(super) fn begin_lane(&mut self) {
        self.firsts = Firsts::default();
    }

    /// Adds the packet of a lane; of equal ones the first is looked up, and remembered. Returns
    /// whether it is the first.
    pub(super) fn enqueue_unique<const WORDS: usize>(
        &mut self,
        lane: &Lane<WORDS>,
        at: usize,
        (flow, exit): (Flow, Exit),
        hop: Option<NextHopId>,
    ) -> bool
    where
        Flow: Words<WORDS>,
    {
        let LookupBatch { pending, firsts, .. } = self;
        let same = |other: usize| match pending[other].entry {
            Some(Entry::V4(other) | Entry::V6(other)) => lane.key(other.into()) == lane.key(at),
            None => false,
        };
        let first = firsts.find(lane.hash(at), pending.len(), same);
        if let Some(first) = first {
            let flow = pending[first].flow;
            let row = lane.row(at) as u16;
            pending.push(PendingLookup { row, flow, hop, entry: None });
            return false;
        }
        self.enqueue(lane.row(at), (lane.scope(at), exit), flow, hop);
        let entry = match <Flow as Words<WORDS>>::IS_V6 {
            false => Entry::V4(at as u16),
            true => Entry::V6(at as u16),
        };
        self.pending.last_mut().expect("just added").entry = Some(entry);
        true
    }

    /// Looks up all flows, together where they are of one question.
    #[inline]
    pub(super) fn run(&mut self, snapshot: &Snapshot, counters: &mut Counters) {
        let LookupBatch { flows, questions, verdicts, tracked, .. } = self;
        tracked.clear();
        if flows.is_empty() {
            return;
        }
        if verdicts.len() < flows.len() {
            verdicts.resize(flows.len(), FlowVerdict::NOT_ASKED);
        }
        let mut start = 0;
        while start < flows.len() {
            let of = questions[start];
            let others = questions[start..].iter().position(|question| *question != of);
            let end = others.map_or(flows.len(), |others| start + others);
            let (flows, verdicts) = (&flows[start..end], &mut verdicts[start..end]);
            if snapshot.tables().tracks(of.0, of.1) == Tracks::default() {
                snapshot.tables().classify(of.0, of.1, flows, verdicts);
            } else {
                track(snapshot, of, (start, flows), verdicts, tracked);
            }
            start = end;
        }
        counters.full_lookups += flows.len() as u64;
    }

    /// Each row that waited, with the verdict and, where connections are tracked, what each book
    /// says by itself.
    #[inline]
    pub(super) fn answers(&self) -> impl Iterator<Item = Answer<'_>> {
        self.pending.iter().map(|pending| Answer {
            pending,
            verdict: &self.verdicts[usize::from(pending.flow)],
            tracked: match self.tracked.is_empty() {
                true => None,
                false => self.tracked_of(pending.flow),
            },
        })
    }

    fn tracked_of(&self, flow: u16) -> Option<&TrackedVerdict> {
        let place = self.tracked.binary_search_by_key(&flow, |(flow, _)| *flow).ok()?;
        Some(&self.tracked[place].1)
    }
}

/// The answer to a row that waited.
pub(super) struct Answer<'a> {
    pub(super) pending: &'a PendingLookup,
    pub(super) verdict: &'a FlowVerdict,
    pub(super) tracked: Option<&'a TrackedVerdict>,
}

/// Asks each book by itself about flows of one question, the first of which has the place `start`.
#[inline(never)]
fn track(
    snapshot: &Snapshot,
    (scope, exit): (Scope, Exit),
    (start, flows): (usize, &[Flow]),
    verdicts: &mut [FlowVerdict],
    tracked: &mut Vec<(u16, TrackedVerdict)>,
) {
    let mut said = [TrackedVerdict::NOT_ASKED; BATCH];
    for (at, (flows, verdicts)) in flows.chunks(BATCH).zip(verdicts.chunks_mut(BATCH)).enumerate() {
        let said = &mut said[..flows.len()];
        snapshot.tables().classify_tracked(scope, exit, flows, said);
        let places = (start + at * BATCH) as u16..;
        tracked.extend(places.zip(said.iter().copied()));
        verdicts.iter_mut().zip(&*said).for_each(|(of, said)| *of = *said.plain());
    }
}
