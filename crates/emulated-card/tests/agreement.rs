//! A card and the walk behind it say of every packet what the walk alone says, at every moment:
//! random rules, random cards, random packets, and a card's events in any order, late, twice and
//! never.
//!
//! The oracle is the linear search over the rules. Frames are made by `wire`'s builder; the card
//! reads them with a parser of its own.

mod common;

use std::cell::Cell;

use common::{Card, World, draw};
use offload::Effect;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Worlds that are drawn.
const WORLDS: u32 = 1500;

// HA-07, HA-12, HA-15, HA-20, HA-21, HA-28
#[test]
fn card_and_software_are_software_alone_at_every_moment() {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: WORLDS,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let steps = proptest::collection::vec(draw::step(), 1..160);
    let rules = proptest::collection::vec(draw::line(), 0..14);
    let (judged, tagged) = (Cell::new(0), Cell::new(0));
    let drawn = (any::<u64>(), steps, rules, draw::card());
    let result = runner.run(&drawn, |(seed, steps, rules, card)| {
        let mut world = World::new(Card::of(card), rules, seed);
        for step in steps {
            world.step(&step).map_err(TestCaseError::fail)?;
        }
        judged.set(judged.get() + world.judged);
        tagged.set(tagged.get() + world.tagged);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    // Else nothing was tried: about a tenth of the packets has a mark that counts.
    println!("{} packets, {} by their marks", judged.get(), tagged.get());
    assert!(judged.get() > 50_000 && tagged.get() > 5000, "{judged:?} {tagged:?}");
}

// HA-05, HA-12
/// Beside marks the card drops what rules deny. What it drops nobody judges again: once a change
/// was answered, which waits until nothing is unconfirmed, it drops nothing that the rules let
/// pass, and before that too much alone.
#[test]
fn a_card_that_drops_drops_what_the_rules_drop_after_each_answer_and_never_less() {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: WORLDS,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let steps = proptest::collection::vec(draw::step(), 1..160);
    let rules = proptest::collection::vec(draw::line(), 0..14);
    let (judged, dropped) = (Cell::new(0), Cell::new([0u64; 2]));
    let drawn = (any::<u64>(), steps, rules, draw::card());
    let result = runner.run(&drawn, |(seed, steps, mut rules, card)| {
        // Where connections begin nothing is dropped: most worlds have none.
        if !seed.is_multiple_of(4) {
            rules.retain(|rule| rule.action != 2);
        }
        let mut world = World::new(Card::of(card), rules, seed);
        world.effect = Effect::Drop;
        for step in steps {
            world.step(&step).map_err(TestCaseError::fail)?;
        }
        judged.set(judged.get() + world.judged);
        let [sure, awaited] = dropped.get();
        dropped.set([sure + world.dropped[0], awaited + world.dropped[1]]);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    let [sure, awaited] = dropped.get();
    println!(
        "{} packets judged, {sure} dropped, {awaited} while the card was to stop",
        judged.get()
    );
    assert!(judged.get() > 50_000 && sure > 1000 && awaited > 10, "{judged:?} {dropped:?}");
}
