//! Tenants behind Linux's VXLAN devices: round trips, TCP, and a stream of numbered packets, by
//! each way from host to host in turn.
//!
//! | way | packets go from host to host |
//! |---|---|
//! | `direct` | by the switch: hosts know each other |
//! | `linux` | by Linux, which forwards between the hosts' addresses |
//! | `kernel tier` | by the gateway, answered in the kernel |
//! | `kernel, group` | likewise, by a verdict of a group on each flow |
//! | `kernel, connection` | likewise, by verdicts on established connections; TCP only |
//! | `worker`, `2 workers` … | by the gateway's workers, each with a socket |
//! | `kernel tier, 2 sockets` … | answered in the kernel, in front of so many sockets |
//! | `kernel tier, generic`, `worker, generic` | with the XDP program in generic mode |
//!
//! All other ways through Lockgate have it in native mode.
//!
//! In rows of their own a stream goes over to the kernel: its endpoints take the places of others,
//! which they get when they were used for some seconds. A packet that overtakes another shows by
//! its number.

mod rows;
mod stage;

use std::time::{Duration, Instant};

use netlab::iperf::Tcp;
use netlab::ping::{Answers, Ping};
use netlab::stream::{Delivery, Stream};
use netlab::{LabError, Laboratory, interrupt};
use scene::Random;
use serde::Serialize;

use super::super::BenchError;
use super::{Course, Workers};
pub(super) use rows::Figures;
use stage::{Stage, tenant};

/// Pings of a round, and the time between two.
const PINGS: u32 = 1000;
const PING_INTERVAL: Duration = Duration::from_millis(1);
/// Connections of the runs with several.
const CONNECTIONS: u32 = 4;
/// The stream: UDP payload in bytes, and the time between two packets.
const STREAM_BYTES: usize = 100;
const STREAM_INTERVAL: Duration = Duration::from_micros(50);
/// Seconds at the begin of a TCP run that do not count; where a verdict has to be placed for each
/// flow, which a worker has to see for two whole seconds.
const OMITTED: u32 = 1;
const OMITTED_OF_FLOWS: u32 = 4;
/// Time of the stream before and behind the moment at which its endpoints go over, and time until
/// they have gone over.
const AROUND: Duration = Duration::from_secs(1);
const OVER_WITHIN: Duration = Duration::from_secs(30);
/// Time between two looks at the tier.
const LOOK: Duration = Duration::from_millis(50);

/// The gateway between the hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gateway {
    /// Hosts know each other.
    None,
    /// `ip_forward`.
    Linux,
    /// The daemon, with the value of `use` in its section `[kernel]`, what is in that of the
    /// network, and the value of `xdp` of its port.
    Lockgate { workers: u32, usage: &'static str, network: &'static str, xdp: &'static str },
}

/// The traffic that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Traffic {
    /// Pings, TCP of one connection and of several, numbered packets.
    All,
    /// Pings and TCP of several connections, once the kernel has the verdicts on their flows.
    Flows,
    /// TCP of several connections, once the kernel has the verdicts on them.
    Connections,
    /// Streams that go over to the kernel; a row each.
    Crossing,
}

/// A way from host to host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Way {
    /// Its name in rows, and in names of namespaces.
    what: &'static str,
    name: &'static str,
    gateway: Gateway,
    traffic: Traffic,
}

impl Way {
    /// Its workers, and queues of its netdevs.
    fn workers(&self) -> u32 {
        match self.gateway {
            Gateway::Lockgate { workers, .. } => workers,
            Gateway::None | Gateway::Linux => 1,
        }
    }
}

/// Networks with a group: packets are permitted each, or connections may begin.
const PERMITTED: &str = "groups_in = [\"all\"]\n\n[group.all]\n\n[[rule]]\ngroup = \"all\"\n\
                         name = \"all\"\naction = \"permit\"\nfrom = [\"any\"]\nto = [\"any\"]\n";
const REFLECTED: &str = "groups_in = [\"all\"]\n\n[group.all]\n\n[[rule]]\ngroup = \"all\"\n\
                         name = \"all\"\naction = \"reflect\"\nfrom = [\"any\"]\nto = [\"any\"]\n";

/// The modes of the gateway's XDP program: in the driver, and behind the kernel's own receiving.
const NATIVE: &str = "native";
const GENERIC: &str = "generic";

/// All ways on this machine.
fn ways(course: &Course) -> Vec<Way> {
    let lockgate = |workers, usage, xdp| Gateway::Lockgate { workers, usage, network: "", xdp };
    let asking = |network| Gateway::Lockgate { workers: 1, usage: "on", network, xdp: NATIVE };
    let way = |what, name, gateway, traffic| Way { what, name, gateway, traffic };
    let mut ways = vec![
        way("direct", "direct", Gateway::None, Traffic::All),
        way("linux", "linux", Gateway::Linux, Traffic::All),
        way("kernel, group", "group", asking(PERMITTED), Traffic::Flows),
        way("kernel, connection", "conn", asking(REFLECTED), Traffic::Connections),
        way("kernel tier, generic", "tgen", lockgate(1, "on", GENERIC), Traffic::All),
        way("worker, generic", "wgen", lockgate(1, "off", GENERIC), Traffic::All),
    ];
    for Workers { count, user, kernel } in course.workers() {
        ways.push(way(kernel.0, kernel.1, lockgate(count, "on", NATIVE), Traffic::All));
        ways.push(way(user.0, user.1, lockgate(count, "off", NATIVE), Traffic::All));
    }
    ways.push(way("crossing", "cross", lockgate(1, "on", NATIVE), Traffic::Crossing));
    ways
}

/// Figures of a way in one round.
#[derive(Clone, Debug, Default)]
struct Turn {
    ping: Option<Answers>,
    /// Gbit/s of one connection, and of several.
    tcp: [Option<f64>; 2],
    stream: Option<Steady>,
    percent_in_kernel: Option<f64>,
}

/// A stream whose way does not change.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Steady {
    packets_per_s: f64,
    sent: usize,
    lost: usize,
    reordered: usize,
}

/// A stream that goes over to the kernel: a row of the figures.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Crossing {
    /// Time from its first packet until both endpoints were in the kernel, s.
    after_s: f64,
    /// Packets that arrived a second, before and after.
    before_per_s: f64,
    after_per_s: f64,
    sent: usize,
    lost: usize,
    reordered: usize,
    /// Times that an endpoint stayed out because packets waited for a worker.
    deferred: u64,
}

/// Measures all ways.
///
/// # Errors
/// [`BenchError`].
pub(super) fn measure(course: &Course) -> Result<Figures, BenchError> {
    let ways = ways(course);
    let laboratory = Laboratory::new()?;
    // A pair of tenants for what lasts, and one for each crossing.
    let build = |way| Stage::build(&laboratory, way, 1 + course.rounds);
    let stages = ways.iter().map(build).collect::<Result<Vec<Stage>, BenchError>>()?;
    for (way, stage) in ways.iter().zip(&stages) {
        if matches!(way.gateway, Gateway::Lockgate { usage: "on", .. }) {
            stage.promote()?;
        }
    }
    let mut turns = vec![Vec::new(); ways.len()];
    let mut crossings = Vec::new();
    let mut random = Random::new(1);
    for round in 0..course.rounds {
        eprintln!("tenants, round {} of {}", round + 1, course.rounds);
        let mut order: Vec<usize> = (0..ways.len()).collect();
        random.shuffle(&mut order);
        for number in order {
            match ways[number].traffic {
                Traffic::Crossing => crossings.push(crossing(&stages[number], 1 + round)?),
                traffic => turns[number].push(turn(&stages[number], traffic, course.length)?),
            }
        }
    }
    let turns = ways.iter().map(|way| way.what).zip(&turns);
    Ok(Figures::of(turns.filter(|(_, turns)| !turns.is_empty()), crossings))
}

/// Measures a way once.
fn turn(stage: &Stage, traffic: Traffic, length: Duration) -> Result<Turn, BenchError> {
    let mut turn = Turn::default();
    let (from, to) = (stage.node(1), tenant(2, 0));
    let pings = |count| Ping { interval: PING_INTERVAL, ..Ping::new(&to, count) }.run(from);
    if traffic == Traffic::Flows {
        pings(OMITTED_OF_FLOWS * PINGS)?;
    }
    if traffic != Traffic::Connections {
        turn.ping = Some(pings(PINGS)?);
    }
    let omitted = if traffic == Traffic::All { OMITTED } else { OMITTED_OF_FLOWS };
    let tcp = |streams| Tcp { seconds: length.as_secs() as u32, omitted, streams };
    if traffic == Traffic::All {
        turn.tcp[0] = Some(tcp(1).run(from, &to)?);
        turn.stream = Some(steady(stage, length)?);
    }
    let running = tcp(CONNECTIONS).start(from, &to)?;
    interrupt::sleep(Duration::from_secs(omitted.into()))?;
    let before = stage.packets()?;
    turn.tcp[1] = Some(running.finish()?);
    let both = stage.packets()?.zip(before);
    turn.percent_in_kernel = both.and_then(|(after, before)| after.percent_in_kernel(before));
    Ok(turn)
}

fn start(stage: &Stage, number: usize) -> Result<Stream, LabError> {
    let [from, to] = stage.ends(number);
    Stream::start(from, to, STREAM_BYTES, STREAM_INTERVAL)
}

fn steady(stage: &Stage, length: Duration) -> Result<Steady, BenchError> {
    let stream = start(stage, 0)?;
    let from = Instant::now();
    interrupt::sleep(length)?;
    let to = Instant::now();
    let delivery = stream.finish();
    Ok(Steady {
        packets_per_s: rate(&delivery, from, to),
        sent: delivery.sent.len(),
        lost: delivery.lost(),
        reordered: delivery.reordered(),
    })
}

/// Packets that arrived a second from one moment to another.
fn rate(delivery: &Delivery, from: Instant, to: Instant) -> f64 {
    delivery.arrived_between(from, to) as f64 / to.duration_since(from).as_secs_f64()
}

/// Streams between two tenants that have not talked before, until they are in the kernel and for a
/// while after.
fn crossing(stage: &Stage, number: usize) -> Result<Crossing, BenchError> {
    // Who asks for a link address sends nothing meanwhile.
    let (source, to) = (tenant(1, number), tenant(2, number));
    Ping { from: Some(&source), ..Ping::new(&to, 2) }.run(stage.node(1))?;
    let before = stage.tier()?;
    let stream = start(stage, number)?;
    let began = Instant::now();
    let mut cold = began;
    let over = loop {
        let looked = Instant::now();
        let there = stage.tier()?.promoted - before.promoted;
        match there {
            0 => cold = looked,
            1 => {}
            _ => break Instant::now(),
        }
        if began.elapsed() > OVER_WITHIN {
            return Err(BenchError::NotPromoted { there, all: 2 });
        }
        interrupt::sleep(LOOK)?;
    };
    interrupt::sleep(AROUND)?;
    let end = Instant::now();
    let delivery = stream.finish();
    let deferred = stage.tier()?.deferred - before.deferred;
    // The last look at which both were cold is the last moment that is surely before.
    let from = cold.checked_sub(AROUND).map_or(began, |from| from.max(began));
    Ok(Crossing {
        after_s: over.duration_since(began).as_secs_f64(),
        before_per_s: rate(&delivery, from, cold),
        after_per_s: rate(&delivery, over, end),
        sent: delivery.sent.len(),
        lost: delivery.lost(),
        reordered: delivery.reordered(),
        deferred,
    })
}

#[cfg(test)]
mod tests {
    use netlab::Programs;

    use super::super::Cores;
    use super::*;

    /// Streams of a way that are measured until one comes in order.
    const TRIES: usize = 5;

    // BM-4f, BM-4i: each number of sockets, and each mode of XDP, has packets that the kernel
    // answers and packets that workers forward, and they are measured alike.
    #[test]
    fn hits_and_misses_are_measured_for_each_number_of_sockets_and_each_mode() {
        let cores = Cores::of((0..16).collect()).unwrap();
        let ways = ways(&Course { length: Duration::from_secs(1), rounds: 3, cores });
        let has = |workers, usage, xdp| {
            let gateway = Gateway::Lockgate { workers, usage, network: "", xdp };
            let is_it = |way: &&Way| way.gateway == gateway && way.traffic == Traffic::All;
            ways.iter().filter(is_it).count() == 1
        };
        for workers in [1, 2, 4, 8, 16] {
            assert!(["on", "off"].iter().all(|usage| has(workers, usage, "native")), "{workers}");
        }
        assert!(["on", "off"].iter().all(|usage| has(1, usage, "generic")));
        assert!(ways.iter().any(|way| way.gateway == Gateway::None));
    }

    #[test]
    fn every_way_carries_packets_in_their_order_and_the_kernel_answers_where_it_is_on() {
        let test = "every way of tenants";
        let (cores, laboratory) = match (Cores::look(), Laboratory::new(), Programs::find()) {
            (Ok(cores), Ok(laboratory), Ok(_)) => (cores, laboratory),
            (cores, laboratory, programs) => {
                let (cores, laboratory) = (cores.err(), laboratory.err());
                let programs = programs.err();
                return eprintln!("SKIPPED: {test}: {cores:?} {laboratory:?} {programs:?}");
            }
        };
        let length = Duration::from_millis(300);
        for way in ways(&Course { length, rounds: 1, cores }) {
            let stage = Stage::build(&laboratory, &way, 1).unwrap();
            let (usage, xdp) = match way.gateway {
                Gateway::Lockgate { usage, xdp, .. } => (usage, Some(xdp.to_owned())),
                Gateway::None | Gateway::Linux => ("none", None),
            };
            assert_eq!(stage.mode().unwrap(), xdp, "{}", way.what);
            if usage == "on" {
                stage.promote().unwrap();
            }
            let before = stage.packets().unwrap();
            // A sender that the kernel moves to another core, on a busy machine, overtakes itself
            // in the cores' queues: then the stream is measured again.
            let mut streams = (0..TRIES).map(|_| steady(&stage, length).unwrap());
            let in_order = streams.find(|stream| stream.reordered == 0);
            let both = stage.packets().unwrap().zip(before);
            let percent = both.and_then(|(after, before)| after.percent_in_kernel(before));
            let what = way.what;
            // A flow that goes over while a worker is busy may overtake itself, too.
            let may_overtake = matches!(way.traffic, Traffic::Flows | Traffic::Connections);
            assert!(in_order.is_some() || may_overtake, "{what}: never in order");
            let is_carried = |stream: Steady| stream.sent > 0 && stream.lost < stream.sent;
            assert!(in_order.is_none_or(is_carried), "{what}: {in_order:?}");
            match (usage, way.traffic) {
                ("none", _) => assert_eq!(percent, None, "{what}"),
                ("off", _) => assert_eq!(percent, Some(0.0), "{what}"),
                // Flows have no verdicts yet.
                (_, Traffic::Flows | Traffic::Connections) => assert!(percent.is_some(), "{what}"),
                _ => assert!(percent.is_some_and(|percent| percent > 99.0), "{what}: {percent:?}"),
            }
        }
    }
}
