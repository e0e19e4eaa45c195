//! The basis of verdicts on flows.

use policy::Generation;

use crate::ids::{PortId, RouteGeneration};
use crate::overlays::Overlays;
use crate::snapshot::Snapshot;

/// Generations of all parts of a snapshot with an influence on verdicts. Snapshots with an equal
/// basis give a flow the same verdict, except by connections and endpoints, which change under one
/// snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct VerdictBasis {
    /// Generation of policies and groups, and so of the classes of ports.
    policies: Generation,
    /// Generation of ports (sides, addresses, services), routes and next hops.
    routes: RouteGeneration,
    /// The host port.
    host: Option<PortId>,
    /// Number of the overlays and virtual networks.
    overlays: Option<u64>,
}

impl VerdictBasis {
    /// The basis of verdicts under a snapshot.
    pub(crate) fn of(snapshot: &Snapshot) -> VerdictBasis {
        let (policies, routes) = (snapshot.generation(), snapshot.route_generation());
        let overlays = snapshot.overlays().map(Overlays::number);
        VerdictBasis { policies, routes, host: snapshot.host(), overlays }
    }
}
