//! Remote ends: the owners of shares in a bounded table.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bits of an IPv6 address that one site chooses freely.
const SITE_BITS: u32 = 64;

/// A remote end as shares of a table count: an IPv4 address or an IPv6 /64, and there a UDP port.
/// Behind a NAT the port tells the ends of one address apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RemoteEnd {
    /// The address; of IPv6 its /64.
    pub site: IpAddr,
    /// The UDP port; 0 if none is known.
    pub port: u16,
}

impl RemoteEnd {
    /// Returns the end at an address and a port.
    pub fn new(address: IpAddr, port: u16) -> RemoteEnd {
        let site = match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                let site = u128::from(address) >> SITE_BITS << SITE_BITS;
                IpAddr::V6(Ipv6Addr::from(site))
            }
        };
        RemoteEnd { site, port }
    }
}

impl From<SocketAddr> for RemoteEnd {
    fn from(end: SocketAddr) -> RemoteEnd {
        RemoteEnd::new(end.ip(), end.port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_end_is_its_64_and_an_ipv4_end_is_one_address_in_either_form() {
        let end = |text: &str| RemoteEnd::from(text.parse::<SocketAddr>().unwrap());
        assert_eq!(end("[2001:db8:0:1::1]:500"), end("[2001:db8:0:1:ffff::9]:500"));
        assert_ne!(end("[2001:db8:0:1::1]:500"), end("[2001:db8:0:2::1]:500"));
        assert_eq!(end("[::ffff:192.0.2.1]:500"), end("192.0.2.1:500"));
        assert_ne!(end("192.0.2.1:500"), end("192.0.2.2:500"));
        assert_ne!(end("192.0.2.1:500"), end("192.0.2.1:501"));
    }
}
