//! `lockgate bench overlay`: packets of a virtual network that the kernel tier answers, and those
//! that workers do, beside forwarders that know one endpoint only, on the same topology in one run.
//!
//! ```text
//! hosts ── left │ forwarder │ right ── hosts          VXLAN; endpoints are drawn at random
//! ```
//! Half of the endpoints are in the kernel's table (*hot*), the other half in the workers' only. A
//! row says which part of its packets is between hot ones. All rows send over veths, so this
//! measures no driver of a network card.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bpf::traffic::{Constant, ConstantEndpoint, Generator};
use comfy_table::{Table, presets};
use io::BareForwarder;
use netlab::laboratory::connect;
use netlab::{Daemon, Laboratory, Namespace, interrupt};
use scene::Random;
use serde::Serialize;
use wire::build::PacketBuilder;

use super::io::cores;
use super::io::forwarder::{Bare, Drops, Extra, Forwarder, lockgate};
use super::io::lane::{Cores, FORWARDER, HOST, Lane, PORTS, Rate, Sample, index};
use super::machine::{self, Machine};
use super::{ArgumentError, BenchError, publish};

/// Rounds at least.
const LEAST_ROUNDS: usize = 3;
/// Bytes of the inner IP packets.
const INNER: [usize; 2] = [60, 1400];
/// Bytes around an inner packet: links, outer IP, UDP, VXLAN.
const AROUND: usize = 14 + 20 + 8 + 8 + 14;
/// Parts of 256 packets that are between cold endpoints, and the hit share in percent.
const SHARES: [(u16, u32); 4] = [(0, 100), (26, 90), (128, 50), (256, 0)];
/// The network, and the UDP port of its overlay: one that the sink counts.
const VNI: u32 = 7;
const UDP_PORT: u16 = 0x9c40;
/// Address of the gateway on the left, and of the hosts on either side.
const ENTRANCE: &str = "10.9.1.1";
const LEFT_HOST: &str = "10.9.1.2";
const RIGHT_HOST: &str = "10.9.2.2";
/// Link address of every tenant.
const TENANT: [u8; 6] = [2, 7, 0, 0, 0, 1];
/// Time until the hot endpoints are in the kernel.
const PROMOTED_WITHIN: Duration = Duration::from_secs(300);
/// Packets at a time while endpoints go over to the kernel, and the pause behind them.
const TRICKLE: u32 = 512;
const PAUSE: Duration = Duration::from_millis(10);

/// Arguments of `lockgate bench overlay`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct OverlayArguments {
    /// Seconds of each measurement; there are 16 a round.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Rounds, at least 3.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Endpoints in the kernel, a power of two; as many again are not in it.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(64..=16384))]
    endpoints: u32,
    /// Writes the figures as JSON; "-": to standard output, and the tables to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A row: one forwarder, and one share of hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Subject {
    lane: usize,
    what: &'static str,
    share: usize,
    /// The row that it is compared with.
    beside: &'static str,
}

const KERNEL: usize = 0;
const PROGRAM: usize = 1;
const TIER: usize = 2;
const BARE: usize = 3;
const WORKER: usize = 4;

const SUBJECTS: [Subject; 8] = [
    Subject { lane: KERNEL, what: "kernel", share: 0, beside: "xdp constant" },
    Subject { lane: PROGRAM, what: "xdp constant", share: 0, beside: "xdp constant" },
    Subject { lane: TIER, what: "kernel tier", share: 0, beside: "xdp constant" },
    Subject { lane: TIER, what: "kernel tier", share: 1, beside: "xdp constant" },
    Subject { lane: TIER, what: "kernel tier", share: 2, beside: "xdp constant" },
    Subject { lane: TIER, what: "kernel tier", share: 3, beside: "bare AF_XDP" },
    Subject { lane: BARE, what: "bare AF_XDP", share: 0, beside: "bare AF_XDP" },
    Subject { lane: WORKER, what: "worker", share: 0, beside: "bare AF_XDP" },
];

#[derive(Clone, Debug, Serialize)]
struct Row {
    what: &'static str,
    /// Percent of the packets whose endpoints are in the kernel; `None`: it knows one only.
    hits_percent: Option<u32>,
    inner_bytes: usize,
    gbps: f64,
    beside: &'static str,
    ratio: f64,
    #[serde(flatten)]
    rate: Rate,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    commit: String,
    seconds: u64,
    endpoints: u32,
    generator_core: usize,
    forwarder_core: usize,
    /// Seconds from the first packet until all hot endpoints were in the kernel, and how many a
    /// second went over.
    promoted_s: f64,
    promotions_a_second: f64,
    rows: Vec<Row>,
    drops: BTreeMap<&'static str, Drops>,
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &OverlayArguments) -> Result<(), BenchError> {
    let &OverlayArguments { seconds, rounds, endpoints, ref json } = arguments;
    ArgumentError::check("--rounds", &[rounds], LEAST_ROUNDS, 1000)
        .map_err(BenchError::Argument)?;
    if !endpoints.is_power_of_two() {
        let (name, found) = ("--endpoints", endpoints as usize);
        let error = ArgumentError::Range { name, found, least: 64, most: 16384 };
        return Err(BenchError::Argument(error));
    }
    interrupt::listen()?;
    let cores = cores()?;
    let laboratory = Laboratory::new()?;
    let lanes = lanes(&laboratory, endpoints)?;
    lanes.iter().try_for_each(|lane| lane.load(cores))?;
    let pairs = endpoints as usize / 2;
    let (generators, _held) = generators(&laboratory, pairs)?;
    let promoted = promote(&lanes[TIER], &generators[0][0], endpoints)?;
    let samples = samples(&lanes, &generators, rounds, Duration::from_secs(seconds), cores)?;
    let mut drops = BTreeMap::new();
    for subject in SUBJECTS {
        drops.insert(subject.what, lanes[subject.lane].drops()?);
    }
    let report = Report {
        bench: "overlay",
        machine: Machine::look(Some(cores.forwarder)),
        commit: machine::commit(),
        seconds,
        endpoints,
        generator_core: cores.generator,
        forwarder_core: cores.forwarder,
        promoted_s: promoted.as_secs_f64(),
        promotions_a_second: f64::from(endpoints) / promoted.as_secs_f64(),
        rows: rows(&samples),
        drops,
    };
    publish(&report, &text(&report), json.as_deref())
}

/// The lanes, by the numbers that [`SUBJECTS`] have for them.
fn lanes(laboratory: &Laboratory, endpoints: u32) -> Result<Vec<Lane>, BenchError> {
    let daemon = |name: &'static str, usage: &'static str| {
        move |namespace: &Namespace| -> Result<Forwarder, BenchError> {
            let sections = format!(
                "\n[overlay.fabric]\nkind = \"vxlan\"\nport = \"{}\"\nudp_port = {UDP_PORT}\n\
                 entrances = [\"{ENTRANCE}\"]\n\n[vni.{VNI}]\n\n[store]\nkind = \"memory\"\n\n\
                 [kernel]\nuse = \"{usage}\"\nendpoints = {endpoints}\n",
                PORTS[0]
            );
            let extra = Extra { name, sections: &sections };
            let daemon = lockgate(laboratory, namespace, extra)?;
            put(laboratory, &daemon, endpoints)?;
            Ok(Forwarder::Lockgate(Box::new(daemon)))
        }
    };
    let constant = |namespace: &Namespace| -> Result<Forwarder, BenchError> {
        let [from, to] = [index(namespace, PORTS[0])?, index(namespace, PORTS[1])?];
        let host = RIGHT_HOST.parse::<Ipv4Addr>().expect("an address of ours");
        let endpoint = ConstantEndpoint { host, destination: HOST, source: FORWARDER, mac: TENANT };
        let program = namespace.enter(|| Constant::attach(endpoint, from, to))??;
        Ok(Forwarder::Program(program))
    };
    let bare = |namespace: &Namespace| {
        let make = |umem, sockets| BareForwarder::changing(umem, sockets, readdress);
        Ok(Forwarder::Bare(Bare::with(namespace, make)?))
    };
    Ok(vec![
        Lane::build(laboratory, "kernel", |_| Ok(Forwarder::Kernel))?,
        Lane::build(laboratory, "const", constant)?,
        Lane::build(laboratory, "tier", daemon("tier", "on"))?,
        Lane::build(laboratory, "bare", bare)?,
        Lane::build(laboratory, "worker", daemon("worker", "off"))?,
    ])
}

/// Addresses an overlay packet to the one host on the right: the least that a forwarder in user
/// space has to do.
fn readdress(frame: &mut [u8]) {
    const TENANT_AT: usize = AROUND - 14;
    let Some(headers) = frame.first_chunk_mut::<AROUND>() else { return };
    headers[..6].copy_from_slice(&HOST);
    headers[6..12].copy_from_slice(&FORWARDER);
    headers[TENANT_AT..TENANT_AT + 6].copy_from_slice(&TENANT);
    let [host, entrance] = [0x0a09_0202, 0x0a09_0101].map(wire::Address::v4);
    wire::outer::forward(&mut frame[14..], 20, (entrance, host));
}

/// An end of a pair of endpoints.
#[derive(Clone, Copy)]
enum End {
    Source,
    Destination,
}

/// The address of an end of a pair.
fn tenant(end: End, pair: u32) -> Ipv4Addr {
    match end {
        End::Source => Ipv4Addr::from(0xac15_0000 | (!pair & 0xffff)),
        End::Destination => Ipv4Addr::from(0xac14_0000 | pair),
    }
}

/// Puts all endpoints, hot and cold.
fn put(laboratory: &Laboratory, daemon: &Daemon, endpoints: u32) -> Result<(), BenchError> {
    let mac = "02:07:00:00:00:01";
    let mut lines = String::from("vni,address,host,mac\n");
    for pair in 0..endpoints {
        for (end, host) in [(End::Source, LEFT_HOST), (End::Destination, RIGHT_HOST)] {
            let address = tenant(end, pair);
            let _ = writeln!(lines, "{VNI},{address},{host},{mac}");
        }
    }
    let file = laboratory.directory().join("endpoints.csv");
    std::fs::write(&file, lines).map_err(BenchError::system("writing endpoints"))?;
    let words = ["endpoint", "import", &file.to_string_lossy()];
    daemon.run(&words)?.success()?;
    Ok(())
}

/// For each size, one for each of [`SHARES`], and one that sends to the host itself. They are held
/// by netdevs of a namespace of their own.
fn generators(
    laboratory: &Laboratory,
    pairs: usize,
) -> Result<(Vec<Vec<Generator>>, Namespace), BenchError> {
    let namespace = laboratory.namespace("hold")?;
    let mut all = Vec::new();
    for inner in INNER {
        let mut of_size = Vec::new();
        let shares = SHARES.iter().map(|(cold, _)| (*cold, ENTRANCE));
        for (number, (cold, to)) in shares.chain([(0, RIGHT_HOST)]).enumerate() {
            let generator = Generator::load_overlay(&frame(inner, to), pairs, cold)?;
            let [one, other] = ["a", "b"].map(|end| format!("hold{inner}{number}{end}"));
            connect((&namespace, &one), (&namespace, &other), 1)?;
            let index = index(&namespace, &one)?;
            namespace.enter(|| generator.hold(index))??;
            of_size.push(generator);
        }
        all.push(of_size);
    }
    Ok((all, namespace))
}

/// Returns the frame of an overlay packet whose inner packet has `inner` bytes.
fn frame(inner: usize, to: &str) -> Vec<u8> {
    let tenants = PacketBuilder::between(
        &tenant(End::Source, 0).to_string(),
        &tenant(End::Destination, 0).to_string(),
    )
    .udp(5000, 5001)
    .no_upper_checksum()
    .payload_of(inner - 28)
    .frame([2, 7, 7, 7, 7, 7], TENANT, None);
    let vni = wire::Vni::new(VNI).expect("24 bits");
    let payload = [&wire::overlay::Kind::Vxlan.header(vni)[..], &tenants].concat();
    PacketBuilder::between(LEFT_HOST, to)
        .udp(0xc123, UDP_PORT)
        .no_upper_checksum()
        .payload(&payload)
        .frame(FORWARDER, HOST, None)
}

/// Sends a little between the hot endpoints until all of them are in the kernel; returns how long
/// it took.
fn promote(lane: &Lane, hot: &Generator, endpoints: u32) -> Result<Duration, BenchError> {
    let Forwarder::Lockgate(daemon) = &lane.forwarder else { unreachable!("the tier's lane") };
    let began = Instant::now();
    let mut looked = Instant::now();
    loop {
        lane.trickle(hot, TRICKLE)?;
        interrupt::sleep(PAUSE)?;
        if looked.elapsed() < Duration::from_millis(250) {
            continue;
        }
        looked = Instant::now();
        let counters = daemon.ask(&["show", "counters"])?;
        let there = counters.pointer("/kernel_tier/endpoints").and_then(|count| count.as_u64());
        if there == Some(endpoints.into()) {
            return Ok(began.elapsed());
        }
        if began.elapsed() > PROMOTED_WITHIN {
            return Err(BenchError::NotPromoted { there: there.unwrap_or(0), endpoints });
        }
    }
}

/// For each size, for each of [`SUBJECTS`].
type Samples = Vec<Vec<Vec<Sample>>>;

fn samples(
    lanes: &[Lane],
    generators: &[Vec<Generator>],
    rounds: usize,
    seconds: Duration,
    cores: Cores,
) -> Result<Samples, BenchError> {
    let mut samples: Samples = vec![vec![Vec::new(); SUBJECTS.len()]; INNER.len()];
    let mut random = Random::new(1);
    for round in 0..rounds {
        let mut order: Vec<(usize, usize)> =
            (0..INNER.len()).flat_map(|size| (0..SUBJECTS.len()).map(move |s| (size, s))).collect();
        random.shuffle(&mut order);
        eprintln!("round {} of {rounds}", round + 1);
        for (size, number) in order {
            let Subject { lane, share, .. } = SUBJECTS[number];
            // Linux forwards what is for the host itself.
            let generator = if lane == KERNEL { SHARES.len() } else { share };
            let bytes = INNER[size] + AROUND;
            let sample = lanes[lane].sample(&generators[size][generator], bytes, seconds, cores)?;
            samples[size][number].push(sample);
        }
    }
    Ok(samples)
}

fn rows(samples: &Samples) -> Vec<Row> {
    let mut rows = Vec::new();
    for (inner, of_size) in INNER.into_iter().zip(samples) {
        let of = |what: &str| {
            let place = SUBJECTS.iter().position(|subject| subject.what == what);
            place.map_or(f64::NAN, |place| Rate::of(&of_size[place]).mpps)
        };
        for (subject, samples) in SUBJECTS.iter().zip(of_size) {
            let rate = Rate::of(samples);
            let hits = match subject.lane {
                TIER => Some(SHARES[subject.share].1),
                WORKER => Some(0),
                _ => None,
            };
            rows.push(Row {
                what: subject.what,
                hits_percent: hits,
                inner_bytes: inner,
                gbps: rate.gbps(inner + AROUND),
                beside: subject.beside,
                ratio: rate.mpps / of(subject.beside),
                rate,
            });
        }
    }
    rows
}

/// The report for a reader.
fn text(report: &Report) -> String {
    let Machine { cpu, cores, kernel, .. } = &report.machine;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let header = ["forwarder", "hits", "inner", "Mpps", "Gbit/s", "ratio", "to", "± IQR", "lost"];
    table.set_header(header);
    for row in &report.rows {
        table.add_row([
            row.what.to_owned(),
            row.hits_percent.map_or("-".into(), |hits| format!("{hits} %")),
            row.inner_bytes.to_string(),
            format!("{:.3}", row.rate.mpps),
            format!("{:.2}", row.gbps),
            format!("{:.2}", row.ratio),
            row.beside.to_owned(),
            format!("{:.1} %", row.rate.spread * 100.0),
            format!("{:.0} %", row.rate.lost * 100.0),
        ]);
    }
    format!(
        "bench overlay, commit {}\n{cpu}, {cores} cores, Linux {kernel}; generator on core {}, \
         forwarder on core {}\nveth; {} endpoints in the kernel, as many in user space only; they \
         went over in {:.1} s, {:.0} a second\n\n{table}\n\nhits: packets between endpoints that \
         are in the kernel. lost: part of the offered that did not arrive; the generator offers \
         more than anybody carries.\n",
        report.commit,
        report.generator_core,
        report.forwarder_core,
        report.endpoints,
        report.promoted_s,
        report.promotions_a_second,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_overlay_packets_between_tenants() {
        for inner in INNER {
            let frame = frame(inner, ENTRANCE);
            assert_eq!(frame.len(), inner + AROUND);
            let outer = wire::packet::parse(&frame[14..]).unwrap();
            assert_eq!(outer.length as usize, inner + AROUND - 14);
            let tenants = wire::packet::parse(&frame[AROUND..]).unwrap();
            assert_eq!(tenants.length as usize, inner);
            // The generator writes complements here.
            assert_eq!(frame[AROUND + 14..AROUND + 16], [0xff, 0xff]);
            assert_eq!(frame[AROUND + 18..AROUND + 20], [0, 0]);
        }
    }

    #[test]
    fn the_bare_forwarder_makes_whole_packets() {
        let mut frame = frame(60, ENTRANCE);
        readdress(&mut frame);
        let outer = wire::packet::parse(&frame[14..]).unwrap();
        assert_eq!(outer.flow.destination_address(), wire::Address::v4(0x0a09_0202));
        assert_eq!(outer.hop_limit, 63);
        assert_eq!(frame[..6], HOST);
    }
}
