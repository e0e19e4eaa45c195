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
use proptest::test_runner::TestError;

/// Runs a property, and fails with the smallest counterexample found.
fn check<S: Strategy>(
    cases: u32,
    strategy: S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    match seeded::runner(cases).run(&strategy, property) {
        Ok(()) => {}
        // The value is pages long; what matters of it is in the reason.
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        Err(failure) => panic!("{failure}"),
    }
}
