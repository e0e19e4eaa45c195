//! Presents the figures of the laps: a table for each kind of work, goals, JSON, curves.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::super::measure::{Figure, Span};
use super::super::plot::{Chart, Scale, add_point};
use super::super::rows::{undisturbed, version};
use super::Row;
use super::gateway::HalfOpen;
use super::laps::{LapFigures, Order, Sweep, Work};

/// New connections a second at least, through the walk, at half load.
const NEW_A_SECOND: f64 = 2e6;
/// The part of them at least at a load of nine tenths.
const KEPT_AT_90: f64 = 0.8;
/// The part of the new ones at least that are made then.
const MADE_AT_90: f64 = 0.99;
/// Maximum time that a refused or evicting SYN adds to the established packets of its batch.
const SYN_NS: f64 = 350.0;
/// Minimum part of their rate that established connections keep beside some percent of SYNs.
const KEPT_BESIDE_SYNS: [(u32, f64); 2] = [(1, 0.9), (10, 0.48)];

/// One row: a case with its figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    /// "new", "table", "established", "sweep", "refused".
    work: &'static str,
    family: u8,
    /// Places of the table.
    max: u32,
    /// Established connections, the same before and after each lap.
    live: u32,
    /// Part of the places that established and half-open connections take, percent.
    load_percent: f64,
    /// "random" or "turn".
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<&'static str>,
    /// "live", or "over": all are removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    swept: Option<&'static str>,
    /// The bound that refuses: "max" or "half_open_per_port".
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    syn_percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections_per_s: Option<f64>,
    /// Medians of the laps.
    #[serde(flatten)]
    medians: BTreeMap<&'static str, f64>,
    /// Distance of the quartiles of the first figure as a part of its median.
    spread: f64,
    laps: usize,
    /// Laps that are in no figure: the thread did not have its core.
    laps_discarded: usize,
    share_of_core: f64,
}

impl Figures {
    /// Computes the figures of a row from its laps.
    pub(super) fn of(row: &Row, laps: &[LapFigures]) -> Figures {
        let (kept, discarded) = undisturbed(laps, |lap| lap.span);
        let figure =
            |at: usize| Figure::of(&kept.iter().map(|lap| lap.values[at]).collect::<Vec<f64>>());
        let names = row.work.figures();
        let medians: BTreeMap<_, _> =
            names.iter().enumerate().map(|(at, name)| (*name, figure(at).median)).collect();
        let mut span = Span::default();
        kept.iter().for_each(|lap| span.add(lap.span));
        let stock = row.stock;
        let taken = stock.live * stock.width() + stock.half_open_lines();
        Figures {
            work: work_name(row.work),
            family: version(stock.family),
            max: stock.max,
            live: stock.live,
            load_percent: 100.0 * f64::from(taken) / f64::from(stock.max),
            order: match row.work {
                Work::Established(Order::Random) => Some("random"),
                Work::Established(Order::Turn) => Some("turn"),
                _ => None,
            },
            swept: match row.work {
                Work::Sweep(Sweep::Live) => Some("live"),
                Work::Sweep(Sweep::Over) => Some("over"),
                _ => None,
            },
            bound: match (row.work, stock.half_open) {
                (Work::Refused { .. }, HalfOpen::None) => Some("max"),
                (Work::Refused { .. }, HalfOpen::AtBound) => Some("half_open_per_port"),
                _ => None,
            },
            syn_percent: match row.work {
                Work::Refused { syn_percent } => Some(syn_percent),
                _ => None,
            },
            connections_per_s: medians.get("ns_per_connection").map(|ns| 1e9 / ns),
            medians,
            spread: figure(0).spread,
            laps: kept.len(),
            laps_discarded: discarded,
            share_of_core: span.share_of_core(),
        }
    }

    fn median(&self, name: &str) -> f64 {
        self.medians.get(name).copied().unwrap_or(f64::NAN)
    }

    fn load(&self) -> i64 {
        self.load_percent.round() as i64
    }

    /// Cells that stand last in every table.
    fn last_cells(&self) -> [String; 3] {
        [
            format!("{:.1} %", self.spread * 100.0),
            format!("{:.0} %", self.share_of_core * 100.0),
            format!("{}-{}", self.laps + self.laps_discarded, self.laps_discarded),
        ]
    }
}

const fn work_name(work: Work) -> &'static str {
    match work {
        Work::New => "new",
        Work::Table => "table",
        Work::Established(_) => "established",
        Work::Sweep(_) => "sweep",
        Work::Refused { .. } => "refused",
    }
}

/// A table of one kind of work.
struct Sheet {
    work: &'static str,
    title: &'static str,
    heads: &'static [&'static str],
    cells: fn(&Figures) -> Vec<String>,
}

const SHEETS: [Sheet; 5] = [
    Sheet {
        work: "new",
        title: "New connections through the walk (SYN, SYN+ACK, ACK; of new ones alone)",
        heads: &["load", "IP", "live", "connections/s", "ns a connection", "lost"],
        cells: |row| {
            let rate = format!("{:.2} M", row.connections_per_s.unwrap_or_default() / 1e6);
            let ns = ns(row, "ns_per_connection");
            vec![load(row), ip(row), live(row), rate, ns, lost(row)]
        },
    },
    Sheet {
        work: "table",
        title: "The table alone, ns",
        heads: &[
            "load",
            "IP",
            "live",
            "connections/s",
            "new",
            "find",
            "find, by 64",
            "at its place",
            "observe",
            "not there",
            "lost",
        ],
        cells: |row| {
            let rate = format!("{:.2} M", row.connections_per_s.unwrap_or_default() / 1e6);
            let names = [
                "ns_per_connection",
                "find_ns",
                "find_in_batch_ns",
                "at_place_ns",
                "observe_ns",
                "not_there_ns",
            ];
            let first = [load(row), ip(row), live(row), rate];
            first.into_iter().chain(names.map(|name| ns(row, name))).chain([lost(row)]).collect()
        },
    },
    Sheet {
        work: "established",
        title: "Packets of established connections through the walk",
        heads: &["load", "IP", "live", "order", "Mpps", "ns a packet", "cache hits"],
        cells: |row| {
            let mpps = format!("{:.2}", 1e3 / row.median("ns_per_packet"));
            let hits = format!("{:.2} %", 100.0 * row.median("hit_rate"));
            let order = row.order.unwrap_or_default().to_owned();
            vec![load(row), ip(row), live(row), order, mpps, ns(row, "ns_per_packet"), hits]
        },
    },
    Sheet {
        work: "sweep",
        title: "The sweep of one worker, a step each 10 ms",
        heads: &["places", "IP", "live", "found", "ns a line", "longest step, µs", "% of a core"],
        cells: |row| {
            let swept = if row.swept == Some("over") { "over, removed" } else { "live" };
            let longest = format!("{:.1}", row.median("longest_step_us"));
            let share = format!("{:.3}", row.median("core_percent"));
            let places = row.max.to_string();
            let line = format!("{:.2}", row.median("ns_per_line"));
            vec![places, ip(row), live(row), swept.to_owned(), line, longest, share]
        },
    },
    Sheet {
        work: "refused",
        title: "Packets of established connections while new ones are refused",
        heads: &[
            "load",
            "IP",
            "live",
            "bound",
            "SYNs",
            "ns alone",
            "ns beside",
            "rate kept",
            "ns a SYN",
        ],
        cells: |row| {
            let kept = format!("{:.1} %", 100.0 * row.median("rate_kept"));
            let first = [load(row), ip(row), live(row), row.bound.unwrap_or_default().to_owned()];
            let syns = format!("{} %", row.syn_percent.unwrap_or_default());
            let last = [syns, ns(row, "alone_ns"), ns(row, "beside_ns"), kept];
            first.into_iter().chain(last).chain([ns(row, "refused_syn_ns")]).collect()
        },
    },
];

fn load(row: &Figures) -> String {
    format!("{} %", row.load())
}

fn ip(row: &Figures) -> String {
    row.family.to_string()
}

fn live(row: &Figures) -> String {
    row.live.to_string()
}

/// New connections that were refused, or gave way to another, because their buckets were full.
fn lost(row: &Figures) -> String {
    format!("{:.2} %", 100.0 * row.median("lost"))
}

fn ns(row: &Figures, name: &str) -> String {
    format!("{:.1}", row.median(name))
}

/// The meaning of the columns.
const LEGEND: &str = "\
    load: part of the places that are taken, before and after each lap. live: established \
    connections. lost: part of the new ones\n\
    for which both buckets were full; the rates are of the others.\n\
    ns: CPU time of the thread, median of laps. ± IQR: distance of the quartiles over the median, \
    of the first figure\n\
    (of new connections the time; of refused ones the rate kept). core: part of the time in which \
    the thread had its core.\n\
    The clock goes on by a second each lap: the first packet of a connection in a lap writes the \
    time.\n\
    beside: time of both, over the established packets alone. rate kept: alone over beside. \
    ns a SYN: what a SYN adds.\n\
    At half_open_per_port each SYN replaces the oldest half-open connection.";

/// Formats the rows, a table for each kind of work, then the goals.
pub(super) fn tables(figures: &[Figures]) -> Vec<String> {
    let mut tables = Vec::new();
    for sheet in SHEETS {
        let rows = || figures.iter().filter(|row| row.work == sheet.work);
        if rows().next().is_none() {
            continue;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(sheet.heads.iter().copied().chain(["± IQR", "core", "laps"]));
        for row in rows() {
            table.add_row((sheet.cells)(row).into_iter().chain(row.last_cells()));
        }
        table.column_iter_mut().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
        tables.push(format!("{}\n{table}", sheet.title));
    }
    tables.push(LEGEND.to_owned());
    tables.extend(goals(figures));
    tables
}

/// Limit of a figure.
#[derive(Clone, Copy)]
enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

/// A figure and its limit.
struct Goal {
    figure: String,
    family: u8,
    found: f64,
    limit: Limit,
}

impl Goal {
    fn is_reached(&self) -> bool {
        match self.limit {
            Limit::AtLeast(least) => self.found >= least,
            Limit::AtMost(most) => self.found <= most,
        }
    }

    fn cells(&self) -> [String; 5] {
        let (word, limit) = match self.limit {
            Limit::AtLeast(least) => ("at least", least),
            Limit::AtMost(most) => ("at most", most),
        };
        let [found, limit] = [self.found, limit].map(|value| format!("{value:.2}"));
        let result = if self.is_reached() { "reached" } else { "missed" };
        let figure = format!("{}, {word}", self.figure);
        [figure, self.family.to_string(), found, limit, result.to_owned()]
    }
}

/// Goals of new connections of a family.
fn goals_of_new(figures: &[Figures], family: u8) -> Vec<Goal> {
    let goal = |figure: &str, found, least| {
        let figure = figure.to_owned();
        Goal { figure, family, found, limit: Limit::AtLeast(least) }
    };
    let row = |percent: i64| {
        let is_new = |row: &&Figures| (row.work, row.family) == ("new", family);
        figures.iter().filter(is_new).find(|row| row.load() == percent)
    };
    let new = |percent| row(percent).and_then(|row| row.connections_per_s);
    let half = new(50);
    let rate = half.map(|rate| {
        goal("million new connections a second at 50 %", rate / 1e6, NEW_A_SECOND / 1e6)
    });
    let kept =
        new(90).zip(half).map(|(full, half)| goal("of them at 90 %", full / half, KEPT_AT_90));
    let made = row(90).map(|row| {
        let made = 1.0 - row.median("lost");
        goal("part of the new ones that are made at 90 %", made, MADE_AT_90)
    });
    [rate, kept, made].into_iter().flatten().collect()
}

/// Goals of established connections beside SYNs at a bound.
fn goals_beside_syns(row: &Figures) -> Vec<Goal> {
    let (bound, percent) = (row.bound.unwrap_or_default(), row.syn_percent.unwrap_or(0));
    let goal = |figure: &str, found, limit| {
        let figure = format!("{figure}, {bound}, {percent} % SYNs");
        Goal { figure, family: row.family, found, limit }
    };
    let least = KEPT_BESIDE_SYNS.iter().find(|(of, _)| *of == percent);
    let kept =
        least.map(|(_, least)| goal("rate kept", row.median("rate_kept"), Limit::AtLeast(*least)));
    let added = goal("ns a SYN", row.median("refused_syn_ns"), Limit::AtMost(SYN_NS));
    kept.into_iter().chain([added]).collect()
}

/// The rows against their goals. `None`: no row has one.
fn goals(figures: &[Figures]) -> Option<String> {
    let mut goals: Vec<Goal> = Vec::new();
    for family in [4, 6] {
        goals.extend(goals_of_new(figures, family));
        let refused = figures.iter().filter(|row| (row.work, row.family) == ("refused", family));
        goals.extend(refused.flat_map(goals_beside_syns));
    }
    if goals.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["goal", "IP", "found", "limit", ""]);
    goals.iter().for_each(|goal| _ = table.add_row(goal.cells()));
    let numbers = table.column_iter_mut().skip(2).take(2);
    numbers.for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Some(table.to_string())
}

/// New connections a second over the load of the table.
pub(super) fn charts(figures: &[Figures]) -> Vec<Chart> {
    let mut curves = Vec::new();
    for row in figures {
        let Some(rate) = row.connections_per_s else { continue };
        let through = if row.work == "new" { "through the walk" } else { "the table alone" };
        let name = format!("{through}, IPv{}", row.family);
        add_point(&mut curves, &name, (row.load_percent, rate / 1e6));
    }
    vec![Chart {
        name: "conn".into(),
        title: "New connections, one core in memory".into(),
        x: "percent of the table",
        y: "million a second",
        scale: Scale::Linear,
        curves,
    }]
}

#[cfg(test)]
mod tests {
    use super::super::gateway::Stock;
    use super::*;
    use wire::Family;

    fn figures() -> Vec<Figures> {
        let stock = |live, half_open| Stock { family: Family::V4, max: 1000, live, half_open };
        let (none, refused) = (HalfOpen::None, Work::Refused { syn_percent: 10 });
        let rows = [
            (stock(500, none), Work::New, [250.0, 0.0, 0.0, 0.0]),
            (stock(900, none), Work::New, [400.0, 0.02, 0.0, 0.0]),
            (stock(10, none), Work::Established(Order::Turn), [50.0, 1.0, 0.0, 0.0]),
            (stock(10, none), Work::Sweep(Sweep::Over), [5.0, 7.5, 0.01, 0.0]),
            (stock(500, HalfOpen::AtBound), refused, [0.95, 57.0, 60.0, 27.0]),
            (stock(1000, none), Work::Refused { syn_percent: 1 }, [0.89, 37.0, 41.6, 350.1]),
        ];
        let of = |(stock, work, values): (Stock, Work, [f64; 4])| {
            let values = std::array::from_fn(|at| values.get(at).copied().unwrap_or(0.0));
            let lap = LapFigures { values, span: Span::default() };
            Figures::of(&Row { stock, work }, &[lap])
        };
        rows.into_iter().map(of).collect()
    }

    #[test]
    fn the_json_has_what_a_row_is_about_and_no_more() {
        let figures = figures();
        let json: Vec<_> = figures.iter().map(|row| serde_json::to_value(row).unwrap()).collect();
        assert_eq!(json[0]["connections_per_s"], 4e6);
        assert_eq!(json[1]["lost"], 0.02);
        assert_eq!((&json[1]["load_percent"], &json[1]["live"]), (&90.0.into(), &900.into()));
        assert_eq!((&json[2]["order"], &json[2]["ns_per_packet"]), (&"turn".into(), &50.0.into()));
        assert_eq!((&json[3]["swept"], &json[3]["longest_step_us"]), (&"over".into(), &7.5.into()));
        assert_eq!(json[4]["bound"], "half_open_per_port");
        assert_eq!((&json[4]["syn_percent"], &json[4]["rate_kept"]), (&10.into(), &0.95.into()));
        assert_eq!(json[4]["load_percent"], 62.5, "half-open ones take places");
        assert!(json[0].get("bound").is_none() && json[2].get("connections_per_s").is_none());
    }

    #[test]
    fn the_goals_say_what_was_found_and_whether_that_is_enough() {
        let text = goals(&figures()).unwrap();
        for (goal, found, word) in [
            ("at 50 %, at least", "4.00", "reached"),
            ("of them at 90 %", "0.62", "missed"),
            ("made at 90 %", "0.98", "missed"),
            ("rate kept, half_open_per_port, 10 %", "0.95", "reached"),
            ("a SYN, half_open_per_port, 10 % SYNs, at most", "27.00", "reached"),
            ("rate kept, max, 1 %", "0.89", "missed"),
            ("a SYN, max, 1 % SYNs, at most", "350.10", "missed"),
        ] {
            let line = text.lines().find(|line| line.contains(goal)).unwrap_or_default();
            assert!(line.contains(found) && line.contains(word), "{goal} in\n{text}");
        }
        assert_eq!(goals(&figures()[2..4]), None);
    }

    #[test]
    fn each_kind_of_work_has_a_table_and_curves_are_drawn_over_the_load() {
        let tables = tables(&figures());
        for (sheet, words) in [(0, "4.00 M"), (1, "20.00"), (2, "over, removed"), (3, "95.0 %")] {
            assert!(tables[sheet].contains(words), "{words}: {}", tables[sheet]);
        }
        assert_eq!(tables.len(), 4 + 2, "none of the table alone; the legend; the goals");
        let charts = charts(&figures());
        assert_eq!(charts[0].curves[0].points, [(50.0, 4.0), (90.0, 2.5)]);
    }
}
