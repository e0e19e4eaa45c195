//! What commands print: text, tables that line up, JSON.
//!
//! Everything goes through here, so that nothing of a file, a name or an answer reaches a terminal
//! that the terminal would obey, and a write that fails is told.

use std::io::{ErrorKind, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::failure::Failure;
use crate::terminal::Terminal;

/// Prints to standard output, with hidden characters escaped. A reader that has gone away
/// (`lockgate … | head`) is no error.
///
/// # Errors
/// The text cannot be written: the disk is full, for example.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    write_text(text).map_err(Failure::Output)
}

/// Does as [`print`].
///
/// # Errors
/// The operating system's reason.
pub(crate) fn write_text(text: &str) -> std::io::Result<()> {
    match write(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Prints one line and returns whether somebody still reads.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_line(line: &str) -> Result<Reader, Failure> {
    written(write(&format!("{line}\n")))
}

/// The other end of standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reader {
    /// It reads.
    Reads,
    /// It has gone away.
    Gone,
}

fn write(text: &str) -> std::io::Result<()> {
    let text = match Terminal::stdout().is_coloured() {
        true => escaped_but_colours(text).into(),
        false => control::escaped(text),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Escapes hidden characters but for the colours that [`Terminal::paint`] gives: text of others
/// that is painted, or stands beside it, is escaped before, by `table` and `terminal::printable`.
fn escaped_but_colours(text: &str) -> String {
    let mut fit = String::with_capacity(text.len());
    let mut parts = text.split("\x1b[");
    fit.push_str(&control::escaped(parts.next().unwrap_or_default()));
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let is_colour = (1..=2).contains(&digits) && part[digits..].starts_with('m');
        fit.push_str(if is_colour { "\x1b[" } else { "\\u{1b}[" });
        fit.push_str(&control::escaped(part));
    }
    fit
}

/// Tells a reader that has gone away from a write that failed.
fn written(result: std::io::Result<()>) -> Result<Reader, Failure> {
    match result {
        Ok(()) => Ok(Reader::Reads),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::Output(error)),
    }
}

/// For `or_else`: a reader that has gone away is no error.
pub(crate) fn unless_gone<T: Default>(error: std::io::Error) -> Result<T, Failure> {
    written(Err(error)).map(|_| T::default())
}

/// Prints to standard error, with hidden characters escaped. If that cannot be written either,
/// nobody is left to tell.
pub(crate) fn complain(text: &str) {
    let _ = std::io::stderr().lock().write_all(control::escaped(text).as_bytes());
}

/// Prints a value as JSON.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).expect("no map key is anything but text");
    written(write(&format!("{}\n", json_escaped(&text)))).map(|_| ())
}

/// A value as JSON in one line.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    json_escaped(&serde_json::to_string(value).expect("no map key is anything but text"))
}

/// JSON with the hidden characters escaped that JSON allows in a string.
fn json_escaped(text: &str) -> String {
    if !text.contains(control::is_hidden) {
        return text.to_owned();
    }
    let mut fit = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => fit.push(c),
            c if control::is_hidden(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    fit.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => fit.push(c),
        }
    }
    fit
}

/// A table with a heading and an empty line behind it; nothing if there are no rows.
pub(crate) fn table<R>(title: &str, header: &[&str], rows: R, numbers: Numbers) -> String
where
    R: IntoIterator<Item = Vec<String>>,
{
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.to_vec());
    // Escaped here already: a line end in a cell would make another line.
    let fit = |cell: String| control::escaped_line(&cell).into_owned();
    table.add_rows(rows.into_iter().map(|row| row.into_iter().map(fit).collect::<Vec<_>>()));
    if table.is_empty() {
        return String::new();
    }
    for (place, column) in table.column_iter_mut().enumerate() {
        if numbers.0.contains(&place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = format!("{title}\n");
    for line in table.lines() {
        text.push_str(format!(" {line}").trim_end());
        text.push('\n');
    }
    text.push('\n');
    text
}

/// Which columns of a table hold numbers, and stand to the right.
pub(crate) struct Numbers(pub(crate) std::ops::RangeInclusive<usize>);

impl Numbers {
    /// In no column.
    pub(crate) const NONE: Numbers = Numbers(usize::MAX..=usize::MAX);
}

/// `1 packet`, `2 packets`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_colours_reach_a_terminal_that_shows_them() {
        let text = "a\x1b[31mb\x1b[0m\x1b[2J\x1b]0;x\u{7}\u{202e}\x1b[";
        let fit = "a\x1b[31mb\x1b[0m\\u{1b}[2J\\u{1b}]0;x\\u{7}\\u{202e}\\u{1b}[";
        assert_eq!(escaped_but_colours(text), fit);
    }

    proptest! {
        /// Hidden characters stay out of JSON, and it reads back as the same value.
        #[test]
        fn json_shows_nothing_hidden_and_means_the_same(text in any::<String>(), key in any::<String>()) {
            let value = serde_json::json!({ key: [text] });
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            for (shown, ends) in [(json_line(&value), false), (json_escaped(&pretty), true)] {
                let hidden = |c: char| control::is_hidden(c) && !(ends && c == '\n');
                prop_assert!(!shown.contains(hidden), "{:?}", shown);
                let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
                prop_assert_eq!(&read, &value);
            }
        }

        #[test]
        fn no_cell_breaks_a_table_or_reaches_the_terminal_raw(cell in any::<String>()) {
            let text = table("T", &["a", "b"], [vec![cell, "x".into()]], Numbers::NONE);
            prop_assert_eq!(text.lines().count(), 4, "{:?}", text);
            prop_assert!(!text.contains(|c: char| control::is_hidden(c) && c != '\n'));
        }
    }
}
