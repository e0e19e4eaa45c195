//! The running state with the counts of a moment, which answers share.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use api::v1;
use config::Validated;
use control::Spis;
use dataplane::counters::Volume;
use dataplane::{Routes, SetIndex, Snapshot};
use ipsec::Spi;
use policy::{Action, Direction};

use crate::freeing::FreedAside;
use crate::ike_names::IkeNames;
use crate::liveness::PeerLiveness;

/// Lifelong identity of an SA: direction, SPI, peer.
pub(crate) type SaKey = (Direction, Spi, String);

/// Entries of one moment in their order. Each is made when the iterator reaches it.
pub(crate) type EntryIter<E> = Box<dyn Iterator<Item = E> + Send>;

/// Liveness of each peer by name.
pub(crate) type LivenessSource = Arc<dyn Fn(&str) -> PeerLiveness + Send + Sync>;

/// A consistent picture of the running state.
#[derive(Clone)]
pub(crate) struct Running {
    /// The configuration without its policies, which are the snapshot's.
    pub(crate) settings: Arc<Validated>,
    /// Peers that charon made by itself.
    pub(crate) ike_peers: Vec<config::validated::Peer>,
    /// The snapshot that the workers run on.
    pub(crate) snapshot: Arc<Snapshot>,
    /// The routes that the snapshot was made from.
    pub(crate) routes: Routes,
    /// Packets that the policies decided since the start, outbound and inbound, by name.
    pub(crate) policies: imbl::HashMap<Arc<str>, [Volume; 2]>,
    /// Packets that the policies decided, by action: the index is [`policy::Action::kind`].
    pub(crate) actions: [[Volume; 2]; policy::Action::NAMES.len()],
    /// Volume that the SAs sealed and opened since the start.
    pub(crate) sas: imbl::HashMap<SaKey, Volume>,
    /// Packets and bytes of SAs that are gone, as sums by peer.
    pub(crate) retired: imbl::OrdMap<Arc<str>, [Volume; 2]>,
    /// Number of times that each peer has moved since the start.
    pub(crate) moves: Arc<HashMap<String, u64>>,
    /// The time of each peer's last authentic packet.
    pub(crate) liveness: LivenessSource,
    /// Names of charon's SAs.
    pub(crate) ike_names: IkeNames,
    /// Source of the snapshot's SPIs: the key files, or stand-ins.
    pub(crate) spis: Spis,
    /// Entries of the flow cache that hold; none if it is off.
    pub(crate) cache_entries: Vec<v1::CacheEntries>,
}

/// Returns all SAs with their counts.
pub(crate) type SaSource = Box<dyn Fn() -> EntryIter<v1::SecurityAssociation> + Send + Sync>;

/// Running state with the counts of a moment. Its last owner may be the control thread, which frees
/// no large structure: another thread does.
pub(crate) struct CountedState {
    pub(crate) running: FreedAside<Running>,
    sas: FreedAside<SaSource>,
    peer_facts: FreedAside<OnceLock<Vec<PeerFacts>>>,
}

/// Facts of a peer that are found for all peers at once.
#[derive(Clone, Copy, Default)]
pub(crate) struct PeerFacts {
    /// Place of its SAs.
    pub(crate) set: Option<SetIndex>,
    /// Number of policies that name it.
    pub(crate) policies: u32,
    /// Packets sealed and opened, over all SAs that it has or had.
    pub(crate) volumes: [Volume; 2],
}

impl CountedState {
    pub(crate) fn new(running: Running, sas: SaSource) -> CountedState {
        let (running, sas) = (FreedAside::new(running), FreedAside::new(sas));
        CountedState { running, sas, peer_facts: FreedAside::new(OnceLock::new()) }
    }

    /// Returns the SAs, which are presented one by one.
    pub(crate) fn sas(self: &Arc<Self>) -> EntryIter<v1::SecurityAssociation> {
        Box::new(StateEntries { entries: (self.sas)(), _state: self.clone() })
    }

    /// Returns the facts of all peers, charon's own peers last. Cost: one pass over peers, SAs and
    /// policies.
    pub(crate) fn peer_facts(&self) -> &[PeerFacts] {
        self.peer_facts.get_or_init(|| peer_facts(&self.running))
    }
}

/// Entries that are made of a state, which lasts as long as the entries.
struct StateEntries<E> {
    entries: EntryIter<E>,
    _state: Arc<CountedState>,
}

impl<E> Iterator for StateEntries<E> {
    type Item = E;

    fn next(&mut self) -> Option<E> {
        self.entries.next()
    }
}

fn peer_facts(running: &Running) -> Vec<PeerFacts> {
    let snapshot = &*running.snapshot;
    let all = || running.settings.peers.iter().chain(&running.ike_peers);
    let places: HashMap<&str, usize> =
        all().enumerate().map(|(place, peer)| (peer.name.as_str(), place)).collect();
    let mut facts = vec![PeerFacts::default(); all().count()];
    let place_of = |peer: &str| places.get(peer).copied();
    for (index, set) in snapshot.sets() {
        if let Some(place) = place_of(&set.peer) {
            facts[place].set = Some(index);
        }
    }
    for (_, policy) in snapshot.spd().holding_policies() {
        let Action::Protect(set) = policy.action else { continue };
        let set = snapshot.sad().places().get(set).map(|place| snapshot.set(place));
        if let Some(place) = set.and_then(|set| place_of(&set.peer)) {
            facts[place].policies += 1;
        }
    }
    for (peer, volumes) in &running.retired {
        if let Some(place) = place_of(peer) {
            facts[place].volumes = *volumes;
        }
    }
    for ((direction, _, peer), volume) in &running.sas {
        let Some(place) = place_of(peer) else { continue };
        let [sealed, opened] = &mut facts[place].volumes;
        let sum = if *direction == Direction::Outbound { sealed } else { opened };
        sum.packets += volume.packets;
        sum.bytes += volume.bytes;
    }
    facts
}
