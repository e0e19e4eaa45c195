//! Sets that are made to be costly: built within the budget, or refused; never slow to build,
//! never large.

use std::time::Duration;

use wire::{Family, Flow};

use super::super::cost::MAX_BLOCKS;
use super::super::forest::{LEAF_BLOCKS, Word};
use super::super::*;
use super::sets::{Random, edge_flow, linear, rule};
use super::speed::thread_time;
use crate::rule::{Rule, UpperRule};
use crate::{IcmpRange, PolicyIndex, PortRange};

/// Builds a set; where that succeeds, some lookups must say what the linear search says.
fn too_costly(error: Unfit) -> TooCostly {
    match error {
        Unfit::TooCostly(error) => error,
        Unfit::TooManyLists(error) => panic!("{error}"),
    }
}

fn build(name: &str, family: Family, rules: &[Rule]) -> Result<Classifier, TooCostly> {
    let from = thread_time();
    let built = Classifier::new(family, rules, Budget::default()).map_err(too_costly);
    let took = thread_time() - from;
    match &built {
        Ok(built) => {
            let (cost, bytes) = (built.worst_case_cost(), built.bytes());
            eprintln!("{name}: {took:?}, {cost:?}, {bytes} bytes, {:?}", built.shape());
            assert!(cost.steps() <= Budget::default().steps);
            assert!(bytes <= (24 << 20) + rules.len() * MOST_BYTES, "{name}: {bytes} bytes");
            agrees(built, family, rules);
        }
        Err(error) => {
            eprintln!("{name}: {took:?}, {error}, {:?}", error.positions);
            assert!(!error.positions.is_empty());
            assert!(error.positions.iter().all(|&position| (position as usize) < rules.len()));
        }
    }
    // Tests are barely optimised and share the machine: a released build takes a tenth of this.
    let limit = Duration::from_millis(1) * rules.len() as u32 + Duration::from_secs(10);
    assert!(took < limit, "{name}: {took:?}");
    built
}

/// Memory a rule at most: copies, twice for fragments, a reserve, blocks that are not full.
const MOST_BYTES: usize = 2048;

fn agrees(classifier: &Classifier, family: Family, rules: &[Rule]) {
    let mut random = Random(rules.len() as u64);
    let flows: Vec<Flow> = (0..300).map(|_| edge_flow(&mut random, family, rules)).collect();
    let mut out = vec![0; flows.len()];
    let mut dead = Dead::default();
    for round in 0..3 {
        classifier.classify_alive(&flows, &dead, &mut out);
        for (flow, &found) in flows.iter().zip(&out) {
            assert_eq!(found, linear(rules, &dead, flow), "{flow}");
        }
        // What has been found goes, so that what it hid is found.
        let found = out.iter().filter(|&&found| found != NONE);
        for &found in found.step_by(1 + round) {
            dead.insert(found);
        }
    }
}

/// Rules numbered from 0, as many as given.
fn numbered(count: u32, make: impl Fn(u32) -> Rule) -> Vec<Rule> {
    (0..count).map(|i| Rule { index: PolicyIndex(i), ..make(i) }).collect()
}

const ALL: (u128, u128) = (0, u32::MAX as u128);

/// A range of `count` nested ones.
fn nested(i: u32) -> (u128, u128) {
    ((i * 100).into(), (u32::MAX - i * 100).into())
}

fn with_ports(rule: Rule, lo: u16, hi: u16) -> Rule {
    let destination = PortRange { lo, hi };
    Rule { upper: UpperRule::Ports { source: PortRange::ANY, destination }, ..rule }
}

// Issue 5: 10,000 nested policies.
#[test]
fn nested_rules_are_cheap_in_either_order() {
    let count = 10_000;
    let make = |i: u32| rule(nested(i), ALL);
    let built = build("wide first", Family::V4, &numbered(count, make)).unwrap();
    assert_eq!(built.worst_case_cost().steps(), 1);
    let narrow_first = numbered(count, |i| make(count - 1 - i));
    let built = build("narrow first", Family::V4, &narrow_first).unwrap();
    assert!(built.worst_case_cost().steps() < 40);
}

#[test]
fn rules_nested_on_both_sides_are_built_or_refused() {
    let make = |i: u32| rule(nested(i), nested(i));
    let built = build("both, wide first", Family::V4, &numbered(10_000, make)).unwrap();
    assert_eq!(built.worst_case_cost().steps(), 1);
    // A ring around a ring around a ring: each region of headers borders on many rules.
    for count in [100, 1000, 3000] {
        let narrow_first = numbered(count, |i| make(count - 1 - i));
        build("both, narrow first", Family::V4, &narrow_first).unwrap();
    }
    let narrow_first = numbered(10_000, |i| make(9_999 - i));
    let _ = build("both, narrow first", Family::V4, &narrow_first);
}

#[test]
fn nested_rules_with_ports_are_cheap_in_either_order() {
    let count = 10_000;
    let make = |i: u32| with_ports(rule(nested(i), ALL), 80, 443);
    build("ports, wide first", Family::V4, &numbered(count, make)).unwrap();
    build("ports, narrow first", Family::V4, &numbered(count, |i| make(count - 1 - i))).unwrap();
    // Each with ports of its own, so that none hides another.
    let make = |i: u32| with_ports(rule(nested(i), ALL), i as u16, i as u16);
    let _ = build("own ports, wide first", Family::V4, &numbered(count, make));
    let narrow_first = numbered(count, |i| make(count - 1 - i));
    let _ = build("own ports, narrow first", Family::V4, &narrow_first);
}

#[test]
fn nested_ipv6_rules_are_cheap() {
    let nested = |i: u32| (u128::from(i) << 90, u128::MAX - (u128::from(i) << 80));
    let make = |i: u32| rule(nested(i), (0, u128::MAX));
    build("IPv6, wide first", Family::V6, &numbered(10_000, make)).unwrap();
    build("IPv6, narrow first", Family::V6, &numbered(10_000, |i| make(9_999 - i))).unwrap();
}

#[test]
fn a_hundred_thousand_like_rules_are_one() {
    let one = |_| rule((1000, 2000), (3000, 4000));
    let built = build("like", Family::V4, &numbered(100_000, one)).unwrap();
    assert!(built.worst_case_cost().steps() < 30);
    let one = |_| with_ports(rule((1000, 2000), (3000, 4000)), 5, 7);
    build("like, with ports", Family::V4, &numbered(100_000, one)).unwrap();
    let all = |_| rule(ALL, ALL);
    let built = build("everything", Family::V4, &numbered(100_000, all)).unwrap();
    assert_eq!(built.worst_case_cost().steps(), 1);
    let icmp = |_| Rule { upper: UpperRule::Icmp(IcmpRange::ANY), ..rule(ALL, ALL) };
    build("ICMP", Family::V4, &numbered(100_000, icmp)).unwrap();
}

#[test]
fn grids_in_which_all_overlap_are_built_or_refused() {
    let count = 10_000u32;
    let step = u32::MAX / count;
    // Each reaches from a corner of its own: (i, n − i).
    let from = |i: u32| (u128::from(i * step), u128::from(u32::MAX));
    let _ = build("stairs", Family::V4, &numbered(count, |i| rule(from(i), from(count - 1 - i))));
    // Stripes of one side, then of the other: every two of different kinds meet.
    let stripe = |i: u32| (u128::from(i / 2 * step), u128::from(i / 2 * step + step - 1));
    let stripes = numbered(count, |i| match i % 2 {
        0 => rule(stripe(i), ALL),
        _ => rule(ALL, stripe(i)),
    });
    build("stripes", Family::V4, &stripes).unwrap();
    // The same in four dimensions.
    let ports = |i: u32| PortRange { lo: (i / 4) as u16, hi: (i / 4) as u16 };
    let any = PortRange::ANY;
    let four = numbered(count, |i| {
        let base = rule(ALL, ALL);
        match i % 4 {
            0 => rule(stripe(i / 2), ALL),
            1 => rule(ALL, stripe(i / 2)),
            2 => Rule { upper: UpperRule::Ports { source: ports(i), destination: any }, ..base },
            _ => Rule { upper: UpperRule::Ports { source: any, destination: ports(i) }, ..base },
        }
    });
    build("stripes of four kinds", Family::V4, &four).unwrap();
}

#[test]
fn random_boxes_are_built_or_refused() {
    for count in [300, 3000, 10_000] {
        let mut random = Random(count);
        let mut range = |highest: u128| {
            let (one, other) = (random.within((0, highest)), random.within((0, highest)));
            (one.min(other), one.max(other))
        };
        let ports = |(lo, hi): (u128, u128)| PortRange { lo: lo as u16, hi: hi as u16 };
        let plain: Vec<Rule> = (0..count).map(|_| rule(range(ALL.1), range(ALL.1))).collect();
        let _ = build(&format!("{count} boxes"), Family::V4, &plain);
        let boxes: Vec<Rule> = (0..count)
            .map(|_| {
                let (source, destination) = (ports(range(0xffff)), ports(range(0xffff)));
                let upper = UpperRule::Ports { source, destination };
                Rule { upper, ..rule(range(ALL.1), range(ALL.1)) }
            })
            .collect();
        let _ = build(&format!("{count} boxes with ports"), Family::V4, &boxes);
    }
}

#[test]
fn what_no_search_can_tell_apart_quickly_is_refused() {
    // Each wants a source port of its own from a range of addresses that it shares with half of the
    // others, around a point that is in all: no cut parts them, and none hides another.
    let make = |i: u32| {
        let upper = UpperRule::Ports {
            source: PortRange { lo: i as u16, hi: (i + 30_000) as u16 },
            destination: PortRange { lo: (20_000 - i) as u16, hi: (50_000 - i) as u16 },
        };
        Rule { upper, ..rule(nested(i), nested(20_000 - i)) }
    };
    let rules = numbered(20_000, make);
    let error = build("no cut", Family::V4, &rules).unwrap_err();
    assert!(error.cost.steps() > error.limit);
    assert!(error.to_string().contains("steps"));
    // The same rules are welcome in a number that can be searched.
    build("no cut, few", Family::V4, &rules[..200]).unwrap();
}

#[test]
fn a_budget_of_few_steps_refuses_what_a_larger_one_takes() {
    let rules = numbered(1000, |i| rule((u128::from(i) * 10, u128::from(i) * 10 + 5), ALL));
    let error = Classifier::new(Family::V4, &rules, Budget { steps: 1, ..Budget::default() })
        .map_err(too_costly)
        .unwrap_err();
    assert_eq!(error.limit, 1);
    assert!(error.cost.steps() > 1 && !error.positions.is_empty());
    assert!(Classifier::new(Family::V4, &rules, Budget { steps: 20, ..Budget::default() }).is_ok());
}

// A forest's blocks are numbered in 24 bits: more of them are refused, and never panic.
#[test]
fn more_blocks_than_a_forest_holds_are_refused() {
    assert!(Word::leaf(MAX_BLOCKS - 1, 1).is_some() && Word::leaf(0, LEAF_BLOCKS).is_some());
    assert_eq!(Word::leaf(MAX_BLOCKS - 1, 2), None);
    assert_eq!(Word::leaf(MAX_BLOCKS, 0), None);
    assert_eq!(Word::leaf(0, LEAF_BLOCKS + 1), None);
    let one = |i: u32| rule((u128::from(i) * 10, u128::from(i) * 10 + 5), ALL);
    let apart = numbered(6000, one);
    let hidden = numbered(6000, |i| if i < 6 { rule(ALL, ALL) } else { one(i) });
    // Two blocks are enough for the first of those that hide all, not for what they hide.
    for (rules, least) in [(&apart, 400), (&hidden, 375)] {
        for blocks in [0, 1, 2, 3, 100, least - 1] {
            let budget = Budget { blocks, ..Budget::default() };
            let error = Classifier::new(Family::V4, rules, budget).map_err(too_costly).unwrap_err();
            assert!(error.cost.steps() > error.limit, "{blocks}: {error}");
            assert!(!error.positions.is_empty(), "{blocks}: {error}");
        }
        let budget = Budget { blocks: 4 * least, ..Budget::default() };
        agrees(&Classifier::new(Family::V4, rules, budget).unwrap(), Family::V4, rules);
    }
}

// What rules hide that do not count is part of what a search costs.
#[test]
fn the_cost_counts_what_dead_rules_have_hidden() {
    let one = |i: u32| rule((u128::from(i) * 10, u128::from(i) * 10 + 5), ALL);
    let rules = numbered(3006, |i| if i < 6 { rule(ALL, ALL) } else { one(i) });
    let built = build("behind six", Family::V4, &rules).unwrap();
    let mut dead = Dead::default();
    let costs = (0..6).map(|next| {
        let cost = built.cost_without(&dead).steps();
        dead.insert(next);
        cost
    });
    // Two reserves of one rule each, then a list of what is left.
    assert_eq!(costs.collect::<Vec<_>>(), [1, 2, 3, 3 + 188, 3 + 188, 3 + 188]);
    let mut dead = Dead::default();
    for hides_nothing in 1..3006 {
        assert!(dead.insert(hides_nothing));
    }
    assert_eq!(built.cost_without(&dead), built.worst_case_cost());
}
