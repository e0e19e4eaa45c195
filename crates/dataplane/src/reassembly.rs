//! Virtual reassembly: the datagrams whose fragments a worker has seen lately, and the fragments
//! that wait (RFC 4301 §7 approach 3). The stage `follow` asks it.
//!
//! Nothing is put together: each fragment leaves as the fragment that it is.
//!
//! Not handled here: fragments of ESP to us (`esp_fragments`), and packets that the gateway cuts
//! itself (`fragment`).

mod datagram;
mod lists;
#[cfg(test)]
mod model;
mod ranges;
mod table;
#[cfg(test)]
mod tests;

use cpu::aes::Secret;
use wire::Frames;

use crate::counters::Counters;
use crate::row::Row;
use crate::snapshot::Snapshot;
use crate::verdict::DropReason;
pub(crate) use datagram::{Datagram, Way};
pub(crate) use ranges::Part;
pub(crate) use table::{Answer, Piece, UpperLayer, Waiting};
use table::{Bounds, Limits, Table};

/// Time that a datagram is known, and that a fragment waits for its first, nanoseconds.
pub const PATIENCE_NS: u64 = 2_000_000_000;
/// Fragments that wait at most, over all datagrams.
pub const MAX_WAITING: usize = 1024;
/// Fragments of one datagram that wait at most.
pub const MAX_PER_DATAGRAM: usize = 16;

const LIMITS: Limits = Limits {
    datagrams: Bounds { all: 4096, port: 2048, sender: 128 },
    held: Bounds { all: MAX_WAITING, port: 512, sender: 64 },
    held_a_datagram: MAX_PER_DATAGRAM,
    patience_ns: PATIENCE_NS,
};

/// The fragments of one worker: the datagrams that it knows, and the rows of those that wait. Owns
/// the frames of these.
pub(crate) struct Reassembly {
    table: Table<Row>,
}

impl Reassembly {
    /// An empty one. The secret is that of all workers that fragments are handed over between.
    pub(crate) fn new(secret: &Secret) -> Reassembly {
        Reassembly { table: Table::new(LIMITS, secret) }
    }

    /// Fragments that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.table.waiting()
    }

    /// Drops the fragments that have waited too long.
    #[inline]
    pub(crate) fn expire(
        &mut self,
        now_ns: u64,
        frames: &mut impl Frames,
        counters: &mut Counters,
    ) {
        if self.table.is_due(now_ns) {
            self.table.expire(now_ns);
            self.drop_waiting(frames, counters);
        }
    }

    /// Forgets what came by ports that the next snapshot lacks, and drops what waits of it.
    pub(crate) fn leave_ports(
        &mut self,
        next: &Snapshot,
        frames: &mut impl Frames,
        counters: &mut Counters,
    ) {
        self.table.forget_ports(|port| !next.has_port(port));
        self.drop_waiting(frames, counters);
    }

    /// Forgets everything, and drops what waits.
    pub(crate) fn clear(&mut self, frames: &mut impl Frames, counters: &mut Counters) {
        self.table.forget_ports(|_| true);
        self.drop_waiting(frames, counters);
    }

    /// The worker of several to which a datagram's fragments belong.
    pub(crate) fn owner(&self, datagram: &Datagram, workers: u32) -> u32 {
        self.table.owner(datagram, workers)
    }

    /// Takes a fragment in. Those that may be to be dropped then wait for
    /// [`drop_waiting`](Self::drop_waiting).
    pub(crate) fn take_in(&mut self, now_ns: u64, piece: &Piece) -> Answer {
        self.table.take_in(now_ns, piece)
    }

    /// Lets a fragment wait for its first one, of which [`take_in`](Self::take_in) has just said
    /// that it has not come.
    ///
    /// # Errors
    /// There is no room: drop it.
    pub(crate) fn hold(&mut self, waiting: Waiting, row: Row) -> Result<(), DropReason> {
        self.table.hold(waiting, row)
    }

    /// Fragments that waited for the first one that was taken in just now, in their order.
    pub(crate) fn released(&mut self) -> std::vec::Drain<'_, Row> {
        self.table.released()
    }

    /// Drops the fragments whose waiting has come to nothing.
    pub(crate) fn drop_waiting(&mut self, frames: &mut impl Frames, counters: &mut Counters) {
        for (row, reason) in self.table.dropped() {
            counters.ledger(Some(row.ingress)).held -= 1;
            counters.drop(Some(row.ingress), reason);
            frames.give(row.frame);
        }
    }
}
