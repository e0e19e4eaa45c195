//! The gateway's ESP, driven packet by packet.

use std::ops::Range;

use ipsec::esp::{restore, strip};
use ipsec::{InboundSa, Mode, OpenError, OutboundSa, Payload, finish_udp};
use wire::{Family, FrameId, Frames, packet};

/// One frame on the heap.
struct Heap(Vec<u8>);

const FRAME: FrameId = FrameId(0);
/// Room in front of and behind a packet.
const ROOM: usize = 200;

impl Frames for Heap {
    fn bytes(&self, _: FrameId) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self, _: FrameId) -> &mut [u8] {
        &mut self.0
    }

    fn many_mut<'f>(&'f mut self, frames: &[FrameId], into: &mut [&'f mut [u8]]) -> bool {
        if let [first, ..] = into {
            *first = &mut self.0;
        }
        frames.len() == 1
    }

    fn take(&mut self) -> Option<FrameId> {
        None
    }

    fn give(&mut self, _: FrameId) {}
}

/// Writes all headers around a packet, for the cipher to seal: the whole packet, its text in clear.
fn encapsulated(sa: &OutboundSa, ip: &[u8], number: u64) -> (Heap, ipsec::SealJob, Range<usize>) {
    let mut heap = Heap(vec![0; ip.len() + 2 * ROOM]);
    heap.0[ROOM..ROOM + ip.len()].copy_from_slice(ip);
    let parsed = packet::parse(ip).unwrap();
    let (job, outer) = sa.encapsulate(FRAME, &mut heap.0, ROOM, &parsed, number, 0).unwrap();
    (heap, job, outer)
}

/// The packet that leaves, with its text in clear and room for the integrity check value.
pub(crate) fn unsealed(sa: &OutboundSa, ip: &[u8], number: u64) -> Vec<u8> {
    let (heap, _, outer) = encapsulated(sa, ip, number);
    heap.0[outer].to_vec()
}

/// The packet that leaves.
pub(crate) fn seal(sa: &OutboundSa, ip: &[u8], number: u64) -> Vec<u8> {
    let (mut heap, job, outer) = encapsulated(sa, ip, number);
    sa.cipher.seal(&mut heap, &[job]).unwrap();
    finish(sa, heap.0[outer].to_vec())
}

/// Fills in the checksum of a UDP header of IPv6.
pub(crate) fn finish(sa: &OutboundSa, mut packet: Vec<u8>) -> Vec<u8> {
    if sa.family() == Family::V6 && sa.encapsulation.udp.is_some() {
        assert!(finish_udp(&mut packet));
    }
    packet
}

/// The reason why the gateway opens no packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    Replay,
    Esp(OpenError),
}

/// The packet in clear that a packet of an SA carried.
pub(crate) fn open(sa: &InboundSa, outer: &[u8]) -> Result<Vec<u8>, Refused> {
    let carrying = packet::parse(outer).unwrap();
    let udp = if sa.encapsulation.udp.is_some() { 8 } else { 0 };
    let esp = usize::from(carrying.upper_offset) + udp..carrying.length as usize;
    let mut heap = Heap(outer.to_vec());
    let mut job = sa.open_job(FRAME, &heap.0, esp, 0).map_err(Refused::Esp)?;
    sa.window.check(job.sequence).map_err(|_| Refused::Replay)?;
    sa.cipher.open(&mut heap, std::slice::from_mut(&mut job));
    if job.authentic {
        sa.window.commit(job.sequence).map_err(|_| Refused::Replay)?;
    }
    match strip(&heap.0, &job, sa.encapsulation.mode).map_err(Refused::Esp)? {
        Payload::Packet(inner) => {
            assert_eq!(sa.encapsulation.mode, Mode::Tunnel);
            Ok(heap.0[inner.offset..inner.offset + inner.length].to_vec())
        }
        Payload::Upper { protocol, offset, length } => {
            let upper = offset..offset + length;
            let start = restore(&mut heap.0, 0, &carrying, protocol, upper.clone()).unwrap();
            Ok(heap.0[start..upper.end].to_vec())
        }
    }
}
