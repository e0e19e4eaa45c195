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
