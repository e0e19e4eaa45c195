//! Sums up counters since the start, by names: slots are others' in time. When ports, policies or
//! SAs leave their slots, each worker hands over what it counted of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use control::{CountedByCard, GoneSa};
use dataplane::counters::{PortCounts, Volume};
use dataplane::{
    AuditCounts, CacheCounters, DirectCounts, DropReason, L4ChecksumCounts, Ledger, Snapshot,
    VacatedSlots,
};
use imbl::OrdMap;
use ipsec::{SaId, Spi};
use placement::CountedRule;
use policy::{Action, Direction};

use crate::cards::DroppedByRule;
use crate::worker::FlushedCounts;

/// Lifelong identity of an SA: direction, SPI, peer.
pub(crate) type SaKey = (Direction, Spi, String);

/// Sums over workers and snapshots.
#[derive(Clone, Default)]
pub(crate) struct Totals {
    /// Ledgers by port name; the empty name: frames that belong to no port.
    pub(crate) ledgers: BTreeMap<String, Ledger>,
    /// Packets and bytes that left by each port.
    pub(crate) transmitted: HashMap<String, Volume>,
    /// TCP and UDP checksums of received packets, by port name.
    pub(crate) l4_checksums: BTreeMap<String, L4ChecksumCounts>,
    pub(crate) drops: BTreeMap<DropReason, u64>,
    /// Outbound and inbound counts of policies, by name: an edited policy keeps its counts.
    pub(crate) policies: imbl::HashMap<Arc<str>, [Volume; 2]>,
    /// The sums of these over all policies and rules that ever ran, by what they do to packets:
    /// [`Action::kind`] counts into it.
    pub(crate) actions: [[Volume; 2]; Action::NAMES.len()],
    pub(crate) sas: imbl::HashMap<SaKey, Volume>,
    /// Sums over SAs that were put and are gone, outbound and inbound, by peer: such SAs come and
    /// go as long as the daemon runs.
    pub(crate) retired: OrdMap<Arc<str>, [Volume; 2]>,
    pub(crate) full_lookups: u64,
    pub(crate) icmp_limited: u64,
    pub(crate) icmp_no_frame: u64,
    pub(crate) path_mtu_lowered: u64,
    pub(crate) path_mtu_ignored: u64,
    pub(crate) keepalives: u64,
    pub(crate) direct: DirectCounts,
    pub(crate) fast_path: u64,
    pub(crate) cache: CacheCounters,
    /// Packets that cards' tags decided.
    pub(crate) tagged: u64,
    pub(crate) audit: AuditCounts,
}

impl Totals {
    /// Packets sealed and opened with each peer, over all of its SAs, those of earlier keys too.
    pub(crate) fn peers(&self) -> BTreeMap<Arc<str>, [Volume; 2]> {
        let mut peers: BTreeMap<Arc<str>, [Volume; 2]> =
            self.retired.iter().map(|(peer, volumes)| (peer.clone(), *volumes)).collect();
        for ((direction, _, peer), volume) in &self.sas {
            let [sealed, opened] = match peers.get_mut(peer.as_str()) {
                Some(volumes) => volumes,
                None => peers.entry(peer.as_str().into()).or_default(),
            };
            add(if *direction == Direction::Outbound { sealed } else { opened }, volume);
        }
        peers
    }

    /// Adds what cards counted of SAs, which no worker counts.
    pub(crate) fn add_counted_by_cards(&mut self, counted: Vec<CountedByCard>) {
        for CountedByCard { direction, spi, peer, packets, bytes } in counted {
            add(self.sas.entry((direction, spi, peer)).or_default(), &Volume { packets, bytes });
        }
    }

    /// Adds what one worker counted under one snapshot.
    pub(crate) fn add(&mut self, flushed: &FlushedCounts) {
        let FlushedCounts { snapshot, counters } = flushed;
        for (slot, port) in snapshot.ports() {
            self.add_port(&port.name, &counters.port(slot));
        }
        self.ledgers.entry(String::new()).or_default().add(counters.without_port());
        for reason in DropReason::ALL {
            *self.drops.entry(*reason).or_default() += counters.dropped(*reason);
        }
        let policies = snapshot.spd().counted().map(|(_, policy)| policy);
        let counted = counters.policy_outbound.iter().zip(&counters.policy_inbound);
        let counted = policies.zip(counted).filter(|(_, (outbound, inbound))| {
            // Of very many policies few decide anything.
            outbound.packets + inbound.packets > 0
        });
        for (policy, (outbound, inbound)) in counted {
            self.add_policy(&policy.name, policy.action.kind(), [outbound, inbound]);
        }
        let peers: HashMap<_, _> =
            snapshot.sets().map(|(_, set)| (set.id, set.peer.as_str())).collect();
        let volume = |list: &[Volume], sa: SaId| list[sa.0 as usize];
        let outbound = snapshot
            .outbound()
            .map(|sa| (Direction::Outbound, sa.spi, sa.set, volume(&counters.sealed, sa.id)));
        let inbound = snapshot
            .inbound()
            .map(|sa| (Direction::Inbound, sa.spi, sa.set, volume(&counters.opened, sa.id)));
        for (direction, spi, set, volume) in outbound.chain(inbound) {
            let peer = peers.get(&set).copied().unwrap_or_default().to_owned();
            let key = (direction, spi, peer);
            // What is touched is copied, and of very many SAs few carry packets.
            if volume != Volume::default() || !self.sas.contains_key(&key) {
                add(self.sas.entry(key).or_default(), &volume);
            }
        }
        self.full_lookups += counters.full_lookups;
        self.icmp_limited += counters.icmp_limited;
        self.icmp_no_frame += counters.icmp_no_frame;
        self.path_mtu_lowered += counters.path_mtu_lowered;
        self.path_mtu_ignored += counters.path_mtu_ignored;
        self.keepalives += counters.keepalives;
        self.direct.add(&counters.direct);
        self.fast_path += counters.fast_path;
        self.cache.add(&counters.cache);
        self.tagged += counters.tagged;
        self.audit.add(&counters.audit);
    }

    fn add_policy(&mut self, name: &str, kind: usize, counted: [&Volume; 2]) {
        if !self.policies.contains_key(name) {
            self.policies.insert(name.into(), Default::default());
        }
        let sums = [Some(&mut self.actions[kind]), self.policies.get_mut(name)];
        for sum in sums.into_iter().flatten() {
            sum.iter_mut().zip(counted).for_each(|(sum, volume)| add(sum, volume));
        }
    }

    /// Adds what cards dropped by rules, which no worker sees.
    pub(crate) fn add_dropped_by_cards(&mut self, dropped: &[DroppedByRule]) {
        for DroppedByRule { name, kind, volumes: [outbound, inbound] } in dropped {
            self.add_policy(name, *kind, [outbound, inbound]);
        }
    }

    /// Adds packets that the kernel tier judged by a rule: tenants' packets, which workers count as
    /// outbound.
    pub(crate) fn add_below(&mut self, rule: &CountedRule, volume: &Volume) {
        self.add_policy(&rule.name, rule.kind, [volume, &Volume::default()]);
    }

    fn add_port(&mut self, name: &str, counts: &PortCounts) {
        self.ledgers.entry(name.to_owned()).or_default().add(&counts.ledger);
        add(self.transmitted.entry(name.to_owned()).or_default(), &counts.transmitted);
        self.l4_checksums.entry(name.to_owned()).or_default().add(&counts.l4_checksums);
    }

    /// Adds what ports and SAs of a snapshot have counted that are gone since.
    pub(crate) fn add_gone(&mut self, before: &Snapshot, gone: &VacatedSlots) {
        for (port, counts) in &gone.ports {
            self.add_port(&before.port(*port).name, counts);
        }
        let peer = |set| {
            let set = before.sad().places().get(set).map(|place| before.set(place));
            set.map_or_else(String::new, |set| set.peer.clone())
        };
        for (sa, volume) in &gone.outbound {
            let sa = before.outbound_sa(*sa);
            let key = (Direction::Outbound, sa.spi, peer(sa.set));
            add(self.sas.entry(key).or_default(), volume);
        }
        for (sa, volume) in &gone.inbound {
            let sa = before.inbound_sa(*sa);
            let key = (Direction::Inbound, sa.spi, peer(sa.set));
            add(self.sas.entry(key).or_default(), volume);
        }
    }

    /// Adds what SAs that are gone have counted to their peers' sums, and forgets the SAs.
    pub(crate) fn retire(&mut self, gone: &[GoneSa]) {
        for GoneSa { direction, spi, peer, .. } in gone {
            let Some(volume) = self.sas.remove(&(*direction, *spi, peer.clone())) else { continue };
            let [sealed, opened] = self.retired.entry(peer.as_str().into()).or_default();
            add(if *direction == Direction::Outbound { sealed } else { opened }, &volume);
        }
    }

    /// Forgets policies and peers that charon made by itself and that are gone: others come under
    /// other names as long as the daemon runs.
    pub(crate) fn forget_of_ike<'n>(
        &mut self,
        policies: impl Iterator<Item = &'n str>,
        peers: impl Iterator<Item = &'n str>,
    ) {
        policies.for_each(|name| _ = self.policies.remove(name));
        peers.for_each(|name| _ = self.retired.remove(name));
    }

    /// Sum of all ledgers.
    pub(crate) fn ledger(&self) -> Ledger {
        let mut total = Ledger::default();
        self.ledgers.values().for_each(|ledger| total.add(ledger));
        total
    }
}

fn add(sum: &mut Volume, volume: &Volume) {
    sum.packets += volume.packets;
    sum.bytes += volume.bytes;
}
