//! The general walk: every packet, stage by stage, in rows that hold all that may be asked of it.
//! It is the authority that the fast path is tested against.

use cpu::aes::Secret;
use wire::{BATCH, Frames, Received};

use crate::batch_context::BatchContext;
use crate::cache::FlowCache;
use crate::decapsulate::Opening;
use crate::icmp_limiter::IcmpLimiter;
use crate::ids::NetdevId;
use crate::output_batch::OutputBatch;
use crate::row::{Row, State};
use crate::stage::{Stage, StageClock};
use crate::watch::{Beside, Point, Watch};
use crate::{
    decapsulate, decide, follow, l4_checksum, large_packet, nested, plan, reassemble, receive, seal,
};

/// One worker's general walk: limits of ICMP, and lists that the stages fill anew for each batch,
/// kept so that a batch allocates nothing.
pub(crate) struct GeneralWalk {
    limiter: IcmpLimiter,
    rows: Vec<Row>,
    /// Scratch memory for rows between two stages.
    spare: Vec<Row>,
    /// Rows that wait for the end of the batch: ICMP that we made, large outer packets.
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
            limiter: IcmpLimiter::new(&[0; 32]),
            rows: Vec::with_capacity(BATCH),
            spare: Vec::with_capacity(BATCH),
            made: Vec::with_capacity(BATCH),
            lookups: decide::LookupLists::default(),
            opening: Opening::default(),
            output_batch: OutputBatch::default(),
        }
    }

    /// Sets the secret by which senders find their buckets of ICMP.
    pub(crate) fn key_icmp_limits(&mut self, secret: &Secret) {
        self.limiter = IcmpLimiter::new(secret);
    }

    /// Walks packets that were received together.
    ///
    /// 1. receive: link header, VLAN, IP header checks; ESP to us is set apart, fragments of it are
    ///    put together; unfinished TCP and UDP checksums are completed
    /// 2. decapsulate: SAD, replay check, cipher over the batch, replay commit, the inner packet;
    ///    of a peer behind another one once more
    /// 3. follow: a later fragment gets the upper layer of its datagram's first one, or waits
    /// 4. decide: inbound selectors, route, outbound selectors
    /// 5. plan: hop limit, path MTU, fragments, the SA and its numbers
    /// 6. seal: all headers, nonces and trailers of the batch, then the cipher, SA by SA; what is
    ///    to be sealed again, from the fifth stage on
    ///
    /// Outer packets that no frame holds, and the ICMP that is made on the way, wait for
    /// [`answer`](Self::answer).
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

    /// Walks packets that have waited, from their fifth stage on, or from the fourth if they are to
    /// be judged again.
    #[cold]
    pub(crate) fn resume<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        rows: &[Row],
        cache: Option<&mut FlowCache>,
        Beside { clock, watch }: &mut Beside<'_, C, W>,
    ) {
        let GeneralWalk { limiter, rows: list, made, lookups, output_batch, .. } = self;
        list.clear();
        list.extend_from_slice(rows);
        decide::decide(context, list, lookups, cache);
        watch.look(Point::Decided, context.snapshot, list, context.frames);
        plan::plan(context, list, made, limiter, output_batch);
        seal::seal(context, list, output_batch, &mut **clock);
        seal_again(context, made, limiter, output_batch, &mut **clock);
        watch.look(Point::Sealed, context.snapshot, list, context.frames);
    }

    #[inline]
    fn carry_on<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        cache: Option<&mut FlowCache>,
        Beside { clock, watch }: &mut Beside<'_, C, W>,
    ) {
        let GeneralWalk { limiter, rows, spare, made, lookups, opening, output_batch } = self;
        let (clock, snapshot) = (&mut **clock, context.snapshot);
        nested::open_inside(context, rows, opening, clock);
        watch.look(Point::Opened, snapshot, rows, context.frames);
        follow::follow(context, rows, spare, made);
        watch.look(Point::Followed, snapshot, rows, context.frames);
        decide::decide(context, rows, lookups, cache);
        l4_checksum::check_sample(context, rows);
        watch.look(Point::Decided, snapshot, rows, context.frames);
        clock.ended(Stage::Decide);
        plan::plan(context, rows, made, limiter, output_batch);
        clock.ended(Stage::Plan);
        seal::seal(context, rows, output_batch, clock);
        seal_again(context, made, limiter, output_batch, clock);
        watch.look(Point::Sealed, snapshot, rows, context.frames);
    }

    /// Walks what waits for the end of a batch: outer packets that no frame holds, then the ICMP
    /// that was made about packets, from the fourth stage on.
    #[inline]
    pub(crate) fn answer<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        cache: Option<&mut FlowCache>,
        beside: &mut Beside<'_, C, W>,
    ) {
        if !self.made.is_empty() {
            self.end_batch(context, cache, beside);
        }
    }

    #[cold]
    fn end_batch<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        mut cache: Option<&mut FlowCache>,
        beside: &mut Beside<'_, C, W>,
    ) {
        self.made.retain(|row| row.state != State::Large);
        let parts: Vec<Row> = context.reassembly.take_gathered(0).collect();
        for parts in parts.split_inclusive(|row| row.state == State::Large) {
            self.open_large(context, parts, cache.as_deref_mut(), beside);
        }
        if !self.made.is_empty() {
            self.send_made(context, cache, beside);
        }
    }

    /// Walks an outer packet that no frame holds, from its second stage on.
    fn open_large<F: Frames, C: StageClock, W: Watch + ?Sized>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        parts: &[Row],
        cache: Option<&mut FlowCache>,
        beside: &mut Beside<'_, C, W>,
    ) {
        let mut buffer = context.reassembly.take_buffer();
        // All frames have one size; those of the parts are given back below.
        let frame_bytes = context.frames.bytes(parts[0].frame).len();
        let memory = (large_packet::FRAME, &mut buffer[..]);
        if let Some(row) = reassemble::assemble_large(context, parts, memory) {
            large_packet::run_with(context, &mut buffer, frame_bytes, |context| {
                self.rows.clear();
                self.rows.push(row);
                let GeneralWalk { rows, opening, .. } = self;
                decapsulate::decapsulate(context, rows, opening, beside.clock);
                large_packet::shrink(context, &mut rows[0]);
                self.carry_on(context, cache, beside);
                large_packet::cut_for_host(context, row.place);
            });
        }
        context.reassembly.put_buffer(buffer);
    }

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
        seal_again(context, rows, limiter, output_batch, &mut **clock);
        watch.look(Point::Sealed, snapshot, made, context.frames);
        made.clear();
    }
}

/// Seals the packets again that are sealed for a peer behind another one: fifth and sixth stage.
#[inline]
fn seal_again<F: Frames>(
    context: &mut BatchContext<'_, F>,
    made: &mut Vec<Row>,
    limiter: &mut IcmpLimiter,
    output_batch: &mut OutputBatch,
    clock: &mut impl StageClock,
) {
    if !output_batch.again.is_empty() {
        let mut rows = std::mem::take(&mut output_batch.again);
        plan::plan(context, &mut rows, made, limiter, output_batch);
        seal::seal(context, &mut rows, output_batch, clock);
        rows.clear();
        output_batch.again = rows;
    }
}
