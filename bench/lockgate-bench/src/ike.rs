//! `lockgate bench ike`: the CHILD_SAs of an IKE daemon. The bench speaks to the daemon as the
//! plugin in charon does, one request after the other, and the daemon runs in a laboratory with its
//! workers and clocks.
//!
//! | column | measured from … to |
//! |---|---|
//! | install | the first request of the first child … the last answer of the last one |
//! | request | with all children there: one request is sent … its answer is read |
//! | worker | CPU time of the daemon's worker thread, a child: waking and sleeping again too |
//! | snapshots | snapshots that the worker went over to, a child |
//! | each | time that the worker took for one: it processes no packet meanwhile |
//! | memory | the daemon's resident memory with all children, and before the first |
//!
//! A child takes six requests, as with charon: an SPI, two SAs, a policy in each of three
//! directions. With all of them there, others come and go one after the other, and each kind of
//! request has its own times.

mod children;
mod plugin;
mod rows;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use netlab::sites::Plan;
use netlab::{Gateways, interrupt};
use serde::Serialize;

use super::machine::{self, Machine};
use super::{ArgumentError, BenchError, publish};
use children::Child;
use plugin::Plugin;
use rows::{Kind, Row, Times};

/// Children at least and at most: what `max_children` may be.
const LEAST: usize = 1;
const MOST: usize = 65_000;
/// Time that the daemon has to come to rest before its memory is read: it frees beside its work,
/// and keeps a minute of samples.
const REST: Duration = Duration::from_secs(3);

/// Arguments of `lockgate bench ike`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct IkeArguments {
    /// Numbers of CHILD_SAs, 1 to 65000.
    #[arg(long, value_delimiter = ',', default_values_t = [300, 10_000])]
    children: Vec<usize>,
    /// Children that come and go when all are there.
    #[arg(long, default_value_t = 500)]
    probes: usize,
    /// Seconds to wait before the memory is read a second time.
    #[arg(long, default_value_t = 0)]
    settle: u64,
    /// Writes the figures as JSON; "-": to standard output, and the table to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    commit: String,
    rows: Vec<Row>,
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &IkeArguments) -> Result<(), BenchError> {
    let IkeArguments { children, probes, settle, json } = arguments;
    ArgumentError::check("--children", children, LEAST, MOST).map_err(BenchError::Argument)?;
    let probed = std::slice::from_ref(probes);
    ArgumentError::check("--probes", probed, LEAST, MOST).map_err(BenchError::Argument)?;
    interrupt::listen()?;
    let (machine, commit) = (Machine::look(None), machine::commit());
    let settle = Duration::from_secs(*settle);
    let rows = children.iter().map(|count| row(*count, *probes, settle));
    let rows = rows.collect::<Result<Vec<Row>, BenchError>>()?;
    let text = rows::text(&rows);
    publish(&Report { bench: "ike", machine, commit, rows }, &text, json.as_deref())
}

/// Measures a daemon of its own with so many children.
fn row(count: usize, probes: usize, settle: Duration) -> Result<Row, BenchError> {
    let mut gateways = Gateways::build(Plan::default())?;
    gateways.file_mut(1).extra = children::bounds(count + 1);
    gateways.start(1)?;
    let process = gateways.daemon(1)?.pid();
    let mut plugin = Plugin::connect(&gateways.file(1).run_dir().join("charon.sock"))?;
    let taken = gateways.daemon(1)?.changeovers()?;
    let before = (memory_kib(process)?, worker_time(process)?);
    let began = Instant::now();
    for number in 0..count {
        Child::new(number).install(&mut plugin, &mut Times::default())?;
    }
    let install = began.elapsed();
    let worker = worker_time(process)?.saturating_sub(before.1);
    let taken = gateways.daemon(1)?.changeovers()?.since(taken);
    let mut times = Times::default();
    for probe in 0..probes {
        // Each of them is another: a key is never taken twice.
        let child = Child::between(count + probe, count);
        let handles = child.install(&mut plugin, &mut times)?;
        Child::ask(handles, &mut plugin, &mut times)?;
        child.remove(handles, &mut plugin, &mut times)?;
    }
    std::thread::sleep(REST);
    let memory = memory_kib(process)?;
    std::thread::sleep(settle);
    let settled = memory_kib(process)?;
    Ok(Row {
        children: count,
        install_s: install.as_secs_f64(),
        worker_us: worker.as_secs_f64() * 1e6 / count as f64,
        snapshots: taken.count as f64 / count as f64,
        snapshot_us: taken.each_us(),
        snapshot_longest_us: taken.longest_ns as f64 / 1e3,
        memory_mb: mb(memory.max(settled)),
        before_mb: mb(before.0),
        requests: times.summed(),
    })
}

fn mb(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}

/// Resident memory of a process.
fn memory_kib(process: u32) -> Result<u64, BenchError> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(path).map_err(BenchError::system("memory"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.ok_or_else(|| BenchError::system("memory")(std::io::Error::other("no VmRSS")))
}

/// CPU time of a daemon's worker threads so far.
fn worker_time(process: u32) -> Result<Duration, BenchError> {
    let failed = || BenchError::system("the daemon's threads");
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).map_err(failed())?;
    let mut sum = Duration::ZERO;
    for task in tasks {
        let task = task.map_err(failed())?.path();
        let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        if read("comm").starts_with("worker-") {
            let ran = read("schedstat");
            let ns = ran.split_whitespace().next().and_then(|ns| ns.parse().ok());
            sum += Duration::from_nanos(ns.unwrap_or(0));
        }
    }
    Ok(sum)
}

/// The kinds of requests, in the order of the table.
const KINDS: [Kind; 6] =
    [Kind::Spi, Kind::AddSa, Kind::AddPolicy, Kind::Query, Kind::DeletePolicy, Kind::DeleteSa];
