//! Samples the counters once a second: for rates, and to find silent peers, path MTUs that fell,
//! ports that receive wrong checksums, and workers that need larger flow caches.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use ipsec::Spi;
use policy::Direction;

use crate::events::Kind;
use crate::growth::{self, CacheSample};
use crate::history::{PortVolume, SaNumbers, Sample};
use crate::liveness::Change;
use crate::state::State;
use crate::totals::Totals;
use crate::worker::{Report, WorkerGone};
use crate::{cache_memory, checksums, clock};

impl State {
    /// Takes a sample. Its cost goes by ports and SAs, not by policies.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn sample(&mut self) -> Result<(), WorkerGone> {
        let reports = self.workers.brief_reports().await?;
        self.renew_full_caches(&reports);
        // Of policies nothing is asked, and what is known is shared.
        let mut totals = Totals::clone(&self.gateway.totals);
        reports.iter().for_each(|report| totals.add(&report.flushed));
        let ports = &self.gateway.live.ports;
        let counts = (ports, &totals.l4_checksums);
        checksums::report_bad(&mut self.checksum_events, counts, &self.events);
        self.path_mtu_events.report(&self.gateway.snapshot, clock::now_ns(), &self.events);
        if let Some(connections) = self.gateway.snapshot.connections() {
            self.refused_connections.report(connections, &self.events);
        }
        let mut sample = sample_of(&totals, Instant::now());
        sample.inbound = self.inbound_numbers(&totals);
        let queues = reports.iter().flat_map(|report| report.queues.iter().flatten());
        sample.ring_full = queues.map(|queue| queue.statistics.kernel.rx_ring_full).sum();
        let configured = self.gateway.compiled.all_peers().map(|peer| {
            (peer.name.as_str(), sample.peers.get(&peer.name).copied().unwrap_or_default())
        });
        self.sa_activity.observe(sample.at, &totals.sas);
        let changes = Arc::make_mut(&mut self.liveness).observe(sample.at, configured);
        Arc::make_mut(&mut self.history).keep(sample);
        changes.iter().for_each(|change| self.report_liveness(change));
        self.grow_caches(&reports).await
    }

    /// Gives larger flow caches to the workers that need them. They are made beside the workers, so
    /// that none waits for memory. Where they cannot be had, those in use stay.
    ///
    /// # Errors
    /// [`WorkerGone`].
    async fn grow_caches(&mut self, reports: &[Report]) -> Result<(), WorkerGone> {
        let (now, seen) = (Instant::now(), reports.iter().map(CacheSample::of).collect::<Vec<_>>());
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

    /// The sequence numbers of the inbound SAs.
    fn inbound_numbers(&self, totals: &Totals) -> BTreeMap<(String, Spi), SaNumbers> {
        let snapshot = &self.gateway.snapshot;
        let peers: HashMap<_, _> = snapshot.sets().map(|(_, set)| (set.id, &set.peer)).collect();
        let numbers = snapshot.inbound().filter_map(|sa| {
            let peer = *peers.get(&sa.set)?;
            let key = (Direction::Inbound, sa.spi, peer.clone());
            let opened = totals.sas.get(&key).map_or(0, |volume| volume.packets);
            let numbers = SaNumbers { edge: sa.window.right_edge(), opened };
            Some(((key.2, sa.spi), numbers))
        });
        numbers.collect()
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

fn sample_of(totals: &Totals, at: Instant) -> Sample {
    let ports = totals.ledgers.iter().map(|(name, ledger)| {
        let volume = PortVolume {
            received_packets: ledger.received,
            dropped_packets: ledger.dropped,
            transmitted: totals.transmitted.get(name).copied().unwrap_or_default(),
        };
        (name.clone(), volume)
    });
    Sample {
        at,
        ports: ports.collect(),
        peers: totals.peers(),
        drops: totals.drops.clone(),
        inbound: BTreeMap::new(),
        ring_full: 0,
    }
}
