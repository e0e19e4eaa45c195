//! The writer's side: the truth about endpoints, by revisions, and the table that follows it.

use std::sync::Arc;

use wire::{Address, Vni};

use crate::endpoint::{
    ContentWords, Endpoint, EndpointKey, Found, InvalidEndpoint, KeyWords, key_words,
};
use crate::map::{At, Hash, NoPlace, Writer};
use crate::order::Order;
use crate::table::{Probe, Table};
use crate::tombstones::Tombstones;

/// A change of one key. Revisions count from 1; of two changes of a key the one with the higher
/// revision is the later one, in whatever order they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The endpoint is as it says from this revision on.
    Put {
        /// The revision.
        revision: u64,
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// There is no endpoint with this key from this revision on.
    Delete {
        /// The revision.
        revision: u64,
        /// The endpoint's key.
        key: EndpointKey,
    },
}

impl Change {
    /// Returns the key that it changes.
    #[inline]
    pub fn key(&self) -> EndpointKey {
        match self {
            Change::Put { endpoint, .. } => endpoint.key,
            Change::Delete { key, .. } => *key,
        }
    }

    /// Returns its revision.
    #[inline]
    pub fn revision(&self) -> u64 {
        match self {
            Change::Put { revision, .. } | Change::Delete { revision, .. } => *revision,
        }
    }
}

/// Outcome of a change. After all but [`Refused`](Outcome::Refused) it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is in the table: readers that begin to look now see it.
    Applied,
    /// The key has this revision already, with the same content.
    Repeated,
    /// A later change came before it, so that it must not have an effect. A change of the same
    /// revision with other content counts as later.
    Stale {
        /// Revision that the key has, or the [floor](Book::floor).
        known: u64,
    },
    /// It has no effect. It may be tried again when the reason is gone.
    Refused(Refusal),
}

/// The reason why a put is refused. Everything is as before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No packet could reach the endpoint.
    #[error(transparent)]
    Invalid(#[from] InvalidEndpoint),
    /// The table has no room.
    #[error(
        "endpoint {key} does not fit: the table holds {live} of at most {max} endpoints; delete \
         some, or start with a larger table"
    )]
    Full {
        /// The endpoint.
        key: EndpointKey,
        /// Endpoints that the table holds. Fewer than `max` if all places are taken where the
        /// endpoint or its host might lie, which no size of table excludes, but chance does.
        live: usize,
        /// Endpoints that it has room for.
        max: usize,
    },
}

/// An endpoint and the revision that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Revision of its last put.
    pub revision: u64,
}

/// Numbers for gauges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Endpoints.
    pub live: usize,
    /// Endpoints that there is room for.
    pub max_endpoints: usize,
    /// Pairs of a network and a host of it.
    pub hosts: usize,
    /// Deleted keys whose revision is remembered.
    pub tombstones: usize,
    /// Deleted keys whose revision can be remembered.
    pub max_tombstones: usize,
    /// Revision up to which changes of unknown keys are stale.
    pub floor: u64,
}

/// The only writer of a [`Table`]: it decides by revisions which changes have an effect. A thread
/// that readers must not wait for owns it; none of its work is theirs.
///
/// A deletion leaves a **tombstone**: the key with the revision of its deletion, so that an older
/// put that comes late does not bring the endpoint back. Tombstones are bounded. If there are too
/// many, those of the lowest revision `r` are forgotten, and the [floor](Book::floor) rises to `r`:
/// of a key that is neither live nor has a tombstone, changes up to `r` are stale. So nothing
/// comes back, whatever was forgotten. The price is paid by a put of a new key whose revision is
/// below that of as many deletions as there are tombstones, all of which came before it: it is
/// taken for stale. Who gives out revisions in order and never lets a change wait behind that many
/// later deletions does not meet this. Live keys are not concerned: each knows its own revision.
pub struct Book {
    table: Arc<Table>,
    endpoints: Writer,
    hosts: Writer,
    /// By record of an endpoint: its revision.
    revisions: Vec<u64>,
    /// By record of a host: its endpoints.
    references: Vec<u32>,
    order: Order,
    tombstones: Tombstones,
    live: usize,
    live_hosts: usize,
}

impl Book {
    /// The writer of an empty table, with at most so many tombstones. 20 to 40 bytes of its own an
    /// endpoint, and about 100 a tombstone.
    pub fn new(table: Table, max_tombstones: usize) -> Book {
        let records = table.max_endpoints() + 1;
        Book {
            table: Arc::new(table),
            endpoints: Writer::default(),
            hosts: Writer::default(),
            revisions: vec![0; records],
            references: vec![0; records],
            order: Order::default(),
            tombstones: Tombstones::new(max_tombstones),
            live: 0,
            live_hosts: 0,
        }
    }

    /// Returns the table, for readers.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Applies changes in their order; `outcomes[i]` is that of `changes[i]`. One that is refused
    /// does not keep the others from being applied.
    pub fn apply(&mut self, changes: &[Change]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(changes.len());
        self.apply_each(changes, |_, outcome| outcomes.push(outcome));
        outcomes
    }

    /// Applies changes in their order, and tells the outcome of each with its number in `changes`.
    pub fn apply_each(&mut self, changes: &[Change], mut each: impl FnMut(usize, Outcome)) {
        let table = self.table.clone();
        let mut probes = Table::no_probes();
        for (chunk, changes) in changes.chunks(probes.len()).enumerate() {
            let words = changes.iter().map(|change| change.key().words());
            let probes = table.prefetch_words(words, &mut probes);
            probes.iter().for_each(|probe| table.prefetch_endpoint(probe));
            for (at, (change, probe)) in changes.iter().zip(probes).enumerate() {
                let outcome = match *change {
                    Change::Put { revision, endpoint } => self.put(revision, &endpoint, probe),
                    Change::Delete { revision, key } => self.delete(revision, key, probe),
                };
                each(chunk * Table::TOGETHER + at, outcome);
            }
        }
        self.order.settle();
    }

    fn put(&mut self, revision: u64, endpoint: &Endpoint, probe: &Probe) -> Outcome {
        if let Err(invalid) = endpoint.check() {
            return Outcome::Refused(invalid.into());
        }
        let at = self.table.endpoints.locate(&probe.key, probe.hash);
        let content = Found::from(*endpoint).words();
        let full = |book: &Book| {
            let (live, max) = (book.live, book.table.max_endpoints());
            Outcome::Refused(Refusal::Full { key: endpoint.key, live, max })
        };
        let Some(at) = at else {
            match self.tombstones.revision(&probe.key).unwrap_or(self.tombstones.floor()) {
                known if revision <= known => return Outcome::Stale { known },
                _ if self.live == self.table.max_endpoints() => return full(self),
                _ => {}
            }
            return match self.insert(revision, endpoint, &content, probe) {
                Ok(()) => Outcome::Applied,
                Err(NoPlace) => full(self),
            };
        };
        let known = self.revisions[at.record as usize];
        let is_same = self.table.endpoints.value(at) == Some(content);
        match revision {
            _ if revision == known && is_same => return Outcome::Repeated,
            _ if revision <= known => return Outcome::Stale { known },
            _ if is_same => self.revisions[at.record as usize] = revision,
            _ => match self.replace(revision, endpoint, &content, (at, probe)) {
                Ok(()) => {}
                Err(NoPlace) => return full(self),
            },
        }
        Outcome::Applied
    }

    /// The host first, so that it is one of the network whenever the endpoint is found.
    fn insert(
        &mut self,
        revision: u64,
        endpoint: &Endpoint,
        content: &ContentWords,
        probe: &Probe,
    ) -> Result<(), NoPlace> {
        let Endpoint { key: EndpointKey { vni, .. }, host, .. } = *endpoint;
        self.hold_host(vni, host)?;
        let Probe { key: words, hash } = probe;
        let table = self.table.clone();
        let hash_of = |key: &KeyWords| table.hash_of(key);
        match table.endpoints.insert(&mut self.endpoints, (words, *hash), content, hash_of) {
            Ok(record) => {
                self.revisions[record as usize] = revision;
                self.tombstones.remove(words);
                self.order.insert(*words);
                self.live += 1;
                Ok(())
            }
            Err(refused) => {
                self.release_host(vni, host);
                Err(refused)
            }
        }
    }

    /// The new host first and the old one last, for the same reason.
    fn replace(
        &mut self,
        revision: u64,
        endpoint: &Endpoint,
        content: &ContentWords,
        (at, probe): (At, &Probe),
    ) -> Result<(), NoPlace> {
        let Endpoint { key: EndpointKey { vni, .. }, host, .. } = *endpoint;
        let old = self.table.endpoints.value(at).ok_or(NoPlace)?;
        let old = Found::from_words(&old).host;
        if old != host {
            self.hold_host(vni, host)?;
        }
        let (key, endpoints) = ((&probe.key, probe.hash), &self.table.endpoints);
        match endpoints.replace(&mut self.endpoints, at, key, content) {
            Ok(record) => {
                self.revisions[record as usize] = revision;
                if old != host {
                    self.release_host(vni, old);
                }
                Ok(())
            }
            Err(refused) => {
                if old != host {
                    self.release_host(vni, host);
                }
                Err(refused)
            }
        }
    }

    fn delete(&mut self, revision: u64, key: EndpointKey, probe: &Probe) -> Outcome {
        let Some(at) = self.table.endpoints.locate(&probe.key, probe.hash) else {
            match (self.tombstones.revision(&probe.key), self.tombstones.floor()) {
                (Some(known), _) if revision == known => return Outcome::Repeated,
                (Some(known), _) if revision < known => return Outcome::Stale { known },
                (None, known) if revision <= known => return Outcome::Stale { known },
                _ => self.tombstones.put(probe.key, revision),
            }
            return Outcome::Applied;
        };
        let known = self.revisions[at.record as usize];
        if revision <= known {
            return Outcome::Stale { known };
        }
        let content = self.table.endpoints.value(at);
        self.table.endpoints.remove(&mut self.endpoints, at);
        if let Some(content) = content {
            self.release_host(key.vni, Found::from_words(&content).host);
        }
        self.order.remove(probe.key);
        self.live -= 1;
        self.tombstones.put(probe.key, revision);
        Outcome::Applied
    }

    /// Counts one more endpoint of a network on a host.
    fn hold_host(&mut self, vni: Vni, host: Address) -> Result<(), NoPlace> {
        let Probe { key, hash } = self.table.probe_words(key_words(vni, host));
        let record = match self.table.hosts.locate(&key, hash) {
            Some(at) => at.record,
            None => {
                let hash_of = |key: &KeyWords| -> Hash { self.table.hash_of(key) };
                let hosts = &self.table.hosts;
                let record = hosts.insert(&mut self.hosts, (&key, hash), &[], hash_of)?;
                self.live_hosts += 1;
                record
            }
        };
        self.references[record as usize] += 1;
        Ok(())
    }

    /// Counts one less; a host without any is no host of the network any more.
    fn release_host(&mut self, vni: Vni, host: Address) {
        let Probe { key, hash } = self.table.probe_words(key_words(vni, host));
        let at = self.table.hosts.locate(&key, hash);
        debug_assert!(at.is_some(), "{host} is a host of VNI {vni}");
        let Some(at) = at else { return };
        let references = &mut self.references[at.record as usize];
        *references -= 1;
        if *references == 0 {
            self.table.hosts.remove(&mut self.hosts, at);
            self.live_hosts -= 1;
        }
    }

    /// Returns an endpoint and its revision.
    pub fn get(&self, key: EndpointKey) -> Option<Known> {
        let Probe { key: words, hash } = self.table.probe(key);
        let at = self.table.endpoints.locate(&words, hash)?;
        let endpoint = Found::from_words(&self.table.endpoints.value(at)?).of(key);
        Some(Known { endpoint, revision: self.revisions[at.record as usize] })
    }

    /// Iterates over the endpoints whose keys are behind `after`, in the order of keys: those of
    /// one network, or all. With `take` it is a page; the last key of that is `after` of the next
    /// one, whatever has changed in between.
    pub fn iter(
        &self,
        vni: Option<Vni>,
        after: Option<EndpointKey>,
    ) -> impl Iterator<Item = Known> {
        self.order.keys(vni, after).filter_map(|key| self.get(key))
    }

    /// Iterates over the deleted keys that are remembered and the revisions of their deletions,
    /// lowest first. A [`Change::Delete`] of each in a new book after
    /// [`forget_up_to`](Book::forget_up_to) of the [floor](Book::floor) makes the same tombstones.
    pub fn tombstones(&self) -> impl Iterator<Item = (EndpointKey, u64)> {
        self.tombstones.iter()
    }

    /// Iterates over the networks that have endpoints, in order, with the number of each.
    pub fn live_by_vni(&self) -> impl Iterator<Item = (Vni, usize)> {
        self.order.live()
    }

    /// Returns its numbers.
    pub fn counts(&self) -> Counts {
        Counts {
            live: self.live,
            max_endpoints: self.table.max_endpoints(),
            hosts: self.live_hosts,
            tombstones: self.tombstones.len(),
            max_tombstones: self.tombstones.max(),
            floor: self.floor(),
        }
    }

    /// Returns the revision up to which changes of unknown keys are stale. 0: none was forgotten.
    pub fn floor(&self) -> u64 {
        self.tombstones.floor()
    }

    /// Raises the floor to a revision, if it is lower, and forgets the tombstones that it covers:
    /// the caller promises that no change up to it that matters is still to come.
    pub fn forget_up_to(&mut self, revision: u64) {
        self.tombstones.forget_up_to(revision);
    }
}
