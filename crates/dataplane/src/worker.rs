//! One worker's turn: receive a batch, walk it, transmit what leaves. The daemon, `lockgate replay`
//! and the benches run the same turn; the caller chooses the kind of port.

use ipsec::SaId;
use wire::{BATCH, Descriptor, FrameId, Frames, Port, Received};

use crate::audit::Auditor;
use crate::cache::FlowCache;
use crate::counters::{Counters, PortCounts, Volume};
use crate::handover::{Full, Handovers};
use crate::ids::{NetdevId, PortId};
use crate::input::{Entry, Input};
use crate::keepalive::Keepalives;
use crate::neighbour_queues::{Departures, NeighbourQueues, ResolveRequest};
use crate::outputs::{AddressUpdate, HeldPacket, Outputs, ToHost};
use crate::port::Medium;
use crate::row::Row;
use crate::sa_queues::AcquireRequest;
use crate::snapshot::Snapshot;
use crate::stage::{NoClock, Stage, StageClock};
use crate::sweep::Sweep;
use crate::tap::{self, Tap, TapId};
use crate::tenant_samples::TenantSampler;
use crate::tx_batch::{TxBatch, TxRun};
use crate::verdict::{DropReason, Verdict};
use crate::walk::{FastPathUse, Walk};
use crate::watch::{Beside, Nobody};
use crate::worker_share::WorkerShare;

/// Time after which what waits for a neighbour is looked through again.
const RELEASE_EVERY_NS: u64 = 100_000_000;

/// Environment of a worker: live ports or a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Surroundings {
    /// A capture or a bench: nobody resolves neighbours, and a frame that is left to Linux is there
    /// already.
    Recorded,
    /// A kernel: what waits for a neighbour is held while the kernel is asked, and what the
    /// steering program left to Linux never comes here.
    Live,
}

/// Slots whose ports and SAs are gone, with what each of these counted.
#[derive(Clone, Default, Debug)]
pub struct VacatedSlots {
    /// The ports.
    pub ports: Vec<(PortId, PortCounts)>,
    /// The SAs that sealed.
    pub outbound: Vec<(SaId, Volume)>,
    /// The SAs that opened.
    pub inbound: Vec<(SaId, Volume)>,
}

impl VacatedSlots {
    /// Lists what is in a snapshot but not in the next, with counts of zero.
    pub fn between(before: &Snapshot, next: &Snapshot) -> VacatedSlots {
        let (outbound, inbound) = next.sad().gone_since(before.sad());
        let ports = next.ports_gone_since(before);
        VacatedSlots {
            ports: ports.map(|port| (port, PortCounts::default())).collect(),
            outbound: outbound.iter().map(|sa| (sa.id, Volume::default())).collect(),
            inbound: inbound.iter().map(|sa| (sa.id, Volume::default())).collect(),
        }
    }
}

/// A worker: frames, ports, the walk. Owns every frame that no port has.
pub struct Worker<F, P> {
    frames: F,
    /// One per slot of a netdev; [`NetdevId`] counts into it. `None`: nobody listens or sends
    /// there.
    netdevs: Vec<Option<P>>,
    walk: Walk,
    received: Vec<Received>,
    out: Outputs,
    /// Packets that wait for each netdev during a turn; always empty between turns.
    queues: Vec<TxBatch>,
    /// Netdevs with waiting packets.
    filled: Vec<NetdevId>,
    surroundings: Surroundings,
    neighbour_queues: NeighbourQueues,
    /// Packets that have waited and are walked again; empty but in the methods that fill it.
    again: Vec<Row>,
    /// Time at which the packets that wait were last looked through.
    released_ns: u64,
    handovers: Handovers,
    keepalives: Keepalives,
    sweep: Sweep,
    /// Captures that look on; mostly none.
    #[expect(clippy::vec_box, reason = "taps come and go in the boxes that commands carry")]
    taps: Vec<Box<Tap>>,
}

impl<F: Frames, P: Port<F>> Worker<F, P> {
    /// A worker for these netdevs under this snapshot.
    pub fn new(snapshot: &Snapshot, frames: F, netdevs: Vec<Option<P>>) -> Worker<F, P> {
        let queues = netdevs.iter().map(|_| TxBatch::default()).collect();
        let received = Vec::with_capacity(BATCH);
        let (out, neighbour_queues) = (Outputs::default(), NeighbourQueues::new());
        let (walk, surroundings) = (Walk::new(snapshot), Surroundings::Recorded);
        let (handovers, keepalives) = (Handovers::default(), Keepalives::default());
        Worker {
            frames,
            netdevs,
            walk,
            received,
            out,
            queues,
            filled: Vec::with_capacity(BATCH),
            surroundings,
            neighbour_queues,
            again: Vec::with_capacity(BATCH),
            released_ns: 0,
            handovers,
            keepalives,
            sweep: Sweep::default(),
            taps: Vec::new(),
        }
    }

    /// Puts the worker among live ports.
    pub fn live(mut self) -> Worker<F, P> {
        self.surroundings = Surroundings::Live;
        self
    }

    /// Puts the worker beside others, to which it can hand packets over. It does so as soon as
    /// [`walk_among`](Self::walk_among) sets how many walk.
    pub fn beside(mut self, handovers: Handovers) -> Worker<F, P> {
        self.walk.key_hashes(handovers.secret());
        self.handovers = handovers;
        self
    }

    /// Sets how many workers walk packets, at most as many as there are rings for; those with the
    /// lowest numbers do.
    pub fn walk_among(&mut self, workers: u32) {
        self.walk
            .take_share(WorkerShare { worker: self.handovers.worker(), workers: workers.max(1) });
    }

    /// Sets the flow cache, or none, and returns the one before: [`Walk::take_cache`].
    pub fn take_cache(&mut self, cache: Option<FlowCache>) -> Option<FlowCache> {
        self.walk.take_cache(cache)
    }

    /// Sets whether packets may take the fast path; at first they may.
    pub fn use_fast_path(&mut self, use_: FastPathUse) {
        self.walk.use_fast_path(use_);
    }

    /// The flow cache, to be looked at.
    pub fn cache(&self) -> Option<&FlowCache> {
        self.walk.cache()
    }

    /// Lets go of the ports that the next snapshot does not have, before its counts are taken out:
    /// packets that came or are to leave by them and wait are dropped. Makes room for the netdevs
    /// that come, and returns those that go, for the caller to close. Everything else goes on.
    pub fn leave_ports(&mut self, next: &Snapshot) -> Vec<P> {
        self.neighbour_queues.leave_ports(next, &mut self.frames, self.walk.counters_mut());
        self.walk.leave_ports(next, &mut self.frames);
        let slots = next.netdev_slots().max(self.netdevs.len());
        self.netdevs.resize_with(slots, || None);
        self.queues.resize_with(slots, TxBatch::default);
        let numbered = (0..).map(NetdevId).zip(&mut self.netdevs);
        let gone = numbered.filter(|(netdev, _)| !next.has_netdev(*netdev));
        let gone = gone.filter_map(|(_, port)| port.take()).collect();
        self.netdevs.truncate(next.netdev_slots());
        self.queues.truncate(next.netdev_slots());
        gone
    }

    /// Replaces the counters by zeroed ones with room for the next snapshot, and returns the old
    /// ones. Call it after [`leave_ports`](Self::leave_ports), when the worker has that snapshot's
    /// ports.
    pub fn exchange_counters(&mut self, zeroed: Counters) -> Counters {
        self.walk.counters_mut().exchange(zeroed)
    }

    /// Takes out what ports and SAs have counted whose slots may be others' under the snapshot that
    /// is gone over to.
    pub fn take_counts(&mut self, mut gone: VacatedSlots) -> VacatedSlots {
        let counters = self.walk.counters_mut();
        gone.ports.iter_mut().for_each(|(port, counts)| *counts = counters.take_port(*port));
        let Counters { sealed, opened, .. } = counters;
        for (list, counted) in [(&mut gone.outbound, sealed), (&mut gone.inbound, opened)] {
            for (sa, volume) in list {
                *volume = std::mem::take(&mut counted[sa.0 as usize]);
            }
        }
        gone
    }

    /// Goes over to a snapshot before its first batch. What the flow cache remembers of policies
    /// that changed no longer counts; what waited for a neighbour that the snapshot knows leaves.
    /// Packets that wait in clear are judged again before, if policies, ports or routes changed.
    /// `now_ns` is by the clock of [`turn`](Self::turn).
    pub fn adopt(&mut self, snapshot: &Snapshot, now_ns: u64) {
        self.walk.adopt(snapshot);
        // Packets without an SA come first: they wait by slots of policies, and packets that
        // `release` has judged again may join them.
        self.resume(snapshot, now_ns);
        self.release(snapshot, now_ns);
    }

    /// Runs the timers that are due at a time, by the clock of [`turn`](Self::turn). Call it once a
    /// turn over all netdevs, with or without packets. Cost: bounded, however many sets, SAs, ports
    /// and flows exist; [`has_overdue_work`](Self::has_overdue_work) reports remaining work.
    ///
    /// 1. asks for neighbours at the allowed rate; every 100 ms repeats requests for neighbours and
    ///    SAs, and drops late packets
    /// 2. drops fragments that waited too long for the first one of their datagram
    /// 3. sends NAT keepalives of the sets that this worker sees to, and messages about direct
    ///    paths
    /// 4. removes connections whose time-out has passed from its part of their table
    #[inline]
    pub fn tick(&mut self, snapshot: &Snapshot, now_ns: u64) {
        if self.neighbour_queues.waiting() + self.walk.waiting_for_sas() > 0
            && now_ns.saturating_sub(self.released_ns) >= RELEASE_EVERY_NS
        {
            self.release(snapshot, now_ns);
            self.resume(snapshot, now_ns);
        }
        self.neighbour_queues.make_requests(now_ns, self.walk.share());
        self.walk.expire_fragments(now_ns, &mut self.frames);
        self.send_messages(snapshot, now_ns);
        if let Some(connections) = snapshot.connections() {
            self.sweep.step(connections, self.walk.share(), now_ns);
        }
    }

    /// Puts a netdev's port in its place, and returns the one that was there.
    ///
    /// # Panics
    /// If the snapshot has no such netdev.
    pub fn put_netdev(&mut self, netdev: NetdevId, port: Option<P>) -> Option<P> {
        std::mem::replace(&mut self.netdevs[usize::from(netdev.0)], port)
    }

    /// The frames.
    pub fn frames(&self) -> &F {
        &self.frames
    }

    /// The frames, for the code that closes a port.
    pub fn frames_mut(&mut self) -> &mut F {
        &mut self.frames
    }

    /// All netdevs' ports; [`NetdevId`] counts into them.
    pub fn netdevs(&self) -> &[Option<P>] {
        &self.netdevs
    }

    /// Packets that wait: for a neighbour, for an SA, or for the first fragment of their datagram.
    pub fn waiting(&self) -> usize {
        let for_neighbours = self.neighbour_queues.waiting();
        for_neighbours + self.walk.waiting_for_sas() + self.walk.fragments_waiting()
    }

    /// Returns whether the last [`tick`](Self::tick) left due work over: tick again without a
    /// sleep.
    pub fn has_overdue_work(&self) -> bool {
        self.keepalives.is_behind() || self.walk.is_behind()
    }

    /// Returns whether hosts have direct paths that [`tick`](Self::tick) looks after.
    pub fn has_direct_paths(&self) -> bool {
        self.walk.has_direct_paths()
    }

    /// Requests for SAs since the last call; one a second for each policy that packets wait by.
    pub fn acquire_requests(&mut self) -> std::vec::Drain<'_, AcquireRequest> {
        self.walk.acquire_requests()
    }

    /// Neighbours whose link address is to be asked for now; each once a second while packets wait
    /// for it.
    pub fn resolve_requests(&mut self) -> std::vec::Drain<'_, ResolveRequest> {
        self.neighbour_queues.resolve_requests()
    }

    /// Peers that have shown themselves at another place since this was last asked.
    pub fn moved(&mut self) -> std::vec::Drain<'_, AddressUpdate> {
        self.out.moved.drain(..)
    }

    /// Workers that were handed packets since this was last asked: they may sleep.
    pub fn handed_to(&mut self) -> std::vec::Drain<'_, u32> {
        self.handovers.given()
    }

    /// Returns whether others have handed over packets that are not walked yet.
    pub fn has_handovers(&self) -> bool {
        self.handovers.is_waiting()
    }

    /// The auditor of the worker's verdicts: [`Walk::auditor`].
    pub fn auditor(&mut self) -> &mut Auditor {
        self.walk.auditor()
    }

    /// Samples of the packets that cross inside virtual networks: [`Walk::tenants`].
    pub fn tenants(&mut self) -> &mut TenantSampler {
        self.walk.tenants()
    }

    /// Adds a capture's tap.
    pub fn add_tap(&mut self, tap: Box<Tap>) {
        self.taps.push(tap);
    }

    /// Takes a capture's tap out, for somebody else to free.
    pub fn remove_tap(&mut self, id: TapId) -> Option<Box<Tap>> {
        let place = self.taps.iter().position(|tap| tap.id() == id)?;
        Some(self.taps.swap_remove(place))
    }

    /// Sends the NAT keepalives that are due, of the sets that this worker sees to, and messages
    /// about direct paths.
    fn send_messages(&mut self, snapshot: &Snapshot, now_ns: u64) {
        let (share, counters) = (self.walk.share(), self.walk.counters_mut());
        let (frames, out) = (&mut self.frames, &mut self.out);
        self.keepalives.make(snapshot, share, now_ns, frames, counters, out);
        self.walk.tell_direct_paths((snapshot, now_ns), frames, out);
        if !out.tx.is_empty() || !out.held.is_empty() {
            for tap in &mut self.taps {
                tap.sent(snapshot, &out.tx, frames);
            }
            self.dispatch(snapshot, now_ns);
            self.taps.iter_mut().for_each(|tap| tap.finish(snapshot, now_ns, &[]));
        }
    }

    /// Sends what waited for a neighbour that this snapshot knows, and drops what waited too long.
    fn release(&mut self, snapshot: &Snapshot, now_ns: u64) {
        self.released_ns = now_ns;
        if self.neighbour_queues.waiting() == 0 {
            return;
        }
        let (share, taps) = (self.walk.share(), &mut self.taps);
        let refused = |held: &HeldPacket, reason, frames: &F| {
            taps.iter_mut().for_each(|tap| tap.held_in_vain(snapshot, (held, reason), frames));
        };
        let mut departures = Departures {
            frames: &mut self.frames,
            counters: self.walk.counters_mut(),
            tx: &mut self.out.tx,
            again: &mut self.again,
            refused,
        };
        self.neighbour_queues.release((snapshot, now_ns), share, &mut departures);
        for tap in &mut self.taps {
            tap.sent(snapshot, &self.out.tx, &self.frames);
        }
        self.dispatch(snapshot, now_ns);
        self.taps.iter_mut().for_each(|tap| tap.finish(snapshot, now_ns, &[]));
        self.walk_again(snapshot, now_ns);
    }

    /// Lets go of what waited for an SA that this snapshot has, and drops what waited too long.
    fn resume(&mut self, snapshot: &Snapshot, now_ns: u64) {
        let Worker { walk, taps, frames, again, .. } = self;
        walk.sort_out((snapshot, now_ns), frames, again, |row, reason, frames| {
            taps.iter_mut().for_each(|tap| tap.waited_in_vain(snapshot, (row, reason), frames));
        });
        self.taps.iter_mut().for_each(|tap| tap.finish(snapshot, now_ns, &[]));
        self.walk_again(snapshot, now_ns);
    }

    /// Walks released packets again.
    fn walk_again(&mut self, snapshot: &Snapshot, now_ns: u64) {
        let mut again = std::mem::take(&mut self.again);
        for rows in again.chunks_mut(BATCH) {
            let Worker { walk, taps, frames, out, .. } = self;
            walk.resume((snapshot, now_ns), rows, frames, out, &mut taps[..]);
            for tap in taps {
                tap.sent(snapshot, &out.tx, frames);
            }
            self.dispatch(snapshot, now_ns);
            for tap in &mut self.taps {
                tap.finish(snapshot, now_ns, &self.out.verdicts);
            }
        }
        again.clear();
        self.again = again;
    }

    /// Drops what waits: before the end.
    pub fn stop_waiting(&mut self) {
        self.walk.drop_fragments(&mut self.frames);
        self.walk.drop_those_without_sas(&mut self.frames);
        self.neighbour_queues.clear(&mut self.frames, self.walk.counters_mut());
    }

    /// Takes up to `limit` packets (at most [`BATCH`]) from a netdev through the walk, transmits
    /// what leaves, and returns how many were received.
    pub fn turn(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        netdev: NetdevId,
        limit: usize,
    ) -> usize {
        self.turn_clocked(snapshot, now_ns, netdev, limit, &mut NoClock)
    }

    /// Runs a turn like [`turn`](Self::turn), with a clock that learns where each stage ends.
    #[inline]
    pub fn turn_clocked(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        netdev: NetdevId,
        limit: usize,
        clock: &mut impl StageClock,
    ) -> usize {
        self.received.clear();
        let Some(Some(port)) = self.netdevs.get_mut(usize::from(netdev.0)) else { return 0 };
        port.receive(&mut self.frames, limit.min(BATCH), &mut self.received);
        if self.received.is_empty() {
            return 0;
        }
        if self.taps.is_empty() {
            let (frames, out) = (&mut self.frames, &mut self.out);
            let input = Input::received(netdev, &self.received).marked(port.marks());
            let beside = Beside { clock, watch: &mut Nobody };
            self.walk.run_beside(snapshot, now_ns, input, frames, out, beside);
            self.dispatch(snapshot, now_ns);
            clock.ended(Stage::Transmit);
        } else {
            self.walk_tapped(snapshot, now_ns, netdev, Entry::Received);
        }
        self.received.len()
    }

    /// Takes up to a batch of packets out of each other worker's ring through the walk, transmits
    /// what leaves, and returns how many they were.
    pub fn take_over(&mut self, snapshot: &Snapshot, now_ns: u64) -> usize {
        let mut taken = 0;
        for ring in 0..self.handovers.rings() {
            let mut left = BATCH;
            while left > 0 {
                self.received.clear();
                let (frames, out) = (&mut self.frames, &mut self.out);
                let into = &mut self.received;
                let netdev = self.handovers.take(ring, snapshot, left, frames, into);
                if into.is_empty() {
                    break;
                }
                (left, taken) = (left - into.len(), taken + into.len());
                self.walk.counters_mut().taken_over += into.len() as u64;
                if !self.taps.is_empty() {
                    self.walk_tapped(snapshot, now_ns, netdev, Entry::HandedOver);
                    continue;
                }
                let entry = Entry::HandedOver;
                let input = Input { netdev, packets: into, marks: &[], entry };
                self.walk.run(snapshot, now_ns, input, frames, out);
                self.dispatch(snapshot, now_ns);
            }
        }
        taken
    }

    /// Returns the counters. The ledger balances between turns.
    pub fn counters(&self) -> &Counters {
        self.walk.counters()
    }

    /// Verdicts of the last batch: those received in their order, then those made.
    pub fn verdicts(&self) -> &[Option<Verdict>] {
        &self.out.verdicts
    }

    /// A netdev's port.
    pub fn netdev_mut(&mut self, netdev: NetdevId) -> Option<&mut P> {
        self.netdevs.get_mut(usize::from(netdev.0))?.as_mut()
    }

    /// The frames and a netdev's port, for whoever feeds or empties it.
    pub fn parts_mut(&mut self, netdev: NetdevId) -> (&mut F, Option<&mut P>) {
        let port = self.netdevs.get_mut(usize::from(netdev.0)).and_then(Option::as_mut);
        (&mut self.frames, port)
    }

    /// Takes the worker apart.
    pub fn into_parts(self) -> (F, Vec<Option<P>>, Counters) {
        (self.frames, self.netdevs, self.walk.counters().clone())
    }

    /// Walks and sends what was received while captures look on.
    #[cold]
    fn walk_tapped(&mut self, snapshot: &Snapshot, now_ns: u64, netdev: NetdevId, entry: Entry) {
        let Worker { walk, taps, netdevs, received, frames, out, .. } = self;
        let port = netdevs.get(usize::from(netdev.0)).and_then(Option::as_ref);
        let marks = match entry {
            Entry::Received => port.map_or(&[][..], |port| port.marks()),
            Entry::HandedOver => &[],
        };
        let input = Input { netdev, packets: received, marks, entry };
        tap::walk(walk, taps, snapshot, now_ns, input, frames, out);
        self.dispatch(snapshot, now_ns);
        for tap in &mut self.taps {
            tap.finish(snapshot, now_ns, &self.out.verdicts);
        }
    }

    fn dispatch(&mut self, snapshot: &Snapshot, now_ns: u64) {
        self.hand_over(snapshot);
        self.sort(snapshot);
        let counters = self.walk.counters_mut();
        for ToHost { ingress, form, packet } in self.out.host.drain(..) {
            if form == Medium::Ethernet && self.surroundings == Surroundings::Live {
                counters.drop(Some(ingress), DropReason::Unsteered);
                tell(&mut self.taps, packet.frame, DropReason::Unsteered);
                self.frames.give(packet.frame);
                continue;
            }
            // IP packets go up by the host port; frames left to Linux are there already.
            let port = snapshot.host().filter(|_| form == Medium::Ip);
            let netdev = port.map(|port| usize::from(snapshot.path_port(port).netdev.0));
            let sink = netdev.and_then(|netdev| self.netdevs.get_mut(netdev)?.as_mut());
            let accepted = sink.map(|sink| sink.transmit(&mut self.frames, &[packet]));
            if accepted == Some(0) {
                counters.drop(Some(ingress), DropReason::TransmitFull);
                tell(&mut self.taps, packet.frame, DropReason::TransmitFull);
            } else {
                counters.ledger(Some(ingress)).host += 1;
            }
            if accepted != Some(1) {
                self.frames.give(packet.frame);
            }
        }
        self.wait_for_neighbours(now_ns);
        let counters = self.walk.counters_mut();
        for netdev in self.filled.drain(..).map(|netdev| usize::from(netdev.0)) {
            let (queue, port) = (&mut self.queues[netdev], self.netdevs[netdev].as_mut());
            if !queue.is_empty() {
                flush(queue, &mut self.frames, port, counters, &mut self.taps);
            }
        }
    }

    /// Admits packets without a link address, and asks for the neighbours.
    fn wait_for_neighbours(&mut self, now_ns: u64) {
        if self.out.held.is_empty() {
            return;
        }
        let (share, counters) = (self.walk.share(), self.walk.counters_mut());
        for held in self.out.held.drain(..) {
            match self.surroundings {
                Surroundings::Live => {
                    let (frames, taps) = (&mut self.frames, &mut self.taps);
                    let refused = &mut |held: &HeldPacket, _: &F| {
                        tell(taps, held.packet.frame, DropReason::NoNeighbour);
                    };
                    self.neighbour_queues.take_in(now_ns, held, frames, counters, refused);
                }
                // Nobody resolves neighbours: what waits for one is dropped and says so.
                Surroundings::Recorded => {
                    let HeldPacket { ingress, packet, .. } = held;
                    counters.drop(Some(ingress), DropReason::NoNeighbour);
                    tell(&mut self.taps, packet.frame, DropReason::NoNeighbour);
                    self.frames.give(packet.frame);
                }
            }
        }
        self.neighbour_queues.make_requests(now_ns, share);
    }

    /// Puts what is to be sent into its netdevs' queues: mostly all into one.
    fn sort(&mut self, snapshot: &Snapshot) {
        let netdev = |run: &TxRun| snapshot.path_port(run.egress).netdev;
        let (tx, queues, filled) = (&mut self.out.tx, &mut self.queues, &mut self.filled);
        let Some((first, others)) = tx.runs().split_first() else { return };
        let first = netdev(first);
        if others.iter().all(|run| netdev(run) == first) {
            filled.push(first);
            std::mem::swap(tx, &mut queues[usize::from(first.0)]);
        } else {
            for (run, packets) in tx.by_run() {
                let netdev = netdev(&run);
                let queue = &mut queues[usize::from(netdev.0)];
                if queue.is_empty() {
                    filled.push(netdev);
                }
                queue.extend(run, packets);
            }
        }
        tx.clear();
    }

    /// Puts what other workers are to walk into their rings.
    fn hand_over(&mut self, snapshot: &Snapshot) {
        let (counters, frames) = (self.walk.counters_mut(), &mut self.frames);
        for handover in self.out.handovers.drain(..) {
            let Descriptor { frame, offset, length } = handover.packet;
            let (start, end) = (offset as usize, offset as usize + length as usize);
            let packet = frames.bytes(frame).get(start..end).unwrap_or_default();
            match self.handovers.give(snapshot, &handover, packet) {
                Ok(()) => counters.handed_over += 1,
                Err(Full) => {
                    counters.ledger(Some(handover.ingress)).received += 1;
                    counters.drop(Some(handover.ingress), DropReason::HandoverFull);
                    tell(&mut self.taps, frame, DropReason::HandoverFull);
                }
            }
            frames.give(frame);
        }
    }
}

/// Offers a queue to its netdev; what the netdev does not accept is dropped.
fn flush<F: Frames, P: Port<F>>(
    queue: &mut TxBatch,
    frames: &mut F,
    netdev: Option<&mut P>,
    counters: &mut Counters,
    taps: &mut [Box<Tap>],
) {
    let mut accepted = netdev.map_or(0, |port| port.transmit(frames, queue.packets()));
    for (TxRun { egress, ingress, .. }, packets) in queue.by_run() {
        let (sent, refused) = packets.split_at(accepted.min(packets.len()));
        accepted -= sent.len();
        counters.ledger(Some(ingress)).sent += sent.len() as u64;
        let volume = &mut counters.transmitted[usize::from(egress.0)];
        volume.packets += sent.len() as u64;
        volume.bytes += sent.iter().map(|packet| u64::from(packet.length)).sum::<u64>();
        for packet in refused {
            counters.drop(Some(ingress), DropReason::TransmitFull);
            tell(taps, packet.frame, DropReason::TransmitFull);
            frames.give(packet.frame);
        }
    }
    queue.clear();
}

/// Tells captures of a packet that was dropped behind the walk.
#[cold]
fn tell(taps: &mut [Box<Tap>], frame: FrameId, reason: DropReason) {
    taps.iter_mut().for_each(|tap| tap.refused(frame, reason));
}
