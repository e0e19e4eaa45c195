//! What the API asks of the daemon. The server is written against this trait and nothing else, so
//! that its tests need no daemon.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use api::v1;
use control::{ConfigErrors, Difference, Problem, Spis, Validated};
use dataplane::counters::Volume;
use dataplane::{Generation, RouteEntry, Snapshot};
use ipsec::Spi;
use policy::{Direction, PolicyId};
use tokio::sync::broadcast;

use crate::liveness::Heard;

/// An SA by what it keeps for life: direction, SPI, peer.
pub(crate) type SaKey = (Direction, Spi, String);

/// Who asks: the effective user of the process at the other end of the socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Uid(pub(crate) u32);

/// What runs, as one consistent picture.
#[derive(Clone)]
pub(crate) struct Running {
    /// The configuration without its policies, which are the snapshot's.
    pub(crate) settings: Arc<Validated>,
    /// What the workers walk by.
    pub(crate) snapshot: Arc<Snapshot>,
    /// The routes that the snapshot was made from.
    pub(crate) routes: Arc<[RouteEntry]>,
    /// What the policies decided since the start, outbound and inbound.
    pub(crate) policies: HashMap<PolicyId, [Volume; 2]>,
    /// What the SAs sealed and opened since the start, by what they keep for life.
    pub(crate) sas: HashMap<SaKey, Volume>,
    /// How often each peer has moved since the start.
    pub(crate) moves: HashMap<String, u64>,
    /// When each peer was heard.
    pub(crate) liveness: HashMap<String, Heard>,
    /// Whether the snapshot's SPIs are those of the key files.
    pub(crate) spis: Spis,
    /// Entries of the flow cache that hold; none if it is off.
    pub(crate) cache_entries: Vec<v1::CacheEntries>,
}

/// Whether a change is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    /// Make it so.
    Apply,
    /// Judge it, keys too, and change nothing.
    DryRun,
}

/// A configuration that someone wants to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    /// TOML.
    pub(crate) text: String,
    /// The file's name, for messages.
    pub(crate) file: String,
    /// What a relative `keys_dir` is relative to: absolute.
    pub(crate) base_directory: PathBuf,
    /// Whether it is meant.
    pub(crate) intent: Intent,
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
    /// Whether it is meant.
    pub(crate) intent: Intent,
}

impl PolicyChange {
    /// What it is about, for events: the first name that goes, or the file.
    pub(crate) fn subject(&self) -> String {
        self.remove.first().unwrap_or(&self.file).clone()
    }
}

/// Which entries of the flow cache someone wants to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CacheQuestion {
    /// At most so many.
    pub(crate) limit: usize,
    /// Only this worker's.
    pub(crate) worker: Option<usize>,
    /// Those too that hold no more.
    pub(crate) stale: bool,
}

/// What runs, in two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Now {
    /// Revision of the configuration.
    pub(crate) revision: u64,
    /// Generation of the policies.
    pub(crate) generation: Generation,
}

/// A change that was made or, of a dry run, would be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Done {
    /// The revision that runs now.
    pub(crate) revision: u64,
    /// Generation of the policies that run now.
    pub(crate) generation: Generation,
    /// What changed ([`control::differences`]).
    pub(crate) differences: Vec<Difference>,
    /// Warnings about the configuration and its keys.
    pub(crate) warnings: Vec<Problem>,
    /// What runs with less than it should, one sentence each: keys refused, ports not there.
    pub(crate) notes: Vec<String>,
}

/// Why a change was not made; what ran before goes on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The configuration or a key file is wrong; its author is at fault.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// No such revision is kept.
    #[error("revision {revision} is not kept: see `lockgate show revisions`")]
    NoRevision {
        /// What was asked for.
        revision: u64,
    },
    /// There is nothing to go back to.
    #[error("there is no earlier revision to go back to")]
    NoEarlier,
    /// It needs a restart, and why.
    #[error(transparent)]
    Machine(Box<dyn std::error::Error + Send + Sync>),
    /// The daemon is ending.
    #[error("lockgated is stopping")]
    Stopping,
}

/// The daemon, as the API sees it. What can be read off [`Running`] is: policies, peers, routes,
/// explanations, differences. The rest is asked for.
#[tonic::async_trait]
pub(crate) trait Backend: Send + Sync + 'static {
    /// What runs.
    async fn running(&self) -> Running;
    /// The configuration that runs, policies and all: of very many, it takes a while.
    async fn configuration(&self) -> Arc<Validated>;
    /// What runs, in two numbers; asks no worker.
    async fn now(&self) -> Now;
    /// What runs, since when, and how it is set up.
    async fn status(&self) -> v1::Status;
    /// The ports, the host port last.
    async fn ports(&self) -> Vec<v1::Port>;
    /// The SAs, the refused ones too.
    async fn security_associations(&self) -> Vec<v1::SecurityAssociation>;
    /// The neighbours that the walk knows, and those that packets wait for.
    async fn neighbours(&self) -> Vec<v1::Neighbour>;
    /// The flow cache.
    async fn cache(&self) -> v1::Cache;
    /// Some of its entries; `None`: there is no such worker.
    async fn cache_entries(&self, question: CacheQuestion) -> Option<v1::CachedFlows>;
    /// Tiers, drops (all of them: the server leaves out zeros), ledger, frames and workers.
    async fn counters(&self) -> v1::Counters;
    /// The configuration of a revision, of the running one if `None`; `None` if it is not kept.
    async fn export(&self, revision: Option<u64>) -> Option<v1::Exported>;
    /// The revisions that are kept, newest first.
    async fn revisions(&self) -> Vec<v1::Revision>;
    /// Judges a configuration and, if it is meant, makes it the running one. Returns when every
    /// worker walks by it. Refused or not, it is an event.
    async fn apply(&self, change: Change, by: Uid) -> Result<Done, Refused>;
    /// Judges a change of policies and, if it is meant, makes it. Returns when every worker walks
    /// by the new set; changes that are asked for together may be published together. Refused or
    /// not, it is an event.
    async fn change_policies(&self, change: PolicyChange, by: Uid) -> Result<Done, Refused>;
    /// Makes an earlier revision the running one, the one before if `None`. Refused or not, it is
    /// an event.
    async fn rollback(&self, revision: Option<u64>, by: Uid) -> Result<Done, Refused>;
    /// The events that are kept, oldest first, and those to come; none is missing in between.
    async fn events(&self) -> (Vec<v1::Event>, broadcast::Receiver<v1::Event>);
    /// How often each kind of event happened.
    async fn event_counts(&self) -> Vec<(&'static str, u64)>;
    /// Someone who may not change anything tried to: an event (`change_denied`).
    async fn denied(&self, by: Uid, what: &'static str);
}
