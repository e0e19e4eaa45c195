//! The terminal that standard output may be: its width, colours, and text that is safe to show.

use std::io::IsTerminal;

/// Columns of a terminal that does not say how wide it is.
const USUAL_WIDTH: usize = 80;
/// Columns below which wrapping makes text worse.
const NARROWEST: usize = 40;

/// Standard output, as far as its reader matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminal {
    /// Columns; `None`: not a terminal, lines may be of any length.
    width: Option<usize>,
    colour: Colour,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Colour {
    None,
    Ansi,
}

/// The meaning of a colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Look at it.
    Warning,
    /// A failure.
    Bad,
    /// Text of less importance than its surroundings.
    Dim,
    /// A heading, a name.
    Heading,
    /// A success.
    Good,
}

impl Terminal {
    /// Standard output. Colours need a terminal that is not `dumb` and no `NO_COLOR`
    /// (<https://no-color.org>).
    pub fn stdout() -> Terminal {
        let stdout = std::io::stdout();
        if !stdout.is_terminal() {
            return Terminal { width: None, colour: Colour::None };
        }
        let columns = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| size.ws_col);
        let width = match usize::from(columns) {
            0 => USUAL_WIDTH,
            columns => columns.max(NARROWEST),
        };
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let colour = if no_colour || is_dumb { Colour::None } else { Colour::Ansi };
        Terminal { width: Some(width), colour }
    }

    /// A terminal without colours; `None`: lines of any length.
    pub const fn plain(width: Option<usize>) -> Terminal {
        Terminal { width, colour: Colour::None }
    }

    /// Returns whether [`Terminal::paint`] paints.
    pub fn is_coloured(self) -> bool {
        self.colour == Colour::Ansi
    }

    /// A terminal with colours.
    pub const fn coloured(width: usize) -> Terminal {
        Terminal { width: Some(width), colour: Colour::Ansi }
    }

    /// Columns; `None`: not a terminal.
    pub const fn width(self) -> Option<usize> {
        self.width
    }

    /// Returns whether standard output is a terminal.
    pub const fn is_terminal(self) -> bool {
        self.width.is_some()
    }

    /// Text in a style.
    pub fn paint(self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Warning => "33",
            Style::Bad => "31",
            Style::Dim => "2",
            Style::Heading => "1",
            Style::Good => "32",
        };
        match self.colour {
            Colour::None => text.to_owned(),
            Colour::Ansi => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }

    /// Breaks text into lines between words, so that `indent` more columns fit before each line. A
    /// word that is longer than a line is not broken.
    pub fn wrap(self, text: &str, indent: usize) -> Vec<String> {
        match self.width {
            None => vec![text.to_owned()],
            Some(width) => wrap(text, width.saturating_sub(indent)),
        }
    }

    /// Breaks text as [`Terminal::wrap`] does; where standard output is no terminal, at `width`
    /// columns.
    pub fn wrap_at(self, text: &str, indent: usize, width: usize) -> Vec<String> {
        wrap(text, self.width.unwrap_or(width).saturating_sub(indent))
    }
}

fn wrap(text: &str, room: usize) -> Vec<String> {
    let room = room.max(NARROWEST / 2);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("never empty");
        let length = line.chars().count();
        if length > 0 && length + 1 + word.chars().count() > room {
            lines.push(word.to_owned());
            continue;
        }
        if length > 0 {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}

/// Text on one line that can do nothing to a terminal: hidden characters are escaped, ends of lines
/// become ` | `.
pub fn printable(text: &str) -> String {
    config::escaped_line(&text.replace('\n', " | ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_between_words_and_only_on_a_terminal() {
        let terminal = Terminal::plain(Some(50));
        let lines = terminal.wrap("one two three four five six seven eight nine ten", 20);
        assert!(lines.len() == 2 && lines.iter().all(|line| line.len() <= 30), "{lines:?}");
        let long = "x".repeat(99);
        assert_eq!(terminal.wrap(&format!("a {long} b"), 20), ["a", &long, "b"]);
        let text = "word ".repeat(99);
        assert_eq!(Terminal::plain(None).wrap(&text, 20), [text]);
    }

    #[test]
    fn what_could_fool_a_terminal_is_escaped() {
        assert_eq!(
            printable("a\x1b[31m\u{202e}b\nc\r\u{2067}é"),
            "a\\u{1b}[31m\\u{202e}b | c\\r\\u{2067}é"
        );
    }
}
