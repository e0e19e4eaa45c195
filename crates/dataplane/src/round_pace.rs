//! The pace of a hand around a list: each entry comes up once a round, and a step visits a bounded
//! number of entries.

/// Progress of a hand within a round.
#[derive(Default)]
pub(crate) struct RoundPace {
    /// Time of the last finished visit, nanoseconds.
    done_ns: u64,
    is_behind: bool,
}

/// Bounds of a hand.
#[derive(Clone, Copy)]
pub(crate) struct RoundBounds {
    /// Time of a round, nanoseconds.
    pub(crate) round_ns: u64,
    /// Most visits of a step.
    pub(crate) step: u64,
}

impl RoundPace {
    /// Returns the number of entries to visit now, among `count`: at most a step. Each entry comes
    /// up within a round, if steps follow each other while the hand [is behind](Self::is_behind).
    pub(crate) fn step(&mut self, count: u64, now_ns: u64, bounds: RoundBounds) -> u64 {
        let RoundBounds { round_ns, step } = bounds;
        if count == 0 {
            self.rest(now_ns);
            return 0;
        }
        self.done_ns = self.done_ns.max(now_ns.saturating_sub(round_ns));
        let elapsed_ns = now_ns.saturating_sub(self.done_ns);
        let due = count.saturating_mul(elapsed_ns) / round_ns;
        let visits = due.min(step);
        self.done_ns += visits.saturating_mul(round_ns) / count;
        self.is_behind = due > visits;
        visits
    }

    /// Rests at a time: nothing is due before.
    #[inline]
    pub(crate) fn rest(&mut self, now_ns: u64) {
        (self.done_ns, self.is_behind) = (now_ns, false);
    }

    /// Returns whether the last step left due visits over.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: RoundBounds = RoundBounds { round_ns: 1_000_000_000, step: 64 };

    proptest! {
        /// A hand steps again while behind. Then every entry comes up, however rare the turns are,
        /// and no step exceeds the bound.
        #[test]
        fn every_entry_comes_up_once_a_round(
            count in prop_oneof![1u64..4, 63u64..66, Just(100_000)],
            gap_ns in prop_oneof![Just(1_000_000u64), Just(250_000_000), Just(999_999_999)],
        ) {
            let (mut pace, mut visited, mut now_ns) = (RoundPace::default(), 0u64, 0u64);
            while now_ns < 3 * BOUNDS.round_ns {
                now_ns += gap_ns;
                loop {
                    let visits = pace.step(count, now_ns, BOUNDS);
                    prop_assert!(visits <= BOUNDS.step);
                    visited += visits;
                    if !pace.is_behind() {
                        break;
                    }
                }
                let expected = u128::from(count) * u128::from(now_ns) / 1_000_000_000;
                let steps = u128::from(now_ns / gap_ns);
                // The pace rounds down, so a few entries come up early.
                let early = expected / 64 / 1000 + steps + 1;
                prop_assert!(u128::from(visited) + 1 >= expected, "{visited} of {expected}");
                prop_assert!(u128::from(visited) <= expected + early, "{visited} of {expected}");
            }
        }
    }

    #[test]
    fn a_hand_that_rested_owes_one_round_and_no_more() {
        let mut pace = RoundPace::default();
        let now_ns = 3_600 * BOUNDS.round_ns;
        assert_eq!(pace.step(100, now_ns, BOUNDS), 64);
        assert!(pace.is_behind());
        assert_eq!(pace.step(100, now_ns, BOUNDS), 36);
        assert!(!pace.is_behind());
        assert_eq!(pace.step(100, now_ns, BOUNDS), 0);
    }

    #[test]
    fn an_empty_list_is_never_behind_and_a_clock_at_its_end_does_not_overflow() {
        let mut pace = RoundPace::default();
        assert_eq!(pace.step(0, 7, BOUNDS), 0);
        assert_eq!(pace.step(u32::MAX.into(), u64::MAX, BOUNDS), 64);
        assert_eq!((pace.step(0, u64::MAX, BOUNDS), pace.is_behind()), (0, false));
        assert_eq!(pace.step(5, 0, BOUNDS), 0, "a clock that goes back");
    }
}
