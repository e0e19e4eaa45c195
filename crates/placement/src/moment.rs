//! A moment by two clocks: the kernel's, by which tables are written and programs count, and the
//! walk's, by which connections end.

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// A moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub kernel_ns: u64,
    /// Nanoseconds by the clock of the walk.
    pub walk_ns: u64,
}

impl Moment {
    /// The second by the clock of the walk.
    pub fn walk_s(self) -> u32 {
        (self.walk_ns / SECOND_NS) as u32
    }

    /// The second, by the clock of the walk, of an earlier moment by the kernel's.
    pub(crate) fn walk_s_of(self, kernel_ns: u64) -> u32 {
        let ago_ns = self.kernel_ns.saturating_sub(kernel_ns);
        (self.walk_ns.saturating_sub(ago_ns) / SECOND_NS) as u32
    }
}
