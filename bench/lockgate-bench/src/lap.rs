//! One lap of one case: fills frames with packets, walks them under the clock, and checks the
//! result.
//!
//! A lap is one untimed pass and then some timed ones, each over all flows: one frame a flow, flows
//! and frames in random order. All frames are filled before the clock runs, unless fewer are to be
//! in flight. Keys are fresh for every lap. The timed span of a pass runs from the first header
//! read to the last descriptor written: `Worker::turn` until its port is empty, as in the daemon,
//! with a look at the clock every turn. After each pass no packet may be missing, no drop counted,
//! the ledger must balance, and a sample of the outputs must be right. After the passes the
//! yardstick runs over the same frames in the same order, and the cipher alone over the same
//! packets.
//!
//! Laps share frames, flow caches and policies ([`Kits`]); the first pass, which is not timed,
//! makes the cache's entries.
//!
//! With several workers each is a thread on a core of its own with its own frames, ports, flows and
//! SAs under the one snapshot; their timed spans begin together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use dataplane::{DropReason, FlowCache, Handovers, Snapshot, Worker};
use io::memory::{MemoryFrames, PreloadedPort};
use scene::{
    Case, Keys, OtherCipher, Random, SaLimits, arriving, check, drain, limited, load, mix,
    other_cipher, spi,
};
use wire::{BATCH, FrameId};

use super::card_engine::{Batch, Engine, HasHeader};
use super::cipher_alone::{CipherTimes, WorkersSa, cipher_alone};
use super::kits::{Kit, Kits, Policies};
use super::lap_error::LapError;
use super::machine;
use super::measure::{Span, measure, overhead};
use super::stages::{BatchClock, StageTimes};
use super::subject::Subject;
use super::yardstick::Yardstick;

/// Outputs looked at after each pass.
pub(super) const SAMPLE: usize = 32;

/// Settings of a lap.
#[derive(Clone, Copy)]
pub(super) struct Course<'c> {
    /// Timed passes.
    pub(super) passes: u32,
    /// Extra pass, timed stage by stage, or none.
    pub(super) staging: Staging,
    /// A core for each worker; workers beyond the list go where the system puts them. The first is
    /// this thread and is bound already.
    pub(super) cores: &'c [usize],
    /// Limits of the SAs.
    pub(super) limits: SaLimits,
    /// An emulated card's own engine, which rows may have at work beside the workers.
    pub(super) engine: Option<&'c Engine>,
}

/// Granularity at which the walk is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Staging {
    /// Times the walk as a whole.
    Whole,
    /// Times each stage, too, in one more pass.
    ByStage,
}

/// Figures measured in a lap.
#[derive(Clone, Copy, Debug)]
pub(super) struct LapFigures {
    /// CPU time of the walk, ns a packet of one worker.
    pub(super) walk_ns: f64,
    /// Time of the cipher alone on the same packets, ns a packet; 0 where nothing is ciphered.
    pub(super) cipher_ns: f64,
    /// Time of the cipher alone on packets that are near, ns a packet.
    pub(super) cipher_near_ns: f64,
    /// Time of the yardstick over the same frames in the same order, ns a packet; without cipher.
    pub(super) touch_ns: f64,
    /// Part of the timed packets that the flow cache answered.
    pub(super) hit_rate: f64,
    /// Part of the timed packets that left by the fast path.
    pub(super) fast_rate: f64,
    /// Timed spans, and the preparation before them, of all workers together. Threads that had the
    /// core meanwhile disturbed them.
    pub(super) span: Span,
    /// Time of the walk's stages.
    pub(super) stages: Option<StageTimes>,
}

impl LapFigures {
    /// No time at all.
    pub(super) const ZERO: LapFigures = LapFigures {
        walk_ns: 0.0,
        cipher_ns: 0.0,
        cipher_near_ns: 0.0,
        touch_ns: 0.0,
        hit_rate: 0.0,
        fast_rate: 0.0,
        span: Span { cpu: std::time::Duration::ZERO, wall: std::time::Duration::ZERO },
        stages: None,
    };

    /// Time of the yardstick: its memory accesses, and the cipher alone.
    pub(super) fn yardstick_ns(&self) -> f64 {
        self.touch_ns + self.cipher_ns
    }

    /// Combines workers that ran side by side: the time a packet at which each would have to run
    /// for all together to be as fast as they were.
    fn together(all: &[LapFigures]) -> LapFigures {
        let mean = |figure: fn(&LapFigures) -> f64| {
            all.len() as f64 / all.iter().map(|one| 1.0 / figure(one)).sum::<f64>()
        };
        let part =
            |figure: fn(&LapFigures) -> f64| all.iter().map(figure).sum::<f64>() / all.len() as f64;
        let mut span = Span::default();
        all.iter().for_each(|one| span.add(one.span));
        let stages: Option<Vec<_>> = all.iter().map(|one| one.stages).collect();
        LapFigures {
            walk_ns: mean(|one| one.walk_ns),
            cipher_ns: mean(|one| one.cipher_ns),
            cipher_near_ns: mean(|one| one.cipher_near_ns),
            touch_ns: mean(|one| one.touch_ns),
            hit_rate: part(|one| one.hit_rate),
            fast_rate: part(|one| one.fast_rate),
            span,
            stages: stages.map(|stages| StageTimes::mean(&stages)),
        }
    }
}

/// Runs a lap. Needs a kit for each worker of the case.
///
/// # Errors
/// [`LapError`]; the kits are then lost.
pub(super) fn run(
    subject: &Subject,
    mut kits: Kits,
    course: Course,
    random: &mut Random,
) -> Result<(Kits, LapFigures), LapError> {
    let case = &subject.case;
    let keys = (0..case.workers * case.sas).map(|_| Keys::fresh(case.suite));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let snapshot = Snapshot::new(case.parts(&keys, kits.spd(Policies::of(case))?)?)?;
    let snapshot = match course.limits {
        SaLimits::Without => snapshot,
        SaLimits::Far => limited(&snapshot)?,
    };
    let start = Start::of(case.workers);
    let idle = kits.workers.split_off(case.workers);
    let used = std::mem::take(&mut kits.workers);
    let seeds: Vec<u64> = (0..case.workers).map(|_| random.seed()).collect();
    let stations =
        Handovers::among(case.workers as u32, &[0; 32]).into_iter().zip(used).enumerate();
    let stations = stations.map(|(number, (handovers, kit))| Station {
        subject,
        snapshot: &snapshot,
        others: others(case, &keys, number),
        number,
        handovers,
        kit,
    });
    let mut worked: Vec<Result<_, LapError>> = Vec::with_capacity(case.workers);
    thread::scope(|scope| {
        let mut stations: Vec<_> = stations.zip(seeds).collect();
        let (first, seed) = stations.remove(0);
        let others: Vec<_> = stations
            .into_iter()
            .map(|(station, seed)| {
                let core = course.cores.get(station.number).copied();
                let start = &start;
                scope.spawn(move || {
                    let _left = LeaveNotice(start);
                    core.map_or(Ok(0), |core| machine::pin(Some(core))).map_err(LapError::Pin)?;
                    work(station, course, start, &mut Random::new(seed))
                })
            })
            .collect();
        let own = {
            let _left = LeaveNotice(&start);
            work(first, course, &start, &mut Random::new(seed))
        };
        worked.push(own);
        let joined = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        worked.extend(joined);
    });
    let worked = worked.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (worked, figures): (Vec<_>, Vec<_>) = worked.into_iter().unzip();
    kits.workers = worked;
    kits.workers.extend(idle);
    Ok((kits, LapFigures::together(&figures)))
}

/// The other ends of a worker's SAs.
fn others(case: &Case, keys: &[Keys], worker: usize) -> Vec<OtherCipher> {
    (0..case.sas).map(|peer| other_cipher(case, &keys[case.place(worker, peer)])).collect()
}

/// A worker's equipment at the beginning of a lap.
struct Station<'c> {
    subject: &'c Subject,
    snapshot: &'c Snapshot,
    others: Vec<OtherCipher>,
    number: usize,
    handovers: Handovers,
    kit: Kit,
}

/// One worker's part of a lap.
fn work(
    station: Station,
    course: Course,
    start: &Start,
    random: &mut Random,
) -> Result<(Kit, LapFigures), LapError> {
    let Station { subject, snapshot, others, number, handovers, kit } = station;
    let Kit { frames, mut caches } = kit;
    let Subject { case, in_flight, cache: caching, .. } = *subject;
    let cache = caches.lend((caching, Policies::of(&case)))?;
    let mut lap = Lap::new(subject, snapshot, (number, others), frames, cache, handovers);
    lap.engine = course.engine.filter(|_| subject.engine > 0);
    lap.pass(random, start)?;
    let (mut walked, mut span) = (Span::default(), Span::default());
    let before = lap.answered();
    for _ in 0..course.passes {
        let pass = lap.pass(random, start)?;
        walked.add(pass.walk);
        span.add(pass.whole);
    }
    let packets = f64::from(course.passes) * case.flows as f64;
    let [hit_rate, fast_rate] =
        std::array::from_fn(|part| (lap.answered()[part] - before[part]) as f64 / packets);
    start.wait();
    let touch_ns = lap.yardstick(course.passes)?;
    let stages = match course.staging {
        Staging::Whole => None,
        Staging::ByStage => Some(lap.staged_pass(random, start)?),
    };
    // Of several SAs the first: its numbers begin behind those that any has used.
    let (first, other) = (lap.carried + 1, lap.others.swap_remove(0));
    caches.take_back((caching, Policies::of(&case)), lap.worker.take_cache(None));
    let mut frames = lap.worker.into_parts().0;
    start.wait();
    let cipher = match case.direction {
        way if !way.ciphers() => CipherTimes::default(),
        _ => {
            mix(&mut frames, random);
            let sa = WorkersSa { case: &case, snapshot, worker: number, other: &other };
            cipher_alone(&sa, first, in_flight, &mut frames)?
        }
    };
    let walk_ns = walked.cpu.as_nanos() as f64 / packets;
    let CipherTimes { far_ns: cipher_ns, near_ns: cipher_near_ns } = cipher;
    let rates = LapFigures { hit_rate, fast_rate, span, ..LapFigures::ZERO };
    let figures = LapFigures { walk_ns, cipher_ns, cipher_near_ns, touch_ns, stages, ..rates };
    Ok((Kit { frames, caches }, figures))
}

/// A barrier at which workers wait for each other, so that their timed spans begin together. They
/// spin: waking a thread takes as long as a good part of a span.
pub(super) struct Start {
    workers: usize,
    arrived: AtomicUsize,
    /// True if a worker has left: no other worker waits for it.
    left: AtomicBool,
}

impl Start {
    pub(super) fn of(workers: usize) -> Start {
        Start { workers, arrived: AtomicUsize::new(0), left: AtomicBool::new(false) }
    }

    /// Waits until all workers have come here as often as this one, or one has left.
    pub(super) fn wait(&self) {
        let before = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.workers + 1) * self.workers;
        while self.arrived.load(Ordering::Acquire) < all && !self.left.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
    }
}

/// Notes the end of a worker, however it ends.
pub(super) struct LeaveNotice<'s>(pub(super) &'s Start);

impl Drop for LeaveNotice<'_> {
    fn drop(&mut self) {
        self.0.left.store(true, Ordering::Release);
    }
}

/// Time that a pass took.
#[derive(Default)]
struct Pass {
    /// The timed span.
    walk: Span,
    /// The timed span and the preparation before it.
    whole: Span,
}

/// One worker of a gateway, and how far its numbers are.
struct Lap<'c> {
    case: &'c Case,
    snapshot: &'c Snapshot,
    /// The worker's.
    number: usize,
    in_flight: usize,
    worker: Worker<MemoryFrames, PreloadedPort>,
    /// The other ends of its SAs.
    others: Vec<OtherCipher>,
    /// Packets that its SAs carried so far: all of them, and each.
    carried: u32,
    carried_by: Vec<u32>,
    /// Numbers in their SAs of the packets that are laid out.
    numbers: Vec<u32>,
    /// Frames of the latest pass, in the order of their packets.
    order: Vec<FrameId>,
    begin: Instant,
    /// An emulated card's engine, which gets what left.
    engine: Option<&'c Engine>,
}

impl<'c> Lap<'c> {
    fn new(
        subject: &'c Subject,
        snapshot: &'c Snapshot,
        (number, others): (usize, Vec<OtherCipher>),
        frames: MemoryFrames,
        cache: Option<FlowCache>,
        handovers: Handovers,
    ) -> Lap<'c> {
        let Subject { case, walk, in_flight, .. } = subject;
        let netdevs = (0..3).map(|_| Some(PreloadedPort::new(case.flows))).collect();
        let mut worker = Worker::new(snapshot, frames, netdevs).beside(handovers);
        if let (Some(mark), Some(port)) = (case.mark(number), worker.netdev_mut(case.ingress())) {
            port.mark(mark);
        }
        worker.walk_among(case.workers as u32);
        worker.take_cache(cache);
        worker.use_fast_path(walk.use_());
        let carried_by = vec![0; case.sas];
        let (order, begin) = (Vec::with_capacity(case.flows), Instant::now());
        let in_flight = *in_flight;
        Lap {
            case,
            snapshot,
            number,
            in_flight,
            worker,
            others,
            carried: 0,
            carried_by,
            numbers: Vec::with_capacity(in_flight),
            order,
            begin,
            engine: None,
        }
    }

    /// Packets that the flow cache answered so far, and those that left by the fast path.
    fn answered(&self) -> [u64; 2] {
        let counters = self.worker.counters();
        [counters.cache.hits, counters.fast_path]
    }

    /// Runs the yardstick over the frames of the latest pass. Returns ns a packet.
    fn yardstick(&mut self, passes: u32) -> Result<f64, LapError> {
        // Made for its length alone: no number of the SA is used.
        let length =
            arriving(self.case, &self.others[self.case.peer_of(0)], self.number, 0, 1).len();
        let (order, in_flight) = (&self.order, self.in_flight);
        Yardstick { order, in_flight, length, passes }.run(self.worker.frames_mut())
    }

    /// Runs one pass over all flows, in random order and random frames.
    fn pass(&mut self, random: &mut Random, start: &Start) -> Result<Pass, LapError> {
        let mut pass = Pass::default();
        let overhead = overhead();
        for flows in self.order(random).chunks(self.in_flight) {
            let (mut walk, whole) = measure(|| {
                self.lay_out(flows);
                start.wait();
                let (ingress, begin) = (self.case.ingress(), self.begin);
                let (worker, snapshot) = (&mut self.worker, self.snapshot);
                measure(|| drain(worker, snapshot, ingress, begin, BATCH)).1
            });
            self.conclude(flows, random)?;
            walk.cpu = walk.cpu.saturating_sub(overhead);
            pass.walk.add(walk);
            pass.whole.add(whole);
        }
        Ok(pass)
    }

    /// Runs one pass over all flows, timed stage by stage.
    fn staged_pass(&mut self, random: &mut Random, start: &Start) -> Result<StageTimes, LapError> {
        let mut clock = BatchClock::new(2 * self.case.flows.div_ceil(BATCH));
        for flows in self.order(random).chunks(self.in_flight) {
            self.lay_out(flows);
            start.wait();
            let (ingress, begin) = (self.case.ingress(), self.begin);
            let (worker, snapshot) = (&mut self.worker, self.snapshot);
            clock.run(|clock| {
                let now_ns = begin.elapsed().as_nanos() as u64;
                worker.turn_clocked(snapshot, now_ns, ingress, BATCH, clock)
            });
            self.conclude(flows, random)?;
        }
        Ok(clock.times())
    }

    /// All flows in random order; the free frames are mixed, too.
    fn order(&mut self, random: &mut Random) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.case.flows).collect();
        random.shuffle(&mut order);
        self.order.clear();
        mix(self.worker.frames_mut(), random);
        order
    }

    /// Fills a frame with a packet for each of these flows.
    fn lay_out(&mut self, flows: &[usize]) {
        let Lap { case, number, others, worker, carried_by, numbers, .. } = self;
        numbers.clear();
        let packets = flows.iter().map(|flow| {
            let peer = case.peer_of(*flow);
            carried_by[peer] += 1;
            numbers.push(carried_by[peer]);
            arriving(case, &others[peer], *number, *flow, carried_by[peer])
        });
        let frames = load(worker, case.ingress(), packets);
        self.order.extend(frames);
    }

    /// Checks the packets that left, in the order in which they arrived, and frees their frames.
    fn conclude(&mut self, order: &[usize], random: &mut Random) -> Result<(), LapError> {
        self.check_counts(order.len())?;
        self.check_sample(order, random)?;
        self.give_to_engine();
        self.carried += order.len() as u32;
        let (frames, egress) = self.worker.parts_mut(self.case.egress());
        egress.expect("all devices have ports").recycle(frames);
        Ok(())
    }

    /// Gives copies of the packets that left to the card's engine, if the row has one.
    fn give_to_engine(&mut self) {
        let Some(engine) = self.engine else { return };
        let direction = self.case.direction;
        let header = if direction.is_handed_over() { HasHeader::Yes } else { HasHeader::No };
        let mut batch = Batch::new(self.case.suite, header);
        let (frames, egress) = self.worker.parts_mut(self.case.egress());
        let sent = egress.map_or(&[][..], |port| port.sent());
        sent.iter().filter_map(|packet| frames.packet(*packet)).for_each(|it| batch.push(it));
        engine.give(batch);
    }

    /// Checks that no packet was dropped, lost or added, that every frame is accounted for, and
    /// that the ledger balances.
    fn check_counts(&mut self, packets: usize) -> Result<(), LapError> {
        let counters = self.worker.counters();
        if let Some(reason) = DropReason::ALL.iter().find(|reason| counters.dropped(**reason) > 0) {
            return Err(LapError::Dropped { reason: *reason, packets: counters.dropped(*reason) });
        }
        let total = counters.total();
        if total.imbalance() != 0 {
            return Err(LapError::Imbalance(total.imbalance()));
        }
        let expected = self.carried as usize + packets;
        if total.sent != expected as u64 || total.received != expected as u64 {
            return Err(LapError::Missing { expected, left: total.sent as usize });
        }
        let (frames, egress) = self.worker.parts_mut(self.case.egress());
        let left = egress.map_or(0, |port| port.sent().len());
        if left != packets {
            return Err(LapError::Missing { expected: packets, left });
        }
        match frames.conservation().held() {
            held if held == packets => Ok(()),
            held => Err(LapError::Frames { expected: packets, held }),
        }
    }

    /// Checks a sample of the outputs. `order`: flows in the order they arrived.
    fn check_sample(&mut self, order: &[usize], random: &mut Random) -> Result<(), LapError> {
        let (frames, egress) = self.worker.parts_mut(self.case.egress());
        let sent = egress.map_or(&[][..], |port| port.sent());
        for _ in 0..SAMPLE {
            let packet = random.below(sent.len());
            let (flow, number) = (order[packet], self.numbers[packet]);
            let output = frames.packet(sent[packet]).unwrap_or_default();
            let peer = self.case.peer_of(flow);
            let spi = spi(self.case.place(self.number, peer));
            check(self.case, &self.others[peer], spi, flow, number, output)
                .map_err(|flaw| LapError::Output { packet, flaw })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::subject::{Caching, WalkKind};
    use super::*;
    use ipsec::Suite;
    use ipsec::cipher::BackendKind;
    use scene::{Direction, own_mac, router_mac};
    use wire::{Family, Frames};

    const FLOWS: usize = 256;
    const COURSE: Course = Course {
        passes: 2,
        staging: Staging::ByStage,
        cores: &[],
        limits: SaLimits::Without,
        engine: None,
    };

    fn kits(workers: usize) -> Kits {
        Kits::new(workers, FLOWS, 2048, 64 * FLOWS)
    }

    fn subject(case: Case) -> Subject {
        Subject { case, walk: WalkKind::Fast, cache: Caching::Always, in_flight: 100, engine: 0 }
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for direction in Direction::ALL {
            for family in [Family::V4, Family::V6] {
                for (suite, size) in [(Suite::Aes128Gcm, 64), (Suite::Aes256Gcm, 1420)] {
                    let (flows, backend, workers) = (FLOWS, None, 1);
                    cases.push(Case {
                        direction,
                        suite,
                        family,
                        size,
                        flows,
                        backend,
                        workers,
                        sas: 1,
                    });
                }
            }
        }
        cases
    }

    /// Starts a lap with one worker and passes it to `act`.
    fn with_lap<R>(case: &Case, act: impl FnOnce(&mut Lap) -> R) -> R {
        let keys = Keys::fresh(case.suite).unwrap();
        let snapshot = case.gateway(std::slice::from_ref(&keys)).unwrap();
        let subject = Subject { in_flight: FLOWS, ..subject(*case) };
        let frames = kits(1).workers.remove(0).frames;
        let handovers = Handovers::default();
        let others = vec![other_cipher(case, &keys)];
        act(&mut Lap::new(&subject, &snapshot, (0, others), frames, None, handovers))
    }

    /// The first packets of a lap in order, as they arrive.
    fn first_packets(lap: &Lap) -> Vec<Vec<u8>> {
        let packet = |flow| arriving(lap.case, &lap.others[0], 0, flow, flow as u32 + 1);
        (0..FLOWS).map(packet).collect()
    }

    /// Walks these packets, in random frames.
    fn walk(lap: &mut Lap, packets: &[Vec<u8>]) {
        let (ingress, begin) = (lap.case.ingress(), lap.begin);
        load(&mut lap.worker, ingress, packets.iter().cloned());
        drain(&mut lap.worker, lap.snapshot, ingress, begin, BATCH);
    }

    #[test]
    fn every_kind_of_lap_counts_and_leaves_its_frames_for_the_next() {
        let mut random = Random::new(1);
        for case in cases() {
            let (free, figures) =
                run(&subject(case), kits(2), COURSE, &mut random).expect("a right lap");
            let held = |kit: &Kit| kit.frames.conservation().held();
            assert!(free.workers.len() == 2 && free.workers.iter().all(|kit| held(kit) == 0));
            assert!(figures.walk_ns > 0.0 && figures.touch_ns > 0.0, "{case:?}");
            assert_eq!(figures.cipher_ns > 0.0, case.direction.ciphers());
            assert!(figures.stages.is_some());
            let course = Course { passes: 1, staging: Staging::Whole, ..COURSE };
            let lap = run(&subject(case), free, course, &mut random);
            let (_, figures) = lap.expect("in the same frames");
            assert!(figures.stages.is_none());
        }
    }

    #[test]
    fn a_cache_answers_the_timed_packets_and_without_one_none_is() {
        let mut random = Random::new(8);
        let mut free = kits(1);
        for case in cases().into_iter().filter(|case| case.direction.ciphers()) {
            for walk in [WalkKind::Fast, WalkKind::General] {
                for cache in [Caching::Always, Caching::Off] {
                    let subject = Subject { walk, cache, ..subject(case) };
                    let lap = run(&subject, free, COURSE, &mut random);
                    let (kits, figures) = lap.unwrap_or_else(|e| panic!("{subject:?}: {e}"));
                    // Two buckets of two ways lose a flow now and then.
                    let is_right = match cache {
                        Caching::Off => figures.hit_rate == 0.0,
                        _ => figures.hit_rate > 0.98,
                    };
                    assert!(is_right, "{subject:?}: {}", figures.hit_rate);
                    let by_fast_path = f64::from(u8::from(walk == WalkKind::Fast));
                    assert_eq!(figures.fast_rate, by_fast_path, "{subject:?}");
                    free = kits;
                }
            }
        }
    }

    #[test]
    fn the_yardstick_goes_over_the_frames_of_the_latest_pass_in_its_order() {
        let case = cases()[0];
        with_lap(&case, |lap| {
            let mut random = Random::new(2);
            lap.in_flight = 100;
            let start = Start::of(1);
            lap.pass(&mut random, &start).unwrap();
            let first = lap.order.clone();
            lap.pass(&mut random, &start).unwrap();
            assert_eq!(lap.order.len(), FLOWS);
            assert_ne!(lap.order, first, "each pass has an order of its own");
            assert!(lap.yardstick(3).unwrap() > 0.0);
        });
    }

    #[test]
    fn what_every_suite_seals_and_opens_on_every_backend_is_right() {
        let mut random = Random::new(6);
        let course = Course { passes: 1, ..COURSE };
        for &suite in Suite::ALL {
            for kind in BackendKind::ALL.iter().filter(|kind| kind.has(suite)) {
                for (direction, size) in [(Direction::Out, 777), (Direction::In, 1420)] {
                    let case = Case {
                        direction,
                        suite,
                        family: Family::V6,
                        size,
                        flows: FLOWS,
                        backend: Some(*kind),
                        workers: 1,
                        sas: 1,
                    };
                    let lap = run(&subject(case), kits(1), course, &mut random);
                    lap.unwrap_or_else(|error| panic!("{case:?}: {error}"));
                }
            }
        }
    }

    #[test]
    fn two_workers_seal_and_open_side_by_side_each_by_its_own_sa() {
        let mut random = Random::new(7);
        for case in cases() {
            let case = Case { workers: 2, ..case };
            let (free, figures) =
                run(&subject(case), kits(2), COURSE, &mut random).expect("a right lap");
            assert_eq!(free.workers.len(), 2);
            assert!(figures.walk_ns > 0.0);
        }
    }

    #[test]
    fn many_sas_of_two_workers_carry_an_equal_part_of_the_packets_each_by_its_own_numbers() {
        let mut random = Random::new(9);
        for case in cases().into_iter().filter(|case| case.direction.ciphers()) {
            for (sas, workers) in [(3, 1), (FLOWS / 2, 1), (FLOWS / 2, 2)] {
                let case = Case { sas, workers, ..case };
                let mut flows = vec![0; sas];
                (0..FLOWS).for_each(|flow| flows[case.peer_of(flow)] += 1);
                let mean = FLOWS / sas;
                assert!(flows.iter().all(|flows| (mean - 1..=mean + 1).contains(flows)));
                run(&subject(case), kits(2), COURSE, &mut random)
                    .unwrap_or_else(|error| panic!("{case:?}: {error}"));
            }
        }
    }

    #[test]
    fn a_worker_that_leaves_keeps_nobody_waiting() {
        let start = Start::of(2);
        thread::scope(|scope| {
            scope.spawn(|| drop(LeaveNotice(&start)));
            start.wait();
        });
        // Side by side it is the slower one's rate that makes the mean.
        let one = LapFigures { walk_ns: 30.0, ..LapFigures::ZERO };
        let both = LapFigures::together(&[one, LapFigures { walk_ns: 60.0, ..one }]);
        assert!((both.walk_ns - 40.0).abs() < 1e-9, "1/30 + 1/60 = 2/40");
    }

    #[test]
    fn a_lap_that_drops_a_packet_is_refused() {
        for case in cases() {
            with_lap(&case, |lap| {
                let mut packets = first_packets(lap);
                let expected = match case.direction {
                    Direction::In | Direction::CryptoIn => {
                        packets[77] = packets[76].clone();
                        DropReason::Replayed
                    }
                    _ => {
                        packets[77] = case.inner(77, 0).frame(
                            own_mac(case.ingress()),
                            router_mac(case.ingress()),
                            None,
                        );
                        DropReason::HopLimit
                    }
                };
                walk(lap, &packets);
                let error = lap.check_counts(packets.len()).unwrap_err();
                assert!(
                    matches!(error, LapError::Dropped { reason, packets: 1 } if reason == expected),
                    "{case:?}: {error}"
                );
            });
        }
    }

    #[test]
    fn a_lap_with_a_packet_too_few_is_refused() {
        for case in cases() {
            with_lap(&case, |lap| {
                let packets = first_packets(lap);
                walk(lap, &packets[1..]);
                let error = lap.check_counts(packets.len()).unwrap_err();
                assert!(matches!(error, LapError::Missing { .. }), "{case:?}: {error}");
            });
        }
    }

    #[test]
    fn a_lap_with_a_wrong_byte_in_its_outputs_is_refused() {
        let order: Vec<usize> = (0..FLOWS).collect();
        for case in cases() {
            with_lap(&case, |lap| {
                let packets = first_packets(lap);
                walk(lap, &packets);
                lap.numbers = (1..=FLOWS as u32).collect();
                lap.check_counts(packets.len()).unwrap();
                lap.check_sample(&order, &mut Random::new(5)).unwrap();
                let (frames, port) = lap.worker.parts_mut(case.egress());
                for packet in port.unwrap().sent() {
                    let middle = (packet.offset + packet.length / 2) as usize;
                    frames.bytes_mut(packet.frame)[middle] ^= 0x10;
                }
                let error = lap.check_sample(&order, &mut Random::new(5)).unwrap_err();
                assert!(matches!(error, LapError::Output { .. }), "{case:?}: {error}");
            });
        }
    }
}
