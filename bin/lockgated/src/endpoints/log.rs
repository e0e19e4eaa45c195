//! The latest changes of endpoints in the order in which they were applied, for clients that watch.
//!
//! All watchers read one log, each from its own place on. A slow watcher so takes no memory: when
//! the log has dropped what it would read next, the watcher is cut off.
//!
//! # Resuming
//!
//! Whoever sends changes numbers them, so that revisions may come in any order. A client that knows
//! everything up to revision R resumes at the first change that is newer than R *or* was applied
//! after R: it may read changes twice, and misses none. That is safe as long as everything that
//! the log has dropped is older than R.

use std::collections::VecDeque;

use endpoints::{Change, EndpointKey};

/// Changes that the log holds: 6 MiB.
pub(super) const MAX: usize = 65_536;

/// The reason why a client cannot watch, or go on watching.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum WatchError {
    /// There is no table.
    #[error(transparent)]
    NoNetworks(#[from] super::NoNetworks),
    /// Changes after that revision have left the log.
    #[error(
        "revision {after} is too old: the log has dropped changes up to revision {dropped}. Take \
         the whole table first: watch without a revision, then read all endpoints"
    )]
    Compacted {
        /// The revision that the client knows.
        after: u64,
        /// The highest revision that has left the log.
        dropped: u64,
    },
    /// No change has come that far: the store was lost, or it is another daemon's revision.
    #[error(
        "revision {after} has not come yet, the last one is {last}. Take the whole table first: \
         watch without a revision, then read all endpoints"
    )]
    Ahead {
        /// The revision that the client knows.
        after: u64,
        /// The highest revision there was.
        last: u64,
    },
    /// The log has dropped what the client would read next.
    #[error("you read too slowly: watch again after revision {after}")]
    TooSlow {
        /// The revision of the last change that the client was given.
        after: u64,
    },
}

/// The changes, oldest first.
#[derive(Default)]
pub(super) struct Log {
    changes: VecDeque<Change>,
    /// Changes that were dropped from the front.
    begin: u64,
    dropped: Dropped,
}

/// The changes that are not in the log, or not any more.
#[derive(Clone, Copy, Default)]
struct Dropped {
    /// The highest revision.
    highest: u64,
    /// After the change of the highest revision another one was dropped: a client that knows the
    /// highest need not know that one.
    has_late: bool,
}

/// A place in the log: that of the change which a watcher reads next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    at: u64,
    /// The revision after which the watcher resumes if it is cut off here.
    pub(crate) resume: u64,
}

impl Log {
    /// Adds a change that was applied.
    pub(super) fn push(&mut self, change: Change) {
        if self.changes.len() == MAX
            && let Some(oldest) = self.changes.pop_front()
        {
            self.begin += 1;
            let revision = oldest.revision();
            let highest = self.dropped.highest;
            self.dropped =
                Dropped { highest: highest.max(revision), has_late: revision <= highest };
        }
        self.changes.push_back(change);
    }

    /// Notes a change of before the log: in which order it came with others is not known.
    pub(super) fn note_missing(&mut self, revision: u64) {
        let highest = self.dropped.highest.max(revision);
        self.dropped = Dropped { highest, has_late: highest > 0 };
    }

    /// The number of changes that were ever added.
    pub(super) fn end(&self) -> u64 {
        self.begin + self.changes.len() as u64
    }

    /// The keys that it has changes of.
    pub(super) fn keys(&self) -> impl Iterator<Item = EndpointKey> {
        self.changes.iter().map(Change::key)
    }

    /// The place behind the last change.
    pub(super) fn now(&self) -> Place {
        let last = self.changes.back().map(Change::revision);
        Place { at: self.end(), resume: last.unwrap_or(self.dropped.highest) }
    }

    /// The place where a client resumes that knows everything up to a revision. `last` is the
    /// highest revision there was.
    pub(super) fn after(&self, after: u64, last: u64) -> Result<Place, WatchError> {
        let Dropped { highest, has_late } = self.dropped;
        if after > last.max(highest) {
            return Err(WatchError::Ahead { after, last: last.max(highest) });
        }
        if after < highest || (after == highest && has_late) {
            return Err(WatchError::Compacted { after, dropped: highest });
        }
        let revisions = || self.changes.iter().map(Change::revision);
        let newer = revisions().position(|revision| revision > after);
        let behind = match after == highest {
            // It was the last that was dropped.
            true => Some(0),
            false => revisions().position(|revision| revision == after).map(|place| place + 1),
        };
        let place = [newer, behind].into_iter().flatten().min().unwrap_or(self.changes.len());
        Ok(Place { at: self.begin + place as u64, resume: after })
    }

    /// Reads some changes from a place on, and moves the place behind them.
    pub(super) fn read(&self, place: &mut Place, most: usize) -> Result<Vec<Change>, WatchError> {
        let Some(skipped) = place.at.checked_sub(self.begin) else {
            return Err(WatchError::TooSlow { after: place.resume });
        };
        let read = self.changes.iter().skip(skipped as usize).take(most);
        let read: Vec<Change> = read.copied().collect();
        place.at += read.len() as u64;
        place.resume = read.last().map_or(place.resume, Change::revision);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Address, Vni};

    fn change(revision: u64) -> Change {
        let address = Address::v4(0x0a00_0000 + revision as u32);
        Change::Delete { revision, key: EndpointKey { vni: Vni::new(7).unwrap(), address } }
    }

    fn log(revisions: impl IntoIterator<Item = u64>) -> Log {
        let mut log = Log::default();
        revisions.into_iter().for_each(|revision| log.push(change(revision)));
        log
    }

    fn after(log: &Log, revision: u64) -> Result<Vec<u64>, WatchError> {
        let mut place = log.after(revision, 1_000_000)?;
        let read = log.read(&mut place, usize::MAX)?;
        Ok(read.iter().map(Change::revision).collect())
    }

    #[test]
    fn a_client_resumes_behind_what_it_knows() {
        // AX-32: 498 is missing, so that everything up to 497 is known.
        let log = log([496, 497, 498, 499, 500]);
        assert_eq!(after(&log, 497), Ok(vec![498, 499, 500]));
        assert_eq!(after(&log, 500), Ok(vec![]));
        assert_eq!(after(&log, 0), Ok(vec![496, 497, 498, 499, 500]));
    }

    #[test]
    fn changes_that_overtook_each_other_are_all_sent() {
        let log = log([499, 500, 496, 497, 497]);
        assert_eq!(after(&log, 500), Ok(vec![496, 497, 497]), "they came after 500");
        assert_eq!(after(&log, 498), Ok(vec![499, 500, 496, 497, 497]));
        assert_eq!(after(&log, 497), Ok(vec![499, 500, 496, 497, 497]));
    }

    #[test]
    fn what_the_log_has_dropped_is_named() {
        let many = MAX as u64;
        let mut log = log(1..=many + 2);
        assert_eq!(after(&log, 1), Err(WatchError::Compacted { after: 1, dropped: 2 }));
        assert_eq!(after(&log, 2).unwrap().first(), Some(&3));
        log.push(change(many + 3));
        assert_eq!(after(&log, 2), Err(WatchError::Compacted { after: 2, dropped: 3 }));
        let ahead = log.after(many + 4, many + 3);
        assert_eq!(ahead, Err(WatchError::Ahead { after: many + 4, last: many + 3 }));
    }

    #[test]
    fn whoever_knows_the_highest_revision_that_was_dropped_may_not_know_a_late_one() {
        let mut log = log([9, 5]);
        (10..10 + MAX as u64 - 1).for_each(|revision| log.push(change(revision)));
        assert_eq!(after(&log, 9).unwrap().first(), Some(&5));
        log.push(change(1_000_000));
        assert_eq!(after(&log, 9), Err(WatchError::Compacted { after: 9, dropped: 9 }));
        assert_eq!(after(&log, 10).unwrap().first(), Some(&11));
    }

    #[test]
    fn a_watcher_that_the_log_left_behind_is_cut_off() {
        let mut log = log([1, 2]);
        let mut place = log.after(0, 2).unwrap();
        assert_eq!(log.read(&mut place, 1).unwrap().len(), 1);
        (3..3 + MAX as u64).for_each(|revision| log.push(change(revision)));
        assert_eq!(log.read(&mut place, 1), Err(WatchError::TooSlow { after: 1 }));
        let mut now = log.now();
        assert_eq!(log.read(&mut now, 9), Ok(vec![]));
        log.push(change(1_000_000));
        assert_eq!(log.read(&mut now, 9), Ok(vec![change(1_000_000)]));
    }
}
