//! The policies that decided a packet, asked after the fact: the walk's own questions, of a row as
//! it was when the policies were asked. Counts nothing.

use policy::{PolicyIndex, Question};

use crate::decide::{Asked, decide_one};
use crate::row::Row;
use crate::snapshot::Snapshot;
use crate::tracking::Foreseen;

/// Policies, or rules of groups, that decided about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Rule {
    /// The last one that was asked whether it may come in.
    pub(super) inbound: Option<PolicyIndex>,
    /// The last one that was asked whether it may go out.
    pub(super) outbound: Option<PolicyIndex>,
}

impl Rule {
    /// Asks about a row; `bytes` is the beginning of its IP packet.
    pub(super) fn of((snapshot, now_ns): (&Snapshot, u64), row: &Row, bytes: &[u8]) -> Rule {
        let mut row = *row;
        // What is cut off is not there to be quoted.
        row.packet.length = row.packet.length.min(bytes.len() as u32);
        let (tables, mut rule) = (snapshot.tables(), Rule::default());
        // Where it goes is known: only who said so is asked for.
        let note = |asked: &Asked<'_>, foreseen: &Foreseen| {
            let decider = foreseen.verdict.deciders.slots().last();
            match asked.question(tables) {
                Question::Enter => rule.inbound = decider,
                Question::Leave | Question::Through => rule.outbound = decider,
            }
        };
        let _ = decide_one((snapshot, now_ns), &row, bytes, note);
        rule
    }
}
