//! Packets that a network card tagged with the rule that decides them.

use policy::{FlowVerdict, PolicyIndex, Scope};
use wire::Mark;

use super::audited::audit;
use super::{Routed, route};
use crate::audit::FastTier;
use crate::batch_context::BatchContext;
use crate::card_marks;
use crate::ids::NextHopId;
use crate::row::{Origin, Row};
use crate::snapshot::Snapshot;

/// Returns the rule that a row's card says decides it, if the tag counts.
#[inline]
fn tagged_rule_of((snapshot, marks): (&Snapshot, &[Mark]), row: &Row) -> Option<PolicyIndex> {
    let placements = snapshot.cards()?.on(row.ingress)?;
    // What waited has its hint of another batch; only fragments wait.
    let is_seen = row.origin == Origin::Received && offload::is_plain(&row.packet);
    let mark = marks.get((row.hint as usize).checked_sub(1)?).filter(|_| is_seen)?;
    card_marks::tagged_rule(placements, mark, row.packet.flow.family)
}

/// Returns the next hop of a packet that is to leave by a protected port; `None`: it is not, and no
/// tag decides it.
#[inline]
pub(crate) fn route_inside(snapshot: &Snapshot, row: &Row) -> Option<NextHopId> {
    match route(snapshot, row) {
        Ok(Routed::Inside(hop)) => Some(hop),
        Ok(Routed::Outside(_) | Routed::Host) | Err(_) => None,
    }
}

/// Returns the verdict that a card's tag gives a packet, and the next hop by which it is to leave;
/// counts it. `None`: it has no tag that counts, or more is asked than the tag answers.
#[inline]
pub(super) fn tagged<F>(
    context: &mut BatchContext<'_, F>,
    row: &Row,
    scope: Scope,
) -> Option<(NextHopId, FlowVerdict)> {
    let snapshot = context.snapshot;
    let rule = tagged_rule_of((snapshot, context.marks), row)?;
    let hop = route_inside(snapshot, row)?;
    let exit = snapshot.exit(hop);
    let verdict = snapshot.tables().verdict_of_ingress_rule(scope, exit, rule)?;
    context.counters.tagged += 1;
    let about = (row.ingress, &row.packet.flow);
    audit(context, FastTier::Card, about, (scope, exit), &verdict);
    Some((hop, verdict))
}
