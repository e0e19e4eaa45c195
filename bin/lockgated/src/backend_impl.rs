//! The daemon as the API sees it: what runs, in the API's words.

use std::net::IpAddr;
use std::panic;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::v1;
use config::validated::OnExit;
use control::{IkeChange, KeyManager, SpiRequest};
use dataplane::Snapshot;
use dataplane::cache::{Key, Recall};
use dataplane::connections::Connection;
use ipsec::Spi;
use tokio::sync::{Mutex, broadcast, mpsc, oneshot, watch};
use wire::{Flow, Vni};

use crate::acquires::AcquireDesk;
use crate::api::port_name;
use crate::backend::{
    Backend, CacheQuestion, CaptureError, CaptureOrder, Change, ChangeError, ChangeReport,
    ConfirmError, ConnectionClearing, CountedState, ExportedText, Includes, Intent, Now,
    PolicyChange, Running, Save,
};
use crate::cache_report;
use crate::captures::Captures;
use crate::cards::CardPicture;
use crate::change::machine;
use crate::changer::Ask;
use crate::clock;
use crate::config_file::{KnownDrift, Target};
use crate::counted::CountedPicture;
use crate::endpoints::{ChangeSums, EndpointDesk};
use crate::events::{Events, Kind};
use crate::fair_turns::{FairTurns, TurnCounts, WorkCaller};
use crate::ike_changes::{IkeRefusal, MadeIke};
use crate::kernel_tier::KernelTier;
use crate::metrics::{self, GatheredParts, SourceFuture};
use crate::orders::{Order, Reply, SaOrder};
use crate::overview;
use crate::picture::{AwaitedConfirmation, Picture};
use crate::policies;
use crate::put_sas;
use crate::revision_texts::{RevisionTexts, text_of};
use crate::revisions::on_disk;
use crate::sa_changes::{ReserveError, Reserved, SaChange, SaDeletion, SaPut, SaRefusal};
use crate::save;
use crate::shown::{kernel_tier, neighbours, policies_in_order, ports};
use crate::state::State;
use crate::totals::{SaKey, Totals};
use crate::unconfirmed;
use crate::who::{ConnectionNumber, Uid};
use crate::worker::Report;

/// Number of attempts to ask the workers, each of which fails if one goes over to another snapshot
/// meanwhile; after that the control thread asks them, between two changes.
const ASKED_AGAIN: usize = 8;
/// Answers that threads for blocking work make of the workers' reports at a time.
const WORK_AT_A_TIME: TurnCounts =
    TurnCounts { root: 2, administrators: 2, readers: 2, scrapes: 1 };
/// Texts of configurations that are made at a time.
const TEXTS_AT_A_TIME: TurnCounts =
    TurnCounts { root: 1, administrators: 1, readers: 1, scrapes: 0 };
/// Time for which the answer to a change waits for cards that are to drop no more.
const CARD_WAIT: Duration = Duration::from_secs(2);
/// Time to wait for the picture of that snapshot.
const PICTURE_WAIT: Duration = Duration::from_millis(20);

/// The daemon for the API: the last picture of the running state, and channels to the threads that
/// change it.
pub(crate) struct Daemon {
    picture: watch::Receiver<Arc<Picture>>,
    orders: mpsc::Sender<Order>,
    asks: mpsc::UnboundedSender<Ask>,
    pub(crate) events: Events,
    desks: Desks,
    /// Captures that run.
    captures: Captures,
    /// Turns of callers whose answers are being made.
    turns: FairTurns,
    texts: Arc<RevisionTexts>,
    /// Turns of callers whose texts are being made.
    text_turns: FairTurns,
    /// The latest comparison with the daemon's file that a reader asked for.
    compared: Arc<Mutex<Option<Arc<KnownDrift>>>>,
}

/// Parts of the daemon that the API reaches without the control thread.
pub(crate) struct Desks {
    pub(crate) acquires: Arc<AcquireDesk>,
    pub(crate) endpoints: Arc<EndpointDesk>,
    pub(crate) tier: Arc<KernelTier>,
    /// SAs of charon that charon did not delete.
    pub(crate) deletions: broadcast::Sender<SaKey>,
}

impl Desks {
    pub(crate) fn of(state: &State) -> Desks {
        let (acquires, endpoints) = (state.acquires.clone(), state.endpoints.clone());
        let (tier, deletions) = (state.gateway.tier.clone(), state.deletions.clone());
        Desks { acquires, endpoints, tier, deletions }
    }
}

impl Daemon {
    pub(crate) fn new(
        picture: watch::Receiver<Arc<Picture>>,
        orders: mpsc::Sender<Order>,
        asks: mpsc::UnboundedSender<Ask>,
        events: Events,
        desks: Desks,
    ) -> Arc<Daemon> {
        let captures = Captures::default();
        let turns = FairTurns::new(WORK_AT_A_TIME);
        let text_turns = FairTurns::new(TEXTS_AT_A_TIME);
        let (texts, compared) = Default::default();
        Arc::new(Daemon {
            picture,
            orders,
            asks,
            events,
            desks,
            captures,
            turns,
            texts,
            text_turns,
            compared,
        })
    }

    /// Listens to deletions of charon's SAs by others.
    pub(crate) fn deletions(&self) -> broadcast::Receiver<SaKey> {
        self.desks.deletions.subscribe()
    }

    /// Returns the last picture of the running state, without waiting.
    pub(crate) fn picture(&self) -> Arc<Picture> {
        self.picture.borrow().clone()
    }

    /// Sends the control thread an order and returns its answer; `None`: the thread has ended.
    pub(crate) async fn order<T>(&self, order: impl FnOnce(Reply<T>) -> Order) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Releases an SPI that charon reserved for exchanges with a remote address and does not use.
    /// Returns whether the SPI was reserved so.
    pub(crate) async fn release_spi(&self, spi: Spi, remote: IpAddr) -> bool {
        let done = self.order(|reply| Order::Sas(SaOrder::Release { spi, remote, reply })).await;
        done.unwrap_or(false)
    }

    /// Asks for a change; `None`: the daemon ends.
    async fn ask<T>(&self, ask: impl FnOnce(Reply<T>) -> Ask) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(ask(reply)).ok()?;
        answer.await.ok()
    }

    /// Changes what charon makes by itself.
    ///
    /// # Errors
    /// [`IkeRefusal`].
    pub(crate) async fn change_ike(&self, change: IkeChange) -> Result<MadeIke, IkeRefusal> {
        let done = self.ask(|reply| Ask::Ike { change, put: None, reply }).await;
        done.unwrap_or(Err(IkeRefusal::Stopping))
    }

    /// Puts SAs for peers of charon's own that come with them: all or nothing.
    ///
    /// # Errors
    /// [`IkeRefusal`].
    pub(crate) async fn put_first_sas(
        &self,
        change: IkeChange,
        put: SaPut,
        by: Uid,
    ) -> Result<MadeIke, IkeRefusal> {
        let done = self.ask(|reply| Ask::Ike { change, put: Some(put), reply }).await;
        let done = done.unwrap_or(Err(IkeRefusal::Stopping));
        match &done {
            Ok(made) => put_sas::audit_put(&self.events, by, Ok(&made.sas)),
            Err(IkeRefusal::Sas(refusal)) => put_sas::audit_put(&self.events, by, Err(refusal)),
            // charon is told, and the answer is an event.
            Err(_) => {}
        }
        done
    }

    /// Returns the workers' reports of now. A worker that has ended ends the daemon; until then it
    /// has counted nothing.
    async fn reported(&self) -> (Arc<Picture>, Vec<Report>) {
        for _ in 0..ASKED_AGAIN {
            let mut shown = self.picture.clone();
            let picture = shown.borrow_and_update().clone();
            if let Some(reports) = picture.reports().await.unwrap_or_else(|_| Some(Vec::new())) {
                return (picture, reports);
            }
            // What was counted for the snapshot before is in the picture of the next.
            let _ = tokio::time::timeout(PICTURE_WAIT, shown.changed()).await;
        }
        let reports = self.order(|reply| Order::Count { reply }).await.unwrap_or_default();
        (self.picture(), reports)
    }

    /// Makes something of the workers' reports of now and the totals since the start, on a thread
    /// for blocking work: the control thread only passes messages. [`WORK_AT_A_TIME`] bounds the
    /// work, also the work of callers that have gone meanwhile.
    async fn counted<T: Send + 'static>(
        &self,
        caller: WorkCaller,
        make: impl FnOnce(CountedPicture) -> T + Send + 'static,
    ) -> T {
        let turn = self.turns.take(caller).await;
        let (picture, reports) = self.reported().await;
        let made = move || {
            let _turn = turn;
            make(CountedPicture::of(picture, reports))
        };
        let made = tokio::task::spawn_blocking(made).await;
        made.unwrap_or_else(|error| panic::resume_unwind(error.into_panic()))
    }

    /// Makes the report of a scrape.
    async fn metrics_report(&self) -> metrics::Report {
        let parts = GatheredParts {
            cards: self.cards().await,
            endpoints: self.desks.endpoints.counts().map(crate::api::sums).unwrap_or_default(),
            kernel_tier: self.desks.tier.report().map(kernel_tier),
            events: self.event_counts().await,
        };
        let status = |picture: &Picture| status(picture, v1::Drift::default());
        let make = move |counted: CountedPicture| {
            metrics::Report::of(status(&counted.picture), counted, parts)
        };
        self.counted(WorkCaller::Scrape, make).await
    }

    /// Returns the status without rates, peers and warnings.
    #[cfg(test)]
    pub(crate) async fn status(&self) -> v1::Status {
        let drift = self.drift().await;
        status(&self.picture(), drift)
    }

    /// Returns the ports without their counters. The number of policies does not matter.
    async fn port_states(&self) -> Vec<v1::Port> {
        let picture = self.picture();
        // A worker that has ended ends the daemon.
        let reports = picture.workers.brief_reports(&picture.snapshot).await.unwrap_or_default();
        ports(&picture, &reports, &Totals::default())
    }

    async fn apply_change(&self, change: Change, by: Uid) -> Result<ChangeReport, ChangeError> {
        let is_meant = change.intent == Intent::Apply;
        let done = self.ask(|reply| Ask::Apply { change, by, reply }).await;
        let mut done = done.unwrap_or(Err(ChangeError::Stopping))?;
        if is_meant {
            self.await_cards(&mut done).await;
        }
        Ok(done)
    }

    /// Waits until no card drops any more what the rules permit now, for a while; notes it if one
    /// may still do so.
    async fn await_cards(&self, done: &mut ChangeReport) {
        let mut shown = self.picture.clone();
        let confirmed = shown.wait_for(|picture| picture.unconfirmed.is_empty());
        if tokio::time::timeout(CARD_WAIT, confirmed).await.is_ok() {
            return;
        }
        let cards = self.picture().unconfirmed.join(", ");
        let note = format!(
            "card {cards} has not confirmed within {} s that it drops nothing any more which the \
             rules permit: it may still do so",
            CARD_WAIT.as_secs()
        );
        self.events.record(Kind::CardUnconfirmed, &cards, note.clone(), &[]);
        done.notes.push(note);
    }

    /// Makes a change of policies, with those that are asked for beside it, or judges it if it is
    /// not meant.
    async fn change_in_turn(
        &self,
        change: PolicyChange,
        by: Uid,
    ) -> Result<ChangeReport, ChangeError> {
        if change.intent == Intent::DryRun {
            let picture = self.picture();
            let judge = move || policies::judge(&picture, &change);
            return tokio::task::spawn_blocking(judge).await.map_err(machine)?;
        }
        let asked = |answer| Ask::Policies(policies::QueuedChange { change, by, answer });
        let (mut done, written) = self.ask(asked).await.unwrap_or(Err(ChangeError::Stopping))?;
        // The next changes need not wait for the disk.
        let (number, written) = (done.revision, on_disk(written).await);
        self.await_cards(&mut done).await;
        let lost = self.order(|reply| Order::Written { number, written, reply }).await;
        done.notes.extend(lost.flatten());
        Ok(done)
    }

    /// Applies the daemon's own file, as its user asks for by SIGHUP.
    pub(crate) async fn apply_own_file(&self) {
        let (file, by) = (self.picture().file.clone(), Uid(rustix::process::geteuid().as_raw()));
        let (name, base_directory) = (file.display().to_string(), config::base_of(&file).into());
        let read = tokio::task::spawn_blocking(move || config::read_text(&file)).await;
        let done = match read.map_err(machine).and_then(|read| Ok(read?)) {
            Err(unread) => Err(unread),
            Ok(text) => {
                let change = Change {
                    text,
                    file: name.clone(),
                    base_directory,
                    includes: Includes::BesideFile,
                    intent: Intent::Apply,
                    confirm: None,
                    save: Save::No,
                    only_after: None,
                };
                self.apply_change(change, by).await
            }
        };
        self.audit(by, [Kind::Applied, Kind::ApplyRefused], &name, &done);
    }

    async fn save_running(&self) -> Result<v1::Saved, ChangeError> {
        self.ask(|reply| Ask::Save { reply }).await.unwrap_or(Err(ChangeError::Stopping))
    }

    /// Makes a change and writes its own text to the daemon's file, comments and all. Whether the
    /// file can be written is found out before anything changes.
    async fn apply_and_save(&self, change: Change, by: Uid) -> Result<ChangeReport, ChangeError> {
        if change.intent == Intent::DryRun {
            return self.apply_change(change, by).await;
        }
        let picture = self.picture();
        let (text, name) = (change.text.clone(), change.file.clone());
        let (base, includes) = (change.base_directory.clone(), change.includes.clone());
        let prepare = move || {
            let (file, keys_dir) = (&picture.file, picture.keys_directory());
            // What is wrong with it is told where it is applied.
            if let Ok(parsed) = config::parse_with(&text, &name, includes.of(&base)) {
                save::check_file_text(&parsed, &text, file, &keys_dir)?;
            }
            Target::open(file).map(|target| (target, text))
        };
        let prepared = tokio::task::spawn_blocking(prepare).await.map_err(machine)?;
        let (target, text) = prepared.map_err(ChangeError::NotSaved)?;
        let mut done = self.apply_change(change, by).await?;
        let written = tokio::task::spawn_blocking(move || target.write(&text)).await;
        let written = written.map_err(machine)?;
        let saved = written.map_err(ChangeError::NotSaved).map(|file| v1::Saved {
            file: file.display().to_string(),
            revision: done.revision,
            unchanged: false,
        });
        save::audit(&self.events, by, &saved);
        done.take_saved(saved);
        Ok(done)
    }

    /// Makes a change of policies and writes what then runs to the daemon's file.
    async fn change_and_save(
        &self,
        change: PolicyChange,
        by: Uid,
    ) -> Result<ChangeReport, ChangeError> {
        let file = self.picture().file.clone();
        let can_write = move || Target::open(&file).map(drop);
        let can_write = tokio::task::spawn_blocking(can_write).await.map_err(machine)?;
        can_write.map_err(ChangeError::NotSaved)?;
        let mut done = self.change_in_turn(change, by).await?;
        let saved = self.save_running().await;
        save::audit(&self.events, by, &saved);
        done.take_saved(saved);
        Ok(done)
    }

    /// Compares what runs with the daemon's file. Costs a look at the file, and the comparison if
    /// either changed since. One comparison is made at a time, also if a reader goes away.
    async fn drift(&self) -> v1::Drift {
        let picture = self.picture();
        if let Some(drift) = known_drift(picture.drift.as_deref(), &picture) {
            return drift;
        }
        let mut latest = self.compared.clone().lock_owned().await;
        let picture = self.picture();
        if let Some(drift) = known_drift(latest.as_deref(), &picture) {
            return drift;
        }
        let compare = move || {
            let known = Arc::new(save::compared(&picture));
            *latest = Some(known.clone());
            known
        };
        let compared = tokio::task::spawn_blocking(compare).await;
        let Ok(known) = compared else { return v1::Drift::default() };
        let drift = known.drift().clone();
        let (reply, _) = oneshot::channel();
        // The next question need not compare again; this one does not wait for it.
        let _ = self.orders.try_send(Order::Compared { known, reply });
        drift
    }

    fn audit(
        &self,
        by: Uid,
        kinds: [Kind; 2],
        subject: &str,
        done: &Result<ChangeReport, ChangeError>,
    ) {
        let [made, refused] = kinds;
        match done {
            Ok(done) => {
                let changes = match done.differences.len() + done.key_changes.len() {
                    _ if done.unchanged => "unchanged".to_owned(),
                    1 => "1 change".to_owned(),
                    many => format!("{many} changes"),
                };
                let mut message = format!("revision {}: {changes}", done.revision);
                // Which peers have other keys; refused keys have events of their own.
                if let Some(note) = done.notes.first() {
                    message.push_str("; ");
                    message.push_str(note);
                }
                let details: crate::events::Details<'_> =
                    &[("revision", &done.revision), ("generation", &done.generation.0)];
                self.events.audit(by, made, subject, message, details);
            }
            Err(error) => self.events.audit(by, refused, subject, error.for_event(), &[]),
        }
    }
}

#[cfg(test)]
impl Daemon {
    /// All SAs.
    pub(crate) async fn security_associations(&self) -> Vec<v1::SecurityAssociation> {
        Arc::new(self.counted_state(WorkCaller::Administrator(0)).await).sas().collect()
    }

    /// Asks the key managers for an SA, as the control thread does for a worker.
    pub(crate) fn ask_for_sa(&self, asked: &dataplane::AcquireRequest, peer: &str) {
        self.desks.acquires.ask(std::time::Instant::now(), asked, peer);
    }
}

impl Daemon {
    /// Tells of a change of single policies: each with its action, and what it takes from whom.
    fn audit_policies(&self, by: Uid, done: &ChangeReport) {
        let mut message = format!("revision {}: {}", done.revision, done.policies.text);
        for sentence in done.takeovers.sentences() {
            message.push_str("; ");
            message.push_str(&sentence);
        }
        let from: Vec<&str> = done.takeovers.found.iter().map(|one| one.from.as_str()).collect();
        let takes_from = from.join(", ");
        let (revision, generation) = (&done.revision, &done.generation.0);
        let details: crate::events::Details<'_> = match done.takeovers.found.is_empty() {
            true => &[("revision", revision), ("generation", generation)],
            false => {
                &[("revision", revision), ("generation", generation), ("takes_from", &takes_from)]
            }
        };
        self.events.audit(by, Kind::PoliciesChanged, &done.policies.subject, message, details);
    }
}

impl metrics::ScrapeSource for Daemon {
    fn report(self: Arc<Self>) -> SourceFuture<metrics::Report> {
        Box::pin(async move { self.metrics_report().await })
    }

    fn ports(self: Arc<Self>) -> SourceFuture<Vec<v1::Port>> {
        Box::pin(async move { self.port_states().await })
    }
}

#[tonic::async_trait]
impl Backend for Daemon {
    async fn running(&self, caller: WorkCaller) -> Running {
        self.counted(caller, CountedPicture::into_running).await
    }

    async fn counted_state(&self, caller: WorkCaller) -> CountedState {
        self.counted(caller, CountedPicture::into_state).await
    }

    async fn snapshot(&self) -> Arc<Snapshot> {
        self.picture().snapshot.clone()
    }

    async fn clear_connections(&self, clearing: ConnectionClearing, by: Uid) -> Option<u64> {
        let ConnectionClearing { filter, filter_text } = clearing;
        let snapshot = self.picture().snapshot.clone();
        // A look at a large table takes a while, and this thread has other things to do.
        let clear = tokio::task::spawn_blocking(move || {
            let Some(connections) = snapshot.connections() else { return 0 };
            let passes = |it: &Connection| filter.passes(it, port_name(&snapshot, it));
            connections.clear(clock::now_s(), passes) as u64
        });
        let removed = clear.await.ok()?;
        self.order(|reply| Order::Exchange { reply }).await?;
        let message = format!("uid {} removed {removed} connections", by.0);
        let filter = if filter_text.is_empty() { "none" } else { &filter_text };
        let details: crate::events::Details<'_> =
            &[("filter", &filter), ("removed", &removed), ("uid", &by.0)];
        self.events.record(Kind::ConnectionsCleared, "", message, details);
        Some(removed)
    }

    async fn now(&self) -> Now {
        let picture = self.picture();
        Now { revision: picture.revision, generation: picture.snapshot.generation() }
    }

    async fn overview(&self, caller: WorkCaller) -> v1::Status {
        let drift = self.drift().await;
        self.counted(caller, move |counted| {
            let picture = counted.picture.clone();
            let mut status = status(&picture, drift);
            status.connections = picture.snapshot.connections().map(crate::api::totals);
            let (ports, sas): (_, Vec<_>) = (counted.ports(), counted.sas().collect());
            let peers: Vec<_> = crate::api::peers(Arc::new(counted.into_state())).collect();
            overview::fill(&picture, &mut status, &ports, &peers, &sas);
            status
        })
        .await
    }

    async fn ports(&self, caller: WorkCaller) -> Vec<v1::Port> {
        self.counted(caller, |counted| counted.ports()).await
    }

    async fn neighbours(&self) -> Vec<v1::Neighbour> {
        let picture = self.picture();
        let presented = tokio::task::spawn_blocking(move || neighbours(&picture)).await;
        presented.unwrap_or_else(|error| panic::resume_unwind(error.into_panic()))
    }

    async fn cache(&self) -> v1::Cache {
        let picture = self.picture();
        let reports = picture.workers.brief_reports(&picture.snapshot).await;
        cache_report::cache(&picture, &reports.unwrap_or_default())
    }

    async fn cache_entries(&self, question: CacheQuestion) -> Option<v1::CachedFlows> {
        cache_report::flows(&self.picture(), question).await
    }

    async fn recall(&self, keys: Vec<Key>) -> Vec<Option<Vec<Recall>>> {
        self.picture().workers.recall(&keys).await
    }

    async fn kernel_standing(&self, vni: Vni, flow: Flow) -> String {
        self.desks.tier.standing(vni, &flow)
    }

    async fn cards(&self) -> Vec<CardPicture> {
        self.order(|reply| Order::Cards { reply }).await.unwrap_or_default()
    }

    async fn policies_in_order(&self, caller: WorkCaller) -> Vec<v1::PlacedPolicy> {
        let order = |counted: CountedPicture| policies_in_order(&counted.picture, &counted.totals);
        self.counted(caller, order).await
    }

    async fn counters(&self, caller: WorkCaller) -> v1::Counters {
        let counters = self.counted(caller, |counted| counted.counters()).await;
        v1::Counters { kernel_tier: self.desks.tier.report().map(kernel_tier), ..counters }
    }

    async fn export(&self, caller: WorkCaller, revision: Option<u64>) -> Option<ExportedText> {
        let picture = self.picture();
        let revision = revision.unwrap_or(picture.revision);
        let base = match revision == picture.revision {
            true => picture.base.to_path_buf(),
            false => picture.revisions.find(revision)?.base.clone(),
        };
        let text = match self.texts.held(revision) {
            Some(text) => text,
            None => {
                let turn = self.text_turns.take(caller).await;
                let texts = self.texts.clone();
                // The turn lasts until the text is made, also if the reader goes away.
                let make = async move {
                    let _turn = turn;
                    match texts.held(revision) {
                        Some(text) => Some(text),
                        None => Some(texts.hold(revision, text_of(picture, revision).await?)),
                    }
                };
                tokio::spawn(make).await.ok()??
            }
        };
        let base_directory = base.display().to_string();
        Some(ExportedText { text, revision, base_directory })
    }

    async fn revisions(&self) -> Vec<v1::Revision> {
        let picture = self.picture();
        let newest_first = picture.revisions.all().rev();
        newest_first
            .map(|kept| v1::Revision {
                revision: kept.number,
                time: rfc3339(kept.time),
                uid: kept.uid,
                cause: kept.cause.name().into(),
                file: kept.file.clone(),
                running: kept.number == picture.revision,
                changes: kept.changes,
                restored: kept.restored,
            })
            .collect()
    }

    async fn apply(&self, change: Change, by: Uid) -> Result<ChangeReport, ChangeError> {
        let (file, intent) = (change.file.clone(), change.intent);
        let done = match change.save {
            Save::No => self.apply_change(change, by).await,
            Save::Yes => self.apply_and_save(change, by).await,
        };
        if intent == Intent::Apply {
            self.audit(by, [Kind::Applied, Kind::ApplyRefused], &file, &done);
        }
        done
    }

    async fn change_policies(
        &self,
        change: PolicyChange,
        by: Uid,
    ) -> Result<ChangeReport, ChangeError> {
        let intent = change.intent;
        let asked = change.remove.first().unwrap_or(&change.file).clone();
        let done = match (change.save, intent) {
            (Save::Yes, Intent::Apply) => self.change_and_save(change, by).await,
            _ => self.change_in_turn(change, by).await,
        };
        match &done {
            // A dry run is no event.
            _ if intent == Intent::DryRun => {}
            Ok(done) => self.audit_policies(by, done),
            Err(error) => {
                let subject = match error {
                    ChangeError::Takes(takeovers) => takeovers.found.first().map(|one| &one.by),
                    _ => None,
                };
                let (kind, message) = (Kind::PoliciesRefused, error.for_event());
                self.events.audit(by, kind, subject.unwrap_or(&asked), message, &[]);
            }
        }
        done
    }

    async fn put_sas(&self, put: SaPut, by: Uid) -> Result<SaChange, SaRefusal> {
        let done = self.order(|reply| Order::Sas(SaOrder::Put { put, reply })).await;
        let done = done.unwrap_or(Err(SaRefusal::Stopping));
        put_sas::audit_put(&self.events, by, done.as_ref());
        done
    }

    async fn delete_sas(&self, deletion: SaDeletion, by: Uid) -> Result<SaChange, SaRefusal> {
        let is_charons = deletion.manager == KeyManager::Ike;
        let done = self.order(|reply| Order::Sas(SaOrder::Delete { deletion, reply })).await;
        let done = done.unwrap_or(Err(SaRefusal::Stopping));
        if let (Ok(done), false) = (&done, is_charons) {
            let names = self.picture().ike_names.clone();
            for gone in done.gone.iter().filter(|gone| names.has(gone)) {
                // Nobody listens where no charon may come.
                let _ = self.desks.deletions.send(gone.clone());
            }
        }
        put_sas::audit_deletion(&self.events, by, &done);
        done
    }

    async fn reserve_spi(&self, asked: SpiRequest) -> Result<Reserved, ReserveError> {
        let done = self.order(|reply| Order::Sas(SaOrder::Reserve { asked, reply })).await;
        done.unwrap_or(Err(ReserveError::Stopping))
    }

    async fn confirm(
        &self,
        revision: Option<u64>,
        over: ConnectionNumber,
        by: Uid,
    ) -> Result<u64, ConfirmError> {
        let done = self.ask(|reply| Ask::Confirm { revision, over, reply }).await;
        let done = done.unwrap_or(Err(ConfirmError::Stopping));
        unconfirmed::audit(&self.events, by, &done);
        done
    }

    async fn save(&self, by: Uid) -> Result<v1::Saved, ChangeError> {
        let done = self.save_running().await;
        save::audit(&self.events, by, &done);
        done
    }

    async fn rollback(&self, revision: Option<u64>, by: Uid) -> Result<ChangeReport, ChangeError> {
        let done = self.ask(|reply| Ask::RollBack { revision, by, reply }).await;
        let mut done = done.unwrap_or(Err(ChangeError::Stopping));
        if let Ok(done) = &mut done {
            self.await_cards(done).await;
        }
        let subject = revision.map(|number| number.to_string()).unwrap_or_default();
        self.audit(by, [Kind::RolledBack, Kind::RollbackRefused], &subject, &done);
        done
    }

    async fn events(&self) -> (Vec<v1::Event>, broadcast::Receiver<v1::Event>) {
        self.events.subscribe()
    }

    fn endpoints(&self) -> Arc<EndpointDesk> {
        self.desks.endpoints.clone()
    }

    fn endpoints_changed(&self, by: Uid, sums: ChangeSums) {
        let ChangeSums { applied, repeated, stale, refused } = sums;
        let message = format!(
            "{applied} changes of endpoints were made, {repeated} were made before, {stale} are \
             out of date, {refused} were refused"
        );
        let details: crate::events::Details<'_> =
            &[("applied", &applied), ("stale", &stale), ("refused", &refused)];
        self.events.audit(by, Kind::EndpointsChanged, "", message, details);
    }

    async fn acquires(&self) -> (Vec<v1::Acquire>, broadcast::Receiver<v1::Acquire>) {
        self.desks.acquires.listen()
    }

    async fn event_counts(&self) -> Vec<(&'static str, u64)> {
        self.events.counts().into_iter().map(|(kind, count)| (kind.name(), count)).collect()
    }

    async fn capture(
        &self,
        order: CaptureOrder,
        by: Uid,
    ) -> Result<mpsc::Receiver<v1::Captured>, CaptureError> {
        self.captures.begin(&self.picture(), (order, by), self.events.clone())
    }

    async fn denied(&self, by: Uid, what: &'static str) {
        let message = format!("user {} may not {what}: neither root nor in lockgate-admin", by.0);
        self.events.audit(by, Kind::ChangeDenied, what, message, &[]);
    }
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

/// Returns an earlier comparison of a picture with the daemon's file, if neither changed since.
fn known_drift(known: Option<&KnownDrift>, picture: &Picture) -> Option<v1::Drift> {
    known?.still(&picture.file, picture.revision).cloned()
}

fn status(picture: &Picture, drift: v1::Drift) -> v1::Status {
    v1::Status {
        node: picture.config().node.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        uptime_ms: picture.since.elapsed().as_millis() as u64,
        started: rfc3339(picture.started),
        revision: picture.revision,
        generation: picture.snapshot.generation().0,
        workers: picture.active as u32,
        on_exit: match picture.config().node.on_exit {
            OnExit::Closed => "closed".into(),
            OnExit::Open => "open".into(),
        },
        guard: picture.guard_state.to_string(),
        config_file: picture.file.display().to_string(),
        waiting: picture.pending.as_ref().map(AwaitedConfirmation::waits).map(crate::api::waiting),
        drift: Some(drift),
        troubles: picture.lasting_troubles.clone(),
        incarnation: picture.incarnation.to_string(),
        ..v1::Status::default()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::gateway::simulated::Simulated;
    use crate::test_lab::{PEER, RunningLab, configuration};

    const READER: WorkCaller = WorkCaller::Reader(Some(7));
    const LAN: &str = "[port.lan]\nnetdev = \"eth1\"\nside = \"protected\"\n";

    /// A daemon over a simulated machine.
    struct Lab {
        folder: tempfile::TempDir,
        machine: Simulated,
        daemon: Arc<Daemon>,
    }

    impl Lab {
        fn new() -> Lab {
            let RunningLab { folder, machine, daemon, .. } = RunningLab::new(LAN);
            Lab { folder, machine, daemon }
        }

        /// Applies the configuration with another name of the node, and with more behind it.
        fn apply(&self, more: &str) -> JoinHandle<Result<ChangeReport, ChangeError>> {
            let change = Change {
                text: configuration(&self.folder, "other", &format!("{LAN}{more}")),
                file: "test".into(),
                base_directory: self.folder.path().into(),
                includes: Includes::BesideFile,
                intent: Intent::Apply,
                confirm: None,
                save: Save::No,
                only_after: None,
            };
            let daemon = self.daemon.clone();
            tokio::spawn(async move { daemon.apply(change, Uid(0)).await })
        }
    }

    #[tokio::test]
    async fn who_only_looks_waits_for_no_change() {
        let lab = Lab::new();
        let (daemon, machine) = (&lab.daemon, &lab.machine);
        let held_up = Arc::new(Semaphore::new(0));
        machine.world().held_up = Some(held_up.clone());
        let apply = lab.apply("");
        while machine.world().guards_waiting == 0 && !apply.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The change is half made, and goes no further before it is let.
        assert_eq!(daemon.overview(READER).await.node, "gw");
        assert_eq!(daemon.ports(READER).await.len(), 2);
        assert_eq!(daemon.now().await.revision, 0);
        daemon.counters(READER).await;
        daemon.security_associations().await;
        assert!(daemon.export(READER, None).await.unwrap().text.contains("\"gw\""));
        assert!(!apply.is_finished());
        held_up.add_permits(8);
        let done = apply.await.unwrap().unwrap();
        assert_eq!(daemon.now().await.revision, done.revision);
        assert_eq!(daemon.status().await.node, "other");
    }

    /// Work of a caller that goes on until the sender is dropped.
    async fn begin_held_work(
        daemon: &Arc<Daemon>,
        caller: WorkCaller,
    ) -> (JoinHandle<()>, std::sync::mpsc::Sender<()>) {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = oneshot::channel();
        let work = move |_| {
            let _ = begin.send(());
            let _ = released.recv();
        };
        let daemon = daemon.clone();
        let work = tokio::spawn(async move { daemon.counted(caller, work).await });
        begun.await.unwrap();
        (work, release)
    }

    #[tokio::test]
    async fn work_of_a_reader_who_has_gone_keeps_its_turn() {
        let lab = Lab::new();
        let (work, release) = begin_held_work(&lab.daemon, READER).await;
        work.abort();
        assert!(work.await.unwrap_err().is_cancelled());
        assert_eq!(lab.daemon.turns.users(), 1);
        drop(release);
        while lab.daemon.turns.users() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn readers_delay_neither_administrators_nor_scrapes() {
        let lab = Lab::new();
        let mut held = Vec::new();
        for user in 0..WORK_AT_A_TIME.readers as u32 {
            held.push(begin_held_work(&lab.daemon, WorkCaller::Reader(Some(1000 + user))).await);
        }
        let overview = lab.daemon.overview(READER);
        let mut overview = std::pin::pin!(overview);
        for caller in [WorkCaller::Administrator(0), WorkCaller::Administrator(64_000)] {
            assert_eq!(lab.daemon.overview(caller).await.node, "gw");
            assert_eq!(
                lab.daemon.counted_state(caller).await.running.spis,
                control::Spis::Configured
            );
        }
        assert_eq!(lab.daemon.metrics_report().await.ports.len(), 2);
        tokio::select! {
            biased;
            _ = &mut overview => panic!("all turns of readers are taken"),
            () = tokio::task::yield_now() => {}
        }
        held.clear();
        assert_eq!(overview.await.node, "gw");
    }

    #[tokio::test]
    async fn who_only_looks_waits_for_no_record_of_a_new_key() {
        let lab = Lab::new();
        let folder = lab.folder.path();
        // Writing a record blocks until somebody reads this pipe.
        let slow = folder.join(".a.keys.used.new");
        assert!(std::process::Command::new("mkfifo").arg(&slow).status().unwrap().success());
        let last_moment = slow.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(20));
            std::fs::File::open(last_moment)
        });
        let begun = std::time::Instant::now();
        let apply = lab.apply(PEER);
        let is_reserved = || {
            std::fs::read_dir(folder.join("state/sequence")).unwrap().any(|file| {
                file.unwrap().path().extension().is_some_and(|extension| extension == "out")
            })
        };
        while !is_reserved() && !apply.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(lab.daemon.overview(READER).await.node, "gw");
        assert!(!apply.is_finished() && begun.elapsed() < Duration::from_secs(10));
        let read = tokio::task::spawn_blocking(move || std::fs::read(slow));
        apply.await.unwrap().unwrap();
        drop(read);
        assert_eq!(lab.daemon.status().await.node, "other");
    }
}
