//! Virtual networks of a laboratory: overlays, networks and tenants, for tests and fuzzers.

use std::sync::Arc;

use dataplane::{
    NextHop, NextHopId, Overlay, OverlayId, Overlays, PortId, RouteTarget, SourceCheck,
    VirtualNetwork,
};
use endpoints::{Book, Change, Endpoint, EndpointKey, Outcome, Table};
use wire::overlay::Kind;
use wire::{Address, Family, LinkAddress, Vni};

use crate::lab::{Hub, LAN, LAN2, host, numbered, own, policy, route};

/// IP versions.
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A network without groups.
pub const PLAIN: u32 = 7;
/// A network that may have groups: rules name it [`ATTACHMENT`].
pub const WEB: u32 = 8;
/// A network that checks hosts only.
pub const BY_HOST: u32 = 9;
/// A network that checks nothing.
pub const UNCHECKED: u32 = 10;
/// A network of another overlay.
pub const ELSEWHERE: u32 = 11;
/// Link address of the host that tenant 8 is behind.
pub const HOST_8_MAC: [u8; 6] = [2, 0, 0, 0, 1, 8];
/// The number under which rules name the network of the web.
pub const ATTACHMENT: u16 = 0x8000;

/// The network of a number.
///
/// # Panics
/// If it is none.
pub fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

/// The link address of a tenant.
pub fn mac(tenant: u8) -> [u8; 6] {
    [2, 7, 0, 0, 0, tenant]
}

/// The address of a tenant: 1 and 3 are behind the host of `lan`, 2 behind that of `lan2`, 4 behind
/// one that berlin protects, 5 behind one of the other family in `lan2`, 6 behind us, 7 behind one
/// behind a router in `lan2`, 8 behind one in `lan` that only its endpoint knows.
pub fn tenant(family: Family, number: u8) -> Address {
    match family {
        Family::V4 => Address::v4(0xac10_0000 | u32::from(number)),
        Family::V6 => Address::v6(0xfd00 << 112 | u128::from(number)),
    }
}

/// The other IP version.
pub fn other(family: Family) -> Family {
    if family == Family::V4 { Family::V6 } else { Family::V4 }
}

/// The overlays of a laboratory whose hosts have addresses of this family.
///
/// # Panics
/// If its few endpoints do not fit.
pub fn overlays(outer: Family, kind: Kind) -> Arc<Overlays> {
    overlays_at(outer, kind, (LAN, 1))
}

/// Likewise, with entrances that are our addresses in a network, on its port.
///
/// # Panics
/// As [`overlays`].
pub fn overlays_at(outer: Family, kind: Kind, at: (PortId, u32)) -> Arc<Overlays> {
    overlays_of_book(outer, kind, at).0
}

/// [`overlays_at`], with the book that changes their endpoints.
///
/// # Panics
/// As [`overlays`].
pub fn overlays_of_book(outer: Family, kind: Kind, at: (PortId, u32)) -> (Arc<Overlays>, Book) {
    overlays_telling(outer, kind, at, None)
}

/// Likewise, with overlays whose hosts hear about direct paths at this UDP port.
///
/// # Panics
/// As [`overlays`].
pub fn overlays_telling(
    outer: Family,
    kind: Kind,
    (port, network): (PortId, u32),
    direct_port: Option<u16>,
) -> (Arc<Overlays>, Book) {
    let mut book = Book::new(Table::new(128, &[7; 32]).unwrap(), 128);
    let hosts = (1..=8u8).map(|number| match number {
        6 => (number, own(outer, 12)),
        _ => (number, host_of(outer, number).expect("all others have one")),
    });
    let hosts: Vec<(u8, Address)> = hosts.collect();
    let mut changes = Vec::new();
    for network in [PLAIN, WEB, BY_HOST, UNCHECKED, ELSEWHERE] {
        for &(number, host) in &hosts {
            for family in FAMILIES {
                let key = EndpointKey { vni: vni(network), address: tenant(family, number) };
                let mac = LinkAddress::new(mac(number));
                let host_mac = (number == 8).then_some(LinkAddress::new(HOST_8_MAC));
                let endpoint = Endpoint { key, host, host_mac, mac };
                changes.push(Change::Put { revision: 1, endpoint });
            }
        }
    }
    let outcomes = book.apply(&changes);
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "{outcomes:?}");
    let overlay = |name: &str, udp_port, entrances| Overlay {
        name: name.into(),
        kind,
        udp_port,
        port,
        entrances,
        direct_port,
    };
    let entrances = vec![own(outer, network), own(other(outer), network)];
    let list = vec![
        overlay("fabric", kind.udp_port(), entrances.clone()),
        overlay("other", 9999, entrances),
    ];
    let network = |number, source_check, attachment| VirtualNetwork {
        vni: vni(number),
        overlay: OverlayId(u16::from(number == ELSEWHERE)),
        attachment,
        source_check,
    };
    let networks = [
        network(PLAIN, SourceCheck::Endpoint, None),
        network(WEB, SourceCheck::Endpoint, Some(ATTACHMENT)),
        network(BY_HOST, SourceCheck::Host, None),
        network(UNCHECKED, SourceCheck::None, None),
        network(ELSEWHERE, SourceCheck::Endpoint, None),
    ];
    (Arc::new(Overlays::new(list, networks, book.table().clone())), book)
}

/// Gives the gateway overlays.
pub fn having(outer: Family, kind: Kind) -> impl Fn(&mut Hub) + Clone {
    move |hub| {
        hub.parts.overlays = Some(overlays(outer, kind));
        hub.parts.next_hops.extend(FAMILIES.map(|family| {
            let gateway = Some(host(family, 12));
            NextHop { port: LAN2, gateway }
        }));
        let first = hub.parts.next_hops.len() as u32 - 2;
        for (prefix, hop) in [("10.90.0.0/16", first), ("2001:db8:90::/48", first + 1)] {
            hub.parts.routes.push(route(prefix, RouteTarget::Via(NextHopId(hop))));
        }
        // What is in the overlay may be sealed on its way: berlin's host is behind berlin.
        hub.policies.push(policy(
            "fabric",
            300,
            hub.policies[0].action,
            &["10.0.0.0/8", "2001:db8::/32"],
            &["10.2.0.0/16", "2001:db8:2::/48"],
        ));
        hub.policies = numbered(std::mem::take(&mut hub.policies));
    }
}

/// The host that a tenant is behind, as [`overlays`] says for hosts of a family.
pub fn host_of(outer: Family, tenant: u8) -> Option<Address> {
    match tenant {
        1 | 3 => Some(host(outer, 1)),
        2 => Some(host(outer, 12)),
        4 => Some(host(outer, 2)),
        5 => Some(host(other(outer), 12)),
        7 => Some(host(outer, 90)),
        8 => Some(Address { value: host(outer, 1).value + 3, ..host(outer, 1) }),
        _ => None,
    }
}

/// Asserts that an overlay packet that left is for the host that the destination is behind.
///
/// # Panics
/// If it is not.
pub fn assert_rightly_sent(kind: Kind, hosts: Family, packet: &[u8]) {
    let outer = wire::packet::parse(packet).expect("what leaves is whole");
    let overlay = &packet[usize::from(outer.upper_offset) + 8..];
    let header = wire::overlay::parse(kind, overlay).expect("an overlay packet");
    assert!([PLAIN, WEB, BY_HOST, UNCHECKED].contains(&header.vni.get()), "{header:?}");
    let frame = &overlay[header.length..];
    let inner = wire::packet::quoted(&frame[14..]).expect("an IP packet");
    let to = inner.flow.destination_address();
    let number = (1..=8u8).find(|number| tenant(to.family, *number) == to).expect("an endpoint");
    assert_eq!(host_of(hosts, number), Some(outer.flow.destination_address()));
    assert_eq!(frame[..6], mac(number));
}
