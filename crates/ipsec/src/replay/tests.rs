//! Against the obvious: the set of everything ever accepted.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use proptest::prelude::*;

use super::words::Word;
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

    fn commit(&mut self, number: u64) -> Result<Advance, ReplayError> {
        self.judge(number)?;
        self.seen.insert(number);
        let advance = if number > self.right { Advance::Moved } else { Advance::Inside };
        self.right = self.right.max(number);
        Ok(advance)
    }
}

fn window(size: u32) -> ReplayWindow {
    ReplayWindow::new(size, SequenceNumbers::Extended).unwrap()
}

/// The method of committing a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writer {
    Alone,
    OneOfMany,
}

impl Writer {
    const BOTH: [Writer; 2] = [Writer::Alone, Writer::OneOfMany];

    fn commit(self, window: &ReplayWindow, number: u64) -> Result<Advance, ReplayError> {
        match self {
            Writer::Alone => window.commit(number),
            Writer::OneOfMany => window.commit_shared(number),
        }
    }
}

/// Checks, before and in each commit, that both windows judge a number alike.
fn same_as_everything(writer: Writer, size: u32, numbers: impl IntoIterator<Item = u64>) {
    let fast = window(size);
    let mut all = Everything { seen: HashSet::new(), right: 0, size: u64::from(size) };
    for number in numbers {
        let expected = all.judge(number);
        assert_eq!(fast.check(number), expected, "check {number}, size {size}");
        let advance = all.commit(number);
        assert_eq!(writer.commit(&fast, number), advance, "commit {number}, size {size}");
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
        for writer in Writer::BOTH {
            same_as_everything(writer, size, numbers.iter().copied());
        }
    }

    /// Oracle: one by one.
    #[test]
    fn batch_is_its_numbers_one_by_one(
        size in sizes(),
        numbers in numbers(),
        ends in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
    ) {
        let (fast, single) = (window(size), window(size));
        let (series, alone) = (window(size), window(size));
        let mut ends: Vec<usize> = ends.iter().map(|end| end.index(numbers.len())).collect();
        ends.extend([0, numbers.len()]);
        ends.sort_unstable();
        let mut answers = vec![Ok(Advance::Moved)];
        for pair in ends.windows(2) {
            let batch = &numbers[pair[0]..pair[1]];
            fast.commit_batch_shared(batch, &mut answers);
            let expected: Vec<_> = batch.iter().map(|n| single.commit_shared(*n)).collect();
            prop_assert_eq!(&answers, &expected, "{:?}", batch);
            prop_assert_eq!(fast.right_edge(), single.right_edge());
            let mut cursor = series.cursor();
            let answers: Vec<_> = batch.iter().map(|n| cursor.commit(*n)).collect();
            cursor.finish();
            let expected: Vec<_> = batch.iter().map(|n| alone.commit(*n)).collect();
            prop_assert_eq!(&answers, &expected, "{:?}", batch);
            prop_assert_eq!(series.right_edge(), alone.right_edge());
        }
        for number in numbers {
            prop_assert_eq!(fast.check(number), single.check(number));
            prop_assert_eq!(series.check(number), alone.check(number));
        }
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
        on_words!(window, words => words.right_edge.store(right, Ordering::Relaxed));
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
    let words: Vec<AtomicU64> = (0..=SharedWindow::RING_WORDS).map(|_| AtomicU64::new(0)).collect();
    let (right_edge, ring) = words.leak().split_first().unwrap();
    SharedWindow::new(right_edge, ring.first_chunk().unwrap())
}

/// A word that tells what is written to it.
struct Told<'a> {
    place: usize,
    value: Cell<u64>,
    written: &'a RefCell<Vec<(usize, u64)>>,
}

impl Word for Told<'_> {
    fn load(&self) -> u64 {
        self.value.get()
    }

    fn store(&self, value: u64) {
        self.value.set(value);
        self.written.borrow_mut().push((self.place, value));
    }

    fn compare_exchange(&self, expected: u64, new: u64) -> Result<u64, u64> {
        assert_eq!(self.load(), expected, "nobody else is here");
        self.store(new);
        Ok(expected)
    }

    fn fetch_max(&self, value: u64) -> u64 {
        let before = self.load();
        self.store(before.max(value));
        before
    }
}

/// A copy of a ring and, as its last word, the right edge.
type Copied = Vec<u64>;

/// Commits over a copy. Returns the copies as they are between its writes, and the answer.
fn states_of_a_commit<const N: usize>(
    before: &Copied,
    writer: Writer,
    (number, size): (u64, u64),
) -> (Vec<Copied>, Result<Advance, ReplayError>) {
    let written = RefCell::default();
    let told = |place: usize| Told { place, value: Cell::new(before[place]), written: &written };
    let (ring, right_edge) = (std::array::from_fn(told), told(N));
    let words = Words::<_, N> { right_edge: &right_edge, ring: &ring };
    let answer = match writer {
        Writer::Alone => words.commit(number, size),
        Writer::OneOfMany => words.commit_shared(number, size),
    };
    let mut states = vec![before.clone()];
    for (place, value) in written.take() {
        let mut next = states[states.len() - 1].clone();
        next[place] = value;
        states.push(next);
    }
    (states, answer)
}

fn check_copy<const N: usize>(copied: &Copied, number: u64, size: u64) -> Result<(), ReplayError> {
    let words = RefCell::default();
    let told = |place: usize| Told { place, value: Cell::new(copied[place]), written: &words };
    let (ring, right_edge) = (std::array::from_fn(told), told(N));
    Words::<_, N> { right_edge: &right_edge, ring: &ring }.check(number, size)
}

/// Kills the process between any two writes of a commit; what it had accepted before stays
/// refused there. `kill` says after which write another process goes on.
fn nothing_is_accepted_twice<const N: usize>(
    size: u64,
    commits: impl IntoIterator<Item = (u64, Writer, Option<usize>)>,
) -> Result<(), TestCaseError> {
    let (mut now, mut accepted) = (vec![0; N + 1], Vec::new());
    for (number, writer, kill) in commits {
        let (states, answer) = states_of_a_commit::<N>(&now, writer, (number, size));
        for state in &states {
            for &old in accepted.iter().rev().take(100) {
                let again = check_copy::<N>(state, old, size);
                prop_assert!(again.is_err(), "{old} again, at {number} by {writer:?}");
            }
        }
        if answer.is_err() {
            prop_assert_eq!(&states[..], &[now.clone()][..], "refused {} changes nothing", number);
        }
        match kill {
            Some(writes) => now.clone_from(&states[writes % states.len()]),
            None => {
                now.clone_from(&states[states.len() - 1]);
                if answer.is_ok() {
                    prop_assert!(!accepted.contains(&number), "{number} again, by {writer:?}");
                    prop_assert!(now[N] >= number);
                    accepted.push(number);
                }
            }
        }
    }
    Ok(())
}

/// Generates for each commit its method, and the writes after which the process is killed, if it
/// is.
fn fates() -> impl Strategy<Value = Vec<(Writer, Option<usize>)>> {
    let writer = prop_oneof![Just(Writer::Alone), Just(Writer::OneOfMany)];
    prop::collection::vec((writer, prop::option::weighted(0.3, 0usize..4)), 60)
}

proptest! {
    #[test]
    fn killed_between_any_two_writes_it_refuses_all_that_was_accepted(
        size in sizes(), numbers in numbers(), fates in fates(),
    ) {
        let commits = numbers.into_iter().zip(fates);
        nothing_is_accepted_twice::<RING>(
            size.into(), commits.map(|(number, (writer, kill))| (number, writer, kill)))?;
    }

    /// A ring of two words, whose tags go around every 2³⁸ numbers.
    #[test]
    fn where_tags_go_around_nothing_is_accepted_twice(
        steps in prop::collection::vec((
            prop_oneof![Just(0i64), Just(32), Just(1 << 32), Just((1 << 33) - 1), Just(1 << 33),
                Just(1 << 36), Just(1 << 37), Just(1 << 38), Just(1 << 39), Just(1 << 62)],
            -70i64..70,
        ), 60),
        fates in fates(),
    ) {
        let mut at = 0u64;
        let commits = steps.into_iter().zip(fates).map(|((far, near), (writer, kill))| {
            at = at.saturating_add_signed(far).saturating_add_signed(near);
            (at, writer, kill)
        });
        nothing_is_accepted_twice::<2>(32, commits)?;
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
            let expected = match window.check(number) {
                Err(error) if number <= edge => Err(error),
                _ => all.commit(number),
            };
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
    assert_eq!(window.commit(1), Ok(Advance::Moved));
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
        assert_eq!(window.commit(left), Ok(Advance::Inside));
        assert_eq!(window.commit(left), Err(ReplayError::Duplicate));
        assert_eq!(window.commit(right), Err(ReplayError::Duplicate));
    }
}

#[test]
fn two_equal_numbers_of_a_batch_deliver_one_packet() {
    let window = window(64);
    assert_eq!((window.check(7), window.check(7)), (Ok(()), Ok(())));
    assert_eq!(window.commit(7), Ok(Advance::Moved));
    assert_eq!(window.commit(7), Err(ReplayError::Duplicate));
}

#[test]
fn every_number_of_a_window_is_accepted_once_in_any_order() {
    for size in [32, 96, 2016, 2048, 4096u32] {
        for writer in Writer::BOTH {
            let backwards = (1..=u64::from(size) * 2).rev();
            same_as_everything(writer, size, backwards.clone().chain(backwards));
        }
    }
}

#[test]
fn jump_beyond_the_whole_ring_forgets_everything_before() {
    let near = [63, 64, 65, 127, 128, 2047, 2048, 2049, 8191, 8192, 8193, 1 << 32];
    let far_of_small = [(1 << 38) - 1, 1 << 38, 1 << 41];
    let far_of_large = [(1 << 40) - 1, 1 << 40, 1 << 43];
    for size in [32, 64, 2016, 2048, 4096u32] {
        let far = if size <= 2016 { far_of_small } else { far_of_large };
        let jumps = near.into_iter().chain(far).map(|jump| (jump, &Writer::BOTH[..]));
        // Further, the old tags look new. Whoever is alone wipes them.
        for (jump, writers) in jumps.chain([(1 << 63, &[Writer::Alone][..])]) {
            for writer in writers {
                let before = (1..=200).chain([200 + jump]);
                let after = (0..=u64::from(size) + 70).map(move |n| 200 + jump - n.min(200 + jump));
                same_as_everything(*writer, size, before.chain(after));
            }
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

#[test]
fn window_of_its_own_takes_no_more_memory_than_its_size_needs() {
    let is_small = |size| {
        let window = ReplayWindow::new(size, SequenceNumbers::Extended).unwrap();
        matches!(window.storage, Storage::Small(_))
    };
    assert_eq!([32, 1024, 2016, 2048, 4096].map(is_small), [true, true, true, false, false]);
}
