//! Ethernet frames around packets.

use super::Loss;

/// The link header of a frame, and what is behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link<'f> {
    /// Addresses, and a VLAN tag if there is one: all but the type.
    pub(super) head: &'f [u8],
    pub(super) ethertype: u16,
    pub(super) packet: &'f [u8],
}

const VLAN: u16 = 0x8100;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Bytes of both addresses.
const ADDRESSES: usize = 12;

impl<'f> Link<'f> {
    /// Reads a frame with one VLAN tag or none.
    pub(super) fn read(frame: &'f [u8]) -> Result<Link<'f>, Loss> {
        let at = |place: usize| match frame.get(place..place + 2) {
            Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
            _ => Err(Loss::Malformed),
        };
        let place = if at(ADDRESSES)? == VLAN { ADDRESSES + 4 } else { ADDRESSES };
        let (ethertype, packet) = (at(place)?, &frame[place + 2..]);
        Ok(Link { head: &frame[..place], ethertype, packet })
    }

    /// Returns whether it says that it carries IP of the version that the packet has.
    pub(super) fn carries(&self, version: u8) -> bool {
        self.ethertype == ethertype(version)
    }

    /// A frame with this header around another packet.
    pub(super) fn around(&self, version: u8, packet: &[u8]) -> Vec<u8> {
        [self.head, &ethertype(version).to_be_bytes(), packet].concat()
    }
}

fn ethertype(version: u8) -> u16 {
    if version == 4 { IPV4 } else { IPV6 }
}
