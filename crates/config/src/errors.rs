//! Tells all mistakes of a configuration at once, each with its place, its line, the nearest right
//! word and what to do.

use std::fmt::{self, Write};

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet, Title};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::diagnostic::DiagnosticKind;
use crate::source::{Excerpt, Location, Source, Span};
use crate::text;

/// Errors that are shown at most, and warnings too; further errors are only counted.
pub const MAX_PROBLEMS: usize = 40;

/// Errors after which no further section is read.
const FLOOD: usize = 1000;

/// Draws problems without colours, which logs and the API's clients would show as debris.
const PLAIN: Renderer = Renderer::plain();

/// The weight of a problem: the configuration can be used in spite of it, or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// An error: the configuration cannot be applied.
    Error,
    /// A warning: the configuration can be applied, but is probably not what was meant.
    Warning,
}

impl Severity {
    /// Its word in a message.
    fn level(self) -> Level<'static> {
        match self {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        }
    }
}

/// A mistake and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// Place of the mistake.
    pub place: Location,
    /// The mistake.
    pub mistake: DiagnosticKind,
    /// The other place it contradicts, if there is one.
    pub earlier: Option<Location>,
    /// `None` where the line may hold a secret.
    excerpt: Option<Excerpt>,
}

impl Diagnostic {
    /// Makes a diagnostic that shows no line of its file.
    pub(crate) fn new(severity: Severity, place: Location, mistake: DiagnosticKind) -> Diagnostic {
        Diagnostic { severity, place, mistake, earlier: None, excerpt: None }
    }
}

impl Diagnostic {
    /// The problem in one line, for a log: `file:line:column: error: message`, the place that it
    /// contradicts and, behind semicolons, what to do.
    pub fn in_one_line(&self) -> String {
        let mut text = self.headline();
        for more in [self.note(), self.help()].into_iter().flatten() {
            text.push_str("; ");
            text.push_str(&more);
        }
        text
    }

    /// The problem in one line, without advice: `file:line:column: error: message`.
    fn headline(&self) -> String {
        let title = PLAIN.short_message(true).render(&[Group::with_title(self.title())]);
        format!("{}: {title}", text::message(&self.place.to_string()))
    }

    fn title(&self) -> Title<'static> {
        self.severity.level().primary_title(text::message(&self.mistake.to_string()))
    }

    fn note(&self) -> Option<String> {
        let earlier = self.earlier.as_ref()?;
        let place = text::message(&earlier.to_string());
        Some(format!("first in line {} ({place})", earlier.line))
    }

    fn help(&self) -> Option<String> {
        self.mistake.help().map(|help| text::message(&help))
    }
}

impl fmt::Display for Diagnostic {
    /// `file:line:column: error: message`, the source line with carets, the place that the problem
    /// contradicts, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The headline has the place: the library would count columns in the excerpt instead.
        f.write_str(&self.headline())?;
        let mut group = Group::with_level(self.severity.level());
        if let Some(Excerpt { line, span }) = &self.excerpt {
            let span = AnnotationKind::Primary.span(span.clone());
            let line = Snippet::source(line.as_str()).line_start(self.place.line as usize);
            group = group.element(line.annotation(span));
        }
        let note = self.note().map(|note| Level::NOTE.message(note));
        let help = self.help().map(|help| Level::HELP.message(help));
        let group = group.elements(note).elements(help);
        if !group.is_empty() {
            write!(f, "\n{}", PLAIN.render(&[group]))?;
        }
        Ok(())
    }
}

impl Serialize for Diagnostic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Diagnostic", 7)?;
        object.serialize_field("severity", &self.severity)?;
        object.serialize_field("file", &self.place.file)?;
        object.serialize_field("line", &self.place.line)?;
        object.serialize_field("column", &self.place.column)?;
        object.serialize_field("message", &text::message(&self.mistake.to_string()))?;
        object.serialize_field("help", &self.help())?;
        object.serialize_field("earlier", &self.earlier)?;
        object.end()
    }
}

/// The problems of a configuration that cannot be applied: at least one error, and the warnings.
/// Nothing of it is applied.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct ConfigErrors {
    /// The problems in the order of their places.
    pub problems: Vec<Diagnostic>,
    /// The number of errors beyond [`MAX_PROBLEMS`].
    pub untold: usize,
}

impl ConfigErrors {
    /// Returns a list of one error.
    pub(crate) fn of(place: Location, mistake: DiagnosticKind) -> ConfigErrors {
        let problem = Diagnostic::new(Severity::Error, place, mistake);
        ConfigErrors { problems: vec![problem], untold: 0 }
    }

    /// Returns the number of errors that are shown, warnings not counted.
    pub fn errors(&self) -> usize {
        self.problems.iter().filter(|problem| problem.severity == Severity::Error).count()
    }
}

impl ConfigErrors {
    /// The problems, one line each with what to do, and how many errors they are: for a log.
    pub fn in_lines(&self) -> String {
        let lines = fitted(&self.problems, Diagnostic::in_one_line);
        format!("{lines}{}", self.count())
    }

    fn count(&self) -> String {
        match (self.errors(), self.untold) {
            (1, 0) => "1 error; nothing was applied".into(),
            (errors, 0) => format!("{errors} errors; nothing was applied"),
            (errors, more) => format!("{errors} errors and {more} more; nothing was applied"),
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count();
        let count = match f.alternate() {
            // For a command that was not to apply anything.
            true => count.trim_end_matches("; nothing was applied"),
            false => &count,
        };
        write!(f, "{}{count}", render(&self.problems))
    }
}

impl std::error::Error for ConfigErrors {}

/// Lines of problems that are shown at most: a screen.
const SCREEN_LINES: usize = 40;

/// Formats diagnostics for a terminal, one after the other, each ending with a newline and, if it
/// is more than a line, with an empty one. Those that do not fit on a screen are one line each,
/// errors before warnings; the rest is counted.
pub fn render(problems: &[Diagnostic]) -> String {
    let full = |problem: &Diagnostic| {
        let drawn = problem.to_string();
        if drawn.contains('\n') { drawn + "\n" } else { drawn }
    };
    fitted(problems, full)
}

/// Diagnostics in full, as far as they fit on a screen, else one line each.
fn fitted(problems: &[Diagnostic], in_full: impl Fn(&Diagnostic) -> String) -> String {
    let lines = |text: &String| text.split('\n').count();
    // More cannot fit, and need not be drawn.
    if problems.len() <= SCREEN_LINES {
        let full: Vec<String> = problems.iter().map(&in_full).collect();
        if full.iter().map(lines).sum::<usize>() <= SCREEN_LINES {
            return full.iter().map(|text| format!("{text}\n")).collect();
        }
    }
    let mut order: Vec<&Diagnostic> = problems.iter().collect();
    order.sort_by_key(|problem| problem.severity == Severity::Warning);
    let mut text = String::new();
    let (mut room, mut left) = (SCREEN_LINES - 1, order.len());
    let mut untold = [0, 0];
    for problem in order {
        left -= 1;
        if room == 0 {
            untold[usize::from(problem.severity == Severity::Warning)] += 1;
            continue;
        }
        let full = (left < room).then(|| in_full(problem));
        let shown = full.filter(|full| lines(full) + left <= room);
        let shown = shown.unwrap_or_else(|| problem.headline());
        room -= lines(&shown);
        writeln!(text, "{shown}").expect("writing to a string");
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
pub(crate) struct Diagnostics<'a> {
    source: &'a Source<'a>,
    list: Vec<Diagnostic>,
    /// Errors, told or not.
    errors: usize,
    /// Warnings, told or not.
    warnings: usize,
    /// Sections of which one was rejected by its name: what refers to one of them may be right.
    doubted: Vec<String>,
    /// Permission to show lines of the source.
    quoting: Quoting,
}

/// Permission to show lines of a source in messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Quoting {
    /// The source is the configuration: its author reads the message.
    Lines,
    /// The source is a set file: the reader of the message may lack the right to read the file.
    Nothing,
}

impl<'a> Diagnostics<'a> {
    pub(crate) fn new(source: &'a Source<'a>) -> Diagnostics<'a> {
        let (list, doubted, quoting) = (Vec::new(), Vec::new(), Quoting::Lines);
        Diagnostics { source, list, errors: 0, warnings: 0, doubted, quoting }
    }

    pub(crate) fn error(&mut self, span: &Span, mistake: DiagnosticKind) {
        self.push(Severity::Error, span, mistake, None);
    }

    pub(crate) fn warning(&mut self, span: &Span, mistake: DiagnosticKind) {
        self.push(Severity::Warning, span, mistake, None);
    }

    /// Notes an error that contradicts the section or key at `earlier`.
    pub(crate) fn clash(&mut self, span: &Span, earlier: &Span, mistake: DiagnosticKind) {
        let earlier = self.source.place(earlier);
        self.push(Severity::Error, span, mistake, Some(earlier));
    }

    /// A key that was written twice.
    pub(crate) fn same_key(&mut self, span: &Span, mistake: DiagnosticKind) {
        let earlier = self.source.earlier_key(span);
        self.push(Severity::Error, span, mistake, earlier);
    }

    /// Judges a named file. Its problems join this list, without lines of the named file.
    pub(crate) fn within<T>(
        &mut self,
        file: &Source<'_>,
        judge: impl FnOnce(&mut Diagnostics<'_>) -> T,
    ) -> T {
        let mut own = Diagnostics { quoting: Quoting::Nothing, ..Diagnostics::new(file) };
        let judged = judge(&mut own);
        let Diagnostics { list, errors, warnings, .. } = own;
        let told = [Severity::Error, Severity::Warning].map(|severity| match severity {
            Severity::Error => (severity, MAX_PROBLEMS.saturating_sub(self.errors)),
            Severity::Warning => (severity, MAX_PROBLEMS.saturating_sub(self.warnings)),
        });
        for (severity, room) in told {
            let of_kind = list.iter().filter(|problem| problem.severity == severity);
            self.list.extend(of_kind.take(room).cloned());
        }
        self.errors += errors;
        self.warnings += warnings;
        judged
    }

    /// Suppresses later problems that only say that a section of this kind is missing.
    pub(crate) fn doubt(&mut self, section: Option<String>) {
        if let Some(section) = section.filter(|section| !self.doubted.contains(section)) {
            self.doubted.push(section);
        }
    }

    /// Returns whether a mistake only repeats that a section was rejected.
    fn follows(&self, mistake: &DiagnosticKind) -> bool {
        let doubted = |kind: &str| self.doubted.iter().any(|section| section == kind);
        match mistake {
            DiagnosticKind::UnknownPort { .. } => doubted("port"),
            DiagnosticKind::UnknownPeer { .. } | DiagnosticKind::UnusedPeer { .. } => {
                doubted("peer")
            }
            DiagnosticKind::UnknownGroup { .. } | DiagnosticKind::UnusedGroup { .. } => {
                doubted("group")
            }
            DiagnosticKind::UnknownSet { .. } => doubted("set"),
            DiagnosticKind::UnknownOverlay { .. }
            | DiagnosticKind::NoOverlay { .. }
            | DiagnosticKind::WhichOverlay { .. } => doubted("overlay"),
            DiagnosticKind::MissingSection { section } => {
                let name = section.trim_matches(['[', ']']);
                doubted(name.split('.').next().unwrap_or(name))
            }
            _ => false,
        }
    }

    fn push(
        &mut self,
        severity: Severity,
        span: &Span,
        mistake: DiagnosticKind,
        earlier: Option<Location>,
    ) {
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
        let mistake = if quotes_key { DiagnosticKind::NotShown } else { mistake };
        let secret = mistake.may_hold_a_secret()
            || self.source.may_hold_key(line)
            || self.quoting == Quoting::Nothing;
        let excerpt = (!secret).then(|| self.source.excerpt(span));
        let place = self.source.place(span);
        self.list.push(Diagnostic { severity, place, mistake, earlier, excerpt });
    }

    /// The line where a span begins, from 1.
    pub(crate) fn line(&self, span: &Span) -> u32 {
        self.source.place(span).line
    }

    /// Returns whether there are so many errors that no more need be found.
    pub(crate) fn is_flooded(&self) -> bool {
        self.errors > FLOOD
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The warnings if there was no error.
    pub(crate) fn finish(mut self) -> Result<Vec<Diagnostic>, ConfigErrors> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::is_hidden;

    /// Diagnostic with these bytes of a text.
    fn problem(text: &str, span: Span) -> Diagnostic {
        let source = Source::new("gw.toml", text);
        let mut problems = Diagnostics::new(&source);
        problems.error(&span, DiagnosticKind::NulByte);
        problems.list.remove(0)
    }

    /// The line of the file and the carets, as drawn.
    fn drawn(text: &str, marked: &str) -> [String; 2] {
        let start = text.find(marked).unwrap();
        let told = problem(text, start..start + marked.len()).to_string();
        let lines: Vec<&str> = told.lines().collect();
        let line = |at: usize| lines[at].split_once("| ").unwrap().1.to_owned();
        [line(2), line(3)]
    }

    #[test]
    fn carets_stand_below_the_span_whatever_stands_before_it() {
        for (text, marked, line, carets) in [
            ("a = 1", "1", "a = 1", "    ^"),
            ("\ta =\t12", "12", "    a =    12", "           ^^"),
            // Two columns each.
            ("漢字 = 漢", "漢", "漢字 = 漢", "^^"),
            ("漢字 = 1", "1", "漢字 = 1", "       ^"),
            ("e\u{301} = 1", "1", "e\u{301} = 1", "    ^"),
            ("\u{1b}[2J = 1", "1", "\\u{1b}[2J = 1", "            ^"),
            ("a = \u{202e}1", "\u{202e}", "a = \\u{202e}1", "    ^^^^^^^^"),
            ("a = 1\r\nb = 2", "1", "a = 1", "    ^"),
        ] {
            assert_eq!(drawn(text, marked), [line, carets], "{text:?}");
        }
    }

    #[test]
    fn a_long_line_is_cut_with_a_mark_at_each_end() {
        let rest = "x".repeat(10_000_000);
        let long = format!("{rest} here {rest}");
        let [line, carets] = drawn(&long, "here");
        assert!(line.starts_with("...x") && line.ends_with("x..."), "{line}");
        assert_eq!(line.find("here"), carets.find("^^^^"));
        assert!(line.len() < 140, "{line}");
        let all = problem(&long, 0..long.len());
        assert!(all.to_string().len() < 400, "{all}");
    }

    #[test]
    fn a_problem_for_a_log_is_one_line_with_all_that_is_to_be_said() {
        let mut problem = problem("a = 1\na = 2\n", 6..7);
        problem.earlier = Some(Location { file: "gw.toml".into(), line: 1, column: 1 });
        assert_eq!(
            problem.in_one_line(),
            "gw.toml:2:1: error: there is a NUL byte: this is not a text file; first in line 1 \
             (gw.toml:1:1); name the configuration, a text file in TOML"
        );
    }

    /// Text of characters that are drawn in another way than they are written.
    fn hostile() -> impl Strategy<Value = String> {
        let chosen = proptest::sample::select(
            "a \t\n\r\0\u{1b}\u{9b}\u{202e}\u{200b}\u{301}\
            \u{e0041}\u{feff}漢é\u{1f468}|^"
                .chars()
                .collect::<Vec<char>>(),
        );
        let character = prop_oneof![4 => chosen, 1 => any::<char>()];
        proptest::collection::vec(character, 0..600).prop_map(String::from_iter)
    }

    proptest! {
        #[test]
        fn hostile_text_is_drawn_as_a_few_short_lines_without_hidden_characters(
            text in hostile(),
            at in 0..2500_usize,
            length in 0..2500_usize,
        ) {
            let source = Source::new("gw.toml", &text);
            prop_assert!(source.excerpt(&(at..at + length)).line.len() < 4 * (2 * 140 + 100));
            let told = problem(&text, at..at + length).to_string();
            prop_assert!(!told.contains(|c| is_hidden(c) && c != '\n'), "{:?}", told);
            prop_assert!(told.split('\n').count() <= 6, "{}", told);
            prop_assert!(told.lines().all(|line| line.chars().count() <= 400), "{}", told);
        }
    }
}
