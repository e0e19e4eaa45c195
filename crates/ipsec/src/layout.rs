//! Sizes of the parts of an ESP packet (RFC 4303 §2).

use crate::suite::Suite;

/// Bytes of SPI and sequence number.
pub const HEADER_BYTES: usize = 8;

/// Bytes of pad length and next header.
pub const TRAILER_BYTES: usize = 2;

/// Bytes behind a packet that sealing it may write to, whatever its suite: padding, trailer, ICV.
pub const MAX_TAIL_BYTES: usize = Suite::MAX_ALIGNMENT - 1 + TRAILER_BYTES + Suite::MAX_ICV_BYTES;

/// Padding and pad length by the bytes of padding; the next header follows.
pub(crate) const PADDINGS: [u64; 4] = [0, 0x0101 << 48, 0x01_0202 << 40, 0x0102_0303 << 32];

/// Bytes that an SA adds to a packet.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Everything in front of the text but the packet's own IP header.
    pub(crate) front: usize,
    pub(crate) iv: usize,
    pub(crate) icv: usize,
    /// The text's length is a multiple of this, a power of two.
    pub(crate) alignment: usize,
}

impl Sizes {
    /// `headers` are the bytes in front of ESP: outer IP and UDP.
    pub(crate) const fn new(suite: Suite, headers: usize) -> Sizes {
        let iv = suite.iv_bytes();
        let front = headers + HEADER_BYTES + iv;
        Sizes { front, iv, icv: suite.icv_bytes(), alignment: suite.alignment() }
    }

    /// Bytes of the text around so many bytes.
    #[inline]
    pub(crate) const fn text(&self, payload: usize) -> usize {
        (payload + TRAILER_BYTES + self.alignment - 1) & !(self.alignment - 1)
    }

    /// Bytes of the most that fits into `room` bytes with everything that is added.
    pub(crate) const fn largest(&self, room: usize) -> usize {
        let text = room.saturating_sub(self.front + self.icv);
        (text & !(self.alignment - 1)).saturating_sub(TRAILER_BYTES)
    }
}
