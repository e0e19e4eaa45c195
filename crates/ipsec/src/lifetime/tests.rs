//! Accounts against plain sums, by one thread and by several.

use std::sync::Barrier;

use proptest::prelude::*;

use super::*;

const SECOND: u64 = NS_PER_SECOND;

fn limited(packets: Option<u64>, bytes: Option<u64>) -> Allowance {
    with_limits(Account::new(), Limits { packets, bytes, ..Limits::NONE })
}

fn with_limits(account: Account, hard: Limits) -> Allowance {
    Allowance { lifetime: Lifetime { hard, ..Lifetime::NONE }, account: Arc::new(account) }
}

/// Takes packets of these sizes; returns how many were allowed.
fn take(sa: &Allowance, sizes: &[u64]) -> usize {
    let all = || sizes.iter().copied();
    sa.take(sizes.len() as u32, all().sum(), all) as usize
}

fn used(sa: &Allowance) -> (u64, u64) {
    let used = sa.account.used(0);
    (used.packets, used.bytes)
}

fn outliving() -> AccountWords {
    let word = || -> &'static AtomicU64 { Box::leak(Box::new(AtomicU64::new(0))) };
    AccountWords {
        packets: word(),
        bytes: word(),
        state: word(),
        first_use_ns: word(),
        last_use_ns: word(),
    }
}

#[test]
fn the_limit_itself_is_the_last_packet() {
    for limit in [0, 1, 64, 65] {
        let sa = limited(Some(limit), None);
        let taken = take(&sa, &[100; 64]) + take(&sa, &[100; 64]);
        assert_eq!((taken as u64, sa.is_spent()), (limit, true));
        assert_eq!(used(&sa), (limit, limit * 100));
        assert_eq!(sa.account.ended(), None, "packets may be given back");
        sa.account.give_back(limit.min(1) as u32, limit.min(1) * 100);
        assert_eq!(take(&sa, &[100; 2]) as u64, limit.min(1));
    }
}

#[test]
fn bytes_never_pass_their_limit_and_the_first_that_does_not_fit_ends_the_sa() {
    let sa = limited(None, Some(1000));
    assert_eq!(take(&sa, &[300, 300, 300]), 3);
    assert_eq!(take(&sa, &[100]), 1);
    assert!(sa.is_spent() && sa.account.ended().is_none());
    assert_eq!(take(&sa, &[1]), 0);
    assert_eq!((sa.account.ended(), used(&sa)), (Some(Limit::Bytes), (4, 1000)));

    let sa = limited(None, Some(1000));
    assert_eq!(take(&sa, &[600, 100, 400, 20]), 2);
    assert_eq!((sa.account.ended(), used(&sa)), (Some(Limit::Bytes), (2, 700)));
    assert_eq!(take(&sa, &[20]), 0, "a shorter packet does not live longer");
}

#[test]
fn of_a_run_cut_by_packets_only_their_bytes_count() {
    let sa = limited(Some(2), Some(10_000));
    assert_eq!(take(&sa, &[700, 20, 9000]), 2);
    assert_eq!(used(&sa), (2, 720));
    let sa = limited(Some(2), Some(710));
    assert_eq!(take(&sa, &[700, 20, 9000]), 1);
    assert_eq!(used(&sa), (1, 700));
}

#[test]
fn an_account_near_the_end_of_its_words_wraps_nowhere() {
    for limits in [(None, None), (Some(u64::MAX), Some(u64::MAX))] {
        let sa = limited(limits.0, limits.1);
        sa.account.raise(u64::MAX - 3, u64::MAX - 70);
        assert_eq!(take(&sa, &[10; 2]), 2);
        assert_eq!(take(&sa, &[10; 2]), 1);
        assert_eq!((used(&sa), sa.is_spent()), ((u64::MAX, u64::MAX - 40), true));
        assert_eq!(take(&sa, &[u64::MAX]), 0);
    }
    let sa = limited(None, None);
    sa.account.raise(0, u64::MAX - 15);
    assert_eq!(take(&sa, &[10, 10]), 1);
    assert_eq!(used(&sa), (1, u64::MAX - 5));
}

#[test]
fn a_limit_that_changes_never_winds_the_use_back() {
    let mut sa = limited(Some(10), None);
    assert_eq!(take(&sa, &[1; 8]), 8);
    sa.lifetime.hard.packets = Some(5);
    assert_eq!((take(&sa, &[1]), used(&sa)), (0, (8, 8)));
    sa.lifetime.hard.packets = Some(9);
    assert_eq!((take(&sa, &[1; 3]), used(&sa)), (1, (9, 9)));
    sa.lifetime.hard.packets = None;
    assert_eq!(take(&sa, &[1; 3]), 3);
    // An SA that has ended does not live again, and keeps its cause.
    sa.account.end(Limit::Seconds);
    sa.account.end(Limit::Bytes);
    assert_eq!((take(&sa, &[1]), sa.account.ended()), (0, Some(Limit::Seconds)));
    assert!(sa.is_spent());
}

#[test]
fn a_process_that_follows_goes_on_with_the_use_and_tells_nothing_again() {
    let words = outliving();
    let hard = Limits { packets: Some(4), ..Limits::NONE };
    let lifetime = Lifetime { soft: Limits { packets: Some(2), ..Limits::NONE }, hard };
    for taken in [3, 1, 0] {
        let sa = with_limits(Account::shared(words), hard);
        assert_eq!(take(&sa, &[50; 3]), taken);
    }
    let sa = with_limits(Account::shared(words), hard);
    let both = Expiries { soft: Some(Limit::Packets), hard: Some(Limit::Packets) };
    assert_eq!(sa.account.judge(&lifetime, SECOND), both);
    assert_eq!(sa.account.judge(&lifetime, 2 * SECOND), Expiries::default());
    assert_eq!(Account::shared(words).judge(&lifetime, SECOND), Expiries::default());
    assert_eq!(Account::shared(words).ended(), Some(Limit::Packets));
}

#[test]
fn packets_in_the_hands_of_a_worker_end_no_sa() {
    let sa = limited(Some(4), None);
    let lifetime = Lifetime { hard: Limits { packets: Some(4), ..Limits::NONE }, ..Lifetime::NONE };
    assert_eq!(take(&sa, &[50; 4]), 4);
    assert_eq!(sa.account.judge(&lifetime, SECOND).hard, None);
    sa.account.give_back(2, 100);
    assert_eq!(sa.account.judge(&lifetime, SECOND).hard, None);
    assert_eq!(take(&sa, &[50; 4]), 2);
    assert_eq!(sa.account.judge(&lifetime, SECOND).hard, None);
    assert_eq!(sa.account.judge(&lifetime, SECOND).hard, Some(Limit::Packets));
    assert_eq!(sa.account.judge(&lifetime, SECOND).hard, None);
}

#[test]
fn seconds_count_from_the_first_use_and_idle_seconds_from_the_last() {
    let soft = Limits { idle_seconds: Some(5), ..Limits::NONE };
    let hard = Limits { seconds: Some(20), ..Limits::NONE };
    let lifetime = Lifetime { soft, hard };
    let sa = limited(None, None);
    let at = |seconds: u64| sa.account.judge(&lifetime, seconds * SECOND);
    assert_eq!(at(1000), Expiries::default(), "not used yet");
    assert_eq!(sa.account.used(1000 * SECOND), Used::default());
    take(&sa, &[60]);
    assert_eq!(at(1000), Expiries::default());
    assert_eq!(at(1004), Expiries::default());
    take(&sa, &[60]);
    assert_eq!(at(1008), Expiries::default(), "used again");
    let now = sa.account.used(1012 * SECOND);
    assert_eq!((now.seconds, now.idle_seconds), (Some(12), Some(4)));
    assert_eq!(at(1013), Expiries { soft: Some(Limit::Idle), hard: None });
    assert_eq!(at(1019), Expiries::default());
    assert_eq!(take(&sa, &[60]), 1);
    assert_eq!(at(1020), Expiries { soft: None, hard: Some(Limit::Seconds) });
    assert_eq!(take(&sa, &[60]), 0);

    let sa = limited(None, None);
    sa.account.begin(7 * SECOND);
    sa.account.begin(9 * SECOND);
    let now = sa.account.used(11 * SECOND);
    assert_eq!((now.seconds, now.idle_seconds), (Some(4), Some(4)));
    assert_eq!(sa.account.used(6 * SECOND).seconds, Some(0), "a clock that goes back");
}

#[test]
fn a_first_use_before_the_boot_counts_and_idle_time_counts_from_the_boot() {
    let words = outliving();
    words.first_use_ns.store((3 * SECOND).wrapping_sub(100 * SECOND), Ordering::Relaxed);
    let used = Account::shared(words).used(10 * SECOND);
    assert_eq!((used.seconds, used.idle_seconds), (Some(107), Some(10)));
    words.last_use_ns.store(8 * SECOND, Ordering::Relaxed);
    assert_eq!(Account::shared(words).used(10 * SECOND).idle_seconds, Some(2));
}

proptest! {
    /// Oracle: plain sums.
    #[test]
    fn runs_are_allowed_as_far_as_plain_sums_say(
        packets in prop_oneof![Just(None), (0u64..300).prop_map(Some), Just(Some(u64::MAX))],
        bytes in prop_oneof![Just(None), (0u64..30_000).prop_map(Some), Just(Some(u64::MAX))],
        runs in prop::collection::vec(
            (prop::collection::vec(2u64..1500, 0..70), any::<prop::sample::Index>()), 1..20),
    ) {
        let sa = limited(packets, bytes);
        let (mut count, mut sum, mut ended) = (0, 0, false);
        for (sizes, back) in runs {
            let mut expected = 0;
            for size in &sizes {
                if ended || packets.is_some_and(|most| count + 1 > most) {
                    break;
                }
                ended = bytes.is_some_and(|most| sum + size > most);
                if ended {
                    break;
                }
                (count, sum, expected) = (count + 1, sum + size, expected + 1);
            }
            prop_assert_eq!(take(&sa, &sizes), expected);
            // The last ones were refused, by the cipher say.
            let back = &sizes[back.index(expected + 1)..expected];
            sa.account.give_back(back.len() as u32, back.iter().sum());
            (count, sum) = (count - back.len() as u64, sum - back.iter().sum::<u64>());
            prop_assert_eq!(used(&sa), (count, sum));
            prop_assert_eq!(sa.account.ended().is_some(), ended);
        }
    }
}

/// Threads take runs and give back a part until nothing is left; returns packets and bytes used.
fn race(sa: &Allowance, threads: usize) -> (u64, u64) {
    let start = Barrier::new(threads);
    let run = |seed: u64| {
        start.wait();
        let (mut packets, mut bytes, mut state) = (0, 0, seed + 1);
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        while !sa.is_spent() {
            let sizes: Vec<u64> = (0..draw(70)).map(|_| 2 + draw(90)).collect();
            let taken = take(sa, &sizes);
            let kept = taken - (draw(4) as usize).min(taken);
            sa.account.give_back((taken - kept) as u32, sizes[kept..taken].iter().sum());
            packets += kept as u64;
            bytes += sizes[..kept].iter().sum::<u64>();
        }
        (packets, bytes)
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..threads).map(|n| scope.spawn(move || run(n as u64))).collect();
        let used = threads.into_iter().map(|thread| thread.join().unwrap());
        used.fold((0, 0), |(packets, bytes), (p, b)| (packets + p, bytes + b))
    })
}

/// Oracle: the sum of what all threads used. A thread leaves the race when nothing is left for it,
/// perhaps before another one gives back; the rest is taken afterwards.
#[test]
fn exactly_the_limit_leaves_over_any_number_of_threads() {
    for threads in 1..=8 {
        let limit = 20_000 + threads as u64;
        let sa = limited(Some(limit), None);
        let (mut packets, mut bytes) = race(&sa, threads);
        while take(&sa, &[7]) == 1 {
            (packets, bytes) = (packets + 1, bytes + 7);
        }
        assert_eq!((packets, used(&sa)), (limit, (limit, bytes)));
    }
}

#[test]
fn bytes_never_pass_their_limit_over_any_number_of_threads() {
    for threads in 1..=8 {
        let limit = 1_000_003;
        let sa = limited(None, Some(limit));
        let (packets, bytes) = race(&sa, threads);
        assert!(bytes <= limit, "{bytes} bytes");
        assert_eq!(used(&sa), (packets, bytes));
        // At most a run of one thread was not used when another one met the limit.
        let runs = 70 * 92 * threads as u64;
        assert!(bytes + runs > limit, "{bytes} bytes");
    }
}
