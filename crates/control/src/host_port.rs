//! The port that stands for Linux itself.

/// Name of the port that stands for Linux itself.
pub const HOST_PORT: &str = "host";

/// The netdev it is on.
pub const HOST_NETDEV: &str = "lockgate0";
