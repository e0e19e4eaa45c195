//! What the policy of each slot does, with its SA set already found.

use std::collections::HashMap;
use std::sync::Arc;

use policy::{Action, PolicyIndex, SaSetId, Spd};

use crate::error::SnapshotError;
use crate::ids::SetIndex;
use crate::sa_set::SaSet;

/// What a policy does, with its set already found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ResolvedAction {
    Protect(SetIndex),
    Bypass,
    Discard,
}

/// What the policies of a database do, found in a list of sets. Cheap to copy, and cheap to make
/// anew where a few policies have changed since: what the database's base holds is shared.
#[derive(Clone)]
pub struct Actions {
    /// One entry a slot of the base.
    base: Arc<[ResolvedAction]>,
    /// What `base` was made of.
    of: Arc<Origin>,
    /// One entry a slot behind the base's.
    added: Box<[ResolvedAction]>,
}

struct Origin {
    /// A database upon the base.
    spd: Spd,
    /// The sets that there were.
    sets: Box<[SaSetId]>,
}

impl Actions {
    /// Those of a database with these sets, from nothing: for a thread beside what runs.
    ///
    /// # Errors
    /// [`SnapshotError::UnknownSet`]: a policy that holds names a set that is not there.
    pub fn of_all(spd: &Spd, sets: &[SaSet]) -> Result<Actions, SnapshotError> {
        Actions::new(spd, sets, &places(sets), None)
    }

    /// Those of a database. Takes what is the same from `earlier`; without that, or where the base
    /// or the sets are others, it takes as long as there are slots.
    ///
    /// # Errors
    /// [`SnapshotError::UnknownSet`]: a policy that holds names a set that is not there.
    pub(crate) fn new(
        spd: &Spd,
        sets: &[SaSet],
        set_index: &HashMap<SaSetId, SetIndex>,
        earlier: Option<&Actions>,
    ) -> Result<Actions, SnapshotError> {
        let resolve = |action: Action| match action {
            Action::Protect(id) => {
                set_index.get(&id).copied().map(ResolvedAction::Protect).ok_or(id)
            }
            Action::Bypass => Ok(ResolvedAction::Bypass),
            Action::Discard => Ok(ResolvedAction::Discard),
        };
        // One that holds no more may name a set that went with it. It decides nothing; it discards.
        let at = |slot: usize| {
            let action = spd.policy(PolicyIndex(slot as u32)).action;
            resolve(action).unwrap_or(ResolvedAction::Discard)
        };
        let known = earlier.filter(|earlier| earlier.of.is_of(spd, sets));
        let (base, of) = match known {
            Some(known) => (known.base.clone(), known.of.clone()),
            None => {
                let sets = sets.iter().map(|set| set.id).collect();
                let of = Origin { spd: spd.clone(), sets };
                ((0..spd.base_slots()).map(at).collect(), Arc::new(of))
            }
        };
        let check = |policy: &policy::Policy| match resolve(policy.action) {
            Ok(_) => Ok(()),
            Err(set) => Err(SnapshotError::UnknownSet(set)),
        };
        // One that came and went again may name a set that went with it: then all are looked at.
        let is_whole = known.is_some() && spd.added().all(|(_, policy)| check(policy).is_ok());
        if !is_whole {
            spd.holding().try_for_each(|(_, policy)| check(policy))?;
        }
        let added = (spd.base_slots()..spd.slots()).map(at).collect();
        Ok(Actions { base, of, added })
    }

    /// What the policy of a slot does.
    ///
    /// # Panics
    /// If the slot was never given.
    #[inline]
    pub(crate) fn of(&self, policy: PolicyIndex) -> ResolvedAction {
        let place = policy.0 as usize;
        match self.base.get(place) {
            Some(action) => *action,
            None => self.added[place - self.base.len()],
        }
    }
}

/// Where each set is.
pub(crate) fn places(sets: &[SaSet]) -> HashMap<SaSetId, SetIndex> {
    (0..).map(SetIndex).zip(sets).map(|(place, set)| (set.id, place)).collect()
}

impl Origin {
    /// Whether the same places mean the same.
    fn is_of(&self, spd: &Spd, sets: &[SaSet]) -> bool {
        spd.has_base_of(&self.spd) && self.sets.iter().eq(sets.iter().map(|set| &set.id))
    }
}
