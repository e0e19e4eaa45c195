//! Packets that wait for the link address of their next hop, among live ports.

use std::sync::Arc;

use dataplane::Verdict::{self, Hold};
use dataplane::neighbour_queues::{
    ASK_EVERY_NS, MAX_PER_NEIGHBOUR, MAX_WAITING, PATIENCE_NS, REQUESTS_PER_SECOND,
};
use dataplane::{
    DropReason, HoldKind, Neighbour, NetdevId, NextHop, PortId, PortInfo, ResolveRequest, Side,
    Sources,
};
use packets::lab::{BERLIN, HOST_MAC, Hub, LAN, LAN2, Laboratory, ROUTER_MAC, Sent, WAN, host};
use packets::table::forwarded;
use policy::{Action, Policy, Spd};
use wire::build::PacketBuilder;
use wire::{Address, Family};

use crate::{FAMILIES, datagram};

const WAITS: Verdict = Hold(HoldKind::Neighbour);

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
    assert_eq!(lab.resolve_requests().len(), REQUESTS_PER_SECOND, "nobody floods the kernel");
    // The ports' own traffic goes on.
    let outcome = lab.send(LAN, &datagram(Family::V4, 1, 2).ip());
    assert_eq!(outcome.sent.len(), 1);
    lab.now_ns += 1_000_000_000 / REQUESTS_PER_SECOND as u64;
    lab.tick();
    assert_eq!(lab.resolve_requests().len(), 1);
}

/// RFC 6583: a scan of an on-link network at 500 packets a second fills the room with packets for
/// neighbours that nobody has. Each neighbour of an end host is asked for all the same, and its
/// packet is delivered: also if the scan has the end host's own address.
#[test]
fn a_scan_of_a_subnet_keeps_no_neighbour_from_being_asked_for() {
    const TICK_NS: u64 = 10_000_000;
    let scanner = host(Family::V4, 1);
    for from in [Address::v4(0x0a01_0063), scanner] {
        let mut lab = Hub { frames: 4096, ..Hub::default() }.laboratory().live();
        let (mut scanned, mut delivered) = (1000, 0);
        for tick in 0..400u32 {
            lab.now_ns += TICK_NS;
            let scan: Vec<Vec<u8>> = (scanned..scanned + 5).map(to_stranger).collect();
            scanned += 5;
            lab.send_all(LAN, &scan);
            lab.tick();
            let asked = lab.resolve_requests();
            assert!(asked.len() <= REQUESTS_PER_SECOND);
            if tick % 20 != 19 {
                continue;
            }
            let address = stranger(1 + tick);
            let packet = PacketBuilder::new(from, address).udp(3, 4).ip();
            assert_eq!(lab.send(LAN, &packet).verdicts, [WAITS]);
            let mut asked = lab.resolve_requests();
            lab.now_ns += TICK_NS;
            lab.tick();
            asked.extend(lab.resolve_requests());
            assert!(asked.contains(&ResolveRequest { port: LAN2, address }), "tick {tick}");
            lab.change(|sources| _ = sources.neighbours.insert((LAN2, address), HOST_MAC));
            let sent: Vec<Vec<u8>> = lab.release().into_iter().map(|sent| sent.packet).collect();
            assert_eq!(sent, [forwarded(&packet)]);
            delivered += 1;
        }
        assert_eq!((delivered, scanned), (20, 3000));
        assert!(lab.waiting() >= MAX_WAITING - 5, "the scan fills the room: {}", lab.waiting());
        lab.now_ns += PATIENCE_NS;
        lab.tick();
        assert_eq!((lab.waiting(), lab.counters().total().held), (0, 0));
    }
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

/// A network that is reached in clear by a router without a known link address.
fn to_clear_nowhere() -> Vec<u8> {
    let to: std::net::Ipv4Addr = "10.86.0.5".parse().expect("an address");
    PacketBuilder::new(host(Family::V4, 1), std::net::IpAddr::from(to).into()).udp(5, 6).ip()
}

/// Its router.
fn nobody() -> (PortId, Address) {
    let address: std::net::IpAddr = "192.0.2.253".parse().expect("an address");
    (WAN, address.into())
}

/// Sends a packet that waits in clear, makes a change that also resolves its neighbour, and returns
/// what left, and the reason why it was dropped. A fresh packet must have the same fate.
fn judged_again(
    (port, packet): (PortId, &[u8]),
    neighbour: (PortId, Address),
    change: impl FnOnce(&mut Sources),
) -> (Vec<Sent>, Option<DropReason>) {
    let mut lab = Laboratory::default().live();
    assert_eq!(lab.send(port, packet).verdicts, [WAITS]);
    lab.change(|sources| {
        change(sources);
        sources.neighbours.insert(neighbour, HOST_MAC);
    });
    let sent = lab.release();
    assert_eq!((lab.waiting(), lab.counters().total().held), (0, 0));
    let is_counted = |reason: &&DropReason| lab.counters().dropped(**reason) > 0;
    let reason = DropReason::ALL.iter().find(is_counted).copied();
    let fresh = lab.send(port, packet);
    let fresh_reason = match fresh.verdicts[0] {
        Verdict::Drop(reason) => Some(reason),
        _ => None,
    };
    assert_eq!(fresh_reason, reason, "a fresh packet has another fate");
    let way = |sent: &[Sent]| sent.iter().map(|sent| (sent.port, sent.to)).collect::<Vec<_>>();
    assert_eq!(way(&fresh.sent), way(&sent));
    (sent, reason)
}

/// Replaces the policies by others, under another generation.
fn with_policies(sources: &mut Sources, change: impl FnOnce(&mut Vec<Policy>)) {
    let mut policies = Hub::default().policies;
    change(&mut policies);
    sources.spd = Arc::new(Spd::new(policies).expect("few policies"));
    sources.generation = dataplane::Generation(sources.generation.0 + 1);
}

fn with_side(sources: &mut Sources, port: PortId, side: Side) {
    let slot = usize::from(port.0);
    let info = sources.ports.get(slot).expect("a port of the laboratory").clone();
    sources.ports.set(slot, Some(PortInfo { side, ..info }));
}

#[test]
fn a_clear_packet_does_not_leave_by_a_port_that_became_unprotected() {
    let packet = to_stranger(1);
    let neighbour = (LAN2, stranger(1));
    let flipped = |sources: &mut Sources| with_side(sources, LAN2, Side::Unprotected);
    let (sent, reason) = judged_again((LAN, &packet), neighbour, flipped);
    assert_eq!((sent, reason), (vec![], Some(DropReason::NoMatch)));
    // Nor if the port that it came by is another one now.
    let flipped = |sources: &mut Sources| with_side(sources, LAN, Side::Unprotected);
    let (sent, reason) = judged_again((LAN, &packet), neighbour, flipped);
    assert!(sent.is_empty() && reason.is_some());
}

/// Changes the action of the policy that lets packets leave in clear.
fn changed(action: Action) -> impl Fn(&mut Sources) {
    move |sources| {
        with_policies(sources, |policies| {
            let policy = policies.iter_mut().find(|policy| policy.name == "clear-nowhere");
            policy.expect("a policy of the laboratory").action = action;
        });
    }
}

#[test]
fn a_clear_packet_leaves_as_the_policies_say_that_hold_then() {
    let packet = to_clear_nowhere();
    let (sent, reason) = judged_again((LAN, &packet), nobody(), changed(Action::Discard));
    assert_eq!((sent, reason), (vec![], Some(DropReason::PolicyDiscard)));
    let (sent, reason) = judged_again((LAN, &packet), nobody(), changed(Action::Bypass));
    assert_eq!((sent[0].packet.clone(), reason), (forwarded(&packet), None), "as it was");
    let without = |sources: &mut Sources| {
        with_policies(sources, |policies| {
            let place = |name| policies.iter().position(|policy| policy.name == name);
            let (Some(policy), Some(other)) = (place("clear-nowhere"), place("only-out")) else {
                panic!("policies of the laboratory");
            };
            policies[policy].selector = policies[other].selector.clone();
        });
    };
    let (sent, reason) = judged_again((LAN, &packet), nobody(), without);
    assert_eq!((sent, reason), (vec![], Some(DropReason::NoMatch)));

    let berlin = Laboratory::default().snapshot.set(BERLIN).id;
    let (sent, reason) = judged_again((LAN, &packet), nobody(), changed(Action::Protect(berlin)));
    assert_eq!((sent.len(), sent[0].to, reason), (1, Some(ROUTER_MAC), None));
    let opened = Laboratory::default().peer(BERLIN).open(&sent[0].packet).expect("sealed");
    assert_eq!(opened.inner, forwarded(&packet));
}

#[test]
fn a_clear_packet_takes_the_route_that_holds_then() {
    let packet = to_clear_nowhere();
    let prefix = packets::lab::route("10.86.0.0/16", dataplane::RouteTarget::Blackhole).prefix;
    let to = |target| move |sources: &mut Sources| _ = sources.routes.insert(prefix, target);
    let blackhole = to(dataplane::RouteTarget::Blackhole);
    let (sent, reason) = judged_again((LAN, &packet), nobody(), blackhole);
    assert_eq!((sent, reason), (vec![], Some(DropReason::Blackhole)));
    let hop = NextHop { port: WAN, gateway: Some(router(Family::V4)) };
    let (sent, reason) =
        judged_again((LAN, &packet), nobody(), to(dataplane::RouteTarget::Via(hop)));
    assert_eq!((sent[0].to, reason), (Some(ROUTER_MAC), None));
    assert_eq!(sent[0].packet, forwarded(&packet));
}

/// Fragments that the gateway cut go on as they are; a later one is judged as its datagram.
#[test]
fn fragments_that_wait_are_judged_again_as_their_datagram() {
    let packet =
        PacketBuilder::new(host(Family::V4, 1), stranger(1)).udp(1, 2).payload_of(1460).ip();
    for flips in [false, true] {
        let mut lab = Laboratory::default().live();
        lab.send(LAN, &packet);
        assert_eq!(lab.waiting(), 2, "two fragments, on a link with an MTU of 1400");
        lab.change(|sources| {
            let side = if flips { Side::Unprotected } else { Side::Protected };
            with_side(sources, LAN2, side);
            sources.generation = dataplane::Generation(sources.generation.0 + 1);
            sources.neighbours.insert((LAN2, stranger(1)), HOST_MAC);
        });
        let sent = lab.release();
        let dropped = lab.counters().dropped(DropReason::NoMatch);
        assert_eq!((sent.len(), dropped), if flips { (0, 2) } else { (2, 0) });
        for sent in sent {
            let fragment = wire::packet::parse(&sent.packet).expect("a fragment");
            assert_eq!(fragment.hop_limit, 63, "lowered once");
            assert_ne!(fragment.fragment, wire::Fragment::Whole);
        }
    }
}
