//! Clocks, medians, spreads, and a random order that a seed reproduces.

use std::time::{Duration, Instant};

use netlab::interrupt;
use rustix::time::{ClockId, clock_gettime};
use scene::Random;

use super::BenchError;

/// A stretch of time, by two clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Span {
    /// CPU time of this thread, without the time that others had the core. Figures are made of this
    /// one.
    pub(super) cpu: Duration,
    /// Elapsed time.
    pub(super) wall: Duration,
}

impl Span {
    pub(super) fn add(&mut self, other: Span) {
        self.cpu += other.cpu;
        self.wall += other.wall;
    }

    /// Returns the part of the elapsed time in which this thread had its core.
    pub(super) fn share_of_core(self) -> f64 {
        self.cpu.as_secs_f64() / self.wall.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Runs `work` and measures it. Cost outside the measured stretch: two system calls.
pub(super) fn measure<R>(work: impl FnOnce() -> R) -> (R, Span) {
    let cpu = thread_time();
    let wall = Instant::now();
    let result = work();
    let wall = wall.elapsed();
    (result, Span { cpu: thread_time().saturating_sub(cpu), wall })
}

/// Returns the time that [`measure`] measures of nothing: its own part in every figure.
pub(super) fn overhead() -> Duration {
    let mut nothing: Vec<Duration> = (0..101).map(|_| measure(|| ()).1.cpu).collect();
    nothing.sort_unstable();
    nothing[nothing.len() / 2]
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// One figure, measured several times.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Figure {
    pub(super) median: f64,
    /// Distance of the quartiles, as a part of the median.
    pub(super) spread: f64,
    pub(super) first_quartile: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Figure {
    /// Summarizes several measurements. No measurements: all NaN.
    pub(super) fn of(measurements: &[f64]) -> Figure {
        let mut sorted = measurements.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = quantile(&sorted, 0.5);
        let first_quartile = quantile(&sorted, 0.25);
        let spread = (quantile(&sorted, 0.75) - first_quartile) / median;
        let (least, most) = (quantile(&sorted, 0.0), quantile(&sorted, 1.0));
        Figure { median, spread, first_quartile, least, most }
    }
}

/// A quantile of ascending values, between two of them by the straight line.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

/// The seed asked for, else a fresh one.
///
/// # Errors
/// The operating system gave no random bytes.
pub(super) fn seed(asked: Option<u64>) -> Result<u64, BenchError> {
    match asked {
        Some(seed) => Ok(seed),
        None => getrandom::u64().map_err(|error| BenchError::System {
            doing: "drawing a seed",
            error: std::io::Error::other(error.to_string()),
        }),
    }
}

/// Runs laps of all rows in turn, in another random order in every round, so that noise hits all
/// rows alike. Takes at least `least` rounds, and as many as the time allows, after a first one
/// that only warms up and does not count. `lap` measures a row.
///
/// # Errors
/// [`BenchError`]: a lap does not count, or Ctrl-C.
pub(super) fn rounds<L>(
    rows: usize,
    least: usize,
    allowed: Duration,
    random: &mut Random,
    mut lap: impl FnMut(usize, &mut Random) -> Result<L, BenchError>,
) -> Result<Vec<Vec<L>>, BenchError> {
    let begin = Instant::now();
    let mut laps: Vec<Vec<L>> = (0..rows).map(|_| Vec::new()).collect();
    for round in 0.. {
        let round_begin = Instant::now();
        let mut order: Vec<usize> = (0..rows).collect();
        random.shuffle(&mut order);
        for row in order {
            interrupt::check()?;
            let figures = lap(row, random)?;
            if round > 0 {
                laps[row].push(figures);
            }
        }
        if round >= least && begin.elapsed() + round_begin.elapsed() > allowed {
            break;
        }
    }
    Ok(laps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_quartiles_are_those_of_the_sorted_values() {
        let figure = Figure::of(&[50.0, 10.0, 30.0, 20.0, 40.0]);
        assert_eq!((figure.median, figure.least, figure.most), (30.0, 10.0, 50.0));
        assert_eq!((figure.spread, figure.first_quartile), ((40.0 - 20.0) / 30.0, 20.0));
        assert_eq!(Figure::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5, "between the two in the middle");
        assert_eq!(Figure::of(&[7.0; 9]).spread, 0.0);
        assert_eq!(Figure::of(&[3.0]).median, 3.0);
        assert!(Figure::of(&[]).median.is_nan());
    }

    #[test]
    fn one_lap_that_was_disturbed_moves_neither_median_nor_spread_much() {
        let mut laps = [100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 100.0, 101.0, 99.0];
        let quiet = Figure::of(&laps);
        laps[3] = 10_000.0;
        let disturbed = Figure::of(&laps);
        assert!((disturbed.median - quiet.median).abs() <= 1.0);
        assert!(disturbed.spread <= 0.03, "{disturbed:?}");
        assert_eq!(disturbed.most, 10_000.0, "it is shown all the same");
    }

    #[test]
    fn every_round_has_a_lap_of_every_row_and_the_first_counts_nowhere() {
        let mut turns = Vec::new();
        let laps = rounds(3, 7, Duration::ZERO, &mut Random::new(1), |row, _| {
            turns.push(row);
            Ok(turns.len())
        });
        let laps = laps.unwrap();
        assert_eq!(laps.iter().map(Vec::len).collect::<Vec<_>>(), [7; 3]);
        assert!(laps.iter().flatten().all(|lap| *lap > 3), "not those that warm up");
        let rounds = turns.chunks(3).map(|round| round.iter().sum::<usize>());
        assert!(rounds.clone().count() == 8 && rounds.into_iter().all(|sum| sum == 3));
        assert!(turns.chunks(3).any(|round| round != &turns[..3]), "not always one order");
    }

    #[test]
    fn thread_time_counts_work_and_not_sleep() {
        assert!(overhead() < Duration::from_millis(1));
        let (_, asleep) = measure(|| std::thread::sleep(Duration::from_millis(30)));
        assert!(asleep.wall >= Duration::from_millis(30), "{asleep:?}");
        assert!(asleep.cpu < Duration::from_millis(15), "{asleep:?}");
        let (_, awake) = measure(|| {
            let begin = thread_time();
            while thread_time() - begin < Duration::from_millis(5) {}
        });
        assert!(awake.cpu >= Duration::from_millis(5), "{awake:?}");
        assert!(awake.share_of_core() <= 1.01 + f64::EPSILON, "{awake:?}");
    }
}
