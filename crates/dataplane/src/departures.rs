//! The packets of a batch that leave, in order, and the ways that they leave by.

use std::ops::Range;

use ipsec::{SealJob, SequenceRun};
use wire::{Descriptor, FrameId};

use crate::path::Way;
use crate::row::Row;
use crate::turn::Turn;

/// A way out of this batch, with its packets and their sequence numbers.
pub(crate) struct Taken {
    pub(crate) way: Way,
    /// Packets. A batch of large ones becomes more than 65,535 fragments on a narrow path.
    pub(crate) count: u32,
    /// Sequence numbers for them; none where they leave in clear.
    pub(crate) numbers: SequenceRun,
    /// Packets that left or wait to leave, and bytes of their IP packets before they were sealed.
    pub(crate) left: u32,
    pub(crate) bytes: u64,
}

impl Taken {
    /// Counts a packet that leaves or waits to leave.
    pub(crate) fn leaves(&mut self, row: &Row) {
        self.left += 1;
        self.bytes += u64::from(row.packet.length);
    }
}

/// A row's packet on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    /// The row.
    pub(crate) row: u32,
    /// The place of its way.
    pub(crate) way: u32,
    /// Offset in the frame of the packet that leaves, once its headers are written. Until then, and
    /// if the departure ends otherwise, the length is 0.
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

impl Departure {
    /// Notes where the packet lies that is to leave.
    pub(crate) fn is_at(&mut self, bytes: Range<usize>) {
        (self.offset, self.length) = (bytes.start as u32, bytes.len() as u32);
    }

    /// Cancels the departure; the caller drops its packet.
    pub(crate) fn ends(&mut self) {
        self.length = 0;
    }

    /// Returns whether its packet leaves or waits to leave.
    pub(crate) fn leaves(&self) -> bool {
        self.length != 0
    }

    /// Returns the packet as it leaves.
    pub(crate) fn packet(&self, frame: FrameId) -> Descriptor {
        Descriptor { frame, offset: self.offset, length: self.length }
    }
}

/// The packets of a batch that leave. The lists are kept, so that a batch allocates nothing.
#[derive(Default)]
pub(crate) struct Departures {
    pub(crate) list: Vec<Departure>,
    pub(crate) ways: Vec<Taken>,
    pub(crate) jobs: Vec<SealJob>,
    /// One fragment, on its way to its frame.
    pub(crate) fragment: Vec<u8>,
}

impl Departures {
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.ways.clear();
        self.jobs.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The place of a way on which packets are to wait. Two ways can be of one SA, reached through
    /// two sets: each has a run of numbers of its own.
    fn place_of(&mut self, way: &Way) -> u32 {
        let known = |taken: &Taken| {
            taken.way.protection == way.protection && taken.way.egress == way.egress
        };
        let place = self.ways.iter().rposition(known).unwrap_or_else(|| {
            let (way, numbers) = (*way, SequenceRun::NONE);
            self.ways.push(Taken { way, count: 0, numbers, left: 0, bytes: 0 });
            self.ways.len() - 1
        });
        place as u32
    }

    /// Adds a row that leaves by a way, behind those that wait already.
    pub(crate) fn push(&mut self, row: usize, way: &Way) {
        let way = self.place_of(way);
        self.ways[way as usize].count += 1;
        self.list.push(Departure { row: row as u32, way, offset: 0, length: 0 });
    }

    /// Draws a run of sequence numbers for every way that seals, with one atomic step each.
    pub(crate) fn draw<F>(&mut self, turn: &Turn<'_, F>) {
        for taken in &mut self.ways {
            if let Some(protection) = taken.way.protection {
                let sa = turn.snapshot.outbound_sa(protection.sa);
                taken.numbers = sa.sequence.draw(taken.count);
            }
        }
    }
}
