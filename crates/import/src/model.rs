//! SAs and policies as both foreign forms have them, before they become peers and policies of ours.

use std::net::IpAddr;

use config::Location;
use ipsec::{KeyMaterial, Lifetime, Mode, Spi, Suite};
use policy::{Direction, Selector};

/// An SA.
pub(crate) struct Sa {
    /// The place of its first word.
    pub(crate) at: Location,
    /// The outer source.
    pub(crate) source: IpAddr,
    /// The outer destination.
    pub(crate) destination: IpAddr,
    /// Tunnel or transport.
    pub(crate) mode: Mode,
    /// The number by which policies name it: xfrm's reqid, VPP's SA id.
    pub(crate) class: u32,
    /// Its SPI.
    pub(crate) spi: Spi,
    /// Algorithms; `None`: they are not told.
    pub(crate) suite: Option<Suite>,
    /// Its key; `None`: the dump hides it.
    pub(crate) material: Option<KeyMaterial>,
    /// The highest sequence number, or number of packets, that it is known to have reached.
    pub(crate) used: u64,
    /// Extended sequence numbers.
    pub(crate) has_esn: bool,
    /// Packets of its replay window; `None`: nothing is said.
    pub(crate) window: Option<u32>,
    /// Source and destination port of UDP around ESP.
    pub(crate) udp: Option<[u16; 2]>,
    /// Its direction, if it says one.
    pub(crate) direction: Option<Direction>,
    /// The offload that it asks for.
    pub(crate) offload: Option<Offload>,
    /// Its limits.
    pub(crate) lifetime: Lifetime,
    /// The outer header.
    pub(crate) outer: Outer,
}

/// The outer header of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outer {
    /// The value of `dscp`, if it is not what is usual here.
    pub(crate) dscp: Option<u8>,
    /// The word of `df`, if it is not what is usual here.
    pub(crate) df: Option<&'static str>,
}

/// The part of an SA that a card takes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OffloadMode {
    /// The cipher.
    Crypto,
    /// Everything.
    Packet,
}

impl OffloadMode {
    /// The word in the configuration.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            OffloadMode::Crypto => "crypto",
            OffloadMode::Packet => "packet",
        }
    }
}

/// An offload that is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Offload {
    pub(crate) at: Location,
    pub(crate) mode: OffloadMode,
    /// The netdev.
    pub(crate) netdev: String,
}

/// The SAs that a policy asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Template {
    /// Our end.
    pub(crate) local: IpAddr,
    /// The other end.
    pub(crate) remote: IpAddr,
    pub(crate) mode: Mode,
    /// The number of its SAs.
    pub(crate) class: u32,
    /// The SPI of its only SA.
    pub(crate) spi: Option<u32>,
}

/// The effect of a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    Protect(Template),
    Bypass,
    Discard,
}

/// A policy of one direction.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The place of its first word.
    pub(crate) at: Location,
    pub(crate) direction: Direction,
    pub(crate) selector: Selector,
    pub(crate) effect: Effect,
    /// The offload that it asks for, which is `packet`.
    pub(crate) offload: Option<Offload>,
}

/// All that was read. Policies are in the order in which they are asked: the first that matches
/// decides.
#[derive(Default)]
pub(crate) struct Foreigners {
    pub(crate) sas: Vec<Sa>,
    pub(crate) outbound: Vec<Entry>,
    pub(crate) inbound: Vec<Entry>,
    /// Flows of the cache; 0: off.
    pub(crate) flows: Option<u64>,
    /// Comments for the head of the configuration.
    pub(crate) notes: Vec<String>,
}
