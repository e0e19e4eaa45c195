//! The switch that says whether somebody makes SAs when asked.

use std::sync::atomic::{AtomicBool, Ordering};

/// Somebody who makes SAs when asked, or nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listener {
    /// Somebody listens: packets wait for an SA.
    There,
    /// Nobody does: packets without an SA are dropped.
    Nobody,
}

/// Says whether somebody makes SAs when asked. One a process, shared by snapshots.
#[derive(Default, Debug)]
pub struct AcquireSwitch(AtomicBool);

impl AcquireSwitch {
    /// Sets whether somebody listens.
    pub fn set(&self, listener: Listener) {
        self.0.store(listener == Listener::There, Ordering::Relaxed);
    }

    /// Returns whether somebody listens.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
