//! The places of peers that are elsewhere than configured.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipsec::{Encapsulation, Tunnel, UdpPorts};
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

/// The ends of a peer's SAs: outer addresses, and the ports of the UDP header in front of ESP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerEnds {
    /// Our address and the peer's.
    pub tunnel: Tunnel,
    /// Our UDP port and the peer's, or its NAT's; `None`: ESP alone.
    pub udp: Option<UdpPorts>,
}

impl PeerEnds {
    /// Returns the ends of a carriage.
    pub const fn of(way: &Encapsulation) -> PeerEnds {
        PeerEnds { tunnel: way.tunnel, udp: way.udp }
    }

    /// Returns a carriage between these ends, and otherwise as it was.
    pub(crate) const fn carry(self, way: Encapsulation) -> Encapsulation {
        let PeerEnds { tunnel, udp } = self;
        Encapsulation { tunnel, udp, ..way }
    }

    /// Returns the ends with the peer elsewhere; `None`: ESP is not in UDP, so that it has no port.
    pub(crate) fn towards(self, to: PeerAddress) -> Option<PeerEnds> {
        let tunnel = Tunnel { remote: to.address, ..self.tunnel };
        Some(PeerEnds { tunnel, udp: Some(UdpPorts { remote: to.port, ..self.udp? }) })
    }

    /// Returns the peer's address and UDP port; `None`: ESP is not in UDP.
    pub(crate) fn peer(&self) -> Option<PeerAddress> {
        Some(PeerAddress { address: self.tunnel.remote, port: self.udp?.remote })
    }
}

/// Our end and the peer's: `192.0.2.1 - 198.51.100.7`, with ports where ESP is in UDP.
impl fmt::Display for PeerEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tunnel { local, remote } = self.tunnel;
        match self.udp {
            None => write!(f, "{local} - {remote}"),
            Some(ports) => {
                let end = |address, port| SocketAddr::new(address, port);
                write!(f, "{} - {}", end(local, ports.local), end(remote, ports.remote))
            }
        }
    }
}

/// The ends of peers that are elsewhere than configured.
#[derive(Clone, Default)]
pub(crate) struct MovedPeers(pub(crate) imbl::HashMap<SaSetId, PeerEnds>);
