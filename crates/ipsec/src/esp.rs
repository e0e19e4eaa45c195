//! ESP framing in tunnel mode (RFC 4303 §2, with the AEAD layout of RFC 4106 §3):
//!
//! ```text
//! outer IP │ SPI, sequence │ IV │ inner packet │ padding, pad length, next header │ ICV
//!   20, 40 │       8       │  8 │◄─────────────── text ──────────────────────────►│  16
//!          │◄── authenticated ─►                                                 │
//! ```
//! Writes and checks everything but the ciphertext, which is [`Cipher`](crate::Cipher)'s. Works in
//! place: the inner packet does not move.
//!
//! Not here: transport mode, UDP encapsulation, TFC padding (what stands behind the inner packet
//! is found by the parser of the inner packet, from its own length).

use std::ops::Range;

use wire::flow::protocol;
use wire::{Family, FrameId};

use crate::outer::Variables;
use crate::{InboundSa, OpenJob, OutboundSa, SealJob, Spi, ecn};

/// Bytes of SPI and sequence number.
pub const HEADER_BYTES: usize = 8;
/// Bytes of the IV.
pub const IV_BYTES: usize = 8;
/// Bytes of pad length and next header.
pub const TRAILER_BYTES: usize = 2;
/// Bytes of the ICV.
pub const ICV_BYTES: usize = 16;
/// Pad length and next header end on a multiple of this (RFC 4303 §2.4).
pub const ALIGNMENT: usize = 4;
/// Bytes of the smallest ESP packet that is looked at: a text of nothing but the trailer.
pub const SMALLEST: usize = HEADER_BYTES + IV_BYTES + TRAILER_BYTES + ICV_BYTES;

/// The first 8 bytes of an ESP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EspHeader {
    /// What the SA is found by; `None` for a reserved number, which no SA has.
    pub spi: Option<Spi>,
    /// Low 32 bits of the sequence number; the replay window infers the rest.
    pub sequence_low: u32,
}

impl EspHeader {
    /// Reads it from the start of `esp`. `None` if that is shorter.
    #[inline]
    pub fn read(esp: &[u8]) -> Option<EspHeader> {
        let header = u64::from_be_bytes(*esp.first_chunk()?);
        Some(EspHeader { spi: Spi::new((header >> 32) as u32), sequence_low: header as u32 })
    }
}

/// An inner packet in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inner {
    /// What the next header field says it is.
    pub family: Family,
    /// Its first byte, from the start of the frame.
    pub offset: usize,
    /// Its bytes. After opening these are all in front of the padding; the packet itself may say
    /// that it is shorter.
    pub length: usize,
}

/// Why a received ESP packet is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum OpenError {
    /// Too short for its fixed fields, or not inside its frame.
    #[error("ESP packet is truncated")]
    Truncated,
    /// The text does not end on a multiple of [`ALIGNMENT`].
    #[error("ESP text is not a multiple of 4 bytes")]
    Alignment,
    /// The ICV is wrong: damaged, forged, or the keys differ.
    #[error("ESP integrity check failed")]
    Integrity,
    /// Authentic, but the pad length is more than there is, or the padding is not 1, 2, 3 ….
    #[error("ESP padding is wrong")]
    Padding,
    /// Authentic, but it carries neither IPv4 nor IPv6.
    #[error("ESP next header is neither IPv4 nor IPv6")]
    NextHeader,
    /// A dummy packet (RFC 4303 §2.6): dropped as its sender means it to be.
    #[error("ESP dummy packet")]
    Dummy,
}

impl OutboundSa {
    /// Bytes of the outer packet that an inner packet of `inner` bytes becomes.
    pub const fn sealed_length(&self, inner: usize) -> usize {
        match inner.saturating_add(TRAILER_BYTES).checked_next_multiple_of(ALIGNMENT) {
            Some(text) => text.saturating_add(self.outer.bytes() + ICV_BYTES),
            None => usize::MAX,
        }
    }

    /// Bytes of the largest inner packet that becomes an outer packet of at most `path_mtu`
    /// bytes. 0: none fits.
    pub fn largest_inner(&self, path_mtu: usize) -> usize {
        let outer = path_mtu.min(self.outer.largest_packet());
        let text = outer.saturating_sub(self.outer.bytes() + ICV_BYTES);
        (text - text % ALIGNMENT).saturating_sub(TRAILER_BYTES)
    }

    /// Writes all headers and the trailer around an inner packet, and returns what the cipher has
    /// to do with it and where in the frame the outer packet lies. Until the cipher has done so
    /// the packet is in clear.
    ///
    /// 1. outer IP header: DSCP of the inner packet, ECN by RFC 6040, don't fragment;
    /// 2. SPI and the low half of `sequence`; the IV is all of `sequence`, which makes it unique
    ///    under the key (RFC 4106 §3.1);
    /// 3. padding 1, 2, 3 … to a multiple of 4, pad length, next header.
    ///
    /// `sequence` was drawn from [`OutboundSa::sequence`] for this packet alone; `traffic_class`
    /// is the inner packet's. `row` comes back in the job.
    ///
    /// `None`: too little room in front of or behind the inner packet, an outer packet beyond
    /// what its header can say, or a number that no packet of the SA may have. Nothing that
    /// matters was written; the caller drops the packet.
    #[inline]
    pub fn encapsulate(
        &self,
        frame_id: FrameId,
        frame: &mut [u8],
        inner: Inner,
        traffic_class: u8,
        sequence: u64,
        row: u32,
    ) -> Option<(SealJob, Range<usize>)> {
        if sequence == 0 || sequence > self.sequence.numbers().limit() {
            return None;
        }
        let Inner { family, offset, length } = inner;
        let total = self.sealed_length(length);
        if total > self.outer.largest_packet() {
            return None;
        }
        let start = offset.checked_sub(self.outer.bytes())?;
        let end = start.checked_add(total)?;
        // Every offset in the job is smaller.
        u32::try_from(end).ok()?;
        let packet = frame.get_mut(start..end)?;

        let variables = Variables {
            traffic_class: traffic_class & !ecn::MASK | ecn::encapsulate(traffic_class),
            total,
            esp_header: u64::from(self.spi.value()) << 32 | sequence & u64::from(u32::MAX),
            iv: sequence,
        };
        self.outer.write(packet, &variables)?;
        let text_length = total - self.outer.bytes() - ICV_BYTES;
        let padding = text_length - length - TRAILER_BYTES;
        // One store of fixed width: what it writes behind the trailer is the ICV's place.
        let trailer: &mut [u8; 8] = packet[self.outer.bytes() + length..].first_chunk_mut()?;
        *trailer = TRAILERS[family as usize][padding % ALIGNMENT];

        let job = SealJob {
            frame: frame_id,
            aad: (start + self.outer.ip_bytes()) as u32,
            text: offset as u32,
            text_length: text_length as u32,
            nonce: self.cipher.nonce(sequence),
            sequence,
            row,
        };
        Some((job, start..end))
    }
}

/// Padding, pad length and next header, by family and pad length; the rest is 0.
const TRAILERS: [[[u8; 8]; ALIGNMENT]; 2] =
    [trailers(next_header(Family::V4)), trailers(next_header(Family::V6))];
const _: () = assert!(Family::V4 as usize == 0 && Family::V6 as usize == 1);

const fn trailers(next: u8) -> [[u8; 8]; ALIGNMENT] {
    [
        [0, next, 0, 0, 0, 0, 0, 0],
        [1, 1, next, 0, 0, 0, 0, 0],
        [1, 2, 2, next, 0, 0, 0, 0],
        [1, 2, 3, 3, next, 0, 0, 0],
    ]
}

const fn next_header(family: Family) -> u8 {
    match family {
        Family::V4 => protocol::IPV4,
        Family::V6 => protocol::IPV6,
    }
}

impl InboundSa {
    /// What the cipher has to do with a received ESP packet: `esp` is its place in the frame, from
    /// the SPI to the end of the ICV. The caller has found this SA by its SPI, and asks
    /// [`ReplayWindow::check`](crate::ReplayWindow::check) about [`OpenJob::sequence`] before it
    /// spends time on the cipher.
    ///
    /// # Errors
    /// [`OpenError::Truncated`], [`OpenError::Alignment`]: the caller drops the packet.
    #[inline]
    pub fn open_job(
        &self,
        frame_id: FrameId,
        frame: &[u8],
        esp: Range<usize>,
        row: u32,
    ) -> Result<OpenJob, OpenError> {
        let bytes = frame.get(esp.clone()).ok_or(OpenError::Truncated)?;
        if bytes.len() < SMALLEST {
            return Err(OpenError::Truncated);
        }
        let text_length = bytes.len() - HEADER_BYTES - IV_BYTES - ICV_BYTES;
        if !text_length.is_multiple_of(ALIGNMENT) {
            return Err(OpenError::Alignment);
        }
        let head: &[u8; HEADER_BYTES + IV_BYTES] =
            bytes.first_chunk().ok_or(OpenError::Truncated)?;
        let head = u128::from_be_bytes(*head);
        u32::try_from(esp.end).map_err(|_| OpenError::Truncated)?;
        Ok(OpenJob {
            frame: frame_id,
            aad: esp.start as u32,
            text: (esp.start + HEADER_BYTES + IV_BYTES) as u32,
            text_length: text_length as u32,
            nonce: self.cipher.nonce(head as u64),
            sequence: self.window.infer((head >> 64) as u32),
            row,
            authentic: false,
        })
    }
}

/// Takes the trailer off an opened packet: where in the frame lies what it carried.
///
/// # Errors
/// All of [`OpenError`] but `Alignment`. The caller drops the packet; its sequence number stays
/// committed if it was authentic.
#[inline]
pub fn strip(frame: &[u8], job: &OpenJob) -> Result<Inner, OpenError> {
    if !job.authentic {
        return Err(OpenError::Integrity);
    }
    let offset = job.text as usize;
    let text = frame.get(offset..).and_then(|behind| behind.get(..job.text_length as usize));
    let Some([padded @ .., pad_length, next_header]) = text else {
        return Err(OpenError::Truncated);
    };
    let length = padded.len().checked_sub(usize::from(*pad_length)).ok_or(OpenError::Padding)?;
    // RFC 4303 §2.4: the receiver should check the padding; it is free under an AEAD, and a wrong
    // one means that the peer's software is.
    if padded[length..].iter().zip(1..=u8::MAX).any(|(byte, expected)| *byte != expected) {
        return Err(OpenError::Padding);
    }
    let family = match *next_header {
        protocol::IPV4 => Family::V4,
        protocol::IPV6 => Family::V6,
        protocol::NONE => return Err(OpenError::Dummy),
        _ => return Err(OpenError::NextHeader),
    };
    Ok(Inner { family, offset, length })
}

#[cfg(test)]
mod tests;
