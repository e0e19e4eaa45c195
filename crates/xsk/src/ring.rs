//! AF_XDP rings: the arithmetic of a ring, and the two ends that a process can hold.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::system::{Mapping, Plain, RingOffsets};

/// A position in a ring: this side's word and the last reading of the other side's, free-running.
/// Pure arithmetic; every subtraction wraps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cursor {
    /// Entries, a power of two.
    size: u32,
    /// This side's word, entries not yet published included.
    ours: u32,
    /// The other side's word when last looked at.
    theirs: u32,
}

impl Cursor {
    /// A producer's free entries, from what it last saw.
    fn free(self) -> u32 {
        self.size - self.ours.wrapping_sub(self.theirs)
    }

    /// A consumer's waiting entries, from what it last saw.
    fn waiting(self) -> u32 {
        self.theirs.wrapping_sub(self.ours)
    }

    /// Takes a new reading of the consumer's word. One that went back or overtook is ignored.
    fn saw_consumer(&mut self, word: u32) -> Reading {
        if self.ours.wrapping_sub(word) > self.ours.wrapping_sub(self.theirs) {
            return Reading::Impossible;
        }
        self.theirs = word;
        Reading::Possible
    }

    /// Takes a new reading of the producer's word. One that went back or overran is ignored.
    fn saw_producer(&mut self, word: u32) -> Reading {
        let waiting = word.wrapping_sub(self.ours);
        if waiting > self.size || waiting < self.waiting() {
            return Reading::Impossible;
        }
        self.theirs = word;
        Reading::Possible
    }

    /// Index of this side's next entry; moves on.
    fn step(&mut self) -> usize {
        let index = self.ours & (self.size - 1);
        self.ours = self.ours.wrapping_add(1);
        index as usize
    }
}

/// A verdict on a reading of the other side's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    Possible,
    Impossible,
}

/// A mapped ring of `T`: three words and the entries.
struct Words<T> {
    mapping: Mapping,
    offsets: RingOffsets,
    _entries: PhantomData<T>,
}

impl<T: Plain> Words<T> {
    /// # Panics
    /// If the offsets do not lie inside the mapping: the kernel and this crate disagree about the
    /// layout of a ring.
    fn new(mapping: Mapping, offsets: RingOffsets, size: u32) -> Words<T> {
        assert!(size.is_power_of_two());
        let length = mapping.length();
        let word_fits = |offset: usize| {
            offset.is_multiple_of(align_of::<AtomicU32>())
                && offset.checked_add(size_of::<AtomicU32>()).is_some_and(|end| end <= length)
        };
        let entries = size as usize * size_of::<T>();
        assert!(word_fits(offsets.producer) && word_fits(offsets.consumer));
        assert!(word_fits(offsets.flags) && offsets.entries.is_multiple_of(align_of::<T>()));
        assert!(offsets.entries.checked_add(entries).is_some_and(|end| end <= length));
        Words { mapping, offsets, _entries: PhantomData }
    }

    /// A word of the ring.
    ///
    /// # Safety
    /// `offset` is one of the three that `new` checked.
    unsafe fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: an aligned word lies at the offset (`new`, and the caller chose one of the
        // three), the mapping lives as long as `self`, and both sides use such words atomically
        // only. Threat: a read behind the mapping is a SIGSEGV, one of an entry a data race.
        unsafe { &*self.mapping.start().add(offset).cast::<AtomicU32>() }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: one of the three offsets. Threat: as `word` says.
        unsafe { self.word(self.offsets.producer) }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: one of the three offsets. Threat: as `word` says.
        unsafe { self.word(self.offsets.consumer) }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: one of the three offsets. Threat: as `word` says.
        unsafe { self.word(self.offsets.flags) }
    }

    /// Address of an entry: inside the mapping if `index` is below the ring's size, as those of
    /// [`Cursor::step`] are.
    fn entry(&self, index: usize) -> *mut T {
        self.mapping.start().wrapping_add(self.offsets.entries).cast::<T>().wrapping_add(index)
    }
}

/// The end that puts entries in: fill and tx.
pub(crate) struct Producer<T> {
    words: Words<T>,
    cursor: Cursor,
    impossible: u64,
}

impl<T: Plain> Producer<T> {
    /// Makes this end of a ring.
    ///
    /// # Panics
    /// As [`Words::new`].
    ///
    /// # Safety
    /// The mapping is a ring of `size` entries of `T`, this process produces in it, and this is its
    /// only producer. Of another size or type it writes entries that the kernel reads; two
    /// producers write the same entry.
    pub(crate) unsafe fn new(mapping: Mapping, offsets: RingOffsets, size: u32) -> Producer<T> {
        let words = Words::new(mapping, offsets, size);
        let ours = words.producer().load(Ordering::Relaxed);
        let cursor = Cursor { size, ours, theirs: ours };
        Producer { words, cursor, impossible: 0 }
    }

    /// Entries that can be pushed; the kernel's word is looked at only if fewer than `wanted`
    /// were known to be free.
    pub(crate) fn free(&mut self, wanted: u32) -> u32 {
        if self.cursor.free() < wanted {
            self.look();
        }
        self.cursor.free()
    }

    /// Writes the next entry. `false`: the ring is full and nothing was written.
    ///
    /// # Safety
    /// The frame that `value` names is tagged as this socket's, and nobody in this process touches
    /// its bytes until the kernel has handed it back or let go of it. Else the kernel writes into a
    /// packet that is being read, or sends one while it is being written.
    pub(crate) unsafe fn push(&mut self, value: T) -> bool {
        if self.free(1) == 0 {
            return false;
        }
        let entry = self.words.entry(self.cursor.step());
        // SAFETY: `entry` is inside the mapping (`Words::new`), aligned, and free: the kernel has
        // published that it is done with it, and reads it again only after `submit`. Threat: the
        // kernel reads half an entry, or a write behind the mapping.
        unsafe { entry.write(value) };
        true
    }

    /// Publishes what was pushed.
    pub(crate) fn submit(&mut self) {
        self.words.producer().store(self.cursor.ours, Ordering::Release);
    }

    /// Entries that the kernel has not taken out yet.
    pub(crate) fn pending(&mut self) -> u32 {
        self.look();
        self.cursor.size - self.cursor.free()
    }

    /// Overwrites all entries, also those that the kernel has not taken yet: the end of the ring.
    ///
    /// # Safety
    /// `value` names no frame of any memory. Else the kernel writes into that frame, or sends it.
    pub(crate) unsafe fn overwrite(&mut self, value: T) {
        for index in 0..self.cursor.size as usize {
            // SAFETY: the entry is inside the mapping (`Words::new`) and aligned. The kernel may
            // read it at this moment: it takes each entry for what a stranger wrote, and finds
            // the old value, the new one or a mixture refused by its own checks. Threat: a write
            // behind the mapping.
            unsafe { self.words.entry(index).write_volatile(value) };
        }
    }

    /// Returns true if the kernel wants a system call before it looks at this ring.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.words.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Readings of the kernel's word that no ring can reach.
    pub(crate) fn impossible(&self) -> u64 {
        self.impossible
    }

    fn look(&mut self) {
        let word = self.words.consumer().load(Ordering::Acquire);
        if self.cursor.saw_consumer(word) == Reading::Impossible {
            self.impossible += 1;
        }
    }
}

/// The end that takes entries out: rx and completion.
pub(crate) struct Consumer<T> {
    words: Words<T>,
    cursor: Cursor,
    impossible: u64,
}

impl<T: Plain> Consumer<T> {
    /// Makes this end of a ring.
    ///
    /// # Panics
    /// As [`Words::new`].
    ///
    /// # Safety
    /// The mapping is a ring of `size` entries of `T`, this process consumes from it, and this is
    /// its only consumer. Of another size or type it reads entries that the kernel writes; two
    /// consumers take the same frame.
    pub(crate) unsafe fn new(mapping: Mapping, offsets: RingOffsets, size: u32) -> Consumer<T> {
        let words = Words::new(mapping, offsets, size);
        let ours = words.consumer().load(Ordering::Relaxed);
        let cursor = Cursor { size, ours, theirs: ours };
        Consumer { words, cursor, impossible: 0 }
    }

    /// Reads the next entry, if there is one.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.cursor.waiting() == 0 && self.waiting() == 0 {
            return None;
        }
        let entry = self.words.entry(self.cursor.step());
        // SAFETY: `entry` is inside the mapping (`Words::new`), aligned, published by the kernel
        // (acquire load of its word), and not written again before `release`. Any bytes are a value
        // of a `Plain` type. Threat: an entry read while the kernel writes it.
        Some(unsafe { entry.read() })
    }

    /// Entries waiting to be read.
    pub(crate) fn waiting(&mut self) -> u32 {
        let word = self.words.producer().load(Ordering::Acquire);
        if self.cursor.saw_producer(word) == Reading::Impossible {
            self.impossible += 1;
        }
        self.cursor.waiting()
    }

    /// Lets the kernel have the entries that were read.
    pub(crate) fn release(&mut self) {
        self.words.consumer().store(self.cursor.ours, Ordering::Release);
    }

    /// Readings of the kernel's word that no ring can reach.
    pub(crate) fn impossible(&self) -> u64 {
        self.impossible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSETS: RingOffsets =
        RingOffsets { producer: 0, consumer: 64, flags: 128, entries: 192 };

    /// Both ends of one ring of 8 entries whose counters start at `start`. The second mapping is
    /// the same memory, as the kernel's is.
    fn ring(start: u32) -> (Producer<u64>, Consumer<u64>) {
        let mapping = Mapping::anonymous(4096).unwrap();
        let same = mapping.alias();
        let words = Words::<u64>::new(mapping.alias(), OFFSETS, 8);
        words.producer().store(start, Ordering::Relaxed);
        words.consumer().store(start, Ordering::Relaxed);
        // SAFETY: a ring of 8 numbers, of which these are the only ends that move. Threat: none;
        // one thread has both.
        unsafe { (Producer::new(mapping, OFFSETS, 8), Consumer::new(same, OFFSETS, 8)) }
    }

    fn push(producer: &mut Producer<u64>, number: u64) -> bool {
        // SAFETY: no kernel reads this ring; its entries are numbers. Threat: none.
        unsafe { producer.push(number) }
    }

    #[test]
    fn entries_come_out_in_order_across_the_wrap_of_the_counters() {
        for start in [0, 5, u32::MAX - 3, u32::MAX] {
            let (mut producer, mut consumer) = ring(start);
            let mut next = 0;
            for count in [1u64, 8, 3, 8, 8, 5] {
                for i in 0..count {
                    assert!(push(&mut producer, next + i), "start {start}");
                }
                assert_eq!(consumer.pop(), None, "nothing is seen before it is submitted");
                producer.submit();
                for i in 0..count {
                    assert_eq!(consumer.pop(), Some(next + i), "start {start}");
                }
                assert_eq!(consumer.pop(), None);
                consumer.release();
                next += count;
            }
        }
    }

    #[test]
    fn a_full_ring_takes_no_more_until_the_other_side_releases() {
        let (mut producer, mut consumer) = ring(u32::MAX - 4);
        assert_eq!(producer.free(8), 8);
        assert!((0..8).all(|n| push(&mut producer, n)));
        assert!(!push(&mut producer, 8));
        producer.submit();
        assert_eq!(producer.pending(), 8);
        assert_eq!((consumer.pop(), consumer.pop()), (Some(0), Some(1)));
        assert_eq!(producer.free(1), 0, "read, but not released");
        consumer.release();
        assert_eq!(producer.pending(), 6);
        assert_eq!(producer.free(2), 2);
        assert!(push(&mut producer, 8) && push(&mut producer, 9) && !push(&mut producer, 10));
    }

    #[test]
    fn counters_that_no_ring_can_reach_are_counted_and_change_nothing() {
        for hostile in [9, 1000, 1 << 31, u32::MAX] {
            let (mut producer, mut consumer) = ring(0);
            assert!(push(&mut producer, 7));
            producer.submit();
            producer.words.producer().store(hostile, Ordering::Relaxed);
            assert_eq!(consumer.pop(), None, "producer word {hostile}");
            assert_eq!(consumer.impossible(), 1);

            let (mut producer, _consumer) = ring(0);
            assert!(push(&mut producer, 7));
            producer.submit();
            producer.words.consumer().store(hostile, Ordering::Relaxed);
            assert_eq!(producer.free(8), 7, "consumer word {hostile}");
            assert_eq!((producer.pending(), producer.impossible()), (1, 2));
        }
    }

    #[test]
    fn a_cursor_is_never_beyond_its_ring_whatever_it_is_told() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as u32
        };
        let start = next();
        let mut producer = Cursor { size: 64, ours: start, theirs: start };
        let mut consumer = producer;
        for _ in 0..100_000 {
            let near = next() % 80;
            let word = if next() % 4 == 0 { next() } else { producer.theirs.wrapping_add(near) };
            producer.saw_consumer(word);
            assert!(producer.free() <= 64);
            if producer.free() > 0 {
                assert!(producer.step() < 64);
            }
            let word = if next() % 4 == 0 { next() } else { consumer.ours.wrapping_add(near) };
            consumer.saw_producer(word);
            assert!(consumer.waiting() <= 64);
            if consumer.waiting() > 0 {
                assert!(consumer.step() < 64);
            }
        }
    }

    #[test]
    fn an_overwritten_ring_says_nothing_of_what_was_in_it() {
        let (mut producer, mut consumer) = ring(u32::MAX - 2);
        assert!((0..6).all(|n| push(&mut producer, n)));
        producer.submit();
        assert_eq!((consumer.waiting(), consumer.pop()), (6, Some(0)));
        // SAFETY: no kernel reads this ring. Threat: none.
        unsafe { producer.overwrite(u64::MAX) };
        assert_eq!(consumer.waiting(), 5);
        assert!((0..5).all(|_| consumer.pop() == Some(u64::MAX)));
        assert_eq!(consumer.waiting(), 0);
    }

    #[test]
    fn the_wakeup_flag_is_the_kernels() {
        let (producer, _consumer) = ring(0);
        assert!(!producer.needs_wakeup());
        producer.words.flags().store(1, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }
}
