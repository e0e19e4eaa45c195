//! What the last snapshot was put together from, so that the next knows what is the same.

use dataplane::{NextHop, PortInfo, RouteEntry, RouteGeneration};
use policy::Tables;

use crate::mirror::LiveParts;

/// What the last snapshot knew.
#[derive(Default)]
pub(crate) struct Assembled {
    pub(crate) tables: Option<Tables>,
    route_generation: RouteGeneration,
    ports: Vec<PortInfo>,
    routes: Vec<RouteEntry>,
    next_hops: Vec<NextHop>,
}

impl Assembled {
    /// The generation of these ports, routes and next hops: another one if they are not what they
    /// were. Neighbours do not count: where a next hop is found is looked up for each packet.
    pub(crate) fn route_generation(&mut self, live: &LiveParts) -> RouteGeneration {
        let is_same = self.route_generation.0 > 0
            && self.ports == live.ports
            && self.routes == live.routes
            && self.next_hops == live.next_hops;
        if !is_same {
            let next = self.route_generation.0.checked_add(1).unwrap_or(1);
            self.route_generation = RouteGeneration(next);
            self.ports = live.ports.clone();
            self.routes = live.routes.clone();
            self.next_hops = live.next_hops.clone();
        }
        self.route_generation
    }
}
