//! Revisions of the configuration: each that ran, on disk, in files of their own. Keys are in them
//! as references only.
//!
//! | file | holds |
//! |---|---|
//! | `7.toml` | revision 7 as a whole: its text with its defaults, and the names of its keys |
//! | `7.changes` | revisions 8, 9 …: policies that were changed since, a line each |
//!
//! A change of policies among 100 000 is a line, not ten megabytes. After [`MAX_CHANGES`] lines the
//! next revision is written as a whole again. A thread of its own writes, in order, all that waits
//! at a time with one wait for the disk. A revision that is answered as written survives a power
//! cut: its bytes and the name of its file are on disk.
//!
//! Files and not a database: revisions are all that a database would hold so far, one thread writes
//! them in order, and an operator reads them without us.
//!
//! A change that could not be written takes with it the waiting changes upon it: a line is read
//! only if all lines before it are there. They are refused until a revision is written whole.

mod encoding;
mod writer;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::SystemTime;

use config::{ConfigErrors, edited};
use tokio::sync::oneshot;

use crate::stored_keys::StoredKeys;

use encoding::{decode, decode_lines, encode_line};
pub(crate) use encoding::{keys_json, keys_of_json};
use writer::{Job, changes_of, write_all};
pub(crate) use writer::{sync_names, write_file};

/// Name of the revisions' directory in the state directory.
const DIRECTORY: &str = "revisions";
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
#[derive(Debug, thiserror::Error)]
#[error("revisions in {}: {error}", path.display())]
pub(crate) struct RevisionError {
    path: PathBuf,
    error: std::io::Error,
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

/// The kept revisions, oldest first, in a directory of their own. A clone is for readers.
#[derive(Clone)]
pub(crate) struct Revisions {
    directory: Arc<Path>,
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
    /// An empty list, where those of earlier runs cannot be read; later ones may be kept.
    pub(crate) fn none(state_dir: &Path) -> Revisions {
        let directory = state_dir.join(DIRECTORY).into();
        let (kept, writer) = (Vec::new(), OnceLock::new());
        Revisions { directory, kept, last: 0, is_broken: false, writer }
    }

    /// Opens the revisions of earlier runs. Leaves foreign files alone.
    ///
    /// # Errors
    /// The directory can be neither made nor read.
    pub(crate) fn open(state_dir: &Path) -> Result<Revisions, RevisionError> {
        let directory = state_dir.join(DIRECTORY);
        let fail = |error| RevisionError { path: directory.clone(), error };
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&directory).map_err(fail)?;
        sync_names(&directory).map_err(fail)?;
        let mut kept: Vec<Arc<KeptRevision>> = Vec::new();
        for entry in std::fs::read_dir(&directory).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
            let is_toml = path.extension().is_some_and(|extension| extension == "toml");
            if let (Some(number), true) = (number, is_toml) {
                let Ok(content) = std::fs::read_to_string(&path) else { continue };
                let Some((revision, _)) = decode(number, &content) else { continue };
                let bytes = content.len();
                kept.push(KeptRevision { revision, is_whole: true, bytes }.into());
                let lines = std::fs::read(changes_of(&path)).unwrap_or_default();
                kept.extend(decode_lines(number, &lines).map(|(revision, _, bytes)| {
                    Arc::new(KeptRevision { revision, is_whole: false, bytes })
                }));
            }
        }
        kept.sort_by_key(|kept| kept.revision.number);
        let last = kept.last().map_or(0, |last| last.revision.number);
        Ok(Revisions { kept, last, ..Revisions::none(state_dir) })
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
                let body = Box::new(move || body);
                (self.whole_job(&revision, body, done), true, bytes)
            }
            Content::Made(body) => {
                // About as long as the one before.
                let mut wholes = self.kept.iter().rev().filter(|kept| kept.is_whole);
                let bytes = wholes.next().map_or(0, |kept| kept.bytes);
                (self.whole_job(&revision, body, done), true, bytes)
            }
            Content::Edit(edit) => {
                let line = encode_line(&revision, &edit);
                let bytes = line.len();
                let path = changes_of(&self.path(self.whole_before(revision.number)));
                (Job::Change { path, line, done }, false, bytes)
            }
        };
        self.is_broken &= !is_whole;
        self.kept.push(KeptRevision { revision, is_whole, bytes }.into());
        self.send(job);
        self.forget();
        written
    }

    fn whole_job(
        &self,
        revision: &Revision,
        body: Box<dyn FnOnce() -> Body + Send>,
        done: oneshot::Sender<Result<(), RevisionError>>,
    ) -> Job {
        Job::Whole { path: self.path(revision.number), revision: revision.clone(), body, done }
    }

    /// Notes a revision that could not be written: no rollback to it is possible, and the next one
    /// is kept complete, unless a complete one came since.
    pub(crate) fn lost(&mut self, number: u64) {
        self.is_broken |= self.whole_before(self.last) <= number;
        self.kept.retain(|kept| kept.revision.number != number);
    }

    /// Reads a revision's text from disk; to be called before another revision is kept. Blocks.
    ///
    /// # Errors
    /// Those of [`Reader::read`].
    pub(crate) fn read(&self, number: u64) -> Result<Text, RevisionError> {
        let whole = self.whole_before(number);
        read_text(&self.path(whole), whole, number)
    }

    /// Reads a revision's text, when all that waits is written; `None`: it is not kept. Blocks.
    pub(crate) fn reader(&self, number: u64) -> Option<Reader> {
        self.find(number)?;
        let whole = self.whole_before(number);
        let (done, flushed) = oneshot::channel();
        self.send(Job::Flush { done });
        Some(Reader { path: self.path(whole), whole, number, flushed })
    }

    /// The number of the whole revision that another one is a change of, or its own.
    fn whole_before(&self, number: u64) -> u64 {
        let before = self.kept.iter().rev().filter(|kept| kept.revision.number <= number);
        let mut whole = before.filter(|kept| kept.is_whole);
        whole.next().map_or(number, |kept| kept.revision.number)
    }

    fn forget(&mut self) {
        loop {
            let wholes = self.kept.iter().filter(|kept| kept.is_whole).count();
            let bytes: usize = self.kept.iter().map(|kept| kept.bytes).sum();
            if wholes <= MAX_KEPT && (wholes <= 2 || bytes <= MAX_KEPT_BYTES) {
                return;
            }
            let later = self.kept.iter().skip(1).position(|kept| kept.is_whole);
            let Some(later) = later else { return };
            let oldest = self.kept.drain(..=later).next();
            if let Some(oldest) = oldest {
                let path = self.path(oldest.revision.number);
                self.send(Job::Forget { path });
            }
        }
    }

    /// Hands a job to the writer. Where there is none, its answer says that nothing was written.
    fn send(&self, job: Job) {
        let writer = self.writer.get_or_init(|| {
            let (writer, jobs) = mpsc::channel();
            let thread = std::thread::Builder::new().name("revisions".into());
            // Refused, the jobs' end of the channel is gone.
            let _ = thread.spawn(move || write_all(&jobs));
            writer
        });
        let _ = writer.send(job);
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number}.toml"))
    }
}

/// Waits until a revision is on disk.
///
/// # Errors
/// [`RevisionError`]: the revision could not be written.
pub(crate) async fn on_disk(written: WriteResult) -> Result<(), RevisionError> {
    // The writer ends with the process.
    let gone = |_| {
        let error = std::io::ErrorKind::BrokenPipe.into();
        RevisionError { path: PathBuf::from("revisions"), error }
    };
    written.await.map_err(gone)?
}

/// Reads one revision, independently of later changes.
pub(crate) struct Reader {
    path: PathBuf,
    whole: u64,
    number: u64,
    flushed: oneshot::Receiver<()>,
}

impl Reader {
    /// Returns the revision's text. Blocks until pending writes are done.
    ///
    /// # Errors
    /// The files cannot be read, or are not what was written.
    pub(crate) fn read(self) -> Result<Text, RevisionError> {
        let Reader { path, whole, number, flushed } = self;
        let _ = flushed.blocking_recv();
        read_text(&path, whole, number)
    }
}

/// Reads the text of a revision that is a change of a whole one, or that one itself.
fn read_text(path: &Path, whole: u64, number: u64) -> Result<Text, RevisionError> {
    let fail = |error| RevisionError { path: path.to_owned(), error };
    let broken = || fail(std::io::ErrorKind::InvalidData.into());
    let content = std::fs::read_to_string(path).map_err(fail)?;
    let (_, body) = decode(whole, &content).ok_or_else(broken)?;
    let mut edits = Vec::new();
    if number > whole {
        let lines = std::fs::read(changes_of(path)).map_err(fail)?;
        let changes = decode_lines(whole, &lines);
        edits.extend(changes.take_while(|(of, ..)| of.number <= number).map(|(_, edit, _)| edit));
    }
    if edits.len() as u64 != number - whole {
        return Err(broken());
    }
    Ok(Text { whole: body, edits })
}

#[cfg(test)]
mod tests {
    use super::encoding::{MARK, encode};
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
            restored: None,
            confirmation: Confirmation::Asked,
        }
    }

    fn text(number: u64) -> Body {
        let key = format!("out 0x00000100 {number:032x}");
        let keys = [("a \"peer\"".to_owned(), vec![key])].into();
        Body { text: format!("[node]\nname = \"{number}\"\n"), keys }
    }

    fn edit(number: u64) -> PolicyEdit {
        let add = format!("[[policy]]\nname = \"p{number}\"\n");
        PolicyEdit { remove: vec![format!("\"{number}\"")], add }
    }

    fn try_keep(revisions: &mut Revisions, number: u64, body: Body) -> Result<(), RevisionError> {
        revisions.keep(revision(number), Content::Whole(body)).blocking_recv().unwrap()
    }

    fn keep(revisions: &mut Revisions, number: u64) {
        try_keep(revisions, number, text(number)).unwrap();
    }

    fn change(revisions: &mut Revisions, number: u64) {
        let written = revisions.keep(revision(number), Content::Edit(edit(number)));
        written.blocking_recv().unwrap().unwrap();
    }

    fn numbers(revisions: &Revisions) -> Vec<u64> {
        revisions.all().map(|revision| revision.number).collect()
    }

    #[test]
    fn revisions_outlive_the_process_and_the_oldest_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        assert_eq!(revisions.next(), 1);
        let last = MAX_KEPT as u64 + 3;
        for number in 1..=last {
            assert_eq!(revisions.next(), number);
            keep(&mut revisions, number);
        }
        std::fs::write(directory.path().join("revisions/note.toml"), "not ours").unwrap();
        // What is forgotten is forgotten behind what is kept.
        revisions.reader(last).unwrap().read().unwrap();
        let again = Revisions::open(directory.path()).unwrap();
        assert_eq!(numbers(&again), (4..=last).collect::<Vec<u64>>());
        assert_eq!(again.find(last), Some(&revision(last)));
        assert_eq!(again.find(3), None);
        assert_eq!(again.next(), last + 1);
        let read = again.reader(last).unwrap().read().unwrap();
        assert_eq!(read, Text { whole: text(last), edits: Vec::new() });
        assert!(again.reader(3).is_none());
    }

    #[test]
    fn changes_of_policies_are_lines_upon_the_revision_before_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        assert!(revisions.wants_whole(), "there is none yet");
        keep(&mut revisions, 1);
        (2..=4).for_each(|number| change(&mut revisions, number));
        keep(&mut revisions, 5);
        change(&mut revisions, 6);
        for revisions in [&revisions, &Revisions::open(directory.path()).unwrap()] {
            assert_eq!(numbers(revisions), [1, 2, 3, 4, 5, 6]);
            assert_eq!(revisions.find(3), Some(&revision(3)));
            assert!(!revisions.wants_whole());
            let read = |number| revisions.reader(number).unwrap().read().unwrap();
            assert_eq!(read(1), Text { whole: text(1), edits: Vec::new() });
            assert_eq!(read(3), Text { whole: text(1), edits: vec![edit(2), edit(3)] });
            assert_eq!(read(6), Text { whole: text(5), edits: vec![edit(6)] });
        }
    }

    #[test]
    fn a_line_that_a_crash_cut_off_is_as_if_it_had_never_been() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        keep(&mut revisions, 1);
        (2..=3).for_each(|number| change(&mut revisions, number));
        drop(revisions);
        let path = directory.path().join("revisions/1.changes");
        let lines = std::fs::read(&path).unwrap();
        for cut in 1..lines.len() {
            std::fs::write(&path, &lines[..cut]).unwrap();
            let again = Revisions::open(directory.path()).unwrap();
            let whole_lines = lines[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!(again.next(), 2 + whole_lines, "cut at {cut}");
        }
        // The next start writes a whole revision, and nothing is read into it.
        let mut again = Revisions::open(directory.path()).unwrap();
        assert_eq!(again.next(), 3);
        keep(&mut again, 3);
        change(&mut again, 4);
        let read = again.reader(4).unwrap().read().unwrap();
        assert_eq!(read, Text { whole: text(3), edits: vec![edit(4)] });
    }

    #[test]
    fn after_many_changes_the_next_revision_is_whole_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        keep(&mut revisions, 1);
        let mut last = None;
        for number in 2..MAX_CHANGES as u64 + 2 {
            assert!(!revisions.wants_whole());
            last = Some(revisions.keep(revision(number), Content::Edit(edit(number))));
        }
        assert!(revisions.wants_whole());
        last.unwrap().blocking_recv().unwrap().unwrap();
        let read = revisions.reader(revisions.next() - 1).unwrap().read().unwrap();
        assert_eq!(read.edits.len(), MAX_CHANGES);
        keep(&mut revisions, MAX_CHANGES as u64 + 2);
        assert!(!revisions.wants_whole());
    }

    #[test]
    fn of_large_revisions_fewer_are_kept_and_never_less_than_two() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        let mut large = |number, bytes| {
            let body = Body { text: "#".repeat(bytes), ..Body::default() };
            try_keep(&mut revisions, number, body).unwrap();
            numbers(&revisions)
        };
        for number in 1..=4 {
            large(number, MAX_KEPT_BYTES / 3 + 1);
        }
        assert_eq!(large(5, MAX_KEPT_BYTES), [4, 5]);
        revisions.reader(5).unwrap().read().unwrap();
        assert_eq!(numbers(&Revisions::open(directory.path()).unwrap()), [4, 5]);
    }

    /// Returns the error of a change that was asked for before it was known that one is lost.
    fn error_of(revisions: &mut Revisions, number: u64) -> String {
        let written = revisions.keep(revision(number), Content::Edit(edit(number)));
        written.blocking_recv().unwrap().unwrap_err().to_string()
    }

    #[test]
    fn changes_behind_one_that_is_lost_are_lost_until_a_revision_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        keep(&mut revisions, 1);
        // Nothing can be appended to this, and then to what is in its place.
        let in_the_way = directory.path().join("revisions/1.changes");
        std::fs::create_dir(&in_the_way).unwrap();
        error_of(&mut revisions, 2);
        std::fs::remove_dir(&in_the_way).unwrap();
        let refused = error_of(&mut revisions, 3);
        assert!(refused.contains("the next one is kept as a whole"), "{refused}");
        assert!(!in_the_way.exists());
        revisions.lost(2);
        assert!(revisions.wants_whole());
        keep(&mut revisions, 4);
        // It is heard of late, and says nothing of what came since.
        revisions.lost(3);
        assert!(!revisions.wants_whole());
        change(&mut revisions, 5);
        assert_eq!(numbers(&Revisions::open(directory.path()).unwrap()), [1, 4, 5]);
        let read = revisions.reader(5).unwrap().read().unwrap();
        assert_eq!(read, Text { whole: text(4), edits: vec![edit(5)] });
    }

    #[test]
    fn changes_upon_a_whole_revision_that_is_lost_are_lost_too() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        keep(&mut revisions, 1);
        std::fs::create_dir_all(directory.path().join("revisions/2.toml/x")).unwrap();
        assert!(try_keep(&mut revisions, 2, text(2)).is_err());
        let refused = error_of(&mut revisions, 3);
        assert!(refused.contains("the next one is kept as a whole"), "{refused}");
        for number in [2, 3] {
            revisions.lost(number);
            assert!(revisions.wants_whole());
        }
        keep(&mut revisions, 4);
        assert_eq!(numbers(&revisions), [1, 4]);
        revisions.reader(4).unwrap().read().unwrap();
    }

    #[test]
    fn a_revision_that_was_brought_back_is_the_one_to_step_back_from() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        let restored = [None, None, None, Some(2), None, Some(4), Some(9)];
        for (number, restored) in (1..).zip(restored) {
            let revision = Revision { restored, ..revision(number) };
            let written = revisions.keep(revision, Content::Whole(text(number)));
            written.blocking_recv().unwrap().unwrap();
        }
        for revisions in [&revisions, &Revisions::open(directory.path()).unwrap()] {
            let origins: Vec<u64> = (1..=8).map(|number| revisions.origin_of(number)).collect();
            // Whatever a file says, nothing goes round in circles.
            assert_eq!(origins, [1, 2, 3, 2, 5, 2, 7, 8]);
            let before = |number| revisions.before(number).map(|kept| kept.number);
            assert_eq!([before(1), before(2), before(8)], [None, Some(1), Some(7)]);
            assert_eq!(revisions.ends(), Some((1, 7)));
        }
    }

    #[test]
    fn files_of_earlier_versions_have_no_names_of_keys() {
        let old = encode(&revision(3), &text(3));
        let (facts, rest) = old.split_once('\n').unwrap();
        let mut facts: serde_json::Value =
            serde_json::from_str(facts.strip_prefix(MARK).unwrap()).unwrap();
        facts.as_object_mut().unwrap().remove("keys");
        let (read, body) = decode(3, &format!("{MARK}{facts}\n{rest}")).unwrap();
        assert_eq!((read, body.keys), (revision(3), StoredKeys::default()));
    }

    #[test]
    fn what_cannot_be_written_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::open(directory.path()).unwrap();
        keep(&mut revisions, 1);
        std::fs::remove_dir_all(directory.path().join("revisions")).unwrap();
        assert!(try_keep(&mut revisions, 2, text(2)).is_err());
        revisions.lost(2);
        assert!(revisions.wants_whole());
        let written = revisions.keep(revision(3), Content::Edit(edit(3)));
        assert!(written.blocking_recv().unwrap().is_err());
        revisions.lost(3);
        assert_eq!((numbers(&revisions), revisions.next()), (vec![1], 4));
    }
}
