//! The process at the other end of the socket.

use tokio::net::unix::UCred;

use crate::who::Uid;

/// The process at the other end when it connected, as reported by the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Peer {
    /// User id of the peer's process.
    pub(super) uid: Uid,
    /// Group id of the peer's process.
    pub(super) gid: u32,
}

impl Peer {
    /// Returns the process that the kernel reports.
    pub(super) fn of(credentials: UCred) -> Peer {
        Peer { uid: Uid(credentials.uid()), gid: credentials.gid() }
    }
}
