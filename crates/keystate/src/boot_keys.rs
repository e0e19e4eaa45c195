//! Keys that were put since the machine booted: files in the run directory.
//!
//! * [`NamedKeys`]: keys of programs that named their run. The next run, a person or a key file
//!   brings none of them back within the boot. The file only grows.
//! * [`EarlierKeys`]: keys of all origins that an earlier version of lockgated took in this boot.
//!
//! ```text
//! header   64 bytes: magic, version, boot, machine, check
//! record   16 bytes: the first 8 bytes of the key's fingerprint, a check with its place
//! ```
//! Records are in the page cache when a key is handed out: they survive SIGKILL, not the boot. The
//! run record counts them, so a shorter file is noticed. An unfinished record belongs to a key that
//! was never handed out, and is cut.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::HostIdentity;
use crate::files::{self, FileError};
use crate::key_table::{KeyTable, first_half, mix};
use crate::put_keys::{AddError, PutBefore};
use crate::record::digest;

/// The most keys of programs that named their run, from one boot to the next. Their file has
/// 256 MiB then.
pub const MAX_NAMED_KEYS: usize = 1 << 24;
/// The most keys in the file of an earlier version.
const MAX_EARLIER_KEYS: usize = 1 << 26;

const VERSION: u64 = 1;
const HEADER_BYTES: usize = 64;
/// Bytes of the header that its check covers.
const CHECKED_BYTES: usize = 48;
const RECORD_BYTES: usize = 16;

/// Keys of programs that named their run. The lock of the run record protects the file.
pub(crate) struct NamedKeys {
    path: PathBuf,
    content: NamedKeyFile,
    boot: u128,
    /// Number of records that the run record knows of.
    counted: &'static AtomicU64,
    most: usize,
}

enum NamedKeyFile {
    Whole { file: File, keys: KeyTable<()> },
    Damaged,
}

impl NamedKeys {
    /// Reads the file of this boot, or begins a file. A damaged file is left unchanged.
    ///
    /// # Errors
    /// [`FileError`]: the file cannot be read or made.
    pub(crate) fn open(
        path: &Path,
        host: &HostIdentity,
        counted: &'static AtomicU64,
    ) -> Result<NamedKeys, FileError> {
        NamedKeys::open_with(path, host, counted, MAX_NAMED_KEYS)
    }

    fn open_with(
        path: &Path,
        host: &HostIdentity,
        counted: &'static AtomicU64,
        most: usize,
    ) -> Result<NamedKeys, FileError> {
        let of = |error: std::io::Error| FileError::of(path, &error);
        let file = files::open_or_create(path)?;
        let mut found = read(&file, FileKind::Named, host, most).map_err(of)?;
        if let FoundKeys::Stale = found {
            file.set_len(0).map_err(of)?;
            file.write_all_at(&header(FileKind::Named, host), 0).map_err(of)?;
            found = FoundKeys::Whole(Vec::new());
        }
        let mut keys = KeyTable::new();
        let is_whole = match found {
            FoundKeys::Whole(halves) => {
                halves.len() as u64 >= counted.load(Ordering::Relaxed)
                    && halves.into_iter().all(|half| keys.insert(half, ()))
            }
            FoundKeys::Stale | FoundKeys::Damaged(_) => false,
        };
        let content = match is_whole {
            true => {
                file.set_len(end_of(keys.len())).map_err(of)?;
                counted.store(keys.len() as u64, Ordering::Relaxed);
                NamedKeyFile::Whole { file, keys }
            }
            false => NamedKeyFile::Damaged,
        };
        Ok(NamedKeys { path: path.to_owned(), content, boot: host.boot, counted, most })
    }

    /// Number of keys; 0 of a damaged file.
    pub(crate) fn count(&self) -> usize {
        match &self.content {
            NamedKeyFile::Whole { keys, .. } => keys.len(),
            NamedKeyFile::Damaged => 0,
        }
    }

    /// Returns whether a key is in the file.
    pub(crate) fn knows(&self, fingerprint: u128) -> PutBefore {
        match &self.content {
            NamedKeyFile::Damaged => PutBefore::UnknownUntilBoot(self.path.clone()),
            NamedKeyFile::Whole { keys, .. } if keys.contains(first_half(fingerprint)) => {
                PutBefore::Yes
            }
            NamedKeyFile::Whole { .. } => PutBefore::No,
        }
    }

    /// Adds keys that differ from each other and are not known.
    pub(crate) fn add(&mut self, fingerprints: &[u128]) -> Result<(), AddError> {
        let NamedKeyFile::Whole { file, keys } = &mut self.content else {
            return Err(AddError::Damaged(self.path.clone()));
        };
        if keys.len() + fingerprints.len() > self.most {
            return Err(AddError::Full);
        }
        let halves = fingerprints.iter().map(|fingerprint| first_half(*fingerprint));
        let record = |(half, place): (u64, u64)| [half, check(half, place, self.boot)];
        let words = halves.clone().zip(keys.len() as u64..).flat_map(record);
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        let end = end_of(keys.len());
        if let Err(error) = file.write_all_at(&bytes, end) {
            // If the cut fails, the next records are written over it.
            let _ = file.set_len(end);
            return Err(AddError::File(FileError::of(&self.path, &error)));
        }
        for half in halves {
            keys.insert(half, ());
        }
        self.counted.store(keys.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Keys of `keys-used`, which earlier versions kept from boot to boot.
pub(crate) struct EarlierKeys {
    path: PathBuf,
    /// In order.
    halves: Vec<u64>,
    is_whole: bool,
}

impl EarlierKeys {
    /// Reads the file, if it is of this boot. `counted`: records that the run record knows of.
    pub(crate) fn read(path: &Path, host: &HostIdentity, counted: u64) -> EarlierKeys {
        let found = match files::open(path) {
            Ok(None) => Ok(FoundKeys::Stale),
            Ok(Some(file)) => read(&file, FileKind::Earlier, host, MAX_EARLIER_KEYS)
                .map_err(|error| FileError::of(path, &error)),
            Err(error) => Err(error),
        };
        let (mut halves, is_whole) = match found {
            Ok(FoundKeys::Stale) => (Vec::new(), true),
            Ok(FoundKeys::Whole(halves)) => (halves, true),
            Ok(FoundKeys::Damaged(halves)) => (halves, false),
            Err(_) => (Vec::new(), false),
        };
        let is_whole = is_whole && halves.len() as u64 >= counted;
        halves.sort_unstable();
        EarlierKeys { path: path.to_owned(), halves, is_whole }
    }

    /// Returns whether a key is in the file.
    pub(crate) fn knows(&self, fingerprint: u128) -> PutBefore {
        match self.halves.binary_search(&first_half(fingerprint)) {
            Ok(_) => PutBefore::Yes,
            Err(_) if self.is_whole => PutBefore::No,
            Err(_) => PutBefore::UnknownUntilBoot(self.path.clone()),
        }
    }
}

/// The two files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Named,
    Earlier,
}

/// The content of a file.
enum FoundKeys {
    /// Of an earlier boot or another machine, or without a whole header.
    Stale,
    Whole(Vec<u64>),
    /// The records in front of the damage.
    Damaged(Vec<u64>),
}

fn read(
    file: &File,
    kind: FileKind,
    host: &HostIdentity,
    most: usize,
) -> std::io::Result<FoundKeys> {
    let length = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut front = Vec::with_capacity(HEADER_BYTES);
    reader.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut front)?;
    if front.len() < HEADER_BYTES {
        return Ok(FoundKeys::Stale);
    }
    let expected = header(kind, host);
    if front != expected {
        let sum = digest(kind.check_label(), &front[..CHECKED_BYTES]).to_ne_bytes();
        let is_stale = front[..16] == expected[..16] && front[CHECKED_BYTES..] == sum;
        return Ok(if is_stale { FoundKeys::Stale } else { FoundKeys::Damaged(Vec::new()) });
    }
    let records = length.saturating_sub(HEADER_BYTES as u64) / RECORD_BYTES as u64;
    if records > most as u64 {
        return Ok(FoundKeys::Damaged(Vec::new()));
    }
    let mut halves = Vec::with_capacity(records as usize);
    for place in 0..records {
        let mut record = [0; RECORD_BYTES];
        reader.read_exact(&mut record)?;
        let ([half, sum], _) = record.as_chunks() else { return Ok(FoundKeys::Damaged(halves)) };
        let half = u64::from_ne_bytes(*half);
        if u64::from_ne_bytes(*sum) != check(half, place, host.boot) {
            return Ok(FoundKeys::Damaged(halves));
        }
        halves.push(half);
    }
    Ok(FoundKeys::Whole(halves))
}

impl FileKind {
    const fn magic(self) -> u64 {
        match self {
            FileKind::Named => u64::from_be_bytes(*b"locknamd"),
            FileKind::Earlier => u64::from_be_bytes(*b"lockonce"),
        }
    }

    const fn check_label(self) -> &'static str {
        match self {
            FileKind::Named => "named keys header",
            FileKind::Earlier => "once header",
        }
    }
}

fn header(kind: FileKind, host: &HostIdentity) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend([kind.magic(), VERSION].map(u64::to_ne_bytes).as_flattened());
    bytes.extend([host.boot, host.machine].map(u128::to_ne_bytes).as_flattened());
    bytes.extend(digest(kind.check_label(), &bytes).to_ne_bytes());
    bytes
}

/// Length of a file with this many records, bytes.
fn end_of(records: usize) -> u64 {
    (HEADER_BYTES + records * RECORD_BYTES) as u64
}

/// The check of a record against damage by accident: who may write to the file can forge it.
fn check(half: u64, place: u64, boot: u128) -> u64 {
    mix(mix(mix(half ^ boot as u64) ^ place) ^ (boot >> 64) as u64)
}

#[cfg(test)]
mod tests;
