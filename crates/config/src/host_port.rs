//! Names of the host port, by which packets pass between Linux on this machine and the walk.

/// Name of the host port.
pub const HOST_PORT: &str = "host";

/// Name of its netdev.
pub const HOST_NETDEV: &str = "lockgate0";
