//! Commits numbers to the words of a window. The same code runs over the machine's atomics and over
//! those of a model checker, on a ring of any size.
//!
//! Number `n` belongs to block `n / 32`; block `b` has word `b % RING`, and there the tag
//! `b / RING`, of which the low 32 bits are kept. A word is `tag ‖ seen`: the newest block of which
//! a number was accepted there, and one bit for each of its numbers. It changes in one way only:
//! forward, by one more bit or by a newer tag. From that follows all that matters:
//!
//! - Nothing is accepted twice. Whoever accepts `n` has put its bit, and the exchange of one word
//!   has one order for all. From then on the word has this bit, or a newer tag.
//! - It does not matter where a process is killed: what a word refuses it refuses for ever.
//! - Nothing is wiped, however far the right edge jumps.
//!
//! The right edge therefore only says what lies left of the window. That no number of the window
//! meets a newer tag needs `size <= 32 * RING - 31`: with the edge in block `B`, the block that
//! `B` took the word from ends `32 * RING - 31` left of the first number of `B`.
//!
//! Tags are compared as RFC 1982 compares serial numbers, so that two of one word must be less
//! than 2³¹ apart. A newer one cannot be further: the edge, which is read after the word, is then
//! at most [`FAR`](Words::FAR) numbers left of everything in the ring, and a commit that goes
//! further raises the edge first. An older one can: a word in whose blocks nothing was accepted
//! while the edge moved by 2³¹ tags (2⁴⁴ numbers in a ring of 256 words, 2⁴² in one of 64). It may
//! then be taken for a newer one and refuse numbers that never came, but never accept one that did.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Advance, ReplayError};

/// Numbers of a block: the bits of a word beside the tag.
const BLOCK: u64 = 32;

/// The operations on one word.
///
/// A load sees what was written before the value that it reads; a store or exchange is seen after
/// everything that its thread did before.
pub(super) trait Word {
    fn load(&self) -> u64;
    fn store(&self, value: u64);
    /// Replaces `expected`. `Err`: it was another value.
    fn compare_exchange(&self, expected: u64, new: u64) -> Result<u64, u64>;
    /// Raises the value; returns what it was.
    fn fetch_max(&self, value: u64) -> u64;
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn compare_exchange(&self, expected: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
    }

    #[inline]
    fn fetch_max(&self, value: u64) -> u64 {
        self.fetch_max(value, Ordering::AcqRel)
    }
}

/// The words of a window, wherever they are.
pub(super) struct Words<'a, W, const RING: usize> {
    /// The highest number accepted.
    pub(super) right_edge: &'a W,
    /// All 0: nothing was accepted.
    pub(super) ring: &'a [W; RING],
}

impl<W: Word, const RING: usize> Words<'_, W, RING> {
    /// The largest window that the ring is exact for.
    pub(super) const LARGEST: u64 = BLOCK * RING as u64 - (BLOCK - 1);
    /// Numbers so far right of the edge that it is raised before a word is: 2²⁷ tags.
    pub(super) const FAR: u64 = (RING as u64 * BLOCK) << 27;

    /// Checks whether `number` would be accepted.
    #[inline]
    pub(super) fn check(&self, number: u64, size: u64) -> Result<(), ReplayError> {
        let word = self.word(number).load();
        let right = self.right_edge.load();
        is_not_left_of(right, number, size)?;
        if number.saturating_sub(right) >= Self::FAR {
            return Ok(());
        }
        Self::mark(word, number).map(|_| ())
    }

    /// Accepts `number` where nobody else writes.
    #[inline]
    pub(super) fn commit(&self, number: u64, size: u64) -> Result<Advance, ReplayError> {
        let right = self.right_edge.load();
        is_not_left_of(right, number, size)?;
        if number.saturating_sub(right) >= Self::FAR {
            self.leap(number, size);
        }
        let word = self.word(number);
        word.store(Self::mark(word.load(), number)?);
        if number <= right {
            return Ok(Advance::Inside);
        }
        self.right_edge.store(number);
        Ok(Advance::Moved)
    }

    /// Makes ready for a number so far right that tags may have gone around: first everything
    /// that was accepted lies left of the window, then no word knows of it.
    #[cold]
    fn leap(&self, number: u64, size: u64) {
        self.right_edge.fetch_max(number - size);
        self.ring.iter().for_each(|word| word.store(0));
    }

    /// Accepts `number` where others may do the same at the same time.
    #[inline]
    pub(super) fn commit_shared(&self, number: u64, size: u64) -> Result<Advance, ReplayError> {
        let right = self.mark_shared(number, size)?;
        if number > right && self.right_edge.fetch_max(number) < number {
            Ok(Advance::Moved)
        } else {
            Ok(Advance::Inside)
        }
    }

    /// Puts the bit of `number`; returns a right edge of before.
    #[inline]
    pub(super) fn mark_shared(&self, number: u64, size: u64) -> Result<u64, ReplayError> {
        let word = self.word(number);
        loop {
            // In this order: the edge is then not further left than whoever wrote the word saw it.
            let seen = word.load();
            let right = self.right_edge.load();
            is_not_left_of(right, number, size)?;
            let marked = Self::mark(seen, number)?;
            if number.saturating_sub(right) >= Self::FAR {
                self.right_edge.fetch_max(number - size);
            } else if word.compare_exchange(seen, marked).is_ok() {
                return Ok(right);
            }
        }
    }

    /// Commits each number in turn like [`commit_shared`](Self::commit_shared), one answer per
    /// number. Successive numbers of one block take one exchange, and the edge takes one for all.
    pub(super) fn commit_batch_shared(
        &self,
        numbers: &[u64],
        size: u64,
        answers: &mut Vec<Result<Advance, ReplayError>>,
    ) {
        answers.clear();
        let began = self.right_edge.load();
        if numbers.iter().any(|number| number.saturating_sub(began) >= Self::FAR) {
            answers.extend(numbers.iter().map(|number| self.commit_shared(*number, size)));
            return;
        }
        let mut top = 0;
        for block in numbers.chunk_by(|a, b| a / BLOCK == b / BLOCK) {
            top = self.mark_block(block, size, top, answers);
        }
        if top <= began {
            return;
        }
        // Raised in one step by all of the batch that are further than whoever was here before.
        let mut right = self.right_edge.fetch_max(top);
        for (number, answer) in numbers.iter().zip(answers) {
            if *number > right && answer.is_ok() {
                (right, *answer) = (*number, Ok(Advance::Moved));
            }
        }
    }

    /// Puts the bits of numbers of one block, behind those of a batch up to `top`; appends whether
    /// it could, as if none moved the edge, and returns the new top.
    #[inline]
    fn mark_block(
        &self,
        numbers: &[u64],
        size: u64,
        top: u64,
        answers: &mut Vec<Result<Advance, ReplayError>>,
    ) -> u64 {
        let (word, before) = (self.word(numbers[0]), answers.len());
        loop {
            // In this order, as in `mark_shared`.
            let seen = word.load();
            let right = self.right_edge.load();
            let (mut marked, mut top) = (seen, top);
            for number in numbers {
                let judged = is_not_left_of(right.max(top), *number, size);
                let judged = judged.and_then(|()| Self::mark(marked, *number));
                answers.push(judged.map(|with_it| {
                    (marked, top) = (with_it, top.max(*number));
                    Advance::Inside
                }));
            }
            if marked == seen || word.compare_exchange(seen, marked).is_ok() {
                return top;
            }
            answers.truncate(before);
        }
    }

    /// Sets the words so that every number up to `right_edge` counts as accepted, and none beyond.
    pub(super) fn begin_after(&self, right_edge: u64) {
        let last = right_edge / BLOCK;
        for (place, word) in self.ring.iter().enumerate() {
            // The newest block up to the last one that has this word.
            let behind = last.wrapping_sub(place as u64) % RING as u64;
            let seen = match last.checked_sub(behind) {
                None => 0,
                Some(block) => {
                    let after = if behind == 0 { BLOCK - 1 - right_edge % BLOCK } else { 0 };
                    tag(block, RING) << 32 | u64::from(u32::MAX >> after)
                }
            };
            word.store(if right_edge == 0 { 0 } else { seen });
        }
        self.right_edge.store(right_edge);
    }

    /// A word with the bit of `number`, which is of one of its blocks.
    #[inline]
    fn mark(word: u64, number: u64) -> Result<u64, ReplayError> {
        let (tag, bit) = (tag(number / BLOCK, RING), 1 << (number % BLOCK));
        if word >> 32 == tag {
            return if word & bit == 0 { Ok(word | bit) } else { Err(ReplayError::Duplicate) };
        }
        let is_older = (tag as u32).wrapping_sub((word >> 32) as u32) <= i32::MAX as u32;
        // A word that was never written is older than any.
        if is_older || word == 0 { Ok(tag << 32 | bit) } else { Err(ReplayError::TooOld) }
    }

    #[inline]
    fn word(&self, number: u64) -> &W {
        &self.ring[(number / BLOCK) as usize % RING]
    }
}

/// No block: no number is so high.
const NO_BLOCK: u64 = u64::MAX;

/// The words that a series of commits goes to, of a ring of any size.
pub(super) trait Series {
    /// The right edge.
    fn right(&self) -> u64;
    /// [`Words::commit`].
    fn commit(&self, number: u64, size: u64) -> Result<Advance, ReplayError>;
    /// The word of a number.
    fn load(&self, number: u64) -> u64;
    /// Writes the word of a number first, so that the edge never lies right of what is marked.
    fn store(&self, number: u64, word: u64, right: u64);
}

impl<W: Word, const RING: usize> Series for Words<'_, W, RING> {
    #[inline]
    fn right(&self) -> u64 {
        self.right_edge.load()
    }

    #[inline]
    fn commit(&self, number: u64, size: u64) -> Result<Advance, ReplayError> {
        Words::commit(self, number, size)
    }

    #[inline]
    fn load(&self, number: u64) -> u64 {
        self.word(number).load()
    }

    #[inline]
    fn store(&self, number: u64, word: u64, right: u64) {
        self.word(number).store(word);
        self.right_edge.store(right);
    }
}

/// Commits of a series where nobody else writes: a word is loaded and stored once for the numbers
/// of its block that follow each other, the right edge once for all.
///
/// Killed before a store, a process forgets what it accepted since the one before; nothing of it
/// was delivered.
pub(super) struct Cursor<S> {
    words: S,
    size: u64,
    right: u64,
    block: u64,
    word: u64,
}

impl<S: Series> Cursor<S> {
    #[inline]
    pub(super) fn new(words: S, size: u64) -> Cursor<S> {
        let right = words.right();
        Cursor { words, size, right, block: NO_BLOCK, word: 0 }
    }

    /// Commits a number like [`Words::commit`].
    #[inline(always)]
    pub(super) fn commit(&mut self, number: u64) -> Result<Advance, ReplayError> {
        // Right of the edge, in the block of the number before: nothing can stand against it.
        if number > self.right && number / BLOCK == self.block {
            (self.word, self.right) = (self.word | 1 << (number % BLOCK), number);
            return Ok(Advance::Moved);
        }
        self.commit_elsewhere(number)
    }

    #[inline(never)]
    fn commit_elsewhere(&mut self, number: u64) -> Result<Advance, ReplayError> {
        self.store();
        // Until a number of its own is marked, a word may be of an older block.
        self.block = NO_BLOCK;
        let answer = self.words.commit(number, self.size)?;
        self.right = self.words.right();
        (self.block, self.word) = (number / BLOCK, self.words.load(number));
        Ok(answer)
    }

    #[inline(always)]
    pub(super) fn store(&self) {
        if self.block != NO_BLOCK {
            self.words.store(self.block * BLOCK, self.word, self.right);
        }
    }
}

/// The tag of a block, which its word's upper half holds.
#[inline]
const fn tag(block: u64, ring: usize) -> u64 {
    (block / ring as u64) as u32 as u64
}

/// RFC 4303 §3.4.3: numbers left of the window are refused, and 0, which no sender uses.
#[inline]
fn is_not_left_of(right: u64, number: u64, size: u64) -> Result<(), ReplayError> {
    if number <= right.saturating_sub(size) { Err(ReplayError::TooOld) } else { Ok(()) }
}
