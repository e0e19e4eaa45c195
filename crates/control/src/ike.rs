//! Peers and policies that charon makes by itself, within `[ike]` of the configuration.
//!
//! They run beside those of the file and are no part of it: [`Compiled::validated`] does not have
//! them. Their policies stand behind all policies of the file ([`PolicyId::is_behind`]), so a
//! packet of which the file speaks is decided as if charon had none.
//!
//! Another configuration takes over what its `[ike]` still admits, and nothing else. Every set
//! keeps its place as long as it is there: flow caches go by it.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use config::validated::Peer;
use config::{IkeBounds, ShuntAction, Validated};
use dataplane::SaSet;
use imbl::OrdMap;
use policy::{Action, Policy, PolicyId, SaSetId, Selector, SetIndex, Spd};

use crate::change::{ChangeRefused, Transaction};
use crate::compile::{CompileError, sa_set};
use crate::compiled::Compiled;
use crate::live::Compiler;
use crate::put_sas::GoneReason;

/// The begin of the name of every peer and policy that charon makes. No name in a file has a colon.
pub const IKE_NAMES: &str = "ike:";

/// Sets of peers that are gone, after as many of which the first is given again. By then nothing
/// remembers it: the generations of all its policies' domains rose when these went.
const REST: usize = 65_536;

/// A change of what charon made by itself: one transaction.
#[derive(Clone, Default, Debug)]
pub struct IkeChange {
    /// Names of policies that go.
    pub policies_gone: Vec<String>,
    /// Names of peers that go, with their SAs. No policy names them any more.
    pub peers_gone: Vec<String>,
    /// Peers that come, or are carried in another way from now on.
    pub peers: Vec<Peer>,
    /// Policies that come.
    pub policies: Vec<IkePolicy>,
}

/// A policy that charon makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IkePolicy {
    /// Its name, which begins with [`IKE_NAMES`].
    pub name: String,
    /// Its action.
    pub action: IkeAction,
    /// Its rank among those of charon's: the higher wins, among equals the later.
    pub priority: u32,
    /// Its packets.
    pub selector: Selector,
}

/// The action of a policy that charon makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IkeAction {
    /// PROTECT, by the SAs of this peer, which charon made too.
    Protect(String),
    /// A shunt.
    Shunt(ShuntAction),
}

/// The result of a change, beside the configuration that has it.
pub struct ChangedIke {
    /// The configuration.
    pub compiled: Compiled,
    /// Policies that went.
    pub removed: Vec<Policy>,
    /// Policies that came.
    pub added: Vec<Policy>,
}

/// The peers that charon made. Cheap to copy; a changed copy shares what did not change.
#[derive(Clone, Default)]
pub(crate) struct IkePeers {
    peers: OrdMap<SaSetId, Arc<Peer>>,
    names: OrdMap<String, SaSetId>,
}

/// Numbers that charon's policies and peers get.
#[derive(Default)]
pub(crate) struct IkeNumbers {
    /// Policies that there were so far.
    policies: u32,
    /// Sets that went, the oldest first.
    rested: VecDeque<SaSetId>,
}

impl IkeNumbers {
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

    fn insert(&mut self, set: SaSetId, peer: Peer) {
        self.names.insert(peer.name.clone(), set);
        self.peers.insert(set, Arc::new(peer));
    }

    fn remove(&mut self, name: &str) -> Option<SaSetId> {
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
        let mut admitted = IkePeers::default();
        for (set, peer) in self.iter() {
            let (local, remote) = ends(peer);
            let is_admitted = bounds.admit_tunnel(local, remote).is_ok();
            if is_admitted && !of_file.contains(&(local, remote)) {
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
        running: &'s Compiled,
    ) -> impl Iterator<Item = (SetIndex, Arc<SaSet>)> + 's {
        self.iter().filter_map(|(id, _)| {
            let place = running.sad.places().get(id)?;
            let set = running.sad.set(place)?;
            // Its SAs come afterwards.
            Some((place, SaSet { outbound: Vec::new(), ..SaSet::clone(set) }.into()))
        })
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

    /// Returns whether charon made a peer of this name, which is there.
    pub fn has_ike_peer(&self, name: &str) -> bool {
        self.ike.named(name).is_some()
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

    /// Takes a peer of charon's out, with its SAs.
    fn take_ike_peer(&mut self, name: &str) -> Option<SaSetId> {
        let set = self.ike.remove(name)?;
        let place = self.sad.places().get(set)?;
        let sealing = self.sad.set(place).map_or(Vec::new(), |set| set.outbound.clone());
        let opening = self.sad.openers_of(place).to_vec();
        for id in sealing {
            self.take_outbound(id, GoneReason::PeerGone);
        }
        for id in opening {
            self.take_inbound(id, GoneReason::PeerGone);
        }
        self.sad.remove_set(set);
        Some(set)
    }
}

impl Compiler {
    /// Makes a change of what charon made by itself, in one transaction. `running` is what runs.
    ///
    /// Cost: by the change, and by the changes that are not folded in yet; where it does not fit in
    /// front of the base, by all policies.
    ///
    /// # Errors
    /// [`ChangeRefused`]: nothing was changed.
    pub fn change_ike(
        &mut self,
        running: &Compiled,
        change: IkeChange,
    ) -> Result<ChangedIke, ChangeRefused> {
        let IkeChange { policies_gone, peers_gone, peers, policies } = change;
        let mut next = running.copied();
        for peer in peers {
            let known = next.ike.named(&peer.name);
            let set = known.map_or_else(|| self.vacant_set(running), Ok)?;
            let place = next.sad.places().get(set);
            let before = place.and_then(|place| next.sad.set(place));
            let outbound = before.map_or(Vec::new(), |set| set.outbound.clone());
            next.sad.put_set(sa_set(&peer, set, outbound));
            next.ike.insert(set, peer);
        }
        let find = |name: &String| {
            let unknown = || ChangeRefused::Unknown { name: name.clone(), nearest: None };
            let slot = running.spd.named(name).ok_or_else(unknown)?;
            running.spd.policy(slot).id.is_behind().then_some(slot).ok_or_else(unknown)
        };
        let removed = policies_gone.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let mut added = Vec::with_capacity(policies.len());
        for (number, policy) in (self.ike.policies..).zip(policies) {
            let set = |peer: &String| {
                let unknown = || ChangeRefused::OtherConfiguration { name: peer.clone() };
                next.ike.named(peer).ok_or_else(unknown)
            };
            added.push(policy.for_spd(number, set)?);
        }
        let numbers = self.ike.policies.checked_add(added.len() as u32);
        let numbers = numbers.filter(|most| *most < PolicyId::FIRST_BEHIND.0);
        let numbers = numbers.ok_or(CompileError::OutOfNumbers)?;
        let gone: Vec<Policy> =
            removed.iter().map(|slot| running.spd.policy(*slot).clone()).collect();
        let transaction = Transaction::of_ike(removed, added.clone(), self.next_policy);
        let mut compiled = self.carry_out(&next, transaction)?;
        self.ike.policies = numbers;
        for name in peers_gone {
            self.ike.rested.extend(compiled.take_ike_peer(&name));
        }
        Ok(ChangedIke { compiled, removed: gone, added })
    }

    /// A number for the set of a peer of charon's.
    fn vacant_set(&mut self, running: &Compiled) -> Result<SaSetId, CompileError> {
        while self.ike.rested.len() > REST {
            // One of a change that did not come to run is in use.
            let id = self.ike.rested.pop_front().filter(|id| running.ike.peer(*id).is_none());
            if let Some(id) = id {
                return Ok(id);
            }
        }
        let id = SaSetId(self.next_set);
        self.next_set = self.next_set.checked_add(1).ok_or(CompileError::OutOfNumbers)?;
        Ok(id)
    }
}

impl IkePolicy {
    fn for_spd(
        self,
        number: u32,
        set: impl FnOnce(&String) -> Result<SaSetId, ChangeRefused>,
    ) -> Result<Policy, ChangeRefused> {
        let IkePolicy { name, action, priority, selector } = self;
        Ok(Policy {
            id: PolicyId(PolicyId::FIRST_BEHIND.0 | number),
            name,
            action: match &action {
                IkeAction::Protect(peer) => Action::Protect(set(peer)?),
                IkeAction::Shunt(ShuntAction::Bypass) => Action::Bypass,
                IkeAction::Shunt(ShuntAction::Discard) => Action::Discard,
            },
            priority,
            only: None,
            group: None,
            ingress: None,
            selector,
        })
    }
}
