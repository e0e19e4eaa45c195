//! Prints the answers of commands: text, aligned tables, JSON.
//!
//! All output goes through this module: it escapes the control sequences in files, names and
//! answers (colours aside) before they reach a terminal, and reports a write that fails.

use std::io::{ErrorKind, Write};

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::terminal::Terminal;

/// An answer cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output: {0}: the answer is not complete")]
pub struct OutputError(pub std::io::Error);

/// Prints to standard output, with hidden characters escaped. A reader that has gone away
/// (`lockgate … | head`) is no error.
///
/// # Errors
/// The text cannot be written: the disk is full, for example.
pub fn print(text: &str) -> Result<(), OutputError> {
    write_text(text).map_err(OutputError)
}

/// Writes text as [`print()`] does.
///
/// # Errors
/// The operating system's reason.
pub fn write_text(text: &str) -> std::io::Result<()> {
    match write(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Prints one line and returns whether the reader still reads.
///
/// # Errors
/// As [`print()`].
pub fn print_line(line: &str) -> Result<Reader, OutputError> {
    written(write(&format!("{line}\n")))
}

/// The other end of standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// The reader still reads.
    Reads,
    /// The reader is gone.
    Gone,
}

fn write(text: &str) -> std::io::Result<()> {
    let text = match Terminal::stdout().is_coloured() {
        true => escaped_but_colours(text).into(),
        false => config::escaped(text),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Escapes hidden characters but for the colours that [`Terminal::paint`] gives: text of others
/// that is painted, or stands beside it, is escaped before, by `table` and `terminal::printable`.
fn escaped_but_colours(text: &str) -> String {
    let mut fit = String::with_capacity(text.len());
    let mut parts = text.split("\x1b[");
    fit.push_str(&config::escaped(parts.next().unwrap_or_default()));
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let is_colour = (1..=2).contains(&digits) && part[digits..].starts_with('m');
        fit.push_str(if is_colour { "\x1b[" } else { "\\u{1b}[" });
        fit.push_str(&config::escaped(part));
    }
    fit
}

/// Tells a reader that has gone away from a write that failed.
fn written(result: std::io::Result<()>) -> Result<Reader, OutputError> {
    match result {
        Ok(()) => Ok(Reader::Reads),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(OutputError(error)),
    }
}

/// Turns the error of a reader that has gone away into success, for `or_else`.
pub fn unless_gone<T: Default>(error: std::io::Error) -> Result<T, OutputError> {
    written(Err(error)).map(|_| T::default())
}

/// Prints to standard error, with hidden characters escaped. Ignores a failure, which could not be
/// reported either.
pub fn complain(text: &str) {
    let _ = std::io::stderr().lock().write_all(config::escaped(text).as_bytes());
}

/// Prints text and returns whether the reader still reads.
///
/// # Errors
/// As [`print()`].
pub fn print_on(text: &str) -> Result<Reader, OutputError> {
    written(write(text))
}

/// Moves a terminal's cursor to the top and clears the rest of the screen.
pub fn clear_screen() {
    // Where that cannot be written, what follows cannot either, and tells.
    let _ = std::io::stdout().lock().write_all(b"\x1b[H\x1b[J");
}

/// Prints a value as JSON.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &impl Serialize) -> Result<(), OutputError> {
    print_on(&json_text(value)).map(|_| ())
}

/// A value as JSON, with the end of its last line.
pub fn json_text(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value).expect("no map key is anything but text");
    json_escaped(&text) + "\n"
}

/// A value as JSON in one line.
pub fn json_line(value: &impl Serialize) -> String {
    json_escaped(&serde_json::to_string(value).expect("no map key is anything but text"))
}

/// JSON with the hidden characters escaped that JSON allows in a string.
fn json_escaped(text: &str) -> String {
    if !text.contains(config::is_hidden) {
        return text.to_owned();
    }
    let mut fit = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => fit.push(c),
            c if config::is_hidden(c) => {
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
pub fn table<R>(title: &str, header: &[&str], rows: R, numbers: Numbers) -> String
where
    R: IntoIterator<Item = Vec<String>>,
{
    titled(title, &lined_up(header, rows, &numbers))
}

/// Characters that the last column of a wrapped table has at least; with less room its text stands
/// below each row.
const LEAST_OF_LAST: usize = 24;

/// Writes a table as [`table`] does, and breaks the text of the last column into lines that fit. If
/// the other columns leave too little room, that text stands below each row.
pub fn wrapped<R>(
    title: &str,
    header: &[&str],
    rows: R,
    numbers: Numbers,
    columns: Columns,
) -> String
where
    R: IntoIterator<Item = Vec<String>>,
{
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    if let Columns::Within(room) = columns {
        let others = 0..header.len() - 1;
        // A column has a space on both sides.
        let others: usize = others.map(|place| width_of(header, &rows, place) + 2).sum();
        if !rows.is_empty() && others + LEAST_OF_LAST > room {
            return last_below(title, header, rows, &numbers, room);
        }
    }
    let mut table = lined_up(header, rows, &numbers);
    if let Columns::Within(room) = columns {
        // `titled` puts a space before each line.
        let room = u16::try_from(room.saturating_sub(1)).unwrap_or(u16::MAX);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(room);
        for place in 0..header.len() - 1 {
            let column = table.column_mut(place).expect("each heading has a column");
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    titled(title, &table)
}

/// Characters of the widest cell of a column.
fn width_of(header: &[&str], rows: &[Vec<String>], place: usize) -> usize {
    let length = |cell: &str| cell.chars().count();
    rows.iter().map(|row| length(&row[place])).fold(length(header[place]), usize::max)
}

/// Writes a table whose last column stands below each row, in lines that fit.
fn last_below(
    title: &str,
    header: &[&str],
    mut rows: Vec<Vec<String>>,
    numbers: &Numbers,
    room: usize,
) -> String {
    const INDENT: &str = "    ";
    let texts: Vec<String> = rows.iter_mut().map(|row| row.pop().unwrap_or_default()).collect();
    let table = lined_up(&header[..header.len() - 1], rows, numbers);
    let mut below = texts.iter();
    let mut text = format!("{title}\n");
    for (place, line) in table.lines().enumerate() {
        text.push_str(format!(" {line}").trim_end());
        text.push('\n');
        if place == 0 {
            continue;
        }
        let shown = config::escaped_line(below.next().map_or("", |text| text));
        for line in broken(&shown, room.saturating_sub(INDENT.len()).max(LEAST_OF_LAST)) {
            text.push_str(&format!("{INDENT}{line}\n"));
        }
    }
    text.push('\n');
    text
}

/// Breaks a text between words into lines of at most so many characters; a longer word has a line
/// of its own.
fn broken(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Arranges cells in columns.
fn lined_up<R>(header: &[&str], rows: R, numbers: &Numbers) -> Table
where
    R: IntoIterator<Item = Vec<String>>,
{
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.to_vec());
    // Escaped here already: a line end in a cell would make another line.
    let fit = |cell: String| config::escaped_line(&cell).into_owned();
    table.add_rows(rows.into_iter().map(|row| row.into_iter().map(fit).collect::<Vec<_>>()));
    for (place, column) in table.column_iter_mut().enumerate() {
        if numbers.0.contains(&place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Writes a table with its heading and an empty line behind it; nothing if it has no rows.
fn titled(title: &str, table: &Table) -> String {
    if table.is_empty() {
        return String::new();
    }
    let mut text = format!("{title}\n");
    for line in table.lines() {
        text.push_str(format!(" {line}").trim_end());
        text.push('\n');
    }
    text.push('\n');
    text
}

/// The columns that a table may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Columns {
    /// All of them.
    All,
    /// Columns that fit into so many characters.
    Within(usize),
}

/// A table that fits: it leaves out columns of `wide`, the first ones first, until it does, and
/// says which.
pub fn fitted<R>(
    title: &str,
    header: &[&str],
    rows: R,
    numbers: Numbers,
    (columns, wide): (Columns, &[&str]),
) -> String
where
    R: IntoIterator<Item = Vec<String>>,
{
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let widths: Vec<usize> =
        (0..header.len()).map(|place| width_of(header, &rows, place)).collect();
    let mut kept: Vec<usize> = (0..header.len()).collect();
    let mut left_out = Vec::new();
    if let Columns::Within(room) = columns {
        for column in wide {
            // Every cell has a space on both sides, and the last one at the end is cut off.
            if kept.iter().map(|place| widths[*place] + 2).sum::<usize>() <= room {
                break;
            }
            kept.retain(|place| header[*place] != *column);
            left_out.push(*column);
        }
    }
    let header: Vec<&str> = kept.iter().map(|place| header[*place]).collect();
    let shown = rows.iter().map(|row| kept.iter().map(|place| row[*place].clone()).collect());
    let mut text = table(title, &header, shown, numbers.of(&kept));
    if !left_out.is_empty() && !text.is_empty() {
        text.pop();
        text.push_str(&added(&left_out, columns));
    }
    text
}

/// Names the columns that `--wide` adds, in lines that fit.
fn added(left_out: &[&str], columns: Columns) -> String {
    const BEGIN: &str = " --wide adds:";
    let room = match columns {
        Columns::All => usize::MAX,
        Columns::Within(room) => room,
    };
    let (mut text, mut used) = (BEGIN.to_owned(), BEGIN.len());
    for (place, name) in left_out.iter().enumerate() {
        let comma = if place + 1 < left_out.len() { "," } else { "" };
        let more = 1 + name.chars().count() + comma.len();
        if used + more > room && place > 0 {
            text.push_str("\n  ");
            used = 2;
        }
        text.push_str(&format!(" {name}{comma}"));
        used += more;
    }
    text.push_str("\n\n");
    text
}

/// The columns of a table that hold numbers, which are aligned to the right.
pub struct Numbers(pub std::ops::RangeInclusive<usize>);

impl Numbers {
    /// No column.
    pub const NONE: Numbers = Numbers(usize::MAX..=usize::MAX);

    /// Renumbers the columns for a table that has only these.
    fn of(self, kept: &[usize]) -> Numbers {
        let places = (0..).zip(kept).filter(|(_, old)| self.0.contains(old)).map(|(new, _)| new);
        let places: Vec<usize> = places.collect();
        match (places.first(), places.last()) {
            (Some(first), Some(last)) => Numbers(*first..=*last),
            _ => Numbers::NONE,
        }
    }
}

/// `1 packet`, `2 packets`.
pub fn counted(count: u64, noun: &str) -> String {
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
        fn json_shows_nothing_hidden_and_means_the_same(
            text in any::<String>(),
            key in any::<String>(),
        ) {
            let value = serde_json::json!({ key: [text] });
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            for (shown, ends) in [(json_line(&value), false), (json_escaped(&pretty), true)] {
                let hidden = |c: char| config::is_hidden(c) && !(ends && c == '\n');
                prop_assert!(!shown.contains(hidden), "{:?}", shown);
                let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
                prop_assert_eq!(&read, &value);
            }
        }

        #[test]
        fn no_cell_breaks_a_table_or_reaches_the_terminal_raw(cell in any::<String>()) {
            let text = table("T", &["a", "b"], [vec![cell, "x".into()]], Numbers::NONE);
            prop_assert_eq!(text.lines().count(), 4, "{:?}", text);
            prop_assert!(!text.contains(|c: char| config::is_hidden(c) && c != '\n'));
        }
    }

    fn fitted_to(columns: Columns) -> String {
        let row = |name: &str, number: u64| {
            vec![name.to_owned(), "x".repeat(30), number.to_string(), "y".repeat(30), "up".into()]
        };
        let header = ["name", "long", "packets", "longer", "state"];
        let rows = [row("a", 5), row("b", 12345)];
        fitted("Things", &header, rows, Numbers(2..=2), (columns, &["longer", "long"]))
    }

    #[test]
    fn a_table_leaves_out_wide_columns_until_it_fits_and_says_which() {
        let all = fitted_to(Columns::All);
        assert!(all.contains("longer") && !all.contains("--wide"), "{all}");
        let widest = all.lines().map(|line| line.chars().count()).max().unwrap();
        assert_eq!(fitted_to(Columns::Within(widest + 2)), all);
        for (room, left_out) in [(80, "longer"), (widest - 10, "longer"), (40, "longer, long")] {
            let text = fitted_to(Columns::Within(room));
            assert!(text.lines().all(|line| line.chars().count() <= room), "{room}: {text}");
            assert!(text.ends_with(&format!(" --wide adds: {left_out}\n\n")), "{room}: {text}");
            // Numbers still stand to the right.
            assert!(text.contains("       5 ") && text.contains("   12345 "), "{room}: {text}");
        }
        // What is left is shown, whatever room there is.
        assert!(fitted_to(Columns::Within(1)).contains("12345"));
    }

    #[test]
    fn the_last_column_of_a_wrapped_table_takes_several_lines() {
        let words = ["carries"; 30].join(" ");
        let shown = |columns| {
            let row = vec!["esp_fragment".to_owned(), "7".into(), words.clone()];
            wrapped("Drops", &["reason", "packets", "meaning"], [row], Numbers(1..=1), columns)
        };
        let text = shown(Columns::Within(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.lines().count() > 5 && text.contains(" esp_fragment        7  "), "{text}");
        assert_eq!(text.matches("carries").count(), 30, "nothing is left out: {text}");
        assert!(shown(Columns::All).contains(&words));
        // The other columns stay whole, whatever room there is.
        assert!(shown(Columns::Within(1)).contains("esp_fragment"));
        let none: [Vec<String>; 0] = [];
        assert_eq!(wrapped("T", &["a"], none, Numbers::NONE, Columns::Within(9)), "");
    }

    #[test]
    fn the_last_column_stands_below_its_row_where_the_others_leave_no_room() {
        let words = ["carries"; 20].join(" ");
        let row = |name: &str| vec![name.to_owned(), "7".into(), words.clone()];
        let rows = [row(&"n".repeat(64)), row("short")];
        let header = ["peer", "packets", "meaning"];
        let text = wrapped("SAs", &header, rows, Numbers(1..=1), Columns::Within(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.lines().count() < 12, "{text}");
        assert_eq!(text.matches("carries").count(), 40, "nothing is left out: {text}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].contains("nnn") && lines[3].starts_with("    carries"), "{text}");
    }

    #[test]
    fn a_table_without_rows_is_nothing() {
        let none: [Vec<String>; 0] = [];
        let wide: (Columns, &[&str]) = (Columns::Within(1), &["a"]);
        assert_eq!(fitted("T", &["a"], none, Numbers::NONE, wide), "");
    }
}
