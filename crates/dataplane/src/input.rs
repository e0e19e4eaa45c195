//! The input of the walk: a batch of packets.

use wire::{Mark, Received};

use crate::ids::NetdevId;

/// A batch of packets that one netdev received.
#[derive(Clone, Copy, Debug)]
pub struct Input<'p> {
    /// The netdev.
    pub netdev: NetdevId,
    /// At most [`BATCH`](wire::BATCH) packets, in the order in which they came.
    pub packets: &'p [Received],
    /// Marks with lower tiers' claims about some of them: [`Received::hint`] counts into these.
    pub marks: &'p [Mark],
    /// The way by which they came to this worker.
    pub entry: Entry,
}

/// The way by which packets came to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Received by this worker itself. Packets of other workers' SAs go to [`Outputs::handovers`],
    /// where several workers walk; the snapshots must then be for several.
    ///
    /// [`Outputs::handovers`]: crate::Outputs::handovers
    Received,
    /// Another worker received them, and handed them over. They are not handed over again.
    HandedOver,
}

impl<'p> Input<'p> {
    /// Packets that this worker received itself.
    pub fn received(netdev: NetdevId, packets: &'p [Received]) -> Input<'p> {
        Input { netdev, packets, marks: &[], entry: Entry::Received }
    }

    /// These packets with what lower tiers claim of them: [`Port::marks`](wire::Port::marks).
    pub fn marked(self, marks: &'p [Mark]) -> Input<'p> {
        Input { marks, ..self }
    }
}
