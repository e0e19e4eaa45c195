//! A gateway whose rules of lan reflect, with its worker and connections. Packets pass it from one
//! port at a time; after each pass none may be missing, none may be dropped but for want of room,
//! and the ledger must balance.
//!
//! The clock stands still in a pass, and is moved on by the laps.

use std::sync::Arc;

use dataplane::connections::{Connections, Key, Limits, TableCounts, Zone};
use dataplane::{CacheUse, DropReason, NetdevId, Snapshot, SnapshotParts, Worker};
use io::memory::{MemoryFrames, PreloadedPort};
use policy::Spd;
use policy::connection::Timeouts;
use scene::{
    Case, DMZ, Direction, HOP_LIMIT, Keys, LAN, Random, Shape, Step, Treatment, load, mix, own_mac,
    router_mac, same,
};
use wire::link::ETHERNET_BYTES;
use wire::{BATCH, Family, packet};

use super::super::kits;
use super::super::lap::SAMPLE;
use super::super::lap_error::LapError;
use super::super::measure::{Span, measure, overhead};
use super::super::spd;

/// Rules of lan, of which the last reflects.
pub(super) const RULES: usize = 100;
/// Half-open connections do not end by themselves: a run takes minutes.
const SYN_S: u32 = 86_400;

/// The connections of a gateway while its rows are measured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Stock {
    pub(super) family: Family,
    /// Places of the table; a connection of IPv6 takes two.
    pub(super) max: u32,
    /// Established connections.
    pub(super) live: u32,
    pub(super) half_open: HalfOpen,
}

/// Half-open connections of a gateway.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum HalfOpen {
    None,
    /// As many as a port may have.
    AtBound,
}

impl Stock {
    /// Lines of a connection.
    pub(super) fn width(&self) -> u32 {
        if self.family == Family::V4 { 1 } else { 2 }
    }

    /// Lines of half-open connections. Bounds of a port count connections.
    pub(super) fn half_open_lines(&self) -> u32 {
        let Limits { half_open, half_open_per_zone, .. } = Limits::of(self.max);
        match self.half_open {
            HalfOpen::None => 0,
            HalfOpen::AtBound => (half_open_per_zone * self.width()).min(half_open),
        }
    }
}

/// A pass of packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    /// The walk.
    pub(super) walk: Span,
    /// The walk and the preparation.
    pub(super) whole: Span,
    /// Packets for which there was no room in the table.
    pub(super) refused: usize,
    /// Packets that left and are no SYN.
    pub(super) others: usize,
}

/// New connections.
pub(super) struct Opened {
    /// Those that are established now.
    pub(super) made: Vec<u32>,
    /// The others: both buckets were full. Nothing of them is left.
    pub(super) lost: usize,
    /// The walk.
    pub(super) walk: Span,
    /// The walk and the preparation.
    pub(super) whole: Span,
}

/// Packets of all passes so far.
#[derive(Clone, Copy, Default, Debug)]
struct Carried {
    received: u64,
    sent: u64,
    refused: u64,
}

/// A gateway, its worker and its connections.
pub(super) struct Gateway {
    pub(super) stock: Stock,
    pub(super) connections: Arc<Connections>,
    pub(super) snapshot: Snapshot,
    pub(super) worker: Worker<MemoryFrames, PreloadedPort>,
    /// The established connections, by number.
    pub(super) live: Vec<u32>,
    pub(super) now_s: u32,
    traffic: Case,
    /// The first connection that never was.
    unseen: u32,
    carried: Carried,
}

impl Gateway {
    /// Makes a gateway and its connections, through the walk.
    ///
    /// # Errors
    /// [`LapError`].
    pub(super) fn new(
        stock: Stock,
        cache_entries: usize,
        in_flight: usize,
        frames: &mut MemoryFrames,
        random: &mut Random,
    ) -> Result<Gateway, LapError> {
        let traffic = Case { direction: Direction::Forward, ..spd::traffic(stock.family) };
        let rules = traffic.grouped_policies(RULES, Shape::Uniform, Treatment::Stateful);
        let keys = Keys::fresh(traffic.suite)?;
        let parts = traffic.parts(std::slice::from_ref(&keys), Spd::new(rules)?.into())?;
        let timeouts = Timeouts { tcp_syn_s: SYN_S, ..Timeouts::default() };
        let connections = Connections::new(Limits::of(stock.max), timeouts, &[11; 32]);
        let connections = Arc::new(connections);
        let table = Some(connections.clone());
        let snapshot = Snapshot::new(SnapshotParts { connections: table, ..parts })?;
        let netdevs = (0..3).map(|_| Some(PreloadedPort::new(in_flight))).collect();
        let mut worker = Worker::new(&snapshot, MemoryFrames::new(0), netdevs);
        worker.take_cache(Some(kits::fresh(cache_entries, CacheUse::Always)?));
        let mut gateway = Gateway {
            stock,
            connections,
            snapshot,
            worker,
            live: Vec::with_capacity(stock.live as usize),
            now_s: 1,
            traffic,
            unseen: 0,
            carried: Carried::default(),
        };
        gateway.within(frames, |gateway| gateway.fill(in_flight, random))?;
        Ok(gateway)
    }

    /// Runs `act` with these frames, which all rows share; no row relies on their content.
    pub(super) fn within<R>(
        &mut self,
        frames: &mut MemoryFrames,
        act: impl FnOnce(&mut Gateway) -> R,
    ) -> R {
        std::mem::swap(self.worker.frames_mut(), frames);
        let result = act(self);
        std::mem::swap(self.worker.frames_mut(), frames);
        result
    }

    /// Makes the connections that stay.
    fn fill(&mut self, in_flight: usize, random: &mut Random) -> Result<(), LapError> {
        let expected = self.stock.live as usize;
        while let left @ 1.. = expected - self.live.len() {
            let opened = self.open(left.min(in_flight), random)?;
            self.live.extend(opened.made);
            self.check_unseen(expected, in_flight)?;
        }
        let bound = self.stock.half_open_lines();
        while let left @ 1.. = bound - self.connections.counts().half_open_lines {
            let syns = self.unseen(((left / self.stock.width()) as usize).min(in_flight));
            self.pass(syns.map(|number| (number, Step::Syn)), random)?;
            self.check_unseen(expected + bound as usize, in_flight)?;
        }
        self.check_stock()
    }

    /// Checks that making these connections took about as many as they are.
    fn check_unseen(&self, expected: usize, in_flight: usize) -> Result<(), LapError> {
        match self.unseen as usize <= 2 * expected + in_flight {
            true => Ok(()),
            false => Err(LapError::Connections { expected, found: self.live.len() }),
        }
    }

    /// Takes numbers of connections that never were.
    pub(super) fn unseen(&mut self, count: usize) -> std::ops::Range<u32> {
        let first = self.unseen;
        self.unseen += count as u32;
        first..self.unseen
    }

    /// Opens new connections: SYN, SYN+ACK and ACK of all.
    ///
    /// # Errors
    /// [`LapError`]
    pub(super) fn open(&mut self, count: usize, random: &mut Random) -> Result<Opened, LapError> {
        let opened = self.unseen(count);
        let (mut walk, mut whole) = (Span::default(), Span::default());
        for step in Step::ALL {
            let passed = self.pass(opened.clone().map(|number| (number, step)), random)?;
            walk.add(passed.walk);
            whole.add(passed.whole);
        }
        let (made, others): (Vec<u32>, Vec<u32>) =
            opened.partition(|number| self.is_established(*number));
        // Of some there is a connection in mid-stream, begun by the ACK.
        let lost = others.len();
        for number in &others {
            self.remove(*number);
        }
        Ok(Opened { made, lost, walk, whole })
    }

    fn is_established(&self, number: u32) -> bool {
        let found = self.connections.find(&self.key(number), self.now_s);
        found.is_some_and(|found| !found.status.is_half_open())
    }

    /// Removes a connection. Returns whether it was there.
    pub(super) fn remove(&self, number: u32) -> bool {
        let key = self.key(number);
        let found = self.connections.find(&key, self.now_s);
        found.is_some_and(|found| self.connections.remove(found.place, &key))
    }

    /// Removes connections, all of which are there.
    ///
    /// # Errors
    /// [`LapError::Connections`].
    pub(super) fn remove_all(&self, numbers: &[u32]) -> Result<(), LapError> {
        let (expected, found) =
            (numbers.len(), numbers.iter().filter(|number| self.remove(**number)).count());
        if found == expected { Ok(()) } else { Err(LapError::Connections { expected, found }) }
    }

    /// Checks that the connections are those of the stock.
    ///
    /// # Errors
    /// [`LapError::Connections`].
    pub(super) fn check_stock(&self) -> Result<(), LapError> {
        let TableCounts { lines, half_open_lines, .. } = self.connections.counts();
        let half_open = self.stock.half_open_lines();
        let expected = (self.stock.live * self.stock.width() + half_open, half_open);
        if (lines, half_open_lines) == expected {
            return Ok(());
        }
        let (expected, found) = (expected.0 as usize, lines as usize);
        Err(LapError::Connections { expected, found })
    }

    /// The key of packets of a connection's originator.
    pub(super) fn key(&self, number: u32) -> Key {
        let zone = Zone { attachment: LAN.0, vni: 0 };
        Key::of(&self.traffic.connection(number), zone).expect("TCP has ports")
    }

    /// Walks packets that one port receives, and checks them. They may be refused; that is all.
    ///
    /// # Errors
    /// [`LapError`].
    pub(super) fn pass(
        &mut self,
        packets: impl Iterator<Item = (u32, Step)> + Clone,
        random: &mut Random,
    ) -> Result<Passed, LapError> {
        let (overhead, traffic) = (overhead(), self.traffic);
        let first = packets.clone().next().map_or(Step::Syn, |(_, step)| step);
        let [ingress, egress] = if first == Step::SynAck { [DMZ, LAN] } else { [LAN, DMZ] };
        let macs = (own_mac(ingress), router_mac(ingress));
        let frame =
            |(number, step)| traffic.segment(number, step, HOP_LIMIT).frame(macs.0, macs.1, None);
        let (worker, snapshot) = (&mut self.worker, &self.snapshot);
        let now_ns = u64::from(self.now_s) * 1_000_000_000;
        let (mut walk, whole) = measure(|| {
            mix(worker.frames_mut(), random);
            load(worker, ingress, packets.clone().map(frame));
            measure(|| drain(worker, snapshot, ingress, now_ns)).1
        });
        walk.cpu = walk.cpu.saturating_sub(overhead);
        let [refused, others] = self.check(packets, egress, random)?;
        let (frames, egress) = self.worker.parts_mut(egress);
        egress.expect("all devices have ports").recycle(frames);
        Ok(Passed { walk, whole, refused, others })
    }

    /// Checks the packets of a pass. Returns how many were refused, and how many left that are no
    /// SYN.
    fn check(
        &mut self,
        packets: impl Iterator<Item = (u32, Step)> + Clone,
        egress: NetdevId,
        random: &mut Random,
    ) -> Result<[usize; 2], LapError> {
        let counters = self.worker.counters();
        for reason in DropReason::ALL.iter().copied() {
            let packets = counters.dropped(reason);
            if packets > 0 && reason != DropReason::ConnectionLimit {
                return Err(LapError::Dropped { reason, packets });
            }
        }
        let total = counters.total();
        if total.imbalance() != 0 {
            return Err(LapError::Imbalance(total.imbalance()));
        }
        let refused = counters.dropped(DropReason::ConnectionLimit);
        let now = Carried { received: total.received, sent: total.sent, refused };
        let before = std::mem::replace(&mut self.carried, now);
        let count = packets.clone().count();
        let left = (now.sent - before.sent) as usize;
        let refused = (now.refused - before.refused) as usize;
        if (now.received - before.received) as usize != count || left + refused != count {
            return Err(LapError::Missing { expected: count, left: left + refused });
        }
        let (frames, egress_port) = self.worker.parts_mut(egress);
        let outputs = egress_port.map_or(&[][..], |port| port.sent());
        let held = frames.conservation().held();
        if (held, outputs.len()) != (left, left) {
            return Err(LapError::Frames { expected: left, held });
        }
        let bytes = |at: usize| frames.packet(outputs[at]).unwrap_or_default();
        let others = (0..left).filter(|at| !is_syn(bytes(*at))).count();
        if refused > 0 {
            return Ok([refused, others]);
        }
        let macs = (router_mac(egress), own_mac(egress));
        let all: Vec<(u32, Step)> = packets.collect();
        for _ in 0..SAMPLE.min(left) {
            let at = random.below(left);
            let (number, step) = all[at];
            let expected = self.traffic.segment(number, step, HOP_LIMIT - 1);
            same(&expected.frame(macs.0, macs.1, None), bytes(at))
                .map_err(|flaw| LapError::Output { packet: at, flaw })?;
        }
        Ok([0, others])
    }
}

/// Returns whether a frame has a SYN alone.
fn is_syn(frame: &[u8]) -> bool {
    let bytes = frame.get(ETHERNET_BYTES..).unwrap_or_default();
    let flags = packet::parse(bytes).ok();
    let flags = flags.and_then(|packet| bytes.get(usize::from(packet.upper_offset) + 13));
    flags == Some(&Step::Syn.flags())
}

/// Checks how many packets were refused.
///
/// # Errors
/// [`LapError::Refused`].
pub(super) fn expect_refused(found: usize, expected: usize) -> Result<(), LapError> {
    if found == expected { Ok(()) } else { Err(LapError::Refused { expected, found }) }
}

/// The timed span.
#[inline(never)]
fn drain(
    worker: &mut Worker<MemoryFrames, PreloadedPort>,
    snapshot: &Snapshot,
    netdev: NetdevId,
    now_ns: u64,
) {
    while worker.turn(snapshot, now_ns, netdev, BATCH) > 0 {}
}
