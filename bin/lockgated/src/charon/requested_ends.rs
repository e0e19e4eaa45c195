//! Ends of an SA in a request of charon's.

use std::net::SocketAddr;

use control::PeerEnds;
use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use ipsec::{Tunnel, UdpPorts};
use policy::Direction;

/// Ends that charon asks for.
pub(super) struct RequestedEnds {
    pub(super) direction: Direction,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) in_udp: bool,
}

impl RequestedEnds {
    /// This gateway's end and the other.
    pub(super) fn both(&self) -> (SocketAddr, SocketAddr) {
        match self.direction {
            Direction::Outbound => (self.source, self.destination),
            Direction::Inbound => (self.destination, self.source),
        }
    }

    pub(super) fn ends(&self) -> PeerEnds {
        let (local, remote) = self.both();
        // Lockgate receives ESP in UDP at this port alone, as charon does.
        let ports = UdpPorts { local: NAT_TRAVERSAL_PORT, remote: remote.port() };
        let tunnel = Tunnel { local: local.ip(), remote: remote.ip() };
        PeerEnds { tunnel, udp: self.in_udp.then_some(ports) }
    }
}
