//! The keys that were put over the API since the machine booted: a file in the run directory that
//! only grows. A key in it never seals again, so that its sequence numbers begin at 1 once.
//!
//! ```text
//! header   64 bytes: magic, version, boot, machine, check
//! record   16 bytes: the first 8 bytes of the key's fingerprint, a check with its place
//! ```
//! The records are in the page cache when a key is handed out: they survive SIGKILL. They need not
//! survive the boot, because a peer that agrees on keys makes new ones after it. A record that is
//! half written belongs to a key that was never handed out, and is cut. The run record counts the
//! records, so a file that lost some of them is noticed.
//!
//! 64 bits of a fingerprint: two of 2^26 different keys have them in common with a chance of
//! 1 in 8,000, and the second is then refused.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::HostIdentity;
use crate::files::{self, FileError};
use crate::record::digest;

/// The most keys that are put over the API from one boot to the next. Their file has 1 GiB then.
pub const MAX_KEYS_ONCE: usize = 1 << 26;

const MAGIC: u64 = u64::from_be_bytes(*b"lockonce");
const VERSION: u64 = 1;
const HEADER_BYTES: usize = 64;
/// Bytes of the header that its check covers.
const CHECKED_BYTES: usize = 48;
const RECORD_BYTES: usize = 16;

/// The answer of the file about a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PutBefore {
    No,
    Yes,
    /// The file is damaged: it may have said so.
    Unknown(PathBuf),
}

/// A failure to add keys. None of them was added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AddError {
    Full,
    Damaged(PathBuf),
    File(FileError),
}

/// The keys put since boot. The lock of the run record protects the file.
pub(crate) struct OnceKeys {
    path: PathBuf,
    content: Content,
    boot: u128,
    /// Number of records that the run record knows of.
    counted: &'static AtomicU64,
}

enum Content {
    Whole { file: File, keys: HashSet<u64> },
    Damaged,
}

impl OnceKeys {
    /// Reads the file of this boot, or begins one. A damaged one stays as it is.
    ///
    /// # Errors
    /// [`FileError`]: the file cannot be read or made.
    pub(crate) fn open(
        path: &Path,
        host: &HostIdentity,
        counted: &'static AtomicU64,
    ) -> Result<OnceKeys, FileError> {
        let file = files::open_or_create(path)?;
        let of = |error: std::io::Error| FileError::of(path, &error);
        let length = file.metadata().map_err(of)?.len();
        let least = counted.load(Ordering::Relaxed);
        let mut reader = BufReader::with_capacity(1 << 16, &file);
        let mut header = Vec::with_capacity(HEADER_BYTES);
        reader.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut header).map_err(of)?;
        let keys = match Header::of(&header, host) {
            Header::Ours => read_keys(&mut reader, length, host.boot).map_err(of)?,
            Header::Unfinished | Header::Earlier => {
                begin(&file, host).map_err(of)?;
                Some(HashSet::new())
            }
            Header::Damaged => None,
        };
        drop(reader);
        let content = match keys.filter(|keys| keys.len() as u64 >= least) {
            Some(keys) => {
                file.set_len(end_of(keys.len())).map_err(of)?;
                Content::Whole { file, keys }
            }
            None => Content::Damaged,
        };
        Ok(OnceKeys { path: path.to_owned(), content, boot: host.boot, counted })
    }

    /// Returns what is known of a key.
    pub(crate) fn knows(&self, fingerprint: u128) -> PutBefore {
        match &self.content {
            Content::Damaged => PutBefore::Unknown(self.path.clone()),
            Content::Whole { keys, .. } if keys.contains(&first_half(fingerprint)) => {
                PutBefore::Yes
            }
            Content::Whole { .. } => PutBefore::No,
        }
    }

    /// Adds keys that differ and that [`OnceKeys::knows`] not. After it they are known for as long
    /// as the machine runs.
    pub(crate) fn add(&mut self, fingerprints: &[u128]) -> Result<(), AddError> {
        let Content::Whole { file, keys } = &mut self.content else {
            return Err(AddError::Damaged(self.path.clone()));
        };
        if keys.len() + fingerprints.len() > MAX_KEYS_ONCE {
            return Err(AddError::Full);
        }
        let halves = fingerprints.iter().map(|fingerprint| first_half(*fingerprint));
        let record = |(key, place): (u64, u64)| [key, check(key, place, self.boot)];
        let words = halves.clone().zip(keys.len() as u64..).flat_map(record);
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        let end = end_of(keys.len());
        if let Err(error) = file.write_all_at(&bytes, end) {
            // What was written of them is no record. Else the next ones are written over it.
            let _ = file.set_len(end);
            return Err(AddError::File(FileError::of(&self.path, &error)));
        }
        keys.extend(halves);
        self.counted.store(keys.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// The state of a file's header.
enum Header {
    Ours,
    /// Of an earlier boot, or of another machine.
    Earlier,
    /// The file was made, and its header not written.
    Unfinished,
    Damaged,
}

impl Header {
    fn of(bytes: &[u8], host: &HostIdentity) -> Header {
        if bytes.len() < HEADER_BYTES {
            return Header::Unfinished;
        }
        let expected = header(host);
        if bytes == expected {
            return Header::Ours;
        }
        let sum = digest("once header", &bytes[..CHECKED_BYTES]).to_ne_bytes();
        match bytes[..16] == expected[..16] && bytes[CHECKED_BYTES..] == sum {
            true => Header::Earlier,
            false => Header::Damaged,
        }
    }
}

fn header(host: &HostIdentity) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend([MAGIC, VERSION].map(u64::to_ne_bytes).as_flattened());
    bytes.extend([host.boot, host.machine].map(u128::to_ne_bytes).as_flattened());
    bytes.extend(digest("once header", &bytes[..CHECKED_BYTES]).to_ne_bytes());
    bytes
}

/// Empties the file and writes its header.
fn begin(file: &File, host: &HostIdentity) -> std::io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(&header(host), 0)
}

/// Reads all whole records; `None`: one of them is damaged.
fn read_keys(
    reader: &mut impl Read,
    length: u64,
    boot: u128,
) -> std::io::Result<Option<HashSet<u64>>> {
    let records = length.saturating_sub(HEADER_BYTES as u64) / RECORD_BYTES as u64;
    if records > MAX_KEYS_ONCE as u64 {
        return Ok(None);
    }
    let mut keys = HashSet::with_capacity(records as usize);
    for place in 0..records {
        let mut record = [0; RECORD_BYTES];
        reader.read_exact(&mut record)?;
        let (key, sum) = record.split_at(8);
        let word = |half: &[u8]| half.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        // One that was there before would make the number of keys disagree with that of records.
        if word(sum) != check(word(key), place, boot) || !keys.insert(word(key)) {
            return Ok(None);
        }
    }
    Ok(Some(keys))
}

/// Length of a file with this many records, bytes.
fn end_of(records: usize) -> u64 {
    (HEADER_BYTES + records * RECORD_BYTES) as u64
}

/// The first 8 bytes of a fingerprint.
pub(crate) fn first_half(fingerprint: u128) -> u64 {
    (fingerprint >> 64) as u64
}

/// A check against damage by accident: it depends on every bit of the record, on its place, and on
/// the boot. Who may write to the file can forge it.
fn check(key: u64, place: u64, boot: u128) -> u64 {
    mix(mix(mix(key ^ boot as u64) ^ place) ^ (boot >> 64) as u64)
}

/// The finalizer of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        directory: tempfile::TempDir,
        counted: &'static AtomicU64,
        boot: u32,
    }

    impl Place {
        fn new() -> Place {
            let counted = Box::leak(Box::new(AtomicU64::new(0)));
            Place { directory: tempfile::tempdir().unwrap(), counted, boot: 1 }
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("keys-used")
        }

        fn open(&self) -> OnceKeys {
            let host = HostIdentity::new("machine", &format!("boot {}", self.boot));
            OnceKeys::open(&self.path(), &host, self.counted).unwrap()
        }
    }

    fn key(number: u64) -> u128 {
        u128::from(mix(number)) << 64 | 7
    }

    #[test]
    fn keys_are_known_until_the_machine_boots() {
        let mut place = Place::new();
        for number in 0..100 {
            let mut keys = place.open();
            assert_eq!(keys.knows(key(number)), PutBefore::No);
            keys.add(&[key(number)]).unwrap();
            assert!((0..=number).all(|number| keys.knows(key(number)) == PutBefore::Yes));
        }
        place.boot += 1;
        place.counted.store(0, Ordering::Relaxed);
        assert_eq!(place.open().knows(key(1)), PutBefore::No);
        assert_eq!(std::fs::metadata(place.path()).unwrap().len(), end_of(0));
    }

    #[test]
    fn file_cut_anywhere_knows_every_key_that_was_handed_out_or_says_that_it_is_damaged() {
        let place = Place::new();
        place.open().add(&[key(1), key(2), key(3)]).unwrap();
        let whole = std::fs::read(place.path()).unwrap();
        for handed_out in 0..=3 {
            for cut in 0..=whole.len() {
                std::fs::write(place.path(), &whole[..cut]).unwrap();
                place.counted.store(handed_out, Ordering::Relaxed);
                let mut keys = place.open();
                let left = cut.saturating_sub(HEADER_BYTES) as u64 / 16;
                for number in 1..=3 {
                    let expected = match (left >= handed_out, number <= left) {
                        (false, _) => PutBefore::Unknown(place.path()),
                        (true, true) => PutBefore::Yes,
                        (true, false) => PutBefore::No,
                    };
                    assert_eq!(keys.knows(key(number)), expected, "{handed_out} of {cut} bytes");
                }
                // A torn record is gone, and the next is whole.
                if left >= handed_out {
                    keys.add(&[key(9)]).unwrap();
                    assert_eq!(place.open().knows(key(9)), PutBefore::Yes, "{cut}");
                } else {
                    assert_eq!(keys.add(&[key(9)]), Err(AddError::Damaged(place.path())));
                }
            }
        }
    }

    #[test]
    fn any_changed_bit_is_noticed_and_stays_noticed() {
        let place = Place::new();
        place.open().add(&[key(1), key(2), key(3)]).unwrap();
        let whole = std::fs::read(place.path()).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(place.path(), &bytes).unwrap();
            for _ in 0..2 {
                let expected = PutBefore::Unknown(place.path());
                assert_eq!(place.open().knows(key(4)), expected, "bit {bit}");
            }
            assert_eq!(std::fs::read(place.path()).unwrap(), bytes, "it is evidence");
        }
    }

    #[test]
    fn records_that_changed_places_or_appear_twice_are_noticed() {
        let place = Place::new();
        place.open().add(&[key(1), key(2)]).unwrap();
        let whole = std::fs::read(place.path()).unwrap();
        let (header, records) = whole.split_at(HEADER_BYTES);
        let (one, two) = records.split_at(RECORD_BYTES);
        for records in [[two, one], [one, one]] {
            std::fs::write(place.path(), [header, &records.concat()].concat()).unwrap();
            assert_eq!(place.open().knows(key(4)), PutBefore::Unknown(place.path()));
        }
    }
}
