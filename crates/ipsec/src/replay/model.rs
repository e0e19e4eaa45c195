//! Commits of several threads in every order that the memory model allows (loom), on a ring of
//! two words: 64 numbers further on, a word is taken by the next block.

use std::collections::BTreeSet;
use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};

use super::words::{Word, Words};
use super::{Advance, ReplayError};

impl Word for AtomicU64 {
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    fn compare_exchange(&self, expected: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
    }

    fn fetch_max(&self, value: u64) -> u64 {
        self.fetch_max(value, Ordering::AcqRel)
    }
}

type Small<'a> = Words<'a, AtomicU64, 2>;
const SIZE: u64 = 32;
const FAR: u64 = Small::FAR;

#[derive(Default)]
struct Storage {
    right_edge: AtomicU64,
    ring: [AtomicU64; 2],
}

impl Storage {
    fn words(&self) -> Small<'_> {
        Words { right_edge: &self.right_edge, ring: &self.ring }
    }
}

/// An action of a thread, in order.
#[derive(Clone, Copy)]
enum Act {
    Commit(u64),
    /// All numbers at once.
    Batch(&'static [u64]),
    /// The thread is killed after its word was exchanged: nobody is told that the number was
    /// accepted.
    Killed(u64),
}
use Act::{Batch, Commit, Killed};

type Answers = Vec<(u64, Result<Advance, ReplayError>)>;

fn act(words: &Small<'_>, acts: &[Act]) -> Answers {
    let mut answers = Answers::new();
    for act in acts {
        match *act {
            Commit(number) => answers.push((number, words.commit_shared(number, SIZE))),
            Killed(number) => drop(words.mark_shared(number, SIZE)),
            Batch(numbers) => {
                let mut judged = Vec::new();
                words.commit_batch_shared(numbers, SIZE, &mut judged);
                answers.extend(numbers.iter().copied().zip(judged));
            }
        }
    }
    answers
}

/// Runs the threads behind a worker that was alone, in every order.
fn in_every_order(before: &'static [u64], threads: &'static [&'static [Act]]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let storage = Arc::new(Storage::default());
        for number in before {
            storage.words().commit(*number, SIZE).unwrap();
        }
        let began = storage.words().right_edge.load(Ordering::Acquire);
        let spawned: Vec<_> = threads[1..]
            .iter()
            .map(|acts| {
                let storage = storage.clone();
                loom::thread::spawn(move || act(&storage.words(), acts))
            })
            .collect();
        let mut answers = act(&storage.words(), threads[0]);
        for thread in spawned {
            answers.extend(thread.join().unwrap());
        }
        let killed = threads.iter().copied().flatten().filter_map(|act| match act {
            Killed(number) => Some(*number),
            _ => None,
        });
        is_as_if_one_by_one(&storage.words(), (began, before), &answers, &killed.collect());
    });
}

fn is_as_if_one_by_one(
    words: &Small<'_>,
    (began, before): (u64, &[u64]),
    answers: &Answers,
    killed: &BTreeSet<u64>,
) {
    let mut accepted: BTreeSet<u64> = before.iter().copied().collect();
    for (number, answer) in answers {
        assert!(answer.is_err() || accepted.insert(*number), "{number} was accepted twice");
    }
    let right = words.right_edge.load(Ordering::Acquire);
    let highest = *accepted.iter().chain([&began]).max().unwrap();
    // One from far that is refused may have moved the window all the same.
    let refused_far =
        answers.iter().any(|(number, answer)| *number > began + FAR && answer.is_err());
    assert!(
        right == highest || right > highest && refused_far,
        "the edge is the highest that was accepted: {answers:?}"
    );
    for number in &accepted {
        assert!(words.check(*number, SIZE).is_err(), "{number} again: {answers:?}");
        assert!(words.commit(*number, SIZE).is_err(), "{number} again: {answers:?}");
    }
    let mut moved = 0;
    for (number, answer) in answers {
        match answer {
            Ok(Advance::Moved) => {
                assert!(*number > began);
                moved += 1;
            }
            // It was overtaken by one that was further.
            Ok(Advance::Inside) => assert!(*number < right, "{number}: {answers:?}"),
            Err(ReplayError::TooOld) => {
                // One that was killed may have left a word that is ahead of the edge, and among
                // tags that have gone around an old one may look new.
                let is_sure = killed.is_empty() && *number < began + FAR;
                assert!(number + SIZE <= right || !is_sure, "{number}: {answers:?}");
            }
            Err(ReplayError::Duplicate) => {
                assert!(accepted.contains(number) || killed.contains(number), "{number}");
            }
        }
    }
    assert!(moved > 0 || highest == began || refused_far, "somebody moved it: {answers:?}");
}

#[test]
fn one_number_is_accepted_for_one_of_two_or_three_threads() {
    in_every_order(&[], &[&[Commit(7)], &[Commit(7)]]);
    in_every_order(&[60], &[&[Commit(40)], &[Commit(40)], &[Commit(40)]]);
    in_every_order(&[10], &[&[Commit(40)], &[Commit(40)], &[Commit(40)]]);
}

#[test]
fn numbers_of_one_block_are_all_accepted_once() {
    in_every_order(&[], &[&[Commit(33), Commit(34)], &[Commit(34), Commit(33)]]);
    in_every_order(&[40], &[&[Commit(33)], &[Commit(34)], &[Commit(35)]]);
    in_every_order(&[32], &[&[Commit(33)], &[Commit(34)], &[Commit(33)]]);
}

#[test]
fn blocks_that_share_a_word_follow_each_other() {
    in_every_order(&[41], &[&[Commit(40)], &[Commit(104)]]);
    in_every_order(&[41], &[&[Commit(40), Commit(104)], &[Commit(104), Commit(40)]]);
    in_every_order(&[41], &[&[Commit(40)], &[Commit(104)], &[Commit(168)]]);
    in_every_order(&[71], &[&[Commit(40)], &[Commit(96)], &[Commit(40)]]);
}

#[test]
fn edge_that_jumps_beyond_the_ring_leaves_nothing_to_accept_again() {
    in_every_order(&[100], &[&[Commit(99)], &[Commit(1000)], &[Commit(99)]]);
    in_every_order(&[100], &[&[Commit(99), Commit(1000)], &[Commit(1000), Commit(99)]]);
    in_every_order(&[100], &[&[Commit(1000)], &[Commit(1031)], &[Commit(1032)]]);
}

/// The tags of two words are more than half of all tags apart.
#[test]
fn edge_that_jumps_beyond_all_tags_leaves_nothing_to_accept_again() {
    in_every_order(&[40], &[&[Commit(39)], &[Commit(39 + FAR)], &[Commit(39)]]);
    in_every_order(&[40], &[&[Commit(39)], &[Commit(39 + FAR), Commit(39 + 2 * FAR)]]);
    in_every_order(&[40], &[&[Commit(39 + FAR * 16)], &[Commit(39)], &[Commit(39 + FAR * 48)]]);
    // Each of the three looks newer than the one before it.
    const CIRCLE: [u64; 3] = [39 + FAR * 20, 39, 39 + FAR * 10];
    const AROUND: &[Act] = &[Commit(CIRCLE[1]), Commit(CIRCLE[2]), Commit(CIRCLE[0])];
    in_every_order(&[], &[&[Commit(CIRCLE[0])], AROUND]);
}

#[test]
fn thread_killed_in_a_commit_lets_nothing_be_accepted_twice() {
    in_every_order(&[40], &[&[Commit(41)], &[Killed(41)], &[Commit(41)]]);
    in_every_order(&[40], &[&[Commit(39)], &[Killed(104)], &[Commit(39)]]);
}

#[test]
fn batches_accept_each_number_once() {
    in_every_order(&[], &[&[Batch(&[30, 31, 32, 33])], &[Batch(&[33, 31, 34])]]);
    in_every_order(&[40], &[&[Batch(&[39, 104, 39])], &[Commit(39)], &[Commit(104)]]);
    in_every_order(&[40], &[&[Batch(&[39, 41 + FAR, 41])], &[Commit(39)]]);
}
