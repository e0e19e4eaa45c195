//! The lines of a table: where an entry is looked for, and which one gives way to it.
//!
//! A bucket has two ways: of IPv4 the halves of a line, of IPv6 two adjacent lines. A key has two
//! buckets; the second is looked at when it is not in the first.

use std::hint::select_unpredictable;

use cpu::memory::{Line, Lines};
use policy::{Generation, Scope, ScopeBits};

use super::entry::{self, Half, Tenant, V4, V6, Value};

/// State of a domain under the latest snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Domain {
    pub(super) generation: Generation,
    /// True if its packets are not looked up here.
    pub(super) is_bypassed: bool,
    /// True if its answer may be another for TCP segments that open a connection.
    pub(super) tells_segments: bool,
    /// Entries of this generation that say what its policies said.
    pub(super) entries: u64,
}

/// All domains, by number.
#[derive(Default)]
pub(super) struct Domains {
    /// Bits of a scope that hold its domain.
    pub(super) bits: ScopeBits,
    pub(super) list: Vec<Domain>,
}

impl Domains {
    /// The domain of a scope, if there is one.
    #[inline(always)]
    pub(super) fn of(&self, scope: Scope) -> Option<&Domain> {
        self.list.get(usize::from(self.bits.domain(scope).0))
    }

    /// The generation of a scope's domain; 0, which no domain has, if there is none.
    #[inline(always)]
    pub(super) fn generation(&self, scope: Scope) -> Generation {
        self.of(scope).map_or(Generation(0), |domain| domain.generation)
    }

    /// Leaves of a key, which has no generation yet, what makes a difference in its domain.
    #[inline(always)]
    pub(super) fn narrow<const WORDS: usize>(&self, key: &mut [u64; WORDS]) {
        if entry::opens(key)
            && !self.of(entry::scope_of(key)).is_some_and(|domain| domain.tells_segments)
        {
            entry::clear_opens(key);
        }
    }

    /// The domain of an entry, if the entry is of its generation.
    fn live(&mut self, tenant: &Tenant) -> Option<&mut Domain> {
        let domain = self.list.get_mut(usize::from(self.bits.domain(tenant.scope).0));
        domain.filter(|domain| domain.generation == tenant.generation)
    }

    fn is_live(&self, tenant: &Tenant) -> bool {
        self.of(tenant.scope).is_some_and(|domain| domain.generation == tenant.generation)
    }

    fn forget(&mut self, tenant: &Tenant) {
        if tenant.verdict.is_asked()
            && let Some(domain) = self.live(tenant)
        {
            domain.entries -= 1;
        }
    }

    fn remember(&mut self, tenant: &Tenant) {
        if tenant.verdict.is_asked()
            && let Some(domain) = self.live(tenant)
        {
            domain.entries += 1;
        }
    }
}

/// Outcome of writing an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriteOutcome {
    /// Into a way that nobody had.
    Empty,
    /// Over an entry of another generation.
    Stale,
    /// Over entries that held, of which some said more than that nothing matched.
    Evicting { entries: u64, crowded_out: u64 },
    /// Over an entry of the same key.
    Again,
    /// Not at all: it says that nothing matched, and what it would take the place of holds.
    Refused,
}

/// State of a way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum WayState {
    Empty,
    Stale,
    /// Holds an entry that says that no policy matched.
    Negative,
    Live,
}

/// One of the two buckets of a hash.
#[derive(Clone, Copy)]
pub(super) enum Bucket {
    First(u64),
    Second(u64),
}

pub(super) struct Table {
    lines: Lines,
    /// Lines less one; their number is a power of two.
    mask: usize,
}

impl Table {
    /// Lines of zeros, a power of two of them, at least 4: two buckets of either family.
    pub(super) fn new(lines: usize) -> std::io::Result<Table> {
        let lines = lines.max(4).next_power_of_two();
        Ok(Table { lines: Lines::zeroed(lines)?, mask: lines - 1 })
    }

    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(super) fn touch(&mut self) -> std::io::Result<()> {
        self.lines.touch()
    }

    /// The first line of the bucket where a key with this hash belongs.
    #[inline(always)]
    fn first<const WORDS: usize>(&self, hash: u64) -> usize {
        hash as usize & self.mask & !(WORDS / V6)
    }

    /// The first line of its other bucket; never the same.
    #[inline(always)]
    fn second<const WORDS: usize>(&self, hash: u64) -> usize {
        let first = self.first::<WORDS>(hash);
        let other = (hash >> 32) as usize & self.mask & !(WORDS / V6);
        if other == first { first ^ (1 + WORDS / V6) } else { other }
    }

    /// Asks for the lines of the first bucket of a hash.
    #[inline(always)]
    pub(super) fn prefetch<const WORDS: usize>(&self, hash: u64) {
        self.ask_for::<WORDS>(self.first::<WORDS>(hash));
    }

    /// Asks for the lines of the second bucket of a hash.
    #[inline(always)]
    pub(super) fn prefetch_second<const WORDS: usize>(&self, hash: u64) {
        self.ask_for::<WORDS>(self.second::<WORDS>(hash));
    }

    #[inline(always)]
    fn ask_for<const WORDS: usize>(&self, at: usize) {
        cpu::prefetch_ref(&self.lines[at]);
        if WORDS == V6 {
            cpu::prefetch_ref(&self.lines[at + 1]);
        }
    }

    /// Returns the value of a key (with its generation) in its first bucket.
    #[inline(always)]
    pub(super) fn find<const WORDS: usize>(&self, hash: u64, key: &[u64; WORDS]) -> Value {
        self.find_at(self.first::<WORDS>(hash), key)
    }

    /// Returns the value of a key (with its generation) in its second bucket.
    #[inline(always)]
    pub(super) fn find_second<const WORDS: usize>(&self, hash: u64, key: &[u64; WORDS]) -> Value {
        self.find_at(self.second::<WORDS>(hash), key)
    }

    #[inline(always)]
    fn find_at<const WORDS: usize>(&self, at: usize, key: &[u64; WORDS]) -> Value {
        let (newer, older) = (self.way::<WORDS>(at, 0), self.way::<WORDS>(at, 1));
        if entry::is_of(newer, key) {
            return Value::of(newer);
        }
        if entry::is_of(older, key) { Value::of(older) } else { Value::default() }
    }

    /// Returns the value of a key, by its head and the word of scope and generation, in one of its
    /// buckets.
    #[inline(always)]
    pub(super) fn find_head<const HEAD: usize, const WORDS: usize>(
        &self,
        bucket: Bucket,
        head: &[u64; HEAD],
        scope: u64,
    ) -> Value {
        // Both ways without a branch: nobody can foretell which of them it is.
        let [newer, older] = self.ways::<WORDS>(bucket).map(|entry| {
            let is_of = entry::is_of_head(entry, head, scope);
            select_unpredictable(is_of, Value::of(entry), Value::default())
        });
        newer.or(older)
    }

    /// Searches like [`find_head`](Self::find_head), and returns the upper part of the mark, too:
    /// of a key that is not found, any.
    #[inline(always)]
    pub(super) fn find_head_marked<const HEAD: usize, const WORDS: usize>(
        &self,
        bucket: Bucket,
        head: &[u64; HEAD],
        scope: u64,
    ) -> (Value, u16) {
        let [newer, older] = self.ways::<WORDS>(bucket);
        let is_newer = entry::is_of_head(newer, head, scope);
        let is_found = is_newer | entry::is_of_head(older, head, scope);
        let entry = select_unpredictable(is_newer, newer, older);
        let value = select_unpredictable(is_found, Value::of(entry), Value::default());
        (value, entry::upper_mark(entry))
    }

    #[inline(always)]
    fn ways<const WORDS: usize>(&self, bucket: Bucket) -> [&[u64; WORDS]; 2] {
        let at = match bucket {
            Bucket::First(hash) => self.first::<WORDS>(hash),
            Bucket::Second(hash) => self.second::<WORDS>(hash),
        };
        [self.way(at, 0), self.way(at, 1)]
    }

    /// The words of a way: a half of a line, or a line.
    #[inline(always)]
    fn way<const WORDS: usize>(&self, at: usize, way: usize) -> &[u64; WORDS] {
        let Line(words) = &self.lines[at + way * (WORDS / V6)];
        words[way * WORDS % V6..].first_chunk().expect("a way lies in a line")
    }

    fn way_mut<const WORDS: usize>(&mut self, at: usize, way: usize) -> &mut [u64; WORDS] {
        let Line(words) = &mut self.lines[at + way * (WORDS / V6)];
        words[way * WORDS % V6..].first_chunk_mut().expect("a way lies in a line")
    }

    /// Writes an entry where it will be found. Of a full bucket the older entry goes:
    ///
    /// 1. over what is there of the same key;
    /// 2. into an empty or stale way of its first bucket, then of the second;
    /// 3. over an entry that says that nothing matched;
    /// 4. over the older one of the first bucket, unless the entry itself says that nothing
    ///    matched: then it is not written.
    ///
    /// Of entries that say that nothing matched a bucket has one at most.
    pub(super) fn write<const WORDS: usize>(
        &mut self,
        hash: u64,
        entry: &[u64; WORDS],
        domains: &mut Domains,
    ) -> WriteOutcome {
        let buckets = [self.first::<WORDS>(hash), self.second::<WORDS>(hash)];
        for at in buckets {
            for way in 0..2 {
                let there = self.way_mut(at, way);
                if entry::is_of(there, entry) {
                    let before = std::mem::replace(there, *entry);
                    domains.forget(&entry::tenant(&before));
                    domains.remember(&entry::tenant(entry));
                    return WriteOutcome::Again;
                }
            }
        }
        let is_negative = entry::tenant(entry).verdict.is_negative();
        let choice = buckets.iter().find_map(|at| {
            let state = [0, 1].map(|way| self.state::<WORDS>(*at, way, domains));
            let negative = state.iter().position(|it| *it == WayState::Negative);
            let vacant = state.iter().position(|it| *it <= WayState::Stale);
            let way = if is_negative { negative.or(vacant) } else { vacant };
            way.map(|way| (*at, way))
        });
        let choice = choice.or_else(|| {
            buckets.iter().filter(|_| !is_negative).find_map(|at| {
                let is_negative =
                    |way: &usize| self.state::<WORDS>(*at, *way, domains) == WayState::Negative;
                (0..2).find(is_negative).map(|way| (*at, way))
            })
        });
        match choice {
            Some((at, way)) => self.put(at, way, entry, domains),
            None if is_negative => WriteOutcome::Refused,
            None => self.put(buckets[0], 1, entry, domains),
        }
    }

    /// Writes an entry over the one of its key, if that is there, and says what the policies said,
    /// too.
    pub(super) fn mark<const WORDS: usize>(&mut self, hash: u64, entry: &[u64; WORDS]) {
        for at in [self.first::<WORDS>(hash), self.second::<WORDS>(hash)] {
            for way in 0..2 {
                let there = self.way_mut(at, way);
                if entry::is_of(there, entry) {
                    *there = *entry;
                    return;
                }
            }
        }
    }

    /// Puts an entry in a way; what is in the newer way becomes the older one.
    fn put<const WORDS: usize>(
        &mut self,
        at: usize,
        way: usize,
        entry: &[u64; WORDS],
        domains: &mut Domains,
    ) -> WriteOutcome {
        let line = at + way * (WORDS / V6);
        let (mut written, mut entries, mut crowded_out) = (WriteOutcome::Empty, 0, 0);
        // An entry of the other family is wider or narrower than the way.
        let holds_wide = entry::half(&self.lines[line].0, 0) == Half::V6;
        for half in (0..2).filter(|half| WORDS == V6 || holds_wide || *half == way) {
            let Some(tenant) = tenant_in(&self.lines[line].0, half) else { continue };
            match domains.is_live(&tenant) {
                true => {
                    entries += 1;
                    crowded_out += u64::from(!tenant.verdict.is_negative());
                }
                false => written = WriteOutcome::Stale,
            }
            domains.forget(&tenant);
        }
        if WORDS == V4 && holds_wide {
            self.lines[line] = Line::default();
        }
        let newer_is_ours = WORDS == V4 || entry::half(&self.lines[at].0, 0) == Half::V6;
        let way = if way == 1 && newer_is_ours {
            *self.way_mut(at, 1) = *self.way::<WORDS>(at, 0);
            0
        } else {
            way
        };
        *self.way_mut(at, way) = *entry;
        domains.remember(&entry::tenant(entry));
        if entries > 0 { WriteOutcome::Evicting { entries, crowded_out } } else { written }
    }

    fn state<const WORDS: usize>(&self, at: usize, way: usize, domains: &Domains) -> WayState {
        let words = &self.lines[at + way * (WORDS / V6)].0;
        let of_half = |half| match tenant_in(words, half) {
            None => WayState::Empty,
            Some(tenant) if !domains.is_live(&tenant) => WayState::Stale,
            Some(tenant) if tenant.verdict.is_negative() => WayState::Negative,
            Some(_) => WayState::Live,
        };
        match (WORDS, entry::half(words, 0)) {
            (V4, Half::V6) => of_half(0),
            (V4, _) => of_half(way),
            _ => of_half(0).max(of_half(1)),
        }
    }

    /// Returns the entries of a line, in their order: key, value, tenant.
    pub(super) fn tenants(&self, line: usize) -> impl Iterator<Item = (super::Key, Value, Tenant)> {
        let words = &self.lines[line].0;
        (0..2).filter_map(move |half| {
            let tenant = tenant_in(words, half)?;
            let narrow: &[u64; V4] = words[half * V4..].first_chunk()?;
            Some(match entry::half(words, half) {
                Half::V6 => (entry::key(words), Value::of(words), tenant),
                _ => (entry::key(narrow), Value::of(narrow), tenant),
            })
        })
    }
}

/// The tenant whose entry begins in a half of a line.
fn tenant_in(words: &[u64; 8], half: usize) -> Option<Tenant> {
    match (entry::half(words, half), half) {
        (Half::V4, _) => words[half * V4..].first_chunk::<V4>().map(entry::tenant),
        (Half::V6, 0) => Some(entry::tenant(words)),
        (Half::V6, _) | (Half::Empty, _) => None,
    }
}
