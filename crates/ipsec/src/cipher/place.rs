//! Where in its frame the parts of a job lie. Offsets may say anything; what does not lie in the
//! frame is refused here, once.

use super::{HEADER_BYTES, OpenJob, SealJob};

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
    /// Where in `packet` the text starts.
    pub(super) text: usize,
    /// Where in `packet` the text ends and the ICV starts.
    pub(super) icv: usize,
}

impl<'f> HmacParts<'f> {
    /// `None` if a part does not lie in the frame, the header not in front of the text, or the
    /// text is not a multiple of `block` bytes.
    #[inline]
    pub(super) fn of(
        frame: &'f mut [u8],
        job: Offsets,
        icv_bytes: usize,
        block: usize,
    ) -> Option<HmacParts<'f>> {
        let length = job.text_length as usize;
        let text = job.text.checked_sub(job.aad)? as usize;
        if text < HEADER_BYTES || !length.is_multiple_of(block) {
            return None;
        }
        let icv = text.checked_add(length)?;
        let packet = frame.get_mut(job.aad as usize..)?.get_mut(..icv.checked_add(icv_bytes)?)?;
        Some(HmacParts { packet, text, icv })
    }
}
