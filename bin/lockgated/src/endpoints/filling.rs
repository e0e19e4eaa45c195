//! Fills the table from the store when the daemon starts.

use std::collections::HashSet;
use std::net::IpAddr;

use endpoints::{Book, Change, Outcome};
use store::{Store, StoreError};

use super::log::Log;
use super::table_change;

/// Changes that are applied at once.
const TOGETHER: usize = 4096;

/// A table that is filled from a store.
pub(super) struct Filling<'b> {
    book: &'b mut Book,
    waiting: Vec<Change>,
    /// Applied when all puts are: a book that has too many deletions to remember takes old puts for
    /// late ones.
    deletes: Vec<Change>,
    log: Log,
    /// Keys whose latest change is in the log.
    in_log: HashSet<(u32, IpAddr)>,
    last: u64,
    lost: u64,
}

/// The result.
pub(super) struct Filled {
    /// The highest revision there was.
    pub(super) last: u64,
    /// Endpoints for which there is no room.
    pub(super) lost: u64,
    /// The latest changes.
    pub(super) log: Log,
}

impl<'b> Filling<'b> {
    pub(super) fn new(book: &'b mut Book) -> Filling<'b> {
        let (waiting, deletes, log) = (Vec::new(), Vec::new(), Log::default());
        Filling { book, waiting, deletes, log, in_log: HashSet::new(), last: 0, lost: 0 }
    }

    /// Reads the latest changes, so that clients may go on watching where they were before the
    /// restart. Comes before the first [`take`](Filling::take).
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) fn read_log(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        let log = &mut self.log;
        let mut take = |_: u64, change: store::Change| {
            if let Some(change) = table_change(&change) {
                log.push(change);
            }
        };
        match store.watch(0, &mut take) {
            Err(StoreError::Gap { oldest, .. }) => store.watch(oldest, &mut take)?,
            read => read?,
        };
        let keys = self.log.keys().map(|key| (key.vni.get(), key.address.into()));
        self.in_log = keys.collect();
        Ok(())
    }

    pub(super) fn take(&mut self, change: &store::Change) {
        self.last = self.last.max(change.revision());
        if !self.in_log.contains(&change.key()) {
            self.log.note_missing(change.revision());
        }
        match table_change(change) {
            Some(change @ Change::Put { .. }) => self.waiting.push(change),
            Some(change @ Change::Delete { .. }) => self.deletes.push(change),
            None => self.lost += 1,
        }
        if self.waiting.len() == TOGETHER {
            self.flush();
        }
    }

    /// Applies the rest, and then takes over the floor of the store: of keys that are not there,
    /// changes up to it do not apply.
    pub(super) fn forget_up_to(&mut self, floor: u64) {
        self.flush_all();
        self.book.forget_up_to(floor);
        self.last = self.last.max(floor);
        if floor > 0 {
            self.log.note_missing(floor);
        }
    }

    fn flush_all(&mut self) {
        self.flush();
        self.waiting = std::mem::take(&mut self.deletes);
        self.flush();
    }

    fn flush(&mut self) {
        let mut lost = 0;
        self.book.apply_each(&self.waiting, |_, outcome| {
            lost += u64::from(matches!(outcome, Outcome::Refused(_)));
        });
        self.lost += lost;
        self.waiting.clear();
    }

    /// Applies the rest.
    pub(super) fn end(mut self) -> Filled {
        self.flush_all();
        Filled { last: self.last, lost: self.lost, log: self.log }
    }
}
