//! Packets that come by ports and that groups are not asked about.

use config::Validated;
use policy::{AddressRange, IcmpRange, PortRange, Selector, UpperSelector};
use wire::Family;
use wire::flow::protocol;

/// ICMPv6 messages of neighbour discovery (RFC 4861 §4).
const DISCOVERY: (u8, u8) = (133, 137);
/// UDP ports of IKE (RFC 7296 §2).
const IKE: [u16; 2] = [500, 4500];

/// ESP and IKE of the peers, what is for the gateway's addresses or never forwarded, and neighbour
/// discovery.
pub(super) fn own(validated: &Validated) -> Vec<Selector> {
    let mut own = Vec::new();
    for peer in &validated.peers {
        let tunnel = peer.tunnel();
        let (local, remote) = (AddressRange::from(tunnel.local), AddressRange::from(tunnel.remote));
        let between = |protocol, upper| Selector {
            local: vec![remote],
            remote: vec![local],
            protocol: Some(protocol),
            upper,
        };
        own.push(between(protocol::ESP, UpperSelector::Any));
        let ike = IKE.map(|port| PortRange { lo: port, hi: port });
        let ports = UpperSelector::Ports { local: Vec::new(), remote: ike.to_vec() };
        own.push(between(protocol::UDP, ports));
    }
    // Packets to the gateway's own addresses, and those that are never forwarded. The file does not
    // name addresses that only Linux has.
    let ours = validated.ports.iter().flat_map(|port| &port.addresses);
    let ours = ours.map(|of| AddressRange::from(of.address));
    let remote = ours.chain(offload::never_forwarded()).collect();
    let local = [Family::V4, Family::V6].map(AddressRange::any).to_vec();
    own.push(Selector { local, remote, protocol: None, upper: UpperSelector::Any });
    let any = vec![AddressRange::any(Family::V6)];
    let (first, last) = (IcmpRange::of_type(DISCOVERY.0), IcmpRange::of_type(DISCOVERY.1));
    own.push(Selector {
        local: any.clone(),
        remote: any,
        protocol: Some(protocol::ICMPV6),
        upper: UpperSelector::Icmp(vec![IcmpRange { lo: first.lo, hi: last.hi }]),
    });
    own
}
