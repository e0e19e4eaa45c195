//! The packets of a batch that leave, in order, and the paths that they leave by.

use std::ops::Range;

use ipsec::{OutboundSa, SealJob, SequenceRun};
use wire::{Descriptor, FrameId};

use crate::batch_context::BatchContext;
use crate::outer_fragments::Cuts;
use crate::output_path::OutputPath;
use crate::row::Row;
use crate::verdict::DropReason;

/// The use of a path by this batch: its packets and their sequence numbers.
pub(crate) struct PathUse {
    pub(crate) path: OutputPath,
    /// Packets. A batch of large ones becomes more than 65,535 fragments on a narrow path.
    pub(crate) count: u32,
    /// Sequence numbers for them; none where they leave in clear, or to be sealed by a card.
    pub(crate) numbers: SequenceRun,
    /// Reason why those behind the last number are dropped.
    pub(crate) numberless: DropReason,
    /// Packets that the limits of the SA allow: the first ones. All, if it has none.
    allowed: u32,
    /// Packets that left or wait to leave, and bytes of their IP packets before they were sealed.
    pub(crate) left: u32,
    pub(crate) bytes: u64,
}

impl PathUse {
    /// Counts a packet that leaves or waits to leave.
    pub(crate) fn leaves(&mut self, row: &Row) {
        self.left += 1;
        self.bytes += u64::from(row.packet.length);
    }
}

/// A row's packet on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputRow {
    /// The row.
    pub(crate) row: u32,
    /// The place of its path.
    pub(crate) path: u32,
    /// Offset in the frame of the packet that leaves, once its headers are written. Until then, and
    /// if its packet is dropped, the length is 0.
    pub(crate) offset: u32,
    pub(crate) length: u32,
    /// True if the sealed packet leaves in fragments, or may be cut behind the outer peer. Before
    /// the seal: if the packet's own path allows fragments.
    pub(crate) is_cut: bool,
}

impl OutputRow {
    /// Notes where the packet lies that is to leave.
    pub(crate) fn is_at(&mut self, bytes: Range<usize>) {
        (self.offset, self.length) = (bytes.start as u32, bytes.len() as u32);
    }

    /// Cancels the output; the caller drops its packet.
    pub(crate) fn ends(&mut self) {
        self.length = 0;
    }

    /// Returns whether its packet leaves or waits to leave.
    pub(crate) fn leaves(&self) -> bool {
        self.length != 0
    }

    /// Bytes of it that the cipher processes.
    fn text(&self, sa: &OutboundSa, rows: &[Row]) -> u64 {
        sa.text_bytes(&rows[self.row as usize].packet)
    }

    /// Returns the packet as it leaves.
    pub(crate) fn packet(&self, frame: FrameId) -> Descriptor {
        Descriptor { frame, offset: self.offset, length: self.length }
    }
}

/// The packets of a batch that leave. The lists are kept, so that a batch allocates nothing.
#[derive(Default)]
pub(crate) struct OutputBatch {
    pub(crate) list: Vec<OutputRow>,
    pub(crate) paths: Vec<PathUse>,
    pub(crate) jobs: Vec<SealJob>,
    /// A fragment, on its way to its frame.
    pub(crate) fragment: Vec<u8>,
    /// Fragments of an outer packet.
    pub(crate) cuts: Cuts,
    /// Packets that are sealed and to be sealed again, in order: rows of their own.
    pub(crate) again: Vec<Row>,
}

impl OutputBatch {
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.paths.clear();
        self.jobs.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The place of a path on which packets are to wait. Two paths can be of one SA, reached
    /// through two sets: each has a run of numbers of its own.
    fn place_of(&mut self, path: &OutputPath) -> u32 {
        let known = |path_use: &PathUse| {
            path_use.path.protection == path.protection && path_use.path.adjacency == path.adjacency
        };
        let place = self.paths.iter().rposition(known);
        if let Some(place) = place {
            let shared = &mut self.paths[place].path;
            shared.cut_at = shared.cut_at.into_iter().chain(path.cut_at).min();
        }
        let place = place.unwrap_or_else(|| {
            self.paths.push(PathUse {
                path: *path,
                count: 0,
                numbers: SequenceRun::NONE,
                numberless: DropReason::SequenceExhausted,
                allowed: u32::MAX,
                left: 0,
                bytes: 0,
            });
            self.paths.len() - 1
        });
        place as u32
    }

    /// Adds a row that leaves by a path, behind those that wait already.
    pub(crate) fn push(&mut self, row: usize, path: &OutputPath) {
        let (is_cut, path) = (path.cut_at.is_some(), self.place_of(path));
        self.paths[path as usize].count += 1;
        self.list.push(OutputRow { row: row as u32, path, offset: 0, length: 0, is_cut });
    }

    /// Draws a run of sequence numbers for every path on which software seals, with one atomic step
    /// each; where the SA has limits, for the packets that they allow.
    pub(crate) fn draw<F>(&mut self, context: &BatchContext<'_, F>, rows: &[Row]) {
        let OutputBatch { list, paths, .. } = self;
        for (place, path_use) in paths.iter_mut().enumerate() {
            let Some(sa) = path_use.path.sealed_by_software() else { continue };
            let sa = context.snapshot.outbound_sa(sa);
            let mut count = path_use.count;
            if let Some(allowance) = &sa.allowance {
                let bytes = || of_path(list, place).map(|output_row| output_row.text(sa, rows));
                count = allowance.take(count, bytes().sum(), bytes);
                path_use.allowed = count;
            }
            let numbers = sa.sequence.draw(count);
            path_use.numberless = match numbers.missing() {
                Some(error) => error.into(),
                None => DropReason::SaHardLimit,
            };
            path_use.numbers = numbers;
        }
    }

    /// Gives back what the limits of SAs allowed and what did not leave.
    pub(crate) fn give_back<F>(&self, context: &BatchContext<'_, F>, rows: &[Row]) {
        for (place, path_use) in self.paths.iter().enumerate() {
            let Some(sa) = path_use.path.sealed_by_software() else { continue };
            let sa = context.snapshot.outbound_sa(sa);
            let Some(allowance) = &sa.allowance else { continue };
            let unused = path_use.allowed.saturating_sub(path_use.left);
            if unused > 0 {
                let allowed = of_path(&self.list, place).take(path_use.allowed as usize);
                let stayed = allowed.filter(|output_row| !output_row.leaves());
                allowance
                    .account
                    .give_back(unused, stayed.map(|output_row| output_row.text(sa, rows)).sum());
            }
        }
    }
}

/// The packets of a path, in their order.
fn of_path(list: &[OutputRow], place: usize) -> impl Iterator<Item = &OutputRow> {
    list.iter().filter(move |output_row| output_row.path as usize == place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PortId;
    use crate::port::Adjacency;

    #[test]
    fn packets_that_share_a_path_have_the_least_limit_and_are_cut_by_their_own_path() {
        let mut batch = OutputBatch::default();
        let adjacency = Adjacency { port: PortId(1), mac: None };
        for (row, cut_at) in
            [None, Some(1400), Some(1300), Some(1500), None].into_iter().enumerate()
        {
            let path = OutputPath { adjacency, protection: None, mtu: 1280, cut_at, outer: None };
            batch.push(row, &path);
        }
        assert_eq!(batch.paths.len(), 1);
        assert_eq!((batch.paths[0].path.cut_at, batch.paths[0].count), (Some(1300), 5));
        let is_cut: Vec<_> = batch.list.iter().map(|output_row| output_row.is_cut).collect();
        assert_eq!(is_cut, [false, true, true, true, false]);
    }
}
