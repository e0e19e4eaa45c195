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
use std::time::{Duration, Instant};

use config::{ConfigErrors, Loaded, Parsed};
use control::Compiled;

use crate::backend::{ChangeError, ConfirmError, ToConfirm};
use crate::events::{Events, Kind};
use crate::picture::AwaitedConfirmation;
use crate::revisions::Revisions;
use crate::stored_keys::{StoredKeys, changed_keys};
use crate::who::Uid;

pub(crate) use record::{Damage, NothingBefore, RECORD, Record, Records, digest};
use record::{StandIn, stand_in};

/// The shortest time to confirm.
const LEAST_TIME_S: u64 = 1;
/// The longest time to confirm.
const MOST_TIME_S: u64 = 86_400;

/// A time to confirm.
///
/// # Errors
/// [`ChangeError::ConfirmTime`].
pub(crate) fn confirm_time(seconds: u64) -> Result<Duration, ChangeError> {
    match seconds {
        LEAST_TIME_S..=MOST_TIME_S => Ok(Duration::from_secs(seconds)),
        given_s => {
            Err(ChangeError::ConfirmTime { given_s, least_s: LEAST_TIME_S, most_s: MOST_TIME_S })
        }
    }
}

/// The configuration before a change, to be put back.
pub(crate) struct PreviousConfiguration {
    pub(crate) revision: u64,
    pub(crate) base: PathBuf,
    /// The configuration with its SAs, which keep their counters and windows.
    pub(crate) compiled: Compiled,
}

/// A change that runs and waits.
pub(crate) struct Pending {
    pub(crate) revision: u64,
    pub(crate) before: PreviousConfiguration,
    pub(crate) confirm: ToConfirm,
    /// The time at which it is rolled back.
    pub(crate) until: Instant,
}

impl Pending {
    /// The change as everybody may see it.
    pub(crate) fn waiting(&self) -> AwaitedConfirmation {
        AwaitedConfirmation {
            revision: self.revision,
            previous: self.before.revision,
            until: self.until,
        }
    }
}

/// The end of the last change that waited.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LastWait {
    Confirmed { revision: u64 },
    RolledBack { revision: u64, at: Instant },
}

/// Runs a function that waits for the disk on a thread of its own.
async fn blocking(
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> std::io::Result<()> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

/// A configuration to start with.
pub(crate) struct StartConfiguration {
    pub(crate) loaded: Loaded,
    /// The directory that a relative `keys_dir` in it starts from.
    pub(crate) base: PathBuf,
    /// The configuration that starts instead of a file that was never confirmed.
    pub(crate) instead: Option<StandInRevision>,
    /// The record is damaged.
    pub(crate) damaged: Option<DamagedRecord>,
}

/// The revision before an unconfirmed change, started in its place.
pub(crate) struct StandInRevision {
    /// The unconfirmed revision.
    pub(crate) refused: u64,
    /// The revision that starts.
    pub(crate) previous: u64,
    /// The keys that it ran with.
    keys: StoredKeys,
}

impl StandInRevision {
    /// The message of the event; the keys are those that were read now.
    pub(crate) fn message(&self, file: &Path, keys: &StoredKeys) -> String {
        let StandInRevision { refused, previous, keys: before } = self;
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

/// A damaged record, and its repair.
pub(crate) struct DamagedRecord {
    path: PathBuf,
    damage: Damage,
    /// Record that replaces it, made from the kept revisions.
    pub(crate) mended: Option<Record>,
}

impl DamagedRecord {
    /// Returns the text of the event.
    pub(crate) fn message(&self, file: &Path) -> String {
        let DamagedRecord { path, damage, mended } = self;
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
pub(crate) enum StartConfigurationError {
    /// All mistakes of the one that is to start.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The file was never confirmed, and the revision before it is lost.
    #[error(transparent)]
    Lost(#[from] NothingBefore),
}

/// The revision, if a configuration was applied to be confirmed and never was; `kept` are those of
/// the running daemon.
pub(crate) fn refused_revision(config: &config::Validated, kept: &Revisions) -> Option<u64> {
    let kept = || Ok(kept.clone());
    let (stand_in, _) = stand_in(&config.node.state_dir, &config.effective(), kept).ok()?;
    Some(stand_in?.refused)
}

/// The configuration of a file, or the one that starts instead of it.
struct StartChoice {
    parsed: Parsed,
    base: PathBuf,
    instead: Option<StandInRevision>,
    damaged: Option<DamagedRecord>,
}

fn choose(file: &Path) -> Result<StartChoice, StartConfigurationError> {
    let parsed = config::read(file)?;
    let base = config::base_of(file).to_owned();
    let state_dir = parsed.validated.node.state_dir.clone();
    let effective = parsed.validated.effective();
    let (stand_in, damage) = stand_in(&state_dir, &effective, || Revisions::open(&state_dir))?;
    let damaged = damage.map(|damage| DamagedRecord {
        path: state_dir.join(RECORD),
        damage,
        mended: stand_in.as_ref().map(|stand_in| stand_in.record(&effective)),
    });
    let Some(StandIn { refused, previous, base: base_before, body }) = stand_in else {
        return Ok(StartChoice { parsed, base, instead: None, damaged });
    };
    let parsed = config::parse(&body.text, &format!("revision {previous}"))?;
    let instead = Some(StandInRevision { refused, previous, keys: body.keys });
    Ok(StartChoice { parsed, base: base_before, instead, damaged })
}

/// The configuration that a daemon with this file starts with.
///
/// # Errors
/// Those of [`load`].
pub(crate) fn read(file: &Path) -> Result<Parsed, StartConfigurationError> {
    choose(file).map(|chosen| chosen.parsed)
}

/// Reads it with its keys.
///
/// # Errors
/// [`StartConfigurationError`]. A revision that is to start instead of the file and cannot leaves
/// everything closed: the file was never confirmed.
pub(crate) fn load(file: &Path) -> Result<StartConfiguration, StartConfigurationError> {
    let StartChoice { parsed, base, instead, damaged } = choose(file)?;
    let loaded = parsed.within(linux::machine_memory())?.load_keys(&base)?;
    Ok(StartConfiguration { loaded, base, instead, damaged })
}

/// Records what became of a confirmation.
pub(crate) fn audit(events: &Events, by: Uid, done: &Result<u64, ConfirmError>) {
    match done {
        Ok(revision) => {
            let message = format!("revision {revision} is confirmed");
            let details: crate::events::Details<'_> = &[("revision", revision)];
            events.audit(by, Kind::Confirmed, "", message, details);
        }
        Err(error) => {
            events.audit(by, Kind::ConfirmRefused, "", error.to_string(), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_confirm_has_bounds() {
        assert_eq!(confirm_time(60).unwrap(), Duration::from_secs(60));
        for seconds in [0, MOST_TIME_S + 1, u64::MAX] {
            let refused = confirm_time(seconds).unwrap_err().to_string();
            assert!(refused.contains("give 1 to 86400 seconds"), "{refused}");
        }
    }
}
