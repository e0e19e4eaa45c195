//! Compares the walk's times with their targets: on the processor that they are for, and on no
//! other. Elsewhere the ratios to the yardstick of the same run say how the walk does.

use comfy_table::{CellAlignment, Table, presets};
use ipsec::Suite;
use ipsec::cipher::BackendKind;

use super::machine::Machine;
use super::rows::Row;
use super::subject::{Caching, WalkKind};

/// Time a packet that a row on one core is to take at most, ns; `None`: no target is set for it.
///
/// AES-128-GCM by ipsec-mb, by its version; forwarding of the smallest packets.
pub(super) fn target(row: &Row, ipsec_mb: Option<&str>) -> Option<f64> {
    if row.workers != 1
        || row.sas != 1
        || row.walk != WalkKind::Fast.name()
        || row.cache == Caching::Off.name()
    {
        return None;
    }
    if row.direction == "forward" {
        return (60..=64).contains(&row.size).then_some(15.0);
    }
    if row.suite != Suite::Aes128Gcm.name() || row.backend != BackendKind::IpsecMb.name() {
        return None;
    }
    let is_first = ipsec_mb?.starts_with("1.");
    match (row.direction, row.size) {
        ("out", 64) => Some(if is_first { 45.0 } else { 35.0 }),
        ("in", 64) => Some(if is_first { 50.0 } else { 40.0 }),
        ("out", 1420) => Some(108.0),
        ("in", 1420) => Some(112.0),
        _ => None,
    }
}

/// Compares a time with its target, in words.
fn verdict(row: &Row, target: f64) -> String {
    let over = |ns: f64| {
        let (by, part) = (ns - target, 100.0 * (ns / target - 1.0));
        format!("missed by {by:.1} ns ({part:.0} %)")
    };
    match (row.ns_per_packet <= target, row.ns_best_quartile <= target) {
        (true, _) => "reached".into(),
        (false, true) => format!("{}; its best quartile reaches it", over(row.ns_per_packet)),
        (false, false) => {
            format!("{}; best quartile: {}", over(row.ns_per_packet), over(row.ns_best_quartile))
        }
    }
}

/// A table of the rows that have a target; `None`: none has, or they are for another processor.
pub(super) fn table(rows: &[Row], machine: &Machine) -> Option<String> {
    if !machine.is_reference {
        return None;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["target", "IP", "size", "at most ns", "ns/packet", "best quartile", ""]);
    for row in rows {
        let Some(target) = row.target_ns else { continue };
        table.add_row([
            if row.direction == "forward" {
                "forward".to_owned()
            } else {
                format!("{} {}", row.suite, row.direction)
            },
            row.family.to_string(),
            row.size.to_string(),
            format!("{target:.0}"),
            format!("{:.1}", row.ns_per_packet),
            format!("{:.1}", row.ns_best_quartile),
            verdict(row, target),
        ]);
    }
    if table.is_empty() {
        return None;
    }
    table
        .column_iter_mut()
        .skip(1)
        .take(5)
        .for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Some(format!("{table}\ntargets are for one core of an AMD Zen 5, the fast path and its cache"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(suite: &'static str, direction: &'static str, size: usize) -> Row {
        let (walk, cache, backend) = ("fast", "auto", "ipsec-mb");
        Row { suite, direction, size, backend, walk, cache, workers: 1, sas: 1, ..Row::default() }
    }

    #[test]
    fn targets_are_those_of_one_core_and_the_library() {
        let of = |row: Row, version| target(&row, version);
        let gcm = "aes-128-gcm";
        assert_eq!(of(row(gcm, "out", 64), Some("1.3.0")), Some(45.0));
        assert_eq!(of(row(gcm, "in", 64), Some("2.0.1")), Some(40.0));
        assert_eq!(of(row(gcm, "out", 1420), Some("1.3.0")), Some(108.0));
        assert_eq!(of(row(gcm, "in", 1420), Some("2.0.1")), Some(112.0));
        assert_eq!(of(row("none", "forward", 60), None), Some(15.0));
        assert_eq!(of(row("none", "forward", 1420), None), None);
        assert_eq!(of(row("aes-256-gcm", "out", 64), Some("1.3.0")), None);
        assert_eq!(of(Row { backend: "aws-lc-rs", ..row(gcm, "out", 64) }, Some("1.3.0")), None);
        assert_eq!(of(Row { workers: 2, ..row(gcm, "out", 64) }, Some("1.3.0")), None);
        assert_eq!(of(Row { walk: "general", ..row(gcm, "out", 64) }, Some("1.3.0")), None);
        assert_eq!(of(Row { cache: "off", ..row(gcm, "out", 64) }, Some("1.3.0")), None);
    }

    #[test]
    fn what_is_missed_is_said_with_how_much() {
        let with = |ns_per_packet, ns_best_quartile| {
            let row = row("aes-128-gcm", "out", 64);
            verdict(&Row { ns_per_packet, ns_best_quartile, ..row }, 50.0)
        };
        assert_eq!(with(50.0, 40.0), "reached");
        assert_eq!(with(55.0, 50.0), "missed by 5.0 ns (10 %); its best quartile reaches it");
        let both = with(75.0, 60.0);
        assert_eq!(both, "missed by 25.0 ns (50 %); best quartile: missed by 10.0 ns (20 %)");
    }

    #[test]
    fn only_rows_with_a_target_are_shown_and_none_on_another_processor() {
        let mut machine = Machine::look(None);
        machine.is_reference = true;
        let mut shown = row("aes-128-gcm", "out", 64);
        assert!(table(std::slice::from_ref(&shown), &machine).is_none());
        (shown.target_ns, shown.ns_per_packet) = (Some(45.0), 50.0);
        let text = table(std::slice::from_ref(&shown), &machine).unwrap();
        assert!(text.contains("aes-128-gcm out") && text.contains("missed by"), "{text}");
        machine.is_reference = false;
        assert_eq!(table(&[shown], &machine), None);
    }
}
