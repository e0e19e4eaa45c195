//! Places of policies, and what a search answers.

/// Slot of a policy in its [`Spd`](crate::Spd): what counters and caches know it by. It stays the
/// policy's through every change that makes one database from another, and is not given again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PolicyIndex(pub u32);

/// Answer of the database for one flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Match {
    /// This policy decides.
    Policy(PolicyIndex),
    /// A non-first fragment whose missing ports, ICMP type or (IPv6) protocol this policy would
    /// have to see before anything below it may decide. It never falls past (FC-44).
    FragmentPorts(PolicyIndex),
    /// No policy speaks of the flow: it is dropped.
    None,
}
