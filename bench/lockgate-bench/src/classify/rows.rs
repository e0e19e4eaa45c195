//! Presents the figures of the laps: table, JSON, curves.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use policy::{Book, common};
use serde::Serialize;

use super::super::machine::Machine;
use super::super::measure::Figure;
use super::super::plot::{Chart, Scale, add_point};
use super::super::rows::{undisturbed, version};
use super::{LapFigures, Row};

/// One row: a case with its figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) set: String,
    pub(super) rules: usize,
    pub(super) family: u8,
    pub(super) trace: &'static str,
    pub(super) form: &'static str,
    /// CPU time, median of the laps.
    pub(super) ns_per_lookup: f64,
    pub(super) ns_best_quartile: f64,
    /// Distance of the quartiles as a part of the median.
    pub(super) spread: f64,
    /// CPU time to build the database: sorting policies and compiling rules included.
    pub(super) build_ms: f64,
    /// Size of the searched structure.
    pub(super) bytes: usize,
    /// Steps that a search takes at most.
    pub(super) worst_case_cost: u32,
    pub(super) laps: usize,
    /// Target of an acl, ipc or fw set of 1 k, 10 k or 100 k rules, or of one like an SPD's.
    pub(super) target_ns: Option<f64>,
}

/// A set that would have cost more than a search may.
pub(super) struct Refused {
    pub(super) set: String,
    pub(super) rules: usize,
    pub(super) why: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: {} with {} rules: {}", self.set, self.rules, self.why)
    }
}

impl Figures {
    pub(super) fn of(row: &Row, laps: &[LapFigures]) -> Figures {
        let (kept, _) = undisturbed(laps, |lap| lap.span);
        let ns = Figure::of(&kept.iter().map(|lap| lap.ns).collect::<Vec<_>>());
        let domain = common(Book::SpdOut, row.built.set.family);
        let rules = row.built.set.policies.len();
        Figures {
            set: row.built.set.name.clone(),
            rules,
            family: version(row.built.set.family),
            trace: row.trace.name(),
            form: row.form,
            ns_per_lookup: ns.median,
            ns_best_quartile: ns.first_quartile,
            spread: ns.spread,
            build_ms: row.built.build_ms,
            bytes: row.spd.bytes(domain),
            worst_case_cost: row.spd.cost(domain).steps(),
            laps: kept.len(),
            target_ns: target(&row.built.set.name, rules),
        }
    }
}

/// Returns the target of a lookup's time, ns; `None`: no target is set.
fn target(set: &str, rules: usize) -> Option<f64> {
    let families = [
        ("acl", [18.0, 27.0, 50.0]),
        ("ipc", [22.0, 45.0, 55.0]),
        ("fw", [35.0, 60.0, 95.0]),
        ("spd", [10.0, 12.0, 20.0]),
    ];
    let (_, targets) = families.into_iter().find(|(family, _)| set.starts_with(family))?;
    // The files have somewhat fewer rules than their names say.
    let about = |size: usize| (size - size / 5..=size).contains(&rules);
    let place = [1000, 10_000, 100_000].into_iter().position(about)?;
    Some(targets[place])
}

/// Formats the rows as an aligned table with an explanation of the columns.
pub(super) fn table(figures: &[Figures], machine: &Machine) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "set",
        "form",
        "trace",
        "IP",
        "rules",
        "ns/lookup",
        "target",
        "± IQR",
        "best quartile",
        "build ms",
        "KiB",
        "worst case steps",
        "laps",
    ]);
    for row in figures {
        let target = row.target_ns.filter(|_| machine.is_reference);
        let target = target.map_or(String::new(), |target| {
            let word = if row.ns_per_lookup <= target { "reached" } else { "missed" };
            format!("{target:.0} {word}")
        });
        table.add_row([
            row.set.clone(),
            row.form.to_owned(),
            row.trace.to_owned(),
            row.family.to_string(),
            row.rules.to_string(),
            format!("{:.1}", row.ns_per_lookup),
            target,
            format!("{:.1} %", row.spread * 100.0),
            format!("{:.1}", row.ns_best_quartile),
            format!("{:.1}", row.build_ms),
            (row.bytes / 1024).to_string(),
            row.worst_case_cost.to_string(),
            row.laps.to_string(),
        ]);
    }
    table.column_iter_mut().skip(3).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!(
        "{table}\n\
         ns/lookup: CPU time of the thread, median of laps. build ms: the whole database, from \
         policies on.\nworst case: nodes and blocks of 16 rules that a search looks at, at most.\n\
         target: of one core of a Zen 5 with AVX-512, shown there alone."
    )
}

/// Time of a lookup over the number of rules: a picture a trace, a curve for each set and form.
pub(super) fn charts(figures: &[Figures]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    for row in figures {
        let name = format!("classify-{}", row.trace);
        let place = charts.iter().position(|chart| chart.name == name).unwrap_or_else(|| {
            let title = format!("One lookup, every packet a miss, by 64; {} trace", row.trace);
            let (x, y, scale) = ("rules", "ns a lookup", Scale::Logarithmic);
            charts.push(Chart { name, title, x, y, scale, curves: Vec::new() });
            charts.len() - 1
        });
        let name = format!("{}, {}", row.set, row.form);
        let point = (row.rules as f64, row.ns_per_lookup);
        add_point(&mut charts[place].curves, &name, point);
    }
    charts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_for_the_families_and_sizes_that_have_one() {
        assert_eq!(target("acl1", 1000), Some(18.0));
        assert_eq!(target("fw1", 100_000), Some(95.0));
        assert_eq!(target("spd", 10_000), Some(12.0));
        assert_eq!(target("nested", 1000), None);
        assert_eq!(target("fw1", 833), Some(35.0));
        assert_eq!(target("acl1", 799), None);
    }
}
