//! The planner: exactness, order, choice.

use policy::{
    AddressRange, GroupMode, PolicyId, PortRange, TcpSegments, UpperSelector,
    selector::parse_addresses,
};
use proptest::prelude::*;
use wire::flow::protocol;

use super::*;
use crate::capabilities::{Ability, Order, PortForm, Protocols};
use crate::index::{Index, Seen, winners_one_by_one};

const ENFORCE: GroupMode = GroupMode::Enforce;
const PORTS: [u16; 2] = [0, 1];

fn addresses(text: &str) -> Vec<AddressRange> {
    text.split(' ').flat_map(|one| parse_addresses(one).unwrap()).collect()
}

/// A rule of the groups of what comes by ports 0 and 1, the higher id the higher priority.
fn rule(id: u32, action: Action, from: &str, to: &str) -> Policy {
    Policy {
        id: PolicyId(id),
        name: format!("g/{id}"),
        action,
        priority: id,
        only: None,
        group: Some(GroupSide::In),
        ingress: Some(PORTS.into()),
        selector: Selector {
            local: addresses(from),
            remote: addresses(to),
            protocol: None,
            upper: UpperSelector::Any,
        },
    }
}

fn permit(id: u32, from: &str, to: &str) -> Policy {
    rule(id, Action::Permit(ENFORCE), from, to)
}

fn deny(id: u32, from: &str, to: &str) -> Policy {
    rule(id, Action::Deny(ENFORCE), from, to)
}

fn of(mut policy: Policy, protocol: u8, upper: UpperSelector) -> Policy {
    policy.selector.protocol = Some(protocol);
    policy.selector.upper = upper;
    policy
}

fn to_port(policy: Policy, protocol: u8, ports: &[(u16, u16)]) -> Policy {
    let remote = ports.iter().map(|&(lo, hi)| PortRange { lo, hi }).collect();
    of(policy, protocol, UpperSelector::Ports { local: Vec::new(), remote })
}

fn card(change: impl FnOnce(&mut RuleAbilities)) -> Capabilities {
    let mut rules = RuleAbilities::default();
    change(&mut rules);
    Capabilities::emulated(rules)
}

/// A question to the planner with its usual parts.
struct Asked<'a> {
    rules: &'a [Policy],
    card: Capabilities,
    effect: Effect,
    own: &'a [Selector],
    unused: &'a [u16],
    standing: Standing,
    most_moves: usize,
}

impl<'a> Asked<'a> {
    fn of(rules: &'a [Policy], card: Capabilities) -> Asked<'a> {
        let (effect, standing) = (Effect::Mark, Standing::default());
        Asked { rules, card, effect, own: &[], unused: &[], standing, most_moves: usize::MAX }
    }

    fn plan(&self, packets: impl Fn(u32) -> u64) -> Plan {
        let rules: Vec<(PolicyIndex, &Policy)> =
            self.rules.iter().map(|policy| (PolicyIndex(policy.id.0), policy)).collect();
        plan(&Problem {
            rules: &rules,
            ports: &PORTS,
            unused: self.unused,
            card: &self.card,
            effect: self.effect,
            own: self.own,
            packets: &|slot| packets(slot.0),
            standing: &self.standing,
            most_moves: self.most_moves,
        })
    }
}

fn key(id: u32) -> RuleKey {
    RuleKey { slot: PolicyIndex(id), family: Family::V4 }
}

fn placed(plan: &Plan) -> Vec<u32> {
    plan.place.iter().map(|placing| placing.key.slot.0).collect()
}

fn reason(plan: &Plan, id: u32) -> Option<&Reason> {
    plan.left.iter().find(|(of, _)| *of == key(id)).map(|(_, reason)| reason)
}

/// The standing of a card that has what a plan says.
fn after(plan: &Plan) -> Standing {
    let placings = plan.keep.iter().chain(&plan.place);
    let placed = placings.map(|placing| (placing.key, placing.rule.clone())).collect();
    Standing { placed, ..Standing::default() }
}

// HA-06, HA-13, HA-18
#[test]
fn what_a_card_cannot_say_exactly_is_not_placed_and_the_reason_is_named() {
    let udp = protocol::UDP;
    let icmp = |policy| of(policy, protocol::ICMP, UpperSelector::Any);
    let plain = || permit(1, "10.0.0.0/8", "10.1.0.0/16");
    let new =
        UpperSelector::Tcp { segments: TcpSegments::New, local: Vec::new(), remote: Vec::new() };
    let message = UpperSelector::Icmp(vec![policy::IcmpRange::of_type(8)]);
    let tcp_udp = |rules: &mut RuleAbilities| rules.protocols = Protocols::TcpUdp;
    let single = |rules: &mut RuleAbilities| rules.ports = Ability::Has(PortForm::Single);
    let all = |_: &mut RuleAbilities| {};
    type Change = fn(&mut RuleAbilities);
    let rows: Vec<(Policy, Change, Option<Inexact>)> = vec![
        (plain(), all, None),
        (Policy { group: None, ..plain() }, all, Some(Inexact::Policy)),
        (Policy { group: Some(GroupSide::Out), ..plain() }, all, Some(Inexact::Egress)),
        (Policy { ingress: Some([2].into()), ..plain() }, all, Some(Inexact::OtherPort)),
        (rule(1, Action::Reflect(ENFORCE), "any", "any"), all, Some(Inexact::Reflect)),
        (icmp(plain()), all, None),
        (icmp(plain()), tcp_udp, Some(Inexact::Protocol)),
        (to_port(plain(), protocol::SCTP, &[(1, 2)]), tcp_udp, Some(Inexact::Protocol)),
        (of(plain(), protocol::ICMP, message.clone()), all, None),
        (
            of(plain(), protocol::ICMP, message.clone()),
            |rules| rules.messages = Ability::Lacks("no"),
            Some(Inexact::Messages),
        ),
        (
            of(plain(), protocol::TCP, new.clone()),
            |rules| rules.segments = Ability::Lacks("no"),
            Some(Inexact::Segments),
        ),
        (of(plain(), protocol::TCP, new.clone()), all, None),
        (of(plain(), udp, new), all, None),
        (to_port(plain(), udp, &[(1, 100)]), single, None),
        (to_port(plain(), udp, &[(1, 2000)]), single, Some(Inexact::Ports)),
        (
            to_port(plain(), udp, &[(1, 200)]),
            |rules| rules.ports = Ability::Lacks("no"),
            Some(Inexact::Ports),
        ),
        (of(plain(), udp, message), all, Some(Inexact::MatchesNothing)),
        (to_port(plain(), 47, &[(1, 2)]), all, Some(Inexact::MatchesNothing)),
        (
            permit(1, "0.0.0.1-255.255.255.254", "0.0.0.1-255.255.255.254"),
            all,
            Some(Inexact::TooManyEntries),
        ),
    ];
    for (place, (policy, change, expected)) in rows.into_iter().enumerate() {
        let rules = [policy];
        let plan = Asked::of(&rules, card(change)).plan(|_| 1);
        // A rule for new segments of UDP is no rule: no domain has it.
        let expected = expected.map(Reason::Inexact);
        assert_eq!(reason(&plan, 1), expected.as_ref(), "row {place}");
        let has_rules = rules[0].selector.rules_of_group(Family::V4) > 0;
        assert_eq!(plan.place.len(), usize::from(expected.is_none() && has_rules), "row {place}");
    }
    // Another port of the card asks it, and says that the card is not to.
    let other = [Policy { ingress: Some([2].into()), ..plain() }];
    let asked = Asked { unused: &[2], ..Asked::of(&other, card(all)) };
    let reasons = [asked.plan(|_| 1), Asked { unused: &[3], ..asked }.plan(|_| 1)];
    let reasons = reasons.each_ref().map(|plan| reason(plan, 1).unwrap().name());
    assert_eq!(reasons, ["offload_none", "other_port"]);
    let six = [permit(1, "2001:db8::/32", "any")];
    let without = card(|rules| rules.ipv6 = Ability::Lacks("no"));
    let plan = Asked::of(&six, without).plan(|_| 1);
    assert_eq!(plan.left[0].1, Reason::Inexact(Inexact::Ipv6));
}

#[test]
fn a_card_without_rules_gets_none_and_what_it_had_goes() {
    let rules = [permit(1, "10.0.0.0/8", "any")];
    let before = Asked::of(&rules, card(|_| {})).plan(|_| 1);
    for name in ["v9", "6.4+", "mlx5-as-read"] {
        let mut asked = Asked::of(&rules, Capabilities::named(name).unwrap());
        asked.standing = after(&before);
        let plan = asked.plan(|_| 1);
        assert!(plan.place.is_empty() && plan.keep.is_empty());
        assert_eq!(plan.withdraw, [key(1)]);
        assert_eq!(reason(&plan, 1), Some(&Reason::Inexact(Inexact::NoRules)));
    }
}

#[test]
fn bundles_that_decide_more_packets_for_their_entries_have_earlier_turns() {
    let rules = [
        permit(1, "10.1.0.0/16", "any"),
        permit(2, "10.2.0.0/16", "any"),
        deny(3, "10.2.3.0/24", "any"),
        permit(4, "10.4.0.0/16", "any"),
    ];
    let counted = |id: u32| [0, 10, 70, 0, 40][id as usize];
    let plan = Asked::of(&rules, card(|_| {})).plan(counted);
    let mut order: Vec<(u32, u32)> =
        plan.place.iter().map(|placing| (placing.turn, placing.key.slot.0)).collect();
    order.sort_unstable();
    let order: Vec<u32> = order.into_iter().map(|(_, id)| id).collect();
    assert_eq!(order, [4, 3, 2, 1], "40; 70 with a guard; 10");
    assert_eq!(placed(&plan), [4, 3, 2, 1], "winners first");
}

#[test]
fn a_rule_comes_with_those_that_win_over_it_and_decide_otherwise_or_not_at_all() {
    let rules = [
        permit(1, "10.0.0.0/8", "any"),
        deny(2, "10.1.0.0/16", "any"),
        permit(3, "10.1.1.0/24", "any"),
        // Another network, and a rule that decides the same.
        deny(4, "10.2.0.0/16", "192.0.2.0/24"),
        permit(5, "10.3.0.0/16", "any"),
    ];
    // The last is used alone; of v4 only, because "any" of v6 has no source here.
    let only_first = |id| u64::from(id == 1);
    let plan = Asked::of(&rules, card(|_| {})).plan(only_first);
    assert_eq!(placed(&plan), [4, 3, 2, 1], "winners first");
    let turns: Vec<u32> = plan.place.iter().map(|placing| placing.turn).collect();
    assert_eq!(turns, [0, 1, 2, 3], "one bundle");
    let guards: Vec<RuleKey> = plan.place[3].guards.to_vec();
    assert_eq!(guards.iter().map(|key| key.slot.0).collect::<HashSet<_>>(), [2, 4].into());
    assert_eq!(reason(&plan, 5), Some(&Reason::NoPackets));
    let plan = Asked::of(&rules, card(|rules| rules.entries = 7)).plan(only_first);
    assert_eq!(placed(&plan), [], "two ports each: eight entries, of seven");
    assert_eq!(reason(&plan, 1), Some(&Reason::BundleTooLarge));
    let none = || card(|rules| rules.order = Order::None);
    let plan = Asked::of(&rules, none()).plan(|_| 1);
    assert_eq!(placed(&plan), [5, 4, 3]);
    assert!(matches!(reason(&plan, 1), Some(Reason::Order(by)) if [2, 4].contains(&by.slot.0)));
    assert_eq!(reason(&plan, 2), Some(&Reason::Order(key(3))));
    // A winner that cannot be there keeps all below it out.
    let mut beaten = rules.clone();
    beaten[2].action = Action::Reflect(ENFORCE);
    let plan = Asked::of(&beaten, card(|_| {})).plan(|_| 1);
    assert_eq!(placed(&plan), [5, 4]);
    assert_eq!(reason(&plan, 2), Some(&Reason::Beaten(key(3), Inexact::Reflect)));
    assert!(matches!(reason(&plan, 1), Some(Reason::Beaten(_, Inexact::Reflect))));
    // So does one that the card refused.
    let mut asked = Asked::of(&rules, card(|_| {}));
    let kind = crate::card::RefusalKind::Failed;
    let refusal = Refusal { kind, code: -5, text: "no".into() };
    asked.standing.refused.insert(key(3), refusal.clone());
    let plan = asked.plan(|_| 1);
    assert_eq!(placed(&plan), [5, 4]);
    assert_eq!(reason(&plan, 3), Some(&Reason::Refused(refusal)));
    assert_eq!(reason(&plan, 2), Some(&Reason::BeatenByRefused(key(3))));
}

// HA-14
#[test]
fn of_more_rules_than_the_whole_card_has_room_for_the_most_useful_are_placed() {
    let network = |id: u32| format!("10.{}.{}.0/24", id / 256, id % 256);
    let rules: Vec<Policy> =
        (1..=5000).map(|id| permit(id, &network(id), "192.0.2.0/24")).collect();
    // Every rule is there for two ports, which share the card's entries.
    let packets = |id: u32| u64::from(id).wrapping_mul(7919) % 10_007;
    let plan = Asked::of(&rules, card(|_| {})).plan(packets);
    let mut best: Vec<u32> = (1..=5000).collect();
    best.sort_unstable_by_key(|id| std::cmp::Reverse((packets(*id), *id)));
    let best: HashSet<u32> = best[..1000].iter().copied().collect();
    assert_eq!(placed(&plan).into_iter().collect::<HashSet<_>>(), best);
    assert_eq!(plan.entries, 2000);
    let left = plan.left.iter().filter(|(_, reason)| *reason == Reason::Capacity).count();
    assert_eq!(left, 4000);
    let sum = |ids: &mut dyn Iterator<Item = u32>| ids.map(packets).sum::<u64>();
    let share = Share { tagged: sum(&mut best.into_iter()), of: sum(&mut (1..=5000)) };
    assert_eq!(plan.share, share);
}

#[test]
fn a_rule_in_the_card_keeps_its_place_for_a_burst_and_leaves_it_to_one_that_stays_busy() {
    let rules = [permit(1, "10.0.0.0/8", "any"), permit(2, "11.0.0.0/8", "any")];
    let one = || card(|rules| rules.entries = 2);
    let mut asked = Asked::of(&rules, one());
    asked.standing = after(&asked.plan(|id| if id == 1 { 100 } else { 90 }));
    assert!(asked.standing.placed.contains_key(&key(1)));
    let busier = |id: u32| if id == 1 { 100 } else { 150 };
    let busiest = |id: u32| if id == 1 { 100 } else { 201 };
    let plan = asked.plan(busiest);
    assert_eq!((plan.keep.len(), plan.place.len()), (1, 0), "a burst");
    asked.standing.seasoned.insert(key(2));
    let plan = asked.plan(busier);
    assert_eq!((plan.keep.len(), plan.place.len()), (1, 0), "not twice as busy");
    let plan = asked.plan(busiest);
    assert_eq!((placed(&plan), plan.withdraw.clone()), (vec![2], vec![key(1)]));
    assert_eq!(reason(&plan, 1), Some(&Reason::Capacity));
    asked.standing = Standing { seasoned: [key(1), key(2)].into(), ..after(&plan) };
    let plan = asked.plan(busiest);
    assert_eq!((plan.keep.len(), plan.place.len(), plan.withdraw.len()), (1, 0, 0));
    // Nobody wants the place of an idle one.
    let plan = asked.plan(|_| 0);
    assert_eq!((plan.keep.len(), plan.withdraw.len()), (1, 0));
}

#[test]
fn no_more_rules_go_in_than_a_period_may_move() {
    let rules: Vec<Policy> =
        (1..=9).map(|id| permit(id, &format!("10.{id}.0.0/16"), "any")).collect();
    let mut asked = Asked::of(&rules, card(|_| {}));
    asked.most_moves = 4;
    let plan = asked.plan(u64::from);
    assert_eq!(placed(&plan), [9, 8, 7, 6]);
    assert_eq!(reason(&plan, 5), Some(&Reason::Moves));
    asked.standing = after(&plan);
    let plan = asked.plan(u64::from);
    assert_eq!((placed(&plan), plan.keep.len()), (vec![5, 4, 3, 2], 4));
}

#[test]
fn a_rule_that_holds_no_more_goes_and_one_with_other_words_goes_and_comes() {
    let rules = [permit(1, "10.0.0.0/8", "any"), permit(2, "11.0.0.0/8", "any")];
    let mut asked = Asked::of(&rules, card(|_| {}));
    asked.standing = after(&asked.plan(|_| 1));
    let changed = [Policy { ingress: Some([1].into()), ..rules[0].clone() }];
    let plan = Asked { rules: &changed, ..asked }.plan(|_| 1);
    assert_eq!((placed(&plan), plan.withdraw.clone()), (vec![1], vec![key(2), key(1)]));
    assert_eq!(*plan.place[0].rule.ports, [1]);
}

// The closure includes packets that the gateway sends and opens itself.
#[test]
fn a_card_that_drops_leaves_esp_and_fragments_and_connections_alone() {
    let deny_all = [deny(1, "192.0.2.0/24", "any"), permit(2, "10.0.0.0/8", "any")];
    let esp = of(permit(9, "192.0.2.7", "198.51.100.1"), protocol::ESP, UpperSelector::Any);
    let own = [esp.selector];
    let drop = |own: &[Selector], change: fn(&mut RuleAbilities)| {
        let mut asked = Asked::of(&deny_all, card(change));
        (asked.effect, asked.own) = (Effect::Drop, own);
        let plan = asked.plan(|_| 1);
        (placed(&plan), reason(&plan, 1).cloned())
    };
    let all = |_: &mut RuleAbilities| {};
    let lacks = |inexact| Some(Reason::Inexact(inexact));
    assert_eq!(drop(&[], all), (vec![2, 1], None));
    assert_eq!(drop(&own, all), (vec![2], lacks(Inexact::OwnTraffic)));
    let no_fragments = |rules: &mut RuleAbilities| rules.fragments = Ability::Lacks("no");
    assert_eq!(drop(&[], no_fragments), (vec![2], lacks(Inexact::Fragments)));
    let no_drop = |rules: &mut RuleAbilities| rules.drop = Ability::Lacks("no");
    assert_eq!(drop(&[], no_drop), (vec![2], lacks(Inexact::NoDrop)));
    let tracked = [deny_all[0].clone(), rule(2, Action::Reflect(ENFORCE), "10.0.0.0/8", "any")];
    let asked = Asked { effect: Effect::Drop, ..Asked::of(&tracked, card(all)) };
    let plan = asked.plan(|_| 1);
    assert_eq!(reason(&plan, 1).cloned(), lacks(Inexact::Connections));
    // A mark does no harm there: the walk reads none of such packets.
    let asked = Asked { own: &own, ..Asked::of(&deny_all, card(all)) };
    assert_eq!(placed(&asked.plan(|_| 1)), [2, 1]);
}

/// Rules near each other.
fn some_rules() -> impl Strategy<Value = Vec<Policy>> {
    let range = || (0..24u32, 0..12u32).prop_map(|(lo, more)| (lo, lo + more));
    let ports = || {
        let one = (0..8u16, 0..4u16).prop_map(|(lo, more)| (lo, lo + more));
        proptest::collection::vec(one, 0..3)
    };
    let sources = proptest::collection::vec(range(), 1..4);
    let drawn = (0..5u8, sources, range(), 0..5u8, ports(), 1..8u16, 0..4u32);
    let line = drawn.prop_map(|(action, sources, to, protocol, ports, ingress, priority)| {
        let action = match action {
            0 | 1 => Action::Permit(ENFORCE),
            2 | 3 => Action::Deny(ENFORCE),
            _ => Action::Reflect(ENFORCE),
        };
        let v4 = |(lo, hi): (u32, u32)| AddressRange {
            family: Family::V4,
            lo: lo.into(),
            hi: hi.into(),
        };
        let mut policy = permit(0, "10.0.0.0/8", "any");
        policy.action = action;
        policy.priority = priority;
        policy.ingress = Some((0..3).filter(|port| ingress >> port & 1 == 1).collect());
        policy.selector.local = sources.into_iter().map(v4).collect();
        policy.selector.remote = vec![v4(to)];
        match protocol {
            0 => policy,
            1 => of(policy, protocol::ICMP, UpperSelector::Any),
            2 => to_port(policy, protocol::TCP, &ports),
            _ => {
                let mut policy = to_port(policy, protocol::UDP, &ports);
                policy.selector.protocol = None;
                policy
            }
        }
    });
    proptest::collection::vec(line, 1..60).prop_map(|mut rules| {
        (0..).zip(&mut rules).for_each(|(id, rule)| rule.id = PolicyId(id));
        rules
    })
}

proptest! {
    #[test]
    fn the_index_finds_the_winners_that_looking_at_each_rule_finds(rules in some_rules()) {
        let listed: Vec<(PolicyIndex, &Policy)> =
            rules.iter().map(|policy| (PolicyIndex(policy.id.0), policy)).collect();
        let card = card(|_| {});
        let standing = Standing::default();
        let problem = Problem {
            rules: &listed,
            ports: &PORTS,
            unused: &[],
            card: &card,
            effect: Effect::Mark,
            own: &[],
            packets: &|_| 1,
            standing: &standing,
            most_moves: usize::MAX,
        };
        let units = units(&problem, card.rules.get().unwrap(), &mut Vec::new());
        let index = Index::new((0..).zip(&units));
        let mut seen = Seen::of(units.len());
        for unit in &units {
            let mut found = Vec::new();
            index.winners(&units, unit, (&mut seen, &mut 0), |winner| {
                found.push(winner);
                std::ops::ControlFlow::<()>::Continue(())
            });
            found.sort_unstable();
            prop_assert_eq!(found, winners_one_by_one(&units, unit));
        }
    }

    #[test]
    fn what_is_planned_is_safe_fits_and_stays(
        rules in some_rules(),
        packets in proptest::collection::vec(prop_oneof![Just(0), 0..500u64], 1..60),
        entries in 0..60u32,
        order in prop::sample::select(vec![Order::None, Order::Priority]),
    ) {
        let card = card(|rules| (rules.entries, rules.order) = (entries, order));
        let counted = |id: u32| packets[id as usize % packets.len()];
        let mut asked = Asked::of(&rules, card);
        let mut before: Option<Plan> = None;
        for round in 0..4 {
            let plan = asked.plan(counted);
            let there: HashSet<u32> =
                plan.keep.iter().chain(&plan.place).map(|placing| placing.key.slot.0).collect();
            let taken: usize =
                plan.keep.iter().chain(&plan.place).map(|placing| placing.rule.entries()).sum();
            prop_assert!(taken as u64 == plan.entries && taken <= entries as usize);
            prop_assert_eq!(there.len() + plan.left.len(), rules.len());
            for loser in rules.iter().filter(|rule| there.contains(&rule.id.0)) {
                let wins = |winner: &&Policy| {
                    winner.rank() > loser.rank()
                        && Decision::of(winner.action) != Decision::of(loser.action)
                        && !common_ports(winner, &common_ports(loser, &PORTS)).is_empty()
                        && winner.selector.overlaps(&loser.selector)
                };
                for winner in rules.iter().filter(wins) {
                    prop_assert!(order == Order::Priority && there.contains(&winner.id.0));
                }
            }
            let ranks: Vec<u64> = plan.place.iter().map(|placing| placing.rule.rank).collect();
            prop_assert!(ranks.windows(2).all(|pair| pair[0] > pair[1]), "winners first");
            let turns: HashMap<RuleKey, u32> = plan
                .keep
                .iter()
                .chain(&plan.place)
                .map(|placing| (placing.key, placing.turn))
                .collect();
            for placing in plan.keep.iter().chain(&plan.place) {
                prop_assert!(placing.guards.iter().all(|guard| turns[guard] < placing.turn));
            }
            let turns: HashSet<u32> = turns.into_values().collect();
            prop_assert_eq!(turns.len(), there.len());
            if let Some(before) = &before && round == 3 {
                prop_assert_eq!(before, &plan, "the same packets move nothing");
                prop_assert!(plan.place.is_empty() && plan.withdraw.is_empty());
            }
            asked.standing = after(&plan);
            before = Some(plan);
        }
    }
}
