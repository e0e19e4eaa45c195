//! Limits of charon's SAs: the lower of charon's and the section's, and in time for a successor.
//!
//! charon makes a successor when a soft limit is reached. So each hard limit by packets, bytes or
//! seconds that the section sets has a soft one below, and an SA with numbers of 32 bits asks for
//! its successor before the numbers end. A limit by idle time has none: an idle SA just ends.

use charon_link::{AddSa, SaLimits};
use config::MAX_LIMIT_SECONDS;
use ipsec::{Lifetime, Limits};

/// Soft limit of an SA without ESN, in packets: three quarters of its numbers.
const MAX_SHORT_NUMBERS: u64 = (1 << 32) / 4 * 3;

/// Returns the limits of an SA that charon puts, for a peer with the limits of its section.
pub(super) fn limits(section: Lifetime, sa: &AddSa) -> Lifetime {
    let mut limits = stricter(section, lifetime(sa.soft, sa.hard));
    let hard = limits.hard.packets;
    if !sa.esn && hard.is_none_or(|hard| MAX_SHORT_NUMBERS < hard) {
        limits.soft.packets = lower(limits.soft.packets, Some(MAX_SHORT_NUMBERS));
    }
    limits
}

/// Limits as charon asks for them.
fn lifetime(soft: SaLimits, hard: SaLimits) -> Lifetime {
    let of = |SaLimits { seconds, bytes, packets }: SaLimits| {
        let some = |limit: u64| (limit > 0).then_some(limit);
        let seconds = some(seconds)
            .map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX).min(MAX_LIMIT_SECONDS));
        Limits { packets: some(packets), bytes: some(bytes), seconds, idle_seconds: None }
    };
    Lifetime { soft: of(soft), hard: of(hard) }
}

fn lower<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    one.into_iter().chain(other).min()
}

/// The lower of each limit.
fn stricter(section: Lifetime, asked: Lifetime) -> Lifetime {
    let limits = |one: Limits, other: Limits| Limits {
        packets: lower(one.packets, other.packets),
        bytes: lower(one.bytes, other.bytes),
        seconds: lower(one.seconds, other.seconds),
        idle_seconds: lower(one.idle_seconds, other.idle_seconds),
    };
    let hard = limits(section.hard, asked.hard);
    let soft = limits(section.soft, asked.soft);
    let seconds = soft_limit(
        soft.seconds.map(u64::from),
        hard.seconds.map(u64::from),
        asked.hard.seconds.map(u64::from),
    );
    let soft = Limits {
        packets: soft_limit(soft.packets, hard.packets, asked.hard.packets),
        bytes: soft_limit(soft.bytes, hard.bytes, asked.hard.bytes),
        seconds: seconds.and_then(|seconds| u32::try_from(seconds).ok()),
        idle_seconds: soft
            .idle_seconds
            .filter(|soft| hard.idle_seconds.is_none_or(|hard| *soft < hard)),
    };
    Lifetime { soft, hard }
}

/// The soft limit below a hard one. Where the section sets the hard limit and no soft one lies
/// below, the soft one is nine tenths of it. A hard limit of charon's alone has no soft one: charon
/// may want its SAs to end.
fn soft_limit(soft: Option<u64>, hard: Option<u64>, of_charon: Option<u64>) -> Option<u64> {
    let Some(hard) = hard else { return soft };
    let below = soft.filter(|soft| *soft < hard);
    let nine_tenths = hard - (hard / 10).max(1);
    let is_derived = soft.is_some() || of_charon != Some(hard);
    below.or((is_derived && nine_tenths > 0).then_some(nine_tenths))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_seconds(soft: Option<u32>, hard: Option<u32>) -> Lifetime {
        let of = |seconds| Limits { seconds, ..Limits::NONE };
        Lifetime { soft: of(soft), hard: of(hard) }
    }

    #[test]
    fn a_hard_limit_of_the_section_below_charons_soft_one_has_a_soft_one_at_nine_tenths() {
        let charon = by_seconds(Some(3000), Some(3600));
        let rows = [
            (by_seconds(None, Some(1000)), by_seconds(Some(900), Some(1000))),
            (by_seconds(None, Some(3500)), by_seconds(Some(3000), Some(3500))),
            (by_seconds(Some(500), Some(1000)), by_seconds(Some(500), Some(1000))),
            (by_seconds(None, Some(5)), by_seconds(Some(4), Some(5))),
            (by_seconds(None, Some(1)), by_seconds(None, Some(1))),
            (by_seconds(None, None), charon),
        ];
        for (section, expected) in rows {
            assert_eq!(stricter(section, charon), expected, "{section:?}");
        }
        let ends = by_seconds(None, Some(3600));
        assert_eq!(stricter(by_seconds(None, None), ends), ends, "charon wants its SA to end");
        let of_section = stricter(by_seconds(None, Some(1000)), by_seconds(None, None));
        assert_eq!(of_section, by_seconds(Some(900), Some(1000)));
    }

    #[test]
    fn an_idle_limit_of_the_section_has_no_soft_one() {
        let hard = Limits { idle_seconds: Some(60), ..Limits::NONE };
        let idle = Lifetime { soft: Limits::NONE, hard };
        assert_eq!(stricter(idle, Lifetime::NONE), idle);
    }
}
