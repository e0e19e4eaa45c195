//! A text file with its lines, so that every mistake can be shown where it stands.
//!
//! `annotate-snippets` draws the lines. Two things are done before it sees them. An excerpt is cut
//! out of a long line, since a problem owns its excerpt and outlives the file. And hidden
//! characters are escaped: the library replaces only some of them (not C1 controls, nor those
//! without a width), and does not say which one stood there.

use std::ops::Range;

use annotate_snippets::renderer::DEFAULT_TERM_WIDTH;
use serde::Serialize;

use crate::text::escaped_line;

/// Bytes `start .. end` of a [`Source`].
pub(crate) type Span = Range<usize>;

/// A value with its place. Smaller than the type of crate `toml`: a text has at most
/// [`crate::MAX_BYTES`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Spanned<T> {
    value: T,
    start: u32,
    end: u32,
}

impl<T> Spanned<T> {
    pub(crate) fn new(span: Span, value: T) -> Spanned<T> {
        let place = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
        Spanned { value, start: place(span.start), end: place(span.end) }
    }

    pub(crate) fn span(&self) -> Span {
        self.start as usize..self.end as usize
    }

    pub(crate) const fn get_ref(&self) -> &T {
        &self.value
    }
}

/// A span in 8 bytes, for long lists.
pub(crate) type ShortSpan = Spanned<()>;

impl From<Span> for ShortSpan {
    fn from(span: Span) -> ShortSpan {
        Spanned::new(span, ())
    }
}

/// Places in a file of the parts of a text that was assembled from it.
#[derive(Debug)]
pub(crate) struct Origin(Vec<(usize, usize)>);

impl Origin {
    /// Returns the origin of a text that consists of these parts of the file, in order, none of
    /// them empty.
    pub(crate) fn of(parts: &[Span]) -> Origin {
        let mut length = 0;
        let begin = |part: &Span| {
            let begin = (length, part.start);
            length += part.len();
            begin
        };
        Origin(parts.iter().map(begin).collect())
    }

    /// Returns the place in the file of a span of the text, which lies in one of its parts.
    pub(crate) fn span(&self, span: Span) -> Span {
        let part = self.0.partition_point(|(here, _)| *here <= span.start).saturating_sub(1);
        let (here, there) = self.0.get(part).copied().unwrap_or_default();
        span.start - here + there..span.end.max(span.start) - here + there
    }
}

/// A place in a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Location {
    /// The file as the user named it.
    pub file: String,
    /// Line, from 1; 0: the file as a whole.
    pub line: u32,
    /// Column in characters, from 1; 0: the file as a whole.
    pub column: u32,
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.line, self.column) {
            (0, _) => f.write_str(&self.file),
            (line, 0) => write!(f, "{}:{line}", self.file),
            (line, column) => write!(f, "{}:{line}:{column}", self.file),
        }
    }
}

impl Location {
    /// Returns the place of a file without line and column.
    pub(crate) fn of_file(file: &str) -> Location {
        Location { file: file.into(), line: 0, column: 0 }
    }
}

/// Characters that an excerpt holds before a span and behind it: as many as the drawing is wide, so
/// that it marks with `...` what it leaves out, and nothing is left out that it does not mark.
const AROUND: usize = DEFAULT_TERM_WIDTH;
/// Characters of a span that are marked at most: longer ones are drawn whole, wide as they are.
const MARKED: usize = 100;

/// A line of the file, or the part of it around a span, with hidden characters escaped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Excerpt {
    pub(crate) line: String,
    /// Byte range of `line` to mark: the span of the problem, cut at the limit.
    pub(crate) span: Span,
}

impl Excerpt {
    /// The part of a line around these bytes of it.
    fn of(line: &str, span: Span) -> Excerpt {
        let (before, rest) = line.split_at(span.start);
        let marked = &rest[..span.len()];
        let marked = &marked[..fitting(marked.chars(), MARKED)];
        let after = &rest[marked.len()..];
        let before = &before[before.len() - fitting(before.chars().rev(), AROUND)..];
        let after = &after[..fitting(after.chars(), AROUND)];
        let mut line = escaped_line(before).into_owned();
        let start = line.len();
        line.push_str(&escaped_line(marked));
        let span = start..line.len();
        line.push_str(&escaped_line(after));
        Excerpt { line, span }
    }
}

/// Bytes of the first characters, of which so many are shown at most, counted as they are escaped.
fn fitting(characters: impl Iterator<Item = char>, most: usize) -> usize {
    let mut shown = 0;
    let fits = |c: &char| {
        shown += escaped_line(c.encode_utf8(&mut [0; 4])).chars().count();
        shown <= most
    };
    characters.take_while(fits).map(char::len_utf8).sum()
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
/// Hexadecimal digits in a row that are a key in a key file, where digits of a mistyped one are
/// secret too.
const PART_DIGITS: usize = 8;

/// Returns whether a text may hold a key.
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
        // Of the right size at once: a list that grows takes three times its size.
        let mut line_starts = Vec::with_capacity(text.matches('\n').count() + 1);
        line_starts.push(0);
        line_starts.extend(text.match_indices('\n').map(|(end, _)| end as u32 + 1));
        let secret_digits = if holds_key(text) { PART_DIGITS } else { KEY_DIGITS };
        Source { name, text, line_starts, secret_digits }
    }

    /// Returns whether a text of this file, or about it, may hold a key or a part of one.
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

    /// Returns the place where a span begins.
    pub(crate) fn place(&self, span: &Span) -> Location {
        let line = self.line_of(span.start);
        let column = self.text.get(self.start_of(line)..span.start).unwrap_or("").chars().count();
        Location { file: self.name.to_owned(), line: line as u32 + 1, column: column as u32 + 1 }
    }

    /// The line where a span begins.
    pub(crate) fn line_at(&self, span: &Span) -> &str {
        self.line(self.line_of(span.start))
    }

    /// The line where a span begins, as it is shown, or the part of it around the span.
    pub(crate) fn excerpt(&self, span: &Span) -> Excerpt {
        let line = self.line_of(span.start);
        let (text, start) = (self.line(line), self.start_of(line));
        let within = |offset: usize| {
            let at = offset.saturating_sub(start).min(text.len());
            (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
        };
        let begin = within(span.start);
        Excerpt::of(text, begin..within(span.end).max(begin))
    }

    /// Location of the earlier definition of the key that the span covers, within the same table.
    ///
    /// The TOML reader tells only where the second one is. A header's first is the earlier line
    /// with the same header; another key's first is the earlier line of this table that begins
    /// with it, or the earlier mention within the same inline table. A hint for people: `None`
    /// if in doubt.
    pub(crate) fn earlier_key(&self, span: &Span) -> Option<Location> {
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
        let place = |line: usize, column: usize| Location {
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
