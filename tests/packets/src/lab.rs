//! The laboratory: a hub gateway with its routes, neighbours, policies and SAs, made in code.
//!
//! ```text
//!  10.1.0.0/16 ─── lan  ┐                    ┌ 10.2.0.0/16 behind berlin 198.51.100.7
//!                  dev 0│  hub ── wan  dev 1 ┤ 10.3.0.0/16 behind carla  203.0.113.9
//!  10.12.0.0/16 ── lan2 ┘  │  192.0.2.1      └ 10.4.0.0/16 behind dora   2001:db8:dd::4 (ESN)
//!          VLAN 12, MTU 1400 │
//!                        host  dev 2 (IP packets)
//! ```
//! The same with IPv6: 2001:db8:1::/48, 2001:db8:12::/48, 2001:db8:2::/48 and so on.

mod cards;

use std::net::IpAddr;
use std::sync::Arc;

pub use cards::{CARD, Wire, deciphered_mark, opened_mark, tags};
use dataplane::{
    AcquireRequest, AddressUpdate, CacheUse, CapturedPacket, CounterRoom, Counters, FastPathUse,
    FlowCache, HostService, L4Checksum, Medium, Neighbour, NetdevId, NextHop, NextHopId, PathMtu,
    PortId, PortInfo, Prefix, ResolveRequest, RouteEntry, RouteTarget, SaSet, SetIndex, Side,
    Snapshot, SnapshotParts, Sources, TapReader, TapSettings, VacatedSlots, Verdict, Worker, tap,
};
use io::{MemoryFrames, MemoryPort};
use ipsec::{
    InboundSa, Mode, OutboundSa, ReplayWindow, SaId, SequenceCounter, SequenceNumbers, Spi, Suite,
    Tunnel,
};
use policy::{
    Action, Direction, Policy, PolicyId, PortRange, SaSetId, Selector, Spd, UpperSelector,
};
use wire::link::{Link, Tag, ethertype};
use wire::{Address, BATCH, CardHeader, Family, Mark};

use crate::peer::{Agreement, Peer};

/// Protected, untagged on netdev 0.
pub const LAN: PortId = PortId(0);
/// Protected, VLAN [`LAN2_VLAN`] on netdev 0.
pub const LAN2: PortId = PortId(1);
/// Unprotected, netdev 1.
pub const WAN: PortId = PortId(2);
/// Linux on the gateway, netdev 2.
pub const HOST: PortId = PortId(3);
/// VLAN id of [`LAN2`].
pub const LAN2_VLAN: u16 = 12;
/// MTU of [`LAN2`]; the others have 1500.
pub const LAN2_MTU: u32 = 1400;
/// Link address of the gateway on netdev 0, both ports.
pub const LAN_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
/// Link address of the gateway on the unprotected side.
pub const WAN_MAC: [u8; 6] = [2, 0, 0, 0, 2, 1];
/// Link address of every host on the protected links.
pub const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 1, 5];
/// Link address of the router on the unprotected link.
pub const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 2, 0xfe];

/// The set of berlin: IPv4 outside, AES-128-GCM.
pub const BERLIN: SetIndex = SetIndex(0);
/// The set of carla: IPv4 outside, AES-256-GCM.
pub const CARLA: SetIndex = SetIndex(1);
/// The set of dora: IPv6 outside, ESN.
pub const DORA: SetIndex = SetIndex(2);
/// A set that has no SA to send with; its network is 10.5.0.0/16.
pub const WITHOUT_SA: SetIndex = SetIndex(3);
/// A set to whose peer there is no route; its network is 10.7.0.0/16.
pub const WITHOUT_ROUTE: SetIndex = SetIndex(4);

/// Bytes of a replay window in the laboratory, in packets.
pub const REPLAY_WINDOW: u32 = 64;

const DEVICES: usize = 3;

/// The three spokes.
pub fn agreements() -> [Agreement; 3] {
    let agreement = |index: u32, name, hub: &str, peer: &str, suite, numbers| Agreement {
        name,
        set: SaSetId(100 + index),
        index: SetIndex(index),
        hub: ip(hub),
        address: ip(peer),
        suite,
        numbers,
        mode: Mode::Tunnel,
        udp: None,
        spi_to_hub: 0x1000 + index * 0x111,
        spi_from_hub: 0x2000 + index * 0x111,
    };
    let (short, extended) = (SequenceNumbers::Short, SequenceNumbers::Extended);
    [
        agreement(0, "berlin", "192.0.2.1", "198.51.100.7", Suite::Aes128Gcm, short),
        agreement(1, "carla", "192.0.2.1", "203.0.113.9", Suite::Aes256Gcm, short),
        agreement(2, "dora", "2001:db8:ff::1", "2001:db8:dd::4", Suite::Aes128Gcm, extended),
    ]
}

/// The gateway before it is published: change what a test wants otherwise.
pub struct Hub {
    /// Parts that the snapshot will be made of; `spd` is made of `policies`.
    pub parts: SnapshotParts,
    /// The policies, in the order they were added.
    pub policies: Vec<Policy>,
    /// A database that was made by changes, in their stead.
    pub spd: Option<Spd>,
    /// The peers' side of the SAs: see [`Hub::agree`].
    pub agreements: [Agreement; 3],
    /// Frames of the worker.
    pub frames: u32,
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// Packets that a transmit ring takes until the turn is over.
    pub ring: usize,
}

impl Default for Hub {
    fn default() -> Hub {
        Hub {
            parts: parts(),
            policies: policies(),
            spd: None,
            agreements: agreements(),
            frames: 256,
            frame_bytes: io::memory::FRAME_BYTES,
            ring: 1024,
        }
    }
}

impl Hub {
    /// Takes the SAs of a snapshot that is in use, as every change of configuration keeps them:
    /// counters and replay windows go on.
    pub fn keeping_sas_of(mut self, snapshot: &Snapshot) -> Hub {
        self.parts.outbound = snapshot.outbound().cloned().collect();
        self.parts.inbound = snapshot.inbound().cloned().collect();
        self
    }

    /// Agrees on something else with a peer: its SAs are made anew, with counters and windows that
    /// begin, for the gateway and for the peer of the laboratory.
    ///
    /// # Panics
    /// If what is agreed on makes no SA: the test is wrong.
    pub fn agree(&mut self, set: SetIndex, change: impl FnOnce(&mut Agreement)) {
        let place = set.0 as usize;
        let agreement = &mut self.agreements[place];
        change(agreement);
        let (outbound, inbound) = sas(agreement);
        (self.parts.outbound[place], self.parts.inbound[place]) = (outbound, inbound);
        self.parts.sets[place].tunnel = agreement.encapsulation().tunnel;
    }

    /// The snapshot alone, for whoever drives the walk himself.
    ///
    /// # Panics
    /// If the parts do not fit together: the test is wrong.
    pub fn snapshot(self) -> Snapshot {
        let made = || Spd::new(self.policies).expect("few policies");
        let spd = self.spd.unwrap_or_else(made).into();
        Snapshot::new(SnapshotParts { spd, ..self.parts }).expect("parts that fit together")
    }

    /// The next snapshot after `earlier`.
    ///
    /// # Panics
    /// As [`Hub::snapshot`].
    pub fn snapshot_after(self, earlier: &Snapshot) -> Snapshot {
        let sources = self.snapshot().sources().clone();
        Snapshot::after(sources, Some(earlier)).expect("parts that fit together")
    }

    /// The laboratory around it.
    ///
    /// # Panics
    /// As [`Hub::snapshot`].
    pub fn laboratory(self) -> Laboratory {
        let Hub { frames, frame_bytes, ring, agreements, .. } = self;
        let snapshot = self.snapshot();
        let ports = (0..DEVICES).map(|_| Some(MemoryPort::new(ring))).collect();
        let frames = MemoryFrames::with_frame_bytes(frames, frame_bytes);
        let worker = Worker::new(&snapshot, frames, ports);
        let peers = agreements.map(Peer::new);
        Laboratory {
            snapshot,
            worker,
            peers,
            wire: None,
            now_ns: 1_000_000_000,
            capture: None,
            dropped_before: 0,
        }
    }
}

/// A packet that left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// The port it left by.
    pub port: PortId,
    /// Link address it is for; `None` on an IP medium, such as the host port.
    pub to: Option<[u8; 6]>,
    /// The IP packet, as long as the frame goes.
    pub packet: Vec<u8>,
    /// Tag of the SA by which a card is to seal it; `None`: it leaves as it is.
    pub to_seal: Option<u64>,
}

/// The outcome of sending packets in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Of each batch first one per packet received, then one per packet made.
    pub verdicts: Vec<Verdict>,
    /// The packets that left, netdev by netdev, in its order.
    pub sent: Vec<Sent>,
}

/// A running gateway, the peers, and a clock that stands still unless it is moved.
pub struct Laboratory {
    /// The snapshot that the gateway looks things up in.
    pub snapshot: Snapshot,
    /// Time, nanoseconds.
    pub now_ns: u64,
    worker: Worker<MemoryFrames, MemoryPort>,
    peers: [Peer; 3],
    wire: Option<Box<dyn Wire>>,
    /// Packets that a capture took.
    capture: Option<TapReader>,
    /// Drops on the ledgers of ports that are gone.
    dropped_before: u64,
}

impl Default for Laboratory {
    fn default() -> Laboratory {
        Hub::default().laboratory()
    }
}

impl Laboratory {
    /// The far end of a tunnel: [`BERLIN`], [`CARLA`] or [`DORA`].
    ///
    /// # Panics
    /// For another set.
    pub fn peer(&mut self, set: SetIndex) -> &mut Peer {
        &mut self.peers[set.0 as usize]
    }

    /// Puts the gateway among live ports: packets wait for neighbours.
    pub fn live(mut self) -> Laboratory {
        self.worker = self.worker.live();
        self
    }

    /// Puts a card between [`WAN`] and its wire.
    pub fn behind(mut self, card: impl Wire + 'static) -> Laboratory {
        self.wire = Some(Box::new(card));
        self
    }

    /// Adds a flow cache of so many entries, for every domain.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn remembering(mut self, entries: usize) -> Laboratory {
        let cache = FlowCache::new(entries, &[42; 32], CacheUse::Always).expect("memory");
        self.worker.take_cache(Some(cache));
        self
    }

    /// Sets the use of the fast path.
    pub fn with_fast_path(mut self, use_: FastPathUse) -> Laboratory {
        self.worker.use_fast_path(use_);
        self
    }

    /// Adds a capture without a rate.
    pub fn tapped(self, settings: &TapSettings) -> Laboratory {
        self.tapped_at_rate(settings, u32::MAX.into())
    }

    /// Adds a capture that takes so many packets at once.
    ///
    /// # Panics
    /// Never: there is one worker.
    pub fn tapped_at_rate(mut self, settings: &TapSettings, burst: u64) -> Laboratory {
        let (mut taps, reader) = tap::taps(settings, 1);
        reader.allow(burst, burst);
        self.worker.add_tap(taps.pop().expect("one worker"));
        self.capture = Some(reader);
        self
    }

    /// Packets captured since this was last asked.
    pub fn captured(&mut self) -> Vec<CapturedPacket> {
        let reader = self.capture.as_mut();
        reader.map(|reader| std::iter::from_fn(|| reader.take(0)).collect()).unwrap_or_default()
    }

    /// Packets that the capture left out.
    pub fn left_out(&self) -> u64 {
        self.capture.as_ref().map_or(0, |reader| reader.left_out().total())
    }

    /// The flow cache.
    ///
    /// # Panics
    /// If there is none.
    pub fn cache(&self) -> &FlowCache {
        self.worker.cache().expect("a laboratory that remembers")
    }

    /// Packets that wait for a neighbour.
    pub fn waiting(&self) -> usize {
        self.worker.waiting()
    }

    /// Neighbours that the worker wants to be asked for.
    pub fn resolve_requests(&mut self) -> Vec<ResolveRequest> {
        self.worker.resolve_requests().collect()
    }

    /// Requests for SAs that the worker has made.
    pub fn acquire_requests(&mut self) -> Vec<AcquireRequest> {
        self.worker.acquire_requests().collect()
    }

    /// Has the worker go over to the snapshot: lets what waits go, or go on waiting; returns what
    /// left.
    ///
    /// # Panics
    /// As [`Laboratory::send_frames`].
    pub fn release(&mut self) -> Vec<Sent> {
        self.worker.adopt(&self.snapshot, self.now_ns);
        self.collect_all()
    }

    /// Has the worker do what is due now; returns what left.
    ///
    /// # Panics
    /// As [`Laboratory::send_frames`].
    pub fn tick(&mut self) -> Vec<Sent> {
        self.worker.tick(&self.snapshot, self.now_ns);
        self.collect_all()
    }

    fn collect_all(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        for netdev in 0..self.worker.netdevs().len() {
            self.collect(NetdevId(netdev as u16), &mut sent);
        }
        self.balance();
        sent
    }

    /// Changes what the snapshot is made of, ports too, and has the worker go over to the next one.
    /// Returns what ports and SAs have counted that it has no more.
    ///
    /// # Panics
    /// If the parts do not fit together, or counters have no room: the test is wrong.
    pub fn change(&mut self, change: impl FnOnce(&mut Sources)) -> VacatedSlots {
        let mut sources = self.snapshot.sources().clone();
        change(&mut sources);
        let next = Snapshot::after(sources, Some(&self.snapshot)).expect("parts that fit together");
        assert_eq!(CounterRoom::of(&next), CounterRoom::of(&self.snapshot), "room for counters");
        let before = std::mem::replace(&mut self.snapshot, next);
        drop(self.worker.leave_ports(&self.snapshot));
        let gone = self.worker.take_counts(VacatedSlots::between(&before, &self.snapshot));
        let dropped = gone.ports.iter().map(|(_, counts)| counts.ledger.dropped);
        self.dropped_before += dropped.sum::<u64>();
        for slot in (0..self.snapshot.netdev_slots() as u16).map(NetdevId) {
            let there = self.snapshot.has_netdev(slot);
            if there && self.worker.netdev_mut(slot).is_none() {
                self.worker.put_netdev(slot, Some(MemoryPort::new(1024)));
            }
        }
        self.balance();
        gone
    }

    /// Takes a port out of what a snapshot is made of, with the routes and neighbours that it leads
    /// to.
    pub fn without_port(sources: &mut Sources, port: PortId) {
        sources.ports.set(usize::from(port.0), None);
        let stays = |target: &RouteTarget<NextHop>| match target {
            RouteTarget::Via(hop) => hop.port != port,
            _ => true,
        };
        let routes = std::mem::take(&mut sources.routes).into_iter();
        sources.routes = routes.filter(|(_, target)| stays(target)).collect();
        let neighbours = std::mem::take(&mut sources.neighbours).into_iter();
        sources.neighbours = neighbours.filter(|((on, _), _)| *on != port).collect();
    }

    /// Has the worker count on in counters of its own for the snapshot, as if others had more room.
    /// Returns what was counted so far.
    pub fn exchange_counters(&mut self) -> Counters {
        self.dropped_before = 0;
        self.worker.exchange_counters(Counters::new(&self.snapshot))
    }

    /// Publishes another snapshot, and takes out what SAs have counted that it has no more.
    pub fn publish_without(&mut self, hub: Hub) -> VacatedSlots {
        let before = std::mem::replace(&mut self.snapshot, hub.snapshot());
        self.worker.take_counts(VacatedSlots::between(&before, &self.snapshot))
    }

    /// Peers that have shown themselves at another place since this was last asked.
    pub fn moved(&mut self) -> Vec<AddressUpdate> {
        self.worker.moved().collect()
    }

    /// Returns the worker's counters.
    pub fn counters(&self) -> &Counters {
        self.worker.counters()
    }

    /// Publishes another snapshot, of the same ports and of as many policies and SAs.
    pub fn publish(&mut self, hub: Hub) {
        self.snapshot = hub.snapshot();
    }

    /// The frame in which an IP packet arrives at the gateway by a port.
    pub fn frame(&self, port: PortId, packet: &[u8]) -> Vec<u8> {
        let info = self.snapshot.port(port);
        if info.medium == Medium::Ip {
            return packet.to_vec();
        }
        let source = if info.side == Side::Protected { HOST_MAC } else { ROUTER_MAC };
        let ethertype = match packet.first().map(|byte| byte >> 4) {
            Some(6) => ethertype::IPV6,
            _ => ethertype::IPV4,
        };
        frame(info.mac, source, info.vlan, ethertype, packet)
    }

    /// Lets one IP packet arrive by a port.
    pub fn send(&mut self, port: PortId, packet: &[u8]) -> Outcome {
        self.send_all(port, &[packet])
    }

    /// Lets IP packets arrive by a port, together: full batches, then the rest.
    pub fn send_all<B: AsRef<[u8]>>(&mut self, port: PortId, packets: &[B]) -> Outcome {
        let frames: Vec<Vec<u8>> =
            packets.iter().map(|packet| self.frame(port, packet.as_ref())).collect();
        self.send_frames(self.snapshot.port(port).netdev, &frames)
    }

    /// Lets frames arrive by a netdev, as they are.
    ///
    /// # Panics
    /// If afterwards the books do not balance: the ledger of every port, the frames, one verdict
    /// per packet, the drops by reason against the drops by port.
    pub fn send_frames<B: AsRef<[u8]>>(&mut self, netdev: NetdevId, frames: &[B]) -> Outcome {
        let mut came = |frame: &B| match &mut self.wire {
            Some(wire) if netdev == CARD => wire.came(frame.as_ref()),
            _ => Some((frame.as_ref().to_vec(), None)),
        };
        let frames: Vec<_> = frames.iter().filter_map(&mut came).collect();
        self.send_marked(netdev, &frames)
    }

    /// Lets frames arrive by a netdev, with what lower tiers claim of them.
    ///
    /// # Panics
    /// As [`Laboratory::send_frames`].
    pub fn send_marked<B: AsRef<[u8]>>(
        &mut self,
        netdev: NetdevId,
        frames: &[(B, Option<Mark>)],
    ) -> Outcome {
        let port = self.worker.netdev_mut(netdev).expect("a device of the laboratory");
        frames.iter().for_each(|(frame, mark)| port.push_marked(frame.as_ref(), *mark));
        let mut outcome = Outcome::default();
        loop {
            let received = self.worker.turn(&self.snapshot, self.now_ns, netdev, BATCH);
            if received == 0 {
                break;
            }
            let verdicts = self.worker.verdicts();
            assert!(verdicts.len() >= received, "one verdict per packet received");
            outcome.verdicts.extend(verdicts.iter().map(|verdict| verdict.expect("a verdict")));
            for netdev in 0..self.worker.netdevs().len() {
                self.collect(NetdevId(netdev as u16), &mut outcome.sent);
            }
            self.balance();
        }
        outcome
    }

    fn collect(&mut self, netdev: NetdevId, into: &mut Vec<Sent>) {
        let transmitted = match self.worker.netdev_mut(netdev) {
            Some(port) => port.take_transmitted(),
            None => return,
        };
        for frame in transmitted {
            into.extend(self.read(netdev, &frame));
        }
    }

    /// A frame that left, sealed by the card if one is there; `None`: the card dropped it.
    fn read(&mut self, netdev: NetdevId, frame: &[u8]) -> Option<Sent> {
        let header = frame.first_chunk().and_then(CardHeader::read);
        let (header, tag, behind) = match header {
            Some(header @ (CardHeader::Sa(tag) | CardHeader::Cipher(tag))) => {
                (header, tag, &frame[CardHeader::BYTES..])
            }
            Some(other) => panic!("{other:?} is no header for a card"),
            None => return Some(self.read_frame(netdev, frame)),
        };
        let in_clear = self.read_frame(netdev, behind);
        match &mut self.wire {
            Some(wire) if netdev == CARD => {
                wire.leaves(header, behind).map(|sealed| self.read_frame(netdev, &sealed))
            }
            _ => Some(Sent { to_seal: Some(tag), ..in_clear }),
        }
    }

    /// A frame that left: its link header is checked here, once for all tests.
    fn read_frame(&self, netdev: NetdevId, frame: &[u8]) -> Sent {
        let on_device = || self.snapshot.ports().filter(|(_, info)| info.netdev == netdev);
        let (port, info) = on_device().next().expect("a port's device");
        if info.medium == Medium::Ip {
            return Sent { port, to: None, packet: frame.to_vec(), to_seal: None };
        }
        let link = Link::parse(frame).expect("a link header");
        let vlan = match link.tag {
            Tag::Untagged => None,
            Tag::Vlan(id) => Some(id),
            Tag::Stacked => panic!("a stacked tag was sent"),
        };
        let port = on_device().find(|(_, info)| info.vlan == vlan);
        let (port, info) = port.expect("a declared VLAN");
        assert_eq!(link.source, info.mac, "from our link address");
        let packet = frame[link.length..].to_vec();
        let expected = if packet[0] >> 4 == 6 { ethertype::IPV6 } else { ethertype::IPV4 };
        assert_eq!(link.ethertype, expected);
        Sent { port, to: Some(link.destination), packet, to_seal: None }
    }

    /// DESIGN I7: between turns every ledger balances and every frame is free.
    fn balance(&mut self) {
        let counters = self.worker.counters().clone();
        for (port, ledger) in counters.ledgers.iter().enumerate() {
            assert_eq!(ledger.imbalance(), 0, "ledger of port {port}: {ledger:?}");
        }
        let dropped: u64 = counters.drops.iter().sum();
        let by_port = counters.total().dropped + self.dropped_before;
        assert_eq!(dropped, by_port, "drops by reason and by port");
        let waiting = self.worker.waiting();
        assert_eq!(counters.total().held, waiting as u64, "what waits is on the ledger");
        let (frames, _) = self.worker.parts_mut(NetdevId(0));
        assert_eq!(frames.conservation().held(), waiting, "frames that nobody gave back");
    }
}

/// An Ethernet frame around any bytes.
pub fn frame(
    destination: [u8; 6],
    source: [u8; 6],
    vlan: Option<u16>,
    ethertype: u16,
    packet: &[u8],
) -> Vec<u8> {
    let mut header = [0u8; 18];
    let (to, from) = (wire::LinkAddress::new(destination), wire::LinkAddress::new(source));
    let start =
        wire::link::write(&mut header, 18, to, from, vlan, ethertype).expect("18 bytes are enough");
    [&header[start..], packet].concat()
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address written in a test")
}

fn address(text: &str) -> Address {
    ip(text).into()
}

fn port(name: &str, netdev: u16, side: Side, mac: [u8; 6], addresses: &[&str]) -> PortInfo {
    PortInfo {
        name: name.into(),
        netdev: NetdevId(netdev),
        vlan: None,
        side,
        medium: Medium::Ethernet,
        mac,
        mtu: 1500,
        addresses: addresses.iter().map(|text| address(text)).collect(),
        allow_host: vec![],
        l4_checksum: L4Checksum::Pass,
    }
}

fn ports() -> Vec<PortInfo> {
    let udp = |port| HostService { protocol: 17, ports: Some(PortRange { lo: port, hi: port }) };
    let lan2 = port("lan2", 0, Side::Protected, LAN_MAC, &["10.12.0.1", "2001:db8:12::1"]);
    let wan = port("wan", 1, Side::Unprotected, WAN_MAC, &["192.0.2.1", "2001:db8:ff::1"]);
    let host = port("host", 2, Side::Protected, [0; 6], &[]);
    vec![
        port("lan", 0, Side::Protected, LAN_MAC, &["10.1.0.1", "2001:db8:1::1"]),
        PortInfo { vlan: Some(LAN2_VLAN), mtu: LAN2_MTU, ..lan2 },
        PortInfo { allow_host: vec![udp(500), udp(4500)], ..wan },
        PortInfo { medium: Medium::Ip, ..host },
    ]
}

/// A route, from text.
///
/// # Panics
/// If the text is no prefix.
pub fn route(prefix: &str, target: RouteTarget) -> RouteEntry {
    let (first, length) = prefix.split_once('/').expect("a prefix written in a test");
    let length = length.parse().expect("a prefix length written in a test");
    RouteEntry { prefix: Prefix { address: address(first), length }, target }
}

fn routes() -> Vec<RouteEntry> {
    let via = |hop| RouteTarget::Via(NextHopId(hop));
    let (local, broadcast) = (RouteTarget::Local, RouteTarget::Broadcast);
    let list = [
        ("9.0.0.0/8", via(0)),
        ("10.0.0.0/8", via(0)),
        ("198.0.0.0/8", via(0)),
        ("203.0.113.0/24", via(0)),
        ("2001:db8::/32", via(1)),
        // The links, and us on them.
        ("10.1.0.0/16", via(2)),
        ("2001:db8:1::/48", via(2)),
        ("10.12.0.0/16", via(3)),
        ("2001:db8:12::/48", via(3)),
        ("192.0.2.0/24", via(4)),
        ("2001:db8:ff::/48", via(4)),
        ("10.1.0.1/32", local),
        ("2001:db8:1::1/128", local),
        ("10.12.0.1/32", local),
        ("2001:db8:12::1/128", local),
        ("192.0.2.1/32", local),
        ("192.0.2.2/32", local),
        ("2001:db8:ff::1/128", local),
        ("10.1.255.255/32", broadcast),
        ("10.12.255.255/32", broadcast),
        ("192.0.2.255/32", broadcast),
        // What leads nowhere, and a router that does not answer.
        ("10.66.0.0/16", RouteTarget::Blackhole),
        ("2001:db8:66::/48", RouteTarget::Blackhole),
        ("10.86.0.0/16", via(5)),
    ];
    list.into_iter().map(|(prefix, target)| route(prefix, target)).collect()
}

fn next_hops() -> Vec<NextHop> {
    let hop = |port, gateway: Option<&str>| NextHop { port, gateway: gateway.map(address) };
    vec![
        hop(WAN, Some("192.0.2.254")),
        hop(WAN, Some("2001:db8:ff::fe")),
        hop(LAN, None),
        hop(LAN2, None),
        hop(WAN, None),
        hop(WAN, Some("192.0.2.253")),
    ]
}

fn neighbours() -> Vec<Neighbour> {
    let at = |port, text: &str, mac| Neighbour { port, address: address(text), mac };
    vec![
        at(WAN, "192.0.2.254", ROUTER_MAC),
        at(WAN, "2001:db8:ff::fe", ROUTER_MAC),
        at(LAN, "10.1.0.5", HOST_MAC),
        at(LAN, "2001:db8:1::5", HOST_MAC),
        at(LAN2, "10.12.0.5", HOST_MAC),
        at(LAN2, "2001:db8:12::5", HOST_MAC),
    ]
}

/// A policy between two networks, from text; `any` is every address of both families.
///
/// # Panics
/// If the text is no address, prefix, range or `any`.
pub fn policy(
    name: &str,
    priority: u32,
    action: Action,
    local: &[&str],
    remote: &[&str],
) -> Policy {
    let ranges = |texts: &[&str]| {
        let parse = |text: &&str| policy::selector::parse_addresses(text).expect("addresses");
        texts.iter().flat_map(parse).collect()
    };
    let (local, remote) = (ranges(local), ranges(remote));
    let selector = Selector { local, remote, protocol: None, upper: UpperSelector::Any };
    Policy {
        id: PolicyId(0),
        name: name.into(),
        action,
        priority,
        only: None,
        group: None,
        ingress: None,
        selector,
    }
}

/// Narrows a policy to one protocol and these remote ports.
///
/// # Panics
/// If the text is no port or range.
pub fn with_ports(policy: Policy, protocol: u8, remote: &[&str]) -> Policy {
    let remote = remote.iter().map(|text| text.parse().expect("ports")).collect();
    let upper = UpperSelector::Ports { local: vec![], remote };
    let selector = Selector { protocol: Some(protocol), upper, ..policy.selector };
    Policy { selector, ..policy }
}

/// Numbers policies in the order they were added.
pub fn numbered(policies: Vec<Policy>) -> Vec<Policy> {
    (1..).map(PolicyId).zip(policies).map(|(id, policy)| Policy { id, ..policy }).collect()
}

fn policies() -> Vec<Policy> {
    let ours = ["10.0.0.0/8", "2001:db8::/32"];
    let protect = |set: SetIndex| Action::Protect(set_id(set));
    let net = |set: SetIndex, name, n: u32| {
        let remote = [format!("10.{n}.0.0/16"), format!("2001:db8:{n}::/48")];
        policy(name, 100, protect(set), &ours, &[&remote[0], &remote[1]])
    };
    let (bypass, discard) = (Action::Bypass, Action::Discard);
    let nine = ["10.9.0.0/16", "2001:db8:9::/48"];
    let ten = ["10.10.0.0/16", "2001:db8:10::/48"];
    let echo = policy("berlin-echo", 200, protect(BERLIN), &ours, &ten);
    let echo = Policy {
        selector: Selector {
            upper: UpperSelector::Icmp(vec!["8/0".parse().expect("a message")]),
            ..echo.selector
        },
        ..echo
    };
    let outbound = policy("only-out", 100, bypass, &["any"], &["10.11.0.0/16"]);
    numbered(vec![
        net(BERLIN, "berlin-net", 2),
        net(CARLA, "carla-net", 3),
        net(DORA, "dora-net", 4),
        net(WITHOUT_SA, "without-sa", 5),
        net(WITHOUT_ROUTE, "without-route", 7),
        // 9: web through berlin, the rest in clear. 10: echo requests only.
        with_ports(
            policy("berlin-web", 200, protect(BERLIN), &ours, &nine),
            6,
            &["443", "8000-8999"],
        ),
        policy("nine-clear", 100, bypass, &["any"], &nine),
        echo,
        // 8: of two equal priorities the newer one decides (FC-41).
        policy("eight-old", 100, discard, &["any"], &["10.8.0.0/16", "2001:db8:8::/48"]),
        policy("eight-new", 100, bypass, &["any"], &["10.8.0.0/16", "2001:db8:8::/48"]),
        with_ports(
            policy("dns", 50, bypass, &["any"], &["9.9.9.9", "2001:db8:53::9"]),
            17,
            &["53"],
        ),
        policy("bench", 100, discard, &["any"], &["198.18.0.0/15", "2001:db8:198::/48"]),
        Policy { only: Some(Direction::Outbound), ..outbound },
        // Allowed to leave, by a router that does not answer.
        policy("clear-nowhere", 10, bypass, &["any"], &["10.86.0.0/16"]),
    ])
}

fn set_id(set: SetIndex) -> SaSetId {
    SaSetId(100 + set.0)
}

fn sets() -> Vec<SaSet> {
    let set = |index: SetIndex, peer: &str, ends: (&str, &str), outbound: Vec<SaId>| SaSet {
        id: set_id(index),
        peer: peer.into(),
        tunnel: Tunnel { local: ip(ends.0), remote: ip(ends.1) },
        outbound,
        acquires: false,
        mss_clamp: true,
        may_move: false,
        moves_by_ike: false,
        keepalive_s: None,
        path_mtu: Some(PathMtu::default()),
        outer: None,
    };
    let of = |a: &Agreement| SaSet {
        tunnel: Tunnel { local: a.hub, remote: a.address },
        ..set(a.index, a.name, ("192.0.2.1", "192.0.2.1"), vec![SaId(a.index.0)])
    };
    let mut sets: Vec<SaSet> = agreements().iter().map(of).collect();
    sets.push(set(WITHOUT_SA, "without-sa", ("192.0.2.1", "198.51.100.99"), vec![]));
    sets.push(set(WITHOUT_ROUTE, "without-route", ("192.0.2.1", "172.16.9.9"), vec![SaId(3)]));
    sets
}

fn parts() -> SnapshotParts {
    let sets = sets();
    let (mut outbound, inbound): (Vec<_>, Vec<_>) = agreements().iter().map(sas).unzip();
    let lost = &sets[WITHOUT_ROUTE.0 as usize];
    let key = crate::peer::material(Suite::Aes128Gcm, 99);
    let short = Arc::new(SequenceCounter::new(SequenceNumbers::Short));
    let sa = OutboundSa::new(SaId(3), spi(0x2003), lost.id, &key, lost.tunnel, short);
    outbound.push(Arc::new(sa.expect("ends of one family")));
    SnapshotParts {
        ports: ports(),
        host: Some(HOST),
        routes: routes(),
        next_hops: next_hops(),
        neighbours: neighbours(),
        sets,
        outbound,
        inbound,
        ..SnapshotParts::default()
    }
}

fn spi(number: u32) -> Spi {
    Spi::new(number).expect("not a reserved SPI")
}

/// The gateway's SAs of an agreement, with a counter and a window that begin.
fn sas(a: &Agreement) -> (Arc<OutboundSa>, Arc<InboundSa>) {
    let (id, carried) = (SaId(a.index.0), a.encapsulation());
    let counter = Arc::new(SequenceCounter::new(a.numbers));
    let (key, number) = (a.material_from_hub(), spi(a.spi_from_hub));
    let outbound = OutboundSa::new(id, number, a.set, &key, carried, counter);
    let window = Arc::new(ReplayWindow::new(REPLAY_WINDOW, a.numbers).expect("a good size"));
    let (key, number) = (a.material_to_hub(), spi(a.spi_to_hub));
    let inbound = InboundSa::new(id, number, a.set, &key, carried, window);
    (
        Arc::new(outbound.expect("ends of one family")),
        Arc::new(inbound.expect("ends of one family")),
    )
}

/// The hosts of a family in the laboratory: `host(Family::V4, 2)` is 10.2.0.5, behind berlin.
pub fn host(family: Family, network: u32) -> Address {
    match family {
        Family::V4 => Address::v4(10 << 24 | network << 16 | 5),
        Family::V6 => {
            // The number is written in decimal digits, as in 2001:db8:12::5.
            let group: u128 = u128::from_str_radix(&network.to_string(), 16).expect("digits");
            Address::v6(0x2001_0db8 << 96 | group << 80 | 5)
        }
    }
}

/// The gateway's own address in one of its networks: as [`host`], but number 1.
pub fn own(family: Family, network: u32) -> Address {
    let Address { family, value } = host(family, network);
    Address { family, value: value - 4 }
}
