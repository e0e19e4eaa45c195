//! Tests packets that arrive at one worker and are another's to open.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dataplane::handover::RING_PACKETS;
use dataplane::{DropReason, NetdevId, PortId, PortInfo, Snapshot, Sources};
use io::MemoryPort;
use packets::lab::{LAN, LAN2, Laboratory, WAN};
use proptest::prelude::*;
use wire::BATCH;

use crate::stage::{Stage, WORKERS, balanced, number_of, sent};

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// So many packets of an SA arrive at the worker that its packets arrive at.
    Arrive {
        pair: usize,
        count: u32,
    },
    Turn(usize),
    TakeOver(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..WORKERS as usize;
    // At the edges: one packet, a batch, one more.
    let count = prop_oneof![Just(1), 1u32..8, (BATCH as u32 - 1)..=(BATCH as u32 + 1)];
    prop_oneof![
        3 => (0usize..2, count).prop_map(|(pair, count)| Step::Arrive { pair, count }),
        2 => which.clone().prop_map(Step::Turn),
        2 => which.prop_map(Step::TakeOver),
    ]
}

/// Returns the numbers of the packets that all workers delivered to our network.
fn delivered(stage: &mut Stage) -> Vec<u32> {
    let packets = (0..WORKERS as usize).flat_map(|worker| stage.sent(worker, LAN));
    packets.map(|packet| number_of(&packet)).collect()
}

#[test]
fn two_sas_of_one_pair_that_arrive_on_one_queue_use_both_workers() {
    let mut stage = Stage::default();
    for number in 0..40 {
        stage.arrive(0, number as usize % 2, number);
    }
    stage.settle();
    assert_eq!(stage.counters(0).opened[0].packets, 20);
    assert_eq!(stage.counters(1).opened[3].packets, 20);
    // Each by the transmit queue of who opened it, in the order of its SA.
    let numbers = |packets: Vec<Vec<u8>>| -> Vec<u32> {
        packets.iter().map(|packet| number_of(packet)).collect()
    };
    assert!(numbers(stage.sent(0, LAN)).into_iter().eq((0..40).step_by(2)));
    assert!(numbers(stage.sent(1, LAN)).into_iter().eq((1..40).step_by(2)));
    let (first, second) = (stage.counters(0), stage.counters(1));
    assert_eq!((first.handed_over, first.taken_over), (20, 0));
    assert_eq!((second.handed_over, second.taken_over), (0, 20));
    assert_eq!((first.total().received, second.total().received), (20, 20));
}

#[test]
fn a_packet_in_a_ring_is_on_no_ledger_and_is_whole() {
    let mut stage = Stage::default();
    stage.arrive(0, 1, 7);
    stage.turn(0);
    assert!(stage.workers[1].has_handovers());
    assert_eq!(stage.workers[0].handed_to().collect::<Vec<_>>(), [1]);
    assert_eq!(stage.ledger().received, 0);
    assert_eq!(stage.take_over(1), 1);
    assert!(!stage.workers[1].has_handovers());
    assert_eq!(stage.ledger().received, 1);
    let expected = packets::table::forwarded(&crate::stage::from_berlin(7));
    assert_eq!(stage.sent(1, LAN), [expected]);
}

#[test]
fn a_worker_alone_hands_nothing_over() {
    let mut stage = Stage::default();
    stage.workers[0].walk_among(1);
    (0..4).for_each(|number| stage.arrive(0, number as usize % 2, number));
    stage.turn(0);
    assert_eq!(delivered(&mut stage), [0, 1, 2, 3]);
    assert_eq!(stage.counters(0).handed_over, 0);
}

#[test]
fn what_is_replayed_at_another_queue_is_dropped_wherever_it_is_found() {
    let mut stage = Stage::default();
    let packet = stage.peers[1].seal(&crate::stage::from_berlin(1));
    for worker in [0, 1, 0, 1] {
        stage.arrive_sealed(worker, &packet);
    }
    stage.settle();
    assert_eq!(delivered(&mut stage), [1]);
    let replayed: u64 = (0..2).map(|w| stage.counters(w).dropped(DropReason::Replayed)).sum();
    assert_eq!((replayed, stage.ledger().received), (3, 4));
    // What the window refuses takes no room in the ring, whoever's it is.
    let handed_over = |stage: &mut Stage| [0, 1].map(|w| stage.counters(w).handed_over);
    let before = handed_over(&mut stage);
    for worker in [0, 1] {
        stage.arrive_sealed(worker, &packet);
        stage.settle();
    }
    assert_eq!(handed_over(&mut stage), before);
}

/// Packets fit until the ring is full; the rest is dropped by who received it.
#[test]
fn a_full_ring_drops_what_does_not_fit_and_blocks_nobody() {
    let mut stage = Stage::default();
    let more = 3 * BATCH as u32 + 5;
    let total = RING_PACKETS as u32 + more;
    (0..total).for_each(|number| stage.arrive(0, 1, number));
    while stage.turn(0) > 0 {}
    let first = stage.counters(0);
    assert_eq!(first.handed_over, RING_PACKETS as u64);
    assert_eq!(first.dropped(DropReason::HandoverFull), u64::from(more));
    assert_eq!(first.total().received, u64::from(more));
    stage.settle();
    assert!(delivered(&mut stage).into_iter().eq(0..RING_PACKETS as u32));
    assert_eq!(stage.ledger().received, u64::from(total));
    // There is room again.
    stage.arrive(0, 1, total);
    stage.settle();
    assert_eq!(delivered(&mut stage), [total]);
}

#[test]
fn a_worker_that_has_ended_is_handed_nothing() {
    let mut stage = Stage::default();
    stage.arrive(0, 1, 0);
    stage.turn(0);
    drop(stage.workers.pop());
    stage.arrive(0, 1, 1);
    stage.turn(0);
    let counters = stage.counters(0);
    assert_eq!((counters.handed_over, counters.dropped(DropReason::HandoverFull)), (1, 1));
}

/// A second port to the world, on a netdev of its own, in slots that are vacant.
const WAN2: PortId = PortId(4);
const WAN2_NETDEV: NetdevId = NetdevId(3);

/// The snapshot that comes after another, with a change of what it is made of.
fn after(before: &Snapshot, change: impl FnOnce(&mut Sources)) -> Arc<Snapshot> {
    let mut sources = before.sources().clone();
    change(&mut sources);
    Snapshot::after(sources, Some(before)).expect("parts that fit together").into()
}

fn with_wan2(sources: &mut Sources) {
    let wan = sources.ports.at(usize::from(WAN.0)).clone();
    let wan2 = PortInfo { name: "wan2".into(), netdev: WAN2_NETDEV, ..wan };
    sources.ports.set(usize::from(WAN2.0), Some(wan2));
}

fn go_over(stage: &mut Stage, worker: usize, next: &Snapshot) {
    let worker = &mut stage.workers[worker];
    drop(worker.leave_ports(next));
    if next.has_netdev(WAN2_NETDEV) {
        worker.put_netdev(WAN2_NETDEV, Some(MemoryPort::new(BATCH)));
    }
}

/// A packet of the second pair, which is worker 1's, arrives at worker 0 by the second port.
fn arrive_by_wan2(stage: &mut Stage, snapshot: &Snapshot, number: u32) {
    let packet = stage.peers[1].seal(&crate::stage::from_berlin(number));
    let (to, from) = (packets::lab::WAN_MAC, packets::lab::ROUTER_MAC);
    let frame = packets::lab::frame(to, from, None, wire::link::ethertype::IPV4, &packet);
    stage.workers[0].netdev_mut(WAN2_NETDEV).unwrap().push(frame);
    stage.workers[0].turn(snapshot, stage.now_ns, WAN2_NETDEV, BATCH);
}

#[test]
fn packets_are_walked_as_of_their_netdev_whatever_ports_come_and_go() {
    let mut stage = Stage::default();
    stage.arrive(0, 1, 1);
    stage.turn(0);
    let next = after(&stage.snapshot, |sources| {
        Laboratory::without_port(sources, LAN2);
        with_wan2(sources);
    });
    go_over(&mut stage, 1, &next);
    // Before and after the taker has gone over.
    stage.arrive(0, 1, 2);
    stage.turn(0);
    assert_eq!(stage.workers[1].take_over(&next, stage.now_ns), 2);
    let packets = stage.sent(1, LAN);
    assert_eq!(packets.iter().map(|packet| number_of(packet)).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(balanced(&mut stage.workers[1]).ledgers[usize::from(WAN.0)].received, 2);
}

#[test]
fn packets_of_a_netdev_that_comes_wait_until_the_taker_has_gone_over() {
    let mut stage = Stage::default();
    let next = after(&stage.snapshot, with_wan2);
    go_over(&mut stage, 0, &next);
    arrive_by_wan2(&mut stage, &next, 1);
    assert_eq!(stage.take_over(1), 0);
    assert!(stage.workers[1].has_handovers());
    go_over(&mut stage, 1, &next);
    assert_eq!(stage.workers[1].take_over(&next, stage.now_ns), 1);
    assert_eq!(delivered(&mut stage), [1]);
    assert_eq!(balanced(&mut stage.workers[1]).ledgers[usize::from(WAN2.0)].received, 1);
}

/// A configuration is refused after the workers have gone over to it, and they go back.
#[test]
fn packets_of_a_netdev_that_was_taken_back_are_dropped_and_block_no_ring() {
    let mut stage = Stage::default();
    let refused = after(&stage.snapshot, with_wan2);
    (0..2).for_each(|worker| go_over(&mut stage, worker, &refused));
    let back = after(&refused, |sources| Laboratory::without_port(sources, WAN2));
    // The taker goes back first.
    go_over(&mut stage, 1, &back);
    arrive_by_wan2(&mut stage, &refused, 1);
    go_over(&mut stage, 0, &back);
    stage.snapshot = back;
    assert_eq!(stage.take_over(1), 1);
    let counters = stage.counters(1);
    assert_eq!((counters.dropped(DropReason::Vlan), counters.total().received), (1, 1));
    stage.arrive(0, 1, 2);
    stage.settle();
    assert_eq!(delivered(&mut stage), [2]);
    assert!(!stage.workers[1].has_handovers());
}

#[test]
fn packets_of_a_netdev_that_is_gone_are_not_taken_for_those_of_another_in_its_slot() {
    let mut stage = Stage::default();
    let first = after(&stage.snapshot, with_wan2);
    (0..2).for_each(|worker| go_over(&mut stage, worker, &first));
    arrive_by_wan2(&mut stage, &first, 1);
    let without = after(&first, |sources| Laboratory::without_port(sources, WAN2));
    (0..2).for_each(|worker| go_over(&mut stage, worker, &without));
    let again = after(&without, with_wan2);
    (0..2).for_each(|worker| go_over(&mut stage, worker, &again));
    arrive_by_wan2(&mut stage, &again, 2);
    stage.snapshot = again;
    assert_eq!(stage.take_over(1), 2);
    assert_eq!(delivered(&mut stage), [2]);
    let counters = stage.counters(1);
    assert_eq!((counters.dropped(DropReason::Vlan), counters.total().received), (1, 2));
    assert_eq!(counters.ledgers[usize::from(WAN2.0)].received, 1);
}

#[test]
fn threads_that_hand_over_to_each_other_deliver_each_packet_once() {
    const EACH: u32 = 20_000;
    let mut stage = Stage::default();
    let sealed: Vec<Vec<Vec<u8>>> = (0..2)
        .map(|pair| {
            let numbers = (0..EACH).map(|n| n * 2 + pair as u32);
            numbers.map(|n| stage.peers[pair].seal(&crate::stage::from_berlin(n))).collect()
        })
        .collect();
    let (snapshot, now_ns) = (stage.snapshot.clone(), stage.now_ns);
    let finished = AtomicUsize::new(0);
    let (wan, lan) = (snapshot.port(WAN).netdev, snapshot.port(LAN).netdev);
    // Each worker receives the packets of the other's SA only, and at times more than are taken.
    let work = |worker: &mut crate::stage::Gateway, packets: &[Vec<u8>]| {
        let mut delivered = Vec::new();
        let mut rest = packets.chunks(BATCH);
        let mut is_done = false;
        loop {
            match rest.next() {
                Some(packets) => {
                    for packet in packets {
                        let (to, from) = (packets::lab::WAN_MAC, packets::lab::ROUTER_MAC);
                        let frame = packets::lab::frame(to, from, None, 0x0800, packet);
                        worker.netdev_mut(wan).unwrap().push(frame);
                    }
                    worker.turn(&snapshot, now_ns, wan, BATCH);
                }
                None if !is_done => {
                    is_done = true;
                    finished.fetch_add(1, Ordering::AcqRel);
                }
                None => {}
            }
            let all_done = finished.load(Ordering::Acquire) == 2;
            let taken = worker.take_over(&snapshot, now_ns);
            delivered.extend(sent(worker, lan).iter().map(|packet| number_of(packet)));
            if all_done && taken == 0 {
                return delivered;
            }
        }
    };
    let (first, second) = stage.workers.split_at_mut(1);
    let delivered: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let threads = [
            scope.spawn(|| work(&mut first[0], &sealed[1])),
            scope.spawn(|| work(&mut second[0], &sealed[0])),
        ];
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let full: u64 = (0..2).map(|w| stage.counters(w).dropped(DropReason::HandoverFull)).sum();
    assert_eq!(stage.drops(), full, "dropped for other reasons than a full ring");
    let ledger = stage.ledger();
    assert_eq!((ledger.received, ledger.sent), (2 * u64::from(EACH), 2 * u64::from(EACH) - full));
    for (worker, delivered) in delivered.iter().enumerate() {
        assert!(delivered.is_sorted(), "one SA's packets stay in order");
        assert!(delivered.iter().all(|number| *number as usize % 2 == worker));
    }
    let all: BTreeSet<u32> = delivered.iter().flatten().copied().collect();
    assert_eq!(all.len() as u64, ledger.sent);
}

/// Queues come and go, and with them who opens what: both may then open one SA at one time.
#[test]
fn who_walks_changes_under_load_and_what_is_duplicated_still_passes_once() {
    const EACH: u32 = 20_000;
    let mut stage = Stage::default();
    let sealed: Vec<Vec<u8>> = (0..EACH)
        .map(|number| {
            let packet = crate::stage::from_berlin(number);
            stage.peers[number as usize % 2].seal(&packet)
        })
        .collect();
    let (snapshot, now_ns) = (stage.snapshot.clone(), stage.now_ns);
    let (wan, lan) = (snapshot.port(WAN).netdev, snapshot.port(LAN).netdev);
    let start = std::sync::Barrier::new(WORKERS as usize);
    // Every packet arrives at every worker, and twice.
    let work = |worker: &mut crate::stage::Gateway, salt: usize| {
        let mut delivered = Vec::new();
        start.wait();
        for (turn, packets) in sealed.chunks(BATCH / 2).enumerate() {
            worker.walk_among(if (turn * 7 + salt) % 5 < 2 { 1 } else { WORKERS });
            for packet in packets.iter().chain(packets.iter().rev()) {
                let (to, from) = (packets::lab::WAN_MAC, packets::lab::ROUTER_MAC);
                let frame = packets::lab::frame(to, from, None, 0x0800, packet);
                worker.netdev_mut(wan).unwrap().push(frame);
            }
            worker.turn(&snapshot, now_ns, wan, BATCH);
            worker.take_over(&snapshot, now_ns);
            delivered.extend(sent(worker, lan).iter().map(|packet| number_of(packet)));
        }
        delivered
    };
    let (first, second) = stage.workers.split_at_mut(1);
    let mut delivered: Vec<u32> = std::thread::scope(|scope| {
        let threads =
            [scope.spawn(|| work(&mut first[0], 0)), scope.spawn(|| work(&mut second[0], 1))];
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    while (0..WORKERS as usize).map(|worker| stage.take_over(worker)).sum::<usize>() > 0 {}
    delivered.extend(self::delivered(&mut stage));
    let distinct: BTreeSet<u32> = delivered.iter().copied().collect();
    assert_eq!(distinct.len(), delivered.len(), "delivered twice");
    assert!(distinct.len() > EACH as usize / 2, "{} of {EACH}", distinct.len());
    let ledger = stage.ledger();
    assert_eq!(u64::from(EACH) * 4, ledger.received);
    assert_eq!(ledger.sent, delivered.len() as u64);
}

proptest! {
    /// Packets arrive anywhere, and the workers take their turns in any order.
    #[test]
    fn every_packet_is_delivered_once_and_counted_once(
        at in [0..WORKERS as usize, 0..WORKERS as usize],
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let mut stage = Stage::default();
        let (mut number, mut in_rings) = (0, 0);
        for step in steps {
            match step {
                Step::Arrive { pair, count } => {
                    for _ in 0..count {
                        stage.arrive(at[pair], pair, number);
                        number += 1;
                    }
                }
                Step::Turn(worker) => {
                    let before = stage.counters(worker).handed_over;
                    stage.turn(worker);
                    in_rings += stage.counters(worker).handed_over - before;
                }
                Step::TakeOver(worker) => in_rings -= stage.take_over(worker) as u64,
            }
            let handed: u64 = (0..2).map(|w| stage.counters(w).handed_over).sum();
            let taken: u64 = (0..2).map(|w| stage.counters(w).taken_over).sum();
            prop_assert_eq!(handed - taken, in_rings);
        }
        stage.settle();
        let full: u64 = (0..2).map(|w| stage.counters(w).dropped(DropReason::HandoverFull)).sum();
        let ledger = stage.ledger();
        prop_assert_eq!(ledger.received, u64::from(number));
        prop_assert_eq!(stage.drops(), full, "an order that a replay window refuses");
        prop_assert_eq!(ledger.sent + full, u64::from(number));
        let delivered = delivered(&mut stage);
        prop_assert_eq!(delivered.len() as u64, ledger.sent);
        prop_assert_eq!(delivered.iter().collect::<BTreeSet<_>>().len(), delivered.len());
    }
}
