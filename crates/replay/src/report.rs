//! Reports the result of a replay, as a value that is printed as tables or JSON.

use std::path::PathBuf;

use config::mac_text;
use console::output::{Numbers, counted, table};
use dataplane::counters::Volume;
use dataplane::{DropReason, Ledger, PortId, SetIndex, Snapshot};
use ipsec::SaId;
use policy::{Action, PolicyIndex};
use serde::Serialize;

use super::KeyFiles;
use super::engine::Outcome;
use super::files::OutputFile;
use control::set_of;

/// The verdict "hold" in a table, so that the drops add up.
const HELD: &str = "hold (dropped: no_neighbour)";

/// The result of a replay.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub(crate) inputs: Vec<Read>,
    pub(crate) outputs: Vec<OutputFile>,
    pub(crate) keys: Option<KeyFiles>,
    pub(crate) verdicts: Vec<VerdictLine>,
    pub(crate) policies: Vec<PolicyLine>,
    pub(crate) sas: Vec<SaLine>,
    /// One line per reason that something was dropped for.
    pub drops: Vec<DropLine>,
    /// One line per port, one for frames of no port if there were any, then the total.
    pub ledger: Vec<LedgerLine>,
    /// The packets too many or too few, over all ports; 0 unless a packet was lost or made up.
    pub ledger_imbalance: i64,
    /// Policy lookups by the tier that answered them.
    pub tiers: Vec<TierLine>,
    /// Warnings to read before believing the rest.
    pub(crate) warnings: Vec<String>,
}

/// An input.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Read {
    pub(crate) port: String,
    pub(crate) file: PathBuf,
    pub(crate) packets: u64,
    /// Packets of which the capture held only the beginning.
    pub(crate) cut: u64,
}

/// Packets of one verdict.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct VerdictLine {
    pub(crate) verdict: &'static str,
    /// The port or peer.
    pub(crate) to: Option<String>,
    pub(crate) packets: u64,
}

/// Packets and bytes of IP packets, outside ESP.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Amount {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl From<Volume> for Amount {
    fn from(volume: Volume) -> Amount {
        Amount { packets: volume.packets, bytes: volume.bytes }
    }
}

/// Packets that a policy decided.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PolicyLine {
    pub(crate) name: String,
    pub(crate) action: String,
    pub(crate) outbound: Amount,
    pub(crate) inbound: Amount,
}

/// Packets that an SA sealed or opened.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SaLine {
    pub(crate) peer: String,
    pub(crate) direction: &'static str,
    pub(crate) spi: String,
    pub(crate) suite: &'static str,
    pub(crate) amount: Amount,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, Serialize)]
pub struct DropLine {
    /// The name of the reason.
    pub reason: &'static str,
    /// Packets dropped for it.
    pub packets: u64,
    /// Meaning of the reason, and advice.
    pub help: &'static str,
}

/// Number of a port's packets by what became of them.
#[derive(Clone, Debug, Serialize)]
pub struct LedgerLine {
    /// Name of the port, or of another group of frames.
    pub port: String,
    /// Packets that came in.
    pub received: u64,
    /// Packets that the gateway made: fragments, ICMP.
    pub made: u64,
    /// Packets that left.
    pub sent: u64,
    /// Packets that were dropped.
    pub dropped: u64,
    /// Packets that their fragments replaced.
    pub consumed: u64,
    /// Packets for the machine itself.
    pub host: u64,
    /// Packets that wait for a neighbour.
    pub held: u64,
    /// Received and made less all others.
    pub imbalance: i64,
}

/// Policy lookups that a tier answered.
#[derive(Clone, Debug, Serialize)]
pub struct TierLine {
    /// The name of the tier.
    pub tier: &'static str,
    /// Lookups that it answered.
    pub decisions: u64,
}

impl Report {
    pub(crate) fn new(
        snapshot: &Snapshot,
        outcome: &Outcome,
        inputs: Vec<(PortId, PathBuf)>,
        outputs: Vec<OutputFile>,
        keys: Option<KeyFiles>,
    ) -> Report {
        let counters = &outcome.counters;
        let inputs = inputs
            .into_iter()
            .zip(&outcome.inputs)
            .map(|((port, file), count)| {
                let port = snapshot.port(port).name.clone();
                Read { port, file, packets: count.packets, cut: count.cut }
            })
            .collect();
        let drops = DropReason::ALL
            .iter()
            .map(|reason| DropLine {
                reason: reason.name(),
                packets: counters.dropped(*reason),
                help: reason.help(),
            })
            .filter(|line| line.packets > 0)
            .collect();
        let mut report = Report {
            inputs,
            outputs,
            keys,
            verdicts: verdicts(snapshot, outcome),
            policies: policies(snapshot, outcome),
            sas: sas(snapshot, outcome),
            drops,
            ledger: ledger(snapshot, outcome),
            ledger_imbalance: counters.total().imbalance(),
            tiers: vec![
                TierLine { tier: "cache", decisions: counters.cache.hits },
                TierLine { tier: "classifier", decisions: counters.full_lookups },
            ],
            warnings: Vec::new(),
        };
        report.warnings = report.find_warnings(snapshot, outcome);
        report
    }

    fn find_warnings(&self, snapshot: &Snapshot, outcome: &Outcome) -> Vec<String> {
        let mut warnings = Vec::new();
        for input in self.inputs.iter().filter(|input| input.cut > 0) {
            warnings.push(format!(
                "{}: {} of {} packets TRUNCATED in the capture and processed without their ends; \
                 capture again with a larger snapshot length (tcpdump -s 0)",
                input.file.display(),
                input.cut,
                input.packets,
            ));
        }
        for other in &outcome.elsewhere {
            let port = snapshot.port(other.port);
            warnings.push(format!(
                "{} for another MAC address skipped by port {} (the first for {}, not for {}); to \
                 process them, set mac in [port.{}]",
                counted(other.packets, "frame"),
                port.name,
                mac_text(other.first),
                mac_text(port.mac),
                port.name,
            ));
        }
        let unresolved = outcome.counters.dropped(DropReason::NoNeighbour);
        if unresolved > 0 {
            warnings.push(format!(
                "{} had no MAC address to go to: a replay knows only the [[neighbour]] sections",
                counted(unresolved, "packet")
            ));
        }
        let oversize = outcome.counters.dropped(DropReason::Oversize);
        if oversize > 0 {
            let are = if oversize == 1 { "is" } else { "are" };
            warnings.push(format!(
                "{} {are} larger than a frame: segmentation offload in the capture? (ethtool -K \
                 DEV tso off gso off)",
                counted(oversize, "packet")
            ));
        }
        let limited = outcome.counters.icmp_limited;
        if limited > 0 {
            warnings.push(format!("{} not made: the rate limit", counted(limited, "ICMP message")));
        }
        let without_frame = outcome.counters.icmp_no_frame;
        if without_frame > 0 {
            let messages = counted(without_frame, "ICMP message");
            warnings.push(format!("{messages} not made: no free frame"));
        }
        if self.ledger.iter().any(|line| line.imbalance != 0) {
            warnings.push("THE LEDGER DOES NOT BALANCE: this is a bug, report it".into());
        }
        warnings
    }

    /// The report for a terminal.
    pub fn text(&self) -> String {
        let mut text = self.files_text();
        text += &self.tables_text();
        for warning in &self.warnings {
            text += &format!("WARNING: {warning}\n");
        }
        text
    }

    fn files_text(&self) -> String {
        let read = self.inputs.iter().map(|input| {
            let cut =
                if input.cut > 0 { format!("{} cut short", input.cut) } else { String::new() };
            vec![
                "read".into(),
                input.port.clone(),
                input.packets.to_string(),
                input.file.display().to_string(),
                cut,
            ]
        });
        let written = self.outputs.iter().map(|output| {
            vec![
                "wrote".into(),
                output.port.clone().unwrap_or_else(|| "(all)".into()),
                output.packets.to_string(),
                output.file.display().to_string(),
                String::new(),
            ]
        });
        let header = ["", "port", "packets", "file", ""];
        let mut text = table("Captures", &header, read.chain(written), Numbers(2..=2));
        if let Some(KeyFiles { keys, esp_sa, tshark }) = &self.keys {
            text += &format!(
                "Sealed under fresh random keys, in {} (for --keys of the other gateway)\n\
                 and {}; to look inside:\n  {tshark}\n\n",
                keys.display(),
                esp_sa.display(),
            );
        }
        text
    }

    /// Returns all tables but that of the files.
    pub(crate) fn tables_text(&self) -> String {
        let verdicts = self.verdicts.iter().map(|line| {
            let to = line.to.clone().unwrap_or_default();
            // In a replay nothing answers: what waits is dropped in the end.
            let verdict = if line.verdict == "hold" { HELD } else { line.verdict };
            vec![verdict.into(), to, line.packets.to_string()]
        });
        let mut text =
            table("Packets by verdict", &["verdict", "to", "packets"], verdicts, Numbers(2..=2));
        let policies = self.policies.iter().map(|line| {
            vec![
                line.name.clone(),
                line.action.clone(),
                line.outbound.packets.to_string(),
                line.outbound.bytes.to_string(),
                line.inbound.packets.to_string(),
                line.inbound.bytes.to_string(),
            ]
        });
        let header = ["policy", "action", "out packets", "out bytes", "in packets", "in bytes"];
        text += &table("Packets by policy", &header, policies, Numbers(2..=5));
        let sas = self.sas.iter().map(|line| {
            vec![
                line.peer.clone(),
                line.direction.into(),
                line.spi.clone(),
                line.suite.into(),
                line.amount.packets.to_string(),
                line.amount.bytes.to_string(),
            ]
        });
        let header = ["peer", "direction", "SPI", "suite", "packets", "inner bytes"];
        text += &table("Packets by SA", &header, sas, Numbers(4..=5));
        text += &drops_text(&self.drops);
        text += &ledger_text("port", &self.ledger);
        let tiers =
            self.tiers.iter().map(|line| vec![line.tier.into(), line.decisions.to_string()]);
        text += &table("Decisions by tier", &["tier", "decisions"], tiers, Numbers(1..=1));
        text
    }
}

/// The drops as a table; nothing if there are none.
pub fn drops_text(drops: &[DropLine]) -> String {
    let rows = drops
        .iter()
        .map(|line| vec![line.reason.into(), line.packets.to_string(), line.help.into()]);
    table("Drops by reason", &["reason", "packets", "what it means"], rows, Numbers(1..=1))
}

/// Ledgers as a table, `first` over their names.
pub fn ledger_text(first: &str, ledger: &[LedgerLine]) -> String {
    let rows = ledger.iter().map(|line| {
        vec![
            line.port.clone(),
            line.received.to_string(),
            line.made.to_string(),
            line.sent.to_string(),
            line.dropped.to_string(),
            line.consumed.to_string(),
            line.host.to_string(),
            line.held.to_string(),
            line.imbalance.to_string(),
        ]
    });
    let header =
        [first, "received", "made", "sent", "dropped", "consumed", "host", "held", "imbalance"];
    table("Ledger", &header, rows, Numbers(1..=8))
}

fn verdicts(snapshot: &Snapshot, outcome: &Outcome) -> Vec<VerdictLine> {
    let counts = &outcome.verdicts;
    let port = |(place, packets): (usize, &u64)| VerdictLine {
        verdict: "forward",
        to: Some(format!("port {}", snapshot.port(PortId(place as u16)).name)),
        packets: *packets,
    };
    let peer = |(place, packets): (usize, &u64)| VerdictLine {
        verdict: "protect",
        to: Some(format!("peer {}", snapshot.set(SetIndex(place as u32)).peer)),
        packets: *packets,
    };
    let plain = [
        ("host", counts.host),
        ("hold", counts.hold),
        ("consumed", counts.consumed),
        ("drop", counts.dropped),
    ];
    let plain = plain.map(|(verdict, packets)| VerdictLine { verdict, to: None, packets });
    let forward = counts.forward.iter().enumerate().map(port);
    let protect = counts.protect.iter().enumerate().map(peer);
    forward.chain(protect).chain(plain).filter(|line| line.packets > 0).collect()
}

fn policies(snapshot: &Snapshot, outcome: &Outcome) -> Vec<PolicyLine> {
    let counters = &outcome.counters;
    let line = |(policy, (outbound, inbound)): (&policy::Policy, (&Volume, &Volume))| PolicyLine {
        name: policy.name.clone(),
        action: match policy.action {
            Action::Bypass => "bypass".into(),
            Action::Discard => "discard".into(),
            Action::Permit(_) => "permit".into(),
            Action::Reflect(_) => "reflect".into(),
            Action::Deny(_) | Action::NoRule(_) => "deny".into(),
            Action::Protect(id) => match set_of(snapshot, id) {
                Some(set) => format!("protect {}", set.peer),
                None => "protect".into(),
            },
        },
        outbound: (*outbound).into(),
        inbound: (*inbound).into(),
    };
    let policies = snapshot.spd().policies().into_iter();
    let of = |(index, policy): (PolicyIndex, _)| {
        let place = index.0 as usize;
        line((policy, (&counters.policy_outbound[place], &counters.policy_inbound[place])))
    };
    policies.map(of).collect()
}

fn sas(snapshot: &Snapshot, outcome: &Outcome) -> Vec<SaLine> {
    let peer = |id| set_of(snapshot, id).map_or(String::new(), |set| set.peer.clone());
    let volume = |list: &[Volume], sa: SaId| list[sa.0 as usize];
    let sealed = snapshot.outbound().map(|sa| {
        let volume = volume(&outcome.counters.sealed, sa.id);
        let (spi, suite) = (sa.spi.to_string(), sa.suite.name());
        SaLine { peer: peer(sa.set), direction: "out", spi, suite, amount: volume.into() }
    });
    let opened = snapshot.inbound().map(|sa| {
        let volume = volume(&outcome.counters.opened, sa.id);
        let (spi, suite) = (sa.spi.to_string(), sa.suite.name());
        SaLine { peer: peer(sa.set), direction: "in", spi, suite, amount: volume.into() }
    });
    sealed.chain(opened).collect()
}

fn ledger(snapshot: &Snapshot, outcome: &Outcome) -> Vec<LedgerLine> {
    let line = |port: &str, ledger: &Ledger| LedgerLine {
        port: port.to_owned(),
        received: ledger.received,
        made: ledger.made,
        sent: ledger.sent,
        dropped: ledger.dropped,
        consumed: ledger.consumed,
        host: ledger.host,
        held: ledger.held,
        imbalance: ledger.imbalance(),
    };
    let ledgers = &outcome.counters.ledgers;
    let mut lines: Vec<LedgerLine> = snapshot
        .ports()
        .map(|(slot, port)| line(&port.name, &ledgers[usize::from(slot.0)]))
        .collect();
    if let Some(of_none) = ledgers.last().filter(|ledger| **ledger != Ledger::default()) {
        lines.push(line("(no port)", of_none));
    }
    lines.push(line("total", &outcome.counters.total()));
    lines
}
