//! Decides when a worker's table is too small for its flows.
//!
//! A table begins small and is replaced by a larger, empty one while flows push each other out of
//! it, up to the configured size. Nothing here makes or replaces a table: the control thread does,
//! beside the worker. A table never becomes smaller.
//!
//! It does not grow in place: of its entries a quarter would keep their places, and the others
//! would stay as entries that are never found and count as valid.
//!
//! The measure is entries that gave way, not entries that are there. Nothing ages: each flow ever
//! seen leaves an entry, so that every table fills up in time, and as long as few flows come anew
//! that does no harm.

use std::time::Duration;

/// IPv4 entries of a worker's first table: 2 MiB, one huge page.
pub const FIRST_ENTRIES: usize = 1 << 16;
/// Factor from a table's entries to those of the next larger one.
const STEP: usize = 4;
/// A table is too small if within a second more than its entries divided by this gave way: an
/// entry then stays for less than a minute.
const STAYS_SECONDS: u64 = 64;

/// A worker's table, and its use since it was looked at last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Room of the table, in IPv4 entries.
    pub entries: usize,
    /// Room that it may have at most, in IPv4 entries.
    pub most: usize,
    /// Rise of [`CacheCounters::crowded_out`](super::CacheCounters::crowded_out).
    pub crowded_out: u64,
    /// Time in which the counter rose.
    pub over: Duration,
    /// No further verdict can be numbered ([`FlowCache::is_full`](super::FlowCache::is_full)).
    pub is_full: bool,
}

impl Usage {
    /// The entries of the larger table that should take the place of this one; `None`: this one
    /// does, or there may be no larger one.
    pub fn larger(&self) -> Option<usize> {
        let borne = self.entries as u128 * self.over.as_nanos();
        let given_way = u128::from(self.crowded_out) * u128::from(STAYS_SECONDS) * 1_000_000_000;
        let is_too_small = self.is_full || given_way > borne;
        let next = self.entries.saturating_mul(STEP).min(self.most);
        (is_too_small && next > self.entries).then_some(next)
    }
}

/// Returns the entries of a fresh table: those of the table before it, if it had grown.
/// `most`: those that it may have at most.
pub fn entries_of_fresh(before: usize, most: usize) -> usize {
    before.max(FIRST_ENTRIES).min(most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 4 << 20;

    fn usage(entries: usize, crowded_out: u64) -> Usage {
        let over = Duration::from_secs(1);
        Usage { entries, most: MOST, crowded_out, over, is_full: false }
    }

    #[test]
    fn a_table_grows_fourfold_if_entries_stay_for_less_than_a_minute() {
        for entries in [FIRST_ENTRIES, 4 * FIRST_ENTRIES, 1 << 20] {
            let borne = (entries / 64) as u64;
            assert_eq!(usage(entries, 0).larger(), None);
            assert_eq!(usage(entries, borne).larger(), None);
            assert_eq!(usage(entries, borne + 1).larger(), Some(4 * entries));
            assert_eq!(usage(entries, u64::MAX).larger(), Some(4 * entries));
            // Looked at later, as many are fewer a second.
            let over = Duration::from_millis(1500);
            let later = |crowded_out| Usage { over, ..usage(entries, crowded_out) }.larger();
            assert_eq!((later(borne * 3 / 2), later(borne * 3 / 2 + 1)), (None, Some(4 * entries)));
        }
    }

    #[test]
    fn a_table_grows_if_no_further_verdict_can_be_numbered() {
        let full = Usage { is_full: true, ..usage(FIRST_ENTRIES, 0) };
        assert_eq!(full.larger(), Some(4 * FIRST_ENTRIES));
        assert_eq!(Usage { most: FIRST_ENTRIES, ..full }.larger(), None);
    }

    #[test]
    fn a_table_grows_to_the_most_and_no_further() {
        let pressed = |entries, most| Usage { most, ..usage(entries, u64::MAX) }.larger();
        assert_eq!(pressed(1 << 20, 1 << 20), None);
        assert_eq!(pressed(1 << 19, 1 << 20), Some(1 << 20));
        assert_eq!(pressed(1 << 20, 1 << 19), None, "one that is larger than it may be");
        let mut sizes = vec![entries_of_fresh(0, MOST)];
        while let Some(next) = usage(sizes[sizes.len() - 1], u64::MAX).larger() {
            sizes.push(next);
        }
        assert_eq!(sizes, [1 << 16, 1 << 18, 1 << 20, 1 << 22]);
    }

    #[test]
    fn a_fresh_table_is_as_large_as_the_one_before_between_the_first_and_the_most() {
        for (before, most, entries) in [
            (0, MOST, FIRST_ENTRIES),
            (FIRST_ENTRIES, MOST, FIRST_ENTRIES),
            (1 << 20, MOST, 1 << 20),
            (MOST, 1 << 20, 1 << 20),
            (0, 1024, 1024),
            (MOST, 1024, 1024),
            (1024, MOST, FIRST_ENTRIES),
        ] {
            assert_eq!(entries_of_fresh(before, most), entries, "{before} {most}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_reported_a_table_only_grows_and_stays_a_power_of_two(
            (bits, most_bits) in (2..30u32, 2..40u32),
            crowded_out in any::<u64>(),
            over in any::<u64>().prop_map(Duration::from_nanos),
            is_full in any::<bool>(),
        ) {
            let (entries, most) = (1 << bits, 1 << most_bits);
            let usage = Usage { entries, most, crowded_out, over, is_full };
            if let Some(larger) = usage.larger() {
                prop_assert!(larger > entries && larger <= most && larger <= STEP * entries);
                prop_assert!(larger.is_power_of_two());
            } else {
                prop_assert!(!is_full || entries >= most);
            }
        }
    }
}
