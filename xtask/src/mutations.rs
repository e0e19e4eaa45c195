//! Changes of one line ("mutations"), each of which a test must notice.
//!
//! `tests/mutations.json` has at least one for each row of `docs/acceptance.md` that is held: the
//! text to find, once in its file, what replaces it, and the test that must then fail. `tidy`
//! checks that this still fits the sources. The changes are made in a copy of the tree, one at a
//! time, with a target directory of its own that is kept; the tree itself is never changed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::runs::{Counts, Outcome};
use crate::sources::Source;
use crate::{Failure, output, program, root, rows, sources, target_directory};

mod scratch;

use scratch::{Fate, Scratch, Target};

/// The list of changes, from the workspace's root.
const FILE: &str = "tests/mutations.json";
/// A draw begins no change after so long.
const LIMIT: Duration = Duration::from_secs(9 * 60);
/// The keys of an entry.
const KEYS: [&str; 6] = ["row", "file", "find", "replace", "package", "test"];

/// A change, and the test that must notice it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mutation {
    row: String,
    /// From the workspace's root.
    file: String,
    find: String,
    replace: String,
    package: String,
    test: String,
}

impl Mutation {
    /// The changed text of its file. `None`: the text to find is not there exactly once.
    fn changed(&self, text: &str) -> Option<String> {
        let once = text.matches(&self.find).count() == 1;
        once.then(|| text.replacen(&self.find, &self.replace, 1))
    }

    /// Its test's name, as in the table of rows.
    fn proof(&self) -> String {
        format!("{}: {}", self.package, self.test)
    }
}

/// Changes to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// Those of a row.
    Row(String),
    /// All of them.
    All,
    /// As many as fit into the time, in an order that the commit draws.
    Drawn,
}

/// Reads the list.
///
/// # Errors
/// The reason why it is no list of changes.
fn parse(text: &str) -> Result<Vec<Mutation>, Mistake> {
    let list: Value = serde_json::from_str(text).map_err(Mistake::Json)?;
    let list = list.as_array().ok_or(Mistake::NoList)?;
    let read = |(place, entry): (usize, &Value)| {
        let known = |key: &String| KEYS.contains(&key.as_str());
        let complete =
            entry.as_object().is_some_and(|o| o.len() == KEYS.len() && o.keys().all(known));
        let word = |key| entry[key].as_str().map(str::to_owned);
        let [row, file, find, replace, package, test] = KEYS.map(word);
        let made = || {
            let (row, file, find) = (row?, file?, find?);
            Some(Mutation { row, file, find, replace: replace?, package: package?, test: test? })
        };
        made().filter(|_| complete).ok_or(Mistake::Entry { place: place + 1 })
    };
    list.iter().enumerate().map(read).collect()
}

/// Reason why the list cannot be read.
#[derive(Debug)]
enum Mistake {
    Json(serde_json::Error),
    NoList,
    Entry { place: usize },
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mistake::Json(error) => write!(f, "{FILE}: {error}"),
            Mistake::NoList => write!(f, "{FILE}: not a list"),
            Mistake::Entry { place } => {
                let keys = KEYS.join(", ");
                write!(f, "{FILE}: entry {place} does not consist of {keys}, each a text")
            }
        }
    }
}

/// Returns what `tidy` finds in the list: entries that no longer fit the sources, held rows without
/// an entry.
pub(crate) fn findings(sources: &[Source]) -> Result<Vec<String>, Failure> {
    let text = |path: &str| {
        let path = root().join(path);
        sources.iter().find(|source| source.path == path).map(|source| source.text.as_str())
    };
    let list = match text(FILE).map(parse) {
        None => return Ok(vec![format!("{FILE} is missing")]),
        Some(Err(mistake)) => return Ok(vec![mistake.to_string()]),
        Some(Ok(list)) => list,
    };
    let held = rows::held(sources)?;
    let mut findings: Vec<String> = list.iter().flat_map(|one| misfits(one, &held, text)).collect();
    let tried: BTreeSet<&str> = list.iter().map(|one| one.row.as_str()).collect();
    let without = held.iter().filter(|row| !tried.contains(row.id.as_str()));
    findings.extend(without.map(|row| {
        format!("{FILE}: {} is held, but no change shows that its tests fail: add one", row.id)
    }));
    Ok(findings)
}

/// Returns why a change does not fit the sources.
fn misfits<'s>(
    one: &Mutation,
    held: &[rows::Held],
    text: impl Fn(&str) -> Option<&'s str>,
) -> Vec<String> {
    let Mutation { row, file, find, replace, .. } = one;
    let mut findings = Vec::new();
    match text(file).map(|text| text.matches(find).count()) {
        None => findings.push(format!("{FILE}: {row}: there is no file {file}")),
        Some(1) => {}
        Some(times) => {
            findings
                .push(format!("{FILE}: {row}: found {times} times, not once, in {file}: {find}"));
        }
    }
    if find == replace {
        findings.push(format!("{FILE}: {row}: the change changes nothing"));
    }
    match held.iter().find(|held| held.id == *row) {
        None => findings.push(format!("{FILE}: {row} is not held: remove its entry")),
        Some(held) if !held.proofs.iter().any(|(name, _)| *name == one.proof()) => {
            findings.push(format!("{FILE}: {row}: no test `{}` names the row", one.proof()));
        }
        Some(_) => {}
    }
    findings
}

/// Tries changes as the command line says. Fails if one of them is not caught.
pub(crate) fn run(choice: &Choice) -> Result<(), Failure> {
    match try_out(choice)? {
        Outcome::Failed(counts) => Err(Failure::Uncaught { changes: counts.failed() }),
        Outcome::Passed(_) | Outcome::Skipped(_) => Ok(()),
    }
}

/// Tries a draw of the changes: a part of the long tests.
pub(crate) fn draw() -> Result<Outcome, Failure> {
    try_out(&Choice::Drawn)
}

/// Tries changes and prints a line for each.
///
/// 1. copies the tree, builds it and runs the tests; one that fails unchanged proves nothing
/// 2. for each change: makes it, builds the one test program, runs the one test
fn try_out(choice: &Choice) -> Result<Outcome, Failure> {
    let start = Instant::now();
    let sources = sources::tracked_sources()?;
    let (all, chosen) = chosen(choice, &sources)?;
    let held = rows::held(&sources)?;
    let aims = chosen.iter().map(|one| (one, target_of(one, &held)));
    let aims: Vec<(&Mutation, Option<Target>)> = aims.collect();
    let targets: BTreeSet<Target> = aims.iter().filter_map(|(_, target)| target.clone()).collect();
    println!("mutations: builds the unchanged copy");
    let scratch = Scratch::prepare(&target_directory().join("mutations"))?;
    let unchanged = scratch.build(&targets)?;
    if !unchanged.complete {
        println!("the unchanged copy does not compile:\n{}", unchanged.errors);
        return Ok(Outcome::Failed(Counts::default()));
    }
    // All of them now: later builds put their programs in the place of these.
    let mut before = Vec::new();
    for (one, target) in &aims {
        let fate = target.as_ref().map(|target| scratch.run(&unchanged, target, one));
        before.push(fate.transpose()?.unwrap_or(Fate::Absent));
    }
    println!("mutations: built and tested after {:.0} s", start.elapsed().as_secs_f64());
    let (mut counts, mut longest) = (Counts::default(), Duration::ZERO);
    let mut tried = 0;
    for ((one, target), before) in aims.iter().zip(before) {
        if *choice == Choice::Drawn && tried > 0 && start.elapsed() + longest > LIMIT {
            break;
        }
        let began = Instant::now();
        let result = match (target, before) {
            (Some(target), Fate::Passed) => try_one(&scratch, target, one)?,
            (Some(_), Fate::Skipped) => Tried::Skipped,
            _ => Tried::Failed(format!("without the change the test {before}")),
        };
        let seconds = began.elapsed().as_secs_f64();
        println!("{:<6} {result} ({}) {seconds:.0} s", one.row, one.proof());
        match result {
            Tried::Caught => counts.add_passed(),
            Tried::Failed(_) => counts.add_failed(),
            Tried::Skipped => counts.add_skipped(),
        }
        (longest, tried) = (longest.max(began.elapsed()), tried + 1);
    }
    println!("mutations: tried {tried} of {all} changes");
    Ok(if counts.failed() > 0 { Outcome::Failed(counts) } else { Outcome::Passed(counts) })
}

/// Result of a change.
enum Tried {
    /// The test failed.
    Caught,
    /// The test cannot run here.
    Skipped,
    /// Nothing shows that the test notices the change; the reason.
    Failed(String),
}

impl std::fmt::Display for Tried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tried::Caught => write!(f, "caught"),
            Tried::Skipped => write!(f, "SKIPPED: its test cannot run here"),
            Tried::Failed(reason) => write!(f, "NOT CAUGHT: {reason}"),
        }
    }
}

/// Makes a change in the copy, builds and runs its test, and takes the change back.
fn try_one(scratch: &Scratch, target: &Target, one: &Mutation) -> Result<Tried, Failure> {
    let Some(changed) = one.changed(&scratch.read(&one.file)?) else {
        return Ok(Tried::Failed(format!("the text to find is not once in {}", one.file)));
    };
    let _restored = scratch.change(&one.file, &changed)?;
    let built = scratch.build(&BTreeSet::from([target.clone()]))?;
    if !built.complete {
        return Ok(Tried::Failed(format!("the change does not compile\n{}", built.errors)));
    }
    Ok(match scratch.run(&built, target, one)? {
        Fate::Failed | Fate::Endless => Tried::Caught,
        Fate::Skipped => Tried::Skipped,
        Fate::Passed => Tried::Failed("the test passes".into()),
        Fate::Absent => Tried::Failed("the test did not run".into()),
    })
}

/// The number of all changes, and those to try in their order.
fn chosen(choice: &Choice, sources: &[Source]) -> Result<(usize, Vec<Mutation>), Failure> {
    let path = root().join(FILE);
    let text = sources.iter().find(|source| source.path == path).map(|source| &*source.text);
    let list = parse(text.unwrap_or_default()).map_err(|mistake| {
        println!("{mistake}");
        Failure::Untidy { findings: 1 }
    })?;
    let all = list.len();
    let mut chosen = list;
    match choice {
        Choice::All => {}
        Choice::Row(row) => {
            chosen.retain(|one| one.row == *row);
            if chosen.is_empty() {
                return Err(Failure::NoMutation { row: row.clone() });
            }
        }
        Choice::Drawn => {
            let commit = output(program("git").args(["rev-parse", "HEAD"]))?;
            println!("mutations: in the order that {} draws", commit.trim());
            shuffle(&mut chosen, commit.trim());
        }
    }
    Ok((all, chosen))
}

/// Puts changes into an order that depends on the commit alone.
fn shuffle(list: &mut [Mutation], commit: &str) {
    let key = |one: &Mutation| rows::hash(&format!("{commit} {} {}", one.row, one.find));
    list.sort_by_key(|one| (key(one), one.row.clone()));
}

/// The test program that a change's test is in.
fn target_of(one: &Mutation, held: &[rows::Held]) -> Option<Target> {
    let held = held.iter().find(|held| held.id == one.row)?;
    let (_, path) = held.proofs.iter().find(|(name, _)| *name == one.proof())?;
    target_of_file(path.strip_prefix(root()).ok()?)
}

/// The test program of a source file: `crates/NAME/src/…`, `bin/NAME/src/…`,
/// `…/tests/PROGRAM.rs`, `…/tests/PROGRAM/…`.
fn target_of_file(path: &Path) -> Option<Target> {
    let parts: Vec<String> =
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    match parts.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bin", package, "src", ..] | ["bench", package @ "lockgate-bench", "src", ..] => {
            Some(Target::Program(package.to_owned()))
        }
        [_, package, "src", ..] => Some(Target::Library(package.to_owned())),
        [_, package, "tests", name, ..] => {
            let name = name.strip_suffix(".rs").unwrap_or(name).to_owned();
            Some(Target::Tests { package: package.to_owned(), name })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"[{"row": "FC-01", "file": "a.rs", "find": "x + 1", "replace": "x - 1",
        "package": "wire", "test": "one"}]"#;

    fn list() -> Vec<Mutation> {
        parse(LIST).unwrap()
    }

    fn held(proof: &str) -> Vec<rows::Held> {
        let proofs = vec![(proof.to_owned(), root().join("crates/wire/src/packet/tests.rs"))];
        vec![rows::Held { id: "FC-01".into(), proofs }]
    }

    #[test]
    fn an_entry_consists_of_its_keys_and_no_others() {
        assert_eq!(list().len(), 1);
        for (from, to) in [("\"row\"", "\"raw\""), ("\"one\"", "1"), ("{", "{\"how\": \"\", ")] {
            let refused = parse(&LIST.replace(from, to)).unwrap_err().to_string();
            assert!(refused.contains("entry 1 does not consist of row, file"), "{refused}");
        }
        assert!(matches!(parse("{}"), Err(Mistake::NoList)));
        assert!(matches!(parse("["), Err(Mistake::Json(_))));
    }

    #[test]
    fn a_change_is_made_where_its_text_is_once() {
        let one = &list()[0];
        assert_eq!(one.changed("let y = x + 1;").as_deref(), Some("let y = x - 1;"));
        assert_eq!(one.changed("x + 1; x + 1"), None);
        assert_eq!(one.changed("x + 2"), None);
    }

    #[test]
    fn what_no_longer_fits_the_sources_is_a_finding() {
        let one = &list()[0];
        let of =
            |text: Option<&'static str>, proof| misfits(one, &held(proof), |_| text).join("\n");
        assert_eq!(of(Some("x + 1"), "wire: one"), "");
        assert!(of(Some("x + 1, x + 1"), "wire: one").contains("found 2 times, not once, in a.rs"));
        assert!(of(Some(""), "wire: one").contains("found 0 times"));
        assert!(of(None, "wire: one").contains("there is no file a.rs"));
        assert!(of(Some("x + 1"), "policy: one").contains("no test `wire: one` names the row"));
        assert!(misfits(one, &[], |_| Some("x + 1"))[0].contains("FC-01 is not held"));
        let same = Mutation { replace: one.find.clone(), ..one.clone() };
        assert!(
            misfits(&same, &held("wire: one"), |_| Some("x + 1"))[0].contains("changes nothing")
        );
    }

    #[test]
    fn the_order_depends_on_the_commit_alone() {
        let one = &list()[0];
        let many = || (0..9).map(|n| Mutation { row: format!("FC-{n}"), ..one.clone() });
        let drawn = |commit: &str, mut list: Vec<Mutation>| {
            shuffle(&mut list, commit);
            list
        };
        assert_eq!(drawn("aa", many().collect()), drawn("aa", many().rev().collect()));
        assert_ne!(drawn("aa", many().collect()), drawn("ab", many().collect()));
    }

    #[test]
    fn a_test_is_run_in_the_program_of_its_file() {
        let of = |path: &str| target_of_file(Path::new(path));
        let tests = |package: &str, name: &str| {
            Some(Target::Tests { package: package.into(), name: name.into() })
        };
        assert_eq!(of("crates/wire/src/packet/tests.rs"), Some(Target::Library("wire".into())));
        assert_eq!(of("bin/lockgated/src/api.rs"), Some(Target::Program("lockgated".into())));
        let bench = of("bench/lockgate-bench/src/spd/published.rs");
        assert_eq!(bench, Some(Target::Program("lockgate-bench".into())));
        assert_eq!(of("crates/config/tests/cache.rs"), tests("config", "cache"));
        assert_eq!(of("tests/packets/tests/walk/cache.rs"), tests("packets", "walk"));
        assert_eq!(of("docs/a.md"), None);
        let one = &list()[0];
        assert_eq!(target_of(one, &held("wire: one")), Some(Target::Library("wire".into())));
        assert_eq!(target_of(one, &held("wire: two")), None);
    }
}
