//! Numbers of places in a table. One that was given back is given out again only after a pause, so
//! that no program is still reading what it meant before.

use std::collections::VecDeque;

use bpf::tier::QUARANTINE;

/// Places that are free, and those that are not yet.
pub(crate) struct Slots {
    /// The lowest that was never given out.
    next: u32,
    end: u32,
    free: Vec<u32>,
    /// With the moment from which each is free, ascending.
    waiting: VecDeque<(u64, u32)>,
}

impl Slots {
    /// The places from `first` on, up to and without `end`.
    pub(crate) fn new(first: u32, end: u32) -> Slots {
        Slots { next: first, end, free: Vec::new(), waiting: VecDeque::new() }
    }

    /// Takes a place; `None`: none is free now.
    pub(crate) fn take(&mut self, now_ns: u64) -> Option<u32> {
        while let Some((from, slot)) =
            self.waiting.front().copied().filter(|(from, _)| *from <= now_ns)
        {
            debug_assert!(from <= now_ns);
            self.free.push(slot);
            self.waiting.pop_front();
        }
        self.free.pop().or_else(|| {
            let slot = (self.next < self.end).then_some(self.next)?;
            self.next += 1;
            Some(slot)
        })
    }

    /// Gives back a place that programs may have seen.
    pub(crate) fn give(&mut self, slot: u32, now_ns: u64) {
        self.waiting.push_back((now_ns + QUARANTINE.as_nanos() as u64, slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_after_the_pause_only() {
        let pause = QUARANTINE.as_nanos() as u64;
        let mut slots = Slots::new(1, 3);
        assert_eq!([slots.take(0), slots.take(0), slots.take(0)], [Some(1), Some(2), None]);
        slots.give(2, 10);
        slots.give(1, 11);
        assert_eq!(slots.take(9 + pause), None);
        assert_eq!(slots.take(10 + pause), Some(2));
        assert_eq!(slots.take(10 + pause), None);
        assert_eq!(slots.take(11 + pause), Some(1));
    }
}
