//! From what the kernel knows to what the walk looks up. Pure.
//!
//! | the kernel has | the walk gets |
//! |---|---|
//! | an address on any netdev, a local or anycast route | `Local` |
//! | a broadcast route | `Broadcast` |
//! | a route by a port's netdev | `Via`, by the first hop that is usable |
//! | blackhole, unreachable, prohibit | `Blackhole` |
//! | a route by another netdev, by a port that is down, or one that is refused | `Elsewhere` |
//! | a route by `lockgate0` | nothing: Lockgate made it for the box's own packets |
//! | several routes to one prefix | the lowest metric of those that lead to a port |
//!
//! Link-local networks are `Elsewhere` as a whole: they are on every link, and the walk forwards
//! nothing from or to them.
//!
//! Not used live: the configuration's `[[route]]`, `[[neighbour]]`, `addresses`, `mac` and `mtu`.
//! They tell `replay` and `explain` what Linux tells here.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{
    L4Checksum, Neighbours, NetdevId, NextHop, PortId, PortInfo, Prefix, RouteTarget, Routes,
};
use policy::AddressRange;
use wire::Address;

use super::view::{Hop, KernelRoute, LOCAL_TABLE, Link, RouteKind, Standing, Usability, View};
use crate::{HOST_NETDEV, Validated};

/// What a snapshot takes from the kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct LiveParts {
    /// The configuration's ports in its order, then the host port.
    pub ports: Arc<[PortInfo]>,
    /// State of each port, one entry per port.
    pub states: Vec<PortState>,
    /// Interface index that a port's addresses and routes are on, one entry per port: for a
    /// tagged port that of Linux's VLAN netdev. `None`: there is none.
    pub links: Vec<Option<u32>>,
    /// Interface index of each netdev that frames are received from; [`NetdevId`] counts into
    /// this list. `None`: there is none of that name.
    pub devices: Vec<Option<u32>>,
    /// Routes.
    pub routes: Routes,
    /// Neighbours that packets can be sent to.
    pub neighbours: Neighbours,
    /// Next hops worth keeping fresh, by interface index: all routers, and peers on a link.
    pub fresh: BTreeSet<(u32, Address)>,
    /// What an operator should know.
    pub problems: Vec<LiveProblem>,
}

/// State of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// Its netdev does not exist.
    Absent,
    /// Its netdev is switched off.
    Down,
    /// The other end is not there.
    NoCarrier,
    /// Packets can leave.
    Up,
}

/// What is not as it should be while the daemon runs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LiveProblem {
    /// The netdev of a port does not exist.
    #[error("port {port}: there is no netdev {netdev}")]
    NoNetdev {
        /// The port's name.
        port: String,
        /// The netdev's name.
        netdev: String,
    },
    /// A tagged port has no VLAN netdev to hold its addresses.
    #[error(
        "port {port}: no VLAN netdev with id {vlan} on {netdev} holds its addresses: \
         ip link add link {netdev} name {netdev}.{vlan} type vlan id {vlan}"
    )]
    NoVlanNetdev {
        /// The port's name.
        port: String,
        /// The netdev's name.
        netdev: String,
        /// VLAN id.
        vlan: u16,
    },
    /// A port has no address.
    #[error("port {port}: {netdev} has no address: ip address add ADDRESS/LENGTH dev {netdev}")]
    NoAddress {
        /// The port's name.
        port: String,
        /// Name of the netdev that would hold it.
        netdev: String,
    },
    /// The host port's netdev is not there.
    #[error("the host port's netdev {HOST_NETDEV} is not there")]
    NoHostNetdev,
    /// The local end of a tunnel is not one of our addresses.
    #[error("peer {peer}: {address} (local) is on no netdev of this machine")]
    TunnelAddressAbsent {
        /// The peer's name.
        peer: String,
        /// The address.
        address: Address,
    },
}

impl LiveProblem {
    /// Name of the port or peer that has the problem.
    pub fn subject(&self) -> &str {
        match self {
            LiveProblem::NoNetdev { port, .. }
            | LiveProblem::NoVlanNetdev { port, .. }
            | LiveProblem::NoAddress { port, .. } => port,
            LiveProblem::NoHostNetdev => HOST_NETDEV,
            LiveProblem::TunnelAddressAbsent { peer, .. } => peer,
        }
    }
}

/// What the walk needs of the kernel's view: see the table at the head of this file.
pub fn live_parts(config: &Validated, view: &View) -> LiveParts {
    live_parts_towards(config, view, config.peers.iter().map(|peer| peer.tunnel().remote))
}

/// The same for peers that are elsewhere than configured: `remotes` are where they are now.
pub fn live_parts_towards(
    config: &Validated,
    view: &View,
    remotes: impl Iterator<Item = IpAddr>,
) -> LiveParts {
    let mut live = LiveParts {
        ports: config.port_infos().into(),
        states: Vec::new(),
        links: Vec::new(),
        devices: Vec::new(),
        routes: Routes::new(),
        neighbours: Neighbours::new(),
        fresh: BTreeSet::new(),
        problems: Vec::new(),
    };
    live.place_ports(config, view);
    let mut routing = Routing::new(&live, view);
    for (&prefix, candidates) in &by_prefix(view) {
        if let Some(target) = routing.target(candidates) {
            routing.entries.insert(prefix, target);
        }
    }
    routing.shadow(view);
    routing.add_own(&live, view);
    live.routes = routing.entries.into_iter().collect();
    live.place_neighbours(view);
    live.keep_fresh(remotes);
    live.judge_tunnels(config, view);
    live
}

impl LiveParts {
    /// Port of an interface index.
    pub fn port_of_link(&self, link: u32) -> Option<PortId> {
        self.links.iter().position(|index| *index == Some(link)).map(|at| PortId(at as u16))
    }

    /// Fills in ports, their states and links, and the devices.
    fn place_ports(&mut self, config: &Validated, view: &View) {
        let mut ports = self.ports.to_vec();
        let devices = ports.iter().map(|port| usize::from(port.device.0) + 1).max();
        self.devices = vec![None; devices.unwrap_or(0)];
        let names = config.ports.iter().map(|port| port.netdev.as_str());
        for (at, netdev) in names.chain([HOST_NETDEV]).enumerate() {
            let device = view.link_named(netdev);
            let info = &mut ports[at];
            let NetdevId(place) = info.device;
            self.devices[usize::from(place)] = device.map(|link| link.index);
            let link = match (device, info.vlan) {
                (Some(device), Some(id)) => view.vlan_on(device.index, id),
                (device, _) => device,
            };
            let is_host = at == config.ports.len();
            info.addresses = Vec::new();
            if let Some(link) = link {
                (info.mtu, info.addresses) = (link.mtu, own_addresses(view, link.index));
                if !is_host {
                    info.mac = link.mac;
                }
            }
            let may_be_unfinished =
                device.is_some_and(|device| device.kind.passes_unfinished_checksums());
            if !may_be_unfinished {
                info.l4_checksum = L4Checksum::Pass;
            }
            self.links.push(link.map(|link| link.index));
            self.states.push(state(device, link));
            let port = info.name.clone();
            let problem = match (device, link, info.vlan) {
                (None, _, _) if is_host => Some(LiveProblem::NoHostNetdev),
                (None, _, _) => Some(LiveProblem::NoNetdev { port, netdev: netdev.into() }),
                (_, None, Some(vlan)) => {
                    Some(LiveProblem::NoVlanNetdev { port, netdev: netdev.into(), vlan })
                }
                (_, Some(link), _) if !is_host && info.addresses.is_empty() => {
                    Some(LiveProblem::NoAddress { port, netdev: link.name.clone() })
                }
                _ => None,
            };
            self.problems.extend(problem);
        }
        self.ports = ports.into();
    }

    fn place_neighbours(&mut self, view: &View) {
        let places = places(&self.links);
        for (&(link, address), entry) in &view.neighbours {
            if let (Some(&port), Some(mac)) = (places.get(&link), entry.usable_mac()) {
                self.neighbours.insert((port, address), mac);
            }
        }
    }

    /// All routers, and the peers that are on a link themselves.
    fn keep_fresh(&mut self, remotes: impl Iterator<Item = IpAddr>) {
        let on_link = remotes.filter_map(|remote| {
            let remote = Address::from(remote);
            let hop = self.hop_to(remote)?;
            hop.gateway.is_none().then_some((hop.port, remote))
        });
        let routers = self.routes.values().filter_map(|target| match target {
            RouteTarget::Via(hop) => Some((hop.port, hop.gateway?)),
            _ => None,
        });
        let wanted: Vec<(PortId, Address)> = routers.chain(on_link).collect();
        let host = PortId((self.ports.len() - 1) as u16);
        for (port, address) in wanted.into_iter().filter(|(port, _)| *port != host) {
            let link = self.links[usize::from(port.0)];
            self.fresh.extend(link.map(|link| (link, address)));
        }
    }

    /// The next hop of one destination.
    pub fn hop_to(&self, destination: Address) -> Option<NextHop> {
        let bits = destination.family.address_bits();
        let mut prefixes = (0..=bits).rev().map(|length| {
            let address = AddressRange::network(destination, length).first();
            self.routes.get(&Prefix { address, length })
        });
        match prefixes.find_map(|target| target)? {
            RouteTarget::Via(hop) => Some(*hop),
            _ => None,
        }
    }

    fn judge_tunnels(&mut self, config: &Validated, view: &View) {
        for peer in &config.peers {
            let address = Address::from(peer.tunnel().local);
            if !view.addresses.iter().any(|(_, own, _)| *own == address) {
                let peer = peer.name.clone();
                self.problems.push(LiveProblem::TunnelAddressAbsent { peer, address });
            }
        }
    }
}

fn state(device: Option<&Link>, link: Option<&Link>) -> PortState {
    let Some(device) = device else { return PortState::Absent };
    // A tagged port without its VLAN netdev has no addresses, but its frames come and go.
    let link = link.unwrap_or(device);
    match (device.admin_up && link.admin_up, device.carrier && link.carrier) {
        (false, _) => PortState::Down,
        (true, false) => PortState::NoCarrier,
        (true, true) => PortState::Up,
    }
}

/// Addresses of a netdev, those that are good on one link only last: ICMP speaks from the first.
fn own_addresses(view: &View, link: u32) -> Vec<Address> {
    let all = view.addresses.iter().filter(|(index, _, _)| *index == link);
    let mut addresses: Vec<Address> = all.map(|(_, address, _)| *address).collect();
    addresses.sort_by_key(|address| (crate::values::is_link_local(*address), *address));
    addresses.dedup();
    addresses
}

/// Port of each interface index.
fn places(links: &[Option<u32>]) -> HashMap<u32, PortId> {
    let placed = links.iter().enumerate();
    placed.filter_map(|(at, link)| Some(((*link)?, PortId(at as u16)))).collect()
}

/// All routes by prefix, best first.
fn by_prefix(view: &View) -> HashMap<Prefix, Vec<&KernelRoute>> {
    let mut map: HashMap<Prefix, Vec<&KernelRoute>> = HashMap::new();
    for route in view.routes.iter().filter(|route| !is_multicast(route.prefix.address)) {
        map.entry(route.prefix).or_default().push(route);
    }
    for candidates in map.values_mut() {
        // Stable: of equals the kernel's order holds. Table `local` is asked first.
        candidates.sort_by_key(|route| (route.table != LOCAL_TABLE, route.metric));
    }
    map
}

fn is_multicast(address: Address) -> bool {
    std::net::IpAddr::from(address).is_multicast()
}

struct Routing {
    entries: HashMap<Prefix, RouteTarget<NextHop>>,
    /// Port of each interface index, without ports that are down.
    up: HashMap<u32, PortId>,
    /// Interface indices of netdevs that are up and no port.
    elsewhere: HashSet<u32>,
    /// Interface index of the host port.
    host: Option<u32>,
}

impl Routing {
    fn new(live: &LiveParts, view: &View) -> Routing {
        let places = places(&live.links);
        let host = view.link_named(HOST_NETDEV).map(|link| link.index);
        let is_up = |port: &PortId| live.states[usize::from(port.0)] == PortState::Up;
        let up = places.iter().filter(|(link, port)| Some(**link) != host && is_up(port));
        let links = view.links.values().filter(|link| link.is_up());
        Routing {
            entries: HashMap::new(),
            up: up.map(|(link, port)| (*link, *port)).collect(),
            elsewhere: links.map(|link| link.index).filter(|i| !places.contains_key(i)).collect(),
            host,
        }
    }

    /// What becomes of a prefix that has these routes, best first. `None`: all of them are ours.
    fn target(&self, candidates: &[&KernelRoute]) -> Option<RouteTarget<NextHop>> {
        let mut shadowed = None;
        for route in candidates {
            if self.is_ours(route) || route.kind == RouteKind::Throw {
                continue;
            }
            let target = match route.kind {
                _ if route.standing == Standing::Refused => Some(RouteTarget::Elsewhere),
                RouteKind::Local => Some(RouteTarget::Local),
                RouteKind::Broadcast => Some(RouteTarget::Broadcast),
                RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit => {
                    Some(RouteTarget::Blackhole)
                }
                RouteKind::Unicast | RouteKind::Throw => self.first_usable(&route.hops),
            };
            if target.is_some() {
                return target;
            }
            // Its links are down: the next metric may do, a wider prefix may not.
            shadowed = Some(RouteTarget::Elsewhere);
        }
        shadowed
    }

    /// Whether a route leads into the host port: made by Lockgate.
    fn is_ours(&self, route: &KernelRoute) -> bool {
        let into_host = |hop: &Hop| Some(hop.link) == self.host;
        route.kind == RouteKind::Unicast
            && !route.hops.is_empty()
            && route.hops.iter().all(into_host)
    }

    /// The first hop by a port; if there is none, whether another netdev would take the packet.
    /// `None`: all of them are down.
    fn first_usable(&self, hops: &[Hop]) -> Option<RouteTarget<NextHop>> {
        let usable = || hops.iter().filter(|hop| hop.usability == Usability::Usable);
        let by_port = usable().find_map(|hop| {
            let port = *self.up.get(&hop.link)?;
            Some(NextHop { port, gateway: hop.gateway })
        });
        if let Some(hop) = by_port {
            return Some(RouteTarget::Via(hop));
        }
        let mut others = usable().filter(|hop| self.elsewhere.contains(&hop.link));
        others.next().map(|_| RouteTarget::Elsewhere)
    }

    /// Where refused policy rules may lead, with all that is narrower.
    fn shadow(&mut self, view: &View) {
        for (prefix, target) in &mut self.entries {
            let is_way = !matches!(target, RouteTarget::Local | RouteTarget::Broadcast);
            let is_shadowed = |length| {
                let wider = AddressRange::network(prefix.address, length).first();
                view.shadows.contains(&(wider, length))
            };
            if is_way && !view.shadows.is_empty() && (0..=prefix.length).any(is_shadowed) {
                *target = RouteTarget::Elsewhere;
            }
        }
        for &(address, length) in &view.shadows {
            self.entries.entry(Prefix { address, length }).or_insert(RouteTarget::Elsewhere);
        }
    }

    /// Our addresses, on whatever netdev; what is on every link; what is on none.
    fn add_own(&mut self, live: &LiveParts, view: &View) {
        use crate::values::is_link_local;
        self.entries.retain(|prefix, _| !is_link_local(prefix.address));
        let whole = |address: Address| (address, address.family.address_bits());
        // A wide `Local` would make every packet search the table (`RouteTable::is_ours`).
        let fixed = [
            ((Address::v6(0xfe80 << 112), 10), RouteTarget::Elsewhere),
            ((Address::v4(0xa9fe_0000), 16), RouteTarget::Elsewhere),
            ((Address::v4(0x7f00_0000), 8), RouteTarget::Blackhole),
            (whole(Address::v4(u32::MAX)), RouteTarget::Broadcast),
        ];
        // Another's link-local address on a link of ours may be the same as one of ours elsewhere.
        let is_meant = |(link, address, _): &&(u32, Address, u8)| {
            !is_link_local(*address) || live.links.contains(&Some(*link))
        };
        let own = view.addresses.iter().filter(is_meant);
        let own = own.map(|(_, address, _)| (whole(*address), RouteTarget::Local));
        for ((address, length), target) in fixed.into_iter().chain(own) {
            self.entries.insert(Prefix { address, length }, target);
        }
    }
}
