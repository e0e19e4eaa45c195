//! One lap of each kind of work with connections, and when it does not count.

use std::hint::black_box;
use std::time::Instant;

use dataplane::connections::{Inserted, Judgement, Key, Observed, Place};
use dataplane::sweep;
use policy::connection::{Segment, Shown};
use policy::{DomainId, Generation, PolicyIndex};
use scene::{Random, Step};
use wire::BATCH;

use super::super::lap_error::LapError;
use super::super::measure::{Span, measure, overhead};
use super::gateway::{Gateway, HalfOpen, expect_refused};

/// Times that new connections are opened and removed again in a lap.
const ROUNDS: usize = 8;
/// New connections that are open at the same time, at most.
const OPENED: usize = 1024;
/// Packets of a lap of established connections, and lookups in the table alone.
const PACKETS: usize = 32_768;
/// Part of the new connections at most for which both buckets of the table are full.
const MOST_LOST: f64 = 0.25;
/// Part of the packets of established connections at least that the flow cache answers.
const LEAST_HITS: f64 = 0.5;
/// Looks at the clock to measure its cost.
const LOOKS: u32 = 1000;

/// Work that a row measures.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Work {
    /// New connections through the walk.
    New,
    /// The table alone.
    Table,
    /// Packets of established connections through the walk.
    Established(Order),
    /// The worker's sweep.
    Sweep(Sweep),
    /// Packets of established connections beside SYNs for which there is no room. So many of a
    /// hundred packets are SYNs.
    Refused { syn_percent: u32 },
}

/// Order of the packets of established connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
pub(super) enum Order {
    /// Every connection once, in random order, and again.
    Random,
    /// In the order in which the connections began.
    Turn,
}

/// Connections that a sweep finds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Sweep {
    /// All are live: none is removed.
    Live,
    /// The time-out of all has passed: all are removed.
    Over,
}

/// Figures of a lap, at most.
pub(super) const FIGURES: usize = 7;

impl Work {
    /// Names of a lap's figures.
    pub(super) const fn figures(self) -> &'static [&'static str] {
        match self {
            Work::New => &["ns_per_connection", "lost"],
            Work::Table => &[
                "ns_per_connection",
                "lost",
                "find_ns",
                "find_in_batch_ns",
                "at_place_ns",
                "observe_ns",
                "not_there_ns",
            ],
            Work::Established(_) => &["ns_per_packet", "hit_rate"],
            Work::Sweep(_) => &["ns_per_line", "longest_step_us", "core_percent"],
            Work::Refused { .. } => &["rate_kept", "alone_ns", "beside_ns", "refused_syn_ns"],
        }
    }
}

/// Figures measured in a lap, as [`Work::figures`] names them.
#[derive(Clone, Copy, Debug)]
pub(super) struct LapFigures {
    pub(super) values: [f64; FIGURES],
    /// The timed spans and the preparation before them.
    pub(super) span: Span,
}

impl LapFigures {
    fn of<const N: usize>(these: [f64; N], span: Span) -> LapFigures {
        let mut values = [0.0; FIGURES];
        values[..N].copy_from_slice(&these);
        LapFigures { values, span }
    }
}

/// The work of a row, and how far it is.
pub(super) struct Subject {
    pub(super) work: Work,
    in_flight: usize,
    /// Established connections in the order of their packets.
    order: Vec<u32>,
    /// The table's keys, in the same order.
    there: Vec<(Key, Place)>,
    next: usize,
}

impl Subject {
    /// Prepares a row's work.
    pub(super) fn new(
        work: Work,
        gateway: &Gateway,
        in_flight: usize,
        random: &mut Random,
    ) -> Subject {
        let mut order = match work {
            Work::New | Work::Sweep(_) => Vec::new(),
            Work::Table | Work::Established(_) | Work::Refused { .. } => gateway.live.clone(),
        };
        if work != Work::Established(Order::Turn) {
            random.shuffle(&mut order);
        }
        let there = |number: &u32| {
            let key = gateway.key(*number);
            Some((key, gateway.connections.find(&key, gateway.now_s)?.place))
        };
        let there = match work {
            Work::Table => order.iter().filter_map(there).collect(),
            _ => Vec::new(),
        };
        Subject { work, in_flight, order, there, next: 0 }
    }

    /// One lap. Each connection is last seen in an earlier second.
    ///
    /// # Errors
    /// [`LapError`].
    pub(super) fn lap(
        &mut self,
        gateway: &mut Gateway,
        random: &mut Random,
    ) -> Result<LapFigures, LapError> {
        gateway.now_s += 1;
        let figures = match self.work {
            Work::New => opened(gateway, self.in_flight, random),
            Work::Table => self.table(gateway),
            Work::Established(_) => self.established(gateway, random),
            Work::Sweep(of) => swept(gateway, of),
            Work::Refused { syn_percent } => self.refused(gateway, syn_percent as usize, random),
        };
        let figures = figures?;
        gateway.check_stock()?;
        Ok(figures)
    }

    /// The next established connections of the order.
    fn take(&mut self, count: usize) -> Vec<u32> {
        let first = self.next;
        self.next = (self.next + count) % self.order.len();
        self.order.iter().cycle().skip(first).take(count).copied().collect()
    }

    fn established(
        &mut self,
        gateway: &mut Gateway,
        random: &mut Random,
    ) -> Result<LapFigures, LapError> {
        let hits = gateway.worker.counters().cache.hits;
        let (mut walk, mut whole) = (Span::default(), Span::default());
        let mut left = PACKETS;
        while left > 0 {
            let now = self.take(left.min(self.in_flight));
            let passed = gateway.pass(now.iter().map(|number| (*number, Step::Ack)), random)?;
            expect_refused(passed.refused, 0)?;
            walk.add(passed.walk);
            whole.add(passed.whole);
            left -= now.len();
        }
        let hits = (gateway.worker.counters().cache.hits - hits) as f64 / PACKETS as f64;
        match hits >= LEAST_HITS {
            true => Ok(LapFigures::of([ns(walk, PACKETS), hits], whole)),
            false => Err(LapError::Tier { hits, searches: 1.0 - hits, tags: 0.0 }),
        }
    }

    fn refused(
        &mut self,
        gateway: &mut Gateway,
        syn_percent: usize,
        random: &mut Random,
    ) -> Result<LapFigures, LapError> {
        let (mut alone, mut beside, mut whole) =
            (Span::default(), Span::default(), Span::default());
        let syns = self.in_flight * syn_percent / 100;
        let (packets, rounds) = (self.in_flight - syns, PACKETS / self.in_flight);
        for _ in 0..rounds {
            // Twice untimed, so that both passes find the same in the processor's caches, and the
            // flows marked for this second.
            let flows = self.take(packets);
            let acks = || flows.iter().map(|number| (*number, Step::Ack));
            gateway.pass(acks(), random)?;
            gateway.pass(acks(), random)?;
            let passed = gateway.pass(acks(), random)?;
            alone.add(passed.walk);
            whole.add(passed.whole);
            let mut mixed: Vec<(u32, Step)> = acks().collect();
            mixed.extend(gateway.unseen(syns).map(|number| (number, Step::Syn)));
            random.shuffle(&mut mixed[1..]);
            let before = gateway.connections.counts();
            let passed = gateway.pass(mixed.iter().copied(), random)?;
            if passed.others != packets {
                return Err(LapError::Missing { expected: packets, left: passed.others });
            }
            beside.add(passed.walk);
            whole.add(passed.whole);
            let after = gateway.connections.counts();
            // At the bound of half-open connections older ones give way. One SYN may replace two:
            // one for the bound, and one in a full bucket.
            let made = match gateway.stock.half_open {
                HalfOpen::None => 0,
                HalfOpen::AtBound => (after.made - before.made) as usize,
            };
            expect_refused(passed.refused + made, syns)?;
        }
        let timed = packets * rounds;
        let (alone_ns, beside_ns) = (ns(alone, timed), ns(beside, timed));
        let syn_ns = (beside_ns - alone_ns) * packets as f64 / syns as f64;
        Ok(LapFigures::of([alone_ns / beside_ns, alone_ns, beside_ns, syn_ns], whole))
    }

    /// The table, on its own: new connections, and lookups of those that are there.
    fn table(&mut self, gateway: &mut Gateway) -> Result<LapFigures, LapError> {
        let count = at_once(gateway);
        let mut all = Span::default();
        let mut lost = 0;
        for _ in 0..ROUNDS {
            let opened: Vec<u32> = gateway.unseen(count).collect();
            let keys: Vec<Key> = opened.iter().map(|number| gateway.key(*number)).collect();
            let (made, span) = timed(|| keys.iter().filter(|key| opens(gateway, key)).count());
            all.add(span);
            let removed = opened.iter().filter(|number| gateway.remove(**number)).count();
            if removed != made {
                return Err(LapError::Connections { expected: made, found: removed });
            }
            lost += count - made;
        }
        let (new_ns, lost) = made(all, lost, ROUNDS * count)?;
        let count = self.there.len().min(PACKETS);
        if self.next + count > self.there.len() {
            self.next = 0;
        }
        let there = &self.there[self.next..][..count];
        self.next += count;
        let absent: Vec<Key> = gateway.unseen(count).map(|number| gateway.key(number)).collect();
        let (table, now_s) = (&gateway.connections, gateway.now_s);
        let is_there = |key: &Key| table.find(black_box(key), now_s).is_some();
        let ack = Shown::Tcp(Segment::Ack);
        let seen = |(key, place): &&(Key, Place)| {
            matches!(table.observe(*place, black_box(key), ack, now_s), Observed::Seen { .. })
        };
        let in_batch = |batch: &[(Key, Place)]| {
            batch.iter().for_each(|(key, _)| table.prefetch(key));
            batch.iter().filter(|(key, _)| is_there(key)).count()
        };
        let at_place = |(key, place): &&(Key, Place)| table.at(*place, key, now_s).is_some();
        let all_right = |work: &dyn Fn() -> usize| {
            let (found, span) = timed(work);
            if found == count { Ok(span) } else { Err(LapError::Table { expected: count, found }) }
        };
        let spans = [
            all_right(&|| there.iter().filter(|(key, _)| is_there(key)).count())?,
            all_right(&|| there.chunks(BATCH).map(in_batch).sum())?,
            all_right(&|| there.iter().filter(at_place).count())?,
            all_right(&|| there.iter().filter(seen).count())?,
            all_right(&|| absent.iter().filter(|key| !is_there(key)).count())?,
        ];
        spans.into_iter().for_each(|span| all.add(span));
        let [find, batch, place, observe, not_there] = spans.map(|span| ns(span, count));
        Ok(LapFigures::of([new_ns, lost, find, batch, place, observe, not_there], all))
    }
}

/// New connections that are open at the same time: so few that the load stays about the same.
fn at_once(gateway: &Gateway) -> usize {
    let live = gateway.stock.live;
    let room = gateway.stock.max / gateway.stock.width() - live;
    (live.min(room) as usize / 4).clamp(1, OPENED)
}

/// Opens and removes connections, through the walk.
fn opened(
    gateway: &mut Gateway,
    in_flight: usize,
    random: &mut Random,
) -> Result<LapFigures, LapError> {
    let count = at_once(gateway).min(in_flight);
    let (mut walk, mut whole, mut lost) = (Span::default(), Span::default(), 0);
    for _ in 0..ROUNDS {
        let opened = gateway.open(count, random)?;
        walk.add(opened.walk);
        whole.add(opened.whole);
        lost += opened.lost;
        gateway.remove_all(&opened.made)?;
    }
    let (ns, lost) = made(walk, lost, ROUNDS * count)?;
    Ok(LapFigures::of([ns, lost], whole))
}

/// Nanoseconds of a new connection that was made, and the part of all that was not.
///
/// # Errors
/// [`LapError::Connections`]: [`MOST_LOST`] is exceeded.
fn made(span: Span, lost: usize, of: usize) -> Result<(f64, f64), LapError> {
    let (made, part) = (of - lost, lost as f64 / of as f64);
    match part <= MOST_LOST {
        true => Ok((ns(span, made), part)),
        false => Err(LapError::Connections { expected: of, found: made }),
    }
}

/// Inserts a connection into the table and establishes it. Returns whether that succeeded.
fn opens(gateway: &Gateway, key: &Key) -> bool {
    let (table, now_s) = (&gateway.connections, gateway.now_s);
    let judgement =
        Judgement { rule: PolicyIndex(1), domain: DomainId(1), generation: Generation(1) };
    let Inserted::New(place) = table.insert(key, Shown::Tcp(Segment::Syn), judgement, now_s) else {
        return false;
    };
    let answers = [(key.reversed(), Segment::SynAck), (*key, Segment::Ack)];
    answers.iter().all(|(key, segment)| {
        let observed = table.observe(place, key, Shown::Tcp(*segment), now_s);
        matches!(observed, Observed::Seen { .. })
    })
}

/// A round of the worker's sweep over the whole table, in the steps of the daemon.
fn swept(gateway: &mut Gateway, of: Sweep) -> Result<LapFigures, LapError> {
    let table = gateway.connections.clone();
    let mut expected = 0;
    if of == Sweep::Over {
        let count = (gateway.stock.max / gateway.stock.width() / 2) as usize;
        let numbers = gateway.unseen(count);
        expected = numbers.filter(|number| opens(gateway, &gateway.key(*number))).count();
        made(Span::default(), count - expected, count)?;
        gateway.now_s += table.timeouts().tcp_established_s + 1;
    }
    let lines = table.lines();
    let steps = lines.div_ceil(sweep::lines_a_step(lines, 1));
    let expired = table.counts().expired;
    let begin_ns = u64::from(gateway.now_s) * 1_000_000_000;
    let (worker, snapshot, mut longest) = (&mut gateway.worker, &gateway.snapshot, 0.0f64);
    let clock_ns = clock_ns();
    let ((), span) = measure(|| {
        for step in 0..steps as u64 {
            let begin = Instant::now();
            worker.tick(snapshot, begin_ns + step * sweep::EVERY_NS);
            longest = longest.max(begin.elapsed().as_nanos() as f64);
        }
    });
    gateway.now_s += (steps as u64 * sweep::EVERY_NS / 1_000_000_000) as u32 + 1;
    let found = (table.counts().expired - expired) as usize;
    if found != expected {
        return Err(LapError::Table { expected, found });
    }
    let clock = 2.0 * clock_ns * steps as f64;
    let all_ns = (span.cpu.as_nanos() as f64 - clock).max(0.0);
    let share = all_ns / (steps as f64 * sweep::EVERY_NS as f64);
    Ok(LapFigures::of([all_ns / lines as f64, longest / 1e3, share * 100.0], span))
}

/// Cost of a look at the clock, ns.
fn clock_ns() -> f64 {
    let begin = Instant::now();
    (0..LOOKS).for_each(|_| {
        black_box(Instant::now());
    });
    begin.elapsed().as_nanos() as f64 / f64::from(LOOKS)
}

/// Measures some lookups or changes; `work` counts those that succeeded.
fn timed(work: impl FnOnce() -> usize) -> (usize, Span) {
    let overhead = overhead();
    let (found, mut span) = measure(work);
    span.cpu = span.cpu.saturating_sub(overhead);
    (found, span)
}

/// Nanoseconds of one of `count`.
fn ns(span: Span, count: usize) -> f64 {
    span.cpu.as_nanos() as f64 / count as f64
}
