//! The policies that decided a packet, asked after the fact: the walk's own questions, of a row as
//! it was when the policies were asked. Counts nothing.

use policy::{Book, FlowVerdict, PolicyIndex};

use crate::decide::decide_one;
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
        let (tables, mut rule) = (snapshot.tables(), Rule::default());
        // Where it goes is known: only who said so is asked for.
        let _ = decide_one(snapshot, &row, bytes, |scope, flow| {
            let mut verdict = [FlowVerdict::NOT_ASKED];
            tables.classify(scope, std::slice::from_ref(flow), &mut verdict);
            let decider = verdict[0].deciders.slots().last();
            match tables.scopes().domain(scope).book() {
                Book::SpdIn => rule.inbound = decider,
                Book::SpdOut => rule.outbound = decider,
            }
            verdict[0]
        });
        rule
    }
}
