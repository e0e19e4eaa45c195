//! Pictures of stores in the path of packets, as `lockgate bench store --paths` has them.
//!
//! A store costs mostly waiting for memory there, which instructions do not show: perf takes
//! samples by the clock. So no two runs draw the same picture, and a picture is of one machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use inferno::collapse::{Collapse, perf::Folder};

use super::draw;
use crate::{Build, Failure, build_programs, output, program, succeed, target_directory};

/// The bench's function that is drawn: a lookup for each packet, then the worker's fast path.
const WITHIN: &str = "::Path::timed";
/// Endpoints of the stores.
const ENTRIES: &str = "100000";
/// Samples a second; of each, bytes of the stack.
const FREQUENCY: &str = "2999";
const CALLERS: &str = "dwarf,8192";

/// A store, as the bench calls it.
pub(super) struct Store {
    name: &'static str,
    pub(super) title: &'static str,
}

/// The stores, in the order in which Arion went through their kinds.
pub(super) const ALL: [Store; 4] = [
    Store { name: "sqlite", title: "SQLite in the path of packets" },
    Store { name: "concurrent-map", title: "A concurrent map in the path of packets" },
    Store { name: "map", title: "A map in the path of packets" },
    Store { name: "table-batch", title: "The table of workers in the path of packets" },
];

impl Store {
    /// Name of its picture.
    pub(super) fn picture(&self) -> String {
        format!("store-{}", self.name)
    }
}

/// Draws all of them.
pub(super) fn run(folder: &Path) -> Result<(), Failure> {
    let bench = build_programs(Build::Release, "bench")?.join("lockgate-bench");
    println!("{:<24}{:>10}", "picture", "ms of CPU");
    for store in ALL {
        let stacks = folded(&sampled(&bench, store.name)?);
        let all: u64 = stacks.values().sum();
        if all == 0 {
            return Err(Failure::Instructions { row: store.picture() });
        }
        let file = folder.join(format!("{}.svg", store.picture()));
        let subtitle = format!("{ENTRIES} endpoints; samples by the clock, one core");
        draw(&stacks, "ns", [store.title, &subtitle], &file)?;
        println!("{:<24}{:>10}", store.picture(), all / 1_000_000);
    }
    Ok(())
}

/// Runs the bench with one store, and returns its samples as folded stacks. Each counts as the
/// nanoseconds since the one before.
fn sampled(bench: &Path, store: &str) -> Result<String, Failure> {
    let data = target_directory().join("flame.data");
    let mut record = program("perf");
    record.args(["record", "--quiet", "--event", "cpu-clock", "--freq", FREQUENCY]);
    record.args(["--mmap-pages", "1024"]);
    record.args(["--call-graph", CALLERS, "--output"]).arg(&data).arg("--").arg(bench);
    record.args(["store", "--paths", "--store", store, "--entries", ENTRIES]);
    succeed(record.stdout(Stdio::null()))?;
    // Names of what is inlined would take minutes.
    let script = output(program("perf").args(["script", "--no-inline", "--input"]).arg(&data))?;
    let mut folded = Vec::new();
    Folder::default()
        .collapse(script.as_bytes(), &mut folded)
        .map_err(|error| Failure::Read { file: data.clone(), error })?;
    std::fs::remove_file(&data).map_err(Failure::write(&data))?;
    Ok(String::from_utf8_lossy(&folded).into_owned())
}

/// Returns the nanoseconds within [`WITHIN`] by call chain, which begins below it.
fn folded(samples: &str) -> BTreeMap<String, u64> {
    let mut stacks = BTreeMap::new();
    for line in samples.lines() {
        let Some((chain, count)) = line.rsplit_once(' ') else { continue };
        let Ok(count) = count.parse::<u64>() else { continue };
        let mut frames = chain.split(';');
        if frames.any(|frame| frame.ends_with(WITHIN)) {
            let below: Vec<&str> = frames.collect();
            let stack = if below.is_empty() { "the loop".to_owned() } else { below.join(";") };
            *stacks.entry(stack).or_default() += count;
        }
    }
    stacks
}

#[cfg(test)]
mod tests {
    use super::*;

    // BM-4g
    #[test]
    fn samples_begin_below_the_timed_span_and_others_are_left_out() {
        let samples = "bench;main;bench::store::paths::path::Path::timed;a;b 5\n\
                       bench;main;bench::store::paths::path::Path::timed 2\n\
                       bench;main;bench::store::paths::path::Path::timed;a;b 3\n\
                       bench;main;bench::store::paths::path::Path::carry;memcpy 7\n";
        let folded: Vec<_> = folded(samples).into_iter().collect();
        assert_eq!(folded, [("a;b".to_owned(), 8), ("the loop".to_owned(), 2)]);
    }
}
