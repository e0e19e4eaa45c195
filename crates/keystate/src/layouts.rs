//! Reads run records of this layout and of those before it, by their bytes. Not by a mapping:
//! looking at a hole of one would fill the hole.
//!
//! | version | slots | |
//! |---|---|---|
//! | 1 | 8192 of 1088 bytes, with shorter rings | says which numbers were used at least |
//! | 2 | 8192 of 2112 bytes | says everything |
//! | 3 | `words.rs` | |

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::files::FileError;
use crate::record::digest;
use crate::words::{
    self, FILE_BYTES, HEAD_WORDS, HEADER_WORDS, RING_WORDS, SLOTS, STATE_OPENS, STATE_SEALS,
    Subject, header, slot,
};
use crate::{HostIdentity, KeyUse};

/// "lockgate".
const MAGIC: u64 = u64::from_be_bytes(*b"lockgate");
/// The version of the layout that is written.
pub(crate) const VERSION: u64 = 3;

/// The slots of versions 1 and 2: their number, the words in front of their rings, and the place of
/// the last number or right edge.
mod earlier {
    pub(super) const SLOTS: u32 = 8192;
    pub(super) const FRONT_WORDS: usize = 8;
    pub(super) const LAST: usize = 6;
    pub(super) const RING_WORDS: [usize; 2] = [128, 256];
}

/// A file that has the name of a run record.
pub(crate) enum Layout {
    /// Nothing was written to it.
    New,
    /// It was cut, changed, or written by a later version.
    Damaged,
    Whole(FoundSlots),
}

/// The numbers of keys in the files of used keys.
pub(crate) type KeyCountWords = [u64; header::KEY_COUNT_WORDS];

/// The content of a record.
pub(crate) struct FoundSlots {
    pub(crate) version: u64,
    pub(crate) host: HostIdentity,
    pub(crate) key_counts: KeyCountWords,
    pub(crate) slots: Vec<OwnedSlot>,
}

impl FoundSlots {
    /// Returns true if its windows and counters can go on as they were.
    pub(crate) fn says_everything(&self) -> bool {
        self.version >= 2
    }
}

/// A slot that a key has.
pub(crate) struct OwnedSlot {
    /// Its number among those of its use.
    pub(crate) number: u32,
    pub(crate) subject: Subject,
    pub(crate) spi: u64,
    pub(crate) reserved: u64,
    pub(crate) last: u64,
    /// The ring of a slot of version 2. Empty in others.
    pub(crate) ring: Vec<u64>,
}

/// Reads a file as it is.
pub(crate) fn read(file: &File, path: &Path) -> Result<Layout, FileError> {
    let of = |error: std::io::Error| FileError::of(path, &error);
    let length = file.metadata().map_err(of)?.len();
    if length == 0 {
        return Ok(Layout::New);
    }
    // A part of a slot says less than was used.
    if length < words::bytes(HEADER_WORDS) {
        return Ok(Layout::Damaged);
    }
    let words = read_words(file, 0, HEADER_WORDS).map_err(of)?;
    if words.iter().all(|word| *word == 0) {
        return Ok(Layout::New);
    }
    let wide = |place: usize| u128::from(words[place]) << 64 | u128::from(words[place + 1]);
    let host = HostIdentity { boot: wide(header::BOOT), machine: wide(header::MACHINE) };
    let (version, places) = (words[header::VERSION], words[header::SLOTS] as u32);
    if words[..=header::CHECK] != self::header(version, places, &host) {
        return Ok(Layout::Damaged);
    }
    let slots = match (version, places) {
        (VERSION, SLOTS) if length >= FILE_BYTES => read_heads(file).map_err(of)?,
        (1 | 2, earlier::SLOTS) => {
            let ring = earlier::RING_WORDS[version as usize - 1];
            let slot_words = earlier::FRONT_WORDS + ring;
            let all = earlier::SLOTS as usize * slot_words;
            if length < words::bytes(HEADER_WORDS + all) {
                return Ok(Layout::Damaged);
            }
            let words = read_words(file, HEADER_WORDS, all).map_err(of)?;
            read_earlier(words.chunks_exact(slot_words))
        }
        _ => return Ok(Layout::Damaged),
    };
    let counts = words[header::KEY_COUNTS..].first_chunk();
    let key_counts = *counts.expect("the header has all of its words");
    Ok(Layout::Whole(FoundSlots { version, host, key_counts, slots }))
}

/// The words of a header, up to its check.
pub(crate) fn header(version: u64, slots: u32, host: &HostIdentity) -> [u64; header::CHECK + 1] {
    let mut words = [0; header::CHECK + 1];
    words[header::MAGIC] = MAGIC;
    words[header::VERSION] = version;
    words[header::SLOTS] = slots.into();
    for (place, value) in [(header::BOOT, host.boot), (header::MACHINE, host.machine)] {
        words[place] = (value >> 64) as u64;
        words[place + 1] = value as u64;
    }
    let bytes: Vec<u8> =
        words[..header::CHECK].iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
    words[header::CHECK] = digest("run header", &bytes) as u64 | 1;
    words
}

fn read_heads(file: &File) -> std::io::Result<Vec<OwnedSlot>> {
    let mut owned = Vec::new();
    for usage in [KeyUse::Opens, KeyUse::Seals] {
        let table = words::head_at(usage, 0);
        let words = read_words(file, table, SLOTS as usize * HEAD_WORDS)?;
        let mut seen = HashSet::new();
        for (number, words) in (0..SLOTS).zip(words.chunks_exact(HEAD_WORDS)) {
            let owner = subject_of(words).filter(|subject| subject.usage == usage);
            if let Some(subject) = owner.filter(|subject| seen.insert(*subject)) {
                owned.push(OwnedSlot {
                    number,
                    subject,
                    spi: words[slot::SPI],
                    reserved: words[slot::RESERVED],
                    last: words[slot::LAST],
                    ring: Vec::new(),
                });
            }
        }
    }
    Ok(owned)
}

fn read_earlier<'a>(slots: impl Iterator<Item = &'a [u64]>) -> Vec<OwnedSlot> {
    let mut owned: Vec<OwnedSlot> = Vec::new();
    let mut seen = HashSet::new();
    for (number, words) in (0..).zip(slots) {
        let Some(subject) = subject_of(words).filter(|subject| seen.insert(*subject)) else {
            continue;
        };
        let ring = &words[earlier::FRONT_WORDS..];
        owned.push(OwnedSlot {
            number,
            subject,
            spi: words[slot::SPI],
            reserved: words[slot::RESERVED],
            last: words[earlier::LAST],
            ring: if ring.len() == RING_WORDS { ring.to_vec() } else { Vec::new() },
        });
    }
    owned
}

/// Returns the owner of a slot, by a copy of its words. `None`: nobody, or the words do not fit
/// each other. The first words of a slot are the same in all versions.
fn subject_of(words: &[u64]) -> Option<Subject> {
    let usage = match words[slot::STATE] {
        STATE_SEALS => KeyUse::Seals,
        STATE_OPENS => KeyUse::Opens,
        _ => return None,
    };
    let wide = |place: usize| u128::from(words[place]) << 64 | u128::from(words[place + 1]);
    let fingerprint = wide(slot::FINGERPRINT);
    let check = words::slot_check(usage, fingerprint, words[slot::SPI]);
    (check == words[slot::CHECK]).then_some(Subject { fingerprint, usage })
}

/// Reads words from a place in the file.
fn read_words(file: &File, at: usize, count: usize) -> std::io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * size_of::<u64>()];
    file.read_exact_at(&mut bytes, words::bytes(at))?;
    let (words, _) = bytes.as_chunks();
    Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}
