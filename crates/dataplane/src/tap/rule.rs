//! The policies that decided a packet, asked after the fact: the walk's own questions and answers,
//! of a row as it was when the policies were asked. Counts nothing.

use policy::{Direction, Match, PolicyIndex};
use wire::Flow;

use crate::decide::{Question, Routed, inbound_answer, inbound_question, route};
use crate::row::Row;
use crate::snapshot::Snapshot;

/// Policies that matched a packet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Rule {
    /// The one that said whether it may come in.
    pub(super) inbound: Option<PolicyIndex>,
    /// The one that said whether it may go out.
    pub(super) outbound: Option<PolicyIndex>,
}

impl Rule {
    /// Asks about a row; `bytes` is the beginning of its IP packet.
    pub(super) fn of(snapshot: &Snapshot, row: &Row, bytes: &[u8]) -> Rule {
        let mut row = *row;
        // What is cut off is not there to be quoted.
        row.packet.length = row.packet.length.min(bytes.len() as u32);
        let ask = |direction, flow: Flow| {
            let domain = snapshot.domain(row.ingress, direction, flow.family);
            let mut answer = [Match::None];
            snapshot.spd().classify(domain, &[flow], &mut answer);
            answer[0]
        };
        let mut rule = Rule::default();
        let asked = match inbound_question(snapshot, &row, bytes) {
            Question::Ask => Some(row.packet.flow),
            Question::AskInstead(flow) => Some(flow),
            Question::Decided(_) | Question::Refused(_) => return rule,
            Question::Pass => None,
        };
        if let Some(flow) = asked {
            let answer = ask(Direction::Inbound, flow);
            rule.inbound = policy_of(answer);
            if inbound_answer(snapshot, row.origin, answer).is_err() {
                return rule;
            }
        }
        if let Ok(Routed::Outside(_)) = route(snapshot, &row) {
            rule.outbound = policy_of(ask(Direction::Outbound, row.packet.flow));
        }
        rule
    }
}

fn policy_of(answer: Match) -> Option<PolicyIndex> {
    match answer {
        Match::Policy(policy) | Match::FragmentPorts(policy) => Some(policy),
        Match::None => None,
    }
}
