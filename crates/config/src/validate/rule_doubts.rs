//! Rules of groups that are allowed and probably not meant so: they never decide, because a rule
//! above them in their group covers them.

use std::sync::Arc;

use policy::overlap::{Doubt, Finding, review};
use policy::{Action, Direction, Policy, PolicyId};

use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::groups::{Group, Rule, RuleAction, Set};
use crate::source::Span;

/// Rules that are told at most; of the rest only the number is.
const MAX_TOLD: usize = 10;

/// The rules of a file, in its order, with their places.
pub(super) struct RuleReview<'a> {
    pub(super) rules: &'a [Rule],
    pub(super) places: &'a [Span],
    pub(super) groups: &'a [Group],
    pub(super) sets: &'a [Set],
}

impl RuleReview<'_> {
    /// Warns of the first few rules that never decide.
    pub(super) fn warn(&self, problems: &mut Diagnostics<'_>) {
        if self.rules.is_empty() {
            return;
        }
        let groups: Vec<Arc<[u16]>> = (0..self.groups.len() as u16).map(|id| [id].into()).collect();
        let stand_in = |(place, rule): (u32, &Rule)| self.stand_in(place, rule, &groups);
        let policies: Vec<Policy> = (0..).zip(self.rules).map(stand_in).collect();
        let mut found: Vec<(usize, usize)> = Vec::new();
        review(&policies, groups.len() as u16, |Finding { doubt, policy, other, .. }| {
            if doubt == Doubt::Covered {
                found.push((policy, other));
            }
        });
        for &(covered, by) in found.iter().take(MAX_TOLD) {
            self.tell(covered, by, problems);
        }
        if let Some(more) = found.len().checked_sub(MAX_TOLD).filter(|more| *more > 0) {
            let doubt = "rules that never decide";
            let last = &self.places[found[MAX_TOLD - 1].0];
            problems.warning(last, DiagnosticKind::MoreDoubts { more, doubt });
        }
    }

    /// A policy that is related to others as the rule is to other rules: a group stands for a port,
    /// so that only rules of one group meet, and each priority is there once.
    fn stand_in(&self, place: u32, rule: &Rule, groups: &[Arc<[u16]>]) -> Policy {
        Policy {
            id: PolicyId(place),
            name: String::new(),
            action: match rule.action {
                RuleAction::Permit | RuleAction::Reflect => Action::Bypass,
                RuleAction::Deny => Action::Discard,
            },
            priority: u32::MAX - place,
            only: Some(Direction::Outbound),
            group: None,
            ingress: Some(groups[rule.group.0 as usize].clone()),
            selector: rule.selector(self.sets),
        }
    }

    fn tell(&self, covered: usize, by: usize, problems: &mut Diagnostics<'_>) {
        let line = problems.line(&self.places[by]);
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
        problems.warning(&self.places[covered], mistake);
    }
}
