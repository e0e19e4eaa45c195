//! Raw frames through each forwarder, as fast as a generator makes them.
//!
//! ```text
//! hosts ── left │ forwarder │ right ── hosts          VXLAN; endpoints are drawn at random
//! ```
//! Half of the endpoints are in the kernel's table (*hot*), the other half in the workers' only. A
//! row says which part of its packets is between hot ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bpf::traffic::{Constant, ConstantEndpoint, Generator};
use comfy_table::{Table, presets};
use io::BareForwarder;
use netlab::laboratory::connect;
use netlab::{Daemon, Laboratory, Namespace, interrupt};
use scene::Random;
use serde::Serialize;
use wire::build::PacketBuilder;

use super::super::BenchError;
use super::super::io::forwarder::{Bare, Drops, Extra, Forwarder, lockgate};
use super::super::io::lane::{FORWARDER, HOST, Lane, PORTS, Rate, Sample, index};
use super::published::Ours;
use super::{Course, Workers};

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

/// A row: one forwarder, and one share of hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Subject {
    lane: usize,
    what: &'static str,
    /// The place in [`SHARES`] of what is offered.
    share: usize,
    /// Percent of the packets that the kernel can answer; `None`: it knows one endpoint only.
    hits_percent: Option<u32>,
    /// The row that it is compared with.
    beside: &'static str,
}

const KERNEL: usize = 0;
const PROGRAM: usize = 1;
const TIER: usize = 2;
/// The lane of rows with packets of cold endpoints: these take the places of hot ones, which the
/// row without any must not notice.
const MIXED: usize = 3;
const ASKS: usize = 4;
const BARE: usize = 5;
/// The first lane of workers; the others are behind it, and behind them those of the kernel tier
/// with several sockets.
const WORKER: usize = 6;

const SUBJECTS: [Subject; 8] = [
    subject(KERNEL, "kernel", 0, None, CONSTANT),
    subject(PROGRAM, CONSTANT, 0, None, CONSTANT),
    subject(TIER, "kernel tier", 0, Some(SHARES[0].1), CONSTANT),
    subject(MIXED, "kernel tier", 1, Some(SHARES[1].1), CONSTANT),
    subject(MIXED, "kernel tier", 2, Some(SHARES[2].1), CONSTANT),
    subject(MIXED, "kernel tier", 3, Some(SHARES[3].1), BARE_ROW),
    subject(ASKS, "kernel tier, asks", 0, Some(SHARES[0].1), CONSTANT),
    subject(BARE, BARE_ROW, 0, None, BARE_ROW),
];
/// The rows that others are compared with.
const CONSTANT: &str = "xdp constant";
const BARE_ROW: &str = "bare AF_XDP";

const fn subject(
    lane: usize,
    what: &'static str,
    share: usize,
    hits_percent: Option<u32>,
    beside: &'static str,
) -> Subject {
    Subject { lane, what, share, hits_percent, beside }
}

/// A group that permits everything, for the network of the lane whose kernel tier asks.
const GROUP: &str = "groups_in = [\"all\"]\n\n[group.all]\n\n[[rule]]\ngroup = \"all\"\n\
                     name = \"all\"\naction = \"permit\"\nfrom = [\"any\"]\nto = [\"any\"]\n";

/// The figures of this part.
#[derive(Serialize)]
pub(super) struct Figures {
    endpoints: u32,
    /// Seconds from the first packet until all hot endpoints were in the kernel, and how many a
    /// second went over.
    promoted_s: f64,
    promotions_a_second: f64,
    rows: Vec<Row>,
    drops: BTreeMap<&'static str, Drops>,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    what: &'static str,
    /// Percent of the packets whose endpoints are in the kernel; `None`: it knows one only.
    hits_percent: Option<u32>,
    inner_bytes: usize,
    frame_bytes: usize,
    gbps: f64,
    beside: &'static str,
    ratio: f64,
    #[serde(flatten)]
    rate: Rate,
}

/// Measures frames with inner packets of these sizes, with so many endpoints in the kernel.
///
/// # Errors
/// [`BenchError`].
pub(super) fn measure(
    course: &Course,
    endpoints: u32,
    inner: &[usize],
) -> Result<Figures, BenchError> {
    let subjects = subjects(course);
    let laboratory = Laboratory::new()?;
    let lanes = lanes(&laboratory, endpoints, course)?;
    lanes.iter().try_for_each(|lane| lane.load(&course.cores))?;
    let pairs = endpoints as usize / 2;
    let (generators, _held) = generators(&laboratory, pairs, inner)?;
    let none = Promoted { endpoints: u64::from(endpoints), verdicts: 0 };
    let promoted = promote(&lanes[TIER], &generators[0][0], none)?;
    let all = Promoted { verdicts: pairs as u64, ..none };
    promote(&lanes[MIXED], &generators[0][0], none)?;
    promote(&lanes[ASKS], &generators[0][0], all)?;
    for lane in &lanes[WORKER + course.workers().count()..] {
        promote(lane, &generators[0][0], none)?;
    }
    let samples = samples(&lanes, &generators, (&subjects, inner), course)?;
    let mut drops = BTreeMap::new();
    for subject in &subjects {
        let what = if subject.lane == MIXED { "kernel tier, mixed" } else { subject.what };
        drops.insert(what, lanes[subject.lane].drops()?);
    }
    Ok(Figures {
        endpoints,
        promoted_s: promoted.as_secs_f64(),
        promotions_a_second: f64::from(endpoints) / promoted.as_secs_f64(),
        rows: rows(&samples, &subjects, inner),
        drops,
    })
}

/// All rows of a size.
fn subjects(course: &Course) -> Vec<Subject> {
    let workers = course.workers().map(|it| (it.user.0, 0, BARE_ROW));
    let sockets = course.workers().skip(1).map(|it| (it.kernel.0, 100, CONSTANT));
    let lanes = (WORKER..).zip(workers.chain(sockets));
    let more = lanes.map(|(lane, (what, hits, beside))| subject(lane, what, 0, Some(hits), beside));
    SUBJECTS.into_iter().chain(more).collect()
}

/// The lanes, by the numbers that the rows have for them.
fn lanes(
    laboratory: &Laboratory,
    endpoints: u32,
    course: &Course,
) -> Result<Vec<Lane>, BenchError> {
    type Word = &'static str;
    let daemon = |(name, workers): (Word, u32), usage: Word, group: Word| {
        move |namespace: &Namespace| -> Result<Forwarder, BenchError> {
            let sections = format!(
                "\n[overlay.fabric]\nkind = \"vxlan\"\nport = \"{}\"\nudp_port = {UDP_PORT}\n\
                 entrances = [\"{ENTRANCE}\"]\n\n[vni.{VNI}]\n{group}\n\
                 [store]\nkind = \"memory\"\n\n\
                 [kernel]\nuse = \"{usage}\"\nendpoints = {endpoints}\n",
                PORTS[0]
            );
            let extra = Extra { name, workers, sections: &sections, ..Extra::default() };
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
    let mut lanes = vec![
        Lane::build(laboratory, ("kernel", 1), |_| Ok(Forwarder::Kernel))?,
        Lane::build(laboratory, ("const", 1), constant)?,
        Lane::build(laboratory, ("tier", 1), daemon(("tier", 1), "on", ""))?,
        Lane::build(laboratory, ("mixed", 1), daemon(("mixed", 1), "on", ""))?,
        Lane::build(laboratory, ("asks", 1), daemon(("asks", 1), "on", GROUP))?,
        Lane::build(laboratory, ("bare", 1), bare)?,
    ];
    let workers = course.workers().map(|it| ((it.user.1, it.count), "off"));
    let sockets = course.workers().skip(1).map(|it| ((it.kernel.1, it.count), "on"));
    for (name, usage) in workers.chain(sockets) {
        lanes.push(Lane::build(laboratory, name, daemon(name, usage, ""))?);
    }
    Ok(lanes)
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
    inner: &[usize],
) -> Result<(Vec<Vec<Generator>>, Namespace), BenchError> {
    let namespace = laboratory.namespace("hold")?;
    let mut all = Vec::new();
    for (size, &inner) in inner.iter().enumerate() {
        let mut of_size = Vec::new();
        let shares = SHARES.iter().map(|(cold, _)| (*cold, ENTRANCE));
        for (number, (cold, to)) in shares.chain([(0, RIGHT_HOST)]).enumerate() {
            let generator = Generator::load_overlay(&frame(inner, to), pairs, cold)?;
            let [one, other] = ["a", "b"].map(|end| format!("hold{size}-{number}{end}"));
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

/// Endpoints and verdicts that are in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Promoted {
    endpoints: u64,
    verdicts: u64,
}

/// Sends a little between the hot endpoints until all of them, and the verdicts on their flows, are
/// in the kernel; returns how long it took.
fn promote(lane: &Lane, hot: &Generator, all: Promoted) -> Result<Duration, BenchError> {
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
        let count = |name: &str| counters["kernel_tier"][name].as_u64().unwrap_or(0);
        let there = Promoted { endpoints: count("endpoints"), verdicts: count("verdicts") };
        if there == all {
            return Ok(began.elapsed());
        }
        if began.elapsed() > PROMOTED_WITHIN {
            let Promoted { endpoints, verdicts } = there;
            let [there, all] = [endpoints + verdicts, all.endpoints + all.verdicts];
            return Err(BenchError::NotPromoted { there, all });
        }
    }
}

/// For each size, for each row.
type Samples = Vec<Vec<Vec<Sample>>>;

fn samples(
    lanes: &[Lane],
    generators: &[Vec<Generator>],
    (subjects, inner): (&[Subject], &[usize]),
    course: &Course,
) -> Result<Samples, BenchError> {
    let mut samples: Samples = vec![vec![Vec::new(); subjects.len()]; inner.len()];
    let mut random = Random::new(1);
    for round in 0..course.rounds {
        let mut order: Vec<(usize, usize)> =
            (0..inner.len()).flat_map(|size| (0..subjects.len()).map(move |s| (size, s))).collect();
        random.shuffle(&mut order);
        eprintln!("raw frames, round {} of {}", round + 1, course.rounds);
        for (size, number) in order {
            let Subject { lane, share, .. } = subjects[number];
            // Linux forwards what is for the host itself.
            let generator = if lane == KERNEL { SHARES.len() } else { share };
            let generator = &generators[size][generator];
            let bytes = inner[size] + AROUND;
            let sample = lanes[lane].sample(generator, bytes, course.length, &course.cores)?;
            samples[size][number].push(sample);
        }
    }
    Ok(samples)
}

fn rows(samples: &Samples, subjects: &[Subject], inner: &[usize]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (&inner, of_size) in inner.iter().zip(samples) {
        let of = |what: &str| {
            let place = subjects.iter().position(|subject| subject.what == what);
            place.map_or(f64::NAN, |place| Rate::of(&of_size[place]).mpps)
        };
        for (subject, samples) in subjects.iter().zip(of_size) {
            let rate = Rate::of(samples);
            rows.push(Row {
                what: subject.what,
                hits_percent: subject.hits_percent,
                inner_bytes: inner,
                frame_bytes: inner + AROUND,
                gbps: rate.gbps(inner + AROUND),
                beside: subject.beside,
                ratio: rate.mpps / of(subject.beside),
                rate,
            });
        }
    }
    rows
}

impl Figures {
    /// The table and its words.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let header = [
            "forwarder",
            "hits",
            "inner",
            "frame",
            "Mpps",
            "Gbit/s",
            "ratio",
            "to",
            "± IQR",
            "lost",
        ];
        table.set_header(header);
        for row in &self.rows {
            table.add_row([
                row.what.to_owned(),
                row.hits_percent.map_or("-".into(), |hits| format!("{hits} %")),
                format!("{} B", row.inner_bytes),
                format!("{} B", row.frame_bytes),
                format!("{:.3}", row.rate.mpps),
                format!("{:.2}", row.gbps),
                format!("{:.2}", row.ratio),
                row.beside.to_owned(),
                format!("{:.1} %", row.rate.spread * 100.0),
                format!("{:.0} %", row.rate.lost * 100.0),
            ]);
        }
        format!(
            "{} endpoints in the kernel, as many in user space only; they went over in {:.1} s, \
             {:.0} a second\n\n{table}\n\nhits: packets between endpoints that are in the kernel. \
             asks: its network has a group, and the kernel a verdict on each flow. lost: part of \
             the offered that did not arrive; the generator offers more than anybody carries. \
             Several workers have a generator each; where there are fewer than two cores for each \
             worker, these share them.\n",
            self.endpoints, self.promoted_s, self.promotions_a_second,
        )
    }

    /// Notes what stands beside published figures: packets of the smallest size, bits of the
    /// largest.
    pub(super) fn note(&self, ours: &mut Ours) {
        let sizes = self.rows.iter().map(|row| row.inner_bytes);
        let (least, most) = (sizes.clone().min(), sizes.max());
        for Workers { count, user, .. } in super::WORKERS {
            for row in self.rows.iter().filter(|row| row.what == user.0) {
                let line = ours.line(count);
                if Some(row.inner_bytes) == least {
                    line.packets = Some(row.rate.mpps * 1e6);
                }
                if Some(row.inner_bytes) == most {
                    line.mbps = Some(row.gbps * 1e3);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cores, INNER};
    use super::*;

    // AX-16, AX-20, BM-4f: at all sizes that the bench has by itself.
    #[test]
    fn each_size_has_the_tier_and_the_workers_beside_a_bare_forwarder_and_its_bytes() {
        let cores = Cores::of(vec![0, 1]).unwrap();
        let course = Course { length: Duration::from_secs(1), rounds: 3, cores };
        let subjects = subjects(&course);
        let sample = |mpps| Sample { offered_mpps: 4.0, mpps };
        let of_size = |factor: f64| -> Vec<Vec<Sample>> {
            (1..=subjects.len()).map(|number| vec![sample(number as f64 * factor)]).collect()
        };
        let samples = vec![of_size(0.1), of_size(0.08), of_size(0.06), of_size(0.05)];
        let rows = rows(&samples, &subjects, &INNER);
        let (promoted_s, promotions_a_second) = (1.0, 2048.0);
        let drops = BTreeMap::new();
        let figures = Figures { endpoints: 2048, promoted_s, promotions_a_second, rows, drops };
        let text = figures.text();
        let has = |what: &str, cells: &str| {
            let mut lines = text.lines().filter(|line| line.trim_start().starts_with(what));
            lines.any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ").contains(cells))
        };
        for (what, cells) in [
            ("kernel tier", "100 % 60 B 124 B 0.300"),
            ("kernel tier, asks", "100 % 60 B 124 B 0.700"),
            ("bare AF_XDP", "- 60 B 124 B 0.800 0.79 1.00 bare AF_XDP"),
            ("worker", "0 % 60 B 124 B 0.900 0.89 1.12 bare AF_XDP"),
            ("2 workers", "0 % 60 B 124 B 1.000 0.99 1.25 bare AF_XDP 0.0 % 75 %"),
            ("kernel tier, 2 sockets", "100 % 60 B 124 B 1.100 1.09 5.50 xdp constant"),
            ("kernel tier", "100 % 64 B 128 B 0.240"),
            ("kernel tier, 2 sockets", "100 % 64 B 128 B 0.880"),
            ("worker", "0 % 64 B 128 B 0.720"),
            ("2 workers", "0 % 64 B 128 B 0.800"),
            ("kernel tier", "100 % 1400 B 1464 B 0.180"),
            ("kernel tier, 2 sockets", "100 % 1400 B 1464 B 0.660"),
            ("worker", "0 % 1400 B 1464 B 0.540"),
            ("2 workers", "0 % 1400 B 1464 B 0.600"),
            ("kernel tier", "100 % 1450 B 1514 B 0.150"),
            ("worker", "0 % 1450 B 1514 B 0.450 5.45 1.12 bare AF_XDP"),
            ("bare AF_XDP", "- 1450 B 1514 B 0.400 4.84 1.00 bare AF_XDP"),
            ("2 workers", "0 % 1450 B 1514 B 0.500 6.06 1.25 bare AF_XDP"),
        ] {
            assert!(has(what, cells), "{what}: {cells} in\n{text}");
        }
        let mut ours = Ours::default();
        figures.note(&mut ours);
        let line = ours.line(2);
        let near = |found: Option<f64>, expected: f64| {
            assert!(found.is_some_and(|found| (found - expected).abs() < 0.5), "{found:?}");
        };
        near(line.packets, 1e6);
        near(line.mbps, 6056.0);
    }

    #[test]
    fn frames_are_overlay_packets_between_tenants() {
        for inner in [60, 1400, 1450] {
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
