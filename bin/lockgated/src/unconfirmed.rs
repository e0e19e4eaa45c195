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
//! A damaged record is an event (`unconfirmed_record_damaged`) and no way around the rule: the
//! revisions that are kept beside it stand in for it (`record`).
//!
//! Keys are in no record: after a restart those of the key files are used. A change of keys that
//! is to survive a crash unconfirmed names another key file than the revision before.

mod record;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use control::guard::Guard;
use control::{Compiled, ConfigErrors, Loaded, Parsed};
use dataplane::carve_out::Reserved;
use tokio::sync::Notify;

use crate::backend::{ConnectionNumber, NotConfirmed, Refused, ToConfirm, Uid, Waits};
use crate::change::machine;
use crate::daemon::Daemon;
use crate::events::Kind;
use crate::revisions::{Body, Cause, Confirmation, Content, Revision, StoredKeys, stored};
use crate::state::State;

pub(crate) use record::{Damage, NothingBefore, Record, Records};
use record::{RECORD, StandIn, digest, stand_in};

/// The shortest time to confirm.
const LEAST_TIME_S: u64 = 1;
/// The longest time to confirm.
const MOST_TIME_S: u64 = 86_400;
/// The time after which a failed rollback is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(5);

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

/// The configuration before a change, to be put back.
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
    /// The time at which it is rolled back.
    pub(crate) until: Instant,
}

impl Pending {
    /// The change in the words of the API.
    pub(crate) fn waits(&self) -> Waits {
        let left = self.until.saturating_duration_since(Instant::now());
        Waits { revision: self.revision, previous: self.before.revision, left }
    }
}

/// The end of the last change that waited.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LastWait {
    Confirmed { revision: u64 },
    RolledBack { revision: u64, at: Instant },
}

/// Does what waits for the disk on a thread of its own.
async fn blocking(
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> std::io::Result<()> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

/// A configuration to start with.
pub(crate) struct Beginning {
    pub(crate) loaded: Loaded,
    /// The directory that a relative `keys_dir` in it starts from.
    pub(crate) base: PathBuf,
    /// The file holds what was never confirmed: what starts instead.
    pub(crate) instead: Option<Instead>,
    /// The record is damaged.
    pub(crate) damaged: Option<Damaged>,
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
    /// The message of the event; the keys are those that were read now.
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

/// A damaged record, and what becomes of it.
pub(crate) struct Damaged {
    path: PathBuf,
    damage: Damage,
    /// Takes its place: the revisions that are kept said what it must say.
    pub(crate) mended: Option<Record>,
}

impl Damaged {
    /// Returns the text of the event.
    pub(crate) fn message(&self, file: &Path) -> String {
        let Damaged { path, damage, mended } = self;
        let (path, file) = (path.display(), file.display());
        match mended {
            Some(_) => format!(
                "{path} is damaged ({damage}): the revisions that are kept say what was never \
                 confirmed, and the record is written anew from them"
            ),
            None => format!(
                "{path} is damaged ({damage}): no kept revision says that {file} was never \
                 confirmed, so it starts; if that is right, remove {path}"
            ),
        }
    }
}

/// No configuration can be started with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoBeginning {
    /// All mistakes of the one that is to start.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The file was never confirmed, and the revision before it is lost.
    #[error(transparent)]
    Lost(#[from] NothingBefore),
}

/// The revision, if a configuration was applied to be confirmed and never was.
pub(crate) fn refused_revision(config: &control::Validated) -> Option<u64> {
    let (stand_in, _) = stand_in(&config.node.state_dir, &config.effective()).ok()?;
    Some(stand_in?.refused)
}

/// The configuration of a file, or the one that starts instead of it.
struct Chosen {
    parsed: Parsed,
    base: PathBuf,
    instead: Option<Instead>,
    damaged: Option<Damaged>,
}

fn choose(file: &Path) -> Result<Chosen, NoBeginning> {
    let parsed = control::read(file)?;
    let base = control::base_of(file).to_owned();
    let state_dir = parsed.validated.node.state_dir.clone();
    let effective = parsed.validated.effective();
    let (stand_in, damage) = stand_in(&state_dir, &effective)?;
    let damaged = damage.map(|damage| Damaged {
        path: state_dir.join(RECORD),
        damage,
        mended: stand_in.as_ref().map(|stand_in| stand_in.record(&effective)),
    });
    let Some(StandIn { refused, previous, base: base_before, body }) = stand_in else {
        return Ok(Chosen { parsed, base, instead: None, damaged });
    };
    let parsed = control::parse(&body.text, &format!("revision {previous}"))?;
    let instead = Some(Instead { refused, previous, keys: body.keys });
    Ok(Chosen { parsed, base: base_before, instead, damaged })
}

/// The configuration that a daemon with this file starts with.
///
/// # Errors
/// As [`load`].
pub(crate) fn read(file: &Path) -> Result<Parsed, NoBeginning> {
    choose(file).map(|chosen| chosen.parsed)
}

/// Reads it with its keys.
///
/// # Errors
/// [`NoBeginning`]. A revision that is to start instead of the file and cannot leaves everything
/// closed: the file was never confirmed.
pub(crate) fn load(file: &Path) -> Result<Beginning, NoBeginning> {
    let Chosen { parsed, base, instead, damaged } = choose(file)?;
    let loaded = parsed.within(control::machine_memory())?.load_keys(&base)?;
    Ok(Beginning { loaded, base, instead, damaged })
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
    /// The record before.
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
        // The new record takes the place of a damaged one, and keeps of it what is certain.
        let earlier = match Record::read(&self.config().node.state_dir) {
            Ok(record) => record,
            Err(Damage::Text(record)) => Some(*record),
            Err(Damage::Facts | Damage::Unreadable(_)) => None,
        };
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
        // A damaged one stays: whatever it refuses is not known.
        let record = Record::read(&self.config().node.state_dir).ok().flatten();
        if record.is_some_and(|record| record.refuses(effective).is_some())
            && let Err(error) = self.records.remove().await
        {
            self.tell_record_stays(&error);
        }
    }

    /// Tells that the record is damaged, and mends it if that can be done.
    pub(crate) async fn tell_damaged(&mut self, damaged: &Damaged) {
        let message = damaged.message(&self.file);
        self.events.record(Kind::UnconfirmedRecordDamaged, "", message, &[]);
        if let Some(mended) = &damaged.mended
            && let Err(error) = self.records.write(mended).await
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
            confirmation: Confirmation::NotAsked,
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
