//! The rows of `bench esp`: what laps come to, as a table and as JSON.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use dataplane::stage::Stage;
use ipsec::cipher::BackendKind;
use serde::Serialize;
use wire::Family;

use super::lap::{Course, LapError, LapFigures};
use super::machine::Machine;
use super::measure::{Figure, Span};
use super::memory::Distance;
use super::stages::StageTimes;
use super::targets;
use scene::{Case, Direction, Keys};

/// A lap in which the thread had its core for a smaller part of the time is not counted: somebody
/// else ran there, and left his data in the caches.
const LEAST_SHARE_OF_CORE: f64 = 0.97;
/// Laps that must be left to discard the others.
const LEAST_LAPS: usize = 5;

/// One row: what was measured and what it came to.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) suite: &'static str,
    /// Bytes of the inner packet.
    pub(super) size: usize,
    pub(super) direction: &'static str,
    pub(super) backend: &'static str,
    /// The backend with its version and what of the processor it uses.
    pub(super) library: &'static str,
    pub(super) family: u8,
    pub(super) workers: usize,
    /// Of all workers together.
    pub(super) mpps: f64,
    /// Of inner packets, of all workers together.
    pub(super) gbps: f64,
    /// CPU time of one worker's packet, median of the laps.
    pub(super) ns_per_packet: f64,
    /// The cipher alone, median of the laps.
    pub(super) cipher_ns: f64,
    /// The cipher alone on packets in the caches of the core: the difference is the way to memory.
    pub(super) cipher_near_ns: f64,
    /// `ns_per_packet` without `cipher_ns`.
    pub(super) walk_ns: f64,
    /// Distance of the quartiles of `ns_per_packet` as a part of its median.
    pub(super) spread: f64,
    /// First quartile of the laps' times: others on the machine only ever add.
    pub(super) ns_best_quartile: f64,
    /// First quartile of the cipher alone.
    pub(super) cipher_ns_best_quartile: f64,
    pub(super) ns_min: f64,
    pub(super) ns_max: f64,
    pub(super) cipher_spread: f64,
    pub(super) laps: usize,
    /// Laps that are in no figure: the thread did not have its core.
    pub(super) laps_discarded: usize,
    pub(super) packets_per_lap: usize,
    pub(super) flows: usize,
    /// Frames of a worker that hold packets at the same time.
    pub(super) in_flight: usize,
    pub(super) frame_bytes: usize,
    /// Part of the time that passed in which the threads had their cores, from the laying out of
    /// packets on, in the laps that count.
    pub(super) share_of_core: f64,
    /// Target of `ns_per_packet` on the reference machine, if one is set.
    pub(super) target_ns: Option<f64>,
    /// With `--stages`: time of each stage, ns a packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stages: Option<BTreeMap<&'static str, f64>>,
    /// Time that looking at the clock took beside them, ns a packet; it is in no stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stages_clock_ns: Option<f64>,
}

/// All that `--json` writes.
#[derive(Serialize)]
pub(super) struct Report<'r> {
    pub(super) bench: &'static str,
    pub(super) machine: &'r Machine,
    pub(super) commit: &'r str,
    pub(super) memory: &'r [Distance],
    pub(super) rows: &'r [Row],
}

/// IP version.
pub(super) fn version(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

impl Row {
    /// Computes the row of a case from its laps.
    ///
    /// # Errors
    /// The machine does not have the backend.
    pub(super) fn of(
        case: &Case,
        laps: &[LapFigures],
        course: &Course,
        frame_bytes: usize,
    ) -> Result<Row, LapError> {
        let (kept, discarded) = undisturbed(laps, |lap| lap.span);
        let figure =
            |of: fn(&LapFigures) -> f64| Figure::of(&kept.iter().map(of).collect::<Vec<f64>>());
        let (walk, cipher) = (figure(|lap| lap.walk_ns), figure(|lap| lap.cipher_ns));
        let mut span = Span::default();
        kept.iter().for_each(|lap| span.add(lap.span));
        let ciphers = case.direction != Direction::Forward;
        let library = if ciphers { library(case)? } else { "none" };
        let stages: Vec<StageTimes> = kept.iter().filter_map(|lap| lap.stages).collect();
        let stages = (!stages.is_empty()).then(|| StageTimes::median(&stages));
        let named = |times: StageTimes| Stage::ALL.iter().map(|s| s.name()).zip(times.ns).collect();
        let mpps = 1e3 * case.workers as f64 / walk.median;
        let row = Row {
            suite: if ciphers { case.suite.name() } else { "none" },
            size: case.size,
            direction: case.direction.name(),
            backend: short(library),
            library,
            family: version(case.family),
            workers: case.workers,
            mpps,
            gbps: 8e-3 * case.size as f64 * mpps,
            ns_per_packet: walk.median,
            cipher_ns: cipher.median,
            cipher_near_ns: figure(|lap| lap.cipher_near_ns).median,
            walk_ns: walk.median - cipher.median,
            spread: walk.spread,
            ns_best_quartile: walk.first_quartile,
            cipher_ns_best_quartile: cipher.first_quartile,
            ns_min: walk.least,
            ns_max: walk.most,
            cipher_spread: if cipher.median > 0.0 { cipher.spread } else { 0.0 },
            laps: kept.len(),
            laps_discarded: discarded,
            packets_per_lap: course.passes as usize * case.flows * case.workers,
            flows: case.flows,
            in_flight: course.in_flight,
            frame_bytes,
            share_of_core: span.share_of_core(),
            target_ns: None,
            stages: stages.map(named),
            stages_clock_ns: stages.map(|times| times.clock_ns),
        };
        let target_ns = targets::target(&row, BackendKind::IpsecMb.version());
        Ok(Row { target_ns, ..row })
    }
}

/// The laps in which the threads had their cores, and how many others there were. Where too few
/// are left all count: `share_of_core` says so.
pub(super) fn undisturbed<L: Copy>(laps: &[L], span: impl Fn(&L) -> Span) -> (Vec<L>, usize) {
    let had_core = |lap: &&L| span(lap).share_of_core() >= LEAST_SHARE_OF_CORE;
    let kept: Vec<L> = laps.iter().filter(had_core).copied().collect();
    match laps.len() - kept.len() {
        discarded if kept.len() >= LEAST_LAPS => (kept, discarded),
        _ => (laps.to_vec(), 0),
    }
}

/// The library behind the cipher seam.
fn library(case: &Case) -> Result<&'static str, LapError> {
    Ok(case.cipher(&Keys::fresh(case.suite)?.outbound)?.backend_name())
}

/// The backend that a library's name begins with.
fn short(library: &'static str) -> &'static str {
    let kind = BackendKind::ALL.iter().find(|kind| library.starts_with(kind.name()));
    kind.map_or(library, |kind| kind.name())
}

/// Returns the lines above the table.
pub(super) fn heading(machine: &Machine, commit: &str) -> String {
    format!(
        "bench esp, commit {commit}\n{machine}\n\
         in memory; on a copy-mode AF_XDP port the same core carries 7–10 Gbit/s"
    )
}

/// The rows as text, aligned, and what the columns mean.
pub(super) fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "direction",
        "suite",
        "backend",
        "IP",
        "size",
        "workers",
        "Mpps",
        "Gbit/s",
        "ns/packet",
        "± IQR",
        "best quartile",
        "cipher ns",
        "(near)",
        "walk ns",
        "core",
        "laps",
    ]);
    for row in rows {
        table.add_row([
            row.direction.to_owned(),
            row.suite.to_owned(),
            row.backend.to_owned(),
            row.family.to_string(),
            row.size.to_string(),
            row.workers.to_string(),
            format!("{:.2}", row.mpps),
            format!("{:.1}", row.gbps),
            format!("{:.1}", row.ns_per_packet),
            format!("{:.1} %", row.spread * 100.0),
            format!("{:.1}", row.ns_best_quartile),
            format!("{:.1}", row.cipher_ns),
            format!("{:.1}", row.cipher_near_ns),
            format!("{:.1}", row.walk_ns),
            format!("{:.0} %", row.share_of_core * 100.0),
            format!("{}-{}", row.laps + row.laps_discarded, row.laps_discarded),
        ]);
    }
    table.column_iter_mut().skip(3).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!("{table}\n{}", legend(rows))
}

/// The meaning of the columns.
fn legend(rows: &[Row]) -> String {
    let first = rows.first().cloned().unwrap_or_default();
    let Row { packets_per_lap, workers, flows, in_flight, frame_bytes, .. } = first;
    let packets = packets_per_lap / workers.max(1);
    let mut text = format!(
        "size, Gbit/s: inner IP packet. ns/packet: CPU time of a worker's thread, median of laps \
         of {packets} packets, {flows} flows, {in_flight} frames of {frame_bytes} bytes in \
         flight.\n\
         ± IQR: distance of the quartiles over the median. best quartile: a quarter of the laps \
         took less; others on the machine only ever add.\n\
         cipher ns: the cipher alone on the same packets; (near): on packets that the core's own \
         caches hold. walk ns: ns/packet without cipher ns.\n\
         core: part of the time in which the thread had its core, from the laying out on.\n\
         laps: all of them, less those that count nowhere because others had the core for more \
         than {:.0} % of the time.",
        100.0 * (1.0 - LEAST_SHARE_OF_CORE)
    );
    let mut libraries: Vec<&str> =
        rows.iter().map(|row| row.library).filter(|name| *name != "none").collect();
    libraries.sort_unstable();
    libraries.dedup();
    if !libraries.is_empty() {
        text += &format!("\nbackends: {}.", libraries.join("; "));
    }
    if rows.iter().any(|row| row.workers > 1) {
        text += "\nseveral workers: each has a core, frames, flows and an SA of its own; they \
                 share the snapshot, and as cores of one machine\nits last cache, its memory and \
                 its heat: as many times one worker's Mpps is the most there can be. Mpps, Gbit/s: \
                 of all together.";
    }
    text
}

/// Describes the distance of memory in words.
pub(super) fn memory(distances: &[Distance]) -> String {
    let of = |d: &Distance| format!("{} KiB {:.0} ns (least {:.0})", d.kib, d.ns, d.ns_min);
    let list: Vec<String> = distances.iter().map(of).collect();
    format!(
        "memory: a step from line to line of {}: where it\njumps, the cache ends that this core \
         had to itself during the run. Frames that lie behind it (--in-flight says how many there \
         are) cost that in every figure.",
        list.join(", ")
    )
}

/// The stages beside the cipher alone; `None`: they were not timed.
pub(super) fn stages(rows: &[Row]) -> Option<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let names = Stage::ALL.iter().map(|stage| stage.name());
    let head = ["direction", "suite", "IP", "size"].into_iter().chain(names);
    table.set_header(head.chain(["all", "cipher alone", "(clock)"]));
    for row in rows {
        let (Some(stages), Some(clock_ns)) = (&row.stages, row.stages_clock_ns) else { continue };
        let ns = |ns: f64| format!("{ns:.1}");
        let times = Stage::ALL.iter().map(|stage| ns(stages[stage.name()]));
        let what = [row.direction.into(), row.suite.into(), row.family.to_string()];
        let all = ns(stages.values().sum());
        table.add_row(what.into_iter().chain([row.size.to_string()]).chain(times).chain([
            all,
            ns(row.cipher_ns),
            ns(clock_ns),
        ]));
    }
    if table.is_empty() {
        return None;
    }
    table.column_iter_mut().skip(2).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Some(format!(
        "{table}\n\
         stages: ns a packet by the clock on the wall, from a pass of its own in every lap: of its \
         full batches the middle half by their total,\nmedian of the laps. What the looks at the \
         clock took, (clock), is taken off. A stage may still run while the next begins: a stage's \
         figure is its own\nonly to a few ns."
    ))
}

#[cfg(test)]
mod tests {
    use super::super::lap::Staging;
    use super::*;
    use ipsec::Suite;
    use std::time::Duration;

    fn course(passes: u32) -> Course<'static> {
        Course { passes, staging: Staging::Whole, in_flight: 4096, cores: &[] }
    }

    fn case() -> Case {
        Case {
            direction: Direction::Out,
            suite: Suite::Aes128Gcm,
            family: Family::V4,
            size: 1000,
            flows: 4096,
            backend: None,
            workers: 1,
        }
    }

    fn lap(walk_ns: f64, cipher_ns: f64, had_core: f64) -> LapFigures {
        let wall = Duration::from_millis(10);
        let span = Span { cpu: wall.mul_f64(had_core), wall };
        LapFigures { walk_ns, cipher_ns, cipher_near_ns: cipher_ns, span, stages: None }
    }

    #[test]
    fn a_rows_figures_follow_from_its_laps() {
        let laps = [(140.0, 60.0), (80.0, 40.0), (100.0, 30.0), (120.0, 50.0), (90.0, 45.0)];
        let laps = laps.map(|(walk, cipher)| lap(walk, cipher, 1.0));
        let row = Row::of(&case(), &laps, &course(5), 4096).unwrap();
        assert_eq!((row.ns_per_packet, row.cipher_ns, row.walk_ns), (100.0, 45.0, 55.0));
        assert_eq!((row.mpps, row.gbps), (10.0, 80.0), "8000 bits every 100 ns");
        assert_eq!((row.spread, row.ns_min, row.ns_max), (0.3, 80.0, 140.0));
        assert_eq!((row.ns_best_quartile, row.cipher_ns_best_quartile), (90.0, 40.0));
        assert_eq!((row.laps, row.laps_discarded, row.packets_per_lap), (5, 0, 5 * 4096));
        assert!((row.share_of_core - 1.0).abs() < 1e-9);
        let two = Row::of(&Case { workers: 2, ..case() }, &laps, &course(5), 4096).unwrap();
        assert_eq!((two.mpps, two.ns_per_packet), (20.0, 100.0), "two at once");
        assert_eq!(two.packets_per_lap, 2 * 5 * 4096);
    }

    #[test]
    fn laps_without_their_core_count_nowhere_and_are_counted() {
        let mut laps = vec![lap(100.0, 50.0, 0.99); 6];
        laps.extend([lap(900.0, 50.0, 0.9); 3]);
        let row = Row::of(&case(), &laps, &course(1), 4096).unwrap();
        assert_eq!((row.laps, row.laps_discarded), (6, 3));
        assert_eq!((row.ns_per_packet, row.ns_max), (100.0, 100.0));
        let row = Row::of(&case(), &laps[2..], &course(1), 4096).unwrap();
        assert_eq!((row.laps, row.laps_discarded), (7, 0), "too few were left");
        assert!(row.share_of_core < 0.96);
    }

    #[test]
    fn the_json_has_the_fields_that_scripts_read() {
        let times = StageTimes { ns: [2.0; Stage::ALL.len()], clock_ns: 1.0 };
        let rows = [Row::of(
            &case(),
            &[LapFigures { stages: Some(times), ..lap(1.0, 1.0, 1.0) }],
            &course(1),
            4096,
        )
        .unwrap()];
        let machine = Machine::look(None);
        let memory = [Distance { kib: 512, ns: 5.0, ns_min: 4.0 }];
        let (bench, commit) = ("esp", "abc");
        let report = Report { bench, machine: &machine, commit, memory: &memory, rows: &rows };
        let json = serde_json::to_value(&report).unwrap();
        let keys = |value: &serde_json::Value| -> Vec<String> {
            value.as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(keys(&json), ["bench", "commit", "machine", "memory", "rows"]);
        let row = keys(&json["rows"][0]);
        for key in [
            "suite",
            "size",
            "direction",
            "backend",
            "family",
            "workers",
            "mpps",
            "gbps",
            "ns_per_packet",
            "cipher_ns",
            "spread",
        ] {
            assert!(row.iter().any(|found| found == key), "{key} is missing");
        }
        let stages = json["rows"][0]["stages"].as_object().unwrap();
        assert_eq!(stages.len(), Stage::ALL.len());
        assert!(stages.contains_key("seal: cipher"), "{stages:?}");
        let backend = json["rows"][0]["backend"].as_str().unwrap();
        assert!(BackendKind::from_name(backend).is_some(), "{backend}");
    }

    #[test]
    fn the_tables_say_what_they_show() {
        let times = StageTimes { ns: [2.0; Stage::ALL.len()], clock_ns: 1.5 };
        let lap = LapFigures { stages: Some(times), ..lap(31.25, 1.0, 1.0) };
        let two = Case { workers: 2, ..case() };
        let rows = [case(), two].map(|case| Row::of(&case, &[lap], &course(1), 4096).unwrap());
        let text = table(&rows);
        assert!(text.contains("aes-128-gcm") && text.contains("31.2") && text.contains("share"));
        assert!(!table(&rows[..1]).contains("several workers"));
        let all = format!("{:.1}", 2.0 * Stage::ALL.len() as f64);
        let text = stages(&rows).unwrap();
        assert!(text.contains("seal: cipher") && text.contains(&all), "{text}");
        assert!(heading(&Machine::look(None), "abc").contains("in memory; on a copy-mode AF_XDP"));
    }
}
