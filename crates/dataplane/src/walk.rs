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
//! **Locks.** None, but for replay windows that several workers share: one lock a batch and SA,
//! when numbers are committed. Sequence numbers cost one atomic step a batch and SA. A batch is
//! walked under one snapshot, so nothing that its stages read changes between them.

use wire::{BATCH, Frames};

use crate::cache::FlowCache;
use crate::counters::Counters;
use crate::decapsulate::Opening;
use crate::departures::Departures;
use crate::esp_fragments::DroppedDatagrams;
use crate::input::{Entry, Input};
use crate::l4_checksum::{self, Sampling};
use crate::limiter::RateLimiter;
use crate::outputs::Outputs;
use crate::routes::Near;
use crate::row::Row;
use crate::share::Share;
use crate::snapshot::Snapshot;
use crate::stage::{NoClock, Stage, StageClock};
use crate::turn::Turn;
use crate::watch::{Beside, Nobody, Point, Watch};
use crate::{decapsulate, decide, plan, receive, seal};

/// Lists that the stages fill anew for each batch; kept so that a batch allocates nothing.
#[derive(Default)]
struct Scratch {
    /// Questions to the policies.
    asking: decide::Asking,
    /// ESP packets to open.
    opening: Opening,
    /// Packets that leave, in order; fragments in the place of the packet they were made of.
    departures: Departures,
}

/// One worker's walk: its counters, its rate limit, its scratch memory.
pub struct Walk {
    counters: Counters,
    limiter: RateLimiter,
    rows: Vec<Row>,
    made: Vec<Row>,
    scratch: Scratch,
    share: Share,
    cache: Option<FlowCache>,
    sampling: Sampling,
    dropped: DroppedDatagrams,
}

impl Walk {
    /// A walk for a worker under this snapshot.
    pub fn new(snapshot: &Snapshot) -> Walk {
        Walk {
            counters: Counters::new(snapshot),
            limiter: RateLimiter::default(),
            rows: Vec::with_capacity(BATCH),
            made: Vec::with_capacity(BATCH),
            scratch: Scratch::default(),
            share: Share::ALL,
            cache: None,
            sampling: Sampling::new(snapshot),
            dropped: DroppedDatagrams::new(),
        }
    }

    /// Sets the cache that remembers flows, or none; returns the one that was there, for somebody
    /// else to free. Where generations began anew ([`Spd::wraps`](policy::Spd::wraps)) it must be a
    /// fresh one, put in with the snapshot.
    pub fn take_cache(&mut self, cache: Option<FlowCache>) -> Option<FlowCache> {
        std::mem::replace(&mut self.cache, cache)
    }

    /// The cache, to be looked at.
    pub fn cache(&self) -> Option<&FlowCache> {
        self.cache.as_ref()
    }

    /// Sets the worker's share. Packets that an SA of another worker is to open then go to
    /// [`Outputs::handovers`]; the snapshots must then be for several workers
    /// ([`Snapshot::workers`]).
    pub fn take_share(&mut self, share: Share) {
        self.share = share;
    }

    /// Returns the share of the worker whose walk it is.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Forgets what it remembers of ports that a snapshot does not have.
    pub(crate) fn leave_ports(&mut self, next: &Snapshot) {
        self.dropped.forget_gone(next);
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
    /// Takes over the frames of its packets; each is afterwards in `out` or back in the pool.
    ///
    /// 1. receive: link header, VLAN, IP header checks; ESP to us is set apart; unfinished TCP and
    ///    UDP checksums are completed
    /// 2. decapsulate: SAD, replay check, cipher over the batch, replay commit, the inner packet
    /// 3. decide: inbound selectors, route, outbound selectors
    /// 4. plan: hop limit, path MTU, fragments, the SA and its numbers
    /// 5. seal: all headers, nonces and trailers of the batch, then the cipher, SA by SA
    ///
    /// Then from 3 on again for the ICMP that was made on the way.
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

    /// Does as [`run`](Self::run), and tells a clock where each stage ends and a watcher what the
    /// rows are between the stages.
    #[inline]
    pub(crate) fn run_beside<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        input: Input<'_>,
        frames: &mut F,
        out: &mut Outputs,
        Beside { clock, watch }: Beside<'_, C, W>,
    ) {
        let Input { netdev, packets, entry } = input;
        let hands_over = entry == Entry::Received && self.share.workers > 1;
        let handing = hands_over.then_some((netdev, packets));
        assert!(packets.len() <= BATCH, "a batch is at most {BATCH} packets");
        let Walk { counters, limiter, rows, made, scratch, share, cache, sampling, dropped } = self;
        let Scratch { asking, opening, departures } = scratch;
        out.verdicts.clear();
        out.verdicts.resize(packets.len(), None);
        let (share, handed_over) = (*share, out.handovers.len());
        let near = Near::nothing();
        let mut turn =
            Turn { snapshot, near, now_ns, share, handing, dropped, frames, counters, out };
        rows.clear();
        made.clear();
        receive::receive(&mut turn, netdev, packets, rows);
        l4_checksum::complete(&mut turn, netdev, rows);
        clock.ended(Stage::Receive);
        decapsulate::decapsulate(&mut turn, rows, opening, clock);
        watch.look(Point::Opened, snapshot, rows, turn.frames);
        decide::decide(&mut turn, rows, asking, cache.as_mut());
        sampling.check(&mut turn, netdev, rows);
        watch.look(Point::Decided, snapshot, rows, turn.frames);
        clock.ended(Stage::Decide);
        plan::plan(&mut turn, rows, made, limiter, departures);
        clock.ended(Stage::Plan);
        seal::seal(&mut turn, rows, departures, clock);
        watch.look(Point::Sealed, snapshot, rows, turn.frames);
        if !made.is_empty() {
            decide::decide(&mut turn, made, asking, cache.as_mut());
            watch.look(Point::Decided, snapshot, made, turn.frames);
            rows.clear(); // what is made is never answered: nothing more comes of it
            plan::plan(&mut turn, made, rows, limiter, departures);
            seal::seal(&mut turn, made, departures, clock);
            watch.look(Point::Sealed, snapshot, made, turn.frames);
        }
        debug_assert_eq!(
            turn.out.verdicts.iter().filter(|verdict| verdict.is_none()).count(),
            turn.out.handovers.len() - handed_over,
            "a row without a verdict"
        );
    }
}
