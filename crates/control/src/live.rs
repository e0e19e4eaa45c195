//! Compiles, in a running daemon, one configuration after the other, so that nothing that did not
//! change is disturbed.
//!
//! | | kept while |
//! |---|---|
//! | policy id | all of it is the same, and the order of the file allows it |
//! | id of a group's rule | all of it is the same: name, side, priority, ports, selector, action |
//! | SA-set id | a peer of that name is there |
//! | SA, its expanded key | SPI, direction, key, suite, ESN and window size are the same |
//! | where a peer has moved to | its ends, UDP port and mode are configured as before |
//! | counter, window | the key is ([`keystate`]) |
//! | SA that was put | its peer is there and has `keys = "api"` |
//! | peer and policy of charon's own | `[ike]` admits it, and no peer of the file has its ends |
//! | generation | all policies are the same; each domain has one of its own |
//! | policy's slot | its id is, and there are slots left |
//! | SA's slot, SA set's place | it is |
//! | port's slot | its name, netdev and VLAN id are |
//! | table of endpoints | the daemon runs, from the first virtual network on |
//! | table of connections | the daemon runs, from the first rule on that makes connections |
//! | route generation | ports, routes and next hops are the same |
//!
//! Ids and generations are never used twice while the process lives.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use dataplane::{AcquireSwitch, Generation};
use ipsec::{ReplayWindow, SaError, Tunnel};
use keystate::KeyState;
use policy::{PolicyId, SaSetId, Slots, Spd};

use crate::associations::Associations;
use crate::compile::CompileError;
use crate::compiled::{Compiled, PreviousSas};
use crate::connections::SharedConnections;
use crate::ike_peers::{IkeNumbers, IkePeers};
use crate::kept_sas::PutSas;
use crate::listing::Listing;
use crate::overlays::SharedEndpoints;
use crate::peer_address::MovedPeers;
use crate::port_slots::{HeldSlots, PortSlots};
use config::validated::{Peer, Policy, Validated};
use config::{Keys, Loaded, PeerId};

/// Compiles one configuration after another, and keeps the state that the next one reuses.
pub struct Compiler {
    workers: u32,
    pub(crate) generation: Generation,
    pub(crate) policy_slots: u32,
    pub(crate) next_policy: u32,
    pub(crate) next_set: u32,
    pub(crate) ike: IkeNumbers,
    held: HeldSlots,
    /// Number of compiles that were finished, and of changes made.
    pub(crate) compiles: u64,
    pub(crate) last: Option<Last>,
    connections: SharedConnections,
    endpoints: SharedEndpoints,
    acquires: Arc<AcquireSwitch>,
}

/// The last result of a compile.
pub(crate) struct Last {
    pub(crate) spd: Arc<Spd>,
    pub(crate) kept: Arc<PreviousSas>,
}

impl Default for Compiler {
    fn default() -> Compiler {
        Compiler::new()
    }
}

impl Compiler {
    /// The switch that says whether a key manager listens; shared by all that it compiles.
    pub fn acquires(&self) -> &Arc<AcquireSwitch> {
        &self.acquires
    }

    /// Forgets the table of endpoints, which could not be filled, before a configuration with it
    /// runs.
    pub fn forget_endpoints(&mut self) {
        self.endpoints.forget();
    }

    /// Takes the writer of the table of endpoints, once, after a configuration with virtual
    /// networks was compiled.
    pub fn take_endpoints(&mut self) -> Option<endpoints::Book> {
        self.endpoints.take_book()
    }

    /// Returns a compiler for any number of workers: replay windows are committed to under a lock.
    pub fn new() -> Compiler {
        Compiler::for_workers(u32::MAX)
    }

    /// Returns a compiler for `workers` worker threads, now and later. One worker needs no lock.
    pub fn for_workers(workers: u32) -> Compiler {
        Compiler {
            workers,
            generation: Generation(0),
            policy_slots: 0,
            next_policy: 0,
            next_set: 0,
            ike: IkeNumbers::default(),
            held: HeldSlots::default(),
            compiles: 0,
            last: None,
            connections: SharedConnections::default(),
            endpoints: SharedEndpoints::default(),
            acquires: Arc::default(),
        }
    }

    /// Does the slow part of a compile, 0.3 s for 100 000 policies. Changes no shared state, so it
    /// can run in the background.
    ///
    /// # Errors
    /// [`CompileError::Spd`], [`CompileError::OutOfNumbers`].
    pub fn prepare(&self, config: Validated) -> Result<PreparedConfiguration, CompileError> {
        self.prepare_after(config, None)
    }

    /// Prepares as [`Compiler::prepare`] does, with what charon has made by itself in `running` and
    /// `[ike]` still admits. Where that does not fit beside the policies of the file, it goes.
    ///
    /// # Errors
    /// Those of [`Compiler::prepare`].
    pub fn prepare_after(
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
                self.prepare_beside(config, (IkePeers::default(), Vec::new()))
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
        let mut next = Ids { policy: self.next_policy, set: self.next_set };
        let sets = next.sets(&config.peers, self.last.as_ref());
        let ports = self.held.slots_for(&config).ok_or(CompileError::OutOfNumbers)?;
        let mut policies = next.policies(&config.policies, (&sets, &ports), self.last.as_ref());
        policies.extend(next.rules(rules, &ports, self.last.as_ref()));
        policies.extend(own);
        let room = room_for(policies.len());
        let (spd, slots) = match &self.last {
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
        let is_same = self.last.as_ref().is_some_and(|last| Arc::ptr_eq(&last.spd, &spd));
        let generation = Generation(self.generation.0.wrapping_add(u32::from(!is_same)));
        let listing = Listing::new(config, &spd);
        let compiles = self.compiles;
        Ok(PreparedConfiguration {
            listing,
            spd,
            slots,
            ports,
            generation,
            sets,
            ike,
            next,
            compiles,
        })
    }

    /// Compiles a configuration. The first has generation 1.
    ///
    /// # Errors
    /// As [`Compiler::prepare`] and [`Compiler::finish`].
    pub fn compile(
        &mut self,
        loaded: &Loaded,
        keys: &mut KeyState,
    ) -> Result<Compiled, CompileError> {
        check_associations(&loaded.validated, &loaded.keys)?;
        let prepared = self.prepare(loaded.validated.clone())?;
        self.finish(prepared, &loaded.keys, keys, None)
    }

    /// Compiles a configuration whose policies are prepared.
    ///
    /// 1. what else can fail, which takes nothing from anyone;
    /// 2. counters and windows for every key; a key that is refused costs its own SA;
    /// 3. the SAs that were put into what runs go on;
    /// 4. what is new becomes what the next compile keeps.
    ///
    /// `running`: what runs, if anything does.
    ///
    /// # Errors
    /// [`CompileError`]. A file that was validated is at fault only if a key file has the SPI of an
    /// inbound SA that was put ([`SnapshotError::SameSpi`](dataplane::SnapshotError)). Nothing was
    /// taken, and what runs goes on.
    pub fn finish(
        &mut self,
        prepared: PreparedConfiguration,
        read: &Keys,
        keys: &mut KeyState,
        running: Option<&Compiled>,
    ) -> Result<Compiled, CompileError> {
        let PreparedConfiguration { listing, spd, slots, ports, generation, .. } = prepared;
        let PreparedConfiguration { sets: set_ids, ike, next, compiles, .. } = prepared;
        let config = listing.settings().clone();
        if compiles != self.compiles {
            return Err(CompileError::Overtaken);
        }
        check_associations(&config, read)?;
        let connections = self.connections.for_configuration(&config)?;
        let overlays = self.endpoints.for_configuration(&config, &ports)?;
        let nothing = PreviousSas::default();
        let last = self.last.as_ref().map_or(&nothing, |last| &*last.kept);
        let (none, put) = (PutSas::default(), running.map(|running| &running.put));
        let mut made = Associations::after(last, put.unwrap_or(&none));
        for ((peer, lines), (set, file)) in
            config.peers.iter().zip(&read.peers).zip(set_ids.iter().zip(&read.files))
        {
            match file {
                Some(file) => made.add_peer(peer, *set, lines, file, keys)?,
                None => made.add_set(peer, *set),
            }
        }
        // A counter that gets no numbers now gets some when a later call succeeds. The daemon's own
        // calls tell why they fail.
        let _ = keys.top_up();
        let own_sets = running.map_or_else(Vec::new, |of| ike.sets_in(&of.sad).collect());
        let (sad, refused, kept) = made.finish(&own_sets)?;
        let names = config.peers.iter().map(|peer| peer.name.clone());
        let kept = Arc::new(PreviousSas {
            slots: ports,
            sets: names.zip(set_ids.iter().copied()).collect(),
            ..kept
        });
        let mut compiled = Compiled {
            spd: spd.clone(),
            sad,
            peers: set_ids.into(),
            generation,
            policy_slots: self.policy_slots,
            refused: refused.into(),
            moved_peers: MovedPeers::default(),
            put: PutSas::default(),
            ike,
            listing,
            validated: OnceLock::new(),
            kept: kept.clone(),
            workers: self.workers,
            connections,
            overlays,
            acquires: self.acquires.clone(),
        };
        if let Some(running) = running {
            compiled.keep_put_sas(running)?;
        }
        if let Some(running) = running {
            self.ike.rest(&running.ike, &compiled.ike);
        }
        self.held.hold(&kept.slots);
        (self.next_policy, self.next_set) = (next.policy, next.set);
        self.take(generation, &spd, slots, &kept);
        compiled.policy_slots = self.policy_slots;
        Ok(compiled)
    }

    /// Records a result as the last, and counts the arrangement of policy slots on if it
    /// changed.
    pub(crate) fn take(
        &mut self,
        generation: Generation,
        spd: &Arc<Spd>,
        slots: Slots,
        kept: &Arc<PreviousSas>,
    ) {
        self.policy_slots += u32::from(slots == Slots::GivenAnew);
        self.generation = generation;
        self.compiles += 1;
        self.last = Some(Last { spd: spd.clone(), kept: kept.clone() });
    }
}

/// Returns slots for `policies` policies and those added later. When none is left, all are assigned
/// again, and counters start again.
pub(crate) fn room_for(policies: usize) -> usize {
    policies.saturating_mul(2).next_power_of_two().max(LEAST_SLOTS)
}

/// Slots that there are at least.
const LEAST_SLOTS: usize = 16_384;

/// A configuration whose policies are compiled; for the compiler that made it, before it finishes
/// another.
pub struct PreparedConfiguration {
    listing: Listing,
    spd: Arc<Spd>,
    slots: Slots,
    ports: Arc<PortSlots>,
    generation: Generation,
    /// One entry per peer.
    sets: Vec<SaSetId>,
    /// Peers of charon's own that stay.
    ike: IkePeers,
    next: Ids,
    compiles: u64,
}

impl PreparedConfiguration {
    /// The configuration without its policies.
    pub fn settings(&self) -> &Arc<Validated> {
        self.listing.settings()
    }
}

/// Checks everything that could make an SA fail, before any key is taken for one.
fn check_associations(config: &Validated, keys: &Keys) -> Result<(), CompileError> {
    let peers = &config.peers;
    if keys.peers.len() != peers.len() || keys.files.len() != peers.len() {
        return Err(CompileError::OtherKeys { keys: keys.peers.len(), peers: peers.len() });
    }
    for peer in peers {
        let Tunnel { local, remote } = peer.tunnel();
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(SaError::MixedFamilies { local, remote }.into());
        }
        ReplayWindow::new(peer.replay_window, peer.numbers)?;
    }
    Ok(())
}

/// Ids that were never given.
struct Ids {
    policy: u32,
    set: u32,
}

impl Ids {
    /// The SA-set id of each peer.
    fn sets(&mut self, peers: &[Peer], last: Option<&Last>) -> Vec<SaSetId> {
        let id = |peer: &Peer| {
            let known = last.and_then(|last| last.kept.sets.get(&peer.name).copied());
            known.unwrap_or_else(|| {
                self.set += 1;
                SaSetId(self.set - 1)
            })
        };
        peers.iter().map(id).collect()
    }

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
                policy.id = PolicyId(self.policy);
                self.policy += 1;
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
                rule.id = PolicyId(self.policy);
                self.policy += 1;
            }
            rule
        })
    }
}
