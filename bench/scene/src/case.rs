//! The gateway that the walk benches drive, and its traffic.
//!
//! ```text
//! 10.1.0.0/16 ── router ── lan  ┐         ┌ wan ── router ── 198.51.100.7 ══ 10.2.0.0/16
//!                               ├ gateway ┤
//! 10.3.0.0/16 ── router ── dmz  ┘         └
//! ```
//! and the same in IPv6. One policy protects all between lan's and the peer's network by a set with
//! one SA a worker and direction. With several SAs a worker each is of a peer of its own, which has
//! an equal part of that network and an address of its own behind wan. lan and dmz are both
//! protected ports, between which nothing is asked. wan carries larger packets than the others:
//! what fits into them still does when sealed. Where hosts behind lan have a virtual network
//! ([`Direction::Overlay`]), all ports do.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{
    Generation, L4Checksum, Medium, Neighbour, NetdevId, NextHop, NextHopId, Overlays, PortId,
    PortInfo, Prefix, RouteEntry, RouteTarget, SaSet, Side, Snapshot, SnapshotParts,
};
use ipsec::cipher::BackendKind;
use ipsec::{
    CardSeat, CardWork, Cipher, InboundSa, KeyMaterial, OutboundSa, ReplayWindow, SaId,
    SequenceCounter, SequenceNumbers, Spi, Suite, Tunnel,
};
use policy::{Action, AddressRange, Policy, PolicyId, SaSetId, Selector, Spd, UpperSelector};
use wire::build::PacketBuilder;
use wire::mark::MarkVlan;
use wire::{Address, Deciphered, Family, Mark};

use crate::error::SceneError;
use crate::overlay::{self, ENDPOINTS};

/// Direction of the packets of a lap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From lan, sealed, out by wan.
    Out,
    /// ESP from wan, opened, out by lan.
    In,
    /// From lan to dmz: no policy is asked, nothing is ciphered.
    Forward,
    /// In VXLAN from a host behind lan to the entrance of a virtual network without groups there,
    /// and on to another host behind lan. The sender is checked.
    Overlay,
    /// As [`Direction::Out`], in clear: the policy is BYPASS.
    Bypass,
    /// As [`Direction::Out`], for a card of wan to seal: the walk puts the card's header in front.
    /// No card is there.
    PacketOut,
    /// As [`Direction::In`], opened by a card of wan: it comes in clear with the tag of its SA. No
    /// card is there.
    PacketIn,
    /// As [`Direction::Out`], for a card of wan to encrypt: the walk writes all else. No card is
    /// there.
    CryptoOut,
    /// As [`Direction::In`], deciphered by a card of wan: it comes as ESP whose text is in clear,
    /// with the tag of its SA. No card is there.
    CryptoIn,
}

impl Direction {
    /// Every direction.
    pub const ALL: [Direction; 9] = [
        Direction::Out,
        Direction::In,
        Direction::Forward,
        Direction::Overlay,
        Direction::Bypass,
        Direction::PacketOut,
        Direction::PacketIn,
        Direction::CryptoOut,
        Direction::CryptoIn,
    ];

    /// The direction's name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Direction::Out => "out",
            Direction::In => "in",
            Direction::Forward => "forward",
            Direction::Overlay => "overlay",
            Direction::Bypass => "bypass",
            Direction::PacketOut => "packet-out",
            Direction::PacketIn => "packet-in",
            Direction::CryptoOut => "crypto-out",
            Direction::CryptoIn => "crypto-in",
        }
    }

    /// Returns whether its packets leave behind a header for the card.
    pub const fn is_handed_over(self) -> bool {
        matches!(self, Direction::PacketOut | Direction::CryptoOut)
    }

    /// The part of ESP that a card does for its packets; `None`: none.
    pub const fn card_work(self) -> Option<CardWork> {
        match self {
            Direction::PacketOut | Direction::PacketIn => Some(CardWork::Packets),
            Direction::CryptoOut | Direction::CryptoIn => Some(CardWork::Cipher),
            _ => None,
        }
    }

    /// Returns whether its packets are sealed or opened.
    pub const fn ciphers(self) -> bool {
        matches!(self, Direction::Out | Direction::In)
    }
}

/// Subject of one row of a bench.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// Direction of its packets.
    pub direction: Direction,
    /// Cipher suite of both SAs.
    pub suite: Suite,
    /// IP version, inside and outside.
    pub family: Family,
    /// Bytes of the inner IP packet.
    pub size: usize,
    /// Flows of each worker, each with one frame.
    pub flows: usize,
    /// The library that ciphers; `None`: those that the walk takes, by measuring them.
    pub backend: Option<BackendKind>,
    /// Threads, each with frames and SAs of its own.
    pub workers: usize,
    /// SAs of each worker and direction, and so peers: at most [`MAX_SAS`]. Where flows are few,
    /// some have none.
    pub sas: usize,
}

/// SPI of both SAs of a place ([`Case::place`]). The first SA of worker n is at place n.
pub fn spi(place: usize) -> Spi {
    Spi::new(0x1000 + place as u32).expect("not reserved")
}

/// The place in the card of wan of both SAs of a place.
pub(crate) fn seat(place: usize, work: CardWork) -> CardSeat {
    CardSeat::of_worker(WAN.0, place as u64 + 1, work)
}

/// The mark of packets that the card of wan opened, or deciphered, by the SA of a place.
fn opened_mark(place: usize, work: CardWork) -> Mark {
    let mark = Mark {
        netdev: WAN.0,
        vlan: MarkVlan::Untagged,
        incarnation: 1,
        generation: 0,
        zone: 0,
        verdict: 0,
        domain: 0,
    };
    let tag = seat(place, work).tag;
    match work {
        CardWork::Packets => mark.with_card_sa(tag),
        CardWork::Cipher => mark.with_card_cipher(tag, Deciphered::Authentic),
    }
}

/// SAs of a worker at most.
pub const MAX_SAS: usize = 10_000;
/// Priority of the policies where no others are in the SPD.
pub(crate) const PEERS_PRIORITY: u32 = 100;
/// Flows at most where each is to have hosts of its own: the host part of an address.
pub const MAX_FLOWS: usize = 65_536;
/// An odd number: flow n is between the nth near host and the far host n times as much.
pub(crate) const FLOW_STEP: usize = 40_503;
/// Destination port of the traffic.
pub(crate) const TRAFFICS_PORT: u16 = 443;
/// TTL or hop limit of what is sent to the gateway.
pub const HOP_LIMIT: u8 = 64;
/// Largest IP packet of the protected ports.
pub const MTU: usize = 1500;
/// Largest IP packet of the unprotected port: [`MTU`] and what the suites add at most, which is an
/// IPv6 header, ESP header, IV and ICV of 40, 8, 16 and 32 bytes and a padded trailer. An overlay
/// packet fits, too.
const WAN_MTU: usize = 1616;

/// The protected port that packets of [`Direction::Out`] come from.
pub const LAN: NetdevId = NetdevId(0);
/// The unprotected port, towards the peer.
pub const WAN: NetdevId = NetdevId(1);
/// The other protected port.
pub const DMZ: NetdevId = NetdevId(2);
const PORTS: [(&str, Side); 3] =
    [("lan", Side::Protected), ("wan", Side::Unprotected), ("dmz", Side::Protected)];

/// Our link address on a netdev.
pub const fn own_mac(netdev: NetdevId) -> [u8; 6] {
    [2, 0, 0, 0, 1, netdev.0 as u8]
}

/// Link address of the router behind a netdev.
pub const fn router_mac(netdev: NetdevId) -> [u8; 6] {
    [2, 0, 0, 0, 2, netdev.0 as u8]
}

/// Addresses of one family.
struct Plan {
    own: [&'static str; 3],
    routers: [&'static str; 3],
    /// The network behind each netdev; behind wan the peer's.
    networks: [&'static str; 3],
    network_bits: u8,
    /// The first peer; the others follow it.
    peer: &'static str,
    /// The network of all peers' addresses.
    peers: (&'static str, u8),
}

const V4: Plan = Plan {
    own: ["10.255.1.1", "192.0.2.1", "10.255.3.1"],
    routers: ["10.255.1.2", "192.0.2.2", "10.255.3.2"],
    networks: ["10.1.0.0", "10.2.0.0", "10.3.0.0"],
    network_bits: 16,
    peer: "198.51.100.7",
    peers: ("198.51.0.0", 16),
};
const V6: Plan = Plan {
    own: ["fd00:ff:1::1", "2001:db8::1", "fd00:ff:3::1"],
    routers: ["fd00:ff:1::2", "2001:db8::2", "fd00:ff:3::2"],
    networks: ["fd00:1::", "fd00:2::", "fd00:3::"],
    network_bits: 64,
    peer: "2001:db8:ffff::7",
    peers: ("2001:db8:ffff::", 64),
};

fn plan(family: Family) -> &'static Plan {
    match family {
        Family::V4 => &V4,
        Family::V6 => &V6,
    }
}

fn address(text: &str) -> Address {
    let ip: IpAddr = text.parse().expect("an address written above");
    ip.into()
}

/// Keys of the SAs of one place in one lap, fresh from the operating system: no key seals twice
/// under one number.
pub struct Keys {
    /// Key that we seal with.
    pub outbound: KeyMaterial,
    /// Key that we open with.
    pub inbound: KeyMaterial,
}

impl Keys {
    /// Makes new keys.
    ///
    /// # Errors
    /// [`SceneError::Random`].
    pub fn fresh(suite: Suite) -> Result<Keys, SceneError> {
        let material = || -> Result<KeyMaterial, SceneError> {
            let mut bytes = vec![0; suite.material_bytes()];
            getrandom::fill(&mut bytes).map_err(SceneError::Random)?;
            Ok(KeyMaterial::new(suite, &bytes).expect("the suite's length"))
        };
        Ok(Keys { outbound: material()?, inbound: material()? })
    }
}

impl Case {
    /// Sizes that a packet of a family can have: it holds a UDP header, and goes through the ports
    /// whole, sealed or not.
    pub fn sizes(family: Family) -> std::ops::RangeInclusive<usize> {
        match family {
            Family::V4 => 28..=MTU,
            Family::V6 => 48..=MTU,
        }
    }

    /// Expands a key on the backend of the case.
    ///
    /// # Errors
    /// [`SceneError::NoBackend`].
    pub fn cipher(&self, material: &KeyMaterial) -> Result<Cipher, SceneError> {
        match self.backend {
            None => Ok(Cipher::new(material)),
            Some(kind) => Cipher::with_backend(material, kind).ok_or(SceneError::NoBackend(kind)),
        }
    }

    /// The netdev that packets come from.
    pub fn ingress(&self) -> NetdevId {
        match self.direction {
            Direction::Out | Direction::Bypass | Direction::PacketOut => LAN,
            Direction::CryptoOut | Direction::Forward | Direction::Overlay => LAN,
            Direction::In | Direction::PacketIn | Direction::CryptoIn => WAN,
        }
    }

    /// The netdev that packets leave by.
    pub fn egress(&self) -> NetdevId {
        match self.direction {
            Direction::Out | Direction::Bypass => WAN,
            Direction::PacketOut | Direction::CryptoOut => WAN,
            Direction::In | Direction::PacketIn | Direction::CryptoIn => LAN,
            Direction::Overlay => LAN,
            Direction::Forward => DMZ,
        }
    }

    /// The mark of each packet of a worker; `None`: they have none.
    pub fn mark(&self, worker: usize) -> Option<Mark> {
        let comes = matches!(self.direction, Direction::PacketIn | Direction::CryptoIn);
        let work = self.direction.card_work().filter(|_| comes)?;
        Some(opened_mark(self.place(worker, 0), work))
    }

    /// Both ends of the tunnel to a peer, ours first.
    pub fn tunnel(&self, peer: usize) -> (Address, Address) {
        let plan = plan(self.family);
        let first = address(plan.peer);
        let remote = Address { value: first.value + peer as u128, ..first };
        (address(plan.own[usize::from(WAN.0)]), remote)
    }

    /// The peer whose packets a flow's are, by its far host.
    pub fn peer_of(&self, flow: usize) -> usize {
        self.far_host(flow) * self.sas / MAX_FLOWS
    }

    /// The place among all of a worker's SAs with a peer.
    pub fn place(&self, worker: usize, peer: usize) -> usize {
        peer * self.workers + worker
    }

    /// The packet in clear of one flow, as it is with this hop limit.
    pub fn inner(&self, flow: usize, hop_limit: u8) -> PacketBuilder {
        let [from, to] = self.hosts(flow);
        let header = match self.family {
            Family::V4 => 28,
            Family::V6 => 48,
        };
        PacketBuilder::new(from, to)
            .udp(1024 + (flow % 32_768) as u16, TRAFFICS_PORT)
            .hop_limit(hop_limit)
            .payload_of(self.size.saturating_sub(header))
    }

    /// The hosts that a flow is between, the sender first.
    pub(crate) fn hosts(&self, flow: usize) -> [Address; 2] {
        let (near, far) = (flow % MAX_FLOWS, self.far_host(flow));
        let network = |netdev: NetdevId| address(plan(self.family).networks[usize::from(netdev.0)]);
        let host = |network: Address, host: usize| Address {
            value: network.value + host as u128,
            ..network
        };
        let lan = network(LAN);
        match self.direction {
            Direction::Out | Direction::Bypass | Direction::PacketOut | Direction::CryptoOut => {
                [host(lan, near), host(network(WAN), far)]
            }
            Direction::In | Direction::PacketIn | Direction::CryptoIn => {
                [host(network(WAN), far), host(lan, near)]
            }
            Direction::Forward => [host(lan, near), host(network(DMZ), far)],
            Direction::Overlay => {
                let number = self.far_host(flow) * ENDPOINTS / MAX_FLOWS;
                [near, number].map(|endpoint| overlay::tenant(self.family, endpoint))
            }
        }
    }

    /// The far host of a flow. Every flow has its own, in another order than its near one. Flows
    /// beyond the hosts of a network meet at the near one, each at another far one.
    pub(crate) fn far_host(&self, flow: usize) -> usize {
        let (near, round) = (flow % MAX_FLOWS, flow / MAX_FLOWS);
        (near * FLOW_STEP + round) % MAX_FLOWS
    }

    /// Makes the gateway with these keys, one entry a place, none of whose numbers are used.
    ///
    /// # Errors
    /// Those of the parts; none is expected.
    pub fn gateway(&self, keys: &[Keys]) -> Result<Snapshot, SceneError> {
        let policies = self.peers_policies(0, PEERS_PRIORITY);
        Ok(Snapshot::new(self.parts(keys, Spd::new(policies)?.into())?)?)
    }

    /// Returns the parts of the gateway with these policies.
    ///
    /// # Errors
    /// Those of the parts; none is expected.
    pub fn parts(&self, keys: &[Keys], spd: Arc<Spd>) -> Result<SnapshotParts, SceneError> {
        let numbers = SequenceNumbers::Short;
        let (mut outbound, mut inbound) = (Vec::new(), Vec::new());
        for (place, keys) in keys.iter().enumerate() {
            let (id, spi) = (SaId(place as u32), spi(place));
            let peer = place / self.workers;
            let (set, tunnel) = (SaSetId(peer as u32), self.ends(peer));
            let work = self.direction.card_work();
            let seat = work.map(|work| seat(place, work));
            let counter = match work {
                Some(CardWork::Packets) => SequenceCounter::spent(numbers),
                Some(CardWork::Cipher) | None => SequenceCounter::new(numbers),
            };
            let (cipher, counter) = (self.cipher(&keys.outbound)?, Arc::new(counter));
            let sa = OutboundSa::with_cipher(id, spi, set, cipher, tunnel.into(), counter)?;
            outbound.push(Arc::new(sa.seated(seat)));
            let window = ReplayWindow::new(ReplayWindow::LARGEST, numbers).expect("offered");
            let cipher = self.cipher(&keys.inbound)?;
            let sa = InboundSa::with_cipher(id, spi, set, cipher, tunnel.into(), window.into())?;
            inbound.push(Arc::new(sa.seated(seat)));
        }
        let (next_hops, routes, neighbours) = self.routes();
        Ok(SnapshotParts {
            generation: Generation(1),
            workers: self.workers as u32,
            ports: ports(self.direction),
            host: None,
            overlays: self.overlays(),
            routes,
            next_hops,
            neighbours,
            spd,
            sets: outbound.chunks(self.workers).enumerate().map(|sas| self.set(sas)).collect(),
            outbound,
            inbound,
            ..SnapshotParts::default()
        })
    }

    fn ends(&self, peer: usize) -> Tunnel {
        let (local, remote) = self.tunnel(peer);
        Tunnel { local: local.into(), remote: remote.into() }
    }

    fn set(&self, (peer, sas): (usize, &[Arc<OutboundSa>])) -> SaSet {
        SaSet {
            id: SaSetId(peer as u32),
            peer: if self.sas == 1 { "peer".into() } else { format!("peer-{peer}") },
            tunnel: self.ends(peer),
            outbound: sas.iter().map(|sa| sa.id).collect(),
            acquires: false,
            mss_clamp: true,
            may_move: false,
            moves_by_ike: false,
            keepalive_s: None,
            path_mtu: Some(dataplane::PathMtu::default()),
            outer: None,
        }
    }

    /// The policies that protect all between lan's network and each peer's part of the far one,
    /// with ids from this one on.
    pub fn peers_policies(&self, first: u32, priority: u32) -> Vec<Policy> {
        if self.sas == 1 {
            return vec![self.peers_policy(PolicyId(first), priority)];
        }
        let all = self.network(WAN);
        // The least far host of a peer, as `peer_of` divides them.
        let least = |peer: usize| (peer * MAX_FLOWS).div_ceil(self.sas) as u128;
        let at = |value: u128| Address { value, ..all.first() };
        let one = |peer: usize| {
            let (lo, end) = (all.first().value + least(peer), all.first().value + least(peer + 1));
            let remote = AddressRange::new(at(lo), at(end - 1)).expect("in order");
            let whole = self.peers_policy(PolicyId(first + peer as u32), priority);
            Policy {
                name: format!("peer-{peer}"),
                action: Action::Protect(SaSetId(peer as u32)),
                selector: Selector { remote: vec![remote], ..whole.selector },
                ..whole
            }
        };
        (0..self.sas).map(one).collect()
    }

    /// The policy that protects all between lan's and the peer's network, where there is one peer.
    pub fn peers_policy(&self, id: PolicyId, priority: u32) -> Policy {
        Policy {
            id,
            name: "peer".into(),
            action: match self.direction {
                Direction::Bypass => Action::Bypass,
                _ => Action::Protect(SaSetId(0)),
            },
            priority,
            only: None,
            group: None,
            ingress: None,
            selector: Selector {
                local: vec![self.network(LAN)],
                remote: vec![self.network(WAN)],
                protocol: None,
                upper: UpperSelector::Any,
            },
        }
    }

    /// The overlay of the case, if it has one.
    fn overlays(&self) -> Option<Arc<Overlays>> {
        let lan = || overlay::overlays(PortId(LAN.0), self.own(LAN), self.network(LAN).first());
        (self.direction == Direction::Overlay).then(lan)
    }

    /// Our address on a netdev.
    pub(crate) fn own(&self, netdev: NetdevId) -> Address {
        address(plan(self.family).own[usize::from(netdev.0)])
    }

    /// The network behind a netdev; behind wan the peer's.
    pub fn network(&self, netdev: NetdevId) -> AddressRange {
        let plan = plan(self.family);
        let network = address(plan.networks[usize::from(netdev.0)]);
        AddressRange::network(network, plan.network_bits)
    }

    /// One router a port, its network behind it, our addresses, and the peer behind wan.
    fn routes(&self) -> (Vec<NextHop>, Vec<RouteEntry>, Vec<Neighbour>) {
        let plan = plan(self.family);
        let bits = self.family.address_bits();
        let (mut next_hops, mut neighbours) = (Vec::new(), Vec::new());
        let prefix = match self.sas {
            1 => Prefix { address: address(plan.peer), length: bits },
            _ => Prefix { address: address(plan.peers.0), length: plan.peers.1 },
        };
        let mut routes =
            vec![RouteEntry { prefix, target: RouteTarget::Via(NextHopId(WAN.0.into())) }];
        for netdev in [LAN, WAN, DMZ] {
            let place = usize::from(netdev.0);
            let (port, router) = (PortId(netdev.0), address(plan.routers[place]));
            next_hops.push(NextHop { port, gateway: Some(router) });
            neighbours.push(Neighbour { port, address: router, mac: router_mac(netdev) });
            let network =
                Prefix { address: address(plan.networks[place]), length: plan.network_bits };
            let own = Prefix { address: address(plan.own[place]), length: bits };
            let via = RouteTarget::Via(NextHopId(netdev.0.into()));
            routes.push(RouteEntry { prefix: network, target: via });
            routes.push(RouteEntry { prefix: own, target: RouteTarget::Local });
        }
        (next_hops, routes, neighbours)
    }
}

fn ports(direction: Direction) -> Vec<PortInfo> {
    let mtu = |netdev| match direction {
        Direction::Overlay => WAN_MTU,
        _ if netdev == WAN => WAN_MTU,
        _ => MTU,
    };
    let port = |(number, (name, side)): (u16, (&str, Side))| PortInfo {
        name: name.into(),
        netdev: NetdevId(number),
        vlan: None,
        side,
        medium: Medium::Ethernet,
        mac: own_mac(NetdevId(number)),
        mtu: mtu(NetdevId(number)) as u32,
        addresses: [V4, V6].iter().map(|plan| address(plan.own[usize::from(number)])).collect(),
        allow_host: Vec::new(),
        l4_checksum: L4Checksum::Pass,
    };
    (0..).zip(PORTS).map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn case(direction: Direction, family: Family, size: usize) -> Case {
        let (suite, flows) = (Suite::Aes128Gcm, MAX_FLOWS);
        Case { direction, suite, family, size, flows, backend: None, workers: 1, sas: 1 }
    }

    #[test]
    fn every_packet_has_the_size_asked_for_and_a_flow_of_its_own() {
        for direction in Direction::ALL {
            for family in [Family::V4, Family::V6] {
                let sizes = Case::sizes(family);
                for size in [*sizes.start(), 64, 1420, *sizes.end()] {
                    let case = case(direction, family, size);
                    let packet = case.inner(MAX_FLOWS - 1, HOP_LIMIT).ip();
                    assert_eq!(packet.len(), size);
                }
                let case = case(direction, family, 64);
                let flow = |flow| wire::packet::parse(&case.inner(flow, 9).ip()).unwrap().flow;
                let flows: HashSet<_> = (0..MAX_FLOWS).map(flow).collect();
                assert_eq!(flows.len(), MAX_FLOWS);
            }
        }
    }

    #[test]
    fn flows_beyond_the_hosts_of_a_network_still_differ() {
        for family in [Family::V4, Family::V6] {
            let case = case(Direction::Out, family, 48);
            let flow = |flow| wire::packet::parse(&case.inner(flow, 9).ip()).unwrap().flow;
            // The same near host each time, and all others once.
            let flows =
                (0..64).map(|round| 77 + round * MAX_FLOWS).chain(MAX_FLOWS..MAX_FLOWS + 99);
            let (asked, flows): (Vec<_>, HashSet<_>) = flows.map(|f| (f, flow(f))).unzip();
            assert_eq!(flows.len(), asked.len() - 1, "77 of the second round came twice");
        }
    }

    #[test]
    fn the_largest_size_is_sealed_whole_under_every_suite() {
        for family in [Family::V4, Family::V6] {
            for &suite in Suite::ALL {
                let case = Case { suite, ..case(Direction::Out, family, 64) };
                let gateway = case.gateway(&[Keys::fresh(case.suite).unwrap()]).unwrap();
                let largest = gateway.outbound_sa(ipsec::SaId(0)).largest_inner(WAN_MTU);
                assert!(largest >= *Case::sizes(family).end(), "{suite}, {family:?}: {largest}");
            }
        }
    }

    #[test]
    fn each_worker_has_an_sa_of_its_own_in_the_only_set() {
        let case = Case { workers: 2, ..case(Direction::In, Family::V4, 64) };
        let keys = [Keys::fresh(case.suite).unwrap(), Keys::fresh(case.suite).unwrap()];
        let gateway = case.gateway(&keys).unwrap();
        assert_eq!(gateway.workers(), 2);
        let outbound: Vec<Spi> = gateway.outbound().map(|sa| sa.spi).collect();
        let inbound: Vec<Spi> = gateway.inbound().map(|sa| sa.spi).collect();
        assert_eq!((&outbound, &inbound), (&vec![spi(0), spi(1)], &vec![spi(0), spi(1)]));
    }
}
