//! Every form of the search against [`Rule::judge`], one rule after another.

use cpu::lanes::Form;
use wire::{Family, Flow};

use super::super::*;
use super::sets::{LIES, Lie, Random, edge_flow, linear, random_rules, rule};
use crate::rule::Rule;

/// Enough for any set that is not made to be costly.
const GENEROUS: Budget = Budget { steps: 10_000, blocks: usize::MAX };

/// Compares a set's searches, in every form, with and without dead rules; how many lookups that
/// were.
fn compare(random: &mut Random, family: Family, rules: &[Rule], flows: usize) -> usize {
    let classifier = Classifier::new(family, rules, GENEROUS).expect("within the budget");
    let mut dead = Dead::default();
    for _ in 0..rules.len() / 3 {
        dead.insert(random.below(rules.len() as u64) as u32);
    }
    let flows: Vec<Flow> = (0..flows).map(|_| edge_flow(random, family, rules)).collect();
    let all: Vec<u32> = flows.iter().map(|flow| linear(rules, &Dead::default(), flow)).collect();
    let alive: Vec<u32> = flows.iter().map(|flow| linear(rules, &dead, flow)).collect();
    let mut classifier = classifier;
    let mut lookups = 0;
    for form in Form::all() {
        classifier = classifier.with_form(form);
        let mut out = vec![7; flows.len()];
        classifier.classify(&flows, &mut out);
        for ((flow, expected), found) in flows.iter().zip(&all).zip(&out) {
            assert_eq!(found, expected, "{} {flow}", form.name());
        }
        classifier.classify_alive(&flows, &dead, &mut out);
        for ((flow, expected), found) in flows.iter().zip(&alive).zip(&out) {
            assert_eq!(found, expected, "{} {flow}, some rules dead", form.name());
        }
        lookups += 2 * flows.len();
    }
    lookups
}

/// Sets of every kind from one seed, until so many lookups have been compared.
fn compare_sets(seed: u64, least: usize) {
    let mut random = Random(seed);
    let (mut lookups, mut sets) = (0, 0u64);
    while lookups < least {
        let state = random.0;
        let lie = LIES[sets as usize % LIES.len()];
        let family = if sets / 7 % 2 == 0 { Family::V4 } else { Family::V6 };
        let most = [40, 200, 600, 1500][(sets / 14 % 4) as usize];
        let count = 1 + random.below(most) as usize;
        eprintln!("set {sets}: {lie:?} {family:?} {count} rules, generator at {state:#x}");
        let rules = random_rules(&mut random, family, lie, count);
        lookups += compare(&mut random, family, &rules, 700);
        sets += 1;
    }
    eprintln!("{lookups} lookups in {sets} sets agree");
}

#[test]
fn every_form_answers_what_the_linear_search_answers() {
    compare_sets(5, 1_000_000);
}

/// `CASES=100000000 cargo test --release -p policy -- --ignored many_more`
#[test]
#[ignore = "make test-long PART=classifier"]
fn many_more_lookups_agree() {
    let from = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    compare_sets(from("SEED").unwrap_or(77), from("CASES").unwrap_or(10_000_000) as usize);
}

#[test]
fn a_set_of_no_rules_speaks_of_nothing() {
    for family in [Family::V4, Family::V6] {
        let classifier = Classifier::new(family, &[], Budget::default()).unwrap();
        let flows: Vec<Flow> = {
            let any = [rule((0, 0), (0, 0))];
            let mut random = Random(1);
            (0..100).map(|_| edge_flow(&mut random, family, &any)).collect()
        };
        let mut out = vec![0; flows.len()];
        classifier.classify(&flows, &mut out);
        assert!(out.iter().all(|&found| found == NONE));
        classifier.classify(&[], &mut []);
    }
}

#[test]
fn lists_of_every_length_are_searched_to_their_end() {
    let mut random = Random(3);
    for count in 1..=140 {
        for lie in [Lie::Adjacent, Lie::Unaligned] {
            let rules = random_rules(&mut random, Family::V4, lie, count);
            compare(&mut random, Family::V4, &rules, 65);
        }
    }
}
