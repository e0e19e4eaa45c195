//! The flow of a packet: everything a selector of RFC 4301 §4.4.1.1 can see of it.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IP version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Largest address of the family as a number.
    pub const fn highest_address(self) -> u128 {
        match self {
            Family::V4 => u32::MAX as u128,
            Family::V6 => u128::MAX,
        }
    }

    /// Address width in bits: 32 or 128.
    pub const fn address_bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

/// An address of either family as a number in host order; IPv4 lies in the low 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// IP version.
    pub family: Family,
    /// The address as a number, host order.
    pub value: u128,
}

impl Address {
    /// IPv4 address from its number in host order.
    pub const fn v4(value: u32) -> Self {
        Address { family: Family::V4, value: value as u128 }
    }

    /// IPv6 address from its number in host order.
    pub const fn v6(value: u128) -> Self {
        Address { family: Family::V6, value }
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Address::v4(ip.to_bits()),
            IpAddr::V6(ip) => Address::v6(ip.to_bits()),
        }
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        match address.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(address.value as u32)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(address.value)),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        IpAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// IP protocol numbers that the walk tells apart (IANA "Assigned Internet Protocol Numbers").
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// IPv4 in IP.
    pub const IPV4: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// DCCP.
    pub const DCCP: u8 = 33;
    /// IPv6 in IP.
    pub const IPV6: u8 = 41;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Encapsulating Security Payload.
    pub const ESP: u8 = 50;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// No next header: an ESP dummy packet.
    pub const NONE: u8 = 59;
    /// IPv6 destination options.
    pub const DESTINATION: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// UDP-Lite.
    pub const UDP_LITE: u8 = 136;

    /// Returns whether packets of this protocol begin with a 16-bit source and destination port.
    pub const fn has_ports(number: u8) -> bool {
        matches!(number, TCP | UDP | DCCP | SCTP | UDP_LITE)
    }
}

/// The upper-layer part of a flow (the "L4 kind" of DESIGN §2 with its value).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Upper {
    /// TCP, UDP, SCTP, DCCP, UDP-Lite: ports in host order.
    Ports {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
    },
    /// ICMP and ICMPv6.
    Icmp {
        /// Message type.
        kind: u8,
        /// Message code.
        code: u8,
    },
    /// A protocol with neither ports nor ICMP types.
    None,
    /// A non-first fragment of any protocol: its ports or ICMP type are in another packet.
    Fragment,
}

/// The fields of a packet that a selector can match. Two packets with equal flows get equal
/// verdicts from the same rule set in the same policy domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// IP version.
    pub family: Family,
    /// Source address as a number, host order.
    pub source: u128,
    /// Destination address as a number, host order.
    pub destination: u128,
    /// Upper-layer protocol, behind all IPv6 extension headers.
    pub protocol: u8,
    /// Ports, ICMP type and code, or why there are none.
    pub upper: Upper,
    /// True for a TCP segment with SYN and without ACK, which opens a connection (RFC 9293 §3.5).
    /// False where the flags are not there: in a short first fragment, and in what an ICMP error
    /// quotes.
    pub opens: bool,
}

impl Flow {
    /// The flow of whole packets of a protocol with neither ports nor message types, between
    /// addresses of one family.
    pub const fn between(source: Address, destination: Address, protocol: u8) -> Flow {
        Flow {
            family: source.family,
            source: source.value,
            destination: destination.value,
            protocol,
            upper: Upper::None,
            opens: false,
        }
    }

    /// Source address.
    pub const fn source_address(&self) -> Address {
        Address { family: self.family, value: self.source }
    }

    /// Destination address.
    pub const fn destination_address(&self) -> Address {
        Address { family: self.family, value: self.destination }
    }

    /// The flow of the answers: addresses and ports swapped, ICMP type and code kept. What answers
    /// a segment that opens a connection opens none.
    pub const fn reversed(&self) -> Flow {
        let upper = match self.upper {
            Upper::Ports { source, destination } => {
                Upper::Ports { source: destination, destination: source }
            }
            other => other,
        };
        let (source, destination) = (self.destination, self.source);
        Flow { source, destination, upper, opens: false, ..*self }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, destination) = (self.source_address(), self.destination_address());
        match self.upper {
            Upper::Ports { source: s, destination: d } => {
                write!(f, "proto {} {source} port {s} → {destination} port {d}", self.protocol)
            }
            Upper::Icmp { kind, code } => {
                write!(
                    f,
                    "proto {} {source} → {destination} type {kind} code {code}",
                    self.protocol
                )
            }
            Upper::None => write!(f, "proto {} {source} → {destination}", self.protocol),
            Upper::Fragment => {
                write!(f, "proto {} {source} → {destination} (fragment)", self.protocol)
            }
        }
    }
}
