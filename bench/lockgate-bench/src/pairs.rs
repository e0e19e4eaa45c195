//! The fast path against the general walk: laps of both follow each other directly, on the same
//! case. The bench takes the ratio of each pair: a machine that is slow for a minute is slow for
//! both.

use comfy_table::{CellAlignment, Table, presets};

use super::lap::LapFigures;
use super::measure::Figure;
use super::rows::{Row, had_core};

/// Pairs that must be left to discard the others.
const LEAST_PAIRS: usize = 7;

/// Ratio of the time of the fast path to that of the general walk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Ratio {
    /// Median of the pairs; below 1 the fast path is faster.
    pub(super) median: f64,
    /// Distance of the quartiles as a part of the median.
    pub(super) spread: f64,
    /// Pairs that count.
    pub(super) pairs: usize,
}

impl Ratio {
    /// Writes the ratio into the row by the fast path.
    pub(super) fn write_into(self, row: &mut Row) {
        row.general_ratio = Some(self.median);
        row.general_spread = Some(self.spread);
        row.pairs = Some(self.pairs);
    }
}

/// Computes the ratio from laps of both, taken in pairs. Pairs in which a lap did not have its core
/// do not count, unless too few are left.
pub(super) fn ratio(fast: &[LapFigures], general: &[LapFigures]) -> Ratio {
    let pairs = || fast.iter().zip(general);
    let ratio = |(fast, general): (&LapFigures, &LapFigures)| fast.walk_ns / general.walk_ns;
    let undisturbed =
        pairs().filter(|(fast, general)| had_core(fast.span) && had_core(general.span));
    let mut ratios: Vec<f64> = undisturbed.map(ratio).collect();
    if ratios.len() < LEAST_PAIRS {
        ratios = pairs().map(ratio).collect();
    }
    let figure = Figure::of(&ratios);
    Ratio { median: figure.median, spread: figure.spread, pairs: ratios.len() }
}

/// Time of an overlay's packets over that of plain forwarding.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct OverForward {
    ratio: f64,
    /// The difference.
    ns: f64,
    iqr_ns: f64,
}

impl OverForward {
    pub(super) fn write_into(self, row: &mut Row) {
        row.forward_ratio = Some(self.ratio);
        (row.over_forward_ns, row.over_forward_iqr_ns) = (Some(self.ns), Some(self.iqr_ns));
    }
}

/// Compares laps of an overlay with those of plain forwarding of the same rounds.
pub(super) fn over(overlay: &[LapFigures], forward: &[LapFigures]) -> OverForward {
    let difference = |(one, other): (&LapFigures, &LapFigures)| one.walk_ns - other.walk_ns;
    let had_both =
        |(one, other): &(&LapFigures, &LapFigures)| had_core(one.span) && had_core(other.span);
    let mut differences: Vec<f64> =
        overlay.iter().zip(forward).filter(had_both).map(difference).collect();
    if differences.len() < LEAST_PAIRS {
        differences = overlay.iter().zip(forward).map(difference).collect();
    }
    let Figure { median: ns, spread, .. } = Figure::of(&differences);
    OverForward { ratio: ratio(overlay, forward).median, ns, iqr_ns: (spread * ns).abs() }
}

/// Formats the rows that were measured in pairs; `None`: there are none.
pub(super) fn table(rows: &[Row]) -> Option<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "fast path : general walk",
        "IP",
        "size",
        "cache",
        "in flight",
        "fast ns",
        "ratio",
        "± IQR",
        "pairs",
    ]);
    for row in rows {
        let (Some(ratio), Some(spread)) = (row.general_ratio, row.general_spread) else { continue };
        table.add_row([
            match row.direction {
                "forward" | "overlay" => row.direction.to_owned(),
                way => format!("{} {way}", row.suite),
            },
            row.family.to_string(),
            row.size.to_string(),
            row.cache.to_owned(),
            row.in_flight.to_string(),
            format!("{:.1}", row.ns_per_packet),
            format!("{ratio:.2}"),
            format!("{:.1} %", spread * 100.0),
            row.pairs.unwrap_or(0).to_string(),
        ]);
    }
    if table.is_empty() {
        return None;
    }
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Some(format!(
        "{table}\n\
         ratio: time of a lap by the fast path over that of the lap beside it by the general walk, \
         the same case, the two in random order; median of the pairs."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Span;
    use std::time::Duration;

    fn lap(walk_ns: f64, had_core: f64) -> LapFigures {
        let wall = Duration::from_millis(10);
        LapFigures { walk_ns, span: Span { cpu: wall.mul_f64(had_core), wall }, ..LapFigures::ZERO }
    }

    #[test]
    fn a_machine_that_is_slow_for_a_while_does_not_move_the_ratio() {
        let slowness = [1.0, 1.0, 3.0, 3.0, 3.0, 1.0, 2.0];
        let of = |ns: f64| slowness.map(|slow| lap(ns * slow, 1.0));
        let found = ratio(&of(30.0), &of(60.0));
        assert_eq!(found, Ratio { median: 0.5, spread: 0.0, pairs: 7 });
    }

    #[test]
    fn pairs_without_their_core_count_nowhere_while_seven_are_left() {
        let (mut fast, general) = (vec![lap(30.0, 1.0); 8], vec![lap(60.0, 1.0); 8]);
        fast[3] = lap(900.0, 0.5);
        assert_eq!(ratio(&fast, &general).pairs, 7);
        assert_eq!(ratio(&fast[..7], &general[..7]).pairs, 7, "six were left");
    }

    #[test]
    fn an_overlay_takes_the_median_of_the_differences_more() {
        let laps = |ns: [f64; 7]| ns.map(|ns| lap(ns, 1.0));
        let overlay = laps([30.0, 31.0, 32.0, 30.0, 31.0, 32.0, 90.0]);
        let found = over(&overlay, &laps([10.0; 7]));
        assert_eq!((found.ns, found.ratio, found.iqr_ns), (21.0, 3.1, 1.5));
    }

    #[test]
    fn only_rows_that_have_a_twin_are_shown() {
        let row = Row { direction: "out", suite: "null", cache: "auto", ..Row::default() };
        assert_eq!(table(std::slice::from_ref(&row)), None);
        let mut paired = row;
        Ratio { median: 0.515, spread: 0.02, pairs: 9 }.write_into(&mut paired);
        let text = table(&[paired]).unwrap();
        assert!(text.contains("null out") && text.contains("0.5") && text.contains("2.0 %"));
    }
}
