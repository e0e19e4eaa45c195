//! The rows of `bench esp`: what laps come to, as a table and as JSON.

mod table;

use std::borrow::Cow;
use std::collections::BTreeMap;

use dataplane::stage::Stage;
use ipsec::Suite;
use ipsec::cipher::Choice;
use serde::Serialize;

use super::lap::{Course, LapFigures};
use super::lap_error::LapError;
use super::machine::Machine;
use super::measure::{Figure, Span};
use super::memory::Distance;
use super::stages::StageTimes;
use super::subject::{Caching, Subject};
use scene::{Case, Keys};

pub(super) use super::subject::version;
pub(super) use table::{by_sas, heading, memory, over_forward, stages, table};

/// A lap in which the thread had its core for a smaller part of the time is not counted: somebody
/// else ran there, and left his data in the caches.
const LEAST_SHARE_OF_CORE: f64 = 0.97;
/// Laps that must be left to discard the others.
const LEAST_LAPS: usize = 5;

/// One row: a case with its figures.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) suite: &'static str,
    /// Bytes of the inner packet.
    pub(super) size: usize,
    pub(super) direction: &'static str,
    pub(super) backend: &'static str,
    /// The backend with its version and what of the processor it uses, or two of them.
    pub(super) library: Cow<'static, str>,
    pub(super) family: u8,
    pub(super) workers: usize,
    /// SAs of each worker in the direction, which share the flows.
    pub(super) sas: usize,
    /// "fast": the fast path where it takes packets; "general": the general walk alone.
    pub(super) walk: &'static str,
    /// "auto", as the daemon's default; "always"; "off".
    pub(super) cache: &'static str,
    /// Entries that the cache has room for; 0: there is none.
    pub(super) cache_entries: usize,
    /// Part of the timed packets that the cache answered, mean of the laps.
    pub(super) hit_rate: f64,
    /// Part of the timed packets that left by the fast path, mean of the laps.
    pub(super) fast_rate: f64,
    /// Rate of all workers together.
    pub(super) mpps: f64,
    /// Rate of inner packets, all workers together.
    pub(super) gbps: f64,
    /// CPU time of one worker's packet, median of the laps.
    pub(super) ns_per_packet: f64,
    /// The cipher alone, median of the laps.
    pub(super) cipher_ns: f64,
    /// The cipher alone on packets in the caches of the core: the difference is the way to memory.
    pub(super) cipher_near_ns: f64,
    /// `ns_per_packet` without `cipher_ns`.
    pub(super) walk_ns: f64,
    /// The yardstick without cipher, median of the laps: a header line read, 66 bytes and a
    /// descriptor written for each frame, in the order of a pass.
    pub(super) touch_ns: f64,
    /// `touch_ns` and `cipher_ns` of each lap together, median of the laps.
    pub(super) yardstick_ns: f64,
    /// Time a packet over the yardstick of the same lap, median of the laps.
    pub(super) yardstick_ratio: f64,
    /// Distance of the quartiles of `yardstick_ratio` as a part of its median.
    pub(super) yardstick_ratio_spread: f64,
    /// Instructions a packet, counted by callgrind, with the AVX2 forms, where the committed table
    /// has this row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) instructions_callgrind: Option<f64>,
    /// For a row by the fast path: its time over that of the general walk, median of pairs of laps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) general_ratio: Option<f64>,
    /// Distance of the quartiles of `general_ratio` as a part of its median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) general_spread: Option<f64>,
    /// Pairs of laps behind `general_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pairs: Option<usize>,
    /// For a row of several SAs: its time over that of one, median of laps of the same rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) one_sa_ratio: Option<f64>,
    /// Distance of the quartiles of `one_sa_ratio` as a part of its median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) one_sa_spread: Option<f64>,
    /// For a row that is compared with plain packets: its time over theirs, median of laps of the
    /// same rounds. An overlay's and BYPASS's are compared with forwarding between protected ports,
    /// packet mode's with BYPASS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) forward_ratio: Option<f64>,
    /// Time beyond theirs, ns, median of laps of the same rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) over_forward_ns: Option<f64>,
    /// Distance of the quartiles of `over_forward_ns`, ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) over_forward_iqr_ns: Option<f64>,
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
    /// Time of each stage, ns a packet; only with `--stages`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stages: Option<BTreeMap<&'static str, f64>>,
    /// Time that reading the clock took, ns a packet; it belongs to no stage.
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

/// Sizes of the memory that the arguments of a bench ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) frame_bytes: usize,
    /// Entries of a cache, where there is one.
    pub(super) cache_entries: usize,
}

impl Row {
    /// Computes the row of a subject from its laps.
    ///
    /// # Errors
    /// The machine does not have the backend.
    pub(super) fn of(
        subject: &Subject,
        laps: &[LapFigures],
        course: &Course,
        memory: Memory,
    ) -> Result<Row, LapError> {
        let Subject { case, walk: by, cache, in_flight, .. } = subject;
        let (kept, discarded) = undisturbed(laps, |lap| lap.span);
        let figure =
            |of: fn(&LapFigures) -> f64| Figure::of(&kept.iter().map(of).collect::<Vec<f64>>());
        let mean =
            |of: fn(&LapFigures) -> f64| kept.iter().map(of).sum::<f64>() / kept.len() as f64;
        let ratio = figure(|lap| lap.walk_ns / lap.yardstick_ns());
        let (walk, cipher) = (figure(|lap| lap.walk_ns), figure(|lap| lap.cipher_ns));
        let mut span = Span::default();
        kept.iter().for_each(|lap| span.add(lap.span));
        let ciphers = case.direction.ciphers();
        let library = if ciphers { library(case)? } else { "none".into() };
        let stages: Vec<StageTimes> = kept.iter().filter_map(|lap| lap.stages).collect();
        let stages = (!stages.is_empty()).then(|| StageTimes::median(&stages));
        let named = |times: StageTimes| Stage::ALL.iter().map(|s| s.name()).zip(times.ns).collect();
        let mpps = 1e3 * case.workers as f64 / walk.median;
        Ok(Row {
            suite: if ciphers { case.suite.name() } else { "none" },
            size: case.size,
            direction: case.direction.name(),
            backend: if ciphers { short(case) } else { "none" },
            library,
            family: version(case.family),
            workers: case.workers,
            sas: case.sas,
            walk: by.name(),
            cache: cache.name(),
            cache_entries: if *cache == Caching::Off { 0 } else { memory.cache_entries },
            hit_rate: mean(|lap| lap.hit_rate),
            fast_rate: mean(|lap| lap.fast_rate),
            mpps,
            gbps: 8e-3 * case.size as f64 * mpps,
            ns_per_packet: walk.median,
            cipher_ns: cipher.median,
            cipher_near_ns: figure(|lap| lap.cipher_near_ns).median,
            walk_ns: walk.median - cipher.median,
            touch_ns: figure(|lap| lap.touch_ns).median,
            yardstick_ns: figure(LapFigures::yardstick_ns).median,
            yardstick_ratio: ratio.median,
            yardstick_ratio_spread: ratio.spread,
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
            in_flight: *in_flight,
            frame_bytes: memory.frame_bytes,
            share_of_core: span.share_of_core(),
            stages: stages.map(named),
            stages_clock_ns: stages.map(|times| times.clock_ns),
            ..Row::default()
        })
    }
}

/// Returns whether a thread had its core for so much of a span that its time counts.
pub(super) fn had_core(span: Span) -> bool {
    span.share_of_core() >= LEAST_SHARE_OF_CORE
}

/// The laps in which the threads had their cores, and how many others there were. Where too few
/// are left all count: `share_of_core` says so.
pub(super) fn undisturbed<L: Copy>(laps: &[L], span: impl Fn(&L) -> Span) -> (Vec<L>, usize) {
    let kept: Vec<L> = laps.iter().filter(|lap| had_core(span(lap))).copied().collect();
    match laps.len() - kept.len() {
        discarded if kept.len() >= LEAST_LAPS => (kept, discarded),
        _ => (laps.to_vec(), 0),
    }
}

/// The library behind the cipher seam.
fn library(case: &Case) -> Result<Cow<'static, str>, LapError> {
    Ok(case.cipher(&Keys::fresh(case.suite)?.outbound)?.backend_name())
}

/// The backend of a case without its version; [`BY_SIZE`], if the walk takes two.
fn short(case: &Case) -> &'static str {
    match case.backend.map_or_else(|| Choice::of(case.suite), Choice::One) {
        _ if case.suite == Suite::Null => "none",
        Choice::One(kind) => kind.name(),
        Choice::BySize { .. } => BY_SIZE,
    }
}

/// Two backends, each for packets of some lengths.
const BY_SIZE: &str = "by size";

#[cfg(test)]
mod tests {
    use super::super::lap::Staging;
    use super::super::subject::WalkKind;
    use super::*;
    use ipsec::cipher::BackendKind;
    use scene::Direction;
    use std::time::Duration;
    use wire::Family;

    fn course(passes: u32) -> Course<'static> {
        let (staging, limits) = (Staging::Whole, scene::SaLimits::Without);
        Course { passes, staging, cores: &[], limits, engine: None }
    }

    const MEMORY: Memory = Memory { frame_bytes: 4096, cache_entries: 64 };

    fn subject() -> Subject {
        let case = Case {
            direction: Direction::Out,
            suite: Suite::Aes128Gcm,
            family: Family::V4,
            size: 1000,
            flows: 4096,
            backend: None,
            workers: 1,
            sas: 1,
        };
        Subject { case, walk: WalkKind::Fast, cache: Caching::Always, in_flight: 512, engine: 0 }
    }

    fn by_two() -> Subject {
        let one = subject();
        Subject { case: Case { workers: 2, ..one.case }, ..one }
    }

    fn lap(walk_ns: f64, cipher_ns: f64, had_core: f64) -> LapFigures {
        let wall = Duration::from_millis(10);
        let span = Span { cpu: wall.mul_f64(had_core), wall };
        let (cipher_near_ns, touch_ns) = (cipher_ns, 10.0);
        let timed = LapFigures { walk_ns, cipher_ns, cipher_near_ns, touch_ns, ..LapFigures::ZERO };
        LapFigures { hit_rate: 1.0, span, ..timed }
    }

    #[test]
    fn a_rows_figures_follow_from_its_laps() {
        let laps = [(140.0, 60.0), (80.0, 40.0), (100.0, 30.0), (120.0, 50.0), (90.0, 45.0)];
        let laps = laps.map(|(walk, cipher)| lap(walk, cipher, 1.0));
        let row = Row::of(&subject(), &laps, &course(5), MEMORY).unwrap();
        assert_eq!((row.ns_per_packet, row.cipher_ns, row.walk_ns), (100.0, 45.0, 55.0));
        assert_eq!((row.mpps, row.gbps), (10.0, 80.0), "8000 bits every 100 ns");
        assert_eq!((row.spread, row.ns_min, row.ns_max), (0.3, 80.0, 140.0));
        assert_eq!((row.ns_best_quartile, row.cipher_ns_best_quartile), (90.0, 40.0));
        assert_eq!((row.laps, row.laps_discarded, row.packets_per_lap), (5, 0, 5 * 4096));
        assert!((row.share_of_core - 1.0).abs() < 1e-9);
        // 140/70, 80/50, 100/40, 120/60, 90/55
        assert_eq!((row.touch_ns, row.yardstick_ns, row.yardstick_ratio), (10.0, 55.0, 2.0));
        assert_eq!((row.walk, row.cache, row.in_flight), ("fast", "always", 512));
        assert_eq!((row.cache_entries, row.hit_rate), (64, 1.0));
        let off = Subject { cache: Caching::Off, ..subject() };
        assert_eq!(Row::of(&off, &laps, &course(5), MEMORY).unwrap().cache_entries, 0);
        let two = Row::of(&by_two(), &laps, &course(5), MEMORY).unwrap();
        assert_eq!((two.mpps, two.ns_per_packet), (20.0, 100.0), "two at once");
        assert_eq!(two.packets_per_lap, 2 * 5 * 4096);
    }

    #[test]
    fn laps_without_their_core_count_nowhere_and_are_counted() {
        let mut laps = vec![lap(100.0, 50.0, 0.99); 6];
        laps.extend([lap(900.0, 50.0, 0.9); 3]);
        let row = Row::of(&subject(), &laps, &course(1), MEMORY).unwrap();
        assert_eq!((row.laps, row.laps_discarded), (6, 3));
        assert_eq!((row.ns_per_packet, row.ns_max), (100.0, 100.0));
        let row = Row::of(&subject(), &laps[2..], &course(1), MEMORY).unwrap();
        assert_eq!((row.laps, row.laps_discarded), (7, 0), "too few were left");
        assert!(row.share_of_core < 0.96);
    }

    #[test]
    fn the_json_has_the_fields_that_scripts_read() {
        let times = StageTimes { ns: [2.0; Stage::ALL.len()], clock_ns: 1.0 };
        let laps = [LapFigures { stages: Some(times), ..lap(1.0, 1.0, 1.0) }];
        let mut rows = [Row::of(&subject(), &laps, &course(1), MEMORY).unwrap()];
        (rows[0].general_ratio, rows[0].general_spread) = (Some(0.5), Some(0.1));
        (rows[0].pairs, rows[0].instructions_callgrind) = (Some(7), Some(377.0));
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
            "walk",
            "cache",
            "cache_entries",
            "hit_rate",
            "fast_rate",
            "in_flight",
            "touch_ns",
            "yardstick_ns",
            "yardstick_ratio",
            "yardstick_ratio_spread",
            "general_ratio",
            "general_spread",
            "pairs",
            "instructions_callgrind",
        ] {
            assert!(row.iter().any(|found| found == key), "{key} is missing");
        }
        assert!(json["machine"]["is_reference"].is_boolean());
        let stages = json["rows"][0]["stages"].as_object().unwrap();
        assert_eq!(stages.len(), Stage::ALL.len());
        assert!(stages.contains_key("seal: cipher"), "{stages:?}");
        let backend = json["rows"][0]["backend"].as_str().unwrap();
        assert!(backend == BY_SIZE || BackendKind::from_name(backend).is_some(), "{backend}");
    }

    #[test]
    fn the_tables_say_what_they_show() {
        let times = StageTimes { ns: [2.0; Stage::ALL.len()], clock_ns: 1.5 };
        let lap = LapFigures { stages: Some(times), ..lap(31.25, 1.0, 1.0) };
        let rows = [subject(), by_two()];
        let rows = rows.map(|of| Row::of(&of, &[lap], &course(1), MEMORY).unwrap());
        let text = table(&rows);
        assert!(text.contains("aes-128-gcm") && text.contains("31.2") && text.contains("share"));
        for column in ["walk", "cache", "hits", "in flight", "yardstick", "touch", "callgrind"] {
            assert!(text.contains(column), "{column}: {text}");
        }
        assert!(text.contains("2.84"), "31.25 over 10 + 1: {text}");
        assert!(!table(&rows[..1]).contains("several workers"));
        let all = format!("{:.1}", 2.0 * Stage::ALL.len() as f64);
        let text = stages(&rows).unwrap();
        assert!(text.contains("seal: cipher") && text.contains(&all), "{text}");
        assert!(
            heading("esp", &Machine::look(None), "abc")
                .contains("in memory; on a copy-mode AF_XDP")
        );
    }
}
