//! `lockgated`: the gateway's process. One control thread (API, netlink, guard, clocks), one pinned
//! thread per worker.
//!
//! | module | what |
//! |---|---|
//! | `start`, `stop` | in an order in which nothing is ever open that was closed |
//! | `follow` | the control loop: the kernel's changes, workers' questions, clocks, signals |
//! | `state`, `device`, `worker` | what runs: a configuration, netdevs, threads |
//! | `assign` | which worker serves which queue, on which core |
//! | `moves`, `numbers` | peers that are elsewhere now; SAs whose sequence numbers run out |
//! | `change`, `policies`, `revisions` | `apply`, `rollback`, single policies; what ran before |
//! | `save` | the configuration file: written on request, compared with what runs |
//! | `unconfirmed` | changes that are rolled back unless somebody confirms them |
//! | `aside` | what follows from a change of policies and need not be waited for |
//! | `caches` | memory for the workers' flow caches |
//! | `daemon`, `cached`, `backend`, `api`, `metrics`, `events`, `notify` | what it tells |
//! | `totals` | what was counted, by names that outlive a layout |
//! | `failure` | why it does not start |
//! | `hardening` | what it gives up |
#![forbid(unsafe_code)]

mod api;
mod aside;
mod assign;
mod backend;
mod cached;
mod caches;
mod captures;
mod change;
mod checksums;
mod daemon;
mod device;
mod events;
mod failure;
mod follow;
mod hardening;
mod history;
mod liveness;
mod metrics;
mod moves;
mod notify;
mod numbers;
mod overview;
mod policies;
mod publish;
mod revisions;
mod sampling;
mod save;
mod start;
mod state;
mod stop;
mod totals;
mod unconfirmed;
mod view;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use control::validated::Metrics;

use crate::daemon::Daemon;
use crate::events::{Events, Kind};
use crate::failure::Failure;
use crate::follow::{Asked, Signals};
use crate::notify::Health;

/// Name of the API's socket in `run_dir`.
const SOCKET: &str = "api.sock";
/// How long the API's requests under way may take at the end.
const API_END: Duration = Duration::from_secs(2);

/// The Lockgate gateway: takes the configured ports and forwards by its policies. Ports stay
/// closed when it ends; `lockgate detach` opens them.
#[derive(Parser)]
#[command(name = "lockgated", version)]
struct Arguments {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only put up the guard that keeps Linux from forwarding for the configured ports, and end:
    /// early at boot, before the network is there.
    #[arg(long)]
    guard_only: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::Thread)?;
        match arguments.guard_only {
            true => runtime.block_on(guard_only(&arguments.config)),
            false => runtime.block_on(run(&arguments.config)),
        }
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("lockgated: {failure}");
            ExitCode::from(if matches!(failure, Failure::Config(_)) { 2 } else { 1 })
        }
    }
}

async fn guard_only(file: &Path) -> Result<(), Failure> {
    // As the daemon will choose; where its state is not there yet, the file.
    let parsed = unconfirmed::read(file)?;
    control::guard::Guard::early(&parsed.validated)?.install()?;
    println!("lockgated: the guard stands; nothing is forwarded for the configured ports");
    Ok(())
}

async fn run(file: &Path) -> Result<(), Failure> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let beginning = unconfirmed::load(&file)?;
    start::preflight()?;
    let events = Events::new();
    if let Err(error) = hardening::lock_memory() {
        events.record(Kind::MemoryUnlocked, "", error.to_string(), &[]);
    }
    let signals = Signals::catch()?;
    let config = &beginning.loaded.validated;
    let (metrics, socket) = (config.metrics, config.node.run_dir.join(SOCKET));
    // Before anything is taken: a second daemon ends here.
    start::make_directories(config)?;
    let bound = api::bind(&socket).await?;
    let mut started = start::start(beginning, &file, events.clone()).await?;
    let daemon = Daemon::new(started.state);
    let (stop_api, stopped) = tokio::sync::oneshot::channel::<()>();
    let stop = async {
        // Sent or dropped, both mean the end.
        let _ = stopped.await;
    };
    let api = tokio::spawn(api::serve(bound, daemon.clone(), stop));
    serve_metrics(metrics, &daemon).await;
    tokio::spawn(events.clone().settle_forever());
    tokio::spawn(aside::run(daemon.clone()));
    tokio::spawn(unconfirmed::run(daemon.clone()));
    tokio::spawn(notify::feed_watchdog(health(daemon.clone())));
    let ports = daemon.state.lock().await.devices.len();
    let status = format!("{ports} netdevs taken; API at {}", socket.display());
    events.record(Kind::Started, "", status.as_str(), &[]);
    notify::ready(&status);
    let asked = Asked { wanted: started.wanted, moved: started.moved };
    let end = follow::run(&daemon, &mut started.mirror, asked, signals).await;
    notify::stopping("draining");
    let _ = stop_api.send(());
    let stopped = stop::stop(&daemon, &mut started.mirror, &end).await;
    // Streams of events end at once; a request that hangs does not hold the end up.
    let _ = tokio::time::timeout(API_END, api).await;
    events.flush();
    end.and(stopped)
}

async fn serve_metrics(metrics: Metrics, daemon: &Arc<Daemon>) {
    let Metrics::Listen(address) = metrics else { return };
    if let Err(error) = metrics::serve(address, daemon.clone()).await {
        daemon.events.record(Kind::MetricsRefused, "", error.to_string(), &[]);
    }
}

/// Good as long as every worker has come round its loop since it was asked last.
fn health(daemon: Arc<Daemon>) -> impl FnMut() -> Health {
    let mut last: Vec<u64> = Vec::new();
    move || {
        let Ok(state) = daemon.state.try_lock() else {
            // A change is being made: the control thread lives.
            return Health::Good;
        };
        let now: Vec<u64> = state.workers.iter().map(worker::Handle::turns).collect();
        let stalled = now.iter().zip(&last).position(|(now, last)| now == last);
        last = now;
        match stalled {
            None => Health::Good,
            Some(worker) => {
                let message = format!("worker {worker} does not come round its loop");
                state.events.record(Kind::WorkerStalled, &worker.to_string(), &*message, &[]);
                Health::Bad(message)
            }
        }
    }
}
