//! The switch that says whether a key manager listens for requests to make SAs.

use std::sync::atomic::{AtomicBool, Ordering};

/// Presence of a key manager: a program that agrees on keys with peers and makes SAs on request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyManager {
    /// One listens: packets without an SA wait for one.
    Present,
    /// None listens: packets without an SA are dropped.
    Absent,
}

/// Says whether a key manager listens. One for each process, shared by snapshots.
#[derive(Default, Debug)]
pub struct AcquireSwitch(AtomicBool);

impl AcquireSwitch {
    /// Records the presence of a key manager.
    pub fn set(&self, key_manager: KeyManager) {
        self.0.store(key_manager == KeyManager::Present, Ordering::Relaxed);
    }

    /// Returns true while a key manager is present.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
