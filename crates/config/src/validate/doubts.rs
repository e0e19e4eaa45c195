//! Policies that are allowed and probably not meant so: they take packets from a PROTECT policy,
//! never decide, or contradict one of their own priority.

use policy::SaSetId;
use policy::overlap::{Doubt, Finding, ReviewEffort, ReviewedPolicy, review};

use super::ports::Ports;
use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::example::example_text;
use crate::host_port::HOST_PORT;
use crate::source::{ShortSpan, Span};
use crate::validated::{Action, PeerId, Policy};

/// Pairs of policies of one kind that are told at most; of the rest only the number is.
const MAX_TOLD: usize = 10;

/// The policies of a file, in its order, with the places of their names.
pub(super) struct Review<'a> {
    pub(super) policies: &'a [Policy],
    pub(super) places: &'a [ShortSpan],
    pub(super) ports: &'a Ports,
    pub(super) peer: &'a dyn Fn(PeerId) -> Option<&'a str>,
}

impl Review<'_> {
    /// Warns of every kind, of the first few pairs each.
    pub(super) fn warn(&self, problems: &mut Diagnostics<'_>) {
        let (count, ports) = (self.policies.len(), (self.ports.ids.len() + 1) as u16);
        let policy_at = |place| reviewed(&self.policies[place]);
        let mut effort = ReviewEffort::of(count);
        let mut told: Vec<Finding> = Vec::new();
        let mut counts = [0usize; 3];
        review(count, policy_at, ports, &mut effort, |finding| {
            let count = &mut counts[finding.doubt as usize];
            *count += 1;
            if *count <= MAX_TOLD {
                told.push(finding);
            }
        });
        for finding in &told {
            self.tell(finding, problems);
        }
        for (doubt, count) in [Doubt::Takes, Doubt::Covered, Doubt::Tied].into_iter().zip(counts) {
            let last = told.iter().rev().find(|finding| finding.doubt == doubt);
            if let (Some(last), true) = (last, count > MAX_TOLD) {
                let mistake =
                    DiagnosticKind::MoreDoubts { more: count - MAX_TOLD, doubt: text(doubt) };
                problems.warning(&self.span(last.policy), mistake);
            }
        }
    }

    fn tell(&self, finding: &Finding, problems: &mut Diagnostics<'_>) {
        let Finding { doubt, policy, other, example } = *finding;
        let line = problems.line(&self.span(other));
        let other = &self.policies[other];
        let name = other.name.clone();
        let example = example.map_or(String::new(), |example| {
            let port_name = |place: u16| {
                let port = self.ports.list.get(usize::from(place));
                port.map_or(HOST_PORT, |port| port.name.as_str())
            };
            example_text(&port_name, &example)
        });
        let mistake = match doubt {
            Doubt::Takes => {
                let action = self.action(&self.policies[policy]).into();
                let (from, protects) = (name.into(), self.action(other).into());
                DiagnosticKind::TakesPackets {
                    action,
                    from,
                    line,
                    protects,
                    example: example.into(),
                }
            }
            Doubt::Covered => DiagnosticKind::CoveredPolicy { by: name, line },
            Doubt::Tied => DiagnosticKind::TiedPolicies { other: name, line, example },
        };
        problems.warning(&self.span(policy), mistake);
    }

    fn span(&self, place: usize) -> Span {
        self.places[place].span()
    }

    fn action(&self, policy: &Policy) -> String {
        match policy.action {
            Action::Bypass => "bypass".to_owned(),
            Action::Discard => "discard".to_owned(),
            Action::Protect(id) => {
                format!("protect with peer {}", (self.peer)(id).unwrap_or_default())
            }
        }
    }
}

fn reviewed(policy: &Policy) -> ReviewedPolicy<'_> {
    let Policy { action, priority, .. } = *policy;
    let action = action.for_spd(|peer| SaSetId(peer.0));
    ReviewedPolicy { action, priority, shape: policy.shape() }
}

const fn text(doubt: Doubt) -> &'static str {
    match doubt {
        Doubt::Takes => "policies that take packets from a PROTECT policy",
        Doubt::Covered => "policies that never decide",
        Doubt::Tied => "policies that contradict one of their own priority",
    }
}
