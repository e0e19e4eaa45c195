//! Rows of the acceptance list that a card and the rules behind it can show without a daemon.

mod common;

use common::{CARD_PORTS, Card, World, rule};
use emulated_card::Faults;
use offload::{Capabilities, Order, Protocols, RuleAbilities, RuleKey, State};
use policy::{
    Action, AddressRange, GroupMode, Policy, PolicyIndex, PortRange, Selector, UpperSelector,
};
use wire::build::PacketBuilder;
use wire::{Address, Family};

const PERMIT: Action = Action::Permit(GroupMode::Enforce);
const DENY: Action = Action::Deny(GroupMode::Enforce);

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn world(rules: Vec<Policy>, change: impl FnOnce(&mut RuleAbilities)) -> World {
    let mut abilities = RuleAbilities { programming_ms: 0, ..RuleAbilities::default() };
    change(&mut abilities);
    let capabilities = Capabilities::emulated(abilities);
    World::of(Card { capabilities, faults: Faults::default() }, rules, 1)
}

fn v4(text: &str) -> Vec<AddressRange> {
    vec![text.parse().unwrap()]
}

fn selector(from: &str, to: &str) -> Selector {
    let (local, remote) = (v4(from), v4(to));
    Selector { local, remote, protocol: None, upper: UpperSelector::Any }
}

fn udp(from: &str, to: &str, ports: (u16, u16)) -> Selector {
    let upper = UpperSelector::Ports {
        local: Vec::new(),
        remote: vec![PortRange { lo: ports.0, hi: ports.1 }],
    };
    Selector { protocol: Some(17), upper, ..selector(from, to) }
}

/// A packet between two addresses; the port is that of UDP.
fn packet(from: u32, to: u32, port: u16) -> Vec<u8> {
    PacketBuilder::new(Address::v4(from), Address::v4(to)).udp(1, port).ip()
}

fn key(id: u32) -> RuleKey {
    RuleKey { slot: PolicyIndex(id), family: Family::V4 }
}

/// Rules that permit and deny, one over the other: prefixes of each length in few networks, with
/// ports or without.
fn overlapping(random: &mut Random, count: u32) -> Vec<Policy> {
    let prefix = |random: &mut Random| {
        let address = Address::v4(0x0a00_0000 | random.below(1 << 10) as u32);
        vec![AddressRange::network(address, 22 + random.below(11) as u8)]
    };
    let one = |id: u32, random: &mut Random| {
        let action = if random.below(2) == 0 { PERMIT } else { DENY };
        let (local, remote) = (prefix(random), prefix(random));
        let lo = random.below(8) as u16;
        let upper = match random.below(3) {
            0 => UpperSelector::Any,
            _ => {
                let hi = lo + random.below(4) as u16;
                UpperSelector::Ports { local: Vec::new(), remote: vec![PortRange { lo, hi }] }
            }
        };
        let protocol = Some(17);
        rule(id, id, action, Selector { local, remote, protocol, upper })
    };
    (10..10 + count).map(|id| one(id, random)).collect()
}

// HA-12, HA-20
#[test]
fn a_million_packets_are_judged_as_by_the_rules_alone_on_cards_with_and_without_an_order() {
    let mut random = Random(42);
    for order in Order::ALL {
        for round in 0..10 {
            let rules = overlapping(&mut random, 40);
            let mut world = world(rules, |rules| (rules.order, rules.entries) = (order, 60));
            world.plan(|slot| u64::from(slot % 7) + 1);
            world.settle();
            let (mut judged, mut tagged) = (0, 0);
            for _ in 0..50_000 {
                let mut address = || 0x0a00_0000 | random.below(1 << 10) as u32;
                let (from, to) = (address(), address());
                let ip = packet(from, to, random.below(12) as u16);
                let port = random.below(3) as u16;
                world.receive(port, &ip).unwrap();
                (judged, tagged) = (world.judged, world.tagged);
            }
            assert_eq!(judged, 50_000);
            assert!(tagged > 200, "{order:?}, round {round}: {tagged} by their marks");
        }
    }
}

// HA-14
#[test]
fn of_5000_rules_the_2000_that_are_used_most_are_in_the_card_and_verdicts_are_equal() {
    let network = |id: u32| format!("10.{}.{}.0/24", id / 256, id % 256);
    let one = |id: u32| {
        let action = if id.is_multiple_of(3) { DENY } else { PERMIT };
        let mut policy = rule(id, id, action, selector(&network(id), "192.0.2.0/24"));
        // Half of them for each port of the card: they share its entries.
        policy.ingress = Some([(id % 2) as u16].into());
        policy
    };
    let rules: Vec<Policy> = (10..5010).map(one).collect();
    let mut world = world(rules, |_| {});
    let packets = |id: u32| u64::from(id.wrapping_mul(2_654_435_761) >> 8);
    let plan = world.plan(packets);
    assert_eq!((plan.place.len(), plan.entries), (2000, 2000));
    let least = plan.place.iter().map(|placing| packets(placing.key.slot.0)).min().unwrap();
    let left = plan.left.iter().map(|(key, _)| key.slot.0).filter(|id| *id >= 10);
    let (most, left) = left.fold((0, 0), |(most, n), id| (packets(id).max(most), n + 1));
    assert!(least >= most && left == 3000, "{least} {most} {left}");
    world.settle();
    assert_eq!(world.card.entries(), 2000);
    let mut tags = 0;
    for id in 10..5010u32 {
        let from = 0x0a00_0007 | (id / 256) << 16 | (id % 256) << 8;
        for port in CARD_PORTS {
            world.receive(port, &packet(from, 0xc000_0201, 9)).unwrap();
        }
        tags = world.tagged;
    }
    assert_eq!(tags, 2000);
}

// HA-15
#[test]
fn a_tenth_of_the_rules_fails_to_be_programmed_and_verdicts_are_equal() {
    let mut random = Random(7);
    let rules = overlapping(&mut random, 200);
    let mut world = world(rules, |_| {});
    world.card.set_faults(Faults { refuse: 100, ..Faults::default() });
    world.plan(|_| 1);
    world.settle();
    let refused = |world: &World| {
        let keys = (10..210).map(key).filter(|key| world.ledger.state(*key) == State::Refused);
        keys.collect::<Vec<_>>()
    };
    let failed = refused(&world);
    assert!(failed.len() > 3, "{failed:?}");
    for key in &failed {
        let text = world.ledger.refusal(*key).unwrap().to_string();
        assert_eq!(text, "failed (code -5): emulated: programming failed");
    }
    for _ in 0..20_000 {
        let mut address = || 0x0a00_0000 | random.below(1 << 10) as u32;
        let (from, to) = (address(), address());
        world.receive(0, &packet(from, to, random.below(12) as u16)).unwrap();
    }
    assert!(world.tagged > 200, "{}", world.tagged);
}

// HA-18
#[test]
fn a_rule_for_icmp_never_lets_tcp_of_the_pair_pass() {
    for protocols in [Protocols::TcpUdp, Protocols::All] {
        let icmp = Selector { protocol: Some(1), ..selector("10.0.0.1", "10.0.0.2") };
        let rules = vec![rule(10, 10, PERMIT, icmp)];
        let mut world = world(rules, |rules| rules.protocols = protocols);
        world.plan(|_| 1);
        world.settle();
        let there = world.ledger.state(key(10)) == State::Live;
        assert_eq!(there, protocols == Protocols::All);
        let between = || PacketBuilder::v4("10.0.0.1", "10.0.0.2");
        let before = world.tagged;
        world.receive(0, &between().icmp(8, 0, [0; 4]).ip()).unwrap();
        assert_eq!(world.tagged - before, u64::from(there), "by the rule");
        // Every other protocol of the pair is denied by the last rule, tagged or not.
        world.receive(0, &between().tcp(1, 2).ip()).unwrap();
        world.receive(0, &between().udp(1, 2).ip()).unwrap();
        world.receive(0, &between().protocol(47).ip()).unwrap();
    }
}

// XO-14: of rules, on the emulated card
#[test]
fn one_selector_and_priority_on_two_ports_is_two_rules_each_of_its_own_port() {
    for order in [Order::Priority, Order::None] {
        let on = |id: u32, action, port: u16| Policy {
            ingress: Some([port].into()),
            ..rule(id, 10, action, selector("10.0.0.0/8", "10.0.0.2"))
        };
        let rules = vec![on(10, PERMIT, CARD_PORTS[0]), on(11, DENY, CARD_PORTS[1])];
        let mut world = world(rules, |rules| rules.order = order);
        world.plan(|_| 1);
        world.settle();
        for (port, of) in CARD_PORTS.into_iter().zip([10, 11]) {
            assert_eq!(world.ledger.state(key(of)), State::Live, "{order:?}");
            assert!(world.ledger.counts(key(of)), "{order:?}");
            let read = |world: &World| [10, 11].map(|of| world.ledger.reading(key(of)).packets);
            let before = (world.tagged, read(&world));
            world.receive(port, &packet(0x0a00_0001, 0x0a00_0002, 7)).unwrap();
            world.round();
            let mut expected = before.1;
            expected[usize::from(of == 11)] += 1;
            assert_eq!((world.tagged, read(&world)), (before.0 + 1, expected), "{order:?} {port}");
        }
    }
}

// HA-19
#[test]
fn any_to_any_is_every_address_to_every_address() {
    let mut world = world(vec![rule(10, 10, PERMIT, selector("0.0.0.0/0", "0.0.0.0/0"))], |_| {});
    world.plan(|_| 1);
    world.settle();
    assert!(world.ledger.counts(key(10)));
    let ends = [0x0000_0001, 0xffff_fffe, 0x0101_0100, 0x0101_0101, 0, u32::MAX];
    for from in ends {
        for to in ends {
            let before = world.tagged;
            world.receive(0, &packet(from, to, 7)).unwrap();
            assert_eq!(world.tagged, before + 1, "{from:x} {to:x}");
        }
    }
}

// HA-26
#[test]
fn the_card_matches_each_prefix_and_range_of_ports_as_the_rules_do() {
    let mut random = Random(26);
    for family in [Family::V4, Family::V6] {
        let bits = family.address_bits();
        for length in 0..=bits {
            let value = u128::from(random.next()) << 64 | u128::from(random.next());
            let address = Address { family, value: value & family.highest_address() };
            let network = AddressRange::network(address, length);
            let (a, b) = (random.next() as u16, random.next() as u16);
            let ports = PortRange { lo: a.min(b), hi: a.max(b) };
            let upper = UpperSelector::Ports { local: Vec::new(), remote: vec![ports] };
            let remote = vec![AddressRange::any(family)];
            let of = Selector { local: vec![network], remote, protocol: Some(17), upper };
            let mut world = world(vec![rule(10, 10, PERMIT, of)], |_| {});
            world.plan(|slot| u64::from(slot == 10));
            world.settle();
            let highest = family.highest_address();
            let edges = [
                network.lo,
                network.hi,
                network.lo.wrapping_sub(1) & highest,
                network.hi.wrapping_add(1) & highest,
            ];
            let [lo, hi] = [ports.lo, ports.hi];
            let swapped = lo.swap_bytes();
            for value in edges {
                for port in [lo, hi, lo.wrapping_sub(1), hi.wrapping_add(1), swapped] {
                    let from = Address { family, value };
                    let to = Address { family, value: 1 };
                    let inside = network.contains(from) && (lo..=hi).contains(&port);
                    let before = world.tagged;
                    let ip = PacketBuilder::new(from, to).udp(9, port).ip();
                    world.receive(0, &ip).unwrap();
                    assert_eq!(world.tagged - before, u64::from(inside), "{from} {network} {port}");
                }
            }
        }
    }
}

// HA-07
#[test]
fn while_a_slow_card_is_programmed_every_packet_is_judged_and_then_tags_appear() {
    let rules = vec![
        rule(10, 10, PERMIT, selector("10.0.0.0/8", "10.0.0.0/8")),
        rule(11, 11, DENY, udp("10.0.0.0/8", "10.0.0.0/8", (53, 53))),
    ];
    let mut world = world(rules, |rules| rules.programming_ms = 500);
    world.plan(|_| 1);
    let mut first_tag = None;
    for ms in 0..4000u64 {
        if ms % 10 == 0 {
            world.ledger.orders().give(&mut world.card);
            world.ledger.look(&world.card);
        }
        world.advance(1);
        world.all_events();
        world.receive(0, &packet(0x0a00_0001, 0x0a00_0002, 50 + (ms % 7) as u16)).unwrap();
        if world.tagged > 0 {
            first_tag.get_or_insert(ms);
        }
    }
    assert_eq!(world.judged, 4000, "none is lost");
    assert!(first_tag.is_some_and(|ms| ms >= 500), "{first_tag:?}");
    assert!(world.tagged > 1000, "{}", world.tagged);
}
