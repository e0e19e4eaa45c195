//! Packets without a link address of the next hop, and the requests for link addresses. The packets
//! are finished but for the link header, and sealed if a policy says so.
//!
//! **Packets** wait in a [`WaitingRoom`]: at most [`MAX_PER_NEIGHBOUR`] for a neighbour and
//! [`MAX_WAITING`] in all, for at most [`PATIENCE_NS`]. When a snapshot brings a link address, the
//! neighbour's packets leave in order, by a current verdict ([`departure`]).
//!
//! **Requests.** A worker asks for every neighbour with waiting packets, and again each second.
//! Only the rate of requests bounds a scan of a subnet (RFC 6583 §6): [`REQUESTS_PER_SECOND`] over
//! all workers. Above this rate senders take turns, so a scan cannot stop other senders' requests.

use wire::link::{self, ethertype};
use wire::{Address, Family, Frames};

use crate::card_sas;
use crate::counters::Counters;
use crate::departure::{Departure, departure};
use crate::ids::PortId;
use crate::limiter::{TokenBucket, TokenRate};
use crate::outputs::{HeldForm, HeldPacket};
use crate::port::{Adjacency, Medium};
use crate::row::Row;
use crate::snapshot::Snapshot;
use crate::tx_batch::{TxBatch, TxPacket};
use crate::verdict::DropReason;
use crate::waiting_room::{REQUEST_INTERVAL_NS, RoomBounds, WaitingRoom};
use crate::worker_share::WorkerShare;

/// Maximum waiting packets for one neighbour.
pub const MAX_PER_NEIGHBOUR: usize = 16;
/// Maximum waiting packets of a worker.
pub const MAX_WAITING: usize = 1024;
/// Maximum waiting time, nanoseconds: the kernel tries three times, once a second.
pub const PATIENCE_NS: u64 = 3_000_000_000;
/// Interval of requests for one neighbour while packets wait, nanoseconds.
pub const ASK_EVERY_NS: u64 = REQUEST_INTERVAL_NS;
/// Maximum requests a second, and at once, over all workers. The kernel tries for three seconds, so
/// at most 800 neighbours are unresolved; a kernel holds 1024 (`neigh.default.gc_thresh3`).
pub const REQUESTS_PER_SECOND: usize = 200;

const BOUNDS: RoomBounds = RoomBounds { all: MAX_WAITING, key: MAX_PER_NEIGHBOUR };
const REQUEST_RATE: TokenRate =
    TokenRate::per_second(REQUESTS_PER_SECOND as u64, REQUESTS_PER_SECOND as u64);

/// A request to resolve the link address of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ResolveRequest {
    /// Port of the neighbour's link.
    pub port: PortId,
    /// Address of the neighbour.
    pub address: Address,
}

/// The waiting packets of one worker. Owns the frames.
pub(crate) struct NeighbourQueues {
    room: WaitingRoom<ResolveRequest, HeldPacket>,
    rate: TokenBucket,
    requests: Vec<ResolveRequest>,
}

/// Destinations of released packets. `refused` sees a packet before the drop.
pub(crate) struct Departures<'d, F, R> {
    pub(crate) frames: &'d mut F,
    pub(crate) counters: &'d mut Counters,
    pub(crate) tx: &'d mut TxBatch,
    /// Packets to be judged again.
    pub(crate) again: &'d mut Vec<Row>,
    pub(crate) refused: R,
}

impl<F: Frames, R: FnMut(&HeldPacket, DropReason, &F)> Departures<'_, F, R> {
    /// Sends a packet by an adjacency, has it judged again, or drops it.
    fn leave(&mut self, now: (&Snapshot, u64), adjacency: Adjacency, held: &HeldPacket) {
        let snapshot = now.0;
        match departure(now, held, self.frames) {
            Departure::Leave => match finish(snapshot, adjacency, held, self.frames) {
                Some(tx_packet) => {
                    self.counters.ledger(Some(held.ingress)).held -= 1;
                    self.tx.push(tx_packet);
                }
                None => self.drop(held, card_sas::lost_for(snapshot, held)),
            },
            Departure::JudgeAgain(row) => {
                self.counters.ledger(Some(held.ingress)).held -= 1;
                self.again.push(row);
            }
            Departure::Drop(reason) => self.drop(held, reason),
        }
    }

    fn drop(&mut self, held: &HeldPacket, reason: DropReason) {
        (self.refused)(held, reason, self.frames);
        drop_held(held, reason, self.frames, self.counters);
    }
}

impl NeighbourQueues {
    /// Takes the memory of the room.
    pub(crate) fn new() -> NeighbourQueues {
        NeighbourQueues {
            room: WaitingRoom::new(MAX_WAITING),
            rate: TokenBucket::default(),
            requests: Vec::with_capacity(REQUESTS_PER_SECOND),
        }
    }

    /// Number of waiting packets.
    pub(crate) fn waiting(&self) -> usize {
        self.room.len()
    }

    /// Neighbours to ask for now; empties the list.
    pub(crate) fn resolve_requests(&mut self) -> std::vec::Drain<'_, ResolveRequest> {
        self.requests.drain(..)
    }

    /// Admits a packet. Above a bound one packet is dropped; `refused` sees this packet before.
    #[cold]
    pub(crate) fn take_in<F: Frames>(
        &mut self,
        now_ns: u64,
        held: HeldPacket,
        frames: &mut F,
        counters: &mut Counters,
        refused: &mut impl FnMut(&HeldPacket, &F),
    ) {
        counters.ledger(Some(held.ingress)).held += 1;
        let neighbour = ResolveRequest { port: held.egress, address: held.next_hop };
        let gives_way = self.room.admit(now_ns, (neighbour, held.sender), held, BOUNDS);
        if let Some(held) = gives_way {
            refused(&held, frames);
            drop_held(&held, DropReason::NoNeighbour, frames, counters);
        }
    }

    /// Makes due requests at the worker's part of the rate.
    #[inline]
    pub(crate) fn make_requests(&mut self, now_ns: u64, share: WorkerShare) {
        if self.room.has_requests() {
            self.make_allowed_requests(now_ns, share);
        }
    }

    #[cold]
    fn make_allowed_requests(&mut self, now_ns: u64, share: WorkerShare) {
        let rate = REQUEST_RATE.part(share.workers);
        while self.requests.len() < REQUESTS_PER_SECOND
            && self.room.has_requests()
            && self.rate.take(now_ns, rate)
        {
            let request = self.room.next_request(now_ns);
            self.requests.extend(request.map(|(neighbour, _)| neighbour));
        }
    }

    /// Releases the packets of neighbours with a link address, drops late packets, and repeats
    /// requests. The snapshot must have the ports of all packets
    /// ([`NeighbourQueues::leave_ports`]).
    pub(crate) fn release<F: Frames, R: FnMut(&HeldPacket, DropReason, &F)>(
        &mut self,
        (snapshot, now_ns): (&Snapshot, u64),
        share: WorkerShare,
        departures: &mut Departures<'_, F, R>,
    ) {
        let mut next = self.room.oldest_key();
        while let Some(key) = next {
            next = self.room.key_after(key);
            let ResolveRequest { port, address } = self.room.key(key);
            let Some(mac) = snapshot.link_address(port, address) else { continue };
            let adjacency = Adjacency { port, mac: Some(mac) };
            self.room.take_key(key, |held| {
                departures.leave((snapshot, now_ns), adjacency, &held);
            });
        }
        let late = now_ns.checked_sub(PATIENCE_NS);
        while let Some(held) = late.and_then(|late_ns| self.room.take_before(late_ns)) {
            departures.drop(&held, card_sas::lost_for(snapshot, &held));
        }
        self.room.queue_repetitions(now_ns);
        self.make_requests(now_ns, share);
    }

    /// Drops everything.
    pub(crate) fn clear<F: Frames>(&mut self, frames: &mut F, counters: &mut Counters) {
        self.drop_where(frames, counters, |_| true);
        self.requests.clear();
    }

    /// Drops packets of ingress or egress ports without a place in the snapshot.
    pub(crate) fn leave_ports<F: Frames>(
        &mut self,
        next: &Snapshot,
        frames: &mut F,
        counters: &mut Counters,
    ) {
        let is_gone =
            |held: &HeldPacket| !next.has_port(held.ingress) || !next.has_port(held.egress);
        self.drop_where(frames, counters, is_gone);
        self.requests.retain(|request| next.has_port(request.port));
    }

    fn drop_where<F: Frames>(
        &mut self,
        frames: &mut F,
        counters: &mut Counters,
        is_dropped: impl Fn(&HeldPacket) -> bool,
    ) {
        self.room.take_where(is_dropped, |held| {
            drop_held(&held, DropReason::NoNeighbour, frames, counters);
        });
    }
}

/// Drops a held packet.
fn drop_held<F: Frames>(
    held: &HeldPacket,
    reason: DropReason,
    frames: &mut F,
    counters: &mut Counters,
) {
    counters.ledger(Some(held.ingress)).held -= 1;
    counters.drop(Some(held.ingress), reason);
    frames.give(held.packet.frame);
}

/// Puts the link header on a held packet, if the neighbour is known and the port wants one, and the
/// header for the card that is to seal it. `None`: it cannot leave.
pub(crate) fn finish<F: Frames>(
    snapshot: &Snapshot,
    adjacency: Adjacency,
    held: &HeldPacket,
    frames: &mut F,
) -> Option<TxPacket> {
    let mac = adjacency.mac?;
    card_sas::may_leave(snapshot, held).ok()?;
    let port = snapshot.path_port(adjacency.port);
    if port.medium == Medium::Ip {
        return Some(TxPacket {
            egress: adjacency.port,
            ingress: held.ingress,
            packet: held.packet,
        });
    }
    let ethertype = match held.family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    };
    let mut packet = held.packet;
    let end = packet.offset as usize;
    let frame = frames.bytes_mut(packet.frame);
    let start = link::write(frame, end, mac, port.mac, port.vlan, ethertype)?;
    let start = match held.form {
        HeldForm::ForCard(_, seat) => card_sas::header(seat).write(frame, start)?,
        HeldForm::Clear | HeldForm::Sealed => start,
    };
    packet.length += (end - start) as u32;
    packet.offset = start as u32;
    Some(TxPacket { egress: adjacency.port, ingress: held.ingress, packet })
}
