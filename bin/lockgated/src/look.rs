//! A look at all SAs, once a second: activity, liveness, path MTUs, sequence numbers, a sample. It
//! goes by the number of SAs, so it is done on another thread.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic;
use std::sync::Arc;
use std::time::Instant;

use control::Compiled;
use dataplane::counters::Volume;
use dataplane::{L4ChecksumCounts, Snapshot};
use imbl::OrdMap;
use ipsec::{Fingerprint, Spi};
use policy::Direction;
use tokio::task::JoinHandle;

use crate::clock;
use crate::events::Events;
use crate::history::{PortVolume, SaNumbers, Sample};
use crate::liveness::{Change, Liveness};
use crate::path_mtus::PathMtuEvents;
use crate::sa_activity::SaActivity;
use crate::sequence_usage::{self, SequenceUsage};
use crate::totals::Totals;
use crate::worker::Report;

/// A look at all SAs, on a thread of its own. What it goes on from is lent to it.
pub(crate) struct Look {
    pub(crate) at: Instant,
    pub(crate) totals: Totals,
    pub(crate) reports: Vec<Report>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) compiled: Compiled,
    /// The sample before.
    pub(crate) before: Option<Arc<Sample>>,
    pub(crate) events: Events,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) sa_activity: SaActivity,
    pub(crate) path_mtu_events: PathMtuEvents,
    pub(crate) usage_reported: HashMap<Fingerprint, SequenceUsage>,
}

/// The result of a look.
pub(crate) struct Looked {
    pub(crate) sample: Sample,
    pub(crate) l4_checksums: BTreeMap<String, L4ChecksumCounts>,
    pub(crate) changes: Vec<Change>,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) sa_activity: SaActivity,
    pub(crate) path_mtu_events: PathMtuEvents,
    pub(crate) usage_reported: HashMap<Fingerprint, SequenceUsage>,
}

/// Waits for the result of a look; for ever, if there is none. A panic of it goes on here.
pub(crate) async fn looked(look: &mut Option<JoinHandle<Looked>>) -> Looked {
    let Some(job) = look else { return std::future::pending().await };
    let looked = job.await.unwrap_or_else(|error| panic::resume_unwind(error.into_panic()));
    *look = None;
    looked
}

impl Look {
    /// Looks.
    pub(crate) fn look(mut self) -> Looked {
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
        let peers = after(before.map(|before| &before.peers), self.totals.peers().into_iter());
        let numbers = self.inbound_numbers(&peers);
        let inbound = after(before.map(|before| &before.inbound), numbers);
        Sample {
            at: self.at,
            ports: ports.collect(),
            peers,
            drops: self.totals.drops.clone(),
            inbound,
            ring_full: queues.map(|queue| queue.statistics.kernel.rx_ring_full).sum(),
        }
    }

    /// The sequence numbers of the inbound SAs; of the peers' names there is one of each.
    fn inbound_numbers<'l>(
        &'l self,
        names: &'l OrdMap<Arc<str>, [Volume; 2]>,
    ) -> impl Iterator<Item = ((Arc<str>, Spi), SaNumbers)> + 'l {
        let (sad, sas) = (self.snapshot.sad(), &self.totals.sas);
        self.snapshot.inbound().filter_map(move |sa| {
            let peer = &sad.set(sad.places().get(sa.set)?)?.peer;
            let opened = sas.get(&(Direction::Inbound, sa.spi, peer.clone()));
            let opened = opened.map_or(0, |volume| volume.packets);
            let numbers = SaNumbers { edge: sa.window.right_edge(), opened };
            let name = names.get_key_value(peer.as_str()).map(|(name, _)| name.clone());
            Some(((name.unwrap_or_else(|| peer.as_str().into()), sa.spi), numbers))
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
