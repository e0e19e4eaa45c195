//! The control thread's loop: what the kernel tells, what workers ask for, what a clock asks for.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use config::HOST_NETDEV;
use control::guard::GuardWatch;
use control::host_routes;
use dataplane::{AcquireRequest, AddressUpdate, Generation, ResolveRequest};
use ipsec::Spi;
use linux::{ChangedLinks, HostRoute, LinkWatch, Lists, Mirror, NeighbourState, Note};
use policy::SaSetId;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use wire::Address;

use crate::backend_impl::Daemon;
use crate::cards;
use crate::events::Kind;
use crate::failure::Failure;
use crate::kernel_tier::Pulse;
use crate::look::looked;
use crate::orders::Order;
use crate::state::State;
use crate::worker::WorkerGone;

/// Interval at which moves of peers are followed.
const FOLLOW_MOVES: Duration = Duration::from_millis(100);
/// Interval at which replaced SAs are looked at.
const RETIRE: Duration = Duration::from_millis(100);
/// Interval at which the loop inspects what no notification reports.
const INSPECT: Duration = Duration::from_secs(1);
/// Interval at which the lease of the kernel tier is renewed.
const TIER: Duration = Duration::from_millis(250);
/// Least time between two looks at a guard that was broken.
const GUARD_PAUSE: Duration = Duration::from_millis(200);

/// The signal that ended the loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShutdownSignal {
    /// SIGTERM.
    Terminated,
    /// SIGINT.
    Interrupted,
}

impl ShutdownSignal {
    /// The signal's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            ShutdownSignal::Terminated => "SIGTERM",
            ShutdownSignal::Interrupted => "SIGINT",
        }
    }
}

/// Signals that end the daemon, caught from the start on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Catches SIGTERM and SIGINT from now on.
    pub(crate) fn catch() -> Result<Signals, Failure> {
        let catch = |kind| signal(kind).map_err(Failure::Signals);
        Ok(Signals {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> ShutdownSignal {
        tokio::select! {
            _ = self.terminate.recv() => ShutdownSignal::Terminated,
            _ = self.interrupt.recv() => ShutdownSignal::Interrupted,
        }
    }
}

/// SIGHUP, caught from the start on: a terminal that closes does not end the gateway.
pub(crate) struct HangupSignal(Signal);

impl HangupSignal {
    /// Catches SIGHUP from now on.
    pub(crate) fn catch() -> Result<HangupSignal, Failure> {
        signal(SignalKind::hangup()).map(HangupSignal).map_err(Failure::Signals)
    }
}

/// Applies the daemon's file at each SIGHUP, for ever. Signals that come while the file is being
/// applied are one: the file is read once more.
pub(crate) async fn apply_at_hangup(daemon: Arc<Daemon>, mut hangup: HangupSignal) {
    while hangup.0.recv().await.is_some() {
        daemon.apply_own_file().await;
    }
}

/// Channels by which workers and other threads reach the control thread.
pub(crate) struct Inbox {
    /// Neighbours that packets wait for.
    pub(crate) resolve_requests: Receiver<ResolveRequest>,
    /// SAs that packets wait for.
    pub(crate) acquire_requests: Receiver<AcquireRequest>,
    /// Peers that were seen elsewhere.
    pub(crate) moved: Receiver<AddressUpdate>,
    /// Orders from other threads.
    pub(crate) orders: Receiver<Order>,
    /// Reason why sequence numbers cannot be reserved, if they cannot.
    pub(crate) not_reserved: watch::Receiver<Option<String>>,
    /// Tasks without which no change would be made or rolled back, no guard restored and no
    /// sequence number reserved.
    pub(crate) tasks: JoinSet<()>,
}

/// Runs until a signal.
///
/// # Errors
/// A worker has ended, or netlink is gone for good.
pub(crate) async fn run(
    state: &mut State,
    mirror: &mut Mirror,
    inbox: Inbox,
    mut signals: Signals,
) -> Result<ShutdownSignal, Failure> {
    let Inbox { mut resolve_requests, mut acquire_requests, mut moved, .. } = inbox;
    let Inbox { mut orders, mut not_reserved, mut tasks, .. } = inbox;
    let mut follow_moves = interval(FOLLOW_MOVES);
    let mut inspect = interval(INSPECT);
    let mut retire = interval(RETIRE);
    let (mut tier, mut pulse) = (interval(TIER), Pulse::default());
    let mut cards = interval(cards::TICK);
    for clock in [&mut follow_moves, &mut inspect, &mut retire, &mut tier, &mut cards] {
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    let mut told = UnansweredNeighbours::default();
    let (mut host, mut links) = (HostRoutes::default(), LinkWatch::start());
    apply_view(state, mirror, &mut told).await?;
    host.lead(state, mirror, Set::Always);
    loop {
        tokio::select! {
            end = signals.next() => return Ok(end),
            Some(order) = orders.recv(), if !state.waits_for_cards() => {
                obey(state, mirror, order).await?;
            }
            changes = mirror.changed() => {
                for note in &changes.notes {
                    report_note(state, note);
                }
                apply_view(state, mirror, &mut told).await?;
                host.follow(changes.lists, state, mirror);
            }
            changed = links.changed() => restore_programs(state, &changed),
            Some(ended) = tasks.join_next() => {
                return Err(Failure::TaskEnded { error: ended.err() });
            }
            Some(asked) = resolve_requests.recv() => resolve(state, mirror, &asked),
            Some(asked) = acquire_requests.recv() => state.acquire(&asked),
            Ok(()) = not_reserved.changed() => {
                state.not_reserved = not_reserved.borrow_and_update().clone();
                state.show();
            }
            _ = follow_moves.tick() => {
                // All that moved since the last tick make one snapshot.
                let seen = take_all(&mut moved);
                if !seen.is_empty() && state.peers_moved(seen).await? {
                    let _ = mirror.keep_fresh(&state.gateway.live.fresh);
                    state.show();
                }
            }
            _ = retire.tick() => {
                if state.retire_replaced_sas().await? {
                    state.show();
                }
            }
            _ = tier.tick() => state.renew_lease(&mut pulse),
            looked = looked(&mut state.look) => state.take_looked(looked),
            report = state.gateway.cards.told() => state.card_told(report).await?,
            _ = cards.tick(), if state.gateway.cards.need_care() => state.tend_cards().await?,
            _ = inspect.tick() => {
                inspect_all(state, mirror).await?;
                // Policies may have changed.
                host.lead(state, mirror, Set::IfOthers);
                state.show();
            }
            () = host.made() => host.set(state, mirror),
        }
    }
}

/// Carries an order out. Neighbours on the way to the remote ends of SAs are kept fresh.
async fn obey(state: &mut State, mirror: &mut Mirror, order: Order) -> Result<(), WorkerGone> {
    state.obey(order).await?;
    if std::mem::take(&mut state.gateway.ends_have_changed) {
        let _ = mirror.keep_fresh(&state.gateway.live.fresh);
    }
    Ok(())
}

/// Inspects what no notification reports, and attends to what is due.
async fn inspect_all(state: &mut State, mirror: &mut Mirror) -> Result<(), WorkerGone> {
    state.gateway.inspect().await?;
    state.sample().await?;
    state.audit().await?;
    state.promote_tenants().await?;
    state.settle_acquires();
    state.keep_connections_if_due().await;
    let links = state.gateway.live.links.iter().flatten().copied().collect();
    mirror.probe_stale(&links);
    if !state.gateway.is_alive() {
        // Its queues would be closed for ever.
        return Err(WorkerGone);
    }
    if state.gateway.caches_need_replacement {
        state.gateway.renew_caches().await?;
    }
    Ok(())
}

/// Attaches programs again that another program removed.
fn restore_programs(state: &mut State, changed: &ChangedLinks) {
    if state.gateway.restore_changed_programs(changed) {
        state.show();
    }
}

/// Has the kernel resolve a neighbour.
fn resolve(state: &State, mirror: &mut Mirror, asked: &ResolveRequest) {
    let link = state.gateway.live.links.get(usize::from(asked.port.0));
    if let Some(link) = link.copied().flatten() {
        // Refused by the kernel: it is asked again in a second.
        let _ = mirror.resolve(link, asked.address);
    }
}

/// Takes all moves that workers have reported since the last call; returns the last of each SA, in
/// the order in which they were seen.
fn take_all(seen: &mut Receiver<AddressUpdate>) -> Vec<AddressUpdate> {
    let mut last: HashMap<(SaSetId, Spi), (usize, AddressUpdate)> = HashMap::new();
    let mut arrival = 0..;
    while let Ok(moved) = seen.try_recv() {
        last.insert((moved.set, moved.spi), (arrival.next().unwrap_or(usize::MAX), moved));
    }
    let mut last: Vec<(usize, AddressUpdate)> = last.into_values().collect();
    last.sort_by_key(|(arrival, _)| *arrival);
    last.into_iter().map(|(_, moved)| moved).collect()
}

/// Switches to the mirror's view, and updates the kernel accordingly.
async fn apply_view(
    state: &mut State,
    mirror: &mut Mirror,
    told: &mut UnansweredNeighbours,
) -> Result<(), WorkerGone> {
    state.gateway.follow(mirror.view().clone().into()).await?;
    state.flush_cards().await?;
    report_unanswered(state, told);
    // Wishes: what the kernel refuses is tried again with the next change.
    let _ = mirror.keep_fresh(&state.gateway.live.fresh);
    state.show();
    Ok(())
}

/// The routes into the host port, by which this machine's own packets that policies protect come
/// in.
#[derive(Default)]
struct HostRoutes {
    /// The last, and what they were made of.
    known: Option<(Basis, Vec<HostRoute>)>,
    /// Computation of new host routes in the background; it takes a while for very many policies.
    making: Option<(Basis, JoinHandle<Vec<HostRoute>>)>,
    /// The kernel may have lost some.
    is_due: bool,
}

/// The inputs that the routes into the host port are made from.
#[derive(Clone, PartialEq, Eq)]
struct Basis {
    generation: Generation,
    addresses: BTreeSet<(u32, Address, u8)>,
}

/// Condition on which the kernel is given its routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Set {
    /// Even if they are unchanged: the kernel may have lost them.
    Always,
    /// Only if the routes differ from the last ones.
    IfOthers,
}

impl HostRoutes {
    /// Looks after the routes where the kernel's change may have touched them.
    fn follow(&mut self, changed: Lists, state: &State, mirror: &mut Mirror) {
        if changed.links || changed.addresses || changed.routes {
            self.lead(state, mirror, Set::Always);
        }
    }

    /// Sees to it that the kernel has the routes of the policies and addresses of now.
    fn lead(&mut self, state: &State, mirror: &mut Mirror, set: Set) {
        self.is_due |= set == Set::Always;
        if self.making.is_some() {
            return;
        }
        let generation = state.gateway.compiled.generation;
        let basis = Basis { generation, addresses: mirror.view().addresses.clone() };
        if self.known.as_ref().is_some_and(|(known, _)| *known == basis) {
            return self.report(state, mirror);
        }
        self.is_due = true;
        let (compiled, view) = (state.gateway.compiled.copied(), mirror.view().clone());
        let make = move || host_routes(compiled.validated(), &view).0;
        self.making = Some((basis, tokio::task::spawn_blocking(make)));
    }

    /// Waits until others are made; for ever, if none are.
    async fn made(&mut self) {
        let Some((basis, job)) = &mut self.making else { return std::future::pending().await };
        let basis = basis.clone();
        let made = job.await;
        let mut last = || self.known.take().map_or_else(Vec::new, |(_, routes)| routes);
        // What cannot be made for a fault of ours is not tried at once again.
        self.known = Some((basis, made.unwrap_or_else(|_| last())));
        self.making = None;
    }

    /// Tells the kernel routes that were made, and has others made where policies or addresses are
    /// others by now.
    fn set(&mut self, state: &State, mirror: &mut Mirror) {
        self.report(state, mirror);
        self.lead(state, mirror, Set::IfOthers);
    }

    fn report(&mut self, state: &State, mirror: &mut Mirror) {
        let Some((_, routes)) = self.known.as_ref().filter(|_| self.is_due) else { return };
        self.is_due = false;
        if let Err(error) = mirror.set_host_routes(HOST_NETDEV, routes) {
            state.events.record(Kind::HostRefused, "", error.to_string(), &[]);
            // Tried again by the clock.
            self.is_due = true;
        }
    }
}

/// Restores the guard whenever another program removes it, for ever.
pub(crate) async fn watch_guard(daemon: Arc<Daemon>) {
    let mut watch = GuardWatch::start();
    loop {
        let guard = daemon.picture().guard.clone();
        let asked = watch.broken(&guard).await;
        daemon.order(|reply| Order::RestoreGuard { asked, reply }).await;
        // It may have been refused: `nft` is not run without a pause.
        tokio::time::sleep(GUARD_PAUSE).await;
    }
}

fn report_note(state: &mut State, note: &Note) {
    let kind = match note {
        Note::Resynced(_) => {
            state.netlink_resyncs += 1;
            Kind::NetlinkResync
        }
        Note::Cut(_) => Kind::NetlinkLost,
        Note::Refused(_) => Kind::RouteRefused,
        Note::NoLongerRefused(_) => Kind::RouteAccepted,
    };
    state.events.record(kind, "", note.to_string(), &[]);
}

/// Next hops that were said not to answer, by interface index.
type UnansweredNeighbours = BTreeSet<(u32, Address)>;

/// Tells which next hops do not answer: each once, until it has answered.
fn report_unanswered(state: &State, told: &mut UnansweredNeighbours) {
    let known = |hop: &(u32, Address)| state.gateway.view.neighbours.get(hop);
    // The kernel goes on asking, so that a failure alone comes and goes.
    told.retain(|hop| {
        let has_answered = known(hop).is_some_and(|entry| entry.usable_mac().is_some());
        state.gateway.live.fresh.contains(hop) && !has_answered
    });
    for hop in &state.gateway.live.fresh {
        let has_failed = known(hop).is_some_and(|entry| entry.state == NeighbourState::Failed);
        let Some(port) = state.gateway.live.port_of_link(hop.0) else { continue };
        if has_failed && told.insert(*hop) {
            let (port, address) =
                (&state.gateway.live.ports.at(usize::from(port.0)).name, hop.1.to_string());
            let message = format!("{address} on port {port} does not answer");
            state.events.record(Kind::NeighbourFailed, &address, message, &[("port", port)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn last_move_of_each_sa_counts() {
        let (sender, mut seen) = tokio::sync::mpsc::channel(8);
        let moved = |set, spi, port| {
            let address = IpAddr::from([192, 0, 2, 1]).into();
            AddressUpdate { set: SaSetId(set), spi: Spi::new(spi).unwrap(), address, port }
        };
        let all =
            [(1, 256, 10), (0, 300, 20), (1, 256, 11), (0, 300, 21), (1, 257, 12), (1, 256, 13)];
        for (set, spi, port) in all {
            sender.try_send(moved(set, spi, port)).unwrap();
        }
        let last = [moved(0, 300, 21), moved(1, 257, 12), moved(1, 256, 13)];
        assert_eq!(take_all(&mut seen), last, "in the order in which they were seen");
        assert_eq!(take_all(&mut seen), []);
    }
}
