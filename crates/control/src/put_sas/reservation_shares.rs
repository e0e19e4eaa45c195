//! Shares of remote ends in the reserved SPIs: which reservation gives way when the table is full.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

use crate::remote_end::RemoteEnd;

/// Number of a reservation: a later one is higher.
pub(super) type Ticket = u64;

/// Reservations by owner. Cost of each step: the logarithm of their number.
struct Queues<K> {
    tickets: HashMap<K, BTreeSet<Ticket>>,
    /// Length, age and owner of each queue. The last is the longest, of equal ones the oldest.
    by_length: BTreeSet<(usize, Reverse<Ticket>, K)>,
}

impl<K> Default for Queues<K> {
    fn default() -> Queues<K> {
        Queues { tickets: HashMap::new(), by_length: BTreeSet::new() }
    }
}

impl<K: Copy + Ord + Hash> Queues<K> {
    fn add(&mut self, owner: K, ticket: Ticket) {
        self.change(owner, |queue| queue.insert(ticket));
    }

    fn remove(&mut self, owner: K, ticket: Ticket) {
        self.change(owner, |queue| queue.remove(&ticket));
    }

    fn change(&mut self, owner: K, change: impl FnOnce(&mut BTreeSet<Ticket>) -> bool) {
        let queue = self.tickets.entry(owner).or_default();
        if let Some(oldest) = queue.first() {
            self.by_length.remove(&(queue.len(), Reverse(*oldest), owner));
        }
        change(queue);
        match queue.first() {
            Some(oldest) => _ = self.by_length.insert((queue.len(), Reverse(*oldest), owner)),
            None => _ = self.tickets.remove(&owner),
        }
    }

    /// Owner and oldest ticket of the longest queue.
    fn longest(&self) -> Option<(K, Ticket)> {
        self.by_length.last().map(|(_, Reverse(oldest), owner)| (*owner, *oldest))
    }
}

/// Reservations by site, and within each site by port.
#[derive(Default)]
pub(super) struct ReservationShares {
    sites: Queues<IpAddr>,
    ports: HashMap<IpAddr, Queues<u16>>,
}

impl ReservationShares {
    pub(super) fn add(&mut self, end: RemoteEnd, ticket: Ticket) {
        self.sites.add(end.site, ticket);
        self.ports.entry(end.site).or_default().add(end.port, ticket);
    }

    pub(super) fn remove(&mut self, end: RemoteEnd, ticket: Ticket) {
        self.sites.remove(end.site, ticket);
        let Some(ports) = self.ports.get_mut(&end.site) else { return };
        ports.remove(end.port, ticket);
        if ports.tickets.is_empty() {
            self.ports.remove(&end.site);
        }
    }

    /// The reservation that gives way: the oldest of the longest port of the longest site.
    pub(super) fn victim(&self) -> Option<Ticket> {
        let (site, _) = self.sites.longest()?;
        self.ports.get(&site)?.longest().map(|(_, oldest)| oldest)
    }
}
