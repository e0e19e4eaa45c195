//! Sequence numbers of outbound SAs (RFC 4303 §3.3.3).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Width of an SA's sequence numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SequenceNumbers {
    /// 32 bits.
    Short,
    /// 64 bits, of which packets carry the low 32 (ESN, RFC 4303 §2.2.1).
    Extended,
}

impl SequenceNumbers {
    /// The last number that an SA may use.
    pub const fn limit(self) -> u64 {
        match self {
            SequenceNumbers::Short => u32::MAX as u64,
            SequenceNumbers::Extended => u64::MAX,
        }
    }
}

/// Reasons why an outbound SA hands out no more numbers now. The caller drops the packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum SequenceError {
    /// The numbers are used up. The SA never sends again: rekey.
    #[error("the sequence numbers of the SA are used up")]
    Exhausted,
    /// The numbers that follow are not reserved yet. The SA sends again as soon as they are.
    #[error("the next sequence numbers of the SA are not reserved yet")]
    NotReserved,
}

/// Numbers of one key that follow each other, each to be used at once or never.
#[must_use = "numbers that are not used are lost"]
#[derive(PartialEq, Eq, Debug)]
pub struct SequenceRun {
    next: u64,
    /// The number behind the last one; 0 behind the largest.
    end: u64,
    /// Reason why it is shorter than was asked for, if it is.
    missing: Option<SequenceError>,
}

impl SequenceRun {
    /// A run without numbers.
    pub const NONE: SequenceRun = SequenceRun { next: 0, end: 0, missing: None };

    /// Takes the next number out of the run.
    ///
    /// # Errors
    /// The reason why there are no more than were taken: [`SequenceError::Exhausted`] also where
    /// more are taken than were drawn.
    #[inline(always)]
    pub fn take(&mut self) -> Result<u64, SequenceError> {
        if self.next == self.end {
            return Err(self.missing.unwrap_or(SequenceError::Exhausted));
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        Ok(number)
    }

    /// Returns how many numbers are left.
    pub fn left(&self) -> u64 {
        self.end.wrapping_sub(self.next)
    }

    /// Reason why the run is shorter than was asked for, if it is.
    pub fn missing(&self) -> Option<SequenceError> {
        self.missing
    }

    /// Splits the run into its first number, its length, and the reason why numbers are missing, if
    /// some are.
    pub fn into_parts(self) -> (u64, u64, Option<SequenceError>) {
        (self.next, self.left(), self.missing)
    }

    /// Returns the first number of a run that has all that were asked for. A run of 0 has the
    /// number that would have been next.
    ///
    /// # Errors
    /// The reason why some are missing.
    pub fn whole(self) -> Result<u64, SequenceError> {
        self.missing.map_or(Ok(self.next), Err)
    }
}

/// The storage of a counter's word.
enum Word {
    /// In the counter: dropped with it.
    Own(AtomicU64),
    /// In a mapping that other processes find again, and that lives as long as this one.
    Shared(&'static AtomicU64),
}

/// Hands out the numbers 1, 2, 3 … of one key, each once. Shared by all workers that seal with
/// that key, and kept over changes of configuration as long as the key is.
///
/// The caller that draws a number uses it at once or never (DESIGN I8): AES-GCM's nonce is made of
/// it, and a number used twice gives the key away.
///
/// Numbers are handed out up to a reservation, which whoever keeps a durable record raises ahead
/// of use; a counter without such a record has all of its numbers reserved.
pub struct SequenceCounter {
    /// Last number handed out; 0 at the start. Never beyond the reservation.
    last: Word,
    /// The last number that may be handed out now. Only ever raised, never beyond the limit.
    reserved: AtomicU64,
    /// The value below which a word in a mapping never falls, unless somebody moved it back: its
    /// file was cut. The counter hands out nothing then.
    floor: AtomicU64,
    numbers: SequenceNumbers,
}

impl SequenceCounter {
    /// A counter that begins at 1. Only for a key that has never sealed.
    pub const fn new(numbers: SequenceNumbers) -> SequenceCounter {
        let reserved = AtomicU64::new(numbers.limit());
        let floor = AtomicU64::new(0);
        SequenceCounter { last: Word::Own(AtomicU64::new(0)), reserved, floor, numbers }
    }

    /// A counter without any numbers: those of its key are another's, a card's say.
    pub const fn spent(numbers: SequenceNumbers) -> SequenceCounter {
        let (last, none) = (numbers.limit(), AtomicU64::new(0));
        let floor = AtomicU64::new(last);
        SequenceCounter { last: Word::Own(AtomicU64::new(last)), reserved: none, floor, numbers }
    }

    /// A counter that goes on behind the number in `last`, and hands out nothing beyond `reserved`.
    /// `last` is this key's and no other's; every counter of the key counts in it.
    pub fn shared(
        last: &'static AtomicU64,
        reserved: u64,
        numbers: SequenceNumbers,
    ) -> SequenceCounter {
        let limit = numbers.limit();
        let reserved = AtomicU64::new(if reserved < limit { reserved } else { limit });
        let floor = AtomicU64::new(last.load(Ordering::Relaxed));
        SequenceCounter { last: Word::Shared(last), reserved, floor, numbers }
    }

    /// Takes the next `count` numbers, or as many of them as there are up to the reservation and
    /// the limit. The run says why the rest is missing.
    ///
    /// Cost: two atomic operations, so one draw a batch.
    pub fn draw(&self, count: u32) -> SequenceRun {
        // All checks lie inside the atomic update: a plain fetch_add would be checked only
        // afterwards, when at u64::MAX it has already wrapped to numbers that were used. The word
        // never passes the reservation, so no sequence of draws, by any threads, moves it back.
        // Relaxed: only this one word matters, and its modifications have one order. The
        // reservation is read first and only grows, so a number handed out was reserved.
        let (limit, wanted) = (self.numbers.limit(), u64::from(count));
        let reserved = self.reserved.load(Ordering::Acquire);
        // Raised behind the word: who sees a floor sees at least that in the word.
        let floor = self.floor.load(Ordering::Acquire);
        // A shared word beyond the limit was left by a key with longer numbers, or is damaged; one
        // below the floor was moved back. Neither hands out anything.
        let room = |last: u64| match last >= floor {
            true => wanted.min(reserved.saturating_sub(last)),
            false => 0,
        };
        let add = |last: u64| Some(room(last)).filter(|taken| *taken > 0).map(|taken| last + taken);
        let drawn = self.word().fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let (last, taken) = match drawn {
            Ok(last) => (last, room(last)),
            Err(last) => (last, 0),
        };
        if taken > 0 {
            self.floor.fetch_max(last + taken, Ordering::Release);
        }
        let missing = match last.saturating_add(taken) >= limit {
            true => SequenceError::Exhausted,
            false => SequenceError::NotReserved,
        };
        let missing = (taken < wanted).then_some(missing);
        let next = last.wrapping_add(1);
        SequenceRun { next, end: next.wrapping_add(taken), missing }
    }

    /// Allows numbers up to `up_to`, or to the limit if that is lower. Never takes back what was
    /// allowed. The caller has a durable record by now that says so.
    pub fn reserve(&self, up_to: u64) {
        self.reserved.fetch_max(up_to.min(self.numbers.limit()), Ordering::Release);
    }

    /// The last number that may be handed out now.
    pub fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire)
    }

    /// The last number handed out, 0 if none was; the limit once it is exhausted.
    pub fn last(&self) -> u64 {
        self.word().load(Ordering::Relaxed)
    }

    /// Returns whether no number is left.
    #[inline]
    pub fn is_exhausted(&self) -> bool {
        self.last() >= self.numbers.limit()
    }

    /// Width of the numbers.
    pub const fn numbers(&self) -> SequenceNumbers {
        self.numbers
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        match &self.last {
            Word::Own(word) => word,
            Word::Shared(word) => word,
        }
    }
}

impl fmt::Debug for SequenceCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (last, reserved, numbers) = (self.last(), self.reserved(), self.numbers);
        write!(f, "SequenceCounter {{ last: {last}, reserved: {reserved}, {numbers:?} }}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Barrier;

    use proptest::prelude::*;

    use super::*;

    fn after(last: u64, numbers: SequenceNumbers) -> SequenceCounter {
        SequenceCounter { last: Word::Own(AtomicU64::new(last)), ..SequenceCounter::new(numbers) }
    }

    fn either() -> impl Strategy<Value = SequenceNumbers> {
        prop_oneof![Just(SequenceNumbers::Short), Just(SequenceNumbers::Extended)]
    }

    #[test]
    fn numbers_begin_at_1_and_runs_follow_each_other() {
        let counter = SequenceCounter::new(SequenceNumbers::Short);
        assert_eq!(counter.last(), 0);
        assert_eq!(counter.draw(0).whole(), Ok(1));
        assert_eq!(counter.draw(64).whole(), Ok(1));
        assert_eq!(counter.last(), 64);
        assert_eq!(counter.draw(1).whole(), Ok(65));
        assert_eq!(counter.draw(2).whole(), Ok(66));
        assert_eq!(counter.last(), 67);
    }

    #[test]
    fn a_counter_without_numbers_hands_out_none_whatever_is_reserved() {
        for numbers in [SequenceNumbers::Short, SequenceNumbers::Extended] {
            let counter = SequenceCounter::spent(numbers);
            assert!(counter.is_exhausted());
            for reserved in [0, 1, numbers.limit(), u64::MAX] {
                counter.reserve(reserved);
                assert_eq!(counter.draw(1).whole(), Err(SequenceError::Exhausted));
            }
        }
    }

    #[test]
    fn the_limit_itself_is_the_last_number() {
        for numbers in [SequenceNumbers::Short, SequenceNumbers::Extended] {
            let limit = numbers.limit();
            let counter = after(limit - 3, numbers);
            assert_eq!(counter.draw(3).whole(), Ok(limit - 2));
            assert_eq!(counter.last(), limit);
            for count in [1, u32::MAX] {
                assert_eq!(counter.draw(count).whole(), Err(SequenceError::Exhausted));
            }
            assert_eq!(counter.draw(0).left(), 0);
            assert_eq!(counter.last(), limit);
        }
    }

    /// Takes all numbers out of a run, and the reason why there are no more.
    fn all(mut run: SequenceRun) -> (Vec<u64>, SequenceError) {
        let count = run.left();
        let numbers = (0..count).map(|_| run.take().unwrap()).collect();
        (numbers, run.take().unwrap_err())
    }

    #[test]
    fn of_a_run_too_long_there_is_what_is_left() {
        for numbers in [SequenceNumbers::Short, SequenceNumbers::Extended] {
            let limit = numbers.limit();
            let counter = after(limit - 3, numbers);
            let last = vec![limit - 2, limit - 1, limit];
            assert_eq!(all(counter.draw(4)), (last, SequenceError::Exhausted));
            assert_eq!(all(counter.draw(1)), (vec![], SequenceError::Exhausted));

            let counter = SequenceCounter::shared(outliving(7), 9, numbers);
            assert_eq!(all(counter.draw(64)), (vec![8, 9], SequenceError::NotReserved));
            assert_eq!(all(counter.draw(1)), (vec![], SequenceError::NotReserved));
            counter.reserve(10);
            assert_eq!(all(counter.draw(2)), (vec![10], SequenceError::NotReserved));
        }
    }

    proptest! {
        /// Oracle: the set of all numbers handed out.
        #[test]
        fn no_number_is_handed_out_twice_near_the_limit(
            numbers in either(),
            below in 0u64..300,
            counts in prop::collection::vec(
                prop_oneof![0u32..70, Just(u32::MAX), Just(u32::MAX - 1)], 1..40),
        ) {
            let start = numbers.limit() - below;
            let counter = after(start, numbers);
            let mut seen = BTreeSet::new();
            for count in counts {
                let (drawn, missing) = all(counter.draw(count.min(1000)));
                prop_assert_eq!(missing, SequenceError::Exhausted);
                let left = below - seen.len() as u64;
                prop_assert_eq!(drawn.len() as u64, left.min(count.min(1000).into()));
                for number in drawn {
                    prop_assert!(number > start && number <= numbers.limit());
                    prop_assert!(seen.insert(number), "{number} twice");
                }
                prop_assert_eq!(counter.last(), start + seen.len() as u64);
            }
        }
    }

    #[test]
    fn a_word_that_somebody_moved_back_hands_out_nothing_again() {
        for back_to in [0, 1, 5, 63] {
            let word = outliving(0);
            let counter = SequenceCounter::shared(word, 1000, SequenceNumbers::Extended);
            assert_eq!(counter.draw(64).whole(), Ok(1));
            word.store(back_to, Ordering::Relaxed);
            assert_eq!(counter.draw(1).whole(), Err(SequenceError::NotReserved));
            counter.reserve(2000);
            assert_eq!(counter.draw(1).whole(), Err(SequenceError::NotReserved));
            word.store(64, Ordering::Relaxed);
            assert_eq!(counter.draw(1).whole(), Ok(65));
        }
    }

    /// A word that outlives its counters, as a mapping does.
    fn outliving(last: u64) -> &'static AtomicU64 {
        Box::leak(Box::new(AtomicU64::new(last)))
    }

    proptest! {
        /// Restarts are counters over the same word. Oracle: the set of all numbers handed out.
        #[test]
        fn reserved_numbers_come_once_over_restarts_and_none_is_lost(
            numbers in either(),
            below in prop_oneof![0u64..3000, Just(u64::from(u32::MAX))],
            steps in prop::collection::vec((0u8..6, 0u64..100), 1..60),
        ) {
            let start = numbers.limit() - below;
            let word = outliving(start);
            let mut counter = SequenceCounter::shared(word, start, numbers);
            let (mut seen, mut reserved) = (BTreeSet::new(), start);
            for (step, size) in steps {
                match step {
                    0 => {
                        reserved = reserved.max(counter.last().saturating_add(size * 3));
                        reserved = reserved.min(numbers.limit());
                        counter.reserve(reserved);
                        // What was allowed is not taken back.
                        counter.reserve(start);
                        prop_assert_eq!(counter.reserved(), reserved);
                    }
                    1 => counter = SequenceCounter::shared(word, reserved, numbers),
                    _ => {
                        let before = counter.last();
                        let (drawn, missing) = all(counter.draw(size as u32));
                        prop_assert_eq!(drawn.len() as u64, size.min(reserved - before));
                        let follows = |(place, number): (u64, &u64)| number - before == place;
                        prop_assert!((1..).zip(&drawn).all(follows));
                        for number in drawn {
                            prop_assert!(seen.insert(number), "{number} twice");
                        }
                        if (counter.last() - before) < size {
                            let is_at_end = reserved == numbers.limit();
                            prop_assert_eq!(missing == SequenceError::Exhausted, is_at_end);
                        }
                    }
                }
                prop_assert!(counter.last() <= reserved);
            }
        }
    }

    #[test]
    fn word_beyond_the_limit_hands_out_nothing_and_stays() {
        let limit = SequenceNumbers::Short.limit();
        for last in [limit + 1, limit + 64, u64::MAX] {
            let word = outliving(last);
            let counter = SequenceCounter::shared(word, u64::MAX, SequenceNumbers::Short);
            assert_eq!(counter.reserved(), limit);
            for count in [1, 64, u32::MAX] {
                assert_eq!(counter.draw(count).whole(), Err(SequenceError::Exhausted));
            }
            assert!(counter.is_exhausted());
            assert_eq!(word.load(Ordering::Relaxed), last);
        }
    }

    #[test]
    fn threads_that_race_the_reservation_share_no_number_and_leave_none_out() {
        let counter = SequenceCounter::shared(outliving(0), 0, SequenceNumbers::Extended);
        const LAST: u64 = 64 * 3000;
        let draw_all = || {
            let mut drawn = Vec::new();
            while counter.last() < LAST {
                drawn.extend(all(counter.draw(64)).0);
            }
            drawn
        };
        let drawn: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(draw_all)).collect();
            while counter.last() < LAST {
                counter.reserve((counter.last() + 1000).min(LAST));
                std::thread::yield_now();
            }
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let distinct: BTreeSet<u64> = drawn.iter().copied().collect();
        assert_eq!((distinct.len(), drawn.len() as u64), (drawn.len(), LAST));
        assert_eq!(distinct.last(), Some(&LAST));
    }

    #[test]
    fn threads_that_race_to_the_limit_share_no_number() {
        const THREADS: u32 = 4;
        for numbers in [SequenceNumbers::Short, SequenceNumbers::Extended] {
            let left = 100_000;
            let counter = after(numbers.limit() - left, numbers);
            let start = Barrier::new(THREADS as usize);
            let draw_all = |count: u32| {
                start.wait();
                let mut drawn = Vec::new();
                loop {
                    let (run, _) = all(counter.draw(count));
                    if run.is_empty() {
                        break;
                    }
                    drawn.extend(run);
                }
                // Others may still be at it: a refused counter stays refused.
                assert!((0..1000).all(|_| counter.draw(count).left() == 0));
                drawn
            };
            let drawn: Vec<Vec<u64>> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..THREADS).map(|n| scope.spawn(move || draw_all(n * 7 + 1))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let total: usize = drawn.iter().map(Vec::len).sum();
            let distinct: BTreeSet<u64> = drawn.into_iter().flatten().collect();
            assert_eq!(distinct.len(), total);
            assert!(distinct.iter().all(|&n| n > numbers.limit() - left && n <= numbers.limit()));
            assert_eq!(total as u64, left);
            assert_eq!(counter.draw(1).whole(), Err(SequenceError::Exhausted));
        }
    }
}
