//! Presents the figures of the laps: tables, JSON.

use comfy_table::{CellAlignment, Table, presets};
use scene::{Case, Direction};
use serde::Serialize;

use super::super::lap::LapFigures;
use super::super::machine::Machine;
use super::super::measure::Figure;
use super::super::rows::{heading, undisturbed, version};
use super::published::{self, Ours};
use super::{CONTROL, Laps, Mode, Size};

/// One row: a mode with its figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) mode: Mode,
    /// "out": packets that leave for the peer; "in": those that come from it.
    pub(super) way: &'static str,
    /// Cipher suite of the software; "none" of the other modes.
    pub(super) suite: &'static str,
    pub(super) family: u8,
    /// Bytes of the inner packet, or "imix".
    pub(super) size: Size,
    pub(super) workers: usize,
    /// Times that the card's own engine seals each packet, on another thread; 0: not at all.
    pub(super) engine: u32,
    /// Part of the packets that the engine came to while the laps ran; none where it is off.
    pub(super) engine_share: Option<f64>,
    /// CPU time of a worker's packet, median of the laps.
    pub(super) host_ns_per_packet: f64,
    /// Distance of its quartiles as a part of it.
    pub(super) spread: f64,
    /// Time over that of the baseline in the same round, median of the laps.
    pub(super) baseline_ratio: f64,
    /// Distance of its quartiles as a part of it.
    pub(super) baseline_spread: f64,
    /// Rate of the host, all workers together. None where the card shares the workers' cores.
    pub(super) mpps: Option<f64>,
    /// Rate of inner packets, likewise.
    pub(super) gbps: Option<f64>,
    pub(super) laps: usize,
    /// True where a card works: it is software.
    pub(super) emulated: bool,
}

/// All laps.
pub(super) struct Measured<'m> {
    all: &'m [Laps],
    /// Of each: its figures, and the packets that the engine sealed meanwhile.
    figures: &'m [Vec<(LapFigures, u64)>],
    /// Cores that workers can have.
    cores: usize,
    /// Packets of a worker in a lap.
    packets: usize,
}

/// One round of a row.
#[derive(Clone, Copy)]
struct Round {
    /// Of the parts of its size together, ns a packet.
    host_ns: f64,
    /// Of the baseline, likewise.
    baseline_ns: f64,
    /// Packets that the engine sealed.
    sealed: u64,
    /// The part of it that had its core least.
    figures: LapFigures,
}

impl<'m> Measured<'m> {
    /// `packets`: of one worker in a lap.
    pub(super) fn new(
        all: &'m [Laps],
        figures: &'m [Vec<(LapFigures, u64)>],
        cores: usize,
        packets: usize,
    ) -> Measured<'m> {
        Measured { all, figures, cores, packets }
    }

    /// The rows of these sizes. Rows of control have the smallest.
    pub(super) fn rows(&self, sizes: &[Size]) -> Vec<Row> {
        let mut rows = Vec::new();
        for (place, laps) in self.all.iter().enumerate() {
            // Each mode, way, suite, family and number of workers has one row of its first size.
            let is_first = !self.all[..place].iter().any(|other| other.is_like(laps));
            if is_first {
                rows.extend(sizes.iter().filter_map(|size| self.row(laps, *size)));
            }
        }
        rows
    }

    /// The row of a size like these laps. `None`: it has none, as a row of control of one size.
    fn row(&self, like: &Laps, size: Size) -> Option<Row> {
        let Case { direction, suite, family, workers, .. } = like.subject.case;
        let rounds = self.rounds(like, size)?;
        let (kept, _) = undisturbed(&rounds, |round| round.figures.span);
        let figure = |of: fn(&Round) -> f64| Figure::of(&kept.iter().map(of).collect::<Vec<_>>());
        let host = figure(|round| round.host_ns);
        let ratio = figure(|round| round.host_ns / round.baseline_ns);
        let parts = size.parts();
        let twelve = f64::from(parts.iter().map(|(_, weight)| weight).sum::<u32>());
        let bytes: f64 = parts.iter().map(|(bytes, of)| *bytes as f64 * f64::from(*of)).sum();
        let is_shared = like.mode.has_card() && workers >= self.cores;
        let mpps = (!is_shared).then_some(1e3 * workers as f64 / host.median);
        let sealed = kept.iter().map(|round| round.sealed).sum::<u64>() as f64;
        let packets = (kept.len() * parts.len() * workers * self.packets) as f64;
        let is_software = like.mode == Mode::Software;
        Some(Row {
            mode: like.mode,
            way: match direction {
                Direction::In | Direction::PacketIn | Direction::CryptoIn => "in",
                _ => "out",
            },
            suite: if is_software { suite.name() } else { "none" },
            family: version(family),
            size,
            workers,
            engine: like.subject.engine,
            engine_share: (like.subject.engine > 0).then_some(sealed / packets),
            host_ns_per_packet: host.median,
            spread: host.spread,
            baseline_ratio: ratio.median,
            baseline_spread: ratio.spread,
            mpps,
            gbps: mpps.map(|mpps| 8e-3 * bytes / twelve * mpps),
            laps: kept.len(),
            emulated: like.mode.has_card(),
        })
    }

    /// The rounds of a size, each of its parts together.
    fn rounds(&self, like: &Laps, size: Size) -> Option<Vec<Round>> {
        let parts = size.parts();
        let of = |wanted: &Laps| {
            let place = self.all.iter().position(|laps| laps == wanted)?;
            self.figures.get(place)
        };
        let mut rounds: Vec<Round> = Vec::new();
        let all = f64::from(parts.iter().map(|(_, weight)| weight).sum::<u32>());
        for (bytes, weight) in parts {
            let weight = f64::from(weight) / all;
            let (own, baseline) = (of(&like.with_size(bytes))?, of(&like.baseline(bytes))?);
            let empty =
                Round { host_ns: 0.0, baseline_ns: 0.0, sealed: 0, figures: LapFigures::ZERO };
            rounds.resize(own.len(), empty);
            for (round, ((own, sealed), (baseline, _))) in
                rounds.iter_mut().zip(own.iter().zip(baseline))
            {
                round.host_ns += weight * own.walk_ns;
                round.baseline_ns += weight * baseline.walk_ns;
                round.sealed += sealed;
                for figures in [own, baseline] {
                    let share = figures.span.share_of_core();
                    let least = round.figures.span;
                    if least.wall.is_zero() || share < least.share_of_core() {
                        round.figures = *figures;
                    }
                }
            }
        }
        Some(rounds)
    }
}

impl Laps {
    /// Returns whether laps differ from these by their size alone.
    fn is_like(&self, other: &Laps) -> bool {
        *self == other.with_size(self.subject.case.size)
    }

    fn with_size(&self, size: usize) -> Laps {
        let mut laps = *self;
        laps.subject.case.size = size;
        laps
    }

    /// The laps that these are compared with.
    fn baseline(&self, size: usize) -> Laps {
        let mut laps = Laps { mode: Mode::Baseline, ..self.with_size(size) };
        (laps.subject.case.direction, laps.subject.engine) = (Direction::Bypass, 0);
        laps.subject.case.suite = self.first_suite;
        laps
    }
}

/// All tables, with their words.
pub(super) fn text(rows: &[Row], machine: &Machine, commit: &str, seed: u64) -> String {
    let parts = [
        Some(format!("{}\nseed {seed}", heading("offload", machine, commit))),
        Some(table(rows)),
        control(rows),
        beside_published(rows),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n")
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "mode",
        "way",
        "suite",
        "IP",
        "size",
        "workers",
        "host ns",
        "± IQR",
        "÷ baseline",
        "± IQR",
        "Mpps",
        "Gbit/s",
        "laps",
        "card",
    ]);
    let percent = |part: f64| format!("{:.1} %", 100.0 * part);
    let rate = |rate: Option<f64>, digits: usize| {
        rate.map_or("-".into(), |rate| format!("{rate:.digits$}"))
    };
    for row in rows.iter().filter(|row| !is_control(row)) {
        table.add_row([
            row.mode.name().to_owned(),
            row.way.to_owned(),
            row.suite.to_owned(),
            row.family.to_string(),
            row.size.to_string(),
            row.workers.to_string(),
            format!("{:.1}", row.host_ns_per_packet),
            percent(row.spread),
            format!("{:.2}", row.baseline_ratio),
            percent(row.baseline_spread),
            rate(row.mpps, 2),
            rate(row.gbps, 2),
            row.laps.to_string(),
            if row.emulated { "emulated" } else { "-" }.to_owned(),
        ]);
    }
    for place in [3, 4, 5, 6, 7, 8, 9, 10, 11, 12] {
        if let Some(column) = table.column_mut(place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!(
        "{table}\n\
         host ns: the CPU time of a worker for a packet; the card's own work is in none. \
         ÷ baseline: the same packets in clear by a BYPASS policy, in the same round, median. \
         Mpps, Gbit/s: what the workers together could hand over or take; none where the card has \
         no core for itself. imix: 64, 576 and 1420 bytes as 7 : 4 : 1, from rows of these sizes."
    )
}

/// Returns whether a row only shows that the engine is in no figure.
fn is_control(row: &Row) -> bool {
    row.emulated && CONTROL.contains(&row.engine)
}

/// The rows of control; `None`: there are none.
fn control(rows: &[Row]) -> Option<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["control", "IP", "size", "engine", "host ns", "÷ engine off", "sealed"]);
    for row in rows.iter().filter(|row| row.emulated) {
        let is_off = |other: &&Row| other.is_like(row) && other.engine == 0;
        let Some(off) = rows.iter().find(is_off) else { continue };
        let sealed = row.engine_share.map_or("-".into(), |it| format!("{:.0} %", 100.0 * it));
        table.add_row([
            format!("{} {}", row.mode.name(), row.way),
            row.family.to_string(),
            row.size.to_string(),
            format!("× {}", row.engine),
            format!("{:.1}", row.host_ns_per_packet),
            format!("{:.2}", row.host_ns_per_packet / off.host_ns_per_packet),
            sealed,
        ]);
    }
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    let words = "engine: times that the emulated card's own engine seals each packet, on another \
                 core. Where the host's time stays, the engine is in no figure. sealed: part of \
                 the packets that it came to; the workers do not wait for it.";
    (!table.is_empty()).then(|| format!("{table}\n{words}"))
}

impl Row {
    /// Returns whether another row differs from this one by the engine alone, or by figures.
    fn is_like(&self, other: &Row) -> bool {
        let what = |row: &Row| (row.mode, row.way, row.family, row.size, row.workers);
        what(self) == what(other)
    }
}

/// The published table, ours beside it: packets that leave, of 1400 bytes or else the largest size,
/// and of the first suite. `None`: no size is a number.
fn beside_published(rows: &[Row]) -> Option<String> {
    let bytes = |row: &Row| match row.size {
        Size::Bytes(bytes) => Some(bytes),
        Size::Mix => None,
    };
    let sizes = || rows.iter().filter_map(bytes);
    let size = sizes().find(|size| *size == 1400).or_else(|| sizes().max())?;
    let mut ours = Ours::new();
    for row in rows.iter().filter(|row| bytes(row) == Some(size) && row.way == "out") {
        if !is_control(row) {
            ours.entry((row.mode, row.workers)).or_insert(100.0 / row.baseline_ratio);
        }
    }
    Some(published::text(&ours, size))
}

#[cfg(test)]
mod tests {
    use super::super::super::measure::Span;
    use super::super::tests::laps_of;
    use super::*;
    use std::time::Duration;

    /// Laps that take `ns` of each, three rounds; the engine seals half of the packets.
    fn figures(all: &[Laps], ns: impl Fn(&Laps) -> f64) -> Vec<Vec<(LapFigures, u64)>> {
        let wall = Duration::from_millis(10);
        let lap = |laps: &Laps, round: usize| {
            let span = Span { cpu: wall, wall };
            let walk_ns = ns(laps) * [1.0, 2.0, 3.0][round];
            (
                LapFigures { walk_ns, span, ..LapFigures::ZERO },
                50 * laps.subject.case.workers as u64,
            )
        };
        all.iter().map(|laps| (0..3).map(|round| lap(laps, round)).collect()).collect()
    }

    fn rows(line: &[&str], ns: impl Fn(&Laps) -> f64) -> Vec<Row> {
        let (arguments, all) = laps_of(line);
        let figures = figures(&all, ns);
        Measured::new(&all, &figures, 2, 100).rows(&arguments.size)
    }

    // BM-3e, BM-3f
    #[test]
    fn a_row_is_the_median_of_its_rounds_and_compared_with_the_baseline_of_each() {
        let ns = |laps: &Laps| match laps.mode {
            Mode::Baseline => 20.0,
            Mode::Software => 100.0,
            _ => 21.0,
        };
        let rows = rows(&["--size=1000", "--suite=aes-128-gcm"], ns);
        let find = |mode, way, workers| {
            let is = |row: &&Row| (row.mode, row.way, row.workers) == (mode, way, workers);
            rows.iter().find(|row| is(row) && !is_control(row)).unwrap()
        };
        let software = find(Mode::Software, "in", 1);
        assert_eq!((software.host_ns_per_packet, software.baseline_ratio), (200.0, 5.0));
        assert_eq!((software.mpps, software.gbps), (Some(5.0), Some(40.0)));
        assert!(!software.emulated && software.engine_share.is_none());
        let two = find(Mode::Packet, "out", 2);
        assert!((two.baseline_ratio - 1.05).abs() < 1e-9 && two.emulated);
        assert_eq!((two.mpps, two.gbps), (None, None), "the card shares the workers' cores");
        assert_eq!(two.engine_share, Some(0.5));
        assert_eq!(find(Mode::Packet, "in", 1).mpps.map(f64::round), Some(24.0));
    }

    // BM-3f
    #[test]
    fn a_mix_is_made_of_its_parts_in_each_round() {
        let ns = |laps: &Laps| laps.subject.case.size as f64;
        let rows = rows(&["--size=imix,64", "--mode=software", "--workers=1"], ns);
        let mix = rows.iter().find(|row| row.size == Size::Mix).unwrap();
        let mean = (7.0 * 64.0 + 4.0 * 576.0 + 1420.0) / 12.0;
        assert!((mix.host_ns_per_packet - 2.0 * mean).abs() < 1e-9, "{mix:?}");
        assert!((mix.baseline_ratio - 1.0).abs() < 1e-9);
        let gbps = 8e-3 * mean * 1e3 / (2.0 * mean);
        assert!((mix.gbps.unwrap() - gbps).abs() < 1e-9);
    }

    #[test]
    fn the_tables_show_rows_of_control_apart_and_the_published_ones() {
        let ns = |laps: &Laps| if laps.subject.engine == 10 { 22.0 } else { 20.0 };
        let rows = rows(&["--size=64,1400"], ns);
        let text = text(&rows, &Machine::look(None), "abc", 7);
        assert!(text.contains("seed 7") && text.contains("emulated"));
        let cells = |begin: &[&str]| {
            let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            lines.into_iter().find(|cells| cells.starts_with(begin)).unwrap_or_default()
        };
        for (engine, over, sealed) in
            [("0", "1.00", "-"), ("1", "1.00", "50"), ("10", "1.10", "50")]
        {
            let line = cells(&["packet", "out", "4", "64", "×", engine]);
            assert_eq!(line[7..9], [over, sealed], "{text}");
        }
        assert_eq!(cells(&["Lockgate", "software", "%"])[3..5], ["100.0", "100.0"], "{text}");
    }

    #[test]
    fn the_json_has_the_fields_that_scripts_read() {
        let rows = rows(&["--size=imix,64"], |_| 20.0);
        for row in &rows {
            let row = serde_json::to_value(row).unwrap();
            for name in
                ["mode", "workers", "size", "mpps", "gbps", "host_ns_per_packet", "emulated"]
            {
                assert!(row.get(name).is_some(), "{name}: {row}");
            }
        }
        let mix = serde_json::to_value(&rows[0]).unwrap();
        assert_eq!((&mix["mode"], &mix["size"]), (&"baseline".into(), &"imix".into()));
    }
}
