//! Packets that no frame holds: outer packets put together of fragments, and what was in them.
//!
//! The walk takes them through the same stages as any packet, over frames among which is one more:
//! the buffer in which the packet lies. Nothing leaves in it.
//!
//! * An inner packet that a frame holds is copied into one ([`shrink`]).
//! * A larger one is larger than the MTU of every port, so `plan` cuts it into fragments, which lie
//!   in frames, or drops it as too big.
//! * One for Linux on this machine is cut here ([`cut_for_host`]): Linux puts it together again.
//!
//! Not handled here: a larger one that is itself a fragment and would have to wait (`follow` drops
//! it), and IPv6 for this machine, which nobody on its way may cut.

use wire::{FrameId, Frames, HEADROOM, Packet};

use crate::batch_context::BatchContext;
use crate::fragment::{pieces, write};
use crate::frame_room::largest_mtu;
use crate::outputs::ToHost;
use crate::row::{Row, State};
use crate::verdict::{DropReason, Verdict};

/// The number of the buffer among frames: no pool has so many.
pub(crate) const FRAME: FrameId = FrameId(u32::MAX);

/// Frames, and the buffer of a large packet as one more. It belongs to nobody's pool: giving it
/// back does nothing.
pub(crate) struct WithLarge<'f> {
    buffer: &'f mut [u8],
    /// Bytes of a frame, headroom included.
    frame_bytes: usize,
    frames: &'f mut dyn Frames,
}

impl Frames for WithLarge<'_> {
    fn bytes(&self, frame: FrameId) -> &[u8] {
        if frame == FRAME { self.buffer } else { self.frames.bytes(frame) }
    }

    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        if frame == FRAME { self.buffer } else { self.frames.bytes_mut(frame) }
    }

    fn many_mut<'f>(&'f mut self, frames: &[FrameId], into: &mut [&'f mut [u8]]) -> bool {
        match (frames, &mut *into) {
            ([FRAME], [place]) => {
                *place = self.buffer;
                true
            }
            _ => !frames.contains(&FRAME) && self.frames.many_mut(frames, into),
        }
    }

    fn take(&mut self) -> Option<FrameId> {
        self.frames.take()
    }

    fn give(&mut self, frame: FrameId) {
        if frame != FRAME {
            self.frames.give(frame);
        }
    }
}

impl WithLarge<'_> {
    /// Largest packet that a frame holds, bytes.
    fn room(&self) -> u32 {
        largest_mtu(self.frame_bytes)
    }

    /// Fills a free frame, behind its headroom, from the buffer; `fill` returns the packet's bytes.
    ///
    /// # Errors
    /// No frame is free, or `fill` found no room.
    fn fill(
        &mut self,
        fill: impl FnOnce(&[u8], &mut [u8]) -> Option<usize>,
    ) -> Result<(FrameId, u32), DropReason> {
        let frame = self.frames.take().ok_or(DropReason::NoFrame)?;
        let into = self.frames.bytes_mut(frame).get_mut(HEADROOM..).unwrap_or_default();
        match fill(self.buffer, into) {
            Some(length) => Ok((frame, length as u32)),
            None => {
                self.frames.give(frame);
                Err(DropReason::NoFrame)
            }
        }
    }
}

/// Runs stages with a context whose frames have `buffer` among them, as [`FRAME`]. Nothing is
/// handed over.
pub(crate) fn run_with<F: Frames>(
    context: &mut BatchContext<'_, F>,
    buffer: &mut [u8],
    frame_bytes: usize,
    run: impl FnOnce(&mut BatchContext<'_, WithLarge<'_>>),
) {
    let BatchContext { snapshot, now_ns, share, first, .. } = *context;
    let mut frames = WithLarge { buffer, frame_bytes, frames: &mut *context.frames };
    run(&mut BatchContext {
        snapshot,
        now_ns,
        share,
        handing: None,
        marks: &[],
        first,
        sample: None,
        dropped: context.dropped,
        reassembly: context.reassembly,
        sa_queues: context.sa_queues,
        tenants: context.tenants,
        direct: context.direct,
        auditor: context.auditor,
        frames: &mut frames,
        counters: context.counters,
        out: context.out,
    });
}

/// Moves an opened packet out of the buffer into a frame, if one holds it.
pub(crate) fn shrink(context: &mut BatchContext<'_, WithLarge<'_>>, row: &mut Row) {
    let (start, length) = (row.ip as usize, row.packet.length as usize);
    if row.state == State::Ended {
        return;
    }
    if row.packet.length > context.frames.room() {
        // No configuration has a port whose packets frames do not hold.
        let (host, room) = (context.snapshot.host(), context.frames.room());
        let mut others = context.snapshot.ports().filter(|(port, _)| Some(*port) != host);
        if others.any(|(_, port)| port.mtu > room) {
            context.drop(row, DropReason::Oversize);
        }
        return;
    }
    let copied = context.frames.fill(|buffer, into| {
        into.get_mut(..length)?.copy_from_slice(buffer.get(start..start + length)?);
        Some(length)
    });
    match copied {
        Ok((frame, _)) => (row.frame, row.ip) = (frame, HEADROOM as u32),
        Err(reason) => context.drop(row, reason),
    }
}

/// Cuts the large packet that is to go to Linux into fragments, if there is one.
pub(crate) fn cut_for_host(context: &mut BatchContext<'_, WithLarge<'_>>, place: u32) {
    // Fragments that waited for it may stand behind it.
    let host = &mut context.out.host;
    let Some(at) = host.iter().position(|to_host| to_host.packet.frame == FRAME) else { return };
    let to_host = host.remove(at);
    let from = context.out.host.len();
    let ended = match cut(context, &to_host) {
        Ok(()) => {
            context.counters.ledger(Some(to_host.ingress)).consumed += 1;
            for _ in from..context.out.host.len() {
                let place = context.make(to_host.ingress);
                context.out.verdicts[place as usize] = Some(Verdict::Host);
            }
            Verdict::Consumed
        }
        Err(reason) => {
            let BatchContext { out, frames, .. } = &mut *context;
            out.host.drain(from..).for_each(|piece| frames.give(piece.packet.frame));
            context.counters.drop(Some(to_host.ingress), reason);
            Verdict::Drop(reason)
        }
    };
    context.out.verdicts[place as usize] = Some(ended);
}

/// Adds the fragments of a packet in the buffer to what goes to Linux.
///
/// # Errors
/// It is IPv6, or no frame is free.
fn cut(context: &mut BatchContext<'_, WithLarge<'_>>, whole: &ToHost) -> Result<(), DropReason> {
    let ToHost { packet: place, .. } = *whole;
    let (start, end) = (place.offset as usize, (place.offset + place.length) as usize);
    let packet: Packet = wire::packet::parse(&context.frames.buffer[start..end])?;
    if packet.flow.family == wire::Family::V6 {
        return Err(DropReason::TooBig);
    }
    let mtu = context.snapshot.host().map_or(u32::MAX, |port| context.snapshot.path_port(port).mtu);
    for piece in pieces(&packet, mtu.min(context.frames.room()) as usize) {
        let filled =
            |buffer: &[u8], into: &mut [u8]| write(into, buffer.get(start..end)?, &packet, piece);
        let (frame, length) = context.frames.fill(filled)?;
        let packet = wire::Descriptor { frame, offset: HEADROOM as u32, length };
        context.out.host.push(ToHost { packet, ..*whole });
    }
    Ok(())
}
