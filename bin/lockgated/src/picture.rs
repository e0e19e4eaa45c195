//! A consistent picture of the running state. Readers take the latest one and never wait for a
//! change.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use config::validated::Validated;
use control::guard::Guard;
use control::{Compiled, LiveParts};
use dataplane::Snapshot;
use dataplane::carve_out::Reserved;
use linux::View;

use crate::backend::{ChangeError, WaitingChange};
use crate::cards::NetdevCard;
use crate::config_file::KnownDrift;
use crate::history::History;
use crate::ike_names::IkeNames;
use crate::liveness::Liveness;
use crate::netdev::Netdev;
use crate::revisions::Revisions;
use crate::sa_activity::SaActivity;
use crate::totals::Totals;
use crate::worker::{Report, WorkerGone};
use crate::workers::Workers;

/// A picture of the running state at one moment. Its parts are shared with the control thread.
pub(crate) struct Picture {
    /// The configuration file that was started with.
    pub(crate) file: Arc<Path>,
    /// The directory that a relative `keys_dir` of the running configuration is relative to.
    pub(crate) base: Arc<Path>,
    pub(crate) started: SystemTime,
    pub(crate) since: Instant,
    pub(crate) revision: u64,
    /// The revision that the running one brought back.
    pub(crate) restored: Option<u64>,
    pub(crate) revisions: Arc<Revisions>,
    /// A change that waits to be confirmed.
    pub(crate) pending: Option<AwaitedConfirmation>,
    /// Differences between the daemon's file and the running configuration, as far as known.
    pub(crate) drift: Option<Arc<KnownDrift>>,
    /// Troubles that last, one sentence each.
    pub(crate) lasting_troubles: Vec<String>,
    pub(crate) compiled: Compiled,
    pub(crate) view: Arc<View>,
    pub(crate) live: Arc<LiveParts>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) reserved: Reserved,
    /// Attached netdevs, by name.
    pub(crate) netdevs: Arc<BTreeMap<String, Netdev>>,
    /// Reason why a netdev could not be attached, by its name.
    pub(crate) troubles: Arc<HashMap<String, String>>,
    pub(crate) workers: Workers,
    /// Number of workers, from the first on, that serve queues.
    pub(crate) active: usize,
    /// Counts of workers under earlier snapshots.
    pub(crate) totals: Arc<Totals>,
    /// Counters of the last minute.
    pub(crate) history: Arc<History>,
    pub(crate) liveness: Arc<Liveness>,
    /// The last packet of each SA.
    pub(crate) sa_activity: SaActivity,
    /// Names of charon's SAs.
    pub(crate) ike_names: IkeNames,
    /// The network card of each netdev that is on one, by slot.
    pub(crate) netdev_cards: HashMap<u16, NetdevCard>,
    /// Names of cards that may still drop packets which the rules permit.
    pub(crate) unconfirmed: Vec<String>,
    /// Name of this run of the daemon.
    pub(crate) incarnation: Arc<str>,
    /// Number of times that each peer has moved since the start.
    pub(crate) moves: Arc<HashMap<String, u64>>,
    pub(crate) netlink_resyncs: u64,
    pub(crate) guard: Guard,
    /// State of the guard: `intact`, or `missing: ` and why.
    pub(crate) guard_state: Arc<str>,
    /// Policies that single changes took away since the start.
    pub(crate) policies_removed: u64,
    pub(crate) stopping: bool,
}

/// A change that waits to be confirmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AwaitedConfirmation {
    pub(crate) revision: u64,
    /// The revision that is restored without a confirmation.
    pub(crate) previous: u64,
    /// The time at which it does.
    pub(crate) until: Instant,
}

impl AwaitedConfirmation {
    /// The change in the words of the API.
    pub(crate) fn waits(&self) -> WaitingChange {
        let AwaitedConfirmation { revision, previous, until } = *self;
        WaitingChange { revision, previous, left: until.saturating_duration_since(Instant::now()) }
    }
}

impl Picture {
    /// The running configuration without its policies, which are the compiled one's.
    pub(crate) fn config(&self) -> &Arc<Validated> {
        self.compiled.settings()
    }

    /// Refuses a change while another waits to be confirmed, and when the daemon ends.
    ///
    /// # Errors
    /// [`ChangeError::Stopping`], [`ChangeError::Waiting`].
    pub(crate) fn check_free(&self) -> Result<(), ChangeError> {
        match &self.pending {
            _ if self.stopping => Err(ChangeError::Stopping),
            Some(waiting) => Err(ChangeError::Waiting(waiting.waits())),
            None => Ok(()),
        }
    }

    /// Returns the workers' reports of now, if they still run on this picture's snapshot; `None`:
    /// they have gone over to another one.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn reports(&self) -> Result<Option<Vec<Report>>, WorkerGone> {
        let reports = self.workers.reports(&self.snapshot).await?;
        let is_of_this = |report: &Report| Arc::ptr_eq(&report.flushed.snapshot, &self.snapshot);
        Ok(reports.filter(|reports| reports.iter().all(is_of_this)))
    }

    /// Returns the counts since the start, over workers and snapshots.
    pub(crate) fn totals_with(&self, reports: &[Report]) -> Totals {
        let mut totals = Totals::clone(&self.totals);
        reports.iter().for_each(|report| totals.add(&report.flushed));
        totals
    }
}
