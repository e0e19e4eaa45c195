//! ESP framing (RFC 4303 §2; for AEADs RFC 4106 §3, RFC 7634 §2):
//!
//! ```text
//! tunnel      outer IP │ (UDP) │ SPI, sequence │ IV │ inner packet, trailer │ ICV
//! transport   own IP   │ (UDP) │ SPI, sequence │ IV │ upper layer, trailer  │ ICV
//!               20, 40     8           8         0…16 ◄──────── text ───────►  0…32
//!                              ◄────────── authenticated ──────────────────►
//! trailer: padding 1, 2, 3 …, pad length, next header
//! ```
//! Writes and checks everything but the ciphertext, which is [`Cipher`](crate::Cipher)'s. Works in
//! place: what is sealed or opened does not move; in transport mode its IP header does.
//!
//! Not here: TFC padding (what stands behind the inner packet is found by the parser of the inner
//! packet, from its own length).

use std::ops::Range;

use wire::flow::protocol;
use wire::{Family, FrameId, Packet};

use crate::encapsulation::Mode;
use crate::ids::Spi;
use crate::job::{OpenJob, SealJob};
pub use crate::layout::{HEADER_BYTES, TRAILER_BYTES};
use crate::layout::{PADDINGS, Sizes};
use crate::sa::{InboundSa, OutboundSa};

mod transport;

pub use transport::restore;

/// The first 8 bytes of an ESP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EspHeader {
    /// The number that the SA is found by; `None` for a reserved number, which no SA has.
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

/// An inner packet in a frame, opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inner {
    /// The family that the next header field names.
    pub family: Family,
    /// Offset of the first byte, from the start of the frame.
    pub offset: usize,
    /// Length in bytes. After opening these are all bytes before the padding; the packet itself may
    /// say that it is shorter.
    pub length: usize,
}

/// Reason why a received ESP packet is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum OpenError {
    /// Too short for its fixed fields, or not inside its frame.
    #[error("ESP packet is truncated")]
    Truncated,
    /// The text does not end on a multiple of [`Suite::alignment`](crate::Suite::alignment).
    #[error("ESP text is not a multiple of the cipher's block")]
    Alignment,
    /// The ICV is wrong: damaged, forged, or the keys differ.
    #[error("ESP integrity check failed")]
    Integrity,
    /// Authentic, but the pad length is more than there is, or the padding is not 1, 2, 3 ….
    #[error("ESP padding is wrong")]
    Padding,
    /// Authentic, but in tunnel mode it carries neither IPv4 nor IPv6.
    #[error("ESP next header is neither IPv4 nor IPv6")]
    NextHeader,
    /// A dummy packet (RFC 4303 §2.6): dropped as its sender means it to be.
    #[error("ESP dummy packet")]
    Dummy,
}

impl OutboundSa {
    /// Bytes of the packet that leaves for a packet of `length` bytes. In transport mode its IP
    /// header is taken to have no options.
    pub const fn sealed_length(&self, length: usize) -> usize {
        // Nothing near the end of the range is a packet.
        let length = if length > 1 << 20 { 1 << 20 } else { length };
        let kept = self.kept_header();
        let text = self.sizes.text(length.saturating_sub(kept));
        kept + self.sizes.front + text + self.sizes.icv
    }

    /// Bytes of a packet that the cipher processes: payload, padding, pad length and next header
    /// (RFC 4301 §4.4.2.1).
    #[inline]
    pub fn text_bytes(&self, packet: &Packet) -> u64 {
        let kept = match self.encapsulation.mode {
            Mode::Tunnel => 0,
            Mode::Transport => u32::from(packet.upper_offset),
        };
        self.sizes.text(packet.length.saturating_sub(kept) as usize) as u64
    }

    /// Bytes of the largest packet that leaves as one of at most `path_mtu` bytes. 0: none fits.
    pub fn largest_inner(&self, path_mtu: usize) -> usize {
        let kept = self.kept_header();
        let room = path_mtu.min(self.outer.largest_packet()).saturating_sub(kept);
        match self.sizes.largest(room) {
            0 => 0,
            most => kept + most,
        }
    }

    /// Bytes of a packet's own IP header that stay in front of ESP.
    const fn kept_header(&self) -> usize {
        match (self.encapsulation.mode, self.outer.family()) {
            (Mode::Tunnel, _) => 0,
            (Mode::Transport, Family::V4) => 20,
            (Mode::Transport, Family::V6) => 40,
        }
    }

    /// Writes all headers and the trailer around a packet whose IP header is at `ip` in its frame,
    /// and returns what the cipher has to do with it and where in the frame the packet lies that
    /// leaves. Until the cipher has done so it is in clear.
    ///
    /// 1. outer IP header: DSCP and don't fragment by option, ECN by RFC 6040; UDP;
    /// 2. SPI and the low half of `sequence`; the IV, unique under the key, see
    ///    [`Encryption`](crate::suite::Encryption);
    /// 3. padding 1, 2, 3 … to a multiple of the cipher's block, pad length, next header.
    ///
    /// `sequence` was drawn from [`OutboundSa::sequence`] for this packet alone. `row` comes back
    /// in the job.
    ///
    /// `None`: too little room in front of or behind the packet, an outer packet beyond what its
    /// header can say, in transport mode a fragment or a packet that is not between the two ends,
    /// or a number that no packet of the SA may have. Nothing that matters was written; the caller
    /// drops the packet.
    #[inline(always)]
    pub fn encapsulate(
        &self,
        frame_id: FrameId,
        frame: &mut [u8],
        ip: usize,
        packet: &Packet,
        sequence: u64,
        row: u32,
    ) -> Option<(SealJob, Range<usize>)> {
        if sequence == 0 || sequence > self.sequence.numbers().limit() {
            return None;
        }
        let mut job = SealJob { row, ..SealJob::of(frame_id) };
        if self.encapsulation.mode == Mode::Transport {
            return self.around_upper_layer(job, frame, ip, packet, sequence);
        }
        let Sizes { front, icv, .. } = self.sizes;
        let length = packet.length as usize;
        let text_length = self.sizes.text(length);
        let total = front + text_length + icv;
        if total > self.outer.largest_packet() {
            return None;
        }
        let (before, behind) = frame.split_at_mut_checked(ip)?;
        let start = ip.checked_sub(front)?;
        let head = before.get_mut(start..)?;
        // Every offset in the job is smaller.
        u32::try_from(start + total).ok()?;

        let next_header = match packet.flow.family {
            Family::V4 => protocol::IPV4,
            Family::V6 => protocol::IPV6,
        };
        let trailer = behind.get_mut(length..text_length + icv)?;
        write_trailer(trailer, text_length - length, next_header)?;
        let nonce = self.cipher.nonce(sequence);
        job.aad = (start + self.outer.bytes()) as u32;
        job.text = ip as u32;
        job.text_length = text_length as u32;
        job.nonce = nonce.to_ne_bytes();
        job.sequence = sequence;
        let esp = self.outer.write(head, packet, total, sequence)?;
        self.write_esp_header(esp, sequence, nonce)?;
        Some((job, start..start + total))
    }

    /// Writes SPI, sequence number and IV.
    #[inline(always)]
    fn write_esp_header(&self, into: &mut [u8], sequence: u64, nonce: u128) -> Option<()> {
        let header = u64::from(self.spi.value()) << 32 | sequence & u64::from(u32::MAX);
        // One store of the width in which the cipher reads it.
        let (at, iv) = into.split_first_chunk_mut::<HEADER_BYTES>()?;
        *at = header.to_be_bytes();
        match self.sizes.iv {
            8 => *iv.first_chunk_mut()? = sequence.to_be_bytes(),
            0 => {}
            _ => *iv.first_chunk_mut()? = nonce.to_ne_bytes(),
        }
        Some(())
    }
}

/// Writes the trailer to the start of `behind`, of which `length` bytes are its own and the rest
/// is the ICV's place.
#[inline(always)]
fn write_trailer(behind: &mut [u8], length: usize, next_header: u8) -> Option<()> {
    let padding = length - TRAILER_BYTES;
    match behind.first_chunk_mut::<8>() {
        // One store of fixed width: what it writes behind the trailer is the ICV's place.
        Some(trailer) if padding < PADDINGS.len() => {
            let next_header = u64::from(next_header) << (48 - 8 * padding);
            *trailer = (PADDINGS[padding] | next_header).to_be_bytes();
        }
        _ => {
            let (bytes, end) = behind.split_at_mut_checked(padding)?;
            *end.first_chunk_mut()? = [padding as u8, next_header];
            match bytes {
                [] => {}
                [a] => *a = 1,
                [a, b] => [*a, *b] = [1, 2],
                [a, b, c] => [*a, *b, *c] = [1, 2, 3],
                more => more.iter_mut().zip(1..).for_each(|(byte, number)| *byte = number),
            }
        }
    }
    Some(())
}

impl InboundSa {
    /// Returns the cipher's job for a received ESP packet: `esp` is its place in the frame, from
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
        let Sizes { front, icv, alignment, .. } = self.sizes;
        let bytes = frame.get(esp.clone()).ok_or(OpenError::Truncated)?;
        let text_length = bytes.len().checked_sub(front + icv).ok_or(OpenError::Truncated)?;
        if text_length < TRAILER_BYTES {
            return Err(OpenError::Truncated);
        }
        if text_length & (alignment - 1) != 0 {
            return Err(OpenError::Alignment);
        }
        let (head, behind) =
            bytes.split_first_chunk::<HEADER_BYTES>().ok_or(OpenError::Truncated)?;
        let iv = behind.get(..front - HEADER_BYTES).ok_or(OpenError::Truncated)?;
        u32::try_from(esp.end).map_err(|_| OpenError::Truncated)?;
        let mut job = OpenJob { row, ..OpenJob::of(frame_id) };
        job.aad = esp.start as u32;
        job.text = (esp.start + front) as u32;
        job.text_length = text_length as u32;
        job.nonce = self.cipher.received_nonce(iv).to_ne_bytes();
        job.sequence = self.window.infer(u64::from_be_bytes(*head) as u32);
        Ok(job)
    }
}

/// The content of an opened packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// A whole packet (tunnel mode).
    Packet(Inner),
    /// The upper layer of the packet that carried it (transport mode): see [`restore`].
    Upper {
        /// Its protocol.
        protocol: u8,
        /// Its first byte, from the start of the frame.
        offset: usize,
        /// Its bytes.
        length: usize,
    },
}

/// Takes the trailer off an opened packet of an SA of this mode: where in the frame lies what it
/// carried.
///
/// # Errors
/// All of [`OpenError`] but `Alignment`. The caller drops the packet; its sequence number stays
/// committed if it was authentic.
#[inline]
pub fn strip(frame: &[u8], job: &OpenJob, mode: Mode) -> Result<Payload, OpenError> {
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
    let is_right = match &padded[length..] {
        [] => true,
        [a] => *a == 1,
        [a, b] => [*a, *b] == [1, 2],
        [a, b, c] => [*a, *b, *c] == [1, 2, 3],
        more => more.iter().zip(1..=u8::MAX).all(|(byte, expected)| *byte == expected),
    };
    if !is_right {
        return Err(OpenError::Padding);
    }
    let family = match (mode, *next_header) {
        (_, protocol::NONE) => return Err(OpenError::Dummy),
        (Mode::Transport, protocol) => return Ok(Payload::Upper { protocol, offset, length }),
        (Mode::Tunnel, protocol::IPV4) => Family::V4,
        (Mode::Tunnel, protocol::IPV6) => Family::V6,
        (Mode::Tunnel, _) => return Err(OpenError::NextHeader),
    };
    Ok(Payload::Packet(Inner { family, offset, length }))
}

#[cfg(test)]
mod tests;
