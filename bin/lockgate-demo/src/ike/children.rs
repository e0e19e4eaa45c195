//! 300 CHILD_SAs, one after another and beside streams, each with a peer and a policy of its own.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use netlab::capture::Scope;
use netlab::daemon::{Changeovers, Daemon};
use netlab::stream::Stream;
use netlab::vici::Vici;
use netlab::{LabError, interrupt};

use super::plan::Further;
use super::report::Cost;
use super::stage::{A, B, Stage};
use crate::report::Check;

/// CHILD_SAs.
const CHILDREN: u16 = 300;
/// The time for which the streams are alone.
const ALONE: Duration = Duration::from_secs(1);
/// Port that their packets are sent to.
const PORT: u16 = 7008;

/// Establishes them, and sends a packet each way by each.
pub(super) fn many(stage: &mut Stage) -> Result<(), LabError> {
    let proof = stage.proof();
    for number in [A, B] {
        let further: Vec<Further> = (1..=CHILDREN).map(|child| further(number, child)).collect();
        stage.load(number, &proof, &further)?;
        let sections: String =
            further.iter().map(|further| stage.end(number).lockgate_further(further)).collect();
        let file = stage.gateways.file_mut(number);
        file.extra += &sections;
        let path = file.write()?;
        stage.gateways.daemon(number)?.apply(&path)?;
        routes(stage, number)?;
    }
    let present = stage.sas(A)?.len();
    let capture = stage.capture(Scope::Heads)?;
    let mut vici = Vici::connect(&stage.charon(A)?.socket())?;
    // The tunnel is there already, or comes with the first: not counted.
    let step = Duration::from_millis(2);
    let streams = [stage.gateways.stream(A, B, step)?, stage.gateways.stream(B, A, step)?];
    let before = Before::look(stage.gateways.daemon(A)?)?;
    let began = Instant::now();
    for child in 1..=CHILDREN {
        interrupt::check()?;
        vici.initiate(&name(child))?;
    }
    let took = began.elapsed();
    stage.report.cost = Some(before.cost(stage.gateways.daemon(A)?, took)?);
    let (lost, sent) = stage.note_lost(&streams.map(Stream::finish));
    let installed = [stage.sas(A)?.len() - present, stage.sas(B)?.len() - present];
    let arrived = packet_by_each(stage)?;
    let wire = stage.add_capture(capture)?;
    let children = u64::from(CHILDREN);
    stage.report.ike.children += children;
    stage.report.ike.lost += 2 * children - arrived as u64;
    let expected = usize::from(2 * CHILDREN);
    let rate = children as f64 / took.as_secs_f64();
    // Two SPIs of each, besides what else is there.
    let spis = wire.spis().len();
    stage.note(Check {
        name: "300 CHILD_SAs one after another beside streams, and a packet each way by each",
        ok: installed == [expected; 2]
            && arrived == expected
            && spis >= expected
            && wire.clear == 0
            && lost == 0
            && sent > 0,
        detail: format!(
            "{} ms, {rate:.0} a second; {lost} of {sent} packets of the streams lost; \
             {installed:?} SAs more; {arrived} of {expected} packets arrived, by {spis} SAs",
            took.as_millis()
        ),
    });
    stage.note_time("300 CHILD_SAs one after another (target: 1500 ms)", Some(took));
    Ok(())
}

fn name(child: u16) -> String {
    format!("c{child}")
}

/// The network of a child behind a gateway, of 16 addresses; and its first address.
fn network(number: u8, child: u16) -> (String, IpAddr) {
    let [high, low] = (child << 4).to_be_bytes();
    let address = |last| IpAddr::from([10, 100 + number, high, last]);
    (format!("{}/28", address(low)), address(low + 1))
}

fn further(number: u8, child: u16) -> Further {
    let networks = [number, other(number)].map(|number| network(number, child).0);
    Further { name: name(child), networks }
}

fn other(number: u8) -> u8 {
    if number == A { B } else { A }
}

/// Gives a host all addresses of its networks, and its gateway the way to them and to the others.
fn routes(stage: &Stage, number: u8) -> Result<(), LabError> {
    let (site, far) = (stage.gateways.site(number), stage.gateways.site(other(number)));
    let networks = |number: u8| format!("10.{}.0.0/16", 100 + number);
    site.host.ip(&format!("route replace local {} dev lo", networks(number)))?;
    site.gateway.ip(&format!(
        "route replace {} via {}\nroute replace {} via {}",
        networks(number),
        site.host_v4(),
        networks(other(number)),
        far.wan_v4()
    ))
}

/// Sends a packet by each child from host a to host b, and one back. Returns how many arrived.
fn packet_by_each(stage: &Stage) -> Result<usize, LabError> {
    let open = |number: u8| -> Result<Vec<UdpSocket>, LabError> {
        let bind = |child| UdpSocket::bind(SocketAddr::new(network(number, child).1, PORT));
        let opened = stage
            .gateways
            .site(number)
            .host
            .enter(|| (1..=CHILDREN).map(bind).collect::<std::io::Result<Vec<_>>>())?;
        opened.map_err(LabError::socket("cannot open a socket for a child"))
    };
    let sockets = [open(A)?, open(B)?];
    let mut arrived = 0;
    for [from, to] in [[A, B], [B, A]] {
        let [senders, receivers] = [from, to].map(|number| &sockets[usize::from(number - A)]);
        for (child, sender) in (1..).zip(senders) {
            let target = SocketAddr::new(network(to, child).1, PORT);
            let sent = sender.send_to(&netlab::capture::MARKER, target);
            sent.map_err(LabError::socket("cannot send a packet"))?;
        }
        // From the right one alone.
        let mut seen = BTreeSet::new();
        let end = Instant::now() + Duration::from_secs(5);
        for (child, receiver) in (1..).zip(receivers) {
            let left = end.saturating_duration_since(Instant::now());
            let limit = Some(left.max(Duration::from_millis(1)));
            receiver.set_read_timeout(limit).map_err(LabError::socket("cannot set a limit"))?;
            if let Ok((_, source)) = receiver.recv_from(&mut [0; 64]) {
                let is_right = source.ip() == network(from, child).1;
                seen.extend(is_right.then_some(child));
            }
        }
        arrived += seen.len();
    }
    Ok(arrived)
}

/// A daemon before the CHILD_SAs, with streams alone.
struct Before {
    changeovers: Changeovers,
    memory_kib: u64,
    used: Used,
    /// Shares of a processor that its threads use for the streams.
    alone: [f64; 2],
}

impl Before {
    /// Looks at it for [`ALONE`].
    fn look(daemon: &Daemon) -> Result<Before, LabError> {
        let (pid, changeovers) = (daemon.pid(), daemon.changeovers()?);
        let first = Used::of(pid)?;
        interrupt::sleep(ALONE)?;
        let used = Used::of(pid)?;
        let alone = used.since(first).map(|time| time.as_secs_f64() / ALONE.as_secs_f64());
        Ok(Before { changeovers, memory_kib: resident_kib(pid)?, used, alone })
    }

    /// The cost of a CHILD_SA, beyond that of the streams in this time.
    fn cost(self, daemon: &Daemon, took: Duration) -> Result<Cost, LabError> {
        let used = Used::of(daemon.pid())?.since(self.used);
        let made = daemon.changeovers()?.since(self.changeovers);
        let each = |time: Duration, alone: f64| {
            (time.as_secs_f64() - alone * took.as_secs_f64()) * 1e6 / f64::from(CHILDREN)
        };
        Ok(Cost {
            memory_before_kib: self.memory_kib,
            memory_after_kib: resident_kib(daemon.pid())?,
            worker_us: each(used[0], self.alone[0]),
            others_us: each(used[1], self.alone[1]),
            snapshots: made.count as f64 / f64::from(CHILDREN),
            snapshot_us: made.each_us(),
        })
    }
}

/// Processor time of a daemon's threads.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    workers: Duration,
    others: Duration,
}

impl Used {
    /// Time of workers, and of the others, since then.
    fn since(self, then: Used) -> [Duration; 2] {
        [(self.workers, then.workers), (self.others, then.others)]
            .map(|(now, then)| now.saturating_sub(then))
    }

    /// Reads it of all threads that there are.
    fn of(pid: u32) -> Result<Used, LabError> {
        let folder = format!("/proc/{pid}/task");
        let mut used = Used::default();
        for task in std::fs::read_dir(&folder).map_err(LabError::file(&folder))?.flatten() {
            // One that has ended meanwhile has used nothing of note.
            let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let times = read("schedstat");
            let ran = times.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(0);
            match read("comm").starts_with("worker") {
                true => used.workers += Duration::from_nanos(ran),
                false => used.others += Duration::from_nanos(ran),
            }
        }
        Ok(used)
    }
}

/// Memory of a process, in KiB.
fn resident_kib(pid: u32) -> Result<u64, LabError> {
    let file = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(Path::new(&file)).map_err(LabError::file(&file))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    Ok(line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0))
}
