//! The virtual network behind lan, and its packets.
//!
//! Tenants are endpoints of one VXLAN network, a few on each host. Flow n goes from endpoint n to
//! another one, in an overlay packet from the one's host to the entrance, which is our address on
//! lan.

use std::sync::Arc;

use dataplane::{Overlay, OverlayId, Overlays, PortId, SourceCheck, VirtualNetwork};
use endpoints::{Book, Change, Endpoint, EndpointKey, Outcome, Table};
use wire::link::{ETHERNET_BYTES, ethertype};
use wire::outer::Outer;
use wire::overlay::Kind;
use wire::{Address, Family, LinkAddress, Vni, link};

use crate::case::{Case, Direction, HOP_LIMIT, LAN, own_mac, router_mac};

/// Endpoints of the network.
pub(crate) const ENDPOINTS: usize = 1024;
/// Endpoints of a host.
const A_HOST: usize = 4;
/// The link address that tenants send to: the one that they know of their router.
const TENANTS_ROUTER: [u8; 6] = [2, 0, 0, 0, 4, 0];
/// Destination port of the overlay.
const PORT: u16 = wire::overlay::VXLAN_PORT;

const fn vni() -> Vni {
    Vni::new(7).expect("24 bits")
}

/// Address of an endpoint in the network.
pub(crate) fn tenant(family: Family, endpoint: usize) -> Address {
    let number = (endpoint % ENDPOINTS) as u128 + 1;
    let network = match family {
        Family::V4 => 0xac10_0000,
        Family::V6 => 0xfd00_0007 << 96,
    };
    Address { family, value: network + number }
}

fn tenants_mac(endpoint: usize) -> [u8; 6] {
    let [.., high, low] = (endpoint % ENDPOINTS).to_be_bytes();
    [2, 0, 0, 0, 0x80 | high, low]
}

/// The host that an endpoint is on: one behind lan.
fn host(case: &Case, endpoint: usize) -> Address {
    let lan = case.network(LAN).first();
    Address { value: lan.value + 1 + (endpoint % ENDPOINTS / A_HOST) as u128, ..lan }
}

/// The overlay of a case; `None`: it has none.
pub(crate) fn overlays(case: &Case) -> Option<Arc<Overlays>> {
    if case.direction != Direction::Overlay {
        return None;
    }
    // The same secret each time: the walk's instructions are counted.
    let table = Table::new(ENDPOINTS, &[7; 32]).expect("a small table");
    let mut book = Book::new(table, 0);
    let puts: Vec<Change> = (0..ENDPOINTS).map(|endpoint| put(case, endpoint)).collect();
    let outcomes = book.apply(&puts);
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "they fit the table");
    let overlay = Overlay {
        name: "fabric".into(),
        kind: Kind::Vxlan,
        udp_port: PORT,
        port: PortId(LAN.0),
        entrances: vec![case.own(LAN)],
    };
    let network = VirtualNetwork {
        vni: vni(),
        overlay: OverlayId(0),
        attachment: None,
        source_check: SourceCheck::default(),
    };
    Some(Arc::new(Overlays::new(vec![overlay], [network], book.table().clone())))
}

fn put(case: &Case, endpoint: usize) -> Change {
    let key = EndpointKey { vni: vni(), address: tenant(case.family, endpoint) };
    let mac = LinkAddress::new(tenants_mac(endpoint));
    let endpoint = Endpoint { key, host: host(case, endpoint), host_mac: None, mac };
    Change::Put { revision: 1, endpoint }
}

/// The endpoints that a flow is between.
fn ends(case: &Case, flow: usize) -> [usize; 2] {
    let [_, destination] = case.hosts(flow);
    let number = destination.value - tenant(case.family, 0).value;
    [flow % ENDPOINTS, number as usize]
}

/// The frame of a flow's packet as it arrives from the sender's host.
pub(crate) fn arriving(case: &Case, flow: usize) -> Vec<u8> {
    let [from, _] = ends(case, flow);
    let way = (host(case, from), case.own(LAN));
    frame(case, flow, (router_mac(LAN), own_mac(LAN)), way, (TENANTS_ROUTER, HOP_LIMIT))
}

/// The frame of a flow's packet as it leaves to the receiver's host.
pub(crate) fn leaving(case: &Case, flow: usize) -> Vec<u8> {
    let [_, to] = ends(case, flow);
    let way = (case.own(LAN), host(case, to));
    frame(case, flow, (own_mac(LAN), router_mac(LAN)), way, (tenants_mac(to), HOP_LIMIT - 1))
}

/// The frame of a flow's packet, from one to another: link addresses, outer addresses, and the
/// destination inside with the outer hop limit.
fn frame(
    case: &Case,
    flow: usize,
    (link_from, link_to): ([u8; 6], [u8; 6]),
    (source, destination): (Address, Address),
    (to, hop_limit): ([u8; 6], u8),
) -> Vec<u8> {
    let [from, _] = ends(case, flow);
    let tenants = case.inner(flow, HOP_LIMIT).frame(to, tenants_mac(from), None);
    let outer = Outer {
        source,
        destination,
        source_port: 0xc000 | (flow % 0x4000) as u16,
        udp_port: PORT,
        kind: Kind::Vxlan,
        vni: vni(),
        traffic_class: 0,
        hop_limit,
    };
    let start = ETHERNET_BYTES + outer.bytes();
    let mut frame = vec![0; start];
    frame.extend_from_slice(&tenants);
    let ip = outer.write(&mut frame, start, tenants.len()).expect("there is room");
    let ethertype = match case.family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    };
    let [link_to, link_from] = [link_to, link_from].map(LinkAddress::new);
    link::write(&mut frame, ip, link_to, link_from, None, ethertype).expect("there is room");
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipsec::Suite;

    #[test]
    fn every_endpoint_sends_and_each_of_its_flows_has_another_receiver() {
        for family in [Family::V4, Family::V6] {
            let case = Case {
                direction: Direction::Overlay,
                suite: Suite::Null,
                family,
                size: 60,
                flows: 4 * ENDPOINTS,
                backend: None,
                workers: 1,
                sas: 1,
            };
            let mut ends: Vec<[usize; 2]> = (0..case.flows).map(|flow| ends(&case, flow)).collect();
            assert!(ends.iter().flatten().all(|end| *end < ENDPOINTS));
            ends.sort_unstable();
            ends.dedup();
            assert_eq!(ends.len(), case.flows);
            let length = arriving(&case, 5).len();
            let outer = if family == Family::V4 { 50 } else { 70 };
            assert_eq!(length, 60 + ETHERNET_BYTES + outer, "IP, UDP, VXLAN, Ethernet");
        }
    }
}
