//! The order of lookup with cards: what they carry in front, and each verdict that of software.

use control::{LookupPlace, Ordered, lookup_order};
use policy::{
    Action, AddressRange, Book, Decider, Direction, DomainId, IcmpRange, Policy, PolicyId,
    PortRange, SaSetId, Selector, Spd, UpperSelector,
};
use proptest::prelude::*;
use wire::flow::protocol::{ICMP, TCP, UDP};
use wire::{Address, Family, Flow, Upper};

/// Edges of the addresses and ports that selectors name, and what lies beside them.
const ADDRESSES: [u128; 6] = [0, 9, 10, 20, 21, 30];
const PORTS: [u16; 4] = [79, 80, 81, 82];
/// Ports by which packets come; policies name the first two.
const INGRESS: [u16; 3] = [0, 1, 2];
const DIRECTIONS: [Direction; 2] = [Direction::Outbound, Direction::Inbound];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn address(family: Family, value: u128) -> Address {
    Address { family, value }
}

fn range(family: Family) -> impl Strategy<Value = AddressRange> {
    let edge = || prop::sample::select(&ADDRESSES[..]);
    prop_oneof![
        1 => Just(AddressRange::any(family)),
        4 => (edge(), edge()).prop_map(move |(one, other)| {
            let ends = [one.min(other), one.max(other)].map(|end| address(family, end));
            AddressRange::new(ends[0], ends[1]).unwrap()
        }),
    ]
}

fn ranges() -> impl Strategy<Value = Vec<AddressRange>> {
    prop_oneof![
        4 => prop::collection::vec(range(Family::V4), 1..3),
        1 => (range(Family::V4), range(Family::V6)).prop_map(|(four, six)| vec![four, six]),
    ]
}

fn upper() -> impl Strategy<Value = (Option<u8>, UpperSelector)> {
    let port = || (80u16..82, 0u16..2).prop_map(|(lo, more)| PortRange { lo, hi: lo + more });
    let ports = || prop::collection::vec(port(), 0..2);
    let with_ports = prop::sample::select(&[None, Some(TCP), Some(UDP)][..]);
    prop_oneof![
        3 => Just((None, UpperSelector::Any)),
        1 => prop::sample::select(&[TCP, UDP, ICMP][..])
            .prop_map(|protocol| (Some(protocol), UpperSelector::Any)),
        2 => (with_ports, ports(), ports()).prop_map(|(protocol, local, remote)| {
            (protocol, UpperSelector::Ports { local, remote })
        }),
        1 => (0u16..2).prop_map(|kind| {
            let messages = IcmpRange::of_type(8 * kind as u8);
            (Some(ICMP), UpperSelector::Icmp(vec![messages]))
        }),
    ]
}

fn a_policy() -> impl Strategy<Value = Policy> {
    let action = prop_oneof![
        3 => (1u32..4).prop_map(|set| Action::Protect(SaSetId(set))),
        1 => Just(Action::Bypass),
        1 => Just(Action::Discard),
    ];
    let only =
        prop_oneof![4 => Just(None), 1 => prop::sample::select(&DIRECTIONS[..]).prop_map(Some)];
    let ingress = prop_oneof![
        4 => Just(None),
        1 => prop::sample::subsequence(vec![0u16, 1], 1..3).prop_map(Some),
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

fn numbered(policies: Vec<Policy>) -> Vec<Policy> {
    let number = |(id, policy)| Policy { id: PolicyId(id), name: format!("p{id}"), ..policy };
    (1..).zip(policies).map(number).collect()
}

/// A packet of every kind at every edge.
fn packets(family: Family) -> Vec<Flow> {
    let ports = PORTS.iter().flat_map(|source| {
        PORTS.iter().map(|destination| Upper::Ports { source: *source, destination: *destination })
    });
    let ported = ports.flat_map(|upper| [(TCP, upper), (UDP, upper)]);
    let others = [
        (ICMP, Upper::Icmp { kind: 0, code: 0 }),
        (ICMP, Upper::Icmp { kind: 8, code: 0 }),
        (TCP, Upper::Fragment),
        (ICMP, Upper::Fragment),
        (47, Upper::None),
    ];
    let uppers: Vec<(u8, Upper)> = ported.chain(others).collect();
    let mut flows = Vec::new();
    for source in ADDRESSES {
        for destination in ADDRESSES {
            flows.extend(uppers.iter().map(|(protocol, upper)| Flow {
                family,
                source,
                destination,
                protocol: *protocol,
                upper: *upper,
                opens: false,
            }));
        }
    }
    flows
}

/// The fate of a packet: the action of the policy that decides, or the drop of a fragment.
#[derive(PartialEq, Debug)]
enum Fate {
    Action(Action),
    Fragment,
    NoMatch,
}

fn fate(spd: &Spd, (direction, ingress): (Direction, u16), flow: &Flow) -> Fate {
    let book = match direction {
        Direction::Outbound => Book::SpdOut,
        Direction::Inbound => Book::SpdIn,
    };
    let domain = DomainId::new(spd.class(ingress), book, flow.family);
    match spd.search_linear(domain, flow) {
        Decider::Policy(slot) => Fate::Action(spd.policy(slot).action),
        Decider::FragmentPorts(_) => Fate::Fragment,
        Decider::None => Fate::NoMatch,
    }
}

/// The database whose priorities are the places of an order.
fn read_from_the_top(spd: &Spd, order: &[Ordered]) -> Spd {
    let policies = order.iter().enumerate().map(|(at, of)| {
        let policy = spd.policy(of.slot).clone();
        Policy { id: PolicyId(at as u32 + 1), priority: (order.len() - at) as u32, ..policy }
    });
    Spd::new(policies.collect()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    // XO-10
    #[test]
    fn policies_of_cards_are_in_front_and_every_verdict_is_that_of_software(
        policies in prop::collection::vec(a_policy(), 1..9),
        carried in 0u32..16,
    ) {
        let spd = Spd::new(numbered(policies)).unwrap();
        let is_carried = |set: SaSetId| carried >> set.0 & 1 == 1;
        for direction in DIRECTIONS {
            let order = lookup_order(&spd, direction, is_carried);
            let front = order.iter().take_while(|of| of.place == LookupPlace::InFront).count();
            prop_assert!(order[front..].iter().all(|of| of.place != LookupPlace::InFront));
            for part in [&order[..front], &order[front..]] {
                let ranks: Vec<u64> = part.iter().map(|of| spd.policy(of.slot).rank()).collect();
                prop_assert!(ranks.is_sorted_by(|one, next| one > next));
            }
            for of in &order {
                let policy = spd.policy(of.slot);
                let is_carried = matches!(policy.action, Action::Protect(set) if is_carried(set));
                prop_assert_eq!(of.place == LookupPlace::Ranked, !is_carried);
                if let LookupPlace::Behind(other) = of.place {
                    let other = spd.policy(other);
                    prop_assert!(other.rank() > policy.rank());
                    prop_assert!(other.selector.overlaps(&policy.selector));
                }
            }
            let holding = spd.holding_policies();
            let holding = holding.filter(|(_, of)| of.only.is_none_or(|only| only == direction));
            prop_assert_eq!(order.len(), holding.count());
            let read = read_from_the_top(&spd, &order);
            for family in FAMILIES {
                for flow in packets(family) {
                    for ingress in INGRESS {
                        let at = (direction, ingress);
                        let [of_spd, of_order] = [&spd, &read].map(|of| fate(of, at, &flow));
                        prop_assert_eq!(of_spd, of_order, "{:?}", flow);
                    }
                }
            }
        }
    }
}

fn policy(action: Action, priority: u32, remote: [u8; 4], bits: u8) -> Policy {
    let remote = AddressRange::network(Address::from(std::net::IpAddr::from(remote)), bits);
    Policy {
        id: PolicyId(0),
        name: String::new(),
        action,
        priority,
        only: None,
        group: None,
        ingress: None,
        selector: Selector {
            local: vec![AddressRange::any(Family::V4)],
            remote: vec![remote],
            protocol: None,
            upper: UpperSelector::Any,
        },
    }
}

fn names(spd: &Spd, order: &[Ordered]) -> Vec<(String, LookupPlace)> {
    order.iter().map(|of| (spd.policy(of.slot).name.clone(), of.place)).collect()
}

// XO-10
#[test]
fn a_policy_of_a_card_goes_past_what_it_has_no_packets_in_common_with_and_past_nothing_else() {
    let (a, b) = (Action::Protect(SaSetId(1)), Action::Protect(SaSetId(2)));
    let spd = Spd::new(numbered(vec![
        policy(Action::Discard, 300, [10, 2, 3, 0], 24),
        policy(Action::Bypass, 200, [10, 9, 0, 0], 16),
        policy(a, 100, [10, 2, 0, 0], 16),
        policy(b, 50, [10, 3, 0, 0], 16),
        policy(a, 40, [10, 2, 7, 0], 24),
        policy(a, 30, [10, 4, 0, 0], 16),
    ]))
    .unwrap();
    let order = lookup_order(&spd, Direction::Outbound, |set| set == SaSetId(1));
    let slot = |name: &str| spd.named(name).unwrap();
    let expected = [
        ("p6", LookupPlace::InFront),
        ("p1", LookupPlace::Ranked),
        ("p2", LookupPlace::Ranked),
        ("p3", LookupPlace::Behind(slot("p1"))),
        ("p4", LookupPlace::Ranked),
        // The card's own, which wins over it, is not in front.
        ("p5", LookupPlace::Behind(slot("p3"))),
    ];
    assert_eq!(names(&spd, &order), expected.map(|(name, place)| (name.to_owned(), place)));
    let none = lookup_order(&spd, Direction::Inbound, |_| false);
    assert!(none.iter().all(|of| of.place == LookupPlace::Ranked));
}

#[test]
fn where_there_are_too_many_to_compare_the_rest_stays_at_its_rank() {
    let of = |number: u32, action: Action, priority: u32, first: u8| {
        let [_, high, middle, low] = number.to_be_bytes();
        policy(action, priority, [first + high, middle, low, 0], 24)
    };
    let workers = (0..2100).map(|number| of(number, Action::Bypass, 200, 10));
    let cards = (0..1000).map(|number| of(number, Action::Protect(SaSetId(1)), 100, 100));
    let spd = Spd::new(numbered(workers.chain(cards).collect())).unwrap();
    let order = lookup_order(&spd, Direction::Outbound, |_| true);
    let count = |place| order.iter().filter(|of| of.place == place).count();
    let (front, rest) = (count(LookupPlace::InFront), count(LookupPlace::NotCompared));
    assert!(front > 500 && rest > 0, "{front} {rest}");
    assert_eq!(front + rest, 1000);
}
