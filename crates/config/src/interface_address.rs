//! Our addresses on ports.

use policy::AddressRange;
use wire::Address;

/// An address on a port with the length of its network's prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InterfaceAddress {
    /// Our address.
    pub address: Address,
    /// Length of the network's prefix in bits, at least 1.
    pub length: u8,
}

impl InterfaceAddress {
    /// The network it is in.
    pub fn network(&self) -> AddressRange {
        AddressRange::network(self.address, self.length)
    }
}
