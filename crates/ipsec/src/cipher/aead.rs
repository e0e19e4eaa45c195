//! AEADs over the jobs of one SA.

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce};
use wire::{BATCH, FrameId, Frames};

use super::place::AeadParts;
use super::{HEADER_BYTES, OpenJob, SealError, SealJob};
use crate::SequenceNumbers;

/// Bytes that a nonce uses of the 16 it lies in: salt and IV.
const NONCE_BYTES: usize = 12;
/// Bytes of SPI and 64-bit sequence number (RFC 4106 §5).
const EXTENDED_AAD_BYTES: usize = HEADER_BYTES + 4;

/// One packet at a time under an expanded key. Every library's key is one, so that the loops over
/// jobs are compiled for each without a choice inside.
pub(super) trait Aead {
    /// Encrypts in place and writes the ICV. Whether it did: libraries refuse impossible lengths.
    fn seal(
        &self,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &mut [u8; AeadParts::ICV_BYTES],
    ) -> bool;

    /// Checks the ICV and decrypts in place. Whether it was right; if not, `text` is undefined.
    fn open(
        &self,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &[u8; AeadParts::ICV_BYTES],
    ) -> bool;
}

/// Seals job by job; see [`Cipher::seal`](super::Cipher::seal).
pub(super) fn seal<A: Aead, F: Frames>(
    aead: &A,
    numbers: SequenceNumbers,
    frames: &mut F,
    jobs: &[SealJob],
) -> Result<(), SealError> {
    for (group, jobs) in jobs.chunks(BATCH).enumerate() {
        let named = jobs.iter().map(|job| (job.frame, job.aad, job.sequence));
        let extended = ExtendedAads::of(numbers, frames, named);
        for (row, job) in jobs.iter().enumerate() {
            if let Some(next) = jobs.get(row + AHEAD) {
                fetch(frames, next.frame, next.text, next.text_length);
            }
            let parts = AeadParts::of(frames.bytes_mut(job.frame), job.into());
            let sealed = parts.is_some_and(|AeadParts { header, text, icv }| {
                aead.seal(&job.nonce, extended.aad(row, header), text, icv)
            });
            if !sealed {
                return Err(SealError { job: group * BATCH + row });
            }
        }
    }
    Ok(())
}

/// Opens job by job; see [`Cipher::open`](super::Cipher::open).
pub(super) fn open<A: Aead, F: Frames>(
    aead: &A,
    numbers: SequenceNumbers,
    frames: &mut F,
    jobs: &mut [OpenJob],
) {
    for jobs in jobs.chunks_mut(BATCH) {
        let named = jobs.iter().map(|job| (job.frame, job.aad, job.sequence));
        let extended = ExtendedAads::of(numbers, frames, named);
        for row in 0..jobs.len() {
            if let Some(next) = jobs.get(row + AHEAD) {
                fetch(frames, next.frame, next.text, next.text_length);
            }
            let job = &mut jobs[row];
            let parts = AeadParts::of(frames.bytes_mut(job.frame), (&*job).into());
            job.authentic = parts.is_some_and(|AeadParts { header, text, icv }| {
                aead.open(&job.nonce, extended.aad(row, header), text, icv)
            });
        }
    }
}

/// Number of packets by which the prefetch of texts runs ahead of the cipher: the time of one
/// packet under the cipher is about that of a line from memory.
const AHEAD: usize = 1;
/// Bytes of a cache line.
const LINE: u32 = 64;
/// Maximum bytes of a text that are prefetched. A longer text is an error of the caller, and is
/// refused when the job's turn comes.
const MOST_FETCHED: u32 = 65_536;

/// Prefetches the lines of a text, but the first, which the caller has just written to. Where they
/// are in the core's own cache it costs an instruction or two a line; where they are not, the
/// cipher would wait for each.
#[inline]
fn fetch<F: Frames>(frames: &F, frame: FrameId, text: u32, length: u32) {
    // No `step_by` over a range: for a short text that costs a dozen instructions.
    let length = length.min(MOST_FETCHED);
    let (mut at, end) = (text.saturating_add(LINE), text.saturating_add(length));
    while at < end {
        frames.prefetch(frame, at);
        at = at.saturating_add(LINE);
    }
}

/// The AAD of each packet of a group with ESN, written before the first of them is ciphered: a
/// cipher that reads what was stored just now waits for it.
struct ExtendedAads(Option<[[u8; EXTENDED_AAD_BYTES]; BATCH]>);

impl ExtendedAads {
    /// SPI ‖ the whole 64-bit sequence number (RFC 4106 §5) of at most [`BATCH`] packets, each
    /// named by its frame, the place of its header in it, and its number. One whose header does
    /// not lie in its frame is not ciphered, and so nor is what stands here for it.
    #[inline]
    fn of<F: Frames>(
        numbers: SequenceNumbers,
        frames: &F,
        packets: impl Iterator<Item = (FrameId, u32, u64)>,
    ) -> ExtendedAads {
        if numbers == SequenceNumbers::Short {
            return ExtendedAads(None);
        }
        let mut aads = [[0; EXTENDED_AAD_BYTES]; BATCH];
        for (into, (frame, header, sequence)) in aads.iter_mut().zip(packets) {
            let spi = frames.bytes(frame).get(header as usize..).and_then(|it| it.first_chunk());
            into[..4].copy_from_slice(spi.unwrap_or(&[0; 4]));
            into[4..].copy_from_slice(&sequence.to_be_bytes());
        }
        ExtendedAads(Some(aads))
    }

    /// Returns the AAD of a packet of the group; without ESN it is the header itself.
    #[inline]
    fn aad<'a>(&'a self, row: usize, header: &'a [u8; HEADER_BYTES]) -> &'a [u8] {
        match &self.0 {
            None => header,
            Some(aads) => &aads[row],
        }
    }
}

impl Aead for LessSafeKey {
    #[inline]
    fn seal(
        &self,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &mut [u8; AeadParts::ICV_BYTES],
    ) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce_bytes(nonce));
        self.seal_in_place_scatter(nonce, Aad::from(aad), text, &[], icv).is_ok()
    }

    #[inline]
    fn open(
        &self,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &[u8; AeadParts::ICV_BYTES],
    ) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce_bytes(nonce));
        self.open_in_place_separate_tag(nonce, Aad::from(aad), icv, text).is_ok()
    }
}

/// Salt and IV: the bytes of a job's nonce that an AEAD uses.
#[inline]
pub(super) fn nonce_bytes(nonce: &[u8; 16]) -> [u8; NONCE_BYTES] {
    *nonce.first_chunk().expect("12 of 16 bytes")
}

/// The AEADs of ipsec-mb have the functions of the trait under its names; sealing never fails.
macro_rules! of_ipsec_mb {
    ($($key:ty),*) => {$(
        impl Aead for $key {
            #[inline]
            fn seal(
                &self,
                nonce: &[u8; 16],
                aad: &[u8],
                text: &mut [u8],
                icv: &mut [u8; AeadParts::ICV_BYTES],
            ) -> bool {
                <$key>::seal(self, nonce, aad, text, icv);
                true
            }

            #[inline]
            fn open(
                &self,
                nonce: &[u8; 16],
                aad: &[u8],
                text: &mut [u8],
                icv: &[u8; AeadParts::ICV_BYTES],
            ) -> bool {
                <$key>::open(self, nonce, aad, text, icv)
            }
        }
    )*};
}

of_ipsec_mb!(ipsec_mb::Gcm, ipsec_mb::ChaCha20Poly1305);
