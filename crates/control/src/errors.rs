//! What is wrong with a configuration: all of it at once, each mistake with its place, its line,
//! the nearest right word and what to do.

use std::fmt::{self, Write};

use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::mistake::Mistake;
use crate::source::{Place, Source, Span};

/// Errors that are told at most, and warnings too; of the rest only the errors are counted.
pub const MAX_PROBLEMS: usize = 200;

/// Whether a configuration can be used in spite of a problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It cannot: nothing is applied.
    Error,
    /// It can, but is probably not what was meant.
    Warning,
}

/// A line of the file and the part of it that a problem is about.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Excerpt {
    line: String,
    width: usize,
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

impl fmt::Display for Problem {
    /// `file:line:column: message`, the source line with a caret, what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.severity == Severity::Warning { "warning: " } else { "" };
        write!(f, "{}: {kind}{}", self.place, self.mistake)?;
        if let Some(Excerpt { line, width }) = &self.excerpt {
            let number = self.place.line;
            let before: String = line
                .chars()
                .take(self.place.column.saturating_sub(1) as usize)
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            write!(f, "\n{number:>5} | {line}\n      | {before}{}", "^".repeat(*width))?;
        }
        if let Some(earlier) = &self.earlier {
            write!(f, "\n      = first in line {} ({earlier})", earlier.line)?;
        }
        if let Some(help) = self.mistake.help() {
            write!(f, "\n      = {help}")?;
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
        object.serialize_field("message", &self.mistake.to_string())?;
        object.serialize_field("help", &self.mistake.help())?;
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

/// Problems as text for a terminal, one after the other, each ending with a newline.
pub fn render(problems: &[Problem]) -> String {
    let mut text = String::new();
    for problem in problems {
        writeln!(text, "{problem}").expect("writing to a string");
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
}

impl<'a> Problems<'a> {
    pub(crate) fn new(source: &'a Source<'a>) -> Problems<'a> {
        Problems { source, list: Vec::new(), errors: 0, warnings: 0 }
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

    fn push(&mut self, severity: Severity, span: &Span, mistake: Mistake, earlier: Option<Place>) {
        // Each kind has its own limit: no flood of warnings hides an error.
        let told = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        };
        *told += 1;
        if *told > MAX_PROBLEMS {
            return;
        }
        let (line, width) = self.source.excerpt(span);
        let help = mistake.help().unwrap_or_default();
        let quotes_key = [mistake.to_string(), help].iter().any(|t| self.source.may_hold_key(t));
        let mistake = if quotes_key { Mistake::NotShown } else { mistake };
        let secret = mistake.may_hold_a_secret() || self.source.may_hold_key(&line);
        let excerpt = (!secret).then_some(Excerpt { line, width });
        let place = self.source.place(span);
        self.list.push(Problem { severity, place, mistake, earlier, excerpt });
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
