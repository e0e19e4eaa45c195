//! The addresses of peers behind NATs, where they have moved to.

use std::fmt;
use std::net::IpAddr;

use policy::SaSetId;

/// The place of a peer, or of its NAT: outer address and UDP port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerAddress {
    /// Outer address of the peer.
    pub address: IpAddr,
    /// The UDP port that it sends from.
    pub port: u16,
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// The addresses of peers that are elsewhere than configured.
#[derive(Clone, Default)]
pub(crate) struct PeerAddresses(pub(crate) imbl::HashMap<SaSetId, PeerAddress>);
