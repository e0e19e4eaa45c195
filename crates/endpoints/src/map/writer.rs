//! The writer's side of a map: which records are free, and all that changes the map.

use super::{Bucket, Hash, LIVE, Map, Place, Word};

/// Buckets that are looked through for one that has an empty place.
const MAX_SEARCHED: usize = 512;

/// The writer of one map. There is no other for it.
#[derive(Default, Debug)]
pub(crate) struct Writer {
    /// Records from here on were never live.
    unused: u32,
    /// Records that have ended.
    ended: Vec<u32>,
}

/// A key is in no place, and none of its places can be emptied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoPlace;

/// A key's place and record. It is good until the map changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    bucket: usize,
    place: usize,
    /// Number of the record.
    pub(crate) record: u32,
}

/// A bucket on the way to an empty place.
struct Step {
    bucket: usize,
    /// The step before, and the place there whose key may move here.
    from: Option<(usize, usize)>,
}

impl<W: Word, const KEY: usize, const VALUE: usize, const PER_LINE: usize, const PLACES: usize>
    Map<W, KEY, VALUE, PER_LINE, PLACES>
{
    /// Finds a key for the writer.
    pub(crate) fn locate(&self, key: &[u64; KEY], hash: Hash) -> Option<At> {
        self.buckets(hash).into_iter().find_map(|bucket| {
            self.matching(bucket, hash).find_map(|(place, word)| {
                let record = word.record();
                (self.key(record)? == *key).then_some(At { bucket, place, record })
            })
        })
    }

    /// Key of a record, for the writer.
    pub(crate) fn key(&self, record: u32) -> Option<[u64; KEY]> {
        let record = self.record(record)?;
        Some(std::array::from_fn(|at| record.key[at].load()))
    }

    /// Value of a record, for the writer.
    pub(crate) fn value(&self, at: At) -> Option<[u64; VALUE]> {
        let record = self.record(at.record)?;
        Some(std::array::from_fn(|at| record.value[at].load()))
    }

    /// Inserts a key that is not there; returns the number of its record. `hash_of` is asked for
    /// the hashes of keys that may have to move. A record must be free.
    ///
    /// # Errors
    /// [`NoPlace`]: nothing has changed, but that keys may have moved.
    pub(crate) fn insert(
        &self,
        writer: &mut Writer,
        (key, hash): (&[u64; KEY], Hash),
        value: &[u64; VALUE],
        hash_of: impl Fn(&[u64; KEY]) -> Hash,
    ) -> Result<u32, NoPlace> {
        let (bucket, place) = self.empty_place(hash, hash_of).ok_or(NoPlace)?;
        let (record, word) = self.publish(writer, (key, hash), value)?;
        self.put(bucket, place, Some(word));
        Ok(record)
    }

    /// Gives a key another value; returns the number of its new record. A record must be free.
    ///
    /// # Errors
    /// [`NoPlace`]: no record is free. Nothing has changed.
    pub(crate) fn replace(
        &self,
        writer: &mut Writer,
        at: At,
        (key, hash): (&[u64; KEY], Hash),
        value: &[u64; VALUE],
    ) -> Result<u32, NoPlace> {
        let (record, word) = self.publish(writer, (key, hash), value)?;
        self.put(at.bucket, at.place, Some(word));
        self.end(writer, at.record);
        Ok(record)
    }

    /// Removes a key. Who looks for it afterwards does not find it.
    pub(crate) fn remove(&self, writer: &mut Writer, at: At) {
        self.put(at.bucket, at.place, None);
        self.end(writer, at.record);
    }

    /// Fills a free record and makes it live. It is in no place yet.
    fn publish(
        &self,
        writer: &mut Writer,
        (key, hash): (&[u64; KEY], Hash),
        value: &[u64; VALUE],
    ) -> Result<(u32, Place), NoPlace> {
        let number = writer.ended.last().copied().unwrap_or(writer.unused);
        let record = self.record(number).ok_or(NoPlace)?;
        if writer.ended.pop().is_none() {
            writer.unused += 1;
        }
        let state = (record.state.load() + 2) | LIVE;
        record.key.iter().zip(key).for_each(|(word, value)| word.store(*value));
        record.value.iter().zip(value).for_each(|(word, value)| word.store(*value));
        record.state.store(state);
        Ok((number, Place::new(hash, number, state)))
    }

    /// Reads a place that is not empty.
    fn place(&self, bucket: usize, place: usize) -> Place {
        Place(self.buckets[bucket].places[place].load())
    }

    /// Writes a place, or empties it, and then its hint.
    fn put(&self, bucket: usize, place: usize, word: Option<Place>) {
        let Bucket { hints, places } = &self.buckets[bucket];
        places[place].store(word.map_or(0, |word| word.0));
        let shift = 8 * place;
        let others = hints.load() & !(0xff << shift);
        hints.store(others | word.map_or(0, Place::hint) << shift);
    }

    fn end(&self, writer: &mut Writer, number: u32) {
        if let Some(record) = self.record(number) {
            record.state.store(record.state.load() & !LIVE);
            writer.ended.push(number);
        }
    }

    /// An empty place of a key: in its first bucket, else in its second, else one that is emptied.
    fn empty_place(
        &self,
        hash: Hash,
        hash_of: impl Fn(&[u64; KEY]) -> Hash,
    ) -> Option<(usize, usize)> {
        let buckets = self.buckets(hash);
        let found = buckets.into_iter().find_map(|bucket| Some((bucket, self.empty_in(bucket)?)));
        found.or_else(|| self.make_room(buckets, hash_of))
    }

    fn empty_in(&self, bucket: usize) -> Option<usize> {
        self.buckets[bucket].places.iter().position(|word| word.load() == 0)
    }

    /// Empties a place of one of two full buckets (cuckoo hashing; Pagh and Rodler 2004, with the
    /// shortest way as by Li, Andersen, Kaminsky and Freedman 2014):
    /// 1. look for the nearest bucket with an empty place, from each key to its other bucket;
    /// 2. move the keys on the way there, the last one first.
    ///
    /// No bucket is on the way twice, so that step 2 finds in each place the key that step 1 saw.
    fn make_room(
        &self,
        buckets: [usize; 2],
        hash_of: impl Fn(&[u64; KEY]) -> Hash,
    ) -> Option<(usize, usize)> {
        let mut steps: Vec<Step> =
            buckets.into_iter().map(|bucket| Step { bucket, from: None }).collect();
        let mut at = 0;
        while let Some(Step { bucket, .. }) = steps.get(at) {
            let bucket = *bucket;
            for place in 0..PLACES {
                let key = self.key(self.place(bucket, place).record())?;
                let [first, second] = self.buckets(hash_of(&key));
                let other = if first == bucket { second } else { first };
                if let Some(empty) = self.empty_in(other) {
                    return Some(self.move_along(&steps, (at, place), (other, empty)));
                }
                let is_new = steps.iter().all(|step| step.bucket != other);
                if is_new && steps.len() < MAX_SEARCHED {
                    steps.push(Step { bucket: other, from: Some((at, place)) });
                }
            }
            at += 1;
        }
        None
    }

    /// Moves the key of a place of a step to an empty place, then the one of the step before into
    /// the place that is empty now, and so on. Returns the place that is empty in the end.
    fn move_along(
        &self,
        steps: &[Step],
        last: (usize, usize),
        mut empty: (usize, usize),
    ) -> (usize, usize) {
        let mut next = Some(last);
        while let Some((step, place)) = next {
            let Step { bucket, from } = steps[step];
            self.put(empty.0, empty.1, Some(self.place(bucket, place)));
            // Between both: module documentation, 3.
            self.moves.0.store(self.moves.0.load() + 1);
            self.put(bucket, place, None);
            (empty, next) = ((bucket, place), from);
        }
        empty
    }
}
