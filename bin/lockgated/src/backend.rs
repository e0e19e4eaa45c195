//! The daemon's interface to the API. The server is written against this trait and nothing else, so
//! that its tests need no daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::{MAX_CAPTURES, v1};
use config::{
    ConfigErrors, ConnectionFilter, Diagnostic, Difference, IncludedTexts, KeyChange, SetFiles,
};
use control::{QuestionError, SpiRequest, Takeovers};
use dataplane::cache::{Key, Recall};
use dataplane::tap::{Filter, Layers, Outcome};
use dataplane::{Generation, Snapshot};
use tokio::sync::{broadcast, mpsc};
use wire::{Flow, Vni};

use crate::cards::CardPicture;
use crate::config_file::SaveError;
use crate::endpoints::{ChangeSums, EndpointDesk};
use crate::fair_turns::WorkCaller;
pub(crate) use crate::running::{CountedState, EntryIter, Running};
use crate::sa_changes::{ReserveError, Reserved, SaChange, SaDeletion, SaPut, SaRefusal};
use crate::who::{ConnectionNumber, Uid};

/// A change is to be confirmed, or it is rolled back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToConfirm {
    /// The time there is.
    pub(crate) within: Duration,
    /// The connection that the change came over: it may not confirm.
    pub(crate) asked_over: ConnectionNumber,
}

/// A configuration as text, which all readers share.
#[derive(Clone, Debug)]
pub(crate) struct ExportedText {
    /// TOML.
    pub(crate) text: Arc<str>,
    pub(crate) revision: u64,
    /// The directory that a relative `keys_dir` is relative to.
    pub(crate) base_directory: String,
}

/// Choice between applying a change and a dry run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    /// Make the change.
    Apply,
    /// Evaluate it, keys too, and change nothing.
    DryRun,
}

/// Choice whether a change is written to the daemon's configuration file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Save {
    /// The change runs until the daemon ends.
    No,
    /// The file holds the same configuration afterwards.
    Yes,
}

/// A configuration that someone wants to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    /// TOML.
    pub(crate) text: String,
    /// The file's name, for messages.
    pub(crate) file: String,
    /// Absolute path of the directory that relative names in it start at.
    pub(crate) base_directory: PathBuf,
    /// Source of the texts of its set files.
    pub(crate) includes: Includes,
    /// Choice between apply and dry run.
    pub(crate) intent: Intent,
    /// Rolls the change back unless it is confirmed in time; `None`: the change stays.
    pub(crate) confirm: Option<ToConfirm>,
    /// Writes it to the daemon's file too, or not.
    pub(crate) save: Save,
    /// Only if this revision runs; `None`: whichever does.
    pub(crate) only_after: Option<u64>,
}

/// Source of the texts of a configuration's set files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Includes {
    /// The client sent them. The daemon opens no file.
    Sent(IncludedTexts),
    /// The configuration is the daemon's own file: its set files lie beside it, without links.
    BesideFile,
}

impl Includes {
    /// Returns the source for a configuration in this directory.
    pub(crate) fn of<'p>(&'p self, base: &'p Path) -> SetFiles<'p> {
        match self {
            Includes::Sent(texts) => SetFiles::Sent { base, texts },
            Includes::BesideFile => SetFiles::Beneath(base),
        }
    }
}

/// Policies that someone wants removed and added, as one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PolicyChange {
    /// Names of those that go. One that is also added is replaced.
    pub(crate) remove: Vec<String>,
    /// `[[policy]]` sections: those that come.
    pub(crate) add: String,
    /// The file's name, for messages.
    pub(crate) file: String,
    /// Choice between apply and dry run.
    pub(crate) intent: Intent,
    /// Writes the configuration that then runs to the daemon's file too, or not.
    pub(crate) save: Save,
    /// Allows it to take packets from PROTECT policies, or not.
    pub(crate) consent: Consent,
}

/// Consent to a change that takes packets from PROTECT policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Consent {
    /// The operator said yes.
    Given,
    /// The operator said nothing: such a change is refused.
    NotGiven,
}

/// Selection of the flow cache's entries to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CacheQuestion {
    /// Largest number of entries.
    pub(crate) limit: usize,
    /// Show only this worker's entries.
    pub(crate) worker: Option<usize>,
    /// Set if stale entries are wanted too.
    pub(crate) stale: bool,
}

/// Revision and generation that run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Now {
    /// Revision of the configuration.
    pub(crate) revision: u64,
    /// Generation of the policies.
    pub(crate) generation: Generation,
}

/// A change that runs and waits to be confirmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WaitingChange {
    /// Revision that waits.
    pub(crate) revision: u64,
    /// The revision that is restored without a confirmation.
    pub(crate) previous: u64,
    /// The time left.
    pub(crate) left: Duration,
}

/// A change that was made or, of a dry run, would be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ChangeReport {
    /// The revision that runs now.
    pub(crate) revision: u64,
    /// Generation of the policies that run now.
    pub(crate) generation: Generation,
    /// Differences from the configuration before ([`config::differences`]).
    pub(crate) differences: Vec<Difference>,
    /// Warnings about the configuration and its keys.
    pub(crate) warnings: Vec<Diagnostic>,
    /// Parts that run with less than they should, one sentence each: keys refused, ports not there.
    pub(crate) notes: Vec<String>,
    /// Peers whose keys change.
    pub(crate) key_changes: Vec<KeyChange>,
    /// True if the configuration, keys included, ran already: the change made no revision.
    pub(crate) unchanged: bool,
    /// Set if the change waits to be confirmed.
    pub(crate) waits: Option<WaitingChange>,
    /// The file that it was written to.
    pub(crate) saved_to: Option<String>,
    /// The reason why the daemon did not write it although the client asked it to.
    pub(crate) not_saved: Option<String>,
    /// Packets that a change of single policies takes from PROTECT policies.
    pub(crate) takeovers: Takeovers,
    /// Policies that a change of single policies concerns.
    pub(crate) policies: PolicyNames,
}

/// Names of policies, for events.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PolicyNames {
    /// The policy, if it is one; else how many they are.
    pub(crate) subject: String,
    /// The first few changes, each with its action: `added "dns" (bypass)`.
    pub(crate) text: String,
}

/// Reason why a change was not made; the running configuration stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    /// The configuration or a key file is wrong; its author is at fault.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The change takes packets from PROTECT policies, and the operator did not say yes.
    #[error(
        "this change takes packets from policies that protect them:{}\nrepeat it with --yes if \
         that is intended (field `yes` of the API)",
        lines(.0)
    )]
    Takes(Takeovers),
    /// No such revision is kept.
    #[error("{}", no_revision(*.revision, *.kept))]
    NoRevision {
        /// The number that was asked for.
        revision: u64,
        /// The oldest and the newest that are kept.
        kept: Option<(u64, u64)>,
    },
    /// The change was made for another revision than the running one.
    #[error(
        "revision {running} runs; the change was made for revision {expected}: somebody else \
         changed the configuration meanwhile, make the change again"
    )]
    Overtaken {
        /// The revision that the change was made for.
        expected: u64,
        /// The running revision.
        running: u64,
    },
    /// No earlier revision differs from the running one.
    #[error("no earlier revision differs from what runs: `lockgate rollback --list` shows all")]
    NoEarlier,
    /// Another change still waits for its confirmation.
    #[error(
        "revision {} waits for `lockgate confirm`, {} s left; unconfirmed, revision {} comes back",
        .0.revision, .0.left.as_secs(), .0.previous
    )]
    Waiting(WaitingChange),
    /// A time to confirm that makes no sense.
    #[error("the time to confirm is {given_s} s: give {} to {} seconds", .least_s, .most_s)]
    ConfirmTime {
        /// The time that was given.
        given_s: u64,
        /// The shortest.
        least_s: u64,
        /// The longest.
        most_s: u64,
    },
    /// A change to be confirmed cannot be undone by a restart.
    #[error(
        "a restart could not restore the running configuration: {0}; `apply` without --confirm \
         works"
    )]
    NotUndoable(#[source] std::io::Error),
    /// The daemon's file cannot be written.
    #[error("not saved: {0}")]
    NotSaved(#[source] SaveError),
    /// The change needs a restart, for this reason.
    #[error(transparent)]
    Machine(Box<dyn std::error::Error + Send + Sync>),
    /// The daemon is ending.
    #[error("lockgated is stopping")]
    Stopping,
}

impl ChangeError {
    /// Returns the reason for an event: mistakes of a configuration are one line each, without the
    /// lines of the file.
    pub(crate) fn for_event(&self) -> String {
        match self {
            ChangeError::Config(errors) => errors.in_lines(),
            other => other.to_string(),
        }
    }
}

fn lines(takeovers: &Takeovers) -> String {
    takeovers.sentences().map(|sentence| format!("\n  {sentence}")).collect()
}

/// Says that a revision is not kept.
fn no_revision(revision: u64, kept: Option<(u64, u64)>) -> String {
    match kept {
        Some((_, newest)) if revision > newest => {
            format!("there is no revision {revision}; the newest is {newest}")
        }
        Some((oldest, _)) if revision < oldest => {
            format!("revision {revision} is not kept any more; the oldest is {oldest}")
        }
        _ => format!("revision {revision} is not kept: see `lockgate rollback --list`"),
    }
}

/// The reason why nothing was confirmed. The running configuration stays.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ConfirmError {
    /// No change waits, and none did lately.
    #[error("nothing waits to be confirmed: revision {running} runs")]
    Nothing {
        /// The revision that runs.
        running: u64,
    },
    /// The change was confirmed before.
    #[error("revision {revision} is confirmed already; revision {running} runs")]
    Already {
        /// The revision that waited.
        revision: u64,
        /// The revision that runs.
        running: u64,
    },
    /// The confirmation came too late.
    #[error(
        "revision {revision} was not confirmed in time and was rolled back {ago_s} s ago; \
         revision {running} runs"
    )]
    TooLate {
        /// The revision that waited.
        revision: u64,
        /// The revision that runs.
        running: u64,
        /// Seconds since then.
        ago_s: u64,
    },
    /// Another revision than the named one waits.
    #[error("revision {asked} does not wait to be confirmed: revision {waits} does")]
    Other {
        /// The one that was named.
        asked: u64,
        /// The one that waits.
        waits: u64,
    },
    /// The confirmation came over the connection that the change came over.
    #[error(
        "confirm revision {revision} over a new connection: this one was open before the change \
         and does not prove that new ones work"
    )]
    SameConnection {
        /// The revision that waits.
        revision: u64,
    },
    /// The record that a restart goes by cannot be taken away.
    #[error(
        "revision {revision} is not confirmed: {why}: a restart would bring back the revision \
         before; try again"
    )]
    Record {
        /// The revision that waits.
        revision: u64,
        /// The reason.
        why: String,
    },
    /// The daemon is ending.
    #[error("lockgated is stopping; what waits is rolled back")]
    Stopping,
}

/// Connections that someone wants removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConnectionClearing {
    /// The filter, and its text.
    pub(crate) filter: ConnectionFilter,
    pub(crate) filter_text: String,
}

/// A capture that someone wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CaptureOrder {
    /// The port's name; `None`: all ports.
    pub(crate) port: Option<String>,
    pub(crate) layers: Layers,
    pub(crate) outcome: Outcome,
    /// The filter, and its text.
    pub(crate) filter: Option<Filter>,
    pub(crate) filter_text: String,
    pub(crate) bounds: v1::CaptureBounds,
}

/// The reason why there is no capture.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    /// No such port.
    #[error("{0}")]
    NoPort(#[from] QuestionError),
    /// Too many captures run already.
    #[error("{MAX_CAPTURES} captures run already: wait until one ends, or end one")]
    TooMany,
    /// The daemon is ending.
    #[error("lockgated is stopping")]
    Stopping,
}

/// The daemon, as the API sees it. A caller waits in the queue of its kind for a turn of work.
/// Policies, peers, routes, explanations and differences are read
/// from [`Running`]; the other calls return the rest.
#[tonic::async_trait]
pub(crate) trait Backend: Send + Sync + 'static {
    /// Returns a consistent picture of what runs.
    async fn running(&self, caller: WorkCaller) -> Running;
    /// Returns the running state and the SAs, with counts of one moment, for several answers.
    async fn counted_state(&self, caller: WorkCaller) -> CountedState;
    /// Returns the snapshot that the workers run on; asks no worker.
    async fn snapshot(&self) -> Arc<Snapshot>;
    /// Removes the connections that pass a filter and returns how many. No worker acts any more
    /// on one that it read before. `None`: the daemon is ending. It is an event.
    async fn clear_connections(&self, clearing: ConnectionClearing, by: Uid) -> Option<u64>;
    /// Returns the revision and generation that run; asks no worker.
    async fn now(&self) -> Now;
    /// Returns the status with rates, peers, drops of the last minute and warnings.
    async fn overview(&self, caller: WorkCaller) -> v1::Status;
    /// The ports, the host port last.
    async fn ports(&self, caller: WorkCaller) -> Vec<v1::Port>;
    /// The neighbours that the walk knows, and those that packets wait for.
    async fn neighbours(&self) -> Vec<v1::Neighbour>;
    /// The flow cache.
    async fn cache(&self) -> v1::Cache;
    /// Returns some entries of the cache; `None`: there is no such worker.
    async fn cache_entries(&self, question: CacheQuestion) -> Option<v1::CachedFlows>;
    /// Returns what each worker's flow cache would do with packets; `None`: it has none.
    async fn recall(&self, keys: Vec<Key>) -> Vec<Option<Vec<Recall>>>;
    /// Returns the kernel tier's answer to packets of a flow in a virtual network, as a predicate.
    async fn kernel_standing(&self, vni: Vni, flow: Flow) -> String;
    /// The network cards, and what they have of the rules.
    async fn cards(&self) -> Vec<CardPicture>;
    /// The policies of both directions in their orders of lookup; none, if there are no cards.
    async fn policies_in_order(&self, caller: WorkCaller) -> Vec<v1::PlacedPolicy>;
    /// Tiers, drops (all of them: the server leaves out zeros), ledger, frames and workers.
    async fn counters(&self, caller: WorkCaller) -> v1::Counters;
    /// The configuration of a revision, of the running one if `None`; `None` if it is not kept. A
    /// text that somebody holds is shared.
    async fn export(&self, caller: WorkCaller, revision: Option<u64>) -> Option<ExportedText>;
    /// The revisions that are kept, newest first.
    async fn revisions(&self) -> Vec<v1::Revision>;
    /// Judges a configuration and, if it is meant, makes it the running one. Returns when every
    /// worker walks by it. Refused or not, it is an event.
    async fn apply(&self, change: Change, by: Uid) -> Result<ChangeReport, ChangeError>;
    /// Judges a change of policies and, if it is meant, makes it. Returns when every worker walks
    /// by the new set; changes that are asked for together may be published together. Refused or
    /// not, a change that is meant is an event.
    async fn change_policies(
        &self,
        change: PolicyChange,
        by: Uid,
    ) -> Result<ChangeReport, ChangeError>;
    /// Puts SAs, all or none. Returns when every worker walks by them. Refused or not, it is an
    /// event.
    async fn put_sas(&self, put: SaPut, by: Uid) -> Result<SaChange, SaRefusal>;
    /// Deletes SAs that were put, all or none. Returns when no worker uses them. Refused or not, it
    /// is an event.
    async fn delete_sas(&self, deletion: SaDeletion, by: Uid) -> Result<SaChange, SaRefusal>;
    /// Reserves an SPI for inbound packets of a peer.
    async fn reserve_spi(&self, asked: SpiRequest) -> Result<Reserved, ReserveError>;
    /// Keeps the change that waits, if it is the one named. Refused or not, it is an event.
    /// Returns its revision.
    async fn confirm(
        &self,
        revision: Option<u64>,
        over: ConnectionNumber,
        by: Uid,
    ) -> Result<u64, ConfirmError>;
    /// Makes an earlier revision the running one, one step back if `None`. Refused or not, it is
    /// an event.
    async fn rollback(&self, revision: Option<u64>, by: Uid) -> Result<ChangeReport, ChangeError>;
    /// Writes what runs to the daemon's file. Refused or not, it is an event.
    async fn save(&self, by: Uid) -> Result<v1::Saved, ChangeError>;
    /// The events that are kept, oldest first, and those to come; none is missing in between.
    async fn events(&self) -> (Vec<v1::Event>, broadcast::Receiver<v1::Event>);
    /// Requests for SAs that are outstanding, and those to come; none is missing in between.
    /// The endpoints of virtual networks.
    fn endpoints(&self) -> Arc<EndpointDesk>;

    /// Records that a user has changed endpoints.
    fn endpoints_changed(&self, by: Uid, sums: ChangeSums);

    async fn acquires(&self) -> (Vec<v1::Acquire>, broadcast::Receiver<v1::Acquire>);
    /// Returns how often each kind of event happened.
    async fn event_counts(&self) -> Vec<(&'static str, u64)>;
    /// Captures packets; the stream ends when a bound is reached. Its start and end are events.
    async fn capture(
        &self,
        order: CaptureOrder,
        by: Uid,
    ) -> Result<mpsc::Receiver<v1::Captured>, CaptureError>;
    /// Someone who may not change anything tried to: an event (`change_denied`).
    async fn denied(&self, by: Uid, what: &'static str);
}
