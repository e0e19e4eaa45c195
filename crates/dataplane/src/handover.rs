//! Several workers: which of them opens and seals with an SA, and the rings by which packets that
//! arrived at another reach it. Fragments go the same way to the worker of their datagram
//! (`follow`).
//!
//! An SA is opened by one worker, so its replay window stays in one core's cache and its packets
//! stay in order. A packet that arrives at another worker is copied into that worker's ring and
//! out of it into a frame of the one that takes it: frames belong to one worker each. There is one
//! ring for each ordered pair of workers, so that each has one writer and one reader, and neither
//! ever waits: a packet that finds the ring full is dropped (`handover_full`).
//!
//! A packet in a ring is on no ledger. Who takes it counts it as received.

use cpu::aes::Secret;
use ipsec::SaId;
use rtrb::{Consumer, Producer, RingBuffer};
use wire::{BATCH, Descriptor, FrameId, Frames, HEADROOM, Received};

use crate::batch_context::BatchContext;
use crate::ids::{NetdevId, RouteGeneration};
use crate::outputs::Handover;
use crate::row::{Row, State};
use crate::snapshot::Snapshot;

/// Packets that a ring holds at most: eight batches.
pub const RING_PACKETS: usize = 8 * BATCH;
/// Bytes that a ring holds at most: as many of the largest packets of an Ethernet without jumbo
/// frames. Memory that was never written to takes no room.
pub const RING_BYTES: usize = RING_PACKETS * 2048;

impl<F: Frames> BatchContext<'_, F> {
    /// The worker that opens with an SA, if it is another one and packets go over to it: by its
    /// slot, whatever its SPI, so that it stays the same worker's for life.
    #[inline]
    pub(crate) fn other_worker(&self, sa: SaId) -> Option<u32> {
        self.handing?;
        debug_assert!(
            self.snapshot.workers() > 1,
            "replay windows of one worker, shared by several"
        );
        let owner = sa.0 % self.share.workers;
        (owner != self.share.worker).then_some(owner)
    }

    /// Ends a row whose packet is another worker's, before anything of it has been changed. It
    /// will be on that worker's ledger.
    pub(crate) fn hand_over(&mut self, row: &mut Row, worker: u32) {
        let Some((netdev, packets)) = self.handing else { return };
        row.state = State::Ended;
        let (ingress, packet) = (row.ingress, packets[row.place as usize].packet);
        self.out.handovers.push(Handover { worker, netdev, ingress, packet });
    }
}

/// A netdev that no snapshot has.
const GONE: NetdevId = NetdevId(u16::MAX);

/// A packet in a ring; its bytes are in the ring of bytes beside it.
#[derive(Clone, Copy)]
struct Record {
    netdev: NetdevId,
    /// The route generation with which the netdev came into its slot, which may be another's when
    /// the packet is taken.
    since: RouteGeneration,
    length: u32,
}

/// The writing end of a ring. The bytes are written first: who sees a record sees its bytes.
struct Outgoing {
    records: Producer<Record>,
    bytes: Producer<u8>,
}

/// The reading end.
struct Incoming {
    records: Consumer<Record>,
    bytes: Consumer<u8>,
}

/// One worker's ends of the rings between it and the others.
#[derive(Default)]
pub struct Handovers {
    worker: u32,
    secret: Secret,
    /// One entry a worker; `None`: itself.
    outgoing: Vec<Option<Outgoing>>,
    incoming: Vec<Incoming>,
    /// Workers that were given something since they were last asked for.
    given: Vec<u32>,
}

/// The ring was full, or nobody reads it any more.
pub(crate) struct Full;

impl Handovers {
    /// The rings between `workers` workers; one entry a worker. By the secret they agree whose
    /// each fragment is.
    pub fn among(workers: u32, secret: &Secret) -> Vec<Handovers> {
        let mut all: Vec<Handovers> = (0..workers)
            .map(|worker| Handovers {
                worker,
                secret: *secret,
                outgoing: (0..workers).map(|_| None).collect(),
                given: Vec::with_capacity(workers as usize),
                ..Handovers::default()
            })
            .collect();
        for from in 0..workers as usize {
            for to in (0..workers as usize).filter(|to| *to != from) {
                let (records, read_records) = RingBuffer::new(RING_PACKETS);
                let (bytes, read_bytes) = RingBuffer::new(RING_BYTES);
                all[from].outgoing[to] = Some(Outgoing { records, bytes });
                all[to].incoming.push(Incoming { records: read_records, bytes: read_bytes });
            }
        }
        all
    }

    /// Returns the number of the worker that has these ends.
    pub fn worker(&self) -> u32 {
        self.worker
    }

    /// Returns the secret by which fragments are hashed.
    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Workers that were given packets since this was last asked: they may sleep.
    pub(crate) fn given(&mut self) -> std::vec::Drain<'_, u32> {
        self.given.drain(..)
    }

    /// Returns whether a packet waits to be taken.
    pub(crate) fn is_waiting(&self) -> bool {
        self.incoming.iter().any(|ring| !ring.records.is_empty())
    }

    /// Copies a packet of a snapshot's netdev into the ring to its worker.
    ///
    /// # Errors
    /// [`Full`]: the packet is not in it.
    #[inline]
    pub(crate) fn give(
        &mut self,
        snapshot: &Snapshot,
        handover: &Handover,
        packet: &[u8],
    ) -> Result<(), Full> {
        let Handover { worker, netdev, .. } = *handover;
        let ring = self.outgoing.get_mut(worker as usize).and_then(Option::as_mut).ok_or(Full)?;
        if ring.records.is_full() || ring.records.is_abandoned() {
            return Err(Full);
        }
        ring.bytes.push_entire_slice(packet).map_err(|_| Full)?;
        let length = packet.len() as u32;
        let since = snapshot.netdev_since(netdev).unwrap_or_default();
        ring.records.push(Record { netdev, since, length }).map_err(|_| Full)?;
        if !self.given.contains(&worker) {
            self.given.push(worker);
        }
        Ok(())
    }

    /// Rings that packets come by.
    pub(crate) fn rings(&self) -> usize {
        self.incoming.len()
    }

    /// Takes up to `limit` packets of one netdev from a ring, and returns the netdev. One that is
    /// gone has no port.
    pub(crate) fn take<F: Frames>(
        &mut self,
        ring: usize,
        snapshot: &Snapshot,
        limit: usize,
        frames: &mut F,
        into: &mut Vec<Received>,
    ) -> NetdevId {
        let ring = &mut self.incoming[ring];
        let mut common = None;
        while into.len() < limit {
            let Ok(&record) = ring.records.peek() else { break };
            let Some(netdev) = netdev_now(&record, snapshot) else { break };
            if *common.get_or_insert(netdev) != netdev {
                break;
            }
            let Some(frame) = frames.take() else { break };
            into.push(ring.copy_out(&record, frame, frames).into());
        }
        common.unwrap_or(GONE)
    }
}

/// Returns a record's netdev under a snapshot, [`GONE`] if it is gone. `None`: the netdev came with
/// a snapshot that this worker has yet to go over to. Other ports come with a higher route
/// generation, also where a configuration is taken back.
fn netdev_now(record: &Record, snapshot: &Snapshot) -> Option<NetdevId> {
    match snapshot.netdev_since(record.netdev) {
        Some(since) if since == record.since => Some(record.netdev),
        _ if record.since > snapshot.route_generation() => None,
        _ => Some(GONE),
    }
}

impl Incoming {
    /// Takes the first packet, whose record this is, out of the ring into a frame, behind its
    /// headroom. What does not fit is cut; the descriptor carries the packet's true length.
    #[inline]
    fn copy_out<F: Frames>(
        &mut self,
        record: &Record,
        frame: FrameId,
        frames: &mut F,
    ) -> Descriptor {
        let room = frames.bytes_mut(frame).get_mut(HEADROOM..).unwrap_or_default();
        if let Ok(chunk) = self.bytes.read_chunk(record.length as usize) {
            let (first, second) = chunk.as_slices();
            let cut = first.len().min(room.len());
            let (head, tail) = room.split_at_mut(cut);
            head.copy_from_slice(&first[..cut]);
            let rest = second.len().min(tail.len());
            tail[..rest].copy_from_slice(&second[..rest]);
            chunk.commit_all();
        }
        // There since it was looked at: nobody else takes from this ring.
        let _ = self.records.pop();
        Descriptor { frame, offset: HEADROOM as u32, length: record.length }
    }
}
