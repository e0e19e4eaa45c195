//! Packets that wait for the link address of their next hop: bounded, and asked for at a bounded
//! rate. They are finished but for the link header, sealed if a policy says so.

use std::collections::HashMap;

use wire::link::{self, ethertype};
use wire::{Address, Family, Frames};

use crate::card_sas;
use crate::counters::Counters;
use crate::ids::PortId;
use crate::outputs::{HeldForm, HeldPacket};
use crate::port::{Adjacency, Medium};
use crate::snapshot::Snapshot;
use crate::tx_batch::{TxBatch, TxPacket};
use crate::verdict::DropReason;

/// Packets that wait for one neighbour at most.
pub const MAX_PER_NEIGHBOUR: usize = 16;
/// Packets that wait at most, over all neighbours.
pub const MAX_WAITING: usize = 1024;
/// Time that a packet waits, nanoseconds: three tries of the kernel's, one a second.
pub const PATIENCE_NS: u64 = 3_000_000_000;
/// Interval at which one neighbour is asked for while packets wait for it, nanoseconds.
pub const ASK_EVERY_NS: u64 = 1_000_000_000;

/// A request to resolve the link address of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ResolveRequest {
    /// The port that it is on.
    pub port: PortId,
    /// Address of the neighbour.
    pub address: Address,
}

/// Packets that wait for one neighbour.
struct Queue {
    packets: Vec<(HeldPacket, u64)>,
    asked_ns: u64,
}

/// The packets of one worker that wait. Owns their frames.
#[derive(Default)]
pub(crate) struct NeighbourQueues {
    queues: HashMap<ResolveRequest, Queue, foldhash::quality::RandomState>,
    waiting: usize,
    requests: Vec<ResolveRequest>,
}

impl NeighbourQueues {
    /// Packets that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Neighbours to ask for now; empties the list.
    pub(crate) fn resolve_requests(&mut self) -> std::vec::Drain<'_, ResolveRequest> {
        self.requests.drain(..)
    }

    /// Takes a packet in, or drops it where the bounds are reached; `refused` sees it before.
    #[cold]
    pub(crate) fn take_in<F: Frames>(
        &mut self,
        now_ns: u64,
        held: HeldPacket,
        frames: &mut F,
        counters: &mut Counters,
        refused: &mut impl FnMut(&HeldPacket, &F),
    ) {
        let request = ResolveRequest { port: held.egress, address: held.next_hop };
        // As many neighbours may be asked for as packets may wait: nobody floods the kernel.
        if !self.queues.contains_key(&request) && self.waiting >= MAX_WAITING {
            refused(&held, frames);
            return refuse(&held, DropReason::NoNeighbour, frames, counters);
        }
        let queue = self
            .queues
            .entry(request)
            .or_insert_with(|| Queue { packets: Vec::new(), asked_ns: now_ns });
        if queue.packets.is_empty() || now_ns.saturating_sub(queue.asked_ns) >= ASK_EVERY_NS {
            queue.asked_ns = now_ns;
            self.requests.push(request);
        }
        if queue.packets.len() >= MAX_PER_NEIGHBOUR || self.waiting >= MAX_WAITING {
            refused(&held, frames);
            return refuse(&held, DropReason::NoNeighbour, frames, counters);
        }
        queue.packets.push((held, now_ns));
        self.waiting += 1;
        counters.ledger(Some(held.ingress)).held += 1;
    }

    /// Lets go of what can leave under this snapshot, and drops what has waited too long. The
    /// snapshot must have the ports that packets wait at ([`NeighbourQueues::leave_ports`]).
    /// `refused` sees what is dropped before it is.
    pub(crate) fn release<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        now_ns: u64,
        frames: &mut F,
        counters: &mut Counters,
        tx: &mut TxBatch,
        refused: &mut impl FnMut(&HeldPacket, &F),
    ) {
        let NeighbourQueues { queues, waiting, requests } = self;
        queues.retain(|hop, queue| {
            let mac = snapshot.link_address(hop.port, hop.address);
            queue.packets.retain(|(held, since_ns)| {
                let is_late = now_ns.saturating_sub(*since_ns) >= PATIENCE_NS;
                let finished = mac.and_then(|mac| {
                    let adjacency = Adjacency { port: hop.port, mac: Some(mac) };
                    finish(snapshot, adjacency, held, frames)
                });
                if finished.is_none() && !is_late && mac.is_none() {
                    return true;
                }
                *waiting -= 1;
                counters.ledger(Some(held.ingress)).held -= 1;
                match finished {
                    Some(tx_packet) => tx.push(tx_packet),
                    None => {
                        refused(held, frames);
                        refuse(held, card_sas::lost_for(snapshot, held), frames, counters);
                    }
                }
                false
            });
            let waits = !queue.packets.is_empty();
            if waits && now_ns.saturating_sub(queue.asked_ns) >= ASK_EVERY_NS {
                queue.asked_ns = now_ns;
                requests.push(*hop);
            }
            waits
        });
    }

    /// Drops everything.
    pub(crate) fn clear<F: Frames>(&mut self, frames: &mut F, counters: &mut Counters) {
        self.drop_those(frames, counters, |_| true);
        self.requests.clear();
    }

    /// Drops what waits in clear: other policies may not let it leave so.
    pub(crate) fn drop_clear<F: Frames>(&mut self, frames: &mut F, counters: &mut Counters) {
        self.drop_those(frames, counters, |held| held.form == HeldForm::Clear);
    }

    /// Drops what came or is to leave by a port that a snapshot does not have.
    pub(crate) fn leave_ports<F: Frames>(
        &mut self,
        next: &Snapshot,
        frames: &mut F,
        counters: &mut Counters,
    ) {
        let is_gone =
            |held: &HeldPacket| !next.has_port(held.ingress) || !next.has_port(held.egress);
        self.drop_those(frames, counters, is_gone);
        self.requests.retain(|request| next.has_port(request.port));
    }

    fn drop_those<F: Frames>(
        &mut self,
        frames: &mut F,
        counters: &mut Counters,
        is_dropped: impl Fn(&HeldPacket) -> bool,
    ) {
        let NeighbourQueues { queues, waiting, .. } = self;
        queues.retain(|_, queue| {
            queue.packets.retain(|(held, _)| {
                let is_dropped = is_dropped(held);
                if is_dropped {
                    *waiting -= 1;
                    counters.ledger(Some(held.ingress)).held -= 1;
                    refuse(held, DropReason::NoNeighbour, frames, counters);
                }
                !is_dropped
            });
            !queue.packets.is_empty()
        });
    }
}

fn refuse<F: Frames>(
    held: &HeldPacket,
    reason: DropReason,
    frames: &mut F,
    counters: &mut Counters,
) {
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
