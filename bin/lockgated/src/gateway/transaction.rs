//! A change of what runs, in four steps of which none before the last cannot be taken back:
//!
//! 1. **prepare**: all that takes long or can be refused by itself, while everything runs as it did
//! 2. **guard**: programs and guard pass no more of what new policies may want
//! 3. **publish**: the workers go over to it; programs are told, netdevs that are new taken over
//! 4. **record**: what ran before is let go of; who asked makes a revision of it
//!
//! If a step is refused, what ran before runs on, or again. Nothing is open in between that was
//! closed: programs and guard are narrowed before workers know of a policy, and widened after.

use std::sync::Arc;

use config::validated::Policy;
use control::guard::{Guard, GuardError, UnwritableName};
use control::{AdoptedBase, CompileError, Compiled, LiveParts, LiveProblem};
use dataplane::carve_out::Reserved;
use dataplane::{Snapshot, SnapshotError};

use super::guarding::ReserveError;
use super::netdevs::ReleaseMode;
use super::publish::{Caches, others};
use super::{Gateway, live_parts_of, netdevs, reserved_by, reserved_of_earlier};
use crate::cache_memory::CacheError;
use crate::events::Kind;
use crate::freeing::free_aside;
use crate::netdev::NetdevError;
use crate::worker::WorkerGone;

/// A prepared change of the running state.
pub(crate) struct Transaction {
    compiled: Compiled,
    live: Arc<LiveParts>,
    snapshot: Arc<Snapshot>,
    /// Packets of `allow_host` that may not be passed any more when it is published.
    withheld: Reserved,
    /// The guard that must stand before it is published.
    guard: NextGuard,
    extent: Extent,
}

/// The guard of a transaction.
pub(crate) enum NextGuard {
    /// The one that stands.
    Same,
    /// The one that stands, with rules for these policies behind its own.
    Behind(Vec<Policy>),
    /// Replaced by this guard.
    Other(Guard),
}

/// The extent of a transaction: policies alone, or everything.
enum Extent {
    /// Policies alone.
    Policies {
        /// Policies went that may have wanted packets of `allow_host`.
        frees: bool,
    },
    /// A change of the whole configuration, ports included.
    Whole {
        /// Flow caches of another size.
        caches: Option<Caches>,
    },
}

/// The reason why a change was not made. What ran before runs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransactionError {
    /// Configuration and kernel do not make a snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// SAs that were put do not fit into the configuration.
    #[error(transparent)]
    Associations(#[from] CompileError),
    /// The flow caches cannot be had.
    #[error(transparent)]
    Caches(#[from] CacheError),
    /// Programs or guard refused to withhold a part of `allow_host`.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// The guard.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// A name that the guard cannot be written with.
    #[error(transparent)]
    Name(#[from] UnwritableName),
    /// Packets of a new port are too long for the frames.
    #[error(transparent)]
    LongPackets(LiveProblem),
    /// A netdev cannot be taken over, or its program not be told.
    #[error(transparent)]
    Netdev(#[from] NetdevError),
    /// A worker has ended: the daemon ends too.
    #[error(transparent)]
    Worker(#[from] WorkerGone),
}

/// A change that workers walk by already.
pub(crate) enum PendingTransaction {
    /// A change of policies alone: no remaining step can be refused.
    Policies {
        /// Policies went that may have wanted packets of `allow_host`.
        frees: bool,
    },
    /// A change of the whole configuration.
    Whole(Box<PreviousState>),
}

/// The state before a transaction, to be put back.
pub(crate) struct PreviousState {
    compiled: Compiled,
    live: Arc<LiveParts>,
    reserved: Reserved,
    guard: Guard,
    has_other_caches: bool,
}

impl Transaction {
    /// The state of the kernel that it is made with.
    pub(crate) fn live(&self) -> &Arc<LiveParts> {
        &self.live
    }
}

impl Gateway {
    /// Prepares to go over to another configuration, with the guard that was made of it.
    ///
    /// # Errors
    /// [`TransactionError`]: nothing was touched.
    pub(crate) async fn prepare(
        &mut self,
        compiled: Compiled,
        guard: Guard,
    ) -> Result<Transaction, TransactionError> {
        let live = Arc::new(live_parts_of(&compiled, &self.view, self.frame_bytes));
        self.refuse_long_packets(&live)?;
        let snapshot = compiled.assemble(&live, Some(&self.snapshot))?;
        let cache = compiled.settings().cache;
        let caches = match cache == self.config().cache {
            true => None,
            false => Some(self.fresh_caches(cache).await?),
        };
        // Netdevs may have come and gone since it was made.
        let reserved = reserved_by(&compiled, &live);
        let other = guard.with_netdevs(
            compiled.settings(),
            &self.view,
            &reserved,
            self.carrying.peers(),
        )?;
        let guard = NextGuard::Other(other.unwrap_or(guard));
        // Nothing of the old `allow_host` passes any more that a new policy may want.
        let withheld = reserved_of_earlier(&self.snapshot, &compiled, &live);
        let extent = Extent::Whole { caches };
        Ok(Transaction { compiled, live, snapshot, withheld, guard, extent })
    }

    /// Prepares a switch to other policies among the same ports and peers. `guard`: the guard to be
    /// installed first.
    ///
    /// # Errors
    /// [`TransactionError`]: nothing was touched.
    pub(crate) fn prepare_policies<'p>(
        &self,
        compiled: Compiled,
        guard: NextGuard,
        (removed, added): (impl Iterator<Item = &'p Policy>, impl Iterator<Item = &'p Policy>),
    ) -> Result<Transaction, TransactionError> {
        let live = match compiled.remotes().eq(self.compiled.remotes()) {
            true => self.live.clone(),
            // A policy came that names the place of a peer of a key file or of the API: the peer is
            // where its section says again. Or policies of charon's own went, with their SAs.
            false => live_parts_of(&compiled, &self.view, self.frame_bytes).into(),
        };
        let snapshot = compiled.assemble(&live, Some(&self.snapshot))?;
        let withheld = self.wanted_by(&compiled, added);
        let frees = self.frees(&self.wanted_by(&self.compiled, removed), &compiled);
        let guard = match guard {
            NextGuard::Other(guard) => {
                // What is reserved depends on addresses: it is filled in now.
                let reserved = self.reserved.and(&withheld);
                let other = guard.with_netdevs(
                    compiled.settings(),
                    &self.view,
                    &reserved,
                    self.carrying.peers(),
                )?;
                NextGuard::Other(other.unwrap_or(guard))
            }
            guard => guard,
        };
        let extent = Extent::Policies { frees };
        Ok(Transaction { compiled, live, snapshot, withheld, guard, extent })
    }

    /// Prepares a switch to other policies and peers that charon made by itself. From the start the
    /// guard closes all that they may name.
    ///
    /// # Errors
    /// [`TransactionError`]: nothing was touched.
    pub(crate) fn prepare_ike(
        &self,
        compiled: Compiled,
        (removed, added): (&[policy::Policy], &[policy::Policy]),
    ) -> Result<Transaction, TransactionError> {
        let snapshot = compiled.assemble(&self.live, Some(&self.snapshot))?;
        let live = self.live_towards_ends(&compiled, &snapshot);
        let wanted = |policies: &[policy::Policy]| {
            Reserved::by(&self.live.ports, &self.live.routes, policies.iter())
        };
        let withheld = wanted(added).with_fragments_of(&compiled.sad, &self.live.ports);
        let has_last_in_udp = self.compiled.sad.opens_in_udp() && !compiled.sad.opens_in_udp();
        let frees = has_last_in_udp || self.frees(&wanted(removed), &compiled);
        let (guard, extent) = (NextGuard::Same, Extent::Policies { frees });
        Ok(Transaction { compiled, live, snapshot, withheld, guard, extent })
    }

    /// Makes the first steps of a change: when this returns, the workers walk by it.
    ///
    /// # Errors
    /// [`TransactionError`]: what ran before runs on.
    pub(crate) async fn begin(
        &mut self,
        transaction: Transaction,
    ) -> Result<PendingTransaction, TransactionError> {
        let Transaction { compiled, live, snapshot, withheld, guard, extent } = transaction;
        let (reserved, standing) = (self.reserved.clone(), self.guard.clone());
        if let Err(refused) = self.guard_before(&withheld, guard).await {
            // Some of it may have been withheld already.
            self.widen().await;
            return Err(refused);
        }
        self.report_problems(&live);
        let compiled = std::mem::replace(&mut self.compiled, compiled);
        let live = std::mem::replace(&mut self.live, live);
        match extent {
            Extent::Policies { frees } => {
                self.publish(snapshot, None).await?;
                free_aside(compiled);
                Ok(PendingTransaction::Policies { frees })
            }
            Extent::Whole { caches } => {
                let has_other_caches = caches.is_some();
                self.publish(snapshot, caches.map(others)).await?;
                let guard = standing;
                let before = PreviousState { compiled, live, reserved, guard, has_other_caches };
                Ok(PendingTransaction::Whole(before.into()))
            }
        }
    }

    /// Makes the last steps of a change: updates programs, attaches new netdevs, and releases the
    /// previous state.
    ///
    /// # Errors
    /// [`TransactionError`]: what ran before runs again.
    pub(crate) async fn finish(
        &mut self,
        begun: PendingTransaction,
    ) -> Result<(), TransactionError> {
        let before = match begun {
            PendingTransaction::Policies { frees } => {
                if frees {
                    self.free().await;
                }
                return Ok(());
            }
            PendingTransaction::Whole(before) => before,
        };
        self.reserved = reserved_by(&self.compiled, &self.live);
        let taken = match self.instruct() {
            Ok(()) => self.take_new().await,
            Err(error) => Err(error),
        };
        match taken {
            Ok(()) => {
                self.drop_beyond(ReleaseMode::Open);
                self.has_cards_configured().await?;
                free_aside(before);
                Ok(())
            }
            Err(refused) => {
                self.put_back(*before).await?;
                Err(refused.into())
            }
        }
    }

    /// Withholds packets of `allow_host` and puts a guard up, before workers know of a change.
    async fn guard_before(
        &mut self,
        withheld: &Reserved,
        guard: NextGuard,
    ) -> Result<(), TransactionError> {
        self.reserve(withheld).await?;
        if let NextGuard::Other(guard) = guard {
            return Ok(self.install_guard(guard).await?);
        }
        if self.guard_is_owed {
            self.install_guard(self.guard.clone()).await?;
        }
        if let NextGuard::Behind(behind) = guard {
            self.guard = self.machine.extend(self.guard.clone(), behind).await?;
        }
        Ok(())
    }

    /// Returns to the configuration that ran before a change whose netdevs could not be attached.
    /// Withholds what the old policies want before the workers use them again.
    async fn put_back(&mut self, before: PreviousState) -> Result<(), TransactionError> {
        let PreviousState { compiled, live, reserved, guard, has_other_caches } = before;
        let refused = netdevs(self.config());
        // Made anew: what was remembered under the refused one must look older than it.
        let snapshot = compiled.assemble(&live, Some(&self.snapshot))?;
        let withheld = reserved_of_earlier(&self.snapshot, &compiled, &live);
        // There is no way but on: what cannot be withheld or put up is tried again by the clock.
        self.withhold(&withheld).await;
        if let Err(error) = self.install_guard(guard.clone()).await {
            self.events.record(Kind::GuardRefused, "", error.to_string(), &[]);
            (self.guard, self.guard_is_owed) = (guard, true);
        }
        self.compiled = compiled;
        self.live = live;
        self.publish(snapshot, None).await?;
        if has_other_caches {
            self.renew_caches().await?;
        }
        self.reserved = reserved;
        self.instruct_and_tell();
        self.drop_beyond(ReleaseMode::AsFound);
        self.renew_guard().await;
        self.serve_again(&refused).await?;
        Ok(())
    }

    /// Refuses a port that would lose its longest packets, where a restart helps. One whose MTU was
    /// raised while it was a port goes on.
    fn refuse_long_packets(&self, live: &LiveParts) -> Result<(), TransactionError> {
        let told: Vec<&str> = self.live.problems.iter().filter_map(LiveProblem::outgrown).collect();
        let is_new = |netdev: &str| !told.contains(&netdev);
        let mut problems = live.problems.iter();
        match problems.find(|problem| problem.outgrown().is_some_and(is_new)) {
            Some(problem) => Err(TransactionError::LongPackets(problem.clone())),
            None => Ok(()),
        }
    }

    /// Returns whether something is free of what policies that go wanted, because none of `next`
    /// wants it.
    fn frees(&self, wanted: &Reserved, next: &Compiled) -> bool {
        let stay = next.spd.holding_policies().map(|(_, policy)| policy);
        !wanted.is_wanted_by(&self.live.ports, &self.live.routes, stay)
    }

    /// Packets of `allow_host` that these policies may want, as far as a configuration has them.
    fn wanted_by<'p>(
        &self,
        compiled: &Compiled,
        policies: impl Iterator<Item = &'p Policy>,
    ) -> Reserved {
        let spd = &compiled.spd;
        let policies = policies.filter_map(|policy| Some(spd.policy(spd.named(&policy.name)?)));
        Reserved::by(&self.live.ports, &self.live.routes, policies)
    }
}

impl Gateway {
    /// Switches to a search structure into which changes were compacted. Every answer stays the
    /// same.
    ///
    /// # Errors
    /// [`WorkerGone`]; inside, [`SnapshotError`]: what ran before runs on.
    pub(crate) async fn fold(
        &mut self,
        adopted: AdoptedBase,
    ) -> Result<Result<(), SnapshotError>, WorkerGone> {
        let AdoptedBase { mut compiled, tables } = adopted;
        // SAs may have come and gone since, and peers moved.
        if compiled.keep_put_sas(&self.compiled).is_err() {
            return Ok(Err(SnapshotError::Dangling("an SA that was put")));
        }
        compiled.keep_moved_peers(&self.compiled);
        let upon = self.snapshot.upon(tables);
        let snapshot = match compiled.assemble(&self.live, Some(&upon)) {
            Ok(snapshot) => snapshot,
            Err(error) => return Ok(Err(error)),
        };
        let old = std::mem::replace(&mut self.compiled, compiled);
        self.publish(snapshot, None).await?;
        free_aside(old);
        Ok(Ok(()))
    }
}
