//! What is wrong with a configuration: all of it at once, each mistake with its place, its line,
//! the nearest right word and what to do.

use std::fmt::{self, Write};

use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::mistake::Mistake;
use crate::source::{Excerpt, Place, Source, Span};
use crate::text;

/// Errors that are told at most, and warnings too; of the rest only the errors are counted.
pub const MAX_PROBLEMS: usize = 40;

/// Whether a configuration can be used in spite of a problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It cannot: nothing is applied.
    Error,
    /// It can, but is probably not what was meant.
    Warning,
}

/// One thing that is wrong, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Error or warning.
    pub severity: Severity,
    /// Where it is.
    pub place: Place,
    /// What it is.
    pub mistake: Mistake,
    /// The other place it contradicts, if there is one.
    pub earlier: Option<Place>,
    /// `None` where the line may hold a secret.
    excerpt: Option<Excerpt>,
}

impl Problem {
    /// A problem that shows no line of its file.
    pub(crate) fn new(severity: Severity, place: Place, mistake: Mistake) -> Problem {
        Problem { severity, place, mistake, earlier: None, excerpt: None }
    }
}

impl Problem {
    /// The problem in one line: `file:line:column: message`.
    fn headline(&self) -> String {
        let kind = if self.severity == Severity::Warning { "warning: " } else { "" };
        let file = text::message(&self.place.to_string());
        format!("{file}: {kind}{}", text::message(&self.mistake.to_string()))
    }
}

impl fmt::Display for Problem {
    /// `file:line:column: message`, the source line with a caret, what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline())?;
        if let Some(Excerpt { line, indent, width, .. }) = &self.excerpt {
            let number = self.place.line;
            write!(f, "\n{number:>5} | {line}\n      | {indent}{}", "^".repeat(*width))?;
        }
        if let Some(earlier) = &self.earlier {
            let place = text::message(&earlier.to_string());
            write!(f, "\n      = first in line {} ({place})", earlier.line)?;
        }
        if let Some(help) = self.mistake.help() {
            write!(f, "\n      = {}", text::message(&help))?;
        }
        Ok(())
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Problem", 7)?;
        object.serialize_field("severity", &self.severity)?;
        object.serialize_field("file", &self.place.file)?;
        object.serialize_field("line", &self.place.line)?;
        object.serialize_field("column", &self.place.column)?;
        object.serialize_field("message", &text::message(&self.mistake.to_string()))?;
        let help = self.mistake.help().map(|help| text::message(&help));
        object.serialize_field("help", &help)?;
        object.serialize_field("earlier", &self.earlier)?;
        object.end()
    }
}

/// Why a configuration cannot be used: at least one error, and the warnings beside it. Nothing
/// of it is applied.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct ConfigErrors {
    /// The problems in the order of their places.
    pub problems: Vec<Problem>,
    /// How many more errors there are than [`MAX_PROBLEMS`].
    pub untold: usize,
}

impl ConfigErrors {
    /// One error.
    pub(crate) fn of(place: Place, mistake: Mistake) -> ConfigErrors {
        let problem = Problem::new(Severity::Error, place, mistake);
        ConfigErrors { problems: vec![problem], untold: 0 }
    }

    /// How many errors are told, warnings not counted.
    pub fn errors(&self) -> usize {
        self.problems.iter().filter(|problem| problem.severity == Severity::Error).count()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render(&self.problems))?;
        match (self.errors(), self.untold) {
            (1, 0) => f.write_str("1 error; nothing was applied"),
            (errors, 0) => write!(f, "{errors} errors; nothing was applied"),
            (errors, more) => write!(f, "{errors} errors and {more} more; nothing was applied"),
        }
    }
}

impl std::error::Error for ConfigErrors {}

/// Lines of problems that are shown at most: a screen.
const SCREEN_LINES: usize = 40;

/// Problems as text for a terminal, one after the other, each ending with a newline. Those that do
/// not fit on a screen are one line each, errors before warnings; the rest is counted.
pub fn render(problems: &[Problem]) -> String {
    let full: Vec<String> = problems.iter().map(Problem::to_string).collect();
    if full.iter().map(|text| text.lines().count()).sum::<usize>() <= SCREEN_LINES {
        return full.iter().map(|text| format!("{text}\n")).collect();
    }
    let mut order: Vec<(&Problem, String)> = problems.iter().zip(full).collect();
    order.sort_by_key(|(problem, _)| problem.severity == Severity::Warning);
    let mut text = String::new();
    let (mut room, mut left) = (SCREEN_LINES - 1, order.len());
    let mut untold = [0, 0];
    for (problem, full) in order {
        let lines = full.lines().count();
        left -= 1;
        match room {
            0 => untold[usize::from(problem.severity == Severity::Warning)] += 1,
            _ if lines + left <= room => {
                room -= lines;
                writeln!(text, "{full}").expect("writing to a string");
            }
            _ => {
                room -= 1;
                writeln!(text, "{}", problem.headline()).expect("writing to a string");
            }
        }
    }
    let counted = |count: usize, word: &str| match count {
        0 => None,
        1 => Some(format!("1 more {word}")),
        count => Some(format!("{count} more {word}s")),
    };
    let [errors, warnings] = untold;
    let more = [counted(errors, "error"), counted(warnings, "warning")];
    let more: Vec<String> = more.into_iter().flatten().collect();
    if !more.is_empty() {
        writeln!(text, "and {}", more.join(" and ")).expect("writing to a string");
    }
    text
}

/// Collects the problems of one file.
pub(crate) struct Problems<'a> {
    source: &'a Source<'a>,
    list: Vec<Problem>,
    /// Errors, told or not.
    errors: usize,
    /// Warnings, told or not.
    warnings: usize,
    /// Sections of which one was rejected by its name: what refers to one of them may be right.
    doubted: Vec<String>,
}

impl<'a> Problems<'a> {
    pub(crate) fn new(source: &'a Source<'a>) -> Problems<'a> {
        Problems { source, list: Vec::new(), errors: 0, warnings: 0, doubted: Vec::new() }
    }

    pub(crate) fn error(&mut self, span: &Span, mistake: Mistake) {
        self.push(Severity::Error, span, mistake, None);
    }

    pub(crate) fn warning(&mut self, span: &Span, mistake: Mistake) {
        self.push(Severity::Warning, span, mistake, None);
    }

    /// An error that contradicts what stands at `earlier`.
    pub(crate) fn clash(&mut self, span: &Span, earlier: &Span, mistake: Mistake) {
        let earlier = self.source.place(earlier);
        self.push(Severity::Error, span, mistake, Some(earlier));
    }

    /// A key that was written twice.
    pub(crate) fn same_key(&mut self, span: &Span, mistake: Mistake) {
        let earlier = self.source.earlier_key(span);
        self.push(Severity::Error, span, mistake, earlier);
    }

    /// Notes no more problems that say that a section of this kind is missing.
    pub(crate) fn doubt(&mut self, section: Option<String>) {
        self.doubted.extend(section);
    }

    /// Returns whether a mistake only repeats that a section was rejected.
    fn follows(&self, mistake: &Mistake) -> bool {
        let doubted = |kind: &str| self.doubted.iter().any(|section| section == kind);
        match mistake {
            Mistake::UnknownPort { .. } => doubted("port"),
            Mistake::UnknownPeer { .. } | Mistake::UnusedPeer { .. } => doubted("peer"),
            Mistake::MissingSection { section } => {
                let name = section.trim_matches(['[', ']']);
                doubted(name.split('.').next().unwrap_or(name))
            }
            _ => false,
        }
    }

    fn push(&mut self, severity: Severity, span: &Span, mistake: Mistake, earlier: Option<Place>) {
        if self.follows(&mistake) {
            return;
        }
        // Each kind has its own limit: no flood of warnings hides an error.
        let told = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        };
        *told += 1;
        if *told > MAX_PROBLEMS {
            return;
        }
        let line = self.source.line_at(span);
        let help = mistake.help().unwrap_or_default();
        let quotes_key = [mistake.to_string(), help].iter().any(|t| self.source.may_hold_key(t));
        let mistake = if quotes_key { Mistake::NotShown } else { mistake };
        let secret = mistake.may_hold_a_secret() || self.source.may_hold_key(line);
        let excerpt = (!secret).then(|| self.source.excerpt(span));
        let place = self.source.place(span);
        self.list.push(Problem { severity, place, mistake, earlier, excerpt });
    }

    /// The line where a span begins, from 1.
    pub(crate) fn line(&self, span: &Span) -> u32 {
        self.source.place(span).line
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The warnings if there was no error.
    pub(crate) fn finish(mut self) -> Result<Vec<Problem>, ConfigErrors> {
        self.list.sort_by(|a, b| a.place.cmp(&b.place));
        if self.has_errors() {
            return Err(ConfigErrors {
                problems: self.list,
                untold: self.errors.saturating_sub(MAX_PROBLEMS),
            });
        }
        Ok(self.list)
    }
}
