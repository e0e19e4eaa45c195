//! Reports the results about cards, as a value that is printed as text or JSON.

use std::collections::BTreeMap;

use console::output::{Numbers, table};
use serde::Serialize;

use crate::report::{Check, TimeFigure, checks_text, drops_by_reason, times_text};

/// Packets of a scene, by the tier that decided them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SceneRow {
    pub(super) scene: &'static str,
    /// Packets that tags of the card decided.
    pub(super) tagged: u64,
    /// Packets of the stream that were sent, and those that did not arrive.
    pub(super) sent: u64,
    pub(super) lost: u64,
}

/// A tunnel in one mode of offload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ModeRow {
    /// none, crypto, packet or auto.
    pub(super) mode: &'static str,
    /// No card was there: software played one.
    pub(super) emulated: bool,
    /// The carrier of the SA that sealed: `software`, or the card.
    pub(super) carrier: String,
    /// Packets of the stream that were sent, and those that did not arrive.
    pub(super) sent: u64,
    pub(super) lost: u64,
    /// Pings that were answered, of 20.
    pub(super) pings: u64,
    /// IPv4 packets between host and card, both ways.
    pub(super) host_clear: u64,
    pub(super) host_esp: u64,
    /// Packets of `host_esp` that carry a packet in clear: the card is to do the cipher, or has.
    pub(super) host_esp_in_clear: u64,
    /// Packets on the wire: clear ones of the policy, ESP, and ESP of a number that was there
    /// before.
    pub(super) wire_clear: u64,
    pub(super) wire_esp: u64,
    /// Packets of `wire_esp` that carry a packet in clear.
    pub(super) wire_esp_in_clear: u64,
    pub(super) repeated: u64,
}

/// The captures of both sides of the card, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Captures {
    /// Frames on the wire.
    pub(super) wire: u64,
    /// Frames that the host was handed, and of these those with a tag.
    pub(super) host: u64,
    pub(super) tagged: u64,
}

/// Results of a demonstration.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OffloadReport {
    pub(super) demo: &'static str,
    /// No card was there: software played one.
    pub(super) emulated: bool,
    pub(super) ok: bool,
    pub(super) checks: Vec<Check>,
    pub(super) scenes: Vec<SceneRow>,
    pub(super) modes: Vec<ModeRow>,
    pub(super) times: Vec<TimeFigure>,
    pub(super) captures: Captures,
    /// Packets that tags decided and that were judged again, and those of which the rules said
    /// otherwise before the card began to lie.
    pub(super) audited: u64,
    pub(super) wrong: u64,
    pub(super) drops: BTreeMap<String, u64>,
    /// Imbalance of all ledgers; `None`: no daemon answered.
    pub(super) ledger_imbalance: Option<u64>,
}

impl OffloadReport {
    /// Makes an empty report.
    pub(super) fn new() -> OffloadReport {
        OffloadReport {
            demo: "offload",
            emulated: true,
            ok: false,
            checks: Vec::new(),
            scenes: Vec::new(),
            modes: Vec::new(),
            times: Vec::new(),
            captures: Captures::default(),
            audited: 0,
            wrong: 0,
            drops: BTreeMap::new(),
            ledger_imbalance: None,
        }
    }

    /// Formats the report for a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = checks_text(&self.checks);
        let rows = self.scenes.iter().map(|row| {
            let numbers = [row.tagged, row.sent, row.lost].map(|number| number.to_string());
            [vec![row.scene.to_owned()], numbers.to_vec()].concat()
        });
        let header = ["scene", "decided by tags", "sent", "lost"];
        text += &table("Packets (the card is emulated)", &header, rows, Numbers(1..=3));
        let rows = self.modes.iter().map(|row| {
            let ModeRow { host_clear, host_esp, wire_clear, wire_esp, sent, lost, .. } = row;
            let in_clear = &row.host_esp_in_clear;
            let numbers = [host_clear, host_esp, in_clear, wire_clear, wire_esp, sent, lost];
            let numbers = numbers.map(ToString::to_string);
            [vec![row.mode.to_owned(), row.carrier.clone()], numbers.to_vec()].concat()
        });
        let header = [
            "offload",
            "sealed by",
            "host side: clear",
            "ESP",
            "of it in clear",
            "wire: clear",
            "ESP",
            "sent",
            "lost",
        ];
        text +=
            &table("One policy in each mode (the card is emulated)", &header, rows, Numbers(2..=8));
        text += &times_text(&self.times);
        let Captures { wire, host, tagged } = self.captures;
        text += &format!(
            "Captures of a scene: {wire} frames on the card's wire; the host was handed {host}, \
             {tagged} of them with a tag\n"
        );
        text += &format!(
            "Audit: {} packets that tags decided were judged again, {} of them otherwise\n\n",
            self.audited, self.wrong
        );
        text += &drops_by_reason(|reason| self.drops.get(reason).copied());
        if let Some(imbalance) = self.ledger_imbalance {
            text += &format!("Imbalance of all ledgers: {imbalance}\n");
        }
        text += match self.ok {
            true => "All checks hold.\n",
            false => "NOT ALL CHECKS HOLD.\n",
        };
        text
    }
}
