//! Describes the carriage of an SA's packets: mode, ends, UDP in front of ESP, and the inner header
//! fields that show outside (the parameters of RFC 4301 §4.4.2.1 that concern headers).

use std::net::IpAddr;

use crate::error::SaError;
use crate::ids::Tunnel;

/// The kind of data that ESP is put around (RFC 4303 §3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// A whole packet, behind an outer IP header.
    Tunnel,
    /// The upper layer of a packet between the two ends themselves, behind its own IP header.
    Transport,
}

impl Mode {
    /// Returns the mode's name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Tunnel => "tunnel",
            Mode::Transport => "transport",
        }
    }
}

/// Ports of the UDP header in front of ESP (RFC 3948 §2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpPorts {
    /// Address of this gateway: source of the packets that it seals.
    pub local: u16,
    /// The peer's, or its NAT's.
    pub remote: u16,
}

/// The port of ESP in UDP, and of IKE beside it (RFC 3948 §2.1).
pub const NAT_TRAVERSAL_PORT: u16 = 4500;

/// DSCP of the outer header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dscp {
    /// The inner packet's.
    Copy,
    /// Always this, 0 to 63: the inner one stays hidden.
    Fixed(u8),
}

/// The don't-fragment flag of an outer IPv4 header (RFC 4301 §8.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DontFragment {
    /// Set.
    Set,
    /// The inner packet's flag; an IPv6 packet is never fragmented by routers.
    Copy,
    /// Clear.
    Clear,
}

/// The carriage of an SA's packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Encapsulation {
    /// Tunnel or transport mode.
    pub mode: Mode,
    /// The two ends. In transport mode the packets' own addresses.
    pub tunnel: Tunnel,
    /// ESP in UDP; `None`: ESP alone.
    pub udp: Option<UdpPorts>,
    /// DSCP of outer headers; in transport mode there is only the packet's own.
    pub dscp: Dscp,
    /// The don't-fragment flag of outer IPv4 headers; in transport mode the packet's own.
    pub dont_fragment: DontFragment,
}

impl Encapsulation {
    /// Checks that both ends are of one family.
    ///
    /// # Errors
    /// [`SaError::MixedFamilies`].
    pub(crate) fn check(&self) -> Result<(), SaError> {
        match (self.tunnel.local, self.tunnel.remote) {
            (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => Ok(()),
            (local, remote) => Err(SaError::MixedFamilies { local, remote }),
        }
    }
}

/// Tunnel mode without UDP, DSCP copied, don't fragment.
impl From<Tunnel> for Encapsulation {
    fn from(tunnel: Tunnel) -> Encapsulation {
        Encapsulation {
            mode: Mode::Tunnel,
            tunnel,
            udp: None,
            dscp: Dscp::Copy,
            dont_fragment: DontFragment::Set,
        }
    }
}
