//! Finds the parts of a job in its frame. Offsets may have any value; a part that does not lie in
//! the frame is refused here, once.

use super::{HEADER_BYTES, OpenJob, SealJob};
use crate::Suite;
use crate::suite::Encryption;

/// Bytes of a block of AES.
pub(super) const BLOCK_BYTES: usize = 16;

/// The offsets of a job of either kind.
#[derive(Clone, Copy)]
pub(super) struct Offsets {
    aad: u32,
    text: u32,
    text_length: u32,
}

impl From<&SealJob> for Offsets {
    #[inline]
    fn from(job: &SealJob) -> Offsets {
        Offsets { aad: job.aad, text: job.text, text_length: job.text_length }
    }
}

impl From<&OpenJob> for Offsets {
    #[inline]
    fn from(job: &OpenJob) -> Offsets {
        Offsets { aad: job.aad, text: job.text, text_length: job.text_length }
    }
}

/// The parts of a packet under an AEAD.
pub(super) struct AeadParts<'f> {
    pub(super) header: &'f [u8; HEADER_BYTES],
    pub(super) text: &'f mut [u8],
    pub(super) icv: &'f mut [u8; AeadParts::ICV_BYTES],
}

impl AeadParts<'_> {
    /// Every AEAD here has an ICV of this length.
    pub(super) const ICV_BYTES: usize = 16;
}

impl<'f> AeadParts<'f> {
    /// `None` if a part does not lie in the frame, or the header not in front of the text.
    #[inline]
    pub(super) fn of(frame: &'f mut [u8], job: Offsets) -> Option<AeadParts<'f>> {
        let (front, behind) = frame.split_at_mut_checked(job.text as usize)?;
        let header = front.get(job.aad as usize..)?.first_chunk()?;
        let (text, behind) = behind.split_at_mut_checked(job.text_length as usize)?;
        Some(AeadParts { header, text, icv: behind.first_chunk_mut()? })
    }
}

/// The parts of a packet under HMAC, with its text for AES-CBC.
pub(super) struct HmacParts<'f> {
    /// Header, IV, text, and the ICV behind it; nothing else.
    pub(super) packet: &'f mut [u8],
    /// The offset in `packet` at which the text starts.
    pub(super) text: usize,
    /// The offset in `packet` at which the text ends and the ICV starts.
    pub(super) icv: usize,
}

/// The demands of a suite with HMAC on its packets.
#[derive(Clone, Copy)]
pub(super) struct HmacLayout {
    encryption: Encryption,
    icv_bytes: usize,
}

impl HmacLayout {
    /// Bytes of a packet up to its ICV at most. No IP packet has room for as many beside its
    /// header and the ICV, and libraries that count in 16 bits can still do it.
    pub(super) const MAX_AUTHENTICATED_BYTES: usize = 65_520;

    /// Returns the layout of a suite with HMAC, or of [`Suite::Null`], whose ICV is empty.
    pub(super) const fn of(suite: Suite) -> HmacLayout {
        HmacLayout { encryption: suite.encryption(), icv_bytes: suite.icv_bytes() }
    }

    /// Bytes of the ICV.
    pub(super) const fn icv_bytes(self) -> usize {
        self.icv_bytes
    }

    /// `None` if a part does not lie in the frame, the header not in front of the text, or the
    /// text of AES-CBC is not whole blocks, one at least.
    #[inline]
    pub(super) fn parts<'f>(self, frame: &'f mut [u8], job: Offsets) -> Option<HmacParts<'f>> {
        let length = job.text_length as usize;
        let text = job.text.checked_sub(job.aad)? as usize;
        let icv = text.checked_add(length)?;
        let blocks = match self.encryption {
            Encryption::Cbc => length > 0 && length.is_multiple_of(BLOCK_BYTES),
            _ => true,
        };
        if text < HEADER_BYTES || icv > HmacLayout::MAX_AUTHENTICATED_BYTES || !blocks {
            return None;
        }
        let packet = frame.get_mut(job.aad as usize..)?.get_mut(..icv + self.icv_bytes)?;
        Some(HmacParts { packet, text, icv })
    }
}
