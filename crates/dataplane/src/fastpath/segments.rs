//! TCP segments that open a connection: where a rule asks for them they have keys of their own.

use ipsec::OpenJob;
use policy::Question;
use wire::{BATCH, Family, FrameId, Frames, glance};

use super::{Columns, FastPath};
use crate::batch_context::BatchContext;
use crate::cache::{Column, bits, set_opens};

impl FastPath {
    /// Marks the keys of segments that open a connection, among those with SYN in `self.syn`, if
    /// the rules that a question asks tell them from others. `common` are the packets of IPv4 and
    /// of IPv6 that have keys, `frame` says in which frame a packet lies. Costs nothing in a batch
    /// without SYN.
    #[inline(always)]
    pub(super) fn tell_segments<F: Frames>(
        &mut self,
        context: &BatchContext<'_, F>,
        question: Question,
        common: [u64; 2],
        frame: impl Fn(&[OpenJob; BATCH], usize) -> FrameId,
    ) {
        if self.syn != 0 {
            self.mark_opening(context, question, common, frame);
        }
    }

    #[inline(never)]
    fn mark_opening<F: Frames>(
        &mut self,
        context: &BatchContext<'_, F>,
        question: Question,
        common: [u64; 2],
        frame: impl Fn(&[OpenJob; BATCH], usize) -> FrameId,
    ) {
        let (syn, ingress) = (self.syn, self.gate.ingress);
        let Columns { rows, v4, v6, open_jobs, .. } = &mut *self.columns;
        let tells = |family| {
            let scope = context.snapshot.scope(ingress, question, family, None);
            context.snapshot.tables().tells_segments(scope)
        };
        let seen = |place: usize| {
            let memory = context.frames.bytes(frame(open_jobs, place));
            memory.get(rows[place].ip as usize..).unwrap_or_default()
        };
        let [of_v4, of_v6] = common.map(|common| common & syn);
        if of_v4 != 0 && tells(Family::V4) {
            let glance = |place| seen(place).first_chunk().and_then(glance::v4);
            mark(v4, of_v4, |place| glance(place).is_some_and(|glance| glance.opens));
        }
        if of_v6 != 0 && tells(Family::V6) {
            let glance = |place| seen(place).first_chunk().and_then(glance::v6);
            mark(v6, of_v6, |place| glance(place).is_some_and(|glance| glance.opens));
        }
    }
}

/// Marks those keys of a column that open a connection.
fn mark<const HEAD: usize>(column: &mut Column<HEAD>, places: u64, opens: impl Fn(usize) -> bool) {
    for place in bits(places).filter(|place| opens(*place)) {
        set_opens(&mut column.heads[place]);
    }
}
