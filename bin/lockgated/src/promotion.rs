//! Endpoints, and verdicts on flows, go over to the kernel tier: those that workers' samples show
//! to be used, when no packet of theirs waits for a worker that a later one could overtake.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::kernel_tier::{Promotion, Pulse};
use crate::state::State;
use crate::worker::{Command, WorkerGone};

/// Time that all workers have to be without packets.
const IDLE_WITHIN: Duration = Duration::from_millis(100);

impl State {
    /// Renews the lease of the kernel tier, as far as the workers show that they live.
    pub(crate) fn renew_lease(&self, pulse: &mut Pulse) {
        let turns = self.workers.all().iter().map(|worker| worker.turns());
        let until_ns = pulse.observe(crate::kernel_tier::now_ns(), turns);
        self.gateway.tier.renew(until_ns);
    }

    /// Counts the packets that the kernel judged for their rules, as workers do theirs.
    fn count_rule_use(&mut self) {
        let used = self.gateway.tier.take_rule_use();
        if !used.is_empty() {
            let totals = Arc::make_mut(&mut self.gateway.totals);
            used.iter().for_each(|(rule, volume)| totals.add_below(rule, volume));
        }
    }

    /// Ends a second of the kernel tier. Who goes over does so aside: workers may be busy.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn promote_tenants(&mut self) -> Result<(), WorkerGone> {
        if !self.gateway.serve_tier() {
            return Ok(());
        }
        let tier = self.gateway.tier.clone();
        let mut seen = Vec::new();
        for worker in self.workers.all() {
            seen.push(worker.ask(|reply| Command::FetchTenants { reply }).await?);
        }
        let wanted = tier.end_period(&seen);
        self.count_rule_use();
        if wanted.len() == 0 {
            return Ok(());
        }
        let workers = self.workers.clone();
        tokio::spawn(async move {
            let idle = async {
                for worker in workers.all() {
                    worker.ask(|reply| Command::WhenIdle { reply }).await?;
                }
                Ok::<(), WorkerGone>(())
            };
            match timeout(IDLE_WITHIN, idle).await {
                Ok(Ok(())) => tier.promote(&wanted, Promotion::Idle),
                Err(_) if tier.promotes_busy() => tier.promote(&wanted, Promotion::Busy),
                Ok(Err(_)) | Err(_) => tier.defer(wanted.len()),
            }
        });
        Ok(())
    }
}
