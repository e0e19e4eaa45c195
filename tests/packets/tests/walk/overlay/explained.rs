//! Packets inside a network, as `explain` tells of them.

use super::*;

/// `explain` says of a packet inside a network what the walk does with it, and changes nothing.
#[test]
fn packets_inside_a_network_are_explained_as_they_are_judged() {
    let tenants = [1u8, 2, 3, 4, 5, 6, 7, 8, 77];
    for outer in FAMILIES {
        let mut hub = Hub::default();
        web_only(outer, Kind::Vxlan)(&mut hub);
        let limits = dataplane::connections::Limits::of(4096);
        let table = dataplane::connections::Connections::new(limits, Default::default(), &[9; 32]);
        hub.parts.connections = Some(table.into());
        let mut lab = hub.laboratory();
        let mut seen = std::collections::HashMap::new();
        for network in [PLAIN, WEB, BY_HOST, UNCHECKED] {
            for (from, to) in tenants.iter().flat_map(|from| tenants.map(|to| (*from, to))) {
                for (inner, port) in [(Family::V4, 80u16), (Family::V6, 22)] {
                    let known = host_of(outer, from).filter(|host| host.family == outer);
                    let stranger = Address { value: host(outer, 1).value + 9, ..host(outer, 1) };
                    let from_host = known.unwrap_or(stranger);
                    let packet = PacketBuilder::new(tenant(inner, from), tenant(inner, to));
                    let packet = packet.tcp_with(5000, port, tcp_flags::SYN, None);
                    let frame = packet.frame(mac(to), mac(from), None);
                    let sent = OverlayPacket {
                        from: from_host,
                        ..OverlayPacket::new(outer, Kind::Vxlan, network, frame)
                    };
                    let flow = wire::packet::parse(&packet.ip()).unwrap().flow;
                    let inside = Inside { vni: vni(network), host: Some(from_host) };
                    let at = (&lab.snapshot, lab.now_ns);
                    let told = explain_inside(at, Arrival::Clear(LAN), inside, flow).unwrap();
                    let counters = lab.counters().clone();
                    let again = explain_inside(at, Arrival::Clear(LAN), inside, flow).unwrap();
                    assert_eq!(again, told);
                    assert_eq!(*lab.counters(), counters);
                    let carried = told.carried.unwrap();
                    let onward = carried.onward.map(|flow| flow.destination_address());
                    let expected = if to == 6 { Some(own(outer, 12)) } else { host_of(outer, to) };
                    assert_eq!(onward, expected);
                    let rules = told.consultations.iter().filter(|asked| asked.flow == flow);
                    let judged = lab.send(LAN, &sent.ip()).verdicts[0];
                    assert_eq!(told.verdict, judged, "{outer:?} {network} {from} {to}");
                    assert!(rules.count() <= usize::from(network == WEB));
                    *seen.entry(judged).or_insert(0) += 1;
                }
            }
        }
        assert!(seen.len() > 6, "{seen:?}");
    }
}

#[test]
fn without_a_host_the_explanation_takes_the_one_of_the_source() {
    let mut hub = Hub::default();
    having(Family::V4, Kind::Vxlan)(&mut hub);
    let lab = hub.laboratory();
    let at = (&lab.snapshot, lab.now_ns);
    let flow = |from, to| {
        let packet = PacketBuilder::new(tenant(Family::V4, from), tenant(Family::V4, to));
        wire::packet::parse(&packet.udp(1, 2).ip()).unwrap().flow
    };
    let ask = |network, flow| {
        let inside = Inside { vni: vni(network), host: None };
        explain_inside(at, Arrival::Clear(LAN), inside, flow)
    };
    let told = ask(PLAIN, flow(1, 4)).unwrap();
    assert_eq!(told.verdict, Verdict::Protect(BERLIN));
    let around = 20 + 8 + 8 + 14;
    let sizes = lab.snapshot.set_sizes(BERLIN, lab.now_ns).inner(Family::V4);
    assert_eq!(told.mtu, Some(sizes - around));
    assert_eq!(told.carried.unwrap().host, host(Family::V4, 1));
    let nobody = endpoints::EndpointKey { vni: vni(PLAIN), address: tenant(Family::V4, 77) };
    assert_eq!(ask(PLAIN, flow(77, 1)).unwrap_err(), InsideError::NoHost(nobody));
    assert_eq!(ask(3, flow(1, 2)).unwrap_err(), InsideError::NoNetwork(vni(3)));
}
