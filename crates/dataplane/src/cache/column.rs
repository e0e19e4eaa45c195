//! Keys of one family that the fast path looks up together: narrower than those of a
//! [`Lane`](super::Lane), because scope and generation are mostly the same for a whole batch and
//! stand beside the column.

use std::ops::Range;

use policy::{FlowVerdict, KnownConnections, Scope, TrackedVerdict};
use wire::{BATCH, Flow};

use super::entry::{self, Value};
use super::marks::Mark;
use super::table::Bucket;
use super::{CacheCounters, CachedRoute, FlowCache, Said};

/// Keys by the place of their packet in the batch, and what the cache said. Places whose packets
/// are not of the family hold what was there before: what is found of it means nothing.
pub(crate) struct Column<const HEAD: usize> {
    /// The words of each key before its scope and generation: [`v4_head`](super::v4_head),
    /// [`v6_head`](super::v6_head).
    pub(crate) heads: [[u64; HEAD]; BATCH],
    pub(crate) values: [Value; BATCH],
    /// Marks, if they were looked up, too; the values then have none.
    pub(crate) marks: [Mark; BATCH],
    hashes: [u64; BATCH],
}

impl<const HEAD: usize> Default for Column<HEAD> {
    fn default() -> Column<HEAD> {
        let (heads, hashes) = ([[0; HEAD]; BATCH], [0; BATCH]);
        Column { heads, values: [Value::default(); BATCH], marks: [Mark::NONE; BATCH], hashes }
    }
}

impl<const HEAD: usize> Column<HEAD> {
    /// The hash of a key that was looked up.
    pub(crate) fn hash(&self, place: usize) -> u64 {
        self.hashes[place]
    }

    /// The flow of a place.
    pub(crate) fn flow<const WORDS: usize>(&self, place: usize) -> Flow {
        entry::key(&entry::whole::<HEAD, WORDS>(&self.heads[place], 0)).flow
    }
}

/// The scopes of a column's keys.
#[derive(Clone, Copy)]
pub(crate) enum Scopes<'a> {
    /// One scope for all places.
    One(Scope),
    /// One entry a place.
    Each(&'a [Scope; BATCH]),
}

impl Scopes<'_> {
    /// The scope of a place.
    pub(crate) fn of(&self, place: usize) -> Scope {
        match self {
            Scopes::One(scope) => *scope,
            Scopes::Each(scopes) => scopes[place],
        }
    }
}

/// Operations that the fast path calls, batch by batch.
impl FlowCache {
    /// Looks up the keys of a range of places, and returns which were not found: a bit a place.
    /// Counts nothing.
    #[inline(always)]
    pub(crate) fn look_up_column<const HEAD: usize, const WORDS: usize>(
        &self,
        scopes: Scopes<'_>,
        column: &mut Column<HEAD>,
        range: Range<usize>,
    ) -> u64 {
        self.look_up_values::<HEAD, WORDS, false>(scopes, column, range)
    }

    /// Looks up keys as [`look_up_column`](Self::look_up_column) does, and their marks.
    #[inline(never)]
    pub(crate) fn look_up_marked<const HEAD: usize, const WORDS: usize>(
        &self,
        scopes: Scopes<'_>,
        column: &mut Column<HEAD>,
        range: Range<usize>,
    ) -> u64 {
        self.look_up_values::<HEAD, WORDS, true>(scopes, column, range)
    }

    #[inline(always)]
    fn look_up_values<const HEAD: usize, const WORDS: usize, const MARKS: bool>(
        &self,
        scopes: Scopes<'_>,
        column: &mut Column<HEAD>,
        range: Range<usize>,
    ) -> u64 {
        match scopes {
            Scopes::One(scope) => self.look_up_scope::<HEAD, WORDS, MARKS>(scope, column, range),
            Scopes::Each(scopes) => self.look_up_each::<HEAD, WORDS, MARKS>(scopes, column, range),
        }
    }

    #[inline(always)]
    fn look_up_scope<const HEAD: usize, const WORDS: usize, const MARKS: bool>(
        &self,
        scope: Scope,
        column: &mut Column<HEAD>,
        range: Range<usize>,
    ) -> u64 {
        let Column { heads, values, marks, hashes } = column;
        let (heads, hashes) = (&heads[range.clone()], &mut hashes[range.clone()]);
        self.hash.hash_with_tail(heads, [scope.0.into(), 0], hashes);
        for hash in &*hashes {
            self.table.prefetch::<WORDS>(*hash);
        }
        let word = entry::scope_word(scope, self.domains.generation(scope));
        let mut missing = 0u64;
        let marks = &mut marks[range.clone()];
        let found = heads.iter().zip(&*hashes).zip(&mut values[range.clone()]);
        for (at, ((head, hash), value)) in found.enumerate() {
            *value = match MARKS {
                false => self.table.find_head::<HEAD, WORDS>(Bucket::First(*hash), head, word),
                true => self.find_marked::<HEAD, WORDS>(
                    Bucket::First(*hash),
                    head,
                    word,
                    &mut marks[at],
                ),
            };
            missing |= u64::from(value.is_nothing()) << at;
        }
        if missing != 0 {
            missing <<= range.start;
            missing &= !self.look_again::<HEAD, WORDS, MARKS>(column, missing, |_| word);
        }
        missing
    }

    #[inline(never)]
    fn look_up_each<const HEAD: usize, const WORDS: usize, const MARKS: bool>(
        &self,
        scopes: &[Scope; BATCH],
        column: &mut Column<HEAD>,
        range: Range<usize>,
    ) -> u64 {
        for place in range.clone() {
            let key = entry::whole::<HEAD, WORDS>(&column.heads[place], scopes[place].0.into());
            self.hash.hash(&[key], &mut column.hashes[place..=place]);
            self.table.prefetch::<WORDS>(column.hashes[place]);
        }
        let word =
            |place: usize| entry::scope_word(scopes[place], self.domains.generation(scopes[place]));
        let mut missing = 0u64;
        for place in range {
            let (hash, head) = (column.hashes[place], &column.heads[place]);
            let value = match MARKS {
                false => {
                    self.table.find_head::<HEAD, WORDS>(Bucket::First(hash), head, word(place))
                }
                true => self.find_marked::<HEAD, WORDS>(
                    Bucket::First(hash),
                    head,
                    word(place),
                    &mut column.marks[place],
                ),
            };
            column.values[place] = value;
            missing |= u64::from(value.is_nothing()) << place;
        }
        if missing != 0 {
            missing &= !self.look_again::<HEAD, WORDS, MARKS>(column, missing, word);
        }
        missing
    }

    /// Finds a key's value and its mark.
    #[inline(always)]
    fn find_marked<const HEAD: usize, const WORDS: usize>(
        &self,
        bucket: Bucket,
        head: &[u64; HEAD],
        scope: u64,
        mark: &mut Mark,
    ) -> Value {
        let (value, upper) = self.table.find_head_marked::<HEAD, WORDS>(bucket, head, scope);
        *mark = Mark::of(upper, value.low_mark());
        value.unmarked()
    }

    /// Looks into the second buckets of keys that their first ones do not hold; returns which were
    /// found.
    #[inline(never)]
    fn look_again<const HEAD: usize, const WORDS: usize, const MARKS: bool>(
        &self,
        column: &mut Column<HEAD>,
        missing: u64,
        word: impl Fn(usize) -> u64,
    ) -> u64 {
        for place in bits(missing) {
            self.table.prefetch_second::<WORDS>(column.hashes[place]);
        }
        let mut found = 0;
        for place in bits(missing) {
            let (hash, head) = (column.hashes[place], &column.heads[place]);
            let value = match MARKS {
                false => {
                    self.table.find_head::<HEAD, WORDS>(Bucket::Second(hash), head, word(place))
                }
                true => self.find_marked::<HEAD, WORDS>(
                    Bucket::Second(hash),
                    head,
                    word(place),
                    &mut column.marks[place],
                ),
            };
            column.values[place] = value;
            found |= u64::from(!value.is_nothing()) << place;
        }
        found
    }

    /// Returns what a value says, and where it goes if the routes have not changed since.
    #[inline(always)]
    pub(crate) fn said(&self, value: Value) -> (&FlowVerdict, CachedRoute) {
        (self.verdicts.get(value.verdict()), value.route(self.epoch))
    }

    /// Returns what a value says of packets that change nothing of the connections that were known
    /// when the entry was written, and where they go.
    #[inline(always)]
    pub(crate) fn said_steady(&self, value: Value) -> (&FlowVerdict, CachedRoute) {
        (self.verdicts.steady(value.verdict()), value.route(self.epoch))
    }

    /// Returns what each book says by itself, if a value stands for that.
    #[inline(always)]
    pub(crate) fn said_tracked(&self, value: Value) -> Option<&TrackedVerdict> {
        self.verdicts.tracked(value.verdict())
    }

    /// Marks the entry of a key of a column, whose value was found: packets of it change nothing of
    /// these connections, which let them pass. `said` holds what was found in the entry.
    pub(crate) fn mark_head<const HEAD: usize, const WORDS: usize>(
        &mut self,
        column: &Column<HEAD>,
        (place, scope): (usize, Scope),
        said: (&TrackedVerdict, KnownConnections),
        mark: Mark,
    ) {
        let value = column.values[place];
        let number = match self.verdicts.is_steady(value.verdict(), said.1) {
            true => Some(value.verdict()),
            false => self.verdicts.number_of(Said::Steady(said.0, said.1)),
        };
        let Some(number) = number else { return };
        let word = entry::scope_word(scope, self.domains.generation(scope));
        let key = entry::whole::<HEAD, WORDS>(&column.heads[place], word);
        let value = Value::new(number, value.route(self.epoch), self.epoch);
        let mut entry = entry::with_value(key, value);
        entry::set_mark(&mut entry, mark);
        self.table.mark(column.hashes[place], &entry);
    }

    /// Remembers what was said of a key of a column, which was looked up in this scope.
    pub(crate) fn remember_head<const HEAD: usize, const WORDS: usize>(
        &mut self,
        column: &Column<HEAD>,
        place: usize,
        scope: Scope,
        said: (Said<'_>, CachedRoute),
        counters: &mut CacheCounters,
    ) {
        let word = entry::scope_word(scope, self.domains.generation(scope));
        let key = entry::whole::<HEAD, WORDS>(&column.heads[place], word);
        self.write(column.hashes[place], &key, said, counters);
    }
}

/// The places of the bits that are set, the lowest first.
#[inline(always)]
pub(crate) fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (place < 64).then_some(place)
    })
}
