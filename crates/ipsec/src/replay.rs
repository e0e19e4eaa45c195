//! The anti-replay window of an inbound SA (RFC 4303 §3.4.3 and Appendix A).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, PoisonError};

use crate::SequenceNumbers;

/// Why a sequence number is not accepted. The caller drops the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ReplayError {
    /// It was accepted before.
    #[error("sequence number was already received")]
    Duplicate,
    /// It lies left of the window, or is 0, which no sender uses.
    #[error("sequence number is left of the replay window")]
    TooOld,
}

/// A window size that is not offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a replay window of {size} packets: must be a multiple of 32 from 32 to 4096")]
pub struct WindowSizeError {
    /// What was asked for.
    pub size: u32,
}

/// Words of a window that live in a mapping which other processes find again, and which lives as
/// long as this one. All windows over the same words, of whatever sizes, are made of clones of
/// one of these, so that they have one writer lock.
#[derive(Clone)]
pub struct SharedWindow {
    right_edge: &'static AtomicU64,
    ring: &'static [AtomicU64],
    writer: Arc<Mutex<()>>,
}

impl SharedWindow {
    /// Words of the ring: enough for the largest window.
    pub const RING_WORDS: usize = ring_words(ReplayWindow::LARGEST);

    /// The words of an inbound SA as they were left, or all 0 for one that has received nothing.
    pub fn new(
        right_edge: &'static AtomicU64,
        ring: &'static [AtomicU64; Self::RING_WORDS],
    ) -> SharedWindow {
        SharedWindow { right_edge, ring, writer: Arc::default() }
    }

    /// Sets the words so that every number up to `right_edge` counts as received. Before any
    /// window is made of them.
    pub fn begin_after(&self, right_edge: u64) {
        let word_of_edge = index(right_edge, self.ring.len());
        for (place, word) in self.ring.iter().enumerate() {
            let seen = if place == word_of_edge { u64::MAX >> (63 - right_edge % 64) } else { !0 };
            word.store(if right_edge == 0 { 0 } else { seen }, Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
        self.right_edge.store(right_edge, Ordering::Relaxed);
    }

    /// The highest number that counts as received.
    pub fn right_edge(&self) -> u64 {
        self.right_edge.load(Ordering::Relaxed)
    }
}

/// Where a window's words are.
enum Storage {
    /// In the window: they end with it.
    Own { right_edge: AtomicU64, ring: Box<[AtomicU64]>, writer: Mutex<()> },
    /// In a mapping.
    Shared(SharedWindow),
}

/// Which of the last `size` sequence numbers of an SA were received.
///
/// A number `n` is accepted if `n > 0`, `n + size >` the right edge, and it was not accepted
/// before; the right edge is the highest number accepted so far.
///
/// One writer at a time: either only the worker that owns the SA calls [`commit`](Self::commit),
/// or all call [`commit_locked`](Self::commit_locked). Others may read at any time and see a state
/// that is a few packets old or in the middle of a commit. That is why there is no atomic
/// read-modify-write here; two writers could accept one number twice.
///
/// The bits lie in a ring of words: number `n` is bit `n % 64` of word `n / 64`, modulo the ring.
/// The ring has two words more than the window fills: a word is wiped before the right edge enters
/// it, and then holds only numbers left of the window. So the words are right between any two
/// stores, should the process be killed there: what was accepted stays refused.
pub struct ReplayWindow {
    storage: Storage,
    size: u32,
    numbers: SequenceNumbers,
}

impl ReplayWindow {
    /// Smallest size.
    pub const SMALLEST: u32 = 32;
    /// Largest size.
    pub const LARGEST: u32 = 4096;

    /// An empty window of `size` packets.
    ///
    /// # Errors
    /// [`WindowSizeError`] if `size` is not a multiple of 32 from 32 to 4096.
    pub fn new(size: u32, numbers: SequenceNumbers) -> Result<ReplayWindow, WindowSizeError> {
        check_size(size)?;
        let ring = (0..ring_words(size)).map(|_| AtomicU64::new(0)).collect();
        let storage = Storage::Own { right_edge: AtomicU64::new(0), ring, writer: Mutex::new(()) };
        Ok(ReplayWindow { storage, size, numbers })
    }

    /// A window of `size` packets over words that outlive it.
    ///
    /// # Errors
    /// [`WindowSizeError`] as for [`new`](Self::new).
    pub fn shared(
        words: SharedWindow,
        size: u32,
        numbers: SequenceNumbers,
    ) -> Result<ReplayWindow, WindowSizeError> {
        check_size(size)?;
        Ok(ReplayWindow { storage: Storage::Shared(words), size, numbers })
    }

    /// Whether [`commit`](Self::commit) would accept `number` now. Done before the cipher, to
    /// spend no time on replays; says nothing about authenticity.
    ///
    /// # Errors
    /// What `commit` would return.
    #[inline]
    pub fn check(&self, number: u64) -> Result<(), ReplayError> {
        let right = self.right_edge();
        if number > right {
            return Ok(());
        }
        self.check_inside(number, right).map(|_| ())
    }

    /// Marks `number` as received. Only after the packet authenticated. It checks again, so that
    /// of two equal numbers in one batch one is delivered.
    ///
    /// Cost: one word; when the right edge jumps, the words it jumps over, at most all.
    ///
    /// # Errors
    /// Both of [`ReplayError`]; the window is then unchanged.
    #[inline]
    pub fn commit(&self, number: u64) -> Result<(), ReplayError> {
        let right = self.right_edge();
        let seen = if number > right {
            self.advance(right, number);
            self.word(number).load(Ordering::Relaxed)
        } else {
            self.check_inside(number, right)?
        };
        self.word(number).store(seen | bit(number), Ordering::Relaxed);
        Ok(())
    }

    /// The same for an SA that several workers open with: one of them at a time.
    ///
    /// # Errors
    /// Both of [`ReplayError`]; the window is then unchanged.
    pub fn commit_locked(&self, number: u64) -> Result<(), ReplayError> {
        let writer = match &self.storage {
            Storage::Own { writer, .. } => writer,
            Storage::Shared(words) => &*words.writer,
        };
        // The words are right between any two stores, so a poisoned lock is as good as another.
        let _one = writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.commit(number)
    }

    /// The highest number accepted so far; 0 at the start.
    #[inline]
    pub fn right_edge(&self) -> u64 {
        self.edge().load(Ordering::Relaxed)
    }

    /// How many numbers it remembers.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Width of the numbers.
    pub const fn numbers(&self) -> SequenceNumbers {
        self.numbers
    }

    /// The whole sequence number of a packet that carries its low 32 bits.
    ///
    /// Without ESN these are the number. With ESN it is the one number that ends in `low` among
    /// the 2³² that begin at the window's left edge (RFC 4303 Appendix A2.2). Where that would be
    /// below 0 or above the highest number, it is the one of the first or last 2³² numbers: above
    /// the highest there is none, and the answer is then too old for [`check`](Self::check).
    /// A wrong guess is harmless: the high half is authenticated.
    #[inline]
    pub fn infer(&self, low: u32) -> u64 {
        let left = match self.numbers {
            SequenceNumbers::Short => return u64::from(low),
            SequenceNumbers::Extended => self.right_edge().saturating_sub(u64::from(self.size) - 1),
        };
        let same_half = left & !u64::from(u32::MAX) | u64::from(low);
        if same_half < left {
            same_half.checked_add(1 << 32).unwrap_or(same_half)
        } else {
            same_half
        }
    }

    /// Judges a number that is not right of the edge; returns the word that its bit is in.
    #[inline]
    fn check_inside(&self, number: u64, right: u64) -> Result<u64, ReplayError> {
        if number == 0 || right - number >= u64::from(self.size) {
            return Err(ReplayError::TooOld);
        }
        let word = self.word(number).load(Ordering::Relaxed);
        if word & bit(number) != 0 { Err(ReplayError::Duplicate) } else { Ok(word) }
    }

    /// Moves the right edge.
    #[inline]
    fn advance(&self, right: u64, number: u64) {
        advance_by(right, number, self.ring().len() as u64, |store| match store {
            Store::Wipe(inside) => self.word(inside).store(0, Ordering::Relaxed),
            Store::Enter(edge) => self.enter(edge),
        });
    }

    /// Moves the right edge into words that are wiped. Whoever is killed before or after this
    /// left all stores in the order of the program, if the compiler keeps it.
    #[inline]
    fn enter(&self, number: u64) {
        compiler_fence(Ordering::SeqCst);
        self.edge().store(number, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn edge(&self) -> &AtomicU64 {
        match &self.storage {
            Storage::Own { right_edge, .. } => right_edge,
            Storage::Shared(words) => words.right_edge,
        }
    }

    #[inline]
    fn ring(&self) -> &[AtomicU64] {
        match &self.storage {
            Storage::Own { ring, .. } => ring,
            Storage::Shared(words) => words.ring,
        }
    }

    #[inline]
    fn word(&self, number: u64) -> &AtomicU64 {
        let ring = self.ring();
        &ring[index(number, ring.len())]
    }
}

/// One store on the way of the right edge.
enum Store {
    /// Wipes the word that holds this number.
    Wipe(u64),
    /// Moves the right edge.
    Enter(u64),
}

/// The stores that move the right edge to `number`, in their order: word by word, each wiped and
/// then entered. Between any two of them whatever was accepted is refused.
#[inline]
fn advance_by(right: u64, number: u64, ring_words: u64, mut make: impl FnMut(Store)) {
    let (mut block, last) = (right / 64, number / 64);
    if last - block > ring_words {
        // Beyond the whole ring: first everything before it becomes too old.
        block = last - ring_words;
        make(Store::Enter(block * 64 + 63));
    }
    while block < last {
        block += 1;
        make(Store::Wipe(block * 64));
        if block < last {
            make(Store::Enter(block * 64));
        }
    }
    make(Store::Enter(number));
}

impl fmt::Debug for ReplayWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (right_edge, size, numbers) = (self.right_edge(), self.size, self.numbers);
        write!(f, "ReplayWindow {{ right_edge: {right_edge}, size: {size}, {numbers:?} }}")
    }
}

const fn check_size(size: u32) -> Result<(), WindowSizeError> {
    let offered = size >= ReplayWindow::SMALLEST && size <= ReplayWindow::LARGEST;
    if offered && size.is_multiple_of(32) { Ok(()) } else { Err(WindowSizeError { size }) }
}

/// Words of the ring of a window: `size` successive numbers touch at most one word more than they
/// fill, and one more is wiped before the right edge enters it.
const fn ring_words(size: u32) -> usize {
    (size.div_ceil(64) as usize + 2).next_power_of_two()
}

/// Place of a number's word in a ring; the length is a power of two, at most 128.
#[inline]
const fn index(number: u64, ring: usize) -> usize {
    (number / 64) as usize & (ring - 1)
}

const fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// The oracle: RFC 4303's words with a set of everything ever accepted.
    struct Everything {
        seen: HashSet<u64>,
        right: u64,
        size: u64,
    }

    impl Everything {
        fn judge(&self, number: u64) -> Result<(), ReplayError> {
            if number == 0 || u128::from(number) + u128::from(self.size) <= u128::from(self.right) {
                Err(ReplayError::TooOld)
            } else if self.seen.contains(&number) {
                Err(ReplayError::Duplicate)
            } else {
                Ok(())
            }
        }

        fn commit(&mut self, number: u64) -> Result<(), ReplayError> {
            self.judge(number)?;
            self.seen.insert(number);
            self.right = self.right.max(number);
            Ok(())
        }
    }

    fn window(size: u32) -> ReplayWindow {
        ReplayWindow::new(size, SequenceNumbers::Extended).unwrap()
    }

    /// Both judge the same numbers; every number is asked of both before it is committed.
    fn same_as_everything(size: u32, numbers: impl IntoIterator<Item = u64>) {
        let fast = window(size);
        let mut all = Everything { seen: HashSet::new(), right: 0, size: u64::from(size) };
        for number in numbers {
            let expected = all.judge(number);
            assert_eq!(fast.check(number), expected, "check {number}, size {size}");
            all.commit(number).ok();
            assert_eq!(fast.commit(number), expected, "commit {number}, size {size}");
            assert_eq!(fast.right_edge(), all.right);
            // A commit is seen at once, and changes nothing near the edges but its own number.
            for near in near_the_window(all.right, size) {
                assert_eq!(fast.check(near), all.judge(near), "{near} after {number}, size {size}");
            }
        }
    }

    fn near_the_window(right: u64, size: u32) -> Vec<u64> {
        let left = right.saturating_sub(u64::from(size) - 1);
        [left, right, right.saturating_sub(64), right.saturating_sub(31)]
            .into_iter()
            .flat_map(|n| [n.saturating_sub(1), n, n.saturating_add(1)])
            .chain([0, 1, u64::MAX])
            .collect()
    }

    fn sizes() -> impl Strategy<Value = u32> {
        prop_oneof![
            Just(32u32),
            Just(64),
            Just(96),
            Just(128),
            Just(1024),
            Just(4064),
            Just(4096),
            (1u32..=128).prop_map(|n| n * 32)
        ]
    }

    /// A walk of steps of the sizes that matter, from a start where arithmetic may end.
    fn numbers() -> impl Strategy<Value = Vec<u64>> {
        let start = prop_oneof![
            3 => Just(0u64),
            1 => Just(u64::from(u32::MAX) - 200),
            1 => Just(u64::MAX - 9000),
            1 => Just(u64::MAX - 40),
            1 => any::<u64>(),
        ];
        let step = prop_oneof![
            6 => -70i64..=70,
            2 => -4200i64..=4200,
            1 => (-140i64..=140).prop_map(|n| n * 32),
            1 => (-140i64..=140).prop_map(|n| n * 32 + 1),
            1 => Just(i64::from(u32::MAX)),
            1 => Just(-i64::from(u32::MAX)),
        ];
        (start, prop::collection::vec(step, 1..250)).prop_map(|(start, steps)| {
            let mut at = start;
            std::iter::once(start)
                .chain(steps.into_iter().map(|step| {
                    at = at.saturating_add_signed(step);
                    at
                }))
                .collect()
        })
    }

    proptest! {
        #[test]
        fn window_is_the_set_of_all_numbers_seen(size in sizes(), numbers in numbers()) {
            same_as_everything(size, numbers);
        }

        /// Appendix A2.2 by its meaning: of all numbers that end in `low`, the one in the 2³²
        /// that begin at the left edge; outside of the numbers that exist, the nearest.
        #[test]
        fn inferred_number_is_the_one_from_the_left_edge_on(
            size in sizes(),
            right in prop_oneof![
                any::<u64>(), 0u64..5000, u64::MAX - 5000..=u64::MAX,
                (any::<u32>(), -5000i64..5000)
                    .prop_map(|(high, n)| (u64::from(high) << 32).wrapping_add_signed(n)),
            ],
            offset in prop_oneof![any::<u32>(), 0u32..9000, u32::MAX - 9000..=u32::MAX],
        ) {
            let window = window(size);
            window.edge().store(right, Ordering::Relaxed);
            let low = (right as u32).wrapping_add(offset);
            let left = i128::from(right) - i128::from(size) + 1;
            let exact = left + (i128::from(low) - left).rem_euclid(1 << 32);
            let expected = match exact {
                below if below < 0 => exact + (1 << 32),
                above if above > i128::from(u64::MAX) => exact - (1 << 32),
                _ => exact,
            };
            let inferred = window.infer(low);
            prop_assert_eq!(i128::from(inferred), expected);
            if exact > i128::from(u64::MAX) {
                prop_assert_eq!(window.check(inferred), Err(ReplayError::TooOld));
            }
        }
    }

    /// Words that outlive their windows, as a mapping does.
    fn outliving() -> SharedWindow {
        let words: Vec<AtomicU64> =
            (0..=SharedWindow::RING_WORDS).map(|_| AtomicU64::new(0)).collect();
        let (right_edge, ring) = words.leak().split_first().unwrap();
        SharedWindow::new(right_edge, ring.first_chunk().unwrap())
    }

    /// Right edge and ring as they are between the stores of a commit: a process may be killed at
    /// each. `before` and `after` hold the right edge, then the ring.
    fn states_of_a_commit(before: &[u64], after: &[u64], number: u64) -> Vec<Vec<u64>> {
        let ring = before.len() - 1;
        let place = |number: u64| 1 + index(number, ring);
        let (mut words, mut states) = (before.to_vec(), vec![before.to_vec()]);
        if number > before[0] {
            advance_by(before[0], number, ring as u64, |store| {
                match store {
                    Store::Wipe(inside) => words[place(inside)] = 0,
                    Store::Enter(edge) => words[0] = edge,
                }
                states.push(words.clone());
            });
        }
        words[place(number)] |= bit(number);
        assert_eq!(words, after, "the stores are those that the commit made");
        states.push(words);
        states
    }

    fn copy_of(words: &SharedWindow) -> Vec<u64> {
        let ring = words.ring.iter().map(|word| word.load(Ordering::Relaxed));
        std::iter::once(words.right_edge()).chain(ring).collect()
    }

    proptest! {
        #[test]
        fn killed_between_any_two_stores_it_refuses_all_that_was_accepted(
            size in sizes(), numbers in numbers(),
        ) {
            let words = outliving();
            let window = ReplayWindow::shared(words.clone(), size, SequenceNumbers::Extended);
            let window = window.unwrap();
            let left = outliving();
            let restarted =
                ReplayWindow::shared(left.clone(), size, SequenceNumbers::Extended).unwrap();
            let mut accepted: Vec<u64> = Vec::new();
            for number in numbers.into_iter().take(60) {
                let before = copy_of(&words);
                if window.commit(number).is_err() {
                    continue;
                }
                for state in states_of_a_commit(&before, &copy_of(&words), number) {
                    left.right_edge.store(state[0], Ordering::Relaxed);
                    for (word, value) in left.ring.iter().zip(&state[1..]) {
                        word.store(*value, Ordering::Relaxed);
                    }
                    for &old in accepted.iter().rev().take(200) {
                        prop_assert!(restarted.check(old).is_err(), "{old} again, at {number}");
                    }
                }
                accepted.push(number);
            }
        }

        /// Oracle: everything up to the edge was received.
        #[test]
        fn window_that_begins_after_an_edge_refuses_all_up_to_it_and_nothing_beyond(
            size in sizes(),
            edge in prop_oneof![0u64..5000, u64::MAX - 9000..=u64::MAX, any::<u64>()],
            ahead in prop::collection::vec(0u64..9000, 1..50),
        ) {
            let words = outliving();
            words.begin_after(edge);
            let window = ReplayWindow::shared(words, size, SequenceNumbers::Extended).unwrap();
            prop_assert_eq!(window.right_edge(), edge);
            for number in edge.saturating_sub(5000)..=edge {
                prop_assert!(window.check(number).is_err(), "{number}");
            }
            let mut all = Everything { seen: HashSet::new(), right: edge, size: size.into() };
            for number in ahead.into_iter().filter_map(|ahead| edge.checked_add(ahead)) {
                let expected =
                    if number <= edge { window.check(number) } else { all.commit(number) };
                prop_assert_eq!(window.commit(number), expected, "{}", number);
            }
        }
    }

    #[test]
    fn sizes_other_than_multiples_of_32_from_32_to_4096_are_refused() {
        for size in (0..=5000).chain([u32::MAX, u32::MAX - 31]) {
            let offered = size % 32 == 0 && size != 0 && size <= 4096;
            match ReplayWindow::new(size, SequenceNumbers::Short) {
                Ok(window) => assert!(offered && window.size() == size),
                Err(error) => assert!(!offered && error == WindowSizeError { size }),
            }
        }
    }

    #[test]
    fn zero_is_never_accepted() {
        let window = window(32);
        assert_eq!(window.check(0), Err(ReplayError::TooOld));
        assert_eq!(window.commit(0), Err(ReplayError::TooOld));
        assert_eq!(window.commit(1), Ok(()));
        assert_eq!(window.commit(0), Err(ReplayError::TooOld));
    }

    #[test]
    fn replay_window_refuses_a_number_older_than_its_left_edge() {
        for size in (1..=128).map(|n| n * 32) {
            let window = window(size);
            let right = u64::from(size) * 3 + 17;
            window.commit(right).unwrap();
            let left = right - u64::from(size) + 1;
            assert_eq!(window.commit(left - 1), Err(ReplayError::TooOld));
            assert_eq!(window.commit(left), Ok(()));
            assert_eq!(window.commit(left), Err(ReplayError::Duplicate));
            assert_eq!(window.commit(right), Err(ReplayError::Duplicate));
        }
    }

    #[test]
    fn two_equal_numbers_of_a_batch_deliver_one_packet() {
        let window = window(64);
        assert_eq!((window.check(7), window.check(7)), (Ok(()), Ok(())));
        assert_eq!(window.commit(7), Ok(()));
        assert_eq!(window.commit(7), Err(ReplayError::Duplicate));
    }

    #[test]
    fn every_number_of_a_window_is_accepted_once_in_any_order() {
        for size in [32, 96, 4096u32] {
            let backwards = (1..=u64::from(size) * 2).rev();
            same_as_everything(size, backwards.clone().chain(backwards));
        }
    }

    #[test]
    fn jump_beyond_the_whole_ring_forgets_everything_before() {
        for size in [32, 64, 4096u32] {
            for jump in [63, 64, 65, 127, 128, 8191, 8192, 8193, 1 << 32, 1 << 63] {
                let before = (1..=200).chain([200 + jump]);
                let after = (0..=u64::from(size) + 70).map(move |n| 200 + jump - n.min(200 + jump));
                same_as_everything(size, before.chain(after));
            }
        }
    }

    #[test]
    fn without_esn_the_number_is_what_the_packet_carries() {
        let window = ReplayWindow::new(64, SequenceNumbers::Short).unwrap();
        window.commit(u64::from(u32::MAX)).unwrap();
        for low in [0, 1, 5, u32::MAX - 64, u32::MAX] {
            assert_eq!(window.infer(low), u64::from(low));
        }
        assert_eq!(window.check(window.infer(1)), Err(ReplayError::TooOld));
    }

    #[test]
    fn with_esn_numbers_go_on_beyond_32_bits() {
        let window = window(64);
        let end = u64::from(u32::MAX);
        window.commit(end).unwrap();
        assert_eq!(window.infer(0), end + 1);
        window.commit(end + 1).unwrap();
        assert_eq!(window.infer(u32::MAX - 5), end - 5);
        assert_eq!(window.infer(7), end + 8);
    }

    #[test]
    fn with_esn_the_left_edge_is_where_the_next_high_half_begins() {
        for size in [32, 96, 4096u32] {
            for right in [1 << 32, (5 << 32) + 10, (5 << 32) + 5000, u64::MAX - (1 << 32)] {
                let window = window(size);
                window.commit(right).unwrap();
                let left = right - u64::from(size) + 1;
                assert_eq!(window.infer(left as u32), left);
                assert_eq!(window.infer((left - 1) as u32), left - 1 + (1 << 32));
            }
        }
    }
}
