//! Sums of the program's counters.

use wire::shared::Shared;

use crate::layout::{Counter, KernelCounters};

impl Counter {
    /// Returns whether the frame went to Linux.
    pub const fn is_pass(self) -> bool {
        matches!(
            self,
            Counter::PassedNotToUs
                | Counter::PassedArpNd
                | Counter::PassedNotIp
                | Counter::PassedToHost
                | Counter::PassedAllowHost
                | Counter::PassedCarried
        )
    }
}

impl KernelCounters {
    /// Frames that ended so.
    pub fn of(&self, counter: Counter) -> u64 {
        self.frames[counter as usize]
    }

    /// Frames left to Linux.
    pub fn passed(&self) -> u64 {
        Counter::ALL.into_iter().filter(|counter| counter.is_pass()).map(|c| self.of(c)).sum()
    }

    /// Frames that the program has seen.
    pub fn received(&self) -> u64 {
        self.frames.iter().sum()
    }

    /// Adds one core's counters, as the kernel hands them out.
    pub(crate) fn add(&mut self, core: &[u8]) {
        for (sum, frames) in self.frames.iter_mut().zip(KernelCounters::read(core).frames) {
            *sum = sum.wrapping_add(frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_cores_are_summed() {
        let mut counters = KernelCounters::default();
        for core in 1..=2u64 {
            let bytes: Vec<u8> = (0..8u64).flat_map(|i| (core * 100 + i).to_ne_bytes()).collect();
            counters.add(&bytes);
        }
        assert_eq!(counters.of(Counter::PassedNotToUs), 300);
        assert_eq!(counters.of(Counter::MarkFailed), 314);
        assert_eq!(counters.passed(), 5 * 300 + 2 * (1 + 2 + 3 + 4));
        assert_eq!(counters.received(), 8 * 300 + 2 * 28);
    }
}
