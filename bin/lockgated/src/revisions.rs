//! Revisions of the configuration: each that ran, as text with its defaults written out, in a file
//! of its own. Keys are in it as references only.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Revisions that are kept.
pub(crate) const MAX_KEPT: usize = 64;

/// Bytes of text that revisions beyond the last two may have.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// Why a revision began to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// The daemon started.
    Start,
    /// `lockgate apply`.
    Apply,
    /// `lockgate rollback`.
    Rollback,
}

impl Cause {
    const ALL: [Cause; 3] = [Cause::Start, Cause::Apply, Cause::Rollback];

    /// As a word.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Cause::Start => "start",
            Cause::Apply => "apply",
            Cause::Rollback => "rollback",
        }
    }
}

/// One revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Revision {
    pub(crate) number: u64,
    pub(crate) time: SystemTime,
    pub(crate) uid: u32,
    pub(crate) cause: Cause,
    /// The file it was read from, for people.
    pub(crate) file: String,
    /// What a relative `keys_dir` in it is relative to.
    pub(crate) base: PathBuf,
    /// Sections that differ from the revision before.
    pub(crate) changes: u32,
    /// Effective configuration.
    pub(crate) text: String,
}

/// A revision that cannot be kept or read.
#[derive(Debug, thiserror::Error)]
#[error("revisions in {}: {error}", path.display())]
pub(crate) struct RevisionError {
    path: PathBuf,
    error: std::io::Error,
}

/// All that are kept, oldest first, in a directory of their own.
pub(crate) struct Revisions {
    directory: PathBuf,
    kept: Vec<Revision>,
}

impl Revisions {
    /// Those of earlier runs. Files that are none of ours are left alone.
    pub(crate) fn open(state_dir: &Path) -> Result<Revisions, RevisionError> {
        let directory = state_dir.join("revisions");
        let fail = |error| RevisionError { path: directory.clone(), error };
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&directory).map_err(fail)?;
        let mut kept: Vec<Revision> = Vec::new();
        for entry in std::fs::read_dir(&directory).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
            let is_toml = path.extension().is_some_and(|extension| extension == "toml");
            if let (Some(number), true) = (number, is_toml) {
                kept.extend(std::fs::read_to_string(&path).ok().and_then(|t| decode(number, &t)));
            }
        }
        kept.sort_by_key(|revision| revision.number);
        Ok(Revisions { directory, kept })
    }

    /// Oldest first.
    pub(crate) fn all(&self) -> &[Revision] {
        &self.kept
    }

    /// The one with this number.
    pub(crate) fn find(&self, number: u64) -> Option<&Revision> {
        self.kept.iter().find(|revision| revision.number == number)
    }

    /// The number of the next one.
    pub(crate) fn next(&self) -> u64 {
        self.kept.last().map_or(1, |last| last.number + 1)
    }

    /// Keeps a revision, durably, and forgets the oldest beyond [`MAX_KEPT`] and
    /// [`MAX_KEPT_BYTES`].
    pub(crate) fn keep(&mut self, revision: Revision) -> Result<(), RevisionError> {
        write(&self.path(revision.number), &revision)?;
        self.remember(revision);
        Ok(())
    }

    /// The same with the writing on a thread of its own: a disk may take its time.
    pub(crate) async fn keep_aside(&mut self, revision: Revision) -> Result<(), RevisionError> {
        let (path, directory) = (self.path(revision.number), self.directory.clone());
        let write = move || write(&path, &revision).map(|()| revision);
        let written = tokio::task::spawn_blocking(write).await;
        let fault = |_| RevisionError { path: directory, error: std::io::ErrorKind::Other.into() };
        self.remember(written.map_err(fault)??);
        Ok(())
    }

    fn remember(&mut self, revision: Revision) {
        self.kept.push(revision);
        let bytes = |kept: &[Revision]| kept.iter().map(|kept| kept.text.len()).sum::<usize>();
        while self.kept.len() > MAX_KEPT
            || (self.kept.len() > 2 && bytes(&self.kept) > MAX_KEPT_BYTES)
        {
            let oldest = self.kept.remove(0);
            // Left over it is read again at the next start and forgotten then.
            let _ = std::fs::remove_file(self.path(oldest.number));
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number}.toml"))
    }
}

/// Writes a revision so that it is whole or not there.
fn write(path: &Path, revision: &Revision) -> Result<(), RevisionError> {
    let temporary = path.with_extension("new");
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(encode(revision).as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|error| RevisionError { path: path.to_owned(), error })
}

const MARK: &str = "# lockgate revision: ";

/// A TOML file whose first line says, as JSON, what the configuration does not.
fn encode(revision: &Revision) -> String {
    let since = revision.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let facts = serde_json::json!({
        "unix_ns": since.as_nanos() as u64,
        "uid": revision.uid,
        "cause": revision.cause.name(),
        "file": revision.file,
        "base": revision.base.to_string_lossy(),
        "changes": revision.changes,
    });
    format!("{MARK}{facts}\n{}", revision.text)
}

fn decode(number: u64, content: &str) -> Option<Revision> {
    let (first, text) = content.split_once('\n')?;
    let facts: serde_json::Value = serde_json::from_str(first.strip_prefix(MARK)?).ok()?;
    let since = std::time::Duration::from_nanos(facts["unix_ns"].as_u64()?);
    let cause = facts["cause"].as_str()?;
    Some(Revision {
        number,
        time: SystemTime::UNIX_EPOCH + since,
        uid: u32::try_from(facts["uid"].as_u64()?).ok()?,
        cause: Cause::ALL.into_iter().find(|known| known.name() == cause)?,
        file: facts["file"].as_str()?.to_owned(),
        base: PathBuf::from(facts["base"].as_str()?),
        changes: u32::try_from(facts["changes"].as_u64()?).ok()?,
        text: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(number: u64) -> Revision {
        Revision {
            number,
            time: SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(1_234_567_890_123),
            uid: 1000,
            cause: Cause::Rollback,
            file: "a \"b\"\n.toml".into(),
            base: PathBuf::from("/etc/x y"),
            changes: 3,
            text: format!("[node]\nname = \"{number}\"\n"),
        }
    }

    #[test]
    fn revisions_outlive_the_process_and_the_oldest_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        assert_eq!(revisions.next(), 1);
        let last = MAX_KEPT as u64 + 3;
        for number in 1..=last {
            assert_eq!(revisions.next(), number);
            revisions.keep(revision(number)).unwrap();
        }
        std::fs::write(directory.path().join("revisions/note.toml"), "not ours").unwrap();
        let again = Revisions::open(directory.path()).unwrap();
        assert_eq!(again.all(), revisions.all());
        assert_eq!(again.all().len(), MAX_KEPT);
        assert_eq!(again.find(last), Some(&revision(last)));
        assert_eq!(again.find(3), None);
        assert_eq!(again.next(), last + 1);
    }

    #[test]
    fn of_large_revisions_fewer_are_kept_and_never_less_than_two() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        let large = |number, bytes| Revision { text: "#".repeat(bytes), ..revision(number) };
        for number in 1..=4 {
            revisions.keep(large(number, MAX_KEPT_BYTES / 3 + 1)).unwrap();
        }
        assert_eq!(revisions.all().len(), 2);
        revisions.keep(large(5, MAX_KEPT_BYTES)).unwrap();
        let numbers: Vec<u64> = revisions.all().iter().map(|kept| kept.number).collect();
        assert_eq!(numbers, [4, 5]);
        assert_eq!(Revisions::open(directory.path()).unwrap().all().len(), 2);
    }

    #[test]
    fn what_cannot_be_written_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        std::fs::remove_dir_all(directory.path().join("revisions")).unwrap();
        assert!(revisions.keep(revision(1)).is_err());
        assert_eq!(revisions.all(), []);
    }
}
