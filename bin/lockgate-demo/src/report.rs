//! Reports the results of a demonstration, as a value that is printed as text or JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use console::output::{Numbers, table};
use dataplane::DropReason;
use replay::{DropLine, LedgerLine, Report, drops_text, ledger_text};
use serde::Serialize;

use super::compare::Wire;

/// A condition that must hold.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) ok: bool,
    /// The result of the check.
    pub(crate) detail: String,
}

/// A time that was taken; never a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TimeFigure {
    pub(crate) name: &'static str,
    pub(crate) ms: Option<u64>,
}

impl TimeFigure {
    pub(crate) fn new(name: &'static str, took: Option<Duration>) -> TimeFigure {
        TimeFigure { name, ms: took.map(|took| took.as_millis() as u64) }
    }
}

/// Formats times for a terminal.
pub(crate) fn times_text(times: &[TimeFigure]) -> String {
    let time = |ms: Option<u64>| ms.map_or("never".to_owned(), |ms| format!("{ms} ms"));
    let rows = times.iter().map(|it| vec![it.name.to_owned(), time(it.ms)]);
    table("Times (no check)", &["", "took"], rows, Numbers(1..=1))
}

/// Formats checks for a terminal.
pub(crate) fn checks_text(checks: &[Check]) -> String {
    let rows = checks.iter().map(|check| {
        let verdict = if check.ok { "ok" } else { "FAILED" };
        vec![verdict.into(), check.name.into(), check.detail.clone()]
    });
    table("Checks", &["", "what", "found"], rows, Numbers::NONE)
}

/// Formats the drops of the reasons that have a count, with their help.
pub(crate) fn drops_by_reason(count: impl Fn(&str) -> Option<u64>) -> String {
    let lines = DropReason::ALL.iter().filter_map(|reason| {
        let packets = count(reason.name())?;
        Some(DropLine { reason: reason.name(), packets, help: reason.help() })
    });
    drops_text(&lines.collect::<Vec<_>>())
}

/// Packets on the unprotected link.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct WireCounts {
    pub(crate) esp: u64,
    pub(crate) bypassed: u64,
    pub(crate) clear: u64,
}

/// The results of a demonstration.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DemoReport {
    pub(crate) demo: &'static str,
    pub(crate) ok: bool,
    pub(crate) rounds: u64,
    pub(crate) checks: Vec<Check>,
    pub(crate) wire: WireCounts,
    /// Decisions by the tier that made them.
    pub(crate) tiers: BTreeMap<&'static str, u64>,
    /// Drops by reason, over all gateways.
    pub(crate) drops: BTreeMap<&'static str, u64>,
    pub(crate) ledger_imbalance: i64,
    /// One line per gateway and replay.
    #[serde(skip)]
    pub(crate) ledger: Vec<LedgerLine>,
}

impl DemoReport {
    /// Sums the results of the gateways' replays (each with a name) and of the checks of a round.
    pub(crate) fn new(
        demo: &'static str,
        rounds: u64,
        checks: Vec<Check>,
        wire: Wire,
        reports: &[(&'static str, &Report)],
    ) -> DemoReport {
        let (mut drops, mut tiers, mut ledger) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let mut ledger_imbalance = 0;
        for (name, report) in reports {
            for line in &report.drops {
                *drops.entry(line.reason).or_default() += line.packets;
            }
            for line in &report.tiers {
                *tiers.entry(line.tier).or_default() += line.decisions;
            }
            ledger_imbalance += report.ledger.iter().map(|line| line.imbalance.abs()).sum::<i64>();
            let total = report.ledger.last().cloned();
            ledger.extend(total.map(|line| LedgerLine { port: (*name).to_owned(), ..line }));
        }
        DemoReport {
            demo,
            ok: checks.iter().all(|check| check.ok),
            rounds,
            checks,
            wire: WireCounts { esp: wire.esp, bypassed: wire.bypassed, clear: wire.clear },
            tiers,
            drops,
            ledger_imbalance,
            ledger,
        }
    }

    /// Formats the report for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = checks_text(&self.checks);
        let tiers = self.tiers.iter().map(|(tier, count)| vec![(*tier).into(), count.to_string()]);
        text += &table("Decisions by tier", &["tier", "decisions"], tiers, Numbers(1..=1));
        text += &drops_by_reason(|reason| self.drops.get(reason).copied());
        text += &ledger_text("replay", &self.ledger);
        let WireCounts { esp, bypassed, clear } = self.wire;
        text += &format!(
            "On the unprotected link: {esp} ESP, {bypassed} in clear by policy, {clear} in clear \
             otherwise\n",
        );
        text += match self.ok {
            true => "All checks hold",
            false => "NOT ALL CHECKS HOLD",
        };
        match self.rounds {
            1 => text + ".\n",
            rounds => text + &format!(" in round {rounds}; the figures are of that round.\n"),
        }
    }
}
