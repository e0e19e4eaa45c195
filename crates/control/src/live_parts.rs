//! Translates the kernel's state to the tables that workers look up. Pure.
//!
//! | the kernel has | the walk gets |
//! |---|---|
//! | an address on any netdev, a local or anycast route | `Local` |
//! | a broadcast route | `Broadcast` |
//! | a route by a port's netdev | `Via`, by the first hop that is usable |
//! | blackhole, unreachable, prohibit | `Blackhole` |
//! | a route by another netdev, by a port that is down, or one that is refused | `Elsewhere` |
//! | a route by `lockgate0` | nothing: it is for the host's own packets |
//! | several routes to one prefix | the lowest metric of those that lead to a port |
//!
//! Link-local networks are `Elsewhere` as a whole: they are on every link, and the walk forwards
//! nothing from or to them.
//!
//! Not used live: the configuration's `[[route]]`, `[[neighbour]]`, `addresses`, `mac` and `mtu`.
//! They tell `replay` and `explain` what Linux tells here. (The daemon's start looks at `mtu`, to
//! choose frames.)

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{
    FRAME_BYTES, L4Checksum, Neighbours, NetdevId, NextHop, PortId, PortInfos, Prefix, RouteTarget,
    Routes, largest_mtu,
};
use imbl::ordmap::DiffItem::{Add, Remove, Update};
use imbl::{OrdMap, OrdSet};
use policy::AddressRange;
use wire::Address;

use config::{HOST_NETDEV, Validated};

use crate::port_slots::PortSlots;
use linux::{Hop, KernelRoute, Link, NeighbourEntry, RouteKind, RouteStatus, Usability, View};

/// The parts of a snapshot that come from the kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct LiveParts {
    /// Slots of the configuration's ports and netdevs, and of the host port.
    pub slots: Arc<PortSlots>,
    /// The ports by slot.
    pub ports: PortInfos,
    /// State of each port by slot.
    pub states: Vec<PortState>,
    /// Interface index that a port's addresses and routes are on, by slot: for a tagged port that
    /// of Linux's VLAN netdev. `None`: there is none.
    pub links: Vec<Option<u32>>,
    /// Interface index of each netdev that frames are received from; [`NetdevId`] counts into
    /// this list. `None`: there is none of that name.
    pub netdevs: Vec<Option<u32>>,
    /// Routes.
    pub routes: Routes,
    /// Neighbours that packets can be sent to.
    pub neighbours: Neighbours,
    /// Next hops worth keeping fresh, by interface index: all routers, and peers on a link.
    pub fresh: OrdSet<(u32, Address)>,
    /// Problems that an operator should know of.
    pub problems: Vec<LiveProblem>,
    /// Number of routes by each router.
    routers: OrdMap<(PortId, Address), u32>,
    /// Addresses of peers, with the port if the peer is on one of its links.
    remotes: OrdMap<Address, Option<PortId>>,
}

/// State of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// The port's netdev does not exist.
    Absent,
    /// The port's netdev is switched off.
    Down,
    /// The other end is not there.
    NoCarrier,
    /// Packets can leave.
    Up,
}

/// A fault outside of Lockgate that was found while the daemon runs.
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
    /// Packets of a port can be too long for the frames that the daemon chose at its start.
    #[error(
        "port {port}: {netdev} has an MTU of {mtu}, but frames of {frame_bytes} bytes hold packets \
         of {} bytes at most: {}ip link set {netdev} mtu {}",
        largest_mtu(*.frame_bytes), .cure.words(), largest_mtu(*.frame_bytes)
    )]
    LongPackets {
        /// The port's name.
        port: String,
        /// Name of the netdev that has the MTU.
        netdev: String,
        /// The MTU.
        mtu: u32,
        /// Bytes of a frame.
        frame_bytes: usize,
        /// The way to have them fit.
        cure: Cure,
    },
}

/// A way to have all packets of a port fit the frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cure {
    /// A restart of the daemon, which then chooses larger frames; or a lower MTU.
    Restart,
    /// A lower MTU: there are no larger frames.
    LowerMtu,
}

impl Cure {
    /// Words in front of the command that lowers the MTU.
    const fn words(self) -> &'static str {
        match self {
            Cure::Restart => "restart lockgated, which then chooses larger frames, or ",
            Cure::LowerMtu => "",
        }
    }
}

impl LiveProblem {
    /// Name of the port or peer that has the problem.
    pub fn subject(&self) -> &str {
        match self {
            LiveProblem::NoNetdev { port, .. }
            | LiveProblem::NoVlanNetdev { port, .. }
            | LiveProblem::NoAddress { port, .. }
            | LiveProblem::LongPackets { port, .. } => port,
            LiveProblem::NoHostNetdev => HOST_NETDEV,
            LiveProblem::TunnelAddressAbsent { peer, .. } => peer,
        }
    }

    /// Returns the netdev whose packets would fit the frames better after a restart, if it is about
    /// one.
    pub fn outgrown(&self) -> Option<&str> {
        match self {
            LiveProblem::LongPackets { netdev, cure: Cure::Restart, .. } => Some(netdev),
            _ => None,
        }
    }
}

/// Derives the parts that the walk needs from the kernel's view: see the table at the head of this
/// file. Ports have the slots that they have before another configuration runs.
pub fn live_parts(config: &Validated, view: &View) -> LiveParts {
    let remotes = config.peers.iter().map(|peer| peer.tunnel().remote);
    live_parts_towards(config, view, PortSlots::in_order(config).into(), remotes)
}

/// Derives the parts as [`live_parts`] does, for ports in these slots and for peers that are
/// elsewhere than configured: `remotes` are their present addresses.
pub fn live_parts_towards(
    config: &Validated,
    view: &View,
    slots: Arc<PortSlots>,
    remotes: impl Iterator<Item = IpAddr>,
) -> LiveParts {
    let mut live = LiveParts {
        slots,
        ports: PortInfos::default(),
        states: Vec::new(),
        links: Vec::new(),
        netdevs: Vec::new(),
        routes: Routes::new(),
        neighbours: Neighbours::new(),
        fresh: OrdSet::new(),
        problems: Vec::new(),
        routers: OrdMap::new(),
        remotes: OrdMap::new(),
    };
    live.place_ports(config, view);
    let routing = Routing::new(&live, view);
    let shadows = view.shadows.iter().map(|(address, length)| (*address, *length));
    let shadows = shadows.map(|(address, length)| Prefix { address, length });
    for prefix in view.routes.keys().chain(routing.own.keys()).copied().chain(shadows) {
        live.set_route(prefix, routing.target(prefix, view));
    }
    let places = places(&live.links);
    for (&key, entry) in &view.neighbours {
        live.set_neighbour(&places, key, Some(entry));
    }
    for remote in remotes {
        live.find_remote(remote.into());
    }
    live.judge_tunnels(config, view);
    live
}

impl LiveParts {
    /// Returns whether the tunnel of some peer has an address as its other end.
    pub fn has_remote(&self, end: Address) -> bool {
        self.remotes.contains_key(&end)
    }

    /// Makes the live parts of a later view, for the same configuration and the same ends of
    /// tunnels. The cost grows with the number of changes. `None`: links, addresses or shadows
    /// changed, and all must be made anew.
    pub fn followed(&self, before: &View, view: &View) -> Option<LiveParts> {
        let is_same = before.links == view.links
            && before.addresses == view.addresses
            && before.shadows == view.shadows;
        if !is_same {
            return None;
        }
        let mut live = self.clone();
        let routing = Routing::new(self, view);
        for change in before.routes.diff(&view.routes) {
            let (Add(prefix, _) | Remove(prefix, _) | Update { new: (prefix, _), .. }) = change;
            live.set_route(*prefix, routing.target(*prefix, view));
            let last = Address { value: prefix.last(), ..prefix.address };
            let remotes = self.remotes.range(prefix.address..=last);
            remotes.for_each(|(remote, _)| live.find_remote(*remote));
        }
        let places = places(&self.links);
        for change in before.neighbours.diff(&view.neighbours) {
            let (key, entry) = match change {
                Add(key, entry) | Update { new: (key, entry), .. } => (key, Some(entry)),
                Remove(key, _) => (key, None),
            };
            live.set_neighbour(&places, *key, entry);
        }
        Some(live)
    }

    /// Sets the target of a prefix; `None` removes its route.
    fn set_route(&mut self, prefix: Prefix, target: Option<RouteTarget<NextHop>>) {
        let router = |target: RouteTarget<NextHop>| match target {
            RouteTarget::Via(hop) => Some((hop.port, hop.gateway?)),
            _ => None,
        };
        if let Some(router) = target.and_then(router) {
            *self.routers.entry(router).or_default() += 1;
            self.look_after(router);
        }
        let before = match target {
            Some(target) => self.routes.insert(prefix, target),
            None => self.routes.remove(&prefix),
        };
        if let Some(router) = before.and_then(router)
            && let Some(routes) = self.routers.get_mut(&router)
        {
            *routes -= 1;
            if *routes == 0 {
                self.routers.remove(&router);
                self.look_after(router);
            }
        }
    }

    fn set_neighbour(
        &mut self,
        places: &HashMap<u32, PortId>,
        (link, address): (u32, Address),
        entry: Option<&NeighbourEntry>,
    ) {
        let Some(port) = places.get(&link) else { return };
        match entry.and_then(NeighbourEntry::usable_mac) {
            Some(mac) => self.neighbours.insert((*port, address), mac),
            None => self.neighbours.remove(&(*port, address)),
        };
    }

    /// Returns these parts with one more end of tunnels. Cheap.
    pub fn towards(&self, remote: IpAddr) -> LiveParts {
        let mut live = self.clone();
        live.find_remote(remote.into());
        live
    }

    /// Returns these parts without an end of tunnels. Cheap.
    pub fn away_from(&self, remote: IpAddr) -> LiveParts {
        let (mut live, remote) = (self.clone(), remote.into());
        if let Some(Some(port)) = live.remotes.remove(&remote) {
            live.look_after((port, remote));
        }
        live
    }

    /// Looks up whether a peer is on a link.
    fn find_remote(&mut self, remote: Address) {
        let hop = self.hop_to(remote).filter(|hop| hop.gateway.is_none());
        let port = hop.map(|hop| hop.port);
        let before = self.remotes.insert(remote, port).flatten();
        before.into_iter().chain(port).for_each(|port| self.look_after((port, remote)));
    }

    /// Lists a next hop as one to keep fresh if it is a router, or a peer on a link.
    fn look_after(&mut self, (port, address): (PortId, Address)) {
        let is_host = port == self.slots.host();
        let Some(link) = self.links[usize::from(port.0)].filter(|_| !is_host) else { return };
        let is_peer = self.remotes.get(&address).copied().flatten() == Some(port);
        match is_peer || self.routers.contains_key(&(port, address)) {
            true => self.fresh.insert((link, address)),
            false => self.fresh.remove(&(link, address)),
        };
    }

    /// Port of an interface index.
    pub fn port_of_link(&self, link: u32) -> Option<PortId> {
        self.links.iter().position(|index| *index == Some(link)).map(|at| PortId(at as u16))
    }

    /// Fills in ports, their states and links, and the netdevs.
    fn place_ports(&mut self, config: &Validated, view: &View) {
        let slots = self.slots.clone();
        let names = config.ports.iter().map(|port| port.netdev.as_str());
        for (name, (port, mut info)) in names.chain([HOST_NETDEV]).zip(slots.infos(config)) {
            let netdev = view.link_named(name);
            let NetdevId(place) = info.netdev;
            *entry(&mut self.netdevs, place, None) = netdev.map(|link| link.index);
            let link = match (netdev, info.vlan) {
                (Some(netdev), Some(id)) => view.vlan_on(netdev.index, id),
                (netdev, _) => netdev,
            };
            let is_host = port == slots.host();
            info.addresses = Vec::new();
            if let Some(link) = link {
                (info.mtu, info.addresses) = (link.mtu, own_addresses(view, link.index));
                if !is_host {
                    info.mac = link.mac;
                }
            }
            let may_be_unfinished =
                netdev.is_some_and(|netdev| netdev.kind.passes_unfinished_checksums());
            if !may_be_unfinished {
                info.l4_checksum = L4Checksum::Pass;
            }
            *entry(&mut self.links, port.0, None) = link.map(|link| link.index);
            *entry(&mut self.states, port.0, PortState::Absent) = state(netdev, link);
            let (slot, port) = (usize::from(port.0), info.name.clone());
            let problem = match (netdev, link, info.vlan) {
                (None, _, _) if is_host => Some(LiveProblem::NoHostNetdev),
                (None, _, _) => Some(LiveProblem::NoNetdev { port, netdev: name.into() }),
                (_, None, Some(vlan)) => {
                    Some(LiveProblem::NoVlanNetdev { port, netdev: name.into(), vlan })
                }
                (_, Some(link), _) if !is_host && info.addresses.is_empty() => {
                    Some(LiveProblem::NoAddress { port, netdev: link.name.clone() })
                }
                _ => None,
            };
            self.problems.extend(problem);
            self.ports.set(slot, Some(info));
        }
    }

    /// Notes ports whose packets can be too long for frames of `frame_bytes` bytes. Call it once,
    /// when all parts are made.
    pub fn judge_mtus(&mut self, view: &View, frame_bytes: usize) {
        let largest = FRAME_BYTES.into_iter().max();
        let cure = if Some(frame_bytes) < largest { Cure::Restart } else { Cure::LowerMtu };
        for (slot, info) in self.ports.iter() {
            let link = self.links[slot].and_then(|link| view.links.get(&link));
            let Some(link) = link.filter(|link| link.mtu > largest_mtu(frame_bytes)) else {
                continue;
            };
            let (port, netdev, mtu) = (info.name.clone(), link.name.clone(), link.mtu);
            let problem = LiveProblem::LongPackets { port, netdev, mtu, frame_bytes, cure };
            self.problems.push(problem);
        }
    }

    /// The next hop of one destination.
    pub fn hop_to(&self, destination: Address) -> Option<NextHop> {
        let length = destination.family.address_bits();
        match self.route_around(Prefix { address: destination, length })? {
            RouteTarget::Via(hop) => Some(*hop),
            _ => None,
        }
    }

    /// The route of a prefix, or of the next wider one that has a route.
    pub fn route_around(&self, prefix: Prefix) -> Option<&RouteTarget<NextHop>> {
        let mut wider = (0..=prefix.length).rev().map(|length| {
            let address = AddressRange::network(prefix.address, length).first();
            self.routes.get(&Prefix { address, length })
        });
        wider.find_map(|target| target)
    }

    fn judge_tunnels(&mut self, config: &Validated, view: &View) {
        for peer in &config.peers {
            let address = Address::from(peer.tunnel().local);
            let may_end_at = |own: Address| {
                own == address || peer.moves.local.iter().any(|range| range.contains(own))
            };
            if !view.addresses.iter().any(|(_, own, _)| may_end_at(*own)) {
                let peer = peer.name.clone();
                self.problems.push(LiveProblem::TunnelAddressAbsent { peer, address });
            }
        }
    }
}

fn state(netdev: Option<&Link>, link: Option<&Link>) -> PortState {
    let Some(netdev) = netdev else { return PortState::Absent };
    // A tagged port without its VLAN netdev has no addresses, but its frames come and go.
    let link = link.unwrap_or(netdev);
    match (netdev.admin_up && link.admin_up, netdev.carrier && link.carrier) {
        (false, _) => PortState::Down,
        (true, false) => PortState::NoCarrier,
        (true, true) => PortState::Up,
    }
}

/// Addresses of a netdev, link-local ones last: ICMP errors are sent from the first.
fn own_addresses(view: &View, link: u32) -> Vec<Address> {
    let all = view.addresses.iter().filter(|(index, _, _)| *index == link);
    let mut addresses: Vec<Address> = all.map(|(_, address, _)| *address).collect();
    addresses.sort_by_key(|address| (config::is_link_local(*address), *address));
    addresses.dedup();
    addresses
}

/// Returns the entry of a slot, behind which the list need not go.
fn entry<T: Clone>(list: &mut Vec<T>, slot: u16, vacant: T) -> &mut T {
    let slot = usize::from(slot);
    if slot >= list.len() {
        list.resize(slot + 1, vacant);
    }
    &mut list[slot]
}

/// Port of each interface index.
fn places(links: &[Option<u32>]) -> HashMap<u32, PortId> {
    let placed = links.iter().enumerate();
    placed.filter_map(|(at, link)| Some(((*link)?, PortId(at as u16)))).collect()
}

fn is_multicast(address: Address) -> bool {
    std::net::IpAddr::from(address).is_multicast()
}

/// Finds the targets of routes, for the ports and addresses of a view.
struct Routing {
    /// Prefixes that are what they are, whatever routes say.
    own: HashMap<Prefix, RouteTarget<NextHop>>,
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
            own: own(live, view),
            up: up.map(|(link, port)| (*link, *port)).collect(),
            elsewhere: links.map(|link| link.index).filter(|i| !places.contains_key(i)).collect(),
            host,
        }
    }

    /// Returns the target of a prefix; `None`: it has no route.
    fn target(&self, prefix: Prefix, view: &View) -> Option<RouteTarget<NextHop>> {
        if let Some(own) = self.own.get(&prefix) {
            return Some(*own);
        }
        if config::is_link_local(prefix.address) {
            return None;
        }
        let routes = view.routes.get(&prefix).filter(|_| !is_multicast(prefix.address));
        let target = routes.and_then(|routes| self.best_of(routes));
        // Where refused policy rules may lead, with all that is narrower.
        let is_way = !matches!(target, None | Some(RouteTarget::Local | RouteTarget::Broadcast));
        let shadowed = |length| {
            let wider = AddressRange::network(prefix.address, length).first();
            view.shadows.contains(&(wider, length))
        };
        let is_shadowed = match is_way {
            true => !view.shadows.is_empty() && (0..=prefix.length).any(shadowed),
            false => target.is_none() && shadowed(prefix.length),
        };
        if is_shadowed { Some(RouteTarget::Elsewhere) } else { target }
    }

    /// Returns the target of a prefix that has these routes, best first. `None`: all of them are
    /// Lockgate's own.
    fn best_of(&self, routes: &[KernelRoute]) -> Option<RouteTarget<NextHop>> {
        let mut shadowed = None;
        for route in routes {
            if self.is_ours(route) || route.kind == RouteKind::Throw {
                continue;
            }
            let target = match route.kind {
                _ if route.standing == RouteStatus::Refused => Some(RouteTarget::Elsewhere),
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

    /// Returns whether a route leads into the host port: Lockgate made it.
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
}

/// Our addresses, on whatever netdev; what is on every link; what is on none.
fn own(live: &LiveParts, view: &View) -> HashMap<Prefix, RouteTarget<NextHop>> {
    use config::is_link_local;
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
    let entries = fixed.into_iter().chain(own);
    entries.map(|((address, length), target)| (Prefix { address, length }, target)).collect()
}
