//! Changes single policies: the cost grows with the change, not with the number of policies.
//!
//! A change makes of the running configuration one that shares almost all of it, with a list in
//! front of the policies that came and went. A job on another thread folds that list in:
//!
//! ```text
//! let mut compiled = compiler.change_policies(&running, &["old".into()], vec![policy])?;
//! // publish compiled.assemble(&live, Some(&running))?, answer; then, when it suits:
//! if let Some(job) = compiler.rebuild_job(&compiled) {
//!     let rebuilt = on_another_thread(|| job.run())?;  // meanwhile others may change
//!     compiled = compiler.adopt(&compiled, rebuilt)?;  // publish it likewise
//! }
//! ```
//!
//! The change is made of the whole set, which takes as long as there are policies, where the list
//! would become too long, a removed policy hid others that would cost too much to find, no slot is
//! left, or a policy names a port that none named before.

use std::collections::HashSet;
use std::sync::Arc;

use dataplane::{Generation, SnapshotError};
use policy::{NeedsRenewal, PolicyId, PolicyIndex, SetPlaces, Slots, Spd, Tables};

use crate::compile::CompileError;
use crate::compiled::Compiled;
use crate::live::Compiler;
use crate::planner::{Last, room_for};
use crate::two_layers::{self, OuterWithoutPolicy};
use config::nearest;
use config::validated::{Action, Policy};

/// Changes in front of a base from which on it is worth folding them in. A step that they add to
/// searches weighs as much as a change: one alone may uncover much that a policy hid.
const WORTH_REBUILDING: usize = 64;

/// Names that are found by looking through the changes one by one.
const FEW_NAMES: usize = 8;

/// Names that are looked through for the one that was meant.
const NAMES_CONSIDERED: usize = 20_000;

/// The reason why a change of policies was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeRefused {
    /// No policy has the name.
    #[error("there is no policy \"{name}\"{}", did_you_mean(.nearest))]
    Unknown {
        /// The name.
        name: String,
        /// Name of a policy that was probably meant.
        nearest: Option<String>,
    },
    /// A policy of the name is there, and is not taken away by the same change.
    #[error("there is a policy \"{name}\" already: remove it in the same change to replace it")]
    Taken {
        /// The name.
        name: String,
    },
    /// The change says the name twice.
    #[error("policy \"{name}\" is named twice in one change")]
    Twice {
        /// The name.
        name: String,
    },
    /// The caller is at fault: the policy was validated against another configuration.
    #[error("policy \"{name}\" is of another configuration")]
    OtherConfiguration {
        /// The policy's name.
        name: String,
    },
    /// ESP of a peer that is behind another would not be sealed again.
    #[error(transparent)]
    Outer(#[from] OuterWithoutPolicy),
    /// It is beyond `[ike]` of what runs, or what runs has other policies or peers of its names.
    #[error("the configuration that runs now does not admit it within [ike]")]
    BeyondIke,
    /// The set as a whole cannot be compiled: too many rules, or too costly to search.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// Names what was probably meant, behind a message.
pub(crate) fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or(String::new(), |nearest| format!("; did you mean \"{nearest}\"?"))
}

/// The reason why a rebuilt base was not adopted. The running configuration goes on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdopted {
    /// The whole set was compiled anew since: the job is of no use any more.
    #[error("the policies were compiled anew in the meantime")]
    Overtaken,
    /// The policies changed so much that the changes do not fit in front of the new base: build
    /// again.
    #[error("the policies changed too much in the meantime")]
    TooManyChanges,
}

/// Policies that are to go, and policies that are to come: one transaction.
#[derive(Clone)]
pub(crate) struct Transaction {
    pub(crate) removed: Vec<PolicyIndex>,
    /// Added policies, with their ids.
    pub(crate) added: Vec<policy::Policy>,
    /// Number that the next policy gets.
    next_policy: u32,
}

impl Transaction {
    /// Finds the policies to remove and gives ids to the added ones, each of which becomes the
    /// newest of its priority.
    pub(crate) fn new(
        running: &Compiled,
        remove: &[String],
        add: Vec<Policy>,
        next_policy: u32,
    ) -> Result<Transaction, ChangeRefused> {
        let many = remove.len() + add.len() > FEW_NAMES;
        let names = many.then(|| running.spd.names());
        let find = |name: &str| {
            let found = match &names {
                Some(names) => names.get(name),
                None => running.spd.named(name),
            };
            // Those of charon's own are none of the configuration's.
            found.filter(|slot| !running.spd.policy(*slot).id.is_behind())
        };
        let mut leaving = HashSet::new();
        let mut removed = Vec::with_capacity(remove.len());
        for name in remove {
            let slot = find(name).ok_or_else(|| unknown(running, name))?;
            if !leaving.insert(name.as_str()) {
                return Err(ChangeRefused::Twice { name: name.clone() });
            }
            removed.push(slot);
        }
        let mut coming = HashSet::new();
        let mut added = Vec::with_capacity(add.len());
        let mut slots = running.slots().to_slots();
        for (id, policy) in (next_policy..).zip(&add) {
            let name = policy.name.clone();
            if find(&name).is_some() && !leaving.contains(name.as_str()) {
                return Err(ChangeRefused::Taken { name });
            }
            if !coming.insert(policy.name.as_str()) {
                return Err(ChangeRefused::Twice { name });
            }
            if !is_of(policy, running) {
                return Err(ChangeRefused::OtherConfiguration { name });
            }
            let set = |peer: config::PeerId| running.peers[peer.0 as usize];
            added.push(policy.for_spd(PolicyId(id), set, |ports| slots.ingress(ports)));
        }
        drop(coming);
        let next_policy = u32::try_from(add.len()).ok().and_then(|n| next_policy.checked_add(n));
        let next_policy = next_policy.ok_or(CompileError::OutOfNumbers)?;
        two_layers::check(running, &removed, &added)?;
        Ok(Transaction { removed, added, next_policy })
    }

    /// A transaction of policies of charon's own, which have their ids.
    pub(crate) fn of_ike(
        removed: Vec<PolicyIndex>,
        added: Vec<policy::Policy>,
        next_policy: u32,
    ) -> Transaction {
        Transaction { removed, added, next_policy }
    }

    fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }
}

/// Returns whether the peer and the ports that a policy names exist.
fn is_of(policy: &Policy, running: &Compiled) -> bool {
    let peer_is_there = match policy.action {
        Action::Protect(peer) => (peer.0 as usize) < running.peers.len(),
        Action::Bypass | Action::Discard => true,
    };
    let mut ports = policy.ingress.iter().flat_map(|ports| ports.ports());
    peer_is_there && ports.all(|port| usize::from(port.0) <= running.settings().ports.len())
}

/// Returns the error that no policy has the name, with a similar name that was perhaps meant.
fn unknown(running: &Compiled, name: &str) -> ChangeRefused {
    let names = running.spd.holding_policies().map(|(_, policy)| policy.name.as_str());
    let alike = |known: &&str| known.len().abs_diff(name.len()) <= 1 + name.len() / 4;
    let nearest = nearest(name, names.filter(alike).take(NAMES_CONSIDERED));
    ChangeRefused::Unknown { name: name.to_owned(), nearest }
}

impl Compiler {
    /// Removes policies by name and adds others, in one transaction: a packet is decided by the
    /// policies before or after it, never by a mixture. Added policies win over others of their
    /// priority, later ones over earlier ones. SAs, sets, keys and the current addresses of peers
    /// are those of `running`.
    ///
    /// The generation of each domain that any of the policies has rules in rises by 1, and that of
    /// the policies as a whole. A transaction of nothing changes nothing.
    ///
    /// `running` need not be what was compiled last: what was compiled and did not come to run is
    /// let go of. Cost: by the change and those before it that are not folded in yet
    /// ([`Spd::MAX_CHANGES`] at most); where it does not fit in front of the base, by the whole.
    ///
    /// # Errors
    /// [`ChangeRefused`]: nothing was changed. Where policies that charon made by itself leave no
    /// room, they go, with their peers.
    pub fn change_policies(
        &mut self,
        running: &Compiled,
        remove: &[String],
        add: Vec<Policy>,
    ) -> Result<Compiled, ChangeRefused> {
        let transaction = Transaction::new(running, remove, add, self.next_policy)?;
        let made = match self.carry_out(running, transaction.clone()) {
            // Policies of charon's own never keep those of the configuration out.
            Err(CompileError::Spd(_)) if running.has_own_of_ike() => {
                let (without, gone) = running.without_own_of_ike();
                let mut transaction = transaction;
                transaction.removed.extend(gone);
                self.carry_out(&without, transaction)?
            }
            made => made?,
        };
        self.file_changes += 1;
        Ok(made)
    }

    /// Makes a transaction upon what runs.
    pub(crate) fn carry_out(
        &mut self,
        running: &Compiled,
        transaction: Transaction,
    ) -> Result<Compiled, CompileError> {
        if transaction.is_empty() {
            return Ok(running.copied());
        }
        let changed = match self.is_last(running) {
            true => running.spd.changed(&transaction.removed, transaction.added.clone()),
            // Generations and slots go on from what was made last, even if it never ran.
            false => Err(NeedsRenewal::Base),
        };
        let next_policy = transaction.next_policy;
        let (compiled, slots) = match changed {
            Ok(spd) => (running.with(Arc::new(spd), running.listing.clone()), Slots::Kept),
            Err(_) => self.renewed(running, transaction)?,
        };
        let generation = Generation(self.generation.0.wrapping_add(1));
        self.next_policy = next_policy;
        self.take(generation, &compiled.spd, slots, &compiled.kept);
        Ok(Compiled { generation, policy_slots: self.policy_slots, ..compiled })
    }

    /// Compiles the whole set for [`Compiler::change_policies`].
    fn renewed(
        &self,
        running: &Compiled,
        transaction: Transaction,
    ) -> Result<(Compiled, Slots), CompileError> {
        let removed: HashSet<PolicyIndex> = transaction.removed.into_iter().collect();
        let stay = running.spd.holding().filter(|(index, _)| !removed.contains(index));
        let stay = stay.map(|(_, policy)| policy.clone());
        let policies: Vec<_> = stay.chain(transaction.added).collect();
        let room = room_for(policies.len());
        let (spd, slots) = match &self.last {
            Some(last) => last.spd.renewed(policies, room)?,
            None => running.spd.renewed(policies, room)?,
        };
        let listing = running.listing.upon(&spd, &running.spd);
        Ok((running.with(Arc::new(spd), listing), slots))
    }

    fn is_last(&self, running: &Compiled) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|Last { spd, kept }| {
            Arc::ptr_eq(spd, &running.spd) && Arc::ptr_eq(kept, &running.kept)
        })
    }

    /// Returns a job that compacts the changes in front of a base into a new base, if their number
    /// or their cost to searches is worth it. Cheap; the job is not.
    ///
    /// `None`, too, where something was compiled since that did not come to run: the new base could
    /// not be adopted, and the next change is made of the whole set anyway.
    pub fn rebuild_job(&self, running: &Compiled) -> Option<RebuildJob> {
        let spd = &running.spd;
        let weight = spd.changes() + spd.steps_of_changes() as usize;
        (weight >= WORTH_REBUILDING && self.is_last(running))
            .then(|| RebuildJob { spd: running.spd.clone(), sets: running.sad.places().clone() })
    }

    /// Replaces the base of the running policies by a rebuilt one, with later changes in front of
    /// it. Generations, slots and all answers stay the same.
    ///
    /// # Errors
    /// [`NotAdopted`]: what runs goes on.
    pub fn adopt(
        &mut self,
        running: &Compiled,
        rebuilt: RebuiltBase,
    ) -> Result<AdoptedBase, NotAdopted> {
        if !self.is_last(running) {
            return Err(NotAdopted::Overtaken);
        }
        let spd =
            running.spd.on(rebuilt.tables.spd(), &rebuilt.of).map_err(|error| match error {
                NeedsRenewal::Base | NeedsRenewal::Ingress => NotAdopted::Overtaken,
                NeedsRenewal::Slots | NeedsRenewal::Changes | NeedsRenewal::Rules => {
                    NotAdopted::TooManyChanges
                }
            })?;
        let spd = Arc::new(spd);
        let compiled = running.with(spd.clone(), running.listing.clone());
        self.take(self.generation, &spd, Slots::Kept, &compiled.kept);
        Ok(AdoptedBase { compiled, tables: rebuilt.tables })
    }
}

/// Compacts changes into a base of its own, on a background thread. It shares nothing that others
/// change, and may be dropped.
pub struct RebuildJob {
    spd: Arc<Spd>,
    sets: SetPlaces,
}

/// The result of a [`RebuildJob`].
pub struct RebuiltBase {
    of: Arc<Spd>,
    /// Upon a base of their own.
    tables: Tables,
}

/// The running configuration on a rebuilt base.
pub struct AdoptedBase {
    /// The running configuration.
    pub compiled: Compiled,
    /// Tables that were built in the background, on which the next snapshot is assembled
    /// ([`dataplane::Snapshot::upon`]).
    pub tables: Tables,
}

impl RebuildJob {
    /// Compacts the changes. Takes longer the more policies there are.
    ///
    /// # Errors
    /// [`CompileError::Spd`]: with the changes folded in, a search would be too costly. What runs
    /// goes on; it is not worth trying again before policies were taken away.
    pub fn run(self) -> Result<RebuiltBase, CompileError> {
        let spd = Arc::new(self.spd.rebuilt()?);
        let tables = Tables::new(spd, &self.sets, None).map_err(SnapshotError::from)?;
        Ok(RebuiltBase { of: self.spd, tables })
    }
}
