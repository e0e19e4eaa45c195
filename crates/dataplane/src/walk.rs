//! The walk of one batch: the order of the stages, and what passes between them.

use wire::{BATCH, Descriptor, FrameId, Frames, Packet};

use crate::esp::Moved;
use crate::esp_fragments::DroppedDatagrams;
use crate::handover::Share;
use crate::l4_checksum::{self, Sampling};
use crate::open::Opening;
use crate::routes::Near;
use crate::seal::Departures;
use crate::sends::Sends;
use crate::snapshot::Egress;
use crate::stage::{NoClock, Stage, StageClock};
use crate::tap::{Arrival, Nobody, Point, Watch};
use crate::{
    Counters, DeviceId, DropReason, FlowCache, Medium, PortId, SetIndex, Snapshot, Verdict,
};
use crate::{decide, limiter::RateLimiter, open, plan, receive, seal};

/// Where a row's packet came from, which says by what it is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A port, in clear.
    Received,
    /// Opened by an SA of this set.
    Opened(SetIndex),
    /// Linux on this machine, through the host port.
    Host,
    /// Made by us: an ICMP error.
    Made(Quote),
}

/// What an ICMP error of ours quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quote {
    /// A packet that came in clear and was to leave in clear.
    Clear,
    /// A packet that was opened or was to be sealed: the message never leaves in clear.
    Protected,
}

impl Origin {
    /// Whether we forward the packet for somebody, and so lower its hop limit.
    pub(crate) fn is_forwarded(self) -> bool {
        matches!(self, Origin::Received | Origin::Opened(_))
    }
}

/// How far a row has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// ESP to us.
    Sealed,
    /// An IP packet that is to be judged.
    Clear,
    /// To leave in clear.
    Forward(Egress),
    /// To leave sealed by an SA of this set.
    Protect(SetIndex),
    /// Its verdict stands.
    Ended,
}

/// One packet of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Its place in [`Outputs::verdicts`].
    pub(crate) place: u32,
    pub(crate) frame: FrameId,
    /// Where its IP header is in the frame.
    pub(crate) ip: u32,
    pub(crate) ingress: PortId,
    pub(crate) origin: Origin,
    pub(crate) state: State,
    pub(crate) packet: Packet,
}

impl Row {
    /// The IP packet, its link padding cut off.
    pub(crate) fn bytes<'f, F: Frames>(&self, frames: &'f F) -> &'f [u8] {
        let start = self.ip as usize;
        &frames.bytes(self.frame)[start..start + self.packet.length as usize]
    }

    /// The IP packet for writing.
    pub(crate) fn bytes_mut<'f, F: Frames>(&self, frames: &'f mut F) -> &'f mut [u8] {
        let start = self.ip as usize;
        &mut frames.bytes_mut(self.frame)[start..start + self.packet.length as usize]
    }
}

/// A packet for Linux on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToHost {
    /// The port whose ledger it is on.
    pub ingress: PortId,
    /// What it begins with: as received, or the IP packet that was opened.
    pub form: Medium,
    /// The packet; the frame is the receiver's.
    pub packet: Descriptor,
}

/// A packet that waits for the link address of its next hop. It is finished but for that: sealed if
/// a policy says so, and without a link header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The port it will leave by.
    pub egress: PortId,
    /// The port whose ledger it is on.
    pub ingress: PortId,
    /// The IP packet; the frame is the receiver's.
    pub packet: Descriptor,
}

/// A packet whose SA is another worker's. It is on no ledger yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handover {
    /// That worker.
    pub worker: u32,
    /// The device it was received from.
    pub device: DeviceId,
    /// The port it came by.
    pub ingress: PortId,
    /// The packet as it was received; the frame is the receiver's.
    pub packet: Descriptor,
}

/// What a batch came to. The receiver owns the frames in it.
#[derive(Default, Debug)]
pub struct Outputs {
    /// To transmit, in the order of the rows.
    pub sends: Sends,
    /// For Linux.
    pub host: Vec<ToHost>,
    /// Waiting for a neighbour.
    pub held: Vec<Held>,
    /// Peers that have shown themselves at another place, each at most once.
    pub moved: Vec<Moved>,
    /// Packets that another worker is to walk.
    pub handovers: Vec<Handover>,
    /// One verdict per packet given in, in its order, then one per packet made. `None`: it is
    /// among the handovers, and its verdict is the other worker's.
    pub verdicts: Vec<Option<Verdict>>,
}

impl Outputs {
    /// Forgets what was there; the frames must have found their owners.
    pub fn clear(&mut self) {
        self.sends.clear();
        self.host.clear();
        self.held.clear();
        self.moved.clear();
        self.handovers.clear();
        self.verdicts.clear();
    }
}

/// Everything a stage may touch besides its rows.
pub(crate) struct Turn<'a, F> {
    pub(crate) snapshot: &'a Snapshot,
    /// The route that was found last.
    pub(crate) near: Near,
    pub(crate) now_ns: u64,
    /// Whose turn it is.
    pub(crate) share: Share,
    /// Where the packets were received, if those of other workers' SAs go to them.
    pub(crate) handing: Option<(DeviceId, &'a [Descriptor])>,
    /// Fragmented ESP in UDP that was dropped lately.
    pub(crate) dropped: &'a mut DroppedDatagrams,
    pub(crate) frames: &'a mut F,
    pub(crate) counters: &'a mut Counters,
    pub(crate) out: &'a mut Outputs,
}

impl<F: Frames> Turn<'_, F> {
    /// Ends a row with its verdict; who gets the frame is the caller's affair.
    pub(crate) fn end(&mut self, row: &mut Row, verdict: Verdict) {
        row.state = State::Ended;
        self.out.verdicts[row.place as usize] = Some(verdict);
    }

    /// Ends a row by dropping its packet.
    pub(crate) fn drop(&mut self, row: &mut Row, reason: DropReason) {
        self.end(row, Verdict::Drop(reason));
        self.counters.drop(Some(row.ingress), reason);
        self.frames.give(row.frame);
    }

    /// A place for the verdict of a packet that we make, on the ledger of the port that caused it.
    pub(crate) fn make(&mut self, ingress: PortId) -> u32 {
        self.counters.ledger(Some(ingress)).made += 1;
        self.out.verdicts.push(None);
        self.out.verdicts.len() as u32 - 1
    }
}

/// Lists that the stages fill anew for each batch; kept so that a batch allocates nothing.
#[derive(Default)]
pub(crate) struct Scratch {
    /// What the policies are asked.
    pub(crate) asking: decide::Asking,
    /// ESP packets to open.
    pub(crate) opening: Opening,
    /// What leaves, in order, fragments in the place of what they were made of.
    pub(crate) departures: Departures,
    /// One fragment, on its way to its frame.
    pub(crate) fragment: Vec<u8>,
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

    /// From now on flows are remembered in this cache, or in none; returns the one that was there,
    /// for somebody else to free. Where generations began anew ([`Spd::wraps`](policy::Spd::wraps))
    /// it is to be a fresh one, put in with the snapshot.
    pub fn take_cache(&mut self, cache: Option<FlowCache>) -> Option<FlowCache> {
        std::mem::replace(&mut self.cache, cache)
    }

    /// The cache, to be looked at.
    pub fn cache(&self) -> Option<&FlowCache> {
        self.cache.as_ref()
    }

    /// From now on what an SA of another worker is to open goes to [`Outputs::handovers`]; the
    /// snapshots must then be for several workers ([`Snapshot::workers`]).
    pub fn take_share(&mut self, share: Share) {
        self.share = share;
    }

    /// Which worker's walk it is.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Goes over to another layout: forgets what it remembers of ports, takes zeroed counters for
    /// it and returns those of the layout before.
    pub fn rearrange(&mut self, zeroed: Counters) -> Counters {
        self.dropped.clear();
        std::mem::replace(&mut self.counters, zeroed)
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What was counted, for who transmits: `sent`, `host`, `held` and `tx_full` are its lines.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Walks a batch that was received from one device at `now_ns` (any epoch, never backwards).
    ///
    /// Takes over the frames of `packets`; each is afterwards in `out` or back in the pool.
    ///
    /// 1. receive: link header, VLAN, IP header checks; ESP to us is set apart; unfinished TCP and
    ///    UDP checksums are completed
    /// 2. open: SAD, replay check, cipher over the batch, replay commit, the inner packet
    /// 3. decide: inbound selectors, route, outbound selectors
    /// 4. plan: hop limit, path MTU, fragments, the SA and its numbers
    /// 5. seal: all headers, nonces and trailers of the batch, then the cipher, SA by SA
    ///
    /// Then from 3 on again for the ICMP that was made on the way.
    ///
    /// # Panics
    /// If `packets` is longer than [`BATCH`].
    pub fn run<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        device: DeviceId,
        packets: &[Descriptor],
        frames: &mut F,
        out: &mut Outputs,
    ) {
        self.run_clocked(snapshot, now_ns, device, packets, frames, out, &mut NoClock);
    }

    /// The same beside a clock that is told where each stage ends.
    ///
    /// # Panics
    /// If `packets` is longer than [`BATCH`].
    #[expect(clippy::too_many_arguments, reason = "those of `run` and a clock")]
    #[inline]
    pub fn run_clocked<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        device: DeviceId,
        packets: &[Descriptor],
        frames: &mut F,
        out: &mut Outputs,
        clock: &mut impl StageClock,
    ) {
        let handing = (self.share.workers > 1).then_some((device, packets));
        let batch = (device, packets);
        self.walk(snapshot, now_ns, batch, handing, frames, out, clock, &mut Nobody);
    }

    /// Walks a batch that another worker received from `device` and handed over: as
    /// [`run`](Self::run), but nothing of it is handed over again.
    ///
    /// # Panics
    /// If `packets` is longer than [`BATCH`].
    pub fn run_handed_over<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        device: DeviceId,
        packets: &[Descriptor],
        frames: &mut F,
        out: &mut Outputs,
    ) {
        let (batch, clock) = ((device, packets), &mut NoClock);
        self.walk(snapshot, now_ns, batch, None, frames, out, clock, &mut Nobody);
    }

    /// The same walk while somebody looks at the rows between the stages.
    #[expect(clippy::too_many_arguments, reason = "as above")]
    #[cold]
    pub(crate) fn run_watched<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        (device, packets): (DeviceId, &[Descriptor]),
        arrival: Arrival,
        frames: &mut F,
        out: &mut Outputs,
        watch: &mut (impl Watch + ?Sized),
    ) {
        let hands_over = arrival == Arrival::Received && self.share.workers > 1;
        let (batch, handing) = ((device, packets), hands_over.then_some((device, packets)));
        self.walk(snapshot, now_ns, batch, handing, frames, out, &mut NoClock, watch);
    }

    #[expect(clippy::too_many_arguments, reason = "as above")]
    fn walk<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        (device, packets): (DeviceId, &[Descriptor]),
        handing: Option<(DeviceId, &[Descriptor])>,
        frames: &mut F,
        out: &mut Outputs,
        clock: &mut impl StageClock,
        watch: &mut (impl Watch + ?Sized),
    ) {
        assert!(packets.len() <= BATCH, "a batch is at most {BATCH} packets");
        let Walk { counters, limiter, rows, made, scratch, share, cache, sampling, dropped } = self;
        out.verdicts.clear();
        out.verdicts.resize(packets.len(), None);
        let (share, handed_over) = (*share, out.handovers.len());
        let near = Near::nothing();
        let mut turn =
            Turn { snapshot, near, now_ns, share, handing, dropped, frames, counters, out };
        rows.clear();
        made.clear();
        receive::receive(&mut turn, device, packets, rows);
        l4_checksum::complete(&mut turn, device, rows);
        clock.ended(Stage::Receive);
        open::open(&mut turn, rows, scratch, clock);
        watch.look(Point::Opened, snapshot, rows, turn.frames);
        decide::decide(&mut turn, rows, scratch, cache.as_mut());
        sampling.check(&mut turn, device, rows);
        watch.look(Point::Decided, snapshot, rows, turn.frames);
        clock.ended(Stage::Decide);
        plan::plan(&mut turn, rows, made, limiter, scratch);
        clock.ended(Stage::Plan);
        seal::seal(&mut turn, rows, scratch, clock);
        watch.look(Point::Sealed, snapshot, rows, turn.frames);
        if !made.is_empty() {
            decide::decide(&mut turn, made, scratch, cache.as_mut());
            watch.look(Point::Decided, snapshot, made, turn.frames);
            rows.clear(); // what is made is never answered: nothing more comes of it
            plan::plan(&mut turn, made, rows, limiter, scratch);
            seal::seal(&mut turn, made, scratch, clock);
            watch.look(Point::Sealed, snapshot, made, turn.frames);
        }
        debug_assert_eq!(
            turn.out.verdicts.iter().filter(|verdict| verdict.is_none()).count(),
            turn.out.handovers.len() - handed_over,
            "a row without a verdict"
        );
    }
}
