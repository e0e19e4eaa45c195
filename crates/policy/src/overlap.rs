//! Packets that a change of policies takes from PROTECT policies: those that a policy protected
//! before, and that after it leave in cleartext or with another set of SAs.
//!
//! [`takeovers`] is exact: it compares what decides a packet before the change with what decides
//! it after, priorities, directions, ports and all other policies counted in. A packet that is
//! dropped after the change is not taken.
//!
//! ```text
//! for each pair of a policy P that protects before, and a policy B that passes packets after:
//!   the boxes that both speak of (region.rs)
//!   - all policies that stood before P before the change
//!   - all policies that stand before B after it
//!   = something left? B takes it from P.
//! ```
//!
//! Only pairs that the change concerns are looked at: B comes with it, or P goes. A tree over the
//! addresses (tree.rs) finds them, and what stands before them, among very many.
//!
//! Cost: of 100,000 policies a policy that comes or goes and overlaps few others takes some
//! microseconds. The effort is bounded (`BASE_STEPS`, `STEPS_A_POLICY`): where policies overlap
//! so much that the limit is reached, the answer says so, and the caller must assume the worst.

mod review;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ops::ControlFlow;

use wire::{Family, Flow};

use crate::book::Direction;
use crate::ids::PolicyIndex;
use crate::policy::{Action, Policy, Precedence};
use crate::region::{Region, Sides};
use crate::rule_count::PolicyShape;
use crate::spd::Spd;
use crate::steps::{Exhausted, Steps};
use crate::tree::{AddressTree, ArrangedPolicy, Kinds, Reach, Sought, Window, windows};
pub use review::{Doubt, Finding, ReviewEffort, ReviewedPolicy, review};

/// Steps of a search at most, and more for each policy of the change.
const BASE_STEPS: u64 = 300_000;
/// Steps more for each policy of the change.
const STEPS_A_POLICY: u64 = 300;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const DIRECTIONS: [Direction; 2] = [Direction::Outbound, Direction::Inbound];

/// The policy that decides packets after a change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Taker {
    /// One that stood before, by its slot.
    Standing(PolicyIndex),
    /// One that came with the change, by its place among them.
    Added(usize),
}

/// A packet as it crosses the boundary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Example {
    /// The way that it crosses the boundary.
    pub direction: Direction,
    /// The place of the port by which it came; `None`: one that no policy names.
    pub ingress: Option<u16>,
    /// The fields of the packet that a selector can match.
    pub flow: Flow,
}

/// Packets that one policy protected before a change and that another passes after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Takeover {
    /// The PROTECT policy that decided them.
    pub from: PolicyIndex,
    /// The policy that decides the packets after the change: a BYPASS policy, or a PROTECT policy
    /// with another set.
    pub by: Taker,
    /// An example of the packets.
    pub example: Example,
}

/// Result of [`takeovers`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Takeovers {
    /// Pairs of policies between which packets move, the highest precedence of `from` first.
    pub found: Vec<Takeover>,
    /// Reason why `found` may be incomplete.
    pub rest: Rest,
}

/// Pairs that a search did not come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rest {
    /// None: the search was complete.
    #[default]
    Nothing,
    /// There may be more pairs than the limit.
    Limit,
    /// The policies overlap too much to be compared: there may be pairs even if none was found.
    Unknown,
}

impl Takeovers {
    /// Returns whether it is certain that the change takes nothing.
    pub fn is_nothing(&self) -> bool {
        self.found.is_empty() && self.rest == Rest::Nothing
    }
}

/// A change of a database, as [`Spd::changed`] would make it.
#[derive(Clone, Copy, Debug)]
pub struct Planned<'c> {
    /// The database before it.
    pub before: &'c Spd,
    /// Slots of the policies that the change removes.
    pub removed: &'c [PolicyIndex],
    /// The policies that the change adds, with their numbers.
    pub added: &'c [Policy],
    /// Slots of the ports by which packets come, ascending.
    pub ports: &'c [u16],
}

/// The packets that a change takes from PROTECT policies: at most `limit` pairs of policies, each
/// with an example.
pub fn takeovers(change: Planned<'_>, limit: usize) -> Takeovers {
    let policies = (change.removed.len() + change.added.len()) as u64;
    let steps = BASE_STEPS.saturating_add(STEPS_A_POLICY.saturating_mul(policies));
    takeovers_within(change, limit, steps)
}

fn takeovers_within(change: Planned<'_>, limit: usize, steps: u64) -> Takeovers {
    let mut search = Search::new(change, Steps(steps), limit);
    let end = search.all();
    let mut found = search.found;
    let from = |takeover: &Takeover| change.before.policy(takeover.from).precedence();
    found.sort_by_key(|takeover| (std::cmp::Reverse(from(takeover)), takeover.by));
    let rest = match end {
        Ok(ControlFlow::Continue(())) => Rest::Nothing,
        Ok(ControlFlow::Break(Full)) => Rest::Limit,
        Err(Exhausted) => Rest::Unknown,
    };
    Takeovers { found, rest }
}

/// The end of a search that found as many pairs as its limit.
struct Full;

type Progress = Result<ControlFlow<Full>, Exhausted>;

struct Search<'c> {
    change: Planned<'c>,
    /// Policies in front of the base that hold.
    front: AddressTree,
    added: AddressTree,
    /// Slots of the base and in front of it that did not hold before.
    gone: HashSet<PolicyIndex>,
    /// Slots that the change takes away.
    removed: HashSet<PolicyIndex>,
    /// Ports that policies tell apart, and `None` for all others if there are any.
    ports: Vec<Option<u16>>,
    steps: Steps,
    limit: usize,
    found: Vec<Takeover>,
    /// Pairs that were looked at.
    seen: HashSet<(PolicyIndex, Taker)>,
}

/// A policy of a pair.
#[derive(Clone, Copy)]
struct Side<'c> {
    policy: &'c Policy,
    precedence: Precedence,
}

impl<'c> Search<'c> {
    fn new(change: Planned<'c>, steps: Steps, limit: usize) -> Search<'c> {
        let Planned { before, removed, added, ports } = change;
        let gone: HashSet<PolicyIndex> = before.removed().collect();
        let is_policy = |(index, policy): &(PolicyIndex, &Policy)| {
            policy.group.is_none() && !gone.contains(index)
        };
        let front = before.added().filter(is_policy);
        let front = AddressTree::new(front.map(|(index, policy)| (index.0, policy.into())));
        let mut named: Vec<u16> = before.named_ports().to_vec();
        let comes_by = added.iter().filter_map(|policy| policy.ingress.as_deref()).flatten();
        named.extend(comes_by);
        named.sort_unstable();
        named.dedup();
        // Policies may have named ports that are gone.
        named.retain(|port| ports.binary_search(port).is_ok());
        let others = named.len() < ports.len();
        let named = named.into_iter().map(Some);
        Search {
            change,
            front,
            added: AddressTree::new((0..).zip(added.iter().map(ArrangedPolicy::from))),
            gone,
            removed: removed.iter().copied().collect(),
            ports: named.chain(others.then_some(None)).collect(),
            steps,
            limit,
            found: Vec::new(),
            seen: HashSet::new(),
        }
    }

    /// Looks at every pair that the change concerns.
    fn all(&mut self) -> Progress {
        for (place, policy) in self.change.added.iter().enumerate() {
            if Kinds::PASSING.meet(Kinds::of(policy.action))
                && let full @ ControlFlow::Break(_) = self.taken_by_added(place, policy)?
            {
                return Ok(full);
            }
        }
        for &slot in self.change.removed {
            let policy = self.change.before.policy(slot);
            if matches!(policy.action, Action::Protect(_))
                && let full @ ControlFlow::Break(_) = self.left_by_removed(slot, policy)?
            {
                return Ok(full);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A policy that comes takes from those that stand below it.
    fn taken_by_added(&mut self, place: usize, policy: &'c Policy) -> Progress {
        let below = Some(policy.precedence());
        for slot in self.standing(policy, Kinds::PROTECT, below)? {
            if let full @ ControlFlow::Break(_) = self.pair(slot, Taker::Added(place))? {
                return Ok(full);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Compares a removed policy with those that take its packets: added policies and those below
    /// it.
    fn left_by_removed(&mut self, slot: PolicyIndex, policy: &'c Policy) -> Progress {
        let standing = self.standing(policy, Kinds::PASSING, Some(policy.precedence()))?;
        let standing = standing.into_iter().map(Taker::Standing);
        let added = self.coming(policy)?.into_iter().map(Taker::Added);
        for taker in added.chain(standing) {
            if let full @ ControlFlow::Break(_) = self.pair(slot, taker)? {
                return Ok(full);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Slots of policies that stand before and after the change and reach into a policy's
    /// addresses.
    fn standing(
        &mut self,
        policy: &Policy,
        kinds: Kinds,
        below: Option<Precedence>,
    ) -> Result<Vec<PolicyIndex>, Exhausted> {
        let base = self.change.before.address_tree();
        let mut slots = Vec::new();
        for tree in [base, &self.front] {
            for family in FAMILIES {
                for window in windows(&policy.selector, family) {
                    let sought = Sought { window, reach: Reach::Into, kinds, below, above: None };
                    tree.search(family, &sought, &mut self.steps, |slot, _| {
                        let slot = PolicyIndex(slot);
                        let other = self.change.before.policy(slot);
                        let is_sought = kinds.meet(Kinds::of(other.action))
                            && other.action != policy.action
                            && below.is_none_or(|below| other.precedence() < below)
                            && !self.gone.contains(&slot)
                            && !self.removed.contains(&slot);
                        slots.extend(is_sought.then_some(slot));
                        Ok(ControlFlow::<()>::Continue(()))
                    })?;
                }
            }
        }
        slots.sort_unstable();
        slots.dedup();
        Ok(slots)
    }

    /// Places of policies that come and reach into a policy's addresses.
    fn coming(&mut self, policy: &Policy) -> Result<Vec<usize>, Exhausted> {
        let mut places = Vec::new();
        for family in FAMILIES {
            for window in windows(&policy.selector, family) {
                let (reach, kinds) = (Reach::Into, Kinds::PASSING);
                let sought = Sought { window, reach, kinds, below: None, above: None };
                self.added.search(family, &sought, &mut self.steps, |place, _| {
                    let other = &self.change.added[place as usize];
                    let passes = Kinds::PASSING.meet(Kinds::of(other.action));
                    let is_sought = passes && other.action != policy.action;
                    places.extend(is_sought.then_some(place as usize));
                    Ok(ControlFlow::<()>::Continue(()))
                })?;
            }
        }
        places.sort_unstable();
        places.dedup();
        Ok(places)
    }

    /// Notes a pair if packets move from one to the other.
    fn pair(&mut self, from: PolicyIndex, by: Taker) -> Progress {
        if !self.seen.insert((from, by)) {
            return Ok(ControlFlow::Continue(()));
        }
        let side = |policy: &'c Policy| Side { policy, precedence: policy.precedence() };
        let one = side(self.change.before.policy(from));
        let other = side(match by {
            Taker::Standing(slot) => self.change.before.policy(slot),
            Taker::Added(place) => &self.change.added[place],
        });
        if let Some(example) = self.moved(one, other)? {
            if self.found.len() == self.limit {
                return Ok(ControlFlow::Break(Full));
            }
            self.found.push(Takeover { from, by, example });
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A packet that the first decides before the change and the second after it.
    fn moved(&mut self, from: Side<'c>, by: Side<'c>) -> Result<Option<Example>, Exhausted> {
        let ports = std::mem::take(&mut self.ports);
        let found = self.moved_by(&ports, from, by);
        self.ports = ports;
        found
    }

    fn moved_by(
        &mut self,
        ports: &[Option<u16>],
        from: Side<'c>,
        by: Side<'c>,
    ) -> Result<Option<Example>, Exhausted> {
        for direction in DIRECTIONS {
            for &ingress in ports {
                self.steps.take(1)?;
                let way = Way { direction, ingress };
                if !way.is_of(from.policy.shape()) || !way.is_of(by.policy.shape()) {
                    continue;
                }
                for family in FAMILIES {
                    let (one, other) = (
                        Sides::new(&from.policy.selector, family),
                        Sides::new(&by.policy.selector, family),
                    );
                    let mut steps = std::mem::replace(&mut self.steps, Steps(0));
                    let found = one.with(&other, &mut steps, |region, steps| {
                        self.left_of(family, way, region, (from, by), steps)
                    });
                    self.steps = steps;
                    if let Some(region) = found? {
                        let flow = region.packet(family, direction);
                        return Ok(Some(Example { direction, ingress, flow }));
                    }
                }
            }
        }
        Ok(None)
    }

    /// A part of a region that nothing decides before these two do.
    fn left_of(
        &self,
        family: Family,
        way: Way,
        region: Region,
        (from, by): (Side<'_>, Side<'_>),
        steps: &mut Steps,
    ) -> Result<Option<Region>, Exhausted> {
        let mut pieces = vec![region];
        while let Some(piece) = pieces.pop() {
            match self.hole(family, way, &piece, (from, by), steps)? {
                None => return Ok(Some(piece)),
                Some(hole) => piece.without(&hole, &mut pieces),
            }
        }
        Ok(None)
    }

    /// A part of a region that another policy decides: before the change before `from`, or after
    /// it before `by`.
    fn hole(
        &self,
        family: Family,
        way: Way,
        piece: &Region,
        (from, by): (Side<'_>, Side<'_>),
        steps: &mut Steps,
    ) -> Result<Option<Region>, Exhausted> {
        let window = Window { local: piece.local, remote: piece.remote };
        let (reach, kinds) = (Reach::Into, Kinds::ALL);
        let sought = |above| Sought { window, reach, kinds, below: None, above: Some(above) };
        let part = |policy: &Policy, steps: &mut Steps| -> Result<_, Exhausted> {
            if !way.is_of(policy.shape()) {
                return Ok(ControlFlow::Continue(()));
            }
            let part = Sides::new(&policy.selector, family).first_within(piece, steps)?;
            Ok(part.map_or(ControlFlow::Continue(()), ControlFlow::Break))
        };
        let (before, base) = (self.change.before, self.change.before.address_tree());
        let lower = sought(from.precedence.min(by.precedence));
        for tree in [base, &self.front] {
            let found = tree.search(family, &lower, steps, |slot, steps| {
                let slot = PolicyIndex(slot);
                let policy = before.policy(slot);
                let precedence = policy.precedence();
                let was_first = precedence > from.precedence;
                let is_first = precedence > by.precedence && !self.removed.contains(&slot);
                match (was_first || is_first) && !self.gone.contains(&slot) {
                    true => part(policy, steps),
                    false => Ok(ControlFlow::Continue(())),
                }
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        self.added.search(family, &sought(by.precedence), steps, |place, steps| {
            let policy = &self.change.added[place as usize];
            match policy.precedence() > by.precedence {
                true => part(policy, steps),
                false => Ok(ControlFlow::Continue(())),
            }
        })
    }
}

/// The way of a packet: its direction and the port by which it came.
#[derive(Clone, Copy)]
struct Way {
    direction: Direction,
    ingress: Option<u16>,
}

impl Way {
    /// Returns whether a policy concerns packets that come this way.
    fn is_of(self, policy: PolicyShape<'_>) -> bool {
        policy.only.is_none_or(|only| only == self.direction)
            && policy
                .ingress
                .is_none_or(|ports| self.ingress.is_some_and(|port| ports.contains(&port)))
    }
}
