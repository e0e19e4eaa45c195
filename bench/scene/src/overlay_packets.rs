//! Packets in the virtual network behind lan: flow n goes from endpoint n to another one, in an
//! overlay packet from the one's host to the entrance, which is our address on lan.

use wire::link::{ETHERNET_BYTES, ethertype};
use wire::outer::Outer;
use wire::overlay::Kind;
use wire::{Address, Family, LinkAddress, link};

use crate::case::{Case, HOP_LIMIT, LAN, own_mac, router_mac};
use crate::overlay::{ENDPOINTS, PORT, host, tenant, tenants_mac, vni};

/// The link address that tenants send to: the one that they know of their router.
const TENANTS_ROUTER: [u8; 6] = [2, 0, 0, 0, 4, 0];
/// First address of lan's network.
fn lan(case: &Case) -> Address {
    case.network(LAN).first()
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
    let way = (host(lan(case), from), case.own(LAN));
    frame(case, flow, (router_mac(LAN), own_mac(LAN)), way, (TENANTS_ROUTER, HOP_LIMIT))
}

/// The frame of a flow's packet as it leaves to the receiver's host.
pub(crate) fn leaving(case: &Case, flow: usize) -> Vec<u8> {
    let [_, to] = ends(case, flow);
    let way = (case.own(LAN), host(lan(case), to));
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
    use crate::case::Direction;
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
