//! Peers and policies that charon makes by itself, within `[ike]` of the configuration.
//!
//! They run beside those of the file and are no part of it: [`Compiled::validated`] does not have
//! them. Their policies stand behind all policies of the file ([`PolicyId::is_behind`]), so a
//! packet of which the file speaks is decided as if charon had none.
//!
//! Another configuration takes over what its `[ike]` still admits, and nothing else. Every set
//! keeps its place as long as it is there: flow caches go by it.

use std::sync::Arc;

use config::ShuntAction;
use config::validated::Peer;
use ipsec::Tunnel;
use policy::{Action, Policy, PolicyId, PolicyIndex, SaSetId, Selector};

use crate::change::{ChangeRefused, Transaction};
use crate::compile::{CompileError, sa_set};
use crate::compiled::Compiled;
use crate::ike_peers::may_have;
use crate::live::Compiler;
use crate::put_sas::GoneReason;

/// A change of what charon made by itself: one transaction.
#[derive(Clone, Default, Debug)]
pub struct IkeChange {
    /// Names of policies that go.
    pub policies_gone: Vec<String>,
    /// Names of peers that go, with their SAs. No policy names them any more.
    pub peers_gone: Vec<String>,
    /// Peers that come, between the ends of their first policy or SA.
    pub peers: Vec<Peer>,
    /// Policies that come.
    pub policies: Vec<IkePolicy>,
}

/// A policy that charon makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IkePolicy {
    /// Its name, which begins with [`IKE_NAMES`](crate::IKE_NAMES).
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

impl IkeChange {
    /// Returns whether policies come or go with it.
    pub fn has_policies(&self) -> bool {
        !self.policies.is_empty() || !self.policies_gone.is_empty()
    }

    /// Returns whether it takes microseconds to compile: peers alone come or go.
    pub fn is_short(&self) -> bool {
        !self.has_policies()
    }
}

impl Compiled {
    /// Returns whether charon made a policy or peer by itself.
    pub(crate) fn has_own_of_ike(&self) -> bool {
        let mut policies = self.spd.holding_policies();
        self.ike.iter().next().is_some() || policies.any(|(_, policy)| policy.id.is_behind())
    }

    /// Returns a copy without the peers that charon made by itself, and the policies that have to
    /// go with them.
    pub(crate) fn without_own_of_ike(&self) -> (Compiled, Vec<PolicyIndex>) {
        let mut without = self.copied();
        let names: Vec<String> = self.ike_peers().map(|peer| peer.name.clone()).collect();
        names.iter().for_each(|name| _ = without.take_ike_peer(name));
        let policies = self.spd.holding_policies();
        let own = policies.filter(|(_, policy)| policy.id.is_behind());
        (without, own.map(|(index, _)| index).collect())
    }

    /// Returns whether `[ike]` admits a peer that comes.
    fn admits_peer(&self, peer: &Peer) -> bool {
        let running = self.ike_peer(&peer.name);
        self.admits_ends(peer.tunnel())
            && running.is_none_or(|running| running.tunnel() == peer.tunnel())
    }

    /// Returns whether `[ike]` admits tunnels between two ends, and no peer of the file has these
    /// or may move to them.
    pub(crate) fn admits_ends(&self, ends: Tunnel) -> bool {
        let Some(bounds) = &self.settings().ike else { return false };
        bounds.admit_tunnel(ends.local, ends.remote).is_ok()
            && !self.settings().peers.iter().any(|of_file| may_have(of_file, ends))
    }

    /// Returns whether `[ike]` admits a policy, and no other one has its name.
    fn admits_policy(&self, policy: &IkePolicy, gone: &[String]) -> bool {
        let Some(bounds) = &self.settings().ike else { return false };
        let admitted = match &policy.action {
            IkeAction::Protect(_) => bounds.admit_packets(&policy.selector),
            IkeAction::Shunt(action) => bounds.admit_shunt(*action, &policy.selector),
        };
        admitted.is_ok() && (self.spd.named(&policy.name).is_none() || gone.contains(&policy.name))
    }

    /// Returns whether a policy of charon's runs here too.
    fn has_policy_of_ike(&self, policy: &Policy) -> bool {
        let same = self.spd.named(&policy.name).map(|slot| self.spd.policy(slot));
        same.is_some_and(|same| {
            (&same.action, &same.selector, same.priority)
                == (&policy.action, &policy.selector, policy.priority)
        })
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
        // Another configuration may run than the one that it was planned for.
        let is_admitted = peers.iter().all(|peer| running.admits_peer(peer))
            && policies.iter().all(|policy| running.admits_policy(policy, &policies_gone));
        if !is_admitted {
            return Err(ChangeRefused::BeyondIke);
        }
        let mut next = running.copied();
        for peer in peers {
            let known = next.ike.named(&peer.name);
            let mut vacant = || self.ike.vacant_set(&next.ike, &self.sets);
            let set = known.map_or_else(&mut vacant, Ok)?;
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
}

impl Compiler {
    /// Takes out of an earlier configuration, which is to run again, what charon has taken away or
    /// changed since. `None`: nothing.
    ///
    /// Cost: by the policies of charon's.
    ///
    /// # Errors
    /// [`CompileError`]: nothing was changed.
    pub fn without_gone_of_ike(
        &mut self,
        earlier: &Compiled,
        running: &Compiled,
    ) -> Result<Option<Compiled>, CompileError> {
        // The ends of a peer follow the newest SA: other ends are no sign of another peer.
        let is_gone = |(set, peer): &(SaSetId, &Arc<Peer>)| {
            running.ike.peer(*set).is_none_or(|now| now.name != peer.name)
        };
        let gone: Vec<(SaSetId, String)> = earlier
            .ike
            .iter()
            .filter(is_gone)
            .map(|(set, peer)| (set, peer.name.clone()))
            .collect();
        let goes = |policy: &Policy| {
            let is_of_gone = |set: SaSetId| gone.iter().any(|(gone, _)| *gone == set);
            matches!(policy.action, Action::Protect(set) if is_of_gone(set))
                || !running.has_policy_of_ike(policy)
        };
        let policies = earlier.spd.holding_policies();
        let removed: Vec<PolicyIndex> = policies
            .filter(|(_, policy)| policy.id.is_behind() && goes(policy))
            .map(|(slot, _)| slot)
            .collect();
        if gone.is_empty() && removed.is_empty() {
            return Ok(None);
        }
        let transaction = Transaction::of_ike(removed, Vec::new(), self.next_policy);
        let mut compiled = self.carry_out(earlier, transaction)?;
        for (_, name) in gone {
            compiled.take_ike_peer(&name);
        }
        Ok(Some(compiled))
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
