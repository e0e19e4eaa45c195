//! Counters of one worker. Plain numbers: a worker owns them; readers sum copies over workers.

use ipsec::SaId;
use policy::{Direction, PolicyIndex};

use crate::audit::AuditCounts;
use crate::cache::CacheCounters;
use crate::ids::PortId;
use crate::snapshot::Snapshot;
use crate::verdict::DropReason;

/// Packets and their bytes: IP packets as they were before sealing and after opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Volume {
    /// Packets.
    pub packets: u64,
    /// Bytes of the IP packets, link headers not counted.
    pub bytes: u64,
}

impl Volume {
    #[inline]
    pub(crate) fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

/// Packets of one ingress port, by what became of them (DESIGN I7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    /// Received by it.
    pub received: u64,
    /// Made by us because of what was received by it: ICMP, fragments.
    pub made: u64,
    /// Accepted by a transmit ring.
    pub sent: u64,
    /// Dropped, over all reasons.
    pub dropped: u64,
    /// Replaced by packets made from them.
    pub consumed: u64,
    /// Handed to Linux.
    pub host: u64,
    /// Waiting.
    pub held: u64,
}

impl Ledger {
    /// `received + made − (sent + dropped + consumed + host + held)`: 0 at every quiescent point.
    pub fn imbalance(&self) -> i64 {
        let came = self.received + self.made;
        let went = self.sent + self.dropped + self.consumed + self.host + self.held;
        came as i64 - went as i64
    }

    /// Adds another ledger, line by line.
    pub fn add(&mut self, other: &Ledger) {
        self.received += other.received;
        self.made += other.made;
        self.sent += other.sent;
        self.dropped += other.dropped;
        self.consumed += other.consumed;
        self.host += other.host;
        self.held += other.held;
    }
}

/// Counts of one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounts {
    /// Packets that came by it, by what became of them.
    pub ledger: Ledger,
    /// Packets that left by it; bytes with link headers.
    pub transmitted: Volume,
    /// Checksums of what came by it.
    pub l4_checksums: L4ChecksumCounts,
}

/// The room that counters need under a snapshot. They go on from one snapshot to the next as long
/// as it is the same; what ports and SAs that are gone have counted is taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterRoom {
    /// Slots of ports.
    ports: usize,
    /// Policies have the slots that they had.
    arrangement: u32,
    policies: usize,
    outbound: usize,
    inbound: usize,
}

impl CounterRoom {
    /// The room for a snapshot: for ports and SAs, a power of two.
    pub fn of(snapshot: &Snapshot) -> CounterRoom {
        let room = |slots: usize, least| slots.next_power_of_two().max(least);
        let [outbound, inbound] = snapshot.sad().room().map(|slots| room(slots, LEAST_SA_SLOTS));
        CounterRoom {
            ports: room(snapshot.port_slots(), LEAST_PORT_SLOTS),
            arrangement: snapshot.policy_slots(),
            policies: snapshot.spd().capacity(),
            outbound,
            inbound,
        }
    }
}

/// Slots of ports that are counted at least.
const LEAST_PORT_SLOTS: usize = 16;
/// Slots of SAs of one direction that are counted at least.
const LEAST_SA_SLOTS: usize = 256;

/// All counters of one worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters {
    /// One entry per slot of a port, then one for frames that belong to no port (undeclared VLAN).
    pub ledgers: Vec<Ledger>,
    /// Packets that left by each port, one entry per slot; bytes with link headers.
    pub transmitted: Vec<Volume>,
    /// TCP and UDP checksums of what came by each port, one entry per slot.
    pub l4_checksums: Vec<L4ChecksumCounts>,
    /// Drops by reason; [`DropReason`] as a number counts into it.
    pub drops: [u64; DropReason::COUNT],
    /// One entry per policy slot, outbound.
    pub policy_outbound: Vec<Volume>,
    /// One entry per policy slot, inbound.
    pub policy_inbound: Vec<Volume>,
    /// One entry per slot of an SA that seals: inner packets sealed.
    pub sealed: Vec<Volume>,
    /// One entry per slot of an SA that opens: inner packets opened.
    pub opened: Vec<Volume>,
    /// Times the classifier searched.
    pub full_lookups: u64,
    /// ICMP messages not made because of the rate limit.
    pub icmp_limited: u64,
    /// ICMP messages not made because no frame was free, or none so large.
    pub icmp_no_frame: u64,
    /// ICMP errors from outside that lowered a peer's path MTU.
    pub path_mtu_lowered: u64,
    /// ICMP errors from outside that tell of a path MTU and changed none: not believed, or nothing
    /// new.
    pub path_mtu_ignored: u64,
    /// Packets received here and put into another worker's ring; that worker's ledger counts them.
    pub handed_over: u64,
    /// Packets taken from other workers' rings; this worker's ledger counts them.
    pub taken_over: u64,
    /// NAT keepalives made.
    pub keepalives: u64,
    /// Packets that were judged again.
    pub audit: AuditCounts,
    /// Packets that a card's tag decided.
    pub tagged: u64,
    /// Messages about direct paths.
    pub direct: DirectCounts,
    /// Packets that left, or were dropped, by the fast path.
    pub fast_path: u64,
    /// Counters of the flow cache.
    pub cache: CacheCounters,
}

/// Counts of messages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DirectCounts {
    /// Messages that tell a path.
    pub told: u64,
    /// Messages that end one.
    pub ended: u64,
    /// Flows that were not told, because the table or the queue was full.
    pub refused: u64,
}

impl DirectCounts {
    /// Adds other counts.
    pub fn add(&mut self, other: &DirectCounts) {
        self.told += other.told;
        self.ended += other.ended;
        self.refused += other.refused;
    }
}

impl Counters {
    /// Zeroed counters for a snapshot.
    pub fn new(snapshot: &Snapshot) -> Counters {
        let CounterRoom { ports, policies, outbound, inbound, .. } = CounterRoom::of(snapshot);
        Counters {
            ledgers: vec![Ledger::default(); ports + 1],
            transmitted: vec![Volume::default(); ports],
            l4_checksums: vec![L4ChecksumCounts::default(); ports],
            policy_outbound: vec![Volume::default(); policies],
            policy_inbound: vec![Volume::default(); policies],
            sealed: vec![Volume::default(); outbound],
            opened: vec![Volume::default(); inbound],
            ..Counters::without_lists()
        }
    }

    /// Zeroed counters whose lists are empty, with room for ports and SAs.
    pub(crate) fn empty(room: CounterRoom) -> Counters {
        let CounterRoom { ports, outbound, inbound, .. } = room;
        Counters {
            ledgers: Vec::with_capacity(ports + 1),
            transmitted: Vec::with_capacity(ports),
            l4_checksums: Vec::with_capacity(ports),
            sealed: Vec::with_capacity(outbound),
            opened: Vec::with_capacity(inbound),
            ..Counters::without_lists()
        }
    }

    /// Zeroed counters of nothing.
    fn without_lists() -> Counters {
        Counters {
            ledgers: Vec::new(),
            transmitted: Vec::new(),
            l4_checksums: Vec::new(),
            drops: [0; DropReason::COUNT],
            policy_outbound: Vec::new(),
            policy_inbound: Vec::new(),
            sealed: Vec::new(),
            opened: Vec::new(),
            full_lookups: 0,
            icmp_limited: 0,
            icmp_no_frame: 0,
            path_mtu_lowered: 0,
            path_mtu_ignored: 0,
            handed_over: 0,
            taken_over: 0,
            keepalives: 0,
            audit: AuditCounts::default(),
            tagged: 0,
            direct: DirectCounts::default(),
            fast_path: 0,
            cache: CacheCounters::default(),
        }
    }

    /// The ledger of a port; `None`: of frames that belong to no port.
    #[inline]
    pub fn ledger(&mut self, port: Option<PortId>) -> &mut Ledger {
        let place = port.map_or(self.ledgers.len() - 1, |port| usize::from(port.0));
        &mut self.ledgers[place]
    }

    /// Returns the counts of a port.
    pub fn port(&self, port: PortId) -> PortCounts {
        let place = usize::from(port.0);
        PortCounts {
            ledger: self.ledgers[place],
            transmitted: self.transmitted[place],
            l4_checksums: self.l4_checksums[place],
        }
    }

    /// Takes out the counts of a port that is no longer in its slot.
    pub(crate) fn take_port(&mut self, port: PortId) -> PortCounts {
        let (counts, place) = (self.port(port), usize::from(port.0));
        self.ledgers[place] = Ledger::default();
        self.transmitted[place] = Volume::default();
        self.l4_checksums[place] = L4ChecksumCounts::default();
        counts
    }

    /// Returns the ledger of frames that belong to no port.
    pub fn without_port(&self) -> &Ledger {
        &self.ledgers[self.ledgers.len() - 1]
    }

    /// Counts on in zeroed counters of other room. Returns what was counted so far, without what
    /// waits: that is as if it had come just now.
    pub(crate) fn exchange(&mut self, zeroed: Counters) -> Counters {
        let mut before = std::mem::replace(self, zeroed);
        for (now, before) in self.ledgers.iter_mut().zip(&mut before.ledgers) {
            now.held = std::mem::take(&mut before.held);
            now.received = now.held.min(before.received);
            now.made = now.held - now.received;
            before.received -= now.received;
            before.made -= now.made;
        }
        before
    }

    /// Sum of all ledgers.
    pub fn total(&self) -> Ledger {
        let mut total = Ledger::default();
        self.ledgers.iter().for_each(|ledger| total.add(ledger));
        total
    }

    /// Drops for one reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    #[inline]
    pub(crate) fn drop(&mut self, ingress: Option<PortId>, reason: DropReason) {
        self.drops[reason as usize] += 1;
        self.ledger(ingress).dropped += 1;
    }

    #[inline]
    pub(crate) fn policy(&mut self, direction: Direction, policy: PolicyIndex, bytes: usize) {
        let list = match direction {
            Direction::Outbound => &mut self.policy_outbound,
            Direction::Inbound => &mut self.policy_inbound,
        };
        list[policy.0 as usize].add(bytes);
    }

    /// Counts packets that one rule decided.
    #[inline]
    pub(crate) fn policy_run(
        &mut self,
        direction: Direction,
        policy: PolicyIndex,
        packets: u64,
        bytes: u64,
    ) {
        let list = match direction {
            Direction::Outbound => &mut self.policy_outbound,
            Direction::Inbound => &mut self.policy_inbound,
        };
        let volume = &mut list[policy.0 as usize];
        volume.packets += packets;
        volume.bytes += bytes;
    }

    #[inline]
    pub(crate) fn sealed(&mut self, sa: SaId, packets: u64, bytes: u64) {
        let volume = &mut self.sealed[sa.0 as usize];
        volume.packets += packets;
        volume.bytes += bytes;
    }

    #[inline]
    pub(crate) fn opened(&mut self, sa: SaId, bytes: usize) {
        self.opened[sa.0 as usize].add(bytes);
    }
}

/// Checksums of one port's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct L4ChecksumCounts {
    /// Unfinished ones that were completed.
    pub completed: u64,
    /// Packets whose checksum was checked: a sample.
    pub checked: u64,
    /// Packets of the sample whose checksum was wrong.
    pub bad: u64,
}

impl L4ChecksumCounts {
    /// Adds other counts, line by line.
    pub fn add(&mut self, other: &L4ChecksumCounts) {
        self.completed += other.completed;
        self.checked += other.checked;
        self.bad += other.bad;
    }
}
