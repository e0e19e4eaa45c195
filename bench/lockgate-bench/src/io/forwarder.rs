//! The forwarders: the kernel, an XDP program, a bare forwarder over AF_XDP, and the daemon.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bpf::Steering;
use bpf::traffic::Constant;
use io::BareForwarder;
use netlab::{Daemon, LabError, Laboratory, Namespace, Programs};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use xsk::{Socket, Umem};

use super::super::BenchError;
use super::lane::{Cores, PORTS, index};

/// Packets by reason why they did not leave.
pub(crate) type Drops = BTreeMap<String, u64>;

/// Frames in a fill ring and in a transmit ring, as in the daemon.
const QUOTA: u32 = 1024;
/// Time that the bare forwarder sleeps at most.
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Name of the bare forwarder's thread, and beginning of the names of the daemon's.
const BARE_THREAD: &str = "bare";
const WORKER_THREADS: &str = "worker-";

/// A forwarder under test.
pub(crate) enum Forwarder {
    /// Linux: `ip_forward`.
    Kernel,
    /// An XDP program that sends out of the other port; held as long as it is measured.
    Program(#[expect(dead_code, reason = "it works by being there")] Constant),
    /// Two sockets, link addresses swapped, no walk.
    Bare(Bare),
    /// `lockgated` with one worker between two protected ports: the real walk, checks, counters.
    Lockgate(Box<Daemon>),
}

/// The part of a daemon's configuration that a bench adds.
#[derive(Clone, Copy)]
pub(crate) struct Extra<'a> {
    /// Name of its directory.
    pub(crate) name: &'a str,
    /// Its workers.
    pub(crate) workers: u32,
    /// Its ports: name and netdev, all of them protected.
    pub(crate) ports: &'a [&'a str],
    /// The value of `xdp` of every port.
    pub(crate) xdp: &'a str,
    /// Sections behind those of the ports.
    pub(crate) sections: &'a str,
}

impl Default for Extra<'_> {
    fn default() -> Self {
        Extra { name: "", workers: 1, ports: &PORTS, xdp: "auto", sections: "" }
    }
}

impl Forwarder {
    /// Its name in rows.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Forwarder::Kernel => "kernel",
            Forwarder::Program(_) => "program",
            Forwarder::Bare(_) => "bare",
            Forwarder::Lockgate(_) => "lockgate",
        }
    }

    /// Puts the threads that forward on their cores; the kernel has none.
    pub(super) fn pin(&self, cores: &Cores) -> Result<(), BenchError> {
        let pinned = match self {
            Forwarder::Kernel | Forwarder::Program(_) => Ok(()),
            Forwarder::Bare(_) => pin_threads(std::process::id(), BARE_THREAD, cores),
            Forwarder::Lockgate(daemon) => pin_threads(daemon.pid(), WORKER_THREADS, cores),
        };
        pinned.map_err(BenchError::system("pinning the forwarder"))
    }

    /// Returns the forwarder's drops.
    pub(super) fn drops(&self, gateway: &Namespace) -> Result<Drops, BenchError> {
        match self {
            Forwarder::Kernel | Forwarder::Program(_) => kernel_drops(gateway),
            Forwarder::Bare(bare) => Ok(bare.drops()),
            Forwarder::Lockgate(daemon) => {
                let counters = daemon.counters()?;
                let drops = counters.drops.into_iter().filter(|(_, count)| *count > 0);
                Ok(drops.collect())
            }
        }
    }
}

fn kernel_drops(gateway: &Namespace) -> Result<Drops, BenchError> {
    let mut drops = Drops::new();
    for netdev in PORTS {
        let answer = gateway.ip_json(&["-s", "link", "show", "dev", netdev])?;
        for direction in ["rx", "tx"] {
            let path = format!("/0/stats64/{direction}/dropped");
            let count = answer.pointer(&path).and_then(serde_json::Value::as_u64).unwrap_or(0);
            drops.insert(format!("{netdev}_{direction}_dropped"), count);
        }
    }
    Ok(drops)
}

/// The bare forwarder in its thread.
pub(crate) struct Bare {
    stop: Arc<AtomicBool>,
    drops: Arc<Mutex<Drops>>,
    thread: Option<JoinHandle<()>>,
}

impl Bare {
    /// Takes both ports and starts the thread.
    pub(super) fn start(gateway: &Namespace) -> Result<Bare, BenchError> {
        Bare::with(gateway, BareForwarder::new)
    }

    /// Takes both ports and starts the thread, with the forwarder that `make` makes.
    pub(crate) fn with(
        gateway: &Namespace,
        make: impl FnOnce(Umem, [Socket; 2]) -> BareForwarder,
    ) -> Result<Bare, BenchError> {
        let umem = Umem::new(4 * 2 * QUOTA)?;
        let indexes = [index(gateway, PORTS[0])?, index(gateway, PORTS[1])?];
        let sockets = gateway.enter(|| {
            let [left, right] = indexes;
            Ok::<_, BenchError>([open(&umem, left)?, open(&umem, right)?])
        })??;
        let (stop, drops) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Drops>>::default());
        let (stopped, counted) = (stop.clone(), drops.clone());
        let forwarder = make(umem, sockets);
        let thread = std::thread::Builder::new()
            .name(BARE_THREAD.to_owned())
            .spawn(move || forward(forwarder, &stopped, &counted))
            .map_err(BenchError::system("starting a thread"))?;
        Ok(Bare { stop, drops, thread: Some(thread) })
    }

    /// Returns the drops counted up to the forwarder's last idle moment.
    fn drops(&self) -> Drops {
        self.drops.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // What it measured is not asked for any more.
            let _ = thread.join();
        }
    }
}

/// A socket on the only queue of a netdev, behind a steering program that sends it everything.
fn open(umem: &Umem, ifindex: u32) -> Result<Socket, BenchError> {
    let options =
        xsk::Options { receive_frames: QUOTA, transmit_ring: QUOTA, ..xsk::Options::default() };
    let socket = Socket::open(umem.area(), ifindex, 0, &options)?;
    let steering = Steering::load(1, 1)?;
    steering.set_queue(0, Some(socket.as_fd()))?;
    steering.attach(ifindex)?;
    Ok(socket)
}

fn forward(mut forwarder: BareForwarder, stop: &AtomicBool, drops: &Mutex<Drops>) {
    while !stop.load(Ordering::Relaxed) {
        if forwarder.turn() > 0 {
            continue;
        }
        let mut waits = forwarder.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // A signal: the next turn sees.
        if poll(&mut waits, Some(&SLEEP)) == Ok(0) {
            *drops.lock().unwrap_or_else(PoisonError::into_inner) = bare_drops(&forwarder);
        }
    }
}

fn bare_drops(forwarder: &BareForwarder) -> Drops {
    let mut drops = Drops::from([("transmit_full".to_owned(), forwarder.dropped())]);
    for (statistics, port) in forwarder.statistics().iter().zip(PORTS) {
        let kernel = statistics.kernel;
        for (name, count) in
            [("receive_ring_full", kernel.rx_ring_full), ("receive_dropped", kernel.rx_dropped)]
        {
            if count > 0 {
                drops.insert(format!("{port}_{name}"), count);
            }
        }
    }
    drops
}

/// Starts the daemon, between two protected ports unless it is to have others.
pub(crate) fn lockgate(
    laboratory: &Laboratory,
    gateway: &Namespace,
    extra: Extra<'_>,
) -> Result<Daemon, BenchError> {
    let programs = Programs::find()?;
    let directory = laboratory.directory().join(extra.name);
    let path = directory.join("lockgate.toml");
    let socket = directory.join("run/api.sock");
    write_configuration(&directory, &path, extra).map_err(LabError::file(&path))?;
    let mut daemon = Daemon::launch_with(&programs, gateway, &path, socket)?;
    daemon.wait_ready()?;
    Ok(daemon)
}

fn write_configuration(directory: &Path, path: &Path, extra: Extra<'_>) -> std::io::Result<()> {
    for folder in ["run", "state", "keys"] {
        std::fs::create_dir_all(directory.join(folder))?;
    }
    let Extra { workers, ports, xdp, sections, .. } = extra;
    let folder = directory.display();
    let mut text = format!(
        "[node]
name = \"bench\"
workers = {workers}
keys_dir = \"{folder}/keys\"
run_dir = \"{folder}/run\"
state_dir = \"{folder}/state\"

[metrics]
listen = \"off\"
"
    );
    for port in ports {
        text += &format!(
            "\n[port.{port}]\nnetdev = \"{port}\"\nside = \"protected\"\nxdp = \"{xdp}\"\n"
        );
    }
    std::fs::write(path, text + sections)
}

/// Puts the threads of a process whose names begin so on cores: that of the first queue, unless the
/// name goes on with another number.
fn pin_threads(process: u32, name: &str, cores: &Cores) -> std::io::Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?;
        let found = std::fs::read_to_string(thread.path().join("comm"))?;
        let Some(queue) = found.strip_prefix(name) else { continue };
        let mut set = CpuSet::new();
        set.set(cores.forwarder(queue.trim().parse().unwrap_or(0)));
        let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
        sched_setaffinity(number.and_then(Pid::from_raw), &set)?;
    }
    Ok(())
}

/// CPU time of all threads of a process.
pub(super) fn cpu_time(process: u32) -> std::io::Result<Duration> {
    let mut total = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let on_core = text.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
        total += on_core.ok_or(std::io::ErrorKind::InvalidData)?;
    }
    Ok(Duration::from_nanos(total))
}
