//! The store that forgets all with the process: obvious maps, the oracle of the other stores.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use crate::{
    Change, Journal, JournalLine, Limits, Revision, RevisionLine, Revisions, Store, StoreError,
    check_revisions,
};

/// A store in memory. It survives nothing.
#[derive(Clone, Default, Debug)]
pub struct MemoryStore {
    limits: Limits,
    endpoints: BTreeMap<(u32, IpAddr), Change>,
    journal: BTreeMap<u64, JournalLine>,
    /// The changes of the commits after `oldest`, in order.
    log: VecDeque<Vec<Change>>,
    oldest: u64,
    floor: u64,
    /// Changes in the log, a commit of none counted as one.
    logged: usize,
    /// By number.
    revisions: BTreeMap<u64, Revision>,
}

impl MemoryStore {
    /// Makes an empty store with bounds of its own.
    pub fn with_limits(limits: Limits) -> MemoryStore {
        MemoryStore { limits, ..MemoryStore::default() }
    }

    fn note(&mut self, revision: u64, done: u64, applied: u64) {
        let new = JournalLine { revision, done, delivered: 0, applied: 0 };
        let line = self.journal.entry(revision).or_insert(new);
        line.done = done;
        line.delivered += 1;
        line.applied += applied;
    }
}

impl Store for MemoryStore {
    fn number(&self) -> u64 {
        self.oldest + self.log.len() as u64
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn commit(&mut self, batch: &[Change], journal: Journal<'_>) -> Result<u64, StoreError> {
        self.limits.check(batch)?;
        if batch.is_empty() && journal.others().is_empty() {
            return Ok(self.number());
        }
        let number = self.number() + 1;
        let mut applied = Vec::new();
        for change in batch {
            let last = self.endpoints.get(&change.key()).map(Change::revision);
            // A floor of 0 covers nothing.
            let known = last.or(Some(self.floor).filter(|floor| *floor > 0));
            let is_newer = known.is_none_or(|known| change.revision() > known);
            if is_newer {
                self.endpoints.insert(change.key(), *change);
                applied.push(*change);
            }
            if journal != Journal::Nothing {
                self.note(change.revision(), number, u64::from(is_newer));
            }
        }
        journal.others().iter().for_each(|revision| self.note(*revision, number, 0));
        self.logged += applied.len().max(1);
        self.log.push_back(applied);
        while self.logged > self.limits.log
            && let Some(changes) = self.log.pop_front()
        {
            self.logged -= changes.len().max(1);
            self.oldest += 1;
        }
        if self.journal.len() > self.limits.journal {
            while self.journal.len() > self.limits.journal_kept() {
                self.journal.pop_first();
            }
        }
        Ok(number)
    }

    fn floor(&self) -> u64 {
        self.floor
    }

    fn forget_up_to(&mut self, revision: u64) -> Result<u64, StoreError> {
        self.floor = self.floor.max(revision);
        let (floor, before) = (self.floor, self.endpoints.len());
        self.endpoints.retain(|_, change| match change {
            Change::Put(_) => true,
            Change::Delete(deleted) => deleted.revision > floor,
        });
        Ok((before - self.endpoints.len()) as u64)
    }

    fn snapshot(&mut self, each: &mut dyn FnMut(Change)) -> Result<u64, StoreError> {
        self.endpoints.values().copied().for_each(each);
        Ok(self.number())
    }

    fn watch(&self, after: u64, each: &mut dyn FnMut(u64, Change)) -> Result<u64, StoreError> {
        let (oldest, newest) = (self.oldest, self.number());
        if !(oldest..=newest).contains(&after) {
            return Err(StoreError::Gap { after, oldest, newest });
        }
        for (changes, number) in self.log.iter().zip(oldest + 1..).skip((after - oldest) as usize) {
            changes.iter().for_each(|change| each(number, *change));
        }
        Ok(newest)
    }

    fn journal(&self, from: u64, each: &mut dyn FnMut(JournalLine)) -> Result<(), StoreError> {
        self.journal.range(from..).map(|(_, line)| *line).for_each(each);
        Ok(())
    }
}

impl Revisions for MemoryStore {
    fn put_revisions(&mut self, batch: &[Revision]) -> Result<(), StoreError> {
        check_revisions(batch)?;
        if let Some(first) = batch.first() {
            self.revisions.split_off(&first.number);
        }
        self.revisions.extend(batch.iter().map(|revision| (revision.number, revision.clone())));
        Ok(())
    }

    fn revisions(&self) -> Result<Vec<RevisionLine>, StoreError> {
        let line = |revision: &Revision| {
            let Revision { number, upon, facts, text } = revision.clone();
            RevisionLine { number, upon, facts, bytes: text.len() as u64 }
        };
        Ok(self.revisions.values().map(line).collect())
    }

    fn revision(&self, number: u64) -> Result<Vec<Revision>, StoreError> {
        let Some(last) = self.revisions.get(&number) else { return Ok(Vec::new()) };
        let whole = last.upon.unwrap_or(number);
        let is_part = |of: &&Revision| of.number == whole || of.upon == Some(whole);
        Ok(self.revisions.range(..=number).map(|(_, of)| of).filter(is_part).cloned().collect())
    }

    fn forget_revisions(&mut self, below: u64) -> Result<usize, StoreError> {
        let kept = self.revisions.split_off(&below);
        Ok(std::mem::replace(&mut self.revisions, kept).len())
    }
}
