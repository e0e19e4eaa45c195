//! Packets as they are on the wire: addresses, protocol and ports.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Packets of one family: all conditions hold together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// Source addresses.
    pub source: Span,
    /// Destination addresses, of the same family.
    pub destination: Span,
    /// Upper-layer headers.
    pub upper: UpperPattern,
}

/// Addresses of one family, from the first to the last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Lowest address.
    pub first: IpAddr,
    /// Highest address.
    pub last: IpAddr,
}

/// Upper-layer headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum UpperPattern {
    /// Headers of any protocol.
    Any,
    /// Headers of one protocol.
    Protocol(u8),
    /// Headers of one protocol with ports.
    Ports {
        /// The protocol.
        protocol: u8,
        /// Lowest and highest source port.
        source: (u16, u16),
        /// Lowest and highest destination port.
        destination: (u16, u16),
        /// Of TCP, the segments.
        segments: Segments,
    },
    /// Messages of one protocol, which is the family's ICMP: lowest and highest `type << 8 | code`.
    Messages {
        /// The protocol.
        protocol: u8,
        /// Lowest and highest message.
        messages: (u16, u16),
    },
}

/// Kinds of TCP segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Segments {
    /// All; and packets of protocols other than TCP.
    All,
    /// Those with SYN and without ACK.
    New,
    /// All but those.
    Established,
}
