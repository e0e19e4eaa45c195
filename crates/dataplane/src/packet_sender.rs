//! Senders of packets, as far as rates and rooms are shared out among senders.

use wire::{Address, Family, Vni};

use crate::ids::PortId;

/// Host bits of an IPv6 address: a sender may use all addresses of a /64.
const HOST_BITS: u32 = 64;

/// A sender: a source address (of IPv6 the /64) behind a port or in a virtual network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PacketSender {
    pub(crate) ingress: PortId,
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
        PacketSender { ingress, network: None, prefix: Address { value, ..source } }
    }

    /// The gateway, with own packets for a port.
    pub(crate) fn gateway(egress: PortId) -> PacketSender {
        PacketSender::behind(egress, Address::v4(0))
    }

    /// The sender with an address in a virtual network behind a port.
    pub(crate) fn inside(ingress: PortId, network: Vni, source: Address) -> PacketSender {
        PacketSender { network: Some(network), ..PacketSender::behind(ingress, source) }
    }

    /// Returns the port and the network as words of a hash.
    pub(crate) fn origin_words(&self) -> [u64; 4] {
        let network = self.network.map_or(0, |vni| u64::from(vni.get()) + 1);
        [u64::from(self.ingress.0) | network << 16, 0, 0, 0]
    }

    /// Returns all fields as words of a hash.
    pub(crate) fn words(&self) -> [u64; 4] {
        let family = match self.prefix.family {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        let (value, [origin, ..]) = (self.prefix.value, self.origin_words());
        [origin, family, (value >> 64) as u64, value as u64]
    }
}
