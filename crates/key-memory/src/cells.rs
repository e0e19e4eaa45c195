//! Records in cells.
//!
//! ```text
//! header   512 words: magic, cells, highest cell ever used
//! cells    128 words each: state, next cell, kind and length, id, serial, …; 120 words of payload
//! ```
//! A record is a chain of cells. Its continuation cells are whole before the state word of its
//! first cell is stored, and no other store makes a record. A record ends with one store too: the
//! state of its first cell. Its bytes are zeroized after the store, and the cells freed last.
//!
//! Each cell that is not free says so before any byte of a payload is in it. So the next process
//! finds the bytes of an unfinished record, and zeroizes them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use zeroize::Zeroizing;

use crate::StoredRecord;

#[cfg(test)]
mod tests;

const HEADER_WORDS: usize = 512;
const CELL_WORDS: usize = 128;
const PAYLOAD_WORDS: usize = CELL_WORDS - field::PAYLOAD;
const WORD_BYTES: usize = size_of::<u64>();
const PAYLOAD_BYTES: usize = PAYLOAD_WORDS * WORD_BYTES;
/// Changes with the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"lgkeys01");

/// Largest payload of a record in bytes: a message of the largest size, and some fields beside.
pub const MAX_PAYLOAD: usize = 10 * PAYLOAD_BYTES;

/// Places in the header.
mod header {
    pub(super) const MAGIC: usize = 0;
    pub(super) const CELLS: usize = 1;
    /// Cells at and above were never used.
    pub(super) const USED: usize = 2;
}

/// Places in a cell.
mod field {
    pub(super) const STATE: usize = 0;
    /// The next cell of the chain, or [`super::LAST_CELL`].
    pub(super) const NEXT: usize = 1;
    /// Kind above, bytes of the payload below.
    pub(super) const KIND_LENGTH: usize = 2;
    pub(super) const ID: usize = 3;
    pub(super) const SERIAL: usize = 4;
    pub(super) const PAYLOAD: usize = 8;
}

const STATE_FREE: u64 = 0;
const STATE_UNFINISHED: u64 = u64::from_be_bytes(*b"unfinish");
const STATE_CONTINUATION: u64 = u64::from_be_bytes(*b"continue");
const STATE_RECORD: u64 = u64::from_be_bytes(*b"record  ");
const LAST_CELL: u64 = u64::MAX;

/// The name of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RecordKey {
    /// The caller's number of the kind of record.
    pub kind: u32,
    /// The caller's number of the object.
    pub id: u64,
}

/// A record that was not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreRefused {
    /// All cells are taken.
    #[error("the memory of stored keys is full")]
    Full,
    /// Over [`MAX_PAYLOAD`].
    #[error("a record of {0} bytes is too long: at most {MAX_PAYLOAD}")]
    TooLong(usize),
}

/// Words of a memory with this many cells.
pub(crate) const fn memory_words(cells: u32) -> usize {
    HEADER_WORDS + cells as usize * CELL_WORDS
}

/// Bytes of a memory with this many cells.
pub(crate) const fn memory_bytes(cells: u32) -> u64 {
    (memory_words(cells) * WORD_BYTES) as u64
}

/// The words of the memory. A stop of the process falls between two of its stores.
struct Words {
    words: &'static [AtomicU64],
    /// Stores until a test stops the process.
    #[cfg(test)]
    stores_left: u64,
}

impl Words {
    fn over(words: &'static [AtomicU64]) -> Words {
        Words {
            words,
            #[cfg(test)]
            stores_left: u64::MAX,
        }
    }

    fn load(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Relaxed)
    }

    /// The process may be stopped before and after each store, and the kernel keeps the stores
    /// before: their order in the program is all that counts.
    fn store(&mut self, at: usize, value: u64) {
        #[cfg(test)]
        match self.stores_left.checked_sub(1) {
            Some(left) => self.stores_left = left,
            None => return,
        }
        compiler_fence(Ordering::SeqCst);
        self.words[at].store(value, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }
}

/// A whole record.
#[derive(Clone, Copy)]
struct RecordPlace {
    first: u32,
    serial: u64,
}

/// Records of one memory, and its free cells.
pub(crate) struct Cells {
    words: Words,
    cells: u32,
    records: HashMap<RecordKey, RecordPlace>,
    free: Vec<u32>,
    next_serial: u64,
}

impl Cells {
    /// Makes an empty memory of words that are all zero.
    pub(crate) fn format(words: &'static [AtomicU64], cells: u32) -> Cells {
        let mut words = Words::over(words);
        words.store(header::CELLS, cells.into());
        words.store(header::MAGIC, MAGIC);
        Cells { words, cells, records: HashMap::new(), free: Vec::new(), next_serial: 1 }
    }

    /// Reads the records of an earlier process and zeroizes all other cells that it used. Takes
    /// time in proportion to the used cells. `None`: no memory of this version and size.
    pub(crate) fn recover(words: &'static [AtomicU64], cells: u32) -> Option<Cells> {
        let words = Words::over(words);
        let is_ours = words.load(header::MAGIC) == MAGIC
            && words.load(header::CELLS) == u64::from(cells)
            && words.load(header::USED) <= u64::from(cells);
        if !is_ours {
            return None;
        }
        let (records, free) = (HashMap::new(), Vec::new());
        let mut memory = Cells { words, cells, records, free, next_serial: 1 };
        let owned = memory.index_records();
        for cell in (0..memory.used()).rev().filter(|cell| !owned[*cell as usize]) {
            memory.erase_cell(cell);
            memory.free.push(cell);
        }
        Some(memory)
    }

    /// Finds the newest whole record of each key. Returns, for each used cell, if a record owns it.
    fn index_records(&mut self) -> Vec<bool> {
        let mut owned = vec![false; self.used() as usize];
        let is_record = |cell: &u32| self.field(*cell, field::STATE) == STATE_RECORD;
        let firsts: Vec<u32> = (0..self.used()).filter(is_record).collect();
        for first in firsts {
            let Some(chain) = self.chain(first) else { continue };
            // A cell of two chains is a fault of the memory: the second record is not whole.
            if chain.iter().any(|cell| owned[*cell as usize]) {
                continue;
            }
            let place = RecordPlace { first, serial: self.field(first, field::SERIAL) };
            let key = self.key(first);
            let earlier = self.records.get(&key).copied();
            if earlier.is_some_and(|earlier| earlier.serial >= place.serial) {
                continue;
            }
            if let Some(older) = earlier.and_then(|earlier| self.chain(earlier.first)) {
                older.iter().for_each(|cell| owned[*cell as usize] = false);
            }
            chain.iter().for_each(|cell| owned[*cell as usize] = true);
            self.records.insert(key, place);
            self.next_serial = self.next_serial.max(place.serial.saturating_add(1));
        }
        owned
    }

    /// The cells of a record from its first cell on; `None`: the chain is not as a store makes it.
    fn chain(&self, first: u32) -> Option<Vec<u32>> {
        let cells = self.length(first).div_ceil(PAYLOAD_BYTES).max(1);
        if self.length(first) > MAX_PAYLOAD {
            return None;
        }
        let mut chain = vec![first];
        while chain.len() < cells {
            let next = self.field(*chain.last()?, field::NEXT);
            let next = u32::try_from(next).ok().filter(|next| *next < self.used())?;
            if self.field(next, field::STATE) != STATE_CONTINUATION || chain.contains(&next) {
                return None;
            }
            chain.push(next);
        }
        (self.field(*chain.last()?, field::NEXT) == LAST_CELL).then_some(chain)
    }

    pub(crate) fn records(&self) -> Vec<StoredRecord> {
        let mut places: Vec<_> = self.records.iter().collect();
        places.sort_unstable_by_key(|(_, place)| place.serial);
        let read = |(key, place): (&RecordKey, &RecordPlace)| {
            let payload = self.payload(place.first)?;
            Some(StoredRecord { key: *key, payload })
        };
        places.into_iter().filter_map(read).collect()
    }

    fn payload(&self, first: u32) -> Option<Zeroizing<Vec<u8>>> {
        let chain = self.chain(first)?;
        let mut payload = Zeroizing::new(Vec::with_capacity(chain.len() * PAYLOAD_BYTES));
        for cell in chain {
            for place in field::PAYLOAD..CELL_WORDS {
                payload.extend_from_slice(&self.field(cell, place).to_ne_bytes());
            }
        }
        payload.truncate(self.length(first));
        Some(payload)
    }

    /// Stores a record and then erases the version before.
    pub(crate) fn store(&mut self, key: RecordKey, payload: &[u8]) -> Result<(), StoreRefused> {
        if payload.len() > MAX_PAYLOAD {
            return Err(StoreRefused::TooLong(payload.len()));
        }
        let chain = self.allocate(payload.len().div_ceil(PAYLOAD_BYTES).max(1))?;
        let first = chain[0];
        // From the last cell to the first: a chain is whole when its first cell is.
        for (index, cell) in chain.iter().enumerate().rev() {
            let start = (index * PAYLOAD_BYTES).min(payload.len());
            let end = (start + PAYLOAD_BYTES).min(payload.len());
            let next = chain.get(index + 1).map_or(LAST_CELL, |next| u64::from(*next));
            self.set(*cell, field::STATE, STATE_UNFINISHED);
            self.set(*cell, field::NEXT, next);
            self.write_payload(*cell, &payload[start..end]);
            if index > 0 {
                self.set(*cell, field::STATE, STATE_CONTINUATION);
            }
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let kind_length = u64::from(key.kind) << 32 | payload.len() as u64;
        self.set(first, field::KIND_LENGTH, kind_length);
        self.set(first, field::ID, key.id);
        self.set(first, field::SERIAL, serial);
        self.set(first, field::STATE, STATE_RECORD);
        if let Some(before) = self.records.insert(key, RecordPlace { first, serial }) {
            self.erase_record(before.first);
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, key: RecordKey) {
        if let Some(place) = self.records.remove(&key) {
            self.erase_record(place.first);
        }
    }

    pub(crate) fn erase(&mut self) {
        for (_, place) in std::mem::take(&mut self.records) {
            self.erase_record(place.first);
        }
    }

    fn write_payload(&mut self, cell: u32, payload: &[u8]) {
        for (index, bytes) in payload.chunks(WORD_BYTES).enumerate() {
            let mut word = Zeroizing::new([0; WORD_BYTES]);
            word[..bytes.len()].copy_from_slice(bytes);
            self.set(cell, field::PAYLOAD + index, u64::from_ne_bytes(*word));
        }
    }

    /// Takes free cells, all or none of them.
    fn allocate(&mut self, count: usize) -> Result<Vec<u32>, StoreRefused> {
        let unused = (self.cells - self.used()) as usize;
        if self.free.len() + unused < count {
            return Err(StoreRefused::Full);
        }
        let reused = self.free.split_off(self.free.len() - count.min(self.free.len()));
        let used = self.used();
        let fresh = used..used + (count - reused.len()) as u32;
        // Recovery looks at no cell at or above this number.
        self.words.store(header::USED, fresh.end.into());
        Ok(reused.into_iter().chain(fresh).collect())
    }

    /// Ends a record by the first store to its first cell, then zeroizes and frees all its cells.
    fn erase_record(&mut self, first: u32) {
        let chain = self.chain(first).unwrap_or_else(|| vec![first]);
        for cell in chain {
            self.erase_cell(cell);
            self.free.push(cell);
        }
    }

    /// Zeroizes a cell; its state comes last.
    fn erase_cell(&mut self, cell: u32) {
        if self.field(cell, field::STATE) == STATE_FREE {
            return;
        }
        self.set(cell, field::STATE, STATE_UNFINISHED);
        for place in (field::STATE + 1..CELL_WORDS).rev() {
            self.set(cell, place, 0);
        }
        self.set(cell, field::STATE, STATE_FREE);
    }

    fn used(&self) -> u32 {
        self.words.load(header::USED) as u32
    }

    fn key(&self, first: u32) -> RecordKey {
        let kind = (self.field(first, field::KIND_LENGTH) >> 32) as u32;
        RecordKey { kind, id: self.field(first, field::ID) }
    }

    fn length(&self, first: u32) -> usize {
        self.field(first, field::KIND_LENGTH) as u32 as usize
    }

    fn field(&self, cell: u32, place: usize) -> u64 {
        self.words.load(HEADER_WORDS + cell as usize * CELL_WORDS + place)
    }

    fn set(&mut self, cell: u32, place: usize, value: u64) {
        self.words.store(HEADER_WORDS + cell as usize * CELL_WORDS + place, value);
    }
}
