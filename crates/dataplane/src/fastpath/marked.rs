//! Packets of flows whose cache entries are marked ([`Mark`](crate::cache::Mark)): they change
//! nothing of their connections, so these are not looked at.

use std::ops::Range;

use wire::Frames;
use wire::flow::protocol;

use super::connection_keys::TrackedHead;
use super::judge::{Judge, PacketGroup};
use crate::batch_context::BatchContext;
use crate::cache::{Column, Mark, Tick, bits};
use crate::connections::{ChangesView, EventClass, FlowHead};

/// The tick of a group's packets, and the changes of the connections that they may be of.
#[derive(Clone, Copy)]
pub(super) struct Markable<'a> {
    pub(super) changes: ChangesView<'a>,
    pub(super) tick: Tick,
}

impl Markable<'_> {
    /// The mark of a flow's entry, if it is marked now.
    #[inline(always)]
    fn mark(&self, head: &impl FlowHead) -> Mark {
        self.tick.mark(head.changes(&self.changes))
    }
}

impl Judge<'_> {
    /// Returns which packets of a range are [marked](Self::is_marked), of those that the cache
    /// knows.
    #[inline(always)]
    pub(super) fn marked<const HEAD: usize, F: Frames>(
        &self,
        context: &BatchContext<'_, F>,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        markable: &Markable<'_>,
        (range, known): (Range<usize>, u64),
    ) -> u64
    where
        [u64; HEAD]: TrackedHead,
    {
        let heads = column.heads[range.clone()].iter().zip(&column.marks[range.clone()]);
        let (mut marked, mut tcp) = (0u64, 0u64);
        for (at, (head, mark)) in heads.enumerate() {
            let is_marked = *mark == markable.mark(head);
            marked |= u64::from(is_marked) << at;
            tcp |= u64::from(is_tcp(head)) << at;
        }
        (marked, tcp) = (known & marked << range.start, tcp << range.start);
        for place in bits(marked & tcp) {
            let is_ack = self.is_ack(context, group, place);
            marked &= !(u64::from(!is_ack) << place);
        }
        let others = bits(known & !marked);
        let untracked = others.filter(|place| !column.values[*place].is_tracked());
        untracked.fold(marked, |marked, place| marked | 1 << place)
    }

    /// Returns whether a packet that the cache knows is of no connection that is tracked, or its
    /// entry is marked for such a packet.
    #[inline(always)]
    pub(super) fn is_marked<const HEAD: usize, F: Frames>(
        &self,
        context: &BatchContext<'_, F>,
        (column, group): (&Column<HEAD>, &PacketGroup<'_>),
        markable: &Markable<'_>,
        place: usize,
    ) -> bool
    where
        [u64; HEAD]: TrackedHead,
    {
        let head = &column.heads[place];
        match column.marks[place] == markable.mark(head) {
            true => !is_tcp(head) || self.is_ack(context, group, place),
            false => !column.values[place].is_tracked(),
        }
    }

    /// Returns whether a TCP segment acknowledges, and does nothing else: entries are marked for
    /// such ones alone.
    #[inline(always)]
    fn is_ack<F: Frames>(
        &self,
        context: &BatchContext<'_, F>,
        group: &PacketGroup<'_>,
        place: usize,
    ) -> bool {
        EventClass::of_flags(self.tcp_flags(context, group, place)) == EventClass::ACK
    }
}

/// Returns whether a key's flow is of TCP.
#[inline(always)]
fn is_tcp<const HEAD: usize>(head: &[u64; HEAD]) -> bool {
    let [_, _, _, _, number, ..] = head[1].to_le_bytes();
    number == protocol::TCP
}
