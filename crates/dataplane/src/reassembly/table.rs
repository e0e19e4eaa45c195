//! The datagrams of which fragments have come lately: virtual reassembly (RFC 4301 §7 approach 3),
//! and what has come of datagrams that are put together.
//!
//! A datagram is known from its first fragment to come, whichever it is, until all of it has come
//! or its time is over. No data is kept: of what has come only where it lay, of a first fragment
//! its upper layer. Fragments that wait are the caller's, by any handle: they wait for their first,
//! and where that is ESP for all the others.
//!
//! **Bounds.** Of datagrams, and of fragments that wait: in all, a port and a sender. Where a
//! datagram comes that one of these bounds has no room for, the oldest within that bound gives way:
//! a sender's flood drives out the sender's own, a port's those of the port. A fragment that has no
//! room to wait is dropped.
//!
//! An invalid datagram stays in the table until it expires, so no more fragments of it pass. An
//! exact duplicate (same place, length and more-bit) makes no datagram invalid: networks duplicate
//! packets. The table compares no bytes. A duplicate never passes, so hosts behind the gateway
//! never see two versions of a part.

use cpu::aes::Secret;

use super::datagram::{Datagram, Hashes, Sender};
use super::ranges::{Fault, Part, Ranges};
use crate::ids::PortId;
use crate::slots::{AgeList, Index, Link, NONE, Slab, Slot};
use crate::upper_layer::UpperLayer;
use crate::verdict::DropReason;

/// Bounds of a number: in all, of a port, of a sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) all: usize,
    pub(crate) port: usize,
    pub(crate) sender: usize,
}

/// Limits of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Datagrams that are known.
    pub(crate) datagrams: Bounds,
    /// Fragments that wait.
    pub(crate) held: Bounds,
    /// Fragments of one datagram that wait.
    pub(crate) held_a_datagram: usize,
    /// Time that a datagram is known, nanoseconds.
    pub(crate) patience_ns: u64,
}

/// The content of a first fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum First {
    /// An upper layer: the later fragments are judged by it.
    Shows(UpperLayer),
    /// ESP to us: the datagram is put together.
    Esp,
}

/// A fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) datagram: Datagram,
    pub(crate) part: Part,
    /// Content of a first fragment, or the reason why it makes its datagram invalid; `None`: it is
    /// a later one.
    pub(crate) first: Option<Result<First, DropReason>>,
}

/// The answer about a fragment.
pub(crate) enum Answer<'t, H> {
    /// The first fragment. It goes on, and [`released`](Table::released) fragments follow.
    First,
    /// A later fragment of a datagram with this upper layer.
    Known(UpperLayer),
    /// A later fragment in front of its first. It may wait.
    Unknown(WaitingPlace<'t, H>),
    /// A fragment of a datagram to be put together. It waits.
    Part(WaitingPlace<'t, H>),
    /// The last missing fragment of a datagram to be put together.
    /// [`released`](Table::released) returns the others.
    Complete,
    /// An exact duplicate (RFC 8200 §4.5). Drop it: the datagram goes on with the earlier fragment.
    Duplicate,
    /// A fragment to be dropped.
    Refused {
        reason: DropReason,
        /// True if the first fragment has come, and is ESP or too small to tell.
        may_be_esp: bool,
    },
}

/// The right of one fragment to wait in its datagram.
///
/// The place borrows the table, so the table cannot remove the datagram in between. Every waiting
/// fragment is in the list of a datagram, and every datagram expires.
#[must_use = "hold the fragment, or release its place"]
pub(crate) struct WaitingPlace<'t, H> {
    table: &'t mut Table<H>,
    datagram: Slot,
}

impl<H: Copy> WaitingPlace<'_, H> {
    /// Adds the fragment to the waiting fragments of its datagram.
    ///
    /// # Errors
    /// No room is left: drop the fragment.
    pub(crate) fn hold(self, fragment: H) -> Result<(), DropReason> {
        self.table.hold(self.datagram, fragment)
    }

    /// Adds the fragment to the waiting fragments of its datagram. Without room the datagram
    /// becomes invalid: a part of it is lost.
    ///
    /// # Errors
    /// No room is left: drop the fragment. [`Table::dropped`] returns the others.
    pub(crate) fn hold_or_refuse(self, fragment: H) -> Result<(), DropReason> {
        let held = self.table.hold(self.datagram, fragment);
        if let Err(reason) = held {
            self.table.refuse(self.datagram, None, reason);
        }
        held
    }

    /// Gives the place up: the caller forwards or drops the fragment.
    pub(crate) fn release(self) {}
}

/// Knowledge of a datagram.
#[derive(Clone, Copy, Debug)]
enum Knowledge {
    /// Nothing but where fragments lay.
    NoFirst,
    First(UpperLayer),
    /// It is ESP.
    Esp,
    /// It is invalid; as [`Answer::Refused`].
    Refused {
        reason: DropReason,
        may_be_esp: bool,
    },
}

/// A datagram that is known.
#[derive(Clone, Copy, Debug)]
struct Entry {
    datagram: Datagram,
    until_ns: u64,
    knowledge: Knowledge,
    ranges: Ranges,
    /// Slot of its sender.
    sender: Slot,
    /// Fragments that wait, oldest first, and how many.
    waiting: (Slot, Slot),
    waits: usize,
}

/// The use that a sender, a port, or all make of the table.
#[derive(Clone, Copy, Default, Debug)]
struct Share {
    datagrams: AgeList,
    held: usize,
}

/// A sender of datagrams that are known.
#[derive(Clone, Copy, Debug)]
struct SenderEntry {
    sender: Sender,
    share: Share,
}

/// A fragment that waits, and the next of its datagram.
#[derive(Clone, Copy, Debug)]
struct Held<H> {
    fragment: H,
    next: Slot,
}

/// Links of the entries: one entry a slot.
#[derive(Default, Debug)]
struct Links {
    all: Vec<Link>,
    port: Vec<Link>,
    sender: Vec<Link>,
}

/// The datagrams of one worker. `H` is the caller's handle of a fragment that waits.
pub(crate) struct Table<H> {
    limits: Limits,
    hashes: Hashes,
    entries: Slab<Entry>,
    by_datagram: Index,
    links: Links,
    all: Share,
    /// One entry a port.
    ports: Vec<Share>,
    senders: Slab<SenderEntry>,
    by_sender: Index,
    held: Slab<Held<H>>,
    released: Vec<H>,
    dropped: Vec<(H, DropReason)>,
}

impl<H: Copy> Table<H> {
    /// An empty table.
    pub(crate) fn new(limits: Limits, secret: &Secret) -> Table<H> {
        let (datagrams, held) = (limits.datagrams.all, limits.held.all);
        let links = || Vec::with_capacity(datagrams);
        Table {
            limits,
            hashes: Hashes::new(secret),
            entries: Slab::new(datagrams),
            by_datagram: Index::new(datagrams),
            links: Links { all: links(), port: links(), sender: links() },
            all: Share::default(),
            ports: Vec::new(),
            senders: Slab::new(datagrams),
            by_sender: Index::new(datagrams),
            held: Slab::new(held),
            released: Vec::with_capacity(limits.held_a_datagram),
            dropped: Vec::with_capacity(held),
        }
    }

    /// The worker of several to which a datagram's fragments belong.
    pub(crate) fn owner(&self, datagram: &Datagram, workers: u32) -> u32 {
        self.hashes.owner(datagram, workers)
    }

    /// Fragments that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.all.held
    }

    /// Returns whether a datagram's time is over.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.all.datagrams.oldest().is_some_and(|slot| self.entries[slot].until_ns <= now_ns)
    }

    /// Fragments that waited and go on now, in the order in which they came; empties the list.
    pub(crate) fn released(&mut self) -> std::vec::Drain<'_, H> {
        self.released.drain(..)
    }

    /// Fragments that waited and are to be dropped; empties the list.
    pub(crate) fn dropped(&mut self) -> std::vec::Drain<'_, (H, DropReason)> {
        self.dropped.drain(..)
    }

    /// Takes a fragment in.
    pub(crate) fn take_in(&mut self, now_ns: u64, piece: &Piece) -> Answer<'_, H> {
        self.expire(now_ns);
        let hash = self.hashes.datagram(&piece.datagram);
        let entries = &self.entries;
        let known = self.by_datagram.find(hash, |slot| entries[slot].datagram == piece.datagram);
        let slot = known.unwrap_or_else(|| self.insert(now_ns, &piece.datagram, hash));
        let entry = &mut self.entries[slot];
        if let Knowledge::Refused { reason, may_be_esp } = entry.knowledge {
            return Answer::Refused { reason, may_be_esp };
        }
        let taken = match entry.ranges.add(piece.part) {
            Ok(()) => Ok(()),
            Err(Fault::Duplicate) => return Answer::Duplicate,
            Err(Fault::Overlap) => Err(DropReason::FragmentOverlap),
            Err(Fault::TooMany) => Err(DropReason::FragmentLimit),
        };
        let first = taken.and_then(|()| piece.first.transpose());
        let is_complete = entry.ranges.is_complete();
        match (first, entry.knowledge) {
            (Err(reason), _) => {
                let may_be_esp = self.refuse(slot, piece.first, reason);
                Answer::Refused { reason, may_be_esp }
            }
            (Ok(Some(First::Shows(upper_layer))), _) => {
                entry.knowledge = Knowledge::First(upper_layer);
                self.release(slot);
                self.remove_complete(slot);
                Answer::First
            }
            (Ok(None), Knowledge::First(upper_layer)) => {
                self.remove_complete(slot);
                Answer::Known(upper_layer)
            }
            (Ok(Some(First::Esp)), _) | (Ok(None), Knowledge::Esp) if is_complete => {
                self.release(slot);
                self.remove(slot);
                Answer::Complete
            }
            (Ok(Some(First::Esp)), _) | (Ok(None), Knowledge::Esp) => {
                entry.knowledge = Knowledge::Esp;
                Answer::Part(WaitingPlace { table: self, datagram: slot })
            }
            // The datagram stays until it expires, even a complete one: this fragment may wait.
            (Ok(None), Knowledge::NoFirst | Knowledge::Refused { .. }) => {
                Answer::Unknown(WaitingPlace { table: self, datagram: slot })
            }
        }
    }

    /// Adds a fragment to the waiting fragments of a datagram.
    ///
    /// # Errors
    /// No room is left: drop the fragment.
    fn hold(&mut self, datagram: Slot, fragment: H) -> Result<(), DropReason> {
        let Limits { held, held_a_datagram, .. } = self.limits;
        let entry = &mut self.entries[datagram];
        let port = &mut self.ports[usize::from(entry.datagram.way.ingress.0)];
        let sender = &mut self.senders[entry.sender].share;
        let is_full = entry.waits >= held_a_datagram
            || sender.held >= held.sender
            || port.held >= held.port
            || self.all.held >= held.all;
        let slot = (!is_full).then(|| self.held.insert(Held { fragment, next: NONE })).flatten();
        let slot = slot.ok_or(DropReason::FragmentLimit)?;
        match entry.waiting.1 {
            NONE => entry.waiting = (slot, slot),
            newest => {
                self.held[newest].next = slot;
                entry.waiting.1 = slot;
            }
        }
        entry.waits += 1;
        sender.held += 1;
        port.held += 1;
        self.all.held += 1;
        Ok(())
    }

    /// Forgets the datagrams whose time is over.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        while self.is_due(now_ns) {
            self.drop_oldest(self.all, DropReason::FragmentTimeout);
        }
    }

    /// Forgets the datagrams that came by some ports.
    pub(crate) fn forget_ports(&mut self, is_gone: impl Fn(PortId) -> bool) {
        for port in 0..self.ports.len() {
            if is_gone(PortId(port as u16)) {
                while self.drop_oldest(self.ports[port], DropReason::FragmentTimeout) {}
            }
        }
    }

    /// Drops the oldest datagram of a share, and says whether there was one.
    fn drop_oldest(&mut self, share: Share, reason: DropReason) -> bool {
        let Some(slot) = share.datagrams.oldest() else { return false };
        self.drop_waiting(slot, reason);
        self.remove(slot);
        true
    }

    /// Makes a datagram invalid because of a fragment. Returns [`Answer::Refused::may_be_esp`].
    fn refuse(
        &mut self,
        slot: Slot,
        first: Option<Result<First, DropReason>>,
        reason: DropReason,
    ) -> bool {
        let knowledge = &mut self.entries[slot].knowledge;
        let may_be_esp =
            matches!((first, *knowledge), (Some(Ok(First::Esp) | Err(_)), _) | (_, Knowledge::Esp));
        *knowledge = Knowledge::Refused { reason, may_be_esp };
        self.drop_waiting(slot, reason);
        may_be_esp
    }

    /// Puts the fragments of a datagram that wait into the list of those that go on.
    fn release(&mut self, slot: Slot) {
        while let Some(fragment) = self.pop_waiting(slot) {
            self.released.push(fragment);
        }
    }

    fn drop_waiting(&mut self, slot: Slot, reason: DropReason) {
        while let Some(fragment) = self.pop_waiting(slot) {
            self.dropped.push((fragment, reason));
        }
    }

    /// Takes out the oldest fragment of a datagram that waits.
    fn pop_waiting(&mut self, slot: Slot) -> Option<H> {
        let entry = &mut self.entries[slot];
        let oldest = entry.waiting.0;
        if oldest == NONE {
            return None;
        }
        let Held { fragment, next } = self.held[oldest];
        entry.waiting = (next, if next == NONE { NONE } else { entry.waiting.1 });
        entry.waits -= 1;
        self.senders[entry.sender].share.held -= 1;
        self.ports[usize::from(entry.datagram.way.ingress.0)].held -= 1;
        self.all.held -= 1;
        self.held.remove(oldest);
        Some(fragment)
    }

    /// Adds a datagram; where there is no room for it the oldest gives way.
    fn insert(&mut self, now_ns: u64, datagram: &Datagram, hash: u64) -> Slot {
        let sender = datagram.sender();
        let port = usize::from(datagram.way.ingress.0);
        if self.ports.len() <= port {
            self.ports.resize(port + 1, Share::default());
        }
        let Bounds { all, port: of_port, sender: of_sender } = self.limits.datagrams;
        let known = self.find_sender(&sender).map(|slot| self.senders[slot].share);
        if let Some(share) = known.filter(|share| share.datagrams.len() >= of_sender) {
            self.drop_oldest(share, DropReason::FragmentLimit);
        }
        if self.ports[port].datagrams.len() >= of_port {
            self.drop_oldest(self.ports[port], DropReason::FragmentLimit);
        }
        if self.all.datagrams.len() >= all {
            self.drop_oldest(self.all, DropReason::FragmentLimit);
        }
        // Only now: a sender whose last datagram gave way has no slot any more.
        let sender = self.find_sender(&sender).unwrap_or_else(|| self.insert_sender(sender));
        let entry = Entry {
            datagram: *datagram,
            until_ns: now_ns.saturating_add(self.limits.patience_ns),
            knowledge: Knowledge::NoFirst,
            ranges: Ranges::default(),
            sender,
            waiting: (NONE, NONE),
            waits: 0,
        };
        let slot = self.entries.insert(entry).expect("the bounds left room");
        self.by_datagram.insert(hash, slot);
        let Links { all, port: by_port, sender: by_sender } = &mut self.links;
        for links in [&mut *all, by_port, by_sender] {
            links.resize(links.len().max(usize::from(slot) + 1), Link::NONE);
        }
        self.all.datagrams.push(all, slot);
        self.ports[port].datagrams.push(by_port, slot);
        self.senders[sender].share.datagrams.push(by_sender, slot);
        slot
    }

    /// Removes a complete datagram without waiting fragments.
    fn remove_complete(&mut self, slot: Slot) {
        if self.entries[slot].ranges.is_complete() {
            self.remove(slot);
        }
    }

    /// Removes a datagram without waiting fragments, and with the last of a sender the sender.
    fn remove(&mut self, slot: Slot) {
        let Entry { datagram, sender, waits, .. } = self.entries[slot];
        debug_assert_eq!(waits, 0, "no list has the fragments that wait");
        self.by_datagram.remove(self.hashes.datagram(&datagram), slot);
        self.all.datagrams.remove(&mut self.links.all, slot);
        let port = &mut self.ports[usize::from(datagram.way.ingress.0)];
        port.datagrams.remove(&mut self.links.port, slot);
        let of_sender = &mut self.senders[sender].share.datagrams;
        of_sender.remove(&mut self.links.sender, slot);
        if of_sender.len() == 0 {
            self.by_sender.remove(self.hashes.sender(&datagram.sender()), sender);
            self.senders.remove(sender);
        }
        self.entries.remove(slot);
    }

    fn find_sender(&self, sender: &Sender) -> Option<Slot> {
        let senders = &self.senders;
        self.by_sender.find(self.hashes.sender(sender), |slot| senders[slot].sender == *sender)
    }

    fn insert_sender(&mut self, sender: Sender) -> Slot {
        let entry = SenderEntry { sender, share: Share::default() };
        let slot = self.senders.insert(entry).expect("as many as datagrams");
        self.by_sender.insert(self.hashes.sender(&sender), slot);
        slot
    }
}
