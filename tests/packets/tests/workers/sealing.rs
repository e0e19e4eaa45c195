//! Checks which worker seals with which SA.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::DropReason;
use ipsec::{
    Account, Allowance, Lifetime, Limits, OutboundSa, ReplayWindow, SaId, SequenceCounter,
    SequenceNumbers, Spi,
};
use packets::lab::{BERLIN, Hub, LAN, WAN};
use packets::peer::{Agreement, Opened};
use proptest::prelude::*;
use wire::BATCH;

use crate::stage::{Stage, WORKERS, hub, number_of};

/// Opens what left with the SA that it names, at the far end.
fn open(stage: &mut Stage, packet: &[u8]) -> (usize, Opened) {
    let peers = stage.peers.iter_mut().enumerate();
    let mut opened = peers.filter_map(|(pair, peer)| Some((pair, peer.open(packet)?)));
    opened.next().expect("one of the two SAs sealed it")
}

/// Merges the packets of two wires: true takes the first's next packet.
fn merge(mut wires: [Vec<Vec<u8>>; 2], order: &[bool]) -> Vec<Vec<u8>> {
    wires.iter_mut().for_each(|wire| wire.reverse());
    let [first, second] = &mut wires;
    let mut merged: Vec<Vec<u8>> = Vec::new();
    merged.extend(order.iter().filter_map(|turn| if *turn { first.pop() } else { second.pop() }));
    merged.extend(first.drain(..).rev());
    merged.extend(second.drain(..).rev());
    merged
}

proptest! {
    /// The far end has a window of 64 for each SA, as we have.
    #[test]
    fn a_peer_with_a_window_of_64_drops_nothing_however_two_workers_are_interleaved(
        steps in proptest::collection::vec(
            (0..WORKERS as usize, prop_oneof![Just(1), 2..9u32, 60..=64u32]), 1..30),
        order in proptest::collection::vec(any::<bool>(), 0..900),
    ) {
        let mut stage = Stage::default();
        let mut sent = 0;
        for (worker, count) in steps {
            for _ in 0..count {
                stage.arrive_in_clear(worker, sent);
                sent += 1;
            }
            stage.turn(worker);
        }
        stage.settle();
        let wires = [stage.sent(0, WAN), stage.sent(1, WAN)];
        let window = || ReplayWindow::new(64, SequenceNumbers::Short).unwrap();
        let windows = [window(), window()];
        let (mut used, mut delivered) = (BTreeSet::new(), BTreeSet::new());
        for packet in merge(wires, &order) {
            let (pair, opened) = open(&mut stage, &packet);
            let number = u64::from(opened.sequence_low);
            prop_assert!(windows[pair].commit(number).is_ok(), "{number} of SA {pair}");
            prop_assert!(used.insert((pair, number)), "a number was used twice");
            prop_assert!(delivered.insert(number_of(&opened.inner)));
        }
        prop_assert_eq!(delivered.len() as u32, sent);
        prop_assert_eq!(stage.drops(), 0);
    }
}

#[test]
fn each_worker_seals_with_an_sa_of_its_own() {
    let mut stage = Stage::default();
    for worker in 0..2 {
        (0..BATCH as u32).for_each(|number| stage.arrive_in_clear(worker, number));
    }
    stage.settle();
    for worker in 0..2 {
        for (place, packet) in stage.sent(worker, WAN).into_iter().enumerate() {
            let (pair, opened) = open(&mut stage, &packet);
            assert_eq!((pair, opened.sequence_low), (worker, place as u32 + 1));
        }
        let sealed = stage.counters(worker).sealed;
        assert_eq!(sealed[[0, 4][worker]].packets, BATCH as u64);
        assert_eq!(sealed[[4, 0][worker]].packets, 0);
    }
}

/// Two workers of one SA.
#[test]
fn workers_of_one_sa_share_it_and_no_number_is_used_twice() {
    const EACH: u32 = 30 * BATCH as u32;
    let mut hub = hub();
    hub.parts.sets[BERLIN.0 as usize].outbound = vec![SaId(4)];
    let mut stage = Stage::of(hub);
    for worker in 0..2 {
        (0..EACH).for_each(|number| stage.arrive_in_clear(worker, number));
    }
    let (snapshot, now_ns) = (stage.snapshot.clone(), stage.now_ns);
    let lan = snapshot.port(LAN).netdev;
    std::thread::scope(|scope| {
        for worker in &mut stage.workers {
            let snapshot = &snapshot;
            scope.spawn(move || while worker.turn(snapshot, now_ns, lan, BATCH) > 0 {});
        }
    });
    let packets: Vec<_> = (0..2).flat_map(|worker| stage.sent(worker, WAN)).collect();
    let numbers = packets.iter().map(|packet| {
        let (pair, opened) = open(&mut stage, packet);
        assert_eq!(pair, 1);
        opened.sequence_low
    });
    let numbers: BTreeSet<u32> = numbers.collect();
    assert!(numbers.into_iter().eq(1..=2 * EACH));
}

#[test]
fn an_sa_without_numbers_left_is_passed_over_for_one_that_has_some() {
    let mut hub = hub();
    let old = hub.parts.outbound[0].clone();
    let last = Box::leak(Box::default());
    let counter = SequenceCounter::shared(last, u64::MAX, SequenceNumbers::Short);
    last.store(SequenceNumbers::Short.limit() - 1, std::sync::atomic::Ordering::Relaxed);
    let Agreement { hub: local, address: remote, .. } = packets::lab::agreements()[0];
    let key = packets::lab::agreements()[0].material_from_hub();
    let spi = Spi::new(old.spi.value()).unwrap();
    let tunnel = ipsec::Tunnel { local, remote };
    let sa = OutboundSa::new(old.id, spi, old.set, &key, tunnel, Arc::new(counter)).unwrap();
    hub.parts.outbound[0] = Arc::new(sa);
    let mut stage = Stage::of(hub);
    for number in 0..4 {
        stage.arrive_in_clear(0, number);
        stage.turn(0);
    }
    let packets = stage.sent(0, WAN);
    let pairs: Vec<usize> = packets.iter().map(|packet| open(&mut stage, packet).0).collect();
    // One number was left.
    assert_eq!(pairs, [0, 1, 1, 1]);
    assert_eq!(stage.counters(0).dropped(DropReason::SequenceExhausted), 0);
}

/// Gives the SA of a place a hard limit by packets.
fn limit(hub: &mut Hub, place: usize, most: u64) -> Arc<Account> {
    let account = Arc::new(Account::new());
    let hard = Limits { packets: Some(most), ..Limits::NONE };
    let lifetime = Lifetime { hard, ..Lifetime::NONE };
    let sa = &hub.parts.outbound[place];
    let allowance = Allowance { lifetime, account: account.clone() };
    let limited = sa.at(sa.id, sa.set).within(Some(allowance));
    hub.parts.outbound[place] = Arc::new(limited);
    account
}

#[test]
fn an_sa_at_its_hard_limit_is_passed_over_for_one_that_is_not() {
    let mut hub = hub();
    limit(&mut hub, 0, 1);
    let second = hub.parts.outbound.len() - 1;
    limit(&mut hub, second, 2);
    let mut stage = Stage::of(hub);
    for number in 0..4 {
        stage.arrive_in_clear(0, number);
        stage.turn(0);
    }
    let packets = stage.sent(0, WAN);
    let pairs: Vec<usize> = packets.iter().map(|packet| open(&mut stage, packet).0).collect();
    assert_eq!(pairs, [0, 1, 1]);
    // Now all are at theirs.
    assert_eq!(stage.counters(0).dropped(DropReason::SaHardLimit), 1);
}

/// Two workers of one SA, in threads of their own: row XO-18.
#[test]
fn exactly_the_hard_limit_leaves_over_two_workers() {
    const EACH: u32 = 30 * BATCH as u32;
    for most in [1, 63, 1000, u64::from(EACH) + 1, u64::from(2 * EACH) - 1] {
        let mut hub = hub();
        hub.parts.sets[BERLIN.0 as usize].outbound = vec![SaId(4)];
        let place = hub.parts.outbound.len() - 1;
        let account = limit(&mut hub, place, most);
        let mut stage = Stage::of(hub);
        for worker in 0..2 {
            (0..EACH).for_each(|number| stage.arrive_in_clear(worker, number));
        }
        let (snapshot, now_ns) = (stage.snapshot.clone(), stage.now_ns);
        let lan = snapshot.port(LAN).netdev;
        std::thread::scope(|scope| {
            for worker in &mut stage.workers {
                let snapshot = &snapshot;
                scope.spawn(move || while worker.turn(snapshot, now_ns, lan, BATCH) > 0 {});
            }
        });
        let left: usize = (0..2).map(|worker| stage.sent(worker, WAN).len()).sum();
        let dropped = |worker| stage.counters(worker).dropped(DropReason::SaHardLimit);
        let dropped: u64 = (0..2).map(dropped).sum();
        assert_eq!((left as u64, account.used(0).packets), (most, most));
        assert_eq!(dropped, u64::from(2 * EACH) - most);
    }
}
