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

use std::sync::{Arc, OnceLock};

use dataplane::{AcquireSwitch, Generation};
use ipsec::{ReplayWindow, SaError, Tunnel};
use keystate::KeyState;
use policy::{Slots, Spd};

use crate::associations::Associations;
use crate::compile::CompileError;
use crate::compiled::{Compiled, PreviousSas};
use crate::connections::SharedConnections;
use crate::ike_peers::IkeNumbers;
use crate::kept_sas::PutSas;
use crate::overlays::SharedEndpoints;
use crate::peer_address::MovedPeers;
use crate::planner::{Last, Planner, PreparedConfiguration};
use crate::port_slots::HeldSlots;
use crate::set_numbers::SetNumbers;
use config::validated::Validated;
use config::{Keys, Loaded};

/// Compiles one configuration after another, and keeps the state that the next one reuses.
pub struct Compiler {
    workers: u32,
    pub(crate) generation: Generation,
    pub(crate) policy_slots: u32,
    pub(crate) next_policy: u32,
    pub(crate) sets: SetNumbers,
    pub(crate) ike: IkeNumbers,
    held: HeldSlots,
    /// Changes of the file's policies that were finished.
    pub(crate) file_changes: u64,
    pub(crate) last: Option<Last>,
    connections: SharedConnections,
    endpoints: SharedEndpoints,
    acquires: Arc<AcquireSwitch>,
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
            sets: SetNumbers::default(),
            ike: IkeNumbers::default(),
            held: HeldSlots::default(),
            file_changes: 0,
            last: None,
            connections: SharedConnections::default(),
            endpoints: SharedEndpoints::default(),
            acquires: Arc::default(),
        }
    }

    /// Returns what the slow part of a compile needs. Cheap. Charon's changes may go on beside it.
    pub fn planner(&self) -> Planner {
        Planner {
            generation: self.generation,
            next_policy: self.next_policy,
            sets: self.sets.clone(),
            held: self.held.clone(),
            file_changes: self.file_changes,
            last: self.last.clone(),
        }
    }

    /// Does the slow part of a compile ([`Planner::prepare`]).
    ///
    /// # Errors
    /// Those of [`Planner::prepare`].
    pub fn prepare(&self, config: Validated) -> Result<PreparedConfiguration, CompileError> {
        self.planner().prepare(config, None)
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
    /// 1. what charon changed since; what else can fail, which takes nothing from anyone;
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
        mut prepared: PreparedConfiguration,
        read: &Keys,
        keys: &mut KeyState,
        running: Option<&Compiled>,
    ) -> Result<Compiled, CompileError> {
        if prepared.file_changes != self.file_changes {
            return Err(CompileError::Overtaken);
        }
        self.follow_charon(&mut prepared, running)?;
        let PreparedConfiguration { listing, spd, slots, ports, generation, .. } = prepared;
        let PreparedConfiguration { sets: set_ids, new_sets, ike, next_policy, .. } = prepared;
        let config = listing.settings().clone();
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
            self.ike.rest(&running.ike, &compiled.ike);
        }
        self.held.hold(&kept.slots);
        new_sets.keep();
        self.next_policy = next_policy;
        self.file_changes += 1;
        self.take(generation, &spd, slots, &kept);
        compiled.policy_slots = self.policy_slots;
        Ok(compiled)
    }

    /// Gives a prepared configuration the changes of charon's since the planner was made.
    fn follow_charon(
        &self,
        prepared: &mut PreparedConfiguration,
        running: Option<&Compiled>,
    ) -> Result<(), CompileError> {
        let (Some(last), Some(running)) = (&self.last, running) else { return Ok(()) };
        if prepared.continued.as_ref().is_some_and(|spd| Arc::ptr_eq(spd, &last.spd)) {
            prepared.follow_peers(running);
            return Ok(());
        }
        prepared.follow_charon(running, &last.spd, self.generation)
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
        self.last = Some(Last { spd: spd.clone(), kept: kept.clone() });
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
