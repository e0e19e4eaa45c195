//! The audit of packets that the cache or a card's tag decided on the fast path: one of a batch is
//! judged again by the tables.

use policy::{FlowAction, FlowVerdict, Question, Refusal, Tracks};
use wire::Flow;

use super::FastPath;
use super::clear::Common;
use super::judge::leads_on;
use super::prepared_path::{Heading, PathTarget};
use crate::audit::{Disagreement, FastTier, Judged};
use crate::batch_context::BatchContext;
use crate::cache::bits;
use crate::routes::LastRoute;

impl FastPath {
    /// Judges one of the packets again that came in clear and leave by the fast path, if it is due.
    #[inline]
    pub(super) fn audit<F>(&mut self, context: &mut BatchContext<'_, F>, common: Common, fit: u64) {
        let by_tables = if self.counts_lookups { self.misses } else { !self.tagged };
        let by_tiers = fit & !by_tables;
        if let Some(nth) = context.auditor.draw(by_tiers.count_ones()) {
            let place = bits(by_tiers).nth(nth as usize);
            place.into_iter().for_each(|place| self.judge_again(context, common, place));
        }
    }

    #[cold]
    fn judge_again<F>(&self, context: &mut BatchContext<'_, F>, common: Common, place: usize) {
        let (snapshot, ingress) = (context.snapshot, self.gate.ingress);
        let flow: Flow = match common.v4 >> place & 1 {
            1 => self.columns.v4.flow::<4>(place),
            _ => self.columns.v6.flow::<8>(place),
        };
        let hop = leads_on(snapshot, &mut LastRoute::nothing(), &flow, Heading::Out);
        let Some(hop) = hop else { return };
        let scope = snapshot.scope(ingress, Question::Through, flow.family, None);
        let (tables, exit) = (snapshot.tables(), snapshot.exit(hop));
        if tables.tracks(scope, exit) != Tracks::default() {
            return;
        }
        let mut judged = [FlowVerdict::NOT_ASKED];
        tables.classify(scope, exit, &[flow], &mut judged);
        let row = &self.columns.rows[place];
        let action = match self.paths.list[row.path.place()].target {
            PathTarget::Hop(..) => FlowAction::Permit,
            PathTarget::Set(set) => FlowAction::Protect(set),
            // Several refusals may have one reason: then it is that of the tables.
            PathTarget::Drop(reason) => match judged[0].action {
                FlowAction::Refuse(refusal) if reason == refusal.into() => judged[0].action,
                _ => FlowAction::Refuse(Refusal::Discard),
            },
        };
        let deciders = self.paths.decision(row.decision).deciders;
        let is_tagged = self.tagged >> place & 1 == 1;
        let found = Disagreement {
            tier: if is_tagged { FastTier::Card } else { FastTier::Cache },
            ingress,
            flow,
            said: Judged { action, deciders },
            judged: Judged::from(&judged[0]),
            generation: snapshot.generation(),
        };
        context.auditor.note(&mut context.counters.audit, found);
    }
}
