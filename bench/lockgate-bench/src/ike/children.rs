//! CHILD_SAs as charon installs and removes them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use charon_link::{
    AddPolicy, AddSa, Algorithm, LinkMode, Policy, PolicyAction, PolicyDirection, Request,
    SaDirection, SaHandle, SaLimits, SaName, Selector,
};

use super::super::BenchError;
use super::plugin::Plugin;
use super::rows::{Kind, Times};

/// The gateway's end of all tunnels, and the first of the others'.
const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const FIRST_REMOTE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Packets inside: of one network here, to one address behind each of the others.
const INSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 0, 0), Ipv4Addr::new(10, 1, 255, 255)];
const FIRST_BEHIND: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
/// AES-GCM with an ICV of 16 bytes (RFC 4106), and a policy of charon's that protects.
const AES_GCM_16: u16 = 20;
const PRIORITY: u32 = 1 << 24;

/// Sections of the gateway's file within which charon may have so many children.
pub(super) fn bounds(most: usize) -> String {
    format!(
        "[ike]\nends = [\"{LOCAL}\"]\npeers = [\"198.18.0.0/15\"]\nlocal = [\"10.1.0.0/16\"]\n\
         remote = [\"10.128.0.0/9\"]\nsuites = [\"aes-128-gcm\"]\nmax_children = {most}\n"
    )
}

/// A CHILD_SA.
#[derive(Clone, Copy)]
pub(super) struct Child {
    /// Its number, which is in its keys.
    number: usize,
    /// The number of its other gateway, and of the network behind that.
    ends_of: usize,
}

impl Child {
    pub(super) fn new(number: usize) -> Child {
        Child::between(number, number)
    }

    /// A child that has another's ends and selectors.
    pub(super) fn between(number: usize, ends_of: usize) -> Child {
        Child { number, ends_of }
    }

    /// Installs the child. Returns two handles: of the inbound SA, and of the outbound SA.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub(super) fn install(
        self,
        plugin: &mut Plugin,
        times: &mut Times,
    ) -> Result<[SaHandle; 2], BenchError> {
        let [here, there] = self.ends();
        let ends = Request::GetSpi { source: there, destination: here };
        let none = |what| BenchError::system("asking as charon")(std::io::Error::other(what));
        let spi = plugin.timed(Kind::Spi, &ends, times)?.spi.ok_or_else(|| none("no SPI"))?;
        let mut put = |direction| {
            let sa = Request::AddSa(Box::new(self.sa(direction, spi)));
            plugin.timed(Kind::AddSa, &sa, times)?.handle.ok_or_else(|| none("no handle"))
        };
        let handles = [put(SaDirection::Inbound)?, put(SaDirection::Outbound)?];
        for policy in self.policies() {
            plugin.timed(Kind::AddPolicy, &Request::AddPolicy(policy), times)?;
        }
        Ok(handles)
    }

    /// Asks for the use of its SAs.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub(super) fn ask(
        handles: [SaHandle; 2],
        plugin: &mut Plugin,
        times: &mut Times,
    ) -> Result<(), BenchError> {
        for handle in handles {
            plugin.timed(Kind::Query, &Request::QuerySa(handle), times)?;
        }
        Ok(())
    }

    /// Removes it, policies first, as charon does.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub(super) fn remove(
        self,
        [inbound, outbound]: [SaHandle; 2],
        plugin: &mut Plugin,
        times: &mut Times,
    ) -> Result<(), BenchError> {
        for policy in self.policies() {
            plugin.timed(Kind::DeletePolicy, &Request::DeletePolicy(policy), times)?;
        }
        for handle in [outbound, inbound] {
            plugin.timed(Kind::DeleteSa, &Request::DeleteSa(handle), times)?;
        }
        Ok(())
    }

    /// Its tunnel's ends, here and there.
    fn ends(self) -> [SocketAddr; 2] {
        let there = nth(FIRST_REMOTE, self.ends_of);
        [LOCAL, there].map(|address| SocketAddr::new(address.into(), 500))
    }

    /// Its packets, here and there.
    fn selectors(self) -> [Selector; 2] {
        let behind = nth(FIRST_BEHIND, self.ends_of);
        [INSIDE, [behind; 2]].map(|[first, last]| Selector {
            protocol: 0,
            ports: Selector::ANY_PORT,
            addresses: (IpAddr::from(first), IpAddr::from(last)),
        })
    }

    /// The number of its policies at charon; 0 is none.
    fn reqid(self) -> u32 {
        self.number as u32 + 1
    }

    fn name(self, direction: SaDirection, spi: u32) -> SaName {
        let [here, there] = self.ends();
        match direction {
            SaDirection::Inbound => SaName { source: there, destination: here, spi },
            SaDirection::Outbound => {
                SaName { source: here, destination: there, spi: 0x1000 + self.number as u32 }
            }
        }
    }

    fn sa(self, direction: SaDirection, spi: u32) -> AddSa {
        let mut selectors = self.selectors().map(|one| vec![one]);
        let mut key = vec![7; 20];
        key[..8].copy_from_slice(&(self.number as u64).to_be_bytes());
        if direction == SaDirection::Inbound {
            selectors.reverse();
            key[8] = 8;
        }
        AddSa {
            direction,
            name: self.name(direction, spi),
            reqid: self.reqid(),
            mode: LinkMode::Tunnel,
            encryption: Algorithm { transform: AES_GCM_16, key: key.into() },
            integrity: Algorithm { transform: 0, key: Vec::new().into() },
            esn: true,
            window: 32,
            in_udp: false,
            soft: SaLimits { seconds: 3000, ..SaLimits::default() },
            hard: SaLimits { seconds: 3600, ..SaLimits::default() },
            selectors,
            initiator: true,
        }
    }

    fn policies(self) -> [AddPolicy; 3] {
        let directions =
            [PolicyDirection::Outbound, PolicyDirection::Inbound, PolicyDirection::Forward];
        directions.map(|direction| {
            let (mut ends, mut selectors) = (self.ends(), self.selectors());
            if direction != PolicyDirection::Outbound {
                ends.reverse();
                selectors.reverse();
            }
            let [source, destination] = ends;
            let policy = Policy { direction, source, destination, selectors };
            let (action, spi) = (PolicyAction::Protect, 0x1000 + self.number as u32);
            let (reqid, priority, repeat) = (self.reqid(), PRIORITY, false);
            AddPolicy { policy, action, reqid, spi, priority, repeat }
        })
    }
}

fn nth(first: Ipv4Addr, number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(first.to_bits() + number as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_sas_have_a_key_or_an_outbound_name_in_common() {
        let mut keys = HashSet::new();
        for number in 0..2000 {
            let child = Child::between(number, number.min(1000));
            for direction in [SaDirection::Inbound, SaDirection::Outbound] {
                let sa = child.sa(direction, 0x9000);
                assert!(keys.insert(sa.encryption.key.to_vec()), "{number} {direction:?}");
            }
        }
        let [one, other] = [7, 8].map(|number| Child::new(number).name(SaDirection::Outbound, 1));
        assert_ne!((one.spi, one.destination), (other.spi, other.destination));
    }

    #[test]
    fn the_file_admits_the_children() {
        let last = Child::new(super::super::MOST - 1);
        let [_, there] = last.ends();
        assert!(there.ip() < IpAddr::from([198, 20, 0, 0]), "{there}");
        let behind = last.selectors()[1].addresses.1;
        assert!(behind < IpAddr::from([11, 0, 0, 0]), "{behind}");
    }
}
