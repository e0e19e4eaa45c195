//! The queue of requests: ports take turns, then the senders of a port. Of a sender the latest key
//! comes first, and repetitions come last.

use crate::slots::{AgeList, Links, Slot, SlotValues};

/// A sender with queued keys, and the sender's port, by slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RequestOrigin {
    pub(super) sender: Slot,
    pub(super) port: Slot,
}

/// A queued key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueuedRequest {
    pub(super) key: Slot,
    pub(super) origin: RequestOrigin,
}

/// Queued keys by sender, and keys with a made request by time. A key is in one list at most.
pub(super) struct RequestQueue {
    /// Keys of a sender; the newest is the next.
    keys: SlotValues<AgeList>,
    /// Senders of a port with keys; the oldest is the next.
    senders: SlotValues<AgeList>,
    /// Ports with keys; the oldest is the next.
    ports: AgeList,
    /// Keys with a made request.
    made: AgeList,
    key_links: Links,
    sender_links: Links,
    port_links: Links,
}

impl RequestQueue {
    /// Takes the memory for so many keys and senders.
    pub(super) fn new(keys: usize, senders: usize) -> RequestQueue {
        RequestQueue {
            keys: SlotValues::new(senders, AgeList::default()),
            senders: SlotValues::new(senders, AgeList::default()),
            ports: AgeList::default(),
            made: AgeList::default(),
            key_links: Links::unlinked(keys),
            sender_links: Links::unlinked(senders),
            port_links: Links::unlinked(senders),
        }
    }

    /// True if no key is queued.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ports.oldest().is_none()
    }

    /// Number of queued keys of a sender.
    pub(super) fn len_of(&self, sender: Slot) -> usize {
        self.keys.value(sender).len()
    }

    /// Queues a key in front of the sender's others.
    pub(super) fn push_first(&mut self, request: QueuedRequest) {
        let QueuedRequest { key, origin } = request;
        self.keys.place(origin.sender).push(&mut self.key_links, key);
        self.begin_turns(origin);
    }

    /// Queues a key behind the sender's others.
    pub(super) fn push_last(&mut self, request: QueuedRequest) {
        let QueuedRequest { key, origin } = request;
        self.keys.place(origin.sender).push_oldest(&mut self.key_links, key);
        self.begin_turns(origin);
    }

    /// Takes a key out of the queue.
    pub(super) fn remove(&mut self, request: QueuedRequest) {
        let QueuedRequest { key, origin: RequestOrigin { sender, port } } = request;
        let keys = self.keys.place(sender);
        keys.remove(&mut self.key_links, key);
        if keys.len() > 0 {
            return;
        }
        let senders = self.senders.place(port);
        senders.remove(&mut self.sender_links, sender);
        if senders.len() == 0 {
            self.ports.remove(&mut self.port_links, port);
        }
    }

    /// Takes out the next key. The sender and the port go behind the others.
    pub(super) fn pop(&mut self) -> Option<QueuedRequest> {
        let port = self.ports.oldest()?;
        let sender = self.senders.value(port).oldest()?;
        let key = self.keys.value(sender).newest()?;
        let request = QueuedRequest { key, origin: RequestOrigin { sender, port } };
        self.remove(request);
        let senders = self.senders.place(port);
        if self.keys.value(sender).len() > 0 {
            senders.remove(&mut self.sender_links, sender);
            senders.push(&mut self.sender_links, sender);
        }
        if senders.len() > 0 {
            self.ports.remove(&mut self.port_links, port);
            self.ports.push(&mut self.port_links, port);
        }
        Some(request)
    }

    /// Records the request of an unqueued key as made.
    pub(super) fn push_made(&mut self, key: Slot) {
        self.made.push(&mut self.key_links, key);
    }

    /// The key with the earliest made request.
    pub(super) fn oldest_made(&self) -> Option<Slot> {
        self.made.oldest()
    }

    /// Removes the record of a made request.
    pub(super) fn remove_made(&mut self, key: Slot) {
        self.made.remove(&mut self.key_links, key);
    }

    /// Lets a sender with the first key take turns.
    fn begin_turns(&mut self, RequestOrigin { sender, port }: RequestOrigin) {
        if self.keys.value(sender).len() > 1 {
            return;
        }
        let senders = self.senders.place(port);
        senders.push(&mut self.sender_links, sender);
        if senders.len() == 1 {
            self.ports.push(&mut self.port_links, port);
        }
    }
}

#[cfg(test)]
impl RequestQueue {
    /// Capacity for links of keys and senders.
    pub(super) fn memory(&self) -> usize {
        self.key_links.memory() + self.sender_links.memory()
    }
}
