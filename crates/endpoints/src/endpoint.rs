//! An endpoint, its key, and the checks of both.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr};

use wire::{Address, Family, LinkAddress, Vni};

/// Key of an endpoint. Keys are ordered by network, then IPv4 before IPv6, then address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct EndpointKey {
    /// The virtual network.
    pub vni: Vni,
    /// Address of the tenant in it.
    pub address: Address,
}

impl fmt::Display for EndpointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in VNI {}", self.address, self.vni)
    }
}

/// An address of a tenant, and where it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Network and address of the tenant.
    pub key: EndpointKey,
    /// Outer address of the host that it lives on.
    pub host: Address,
    /// Link address of the host. `None`: the kernel's neighbours know it.
    pub host_mac: Option<LinkAddress>,
    /// Link address of the tenant: the destination of the inner frame.
    pub mac: LinkAddress,
}

/// An endpoint that no packet could reach. It is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidEndpoint {
    /// The tenant's address is not one of a single station.
    #[error("endpoint {key}: the tenant's address {fault}")]
    Address {
        /// The endpoint.
        key: EndpointKey,
        /// The reason.
        fault: AddressFault,
    },
    /// The host's address is not one of a single station.
    #[error("endpoint {key}: the host's address {host} {fault}")]
    Host {
        /// The endpoint.
        key: EndpointKey,
        /// Its host.
        host: Address,
        /// The reason.
        fault: AddressFault,
    },
    /// The tenant's link address is not one of a single station.
    #[error("endpoint {key}: the tenant's link address {} {fault}", Colons(*mac))]
    Mac {
        /// The endpoint.
        key: EndpointKey,
        /// The link address.
        mac: LinkAddress,
        /// The reason.
        fault: MacFault,
    },
    /// The host's link address is not one of a single station.
    #[error("endpoint {key}: the host's link address {} {fault}", Colons(*mac))]
    HostMac {
        /// The endpoint.
        key: EndpointKey,
        /// The link address.
        mac: LinkAddress,
        /// The reason.
        fault: MacFault,
    },
}

/// The reason why an address is not one of a single station on a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressFault {
    /// 0.0.0.0 (RFC 1122 §3.2.1.3) or :: (RFC 4291 §2.5.2).
    #[error("is unspecified: it names nobody")]
    Unspecified,
    /// 127.0.0.0/8 (RFC 1122 §3.2.1.3) or ::1 (RFC 4291 §2.5.3).
    #[error("is a loopback address: no packet with it leaves a machine")]
    Loopback,
    /// 224.0.0.0/4 (RFC 5771 §3) or ff00::/8 (RFC 4291 §2.7).
    #[error("is a multicast address: an endpoint is a single station")]
    Multicast,
    /// 255.255.255.255 (RFC 919 §7).
    #[error("is the broadcast address: an endpoint is a single station")]
    Broadcast,
    /// An IPv4 address with more than 32 bits: a mistake of the caller.
    #[error("has more than 32 bits, but is said to be of IPv4")]
    TooLong,
}

/// The reason why a link address is not one of a single station.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MacFault {
    /// All bits are 0.
    #[error("is zero: it names nobody")]
    Zero,
    /// The group bit is set (IEEE 802-2014 §8.2): multicast or broadcast.
    #[error("is a group address: use that of a single station, whose first byte is even")]
    Group,
}

impl Endpoint {
    /// Checks that packets can reach it: both addresses and both link addresses are of single
    /// stations. A subnet's own broadcast address passes, since no subnets are known here.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] of the first of tenant's address, host's address, tenant's link address,
    /// host's link address that is not.
    pub fn check(&self) -> Result<(), InvalidEndpoint> {
        let Endpoint { key, host, host_mac, mac } = *self;
        if let Some(fault) = address_fault(key.address) {
            return Err(InvalidEndpoint::Address { key, fault });
        }
        if let Some(fault) = address_fault(host) {
            return Err(InvalidEndpoint::Host { key, host, fault });
        }
        if let Some(fault) = mac_fault(mac) {
            return Err(InvalidEndpoint::Mac { key, mac, fault });
        }
        match host_mac.and_then(|mac| Some((mac, mac_fault(mac)?))) {
            Some((mac, fault)) => Err(InvalidEndpoint::HostMac { key, mac, fault }),
            None => Ok(()),
        }
    }
}

fn address_fault(address: Address) -> Option<AddressFault> {
    if address.value > address.family.highest_address() {
        return Some(AddressFault::TooLong);
    }
    let ip = IpAddr::from(address);
    match ip {
        _ if ip.is_unspecified() => Some(AddressFault::Unspecified),
        _ if ip.is_loopback() => Some(AddressFault::Loopback),
        _ if ip.is_multicast() => Some(AddressFault::Multicast),
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(AddressFault::Broadcast),
        _ => None,
    }
}

fn mac_fault(mac: LinkAddress) -> Option<MacFault> {
    match mac.bytes() {
        [0, 0, 0, 0, 0, 0] => Some(MacFault::Zero),
        [first, ..] if first & 1 == 1 => Some(MacFault::Group),
        _ => None,
    }
}

/// A link address as people write it.
struct Colons(LinkAddress);

impl fmt::Display for Colons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0.bytes();
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

/// Words of a key: `VNI << 1 | is of IPv6`, high and low half of the address. Words are ordered as
/// keys are.
pub(crate) type KeyWords = [u64; 3];

#[inline]
fn halves(address: Address) -> [u64; 2] {
    [(address.value >> 64) as u64, address.value as u64]
}

/// The family that a bit says: not 0 is IPv6.
#[inline]
fn family_of(bit: u64) -> Family {
    if bit != 0 { Family::V6 } else { Family::V4 }
}

#[inline]
fn value_of([high, low]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

impl EndpointKey {
    #[inline]
    pub(crate) fn words(&self) -> KeyWords {
        key_words(self.vni, self.address)
    }

    /// The key of words that a key has.
    pub(crate) fn from_words([network, high, low]: KeyWords) -> EndpointKey {
        let [_, _, _, _, _, a, b, c] = (network >> 1).to_be_bytes();
        let vni = Vni::from_bytes([a, b, c]);
        let address = Address { family: family_of(network & 1), value: value_of([high, low]) };
        EndpointKey { vni, address }
    }
}

/// The words of an address in a network: of a tenant's one, or of a host's.
#[inline]
pub(crate) fn key_words(vni: Vni, address: Address) -> KeyWords {
    let [high, low] = halves(address);
    [u64::from(vni.get()) << 1 | u64::from(address.family == Family::V6), high, low]
}

/// Words of all else: host's address, high and low half; host's link address, with bits above it
/// that say whether there is one and of which family the host's address is; tenant's link address.
pub(crate) type ContentWords = [u64; 4];

/// The host's link address is known.
const HAS_HOST_MAC: u64 = 1 << 48;
/// The host's address is of IPv6.
pub(crate) const HOST_V6: u64 = 1 << 49;

/// All of an endpoint but its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Outer address of the host.
    pub host: Address,
    /// Link address of the host. `None`: the kernel's neighbours know it.
    pub host_mac: Option<LinkAddress>,
    /// Link address of the tenant: the destination of the inner frame.
    pub mac: LinkAddress,
}

impl Found {
    /// Puts it together with its key.
    pub fn of(self, key: EndpointKey) -> Endpoint {
        let Found { host, host_mac, mac } = self;
        Endpoint { key, host, host_mac, mac }
    }

    #[inline]
    pub(crate) fn from_words([high, low, host_mac, mac]: &ContentWords) -> Found {
        Found {
            host: Address { family: family_of(host_mac & HOST_V6), value: value_of([*high, *low]) },
            host_mac: (host_mac & HAS_HOST_MAC != 0).then(|| mac_of(*host_mac)),
            mac: mac_of(*mac),
        }
    }

    #[inline]
    pub(crate) fn words(&self) -> ContentWords {
        let [high, low] = halves(self.host);
        let family = if self.host.family == Family::V6 { HOST_V6 } else { 0 };
        let host_mac = self.host_mac.map_or(0, |mac| number_of(mac) | HAS_HOST_MAC);
        [high, low, host_mac | family, number_of(self.mac)]
    }
}

impl From<Endpoint> for Found {
    fn from(Endpoint { key: _, host, host_mac, mac }: Endpoint) -> Found {
        Found { host, host_mac, mac }
    }
}

#[inline]
fn mac_of(number: u64) -> LinkAddress {
    let [_, _, a, b, c, d, e, f] = number.to_be_bytes();
    LinkAddress::new([a, b, c, d, e, f])
}

#[inline]
fn number_of(mac: LinkAddress) -> u64 {
    let [a, b, c, d, e, f] = mac.bytes();
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}
