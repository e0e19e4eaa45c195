//! The card's replay window (RFC 4303 §3.4.3, appendix A): a set of the numbers that came.

use std::collections::BTreeSet;

use offload::Numbers;

/// A replay window.
#[derive(Clone, Debug)]
pub(super) struct Window {
    size: u64,
    numbers: Numbers,
    /// The highest number that came, or the one in front of the first that may.
    top: u64,
    /// Numbers that came and are not too old.
    came: BTreeSet<u64>,
    /// No lower number is accepted.
    first: u64,
}

impl Window {
    /// A window of an SA whose numbers begin with `first`.
    pub(super) fn new(size: u32, numbers: Numbers, first: u64) -> Window {
        let (size, first) = (u64::from(size.max(1)), first.max(1));
        Window { size, numbers, top: first - 1, came: BTreeSet::new(), first }
    }

    /// The whole number of a packet: the one nearest to the window (appendix A2). `None`: it would
    /// lie before all numbers.
    pub(super) fn whole(&self, low: u32) -> Option<u64> {
        let low = u64::from(low);
        if self.numbers == Numbers::Short {
            return Some(low);
        }
        let (high, top_low) = (self.top >> 32, self.top & 0xffff_ffff);
        // The left edge, of 32 bits, as if the number before 0 were the highest.
        let left = top_low.wrapping_sub(self.size - 1) & 0xffff_ffff;
        let high = match top_low >= self.size - 1 {
            // The window is of one high half: what is left of it belongs to the next one.
            true if low >= left => high,
            true => high.checked_add(1).filter(|high| *high >> 32 == 0)?,
            // It spans two: what is right of the left edge belongs to the one before.
            false if low >= left => high.checked_sub(1)?,
            false => high,
        };
        Some(high << 32 | low)
    }

    /// Returns whether a number may come: it did not yet, and is not too old.
    pub(super) fn accepts(&self, number: u64) -> bool {
        let is_old = self.top >= self.size && number <= self.top - self.size;
        number >= self.first && !is_old && !self.came.contains(&number)
    }

    /// Notes the number of an authentic packet.
    pub(super) fn note(&mut self, number: u64) {
        self.top = self.top.max(number);
        self.came.insert(number);
        let oldest = self.top.saturating_sub(self.size - 1);
        self.came = self.came.split_off(&oldest);
    }

    /// Returns whether any number came.
    pub(super) fn has_come(&self) -> bool {
        !self.came.is_empty()
    }

    /// The highest number so far.
    pub(super) fn top(&self) -> u64 {
        self.top
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_comes_once_and_none_from_left_of_the_window() {
        let mut window = Window::new(32, Numbers::Short, 1);
        assert!(!window.accepts(0));
        for number in [1, 5, 40] {
            assert!(window.accepts(number));
            window.note(number);
            assert!(!window.accepts(number));
        }
        assert!(!window.accepts(8) && window.accepts(9) && window.accepts(1000));
        window.note(9);
        assert!(!window.accepts(9) && window.came.len() == 2);
    }

    #[test]
    fn no_number_below_the_first_is_accepted() {
        let window = Window::new(64, Numbers::Short, 100);
        assert!(!window.accepts(99) && window.accepts(100));
    }

    #[test]
    fn the_high_half_of_a_number_is_the_one_nearest_to_the_window() {
        let edge = 1u64 << 32;
        let at = |top: u64, low: u32| {
            let mut window = Window::new(64, Numbers::Extended, 1);
            window.note(top);
            window.whole(low)
        };
        assert_eq!(at(5, 7), Some(7));
        assert_eq!(at(5, u32::MAX), None, "from before the first number");
        assert_eq!(at(edge - 1, 0), Some(edge));
        assert_eq!(at(edge - 1, u32::MAX - 63), Some(edge - 64));
        assert_eq!(at(edge - 1, u32::MAX - 64), Some(2 * edge - 65), "left of it: the next");
        assert_eq!(at(edge + 3, u32::MAX), Some(edge - 1));
        assert_eq!(at(edge + 3, 3), Some(edge + 3));
        assert_eq!(at(edge + 63, 0), Some(edge));
        assert_eq!(at(u64::MAX, 0), None, "behind the last number");
    }
}
