//! Places of policies and SA sets.

/// Slot of a policy in its [`Spd`](crate::Spd): what counters and caches know it by. It stays the
/// policy's through every change that makes one database from another, and is not given again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PolicyIndex(pub u32);

/// Place of an SA set in the list that [`Tables`](crate::Tables) were made with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SetIndex(pub u32);
