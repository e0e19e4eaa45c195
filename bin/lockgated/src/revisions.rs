//! Revisions of the configuration: each that ran, in a store of their own. Keys are in them as
//! references only.
//!
//! A revision is kept whole, with its text and the names of its keys, or as a change of policies
//! upon a whole one: a change among 100 000 policies is a line, not ten megabytes. After
//! [`MAX_CHANGES`] changes the next revision is kept whole again. A thread of its own writes, in
//! order, all changes that wait at a time in one transaction. A revision that is answered as
//! written survives a power cut.
//!
//! The store is a database beside that of endpoints and not the same: neither damage of one nor a
//! flood of commits into it reaches the other. What was never confirmed is not in it but in a file
//! (`unconfirmed`), so that no single damaged file makes a restart forget it.
//!
//! A change that could not be written takes with it the waiting changes upon it: a change is read
//! only if all changes before it are there. They are refused until a revision is written whole.

mod earlier_files;
mod encoding;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::SystemTime;

use config::{ConfigErrors, edited};
use store::{Options, SqliteStore, StoreError};
use tokio::sync::oneshot;

use crate::durable_file::sync_names;
use crate::stored_keys::StoredKeys;

pub(crate) use encoding::{keys_json, keys_of_json};
use encoding::{revision_of, text_of};
use writer::{Job, write_all};

/// The database in the state directory.
pub(crate) const FILE: &str = "revisions.sqlite";
/// Ending of the name of a damaged database that was set aside.
const ASIDE: &str = ".damaged";
/// Pages of the write-ahead file at which they go over to the database: 1 MiB.
const CHECKPOINT_PAGES: u32 = 256;
/// Whole revisions that are kept.
pub(crate) const MAX_KEPT: usize = 64;
/// Changes of policies that are kept on top of one complete revision.
pub(crate) const MAX_CHANGES: usize = 1024;
/// Bytes that all but the last two whole revisions may have, with the changes upon them.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// Reason why a revision began to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// The daemon started.
    Start,
    /// `lockgate apply`.
    Apply,
    /// `lockgate rollback`.
    Rollback,
    /// `lockgate policy`.
    Policy,
    /// A change that nobody confirmed in time was rolled back.
    Timeout,
}

impl Cause {
    const ALL: [Cause; 5] =
        [Cause::Start, Cause::Apply, Cause::Rollback, Cause::Policy, Cause::Timeout];

    /// Returns the cause as a word.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Cause::Start => "start",
            Cause::Apply => "apply",
            Cause::Rollback => "rollback",
            Cause::Policy => "policy",
            Cause::Timeout => "timeout",
        }
    }
}

/// Need of a revision to be confirmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Confirmation {
    /// No confirmation was asked for: the revision runs for good.
    NotAsked,
    /// A confirmation was asked for with `lockgate apply --confirm`.
    Asked,
}

/// A revision without its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Revision {
    pub(crate) number: u64,
    pub(crate) time: SystemTime,
    pub(crate) uid: u32,
    pub(crate) cause: Cause,
    /// The file it was read from, for people.
    pub(crate) file: String,
    /// The directory that a relative `keys_dir` in it is relative to.
    pub(crate) base: PathBuf,
    /// Sections that differ from the revision before.
    pub(crate) changes: u32,
    /// The revision that this one restored.
    pub(crate) restored: Option<u64>,
    pub(crate) confirmation: Confirmation,
}

/// Policies that were changed from one revision to the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PolicyEdit {
    /// Names of those that went.
    pub(crate) remove: Vec<String>,
    /// `[[policy]]` sections: those that came.
    pub(crate) add: String,
}

/// A complete configuration, and the names of its keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Body {
    pub(crate) text: String,
    pub(crate) keys: StoredKeys,
}

/// The text of a revision, and what makes another one of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Text {
    /// A complete configuration with its keys, which changes of policies do not change.
    pub(crate) whole: Body,
    /// Changes made since, in order.
    pub(crate) edits: Vec<PolicyEdit>,
}

/// The content that is written for a revision.
pub(crate) enum Content {
    /// The effective configuration.
    Whole(Body),
    /// The effective configuration, made when it is written.
    Made(Box<dyn FnOnce() -> Body + Send>),
    /// The change since the revision before.
    Edit(PolicyEdit),
}

/// A revision that cannot be kept or read.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum RevisionError {
    /// The store refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Files of an earlier version cannot be read.
    #[error("revisions in {}, files of an earlier version: {why}", .directory.display())]
    EarlierFiles { directory: PathBuf, why: String },
    /// The store could not be opened when the daemon started.
    #[error("the store was not opened at the start: {0}")]
    NotOpened(Arc<RevisionError>),
    /// A change upon a revision that is not there.
    #[error("a revision before it could not be written; the next one is kept as a whole")]
    NothingBefore,
    /// The store does not have it, or something that no daemon wrote.
    #[error("revision {number} is missing in the store, or illegible")]
    Illegible { number: u64 },
    /// The writer has ended.
    #[error("the thread that writes revisions has ended")]
    NoWriter,
}

impl Text {
    /// Returns the complete text of a revision after all changes, and its keys.
    ///
    /// # Errors
    /// The changes do not fit the text.
    pub(crate) fn with_edits(self, number: u64) -> Result<Body, ConfigErrors> {
        let Text { whole, edits } = self;
        if edits.is_empty() {
            return Ok(whole);
        }
        let edits = edits.iter().map(|edit| (&edit.remove[..], &*edit.add));
        let text = edited(&whole.text, edits, &format!("revision {number}"))?;
        Ok(Body { text, keys: whole.keys })
    }
}

/// Result of writing a revision.
pub(crate) type WriteResult = oneshot::Receiver<Result<(), RevisionError>>;

/// A store that the writer and readers share.
type SharedStore = Arc<Mutex<Box<dyn store::Revisions>>>;

fn lock(store: &SharedStore) -> MutexGuard<'_, Box<dyn store::Revisions>> {
    // A transaction that a panic interrupted was rolled back.
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kept revisions, oldest first. A clone is for readers.
#[derive(Clone)]
pub(crate) struct Revisions {
    store: Result<SharedStore, Arc<RevisionError>>,
    kept: Vec<Arc<KeptRevision>>,
    /// The highest number that was given.
    last: u64,
    /// Set if a change could not be written, so that none can follow it.
    is_broken: bool,
    /// Started with the first revision: a thread keeps the privileges that it began with.
    writer: OnceLock<mpsc::Sender<Job>>,
}

struct KeptRevision {
    revision: Revision,
    is_whole: bool,
    bytes: usize,
}

impl Revisions {
    /// An empty list, where the store cannot be opened for this reason: none is kept.
    pub(crate) fn none(why: RevisionError) -> Revisions {
        let (store, kept, writer) = (Err(why.into()), Vec::new(), OnceLock::new());
        Revisions { store, kept, last: 0, is_broken: false, writer }
    }

    /// Opens the revisions of earlier runs, and takes over the files of earlier versions.
    ///
    /// # Errors
    /// [`RevisionError`]: the store cannot be opened or read.
    pub(crate) fn open(state_dir: &Path) -> Result<Revisions, RevisionError> {
        let options = Options { checkpoint_pages: Some(CHECKPOINT_PAGES), ..Options::default() };
        let mut store = SqliteStore::open_with(&state_dir.join(FILE), options)?;
        earlier_files::take_over(state_dir, &mut store)?;
        Ok(Revisions::of(Box::new(store))?)
    }

    /// Opens the revisions as the daemon starts. A damaged store is set aside and an empty one
    /// takes its place; with any other trouble none is kept. Returns the trouble, for the operator.
    pub(crate) fn at_start(state_dir: &Path) -> (Revisions, Option<String>) {
        let opened = match Revisions::open(state_dir) {
            Err(RevisionError::Store(StoreError::Corrupt { path, .. })) => {
                let done = set_aside(&path).and_then(|aside| {
                    Ok((Revisions::open(state_dir)?, Some(aside_message(&path, &aside))))
                });
                done.map_err(|error| (error, "the damaged store of revisions stays"))
            }
            Err(error) => Err((error, "revisions can neither be read nor kept")),
            Ok(revisions) => Ok((revisions, None)),
        };
        opened.unwrap_or_else(|(error, what)| {
            let message = format!("{what}: {error}");
            (Revisions::none(error), Some(message))
        })
    }

    /// The revisions of a store.
    fn of(store: Box<dyn store::Revisions>) -> Result<Revisions, StoreError> {
        let lines = store.revisions()?.into_iter();
        let kept: Vec<_> = lines
            .filter_map(|line| {
                let revision = revision_of(line.number, &line.facts)?;
                let (is_whole, bytes) = (line.upon.is_none(), line.bytes as usize);
                Some(Arc::new(KeptRevision { revision, is_whole, bytes }))
            })
            .collect();
        let last = kept.last().map_or(0, |last| last.revision.number);
        let (store, writer) = (Ok(Arc::new(Mutex::new(store))), OnceLock::new());
        Ok(Revisions { store, kept, last, is_broken: false, writer })
    }

    /// Oldest first.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = &Revision> {
        self.kept.iter().map(|kept| &kept.revision)
    }

    /// Returns the revisions that are kept complete, oldest first.
    pub(crate) fn wholes(&self) -> impl DoubleEndedIterator<Item = &Revision> {
        self.kept.iter().filter(|kept| kept.is_whole).map(|kept| &kept.revision)
    }

    /// The one with this number.
    pub(crate) fn find(&self, number: u64) -> Option<&Revision> {
        self.all().find(|revision| revision.number == number)
    }

    /// Returns the revision whose configuration this one has: the one that it restored, or itself.
    pub(crate) fn origin_of(&self, number: u64) -> u64 {
        let mut number = number;
        // A revision brings back an earlier one: this ends.
        while let Some(earlier) = self.find(number).and_then(|kept| kept.restored) {
            if earlier >= number {
                break;
            }
            number = earlier;
        }
        number
    }

    /// The newest that is kept and older than this number.
    pub(crate) fn before(&self, number: u64) -> Option<&Revision> {
        self.all().rev().find(|kept| kept.number < number)
    }

    /// The oldest and the newest that are kept.
    pub(crate) fn ends(&self) -> Option<(u64, u64)> {
        Some((self.kept.first()?.revision.number, self.kept.last()?.revision.number))
    }

    /// The number of the next one.
    pub(crate) fn next(&self) -> u64 {
        self.last + 1
    }

    /// Returns whether the next change of policies is to be kept as a complete revision.
    pub(crate) fn wants_whole(&self) -> bool {
        let edits = self.kept.iter().rev().take_while(|kept| !kept.is_whole).count();
        self.is_broken || edits >= MAX_CHANGES || edits == self.kept.len()
    }

    /// Keeps a revision and forgets the oldest beyond [`MAX_KEPT`] and [`MAX_KEPT_BYTES`]; it is on
    /// disk when the answer says so. Never waits.
    pub(crate) fn keep(&mut self, revision: Revision, content: Content) -> WriteResult {
        let (done, written) = oneshot::channel();
        self.last = revision.number;
        let (job, is_whole, bytes) = match content {
            Content::Whole(body) => {
                let bytes = body.text.len();
                let (revision, body) = (revision.clone(), Box::new(move || body));
                (Job::Whole { revision, body, done }, true, bytes)
            }
            Content::Made(body) => {
                // About as long as the one before.
                let mut wholes = self.kept.iter().rev().filter(|kept| kept.is_whole);
                let bytes = wholes.next().map_or(0, |kept| kept.bytes);
                (Job::Whole { revision: revision.clone(), body, done }, true, bytes)
            }
            Content::Edit(edit) => {
                let names: usize = edit.remove.iter().map(String::len).sum();
                let (bytes, upon) = (names + edit.add.len(), self.whole_before(revision.number));
                (Job::Change { upon, revision: revision.clone(), edit, done }, false, bytes)
            }
        };
        self.is_broken &= !is_whole;
        self.kept.push(KeptRevision { revision, is_whole, bytes }.into());
        self.send(job);
        self.forget();
        written
    }

    /// Notes a revision that could not be written: no rollback to it is possible, and the next one
    /// is kept complete, unless a complete one came since.
    pub(crate) fn lost(&mut self, number: u64) {
        self.is_broken |= self.whole_before(self.last) <= number;
        self.kept.retain(|kept| kept.revision.number != number);
    }

    /// Reads a revision's text, when all that waits is written; `None`: it is not kept. Blocks.
    pub(crate) fn reader(&self, number: u64) -> Option<Reader> {
        self.find(number)?;
        let flushed = self.writer.get().map(|writer| {
            let (done, flushed) = oneshot::channel();
            let _ = writer.send(Job::Flush { done });
            flushed
        });
        Some(Reader { store: self.store.clone().ok()?, number, flushed })
    }

    /// The number of the whole revision that another one is a change of, or its own.
    fn whole_before(&self, number: u64) -> u64 {
        let before = self.kept.iter().rev().filter(|kept| kept.revision.number <= number);
        let mut whole = before.filter(|kept| kept.is_whole);
        whole.next().map_or(number, |kept| kept.revision.number)
    }

    fn forget(&mut self) {
        let mut below = None;
        loop {
            let wholes = self.kept.iter().filter(|kept| kept.is_whole).count();
            let bytes: usize = self.kept.iter().map(|kept| kept.bytes).sum();
            if wholes <= MAX_KEPT && (wholes <= 2 || bytes <= MAX_KEPT_BYTES) {
                break;
            }
            let later = self.kept.iter().skip(1).position(|kept| kept.is_whole);
            let Some(later) = later else { break };
            self.kept.drain(..=later);
            below = self.kept.first().map(|kept| kept.revision.number);
        }
        if let Some(below) = below {
            self.send(Job::Forget { below });
        }
    }

    /// Hands a job to the writer. Where there is none, its answer says that nothing was written.
    fn send(&self, job: Job) {
        let store = match (&self.store, job) {
            (Ok(store), job) => return self.send_to(store, job),
            (Err(why), Job::Whole { done, .. } | Job::Change { done, .. }) => (why, done),
            (Err(_), Job::Forget { .. } | Job::Flush { .. }) => return,
        };
        let (why, done) = store;
        let _ = done.send(Err(RevisionError::NotOpened(why.clone())));
    }

    fn send_to(&self, store: &SharedStore, job: Job) {
        let writer = self.writer.get_or_init(|| {
            let (writer, jobs) = mpsc::channel();
            let (thread, store) = (std::thread::Builder::new(), store.clone());
            // Refused, the jobs' end of the channel is gone.
            let _ = thread.name("revisions".into()).spawn(move || write_all(&jobs, &store));
            writer
        });
        let _ = writer.send(job);
    }
}

/// Gives a damaged database another name, its write-ahead file too. Returns the name; an older one
/// that was set aside goes.
fn set_aside(path: &Path) -> Result<PathBuf, RevisionError> {
    let ending = |path: &Path, ending: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let aside = ending(path, ASIDE);
    let failed = |error: std::io::Error| {
        let code = error.raw_os_error().unwrap_or(libc::EIO);
        StoreError::System { path: path.to_owned(), code }
    };
    // First the changes: the database alone is older, and they alone are nothing.
    match std::fs::rename(ending(path, "-wal"), ending(&aside, "-wal")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(failed(error).into());
        }
        _ => {}
    }
    std::fs::rename(path, &aside).and_then(|()| sync_names(path)).map_err(failed)?;
    Ok(aside)
}

/// The words for an operator whose database was set aside.
fn aside_message(path: &Path, aside: &Path) -> String {
    format!(
        "{} is damaged and is {} now: there is no earlier revision to go back to, and those to \
         come are kept; `sqlite3 {1} .recover` saves what is legible",
        path.display(),
        aside.display()
    )
}

/// Waits until a revision is on disk.
///
/// # Errors
/// [`RevisionError`]: the revision could not be written.
pub(crate) async fn on_disk(written: WriteResult) -> Result<(), RevisionError> {
    // The writer ends with the process.
    written.await.unwrap_or(Err(RevisionError::NoWriter))
}

/// Reads one revision, independently of later changes.
pub(crate) struct Reader {
    store: SharedStore,
    number: u64,
    /// All that waits is written; `None`: nothing waits.
    flushed: Option<oneshot::Receiver<()>>,
}

impl Reader {
    /// Returns the revision's text. Blocks until pending writes are done.
    ///
    /// # Errors
    /// The store cannot be read, or has not what was written.
    pub(crate) fn read(self) -> Result<Text, RevisionError> {
        let Reader { store, number, flushed } = self;
        if let Some(flushed) = flushed {
            let _ = flushed.blocking_recv();
        }
        let parts = lock(&store).revision(number)?;
        text_of(&parts).ok_or(RevisionError::Illegible { number })
    }
}

#[cfg(test)]
mod tests;
