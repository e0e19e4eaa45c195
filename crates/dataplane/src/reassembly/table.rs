//! Recent fragmented datagrams: virtual reassembly (RFC 4301 §7 approach 3), and the state of
//! datagrams to be put together.
//!
//! An entry begins with the earliest fragment of a datagram, and ends with the last missing
//! fragment or after the patience. The table keeps no data: only the ranges of the fragments, and
//! the upper layer of the first one. Waiting fragments are handles of the caller. A fragment waits
//! for the first one of the datagram; if the datagram is ESP, for all others.
//!
//! **Bounds.** The table bounds datagrams and waiting fragments, and admits all of them. Above a
//! bound one datagram gives way, by the rule of [`FairShares`]:
//!
//! * datagrams: the datagram of the rule leaves the table;
//! * waiting fragments: the datagram of the fragment of the rule becomes invalid. Without this
//!   fragment no receiver completes the datagram.
//!
//! A datagram with too many waiting fragments becomes invalid, too.
//!
//! An invalid datagram stays in the table until it expires, so no more fragments of it pass. An
//! exact duplicate (same place, length and more-bit) makes no datagram invalid: networks duplicate
//! packets. The table compares no bytes. A duplicate never passes, so hosts behind the gateway
//! never see two versions of a part.

use cpu::aes::Secret;

use super::datagram::{Datagram, Hashes};
use super::ranges::{Fault, Part, Ranges};
use crate::fair_shares::{FairShares, ShareBound};
use crate::ids::PortId;
use crate::slots::{AgeList, Index, Links, Slab, Slot};
use crate::upper_layer::UpperLayer;
use crate::verdict::DropReason;

/// Limits of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) datagrams: ShareBound,
    /// Waiting fragments.
    pub(crate) held: ShareBound,
    /// Waiting fragments of one datagram.
    pub(crate) held_a_datagram: usize,
    /// Lifetime of an incomplete datagram, nanoseconds.
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
    /// Adds the fragment to the waiting fragments of its datagram. Above a bound a datagram becomes
    /// invalid, perhaps this one: [`Table::dropped`] returns its fragments.
    ///
    /// # Errors
    /// Too many fragments of the datagram wait: drop the fragment.
    pub(crate) fn hold(self, fragment: H) -> Result<(), DropReason> {
        self.table.hold(self.datagram, fragment)
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
    /// Waiting fragments, in the order of arrival.
    waiting: AgeList,
}

/// A waiting fragment.
#[derive(Clone, Copy, Debug)]
struct HeldFragment<H> {
    fragment: H,
    /// Slot of the datagram.
    datagram: Slot,
}

/// The datagrams of one worker. `H` is the caller's handle of a waiting fragment.
pub(crate) struct Table<H> {
    limits: Limits,
    hashes: Hashes,
    entries: Slab<Entry>,
    by_datagram: Index,
    datagram_shares: FairShares,
    held: Slab<HeldFragment<H>>,
    /// Links of [`Entry::waiting`].
    held_links: Links,
    held_shares: FairShares,
    released: Vec<H>,
    dropped: Vec<(H, DropReason)>,
}

impl<H: Copy> Table<H> {
    /// Takes the memory of an empty table.
    pub(crate) fn new(limits: Limits, secret: &Secret) -> Table<H> {
        // Admission precedes eviction.
        let (datagrams, held) = (limits.datagrams.all + 1, limits.held.all + 1);
        Table {
            limits,
            hashes: Hashes::new(secret),
            entries: Slab::new(datagrams),
            by_datagram: Index::new(datagrams),
            datagram_shares: FairShares::new(datagrams, 0),
            held: Slab::new(held),
            held_links: Links::unlinked(held),
            held_shares: FairShares::new(held, 0),
            released: Vec::with_capacity(limits.held_a_datagram),
            dropped: Vec::with_capacity(held),
        }
    }

    /// The worker of several to which a datagram's fragments belong.
    pub(crate) fn owner(&self, datagram: &Datagram, workers: u32) -> u32 {
        self.hashes.owner(datagram, workers)
    }

    /// Number of waiting fragments.
    pub(crate) fn waiting(&self) -> usize {
        self.held_shares.len()
    }

    /// True if the patience of a datagram is over.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.oldest_due(now_ns).is_some()
    }

    fn oldest_due(&self, now_ns: u64) -> Option<Slot> {
        self.datagram_shares.oldest().filter(|slot| self.entries[*slot].until_ns <= now_ns)
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
        let slot = self.find_or_insert(now_ns, &piece.datagram);
        if let Knowledge::Refused { reason, may_be_esp } = self.entries[slot].knowledge {
            return Answer::Refused { reason, may_be_esp };
        }
        let taken = match self.entries[slot].ranges.add(piece.part) {
            Ok(()) => Ok(()),
            Err(Fault::Duplicate) => return Answer::Duplicate,
            Err(Fault::Overlap) => Err(DropReason::FragmentOverlap),
            Err(Fault::TooMany) => Err(DropReason::FragmentLimit),
        };
        match taken.and_then(|()| piece.first.transpose()) {
            Ok(first) => self.answer(slot, first),
            Err(reason) => {
                let may_be_esp = self.refuse(slot, piece.first, reason);
                Answer::Refused { reason, may_be_esp }
            }
        }
    }

    /// The answer about a valid fragment, by the content of a first one.
    fn answer(&mut self, slot: Slot, first: Option<First>) -> Answer<'_, H> {
        let entry = &mut self.entries[slot];
        let is_complete = entry.ranges.is_complete();
        match (first, entry.knowledge) {
            (Some(First::Shows(upper_layer)), _) => {
                entry.knowledge = Knowledge::First(upper_layer);
                self.release(slot);
                self.remove_complete(slot);
                Answer::First
            }
            (None, Knowledge::First(upper_layer)) => {
                self.remove_complete(slot);
                Answer::Known(upper_layer)
            }
            (Some(First::Esp), _) | (None, Knowledge::Esp) if is_complete => {
                self.release(slot);
                self.remove(slot);
                Answer::Complete
            }
            (Some(First::Esp), _) | (None, Knowledge::Esp) => {
                entry.knowledge = Knowledge::Esp;
                Answer::Part(WaitingPlace { table: self, datagram: slot })
            }
            // The datagram stays until it expires, even a complete one: this fragment may wait.
            (None, Knowledge::NoFirst | Knowledge::Refused { .. }) => {
                Answer::Unknown(WaitingPlace { table: self, datagram: slot })
            }
        }
    }

    /// Adds a fragment to the waiting fragments of a datagram.
    ///
    /// # Errors
    /// Too many fragments of the datagram wait: drop the fragment.
    fn hold(&mut self, datagram: Slot, fragment: H) -> Result<(), DropReason> {
        let Limits { held: bound, held_a_datagram, .. } = self.limits;
        if self.entries[datagram].waiting.len() >= held_a_datagram {
            self.refuse(datagram, None, DropReason::FragmentLimit);
            return Err(DropReason::FragmentLimit);
        }
        let held = self.held.insert(HeldFragment { fragment, datagram });
        let held = held.expect("memory for one more than the bound");
        let entry = &mut self.entries[datagram];
        entry.waiting.push(&mut self.held_links, held);
        self.held_shares.join(held, entry.datagram.sender());
        if self.held_shares.len() > bound.all
            && let Some(gives_way) = self.held_shares.eviction_candidate(bound.guarantee)
        {
            self.refuse(self.held[gives_way].datagram, None, DropReason::FragmentLimit);
        }
        Ok(())
    }

    /// Removes datagrams after their patience.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        while let Some(slot) = self.oldest_due(now_ns) {
            self.drop_datagram(slot, DropReason::FragmentTimeout);
        }
    }

    /// Removes the datagrams of some ingress ports. Takes a step for each port with datagrams, and
    /// for each removed datagram.
    pub(crate) fn forget_ports(&mut self, is_gone: impl Fn(PortId) -> bool) {
        let mut next = self.datagram_shares.first_port();
        while let Some(port) = next {
            next = self.datagram_shares.port_after(port);
            if !is_gone(self.datagram_shares.port(port)) {
                continue;
            }
            while let Some(slot) = self.datagram_shares.oldest_of_port(port) {
                self.drop_datagram(slot, DropReason::FragmentTimeout);
            }
        }
    }

    /// Removes a datagram, and drops the waiting fragments.
    fn drop_datagram(&mut self, slot: Slot, reason: DropReason) {
        self.drop_waiting(slot, reason);
        self.remove(slot);
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

    /// Takes out the oldest waiting fragment of a datagram.
    fn pop_waiting(&mut self, slot: Slot) -> Option<H> {
        let waiting = &mut self.entries[slot].waiting;
        let oldest = waiting.oldest()?;
        waiting.remove(&mut self.held_links, oldest);
        self.held_shares.leave(oldest);
        self.held.remove(oldest);
        Some(self.held[oldest].fragment)
    }

    fn find_or_insert(&mut self, now_ns: u64, datagram: &Datagram) -> Slot {
        let hash = self.hashes.datagram(datagram);
        let entries = &self.entries;
        let known = self.by_datagram.find(hash, |slot| entries[slot].datagram == *datagram);
        known.unwrap_or_else(|| self.insert(now_ns, datagram, hash))
    }

    /// Adds a datagram. Above the bound another one gives way.
    fn insert(&mut self, now_ns: u64, datagram: &Datagram, hash: u64) -> Slot {
        let entry = Entry {
            datagram: *datagram,
            until_ns: now_ns.saturating_add(self.limits.patience_ns),
            knowledge: Knowledge::NoFirst,
            ranges: Ranges::default(),
            waiting: AgeList::default(),
        };
        let slot = self.entries.insert(entry).expect("memory for one more than the bound");
        self.by_datagram.insert(hash, slot);
        self.datagram_shares.join(slot, datagram.sender());
        let bound = self.limits.datagrams;
        if self.datagram_shares.len() > bound.all
            && let Some(gives_way) = self.datagram_shares.eviction_candidate(bound.guarantee)
        {
            // Not the new one: it is the youngest of several.
            self.drop_datagram(gives_way, DropReason::FragmentLimit);
        }
        slot
    }

    /// Removes a complete datagram without waiting fragments.
    fn remove_complete(&mut self, slot: Slot) {
        if self.entries[slot].ranges.is_complete() {
            self.remove(slot);
        }
    }

    /// Removes a datagram without waiting fragments.
    fn remove(&mut self, slot: Slot) {
        let Entry { datagram, waiting, .. } = &self.entries[slot];
        debug_assert_eq!(waiting.len(), 0, "no list has the waiting fragments");
        self.by_datagram.remove(self.hashes.datagram(datagram), slot);
        self.datagram_shares.leave(slot);
        self.entries.remove(slot);
    }
}

#[cfg(test)]
impl<H> Table<H> {
    /// Capacities of the memory.
    pub(super) fn memory(&self) -> [usize; 20] {
        let mut all = [0; 20];
        let (datagrams, held) = (self.datagram_shares.memory(), self.held_shares.memory());
        all[..7].copy_from_slice(&datagrams);
        all[7..14].copy_from_slice(&held);
        all[14..].copy_from_slice(&[
            self.entries.memory(),
            self.by_datagram.memory(),
            self.held.memory(),
            self.held_links.memory(),
            self.released.capacity(),
            self.dropped.capacity(),
        ]);
        all
    }
}
