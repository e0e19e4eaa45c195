//! `lockgated`: the gateway's process. One control thread (API, netlink, guard, clocks), one pinned
//! thread per worker.
//!
//! | module | what |
//! |---|---|
//! | `start`, `stop` | in an order in which nothing is ever open that was closed |
//! | `control_loop` | the control loop: the kernel's changes, orders, workers' questions, clocks |
//! | `state`, `orders` | what the control thread owns, and what it is asked to do |
//! | `gateway` | what runs, and every change of it, step by step |
//! | `this_machine`, `netdev`, `worker` | where the steps are done: nftables, programs, threads |
//! | `assign`, `caches` | which worker serves which queue, on which core; memory for flow caches |
//! | `picture`, `workers` | what everybody may see, without asking the control thread |
//! | `changer`, `change`, `policies` | `apply`, `rollback`, single policies: prepared beside it |
//! | `put_sas`, `sa_changes` | SAs that programs put and delete, and SPIs that they reserve |
//! | `confirm`, `unconfirmed` | changes that are rolled back unless somebody confirms them |
//! | `revisions`, `stored_keys` | what ran before, and with which keys |
//! | `durable_file` | small files that survive a power cut |
//! | `save`, `config_file` | the configuration file, written and compared |
//! | `sampling`, `look`, `liveness`, `sequence_usage`, `checksums` | what is done every second |
//! | `sa_activity`, `sa_limits` | last packets of SAs; their limits |
//! | `backend`, `backend_impl`, `counted`, `shown`, `cached`, `api` | answers to the API |
//! | `metrics`, `events`, `notify` | reports to Prometheus, to readers of events, to systemd |
//! | `totals` | what was counted, by names, which outlive slots |
//! | `failure` | why it does not start |
//! | `hardening` | what it gives up |
//! | `freeing`, `patient` | a thread that frees what changes leave behind; threads for long work |
#![forbid(unsafe_code)]

mod acquires;
mod api;
mod assign;
mod backend;
mod backend_impl;
mod cache_memory;
mod cache_report;
mod captures;
mod card_duties;
mod card_puts;
mod cards;
mod change;
mod changer;
mod charon;
mod checksums;
mod clock;
mod config_file;
mod confirm;
mod connections;
mod control_loop;
mod counted;
mod durable_file;
mod endpoints;
mod events;
mod failure;
mod fair_turns;
mod freeing;
mod gateway;
mod growth;
mod hardening;
mod history;
mod ike_changes;
mod ike_names;
mod kept_connections;
mod kernel_tier;
mod liveness;
mod look;
mod metrics;
mod netdev;
mod notify;
mod orders;
mod overview;
mod path_mtus;
mod patient;
mod picture;
mod policies;
mod process_number;
mod promotion;
mod put_sas;
#[cfg(test)]
mod reference;
mod reservations;
mod revision_texts;
mod revisions;
mod running;
mod sa_activity;
mod sa_changes;
mod sa_limits;
mod sampling;
mod save;
mod sequence_usage;
mod shown;
mod start;
mod state;
mod stop;
mod stored_keys;
#[cfg(test)]
mod test_lab;
mod this_machine;
mod totals;
mod unconfirmed;
mod waiting_put;
mod who;
mod worker;
mod worker_report;
mod workers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use charon_link::HandleIssuer;
use clap::Parser;
use config::validated::Metrics;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;

use crate::backend_impl::{Daemon, Desks};
use crate::changer::Changer;
use crate::charon::{CHARON_SOCKET, CharonSocket};
use crate::control_loop::{HangupSignal, Inbox, Signals};
use crate::events::{Events, Kind};
use crate::failure::Failure;
use crate::notify::Health;
use crate::start::StartedDaemon;
use crate::worker::Caller;

/// Name of the API's socket in `run_dir`.
const SOCKET: &str = "api.sock";
/// Orders that may wait for the control thread.
const MAX_ORDERS: usize = 256;
/// Time that the API's requests under way may take at the end.
const API_END: Duration = Duration::from_secs(2);

/// The Lockgate gateway: takes the configured ports and forwards by its policies. Ports stay
/// closed when it ends; `lockgate detach` opens them.
#[derive(Parser)]
#[command(name = "lockgated", version)]
struct Arguments {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Install the guard, which keeps Linux from forwarding for the configured ports, and end: for
    /// early boot, before the network is up
    #[arg(long)]
    guard_only: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let run = || {
        // Before a key is read.
        hardening::forbid_core_dumps()?;
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
    println!("lockgated: the guard is installed; nothing is forwarded for the configured ports");
    Ok(())
}

async fn run(file: &Path) -> Result<(), Failure> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let locked = hardening::lock_memory();
    let beginning = unconfirmed::load(&file)?;
    start::preflight()?;
    let events = Events::new();
    if let Err(error) = locked {
        events.record(Kind::MemoryUnlocked, "", error.to_string(), &[]);
    }
    let (signals, hangup) = (Signals::catch()?, HangupSignal::catch()?);
    let config = &beginning.loaded.validated;
    let (run_dir, state_dir) = (config.node.run_dir.clone(), config.node.state_dir.clone());
    let (metrics, socket) = (config.metrics, run_dir.join(SOCKET));
    // Before anything is taken: a second daemon ends here.
    start::make_directories(config)?;
    let bound = api::bind(&socket).await?;
    let started = start::start(beginning, &file, events.clone()).await?;
    let StartedDaemon { mut state, compiler, mut mirror, resolve_requests, .. } = started;
    let StartedDaemon { acquire_requests, moved, .. } = started;
    let picture = state.watched();
    let (ordering, orders) = mpsc::channel(MAX_ORDERS);
    let (asking, asks) = mpsc::unbounded_channel();
    let (refusal, not_reserved) = watch::channel(None);
    let mut tasks = JoinSet::new();
    tasks.spawn(reservations::keep_ahead(state.keys.clone(), refusal, events.clone()));
    let (expiries, expired) = broadcast::channel(sa_limits::MAX_EXPIRIES);
    let told = sa_limits::Told { events: events.clone(), expiries };
    tasks.spawn(sa_limits::judge(picture.clone(), told));
    let changer = Changer::new(compiler, picture.clone(), ordering.clone(), asks, events.clone());
    let desks = Desks::of(&state);
    let elsewhere = state.seen_elsewhere.subscribe();
    let daemon = Daemon::new(picture, ordering, asking, events.clone(), desks);
    let (stop_api, stopped) = tokio::sync::oneshot::channel::<()>();
    let stop = async {
        // Sent or dropped, both mean the end.
        let _ = stopped.await;
    };
    let api = tokio::spawn(api::serve(bound, daemon.clone(), stop));
    serve_metrics(metrics, &daemon).await;
    let heard = charon::Heard { expiries: expired, elsewhere };
    serve_charon([&run_dir, &state_dir], &daemon, heard);
    tokio::spawn(events.clone().report_held_forever());
    tasks.spawn(changer.run());
    tasks.spawn(control_loop::watch_guard(daemon.clone()));
    tasks.spawn(control_loop::apply_at_hangup(daemon.clone(), hangup));
    tokio::spawn(notify::feed_watchdog(health(daemon.clone())));
    let ports = state.gateway.netdevs.len();
    let status = format!("{ports} netdevs attached; API at {}", socket.display());
    events.record(Kind::Started, "", status.as_str(), &[]);
    notify::ready(&status);
    let inbox = Inbox { resolve_requests, acquire_requests, moved, orders, not_reserved, tasks };
    let end = control_loop::run(&mut state, &mut mirror, inbox, signals).await;
    notify::stopping("draining");
    let _ = stop_api.send(());
    let stopped = stop::stop(&mut state, &mut mirror, &end).await;
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

/// Listens for charon's plugin. Without it the gateway runs all the same.
fn serve_charon([run_dir, state_dir]: [&Path; 2], daemon: &Arc<Daemon>, heard: charon::Heard) {
    let socket = run_dir.join(CHARON_SOCKET);
    let refused = |what: &str, error: std::io::Error| {
        daemon.events.record(Kind::CharonRefused, "charon", format!("{what}: {error}"), &[]);
    };
    let process = match process_number::take(run_dir, state_dir) {
        Ok(process) => process,
        Err(error) => return refused("charon is not served, for want of a process number", error),
    };
    match CharonSocket::bind(&socket) {
        Ok(bound) => {
            let handles = HandleIssuer::new(process);
            tokio::spawn(charon::serve(bound, daemon.clone(), handles, heard));
        }
        Err(error) => refused(&format!("{}: the socket of charon", socket.display()), error),
    }
}

/// Good as long as every worker has come round its loop since it was asked last.
fn health(daemon: Arc<Daemon>) -> impl FnMut() -> Health {
    let mut last: Vec<u64> = Vec::new();
    move || {
        let picture = daemon.picture();
        let now: Vec<u64> = picture.workers.all().iter().map(Caller::turns).collect();
        let stalled = now.iter().zip(&last).position(|(now, last)| now == last);
        last = now;
        match stalled {
            None => Health::Good,
            Some(worker) => {
                let message = format!("worker {worker} is stalled: its loop does not complete");
                daemon.events.record(Kind::WorkerStalled, &worker.to_string(), &*message, &[]);
                Health::Bad(message)
            }
        }
    }
}
