//! Packets from a protected port that a network card tagged with the rule that decides them: where
//! that rule is all that is asked, neither cache nor tables are.

use offload::Placements;
use policy::{PolicyIndex, Question, Scope};
use wire::{Family, Mark, Received};

use super::clear::Common;
use super::judge::leads_on;
use super::prepared_path::{Decision, Heading, PreparedPaths};
use super::{Columns, FastPath, Row};
use crate::batch_context::BatchContext;
use crate::cache::{Column, bits};
use crate::card_marks::tagged_rule;
use crate::routes::LastRoute;

/// The packets that were decided by their tags.
#[derive(Clone, Copy, Default)]
pub(super) struct ByTag {
    /// All of them.
    pub(super) all: u64,
    /// Those that fit their path.
    pub(super) fit: u64,
}

impl FastPath {
    /// Decides about the packets whose tags count and answer all that is asked.
    #[inline]
    pub(super) fn by_tag<F>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        common: Common,
    ) -> ByTag {
        let placements = context.snapshot.cards().and_then(|cards| cards.on(self.gate.ingress));
        match placements {
            Some(placements) if !context.marks.is_empty() => {
                self.read_tags(context, packets, common, placements)
            }
            _ => ByTag::default(),
        }
    }

    #[inline(never)]
    fn read_tags<F>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        common: Common,
        placements: &Placements,
    ) -> ByTag {
        let Columns { rows, v4, v6, .. } = &mut *self.columns;
        let (ingress, paths) = (self.gate.ingress, &mut self.paths);
        let scope = |family| context.snapshot.scope(ingress, Question::Through, family, None);
        let tags = Tags { placements, packets };
        let mut by_tag = ByTag::default();
        if common.v4 != 0 {
            let of = (Family::V4, scope(Family::V4), common.v4);
            tags.decide::<2, 4, F>(context, of, v4, (rows, paths), &mut by_tag);
        }
        if common.v6 != 0 {
            let of = (Family::V6, scope(Family::V6), common.v6);
            tags.decide::<6, 8, F>(context, of, v6, (rows, paths), &mut by_tag);
        }
        context.counters.tagged += u64::from(by_tag.fit.count_ones());
        self.tagged = by_tag.all;
        by_tag
    }
}

/// The tags of a batch, and those that count.
struct Tags<'a> {
    placements: &'a Placements,
    packets: &'a [Received],
}

impl Tags<'_> {
    /// Decides about the packets of one family, a bit each.
    fn decide<const HEAD: usize, const WORDS: usize, F>(
        &self,
        context: &BatchContext<'_, F>,
        (family, scope, mask): (Family, Scope, u64),
        column: &Column<HEAD>,
        (rows, paths): (&mut [Row], &mut PreparedPaths),
        by_tag: &mut ByTag,
    ) {
        let (mut last_route, mut last) = (LastRoute::nothing(), None);
        let tables = context.snapshot.tables();
        for place in bits(mask) {
            let Some(rule) = self.rule(context.marks, family, place) else { continue };
            let flow = column.flow::<WORDS>(place);
            let Some(hop) = leads_on(context.snapshot, &mut last_route, &flow, Heading::Out) else {
                continue;
            };
            let said: Decision = match last {
                Some((by, said)) if by == (rule, hop) => said,
                _ => {
                    let exit = context.snapshot.exit(hop);
                    let verdict = tables.verdict_of_ingress_rule(scope, exit, rule);
                    let Some(verdict) = verdict else { continue };
                    let destination = || flow.destination_address();
                    paths.by_verdict(context, (&verdict, hop), (Heading::Out, family), destination)
                }
            };
            // A decision for one destination says nothing of the next packet.
            last = (!said.is_on_link).then_some(((rule, hop), said));
            let row = &mut rows[place];
            (row.path, row.decision) = (said.path, said.place);
            by_tag.all |= 1 << place;
            by_tag.fit |= u64::from(row.length <= said.mtu) << place;
        }
    }

    /// The rule that the card says decides a packet, if its tag counts.
    #[inline(always)]
    fn rule(&self, marks: &[Mark], family: Family, place: usize) -> Option<PolicyIndex> {
        let mark = marks.get((self.packets[place].hint as usize).checked_sub(1)?)?;
        tagged_rule(self.placements, mark, family)
    }
}
