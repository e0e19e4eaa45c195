//! Once a second: a sample of the counters, which says which peers answer.

use std::collections::HashMap;
use std::time::Instant;

use crate::events::Kind;
use crate::liveness::{Change, Heard};
use crate::state::State;
use crate::worker::WorkerGone;

impl State {
    /// Takes a sample. Its cost goes by ports and SAs, not by policies.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn sample(&mut self) -> Result<(), WorkerGone> {
        let reports = self.brief_reports().await?;
        let mut totals = self.totals.without_policies();
        reports.iter().for_each(|report| totals.add(&report.flushed));
        let volumes = totals.peers();
        let configured =
            self.compiled.settings().peers.iter().map(|peer| {
                (peer.name.as_str(), volumes.get(&peer.name).copied().unwrap_or_default())
            });
        let changes = self.liveness.observe(Instant::now(), configured);
        changes.iter().for_each(|change| self.report_liveness(change));
        Ok(())
    }

    /// When each configured peer was heard.
    pub(crate) fn liveness_of_peers(&self) -> HashMap<String, Heard> {
        let peers = self.config().peers.iter();
        peers.map(|peer| (peer.name.clone(), self.liveness.of(&peer.name))).collect()
    }

    fn report_liveness(&self, change: &Change) {
        match change {
            Change::Silent { peer, unanswered } => {
                let seconds = unanswered.as_secs();
                let message = format!(
                    "nothing authentic has come from peer {peer} for {seconds} s although packets \
                     leave for it"
                );
                let details: crate::events::Details<'_> = &[("unanswered_s", &seconds)];
                self.events.record(Kind::PeerSilent, peer, message, details);
            }
            Change::Heard { peer, silence } => {
                let seconds = silence.as_secs();
                let message = format!("peer {peer} is heard again after {seconds} s");
                let details: crate::events::Details<'_> = &[("silent_s", &seconds)];
                self.events.record(Kind::PeerHeard, peer, message, details);
            }
        }
    }
}
