//! The sweep of the connection table: each worker looks at a part of it, a few lines at a time, and
//! removes connections whose time-out has passed. No thread of its own does that, and no packet
//! depends on it: a connection that is over is not found any more.

use crate::connections::{Connections, Stripe};
use crate::worker_share::WorkerShare;

/// Time between two steps.
pub const EVERY_NS: u64 = 10_000_000;
/// Steps of a round over the worker's part: 16 seconds.
const STEPS: usize = 1600;
/// Lines of a step at most: a round over a larger part takes longer.
const MOST_LINES: usize = 1024;

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
