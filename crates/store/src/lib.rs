//! The durable store of an overlay's endpoints: where each tenant address lives, by revision; and
//! of the configuration's revisions ([`Revisions`]).
//!
//! ```text
//!            commit ──▶ one transaction: neighbor · journal · log ──▶ fsync ──▶ answer
//!          snapshot ◀── neighbor, tombstones too
//!             watch ◀── log, the changes of the latest commits (bounded)
//! start of a daemon ◀── image beside the database, then the log from the image's commit on
//! ```
//!
//! One trait, two stores: [`SqliteStore`], one file on the host, and [`MemoryStore`], which forgets
//! all with the process and is the oracle of the other's tests. [`conformance`] is what every store
//! must pass.
//!
//! A *revision* belongs to one change of an endpoint, and whoever sends the change numbers it. A
//! *commit number* belongs to one batch, and the store numbers it. A change applies only if its
//! revision is newer than that of the last change of its key, deletions too: a deletion leaves a
//! tombstone, so that an older put, arriving late, does not bring the endpoint back.
//!
//! All calls block for the disk. No packet waits for a store.
//!
//! Not handled here: the table that packets are looked up in, and who may send changes.

#![forbid(unsafe_code)]

pub mod conformance;
mod error;
mod files;
pub mod image;
mod memory;
mod record;
mod sqlite;

use std::net::IpAddr;

pub use error::StoreError;
pub use memory::MemoryStore;
pub use sqlite::{Durability, Options, SqliteStore, Start};

/// The highest revision of a change: databases know no larger integer.
pub const MAX_REVISION: u64 = i64::MAX as u64;

/// The place where a tenant address lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// The virtual network, RFC 7348 §5. Any 32 bits; that 24 are meant is for the caller to check.
    pub vni: u32,
    /// The tenant's address. An IPv4 address and its IPv4-mapped IPv6 address are two addresses.
    pub address: IpAddr,
    /// The host that the endpoint lives on: the tunnel's other end.
    pub host: IpAddr,
    /// The host's link-layer address, or `None` if it is to be resolved.
    pub host_mac: Option<[u8; 6]>,
    /// The endpoint's own link-layer address.
    pub mac: [u8; 6],
    /// The revision of this change, up to [`MAX_REVISION`].
    pub revision: u64,
}

/// The end of an endpoint: a tombstone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Deleted {
    /// The virtual network.
    pub vni: u32,
    /// The tenant's address.
    pub address: IpAddr,
    /// The revision of this change, up to [`MAX_REVISION`].
    pub revision: u64,
}

/// A change of one key, and the state of a key after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// The endpoint lives here from now on.
    Put(Record),
    /// The endpoint is gone.
    Delete(Deleted),
}

impl Change {
    /// Returns the key that changes: network and tenant address.
    pub fn key(&self) -> (u32, IpAddr) {
        match self {
            Change::Put(record) => (record.vni, record.address),
            Change::Delete(deleted) => (deleted.vni, deleted.address),
        }
    }

    /// Returns the revision of the change.
    pub fn revision(&self) -> u64 {
        match self {
            Change::Put(record) => record.revision,
            Change::Delete(deleted) => deleted.revision,
        }
    }
}

/// The changes of a commit that the journal lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Journal<'r> {
    /// Each change's revision, applied or not.
    Each,
    /// Each change's revision, and these: of changes that the caller knows to be too old, and that
    /// are not in the batch.
    EachAnd(&'r [u64]),
    /// None: the batch fills the store anew, and no sender waits to hear which revisions are done.
    Nothing,
}

impl<'r> Journal<'r> {
    /// Revisions that it lists and that are not those of the batch.
    pub(crate) fn others(self) -> &'r [u64] {
        match self {
            Journal::EachAnd(revisions) => revisions,
            Journal::Each | Journal::Nothing => &[],
        }
    }
}

/// One revision that is done, whether it applied or was too old.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalLine {
    /// The revision.
    pub revision: u64,
    /// The number of the latest commit that held it.
    pub done: u64,
    /// Changes with this revision that were committed.
    pub delivered: u64,
    /// Those of them that applied.
    pub applied: u64,
}

/// The bounds of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The largest batch of one commit, changes. A batch is never split: half of it would be
    /// durable before the rest. A store that has such a bound refuses a larger one
    /// ([`StoreError::BatchTooLarge`]).
    pub batch: usize,
    /// The batch from which on larger ones gain little time for each change, if their keys come in
    /// no order: a page is written once for all changes of a batch that it holds.
    pub good_batch: usize,
    /// Changes that the log holds; a commit of none counts as one change.
    pub log: usize,
    /// Lines that the journal holds. If there are more, an eighth goes, lowest revisions first.
    pub journal: usize,
}

impl Default for Limits {
    /// Any batch, a log of 262,144 changes (16 MiB), a journal of 1,048,576 lines.
    fn default() -> Limits {
        Limits { batch: usize::MAX, good_batch: 131_072, log: 1 << 18, journal: 1 << 20 }
    }
}

impl Limits {
    /// Lines that stay when the journal has more than its bound.
    pub(crate) fn journal_kept(&self) -> usize {
        self.journal - self.journal / 8
    }

    /// Refuses a batch that no store of these limits takes.
    pub(crate) fn check(&self, batch: &[Change]) -> Result<(), StoreError> {
        if batch.len() > self.batch {
            let (size, largest) = (batch.len(), self.batch);
            return Err(StoreError::BatchTooLarge { size, largest });
        }
        let revisions = batch.iter().map(Change::revision);
        match revisions.max().filter(|revision| *revision > MAX_REVISION) {
            Some(revision) => Err(StoreError::RevisionTooLarge { revision }),
            None => Ok(()),
        }
    }
}

/// A store of endpoints. One process has it open; its calls block.
pub trait Store: Send {
    /// Returns the number of the last commit: 0 before the first, then one more for each.
    fn number(&self) -> u64;

    /// Returns the bounds of this store.
    fn limits(&self) -> Limits;

    /// Commits a batch: all of it or, on an error, nothing. When it returns, the batch survives the
    /// end of the process, and of the power too if the store is on disk. Returns the commit's
    /// number; an empty batch is no commit, unless the journal lists other revisions.
    ///
    /// Changes are taken in order. One whose revision is not newer than its key's is journaled as
    /// done and does not apply. Of a key that the store does not have, the revision must be above
    /// the [floor](Store::floor).
    ///
    /// # Errors
    /// [`StoreError::BatchTooLarge`] and [`StoreError::RevisionTooLarge`]: the caller is at fault.
    /// Anything else is about the machine; [`StoreError`] says for each what to do. If the machine
    /// stops after an error, the batch may turn up whole after all: nobody was told that it would
    /// not.
    fn commit(&mut self, batch: &[Change], journal: Journal<'_>) -> Result<u64, StoreError>;

    /// Returns the revision up to which tombstones were forgotten; 0: none was.
    fn floor(&self) -> u64;

    /// Raises the floor to a revision, if it is lower, and removes the tombstones that it covers,
    /// durably. So that none of their keys is brought back, changes up to the floor of keys that
    /// the store does not have no longer apply. The log keeps the deletions that it has. No commit
    /// is made. Returns how many tombstones went.
    ///
    /// # Errors
    /// As [`Store::commit`]: nothing was forgotten.
    fn forget_up_to(&mut self, revision: u64) -> Result<u64, StoreError>;

    /// Gives `each` the latest change that applied of every key, tombstones too, once and in no
    /// particular order. Returns the number of the commit that this is the state after.
    ///
    /// # Errors
    /// The store cannot be read: what `each` was given so far is not the whole.
    fn snapshot(&mut self, each: &mut dyn FnMut(Change)) -> Result<u64, StoreError>;

    /// Gives `each` the changes that applied in the commits after `after`, in order, each with its
    /// commit's number. Returns the number of the last commit.
    ///
    /// # Errors
    /// [`StoreError::Gap`] before `each` is called: the log does not reach back that far, or the
    /// store has not come that far. The caller takes a snapshot.
    fn watch(&self, after: u64, each: &mut dyn FnMut(u64, Change)) -> Result<u64, StoreError>;

    /// Gives `each` the lines of the journal with revisions from `from` on, lowest first.
    ///
    /// # Errors
    /// The store cannot be read.
    fn journal(&self, from: u64, each: &mut dyn FnMut(JournalLine)) -> Result<(), StoreError>;
}

/// A revision of the configuration: what the operator can go back to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Revision {
    /// Its number, up to [`MAX_REVISION`].
    pub number: u64,
    /// The number of the whole revision that this one changes; `None`: this one is whole.
    pub upon: Option<u64>,
    /// Facts about it, in the words of whoever keeps it.
    pub facts: String,
    /// The whole configuration, or the change.
    pub text: String,
}

/// A line of the list of revisions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RevisionLine {
    /// The revision's number.
    pub number: u64,
    /// The number of the whole revision that it changes; `None`: it is whole.
    pub upon: Option<u64>,
    /// Facts about it.
    pub facts: String,
    /// Bytes of its text.
    pub bytes: u64,
}

/// The revisions of the configuration, in a store of their own or beside endpoints (table
/// `revisions`). Calls block for the disk.
pub trait Revisions: Send {
    /// Adds revisions, in the order of their numbers: all of them or, on an error, none. They are
    /// durable when this returns. They take the place of those with the first one's number or a
    /// higher one, which nobody was told of: numbers only rise.
    ///
    /// # Errors
    /// [`StoreError::RevisionTooLarge`]: the caller is at fault. Others as [`Store::commit`].
    fn put_revisions(&mut self, batch: &[Revision]) -> Result<(), StoreError>;

    /// Returns the list of revisions, lowest number first.
    ///
    /// # Errors
    /// The store cannot be read.
    fn revisions(&self) -> Result<Vec<RevisionLine>, StoreError>;

    /// Returns what a revision is made of: the whole one that it changes and the changes up to it,
    /// or itself alone if it is whole; nothing, if it is not there.
    ///
    /// # Errors
    /// The store cannot be read, or one of them is not what was written
    /// ([`StoreError::Corrupt`]).
    fn revision(&self, number: u64) -> Result<Vec<Revision>, StoreError>;

    /// Removes the revisions below a number, durably. Returns how many went.
    ///
    /// # Errors
    /// As [`Store::commit`]: none went.
    fn forget_revisions(&mut self, below: u64) -> Result<usize, StoreError>;
}

/// Refuses revisions that no store takes.
pub(crate) fn check_revisions(batch: &[Revision]) -> Result<(), StoreError> {
    let numbers = batch.iter().map(|revision| revision.number);
    match numbers.max().filter(|number| *number > MAX_REVISION) {
        Some(revision) => Err(StoreError::RevisionTooLarge { revision }),
        None => Ok(()),
    }
}
