//! A change that is to be confirmed: the promise before it is made, its end, and the way back. What
//! is written of it is in `unconfirmed`.

use std::time::{Duration, Instant, SystemTime};

use control::Compiled;
use control::guard::Guard;
use dataplane::carve_out::Reserved;

use crate::backend::{ChangeError, ConfirmError, ToConfirm, WaitingChange};
use crate::change::machine;
use crate::events::Kind;
use crate::freeing::free_aside;
use crate::revisions::{Body, Cause, Confirmation, Content, Revision};
use crate::state::State;
use crate::stored_keys::stored;
use crate::unconfirmed::{
    Damage, DamagedRecord, LastWait, Pending, PreviousConfiguration, RECORD, Record, digest,
};
use crate::who::ConnectionNumber;

/// The time after which a failed rollback is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// A change that is about to be made and will wait.
pub(crate) struct Promise {
    confirm: ToConfirm,
    before: PreviousConfiguration,
    /// The record before.
    earlier: Option<Record>,
}

impl State {
    /// Makes sure that a restart would restore the running configuration, before a change is made.
    pub(crate) async fn promise(
        &mut self,
        confirm: ToConfirm,
        revision: u64,
        effective: &str,
    ) -> Result<Promise, ChangeError> {
        let compiled = self.gateway.compiled.copied();
        let base = self.base.to_path_buf();
        let before = PreviousConfiguration { revision: self.revision, base, compiled };
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
            self.records.write(&record).await.map_err(ChangeError::NotUndoable)?;
        }
        Ok(Promise { confirm, before, earlier })
    }

    /// Withdraws the promise, because the change was refused.
    pub(crate) async fn break_promise(&mut self, promise: Promise) {
        let undone = match &promise.earlier {
            Some(record) => self.records.write(record).await,
            None => self.records.remove().await,
        };
        if let Err(error) = undone {
            self.report_record_stays(&error);
        }
    }

    /// Makes the change that the promise belongs to wait for its confirmation.
    pub(crate) fn keep_promise(&mut self, promise: Promise, revision: u64) -> WaitingChange {
        let Promise { confirm, before, .. } = promise;
        let until = Instant::now() + confirm.within;
        let pending = Pending { revision, before, confirm, until };
        let waits = pending.waiting().waits();
        self.pending = Some(pending);
        let WaitingChange { previous, left, .. } = waits;
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
            self.report_record_stays(&error);
        }
    }

    /// Reports that the record is damaged, and repairs it if possible.
    pub(crate) async fn report_damaged(&mut self, damaged: &DamagedRecord) {
        let message = damaged.message(&self.file);
        self.events.record(Kind::UnconfirmedRecordDamaged, "", message, &[]);
        if let Some(mended) = &damaged.mended
            && let Err(error) = self.records.write(mended).await
        {
            self.report_record_stays(&error);
        }
    }

    fn report_record_stays(&self, error: &std::io::Error) {
        let message = format!(
            "{} stays: {error}: a restart would go by it",
            self.config().node.state_dir.join(RECORD).display()
        );
        self.events.record(Kind::RevisionRefused, "", message, &[]);
    }

    /// Puts back what ran before a change that nobody confirmed. Refused, what waits goes on.
    async fn bring_back(&mut self, pending: &Pending) -> Result<u64, ChangeError> {
        let mut compiled = pending.before.compiled.copied();
        compiled.keep_put_sas(&self.gateway.compiled).map_err(machine)?;
        compiled.keep_moved_peers(&self.gateway.compiled);
        let (copy, view) = (compiled.copied(), self.gateway.view.clone());
        // What is reserved depends on addresses: it is filled in when the guard is put up.
        let guard = move || Guard::new(copy.validated(), &view, &Reserved::default());
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
        let copy = self.gateway.compiled.copied();
        let body = Box::new(move || Body {
            text: copy.validated().effective(),
            keys: stored(&copy.key_names()),
        });
        self.take_up(revision, Content::Made(body)).await;
        Ok(number)
    }
}

impl State {
    /// Keeps the change that waits.
    ///
    /// # Errors
    /// [`ConfirmError`].
    pub(crate) async fn confirm(
        &mut self,
        asked: Option<u64>,
        over: ConnectionNumber,
    ) -> Result<u64, ConfirmError> {
        if self.stopping {
            return Err(ConfirmError::Stopping);
        }
        let Some(pending) = &self.pending else { return Err(self.nothing_waits(asked)) };
        let revision = pending.revision;
        match asked {
            Some(asked) if asked != revision => {
                return Err(ConfirmError::Other { asked, waits: revision });
            }
            _ if pending.confirm.asked_over == over => {
                return Err(ConfirmError::SameConnection { revision });
            }
            _ => {}
        }
        // First what a restart goes by: while it stands, the change is not confirmed.
        if let Err(error) = self.records.remove().await {
            return Err(ConfirmError::Record { revision, why: error.to_string() });
        }
        let done = self.pending.take();
        self.last_wait = Some(LastWait::Confirmed { revision });
        // SAs of very many peers take a while to go.
        free_aside(done);
        Ok(revision)
    }

    /// The configuration before a change that was not confirmed in time, and the one that runs.
    pub(crate) fn overdue(&self) -> Option<[Compiled; 2]> {
        let pending = self.pending.as_ref().filter(|pending| pending.until <= Instant::now())?;
        Some([pending.before.compiled.copied(), self.gateway.compiled.copied()])
    }

    /// Rolls back a change that was not confirmed in time. Returns the time of the next check.
    /// `earlier` is what is to run again, if it is not what ran before: charon may have taken away
    /// since what it had made by itself.
    pub(crate) async fn roll_back_overdue(
        &mut self,
        earlier: Result<Option<Box<Compiled>>, ChangeError>,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut pending = match self.pending.take() {
            Some(pending) if pending.until <= now && !self.stopping => pending,
            waits => {
                self.pending = waits;
                return self.pending.as_ref().map(|pending| pending.until);
            }
        };
        let (revision, previous) = (pending.revision, pending.before.revision);
        let within = pending.confirm.within.as_secs();
        let done = match earlier {
            Err(error) => Err(error),
            Ok(earlier) => {
                pending.before.compiled =
                    earlier.map_or_else(|| pending.before.compiled.copied(), |earlier| *earlier);
                self.bring_back(&pending).await
            }
        };
        match done {
            Ok(number) => {
                self.last_wait = Some(LastWait::RolledBack { revision, at: Instant::now() });
                let message = format!(
                    "revision {revision} was not confirmed in {within} s: revision {previous} runs \
                     again, as revision {number}"
                );
                let details: crate::events::Details<'_> =
                    &[("revision", &number), ("restored", &previous)];
                self.events.record(Kind::ConfirmExpired, "", message, details);
                free_aside(pending);
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
                self.pending = Some(pending);
                Some(again)
            }
        }
    }

    fn nothing_waits(&self, asked: Option<u64>) -> ConfirmError {
        let running = self.revision;
        let is_asked = |revision| asked.is_none_or(|asked| asked == revision);
        match self.last_wait {
            Some(LastWait::Confirmed { revision }) if is_asked(revision) => {
                ConfirmError::Already { revision, running }
            }
            Some(LastWait::RolledBack { revision, at }) if is_asked(revision) => {
                let ago_s = at.elapsed().as_secs();
                ConfirmError::TooLate { revision, running, ago_s }
            }
            _ => ConfirmError::Nothing { running },
        }
    }
}
