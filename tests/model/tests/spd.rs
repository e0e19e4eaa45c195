//! The walk's search of the security policy database ≡ RFC 4301 §4.4.1 as the model tells it.
//!
//! Sets of policies are drawn so that they overlap in every way: nested, adjacent, unaligned,
//! full width, of equal priority, of mixed families. Flows are drawn at the ends of what the set
//! names and one beyond: a search that is off by one anywhere meets a flow that shows it.

mod seeded;

use std::cell::Cell;

use model::spd::{Judgement, judge};
use policy::{
    Action, AddressRange, Decider, Direction, IcmpRange, Policy, PolicyId, PortRange, SaSetId,
    Selector, Spd, TcpSegments, UpperSelector, common,
};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use wire::{Family, Flow, Upper};

/// Sets of policies, unless `PROPTEST_CASES` says otherwise. `MODEL_SEED` repeats a run.
const SETS: u32 = 4000;
/// Flows judged by each set, in each direction.
const FLOWS: usize = 40;
/// Fewer judgements than this prove too little.
const LEAST_JUDGEMENTS: usize = 200_000;

/// Protocols that selectors and flows are drawn from: with ports, ICMP, neither, the lowest and
/// the highest number.
const PROTOCOLS: [u8; 11] = [6, 17, 33, 132, 136, 1, 58, 50, 47, 0, 255];

/// Counts of the answers, so that a run that never reached a kind of answer fails.
#[derive(Default, Debug)]
struct Tally {
    decided: Cell<usize>,
    lacking: Cell<usize>,
    nothing: Cell<usize>,
}

#[test]
fn the_linear_search_says_what_rfc_4301_says() {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let cases = seeded::cases(SETS);
    let mut runner = seeded::runner(SETS);
    let tally = Tally::default();
    let result = runner.run(&set_and_flows(), |(policies, flows)| {
        let spd = Spd::new(policies.clone()).unwrap();
        for direction in [Direction::Inbound, Direction::Outbound] {
            compare(&policies, &spd, direction, &flows, &tally)?;
        }
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    let judgements = tally.decided.get() + tally.lacking.get() + tally.nothing.get();
    println!("{judgements} flows judged by {cases} sets: {tally:?}");
    if !asked {
        assert!(judgements >= LEAST_JUDGEMENTS, "{judgements}");
        for (kind, count) in
            [("decided", &tally.decided), ("lacking", &tally.lacking), ("nothing", &tally.nothing)]
        {
            assert!(count.get() * 40 >= judgements, "too few {kind}: {tally:?}");
        }
    }
}

/// Holds one batch of flows against the model, and `matching` against the model of ever fewer
/// policies: with the deciding one taken away, the next in its list must decide.
fn compare(
    policies: &[Policy],
    spd: &Spd,
    direction: Direction,
    flows: &[Flow],
    tally: &Tally,
) -> Result<(), TestCaseError> {
    let mut found = vec![Decider::None; flows.len()];
    for (flow, found) in flows.iter().zip(&mut found) {
        spd.classify(common(direction.book(), flow.family), &[*flow], std::slice::from_mut(found));
    }
    for (flow, &found) in flows.iter().zip(&found) {
        let expected = judge(policies, direction, flow);
        prop_assert_eq!(judgement(spd, found), expected, "{:?} {}", direction, flow);
        let count = match expected {
            Judgement::Entry(..) => &tally.decided,
            Judgement::Opaque(_) => &tally.lacking,
            Judgement::Nothing => &tally.nothing,
        };
        count.set(count.get() + 1);

        let mut rest = policies.to_vec();
        for next in spd.matching(common(direction.book(), flow.family), flow) {
            let expected = judge(&rest, direction, flow);
            prop_assert_eq!(judgement(spd, next), expected, "matching {:?} {}", direction, flow);
            let (Judgement::Entry(beaten, _) | Judgement::Opaque(beaten)) = expected else {
                unreachable!("what was found is never nothing");
            };
            rest.retain(|policy| policy.id != beaten);
        }
        prop_assert_eq!(judge(&rest, direction, flow), Judgement::Nothing);
    }
    Ok(())
}

/// The search's answer in the model's words.
fn judgement(spd: &Spd, found: Decider) -> Judgement {
    match found {
        Decider::Policy(index) => {
            let policy = spd.policy(index);
            Judgement::Entry(policy.id, policy.action)
        }
        Decider::FragmentPorts(index) => Judgement::Opaque(spd.policy(index).id),
        Decider::None => Judgement::Nothing,
    }
}

/// A set of up to 12 policies in any order, and flows at the edges of what it names.
fn set_and_flows() -> impl Strategy<Value = (Vec<Policy>, Vec<Flow>)> {
    prop::collection::vec(a_policy(), 0..12)
        .prop_flat_map(|policies| {
            let ids: Vec<u32> = (0..100).collect();
            let count = policies.len();
            (Just(policies), subsequence(ids, count).prop_shuffle())
        })
        .prop_flat_map(|(mut policies, ids)| {
            for (policy, id) in policies.iter_mut().zip(ids) {
                policy.id = PolicyId(id);
                policy.name = format!("p{id}");
            }
            (Just(policies), prop::collection::vec(a_flow(), FLOWS))
        })
        .prop_map(|(policies, seeds)| {
            let flows = seeds.iter().map(|seed| seed.aimed_at(&policies)).collect();
            (policies, flows)
        })
}

fn a_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        2 => a_policy_of(&[Family::V4]),
        2 => a_policy_of(&[Family::V6]),
        1 => a_policy_of(&[Family::V4, Family::V6]),
    ]
}

fn a_policy_of(families: &'static [Family]) -> impl Strategy<Value = Policy> {
    let action = prop_oneof![
        (0..4u32).prop_map(|set| Action::Protect(SaSetId(set))),
        Just(Action::Bypass),
        Just(Action::Discard),
    ];
    let only = prop_oneof![
        4 => Just(None),
        1 => Just(Some(Direction::Inbound)),
        1 => Just(Some(Direction::Outbound)),
    ];
    let addresses = || prop::collection::vec(an_address_range(families), 1..4);
    let protocol = prop_oneof![1 => Just(None), 2 => select(&PROTOCOLS[..]).prop_map(Some)];
    // Few priorities: equal ones are the interesting case.
    let priority = prop_oneof![3 => 0..3u32, 1 => Just(u32::MAX)];
    (action, only, priority, addresses(), addresses(), protocol, an_upper()).prop_map(
        |(action, only, priority, local, remote, protocol, upper)| Policy {
            id: PolicyId(0),
            name: String::new(),
            action,
            priority,
            only,
            group: None,
            ingress: None,
            selector: Selector { local, remote, protocol, upper },
        },
    )
}

/// Ranges of a small block, so that they nest, touch and straddle; the edges of the whole space;
/// everything; and anything.
fn an_address_range(families: &'static [Family]) -> impl Strategy<Value = AddressRange> {
    (select(families), any::<u128>(), 0..12u8, 0..32u128, 0..32u128).prop_map(
        |(family, wide, shape, a, b)| {
            let highest = family.highest_address();
            let block = highest / 3;
            let (lo, hi) = (a.min(b), a.max(b));
            let (lo, hi) = match shape {
                0 | 1 => (0, highest),
                2 => (0, hi),
                3 => (highest - hi, highest),
                4 => {
                    let host = (1u128 << (a % 6)) - 1;
                    ((block + b) & !host, (block + b) | host)
                }
                5 => {
                    let other = wide.rotate_left(64) & highest;
                    ((wide & highest).min(other), (wide & highest).max(other))
                }
                6 => (0, block + hi),
                7 => (block + lo, highest),
                _ => (block + lo, block + hi),
            };
            AddressRange { family, lo, hi }
        },
    )
}

fn an_upper() -> impl Strategy<Value = UpperSelector> {
    let ports = || {
        let range = edge_pair().prop_map(|(lo, hi)| PortRange { lo, hi });
        prop::collection::vec(range, 0..3)
    };
    let messages =
        prop::collection::vec(edge_pair().prop_map(|(lo, hi)| IcmpRange { lo, hi }), 0..3);
    prop_oneof![
        2 => Just(UpperSelector::Any),
        4 => (ports(), ports()).prop_map(|(local, remote)| UpperSelector::Ports { local, remote }),
        2 => messages.prop_map(UpperSelector::Icmp),
        2 => (select(&TcpSegments::ALL[..]), ports(), ports()).prop_map(
            |(segments, local, remote)| UpperSelector::Tcp { segments, local, remote }
        ),
    ]
}

/// An ordered pair of 16-bit numbers, near each other, at the edges, or of full width.
fn edge_pair() -> impl Strategy<Value = (u16, u16)> {
    let number = || prop_oneof![3 => 0x07f8..0x0808u16, 1 => 0..3u16, 1 => u16::MAX - 2..=u16::MAX];
    prop_oneof![
        1 => Just((0, u16::MAX)),
        6 => (number(), number()).prop_map(|(a, b)| (a.min(b), a.max(b))),
    ]
}

/// A flow before the set is known: it is aimed at one policy of the set, end by end at the edge
/// of a range of its lists, and misses where `stray` says so.
#[derive(Clone, Debug)]
struct FlowSeed {
    /// The policy aimed at.
    policy: Index,
    /// Its mirror image, which inbound is the one that matches.
    mirrored: bool,
    /// The family, where the policy aimed at leaves a choice.
    family: Index,
    /// Places in the policy's lists, local before remote.
    addresses: [Place; 2],
    numbers: [Place; 2],
    /// The protocol unless the policy names one.
    protocol: u8,
    kind: UpperKind,
    /// A TCP segment opens a connection.
    opens: bool,
    /// Ignore the protocol that the policy names.
    stray: bool,
}

/// A number at an edge of a range of a list: lo, hi, lo − 1 or hi + 1.
#[derive(Clone, Debug)]
struct Place {
    range: Index,
    edge: Edge,
}

#[derive(Clone, Copy, Debug)]
enum Edge {
    Lo,
    Hi,
    Below,
    Above,
}

#[derive(Clone, Copy, Debug)]
enum UpperKind {
    /// The usual upper layer of the protocol.
    Usual,
    Fragment,
    /// An upper layer that no parser would return, but the types allow: anything with any protocol.
    Odd(u8),
}

fn a_flow() -> impl Strategy<Value = FlowSeed> {
    let kind = prop_oneof![
        6 => Just(UpperKind::Usual),
        4 => Just(UpperKind::Fragment),
        1 => (0..3u8).prop_map(UpperKind::Odd),
    ];
    let protocol = prop_oneof![
        8 => select(&PROTOCOLS[..5]),
        4 => select(&PROTOCOLS[5..]),
        1 => any::<u8>(),
    ];
    let place = || {
        let edge = prop_oneof![
            6 => Just(Edge::Lo),
            6 => Just(Edge::Hi),
            1 => Just(Edge::Below),
            1 => Just(Edge::Above),
        ];
        (any::<Index>(), edge).prop_map(|(range, edge)| Place { range, edge })
    };
    let places = [place(), place(), place(), place()];
    (
        any::<Index>(),
        any::<bool>(),
        any::<Index>(),
        places,
        protocol,
        kind,
        any::<bool>(),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(policy, mirrored, family, [a, b, c, d], protocol, kind, opens, stray)| {
            FlowSeed {
                policy,
                mirrored,
                family,
                addresses: [a, b],
                numbers: [c, d],
                protocol,
                kind,
                opens,
                stray,
            }
        })
}

impl Place {
    /// The number at this place of a list, kept within 0 and `highest`; from an empty list an
    /// end of the whole space.
    fn of(&self, ranges: &[(u128, u128)], highest: u128) -> u128 {
        let (lo, hi) = match ranges {
            [] => (0, highest),
            _ => *self.range.get(ranges),
        };
        match self.edge {
            Edge::Lo => lo,
            Edge::Hi => hi,
            Edge::Below => lo.saturating_sub(1),
            Edge::Above => hi.saturating_add(1).min(highest),
        }
    }
}

impl FlowSeed {
    fn aimed_at(&self, policies: &[Policy]) -> Flow {
        let nothing = Selector {
            local: Vec::new(),
            remote: Vec::new(),
            protocol: None,
            upper: UpperSelector::Any,
        };
        let selector = match policies {
            [] => &nothing,
            _ => &self.policy.get(policies).selector,
        };
        let family = match selector.local[..] {
            [] => *self.family.get(&[Family::V4, Family::V6]),
            _ => self.family.get(&selector.local).family,
        };
        let protocol = match selector.protocol {
            Some(named) if !self.stray => named,
            _ => self.protocol,
        };
        let [local, remote] = self.numbers_of(&selector.upper);
        let [kind, code] = local.to_be_bytes();
        let upper = match (self.kind, protocol) {
            (UpperKind::Fragment, _) => Upper::Fragment,
            (UpperKind::Usual, 6 | 17 | 33 | 132 | 136) | (UpperKind::Odd(0), _) => {
                Upper::Ports { source: local, destination: remote }
            }
            (UpperKind::Usual, 1 | 58) | (UpperKind::Odd(1), _) => Upper::Icmp { kind, code },
            (UpperKind::Usual | UpperKind::Odd(_), _) => Upper::None,
        };
        let address = |place: &Place, ranges: &[AddressRange]| {
            let of_family = ranges.iter().filter(|range| range.family == family);
            let ends: Vec<_> = of_family.map(|range| (range.lo, range.hi)).collect();
            place.of(&ends, family.highest_address())
        };
        let flow = Flow {
            family,
            source: address(&self.addresses[0], &selector.local),
            destination: address(&self.addresses[1], &selector.remote),
            protocol,
            upper,
            opens: self.opens && protocol == 6 && matches!(upper, Upper::Ports { .. }),
        };
        if self.mirrored { Flow { opens: flow.opens, ..flow.reversed() } } else { flow }
    }

    /// Local and remote port, or twice a type and code.
    fn numbers_of(&self, upper: &UpperSelector) -> [u16; 2] {
        let [local, remote]: [Vec<(u16, u16)>; 2] = match upper {
            UpperSelector::Any => Default::default(),
            UpperSelector::Ports { local, remote } | UpperSelector::Tcp { local, remote, .. } => {
                [local, remote].map(|list| list.iter().map(|range| (range.lo, range.hi)).collect())
            }
            UpperSelector::Icmp(messages) => {
                let list: Vec<_> = messages.iter().map(|range| (range.lo, range.hi)).collect();
                [list.clone(), list]
            }
        };
        let number = |place: &Place, list: Vec<(u16, u16)>| {
            let wide: Vec<_> = list.iter().map(|&(lo, hi)| (lo.into(), hi.into())).collect();
            place.of(&wide, u16::MAX.into()) as u16
        };
        [number(&self.numbers[0], local), number(&self.numbers[1], remote)]
    }
}
