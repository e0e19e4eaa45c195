//! NAT keepalives (RFC 3948 §4).

use std::sync::Arc;

use dataplane::keepalive::{ROUND_NS, STEP_SETS};
use dataplane::{Neighbour, SaSet, SetIndex};
use ipsec::encapsulation::{NAT_TRAVERSAL_PORT, UdpPorts};
use ipsec::{Encapsulation, OutboundSa, SaId, SequenceCounter, SequenceNumbers, Spi, Suite};
use packets::lab::{BERLIN, CARLA, DORA, Hub, LAN, WAN};
use packets::peer::material;
use policy::SaSetId;
use wire::Upper;
use wire::flow::protocol;

use crate::stage::{Stage, hub};

const SECOND: u64 = 1_000_000_000;
/// Of every set in these tests.
const AFTER_S: u32 = 20;
/// The peer's port behind its NAT.
const NAT_PORT: u16 = 61_234;

/// The gateway with ESP in UDP for berlin, carla and dora.
fn behind_nat() -> Hub {
    let mut hub = hub();
    for sa in &mut hub.parts.outbound {
        let ports = UdpPorts { local: NAT_TRAVERSAL_PORT, remote: NAT_PORT };
        let carried = Encapsulation { udp: Some(ports), ..sa.encapsulation };
        let in_udp: OutboundSa = sa.carried(carried).unwrap();
        *sa = in_udp.into();
    }
    for set in [BERLIN, CARLA, DORA] {
        hub.parts.sets[set.0 as usize].keepalive_s = Some(AFTER_S);
    }
    hub
}

/// Time between two ticks of these tests.
const TICK_NS: u64 = ROUND_NS / 4;

/// Lets time pass, with a tick every quarter of a round; returns the packets of both workers.
fn wait(stage: &mut Stage, seconds: u64) -> Vec<(usize, Vec<u8>)> {
    let until = stage.now_ns + seconds * SECOND;
    let mut sent = Vec::new();
    while stage.now_ns < until {
        stage.now_ns += TICK_NS;
        for worker in 0..2 {
            let (snapshot, now_ns) = (stage.snapshot.clone(), stage.now_ns);
            stage.workers[worker].tick(&snapshot, now_ns);
            sent.extend(stage.sent(worker, WAN).into_iter().map(|packet| (worker, packet)));
        }
    }
    sent
}

/// The peer that a keepalive is for. It is looked at whole.
fn addressee(stage: &Stage, packet: &[u8]) -> SetIndex {
    let parsed = wire::packet::parse(packet).unwrap();
    let (source, destination) = (NAT_TRAVERSAL_PORT, NAT_PORT);
    assert_eq!(parsed.flow.protocol, protocol::UDP);
    assert_eq!(parsed.flow.upper, Upper::Ports { source, destination });
    assert_eq!(packet[usize::from(parsed.upper_offset) + 8..], [0xff]);
    assert_eq!(parsed.hop_limit, 64);
    let ends = |set: &dataplane::SaSet| {
        let ends = (parsed.flow.source_address(), parsed.flow.destination_address());
        ends == (set.tunnel.local.into(), set.tunnel.remote.into())
    };
    stage.snapshot.sets().find(|(_, set)| ends(set)).unwrap().0
}

#[test]
fn a_silent_tunnel_in_udp_is_kept_awake_by_one_worker() {
    let mut stage = Stage::of(behind_nat());
    assert_eq!(wait(&mut stage, u64::from(AFTER_S)), []);
    for _ in 0..3 {
        let sent = wait(&mut stage, u64::from(AFTER_S));
        let mut seen: Vec<_> =
            sent.iter().map(|(worker, packet)| (addressee(&stage, packet), *worker)).collect();
        seen.sort_unstable();
        assert_eq!(seen, [(BERLIN, 0), (CARLA, 1), (DORA, 0)]);
    }
    for (worker, count) in [(0, 6), (1, 3)] {
        let counters = stage.counters(worker);
        assert_eq!(counters.keepalives, count);
        let ledger = counters.ledgers[usize::from(WAN.0)];
        assert_eq!((ledger.made, ledger.sent), (count, count));
    }
}

#[test]
fn what_any_worker_seals_puts_the_keepalive_off() {
    let mut stage = Stage::of(behind_nat());
    for number in 0..10 {
        assert_eq!(stage.counters(0).keepalives, 0, "berlin's is worker 0's");
        // At turns of the worker whose affair it is not, too.
        stage.arrive_in_clear(number as usize % 2, number);
        stage.settle();
        for worker in 0..2 {
            stage.sent(worker, WAN);
        }
        let sent = wait(&mut stage, u64::from(AFTER_S) - 1);
        assert!(sent.iter().all(|(_, packet)| addressee(&stage, packet) != BERLIN));
        if number == 0 {
            stage.snapshot = {
                let mut hub = behind_nat().keeping_sas_of(&stage.snapshot);
                // It is remembered over a change.
                hub.parts.sets[CARLA.0 as usize].keepalive_s = None;
                hub.parts.sets[DORA.0 as usize].keepalive_s = None;
                hub.snapshot_after(&stage.snapshot).into()
            };
        }
    }
    assert_eq!(wait(&mut stage, 2).len(), 1);
}

/// Adds sets in UDP with an SA each.
fn add_sets(hub: &mut Hub, count: u32, keepalive_s: Option<u32>) {
    let like = hub.parts.sets[CARLA.0 as usize].clone();
    let carried = hub.parts.outbound[like.outbound[0].0 as usize].encapsulation;
    let key = material(Suite::Aes128Gcm, 99);
    for number in 0..count {
        let (id, set) = (SaId(hub.parts.outbound.len() as u32), SaSetId(1000 + number));
        let spi = Spi::new(0x10_0000 + number).unwrap();
        let counter = Arc::new(SequenceCounter::new(SequenceNumbers::Short));
        let sa = OutboundSa::new(id, spi, set, &key, carried, counter).unwrap();
        hub.parts.outbound.push(sa.into());
        let outbound = vec![id];
        hub.parts.sets.push(SaSet { id: set, outbound, keepalive_s, ..like.clone() });
    }
}

/// Ticks a worker until no work is overdue; returns the number of packets of each tick.
fn catch_up(stage: &mut Stage, worker: usize) -> Vec<usize> {
    let mut sent = Vec::new();
    loop {
        let (snapshot, now_ns) = (stage.snapshot.clone(), stage.now_ns);
        stage.workers[worker].tick(&snapshot, now_ns);
        sent.push(stage.sent(worker, WAN).len());
        if !stage.workers[worker].has_overdue_work() {
            return sent;
        }
    }
}

#[test]
fn one_tick_visits_a_bounded_number_of_sets_and_a_round_visits_all() {
    const MANY: u32 = 1000;
    let mut hub = behind_nat();
    add_sets(&mut hub, MANY, Some(AFTER_S));
    let mut stage = Stage::of(hub);
    let all = MANY as usize + 3;
    let ticks = all.div_ceil(STEP_SETS as usize);
    for worker in 0..2 {
        assert_eq!(catch_up(&mut stage, worker), vec![0; ticks], "the first look");
    }
    stage.now_ns += u64::from(AFTER_S) * SECOND;
    for round in 1..3 {
        let [first, second] = [0, 1].map(|worker| catch_up(&mut stage, worker));
        assert!(first.len() >= ticks && second.len() >= ticks);
        assert!(first.iter().chain(&second).all(|sent| *sent <= STEP_SETS as usize));
        assert_eq!(first.iter().chain(&second).sum::<usize>(), all, "round {round}");
        assert!(first.iter().sum::<usize>().abs_diff(all / 2) < 3, "each sends its share");
        stage.now_ns += u64::from(AFTER_S) * SECOND;
    }
}

#[test]
fn sets_that_want_no_keepalives_are_not_visited() {
    let mut hub = behind_nat();
    add_sets(&mut hub, 1000, None);
    let mut stage = Stage::of(hub);
    for _ in 0..3 {
        assert_eq!(catch_up(&mut stage, 0).len(), 1, "one tick visits the three that want some");
        stage.now_ns += SECOND;
    }
}

#[test]
fn a_change_of_ports_or_of_workers_puts_no_keepalive_off() {
    let mut stage = Stage::of(behind_nat());
    assert_eq!(wait(&mut stage, 15), []);
    let mut hub = behind_nat().keeping_sas_of(&stage.snapshot);
    hub.parts.ports[usize::from(LAN.0)].mtu = 1400;
    stage.snapshot = hub.snapshot_after(&stage.snapshot).into();
    let sent = wait(&mut stage, 7);
    assert_eq!(sent.len(), 3, "{sent:?}");
    wait(&mut stage, 13);
    stage.workers[0].walk_among(1);
    stage.workers[1].walk_among(0);
    let sent = wait(&mut stage, 7);
    assert_eq!(sent.iter().filter(|(worker, _)| *worker == 0).count(), 3, "{sent:?}");
}

#[test]
fn tunnels_that_want_none_or_are_not_in_udp_or_lead_nowhere_get_none() {
    let mut plain = hub();
    plain.parts.sets[0].keepalive_s = Some(1);
    let mut unwanted = behind_nat();
    unwanted.parts.sets.iter_mut().for_each(|set| set.keepalive_s = None);
    let mut nowhere = behind_nat();
    nowhere.parts.sets.iter_mut().for_each(|set| set.keepalive_s = None);
    nowhere.parts.sets[packets::lab::WITHOUT_ROUTE.0 as usize].keepalive_s = Some(1);
    nowhere.parts.sets[packets::lab::WITHOUT_SA.0 as usize].keepalive_s = Some(1);
    for hub in [plain, unwanted, nowhere] {
        let mut stage = Stage::of(hub);
        assert_eq!(wait(&mut stage, 50), []);
        assert_eq!((stage.ledger().made, stage.drops()), (0, 0));
    }
}

#[test]
fn a_keepalive_whose_next_hop_is_unknown_waits_for_it_like_any_packet() {
    let mut hub = behind_nat();
    let router = |neighbour: &Neighbour| neighbour.port == WAN;
    let routers: Vec<Neighbour> = hub.parts.neighbours.iter().copied().filter(router).collect();
    hub.parts.neighbours.retain(|neighbour| neighbour.port == LAN);
    let mut stage = Stage::of(hub);
    assert_eq!(wait(&mut stage, u64::from(AFTER_S) + 1), []);
    assert_eq!((stage.ledger().held, stage.workers[1].waiting()), (3, 1));
    let mut hub = behind_nat().keeping_sas_of(&stage.snapshot);
    hub.parts.neighbours.extend(routers);
    let snapshot = hub.snapshot();
    stage.workers[1].adopt(&snapshot, stage.now_ns);
    let sent = stage.sent(1, WAN);
    assert_eq!(sent.iter().map(|packet| addressee(&stage, packet)).collect::<Vec<_>>(), [CARLA]);
    assert_eq!(stage.counters(1).total().held, 0);
}

/// The other gateway swallows it.
#[test]
fn a_keepalive_that_arrives_is_dropped_as_one_by_whichever_worker() {
    let packet = wire::build::PacketBuilder::v4("198.51.100.7", "192.0.2.1");
    let packet = packet.udp(NAT_PORT, NAT_TRAVERSAL_PORT).payload(&[0xff]).ip();
    let mut stage = Stage::of(behind_nat());
    for worker in 0..2 {
        stage.arrive_sealed(worker, &packet);
        stage.settle();
        assert_eq!(stage.counters(worker).dropped(dataplane::DropReason::Keepalive), 1);
    }
}
