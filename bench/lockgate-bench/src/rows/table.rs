//! The rows of `bench esp` as text.

use comfy_table::{CellAlignment, Table, presets};
use dataplane::stage::Stage;

use super::super::machine::Machine;
use super::super::memory::Distance;
use super::super::yardstick::{BEHIND_BYTES, FRONT_BYTES};
use super::{LEAST_SHARE_OF_CORE, Row};

/// Returns the lines above the table of a bench.
pub(in super::super) fn heading(bench: &str, machine: &Machine, commit: &str) -> String {
    format!(
        "bench {bench}, commit {commit}\n{machine}\n\
         in memory; on a copy-mode AF_XDP port the same core carries 7–10 Gbit/s"
    )
}

/// Formats the rows as an aligned table with an explanation of the columns.
pub(in super::super) fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "direction",
        "suite",
        "backend",
        "IP",
        "size",
        "workers",
        "walk",
        "by fast path",
        "cache",
        "hits",
        "in flight",
        "Mpps",
        "Gbit/s",
        "ns/packet",
        "± IQR",
        "best quartile",
        "÷ yardstick",
        "± IQR",
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
            row.walk.to_owned(),
            format!("{:.0} %", row.fast_rate * 100.0),
            row.cache.to_owned(),
            format!("{:.0} %", row.hit_rate * 100.0),
            row.in_flight.to_string(),
            format!("{:.2}", row.mpps),
            format!("{:.1}", row.gbps),
            format!("{:.1}", row.ns_per_packet),
            format!("{:.1} %", row.spread * 100.0),
            format!("{:.1}", row.ns_best_quartile),
            format!("{:.2}", row.yardstick_ratio),
            format!("{:.1} %", row.yardstick_ratio_spread * 100.0),
            format!("{:.0} %", row.share_of_core * 100.0),
            format!("{}-{}", row.laps + row.laps_discarded, row.laps_discarded),
        ]);
    }
    table.column_iter_mut().skip(3).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!("{table}\n{}\n\n{}", legend(rows), parts(rows))
}

/// Formats the rows of several SAs beside those of one; `None`: there are none.
pub(in super::super) fn by_sas(rows: &[Row]) -> Option<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let what = ["direction", "suite", "walk", "cache", "IP", "size", "in flight"];
    table.set_header(what.into_iter().chain(["SAs", "ns/packet", "÷ one SA", "± IQR"]));
    for row in rows {
        let (Some(ratio), Some(spread)) = (row.one_sa_ratio, row.one_sa_spread) else { continue };
        let what = [row.direction, row.suite, row.walk, row.cache].map(str::to_owned);
        let numbers = [row.family.into(), row.size, row.in_flight, row.sas].map(|n| n.to_string());
        let figures = [format!("{:.1}", row.ns_per_packet), format!("{ratio:.2}")];
        let spread = format!("{:.1} %", spread * 100.0);
        table.add_row(what.into_iter().chain(numbers).chain(figures).chain([spread]));
    }
    if table.is_empty() {
        return None;
    }
    table.column_iter_mut().skip(4).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Some(format!(
        "{table}\n\
         SAs: of a worker in the direction, each with a peer and a policy of its own; they \
         share the flows, which come in random order.\n\
         ÷ one SA: time of a lap over that of the lap of the same round with one SA, median of the \
         rounds. In the cipher's own time (above) one SA alone is used."
    ))
}

/// Formats the rows that are compared with plain packets beside those; `None`: there are none.
pub(in super::super) fn over_forward(rows: &[Row]) -> Option<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let what = ["direction", "plain", "walk", "cache", "IP", "size", "in flight"];
    table.set_header(what.into_iter().chain(["ns/packet", "÷ plain", "ns over it", "± IQR ns"]));
    for row in rows {
        let (Some(ratio), Some(ns)) = (row.forward_ratio, row.over_forward_ns) else { continue };
        let plain = if row.direction.starts_with("packet") { "bypass" } else { "forward" };
        let what = [row.direction, plain, row.walk, row.cache].map(str::to_owned);
        let numbers = [row.family.into(), row.size, row.in_flight].map(|n: usize| n.to_string());
        let iqr = row.over_forward_iqr_ns.unwrap_or(f64::NAN);
        let figures = [row.ns_per_packet, ratio, ns, iqr].map(|figure| format!("{figure:.2}"));
        table.add_row(what.into_iter().chain(numbers).chain(figures));
    }
    if table.is_empty() {
        return None;
    }
    table.column_iter_mut().skip(4).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Some(format!(
        "{table}\n\
         overlay: 1024 endpoints on 256 hosts of a VXLAN network without groups; each packet's \
         sender is looked up and checked, and its destination.\n\
         bypass: from a protected port to an unprotected one in clear; policies are asked, as in \
         packet mode.\n\
         packet-out, packet-in: for a card to seal, behind its header, and opened by a card, with \
         its tag. There is no card: it is the walk's time alone.\n\
         ÷ plain, ns over it: against such packets in the lap of the same round, median of the \
         rounds."
    ))
}

/// Formats the parts of each row's time, and the figures to compare them with.
fn parts(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let head = ["direction", "suite", "walk", "cache", "IP", "size", "in flight"];
    let parts = ["ns/packet", "cipher ns", "(near)", "own ns", "touch ns"];
    let compared = ["÷ yardstick", "instructions (callgrind)"];
    table.set_header(head.into_iter().chain(parts).chain(compared));
    for row in rows {
        let what = [row.direction, row.suite, row.walk, row.cache].map(str::to_owned);
        let numbers = [row.family.into(), row.size, row.in_flight].map(|n: usize| n.to_string());
        let times =
            [row.ns_per_packet, row.cipher_ns, row.cipher_near_ns, row.walk_ns, row.touch_ns];
        let times = times.map(|ns| format!("{ns:.1}"));
        let count = row.instructions_callgrind.map_or(String::new(), |count| format!("{count:.0}"));
        let ratio = format!("{:.2}", row.yardstick_ratio);
        table.add_row(what.into_iter().chain(numbers).chain(times).chain([ratio, count]));
    }
    table.column_iter_mut().skip(4).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    format!(
        "{table}\n\
         cipher ns: the cipher alone on the same packets; (near): on packets that the core's own \
         caches hold. own ns: ns/packet without cipher ns.\n\
         touch ns: a line of each header read, {} bytes written around the packet, and a \
         descriptor, for the same frames in the same order.\n\
         ÷ yardstick: ns/packet over touch ns + cipher ns of the same lap, median of the laps; it \
         compares machines, as ns do not.\n\
         instructions (callgrind): a packet's, of the committed table \
         bench/instructions/table.json, with the AVX2 forms; empty: not counted.",
        FRONT_BYTES + BEHIND_BYTES
    )
}

/// The meaning of the columns.
fn legend(rows: &[Row]) -> String {
    let first = rows.first().cloned().unwrap_or_default();
    let Row { packets_per_lap, workers, flows, frame_bytes, .. } = first;
    let packets = packets_per_lap / workers.max(1);
    let mut text = format!(
        "size, Gbit/s: inner IP packet. ns/packet: CPU time of a worker's thread, median of laps \
         of {packets} packets, {flows} flows, frames of {frame_bytes} bytes. in flight: frames \
         that hold packets at a time.\n\
         walk: fast, the fast path where it takes packets; general, the general walk alone. by \
         fast path: part of the packets that left by it.\n\
         cache: auto, the daemon's default, which searches where that costs no more; always; off. \
         hits: part of the packets that it answered;\nthe first pass of a lap makes the entries.\n\
         ± IQR: distance of the quartiles over the median. best quartile: a quarter of the laps \
         took less; others on the machine only ever add.\n\
         core: part of the time in which the thread had its core, from the laying out on.\n\
         laps: all of them, less those that count nowhere because others had the core for more \
         than {:.0} % of the time.",
        100.0 * (1.0 - LEAST_SHARE_OF_CORE)
    );
    let mut libraries: Vec<&str> =
        rows.iter().map(|row| &*row.library).filter(|name| *name != "none").collect();
    libraries.sort_unstable();
    libraries.dedup();
    if !libraries.is_empty() {
        text += &format!("\nbackends: {}.", libraries.join("; "));
    }
    if rows.iter().any(|row| row.workers > 1) {
        text += "\nseveral workers: each has a core, frames, flows and SAs of its own; they \
                 share the snapshot, and as cores of one machine\nits last cache, its memory and \
                 its heat: as many times one worker's Mpps is the most there can be. Mpps, Gbit/s: \
                 of all together.";
    }
    text
}

/// Describes the distance of memory in words.
pub(in super::super) fn memory(distances: &[Distance]) -> String {
    let of = |d: &Distance| format!("{} KiB {:.0} ns (least {:.0})", d.kib, d.ns, d.ns_min);
    let list: Vec<String> = distances.iter().map(of).collect();
    format!(
        "memory: a step from line to line of {}: where it\njumps, the cache ends that this core \
         had to itself during the run. Frames that lie behind it (--in-flight says how many there \
         are) cost that in every figure.",
        list.join(", ")
    )
}

/// Formats the stages next to the cipher alone; `None`: they were not timed.
pub(in super::super) fn stages(rows: &[Row]) -> Option<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let names = Stage::ALL.iter().map(|stage| stage.name());
    let head = ["direction", "suite", "walk", "cache", "IP", "size", "in flight"];
    let head = head.into_iter().chain(names);
    table.set_header(head.chain(["all", "cipher alone", "(clock)"]));
    for row in rows {
        let (Some(stages), Some(clock_ns)) = (&row.stages, row.stages_clock_ns) else { continue };
        let ns = |ns: f64| format!("{ns:.1}");
        let times = Stage::ALL.iter().map(|stage| ns(stages[stage.name()]));
        let what = [row.direction, row.suite, row.walk, row.cache].map(str::to_owned);
        let [family, size, in_flight] =
            [row.family.into(), row.size, row.in_flight].map(|number| number.to_string());
        let all = ns(stages.values().sum());
        let end = [all, ns(row.cipher_ns), ns(clock_ns)];
        table.add_row(what.into_iter().chain([family, size, in_flight]).chain(times).chain(end));
    }
    if table.is_empty() {
        return None;
    }
    table.column_iter_mut().skip(4).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Some(format!(
        "{table}\n\
         stages: ns a packet by the clock on the wall, from a pass of its own in every lap: of its \
         full batches the middle half by their total,\nmedian of the laps. What the looks at the \
         clock took, (clock), is taken off. A stage may still run while the next begins: a stage's \
         figure is its own\nonly to a few ns."
    ))
}
