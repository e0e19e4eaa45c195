//! The walk ≡ what the oracle says of it, over random worlds and packets.
//!
//! `MODEL_SEED` repeats a run, `PROPTEST_CASES` makes it longer or shorter.

mod agreement;
mod batches;
mod explained;
mod gateway;
mod invariants;
mod packets;
mod replay;
mod routes;
mod sensitivity;
mod verdicts;
mod worlds;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};

/// A runner whose seed is printed, for `cases` cases unless the environment says otherwise.
fn runner(cases: u32) -> TestRunner {
    let config = ProptestConfig::default();
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let seed = match std::env::var("MODEL_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => RandomState::new().hash_one(()),
    };
    println!("MODEL_SEED={seed}");
    let cases = if asked { config.cases } else { cases };
    let max_shrink_iters = 2000;
    let config = ProptestConfig { cases, max_shrink_iters, failure_persistence: None, ..config };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Runs a property, and fails with the smallest counterexample found.
fn check<S: Strategy>(
    cases: u32,
    strategy: S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    match runner(cases).run(&strategy, property) {
        Ok(()) => {}
        // The value is pages long; what matters of it is in the reason.
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        Err(failure) => panic!("{failure}"),
    }
}
