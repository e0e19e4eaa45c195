//! The rows of `lockgate bench store`, with the times that Arion published beside them.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Milliseconds that Arion's agent takes to program a number of neighbours, as it publishes them
/// (BM-4h).
pub(super) const ARION_MS: [(usize, f64); 11] = [
    (1, 0.015),
    (5, 0.061),
    (100, 1.0),
    (500, 4.8),
    (1_000, 9.5),
    (5_000, 49.1),
    (10_000, 93.6),
    (50_000, 354.1),
    (100_000, 601.4),
    (500_000, 2924.6),
    (1_000_000, 5893.0),
];

/// The figures of a number of endpoints.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) entries: usize,
    pub(super) applied_s: f64,
    pub(super) durable_s: f64,
    pub(super) cold_s: f64,
    pub(super) first_answer_s: f64,
    pub(super) lookup_ns: f64,
    /// Time to write them into the table alone, without file, client and API.
    pub(super) table_s: f64,
    /// The published figure, where there is one for this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) arion_s: Option<f64>,
}

/// Returns the published seconds for a number of endpoints.
pub(super) fn arion_s(entries: usize) -> Option<f64> {
    ARION_MS.iter().find(|(of, _)| *of == entries).map(|(_, ms)| ms / 1e3)
}

/// The rows for a reader: milliseconds for all endpoints, then microseconds for each.
pub(super) fn text(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "endpoints",
        "Arion ms",
        "µs each",
        "applied ms",
        "µs each",
        "table alone ms",
        "µs each",
        "durable ms",
        "µs each",
        "cold s",
        "first answer s",
        "lookup ns",
    ]);
    for row in rows {
        let times = [row.arion_s, Some(row.applied_s), Some(row.table_s), Some(row.durable_s)];
        let times = times.into_iter().flat_map(|time| in_all_and_each(time, row.entries));
        let rest = [format!("{:.3}", row.cold_s), format!("{:.3}", row.first_answer_s)];
        let cells = [row.entries.to_string()].into_iter().chain(times).chain(rest);
        table.add_row(cells.chain([format!("{:.0}", row.lookup_ns)]));
    }
    table.column_iter_mut().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!(
        "{table}\nArion: as published, the time to program them, of its own machine (BM-4h)\n\
         applied: from a file through the API into the table; one import, so that of a few \
         endpoints is a round trip"
    )
}

/// Returns the milliseconds of all endpoints, and the microseconds of one.
fn in_all_and_each(seconds: Option<f64>, entries: usize) -> [String; 2] {
    let Some(seconds) = seconds else { return ["-".into(), "-".into()] };
    [format!("{:.3}", seconds * 1e3), format!("{:.2}", seconds * 1e6 / entries as f64)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(entries: usize) -> Row {
        let each = entries as f64 * 1e-6;
        Row {
            entries,
            applied_s: 1.25 * each,
            durable_s: 4.5 * each,
            cold_s: 1.0,
            first_answer_s: 0.5,
            lookup_ns: 41.4,
            table_s: 0.25 * each,
            arion_s: arion_s(entries),
        }
    }

    // BM-4h
    #[test]
    fn ours_stands_beside_arions_eleven_numbers_of_neighbours() {
        let published = [
            ("1", "0.015", "15.00"),
            ("5", "0.061", "12.20"),
            ("100", "1.000", "10.00"),
            ("500", "4.800", "9.60"),
            ("1000", "9.500", "9.50"),
            ("5000", "49.100", "9.82"),
            ("10000", "93.600", "9.36"),
            ("50000", "354.100", "7.08"),
            ("100000", "601.400", "6.01"),
            ("500000", "2924.600", "5.85"),
            ("1000000", "5893.000", "5.89"),
        ];
        // The command's own numbers are the published ones.
        assert_eq!(ARION_MS.map(|(of, _)| of.to_string()), published.map(|(of, _, _)| of));
        let text = text(&ARION_MS.map(|(of, _)| row(of)));
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        for (line, (entries, all, each)) in lines[1..].iter().zip(published) {
            assert_eq!(line[..3], [entries, all, each], "{text}");
            let number: f64 = entries.parse().unwrap();
            assert_eq!(line[3..5], [&*format!("{:.3}", 1.25e-3 * number), "1.25"], "{text}");
            assert_eq!([line[6], line[8]], ["0.25", "4.50"], "{text}");
            assert_eq!(line[9..], ["1.000", "0.500", "41"], "{text}");
        }
        let without = super::text(&[row(7)]);
        assert!(without.contains("7         -        -"), "{without}");
    }
}
