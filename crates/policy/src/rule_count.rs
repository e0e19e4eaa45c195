//! Counts the rules of policies without compiling the policies: for the check of a configuration.

use wire::Family;

use crate::book::Direction;
use crate::domain::Classes;
use crate::policy::Policy;
use crate::selector::Selector;
use crate::spd::Spd;
use crate::table_places::{IngressList, TablePlaces};

/// Packets of a policy of the SPD.
#[derive(Clone, Copy, Debug)]
pub struct PolicyShape<'p> {
    /// The only direction that the policy applies to; `None`: both.
    pub only: Option<Direction>,
    /// Places of the ports by which a packet must have come; `None`: any.
    pub ingress: Option<&'p [u16]>,
    /// The flows that the policy matches.
    pub selector: &'p Selector,
}

/// More rules than [`Spd::MAX_RULES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExcessRules {
    /// Place of the first policy beyond the limit.
    pub policy: usize,
    /// Rules up to and with that policy.
    pub rules: usize,
}

impl<'p> PolicyShape<'p> {
    /// The policy's directions and families with the number of its rules in each.
    fn rules(self) -> impl Iterator<Item = (Direction, Family, usize)> {
        let directions = [Direction::Inbound, Direction::Outbound].into_iter();
        let directions = directions.filter(move |of| self.only.is_none_or(|only| only == *of));
        let both = directions.flat_map(|of| [(of, Family::V4), (of, Family::V6)]);
        let counted = both.map(move |(of, family)| (of, family, self.selector.rules(family)));
        counted.filter(|(_, _, rules)| *rules > 0)
    }

    fn lists(self) -> impl Iterator<Item = IngressList<'p>> {
        let lists = self.ingress.map(|ports| {
            self.rules().map(move |(of, family, _)| IngressList { book: of.book(), family, ports })
        });
        lists.into_iter().flatten()
    }
}

impl Policy {
    /// Returns the packets of the policy.
    pub fn shape(&self) -> PolicyShape<'_> {
        let Policy { only, ingress, selector, .. } = self;
        PolicyShape { only: *only, ingress: ingress.as_deref(), selector }
    }
}

impl Spd {
    /// Returns the number of rules of a database of these policies alone.
    ///
    /// # Errors
    /// [`ExcessRules`], at the first policy beyond the limit.
    pub fn count_rules<'p>(
        policies: impl Iterator<Item = PolicyShape<'p>> + Clone,
    ) -> Result<usize, ExcessRules> {
        let classes = Classes::of(policies.clone().filter_map(|policy| policy.ingress));
        let places = TablePlaces::of(&classes, policies.clone().flat_map(PolicyShape::lists));
        let mut rules = 0usize;
        for (policy, shape) in policies.enumerate() {
            for (of, family, more) in shape.rules() {
                let tables = places.of_kind(&classes, (of.book(), family), shape.ingress).len();
                rules = rules.saturating_add(more.saturating_mul(tables));
            }
            if rules > Spd::MAX_RULES {
                return Err(ExcessRules { policy, rules });
            }
        }
        Ok(rules)
    }
}
