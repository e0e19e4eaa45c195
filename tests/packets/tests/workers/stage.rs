//! The gateway of the laboratory with two workers, and berlin with two SAs each way.

use std::sync::Arc;

use dataplane::{Counters, Handovers, Ledger, NetdevId, PortId, SetIndex, Snapshot, Worker};
use io::{MemoryFrames, MemoryPort};
use ipsec::{
    InboundSa, OutboundSa, ReplayWindow, SaId, SequenceCounter, SequenceNumbers, Spi, Tunnel,
};
use packets::lab::{self, BERLIN, HOST_MAC, Hub, LAN, ROUTER_MAC, WAN};
use packets::peer::{Agreement, Peer};
use wire::build::PacketBuilder;
use wire::link::{ETHERNET_BYTES, ethertype};
use wire::{BATCH, Family};

pub(crate) type Gateway = Worker<MemoryFrames, MemoryPort>;

pub(crate) const WORKERS: u32 = 2;
const FRAMES: u32 = 4096;
const RING: usize = 1 << 20;

/// The second pair of SAs with berlin: inbound SA 3 and outbound SA 4, the first being 0 and 0.
fn second() -> Agreement {
    let [berlin, ..] = lab::agreements();
    // The index makes the keys.
    Agreement { index: SetIndex(9), spi_to_hub: 0x1009, spi_from_hub: 0x2009, ..berlin }
}

/// The gateway with both pairs; SAs of a hub that runs already go on.
pub(crate) fn hub() -> Hub {
    let mut hub = Hub::default();
    hub.parts.workers = WORKERS;
    let a = second();
    let tunnel = Tunnel { local: a.hub, remote: a.address };
    let spi = |number| Spi::new(number).unwrap();
    let window = Arc::new(ReplayWindow::new(lab::REPLAY_WINDOW, a.numbers).unwrap());
    let key = a.material_to_hub();
    let inbound = InboundSa::new(SaId(3), spi(a.spi_to_hub), a.set, &key, tunnel, window);
    let counter = Arc::new(SequenceCounter::new(SequenceNumbers::Short));
    let key = a.material_from_hub();
    let outbound = OutboundSa::new(SaId(4), spi(a.spi_from_hub), a.set, &key, tunnel, counter);
    hub.parts.inbound.push(Arc::new(inbound.unwrap()));
    hub.parts.outbound.push(Arc::new(outbound.unwrap()));
    hub.parts.sets[BERLIN.0 as usize].outbound = vec![SaId(0), SaId(4)];
    hub
}

/// Two workers and the far ends of berlin's two pairs of SAs.
pub(crate) struct Stage {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) workers: Vec<Gateway>,
    pub(crate) peers: [Peer; 2],
    pub(crate) now_ns: u64,
}

impl Default for Stage {
    fn default() -> Stage {
        Stage::of(hub())
    }
}

impl Stage {
    pub(crate) fn of(hub: Hub) -> Stage {
        Stage::with_snapshot(hub.snapshot())
    }

    pub(crate) fn with_snapshot(snapshot: Snapshot) -> Stage {
        let [berlin, ..] = lab::agreements();
        let worker = |handovers: Handovers| {
            let frames = MemoryFrames::new(FRAMES);
            let netdevs = (0..3).map(|_| Some(MemoryPort::new(RING))).collect();
            let mut worker = Worker::new(&snapshot, frames, netdevs).beside(handovers).live();
            worker.walk_among(WORKERS);
            worker
        };
        let workers = Handovers::among(WORKERS, &[7; 32]).into_iter().map(worker).collect();
        let peers = [Peer::new(berlin), Peer::new(second())];
        Stage { snapshot: Arc::new(snapshot), workers, peers, now_ns: 1_000_000_000 }
    }

    fn netdev(&self, port: PortId) -> NetdevId {
        self.snapshot.port(port).netdev
    }

    /// A packet from behind berlin, sealed with its SA `pair`, lies at a worker's queue.
    pub(crate) fn arrive(&mut self, worker: usize, pair: usize, number: u32) {
        let packet = self.peers[pair].seal(&from_berlin(number));
        self.arrive_sealed(worker, &packet);
    }

    pub(crate) fn arrive_sealed(&mut self, worker: usize, packet: &[u8]) {
        self.arrive_tagged(worker, None, packet);
    }

    /// A sealed packet with this VLAN tag lies at a worker's queue; tag 0 is of no VLAN.
    pub(crate) fn arrive_tagged(&mut self, worker: usize, tag: Option<u16>, packet: &[u8]) {
        let netdev = self.netdev(WAN);
        let frame = lab::frame(lab::WAN_MAC, ROUTER_MAC, tag, ethertype::IPV4, packet);
        self.workers[worker].netdev_mut(netdev).unwrap().push(frame);
    }

    /// A packet for berlin's network lies at a worker's queue.
    pub(crate) fn arrive_in_clear(&mut self, worker: usize, number: u32) {
        self.arrive_inside(worker, &to_berlin(number));
    }

    /// An IP packet from our network lies at a worker's queue.
    pub(crate) fn arrive_inside(&mut self, worker: usize, packet: &[u8]) {
        let netdev = self.netdev(LAN);
        let ethertype = if packet[0] >> 4 == 6 { ethertype::IPV6 } else { ethertype::IPV4 };
        let frame = lab::frame(lab::LAN_MAC, HOST_MAC, None, ethertype, packet);
        self.workers[worker].netdev_mut(netdev).unwrap().push(frame);
    }

    /// A worker's turn over its netdevs.
    pub(crate) fn turn(&mut self, worker: usize) -> usize {
        let Stage { snapshot, workers, now_ns, .. } = self;
        let turn = |netdev| workers[worker].turn(snapshot, *now_ns, NetdevId(netdev), BATCH);
        (0..3).map(turn).sum()
    }

    /// A worker's turn over the rings.
    pub(crate) fn take_over(&mut self, worker: usize) -> usize {
        self.workers[worker].take_over(&self.snapshot, self.now_ns)
    }

    /// Turns until nothing moves.
    pub(crate) fn settle(&mut self) {
        while (0..WORKERS as usize).map(|w| self.turn(w) + self.take_over(w)).sum::<usize>() > 0 {}
    }

    /// Takes what a worker sent by a port: IP packets.
    pub(crate) fn sent(&mut self, worker: usize, port: PortId) -> Vec<Vec<u8>> {
        let netdev = self.netdev(port);
        sent(&mut self.workers[worker], netdev)
    }

    /// Returns a worker's counters; its ledgers balance at any moment, and its frames are all back.
    pub(crate) fn counters(&mut self, worker: usize) -> Counters {
        balanced(&mut self.workers[worker])
    }

    /// The ledger over ports and workers.
    pub(crate) fn ledger(&mut self) -> Ledger {
        let mut total = Ledger::default();
        (0..WORKERS as usize).for_each(|worker| total.add(&self.counters(worker).total()));
        total
    }

    /// Drops over workers, all reasons.
    pub(crate) fn drops(&mut self) -> u64 {
        (0..WORKERS as usize).map(|w| self.counters(w).drops.iter().sum::<u64>()).sum()
    }
}

/// Takes what a worker sent by a netdev: IP packets.
pub(crate) fn sent(worker: &mut Gateway, netdev: NetdevId) -> Vec<Vec<u8>> {
    let frames = worker.netdev_mut(netdev).unwrap().take_transmitted();
    frames.into_iter().map(|frame| frame[ETHERNET_BYTES..].to_vec()).collect()
}

/// Returns a worker's counters, checked: every ledger balances and every frame is accounted for.
pub(crate) fn balanced(worker: &mut Gateway) -> Counters {
    let counters = worker.counters().clone();
    for (port, ledger) in counters.ledgers.iter().enumerate() {
        assert_eq!(ledger.imbalance(), 0, "port {port}: {ledger:?}");
    }
    assert_eq!(counters.drops.iter().sum::<u64>(), counters.total().dropped);
    let waiting = worker.waiting();
    let (frames, _) = worker.parts_mut(NetdevId(0));
    assert_eq!(frames.conservation().held(), waiting, "frames that nobody gave back");
    counters
}

fn numbered(from: u32, to: u32, number: u32) -> Vec<u8> {
    let (from, to) = (lab::host(Family::V4, from), lab::host(Family::V4, to));
    PacketBuilder::new(from, to).udp(1000, 2000).payload(&number.to_be_bytes()).ip()
}

/// A packet from behind berlin to us that bears a number.
pub(crate) fn from_berlin(number: u32) -> Vec<u8> {
    numbered(2, 1, number)
}

/// A packet of ours to berlin's network that bears a number.
pub(crate) fn to_berlin(number: u32) -> Vec<u8> {
    numbered(1, 2, number)
}

/// The number that a packet bears.
pub(crate) fn number_of(packet: &[u8]) -> u32 {
    u32::from_be_bytes(*packet.last_chunk().unwrap())
}
