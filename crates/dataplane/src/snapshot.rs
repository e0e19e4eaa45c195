//! The snapshot: everything the walk looks up, immutable, published by one pointer (DESIGN I2).
//!
//! `control` makes it from a validated configuration; a worker reads it once a batch.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use ipsec::{InboundSa, Mode, OutboundSa, SaId, Spi};
use policy::{Book, Generation, IngressClass, SaSetId, Scope, SetIndex, Spd, Tables, TablesError};
use wire::{Address, Family, LinkAddress};

use crate::error::SnapshotError;
use crate::ids::{Layout, NetdevId, NextHopId, PortId, RouteGeneration};
use crate::port::{Egress, Medium, PortInfo, Side};
use crate::routes::{NextHop, RouteEntry, RouteTable, RouteTarget};
use crate::sa_set::SaSet;

/// A resolved neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// The port it is on.
    pub port: PortId,
    /// Its address.
    pub address: Address,
    /// Its link address.
    pub mac: [u8; 6],
}

/// What a [`Snapshot`] is made of.
#[derive(Default)]
pub struct SnapshotParts {
    /// Generation of the policies as a whole; each domain has one of its own in `spd`.
    pub generation: Generation,
    /// Generation of ports, routes and next hops.
    pub route_generation: RouteGeneration,
    /// What places stand for.
    pub layout: Layout,
    /// Threads that walk packets under snapshots of this process; 0 is taken for 1.
    pub workers: u32,
    /// [`PortId`] counts into this list.
    pub ports: Vec<PortInfo>,
    /// The port that stands for Linux itself, a medium of IP packets.
    pub host: Option<PortId>,
    /// Routes, one per prefix; our own addresses as [`RouteTarget::Local`].
    pub routes: Vec<RouteEntry>,
    /// [`NextHopId`] counts into this list.
    pub next_hops: Vec<NextHop>,
    /// Who lives where on the links.
    pub neighbours: Vec<Neighbour>,
    /// The policies.
    pub spd: Arc<Spd>,
    /// The SA sets.
    pub sets: Vec<SaSet>,
    /// SAs that seal; [`SaId`] counts into this list.
    pub outbound: Vec<Arc<OutboundSa>>,
    /// SAs that open; [`SaId`] counts into this list.
    pub inbound: Vec<Arc<InboundSa>>,
}

/// A device's ports.
#[derive(Clone, Debug)]
struct Device {
    untagged: Option<PortId>,
    tagged: Vec<(u16, PortId)>,
    medium: Medium,
    /// Whether one of the ports completes checksums.
    completes_checksums: bool,
}

/// What each packet asks of a port, on half a cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathPort {
    pub(crate) mac: LinkAddress,
    pub(crate) device: NetdevId,
    pub(crate) mtu: u32,
    pub(crate) vlan: Option<u16>,
    pub(crate) side: Side,
    pub(crate) medium: Medium,
    pub(crate) class: IngressClass,
    pub(crate) completes_checksums: bool,
}

fn path_ports(ports: &[PortInfo], spd: &Spd) -> Box<[PathPort]> {
    let path_port = |(place, info): (u16, &PortInfo)| {
        let PortInfo { device, mtu, vlan, side, medium, .. } = *info;
        let (mac, class) = (LinkAddress::new(info.mac), spd.class(place));
        let completes_checksums = info.completes_checksums();
        PathPort { mac, device, mtu, vlan, side, medium, class, completes_checksums }
    };
    (0..).zip(ports).map(path_port).collect()
}

/// A next hop with what can be known of it once.
#[derive(Clone, Copy, Debug)]
struct Hop {
    hop: NextHop,
    /// Where packets leave by it; of no use on a link without a router, where each destination has
    /// a link address of its own.
    egress: Egress,
    on_link: bool,
    side: Side,
}

/// Who lives where; the addresses in it are chosen by whoever is on the link.
type Neighbours = HashMap<(PortId, Address), LinkAddress, foldhash::quality::RandomState>;

/// Everything the walk looks up.
pub struct Snapshot {
    generation: Generation,
    route_generation: RouteGeneration,
    layout: Layout,
    workers: u32,
    ports: Box<[PortInfo]>,
    path_ports: Box<[PathPort]>,
    /// Our addresses on unprotected ports.
    outside: Box<[Address]>,
    host: Option<PortId>,
    devices: Box<[Option<Device>]>,
    routes: RouteTable,
    next_hops: Box<[Hop]>,
    neighbours: Neighbours,
    tables: Tables,
    sets: Box<[SaSet]>,
    /// Mode of each set's SAs.
    set_mode: Box<[Mode]>,
    /// Egress of each set's outer packets; `None`: no route to the peer.
    set_egress: Box<[Option<Egress>]>,
    /// Largest inner packet that each set's SAs carry without fragmenting the outer one, bytes.
    set_mtu: Box<[u32]>,
    outbound: Box<[Arc<OutboundSa>]>,
    inbound: Box<[Arc<InboundSa>]>,
    inbound_set: Box<[SetIndex]>,
    by_spi: HashMap<u32, SaId, BuildHasherDefault<SpiHasher>>,
}

impl Snapshot {
    /// Puts the parts together and resolves what refers to what.
    ///
    /// # Errors
    /// [`SnapshotError`]: a mistake of the caller; nothing of the parts is kept.
    pub fn new(parts: SnapshotParts) -> Result<Snapshot, SnapshotError> {
        Snapshot::after(parts, None)
    }

    /// The same, for less where the tables are made of an earlier snapshot's: then it does not take
    /// as long as there are policies.
    ///
    /// # Errors
    /// As [`Snapshot::new`].
    pub fn after(
        parts: SnapshotParts,
        earlier: Option<&Tables>,
    ) -> Result<Snapshot, SnapshotError> {
        check_references(&parts)?;
        let SnapshotParts { generation, ports, host, routes, next_hops, neighbours, .. } = parts;
        let SnapshotParts {
            route_generation, spd, sets, outbound, inbound, layout, workers, ..
        } = parts;
        let devices = devices(&ports)?;
        let neighbours: Neighbours = neighbours
            .into_iter()
            .map(|n| ((n.port, n.address), LinkAddress::new(n.mac)))
            .collect();
        let next_hops: Box<[_]> = next_hops
            .into_iter()
            .map(|hop| {
                let PortInfo { medium, side, .. } = ports[usize::from(hop.port.0)];
                let mac = match (medium, hop.gateway) {
                    (Medium::Ip, _) => Some(LinkAddress::new([0; 6])),
                    (Medium::Ethernet, Some(ip)) => neighbours.get(&(hop.port, ip)).copied(),
                    (Medium::Ethernet, None) => None,
                };
                let on_link = medium == Medium::Ethernet && hop.gateway.is_none();
                Hop { hop, egress: Egress { port: hop.port, mac }, on_link, side }
            })
            .collect();
        let set_ids: Vec<SaSetId> = sets.iter().map(|set| set.id).collect();
        let tables = Tables::new(spd, &set_ids, earlier)?;
        let by_spi = by_spi(&inbound)?;
        let inbound_set = inbound
            .iter()
            .map(|sa| tables.set(sa.set).ok_or(TablesError::UnknownSet(sa.set)))
            .collect::<Result<_, _>>()?;
        let mut snapshot = Snapshot {
            generation,
            route_generation,
            layout,
            workers: workers.max(1),
            outside: outside(&ports),
            path_ports: path_ports(&ports, tables.spd()),
            ports: ports.into(),
            host,
            devices,
            routes: RouteTable::new(&routes),
            next_hops,
            neighbours,
            tables,
            set_mode: Box::default(),
            set_egress: Box::default(),
            set_mtu: Box::default(),
            sets: sets.into(),
            outbound: outbound.into(),
            inbound: inbound.into(),
            inbound_set,
            by_spi,
        };
        snapshot.set_mode = snapshot.modes();
        snapshot.set_egress =
            snapshot.sets.iter().map(|set| snapshot.egress_to(set.tunnel.remote.into())).collect();
        snapshot.set_mtu = (0..snapshot.sets.len()).map(|set| snapshot.inner_mtu(set)).collect();
        Ok(snapshot)
    }

    /// Generation of ports, routes and next hops.
    #[inline]
    pub fn route_generation(&self) -> RouteGeneration {
        self.route_generation
    }

    /// The scope in which a book judges packets of a family that came by a port, and were opened
    /// by an SA of a set.
    ///
    /// # Panics
    /// If `ingress` or the set is from another snapshot.
    #[inline]
    pub fn scope(
        &self,
        ingress: PortId,
        book: Book,
        family: Family,
        opened_by: Option<SetIndex>,
    ) -> Scope {
        self.tables.scope(self.path_port(ingress).class, book, family, opened_by)
    }

    /// Generation of the policies as a whole.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// What places in its lists stand for.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Threads that walk packets, at least 1.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// All ports; [`PortId`] counts into this list.
    pub fn ports(&self) -> &[PortInfo] {
        &self.ports
    }

    /// How many devices there are; [`NetdevId`] counts them.
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// One port.
    ///
    /// # Panics
    /// If `port` is from another snapshot.
    #[inline]
    pub fn port(&self, port: PortId) -> &PortInfo {
        &self.ports[usize::from(port.0)]
    }

    /// What each packet asks of a port.
    #[inline]
    pub(crate) fn path_port(&self, port: PortId) -> &PathPort {
        &self.path_ports[usize::from(port.0)]
    }

    /// The port that stands for Linux itself.
    pub fn host(&self) -> Option<PortId> {
        self.host
    }

    /// Whether an address is one of ours on an unprotected port.
    pub(crate) fn is_own_outside(&self, address: Address) -> bool {
        self.outside.contains(&address)
    }

    /// The port of that name.
    pub fn port_named(&self, name: &str) -> Option<PortId> {
        self.ports.iter().position(|port| port.name == name).map(|i| PortId(i as u16))
    }

    /// The routing table.
    pub fn routes(&self) -> &RouteTable {
        &self.routes
    }

    /// The tables: what is asked about a flow.
    #[inline]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The policies.
    pub fn spd(&self) -> &Spd {
        self.tables.spd()
    }

    /// The SA sets; [`SetIndex`] counts into this list.
    pub fn sets(&self) -> &[SaSet] {
        &self.sets
    }

    /// SAs that seal.
    pub fn outbound(&self) -> &[Arc<OutboundSa>] {
        &self.outbound
    }

    /// SAs that open.
    pub fn inbound(&self) -> &[Arc<InboundSa>] {
        &self.inbound
    }

    /// The SA that opens packets with this SPI.
    #[inline]
    pub fn inbound_by_spi(&self, spi: Spi) -> Option<&Arc<InboundSa>> {
        self.by_spi.get(&spi.value()).map(|id| &self.inbound[id.0 as usize])
    }

    /// The next hop with this id.
    pub fn next_hop(&self, hop: NextHopId) -> &NextHop {
        &self.next_hops[hop.0 as usize].hop
    }

    /// Medium of a device; `None`: the device has no port.
    #[inline]
    pub(crate) fn medium(&self, device: NetdevId) -> Option<Medium> {
        self.devices.get(usize::from(device.0))?.as_ref().map(|device| device.medium)
    }

    /// Whether a port of the device completes checksums.
    #[inline]
    pub(crate) fn completes_checksums(&self, device: NetdevId) -> bool {
        let device = self.devices.get(usize::from(device.0));
        device.is_some_and(|device| device.as_ref().is_some_and(|d| d.completes_checksums))
    }

    /// The port that a frame with this VLAN id (none: untagged) on this device belongs to.
    #[inline]
    pub(crate) fn port_of(&self, device: NetdevId, vlan: Option<u16>) -> Option<PortId> {
        let device = self.devices.get(usize::from(device.0))?.as_ref()?;
        match vlan {
            None => device.untagged,
            Some(id) => device.tagged.iter().find(|(tag, _)| *tag == id).map(|(_, port)| *port),
        }
    }

    /// One SA set.
    #[inline]
    pub(crate) fn set(&self, set: SetIndex) -> &SaSet {
        &self.sets[set.0 as usize]
    }

    /// Whether a packet with this source may come by an SA of a set. A transport mode SA is between
    /// its two ends (RFC 4301 §4.1): its policies say so too, but the source, which nothing
    /// authenticates there, is not left to them alone.
    #[inline]
    pub(crate) fn may_come_by(&self, set: SetIndex, source: Address) -> bool {
        match self.set_mode[set.0 as usize] {
            Mode::Tunnel => true,
            Mode::Transport => source == self.set(set).tunnel.remote.into(),
        }
    }

    /// The mode of each set's SAs; of a set without any it does not matter.
    fn modes(&self) -> Box<[Mode]> {
        let mut modes = vec![Mode::Tunnel; self.sets.len()];
        for (sa, set) in self.inbound.iter().zip(&self.inbound_set) {
            modes[set.0 as usize] = sa.encapsulation.mode;
        }
        modes.into()
    }

    /// Where a set's outer packets leave.
    #[inline]
    pub(crate) fn set_egress(&self, set: SetIndex) -> Option<Egress> {
        self.set_egress[set.0 as usize]
    }

    /// Largest inner packet that goes through a set's tunnel whole, bytes.
    ///
    /// # Panics
    /// If `set` is from another snapshot.
    #[inline]
    pub fn set_mtu(&self, set: SetIndex) -> u32 {
        self.set_mtu[set.0 as usize]
    }

    /// The set that an inbound SA belongs to.
    #[inline]
    pub(crate) fn set_of(&self, sa: SaId) -> SetIndex {
        self.inbound_set[sa.0 as usize]
    }

    /// The link address of a neighbour, if it is resolved.
    pub fn link_address(&self, port: PortId, address: Address) -> Option<LinkAddress> {
        self.neighbours.get(&(port, address)).copied()
    }

    /// Egress towards `destination` by next hop `hop`.
    #[inline]
    pub(crate) fn egress(&self, hop: NextHopId, destination: Address) -> Egress {
        let Hop { egress, on_link, .. } = self.next_hops[hop.0 as usize];
        if on_link { self.egress_on_link(egress.port, destination) } else { egress }
    }

    #[inline(never)]
    fn egress_on_link(&self, port: PortId, destination: Address) -> Egress {
        Egress { port, mac: self.neighbours.get(&(port, destination)).copied() }
    }

    /// The side of the port that a next hop is behind.
    #[inline]
    pub(crate) fn side_of(&self, hop: NextHopId) -> Side {
        self.next_hops[hop.0 as usize].side
    }

    /// The class of the port that a next hop is behind, for verdicts that depend on it.
    pub(crate) fn egress_class(&self, hop: NextHopId) -> u16 {
        self.path_port(self.next_hops[hop.0 as usize].egress.port).class.0
    }

    fn egress_to(&self, destination: Address) -> Option<Egress> {
        match self.routes.lookup(destination) {
            Some(RouteTarget::Via(hop)) => Some(self.egress(hop, destination)),
            _ => None,
        }
    }

    /// The neighbour that a packet to this destination goes to: the gateway of its route, or the
    /// destination itself.
    pub(crate) fn next_hop_to(&self, destination: Address) -> Address {
        match self.routes.lookup(destination) {
            Some(RouteTarget::Via(hop)) => self.next_hop(hop).gateway.unwrap_or(destination),
            _ => destination,
        }
    }

    fn inner_mtu(&self, set: usize) -> u32 {
        let Some(egress) = self.set_egress[set] else { return 0 };
        let path_mtu = self.port(egress.port).mtu as usize;
        let of_sa = |sa: &SaId| self.outbound[sa.0 as usize].largest_inner(path_mtu) as u32;
        self.sets[set].outbound.iter().map(of_sa).min().unwrap_or(0)
    }

    /// Our address of a family to speak from: the port's own, else the first of any other port.
    pub(crate) fn own_address(&self, port: PortId, family: Family) -> Option<Address> {
        let of_family =
            |port: &PortInfo| port.addresses.iter().copied().find(|a| a.family == family);
        of_family(self.port(port)).or_else(|| self.ports.iter().find_map(of_family))
    }
}

/// Everything that names a place in another list names one that exists.
fn check_references(parts: &SnapshotParts) -> Result<(), SnapshotError> {
    let is_port = |port: PortId| usize::from(port.0) < parts.ports.len();
    let is_hop = |hop: NextHopId| (hop.0 as usize) < parts.next_hops.len();
    let is_outbound = |sa: &SaId| (sa.0 as usize) < parts.outbound.len();
    let leads_somewhere = |entry: &RouteEntry| match entry.target {
        RouteTarget::Via(hop) => is_hop(hop),
        RouteTarget::Local
        | RouteTarget::Broadcast
        | RouteTarget::Blackhole
        | RouteTarget::Elsewhere => true,
    };
    let misplaced = parts.outbound.iter().enumerate().find(|(at, sa)| sa.id.0 as usize != *at);
    if let Some((_, sa)) = misplaced {
        return Err(SnapshotError::Misplaced(sa.id));
    }
    let checks = [
        (parts.next_hops.iter().all(|hop| is_port(hop.port)), "a next hop"),
        (parts.neighbours.iter().all(|neighbour| is_port(neighbour.port)), "a neighbour"),
        (parts.host.is_none_or(is_port), "the host port"),
        (parts.routes.iter().all(leads_somewhere), "a route"),
        (parts.sets.iter().flat_map(|set| &set.outbound).all(is_outbound), "an SA set"),
    ];
    match checks.iter().find(|(holds, _)| !holds) {
        Some((_, what)) => Err(SnapshotError::Dangling(what)),
        None => Ok(()),
    }
}

fn outside(ports: &[PortInfo]) -> Box<[Address]> {
    let unprotected = ports.iter().filter(|port| port.side == Side::Unprotected);
    unprotected.flat_map(|port| port.addresses.iter().copied()).collect()
}

fn devices(ports: &[PortInfo]) -> Result<Box<[Option<Device>]>, SnapshotError> {
    let count = ports.iter().map(|port| usize::from(port.device.0) + 1).max().unwrap_or(0);
    let mut devices: Vec<Option<Device>> = vec![None; count];
    for (i, port) in ports.iter().enumerate() {
        let id = PortId(i as u16);
        let device = devices[usize::from(port.device.0)].get_or_insert(Device {
            untagged: None,
            tagged: Vec::new(),
            medium: port.medium,
            completes_checksums: false,
        });
        device.completes_checksums |= port.completes_checksums();
        let earlier = match port.vlan {
            None => device.untagged.replace(id),
            Some(tag) => {
                let earlier = device.tagged.iter().find(|(t, _)| *t == tag).map(|(_, p)| *p);
                device.tagged.push((tag, id));
                earlier
            }
        };
        if let Some(earlier) = earlier {
            return Err(SnapshotError::SamePort(earlier, id));
        }
    }
    Ok(devices.into())
}

type SpiMap = HashMap<u32, SaId, BuildHasherDefault<SpiHasher>>;

fn by_spi(inbound: &[Arc<InboundSa>]) -> Result<SpiMap, SnapshotError> {
    let mut map = SpiMap::default();
    for (place, sa) in inbound.iter().enumerate() {
        if sa.id.0 as usize != place {
            return Err(SnapshotError::Misplaced(sa.id));
        }
        if map.insert(sa.spi.value(), sa.id).is_some() {
            return Err(SnapshotError::SameSpi(sa.spi));
        }
    }
    Ok(map)
}

/// Hash of an SPI: one multiplication. The SPIs in the map are ours, so nobody outside can choose
/// them to collide.
#[derive(Default)]
struct SpiHasher(u64);

impl Hasher for SpiHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        // The multiplier is 2^64 / golden ratio; the map takes both the high and the low bits.
        let product = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}
