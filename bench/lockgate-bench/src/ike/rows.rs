//! The rows of `lockgate bench ike`.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::super::measure::quantile;
use super::KINDS;

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Spi,
    AddSa,
    AddPolicy,
    Query,
    DeletePolicy,
    DeleteSa,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Kind::Spi => "SPI",
            Kind::AddSa => "add SA",
            Kind::AddPolicy => "add policy",
            Kind::Query => "query SA",
            Kind::DeletePolicy => "delete policy",
            Kind::DeleteSa => "delete SA",
        }
    }
}

/// Times of requests, by kind.
#[derive(Default)]
pub(super) struct Times(Vec<(Kind, Duration)>);

impl Times {
    pub(super) fn note(&mut self, kind: Kind, time: Duration) {
        self.0.push((kind, time));
    }

    /// The sums of each kind that was asked for.
    pub(super) fn summed(&self) -> Vec<Requests> {
        let of = |kind: Kind| {
            let times = self.0.iter().filter(|(of, _)| *of == kind);
            let mut us: Vec<f64> = times.map(|(_, time)| time.as_secs_f64() * 1e6).collect();
            us.sort_by(f64::total_cmp);
            let at = |share| quantile(&us, share);
            (!us.is_empty()).then(|| Requests {
                kind,
                count: us.len(),
                median_us: at(0.5),
                p99_us: at(0.99),
                worst_us: at(1.0),
            })
        };
        KINDS.into_iter().filter_map(of).collect()
    }
}

/// The times of one kind of request.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Requests {
    kind: Kind,
    count: usize,
    median_us: f64,
    p99_us: f64,
    worst_us: f64,
}

/// The figures of a number of children.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) children: usize,
    pub(super) install_s: f64,
    /// CPU time of the workers while they came, microseconds a child.
    pub(super) worker_us: f64,
    /// Snapshots that the worker went over to while they came, a child.
    pub(super) snapshots: f64,
    /// Time that the worker took for one, and the longest since it began, microseconds.
    pub(super) snapshot_us: f64,
    pub(super) snapshot_longest_us: f64,
    pub(super) memory_mb: f64,
    /// Memory before the first came.
    pub(super) before_mb: f64,
    pub(super) requests: Vec<Requests>,
}

/// The rows for a reader.
pub(super) fn text(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "children",
        "install s",
        "ms each",
        "worker µs",
        "snapshots",
        "µs each",
        "longest µs",
        "memory MB",
        "before MB",
    ]);
    for row in rows {
        table.add_row([
            row.children.to_string(),
            format!("{:.3}", row.install_s),
            format!("{:.3}", row.install_s * 1e3 / row.children as f64),
            format!("{:.1}", row.worker_us),
            format!("{:.2}", row.snapshots),
            format!("{:.1}", row.snapshot_us),
            format!("{:.1}", row.snapshot_longest_us),
            format!("{:.1}", row.memory_mb),
            format!("{:.1}", row.before_mb),
        ]);
    }
    table.column_iter_mut().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    let mut requests = Table::new();
    requests.load_style(presets::NOTHING);
    requests.set_header(["children", "request", "count", "median µs", "p99 µs", "worst µs"]);
    for row in rows {
        for of in &row.requests {
            requests.add_row([
                row.children.to_string(),
                of.kind.name().to_owned(),
                of.count.to_string(),
                format!("{:.0}", of.median_us),
                format!("{:.0}", of.p99_us),
                format!("{:.0}", of.worst_us),
            ]);
        }
    }
    format!(
        "{table}\n\n{requests}\ninstall: one after the other, six requests each. worker: CPU time \
         of the daemon's worker thread, a child, with its waking. snapshots: how many the worker \
         went over to, a child, and the time of each, in which it processes no packet. memory: \
         resident, frames of the workers among it. requests: with all children there, while \
         others come and go"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_kind_with_its_median_and_its_worst() {
        let mut times = Times::default();
        for us in 1..=100 {
            times.note(Kind::AddSa, Duration::from_micros(us));
        }
        times.note(Kind::Query, Duration::from_micros(7));
        let row = Row {
            children: 10_000,
            install_s: 5.0,
            worker_us: 12.3,
            snapshots: 3.0,
            snapshot_us: 4.5,
            snapshot_longest_us: 30.0,
            memory_mb: 150.0,
            before_mb: 50.0,
            requests: times.summed(),
        };
        let text = text(&[row]);
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        for line in [
            "10000 5.000 0.500 12.3 3.00 4.5 30.0 150.0 50.0",
            "10000 add SA 100 50 99 100",
            "10000 query SA 1 7 7 7",
        ] {
            assert!(lines.iter().any(|found| found == line), "{line} in\n{text}");
        }
        assert!(!text.contains("delete"), "{text}");
    }
}
