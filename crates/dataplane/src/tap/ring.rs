//! The way from a tap to whoever shows its packets: one ring a worker, with one writer and one
//! reader, and neither ever waits. Names travel as text: the reader needs no snapshot, whatever
//! changes in the meantime.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

use super::{Heading, Layer};
use crate::port::Medium;
use crate::verdict::Verdict;

/// Packets that wait in a worker's ring at most.
pub const RING_PACKETS: usize = 2048;
/// Bytes that wait in a worker's ring at most.
pub const RING_BYTES: usize = 4 << 20;
/// Bytes of a packet's names that a ring has room for on average.
const NAMES_BYTES: usize = 128;

/// Names that go with a packet.
pub(super) const NAMES: usize = 5;

/// A packet in a ring; its bytes and names are in the ring of bytes beside it.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) now_ns: u64,
    pub(super) original: u32,
    pub(super) bytes: u32,
    pub(super) layer: Layer,
    pub(super) heading: Heading,
    pub(super) medium: Medium,
    pub(super) verdict: Option<Verdict>,
    /// Bytes of each name.
    pub(super) names: [u16; NAMES],
}

/// A captured packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedPacket {
    /// The worker that processed it.
    pub worker: usize,
    /// Time of its batch, on the worker's clock.
    pub now_ns: u64,
    /// Bytes that it had.
    pub original: u32,
    /// The layer at which it was seen.
    pub layer: Layer,
    /// The way that it goes.
    pub heading: Heading,
    /// The header that its bytes begin with.
    pub medium: Medium,
    /// Verdict on the packet; `None`: the gateway made it and sent it.
    pub verdict: Option<Verdict>,
    /// Beginning of the packet.
    pub bytes: Vec<u8>,
    /// The port that it came by or leaves by; empty: a frame of no port.
    pub port: String,
    /// The port that it is forwarded to, or the peer that it is sealed for; else empty.
    pub to: String,
    /// The peer whose SA opened it; empty: none did.
    pub opened_from: String,
    /// The policy that decided it inbound; empty: none.
    pub inbound_policy: String,
    /// The policy that decided it outbound; empty: none.
    pub outbound_policy: String,
}

/// Counts and bounds of a capture, shared by all workers and the reader.
#[derive(Debug)]
pub(super) struct Shared {
    /// Packets that may be taken before the reader allows more.
    allowance: AtomicI64,
    /// Packets that may be taken in all.
    limit: u64,
    taken: AtomicU64,
    /// Packets that the filter accepted beyond the rate.
    beyond_rate: AtomicU64,
    /// Packets that the filter accepted while a ring was full.
    ring_full: AtomicU64,
}

/// Packets that a capture left out, though its filter accepted them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LeftOut {
    /// Packets above the capture's rate.
    pub beyond_rate: u64,
    /// The ring was full: nobody read it quickly enough.
    pub ring_full: u64,
}

impl LeftOut {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.beyond_rate + self.ring_full
    }
}

/// The answer to a tap that wants to take a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    Granted,
    BeyondRate,
    /// The capture has all that it wants.
    Complete,
}

impl Shared {
    pub(super) fn admit(&self) -> Admission {
        if self.taken.load(Ordering::Relaxed) >= self.limit {
            return Admission::Complete;
        }
        if self.allowance.fetch_sub(1, Ordering::Relaxed) > 0 {
            self.taken.fetch_add(1, Ordering::Relaxed);
            return Admission::Granted;
        }
        self.allowance.fetch_add(1, Ordering::Relaxed);
        self.beyond_rate.fetch_add(1, Ordering::Relaxed);
        Admission::BeyondRate
    }

    /// A packet that was admitted found no room.
    pub(super) fn had_no_room(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
        self.ring_full.fetch_add(1, Ordering::Relaxed);
    }

    /// Packets that could not even be looked at.
    pub(super) fn overlooked(&self, packets: u64) {
        self.ring_full.fetch_add(packets, Ordering::Relaxed);
    }
}

/// The writing end of a ring. Bytes are written first: who sees a record sees its bytes.
pub(super) struct Outgoing {
    records: Producer<Record>,
    bytes: Producer<u8>,
}

impl Outgoing {
    /// Writes a packet with its names; `false`: there is no room, and nothing was written.
    pub(super) fn push(&mut self, record: Record, packet: &[u8], names: &[&str; NAMES]) -> bool {
        let named: usize = names.iter().map(|name| name.len()).sum();
        let room = self.bytes.slots() >= packet.len() + named;
        if !room || self.records.is_full() || self.records.is_abandoned() {
            return false;
        }
        let parts = std::iter::once(packet).chain(names.iter().map(|name| name.as_bytes()));
        let written = parts.map(|part| self.bytes.push_entire_slice(part).is_ok());
        let all = written.fold(true, |all, one| all & one);
        debug_assert!(all, "there was room");
        self.records.push(record).is_ok()
    }
}

struct Incoming {
    records: Consumer<Record>,
    bytes: Consumer<u8>,
}

/// The reading end of a capture: all workers' rings.
pub struct TapReader {
    rings: Vec<Incoming>,
    shared: Arc<Shared>,
}

/// Makes the rings of a capture for so many workers, whose packets have at most `snaplen` bytes.
pub(super) fn rings(workers: usize, snaplen: u32, limit: u64) -> (Vec<Outgoing>, TapReader) {
    let room = (RING_PACKETS * (snaplen as usize + NAMES_BYTES)).min(RING_BYTES);
    let counts = [(); 3].map(|()| AtomicU64::new(0));
    let [taken, beyond_rate, ring_full] = counts;
    let shared = Shared { allowance: AtomicI64::new(0), limit, taken, beyond_rate, ring_full };
    let (mut outgoing, mut incoming) = (Vec::new(), Vec::new());
    for _ in 0..workers {
        let (records, read_records) = RingBuffer::new(RING_PACKETS);
        let (bytes, read_bytes) = RingBuffer::new(room);
        outgoing.push(Outgoing { records, bytes });
        incoming.push(Incoming { records: read_records, bytes: read_bytes });
    }
    (outgoing, TapReader { rings: incoming, shared: Arc::new(shared) })
}

impl TapReader {
    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Allows so many packets more, and `most` at once: the rate of the capture.
    pub fn allow(&self, packets: u64, most: u64) {
        let (packets, most) = (packets.min(1 << 40) as i64, most.min(1 << 40) as i64);
        let add = |now: i64| Some(now.saturating_add(packets).min(most));
        // The closure always gives a value.
        let _ = self.shared.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes the oldest packet of a worker's ring.
    pub fn take(&mut self, worker: usize) -> Option<CapturedPacket> {
        let Incoming { records, bytes } = self.rings.get_mut(worker)?;
        let record = records.pop().ok()?;
        let mut read = |count: usize| {
            let mut part = vec![0; count];
            // There since before the record: nobody else takes from this ring.
            let whole = bytes.pop_entire_slice(&mut part);
            debug_assert!(whole.is_ok(), "a record without its bytes");
            part
        };
        let packet = read(record.bytes as usize);
        let names = record
            .names
            .map(|length| String::from_utf8(read(usize::from(length))).unwrap_or_default());
        let [port, to, opened_from, inbound_policy, outbound_policy] = names;
        let Record { now_ns, original, layer, heading, medium, verdict, .. } = record;
        Some(CapturedPacket {
            worker,
            now_ns,
            original,
            layer,
            heading,
            medium,
            verdict,
            bytes: packet,
            port,
            to,
            opened_from,
            inbound_policy,
            outbound_policy,
        })
    }

    /// Number of rings: one a worker.
    pub fn workers(&self) -> usize {
        self.rings.len()
    }

    /// Packets that were taken: those in the rings, and those read.
    pub fn taken(&self) -> u64 {
        self.shared.taken.load(Ordering::Relaxed)
    }

    /// Packets that the filter accepted and that are missing.
    pub fn left_out(&self) -> LeftOut {
        LeftOut {
            beyond_rate: self.shared.beyond_rate.load(Ordering::Relaxed),
            ring_full: self.shared.ring_full.load(Ordering::Relaxed),
        }
    }
}
