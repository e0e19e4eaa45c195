//! A map of fixed size with one writer and many readers. The code is the same over the machine's
//! atomics and over those of a model checker, with words and buckets of any size.
//!
//! A **record** holds a key and its value behind a state word: `tenancy << 1 | is live`. The
//! **index** says which record a key has. A key has two buckets of places; a place is one word,
//! `tag << 40 | tenancy, low 16 bits << 24 | record`, or 0. The tag is a part of the key's hash
//! that picks no bucket, so that hardly ever a record is looked at in vain. A bucket's **hints**
//! are a byte of the tag of each of its places, or 0: they say at once which place to try. They may
//! be wrong, since they are written apart from it; what they lead to is checked as ever.
//!
//! 1. **A live record is never written.** The writer fills one that is not live, makes it live
//!    under its next tenancy, and ends it with one store of the state word. A reader takes the
//!    state word, key and value, and the state word again: if it is the same, all was of one
//!    tenancy. It never waits for a record to be whole: one that is being filled is in no place.
//! 2. **A value changes by one store**, of the place: it then leads to another record. The old one
//!    ends afterwards. Readers find the old value or the new one.
//! 3. **A place moves** to the other bucket of its key if it is in the way of another one. It is
//!    there twice for a moment. The writer counts moves between the store of the new place and that
//!    of the old one: a reader who came too early for the one and too late for the other sees
//!    another count at the end than at the beginning, and looks again.
//! 4. **A reader looks again**, too, if a place led it to a record that has ended meanwhile. Each
//!    time the writer has changed something about this very place; after [`ATTEMPTS`] of them the
//!    reader says that the key is not there. It may then be wrong, but never mixes two values.
//!
//! A place remembers 16 bits of the tenancy. A reader that sleeps between a place and its record
//! while that record has exactly 65,536 more tenancies takes a key of the last one for a stranger's
//! with the same tag: it finds nothing, once.
//!
//! Every store is seen after all that the writer did before it, and every load sees what was
//! written before the value that it reads: acquire and release, which cost nothing on x86.

#[cfg(test)]
mod model;
mod writer;

use std::collections::TryReserveError;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use writer::{At, NoPlace, Writer};

/// Looks for one key before a reader gives up.
pub(crate) const ATTEMPTS: usize = 64;

/// Records that a map has at most: as many as a place can number.
pub(crate) const MAX_RECORDS: usize = 1 << TENANCY_SHIFT;
/// Buckets that a map has at most: as many as the hash can number twice beside the tag.
pub(crate) const MAX_BUCKETS: usize = 1 << BUCKET_BITS;

const TENANCY_SHIFT: u32 = 24;
const TAG_SHIFT: u32 = 40;
const BUCKET_BITS: u32 = 20;
/// The bit of a state word.
const LIVE: u64 = 1;

/// The operations on one word.
///
/// A load sees what was written before the value that it reads; a store is seen after everything
/// that its thread did before.
pub(crate) trait Word {
    fn new() -> Self;
    fn load(&self) -> u64;
    fn store(&self, value: u64);
}

impl Word for AtomicU64 {
    fn new() -> Self {
        AtomicU64::new(0)
    }

    #[inline(always)]
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store(&self, value: u64) {
        self.store(value, Ordering::Release);
    }
}

struct Record<W, const KEY: usize, const VALUE: usize> {
    state: W,
    key: [W; KEY],
    value: [W; VALUE],
}

impl<W: Word, const KEY: usize, const VALUE: usize> Record<W, KEY, VALUE> {
    /// Returns 0 if it has this key.
    #[inline(always)]
    fn differs(&self, key: &[u64; KEY]) -> u64 {
        self.key.iter().zip(key).fold(0, |all, (word, key)| all | word.load() ^ key)
    }

    #[inline(always)]
    fn value(&self) -> [u64; VALUE] {
        std::array::from_fn(|at| self.value[at].load())
    }
}

/// Records in one line of the cache.
#[repr(align(64))]
struct Line<W, const KEY: usize, const VALUE: usize, const PER_LINE: usize>(
    [Record<W, KEY, VALUE>; PER_LINE],
);

#[repr(align(64))]
struct Bucket<W, const PLACES: usize> {
    /// A byte a place, the first place's lowest.
    hints: W,
    places: [W; PLACES],
}

/// A map. `PER_LINE` records are in a line of 64 bytes, `PLACES` places in a bucket.
pub(crate) struct Map<
    W,
    const KEY: usize,
    const VALUE: usize,
    const PER_LINE: usize,
    const PLACES: usize,
> {
    buckets: Box<[Bucket<W, PLACES>]>,
    lines: Box<[Line<W, KEY, VALUE, PER_LINE>]>,
    moves: Moves<W>,
}

/// The count of moves, in a line that hardly ever changes.
#[repr(align(64))]
struct Moves<W>(W);

/// The hash of a key: it says where the key is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Hash(pub(crate) u64);

impl Hash {
    /// The part that a place remembers, in its place. It is not 0.
    #[inline]
    fn tag(self) -> u64 {
        (self.0 >> TAG_SHIFT).max(1) << TAG_SHIFT
    }

    /// The byte of the tag that is a hint. It is not 0.
    #[inline]
    fn hint(self) -> u64 {
        u64::from(((self.0 >> TAG_SHIFT) as u8).max(1))
    }
}

/// A place that is not empty.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u64);

impl Place {
    fn new(hash: Hash, record: u32, state: u64) -> Place {
        let tenancy = u64::from((state >> 1) as u16);
        Place(hash.tag() | tenancy << TENANCY_SHIFT | u64::from(record))
    }

    #[inline]
    fn record(self) -> u32 {
        (self.0 & ((1 << TENANCY_SHIFT) - 1)) as u32
    }

    /// The hint of the hash that it was made of.
    fn hint(self) -> u64 {
        Hash(self.0).hint()
    }

    /// Returns 0 if a state word is of a live record of the tenancy that the place is of.
    #[inline]
    fn differs(self, state: u64) -> u64 {
        let tenancy = self.0 >> TENANCY_SHIFT;
        (state ^ (tenancy << 1 | LIVE)) & (u64::from(u16::MAX) << 1 | LIVE)
    }
}

/// A place that most likely leads to a key's record: the word that was in it, or 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lead(u64);

impl Lead {
    /// It leads nowhere.
    pub(crate) const NONE: Lead = Lead(0);

    /// The lead of a word.
    #[inline(always)]
    pub(crate) const fn of(word: u64) -> Lead {
        Lead(word)
    }

    /// Its word.
    #[inline(always)]
    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    /// Returns itself if both numbers are the same, else none; without a branch.
    #[inline(always)]
    pub(crate) fn if_same(self, one: u64, other: u64) -> Lead {
        Lead(self.0 & u64::from(one == other).wrapping_neg())
    }
}

/// A look at the record of a place.
enum Seen<const VALUE: usize> {
    Value([u64; VALUE]),
    /// Its tenant has another key with the same tag.
    Stranger,
    /// The tenancy is over.
    Ended,
}

impl<W: Word, const KEY: usize, const VALUE: usize, const PER_LINE: usize, const PLACES: usize>
    Map<W, KEY, VALUE, PER_LINE, PLACES>
{
    /// An empty map of so many records and buckets: a power of two of at least 2.
    pub(crate) fn new(records: usize, buckets: usize) -> Result<Self, TryReserveError> {
        // The byte of the hints above those of seven places is 0, as no hint is.
        const { assert!(PLACES <= 7 && PER_LINE.is_power_of_two()) };
        debug_assert!(buckets.is_power_of_two() && (2..=MAX_BUCKETS).contains(&buckets));
        debug_assert!(records <= MAX_RECORDS);
        let words = || std::array::from_fn(|_| W::new());
        let record = |_| Record {
            state: W::new(),
            key: std::array::from_fn(|_| W::new()),
            value: std::array::from_fn(|_| W::new()),
        };
        Ok(Map {
            buckets: filled(buckets, || Bucket { hints: W::new(), places: words() })?,
            lines: filled(records.div_ceil(PER_LINE), || Line(std::array::from_fn(record)))?,
            moves: Moves(W::new()),
        })
    }

    /// Both buckets of a key. They are not the same.
    #[inline]
    fn buckets(&self, Hash(hash): Hash) -> [usize; 2] {
        let mask = self.buckets.len() - 1;
        let (first, second) = (hash as usize & mask, (hash >> BUCKET_BITS) as usize & mask);
        [first, if first == second { first ^ 1 } else { second }]
    }

    /// Asks for the memory of a key's first bucket.
    #[inline]
    pub(crate) fn prefetch_bucket(&self, hash: Hash) {
        if let Some(bucket) = self.buckets.get(self.buckets(hash)[0]) {
            cpu::prefetch_ref(bucket);
        }
    }

    /// Asks for the memory of a key's record, or for that of its second bucket if it is not in the
    /// first. Waits for the memory of the first bucket.
    #[inline]
    pub(crate) fn prefetch_record(&self, hash: Hash) {
        let [first, second] = self.buckets(hash);
        match self.matching(first, hash).next() {
            Some((_, place)) => {
                if let Some(record) = self.record(place.record()) {
                    cpu::prefetch_ref(record);
                }
            }
            None => {
                if let Some(bucket) = self.buckets.get(second) {
                    cpu::prefetch_ref(bucket);
                }
            }
        }
    }

    /// Returns the place in a key's first bucket that has its hint; of two the first one. Waits for
    /// the memory of the bucket.
    #[inline(always)]
    pub(crate) fn lead(&self, hash: Hash) -> Lead {
        const ONES: u64 = u64::MAX / 0xff;
        let Some(bucket) = self.buckets.get(self.buckets(hash)[0]) else { return Lead::NONE };
        let differs = bucket.hints.load() ^ (hash.hint() * ONES);
        // The lowest byte that is 0 has its high bit set, and none below it has.
        let zeros = differs.wrapping_sub(ONES) & !differs & (ONES << 7);
        let at = zeros.trailing_zeros() as usize / 8;
        bucket.places.get(at).map_or(Lead::NONE, |place| Lead(place.load()))
    }

    /// Asks for the memory of the record that a lead leads to.
    #[inline(always)]
    pub(crate) fn prefetch_lead(&self, lead: Lead) {
        if let Some(record) = self.record(Place(lead.0).record()) {
            cpu::prefetch_ref(record);
        }
    }

    /// Reads the record that a lead leads to. `None`: it has another key, or its tenancy is over;
    /// [`find`](Map::find) says whether the key is there.
    #[inline(always)]
    pub(crate) fn follow(&self, lead: Lead, key: &[u64; KEY]) -> Option<[u64; VALUE]> {
        let place = Place(lead.0);
        let record = self.record(place.record())?;
        let state = record.state.load();
        let differs = record.differs(key) | place.differs(state);
        let value = record.value();
        // One branch for all: as good as always it is the record that is looked for.
        (differs | (record.state.load() ^ state) == 0).then_some(value)
    }

    /// Finds a key. Waits for nobody.
    #[inline]
    pub(crate) fn find(&self, key: &[u64; KEY], hash: Hash) -> Option<[u64; VALUE]> {
        self.find_led(key, hash).map(|(_, value)| value)
    }

    /// [`find`](Map::find), with the lead that led there.
    #[inline]
    pub(crate) fn find_led(&self, key: &[u64; KEY], hash: Hash) -> Option<(Lead, [u64; VALUE])> {
        for _ in 0..ATTEMPTS {
            let moves = self.moves.0.load();
            let mut is_late = false;
            for bucket in self.buckets(hash) {
                for (_, place) in self.matching(bucket, hash) {
                    match self.read(place, key) {
                        Seen::Value(value) => return Some((Lead(place.0), value)),
                        Seen::Stranger => {}
                        Seen::Ended => is_late = true,
                    }
                }
            }
            if !is_late && self.moves.0.load() == moves {
                return None;
            }
        }
        None
    }

    /// Places of a bucket whose keys may have this hash, each with its number in the bucket.
    #[inline]
    fn matching(&self, bucket: usize, hash: Hash) -> impl Iterator<Item = (usize, Place)> {
        let words: [u64; PLACES] = match self.buckets.get(bucket) {
            Some(bucket) => std::array::from_fn(|at| bucket.places[at].load()),
            None => [0; PLACES],
        };
        let tag = hash.tag() >> TAG_SHIFT;
        let mut matches = 0u32;
        for (at, word) in words.iter().enumerate() {
            matches |= u32::from(word >> TAG_SHIFT == tag) << at;
        }
        std::iter::from_fn(move || {
            let at = matches.trailing_zeros() as usize;
            let word = words.get(at)?;
            matches &= matches - 1;
            Some((at, Place(*word)))
        })
    }

    #[inline]
    fn record(&self, number: u32) -> Option<&Record<W, KEY, VALUE>> {
        Some(&self.lines.get(number as usize / PER_LINE)?.0[number as usize % PER_LINE])
    }

    #[inline]
    fn read(&self, place: Place, key: &[u64; KEY]) -> Seen<VALUE> {
        let Some(record) = self.record(place.record()) else { return Seen::Ended };
        let state = record.state.load();
        if place.differs(state) != 0 {
            return Seen::Ended;
        }
        let (differs, value) = (record.differs(key), record.value());
        match record.state.load() == state {
            false => Seen::Ended,
            true if differs != 0 => Seen::Stranger,
            true => Seen::Value(value),
        }
    }
}

/// So many values, on huge pages where the kernel gives them.
fn filled<T>(count: usize, mut value: impl FnMut() -> T) -> Result<Box<[T]>, TryReserveError> {
    let mut values = Vec::new();
    values.try_reserve_exact(count)?;
    // Before it is filled: each page is then a huge one when it is first written.
    let memory: &[MaybeUninit<T>] = values.spare_capacity_mut();
    cpu::memory::use_huge_pages(memory);
    values.resize_with(count, &mut value);
    Ok(values.into_boxed_slice())
}
