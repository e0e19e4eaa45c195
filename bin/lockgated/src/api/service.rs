//! Serves each call: reads, or checks who asks and passes the change on.

use std::pin::Pin;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use api::v1::gateway_server::Gateway;
use api::{ADMIN_GROUP, DEFAULT_CACHE_ENTRIES, MAX_CACHE_ENTRIES, Page, v1};
use config::IncludedTexts;
use control::{DeadPort, KeyManager, Picture, Question, QuestionError, Routing};
use dataplane::explain::tag_unused;
use dataplane::{Prefix, Snapshot};
use policy::PolicyIndex;
use tokio::sync::{Mutex, watch};
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::wrappers::{BroadcastStream, ReceiverStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::call_limits::search_turns;
use super::held_answers::{AnswerReader, HeldParts};
use super::listen::ConnectionInfo;
use super::pages::Pages;
use super::present::PolicyOrder;
use super::shared_counts::{AnswerCounts, SHARED_TIME, SharedCounts, entries_in};
use super::{associations, capture, connections, endpoints, groups, pages, present};
use crate::backend::{
    Backend, CacheQuestion, CaptureError, Change, ConnectionClearing, Consent, EntryIter, Includes,
    Intent, PolicyChange, Save, ToConfirm,
};
use crate::cards::{self, placement};
use crate::events::{self, Filter};
use crate::fair_turns::{FairTurns, WorkCaller, WorkTurn};
use crate::freeing::FreedAside;
use crate::unconfirmed::confirm_time;
use crate::who::{ConnectionNumber, Uid};

/// Texts of configurations that the unread answers of a kind of caller hold.
const MAX_HELD_TEXTS: usize = 4;

/// The service.
pub(crate) struct Service<B> {
    backend: Arc<B>,
    /// Ends the streams when its sender is gone.
    ended: watch::Receiver<()>,
    /// Order of the policies of the latest snapshot that a reader asked for, while an answer
    /// holds it.
    policy_order: Arc<Mutex<Option<SharedOrder>>>,
    counts: SharedCounts,
    /// Turns of searches for a name.
    searches: FairTurns,
    /// Texts that unread answers hold.
    texts: std::sync::Mutex<HeldParts<str>>,
}

/// An order of policies with its snapshot.
type SharedOrder = (Weak<Snapshot>, Weak<[PolicyIndex]>);

impl<B: Backend> Service<B> {
    /// A service; its streams end when the sender of `ended` is dropped.
    pub(crate) fn new(backend: Arc<B>, ended: watch::Receiver<()>) -> Service<B> {
        Service::sharing(backend, ended, SHARED_TIME)
    }

    /// A service whose answers share counts up to an age.
    pub(super) fn sharing(
        backend: Arc<B>,
        ended: watch::Receiver<()>,
        shared_time: Duration,
    ) -> Service<B> {
        let counts = SharedCounts::new(shared_time);
        let (policy_order, searches) = (Arc::default(), search_turns());
        let texts = std::sync::Mutex::new(HeldParts::new(MAX_HELD_TEXTS));
        Service { backend, ended, policy_order, counts, searches, texts }
    }

    /// Returns the number of counts that answers hold.
    #[cfg(test)]
    pub(super) fn held_counts(&self) -> usize {
        self.counts.held()
    }

    /// Returns the counts for a long answer: from an unread answer of the user, or new.
    async fn counted_state<T>(&self, request: &Request<T>) -> AnswerCounts {
        let reader = reader_of(request);
        let _turn = self.counts.take_turn(reader.caller).await;
        let snapshot = self.backend.snapshot().await;
        if let Some(counts) = self.counts.find(&reader, &snapshot, Instant::now()) {
            return counts;
        }
        let counts = self.backend.counted_state(reader.caller).await;
        // The age begins now: many counts take long to make.
        self.counts.keep(&reader, counts, Instant::now())
    }

    /// Returns the order of a snapshot's policies, which all answers about the snapshot share. One
    /// order is made at a time, also if the reader has gone meanwhile.
    async fn policy_order(&self, snapshot: &Arc<Snapshot>) -> Result<PolicyOrder, Status> {
        let mut shared = self.policy_order.clone().lock_owned().await;
        let known = shared.as_ref().filter(|(of, _)| of.ptr_eq(&Arc::downgrade(snapshot)));
        if let Some(order) = known.and_then(|(_, order)| order.upgrade()) {
            return Ok(order);
        }
        let sorted = snapshot.clone();
        let sort = move || {
            let order = present::policy_order(&sorted);
            *shared = Some((Arc::downgrade(&sorted), Arc::downgrade(&order)));
            order
        };
        beside(sort).await
    }

    /// Returns the user who asks if that user may change what runs; else records an event and
    /// refuses.
    async fn admin<T>(&self, request: &Request<T>, what: &'static str) -> Result<Uid, Status> {
        let info = request.extensions().get::<ConnectionInfo>();
        let Some((info, peer)) = info.and_then(|info| Some((info, info.peer()?))) else {
            return Err(Status::permission_denied(
                "the kernel does not name the user of the connection",
            ));
        };
        let (by, may_change) = (peer.uid, info.may_change().await);
        if may_change {
            return Ok(by);
        }
        self.backend.denied(by, what).await;
        let text = format!("{what}: permission denied: be root or in group {ADMIN_GROUP}");
        Err(Status::permission_denied(text))
    }
}

/// The connection of a request. Each has one: only tests that make requests by hand lack it.
fn connection_of<T>(request: &Request<T>) -> ConnectionNumber {
    let info = request.extensions().get::<ConnectionInfo>();
    info.map_or(ConnectionNumber(0), |info| info.number)
}

/// Returns the caller in whose queues a request waits. Only requests by hand lack one.
fn caller_of<T>(request: &Request<T>) -> WorkCaller {
    request.extensions().get::<WorkCaller>().copied().unwrap_or(WorkCaller::Reader(None))
}

/// Returns the caller of a request with the end of the connection.
fn reader_of<T>(request: &Request<T>) -> AnswerReader {
    let info = request.extensions().get::<ConnectionInfo>();
    AnswerReader { caller: caller_of(request), end: info.map(|info| info.end.clone()) }
}

/// Runs a change to its end even if whoever asked goes away.
async fn to_its_end<T: Send + 'static>(
    change: impl Future<Output = T> + Send + 'static,
) -> Result<T, Status> {
    let task = tokio::spawn(change);
    task.await.map_err(|_| Status::internal("the change ended in an internal error: report it"))
}

/// Makes a long answer on a thread for blocking work, so that this one can serve others.
async fn beside<T: Send + 'static>(make: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    let made = tokio::task::spawn_blocking(make).await;
    made.map_err(|_| Status::internal("internal error: report it"))
}

fn microseconds_since(start: Instant) -> u64 {
    start.elapsed().as_micros().try_into().unwrap_or(u64::MAX)
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl<B: Backend> Gateway for Service<B> {
    async fn show_status(&self, request: Request<v1::ShowRequest>) -> Answer<v1::Status> {
        Ok(Response::new(self.backend.overview(caller_of(&request)).await))
    }

    async fn show_ports(&self, request: Request<v1::ShowRequest>) -> Answer<v1::Ports> {
        let ports = self.backend.ports(caller_of(&request)).await;
        let ports = named(ports, "port", request.into_inner().name, |port| &port.name)?;
        Ok(Response::new(v1::Ports { ports }))
    }

    type ShowPeersStream = Pages<v1::Peers>;

    async fn show_peers(&self, request: Request<v1::ShowRequest>) -> Answer<Self::ShowPeersStream> {
        let AnswerCounts { state, place } = self.counted_state(&request).await;
        let turn = self.searches.take(caller_of(&request)).await;
        let present = move || (entries_in(place, present::peers(state)), turn);
        let (peers, turn) = beside(present).await?;
        let name = request.into_inner().name;
        let peers = named_entries(peers, turn, "peer", name, |peer| &peer.name).await?;
        Ok(pages::answer(peers, self.ended.clone(), |peers| v1::Peers { peers }))
    }

    type ShowSecurityAssociationsStream = Pages<v1::SecurityAssociations>;

    async fn show_security_associations(
        &self,
        request: Request<v1::ShowRequest>,
    ) -> Answer<Self::ShowSecurityAssociationsStream> {
        let AnswerCounts { state, place } = self.counted_state(&request).await;
        let mut sas = entries_in(place, state.sas());
        drop(state);
        let caller = caller_of(&request);
        if let Some(name) = request.into_inner().name {
            let turn = self.searches.take(caller).await;
            let search = move || {
                let _turn = turn;
                associations::named(sas, &name)
            };
            let found = beside(search).await??;
            sas = Box::new(found.into_iter());
        }
        Ok(pages::answer(sas, self.ended.clone(), |sas| v1::SecurityAssociations { sas }))
    }

    type ShowPoliciesStream = Pages<v1::Policies>;

    async fn show_policies(
        &self,
        request: Request<v1::ShowRequest>,
    ) -> Answer<Self::ShowPoliciesStream> {
        let AnswerCounts { state, place } = self.counted_state(&request).await;
        let caller = caller_of(&request);
        let (name, running) = (request.into_inner().name, &state.running);
        let host = present::host_bypasses(running);
        let sums = present::action_volumes(running, 0..3);
        let cache_entries = running.cache_entries.clone();
        let order = self.policy_order(&running.snapshot).await?;
        let mut policies = entries_in(place, present::policies(state, order));
        if name.is_some() {
            let turn = self.searches.take(caller).await;
            let found = named_entries(policies, turn, "policy", name, |policy| &policy.name);
            policies = found.await?;
        }
        let mut first = v1::Policies { policies: Vec::new(), host, cache_entries, sums };
        Ok(pages::answer(policies, self.ended.clone(), move |policies| v1::Policies {
            policies,
            ..std::mem::take(&mut first)
        }))
    }

    async fn show_groups(&self, request: Request<v1::ShowRequest>) -> Answer<v1::Groups> {
        let running = self.backend.running(caller_of(&request)).await;
        let name = request.into_inner().name;
        let groups = beside(move || groups::groups(&running)).await?;
        let v1::Groups { groups, mut ports, sums } = groups;
        let groups = named(groups, "security group", name.clone(), |group| &group.name)?;
        if let Some(name) = name {
            ports.retain(|port| port.groups.contains(&name));
        }
        Ok(Response::new(v1::Groups { groups, ports, sums }))
    }

    type ShowPlacementStream = Pages<v1::Placement>;

    async fn show_placement(
        &self,
        request: Request<v1::ShowRequest>,
    ) -> Answer<Self::ShowPlacementStream> {
        let (caller, name) = (caller_of(&request), request.into_inner().name);
        let pictures = self.backend.cards().await;
        let (cards, mut rules) = beside(move || placement(&pictures)).await?;
        let policies = self.backend.policies_in_order(caller).await;
        let cards = named(cards, "card", name.clone(), |card| &card.name)?;
        if let Some(name) = name {
            // All policies stay: the order is that of all cards.
            rules.retain(|rule| rule.card == name);
        }
        let rules = rules.into_iter().map(present::Placed::Rule);
        let placed = rules.chain(policies.into_iter().map(present::Placed::Policy));
        let mut cards = Some(cards);
        Ok(pages::answer(Box::new(placed), self.ended.clone(), move |placed| {
            present::placement(cards.take().unwrap_or_default(), placed)
        }))
    }

    type ShowConnectionsStream = Pages<v1::ConnectionPage>;

    async fn show_connections(
        &self,
        request: Request<v1::ConnectionsRequest>,
    ) -> Answer<Self::ShowConnectionsStream> {
        let filter = connections::filter(&request.into_inner().filter)?;
        let stream = ReceiverStream::new(connections::stream(self.backend.clone(), filter));
        Ok(Response::new(Box::pin(until_ended(stream, self.ended.clone()))))
    }

    async fn clear_connections(
        &self,
        request: Request<v1::ConnectionsRequest>,
    ) -> Answer<v1::ConnectionsCleared> {
        let by = self.admin(&request, "clear connections").await?;
        let filter_text = request.into_inner().filter;
        let filter = connections::filter(&filter_text)?;
        let (backend, clearing) =
            (self.backend.clone(), ConnectionClearing { filter, filter_text });
        let removed = to_its_end(async move { backend.clear_connections(clearing, by).await });
        let stopping = || Status::failed_precondition("lockgated is stopping");
        let removed = removed.await?.ok_or_else(stopping)?;
        Ok(Response::new(v1::ConnectionsCleared { removed }))
    }

    async fn show_cache(&self, _: Request<v1::ShowRequest>) -> Answer<v1::Cache> {
        Ok(Response::new(self.backend.cache().await))
    }

    async fn show_cache_entries(
        &self,
        request: Request<v1::CacheEntriesRequest>,
    ) -> Answer<v1::CachedFlows> {
        let v1::CacheEntriesRequest { limit, worker, stale } = request.into_inner();
        let limit = match limit {
            0 => DEFAULT_CACHE_ENTRIES,
            limit if limit > MAX_CACHE_ENTRIES => {
                return Err(Status::invalid_argument(format!(
                    "at most {MAX_CACHE_ENTRIES} cache entries are shown at a time, not {limit}"
                )));
            }
            limit => limit,
        };
        let question = CacheQuestion {
            limit: limit as usize,
            worker: worker.map(|worker| worker as usize),
            stale,
        };
        let shown = self.backend.cache_entries(question).await;
        let unknown = || Status::not_found("there is no such worker: see `lockgate show cache`");
        Ok(Response::new(shown.ok_or_else(unknown)?))
    }

    async fn show_neighbours(&self, request: Request<v1::ShowRequest>) -> Answer<v1::Neighbours> {
        let all = self.backend.neighbours().await;
        let name = request.into_inner().name;
        let neighbours = named(all, "neighbour", name, |neighbour| &neighbour.address)?;
        Ok(Response::new(v1::Neighbours { neighbours }))
    }

    async fn show_routes(&self, request: Request<v1::ShowRequest>) -> Answer<v1::Routes> {
        let running = self.backend.running(caller_of(&request)).await;
        let name = request.into_inner().name;
        let list = move || named(present::routes(&running), "route", name, |route| &route.to);
        Ok(Response::new(v1::Routes { routes: beside(list).await?? }))
    }

    async fn show_counters(&self, request: Request<v1::ShowRequest>) -> Answer<v1::Counters> {
        let mut counters = self.backend.counters(caller_of(&request)).await;
        match request.into_inner().name {
            None => counters.drops.retain(|drop| drop.count > 0),
            name => counters.drops = named(counters.drops, "drop reason", name, |d| &d.name)?,
        }
        Ok(Response::new(counters))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Answer<v1::Explanation> {
        let (caller, request) = (caller_of(&request), request.into_inner());
        let flow = present::flow(&request).ok_or_else(|| {
            Status::invalid_argument("a flow needs two addresses of one family and a protocol")
        })?;
        let running = FreedAside::new(self.backend.running(caller).await);
        let prefixes: Vec<Prefix> = running.routes.keys().copied().collect();
        let (snapshot, spis) = (&*running.snapshot, running.spis);
        let is_dead = |port: &v1::Port| port.state != "up";
        let dead_ports: Vec<DeadPort> = self
            .backend
            .ports(caller)
            .await
            .into_iter()
            .filter(is_dead)
            .map(|port| DeadPort { name: port.name, state: port.state, reason: port.state_reason })
            .collect();
        let from_peer = request.from_peer.as_deref();
        let inside = present::inside(&request).map_err(Status::invalid_argument)?;
        let question = Question { port: &request.port, from_peer, flow, inside };
        let refused = |error: QuestionError| Status::invalid_argument(error.to_string());
        let now_ns = crate::clock::now_ns();
        let questions = control::questions((snapshot, now_ns), question).map_err(refused)?;
        let recalled = self.backend.recall(questions).await;
        let kernel_tier = match inside {
            Some(inside) => Some(self.backend.kernel_standing(inside.vni, flow).await),
            None => None,
        };
        let picture = Picture {
            snapshot,
            now_ns,
            prefixes: &prefixes,
            spis,
            routing: Routing::Known,
            dead_ports: &dead_ports,
            recalled: &recalled,
            kernel_tier: kernel_tier.as_deref(),
        };
        let mut told = control::explain(picture, question).map_err(refused)?;
        present::name_child(&mut told, &running);
        let mut answer = present::explanation(told);
        if inside.is_none() {
            let cards = self.backend.cards().await;
            // A packet that an SA opened came to no card's rules.
            if request.from_peer.is_none() {
                let family = if flow.family == wire::Family::V4 { 4 } else { 6 };
                let port = snapshot.port_named(&request.port);
                let unused = port.and_then(|port| tag_unused(snapshot, port, flow));
                cards::explain(&cards, (&request.port, family), unused, &mut answer);
            }
            cards::explain_carried(&cards, request.from_peer.as_deref(), &mut answer);
        }
        Ok(Response::new(answer))
    }

    type ExportStream = Pages<v1::Exported>;

    async fn export(&self, request: Request<v1::ExportRequest>) -> Answer<Self::ExportStream> {
        let (reader, revision) = (reader_of(&request), request.into_inner().revision);
        let exported = self.backend.export(reader.caller, revision).await.ok_or_else(|| {
            let asked = revision.map_or("that revision".into(), |n| format!("revision {n}"));
            Status::not_found(format!("{asked} is not kept: see `lockgate show revisions`"))
        })?;
        let place = {
            let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
            texts.hold(&reader, &exported.text, Instant::now())
        };
        let pieces = entries_in(place, present::exported(exported));
        Ok(pages::answer(pieces, self.ended.clone(), |pieces| {
            let whole = pieces.into_iter().reduce(|mut whole, piece| {
                whole.append(piece);
                whole
            });
            whole.unwrap_or_default()
        }))
    }

    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Answer<v1::Applied> {
        let start = Instant::now();
        let by = self.admin(&request, "apply").await?;
        let asked_over = connection_of(&request);
        let request = request.into_inner();
        let v1::ApplyRequest { text, file, base_directory, dry_run, .. } = request;
        let v1::ApplyRequest { confirm_within_s, save, only_after, included, .. } = request;
        let intent = if dry_run { Intent::DryRun } else { Intent::Apply };
        let save = if save { Save::Yes } else { Save::No };
        let confirm = match confirm_within_s {
            0 => None,
            _ if save == Save::Yes => {
                let text = "a revision that waits to be confirmed is not saved: run `lockgate \
                            save` after `lockgate confirm`";
                return Err(Status::invalid_argument(text));
            }
            seconds => {
                let within = confirm_time(seconds.into());
                let within = within.map_err(|error| Status::invalid_argument(error.to_string()))?;
                Some(ToConfirm { within, asked_over })
            }
        };
        let base_directory = std::path::PathBuf::from(base_directory);
        if !base_directory.is_absolute() {
            let text = "base_directory must be absolute: a relative keys_dir starts there";
            return Err(Status::invalid_argument(text));
        }
        let backend = self.backend.clone();
        let includes = Includes::Sent(included_texts(included));
        let change =
            Change { text, file, base_directory, includes, intent, confirm, save, only_after };
        let result = to_its_end(async move { backend.apply(change, by).await }).await?;
        let took_us = microseconds_since(start);
        let now = self.backend.now().await;
        Ok(Response::new(present::applied(result, intent, now, took_us)))
    }

    async fn change_policies(
        &self,
        request: Request<v1::ChangePoliciesRequest>,
    ) -> Answer<v1::Applied> {
        let start = Instant::now();
        let by = self.admin(&request, "change policies").await?;
        let v1::ChangePoliciesRequest { add, remove, file, dry_run, save, yes } =
            request.into_inner();
        let save = if save { Save::Yes } else { Save::No };
        let intent = if dry_run { Intent::DryRun } else { Intent::Apply };
        let consent = if yes { Consent::Given } else { Consent::NotGiven };
        let backend = self.backend.clone();
        let change = PolicyChange { remove, add, file, intent, save, consent };
        let result = to_its_end(async move { backend.change_policies(change, by).await }).await?;
        let took_us = microseconds_since(start);
        let now = self.backend.now().await;
        Ok(Response::new(present::applied(result, intent, now, took_us)))
    }

    async fn put_security_associations(
        &self,
        request: Request<v1::PutSecurityAssociationsRequest>,
    ) -> Answer<v1::SecurityAssociationsChanged> {
        let start = Instant::now();
        let by = self.admin(&request, "put SAs").await?;
        let put = associations::put(request.into_inner())?;
        let backend = self.backend.clone();
        let done = to_its_end(async move { backend.put_sas(put, by).await }).await?;
        Ok(Response::new(associations::changed(done, microseconds_since(start))))
    }

    async fn delete_security_associations(
        &self,
        request: Request<v1::DeleteSecurityAssociationsRequest>,
    ) -> Answer<v1::SecurityAssociationsChanged> {
        let start = Instant::now();
        let by = self.admin(&request, "delete SAs").await?;
        let deletion = associations::deletion(request.into_inner())?;
        let backend = self.backend.clone();
        let done = to_its_end(async move { backend.delete_sas(deletion, by).await }).await?;
        Ok(Response::new(associations::changed(done, microseconds_since(start))))
    }

    async fn reserve_spi(
        &self,
        request: Request<v1::ReserveSpiRequest>,
    ) -> Answer<v1::ReservedSpi> {
        self.admin(&request, "reserve an SPI").await?;
        let peer = request.into_inner().peer;
        let asked = control::SpiRequest { peer, manager: KeyManager::Api, remote: None };
        Ok(Response::new(associations::reserved(self.backend.reserve_spi(asked).await)?))
    }

    async fn confirm(&self, request: Request<v1::ConfirmRequest>) -> Answer<v1::Confirmed> {
        let by = self.admin(&request, "confirm").await?;
        let over = connection_of(&request);
        let (backend, revision) = (self.backend.clone(), request.into_inner().revision);
        let confirmed =
            to_its_end(async move { backend.confirm(revision, over, by).await }).await?;
        let revision = confirmed.map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(Response::new(v1::Confirmed { revision }))
    }

    async fn save(&self, request: Request<v1::SaveRequest>) -> Answer<v1::Saved> {
        let by = self.admin(&request, "save").await?;
        let backend = self.backend.clone();
        let saved = to_its_end(async move { backend.save(by).await }).await?;
        let saved = saved.map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(Response::new(saved))
    }

    async fn rollback(&self, request: Request<v1::RollbackRequest>) -> Answer<v1::Applied> {
        let start = Instant::now();
        let by = self.admin(&request, "rollback").await?;
        let (backend, revision) = (self.backend.clone(), request.into_inner().revision);
        let result = to_its_end(async move { backend.rollback(revision, by).await }).await?;
        let took_us = microseconds_since(start);
        let now = self.backend.now().await;
        Ok(Response::new(present::applied(result, Intent::Apply, now, took_us)))
    }

    async fn show_revisions(&self, _: Request<v1::ShowRequest>) -> Answer<v1::Revisions> {
        Ok(Response::new(v1::Revisions { revisions: self.backend.revisions().await }))
    }

    type EventsStream = Pin<Box<dyn Stream<Item = Result<v1::Event, Status>> + Send>>;

    async fn events(&self, request: Request<v1::EventsRequest>) -> Answer<Self::EventsStream> {
        let request = request.into_inner();
        let filter = Filter::of(&request);
        let filter = filter.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let (mut kept, to_come) = self.backend.events().await;
        kept.retain(|event| filter.passes(event));
        let kept = tokio_stream::iter(kept.into_iter().map(Ok));
        if !request.follow {
            return Ok(Response::new(Box::pin(kept)));
        }
        let to_come = BroadcastStream::new(to_come).filter_map(move |event| match event {
            Ok(event) => filter.passes(&event).then_some(Ok(event)),
            // Told whatever the filter: some of them may have passed it.
            Err(BroadcastStreamRecvError::Lagged(count)) => Some(Ok(events::lost(count))),
        });
        let stream = kept.chain(to_come);
        Ok(Response::new(Box::pin(until_ended(stream, self.ended.clone()))))
    }

    type WatchAcquiresStream = Pin<Box<dyn Stream<Item = Result<v1::Acquire, Status>> + Send>>;

    async fn watch_acquires(
        &self,
        request: Request<v1::WatchAcquiresRequest>,
    ) -> Answer<Self::WatchAcquiresStream> {
        self.admin(&request, "watch for SAs to make").await?;
        let (outstanding, to_come) = self.backend.acquires().await;
        let outstanding = tokio_stream::iter(outstanding.into_iter().map(Ok));
        let to_come = BroadcastStream::new(to_come).map(|acquire| {
            acquire.map_err(|BroadcastStreamRecvError::Lagged(count)| {
                let text = format!("{count} requests were lost, read too slowly: watch again");
                Status::data_loss(text)
            })
        });
        let stream = outstanding.chain(to_come);
        Ok(Response::new(Box::pin(until_ended(stream, self.ended.clone()))))
    }

    type ChangeEndpointsStream =
        Pin<Box<dyn Stream<Item = Result<v1::EndpointsChanged, Status>> + Send>>;

    async fn change_endpoints(
        &self,
        request: Request<Streaming<v1::EndpointChanges>>,
    ) -> Answer<Self::ChangeEndpointsStream> {
        let by = self.admin(&request, "change endpoints").await?;
        let (desk, backend) = (self.backend.endpoints(), self.backend.clone());
        let done = move |sums| backend.endpoints_changed(by, sums);
        let answers = endpoints::change(desk, request.into_inner(), done);
        let stream = ReceiverStream::new(answers);
        Ok(Response::new(Box::pin(until_ended(stream, self.ended.clone()))))
    }

    type ShowEndpointsStream = Pin<Box<dyn Stream<Item = Result<v1::EndpointPage, Status>> + Send>>;

    async fn show_endpoints(
        &self,
        request: Request<v1::EndpointsRequest>,
    ) -> Answer<Self::ShowEndpointsStream> {
        let pages = endpoints::show(self.backend.endpoints(), request.into_inner().vni)?;
        let stream = ReceiverStream::new(pages);
        Ok(Response::new(Box::pin(until_ended(stream, self.ended.clone()))))
    }

    type WatchEndpointsStream =
        Pin<Box<dyn Stream<Item = Result<v1::EndpointsWatched, Status>> + Send>>;

    async fn watch_endpoints(
        &self,
        request: Request<v1::EndpointsWatch>,
    ) -> Answer<Self::WatchEndpointsStream> {
        let desk = self.backend.endpoints();
        // A long batch may hold the table's lock. The task that sends belongs to this runtime.
        let runtime = tokio::runtime::Handle::current();
        let changes = beside(move || {
            let _entered = runtime.enter();
            endpoints::watch(desk, request.into_inner().after)
        });
        let stream = ReceiverStream::new(changes.await??);
        Ok(Response::new(Box::pin(until_ended(stream, self.ended.clone()))))
    }

    type CaptureStream = Pin<Box<dyn Stream<Item = Result<v1::Captured, Status>> + Send>>;

    async fn capture(&self, request: Request<v1::CaptureRequest>) -> Answer<Self::CaptureStream> {
        let by = self.admin(&request, "capture").await?;
        let order = capture::order(request.into_inner())?;
        let stream = self.backend.capture(order, by).await.map_err(refused)?;
        let stream = ReceiverStream::new(stream).map(Ok);
        Ok(Response::new(Box::pin(until_ended(stream, self.ended.clone()))))
    }
}

/// The texts that came with a configuration. Of two for one file the last counts.
fn included_texts(sent: Vec<v1::IncludedText>) -> IncludedTexts {
    sent.into_iter().map(|v1::IncludedText { file, text }| (file, text)).collect()
}

/// The refusal of a capture.
fn refused(error: CaptureError) -> Status {
    let text = error.to_string();
    match error {
        CaptureError::NoPort(_) => Status::not_found(text),
        CaptureError::TooMany | CaptureError::Stopping => Status::failed_precondition(text),
    }
}

/// Returns the entries of that name, all if none is given.
fn named<T>(
    list: Vec<T>,
    what: &'static str,
    name: Option<String>,
    name_of: impl Fn(&T) -> &String,
) -> Result<Vec<T>, Status> {
    let Some(name) = name else { return Ok(list) };
    let found: Vec<T> = list.into_iter().filter(|entry| *name_of(entry) == name).collect();
    if found.is_empty() {
        return Err(Status::not_found(format!("there is no {what} \"{name}\"")));
    }
    Ok(found)
}

/// Returns the entries of a name, all if none is given. Searches on a thread for blocking work,
/// which ends the turn.
async fn named_entries<T: Send + 'static>(
    entries: EntryIter<T>,
    turn: WorkTurn,
    what: &'static str,
    name: Option<String>,
    name_of: fn(&T) -> &String,
) -> Result<EntryIter<T>, Status> {
    let Some(name) = name else { return Ok(entries) };
    let wanted = name.clone();
    let search = move || {
        let _turn = turn;
        entries.filter(|entry| *name_of(entry) == wanted).collect::<Vec<T>>()
    };
    let found = beside(search).await?;
    match found.is_empty() {
        true => Err(Status::not_found(format!("there is no {what} \"{name}\""))),
        false => Ok(Box::new(found.into_iter())),
    }
}

/// A stream that ends when the sender of `ended` is gone.
fn until_ended<T: Send + 'static>(
    stream: impl Stream<Item = T> + Send + 'static,
    mut ended: watch::Receiver<()>,
) -> impl Stream<Item = T> + Send + 'static {
    let end = Box::pin(async move { while ended.changed().await.is_ok() {} });
    EndedStream { stream: Box::pin(stream), end }
}

/// See [`until_ended`].
struct EndedStream<T> {
    stream: Pin<Box<dyn Stream<Item = T> + Send>>,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<T> Stream for EndedStream<T> {
    type Item = T;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        match self.stream.as_mut().poll_next(context) {
            std::task::Poll::Pending => self.end.as_mut().poll(context).map(|()| None),
            ready => ready,
        }
    }
}
