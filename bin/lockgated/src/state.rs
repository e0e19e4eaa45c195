//! The state that the control thread owns: the gateway, and all that is known about it. Only that
//! thread changes it; others send an [`Order`](crate::orders::Order) to change it and take the
//! [`Picture`] to read it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use config::validated::Validated;
use control::{MovedEnds, PeerEnds, ReservedSpis, SaName};
use dataplane::{AcquireRequest, AddressUpdate};
use ipsec::Fingerprint;
use keystate::{KeyState, Notice};
use tokio::sync::{Mutex, broadcast, watch};
use tokio::task::JoinHandle;

use crate::acquires::{self, AcquireDesk};
use crate::cache_memory;
use crate::checksums::ChecksumEvents;
use crate::config_file::KnownDrift;
use crate::connections::RefusedSoFar;
use crate::endpoints::EndpointDesk;
use crate::events::{Events, Kind};
use crate::freeing::free_aside;
use crate::gateway::{Gateway, MAX_SEEN_ELSEWHERE, MoveRefusal, SeenElsewhere};
use crate::growth::Growth;
use crate::history::History;
use crate::ike_names::IkeNames;
use crate::kept_connections::KeptConnections;
use crate::liveness::Liveness;
use crate::look::Looked;
use crate::netdev::Claim;
use crate::path_mtus::PathMtuEvents;
use crate::picture::Picture;
use crate::reservations::Keys;
use crate::revisions::Revisions;
use crate::sa_activity::SaActivity;
use crate::sa_changes::new_incarnation;
use crate::sa_limits::MAX_EXPIRIES;
use crate::sequence_usage::SequenceUsage;
use crate::totals::SaKey;
use crate::unconfirmed::{LastWait, Pending, Records};
use crate::waiting_put::WaitingPut;
use crate::worker::{Report, WorkerGone};
use crate::workers::Workers;

/// The shortest time between two replacements of full flow caches.
const RENEW_FULL_CACHES_EVERY: Duration = Duration::from_secs(60);

/// State that changes while the daemon runs; owned by the control thread.
pub(crate) struct State {
    pub(crate) gateway: Gateway,
    pub(crate) workers: Workers,
    /// The configuration file that was started with.
    pub(crate) file: Arc<Path>,
    /// The directory that a relative `keys_dir` of the running configuration is relative to.
    pub(crate) base: Arc<Path>,
    started: SystemTime,
    since: Instant,
    pub(crate) revision: u64,
    /// The revision that the running one brought back.
    pub(crate) restored: Option<u64>,
    pub(crate) revisions: Arc<Revisions>,
    /// A change that waits to be confirmed.
    pub(crate) pending: Option<Pending>,
    /// The end of the last one.
    pub(crate) last_wait: Option<LastWait>,
    /// The record that a restart goes by.
    pub(crate) records: Records,
    /// Differences between the daemon's file and the running configuration, as far as known.
    pub(crate) drift: Option<Arc<KnownDrift>>,
    /// The reason why the running configuration is not kept as a revision.
    pub(crate) not_kept: Option<String>,
    /// The reason why records of sequence numbers are not written.
    pub(crate) not_reserved: Option<String>,
    pub(crate) keys: Keys,
    /// Name of this run of the daemon: SAs are put for it and no other.
    pub(crate) incarnation: Arc<str>,
    /// SPIs that were promised.
    pub(crate) reserved_spis: ReservedSpis,
    /// A put that waits for cards.
    pub(crate) waiting_put: Option<WaitingPut>,
    /// Policies that single changes took away since the start.
    pub(crate) policies_removed: u64,
    /// Counters of the last minute.
    pub(crate) history: Arc<History>,
    pub(crate) liveness: Arc<Liveness>,
    /// The last packet of each SA.
    pub(crate) sa_activity: SaActivity,
    /// Names of charon's SAs.
    pub(crate) ike_names: IkeNames,
    /// Tells IKE of peers that were seen elsewhere.
    pub(crate) seen_elsewhere: broadcast::Sender<SeenElsewhere>,
    /// Tells charon of SAs that it did not delete.
    pub(crate) deletions: broadcast::Sender<SaKey>,
    /// The last mark reported of each sealing key's sequence numbers.
    pub(crate) usage_reported: HashMap<Fingerprint, SequenceUsage>,
    /// Events about wrong checksums so far.
    pub(crate) checksum_events: ChecksumEvents,
    /// Path MTUs that events have told of.
    pub(crate) path_mtu_events: PathMtuEvents,
    /// A look at all SAs that is under way.
    pub(crate) look: Option<JoinHandle<Looked>>,
    /// The file of connections that a restart goes by.
    pub(crate) kept_connections: KeptConnections,
    /// Connections that were refused, as far as events say so.
    pub(crate) refused_connections: RefusedSoFar,
    pub(crate) netlink_resyncs: u64,
    pub(crate) stopping: bool,
    /// The time at which flow caches last were to be replaced because they were full of verdicts.
    cache_filled: Option<Instant>,
    pub(crate) growth: Growth,
    /// Names and sockets of the cards that the daemon started with.
    pub(crate) card_sockets: Vec<(String, PathBuf)>,
    pub(crate) events: Events,
    /// Requests for SAs.
    pub(crate) acquires: Arc<AcquireDesk>,
    /// Endpoints of virtual networks.
    pub(crate) endpoints: Arc<EndpointDesk>,
    picture: Option<watch::Sender<Arc<Picture>>>,
    /// The claim on the namespace, kept as long as this process has the guard and the host port.
    _namespace: Claim,
}

/// The parts that the state is made of at the start.
pub(crate) struct StateParts {
    pub(crate) gateway: Gateway,
    pub(crate) workers: Workers,
    pub(crate) file: PathBuf,
    pub(crate) base: PathBuf,
    pub(crate) revisions: Revisions,
    pub(crate) keystate: KeyState,
    pub(crate) events: Events,
    pub(crate) acquires: Arc<AcquireDesk>,
    pub(crate) endpoints: Arc<EndpointDesk>,
    pub(crate) namespace: Claim,
}

impl State {
    pub(crate) fn new(parts: StateParts) -> State {
        let StateParts { gateway, workers, file, base, revisions, .. } = parts;
        let StateParts { keystate, events, acquires, endpoints, namespace, .. } = parts;
        let node = &gateway.config().node;
        let records = Records::new(&node.state_dir);
        let kept_connections = KeptConnections::new(&node.run_dir);
        let refused_connections = gateway.snapshot.connections().map(RefusedSoFar::of);
        let cards = gateway.config().cards.iter();
        let card_sockets = cards.filter_map(|card| Some((card.name.clone(), card.socket.clone()?)));
        let card_sockets = card_sockets.collect();
        State {
            gateway,
            workers,
            file: file.into(),
            base: base.into(),
            started: SystemTime::now(),
            since: Instant::now(),
            revision: 0,
            restored: None,
            revisions: revisions.into(),
            pending: None,
            last_wait: None,
            records,
            drift: None,
            not_kept: None,
            not_reserved: None,
            keys: Arc::new(Mutex::new(keystate)),
            incarnation: new_incarnation(),
            reserved_spis: ReservedSpis::default(),
            waiting_put: None,
            policies_removed: 0,
            history: Arc::default(),
            liveness: Arc::default(),
            sa_activity: SaActivity::default(),
            ike_names: IkeNames::default(),
            seen_elsewhere: broadcast::channel(MAX_SEEN_ELSEWHERE).0,
            deletions: broadcast::channel(MAX_EXPIRIES).0,
            usage_reported: HashMap::new(),
            checksum_events: ChecksumEvents::default(),
            path_mtu_events: PathMtuEvents::default(),
            look: None,
            kept_connections,
            refused_connections: refused_connections.unwrap_or_default(),
            netlink_resyncs: 0,
            stopping: false,
            cache_filled: None,
            growth: Growth::default(),
            card_sockets,
            events,
            acquires,
            endpoints,
            picture: None,
            _namespace: namespace,
        }
    }

    /// The running configuration without its policies.
    pub(crate) fn config(&self) -> &Arc<Validated> {
        self.gateway.config()
    }

    /// Starts to publish the running state; [`State::show`] publishes changes.
    pub(crate) fn watched(&mut self) -> watch::Receiver<Arc<Picture>> {
        let (sender, receiver) = watch::channel(self.picture().into());
        self.picture = Some(sender);
        receiver
    }

    /// Passes on a worker's request for an SA.
    pub(crate) fn acquire(&self, asked: &AcquireRequest) {
        let set = control::set_of(&self.gateway.snapshot, asked.set);
        // It has gone meanwhile, or has an SA.
        let Some(set) = set.filter(|set| !self.gateway.snapshot.seals(set)) else { return };
        let outcome = self.acquires.ask(Instant::now(), asked, &set.peer);
        acquires::record(&self.events, &outcome, &asked.policy);
    }

    /// Removes requests for SAs that are there now, and expired ones.
    pub(crate) fn settle_acquires(&self) {
        let snapshot = &self.gateway.snapshot;
        let is_settled = |set| control::set_of(snapshot, set).is_none_or(|set| snapshot.seals(set));
        let expired = self.acquires.settle(Instant::now(), is_settled);
        acquires::record_expired(&self.events, &expired);
    }

    /// Publishes the current state to all readers.
    pub(crate) fn show(&self) {
        let Some(picture) = &self.picture else { return };
        let old = picture.send_replace(self.picture().into());
        if !Arc::ptr_eq(&old.snapshot, &self.gateway.snapshot) {
            // Perhaps the last that knows of very many policies.
            free_aside(old);
        }
    }

    /// Returns whether other cards than were shown may drop what the rules permit.
    pub(crate) fn has_other_unconfirmed_cards(&self) -> bool {
        let shown = self.picture.as_ref().map(|picture| picture.borrow().unconfirmed.clone());
        shown.is_some_and(|shown| shown != self.gateway.cards.unconfirmed())
    }

    /// Returns a picture of what runs now. Costs some dozen shared references.
    fn picture(&self) -> Picture {
        let gateway = &self.gateway;
        Picture {
            file: self.file.clone(),
            base: self.base.clone(),
            started: self.started,
            since: self.since,
            revision: self.revision,
            restored: self.restored,
            revisions: self.revisions.clone(),
            pending: self.pending.as_ref().map(Pending::waiting),
            drift: self.drift.clone(),
            lasting_troubles: self.lasting_troubles(),
            compiled: gateway.compiled.copied(),
            view: gateway.view.clone(),
            live: gateway.live.clone(),
            snapshot: gateway.snapshot.clone(),
            reserved: gateway.reserved.clone(),
            netdevs: gateway.netdevs.clone(),
            troubles: gateway.troubles.clone(),
            workers: self.workers.clone(),
            active: gateway.active,
            totals: gateway.totals.clone(),
            history: self.history.clone(),
            liveness: self.liveness.clone(),
            sa_activity: self.sa_activity.clone(),
            ike_names: self.ike_names.clone(),
            netdev_cards: gateway.cards.by_netdev(&gateway.snapshot),
            unconfirmed: gateway.cards.unconfirmed(),
            incarnation: self.incarnation.clone(),
            moves: gateway.moves.clone(),
            netlink_resyncs: self.netlink_resyncs,
            guard: gateway.guard.clone(),
            guard_state: gateway.guard_state.clone(),
            policies_removed: self.policies_removed,
            stopping: self.stopping,
        }
    }

    /// Troubles that last, one sentence each.
    fn lasting_troubles(&self) -> Vec<String> {
        let kept = self.not_kept.clone();
        let reserved = self.not_reserved.as_ref().map(|error| {
            format!("sequence numbers: {error}; SAs send until their reservations are used")
        });
        kept.into_iter().chain(reserved).collect()
    }

    /// Follows peers that moved. Returns whether there were any.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn peers_moved(
        &mut self,
        mut seen: Vec<AddressUpdate>,
    ) -> Result<bool, WorkerGone> {
        self.gateway.tell_ike(&mut seen, &self.seen_elsewhere);
        let made = self.gateway.peers_moved(&seen).await?;
        Ok(!made.is_empty())
    }

    /// Moves an SA to other ends, as IKE says.
    ///
    /// # Errors
    /// [`WorkerGone`]; inside, [`MoveRefusal`]: nothing was changed.
    pub(crate) async fn move_sa(
        &mut self,
        name: &SaName,
        to: PeerEnds,
    ) -> Result<Result<Option<MovedEnds>, MoveRefusal>, WorkerGone> {
        if self.stopping {
            return Ok(Err(MoveRefusal::Stopping));
        }
        self.gateway.move_sa(name, to).await
    }

    /// Orders fresh flow caches if one can number no further verdict and there is no larger one. At
    /// most once a minute: a sender of packets for many policies could otherwise keep the caches
    /// empty.
    pub(crate) fn renew_full_caches(&mut self, reports: &[Report]) {
        let most = cache_memory::most_entries(self.config().cache, reports.len());
        let is_last = |entries| self.growth.is_refused() || most.is_none_or(|most| entries >= most);
        let is_full = |report: &Report| {
            report.cache.as_ref().is_some_and(|cache| cache.is_full && is_last(cache.entries))
        };
        let is_due = self.cache_filled.is_none_or(|at| at.elapsed() >= RENEW_FULL_CACHES_EVERY);
        if is_due && reports.iter().any(is_full) {
            self.cache_filled = Some(Instant::now());
            self.gateway.caches_need_replacement = true;
        }
    }

    /// Records events for findings at the start: mismatches, and damaged records of keys.
    pub(crate) async fn report_beginning(&mut self) {
        for problem in &self.gateway.live.problems {
            self.events.record(Kind::Misfit, problem.subject(), problem.to_string(), &[]);
        }
        for Notice::SetAside { path } in self.keys.lock().await.take_notices() {
            let message = format!(
                "a record of sequence numbers was damaged and is {} now: keys that it recorded as \
                 used do not send until they are replaced (lockgate keygen)",
                path.display()
            );
            self.events.record(Kind::RecordSetAside, "", message, &[]);
        }
        self.gateway.report_guard();
    }
}
