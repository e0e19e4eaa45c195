//! The record of what was applied to be confirmed and never was, on disk, and what stands in for it
//! when it is damaged: the revisions that are kept beside it.
//!
//! ```text
//! # lockgate unconfirmed: DIGEST {"refused": …, "previous": …, "base": …, "keys": …, "text": …}
//! text of the revision before
//! ```
//! The digest is that of the JSON behind it, which has the digest of the text. So either can be
//! damaged without the other:
//!
//! | damaged | what does not start | the text of the revision before |
//! |---|---|---|
//! | nothing | what the record names by its digest | in the record |
//! | the text | what the record names by its digest | among the revisions |
//! | the first line | the newest revision that says what the file says, if unconfirmed | as above |
//!
//! Nothing starts if the text is nowhere, nor if the first line is damaged and the revisions cannot
//! be read either. If no kept revision says the same as the file, then the file was never applied
//! to be confirmed, as far as anybody knows: it starts.
//!
//! The record is a file and not a row of the revisions' database. With a damaged database a restart
//! goes by the record alone, and with a damaged record by the database. As a row, the record would
//! be lost with what stands in for it.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::blocking;
use crate::durable_file::{sync_names, write_file};
use crate::revisions::{
    Body, Cause, Confirmation, Revision, RevisionError, Revisions, keys_json, keys_of_json,
};

/// Configurations that one record refuses.
const MAX_REFUSED: usize = 16;
/// The record's name in the state directory.
pub(crate) const RECORD: &str = "unconfirmed";
/// Its first word.
const MARK: &str = "# lockgate unconfirmed: ";

/// A configuration that does not start.
#[derive(Clone, PartialEq, Eq, Debug)]
struct RefusedText {
    revision: u64,
    digest: String,
}

/// A restart goes by it. See the module `unconfirmed`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// The newest is the last.
    refused: Vec<RefusedText>,
    /// The revision before the newest, and what a relative `keys_dir` in it is relative to.
    previous: u64,
    base: PathBuf,
    body: Body,
}

/// Damage of a record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Damage {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// The first line is damaged, so nothing in the record is certain.
    #[error("its first line is not what was written")]
    Facts,
    /// Its text is not what was written; the rest is.
    #[error("the text of revision {} in it is not what was written", .0.previous)]
    Text(Box<Record>),
}

/// The digest of a configuration's meaning: of its text with every default written out.
pub(crate) fn digest(effective: &str) -> String {
    Sha256::digest(effective.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Record {
    /// Reads the record of a state directory; `None`: there is none.
    ///
    /// # Errors
    /// [`Damage`].
    pub(crate) fn read(state_dir: &Path) -> Result<Option<Record>, Damage> {
        let content = match std::fs::read(state_dir.join(RECORD)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            content => content?,
        };
        Record::decode(&content).map(Some)
    }

    /// The revision, if the record refuses this configuration.
    pub(crate) fn refuses(&self, effective: &str) -> Option<u64> {
        let digest = digest(effective);
        let found = self.refused.iter().rev().find(|refused| refused.digest == digest);
        found.map(|refused| refused.revision)
    }

    /// Makes a record for a change to `effective`, in addition to what an earlier one refuses.
    pub(crate) fn of(
        revision: u64,
        effective: &str,
        before: (u64, PathBuf, Body),
        earlier: Option<&Record>,
    ) -> Record {
        let (previous, base, body) = before;
        let digest = digest(effective);
        let earlier = earlier.into_iter().flat_map(|record| &record.refused);
        let mut refused: Vec<RefusedText> =
            earlier.filter(|refused| refused.digest != digest).cloned().collect();
        refused.push(RefusedText { revision, digest });
        refused.drain(..refused.len().saturating_sub(MAX_REFUSED));
        Record { refused, previous, base, body }
    }

    fn encode(&self) -> String {
        let Record { refused, previous, base, body } = self;
        let refused: Vec<_> = refused
            .iter()
            .map(|RefusedText { revision, digest }| serde_json::json!([revision, digest]))
            .collect();
        let facts = serde_json::json!({
            "refused": refused,
            "previous": previous,
            "base": base.to_string_lossy(),
            "keys": keys_json(&body.keys),
            "text": digest(&body.text),
        })
        .to_string();
        format!("{MARK}{} {facts}\n{}", digest(&facts), body.text)
    }

    fn decode(content: &[u8]) -> Result<Record, Damage> {
        let end = content.iter().position(|byte| *byte == b'\n').ok_or(Damage::Facts)?;
        let (first, text) = (&content[..end], &content[end + 1..]);
        let facts = std::str::from_utf8(first).ok().and_then(facts_of).ok_or(Damage::Facts)?;
        let text = std::str::from_utf8(text).ok();
        let text = text.filter(|text| facts["text"].as_str() == Some(&digest(text)));
        let record = Record::of_facts(&facts, text.unwrap_or_default()).ok_or(Damage::Facts)?;
        match text {
            Some(_) => Ok(record),
            None => Err(Damage::Text(Box::new(record))),
        }
    }

    fn of_facts(facts: &serde_json::Value, text: &str) -> Option<Record> {
        let refused = facts["refused"].as_array()?.iter().map(|entry| {
            let (revision, digest) = (entry[0].as_u64()?, entry[1].as_str()?.to_owned());
            Some(RefusedText { revision, digest })
        });
        Some(Record {
            refused: refused.collect::<Option<_>>()?,
            previous: facts["previous"].as_u64()?,
            base: PathBuf::from(facts["base"].as_str()?),
            body: Body { text: text.to_owned(), keys: keys_of_json(&facts["keys"]) },
        })
    }
}

/// The facts of a first line; `None`: it is not what was written.
fn facts_of(first: &str) -> Option<serde_json::Value> {
    let (check, facts) = first.strip_prefix(MARK)?.split_once(' ')?;
    if check != digest(facts) {
        return None;
    }
    serde_json::from_str(facts).ok()
}

/// The record on disk. Writes and removals are on disk when they are answered.
pub(crate) struct Records {
    path: PathBuf,
}

impl Records {
    /// The records of a state directory.
    pub(crate) fn new(state_dir: &Path) -> Records {
        Records { path: state_dir.join(RECORD) }
    }

    pub(crate) async fn write(&self, record: &Record) -> std::io::Result<()> {
        let (path, content) = (self.path.clone(), record.encode());
        blocking(move || write_file(&path, &content)).await
    }

    pub(crate) async fn remove(&self) -> std::io::Result<()> {
        let path = self.path.clone();
        blocking(move || match std::fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => sync_names(&path),
        })
        .await
    }
}

/// The revision that starts instead of an unconfirmed configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StandIn {
    /// The unconfirmed revision.
    pub(super) refused: u64,
    pub(super) previous: u64,
    pub(super) base: PathBuf,
    pub(super) body: Body,
}

impl StandIn {
    /// A record that says so, in the place of one that is damaged.
    pub(super) fn record(&self, effective: &str) -> Record {
        let StandIn { refused, previous, base, body } = self;
        Record::of(*refused, effective, (*previous, base.clone(), body.clone()), None)
    }
}

/// A configuration that was never confirmed, or may not have been, with nothing to start instead.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NothingBefore {
    /// The revision before an unconfirmed configuration is nowhere.
    #[error(
        "the configuration is revision {refused}, which was never confirmed; the revision before \
         it is neither in {} ({damage}) nor among the revisions kept there: nothing starts. Change \
         the configuration file, or remove {0} to start with it as it is", .record.display()
    )]
    Lost { refused: u64, record: PathBuf, damage: Damage },
    /// Both places that say what was never confirmed are damaged.
    #[error(
        "{} is damaged ({damage}), and so are the revisions, which would say what was never \
         confirmed ({revisions}): nothing starts; remove {0} to start with the configuration file \
         as it is", .record.display()
    )]
    Unknown { record: PathBuf, damage: Damage, revisions: RevisionError },
}

/// Finds what starts instead of a configuration; `None`: the configuration starts. Also returns the
/// damage of the record, if there is any; `revisions` is called only in that case.
///
/// # Errors
/// [`NothingBefore`].
pub(super) fn stand_in(
    state_dir: &Path,
    effective: &str,
    revisions: impl FnOnce() -> Result<Revisions, RevisionError>,
) -> Result<(Option<StandIn>, Option<Damage>), NothingBefore> {
    let damage = match Record::read(state_dir) {
        Ok(record) => return Ok((record.and_then(|record| of_record(record, effective)), None)),
        Err(damage) => damage,
    };
    let record = state_dir.join(RECORD);
    let (refused, revisions) = match (&damage, revisions()) {
        (Damage::Text(record), revisions) => (record.refuses(effective), revisions.ok()),
        (_, Ok(revisions)) => (never_confirmed(&revisions, effective), Some(revisions)),
        (_, Err(revisions)) => return Err(NothingBefore::Unknown { record, damage, revisions }),
    };
    let Some(refused) = refused else { return Ok((None, Some(damage))) };
    let instead = revisions.and_then(|revisions| {
        let previous = match &damage {
            Damage::Text(record) => revisions.find(record.previous),
            Damage::Unreadable(_) | Damage::Facts => revisions.before(refused),
        };
        let Revision { number: previous, base, .. } = previous?.clone();
        Some(StandIn { refused, previous, base, body: body_of(&revisions, previous)? })
    });
    match instead {
        Some(stand_in) => Ok((Some(stand_in), Some(damage))),
        None => Err(NothingBefore::Lost { refused, record, damage }),
    }
}

fn of_record(record: Record, effective: &str) -> Option<StandIn> {
    let refused = record.refuses(effective)?;
    let Record { previous, base, body, .. } = record;
    Some(StandIn { refused, previous, base, body })
}

/// The newest kept revision that says the same as a configuration, if it was to be confirmed and
/// never was: no other change is made while one waits, so one that follows shows that it was.
fn never_confirmed(revisions: &Revisions, effective: &str) -> Option<u64> {
    let says_the_same = |revision: &&Revision| {
        body_of(revisions, revision.number).is_some_and(|body| body.text == effective)
    };
    let revision = revisions.wholes().rev().find(says_the_same)?;
    let next = revisions.all().find(|later| later.number > revision.number);
    let is_confirmed = next.is_some_and(|next| match next.cause {
        Cause::Apply | Cause::Rollback | Cause::Policy => true,
        Cause::Start | Cause::Timeout => false,
    });
    let was_to_be = revision.confirmation == Confirmation::Asked;
    (was_to_be && !is_confirmed).then_some(revision.number)
}

fn body_of(revisions: &Revisions, number: u64) -> Option<Body> {
    revisions.reader(number)?.read().ok()?.with_edits(number).ok()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::revisions::{Content, FILE};

    const TEXT: &str = "[node]\nname = \"a\"\n";
    const NEW: &str = "[node]\nname = \"new\"\n";

    fn body(text: &str) -> Body {
        let keys = [("b".to_owned(), vec!["in 0x00000100 00".to_owned()])].into();
        Body { text: text.into(), keys }
    }

    fn record() -> Record {
        Record::of(2, NEW, (1, PathBuf::from("/etc/x"), body(TEXT)), None)
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_refuses_what_was_never_confirmed() {
        let before = |number| (number, PathBuf::from("/etc/x \"y\""), body(TEXT));
        let first = Record::of(15, "new", before(14), None);
        assert_eq!(Record::decode(first.encode().as_bytes()).unwrap(), first);
        assert_eq!((first.refuses("new"), first.refuses(TEXT)), (Some(15), None));
        // Neither was confirmed; the revision before the newest is what starts.
        let second = Record::of(17, "newer", before(16), Some(&first));
        assert_eq!((second.refuses("new"), second.refuses("newer")), (Some(15), Some(17)));
        assert_eq!(second.previous, 16);
        let again = Record::of(18, "new", before(16), Some(&second));
        assert_eq!((again.refuses("new"), again.refused.len()), (Some(18), 2));
        let mut last = again;
        for number in 20..60 {
            last = Record::of(number, &number.to_string(), before(number - 1), Some(&last));
        }
        assert_eq!((last.refused.len(), last.refuses("59")), (MAX_REFUSED, Some(59)));
    }

    #[test]
    fn every_damage_of_a_record_is_noticed_and_where_it_is() {
        let whole = record().encode();
        let head = whole.find('\n').unwrap();
        for cut in 0..whole.len() {
            let damage = Record::decode(&whole.as_bytes()[..cut]).unwrap_err();
            assert_eq!(matches!(damage, Damage::Text(_)), cut > head, "cut at {cut}: {damage}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone().into_bytes();
            bytes[at] ^= 0x81;
            let damage = Record::decode(&bytes).unwrap_err();
            assert_eq!(matches!(damage, Damage::Text(_)), at > head, "changed at {at}: {damage}");
        }
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(Record::read(directory.path()), Ok(None)));
        std::fs::create_dir(directory.path().join(RECORD)).unwrap();
        assert!(matches!(Record::read(directory.path()), Err(Damage::Unreadable(_))));
    }

    /// A state directory with revisions, and a record of which the bytes from `damaged` on are not
    /// what was written.
    struct Place {
        directory: tempfile::TempDir,
    }

    impl Place {
        fn with(kept: &[(Cause, Confirmation, &str)], damaged: usize) -> Place {
            let directory = tempfile::tempdir().unwrap();
            let mut revisions = Revisions::open(directory.path()).unwrap();
            for (number, (cause, confirmation, text)) in (1..).zip(kept) {
                let revision = Revision {
                    number,
                    time: SystemTime::UNIX_EPOCH,
                    uid: 0,
                    cause: *cause,
                    file: "x".into(),
                    base: PathBuf::from("/etc/kept"),
                    changes: 0,
                    restored: None,
                    confirmation: *confirmation,
                };
                let written = revisions.keep(revision, Content::Whole(body(text)));
                written.blocking_recv().unwrap().unwrap();
            }
            drop(revisions);
            // The writer's thread has let go of the database when this has it.
            drop(Revisions::open(directory.path()).unwrap());
            let mut bytes = record().encode().into_bytes();
            bytes[damaged..].fill(b'?');
            std::fs::write(directory.path().join(RECORD), bytes).unwrap();
            Place { directory }
        }

        fn found(
            &self,
            effective: &str,
        ) -> Result<(Option<StandIn>, Option<Damage>), NothingBefore> {
            let path = self.directory.path();
            stand_in(path, effective, || Revisions::open(path))
        }

        /// Returns the revision that starts instead of a configuration; the record is damaged.
        fn starts(&self, effective: &str) -> Option<(u64, u64, String)> {
            let (stand_in, damage) = self.found(effective).unwrap();
            assert!(damage.is_some());
            stand_in.map(|of| (of.refused, of.previous, of.body.text))
        }

        fn nothing_starts(&self, effective: &str) -> bool {
            self.found(effective).is_err()
        }
    }

    const FIRST: (Cause, Confirmation, &str) = (Cause::Start, Confirmation::NotAsked, TEXT);
    const WAITS: (Cause, Confirmation, &str) = (Cause::Apply, Confirmation::Asked, NEW);

    #[test]
    fn with_a_damaged_record_the_revision_before_the_unconfirmed_one_starts() {
        let before = Some((2, 1, TEXT.to_owned()));
        for damaged in [0, MARK.len() + 3, record().encode().find('\n').unwrap() + 1] {
            let killed = Place::with(&[FIRST, WAITS], damaged);
            assert_eq!(killed.starts(NEW), before, "killed while it waited, {damaged}");
            let over = (Cause::Timeout, Confirmation::NotAsked, TEXT);
            assert_eq!(Place::with(&[FIRST, WAITS, over], damaged).starts(NEW), before);
            let again = (Cause::Start, Confirmation::NotAsked, TEXT);
            assert_eq!(Place::with(&[FIRST, WAITS, again], damaged).starts(NEW), before);
            assert_eq!(killed.starts("[node]\nname = \"another\"\n"), None, "never applied");
            assert_eq!(killed.starts(TEXT), None, "it ran before");
        }
    }

    #[test]
    fn with_a_damaged_first_line_what_was_confirmed_starts() {
        for cause in [Cause::Apply, Cause::Rollback, Cause::Policy] {
            let next = (cause, Confirmation::NotAsked, "[node]\nname = \"next\"\n");
            assert_eq!(Place::with(&[FIRST, WAITS, next], 0).starts(NEW), None, "{cause:?}");
        }
        let for_good = (Cause::Apply, Confirmation::NotAsked, NEW);
        let over = (Cause::Timeout, Confirmation::NotAsked, TEXT);
        assert_eq!(Place::with(&[FIRST, WAITS, over, for_good], 0).starts(NEW), None);
        assert_eq!(Place::with(&[], 0).starts(NEW), None, "nobody knows");
    }

    #[test]
    fn where_the_revision_before_is_nowhere_nothing_starts() {
        assert!(Place::with(&[WAITS], 0).nothing_starts(NEW), "none is older");
        let text = record().encode().find('\n').unwrap() + 1;
        let place = Place::with(&[], text);
        assert!(place.nothing_starts(NEW), "none is kept");
        let error = place.found(NEW).unwrap_err().to_string();
        for part in ["revision 2", "never confirmed", "text of revision 1", "remove"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn with_a_damaged_database_the_record_alone_decides() {
        let text = record().encode().find('\n').unwrap() + 1;
        for (damaged, said) in [(0, "nothing starts"), (text, "text of revision 1")] {
            let place = Place::with(&[FIRST, WAITS], damaged);
            std::fs::write(place.directory.path().join(FILE), "no database".repeat(1000)).unwrap();
            let error = place.found(NEW).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("remove"), "{error}");
            std::fs::write(place.directory.path().join(RECORD), record().encode()).unwrap();
            let (found, damage) = place.found(NEW).unwrap();
            assert_eq!(found.map(|of| (of.refused, of.previous)), Some((2, 1)));
            assert!(damage.is_none());
            std::fs::remove_file(place.directory.path().join(RECORD)).unwrap();
            assert!(matches!(place.found(NEW), Ok((None, None))), "nothing is unconfirmed");
        }
    }

    #[test]
    fn a_whole_record_needs_no_revisions() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(RECORD), record().encode()).unwrap();
        let none = || -> Result<Revisions, RevisionError> { panic!("revisions are not asked for") };
        let (found, damage) = stand_in(directory.path(), NEW, none).unwrap();
        let found = found.unwrap();
        assert_eq!((found.refused, found.previous, found.body.clone()), (2, 1, body(TEXT)));
        assert!(damage.is_none());
        assert_eq!(found.record(NEW), record(), "a mended record says the same");
        assert!(matches!(stand_in(directory.path(), TEXT, none), Ok((None, None))));
    }
}
