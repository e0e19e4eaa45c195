//! The laboratory of the demonstration, and its report.

use std::time::Duration;

use console::failure::Form;
use netlab::carded::{CardLab, placed};
use netlab::stream::{Delivery, Stream};
use netlab::{CardPlan, Daemon, LabError, interrupt};

use super::report::{OffloadReport, SceneRow};
use crate::failure::Failure;
use crate::play::{self, note};
use crate::progress::Progress;
use crate::report::{Check, TimeFigure};

/// A step that takes longer than this never ends.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// The laboratory with its report.
pub(super) struct Stage {
    pub(super) lab: CardLab,
    pub(super) report: OffloadReport,
    progress: Progress,
}

/// A card of this kind.
pub(super) fn plan(card: &str) -> CardPlan<'_> {
    CardPlan { card, ..CardPlan::new("", "") }
}

impl Stage {
    /// Builds the laboratory, without card and daemon.
    pub(super) fn build(form: Form) -> Result<Stage, Failure> {
        let progress = Progress::start(form);
        progress.say("", "three namespaces, an emulated card (no card is here)");
        let lab = CardLab::build(plan("emulated:rules=100,ms=500"))?;
        Ok(Stage { lab, report: OffloadReport::new(), progress })
    }

    pub(super) fn daemon(&self) -> Result<&Daemon, LabError> {
        self.lab.daemon()
    }

    pub(super) fn say(&self, text: &str) {
        self.progress.say("", text);
    }

    pub(super) fn note(&mut self, check: Check) {
        note(&mut self.report.checks, self.progress, check);
    }

    pub(super) fn note_time(&mut self, name: &'static str, took: Option<Duration>) {
        self.report.times.push(TimeFigure::new(name, took));
    }

    /// Returns whether tags of a rule count now.
    pub(super) fn counts(&self, rule: &str) -> Result<bool, LabError> {
        Ok(placed(&self.lab.placement()?, rule)["counts"] == true)
    }

    /// Waits until tags of a rule count, or no more. Returns whether it came to that.
    pub(super) fn wait_for(&self, rule: &str, counts: Counts) -> Result<bool, LabError> {
        let wanted = counts == Counts::Yes;
        let (_, done) = self.lab.wait_until(LIMIT, |placement| {
            // Null: the card is not there, or knows nothing of it.
            (placed(placement, rule)["counts"] == true) == wanted
        })?;
        Ok(done)
    }

    /// Runs something under a stream, and notes the stream as a scene's.
    pub(super) fn under_a_stream(
        &mut self,
        scene: &'static str,
        act: impl FnOnce(&mut Stage) -> Result<(), LabError>,
    ) -> Result<Delivery, LabError> {
        let [before, _] = self.lab.decided()?;
        let stream: Stream = self.lab.stream()?;
        interrupt::sleep(Duration::from_millis(100))?;
        let outcome = act(self);
        let delivery = stream.finish();
        outcome?;
        let [after, _] = self.lab.decided()?;
        self.report.scenes.push(SceneRow {
            scene,
            tagged: after.saturating_sub(before),
            sent: delivery.sent.len() as u64,
            lost: delivery.lost() as u64,
        });
        Ok(delivery)
    }

    /// Notes what the audit has found so far.
    pub(super) fn note_audit(&mut self) -> Result<(), LabError> {
        let [audited, wrong] = self.lab.audited()?;
        (self.report.audited, self.report.wrong) = (audited, wrong);
        self.note(Check {
            name: "every packet that a tag decided was judged again: the rules say the same",
            ok: audited > 0 && wrong == 0,
            detail: format!("{audited} packets, {wrong} wrong"),
        });
        Ok(())
    }

    /// Notes the drops and the balance of the ledgers.
    pub(super) fn settle(&mut self) -> Result<(), LabError> {
        let counters = self.daemon()?.settled(LIMIT)?;
        self.report.ledger_imbalance = Some(counters.ledger_imbalance);
        self.report.drops =
            counters.drops.iter().map(|(reason, count)| (reason.clone(), *count)).collect();
        let imbalance = counters.ledger_imbalance;
        self.note(Check {
            name: "every packet is on the ledger",
            ok: imbalance == 0,
            detail: format!("imbalance {imbalance}"),
        });
        Ok(())
    }

    /// Ends the play and tears everything down.
    pub(super) fn close(mut self, outcome: Result<(), LabError>) -> Result<OffloadReport, Failure> {
        let lab = &self.lab;
        let logs = || {
            let log = lab.daemon.as_ref().map(Daemon::log).unwrap_or_default();
            vec![("gateway".to_owned(), log)]
        };
        self.report.ok = play::end(outcome, &mut self.report.checks, logs, self.progress)?;
        Ok(self.report)
    }
}

/// The standing of a rule's tags: they count, or not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    Yes,
    No,
}
