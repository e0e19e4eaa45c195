//! Figures of plain English by crate: pointing words in comments, names of types, and anonymous
//! tuples as parameters.
//!
//! The committed record (`plain_english/record.json`) only shrinks. [`findings`] names rises
//! above the record; [`renew`] lowers the record.

mod record;
mod sentences;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::shape::{Named, Shape};
use crate::sources::{Source, packages, read, shown, tracked_sources};
use crate::{Failure, output, program, root};
use record::{Figure, Figures, HEAVY, POINTING, RULES, Record, RisenFigure};
use record::{REPEATED, TUPLES, VAGUE};

/// Type names without a meaning outside a file.
const VAGUE_NAMES: &[&str] = &[
    "Told", "Said", "Made", "Known", "Found", "Asked", "Seen", "Whole", "What", "Way", "Form",
    "Place", "Part", "Word", "Own", "Beside", "Nobody",
];
/// The committed record.
const FILE: &str = "xtask/src/plain_english/record.json";
/// Breaches in a finding.
const EXAMPLES: usize = 5;
/// Characters of a quoted sentence.
const QUOTED: usize = 100;

/// A breach of a rule, with file and lines.
struct Breach {
    package: String,
    rule: usize,
    path: PathBuf,
    lines: std::ops::RangeInclusive<usize>,
    text: String,
    /// Rank among the breaches of a rule.
    score: f64,
}

/// The figures of the tree, and the counted breaches.
struct Measurement {
    record: Record,
    breaches: Vec<Breach>,
}

/// Prints the figures by crate, and returns the risen figures, each with new breaches.
pub(crate) fn findings(sources: &[Source], shape: &Shape) -> Result<Vec<String>, Failure> {
    let now = measure(sources, shape);
    let recorded = read_record()?;
    println!("{}", table(&now.record, &recorded));
    Ok(explain(&recorded.risen(&now.record), &now.breaches))
}

/// Writes the record: lower figures, and higher figures of a crate if the tree's does not rise.
pub(crate) fn renew() -> Result<(), Failure> {
    let sources = tracked_sources()?;
    let shape = Shape::read(&packages()?, &sources).map_err(|broken| {
        broken.iter().for_each(|line| println!("{line}"));
        Failure::Untidy { findings: broken.len() }
    })?;
    let now = measure(&sources, &shape);
    let file = root().join(FILE);
    let renewed = match file.exists() {
        true => read_record()?.renewed(&now.record),
        false => Ok(now.record.clone()),
    };
    match renewed {
        Ok(record) => std::fs::write(&file, record.text()).map_err(Failure::write(&file)),
        Err(refused) => {
            println!("the record stays: these figures rise, and the tree's with them");
            let findings = explain(&refused, &now.breaches);
            findings.iter().for_each(|finding| println!("  {finding}"));
            Err(Failure::Untidy { findings: findings.len() })
        }
    }
}

fn read_record() -> Result<Record, Failure> {
    let file = root().join(FILE);
    Record::parse(&read(&file)?).ok_or(Failure::Record { file })
}

fn measure(sources: &[Source], shape: &Shape) -> Measurement {
    let mut breaches = Vec::new();
    let mut crates: BTreeMap<String, Figures> =
        shape.packages().map(|package| (package.to_owned(), Figures::default())).collect();
    let folders = folders(sources);
    for source in sources.iter().filter(|it| it.path.extension().is_some_and(|it| it == "rs")) {
        let package = package_of(&folders, &source.path);
        let figures = crates.entry(package.clone()).or_default();
        for sentence in sentences::sentences(&source.text) {
            add(&mut figures[POINTING], sentence.pointing_words, sentence.words);
            add(&mut figures[HEAVY], usize::from(sentence.is_heavy()), 1);
            let score = sentence.score();
            let breach = |rule| Breach {
                package: package.clone(),
                rule,
                path: source.path.clone(),
                lines: sentence.lines.clone(),
                text: sentence.text.chars().take(QUOTED).collect(),
                score,
            };
            breaches.extend((sentence.pointing_words > 0).then(|| breach(POINTING)));
            breaches.extend(sentence.is_heavy().then(|| breach(HEAVY)));
        }
    }
    let types = shape.types();
    let vague = types.iter().filter(|it| VAGUE_NAMES.contains(&&*it.name)).cloned().collect();
    let rules = [(REPEATED, repeated(types)), (VAGUE, vague), (TUPLES, shape.tuple_parameters())];
    for (rule, names) in rules {
        for name in names {
            add(&mut crates.entry(name.package.clone()).or_default()[rule], 1, 0);
            breaches.push(named_breach(rule, name));
        }
    }
    Measurement { record: Record { crates }, breaches }
}

fn add(figure: &mut Figure, count: usize, total: usize) {
    figure.count += count as u64;
    figure.total += total as u64;
}

fn named_breach(rule: usize, name: Named) -> Breach {
    let Named { package, path, line, name } = name;
    Breach { package, rule, path, lines: line..=line, text: name, score: 0.0 }
}

/// Returns the definitions of a type name from the second in a crate on.
fn repeated(types: Vec<Named>) -> Vec<Named> {
    let mut first = BTreeSet::new();
    let is_repeated = |it: &Named| !first.insert((it.package.clone(), it.name.clone()));
    types.into_iter().filter(is_repeated).collect()
}

/// Returns the folders and names of packages, from the manifests.
fn folders(sources: &[Source]) -> Vec<(&Path, &str)> {
    let manifests = sources.iter().filter(|it| it.path.ends_with("Cargo.toml"));
    manifests.filter_map(|it| Some((it.path.parent()?, package_name(&it.text)?))).collect()
}

fn package_name(manifest: &str) -> Option<&str> {
    let package = manifest.lines().skip_while(|line| line.trim() != "[package]").skip(1);
    let mut keys = package.take_while(|line| !line.starts_with('['));
    let value = keys.find_map(|line| line.strip_prefix("name")?.trim_start().strip_prefix('='))?;
    Some(value.trim().trim_matches('"'))
}

/// Returns the package with the innermost folder around a file.
fn package_of(folders: &[(&Path, &str)], file: &Path) -> String {
    let around = folders.iter().filter(|(folder, _)| file.starts_with(folder));
    let innermost = around.max_by_key(|(folder, _)| folder.components().count());
    innermost.map_or("(no crate)", |(_, name)| *name).to_owned()
}

/// Renders the figures by crate, with the recorded value beside a changed figure.
fn table(now: &Record, recorded: &Record) -> String {
    let mut text = format!("{:<24}", "crate");
    for rule in RULES {
        let _ = write!(text, "{:>18}", rule.head);
    }
    let mut row = |package: &str, figures: &Figures, recorded: Option<&Figures>| {
        let _ = write!(text, "\n{package:<24}");
        for (place, figure) in figures.iter().enumerate() {
            let before = recorded.map(|recorded| recorded[place].text());
            let before = before.filter(|before| *before != figure.text());
            let before = before.map(|before| format!("{before} > ")).unwrap_or_default();
            let _ = write!(text, "{:>18}", format!("{before}{}", figure.text()));
        }
    };
    for (package, figures) in &now.crates {
        row(package, figures, recorded.crates.get(package));
    }
    row("all", &now.sums(), Some(&recorded.sums()));
    text
}

/// Describes figures above the record, each with the worst new breaches.
fn explain(risen: &[RisenFigure], breaches: &[Breach]) -> Vec<String> {
    if risen.is_empty() {
        return Vec::new();
    }
    let added = added_lines();
    let explained = risen.iter().map(|it| {
        let is_new = |breach: &&Breach| {
            let lines = added.get(&breach.path);
            lines.is_some_and(|lines| lines.range(breach.lines.clone()).next().is_some())
        };
        let of_figure = |breach: &&Breach| breach.rule == it.rule && breach.package == it.package;
        let mut new: Vec<&Breach> = breaches.iter().filter(of_figure).filter(is_new).collect();
        new.sort_by(|one, other| other.score.total_cmp(&one.score));
        describe(it, &new)
    });
    explained.collect()
}

fn describe(risen: &RisenFigure, new: &[&Breach]) -> String {
    let rule = &RULES[risen.rule];
    let (before, now) = (risen.recorded.text(), risen.now.text());
    let mut text =
        format!("{}: {}: {now}, recorded {before}: {}", risen.package, rule.title, rule.advice);
    for breach in new.iter().take(EXAMPLES) {
        let (path, line) = (shown(&breach.path), breach.lines.start());
        let _ = write!(text, "\n    {path}:{line}: {}", breach.text);
    }
    text
}

/// Returns the lines added to Rust files since the last change of the record. Without git: none.
fn added_lines() -> BTreeMap<PathBuf, BTreeSet<usize>> {
    let last = output(program("git").args(["log", "-1", "--format=%H", "--", FILE]));
    let commit = last.unwrap_or_default().trim().to_owned();
    if commit.is_empty() {
        return BTreeMap::new();
    }
    let difference = ["diff", "--no-ext-diff", "-U0", &commit, "--", "*.rs"];
    parse_difference(&output(program("git").args(difference)).unwrap_or_default())
}

fn parse_difference(difference: &str) -> BTreeMap<PathBuf, BTreeSet<usize>> {
    let mut added = BTreeMap::<PathBuf, BTreeSet<usize>>::new();
    let mut path = None;
    for line in difference.lines() {
        if let Some(file) = line.strip_prefix("+++ ") {
            path = file.strip_prefix("b/").map(|file| root().join(file));
        } else if line.starts_with("@@ ")
            && let Some(path) = &path
            && let Some(range) = added_range(line)
        {
            added.entry(path.clone()).or_default().extend(range);
        }
    }
    added
}

/// Reads the added lines of a hunk: `@@ -1,2 +3,4 @@`.
fn added_range(hunk: &str) -> Option<std::ops::Range<usize>> {
    let range = hunk.split(' ').find_map(|word| word.strip_prefix('+'))?;
    let (start, count) = range.split_once(',').unwrap_or((range, "1"));
    let start = start.parse::<usize>().ok()?;
    Some(start..start + count.parse::<usize>().ok()?)
}

#[cfg(test)]
mod tests;
