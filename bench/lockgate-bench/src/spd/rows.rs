//! Presents the figures of the laps: table, JSON, curves.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::super::machine::Machine;
use super::super::measure::{Figure, Span};
use super::super::plot::{Chart, Curve, Scale};
use super::super::rows::{undisturbed, version};
use super::super::subject::WalkKind;
use super::published;
use super::{LapFigures, Row};

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
    pub(super) mpps: f64,
    /// Rate of inner IP packets.
    pub(super) gbps: f64,
    /// CPU time, median of the laps.
    pub(super) ns_per_packet: f64,
    /// The yardstick, median of the laps: a header line read, 66 bytes and a descriptor written for
    /// each frame, in the order of the last walk of a lap. Nothing is ciphered here.
    pub(super) touch_ns: f64,
    /// Time a packet over the yardstick of the same lap, median of the laps.
    pub(super) yardstick_ratio: f64,
    /// Distance of the quartiles of `yardstick_ratio` as a part of its median.
    pub(super) yardstick_ratio_spread: f64,
    /// Part of the timed packets that the cache answered, mean of the laps.
    pub(super) hit_rate: f64,
    /// Distance of the quartiles of `ns_per_packet` as a part of its median.
    pub(super) spread: f64,
    pub(super) ns_best_quartile: f64,
    pub(super) ns_min: f64,
    pub(super) ns_max: f64,
    /// Entries that the cache has room for; 0: there is none.
    pub(super) cache_entries: usize,
    pub(super) in_flight: usize,
    pub(super) laps: usize,
    /// Laps that are in no figure: the thread did not have its core.
    pub(super) laps_discarded: usize,
    pub(super) packets_per_lap: usize,
    pub(super) share_of_core: f64,
    /// Target of `mpps` on the reference machine, if one is set.
    pub(super) target_mpps: Option<f64>,
}

impl Figures {
    /// Computes the figures of a row from its laps.
    pub(super) fn of(row: &Row, laps: &[LapFigures], entries: usize, in_flight: usize) -> Figures {
        let (kept, discarded) = undisturbed(laps, |lap| lap.span);
        let figure =
            |of: fn(&LapFigures) -> f64| Figure::of(&kept.iter().map(of).collect::<Vec<f64>>());
        let (ns, ratio) = (figure(|lap| lap.ns), figure(|lap| lap.ns / lap.touch_ns));
        let mut span = Span::default();
        kept.iter().for_each(|lap| span.add(lap.span));
        let mpps = 1e3 / ns.median;
        let size = super::traffic(row.family).size;
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
            workers: 1,
            mpps,
            gbps: 8e-3 * size as f64 * mpps,
            ns_per_packet: ns.median,
            touch_ns: figure(|lap| lap.touch_ns).median,
            yardstick_ratio: ratio.median,
            yardstick_ratio_spread: ratio.spread,
            hit_rate: kept.iter().map(|lap| lap.hit_rate).sum::<f64>() / kept.len() as f64,
            spread: ns.spread,
            ns_best_quartile: ns.first_quartile,
            ns_min: ns.least,
            ns_max: ns.most,
            cache_entries: entries,
            in_flight,
            laps: kept.len(),
            laps_discarded: discarded,
            packets_per_lap: kept.first().map_or(0, |lap| lap.packets),
            share_of_core: span.share_of_core(),
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
        key(self) == key(other)
    }

    /// Mpps that one core of the reference machine is to reach, in full bursts.
    fn target(&self) -> Option<f64> {
        if self.burst != wire::BATCH || self.dist != "uniform" || !self.is_fast() {
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
    table.set_header([
        "lookup",
        "cache",
        "walk",
        "rules",
        "match",
        "flows",
        "IP",
        "policies",
        "burst",
        "flows drawn",
        "Mpps",
        "target",
        "ns/packet",
        "± IQR",
        "best quartile",
        "touch ns",
        "÷ yardstick",
        "± IQR",
        "hits",
        "core",
        "laps",
    ]);
    for row in figures {
        let target = row.target_mpps.filter(|_| machine.is_reference);
        let target = target.map_or(String::new(), |target| {
            format!("{target:.0} {}", if row.mpps >= target { "reached" } else { "missed" })
        });
        table.add_row([
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
            format!("{:.2}", row.mpps),
            target,
            format!("{:.1}", row.ns_per_packet),
            format!("{:.1} %", row.spread * 100.0),
            format!("{:.1}", row.ns_best_quartile),
            format!("{:.1}", row.touch_ns),
            format!("{:.2}", row.yardstick_ratio),
            format!("{:.1} %", row.yardstick_ratio_spread * 100.0),
            format!("{:.2} %", row.hit_rate * 100.0),
            format!("{:.0} %", row.share_of_core * 100.0),
            format!("{}-{}", row.laps + row.laps_discarded, row.laps_discarded),
        ]);
    }
    table.column_iter_mut().skip(5).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!("{table}\n{}", legend(figures))
}

/// The meaning of the columns.
fn legend(figures: &[Figures]) -> String {
    let in_flight = figures.first().map_or(0, |row| row.in_flight);
    format!(
        "ns/packet: CPU time of the thread, median of laps; {in_flight} frames in flight, one a \
         packet, filled outside the timed span.\n\
         ± IQR: distance of the quartiles over the median. best quartile: a quarter of the laps \
         took less.\n\
         touch ns: a line of each header read, 66 bytes written around the packet, and a \
         descriptor, for the same frames in the same order.\n÷ yardstick: ns/packet over touch ns \
         of the same lap; it compares machines, as ns do not.\n\
         cache: auto, the daemon's default, which searches where that costs no more; always; off. \
         walk: fast, the fast path where it takes\npackets; general, the general walk alone.\n\
         hits: part of the packets that the cache answered. target: of one core of a Zen 5 with \
         AVX-512, shown there alone."
    )
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
        let curves = &mut charts[place].1.curves;
        let point = (x(row) as f64, row.mpps);
        match curves.iter_mut().find(|curve| curve.name == row.lookup) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { name: row.lookup.into(), points: vec![point] }),
        }
    }
    let several = |chart: &Chart| chart.curves.iter().any(|curve| curve.points.len() > 1);
    let mut charts: Vec<Chart> =
        charts.into_iter().map(|(_, chart)| chart).filter(several).collect();
    for chart in &mut charts {
        chart.curves.iter_mut().for_each(|c| c.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        if over == "policies" {
            chart.curves.extend(published_curves());
        }
    }
    charts
}

fn empty_chart(row: &Figures, over: &'static str, fixed: usize) -> Chart {
    let Figures { rules, matching, family, dist, burst, walk, .. } = row;
    let by = if row.is_fast() { String::new() } else { format!("-{walk}") };
    let other = if over == "policies" { "flows" } else { "policies" };
    Chart {
        name: format!("spd-{over}-{rules}-{matching}-ipv{family}-{dist}-{burst}-{fixed}{by}"),
        title: format!(
            "Null ESP, smallest packets, one core in memory: {rules}, match {matching}, \
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
    use super::*;
    use std::time::Duration;

    fn laps() -> Vec<LapFigures> {
        let wall = Duration::from_millis(1);
        let span = Span { cpu: wall, wall };
        let lap = |ns| LapFigures { ns, touch_ns: 5.0, hit_rate: 0.5, span, packets: 4096 };
        [24.0, 20.0, 30.0, 25.0, 26.0].map(lap).to_vec()
    }

    fn row(line: &[&str]) -> Row {
        super::super::tests_row(line)
    }

    #[test]
    fn the_json_of_a_row_has_its_parameters_and_its_figures() {
        let row = row(&["--policies=100", "--lookup=cache", "--family=6"]);
        let figures = Figures::of(&row, &laps(), 4_194_304, 4096);
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
        let figures = [Figures::of(&row, &laps(), 4_194_304, 4096)];
        let mut machine = Machine::look(None);
        machine.is_reference = true;
        assert!(table(&figures, &machine).contains("40 reached"));
        machine.is_reference = false;
        let text = table(&figures, &machine);
        assert!(!text.contains("40 reached") && text.contains("yardstick"), "{text}");
    }

    #[test]
    fn curves_are_drawn_over_policies_and_over_flows() {
        let figures = |line: &[&str], mpps: f64| {
            let row = row(line);
            Figures { mpps, ..Figures::of(&row, &laps(), 0, 4096) }
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
