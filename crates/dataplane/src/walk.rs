//! The walk of one batch: the order of the stages, and what passes between them.
//!
//! **Who answers.** A packet's flow is looked up in the worker's flow cache; where it is not there,
//! or its entry is void, the classifier is searched, and the cache remembers what it said. The
//! cache says only what the classifier would say. A network card and the kernel, which may answer
//! before either, are no part of the walk: what they leave comes here.
//!
//! **When an entry is void.** Its verdict: when the generation of its policy domain is not the
//! snapshot's. Its next hop: when the route generation is not; then the route is looked up again
//! and the verdict stands.
//!
//! **Locks.** None. A replay window that several workers share costs an atomic step for each of its
//! words that a batch marks; sequence numbers cost one for each batch and SA. A batch is walked
//! under one snapshot, so nothing that its stages read changes between them.

use std::ops::Range;

use cpu::aes::Secret;
use wire::{BATCH, Frames, Received};

use crate::acquire;
use crate::audit::Auditor;
use crate::batch_context::BatchContext;
use crate::cache::FlowCache;
use crate::counters::Counters;
use crate::direct_flows::DirectFlows;
use crate::esp_fragments::DroppedDatagrams;
use crate::fastpath::FastPath;
use crate::general::GeneralWalk;
use crate::ids::NetdevId;
use crate::input::{Entry, Input};
use crate::l4_checksum::Sampling;
use crate::outputs::Outputs;
use crate::reassembly::Reassembly;
use crate::row::Row;
use crate::sa_queues::{AcquireRequest, Dropper, SaQueues, WaitingForSa};
use crate::snapshot::Snapshot;
use crate::stage::{NoClock, StageClock};
use crate::tenant_samples::TenantSampler;
use crate::verdict::DropReason;
use crate::watch::{Beside, Nobody, Watch};
use crate::worker_share::WorkerShare;

/// One worker's walk: its counters, its limits of ICMP, its scratch memory.
pub struct Walk {
    counters: Counters,
    general: GeneralWalk,
    fast: Option<FastPath>,
    late: Vec<Row>,
    share: WorkerShare,
    cache: Option<FlowCache>,
    sampling: Sampling,
    dropped: DroppedDatagrams,
    reassembly: Reassembly,
    sa_queues: SaQueues,
    tenants: TenantSampler,
    direct: DirectFlows,
    auditor: Auditor,
}

/// Use of the fast path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum FastPathUse {
    /// Takes the packets that it can handle.
    #[default]
    WherePossible,
    /// Takes the packets that it can handle, and looks at every batch, however little it took of
    /// the last one. For tests.
    Eager,
    /// Takes nothing: the general walk handles every packet. For tests and comparisons.
    Never,
}

impl Walk {
    /// A walk for a worker under this snapshot.
    pub fn new(snapshot: &Snapshot) -> Walk {
        Walk {
            counters: Counters::new(snapshot),
            general: GeneralWalk::new(),
            fast: Some(FastPath::default()),
            late: Vec::with_capacity(BATCH),
            share: WorkerShare::ALL,
            cache: None,
            sampling: Sampling::new(snapshot),
            dropped: DroppedDatagrams::new(),
            reassembly: Reassembly::new(&[0; 32]),
            sa_queues: SaQueues::new(),
            tenants: TenantSampler::default(),
            direct: DirectFlows::of(snapshot),
            auditor: Auditor::default(),
        }
    }

    /// Sets the cache that remembers flows, or none; returns the one that was there, for somebody
    /// else to free. Where generations began anew ([`Spd::wraps`](policy::Spd::wraps)) it must be a
    /// fresh one, put in with the snapshot.
    pub fn take_cache(&mut self, cache: Option<FlowCache>) -> Option<FlowCache> {
        std::mem::replace(&mut self.cache, cache)
    }

    /// Samples of the packets that cross inside virtual networks; at first none are taken.
    pub fn tenants(&mut self) -> &mut TenantSampler {
        &mut self.tenants
    }

    /// The auditor of its verdicts; at first none is judged again.
    pub fn auditor(&mut self) -> &mut Auditor {
        &mut self.auditor
    }

    /// Goes over to a snapshot. Only here the cost may depend on the number of ports and domains.
    /// Takes memory for ports, netdevs and flows with direct paths.
    pub(crate) fn adopt(&mut self, snapshot: &Snapshot) {
        if let Some(cache) = &mut self.cache {
            cache.sync(snapshot);
        }
        self.sampling.adopt(snapshot);
        self.direct.adopt(snapshot);
    }

    /// Returns whether the last look at direct paths left flows over.
    pub(crate) fn is_behind(&self) -> bool {
        self.direct.is_behind()
    }

    /// Returns whether hosts have direct paths.
    pub(crate) fn has_direct_paths(&self) -> bool {
        self.direct.has_some()
    }

    /// Tells hosts the direct paths that are new, and those that are over, by the clock of
    /// [`run`](Self::run).
    #[inline]
    pub(crate) fn tell_direct_paths<F: Frames>(
        &mut self,
        (snapshot, now_ns): (&Snapshot, u64),
        frames: &mut F,
        out: &mut Outputs,
    ) {
        self.direct.step((snapshot, now_ns), frames, &mut self.counters, out);
    }

    /// Sets whether packets may take the fast path; at first they may.
    pub fn use_fast_path(&mut self, use_: FastPathUse) {
        self.fast = match use_ {
            FastPathUse::WherePossible => Some(FastPath::default()),
            FastPathUse::Eager => Some(FastPath::eager()),
            FastPathUse::Never => None,
        };
    }

    /// The cache, to be looked at.
    pub fn cache(&self) -> Option<&FlowCache> {
        self.cache.as_ref()
    }

    /// Sets the worker's share of the SAs. Packets for an SA of another worker then go to
    /// [`Outputs::handovers`]; snapshots must be made for several workers ([`Snapshot::workers`]).
    pub fn take_share(&mut self, share: WorkerShare) {
        self.share = share;
    }

    /// Returns the share of the worker whose walk it is.
    pub fn share(&self) -> WorkerShare {
        self.share
    }

    /// Sets the secret by which fragments and the receivers of ICMP errors are hashed: the same one
    /// for all workers between which fragments are handed over. No fragment may wait yet.
    pub fn key_hashes(&mut self, secret: &Secret) {
        debug_assert_eq!(self.fragments_waiting(), 0, "their frames would be lost");
        self.general.key_icmp_limits(secret);
        self.reassembly = Reassembly::new(secret);
    }

    /// Fragments that wait for others of their datagram. Their frames are the walk's.
    pub fn fragments_waiting(&self) -> usize {
        self.reassembly.waiting()
    }

    /// Drops the fragments that have waited too long, by the clock of [`run`](Self::run). Each
    /// batch does so too, but for those of ESP.
    #[inline]
    pub fn expire_fragments(&mut self, now_ns: u64, frames: &mut impl Frames) {
        self.reassembly.expire(now_ns, frames, &mut self.counters);
        self.reassembly.expire_esp(now_ns, frames, &mut self.counters);
    }

    /// Drops all fragments that wait: before the end.
    pub fn drop_fragments(&mut self, frames: &mut impl Frames) {
        self.reassembly.clear(frames, &mut self.counters);
    }

    /// Forgets what it remembers of ports that a snapshot does not have.
    pub(crate) fn leave_ports(&mut self, next: &Snapshot, frames: &mut impl Frames) {
        self.dropped.forget_gone(next);
        self.reassembly.leave_ports(next, frames, &mut self.counters);
        self.sa_queues.leave_ports(next, frames, &mut self.counters);
    }

    /// Packets that wait for an SA. Their frames are the walk's.
    pub fn waiting_for_sas(&self) -> usize {
        self.sa_queues.waiting()
    }

    /// SAs to ask for now; empties the list.
    pub(crate) fn acquire_requests(&mut self) -> std::vec::Drain<'_, AcquireRequest> {
        self.sa_queues.requests()
    }

    /// Drops all packets that wait for an SA: before the end.
    pub(crate) fn drop_those_without_sas(&mut self, frames: &mut impl Frames) {
        self.sa_queues.clear(frames, &mut self.counters);
    }

    /// Sorts out what waits for an SA: what has waited too long is dropped, and seen by `refused`
    /// before; what can leave goes to `ready`, for [`resume`](Self::resume).
    pub(crate) fn sort_out<F: Frames>(
        &mut self,
        now: (&Snapshot, u64),
        frames: &mut F,
        ready: &mut Vec<Row>,
        refused: impl FnMut(&Row, DropReason, &F),
    ) {
        let dropper = Dropper { frames, counters: &mut self.counters, refused };
        let next = |waiting: &WaitingForSa, judged, frames: &F| {
            acquire::next(now, waiting, judged, frames)
        };
        self.sa_queues.sort_out(now, self.share, dropper, ready, next);
    }

    /// Walks packets that have waited, at most [`BATCH`]: for an SA, or for their neighbour until
    /// their verdict had to be renewed. Their new verdicts are the batch's.
    #[cold]
    pub(crate) fn resume<F: Frames, W: Watch + ?Sized>(
        &mut self,
        (snapshot, now_ns): (&Snapshot, u64),
        rows: &mut [Row],
        frames: &mut F,
        out: &mut Outputs,
        watch: &mut W,
    ) {
        out.verdicts.clear();
        out.verdicts.resize(rows.len(), None);
        (0..).zip(&mut *rows).for_each(|(place, row)| row.place = place);
        let Walk { counters, general, share, cache, dropped, reassembly, .. } = self;
        let Walk { sa_queues, tenants, direct, auditor, .. } = self;
        let mut context = BatchContext {
            snapshot,
            now_ns,
            share: *share,
            handing: None,
            marks: &[],
            first: 0,
            sample: None,
            dropped,
            reassembly,
            sa_queues,
            tenants,
            direct,
            auditor,
            frames,
            counters,
            out,
        };
        let mut cache = cache.as_mut();
        if let Some(cache) = &mut cache {
            cache.sync(snapshot);
        }
        let mut beside = Beside { clock: &mut NoClock, watch };
        general.resume(&mut context, rows, cache.as_deref_mut(), &mut beside);
        general.answer(&mut context, cache, &mut beside);
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counters, for the code that transmits: `sent`, `host`, `held` and `tx_full` are
    /// its lines.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Walks a batch at `now_ns` (any epoch, never backwards).
    ///
    /// Takes over the frames of its packets; each is afterwards in `out` or back in the pool, but
    /// for [fragments that wait](Self::fragments_waiting).
    ///
    /// What the fast path takes leaves by it; everything else, at its place in the order, by the
    /// general walk: see `GeneralWalk`.
    ///
    /// # Panics
    /// If the batch is longer than [`BATCH`].
    pub fn run<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        input: Input<'_>,
        frames: &mut F,
        out: &mut Outputs,
    ) {
        let beside = Beside { clock: &mut NoClock, watch: &mut Nobody };
        self.run_beside(snapshot, now_ns, input, frames, out, beside);
    }

    /// Runs a batch like [`run`](Self::run). A clock learns where each stage ends, and a watcher
    /// sees the rows between the stages.
    #[inline]
    pub(crate) fn run_beside<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        input: Input<'_>,
        frames: &mut F,
        out: &mut Outputs,
        mut beside: Beside<'_, C, W>,
    ) {
        let Input { netdev, packets, marks, entry } = input;
        let hands_over = entry == Entry::Received && self.share.workers > 1;
        let handing = hands_over.then_some((netdev, packets));
        assert!(packets.len() <= BATCH, "a batch is at most {BATCH} packets");
        let Walk { counters, general, fast, late, share, cache, sampling, .. } = self;
        let Walk { dropped, reassembly, sa_queues, tenants, direct, auditor, .. } = self;
        out.verdicts.clear();
        out.verdicts.resize(packets.len(), None);
        let (share, handed_over) = (*share, out.handovers.len());
        let sample = sampling.draw(netdev, packets.len(), now_ns);
        let (first, mut cache) = (0, cache.as_mut());
        let mut context = BatchContext {
            snapshot,
            now_ns,
            share,
            handing,
            marks,
            first,
            sample,
            dropped,
            reassembly,
            sa_queues,
            tenants,
            direct,
            auditor,
            frames,
            counters,
            out,
        };
        if let Some(cache) = &mut cache {
            cache.sync(snapshot);
        }
        let taken = match fast {
            Some(fast) => {
                fast.look(&mut context, netdev, packets, cache.as_deref_mut(), beside.clock)
            }
            None => 0,
        };
        match fast {
            Some(fast) if taken != 0 => {
                let (both, cache) = (BothPaths { fast, general, late }, cache.as_deref_mut());
                both.walk(&mut context, (netdev, packets), taken, cache, &mut beside);
            }
            _ => general.walk(&mut context, netdev, packets, cache.as_deref_mut(), &mut beside),
        }
        general.answer(&mut context, cache, &mut beside);
        debug_assert_eq!(
            context.out.verdicts.iter().filter(|verdict| verdict.is_none()).count(),
            context.out.handovers.len() - handed_over,
            "a row without a verdict"
        );
    }
}

/// Both paths of a batch of which the fast path takes a part.
struct BothPaths<'w> {
    fast: &'w mut FastPath,
    general: &'w mut GeneralWalk,
    /// Packets that the fast path opened and the general walk goes on with.
    late: &'w mut Vec<Row>,
}

impl BothPaths<'_> {
    /// Walks runs of packets that the fast path takes, and of others, in turn.
    #[inline]
    fn walk<F: Frames, C: StageClock, W: Watch + ?Sized>(
        mut self,
        context: &mut BatchContext<'_, F>,
        (netdev, packets): (NetdevId, &[Received]),
        taken: u64,
        mut cache: Option<&mut FlowCache>,
        beside: &mut Beside<'_, C, W>,
    ) {
        for (run, is_taken) in runs(taken, 0..packets.len()) {
            let cache = cache.as_deref_mut();
            if !is_taken {
                context.first = run.start as u32;
                self.general.walk(context, netdev, &packets[run], cache, beside);
            } else if self.fast.is_sealed() {
                self.open(context, packets, run, cache, beside);
            } else {
                self.fast.finish(context, packets, run, beside);
            }
        }
    }

    /// Opens a run of sealed packets; what was in them leaves by one walk or the other.
    #[inline]
    fn open<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        run: Range<usize>,
        mut cache: Option<&mut FlowCache>,
        beside: &mut Beside<'_, C, W>,
    ) {
        let BothPaths { fast, general, late } = self;
        late.clear();
        let (of, clock) = (cache.as_deref_mut(), &mut *beside.clock);
        let fit = fast.open(context, packets, run.clone(), of, late, clock);
        let mut late = late.drain(..).peekable();
        for (run, is_fit) in runs(fit, run) {
            if is_fit {
                fast.finish_opened(context, packets, run, beside);
                continue;
            }
            let rows = std::iter::from_fn(|| late.next_if(|row| (row.place as usize) < run.end));
            general.go_on(context, rows, cache.as_deref_mut(), beside);
        }
    }
}

/// The runs of a range of places that have the same bit in a mask.
#[inline(always)]
fn runs(mask: u64, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, bool)> {
    let Range { mut start, end } = range;
    std::iter::from_fn(move || {
        if start >= end {
            return None;
        }
        let rest = mask >> start;
        let is_set = rest & 1 != 0;
        let length = if is_set { rest.trailing_ones() } else { rest.trailing_zeros() } as usize;
        let run = start..end.min(start + length);
        start = run.end;
        Some((run, is_set))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_are_the_places_of_a_range_in_order(
            mask in prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>()],
            start in 0usize..=64,
            length in 0usize..=64,
        ) {
            let range = start..(start + length).min(64);
            let found: Vec<_> = runs(mask, range.clone())
                .flat_map(|(run, is_set)| run.map(move |place| (place, is_set)))
                .collect();
            let expected: Vec<_> = range.map(|at| (at, mask >> at & 1 != 0)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
