//! The sweep of the connection table: each worker reads a part of the table, some lines at a time,
//! and removes expired connections. No packet depends on the sweep: lookups ignore expired
//! connections, and an insertion sweeps some lines before its refusal.

use crate::connections::{Connections, Stripe};
use crate::worker_share::WorkerShare;

/// Time between two steps.
pub const EVERY_NS: u64 = 2_500_000;
/// Steps of a round over the worker's part: 16 seconds.
const STEPS: usize = 6400;
/// Lines of a step at most, 256 KiB. The largest table of one worker takes 8192 such steps: 21
/// seconds.
const MOST_LINES: usize = 4096;
/// Lines of the largest table: two for each of 16 Mi connections.
const MOST_LINES_OF_TABLE: usize = 32 << 20;
const _: () = assert!(MOST_LINES_OF_TABLE / MOST_LINES * EVERY_NS as usize <= 21_000_000_000);

/// Lines of a table at which one of `workers` workers looks in a step.
pub const fn lines_a_step(lines: usize, workers: usize) -> usize {
    let step = (lines / workers).div_ceil(STEPS);
    if step < MOST_LINES { step } else { MOST_LINES }
}

/// A worker's place in the sweep.
#[derive(Default)]
pub(crate) struct Sweep {
    /// The part, with what it is a part of: lines of the table, and the worker's share.
    stripe: Option<(Stripe, usize, WorkerShare)>,
    next_ns: u64,
}

impl Sweep {
    /// Makes a step if it is time for one.
    #[inline]
    pub(crate) fn step(&mut self, connections: &Connections, share: WorkerShare, now_ns: u64) {
        if now_ns >= self.next_ns {
            self.next_ns = now_ns + EVERY_NS;
            self.look(connections, share, (now_ns / 1_000_000_000) as u32);
        }
    }

    #[cold]
    fn look(&mut self, connections: &Connections, share: WorkerShare, now_s: u32) {
        let lines = connections.lines();
        let is_known = |of: &&mut (Stripe, usize, WorkerShare)| (of.1, of.2) == (lines, share);
        if self.stripe.as_mut().filter(is_known).is_none() {
            let (worker, workers) = (share.worker as usize, share.workers as usize);
            self.stripe = Some((connections.stripe(worker, workers), lines, share));
        }
        let Some((stripe, ..)) = &mut self.stripe else { return };
        connections.sweep(stripe, lines_a_step(lines, share.workers as usize), now_s);
    }
}

#[cfg(test)]
mod tests {
    use policy::connection::{Segment, Shown, Timeouts};
    use wire::{Family, Flow, Upper};

    use super::*;
    use crate::connections::{Judgement, Key, Limits, Zone};

    #[test]
    fn one_worker_goes_round_the_largest_table_in_21_seconds() {
        for lines in [8, 1 << 19, 10 << 20, MOST_LINES_OF_TABLE] {
            let step = lines_a_step(lines, 1);
            assert!(step <= MOST_LINES, "a step is bounded");
            let round_ns = lines.div_ceil(step) as u64 * EVERY_NS;
            assert!(round_ns <= 21_000_000_000, "{lines} lines take {round_ns} ns");
        }
    }

    #[test]
    fn two_workers_sweep_the_whole_table_in_a_round() {
        let connections = Connections::new(Limits::of(4096), Timeouts::default(), &[7; 32]);
        let syn = Shown::Tcp(Segment::Syn);
        for source in 0..500 {
            let upper = Upper::Ports { source: 1000, destination: 80 };
            let (family, protocol, destination) = (Family::V4, 6, 0x0a00_0001);
            let flow = Flow { family, source, destination, protocol, upper, opens: true };
            let key = Key::of(&flow, Zone { attachment: 1, vni: 0 }).unwrap();
            connections.insert(&key, syn, Judgement::UNKNOWN, 100);
        }
        assert_eq!(connections.counts().lines, 500);
        let mut sweeps = [Sweep::default(), Sweep::default()];
        let mut round = |first_s: u64| {
            for step in 0..2 * STEPS as u64 {
                for (worker, sweep) in (0..).zip(&mut sweeps) {
                    let share = WorkerShare { worker, workers: 2 };
                    sweep.step(&connections, share, first_s * 1_000_000_000 + step * EVERY_NS / 2);
                }
            }
            connections.counts().lines
        };
        assert_eq!(round(105), 500, "none is over before its time-out");
        assert_eq!(round(200), 0);
    }
}
