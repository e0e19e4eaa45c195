//! A gateway and its peers as plain lists: what the oracle reads, and what a snapshot is made of.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use dataplane::connections::Connections;
use dataplane::{
    Medium, Neighbour, NetdevId, NextHop, PathMtu, PortId, PortInfo, RouteEntry, RouteGeneration,
    RouteTarget, SaSet, SetIndex, Snapshot, SnapshotParts,
};
use ipsec::{
    Encapsulation, InboundSa, KeyMaterial, OutboundSa, ReplayWindow, SaId, SequenceCounter,
    SequenceNumbers, Spi, Suite, Tunnel,
};
use policy::{Policy, SaSetId, Spd};
use wire::Address;

/// Everything that the verdict on a packet depends on.
#[derive(Clone, Debug)]
pub struct World {
    /// [`PortId`] counts into this list.
    pub ports: Vec<PortInfo>,
    /// The port that stands for Linux.
    pub host: PortId,
    /// The routing table.
    pub routes: Vec<RouteEntry>,
    /// Next hops of the routes.
    pub next_hops: Vec<NextHop>,
    /// The MAC addresses of the gateway's neighbours.
    pub neighbours: Vec<Neighbour>,
    /// The policies, in any order.
    pub policies: Vec<Policy>,
    /// Peer `i` has SA set [`set_id`]`(i)`, in place `i`.
    pub peers: Vec<Peer>,
    /// Bytes of the largest frame that is received whole.
    pub room: usize,
    /// Threads that walk packets.
    pub workers: u32,
}

/// A peer and the keys shared with it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Carriage of packets, from our address to the peer's and back.
    pub carriage: Encapsulation,
    /// Set if SYN segments are clamped.
    pub mss_clamp: bool,
    /// Set if its address and UDP port may change.
    pub may_move: bool,
    /// Bytes of the largest packet that the path to it carries, where a router has told of one.
    pub path_mtu: Option<u16>,
    /// Keys that we seal with, all in the same suite; none: nothing can be sent.
    pub outbound: Vec<Keys>,
    /// Keys that the peer seals with.
    pub inbound: Vec<Keys>,
}

/// One SA.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Security Parameters Index.
    pub spi: u32,
    /// Algorithm.
    pub suite: Suite,
    /// Key and salt.
    pub material: Vec<u8>,
    /// Width of the sequence numbers.
    pub numbers: SequenceNumbers,
    /// Size of the receiver's replay window.
    pub window: u32,
    /// Rest of the sender's numbers.
    pub supply: Supply,
}

/// Rest of the sequence numbers of an SA that seals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Supply {
    /// All of them.
    Plenty,
    /// None.
    UsedUp,
    /// All, but there is no durable record yet that they will be used.
    NotReserved,
}

/// The SA set of the peer in place `peer`; unlike the place, so that nobody mixes them up.
pub fn set_id(peer: usize) -> SaSetId {
    SaSetId(100 + peer as u32)
}

impl World {
    /// The port for a frame of this VLAN id on a netdev.
    pub fn port_of(&self, netdev: NetdevId, vlan: Option<u16>) -> Option<PortId> {
        let place = self.ports.iter().position(|p| p.netdev == netdev && p.vlan == vlan)?;
        Some(PortId(place as u16))
    }

    /// A port.
    pub fn port(&self, id: PortId) -> &PortInfo {
        &self.ports[usize::from(id.0)]
    }

    /// RFC 1812 §5.2.4.3: the route of the longest prefix that holds the address.
    pub fn route(&self, destination: Address) -> Option<RouteTarget> {
        longest_prefix(&self.routes, destination)
    }

    /// The link address of whoever has `address` on a port.
    pub fn link_address(&self, port: PortId, address: Address) -> Option<[u8; 6]> {
        let is_it = |n: &&Neighbour| n.port == port && n.address == address;
        self.neighbours.iter().find(is_it).map(|n| n.mac)
    }

    /// The place of the peer that a policy's SA set belongs to.
    ///
    /// # Panics
    /// If the set is nobody's.
    pub fn set_place(&self, set: SaSetId) -> SetIndex {
        let place = (0..self.peers.len()).find(|peer| set_id(*peer) == set);
        SetIndex(place.expect("a policy names a set that exists") as u32)
    }

    /// The snapshot that says the same, its SAs unused.
    ///
    /// # Panics
    /// If the lists contradict each other.
    pub fn snapshot(&self) -> Snapshot {
        let spd = Spd::new(self.policies.clone()).unwrap();
        self.snapshot_over(spd.into(), RouteGeneration(0))
    }

    /// Returns the snapshot with a database that was made of its policies, and the generation of
    /// its routes.
    ///
    /// # Panics
    /// As [`World::snapshot`].
    pub fn snapshot_over(&self, spd: Arc<Spd>, route_generation: RouteGeneration) -> Snapshot {
        self.snapshot_tracking(spd, route_generation, None)
    }

    /// Returns the snapshot as [`World::snapshot_over`] does, with a table of connections. `None`:
    /// there is no room for any.
    ///
    /// # Panics
    /// As [`World::snapshot`].
    pub fn snapshot_tracking(
        &self,
        spd: Arc<Spd>,
        route_generation: RouteGeneration,
        connections: Option<Arc<Connections>>,
    ) -> Snapshot {
        let (mut outbound, mut inbound, mut sets) = (vec![], vec![], vec![]);
        for (place, peer) in self.peers.iter().enumerate() {
            let set = set_id(place);
            let first = outbound.len() as u32;
            for keys in &peer.outbound {
                let counter = Arc::new(keys.counter());
                let (id, spi) = (SaId(outbound.len() as u32), Spi::new(keys.spi).unwrap());
                let sa = OutboundSa::new(id, spi, set, &keys.key(), peer.carriage, counter);
                outbound.push(Arc::new(sa.unwrap()));
            }
            for keys in &peer.inbound {
                let window = Arc::new(ReplayWindow::new(keys.window, keys.numbers).unwrap());
                let (id, spi) = (SaId(inbound.len() as u32), Spi::new(keys.spi).unwrap());
                let sa = InboundSa::new(id, spi, set, &keys.key(), peer.carriage, window);
                inbound.push(Arc::new(sa.unwrap()));
            }
            let path_mtu = PathMtu::default();
            if let Some(mtu) = peer.path_mtu {
                // It grows old from then on.
                path_mtu.lower(mtu, u64::MAX);
            }
            sets.push(SaSet {
                id: set,
                peer: format!("peer{place}"),
                tunnel: peer.carriage.tunnel,
                outbound: (first..outbound.len() as u32).map(SaId).collect(),
                acquires: false,
                mss_clamp: peer.mss_clamp,
                may_move: peer.may_move,
                moves_by_ike: false,
                keepalive_s: None,
                path_mtu: Some(path_mtu),
                outer: None,
            });
        }
        Snapshot::new(SnapshotParts {
            workers: self.workers,
            ports: self.ports.clone(),
            host: Some(self.host),
            routes: self.routes.clone(),
            next_hops: self.next_hops.clone(),
            neighbours: self.neighbours.clone(),
            spd,
            route_generation,
            connections,
            sets,
            outbound,
            inbound,
            ..SnapshotParts::default()
        })
        .unwrap()
    }

    /// Bytes of the largest packet that leaves by a port for a peer.
    pub fn mtu_to(&self, peer: &Peer, port: PortId) -> usize {
        let port = self.port(port).mtu;
        peer.path_mtu.map_or(port, |path| port.min(path.into())) as usize
    }

    /// Returns whether packets on a port begin with the IP header.
    pub fn is_ip_medium(&self, port: PortId) -> bool {
        self.port(port).medium == Medium::Ip
    }
}

impl Peer {
    /// Our address and the peer's.
    pub fn tunnel(&self) -> Tunnel {
        self.carriage.tunnel
    }
}

impl Keys {
    /// A counter that stands where [`Keys::supply`] says. Those that hand out nothing never move,
    /// so one word does for all of them.
    fn counter(&self) -> SequenceCounter {
        static UNUSED: AtomicU64 = AtomicU64::new(0);
        static LAST_SHORT: AtomicU64 = AtomicU64::new(u32::MAX as u64);
        static LAST_EXTENDED: AtomicU64 = AtomicU64::new(u64::MAX);
        match (self.supply, self.numbers) {
            (Supply::Plenty, numbers) => SequenceCounter::new(numbers),
            (Supply::NotReserved, numbers) => SequenceCounter::shared(&UNUSED, 0, numbers),
            (Supply::UsedUp, numbers @ SequenceNumbers::Short) => {
                SequenceCounter::shared(&LAST_SHORT, u64::MAX, numbers)
            }
            (Supply::UsedUp, numbers @ SequenceNumbers::Extended) => {
                SequenceCounter::shared(&LAST_EXTENDED, u64::MAX, numbers)
            }
        }
    }

    fn key(&self) -> KeyMaterial {
        KeyMaterial::new(self.suite, &self.material).unwrap()
    }
}

/// The target of the longest prefix that holds an address; of two equal prefixes the later.
pub fn longest_prefix(routes: &[RouteEntry], destination: Address) -> Option<RouteTarget> {
    let mut best: Option<&RouteEntry> = None;
    for route in routes {
        let prefix = route.prefix;
        if prefix.address.family != destination.family {
            continue;
        }
        let width = u32::from(destination.family.address_bits());
        let behind = width - u32::from(prefix.length);
        // Bit by bit from the top: as many as the prefix is long must agree.
        let agrees = (behind..width)
            .all(|bit| prefix.address.value >> bit & 1 == destination.value >> bit & 1);
        if agrees && best.is_none_or(|best| prefix.length >= best.prefix.length) {
            best = Some(route);
        }
    }
    best.map(|route| route.target)
}
