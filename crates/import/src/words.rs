//! Words of a foreign text, each with its place.
//!
//! A shell's quotes, comments, continued lines and `;` are understood. Variables and the like are
//! left in their words: the parsers refuse such words.

use config::Location;

/// A word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<'a> {
    /// The word, without the quotes around it.
    pub(crate) text: &'a str,
    /// Line, from 1.
    pub(crate) line: u32,
    /// Column in characters, from 1.
    pub(crate) column: u32,
}

/// The words of a command, or of a line of a dump.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line<'a> {
    /// True if it begins with a space: a line of a dump that goes on with the lines above.
    pub(crate) is_indented: bool,
    /// The words, at least one.
    pub(crate) words: Vec<Word<'a>>,
}

/// Characters that are words by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Braces {
    /// None.
    InWords,
    /// `{` and `}`.
    Apart,
}

/// Returns the lines of a text that have words. A line that ends with `\` goes on in the next one.
pub(crate) fn lines(text: &str, braces: Braces) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut open = Line::default();
    for (number, physical) in (1..).zip(text.lines()) {
        let trimmed = physical.trim_end();
        let (body, goes_on) = match trimmed.strip_suffix('\\') {
            Some(body) => (body, true),
            None => (trimmed, false),
        };
        if open.words.is_empty() {
            open.is_indented = body.starts_with([' ', '\t']);
        }
        for (word, ends) in words(body, number, braces) {
            open.words.extend(word);
            if ends {
                close(&mut open, &mut lines);
            }
        }
        if !goes_on {
            close(&mut open, &mut lines);
        }
    }
    close(&mut open, &mut lines);
    lines
}

fn close<'a>(open: &mut Line<'a>, lines: &mut Vec<Line<'a>>) {
    let closed = std::mem::take(open);
    if !closed.words.is_empty() {
        lines.push(closed);
    }
}

/// The words of a physical line; with each, true if a command ends behind it.
fn words(body: &str, line: u32, braces: Braces) -> Vec<(Option<Word<'_>>, bool)> {
    let mut found = Vec::new();
    let mut start: Option<(usize, u32)> = None;
    let mut quote = None;
    let word = |(from, column): (usize, u32), to: usize| Word {
        text: unquoted(&body[from..to]),
        line,
        column,
    };
    for (column, (at, c)) in (1..).zip(body.char_indices()) {
        if let Some(open) = quote {
            quote = (c != open).then_some(open);
            continue;
        }
        let is_brace = braces == Braces::Apart && matches!(c, '{' | '}');
        if c == '#' && start.is_none() {
            return found;
        } else if c.is_whitespace() || c == ';' || is_brace {
            found.extend(start.take().map(|begin| (Some(word(begin, at)), false)));
            match c {
                ';' => found.push((None, true)),
                _ if is_brace => found.push((Some(word((at, column), at + 1)), false)),
                _ => {}
            }
        } else {
            start = start.or(Some((at, column)));
            quote = matches!(c, '\'' | '"').then_some(c);
        }
    }
    found.extend(start.map(|begin| (Some(word(begin, body.len())), false)));
    // `a && b` and `a || b` are two commands.
    found
        .into_iter()
        .map(|(word, ends)| match word {
            Some(Word { text: "&&" | "||", .. }) => (None, true),
            word => (word, ends),
        })
        .collect()
}

/// The word without the quotes around it, if they are around all of it.
fn unquoted(text: &str) -> &str {
    for quote in ['\'', '"'] {
        let inner = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        if let Some(inner) = inner.filter(|inner| !inner.contains(['\'', '"'])) {
            return inner;
        }
    }
    text
}

/// Returns whether a shell would make something else of this word.
pub(crate) fn is_for_a_shell(text: &str) -> bool {
    text.contains(['$', '`', '\\', '\'', '"', '*', '|', '>', '&'])
        || text.contains('<') && !text.starts_with("<<") && text != "<<Keys"
}

/// Words that are read one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'w, 'a> {
    file: &'w str,
    words: &'w [Word<'a>],
    at: usize,
}

impl<'w, 'a> Cursor<'w, 'a> {
    pub(crate) fn new(file: &'w str, words: &'w [Word<'a>]) -> Cursor<'w, 'a> {
        Cursor { file, words, at: 0 }
    }

    /// Takes the next word.
    pub(crate) fn next(&mut self) -> Option<Word<'a>> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    /// The next word, which stays.
    pub(crate) fn peek(&self) -> Option<Word<'a>> {
        self.words.get(self.at).copied()
    }

    /// Takes the next word if it is this one.
    pub(crate) fn take(&mut self, text: &str) -> bool {
        let is_it = self.peek().is_some_and(|word| word.text == text);
        self.at += usize::from(is_it);
        is_it
    }

    /// Passes over the rest.
    pub(crate) fn skip_all(&mut self) {
        self.at = self.words.len();
    }

    pub(crate) fn place(&self, word: Word<'_>) -> Location {
        place(self.file, word)
    }
}

/// The place of a word in its file.
pub(crate) fn place(file: &str, word: Word<'_>) -> Location {
    Location { file: file.to_owned(), line: word.line, column: word.column }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str, braces: Braces) -> Vec<Vec<&str>> {
        let lines = lines(text, braces);
        lines.iter().map(|line| line.words.iter().map(|word| word.text).collect()).collect()
    }

    #[test]
    fn quotes_comments_continued_lines_and_semicolons_are_a_shells() {
        let text = "ip a 'b c' \\\n  \"d\" # e\n\n# f\ng;h && i#j\n\tk";
        let expected = [vec!["ip", "a", "b c", "d"], vec!["g"], vec!["h"], vec!["i#j"], vec!["k"]];
        assert_eq!(texts(text, Braces::InWords), expected);
        let found = lines(text, Braces::InWords);
        assert!(found[4].is_indented && !found[0].is_indented);
        assert_eq!((found[0].words[3].line, found[0].words[3].column), (2, 3));
    }

    #[test]
    fn braces_are_words_where_they_are_to_be() {
        assert_eq!(texts("ip4{n 5}", Braces::Apart), [["ip4", "{", "n", "5", "}"]]);
        assert_eq!(texts("ip4{n 5}", Braces::InWords), [["ip4{n", "5}"]]);
    }
}
