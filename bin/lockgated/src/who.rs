//! Users and connections of the API.

/// The effective user of the process at the other end of the socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Uid(pub(crate) u32);

/// A connection of the API, counted from the daemon's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnectionNumber(pub(crate) u64);
