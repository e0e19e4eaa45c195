//! Presents the figures of the laps: table, goals, JSON, curves.

use std::collections::HashSet;
use std::sync::Arc;

use comfy_table::{CellAlignment, Table, presets};
use scene::Shape;
use serde::Serialize;

use super::super::counted;
use super::super::plot::{Chart, Scale, add_point};
use super::super::rows::version;
use super::super::station::{KnownFlows, LEGEND, Measured};
use super::file::FileRules;
use super::{Row, Tags};

/// Nanoseconds over a packet without groups at most, where the cache answers.
const CACHED_NS: f64 = 8.0;
/// Instructions over a packet without groups at most, where the cache answers.
const CACHED_INSTRUCTIONS: f64 = 90.0;
/// Times that the slowest number of rules takes longer than the quickest at most, where the cache
/// answers.
const FLAT: f64 = 1.10;
/// Nanoseconds over a packet without groups at most, where [`SEARCHED_RULES`] mixed rules are
/// searched.
const SEARCHED_NS: f64 = 45.0;
const SEARCHED_RULES: usize = 10_000;
/// Times that a packet whose tag decides takes as long as one without groups at most.
const TAGGED: f64 = 1.05;
/// Times that packets take as long as without an audit at most, of which one in so many, or fewer,
/// is judged again.
const AUDITED: f64 = 1.02;
const AUDITED_OF: u32 = 1000;

/// One row: a case with its figures.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    /// Rules of the groups; 0: no groups.
    pub(super) rules: usize,
    /// "uniform", "mixed", the name of a file; "none": no groups.
    pub(super) shape: String,
    /// The file whose flows the packets are of, and whose rules the groups have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
    pub(super) kind: &'static str,
    /// The flow cache: "on" or "off".
    pub(super) cache: &'static str,
    pub(super) family: u8,
    pub(super) walk: &'static str,
    /// Tags of the packets: "none", "card".
    pub(super) tags: &'static str,
    /// True of rows with tags: the card that gave them is software.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) emulated: bool,
    /// The audit judges 1 of this many packets again; 0: no audit.
    pub(super) audit: u32,
    /// Time as a multiple of that of the row without an audit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_unaudited: Option<f64>,
    /// Time over that of the row without groups.
    pub(super) ns_over_none: f64,
    /// Time as a multiple of that of the row without groups.
    pub(super) ratio_to_none: f64,
    /// Instructions of a packet, of 64 bytes, by the committed table.
    pub(super) instructions: Option<f64>,
    #[serde(flatten)]
    pub(super) measured: Measured,
}

impl Figures {
    /// The figures of all rows, each beside the one without groups.
    pub(super) fn all(rows: &[Row], files: &[FileRules], measured: &[Measured]) -> Vec<Figures> {
        let counted = counted::Table::committed();
        let figures = |(row, of): (&Row, &Measured)| {
            let without = rows.iter().position(|other| other.rules == 0 && other.is_like(row));
            let none = without.map_or(f64::NAN, |place| measured[place].ns_per_packet);
            let (family, walk) = (version(row.family), row.walk);
            let file = row.file.map(|number| files[number].name.clone());
            let shape = match (row.rules, &file) {
                (0, _) => "none".to_owned(),
                (_, Some(file)) => file.clone(),
                (_, None) => row.shape.name().to_owned(),
            };
            let is_counted = file.is_none() && (row.rules == 0 || row.shape == Shape::Uniform);
            let is_counted = is_counted && row.tags == Tags::None && row.audit == 0;
            let instructions = counted.forward(family, walk, row.caching, (row.rules, row.kind));
            let unaudited = row.unaudited().and_then(|row| rows.iter().position(|of| *of == row));
            let over = |place: usize| of.ns_per_packet / measured[place].ns_per_packet;
            Figures {
                rules: row.rules,
                shape,
                file,
                kind: row.kind.name(),
                cache: row.cache(),
                family,
                walk: walk.name(),
                tags: row.tags.name(),
                emulated: row.tags == Tags::Card,
                audit: row.audit,
                ratio_to_unaudited: unaudited.map(over),
                ns_over_none: of.ns_per_packet - none,
                ratio_to_none: of.ns_per_packet / none,
                instructions: instructions.filter(|_| is_counted),
                measured: of.clone(),
            }
        };
        rows.iter().zip(measured).map(figures).collect()
    }

    /// Returns whether the cache answers, and nothing is judged again.
    fn is_cached(&self) -> bool {
        self.cache == "on" && self.is_plain()
    }

    /// Returns whether packets have no tags, and none is judged again.
    fn is_plain(&self) -> bool {
        !self.emulated && self.audit == 0
    }

    /// The shape, and whose flows pass without groups.
    fn shape_text(&self) -> String {
        match &self.file {
            Some(file) if self.rules == 0 => format!("none, {file}"),
            _ => self.shape.clone(),
        }
    }

    /// Number of rules in a table.
    fn rules_text(&self) -> String {
        if self.rules == 0 { "none".into() } else { self.rules.to_string() }
    }
}

/// Formats the rows as an aligned table with an explanation of the columns.
pub(super) fn table(figures: &[Figures]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let heads = ["rules", "shape", "kind", "cache", "IP", "walk", "tags", "audit"];
    let heads = heads.into_iter().chain(["connections", "Mpps"]);
    let over_none = ["ns over none", "÷ none", "÷ no audit", "instructions", "searched", "tagged"];
    table.set_header(heads.chain(over_none).chain(Measured::HEADS));
    for row in figures {
        let is_none = row.rules == 0;
        let over = |text: String| if is_none { String::new() } else { text };
        let cells = [
            row.rules_text(),
            row.shape_text(),
            row.kind.to_owned(),
            row.cache.to_owned(),
            row.family.to_string(),
            row.walk.to_owned(),
            if row.emulated { "emulated card" } else { row.tags }.to_owned(),
            if row.audit == 0 { String::new() } else { format!("1/{}", row.audit) },
            row.measured.connections.to_string(),
            format!("{:.2}", row.measured.mpps),
            over(format!("{:.1}", row.ns_over_none)),
            over(format!("{:.2}", row.ratio_to_none)),
            row.ratio_to_unaudited.map_or(String::new(), |ratio| format!("{ratio:.3}")),
            row.instructions.map_or(String::new(), |count| format!("{count:.0}")),
            format!("{:.2} %", row.measured.search_rate * 100.0),
            format!("{:.2} %", row.measured.tag_rate * 100.0),
        ];
        table.add_row(cells.into_iter().chain(row.measured.cells()));
    }
    table.column_iter_mut().skip(7).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!(
        "{table}\n{LEGEND}\n\
         rules: of the groups; the last decides, of a file the one that is known.\n\
         none: no groups, in the same rounds; ns over none, ÷ none: against it, medians.\n\
         connections: live ones, one a flow.\n\
         instructions: of a packet of 64 bytes, of the committed table; empty: not counted.\n\
         searched: part of the packets that the classifier answered.\n\
         tags: an emulated card that has all rules tags each packet, outside the timed span; it is \
         the worker that is measured.\n\
         tagged: part of the packets that their tag decided. audit: of these, or of those that the \
         cache answered, so many are judged again."
    )
}

/// The rows against their goals: a line for each IP version and walk.
pub(super) fn goals(figures: &[Figures]) -> Option<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["goal", "kind", "IP", "walk", "found", "limit", ""]);
    let kind_of = |row: &Figures| (row.family, row.walk, row.kind);
    let mut kinds: Vec<_> = figures.iter().filter(|row| row.rules > 0).map(kind_of).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for (family, walk, kind) in kinds {
        let alike = figures.iter().filter(|row| (row.family, row.walk) == (family, walk));
        let alike = alike.filter(|row| row.rules == 0 || row.kind == kind);
        let (none, grouped): (Vec<_>, Vec<_>) = alike.partition(|row| row.rules == 0);
        let cached = || grouped.iter().filter(|row| row.is_cached());
        let ns = || cached().map(|row| row.measured.ns_per_packet);
        let (least, most) = (ns().fold(f64::MAX, f64::min), ns().fold(0.0, f64::max));
        let uncounted = none.iter().find(|row| row.is_cached()).and_then(|row| row.instructions);
        let counted = cached().find_map(|row| row.instructions);
        let searched = grouped.iter().find(|row| {
            row.cache == "off"
                && row.is_plain()
                && (row.rules, &*row.shape) == (SEARCHED_RULES, Shape::Mixed.name())
        });
        let flat = (most > 0.0).then_some(most / least);
        let over = cached().map(|row| row.ns_over_none).reduce(f64::max);
        let instructions = counted.zip(uncounted).map(|(with, without)| with - without);
        let tagged = grouped.iter().filter(|row| row.emulated && row.audit == 0);
        let tagged = tagged.map(|row| row.ratio_to_none).reduce(f64::max);
        let audited =
            grouped.iter().filter(|row| row.audit >= AUDITED_OF && row.measured.audited > 0);
        let audited = audited.filter_map(|row| row.ratio_to_unaudited).reduce(f64::max);
        for (goal, found, limit) in [
            ("tagged by an emulated card, ÷ none", tagged, TAGGED),
            ("audit of one in 1000 or fewer, ÷ no audit", audited, AUDITED),
            ("cached, ns over none at most", over, CACHED_NS),
            ("cached, instructions over none", instructions, CACHED_INSTRUCTIONS),
            ("cached, max/min over rules and shapes", flat, FLAT),
            (
                "10000 mixed, no cache, ns over none",
                searched.map(|row| row.ns_over_none),
                SEARCHED_NS,
            ),
        ] {
            let Some(found) = found else { continue };
            let word = if found <= limit { "reached" } else { "missed" };
            let (family, found) = (family.to_string(), format!("{found:.3}"));
            table.add_row([goal, kind, &family, walk, &found, &limit.to_string(), word]);
        }
    }
    let numbers = table.column_iter_mut().skip(4).take(2);
    numbers.for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Some(table.to_string())
}

/// The files, with what is left out of each and the flows that were drawn.
pub(super) fn files(
    files: &[FileRules],
    flows: impl Fn(usize) -> Option<Arc<KnownFlows>>,
) -> Option<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["file", "rules", "covered, left out", "flows", "of rules"]);
    for (number, file) in files.iter().enumerate() {
        let drawn = flows(number)?;
        let hit: HashSet<_> = drawn.deciders.iter().collect();
        let numbers = [file.selectors.len(), file.left_out, drawn.packets.len(), hit.len()];
        let cells = numbers.map(|it| it.to_string());
        table.add_row([file.name.clone()].into_iter().chain(cells));
    }
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Some(format!(
        "{table}\n\
         covered: an earlier rule matches all that they match, duplicates among them. of rules: \
         that decide about at least\none flow, and count each of its packets; the others match \
         only what earlier ones match too, or no host's address."
    ))
}

/// Time over the number of rules: a picture for each IP version and walk.
pub(super) fn charts(figures: &[Figures]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    let counts = || figures.iter().map(|row| row.rules).filter(|rules| *rules > 0);
    let ends = [counts().min(), counts().max()];
    for row in figures.iter().filter(|row| row.is_plain()) {
        let Figures { family, walk, shape, kind, cache, .. } = row;
        let name = format!("acl-ipv{family}-{walk}");
        let place = charts.iter().position(|chart| chart.name == name).unwrap_or_else(|| {
            let title = format!(
                "Security groups, smallest packets, one core in memory: IPv{family}, {walk} walk"
            );
            let (x, y, scale) = ("rules", "ns a packet", Scale::Linear);
            charts.push(Chart { name, title, x, y, scale, curves: Vec::new() });
            charts.len() - 1
        });
        let curves = &mut charts[place].curves;
        let (curve, places) = match row.rules {
            // A line from end to end.
            0 => (format!("no groups, cache {cache}"), ends),
            rules => (format!("{kind}, {shape}, cache {cache}"), [Some(rules), None]),
        };
        for x in places.into_iter().flatten() {
            add_point(curves, &curve, (x as f64, row.measured.ns_per_packet));
        }
    }
    charts
}

#[cfg(test)]
mod tests {
    use super::super::super::subject::{Caching, WalkKind};
    use super::*;
    use scene::Treatment;
    use wire::Family;

    fn figures() -> Vec<Figures> {
        let (family, walk) = (Family::V4, WalkKind::Fast);
        let of = |(caching, rules, shape, ns): (Caching, usize, Shape, f64)| {
            let measured = Measured { ns_per_packet: ns, mpps: 1e3 / ns, ..Measured::default() };
            let kind = Treatment::Stateless;
            let (file, tags, audit) = (None, Tags::None, 0);
            (Row { rules, shape, file, kind, caching, family, walk, tags, audit }, measured)
        };
        let (on, off) = (Caching::Always, Caching::Off);
        let rows = [
            (on, 0, Shape::Uniform, 20.0),
            (on, 1, Shape::Uniform, 26.0),
            (on, 100, Shape::Uniform, 27.0),
            (on, 10_000, Shape::Mixed, 29.0),
            (off, 0, Shape::Uniform, 10.0),
            (off, 10_000, Shape::Mixed, 50.0),
        ];
        let (rows, measured): (Vec<Row>, Vec<Measured>) = rows.into_iter().map(of).unzip();
        Figures::all(&rows, &[], &measured)
    }

    #[test]
    fn every_row_is_compared_with_its_own_without_groups() {
        let figures = figures();
        let over: Vec<f64> = figures.iter().map(|row| row.ns_over_none).collect();
        assert_eq!(over, [0.0, 6.0, 7.0, 9.0, 0.0, 40.0]);
        assert_eq!(figures[5].ratio_to_none, 5.0);
        let json = serde_json::to_value(&figures[2]).unwrap();
        for (key, value) in [
            ("rules", "100"),
            ("shape", "\"uniform\""),
            ("kind", "\"stateless\""),
            ("cache", "\"on\""),
            ("family", "4"),
            ("walk", "\"fast\""),
            ("ns_per_packet", "27.0"),
            ("ns_over_none", "7.0"),
            ("ratio_to_none", "1.35"),
            ("hit_rate", "0.0"),
            ("spread", "0.0"),
        ] {
            assert_eq!(json[key].to_string(), value, "{key}");
        }
        assert!(json["instructions"].is_number() && json["mpps"].is_number());
        assert_eq!(figures[1].instructions, None, "only 100 rules were counted");
    }

    #[test]
    fn the_goals_say_what_was_found_and_whether_that_is_enough() {
        let text = goals(&figures()).unwrap();
        for (goal, found, word) in [
            ("ns over none at most", "9.000", "missed"),
            ("max/min", "1.115", "missed"),
            ("10000 mixed", "40.000", "reached"),
        ] {
            let line = text.lines().find(|line| line.contains(goal)).unwrap_or_default();
            assert!(line.contains(found) && line.contains(word), "{goal} in\n{text}");
        }
    }

    #[test]
    fn curves_are_drawn_over_rules_and_none_is_a_line() {
        let charts = charts(&figures());
        assert_eq!(charts.len(), 1);
        let points = |name: &str| {
            let curve = charts[0].curves.iter().find(|curve| curve.name == name);
            curve.map(|curve| curve.points.clone()).unwrap_or_default()
        };
        assert_eq!(points("no groups, cache on"), [(1.0, 20.0), (10_000.0, 20.0)]);
        assert_eq!(points("stateless, uniform, cache on"), [(1.0, 26.0), (100.0, 27.0)]);
        assert_eq!(points("stateless, mixed, cache off"), [(10_000.0, 50.0)]);
    }
}
