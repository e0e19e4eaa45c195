//! The time of adding a policy, by the size of the worker's flow cache (FC-20): a change clears no
//! cache, so it takes as long with a large one.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::super::measure::Figure;
use super::super::{BenchError, LapRefused};
use super::{ChurnArguments, Scene, turns};

/// Buckets of the caches that are compared.
const BUCKETS: [usize; 2] = [1 << 10, 1 << 20];
/// IPv4 entries of a bucket.
const WAYS: usize = 2;
/// Changes a second, half of which are adds.
const CHANGES_PER_S: u32 = 200;
/// Turns of each cache.
const TURNS: usize = 5;
/// The largest difference of both medians, as a part of the smaller cache's.
const LIMIT: f64 = 0.1;

/// The time of adds with one size of the cache.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Adds {
    buckets: usize,
    policies: usize,
    adds: usize,
    /// Time from the beginning of an add until the worker has it, median.
    add_effect_ms: f64,
    spread: f64,
}

/// Measures adds with each cache, in turn.
///
/// # Errors
/// [`BenchError`].
pub(super) fn measure(
    arguments: &ChurnArguments,
    cores: [usize; 2],
    seed: u64,
) -> Result<Vec<Adds>, BenchError> {
    let policies = arguments.policies[0];
    let of = ChurnArguments { seconds: 0, ..arguments.clone() };
    let mut found = BUCKETS.map(|_| Vec::new());
    for _ in 0..TURNS {
        for (buckets, found) in BUCKETS.iter().zip(&mut found) {
            let scene = Scene::new(policies).map_err(|error| BenchError::Lap {
                case: format!("{policies} policies"),
                error: LapRefused(error),
            })?;
            let turns = turns(&of, scene, (&[CHANGES_PER_S], buckets * WAYS), cores, seed)?;
            found.extend(turns.into_iter().flat_map(|turn| turn.adds_ms));
        }
    }
    let adds = BUCKETS.into_iter().zip(found).map(|(buckets, found)| {
        let figure = Figure::of(&found);
        let (add_effect_ms, spread) = (figure.median, figure.spread);
        Adds { buckets, policies, adds: found.len(), add_effect_ms, spread }
    });
    Ok(adds.collect())
}

/// Formats the figures beside the limit.
pub(super) fn table(adds: &[Adds]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["buckets", "policies", "adds", "effect ms", "± IQR"]);
    for row in adds {
        table.add_row([
            row.buckets.to_string(),
            row.policies.to_string(),
            row.adds.to_string(),
            format!("{:.4}", row.add_effect_ms),
            format!("{:.1} %", row.spread * 100.0),
        ]);
    }
    table.column_iter_mut().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    let [small, large] =
        [adds.first(), adds.last()].map(|it| it.map_or(0.0, |it| it.add_effect_ms));
    let found = (large / small - 1.0).abs();
    let word = if found < LIMIT { "reached" } else { "missed" };
    format!(
        "Adding a policy, by buckets of the worker's flow cache (FC-20)\n{table}\n\
         difference of the medians: found {:.1} %, limit {:.0} %: {word}",
        found * 100.0,
        LIMIT * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_further_apart_than_a_tenth_miss_the_limit() {
        let adds = |add_effect_ms| Adds {
            buckets: 1024,
            policies: 1,
            adds: 9,
            add_effect_ms,
            spread: 0.0,
        };
        let word = |other| table(&[adds(0.1), adds(other)]).lines().last().unwrap().to_owned();
        assert!(word(0.105).ends_with("reached"));
        assert!(word(0.112).ends_with("missed") && word(0.088).ends_with("missed"));
    }
}
