//! The walk ≡ what the oracle says of it, over random worlds and packets.
//!
//! `MODEL_SEED` repeats a run, `PROPTEST_CASES` makes it longer or shorter.

mod agreement;
mod batches;
mod cached;
mod explained;
mod fastpath;
mod gateway;
mod invariants;
mod packets;
mod replay;
mod routes;
#[path = "../seeded/mod.rs"]
mod seeded;
mod seeds;
mod sensitivity;
mod tapped;
mod tracked;
mod verdicts;
mod worlds;

use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};

/// Rounds of cases; a kind never drawn in all of them is out of the generator's reach.
const MOST_ROUNDS: u32 = 5;

/// Runs a property, and fails with the smallest counterexample found.
fn check<S: Strategy>(
    cases: u32,
    strategy: S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    check_by(&mut seeded::runner(cases), &strategy, property);
}

/// Does as [`check`], and draws as many cases again until `lacks` names nothing: chance leaves out
/// a rare kind now and then. Fails if a kind is missing after [`MOST_ROUNDS`] rounds.
/// `PROPTEST_CASES` asks for one round and for no kind.
fn check_until_seen<S: Strategy>(
    cases: u32,
    strategy: S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
    lacks: impl Fn() -> Vec<String>,
) {
    let mut seeded = seeded::runner(cases);
    let mut missing = Vec::new();
    for _ in 0..MOST_ROUNDS {
        // A runner runs its number of cases once.
        let mut round = TestRunner::new_with_rng(seeded.config().clone(), seeded.new_rng());
        check_by(&mut round, &strategy, &property);
        missing = lacks();
        if missing.is_empty() || std::env::var_os("PROPTEST_CASES").is_some() {
            return;
        }
        println!("never so far: {missing:?}");
    }
    panic!("the generator never brought about {missing:?}");
}

fn check_by<S: Strategy>(
    runner: &mut TestRunner,
    strategy: &S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    match runner.run(strategy, property) {
        Ok(()) => {}
        // The value is pages long; what matters of it is in the reason.
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        Err(failure) => panic!("{failure}"),
    }
}
