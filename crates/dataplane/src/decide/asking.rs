//! The questions of a batch: those that the cache is asked, and those that are searched.

use policy::{FlowVerdict, Scope};
use wire::Flow;

use crate::cache::{Firsts, Lane, Lanes, Words};
use crate::counters::Counters;
use crate::ids::NextHopId;
use crate::snapshot::Snapshot;

/// Lists that are filled anew for each question; kept so that a batch allocates nothing.
#[derive(Default)]
pub(crate) struct Asking {
    pub(super) lanes: Lanes,
    pub(super) search: Search,
}

/// The questions to the tables, and the rows that ask.
#[derive(Default)]
pub(super) struct Search {
    asked: Vec<Asked>,
    /// Flows that are searched; those that ask count into it.
    flows: Vec<Flow>,
    /// One entry a flow.
    scopes: Vec<Scope>,
    /// One entry a flow, once it is searched; behind them what is left of larger batches.
    verdicts: Vec<FlowVerdict>,
    /// The first of the packets of a lane that have one key and ask, by their places in `asked`.
    firsts: Firsts,
}

/// A row that asks.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    row: u16,
    flow: u16,
    hop: NextHopId,
    entry: Option<Entry>,
}

/// Place to remember the answer at: in the lane of a family.
#[derive(Clone, Copy)]
pub(super) enum Entry {
    V4(u16),
    V6(u16),
}

impl Asked {
    pub(super) fn row(&self) -> usize {
        self.row.into()
    }

    /// The next hop by which the packet will leave, as it was given.
    pub(super) fn hop(&self) -> NextHopId {
        self.hop
    }

    pub(super) fn entry(&self) -> Option<Entry> {
        self.entry
    }
}

impl Search {
    pub(super) fn clear(&mut self) {
        self.asked.clear();
        self.flows.clear();
        self.scopes.clear();
    }

    /// Has a row ask what the tables say of a flow in a scope.
    #[inline]
    pub(super) fn ask(&mut self, row: usize, scope: Scope, flow: Flow) {
        self.ask_via(row, scope, flow, NextHopId(u32::MAX));
    }

    /// Does as [`ask`](Self::ask) for a packet that would leave by a next hop.
    #[inline]
    pub(super) fn ask_via(&mut self, row: usize, scope: Scope, flow: Flow, hop: NextHopId) {
        let place = self.flows.len() as u16;
        self.asked.push(Asked { row: row as u16, flow: place, hop, entry: None });
        self.flows.push(flow);
        self.scopes.push(scope);
    }

    /// Begins with the packets of a lane: none of them has asked yet.
    pub(super) fn begin_lane(&mut self) {
        self.firsts = Firsts::default();
    }

    /// Has the packet of a lane ask; of equal ones the first is searched, and remembered. Returns
    /// whether it is the first.
    pub(super) fn ask_once<const WORDS: usize>(
        &mut self,
        lane: &Lane<WORDS>,
        at: usize,
        flow: Flow,
    ) -> bool
    where
        Flow: Words<WORDS>,
    {
        let Search { asked, firsts, .. } = self;
        let same = |other: usize| match asked[other].entry {
            Some(Entry::V4(other) | Entry::V6(other)) => lane.key(other.into()) == lane.key(at),
            None => false,
        };
        let first = firsts.find(lane.hash(at), asked.len(), same);
        if let Some(first) = first {
            let flow = asked[first].flow;
            let (row, hop) = (lane.row(at) as u16, NextHopId(u32::MAX));
            asked.push(Asked { row, flow, hop, entry: None });
            return false;
        }
        self.ask(lane.row(at), lane.scope(at), flow);
        let entry = match <Flow as Words<WORDS>>::IS_V6 {
            false => Entry::V4(at as u16),
            true => Entry::V6(at as u16),
        };
        self.asked.last_mut().expect("just asked").entry = Some(entry);
        true
    }

    /// Sets the next hop by which the packet that asked last would leave.
    pub(super) fn last_goes_via(&mut self, hop: NextHopId) {
        if let Some(asked) = self.asked.last_mut() {
            asked.hop = hop;
        }
    }

    /// Has all flows judged, together where they are of one scope.
    #[inline]
    pub(super) fn run(&mut self, snapshot: &Snapshot, counters: &mut Counters) {
        let Search { flows, scopes, verdicts, .. } = self;
        if flows.is_empty() {
            return;
        }
        if verdicts.len() < flows.len() {
            verdicts.resize(flows.len(), FlowVerdict::NOT_ASKED);
        }
        let mut start = 0;
        while start < flows.len() {
            let of = scopes[start];
            let others = scopes[start..].iter().position(|scope| *scope != of);
            let end = others.map_or(flows.len(), |others| start + others);
            snapshot.tables().classify(of, &flows[start..end], &mut verdicts[start..end]);
            start = end;
        }
        counters.full_lookups += flows.len() as u64;
    }

    /// Each row that asked, with the verdict.
    #[inline]
    pub(super) fn answers(&self) -> impl Iterator<Item = (&Asked, &FlowVerdict)> {
        self.asked.iter().map(|asked| (asked, &self.verdicts[usize::from(asked.flow)]))
    }
}
