//! Packets from a protected port that a network card tagged with the rule that decides them: where
//! that rule is all that is asked, neither cache nor tables are.

use offload::Placements;
use policy::{Question, Scope};
use wire::{BATCH, Family, Mark, Received};

use super::clear::{Common, OneRoute};
use super::judge::leads_on;
use super::prepared_path::{Heading, PathId, PreparedPaths};
use super::{Columns, FastPath, Row};
use crate::batch_context::BatchContext;
use crate::cache::{Column, bits};
use crate::card_marks::rule_of_tag;
use crate::ids::NextHopId;
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
        let tags = Tags { placements, packets };
        // Where the first has no tag the others mostly have none, and one route is of no use.
        let first = (common.v4 | common.v6).trailing_zeros() as usize;
        let one_route =
            tags.tag(context.marks, first).map(|_| self.one_route(context, common, None));
        let way = match one_route {
            Some(OneRoute::Asked(hop)) => Way::One(hop),
            None | Some(OneRoute::Inside | OneRoute::No) => Way::Each,
        };
        let Columns { rows, v4, v6, .. } = &mut *self.columns;
        let (ingress, paths) = (self.gate.ingress, &mut self.paths);
        let scope = |family| context.snapshot.scope(ingress, Question::Through, family, None);
        let mut by_tag = ByTag::default();
        if common.v4 != 0 {
            let of = (Family::V4, scope(Family::V4), common.v4);
            tags.decide::<2, 4, F>(context, (of, way), v4, (rows, paths), &mut by_tag);
        }
        if common.v6 != 0 {
            let of = (Family::V6, scope(Family::V6), common.v6);
            tags.decide::<6, 8, F>(context, (of, way), v6, (rows, paths), &mut by_tag);
        }
        self.tagged = by_tag.all;
        by_tag
    }
}

/// The way that the packets of a batch leave by.
#[derive(Clone, Copy)]
enum Way {
    /// All by one next hop.
    One(NextHopId),
    /// Each by its own.
    Each,
}

/// A tag that names nothing, and that no packet is compared with.
const NO_TAG: u64 = 0;

/// The packet that was decided last.
struct Last {
    tag: u64,
    hop: NextHopId,
    path: PathId,
    decision: u16,
    mtu: u32,
}

impl Last {
    const NONE: Last =
        Last { tag: NO_TAG, hop: NextHopId(0), path: PathId::NONE, decision: 0, mtu: 0 };
}

/// The tags of a batch, and those that count.
struct Tags<'a> {
    placements: &'a Placements,
    packets: &'a [Received],
}

impl Tags<'_> {
    /// Decides about the packets of one family, a bit each.
    #[inline(always)]
    fn decide<const HEAD: usize, const WORDS: usize, F>(
        &self,
        context: &BatchContext<'_, F>,
        ((family, scope, mask), way): ((Family, Scope, u64), Way),
        column: &Column<HEAD>,
        (rows, paths): (&mut [Row; BATCH], &mut PreparedPaths),
        by_tag: &mut ByTag,
    ) {
        let (mut last_route, mut last) = (LastRoute::nothing(), Last::NONE);
        let (mut all, mut fit) = (0u64, 0u64);
        for place in bits(mask) {
            let Some(tag) = self.tag(context.marks, place) else { continue };
            let hop = match way {
                Way::One(hop) => hop,
                Way::Each => {
                    let flow = column.flow::<WORDS>(place);
                    let hop = leads_on(context.snapshot, &mut last_route, &flow, Heading::Out);
                    let Some(hop) = hop else { continue };
                    hop
                }
            };
            if last.tag != tag || last.hop != hop {
                let Some(rule) = rule_of_tag(self.placements, tag, family) else { continue };
                let exit = context.snapshot.exit(hop);
                let verdict = context.snapshot.tables().verdict_of_ingress_rule(scope, exit, rule);
                let Some(verdict) = verdict else { continue };
                let destination = || column.flow::<WORDS>(place).destination_address();
                let heading = (Heading::Out, family);
                let said = paths.by_verdict(context, (&verdict, hop), heading, destination);
                // A decision for one destination says nothing of the next packet.
                let tag = if said.is_on_link { NO_TAG } else { tag };
                last = Last { tag, hop, path: said.path, decision: said.place, mtu: said.mtu };
            }
            let row = &mut rows[place];
            (row.path, row.decision) = (last.path, last.decision);
            all |= 1 << place;
            fit |= u64::from(row.length <= last.mtu) << place;
        }
        (by_tag.all, by_tag.fit) = (by_tag.all | all, by_tag.fit | fit);
    }

    /// The tag that a card gave a packet.
    #[inline(always)]
    fn tag(&self, marks: &[Mark], place: usize) -> Option<u64> {
        let mark = marks.get((self.packets[place].hint as usize).checked_sub(1)?)?;
        mark.card_tag().filter(|tag| *tag != NO_TAG)
    }
}
