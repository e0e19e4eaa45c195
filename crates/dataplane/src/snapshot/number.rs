//! Numbers of snapshots.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of a snapshot. The process gives each number once. A pointer could name another snapshot
/// in freed and reused memory; a number cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SnapshotNumber(u64);

impl SnapshotNumber {
    /// Returns an unused number.
    pub(super) fn next() -> SnapshotNumber {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SnapshotNumber(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
