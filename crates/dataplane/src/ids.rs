//! Numbers of a snapshot's parts: places in its lists, and generations.

pub use policy::SetIndex;

/// Generation of routes, next hops, ports and their addresses: each change of them raises it by 1.
/// The flow cache's next hops are valid under one generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RouteGeneration(pub u32);

impl RouteGeneration {
    /// Returns the next generation. After the last the first comes again.
    pub(crate) fn next(self) -> RouteGeneration {
        RouteGeneration(self.0.checked_add(1).unwrap_or(1))
    }
}

/// A port: its slot in [`Snapshot::ports`](crate::Snapshot::ports).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u16);

/// A netdev by its slot: what frames are received from; carries one port per declared VLAN id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NetdevId(pub u16);

/// Place of a next hop in its snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NextHopId(pub u32);
