//! `lockgate bench esp`: sealing, opening and forwarding.
//!
//! Laps of all rows alternate, in another random order in every round, so that noise hits all rows
//! alike. A row's figure is the median of its laps. The table also shows the distance of the
//! quartiles, the best quartile, and the time of the cipher alone on the same packets, measured in
//! the same lap; the difference is the walk's own time. A yardstick makes the memory accesses that
//! every gateway must make, on the same frames. On each case, laps of the fast path and of the
//! general walk follow each other directly and are compared in pairs.
//!
//! From time to time the bench measures the latency of memory, because the time of a walk depends
//! on where its frames are found.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use dataplane::cache::ENTRIES_A_FLOW;
use io::memory::FRAME_BYTES;
use ipsec::Suite;
use ipsec::cipher::BackendKind;
use netlab::interrupt;
use wire::Family;

use super::kits::Kits;
use super::lap::{self, Course, LapFigures, Staging};
use super::lap_error::LapError;
use super::machine::{self, Seat};
use super::measure::{self};
use super::memory::Circles;
use super::rows::{self, Report, Row};
use super::subject::{Caching, Subject, WalkKind};
use super::{ArgumentError, BenchError, LapRefused, counted, pairs, publish, shares, targets};
use scene::Random;
use scene::{Case, Direction, MAX_FLOWS, MAX_SAS, SaLimits};

/// Laps at least.
pub(super) const LEAST_LAPS: usize = 7;
/// Timed passes of a lap: few, so that rows alternate quickly.
pub(super) const PASSES: u32 = 4;
/// Time between looks at the memory, which take some 20 ms.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Frames, and so flows, at least.
pub(super) const LEAST_FLOWS: usize = 4096;
/// Frames in flight at least: a clock that is read for fewer packets measures itself.
pub(super) const LEAST_IN_FLIGHT: usize = 512;
/// Bytes of a frame at least and at most: an MTU's packet sealed, with its headroom; a page.
const FRAME_SIZES: [usize; 2] = [2048, FRAME_BYTES];
/// Flows that a cache is made for, at most.
const MOST_CACHE_FLOWS: usize = 1 << 26;
/// Largest number of workers, on a machine with enough cores.
pub(super) const MAX_WORKERS: usize = 64;

/// Arguments of `lockgate bench esp`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct EspArguments {
    /// IP versions, the same inside and outside.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 6],
          value_parser = clap::value_parser!(u8).range(4..=6))]
    family: Vec<u8>,
    /// Bytes of the inner IP packet, its header included.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1420])]
    size: Vec<usize>,
    /// Direction: sealed, opened, between two protected ports without ESP, between two hosts of a
    /// virtual network on a protected port, in clear by a BYPASS policy, or in packet mode: handed
    /// to a card that is to seal, or taken from one that opened. Virtual networks and BYPASS are
    /// compared with forwarding between protected ports, packet mode with BYPASS.
    #[arg(long, value_delimiter = ',', value_parser = directions(),
          default_values = Direction::ALL.map(Direction::name))]
    direction: Vec<Direction>,
    /// Cipher suites, or "all"; "null", neither encryption nor integrity, is the framing alone.
    #[arg(long, value_delimiter = ',', value_parser = suites,
          default_values = [Suite::Aes128Gcm.name(), Suite::Aes256Gcm.name()])]
    suite: Vec<Suites>,
    /// Cipher libraries: ipsec-mb, ring, aws-lc-rs. Without it those that the walk takes, which
    /// measures them, or to count instructions the first one there is; a library that does not have
    /// a suite has no row of it.
    #[arg(long, value_delimiter = ',', value_parser = backend)]
    backend: Vec<BackendKind>,
    /// Threads, each on a core of its own with frames, flows and SAs of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    workers: Vec<usize>,
    /// SAs of each worker and direction, 1 to 10000, at most as many as flows. Each has a peer and
    /// a policy of its own, and they share the flows: where these are few, some SAs get none; 65536
    /// flows give each of 10000 SAs 6 or 7. With 1 in the list, the others are compared with it.
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    sas: Vec<usize>,
    /// Laps of every row at least; 7 is the least. There are as many as the time allows.
    #[arg(long, default_value_t = 9)]
    laps: usize,
    /// Flows of each worker, each with one frame in flight: 4096 to 65536.
    #[arg(long, default_value_t = LEAST_FLOWS)]
    flows: usize,
    /// Frames in flight, from 512 up to the number of flows: that many packets are laid out and
    /// walked, then their frames are used again. 4096 are more than the core's caches hold.
    #[arg(long, value_delimiter = ',', default_values_t = [LEAST_IN_FLIGHT, LEAST_FLOWS])]
    in_flight: Vec<usize>,
    /// Walks to measure. With both, their laps alternate and a table gives the ratio.
    #[arg(long, value_delimiter = ',', value_enum,
          default_values_t = [WalkKind::Fast, WalkKind::General])]
    walk: Vec<WalkKind>,
    /// Flow caches.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Caching::Auto])]
    cache: Vec<Caching>,
    /// Flows that a cache is made for: it has four times as many entries. The daemon's default.
    #[arg(long, default_value_t = 1 << 20)]
    cache_flows: usize,
    /// Bytes of a frame: 2048 to 4096. The daemon's have 2048 unless a port's MTU is over 1725.
    #[arg(long, default_value_t = FRAME_BYTES)]
    frame_bytes: usize,
    /// Seconds that the bench may take, about, if the laps asked for allow it.
    #[arg(long, default_value_t = 40)]
    seconds: u64,
    /// Seed of the random order, from an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Shows also where the walk's time goes, stage by stage.
    #[arg(long)]
    stages: bool,
    /// Gives all SAs limits by packets and bytes, which no packet reaches.
    #[arg(long, conflicts_with = "shares")]
    limits: bool,
    /// Core to measure on; without it the last one. Further workers take those before it.
    #[arg(long)]
    core: Option<usize>,
    /// Writes the figures as JSON; "-": to standard output, and the table to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Shows instead where the instructions of the timed span go, by valgrind.
    #[arg(long)]
    shares: bool,
    /// Runs one short lap of the first row and nothing else, for an instruction counter:
    /// valgrind --tool=callgrind --toggle-collect='*scene*packets*drain*' lockgate-bench esp
    /// --callgrind-once --direction out --size 64 --family 4
    #[arg(long, verbatim_doc_comment)]
    callgrind_once: bool,
}

/// Reads a direction by its name.
fn directions() -> impl TypedValueParser<Value = Direction> {
    PossibleValuesParser::new(Direction::ALL.map(Direction::name)).map(|name| {
        let named = |direction: &Direction| direction.name() == name;
        Direction::ALL.into_iter().find(named).expect("one of the possible values")
    })
}

/// One suite or all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suites(pub(super) &'static [Suite]);

pub(super) fn suites(text: &str) -> Result<Suites, String> {
    if text == "all" {
        return Ok(Suites(Suite::ALL));
    }
    let names = || Suite::ALL.iter().map(|suite| suite.name()).collect::<Vec<_>>().join(", ");
    let place = Suite::ALL.iter().position(|suite| suite.name() == text);
    let place = place.ok_or_else(|| format!("all, or one of {}", names()))?;
    Ok(Suites(&Suite::ALL[place..=place]))
}

fn backend(text: &str) -> Result<BackendKind, String> {
    let names = || BackendKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    let kind = BackendKind::from_name(text).ok_or_else(|| format!("one of {}", names()))?;
    match kind.is_available() {
        true => Ok(kind),
        false => Err(format!("this machine does not have {text}")),
    }
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &EspArguments) -> Result<(), BenchError> {
    let available = machine::cores().map_or(1, |cores| cores.len().max(1));
    let subjects = subjects(arguments, available).map_err(BenchError::Argument)?;
    if arguments.shares {
        return shares::run(&subjects);
    }
    let seat = Seat::take(arguments.core)?;
    let seed = measure::seed(arguments.seed)?;
    let mut random = Random::new(seed);
    let limits = if arguments.limits { SaLimits::Far } else { SaLimits::Without };
    let staging = if arguments.stages { Staging::ByStage } else { Staging::Whole };
    let most_workers = subjects.iter().map(|subject| subject.case.workers).max().unwrap_or(1);
    let entries = ENTRIES_A_FLOW * arguments.cache_flows;
    let kits = Kits::new(most_workers, arguments.flows, arguments.frame_bytes, entries);
    let mut bench = Bench {
        subjects: &subjects,
        laps: vec![Vec::new(); subjects.len()],
        kits: Some(kits),
        circles: Circles::new(&mut random),
        looked: None,
        course: Course { passes: PASSES, staging, cores: &seat.cores, limits, engine: None },
    };
    if arguments.callgrind_once {
        (bench.subjects, bench.course.passes) = (&subjects[..1], 1);
        return bench.round(&mut random).map(|_| ());
    }
    bench.measure(arguments, &mut random)?;
    let rows = bench.rows(arguments)?;
    let (machine, commit) = (seat.machine(), machine::commit());
    let memory = bench.circles.distances();
    let text = [
        Some(format!("{}\nseed {seed}", rows::heading("esp", &machine, &commit))),
        arguments.limits.then(|| "SAs have limits by packets and bytes".to_owned()),
        Some(format!("{}\n{}", rows::table(&rows), rows::memory(&memory))),
        pairs::table(&rows),
        rows::by_sas(&rows),
        rows::over_forward(&rows),
        rows::stages(&rows),
        targets::table(&rows, &machine),
    ];
    let text: Vec<String> = text.into_iter().flatten().collect();
    let (machine, commit) = (&machine, commit.as_str());
    let bench = if arguments.limits { "esp with limits of SAs" } else { "esp" };
    let report = Report { bench, machine, commit, memory: &memory, rows: &rows };
    publish(&report, &text.join("\n\n"), arguments.json.as_deref())
}

/// Returns the rows that the arguments select on a machine with `cores` cores. Rows that differ
/// only in their walk are adjacent.
fn subjects(arguments: &EspArguments, cores: usize) -> Result<Vec<Subject>, ArgumentError> {
    check_ranges(arguments, cores)?;
    let mut subjects = Vec::new();
    for &workers in &arguments.workers {
        for &direction in &arguments.direction {
            for (suite, backend) in ciphers(arguments, direction) {
                for &size in &arguments.size {
                    for &version in &arguments.family {
                        let family = if version == 4 { Family::V4 } else { Family::V6 };
                        let (least, most) = Case::sizes(family).into_inner();
                        if !(least..=most).contains(&size) {
                            return Err(ArgumentError::Size { size, family: version, least, most });
                        }
                        let (flows, sas) = (arguments.flows, 1);
                        let case =
                            Case { direction, suite, family, size, flows, backend, workers, sas };
                        subjects.extend(of_case(case, arguments));
                    }
                }
            }
        }
    }
    Ok(subjects)
}

/// # Errors
/// The number that is out of its range.
fn check_ranges(arguments: &EspArguments, cores: usize) -> Result<(), ArgumentError> {
    let check = ArgumentError::check;
    check("--laps", &[arguments.laps], LEAST_LAPS, 10_000)?;
    check("--flows", &[arguments.flows], LEAST_FLOWS, MAX_FLOWS)?;
    check("--frame-bytes", &[arguments.frame_bytes], FRAME_SIZES[0], FRAME_SIZES[1])?;
    check("--cache-flows", &[arguments.cache_flows], 2, MOST_CACHE_FLOWS)?;
    check("--sas", &arguments.sas, 1, MAX_SAS.min(arguments.flows))?;
    check("--in-flight", &arguments.in_flight, LEAST_IN_FLIGHT, arguments.flows)?;
    check("--workers", &arguments.workers, 1, cores.min(MAX_WORKERS))
}

/// The rows of one case. Where nothing is ciphered there are no SAs.
fn of_case(case: Case, arguments: &EspArguments) -> Vec<Subject> {
    let mut subjects = Vec::new();
    let sas = match case.direction {
        Direction::Out | Direction::In => &arguments.sas[..],
        _ => &[1],
    };
    for &in_flight in &arguments.in_flight {
        for &cache in &arguments.cache {
            for case in sas.iter().map(|&sas| Case { sas, ..case }) {
                let walks = arguments.walk.iter();
                subjects.extend(walks.map(|&walk| Subject {
                    case,
                    walk,
                    cache,
                    in_flight,
                    engine: 0,
                }));
            }
        }
    }
    subjects
}

/// The suites and libraries of the rows of one direction. What is forwarded has neither, and the
/// suite without either no library: one row stands for all. Under valgrind times say nothing, so
/// that nothing is chosen by them.
fn ciphers(arguments: &EspArguments, direction: Direction) -> Vec<(Suite, Option<BackendKind>)> {
    let suites = arguments.suite.iter().flat_map(|suites| suites.0);
    let counts = arguments.shares || arguments.callgrind_once;
    let ciphers = suites.flat_map(|&suite| {
        let asked = arguments.backend.iter().copied();
        let backends: Vec<Option<BackendKind>> = match suite {
            _ if arguments.backend.is_empty() => {
                vec![counts.then(|| BackendKind::first(suite))]
            }
            Suite::Null => asked.take(1).map(Some).collect(),
            _ => asked.filter(|kind| kind.has(suite)).map(Some).collect(),
        };
        backends.into_iter().map(move |backend| (suite, backend))
    });
    match direction {
        Direction::Out | Direction::In => ciphers.collect(),
        // The suite gives the form of the headers; no library runs.
        Direction::CryptoOut | Direction::CryptoIn => {
            let suite = Suite::Aes128Gcm;
            vec![(suite, counts.then(|| BackendKind::first(suite)))]
        }
        _ => ciphers.take(1).collect(),
    }
}

pub(super) fn refused(subject: &Subject, error: LapError) -> BenchError {
    BenchError::Lap { case: subject.label(), error: LapRefused(error) }
}

/// The laps so far.
struct Bench<'c> {
    subjects: &'c [Subject],
    /// One list a row.
    laps: Vec<Vec<LapFigures>>,
    /// `None` only while a lap has them.
    kits: Option<Kits>,
    circles: Circles,
    /// Time of the last look at the memory.
    looked: Option<Instant>,
    course: Course<'c>,
}

impl Bench<'_> {
    /// Runs one lap of every row, in random order; laps of twins follow each other directly.
    /// Returns the time that they took.
    fn round(&mut self, random: &mut Random) -> Result<Duration, BenchError> {
        let begin = Instant::now();
        for place in order(self.subjects, random) {
            interrupt::check()?;
            let subject = &self.subjects[place];
            let kits = self.kits.take().expect("a refused lap ends the bench");
            let (kits, figures) = lap::run(subject, kits, self.course, random)
                .map_err(|error| refused(subject, error))?;
            self.kits = Some(kits);
            self.laps[place].push(figures);
        }
        if self.looked.is_none_or(|looked| looked.elapsed() > BETWEEN_LOOKS) {
            self.looked = Some(Instant::now());
            self.circles.look();
        }
        Ok(begin.elapsed())
    }

    /// All laps: as many rounds as the time allows, behind one that only warms up.
    fn measure(&mut self, arguments: &EspArguments, random: &mut Random) -> Result<(), BenchError> {
        let begin = Instant::now();
        let allowed = Duration::from_secs(arguments.seconds);
        self.round(random)?;
        self.laps.iter_mut().for_each(Vec::clear);
        self.circles.forget();
        self.looked = None;
        for round in 1.. {
            let took = self.round(random)?;
            if round >= arguments.laps && begin.elapsed() + took > allowed {
                break;
            }
        }
        Ok(())
    }

    fn rows(&self, arguments: &EspArguments) -> Result<Vec<Row>, BenchError> {
        let entries = ENTRIES_A_FLOW * arguments.cache_flows;
        let memory = rows::Memory { frame_bytes: arguments.frame_bytes, cache_entries: entries };
        let rows = self.subjects.iter().zip(&self.laps);
        let row = |(subject, laps): (&Subject, &Vec<LapFigures>)| {
            Row::of(subject, laps, &self.course, memory).map_err(|error| refused(subject, error))
        };
        let mut rows = rows.map(row).collect::<Result<Vec<_>, _>>()?;
        let counted = counted::Table::committed();
        for row in &mut rows {
            row.target_ns = targets::target(row, BackendKind::IpsecMb.version());
            row.instructions_callgrind = counted.of(row);
        }
        for (fast, subject) in self.subjects.iter().enumerate() {
            let is_twin =
                |other: &Subject| other.walk == WalkKind::General && other.is_twin_of(subject);
            let twin = self.subjects.iter().position(is_twin);
            if let (WalkKind::Fast, Some(general)) = (subject.walk, twin) {
                pairs::ratio(&self.laps[fast], &self.laps[general]).write_into(&mut rows[fast]);
            }
        }
        for (place, subject) in self.subjects.iter().enumerate() {
            let one = self.subjects.iter().position(|other| *other == subject.with_one_sa());
            if let Some(one) = one.filter(|one| *one != place) {
                let ratio = pairs::ratio(&self.laps[place], &self.laps[one]);
                rows[place].one_sa_ratio = Some(ratio.median);
                rows[place].one_sa_spread = Some(ratio.spread);
            }
            let plain = subject.plain();
            let plain = plain.and_then(|it| self.subjects.iter().position(|other| *other == it));
            if let Some(plain) = plain {
                pairs::over(&self.laps[place], &self.laps[plain]).write_into(&mut rows[place]);
            }
        }
        Ok(rows)
    }
}

/// The rows in random order, twins side by side, these, too, in random order.
fn order(subjects: &[Subject], random: &mut Random) -> Vec<usize> {
    let mut places = 0..subjects.len();
    let twins = subjects.chunk_by(|one, other| one.is_twin_of(other));
    let mut groups: Vec<Vec<usize>> =
        twins.map(|twins| places.by_ref().take(twins.len()).collect()).collect();
    random.shuffle(&mut groups);
    groups.iter_mut().for_each(|twins| random.shuffle(twins));
    groups.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: EspArguments,
    }

    fn arguments(line: &[&str]) -> EspArguments {
        Line::parse_from([&["esp"], line].concat()).arguments
    }

    /// Lists the rows of a machine with two cores.
    fn subjects(arguments: &EspArguments) -> Result<Vec<Subject>, ArgumentError> {
        super::subjects(arguments, 2)
    }

    #[test]
    fn without_arguments_there_is_a_row_for_everything() {
        let subjects = subjects(&arguments(&[])).unwrap();
        let cases = 2 * 2 * 2 * 2 + 7 * 2 * 2;
        let what = "suites, ways, sizes, families; forward, overlay, bypass, card modes";
        assert_eq!(subjects.len(), cases * 2 * 2, "{what}");
        assert!(subjects.iter().all(|subject| subject.cache == Caching::Auto));
        assert_different(&subjects);
    }

    fn assert_different(subjects: &[Subject]) {
        let mut labels: Vec<String> = subjects.iter().map(Subject::label).collect();
        labels.sort();
        labels.dedup();
        assert_eq!(labels.len(), subjects.len());
    }

    #[test]
    fn walks_caches_and_frames_in_flight_are_chosen() {
        let line = ["--direction=out,forward", "--suite=null", "--size=64", "--family=4"];
        let of = |more: &[&str]| subjects(&arguments(&[&line[..], more].concat())).unwrap();
        let off = of(&["--cache=off", "--walk=general", "--in-flight=4096"]);
        assert_eq!(off.len(), 2);
        let right = |s: &Subject| (s.cache, s.walk) == (Caching::Off, WalkKind::General);
        assert!(off.iter().all(|subject| right(subject) && subject.in_flight == 4096));
        let all = of(&["--cache=auto,always,off"]);
        assert_eq!(all.len(), 2 * 3 * 2 * 2, "ways, caches, walks, frames in flight");
        assert_different(&all);
    }

    #[test]
    fn laps_of_both_walks_on_one_case_are_neighbours_in_every_round() {
        let all = subjects(&arguments(&["--family=4", "--cache=auto,off"])).unwrap();
        let mut random = Random::new(4);
        let rounds: Vec<Vec<usize>> = (0..20).map(|_| order(&all, &mut random)).collect();
        for round in &rounds {
            let mut sorted = round.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..all.len()));
            let pairs = round.chunks(2).map(|pair| (all[pair[0]], all[pair[1]]));
            assert!(pairs.into_iter().all(|(one, other)| one.is_twin_of(&other) && one != other));
        }
        let first = |round: &Vec<usize>| all[round[0]].walk;
        assert!(rounds.iter().any(|round| first(round) == WalkKind::Fast));
        assert!(rounds.iter().any(|round| first(round) == WalkKind::General));
    }

    #[test]
    fn every_suite_has_rows_by_every_library_and_what_has_none_has_one() {
        let line = ["--suite=all", "--size=64", "--family=4", "--workers=1,2", "--walk=fast"];
        let mut arguments = arguments(&[&line[..], &["--in-flight=512"]].concat());
        arguments.backend = BackendKind::ALL.to_vec();
        let subjects = subjects(&arguments).unwrap();
        let ciphers = Suite::ALL.iter().filter(|suite| **suite != Suite::Null);
        let libraries = |suite: &Suite| BackendKind::ALL.iter().filter(|it| it.has(*suite)).count();
        let once = 2 * (ciphers.map(libraries).sum::<usize>() + 1) + 7;
        assert_eq!(subjects.len(), 2 * once, "ways; null; seven without; one and two workers");
        assert_different(&subjects);
    }

    #[test]
    fn instructions_are_counted_with_a_library_that_no_clock_chose() {
        for counting in ["--shares", "--callgrind-once"] {
            for subject in subjects(&arguments(&[counting, "--suite=all"])).unwrap() {
                let Case { suite, backend, .. } = subject.case;
                assert_eq!(backend, Some(BackendKind::first(suite)), "{counting}");
            }
        }
        assert!(subjects(&arguments(&[])).unwrap().iter().all(|it| it.case.backend.is_none()));
    }

    #[test]
    fn a_row_asked_for_by_its_own_arguments_is_that_row() {
        let line =
            ["--size=64,999", "--flows=5000", "--workers=2", "--sas=1,5000", "--backend=aws-lc-rs"];
        for subject in subjects(&arguments(&line)).unwrap() {
            let line = subject.arguments();
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            assert_eq!(subjects(&arguments(&line)), Ok(vec![subject]));
        }
    }

    #[test]
    fn what_is_compared_is_so_with_plain_packets_of_the_same_kind() {
        for (other, plain) in [
            ("overlay", "forward"),
            ("bypass", "forward"),
            ("packet-out", "bypass"),
            ("packet-in", "bypass"),
        ] {
            let line = format!("--direction={plain},{other}");
            let all = subjects(&arguments(&[&line])).unwrap();
            let is_other = |subject: &&Subject| subject.case.direction.name() == other;
            let (others, plain): (Vec<&Subject>, Vec<&Subject>) = all.iter().partition(is_other);
            assert_eq!(others.len(), plain.len(), "{other}");
            assert!(others.iter().all(|it| plain.contains(&&it.plain().unwrap())));
        }
    }

    #[test]
    fn what_would_measure_something_else_is_refused() {
        let error = |line: &[&str]| subjects(&arguments(line)).unwrap_err();
        assert_eq!(
            error(&["--size", "40"]),
            ArgumentError::Size { size: 40, family: 6, least: 48, most: 1500 }
        );
        assert_eq!(
            error(&["--size", "1501", "--family", "4"]),
            ArgumentError::Size { size: 1501, family: 4, least: 28, most: 1500 }
        );
        for (name, found) in [
            ("--laps", "6"),
            ("--flows", "4095"),
            ("--flows", "65537"),
            ("--frame-bytes", "2047"),
            ("--in-flight", "511"),
            ("--in-flight", "4097"),
            ("--cache-flows", "1"),
            ("--workers", "0"),
            ("--workers", "3"),
            ("--sas", "0"),
            ("--sas", "4097"),
        ] {
            assert!(error(&[name, found]).to_string().contains(name));
        }
        for line in [["esp", "--cache=on"], ["esp", "--walk=slow"]] {
            assert!(Line::try_parse_from(line).is_err(), "{line:?}");
        }
        for line in [["esp", "--suite=des"], ["esp", "--backend=openssl"]] {
            let error = Line::try_parse_from(line).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("one of"), "{error}");
        }
    }
}
