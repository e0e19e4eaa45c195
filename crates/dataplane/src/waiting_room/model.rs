//! The naive twin of the room: plain lists, searched from end to end.

use super::{REQUEST_INTERVAL_NS, RoomBounds, guarantee};
use crate::fair_shares::model::SharesModel;
use crate::ids::PortId;
use crate::packet_sender::PacketSender;

/// A key, as a number.
type Key = u32;

/// A waiting packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelPacket {
    pub(super) number: u32,
    pub(super) key: Key,
    sender: PacketSender,
    since_ns: u64,
    /// Number of the change by which the packet joined the key.
    joined: u64,
}

/// The request of a key: in a sender's queue, or made.
enum ModelRequest {
    Queued(PacketSender),
    Made(u64),
}

/// Waiting packets, oldest first, and requests.
#[derive(Default)]
pub(super) struct RoomModel {
    pub(super) packets: Vec<ModelPacket>,
    /// Keys with packets, the oldest first.
    pub(super) keys: Vec<Key>,
    shares: SharesModel,
    changes: u64,
    requests: Vec<(Key, ModelRequest)>,
    /// Senders with queued keys in the order of service, and ports with queued keys, in turn.
    queues: Vec<(PacketSender, Vec<Key>)>,
    turns: Vec<PortId>,
}

impl RoomModel {
    pub(super) fn admit(
        &mut self,
        now_ns: u64,
        (key, sender): (Key, PacketSender),
        number: u32,
        bounds: RoomBounds,
    ) -> Option<u32> {
        match self.requests.iter().position(|(other, _)| *other == key) {
            None => self.begin(key, sender),
            Some(at) if self.is_due(now_ns, at) => {
                self.requests.remove(at);
                self.queue(key, sender, usize::MAX);
            }
            Some(at) => self.move_request(at, sender),
        }
        self.shares.join(number, sender);
        self.changes += 1;
        let joined = self.changes;
        self.packets.push(ModelPacket { number, key, sender, since_ns: now_ns, joined });
        let of_key = self.of_key(key);
        let gives_way = if of_key.len() > bounds.key {
            let shares = |packet: &ModelPacket| self.shares.lengths(packet.sender);
            let most = of_key.iter().map(shares).max().unwrap();
            of_key.iter().find(|packet| shares(packet) == most).map(|packet| packet.number)
        } else if self.packets.len() > bounds.all {
            self.shares.eviction_candidate(guarantee(bounds.all))
        } else {
            None
        };
        gives_way.map(|number| self.remove(number))
    }

    pub(super) fn remove(&mut self, number: u32) -> u32 {
        let at = self.packets.iter().position(|packet| packet.number == number).unwrap();
        let ModelPacket { key, .. } = self.packets.remove(at);
        self.leave_key(key);
        self.shares.leave(number);
        number
    }

    pub(super) fn take_before(&mut self, until_ns: u64) -> Vec<u32> {
        let late = self.packets.iter().filter(|packet| packet.since_ns <= until_ns);
        let late: Vec<u32> = late.map(|packet| packet.number).collect();
        late.into_iter().map(|number| self.remove(number)).collect()
    }

    pub(super) fn take_key(&mut self, key: Key) -> Vec<u32> {
        self.of_key(key).iter().map(|packet| self.remove(packet.number)).collect()
    }

    /// The packets of a key, in the order of joining.
    pub(super) fn of_key(&self, key: Key) -> Vec<ModelPacket> {
        let of_key = self.packets.iter().filter(|packet| packet.key == key);
        let mut of_key: Vec<ModelPacket> = of_key.copied().collect();
        of_key.sort_by_key(|packet| packet.joined);
        of_key
    }

    pub(super) fn move_to(&mut self, number: u32, key: Key) {
        let at = self.packets.iter().position(|packet| packet.number == number).unwrap();
        let ModelPacket { key: before, sender, .. } = self.packets[at];
        if before == key {
            return;
        }
        self.changes += 1;
        (self.packets[at].key, self.packets[at].joined) = (key, self.changes);
        self.leave_key(before);
        if !self.keys.contains(&key) {
            self.begin(key, sender);
        }
    }

    pub(super) fn queue_repetitions(&mut self, now_ns: u64) {
        // The earliest request first.
        while let Some(at) = (0..self.requests.len())
            .filter(|at| self.is_due(now_ns, *at))
            .min_by_key(|at| match self.requests[*at].1 {
                ModelRequest::Made(at_ns) => at_ns,
                ModelRequest::Queued(_) => u64::MAX,
            })
        {
            let (key, _) = self.requests.remove(at);
            self.queue(key, self.of_key(key)[0].sender, usize::MAX);
        }
    }

    pub(super) fn next_request(&mut self, now_ns: u64) -> Option<Key> {
        let port = *self.turns.first()?;
        let at = self.queues.iter().position(|(sender, _)| sender.entrance.port == port).unwrap();
        let (sender, mut keys) = self.queues.remove(at);
        let key = keys.remove(0);
        self.requests.retain(|(other, _)| *other != key);
        self.requests.push((key, ModelRequest::Made(now_ns)));
        if !keys.is_empty() {
            self.queues.push((sender, keys));
        }
        self.turns.remove(0);
        if self.queues.iter().any(|(sender, _)| sender.entrance.port == port) {
            self.turns.push(port);
        }
        Some(key)
    }

    fn is_due(&self, now_ns: u64, at: usize) -> bool {
        match self.requests[at].1 {
            ModelRequest::Made(at_ns) => now_ns - at_ns >= REQUEST_INTERVAL_NS,
            ModelRequest::Queued(_) => false,
        }
    }

    fn begin(&mut self, key: Key, sender: PacketSender) {
        self.keys.push(key);
        self.queue(key, sender, 0);
    }

    /// Moves a queued request to a sender whose queue is shorter even with the request.
    fn move_request(&mut self, at: usize, sender: PacketSender) {
        let (key, ModelRequest::Queued(first)) = self.requests[at] else { return };
        if self.queued(sender) + 1 < self.queued(first) {
            self.requests.remove(at);
            let queue = self.queues.iter_mut().find(|(other, _)| *other == first).unwrap();
            queue.1.retain(|other| *other != key);
            self.queue(key, sender, 0);
        }
    }

    /// Requests in the queue of a sender.
    fn queued(&self, sender: PacketSender) -> usize {
        let queue = self.queues.iter().find(|(other, _)| *other == sender);
        queue.map_or(0, |(_, keys)| keys.len())
    }

    /// Puts a key into the queue of a sender: in front, or behind all.
    fn queue(&mut self, key: Key, sender: PacketSender, place: usize) {
        match self.queues.iter_mut().find(|(other, _)| *other == sender) {
            Some((_, keys)) => keys.insert(place.min(keys.len()), key),
            None => self.queues.push((sender, vec![key])),
        }
        if !self.turns.contains(&sender.entrance.port) {
            self.turns.push(sender.entrance.port);
        }
        self.requests.push((key, ModelRequest::Queued(sender)));
    }

    fn leave_key(&mut self, key: Key) {
        if self.packets.iter().any(|packet| packet.key == key) {
            return;
        }
        self.keys.retain(|other| *other != key);
        let at = self.requests.iter().position(|(other, _)| *other == key).unwrap();
        if let (_, ModelRequest::Queued(sender)) = self.requests.remove(at) {
            let queue = self.queues.iter_mut().find(|(other, _)| *other == sender).unwrap();
            queue.1.retain(|other| *other != key);
            self.queues.retain(|(_, keys)| !keys.is_empty());
            if !self.queues.iter().any(|(other, _)| other.entrance.port == sender.entrance.port) {
                self.turns.retain(|port| *port != sender.entrance.port);
            }
        }
    }
}
