//! The received parts of a datagram, in bytes.

use wire::FragmentHeader;

/// Ranges that are kept apart at most; those that touch become one, so fragments in order are one.
pub(super) const MOST: usize = 16;
/// Newest parts of a datagram that are remembered. A repetition of an older part is an overlap.
pub(super) const REMEMBERED_PARTS: usize = 16;

/// Place of a fragment's data in its datagram, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// The first byte.
    pub(crate) start: u16,
    /// The byte behind the data, above `start`.
    pub(crate) end: u16,
    /// True if the datagram ends here.
    pub(crate) is_last: bool,
}

impl Part {
    /// The place of a fragment's data. `None`: the fragment carries no data.
    pub(crate) fn of(header: &FragmentHeader) -> Option<Part> {
        let FragmentHeader { offset, length, more, .. } = *header;
        let end = offset.checked_add(length)?;
        (length > 0).then_some(Part { start: offset, end, is_last: !more })
    }
}

/// Reason why a part is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// Some of it has come before, or it lies behind the end of the datagram (RFC 5722 §3).
    Overlap,
    /// Start, end and more-bit are those of one of the last [`REMEMBERED_PARTS`] (RFC 8200 §4.5: an
    /// exact duplicate).
    Duplicate,
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
    /// Start and end of the newest parts, and the place of the next part. The end of an empty place
    /// is 0.
    newest: [(u16, u16); REMEMBERED_PARTS],
    next: u8,
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
            return Err(if self.repeats(part) { Fault::Duplicate } else { Fault::Overlap });
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
        self.newest[usize::from(self.next)] = (start, end);
        self.next = (self.next + 1) % REMEMBERED_PARTS as u8;
        Ok(())
    }

    /// Returns whether a part is an exact duplicate of one of the newest. Only the last part ends
    /// with the datagram.
    fn repeats(&self, part: Part) -> bool {
        let Part { start, end, is_last } = part;
        is_last == (self.end == Some(end)) && self.newest.contains(&(start, end))
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

    /// Received bytes, one by one, and received parts.
    #[derive(Default)]
    struct ByteSet {
        come: BTreeSet<u16>,
        end: Option<u16>,
        parts: Vec<Part>,
    }

    impl ByteSet {
        fn add(&mut self, part: Part) -> Result<(), Fault> {
            if self.parts.iter().rev().take(REMEMBERED_PARTS).any(|other| *other == part) {
                return Err(Fault::Duplicate);
            }
            let bytes = part.start..part.end;
            let highest = self.come.last().map_or(0, |unit| unit + 1);
            let is_beyond = match (self.end, part.is_last) {
                (Some(end), is_last) => is_last || part.end > end,
                (None, is_last) => is_last && part.end < highest,
            };
            if is_beyond || bytes.clone().any(|unit| self.come.contains(&unit)) {
                return Err(Fault::Overlap);
            }
            let mut come = self.come.clone();
            come.extend(bytes);
            if starts(&come) > MOST {
                return Err(Fault::TooMany);
            }
            self.come = come;
            self.parts.push(part);
            self.end = self.end.or(part.is_last.then_some(part.end));
            Ok(())
        }

        fn is_complete(&self) -> bool {
            self.end.is_some_and(|end| (0..end).all(|unit| self.come.contains(&unit)))
        }
    }

    /// Ranges: bytes that have none before them.
    fn starts(units: &BTreeSet<u16>) -> usize {
        units.iter().filter(|unit| **unit == 0 || !units.contains(&(*unit - 1))).count()
    }

    fn a_part() -> impl Strategy<Value = Part> {
        let start = prop_oneof![3 => 0..40u16, 1 => 0..u16::MAX, 1 => u16::MAX - 20..u16::MAX];
        let length = prop_oneof![6 => 1..4u16, 1 => 1..60u16];
        let is_last = prop::bool::weighted(0.1);
        (start, length, is_last).prop_map(|(start, length, is_last)| Part {
            start,
            end: start.saturating_add(length),
            is_last,
        })
    }

    proptest! {
        #[test]
        fn ranges_are_the_bytes_that_came(
            parts in prop::collection::vec((a_part(), 0..60usize), 0..80),
        ) {
            let (mut ranges, mut bytes) = (Ranges::default(), ByteSet::default());
            for (part, back) in parts {
                // Half of them repeat a part, now and then as the last one.
                let earlier = bytes.parts.iter().rev().nth(back);
                let part = earlier.map_or(part, |earlier| match back {
                    1 => Part { is_last: part.is_last, ..*earlier },
                    _ => *earlier,
                });
                prop_assert_eq!(ranges.add(part), bytes.add(part), "{:?}", part);
                prop_assert_eq!(ranges.is_complete(), bytes.is_complete());
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
                prop_assert_eq!(ranges.add(part), Err(Fault::Duplicate));
                let other = Part { is_last: !part.is_last, ..part };
                prop_assert_eq!(ranges.add(other), Err(Fault::Overlap));
            }
        }
    }
}
