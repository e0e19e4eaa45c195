//! The thread that writes revisions, in the order in which they were made.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use tokio::sync::oneshot;

use super::encoding::encode;
use super::{Body, Revision, RevisionError};

/// Returns the file of the changes on top of a complete revision.
pub(super) fn changes_of(path: &Path) -> PathBuf {
    path.with_extension("changes")
}

/// A job of the writer, which does them in order.
pub(super) enum Job {
    Whole {
        path: PathBuf,
        revision: Revision,
        body: Box<dyn FnOnce() -> Body + Send>,
        done: oneshot::Sender<Result<(), RevisionError>>,
    },
    Change {
        path: PathBuf,
        line: String,
        done: oneshot::Sender<Result<(), RevisionError>>,
    },
    Forget {
        path: PathBuf,
    },
    Flush {
        done: oneshot::Sender<()>,
    },
}

/// The fate of the last job: a change can only follow a job that was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Written,
    /// The files are lost: no later record could be read.
    Lost,
}

impl Last {
    fn of<E>(written: &Result<(), E>) -> Last {
        if written.is_ok() { Last::Written } else { Last::Lost }
    }
}

/// A change upon a revision that is not there.
#[derive(Debug, thiserror::Error)]
#[error("a revision before it could not be written; the next one is kept as a whole")]
struct NothingBefore;

/// The writer's thread: ends with the sender.
pub(super) fn write_all(jobs: &mpsc::Receiver<Job>) {
    let mut last = Last::Written;
    let mut next = jobs.recv().ok();
    while let Some(job) = next.take() {
        match job {
            Job::Whole { path, revision, body, done } => {
                let written = write(&path, &encode(&revision, &body()));
                last = Last::of(&written);
                // Whoever asked may be gone.
                let _ = done.send(written);
            }
            Job::Change { path, done, .. } if last == Last::Lost => {
                let error = std::io::Error::other(NothingBefore);
                let _ = done.send(Err(RevisionError { path, error }));
            }
            Job::Change { path, line, done } => {
                let (mut lines, mut all) = (line, vec![done]);
                // Changes that came in the meantime go to the disk with it.
                next = loop {
                    match jobs.try_recv() {
                        Ok(Job::Change { path: same, line, done }) if same == path => {
                            lines.push_str(&line);
                            all.push(done);
                        }
                        Ok(other) => break Some(other),
                        Err(_) => break None,
                    }
                };
                let written = append(&path, lines.as_bytes());
                last = Last::of(&written);
                for done in all {
                    let again = |error: &std::io::Error| RevisionError {
                        path: path.clone(),
                        error: error.kind().into(),
                    };
                    let _ = done.send(written.as_ref().copied().map_err(again));
                }
            }
            Job::Forget { path } => {
                // Left over they are read again at the next start and forgotten then.
                let _ = std::fs::remove_file(&path);
                let _ = std::fs::remove_file(changes_of(&path));
            }
            Job::Flush { done } => {
                let _ = done.send(());
            }
        }
        next = next.or_else(|| jobs.recv().ok());
    }
}

/// Writes a revision's file so that it is whole or not there.
fn write(path: &Path, content: &str) -> Result<(), RevisionError> {
    // Changes upon another revision of this number, whose own file was lost.
    let _ = std::fs::remove_file(changes_of(path));
    write_file(path, content).map_err(|error| RevisionError { path: path.to_owned(), error })
}

/// Writes a file of the state directory atomically: it is complete and on disk, or unchanged.
pub(crate) fn write_file(path: &Path, content: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let write = || {
        let mut options = File::options();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    if let Err(error) = write() {
        // Half a file is of no use, and takes room where there may be none.
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    sync_names(path)
}

/// Writes lines behind those that are there. What a write that failed left is taken away, so that
/// the next one stands alone.
fn append(path: &Path, lines: &[u8]) -> std::io::Result<()> {
    let mut options = File::options();
    let mut file = options.append(true).create(true).mode(0o600).open(path)?;
    let before = file.metadata()?.len();
    let mut write = || {
        file.write_all(lines)?;
        file.sync_data()?;
        // The file may be new.
        if before == 0 { sync_names(path) } else { Ok(()) }
    };
    let written = write();
    if written.is_err() {
        let _ = file.set_len(before);
    }
    written
}

/// Waits until the names in the directory that a file is in are on disk: a file that was synced
/// and whose name was not is gone after a power cut.
pub(crate) fn sync_names(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(directory) if directory != Path::new("") => File::open(directory)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}
