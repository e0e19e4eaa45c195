//! The parts of a datagram that have come, in units of 8 bytes: fragments begin at no other place.

use wire::FragmentHeader;

/// Ranges that are kept apart at most; those that touch become one, so fragments in order are one.
pub(super) const MOST: usize = 16;

/// Place of a fragment's data in its datagram, in units of 8 bytes. Only a last fragment can end
/// within a unit, which then is its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// The first unit.
    pub(crate) start: u16,
    /// The unit behind it, above `start`.
    pub(crate) end: u16,
    /// True if the datagram ends here.
    pub(crate) is_last: bool,
}

impl Part {
    /// The place of a fragment's data. `None`: the fragment carries no data.
    pub(crate) fn of(header: &FragmentHeader) -> Option<Part> {
        let FragmentHeader { offset, length, more, .. } = *header;
        let end = (u32::from(offset) + u32::from(length)).div_ceil(8) as u16;
        let part = Part { start: offset / 8, end, is_last: !more };
        (part.start < part.end).then_some(part)
    }
}

/// Reason why a part is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// Some of it has come before, or it lies behind the end of the datagram (RFC 5722 §3).
    Overlap,
    /// The datagram would have more than [`MOST`] ranges.
    TooMany,
}

/// The ranges that have come, in order, none touching another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ranges {
    list: [(u16, u16); MOST],
    len: usize,
    /// The end of the datagram, once its last fragment has come.
    end: Option<u16>,
}

impl Ranges {
    /// Adds a part.
    ///
    /// # Errors
    /// [`Fault`]: nothing was added.
    pub(super) fn add(&mut self, part: Part) -> Result<(), Fault> {
        let Part { start, end, is_last } = part;
        let list = &self.list[..self.len];
        let place = list.partition_point(|range| range.0 < start);
        let before = place.checked_sub(1).map(|place| list[place]);
        let behind = list.get(place).copied();
        let overlaps = before.is_some_and(|range| range.1 > start)
            || behind.is_some_and(|range| range.0 < end);
        let is_beyond = match self.end {
            Some(known) => is_last || end > known,
            None => is_last && behind.is_some(),
        };
        if overlaps || is_beyond {
            return Err(Fault::Overlap);
        }
        match (
            before.is_some_and(|range| range.1 == start),
            behind.is_some_and(|range| range.0 == end),
        ) {
            (true, true) => {
                self.list[place - 1].1 = self.list[place].1;
                self.list.copy_within(place + 1..self.len, place);
                self.len -= 1;
            }
            (true, false) => self.list[place - 1].1 = end,
            (false, true) => self.list[place].0 = start,
            (false, false) if self.len == MOST => return Err(Fault::TooMany),
            (false, false) => {
                self.list.copy_within(place..self.len, place + 1);
                self.list[place] = (start, end);
                self.len += 1;
            }
        }
        if is_last {
            self.end = Some(end);
        }
        Ok(())
    }

    /// Returns whether the whole datagram has come.
    pub(super) fn is_complete(&self) -> bool {
        self.len == 1 && self.list[0].0 == 0 && self.end == Some(self.list[0].1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The units that have come, one by one.
    #[derive(Default)]
    struct Units {
        come: BTreeSet<u16>,
        end: Option<u16>,
    }

    impl Units {
        fn add(&mut self, part: Part) -> Result<(), Fault> {
            let units = part.start..part.end;
            let highest = self.come.last().map_or(0, |unit| unit + 1);
            let is_beyond = match (self.end, part.is_last) {
                (Some(end), is_last) => is_last || part.end > end,
                (None, is_last) => is_last && part.end < highest,
            };
            if is_beyond || units.clone().any(|unit| self.come.contains(&unit)) {
                return Err(Fault::Overlap);
            }
            let mut come = self.come.clone();
            come.extend(units);
            if starts(&come) > MOST {
                return Err(Fault::TooMany);
            }
            self.come = come;
            self.end = self.end.or(part.is_last.then_some(part.end));
            Ok(())
        }

        fn is_complete(&self) -> bool {
            self.end.is_some_and(|end| (0..end).all(|unit| self.come.contains(&unit)))
        }
    }

    /// Ranges: units that have none before them.
    fn starts(units: &BTreeSet<u16>) -> usize {
        units.iter().filter(|unit| **unit == 0 || !units.contains(&(*unit - 1))).count()
    }

    fn a_part() -> impl Strategy<Value = Part> {
        let start = prop_oneof![3 => 0..40u16, 1 => 0..8200u16, 1 => 8180..8200u16];
        let length = prop_oneof![6 => 1..4u16, 1 => 1..60u16];
        let is_last = prop::bool::weighted(0.1);
        (start, length, is_last).prop_map(|(start, length, is_last)| Part {
            start,
            end: start + length,
            is_last,
        })
    }

    proptest! {
        #[test]
        fn ranges_are_the_units_that_came(
            parts in prop::collection::vec(a_part(), 0..80),
        ) {
            let (mut ranges, mut units) = (Ranges::default(), Units::default());
            for part in parts {
                prop_assert_eq!(ranges.add(part), units.add(part), "{:?}", part);
                prop_assert_eq!(ranges.is_complete(), units.is_complete());
            }
        }

        #[test]
        fn a_datagram_cut_anyhow_is_complete_with_its_last_part(
            lengths in prop::collection::vec(1..9u16, 1..16),
            order in Just((0..16usize).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let mut parts = Vec::new();
            for (number, length) in lengths.iter().enumerate() {
                let start = parts.last().map_or(0, |part: &Part| part.end);
                let is_last = number + 1 == lengths.len();
                parts.push(Part { start, end: start + length, is_last });
            }
            let mut ranges = Ranges::default();
            let order: Vec<usize> = order.into_iter().filter(|at| *at < parts.len()).collect();
            for (number, at) in order.iter().enumerate() {
                prop_assert_eq!(ranges.add(parts[*at]), Ok(()));
                prop_assert_eq!(ranges.is_complete(), number + 1 == order.len());
            }
            for part in parts {
                prop_assert_eq!(ranges.add(part), Err(Fault::Overlap));
            }
        }
    }
}
