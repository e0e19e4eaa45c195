//! Reports the results about overlays, as a value that is printed as text or JSON.

use std::collections::BTreeMap;

use console::output::{Numbers, table};
use serde::Serialize;

use crate::report::{Check, TimeFigure, checks_text, drops_by_reason, times_text};

/// Packets of a set of tenants, by the tier that answered them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SetRow {
    /// The addresses of the tenants.
    pub(super) set: String,
    pub(super) why: &'static str,
    /// Packets of the pings that the kernel answered, and that went to the workers.
    pub(super) kernel: u64,
    pub(super) workers: u64,
    /// Round trips, in microseconds. Never a check: machines differ and are shared.
    pub(super) ping_p50_us: Option<f64>,
    pub(super) ping_p99_us: Option<f64>,
    /// UDP packets that were sent while the other set was sending, too, and those that arrived.
    pub(super) udp_sent: u64,
    pub(super) udp_arrived: u64,
}

/// Many endpoints over a kernel's table with room for few.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct FullReport {
    pub(super) endpoints: u64,
    pub(super) reached: u64,
    /// Endpoints in the kernel, and those that there is room for.
    pub(super) resident: u64,
    pub(super) max: u64,
    /// The part of the table that is in use.
    pub(super) pressure: f64,
    pub(super) kernel: u64,
    pub(super) workers: u64,
    pub(super) dropped: u64,
}

/// Packets that the wing sent after the policy was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct WireReport {
    pub(super) esp: u64,
    pub(super) clear: u64,
}

/// Results of a demonstration.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OverlayReport {
    pub(super) demo: &'static str,
    pub(super) ok: bool,
    pub(super) checks: Vec<Check>,
    pub(super) sets: Vec<SetRow>,
    pub(super) full: FullReport,
    pub(super) wire: WireReport,
    pub(super) times: Vec<TimeFigure>,
    pub(super) drops: BTreeMap<String, u64>,
    /// Imbalance of all ledgers; `None`: no daemon answered.
    pub(super) ledger_imbalance: Option<u64>,
}

impl OverlayReport {
    /// Makes an empty report.
    pub(super) fn new() -> OverlayReport {
        OverlayReport {
            demo: "overlay",
            ok: false,
            checks: Vec::new(),
            sets: Vec::new(),
            full: FullReport::default(),
            wire: WireReport::default(),
            times: Vec::new(),
            drops: BTreeMap::new(),
            ledger_imbalance: None,
        }
    }

    /// Formats the report for a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = checks_text(&self.checks);
        let rows = self.sets.iter().map(SetRow::row);
        let header = ["tenants", "", "kernel", "workers", "ping p50", "p99", "UDP at once"];
        text += &table("Packets of pings by who answered them", &header, rows, Numbers(2..=6));
        let FullReport { endpoints, reached, resident, max, pressure, .. } = self.full;
        let FullReport { kernel, workers, dropped, .. } = self.full;
        text += &format!(
            "Of {endpoints} endpoints {reached} answered: {kernel} packets in the kernel, \
             {workers} by the workers, {dropped} dropped\nThe kernel's table: {resident} of {max} \
             endpoints, pressure {pressure:.2}\n\n"
        );
        text += &times_text(&self.times);
        text += &drops_by_reason(|reason| self.drops.get(reason).copied());
        let WireReport { esp, clear } = self.wire;
        text += &format!("From the wing under the PROTECT policy: {esp} ESP, {clear} in clear\n");
        text += &match self.ledger_imbalance {
            Some(packets) => format!("Ledgers: out of balance by {packets}\n"),
            None => "Ledgers: unknown, no daemon could be asked\n".to_owned(),
        };
        text += match self.ok {
            true => "All checks hold.\n",
            false => "NOT ALL CHECKS HOLD.\n",
        };
        text
    }
}

impl SetRow {
    fn row(&self) -> Vec<String> {
        let SetRow { set, why, kernel, workers, udp_sent, udp_arrived, .. } = self;
        let time = |time: Option<f64>| time.map_or("-".to_owned(), |us| format!("{us:.0} µs"));
        vec![
            set.clone(),
            (*why).to_owned(),
            kernel.to_string(),
            workers.to_string(),
            time(self.ping_p50_us),
            time(self.ping_p99_us),
            format!("{udp_arrived} of {udp_sent}"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn set() -> SetRow {
        SetRow {
            set: "10.0.0.0/24".to_owned(),
            why: "no group: the kernel's",
            kernel: 1000,
            workers: 2,
            ping_p50_us: Some(50.0),
            ping_p99_us: None,
            udp_sent: 400,
            udp_arrived: 399,
        }
    }

    #[test]
    fn the_json_has_exactly_its_fields() {
        let mut report = OverlayReport::new();
        report.sets.push(set());
        report.times.push(TimeFigure::new("one", None));
        let json = serde_json::to_value(&report).unwrap();
        let keys = |value: &serde_json::Value| {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort_unstable();
            keys.join(" ")
        };
        assert_eq!(keys(&json), "checks demo drops full ledger_imbalance ok sets times wire");
        assert_eq!(
            keys(&json["sets"][0]),
            "kernel ping_p50_us ping_p99_us set udp_arrived udp_sent why workers"
        );
        assert_eq!(
            keys(&json["full"]),
            "dropped endpoints kernel max pressure reached resident workers"
        );
        assert_eq!(
            (keys(&json["wire"]), keys(&json["times"][0])),
            ("clear esp".into(), "ms name".into())
        );
    }

    #[test]
    fn the_text_shows_who_answered() {
        let mut report = OverlayReport::new();
        report.sets.push(set());
        report.times.push(TimeFigure::new("restart", Some(Duration::from_millis(700))));
        report.full = FullReport { pressure: 1.0, ..FullReport::default() };
        let text = report.text();
        for words in ["10.0.0.0/24", "50 µs", "399 of 400", "pressure 1.00", "700 ms", "NOT"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
