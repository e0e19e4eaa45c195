//! Rules of groups that are allowed and probably not meant so: they never decide, because a rule
//! above them in their group covers them.

use policy::overlap::{Doubt, Finding, ReviewEffort, ReviewedPolicy, review};
use policy::{Action, Direction, PolicyShape, Selector};

use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::groups::{Group, Rule, RuleAction, Set};
use crate::source::ShortSpan;

/// Rules that are told at most; of the rest only the number is.
const MAX_TOLD: usize = 10;

/// The rules of a file, in its order, with their places.
pub(super) struct RuleReview<'a> {
    pub(super) rules: &'a [Rule],
    pub(super) places: &'a [ShortSpan],
    pub(super) groups: &'a [Group],
    pub(super) sets: &'a [Set],
}

/// Places in the file of a covered rule, which never decides, and of the covering rule above.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CoveredPair {
    covered: usize,
    by: usize,
}

impl RuleReview<'_> {
    /// Warns of the first few rules that never decide.
    pub(super) fn warn(&self, problems: &mut Diagnostics<'_>) {
        if self.rules.is_empty() {
            return;
        }
        let mut found: Vec<CoveredPair> = Vec::new();
        let mut effort = ReviewEffort::of(self.rules.len());
        for rules in self.by_group() {
            self.review(&rules, &mut effort, &mut found);
        }
        found.sort_unstable();
        for &CoveredPair { covered, by } in found.iter().take(MAX_TOLD) {
            self.tell(covered, by, problems);
        }
        if let Some(more) = found.len().checked_sub(MAX_TOLD).filter(|more| *more > 0) {
            let doubt = "rules that never decide";
            let last = &self.places[found[MAX_TOLD - 1].covered].span();
            problems.warning(last, DiagnosticKind::MoreDoubts { more, doubt });
        }
    }

    /// The places of the rules of each group, in the order of the file.
    fn by_group(&self) -> Vec<Vec<usize>> {
        let mut groups = vec![Vec::new(); self.groups.len()];
        for (place, rule) in self.rules.iter().enumerate() {
            groups[rule.group.0 as usize].push(place);
        }
        groups
    }

    /// Reviews the rules of a group as policies of falling priority.
    fn review(&self, rules: &[usize], effort: &mut ReviewEffort, found: &mut Vec<CoveredPair>) {
        let selectors = rules.iter().map(|place| self.rules[*place].selector(self.sets));
        let selectors: Vec<Selector> = selectors.collect();
        let policy_at = |number: usize| ReviewedPolicy {
            action: match self.rules[rules[number]].action {
                RuleAction::Permit | RuleAction::Reflect => Action::Bypass,
                RuleAction::Deny => Action::Discard,
            },
            priority: u32::MAX - number as u32,
            shape: PolicyShape {
                only: Some(Direction::Outbound),
                ingress: None,
                selector: &selectors[number],
            },
        };
        review(rules.len(), policy_at, 1, effort, |Finding { doubt, policy, other, .. }| {
            if doubt == Doubt::Covered {
                found.push(CoveredPair { covered: rules[policy], by: rules[other] });
            }
        });
    }

    fn tell(&self, covered: usize, by: usize, problems: &mut Diagnostics<'_>) {
        let line = problems.line(&self.places[by].span());
        let (rule, by) = (&self.rules[covered], &self.rules[by]);
        let group = &self.groups[rule.group.0 as usize].name;
        let name = |rule: &Rule| format!("{group}/{}", rule.name).into_boxed_str();
        let mistake = DiagnosticKind::CoveredRule {
            rule: name(rule),
            action: rule.action,
            by: name(by),
            by_action: by.action,
            line,
        };
        problems.warning(&self.places[covered].span(), mistake);
    }
}
