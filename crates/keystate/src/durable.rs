//! Keeps the records that outlive the machine's boot: a reservation for each sealing key, and one
//! file with the right edges of all opening keys.
//!
//! One small file a sealing key, replaced whole: a reservation is written every few million
//! packets, keys do not wait for each other's disk space, and a damaged file costs one key. The
//! right edges are one file, because they all move all the time and a few seconds of them may be
//! lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Notice;
use crate::files::{self, FileError};
use crate::record::{self, Damaged};

/// The right of a key to seal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyStatus {
    Good,
    /// Its record was found missing or gone back: it never seals again.
    Spent,
}

/// The durable record of a sealing key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reservation {
    pub(crate) machine: u128,
    /// Numbers up to this one may have been used.
    pub(crate) reserved: u64,
    pub(crate) standing: KeyStatus,
}

/// A key's record as found on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found<T> {
    Missing,
    Good(T),
    /// The record is there, or was set aside, and cannot be understood.
    Damaged(PathBuf),
}

/// The reservations in a directory.
pub(crate) struct Reservations {
    directory: PathBuf,
}

const RESERVATION: &str = "reservation";

impl Reservations {
    pub(crate) fn new(directory: &Path) -> Reservations {
        Reservations { directory: directory.to_owned() }
    }

    fn path(&self, fingerprint: u128) -> PathBuf {
        self.directory.join(format!("{fingerprint:032x}.out"))
    }

    /// The record of a key. A damaged one is set aside and stays in the key's way.
    pub(crate) fn read(&self, fingerprint: u128) -> Result<Found<Reservation>, FileError> {
        let path = self.path(fingerprint);
        let Some(content) = files::read(&path)? else {
            let aside = files::set_aside_name(&path);
            let there = aside.symlink_metadata().is_ok();
            return Ok(if there { Found::Damaged(aside) } else { Found::Missing });
        };
        match parse(&content, fingerprint) {
            Ok(reservation) => Ok(Found::Good(reservation)),
            Err(Damaged) => files::set_aside(&path).map(Found::Damaged),
        }
    }

    /// Writes the record of a key; when this returns it is on disk.
    pub(crate) fn write(
        &self,
        fingerprint: u128,
        reservation: &Reservation,
    ) -> Result<(), FileError> {
        files::replace(&self.path(fingerprint), &text(fingerprint, reservation))
    }

    /// Writes the records of many keys, each as [`Reservations::write`] does. Returns one result
    /// for each.
    pub(crate) fn write_all(&self, records: &[(u128, Reservation)]) -> Vec<Result<(), FileError>> {
        let file = |(key, record): &(u128, Reservation)| (self.path(*key), text(*key, record));
        files::replace_all(&records.iter().map(file).collect::<Vec<_>>())
    }
}

fn text(fingerprint: u128, reservation: &Reservation) -> Vec<u8> {
    let Reservation { machine, reserved, standing } = reservation;
    let standing = match standing {
        KeyStatus::Good => "good",
        KeyStatus::Spent => "spent",
    };
    let line = format!("{fingerprint:032x} {machine:032x} {reserved} {standing}");
    record::encode(RESERVATION, [line]).into_bytes()
}

fn parse(content: &[u8], expected: u128) -> Result<Reservation, Damaged> {
    let mut lines = record::decode(RESERVATION, content)?;
    let words: Vec<&str> = lines.next().ok_or(Damaged)?.split(' ').collect();
    let [fingerprint, machine, reserved, standing] = words[..] else { return Err(Damaged) };
    // Renamed, it is another key's.
    if record::hex(fingerprint) != Some(expected) {
        return Err(Damaged);
    }
    Ok(Reservation {
        machine: record::hex(machine).ok_or(Damaged)?,
        reserved: reserved.parse().map_err(|_| Damaged)?,
        standing: match standing {
            "good" => KeyStatus::Good,
            "spent" => KeyStatus::Spent,
            _ => return Err(Damaged),
        },
    })
}

/// The right edges of all keys that opened packets here.
pub(crate) struct Edges {
    path: PathBuf,
    edges: BTreeMap<u128, u64>,
    changed: bool,
}

const EDGES: &str = "right edges";

impl Edges {
    /// Reads the right edges. Sets a damaged file aside and notes that: windows then start at their
    /// beginning.
    pub(crate) fn open(path: &Path, notices: &mut Vec<Notice>) -> Result<Edges, FileError> {
        let mut edges = BTreeMap::new();
        if let Some(content) = files::read(path)? {
            match parse_edges(&content) {
                Ok(read) => edges = read,
                Err(Damaged) => {
                    notices.push(Notice::SetAside { path: files::set_aside(path)? });
                }
            }
        }
        Ok(Edges { path: path.to_owned(), edges, changed: false })
    }

    /// Returns the right edge of a key; `None`: the key is not known to have received anything.
    pub(crate) fn of(&self, fingerprint: u128) -> Option<u64> {
        self.edges.get(&fingerprint).copied()
    }

    /// Notes how far a key has received. Only on the way to disk until [`Edges::write`].
    pub(crate) fn raise(&mut self, fingerprint: u128, edge: u64) {
        if edge > self.of(fingerprint).unwrap_or(0) {
            self.edges.insert(fingerprint, edge);
            self.changed = true;
        }
    }

    /// Writes them if they have changed.
    pub(crate) fn write(&mut self) -> Result<(), FileError> {
        if self.changed {
            let lines = self.edges.iter().map(|(key, edge)| format!("{key:032x} {edge}"));
            files::replace(&self.path, record::encode(EDGES, lines).as_bytes())?;
            self.changed = false;
        }
        Ok(())
    }
}

fn parse_edges(content: &[u8]) -> Result<BTreeMap<u128, u64>, Damaged> {
    let line = |line: &str| {
        let (key, edge) = line.split_once(' ').ok_or(Damaged)?;
        Ok((record::hex(key).ok_or(Damaged)?, edge.parse().map_err(|_| Damaged)?))
    };
    record::decode(EDGES, content)?.map(line).collect()
}
