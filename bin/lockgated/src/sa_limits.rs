//! Judges the limits of SAs and reports those that are reached: each SA at most one soft and one
//! hard expiry in its life. A task of its own on the control thread: an order waits for workers
//! longer than the time by which an SA has to end.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use charon_link::Hardness;
use dataplane::{DropReason, Sad};
use ipsec::{Account, Allowance, InboundSa, Lifetime, Limit, Limits, OutboundSa, Spi, Used};
use policy::Direction;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{broadcast, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::events::{Events, Kind};
use crate::picture::Picture;

/// Interval at which limits are judged, and so the precision of those by time.
const JUDGE: Duration = Duration::from_millis(100);

/// Expiries that a receiver may be behind.
pub(crate) const MAX_EXPIRIES: usize = 4096;

/// An SA that has reached a limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Expiry {
    pub(crate) direction: Direction,
    pub(crate) spi: Spi,
    pub(crate) peer: Arc<str>,
    pub(crate) hardness: Hardness,
}

/// Those who are told that an SA has reached a limit.
#[derive(Clone)]
pub(crate) struct Told {
    pub(crate) events: Events,
    pub(crate) expiries: broadcast::Sender<Expiry>,
}

/// SAs of each direction that are judged at least before others of this thread have their turn: a
/// hundredth of a millisecond or two. Putting an SA takes several turns.
const AT_A_TIME: usize = 64;

/// Turns that a judgement takes at most.
const MOST_TURNS: usize = 128;

/// Time within which others of this thread have their turns during one judgement.
const MOST_OF_OTHERS: Duration = Duration::from_millis(50);

/// Judges limits, until the control thread ends.
pub(crate) async fn judge(mut pictures: watch::Receiver<Arc<Picture>>, told: Told) {
    let mut clock = interval(JUDGE);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut limited = LimitedSas::default();
    loop {
        clock.tick().await;
        let sad = pictures.borrow_and_update().snapshot.sad().clone();
        limited.follow(sad, &told);
        limited.begin(boot_clock_ns());
        let begun = Instant::now();
        while limited.judge(limited.at_a_time(), &told) {
            // Others wait then: no limit may.
            if begun.elapsed() < MOST_OF_OTHERS {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Nanoseconds since the boot, time asleep included: the clock that accounts go by.
pub(crate) fn boot_clock_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let [seconds, nanoseconds] =
        [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// The SAs that have limits.
#[derive(Default)]
struct LimitedSas {
    /// All SAs as they were last seen. What is compared with it shares what did not change. An SA
    /// that is gone lives here until the next tick.
    seen: Sad,
    /// Those that have limits, by direction and slot.
    lists: [Vec<Option<LimitedSa>>; 2],
    /// Time of the last judgement, in nanoseconds of the boot clock.
    judged_ns: u64,
    /// Slots of each direction that this judgement has come to.
    judged: [usize; 2],
}

#[derive(Clone)]
struct LimitedSa {
    direction: Direction,
    spi: Spi,
    peer: Box<str>,
    lifetime: Lifetime,
    account: Arc<Account>,
}

impl LimitedSas {
    /// Takes the SAs of a later snapshot. SAs that have gone may have reached a limit after the
    /// last judgement: they are judged once more, as of that time, so that no limit by time ends
    /// them afterwards. A snapshot is shown when every worker uses it, so nothing uses these SAs
    /// any more; the second of two judgements sees that.
    ///
    /// Cost: by the SAs that differ.
    fn follow(&mut self, sad: Sad, told: &Told) {
        let limited = |direction, spi, set, allowance: Option<&Allowance>| {
            let Allowance { lifetime, account } = allowance?.clone();
            let set = sad.places().get(set).and_then(|place| sad.set(place));
            let peer = set.map_or("", |set| set.peer.as_str()).into();
            Some(LimitedSa { direction, spi, peer, lifetime, account })
        };
        let outbound = sad.changed_outbound(&self.seen).map(|(id, [_, now])| {
            let of = |sa: &Arc<OutboundSa>| {
                limited(Direction::Outbound, sa.spi, sa.set, sa.allowance.as_ref())
            };
            (0, id, now.and_then(of))
        });
        let inbound = sad.changed_inbound(&self.seen).map(|(id, [_, now])| {
            let of = |sa: &Arc<InboundSa>| {
                limited(Direction::Inbound, sa.spi, sa.set, sa.allowance.as_ref())
            };
            (1, id, now.and_then(of))
        });
        let (mut before, mut running) = (Vec::new(), HashSet::new());
        for (list, id, now) in outbound.chain(inbound) {
            let (list, slot) = (&mut self.lists[list], id.0 as usize);
            make_room(list, slot);
            // One that has another slot now, or another form, has its account still.
            running.extend(now.as_ref().map(|sa| Arc::as_ptr(&sa.account)));
            before.extend(std::mem::replace(&mut list[slot], now));
        }
        for sa in before.iter().filter(|sa| !running.contains(&Arc::as_ptr(&sa.account))) {
            (0..2).for_each(|_| sa.judge(self.judged_ns, told));
        }
        self.seen = sad;
    }

    /// Begins a judgement of all, as of a time.
    fn begin(&mut self, now_ns: u64) {
        (self.judged_ns, self.judged) = (now_ns, [0; 2]);
    }

    /// SAs of each direction that are judged in a turn.
    fn at_a_time(&self) -> usize {
        let longest = self.lists.iter().map(Vec::len).max();
        longest.unwrap_or(0).div_ceil(MOST_TURNS).max(AT_A_TIME)
    }

    /// Goes on with the judgement, by so many SAs of each direction. Returns whether some are left.
    fn judge(&mut self, most: usize, told: &Told) -> bool {
        let mut is_left = false;
        for (list, judged) in self.lists.iter().zip(&mut self.judged) {
            let end = list.len().min(*judged + most);
            let now = list[*judged..end].iter().flatten();
            now.for_each(|sa| sa.judge(self.judged_ns, told));
            *judged = end;
            is_left |= end < list.len();
        }
        is_left
    }
}

/// Makes a list longer, if it does not have a slot. It grows by an eighth, not to twice its size:
/// an entry is long, and there are very many.
fn make_room(list: &mut Vec<Option<LimitedSa>>, slot: usize) {
    let more = (slot + 1).saturating_sub(list.len());
    if more > list.capacity() - list.len() {
        list.reserve_exact(more.max(list.len() / 8));
    }
    list.extend(std::iter::repeat_n(None, more));
}

impl LimitedSa {
    fn judge(&self, now_ns: u64, told: &Told) {
        let expiries = self.account.judge(&self.lifetime, now_ns);
        if let Some(limit) = expiries.soft {
            self.report((Kind::SaSoftExpire, limit, &self.lifetime.soft), now_ns, told);
        }
        if let Some(limit) = expiries.hard {
            self.report((Kind::SaHardExpire, limit, &self.lifetime.hard), now_ns, told);
        }
    }

    fn report(&self, (kind, limit, limits): (Kind, Limit, &Limits), now_ns: u64, told: &Told) {
        let used = self.account.used(now_ns);
        let (subject, direction) = (self.spi.to_string(), self.direction.name());
        let Used { packets, bytes, .. } = used;
        let seconds = used.seconds.unwrap_or(0);
        // A limit that ended the SA may have been changed since.
        let most = limits.of(limit).unwrap_or_else(|| used.of(limit));
        let details: crate::events::Details<'_> = &[
            ("peer", &&*self.peer),
            ("direction", &direction),
            ("limit", &limit.name()),
            ("limit_value", &most),
            ("packets", &packets),
            ("bytes", &bytes),
            ("seconds", &seconds),
        ];
        let reached = format!(
            "{direction} SA {subject} of peer {} has reached its {} limit: {} of {most} {}",
            self.peer,
            if kind == Kind::SaHardExpire { "hard" } else { "soft" },
            used.of(limit),
            unit(limit),
        );
        let message = match kind {
            Kind::SaHardExpire => format!("{reached}; {}", DropReason::SaHardLimit.help()),
            _ => format!("{reached}; give both gateways new keys before the hard limit"),
        };
        told.events.record(kind, &subject, message, details);
        let (direction, spi, peer) = (self.direction, self.spi, (&*self.peer).into());
        let hardness = match kind {
            Kind::SaHardExpire => Hardness::Hard,
            _ => Hardness::Soft,
        };
        // Nobody listens where no charon may come.
        let _ = told.expiries.send(Expiry { direction, spi, peer, hardness });
    }
}

/// The unit of a limit, in words.
const fn unit(limit: Limit) -> &'static str {
    match limit {
        Limit::Packets => "packets",
        Limit::Bytes => "bytes",
        Limit::Seconds => "seconds",
        Limit::Idle => "seconds without a packet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_lab::{PEER, TestLab};

    const SECOND: u64 = 1_000_000_000;

    fn lab(lifetime: &str) -> TestLab {
        TestLab::new(&format!("{PEER}[peer.a.lifetime]\n{lifetime}\n"))
    }

    impl LimitedSas {
        /// Follows a laboratory and judges all of its SAs at once.
        fn judge_at(&mut self, lab: &TestLab, now_ns: u64) {
            self.follow(lab.state.gateway.snapshot.sad().clone(), &reached(lab));
            self.judge_all(now_ns, &reached(lab));
        }

        fn judge_all(&mut self, now_ns: u64, told: &Told) {
            self.begin(now_ns);
            while self.judge(1, told) {}
        }

        fn len(&self) -> usize {
            self.lists.iter().flatten().flatten().count()
        }
    }

    /// Those who are told, of a laboratory.
    fn reached(lab: &TestLab) -> Told {
        Told { events: lab.events.clone(), expiries: broadcast::channel(1).0 }
    }

    /// Kind, limit and use of each expiry that was recorded.
    fn told(events: &Events) -> Vec<(String, String, u64)> {
        let (kept, _) = events.subscribe();
        let expiries = kept.iter().filter(|event| event.kind.ends_with("_expire"));
        let told = expiries.map(|event| {
            let detail = |name: &str| event.details[name].to_string();
            (event.kind.clone(), detail("limit"), detail("packets").parse().unwrap())
        });
        told.collect()
    }

    fn seal(lab: &TestLab, packets: u32) -> u32 {
        let sa = lab.state.gateway.snapshot.outbound().next().unwrap();
        let sizes = || std::iter::repeat_n(100, packets as usize);
        sa.allowance.as_ref().unwrap().take(packets, u64::from(packets) * 100, sizes)
    }

    /// Row XO-17: packets and bytes. Row XO-18: the hard limit.
    #[test]
    fn each_limit_is_told_once_however_often_it_is_judged() {
        for (lifetime, limit) in [
            ("soft_packets = 3\nhard_packets = 5", "packets"),
            ("soft_bytes = 300\nhard_bytes = 500", "bytes"),
        ] {
            let lab = lab(lifetime);
            let mut limited = LimitedSas::default();
            let mut judge = |second: u64| {
                limited.judge_at(&lab, second * SECOND);
            };
            let soft = ("sa_soft_expire".to_owned(), limit.to_owned(), 3);
            let hard = ("sa_hard_expire".to_owned(), limit.to_owned(), 5);
            assert_eq!(seal(&lab, 2), 2);
            (1..4).for_each(&mut judge);
            assert_eq!(told(&lab.events), []);
            assert_eq!(seal(&lab, 1), 1);
            (4..7).for_each(&mut judge);
            assert_eq!(told(&lab.events), std::slice::from_ref(&soft));
            assert_eq!(seal(&lab, 9), 2);
            (7..12).for_each(&mut judge);
            assert_eq!(told(&lab.events), [soft, hard]);
        }
    }

    /// Row XO-20: a worker at a limit gets no more packets, but ends no SA and reports nothing.
    /// Judging an SA that has room does nothing either. Only the judgement ends an SA, at its
    /// limit.
    #[test]
    fn a_worker_at_a_limit_ends_no_sa_and_neither_does_a_look_at_one_that_has_room() {
        let lab = lab("soft_packets = 3\nhard_packets = 5");
        let account = |number: usize| {
            let snapshot = &lab.state.gateway.snapshot;
            let allowances = [
                snapshot.outbound().next().unwrap().allowance.clone(),
                snapshot.inbound().next().unwrap().allowance.clone(),
            ];
            allowances[number].clone().unwrap().account
        };
        let (seals, opens) = (account(0), account(1));
        let mut limited = LimitedSas::default();
        limited.follow(lab.state.gateway.snapshot.sad().clone(), &reached(&lab));
        // A false alarm: whoever raises it, nothing is there to be decided.
        (1..9).for_each(|second| limited.judge_all(second * SECOND, &reached(&lab)));
        assert_eq!((told(&lab.events), seals.ended()), (vec![], None));
        // A worker at the limit, which asks again and again.
        assert_eq!([seal(&lab, 9), seal(&lab, 9), seal(&lab, 1)], [5, 0, 0]);
        assert_eq!((told(&lab.events), seals.ended()), (vec![], None));
        (9..12).for_each(|second| limited.judge_all(second * SECOND, &reached(&lab)));
        let kinds: Vec<_> = told(&lab.events).into_iter().map(|(kind, ..)| kind).collect();
        assert_eq!(kinds, ["sa_soft_expire", "sa_hard_expire"]);
        assert_eq!((seals.ended(), opens.ended()), (Some(Limit::Packets), None));
    }

    #[test]
    fn a_limit_by_time_ends_the_sa_and_says_what_to_do() {
        let lab = lab("hard_seconds = 9");
        let mut limited = LimitedSas::default();
        limited.follow(lab.state.gateway.snapshot.sad().clone(), &reached(&lab));
        assert_eq!(seal(&lab, 1), 1);
        limited.judge_all(100 * SECOND, &reached(&lab));
        limited.judge_all(108 * SECOND, &reached(&lab));
        assert_eq!((told(&lab.events).len(), seal(&lab, 1)), (0, 1));
        limited.judge_all(109 * SECOND, &reached(&lab));
        assert_eq!((told(&lab.events).len(), seal(&lab, 1)), (1, 0));
        let (kept, _) = lab.events.subscribe();
        let message = &kept.last().unwrap().message;
        for words in ["outbound SA 0x00001001 of peer a", "9 of 9 seconds", "new keys"] {
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn the_list_follows_the_snapshot() {
        let (mut limited, lab) = (LimitedSas::default(), lab("hard_seconds = 9"));
        limited.follow(lab.state.gateway.snapshot.sad().clone(), &reached(&lab));
        assert_eq!(limited.len(), 2);
        limited.follow(TestLab::new(PEER).state.gateway.snapshot.sad().clone(), &reached(&lab));
        assert_eq!(limited.len(), 0);
    }

    #[test]
    fn an_sa_that_ended_just_before_it_was_deleted_is_told_of_and_one_that_would_have_is_not() {
        for (lifetime, limit) in [("hard_packets = 5", Some("packets")), ("hard_seconds = 9", None)]
        {
            let (mut limited, lab) = (LimitedSas::default(), lab(lifetime));
            limited.follow(lab.state.gateway.snapshot.sad().clone(), &reached(&lab));
            assert_eq!(seal(&lab, 4), 4);
            limited.judge_all(SECOND, &reached(&lab));
            assert_eq!(told(&lab.events), []);
            seal(&lab, 1);
            limited.follow(TestLab::new(PEER).state.gateway.snapshot.sad().clone(), &reached(&lab));
            limited.judge_all(100 * SECOND, &reached(&lab));
            let limits: Vec<_> = told(&lab.events).into_iter().map(|(_, limit, _)| limit).collect();
            assert_eq!(limits, Vec::from_iter(limit), "{lifetime}");
        }
    }
}
