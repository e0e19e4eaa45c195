//! Queues of packets that wait for an SA: a policy protects them, its SA set has no outbound SA,
//! and a key manager makes SAs on request (RFC 4301 §5.1: where an SA is missing, key management is
//! asked for it).
//!
//! **Conditions.** [`SaSet::acquires`](crate::SaSet::acquires): the set's SAs come from a key
//! manager. [`AcquireSwitch`](crate::AcquireSwitch): a key manager listens. Unless both hold, the
//! packet is dropped (`no_sa`).
//!
//! **Bounds.** Each worker holds its share of [`MAX_PER_POLICY`] packets of a policy and of
//! [`MAX_WAITING`] in all. If all room is taken, the policy with the most packets drops one for a
//! policy with fewer, so that no flood keeps the first packets of other policies out.
//!
//! **Time.** Packets wait until the set has an SA, for at most [`PATIENCE_NS`]. Then they continue
//! from the fifth stage, in the order of their arrival. If policies changed meanwhile, the packets
//! are evaluated again. If their SA set or their ingress port is gone, they are dropped.

use std::collections::HashMap;

use policy::{Generation, PolicyIndex, SaSetId};
use wire::{Flow, Frames};

use crate::counters::Counters;
use crate::row::Row;
use crate::snapshot::Snapshot;
use crate::verdict::DropReason;
use crate::worker_share::WorkerShare;

/// Packets of one policy that wait at most, over all workers; each worker has its share, at least
/// one.
pub const MAX_PER_POLICY: usize = 16;
/// Packets that wait at most, over all policies and workers.
pub const MAX_WAITING: usize = 1024;
/// Time that a packet waits, nanoseconds.
pub const PATIENCE_NS: u64 = 30_000_000_000;
/// Interval at which a worker asks for an SA of a policy while packets of it wait, nanoseconds.
pub const ASK_EVERY_NS: u64 = 1_000_000_000;

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

/// A packet that waits.
pub(crate) struct Waiting {
    pub(crate) row: Row,
    pub(crate) since_ns: u64,
    /// The set whose SA it waits for.
    pub(crate) set: SaSetId,
    /// The layer that lacks the SA.
    pub(crate) lacks: Lacks,
    /// The set of the SA that opened it, if one did.
    pub(crate) opened_by: Option<SaSetId>,
}

/// The layer that lacks an SA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lacks {
    /// That of the set that the policy names.
    Own,
    /// That of the set around it.
    Outer,
}

/// Packets that wait by one policy, in the order in which they came; never empty.
struct Queue {
    packets: Vec<Waiting>,
    asked_ns: u64,
}

/// The next step of a packet that waits.
pub(crate) enum Next {
    /// It waits on, by this policy.
    Wait(PolicyIndex),
    /// It goes on as this row.
    GoOn(Row),
    /// It is dropped.
    Drop,
}

/// The packets of one worker that wait. Owns their frames.
#[derive(Default)]
pub(crate) struct SaQueues {
    queues: HashMap<PolicyIndex, Queue, foldhash::quality::RandomState>,
    /// Queues by their length.
    lengths: [usize; MAX_PER_POLICY + 1],
    waiting: usize,
    /// Generation under which the policies were asked last.
    judged_under: Generation,
    requests: Vec<AcquireRequest>,
}

/// Means to drop a packet that waits; `refused` sees it before.
pub(crate) struct Dropper<'d, F, R> {
    pub(crate) frames: &'d mut F,
    pub(crate) counters: &'d mut Counters,
    pub(crate) refused: R,
}

impl<F: Frames, R: FnMut(&Row, &F)> Dropper<'_, F, R> {
    fn drop(&mut self, row: &Row) {
        (self.refused)(row, self.frames);
        self.counters.ledger(Some(row.ingress)).held -= 1;
        self.counters.drop(Some(row.ingress), DropReason::NoSa);
        self.frames.give(row.frame);
    }
}

/// The room of a worker.
#[derive(Clone, Copy)]
struct Room {
    policy: usize,
    all: usize,
}

impl Room {
    fn of(share: WorkerShare) -> Room {
        let part = |most: usize| (most / share.workers as usize).max(1);
        Room { policy: part(MAX_PER_POLICY), all: part(MAX_WAITING) }
    }
}

impl SaQueues {
    /// Packets that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// SAs to ask for now; empties the list.
    pub(crate) fn requests(&mut self) -> std::vec::Drain<'_, AcquireRequest> {
        self.requests.drain(..)
    }

    /// Takes a packet of a policy in, if there is room. Returns whether it waits now, and the
    /// packet that gave way to it, which the caller drops.
    #[cold]
    pub(crate) fn take_in(
        &mut self,
        snapshot: &Snapshot,
        share: WorkerShare,
        policy: PolicyIndex,
        packet: Waiting,
    ) -> (bool, Option<Row>) {
        let (room, length) = (Room::of(share), self.length(policy));
        if length >= room.policy {
            return (false, None);
        }
        let mut gave_way = None;
        if self.waiting >= room.all {
            gave_way = self.take_from_longer(length + 1);
            if gave_way.is_none() {
                return (false, None);
            }
        }
        self.judged_under = snapshot.generation();
        if length == 0 {
            self.requests.push(request(snapshot, policy, &packet));
        }
        let asked_ns = packet.since_ns;
        self.push(policy, packet, asked_ns);
        (true, gave_way)
    }

    /// Sorts out what waits, by what `next` says of each packet: what can leave goes to `ready`, in
    /// order. `next` is told the policy that the packet waits by, unless policies have changed
    /// since that was asked. The snapshot must have the ports that packets came by
    /// ([`SaQueues::leave_ports`]).
    pub(crate) fn sort_out<F: Frames, R: FnMut(&Row, &F)>(
        &mut self,
        (snapshot, now_ns): (&Snapshot, u64),
        mut dropper: Dropper<'_, F, R>,
        ready: &mut Vec<Row>,
        mut next: impl FnMut(&Waiting, Option<PolicyIndex>, &F) -> Next,
    ) {
        if self.waiting == 0 {
            return;
        }
        let is_judged = self.judged_under == snapshot.generation();
        self.judged_under = snapshot.generation();
        let asked: HashMap<PolicyIndex, u64> =
            self.queues.iter().map(|(policy, queue)| (*policy, queue.asked_ns)).collect();
        for (policy, queue) in self.take_all() {
            for waiting in queue.packets {
                let judged = is_judged.then_some(policy);
                match next(&waiting, judged, dropper.frames) {
                    Next::GoOn(row) => {
                        dropper.counters.ledger(Some(row.ingress)).held -= 1;
                        ready.push(row);
                    }
                    Next::Wait(policy) if self.length(policy) < MAX_PER_POLICY => {
                        let asked_ns = asked.get(&policy).copied().unwrap_or(now_ns);
                        self.push(policy, waiting, asked_ns);
                    }
                    Next::Wait(_) | Next::Drop => dropper.drop(&waiting.row),
                }
            }
        }
        self.ask_again(snapshot, now_ns, &asked);
    }

    /// Drops what came by a port that a snapshot does not have.
    pub(crate) fn leave_ports<F: Frames>(
        &mut self,
        next: &Snapshot,
        frames: &mut F,
        counters: &mut Counters,
    ) {
        self.drop_those(frames, counters, |row| !next.has_port(row.ingress));
    }

    /// Drops everything.
    pub(crate) fn clear<F: Frames>(&mut self, frames: &mut F, counters: &mut Counters) {
        self.drop_those(frames, counters, |_| true);
        self.requests.clear();
    }

    fn drop_those<F: Frames>(
        &mut self,
        frames: &mut F,
        counters: &mut Counters,
        is_dropped: impl Fn(&Row) -> bool,
    ) {
        let mut dropper = Dropper { frames, counters, refused: |_: &Row, _: &F| {} };
        for (policy, Queue { packets, asked_ns }) in self.take_all() {
            let (gone, packets): (Vec<_>, Vec<_>) =
                packets.into_iter().partition(|waiting| is_dropped(&waiting.row));
            gone.iter().for_each(|waiting| dropper.drop(&waiting.row));
            packets.into_iter().for_each(|packet| self.push(policy, packet, asked_ns));
        }
    }

    fn length(&self, policy: PolicyIndex) -> usize {
        self.queues.get(&policy).map_or(0, |queue| queue.packets.len())
    }

    /// Takes all queues out.
    fn take_all(&mut self) -> Vec<(PolicyIndex, Queue)> {
        (self.lengths, self.waiting) = (Default::default(), 0);
        self.queues.drain().collect()
    }

    /// Adds a packet behind those of its policy, for which an SA was asked for at `asked_ns`.
    fn push(&mut self, policy: PolicyIndex, packet: Waiting, asked_ns: u64) {
        let queue = self.queues.entry(policy);
        let queue = queue.or_insert_with(|| Queue { packets: Vec::new(), asked_ns });
        let length = queue.packets.len();
        queue.packets.push(packet);
        if length > 0 {
            self.lengths[length] -= 1;
        }
        self.lengths[length + 1] += 1;
        self.waiting += 1;
    }

    /// Asks again for those policies whose last request is too long ago.
    fn ask_again(&mut self, snapshot: &Snapshot, now_ns: u64, asked: &HashMap<PolicyIndex, u64>) {
        let SaQueues { queues, requests, .. } = self;
        for (policy, queue) in queues {
            let is_new = !asked.contains_key(policy);
            if is_new || now_ns.saturating_sub(queue.asked_ns) >= ASK_EVERY_NS {
                queue.asked_ns = now_ns;
                requests.push(request(snapshot, *policy, &queue.packets[0]));
            }
        }
    }

    /// Takes the last packet out of one of the longest queues, if that is longer than `length`.
    fn take_from_longer(&mut self, length: usize) -> Option<Row> {
        let longest = self.lengths.iter().rposition(|queues| *queues > 0)?;
        if longest <= length {
            return None;
        }
        let queue = self.queues.values_mut().find(|queue| queue.packets.len() == longest)?;
        let last = queue.packets.pop()?;
        self.lengths[longest] -= 1;
        self.lengths[longest - 1] += 1;
        self.waiting -= 1;
        Some(last.row)
    }
}

fn request(snapshot: &Snapshot, policy: PolicyIndex, packet: &Waiting) -> AcquireRequest {
    let policy = snapshot.spd().policy(policy).name.clone();
    AcquireRequest { set: packet.set, policy, flow: packet.row.packet.flow }
}
