//! The queue of requests: ports take turns, then the senders of a port. Of a sender the latest key
//! comes first, and repetitions come last.

use crate::slots::{AgeList, Link, Slot};

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
    keys: Vec<AgeList>,
    /// Senders of a port with keys; the oldest is the next.
    senders: Vec<AgeList>,
    /// Ports with keys; the oldest is the next.
    ports: AgeList,
    /// Keys with a made request.
    made: AgeList,
    key_links: Vec<Link>,
    sender_links: Vec<Link>,
    port_links: Vec<Link>,
}

impl RequestQueue {
    /// Takes the memory for so many keys and senders.
    pub(super) fn new(keys: usize, senders: usize) -> RequestQueue {
        RequestQueue {
            keys: vec![AgeList::default(); senders],
            senders: vec![AgeList::default(); senders],
            ports: AgeList::default(),
            made: AgeList::default(),
            key_links: vec![Link::NONE; keys],
            sender_links: vec![Link::NONE; senders],
            port_links: vec![Link::NONE; senders],
        }
    }

    /// True if no key is queued.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ports.oldest().is_none()
    }

    /// Number of queued keys of a sender.
    pub(super) fn len_of(&self, sender: Slot) -> usize {
        self.keys[usize::from(sender)].len()
    }

    /// Queues a key in front of the sender's others.
    pub(super) fn push_first(&mut self, request: QueuedRequest) {
        let QueuedRequest { key, origin } = request;
        self.keys[usize::from(origin.sender)].push(&mut self.key_links, key);
        self.begin_turns(origin);
    }

    /// Queues a key behind the sender's others.
    pub(super) fn push_last(&mut self, request: QueuedRequest) {
        let QueuedRequest { key, origin } = request;
        self.keys[usize::from(origin.sender)].push_oldest(&mut self.key_links, key);
        self.begin_turns(origin);
    }

    /// Takes a key out of the queue.
    pub(super) fn remove(&mut self, request: QueuedRequest) {
        let QueuedRequest { key, origin: RequestOrigin { sender, port } } = request;
        let keys = &mut self.keys[usize::from(sender)];
        keys.remove(&mut self.key_links, key);
        if keys.len() > 0 {
            return;
        }
        let senders = &mut self.senders[usize::from(port)];
        senders.remove(&mut self.sender_links, sender);
        if senders.len() == 0 {
            self.ports.remove(&mut self.port_links, port);
        }
    }

    /// Takes out the next key. The sender and the port go behind the others.
    pub(super) fn pop(&mut self) -> Option<QueuedRequest> {
        let port = self.ports.oldest()?;
        let sender = self.senders[usize::from(port)].oldest()?;
        let key = self.keys[usize::from(sender)].newest()?;
        let request = QueuedRequest { key, origin: RequestOrigin { sender, port } };
        self.remove(request);
        let senders = &mut self.senders[usize::from(port)];
        if self.keys[usize::from(sender)].len() > 0 {
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
        if self.keys[usize::from(sender)].len() > 1 {
            return;
        }
        let senders = &mut self.senders[usize::from(port)];
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
        self.key_links.capacity() + self.sender_links.capacity()
    }
}
