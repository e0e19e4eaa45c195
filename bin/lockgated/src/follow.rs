//! The control thread's loop: what the kernel tells, what workers ask for, what a clock asks for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use control::guard::GuardWatch;
use control::mirror::{HostRoute, Mirror, NeighbourState, Note, host_routes};
use dataplane::{Generation, Moved, Wanted};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::Receiver;
use tokio::time::{MissedTickBehavior, interval};
use wire::Address;

use crate::daemon::Daemon;
use crate::events::Kind;
use crate::failure::Failure;
use crate::moves;
use crate::numbers;
use crate::state::State;
use crate::worker::WorkerGone;

/// How often reservations of sequence numbers are topped up and moves of peers followed.
const TOP_UP: Duration = Duration::from_millis(100);
/// How often what nothing tells is looked after.
const INSPECT: Duration = Duration::from_secs(1);

/// Why the loop ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// SIGTERM.
    Terminated,
    /// SIGINT.
    Interrupted,
}

impl End {
    /// The signal's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            End::Terminated => "SIGTERM",
            End::Interrupted => "SIGINT",
        }
    }
}

/// A task that ends with whoever started it.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Signals that end the daemon, caught from the start on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Catches them.
    pub(crate) fn catch() -> Result<Signals, Failure> {
        let catch = |kind| signal(kind).map_err(Failure::Signals);
        Ok(Signals {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> End {
        tokio::select! {
            _ = self.terminate.recv() => End::Terminated,
            _ = self.interrupt.recv() => End::Interrupted,
        }
    }
}

/// What workers tell.
pub(crate) struct Asked {
    /// Neighbours that packets wait for.
    pub(crate) wanted: Receiver<Wanted>,
    /// Peers that were seen elsewhere.
    pub(crate) moved: Receiver<Moved>,
}

/// Runs until a signal.
///
/// # Errors
/// A worker has ended, or netlink is gone for good.
pub(crate) async fn run(
    daemon: &Arc<Daemon>,
    mirror: &mut Mirror,
    Asked { mut wanted, mut moved }: Asked,
    mut signals: Signals,
) -> Result<End, Failure> {
    let mut top_up = interval(TOP_UP);
    let mut inspect = interval(INSPECT);
    for clock in [&mut top_up, &mut inspect] {
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    let guard = tokio::spawn(watch_guard(daemon.clone()));
    let _stop_watching = AbortOnDrop(guard);
    let mut told = Told::default();
    settle(daemon, mirror, &mut told).await?;
    loop {
        tokio::select! {
            end = signals.next() => return Ok(end),
            changes = mirror.changed() => {
                let mut state = daemon.state.lock().await;
                for note in &changes.notes {
                    tell(&mut state, note);
                }
                drop(state);
                settle(daemon, mirror, &mut told).await?;
            }
            Some(asked) = wanted.recv() => {
                let link = {
                    let state = daemon.state.lock().await;
                    state.live.links.get(usize::from(asked.port.0)).copied().flatten()
                };
                if let Some(link) = link {
                    // Refused by the kernel: it is asked again in a second.
                    let _ = mirror.resolve(link, asked.address);
                }
            }
            _ = top_up.tick() => {
                let mut state = daemon.state.lock().await;
                end_if_cut(&state);
                // All that moved since the last tick make one snapshot.
                let seen = moves::take_all(&mut moved);
                if !seen.is_empty() && state.peers_moved(&seen).await? {
                    let _ = mirror.keep_fresh(&state.live.fresh);
                }
                state.not_reserved = state.keystate.top_up().err().map(|error| error.to_string());
                if let Some(error) = &state.not_reserved {
                    state.events.record(Kind::ReservationFailed, "", error.as_str(), &[]);
                }
            }
            _ = inspect.tick() => {
                let mut state = daemon.state.lock().await;
                state.inspect().await?;
                state.sample().await?;
                let links = state.live.links.iter().flatten().copied().collect();
                mirror.probe_stale(&links);
                numbers::tell(&mut state);
                tell_stalled(&state)?;
                if state.cache_outworn {
                    state.renew_caches().await?;
                }
                drop(state);
                // Policies may have changed.
                lead_host_packets(daemon, mirror, &mut told.host_routes, Set::IfOthers).await;
            }
        }
    }
}

/// Goes over to the mirror's view, and has the kernel do what follows from it.
async fn settle(
    daemon: &Arc<Daemon>,
    mirror: &mut Mirror,
    told: &mut Told,
) -> Result<(), WorkerGone> {
    let mut state = daemon.state.lock().await;
    state.follow(mirror.view().clone()).await?;
    tell_unanswered(&state, &mut told.unanswered);
    // Wishes: what the kernel refuses is tried again with the next change.
    let _ = mirror.keep_fresh(&state.live.fresh);
    drop(state);
    lead_host_packets(daemon, mirror, &mut told.host_routes, Set::Always).await;
    Ok(())
}

/// What the loop remembers from turn to turn.
#[derive(Default)]
struct Told {
    unanswered: Unanswered,
    host_routes: Option<HostRoutes>,
}

/// The routes into the host port, and what they were made of.
struct HostRoutes {
    generation: Generation,
    addresses: BTreeSet<(u32, Address, u8)>,
    routes: Vec<HostRoute>,
}

/// When the kernel is told its routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Set {
    /// Whatever they were: it may have lost them.
    Always,
    /// If they are others than the last.
    IfOthers,
}

/// Has this machine's own packets that policies protect come in by the host port.
async fn lead_host_packets(
    daemon: &Arc<Daemon>,
    mirror: &mut Mirror,
    known: &mut Option<HostRoutes>,
    set: Set,
) {
    let (generation, compiled) = {
        let state = daemon.state.lock().await;
        (state.compiled.generation, state.compiled.copied())
    };
    let addresses = mirror.view().addresses.clone();
    let stand = known
        .as_ref()
        .is_some_and(|known| known.generation == generation && known.addresses == addresses);
    if stand && set == Set::IfOthers {
        return;
    }
    if !stand {
        // Of very many policies it takes a while.
        let view = mirror.view().clone();
        let make = move || host_routes(compiled.validated(), &view).0;
        let Ok(routes) = tokio::task::spawn_blocking(make).await else { return };
        *known = Some(HostRoutes { generation, addresses, routes });
    }
    let Some(HostRoutes { routes, .. }) = known else { return };
    if let Err(error) = mirror.set_host_routes(routes) {
        daemon.events.record(Kind::HostRefused, "", error.to_string(), &[]);
    }
}

/// Restores the guard whenever somebody takes it away; for ever.
async fn watch_guard(daemon: Arc<Daemon>) {
    let mut watch = GuardWatch::start();
    loop {
        let guard = daemon.state.lock().await.guard.clone();
        let asked = watch.broken(&guard).await;
        let mut state = daemon.state.lock().await;
        if let Err(error) = asked {
            state.events.record(Kind::GuardRefused, "", error.to_string(), &[]);
            drop(state);
            tokio::time::sleep(INSPECT).await;
        } else if !state.stopping {
            // It may be another guard by now.
            state.restore_guard().await;
        }
    }
}

/// Ends the process at once if somebody cut the run file: nothing of it is to be touched again, in
/// the order of an end neither. Ports stay closed.
fn end_if_cut(state: &State) {
    if let Some(text) = state.keystate.cut_short() {
        eprintln!("lockgated: {text}");
        std::process::exit(keystate::RUN_FILE_CUT.into());
    }
}

fn tell(state: &mut State, note: &Note) {
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
type Unanswered = BTreeSet<(u32, Address)>;

/// Tells which next hops do not answer: each once, until it has answered.
fn tell_unanswered(state: &State, told: &mut Unanswered) {
    let known = |hop: &(u32, Address)| state.view.neighbours.get(hop);
    // The kernel goes on asking, so that a failure alone comes and goes.
    told.retain(|hop| {
        let has_answered = known(hop).is_some_and(|entry| entry.usable_mac().is_some());
        state.live.fresh.contains(hop) && !has_answered
    });
    for hop in &state.live.fresh {
        let has_failed = known(hop).is_some_and(|entry| entry.state == NeighbourState::Failed);
        let Some(port) = state.live.port_of_link(hop.0) else { continue };
        if has_failed && told.insert(*hop) {
            let (port, address) = (&state.live.ports[usize::from(port.0)].name, hop.1.to_string());
            let message = format!("{address} on port {port} does not answer");
            state.events.record(Kind::NeighbourFailed, &address, message, &[("port", port)]);
        }
    }
}

/// A worker that ended takes the daemon with it: its queues would be closed for ever.
fn tell_stalled(state: &State) -> Result<(), WorkerGone> {
    match state.workers.iter().all(crate::worker::Handle::is_alive) {
        true => Ok(()),
        false => Err(WorkerGone),
    }
}
