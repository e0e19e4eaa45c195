//! Reserves sequence numbers ahead of their use, for many keys with few syncs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ipsec::SequenceCounter;

use crate::durable::{KeyStatus, Reservation};
use crate::files::FileError;
use crate::witness::{self, Evidence};
use crate::{KeyState, RESERVATION_STEP, Sealing, TOP_UP_INTERVAL};

/// Keys whose records are written together. Keys that seal are looked after between two batches.
const BATCH: usize = 2048;

impl KeyState {
    /// Reserves numbers for all keys in use that need some. Returns the error of each key that has
    /// one.
    pub(crate) fn reserve_due(&mut self) -> Vec<FileError> {
        let (running, new) = self.due();
        let mut errors = self.reserve(&running);
        for batch in new.chunks(BATCH) {
            if self.topped_up.elapsed() >= TOP_UP_INTERVAL {
                // Their errors are told the next time.
                let _ = self.reserve_running();
            }
            errors.extend(self.reserve(batch));
        }
        errors
    }

    /// Reserves numbers for the keys in use that have had some, and may be sealing.
    pub(crate) fn reserve_running(&mut self) -> Vec<FileError> {
        self.topped_up = Instant::now();
        let (running, _) = self.due();
        self.reserve(&running)
    }

    /// Keys in use that need numbers: those that have had some, and new ones.
    fn due(&self) -> (Vec<u128>, Vec<u128>) {
        let in_use = self.sealing.iter().filter(|(_, sealing)| sealing.is_in_use());
        let due = in_use.filter(|(_, sealing)| sealing.wanted().is_some());
        let (running, new): (Vec<_>, Vec<_>) = due.partition(|(_, sealing)| sealing.durable > 0);
        let keys = |due: Vec<(&u128, &Sealing)>| due.into_iter().map(|(key, _)| *key).collect();
        (keys(running), keys(new))
    }

    /// Reserves numbers for keys that need some. Returns the error of each key that has one.
    ///
    /// 1. the durable records
    /// 2. the witnesses, which so never say more
    /// 3. the run record, which so sees if either goes back
    /// 4. the counters may
    pub(crate) fn reserve(&mut self, keys: &[u128]) -> Vec<FileError> {
        let wanted = |key: &u128| Some((*key, self.sealing.get(key)?.wanted()?));
        let wanted: Vec<(u128, u64)> = keys.iter().filter_map(wanted).collect();
        let mut errors = self.write_reservations(&wanted);
        let is_durable = |(key, reserved): &(u128, u64)| {
            let sealing = self.sealing.get(key).filter(|sealing| sealing.durable >= *reserved);
            sealing.map(|_| *key)
        };
        let durable: Vec<u128> = wanted.iter().filter_map(is_durable).collect();
        errors.extend(self.write_witnesses(&durable));
        let sealing = durable.iter().filter_map(|key| self.sealing.get(key));
        sealing.filter(|sealing| sealing.witness >= sealing.durable).for_each(Sealing::allow);
        errors
    }

    /// Writes durable records that reserve so many numbers.
    fn write_reservations(&mut self, wanted: &[(u128, u64)]) -> Vec<FileError> {
        let machine = self.host.machine;
        let record = |(key, reserved): &(u128, u64)| {
            let record = Reservation { machine, reserved: *reserved, standing: KeyStatus::Good };
            let sealing = self.sealing.get(key).filter(|sealing| sealing.durable < *reserved);
            sealing.map(|_| (*key, record))
        };
        let records: Vec<(u128, Reservation)> = wanted.iter().filter_map(record).collect();
        let mut errors = Vec::new();
        for ((key, record), written) in records.iter().zip(self.reservations.write_all(&records)) {
            match (written, self.sealing.get_mut(key)) {
                (Ok(()), Some(sealing)) => sealing.durable = record.reserved,
                (Ok(()), None) => {}
                (Err(error), _) => errors.push(error),
            }
        }
        errors
    }

    /// Writes into the witnesses of keys what their durable records say.
    fn write_witnesses(&mut self, keys: &[u128]) -> Vec<FileError> {
        let machine = self.host.machine;
        let mut by_file: BTreeMap<&Path, Vec<(u128, Evidence)>> = BTreeMap::new();
        for (key, sealing) in keys.iter().filter_map(|key| Some((key, self.sealing.get(key)?))) {
            if sealing.witness < sealing.durable {
                let evidence = Evidence { machine, reserved: sealing.durable };
                by_file.entry(&sealing.key_file).or_default().push((*key, evidence));
            }
        }
        let written = witness::write_all(&by_file);
        let entries: Vec<Vec<(u128, Evidence)>> = by_file.into_values().collect();
        let mut errors = Vec::new();
        for (entries, written) in entries.into_iter().zip(written) {
            for (key, evidence) in entries {
                match (&written, self.sealing.get_mut(&key)) {
                    (Ok(()), Some(sealing)) => sealing.witness = evidence.reserved,
                    (Ok(()), None) => {}
                    (Err(error), _) => errors.push(error.clone()),
                }
            }
        }
        errors
    }
}

impl Sealing {
    /// The numbers that are to be reserved now, so that more than half a step of them is ahead of
    /// use, up to the limit. `None`: enough are.
    fn wanted(&self) -> Option<u64> {
        let last = self.slot.last().load(Ordering::Relaxed);
        let in_use = self.counters.iter().filter(|counter| Arc::strong_count(counter) > 1);
        let limit = in_use.map(|counter| counter.numbers().limit()).max().unwrap_or(0);
        let least = last.saturating_add(RESERVATION_STEP / 2).min(limit);
        let has = |counter: &Arc<SequenceCounter>| {
            counter.reserved() >= least.min(counter.numbers().limit())
        };
        if self.counters.iter().all(has) {
            return None;
        }
        let is_durable = self.durable >= least;
        let further = last.saturating_add(RESERVATION_STEP).min(limit);
        Some(if is_durable { self.durable } else { further })
    }

    /// Lets the counters use the numbers that both records reserve.
    fn allow(&self) {
        self.slot.reserved().store(self.durable, Ordering::Relaxed);
        self.counters.iter().for_each(|counter| counter.reserve(self.durable));
    }
}
