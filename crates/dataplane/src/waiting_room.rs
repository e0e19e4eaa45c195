//! The waiting room: bounded memory for packets without a link address or an SA, shared fairly
//! among senders, and the queue of requests.
//!
//! **Packets.** A packet waits for a key (a neighbour, a policy) and belongs to a sender behind an
//! ingress port. The room admits every packet. Above a bound, the longest share gives way:
//!
//! * all packets of the room: the rule of [`FairShares`]. A port has a guarantee of a sixteenth of
//!   the bound, a sender of 1/256;
//! * the packets of a key: the key loses the packet of the longest port, then of the longest
//!   sender, then the oldest.
//!
//! So a flood displaces packets of the flood's own sender, or of its port.
//!
//! **Requests.** A key asks with the first packet, and again every [`REQUEST_INTERVAL_NS`], even if
//! the new packet gives way to others of the key. A queued request lasts as long as a packet of the
//! key: if the last packet gives way before the turn of the request, the request goes too. The next
//! packet of the key asks again. So a flood from forged senders behind a port delays requests of
//! honest senders behind this port alone. The caller bounds only the rate of requests
//! (RFC 6583 §6). [`next_request`](WaitingRoom::next_request) serves ports in turn, the senders of
//! a port in turn, and of a sender the latest key. First requests come before repetitions.
//!
//! **Cost.** Each operation takes a bounded number of steps. All memory is taken at the start.

mod request_queue;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hash, RandomState};

use self::request_queue::{QueuedRequest, RequestOrigin, RequestQueue};
use crate::fair_shares::{FairShares, ShareGuarantee};
use crate::packet_sender::PacketSender;
use crate::slots::{AgeList, Index, Links, NONE, Slab, Slot};

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

/// The waiting packets of one worker.
pub(crate) struct WaitingRoom<K, P> {
    hasher: RandomState,
    packets: Slab<Occupant<P>>,
    keys: Slab<KeyEntry<K>>,
    by_key: Index,
    /// Packets by sender. A queued key claims the sender's slot.
    shares: FairShares,
    requests: RequestQueue,
    /// Links of [`KeyEntry::packets`].
    packet_links: Links,
    key_ages: AgeList,
    key_age_links: Links,
    /// Maximum packets.
    capacity: usize,
}

impl<K: Copy + Eq + Hash, P> WaitingRoom<K, P> {
    /// A room with memory for so many packets.
    pub(crate) fn new(capacity: usize) -> WaitingRoom<K, P> {
        // Admission precedes eviction; a sender may have requests without packets.
        let (packets, senders) = (capacity + 1, 2 * (capacity + 1));
        WaitingRoom {
            hasher: RandomState::new(),
            packets: Slab::new(packets),
            keys: Slab::new(packets),
            by_key: Index::new(packets),
            shares: FairShares::new(packets, packets),
            requests: RequestQueue::new(packets, senders),
            packet_links: Links::unlinked(packets),
            key_ages: AgeList::default(),
            key_age_links: Links::unlinked(packets),
            capacity,
        }
    }

    /// Returns the number of waiting packets.
    pub(crate) fn len(&self) -> usize {
        self.shares.len()
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
        let occupant = Occupant { packet: Some(packet), since_ns: now_ns, key: NONE };
        let slot = self.packets.insert(occupant).expect("memory for one more than the bound");
        let sender = self.shares.join(slot, sender);
        let key = match self.find_key(key) {
            Some(key) => {
                self.repeat_request(now_ns, key, sender);
                key
            }
            None => self.insert_key(key, sender),
        };
        self.packets[slot].key = key;
        self.keys[key].packets.push(&mut self.packet_links, slot);
        let all = bounds.all.min(self.capacity);
        let gives_way = if self.keys[key].packets.len() > bounds.key {
            self.longest_of_key(key)
        } else if self.len() > all {
            self.shares.eviction_candidate(guarantee(all))
        } else {
            None
        };
        self.remove(gives_way?)
    }

    /// The oldest packet.
    pub(crate) fn oldest(&self) -> Option<Slot> {
        self.shares.oldest()
    }

    /// The next younger packet.
    pub(crate) fn after(&self, slot: Slot) -> Option<Slot> {
        self.shares.after(slot)
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
        let oldest = self.oldest().filter(|slot| self.packets[*slot].since_ns <= until_ns)?;
        self.remove(oldest)
    }

    /// Takes the packet of a slot out. A key without packets asks no more.
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<P> {
        let Occupant { packet, key, .. } = &mut self.packets[slot];
        let (packet, key) = (packet.take()?, *key);
        self.packets.remove(slot);
        self.leave_key(key, slot);
        self.shares.leave(slot);
        Some(packet)
    }

    /// Moves the packet of a slot to another key, behind the packets of this key.
    pub(crate) fn move_to(&mut self, slot: Slot, key: K) {
        let before = self.packets[slot].key;
        if self.keys[before].key == key {
            return;
        }
        let sender = self.shares.sender_of(slot);
        self.leave_key(before, slot);
        let key = self.find_key(key).unwrap_or_else(|| self.insert_key(key, sender));
        self.keys[key].packets.push(&mut self.packet_links, slot);
        self.packets[slot].key = key;
    }

    /// The oldest key.
    pub(crate) fn oldest_key(&self) -> Option<Slot> {
        self.key_ages.oldest()
    }

    /// The next younger key.
    pub(crate) fn key_after(&self, slot: Slot) -> Option<Slot> {
        self.key_ages.after(&self.key_age_links, slot)
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
        !self.requests.is_empty()
    }

    /// Queues the requests of keys whose last request is [`REQUEST_INTERVAL_NS`] old.
    pub(crate) fn queue_repetitions(&mut self, now_ns: u64) {
        while let Some(key) = self.requests.oldest_made().filter(|key| self.is_due(now_ns, *key)) {
            let first = self.keys[key].packets.oldest().expect("a key has packets");
            self.queue_repetition(key, self.shares.sender_of(first));
        }
    }

    /// Makes the next request: returns the key and the key's oldest packet.
    pub(crate) fn next_request(&mut self, now_ns: u64) -> Option<(K, &P)> {
        let QueuedRequest { key, origin } = self.requests.pop()?;
        self.shares.release_claim(origin.sender);
        self.requests.push_made(key);
        self.keys[key].request = RequestState::Made(now_ns);
        let first = self.keys[key].packets.oldest()?;
        Some((self.keys[key].key, self.packets[first].packet.as_ref()?))
    }

    /// The packet of a key with the longest port, then the longest sender.
    fn longest_of_key(&self, key: Slot) -> Option<Slot> {
        let mut longest = self.keys[key].packets.oldest()?;
        let mut next = Some(longest);
        while let Some(slot) = next {
            if self.shares.lengths(slot) > self.shares.lengths(longest) {
                longest = slot;
            }
            next = self.keys[key].packets.after(&self.packet_links, slot);
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
            self.queue_repetition(key, sender);
        } else if let RequestState::Queued(first) = self.keys[key].request
            && self.requests.len_of(sender) + 1 < self.requests.len_of(first)
        {
            self.unqueue(key, first);
            self.queue_first(key, sender);
        }
    }

    /// Queues a key with a made request behind the others of a sender.
    fn queue_repetition(&mut self, key: Slot, sender: Slot) {
        self.requests.remove_made(key);
        self.shares.claim(sender);
        self.requests.push_last(self.queued_request(key, sender));
        self.keys[key].request = RequestState::Queued(sender);
    }

    /// Queues a key in front of the others of a sender.
    fn queue_first(&mut self, key: Slot, sender: Slot) {
        self.shares.claim(sender);
        self.requests.push_first(self.queued_request(key, sender));
        self.keys[key].request = RequestState::Queued(sender);
    }

    /// Takes a key out of the queue of a sender.
    fn unqueue(&mut self, key: Slot, sender: Slot) {
        self.requests.remove(self.queued_request(key, sender));
        self.shares.release_claim(sender);
    }

    fn queued_request(&self, key: Slot, sender: Slot) -> QueuedRequest {
        QueuedRequest { key, origin: RequestOrigin { sender, port: self.shares.port_of(sender) } }
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
        self.key_ages.push(&mut self.key_age_links, slot);
        self.queue_first(slot, sender);
        slot
    }

    /// Takes a packet out of a key, and removes a key without packets.
    fn leave_key(&mut self, key: Slot, packet: Slot) {
        self.keys[key].packets.remove(&mut self.packet_links, packet);
        if self.keys[key].packets.len() > 0 {
            return;
        }
        match self.keys[key].request {
            RequestState::Made(_) => self.requests.remove_made(key),
            RequestState::Queued(sender) => self.unqueue(key, sender),
        }
        self.key_ages.remove(&mut self.key_age_links, key);
        self.by_key.remove(self.hasher.hash_one(self.keys[key].key), key);
        self.keys.remove(key);
    }
}

/// The guarantee of a room with so many packets.
fn guarantee(all: usize) -> ShareGuarantee {
    ShareGuarantee { port: all / 16, sender: all / 256 }
}

#[cfg(test)]
impl<K, P> WaitingRoom<K, P> {
    /// Capacities of the memory.
    fn memory(&self) -> ([usize; 5], [usize; 7]) {
        let links = self.packet_links.memory() + self.key_age_links.memory();
        let slabs = [self.packets.memory(), self.keys.memory(), self.by_key.memory()];
        let [packets, keys, by_key] = slabs;
        ([packets, keys, by_key, links, self.requests.memory()], self.shares.memory())
    }
}
