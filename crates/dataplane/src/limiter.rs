//! The rate limit of the ICMP that we make (RFC 1812 §4.3.2.8, RFC 4443 §2.4 f): a token bucket.

/// Messages a second at most, in the long run.
pub(crate) const ICMP_PER_SECOND: u64 = 1000;
/// Messages at once at most.
pub(crate) const ICMP_BURST: u64 = 64;

const NS_PER_MESSAGE: u64 = 1_000_000_000 / ICMP_PER_SECOND;

/// Lets through [`ICMP_BURST`] at once and [`ICMP_PER_SECOND`] in the long run.
#[derive(Default)]
pub(crate) struct RateLimiter {
    /// Time at which the bucket would have been empty, nanoseconds: each message moves it forward.
    spent_until_ns: u64,
}

impl RateLimiter {
    /// Takes a token, or says that there is none.
    pub(crate) fn allows(&mut self, now_ns: u64) -> bool {
        let full = now_ns.saturating_sub(ICMP_BURST * NS_PER_MESSAGE);
        let spent_until = self.spent_until_ns.max(full) + NS_PER_MESSAGE;
        let allowed = spent_until <= now_ns.max(ICMP_BURST * NS_PER_MESSAGE);
        if allowed {
            self.spent_until_ns = spent_until;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(limiter: &mut RateLimiter, now_ns: u64, tries: u64) -> u64 {
        (0..tries).filter(|_| limiter.allows(now_ns)).count() as u64
    }

    #[test]
    fn a_burst_passes_and_then_one_a_millisecond() {
        for start in [0, 1, 5_000_000_000] {
            let mut limiter = RateLimiter::default();
            assert_eq!(passed(&mut limiter, start, 1000), ICMP_BURST, "from {start}");
            if start > 0 {
                assert_eq!(passed(&mut limiter, start + 1_000_000_000, 2000), ICMP_BURST);
            }
        }
        let mut limiter = RateLimiter::default();
        passed(&mut limiter, 1_000_000_000, 1000);
        let later = (1..=100).map(|ms| passed(&mut limiter, 1_000_000_000 + ms * 1_000_000, 5));
        assert_eq!(later.sum::<u64>(), 100);
    }
}
