//! Rates and token buckets.

/// A rate: so many tokens at once, and one more per interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TokenRate {
    interval_ns: u64,
    burst: u64,
}

impl TokenRate {
    /// A rate of so many tokens a second in the long run, and `burst` at once.
    pub(crate) const fn per_second(tokens: u64, burst: u64) -> TokenRate {
        TokenRate { interval_ns: 1_000_000_000 / tokens, burst }
    }

    /// Returns the part of one of several workers.
    pub(crate) fn part(self, workers: u32) -> TokenRate {
        let workers = u64::from(workers.max(1));
        let (interval_ns, burst) = (self.interval_ns * workers, (self.burst / workers).max(1));
        TokenRate { interval_ns, burst }
    }

    /// Time in which an empty bucket fills, nanoseconds.
    const fn full_ns(self) -> u64 {
        self.burst * self.interval_ns
    }
}

/// A token bucket, full at the start. The order of buckets of one rate: the fuller one first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct TokenBucket {
    /// Time up to which tokens are spent, nanoseconds; a token adds the interval.
    spent_until_ns: u64,
}

impl TokenBucket {
    /// Returns the time up to which tokens are spent after one more; `None`: the bucket is empty.
    fn after_next(self, now_ns: u64, rate: TokenRate) -> Option<u64> {
        let full_ns = now_ns.saturating_sub(rate.full_ns());
        let spent_until_ns = self.spent_until_ns.max(full_ns) + rate.interval_ns;
        (spent_until_ns <= now_ns.max(rate.full_ns())).then_some(spent_until_ns)
    }

    /// Returns the number of tokens in the bucket.
    pub(crate) fn tokens(self, now_ns: u64, rate: TokenRate) -> u64 {
        let now_ns = now_ns.max(rate.full_ns());
        let spent_until_ns = self.spent_until_ns.max(now_ns - rate.full_ns());
        now_ns.saturating_sub(spent_until_ns) / rate.interval_ns
    }

    /// Takes a token, from an empty bucket as debt of at most a burst. True without debt.
    pub(crate) fn charge(&mut self, now_ns: u64, rate: TokenRate) -> bool {
        let now_ns = now_ns.max(rate.full_ns());
        let spent_until_ns = self.spent_until_ns.max(now_ns - rate.full_ns()) + rate.interval_ns;
        self.spent_until_ns = spent_until_ns.min(now_ns + rate.full_ns());
        spent_until_ns <= now_ns
    }

    /// Takes a token. False if the bucket is empty.
    pub(crate) fn take(&mut self, now_ns: u64, rate: TokenRate) -> bool {
        let next = self.after_next(now_ns, rate);
        self.spent_until_ns = next.unwrap_or(self.spent_until_ns);
        next.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: TokenRate = TokenRate::per_second(1000, 64);

    fn passed(bucket: &mut TokenBucket, now_ns: u64, tries: u64) -> u64 {
        (0..tries).filter(|_| bucket.take(now_ns, RATE)).count() as u64
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_one_token_an_interval() {
        for start in [0, 1, 5_000_000_000] {
            let mut bucket = TokenBucket::default();
            assert_eq!(passed(&mut bucket, start, 1000), 64, "from {start}");
            if start > 0 {
                assert_eq!(passed(&mut bucket, start + 1_000_000_000, 2000), 64);
            }
        }
        let mut bucket = TokenBucket::default();
        passed(&mut bucket, 1_000_000_000, 1000);
        let later = (1..=100).map(|ms| passed(&mut bucket, 1_000_000_000 + ms * 1_000_000, 5));
        assert_eq!(later.sum::<u64>(), 100);
    }

    #[test]
    fn a_bucket_has_as_many_tokens_as_it_gives() {
        for now_ns in [0, 1, 63_999_999, 64_000_000, 5_000_000_000] {
            for taken in [0, 1, 63, 64] {
                let mut bucket = TokenBucket::default();
                passed(&mut bucket, now_ns, taken);
                for later_ns in [0, 999_999, 1_000_000, 10_000_001, 1_000_000_000] {
                    let then_ns = now_ns + later_ns;
                    let tokens = bucket.tokens(then_ns, RATE);
                    assert_eq!(tokens, passed(&mut bucket.clone(), then_ns, 1000));
                }
            }
        }
    }

    #[test]
    fn a_charged_bucket_pays_its_debt_first() {
        let (mut bucket, second_ns) = (TokenBucket::default(), 1_000_000_000);
        let mut charge = |now_ns| bucket.charge(now_ns, RATE);
        assert_eq!((0..1000).filter(|_| charge(second_ns)).count(), 64);
        // The debt is a burst, however many charges there were.
        assert!(!charge(second_ns + 64_999_999));
        assert_eq!((0..1000).filter(|_| charge(second_ns + 194_000_000)).count(), 64);
    }

    #[test]
    fn the_parts_of_workers_sum_up_to_the_rate() {
        for workers in [1, 2, 3, 8, 200] {
            let part = RATE.part(workers);
            assert_eq!(part.interval_ns, 1_000_000 * u64::from(workers));
            assert_eq!(part.burst, (64 / u64::from(workers)).max(1));
        }
    }
}
