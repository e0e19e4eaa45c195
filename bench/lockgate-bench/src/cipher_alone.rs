//! The cipher alone, on the packets of a lap: the rest of the walk's time is the walk's own.

use std::time::Instant;

use dataplane::Snapshot;
use io::memory::MemoryFrames;
use ipsec::SaId;
use wire::link::ETHERNET_BYTES;
use wire::{BATCH, Descriptor, Frames};

use super::lap_error::LapError;
use super::measure::Figure;
use scene::OtherCipher;
use scene::arriving;
use scene::same;
use scene::{Case, Direction, HOP_LIMIT};

/// Time of the cipher alone, ns a packet.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct CipherTimes {
    /// Time on packets where a pass finds them.
    pub(super) far_ns: f64,
    /// Time on packets that were all read just before, so that they are in the caches of the core:
    /// the difference to `far_ns` is the time for memory accesses.
    pub(super) near_ns: f64,
}

/// Times the cipher alone: the jobs of a batch are prepared, then the cipher runs under the clock,
/// batch after batch, over the same packets in the same frames as in a pass, by a worker's SA.
/// Every other batch is read before. The median batch is taken, which a thread that is put aside
/// for a while does not move.
///
/// `first`: the number of the first packet, behind all that the peer has used. `in_flight`: how
/// many packets lie in frames at the same time.
///
/// # Errors
/// [`LapError`]: the cipher refused a packet, or what it made is wrong.
pub(super) fn cipher_alone(
    sa: &WorkersSa,
    first: u32,
    in_flight: usize,
    frames: &mut MemoryFrames,
) -> Result<CipherTimes, LapError> {
    let flows: Vec<usize> = (0..sa.case.flows).collect();
    let mut times = [Vec::new(), Vec::new()];
    for flows in flows.chunks(in_flight) {
        let mut packets = Vec::with_capacity(flows.len());
        for flow in flows {
            let sequence = first + *flow as u32;
            let packet = arriving(sa.case, sa.other, sa.worker, *flow, sequence);
            packets.push(frames.store(&packet).expect("a frame a flow"));
        }
        for (number, packets) in packets.chunks_exact(BATCH).enumerate() {
            let reading = [Reading::None, Reading::Before][number % 2];
            let batch = Batch { sa, packets, first: flows[number * BATCH], reading };
            times[number % 2].push(match sa.case.direction {
                Direction::In => batch.open(frames)?,
                _ => batch.seal(frames)?,
            });
        }
        packets.iter().for_each(|packet| frames.give(packet.frame));
    }
    let [far_ns, near_ns] = times.map(|times| Figure::of(&times).median / BATCH as f64);
    Ok(CipherTimes { far_ns, near_ns })
}

/// The SA of one worker in the direction of the case.
pub(super) struct WorkersSa<'c> {
    pub(super) case: &'c Case,
    pub(super) snapshot: &'c Snapshot,
    pub(super) worker: usize,
    /// Its other end.
    pub(super) other: &'c OtherCipher,
}

/// Treatment of a batch before the clock runs: read, or not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    None,
    Before,
}

/// Packets that go to the cipher together.
struct Batch<'b> {
    sa: &'b WorkersSa<'b>,
    packets: &'b [Descriptor],
    /// The first one's flow.
    first: usize,
    reading: Reading,
}

impl Batch<'_> {
    /// Seals packets in clear and returns the cipher's ns; the last packet is checked.
    fn seal(&self, frames: &mut MemoryFrames) -> Result<f64, LapError> {
        let sa = self.sa.snapshot.outbound_sa(SaId(self.sa.worker as u32));
        let number = sa.sequence.draw(self.packets.len() as u32).whole();
        let number = number.map_err(|_| self.refused(0))?;
        let mut jobs = Vec::with_capacity(self.packets.len());
        let mut outer = 0..0;
        for (row, packet) in self.packets.iter().enumerate() {
            let ip = packet.offset as usize + ETHERNET_BYTES;
            let frame = frames.bytes_mut(packet.frame);
            let parsed = wire::packet::parse(&frame[ip..]).map_err(|_| self.refused(row))?;
            let number = number + row as u64;
            let written = sa.encapsulate(packet.frame, frame, ip, &parsed, number, row as u32);
            let (job, place) = written.ok_or_else(|| self.refused(row))?;
            jobs.push(job);
            outer = place;
        }
        self.read(frames);
        let begin = Instant::now();
        let sealed = sa.cipher.seal(frames, &jobs);
        let time = begin.elapsed();
        sealed.map_err(|error| self.refused(error.job))?;
        let last = self.packets.len() - 1;
        let output = |flaw| LapError::Output { packet: self.first + last, flaw };
        let esp = jobs[last].aad as usize..outer.end;
        let opened = self.sa.other.open(&frames.bytes(self.packets[last].frame)[esp]);
        let opened = opened.map_err(|error| output(error.into()))?;
        same(&self.last_packet(), &opened.inner).map_err(output)?;
        Ok(time.as_nanos() as f64)
    }

    /// Opens sealed packets and returns the cipher's ns; all must be authentic, and the last is
    /// compared.
    fn open(&self, frames: &mut MemoryFrames) -> Result<f64, LapError> {
        let sa = self.sa.snapshot.inbound_sa(SaId(self.sa.worker as u32));
        let mut jobs = Vec::with_capacity(self.packets.len());
        for (row, packet) in self.packets.iter().enumerate() {
            let ip = packet.offset as usize + ETHERNET_BYTES;
            let frame = frames.bytes(packet.frame);
            let end = packet.offset as usize + packet.length as usize;
            let job = wire::packet::parse(&frame[ip..end]).ok().and_then(|outer| {
                let esp = ip + usize::from(outer.upper_offset)..end;
                sa.open_job(packet.frame, frame, esp, row as u32).ok()
            });
            jobs.push(job.ok_or_else(|| self.refused(row))?);
        }
        self.read(frames);
        let begin = Instant::now();
        sa.cipher.open(frames, &mut jobs);
        let time = begin.elapsed();
        if let Some(row) = jobs.iter().position(|job| !job.authentic) {
            return Err(self.refused(row));
        }
        let last = self.packets.len() - 1;
        let text = jobs[last].text as usize;
        let found = &frames.bytes(self.packets[last].frame)[text..text + self.sa.case.size];
        same(&self.last_packet(), found)
            .map_err(|flaw| LapError::Output { packet: self.first + last, flaw })?;
        Ok(time.as_nanos() as f64)
    }

    /// Reads every packet, if this batch is one of those.
    fn read(&self, frames: &MemoryFrames) {
        if self.reading == Reading::Before {
            for packet in self.packets {
                let bytes = frames.packet(*packet).unwrap_or_default();
                std::hint::black_box(bytes.iter().fold(0, |all, byte| all ^ byte));
            }
        }
    }

    /// The last packet in clear.
    fn last_packet(&self) -> Vec<u8> {
        self.sa.case.inner(self.first + self.packets.len() - 1, HOP_LIMIT).ip()
    }

    fn refused(&self, row: usize) -> LapError {
        LapError::Cipher { packet: self.first + row }
    }
}
