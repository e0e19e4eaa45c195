//! Options of the benches that drive stations, their rounds, and what they print and write.

use std::path::PathBuf;
use std::time::Duration;

use io::memory::MemoryFrames;
use scene::Random;
use serde::Serialize;

use super::super::lap_error::LapError;
use super::super::machine::{self, Machine, Seat};
use super::super::measure::{self, rounds};
use super::super::plot::Chart;
use super::super::{ArgumentError, BenchError, LapRefused, Report, publish};
use super::{Crew, Measured, Setting};

/// Laps at least.
const LEAST_LAPS: usize = 7;
/// Frames in flight at least.
const LEAST_IN_FLIGHT: usize = 4096;
/// Entries of the cache for each flow that it is made for.
const ENTRIES_A_FLOW: usize = 4;
/// Laps and entries at most.
const MOST: usize = 1 << 26;

/// Options that say how to measure, not what.
#[derive(clap::Args, Clone, Debug)]
pub(in super::super) struct RunArguments {
    /// Flows that the cache is made for: it has four times as many entries.
    #[arg(long, default_value_t = 1 << 20)]
    cache_flows: usize,
    /// Laps of every row at least; 7 is the least. There are as many as the time allows.
    #[arg(long, default_value_t = 9)]
    laps: usize,
    /// Frames in flight, at least 4096.
    #[arg(long, default_value_t = LEAST_IN_FLIGHT)]
    in_flight: usize,
    /// Seconds that the laps may take, about, if as many as asked for allow it.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the random order, from an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Core to measure on; without it the last one.
    #[arg(long)]
    core: Option<usize>,
    /// Writes the figures as JSON; "-": to standard output, and the tables to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the curves into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

/// The machine and the seed of a run.
pub(in super::super) struct Provenance {
    pub(in super::super) machine: Machine,
    seed: u64,
}

/// Figures of all rows, and where they were measured.
pub(in super::super) struct Measurement {
    pub(in super::super) provenance: Provenance,
    pub(in super::super) rows: Vec<Measured>,
}

/// A run that has begun: its core, and what all its rows share.
pub(in super::super) struct Course {
    seat: Seat,
    seed: u64,
    pub(in super::super) random: Random,
    pub(in super::super) frames: MemoryFrames,
}

impl Course {
    /// Ends the run.
    pub(in super::super) fn end(self) -> Provenance {
        Provenance { machine: self.seat.machine(), seed: self.seed }
    }
}

impl RunArguments {
    /// Checks the options.
    ///
    /// # Errors
    /// [`ArgumentError::Range`].
    pub(in super::super) fn check(&self) -> Result<(), ArgumentError> {
        ArgumentError::check("--laps", &[self.laps], LEAST_LAPS, MOST)?;
        ArgumentError::check("--cache-flows", &[self.cache_flows], 2, MOST)?;
        ArgumentError::check("--in-flight", &[self.in_flight], LEAST_IN_FLIGHT, MOST)
    }

    /// Frames in flight.
    pub(in super::super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Entries of a flow cache.
    pub(in super::super) fn cache_entries(&self) -> usize {
        ENTRIES_A_FLOW * self.cache_flows
    }

    /// Takes the core, and makes the frames.
    ///
    /// # Errors
    /// [`BenchError`].
    pub(in super::super) fn begin(&self) -> Result<Course, BenchError> {
        let seat = Seat::take(self.core)?;
        let seed = measure::seed(self.seed)?;
        let (random, frames) = (Random::new(seed), MemoryFrames::new(self.in_flight as u32));
        Ok(Course { seat, seed, random, frames })
    }

    /// Runs laps of all rows in turn: [`rounds`].
    ///
    /// # Errors
    /// [`BenchError`]: a lap does not count, or Ctrl-C.
    pub(in super::super) fn laps<L>(
        &self,
        rows: usize,
        random: &mut Random,
        lap: impl FnMut(usize, &mut Random) -> Result<L, BenchError>,
    ) -> Result<Vec<Vec<L>>, BenchError> {
        rounds(rows, self.laps, Duration::from_secs(self.seconds), random, lap)
    }

    /// Measures the rows in turn.
    ///
    /// # Errors
    /// [`BenchError`].
    pub(in super::super) fn measure<R>(
        &self,
        rows: &[R],
        mut setting: impl FnMut(&R) -> Result<Setting, BenchError>,
    ) -> Result<Measurement, BenchError> {
        let mut course = self.begin()?;
        let Course { random, seat, .. } = &mut course;
        let settings = rows.iter().map(&mut setting).collect::<Result<Vec<Setting>, _>>()?;
        let workers = settings.iter().map(|setting| setting.workers).max().unwrap_or(1);
        let frames = |_| MemoryFrames::new(self.in_flight as u32);
        let mut frames: Vec<MemoryFrames> = (0..workers).map(frames).collect();
        let mut crews = Vec::with_capacity(rows.len());
        for setting in &settings {
            netlab::interrupt::check()?;
            let (entries, frames) = (self.cache_entries(), &mut frames[..setting.workers]);
            let crew = Crew::new(setting, entries, self.in_flight, frames, random);
            crews.push(crew.map_err(|error| refused(&setting.label, error))?);
        }
        let laps = self.laps(rows.len(), random, |place, random| {
            let (crew, frames) = (&mut crews[place], &mut frames[..settings[place].workers]);
            crew.lap(frames, &seat.cores, random).map_err(|error| refused(crew.label(), error))
        })?;
        let rows = crews.iter().zip(&laps).map(|(crew, laps)| crew.measured(laps)).collect();
        Ok(Measurement { provenance: course.end(), rows })
    }

    /// Prints, writes and draws the results. `subject` says what was measured.
    ///
    /// # Errors
    /// [`BenchError::Write`].
    pub(in super::super) fn report<F: Serialize>(
        &self,
        (bench, subject): (&'static str, &str),
        Provenance { machine, seed }: &Provenance,
        rows: &[F],
        tables: Vec<String>,
        charts: &[Chart],
    ) -> Result<(), BenchError> {
        let commit = machine::commit();
        let mut text =
            vec![format!("bench {bench}, commit {commit}\n{machine}\n{subject}\nseed {seed}")];
        text.extend(tables);
        for chart in charts {
            let Some(directory) = &self.plot else { break };
            let drawn = chart.draw(directory)?;
            text.extend(drawn.map(|file| format!("drawn: {}", file.display())));
        }
        let report = Report { bench, machine, commit: &commit, rows };
        publish(&report, &text.join("\n\n"), self.json.as_deref())
    }
}

/// A row for which there are no figures.
pub(in super::super) fn refused(label: &str, error: LapError) -> BenchError {
    BenchError::Lap { case: label.into(), error: LapRefused(error) }
}

/// Combines each of the rows with each of the values.
pub(in super::super) fn each<R: Copy, V>(
    rows: &mut Vec<R>,
    values: &[V],
    with: impl Fn(R, &V) -> R,
) {
    *rows = rows.iter().flat_map(|row| values.iter().map(|value| with(*row, value))).collect();
}
