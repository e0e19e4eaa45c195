//! Random tests that can be had again: the seed is printed, and `MODEL_SEED` brings it back.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Returns the number of cases to run: that of the environment (`PROPTEST_CASES`), else `cases`.
pub(crate) fn cases(cases: u32) -> u32 {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    if asked { Config::default().cases } else { cases }
}

/// A runner whose seed is printed.
pub(crate) fn runner(cases: u32) -> TestRunner {
    let seed = match std::env::var("MODEL_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => RandomState::new().hash_one(()),
    };
    println!("MODEL_SEED={seed}");
    let cases = self::cases(cases);
    let max_shrink_iters = 2000;
    let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}
