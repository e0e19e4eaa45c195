//! Senders of packets, as far as rates and rooms are shared out among senders.

use policy::SaSetId;
use wire::{Address, Family, Vni};

use crate::ids::PortId;

/// Host bits of an IPv6 address: a sender may use all addresses of a /64.
const HOST_BITS: u32 = 64;

/// The way of a packet into the gateway: strangers in clear and a peer behind the same port are
/// apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Entrance {
    pub(crate) port: PortId,
    /// The set whose SA opened the packet; `None`: the packet came in clear.
    pub(crate) opened_by: Option<SaSetId>,
}

/// A sender: a source address (of IPv6 the /64) behind a port or in a virtual network, in clear or
/// in a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PacketSender {
    pub(crate) entrance: Entrance,
    network: Option<Vni>,
    prefix: Address,
}

impl PacketSender {
    /// The sender with an address behind a port.
    pub(crate) fn behind(ingress: PortId, source: Address) -> PacketSender {
        let value = match source.family {
            Family::V4 => source.value,
            Family::V6 => source.value >> HOST_BITS << HOST_BITS,
        };
        let entrance = Entrance { port: ingress, opened_by: None };
        PacketSender { entrance, network: None, prefix: Address { value, ..source } }
    }

    /// The gateway, with own packets for a port.
    pub(crate) fn gateway(egress: PortId) -> PacketSender {
        PacketSender::behind(egress, Address::v4(0))
    }

    /// The sender with an address in a virtual network behind a port.
    pub(crate) fn inside(ingress: PortId, network: Vni, source: Address) -> PacketSender {
        PacketSender { network: Some(network), ..PacketSender::behind(ingress, source) }
    }

    /// The same sender of a packet that the SA of a set opened.
    pub(crate) fn opened_by(mut self, set: Option<SaSetId>) -> PacketSender {
        self.entrance.opened_by = set;
        self
    }

    /// Returns the port and the network as words of a hash.
    pub(crate) fn origin_words(&self) -> [u64; 4] {
        let network = self.network.map_or(0, |vni| u64::from(vni.get()) + 1);
        [u64::from(self.entrance.port.0) | network << 16, 0, 0, 0]
    }

    /// Returns all fields as words of a hash.
    pub(crate) fn words(&self) -> [u64; 4] {
        let family = match self.prefix.family {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        let (value, [origin, ..]) = (self.prefix.value, self.origin_words());
        let opened_by = self.entrance.opened_by.map_or(0, |set| u64::from(set.0) + 1);
        [origin, family | opened_by << 8, (value >> 64) as u64, value as u64]
    }
}
