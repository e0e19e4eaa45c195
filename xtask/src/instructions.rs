//! `cargo xtask instructions`: how many instructions the walk takes for a packet, compared
//! with the table that is committed beside the program.
//!
//! Times on a shared machine say little; instructions under callgrind are the same in every run.
//! Valgrind shows each program the same processor (AVX2; neither AVX-512 nor VAES), so counts
//! travel between machines, and say nothing of the forms for wider registers.

mod table;

use std::path::PathBuf;
use std::process::Stdio;

use crate::runs::{Counts, Outcome};
use crate::{Failure, cargo, output, program, root, setup, succeed, target_directory};
use table::{Head, Row, Table, Verdict};

/// The program that walks one row, its package and its profile.
pub(crate) const PROGRAM: &str = "instructions";
/// The program that changes one thing among very many, and its package.
const CHANGES: &str = "changes";
/// Instructions of the control thread that a change of one route, neighbour or SA may take.
const MOST_A_CHANGE: f64 = 150_000.0;
/// The program for a worker's turns among few and among very many objects.
const WORLDS: &str = "worlds";
/// Rows of the program, and the most instructions of a turn: a quarter more than were counted in
/// November 2026 (121, 3177, 3310 and 40,405 among many objects).
const TURNS: [(&str, f64); 4] = [
    ("idle turn", 160.0),
    ("sealed packet", 4_000.0),
    ("opened packet", 4_200.0),
    ("keepalive step", 50_000.0),
];
/// Most instructions of a turn among many objects, as a share of a turn among few. Not for a step
/// of keepalives: few sets send few keepalives.
const MOST_OF_ONE: f64 = 1.05;
/// Rows that `.ci/run` counts; the others are a part of `test-long`.
const SHORT: &[&str] =
    &["forward v4 64", "null out v4 64 hit", "null in v4 64 hit", "aes-128-gcm out v4 64 hit"];

/// Selection of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rows {
    /// The rows that every run of the tests counts.
    Short,
    All,
}

/// Compares the counts of rows with the table. Skipped where the table was made with other tools.
pub(crate) fn check(rows: Rows) -> Result<Outcome, Failure> {
    if !setup::is_there("valgrind") {
        return Ok(Outcome::Skipped("there is no valgrind"));
    }
    let names = build(rows)?;
    let file = table_file();
    let known = Table::read(&file)?;
    let head = head(&names)?;
    let mut counts = Counts::default();
    if let Some(difference) = known.head.difference(&head) {
        println!("the table was made with {difference}");
        check_bounds(rows, &mut counts)?;
        return Ok(match counts.failed() {
            0 => Outcome::Skipped("the table was made with other tools: see the line above"),
            _ => Outcome::Failed(counts),
        });
    }
    println!("{:<34}{:>10}{:>10}{:>9}", "instructions a packet", "table", "now", "change");
    for name in &names {
        let row = count(PROGRAM, name, "packets")?;
        let verdict = known.judge(name, &row);
        println!("{}", verdict.line(name, &row));
        match verdict {
            Verdict::Same => counts.add_passed(),
            _ => counts.add_failed(),
        }
    }
    if counts.failed() > 0 {
        println!("if this is meant: cargo xtask instructions --renew, and say why in the commit");
    }
    check_bounds(rows, &mut counts)?;
    Ok(match counts.failed() {
        0 => Outcome::Passed(counts),
        _ => Outcome::Failed(counts),
    })
}

/// Counts the rows that have bounds. Bounds need no table, so they hold with other tools too.
fn check_bounds(rows: Rows, counts: &mut Counts) -> Result<(), Failure> {
    if rows == Rows::All {
        check_changes(counts)?;
        check_turns(counts)?;
    }
    Ok(())
}

/// Counts what a change of one thing among very many takes. Hash keys are drawn at random there, so
/// that counts differ a little: they are held against a bound, not against a table.
fn check_changes(counts: &mut Counts) -> Result<(), Failure> {
    succeed(cargo().args(["build", "--profile", PROGRAM, "--package", CHANGES]))?;
    println!("{:<34}{:>10}{:>10}", "instructions a change", "at most", "now");
    for name in output(&mut program(built(CHANGES)))?.lines() {
        let row = count(CHANGES, name, "changes")?;
        let is_within = row.instructions <= MOST_A_CHANGE;
        let verdict = if is_within { "" } else { "  MORE" };
        println!("{name:<34}{MOST_A_CHANGE:>10.0}{:>10.0}{verdict}", row.instructions);
        match is_within {
            true => counts.add_passed(),
            false => counts.add_failed(),
        }
    }
    Ok(())
}

/// Counts the instructions of a worker's turn among few and among many objects: at most a bound,
/// and no more among many than among few.
fn check_turns(counts: &mut Counts) -> Result<(), Failure> {
    succeed(cargo().args(["build", "--profile", PROGRAM, "--package", WORLDS]))?;
    println!("{:<34}{:>10}{:>10}{:>10}", "instructions a turn", "at most", "one", "many");
    for (name, most) in TURNS {
        let one = count(WORLDS, &format!("{name}, one of each"), "turns")?.instructions;
        let many = count(WORLDS, &format!("{name}, many"), "turns")?.instructions;
        let is_alike = many <= one * MOST_OF_ONE || name == "keepalive step";
        let is_within = one <= most && many <= most && is_alike;
        let verdict = if is_within { "" } else { "  MORE" };
        println!("{name:<34}{most:>10.0}{one:>10.0}{many:>10.0}{verdict}");
        match is_within {
            true => counts.add_passed(),
            false => counts.add_failed(),
        }
    }
    Ok(())
}

/// Compares the counts of all rows with the table. Fails if one has changed.
pub(crate) fn run() -> Result<(), Failure> {
    match check(Rows::All)? {
        Outcome::Passed(_) => Ok(()),
        Outcome::Failed(_) => Err(Failure::Tests { failed: 1 }),
        Outcome::Skipped(reason) => {
            println!("SKIPPED: instructions: {reason}");
            Ok(())
        }
    }
}

/// Counts every row and writes the table.
pub(crate) fn renew() -> Result<(), Failure> {
    let names = build(Rows::All)?;
    let mut table = Table { head: head(&names)?, rows: Default::default() };
    for name in names {
        let row = count(PROGRAM, &name, "packets")?;
        println!("{name:<34}{:>10.1}", row.instructions);
        table.rows.insert(name, row);
    }
    table.write(&table_file())
}

fn table_file() -> PathBuf {
    root().join("bench/instructions/table.json")
}

/// Builds the program and returns the rows that it can walk.
pub(crate) fn build(rows: Rows) -> Result<Vec<String>, Failure> {
    succeed(cargo().args(["build", "--profile", PROGRAM, "--package", PROGRAM]))?;
    let all = output(&mut program(built(PROGRAM)))?;
    let wanted = |name: &&str| rows == Rows::All || SHORT.contains(name);
    Ok(all.lines().filter(wanted).map(ToOwned::to_owned).collect())
}

/// A program of the profile of counts.
pub(crate) fn built(name: &str) -> PathBuf {
    target_directory().join(PROGRAM).join(name)
}

/// Runs a row of a program under callgrind, and divides the count by how many `of` it says.
fn count(program: &str, name: &str, of: &str) -> Result<Row, Failure> {
    let (counts, packets) = counted((program, name), of, &[])?;
    let row = Row::of(&counts, packets);
    match row.instructions > 0.0 {
        true => Ok(row),
        false => Err(Failure::Instructions { row: name.to_owned() }),
    }
}

/// Runs a row under callgrind with flags; returns the instructions by source file and symbol, and
/// the number of packets.
pub(crate) fn walked(name: &str, flags: &[&str]) -> Result<(callgrind::Counts, u64), Failure> {
    counted((PROGRAM, name), "packets", flags)
}

fn counted(
    (program, name): (&str, &str),
    of: &str,
    flags: &[&str],
) -> Result<(callgrind::Counts, u64), Failure> {
    let written = target_directory().join(PROGRAM).join("callgrind.out");
    let said = walk((program, name), flags, &written)?;
    let packets = value(&said, of).and_then(|text| text.parse().ok());
    let packets = packets.ok_or(Failure::Instructions { row: name.to_owned() })?;
    let bytes = std::fs::read(&written).map_err(Failure::read(&written))?;
    Ok((callgrind::read(&String::from_utf8_lossy(&bytes)), packets))
}

/// Runs a row of a program and returns its output. The instructions of its function `counted` are
/// counted, with what that calls.
fn walk(
    (of, name): (&str, &str),
    flags: &[&str],
    written: &std::path::Path,
) -> Result<String, Failure> {
    let mut command = program("valgrind");
    command.args(["--quiet", "--tool=callgrind"]).args(flags);
    command.arg(format!("--toggle-collect=*{of}*counted*"));
    command.arg(format!("--callgrind-out-file={}", written.display()));
    output(command.arg(built(of)).args(name.split(' ')).stdin(Stdio::null()))
}

/// Returns the rest of the line that begins with a word.
fn value<'t>(said: &'t str, word: &str) -> Option<&'t str> {
    said.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '))
}

/// Returns the tools that counts depend on.
fn head(names: &[String]) -> Result<Head, Failure> {
    let line = |command: &mut std::process::Command| -> Result<String, Failure> {
        Ok(output(command)?.lines().next().unwrap_or_default().trim().to_owned())
    };
    let ciphered = names.iter().find(|name| name.starts_with("aes"));
    let ciphered = ciphered.ok_or(Failure::Instructions { row: "aes".into() })?;
    let written = target_directory().join(PROGRAM).join("callgrind.out");
    let said = walk((PROGRAM, ciphered), &[], &written)?;
    let manifest = root().join("Cargo.toml");
    let manifest = std::fs::read_to_string(&manifest).map_err(Failure::read(&manifest))?;
    Ok(Head {
        compiler: line(program("rustc").arg("--version"))?,
        valgrind: line(program("valgrind").arg("--version"))?,
        profile: table::profile(&manifest, PROGRAM),
        instruction_set: value(&said, "set").unwrap_or_default().to_owned(),
        ciphers: value(&said, "ciphers").unwrap_or_default().to_owned(),
    })
}
