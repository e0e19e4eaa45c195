//! Parts of an explanation that are the same for all who print it.

use serde::Serialize;

/// The place where a rule of a group is decided.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RulePlace {
    /// `GROUP/RULE`.
    pub rule: String,
    /// `card NAME (live)`, or `classifier` and the reason.
    pub place: String,
}

/// Outer addresses of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TunnelEnds {
    /// Outer address of this gateway.
    pub local: std::net::IpAddr,
    /// The peer's.
    pub remote: std::net::IpAddr,
}

/// A port that no packet passes now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadPort {
    /// Name of the port.
    pub name: String,
    /// State of the port: `down`, `absent`, `refused`, `detached`.
    pub state: String,
    /// The reason.
    pub reason: String,
}
