//! The stage of the demonstration: the laboratory, the results so far, and the progress lines.

use std::time::Duration;

use console::failure::Form;
use netlab::capture::{Capture, Tally};
use netlab::daemon::Counters;
use netlab::sites::Plan;
use netlab::{Gateways, LabError};

use super::report::{GatewaysReport, TimeFigure};
use crate::play;
use crate::progress::Progress;
use crate::report::Check;

/// Gateway A, and the site behind it.
pub(super) const A: u8 = 1;
/// Gateway B.
pub(super) const B: u8 = 2;

/// The laboratory with its daemons, and the results so far.
pub(super) struct Stage {
    pub(super) gateways: Gateways,
    pub(super) report: GatewaysReport,
    /// Packets in the captures since the daemons were started.
    tally: Tally,
    /// Counters of daemons that have ended.
    pub(super) counted: Counters,
    progress: Progress,
}

impl Stage {
    /// Builds the namespaces and writes both configurations.
    pub(super) fn build(form: Form) -> Result<Stage, LabError> {
        let progress = Progress::start(form);
        let stage = Stage {
            gateways: Gateways::build(Plan::default())?,
            report: GatewaysReport::new(),
            tally: Tally::default(),
            counted: Counters::default(),
            progress,
        };
        stage.say("", "host-a, gw-a, wire, gw-b, host-b: five namespaces");
        Ok(stage)
    }

    /// Prints a line of progress.
    pub(super) fn say(&self, verdict: &str, text: &str) {
        self.progress.say(verdict, text);
    }

    /// Notes whether something holds.
    pub(super) fn check(&mut self, name: &'static str, ok: bool, detail: impl Into<String>) {
        let check = Check { name, ok, detail: detail.into() };
        play::note(&mut self.report.checks, self.progress, check);
    }

    /// Notes how long an operation took in both directions, and the target. Machines differ and are
    /// shared: no time makes the demonstration fail.
    pub(super) fn note_time(
        &mut self,
        name: &'static str,
        took: [Option<Duration>; 2],
        target: Duration,
    ) {
        let slowest = took.into_iter().flatten().max();
        self.report.times.push(TimeFigure::new(name, slowest, target));
    }

    /// Ends a capture and adds its packets to those of the wire; removes its file.
    pub(super) fn add_capture(&mut self, capture: Capture) -> Result<(), LabError> {
        let file = capture.stop()?;
        self.tally.add(&file)?;
        std::fs::remove_file(&file).map_err(LabError::file(&file))
    }

    /// Adds the packets of a capture file, and keeps the file.
    pub(super) fn add_file(&mut self, file: &std::path::Path) -> Result<(), LabError> {
        self.tally.add(file)
    }

    /// Returns the counts of the captures so far.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Ends the play: everything is torn down, and the report is complete.
    ///
    /// # Errors
    /// [`LabError::Interrupted`], torn down all the same.
    pub(super) fn close(
        mut self,
        outcome: Result<(), LabError>,
    ) -> Result<GatewaysReport, LabError> {
        let (checks, gateways) = (&mut self.report.checks, &self.gateways);
        self.report.ok = play::end(outcome, checks, || play::logs_of(gateways), self.progress)?;
        let Tally { esp, clear, .. } = self.tally;
        (self.report.wire.esp, self.report.wire.clear) = (esp, clear);
        let Stage { report, .. } = self;
        Ok(report)
    }
}
