//! Packets that wait for the link address of their next hop, among live ports.

use dataplane::Verdict::Hold;
use dataplane::neighbour_queues::{ASK_EVERY_NS, MAX_PER_NEIGHBOUR, MAX_WAITING, PATIENCE_NS};
use dataplane::{DropReason, HoldKind, Neighbour, NetdevId, PortId, PortInfo, ResolveRequest};
use packets::lab::{BERLIN, HOST_MAC, Hub, LAN, LAN2, Laboratory, ROUTER_MAC, WAN, host};
use wire::build::PacketBuilder;
use wire::{Address, Family};

use crate::{FAMILIES, datagram};

const WAITS: dataplane::Verdict = Hold(HoldKind::Neighbour);

/// Nobody on the world's link is resolved.
fn without_router() -> Hub {
    let mut hub = Hub { frames: 2048, ..Hub::default() };
    hub.parts.neighbours.retain(|neighbour| neighbour.port != WAN);
    hub
}

fn router(family: Family) -> Address {
    let text = if family == Family::V4 { "192.0.2.254" } else { "2001:db8:ff::fe" };
    text.parse::<std::net::IpAddr>().expect("an address").into()
}

/// A host of the second protected network that nobody has resolved.
fn stranger(number: u32) -> Address {
    let base: std::net::Ipv4Addr = "10.12.1.0".parse().expect("an address");
    std::net::IpAddr::from(std::net::Ipv4Addr::from(u32::from(base) + number)).into()
}

/// A datagram from our network to a host of the second one.
fn to_stranger(number: u32) -> Vec<u8> {
    PacketBuilder::new(host(Family::V4, 1), stranger(number)).udp(1, 2).ip()
}

#[test]
fn sealed_packets_wait_for_their_router_and_leave_in_order_when_it_is_known() {
    for family in FAMILIES {
        let mut lab = without_router().laboratory().live();
        let packets: Vec<Vec<u8>> =
            (0..5u8).map(|n| datagram(family, 1, 2).payload_of(n.into()).ip()).collect();
        let outcome = lab.send_all(LAN, &packets);
        assert_eq!(outcome.verdicts, [WAITS; 5]);
        assert!(outcome.sent.is_empty());
        // The tunnel's far end is IPv4 whatever is inside: one router, asked for once.
        let address = router(Family::V4);
        assert_eq!(lab.resolve_requests(), [ResolveRequest { port: WAN, address }]);
        assert_eq!(lab.resolve_requests(), []);
        assert_eq!(lab.release(), [], "nobody knows it yet");

        let known = Hub { frames: 2048, ..Hub::default() }.keeping_sas_of(&lab.snapshot);
        lab.publish(known);
        let sent = lab.release();
        assert_eq!(lab.waiting(), 0);
        let mut numbers = Vec::new();
        for (sent, packet) in sent.iter().zip(&packets) {
            assert_eq!((sent.port, sent.to), (WAN, Some(ROUTER_MAC)));
            let opened = lab.peer(BERLIN).open(&sent.packet).expect("sealed for berlin");
            assert_eq!(opened.inner[opened.inner.len() - 8..], packet[packet.len() - 8..]);
            numbers.push(opened.sequence_low);
        }
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        assert_eq!(lab.counters().total().sent, 5);
    }
}

/// Counters of other room are for the same ports: who waits goes on waiting.
#[test]
fn what_waits_stays_when_counters_are_exchanged() {
    let mut lab = without_router().laboratory().live();
    let packets: Vec<Vec<u8>> = (0..3).map(|_| datagram(Family::V4, 1, 2).ip()).collect();
    lab.send_all(LAN, &packets);
    let before = lab.exchange_counters();
    let now = lab.counters().total();
    assert_eq!((before.total().received, before.total().held), (0, 0));
    assert_eq!((now.received, now.held, now.imbalance()), (3, 3, 0));
    lab.publish(Hub { frames: 2048, ..Hub::default() }.keeping_sas_of(&lab.snapshot));
    assert_eq!(lab.release().len(), 3);
    let mut sum = before.total();
    sum.add(&lab.counters().total());
    assert_eq!((sum.received, sum.sent, sum.held, sum.imbalance()), (3, 3, 0, 0));
}

/// Packets that policies let leave in clear may be PROTECT's by the time their neighbour is known.
#[test]
fn what_waits_in_clear_does_not_outlive_the_policies_that_let_it() {
    for generation in [0, 1] {
        let mut lab = without_router().laboratory().live();
        let sealed = datagram(Family::V4, 1, 2).ip();
        lab.send_all(LAN, &[to_stranger(1), sealed.clone(), to_stranger(2), sealed]);
        assert_eq!(lab.waiting(), 4);
        let mut hub = Hub { frames: 2048, ..Hub::default() }.keeping_sas_of(&lab.snapshot);
        for number in [1, 2] {
            let (port, address) = (LAN2, stranger(number));
            hub.parts.neighbours.push(Neighbour { port, address, mac: HOST_MAC });
        }
        hub.parts.generation = dataplane::Generation(generation);
        lab.publish(hub);
        let ports: Vec<_> = lab.release().iter().map(|sent| sent.port).collect();
        let in_clear = ports.iter().filter(|port| **port == LAN2).count();
        let changed = generation == 1;
        assert_eq!((in_clear, ports.len()), if changed { (0, 2) } else { (2, 4) });
        let dropped = lab.counters().dropped(DropReason::NoNeighbour);
        assert_eq!((lab.waiting(), dropped), (0, if changed { 2 } else { 0 }));
    }
}

/// An SA that comes into the slot of another begins at 0, and what the other counted is not lost.
#[test]
fn a_slot_counts_for_the_sa_that_has_it() {
    let mut lab = Hub::default().laboratory();
    let packet = datagram(Family::V4, 1, 2).ip();
    lab.send_all(LAN, &[packet.clone(), packet.clone()]);
    let mut hub = Hub::default().keeping_sas_of(&lab.snapshot);
    hub.agree(BERLIN, |agreement| {
        agreement.spi_from_hub += 1;
        agreement.spi_to_hub += 1;
    });
    let gone = lab.publish_without(hub);
    let [(sealed_by, sealed)] = gone.outbound[..] else { panic!("{gone:?}") };
    assert_eq!((sealed_by.0, sealed.packets), (BERLIN.0, 2));
    assert_eq!((gone.inbound.len(), gone.inbound[0].1.packets), (1, 0));
    assert_eq!(lab.counters().sealed[sealed_by.0 as usize].packets, 0);
    lab.send(LAN, &packet);
    assert_eq!(lab.counters().sealed[sealed_by.0 as usize].packets, 1);
    assert_eq!(lab.counters().total().sent, 3, "what is counted elsewhere goes on");
}

#[test]
fn at_most_16_packets_wait_for_one_neighbour() {
    let mut lab = Laboratory::default().live();
    let packets = vec![to_stranger(1); MAX_PER_NEIGHBOUR + 3];
    let outcome = lab.send_all(LAN, &packets);
    assert_eq!(outcome.verdicts, vec![WAITS; MAX_PER_NEIGHBOUR + 3]);
    assert_eq!(lab.waiting(), MAX_PER_NEIGHBOUR);
    assert_eq!(lab.counters().dropped(DropReason::NoNeighbour), 3);
    assert_eq!(lab.resolve_requests().len(), 1);
}

#[test]
fn at_most_1024_packets_wait_however_many_neighbours_they_are_for() {
    let mut lab = Hub { frames: 4096, ..Hub::default() }.laboratory().live();
    let flood: Vec<Vec<u8>> = (0..MAX_WAITING as u32 + 200).map(to_stranger).collect();
    lab.send_all(LAN, &flood);
    assert_eq!(lab.waiting(), MAX_WAITING);
    assert_eq!(lab.counters().dropped(DropReason::NoNeighbour), 200);
    assert_eq!(lab.resolve_requests().len(), MAX_WAITING, "those beyond are not even asked for");
    // The ports' own traffic goes on.
    let outcome = lab.send(LAN, &datagram(Family::V4, 1, 2).ip());
    assert_eq!(outcome.sent.len(), 1);
}

#[test]
fn a_worker_that_ticks_asks_again_and_gives_up_in_time() {
    const TICK_NS: u64 = 10_000_000;
    let mut lab = Laboratory::default().live();
    lab.send(LAN, &to_stranger(1));
    let (begun, mut asked) = (lab.now_ns, lab.resolve_requests().len());
    while lab.waiting() > 0 {
        lab.now_ns += TICK_NS;
        assert_eq!(lab.tick(), []);
        asked += lab.resolve_requests().len();
        assert!(lab.now_ns < begun + 2 * PATIENCE_NS, "it is given up");
    }
    // What waits is looked through ten times a second.
    let waited = lab.now_ns - begun;
    assert!((PATIENCE_NS..=PATIENCE_NS + 100_000_000).contains(&waited), "{waited} ns");
    assert_eq!((asked, lab.counters().dropped(DropReason::NoNeighbour)), (3, 1));
}

#[test]
fn a_neighbour_is_asked_for_once_a_second_and_given_up_after_three() {
    let mut lab = Laboratory::default().live();
    lab.send(LAN, &to_stranger(1));
    assert_eq!(lab.resolve_requests().len(), 1);
    lab.now_ns += ASK_EVERY_NS - 1;
    lab.release();
    assert_eq!(lab.resolve_requests(), []);
    lab.now_ns += 1;
    lab.release();
    assert_eq!(lab.resolve_requests(), [ResolveRequest { port: LAN2, address: stranger(1) }]);
    lab.now_ns += PATIENCE_NS - ASK_EVERY_NS - 1;
    lab.release();
    assert_eq!((lab.waiting(), lab.counters().dropped(DropReason::NoNeighbour)), (1, 0));
    lab.now_ns += 1;
    assert_eq!(lab.release(), []);
    assert_eq!((lab.waiting(), lab.counters().dropped(DropReason::NoNeighbour)), (0, 1));
}

#[test]
fn a_packet_whose_route_has_gone_to_another_port_is_not_sent_by_the_old_one() {
    let mut lab = Laboratory::default().live();
    lab.send(LAN, &to_stranger(1));
    let mut hub = Hub::default().keeping_sas_of(&lab.snapshot);
    // Known on another port only.
    let (port, address) = (LAN, stranger(1));
    hub.parts.neighbours.push(Neighbour { port, address, mac: HOST_MAC });
    lab.publish(hub);
    assert_eq!(lab.release(), []);
    assert_eq!(lab.waiting(), 1);
}

/// A port on a netdev of its own, in a slot that is vacant.
const DMZ: PortId = PortId(4);

fn dmz(lan: &PortInfo) -> PortInfo {
    let (name, netdev, addresses) = ("dmz".to_owned(), NetdevId(3), Vec::new());
    PortInfo { name, netdev, vlan: None, addresses, ..lan.clone() }
}

/// Packets wait, sealed and in clear, and are counted: a port comes, and goes again.
#[test]
fn a_port_that_comes_or_goes_disturbs_nothing_of_the_others() {
    let mut lab = without_router().laboratory().live();
    let sealed = datagram(Family::V4, 1, 2).ip();
    lab.send_all(LAN, &[to_stranger(1), sealed.clone(), sealed]);
    lab.send(LAN2, &datagram(Family::V4, 12, 1).ip());
    assert_eq!((lab.waiting(), lab.resolve_requests().len()), (3, 2));
    let counted = lab.counters().clone();
    let lan = lab.snapshot.port(LAN).clone();
    let gone = lab.change(|sources| _ = sources.ports.set(4, Some(dmz(&lan))));
    assert!(gone.ports.is_empty());
    assert_eq!((lab.waiting(), lab.counters()), (3, &counted));
    // It works and is counted by itself.
    assert_eq!(lab.send(DMZ, &datagram(Family::V4, 12, 1).ip()).sent.len(), 1);
    let gone = lab.change(|sources| Laboratory::without_port(sources, DMZ));
    let [(DMZ, counts)] = gone.ports[..] else { panic!("{gone:?}") };
    assert_eq!((counts.ledger.received, counts.ledger.sent), (1, 1));
    assert_eq!(lab.waiting(), 3);
    let (now, sent_by_lan) = (lab.counters(), usize::from(LAN.0));
    assert_eq!(now.ledgers, counted.ledgers);
    assert_eq!(now.transmitted[sent_by_lan].packets, counted.transmitted[sent_by_lan].packets + 1);
    // The routers are known at last.
    lab.change(|sources| {
        let router = (WAN, router(Family::V4));
        sources.neighbours.extend([(router, ROUTER_MAC), ((LAN2, stranger(1)), HOST_MAC)]);
    });
    assert_eq!(lab.release().len(), 3);
    assert_eq!((lab.waiting(), lab.counters().total().dropped), (0, 0));
}

#[test]
fn a_port_that_goes_takes_what_waits_at_it_or_came_by_it_and_its_counts() {
    let mut lab = without_router().laboratory().live();
    let sealed = |from| datagram(Family::V4, from, 2).ip();
    lab.send_all(LAN, &[to_stranger(1), sealed(1)]);
    lab.send(LAN2, &sealed(12));
    assert_eq!(lab.waiting(), 3);
    let gone = lab.change(|sources| Laboratory::without_port(sources, LAN2));
    let [(LAN2, counts)] = gone.ports[..] else { panic!("{gone:?}") };
    assert_eq!((counts.ledger.received, counts.ledger.dropped, counts.ledger.held), (1, 1, 0));
    assert_eq!(lab.counters().ledgers[usize::from(LAN2.0)], dataplane::Ledger::default());
    let ledger = lab.counters().ledgers[usize::from(LAN.0)];
    assert_eq!((ledger.received, ledger.dropped, ledger.held), (2, 1, 1));
    assert_eq!(lab.counters().dropped(DropReason::NoNeighbour), 2);
    assert_eq!(lab.resolve_requests(), [ResolveRequest { port: WAN, address: router(Family::V4) }]);
}

#[test]
fn what_the_steering_program_should_have_left_to_linux_is_dropped() {
    let mut lab = Laboratory::default().live();
    let frame = packets::lab::frame([0xff; 6], HOST_MAC, None, 0x0806, &[0; 28]);
    let netdev = lab.snapshot.port(LAN).netdev;
    lab.send_frames(netdev, &[frame]);
    assert_eq!(lab.counters().dropped(DropReason::Unsteered), 1);
    // To the box itself it goes up by the host port, as ever.
    let to_us = PacketBuilder::new(host(Family::V4, 1), packets::lab::own(Family::V4, 1));
    assert_eq!(lab.send(LAN, &to_us.udp(1, 2).ip()).sent.len(), 1);
}
