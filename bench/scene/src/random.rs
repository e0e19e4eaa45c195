//! Random orders that a seed repeats.

/// A stream of numbers that a seed gives (SplitMix64, public domain). For orders, never for keys.
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A number below `limit`, which is small against 2^64 and not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * limit as u128) >> 64) as usize
    }

    /// A number from 0 to below 1.
    pub fn part(&mut self) -> f64 {
        self.below(1 << 53) as f64 / (1u64 << 53) as f64
    }

    /// A seed for another stream.
    pub fn seed(&mut self) -> u64 {
        self.below(usize::MAX) as u64
    }

    /// Puts a list in random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffled_list_has_the_same_members_in_the_order_that_the_seed_gives() {
        let sorted: Vec<usize> = (0..4096).collect();
        let shuffled = |seed| {
            let mut list = sorted.clone();
            Random::new(seed).shuffle(&mut list);
            list
        };
        let (first, again, other) = (shuffled(1), shuffled(1), shuffled(2));
        assert_eq!(first, again);
        assert_ne!(first, other);
        assert_ne!(first, sorted);
        let mut members = first.clone();
        members.sort_unstable();
        assert_eq!(members, sorted);
        let followers = first.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(followers < 20, "{followers} neighbours stayed neighbours");
    }
}
