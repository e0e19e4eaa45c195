//! Presents the figures of the laps: table, JSON, curves.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::super::machine::Machine;
use super::super::plot::{Chart, Curve, Scale, add_point};
use super::super::rows::version;
use super::super::station::{LEGEND, Measured};
use super::super::subject::WalkKind;
use super::Row;
use super::published;

/// The part at least of a multiple of one worker's rate that several reach.
const LINEAR: f64 = 0.95;

/// One row: a case with its figures.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    pub(super) policies: usize,
    pub(super) rules: &'static str,
    pub(super) flows: usize,
    pub(super) lookup: &'static str,
    /// The flow cache: "auto", as the daemon's default; "always"; "off".
    pub(super) cache: &'static str,
    /// Walk of the row: "fast": the fast path where it takes packets; "general": the general walk
    /// alone.
    pub(super) walk: &'static str,
    #[serde(rename = "match")]
    pub(super) matching: &'static str,
    pub(super) family: u8,
    pub(super) dist: &'static str,
    /// Packets that came at a time.
    pub(super) burst: usize,
    pub(super) workers: usize,
    #[serde(flatten)]
    pub(super) measured: Measured,
    /// Target of `mpps` on the reference machine, if one is set.
    pub(super) target_mpps: Option<f64>,
}

impl Figures {
    /// The figures of a row.
    pub(super) fn of(row: &Row, measured: Measured) -> Figures {
        let figures = Figures {
            policies: row.policies,
            rules: row.rules.name(),
            flows: row.flows,
            lookup: row.lookup.name(),
            cache: row.lookup.caching().name(),
            walk: row.walk.name(),
            matching: row.matching.name(),
            family: version(row.family),
            dist: row.distribution.name(),
            burst: row.burst,
            workers: row.workers,
            measured,
            target_mpps: None,
        };
        let target_mpps = figures.target();
        Figures { target_mpps, ..figures }
    }

    fn is_fast(&self) -> bool {
        self.walk == WalkKind::Fast.name()
    }

    pub(super) fn is_match(&self, matching: &str) -> bool {
        self.matching == matching
    }

    /// Returns whether the row differs from another at most by lookup and number of policies.
    pub(super) fn differs_only_so(&self, other: &Figures) -> bool {
        self.is_curve_with(other) && self.flows == other.flows
    }

    /// Returns whether the row differs from another at most by lookup, number of policies and
    /// number of flows.
    fn is_curve_with(&self, other: &Figures) -> bool {
        let key = |of: &Figures| (of.rules, of.matching, of.family, of.dist, of.burst, of.walk);
        key(self) == key(other) && self.workers == other.workers
    }

    /// Mpps that one core of the reference machine is to reach, in full bursts.
    fn target(&self) -> Option<f64> {
        if self.workers != 1
            || self.burst != wire::BATCH
            || self.dist != "uniform"
            || !self.is_fast()
        {
            return None;
        }
        match (self.lookup, self.matching, self.flows, self.policies) {
            ("cache", "last", 2..=20_000, _) => Some(40.0),
            ("cache", "last", 20_001..=1_000_000, _) => Some(35.0),
            ("cache", "none", 2..=20_000, ..=1000) => Some(35.0),
            ("compiled", "last", 2..=20_000, ..=10_000) => Some(25.0),
            ("compiled", "last", 2..=20_000, ..=100_000) => Some(20.0),
            _ => None,
        }
    }
}

/// Formats the rows as an aligned table with an explanation of the columns.
pub(super) fn table(figures: &[Figures], machine: &Machine) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let heads = ["lookup", "cache", "walk", "rules", "match", "flows", "IP", "policies", "burst"];
    let heads = heads.into_iter().chain(["flows drawn", "workers", "Mpps", "target"]);
    table.set_header(heads.chain(Measured::HEADS));
    for row in figures {
        let Figures { measured, .. } = row;
        let target = row.target_mpps.filter(|_| machine.is_reference);
        let target = target.map_or(String::new(), |target| {
            format!("{target:.0} {}", if measured.mpps >= target { "reached" } else { "missed" })
        });
        let cells = [
            row.lookup.to_owned(),
            row.cache.to_owned(),
            row.walk.to_owned(),
            row.rules.to_owned(),
            row.matching.to_owned(),
            row.flows.to_string(),
            row.family.to_string(),
            row.policies.to_string(),
            row.burst.to_string(),
            row.dist.to_owned(),
            row.workers.to_string(),
            format!("{:.2}", measured.mpps),
            target,
        ];
        table.add_row(cells.into_iter().chain(measured.cells()));
    }
    table.column_iter_mut().skip(5).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!(
        "{table}\n{LEGEND}\n\
         cache: auto, the daemon's default, which searches where that costs no more; always; off. \
         target: of one core of a Zen 5 with AVX-512,\nshown there alone."
    )
}

/// Rows of several workers beside the same row of one. `None`: there are no such rows.
pub(super) fn linear(figures: &[Figures]) -> Option<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let heads = ["rate of workers ÷ (workers × rate of one)", "lookup", "walk", "flows", "IP"];
    table.set_header(heads.into_iter().chain(["policies", "core", "found", "limit", ""]));
    let mut is_empty = true;
    for row in figures.iter().filter(|row| row.workers > 1) {
        let alone = |one: &&Figures| {
            let of_one = Figures { workers: row.workers, ..(*one).clone() };
            let place = |of: &Figures| (of.lookup, of.policies);
            one.workers == 1 && row.differs_only_so(&of_one) && place(row) == place(one)
        };
        let Some(alone) = figures.iter().find(alone) else { continue };
        let found = row.measured.mpps / (row.workers as f64 * alone.measured.mpps);
        is_empty = false;
        table.add_row([
            format!("{} workers", row.workers),
            row.lookup.to_owned(),
            row.walk.to_owned(),
            row.flows.to_string(),
            row.family.to_string(),
            row.policies.to_string(),
            format!("{:.0} %", row.measured.share_of_core * 100.0),
            format!("{found:.3}"),
            LINEAR.to_string(),
            if found >= LINEAR { "reached" } else { "missed" }.to_owned(),
        ]);
    }
    table.column_iter_mut().skip(3).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    let text = format!(
        "{table}\n\
         FC-48. Mpps of several workers is of all together; flows: of each. core: of the worker \
         that had the least of its core in a lap."
    );
    (!is_empty).then_some(text)
}

/// Mpps over the number of policies, and over the number of flows: a picture for each set of rows
/// that differ by nothing else.
pub(super) fn charts(figures: &[Figures]) -> Vec<Chart> {
    let over_policies = pictures(figures, "policies", |row| row.policies, |row| row.flows);
    let over_flows = pictures(figures, "flows", |row| row.flows, |row| row.policies);
    over_policies.into_iter().chain(over_flows).collect()
}

/// Pictures over one number of a row, each at one value of another.
fn pictures(
    figures: &[Figures],
    over: &'static str,
    x: impl Fn(&Figures) -> usize,
    fixed: impl Fn(&Figures) -> usize,
) -> Vec<Chart> {
    let mut charts: Vec<(Figures, Chart)> = Vec::new();
    for row in figures {
        let of_chart =
            |(first, _): &(Figures, Chart)| row.is_curve_with(first) && fixed(row) == fixed(first);
        let place = charts.iter().position(of_chart).unwrap_or_else(|| {
            charts.push((row.clone(), empty_chart(row, over, fixed(row))));
            charts.len() - 1
        });
        let point = (x(row) as f64, row.measured.mpps);
        add_point(&mut charts[place].1.curves, row.lookup, point);
    }
    let several = |chart: &Chart| chart.curves.iter().any(|curve| curve.points.len() > 1);
    let mut charts: Vec<Chart> =
        charts.into_iter().map(|(_, chart)| chart).filter(several).collect();
    for chart in &mut charts {
        if over == "policies" {
            chart.curves.extend(published_curves());
        }
    }
    charts
}

fn empty_chart(row: &Figures, over: &'static str, fixed: usize) -> Chart {
    let Figures { rules, matching, family, dist, burst, walk, workers, .. } = row;
    let by = if row.is_fast() { String::new() } else { format!("-{walk}") };
    let (cores, of_cores) = match workers {
        1 => (String::new(), "one core".to_owned()),
        _ => (format!("-{workers}-workers"), format!("{workers} cores")),
    };
    let other = if over == "policies" { "flows" } else { "policies" };
    Chart {
        name: format!(
            "spd-{over}-{rules}-{matching}-ipv{family}-{dist}-{burst}-{fixed}{by}{cores}"
        ),
        title: format!(
            "Null ESP, smallest packets, {of_cores} in memory: {rules}, match {matching}, \
             IPv{family}, {fixed} {other}, {dist}, by {burst}, {walk} walk"
        ),
        x: over,
        y: "Mpps",
        scale: Scale::Logarithmic,
        curves: Vec::new(),
    }
}

/// Returns the curves published of one machine, without and with its cache.
fn published_curves() -> [Curve; 2] {
    let (name, line) = published::MACHINES[2];
    let points = |of: fn(&(f64, f64)) -> f64| {
        let indices = [1.0, 10.0, 100.0, 1000.0];
        indices.into_iter().zip(line.iter().map(of)).collect()
    };
    [
        Curve { name: format!("{name}, linear (2021)"), points: points(|cell| cell.0) },
        Curve { name: format!("{name}, cached (2021)"), points: points(|cell| cell.1) },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::measure::Span;
    use super::super::super::station::LapFigures;
    use super::*;
    use std::time::Duration;

    fn measured() -> Measured {
        let wall = Duration::from_millis(1);
        let span = Span { cpu: wall, wall };
        let lap = |ns| {
            let (touch_ns, hit_rate, search_rate, packets) = (5.0, 0.5, 0.5, 4096);
            LapFigures { ns, touch_ns, hit_rate, search_rate, span, packets, ..LapFigures::ZERO }
        };
        Measured::of_laps(&[24.0, 20.0, 30.0, 25.0, 26.0].map(lap), 48)
    }

    fn row(line: &[&str]) -> Row {
        super::super::tests_row(line)
    }

    #[test]
    fn the_json_of_a_row_has_its_parameters_and_its_figures() {
        let row = row(&["--policies=100", "--lookup=cache", "--family=6"]);
        let figures = Figures::of(&row, measured());
        let json = serde_json::to_value(&figures).unwrap();
        for (key, value) in [
            ("policies", "100"),
            ("rules", "\"addr\""),
            ("flows", "20000"),
            ("lookup", "\"cache\""),
            ("match", "\"last\""),
            ("family", "6"),
            ("workers", "1"),
            ("mpps", "40.0"),
            ("ns_per_packet", "25.0"),
            ("hit_rate", "0.5"),
            ("spread", "0.08"),
            ("target_mpps", "40.0"),
            ("cache", "\"always\""),
            ("walk", "\"fast\""),
            ("touch_ns", "5.0"),
            ("yardstick_ratio", "5.0"),
        ] {
            assert_eq!(json[key].to_string(), value, "{key}");
        }
        assert!(json["yardstick_ratio_spread"].is_number());
    }

    #[test]
    fn targets_are_shown_on_the_machine_that_they_are_for_alone() {
        let row = row(&["--policies=100", "--lookup=cache", "--family=6"]);
        let figures = [Figures::of(&row, measured())];
        let mut machine = Machine::look(None);
        machine.is_reference = true;
        assert!(table(&figures, &machine).contains("40 reached"));
        machine.is_reference = false;
        let text = table(&figures, &machine);
        assert!(!text.contains("40 reached") && text.contains("yardstick"), "{text}");
    }

    #[test]
    fn workers_are_compared_with_one_of_the_same_row() {
        let figures = |line: &[&str], workers, mpps| {
            let row = Row { workers, ..row(line) };
            Figures::of(&row, Measured { mpps, ..measured() })
        };
        let (near, far) = (["--policies=1"], ["--policies=10"]);
        assert_eq!(linear(&[figures(&near, 1, 10.0), figures(&far, 2, 19.0)]), None);
        let found = |mpps| {
            let rows = [figures(&far, 1, 1.0), figures(&near, 1, 10.0), figures(&near, 2, mpps)];
            linear(&rows).unwrap()
        };
        assert!(found(19.0).contains("0.950") && found(19.0).contains("reached"));
        assert!(found(18.9).contains("missed"));
    }

    #[test]
    fn curves_are_drawn_over_policies_and_over_flows() {
        let figures = |line: &[&str], mpps: f64| {
            let row = row(line);
            Figures::of(&row, Measured { mpps, ..measured() })
        };
        let mut all = Vec::new();
        for policies in ["--policies=1000", "--policies=1"] {
            for lookup in ["--lookup=linear", "--lookup=cache"] {
                all.push(figures(&[policies, lookup], 7.0));
            }
        }
        all.push(figures(&["--policies=1", "--lookup=cache", "--flows=1"], 9.0));
        let charts = charts(&all);
        let names: Vec<&str> = charts.iter().map(|chart| chart.name.as_str()).collect();
        let expected = ["spd-policies-addr-last-ipv4-uniform-64-20000"];
        assert_eq!(names[..1], expected);
        assert_eq!(names[1..], ["spd-flows-addr-last-ipv4-uniform-64-1"]);
        assert_eq!(charts[0].curves.len(), 2 + 2, "with what was published");
        assert_eq!(charts[0].curves[0].points, [(1.0, 7.0), (1000.0, 7.0)], "from left to right");
        assert_eq!(charts[1].curves.len(), 2);
    }
}
