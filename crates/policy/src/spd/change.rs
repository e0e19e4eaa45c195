//! Makes one database from another.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{
    Change, EarlierTables, NeedsRenewal, Slot, Slots, Spd, SpdError, groups_out, mark_dependents,
};
use crate::book::Book;
use crate::by_slot::BySlot;
use crate::classifier::Budget;
use crate::domain::{DomainId, Generation};
use crate::ids::PolicyIndex;
use crate::list::List;
use crate::policy::{Action, Policy, PolicyId, Precedence};
use crate::selector::Selector;
use crate::table::{Gathered, Table};
use crate::table_places::ChangedPlaces;

/// Rules that may come, and that may go, in a change of groups upon the same base.
const FEW_RULES: usize = 64;
/// Changes upon a base beyond which a change of groups makes it anew: what went may hold long
/// lists of addresses, which are let go of then.
const FEW_CHANGES: usize = 64;

/// The rules of groups in which two databases differ.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RuleChanges {
    /// Slots of those that hold no more.
    pub gone: Vec<PolicyIndex>,
    /// Slots of those that did not hold before.
    pub came: Vec<PolicyIndex>,
}

impl Spd {
    /// Changes since the base was made.
    pub fn changes(&self) -> usize {
        self.log.len()
    }

    /// Steps that changes since the base was made add to a search of one flow at most, in the
    /// domain where they add most: of what came, and of what hides behind policies that went.
    pub fn steps_of_changes(&self) -> u32 {
        let steps = |table: &Table| table.cost_of_changes().steps();
        self.tables.iter().map(steps).max().unwrap_or(0)
    }

    /// A database without these policies and with those, upon the same base. The generation of
    /// each domain that any of them has rules in rises by 1. Cost: by the changes since the base
    /// was made, not by its size.
    ///
    /// # Errors
    /// [`NeedsRenewal`]: it cannot be made upon this base.
    pub fn changed(
        &self,
        removed: &[PolicyIndex],
        added: Vec<Policy>,
    ) -> Result<Spd, NeedsRenewal> {
        if self.slots() + added.len() > self.base.capacity {
            return Err(NeedsRenewal::Slots);
        }
        if !added.iter().all(|policy| self.base.classes.cover(policy)) {
            return Err(NeedsRenewal::Ingress);
        }
        if self.log.len() + removed.len() + added.len() > Spd::MAX_CHANGES {
            return Err(NeedsRenewal::Changes);
        }
        let classes = &self.base.classes;
        // Packets of a port without groups are not asked about them: that changes with the base.
        let begins = |policy: &Policy| {
            let mut tables = self.places.of_policy(classes, policy).into_iter();
            policy.group.is_some() && tables.any(|place| self.tables[place as usize].len() == 0)
        };
        if added.iter().any(begins) {
            return Err(NeedsRenewal::Ingress);
        }
        let mut next = self.clone();
        next.log.extend(removed.iter().copied().map(Change::Removed));
        for policy in added {
            next.split_tables(&policy);
            next.log.push(Change::Added(PolicyIndex(next.slots() as u32)));
            next.slots.push(Slot { policy: Arc::new(policy), holds: true });
        }
        let mut touched = vec![false; next.tables.len()];
        let mut tracks_anew = false;
        for change in &next.log[self.log.len()..] {
            let policy = next.policy(change.slot());
            let tables = next.places.of_policy(classes, policy);
            tables.into_iter().for_each(|place| touched[place as usize] = true);
            tracks_anew |= matches!(policy.action, Action::Reflect(_));
        }
        next.overlay(&touched, self.log.len())?;
        if tracks_anew {
            next.find_tracked();
        }
        let is_touched = |domain: &DomainId| touched[next.places.at(*domain)];
        let mut domains: Vec<DomainId> = next.domains().filter(is_touched).collect();
        domains.extend(next.domains_tracked_anew(self));
        next.raise(&domains);
        Ok(next)
    }

    /// Splits the tables in which a new policy holds for some of the ports only. The compiled rules
    /// stay shared.
    fn split_tables(&mut self, policy: &Policy) {
        let copied = self.places.split(&self.base.classes, policy);
        if copied.is_empty() {
            return;
        }
        let mut tables = std::mem::take(&mut self.tables).into_vec();
        for place in copied {
            tables.push(tables[place as usize].clone());
        }
        self.tables = tables.into();
    }

    /// Returns a database of other policies upon the same base, where few rules of groups differ
    /// and no policy of the SPD does, as after a change of a set. `None`: it must be
    /// [`renewed`](Self::renewed). Cost: all are compared; by the changes.
    ///
    /// Policies are the same if they are equal; equal policies have equal ids.
    pub fn with_few_changed_rules(&self, policies: &[Policy]) -> Option<Spd> {
        if self.changes() > FEW_CHANGES {
            return None;
        }
        let mut held: HashMap<PolicyId, PolicyIndex> =
            self.holding().map(|(index, policy)| (policy.id, index)).collect();
        let mut added = Vec::new();
        for policy in policies {
            match held.get(&policy.id) {
                Some(index) if self.policy(*index) == policy => {
                    held.remove(&policy.id);
                }
                _ => added.push(policy.clone()),
            }
            if added.len() > FEW_RULES {
                return None;
            }
        }
        let mut removed: Vec<PolicyIndex> = held.into_values().collect();
        removed.sort_unstable();
        let is_rule = |policy: &Policy| policy.group.is_some();
        let are_rules = added.iter().all(is_rule)
            && removed.len() <= FEW_RULES
            && removed.iter().all(|index| is_rule(self.policy(*index)));
        if !are_rules { None } else { self.changed(&removed, added).ok() }
    }

    /// Returns a database with the same policies in their slots at their generations, upon a base
    /// of its own. For a background thread: cost by the number of policies in tables that changed.
    ///
    /// # Errors
    /// [`SpdError`].
    pub fn rebuilt(&self) -> Result<Spd, SpdError> {
        let gone: Vec<PolicyIndex> = self.removed().collect();
        let mut slots = self.all_slots();
        gone.iter().for_each(|index| slots[index.0 as usize].holds = false);
        // Domains stay what they are, or what is remembered and changed meanwhile would not fit.
        let (changed, keeps_classes) = (&ChangedPlaces::default(), true);
        let mut rebuilt =
            self.made_again(slots, EarlierTables { spd: self, changed, keeps_classes })?;
        rebuilt.arrange();
        rebuilt.continue_from(self);
        Ok(rebuilt)
    }

    /// Moves this database onto a base that [`rebuilt`](Self::rebuilt) made of `earlier`, the
    /// database from which this one was [`changed`](Self::changed).
    ///
    /// # Errors
    /// [`NeedsRenewal`]; the old base still stands.
    pub fn on(&self, rebuilt: &Spd, earlier: &Spd) -> Result<Spd, NeedsRenewal> {
        if !self.continues(earlier) {
            return Err(NeedsRenewal::Base);
        }
        if rebuilt.base.classes != self.base.classes {
            return Err(NeedsRenewal::Ingress);
        }
        let mut next = rebuilt.clone();
        next.log = self.log[earlier.log.len()..].to_vec();
        let came = self.slots.added()[earlier.slots.added().len()..].to_vec();
        next.slots = BySlot::new(rebuilt.slots.base().clone(), came);
        next.slots.added().to_vec().iter().for_each(|slot| next.split_tables(&slot.policy));
        next.overlay(&vec![true; next.tables.len()], 0)?;
        next.find_tracked();
        next.continue_from(self);
        Ok(next)
    }

    /// Returns whether this database came of an earlier one by changes alone.
    fn continues(&self, earlier: &Spd) -> bool {
        let same_policy = |(one, other): (&Slot, &Slot)| Arc::ptr_eq(&one.policy, &other.policy);
        let (added, added_before) = (self.slots.added(), earlier.slots.added());
        Arc::ptr_eq(&self.base, &earlier.base)
            && self.log.starts_with(&earlier.log)
            && added.len() >= added_before.len()
            && added.iter().zip(added_before).all(same_policy)
    }

    /// The policies that came since an earlier database and those that went, in the order of the
    /// changes; `None`: this one was not made of it by changes alone. Cost: by the changes since
    /// the base was made.
    pub(crate) fn since<'s>(&'s self, earlier: &Spd) -> Option<[Vec<&'s Policy>; 2]> {
        let [mut came, mut went] = [Vec::new(), Vec::new()];
        for change in self.continues(earlier).then(|| &self.log[earlier.log.len()..])? {
            let list = if change.added().is_some() { &mut came } else { &mut went };
            list.push(self.policy(change.slot()));
        }
        Some([came, went])
    }

    /// The rules of groups that went and came since an earlier database with the same arrangement
    /// of slots, each once. Cost: the changes since, or all rules if the base is another.
    pub fn rules_since(&self, earlier: &Spd) -> RuleChanges {
        let is_rule = |index: &PolicyIndex| self.policy(*index).group.is_some();
        if self.continues(earlier) {
            let changes = &self.log[earlier.log.len()..];
            let gone: Vec<PolicyIndex> = changes.iter().filter_map(Change::removed).collect();
            let came = changes.iter().filter_map(Change::added);
            let came = came.filter(|index| !gone.contains(index));
            let came = came.filter(is_rule).collect();
            let was_there = |index: &PolicyIndex| (index.0 as usize) < earlier.slots();
            let gone = gone.into_iter().filter(is_rule).filter(was_there).collect();
            return RuleChanges { gone, came };
        }
        let rules = |spd: &Spd| -> HashSet<PolicyIndex> {
            spd.holding_rules().map(|(index, _)| index).collect()
        };
        let (before, now) = (rules(earlier), rules(self));
        let sorted = |one: &HashSet<PolicyIndex>, other: &HashSet<PolicyIndex>| {
            let mut only: Vec<PolicyIndex> = one.difference(other).copied().collect();
            only.sort_unstable();
            only
        };
        RuleChanges { gone: sorted(&before, &now), came: sorted(&now, &before) }
    }

    /// A database of other policies, of which those that are the same keep their slots. Where not
    /// enough slots are left all are given anew, and there is room for so many. Generations rise
    /// by 1 in each domain whose policies changed; in all of them, beyond the highest, where slots
    /// are given anew or the policies name other ports.
    ///
    /// Policies are the same if they are equal; equal policies have equal ids.
    ///
    /// # Errors
    /// [`SpdError`]; this database still stands.
    pub fn renewed(&self, policies: Vec<Policy>, room: usize) -> Result<(Spd, Slots), SpdError> {
        let held: HashMap<PolicyId, PolicyIndex> =
            self.holding().map(|(index, policy)| (policy.id, index)).collect();
        let slot_of = |policy: &Policy| {
            let index = held.get(&policy.id).copied();
            index.filter(|index| self.policy(*index) == policy)
        };
        let (mut stay, mut come) = (HashSet::new(), Vec::new());
        for policy in policies {
            match slot_of(&policy) {
                Some(index) => {
                    stay.insert(index);
                }
                None => come.push(Arc::new(policy)),
            }
        }
        let mut slots = self.all_slots();
        slots.iter_mut().for_each(|slot| slot.holds = false);
        stay.iter().for_each(|index| slots[index.0 as usize].holds = true);
        let gone = held.values().filter(|index| !stay.contains(index));
        let mut touched: Vec<Arc<Policy>> =
            gone.map(|index| slots[index.0 as usize].policy.clone()).collect();
        touched.extend(come.iter().cloned());
        slots.extend(come.into_iter().map(|policy| Slot { policy, holds: true }));
        if slots.len() > self.base.capacity {
            slots.retain(|slot| slot.holds);
            slots.sort_by_key(|slot| std::cmp::Reverse(slot.policy.precedence()));
            let mut next = Spd::of_slots(slots.into(), room)?.searched(self.search);
            next.begin_after(self);
            return Ok((next, Slots::GivenAnew));
        }
        let changed = ChangedPlaces::of(touched.iter().map(|policy| &**policy));
        let earlier = EarlierTables { spd: self, changed: &changed, keeps_classes: false };
        let mut next = self.made_again(slots, earlier)?;
        if next.base.classes != self.base.classes {
            next.begin_after(self);
            return Ok((next, Slots::Kept));
        }
        next.continue_from(self);
        let port = |domain: &DomainId| self.base.classes.port(domain.class());
        let is_changed = |domain: &DomainId| changed.contain(*domain, port(domain));
        let mut domains: Vec<DomainId> = next.domains().filter(is_changed).collect();
        domains.extend(next.domains_tracked_anew(self));
        next.raise(&domains);
        Ok((next, Slots::Kept))
    }

    /// Domains of groups out whose ports' connections are tracked now and were not before, or the
    /// other way: what was said of packets that leave by them holds no more.
    fn domains_tracked_anew(&self, before: &Spd) -> impl Iterator<Item = DomainId> {
        let is_anew = |domain: &DomainId| {
            let tracks = |spd: &Spd| spd.tracks(domain.class(), domain.family());
            domain.book() == Book::GroupOut && tracks(self) != tracks(before)
        };
        self.domains().filter(is_anew)
    }

    /// All slots ever given; those of the base hold as they did when it was made.
    fn all_slots(&self) -> Vec<Slot> {
        self.slots.iter().cloned().collect()
    }

    /// Makes a database of these slots; slots given before keep their policies. Takes the tables
    /// without a change since the base was made.
    fn made_again(
        &self,
        mut slots: Vec<Slot>,
        earlier: EarlierTables<'_>,
    ) -> Result<Spd, SpdError> {
        // Of policies that hold no more only their names count.
        for slot in slots.iter_mut().filter(|slot| !slot.holds) {
            let Selector { local, remote, .. } = &slot.policy.selector;
            if local.len().max(remote.len()) > List::FEW {
                let policy = Arc::make_mut(&mut slot.policy);
                (policy.selector.local, policy.selector.remote) = (Vec::new(), Vec::new());
            }
        }
        let made = Spd::of_slots_with(slots.into(), self.base.capacity, Some(earlier))?;
        Ok(made.searched(self.search))
    }

    /// Raises the generations of domains whose policies changed, and of those whose question asks
    /// them, each by 1.
    fn raise(&mut self, changed: &[DomainId]) {
        let raised = mark_dependents(changed, self.generations.len());
        for (generation, _) in self.generations.iter_mut().zip(raised).filter(|(_, marked)| *marked)
        {
            let (next, began_anew) = generation.next();
            *generation = next;
            self.wraps += u32::from(began_anew);
        }
    }

    /// The generations of a database that says the same.
    fn continue_from(&mut self, same: &Spd) {
        self.generations = same.generations.clone();
        self.wraps = same.wraps;
    }

    /// Generations beyond every one of another database's: nothing said under it holds.
    fn begin_after(&mut self, earlier: &Spd) {
        self.begin_beyond(earlier.highest_generation(), earlier.wraps);
    }

    /// Returns the same policies with generations beyond every one of this database and of `other`:
    /// no verdict that was cached under either holds. For a database that was made while `other`
    /// changed.
    #[must_use]
    pub fn beyond(mut self, other: &Spd) -> Spd {
        let highest = self.highest_generation().max(other.highest_generation());
        self.begin_beyond(highest, self.wraps.max(other.wraps));
        self
    }

    fn begin_beyond(&mut self, highest: Generation, wraps: u32) {
        let (next, began_anew) = highest.next();
        self.generations.fill(next);
        self.wraps = wraps + u32::from(began_anew);
    }

    fn highest_generation(&self) -> Generation {
        self.generations.iter().max().copied().unwrap_or_default()
    }

    /// Slots of policies that went since the base was made.
    pub(crate) fn removed(&self) -> impl Iterator<Item = PolicyIndex> {
        self.log.iter().filter_map(Change::removed)
    }

    /// Makes the lists in front of the base anew for the touched tables. The tables lack the
    /// policies removed before the change at place `first_change` already.
    fn overlay(&mut self, touched: &[bool], first_change: usize) -> Result<(), NeedsRenewal> {
        let removed: HashSet<PolicyIndex> = self.removed().collect();
        let first = self.base_slots() as u32;
        let mut standing: Vec<(PolicyIndex, &Policy)> = (first..)
            .map(PolicyIndex)
            .zip(self.slots.added())
            .map(|(index, slot)| (index, &*slot.policy))
            .filter(|(index, _)| !removed.contains(index))
            .collect();
        standing.sort_by_key(|(_, policy)| std::cmp::Reverse(policy.precedence()));
        let mut came: Vec<Vec<(PolicyIndex, &Policy)>> = vec![Vec::new(); self.tables.len()];
        for &(index, policy) in &standing {
            let places = self.places.of_policy(&self.base.classes, policy).into_iter();
            let places = places.map(|place| place as usize).filter(|place| touched[*place]);
            places.for_each(|place| came[place].push((index, policy)));
        }
        let gone = self.log[first_change..].iter().filter_map(|change| change.removed());
        let gone: Vec<Precedence> = gone.map(|index| self.policy(index).precedence()).collect();
        let mut tables = self.tables.clone();
        for (place, table) in tables.iter_mut().enumerate().filter(|(place, _)| touched[*place]) {
            *table = with_changes(table, self.places.domain(place), &came[place], &gone)?;
        }
        if tables.iter().map(Table::len).sum::<usize>() > Spd::MAX_RULES {
            return Err(NeedsRenewal::Rules);
        }
        self.groups_out = groups_out(&self.places, &tables);
        self.tables = tables;
        Ok(())
    }
}

/// Returns a table with all policies added since its base was made, in order of precedence, and
/// without the policies of these precedences. `domain` is any domain of the table.
fn with_changes(
    table: &Table,
    domain: DomainId,
    came: &[(PolicyIndex, &Policy)],
    gone: &[Precedence],
) -> Result<Table, NeedsRenewal> {
    let rules = came.iter().map(|(_, policy)| policy.rules(domain.family()));
    if rules.fold(0, usize::saturating_add) > Spd::MAX_RULES_IN_FRONT {
        return Err(NeedsRenewal::Changes);
    }
    let mut gathered = Gathered::default();
    came.iter().for_each(|(index, policy)| gathered.add(policy, *index, domain));
    let added = gathered.finish(domain.family()).map_err(|_| NeedsRenewal::Changes)?;
    let table = table.with_changes(added, gone.iter().copied());
    // Removed rules may have hidden thousands of rules. Until the base is made anew, a search reads
    // these block by block. A search beyond the budget is never served: the change waits for a
    // renewal, and packets do not.
    match table.cost_of_changes().steps() > Budget::default().steps {
        true => Err(NeedsRenewal::Changes),
        false => Ok(table),
    }
}

impl Change {
    pub(super) fn slot(&self) -> PolicyIndex {
        match self {
            Change::Added(slot) | Change::Removed(slot) => *slot,
        }
    }

    pub(super) fn added(&self) -> Option<PolicyIndex> {
        match self {
            Change::Added(slot) => Some(*slot),
            Change::Removed(_) => None,
        }
    }

    fn removed(&self) -> Option<PolicyIndex> {
        match self {
            Change::Removed(slot) => Some(*slot),
            Change::Added(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
