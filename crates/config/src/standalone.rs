//! Ports and routes as a configuration gives them by itself, for where no kernel tells of them.

use std::collections::HashMap;

use dataplane::{
    L4Checksum, Medium, NetdevId, NextHop, NextHopId, PortId, PortInfo, Prefix, RouteEntry,
    RouteTable, RouteTarget, Side,
};
use wire::{Address, Family};

use crate::host_port::HOST_PORT;
use crate::validated::{Target, Validated};

/// The host port's MTU: what goes to Linux need not be cut.
const HOST_MTU: u32 = 65535;

impl Validated {
    /// The ports in the order of the file, and the host port behind them.
    pub fn port_infos(&self) -> Vec<PortInfo> {
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

    /// Returns the destinations of the routes in [`ConfiguredRoutes`], without those of single
    /// addresses: networks of the ports' addresses, and `[[route]]`s.
    pub fn prefixes(&self) -> Vec<Prefix> {
        let connected = self.ports.iter().flat_map(|port| &port.addresses);
        let connected = connected.map(|a| Prefix { address: a.address, length: a.length });
        connected.chain(self.routes.iter().map(|route| route.to)).collect()
    }
}

/// The routes of a configuration: its own and those that its addresses bring.
pub struct ConfiguredRoutes {
    /// The routes, each prefix once.
    pub routes: Vec<RouteEntry>,
    /// The next hops that they lead by.
    pub next_hops: Vec<NextHop>,
}

impl ConfiguredRoutes {
    /// Connected networks, then `[[route]]`, then broadcast addresses, then our own: of two with
    /// one prefix the later wins.
    pub fn of(config: &Validated) -> ConfiguredRoutes {
        let mut routing = ConfiguredRoutes { routes: Vec::new(), next_hops: Vec::new() };
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

    /// Returns, for each address, the port by which packets to it leave; `None`: no route, or none
    /// that forwards.
    pub fn ports_towards(
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
