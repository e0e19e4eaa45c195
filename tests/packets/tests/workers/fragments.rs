//! Fragments of one datagram that arrive at different workers meet at one of them.

use std::collections::BTreeMap;

use dataplane::DropReason;
use dataplane::reassembly::PATIENCE_NS;
use packets::lab::{self, Hub, LAN, WAN, numbered, policy, with_ports};
use packets::overlay::{ATTACHMENT, WEB, having, mac, tenant, vni};
use packets::table::forwarded;
use policy::{Action, GroupMode, GroupSide, Policy};
use proptest::prelude::*;
use wire::Family;
use wire::build::PacketBuilder;
use wire::flow::protocol::TCP;
use wire::overlay::Kind;

use crate::stage::{Stage, WORKERS, hub};

/// Parts of a datagram.
const PARTS: usize = 4;

/// TCP to network 9, where port 443 is berlin's and other ports leave in clear: a part of the
/// datagram of this number, whose port is 443 if the number is odd.
fn part(family: Family, number: u32, part: usize) -> Vec<u8> {
    let (from, to) = (lab::host(family, 1), lab::host(family, 9));
    let packet = PacketBuilder::new(from, to).identification(number);
    let port = if number % 2 == 1 { 443 } else { 80 };
    match part {
        0 => packet.tcp(5, port).payload_of(12).fragment(0, true).ip(),
        // What looks like ports is another port.
        _ => {
            let payload = [0, 5, 0, 80, 1, 187, 0, number as u8];
            let more = part + 1 < PARTS;
            packet.protocol(TCP).payload(&payload).fragment(3 + part as u16, more).ip()
        }
    }
}

/// Packets that left by the unprotected port, opened, each with the worker that sent it and whether
/// it was sealed.
fn left(stage: &mut Stage) -> Vec<(Vec<u8>, usize, bool)> {
    let mut left = vec![];
    for worker in 0..WORKERS as usize {
        for packet in stage.sent(worker, WAN) {
            let opened = stage.peers.iter_mut().find_map(|peer| peer.open(&packet));
            left.push(match opened {
                Some(opened) => (opened.inner, worker, true),
                None => (packet, worker, false),
            });
        }
    }
    left
}

#[test]
fn a_first_and_a_later_fragment_at_different_queues_are_judged_once_by_the_ports() {
    // FRAG
    for (family, number) in [(Family::V4, 1), (Family::V4, 2), (Family::V6, 3), (Family::V6, 4)] {
        for order in [[0, 1], [1, 0]] {
            let mut stage = Stage::default();
            for place in order {
                stage.arrive_inside(place, &part(family, number, place));
                stage.settle();
            }
            let [first, later] = [0, 1].map(|place| forwarded(&part(family, number, place)));
            let left = left(&mut stage);
            let [(one, by_one, one_sealed), (two, by_two, two_sealed)] = &left[..] else {
                panic!("{family:?} {number}: {left:x?}")
            };
            assert_eq!([one, two], [&first, &later], "the first leaves first");
            assert_eq!(by_one, by_two, "one worker has both");
            assert_eq!([*one_sealed, *two_sealed], [number % 2 == 1; 2], "by their port");
            let handed_over: u64 = (0..2).map(|w| stage.counters(w).handed_over).sum();
            assert_eq!((handed_over, stage.ledger().received, stage.drops()), (1, 2, 0));
        }
    }
}

/// A gateway with a virtual network whose groups permit web, and deny the rest.
fn with_network() -> Hub {
    let mut hub = hub();
    having(Family::V4, Kind::Vxlan)(&mut hub);
    let rule = |priority, action| Policy {
        group: Some(GroupSide::In),
        ingress: Some([ATTACHMENT].into()),
        ..policy("web", priority, action, &["any"], &["any"])
    };
    let web = with_ports(rule(1, Action::Permit(GroupMode::Enforce)), TCP, &["80"]);
    hub.policies.extend([web, rule(0, Action::NoRule(GroupMode::Enforce))]);
    hub.policies = numbered(std::mem::take(&mut hub.policies));
    hub
}

/// A part of a tenant's datagram of this number in an overlay packet, whose port is 80 if the
/// number is odd.
fn tenants_part(inner: Family, number: u32, part: usize) -> Vec<u8> {
    let packet = PacketBuilder::new(tenant(inner, 1), tenant(inner, 3)).identification(number);
    let packet = match part {
        0 => packet.tcp(5, if number % 2 == 1 { 80 } else { 22 }).payload_of(12).fragment(0, true),
        _ => packet.protocol(TCP).payload_of(8).fragment(4, false),
    };
    let header = Kind::Vxlan.header(vni(WEB));
    let frame = packet.frame(mac(3), mac(1), None);
    // Each fragment has another hash, and so another port outside.
    let outer = PacketBuilder::new(lab::host(Family::V4, 1), lab::own(Family::V4, 1));
    outer.udp(0xc000 + part as u16, 4789).payload(&[&header[..], &frame].concat()).ip()
}

#[test]
fn a_tenants_fragments_at_different_queues_are_judged_once_by_the_ports() {
    for inner in [Family::V4, Family::V6] {
        for number in 1..9 {
            for order in [[0, 1], [1, 0]] {
                let mut stage = Stage::of(with_network());
                for place in order {
                    stage.arrive_inside(place, &tenants_part(inner, number, place));
                    stage.settle();
                }
                let left: Vec<usize> = (0..2).map(|w| stage.sent(w, LAN).len()).collect();
                let expected = if number % 2 == 1 { 2 } else { 0 };
                assert_eq!(left.iter().sum::<usize>(), expected, "{inner:?} {number}");
                assert!(left.contains(&expected), "one worker has both");
                let handed_over: u64 = (0..2).map(|w| stage.counters(w).handed_over).sum();
                assert_eq!((handed_over, stage.ledger().received), (1, 2));
                assert_eq!(stage.drops() as usize, 2 - expected);
            }
        }
    }
}

#[test]
fn a_fragment_without_its_first_is_dropped_by_the_worker_that_has_it() {
    let mut stage = Stage::default();
    for worker in 0..2 {
        stage.arrive_inside(worker, &part(Family::V4, 1, 1 + worker));
    }
    stage.settle();
    let waiting: Vec<usize> = stage.workers.iter().map(|worker| worker.waiting()).collect();
    assert!(waiting == [2, 0] || waiting == [0, 2], "{waiting:?}");
    stage.now_ns += PATIENCE_NS;
    for worker in 0..2 {
        stage.workers[worker].tick(&stage.snapshot, stage.now_ns);
        assert_eq!(stage.workers[worker].waiting(), 0);
    }
    let timeouts: u64 =
        (0..2).map(|w| stage.counters(w).dropped(DropReason::FragmentTimeout)).sum();
    assert_eq!((timeouts, stage.ledger().held), (2, 0));
}

/// A number of workers that the workers do not agree about for a while: fragments are lost to each
/// other at worst.
#[test]
fn a_datagram_under_way_while_a_worker_ceases_to_walk_is_not_judged_otherwise() {
    let mut stage = Stage::default();
    for number in 0..32 {
        for place in 0..PARTS / 2 {
            stage.arrive_inside(place, &part(Family::V4, number, place));
        }
    }
    stage.settle();
    stage.workers.iter_mut().for_each(|worker| worker.walk_among(1));
    for number in 0..32 {
        for place in PARTS / 2..PARTS {
            stage.arrive_inside(0, &part(Family::V4, number, place));
        }
    }
    stage.settle();
    let left = left(&mut stage);
    assert!((64..128).contains(&left.len()), "{}", left.len());
    for number in 0..32 {
        for place in 0..PARTS {
            let packet = forwarded(&part(Family::V4, number, place));
            let sealed = left.iter().filter(|(left, ..)| *left == packet);
            assert!(sealed.into_iter().all(|(.., sealed)| *sealed == (number % 2 == 1)));
        }
    }
    stage.workers.iter_mut().for_each(|worker| worker.stop_waiting());
    (0..2).for_each(|worker| drop(stage.counters(worker)));
}

/// Cuts an outer packet: each fragment but the last has this many units of 8 bytes.
fn cut(packet: &[u8], number: u32, units: usize) -> Vec<Vec<u8>> {
    let whole = wire::packet::parse(packet).unwrap();
    let (flow, data) = (whole.flow, &packet[whole.upper_offset.into()..]);
    let count = data.len().div_ceil(8 * units);
    let fragment = |(place, part): (usize, &[u8])| {
        let outer = PacketBuilder::new(flow.source_address(), flow.destination_address());
        let outer = outer.protocol(flow.protocol).identification(number).payload(part);
        outer.fragment((place * units) as u16, place + 1 < count).ip()
    };
    data.chunks(8 * units).enumerate().map(fragment).collect()
}

/// From behind berlin, TCP from port 443 of network 9: its later fragments wait for the first.
fn from_nine(number: u32, bytes: usize) -> PacketBuilder {
    let (from, to) = (lab::host(Family::V4, 9), lab::host(Family::V4, 1));
    PacketBuilder::new(from, to).tcp(443, 5).identification(number).payload_of(bytes)
}

#[test]
fn fragments_of_esp_at_different_queues_are_opened_once_by_the_worker_of_their_sa() {
    // REASM
    for number in 0..8 {
        for pair in 0..2 {
            let mut stage = Stage::default();
            let packet = from_nine(number, 1400).ip();
            let sealed = stage.peers[pair].seal(&packet);
            let tag = (number % 4 > 1).then_some(0);
            for (place, part) in cut(&sealed, number, 80).iter().enumerate() {
                stage.arrive_tagged(place % 2, tag, part);
                stage.settle();
            }
            let sa = 3 * pair;
            let opened = [0, 1].map(|worker| stage.counters(worker).opened[sa].packets);
            assert_eq!(opened[sa % 2], 1, "{number} {pair}: {opened:?}");
            assert_eq!(opened[1 - sa % 2], 0);
            let left: Vec<_> = (0..2).flat_map(|worker| stage.sent(worker, LAN)).collect();
            assert_eq!(left, [forwarded(&packet)]);
            let ledger = stage.ledger();
            assert_eq!((ledger.received, ledger.consumed, ledger.sent), (3, 2, 1));
            assert_eq!((ledger.held, ledger.made, stage.drops()), (0, 0, 0));
        }
    }
}

/// A host behind the peer cuts a datagram; the peer seals each part, and its router cuts those that
/// became too large. The parts meet, whichever way they came.
#[test]
fn inner_fragments_that_came_whole_and_cut_meet_at_one_worker() {
    // REASM
    for number in 0..8 {
        let mut stage = Stage::default();
        let inner = cut(&from_nine(number, 3000).ip(), number, 180);
        assert_eq!(inner.len(), 3);
        for (place, packet) in inner.iter().enumerate().rev() {
            let sealed = stage.peers[1].seal(packet);
            match place {
                2 => stage.arrive_sealed(0, &sealed),
                _ => cut(&sealed, 100 * number + place as u32, 150).iter().for_each(|part| {
                    stage.arrive_sealed(place % 2, part);
                }),
            }
            stage.settle();
        }
        let left: Vec<_> = (0..2).flat_map(|worker| stage.sent(worker, LAN)).collect();
        assert_eq!((left.len(), stage.drops()), (3, 0), "{number}");
    }
}

/// One that no frame holds is opened where its fragments meet, whosever its SA is.
#[test]
fn a_large_packet_is_opened_once_by_either_worker() {
    // REASM
    let mut stage = Stage::default();
    let packet = from_nine(0, 9000).ip();
    for number in 0..8 {
        let sealed = stage.peers[1].seal(&packet);
        let parts = cut(&sealed, number, 180);
        for round in 0..2 {
            parts.iter().for_each(|part| stage.arrive_sealed(round, part));
            stage.settle();
        }
    }
    let opened = [0, 1].map(|worker| stage.counters(worker).opened[3].packets);
    assert_eq!(opened[0] + opened[1], 8);
    assert!(opened[0] > 0 && opened[1] > 0, "{opened:?}");
    let replayed: u64 =
        (0..2).map(|worker| stage.counters(worker).dropped(DropReason::Replayed)).sum();
    assert_eq!((replayed, stage.drops()), (8, 8), "each once more");
}

#[derive(Clone, Debug)]
enum Step {
    /// The next packet of the order arrives at this worker.
    Arrive(usize),
    Turn(usize),
    TakeOver(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..WORKERS as usize;
    prop_oneof![
        3 => which.clone().prop_map(Step::Arrive),
        1 => which.clone().prop_map(Step::Turn),
        1 => which.prop_map(Step::TakeOver),
    ]
}

proptest! {
    #[test]
    fn fragments_in_any_order_at_any_queue_all_leave_by_their_datagrams_ports(
        is_v6: bool,
        order in Just((0..6 * PARTS).collect::<Vec<_>>()).prop_shuffle(),
        steps in prop::collection::vec(step(), 0..60),
    ) {
        // FRAG
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let mut stage = Stage::default();
        let mut order = order.into_iter().map(|n| (n as u32 / PARTS as u32, n % PARTS));
        for step in steps {
            match step {
                Step::Arrive(worker) => {
                    let Some((number, place)) = order.next() else { continue };
                    stage.arrive_inside(worker, &part(family, number, place));
                }
                Step::Turn(worker) => _ = stage.turn(worker),
                Step::TakeOver(worker) => _ = stage.take_over(worker),
            }
        }
        for (number, place) in order {
            stage.arrive_inside(place % 2, &part(family, number, place));
        }
        stage.settle();
        let mut by: BTreeMap<u32, usize> = BTreeMap::new();
        let left = left(&mut stage);
        prop_assert_eq!(left.len(), 6 * PARTS);
        for number in 0..6 {
            for place in 0..PARTS {
                let packet = forwarded(&part(family, number, place));
                let found = left.iter().find(|(left, ..)| *left == packet);
                let (_, worker, sealed) = found.expect("it left");
                prop_assert_eq!(*sealed, number % 2 == 1);
                prop_assert_eq!(by.entry(number).or_insert(*worker), worker, "one worker");
            }
        }
        prop_assert_eq!(stage.drops(), 0);
    }
}
