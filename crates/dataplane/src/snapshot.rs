//! The snapshot: everything the walk looks up, immutable, published by one pointer (DESIGN I2).
//!
//! A snapshot consists of parts: ports, routing (routes, next hops, neighbours), tables (policies),
//! the SAD. It shares those that did not change with the snapshot before. Some values depend on two
//! parts (the class of a port, the way to a peer); they are computed again where one of the two
//! changed. So the cost of a snapshot grows with the number of changes, not with the size of the
//! tables.
//!
//! `control` makes it from a validated configuration; a worker reads it once a batch.

mod keepalives;
mod links;
mod number;
mod ports;
mod routing;
mod sealing;
mod sizes;

use std::sync::Arc;

use imbl::OrdSet;
use ipsec::{InboundSa, OutboundSa, SaId, Spi};
use persistent::Slotted;
use policy::{Exit, Generation, PortClass, Question, Scope, SetIndex, Spd, Tables};
use wire::{Address, Family, LinkAddress};

use self::links::SetLink;
use self::ports::{Netdev, Ports};
use self::routing::{Hop, Routing};
use crate::acquire_switch::AcquireSwitch;
use crate::card_marks::CardMarks;
use crate::connections::{Connections, Gate, Zone};
use crate::error::SnapshotError;
use crate::ids::{NetdevId, NextHopId, PortId, RouteGeneration};
use crate::overlays::{Overlays, VirtualNetwork};
use crate::port::{Adjacency, Medium, PortInfo, Side};
use crate::routes::{NextHop, RouteEntry, RouteTable, RouteTarget};
use crate::sa_set::SaSet;
use crate::sad::Sad;

pub(crate) use self::keepalives::{KeepaliveSet, KeepaliveSets, KeepaliveSettings};
pub(crate) use self::number::SnapshotNumber;
pub(crate) use self::ports::PathPort;
pub use self::ports::PortInfos;
pub use self::routing::{Neighbours, Routes};
pub(crate) use self::sizes::LEAST_MTU_V6;
pub use self::sizes::SetSizes;

/// A resolved neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// The port it is on.
    pub port: PortId,
    /// Address of the neighbour.
    pub address: Address,
    /// Link address of the neighbour.
    pub mac: [u8; 6],
}

/// The parts that a [`Snapshot`] is made of. Cheap to copy.
#[derive(Clone, Default)]
pub struct Sources {
    /// Generation of the policies as a whole; each domain has one of its own in `spd`.
    pub generation: Generation,
    /// Number of an arrangement of policy slots: under one number a slot is one policy's.
    pub policy_slots: u32,
    /// Threads that walk packets under snapshots of this process; 0 is taken for 1.
    pub workers: u32,
    /// The ports by slot. Between a snapshot and the next no slot, of a port or a netdev, goes from
    /// one to another: it is vacant in between.
    pub ports: PortInfos,
    /// The port that stands for Linux itself, a medium of IP packets.
    pub host: Option<PortId>,
    /// Routes; our own addresses as [`RouteTarget::Local`].
    pub routes: Routes,
    /// Neighbour table: link addresses of the neighbours on each port.
    pub neighbours: Neighbours,
    /// The policies.
    pub spd: Arc<Spd>,
    /// SA sets and SAs.
    pub sad: Sad,
    /// The connections that `reflect` rules let through. `None`: there is no room for any.
    pub connections: Option<Arc<Connections>>,
    /// Says whether a key manager listens.
    pub acquires: Arc<AcquireSwitch>,
    /// Virtual networks; `None`: there are none.
    pub overlays: Option<Arc<Overlays>>,
    /// Tags of cards that count under these policies; `None`: none do.
    pub cards: Option<Arc<CardMarks>>,
}

/// The parts that a [`Snapshot`] is made of, as plain lists.
#[derive(Default)]
pub struct SnapshotParts {
    /// Generation of the policies as a whole.
    pub generation: Generation,
    /// Generation of ports, routes and next hops.
    pub route_generation: RouteGeneration,
    /// Threads that walk packets; 0 is taken for 1.
    pub workers: u32,
    /// The ports; [`PortId`] counts into this list, which has no vacant slots.
    pub ports: Vec<PortInfo>,
    /// The port that stands for Linux itself, a medium of IP packets.
    pub host: Option<PortId>,
    /// Routes, one per prefix; our own addresses as [`RouteTarget::Local`].
    pub routes: Vec<RouteEntry>,
    /// [`NextHopId`]s of `routes` count into this list; a snapshot numbers them in its own way.
    pub next_hops: Vec<NextHop>,
    /// The resolved neighbours on the links.
    pub neighbours: Vec<Neighbour>,
    /// The policies.
    pub spd: Arc<Spd>,
    /// The connections that `reflect` rules let through. `None`: there is no room for any.
    pub connections: Option<Arc<Connections>>,
    /// Says whether a key manager listens.
    pub acquires: Arc<AcquireSwitch>,
    /// The SA sets; [`SetIndex`] counts into this list.
    pub sets: Vec<SaSet>,
    /// SAs that seal; [`SaId`] counts into this list.
    pub outbound: Vec<Arc<OutboundSa>>,
    /// SAs that open; [`SaId`] counts into this list.
    pub inbound: Vec<Arc<InboundSa>>,
    /// Virtual networks; `None`: there are none.
    pub overlays: Option<Arc<Overlays>>,
    /// Tags of cards that count under these policies; `None`: none do.
    pub cards: Option<Arc<CardMarks>>,
}

impl TryFrom<SnapshotParts> for Sources {
    type Error = SnapshotError;

    fn try_from(parts: SnapshotParts) -> Result<Sources, SnapshotError> {
        let SnapshotParts { generation, workers, host, spd, .. } = parts;
        let SnapshotParts { ports, routes, next_hops, neighbours, .. } = parts;
        let SnapshotParts { sets, outbound, inbound, connections, acquires, overlays, .. } = parts;
        let SnapshotParts { cards, .. } = parts;
        let hop = |entry: &RouteEntry| -> Result<_, SnapshotError> {
            let target = match entry.target {
                RouteTarget::Via(hop) => {
                    let hop = next_hops.get(hop.0 as usize);
                    RouteTarget::Via(*hop.ok_or(SnapshotError::Dangling("a route"))?)
                }
                other => other.map(|_| unreachable!("it has no next hop")),
            };
            Ok((entry.prefix, target))
        };
        let mut sad = Sad::default();
        sets.into_iter().for_each(|set| _ = sad.put_set(set));
        for (place, sa) in outbound.into_iter().enumerate() {
            if sa.id.0 as usize != place {
                return Err(SnapshotError::Misplaced(sa.id));
            }
            sad.put_outbound(sa);
        }
        for (place, sa) in inbound.into_iter().enumerate() {
            if sa.id.0 as usize != place {
                return Err(SnapshotError::Misplaced(sa.id));
            }
            sad.put_inbound(sa)?;
        }
        Ok(Sources {
            generation,
            policy_slots: 0,
            workers,
            ports: ports.into_iter().collect(),
            host,
            routes: routes.iter().map(hop).collect::<Result<_, _>>()?,
            neighbours: neighbours.iter().map(|n| ((n.port, n.address), n.mac)).collect(),
            spd,
            sad,
            connections,
            acquires,
            overlays,
            cards,
        })
    }
}

/// An immutable object with all data that the walk looks up.
pub struct Snapshot {
    number: SnapshotNumber,
    sources: Sources,
    ports: Arc<Ports>,
    path_ports: Arc<[PathPort]>,
    routing: Routing,
    tables: Tables,
    links: Slotted<SetLink>,
    /// The peers' ends of tunnels.
    remotes: OrdSet<(Address, SetIndex)>,
    /// The sets whose packets are sealed again.
    nested: OrdSet<SetIndex>,
    keepalives: KeepaliveSets,
}

impl Snapshot {
    /// Puts the parts together and resolves what refers to what.
    ///
    /// # Errors
    /// [`SnapshotError`]: a mistake of the caller; nothing of the parts is kept.
    pub fn new(parts: SnapshotParts) -> Result<Snapshot, SnapshotError> {
        let generation = parts.route_generation;
        Snapshot::assemble(parts.try_into()?, None, generation)
    }

    /// Puts a snapshot together that follows an earlier one, of which it shares what is the same:
    /// it costs what changed, unless ports did. The route generation rises by 1 where ports or
    /// routes are others.
    ///
    /// # Errors
    /// Those of [`Snapshot::new`].
    pub fn after(sources: Sources, earlier: Option<&Snapshot>) -> Result<Snapshot, SnapshotError> {
        let generation = earlier.map_or(RouteGeneration(0), Snapshot::route_generation);
        Snapshot::assemble(sources, earlier, generation.next())
    }

    /// Assembles a snapshot that has this route generation, if its ports are others than those
    /// of the earlier one.
    fn assemble(
        sources: Sources,
        earlier: Option<&Snapshot>,
        generation: RouteGeneration,
    ) -> Result<Snapshot, SnapshotError> {
        let is_missing = |port: PortId| sources.ports.get(usize::from(port.0)).is_none();
        if sources.host.is_some_and(is_missing) {
            return Err(SnapshotError::Dangling("the host port"));
        }
        let tables = earlier.map(|earlier| &earlier.tables);
        let tables = Tables::new(sources.spd.clone(), sources.sad.places(), tables)?;
        let is_same =
            |ports: &PortInfos| sources.ports.changes(ports, PortInfo::eq).next().is_none();
        let among_same_ports = earlier.filter(|earlier| is_same(&earlier.sources.ports));
        let mut next = match among_same_ports {
            Some(earlier) => earlier.with(sources, tables),
            None => Snapshot::without_ways(sources, tables, earlier, generation)?,
        };
        next.find_ways(among_same_ports)?;
        Ok(next)
    }

    /// Returns a copy with other tables, so that the next snapshot can share them.
    #[must_use]
    pub fn upon(&self, tables: Tables) -> Snapshot {
        self.with(self.sources.clone(), tables)
    }

    /// The tags of cards that count; `None`: none do.
    pub fn card_marks(&self) -> Option<&Arc<CardMarks>> {
        self.sources.cards.as_ref()
    }

    /// Returns a copy with other tags of cards that count. They must be of its policies.
    #[must_use]
    pub fn with_cards(&self, cards: Option<Arc<CardMarks>>) -> Snapshot {
        self.with(Sources { cards, ..self.sources.clone() }, self.tables.clone())
    }

    /// Returns a snapshot of other sources with this one's ports, routing and links.
    fn with(&self, sources: Sources, tables: Tables) -> Snapshot {
        let path_ports = match tables.spd().has_base_of(self.spd()) {
            true => self.path_ports.clone(),
            false => self.ports.on_path(tables.spd()),
        };
        Snapshot {
            number: SnapshotNumber::next(),
            sources,
            ports: self.ports.clone(),
            path_ports,
            routing: self.routing.clone(),
            tables,
            links: self.links.clone(),
            remotes: self.remotes.clone(),
            nested: self.nested.clone(),
            keepalives: self.keepalives.clone(),
        }
    }

    /// New ports, and nothing that leads anywhere yet.
    fn without_ways(
        sources: Sources,
        tables: Tables,
        earlier: Option<&Snapshot>,
        generation: RouteGeneration,
    ) -> Result<Snapshot, SnapshotError> {
        let before = earlier.map(|earlier| &*earlier.ports);
        let ports = Arc::new(Ports::new(sources.ports.clone(), before, generation)?);
        let listed = |earlier| keepalives::listed_before(earlier, &sources);
        Ok(Snapshot {
            number: SnapshotNumber::next(),
            keepalives: earlier.map(listed).unwrap_or_default(),
            path_ports: ports.on_path(tables.spd()),
            ports,
            routing: Routing::from_nothing(generation),
            tables,
            links: Slotted::default(),
            remotes: OrdSet::default(),
            nested: OrdSet::default(),
            sources,
        })
    }

    /// Follows neighbours, routes and SA sets from where they were in an earlier snapshot among the
    /// same ports, whose routing and links this one has; `None`: there is nothing yet.
    fn find_ways(&mut self, earlier: Option<&Snapshot>) -> Result<(), SnapshotError> {
        let nothing;
        let before = match earlier {
            Some(earlier) => &earlier.sources,
            // Made only if needed: its empty search takes longer than a small change.
            None => {
                nothing = Sources::default();
                &nothing
            }
        };
        self.routing.take_neighbours(&self.sources.neighbours, &self.ports)?;
        let prefixes =
            self.routing.take_routes(&before.routes, &self.sources.routes, &self.ports)?;
        if earlier.is_some() && !prefixes.is_empty() {
            self.routing.generation = self.routing.generation.next();
        }
        let mut sets = self.sources.sad.changed_sets(&before.sad);
        for prefix in prefixes {
            let last = Address { value: prefix.last(), ..prefix.address };
            let range = (prefix.address, SetIndex(0))..=(last, SetIndex(u32::MAX));
            sets.extend(self.remotes.range(range).map(|(_, set)| *set));
        }
        sets.sort_unstable();
        sets.dedup();
        if sets.is_empty() {
            return Ok(());
        }
        sets.into_iter().try_for_each(|set| self.link(set))?;
        // Those hang on the sets around them, which have their ways now.
        let nested: Vec<SetIndex> = self.nested.iter().copied().collect();
        nested.into_iter().try_for_each(|set| self.link(set))
    }

    /// Number of the snapshot.
    #[inline]
    pub(crate) fn number(&self) -> SnapshotNumber {
        self.number
    }

    /// The parts that it is made of.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The connections that `reflect` rules let through.
    #[inline]
    pub fn connections(&self) -> Option<&Connections> {
        self.sources.connections.as_deref()
    }

    /// Generation of ports, routes and next hops.
    #[inline]
    pub fn route_generation(&self) -> RouteGeneration {
        self.routing.generation
    }

    /// Returns the scope of a question about packets of a family that came by a port and, if they
    /// were decrypted, by an SA of a set.
    ///
    /// # Panics
    /// If `ingress` or the set is from another snapshot.
    #[inline]
    pub fn scope(
        &self,
        ingress: PortId,
        question: Question,
        family: Family,
        opened_by: Option<SetIndex>,
    ) -> Scope {
        self.tables.scope(self.path_port(ingress).class, question, family, opened_by)
    }

    /// Generation of the policies as a whole.
    pub fn generation(&self) -> Generation {
        self.sources.generation
    }

    /// Number of the arrangement of policy slots.
    pub fn policy_slots(&self) -> u32 {
        self.sources.policy_slots
    }

    /// Threads that walk packets, at least 1.
    pub fn workers(&self) -> u32 {
        self.sources.workers.max(1)
    }

    /// All ports by slot.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &PortInfo)> {
        self.ports.infos.iter().map(|(place, port)| (PortId(place as u16), port))
    }

    /// Returns the virtual networks of an earlier snapshot that no longer have their slots.
    fn networks_gone_since<'s>(&'s self, before: &'s Snapshot) -> impl Iterator<Item = Zone> + 's {
        let slot = |snapshot: &Snapshot, vni| snapshot.overlays()?.slot_of(vni);
        let networks = before.overlays().into_iter().flat_map(Overlays::networks);
        let slots = networks.filter_map(|network| Some((network.vni, network.attachment?)));
        let gone = slots.filter(move |(vni, held)| slot(self, *vni) != Some(*held));
        gone.map(|(vni, held)| Zone::of_network(vni, held))
    }

    /// Returns the zones of an earlier snapshot whose ports and virtual networks no longer have
    /// their slots.
    pub fn zones_gone_since<'s>(&'s self, before: &'s Snapshot) -> impl Iterator<Item = Zone> + 's {
        let ports = self.ports_gone_since(before).map(Zone::of_port);
        ports.chain(self.networks_gone_since(before))
    }

    /// Returns the port of a slot; `None`: the slot is vacant.
    pub fn find_port(&self, port: PortId) -> Option<&PortInfo> {
        self.ports.infos.get(usize::from(port.0))
    }

    /// Returns whether a slot has a port.
    pub(crate) fn has_port(&self, port: PortId) -> bool {
        self.ports.infos.get(usize::from(port.0)).is_some()
    }

    /// Returns the route generation with which a netdev came into its slot; `None`: the slot is
    /// vacant.
    pub(crate) fn netdev_since(&self, netdev: NetdevId) -> Option<RouteGeneration> {
        self.netdev(netdev).map(|netdev| netdev.since)
    }

    /// Returns whether a netdev has a port.
    pub fn has_netdev(&self, netdev: NetdevId) -> bool {
        self.netdev(netdev).is_some()
    }

    /// Returns a port.
    ///
    /// # Panics
    /// If `port` is from another snapshot.
    #[inline]
    pub fn port(&self, port: PortId) -> &PortInfo {
        self.ports.infos.at(usize::from(port.0))
    }

    /// Returns the fields of a port that each packet needs.
    #[inline]
    pub(crate) fn path_port(&self, port: PortId) -> &PathPort {
        &self.path_ports[usize::from(port.0)]
    }

    /// Returns a port as connections see it.
    #[inline]
    pub(crate) fn gate(&self, port: PortId) -> Gate {
        Gate { zone: Zone::of_port(port), class: self.path_port(port).class }
    }

    /// Returns a virtual network as connections see it.
    pub(crate) fn gate_of_network(&self, network: &VirtualNetwork) -> Gate {
        // A network without groups tracks nothing: its zone is a port's that nobody has.
        let slot = network.attachment.unwrap_or(Zone::FIRST_NETWORK - 1);
        let class = network.attachment.map_or(PortClass(0), |slot| self.spd().class(slot));
        Gate { zone: Zone::of_network(network.vni, slot), class }
    }

    /// The overlays and virtual networks; `None`: there are none.
    #[inline]
    pub fn overlays(&self) -> Option<&Overlays> {
        self.sources.overlays.as_deref()
    }

    /// Tags of cards that count; `None`: none do.
    #[inline]
    pub(crate) fn cards(&self) -> Option<&CardMarks> {
        self.sources.cards.as_deref()
    }

    /// The port that stands for Linux itself.
    pub fn host(&self) -> Option<PortId> {
        self.sources.host
    }

    /// The port of that name.
    pub fn port_named(&self, name: &str) -> Option<PortId> {
        self.ports().find(|(_, port)| port.name == name).map(|(port, _)| port)
    }

    /// The routing table.
    pub fn routes(&self) -> &RouteTable {
        &self.routing.table
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

    /// The SA sets and SAs.
    pub fn sad(&self) -> &Sad {
        &self.sources.sad
    }

    /// The SA sets in the order of their places.
    pub fn sets(&self) -> impl Iterator<Item = (SetIndex, &SaSet)> {
        self.links.iter().map(|(place, link)| (SetIndex(place as u32), &*link.set))
    }

    /// SAs that seal, by slot.
    pub fn outbound(&self) -> impl Iterator<Item = &Arc<OutboundSa>> {
        self.sources.sad.outbound()
    }

    /// SAs that open, by slot.
    pub fn inbound(&self) -> impl Iterator<Item = &Arc<InboundSa>> {
        self.sources.sad.inbound()
    }

    /// Returns the outbound SA in a slot.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn outbound_sa(&self, id: SaId) -> &OutboundSa {
        self.sources.sad.outbound_sa(id)
    }

    /// The SA that opens in a slot.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn inbound_sa(&self, id: SaId) -> &InboundSa {
        self.sources.sad.inbound_sa(id)
    }

    /// The SA that opens packets with this SPI.
    #[inline]
    pub fn inbound_by_spi(&self, spi: Spi) -> Option<&Arc<InboundSa>> {
        self.sources.sad.inbound_by_spi(spi)
    }

    /// The next hop with this id.
    ///
    /// # Panics
    /// If it is from another snapshot.
    pub fn next_hop(&self, hop: NextHopId) -> &NextHop {
        &self.hop(hop).hop
    }

    #[inline]
    fn hop(&self, hop: NextHopId) -> &Hop {
        self.routing.hop(hop)
    }

    /// Medium of a netdev; `None`: the netdev has no port.
    #[inline]
    pub(crate) fn medium(&self, netdev: NetdevId) -> Option<Medium> {
        self.netdev(netdev).map(|netdev| netdev.medium)
    }

    /// Returns whether a port of the netdev completes checksums.
    #[inline]
    pub(crate) fn completes_checksums(&self, netdev: NetdevId) -> bool {
        self.netdev(netdev).is_some_and(|netdev| netdev.completes_checksums)
    }

    /// Returns whether a netdev has ports with VLAN ids.
    #[inline]
    pub(crate) fn has_tagged(&self, netdev: NetdevId) -> bool {
        self.netdev(netdev).is_some_and(|netdev| !netdev.tagged.is_empty())
    }

    /// The port that a frame with this VLAN id (none: untagged) on this netdev belongs to.
    #[inline]
    pub(crate) fn port_of(&self, netdev: NetdevId, vlan: Option<u16>) -> Option<PortId> {
        let netdev = self.netdev(netdev)?;
        match vlan {
            None => netdev.untagged,
            Some(id) => *netdev.tagged.get(usize::from(id))?,
        }
    }

    #[inline]
    fn netdev(&self, id: NetdevId) -> Option<&Netdev> {
        self.ports.netdevs.get(usize::from(id.0))?.as_ref()
    }

    /// The set that an inbound SA belongs to.
    #[inline]
    pub(crate) fn set_of(&self, sa: SaId) -> SetIndex {
        self.sources.sad.set_of(sa)
    }

    /// Returns whether IKE moves an SA to other ends.
    #[cold]
    pub(crate) fn moves_by_ike(&self, sa: &InboundSa) -> bool {
        self.set(self.set_of(sa.id)).moves_by_ike
    }

    /// The link address of a neighbour, if it is resolved.
    pub fn link_address(&self, port: PortId, address: Address) -> Option<LinkAddress> {
        self.routing.link_address(port, address)
    }

    /// Adjacency towards `destination` by next hop `hop`.
    #[inline]
    pub(crate) fn adjacency(&self, hop: NextHopId, destination: Address) -> Adjacency {
        let Hop { adjacency, on_link, .. } = *self.hop(hop);
        if on_link { self.adjacency_on_link(adjacency.port, destination) } else { adjacency }
    }

    /// Returns whether each destination behind a next hop is a neighbour of its own.
    #[inline]
    pub(crate) fn is_on_link(&self, hop: NextHopId) -> bool {
        self.hop(hop).on_link
    }

    #[inline(never)]
    fn adjacency_on_link(&self, port: PortId, destination: Address) -> Adjacency {
        Adjacency { port, mac: self.link_address(port, destination) }
    }

    /// The side of the port that a next hop is behind.
    #[inline]
    pub(crate) fn side_of(&self, hop: NextHopId) -> Side {
        self.hop(hop).side
    }

    /// The port that a next hop is behind.
    #[inline]
    pub(crate) fn egress(&self, hop: NextHopId) -> PortId {
        self.hop(hop).adjacency.port
    }

    /// The way out by a next hop, as verdicts depend on it.
    #[inline]
    pub(crate) fn exit(&self, hop: NextHopId) -> Exit {
        let Hop { adjacency, side, .. } = *self.hop(hop);
        let class = self.path_port(adjacency.port).class;
        match side {
            Side::Protected => Exit::Inside(class),
            Side::Unprotected => Exit::Outside(class),
        }
    }

    /// The neighbour that a packet to this destination goes to: the gateway of its route, or the
    /// destination itself.
    pub(crate) fn next_hop_to(&self, destination: Address) -> Address {
        let hop = self.routing.hop_to(destination);
        hop.and_then(|hop| hop.gateway).unwrap_or(destination)
    }
}

#[cfg(test)]
mod tests;
