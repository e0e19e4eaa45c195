//! Mistakes of the syntax, in words: the TOML reader says where it stopped, which is often not
//! where the mistake is.

use crate::diagnostic::DiagnosticKind;
use crate::source::Span;

/// Quotation marks of typography, which word processors and web pages put in the place of `"`.
const TYPOGRAPHIC: [char; 10] = ['“', '”', '„', '‟', '‘', '’', '‚', '‛', '«', '»'];

/// Finds a text that no configuration can be, before it is read at all: it would be one mistake
/// a character.
pub(crate) fn unreadable(text: &str) -> Option<(Span, DiagnosticKind)> {
    if let Some(at) = text.find('\0') {
        return Some((at..at + 1, DiagnosticKind::NulByte));
    }
    let only_returns = text.contains('\r') && !text.contains('\n');
    only_returns.then(|| {
        let at = text.find('\r').unwrap_or(0);
        (at..at + 1, DiagnosticKind::CarriageReturns)
    })
}

/// Translates a message of the TOML reader about `span` into a mistake and its place.
pub(crate) fn mistake(text: &str, span: Span, said: &str) -> (Span, DiagnosticKind) {
    let start = span.start.min(text.len());
    let (before, rest) = text.split_at_checked(start).unwrap_or((text, ""));
    if rest.starts_with('\r') && !rest.starts_with("\r\n") {
        return (start..start + 1, DiagnosticKind::CarriageReturns);
    }
    if before.ends_with('\r') && !rest.starts_with('\n') {
        return (start - 1..start, DiagnosticKind::CarriageReturns);
    }
    if let Some((at, quote)) = typographic(text, start) {
        return (at..at + quote.len_utf8(), DiagnosticKind::TypographicQuote { quote });
    }
    if let Some(open) = unclosed_list(text, start) {
        return (open..open + 1, DiagnosticKind::UnclosedList);
    }
    (span, DiagnosticKind::Syntax { message: said.to_owned() })
}

/// A quotation mark of typography in the line of this byte, outside of comments.
fn typographic(text: &str, at: usize) -> Option<(usize, char)> {
    let line_start = text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let line = text[line_start..].lines().next().unwrap_or("");
    let line = line.split('#').next().unwrap_or("");
    let (place, quote) = line.char_indices().find(|(_, c)| TYPOGRAPHIC.contains(c))?;
    Some((line_start + place, quote))
}

/// The bracket of a list that the reader was in at byte `end`, if a line since then begins what
/// can only stand outside of a list, or the file ends.
pub(crate) fn unclosed_list(text: &str, end: usize) -> Option<usize> {
    let (before, rest) = text.split_at_checked(end)?;
    let open = open_list(before)?;
    let line_end = rest.find('\n').map_or(text.len(), |more| end + more);
    let at_end = rest.trim().is_empty();
    let mut later = text[open..line_end].split('\n').skip(1);
    (at_end || later.any(begins_something)).then_some(open)
}

/// Returns whether a line is a section's header or begins with `key =`.
fn begins_something(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or("").trim();
    let is_word = |text: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        !text.is_empty() && text.chars().all(allowed)
    };
    let inside = line.strip_prefix("[[").and_then(|line| line.strip_suffix("]]"));
    let inside = inside.or_else(|| line.strip_prefix('[')?.strip_suffix(']'));
    let is_header = inside.is_some_and(|name| is_word(name.trim()));
    is_header || line.split_once('=').is_some_and(|(key, _)| is_word(key.trim()))
}

/// A place in TOML, as far as brackets go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SyntaxPosition {
    /// At the beginning of a line, before a key or a header.
    Line,
    /// In a key or a header.
    Name,
    /// In a value.
    Value,
}

/// The outermost `[` of a value that is open at the end of the text.
fn open_list(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut open, mut depth) = (0, 0usize);
    let mut place = SyntaxPosition::Line;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match (place, byte) {
            (_, b'#') => at += line_rest(&bytes[at..]),
            (_, b'\n') if depth == 0 => place = SyntaxPosition::Line,
            (SyntaxPosition::Line, b' ' | b'\t' | b'\r') => {}
            (SyntaxPosition::Line, b'[') => {
                place = SyntaxPosition::Name;
                at += line_rest(&bytes[at..]);
            }
            (SyntaxPosition::Line | SyntaxPosition::Name, b'=') => place = SyntaxPosition::Value,
            (_, b'"' | b'\'') => {
                at += string_rest(&bytes[at..], byte)?;
                if place == SyntaxPosition::Line {
                    place = SyntaxPosition::Name;
                }
            }
            (SyntaxPosition::Line, _) => place = SyntaxPosition::Name,
            (SyntaxPosition::Value, b'[') => {
                if depth == 0 {
                    open = at - 1;
                }
                depth += 1;
            }
            (SyntaxPosition::Value, b']') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    (depth > 0).then_some(open)
}

/// Bytes before the end of the line.
fn line_rest(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len())
}

/// Bytes to the end of a string whose first quotation mark was read; `None`: it has no end.
fn string_rest(bytes: &[u8], quote: u8) -> Option<usize> {
    let two = [quote, quote];
    let is_long = bytes.starts_with(&two);
    if !is_long && bytes.first() == Some(&quote) {
        return Some(1);
    }
    let mut at = if is_long { 2 } else { 0 };
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'\\' if quote == b'"' => at += 1,
            b'\n' if !is_long => return Some(at - 1),
            byte if byte == quote && !is_long => return Some(at),
            byte if byte == quote && bytes[at..].starts_with(&two) => return Some(at + 2),
            _ => {}
        }
    }
    None
}
