//! Warns of SAs that run out of sequence numbers, well before the end, which is final.

use std::collections::HashMap;
use std::fmt;

use control::Compiled;
use dataplane::{DropReason, Snapshot};
use ipsec::{Fingerprint, SequenceNumbers};

use crate::events::{Events, Kind};

/// Parts of the numbers, in hundredths, from which on an SA is said to be low.
const MARKS_PERCENT: [u64; 3] = [75, 90, 99];

/// The part of its sequence numbers that an SA has used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum SequenceUsage {
    /// A share below the first mark.
    Little,
    /// A share of at least this many hundredths: one of the marks.
    Percent(u64),
    /// All of them.
    All,
}

impl SequenceUsage {
    /// Returns the part that the last number has reached, in numbers of this width.
    pub(crate) fn of(last: u64, numbers: SequenceNumbers) -> SequenceUsage {
        let limit = numbers.limit();
        if last >= limit {
            return SequenceUsage::All;
        }
        let has_passed =
            |mark: &&u64| u128::from(last) * 100 >= u128::from(limit) * u128::from(**mark);
        match MARKS_PERCENT.iter().rev().find(has_passed) {
            Some(mark) => SequenceUsage::Percent(*mark),
            None => SequenceUsage::Little,
        }
    }
}

impl fmt::Display for SequenceUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SequenceUsage::Little => write!(f, "less than {} %", MARKS_PERCENT[0]),
            SequenceUsage::Percent(mark) => write!(f, "{mark} %"),
            SequenceUsage::All => f.write_str("all"),
        }
    }
}

/// The part of all numbers of a width that comes up to this one, 0 to 1, in millionths.
pub(crate) fn part(last: u64, numbers: SequenceNumbers) -> f64 {
    let part = (last as f64 / numbers.limit() as f64).min(1.0);
    (part * 1e6).round() / 1e6
}

/// Reports SAs that have passed a mark or used all of their sequence numbers. Called every second;
/// a mark is reported once, the end repeatedly.
pub(crate) fn report(
    told: &mut HashMap<Fingerprint, SequenceUsage>,
    (snapshot, compiled): (&Snapshot, &Compiled),
    events: &Events,
) {
    let mut known = std::mem::take(told);
    // The numbers of an SA whose packets a card writes are its lease, which ends by an event of its
    // own.
    for sa in snapshot.outbound().filter(|sa| sa.packet_card().is_none()) {
        let (last, numbers) = (sa.sequence.last(), sa.sequence.numbers());
        let used = SequenceUsage::of(last, numbers);
        if used == SequenceUsage::Little {
            continue;
        }
        let key = compiled.outbound_fingerprint(sa.id);
        let before = known.remove(&key);
        told.insert(key, used);
        let (subject, limit) = (sa.spi.to_string(), numbers.limit());
        let details: crate::events::Details<'_> = &[("last", &last), ("limit", &limit)];
        if used == SequenceUsage::All {
            let message = format!("SA {subject}: {}", DropReason::SequenceExhausted.help());
            events.record(Kind::SequenceExhausted, &subject, message, details);
        } else if before.is_none_or(|before| before < used) {
            let message = format!(
                "SA {subject} has used {used} of its sequence numbers ({last} of {limit}): it \
                 stops for good when all are used"
            );
            events.record(Kind::SequenceLow, &subject, message, details);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_parts_of_the_space_of_either_width() {
        for numbers in [SequenceNumbers::Short, SequenceNumbers::Extended] {
            let limit = numbers.limit();
            assert_eq!(SequenceUsage::of(0, numbers), SequenceUsage::Little);
            for (mark, below) in [(75, SequenceUsage::Little), (90, SequenceUsage::Percent(75))] {
                let at = (u128::from(limit) * mark).div_ceil(100) as u64;
                assert_eq!(SequenceUsage::of(at - 1, numbers), below, "{numbers:?} {mark}");
                assert_eq!(
                    SequenceUsage::of(at, numbers),
                    SequenceUsage::Percent(mark as u64),
                    "{numbers:?}"
                );
            }
            assert_eq!(SequenceUsage::of(limit - 1, numbers), SequenceUsage::Percent(99));
            assert_eq!(SequenceUsage::of(limit, numbers), SequenceUsage::All);
        }
        // What a longer key leaves behind.
        assert_eq!(SequenceUsage::of(u64::MAX, SequenceNumbers::Short), SequenceUsage::All);
        assert_eq!(part(u64::MAX, SequenceNumbers::Short), 1.0);
        assert!(
            SequenceUsage::Little < SequenceUsage::Percent(75)
                && SequenceUsage::Percent(99) < SequenceUsage::All
        );
    }

    /// The first mark comes before the last reservation ends and long before the numbers do.
    #[test]
    fn the_first_mark_leaves_time_to_act() {
        let limit = SequenceNumbers::Short.limit();
        let left_at_one_million_a_second = (limit - limit / 100 * MARKS_PERCENT[0]) / 1_000_000;
        assert!(left_at_one_million_a_second > 15 * 60);
    }
}
