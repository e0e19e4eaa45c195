//! Endpoints as lines of a CSV file (RFC 4180).

use std::io::Read;

use api::v1::{self, endpoint_change::Change};

use crate::failure::{Failure, Usage};

/// The first line of a file that we write.
pub(super) const CSV_HEADER: &str = "vni,address,host,host_mac,mac,revision\n";

/// A line of a file that we write: none of the values needs quotes.
pub(super) fn csv_line(endpoint: &v1::Endpoint) -> String {
    let v1::Endpoint { vni, address, host, host_mac, mac, revision } = endpoint;
    let host_mac = host_mac.as_deref().unwrap_or("");
    format!("{vni},{address},{host},{host_mac},{mac},{revision}\n")
}

/// An endpoint of a file, CSV or JSON, as it is read.
#[derive(serde::Deserialize)]
pub(super) struct Line {
    vni: u32,
    address: String,
    host: String,
    #[serde(default)]
    host_mac: Option<String>,
    mac: String,
    #[serde(default)]
    revision: Option<u64>,
}

impl From<Line> for v1::Endpoint {
    fn from(line: Line) -> v1::Endpoint {
        let Line { vni, address, host, host_mac, mac, revision } = line;
        let host_mac = host_mac.filter(|mac| !mac.is_empty());
        v1::Endpoint { vni, address, host, host_mac, mac, revision: revision.unwrap_or(0) }
    }
}

/// Reads the lines of a file as puts, one by one.
///
/// # Errors
/// The first line names no columns. An item is an error where its line is wrong; none comes behind.
pub(super) fn csv(
    reader: Box<dyn Read + Send>,
    name: &str,
) -> Result<impl Iterator<Item = Result<Change, Failure>> + Send + use<>, Failure> {
    let name = name.to_owned();
    let mut rows = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(reader);
    let bad = |line: Option<u64>, problem: String, name: &str| {
        let place = line.map_or_else(|| name.to_owned(), |line| format!("{name}:{line}"));
        Failure::from(Usage::BadEndpointFile { place, problem })
    };
    let header = rows.headers().map_err(|error| bad(Some(1), error.to_string(), &name))?;
    let known = ["vni", "address", "host", "host_mac", "mac", "revision"];
    if let Some(other) = header.iter().find(|column| !known.contains(column)) {
        let nearest = config::nearest(other, known.into_iter());
        let meant = nearest.map_or_else(String::new, |word| format!(": did you mean `{word}`?"));
        let columns = known.join(",");
        let problem = format!("unknown column `{other}`{meant}; the first line is {columns}");
        return Err(bad(Some(1), problem, &name));
    }
    let rows = rows.into_deserialize::<Line>();
    Ok(rows.map(move |row| {
        let line = row.map_err(|error| {
            let line = error.position().map(csv::Position::line);
            bad(line, error.to_string(), &name)
        })?;
        Ok(Change::Put(line.into()))
    }))
}
