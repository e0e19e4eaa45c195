//! Packets that leave for a card: by which port and by which SA, how they are counted, and how a
//! capture shows them.

use std::sync::Arc;

use dataplane::explain::{Arrival, explain};
use dataplane::tap::{Layers, Outcome as Outcomes};
use dataplane::{
    DropReason, FastPathUse, Input, NetdevId, NextHop, Outputs, PortId, PortInfo, Prefix,
    RouteTarget, TapId, TapSettings, Verdict, Walk, WorkerShare,
};
use io::MemoryFrames;
use ipsec::SaId;
use offload::Service;
use packets::lab::{
    BERLIN, CARLA, DORA, HOST_MAC, Hub, LAN, LAN_MAC, Laboratory, ROUTER_MAC, WAN, WAN_MAC, frame,
    tags,
};
use packets::table::forwarded;
use wire::CardHeader;
use wire::build::PacketBuilder;
use wire::link::ethertype;

use super::emulated::CardOnWire;
use super::{carded, serving};
use crate::{FAMILIES, between, datagram};

/// A second port to the world, of another device.
pub(super) const WAN2: PortId = PortId(4);
pub(super) const WAN2_NETDEV: NetdevId = NetdevId(3);

#[test]
fn by_a_port_with_a_vlan_the_card_seals_and_opens_too() {
    for (set, network) in [(BERLIN, 2), (CARLA, 3), (DORA, 4)] {
        for family in FAMILIES {
            for fast in [FastPathUse::Never, FastPathUse::Eager] {
                for service in [Service::Packet, Service::Crypto] {
                    let mut hub = Hub::default();
                    hub.parts.ports[usize::from(WAN.0)].vlan = Some(77);
                    let (lab, card) = serving(service, hub);
                    let mut lab = lab.with_fast_path(fast);
                    let there = datagram(family, 1, network).ip();
                    let outcome = lab.send_all(LAN, &[&there, &there]);
                    assert_eq!(outcome.verdicts, [Verdict::Protect(set); 2]);
                    for sent in &outcome.sent {
                        assert_eq!((sent.port, sent.to), (WAN, Some(ROUTER_MAC)));
                        let opened = lab.peer(set).open(&sent.packet).expect("opens");
                        assert_eq!(opened.inner, forwarded(&there));
                    }
                    let back = datagram(family, network, 1).ip();
                    let sealed = [(); 2].map(|()| lab.peer(set).seal(&back));
                    let outcome = lab.send_all(WAN, &sealed);
                    assert_eq!(outcome.verdicts, [Verdict::Forward(LAN); 2]);
                    let left: Vec<_> = outcome.sent.into_iter().map(|sent| sent.packet).collect();
                    assert_eq!(left, [forwarded(&back), forwarded(&back)]);
                    assert_eq!(tags(set).map(|tag| card.packets(tag)), [2, 2]);
                    let by_fast_path = if fast == FastPathUse::Never { 0 } else { 4 };
                    assert_eq!(lab.counters().fast_path, by_fast_path);
                }
            }
        }
    }
}

/// A hub with another way to the world.
pub(super) fn with_another_device() -> Hub {
    let mut hub = Hub::default();
    let wan = &hub.parts.ports[usize::from(WAN.0)];
    let other =
        PortInfo { name: "wan2".into(), netdev: WAN2_NETDEV, addresses: vec![], ..wan.clone() };
    hub.parts.ports.push(other);
    hub
}

/// Leads the ways to berlin and dora by a port.
fn lead_by(lab: &mut Laboratory, port: PortId) {
    lab.change(|sources| {
        for (network, length, gateway) in
            [("198.0.0.0", 8, "192.0.2.254"), ("2001:db8::", 32, "2001:db8:ff::fe")]
        {
            let address = |text: &str| text.parse::<std::net::IpAddr>().unwrap().into();
            let prefix = Prefix { address: address(network), length };
            let gateway = address(gateway);
            let hop = NextHop { port, gateway: Some(gateway) };
            sources.routes.insert(prefix, RouteTarget::Via(hop));
            sources.neighbours.insert((port, gateway), ROUTER_MAC);
        }
    });
}

// XO-05
#[test]
fn a_route_that_moves_to_another_device_takes_no_plaintext_there() {
    for fast in [FastPathUse::Never, FastPathUse::Eager] {
        for entries in [None, Some(64)] {
            let (lab, _) = carded(with_another_device());
            let lab = lab.with_fast_path(fast);
            let mut lab = match entries {
                Some(entries) => lab.remembering(entries),
                None => lab,
            };
            let packets: Vec<Vec<u8>> = FAMILIES
                .into_iter()
                .flat_map(|family| [datagram(family, 1, 2).ip(), datagram(family, 1, 4).ip()])
                .collect();
            let sets = [BERLIN, DORA, BERLIN, DORA].map(Verdict::Protect);
            assert_eq!(lab.send_all(LAN, &packets).verdicts, sets);
            lead_by(&mut lab, WAN2);
            let outcome = lab.send_all(LAN, &packets);
            assert_eq!(outcome.verdicts, [Verdict::Drop(DropReason::DevMismatch); 4]);
            assert_eq!(outcome.sent, [], "by no port, and not by the old one");
            assert_eq!(lab.counters().dropped(DropReason::DevMismatch), 4);
            lead_by(&mut lab, WAN);
            let outcome = lab.send_all(LAN, &packets);
            assert_eq!(outcome.verdicts, sets);
            assert!(outcome.sent.iter().all(|sent| sent.port == WAN));
        }
    }
}

#[test]
fn the_walk_counts_ports_and_policies_and_the_card_counts_the_sas() {
    let (mut lab, card) = carded(Hub::default());
    let there: Vec<_> = FAMILIES.map(|family| datagram(family, 1, 2).ip()).to_vec();
    lab.send_all(LAN, &there);
    let back = FAMILIES.map(|family| datagram(family, 2, 1).ip());
    let sealed = back.map(|packet| lab.peer(BERLIN).seal(&packet));
    lab.send_all(WAN, &sealed);
    let counters = lab.counters();
    let packets = |volumes: &[dataplane::counters::Volume]| -> u64 {
        volumes.iter().map(|volume| volume.packets).sum()
    };
    assert_eq!((packets(&counters.sealed), packets(&counters.opened)), (0, 0));
    assert_eq!((packets(&counters.policy_outbound), packets(&counters.policy_inbound)), (2, 2));
    assert_eq!(tags(BERLIN).map(|tag| card.packets(tag)), [2, 2]);
    let ledgers = [LAN, WAN].map(|port| counters.port(port).ledger);
    assert_eq!(ledgers.map(|ledger| (ledger.received, ledger.sent)), [(2, 2), (2, 2)]);
}

/// Berlin's set with an SA of software beside the one in the card, in this order.
fn both(order: [u32; 2]) -> (Laboratory, CardOnWire) {
    let software = Hub::default().parts.outbound[BERLIN.0 as usize].clone();
    let mut hub = Hub::default();
    hub.parts.outbound.push(Arc::new(software.at(SaId(4), software.set)));
    hub.parts.sets[BERLIN.0 as usize].outbound = order.map(SaId).to_vec();
    carded(hub)
}

#[test]
fn an_sa_in_a_card_comes_before_those_of_software_and_these_seal_when_it_is_gone() {
    for order in [[0, 4], [4, 0]] {
        let (mut lab, card) = both(order);
        let packet = datagram(FAMILIES[0], 1, 2).ip();
        assert_eq!(lab.send(LAN, &packet).verdicts, [Verdict::Protect(BERLIN)]);
        assert_eq!(card.packets(tags(BERLIN)[0]), 1);
        let mut set = lab.snapshot.set(BERLIN).clone();
        set.outbound = vec![SaId(4)];
        lab.change(|sources| {
            sources.sad.put_set(set);
            sources.sad.remove_outbound(SaId(0));
        });
        let outcome = lab.send(LAN, &packet);
        assert_eq!(outcome.verdicts, [Verdict::Protect(BERLIN)]);
        assert!(lab.peer(BERLIN).open(&outcome.sent[0].packet).is_some());
        assert_eq!((card.packets(tags(BERLIN)[0]), lab.counters().sealed[4].packets), (1, 1));
    }
}

/// The card numbers, so it is one SA for all workers.
#[test]
fn all_workers_hand_their_packets_to_the_card_by_the_same_sa() {
    let mut hub = Hub::default();
    let software = hub.parts.outbound[BERLIN.0 as usize].clone();
    hub.seat(BERLIN);
    hub.parts.outbound.push(Arc::new(software.at(SaId(4), software.set)));
    hub.parts.sets[BERLIN.0 as usize].outbound = vec![SaId(4), SaId(0)];
    hub.parts.workers = 2;
    let packet = datagram(FAMILIES[0], 1, 2).ip();
    let arrives = frame(LAN_MAC, HOST_MAC, None, ethertype::IPV4, &packet);
    let snapshot = hub.snapshot();
    for worker in [0, 1] {
        for fast in [FastPathUse::Never, FastPathUse::Eager] {
            let (mut walk, mut frames) = (Walk::new(&snapshot), MemoryFrames::new(2));
            walk.take_share(WorkerShare { worker, workers: 2 });
            walk.use_fast_path(fast);
            let received = [frames.store(&arrives).unwrap().into()];
            let (input, mut out) = (Input::received(NetdevId(0), &received), Outputs::default());
            walk.run(&snapshot, 1, input, &mut frames, &mut out);
            let sent = out.tx.iter().next().unwrap().packet;
            let header = frames.packet(sent).unwrap().first_chunk().and_then(CardHeader::read);
            assert_eq!(header, Some(CardHeader::Sa(tags(BERLIN)[0])), "{worker} {fast:?}");
        }
    }
}

#[test]
fn it_is_explained_by_which_sa_a_packet_leaves_and_why_it_does_not() {
    let (mut lab, _) = carded(with_another_device());
    for (set, network) in [(BERLIN, 2), (DORA, 4)] {
        for family in FAMILIES {
            let flow = |packet: PacketBuilder| wire::packet::parse(&packet.ip()).unwrap().flow;
            let about = |lab: &Laboratory, packet| {
                let (by, now) = (Arrival::Clear(LAN), (&lab.snapshot, lab.now_ns));
                explain(now, by, flow(packet))
            };
            let told = about(&lab, datagram(family, 1, network));
            let expected = (Verdict::Protect(set), Some(WAN), Some(SaId(set.0)));
            assert_eq!((told.verdict, told.egress, told.sealed_by), expected);
            assert_eq!(told.mtu, Some(lab.snapshot.set_sizes(set, lab.now_ns).whole));
            let options = about(&lab, between(family, 1, network).protocol(253).payload_of(8));
            let of_v6 = Verdict::Drop(DropReason::CardOptions);
            let expected = if family == FAMILIES[1] { of_v6 } else { Verdict::Protect(set) };
            assert_eq!(options.verdict, expected);
            lead_by(&mut lab, WAN2);
            let told = about(&lab, datagram(family, 1, network));
            let expected = (Verdict::Drop(DropReason::DevMismatch), None, None);
            assert_eq!((told.verdict, told.egress, told.sealed_by), expected);
            lead_by(&mut lab, WAN);
        }
    }
}

#[test]
fn a_capture_shows_what_leaves_for_a_card_without_the_header_for_the_card() {
    let settings = TapSettings {
        id: TapId(1),
        port: Some("wan".into()),
        layers: Layers::Outer,
        outcome: Outcomes::Any,
        filter: None,
        snaplen: 1500,
        packets: 10,
    };
    let (lab, _) = carded(Hub::default());
    let mut lab = lab.tapped(&settings);
    let packet = datagram(FAMILIES[0], 1, 2).ip();
    lab.send(LAN, &packet);
    let shown: Vec<Vec<u8>> = lab.captured().into_iter().map(|packet| packet.bytes).collect();
    let left = frame(ROUTER_MAC, WAN_MAC, None, ethertype::IPV4, &forwarded(&packet));
    assert_eq!(shown, [left]);
}

/// The numbers of a card are not known to the walk, so a message about them cannot be checked.
#[test]
fn a_message_about_the_path_mtu_of_what_a_card_sealed_is_not_believed() {
    for in_card in [false, true] {
        let mut lab = match in_card {
            true => carded(Hub::default()).0,
            false => Laboratory::default(),
        };
        let packet = between(FAMILIES[0], 1, 2).udp(5, 6).payload_of(1200).ip();
        let sent = lab.send(LAN, &packet).sent.remove(0).packet;
        for number in [None, Some(u32::MAX), Some(u32::MAX - 7)] {
            let mut quoted = sent.clone();
            if let Some(number) = number {
                quoted[24..28].copy_from_slice(&number.to_be_bytes());
            }
            let told = PacketBuilder::between("203.0.113.77", "192.0.2.1");
            let told = told.icmp(3, 4, [0, 0, 0x04, 0x00]).payload(&quoted[..64]).ip();
            lab.send(WAN, &told);
        }
        let counters = lab.counters();
        let counted = (counters.path_mtu_lowered, counters.path_mtu_ignored);
        assert_eq!(counted, if in_card { (0, 3) } else { (1, 2) });
    }
}
