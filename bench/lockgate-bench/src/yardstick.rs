//! A yardstick next to every walk: the memory accesses that every gateway must make, on the same
//! frames in the same order in the same lap. A ratio to it means the same on a fast and on a slow
//! machine.
//!
//! It works in batches, like the walk. For each frame:
//!
//! 1. it prefetches the line of the IP header
//! 2. it reads 8 bytes of the header
//! 3. it writes 58 bytes before the IP packet (as many as Ethernet, IPv4, UDP, ESP and IV have)
//!    and 8 after it
//! 4. it writes a descriptor
//!
//! It makes no check and no decision, and counts nothing. The written bytes are read back outside
//! the timed span. `cipher_alone` measures the cipher separately.

use io::memory::MemoryFrames;
use wire::link::ETHERNET_BYTES;
use wire::{BATCH, Descriptor, FrameId, Frames, HEADROOM};

use super::lap_error::LapError;
use super::measure::{Span, measure, overhead};

/// Bytes written in front of the IP packet.
pub(super) const FRONT_BYTES: usize = 58;
/// Bytes written behind it.
pub(super) const BEHIND_BYTES: usize = 8;
/// The bytes in front, but for those of [`NUMBER`].
const FRONT: [u8; FRONT_BYTES] = [0xa5; FRONT_BYTES];
/// Place of the packet's number in the bytes in front, as ESP has one.
const NUMBER: std::ops::Range<usize> = 46..50;
/// Place of the bytes that are read, from the IP header's first byte on: IPv4's addresses.
const READ: std::ops::Range<usize> = 12..20;

/// The frames of a pass.
pub(super) struct Yardstick<'f> {
    /// Frames in the order in which the pass had them.
    pub(super) order: &'f [FrameId],
    /// Frames that hold packets at the same time.
    pub(super) in_flight: usize,
    /// Bytes of a packet as it arrives, its link header included.
    pub(super) length: usize,
    /// Number of times that the yardstick passes over all frames.
    pub(super) passes: u32,
}

impl Yardstick<'_> {
    /// Fills the frames and runs the yardstick under the clock. Returns ns a packet, of the
    /// thread's CPU time.
    ///
    /// # Errors
    /// [`LapError::Yardstick`]: it did not do its work.
    pub(super) fn run(&self, frames: &mut MemoryFrames) -> Result<f64, LapError> {
        // Only frames that are taken may be written. It gives them back in the same order.
        let taken: Vec<_> = std::iter::from_fn(|| frames.take()).collect();
        let result = self.measured(frames);
        taken.into_iter().rev().for_each(|frame| frames.give(frame));
        result
    }

    fn measured(&self, frames: &mut MemoryFrames) -> Result<f64, LapError> {
        let (overhead, mut all) = (overhead(), Span::default());
        let mut written = Vec::with_capacity(self.in_flight);
        for _ in 0..self.passes {
            for order in self.order.chunks(self.in_flight) {
                let packets = self.lay_out(frames, order);
                written.clear();
                let ((), mut span) = measure(|| touch(frames, &packets, &mut written));
                span.cpu = span.cpu.saturating_sub(overhead);
                all.add(span);
                check(frames, &packets, &written)?;
            }
        }
        let packets = f64::from(self.passes) * self.order.len() as f64;
        Ok(all.cpu.as_nanos() as f64 / packets)
    }

    /// Writes a packet into each of these frames, which leaves the processor's caches as a pass
    /// does.
    fn lay_out(&self, frames: &mut MemoryFrames, order: &[FrameId]) -> Vec<Descriptor> {
        let offset = HEADROOM as u32;
        let packet = |(number, frame): (usize, &FrameId)| {
            let bytes = &mut frames.bytes_mut(*frame)[HEADROOM..][..self.length];
            bytes.fill(number as u8);
            let header = &mut bytes[ETHERNET_BYTES..];
            header[READ].copy_from_slice(&word(number));
            Descriptor { frame: *frame, offset, length: self.length as u32 }
        };
        order.iter().enumerate().map(packet).collect()
    }
}

/// The bytes of a packet's header that are read: different ones in every packet.
fn word(number: usize) -> [u8; 8] {
    (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes()
}

/// The timed span.
#[inline(never)]
fn touch(frames: &mut MemoryFrames, packets: &[Descriptor], written: &mut Vec<Descriptor>) {
    let mut number = 0u32;
    for batch in packets.chunks(BATCH) {
        batch.iter().for_each(|packet| frames.prefetch(packet.frame, packet.offset));
        for &Descriptor { frame, offset, length } in batch {
            let begin = offset as usize + ETHERNET_BYTES - FRONT_BYTES;
            let end = offset as usize + length as usize + BEHIND_BYTES;
            let Some(bytes) = frames.bytes_mut(frame).get_mut(begin..end) else { continue };
            let (front, rest) = bytes.split_at_mut(FRONT_BYTES);
            let (packet, behind) = rest.split_at_mut(rest.len() - BEHIND_BYTES);
            let Some(read) = packet.get(READ) else { continue };
            front.copy_from_slice(&FRONT);
            front[NUMBER].copy_from_slice(&number.to_be_bytes());
            behind.copy_from_slice(read);
            written.push(Descriptor { frame, offset: begin as u32, length: (end - begin) as u32 });
            number += 1;
        }
    }
}

/// Reads back the bytes that the yardstick wrote.
///
/// # Errors
/// [`LapError::Yardstick`]: the first packet that is not as it should be.
fn check(
    frames: &MemoryFrames,
    packets: &[Descriptor],
    written: &[Descriptor],
) -> Result<(), LapError> {
    for (number, packet) in packets.iter().enumerate() {
        let is_done = written.get(number).is_some_and(|written| {
            let mut expected = FRONT;
            expected[NUMBER].copy_from_slice(&(number as u32).to_be_bytes());
            let bytes = frames.packet(*written).unwrap_or_default();
            let length = packet.length as usize - ETHERNET_BYTES + FRONT_BYTES + BEHIND_BYTES;
            written.frame == packet.frame
                && bytes.len() == length
                && bytes.starts_with(&expected)
                && bytes.ends_with(&word(number))
        });
        if !is_done {
            return Err(LapError::Yardstick { packet: number });
        }
    }
    match written.len() == packets.len() {
        true => Ok(()),
        false => Err(LapError::Yardstick { packet: packets.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that are all taken.
    fn taken(mut frames: MemoryFrames) -> MemoryFrames {
        while frames.take().is_some() {}
        frames
    }

    fn laid_out(frames: &mut MemoryFrames, length: usize) -> Vec<Descriptor> {
        let order: Vec<FrameId> = [5, 1, 7, 0].map(FrameId).to_vec();
        let yardstick = Yardstick { order: &order, in_flight: 4, length, passes: 1 };
        yardstick.lay_out(frames, &order)
    }

    #[test]
    fn the_yardstick_writes_around_every_packet_and_that_is_read_back() {
        let mut frames = taken(MemoryFrames::with_frame_bytes(8, 2048));
        for length in [42, 78, 1434] {
            let packets = laid_out(&mut frames, length);
            let mut written = Vec::new();
            touch(&mut frames, &packets, &mut written);
            check(&frames, &packets, &written).unwrap();
            let order: Vec<FrameId> = written.iter().map(|packet| packet.frame).collect();
            assert_eq!(order, [5, 1, 7, 0].map(FrameId), "in the order of the pass");
            let bytes = frames.packet(written[2]).unwrap();
            assert_eq!(bytes.len(), length - ETHERNET_BYTES + 66);
            assert_eq!(bytes[FRONT_BYTES..][READ], word(2), "the packet itself is as it was");
        }
    }

    #[test]
    fn a_yardstick_that_left_work_out_is_refused() {
        let mut frames = taken(MemoryFrames::with_frame_bytes(8, 2048));
        let packets = laid_out(&mut frames, 78);
        let mut written = Vec::new();
        assert!(check(&frames, &packets, &written).is_err(), "nothing was done");
        touch(&mut frames, &packets, &mut written);
        let more = [&written[..], &written[..1]].concat();
        assert!(check(&frames, &packets, &more).is_err(), "a descriptor too many");
        for (packet, place) in [(0, 0), (1, 47), (2, 57), (3, 58 + 64), (3, 58 + 64 + 7)] {
            let Descriptor { frame, offset, .. } = written[packet];
            frames.bytes_mut(frame)[offset as usize + place] ^= 1;
            let error = check(&frames, &packets, &written).unwrap_err();
            assert!(matches!(error, LapError::Yardstick { packet: found } if found == packet));
            frames.bytes_mut(frame)[offset as usize + place] ^= 1;
        }
        written.swap(1, 2);
        assert!(matches!(
            check(&frames, &packets, &written),
            Err(LapError::Yardstick { packet: 1 })
        ));
    }

    #[test]
    fn a_run_takes_time_and_leaves_the_frames_free() {
        let mut frames = MemoryFrames::with_frame_bytes(64, 2048);
        let order: Vec<FrameId> = (0..64).rev().map(FrameId).collect();
        let yardstick = Yardstick { order: &order, in_flight: 40, length: 78, passes: 9 };
        assert!(yardstick.run(&mut frames).unwrap() >= 0.0);
        assert_eq!(frames.conservation().held(), 0);
    }
}
