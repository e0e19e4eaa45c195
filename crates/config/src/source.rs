//! A text file with its lines, so that every mistake can be shown where it stands.

use std::ops::Range;

use serde::Serialize;

use crate::text::{is_hidden, push_escape};

/// Bytes `start .. end` of a [`Source`].
pub(crate) type Span = Range<usize>;

/// Where the parts of a text that was put together from a file stand in it.
#[derive(Debug)]
pub(crate) struct Origin(Vec<(usize, usize)>);

impl Origin {
    /// Of a text that is these parts of the file, one after the other, none of them empty.
    pub(crate) fn of(parts: &[Span]) -> Origin {
        let mut length = 0;
        let begin = |part: &Span| {
            let begin = (length, part.start);
            length += part.len();
            begin
        };
        Origin(parts.iter().map(begin).collect())
    }

    /// Where a span of the text, which lies in one of its parts, stands in the file.
    pub(crate) fn span(&self, span: Span) -> Span {
        let part = self.0.partition_point(|(here, _)| *here <= span.start).saturating_sub(1);
        let (here, there) = self.0.get(part).copied().unwrap_or_default();
        span.start - here + there..span.end.max(span.start) - here + there
    }
}

/// A place in a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Place {
    /// The file as the user named it.
    pub file: String,
    /// Line, from 1; 0: the file as a whole.
    pub line: u32,
    /// Column in characters, from 1; 0: the file as a whole.
    pub column: u32,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.line, self.column) {
            (0, _) => f.write_str(&self.file),
            (line, 0) => write!(f, "{}:{line}", self.file),
            (line, column) => write!(f, "{}:{line}:{column}", self.file),
        }
    }
}

impl Place {
    /// The file as a whole.
    pub(crate) fn of_file(file: &str) -> Place {
        Place { file: file.into(), line: 0, column: 0 }
    }
}

/// Characters of a line that are shown at most, not counting the last escape and the marks of what
/// was left out.
const EXCERPT: usize = 150;
/// A span that begins behind so many characters is shown without the begin of its line.
const MAX_BEFORE: usize = 100;
/// Characters that are then shown before it.
const SHOWN_BEFORE: usize = 40;

/// A line of the file, or a part of it, and the part of that which a problem is about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Excerpt {
    pub(crate) line: String,
    /// Blanks (and tabs, as the line has them) that bring a caret below the span.
    pub(crate) indent: String,
    /// Characters of the span, at least one.
    pub(crate) width: usize,
    /// Characters in `line`.
    shown: usize,
}

/// The position of a character relative to the span.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Before,
    Span,
    After,
}

impl Excerpt {
    fn push(&mut self, c: char, part: Part) {
        let before = self.line.len();
        match is_hidden(c) {
            true => push_escape(&mut self.line, c),
            false => self.line.push(c),
        }
        let width = self.line[before..].chars().count();
        self.shown += width;
        match part {
            Part::Before if c == '\t' => self.indent.push('\t'),
            Part::Before => self.indent.extend(std::iter::repeat_n(' ', width)),
            Part::Span => self.width += width,
            Part::After => {}
        }
    }
}

/// A text with the places of its lines.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    /// Ascending, the first is 0.
    line_starts: Vec<u32>,
    /// Hexadecimal digits in a row that are taken for a part of a key and never shown.
    secret_digits: usize,
}

/// Hexadecimal digits in a row that are a key wherever they stand: half of the shortest one.
const KEY_DIGITS: usize = 16;
/// The same in a file that holds a key: digits of one that was mistyped are secret too.
const PART_DIGITS: usize = 8;

/// Whether a text may hold a key.
pub(crate) fn holds_key(text: &str) -> bool {
    holds_digits(text, KEY_DIGITS)
}

fn holds_digits(text: &str, least: usize) -> bool {
    let others = |byte: &u8| !byte.is_ascii_hexdigit();
    text.len() >= least && text.as_bytes().split(others).any(|run| run.len() >= least)
}

impl<'a> Source<'a> {
    /// A text of at most [`crate::MAX_BYTES`].
    pub(crate) fn new(name: &'a str, text: &'a str) -> Source<'a> {
        let starts = text.match_indices('\n').map(|(end, _)| end as u32 + 1);
        let line_starts = std::iter::once(0).chain(starts).collect();
        let secret_digits = if holds_key(text) { PART_DIGITS } else { KEY_DIGITS };
        Source { name, text, line_starts, secret_digits }
    }

    /// Whether a text of this file, or about it, may hold a key or a part of one.
    pub(crate) fn may_hold_key(&self, text: &str) -> bool {
        holds_digits(text, self.secret_digits)
    }

    /// Line (from 0) that holds this byte. Offsets beyond the end count as the end.
    fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start as usize <= offset).saturating_sub(1)
    }

    /// Offset of a line's first byte.
    fn start_of(&self, line: usize) -> usize {
        self.line_starts[line] as usize
    }

    /// The line with this number (from 0), without its end.
    pub(crate) fn line(&self, line: usize) -> &str {
        let Some(&start) = self.line_starts.get(line) else { return "" };
        let end = self.line_starts.get(line + 1).map_or(self.text.len(), |next| *next as usize - 1);
        self.text.get(start as usize..end).unwrap_or("").trim_end_matches('\r')
    }

    /// Where a span begins.
    pub(crate) fn place(&self, span: &Span) -> Place {
        let line = self.line_of(span.start);
        let column = self.text.get(self.start_of(line)..span.start).unwrap_or("").chars().count();
        Place { file: self.name.to_owned(), line: line as u32 + 1, column: column as u32 + 1 }
    }

    /// The line where a span begins.
    pub(crate) fn line_at(&self, span: &Span) -> &str {
        self.line(self.line_of(span.start))
    }

    /// The line where a span begins, as it is shown, or the part of it around the span.
    pub(crate) fn excerpt(&self, span: &Span) -> Excerpt {
        let line = self.line_of(span.start);
        let (text, start) = (self.line(line), self.start_of(line));
        let at = span.start.saturating_sub(start).min(text.len());
        let end = span.end.saturating_sub(start).clamp(at, text.len());
        let before = text.get(..at).unwrap_or("").chars().count();
        let skipped = if before > MAX_BEFORE { before - SHOWN_BEFORE } else { 0 };
        let mut excerpt = Excerpt::default();
        if skipped > 0 {
            excerpt.push('…', Part::Before);
        }
        for (place, c) in text.char_indices().skip(skipped) {
            if excerpt.shown >= EXCERPT {
                excerpt.line.push('…');
                break;
            }
            let part = match place {
                _ if place < at => Part::Before,
                _ if place < end => Part::Span,
                _ => Part::After,
            };
            excerpt.push(c, part);
        }
        excerpt.width = excerpt.width.max(1);
        excerpt
    }

    /// Place of the earlier definition of the key that the span covers, within the same table.
    ///
    /// The TOML reader tells only where the second one is. A header's first is the earlier line
    /// with the same header; another key's first is the earlier line of this table that begins
    /// with it, or the earlier mention within the same inline table. A hint for people: `None`
    /// if in doubt.
    pub(crate) fn earlier_key(&self, span: &Span) -> Option<Place> {
        let key = self.text.get(span.clone())?;
        let line = self.line_of(span.start);
        let header = |text: &str| text.trim_start().starts_with('[');
        let squeezed = |text: &str| -> String {
            let end = text.rfind(']').map_or(text.len(), |end| end + 1);
            text[..end].chars().filter(|c| !c.is_whitespace()).collect()
        };
        let begins = |text: &str| {
            let rest = text.trim_start().strip_prefix(key)?;
            rest.trim_start().starts_with(['=', '.']).then(|| text.len() - text.trim_start().len())
        };
        let place = |line: usize, column: usize| Place {
            file: self.name.to_owned(),
            line: line as u32 + 1,
            column: column as u32 + 1,
        };
        let current = self.line(line);
        if header(current) {
            let same = |earlier: &usize| {
                let text = self.line(*earlier);
                header(text) && squeezed(text) == squeezed(current)
            };
            return (0..line).find(same).map(|earlier| {
                let text = self.line(earlier);
                let column = text.find(key).map_or(0, |at| text[..at].chars().count());
                place(earlier, column)
            });
        }
        let before = self.text.get(self.start_of(line)..span.start)?;
        if let Some(at) = before.contains('{').then(|| before.find(key)).flatten() {
            return Some(place(line, before[..at].chars().count()));
        }
        let start = (0..line).rev().find(|earlier| header(self.line(*earlier))).unwrap_or(0);
        (start..line).find_map(|earlier| Some(place(earlier, begins(self.line(earlier))?)))
    }
}
