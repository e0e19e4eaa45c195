//! Traffic selectors of IKEv2.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::field::{Field, Malformed, ip_address, put_address};

/// A traffic selector (RFC 7296 §3.13.1): packets of a protocol between addresses and ports, all of
/// them ranges. Addresses are of one family, and the first is not behind the last.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Selector {
    /// Number of the upper-layer protocol; 0: any.
    pub protocol: u8,
    /// First and last port, or ICMP type · 256 + code. [`Selector::OPAQUE`]: packets whose ports
    /// are not known.
    pub ports: (u16, u16),
    /// First and last address.
    pub addresses: (IpAddr, IpAddr),
}

impl Selector {
    /// The ports of packets whose ports are not known: OPAQUE of RFC 7296.
    pub const OPAQUE: (u16, u16) = (u16::MAX, 0);
    /// All ports.
    pub const ANY_PORT: (u16, u16) = (0, u16::MAX);

    /// Returns the ports as a range; an empty one if they are OPAQUE.
    pub fn port_range(&self) -> RangeInclusive<u16> {
        self.ports.0..=self.ports.1
    }

    /// Returns whether every packet of `other` is one of this selector too.
    pub fn covers(&self, other: &Selector) -> bool {
        let ports = self.ports == Selector::ANY_PORT
            || self.ports == other.ports
            || (other.ports != Selector::OPAQUE
                && self.ports.0 <= other.ports.0
                && other.ports.1 <= self.ports.1);
        (self.protocol == 0 || self.protocol == other.protocol)
            && ports
            && self.addresses.0.is_ipv4() == other.addresses.0.is_ipv4()
            && self.addresses.0 <= other.addresses.0
            && other.addresses.1 <= self.addresses.1
    }

    pub(crate) fn read(field: &Field<'_>) -> Result<Selector, Malformed> {
        let (head, addresses) =
            field.value.split_first_chunk::<6>().ok_or_else(|| field.wrong())?;
        let (first, last) = addresses.split_at(addresses.len() / 2);
        let both = ip_address(first).zip(ip_address(last));
        let addresses = both.ok_or_else(|| field.wrong())?;
        let [first, last] = [[head[2], head[3]], [head[4], head[5]]].map(u16::from_be_bytes);
        let ports = (first, last);
        let in_order = (first <= last || ports == Selector::OPAQUE) && addresses.0 <= addresses.1;
        match in_order && head[1] == 0 {
            true => Ok(Selector { protocol: head[0], ports, addresses }),
            false => Err(field.wrong()),
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Selector { protocol, ports, addresses } = self;
        let mut bytes = vec![*protocol, 0];
        bytes.extend(ports.0.to_be_bytes());
        bytes.extend(ports.1.to_be_bytes());
        put_address(&mut bytes, addresses.0);
        put_address(&mut bytes, addresses.1);
        bytes
    }
}

/// `10.1.0.0 to 10.1.255.255, protocol 6, ports 80 to 80`.
impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Selector { protocol, ports, addresses: (first, last) } = self;
        match first == last {
            true => write!(f, "{first}")?,
            false => write!(f, "{first} to {last}")?,
        }
        if *protocol != 0 {
            write!(f, ", protocol {protocol}")?;
        }
        match *ports {
            Selector::ANY_PORT => Ok(()),
            Selector::OPAQUE => f.write_str(", unknown ports"),
            (first, last) if first == last => write!(f, ", port {first}"),
            (first, last) => write!(f, ", ports {first} to {last}"),
        }
    }
}
