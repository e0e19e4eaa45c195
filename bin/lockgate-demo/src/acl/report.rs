//! Reports the results about security groups, as a value that is printed as text or JSON.

use std::collections::BTreeMap;

use console::output::{Numbers, table};
use serde::Serialize;
use serde_json::Value;

use crate::report::{Check, checks_text, drops_by_reason};

/// A counter of Lockgate beside the packets that hosts sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct CounterRow {
    /// Name of the check that compares them.
    pub(super) check: &'static str,
    /// A rule, the last rule of a port's side, or a drop reason.
    pub(super) counter: String,
    pub(super) counted: u64,
    pub(super) sent: u64,
}

/// Figures with a number of rules. Never a check: machines differ and are shared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Rate {
    /// `None`: no groups.
    pub(super) rules: Option<u32>,
    /// "none", "stateless", or "stateful": the last rule reflects.
    pub(super) kind: &'static str,
    /// The median of the rounds.
    pub(super) tcp_gbps: f64,
    /// The slowest and the fastest round.
    pub(super) tcp_gbps_range: [f64; 2],
    pub(super) ping_p50_us: Option<f64>,
}

/// A flood of SYNs beside an established stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct FloodReport {
    /// SYNs.
    pub(super) sent: u64,
    pub(super) arrived: u64,
    /// As Lockgate counts them.
    pub(super) refused: u64,
    /// Packets of the stream.
    pub(super) stream_sent: u64,
    pub(super) stream_arrived: u64,
    /// Rate of the stream. Never a check: machines differ and are shared.
    pub(super) stream_mbps: f64,
}

impl FloodReport {
    /// Formats it for a check.
    pub(super) fn text(&self) -> String {
        let FloodReport { sent, arrived, refused, stream_sent, stream_arrived, stream_mbps } = self;
        format!(
            "{sent} SYNs, {refused} refused, {arrived} arrived; of the stream beside it \
             {stream_arrived} of {stream_sent} packets arrived, {stream_mbps:.1} Mbit/s"
        )
    }
}

/// A table of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct ConnectionsReport {
    pub(super) max: u64,
    pub(super) live: u64,
    pub(super) half_open: u64,
    pub(super) half_open_max: u64,
    /// Connections that gave way to others.
    pub(super) replaced: u64,
    /// By all bounds together.
    pub(super) refused: u64,
}

impl ConnectionsReport {
    /// Reads what `lockgate show connection --json` says of the table.
    pub(super) fn of(table: &Value) -> ConnectionsReport {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let refused = table["refused"].as_array().map(Vec::as_slice).unwrap_or_default();
        ConnectionsReport {
            max: number(&table["max"]),
            live: number(&table["live"]),
            half_open: number(&table["half_open"]),
            half_open_max: number(&table["half_open_max"]),
            replaced: number(&table["replaced"]),
            refused: refused.iter().map(|bound| number(&bound["count"])).sum(),
        }
    }
}

/// Results of a demonstration.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AclReport {
    pub(super) demo: &'static str,
    pub(super) ok: bool,
    /// The kinds of rules that were shown.
    pub(super) rules: &'static str,
    /// Scenes that were played.
    pub(super) scenes: u32,
    pub(super) checks: Vec<Check>,
    pub(super) counters: Vec<CounterRow>,
    pub(super) rates: Vec<Rate>,
    /// The table of connections of the first gateway in the flood.
    pub(super) connections: ConnectionsReport,
    pub(super) flood: FloodReport,
    /// Drops of both gateways.
    pub(super) drops: BTreeMap<String, u64>,
    /// Imbalance of all ledgers; `None`: no daemon answered.
    pub(super) ledger_imbalance: Option<u64>,
}

impl AclReport {
    /// Makes an empty report.
    pub(super) fn new() -> AclReport {
        AclReport {
            demo: "acl",
            ok: false,
            rules: "stateless and stateful",
            scenes: 0,
            checks: Vec::new(),
            counters: Vec::new(),
            rates: Vec::new(),
            connections: ConnectionsReport::default(),
            flood: FloodReport::default(),
            drops: BTreeMap::new(),
            ledger_imbalance: None,
        }
    }

    /// Formats the report for a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = checks_text(&self.checks);
        if !self.rates.is_empty() {
            let rows = self.rates.iter().map(Rate::row);
            text += &table(
                "Figures by the rules of lan; stateful: the last reflects (medians; no check)",
                &["rules of lan (in)", "TCP", "rounds", "ping p50"],
                rows,
                Numbers(1..=3),
            );
        }
        text += &drops_by_reason(|reason| self.drops.get(reason).copied());
        text += &match self.ledger_imbalance {
            Some(packets) => format!("Ledgers: out of balance by {packets}\n"),
            None => "Ledgers: unknown, no daemon could be asked\n".to_owned(),
        };
        let ConnectionsReport { max, live, half_open, half_open_max, replaced, refused } =
            self.connections;
        text += &format!(
            "Connections in the flood: {live} of {max}, half-open {half_open} of {half_open_max}, \
             {replaced} gave way, {refused} refused\n"
        );
        text += match self.ok {
            true => "All checks hold.\n",
            false => "NOT ALL CHECKS HOLD.\n",
        };
        text
    }
}

impl Rate {
    fn row(&self) -> Vec<String> {
        let rules = match self.rules {
            None => "no groups".to_owned(),
            Some(rules) => format!("{rules}, {}", self.kind),
        };
        let ping = self.ping_p50_us.map_or("-".to_owned(), |us| format!("{us:.0} µs"));
        let [slowest, fastest] = self.tcp_gbps_range;
        let rounds = format!("{slowest:.2} to {fastest:.2}");
        vec![rules, format!("{:.2} Gbit/s", self.tcp_gbps), rounds, ping]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(rules: Option<u32>) -> Rate {
        let kind = rules.map_or("none", |_| "stateful");
        Rate { rules, kind, tcp_gbps: 1.25, tcp_gbps_range: [1.0, 1.5], ping_p50_us: Some(50.0) }
    }

    #[test]
    fn the_json_has_exactly_its_fields() {
        let mut report = AclReport::new();
        report.rates.push(rate(None));
        let (check, counter) = ("one", "web/http".to_owned());
        report.counters.push(CounterRow { check, counter, counted: 1, sent: 1 });
        let json = serde_json::to_value(&report).unwrap();
        let keys = |value: &serde_json::Value| {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort_unstable();
            keys.join(" ")
        };
        assert_eq!(
            keys(&json),
            "checks connections counters demo drops flood ledger_imbalance ok rates rules scenes"
        );
        assert_eq!(keys(&json["rates"][0]), "kind ping_p50_us rules tcp_gbps tcp_gbps_range");
        assert_eq!(
            keys(&json["flood"]),
            "arrived refused sent stream_arrived stream_mbps stream_sent"
        );
        assert_eq!(keys(&json["counters"][0]), "check counted counter sent");
        assert_eq!(json["rates"][0]["rules"], serde_json::Value::Null);
    }

    #[test]
    fn the_text_shows_figures_and_connections() {
        let mut report = AclReport::new();
        assert!(!report.text().contains("Figures"), "no figures, no table");
        report.rates.push(rate(Some(1000)));
        let text = report.text();
        for words in ["half-open 0 of 0", "1000, stateful", "1.25 Gbit/s", "1.00 to 1.50", "NOT"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
