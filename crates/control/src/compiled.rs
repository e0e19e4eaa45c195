//! A compiled configuration, as far as it does not depend on what the kernel says.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use dataplane::connections::Connections;
use dataplane::{
    AcquireSwitch, Generation, Overlays, SaSet, Sad, Snapshot, SnapshotError, Sources,
};
use ipsec::{Fingerprint, InboundSa, OutboundSa, SaId, SequenceNumbers, Spi, Suite};
use policy::{Direction, SaSetId, Spd};

use crate::ike_peers::IkePeers;
use crate::kept_sas::PutSas;
use crate::listing::Listing;
use crate::live_parts::LiveParts;
use crate::peer_address::MovedPeers;
use crate::port_slots::PortSlots;
use config::validated::{Peer, PeerId, Policy, Validated};
use config::{KeyName, KeyNames};

/// A key that is not used, and the reason. The configuration holds without it: its peer has one SA
/// less.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("peer {peer}: SPI {spi} is not used, because of its key: {reason}")]
pub struct RefusedKey {
    /// The peer whose key it is.
    pub peer: String,
    /// Direction of its SA: outbound keys seal, inbound keys open.
    pub direction: Direction,
    /// SPI of the SA that would use the key.
    pub spi: Spi,
    /// Fingerprint of the key.
    pub fingerprint: Fingerprint,
    /// The reason.
    pub reason: keystate::Refusal,
}

/// A compiled configuration, still without the kernel's state.
pub struct Compiled {
    /// The configuration's policies.
    pub spd: Arc<Spd>,
    /// The configuration's SA sets and SAs.
    pub sad: Sad,
    /// SA sets of the peers, in the order of the file.
    pub peers: Arc<[SaSetId]>,
    /// Generation of all policies together.
    pub generation: Generation,
    /// Number of this assignment of slots to policies; a new one when all slots are assigned again.
    pub policy_slots: u32,
    /// Keys that are not used.
    pub refused: Arc<[RefusedKey]>,
    /// Present addresses of the peers behind NATs that have moved.
    pub(crate) moved_peers: MovedPeers,
    /// The SAs that programs have put.
    pub(crate) put: PutSas,
    /// The peers that charon made by itself.
    pub(crate) ike: IkePeers,
    /// The settings, and the order of the policies.
    pub(crate) listing: Listing,
    /// The configuration in one piece, made on first use.
    pub(crate) validated: OnceLock<Arc<Validated>>,
    pub(crate) kept: Arc<PreviousSas>,
    pub(crate) workers: u32,
    /// The connections, from the first configuration on that tracks some.
    pub(crate) connections: Option<Arc<Connections>>,
    /// Virtual networks.
    pub(crate) overlays: Option<Arc<Overlays>>,
    /// Says whether a key manager listens.
    pub(crate) acquires: Arc<AcquireSwitch>,
}

impl Compiled {
    /// Returns the configuration. Cost: the first call copies all policies.
    pub fn validated(&self) -> &Arc<Validated> {
        self.validated
            .get_or_init(|| self.listing.whole(&self.spd, &self.peers, self.slots()).into())
    }

    /// The configuration without its policies: that list is empty. Costs nothing.
    pub fn settings(&self) -> &Arc<Validated> {
        self.listing.settings()
    }

    /// Assembles a snapshot with the kernel's state. Cheap enough for every change of it and of
    /// single policies: it shares unchanged parts with `running`, the snapshot in use. The route
    /// generation rises by 1 if ports, routes or next hops differ.
    ///
    /// # Errors
    /// [`SnapshotError`]: `live` is of another configuration, or a mistake of its maker.
    pub fn assemble(
        &self,
        live: &LiveParts,
        running: Option<&Snapshot>,
    ) -> Result<Arc<Snapshot>, SnapshotError> {
        if live.slots != *self.slots() {
            return Err(SnapshotError::Dangling("a port of another configuration"));
        }
        let sources = Sources {
            generation: self.generation,
            policy_slots: self.policy_slots,
            workers: self.workers,
            ports: live.ports.clone(),
            host: Some(live.slots.host()),
            routes: live.routes.clone(),
            neighbours: live.neighbours.clone(),
            spd: self.spd.clone(),
            sad: self.sad.clone(),
            connections: self.connections.clone(),
            acquires: self.acquires.clone(),
            overlays: self.overlays.clone(),
            cards: None,
        };
        Ok(Snapshot::after(sources, running)?.into())
    }

    /// Returns the table of connections; `None`: no configuration up to this one tracks any.
    pub fn connections(&self) -> Option<&Arc<Connections>> {
        self.connections.as_ref()
    }

    /// Returns the virtual networks; `None`: the configuration has none.
    pub fn overlays(&self) -> Option<&Arc<Overlays>> {
        self.overlays.as_ref()
    }

    /// Returns the slots of its ports and netdevs.
    pub fn slots(&self) -> &Arc<PortSlots> {
        &self.kept.slots
    }

    /// The SA set of a peer, by its place in the file.
    ///
    /// # Panics
    /// If there is no such peer.
    pub fn set_of(&self, peer: usize) -> &Arc<SaSet> {
        let place = self.sad.places().get(self.peers[peer]);
        place.and_then(|place| self.sad.set(place)).expect("each peer has a set")
    }

    /// The SA sets of the peers, in the order of the file.
    pub fn sets(&self) -> impl Iterator<Item = &Arc<SaSet>> {
        (0..self.peers.len()).map(|peer| self.set_of(peer))
    }

    /// Returns the fingerprint of the key that an SA seals with.
    ///
    /// # Panics
    /// If `sa` is from another configuration.
    pub fn outbound_fingerprint(&self, sa: SaId) -> Fingerprint {
        let put = self.put.outbound.get(&sa).map(|kept| kept.fingerprint);
        put.unwrap_or_else(|| self.kept.fingerprints[0][&sa])
    }

    /// Returns the fingerprint of the key that an SA opens with.
    ///
    /// # Panics
    /// If `sa` is from another configuration.
    pub fn inbound_fingerprint(&self, sa: SaId) -> Fingerprint {
        let put = self.put.inbound.get(&sa).map(|kept| kept.fingerprint);
        put.unwrap_or_else(|| self.kept.fingerprints[1][&sa])
    }
}

impl Compiled {
    /// Returns a copy that may be changed by itself. Cheap.
    pub fn copied(&self) -> Compiled {
        self.with(self.spd.clone(), self.listing.clone())
    }

    /// The policy of a name, if it holds and is none of charon's own. Cost: by the changes that are
    /// not folded in.
    pub fn policy_named(&self, name: &str) -> Option<&policy::Policy> {
        let policy = self.spd.policy(self.spd.named(name)?);
        (!policy.id.is_behind()).then_some(policy)
    }

    /// A policy that runs, as it is configured.
    ///
    /// # Panics
    /// If it is of another configuration.
    pub fn configured(&self, policy: &policy::Policy) -> Policy {
        let peer = |set| {
            let place = self.peers.iter().position(|known| *known == set);
            PeerId(place.expect("a policy names a set of its configuration") as u32)
        };
        Policy::from_spd(policy, peer, |ports| self.slots().to_places().list(ports))
    }

    /// Returns a copy with the same SAs and sets and other policies.
    pub(crate) fn with(&self, spd: Arc<Spd>, listing: Listing) -> Compiled {
        Compiled {
            spd,
            sad: self.sad.clone(),
            peers: self.peers.clone(),
            generation: self.generation,
            policy_slots: self.policy_slots,
            refused: self.refused.clone(),
            moved_peers: self.moved_peers.clone(),
            put: self.put.clone(),
            ike: self.ike.clone(),
            listing,
            validated: OnceLock::new(),
            kept: self.kept.clone(),
            workers: self.workers,
            connections: self.connections.clone(),
            acquires: self.acquires.clone(),
            overlays: self.overlays.clone(),
        }
    }
}

impl Compiled {
    /// Returns the peers that charon made by itself.
    pub fn ike_peers(&self) -> impl Iterator<Item = &Peer> {
        self.ike.iter().map(|(_, peer)| &**peer)
    }

    /// Returns the peers of the file, then those that charon made.
    pub fn all_peers(&self) -> impl Iterator<Item = &Peer> {
        self.settings().peers.iter().chain(self.ike_peers())
    }

    /// Returns the peer of this name that charon made.
    pub fn ike_peer(&self, name: &str) -> Option<&Peer> {
        self.ike.peer(self.ike.named(name)?).map(|peer| &**peer)
    }

    /// The set of a peer of this name, of the file or of charon's own.
    pub(crate) fn set_named(&self, name: &str) -> Option<SaSetId> {
        let of_file = || self.kept.sets.get(name).copied();
        self.ike.named(name).or_else(of_file)
    }

    /// The peer that has a set.
    pub(crate) fn peer_with(&self, set: SaSetId) -> Option<&Peer> {
        if let Some(peer) = self.ike.peer(set) {
            return Some(peer);
        }
        let place = self.peers.iter().position(|known| *known == set)?;
        self.settings().peers.get(place)
    }
}

impl Compiled {
    /// The names of the keys in all peers' files, including refused ones. Keys that were put over
    /// the API are not among them: they are written nowhere.
    pub fn key_names(&self) -> KeyNames {
        let peers: HashMap<_, _> = self.sets().map(|set| (set.id, set.peer.as_str())).collect();
        let of_file = |sa: &&Arc<OutboundSa>| !self.put.outbound.contains_key(&sa.id);
        let outbound = self.sad.outbound().filter(of_file).map(|sa| {
            (sa.set, KeyName::new(Direction::Outbound, sa.spi, self.outbound_fingerprint(sa.id)))
        });
        let of_file = |sa: &&Arc<InboundSa>| !self.put.inbound.contains_key(&sa.id);
        let inbound = self.sad.inbound().filter(of_file).map(|sa| {
            (sa.set, KeyName::new(Direction::Inbound, sa.spi, self.inbound_fingerprint(sa.id)))
        });
        let mut names: KeyNames =
            self.sets().map(|set| (set.peer.clone(), BTreeSet::new())).collect();
        let used = outbound.chain(inbound);
        let used = used.filter_map(|(set, name)| Some((*peers.get(&set)?, name)));
        let refused = self
            .refused
            .iter()
            .map(|key| (key.peer.as_str(), KeyName::new(key.direction, key.spi, key.fingerprint)));
        for (peer, name) in used.chain(refused) {
            if let Some(keys) = names.get_mut(peer) {
                keys.insert(name);
            }
        }
        names
    }
}

/// The properties that an SA must keep to stay the same SA. Its encapsulation may change: its key
/// and its numbers go on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SaIdentity {
    pub(crate) spi: Spi,
    pub(crate) suite: Suite,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) numbers: SequenceNumbers,
    /// Size of its replay window; 0 if it seals.
    pub(crate) window: u32,
}

/// State that one compile hands to the next, apart from the policies.
#[derive(Default)]
pub(crate) struct PreviousSas {
    pub(crate) slots: Arc<PortSlots>,
    pub(crate) sets: HashMap<String, SaSetId>,
    /// The SAs as they were compiled, without the places that peers have moved to.
    pub(crate) sad: Sad,
    pub(crate) outbound: HashMap<SaIdentity, Arc<OutboundSa>>,
    pub(crate) inbound: HashMap<SaIdentity, Arc<InboundSa>>,
    /// Fingerprints of outbound SAs and of inbound SAs.
    pub(crate) fingerprints: [HashMap<SaId, Fingerprint>; 2],
}
