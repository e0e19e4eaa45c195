//! Keys that people and programs put without naming a run of the daemon: a file in the state
//! directory that only grows. The request may be of any time, also of before the boot, so nothing
//! is forgotten by age.
//!
//! ```text
//! header   64 bytes: magic, version, secret (32 bytes), check
//! record   24 bytes: keyed fingerprint (16 bytes), a check with its place
//! ```
//! A keyed fingerprint is SHA-256 of the file's secret and the key's fingerprint, cut. The file
//! alone shows no fingerprint of a key.
//!
//! A record is synced before its key is handed out. An unfinished record at the end belongs to a
//! key that was never handed out, and is cut. The run record counts the records, so within a boot
//! a shorter file is noticed. **Not noticed**: a file that was lost or put back to an older state
//! together with the run directory.
//!
//! Memory holds the first 8 bytes of a keyed fingerprint. Two of 2^24 keys have them in common with
//! a chance of 1 in 131,072, and the second is then refused.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::rand;

use crate::files::{self, FileError};
use crate::key_table::{KeyTable, first_half, mix};
use crate::record::digest;

/// The most keys that are put without a named run. Their file has 384 MiB then.
pub const MAX_PUT_KEYS: usize = 1 << 24;

const MAGIC: u64 = u64::from_be_bytes(*b"lockputs");
const VERSION: u64 = 1;
const SECRET_BYTES: usize = 32;
const HEADER_BYTES: usize = 64;
/// Bytes of the header that its check covers.
const CHECKED_BYTES: usize = 48;
const RECORD_BYTES: usize = 24;

/// The answer of a record about a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PutBefore {
    No,
    Yes,
    /// The file is damaged: any key may have been in it.
    Unknown(PathBuf),
    /// A file of the run directory is damaged: any key of this boot may have been in it.
    UnknownUntilBoot(PathBuf),
}

/// A failure to add keys. None of them was added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AddError {
    Full,
    Damaged(PathBuf),
    File(FileError),
}

/// The keys put without a named run. The lock of the run record protects the file.
pub(crate) struct PutKeys {
    path: PathBuf,
    content: Content,
    /// Number of records that the run record knows of.
    counted: &'static AtomicU64,
    most: usize,
}

enum Content {
    Whole {
        file: File,
        secret: [u8; SECRET_BYTES],
        /// By the first halves of keyed fingerprints.
        keys: KeyTable<()>,
    },
    Damaged,
    /// No file could be begun, for this reason. No key was put yet.
    Missing(FileError),
}

impl PutKeys {
    /// Reads the file, or begins a file. A damaged file is left unchanged. Where no file can be
    /// begun, as on a full disk, each put tries again.
    ///
    /// # Errors
    /// [`FileError`]: the file is there and cannot be read.
    pub(crate) fn open(path: &Path, counted: &'static AtomicU64) -> Result<PutKeys, FileError> {
        PutKeys::open_with(path, counted, MAX_PUT_KEYS)
    }

    fn open_with(
        path: &Path,
        counted: &'static AtomicU64,
        most: usize,
    ) -> Result<PutKeys, FileError> {
        let content = read_or_begin(path, counted, most)?;
        let mut keys = PutKeys { path: path.to_owned(), content, counted, most };
        if (keys.count() as u64) < counted.load(Ordering::Relaxed) {
            keys.content = Content::Damaged;
        }
        if let Content::Whole { file, keys, .. } = &keys.content {
            file.set_len(end_of(keys.len())).map_err(|error| FileError::of(path, &error))?;
            counted.store(keys.len() as u64, Ordering::Relaxed);
        }
        Ok(keys)
    }

    /// Number of keys; 0 of a damaged file.
    pub(crate) fn count(&self) -> usize {
        match &self.content {
            Content::Whole { keys, .. } => keys.len(),
            Content::Damaged | Content::Missing(_) => 0,
        }
    }

    /// Returns whether a key is in the file.
    pub(crate) fn knows(&self, fingerprint: u128) -> PutBefore {
        match &self.content {
            Content::Damaged => PutBefore::Unknown(self.path.clone()),
            Content::Missing(_) => PutBefore::No,
            Content::Whole { secret, keys, .. } => {
                match keys.contains(first_half(keyed(secret, fingerprint))) {
                    true => PutBefore::Yes,
                    false => PutBefore::No,
                }
            }
        }
    }

    /// Adds keys that differ from each other and are not known. On return they are on disk.
    pub(crate) fn add(&mut self, fingerprints: &[u128]) -> Result<(), AddError> {
        if let Content::Missing(_) = self.content {
            let content = read_or_begin(&self.path, self.counted, self.most);
            self.content = content.map_err(AddError::File)?;
        }
        if let Content::Missing(why) = &self.content {
            return Err(AddError::File(why.clone()));
        }
        let Content::Whole { file, secret, keys } = &mut self.content else {
            return Err(AddError::Damaged(self.path.clone()));
        };
        if keys.len() + fingerprints.len() > self.most {
            return Err(AddError::Full);
        }
        let all: Vec<u128> = fingerprints.iter().map(|key| keyed(secret, *key)).collect();
        let records = all.iter().zip(keys.len() as u64..);
        let bytes: Vec<u8> = records.flat_map(|(key, place)| record(*key, place)).collect();
        let end = end_of(keys.len());
        if let Err(error) = file.write_all_at(&bytes, end).and_then(|()| file.sync_data()) {
            // After a failed cut the next records overwrite the unsynced ones.
            let _ = file.set_len(end);
            return Err(AddError::File(FileError::of(&self.path, &error)));
        }
        for key in all {
            keys.insert(first_half(key), ());
        }
        self.counted.store(keys.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Reads the file, or begins a file without keys.
fn read_or_begin(path: &Path, counted: &AtomicU64, most: usize) -> Result<Content, FileError> {
    match path.symlink_metadata() {
        Ok(_) => read(path, most),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FileError::of(path, &error)),
        // A file is begun only if it never had a record; a lost one is not.
        Err(_) if counted.load(Ordering::Relaxed) > 0 => Ok(Content::Damaged),
        Err(_) => {
            let begun = new_secret(path).and_then(|secret| files::replace(path, &header(&secret)));
            match begun {
                Ok(()) => read(path, most),
                Err(why) => Ok(Content::Missing(why)),
            }
        }
    }
}

/// Reads the file.
fn read(path: &Path, most: usize) -> Result<Content, FileError> {
    let of = |error: std::io::Error| FileError::of(path, &error);
    let file = files::open_or_create(path)?;
    let length = file.metadata().map_err(of)?.len();
    let mut reader = BufReader::with_capacity(1 << 16, &file);
    let mut front = Vec::with_capacity(HEADER_BYTES);
    reader.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut front).map_err(of)?;
    let Some(secret) = secret_of(&front) else { return Ok(Content::Damaged) };
    let records = (length - HEADER_BYTES as u64) / RECORD_BYTES as u64;
    if records > most as u64 {
        return Ok(Content::Damaged);
    }
    let mut keys = KeyTable::new();
    for place in 0..records {
        let mut bytes = [0; RECORD_BYTES];
        reader.read_exact(&mut bytes).map_err(of)?;
        let key = bytes.first_chunk().map_or(0, |key| u128::from_be_bytes(*key));
        // A key in two records would leave fewer keys than records.
        if bytes != record(key, place) || !keys.insert(first_half(key), ()) {
            return Ok(Content::Damaged);
        }
    }
    drop(reader);
    Ok(Content::Whole { file, secret, keys })
}

fn new_secret(path: &Path) -> Result<[u8; SECRET_BYTES], FileError> {
    let mut secret = [0; SECRET_BYTES];
    let filled = rand::fill(&mut secret);
    filled.map_err(|_| FileError::of(path, &std::io::Error::other("no random number")))?;
    Ok(secret)
}

fn header(secret: &[u8; SECRET_BYTES]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend([MAGIC, VERSION].map(u64::to_be_bytes).as_flattened());
    bytes.extend(secret);
    bytes.extend(digest("put keys header", &bytes[..CHECKED_BYTES]).to_be_bytes());
    bytes
}

/// Returns the secret of a whole header.
fn secret_of(front: &[u8]) -> Option<[u8; SECRET_BYTES]> {
    let secret: [u8; SECRET_BYTES] = *front.get(16..)?.first_chunk()?;
    (front == header(&secret)).then_some(secret)
}

/// The fingerprint of a key as the file has it.
fn keyed(secret: &[u8; SECRET_BYTES], fingerprint: u128) -> u128 {
    let mut bytes = [0; SECRET_BYTES + 16];
    bytes[..SECRET_BYTES].copy_from_slice(secret);
    bytes[SECRET_BYTES..].copy_from_slice(&fingerprint.to_be_bytes());
    digest("put key", &bytes)
}

/// A record, with a check against damage by accident: who may write to the file can forge it.
fn record(key: u128, place: u64) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[..16].copy_from_slice(&key.to_be_bytes());
    let sum = mix(mix(mix(key as u64) ^ place) ^ (key >> 64) as u64);
    bytes[16..].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Length of a file with this many records, bytes.
fn end_of(records: usize) -> u64 {
    (HEADER_BYTES + records * RECORD_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        directory: tempfile::TempDir,
        counted: &'static AtomicU64,
    }

    impl Place {
        fn new() -> Place {
            let counted = Box::leak(Box::new(AtomicU64::new(0)));
            let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
            Place { directory: directory.unwrap(), counted }
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("put-keys")
        }

        fn open(&self) -> PutKeys {
            PutKeys::open_with(&self.path(), self.counted, 100).unwrap()
        }
    }

    fn key(number: u64) -> u128 {
        u128::from(mix(number)) << 64 | 7
    }

    #[test]
    fn keys_are_known_for_ever_and_the_file_shows_no_fingerprint() {
        let place = Place::new();
        for number in 0..100 {
            // Another boot: the run record is new.
            place.counted.store(0, Ordering::Relaxed);
            let mut keys = place.open();
            assert_eq!(keys.knows(key(number)), PutBefore::No);
            keys.add(&[key(number)]).unwrap();
            assert!((0..=number).all(|number| keys.knows(key(number)) == PutBefore::Yes));
        }
        let mut keys = place.open();
        assert_eq!((keys.count(), keys.add(&[key(100)])), (100, Err(AddError::Full)));
        let bytes = std::fs::read(place.path()).unwrap();
        assert_eq!(bytes.len() as u64, end_of(100));
        let half = first_half(key(1)).to_be_bytes();
        assert!(!bytes.windows(8).any(|window| window == half));
    }

    /// A full disk once kept the daemon from starting.
    #[test]
    fn put_begins_the_file_that_could_not_be_begun_at_the_start() {
        let place = Place::new();
        let path = place.directory.path().join("later/put-keys");
        let mut keys = PutKeys::open_with(&path, place.counted, 100).unwrap();
        assert_eq!((keys.count(), keys.knows(key(1))), (0, PutBefore::No));
        assert!(matches!(keys.add(&[key(1)]), Err(AddError::File(_))));
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        keys.add(&[key(1)]).unwrap();
        assert_eq!((keys.count(), keys.knows(key(1))), (1, PutBefore::Yes));
        let again = PutKeys::open_with(&path, place.counted, 100).unwrap();
        assert_eq!(again.knows(key(1)), PutBefore::Yes);
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
                let left = cut.saturating_sub(HEADER_BYTES) as u64 / RECORD_BYTES as u64;
                let is_whole = cut >= HEADER_BYTES && left >= handed_out;
                for number in 1..=3 {
                    let expected = match (is_whole, number <= left) {
                        (false, _) => PutBefore::Unknown(place.path()),
                        (true, true) => PutBefore::Yes,
                        (true, false) => PutBefore::No,
                    };
                    assert_eq!(keys.knows(key(number)), expected, "{handed_out} of {cut} bytes");
                }
                // A torn record is gone, and the next is whole.
                if is_whole {
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
    fn lost_file_and_records_at_other_places_are_noticed() {
        let place = Place::new();
        place.open().add(&[key(1), key(2)]).unwrap();
        let whole = std::fs::read(place.path()).unwrap();
        let (header, records) = whole.split_at(HEADER_BYTES);
        let (one, two) = records.split_at(RECORD_BYTES);
        for records in [[two, one], [one, one]] {
            std::fs::write(place.path(), [header, &records.concat()].concat()).unwrap();
            assert_eq!(place.open().knows(key(4)), PutBefore::Unknown(place.path()));
        }
        std::fs::remove_file(place.path()).unwrap();
        for _ in 0..2 {
            assert_eq!(place.open().knows(key(4)), PutBefore::Unknown(place.path()));
        }
        assert!(!place.path().exists());
    }
}
