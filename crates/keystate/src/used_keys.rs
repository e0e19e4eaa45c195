//! Keys that are put while the gateway runs, each taken once.

use std::collections::HashSet;

use ipsec::Fingerprint;

use crate::clocks::Now;
use crate::durable::Found;
use crate::error::{KeyUsed, Once};
use crate::files::FileError;
use crate::key_table::first_half;
use crate::put_keys::{AddError, PutBefore};
use crate::words::Subject;
use crate::{KeyCounts, KeyOrigin, KeyState, KeyUse, number};

impl KeyState {
    /// Uses a key that is put while the gateway runs: once, over every SIGKILL, restart and boot.
    /// The key itself is not stored. Cost: a write and a sync with [`KeyOrigin::AnyTime`], a
    /// write with [`KeyOrigin::NamedRun`], else none.
    ///
    /// # Errors
    /// [`KeyUsed`]: the key was met before, or that cannot be known or written down.
    pub fn use_once(
        &mut self,
        fingerprint: Fingerprint,
        origin: KeyOrigin,
    ) -> Result<Once, KeyUsed> {
        let all = self.use_all_once(&[fingerprint], origin)?;
        Ok(all.into_iter().next().expect("one key, one proof"))
    }

    /// Uses several keys as [`KeyState::use_once`] does: all of them or, after an error, none.
    /// Returns one proof for each key, in their order.
    ///
    /// # Errors
    /// [`KeyUsed`] of the first key that has one.
    pub fn use_all_once(
        &mut self,
        fingerprints: &[Fingerprint],
        origin: KeyOrigin,
    ) -> Result<Vec<Once>, KeyUsed> {
        self.use_all_once_beside(fingerprints, &[], origin)
    }

    /// Uses keys as [`KeyState::use_all_once`] does, beside SAs of the same request that run. With
    /// [`KeyOrigin::AnyTime`] the keys of the running SAs are remembered for ever as well: a person
    /// may repeat the request after a boot.
    ///
    /// # Errors
    /// As [`KeyState::use_all_once`].
    pub fn use_all_once_beside(
        &mut self,
        fresh: &[Fingerprint],
        running: &[Fingerprint],
        origin: KeyOrigin,
    ) -> Result<Vec<Once>, KeyUsed> {
        self.ike_keys.sweep_part();
        let mut keys = Vec::with_capacity(fresh.len() + running.len());
        let mut met = HashSet::with_capacity(fresh.len() + running.len());
        for fingerprint in fresh.iter().copied() {
            let key = number(fingerprint);
            match self.put_before(key) {
                PutBefore::Yes => return Err(KeyUsed::PutBefore { fingerprint }),
                PutBefore::Unknown(path) if origin == KeyOrigin::AnyTime => {
                    return Err(KeyUsed::Damaged { path });
                }
                PutBefore::UnknownUntilBoot(path) if origin == KeyOrigin::AnyTime => {
                    return Err(KeyUsed::DamagedUntilBoot { path });
                }
                // Keys with the same first half count as one, as in the records.
                _ if !met.insert(first_half(key)) => {
                    return Err(KeyUsed::PutBefore { fingerprint });
                }
                _ => {}
            }
            if self.is_file_key(key)? {
                return Err(KeyUsed::FileKey { fingerprint });
            }
            keys.push(key);
        }
        if origin == KeyOrigin::AnyTime {
            let running = running.iter().map(|fingerprint| number(*fingerprint));
            let unrecorded = running.filter(|key| self.put_keys.knows(*key) != PutBefore::Yes);
            keys.extend(unrecorded.filter(|key| met.insert(first_half(*key))));
        }
        self.remember(&keys, origin)?;
        Ok(fresh.iter().map(|fingerprint| Once { fingerprint: *fingerprint }).collect())
    }

    /// Remembers new keys for as long as their origin asks for.
    fn remember(&mut self, keys: &[u128], origin: KeyOrigin) -> Result<(), KeyUsed> {
        if keys.is_empty() {
            return Ok(());
        }
        match origin {
            KeyOrigin::AnyTime => self.put_keys.add(keys).map_err(|error| match error {
                AddError::Full => KeyUsed::PutKeysFull,
                AddError::Damaged(path) => KeyUsed::Damaged { path },
                AddError::File(error) => KeyUsed::File(error),
            }),
            KeyOrigin::NamedRun => self.named_keys.add(keys).map_err(|error| match error {
                AddError::Full => KeyUsed::NamedKeysFull,
                AddError::Damaged(path) => KeyUsed::DamagedUntilBoot { path },
                AddError::File(error) => KeyUsed::File(error),
            }),
            KeyOrigin::Ike if !self.ike_keys.make_room(keys.len()) => Err(KeyUsed::IkeKeysFull),
            KeyOrigin::Ike => {
                keys.iter().for_each(|key| self.ike_keys.add(*key));
                Ok(())
            }
        }
    }

    /// Returns whether a key was put before, as far as is remembered.
    pub(crate) fn put_before(&self, key: u128) -> PutBefore {
        if self.ike_keys.knows(key) {
            return PutBefore::Yes;
        }
        let answers =
            [self.put_keys.knows(key), self.named_keys.knows(key), self.earlier_keys.knows(key)];
        if answers.contains(&PutBefore::Yes) {
            return PutBefore::Yes;
        }
        let unknown = answers.into_iter().find(|answer| *answer != PutBefore::No);
        unknown.unwrap_or(PutBefore::No)
    }

    /// Returns the number of keys in each memory of used keys.
    pub fn key_counts(&self) -> KeyCounts {
        KeyCounts {
            put: self.put_keys.count(),
            named: self.named_keys.count(),
            ike: self.ike_keys.count(),
        }
    }

    /// Returns whether [`KeyState::forget_ended_keys`] is due.
    pub fn is_sweep_due(&self) -> bool {
        self.ike_keys.is_sweep_due(Now::of(&*self.clocks).boot_ns)
    }

    /// Forgets keys of IKE whose SAs ended some minutes ago. `running`: the keys of all SAs that
    /// run.
    pub fn forget_ended_keys(&mut self, running: impl Iterator<Item = Fingerprint>) {
        self.ike_keys.sweep(running.map(number), Now::of(&*self.clocks).boot_ns);
    }

    /// Returns true if any record knows a key from a file, in either use.
    fn is_file_key(&self, key: u128) -> Result<bool, FileError> {
        let uses = [KeyUse::Seals, KeyUse::Opens];
        let in_run = uses
            .iter()
            .any(|usage| self.run.find(Subject { fingerprint: key, usage: *usage }).is_some());
        Ok(in_run
            || self.edges.of(key).is_some()
            || self.unwritten.contains_key(&key)
            || self.reservations.read(key)? != Found::Missing)
    }
}
