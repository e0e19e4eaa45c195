//! `lockgate bench io`: the packets that one worker forwards on real ports, compared with a
//! forwarder that does nothing and with the kernel, on the same topology in one run.
//!
//! Three lanes of namespaces, one per forwarder, joined by veths. The generator makes frames in
//! the kernel on one core, the forwarder works on another; the sink counts and drops. Rounds go
//! over all lanes and sizes in random order; a figure is the median of its rounds. The generator
//! offers more than any forwarder can carry: what is lost is shown.

pub(crate) mod forwarder;
pub(crate) mod lane;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bpf::traffic::Generator;
use comfy_table::{Table, presets};
use netlab::laboratory::connect;
use netlab::ping::percentile;
use netlab::{Laboratory, Namespace, interrupt};
use serde::Serialize;
use wire::build::PacketBuilder;

use super::machine::{self, Machine};
use super::{ArgumentError, BenchError, publish};
use forwarder::{Bare, Drops, Extra, Forwarder, cpu_time};
use lane::{Cores, FORWARDER, HOST, Lane, Rate, Sample, index};
use scene::Random;

/// Rounds at least.
const LEAST_ROUNDS: usize = 5;
/// Flows of the traffic.
const FLOWS: usize = 4096;
/// Bytes of an Ethernet header.
const LINK_BYTES: usize = 14;
/// Frames measured: family and bytes. An IPv6 header and UDP leave no room for 60.
const FRAMES: [(u8, usize); 4] = [(4, 60), (4, 1514), (6, 62), (6, 1514)];
/// Pings of one round, and the time between two.
const PINGS: u32 = 200;
const PING_INTERVAL: Duration = Duration::from_millis(5);
/// Time over which the idle daemon is watched.
const IDLE: Duration = Duration::from_secs(5);
/// Time for everybody to see that there is nothing more to do.
const SETTLE: Duration = Duration::from_millis(500);

/// Arguments of `lockgate bench io`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct IoArguments {
    /// Seconds of each measurement; there are 12 a round.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Rounds, at least 5.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Writes the figures as JSON; "-": to standard output, and the tables to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One forwarder, one kind of frame.
#[derive(Clone, Debug, Serialize)]
struct Row {
    what: &'static str,
    /// Bytes of a frame without its checksum.
    size: usize,
    family: u8,
    gbps: f64,
    ratio_to_bare: f64,
    #[serde(flatten)]
    rate: Rate,
}

/// Round trips through one forwarder.
#[derive(Clone, Debug, Serialize)]
struct PingRow {
    what: &'static str,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    sent: u64,
    answered: u64,
}

/// The report that `--json` writes.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    commit: String,
    seconds: u64,
    flows: usize,
    generator_core: usize,
    forwarder_core: usize,
    rows: Vec<Row>,
    ping: Vec<PingRow>,
    /// CPU of the daemon without traffic, in percent of one core.
    idle_cpu_percent: f64,
    /// Packets by reason over the whole run, for each forwarder, as it counts them.
    drops: BTreeMap<&'static str, Drops>,
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &IoArguments) -> Result<(), BenchError> {
    let &IoArguments { seconds, rounds, ref json } = arguments;
    if !(LEAST_ROUNDS..=1000).contains(&rounds) {
        let (name, least, most) = ("--rounds", LEAST_ROUNDS, 1000);
        let error = ArgumentError::Range { name, found: rounds, least, most };
        return Err(BenchError::Argument(error));
    }
    interrupt::listen()?;
    let cores = Cores::look()?;
    let laboratory = Laboratory::new()?;
    let lanes = [
        Lane::build(&laboratory, ("kernel", 1), |_| Ok(Forwarder::Kernel))?,
        Lane::build(&laboratory, ("bare", 1), |ns| Ok(Forwarder::Bare(Bare::start(ns)?)))?,
        Lane::build(&laboratory, ("lockgate", 1), |ns| {
            let extra = Extra { name: "lockgate", ..Extra::default() };
            let daemon = forwarder::lockgate(&laboratory, ns, extra)?;
            Ok(Forwarder::Lockgate(Box::new(daemon)))
        })?,
    ];
    interrupt::sleep(SETTLE)?;
    let ping = pings(&lanes, rounds)?;
    let idle_cpu_percent = idle_cpu(&lanes)?;
    lanes.iter().try_for_each(|lane| lane.load(&cores))?;
    let (generators, _held) = generators(&laboratory)?;
    let samples = samples(&lanes, &generators, rounds, Duration::from_secs(seconds), &cores)?;
    interrupt::sleep(SETTLE)?;
    let mut drops = BTreeMap::new();
    for lane in &lanes {
        drops.insert(lane.forwarder.name(), lane.drops()?);
    }
    let report = Report {
        bench: "io",
        machine: Machine::look(Some(cores.forwarder(0))),
        commit: machine::commit(),
        seconds,
        flows: FLOWS,
        generator_core: cores.generator(0),
        forwarder_core: cores.forwarder(0),
        rows: rows(&lanes, &samples),
        ping,
        idle_cpu_percent,
        drops,
    };
    publish(&report, &text(&report), json.as_deref())
}

fn generator(family: u8, size: usize) -> Result<Generator, BenchError> {
    let (frame, ports_at) = frame(family, size);
    Ok(Generator::load(&frame, ports_at, FLOWS)?)
}

/// A frame of a kind, from the source to the sink, and where its UDP ports are.
fn frame(family: u8, size: usize) -> (Vec<u8>, usize) {
    let (builder, header) = match family {
        4 => (PacketBuilder::between("10.9.1.2", "10.9.2.2"), LINK_BYTES + 20),
        _ => (PacketBuilder::between("fd09:1::2", "fd09:2::2"), LINK_BYTES + 40),
    };
    const UDP_BYTES: usize = 8;
    // Any pair of ports that add nothing to the checksum.
    let builder = builder.udp(0x4000, !0x4000).payload_of(size - header - UDP_BYTES);
    (builder.frame(FORWARDER, HOST, None), header)
}

/// One for each of [`FRAMES`]. They are held by netdevs of a namespace of their own, both ends of
/// two pairs.
fn generators(laboratory: &Laboratory) -> Result<(Vec<Generator>, Namespace), BenchError> {
    const HOLDERS: [[&str; 2]; 2] = [["hold0", "hold1"], ["hold2", "hold3"]];
    const _: () = assert!(2 * HOLDERS.len() >= FRAMES.len());
    let namespace = laboratory.namespace("hold")?;
    for [one, other] in HOLDERS {
        connect((&namespace, one), (&namespace, other), 1)?;
    }
    let mut generators = Vec::new();
    for ((family, size), holder) in FRAMES.into_iter().zip(HOLDERS.as_flattened()) {
        let generator = generator(family, size)?;
        let index = index(&namespace, holder)?;
        namespace.enter(|| generator.hold(index))??;
        generators.push(generator);
    }
    Ok((generators, namespace))
}

/// Round trips of all lanes, in turn.
fn pings(lanes: &[Lane], rounds: usize) -> Result<Vec<PingRow>, BenchError> {
    let mut times = vec![Vec::new(); lanes.len()];
    let mut counts = vec![(0, 0); lanes.len()];
    for _ in 0..rounds {
        for (place, lane) in lanes.iter().enumerate() {
            let answers = lane.ping(PINGS, PING_INTERVAL)?;
            counts[place].0 += answers.sent;
            counts[place].1 += answers.received;
            times[place].extend(answers.times_us);
        }
    }
    let rows = lanes.iter().zip(times).zip(counts).map(|((lane, mut times), (sent, answered))| {
        times.sort_by(f64::total_cmp);
        let [p50_us, p99_us] = [0.5, 0.99].map(|part| percentile(&times, part));
        PingRow { what: lane.forwarder.name(), p50_us, p99_us, sent, answered }
    });
    Ok(rows.collect())
}

/// CPU of the daemon while nothing comes, in percent of a core.
fn idle_cpu(lanes: &[Lane]) -> Result<f64, BenchError> {
    let daemons = lanes.iter().filter_map(|lane| match &lane.forwarder {
        Forwarder::Lockgate(daemon) => Some(daemon.pid()),
        Forwarder::Kernel | Forwarder::Program(_) | Forwarder::Bare(_) => None,
    });
    let mut percent = 0.0;
    for process in daemons {
        let time = || cpu_time(process).map_err(BenchError::system("reading CPU times"));
        let before = time()?;
        interrupt::sleep(IDLE)?;
        percent += time()?.saturating_sub(before).as_secs_f64() / IDLE.as_secs_f64() * 100.0;
    }
    Ok(percent)
}

/// For each kind of frame, for each lane: its samples.
type Samples = Vec<Vec<Vec<Sample>>>;

fn samples(
    lanes: &[Lane],
    generators: &[Generator],
    rounds: usize,
    seconds: Duration,
    cores: &Cores,
) -> Result<Samples, BenchError> {
    let mut samples: Samples = vec![vec![Vec::new(); lanes.len()]; FRAMES.len()];
    let mut random = Random::new(1);
    for round in 0..rounds {
        let mut order: Vec<(usize, usize)> =
            (0..FRAMES.len()).flat_map(|kind| (0..lanes.len()).map(move |l| (kind, l))).collect();
        random.shuffle(&mut order);
        eprintln!("round {} of {rounds}", round + 1);
        for (kind, lane) in order {
            let size = FRAMES[kind].1;
            let sample = lanes[lane].sample(&generators[kind], size, seconds, cores)?;
            samples[kind][lane].push(sample);
        }
    }
    Ok(samples)
}

fn rows(lanes: &[Lane], samples: &Samples) -> Vec<Row> {
    let mut rows = Vec::new();
    for ((family, size), kind) in FRAMES.into_iter().zip(samples) {
        let bare = lanes.iter().position(|lane| matches!(lane.forwarder, Forwarder::Bare(_)));
        let bare = bare.map_or(f64::NAN, |place| Rate::of(&kind[place]).mpps);
        for (lane, samples) in lanes.iter().zip(kind) {
            let rate = Rate::of(samples);
            rows.push(Row {
                what: lane.forwarder.name(),
                size,
                family,
                gbps: rate.gbps(size),
                ratio_to_bare: rate.mpps / bare,
                rate,
            });
        }
    }
    rows
}

/// The report for a reader.
fn text(report: &Report) -> String {
    let Machine { cpu, cores, kernel, .. } = &report.machine;
    let mut text = format!(
        "bench io, commit {}\n{cpu}, {cores} cores, Linux {kernel}; generator on core {}, \
         forwarder on core {}\nveth, AF_XDP in copy mode; UDP in {} flows\n\n",
        report.commit, report.generator_core, report.forwarder_core, report.flows
    );
    text += &rates(&report.rows);
    text += "\n\nlost: part of the offered that did not arrive; the generator offers more than \
             anybody carries.\n\n";
    for row in &report.ping {
        let time = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.0} µs"));
        text += &format!(
            "ping {:8} p50 {:>6}  p99 {:>6}  {} of {} answered\n",
            row.what,
            time(row.p50_us),
            time(row.p99_us),
            row.answered,
            row.sent
        );
    }
    text += &format!("\nidle daemon: {:.2} % of a core\n\n", report.idle_cpu_percent);
    for (what, drops) in &report.drops {
        let reasons: Vec<String> =
            drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        text += &format!("dropped by {what}: {}\n", reasons.join(", "));
    }
    text
}

fn rates(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["forwarder", "IP", "size", "Mpps", "Gbit/s", "to bare", "± IQR", "lost"]);
    for row in rows {
        table.add_row([
            row.what.to_owned(),
            row.family.to_string(),
            row.size.to_string(),
            format!("{:.3}", row.rate.mpps),
            format!("{:.2}", row.gbps),
            format!("{:.2}", row.ratio_to_bare),
            format!("{:.1} %", row.rate.spread * 100.0),
            format!("{:.0} %", row.rate.lost * 100.0),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_size_that_their_row_says_and_the_ports_where_the_generator_writes_them() {
        for (family, size) in FRAMES {
            let (frame, ports_at) = frame(family, size);
            assert_eq!(frame.len(), size);
            assert_eq!(frame[ports_at..ports_at + 4], [0x40, 0, 0xbf, 0xff]);
        }
    }
}
