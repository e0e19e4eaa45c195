//! Bounds on a text before any part of it becomes a tree of TOML.
//!
//! The tree of a text takes up to 75 times the text. So the parser makes a tree of one piece at a
//! time ([`crate::chunked`]), and a piece ends where a section ends. One pass counts each section
//! without memory of its own; the largest section bounds the largest tree.

use toml_parser::lexer::TokenKind;

use crate::diagnostic::DiagnosticKind;
use crate::source::Span;
use crate::syntax;

/// Lists and inline tables within each other.
const MAX_DEPTH: usize = 16;
/// Parts of a dotted key.
const MAX_KEY_PARTS: usize = 16;
/// Keys and values of a section: the largest set, and room for others to be refused by name.
pub(crate) const MAX_SECTION_VALUES: usize = 1 << 17;
/// Tokens of a section: values, signs, line ends, comments and the blanks between them.
pub(crate) const MAX_SECTION_TOKENS: usize = 1 << 19;

/// Counts of the section that is read.
#[derive(Default)]
struct SectionCounts {
    values: usize,
    tokens: usize,
    depth: usize,
    dots: usize,
    in_header: bool,
}

/// Place of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TokenPlace {
    /// The token may begin a header, or a key with its value.
    ExpressionStart,
    /// All other places.
    Inside,
}

impl SectionCounts {
    /// Counts a token, and returns the bound that it exceeds.
    fn count(&mut self, kind: TokenKind, place: TokenPlace) -> Option<DiagnosticKind> {
        match kind {
            TokenKind::LeftSquareBracket if place == TokenPlace::ExpressionStart => {
                *self = SectionCounts { in_header: true, ..SectionCounts::default() };
            }
            TokenKind::Newline => (self.in_header, self.dots) = (false, 0),
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket if !self.in_header => {
                (self.depth, self.dots) = (self.depth + 1, 0);
            }
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => {
                self.depth = self.depth.saturating_sub(1);
            }
            TokenKind::Equals | TokenKind::Comma => self.dots = 0,
            TokenKind::Dot => self.dots += 1,
            TokenKind::Atom
            | TokenKind::BasicString
            | TokenKind::LiteralString
            | TokenKind::MlBasicString
            | TokenKind::MlLiteralString => self.values += 1,
            _ => {}
        }
        self.tokens += 1;
        let bound = |what, limit| Some(DiagnosticKind::TooMany { what, limit });
        match () {
            () if self.depth > MAX_DEPTH => bound("lists within each other", MAX_DEPTH),
            () if self.dots >= MAX_KEY_PARTS => bound("parts of a key", MAX_KEY_PARTS),
            () if self.values > MAX_SECTION_VALUES => {
                bound("keys and values of a section", MAX_SECTION_VALUES)
            }
            () if self.tokens > MAX_SECTION_TOKENS => {
                bound("values, signs, comments and lines of a section", MAX_SECTION_TOKENS)
            }
            () => None,
        }
    }
}

/// Finds the first place at which a text exceeds a bound.
pub(crate) fn exceeded(text: &str) -> Option<(Span, DiagnosticKind)> {
    let mut section = SectionCounts::default();
    let mut place = TokenPlace::ExpressionStart;
    for token in toml_parser::Source::new(text).lex() {
        let kind = token.kind();
        if let Some(mistake) = section.count(kind, place) {
            let span = token.span();
            // A list without an end takes in all that comes behind it.
            let open = syntax::unclosed_list(text, span.start()).filter(|_| section.depth > 0);
            return Some(match open {
                Some(open) => (open..open + 1, DiagnosticKind::UnclosedList),
                None => (span.start()..span.end(), mistake),
            });
        }
        place = match kind {
            TokenKind::Newline if section.depth == 0 => TokenPlace::ExpressionStart,
            TokenKind::Whitespace => place,
            _ => TokenPlace::Inside,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<String> {
        exceeded(text).map(|(span, mistake)| format!("{} {mistake}", span.start))
    }

    #[test]
    fn sections_within_the_bounds_pass() {
        let members = "  \"10.0.0.0/8\",\n".repeat(100_000);
        assert_eq!(found(&format!("[set.a]\naddresses = [\n{members}]\n").repeat(3)), None);
        let depth = MAX_DEPTH;
        assert_eq!(found(&format!("a = {}{}\n", "[".repeat(depth), "]".repeat(depth))), None);
        assert_eq!(found(&format!("a{} = 1\n", ".a".repeat(MAX_KEY_PARTS - 1))), None);
        assert_eq!(found("a = '''\n[[[[[[[[[[[[[[[[[[[[[[[[[[\n''' # [[[[[[[[[[[[[[[[[\n"), None);
        assert_eq!(found(&"[[policy]]\nname = \"a\"\n".repeat(200_000)), None);
    }

    #[test]
    fn each_bound_has_its_place() {
        let deep = format!("a = {}", "[".repeat(MAX_DEPTH + 1));
        assert!(found(&deep).unwrap().starts_with("20 "), "{:?}", found(&deep));
        let dotted = format!("[a]\nb{} = 1\n", ".b".repeat(MAX_KEY_PARTS));
        assert!(found(&dotted).unwrap().contains("parts of a key"));
        let values = format!("[a]\nb = [{}]\n", "1,".repeat(MAX_SECTION_VALUES + 1));
        let place = 9 + 2 * (MAX_SECTION_VALUES - 2);
        assert!(found(&values).unwrap().starts_with(&place.to_string()), "{:?}", found(&values));
        let lines = format!("[a]\n{}", "\n".repeat(MAX_SECTION_TOKENS));
        assert!(found(&lines).unwrap().contains("comments and lines of a section"));
    }

    #[test]
    fn list_without_an_end_is_the_mistake_not_the_sections_behind_it() {
        let rest = "[[policy]]\nname = \"a\"\n".repeat(MAX_SECTION_VALUES);
        let text = format!("[port.lan]\naddresses = [\"10.0.0.1/8\"\n{rest}");
        assert_eq!(exceeded(&text), Some((23..24, DiagnosticKind::UnclosedList)));
    }
}
