//! The witness beside a key file, `NAME.keys.used`: which of its keys have sealed, on which
//! machine, and how far at least. It tells a key that was never used from one whose record was
//! lost, and goes where the key file goes.
//!
//! It is written after the durable reservation and before the numbers are used, so it never says
//! more than the reservation did.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::durable::Found;
use crate::files::{self, FileError};
use crate::record::{self, Damaged};

const WITNESS: &str = "used keys";

/// An entry of a witness about a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Evidence {
    pub(crate) machine: u128,
    /// Numbers up to this one were allowed at least.
    pub(crate) reserved: u64,
}

type EvidenceByKey = BTreeMap<u128, Evidence>;

/// The witness of a key file.
pub(crate) fn path_of(key_file: &Path) -> PathBuf {
    let mut name = key_file.as_os_str().to_owned();
    name.push(".used");
    name.into()
}

/// Reads the entry about a key from the witness of its key file.
pub(crate) fn read(key_file: &Path, fingerprint: u128) -> Result<Found<Evidence>, FileError> {
    let path = path_of(key_file);
    Ok(match read_all(&path)? {
        Err(Damaged) => Found::Damaged(path),
        Ok(all) => all.get(&fingerprint).map_or(Found::Missing, |found| Found::Good(*found)),
    })
}

/// Writes entries of keys, by their key files; entries of other keys stay. Leaves a damaged witness
/// alone: it is evidence. Returns one result for each key file.
pub(crate) fn write_all(
    by_file: &BTreeMap<&Path, Vec<(u128, Evidence)>>,
) -> Vec<Result<(), FileError>> {
    let mut results = Vec::with_capacity(by_file.len());
    let mut files = Vec::with_capacity(by_file.len());
    for (key_file, entries) in by_file {
        let path = path_of(key_file);
        let known = read_all(&path).and_then(|read| {
            read.map_err(|Damaged| FileError::System { path: path.clone(), code: libc::EBADMSG })
        });
        results.push(known.map(|mut all| {
            all.extend(entries.iter().copied());
            files.push((path, text(&all)));
        }));
    }
    let mut written = files::replace_all(&files).into_iter();
    for result in results.iter_mut().filter(|result| result.is_ok()) {
        *result = written.next().expect("one result for each file");
    }
    results
}

fn text(all: &EvidenceByKey) -> Vec<u8> {
    let lines = all.iter().map(|(key, Evidence { machine, reserved })| {
        format!("{key:032x} {machine:032x} {reserved}")
    });
    record::encode(WITNESS, lines).into_bytes()
}

fn read_all(path: &Path) -> Result<Result<EvidenceByKey, Damaged>, FileError> {
    Ok(files::read(path)?.map_or(Ok(EvidenceByKey::new()), |content| parse(&content)))
}

fn parse(content: &[u8]) -> Result<EvidenceByKey, Damaged> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [key, machine, reserved] = words[..] else { return Err(Damaged) };
        let machine = record::hex(machine).ok_or(Damaged)?;
        let reserved = reserved.parse().map_err(|_| Damaged)?;
        Ok((record::hex(key).ok_or(Damaged)?, Evidence { machine, reserved }))
    };
    record::decode(WITNESS, content)?.map(line).collect()
}
