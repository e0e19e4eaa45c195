//! Ports as the walk knows them.

use policy::PortRange;
use wire::{Address, Family, LinkAddress};

use crate::ids::{NetdevId, PortId};

/// The side of RFC 4301's boundary that a port is on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The gateway's own networks, in cleartext.
    Protected,
    /// The world.
    Unprotected,
}

/// First header of a netdev's packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Medium {
    /// An Ethernet header, perhaps with one VLAN tag.
    Ethernet,
    /// The IP header: the host port, a TUN netdev.
    Ip,
}

/// Traffic to the host itself that an unprotected port passes to Linux (`allow_host`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostService {
    /// Upper-layer protocol.
    pub protocol: u8,
    /// Destination ports; `None`: the whole protocol.
    pub ports: Option<PortRange>,
}

/// A port: (netdev, VLAN id).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// Name in the configuration.
    pub name: String,
    /// The netdev it is on.
    pub netdev: NetdevId,
    /// VLAN id of the port; `None`: untagged.
    pub vlan: Option<u16>,
    /// Clear or world.
    pub side: Side,
    /// First header of its packets.
    pub medium: Medium,
    /// Our link address; zeros on an IP medium.
    pub mac: [u8; 6],
    /// Largest IP packet that leaves by it, bytes.
    pub mtu: u32,
    /// Our addresses on it: sources of the ICMP that we make.
    pub addresses: Vec<Address>,
    /// Services that it lets through to Linux; only used on unprotected ports.
    pub allow_host: Vec<HostService>,
    /// Treatment of unfinished TCP and UDP checksums; only used on protected Ethernet ports.
    pub l4_checksum: L4Checksum,
}

impl PortInfo {
    /// Returns whether both describe one port, whatever else changed.
    pub(crate) fn is_port(&self, other: &PortInfo) -> bool {
        (&self.name, self.netdev, self.vlan) == (&other.name, other.netdev, other.vlan)
    }

    /// Returns our first address of a family on the port.
    pub(crate) fn address_of(&self, family: Family) -> Option<Address> {
        self.addresses.iter().copied().find(|address| address.family == family)
    }

    /// Returns whether unfinished checksums are completed: never of packets from outside or from
    /// Linux.
    pub(crate) fn completes_checksums(&self) -> bool {
        let may = self.side == Side::Protected && self.medium == Medium::Ethernet;
        may && self.l4_checksum == L4Checksum::Complete
    }
}

/// An adjacency: the port that a packet leaves by, and the link address that it goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Adjacency {
    pub(crate) port: PortId,
    /// The neighbour's link address; `None`: not resolved yet.
    pub(crate) mac: Option<LinkAddress>,
}

/// A port's treatment of unfinished TCP and UDP checksums.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum L4Checksum {
    /// Completes them. Has no effect on unprotected ports.
    Complete,
    /// Passes them on as they are.
    #[default]
    Pass,
}
