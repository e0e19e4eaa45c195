//! Queues of packets that wait for an SA: a policy protects them, its SA set has no outbound SA,
//! and a key manager makes SAs on request (RFC 4301 §5.1: where an SA is missing, key management is
//! asked for it).
//!
//! **Conditions.** [`SaSet::acquires`](crate::SaSet::acquires): the set's SAs come from a key
//! manager. [`AcquireSwitch`](crate::AcquireSwitch): a key manager listens. Unless both hold, the
//! packet is dropped (`no_sa`).
//!
//! **Bounds.** Packets wait in a [`WaitingRoom`] with their policy as key. A worker holds its share
//! of [`MAX_PER_POLICY`] packets of a policy and of [`MAX_WAITING`] in all. Above a bound the
//! longest share gives way.
//!
//! **Requests.** Every policy with waiting packets asks, and again each second, at most at the rate
//! [`REQUESTS_PER_SECOND`] over all workers.
//!
//! **Time.** Packets wait until the set has an SA, for at most [`PATIENCE_NS`]. Then they continue
//! from the fifth stage, in the order of their arrival. If policies, ports or routes changed
//! meanwhile, the packets are evaluated again. If their SA set or their ingress port is gone, they
//! are dropped.

use policy::{PolicyIndex, SaSetId};
use wire::{Flow, Frames};

use crate::counters::Counters;
use crate::limiter::{TokenBucket, TokenRate};
use crate::packet_sender::PacketSender;
use crate::row::Row;
use crate::snapshot::Snapshot;
use crate::verdict::DropReason;
use crate::verdict_basis::VerdictBasis;
use crate::waiting_room::{REQUEST_INTERVAL_NS, RoomBounds, WaitingRoom};
use crate::waiting_row::WaitingRow;
use crate::worker_share::WorkerShare;

/// Packets of one policy that wait at most, over all workers; each worker has its share, at least
/// one.
pub const MAX_PER_POLICY: usize = 16;
/// Packets that wait at most, over all policies and workers.
pub const MAX_WAITING: usize = 1024;
/// Time that a packet waits, nanoseconds.
pub const PATIENCE_NS: u64 = 30_000_000_000;
/// Interval at which a worker asks for an SA of a policy while packets of it wait, nanoseconds.
pub const ASK_EVERY_NS: u64 = REQUEST_INTERVAL_NS;
/// Maximum requests a second, and at once, over all workers.
pub const REQUESTS_PER_SECOND: usize = 200;

const REQUEST_RATE: TokenRate =
    TokenRate::per_second(REQUESTS_PER_SECOND as u64, REQUESTS_PER_SECOND as u64);

/// A request to make an SA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcquireRequest {
    /// The set that it is to be in.
    pub set: SaSetId,
    /// Name of the policy that wants packets protected.
    pub policy: String,
    /// Flow of the packet that waited first.
    pub flow: Flow,
}

/// A packet waiting for an SA.
pub(crate) struct WaitingForSa {
    pub(crate) row: WaitingRow,
    pub(crate) since_ns: u64,
    /// The set whose SA it waits for.
    pub(crate) set: SaSetId,
    /// The layer that lacks the SA.
    pub(crate) lacks: Lacks,
    /// Basis of the PROTECT verdict.
    pub(crate) basis: VerdictBasis,
}

/// The layer that lacks an SA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lacks {
    /// That of the set that the policy names.
    Own,
    /// That of the set around it.
    Outer,
}

/// The next step of a waiting packet.
pub(crate) enum Next {
    /// Wait on, by this policy.
    Wait(PolicyIndex),
    /// Go on as this row.
    GoOn(Row),
    /// Drop for this reason.
    Drop(DropReason),
}

/// The waiting packets of one worker. Owns the frames.
pub(crate) struct SaQueues {
    room: WaitingRoom<PolicyIndex, WaitingForSa>,
    rate: TokenBucket,
    requests: Vec<AcquireRequest>,
}

/// Drops waiting packets; `refused` sees a packet before.
pub(crate) struct Dropper<'d, F, R> {
    pub(crate) frames: &'d mut F,
    pub(crate) counters: &'d mut Counters,
    pub(crate) refused: R,
}

impl<F: Frames, R: FnMut(&Row, DropReason, &F)> Dropper<'_, F, R> {
    fn drop(&mut self, row: &Row, reason: DropReason) {
        (self.refused)(row, reason, self.frames);
        self.counters.ledger(Some(row.ingress)).held -= 1;
        self.counters.drop(Some(row.ingress), reason);
        self.frames.give(row.frame);
    }
}

/// Returns the bounds of a worker.
fn bounds(share: WorkerShare) -> RoomBounds {
    let part = |most: usize| (most / share.workers as usize).max(1);
    RoomBounds { all: part(MAX_WAITING), key: part(MAX_PER_POLICY) }
}

impl SaQueues {
    /// Takes the memory of the room.
    pub(crate) fn new() -> SaQueues {
        SaQueues {
            room: WaitingRoom::new(MAX_WAITING),
            rate: TokenBucket::default(),
            requests: Vec::with_capacity(REQUESTS_PER_SECOND),
        }
    }

    /// Number of waiting packets.
    pub(crate) fn waiting(&self) -> usize {
        self.room.len()
    }

    /// SAs to ask for now; empties the list.
    pub(crate) fn requests(&mut self) -> std::vec::Drain<'_, AcquireRequest> {
        self.requests.drain(..)
    }

    /// Admits a packet of a policy. Returns the packet to drop for lack of room, perhaps the new
    /// packet.
    #[cold]
    pub(crate) fn take_in(
        &mut self,
        snapshot: &Snapshot,
        share: WorkerShare,
        policy: PolicyIndex,
        packet: WaitingForSa,
    ) -> Option<Row> {
        let (now_ns, row) = (packet.since_ns, packet.row.row());
        let sender = PacketSender::behind(row.ingress, row.packet.flow.source_address());
        let gives_way = self.room.admit(now_ns, (policy, sender), packet, bounds(share));
        self.make_requests((snapshot, now_ns), share);
        gives_way.map(|packet| *packet.row.row())
    }

    /// Takes the next step of every packet: `next` returns the step, `ready` receives released
    /// packets in order. `next` gets the policy of the packet unless the verdict's basis has
    /// changed. The snapshot must have all ingress ports ([`SaQueues::leave_ports`]).
    pub(crate) fn sort_out<F: Frames, R: FnMut(&Row, DropReason, &F)>(
        &mut self,
        (snapshot, now_ns): (&Snapshot, u64),
        share: WorkerShare,
        mut dropper: Dropper<'_, F, R>,
        ready: &mut Vec<Row>,
        mut next: impl FnMut(&WaitingForSa, Option<PolicyIndex>, &F) -> Next,
    ) {
        let basis = VerdictBasis::of(snapshot);
        let mut at = self.room.oldest();
        while let Some(slot) = at {
            at = self.room.after(slot);
            let Some((policy, waiting)) = self.room.packet_mut(slot) else { continue };
            let judged = (waiting.basis == basis).then_some(policy);
            let step = match next(waiting, judged, dropper.frames) {
                Next::Wait(other) if other == policy => {
                    waiting.basis = basis;
                    continue;
                }
                Next::Wait(other) if self.room.len_of(other) < MAX_PER_POLICY => {
                    self.room.move_to(slot, other);
                    if let Some((_, waiting)) = self.room.packet_mut(slot) {
                        waiting.basis = basis;
                    }
                    continue;
                }
                step => step,
            };
            let Some(waiting) = self.room.remove(slot) else { continue };
            match step {
                Next::GoOn(row) => {
                    dropper.counters.ledger(Some(row.ingress)).held -= 1;
                    ready.push(row);
                }
                Next::Drop(reason) => dropper.drop(waiting.row.row(), reason),
                Next::Wait(_) => dropper.drop(waiting.row.row(), DropReason::NoSa),
            }
        }
        self.room.queue_repetitions(now_ns);
        self.make_requests((snapshot, now_ns), share);
    }

    /// Drops packets of ingress ports without a place in the snapshot.
    pub(crate) fn leave_ports<F: Frames>(
        &mut self,
        next: &Snapshot,
        frames: &mut F,
        counters: &mut Counters,
    ) {
        self.drop_where(frames, counters, |row| !next.has_port(row.ingress));
    }

    /// Drops everything.
    pub(crate) fn clear<F: Frames>(&mut self, frames: &mut F, counters: &mut Counters) {
        self.drop_where(frames, counters, |_| true);
        self.requests.clear();
    }

    fn drop_where<F: Frames>(
        &mut self,
        frames: &mut F,
        counters: &mut Counters,
        is_dropped: impl Fn(&Row) -> bool,
    ) {
        let mut dropper = Dropper { frames, counters, refused: |_: &Row, _, _: &F| {} };
        self.room.take_where(
            |waiting| is_dropped(waiting.row.row()),
            |waiting| dropper.drop(waiting.row.row(), DropReason::NoSa),
        );
    }

    /// Makes due requests at the worker's part of the rate. All packets must wait by policies of
    /// the snapshot.
    fn make_requests(&mut self, (snapshot, now_ns): (&Snapshot, u64), share: WorkerShare) {
        let rate = REQUEST_RATE.part(share.workers);
        while self.requests.len() < REQUESTS_PER_SECOND
            && self.room.has_requests()
            && self.rate.take(now_ns, rate)
        {
            let next = self.room.next_request(now_ns);
            self.requests.extend(next.map(|(policy, packet)| request(snapshot, policy, packet)));
        }
    }
}

fn request(snapshot: &Snapshot, policy: PolicyIndex, packet: &WaitingForSa) -> AcquireRequest {
    let policy = snapshot.spd().policy(policy).name.clone();
    AcquireRequest { set: packet.set, policy, flow: packet.row.row().packet.flow }
}
