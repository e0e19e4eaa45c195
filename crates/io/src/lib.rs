//! Ports: what packets come from and go to, in the process or on the wire.
//!
//! A port moves packets between frames and the world and knows neither headers nor policy.
//!
//! | module | what |
//! |---|---|
//! | [`memory`] | frames of the process; ports that copy or only pass descriptors |
//! | [`capture`] | a port whose input and output are capture files |
//! | [`pcap`], [`pcapng`] | the two file formats, read as streams, trusted in nothing |
//! | [`xdp`] | the queues of a netdev, over AF_XDP |
//! | [`tun`] | this machine's Linux stack, over a TUN netdev; TAP netdevs |
//! | [`live`] | any of the live ports |
//! | [`bare`] | a forwarder without a walk, to compare with |
#![deny(unsafe_code)] // allowed in `tun` only
#![deny(clippy::undocumented_unsafe_blocks)]

pub mod bare;
pub mod capture;
mod error;
pub mod live;
pub mod memory;
pub mod pcap;
pub mod pcapng;
mod stream;
pub mod tun;
pub mod xdp;

pub use bare::BareForwarder;
pub use capture::{CapturePort, CaptureReader};
pub use error::{CaptureError, Defect};
pub use live::LivePort;
pub use memory::{Conservation, MemoryFrames, MemoryPort, PreloadedPort};
pub use pcap::{CaptureWriter, Resolution};
pub use tun::{Lifetime, Tap, TunError, TunPort, TunStatistics};
pub use xdp::{QueueStatistics, XdpFrames, XdpPort};

/// The header at which the bytes of a packet begin: the link types of capture files that Lockgate
/// reads and writes (numbers of the tcpdump.org link-layer header type list).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkType {
    /// `LINKTYPE_ETHERNET`, 1: at the Ethernet header.
    Ethernet,
    /// `LINKTYPE_RAW`, 101: at the IPv4 or IPv6 header.
    Raw,
}

impl LinkType {
    /// The link type with this number, if Lockgate reads it.
    pub const fn from_number(number: u32) -> Option<LinkType> {
        match number {
            1 => Some(LinkType::Ethernet),
            101 => Some(LinkType::Raw),
            _ => None,
        }
    }

    /// Number of the link type in a capture file.
    pub const fn number(self) -> u32 {
        match self {
            LinkType::Ethernet => 1,
            LinkType::Raw => 101,
        }
    }
}
