//! The places of ports.

/// The place of a port on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortPlace {
    /// Index of its netdev.
    pub ifindex: u32,
    /// VLAN id on it; `None`: untagged.
    pub vlan: Option<u16>,
    /// Our link address.
    pub mac: [u8; 6],
    /// Bytes of the largest IP packet.
    pub mtu: u32,
}
