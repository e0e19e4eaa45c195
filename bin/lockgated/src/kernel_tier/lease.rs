//! The lease of the kernel tier, which a daemon that hangs does not renew (I10).

use std::time::Duration;

use placement::Moment;

use crate::clock;

/// Time from the last sign of life of all workers to the moment from which the kernel answers
/// nothing.
const LEASE: Duration = Duration::from_secs(2);

/// Signs of life of the workers.
#[derive(Default)]
pub(crate) struct Pulse {
    /// Turns of each worker, and the moment at which they had last moved.
    workers: Vec<(u64, u64)>,
}

impl Pulse {
    /// Takes the turns of each worker at a moment; returns the end of the lease: a while after the
    /// moment at which the last worker to turn was seen to have turned.
    pub(crate) fn observe(&mut self, now_ns: u64, turns: impl Iterator<Item = u64>) -> u64 {
        let turns: Vec<u64> = turns.collect();
        self.workers.resize(turns.len(), (u64::MAX, 0));
        for ((known, moved_ns), turns) in self.workers.iter_mut().zip(turns) {
            if *known != turns {
                (*known, *moved_ns) = (turns, now_ns);
            }
        }
        let oldest = self.workers.iter().map(|(_, moved_ns)| *moved_ns).min();
        oldest.map_or(0, |oldest| oldest + LEASE.as_nanos() as u64)
    }
}

/// The kernel's clock, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// This moment, by the kernel's clock and by the walk's.
pub(super) fn now() -> Moment {
    Moment { kernel_ns: now_ns(), walk_ns: clock::now_ns() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_that_hangs_ends_the_lease() {
        let lease = LEASE.as_nanos() as u64;
        let mut pulse = Pulse::default();
        assert_eq!(pulse.observe(100, [1, 7].into_iter()), 100 + lease);
        assert_eq!(pulse.observe(200, [2, 8].into_iter()), 200 + lease);
        // The second hangs.
        assert_eq!(pulse.observe(300, [3, 8].into_iter()), 200 + lease);
        assert_eq!(pulse.observe(400, [4, 8].into_iter()), 200 + lease);
        assert_eq!(pulse.observe(500, [5, 9].into_iter()), 500 + lease);
        assert_eq!(pulse.observe(600, [].into_iter()), 0);
    }
}
