//! Reports the results of the two gateways, as a value that is printed as text or JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use console::output::{Numbers, table};
use serde::Serialize;

use crate::report::{Check, checks_text, drops_by_reason};

/// Characters of the longest bar of the ladder.
const BAR: u64 = 44;

/// Round trips in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct PingTimes {
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}

/// UDP at a bounded rate.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct UdpFigures {
    pub(super) sent_pps: Option<f64>,
    /// Part that was lost, 0 to 1.
    pub(super) loss: Option<f64>,
}

/// Packets that the captures of the wire saw while Lockgate was there.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct WireCounts {
    pub(super) esp: u64,
    pub(super) clear: u64,
}

/// Packets by the tier that decided them, from the cheapest to the authority.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct TierCounts {
    pub(super) device: u64,
    pub(super) kernel: u64,
    pub(super) cache: u64,
    pub(super) classifier: u64,
}

impl TierCounts {
    /// Reads counters by name; a missing name counts as 0.
    pub(super) fn from_names(counts: &BTreeMap<String, u64>) -> TierCounts {
        let count = |tier: &str| counts.get(tier).copied().unwrap_or(0);
        TierCounts {
            device: count("device"),
            kernel: count("kernel"),
            cache: count("cache"),
            classifier: count("classifier"),
        }
    }
}

/// Another implementation in the same namespaces.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PeerFigures {
    pub(super) name: &'static str,
    pub(super) ping_us: PingTimes,
    pub(super) tcp_gbps: Option<f64>,
}

/// A measured time and its target. Never a check: machines differ and are shared.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TimeFigure {
    pub(super) name: &'static str,
    /// The slowest that was seen; `None`: it did not happen.
    pub(super) slowest_ms: Option<u64>,
    pub(super) target_ms: u64,
}

impl TimeFigure {
    /// Makes a time in whole milliseconds.
    pub(super) fn new(
        name: &'static str,
        slowest: Option<Duration>,
        target: Duration,
    ) -> TimeFigure {
        let milliseconds = |time: Duration| time.as_millis() as u64;
        TimeFigure { name, slowest_ms: slowest.map(milliseconds), target_ms: milliseconds(target) }
    }

    fn row(&self) -> Vec<String> {
        let (slowest, target) = (self.slowest_ms, self.target_ms);
        vec![
            self.name.to_owned(),
            slowest.map_or("never".to_owned(), |slowest| format!("{slowest} ms")),
            format!("{target} ms"),
            match slowest.is_some_and(|slowest| slowest <= target) {
                true => "reached".to_owned(),
                false => "missed (no failure: the machine may be busy)".to_owned(),
            },
        ]
    }
}

/// Results of a demonstration.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GatewaysReport {
    pub(super) demo: &'static str,
    pub(super) ok: bool,
    pub(super) checks: Vec<Check>,
    /// Times and their targets.
    pub(super) times: Vec<TimeFigure>,
    pub(super) ping_us: PingTimes,
    pub(super) tcp_gbps: Option<f64>,
    pub(super) udp: UdpFigures,
    pub(super) wire: WireCounts,
    pub(super) tiers: TierCounts,
    pub(super) drops: BTreeMap<String, u64>,
    /// Imbalance of all ledgers; `None`: no daemon answered.
    pub(super) ledger_imbalance: Option<u64>,
    pub(super) xdp_mode: Option<String>,
    pub(super) workers: Option<usize>,
    /// Figures of the other implementation, if the demonstration compares with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<PeerFigures>,
}

impl GatewaysReport {
    /// Makes an empty report.
    pub(super) fn new() -> GatewaysReport {
        GatewaysReport {
            demo: "gateways",
            ok: false,
            checks: Vec::new(),
            times: Vec::new(),
            ping_us: PingTimes::default(),
            tcp_gbps: None,
            udp: UdpFigures::default(),
            wire: WireCounts::default(),
            tiers: TierCounts::default(),
            drops: BTreeMap::new(),
            ledger_imbalance: None,
            xdp_mode: None,
            workers: None,
            peer: None,
        }
    }

    /// Formats the report for a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = checks_text(&self.checks);
        text +=
            &table("Figures", &["", "p50", "p99", "TCP", "UDP"], self.figures(), Numbers(1..=4));
        let times = self.times.iter().map(TimeFigure::row);
        text += &table("Times", &["", "slowest", "target", ""], times, Numbers(1..=2));
        text += &self.ladder();
        text += &drops_by_reason(|reason| self.drops.get(reason).copied());
        let WireCounts { esp, clear } = self.wire;
        text += &format!("On the wire: {esp} ESP packets captured, {clear} in clear\n");
        text += &match self.ledger_imbalance {
            Some(packets) => format!("Ledgers of both gateways: out of balance by {packets}\n"),
            None => "Ledgers: unknown, no daemon could be asked\n".to_owned(),
        };
        let workers = self.workers.map_or("?".to_owned(), |workers| workers.to_string());
        text += &format!(
            "XDP: {}, {workers} worker(s) a gateway\n",
            self.xdp_mode.as_deref().unwrap_or("unknown")
        );
        text += match self.ok {
            true => "All checks hold.\n",
            false => "NOT ALL CHECKS HOLD.\n",
        };
        text
    }

    fn figures(&self) -> Vec<Vec<String>> {
        let time = |time: Option<f64>| time.map_or("-".into(), |us| format!("{us:.0} µs"));
        let rate = |rate: Option<f64>| rate.map_or("-".into(), |gbps| format!("{gbps:.2} Gbit/s"));
        let udp = match (self.udp.sent_pps, self.udp.loss) {
            (Some(pps), Some(loss)) => format!("{pps:.0} packets/s, {:.2} % lost", loss * 100.0),
            _ => "-".to_owned(),
        };
        let row = |name: &str, ping: PingTimes, tcp, udp: String| {
            vec![name.to_owned(), time(ping.p50), time(ping.p99), rate(tcp), udp]
        };
        let mut rows = vec![row("Lockgate", self.ping_us, self.tcp_gbps, udp)];
        if let Some(peer) = &self.peer {
            rows.push(row(peer.name, peer.ping_us, peer.tcp_gbps, "-".into()));
            let ratio = |ours: Option<f64>, theirs: Option<f64>| match (ours, theirs) {
                (Some(ours), Some(theirs)) if theirs > 0.0 => format!("{:.2} ×", ours / theirs),
                _ => "-".to_owned(),
            };
            rows.push(vec![
                format!("Lockgate / {}", peer.name),
                ratio(self.ping_us.p50, peer.ping_us.p50),
                ratio(self.ping_us.p99, peer.ping_us.p99),
                ratio(self.tcp_gbps, peer.tcp_gbps),
                "-".into(),
            ]);
        }
        rows
    }

    /// Packets by the tier that decided them, as bars: a packet climbs only as far as it must.
    fn ladder(&self) -> String {
        let TierCounts { device, kernel, cache, classifier } = self.tiers;
        let tiers =
            [("device", device), ("kernel", kernel), ("cache", cache), ("classifier", classifier)];
        let most = tiers.iter().map(|&(_, packets)| packets).max().unwrap_or(0).max(1);
        let rows = tiers.iter().map(|&(tier, packets)| {
            // Something is never shown as nothing.
            let length = (packets * BAR).div_ceil(most);
            vec![tier.to_owned(), packets.to_string(), "█".repeat(length as usize)]
        });
        let title = "The ladder: packets by the tier that decided them";
        table(title, &["tier", "packets", ""], rows, Numbers(1..=1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(value: &serde_json::Value) -> Vec<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn the_json_has_exactly_its_fields() {
        let mut report = GatewaysReport::new();
        report.checks.push(Check { name: "one", ok: true, detail: "found".into() });
        let json = serde_json::to_value(&report).unwrap();
        let mut expected = vec![
            "demo",
            "ok",
            "checks",
            "times",
            "ping_us",
            "tcp_gbps",
            "udp",
            "wire",
            "tiers",
            "drops",
            "ledger_imbalance",
            "xdp_mode",
            "workers",
        ];
        let mut found = keys(&json);
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
        let inner = |name: &str| {
            let mut found = keys(&json[name]);
            found.sort_unstable();
            found.join(" ")
        };
        assert_eq!(inner("ping_us"), "p50 p99");
        assert_eq!(inner("udp"), "loss sent_pps");
        assert_eq!(inner("wire"), "clear esp");
        assert_eq!(inner("tiers"), "cache classifier device kernel");
        let mut check = keys(&json["checks"][0]);
        check.sort_unstable();
        assert_eq!(check, ["detail", "name", "ok"]);
    }

    #[test]
    fn the_longest_bar_is_the_tier_with_most_packets_and_one_packet_is_seen() {
        let mut report = GatewaysReport::new();
        report.tiers = TierCounts { kernel: 1, classifier: 1_000_000, ..TierCounts::default() };
        let text = report.ladder();
        let bar = |tier: &str| {
            let line = text.lines().find(|line| line.contains(tier)).unwrap();
            line.matches('█').count()
        };
        assert_eq!((bar("device"), bar("kernel"), bar("classifier")), (0, 1, BAR as usize));
    }

    #[test]
    fn a_time_beyond_its_target_is_shown_and_is_no_failed_check() {
        let mut report = GatewaysReport::new();
        report.ok = true;
        let [late, target] = [3, 1].map(Duration::from_secs);
        report.times.push(TimeFigure::new("restart", Some(late), target));
        let text = report.text();
        let line = text.lines().find(|line| line.contains("restart")).unwrap();
        assert!(line.contains("3000 ms") && line.contains("1000 ms"), "{line}");
        assert!(line.contains("missed"), "{line}");
        assert!(text.ends_with("All checks hold.\n"), "{text}");
    }

    #[test]
    fn figures_stand_beside_those_of_the_peer() {
        let mut report = GatewaysReport::new();
        report.ping_us = PingTimes { p50: Some(40.0), p99: Some(80.0) };
        report.tcp_gbps = Some(1.5);
        report.peer = Some(PeerFigures {
            name: "wireguard-go",
            ping_us: PingTimes { p50: Some(160.0), p99: None },
            tcp_gbps: Some(0.75),
        });
        let text = report.text();
        assert!(text.contains("0.25 ×") && text.contains("2.00 ×"), "{text}");
        assert!(text.contains("NOT ALL CHECKS HOLD"), "{text}");
    }
}
