//! Frames and the two seams through which packets reach the walk.
//!
//! A *frame* is a fixed-size slot of memory, a *packet* the bytes that lie in it from
//! `offset` to `offset + length`. In front of a received packet lies at least [`HEADROOM`] bytes
//! where outer headers can be written in place. A frame has one owner at any time: the pool, a
//! port's ring, or the walk. Who takes a [`Descriptor`] takes the frame.

use crate::mark::Mark;

/// Bytes free in front of every received packet: room for two Ethernet, IPv6, UDP and ESP headers.
pub const HEADROOM: usize = 256;

/// Packets in a batch at most. FACTS "The walk" 2: more gains nothing, fewer cost.
pub const BATCH: usize = 64;

/// Number of a frame in its memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FrameId(pub u32);

/// A packet in a frame: bytes `offset .. offset + length` of frame `frame`.
///
/// `length` is what was received and may lie: it can reach beyond the frame (a jumbo packet that
/// the port could not store whole). The walk checks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The frame that holds the packet.
    pub frame: FrameId,
    /// First byte of the packet, from the start of the frame.
    pub offset: u32,
    /// Bytes of the packet, link header included, frame check sequence not.
    pub length: u32,
}

/// A packet as a port received it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The packet.
    pub packet: Descriptor,
    /// Place in [`Port::marks`] of what a lower tier claims of the packet, from 1; 0: nothing.
    pub hint: u32,
}

impl From<Descriptor> for Received {
    /// A packet of which no lower tier claims anything.
    #[inline]
    fn from(packet: Descriptor) -> Received {
        Received { packet, hint: 0 }
    }
}

/// Frame memory with its free list. All frames have one size.
pub trait Frames {
    /// The whole frame, headroom included. Cost: a bounds check.
    fn bytes(&self, frame: FrameId) -> &[u8];
    /// The whole frame, headroom included, for writing.
    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8];
    /// Several frames at once, for a cipher that works on many packets side by side: fills `into`,
    /// place by place, with the frames of `frames`, both of one length, at most [`BATCH`]. Returns
    /// false, and `into` is then of no use, if a frame is named twice.
    ///
    /// # Panics
    /// As [`Frames::bytes_mut`], and if the lengths differ.
    fn many_mut<'f>(&'f mut self, frames: &[FrameId], into: &mut [&'f mut [u8]]) -> bool;
    /// Asks for the cache line of a byte that will be read soon. Memory that cannot do better reads
    /// it: such loads of a whole batch are under way together, where the loads of one packet after
    /// the other would each be waited for.
    #[inline]
    fn prefetch(&self, frame: FrameId, offset: u32) {
        // The byte itself: of a reference nothing would be loaded.
        core::hint::black_box(self.bytes(frame).get(offset as usize).copied());
    }
    /// Takes a free frame, the most recently freed first (it is warm in the cache).
    fn take(&mut self) -> Option<FrameId>;
    /// Gives a frame back. The caller must own it.
    fn give(&mut self, frame: FrameId);
}

/// A netdev, or what stands for one: a capture file, a list in memory.
pub trait Port<F: Frames> {
    /// Appends up to `limit` received packets to `into`, taking frames as it needs them.
    /// Returns how many. None received is not an error.
    fn receive(
        &mut self,
        frames: &mut F,
        limit: usize,
        into: &mut alloc::vec::Vec<Received>,
    ) -> usize;
    /// Returns what lower tiers claim of the packets of the last [`Port::receive`]:
    /// [`Received::hint`] counts into it.
    fn marks(&self) -> &[Mark] {
        &[]
    }
    /// Accepts packets from the front of `packets` and returns how many. It owns the frames of
    /// those it accepted and gives them back to `frames` when they have left; the caller keeps
    /// the rest.
    fn transmit(&mut self, frames: &mut F, packets: &[Descriptor]) -> usize;
}
