//! The two clocks that ages of keys are counted by. Tests set their own.

use std::time::SystemTime;

/// A clock that counts from the boot, and one that outlives it.
pub trait Clocks: Send {
    /// Nanoseconds since the boot, time asleep included (CLOCK_BOOTTIME). Never goes back.
    fn boot_ns(&self) -> u64;
    /// The time of day. Somebody may set it, back too.
    fn wall(&self) -> SystemTime;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClocks;

impl Clocks for SystemClocks {
    fn boot_ns(&self) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes to `time`, which outlives the call. It fails only for a clock
        // that the kernel does not have; this one came with Linux 2.6.39. Threat: another pointer
        // would be written to.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// Both clocks at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Now {
    pub(crate) boot_ns: u64,
    /// Seconds since 1970; negative before it.
    pub(crate) wall_seconds: i64,
}

impl Now {
    pub(crate) fn of(clocks: &dyn Clocks) -> Now {
        let seconds = |time: std::time::Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let wall_seconds = match clocks.wall().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => seconds(since),
            Err(before) => -seconds(before.duration()),
        };
        Now { boot_ns: clocks.boot_ns(), wall_seconds }
    }
}
