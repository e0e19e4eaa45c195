//! Samples the counters once a second: for rates, and to find silent peers, path MTUs that fell,
//! SAs that run out of numbers, ports that receive wrong checksums, and workers that need larger
//! flow caches.
//!
//! What goes by the number of SAs is done on another thread ([`Look`]), and comes back when it is
//! done: the control thread answers meanwhile. A look that takes longer than a second delays the
//! next.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use control::Compiled;
use dataplane::{L4ChecksumCounts, Snapshot};
use imbl::OrdMap;
use ipsec::{Fingerprint, Spi};
use policy::Direction;
use tokio::task::JoinHandle;

use crate::events::{Events, Kind};
use crate::growth::{self, CacheSample};
use crate::history::{PortVolume, SaNumbers, Sample};
use crate::liveness::{Change, Liveness};
use crate::path_mtus::PathMtuEvents;
use crate::sa_activity::SaActivity;
use crate::sequence_usage::{self, SequenceUsage};
use crate::state::State;
use crate::totals::Totals;
use crate::worker::{Report, WorkerGone};
use crate::{cache_memory, checksums, clock};

/// A look at all SAs, on a thread of its own. What it goes on from is lent to it.
pub(crate) struct Look {
    at: Instant,
    totals: Totals,
    reports: Vec<Report>,
    snapshot: Arc<Snapshot>,
    compiled: Compiled,
    /// The sample before.
    before: Option<Arc<Sample>>,
    events: Events,
    liveness: Arc<Liveness>,
    sa_activity: SaActivity,
    path_mtu_events: PathMtuEvents,
    usage_reported: HashMap<Fingerprint, SequenceUsage>,
}

/// The result of a look.
pub(crate) struct Looked {
    sample: Sample,
    l4_checksums: BTreeMap<String, L4ChecksumCounts>,
    changes: Vec<Change>,
    liveness: Arc<Liveness>,
    sa_activity: SaActivity,
    path_mtu_events: PathMtuEvents,
    usage_reported: HashMap<Fingerprint, SequenceUsage>,
}

/// Waits for the result of a look; for ever, if there is none. `None` inside: it panicked.
pub(crate) async fn looked(look: &mut Option<JoinHandle<Looked>>) -> Option<Looked> {
    let Some(job) = look else { return std::future::pending().await };
    let looked = job.await.ok();
    *look = None;
    looked
}

impl State {
    /// Takes a sample, and begins a look at all SAs. Its cost does not go by policies.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn sample(&mut self) -> Result<(), WorkerGone> {
        if self.look.is_some() {
            return Ok(());
        }
        let reports = self.workers.brief_reports().await?;
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

    /// Takes the result of a look.
    pub(crate) fn take_looked(&mut self, looked: Looked) {
        let Looked { sample, l4_checksums, changes, liveness, .. } = looked;
        let Looked { sa_activity, path_mtu_events, usage_reported, .. } = looked;
        let counts = (&self.gateway.live.ports, &l4_checksums);
        checksums::report_bad(&mut self.checksum_events, counts, &self.events);
        (self.liveness, self.sa_activity) = (liveness, sa_activity);
        (self.path_mtu_events, self.usage_reported) = (path_mtu_events, usage_reported);
        Arc::make_mut(&mut self.history).keep(sample);
        changes.iter().for_each(|change| self.report_liveness(change));
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

impl Look {
    fn look(mut self) -> Looked {
        self.reports.iter().for_each(|report| self.totals.add(&report.flushed));
        self.path_mtu_events.report(&self.snapshot, clock::now_ns(), &self.events);
        let sas = (&*self.snapshot, &self.compiled);
        sequence_usage::report(&mut self.usage_reported, sas, &self.events);
        self.sa_activity.observe(self.at, &self.totals.sas);
        let sample = self.sample();
        let configured = self.compiled.all_peers().map(|peer| {
            (peer.name.as_str(), sample.peers.get(&*peer.name).copied().unwrap_or_default())
        });
        let changes = Arc::make_mut(&mut self.liveness).observe(self.at, configured);
        let Look { liveness, sa_activity, path_mtu_events, usage_reported, .. } = self;
        Looked {
            sample,
            l4_checksums: self.totals.l4_checksums,
            changes,
            liveness,
            sa_activity,
            path_mtu_events,
            usage_reported,
        }
    }

    fn sample(&self) -> Sample {
        let ports = self.totals.ledgers.iter().map(|(name, ledger)| {
            let volume = PortVolume {
                received_packets: ledger.received,
                dropped_packets: ledger.dropped,
                transmitted: self.totals.transmitted.get(name).copied().unwrap_or_default(),
            };
            (name.clone(), volume)
        });
        let queues = self.reports.iter().flat_map(|report| report.queues.iter().flatten());
        let before = self.before.as_deref();
        let peers = self.totals.peers();
        Sample {
            at: self.at,
            ports: ports.collect(),
            peers: after(before.map(|before| &before.peers), peers.into_iter()),
            drops: self.totals.drops.clone(),
            inbound: after(before.map(|before| &before.inbound), self.inbound_numbers()),
            ring_full: queues.map(|queue| queue.statistics.kernel.rx_ring_full).sum(),
        }
    }

    /// The sequence numbers of the inbound SAs.
    fn inbound_numbers(&self) -> impl Iterator<Item = ((Arc<str>, Spi), SaNumbers)> {
        let (sad, sas) = (self.snapshot.sad(), &self.totals.sas);
        self.snapshot.inbound().filter_map(move |sa| {
            let peer = &sad.set(sad.places().get(sa.set)?)?.peer;
            let opened = sas.get(&(Direction::Inbound, sa.spi, peer.clone()));
            let opened = opened.map_or(0, |volume| volume.packets);
            let numbers = SaNumbers { edge: sa.window.right_edge(), opened };
            Some(((peer.as_str().into(), sa.spi), numbers))
        })
    }
}

/// Returns a map of what was counted, which shares with an earlier one what is the same.
fn after<K: Ord + Clone, V: PartialEq + Clone>(
    before: Option<&OrdMap<K, V>>,
    counted: impl Iterator<Item = (K, V)>,
) -> OrdMap<K, V> {
    let mut map = before.cloned().unwrap_or_default();
    let mut keys = BTreeSet::new();
    for (key, value) in counted {
        if map.get(&key) != Some(&value) {
            map.insert(key.clone(), value);
        }
        keys.insert(key);
    }
    if map.len() > keys.len() {
        let gone: Vec<K> = map.keys().filter(|key| !keys.contains(key)).cloned().collect();
        gone.iter().for_each(|key| _ = map.remove(key));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_what_was_counted_and_nothing_else_of_the_one_before() {
        let map = |entries: &[(u32, u32)]| entries.iter().copied().collect::<OrdMap<u32, u32>>();
        let before = map(&[(1, 1), (2, 2), (3, 3)]);
        for counted in [&[(1, 1), (2, 5)][..], &[(4, 4)], &[(1, 1), (2, 2), (3, 3), (9, 9)], &[]] {
            assert_eq!(after(Some(&before), counted.iter().copied()), map(counted));
            assert_eq!(after(None, counted.iter().copied()), map(counted));
        }
    }
}
