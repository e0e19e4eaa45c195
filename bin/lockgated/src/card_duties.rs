//! The duties of the control thread towards network cards, and the audit of what answers in the
//! rules' place.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use control::{CardUse, PortState};
use dataplane::{FastTier, NetdevId};

use crate::cards::LinkReport;
use crate::kernel_tier::Audited;
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

    /// Has cards forget the SAs of netdevs that are down, and takes these out of use.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn flush_cards(&mut self) -> Result<(), WorkerGone> {
        if !self.gateway.cards.has_seats() {
            return Ok(());
        }
        let live = &self.gateway.live;
        let down = live.ports.iter().filter(|(slot, _)| live.states[*slot] != PortState::Up);
        let down: HashSet<NetdevId> = down.map(|(_, port)| port.netdev).collect();
        if !down.is_empty() {
            self.gateway.cards.flush_netdevs(|netdev| down.contains(&netdev));
            self.settle_seats().await?;
        }
        Ok(())
    }

    /// Does what cards told about SAs: the lost ones go, the use of the others is noted, a put goes
    /// on that waited.
    async fn settle_seats(&mut self) -> Result<(), WorkerGone> {
        self.drop_lost_sas().await?;
        self.note_card_use();
        self.go_on_with_put().await
    }

    /// Notes the use of SAs as cards counted it, and those that cards ended.
    fn note_card_use(&mut self) {
        let cards = &mut self.gateway.cards;
        // What cards counted changes with a look alone.
        if !cards.were_read() || !cards.has_seats() {
            return;
        }
        let ended = cards.ended_seats();
        let cards = &*cards;
        let counted = self.gateway.compiled.note_card_use(|seat| {
            let use_ = cards.use_of(seat)?;
            let (packets, bytes) = (use_.reading.packets, use_.reading.bytes);
            let is_ended = ended.contains(&seat);
            Some(CardUse { packets, bytes, edge: use_.edge, is_ended })
        });
        if !counted.is_empty() {
            Arc::make_mut(&mut self.gateway.totals).add_counted_by_cards(counted);
        }
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
        self.audit_kernel(one_of);
        if found.is_empty() {
            return Ok(());
        }
        if found.iter().any(|found| found.tier == FastTier::Kernel) {
            self.gateway.tier.distrust();
        }
        let snapshot = self.gateway.snapshot.clone();
        self.gateway.cards.found_wrong(&found, &snapshot);
        self.settle_cards().await
    }

    /// Has answers of the kernel judged again, and counts them.
    fn audit_kernel(&mut self, one_of: u32) {
        let Audited { judged, wrong } = self.gateway.tier.audit(one_of);
        if judged > 0 {
            let totals = Arc::make_mut(&mut self.gateway.totals);
            totals.audit.count(FastTier::Kernel, judged, wrong);
        }
    }

    async fn settle_cards(&mut self) -> Result<(), WorkerGone> {
        self.settle_seats().await?;
        let dropped = self.gateway.cards.take_dropped();
        if !dropped.is_empty() {
            Arc::make_mut(&mut self.gateway.totals).add_dropped_by_cards(&dropped);
        }
        let has_other_marks = self.gateway.settle_cards().await?;
        if has_other_marks || self.has_other_unconfirmed_cards() {
            self.show();
        }
        Ok(())
    }
}
