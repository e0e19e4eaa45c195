//! The duties of the control thread towards network cards, and the audit of what answers in the
//! rules' place.

use std::time::Instant;

use crate::cards::LinkReport;
use crate::state::State;
use crate::worker::{Command, WorkerGone};

impl State {
    /// Takes a card's report in, with all that wait, and does what it asks for.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn card_told(&mut self, report: LinkReport) -> Result<(), WorkerGone> {
        let snapshot = self.gateway.snapshot.clone();
        self.gateway.cards.take(report, &snapshot);
        self.settle_cards().await
    }

    /// Looks after the cards.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn tend_cards(&mut self) -> Result<(), WorkerGone> {
        let now = Instant::now();
        self.gateway.cards.tick(now);
        self.settle_cards().await?;
        if self.gateway.cards.want_packets(now) {
            let snapshot = self.gateway.snapshot.clone();
            // Only this thread makes workers go over to another one.
            if let Some(reports) = self.workers.reports(&snapshot).await? {
                self.gateway.cards.plan(now, &snapshot, &reports);
            }
        }
        Ok(())
    }

    /// Sets the share of packets that are judged again, and tells of verdicts that were wrong.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn audit(&mut self) -> Result<(), WorkerGone> {
        let one_of = self.config().audit.one_of;
        let mut found = Vec::new();
        for worker in self.workers.all() {
            found.extend(worker.ask(|reply| Command::Audit { one_of, reply }).await?);
        }
        if found.is_empty() {
            return Ok(());
        }
        let snapshot = self.gateway.snapshot.clone();
        self.gateway.cards.found_wrong(&found, &snapshot);
        self.settle_cards().await
    }

    async fn settle_cards(&mut self) -> Result<(), WorkerGone> {
        if self.gateway.settle_cards().await? {
            self.show();
        }
        Ok(())
    }
}
