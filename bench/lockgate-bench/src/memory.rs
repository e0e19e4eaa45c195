//! Measures the distance of memory: a shared machine's last cache is not one's own, and a walk that
//! finds its frames in it one minute finds them in main memory the next.

use std::time::Instant;

use io::memory::{FRAME_BYTES, MemoryFrames};
use serde::Serialize;
use wire::{FrameId, Frames};

use super::measure::Figure;
use scene::Random;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Sizes looked at, KiB: within the second cache of today's cores; about what the frames of a lap
/// of small and of large packets take; what no core has for itself.
const SIZES_KIB: [usize; 4] = [512, 2048, 8192, 65_536];
/// Steps at most that are taken before the clock runs: round all but the last.
const STEPS_BEFORE: usize = 1 << 17;
/// Steps that the median step is taken of, in runs of [`STEPS_A_RUN`].
const RUNS: usize = 16;
const STEPS_A_RUN: usize = 256;

/// Time of one step from line to line of so much memory, each known only from the one before.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Distance {
    /// Size of the memory, KiB.
    pub(super) kib: usize,
    /// Median of the bench's looks, ns.
    pub(super) ns: f64,
    /// The quickest look, ns.
    pub(super) ns_min: f64,
}

/// Memory of several sizes, each one random circle of lines.
pub(super) struct Circles {
    circles: Vec<Circle>,
}

struct Circle {
    frames: MemoryFrames,
    kib: usize,
    at: usize,
    looks: Vec<f64>,
}

impl Circles {
    /// Lays the circles out. Asks the kernel for huge pages, as for the frames of a lap.
    pub(super) fn new(random: &mut Random) -> Circles {
        let circle = |kib| Circle::new(kib, random);
        Circles { circles: SIZES_KIB.into_iter().map(circle).collect() }
    }

    /// Looks once at each.
    pub(super) fn look(&mut self) {
        self.circles.iter_mut().for_each(Circle::look);
    }

    /// Forgets the looks so far.
    pub(super) fn forget(&mut self) {
        self.circles.iter_mut().for_each(|circle| circle.looks.clear());
    }

    /// Returns the distances that the looks measured.
    pub(super) fn distances(&self) -> Vec<Distance> {
        let distance = |circle: &Circle| {
            let looks = Figure::of(&circle.looks);
            Distance { kib: circle.kib, ns: looks.median, ns_min: looks.least }
        };
        self.circles.iter().map(distance).collect()
    }
}

impl Circle {
    fn new(kib: usize, random: &mut Random) -> Circle {
        let mut frames = MemoryFrames::new((kib * 1024 / FRAME_BYTES) as u32);
        while frames.take().is_some() {}
        let mut order: Vec<usize> = (0..kib * 1024 / LINE_BYTES).collect();
        random.shuffle(&mut order);
        for (place, line) in order.iter().enumerate() {
            let next = order[(place + 1) % order.len()];
            line_of(&mut frames, *line).copy_from_slice(&(next as u64).to_ne_bytes());
        }
        Circle { frames, kib, at: order[0], looks: Vec::new() }
    }

    /// The median run is taken, which a thread that is put aside for a while does not move. The
    /// circle is gone round once before, so that it is as near as it can be.
    fn look(&mut self) {
        let lines = self.kib * 1024 / LINE_BYTES;
        self.walk(lines.min(STEPS_BEFORE));
        let runs: Vec<f64> = (0..RUNS)
            .map(|_| {
                let begin = Instant::now();
                self.walk(STEPS_A_RUN);
                begin.elapsed().as_nanos() as f64 / STEPS_A_RUN as f64
            })
            .collect();
        self.looks.push(Figure::of(&runs).median);
    }

    fn walk(&mut self, steps: usize) {
        for _ in 0..steps {
            self.at = u64::from_ne_bytes(*line_of(&mut self.frames, self.at)) as usize;
        }
    }
}

/// The first bytes of a line.
fn line_of(frames: &mut MemoryFrames, line: usize) -> &mut [u8; 8] {
    let byte = line * LINE_BYTES;
    let frame = frames.bytes_mut(FrameId((byte / FRAME_BYTES) as u32));
    frame[byte % FRAME_BYTES..].first_chunk_mut().expect("a line is longer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_goes_through_every_line_once() {
        let mut circle = Circle::new(64, &mut Random::new(1));
        let first = circle.at;
        let lines = 64 * 1024 / LINE_BYTES;
        let mut seen = vec![false; lines];
        for _ in 0..lines {
            assert!(!std::mem::replace(&mut seen[circle.at], true));
            circle.walk(1);
        }
        assert_eq!(circle.at, first);
        circle.look();
        assert!(circle.looks[0] > 0.0);
    }
}
