//! Changes that wait for `lockgate confirm`. Until it comes, over another connection than the
//! change, the revision before stands by in memory: its SAs with the numbers and windows that they
//! have reached. It comes back by itself when the time is over.
//!
//! A restart, too, brings it back. The rule is: *a configuration that was applied to be confirmed
//! and never was does not start*. `STATE_DIR/unconfirmed` names it by a digest, and holds the text
//! of the revision before. A daemon whose file means the same as that configuration starts with
//! the text of the revision before, and says so; every other file starts as ever. So the rule holds
//! for a crash while a change waits, for the restart after that, and for restarts after the time
//! was over. The record goes away when a change is confirmed, or when the configuration is applied
//! without `--confirm`.
//!
//! Keys are in no record: after a restart those of the key files are used. A change of keys that
//! is to survive a crash unconfirmed names another key file than the revision before.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use control::guard::Guard;
use control::{Compiled, ConfigErrors, Loaded, Parsed};
use dataplane::carve_out::Reserved;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::backend::{ConnectionNumber, NotConfirmed, Refused, ToConfirm, Uid, Waits};
use crate::change::machine;
use crate::daemon::Daemon;
use crate::events::Kind;
use crate::revisions::{
    Body, Cause, Content, Revision, StoredKeys, keys_json, keys_of_json, stored, sync_names,
    write_file,
};
use crate::state::State;

/// The shortest time to confirm.
const LEAST_TIME_S: u64 = 1;
/// The longest time to confirm.
const MOST_TIME_S: u64 = 86_400;
/// When a rollback that failed is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// Configurations that one record refuses.
const MAX_REFUSED: usize = 16;
/// The record's name in the state directory.
const RECORD: &str = "unconfirmed";
/// What it begins with.
const MARK: &str = "# lockgate unconfirmed: ";

/// A time to confirm.
///
/// # Errors
/// [`Refused::ConfirmTime`].
pub(crate) fn confirm_time(seconds: u64) -> Result<Duration, Refused> {
    match seconds {
        LEAST_TIME_S..=MOST_TIME_S => Ok(Duration::from_secs(seconds)),
        given_s => {
            Err(Refused::ConfirmTime { given_s, least_s: LEAST_TIME_S, most_s: MOST_TIME_S })
        }
    }
}

/// What ran before a change, to be put back.
pub(crate) struct Before {
    pub(crate) revision: u64,
    pub(crate) base: PathBuf,
    /// With its SAs, whose counters and windows go on being theirs.
    pub(crate) compiled: Compiled,
}

/// A change that runs and waits.
pub(crate) struct Pending {
    pub(crate) revision: u64,
    pub(crate) before: Before,
    pub(crate) confirm: ToConfirm,
    /// When it is rolled back.
    pub(crate) until: Instant,
}

impl Pending {
    /// The change in the words of the API.
    pub(crate) fn waits(&self) -> Waits {
        let left = self.until.saturating_duration_since(Instant::now());
        Waits { revision: self.revision, previous: self.before.revision, left }
    }
}

/// How the last change that waited ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LastWait {
    Confirmed { revision: u64 },
    RolledBack { revision: u64, at: Instant },
}

/// A configuration that does not start.
#[derive(Clone, PartialEq, Eq, Debug)]
struct RefusedText {
    revision: u64,
    digest: String,
}

/// What a restart goes by. See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// The newest is the last.
    refused: Vec<RefusedText>,
    /// The revision before the newest, and what a relative `keys_dir` in it is relative to.
    previous: u64,
    base: PathBuf,
    body: Body,
}

/// The digest of a configuration's meaning: of its text with every default written out.
fn digest(effective: &str) -> String {
    Sha256::digest(effective.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Record {
    /// Reads the record of a state directory. One that cannot be read or understood is as good as
    /// none: the file of the daemon decides.
    pub(crate) fn read(state_dir: &Path) -> Option<Record> {
        let content = std::fs::read_to_string(state_dir.join(RECORD)).ok()?;
        Record::decode(&content)
    }

    /// The revision, if the record refuses this configuration.
    fn refuses(&self, effective: &str) -> Option<u64> {
        let digest = digest(effective);
        let found = self.refused.iter().rev().find(|refused| refused.digest == digest);
        found.map(|refused| refused.revision)
    }

    /// A record for a change to `effective`, beside what an earlier one refuses.
    fn of(
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
        });
        format!("{MARK}{facts}\n{}", body.text)
    }

    fn decode(content: &str) -> Option<Record> {
        let (first, text) = content.split_once('\n')?;
        let facts: serde_json::Value = serde_json::from_str(first.strip_prefix(MARK)?).ok()?;
        if facts["text"].as_str() != Some(&digest(text)) {
            return None;
        }
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

/// The record on disk. Writes and removals are on disk when they are answered.
pub(crate) struct Records {
    path: PathBuf,
}

impl Records {
    /// That of a state directory.
    pub(crate) fn new(state_dir: &Path) -> Records {
        Records { path: state_dir.join(RECORD) }
    }

    async fn write(&self, record: &Record) -> std::io::Result<()> {
        let (path, content) = (self.path.clone(), record.encode());
        blocking(move || write_file(&path, &content)).await
    }

    async fn remove(&self) -> std::io::Result<()> {
        let path = self.path.clone();
        blocking(move || match std::fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => sync_names(&path),
        })
        .await
    }
}

/// Does what waits for the disk on a thread of its own.
async fn blocking(
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> std::io::Result<()> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

/// What a daemon starts with.
pub(crate) struct Beginning {
    pub(crate) loaded: Loaded,
    /// What a relative `keys_dir` in it is relative to.
    pub(crate) base: PathBuf,
    /// The file holds what was never confirmed: what starts instead.
    pub(crate) instead: Option<Instead>,
}

/// The revision before an unconfirmed change, started in its place.
pub(crate) struct Instead {
    /// The unconfirmed revision.
    pub(crate) refused: u64,
    /// The revision that starts.
    pub(crate) previous: u64,
    /// The keys that it ran with.
    keys: StoredKeys,
}

impl Instead {
    /// What happened, for the event; the keys are those that were read now.
    pub(crate) fn message(&self, file: &Path, keys: &StoredKeys) -> String {
        let Instead { refused, previous, keys: before } = self;
        let mut message = format!(
            "{} holds revision {refused}, which was never confirmed: revision {previous} starts \
             instead; change the file, or apply it again",
            file.display()
        );
        if let Some(changed) = changed_keys(before, keys) {
            message.push_str("; ");
            message.push_str(&changed);
        }
        message
    }
}

/// The revision, if a configuration was applied to be confirmed and never was.
pub(crate) fn refused_revision(config: &control::Validated) -> Option<u64> {
    Record::read(&config.node.state_dir)?.refuses(&config.effective())
}

/// The configuration of a file, or the one that starts instead of it.
pub(crate) fn read(file: &Path) -> Result<(Parsed, PathBuf, Option<Instead>), ConfigErrors> {
    let parsed = control::read(file)?;
    let base = control::base_of(file).to_owned();
    let Some(record) = Record::read(&parsed.validated.node.state_dir) else {
        return Ok((parsed, base, None));
    };
    let Some(refused) = record.refuses(&parsed.validated.effective()) else {
        return Ok((parsed, base, None));
    };
    let Record { previous, base, body, .. } = record;
    let parsed = control::parse(&body.text, &format!("revision {previous}"))?;
    Ok((parsed, base, Some(Instead { refused, previous, keys: body.keys })))
}

/// The same with its keys.
///
/// # Errors
/// All mistakes. A revision that is to start instead of the file and cannot leaves everything
/// closed: the file was never confirmed.
pub(crate) fn load(file: &Path) -> Result<Beginning, ConfigErrors> {
    let (parsed, base, instead) = read(file)?;
    let loaded = parsed.within(control::machine_memory())?.load_keys(&base)?;
    Ok(Beginning { loaded, base, instead })
}

/// Names the peers whose stored keys differ; `None`: there are none. Peers of which nothing is
/// stored are left out.
pub(crate) fn changed_keys(before: &StoredKeys, now: &StoredKeys) -> Option<String> {
    let is_other =
        |(peer, keys): &(&String, &Vec<String>)| before.get(*peer).is_some_and(|old| old != *keys);
    let peers: Vec<&str> = now.iter().filter(is_other).map(|(peer, _)| peer.as_str()).collect();
    crate::change::named(&peers).map(|(noun, names)| {
        format!("the keys of {noun} {names} changed since and are not brought back")
    })
}

/// A change that is about to be made and will wait.
pub(crate) struct Promise {
    confirm: ToConfirm,
    before: Before,
    /// What the record was.
    earlier: Option<Record>,
}

impl State {
    /// Refuses a change while another waits.
    pub(crate) fn check_not_waiting(&self) -> Result<(), Refused> {
        match &self.pending {
            Some(pending) => Err(Refused::Waiting(pending.waits())),
            None => Ok(()),
        }
    }

    /// Makes sure that a restart would bring back what runs now, before a change is made.
    pub(crate) async fn promise(
        &mut self,
        confirm: ToConfirm,
        revision: u64,
        effective: &str,
    ) -> Result<Promise, Refused> {
        let compiled = self.compiled.copied();
        let before = Before { revision: self.revision, base: self.base.clone(), compiled };
        let copy = before.compiled.copied();
        let body =
            move || Body { text: copy.validated().effective(), keys: stored(&copy.key_names()) };
        let body = tokio::task::spawn_blocking(body).await.map_err(machine)?;
        let earlier = Record::read(&self.config().node.state_dir);
        let effective = effective.to_owned();
        if digest(&body.text) != digest(&effective) {
            let before = (before.revision, before.base.clone(), body);
            let record = Record::of(revision, &effective, before, earlier.as_ref());
            self.records.write(&record).await.map_err(Refused::NotUndoable)?;
        }
        Ok(Promise { confirm, before, earlier })
    }

    /// Takes the promise back: the change was refused.
    pub(crate) async fn break_promise(&mut self, promise: Promise) {
        let undone = match &promise.earlier {
            Some(record) => self.records.write(record).await,
            None => self.records.remove().await,
        };
        if let Err(error) = undone {
            self.tell_record_stays(&error);
        }
    }

    /// Lets the change wait that the promise was made for.
    pub(crate) fn keep_promise(&mut self, promise: Promise, revision: u64) -> Waits {
        let Promise { confirm, before, .. } = promise;
        let until = Instant::now() + confirm.within;
        let pending = Pending { revision, before, confirm, until };
        let waits = pending.waits();
        self.pending = Some(pending);
        let Waits { previous, left, .. } = waits;
        let message = format!(
            "revision {revision} waits for `lockgate confirm`: unconfirmed for {} s, revision \
             {previous} comes back",
            left.as_secs_f64().round()
        );
        let details: crate::events::Details<'_> =
            &[("revision", &revision), ("previous", &previous)];
        self.events.record(Kind::ConfirmAwaited, "", message, details);
        waits
    }

    /// Forgets that a configuration was never confirmed: it is applied for good.
    pub(crate) async fn accept(&mut self, effective: &str) {
        let record = Record::read(&self.config().node.state_dir);
        if record.is_some_and(|record| record.refuses(effective).is_some())
            && let Err(error) = self.records.remove().await
        {
            self.tell_record_stays(&error);
        }
    }

    fn tell_record_stays(&self, error: &std::io::Error) {
        let message = format!(
            "{} stays: {error}: a restart would go by it",
            self.config().node.state_dir.join(RECORD).display()
        );
        self.events.record(Kind::RevisionRefused, "", message, &[]);
    }

    /// Puts back what ran before a change that nobody confirmed. Refused, what waits goes on.
    async fn bring_back(&mut self, pending: &Pending) -> Result<u64, Refused> {
        let mut compiled = pending.before.compiled.copied();
        compiled.keep_ends(&self.compiled);
        let (copy, view) = (compiled.copied(), self.view.clone());
        // What is reserved depends on addresses: it is filled in when the guard is put up.
        let guard = move || {
            let settings = copy.settings().clone();
            let lists = settings.ports.iter().map(|_| &[][..]);
            Guard::new(copy.validated(), &view, &Reserved::nothing(lists))
        };
        let guard = tokio::task::spawn_blocking(guard).await.map_err(machine)?;
        self.switch(compiled, guard.map_err(machine)?).await?;
        let number = self.revisions.next();
        let previous = pending.before.revision;
        let revision = Revision {
            number,
            time: SystemTime::now(),
            uid: rustix::process::geteuid().as_raw(),
            cause: Cause::Timeout,
            file: format!("revision {previous}"),
            base: pending.before.base.clone(),
            changes: 0,
            restored: Some(previous),
        };
        let copy = self.compiled.copied();
        let body = Box::new(move || Body {
            text: copy.validated().effective(),
            keys: stored(&copy.key_names()),
        });
        self.take_up(revision, Content::Made(body)).await;
        Ok(number)
    }
}

impl Daemon {
    /// Keeps the change that waits.
    pub(crate) async fn confirm_change(
        &self,
        asked: Option<u64>,
        over: ConnectionNumber,
    ) -> Result<u64, NotConfirmed> {
        let _one_at_a_time = self.changing.lock().await;
        let mut state = self.state.lock().await;
        if state.stopping {
            return Err(NotConfirmed::Stopping);
        }
        let Some(pending) = &state.pending else { return Err(state.nothing_waits(asked)) };
        let revision = pending.revision;
        match asked {
            Some(asked) if asked != revision => {
                return Err(NotConfirmed::Other { asked, waits: revision });
            }
            _ if pending.confirm.asked_over == over => {
                return Err(NotConfirmed::SameConnection { revision });
            }
            _ => {}
        }
        // First what a restart goes by: while it stands, the change is not confirmed.
        if let Err(error) = state.records.remove().await {
            return Err(NotConfirmed::Record { revision, why: error.to_string() });
        }
        let done = state.pending.take();
        state.last_wait = Some(LastWait::Confirmed { revision });
        self.waits_changed.notify_one();
        // SAs of very many peers take a while to go.
        tokio::task::spawn_blocking(move || drop(done));
        Ok(revision)
    }

    /// Rolls back what nobody confirmed in time. Says when to look again.
    async fn roll_back_overdue(&self) -> Option<Instant> {
        let _one_at_a_time = self.changing.lock().await;
        let mut state = self.state.lock().await;
        let now = Instant::now();
        let mut pending = match state.pending.take() {
            Some(pending) if pending.until <= now && !state.stopping => pending,
            waits => {
                state.pending = waits;
                return state.pending.as_ref().map(|pending| pending.until);
            }
        };
        let (revision, previous) = (pending.revision, pending.before.revision);
        let within = pending.confirm.within.as_secs();
        match state.bring_back(&pending).await {
            Ok(number) => {
                state.last_wait = Some(LastWait::RolledBack { revision, at: Instant::now() });
                let message = format!(
                    "revision {revision} was not confirmed in {within} s: revision {previous} runs \
                     again, as revision {number}"
                );
                let details: crate::events::Details<'_> =
                    &[("revision", &number), ("restored", &previous)];
                self.events.record(Kind::ConfirmExpired, "", message, details);
                self.changed.notify_one();
                tokio::task::spawn_blocking(move || drop(pending));
                None
            }
            Err(error) => {
                let message = format!(
                    "revision {revision} was not confirmed in {within} s, and revision {previous} \
                     could not be put back: {error}; it is tried again"
                );
                self.events.record(Kind::RollbackRefused, "", message, &[]);
                pending.until = now + TRY_AGAIN;
                let again = pending.until;
                state.pending = Some(pending);
                Some(again)
            }
        }
    }
}

impl State {
    fn nothing_waits(&self, asked: Option<u64>) -> NotConfirmed {
        let running = self.revision;
        let is_asked = |revision| asked.is_none_or(|asked| asked == revision);
        match self.last_wait {
            Some(LastWait::Confirmed { revision }) if is_asked(revision) => {
                NotConfirmed::Already { revision, running }
            }
            Some(LastWait::RolledBack { revision, at }) if is_asked(revision) => {
                let ago_s = at.elapsed().as_secs();
                NotConfirmed::TooLate { revision, running, ago_s }
            }
            _ => NotConfirmed::Nothing { running },
        }
    }
}

/// Rolls back what is not confirmed in time; for ever.
pub(crate) async fn run(daemon: Arc<Daemon>) {
    let mut next: Option<Instant> = None;
    loop {
        let changed: &Notify = &daemon.waits_changed;
        match next {
            None => changed.notified().await,
            Some(until) => {
                let over = tokio::time::sleep_until(until.into());
                tokio::select! {
                    () = over => {}
                    () = changed.notified() => {}
                }
            }
        }
        next = daemon.roll_back_overdue().await;
    }
}

/// The audit event of a confirmation.
pub(crate) fn audit(daemon: &Daemon, by: Uid, done: &Result<u64, NotConfirmed>) {
    match done {
        Ok(revision) => {
            let message = format!("revision {revision} is confirmed");
            let details: crate::events::Details<'_> = &[("revision", revision)];
            daemon.events.audit(by, Kind::Confirmed, "", message, details);
        }
        Err(error) => {
            daemon.events.audit(by, Kind::ConfirmRefused, "", error.to_string(), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[node]\nname = \"a\"\n";

    fn body(text: &str) -> Body {
        let keys = [("b".to_owned(), vec!["in 0x00000100 00".to_owned()])].into();
        Body { text: text.into(), keys }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_refuses_what_was_never_confirmed() {
        let before = |number| (number, PathBuf::from("/etc/x \"y\""), body(TEXT));
        let first = Record::of(15, "new", before(14), None);
        assert_eq!(Record::decode(&first.encode()), Some(first.clone()));
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
    fn a_damaged_record_is_as_good_as_none() {
        let whole = Record::of(2, "new", (1, PathBuf::from("/"), body(TEXT)), None).encode();
        let head = whole.find('\n').unwrap();
        for cut in (0..head).chain([whole.len() - 1]) {
            assert_eq!(Record::decode(&whole[..cut]), None, "cut at {cut}");
        }
        assert_eq!(Record::decode(&whole.replace("previous", "prevoius")), None);
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(directory.path()), None);
        std::fs::write(directory.path().join(RECORD), [0xff; 9]).unwrap();
        assert_eq!(Record::read(directory.path()), None);
    }

    #[test]
    fn keys_that_changed_are_named_by_their_peers() {
        let keys = |peers: &[(&str, &str)]| -> StoredKeys {
            peers.iter().map(|(peer, key)| ((*peer).to_owned(), vec![(*key).to_owned()])).collect()
        };
        let before = keys(&[("a", "1"), ("b", "2"), ("gone", "3")]);
        assert_eq!(changed_keys(&before, &keys(&[("a", "1"), ("b", "2"), ("new", "9")])), None);
        let text = changed_keys(&before, &keys(&[("a", "1"), ("b", "9")])).unwrap();
        assert_eq!(text, "the keys of peer b changed since and are not brought back");
        assert_eq!(changed_keys(&StoredKeys::default(), &before), None, "nothing is known");
    }

    #[test]
    fn a_time_to_confirm_has_bounds() {
        assert_eq!(confirm_time(60).unwrap(), Duration::from_secs(60));
        for seconds in [0, MOST_TIME_S + 1, u64::MAX] {
            let refused = confirm_time(seconds).unwrap_err().to_string();
            assert!(refused.contains("give 1 to 86400 seconds"), "{refused}");
        }
    }
}
