//! The cipher alone, on the packets of a lap: what is left of the walk's time is the walk's own.

use std::time::Instant;

use dataplane::Snapshot;
use io::memory::MemoryFrames;
use wire::link::ETHERNET_BYTES;
use wire::{BATCH, Descriptor, Frames};

use super::check::same;
use super::lap::{LapError, arriving};
use super::measure::Figure;
use super::other_cipher::OtherCipher;
use super::scene::{Case, Direction, HOP_LIMIT};

/// Time of the cipher alone, ns a packet: the jobs of a batch are prepared, then the cipher runs
/// under the clock, batch after batch, over the same packets in the same frames as in a pass, by a
/// worker's SA. The median batch is taken, which a thread that is put aside for a while does not
/// move.
///
/// `first`: the number of the first packet, behind all that the peer has used.
///
/// # Errors
/// [`LapError`]: the cipher refused a packet, or what it made is wrong.
pub(super) fn cipher_alone(
    case: &Case,
    snapshot: &Snapshot,
    worker: usize,
    first: u32,
    other: &OtherCipher,
    frames: &mut MemoryFrames,
) -> Result<f64, LapError> {
    let mut packets = Vec::with_capacity(case.flows);
    for (flow, sequence) in (0..case.flows).zip(first..) {
        let packet = arriving(case, other, worker, flow, sequence);
        packets.push(frames.store(&packet).expect("a frame a flow"));
    }
    let batches = packets.chunks_exact(BATCH).enumerate().map(|(batch, packets)| {
        let batch = Batch { case, snapshot, worker, packets, first: batch * BATCH };
        match case.direction {
            Direction::In => batch.open(frames),
            Direction::Out | Direction::Forward => batch.seal(frames, other),
        }
    });
    let batches: Vec<f64> = batches.collect::<Result<_, _>>()?;
    packets.iter().for_each(|packet| frames.give(packet.frame));
    Ok(Figure::of(&batches).median / BATCH as f64)
}

/// Packets that go to the cipher together.
struct Batch<'b> {
    case: &'b Case,
    snapshot: &'b Snapshot,
    worker: usize,
    packets: &'b [Descriptor],
    /// The first one's flow.
    first: usize,
}

impl Batch<'_> {
    /// Seals packets in clear and returns the cipher's ns; the last packet is checked.
    fn seal(&self, frames: &mut MemoryFrames, other: &OtherCipher) -> Result<f64, LapError> {
        let sa = &self.snapshot.outbound()[self.worker];
        let number = sa.sequence.draw(self.packets.len() as u32);
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
        let begin = Instant::now();
        let sealed = sa.cipher.seal(frames, &jobs);
        let time = begin.elapsed();
        sealed.map_err(|error| self.refused(error.job))?;
        let last = self.packets.len() - 1;
        let output = |flaw| LapError::Output { packet: self.first + last, flaw };
        let esp = jobs[last].aad as usize..outer.end;
        let opened = other.open(&frames.bytes(self.packets[last].frame)[esp]);
        let opened = opened.map_err(|error| output(error.into()))?;
        same(&self.last_packet(), &opened.inner).map_err(output)?;
        Ok(time.as_nanos() as f64)
    }

    /// Opens sealed packets and returns the cipher's ns; all must be authentic, and the last is
    /// compared.
    fn open(&self, frames: &mut MemoryFrames) -> Result<f64, LapError> {
        let sa = &self.snapshot.inbound()[self.worker];
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
        let begin = Instant::now();
        sa.cipher.open(frames, &mut jobs);
        let time = begin.elapsed();
        if let Some(row) = jobs.iter().position(|job| !job.authentic) {
            return Err(self.refused(row));
        }
        let last = self.packets.len() - 1;
        let text = jobs[last].text as usize;
        let found = &frames.bytes(self.packets[last].frame)[text..text + self.case.size];
        same(&self.last_packet(), found)
            .map_err(|flaw| LapError::Output { packet: self.first + last, flaw })?;
        Ok(time.as_nanos() as f64)
    }

    /// The last packet in clear.
    fn last_packet(&self) -> Vec<u8> {
        self.case.inner(self.first + self.packets.len() - 1, HOP_LIMIT).ip()
    }

    fn refused(&self, row: usize) -> LapError {
        LapError::Cipher { packet: self.first + row }
    }
}
