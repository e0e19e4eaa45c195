//! Samples the counters once a second: for rates, and to find silent peers, path MTUs that fell,
//! SAs that run out of numbers, ports that receive wrong checksums, and workers that need larger
//! flow caches.
//!
//! What goes by the number of SAs is done on another thread ([`Look`]), and comes back when it is
//! done: the control thread answers meanwhile. A look that takes longer than a second delays the
//! next.

use std::sync::Arc;
use std::time::Instant;

use crate::events::Kind;
use crate::freeing::free_aside;
use crate::growth::{self, CacheSample};
use crate::liveness::Change;
use crate::look::{Look, Looked};
use crate::state::State;
use crate::totals::Totals;
use crate::worker::WorkerGone;
use crate::{cache_memory, checksums};

impl State {
    /// Takes a sample, and begins a look at all SAs. Its cost does not go by policies.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn sample(&mut self) -> Result<(), WorkerGone> {
        if self.look.is_some() {
            return Ok(());
        }
        let reports = self.workers.brief_reports(&self.gateway.snapshot).await?;
        self.renew_full_caches(&reports);
        if let Some(connections) = self.gateway.snapshot.connections() {
            self.refused_connections.report(connections, &self.events);
        }
        let caches: Vec<CacheSample> = reports.iter().map(CacheSample::of).collect();
        let look = Look {
            at: Instant::now(),
            // Of policies nothing is asked, and what is known is shared.
            totals: Totals::clone(&self.gateway.totals),
            reports,
            snapshot: self.gateway.snapshot.clone(),
            compiled: self.gateway.compiled.copied(),
            before: self.history.last().cloned(),
            events: self.events.clone(),
            liveness: self.liveness.clone(),
            sa_activity: self.sa_activity.clone(),
            path_mtu_events: std::mem::take(&mut self.path_mtu_events),
            usage_reported: std::mem::take(&mut self.usage_reported),
        };
        self.look = Some(tokio::task::spawn_blocking(move || look.look()));
        self.grow_caches(caches).await
    }

    /// Takes the result of a look, and shows it.
    pub(crate) fn take_looked(&mut self, looked: Looked) {
        let Looked { sample, l4_checksums, changes, liveness, .. } = looked;
        let Looked { sa_activity, path_mtu_events, usage_reported, .. } = looked;
        let counts = (&self.gateway.live.ports, &l4_checksums);
        checksums::report_bad(&mut self.checksum_events, counts, &self.events);
        let before = std::mem::replace(&mut self.liveness, liveness);
        self.sa_activity = sa_activity;
        (self.path_mtu_events, self.usage_reported) = (path_mtu_events, usage_reported);
        Arc::make_mut(&mut self.history).keep(sample);
        changes.iter().for_each(|change| self.report_liveness(change));
        self.show();
        // It has an entry for each peer, and requests wait for this thread.
        free_aside(before);
    }

    /// Gives larger flow caches to the workers that need them. They are made beside the workers, so
    /// that none waits for memory. Where they cannot be had, those in use stay.
    ///
    /// # Errors
    /// [`WorkerGone`].
    async fn grow_caches(&mut self, seen: Vec<CacheSample>) -> Result<(), WorkerGone> {
        let now = Instant::now();
        for (known, seen) in self.gateway.cache_entries.iter_mut().zip(&seen) {
            *known = seen.entries.unwrap_or(*known);
        }
        let sizes = self.growth.wanted(now, self.config().cache, &seen);
        if sizes.iter().all(Option::is_none) {
            return Ok(());
        }
        let made = match cache_memory::check_growth(&sizes) {
            Ok(()) => self.gateway.larger_caches(sizes.clone()).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(larger) => {
                self.growth.made();
                self.gateway.grow_caches(larger).await?;
                self.events.record(Kind::CacheGrown, "", growth::message(&sizes), &[]);
            }
            Err(error) => {
                self.growth.refused(now);
                self.events.record(Kind::CacheNotGrown, "", error.to_string(), &[]);
            }
        }
        Ok(())
    }

    fn report_liveness(&self, change: &Change) {
        match change {
            Change::Silent { peer, unanswered } => {
                let seconds = unanswered.as_secs();
                let message = format!(
                    "no authentic packet from peer {peer} for {seconds} s although packets are \
                     sent to it"
                );
                let details: crate::events::Details<'_> = &[("unanswered_s", &seconds)];
                self.events.record(Kind::PeerSilent, peer, message, details);
            }
            Change::Heard { peer, silence } => {
                let seconds = silence.as_secs();
                let message = format!("peer {peer} answers again after {seconds} s");
                let details: crate::events::Details<'_> = &[("silent_s", &seconds)];
                self.events.record(Kind::PeerHeard, peer, message, details);
            }
        }
    }
}
