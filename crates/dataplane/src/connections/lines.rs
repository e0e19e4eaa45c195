//! The lines of the table, and how several threads use them at once. The code is the same over the
//! machine's atomics and over those of a model checker, with lines and buckets of any size.
//!
//! A line is a state word, words of the key, words of the value, and a note: a number of the tenant
//! beside its value, hidden from readers of the entry. An entry has one line or two neighbours: the
//! second line of a wide entry holds more of the key and has a mark.
//!
//! - **A read** takes the state word, the other words, the state word again. If the version is the
//!   same, all was of one tenant. It waits for nobody.
//! - **A change of state** is one exchange of the state word. It fails if the version is another
//!   one, so that nobody changes the connection of a tenant who came later.
//! - **An insertion** holds the lock of the first bucket of its key. Both directions of a
//!   connection have the same one, so that of several insertions of one key one succeeds. The lock
//!   says nothing about lines: another key may have this bucket as its second. A line is taken by
//!   an exchange from *free* to *busy*, and published by another one.
//! - **A removal** is an exchange to *free*. It needs no lock: an insertion of the same key finds
//!   the entry or does not. Of a wide entry the first line stays *busy* until the second is free.
//!
//! Entries never move. A line that is *busy* counts as taken: an insertion that meets one may find
//! a bucket full that is not full a moment later.

use std::sync::atomic::{AtomicU64, Ordering};

use super::state_word::{StateWord, Vacant};

/// The operations on one word.
///
/// A load sees what was written before the value that it reads; a store or exchange is seen after
/// everything that its thread did before.
pub(super) trait Word {
    fn new() -> Self;
    fn load(&self) -> u64;
    fn store(&self, value: u64);
    /// Replaces `expected`. `Err`: it was another value.
    fn compare_exchange(&self, expected: u64, new: u64) -> Result<u64, u64>;
    /// Adds a number, and returns the sum before.
    fn fetch_add(&self, number: u64) -> u64;
    /// Lets another thread go on, after so many turns of waiting for it.
    fn pause(turns: u32);
}

/// Turns that a thread waits before it gives the processor away: the other may need it.
const TURNS: u32 = 100;

impl Word for AtomicU64 {
    fn new() -> Self {
        AtomicU64::new(0)
    }

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
    fn fetch_add(&self, number: u64) -> u64 {
        self.fetch_add(number, Ordering::AcqRel)
    }

    #[cold]
    fn pause(turns: u32) {
        if turns < TURNS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

#[repr(align(64))]
struct Line<W, const KEY: usize, const VALUE: usize> {
    state: W,
    key: [W; KEY],
    value: [W; VALUE],
    note: W,
}

/// A key: one line's words, or those of two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct LineKey<const KEY: usize> {
    /// Words of the first line. Those of a wide key are not those of a narrow one.
    pub(super) head: [u64; KEY],
    /// Words of the second line.
    pub(super) tail: Option<[u64; KEY]>,
}

impl<const KEY: usize> LineKey<KEY> {
    /// Lines of an entry.
    #[inline]
    pub(super) fn width(&self) -> usize {
        1 + usize::from(self.tail.is_some())
    }
}

/// The lines where a key may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidates {
    /// Two buckets; the first has the lock.
    pub(super) buckets: [usize; 2],
    /// The line of a bucket that is looked at first.
    pub(super) start: usize,
}

/// An entry as it was at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<const VALUE: usize> {
    /// The line where it begins.
    pub(super) at: usize,
    pub(super) word: StateWord,
    /// `None`: it is being written anew.
    pub(super) value: Option<[u64; VALUE]>,
    /// The value's last word, which is never written anew.
    pub(super) constant: u64,
}

/// A removed tenant in its last state.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemovedTenant {
    pub(super) at: usize,
    pub(super) word: StateWord,
    pub(super) constant: u64,
    pub(super) note: u64,
    /// Lines.
    pub(super) width: usize,
}

/// Counts removals.
pub(super) trait Removals {
    /// Counts a removed tenant.
    fn removed(&self, tenant: RemovedTenant);
}

/// Rules of an insertion: who gives way, and whether there may be one more.
pub(super) trait Bounds: Removals {
    /// Cause of a refusal.
    type Refusal: Copy;
    /// The cause: no line is free.
    const FULL: Self::Refusal;

    /// Counts one more tenant; at a bound others give way.
    ///
    /// # Errors
    /// The bound: no tenant gives way.
    fn reserve(&self) -> Result<(), Self::Refusal>;
    /// Takes back what [`reserve`](Self::reserve) did.
    fn give_back(&self);
    /// Returns the note of the new tenant in a line.
    fn note(&self, at: usize) -> u64;
    /// Returns how readily a tenant gives way to a key without a line. `None`: the tenant stays.
    fn readiness(&self, word: StateWord) -> Option<u32>;
    /// Returns whether a tenant of the same key is over.
    fn is_over(&self, word: StateWord, constant: u64) -> bool;
}

/// Outcome of an insertion.
#[derive(Clone, Copy, Debug)]
pub(super) enum LineInserted<const VALUE: usize, R> {
    /// It is in this line.
    New(usize),
    /// The key was there already.
    Raced(Entry<VALUE>),
    Refused(R),
}

/// Attempts of one insertion to get a line.
const ATTEMPTS: usize = 8;

pub(super) struct Lines<W, const KEY: usize, const VALUE: usize, const BUCKET: usize> {
    lines: Box<[Line<W, KEY, VALUE>]>,
}

/// The lock of a bucket.
struct Locked<'a, W: Word> {
    state: &'a W,
}

impl<W: Word> Drop for Locked<'_, W> {
    fn drop(&mut self) {
        change(self.state, StateWord::unlocked);
    }
}

/// Changes a word that others change as well, each its own part.
fn change<W: Word>(state: &W, new: impl Fn(StateWord) -> StateWord) -> StateWord {
    let mut seen = state.load();
    loop {
        match state.compare_exchange(seen, new(StateWord(seen)).0) {
            Ok(_) => return StateWord(seen),
            Err(other) => seen = other,
        }
    }
}

impl<W: Word, const KEY: usize, const VALUE: usize, const BUCKET: usize>
    Lines<W, KEY, VALUE, BUCKET>
{
    /// Lines of so many buckets, all free.
    pub(super) fn new(buckets: usize) -> Self {
        const { assert!(BUCKET.is_power_of_two() && BUCKET >= 2 && VALUE > 0) };
        let line = |_| Line {
            state: W::new(),
            key: std::array::from_fn(|_| W::new()),
            value: std::array::from_fn(|_| W::new()),
            note: W::new(),
        };
        let lines: Box<[_]> = (0..buckets * BUCKET).map(line).collect();
        // A page of its own for each look would cost more than the look.
        cpu::memory::use_huge_pages(&lines);
        Lines { lines }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The state word of a line.
    #[inline]
    pub(super) fn word(&self, at: usize) -> StateWord {
        StateWord(self.lines[at].state.load())
    }

    /// Asks for the memory of a line ahead of its use.
    #[inline]
    pub(super) fn prefetch(&self, at: usize) {
        if let Some(line) = self.lines.get(at) {
            cpu::prefetch_ref(line);
        }
    }

    /// Prefetches all lines of a bucket.
    #[inline(always)]
    pub(super) fn prefetch_bucket(&self, bucket: usize) {
        let first = bucket * BUCKET;
        let lines = self.lines.get(first..first + BUCKET).unwrap_or_default();
        lines.iter().for_each(cpu::prefetch_ref);
    }

    /// Lines in which an entry of `width` lines may begin, in the order in which they are tried, if
    /// `start` is the first of them. A wide entry may lie in the bucket beside that one, too: both
    /// together have as many places for wide entries as one has for others.
    #[inline]
    pub(super) fn places_from(&self, start: usize, width: usize) -> impl Iterator<Item = usize> {
        let span = (BUCKET * width).min(self.lines.len());
        let first = start & !(span - 1);
        (0..span / width).map(move |step| first + ((start + step * width) & (span - 1)))
    }

    #[inline]
    fn places(
        &self,
        candidates: Candidates,
        bucket: usize,
        width: usize,
    ) -> impl Iterator<Item = usize> {
        let start = candidates.buckets[bucket] * BUCKET + (candidates.start & !(width - 1));
        self.places_from(start, width)
    }

    /// Buckets that are not the same.
    #[inline]
    fn buckets(candidates: Candidates) -> std::ops::Range<usize> {
        0..if candidates.buckets[0] == candidates.buckets[1] { 1 } else { 2 }
    }

    /// Finds a key.
    #[inline]
    pub(super) fn find(&self, key: &LineKey<KEY>, candidates: Candidates) -> Option<Entry<VALUE>> {
        let width = key.width();
        for bucket in Self::buckets(candidates) {
            for at in self.places(candidates, bucket, width) {
                if let Some(entry) = self.entry_of(at, key) {
                    return Some(entry);
                }
            }
        }
        None
    }

    /// Reads the state word and the value of a key in a line. `None`: the key is not there, or
    /// somebody changes the line. The line need not be live.
    #[inline(always)]
    pub(super) fn read(
        &self,
        at: usize,
        head: &[u64; KEY],
        tail: Option<&[u64; KEY]>,
    ) -> Option<(StateWord, [u64; VALUE])> {
        let line = self.lines.get(at)?;
        let before = line.state.load();
        let differs = |line: &Line<W, KEY, VALUE>, words: &[u64; KEY]| {
            line.key.iter().zip(words).fold(0, |all, (word, key)| all | word.load() ^ key)
        };
        if differs(line, head) != 0 {
            return None;
        }
        if let Some(tail) = tail
            && differs(self.lines.get(at + 1)?, tail) != 0
        {
            return None;
        }
        let value = std::array::from_fn(|word| line.value[word].load());
        (line.state.load() == before).then_some((StateWord(before), value))
    }

    /// The entry in a line, if it is of this key.
    #[inline]
    pub(super) fn entry_of(&self, at: usize, key: &LineKey<KEY>) -> Option<Entry<VALUE>> {
        let line = self.lines.get(at)?;
        loop {
            let before = StateWord(line.state.load());
            if !before.is_live() || !self.has_key(at, key) {
                return None;
            }
            if let Some(entry) = self.value_of(at, before) {
                return Some(entry);
            }
        }
    }

    /// The entry in a line with its key, whatever that is; the second line's words are 0 of a
    /// narrow one.
    pub(super) fn any_entry(&self, at: usize) -> Option<(Entry<VALUE>, LineKey<KEY>)> {
        let line = self.lines.get(at)?;
        loop {
            let before = StateWord(line.state.load());
            if !before.is_live() {
                return None;
            }
            let head = std::array::from_fn(|word| line.key[word].load());
            let tail = self.has_tail(at).then(|| {
                let line = &self.lines[at + 1];
                std::array::from_fn(|word| line.key[word].load())
            });
            if let Some(entry) = self.value_of(at, before) {
                return Some((entry, LineKey { head, tail }));
            }
        }
    }

    /// The value of a tenant. `None`: it is gone, or its value was written anew.
    #[inline]
    fn value_of(&self, at: usize, before: StateWord) -> Option<Entry<VALUE>> {
        let line = &self.lines[at];
        let value: [u64; VALUE] = std::array::from_fn(|word| line.value[word].load());
        let word = StateWord(line.state.load());
        let is_whole = !before.is_renewing() && !word.is_renewing();
        let constant = value[VALUE - 1];
        let value = is_whole.then_some(value);
        before.is_of_same_tenancy(word).then_some(Entry { at, word, value, constant })
    }

    #[inline]
    fn has_key(&self, at: usize, key: &LineKey<KEY>) -> bool {
        let is_equal = |line: &Line<W, KEY, VALUE>, words: &[u64; KEY]| {
            line.key.iter().zip(words).all(|(word, expected)| word.load() == *expected)
        };
        is_equal(&self.lines[at], &key.head)
            && key.tail.as_ref().is_none_or(|tail| is_equal(&self.lines[at + 1], tail))
    }

    /// Returns whether the tenant of a line has the next one, too. It is right if the tenant is
    /// the same afterwards: the second line is marked before a wide entry is published, and the
    /// mark taken away before the first line is free.
    #[inline]
    fn has_tail(&self, at: usize) -> bool {
        at.is_multiple_of(2) && self.word(at + 1).is(Vacant::Tail)
    }

    /// Note of a line. Equal versions of the state word before and after prove the tenant.
    #[inline]
    pub(super) fn note(&self, at: usize) -> u64 {
        self.lines[at].note.load()
    }

    /// Writes a note. Another tenant may have the line by now.
    #[inline]
    pub(super) fn set_note(&self, at: usize, note: u64) {
        self.lines[at].note.store(note);
    }

    /// Last word of a tenant's value. `None`: the tenant is gone.
    #[inline]
    pub(super) fn constant_of(&self, at: usize, word: StateWord) -> Option<u64> {
        let constant = self.lines[at].value[VALUE - 1].load();
        self.word(at).is_of_same_tenancy(word).then_some(constant)
    }

    /// Changes the tenant's part of the state word of a key: `new` is given the word and the
    /// value's last word, again each time that others interfere, and says `None` for no change.
    /// Returns the words before and after. `None`: the key is not in this line.
    #[inline]
    pub(super) fn update(
        &self,
        at: usize,
        key: &LineKey<KEY>,
        mut new: impl FnMut(StateWord, u64) -> Option<StateWord>,
    ) -> Option<(StateWord, StateWord)> {
        let line = self.lines.get(at)?;
        loop {
            let before = StateWord(line.state.load());
            if !before.is_live() || !self.has_key(at, key) {
                return None;
            }
            let constant = line.value[VALUE - 1].load();
            // Only now it is known whose the key and the constant are.
            let word = StateWord(line.state.load());
            if !word.is_of_same_tenancy(before) {
                continue;
            }
            let before = word;
            let after = new(before, constant);
            let is_done = match after {
                Some(after) if after != before => {
                    line.state.compare_exchange(before.0, after.0).is_ok()
                }
                _ => true,
            };
            if is_done {
                return Some((before, after.unwrap_or(before)));
            }
        }
    }

    /// Writes the value of a key anew, all but its last word. Readers meanwhile see the entry
    /// without a value. Returns whether it did: `false` if the key is not there, or another thread
    /// does the same.
    pub(super) fn renew(&self, at: usize, key: &LineKey<KEY>, value: &[u64; VALUE]) -> bool {
        let begin = |word: StateWord, _| (!word.is_renewing()).then(|| word.renewing());
        match self.update(at, key, begin) {
            Some((before, after)) if before != after => {
                let line = &self.lines[at];
                let words = line.value.iter().zip(value).take(VALUE - 1);
                words.for_each(|(word, value)| word.store(*value));
                change(&line.state, StateWord::renewed);
                true
            }
            _ => false,
        }
    }

    /// Removes the tenant of a word, if `is_to_go` agrees to how it stands now. Returns whether it
    /// did.
    pub(super) fn remove<R: Removals>(
        &self,
        at: usize,
        tenant: StateWord,
        removals: &R,
        is_to_go: impl Fn(StateWord) -> bool,
    ) -> bool {
        let line = &self.lines[at];
        for turns in 0.. {
            let word = StateWord(line.state.load());
            if !word.is_of_same_tenancy(tenant) || !is_to_go(word) {
                return false;
            }
            if word.is_renewing() {
                W::pause(turns);
                continue;
            }
            let (constant, note) = (line.value[VALUE - 1].load(), line.note.load());
            let is_wide = self.has_tail(at);
            let code = if is_wide { Vacant::Busy } else { Vacant::Free };
            if line.state.compare_exchange(word.0, word.left(code).0).is_err() {
                continue;
            }
            if is_wide {
                change(&self.lines[at + 1].state, |word| word.vacant(Vacant::Free));
                change(&line.state, |word| word.vacant(Vacant::Free));
            }
            let width = 1 + usize::from(is_wide);
            removals.removed(RemovedTenant { at, word, constant, note, width });
            return true;
        }
        false
    }

    /// Removes the entry of a key from a line.
    pub(super) fn remove_key<R: Removals>(
        &self,
        at: usize,
        key: &LineKey<KEY>,
        removals: &R,
    ) -> bool {
        // Again if its value was written anew in between.
        while let Some(entry) = self.entry_of(at, key) {
            if self.remove(at, entry.word, removals, |_| true) {
                return true;
            }
        }
        false
    }

    /// Inserts a key that is not there: its value, and the tenant's part of its state word.
    pub(super) fn insert<B: Bounds>(
        &self,
        candidates: Candidates,
        key: &LineKey<KEY>,
        (value, tenant): (&[u64; VALUE], StateWord),
        bounds: &B,
    ) -> LineInserted<VALUE, B::Refusal> {
        let _locked = self.lock(candidates.buckets[0]);
        while let Some(entry) = self.find(key, candidates) {
            let is_over = |word| bounds.is_over(word, entry.constant);
            if !is_over(entry.word) {
                return LineInserted::Raced(entry);
            }
            self.remove(entry.at, entry.word, bounds, is_over);
        }
        if let Err(refusal) = bounds.reserve() {
            return LineInserted::Refused(refusal);
        }
        for _ in 0..ATTEMPTS {
            if let Some(at) = self.claim(candidates, key.width()) {
                self.lines[at].note.store(bounds.note(at));
                self.publish(at, key, value, tenant);
                return LineInserted::New(at);
            }
            if !self.evict(candidates, key.width(), bounds) {
                break;
            }
        }
        bounds.give_back();
        LineInserted::Refused(B::FULL)
    }

    fn lock(&self, bucket: usize) -> Locked<'_, W> {
        let state = &self.lines[bucket * BUCKET].state;
        for turns in 0.. {
            let word = StateWord(state.load());
            if !word.is_locked() && state.compare_exchange(word.0, word.locked().0).is_ok() {
                break;
            }
            W::pause(turns);
        }
        Locked { state }
    }

    /// Takes free lines for an entry: of the first bucket while half of that is free, so that most
    /// are found where they are looked for first; then of the one that has more of them.
    fn claim(&self, candidates: Candidates, width: usize) -> Option<usize> {
        let free = |bucket: usize| {
            let first = candidates.buckets[bucket] * BUCKET;
            let lines = self.lines[first..first + BUCKET].iter();
            lines.filter(|line| StateWord(line.state.load()).is(Vacant::Free)).count()
        };
        let of_first = free(0);
        let is_crowded = of_first < BUCKET / 2 && free(1) > of_first;
        let order = if is_crowded { [1, 0] } else { [0, 1] };
        let mut places = order.iter().flat_map(|bucket| self.places(candidates, *bucket, width));
        places.find(|at| self.try_claim(*at, width))
    }

    fn try_claim(&self, at: usize, width: usize) -> bool {
        if !self.take(at, Vacant::Busy) {
            return false;
        }
        if width == 1 || self.take(at + 1, Vacant::Tail) {
            return true;
        }
        change(&self.lines[at].state, |word| word.vacant(Vacant::Free));
        false
    }

    /// Takes one free line.
    fn take(&self, at: usize, code: Vacant) -> bool {
        let state = &self.lines[at].state;
        let mut word = StateWord(state.load());
        while word.is(Vacant::Free) {
            match state.compare_exchange(word.0, word.vacant(code).0) {
                Ok(_) => return true,
                Err(other) => word = StateWord(other),
            }
        }
        false
    }

    /// Writes an entry into lines that were claimed.
    fn publish(&self, at: usize, key: &LineKey<KEY>, value: &[u64; VALUE], tenant: StateWord) {
        let line = &self.lines[at];
        line.key.iter().zip(&key.head).for_each(|(word, value)| word.store(*value));
        line.value.iter().zip(value).for_each(|(word, value)| word.store(*value));
        if let Some(tail) = &key.tail {
            let tail = self.lines[at + 1].key.iter().zip(tail);
            tail.for_each(|(word, value)| word.store(*value));
        }
        change(&line.state, |word| word.with_tenant(tenant));
    }

    /// Removes the entries that have the `width` lines whose tenants give way most readily.
    /// Returns whether there was one, or some.
    fn evict<B: Bounds>(&self, candidates: Candidates, width: usize, bounds: &B) -> bool {
        let readiness = |tenant: &Tenant| bounds.readiness(tenant.word);
        let all = Self::buckets(candidates)
            .flat_map(|bucket| self.places(candidates, bucket, width))
            .filter_map(|at| {
                let tenants = self.tenants(at, width)?;
                // Both must go, so that the one that is less ready decides.
                let least = tenants.iter().flatten().map(readiness).min()??;
                Some((least, tenants))
            });
        let Some((_, tenants)) = all.max_by_key(|(readiness, _)| *readiness) else { return false };
        tenants.into_iter().flatten().fold(false, |is_done, tenant| {
            let gives_way = |word| bounds.readiness(word).is_some();
            self.remove(tenant.at, tenant.word, bounds, gives_way) || is_done
        })
    }

    /// The tenants of one line or two. `None`: one is being written.
    fn tenants(&self, at: usize, width: usize) -> Option<[Option<Tenant>; 2]> {
        let mut tenants = [None; 2];
        for (at, tenant) in (at..at + width).zip(&mut tenants) {
            let word = self.word(at);
            let head = if word.is(Vacant::Tail) { at - 1 } else { at };
            // Of a wide entry in both lines, the first names it.
            if word.is(Vacant::Free) || head < at && width == 2 {
                continue;
            }
            let word = self.word(head);
            let entry = word.is_live().then(|| self.value_of(head, word)).flatten()?;
            *tenant = Some(Tenant { at: head, word: entry.word });
        }
        Some(tenants)
    }
}

/// The tenant of a line, as it was at one moment.
#[derive(Clone, Copy)]
struct Tenant {
    at: usize,
    word: StateWord,
}
