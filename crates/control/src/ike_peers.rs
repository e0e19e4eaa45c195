//! Peers that charon makes by itself, as a configuration holds them.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use config::validated::{KeySource, Peer, PeerPlace};
use config::{IkeBounds, ShuntAction, Validated};
use dataplane::{SaSet, Sad};
use imbl::OrdMap;
use ipsec::Tunnel;
use policy::{Action, Policy, SaSetId, SetIndex, Spd};

use crate::compile::CompileError;
use crate::peer_address::PeerEnds;
use crate::set_numbers::SetNumbers;

/// The begin of the name of every peer and policy that charon makes. No name in a file has a colon.
pub const IKE_NAMES: &str = "ike:";

/// Sets of peers that are gone, after as many of which the first is given again. By then nothing
/// remembers it: the generations of all its policies' domains rose when these went.
const REST: usize = 65_536;

/// The peers that charon made. Cheap to copy; a changed copy shares what did not change.
#[derive(Clone, Default)]
pub(crate) struct IkePeers {
    peers: OrdMap<SaSetId, Arc<Peer>>,
    names: OrdMap<String, SaSetId>,
}

/// Returns whether charon may move SAs of a peer in the file.
fn is_movable(peer: &Peer) -> bool {
    let is_roaming = !peer.moves.is_none() || peer.place == PeerPlace::BehindNat;
    is_roaming && peer.keys == KeySource::Ike
}

/// Returns whether a peer of the file has these ends, or may move to them: between such charon has
/// no peers of its own.
pub(crate) fn may_have(peer: &Peer, ends: Tunnel) -> bool {
    peer.tunnel() == ends || (is_movable(peer) && peer.may_be_between(ends))
}

/// Numbers that charon's policies and peers get.
#[derive(Default)]
pub(crate) struct IkeNumbers {
    /// Policies that there were so far.
    pub(crate) policies: u32,
    /// Sets that went, the oldest first.
    pub(crate) rested: VecDeque<SaSetId>,
}

impl IkeNumbers {
    /// Returns a number for the set of another peer.
    ///
    /// # Errors
    /// [`CompileError::OutOfNumbers`].
    pub(crate) fn vacant_set(
        &mut self,
        running: &IkePeers,
        sets: &SetNumbers,
    ) -> Result<SaSetId, CompileError> {
        while self.rested.len() > REST {
            // One of a change that did not come to run is in use.
            if let Some(id) = self.rested.pop_front().filter(|id| running.peer(*id).is_none()) {
                return Ok(id);
            }
        }
        sets.take()
    }

    /// Notes the sets that one configuration has and another has not.
    pub(crate) fn rest(&mut self, before: &IkePeers, after: &IkePeers) {
        let gone = before.peers.keys().filter(|set| !after.peers.contains_key(*set));
        self.rested.extend(gone);
    }
}

impl IkePeers {
    pub(crate) fn named(&self, name: &str) -> Option<SaSetId> {
        self.names.get(name).copied()
    }

    pub(crate) fn peer(&self, set: SaSetId) -> Option<&Arc<Peer>> {
        self.peers.get(&set)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SaSetId, &Arc<Peer>)> {
        self.peers.iter().map(|(set, peer)| (*set, peer))
    }

    pub(crate) fn insert(&mut self, set: SaSetId, peer: Peer) {
        self.names.insert(peer.name.clone(), set);
        self.peers.insert(set, Arc::new(peer));
    }

    /// Has a peer be between other ends; a peer of the file is none of these.
    pub(crate) fn set_ends(&mut self, set: SaSetId, ends: PeerEnds) {
        let Some(peer) = self.peers.get(&set) else { return };
        let encapsulation = ends.carry(peer.encapsulation);
        if encapsulation != peer.encapsulation {
            let moved = Peer { encapsulation, ..Peer::clone(peer) };
            self.peers.insert(set, Arc::new(moved));
        }
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<SaSetId> {
        let set = self.names.remove(name)?;
        self.peers.remove(&set);
        Some(set)
    }

    /// Those that a configuration admits.
    pub(crate) fn admitted_by(&self, config: &Validated) -> IkePeers {
        let Some(bounds) = &config.ike else { return IkePeers::default() };
        if self.peers.is_empty() {
            return IkePeers::default();
        }
        let ends = |peer: &Peer| (peer.tunnel().local, peer.tunnel().remote);
        let of_file: HashSet<(IpAddr, IpAddr)> = config.peers.iter().map(ends).collect();
        let movable: Vec<&Peer> = config.peers.iter().filter(|peer| is_movable(peer)).collect();
        let mut admitted = IkePeers::default();
        for (set, peer) in self.iter() {
            let (local, remote) = ends(peer);
            let is_admitted = bounds.admit_tunnel(local, remote).is_ok();
            let is_of_file = of_file.contains(&(local, remote))
                || movable.iter().any(|of_file| may_have(of_file, peer.tunnel()));
            if is_admitted && !is_of_file {
                admitted.names.insert(peer.name.clone(), set);
                admitted.peers.insert(set, peer.clone());
            }
        }
        admitted
    }

    /// The policies of charon's in a database that a configuration admits, whose peers these are.
    pub(crate) fn policies_admitted(&self, bounds: Option<&IkeBounds>, spd: &Spd) -> Vec<Policy> {
        let Some(bounds) = bounds else { return Vec::new() };
        let is_admitted = |policy: &&Policy| match policy.action {
            Action::Protect(set) => {
                self.peers.contains_key(&set) && bounds.admit_packets(&policy.selector).is_ok()
            }
            Action::Bypass => bounds.admit_shunt(ShuntAction::Bypass, &policy.selector).is_ok(),
            _ => bounds.admit_shunt(ShuntAction::Discard, &policy.selector).is_ok(),
        };
        let policies = spd.holding_policies().map(|(_, policy)| policy);
        policies.filter(|policy| policy.id.is_behind()).filter(is_admitted).cloned().collect()
    }

    /// Their sets, and the places that these have in a running configuration.
    pub(crate) fn sets_in<'s>(
        &'s self,
        sad: &'s Sad,
    ) -> impl Iterator<Item = (SetIndex, Arc<SaSet>)> + 's {
        self.iter().filter_map(|(id, _)| {
            let place = sad.places().get(id)?;
            let set = sad.set(place)?;
            // Its SAs come afterwards.
            Some((place, SaSet { outbound: Vec::new(), ..SaSet::clone(set) }.into()))
        })
    }
}
