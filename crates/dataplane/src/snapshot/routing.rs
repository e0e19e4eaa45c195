//! The routing of a snapshot: routes, next hops, neighbours.

use std::sync::Arc;

use imbl::{HashMap, OrdMap, OrdSet};
use wire::{Address, LinkAddress};

use super::ports::Ports;
use crate::error::SnapshotError;
use crate::ids::{NextHopId, PortId, RouteGeneration};
use crate::port::{Adjacency, Medium, PortInfo, Side};
use crate::routes::{NextHop, Prefix, RouteTable, RouteTarget};

/// Routes by prefix.
pub type Routes = OrdMap<Prefix, RouteTarget<NextHop>>;
/// Link addresses of the neighbours on each port.
pub type Neighbours = OrdMap<(PortId, Address), [u8; 6]>;

/// Ways out. Cheap to copy; a changed copy shares what did not change.
#[derive(Clone, Default)]
pub(super) struct Routing {
    /// Each change of routes, ports and their addresses raises it.
    pub(super) generation: RouteGeneration,
    pub(super) table: RouteTable,
    /// Next hops by number; a list as a whole, because each packet reads it.
    hops: Arc<[Hop]>,
    /// Numbers that no next hop has.
    vacant: OrdSet<NextHopId>,
    /// Numbers of next hops, and how many routes and SA sets use each.
    numbers: HashMap<NextHop, (NextHopId, u32)>,
    pub(super) neighbours: Neighbours,
}

/// A next hop with what can be known of it once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    pub(super) hop: NextHop,
    /// Adjacency of packets that leave by it; of no use on a link without a router, where each
    /// destination has a link address of its own.
    pub(super) adjacency: Adjacency,
    pub(super) on_link: bool,
    pub(super) side: Side,
    medium: Medium,
}

impl Routing {
    /// Returns a routing without routes and next hops, under a generation.
    pub(super) fn from_nothing(generation: RouteGeneration) -> Routing {
        Routing { generation, ..Routing::default() }
    }

    /// Returns whether there is no route, and no next hop in use.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.numbers.is_empty() && self.table.is_empty() && self.vacant.len() == self.hops.len()
    }

    /// Follows neighbours that came, went or have another link address.
    pub(super) fn take_neighbours(
        &mut self,
        neighbours: &Neighbours,
        ports: &Ports,
    ) -> Result<(), SnapshotError> {
        let before = std::mem::replace(&mut self.neighbours, neighbours.clone());
        for change in before.diff(neighbours) {
            use imbl::ordmap::DiffItem::{Add, Remove, Update};
            let (&(port, address), mac) = match change {
                Add(key, mac) | Update { new: (key, mac), .. } => (key, Some(*mac)),
                Remove(key, _) => (key, None),
            };
            if ports.infos.get(usize::from(port.0)).is_none() {
                return Err(SnapshotError::Dangling("a neighbour"));
            }
            let hop = NextHop { port, gateway: Some(address) };
            if let Some((number, _)) = self.numbers.get(&hop).copied() {
                let known = &mut Arc::make_mut(&mut self.hops)[number.0 as usize];
                if known.medium == Medium::Ethernet {
                    known.adjacency.mac = mac.map(LinkAddress::new);
                }
            }
        }
        Ok(())
    }

    /// Follows routes, and says which prefixes have another target than in `before`.
    pub(super) fn take_routes(
        &mut self,
        before: &Routes,
        routes: &Routes,
        ports: &Ports,
    ) -> Result<Vec<Prefix>, SnapshotError> {
        let mut changed = Vec::new();
        for change in before.diff(routes) {
            use imbl::ordmap::DiffItem::{Add, Remove, Update};
            let (&prefix, target) = match change {
                Add(prefix, target) | Update { new: (prefix, target), .. } => {
                    (prefix, Some(*target))
                }
                Remove(prefix, _) => (prefix, None),
            };
            // The new one first: a next hop that goes on being used keeps its number.
            let target = target.map(|target| self.numbered(target, ports)).transpose()?;
            let before = match target {
                Some(target) => self.table.insert(prefix, target),
                None => self.table.remove(prefix),
            };
            if let Some(RouteTarget::Via(hop)) = before {
                self.release(hop);
            }
            changed.push(prefix);
        }
        Ok(changed)
    }

    fn numbered(
        &mut self,
        target: RouteTarget<NextHop>,
        ports: &Ports,
    ) -> Result<RouteTarget, SnapshotError> {
        if let RouteTarget::Via(hop) = target
            && ports.infos.get(usize::from(hop.port.0)).is_none()
        {
            return Err(SnapshotError::Dangling("a next hop"));
        }
        Ok(target.map(|hop| self.take(hop, ports)))
    }

    /// The number of a next hop, which one user more has.
    pub(super) fn take(&mut self, hop: NextHop, ports: &Ports) -> NextHopId {
        let (number, uses) = self.numbers.get(&hop).copied().unwrap_or_else(|| {
            let known = self.known(hop, ports);
            (self.give_number(known), 0)
        });
        self.numbers.insert(hop, (number, uses + 1));
        number
    }

    /// Removes one user of a next hop. Without users its number is free.
    pub(super) fn release(&mut self, number: NextHopId) {
        let hop = self.hop(number).hop;
        match self.numbers.get(&hop).copied() {
            Some((_, uses)) if uses > 1 => {
                self.numbers.insert(hop, (number, uses - 1));
            }
            _ => {
                self.numbers.remove(&hop);
                self.vacant.insert(number);
            }
        }
    }

    /// A next hop by its number.
    #[inline]
    pub(super) fn hop(&self, number: NextHopId) -> &Hop {
        &self.hops[number.0 as usize]
    }

    fn give_number(&mut self, hop: Hop) -> NextHopId {
        if let Some(vacant) = self.vacant.remove_min() {
            Arc::make_mut(&mut self.hops)[vacant.0 as usize] = hop;
            return vacant;
        }
        let number = NextHopId(self.hops.len() as u32);
        self.hops = self.hops.iter().copied().chain([hop]).collect();
        number
    }

    fn known(&self, hop: NextHop, ports: &Ports) -> Hop {
        let PortInfo { medium, side, .. } = *ports.infos.at(usize::from(hop.port.0));
        let mac = match (medium, hop.gateway) {
            (Medium::Ip, _) => Some(LinkAddress::new([0; 6])),
            (Medium::Ethernet, Some(address)) => self.link_address(hop.port, address),
            (Medium::Ethernet, None) => None,
        };
        let on_link = medium == Medium::Ethernet && hop.gateway.is_none();
        Hop { hop, adjacency: Adjacency { port: hop.port, mac }, on_link, side, medium }
    }

    /// The next hop of one destination: on a link without a router, the destination itself.
    pub(super) fn hop_to(&self, destination: Address) -> Option<NextHop> {
        let RouteTarget::Via(number) = self.table.lookup(destination)? else { return None };
        let Hop { hop, on_link, .. } = self.hop(number);
        let gateway = if *on_link { Some(destination) } else { hop.gateway };
        Some(NextHop { port: hop.port, gateway })
    }

    /// The link address of a neighbour, if it is resolved.
    pub(super) fn link_address(&self, port: PortId, address: Address) -> Option<LinkAddress> {
        self.neighbours.get(&(port, address)).copied().map(LinkAddress::new)
    }
}
