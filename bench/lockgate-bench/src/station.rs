//! One row's worker and its laps, of the benches that measure rules by the thousand.
//!
//! A lap is some packets that only warm up and some that are timed, in as many frames as are in
//! flight; flows are drawn and frames filled outside the timed span. The span runs from the first
//! header read to the last descriptor written. After each lap no packet may be missing, only
//! expected packets may be dropped, the ledger must balance, the policy that decides must have
//! counted every packet, and a sample of the outputs must be right: sealed ones are decrypted with
//! the other cipher library.
//!
//! Worker and cache live as long as the bench. Before the first lap every flow passes once.

mod course;
mod crew;
mod measured;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::connections::Connections;
use dataplane::{Counters, DropReason, FlowCache, Handovers, Snapshot, Worker};
use io::memory::MemoryFrames;
use offload::Placements;
use policy::{PolicyIndex, Spd};
use scene::{
    Case, Flaw, HOP_LIMIT, MAX_FLOWS, MarkedPort, OtherCipher, Preloaded as _, Random, arriving,
    check, drain, load, mix, other_cipher, own_mac, router_mac, same, spi,
};
use wire::build::PacketBuilder;
use wire::{Family, FrameId};

use super::draw::{Distribution, Draw};
use super::kits;
use super::lap::{SAMPLE, Start};
use super::lap_error::LapError;
use super::measure::{Span, measure, overhead};
use super::subject::{Caching, WalkKind};
use super::yardstick::Yardstick;

use crew::Gateway;

pub(super) use course::{Course, RunArguments, each, refused};
pub(super) use crew::Crew;
pub(super) use measured::{LEGEND, Measured};

/// Packets of a lap that are timed, unless each takes long.
const PACKETS: usize = 32_768;
/// Packets of a lap at least: a clock that is read for fewer measures itself.
const LEAST_PACKETS: usize = 512;
/// Packets at most that warm a lap up.
const WARM_UP: usize = 32_768;
/// Approximate time that the timed packets of a lap take at most, ns.
const LAP_NS: f64 = 100e6;
/// Times that the yardstick goes over the frames.
const YARDSTICK_PASSES: u32 = 8;
/// Number of packets for measuring the time of one.
const TRIAL: usize = 64;
/// Number of such measurements: the first one faults pages and cache lines in.
const TRIALS: usize = 4;

/// Part of the packets at least that the cache is to answer, where it is to answer them.
const LEAST_HITS: f64 = 0.98;

/// The fate of every packet of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// It leaves. The policy of this slot decides and counts it; `None`: no policy is asked.
    Leaves(Option<PolicyIndex>),
    /// It leaves. The rule that is known of its flow decides and counts it.
    LeavesByKnown,
    /// No policy matches: it is dropped.
    NoMatch,
    /// It leaves by the policy of a slot if its near host is one of so many; others are dropped,
    /// because no policy matches.
    LeavesBelow(Option<PolicyIndex>, usize),
}

impl Fate {
    /// Returns whether a packet of a flow leaves.
    fn leaves(self, flow: usize) -> bool {
        match self {
            Fate::Leaves(_) | Fate::LeavesByKnown => true,
            Fate::NoMatch => false,
            Fate::LeavesBelow(_, hosts) => flow % MAX_FLOWS < hosts,
        }
    }
}

/// The tier that answers the packets of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tier {
    /// Whichever the walk takes.
    Any,
    /// The flow cache, nearly all of them.
    Cache,
    /// The classifier, every one.
    Classifier,
    /// An emulated card, whose tags count, every one.
    Card,
    /// No policy is asked.
    None,
}

/// Flows with packets of their own, each with the rule that decides it.
#[derive(Default, Debug)]
pub(super) struct KnownFlows {
    /// As they arrive.
    pub(super) packets: Vec<PacketBuilder>,
    pub(super) deciders: Vec<PolicyIndex>,
}

/// An emulated card in front of a row's worker, as the worker sees it.
#[derive(Debug)]
pub(super) struct CardTags {
    /// Those that count.
    pub(super) placements: Arc<Placements>,
    /// The tag of each flow's packets.
    pub(super) tags: Vec<u64>,
}

/// Gateway, traffic and worker of a row, and what must be true of its packets.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// The row in an error message.
    pub(super) label: String,
    pub(super) spd: Arc<Spd>,
    pub(super) traffic: Case,
    pub(super) flows: usize,
    pub(super) distribution: Distribution,
    /// Packets of a turn at most.
    pub(super) burst: usize,
    pub(super) walk: WalkKind,
    pub(super) caching: Caching,
    pub(super) fate: Fate,
    pub(super) tier: Tier,
    /// The table of connections, if the row's rules track them: each flow is one.
    pub(super) connections: Option<Arc<Connections>>,
    /// Workers, each with as many flows.
    pub(super) workers: usize,
    /// The flows, if they are not those of the case.
    pub(super) known: Option<Arc<KnownFlows>>,
    /// The card that tags the packets of the one worker.
    pub(super) card: Option<Arc<CardTags>>,
    /// The audit judges 1 of this many packets again; 0: no audit.
    pub(super) audit: u32,
}

impl Setting {
    /// The packet of a flow as it arrives.
    fn arriving(&self, other: &OtherCipher, flow: usize) -> Vec<u8> {
        let Some(known) = &self.known else {
            return arriving(&self.traffic, other, 0, flow, 0);
        };
        let ingress = self.traffic.ingress();
        known.packets[flow].frame(own_mac(ingress), router_mac(ingress), None)
    }

    /// Checks the output of a worker's flow, the `number`th packet of the SA.
    fn check(
        &self,
        other: &OtherCipher,
        (worker, flow): (usize, usize),
        number: u32,
        output: &[u8],
    ) -> Result<(), Flaw> {
        let Some(known) = &self.known else {
            return check(&self.traffic, other, spi(worker), flow, number, output);
        };
        let (egress, packet) = (self.traffic.egress(), known.packets[flow].clone());
        let expected = packet.hop_limit(HOP_LIMIT - 1);
        same(&expected.frame(router_mac(egress), own_mac(egress), None), output)
    }
}

/// Figures measured in a lap.
#[derive(Clone, Copy, Debug)]
pub(super) struct LapFigures {
    /// CPU time, ns a packet.
    pub(super) ns: f64,
    /// The yardstick over the frames that were in flight last, ns a packet.
    pub(super) touch_ns: f64,
    /// Share of the timed packets that the cache answered.
    pub(super) hit_rate: f64,
    /// Share of the timed packets whose policies were searched.
    pub(super) search_rate: f64,
    /// Share of the timed packets that a card's tag decided.
    pub(super) tag_rate: f64,
    /// Packets of them that were judged again.
    pub(super) audited: u64,
    /// The timed spans and the preparation before them.
    pub(super) span: Span,
    /// Packets timed.
    pub(super) packets: usize,
}

impl LapFigures {
    /// No time and no packets.
    pub(super) const ZERO: LapFigures = LapFigures {
        ns: 0.0,
        touch_ns: 0.0,
        hit_rate: 0.0,
        search_rate: 0.0,
        tag_rate: 0.0,
        audited: 0,
        span: Span { cpu: Duration::ZERO, wall: Duration::ZERO },
        packets: 0,
    };
}

/// One row's gateway, worker and traffic.
pub(super) struct Station {
    setting: Setting,
    /// Number of the worker. Its flows are the `number`th so many.
    number: usize,
    /// Barrier before each walk; `None`: there is no other worker.
    start: Option<Arc<Start>>,
    snapshot: Arc<Snapshot>,
    worker: Worker<MemoryFrames, MarkedPort>,
    other: OtherCipher,
    draw: Draw,
    in_flight: usize,
    /// Packets walked so far.
    carried: usize,
    /// Packets that left so far, and so the last number of the SA.
    left: usize,
    /// Packets that each rule is to have counted, by slot.
    counted: Vec<u64>,
    /// Timed packets of a lap.
    packets: usize,
    /// Frames of the latest walk, in the order of their packets.
    order: Vec<FrameId>,
    /// Time for which it has walked. Its clock shows that: it goes on as that of a gateway with
    /// nothing else to do between two laps.
    walked: Duration,
}

impl Station {
    /// A gateway with these policies and one worker. Walks every flow once, in `frames`.
    ///
    /// # Errors
    /// [`LapError`].
    pub(super) fn new(
        setting: Setting,
        cache_entries: usize,
        in_flight: usize,
        frames: &mut MemoryFrames,
        random: &mut Random,
    ) -> Result<Station, LapError> {
        let gateway = Gateway::new(&setting, 1)?;
        let alone = Handovers::among(1, &[0; 32]).remove(0);
        let sizes = (cache_entries, in_flight);
        let mut station = Station::of(setting, &gateway, (0, alone), sizes, random)?;
        station.within(frames, |station| station.settle(random))?;
        Ok(station)
    }

    /// The worker of a number in a gateway, with its rings to the others, the entries of its cache
    /// and the frames in flight.
    fn of(
        setting: Setting,
        gateway: &Gateway,
        (number, handovers): (usize, Handovers),
        (cache_entries, in_flight): (usize, usize),
        random: &mut Random,
    ) -> Result<Station, LapError> {
        let snapshot = gateway.snapshot.clone();
        let netdevs = (0..3).map(|_| Some(MarkedPort::new(in_flight))).collect();
        let worker = Worker::new(&snapshot, MemoryFrames::new(0), netdevs);
        let mut worker = worker.beside(handovers);
        worker.walk_among(gateway.keys.len() as u32);
        worker.use_fast_path(setting.walk.use_());
        worker.auditor().judge_one_of(setting.audit);
        if let Some(use_) = setting.caching.use_() {
            worker.take_cache(Some(kits::fresh(cache_entries, use_)?));
        }
        Ok(Station {
            other: other_cipher(&setting.traffic, &gateway.keys[number]),
            draw: Draw::new(setting.flows, setting.distribution, random),
            counted: vec![0; setting.spd.slots()],
            number,
            start: None,
            setting,
            snapshot,
            worker,
            in_flight,
            carried: 0,
            left: 0,
            packets: PACKETS,
            order: Vec::with_capacity(in_flight),
            walked: Duration::ZERO,
        })
    }

    /// One lap, in `frames`.
    ///
    /// # Errors
    /// [`LapError`].
    pub(super) fn lap(
        &mut self,
        frames: &mut MemoryFrames,
        random: &mut Random,
    ) -> Result<LapFigures, LapError> {
        self.within(frames, |station| {
            let warm_up = station.packets.min(WARM_UP);
            station.pass(warm_up, random)?;
            let figures = station.pass(station.packets, random)?;
            station.check_tier(&figures)?;
            station.check_audit(&figures)?;
            station.check_connections()?;
            Ok(LapFigures { touch_ns: station.yardstick()?, ..figures })
        })
    }

    /// Processes packets of these flows in their order, all timed, in `frames`.
    ///
    /// # Errors
    /// [`LapError`].
    pub(super) fn carry(
        &mut self,
        flows: &[usize],
        frames: &mut MemoryFrames,
        random: &mut Random,
    ) -> Result<LapFigures, LapError> {
        self.within(frames, |station| station.timed(flows.chunks(station.in_flight), random))
    }

    /// Replaces the flow cache.
    pub(super) fn take_cache(&mut self, cache: FlowCache) {
        self.worker.take_cache(Some(cache));
    }

    /// The gateway.
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The flow cache; `None`: there is none.
    pub(super) fn cache(&self) -> Option<&FlowCache> {
        self.worker.cache()
    }

    /// Runs the yardstick over the frames of the latest walk. Returns ns a packet.
    fn yardstick(&mut self) -> Result<f64, LapError> {
        let length = self.setting.arriving(&self.other, 0).len();
        let (order, in_flight, passes) = (&self.order, self.in_flight, YARDSTICK_PASSES);
        Yardstick { order, in_flight, length, passes }.run(self.worker.frames_mut())
    }

    /// The row in an error message.
    fn label(&self) -> &str {
        &self.setting.label
    }

    /// Entries of the cache, in IPv4 entries; 0: there is none.
    fn cache_entries(&self) -> usize {
        self.worker.cache().map_or(0, FlowCache::capacity)
    }

    /// Sets the number of packets of later laps.
    #[cfg(test)]
    pub(super) fn shorten(&mut self, packets: usize) {
        self.packets = packets;
    }

    /// Runs `act` with these frames, which all rows share; no row relies on their content.
    fn within<R>(&mut self, frames: &mut MemoryFrames, act: impl FnOnce(&mut Station) -> R) -> R {
        std::mem::swap(self.worker.frames_mut(), frames);
        let result = act(self);
        std::mem::swap(self.worker.frames_mut(), frames);
        result
    }

    /// Measures how many packets a lap can have, and sends every flow through once if there is a
    /// cache or a table of connections to fill.
    fn settle(&mut self, random: &mut Random) -> Result<(), LapError> {
        let mut ns = f64::MAX;
        for _ in 0..TRIALS {
            ns = self.pass(TRIAL, random)?.ns.min(ns);
        }
        self.packets = ((LAP_NS / ns) as usize).clamp(LEAST_PACKETS, PACKETS);
        if self.worker.cache().is_some() || self.setting.connections.is_some() {
            let own = self.number * self.setting.flows;
            let all: Vec<usize> = self.draw.all().iter().map(|flow| own + *flow as usize).collect();
            for flows in all.chunks(self.in_flight) {
                self.walk(flows, random)?;
            }
        }
        Ok(())
    }

    /// Processes this number of packets, all timed.
    fn pass(&mut self, packets: usize, random: &mut Random) -> Result<LapFigures, LapError> {
        let own = self.number * self.setting.flows;
        let flows: Vec<usize> = (0..packets).map(|_| own + self.draw.flow(random)).collect();
        self.timed(flows.chunks(self.in_flight), random)
    }

    /// Processes packets of flows, as many at a time as are in flight, all timed.
    fn timed<'f>(
        &mut self,
        parts: impl Iterator<Item = &'f [usize]>,
        random: &mut Random,
    ) -> Result<LapFigures, LapError> {
        let answered = |counters: &Counters| {
            let audited = counters.audit.judged.iter().sum::<u64>();
            [counters.cache.hits, counters.full_lookups, counters.tagged, audited]
        };
        let before = answered(self.worker.counters());
        let (mut walked, mut span, mut packets) = (Span::default(), Span::default(), 0);
        for flows in parts {
            let (walk, whole) = self.walk(flows, random)?;
            walked.add(walk);
            span.add(whole);
            packets += flows.len();
        }
        let after = answered(self.worker.counters());
        let grown: [u64; 4] = std::array::from_fn(|place| after[place] - before[place]);
        let [hit_rate, search_rate, tag_rate, _] = grown.map(|grown| grown as f64 / packets as f64);
        let (ns, audited) = (walked.cpu.as_nanos() as f64 / packets as f64, grown[3]);
        let rates = LapFigures { hit_rate, search_rate, tag_rate, audited, ..LapFigures::ZERO };
        Ok(LapFigures { ns, span, packets, ..rates })
    }

    /// Live connections.
    fn connections(&self) -> usize {
        let counts = self.setting.connections.as_ref().map(|connections| connections.counts());
        let width = if self.setting.traffic.family == Family::V4 { 1 } else { 2 };
        counts.map_or(0, |counts| counts.lines as usize / width)
    }

    /// Checks that each flow is a connection, where they are tracked.
    fn check_connections(&self) -> Result<(), LapError> {
        let expected = self.setting.connections.as_ref().map_or(0, |_| self.setting.flows);
        let found = self.connections();
        if found == expected { Ok(()) } else { Err(LapError::Connections { expected, found }) }
    }

    /// Checks that the tier answered that the row is about.
    fn check_tier(&self, figures: &LapFigures) -> Result<(), LapError> {
        let LapFigures { hit_rate: hits, search_rate: searches, tag_rate: tags, .. } = *figures;
        let is_right = match self.setting.tier {
            Tier::Any => true,
            Tier::Cache => hits >= LEAST_HITS,
            // Where the two walks alternate, both may search for a packet of a file's flows.
            Tier::Classifier if self.setting.known.is_some() => hits == 0.0 && searches >= 1.0,
            Tier::Classifier => (hits, searches) == (0.0, 1.0),
            Tier::Card => tags == 1.0,
            Tier::None => (hits, searches) == (0.0, 0.0),
        };
        if is_right { Ok(()) } else { Err(LapError::Tier { hits, searches, tags }) }
    }

    /// Checks that so many packets were judged again as are to be, and that the tables say of each
    /// what the faster tier said.
    fn check_audit(&self, figures: &LapFigures) -> Result<(), LapError> {
        let expected = match (self.setting.audit, self.setting.tier) {
            (0, _) | (_, Tier::Any | Tier::Classifier | Tier::None) => 0,
            (every, Tier::Cache | Tier::Card) => figures.packets as u64 / u64::from(every),
        };
        let (judged, wrong) = (figures.audited, self.worker.counters().audit.wrong.iter().sum());
        // A lap begins between two draws, and the cache may not know a flow.
        let is_right = wrong == 0 && judged.abs_diff(expected) <= 1 + expected / 50;
        if is_right { Ok(()) } else { Err(LapError::Audit { expected, judged, wrong }) }
    }

    /// Checks that each rule that is to decide has counted its packets.
    fn check_deciders(&self) -> Result<(), LapError> {
        let counters = self.worker.counters();
        for (slot, expected) in self.counted.iter().enumerate().filter(|(_, it)| **it > 0) {
            let counted = [&counters.policy_outbound, &counters.policy_inbound];
            let counted = counted.iter().map(|volumes| volumes[slot].packets).sum();
            if counted != *expected {
                let name = self.setting.spd.policy(PolicyIndex(slot as u32)).name.clone();
                return Err(LapError::Decider { name, expected: *expected, counted });
            }
        }
        Ok(())
    }

    /// Fills a frame with a packet for each of these flows, walks and checks them. Returns the span
    /// of the walk, and the span with the preparation.
    fn walk(&mut self, flows: &[usize], random: &mut Random) -> Result<(Span, Span), LapError> {
        let overhead = overhead();
        let (mut walk, whole) = measure(|| {
            mix(self.worker.frames_mut(), random);
            let (setting, other) = (&self.setting, &self.other);
            let packets = flows.iter().map(|flow| setting.arriving(other, *flow));
            let netdev = setting.traffic.ingress();
            self.order = load(&mut self.worker, netdev, packets);
            if let (Some(card), Some(port)) = (&setting.card, self.worker.netdev_mut(netdev)) {
                port.tag(flows.iter().map(|flow| card.tags[*flow]));
            }
            let (worker, snapshot, burst) = (&mut self.worker, &self.snapshot, self.setting.burst);
            self.start.iter().for_each(|start| start.wait());
            let begin = Instant::now().checked_sub(self.walked).unwrap_or_else(Instant::now);
            let span = measure(|| drain(worker, snapshot, netdev, begin, burst)).1;
            self.walked = begin.elapsed();
            span
        });
        walk.cpu = walk.cpu.saturating_sub(overhead);
        self.check(flows, random)?;
        self.carried += flows.len();
        self.left += flows.iter().filter(|flow| self.setting.fate.leaves(**flow)).count();
        let (frames, egress) = self.worker.parts_mut(self.setting.traffic.egress());
        egress.expect("all devices have ports").preloaded().recycle(frames);
        Ok((walk, whole))
    }

    /// Checks that no packet is missing or was added, that only expected packets were dropped, and
    /// that a sample of the outputs is right.
    fn check(&mut self, flows: &[usize], random: &mut Random) -> Result<(), LapError> {
        let counters = self.worker.counters();
        let expected = (self.carried + flows.len()) as u64;
        let leaves = |flow: &&usize| self.setting.fate.leaves(**flow);
        let leaving: Vec<usize> = flows.iter().filter(leaves).copied().collect();
        let sent = (self.left + leaving.len()) as u64;
        let unmatched = expected - sent;
        for reason in DropReason::ALL.iter().copied() {
            let packets = counters.dropped(reason);
            if packets != if reason == DropReason::NoMatch { unmatched } else { 0 } {
                return Err(LapError::Dropped { reason, packets });
            }
        }
        let total = counters.total();
        if total.imbalance() != 0 {
            return Err(LapError::Imbalance(total.imbalance()));
        }
        if (total.received, total.sent) != (expected, sent) {
            let (expected, left) = (sent as usize, total.sent as usize);
            return Err(LapError::Missing { expected, left });
        }
        match (self.setting.fate, &self.setting.known) {
            (Fate::Leaves(Some(slot)) | Fate::LeavesBelow(Some(slot), _), _) => {
                self.counted[slot.0 as usize] = sent;
            }
            (Fate::LeavesByKnown, Some(known)) => {
                let deciders = flows.iter().map(|flow| known.deciders[*flow].0 as usize);
                deciders.for_each(|slot| self.counted[slot] += 1);
            }
            _ => {}
        }
        self.check_deciders()?;
        let (frames, egress) = self.worker.parts_mut(self.setting.traffic.egress());
        let outputs = egress.map_or(&[][..], |port| port.preloaded().sent());
        let (held, in_port) = (frames.conservation().held(), outputs.len());
        let expected = leaving.len();
        if (held, in_port) != (expected, expected) {
            return Err(LapError::Frames { expected, held });
        }
        for _ in 0..SAMPLE.min(expected) {
            let packet = random.below(expected);
            let number = (self.left + packet) as u32 + 1;
            let output = frames.packet(outputs[packet]).unwrap_or_default();
            let checked =
                self.setting.check(&self.other, (self.number, leaving[packet]), number, output);
            checked.map_err(|flaw| LapError::Output { packet, flaw })?;
        }
        Ok(())
    }
}
