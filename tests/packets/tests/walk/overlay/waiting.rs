//! Tenants' packets without the link address of their destination host.

use std::sync::Arc;

use dataplane::{DropReason, Generation, HoldKind, Sources, Verdict};
use endpoints::{Book, Change, Endpoint, EndpointKey};
use packets::lab::{HOST_MAC, Hub, LAN, LAN2, host, with_ports};
use packets::overlay::{PLAIN, WEB, mac, overlays_of_book, tenant, vni};
use policy::{Policy, Spd};
use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol::TCP;
use wire::overlay::Kind;
use wire::{Family, LinkAddress};

use super::{OverlayPacket, web_only};

/// A change of the endpoint of tenant 2 in a network.
fn change(network: u32, to: Option<Family>) -> impl Fn(&mut Book) {
    move |book| {
        let key = EndpointKey { vni: vni(network), address: tenant(Family::V4, 2) };
        let change = match to {
            None => Change::Delete { revision: 2, key },
            Some(outer) => {
                let (host, mac) = (host(outer, 90), LinkAddress::new(mac(2)));
                Change::Put { revision: 2, endpoint: Endpoint { key, host, host_mac: None, mac } }
            }
        };
        book.apply(&[change]);
    }
}

/// Sends a tenant's packet to a host that nobody has resolved; makes a change of endpoints, then of
/// the snapshot; resolves the host. Returns what left, and what was dropped for a reason.
fn waited(
    network: u32,
    of_endpoints: impl Fn(&mut Book),
    of_snapshot: impl Fn(&mut Sources, Vec<Policy>),
    reason: DropReason,
) -> (usize, u64) {
    let packet = PacketBuilder::new(tenant(Family::V4, 1), tenant(Family::V4, 2));
    let frame = packet.tcp_with(5000, 80, tcp_flags::SYN, None).frame(mac(2), mac(1), None);
    let packet = OverlayPacket::new(Family::V4, Kind::Vxlan, network, frame);
    let mut hub = Hub::default();
    web_only(Family::V4, Kind::Vxlan)(&mut hub);
    let (overlays, mut book) = overlays_of_book(Family::V4, Kind::Vxlan, (LAN, 1));
    hub.parts.overlays = Some(overlays);
    hub.parts.neighbours.retain(|neighbour| neighbour.port != LAN2);
    let policies = hub.policies.clone();
    let mut lab = hub.laboratory().live();
    assert_eq!(lab.send(LAN, &packet.ip()).verdicts, [Verdict::Hold(HoldKind::Neighbour)]);
    of_endpoints(&mut book);
    lab.change(|sources| {
        of_snapshot(sources, policies);
        sources.neighbours.insert((LAN2, host(Family::V4, 12)), HOST_MAC);
    });
    let sent = lab.release();
    assert_eq!(lab.waiting(), 0);
    assert!(sent.iter().all(|sent| sent.packet == packet.onward(host(Family::V4, 12), 2)));
    (sent.len(), lab.counters().dropped(reason))
}

#[test]
fn a_tenants_packet_leaves_only_to_the_host_of_its_endpoint() {
    let reason = DropReason::NoEndpoint;
    for network in [PLAIN, WEB] {
        assert_eq!(waited(network, |_| {}, |_, _| {}, reason), (1, 0));
        assert_eq!(waited(network, change(network, None), |_, _| {}, reason), (0, 1));
        assert_eq!(waited(network, change(network, Some(Family::V4)), |_, _| {}, reason), (0, 1));
    }
}

#[test]
fn a_tenants_packet_leaves_only_if_the_groups_of_its_network_still_permit_it() {
    let raised = |sources: &mut Sources, _| sources.generation = Generation(9);
    assert_eq!(waited(WEB, |_| {}, raised, DropReason::GroupNoMatch), (1, 0));
    let without_web = |sources: &mut Sources, mut policies: Vec<Policy>| {
        let web = policies.iter_mut().find(|policy| policy.name == "web").expect("a rule");
        *web = with_ports(web.clone(), TCP, &["81"]);
        sources.spd = Arc::new(Spd::new(policies).expect("few policies"));
        sources.generation = Generation(9);
    };
    assert_eq!(waited(WEB, |_| {}, without_web, DropReason::GroupNoMatch), (0, 1));
    assert_eq!(waited(PLAIN, |_| {}, without_web, DropReason::GroupNoMatch), (1, 0));
}
