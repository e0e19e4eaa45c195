//! Packets of `allow_host` that policies want: asked until it is plain, and asked of all.

use std::sync::Arc;

use policy::{Action, PolicyId, Selector};

use super::*;
use crate::ids::NetdevId;
use crate::port::{L4Checksum, Medium};

/// An unprotected port at 192.0.2.1/24 with these services.
fn port(place: u16, allow_host: Vec<HostService>) -> PortInfo {
    PortInfo {
        name: format!("port{place}"),
        netdev: NetdevId(place),
        vlan: None,
        side: Side::Unprotected,
        medium: Medium::Ethernet,
        mac: [2, 0, 0, 0, 1, place as u8],
        mtu: 1500,
        addresses: vec![Address::v4(0xc000_0201)],
        allow_host,
        l4_checksum: L4Checksum::Pass,
    }
}

fn service(protocol: u8, ports: Option<(u16, u16)>) -> HostService {
    HostService { protocol, ports: ports.map(|(lo, hi)| PortRange { lo, hi }) }
}

/// Policies of every kind that counts: to us, to groups, to neither; of protocols and ports at the
/// edges of what is listed; of one port; outbound only; passing.
fn policies() -> Vec<Policy> {
    let v4 = |lo, hi| AddressRange { family: Family::V4, lo, hi };
    let us = v4(0xc000_0201, 0xc000_0201);
    let locals =
        [us, v4(0xc000_0202, 0xc000_0203), v4(0xe000_0001, 0xe000_0001), v4(0, u32::MAX.into())];
    let uppers = [
        (None, UpperSelector::Any),
        (Some(protocol::TCP), UpperSelector::Any),
        (Some(protocol::UDP), UpperSelector::Any),
        (Some(protocol::TCP), ports(22, 22)),
        (Some(protocol::TCP), ports(23, u16::MAX)),
        (Some(protocol::UDP), ports(500, 500)),
    ];
    let mut all = Vec::new();
    for local in locals {
        for (protocol, upper) in &uppers {
            for (action, only, ingress) in [
                (Action::Discard, None, None),
                (Action::Discard, Some(Direction::Outbound), None),
                (Action::Bypass, None, None),
                (Action::Discard, None, Some(Arc::from([1u16]))),
            ] {
                all.push(Policy {
                    id: PolicyId(all.len() as u32),
                    name: all.len().to_string(),
                    action,
                    priority: 0,
                    only,
                    group: None,
                    ingress,
                    selector: Selector {
                        local: vec![local],
                        remote: vec![v4(0, u32::MAX.into())],
                        protocol: *protocol,
                        upper: upper.clone(),
                    },
                });
            }
        }
    }
    all
}

fn ports(lo: u16, hi: u16) -> UpperSelector {
    UpperSelector::Ports { local: vec![PortRange { lo, hi }], remote: Vec::new() }
}

#[test]
fn what_others_want_still_is_not_free_and_all_else_is() {
    let services = vec![
        service(protocol::TCP, Some((22, 22))),
        service(protocol::UDP, Some((500, 500))),
        service(protocol::ICMP, None),
    ];
    let some: PortInfos =
        [port(0, services.clone()), port(1, services), port(2, Vec::new())].into_iter().collect();
    let none: PortInfos = [port(0, Vec::new())].into_iter().collect();
    let (routes, all) = (Routes::default(), policies());
    let mut told = [0, 0];
    for listed in [&some, &none] {
        for goes in &all {
            let wanted = Reserved::by(listed, &routes, [goes]);
            for (one, other) in all.iter().zip(all.iter().skip(7)) {
                let stay = [one, other];
                let others = Reserved::by(listed, &routes, stay);
                let is_wanted = others.and(&wanted) == others;
                assert_eq!(
                    wanted.is_wanted_by(listed, &routes, stay),
                    is_wanted,
                    "{goes:?} beside {stay:?}"
                );
                told[usize::from(is_wanted)] += 1;
            }
            assert!(wanted.is_wanted_by(listed, &routes, [goes]));
            assert_eq!(wanted.is_wanted_by(listed, &routes, []), wanted.is_empty());
        }
    }
    assert!(told.iter().all(|count| *count > 1000), "{told:?}");
}

#[test]
fn no_more_policies_are_asked_than_it_takes() {
    let listed: PortInfos =
        [port(0, vec![service(protocol::TCP, Some((22, 22)))])].into_iter().collect();
    let (routes, all) = (Routes::default(), policies());
    let wanted = Reserved::by(&listed, &routes, [&all[0]]);
    let mut asked = 0;
    let endless = std::iter::repeat_with(|| {
        asked += 1;
        &all[0]
    });
    assert!(wanted.is_wanted_by(&listed, &routes, endless));
    assert_eq!(asked, 1);
}
