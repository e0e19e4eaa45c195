//! The thread that writes revisions into their store, in the order in which they were made.

use std::sync::mpsc;

use tokio::sync::oneshot;

use super::encoding::{edit_row, whole_row};
use super::{Body, PolicyEdit, Revision, RevisionError, SharedStore, lock};

/// Tells the caller that a revision is on disk, or why it is not.
type Done = oneshot::Sender<Result<(), RevisionError>>;

/// A job of the writer, which does them in order.
pub(super) enum Job {
    Whole { revision: Revision, body: Box<dyn FnOnce() -> Body + Send>, done: Done },
    Change { upon: u64, revision: Revision, edit: PolicyEdit, done: Done },
    Forget { below: u64 },
    Flush { done: oneshot::Sender<()> },
}

/// The fate of the last job: a change can only follow a job that was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Written,
    /// The revision is lost: no change upon it could be read.
    Lost,
}

impl Last {
    fn of<E>(written: &Result<(), E>) -> Last {
        if written.is_ok() { Last::Written } else { Last::Lost }
    }
}

/// The writer's thread: ends with the sender.
pub(super) fn write_all(jobs: &mpsc::Receiver<Job>, store: &SharedStore) {
    let mut last = Last::Written;
    let mut next = jobs.recv().ok();
    while let Some(job) = next.take() {
        match job {
            Job::Whole { revision, body, done } => {
                let row = whole_row(&revision, &body());
                let written = put(store, &[row]);
                last = Last::of(&written);
                // Whoever asked may be gone.
                let _ = done.send(written);
            }
            Job::Change { done, .. } if last == Last::Lost => {
                let _ = done.send(Err(RevisionError::NothingBefore));
            }
            Job::Change { upon, revision, edit, done } => {
                let (mut rows, mut all) = (vec![edit_row(&revision, upon, &edit)], vec![done]);
                // Changes that came in the meantime go to the disk with it.
                next = loop {
                    match jobs.try_recv() {
                        Ok(Job::Change { upon: same, revision, edit, done }) if same == upon => {
                            rows.push(edit_row(&revision, upon, &edit));
                            all.push(done);
                        }
                        Ok(other) => break Some(other),
                        Err(_) => break None,
                    }
                };
                let written = put(store, &rows);
                last = Last::of(&written);
                for done in all {
                    let _ = done.send(written.clone());
                }
            }
            Job::Forget { below } => {
                // Left over they are read again at the next start and forgotten then.
                let _ = lock(store).forget_revisions(below);
            }
            Job::Flush { done } => {
                let _ = done.send(());
            }
        }
        next = next.or_else(|| jobs.recv().ok());
    }
}

fn put(store: &SharedStore, rows: &[store::Revision]) -> Result<(), RevisionError> {
    Ok(lock(store).put_revisions(rows)?)
}
