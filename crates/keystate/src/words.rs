//! The places of the run record's words (the table in `run.rs`), and whose they are.

use ipsec::SharedWindow;

use crate::KeyUse;
use crate::record::digest;

/// SAs of each direction that have a place.
pub(crate) const SLOTS: u32 = 65_536;
pub(crate) const HEADER_WORDS: usize = 512;
pub(crate) const HEAD_WORDS: usize = 16;
pub(crate) const RING_WORDS: usize = SharedWindow::RING_WORDS;
pub(crate) const RINGS_AT: usize = HEADER_WORDS + 2 * SLOTS as usize * HEAD_WORDS;
pub(crate) const FILE_WORDS: usize = RINGS_AT + SLOTS as usize * RING_WORDS;
pub(crate) const WORD: u64 = size_of::<u64>() as u64;

/// Places in the header.
pub(crate) mod header {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 1;
    pub(crate) const SLOTS: usize = 2;
    pub(crate) const BOOT: usize = 3;
    pub(crate) const MACHINE: usize = 5;
    pub(crate) const CHECK: usize = 7;
    pub(crate) const PID: usize = 8;
    /// Numbers of keys in the files of used keys, not under the check: `keys-used` of earlier
    /// versions, `put-keys`, `named-keys`.
    pub(crate) const KEY_COUNTS: usize = 9;
    pub(crate) const KEY_COUNT_WORDS: usize = 3;
}

/// Places in a head. Workers write to the second line of it, and to no other.
pub(crate) mod slot {
    pub(crate) const STATE: usize = 0;
    pub(crate) const FINGERPRINT: usize = 1;
    pub(crate) const SPI: usize = 3;
    pub(crate) const CHECK: usize = 4;
    pub(crate) const RESERVED: usize = 5;
    /// 1: the words of the account say what the SA has used.
    pub(crate) const COUNTED: usize = 6;
    pub(crate) const LAST: usize = 8;
    pub(crate) const PACKETS: usize = 9;
    pub(crate) const BYTES: usize = 10;
    pub(crate) const EXPIRY: usize = 11;
    pub(crate) const FIRST_USE: usize = 12;
    pub(crate) const LAST_USE: usize = 13;
}
// Workers of different SAs share no cache line.
const _: () = assert!(HEAD_WORDS == 16 && slot::COUNTED < 8 && slot::LAST >= 8);
const _: () = assert!(HEADER_WORDS.is_multiple_of(8) && RING_WORDS.is_multiple_of(8));

pub(crate) const STATE_SEALS: u64 = u64::from_be_bytes(*b"seals   ");
pub(crate) const STATE_OPENS: u64 = u64::from_be_bytes(*b"opens   ");

/// A key in one of its two uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Subject {
    pub(crate) fingerprint: u128,
    pub(crate) usage: KeyUse,
}

/// Length of a record of this layout, bytes.
pub(crate) const FILE_BYTES: u64 = bytes(FILE_WORDS);

/// Length of words, bytes.
pub(crate) const fn bytes(words: usize) -> u64 {
    words as u64 * WORD
}

/// Place of a head in the file, words.
pub(crate) const fn head_at(usage: KeyUse, number: u32) -> usize {
    HEADER_WORDS + (table(usage) * SLOTS as usize + number as usize) * HEAD_WORDS
}

/// The table of a use.
pub(crate) const fn table(usage: KeyUse) -> usize {
    match usage {
        KeyUse::Opens => 0,
        KeyUse::Seals => 1,
    }
}

/// Place of a ring in the file, words.
pub(crate) const fn ring_at(number: u32) -> usize {
    // A sealing SA has none; its number is one of the same range.
    RINGS_AT + number as usize * RING_WORDS
}

/// The check of a slot's owner.
pub(crate) fn slot_check(usage: KeyUse, fingerprint: u128, spi: u64) -> u64 {
    let mut bytes = fingerprint.to_ne_bytes().to_vec();
    bytes.extend(spi.to_ne_bytes());
    bytes.push(usage as u8);
    digest("run slot", &bytes) as u64
}
