//! Draws the flow of the next packet.

use scene::Random;

/// Distribution of packets over flows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
pub(super) enum Distribution {
    /// Every flow once, in random order, and again.
    Uniform,
    /// The `n`th flow as often as 1 / n.
    Zipf,
}

impl Distribution {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipf => "zipf",
        }
    }
}

/// An endless stream of flows.
pub(super) struct Draw {
    /// All flows, in random order.
    order: Vec<u32>,
    next: usize,
    /// Zipf: how many of all packets are of the flows up to each place; the last is the sum.
    up_to: Vec<f64>,
}

impl Draw {
    /// Draws from the flows `0..flows`.
    pub(super) fn new(flows: usize, of: Distribution, random: &mut Random) -> Draw {
        let mut order: Vec<u32> = (0..flows as u32).collect();
        random.shuffle(&mut order);
        let shares = (1..=flows).map(|place| 1.0 / place as f64);
        let up_to = match of {
            Distribution::Uniform => Vec::new(),
            Distribution::Zipf => shares
                .scan(0.0, |sum, share| {
                    *sum += share;
                    Some(*sum)
                })
                .collect(),
        };
        Draw { order, next: 0, up_to }
    }

    /// All flows once, in random order.
    pub(super) fn all(&self) -> &[u32] {
        &self.order
    }

    /// The flow of the next packet.
    pub(super) fn flow(&mut self, random: &mut Random) -> usize {
        let place = match self.up_to.last() {
            None => {
                self.next = (self.next + 1) % self.order.len();
                self.next
            }
            Some(sum) => {
                let part = random.part() * sum;
                self.up_to.partition_point(|up_to| *up_to <= part).min(self.order.len() - 1)
            }
        };
        self.order[place] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn uniform_takes_every_flow_before_any_again() {
        let random = &mut Random::new(1);
        let mut draw = Draw::new(1000, Distribution::Uniform, random);
        for _ in 0..3 {
            let drawn: HashSet<usize> = (0..1000).map(|_| draw.flow(random)).collect();
            assert_eq!(drawn.len(), 1000);
        }
        assert_eq!(Draw::new(1, Distribution::Uniform, random).flow(random), 0);
    }

    #[test]
    fn zipf_takes_the_first_flow_twice_as_often_as_the_second() {
        let random = &mut Random::new(2);
        let mut draw = Draw::new(100, Distribution::Zipf, random);
        let mut counts = [0u32; 100];
        (0..100_000).for_each(|_| counts[draw.flow(random)] += 1);
        let often = |place: usize| f64::from(counts[draw.all()[place] as usize]);
        // 1 / (1 + 1/2 + … + 1/100) = 0.193
        assert!((often(0) - 19_300.0).abs() < 800.0, "{}", often(0));
        assert!((often(0) / often(1) - 2.0).abs() < 0.15);
        assert!((often(0) / often(9) - 10.0).abs() < 1.5);
        assert!(counts.iter().all(|count| *count > 0));
    }
}
