//! The datagrams whose fragments a worker has seen lately, and the fragments that wait.
//!
//! * **Virtual reassembly** (RFC 4301 §7 approach 3), for the stage `follow`: nothing is put
//!   together, each fragment leaves as the fragment that it is.
//! * **Reassembly of ESP** (RFC 4303 §3.4.1), for the stage `reassemble`: the fragments of a peer's
//!   ESP packet wait until all have come. They have a table of their own, so that strangers, who
//!   send no ESP that is opened, take none of its room.
//!
//! Not handled here: fragments of strangers' ESP (`esp_fragments`), and packets that the gateway
//! cuts itself (`fragment`).

mod datagram;
#[cfg(test)]
mod model;
mod ranges;
mod table;
#[cfg(test)]
mod tests;
mod whole;

use cpu::aes::Secret;
use ipsec::MAX_TAIL_BYTES;
use wire::{BATCH, Frames, HEADROOM};

use crate::counters::Counters;
use crate::fair_shares::{ShareBound, ShareGuarantee};
use crate::row::Row;
#[cfg(doc)]
use crate::row::State;
use crate::snapshot::Snapshot;
pub(crate) use datagram::{Datagram, Way};
pub(crate) use ranges::Part;
pub(crate) use table::{Answer, First, Piece};
use table::{Limits, Table};
use whole::MAX_PACKET_BYTES;
pub(crate) use whole::{Source, assemble, length};

/// Lifetime of an incomplete datagram and of a waiting fragment, nanoseconds.
pub const PATIENCE_NS: u64 = 2_000_000_000;
/// Maximum waiting fragments of a worker, except ESP.
pub const MAX_WAITING: usize = 1024;
/// Maximum waiting fragments of one datagram, except ESP.
pub const MAX_PER_DATAGRAM: usize = 16;
/// Maximum waiting fragments of ESP packets, of a worker.
pub const MAX_ESP_WAITING: usize = 512;
/// Maximum waiting fragments of one ESP packet.
pub const MAX_ESP_PER_DATAGRAM: usize = 64;

// A sender without a flood has few datagrams under way. The guarantee of waiting fragments holds a
// whole datagram, so that a large datagram does not give way to forged small ones.
//
// Beside 3,000 fragments a second from forged senders, an honest datagram has 1.3 s until it is the
// oldest of 4,096, and a waiting fragment 0.3 s until it is the oldest of 1,024.
const LIMITS: Limits = Limits {
    datagrams: ShareBound { all: 4096, guarantee: ShareGuarantee { port: 256, sender: 8 } },
    held: ShareBound {
        all: MAX_WAITING,
        guarantee: ShareGuarantee { port: 64, sender: MAX_PER_DATAGRAM },
    },
    held_a_datagram: MAX_PER_DATAGRAM,
    patience_ns: PATIENCE_NS,
};

const ESP_LIMITS: Limits = Limits {
    datagrams: ShareBound { all: 512, guarantee: ShareGuarantee { port: 32, sender: 8 } },
    held: ShareBound {
        all: MAX_ESP_WAITING,
        guarantee: ShareGuarantee { port: 128, sender: MAX_ESP_PER_DATAGRAM },
    },
    held_a_datagram: MAX_ESP_PER_DATAGRAM,
    patience_ns: PATIENCE_NS,
};

/// Fragments of the ESP packets that one batch completes: waiting ones, and the batch.
const MAX_GATHERED: usize = MAX_ESP_WAITING + BATCH;
/// Bytes of the memory in which a packet is put together: the largest packet, with headroom, and
/// with room for a cipher behind it.
const BUFFER_BYTES: usize = HEADROOM + MAX_PACKET_BYTES + MAX_TAIL_BYTES;

/// The fragments of one worker: the datagrams that it knows, and the rows of those that wait. Owns
/// the frames of these.
pub(crate) struct Reassembly {
    table: Table<Row>,
    /// Datagrams of peers that are, or may be, ESP to us.
    esp: Table<Row>,
    /// Fragments of ESP packets all of which have come: of each packet those that waited, then the
    /// last to come, which is [`State::Large`]. Between batches there are none.
    gathered: Vec<Row>,
    /// Memory of [`BUFFER_BYTES`] in which a packet is put together.
    buffer: Vec<u8>,
}

impl Reassembly {
    /// An empty one. The secret is that of all workers that fragments are handed over between.
    pub(crate) fn new(secret: &Secret) -> Reassembly {
        Reassembly {
            table: Table::new(LIMITS, secret),
            esp: Table::new(ESP_LIMITS, secret),
            gathered: Vec::with_capacity(MAX_GATHERED),
            buffer: Vec::with_capacity(BUFFER_BYTES),
        }
    }

    /// Number of waiting fragments.
    pub(crate) fn waiting(&self) -> usize {
        self.table.waiting() + self.esp.waiting()
    }

    /// Drops the fragments of ESP that have waited too long.
    #[inline]
    pub(crate) fn expire_esp(
        &mut self,
        now_ns: u64,
        frames: &mut impl Frames,
        counters: &mut Counters,
    ) {
        if self.esp.is_due(now_ns) {
            self.esp.expire(now_ns);
            self.drop_waiting(frames, counters);
        }
    }

    /// Drops all other fragments that have waited too long.
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
        self.esp.forget_ports(|port| !next.has_port(port));
        self.drop_waiting(frames, counters);
    }

    /// Forgets everything, and drops what waits.
    pub(crate) fn clear(&mut self, frames: &mut impl Frames, counters: &mut Counters) {
        self.table.forget_ports(|_| true);
        self.esp.forget_ports(|_| true);
        self.drop_waiting(frames, counters);
    }

    /// The worker of several to which a datagram's fragments belong.
    pub(crate) fn owner(&self, datagram: &Datagram, workers: u32) -> u32 {
        self.table.owner(datagram, workers)
    }

    /// Takes a fragment in. Call [`drop_waiting`](Self::drop_waiting) afterwards: older fragments
    /// may have given way.
    pub(crate) fn take_in(&mut self, now_ns: u64, piece: &Piece) -> Answer<'_, Row> {
        self.table.take_in(now_ns, piece)
    }

    /// Fragments that waited for the first one that was taken in just now, in their order.
    pub(crate) fn released(&mut self) -> std::vec::Drain<'_, Row> {
        self.table.released()
    }

    /// Takes in a fragment that is, or may be, ESP to us. As [`take_in`](Self::take_in).
    pub(crate) fn take_in_esp(&mut self, now_ns: u64, piece: &Piece) -> Answer<'_, Row> {
        self.esp.take_in(now_ns, piece)
    }

    /// Fragments that waited for the one that was taken in just now by
    /// [`take_in_esp`](Self::take_in_esp), in their order.
    pub(crate) fn released_esp(&mut self) -> std::vec::Drain<'_, Row> {
        self.esp.released()
    }

    /// Gathers the fragments of a datagram that [`take_in_esp`](Self::take_in_esp) has just said to
    /// be complete, `last` behind those that waited. Returns the place where they begin.
    pub(crate) fn gather(&mut self, last: Row) -> usize {
        let from = self.gathered.len();
        self.gathered.extend(self.esp.released());
        self.gathered.push(last);
        from
    }

    /// The fragments that were gathered, from a place on.
    pub(crate) fn gathered(&self, from: usize) -> &[Row] {
        &self.gathered[from..]
    }

    /// Takes out the fragments that were gathered, from a place on.
    pub(crate) fn take_gathered(&mut self, from: usize) -> std::vec::Drain<'_, Row> {
        self.gathered.drain(from..)
    }

    /// Takes the memory in which a packet is put together: [`BUFFER_BYTES`].
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(BUFFER_BYTES, 0);
        buffer
    }

    /// Puts that memory back.
    pub(crate) fn put_buffer(&mut self, buffer: Vec<u8>) {
        self.buffer = buffer;
    }

    /// Drops the fragments whose waiting has come to nothing.
    pub(crate) fn drop_waiting(&mut self, frames: &mut impl Frames, counters: &mut Counters) {
        for (row, reason) in self.table.dropped().chain(self.esp.dropped()) {
            counters.ledger(Some(row.ingress)).held -= 1;
            counters.drop(Some(row.ingress), reason);
            frames.give(row.frame);
        }
    }
}
