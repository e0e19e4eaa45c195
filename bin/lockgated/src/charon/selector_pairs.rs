//! Pairs of traffic selectors: a local one and a remote one, whose packets a CHILD_SA carries
//! (RFC 7296 §2.9). A CHILD_SA with several selectors at each end has the packets of all pairs.

use charon_link::Selector;
use wire::Family;

/// All pairs of a local selector and a remote one that have packets in common.
pub(super) fn pairs<'s>(
    [local, remote]: [&'s [Selector]; 2],
) -> impl Iterator<Item = [Selector; 2]> + 's {
    let meets = |one: &Selector, other: &Selector| {
        one.addresses.0.is_ipv4() == other.addresses.0.is_ipv4()
            && common_protocol(one, other).is_some()
    };
    local.iter().flat_map(move |one| {
        let others = remote.iter().filter(move |other| meets(one, other));
        others.map(move |other| [one.clone(), other.clone()])
    })
}

/// Returns whether the pairs of `one` and the pairs of `other` have a packet in common. Each has
/// selectors of the local end and of the remote end.
///
/// Cost: the selectors of each end are compared with those of the same end. Pairs are not
/// compared with pairs: 64 selectors at each end are 16 million comparisons.
pub(super) fn have_common_packet(one: [&[Selector]; 2], other: [&[Selector]; 2]) -> bool {
    [Family::V4, Family::V6].into_iter().any(|family| {
        let local = CommonProtocols::of(one[0], other[0], family);
        let remote = CommonProtocols::of(one[1], other[1], family);
        local.meets(&remote)
    })
}

/// The protocol of the packets of two selectors, 0 for any; `None`: they have none in common.
fn common_protocol(one: &Selector, other: &Selector) -> Option<u8> {
    match (one.protocol, other.protocol) {
        (0, protocol) | (protocol, 0) => Some(protocol),
        (protocol, same) => (protocol == same).then_some(protocol),
    }
}

fn have_common_end(one: &Selector, other: &Selector) -> bool {
    let ports = one.ports == other.ports
        || [one.ports, other.ports].contains(&Selector::ANY_PORT)
        || (one.ports.0 <= other.ports.1 && other.ports.0 <= one.ports.1);
    ports && one.addresses.0 <= other.addresses.1 && other.addresses.0 <= one.addresses.1
}

/// Protocols of the packets that two lists of selectors of one end have in common.
#[derive(Clone, Copy, Default)]
struct CommonProtocols {
    /// True if packets of every protocol are among them.
    has_any: bool,
    /// One bit for each protocol.
    named: [u64; 4],
}

impl CommonProtocols {
    fn of(one: &[Selector], other: &[Selector], family: Family) -> CommonProtocols {
        let mut common = CommonProtocols::default();
        let of_family = |of: &&Selector| of.addresses.0.is_ipv4() == (family == Family::V4);
        for one in one.iter().filter(of_family) {
            for other in other.iter().filter(of_family).filter(|of| have_common_end(one, of)) {
                match common_protocol(one, other) {
                    Some(0) => common.has_any = true,
                    Some(protocol) => {
                        common.named[usize::from(protocol / 64)] |= 1 << (protocol % 64);
                    }
                    None => {}
                }
            }
        }
        common
    }

    fn is_empty(&self) -> bool {
        !self.has_any && self.named == [0; 4]
    }

    /// Returns whether a packet has a protocol of both.
    fn meets(&self, other: &CommonProtocols) -> bool {
        let named = self.named.iter().zip(other.named).any(|(one, other)| one & other != 0);
        named || (self.has_any && !other.is_empty()) || (other.has_any && !self.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn selector() -> impl Strategy<Value = Selector> {
        let protocol = prop_oneof![Just(0u8), Just(6), Just(17), Just(255)];
        let ports = prop_oneof![
            Just(Selector::ANY_PORT),
            Just((0, 0)),
            Just((80, 90)),
            Just((90, u16::MAX)),
            Just((u16::MAX, u16::MAX)),
        ];
        let ends = prop_oneof![Just((0u8, 255u8)), Just((0, 0)), Just((1, 2)), Just((2, 255))];
        (protocol, ports, ends, any::<bool>()).prop_map(|(protocol, ports, (lo, hi), is_ipv4)| {
            let address = |last: u8| match is_ipv4 {
                true => IpAddr::from(Ipv4Addr::new(10, 0, 0, last)),
                false => IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last))),
            };
            Selector { protocol, ports, addresses: (address(lo), address(hi)) }
        })
    }

    fn end() -> impl Strategy<Value = Vec<Selector>> {
        prop::collection::vec(selector(), 0..4)
    }

    /// The obvious twin: each pair is compared with each pair, by the protocols of a packet.
    fn pairs_have_common_packet(one: [&[Selector]; 2], other: [&[Selector]; 2]) -> bool {
        let meet = |one: &Selector, other: &Selector| {
            one.addresses.0.is_ipv4() == other.addresses.0.is_ipv4() && have_common_end(one, other)
        };
        let carries = |of: &Selector, protocol: u8| [0, protocol].contains(&of.protocol);
        pairs(one).any(|[local, remote]| {
            pairs(other).any(|[other_local, other_remote]| {
                meet(&local, &other_local)
                    && meet(&remote, &other_remote)
                    && (0..=255u8).any(|protocol| {
                        let all = [&local, &remote, &other_local, &other_remote];
                        all.into_iter().all(|of| carries(of, protocol))
                    })
            })
        })
    }

    proptest! {
        #[test]
        fn common_packet_is_found_as_by_comparing_all_pairs(
            one in [end(), end()],
            other in [end(), end()],
        ) {
            let [one, other] = [&one, &other].map(|of| of.each_ref().map(Vec::as_slice));
            prop_assert_eq!(
                have_common_packet(one, other),
                pairs_have_common_packet(one, other)
            );
        }
    }
}
