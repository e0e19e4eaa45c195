//! Copies of a worker's counters, made a few entries at a time.

use crate::counters::{CounterRoom, Counters};
use crate::snapshot::Snapshot;

/// Most entries of a step: some microseconds.
pub const STEP_ENTRIES: usize = 2048;

/// A copy of all counters but the policies'. A step has a bounded cost, however many ports and SAs
/// exist. The entry of a port or an SA shows a moment between the first step and the last. All
/// steps belong to the same snapshot.
pub struct CounterCopy {
    lists: Counters,
}

/// The outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyProgress {
    /// More is to be copied.
    Unfinished,
    /// All is copied.
    Finished,
}

impl CounterCopy {
    /// An empty copy with room for the counters under a snapshot.
    pub fn with_room(snapshot: &Snapshot) -> CounterCopy {
        CounterCopy { lists: Counters::empty(CounterRoom::of(snapshot)) }
    }

    /// Copies the next entries.
    pub fn step(&mut self, from: &Counters) -> CopyProgress {
        let into = &mut self.lists;
        let mut left = STEP_ENTRIES;
        copy(&from.ledgers, &mut into.ledgers, &mut left);
        copy(&from.transmitted, &mut into.transmitted, &mut left);
        copy(&from.l4_checksums, &mut into.l4_checksums, &mut left);
        copy(&from.sealed, &mut into.sealed, &mut left);
        copy(&from.opened, &mut into.opened, &mut left);
        if left > 0 { CopyProgress::Finished } else { CopyProgress::Unfinished }
    }

    /// Returns the copy, once all is copied, with the plain numbers of now.
    pub fn finish(self, from: &Counters) -> Counters {
        let Counters { ledgers, transmitted, l4_checksums, sealed, opened, .. } = self.lists;
        let policy_outbound = Vec::new();
        let policy_inbound = Vec::new();
        Counters {
            ledgers,
            transmitted,
            l4_checksums,
            policy_outbound,
            policy_inbound,
            sealed,
            opened,
            ..*from
        }
    }
}

/// Goes on with the copy of a list, by as many entries as are left of the step.
fn copy<T: Copy>(from: &[T], into: &mut Vec<T>, left: &mut usize) {
    let rest = from.get(into.len()..).unwrap_or_default();
    let rest = &rest[..rest.len().min(*left)];
    into.extend_from_slice(rest);
    *left -= rest.len();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SnapshotParts;
    use crate::counters::{Ledger, Volume};

    #[test]
    fn a_copy_in_steps_is_the_counters_without_policies() {
        let snapshot = Snapshot::new(SnapshotParts::default()).unwrap();
        let volume = |packets| Volume { packets, bytes: 2 * packets };
        for sas in [0, 1, STEP_ENTRIES - 1, STEP_ENTRIES, 3 * STEP_ENTRIES + 7] {
            let mut counters = Counters::new(&snapshot);
            counters.ledgers = vec![Ledger { received: 7, ..Ledger::default() }; 40];
            counters.sealed = (0..sas as u64).map(volume).collect();
            counters.opened = (5..sas as u64 + 5).map(volume).collect();
            counters.policy_outbound = vec![volume(1)];
            counters.full_lookups = 3;
            let mut copy = CounterCopy::with_room(&snapshot);
            let mut steps = 1;
            while copy.step(&counters) == CopyProgress::Unfinished {
                steps += 1;
            }
            let entries = 2 * sas + 40 + counters.transmitted.len() + counters.l4_checksums.len();
            assert_eq!(steps, entries / STEP_ENTRIES + 1);
            counters.drops[0] = 9;
            let copied = copy.finish(&counters);
            counters.policy_outbound = Vec::new();
            counters.policy_inbound = Vec::new();
            assert_eq!(copied, counters);
        }
    }
}
