//! The datagram that a fragment is of (RFC 791 §2.3, RFC 8200 §4.5), and the worker that it belongs
//! to.

use cpu::aes::{KeyedHash, Secret};
use policy::SaSetId;
use wire::{Address, Family, FragmentHeader, Packet, Vni};

use crate::ids::PortId;
use crate::packet_sender::PacketSender;

/// The way by which fragments come. Those that came by different ways are never put together:
/// nobody who sends by one has a say in what comes by another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Way {
    pub(crate) ingress: PortId,
    /// The set whose SA opened them; `None`: they came in clear.
    pub(crate) opened_by: Option<SaSetId>,
    /// The virtual network that they are in; `None`: they are in none.
    pub(crate) network: Option<Vni>,
}

/// The fields that all fragments of a datagram share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Datagram {
    pub(crate) way: Way,
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) identification: u32,
    /// IPv4's protocol. 0 in IPv6, whose first fragment alone says it.
    pub(crate) protocol: u8,
}

impl Datagram {
    /// The datagram of a fragment.
    pub(crate) fn of(packet: &Packet, header: &FragmentHeader, way: Way) -> Datagram {
        let flow = &packet.flow;
        Datagram {
            way,
            source: flow.source_address(),
            destination: flow.destination_address(),
            identification: header.identification,
            protocol: match flow.family {
                Family::V4 => flow.protocol,
                Family::V6 => 0,
            },
        }
    }

    /// The sender, behind a port or in a virtual network, in clear or in a tunnel.
    pub(super) fn sender(&self) -> PacketSender {
        let Way { ingress, opened_by, network } = self.way;
        let sender = match network {
            Some(network) => PacketSender::inside(ingress, network, self.source),
            None => PacketSender::behind(ingress, self.source),
        };
        sender.opened_by(opened_by)
    }

    /// Its fields without the way, as words of a hash.
    fn words(&self) -> [u64; 6] {
        let Datagram { source, destination, identification, protocol, .. } = *self;
        let number = u64::from(identification) | u64::from(protocol) << 32;
        let [s, d] = [source.value, destination.value];
        [(s >> 64) as u64, s as u64, (d >> 64) as u64, d as u64, number, family(source)]
    }
}

/// The keyed hash of datagrams: strangers choose the fields.
pub(super) struct Hashes(KeyedHash);

impl Hashes {
    pub(super) fn new(secret: &Secret) -> Hashes {
        Hashes(KeyedHash::new(secret))
    }

    /// The worker of several to which a datagram's fragments belong, whatever way they came.
    pub(super) fn owner(&self, datagram: &Datagram, workers: u32) -> u32 {
        let hash = self.one(datagram.words());
        // The high bits: the low ones choose its chain in that worker's table.
        ((u128::from(hash) * u128::from(workers)) >> 64) as u32
    }

    pub(super) fn datagram(&self, datagram: &Datagram) -> u64 {
        self.one(datagram.words())
    }

    fn one<const WORDS: usize>(&self, words: [u64; WORDS]) -> u64 {
        let mut hash = [0];
        self.0.hash(&[words], &mut hash);
        hash[0]
    }
}

fn family(address: Address) -> u64 {
    match address.family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(identification: u32) -> Datagram {
        let (source, destination) = (Address::v4(1), Address::v4(2));
        let way = Way { ingress: PortId(0), opened_by: None, network: None };
        Datagram { way, source, destination, identification, protocol: 17 }
    }

    #[test]
    fn datagrams_are_spread_evenly_over_workers_and_a_way_moves_none() {
        let hashes = Hashes::new(&[3; 32]);
        for workers in [1, 2, 3, 7] {
            let mut owned = vec![0u32; workers as usize];
            for identification in 0..7000 {
                let datagram = datagram(identification);
                let owner = hashes.owner(&datagram, workers);
                let network = Vni::new(5);
                let way = Way { ingress: PortId(9), opened_by: Some(SaSetId(1)), network };
                assert_eq!(hashes.owner(&Datagram { way, ..datagram }, workers), owner);
                owned[owner as usize] += 1;
            }
            let mean = 7000 / workers;
            assert!(owned.iter().all(|n| n.abs_diff(mean) < mean / 5), "{owned:?}");
        }
    }

    #[test]
    fn a_sender_is_an_ipv4_address_or_an_ipv6_prefix_of_one_way() {
        let from = |source| Datagram { source, ..datagram(1) }.sender();
        assert_ne!(from(Address::v4(1)), from(Address::v4(2)));
        let way = Way { network: Vni::new(0), ..datagram(1).way };
        assert_ne!(Datagram { way, ..datagram(1) }.sender(), datagram(1).sender());
        let way = Way { opened_by: Some(SaSetId(0)), ..datagram(1).way };
        assert_ne!(Datagram { way, ..datagram(1) }.sender(), datagram(1).sender());
        let net = 0x2001_0db8 << 96;
        assert_eq!(from(Address::v6(net | 1)), from(Address::v6(net | u128::from(u64::MAX))));
        assert_ne!(from(Address::v6(net)), from(Address::v6(net | 1 << 64)));
    }
}
