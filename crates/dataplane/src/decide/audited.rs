//! The audit of packets that the cache, a claim of the kernel's or a card's tag decided in the
//! general walk.

use policy::{Exit, FlowVerdict, Scope, Tracks};
use wire::Flow;

use crate::audit::{Disagreement, FastTier, Judged};
use crate::batch_context::BatchContext;
use crate::ids::PortId;

/// Judges a packet again that a tier decided, if it is time: what the tier `said` was the answer to
/// this question about the flow.
#[inline]
pub(super) fn audit<F>(
    context: &mut BatchContext<'_, F>,
    tier: FastTier,
    (ingress, flow): (PortId, &Flow),
    question: (Scope, Exit),
    said: &FlowVerdict,
) {
    if context.auditor.draw(1).is_some() {
        judge_again(context, tier, (ingress, flow), question, said);
    }
}

#[cold]
fn judge_again<F>(
    context: &mut BatchContext<'_, F>,
    tier: FastTier,
    (ingress, flow): (PortId, &Flow),
    (scope, exit): (Scope, Exit),
    said: &FlowVerdict,
) {
    let tables = context.snapshot.tables();
    if tables.tracks(scope, exit) != Tracks::default() {
        return;
    }
    let mut judged = [FlowVerdict::NOT_ASKED];
    tables.classify(scope, exit, &[*flow], &mut judged);
    let found = Disagreement {
        tier,
        ingress,
        flow: *flow,
        said: Judged::from(said),
        judged: Judged::from(&judged[0]),
        generation: context.snapshot.generation(),
    };
    context.auditor.note(&mut context.counters.audit, found);
}
