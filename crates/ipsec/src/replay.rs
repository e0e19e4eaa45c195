//! The anti-replay window of an inbound SA (RFC 4303 §3.4.3 and Appendix A), for one worker or any
//! number of them, without a lock.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::SequenceNumbers;

/// Does something with a window's words, however many these are.
macro_rules! on_words {
    ($window:ident, $words:ident => $does:expr) => {
        match &$window.storage {
            Storage::Small(own) => {
                let $words = own.words();
                $does
            }
            Storage::Large(large) => {
                let $words = large.words();
                $does
            }
        }
    };
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
mod words;

use words::{Series, Words};

/// The place of an accepted number in relation to the right edge of the window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Advance {
    /// The number became the right edge: no higher one was accepted before.
    Moved,
    /// The number lies left of the edge: the packet was overtaken on its way, or it is an old one
    /// that somebody held back.
    Inside,
}

/// Reason why a sequence number is not accepted. The caller drops the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ReplayError {
    /// The number was accepted before.
    #[error("sequence number was already received")]
    Duplicate,
    /// The number lies left of the window, or is 0, which no sender uses.
    #[error("sequence number is left of the replay window")]
    TooOld,
}

/// A window size that is not offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a replay window of {size} packets: must be a multiple of 32 from 32 to 4096")]
pub struct WindowSizeError {
    /// The size that the caller asked for.
    pub size: u32,
}

/// Words of every window whose words are shared, whatever its size: so windows of several sizes can
/// be over the same. And those of a large window of its own.
const RING: usize = 256;
/// Words of a window of its own that has no need of more: a gateway may have very many.
const SMALL_RING: usize = 64;
const _: () = assert!(RING.is_power_of_two() && SMALL_RING.is_power_of_two());
const _: () = assert!(Large::<'static>::LARGEST >= ReplayWindow::LARGEST as u64);

type Large<'a> = Words<'a, AtomicU64, RING>;
type Small<'a> = Words<'a, AtomicU64, SMALL_RING>;

/// Words of a window that live in a mapping which other processes find again, and which lives as
/// long as this one. There may be several windows over the same words, also of other sizes: what
/// one accepts the others refuse.
#[derive(Clone)]
pub struct SharedWindow {
    right_edge: &'static AtomicU64,
    ring: &'static [AtomicU64; RING],
}

impl SharedWindow {
    /// Words of the ring.
    pub const RING_WORDS: usize = RING;

    /// The words of an inbound SA as they were left, or all 0 for one that has received nothing.
    pub fn new(
        right_edge: &'static AtomicU64,
        ring: &'static [AtomicU64; Self::RING_WORDS],
    ) -> SharedWindow {
        SharedWindow { right_edge, ring }
    }

    /// Sets the words so that every number up to `right_edge` counts as received. Before any
    /// window is made of them.
    pub fn begin_after(&self, right_edge: u64) {
        self.words().begin_after(right_edge);
    }

    /// The highest number that counts as received.
    pub fn right_edge(&self) -> u64 {
        self.right_edge.load(Ordering::Relaxed)
    }

    #[inline]
    fn words(&self) -> Large<'_> {
        Words { right_edge: self.right_edge, ring: self.ring }
    }
}

/// Words that end with their window. The ring first, so that the edge shares no cache line with it.
#[repr(C, align(64))]
struct OwnWords<const RING: usize> {
    ring: [AtomicU64; RING],
    right_edge: AtomicU64,
}

impl<const RING: usize> OwnWords<RING> {
    fn empty() -> Box<OwnWords<RING>> {
        let ring = [const { AtomicU64::new(0) }; RING];
        Box::new(OwnWords { ring, right_edge: AtomicU64::new(0) })
    }

    #[inline]
    fn words(&self) -> Words<'_, AtomicU64, RING> {
        Words { right_edge: &self.right_edge, ring: &self.ring }
    }
}

/// The storage of a window's words.
enum Storage {
    /// In the window, which is small.
    Small(Box<OwnWords<SMALL_RING>>),
    /// Of a large window, or of several.
    Large(LargeStorage),
}

/// The storage of as many words as any window needs.
enum LargeStorage {
    /// In the window.
    Own(Box<OwnWords<RING>>),
    /// In a mapping.
    Shared(SharedWindow),
}

impl LargeStorage {
    #[inline]
    fn words(&self) -> Large<'_> {
        match self {
            LargeStorage::Own(own) => own.words(),
            LargeStorage::Shared(words) => words.words(),
        }
    }
}

/// A record of which of the last `size` sequence numbers of an SA were received.
///
/// A number `n` is accepted if `n > 0`, `n + size >` the right edge, and it was not accepted
/// before; the right edge is the highest number accepted so far.
///
/// At any time either one worker alone calls [`commit`](Self::commit), on one of the windows over
/// the same words, or any number of them [`commit_shared`](Self::commit_shared): the first does
/// not look whether a word has changed since it read it, so that two could accept one number
/// twice. Everybody may read at any time.
///
/// Killed between any two instructions a process leaves words that refuse all that it had
/// accepted.
///
/// Memory: 2 KiB, and half a KiB for a window of its own of up to 2016 packets.
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
        let storage = match u64::from(size) <= Small::<'static>::LARGEST {
            true => Storage::Small(OwnWords::empty()),
            false => Storage::Large(LargeStorage::Own(OwnWords::empty())),
        };
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
        Ok(ReplayWindow { storage: Storage::Large(LargeStorage::Shared(words)), size, numbers })
    }

    /// Checks whether [`commit`](Self::commit) would accept `number` now. Done before the cipher,
    /// to spend no time on replays; says nothing about authenticity.
    ///
    /// # Errors
    /// The error that `commit` would return.
    #[inline]
    pub fn check(&self, number: u64) -> Result<(), ReplayError> {
        on_words!(self, words => words.check(number, self.size.into()))
    }

    /// Marks `number` as received, and says whether it is the new right edge. Only after the
    /// packet authenticated. It checks again, so that of two equal numbers in one batch one is
    /// delivered.
    ///
    /// For one worker alone. Cost: one word and the right edge; no atomic read-modify-write.
    ///
    /// # Errors
    /// Both of [`ReplayError`]; the window is then unchanged.
    #[inline]
    pub fn commit(&self, number: u64) -> Result<Advance, ReplayError> {
        on_words!(self, words => words.commit(number, self.size.into()))
    }

    /// Commits a number like [`commit`](Self::commit), for an SA that several workers open with.
    /// Lock-free: an interrupted or killed worker keeps nobody waiting.
    ///
    /// Of several workers that bring one number at the same time one gets it accepted. Of several
    /// that move the right edge, each is told so only if nobody had raised it further before.
    ///
    /// A number that is 2³⁸ or more right of the edge, which no [`infer`](Self::infer) gives, may
    /// be refused as too old, and move the window all the same.
    ///
    /// Cost: one compare-and-exchange of a word, and one of the right edge if it moves.
    ///
    /// # Errors
    /// Both of [`ReplayError`]; the packet must not be delivered.
    #[inline]
    pub fn commit_shared(&self, number: u64) -> Result<Advance, ReplayError> {
        on_words!(self, words => words.commit_shared(number, self.size.into()))
    }

    /// [`commit_shared`](Self::commit_shared) for each of the numbers, in this order. `answers`
    /// becomes one entry per number.
    ///
    /// Cost: for numbers in order one compare-and-exchange every 32 of them, and one of the right
    /// edge for all; workers are less in each other's way than with as many single commits.
    pub fn commit_batch_shared(
        &self,
        numbers: &[u64],
        answers: &mut Vec<Result<Advance, ReplayError>>,
    ) {
        on_words!(self, words => words.commit_batch_shared(numbers, self.size.into(), answers));
    }

    /// Begins a series of commits by one worker alone, mostly of numbers in order. What it accepts
    /// is marked for good when [`Cursor::finish`] is called, which must be before any packet of
    /// the series is delivered.
    #[inline]
    pub fn cursor(&self) -> Cursor<'_> {
        let words = match &self.storage {
            Storage::Small(own) => EitherWords::Small(own.words()),
            Storage::Large(large) => EitherWords::Large(large.words()),
        };
        Cursor(words::Cursor::new(words, self.size.into()))
    }

    /// The highest number accepted so far; 0 at the start.
    #[inline]
    pub fn right_edge(&self) -> u64 {
        on_words!(self, words => words.right_edge.load(Ordering::Relaxed))
    }

    /// Asks the processor for the window's words, ahead of their use.
    pub fn ask(&self) {
        on_words!(self, words => {
            cpu::prefetch_all(words.right_edge);
            cpu::prefetch_all(words.ring);
        });
    }

    /// Returns the number of sequence numbers that the window remembers.
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
}

/// Words of either size.
enum EitherWords<'w> {
    Small(Small<'w>),
    Large(Large<'w>),
}

impl Series for EitherWords<'_> {
    #[inline]
    fn right(&self) -> u64 {
        match self {
            EitherWords::Small(words) => words.right(),
            EitherWords::Large(words) => words.right(),
        }
    }

    #[inline]
    fn commit(&self, number: u64, size: u64) -> Result<Advance, ReplayError> {
        match self {
            EitherWords::Small(words) => words.commit(number, size),
            EitherWords::Large(words) => words.commit(number, size),
        }
    }

    #[inline]
    fn load(&self, number: u64) -> u64 {
        match self {
            EitherWords::Small(words) => words.load(number),
            EitherWords::Large(words) => words.load(number),
        }
    }

    #[inline]
    fn store(&self, number: u64, word: u64, right: u64) {
        match self {
            EitherWords::Small(words) => words.store(number, word, right),
            EitherWords::Large(words) => words.store(number, word, right),
        }
    }
}

/// A series of commits ([`ReplayWindow::cursor`]).
#[must_use = "what it accepted is marked by `finish`"]
pub struct Cursor<'w>(words::Cursor<EitherWords<'w>>);

impl Cursor<'_> {
    /// Commits a number like [`ReplayWindow::commit`].
    ///
    /// Cost: for numbers in order one load and one store every 32 of them.
    ///
    /// # Errors
    /// Both of [`ReplayError`]; the packet must not be delivered.
    #[inline(always)]
    pub fn commit(&mut self, number: u64) -> Result<Advance, ReplayError> {
        self.0.commit(number)
    }

    /// Marks what was accepted.
    #[inline(always)]
    pub fn finish(self) {
        self.0.store();
    }
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
