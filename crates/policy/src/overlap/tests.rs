//! Takeovers against the linear search of the databases before and after a change, on one packet
//! of every cell that the bounds of all policies cut the space of packets into.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use wire::flow::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};
use wire::{Family, Flow, Upper};

use super::*;
use crate::{
    AddressRange, Decider, IcmpRange, PolicyId, PortRange, SaSetId, Selector, TcpSegments,
    UpperSelector,
};

/// Ports that packets come by; policies name some of the first three.
const PORTS: u16 = 4;
const EVERY_PORT: [u16; PORTS as usize] = [0, 1, 2, 3];
/// Bounds of addresses: few, so that ranges touch, nest and cross.
const BOUNDS: [u128; 5] = [0, 9, 10, 20, 21];
const GRE: u8 = 47;

fn range(family: Family) -> impl Strategy<Value = AddressRange> {
    let bound = || proptest::sample::select(&BOUNDS[..]);
    prop_oneof![
        1 => Just(AddressRange::any(family)),
        4 => (bound(), bound()).prop_map(move |(one, other)| AddressRange {
            family,
            lo: one.min(other),
            hi: one.max(other),
        }),
    ]
}

fn ranges() -> impl Strategy<Value = Vec<AddressRange>> {
    prop_oneof![
        6 => proptest::collection::vec(range(Family::V4), 1..3),
        1 => (range(Family::V4), range(Family::V6)).prop_map(|(four, six)| vec![four, six]),
    ]
}

fn upper() -> impl Strategy<Value = (Option<u8>, UpperSelector)> {
    let port = || (79u16..82, 0u16..2).prop_map(|(lo, more)| PortRange { lo, hi: lo + more });
    let ports = || proptest::collection::vec(port(), 0..2);
    let protocol = || proptest::sample::select(&[None, Some(TCP), Some(UDP)][..]);
    let other = proptest::sample::select(&[Some(TCP), Some(ICMP), Some(ICMPV6), Some(GRE)][..]);
    prop_oneof![
        3 => Just((None, UpperSelector::Any)),
        2 => other.prop_map(|protocol| (protocol, UpperSelector::Any)),
        2 => (protocol(), ports(), ports())
            .prop_map(|(protocol, local, remote)| {
                (protocol, UpperSelector::Ports { local, remote })
            }),
        1 => (proptest::sample::select(&TcpSegments::ALL[..]), protocol(), ports(), ports())
            .prop_map(|(segments, protocol, local, remote)| {
                (protocol, UpperSelector::Tcp { segments, local, remote })
            }),
        1 => (0u16..3, 0u16..600).prop_map(|(lo, more)| {
            let messages = IcmpRange { lo: lo << 8, hi: (lo << 8) + more };
            (Some(ICMP), UpperSelector::Icmp(vec![messages]))
        }),
    ]
}

/// A policy without a number.
fn policy() -> impl Strategy<Value = Policy> {
    let only = prop_oneof![
        4 => Just(None),
        1 => proptest::sample::select(&DIRECTIONS[..]).prop_map(Some),
    ];
    let ingress = prop_oneof![
        5 => Just(None),
        1 => proptest::sample::subsequence(vec![0u16, 1, 2], 1..3).prop_map(Some),
    ];
    let action = prop_oneof![
        2 => Just(Action::Protect(SaSetId(1))),
        2 => Just(Action::Protect(SaSetId(2))),
        2 => Just(Action::Bypass),
        1 => Just(Action::Discard),
    ];
    (ranges(), ranges(), upper(), 0u32..3, only, ingress, action).prop_map(
        |(local, remote, (protocol, upper), priority, only, ingress, action)| Policy {
            id: PolicyId(0),
            name: String::new(),
            action,
            priority,
            only,
            group: None,
            ingress: ingress.map(Into::into),
            selector: Selector { local, remote, protocol, upper },
        },
    )
}

/// A database that has changed before, and a change.
#[derive(Debug)]
struct Case {
    before: Spd,
    removed: Vec<PolicyIndex>,
    added: Vec<Policy>,
}

/// Numbers choose among what there is.
fn case() -> impl Strategy<Value = Case> {
    let some = |most| proptest::collection::vec(policy(), 0..most);
    let chosen = || proptest::collection::vec(0usize..100, 0..3);
    (some(5), chosen(), some(3), chosen(), some(3)).prop_map(
        |(base, first_gone, front, removed, added)| {
            let mut id = 0;
            let mut numbered = |policies: Vec<Policy>| -> Vec<Policy> {
                let number = |policy| {
                    id += 1;
                    Policy { id: PolicyId(id), name: format!("p{id}"), ..policy }
                };
                policies.into_iter().map(number).collect()
            };
            let (base, front) = (numbered(base), numbered(front));
            let spd = Spd::with_room(base, 20).unwrap();
            let before = spd.changed(&slots(&spd, &first_gone), front.clone());
            let before = match before {
                Ok(before) => before,
                Err(_) => {
                    // A port that none named before: the whole anew.
                    let stays = spd.holding().map(|(_, policy)| policy.clone());
                    Spd::with_room(stays.chain(front).collect(), 20).unwrap()
                }
            };
            let removed = slots(&before, &removed);
            Case { removed, added: numbered(added), before }
        },
    )
}

fn slots(spd: &Spd, chosen: &[usize]) -> Vec<PolicyIndex> {
    let held: Vec<PolicyIndex> = spd.holding().map(|(slot, _)| slot).collect();
    let chosen = chosen.iter().filter(|_| !held.is_empty());
    let slots: BTreeSet<PolicyIndex> = chosen.map(|number| held[number % held.len()]).collect();
    slots.into_iter().collect()
}

impl Case {
    fn after(&self) -> Spd {
        let stays = self.before.holding().filter(|(slot, _)| !self.removed.contains(slot));
        let stays = stays.map(|(_, policy)| policy.clone());
        Spd::new(stays.chain(self.added.iter().cloned()).collect()).unwrap()
    }

    fn planned(&self) -> Planned<'_> {
        let Case { before, removed, added } = self;
        Planned { before, removed, added, ports: &EVERY_PORT }
    }

    fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.before.counted().map(|(_, policy)| policy).chain(&self.added)
    }

    /// The lowest address of every cell: packets between two neighbours fare alike.
    fn addresses(&self, family: Family) -> Vec<u128> {
        let mut bounds = BTreeSet::from([0]);
        for policy in self.policies() {
            let Selector { local, remote, .. } = &policy.selector;
            for range in local.iter().chain(remote).filter(|range| range.family == family) {
                bounds.insert(range.lo);
                bounds.extend((range.hi < family.highest_address()).then(|| range.hi + 1));
            }
        }
        bounds.into_iter().collect()
    }

    /// One upper-layer header of every cell, and whether it opens a connection.
    fn uppers(&self, family: Family) -> Vec<(u8, Upper, bool)> {
        let (mut ports, mut messages) = (BTreeSet::from([0]), BTreeSet::from([0]));
        let cut = |of: &mut BTreeSet<u16>, lo: u16, hi: u16| {
            of.insert(lo);
            of.extend(hi.checked_add(1));
        };
        for policy in self.policies() {
            match &policy.selector.upper {
                UpperSelector::Any => {}
                UpperSelector::Ports { local, remote }
                | UpperSelector::Tcp { local, remote, .. } => {
                    local.iter().chain(remote).for_each(|r| cut(&mut ports, r.lo, r.hi));
                }
                UpperSelector::Icmp(list) => {
                    list.iter().for_each(|r| cut(&mut messages, r.lo, r.hi));
                }
            }
        }
        let mut uppers = vec![(GRE, Upper::None), (99, Upper::None)];
        // TCP and UDP by their names; SCTP stands for all others that have ports.
        for protocol in [TCP, UDP, SCTP] {
            uppers.push((protocol, Upper::Fragment));
            for &source in &ports {
                let with = |&destination| (protocol, Upper::Ports { source, destination });
                uppers.extend(ports.iter().map(with));
            }
        }
        let (icmp, other) = if family == Family::V4 { (ICMP, ICMPV6) } else { (ICMPV6, ICMP) };
        uppers.extend([(icmp, Upper::Fragment), (other, Upper::None)]);
        uppers.extend(messages.iter().map(|message| {
            let [kind, code] = message.to_be_bytes();
            (icmp, Upper::Icmp { kind, code })
        }));
        let opens = |(protocol, upper)| (protocol, upper, true);
        let is_tcp =
            |(protocol, upper): &(u8, Upper)| *protocol == TCP && *upper != Upper::Fragment;
        let opening: Vec<_> = uppers.iter().copied().filter(is_tcp).map(opens).collect();
        let others = uppers.into_iter().map(|(protocol, upper)| (protocol, upper, false));
        others.chain(opening).collect()
    }
}

/// The policy that decides, by number.
fn decider(spd: &Spd, example: &Example) -> Option<(PolicyId, Action)> {
    // Port 3 is one that no policy names.
    let class = spd.class(example.ingress.unwrap_or(PORTS - 1));
    let domain = crate::DomainId::new(class, example.direction.book(), example.flow.family);
    match spd.search_linear(domain, &example.flow) {
        Decider::Policy(slot) => {
            let policy = spd.policy(slot);
            Some((policy.id, policy.action))
        }
        Decider::FragmentPorts(_) | Decider::None => None,
    }
}

/// Pairs between which some packet moves, and how many cells.
fn moved(case: &Case, after: &Spd) -> BTreeMap<(PolicyId, PolicyId), usize> {
    let mut moved = BTreeMap::new();
    for family in FAMILIES {
        let (addresses, uppers) = (case.addresses(family), case.uppers(family));
        for direction in DIRECTIONS {
            for ingress in 0..PORTS {
                for (&source, &destination, &(protocol, upper, opens)) in
                    addresses.iter().flat_map(|s| {
                        let uppers = &uppers;
                        addresses.iter().flat_map(move |d| uppers.iter().map(move |u| (s, d, u)))
                    })
                {
                    let flow = Flow { family, source, destination, protocol, upper, opens };
                    let packet = Example { direction, ingress: Some(ingress), flow };
                    let Some((from, Action::Protect(set))) = decider(&case.before, &packet) else {
                        continue;
                    };
                    match decider(after, &packet) {
                        Some((by, Action::Bypass)) => *moved.entry((from, by)).or_default() += 1,
                        Some((by, Action::Protect(other))) if other != set => {
                            *moved.entry((from, by)).or_default() += 1;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    moved
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn takeovers_are_exactly_the_pairs_that_packets_move_between(case in case()) {
        let after = case.after();
        let told = takeovers(case.planned(), usize::MAX);
        prop_assert_eq!(told.rest, Rest::Nothing);
        let number = |by: Taker| match by {
            Taker::Standing(slot) => case.before.policy(slot).id,
            Taker::Added(place) => case.added[place].id,
        };
        let pairs: BTreeSet<_> = told.found.iter().map(|takeover| {
            (case.before.policy(takeover.from).id, number(takeover.by))
        }).collect();
        prop_assert_eq!(pairs.len(), told.found.len(), "a pair is told of twice");
        for takeover in &told.found {
            let from = decider(&case.before, &takeover.example).unwrap();
            prop_assert_eq!(from.0, case.before.policy(takeover.from).id);
            let by = decider(&after, &takeover.example).unwrap();
            prop_assert_eq!(by.0, number(takeover.by));
            prop_assert!(matches!(from.1, Action::Protect(_)) && by.1 != from.1);
            prop_assert!(by.1 != Action::Discard);
        }
        let expected: BTreeSet<_> = moved(&case, &after).into_keys().collect();
        prop_assert_eq!(pairs, expected);
    }

    #[test]
    fn a_search_that_runs_out_of_steps_never_says_that_nothing_is_taken(
        case in case(),
        steps in 0u64..400,
    ) {
        let whole = takeovers(case.planned(), usize::MAX);
        let told = takeovers_within(case.planned(), usize::MAX, steps);
        prop_assert!(told == whole || told.rest == Rest::Unknown);
        let one = takeovers(case.planned(), 1);
        prop_assert_eq!(one.is_nothing(), whole.is_nothing());
        let rest = if whole.found.len() > 1 { Rest::Limit } else { Rest::Nothing };
        prop_assert_eq!(one.rest, rest);
    }
}

/// A packet of every cell.
fn packets(case: &Case) -> Vec<Example> {
    let mut packets = Vec::new();
    for family in FAMILIES {
        let (addresses, uppers) = (case.addresses(family), case.uppers(family));
        for direction in DIRECTIONS {
            for ingress in (0..PORTS).map(Some) {
                for &source in &addresses {
                    for &destination in &addresses {
                        packets.extend(uppers.iter().map(|&(protocol, upper, opens)| {
                            let flow = Flow { family, source, destination, protocol, upper, opens };
                            Example { direction, ingress, flow }
                        }));
                    }
                }
            }
        }
    }
    packets
}

/// Places of the policies that match a packet, the deciding one first.
fn matching(spd: &Spd, example: &Example) -> Vec<usize> {
    let class = spd.class(example.ingress.unwrap_or(PORTS - 1));
    let domain = crate::DomainId::new(class, example.direction.book(), example.flow.family);
    let says = spd.matching(domain, &example.flow).into_iter();
    let places = says.filter_map(|says| match says {
        Decider::Policy(slot) => Some(spd.policy(slot).id.0 as usize),
        Decider::FragmentPorts(_) | Decider::None => None,
    });
    places.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn doubts_about_a_set_are_what_the_linear_search_shows(
        policies in proptest::collection::vec(policy(), 0..6),
    ) {
        let number = |(id, policy)| Policy { id: PolicyId(id), ..policy };
        let policies: Vec<Policy> = (0..).zip(policies).map(number).collect();
        let mut found = Vec::new();
        let policy_at = |place| ReviewedPolicy::from(&policies[place]);
        let (count, mut effort) = (policies.len(), ReviewEffort::of(policies.len()));
        review(count, policy_at, PORTS, &mut effort, |finding| found.push(finding));
        let spd = Spd::new(policies.clone()).unwrap();
        let case = Case { before: spd, removed: Vec::new(), added: Vec::new() };
        let covered: BTreeSet<usize> = found.iter()
            .filter(|finding| finding.doubt == Doubt::Covered)
            .map(|finding| finding.policy)
            .collect();
        let mut expected = BTreeSet::new();
        for packet in packets(&case) {
            let places = matching(&case.before, &packet);
            let Some((&first, rest)) = places.split_first() else { continue };
            prop_assert!(!covered.contains(&first), "policy {first} decides {packet:?}");
            // Of fragments a policy with ports may stop them before: no pair of those.
            if policies[first].action == Action::Bypass && packet.flow.upper != Upper::Fragment {
                let protects = rest.iter().filter(|place| {
                    matches!(policies[**place].action, Action::Protect(_))
                });
                expected.extend(protects.map(|place| (first, *place)));
            }
        }
        let mut taken = BTreeSet::new();
        for Finding { doubt, policy, other, example } in found {
            let (one, two) = (&policies[policy], &policies[other]);
            let Some(example) = example else { continue };
            let places = matching(&case.before, &example);
            prop_assert_eq!(places[0], policy);
            prop_assert!(places.contains(&other) && one.action != two.action);
            match doubt {
                Doubt::Takes => {
                    prop_assert!(matches!(two.action, Action::Protect(_)));
                    prop_assert!(one.action != Action::Discard);
                    if one.action == Action::Bypass {
                        taken.insert((policy, other));
                    }
                }
                Doubt::Tied => prop_assert_eq!(one.priority, two.priority),
                Doubt::Covered => prop_assert!(false, "a covered policy needs no packet"),
            }
        }
        prop_assert_eq!(taken, expected);
    }
}

fn number_range(lo: u128, hi: u128) -> AddressRange {
    AddressRange { family: Family::V4, lo, hi }
}

/// Policies beside each other, each a /24 on either side.
fn sites(count: u32, set: impl Fn(u32) -> u32) -> Vec<Policy> {
    let site = |place: u32| Policy {
        id: PolicyId(place),
        name: format!("site{place}"),
        action: Action::Protect(SaSetId(set(place))),
        priority: 100,
        only: None,
        group: None,
        ingress: None,
        selector: Selector {
            local: vec![number_range(0x0a00_0000, 0x0aff_ffff)],
            remote: vec![number_range(u128::from(place) << 8, u128::from(place) << 8 | 255)],
            protocol: None,
            upper: UpperSelector::Any,
        },
    };
    (0..count).map(site).collect()
}

#[test]
fn of_very_many_policies_only_those_near_a_change_are_looked_at() {
    let before = Spd::with_room(sites(20_000, |_| 1), 30_000).unwrap();
    let narrow = |id| Policy {
        id: PolicyId(id),
        name: "narrow".into(),
        action: Action::Bypass,
        ..before.policy(PolicyIndex(77)).clone()
    };
    // What the one takes is found in as many steps as a tree is deep, give or take.
    let added = [narrow(20_000)];
    let planned = Planned { before: &before, removed: &[], added: &added, ports: &[0, 1, 2] };
    let told = takeovers_within(planned, 8, 2_000);
    assert_eq!((told.found.len(), told.rest), (1, Rest::Nothing));
    assert_eq!(told.found[0].from, PolicyIndex(77));
    // All are taken from: some are named.
    let all = Policy {
        selector: Selector {
            remote: vec![AddressRange::any(Family::V4)],
            ..narrow(0).selector.clone()
        },
        ..narrow(20_000)
    };
    let added = [all];
    let planned = Planned { before: &before, removed: &[], added: &added, ports: &[0, 1, 2] };
    let told = takeovers(planned, 8);
    assert_eq!((told.found.len(), told.rest), (8, Rest::Limit));
    // Below all of them it takes nothing, which the tree knows without looking at them.
    let added = [Policy { priority: 1, ..added[0].clone() }];
    let planned = Planned { before: &before, removed: &[], added: &added, ports: &[0, 1, 2] };
    assert!(takeovers_within(planned, 8, 100).is_nothing());
}

#[test]
fn long_lists_are_compared_without_comparing_every_pair() {
    let list = |odd: u128| (0..4000).map(|n| number_range(4 * n + odd, 4 * n + odd)).collect();
    let with = |id, action, odd| Policy {
        id: PolicyId(id),
        action,
        selector: Selector {
            local: vec![AddressRange::any(Family::V4)],
            remote: list(odd),
            protocol: None,
            upper: UpperSelector::Any,
        },
        ..sites(1, |_| 1).remove(0)
    };
    let protect = with(0, Action::Protect(SaSetId(1)), 0);
    let before = Spd::with_room(vec![protect], 2).unwrap();
    let added = [with(1, Action::Bypass, 2)];
    let planned = Planned { before: &before, removed: &[], added: &added, ports: &[0, 1, 2] };
    assert!(takeovers(planned, 8).is_nothing());
    let added = [with(1, Action::Bypass, 0)];
    let planned = Planned { before: &before, removed: &[], added: &added, ports: &[0, 1, 2] };
    assert_eq!(takeovers(planned, 8).found.len(), 1);
}

/// Slots of ports have gaps, and policies go on naming ports that are gone.
#[test]
fn a_change_takes_packets_by_ports_that_no_policy_names_although_as_many_are_named() {
    let everything = |id, priority, action, ingress: Option<&[u16]>| Policy {
        id: PolicyId(id),
        priority,
        action,
        ingress: ingress.map(Into::into),
        selector: Selector {
            local: vec![AddressRange::any(Family::V4)],
            remote: vec![AddressRange::any(Family::V4)],
            protocol: None,
            upper: UpperSelector::Any,
        },
        ..sites(1, |_| 1).remove(0)
    };
    let protect = everything(0, 1, Action::Protect(SaSetId(1)), None);
    let discard = everything(1, 3, Action::Discard, Some(&[1, 2, 5]));
    let before = Spd::with_room(vec![protect, discard], 4).unwrap();
    let added = [everything(2, 2, Action::Bypass, None)];
    let found = |ports| {
        let planned = Planned { before: &before, removed: &[], added: &added, ports };
        takeovers(planned, 8).found
    };
    assert_eq!(found(&[0, 1, 3]).len(), 1, "what comes by 0 and 3");
    assert!(found(&[1, 2]).is_empty(), "the other policy has it all");
}
