//! A set of policies looked over for what was probably not meant: policies that take packets from
//! a PROTECT policy, that never decide, or that contradict each other at one priority.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::{DIRECTIONS, Example, FAMILIES, Way};
use crate::policy::{Action, Policy, PolicyId, Precedence};
use crate::region::Sides;
use crate::rule_count::PolicyShape;
use crate::steps::{Exhausted, Steps};
use crate::tree::{AddressTree, ArrangedPolicy, Kinds, Reach, Sought, Window, windows};

/// Steps for one policy at most.
const STEPS_A_POLICY: u64 = 200_000;
/// Steps for all of them, and more for each.
const BASE_STEPS: u64 = 2_000_000;
const STEPS_MORE_A_POLICY: u64 = 200;

/// The reason to doubt a pair of policies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doubt {
    /// `other` is a PROTECT policy, and `policy` before it decides some of its packets: a BYPASS,
    /// or a PROTECT policy with another set that is not narrower.
    Takes,
    /// `policy` never decides: `other` before it covers it.
    Covered,
    /// Both have one priority, another action, and packets in common, and neither is an exception
    /// to the other: only their order says which decides.
    Tied,
}

/// A pair of policies, by their places in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The reason for doubt.
    pub doubt: Doubt,
    /// The policy that it is about.
    pub policy: usize,
    /// The other one.
    pub other: usize,
    /// A packet that both match; `None` where one policy covers the other.
    pub example: Option<Example>,
}

/// A policy as [`review`] compares policies. The policy's place in the list is its number.
#[derive(Clone, Copy, Debug)]
pub struct ReviewedPolicy<'p> {
    /// Action of the policy.
    pub action: Action,
    /// Higher wins; among equals the later in the list.
    pub priority: u32,
    /// Packets of the policy.
    pub shape: PolicyShape<'p>,
}

impl<'p> From<&'p Policy> for ReviewedPolicy<'p> {
    fn from(policy: &'p Policy) -> ReviewedPolicy<'p> {
        let (action, priority) = (policy.action, policy.priority);
        ReviewedPolicy { action, priority, shape: policy.shape() }
    }
}

impl<'p> ReviewedPolicy<'p> {
    fn precedence(&self, place: u32) -> Precedence {
        Precedence::of(self.priority, PolicyId(place))
    }

    fn arranged(&self, place: u32) -> ArrangedPolicy<'p> {
        let precedence = self.precedence(place);
        ArrangedPolicy { selector: self.shape.selector, action: self.action, precedence }
    }
}

/// Effort that the review of some lists of policies may still take.
#[derive(Debug)]
pub struct ReviewEffort(u64);

impl ReviewEffort {
    /// Returns the effort for this number of policies, in one list or several.
    pub const fn of(policies: usize) -> ReviewEffort {
        ReviewEffort(BASE_STEPS + STEPS_MORE_A_POLICY * policies as u64)
    }
}

/// Reviews `count` policies. `policy_at` returns the policy of a place; the later of two of one
/// priority wins. Packets come by `ports` ports. Calls `found` for each pair.
///
/// Cost: as good as linear. The effort is bounded for each policy and for all together: of
/// policies that thousands of others overlap, and where thousands overlap each other, not every
/// pair is found. A policy that several others together cover is not found either.
pub fn review<'p>(
    count: usize,
    policy_at: impl Fn(usize) -> ReviewedPolicy<'p>,
    ports: u16,
    effort: &mut ReviewEffort,
    mut found: impl FnMut(Finding),
) {
    let places = 0..count as u32;
    let tree =
        AddressTree::new(places.map(|place| (place, policy_at(place as usize).arranged(place))));
    let policies = (0..count).map(&policy_at);
    let mut named: Vec<u16> =
        policies.filter_map(|policy| policy.shape.ingress).flatten().copied().collect();
    named.sort_unstable();
    named.dedup();
    let others = named.len() < usize::from(ports);
    let ways = named.into_iter().map(Some).chain(others.then_some(None)).collect();
    let review = Review { policy_at, tree, ports: ways };
    for place in 0..count {
        let mut steps = Steps(STEPS_A_POLICY.min(effort.0));
        let before = steps.0;
        // A search that ends early has told what it found.
        let _: Result<(), Exhausted> = review.one(place, &mut steps, &mut found);
        effort.0 -= before - steps.0;
    }
}

struct Review<P> {
    policy_at: P,
    tree: AddressTree,
    /// Ports that policies tell apart, and `None` for all others if there are any.
    ports: Vec<Option<u16>>,
}

impl<'p, P: Fn(usize) -> ReviewedPolicy<'p>> Review<P> {
    fn policy(&self, place: usize) -> ReviewedPolicy<'p> {
        (self.policy_at)(place)
    }

    fn precedence(&self, place: usize) -> Precedence {
        self.policy(place).precedence(place as u32)
    }

    fn one(
        &self,
        place: usize,
        steps: &mut Steps,
        found: &mut impl FnMut(Finding),
    ) -> Result<(), Exhausted> {
        let policy = self.policy(place);
        let covering = self.covering(place, steps)?;
        if let Some(other) = covering {
            found(Finding { doubt: Doubt::Covered, policy: place, other, example: None });
        }
        let mut takers = HashSet::new();
        if matches!(policy.action, Action::Protect(_)) {
            self.takers(place, steps, |other, example| {
                takers.insert(other);
                let (doubt, example) = (Doubt::Takes, Some(example));
                found(Finding { doubt, policy: other, other: place, example });
            })?;
        }
        if covering.is_some() {
            return Ok(());
        }
        self.ties(place, steps, |other, example| {
            if !takers.contains(&other) {
                let (doubt, example) = (Doubt::Tied, Some(example));
                found(Finding { doubt, policy: other, other: place, example });
            }
        })
    }

    /// Places of policies above this one that may be sought, each once.
    fn above(
        &self,
        place: usize,
        sought: impl Fn(Window) -> Sought,
        steps: &mut Steps,
        mut visit: impl FnMut(usize, ReviewedPolicy<'p>, &mut Steps) -> Result<bool, Exhausted>,
    ) -> Result<(), Exhausted> {
        let precedence = self.precedence(place);
        let mut seen = HashSet::new();
        for family in FAMILIES {
            for window in windows(self.policy(place).shape.selector, family) {
                let sought = sought(window);
                let stopped = self.tree.search(family, &sought, steps, |place, steps| {
                    let place = place as usize;
                    let (other, rank) = (self.policy(place), self.precedence(place));
                    let is_sought = rank > precedence
                        && sought.below.is_none_or(|below| rank < below)
                        && sought.kinds.meet(Kinds::of(other.action));
                    if !is_sought || !seen.insert(place) {
                        return Ok(ControlFlow::Continue(()));
                    }
                    match visit(place, other, steps)? {
                        true => Ok(ControlFlow::Continue(())),
                        false => Ok(ControlFlow::Break(())),
                    }
                })?;
                if stopped.is_some() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// A policy before this one that covers it.
    fn covering(&self, place: usize, steps: &mut Steps) -> Result<Option<usize>, Exhausted> {
        let (policy, above) = (self.policy(place), Some(self.precedence(place)));
        let sought =
            |window| Sought { window, reach: Reach::Around, kinds: Kinds::ALL, below: None, above };
        let mut found = None;
        self.above(place, sought, steps, |place, other, _| {
            if covers(other.shape, policy.shape) {
                found = Some(place);
            }
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    /// Policies before this one that take packets from it, with one of those.
    fn takers(
        &self,
        place: usize,
        steps: &mut Steps,
        mut found: impl FnMut(usize, Example),
    ) -> Result<(), Exhausted> {
        let (policy, above) = (self.policy(place), Some(self.precedence(place)));
        for kinds in [Kinds::BYPASS, Kinds::PROTECT] {
            let sought = |window| Sought { window, reach: Reach::Into, kinds, below: None, above };
            self.above(place, sought, steps, |taker, other, steps| {
                let is_exception = kinds == Kinds::PROTECT && covers(policy.shape, other.shape);
                if other.action != policy.action
                    && !is_exception
                    && let Some(example) = self.shared(taker, place, steps)?
                {
                    found(taker, example);
                }
                Ok(true)
            })?;
        }
        Ok(())
    }

    /// Policies of this one's priority that contradict it and come after it in the list, with a
    /// packet of both.
    fn ties(
        &self,
        place: usize,
        steps: &mut Steps,
        mut found: impl FnMut(usize, Example),
    ) -> Result<(), Exhausted> {
        let (policy, above) = (self.policy(place), Some(self.precedence(place)));
        let below = policy.priority.checked_add(1).map(Precedence::lowest_of);
        let sought =
            |window| Sought { window, reach: Reach::Into, kinds: Kinds::ALL, below, above };
        self.above(place, sought, steps, |later, other, steps| {
            if other.action != policy.action
                && !covers(policy.shape, other.shape)
                && let Some(example) = self.shared(later, place, steps)?
            {
                found(later, example);
            }
            Ok(true)
        })
    }

    /// A packet that the first decides and the other matches too.
    fn shared(
        &self,
        one: usize,
        other: usize,
        steps: &mut Steps,
    ) -> Result<Option<Example>, Exhausted> {
        let above = Some(self.precedence(one));
        let [one, other] = [one, other].map(|place| self.policy(place).shape);
        for direction in DIRECTIONS {
            for &ingress in &self.ports {
                steps.take(1)?;
                let way = Way { direction, ingress };
                if !way.is_of(one) || !way.is_of(other) {
                    continue;
                }
                for family in FAMILIES {
                    let (first, second) =
                        (Sides::new(one.selector, family), Sides::new(other.selector, family));
                    let region = first.with(&second, steps, |region, steps| {
                        let mut pieces = vec![region];
                        while let Some(piece) = pieces.pop() {
                            let window = Window { local: piece.local, remote: piece.remote };
                            let (reach, kinds) = (Reach::Into, Kinds::ALL);
                            let sought = Sought { window, reach, kinds, below: None, above };
                            let hole =
                                self.tree.search(family, &sought, steps, |place, steps| {
                                    let place = place as usize;
                                    let policy = self.policy(place).shape;
                                    if Some(self.precedence(place)) <= above || !way.is_of(policy) {
                                        return Ok(ControlFlow::Continue(()));
                                    }
                                    let sides = Sides::new(policy.selector, family);
                                    let part = sides.first_within(&piece, steps)?;
                                    Ok(part.map_or(ControlFlow::Continue(()), ControlFlow::Break))
                                })?;
                            match hole {
                                None => return Ok(Some(piece)),
                                Some(hole) => piece.without(&hole, &mut pieces),
                            }
                        }
                        Ok(None)
                    })?;
                    if let Some(region) = region {
                        let flow = region.packet(family, direction);
                        return Ok(Some(Example { direction, ingress, flow }));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Returns whether a policy matches every packet that another one does; `false` if in doubt.
fn covers(wide: PolicyShape<'_>, narrow: PolicyShape<'_>) -> bool {
    let ways = wide.only.is_none() || wide.only == narrow.only;
    let ports = match (wide.ingress, narrow.ingress) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => narrow.iter().all(|port| wide.contains(port)),
    };
    ways && ports && wide.selector.covers(narrow.selector)
}
