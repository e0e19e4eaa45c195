//! `lockgate bench esp`: the walk sealing, opening and forwarding.
//!
//! Every row is measured lap by lap in turn with all others, so that noise hits all alike. A row's
//! figure is the median of its laps; beside it stand the distance of the quartiles and the time of
//! the cipher alone on the same packets, measured in the same lap. What is left is the walk's own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use io::memory::{FRAME_BYTES, MemoryFrames};
use ipsec::Suite;
use serde::Serialize;
use wire::Family;

use super::lap::{self, LapError, LapFigures};
use super::machine::{self, Machine};
use super::measure::{Figure, Random, Span};
use super::scene::{Case, Direction, Keys, MAX_FLOWS};
use super::{ArgumentError, BenchError, LapRefused, publish, shares};

/// Laps at least.
const LEAST_LAPS: usize = 7;
/// Frames, and so flows, at least.
const LEAST_FLOWS: usize = 4096;
/// Bytes of a frame at least and at most: an MTU's packet sealed, with its headroom; a page.
const FRAME_SIZES: [usize; 2] = [2048, FRAME_BYTES];

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
    /// Which way: sealed, opened, or between two protected ports without ESP.
    #[arg(long, value_delimiter = ',', value_enum,
          default_values_t = [Direction::Out, Direction::In, Direction::Forward])]
    direction: Vec<Direction>,
    /// Cipher suites.
    #[arg(long, value_delimiter = ',', value_parser = suite,
          default_values_t = [Suite::Aes128Gcm, Suite::Aes256Gcm])]
    suite: Vec<Suite>,
    /// Laps of every row, at least 7.
    #[arg(long, default_value_t = 9)]
    laps: usize,
    /// Flows, each with one frame in flight: 4096 to 65536.
    #[arg(long, default_value_t = LEAST_FLOWS)]
    flows: usize,
    /// Bytes of a frame: 2048 to 4096.
    #[arg(long, default_value_t = FRAME_BYTES)]
    frame_bytes: usize,
    /// Seconds that the bench may take, about: the laps are made as long as that allows.
    #[arg(long, default_value_t = 40)]
    seconds: u64,
    /// Seed of the random order, from an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Core to measure on; without it the last one.
    #[arg(long)]
    core: Option<usize>,
    /// Writes the figures as JSON; "-": to standard output, and the table to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Shows instead where the instructions of the timed span go, by valgrind.
    #[arg(long)]
    shares: bool,
    /// Runs one short lap of the first row and nothing else, for an instruction counter:
    /// valgrind --tool=callgrind --toggle-collect='*bench*lap*drain*' lockgate bench esp
    /// --callgrind-once --direction out --size 64 --family 4
    #[arg(long, verbatim_doc_comment)]
    callgrind_once: bool,
}

fn suite(text: &str) -> Result<Suite, String> {
    let names = || Suite::ALL.iter().map(|suite| suite.name()).collect::<Vec<_>>().join(", ");
    Suite::from_name(text).ok_or_else(|| format!("one of {}", names()))
}

/// One row: what was measured and what it came to.
#[derive(Clone, Debug, Serialize)]
struct Row {
    suite: &'static str,
    /// Bytes of the inner packet.
    size: usize,
    direction: &'static str,
    backend: &'static str,
    family: u8,
    workers: u32,
    mpps: f64,
    /// Of inner packets.
    gbps: f64,
    ns_per_packet: f64,
    cipher_ns: f64,
    /// `ns_per_packet` without `cipher_ns`.
    walk_ns: f64,
    /// Distance of the quartiles of `ns_per_packet` as a part of its median.
    spread: f64,
    ns_min: f64,
    ns_max: f64,
    cipher_spread: f64,
    laps: usize,
    packets_per_lap: usize,
    flows: usize,
    frame_bytes: usize,
    /// Part of the time that passed in which the thread had its core.
    share_of_core: f64,
}

/// All that `--json` writes.
#[derive(Serialize)]
struct Report<'r> {
    bench: &'static str,
    machine: &'r Machine,
    commit: &'r str,
    rows: &'r [Row],
}

/// Runs the bench.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(arguments: &EspArguments) -> Result<(), BenchError> {
    let cases = cases(arguments).map_err(BenchError::Argument)?;
    if arguments.shares {
        return shares::run(&cases);
    }
    let pinned_to = match machine::pin(arguments.core) {
        Ok(core) => Some(core),
        Err(error) => {
            eprintln!("NOT PINNED to a core, figures will vary: {error}");
            None
        }
    };
    let seed = match arguments.seed {
        Some(seed) => seed,
        None => getrandom::u64().map_err(|error| refused(&cases[0], LapError::Random(error)))?,
    };
    let mut random = Random::new(seed);
    let mut bench = Bench {
        cases: &cases,
        laps: vec![Vec::new(); cases.len()],
        frames: Some(lap::frames(arguments.flows, arguments.frame_bytes)),
    };
    if arguments.callgrind_once {
        bench.cases = &cases[..1];
        return bench.round(1, &mut random).map(|_| ());
    }
    let passes = bench.measure(arguments, &mut random)?;
    let rows = bench.rows(passes, arguments.frame_bytes)?;
    let (machine, commit) = (Machine::look(pinned_to), machine::commit());
    let text = format!("{}\nseed {seed}\n{}", heading(&machine, &commit), table(&rows));
    let report = Report { bench: "esp", machine: &machine, commit: &commit, rows: &rows };
    publish(&report, &text, arguments.json.as_deref())
}

/// All rows that the arguments ask for.
fn cases(arguments: &EspArguments) -> Result<Vec<Case>, ArgumentError> {
    let range = |name, found: usize, least, most| match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(ArgumentError::Range { name, found, least, most }),
    };
    range("--laps", arguments.laps, LEAST_LAPS, 10_000)?;
    range("--flows", arguments.flows, LEAST_FLOWS, MAX_FLOWS)?;
    range("--frame-bytes", arguments.frame_bytes, FRAME_SIZES[0], FRAME_SIZES[1])?;
    let mut cases = Vec::new();
    for &direction in &arguments.direction {
        // Forwarding has no suite: one row stands for all.
        let suites = match direction {
            Direction::Forward => &arguments.suite[..1],
            Direction::Out | Direction::In => &arguments.suite[..],
        };
        for &suite in suites {
            for &size in &arguments.size {
                for &version in &arguments.family {
                    let family = if version == 4 { Family::V4 } else { Family::V6 };
                    let (least, most) = Case::sizes(family).into_inner();
                    if !(least..=most).contains(&size) {
                        return Err(ArgumentError::Size { size, family: version, least, most });
                    }
                    cases.push(Case { direction, suite, family, size, flows: arguments.flows });
                }
            }
        }
    }
    Ok(cases)
}

fn refused(case: &Case, error: LapError) -> BenchError {
    BenchError::Lap { case: case.label(), error: LapRefused(error) }
}

impl Case {
    /// The row's name.
    pub(super) fn label(&self) -> String {
        let version = version(self.family);
        match self.direction {
            Direction::Forward => format!("forward, IPv{version}, {} bytes", self.size),
            way => format!("{} {}, IPv{version}, {} bytes", self.suite, way.name(), self.size),
        }
    }
}

impl Case {
    /// Arguments of `bench esp` that ask for this row alone.
    pub(super) fn arguments(&self) -> Vec<String> {
        let Case { direction, suite, family, size, flows } = self;
        [
            format!("--direction={}", direction.name()),
            format!("--suite={suite}"),
            format!("--family={}", version(*family)),
            format!("--size={size}"),
            format!("--flows={flows}"),
            "--seed=1".into(),
        ]
        .into()
    }
}

fn version(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

/// The laps so far.
struct Bench<'c> {
    cases: &'c [Case],
    /// One list a case.
    laps: Vec<Vec<LapFigures>>,
    /// `None` only after a lap was refused.
    frames: Option<MemoryFrames>,
}

impl Bench<'_> {
    /// One lap of every case, in turn. Returns the time that it took.
    fn round(&mut self, passes: u32, random: &mut Random) -> Result<Duration, BenchError> {
        let begin = Instant::now();
        for (case, laps) in self.cases.iter().zip(&mut self.laps) {
            let frames = self.frames.take().expect("a refused lap ends the bench");
            let (frames, figures) =
                lap::run(case, frames, passes, random).map_err(|error| refused(case, error))?;
            self.frames = Some(frames);
            laps.push(figures);
        }
        Ok(begin.elapsed())
    }

    /// All laps. The first round only warms up and says how long a lap may be; returns the passes
    /// of a lap.
    fn measure(
        &mut self,
        arguments: &EspArguments,
        random: &mut Random,
    ) -> Result<u32, BenchError> {
        let begin = Instant::now();
        self.round(1, random)?;
        let one = self.round(1, random)?;
        let three = self.round(3, random)?;
        let pass = three.saturating_sub(one).as_secs_f64() / 2.0;
        let left = arguments.seconds as f64 - begin.elapsed().as_secs_f64();
        let round = left / arguments.laps as f64;
        let passes = 1.0 + (round - one.as_secs_f64()) / pass.max(1e-6);
        let passes = passes.clamp(1.0, 64.0) as u32;
        self.laps.iter_mut().for_each(Vec::clear);
        for _ in 0..arguments.laps {
            self.round(passes, random)?;
        }
        Ok(passes)
    }

    fn rows(&self, passes: u32, frame_bytes: usize) -> Result<Vec<Row>, BenchError> {
        let rows = self.cases.iter().zip(&self.laps);
        rows.map(|(case, laps)| row(case, laps, passes, frame_bytes)).collect()
    }
}

fn row(
    case: &Case,
    laps: &[LapFigures],
    passes: u32,
    frame_bytes: usize,
) -> Result<Row, BenchError> {
    let of =
        |figure: fn(&LapFigures) -> f64| Figure::of(&laps.iter().map(figure).collect::<Vec<f64>>());
    let (walk, cipher) = (of(|lap| lap.walk_ns), of(|lap| lap.cipher_ns));
    let mut span = Span::default();
    laps.iter().for_each(|lap| span.add(lap.span));
    let ciphers = case.direction != Direction::Forward;
    let backend = match ciphers {
        true => backend(case).map_err(|error| refused(case, error))?,
        false => "none",
    };
    Ok(Row {
        suite: if ciphers { case.suite.name() } else { "none" },
        size: case.size,
        direction: case.direction.name(),
        backend,
        family: version(case.family),
        workers: 1,
        mpps: 1e3 / walk.median,
        gbps: 8.0 * case.size as f64 / walk.median,
        ns_per_packet: walk.median,
        cipher_ns: cipher.median,
        walk_ns: walk.median - cipher.median,
        spread: walk.spread,
        ns_min: walk.least,
        ns_max: walk.most,
        cipher_spread: if ciphers { cipher.spread } else { 0.0 },
        laps: laps.len(),
        packets_per_lap: passes as usize * case.flows,
        flows: case.flows,
        frame_bytes,
        share_of_core: span.share_of_core(),
    })
}

/// The library behind the cipher seam.
fn backend(case: &Case) -> Result<&'static str, LapError> {
    Ok(case.gateway(&Keys::fresh(case.suite)?)?.outbound()[0].cipher.backend_name())
}

/// What stands above the table.
fn heading(machine: &Machine, commit: &str) -> String {
    let Machine { cpu, cores, features, kernel, pinned_to } = machine;
    let core = match pinned_to {
        Some(core) => format!("one worker pinned to core {core}"),
        None => "one worker, NOT PINNED".into(),
    };
    format!(
        "bench esp, commit {commit}\n{cpu}, {cores} cores ({}), Linux {kernel}, {core}\n\
         in memory; on a copy-mode AF_XDP port the same core carries 7–10 Gbit/s",
        features.join(" ")
    )
}

/// The rows as text, aligned.
fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "direction",
        "suite",
        "backend",
        "IP",
        "size",
        "Mpps",
        "Gbit/s",
        "ns/packet",
        "± IQR",
        "cipher ns",
        "walk ns",
        "core",
    ]);
    for row in rows {
        table.add_row([
            row.direction.to_owned(),
            row.suite.to_owned(),
            row.backend.to_owned(),
            row.family.to_string(),
            row.size.to_string(),
            format!("{:.2}", row.mpps),
            format!("{:.1}", row.gbps),
            format!("{:.1}", row.ns_per_packet),
            format!("{:.1} %", row.spread * 100.0),
            format!("{:.1}", row.cipher_ns),
            format!("{:.1}", row.walk_ns),
            format!("{:.0} %", row.share_of_core * 100.0),
        ]);
    }
    table.column_iter_mut().skip(3).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    let laps = rows.first().map_or(0, |row| row.laps);
    let packets = rows.first().map_or(0, |row| row.packets_per_lap);
    let flows = rows.first().map_or(0, |row| row.flows);
    format!(
        "{table}\n\
         size, Gbit/s: inner IP packet. ns/packet: CPU time of the thread, median of {laps} laps \
         of {packets} packets, {flows} flows.\n\
         ± IQR: distance of the quartiles over the median. cipher ns: the cipher alone on the \
         same packets. walk ns: the rest.\n\
         core: part of the time in which the thread had its core; well below 100 % others \
         disturbed it."
    )
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

    #[test]
    fn without_arguments_there_is_a_row_for_everything() {
        let cases = cases(&arguments(&[])).unwrap();
        assert_eq!(cases.len(), 2 * 2 * 2 * 2 + 2 * 2, "suites, ways, sizes, families; forwarding");
        let mut labels: Vec<String> = cases.iter().map(Case::label).collect();
        labels.sort();
        labels.dedup();
        assert_eq!(labels.len(), cases.len());
    }

    #[test]
    fn a_row_asked_for_by_its_own_arguments_is_that_row() {
        for case in cases(&arguments(&["--size", "64,999", "--flows", "5000"])).unwrap() {
            let line = case.arguments();
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            assert_eq!(cases(&arguments(&line)), Ok(vec![case]));
        }
    }

    #[test]
    fn what_would_measure_something_else_is_refused() {
        let error = |line: &[&str]| cases(&arguments(line)).unwrap_err();
        assert_eq!(
            error(&["--size", "40"]),
            ArgumentError::Size { size: 40, family: 6, least: 48, most: 1426 }
        );
        assert_eq!(
            error(&["--size", "1447", "--family", "4"]),
            ArgumentError::Size { size: 1447, family: 4, least: 28, most: 1446 }
        );
        for (name, found) in
            [("--laps", "6"), ("--flows", "4095"), ("--flows", "65537"), ("--frame-bytes", "2047")]
        {
            assert!(error(&[name, found]).to_string().contains(name));
        }
    }

    #[test]
    fn a_rows_figures_follow_from_its_laps() {
        let case = cases(&arguments(&["--size=1000", "--family=4"])).unwrap()[0];
        let lap = |walk_ns, cipher_ns| {
            let time = Duration::from_millis(3);
            LapFigures { walk_ns, cipher_ns, span: Span { cpu: time, wall: 2 * time } }
        };
        let laps = [lap(120.0, 50.0), lap(80.0, 40.0), lap(100.0, 30.0)];
        let row = row(&case, &laps, 5, 4096).unwrap();
        assert_eq!((row.ns_per_packet, row.cipher_ns, row.walk_ns), (100.0, 40.0, 60.0));
        assert_eq!((row.mpps, row.gbps), (10.0, 80.0), "8000 bits every 100 ns");
        assert_eq!((row.spread, row.ns_min, row.ns_max), (0.2, 80.0, 120.0));
        assert_eq!((row.laps, row.packets_per_lap), (3, 5 * 4096));
        assert!((row.share_of_core - 0.5).abs() < 1e-9);
    }

    #[test]
    fn the_json_has_the_fields_that_scripts_read() {
        let case = cases(&arguments(&[])).unwrap()[0];
        let figures = LapFigures { walk_ns: 1.0, cipher_ns: 1.0, span: Span::default() };
        let rows = [row(&case, &[figures], 1, 4096).unwrap()];
        let machine = Machine::look(None);
        let report = Report { bench: "esp", machine: &machine, commit: "abc", rows: &rows };
        let json = serde_json::to_value(&report).unwrap();
        let keys = |value: &serde_json::Value| -> Vec<String> {
            value.as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(keys(&json), ["bench", "commit", "machine", "rows"]);
        let row = keys(&json["rows"][0]);
        for key in [
            "suite",
            "size",
            "direction",
            "backend",
            "family",
            "workers",
            "mpps",
            "gbps",
            "ns_per_packet",
            "cipher_ns",
            "spread",
        ] {
            assert!(row.iter().any(|found| found == key), "{key} is missing");
        }
        assert!(table(&rows).contains("aes-128-gcm"));
        assert!(heading(&machine, "abc").contains("in memory; on a copy-mode AF_XDP port"));
    }
}
