//! Files in which earlier versions kept revisions. `revisions/7.toml` is revision 7 as a whole,
//! with its facts in the first line; `revisions/7.changes` has the changes upon it, a line each.
//! The first start of this version takes them over into the store and removes them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::encoding::{edit_of_json, edit_row, keys_of_json, of_facts, whole_row};
use super::{Body, RevisionError};
use crate::durable_file::sync_names;

/// Name of their directory in the state directory.
const DIRECTORY: &str = "revisions";
/// First word of a whole revision's file.
const MARK: &str = "# lockgate revision: ";

/// Takes over the revisions of these files that the store does not have, in one transaction, and
/// removes the files then. A crash in between leaves both, and the next start removes the files.
/// Files that no daemon wrote stay.
///
/// # Errors
/// [`RevisionError`]: the files are as they were.
pub(super) fn take_over(
    state_dir: &Path,
    store: &mut dyn store::Revisions,
) -> Result<(), RevisionError> {
    let directory = state_dir.join(DIRECTORY);
    let files = match whole_files(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(RevisionError::EarlierFiles { directory, why: error.to_string() });
        }
        Ok(files) => files,
    };
    let last = store.revisions()?.last().map_or(0, |line| line.number);
    let rows = read_all(&files);
    let new: Vec<_> = rows.values().filter(|row| row.number > last).cloned().collect();
    store.put_revisions(&new)?;
    remove(&directory, files.iter().filter(|(number, _)| rows.contains_key(number)));
    Ok(())
}

/// The files of whole revisions, by number.
fn whole_files(directory: &Path) -> io::Result<BTreeMap<u64, PathBuf>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        let is_toml = path.extension().is_some_and(|extension| extension == "toml");
        if let (Some(number), true) = (number, is_toml) {
            files.insert(number, path);
        }
    }
    Ok(files)
}

/// Reads whole revisions and the changes upon them, by number. What is illegible is left out, as
/// the versions that wrote it did.
fn read_all(files: &BTreeMap<u64, PathBuf>) -> BTreeMap<u64, store::Revision> {
    let mut rows = BTreeMap::new();
    for (number, path) in files {
        let Ok(content) = std::fs::read_to_string(path) else { continue };
        let Some(whole) = decode(*number, &content) else { continue };
        rows.insert(*number, whole);
        let lines = std::fs::read(path.with_extension("changes")).unwrap_or_default();
        for change in decode_lines(*number, &lines) {
            rows.insert(change.number, change);
        }
    }
    rows
}

/// Reads a whole revision.
fn decode(number: u64, content: &str) -> Option<store::Revision> {
    let (first, text) = content.split_once('\n')?;
    let facts: serde_json::Value = serde_json::from_str(first.strip_prefix(MARK)?).ok()?;
    let body = Body { text: text.to_owned(), keys: keys_of_json(&facts["keys"]) };
    Some(whole_row(&of_facts(number, &facts)?, &body))
}

/// Reads the changes upon a whole revision: the lines up to the first that is incomplete or out of
/// order.
fn decode_lines(whole: u64, content: &[u8]) -> Vec<store::Revision> {
    let lines = content.split_inclusive(|byte| *byte == b'\n');
    let decoded = lines.zip(whole + 1..).map_while(|(line, number)| {
        let facts: serde_json::Value = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
        let is_next = facts["number"].as_u64() == Some(number);
        let (revision, edit) = (of_facts(number, &facts)?, edit_of_json(&facts)?);
        is_next.then(|| edit_row(&revision, whole, &edit))
    });
    decoded.collect()
}

/// Removes these files, and their directory if nothing else is in it. What cannot be removed is
/// tried at the next start.
fn remove<'f>(directory: &Path, files: impl Iterator<Item = (&'f u64, &'f PathBuf)>) {
    for (_, path) in files {
        for path in [path.with_extension("changes"), path.with_extension("new"), path.clone()] {
            let _ = std::fs::remove_file(path);
        }
    }
    let _ = std::fs::remove_dir(directory).and_then(|()| sync_names(directory));
}
