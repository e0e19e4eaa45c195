//! The flow cache in the walk, row by row, in both directions and families.

use dataplane::cache::CacheEntry;
use dataplane::{
    CacheCounters, DropReason, FastPathUse, HoldKind, PortId, RouteGeneration, Verdict,
};
use packets::In;
use packets::lab::{BERLIN, CARLA, HOST, Hub, LAN, LAN2, Laboratory, WAN, host, own, policy};
use policy::{
    Action, Book, Direction, DomainId, Exit, Policy, PolicyId, PolicyIndex, PortClass, PortRange,
    SaSetId, Slots, Spd, UpperSelector,
};
use wire::Family;
use wire::build::PacketBuilder;
use wire::flow::protocol::UDP;

use crate::{FAMILIES, all_rows, between, datagram};

/// Policies that a scene may have in its life.
const ROOM: usize = 512;
/// 16 buckets of IPv4.
const SMALL: usize = 32;

const BYPASSED: Verdict = Verdict::Forward(WAN);
const CAME_IN: Verdict = Verdict::Forward(LAN);
const DISCARDED: Verdict = Verdict::Drop(DropReason::PolicyDiscard);
const UNMATCHED: Verdict = Verdict::Drop(DropReason::NoMatch);

/// A gateway whose policies are changed one by one.
struct Scene {
    lab: Laboratory,
    spd: Spd,
    direction: Direction,
    family: Family,
    next: u32,
    routes: u32,
}

impl Scene {
    fn new(direction: Direction, family: Family) -> Scene {
        Scene::with(direction, family, 1 << 10)
    }

    fn with(direction: Direction, family: Family, entries: usize) -> Scene {
        let spd = Spd::with_room(vec![], ROOM).unwrap();
        let hub = Hub { spd: Some(spd.clone()), ..Hub::default() };
        let lab = hub.laboratory().remembering(entries);
        Scene { lab, spd, direction, family, next: 1, routes: 0 }
    }

    /// Every direction and family.
    fn each() -> impl Iterator<Item = Scene> {
        let directions = [Direction::Outbound, Direction::Inbound];
        let pairs = directions
            .into_iter()
            .flat_map(|direction| FAMILIES.into_iter().map(move |family| (direction, family)));
        pairs.map(|(direction, family)| Scene::new(direction, family))
    }

    fn publish(&mut self) {
        let mut hub = Hub { spd: Some(self.spd.clone()), ..Hub::default() };
        hub.parts.route_generation = RouteGeneration(self.routes);
        self.lab.publish(hub.keeping_sas_of(&self.lab.snapshot));
    }

    /// A policy of this direction for what lies behind a remote network, or for all.
    fn policy(&mut self, action: Action, priority: u32, network: Option<u32>) -> Policy {
        let remote = match network {
            Some(n) => vec![format!("10.{n}.0.0/16"), format!("2001:db8:{n}::/48")],
            None => vec!["any".into()],
        };
        let remote: Vec<&str> = remote.iter().map(String::as_str).collect();
        let id = self.next;
        self.next += 1;
        Policy {
            id: PolicyId(id),
            only: Some(self.direction),
            group: None,
            ..policy(&format!("p{id}"), priority, action, &["any"], &remote)
        }
    }

    fn add(&mut self, action: Action, priority: u32, network: Option<u32>) -> PolicyIndex {
        let policy = self.policy(action, priority, network);
        self.change(&[], vec![policy]);
        self.spd.named(&format!("p{}", self.next - 1)).unwrap()
    }

    fn remove(&mut self, policy: PolicyIndex) {
        self.change(&[policy], vec![]);
    }

    fn change(&mut self, removed: &[PolicyIndex], added: Vec<Policy>) {
        self.spd = self.spd.changed(removed, added).unwrap();
        self.publish();
    }

    /// A packet of this direction between our network 1 and a remote one.
    fn between(&self, network: u32) -> PacketBuilder {
        match self.direction {
            Direction::Outbound => between(self.family, 1, network),
            Direction::Inbound => between(self.family, network, 1),
        }
    }

    fn port(&self) -> PortId {
        if self.direction == Direction::Outbound { LAN } else { WAN }
    }

    fn send(&mut self, packet: &PacketBuilder) -> Verdict {
        self.send_all(&[packet.ip()])[0]
    }

    fn send_all(&mut self, packets: &[Vec<u8>]) -> Vec<Verdict> {
        self.lab.send_all(self.port(), packets).verdicts
    }

    /// Sends a datagram to or from a network, from one of many ports.
    fn send_to(&mut self, network: u32, port: u16) -> Verdict {
        let packet = self.between(network).udp(port, 53);
        self.send(&packet)
    }

    fn passes(&self) -> Verdict {
        if self.direction == Direction::Outbound { BYPASSED } else { CAME_IN }
    }

    fn domain(&self) -> DomainId {
        DomainId::new(PortClass(0), self.direction.book(), self.family)
    }

    /// The domain that the question about its packets stands under in the cache.
    fn question(&self) -> DomainId {
        let book = match self.direction {
            Direction::Outbound => Book::GroupIn,
            Direction::Inbound => Book::SpdIn,
        };
        DomainId::new(PortClass(0), book, self.family)
    }

    fn domain_of(&self, entry: &CacheEntry) -> DomainId {
        self.lab.snapshot.tables().scopes().domain(entry.key.scope)
    }

    fn entries(&self) -> u64 {
        self.lab.cache().entries_of(self.question())
    }

    fn counters(&self) -> CacheCounters {
        self.lab.counters().cache
    }

    fn searches(&self) -> u64 {
        self.lab.counters().full_lookups
    }

    fn hits_and_misses(&self) -> (u64, u64) {
        (self.counters().hits, self.counters().misses)
    }
}

#[test]
fn the_second_packet_of_a_flow_hits() {
    // FC-01, FC-50
    for mut scene in Scene::each() {
        {
            scene.add(Action::Bypass, 1, Some(20));
            assert_eq!(scene.send_to(20, 1), scene.passes());
            let first = scene.counters();
            assert_eq!((first.hits, first.misses, first.inserts, scene.searches()), (0, 1, 1, 1));
            assert_eq!(scene.send_to(20, 1), scene.passes());
            assert_eq!((scene.counters().hits, scene.searches()), (1, 1));
            assert_eq!(scene.counters().misses, first.misses);
            assert_eq!(scene.entries(), 1);
        }
    }
}

#[test]
fn what_is_not_of_the_flow_is_not_in_the_key() {
    // FC-02, FC-43
    for mut scene in Scene::each() {
        scene.add(Action::Bypass, 1, Some(20));
        let flow = scene.between(20).udp(7, 53);
        let options = [1u8; 40];
        let mut same = vec![
            flow.clone(),
            flow.clone().hop_limit(33),
            flow.clone().traffic_class(0xb8),
            flow.clone().identification(999),
            flow.clone().payload_of(100),
        ];
        if scene.family == Family::V4 {
            same.extend((1..=10).map(|words| flow.clone().options(&options[..words * 4])));
        }
        for (place, packet) in same.iter().enumerate() {
            assert_eq!(scene.send(packet), scene.passes());
            assert_eq!((scene.counters().hits, scene.searches()), (place as u64, 1));
        }
        let before = scene.searches();
        let others = [
            scene.between(20).udp(8, 53),
            scene.between(20).udp(7, 54),
            scene.between(20).tcp(7, 53),
            scene.between(21).udp(7, 53),
            scene.between(20).protocol(47).payload_of(8),
        ];
        for (place, packet) in others.iter().enumerate() {
            scene.send(packet);
            assert_eq!(scene.searches(), before + place as u64 + 1, "a miss");
        }
    }
}

#[test]
fn echoes_are_one_flow_and_other_messages_another() {
    // FC-03
    for mut scene in Scene::each() {
        scene.add(Action::Bypass, 1, Some(20));
        let (echo, unreachable) = match scene.family {
            Family::V4 => (8, 3),
            Family::V6 => (128, 1),
        };
        let message =
            |scene: &Scene, kind, id| scene.between(20).icmp(kind, 0, [0, id, 0, 1]).payload_of(48);
        for id in [1, 2] {
            let packet = message(&scene, echo, id);
            assert_eq!(scene.send(&packet), scene.passes());
        }
        assert_eq!(scene.entries(), 1);
        let packet = message(&scene, unreachable, 0);
        scene.send(&packet);
        assert_eq!(scene.entries(), 2);
    }
}

#[test]
fn a_fragment_never_has_the_verdict_of_ports_0() {
    // FC-03, FC-44
    for mut scene in Scene::each() {
        // Port 0 passes, other ports are discarded: a later fragment may be of either.
        let mut zero = scene.policy(Action::Bypass, 2, Some(20));
        let any = PortRange::ANY;
        let ports =
            |local, remote| UpperSelector::Ports { local: vec![local], remote: vec![remote] };
        zero.selector.upper = ports(PortRange { lo: 0, hi: 0 }, any);
        zero.selector.protocol = Some(UDP);
        if scene.direction == Direction::Inbound {
            zero.selector.upper = ports(any, PortRange { lo: 0, hi: 0 });
        }
        let rest = scene.policy(Action::Discard, 1, Some(20));
        scene.change(&[], vec![zero, rest]);
        let whole = scene.between(20).udp(0, 0);
        let later = scene.between(20).protocol(UDP).payload_of(64);
        let fragments = [later.clone().fragment(64, true), later.fragment(128, false)];
        for datagram in 0..3 {
            assert_eq!(scene.send(&whole), scene.passes());
            for fragment in &fragments {
                let verdict = scene.send(&fragment.clone().identification(datagram));
                assert_eq!(verdict, Verdict::Hold(HoldKind::Fragment));
            }
        }
        assert_eq!((scene.entries(), scene.searches()), (1, 1));
    }
}

#[test]
fn entries_show_what_the_full_search_says() {
    // FC-05
    for mut scene in Scene::each() {
        for network in 20..30 {
            scene.add(Action::Bypass, network, Some(network));
        }
        for port in 0..200 {
            scene.send_to(20 + u32::from(port) % 11, port);
        }
        let (entries, rest) = scene.lab.cache().entries(0, usize::MAX);
        assert_eq!(rest, None);
        let of_scene = |entry: &&CacheEntry| scene.domain_of(entry) == scene.question();
        let entries: Vec<_> = entries.iter().filter(of_scene).collect();
        assert!(entries.len() > 180, "{} entries", entries.len());
        for entry in entries {
            let linear = scene.spd.search_linear(scene.domain(), &entry.key.flow);
            assert_eq!(entry.verdict.deciders.first(), linear.slot());
            let exit = match scene.direction {
                Direction::Inbound => Exit::Inside(PortClass(0)),
                Direction::Outbound => Exit::Outside(PortClass(0)),
            };
            let (tables, key) = (scene.lab.snapshot.tables(), &entry.key);
            let judged = tables.judge(key.scope, exit, &key.flow, &mut |_| {});
            assert_eq!(entry.verdict, judged);
            assert_eq!(entry.generation, scene.spd.generation(scene.question()));
        }
    }
}

#[test]
fn time_makes_nothing_old() {
    // FC-07
    for mut scene in Scene::each() {
        scene.add(Action::Bypass, 1, Some(20));
        scene.send_to(20, 1);
        scene.lab.now_ns += 3_600_000_000_000;
        scene.send_to(20, 1);
        assert_eq!((scene.counters().hits, scene.searches()), (1, 1));
    }
}

#[test]
fn a_policy_is_added() {
    // FC-49: VPP's first test; FC-17, FC-21
    for mut scene in Scene::each() {
        let generation = scene.spd.generation(scene.domain()).0;
        scene.add(Action::Bypass, 10, Some(20));
        assert_eq!(scene.spd.generation(scene.domain()).0, generation + 1);
        for _ in 0..5 {
            assert_eq!(scene.send_to(20, 1), scene.passes());
        }
        assert_eq!((scene.entries(), scene.searches()), (1, 1));
    }
}

#[test]
fn a_policy_is_removed() {
    // FC-49, FC-18, FC-19: not one packet passes by what is gone.
    for mut scene in Scene::each() {
        let bypass = scene.add(Action::Bypass, 10, Some(20));
        scene.add(Action::Discard, 5, Some(20));
        for _ in 0..5 {
            assert_eq!(scene.send_to(20, 1), scene.passes());
        }
        assert_eq!(scene.entries(), 1);
        scene.remove(bypass);
        for _ in 0..5 {
            assert_eq!(scene.send_to(20, 1), DISCARDED);
        }
        assert_eq!((scene.entries(), scene.counters().stale), (1, 1));
        assert_eq!(scene.lab.counters().dropped(DropReason::PolicyDiscard), 5);
    }
}

#[test]
fn a_policy_is_added_again() {
    // FC-49, FC-52: the one that comes again has another slot, and nothing of the first counts.
    for mut scene in Scene::each() {
        let first = scene.add(Action::Bypass, 10, Some(20));
        scene.add(Action::Discard, 5, Some(20));
        assert_eq!(scene.send_to(20, 1), scene.passes());
        scene.remove(first);
        assert_eq!(scene.send_to(20, 1), DISCARDED);
        let again = scene.add(Action::Bypass, 10, Some(20));
        assert_ne!(first, again);
        for _ in 0..3 {
            assert_eq!(scene.send_to(20, 1), scene.passes());
        }
        let volumes = match scene.direction {
            Direction::Outbound => &scene.lab.counters().policy_outbound,
            Direction::Inbound => &scene.lab.counters().policy_inbound,
        };
        let packets = |index: PolicyIndex| volumes[index.0 as usize].packets;
        assert_eq!((packets(first), packets(again)), (1, 3));
        assert_eq!(scene.entries(), 1);
    }
}

#[test]
fn what_has_a_removed_policys_slot_judges_afresh() {
    // FC-52: where there is no room all slots are given anew, and another policy has that one.
    for mut scene in Scene::each() {
        let first = scene.add(Action::Bypass, 10, Some(20));
        assert_eq!(scene.send_to(20, 1), scene.passes());
        let others: Vec<Policy> =
            (0..ROOM as u32).map(|_| scene.policy(Action::Discard, 10, None)).collect();
        let (renewed, slots) = scene.spd.renewed(others, ROOM).unwrap();
        assert_eq!(slots, Slots::GivenAnew);
        assert!(renewed.holding().any(|(index, _)| index == first));
        scene.spd = renewed;
        scene.publish();
        assert_eq!(scene.send_to(20, 1), DISCARDED);
    }
}

#[test]
fn several_ports_and_rules_share_one_cache() {
    // FC-49, FC-32: lan protects the flow that lan2 discards.
    for family in FAMILIES {
        let mut scene = Scene::new(Direction::Outbound, family);
        let of = |scene: &mut Scene, action, port: PortId| {
            let policy = scene.policy(action, 10, Some(2));
            Policy { ingress: Some([port.0].as_slice().into()), ..policy }
        };
        let protect = of(&mut scene, Action::Protect(SaSetId(100)), LAN);
        let discard = of(&mut scene, Action::Discard, LAN2);
        let (renewed, _) = scene.spd.renewed(vec![protect, discard], ROOM).unwrap();
        scene.spd = renewed;
        scene.publish();
        let packet = datagram(family, 1, 2).ip();
        let mut verdicts = vec![];
        for turn in 0..1000 {
            let port = if turn % 2 == 0 { LAN } else { LAN2 };
            verdicts.extend(scene.lab.send(port, &packet).verdicts);
        }
        let count = |verdict| verdicts.iter().filter(|it| **it == verdict).count();
        assert_eq!((count(Verdict::Protect(BERLIN)), count(DISCARDED)), (500, 500));
        assert_eq!((scene.searches(), scene.hits_and_misses()), (2, (998, 2)));
    }
}

#[test]
fn stale_entries_are_overwritten() {
    // FC-49, FC-21: the count goes to 0 with the change and rises again over what is stale.
    for mut scene in Scene::each() {
        let policies: Vec<PolicyIndex> =
            (20..25).map(|network| scene.add(Action::Bypass, 10, Some(network))).collect();
        let all = |scene: &mut Scene| {
            for network in 20..25 {
                scene.send_to(network, 1);
            }
        };
        all(&mut scene);
        assert_eq!((scene.entries(), scene.counters().stale), (5, 0));
        scene.remove(policies[0]);
        scene.send_to(21, 1);
        assert_eq!(scene.entries(), 1, "those of before do not count");
        all(&mut scene);
        assert_eq!(scene.entries(), 5);
        assert_eq!(scene.send_to(20, 1), UNMATCHED);
        // All of them lay where they were written again.
        assert_eq!(scene.counters().stale, 5);
    }
}

#[test]
fn in_sixteen_buckets_colliding_flows_are_judged_right() {
    // FC-49, FC-06, FC-08: far more flows than entries, and every verdict that of its flow.
    for direction in [Direction::Outbound, Direction::Inbound] {
        for family in FAMILIES {
            let mut scene = Scene::with(direction, family, SMALL);
            scene.add(Action::Bypass, 10, Some(20));
            scene.add(Action::Discard, 10, Some(21));
            for turn in 0..10 {
                for port in 0..100 {
                    let (passes, network) = (scene.passes(), 20 + port % 3);
                    let expected = match network {
                        20 => passes,
                        21 => DISCARDED,
                        _ => UNMATCHED,
                    };
                    let port = (port * 7 + turn) as u16;
                    assert_eq!(scene.send_to(network, port), expected);
                }
            }
            assert!(scene.counters().evictions > 0);
            assert!(scene.entries() <= SMALL as u64);
        }
    }
}

#[test]
fn all_actions_are_remembered() {
    // FC-39, FC-42
    for family in FAMILIES {
        let mut scene = Scene::new(Direction::Outbound, family);
        scene.add(Action::Protect(SaSetId(100)), 10, Some(2));
        scene.add(Action::Bypass, 10, Some(20));
        scene.add(Action::Discard, 10, Some(21));
        let expected =
            [(2, Verdict::Protect(BERLIN)), (20, BYPASSED), (21, DISCARDED), (22, UNMATCHED)];
        for round in 0..3 {
            for (network, verdict) in expected {
                assert_eq!(scene.send_to(network, 1), verdict);
            }
            assert_eq!((scene.searches(), scene.counters().hits), (4, round * 4));
        }
    }
}

#[test]
fn what_matches_nothing_is_searched_once() {
    // FC-25, FC-42
    for mut scene in Scene::each() {
        scene.add(Action::Bypass, 10, Some(20));
        for _ in 0..1000 {
            assert_eq!(scene.send_to(99, 1), UNMATCHED);
        }
        assert_eq!(scene.searches(), 1);
        assert_eq!(scene.lab.counters().dropped(DropReason::NoMatch), 1000);
    }
}

#[test]
fn a_flood_of_unmatched_flows_evicts_no_live_one() {
    // FC-26
    for direction in [Direction::Outbound, Direction::Inbound] {
        for family in FAMILIES {
            let mut scene = Scene::with(direction, family, 1 << 8);
            scene.add(Action::Bypass, 10, Some(20));
            for port in 0..40 {
                scene.send_to(20, port);
            }
            let (entries, live) = (scene.entries(), scene.counters());
            assert!(entries + live.evictions >= 40);
            for port in 0..2000 {
                assert_eq!(scene.send_to(99, port), UNMATCHED);
            }
            assert_eq!(scene.counters().evictions - live.evictions, negatives_lost(&scene));
            let searches = scene.searches();
            for port in 0..40 {
                scene.send_to(20, port);
            }
            assert_eq!(scene.searches() - searches, live.evictions, "all are still there");
        }
    }
}

/// Entries that say that nothing matched and gave way to others of their kind.
fn negatives_lost(scene: &Scene) -> u64 {
    let (entries, _) = scene.lab.cache().entries(0, usize::MAX);
    let is_negative = |entry: &&CacheEntry| {
        entry.verdict.is_negative() && scene.domain_of(entry) == scene.question()
    };
    scene.counters().negative - entries.iter().filter(is_negative).count() as u64
}

#[test]
fn a_batch_of_one_new_flow_is_searched_once() {
    // FC-46, FC-24
    for mut scene in Scene::each() {
        scene.add(Action::Bypass, 10, Some(20));
        let packets: Vec<Vec<u8>> =
            (0..64).map(|n| scene.between(20).udp(1, 53).payload_of(n).ip()).collect();
        let outcome = scene.lab.send_all(scene.port(), &packets);
        assert!(outcome.verdicts.iter().all(|verdict| *verdict == scene.passes()));
        assert_eq!((scene.searches(), scene.entries()), (1, 1));
        let lengths: Vec<usize> = outcome.sent.iter().map(|sent| sent.packet.len()).collect();
        assert!(lengths.is_sorted() && lengths.len() == 64, "in order: {lengths:?}");
        // Again, with new flows among them.
        let mixed: Vec<Vec<u8>> = (0..64)
            .map(|n| scene.between(20).udp(1 + n as u16 % 5, 53).payload_of(n).ip())
            .collect();
        let outcome = scene.lab.send_all(scene.port(), &mixed);
        let lengths: Vec<usize> = outcome.sent.iter().map(|sent| sent.packet.len()).collect();
        assert!(lengths.is_sorted() && lengths.len() == 64, "in order: {lengths:?}");
        assert_eq!(scene.searches(), 5);
    }
}

#[test]
fn another_sa_of_the_set_changes_no_entry() {
    // FC-40, FC-37: rekeyed, the next packet has the new SPI and nothing is searched.
    let mut scene = Scene::new(Direction::Outbound, Family::V4);
    scene.add(Action::Protect(SaSetId(100)), 10, Some(2));
    scene.send_to(2, 1);
    let mut hub = Hub { spd: Some(scene.spd.clone()), ..Hub::default() };
    hub.agree(BERLIN, |agreement| agreement.spi_from_hub = 0x7777);
    let generation = scene.spd.generation(scene.domain());
    scene.lab.publish(hub);
    let packet = scene.between(2).udp(1, 53).ip();
    let sent = scene.lab.send(LAN, &packet).sent;
    assert_eq!(sent[0].packet[20..24], 0x7777u32.to_be_bytes());
    assert_eq!((scene.searches(), scene.counters().hits, scene.entries()), (1, 1, 1));
    assert_eq!(scene.spd.generation(scene.domain()), generation);
}

#[test]
fn opened_packets_are_remembered_by_the_set_that_opened_them() {
    // I6: the peer whose policy it is gets through, another one never, whoever came first.
    for family in FAMILIES {
        for (first, second) in [(BERLIN, CARLA), (CARLA, BERLIN)] {
            let mut scene = Scene::new(Direction::Inbound, family);
            scene.add(Action::Protect(SaSetId(100)), 10, Some(2));
            let packet = datagram(family, 2, 1).ip();
            for round in 0..3 {
                for set in [first, second] {
                    let verdicts = In::Sealed(set, packet.clone()).arrive(&mut scene.lab).verdicts;
                    let expected = match set == BERLIN {
                        true => CAME_IN,
                        false => Verdict::Drop(DropReason::SelectorMismatch),
                    };
                    assert_eq!(verdicts, [expected]);
                }
                assert_eq!((scene.searches(), scene.counters().hits), (2, 2 * round));
            }
        }
    }
}

#[test]
fn what_the_machine_itself_may_send_is_remembered_for_nobody_else() {
    // I1: of a packet that is forwarded more is asked, so neither answers for the other.
    for family in FAMILIES {
        for host_first in [true, false] {
            let mut scene = Scene::new(Direction::Outbound, family);
            scene.add(Action::Bypass, 10, Some(20));
            let packet = PacketBuilder::new(own(family, 1), host(family, 20)).udp(1, 53).ip();
            for round in 0..4 {
                let by_host = (round % 2 == 0) == host_first;
                let (port, expected) = match by_host {
                    true => (HOST, BYPASSED),
                    false => (LAN, Verdict::Drop(DropReason::BadAddress)),
                };
                assert_eq!(scene.lab.send(port, &packet).verdicts, [expected]);
            }
        }
    }
}

#[test]
fn a_change_of_routes_changes_the_way_and_no_answer() {
    // DESIGN, Cache: the route alone is looked up again.
    for mut scene in Scene::each() {
        scene.add(Action::Bypass, 10, Some(20));
        assert_eq!(scene.send_to(20, 1), scene.passes());
        let searches = scene.searches();
        // The routes change for others.
        scene.routes += 1;
        scene.publish();
        for _ in 0..3 {
            assert_eq!(scene.send_to(20, 1), scene.passes());
        }
        assert_eq!((scene.searches(), scene.counters().routes), (searches, 1));
        // The destination is behind a blackhole now.
        scene.routes += 1;
        let mut hub = Hub { spd: Some(scene.spd.clone()), ..Hub::default() };
        hub.parts.route_generation = RouteGeneration(scene.routes);
        for route in &mut hub.parts.routes {
            route.target = dataplane::RouteTarget::Blackhole;
        }
        scene.lab.publish(hub.keeping_sas_of(&scene.lab.snapshot));
        for _ in 0..2 {
            assert_eq!(scene.send_to(20, 1), Verdict::Drop(DropReason::Blackhole));
        }
        assert_eq!(scene.searches(), searches);
    }
}

#[test]
fn flows_that_were_not_judged_before_are_asked_each_for_itself() {
    // I1: between protected ports until the routes change; what a batch asked before is forgotten.
    for family in FAMILIES {
        let mut scene = Scene::new(Direction::Outbound, family);
        scene.add(Action::Bypass, 10, Some(12));
        scene.add(Action::Bypass, 10, Some(20));
        let udp = |source, network, port| between(family, source, network).udp(port, 53).ip();
        let discard = scene.policy(Action::Discard, 20, Some(12));
        let ports = |ports: &str| UpperSelector::Ports {
            local: vec![ports.parse().unwrap()],
            remote: vec![],
        };
        let selector =
            policy::Selector { protocol: Some(UDP), upper: ports("2"), ..discard.selector };
        scene.change(&[], vec![Policy { selector, ..discard }]);
        let [first, second, third] = [1, 2, 3].map(|port| udp(1, 12, port));
        let other = udp(1, 20, 9);
        let mut is_outside = false;
        let mut turn = |scene: &mut Scene| {
            is_outside = !is_outside;
            scene.routes += 1;
            let mut hub = Hub { spd: Some(scene.spd.clone()), ..Hub::default() };
            hub.parts.route_generation = RouteGeneration(scene.routes);
            let inside = ["10.12.0.0/16", "2001:db8:12::/48"].map(|prefix| {
                packets::lab::route(prefix, dataplane::RouteTarget::Blackhole).prefix
            });
            if is_outside {
                hub.parts.routes.retain(|route| !inside.contains(&route.prefix));
            }
            scene.lab.publish(hub.keeping_sas_of(&scene.lab.snapshot));
        };
        let in_order = [first.clone(), second.clone(), third.clone()];
        turn(&mut scene);
        assert_eq!(scene.send_all(std::slice::from_ref(&other)), [BYPASSED]);
        assert_eq!(scene.send_all(&in_order), [BYPASSED, DISCARDED, BYPASSED]);
        turn(&mut scene);
        scene.send_all(&in_order);
        turn(&mut scene);
        let counted = scene.counters();
        let batch = [other, second.clone(), first, third, second];
        let expected = [BYPASSED, DISCARDED, BYPASSED, BYPASSED, DISCARDED];
        assert_eq!(scene.send_all(&batch), expected);
        let counters = scene.counters();
        assert_eq!(
            (counters.hits - counted.hits, counters.misses - counted.misses),
            (2, 3),
            "what was searched is no hit"
        );
    }
}

#[test]
fn every_row_is_the_same_with_a_cache() {
    for row in all_rows() {
        row.run_in(|hub| hub.laboratory().remembering(64));
    }
}

#[test]
fn every_row_is_the_same_without_the_fast_path() {
    for row in all_rows() {
        row.run_in(|hub| hub.laboratory().with_fast_path(FastPathUse::Never));
    }
}

#[test]
fn a_policy_counts_the_same_with_a_cache() {
    // FC-38
    for mut scene in Scene::each() {
        let with_cache = scene.add(Action::Bypass, 10, Some(20));
        let hub = Hub { spd: Some(scene.spd.clone()), ..Hub::default() };
        let mut plain = hub.laboratory();
        for n in 0..100 {
            let packet = scene.between(20).udp(1 + n % 7, 53).payload_of(n.into());
            scene.send(&packet);
            plain.send(scene.port(), &packet.ip());
        }
        let (ours, theirs) = (scene.lab.counters(), plain.counters());
        assert_eq!(ours.policy_outbound, theirs.policy_outbound);
        assert_eq!(ours.policy_inbound, theirs.policy_inbound);
        let of = |list: &[dataplane::counters::Volume]| list[with_cache.0 as usize].packets;
        assert_eq!(of(&ours.policy_outbound) + of(&ours.policy_inbound), 100);
        assert!(ours.full_lookups < theirs.full_lookups);
    }
}

#[test]
fn without_a_cache_every_packet_is_searched() {
    // FC-12, FC-13: off is not there.
    let mut lab = Laboratory::default();
    let packet = datagram(Family::V4, 1, 2).ip();
    for _ in 0..3 {
        lab.send(LAN, &packet);
    }
    assert_eq!(lab.counters().full_lookups, 3);
    assert_eq!(lab.counters().cache, CacheCounters::default());
}
