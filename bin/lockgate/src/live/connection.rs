//! `lockgate show connection` and `lockgate connection clear`: the connections that `reflect` rules
//! let begin.
//!
//! A table may hold a million: they are printed as they come, page by page. The first page says how
//! wide the columns are.

use std::fmt::Write;

use api::v1;
use clap::Subcommand;
use console::output::{Reader, counted, json_line, print, print_json, print_on};
use tonic::Streaming;

use super::{AnswerError, Ask, LiveError, Socket};
use crate::failure::Failure;

const FILTER: &str = "\
Filter: host ADDRESS, net PREFIX, port NUMBER or RANGE (each of either end), proto NAME (or tcp,
  udp, icmp, … alone), state STATE, on PORT (the gateway's port whose rule let it begin). All of
  them must hold. States are those of the column, and half_open.";

/// Remove connections of the running gateway
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Clear(ClearArgs),
}

/// Remove the connections that a filter names, or all
///
/// The next packet of a removed connection is judged by the rules as the first of another. When the
/// command answers, no worker acts on a removed one any more.
#[derive(clap::Args)]
#[command(after_help = FILTER)]
struct ClearArgs {
    /// Remove only connections that these words name
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Removes connections and prints how many.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    let What::Clear(ClearArgs { filter, json }) = &args.what;
    let request = v1::ConnectionsRequest { filter: filter.join(" ") };
    let cleared = Ask::new(socket)?.call(async |client| client.clear_connections(request).await)?;
    match json {
        true => print_json(&cleared)?,
        false => print(&format!("removed {}\n", counted(cleared.removed, "connection")))?,
    }
    Ok(())
}

/// The form of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Table,
    Json,
}

/// Prints the connections that a filter names, and the table's totals.
pub(super) fn show(filter: &str, form: Form, socket: &Socket) -> Result<Reader, Failure> {
    let mut ask = Ask::new(socket)?;
    let request = v1::ConnectionsRequest { filter: filter.to_owned() };
    let mut pages = ask.call(async |client| client.show_connections(request).await)?;
    ask.wait(print_all(&mut pages, form))
}

async fn print_all(
    pages: &mut Streaming<v1::ConnectionPage>,
    form: Form,
) -> Result<Reader, Failure> {
    let mut printer = Printer { form, widths: None, printed: 0 };
    while let Some(page) = pages.message().await.map_err(AnswerError)? {
        let mut text = printer.rows(&page.connections);
        let end = page.table.map(|table| printer.end(&table));
        text.push_str(end.as_deref().unwrap_or_default());
        if print_on(&text)? == Reader::Gone {
            return Ok(Reader::Gone);
        }
        if end.is_some() {
            return Ok(Reader::Reads);
        }
    }
    Err(LiveError::StreamEnded.into())
}

/// Headings of the columns.
const HEADER: [&str; 7] =
    ["protocol", "originator", "responder", "state", "idle s", "port", "rule"];
/// The column that holds numbers.
const IDLE: usize = 4;

/// Writes pages.
struct Printer {
    form: Form,
    /// Widths of the columns; `None`: nothing was printed.
    widths: Option<[usize; HEADER.len()]>,
    printed: u64,
}

impl Printer {
    fn rows(&mut self, connections: &[v1::Connection]) -> String {
        let mut text = String::new();
        match self.form {
            Form::Json => {
                for connection in connections {
                    text.push_str(if self.printed == 0 { "{\"connections\": [\n" } else { ",\n" });
                    text.push_str(&json_line(connection));
                    self.printed += 1;
                }
            }
            Form::Table => {
                let rows: Vec<_> = connections.iter().map(cells).collect();
                if self.widths.is_none() && !rows.is_empty() {
                    let widths = widths(&rows);
                    text = format!("Connections\n{}", line(&HEADER.map(str::to_owned), &widths));
                    self.widths = Some(widths);
                }
                for (row, widths) in rows.iter().filter_map(|row| Some((row, self.widths?))) {
                    text.push_str(&line(row, &widths));
                }
                self.printed += rows.len() as u64;
            }
        }
        text
    }

    fn end(&self, table: &v1::ConnectionTable) -> String {
        match (self.form, self.printed) {
            (Form::Json, 0) => {
                format!("{{\"connections\": [], \"table\": {}}}\n", json_line(table))
            }
            (Form::Json, _) => format!("\n], \"table\": {}}}\n", json_line(table)),
            (Form::Table, 0) => format!("no connections\n\n{}", totals(table)),
            (Form::Table, _) => format!("\n{}", totals(table)),
        }
    }
}

fn cells(connection: &v1::Connection) -> [String; HEADER.len()] {
    let end = |end: &Option<v1::ConnectionEnd>| end.as_ref().map_or_else(String::new, end_text);
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    [
        connection.protocol.clone(),
        end(&connection.originator),
        end(&connection.responder),
        connection.state.clone(),
        connection.idle_s.to_string(),
        or_dash(&connection.port),
        or_dash(&connection.rule),
    ]
}

/// `10.1.0.1:4000`, `[2001:db8::1]:80`; the address alone where there is no port.
fn end_text(end: &v1::ConnectionEnd) -> String {
    let v1::ConnectionEnd { address, port } = end;
    match (port, address.contains(':')) {
        (0, _) => address.clone(),
        (port, true) => format!("[{address}]:{port}"),
        (port, false) => format!("{address}:{port}"),
    }
}

fn widths(rows: &[[String; HEADER.len()]]) -> [usize; HEADER.len()] {
    let length = |text: &str| text.chars().count();
    std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| length(&row[column]));
        cells.fold(length(HEADER[column]), usize::max)
    })
}

fn line(row: &[String; HEADER.len()], widths: &[usize; HEADER.len()]) -> String {
    let mut line = String::new();
    for (place, (cell, width)) in row.iter().zip(widths).enumerate() {
        // A line end in a cell would make another line.
        let cell = config::escaped_line(cell);
        let written = match place {
            IDLE => write!(line, " {cell:>width$} "),
            _ => write!(line, " {cell:<width$} "),
        };
        written.expect("writing to a string");
    }
    format!(" {}\n", line.trim())
}

fn totals(table: &v1::ConnectionTable) -> String {
    if table.max == 0 {
        return "no rule reflects: there is no table of connections\n".into();
    }
    let v1::ConnectionTable { max, half_open_max, taken, half_open_taken, .. } = table;
    let v1::ConnectionTable { made, expired, replaced, .. } = table;
    let refused = table.refused.iter().map(|of| format!("{} by {}", of.count, of.bound));
    let refused: Vec<String> = refused.collect();
    format!(
        "{}, {} of them half-open; {taken} of {max} places taken, {half_open_taken} of \
         {half_open_max} by half-open ones\n\
         Since the start: {made} began, {expired} timed out, {replaced} gave way; refused: {}\n",
        counted(table.live, "connection"),
        table.half_open,
        refused.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(originator: &str, state: &str) -> v1::Connection {
        let end = |address: &str, port| v1::ConnectionEnd { address: address.into(), port };
        v1::Connection {
            protocol: "tcp".into(),
            originator: Some(end(originator, 4000)),
            responder: Some(end("2001:db8::2", 80)),
            state: state.into(),
            idle_s: 7,
            port: Some("lan".into()),
            ..v1::Connection::default()
        }
    }

    #[test]
    fn columns_are_as_wide_as_the_first_page_needs() {
        let mut printer = Printer { form: Form::Table, widths: None, printed: 0 };
        let text = printer.rows(&[
            connection("10.1.0.1", "established"),
            connection("10.100.100.100", "syn_sent"),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1..],
            [
                " protocol  originator           responder         state        idle s  port  rule",
                " tcp       10.1.0.1:4000        [2001:db8::2]:80  established       7  lan   -",
                " tcp       10.100.100.100:4000  [2001:db8::2]:80  syn_sent          7  lan   -",
            ]
        );
        let more = printer.rows(&[connection("10.1.0.2", "closing")]);
        assert_eq!(more.lines().count(), 1, "no second header: {more}");
        let table = v1::ConnectionTable {
            max: 64,
            half_open_max: 16,
            live: 3,
            half_open: 1,
            taken: 6,
            half_open_taken: 2,
            made: 9,
            refused: vec![v1::RefusedConnections { bound: "max".into(), count: 5 }],
            ..v1::ConnectionTable::default()
        };
        assert_eq!(
            printer.end(&table),
            "\n3 connections, 1 of them half-open; 6 of 64 places taken, 2 of 16 by half-open \
             ones\nSince the start: 9 began, 0 timed out, 0 gave way; refused: 5 by max\n"
        );
    }

    #[test]
    fn pages_of_json_are_one_document() {
        for pages in [0, 1, 2] {
            let mut printer = Printer { form: Form::Json, widths: None, printed: 0 };
            let mut text = String::new();
            for _ in 0..pages {
                text.push_str(&printer.rows(&[connection("10.1.0.1", "a"), connection("::", "b")]));
            }
            text.push_str(&printer.end(&v1::ConnectionTable::default()));
            let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(parsed["connections"].as_array().unwrap().len(), pages * 2);
            assert_eq!(parsed["table"]["max"], 0);
        }
    }

    #[test]
    fn nothing_is_said_in_words() {
        let printer = Printer { form: Form::Table, widths: None, printed: 0 };
        let text = printer.end(&v1::ConnectionTable::default());
        assert!(text.starts_with("no connections\n\nno rule reflects"), "{text}");
    }
}
