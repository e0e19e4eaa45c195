//! A set of policies looked over for what was probably not meant: policies that take packets from
//! a PROTECT policy, that never decide, or that contradict each other at one priority.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::{DIRECTIONS, Example, FAMILIES, Way};
use crate::policy::{Action, Policy, Precedence};
use crate::region::Sides;
use crate::steps::{Exhausted, Steps};
use crate::tree::{AddressTree, Kinds, Reach, Sought, Window, windows};

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

/// Looks policies over, whose numbers are their places: the later of two of one priority wins.
/// Packets come by `ports` ports. Calls `found` for each pair.
///
/// Cost: as good as linear. The effort is bounded for each policy and for all together: of
/// policies that thousands of others overlap, and where thousands overlap each other, not every
/// pair is found. A policy that several others together cover is not found either.
pub fn review(policies: &[Policy], ports: u16, mut found: impl FnMut(Finding)) {
    let tree = AddressTree::new((0..).zip(policies));
    let mut named: Vec<u16> =
        policies.iter().filter_map(|policy| policy.ingress.as_deref()).flatten().copied().collect();
    named.sort_unstable();
    named.dedup();
    let others = named.len() < usize::from(ports);
    let ways = named.into_iter().map(Some).chain(others.then_some(None)).collect();
    let review = Review { policies, tree, ports: ways };
    let mut all = BASE_STEPS + STEPS_MORE_A_POLICY * policies.len() as u64;
    for place in 0..policies.len() {
        let mut steps = Steps(STEPS_A_POLICY.min(all));
        let before = steps.0;
        // A search that ends early has told what it found.
        let _: Result<(), Exhausted> = review.one(place, &mut steps, &mut found);
        all -= before - steps.0;
    }
}

struct Review<'p> {
    policies: &'p [Policy],
    tree: AddressTree,
    /// Ports that policies tell apart, and `None` for all others if there are any.
    ports: Vec<Option<u16>>,
}

impl Review<'_> {
    fn one(
        &self,
        place: usize,
        steps: &mut Steps,
        found: &mut impl FnMut(Finding),
    ) -> Result<(), Exhausted> {
        let policy = &self.policies[place];
        let covering = self.covering(policy, steps)?;
        if let Some(other) = covering {
            found(Finding { doubt: Doubt::Covered, policy: place, other, example: None });
        }
        let mut takers = HashSet::new();
        if matches!(policy.action, Action::Protect(_)) {
            self.takers(policy, steps, |other, example| {
                takers.insert(other);
                let (doubt, example) = (Doubt::Takes, Some(example));
                found(Finding { doubt, policy: other, other: place, example });
            })?;
        }
        if covering.is_some() {
            return Ok(());
        }
        self.ties(policy, steps, |other, example| {
            if !takers.contains(&other) {
                let (doubt, example) = (Doubt::Tied, Some(example));
                found(Finding { doubt, policy: other, other: place, example });
            }
        })
    }

    /// Places of policies above this one that may be sought, each once.
    fn above(
        &self,
        policy: &Policy,
        sought: impl Fn(Window) -> Sought,
        steps: &mut Steps,
        mut visit: impl FnMut(usize, &Policy, &mut Steps) -> Result<bool, Exhausted>,
    ) -> Result<(), Exhausted> {
        let precedence = policy.precedence();
        let mut seen = HashSet::new();
        for family in FAMILIES {
            for window in windows(policy, family) {
                let sought = sought(window);
                let stopped = self.tree.search(family, &sought, steps, |place, steps| {
                    let place = place as usize;
                    let other = &self.policies[place];
                    let is_sought = other.precedence() > precedence
                        && sought.below.is_none_or(|below| other.precedence() < below)
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
    fn covering(&self, policy: &Policy, steps: &mut Steps) -> Result<Option<usize>, Exhausted> {
        let above = Some(policy.precedence());
        let sought =
            |window| Sought { window, reach: Reach::Around, kinds: Kinds::ALL, below: None, above };
        let mut found = None;
        self.above(policy, sought, steps, |place, other, _| {
            if covers(other, policy) {
                found = Some(place);
            }
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    /// Policies before this one that take packets from it, with one of those.
    fn takers(
        &self,
        policy: &Policy,
        steps: &mut Steps,
        mut found: impl FnMut(usize, Example),
    ) -> Result<(), Exhausted> {
        let above = Some(policy.precedence());
        for kinds in [Kinds::BYPASS, Kinds::PROTECT] {
            let sought = |window| Sought { window, reach: Reach::Into, kinds, below: None, above };
            self.above(policy, sought, steps, |place, other, steps| {
                let is_exception = kinds == Kinds::PROTECT && covers(policy, other);
                if other.action != policy.action
                    && !is_exception
                    && let Some(example) = self.shared(other, policy, steps)?
                {
                    found(place, example);
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
        policy: &Policy,
        steps: &mut Steps,
        mut found: impl FnMut(usize, Example),
    ) -> Result<(), Exhausted> {
        let above = Some(policy.precedence());
        let below = policy.priority.checked_add(1).map(Precedence::lowest_of);
        let sought =
            |window| Sought { window, reach: Reach::Into, kinds: Kinds::ALL, below, above };
        self.above(policy, sought, steps, |place, other, steps| {
            if other.action != policy.action
                && !covers(policy, other)
                && let Some(example) = self.shared(other, policy, steps)?
            {
                found(place, example);
            }
            Ok(true)
        })
    }

    /// A packet that the first decides and the other matches too.
    fn shared(
        &self,
        one: &Policy,
        other: &Policy,
        steps: &mut Steps,
    ) -> Result<Option<Example>, Exhausted> {
        let above = Some(one.precedence());
        for direction in DIRECTIONS {
            for &ingress in &self.ports {
                steps.take(1)?;
                let way = Way { direction, ingress };
                if !way.is_of(one) || !way.is_of(other) {
                    continue;
                }
                for family in FAMILIES {
                    let (first, second) =
                        (Sides::new(&one.selector, family), Sides::new(&other.selector, family));
                    let region = first.with(&second, steps, |region, steps| {
                        let mut pieces = vec![region];
                        while let Some(piece) = pieces.pop() {
                            let window = Window { local: piece.local, remote: piece.remote };
                            let (reach, kinds) = (Reach::Into, Kinds::ALL);
                            let sought = Sought { window, reach, kinds, below: None, above };
                            let hole =
                                self.tree.search(family, &sought, steps, |place, steps| {
                                    let policy = &self.policies[place as usize];
                                    if Some(policy.precedence()) <= above || !way.is_of(policy) {
                                        return Ok(ControlFlow::Continue(()));
                                    }
                                    let sides = Sides::new(&policy.selector, family);
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
fn covers(wide: &Policy, narrow: &Policy) -> bool {
    let ways = wide.only.is_none() || wide.only == narrow.only;
    let ports = match (&wide.ingress, &narrow.ingress) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => narrow.iter().all(|port| wide.contains(port)),
    };
    ways && ports && wide.selector.covers(&narrow.selector)
}
