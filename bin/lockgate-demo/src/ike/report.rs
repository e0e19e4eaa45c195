//! Reports the results about IKE, as a value that is printed as text or JSON.

use std::collections::BTreeMap;

use console::output::{Numbers, table};
use serde::Serialize;

use crate::report::{Check, TimeFigure, checks_text, drops_by_reason, times_text};

/// Sums over all scenes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Ike {
    /// CHILD_SAs that were established one after another.
    pub(super) children: u64,
    /// Changes of keys under streams: of CHILD_SAs and of IKE_SAs.
    pub(super) rekeys: u64,
    /// Packets for which the gateways asked charon for an SA.
    pub(super) acquires: u64,
    /// Packets that were lost where none may be.
    pub(super) lost: u64,
}

/// Cost of many CHILD_SAs for gateway a's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Cost {
    /// Memory of the daemon before and after, in KiB.
    pub(super) memory_before_kib: u64,
    pub(super) memory_after_kib: u64,
    /// CPU time of the workers, and of the daemon's other threads, for each CHILD_SA, beyond
    /// the time that the streams beside take.
    pub(super) worker_us: f64,
    pub(super) others_us: f64,
    /// Snapshots that the worker went over to for each CHILD_SA, and the time of one, in which it
    /// processes no packet.
    pub(super) snapshots: f64,
    pub(super) snapshot_us: f64,
}

/// A scene that was not played.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Skipped {
    pub(super) scene: &'static str,
    /// Reason.
    pub(super) why: String,
}

/// Packets that the captures of the wire saw while Lockgate was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct WireCounts {
    pub(super) esp: u64,
    /// ESP in UDP.
    pub(super) udp_esp: u64,
    pub(super) clear: u64,
}

/// Results of a demonstration.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct IkeReport {
    pub(super) demo: &'static str,
    pub(super) ok: bool,
    /// Scenes that were played, or skipped.
    pub(super) scenes: u32,
    pub(super) checks: Vec<Check>,
    pub(super) skipped: Vec<Skipped>,
    pub(super) ike: Ike,
    pub(super) cost: Option<Cost>,
    pub(super) times: Vec<TimeFigure>,
    pub(super) wire: WireCounts,
    pub(super) drops: BTreeMap<String, u64>,
    /// Imbalance of all ledgers; `None`: no daemon answered.
    pub(super) ledger_imbalance: Option<u64>,
}

impl IkeReport {
    /// Makes an empty report.
    pub(super) fn new() -> IkeReport {
        IkeReport { demo: "ike", ..IkeReport::default() }
    }

    /// Formats the report for a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = checks_text(&self.checks);
        let rows = self.skipped.iter().map(|it| vec![it.scene.to_owned(), it.why.clone()]);
        text += &table("SKIPPED", &["scene", "why"], rows, Numbers::NONE);
        text += &times_text(&self.times);
        let Ike { children, rekeys, acquires, lost } = self.ike;
        let row = [children, rekeys, acquires, lost].map(|number| number.to_string());
        let header = ["CHILD_SAs one after another", "changes of keys", "acquires", "lost"];
        text += &table("IKE", &header, [row.to_vec()], Numbers(0..=3));
        if let Some(cost) = self.cost {
            let Cost { memory_before_kib, memory_after_kib, worker_us, others_us, .. } = cost;
            let Cost { snapshots, snapshot_us, .. } = cost;
            text += &format!(
                "Gateway a with these CHILD_SAs: {memory_before_kib} KiB before, \
                 {memory_after_kib} KiB after; for each, beyond the streams, workers \
                 {worker_us:.0} µs, other threads {others_us:.0} µs; workers went over to \
                 {snapshots:.1} snapshots, {snapshot_us:.1} µs each\n\n"
            );
        }
        text += &drops_by_reason(|reason| self.drops.get(reason).copied());
        let WireCounts { esp, udp_esp, clear } = self.wire;
        text += &format!("On the wire: {esp} ESP, {udp_esp} ESP in UDP, {clear} in clear\n");
        if let Some(imbalance) = self.ledger_imbalance {
            text += &format!("Imbalance of all ledgers: {imbalance}\n");
        }
        text += match (self.ok, self.skipped.len()) {
            (false, _) => "NOT ALL CHECKS HOLD.\n",
            (true, 0) => "All checks hold.\n",
            (true, _) => "All checks hold, but SCENES WERE SKIPPED.\n",
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_has_the_sums_and_a_skipped_scene_is_seen_in_the_text() {
        let mut report = IkeReport { ok: true, ..IkeReport::new() };
        assert!(report.text().ends_with("All checks hold.\n"));
        report.skipped.push(Skipped { scene: "decrypted", why: "no tshark".into() });
        let text = report.text();
        assert!(text.contains("no tshark") && text.ends_with("SCENES WERE SKIPPED.\n"), "{text}");
        report.ike = Ike { children: 300, rekeys: 7, acquires: 2, lost: 0 };
        let json = serde_json::to_value(&report).unwrap();
        let expected = serde_json::json!({"children": 300, "rekeys": 7, "acquires": 2, "lost": 0});
        assert_eq!((&json["demo"], &json["ike"]), (&"ike".into(), &expected));
    }
}
