//! The waiting room: bounded memory for packets without a link address or an SA, shared fairly
//! among senders, and the queue of requests.
//!
//! **Packets.** A packet waits for a key (a neighbour, a policy) and belongs to a sender behind an
//! ingress port. The room admits every packet. Above a bound, the longest share gives way:
//!
//! * all packets of the room: the longest sender of the longest port loses the oldest packet;
//! * the packets of a key: the key loses the packet of the longest port, then of the longest
//!   sender, then the oldest.
//!
//! So a flood displaces packets of the flood's own sender, or of its port.
//!
//! **Requests.** A key asks with the first packet, and again every [`REQUEST_INTERVAL_NS`]. The
//! room never suppresses a request: a key asks even if the new packet gives way to others of the
//! key. The caller bounds only the rate of requests (RFC 6583 §6).
//! [`next_request`](WaitingRoom::next_request) serves ports in turn, the senders of a port in turn,
//! and of a sender the latest key. First requests come before repetitions.
//!
//! **Cost.** Each operation takes a bounded number of steps. All memory is taken at the start.

mod ranking;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hash};

use foldhash::quality::RandomState;

use self::ranking::{RankedShares, ShareRanking};
use crate::ids::PortId;
use crate::packet_sender::PacketSender;
use crate::slots::{AgeList, Index, Link, Slab, Slot};

/// Interval of a key's requests while packets wait, nanoseconds.
pub(crate) const REQUEST_INTERVAL_NS: u64 = 1_000_000_000;

/// Bounds of a room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RoomBounds {
    /// Packets in all, at most as many as the room has memory for.
    pub(crate) all: usize,
    /// Packets of one key.
    pub(crate) key: usize,
}

/// A packet in a room.
#[derive(Debug)]
struct Occupant<P> {
    /// `None` in a free slot.
    packet: Option<P>,
    since_ns: u64,
    key: Slot,
    sender: Slot,
}

/// State of a key's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestState {
    /// Queued at this sender.
    Queued(Slot),
    /// Made at this time, nanoseconds.
    Made(u64),
}

/// A key with waiting packets.
#[derive(Debug)]
struct KeyEntry<K> {
    key: K,
    packets: AgeList,
    request: RequestState,
}

/// The packets of a sender, and the keys in its queue of requests.
#[derive(Debug)]
struct SenderShare {
    sender: PacketSender,
    port: Slot,
    packets: AgeList,
    queued: AgeList,
}

/// The senders of a port by length, and the senders with requests in turn.
#[derive(Debug)]
struct PortShare {
    port: PortId,
    senders: ShareRanking,
    asking: AgeList,
}

/// Links of lists: packets by age in all, of a key, of a sender; keys by age and by request;
/// senders and ports with requests.
#[derive(Debug)]
struct RoomLinks {
    all: Vec<Link>,
    key: Vec<Link>,
    sender: Vec<Link>,
    key_age: Vec<Link>,
    request: Vec<Link>,
    asking_sender: Vec<Link>,
    asking_port: Vec<Link>,
}

/// The waiting packets of one worker.
pub(crate) struct WaitingRoom<K, P> {
    hasher: RandomState,
    packets: Slab<Occupant<P>>,
    keys: Slab<KeyEntry<K>>,
    by_key: Index,
    senders: Slab<SenderShare>,
    by_sender: Index,
    ports: Slab<PortShare>,
    by_port: Index,
    port_ranking: ShareRanking,
    ranked_ports: RankedShares,
    ranked_senders: RankedShares,
    links: RoomLinks,
    all: AgeList,
    key_ages: AgeList,
    /// Keys with a made request, by time.
    made: AgeList,
    /// Ports with queued requests, the next in front.
    asking: AgeList,
}

impl<K: Copy + Eq + Hash, P> WaitingRoom<K, P> {
    /// A room with memory for so many packets.
    pub(crate) fn new(capacity: usize) -> WaitingRoom<K, P> {
        // Admission precedes eviction; a sender may have requests without packets.
        let (packets, senders) = (capacity + 1, 2 * (capacity + 1));
        let links = |slots: usize| vec![Link::NONE; slots];
        WaitingRoom {
            hasher: RandomState::default(),
            packets: Slab::new(packets),
            keys: Slab::new(packets),
            by_key: Index::new(packets),
            senders: Slab::new(senders),
            by_sender: Index::new(senders),
            ports: Slab::new(senders),
            by_port: Index::new(senders),
            port_ranking: ShareRanking::EMPTY,
            ranked_ports: RankedShares::new(senders),
            ranked_senders: RankedShares::new(senders),
            links: RoomLinks {
                all: links(packets),
                key: links(packets),
                sender: links(packets),
                key_age: links(packets),
                request: links(packets),
                asking_sender: links(senders),
                asking_port: links(senders),
            },
            all: AgeList::default(),
            key_ages: AgeList::default(),
            made: AgeList::default(),
            asking: AgeList::default(),
        }
    }

    /// Returns the number of waiting packets.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of waiting packets of a key.
    pub(crate) fn len_of(&self, key: K) -> usize {
        self.find_key(key).map_or(0, |slot| self.keys[slot].packets.len())
    }

    /// Admits a packet, and queues the request of the key if due. Returns the packet to drop for
    /// lack of room, perhaps the new packet.
    pub(crate) fn admit(
        &mut self,
        now_ns: u64,
        (key, sender): (K, PacketSender),
        packet: P,
        bounds: RoomBounds,
    ) -> Option<P> {
        let sender = self.find_sender(&sender).unwrap_or_else(|| self.insert_sender(sender));
        let key = match self.find_key(key) {
            Some(key) => {
                self.repeat_request(now_ns, key, sender);
                key
            }
            None => self.insert_key(key, sender),
        };
        let occupant = Occupant { packet: Some(packet), since_ns: now_ns, key, sender };
        let slot = self.packets.insert(occupant).expect("memory for one more than the bound");
        self.all.push(&mut self.links.all, slot);
        self.keys[key].packets.push(&mut self.links.key, slot);
        self.senders[sender].packets.push(&mut self.links.sender, slot);
        let port = self.senders[sender].port;
        self.ranked_senders.grow(&mut self.ports[port].senders, sender);
        self.ranked_ports.grow(&mut self.port_ranking, port);
        let capacity = self.links.all.len() - 1;
        let gives_way = if self.keys[key].packets.len() > bounds.key {
            self.longest_of_key(key)
        } else if self.all.len() > bounds.all.min(capacity) {
            self.longest()
        } else {
            None
        };
        self.remove(gives_way?)
    }

    /// The oldest packet.
    pub(crate) fn oldest(&self) -> Option<Slot> {
        self.all.oldest()
    }

    /// The next younger packet.
    pub(crate) fn after(&self, slot: Slot) -> Option<Slot> {
        self.all.after(&self.links.all, slot)
    }

    /// The packet of a slot, and the key; `None`: the slot is free.
    pub(crate) fn packet(&self, slot: Slot) -> Option<(K, &P)> {
        let Occupant { packet, key, .. } = &self.packets[slot];
        Some((self.keys[*key].key, packet.as_ref()?))
    }

    /// The mutable packet of a slot, and the key.
    pub(crate) fn packet_mut(&mut self, slot: Slot) -> Option<(K, &mut P)> {
        let Occupant { packet, key, .. } = &mut self.packets[slot];
        Some((self.keys[*key].key, packet.as_mut()?))
    }

    /// Takes the oldest packet out if admitted at `until_ns` or before.
    pub(crate) fn take_before(&mut self, until_ns: u64) -> Option<P> {
        let oldest = self.all.oldest().filter(|slot| self.packets[*slot].since_ns <= until_ns)?;
        self.remove(oldest)
    }

    /// Takes the packet of a slot out. A key without packets asks no more.
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<P> {
        let Occupant { packet, key, sender, .. } = &mut self.packets[slot];
        let (packet, key, sender) = (packet.take()?, *key, *sender);
        self.packets.remove(slot);
        self.all.remove(&mut self.links.all, slot);
        self.leave_key(key, slot);
        self.senders[sender].packets.remove(&mut self.links.sender, slot);
        let port = self.senders[sender].port;
        self.ranked_senders.shrink(&mut self.ports[port].senders, sender);
        self.ranked_ports.shrink(&mut self.port_ranking, port);
        self.remove_idle(sender);
        Some(packet)
    }

    /// Moves the packet of a slot to another key, behind the packets of this key.
    pub(crate) fn move_to(&mut self, slot: Slot, key: K) {
        let Occupant { key: before, sender, .. } = self.packets[slot];
        if self.keys[before].key == key {
            return;
        }
        self.leave_key(before, slot);
        let key = self.find_key(key).unwrap_or_else(|| self.insert_key(key, sender));
        self.keys[key].packets.push(&mut self.links.key, slot);
        self.packets[slot].key = key;
    }

    /// The oldest key.
    pub(crate) fn oldest_key(&self) -> Option<Slot> {
        self.key_ages.oldest()
    }

    /// The next younger key.
    pub(crate) fn key_after(&self, slot: Slot) -> Option<Slot> {
        self.key_ages.after(&self.links.key_age, slot)
    }

    /// The key of a slot.
    pub(crate) fn key(&self, slot: Slot) -> K {
        self.keys[slot].key
    }

    /// Takes all packets of a key out, in order.
    pub(crate) fn take_key(&mut self, slot: Slot, mut taken: impl FnMut(P)) {
        for _ in 0..self.keys[slot].packets.len() {
            let oldest = self.keys[slot].packets.oldest();
            if let Some(packet) = oldest.and_then(|oldest| self.remove(oldest)) {
                taken(packet);
            }
        }
    }

    /// Takes all packets out for which `is_meant` is true, in order.
    pub(crate) fn take_where(&mut self, is_meant: impl Fn(&P) -> bool, mut taken: impl FnMut(P)) {
        let mut next = self.oldest();
        while let Some(slot) = next {
            next = self.after(slot);
            if self.packet(slot).is_some_and(|(_, packet)| is_meant(packet))
                && let Some(packet) = self.remove(slot)
            {
                taken(packet);
            }
        }
    }

    /// True if requests are queued.
    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        self.asking.oldest().is_some()
    }

    /// Queues the requests of keys whose last request is [`REQUEST_INTERVAL_NS`] old.
    pub(crate) fn queue_repetitions(&mut self, now_ns: u64) {
        while let Some(key) = self.made.oldest().filter(|key| self.is_due(now_ns, *key)) {
            let first = self.keys[key].packets.oldest().expect("a key has packets");
            let sender = self.packets[first].sender;
            self.made.remove(&mut self.links.request, key);
            self.queue_last(key, sender);
        }
    }

    /// Makes the next request: returns the key and the key's oldest packet.
    pub(crate) fn next_request(&mut self, now_ns: u64) -> Option<(K, &P)> {
        let port = self.asking.oldest()?;
        let sender = self.ports[port].asking.oldest()?;
        let key = self.senders[sender].queued.newest()?;
        self.unqueue(key, sender);
        self.made.push(&mut self.links.request, key);
        self.keys[key].request = RequestState::Made(now_ns);
        self.take_turn(port, sender);
        self.remove_idle(sender);
        let first = self.keys[key].packets.oldest()?;
        Some((self.keys[key].key, self.packets[first].packet.as_ref()?))
    }

    /// The oldest packet of the longest sender of the longest port.
    fn longest(&self) -> Option<Slot> {
        let port = self.ranked_ports.longest(&self.port_ranking)?;
        let sender = self.ranked_senders.longest(&self.ports[port].senders)?;
        self.senders[sender].packets.oldest()
    }

    /// The packet of a key with the longest port, then the longest sender.
    fn longest_of_key(&self, key: Slot) -> Option<Slot> {
        let shares = |slot: Slot| {
            let sender = self.packets[slot].sender;
            let port = self.senders[sender].port;
            (self.ranked_ports.length(port), self.ranked_senders.length(sender))
        };
        let mut longest = self.keys[key].packets.oldest()?;
        let mut next = Some(longest);
        while let Some(slot) = next {
            if shares(slot) > shares(longest) {
                longest = slot;
            }
            next = self.keys[key].packets.after(&self.links.key, slot);
        }
        Some(longest)
    }

    fn is_due(&self, now_ns: u64, key: Slot) -> bool {
        match self.keys[key].request {
            RequestState::Made(at_ns) => now_ns.saturating_sub(at_ns) >= REQUEST_INTERVAL_NS,
            RequestState::Queued(_) => false,
        }
    }

    /// Queues the request of a known key again if due. A queued request moves to a sender with a
    /// shorter queue: no sender's request waits behind the scan of another sender.
    fn repeat_request(&mut self, now_ns: u64, key: Slot, sender: Slot) {
        if self.is_due(now_ns, key) {
            self.made.remove(&mut self.links.request, key);
            self.queue_last(key, sender);
        } else if let RequestState::Queued(first) = self.keys[key].request
            && self.senders[sender].queued.len() + 1 < self.senders[first].queued.len()
        {
            // The queue of `first` keeps a key, so `first` stays.
            self.unqueue(key, first);
            self.senders[sender].queued.push(&mut self.links.request, key);
            self.begin_asking(key, sender);
        }
    }

    /// Puts a key behind the others of a sender in the queue of requests.
    fn queue_last(&mut self, key: Slot, sender: Slot) {
        self.senders[sender].queued.push_oldest(&mut self.links.request, key);
        self.begin_asking(key, sender);
    }

    fn begin_asking(&mut self, key: Slot, sender: Slot) {
        self.keys[key].request = RequestState::Queued(sender);
        if self.senders[sender].queued.len() > 1 {
            return;
        }
        let port = self.senders[sender].port;
        self.ports[port].asking.push(&mut self.links.asking_sender, sender);
        if self.ports[port].asking.len() == 1 {
            self.asking.push(&mut self.links.asking_port, port);
        }
    }

    /// Takes a key out of the queue of a sender.
    fn unqueue(&mut self, key: Slot, sender: Slot) {
        self.senders[sender].queued.remove(&mut self.links.request, key);
        if self.senders[sender].queued.len() > 0 {
            return;
        }
        let port = self.senders[sender].port;
        self.ports[port].asking.remove(&mut self.links.asking_sender, sender);
        if self.ports[port].asking.len() == 0 {
            self.asking.remove(&mut self.links.asking_port, port);
        }
    }

    /// Puts a served sender and port behind the others with requests.
    fn take_turn(&mut self, port: Slot, sender: Slot) {
        if self.senders[sender].queued.len() > 0 {
            let asking = &mut self.ports[port].asking;
            asking.remove(&mut self.links.asking_sender, sender);
            asking.push(&mut self.links.asking_sender, sender);
        }
        if self.ports[port].asking.len() > 0 {
            self.asking.remove(&mut self.links.asking_port, port);
            self.asking.push(&mut self.links.asking_port, port);
        }
    }

    fn find_key(&self, key: K) -> Option<Slot> {
        self.by_key.find(self.hasher.hash_one(key), |slot| self.keys[slot].key == key)
    }

    /// Adds a key, and queues the first request at a sender.
    fn insert_key(&mut self, key: K, sender: Slot) -> Slot {
        let hash = self.hasher.hash_one(key);
        let request = RequestState::Queued(sender);
        let entry = KeyEntry { key, packets: AgeList::default(), request };
        let slot = self.keys.insert(entry).expect("as many keys as packets");
        self.by_key.insert(hash, slot);
        self.key_ages.push(&mut self.links.key_age, slot);
        self.senders[sender].queued.push(&mut self.links.request, slot);
        self.begin_asking(slot, sender);
        slot
    }

    /// Takes a packet out of a key, and removes a key without packets.
    fn leave_key(&mut self, key: Slot, packet: Slot) {
        self.keys[key].packets.remove(&mut self.links.key, packet);
        if self.keys[key].packets.len() > 0 {
            return;
        }
        match self.keys[key].request {
            RequestState::Made(_) => self.made.remove(&mut self.links.request, key),
            RequestState::Queued(sender) => {
                self.unqueue(key, sender);
                self.remove_idle(sender);
            }
        }
        self.key_ages.remove(&mut self.links.key_age, key);
        self.by_key.remove(self.hasher.hash_one(self.keys[key].key), key);
        self.keys.remove(key);
    }

    fn find_sender(&self, sender: &PacketSender) -> Option<Slot> {
        let hash = self.hasher.hash_one(sender);
        self.by_sender.find(hash, |slot| self.senders[slot].sender == *sender)
    }

    fn insert_sender(&mut self, sender: PacketSender) -> Slot {
        let port = self.find_port(sender.ingress).unwrap_or_else(|| {
            let (port, senders) = (sender.ingress, ShareRanking::EMPTY);
            let share = PortShare { port, senders, asking: AgeList::default() };
            let slot = self.ports.insert(share).expect("as many ports as senders");
            self.by_port.insert(self.hasher.hash_one(port), slot);
            slot
        });
        let (packets, queued) = (AgeList::default(), AgeList::default());
        let share = SenderShare { sender, port, packets, queued };
        let slot = self.senders.insert(share).expect("two senders a packet");
        self.by_sender.insert(self.hasher.hash_one(sender), slot);
        slot
    }

    fn find_port(&self, port: PortId) -> Option<Slot> {
        self.by_port.find(self.hasher.hash_one(port), |slot| self.ports[slot].port == port)
    }

    /// Removes a sender without packets and requests, and a port with the last sender.
    fn remove_idle(&mut self, sender: Slot) {
        let SenderShare { sender: address, port, packets, queued } = &self.senders[sender];
        if packets.len() > 0 || queued.len() > 0 {
            return;
        }
        let (address, port) = (*address, *port);
        self.by_sender.remove(self.hasher.hash_one(address), sender);
        self.senders.remove(sender);
        // A port without packets may still have senders with requests.
        if self.ranked_ports.length(port) == 0 && self.ports[port].asking.len() == 0 {
            self.by_port.remove(self.hasher.hash_one(address.ingress), port);
            self.ports.remove(port);
        }
    }
}

#[cfg(test)]
impl<K, P> WaitingRoom<K, P> {
    /// Capacities of the memory.
    fn memory(&self) -> [usize; 6] {
        let links = self.links.all.capacity() + self.links.request.capacity();
        let slabs = [self.packets.memory(), self.keys.memory(), self.senders.memory()];
        let [packets, keys, senders] = slabs;
        [packets, keys, senders, self.ports.memory(), links, self.ranked_senders.memory()]
    }
}
