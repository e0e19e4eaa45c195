//! The acceptance rows: what Lockgate must do, row by row, and the tests that prove it.
//!
//! The table is `docs/acceptance.md`. A person writes its rows, with a status; this writes the last
//! column, from the comments of the tests: a test proves the rows that a comment in it, or directly
//! above it, names (`// FC-22`). A comment outside tests refers to a row and proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::sources::Source;
use crate::{Failure, output, program, root};

mod tests_of;

use tests_of::tests_of;

/// The table, from the workspace's root.
const FILE: &str = "docs/acceptance.md";
/// Letters before the number of a row. Other rows have names of their own.
const SYSTEMS: &[&str] = &["FC", "XO", "AX", "HA", "BM"];
/// Beginning of the heading of a table of rows.
const FIRST_COLUMN: &str = "id";
/// Rows that are drawn for a closer look.
const DRAWN: usize = 20;
/// The line that counts rows begins so.
const COUNT_LINE: &str = "Rows: ";

/// Extent to which tests hold a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Status {
    /// The named tests fail if the criterion does.
    Held,
    /// The named tests hold a part of the criterion.
    Half,
    /// Nothing holds it yet.
    Open,
}

impl Status {
    fn of(word: &str) -> Option<Status> {
        match word {
            "held" => Some(Status::Held),
            "half" => Some(Status::Half),
            "open" => Some(Status::Open),
            _ => None,
        }
    }
}

/// A row of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    line: usize,
    id: String,
    status: String,
    /// The cells as they stand in the file; the last is that of the tests.
    cells: Vec<String>,
}

/// A test, and the rows that its comments name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Proof {
    /// Package and function: `policy: a_name`.
    name: String,
    /// Its file.
    path: PathBuf,
    rows: BTreeSet<String>,
}

/// A row that is held, with the tests that name it.
pub(crate) struct Held {
    pub(crate) id: String,
    /// Their names, `policy: a_name`, and their files.
    pub(crate) proofs: Vec<(String, PathBuf)>,
}

/// The table as it is and as it should be, with what is wrong with it.
struct Report {
    is: String,
    should_be: String,
    findings: Vec<String>,
}

/// Writes the column of tests. Fails if a row claims more than tests prove.
pub(crate) fn write(sources: &[Source]) -> Result<(), Failure> {
    let report = report(sources)?;
    let path = root().join(FILE);
    if report.is != report.should_be {
        std::fs::write(&path, &report.should_be).map_err(Failure::write(&path))?;
    }
    let count = report.should_be.lines().find(|line| line.starts_with(COUNT_LINE));
    println!("{FILE}: {}", count.unwrap_or_default());
    report.findings.iter().for_each(|finding| println!("  {finding}"));
    match report.findings.len() {
        0 => Ok(()),
        findings => Err(Failure::Untidy { findings }),
    }
}

/// Returns what `tidy` finds in the table.
pub(crate) fn findings(sources: &[Source]) -> Result<Vec<String>, Failure> {
    let Report { is, should_be, mut findings } = report(sources)?;
    if is != should_be {
        findings.push(format!("{FILE} is not what the tests say: run `cargo xtask rows`"));
    }
    Ok(findings)
}

/// Prints the rows that a commit draws: of those that are held, the first by a hash of the commit
/// and the row.
pub(crate) fn draw(commit: &str) -> Result<(), Failure> {
    let spelled = format!("{commit}^{{commit}}");
    let commit = output(program("git").args(["rev-parse", "--verify", "--quiet", &spelled]))?;
    let path = root().join(FILE);
    let text = std::fs::read_to_string(&path).map_err(Failure::read(&path))?;
    for row in drawn(&rows(&text), commit.trim()) {
        println!("{}: {}", row.id, row.cells.last().map_or("", String::as_str));
    }
    Ok(())
}

fn drawn<'a>(rows: &'a [Row], commit: &str) -> Vec<&'a Row> {
    let held = rows.iter().filter(|row| Status::of(&row.status) == Some(Status::Held));
    let mut held: Vec<&Row> = held.collect();
    held.sort_by_key(|row| (hash(&format!("{commit} {}", row.id)), row.id.clone()));
    held.truncate(DRAWN);
    held
}

/// FNV-1a over the bytes, then mixed: near texts are far apart.
pub(crate) fn hash(text: &str) -> u64 {
    let fnv = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ fnv >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ mixed >> 33
}

fn report(sources: &[Source]) -> Result<Report, Failure> {
    let path = root().join(FILE);
    let is = std::fs::read_to_string(&path).map_err(Failure::read(&path))?;
    let rows = rows(&is);
    let proofs = proofs(sources, &rows);
    Ok(judge(is, &rows, &proofs))
}

/// The tests of all sources, with the rows that they name.
fn proofs(sources: &[Source], rows: &[Row]) -> Vec<Proof> {
    let known: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let mut proofs = Vec::new();
    for source in sources {
        if let Some(package) = package_of(&source.path) {
            for test in tests_of(&source.path, &source.text) {
                let (name, rows) =
                    (format!("{package}: {}", test.name), row_names(&test.comments, &known));
                proofs.push(Proof { name, path: source.path.clone(), rows });
            }
        }
    }
    proofs
}

/// The rows that are held.
pub(crate) fn held(sources: &[Source]) -> Result<Vec<Held>, Failure> {
    let path = root().join(FILE);
    let text = std::fs::read_to_string(&path).map_err(Failure::read(&path))?;
    let rows = rows(&text);
    let all = proofs(sources, &rows);
    let held = rows.iter().filter(|row| Status::of(&row.status) == Some(Status::Held));
    let proofs_of = |id: &str| {
        let named = all.iter().filter(|proof| proof.rows.contains(id));
        named.map(|proof| (proof.name.clone(), proof.path.clone())).collect()
    };
    Ok(held.map(|row| Held { id: row.id.clone(), proofs: proofs_of(&row.id) }).collect())
}

/// The package that a file is part of, if its tests are among those of `make test` and about
/// Lockgate (those of xtask are about these tables).
fn package_of(path: &Path) -> Option<String> {
    let inside = path.strip_prefix(root()).ok()?;
    let mut parts = inside.components().map(|part| part.as_os_str().to_string_lossy());
    let first = parts.next()?;
    match &*first {
        "crates" | "bin" | "bench" | "tests" => Some(parts.next()?.into_owned()),
        _ => None,
    }
}

/// The rows that a comment names: known ones, and unknown ones of a system.
fn row_names(comments: &str, known: &BTreeSet<&str>) -> BTreeSet<String> {
    let words = comments.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let of_system = |word: &&str| {
        word.split_once('-').is_some_and(|(system, number)| {
            SYSTEMS.contains(&system) && number.starts_with(|c: char| c.is_ascii_digit())
        })
    };
    words.filter(|word| known.contains(word) || of_system(word)).map(str::to_owned).collect()
}

/// The rows of all tables.
fn rows(text: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut is_table = false;
    for (at, line) in text.lines().enumerate() {
        let Some(cells) = cells(line) else {
            is_table = false;
            continue;
        };
        match cells.first().map(String::as_str) {
            Some(FIRST_COLUMN) => is_table = true,
            Some(first) if is_table && !first.starts_with("---") => {
                let status = cells.get(1).cloned().unwrap_or_default();
                rows.push(Row { line: at + 1, id: first.to_owned(), status, cells });
            }
            _ => {}
        }
    }
    rows
}

/// The cells of a line of a table; `\|` is part of a cell.
fn cells(line: &str) -> Option<Vec<String>> {
    let inside = line.strip_prefix('|')?.strip_suffix('|')?;
    let mut cells = vec![String::new()];
    let mut before = ' ';
    for c in inside.chars() {
        match c {
            '|' if before != '\\' => cells.push(String::new()),
            c => cells.last_mut()?.push(c),
        }
        before = c;
    }
    Some(cells.into_iter().map(|cell| cell.trim().to_owned()).collect())
}

/// Compares what rows claim with what tests prove, and writes the column of tests.
fn judge(is: String, rows: &[Row], proofs: &[Proof]) -> Report {
    let mut findings = Vec::new();
    let mut by_row: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for proof in proofs {
        for row in &proof.rows {
            by_row.entry(row).or_default().insert(&proof.name);
        }
    }
    let mut seen = BTreeSet::new();
    let mut counts: BTreeMap<Status, usize> = BTreeMap::new();
    let mut lines: Vec<String> = is.lines().map(str::to_owned).collect();
    for row in rows {
        let Row { line, id, status, cells } = row;
        let tests = by_row.get(id.as_str());
        if !seen.insert(id.as_str()) {
            findings.push(format!("{FILE}:{line}: {id} is there twice"));
        }
        match (Status::of(status), tests) {
            (None, _) => findings.push(format!(
                "{FILE}:{line}: {id}: \"{status}\" is no status: write held, half or open"
            )),
            (Some(Status::Held | Status::Half), None) => findings.push(format!(
                "{FILE}:{line}: {id} is {status}, but no test that runs names it in a comment"
            )),
            (Some(status), _) => *counts.entry(status).or_default() += 1,
        }
        let named = tests.into_iter().flatten().map(|name| format!("`{name}`"));
        let named: Vec<String> = named.collect();
        let mut cells = cells.clone();
        if let Some(last) = cells.last_mut() {
            *last = named.join(", ");
        }
        lines[line - 1] = format!("| {} |", cells.join(" | ")).replace("|  |", "| |");
    }
    for (row, tests) in &by_row {
        if !seen.contains(row) {
            let tests: Vec<&str> = tests.iter().copied().collect();
            findings.push(format!("{FILE}: no row {row}, which is named by {}", tests.join(", ")));
        }
    }
    let count = |status| counts.get(&status).copied().unwrap_or(0);
    let all = [Status::Held, Status::Half, Status::Open].map(count);
    let [held, half, open] = all;
    let sum: usize = all.iter().sum();
    for line in lines.iter_mut().filter(|line| line.starts_with(COUNT_LINE)) {
        *line = format!("{COUNT_LINE}{sum}; held {held}, half {half}, open {open}.");
    }
    Report { is, should_be: lines.join("\n") + "\n", findings }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
# Rows
Rows: 0.

| id | status | behaviour | criterion | kind | tests |
|---|---|---|---|---|---|
| FC-01 | held | first \\| second | it hits | S | old |
| FC-02 | open | other | | D | |
| OWN | half | what we send | | I4 | |

| word | meaning |
|---|---|
| S | stated |
";

    fn proof(name: &str, comments: &str) -> Proof {
        let known = BTreeSet::from(["FC-01", "FC-02", "OWN"]);
        let path = PathBuf::from("a.rs");
        Proof { name: name.to_owned(), path, rows: row_names(comments, &known) }
    }

    fn judged(text: &str, proofs: &[Proof]) -> Report {
        judge(text.to_owned(), &rows(text), proofs)
    }

    #[test]
    fn the_column_of_tests_is_what_the_tests_say() {
        let proofs = [proof("a: one", "// FC-01, OWN"), proof("b: two", "// FC-01: again")];
        let report = judged(TABLE, &proofs);
        assert_eq!(report.findings, [""; 0]);
        let text = &report.should_be;
        assert!(text.contains("| first \\| second | it hits | S | `a: one`, `b: two` |"), "{text}");
        assert!(text.contains("Rows: 3; held 1, half 1, open 1.\n"), "{text}");
        assert!(text.contains("| OWN | half | what we send | | I4 | `a: one` |"), "{text}");
        let again = judged(text, &proofs);
        assert_eq!(again.is, again.should_be);
    }

    #[test]
    fn a_row_that_claims_more_than_tests_prove_is_a_finding() {
        let report = judged(TABLE, &[]);
        let text = report.findings.join("\n");
        assert!(text.contains("FC-01 is held, but no test that runs"), "{text}");
        assert!(text.contains("OWN is half, but no test that runs") && !text.contains("FC-02"));
        let unknown = judged(TABLE, &[proof("a: one", "// FC-01 OWN FC-77 XO-3b AES-128 v9")]);
        let text = unknown.findings.join("\n");
        assert!(text.contains("no row FC-77, which is named by a: one"), "{text}");
        assert!(text.contains("no row XO-3b") && !text.contains("AES"), "{text}");
        let odd = judged(&TABLE.replace("| open |", "| done |"), &[proof("a: one", "FC-01 OWN")]);
        assert!(odd.findings[0].contains("\"done\" is no status"), "{:?}", odd.findings);
        let twice = TABLE.replace("| FC-02 |", "| FC-01 |");
        let twice = judged(&twice, &[proof("a: one", "FC-01 OWN")]);
        assert!(twice.findings.iter().any(|finding| finding.contains("FC-01 is there twice")));
    }

    #[test]
    fn a_draw_depends_on_the_commit_alone_and_takes_held_rows() {
        let line = |number| format!("| FC-{number:02} | held | b | c | S | |\n");
        let text = "| id | status | b | c | k | t |\n|---|\n".to_owned()
            + &(0..40).map(line).collect::<String>()
            + "| FC-99 | open | b | c | S | |\n";
        let all = rows(&text);
        let ids = |commit: &str| -> Vec<&str> {
            drawn(&all, commit).iter().map(|row| row.id.as_str()).collect()
        };
        assert_eq!(ids("aa"), ids("aa"));
        assert_ne!(ids("aa"), ids("ab"));
        assert_eq!(ids("aa").len(), DRAWN);
        let some: BTreeSet<&str> = (0..50).flat_map(|n| ids(&n.to_string()).to_vec()).collect();
        assert!(some.len() == 40 && !some.contains("FC-99"), "{some:?}");
    }
}
