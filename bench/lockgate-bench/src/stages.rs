//! Measures the walk's time stage by stage, by looking at the clock at the end of each.

use std::time::{Duration, Instant};

use dataplane::stage::{Stage, StageClock};
use wire::BATCH;

use super::measure::quantile;

/// Looks at the clock that say what one costs.
const LOOKS: usize = 1024;

/// Times the stages of batch after batch.
pub(super) struct BatchClock {
    last: Instant,
    /// The batch in progress.
    batch: Batch,
    batches: Vec<Batch>,
}

#[derive(Clone, Copy, Default)]
struct Batch {
    packets: usize,
    time: [Duration; Stage::ALL.len()],
    /// Looks at the clock.
    looks: [u32; Stage::ALL.len()],
}

impl Batch {
    fn total(&self) -> Duration {
        self.time.iter().sum()
    }
}

/// Time of each stage, ns a packet, with the cost of looking at the clock taken off; in the order
/// of [`Stage::ALL`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct StageTimes {
    pub(super) ns: [f64; Stage::ALL.len()],
    /// Time taken off for looks at the clock, ns a packet.
    pub(super) clock_ns: f64,
}

impl StageTimes {
    /// The mean of several.
    pub(super) fn mean(all: &[StageTimes]) -> StageTimes {
        let mean = |figure: &dyn Fn(&StageTimes) -> f64| {
            all.iter().map(figure).sum::<f64>() / all.len() as f64
        };
        StageTimes {
            ns: std::array::from_fn(|stage| mean(&|times| times.ns[stage])),
            clock_ns: mean(&|times| times.clock_ns),
        }
    }

    /// For each figure its median.
    pub(super) fn median(all: &[StageTimes]) -> StageTimes {
        let median = |figure: &dyn Fn(&StageTimes) -> f64| {
            let mut values: Vec<f64> = all.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            quantile(&values, 0.5)
        };
        StageTimes {
            ns: std::array::from_fn(|stage| median(&|times| times.ns[stage])),
            clock_ns: median(&|times| times.clock_ns),
        }
    }
}

impl BatchClock {
    /// Makes a clock for this number of batches; it allocates no more for them.
    pub(super) fn new(batches: usize) -> BatchClock {
        let batches = Vec::with_capacity(batches + 1);
        BatchClock { last: Instant::now(), batch: Batch::default(), batches }
    }

    /// Takes turn after turn until one has no packets.
    pub(super) fn run(&mut self, mut turn: impl FnMut(&mut BatchClock) -> usize) {
        loop {
            self.batch = Batch::default();
            self.last = Instant::now();
            match turn(self) {
                0 => return,
                packets => self.batches.push(Batch { packets, ..self.batch }),
            }
        }
    }

    /// The mean of the full batches whose total is between the quartiles: one in which the thread
    /// was put aside would spoil the stage that it happened in. The parts add up to the mean of
    /// these batches. No full batch: all NaN.
    pub(super) fn times(&self) -> StageTimes {
        self.times_with(look_ns())
    }

    fn times_with(&self, look_ns: f64) -> StageTimes {
        let full = self.batches.iter().filter(|batch| batch.packets == BATCH);
        let mut batches: Vec<&Batch> = full.collect();
        batches.sort_by_key(|batch| batch.total());
        let (first, last) = (batches.len() / 4, batches.len() - batches.len() / 4);
        let middle = &batches[first..last];
        let packets = (middle.len() * BATCH) as f64;
        let looks = |stage: usize| {
            let looks: u32 = middle.iter().map(|batch| batch.looks[stage]).sum();
            f64::from(looks) * look_ns / packets
        };
        let ns = std::array::from_fn(|stage| {
            let time: Duration = middle.iter().map(|batch| batch.time[stage]).sum();
            (time.as_nanos() as f64 / packets - looks(stage)).max(0.0)
        });
        StageTimes { ns, clock_ns: (0..Stage::ALL.len()).map(looks).sum() }
    }
}

impl StageClock for BatchClock {
    #[inline]
    fn ended(&mut self, stage: Stage) {
        let now = Instant::now();
        self.batch.time[stage as usize] += now - self.last;
        self.batch.looks[stage as usize] += 1;
        self.last = now;
    }
}

/// Returns the cost of a look at the clock, ns: the median of looks that follow each other.
fn look_ns() -> f64 {
    let mut clock = BatchClock::new(1);
    let mut looks: Vec<f64> = (0..LOOKS / 16)
        .map(|_| {
            let begin = Instant::now();
            (0..16).for_each(|_| std::hint::black_box(&mut clock).ended(Stage::Receive));
            begin.elapsed().as_nanos() as f64 / 17.0
        })
        .collect();
    looks.sort_by(f64::total_cmp);
    quantile(&looks, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(packets: usize, receive_ns: u64, decide_ns: u64) -> Batch {
        let mut batch = Batch { packets, ..Batch::default() };
        batch.time[Stage::Receive as usize] = Duration::from_nanos(receive_ns);
        batch.time[Stage::Decide as usize] = Duration::from_nanos(decide_ns);
        batch.looks[Stage::Receive as usize] = 1;
        batch.looks[Stage::Decide as usize] = 2;
        batch
    }

    #[test]
    fn stages_are_means_of_the_middle_batches_without_the_clock() {
        let mut clock = BatchClock::new(5);
        clock.batches = vec![
            batch(BATCH, 6400, 12_800),
            batch(BATCH, 6400, 12_800),
            batch(BATCH, 900_000, 12_800),
            batch(BATCH, 640, 1280),
            batch(3, 640, 1280),
        ];
        let times = clock.times_with(64.0);
        let of = |stage: Stage| times.ns[stage as usize];
        assert!((of(Stage::Receive) - 99.0).abs() < 1e-9, "{times:?}");
        assert!((of(Stage::Decide) - 198.0).abs() < 1e-9, "{times:?}");
        assert!((times.clock_ns - 3.0).abs() < 1e-9);
        assert_eq!(of(Stage::Plan), 0.0);
        assert_eq!(StageTimes::mean(&[times, times]), times);
        assert_eq!(StageTimes::median(&[times]), times);
    }

    #[test]
    fn a_batch_begins_its_own_count_and_the_empty_turn_ends_it() {
        let mut clock = BatchClock::new(2);
        let mut left = 3;
        clock.run(|clock| {
            left -= 1;
            clock.ended(Stage::Receive);
            if left > 0 { BATCH } else { 0 }
        });
        assert_eq!(clock.batches.len(), 2);
        assert!(clock.batches.iter().all(|batch| batch.looks[Stage::Receive as usize] == 1));
        assert!(look_ns() > 0.0 && look_ns() < 1e6);
    }

    // AX-13: `cargo xtask flame` draws them.
    #[test]
    fn each_stage_has_its_picture_and_the_report_shows_it() {
        let report = documents::file("performance.md");
        for stage in Stage::ALL {
            let (name, function) = match stage.name().split(':').next().unwrap() {
                "open" => ("decapsulate", "::decapsulate::decapsulate".to_owned()),
                // Both ways through a worker end with it.
                "transmit" => ("fast-path", "::dispatch".to_owned()),
                name => (name, format!("::{name}::{name}")),
            };
            let file = format!("flames/{name}.svg");
            let picture = documents::file(&file);
            assert!(picture.contains("<svg") && picture.contains(&function), "{file}: {function}");
            assert!(report.contains(&format!("({file})")), "{file} is not shown");
        }
    }
}
