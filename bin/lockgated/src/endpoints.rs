//! The endpoints of virtual networks: one writer of the table that workers read, and the store
//! behind it.
//!
//! ```text
//!  API ── changes ──▶ desk: book and table ──▶ "applied"
//!                        │ in the same order
//!                        ▼
//!                     thread of the store: one transaction for what waits ──▶ "durable"
//! ```
//!
//! Workers see a change before it is on disk; only a client that asked for durability waits for the
//! disk. If the store fails, the daemon keeps the change and stores it with the next one or after a
//! pause; until then it answers clients that the change is not durable.
//!
//! Clients that watch read the latest changes from a log in memory (module `log`), which is filled
//! from the store at the start.

mod filling;
mod log;
mod storing;

use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use config::{StoreKind, StoreSettings};
use endpoints::{Book, Change, Counts, Endpoint, EndpointKey, Known, Outcome, Refusal};
use store::{MemoryStore, SqliteStore, Start, Store, StoreError};
use tokio::sync::{oneshot, watch};
use wire::{Address, LinkAddress, Vni};

use crate::events::{Events, Kind};
use crate::kernel_tier::KernelTier;
use filling::{Filled, Filling};
use log::Log;
use storing::{Job, Storing};

pub(crate) use log::{Place, WatchError};

/// The database in `state_dir`.
pub(crate) const FILE: &str = "endpoints.sqlite";

/// A change of an endpoint as somebody asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// The endpoint is to be as it says.
    Put(Endpoint),
    /// There is to be none.
    Delete(EndpointKey),
}

/// A wanted change, with the revision that its sender gave it; `None`: it gets the next one.
pub(crate) type Numbered = (Wanted, Option<u64>);

/// Changes of a stream by what became of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ChangeSums {
    pub(crate) applied: u64,
    pub(crate) repeated: u64,
    pub(crate) stale: u64,
    pub(crate) refused: u64,
}

/// The outcome of a batch. Workers that begin to look now see it.
#[derive(Debug)]
pub(crate) struct AppliedBatch {
    /// Changes that have an effect.
    pub(crate) applied: u64,
    /// Changes that were made before.
    pub(crate) repeated: u64,
    /// Changes after which a later one had come.
    pub(crate) stale: u64,
    /// Places in the batch of changes that were refused, with the reason.
    pub(crate) refused: Vec<(usize, Refusal)>,
    /// Becomes the number of the store's commit, or says why the batch is not durable.
    pub(crate) durable: oneshot::Receiver<Result<u64, Arc<str>>>,
}

/// Endpoints of a page, with the sums.
pub(crate) struct EndpointPage {
    pub(crate) endpoints: Vec<Known>,
    pub(crate) counts: Counts,
}

/// The endpoints of the daemon. Before a configuration with virtual networks ran there are none.
pub(crate) struct EndpointDesk {
    inner: Mutex<Option<Desk>>,
    tier: Arc<KernelTier>,
    /// Says that there are more changes, to those who watch.
    changed: watch::Sender<u64>,
    events: Events,
}

struct Desk {
    book: Book,
    /// The highest revision there was.
    last: u64,
    /// The latest changes.
    log: Log,
    store: Storing,
    jobs: Sender<Job>,
}

/// No virtual network is configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there are no virtual networks: add [overlay.NAME] and [vni.NUMBER] to the configuration")]
pub(crate) struct NoNetworks;

impl EndpointDesk {
    pub(crate) fn new(tier: Arc<KernelTier>, events: Events) -> Arc<EndpointDesk> {
        let changed = watch::Sender::new(0);
        Arc::new(EndpointDesk { inner: Mutex::new(None), tier, changed, events })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Desk>> {
        // A panic while it was held left nothing half done that readers could see.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the store, and fills the table of a book from it. Blocks for the disk.
    ///
    /// # Errors
    /// The store cannot be read. The table has then the endpoints that were read before.
    pub(crate) fn open(
        &self,
        mut book: Book,
        settings: StoreSettings,
        state_dir: &Path,
    ) -> Result<(), StoreError> {
        let began = std::time::Instant::now();
        let mut filling = Filling::new(&mut book);
        let (store, from): (Box<dyn storing::Imaged>, Option<Start>) = match settings.kind {
            StoreKind::Memory => (Box::new(MemoryStore::default()), None),
            StoreKind::Sqlite => {
                let mut store = SqliteStore::open(&state_dir.join(FILE))?;
                filling.read_log(&store)?;
                let (_, from) = store.start(&mut |change| filling.take(&change))?;
                filling.forget_up_to(store.floor());
                (Box::new(store), Some(from))
            }
        };
        let Filled { last, lost, log } = filling.end();
        let counts = book.counts();
        if let Some(from) = from.filter(|_| counts.live > 0 || lost > 0) {
            let way = match from {
                Start::Image { .. } => "the image and the log".into(),
                Start::Snapshot { because } => format!("the database ({because})"),
            };
            let (live, took) = (counts.live, began.elapsed().as_millis());
            let message = format!("{live} endpoints were read from {way} in {took} ms");
            let details: crate::events::Details<'_> = &[("endpoints", &live), ("lost", &lost)];
            self.events.record(Kind::EndpointsRestored, "", message, details);
        }
        if lost > 0 {
            let message = format!(
                "{lost} endpoints of the store do not fit the table: write a larger number into \
                 [store] endpoints, and restart"
            );
            self.events.record(Kind::StoreFailed, "", message, &[]);
        }
        let (store, jobs) = Storing::begin(store, self.events.clone());
        *self.lock() = Some(Desk { book, last, log, store, jobs });
        Ok(())
    }

    /// Applies a batch of changes, and has it stored.
    ///
    /// # Errors
    /// [`NoNetworks`].
    pub(crate) fn apply(&self, wanted: &[Numbered]) -> Result<AppliedBatch, NoNetworks> {
        let mut inner = self.lock();
        let desk = inner.as_mut().ok_or(NoNetworks)?;
        let mut last = desk.last;
        let number = |(wanted, revision): &Numbered| {
            let revision = revision.unwrap_or_else(|| last.saturating_add(1));
            last = last.max(revision);
            match *wanted {
                Wanted::Put(endpoint) => Change::Put { revision, endpoint },
                Wanted::Delete(key) => Change::Delete { revision, key },
            }
        };
        let changes: Vec<Change> = wanted.iter().map(number).collect();
        let (durable, is_durable) = oneshot::channel();
        let mut batch = AppliedBatch {
            applied: 0,
            repeated: 0,
            stale: 0,
            refused: vec![],
            durable: is_durable,
        };
        let (mut stored, mut stale) = (Vec::with_capacity(changes.len()), Vec::new());
        let mut changed = Vec::new();
        desk.book.apply_each(&changes, |at, outcome| {
            match outcome {
                Outcome::Applied => {
                    batch.applied += 1;
                    changed.push(changes[at].key());
                    desk.log.push(changes[at]);
                }
                Outcome::Repeated => batch.repeated += 1,
                Outcome::Stale { .. } => {
                    batch.stale += 1;
                    // The store has an opinion of its own only about keys that it has.
                    return stale.push(changes[at].revision());
                }
                Outcome::Refused(refusal) => return batch.refused.push((at, refusal)),
            }
            stored.push(stored_change(&changes[at]));
        });
        desk.last = last;
        // Whoever asks the table from now on sees the change: what the kernel had of it goes.
        self.tier.withdraw(changed);
        // In the order in which they were applied: the lock is still held. A thread that has ended
        // answers by dropping the sender.
        let _ =
            desk.jobs.send(Job { changes: stored, stale, floor: desk.book.floor(), done: durable });
        self.changed.send_replace(desk.log.end());
        Ok(batch)
    }

    /// Returns the place in the log behind everything that a client knows, who knows all changes up
    /// to a revision, or wants those from now on. The receiver says when there is more to read.
    ///
    /// # Errors
    /// There is no such place; there are no networks.
    pub(crate) fn watch(
        &self,
        after: Option<u64>,
    ) -> Result<(Place, watch::Receiver<u64>), WatchError> {
        let inner = self.lock();
        let desk = inner.as_ref().ok_or(NoNetworks)?;
        let place = match after {
            Some(after) => desk.log.after(after, desk.last)?,
            None => desk.log.now(),
        };
        Ok((place, self.changed.subscribe()))
    }

    /// Reads changes from a place in the log on, and moves the place behind them.
    ///
    /// # Errors
    /// The log has dropped them; the daemon stops.
    pub(crate) fn read_log(
        &self,
        place: &mut Place,
        most: usize,
    ) -> Result<Vec<Change>, WatchError> {
        let inner = self.lock();
        inner.as_ref().ok_or(NoNetworks)?.log.read(place, most)
    }

    /// Endpoints of a network, or of all, behind a key, in the order of their keys.
    ///
    /// # Errors
    /// [`NoNetworks`].
    pub(crate) fn page(
        &self,
        vni: Option<Vni>,
        after: Option<EndpointKey>,
        limit: usize,
    ) -> Result<EndpointPage, NoNetworks> {
        let inner = self.lock();
        let desk = inner.as_ref().ok_or(NoNetworks)?;
        let endpoints = desk.book.iter(vni, after).take(limit).collect();
        Ok(EndpointPage { endpoints, counts: desk.book.counts() })
    }

    /// Numbers for gauges; `None`: there are no virtual networks.
    pub(crate) fn counts(&self) -> Option<Counts> {
        self.lock().as_ref().map(|desk| desk.book.counts())
    }

    /// Stores what waits, writes the image of the store, and ends its thread. Blocks for the disk.
    pub(crate) fn close(&self) {
        if let Some(Desk { store, jobs, .. }) = self.lock().take() {
            drop(jobs);
            store.end();
        }
    }
}

/// A change as the store has it.
fn stored_change(change: &Change) -> store::Change {
    match change {
        Change::Put { revision, endpoint } => {
            let Endpoint { key, host, host_mac, mac } = *endpoint;
            store::Change::Put(store::Record {
                vni: key.vni.get(),
                address: key.address.into(),
                host: host.into(),
                host_mac: host_mac.map(LinkAddress::bytes),
                mac: mac.bytes(),
                revision: *revision,
            })
        }
        Change::Delete { revision, key } => store::Change::Delete(store::Deleted {
            vni: key.vni.get(),
            address: key.address.into(),
            revision: *revision,
        }),
    }
}

/// A change as the table has it; `None`: another program wrote a network's number that is none.
fn table_change(change: &store::Change) -> Option<Change> {
    let (vni, address) = change.key();
    let key = EndpointKey { vni: Vni::new(vni)?, address: Address::from(address) };
    Some(match change {
        store::Change::Put(record) => Change::Put {
            revision: record.revision,
            endpoint: Endpoint {
                key,
                host: record.host.into(),
                host_mac: record.host_mac.map(LinkAddress::new),
                mac: LinkAddress::new(record.mac),
            },
        },
        store::Change::Delete(deleted) => Change::Delete { revision: deleted.revision, key },
    })
}

#[cfg(test)]
mod tests;
