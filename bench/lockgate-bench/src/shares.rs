//! Counts the walk's instructions: the timed span of one short lap under valgrind's callgrind, its
//! instructions counted by the source file that they were compiled from.
//!
//! Instructions are not time: they miss no cache and stall on no store. They are exact and the same
//! in every run, which times on a shared machine are not. Valgrind shows programs a processor
//! without AVX-512, so the cipher's part is that of its AVX2 form.

use std::collections::{BTreeMap, HashMap};
use std::process::{Command, Stdio};

use comfy_table::{CellAlignment, Table, presets};

use callgrind::Counts;

use super::BenchError;
use super::subject::Subject;

/// The function whose instructions count, with its callees.
const TIMED_SPAN: &str = "--toggle-collect=*scene*packets*drain*";
/// Timed and untimed passes of the lap.
const PASSES: usize = 2;

/// Counts and prints one table a row.
///
/// # Errors
/// [`BenchError`].
pub(super) fn run(subjects: &[Subject]) -> Result<(), BenchError> {
    super::print(
        "instructions of the timed span by the source file they were compiled from; the standard\n\
         library's, inlined everywhere, spread over the files of the function they are in; the \
         pass that\nmakes the cache's entries counts, too",
    )?;
    for subject in subjects {
        let counts = callgrind::read(&count(subject)?);
        let total: u64 = counts.values().sum();
        if total == 0 {
            return Err(BenchError::NothingCounted);
        }
        let table = table(&stages(&counts), subject.case.flows * PASSES);
        super::print(&format!("\n{}\n{table}", subject.label()))?;
    }
    Ok(())
}

/// Runs a lap of a row in this program under callgrind and returns what that wrote.
fn count(subject: &Subject) -> Result<String, BenchError> {
    let program = std::env::current_exe().map_err(BenchError::Valgrind)?;
    let output = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind", "--callgrind-out-file=/dev/stdout", TIMED_SPAN])
        .arg(program)
        .args(["esp", "--callgrind-once"])
        .args(subject.arguments())
        .stderr(Stdio::inherit())
        .output()
        .map_err(BenchError::Valgrind)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(BenchError::UnderValgrind(output.status)),
    }
}

/// Instructions by stage, the most first.
fn stages(counts: &Counts) -> Vec<(String, f64)> {
    let mut of_symbol: HashMap<&str, Vec<(&str, u64)>> = HashMap::new();
    for ((file, symbol), count) in counts {
        if let Some(stage) = stage(file) {
            of_symbol.entry(symbol).or_default().push((stage, *count));
        }
    }
    let mut stages: BTreeMap<String, f64> = BTreeMap::new();
    for ((file, symbol), count) in counts {
        let count = *count as f64;
        match (stage(file), of_symbol.get(symbol.as_str())) {
            (Some(stage), _) => *stages.entry(stage.to_owned()).or_default() += count,
            (None, Some(parts)) => {
                let whole: u64 = parts.iter().map(|(_, count)| count).sum();
                for (stage, part) in parts {
                    *stages.entry((*stage).to_owned()).or_default() +=
                        count * *part as f64 / whole as f64;
                }
            }
            (None, None) => *stages.entry(nobodys(symbol).to_owned()).or_default() += count,
        }
    }
    let mut stages: Vec<_> = stages.into_iter().collect();
    stages.sort_by(|a, b| b.1.total_cmp(&a.1));
    stages
}

/// Returns the stage that a source file stands for; `None`: code that belongs to its caller.
fn stage(file: &str) -> Option<&str> {
    if file.contains("aws-lc") {
        return Some("cipher library");
    }
    if file.contains("/bench/") {
        return Some("bench (clock)");
    }
    let (_, ours) = file.split_once("crates/")?;
    ours.contains("/src/").then_some(ours)
}

/// Returns the stage of a symbol whose source file is unknown. Code without even a name is the
/// assembly of ipsec-mb.
fn nobodys(symbol: &str) -> &str {
    if symbol.starts_with("0x") { "cipher library (code without names)" } else { symbol }
}

fn table(stages: &[(String, f64)], packets: usize) -> String {
    let total: f64 = stages.iter().map(|(_, count)| count).sum();
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["instructions/packet", "share", "from"]);
    let mut row = |count: f64, from: &str| {
        let share = format!("{:.1} %", 100.0 * count / total);
        table.add_row([format!("{:.0}", count / packets as f64), share, from.to_owned()]);
    };
    row(total, "all");
    let (shown, rest): (Vec<_>, Vec<_>) =
        stages.iter().partition(|(_, count)| *count >= total / 200.0);
    shown.iter().for_each(|(from, count)| row(*count, from));
    row(rest.iter().map(|(_, count)| count).sum(), "all others");
    table.column_iter_mut().take(2).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inlined_library_code_is_spread_over_its_functions_files_and_nothing_is_lost() {
        let counts = [
            ("crates/dataplane/src/walk.rs", "walk", 124),
            ("library/core/slice.rs", "walk", 12),
            ("crates/dataplane/src/seal.rs", "walk", 24),
            ("/aws-lc/gcm.c", "gcm", 5000),
            ("memmove.S", "memmove", 8),
        ];
        let place =
            |(file, symbol, count): (&str, &str, u64)| ((file.into(), symbol.into()), count);
        let stages = stages(&counts.map(place).into_iter().collect());
        let names: Vec<_> = stages.iter().map(|(name, _)| name.as_str()).collect();
        let files = ["dataplane/src/walk.rs", "dataplane/src/seal.rs"];
        assert_eq!(names, ["cipher library", files[0], files[1], "memmove"]);
        let total: f64 = stages.iter().map(|(_, count)| count).sum();
        assert!((total - 5168.0).abs() < 1e-6);
        assert!((stages[1].1 - (124.0 + 12.0 * 124.0 / 148.0)).abs() < 1e-6);
        assert_eq!(nobodys("0x0000000000f74886"), "cipher library (code without names)");
        let text = table(&stages, 10);
        assert!(text.lines().nth(1).is_some_and(|all| all.contains("517")), "{text}");
    }
}
