//! Presents the figures of the turns: table, JSON, curves.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::super::measure::{Figure, quantile};
use super::super::plot::{Chart, Curve, Scale, add_point};
use super::Turns;

/// One row: a rate of changes with a number of policies.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) policies: usize,
    pub(super) flows: usize,
    /// Changes asked for.
    pub(super) changes_per_s: u32,
    pub(super) changes_made: usize,
    /// Looks at whether a new base was there, by changes that had to wait for it.
    pub(super) waited: usize,
    pub(super) family: u8,
    pub(super) workers: usize,
    /// Rate by the worker's CPU time, median of the turns.
    pub(super) mpps: f64,
    pub(super) spread: f64,
    /// `mpps` by that without changes; 0: that was not measured.
    pub(super) rate_kept: f64,
    pub(super) hit_rate: f64,
    pub(super) stall_p50_us: f64,
    pub(super) stall_p99_us: f64,
    pub(super) stall_p9999_us: f64,
    pub(super) stall_max_us: f64,
    /// `stall_p9999_us` by that without changes.
    pub(super) p9999_by_no_change: f64,
    pub(super) packets: u64,
    pub(super) lost: u64,
    /// Time from the beginning of a change until the worker has it, median; 0 without changes.
    pub(super) effect_ms: f64,
    pub(super) effect_max_ms: f64,
}

/// The rows of one number of policies.
pub(super) fn figures(policies: usize, flows: usize, turns: Vec<Turns>) -> Vec<Figures> {
    let mut rows: Vec<Figures> =
        turns.into_iter().map(|turns| row(policies, flows, turns)).collect();
    let quiet = rows.iter().find(|row| row.changes_per_s == 0);
    if let Some((mpps, stall)) = quiet.map(|row| (row.mpps, row.stall_p9999_us)) {
        for row in &mut rows {
            row.rate_kept = row.mpps / mpps;
            row.p9999_by_no_change = row.stall_p9999_us / stall;
        }
    }
    rows
}

fn row(policies: usize, flows: usize, turns: Turns) -> Figures {
    let Turns { changes_per_s, slices, mut effect_ms, waited, .. } = turns;
    let rates: Vec<f64> = slices
        .iter()
        .map(|slice| {
            let ns: u64 = slice.loops_ns.iter().map(|ns| u64::from(*ns)).sum();
            // Of the loops that were kept, all of which were of full batches.
            (slice.loops_ns.len() * wire::BATCH) as f64 * 1e3 / ns as f64
        })
        .collect();
    let mpps = Figure::of(&rates);
    let loops = slices.iter().flat_map(|slice| &slice.loops_ns);
    let mut loops: Vec<f64> = loops.map(|ns| f64::from(*ns) / 1e3).collect();
    loops.sort_by(f64::total_cmp);
    effect_ms.sort_by(f64::total_cmp);
    let packets: u64 = slices.iter().map(|slice| slice.packets).sum();
    let hits: u64 = slices.iter().map(|slice| slice.hits).sum();
    let or_none = |ms: f64| if ms.is_nan() { 0.0 } else { ms };
    Figures {
        policies,
        flows,
        changes_per_s,
        changes_made: effect_ms.len(),
        waited,
        family: 4,
        workers: 1,
        mpps: mpps.median,
        spread: mpps.spread,
        rate_kept: 0.0,
        hit_rate: hits as f64 / packets.max(1) as f64,
        stall_p50_us: quantile(&loops, 0.5),
        stall_p99_us: quantile(&loops, 0.99),
        stall_p9999_us: quantile(&loops, 0.9999),
        stall_max_us: quantile(&loops, 1.0),
        p9999_by_no_change: 0.0,
        packets,
        lost: slices.iter().map(|slice| slice.lost).sum(),
        effect_ms: or_none(quantile(&effect_ms, 0.5)),
        effect_max_ms: or_none(quantile(&effect_ms, 1.0)),
    }
}

/// Formats the rows as an aligned table with an explanation of the columns.
pub(super) fn table(figures: &[Figures]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "policies",
        "changes/s",
        "made",
        "Mpps",
        "kept",
        "hits",
        "loop p50 µs",
        "p99",
        "p99.99",
        "max",
        "p99.99 by none",
        "lost",
        "effect ms",
        "max ms",
    ]);
    for row in figures {
        table.add_row([
            row.policies.to_string(),
            row.changes_per_s.to_string(),
            row.changes_made.to_string(),
            format!("{:.2}", row.mpps),
            format!("{:.0} %", row.rate_kept * 100.0),
            format!("{:.1} %", row.hit_rate * 100.0),
            format!("{:.1}", row.stall_p50_us),
            format!("{:.1}", row.stall_p99_us),
            format!("{:.1}", row.stall_p9999_us),
            format!("{:.1}", row.stall_max_us),
            format!("{:.2}", row.p9999_by_no_change),
            row.lost.to_string(),
            format!("{:.3}", row.effect_ms),
            format!("{:.3}", row.effect_max_ms),
        ]);
    }
    table.column_iter_mut().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!(
        "{table}\n\
         kept: of the rate without changes. loop: CPU time from looking for a snapshot until the \
         batch is transmitted; what the kernel\ndoes on the core in between is in it. effect: from \
         the beginning of a change until the worker has the snapshot."
    )
}

/// Returns two charts over changes a second, the rate kept and the time to effect, with a curve for
/// each number of policies.
pub(super) fn charts(figures: &[Figures]) -> Vec<Chart> {
    let picture = |name: &str, title: &str, y, scale, of: fn(&Figures) -> f64| {
        let mut curves: Vec<Curve> = Vec::new();
        for row in figures.iter().filter(|row| row.changes_per_s > 0) {
            let point = (f64::from(row.changes_per_s), of(row));
            let name = format!("{} policies", row.policies);
            add_point(&mut curves, &name, point);
        }
        let x = "policy changes a second";
        Chart { name: name.into(), title: title.into(), x, y, scale, curves }
    };
    vec![
        picture(
            "churn-rate",
            "Rate kept while policies change",
            "percent of the rate without changes",
            Scale::Linear,
            |row| row.rate_kept * 100.0,
        ),
        picture(
            "churn-effect",
            "From a change's beginning until the worker has it, median",
            "ms",
            Scale::Logarithmic,
            |row| row.effect_ms,
        ),
    ]
}
