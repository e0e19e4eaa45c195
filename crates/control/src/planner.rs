//! The slow part of a compile: the policies of a configuration become a database.
//!
//! ```text
//!  Compiler ──planner()──► Planner ──prepare()──► PreparedConfiguration ──┐  another thread
//!     │                                                                   │
//!     ├── change_ike(): charon's peers and policies come and go           │
//!     │                                                                   │
//!  finish() ◄─────────────────────────────────────────────────────────────┘
//!     └── follow_charon(): the prepared database gets what charon changed meanwhile
//! ```
//!
//! A planner shares with its compiler only numbers that are given once ([`SetNumbers`]), so
//! charon's changes do not wait for it. Changes of the file's policies do
//! ([`CompileError::Overtaken`]).

use std::collections::HashMap;
use std::sync::Arc;

use config::PeerId;
use config::validated::{Peer, Policy, Validated};
use dataplane::Generation;
use policy::{PolicyId, PolicyIndex, SaSetId, Slots, Spd};

use crate::compile::CompileError;
use crate::compiled::{Compiled, PreviousSas};
use crate::ike_peers::IkePeers;
use crate::listing::Listing;
use crate::port_slots::{HeldSlots, PortSlots};
use crate::set_numbers::{ReservedSets, SetNumbers};

/// The last result of a compile.
#[derive(Clone)]
pub(crate) struct Last {
    pub(crate) spd: Arc<Spd>,
    pub(crate) kept: Arc<PreviousSas>,
}

/// The state of a [`Compiler`](crate::Compiler) at one moment, as a configuration is prepared with.
pub struct Planner {
    pub(crate) generation: Generation,
    pub(crate) next_policy: u32,
    pub(crate) sets: SetNumbers,
    pub(crate) held: HeldSlots,
    /// Changes of the file's policies that were finished.
    pub(crate) file_changes: u64,
    pub(crate) last: Option<Last>,
}

/// A configuration whose policies are compiled; for the compiler whose planner made it, before
/// another change of the file's policies.
pub struct PreparedConfiguration {
    pub(crate) listing: Listing,
    pub(crate) spd: Arc<Spd>,
    pub(crate) slots: Slots,
    pub(crate) ports: Arc<PortSlots>,
    pub(crate) generation: Generation,
    /// One entry per peer.
    pub(crate) sets: Vec<SaSetId>,
    /// Sets of new peers.
    pub(crate) new_sets: ReservedSets,
    /// Peers of charon's own that stay.
    pub(crate) ike: IkePeers,
    /// False if charon's own policies did not fit beside those of the file: its peers go too.
    has_room_for_own: bool,
    /// Number that the next policy gets.
    pub(crate) next_policy: u32,
    pub(crate) file_changes: u64,
    /// The database that it continues.
    pub(crate) continued: Option<Arc<Spd>>,
}

impl PreparedConfiguration {
    /// The configuration without its policies.
    pub fn settings(&self) -> &Arc<Validated> {
        self.listing.settings()
    }

    /// Takes over the present peers of charon's own. Charon's policies did not change since this
    /// configuration was prepared.
    pub(crate) fn follow_peers(&mut self, running: &Compiled) {
        if self.has_room_for_own {
            self.ike = running.ike.admitted_by(self.settings());
        }
    }

    /// Brings the database up to `running`, whose policies of charon's own changed while this
    /// configuration was prepared. `newest` is the database that was compiled last.
    ///
    /// Cost: by the policies of charon's own; all policies are looked through. Where the changes do
    /// not fit in front of the base, the base is compiled anew.
    ///
    /// # Errors
    /// [`CompileError::Spd`].
    pub(crate) fn follow_charon(
        &mut self,
        running: &Compiled,
        newest: &Arc<Spd>,
        generation: Generation,
    ) -> Result<(), CompileError> {
        let config = self.settings().clone();
        let is_same = self.continued.as_ref().is_some_and(|spd| Arc::ptr_eq(spd, &self.spd));
        self.ike = running.ike.admitted_by(&config);
        let own = self.ike.policies_admitted(config.ike.as_ref(), &running.spd);
        if is_same && Arc::ptr_eq(newest, &running.spd) && own.len() == count_own(newest) {
            (self.spd, self.generation) = (newest.clone(), generation);
            return Ok(());
        }
        self.replace_own(own)?;
        // Counters go by slot, and another policy had some of these slots meanwhile.
        self.slots = Slots::GivenAnew;
        self.spd = Arc::new(Spd::clone(&self.spd).beyond(newest));
        self.generation = Generation(generation.0.wrapping_add(1));
        Ok(())
    }

    /// Replaces the policies of charon's own. Where they do not fit beside the policies of the
    /// file, they go.
    fn replace_own(&mut self, own: Vec<policy::Policy>) -> Result<(), CompileError> {
        let mut missing: HashMap<PolicyId, policy::Policy> =
            own.iter().map(|policy| (policy.id, policy.clone())).collect();
        let mut removed: Vec<PolicyIndex> = Vec::new();
        for (slot, policy) in self.spd.holding_policies().filter(|(_, of)| of.id.is_behind()) {
            if missing.get(&policy.id) == Some(policy) {
                missing.remove(&policy.id);
            } else {
                removed.push(slot);
            }
        }
        let mut added: Vec<policy::Policy> = missing.into_values().collect();
        added.sort_by_key(|policy| policy.id);
        if removed.is_empty() && added.is_empty() {
            return Ok(());
        }
        let spd = match self.spd.changed(&removed, added) {
            Ok(spd) => spd,
            Err(_) => match self.compile_with(own) {
                Err(CompileError::Spd(_)) => {
                    self.ike = IkePeers::default();
                    self.compile_with(Vec::new())?
                }
                compiled => compiled?,
            },
        };
        self.listing = self.listing.upon(&spd, &self.spd);
        self.spd = Arc::new(spd);
        Ok(())
    }

    /// Compiles the policies of the file with policies of charon's own.
    fn compile_with(&self, own: Vec<policy::Policy>) -> Result<Spd, CompileError> {
        let of_file = self.spd.holding().filter(|(_, policy)| !policy.id.is_behind());
        let mut policies: Vec<_> = of_file.map(|(_, policy)| policy.clone()).collect();
        policies.extend(own);
        let room = room_for(policies.len());
        Ok(self.spd.renewed(policies, room)?.0)
    }
}

/// Policies of charon's own.
fn count_own(spd: &Spd) -> usize {
    spd.holding_policies().filter(|(_, policy)| policy.id.is_behind()).count()
}

impl Planner {
    /// Compiles the policies of a configuration, 0.3 s for 100 000, with what charon has made by
    /// itself in `running` and `[ike]` still admits. Where that does not fit beside the policies of
    /// the file, it goes.
    ///
    /// # Errors
    /// [`CompileError::Spd`], [`CompileError::OutOfNumbers`].
    pub fn prepare(
        &self,
        config: Validated,
        running: Option<&Compiled>,
    ) -> Result<PreparedConfiguration, CompileError> {
        let ike = running.map_or_else(IkePeers::default, |of| of.ike.admitted_by(&config));
        let bounds = config.ike.as_ref();
        let own = running.map_or_else(Vec::new, |of| ike.policies_admitted(bounds, &of.spd));
        if own.is_empty() {
            return self.prepare_beside(config, (ike, own));
        }
        match self.prepare_beside(config.clone(), (ike, own)) {
            Err(CompileError::Spd(_)) => {
                let prepared = self.prepare_beside(config, (IkePeers::default(), Vec::new()))?;
                Ok(PreparedConfiguration { has_room_for_own: false, ..prepared })
            }
            prepared => prepared,
        }
    }

    fn prepare_beside(
        &self,
        config: Validated,
        (ike, own): (IkePeers, Vec<policy::Policy>),
    ) -> Result<PreparedConfiguration, CompileError> {
        let rules = config.group_policies();
        let left = PolicyId::FIRST_BEHIND.0.saturating_sub(self.next_policy);
        if left as usize <= config.policies.len() + rules.len() {
            return Err(CompileError::OutOfNumbers);
        }
        let last = self.last.as_ref();
        let mut next = PolicyNumbers { next: self.next_policy };
        let mut new_sets = self.sets.reservation();
        let sets = sets_of(&config.peers, last, &mut new_sets)?;
        let ports = self.held.slots_for(&config).ok_or(CompileError::OutOfNumbers)?;
        let mut policies = next.policies(&config.policies, (&sets, &ports), last);
        policies.extend(next.rules(rules, &ports, last));
        policies.extend(own);
        let room = room_for(policies.len());
        let (spd, slots) = match last {
            Some(last) if last.spd.holds_only(&policies) => (last.spd.clone(), Slots::Kept),
            Some(last) => {
                let (spd, slots) = match last.spd.with_few_changed_rules(&policies) {
                    Some(spd) => (spd, Slots::Kept),
                    None => last.spd.renewed(policies, room)?,
                };
                (Arc::new(spd), slots)
            }
            None => (Arc::new(Spd::with_room(policies, room)?), Slots::GivenAnew),
        };
        let continued = last.map(|last| last.spd.clone());
        let is_same = continued.as_ref().is_some_and(|last| Arc::ptr_eq(last, &spd));
        Ok(PreparedConfiguration {
            generation: Generation(self.generation.0.wrapping_add(u32::from(!is_same))),
            listing: Listing::new(config, &spd),
            spd,
            slots,
            ports,
            sets,
            new_sets,
            ike,
            has_room_for_own: true,
            next_policy: next.next,
            file_changes: self.file_changes,
            continued,
        })
    }
}

/// Returns slots for `policies` policies and those added later. When none is left, all are assigned
/// again, and counters start again.
pub(crate) fn room_for(policies: usize) -> usize {
    policies.saturating_mul(2).next_power_of_two().max(LEAST_SLOTS)
}

/// Minimum number of slots.
const LEAST_SLOTS: usize = 16_384;

/// The SA-set id of each peer. A new peer takes one that was never given.
fn sets_of(
    peers: &[Peer],
    last: Option<&Last>,
    new_sets: &mut ReservedSets,
) -> Result<Vec<SaSetId>, CompileError> {
    let id = |peer: &Peer| {
        let known = last.and_then(|last| last.kept.sets.get(&peer.name).copied());
        known.map_or_else(|| new_sets.take(), Ok)
    };
    peers.iter().map(id).collect()
}

/// Numbers of policies, from the first that was never given.
struct PolicyNumbers {
    next: u32,
}

impl PolicyNumbers {
    /// The policies under their ids. Of equal priority the higher id wins, and it is the later in
    /// the file: where a kept id would say otherwise, there is a new one.
    fn policies(
        &mut self,
        policies: &[Policy],
        (sets, ports): (&[SaSetId], &PortSlots),
        last: Option<&Last>,
    ) -> Vec<policy::Policy> {
        let mut slots = ports.to_slots();
        let last = last.into_iter().flat_map(|last| last.spd.holding_policies());
        let known: HashMap<&str, &policy::Policy> =
            last.map(|(_, policy)| (policy.name.as_str(), policy)).collect();
        let mut highest: HashMap<u32, PolicyId> = HashMap::new();
        let mut compiled = Vec::with_capacity(policies.len());
        for policy in policies {
            let id = known.get(policy.name.as_str()).map_or(PolicyId(u32::MAX), |known| known.id);
            let set = |peer: PeerId| sets[peer.0 as usize];
            let mut policy = policy.for_spd(id, set, |ports| slots.ingress(ports));
            let same = known.get(policy.name.as_str()) == Some(&&policy);
            let earlier = highest.get(&policy.priority);
            if !same || earlier.is_some_and(|earlier| *earlier >= id) {
                policy.id = PolicyId(self.next);
                self.next += 1;
            }
            highest.insert(policy.priority, policy.id);
            compiled.push(policy);
        }
        compiled
    }

    /// The rules of groups under their ids, their ports as slots. No two rules of one priority
    /// match the same packet, so any id will do.
    fn rules(
        &mut self,
        rules: Vec<policy::Policy>,
        ports: &PortSlots,
        last: Option<&Last>,
    ) -> impl Iterator<Item = policy::Policy> {
        let mut slots = ports.to_slots();
        let last = last.into_iter().flat_map(|last| last.spd.holding_rules());
        let known: HashMap<_, &policy::Policy> =
            last.map(|(_, rule)| ((rule.group, rule.priority, rule.name.as_str()), rule)).collect();
        rules.into_iter().map(move |mut rule| {
            rule.ingress = rule.ingress.map(|ports| slots.list(&ports));
            let known = known.get(&(rule.group, rule.priority, rule.name.as_str()));
            if let Some(known) = known {
                rule.id = known.id;
            }
            if known != Some(&&rule) {
                rule.id = PolicyId(self.next);
                self.next += 1;
            }
            rule
        })
    }
}
