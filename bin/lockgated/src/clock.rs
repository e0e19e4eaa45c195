//! The clock of the packet path: nanoseconds since the process first asked for it, the same for all
//! workers and for the control thread. It never goes back.

use std::sync::LazyLock;
use std::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The moment from which the clock counts.
pub(crate) fn start() -> Instant {
    *START
}

/// Seconds since the start, which the time-outs of connections go by.
pub(crate) fn now_s() -> u32 {
    START.elapsed().as_secs() as u32
}

/// Nanoseconds since the start.
pub(crate) fn now_ns() -> u64 {
    START.elapsed().as_nanos() as u64
}
