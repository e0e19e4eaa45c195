//! What commands print: text, tables that line up, JSON.

use std::io::Write;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Prints to standard output. A reader that has gone away (`lockgate … | head`) is no error.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl Serialize) {
    let mut text = serde_json::to_string_pretty(value).expect("no map key is anything but text");
    text.push('\n');
    print(&text);
}

/// A table with a heading and an empty line behind it; nothing if there are no rows.
pub(crate) fn table<R>(title: &str, header: &[&str], rows: R, numbers: Numbers) -> String
where
    R: IntoIterator<Item = Vec<String>>,
{
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.to_vec());
    table.add_rows(rows);
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
