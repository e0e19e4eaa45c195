//! Numbers of what a snapshot holds: places in its lists, and generations.

/// Generation of what the walk knows of routes, next hops, ports and their addresses: raised by 1
/// with each change of them. What was remembered of a packet's way holds under one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RouteGeneration(pub u32);

/// What the places in a snapshot's lists of ports, policies, SAs and sets stand for: snapshots of
/// one layout have the same at each place, so counters by place go on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Layout(pub u32);

/// A port: place in [`Snapshot::ports`](crate::Snapshot::ports).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u16);

/// A netdev: what frames are received from; carries one port per declared VLAN id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NetdevId(pub u16);

/// Place of an SA set in [`Snapshot::sets`](crate::Snapshot::sets).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SetIndex(pub u32);

/// Place of a next hop in its snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NextHopId(pub u32);
