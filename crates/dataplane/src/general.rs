//! The general walk: every packet, stage by stage, in rows that hold all that may be asked of it.
//! It is the authority that the fast path is tested against.

use wire::{BATCH, Frames, Received};

use crate::batch_context::BatchContext;
use crate::cache::FlowCache;
use crate::decapsulate::Opening;
use crate::ids::NetdevId;
use crate::limiter::RateLimiter;
use crate::output_batch::OutputBatch;
use crate::row::Row;
use crate::stage::{Stage, StageClock};
use crate::watch::{Beside, Point, Watch};
use crate::{decapsulate, decide, follow, l4_checksum, plan, receive, seal};

/// One worker's general walk: its rate limit, and lists that the stages fill anew for each batch,
/// kept so that a batch allocates nothing.
pub(crate) struct GeneralWalk {
    limiter: RateLimiter,
    rows: Vec<Row>,
    /// Scratch memory for rows between two stages.
    spare: Vec<Row>,
    made: Vec<Row>,
    /// Questions to the policies.
    lookups: decide::LookupLists,
    /// ESP packets to open.
    opening: Opening,
    /// Packets that leave, in order; fragments in the place of the packet they were made of.
    output_batch: OutputBatch,
}

impl GeneralWalk {
    pub(crate) fn new() -> GeneralWalk {
        GeneralWalk {
            limiter: RateLimiter::default(),
            rows: Vec::with_capacity(BATCH),
            spare: Vec::with_capacity(BATCH),
            made: Vec::with_capacity(BATCH),
            lookups: decide::LookupLists::default(),
            opening: Opening::default(),
            output_batch: OutputBatch::default(),
        }
    }

    /// Walks packets that were received together.
    ///
    /// 1. receive: link header, VLAN, IP header checks; ESP to us is set apart; unfinished TCP and
    ///    UDP checksums are completed
    /// 2. decapsulate: SAD, replay check, cipher over the batch, replay commit, the inner packet
    /// 3. follow: a later fragment gets the upper layer of its datagram's first one, or waits
    /// 4. decide: inbound selectors, route, outbound selectors
    /// 5. plan: hop limit, path MTU, fragments, the SA and its numbers
    /// 6. seal: all headers, nonces and trailers of the batch, then the cipher, SA by SA
    ///
    /// The ICMP that is made on the way waits for [`answer`](Self::answer).
    #[inline]
    pub(crate) fn walk<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        netdev: NetdevId,
        packets: &[Received],
        cache: Option<&mut FlowCache>,
        beside: &mut Beside<'_, C, W>,
    ) {
        let GeneralWalk { rows, opening, .. } = self;
        rows.clear();
        receive::receive(context, netdev, packets, rows);
        l4_checksum::complete(context, netdev, rows);
        beside.clock.ended(Stage::Receive);
        decapsulate::decapsulate(context, rows, opening, beside.clock);
        self.carry_on(context, cache, beside);
    }

    /// Walks packets that the fast path has opened, from their third stage on.
    #[cold]
    pub(crate) fn go_on<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        rows: impl Iterator<Item = Row>,
        cache: Option<&mut FlowCache>,
        beside: &mut Beside<'_, C, W>,
    ) {
        self.rows.clear();
        self.rows.extend(rows);
        if !self.rows.is_empty() {
            self.carry_on(context, cache, beside);
        }
    }

    #[inline]
    fn carry_on<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        cache: Option<&mut FlowCache>,
        Beside { clock, watch }: &mut Beside<'_, C, W>,
    ) {
        let GeneralWalk { limiter, rows, spare, made, lookups, output_batch, .. } = self;
        let (clock, snapshot) = (&mut **clock, context.snapshot);
        watch.look(Point::Opened, snapshot, rows, context.frames);
        follow::follow(context, rows, spare);
        watch.look(Point::Followed, snapshot, rows, context.frames);
        decide::decide(context, rows, lookups, cache);
        l4_checksum::check_sample(context, rows);
        watch.look(Point::Decided, snapshot, rows, context.frames);
        clock.ended(Stage::Decide);
        plan::plan(context, rows, made, limiter, output_batch);
        clock.ended(Stage::Plan);
        seal::seal(context, rows, output_batch, clock);
        watch.look(Point::Sealed, snapshot, rows, context.frames);
    }

    /// Sends the ICMP that was made about packets of a batch, behind all of them: from the fourth
    /// stage on, as any packet.
    #[inline]
    pub(crate) fn answer<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        cache: Option<&mut FlowCache>,
        beside: &mut Beside<'_, C, W>,
    ) {
        if !self.made.is_empty() {
            self.send_made(context, cache, beside);
        }
    }

    #[cold]
    fn send_made<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        cache: Option<&mut FlowCache>,
        Beside { clock, watch }: &mut Beside<'_, C, W>,
    ) {
        let GeneralWalk { limiter, rows, made, lookups, output_batch, .. } = self;
        let snapshot = context.snapshot;
        decide::decide(context, made, lookups, cache);
        watch.look(Point::Decided, snapshot, made, context.frames);
        rows.clear(); // what is made is never answered: nothing more comes of it
        plan::plan(context, made, rows, limiter, output_batch);
        seal::seal(context, made, output_batch, &mut **clock);
        watch.look(Point::Sealed, snapshot, made, context.frames);
        made.clear();
    }
}
