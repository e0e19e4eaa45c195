//! `lockgate bench offload`: the host's cost of a packet in each mode of a card that seals.
//!
//! | mode | the host | the card |
//! |---|---|---|
//! | baseline | forwards in clear, by a BYPASS policy | - |
//! | software | all of ESP | - |
//! | crypto | all of ESP but the cipher, puts the card's header in front | the cipher |
//! | packet | asks the policy, puts the card's header in front | all of ESP |
//!
//! Laps of all rows alternate, as in `bench esp`, and each row is compared with the baseline of the
//! same rounds, size, family and workers. The card is emulated: its own engine works on another
//! thread and is in no figure. Rows of control with the engine off, and ten times slower, show it.

mod published;
mod rows;

use std::path::PathBuf;
use std::time::Duration;

use io::memory::FRAME_BYTES;
use ipsec::Suite;
use scene::{Case, Direction, Random, SaLimits};
use serde::Serialize;
use wire::Family;

use dataplane::cache::ENTRIES_A_FLOW;

use super::card_engine::Engine;
use super::esp::{
    LEAST_FLOWS, LEAST_IN_FLIGHT, LEAST_LAPS, MAX_WORKERS, PASSES, Suites, refused, suites,
};
use super::kits::Kits;
use super::lap::{self, Course, LapFigures, Staging};
use super::machine::{self, Seat};
use super::measure;
use super::subject::{Caching, Subject, WalkKind};
use super::{ArgumentError, BenchError, Report, publish};

/// Parts of the Internet's mix: bytes of the inner packet, and how many of twelve have them.
const IMIX: [(usize, u32); 3] = [(64, 7), (576, 4), (1420, 1)];
/// Flows that a cache is made for.
const CACHE_FLOWS: usize = 1 << 16;
/// Times that the engine seals each packet in the rows of control.
const CONTROL: [u32; 2] = [0, 10];

/// Arguments of `lockgate bench offload`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct OffloadArguments {
    /// IP versions, the same inside and outside.
    #[arg(long, value_delimiter = ',', default_values_t = [4],
          value_parser = clap::value_parser!(u8).range(4..=6))]
    family: Vec<u8>,
    /// Bytes of the inner IP packet, its header included, or "imix": of twelve packets seven of 64,
    /// four of 576 and one of 1420 bytes.
    #[arg(long, value_delimiter = ',', value_parser = size,
          default_values = ["64", "256", "512", "1400", "imix"])]
    size: Vec<Size>,
    /// Modes.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Mode::ALL)]
    mode: Vec<Mode>,
    /// Cipher suites of the software, or "all".
    #[arg(long, value_delimiter = ',', value_parser = suites,
          default_values = ["aes-128-gcm", "aes-256-gcm"])]
    suite: Vec<Suites>,
    /// Threads, each on a core of its own with frames, flows and SAs of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    workers: Vec<usize>,
    /// Laps of every row at least; 7 is the least. There are as many as the time allows.
    #[arg(long, default_value_t = 9)]
    laps: usize,
    /// Seconds that the bench may take, about, if the laps asked for allow it.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the random order, from an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Core to measure on; without it the last one. Further workers take those before it.
    #[arg(long)]
    core: Option<usize>,
    /// Writes the figures as JSON; "-": to standard output, and the tables to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The part of ESP that a card does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// No ESP: a BYPASS policy.
    Baseline,
    /// None: ESP in software.
    Software,
    /// The cipher.
    Crypto,
    /// All.
    Packet,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Baseline, Mode::Software, Mode::Crypto, Mode::Packet];

    const fn name(self) -> &'static str {
        match self {
            Mode::Baseline => "baseline",
            Mode::Software => "software",
            Mode::Crypto => "crypto",
            Mode::Packet => "packet",
        }
    }

    /// The directions of its rows.
    const fn directions(self) -> &'static [Direction] {
        match self {
            Mode::Baseline => &[Direction::Bypass],
            Mode::Software => &[Direction::Out, Direction::In],
            Mode::Crypto => &[Direction::CryptoOut, Direction::CryptoIn],
            Mode::Packet => &[Direction::PacketOut, Direction::PacketIn],
        }
    }

    /// Returns whether a card works in it.
    const fn has_card(self) -> bool {
        matches!(self, Mode::Crypto | Mode::Packet)
    }
}

/// The bytes of packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Size {
    Bytes(usize),
    /// [`IMIX`].
    Mix,
}

impl Size {
    /// The sizes that it is made of.
    fn parts(self) -> Vec<(usize, u32)> {
        match self {
            Size::Bytes(bytes) => vec![(bytes, 1)],
            Size::Mix => IMIX.to_vec(),
        }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Size::Bytes(bytes) => write!(f, "{bytes}"),
            Size::Mix => f.write_str("imix"),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Size::Bytes(bytes) => serializer.serialize_u64(*bytes as u64),
            Size::Mix => serializer.serialize_str("imix"),
        }
    }
}

fn size(text: &str) -> Result<Size, String> {
    match text {
        "imix" => Ok(Size::Mix),
        number => number.parse().map(Size::Bytes).map_err(|_| "bytes, or imix".into()),
    }
}

/// Subject of the laps of one size.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Laps {
    mode: Mode,
    subject: Subject,
    /// Suite of the rows without a cipher.
    first_suite: Suite,
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &OffloadArguments) -> Result<(), BenchError> {
    let available = machine::cores().map_or(1, |cores| cores.len().max(1));
    let all = laps(arguments, available).map_err(BenchError::Argument)?;
    let seat = Seat::take(arguments.core)?;
    let seed = measure::seed(arguments.seed)?;
    let mut random = Random::new(seed);
    let most_workers = all.iter().map(|one| one.subject.case.workers).max().unwrap_or(1);
    let kits = Kits::new(most_workers, LEAST_FLOWS, FRAME_BYTES, ENTRIES_A_FLOW * CACHE_FLOWS);
    let engine = Engine::start(seat.cores.get(1).copied());
    let (staging, limits) = (Staging::Whole, SaLimits::Without);
    let course =
        Course { passes: PASSES, staging, cores: &seat.cores, limits, engine: Some(&engine) };
    let mut kits = Some(kits);
    let allowed = Duration::from_secs(arguments.seconds);
    let figures: Vec<Vec<(LapFigures, u64)>> =
        measure::rounds(all.len(), arguments.laps, allowed, &mut random, |row, random| {
            let subject = &all[row].subject;
            let before = engine.sealed();
            engine.seal_each(subject.engine);
            let lent = kits.take().expect("a refused lap ends the bench");
            let (back, figures) =
                lap::run(subject, lent, course, random).map_err(|it| refused(subject, it))?;
            kits = Some(back);
            engine.seal_each(0);
            Ok((figures, engine.sealed() - before))
        })?;
    let measured =
        rows::Measured::new(&all, &figures, seat.cores.len(), PASSES as usize * LEAST_FLOWS);
    let rows = measured.rows(&arguments.size);
    let (machine, commit) = (seat.machine(), machine::commit());
    let text = rows::text(&rows, &machine, &commit, seed);
    let report = Report { bench: "offload", machine: &machine, commit: &commit, rows: &rows };
    publish(&report, &text, arguments.json.as_deref())
}

/// The laps that the arguments select on a machine with `cores` cores. Of each mode with a card its
/// smallest packets that leave have rows of control, by one worker.
///
/// # Errors
/// The number that is out of its range.
fn laps(arguments: &OffloadArguments, cores: usize) -> Result<Vec<Laps>, ArgumentError> {
    ArgumentError::check("--laps", &[arguments.laps], LEAST_LAPS, 10_000)?;
    ArgumentError::check("--workers", &arguments.workers, 1, cores.min(MAX_WORKERS))?;
    let parts = arguments.size.iter().flat_map(|size| size.parts());
    let mut sizes: Vec<usize> = parts.map(|(bytes, _)| bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut all = Vec::new();
    for &version in &arguments.family {
        let family = if version == 4 { Family::V4 } else { Family::V6 };
        let (least, most) = Case::sizes(family).into_inner();
        if let Some(&size) = sizes.iter().find(|size| !(least..=most).contains(size)) {
            return Err(ArgumentError::Size { size, family: version, least, most });
        }
        for &workers in &arguments.workers {
            for mode in with_baseline(&arguments.mode) {
                all.extend(of_mode(mode, arguments, (family, workers), &sizes));
            }
        }
    }
    Ok(all)
}

/// The laps of a mode, by family and number of workers.
fn of_mode(
    mode: Mode,
    arguments: &OffloadArguments,
    (family, workers): (Family, usize),
    sizes: &[usize],
) -> Vec<Laps> {
    let suites: Vec<Suite> = arguments.suite.iter().flat_map(|suites| suites.0).copied().collect();
    let (first_suite, flows) = (suites[0], LEAST_FLOWS);
    let suites = if mode == Mode::Software { &suites[..] } else { &suites[..1] };
    let mut laps = Vec::new();
    for &direction in mode.directions() {
        for &suite in suites {
            for &size in sizes {
                let (backend, sas) = (None, 1);
                let case = Case { direction, suite, family, size, flows, backend, workers, sas };
                let is_smallest = sizes.first() == Some(&size) && workers == 1;
                let is_control = mode.has_card() && direction.is_handed_over() && is_smallest;
                let engines: &[u32] = match (mode.has_card(), is_control) {
                    (true, true) => &[1, CONTROL[0], CONTROL[1]],
                    (true, false) => &[1],
                    (false, _) => &[0],
                };
                let (walk, cache) = (WalkKind::Fast, Caching::Auto);
                laps.extend(engines.iter().map(|&engine| {
                    let subject = Subject { case, walk, cache, in_flight: LEAST_IN_FLIGHT, engine };
                    Laps { mode, subject, first_suite }
                }));
            }
        }
    }
    laps
}

/// The modes asked for, and the baseline, which all are compared with.
fn with_baseline(modes: &[Mode]) -> impl Iterator<Item = Mode> + '_ {
    Mode::ALL.into_iter().filter(|mode| *mode == Mode::Baseline || modes.contains(mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::collections::HashSet;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: OffloadArguments,
    }

    fn arguments(line: &[&str]) -> OffloadArguments {
        Line::parse_from([&["offload"], line].concat()).arguments
    }

    /// The arguments, and the laps of a machine with two cores.
    pub(super) fn laps_of(line: &[&str]) -> (OffloadArguments, Vec<Laps>) {
        let arguments = arguments(line);
        let all = laps(&arguments, 2).unwrap();
        (arguments, all)
    }

    // BM-3e, BM-3f
    #[test]
    fn every_mode_has_laps_of_all_sizes_and_workers_and_each_once() {
        let (_, all) = laps_of(&[]);
        let labels: HashSet<String> = all
            .iter()
            .map(|laps| format!("{} {}", laps.mode.name(), laps.subject.label()))
            .collect();
        assert_eq!(labels.len(), all.len());
        let sizes = [64, 256, 512, 576, 1400, 1420];
        for mode in Mode::ALL {
            for workers in [1, 2] {
                for size in sizes {
                    let is = |laps: &&Laps| {
                        let case = laps.subject.case;
                        (laps.mode, case.workers, case.size) == (mode, workers, size)
                    };
                    assert!(all.iter().any(|laps| is(&laps)), "{mode:?} {workers} {size}");
                }
            }
        }
        let of = |engine: u32| all.iter().filter(|laps| laps.subject.engine == engine).count();
        let modes = Mode::ALL.iter().filter(|mode| mode.has_card());
        assert_eq!(of(10), modes.count(), "one row of control for each mode of a card");
        assert!(all.iter().all(|laps| laps.mode.has_card() || laps.subject.engine == 0));
    }

    #[test]
    fn a_mode_asked_for_has_the_baseline_beside_it() {
        let (_, all) = laps_of(&["--mode=packet", "--size=64"]);
        let modes: HashSet<&str> = all.iter().map(|laps| laps.mode.name()).collect();
        assert_eq!(modes, HashSet::from(["baseline", "packet"]));
    }

    #[test]
    fn what_would_measure_something_else_is_refused() {
        let error = |line: &[&str]| laps(&arguments(line), 2).unwrap_err().to_string();
        assert!(error(&["--size=40", "--family=6"]).contains("40"));
        assert!(error(&["--laps=3"]).contains("--laps"));
        assert!(error(&["--workers=3"]).contains("--workers"));
        assert!(Line::try_parse_from(["offload", "--size=many"]).is_err());
        assert!(Line::try_parse_from(["offload", "--mode=full"]).is_err());
    }
}
