//! From a validated configuration and its keys to the snapshot that the walk looks things up in.

use std::collections::HashMap;
use std::sync::Arc;

use dataplane::{
    Generation, L4Checksum, Medium, NetdevId, NextHop, NextHopId, PortId, PortInfo, Prefix,
    RouteEntry, RouteTable, RouteTarget, SaSet, Side, Snapshot, SnapshotError, SnapshotParts,
};
use ipsec::{InboundSa, OutboundSa, ReplayWindow, SaError, SaId, SequenceCounter, WindowSizeError};
use policy::{Direction, PolicyId, SaSetId, Spd, SpdError};
use wire::{Address, Family};

use crate::host_port::HOST_PORT;
use crate::keys::{Keys, ReplayKeys};
use crate::validated::{Action, IngressPorts, Peer, PeerId, PeerPlace, Policy, Target, Validated};

/// Its MTU: what goes to Linux need not be cut.
const HOST_MTU: u32 = 65535;

/// Why a validated configuration cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The policies are too many for the classifier: validation let a mistake through.
    #[error(transparent)]
    Spd(#[from] SpdError),
    /// An SA cannot be made: validation let a mistake through.
    #[error(transparent)]
    Sa(#[from] SaError),
    /// A replay window cannot be made: validation let a mistake through.
    #[error(transparent)]
    Window(#[from] WindowSizeError),
    /// The parts do not fit together: validation let a mistake through.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// So many policies were made that no number is left for others.
    #[error("no policy number is left: restart lockgated")]
    OutOfNumbers,
    /// Another configuration was compiled since this one was prepared: the caller is at fault.
    #[error("another configuration was compiled in between: apply this one again")]
    Overtaken,
    /// Keys and configuration belong to different files: the caller is at fault.
    #[error("keys of {keys} peers for {peers} peers")]
    OtherKeys {
        /// Peers that the keys are of.
        keys: usize,
        /// Peers of the configuration.
        peers: usize,
    },
}

impl Validated {
    /// Compiles the configuration. Ports keep their order and the host port comes last; policy
    /// and SA-set ids count the policies and peers in the order of the file. Each SA begins with
    /// a new sequence counter or replay window, so it takes only keys that have never sealed.
    /// Configured ones do not compile:
    ///
    /// ```compile_fail,E0308
    /// fn seal(config: &control::Validated, configured: control::Keys) {
    ///     let _ = config.compile(configured, dataplane::Generation(1));
    /// }
    /// ```
    ///
    /// # Errors
    /// [`CompileError`], none of which is the fault of a file that was validated.
    pub fn compile(
        &self,
        ReplayKeys(keys): ReplayKeys,
        generation: Generation,
    ) -> Result<Snapshot, CompileError> {
        if keys.peers.len() != self.peers.len() {
            return Err(CompileError::OtherKeys {
                keys: keys.peers.len(),
                peers: self.peers.len(),
            });
        }
        let Routing { routes, next_hops } = Routing::of(self);
        let ports = self.port_infos();
        let host = PortId((ports.len() - 1) as u16);
        let mut parts = SnapshotParts {
            generation,
            ports,
            host: Some(host),
            routes,
            next_hops,
            neighbours: self.neighbours.clone(),
            spd: Spd::new(self.policies.iter().enumerate().map(policy).collect())?.into(),
            ..SnapshotParts::default()
        };
        self.add_security_associations(keys, &mut parts)?;
        Ok(Snapshot::new(parts)?)
    }

    pub(crate) fn port_infos(&self) -> Vec<PortInfo> {
        let mut netdevs: HashMap<&str, NetdevId> = HashMap::new();
        let mut infos = Vec::with_capacity(self.ports.len() + 1);
        for port in &self.ports {
            let next = NetdevId(netdevs.len() as u16);
            infos.push(PortInfo {
                name: port.name.clone(),
                netdev: *netdevs.entry(&port.netdev).or_insert(next),
                vlan: port.vlan,
                side: port.side,
                medium: Medium::Ethernet,
                mac: port.mac,
                mtu: port.mtu,
                addresses: port.addresses.iter().map(|a| a.address).collect(),
                allow_host: port.allow_host.clone(),
                l4_checksum: port.l4_checksum,
            });
        }
        infos.push(PortInfo {
            name: HOST_PORT.into(),
            netdev: NetdevId(netdevs.len() as u16),
            vlan: None,
            side: Side::Protected,
            medium: Medium::Ip,
            mac: [0; 6],
            mtu: HOST_MTU,
            addresses: Vec::new(),
            allow_host: Vec::new(),
            l4_checksum: L4Checksum::Pass,
        });
        infos
    }

    fn add_security_associations(
        &self,
        keys: Keys,
        parts: &mut SnapshotParts,
    ) -> Result<(), CompileError> {
        for (place, (peer, lines)) in self.peers.iter().zip(keys.peers).enumerate() {
            let set = SaSetId(place as u32);
            let Peer { encapsulation, numbers, replay_window, .. } = *peer;
            let mut outbound = Vec::new();
            for line in lines {
                let (spi, material) = (line.spi, &line.material);
                match line.direction {
                    Direction::Outbound => {
                        let id = SaId(parts.outbound.len() as u32);
                        let counter = Arc::new(SequenceCounter::new(numbers));
                        let sa = OutboundSa::new(id, spi, set, material, encapsulation, counter)?;
                        parts.outbound.push(Arc::new(sa));
                        outbound.push(id);
                    }
                    Direction::Inbound => {
                        let id = SaId(parts.inbound.len() as u32);
                        let window = Arc::new(ReplayWindow::new(replay_window, numbers)?);
                        let sa = InboundSa::new(id, spi, set, material, encapsulation, window)?;
                        parts.inbound.push(Arc::new(sa));
                    }
                }
            }
            parts.sets.push(sa_set(peer, set, outbound));
        }
        Ok(())
    }
}

/// The SA set of a peer where the configuration says that it is.
pub(crate) fn sa_set(peer: &Peer, id: SaSetId, outbound: Vec<SaId>) -> SaSet {
    SaSet {
        id,
        peer: peer.name.clone(),
        tunnel: peer.tunnel(),
        outbound,
        mss_clamp: peer.mss_clamp,
        may_move: peer.place == PeerPlace::BehindNat,
        keepalive_s: peer.nat_keepalive_s,
    }
}

/// A policy under its place in the file.
pub(crate) fn policy((place, policy): (usize, &Policy)) -> policy::Policy {
    compiled_policy(policy, PolicyId(place as u32), |peer| SaSetId(peer.0))
}

/// A policy under an id, with the SA sets that its peers have.
pub(crate) fn compiled_policy(
    policy: &Policy,
    id: PolicyId,
    set_of: impl Fn(PeerId) -> SaSetId,
) -> policy::Policy {
    policy::Policy {
        id,
        name: policy.name.clone(),
        action: match policy.action {
            Action::Protect(peer) => policy::Action::Protect(set_of(peer)),
            Action::Bypass => policy::Action::Bypass,
            Action::Discard => policy::Action::Discard,
        },
        priority: policy.priority,
        only: policy.only,
        ingress: policy.ingress.as_ref().map(|ports| ports.numbers().clone()),
        selector: policy.selector.clone(),
    }
}

/// A policy that was compiled, as it is configured, with the peers of SA sets.
pub(crate) fn configured_policy(
    policy: &policy::Policy,
    peer_of: impl Fn(SaSetId) -> PeerId,
) -> Policy {
    Policy {
        name: policy.name.clone(),
        action: match policy.action {
            policy::Action::Protect(set) => Action::Protect(peer_of(set)),
            policy::Action::Bypass => Action::Bypass,
            policy::Action::Discard => Action::Discard,
        },
        priority: policy.priority,
        only: policy.only,
        ingress: policy.ingress.clone().map(IngressPorts::new),
        selector: policy.selector.clone(),
    }
}

/// The routes of a configuration: its own and those that its addresses bring.
pub(crate) struct Routing {
    pub(crate) routes: Vec<RouteEntry>,
    pub(crate) next_hops: Vec<NextHop>,
}

impl Routing {
    /// Connected networks, then `[[route]]`, then broadcast addresses, then our own: of two with
    /// one prefix the later wins.
    pub(crate) fn of(config: &Validated) -> Routing {
        let mut routing = Routing { routes: Vec::new(), next_hops: Vec::new() };
        let mut hops: HashMap<NextHop, NextHopId> = HashMap::new();
        let (mut own, mut broadcast) = (Vec::new(), vec![whole(Address::v4(u32::MAX))]);
        for (place, port) in config.ports.iter().enumerate() {
            for interface in &port.addresses {
                let network = interface.network();
                let hop = NextHop { port: PortId(place as u16), gateway: None };
                let target = RouteTarget::Via(routing.next_hop(&mut hops, hop));
                let prefix = Prefix { address: network.first(), length: interface.length };
                routing.routes.push(RouteEntry { prefix, target });
                own.push(whole(interface.address));
                // RFC 3021: a /31 has no broadcast address.
                if network.family == Family::V4 && interface.length < 31 {
                    broadcast.push(whole(network.last()));
                }
            }
        }
        for route in &config.routes {
            let target = match route.target {
                Target::Blackhole => RouteTarget::Blackhole,
                Target::Via(port, gateway) => {
                    RouteTarget::Via(routing.next_hop(&mut hops, NextHop { port, gateway }))
                }
            };
            routing.routes.push(RouteEntry { prefix: route.to, target });
        }
        let entry = |target| move |prefix| RouteEntry { prefix, target };
        routing.routes.extend(broadcast.into_iter().map(entry(RouteTarget::Broadcast)));
        routing.routes.extend(own.into_iter().map(entry(RouteTarget::Local)));
        let last: HashMap<Prefix, usize> =
            routing.routes.iter().enumerate().map(|(place, route)| (route.prefix, place)).collect();
        let mut place = 0..;
        routing.routes.retain(|route| place.next() == last.get(&route.prefix).copied());
        routing
    }

    fn next_hop(&mut self, hops: &mut HashMap<NextHop, NextHopId>, hop: NextHop) -> NextHopId {
        *hops.entry(hop).or_insert_with(|| {
            self.next_hops.push(hop);
            NextHopId(self.next_hops.len() as u32 - 1)
        })
    }

    /// For each address, the port that packets to it leave by; `None`: no route, or none that
    /// forwards.
    pub(crate) fn ports_towards(
        &self,
        destinations: impl Iterator<Item = Address>,
    ) -> Vec<Option<PortId>> {
        let table = RouteTable::new(&self.routes);
        let port = |destination| match table.lookup(destination)? {
            RouteTarget::Via(hop) => Some(self.next_hops[hop.0 as usize].port),
            _ => None,
        };
        destinations.map(port).collect()
    }
}

/// The prefix that holds one address.
fn whole(address: Address) -> Prefix {
    Prefix { address, length: address.family.address_bits() }
}
