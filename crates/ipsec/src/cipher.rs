//! The cipher seam: all AEAD work of a batch goes through [`Cipher::seal`] and [`Cipher::open`].
//!
//! A call takes the jobs of one SA. Headers, trailers and nonces of the whole batch are written
//! before, because a cipher that reads what was stored just now, and narrower, stalls (FACTS
//! "The walk" 6). The seam only ciphers: it knows nothing of IP, and of ESP only what is
//! authenticated beside the text (RFC 4106 §5).

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use wire::{FrameId, Frames};
use zeroize::Zeroizing;

use crate::esp::{HEADER_BYTES, ICV_BYTES};
use crate::{KeyMaterial, SequenceNumbers, Suite};

mod self_test;
#[cfg(test)]
mod tests;

pub use self_test::{SelfTestError, SelfTestStep, self_test};

/// Bytes of the nonce: salt and IV (RFC 4106 §4).
const NONCE_BYTES: usize = 12;
/// Bytes authenticated beside the text: the ESP header, with ESN the number's high half in it.
const AAD_BYTES: usize = HEADER_BYTES;
const AAD_BYTES_EXTENDED: usize = HEADER_BYTES + 4;

/// One packet to seal in place. Offsets count from the start of the frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SealJob {
    /// The frame that holds the packet.
    pub frame: FrameId,
    /// Offset of the 8-byte ESP header, in front of the text.
    pub aad: u32,
    /// Offset of the text: what is encrypted, ESP trailer included. The ICV is written behind it.
    pub text: u32,
    /// Bytes of the text.
    pub text_length: u32,
    /// Salt and IV; the last 4 of the 16 bytes are not used.
    pub nonce: [u8; 16],
    /// The whole sequence number; with ESN its high half is authenticated.
    pub sequence: u64,
    /// The caller's own, untouched.
    pub row: u32,
}

/// One packet to open in place. Offsets count from the start of the frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OpenJob {
    /// The frame that holds the packet.
    pub frame: FrameId,
    /// Offset of the 8-byte ESP header, in front of the text.
    pub aad: u32,
    /// Offset of the text: what is decrypted. The ICV lies behind it.
    pub text: u32,
    /// Bytes of the text.
    pub text_length: u32,
    /// Salt and IV; the last 4 of the 16 bytes are not used.
    pub nonce: [u8; 16],
    /// The whole sequence number, as the replay window inferred it; to be committed there once
    /// the packet has authenticated. With ESN its high half is authenticated.
    pub sequence: u64,
    /// The caller's own, untouched.
    pub row: u32,
    /// The result: the ICV was right. Only then the text means anything.
    pub authentic: bool,
}

/// Without the nonce: the salt in it is key material.
impl fmt::Debug for SealJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SealJob { frame, aad, text, text_length, sequence, row, .. } = self;
        write!(f, "seal {frame:?} aad {aad} text {text}+{text_length} #{sequence} row {row}")
    }
}

/// Without the nonce: the salt in it is key material.
impl fmt::Debug for OpenJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenJob { frame, aad, text, text_length, sequence, row, authentic, .. } = self;
        write!(f, "open {frame:?} aad {aad} text {text}+{text_length} #{sequence} row {row}")?;
        write!(f, " authentic {authentic}")
    }
}

/// Sealing stopped at a job that does not lie in its frame, or that the cipher refused. The jobs
/// before it are sealed; it and those behind it are **in clear** and must never be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("job {job} of the batch could not be sealed")]
pub struct SealError {
    /// Index of the first job that is not sealed.
    pub job: usize,
}

/// The expanded key of one SA. No `Debug`, no `Clone`: it holds key bytes.
pub struct Cipher {
    backend: Arc<Backend>,
    /// The salt where it stands in a nonce: the highest 4 of 16 bytes.
    salt: Zeroizing<u128>,
    numbers: SequenceNumbers,
    suite: Suite,
}

impl Cipher {
    /// Expands a key, for an SA without ESN.
    pub fn new(material: &KeyMaterial) -> Cipher {
        let salt = material.salt().iter().fold(0, |salt, byte| salt << 8 | u128::from(*byte));
        Cipher {
            backend: Arc::new(Backend::new(material)),
            salt: Zeroizing::new(salt << 96),
            numbers: SequenceNumbers::Short,
            suite: material.suite(),
        }
    }

    /// The same for sequence numbers of this width; it decides what is authenticated.
    pub fn with_numbers(self, numbers: SequenceNumbers) -> Cipher {
        Cipher { numbers, ..self }
    }

    /// The same expanded key for the same SA at another place; there is still only one of it.
    pub(crate) fn share(&self) -> Cipher {
        let Cipher { numbers, suite, .. } = *self;
        Cipher { backend: self.backend.clone(), salt: self.salt.clone(), numbers, suite }
    }

    /// The library that does the work.
    pub fn backend_name(&self) -> &'static str {
        match &*self.backend {
            Backend::AwsLc(_) => "aws-lc-rs",
        }
    }

    /// Its algorithm.
    pub const fn suite(&self) -> Suite {
        self.suite
    }

    /// Encrypts the text of every job and writes its ICV behind it.
    ///
    /// The caller answers for it that no nonce comes twice under one key.
    ///
    /// # Errors
    /// [`SealError`]; the caller drops the job it names and all behind it.
    ///
    /// # Panics
    /// Only where [`Frames::bytes_mut`] does: a frame that is not one of `frames`.
    pub fn seal<F: Frames>(&self, frames: &mut F, jobs: &[SealJob]) -> Result<(), SealError> {
        for (index, job) in jobs.iter().enumerate() {
            let parts = Parts::of(frames.bytes_mut(job.frame), job.aad, job.text, job.text_length);
            let sealed = parts.is_some_and(|Parts { header, text, icv }| {
                let nonce = nonce(&job.nonce);
                match self.numbers {
                    SequenceNumbers::Short => self.backend.seal(nonce, header, text, icv),
                    SequenceNumbers::Extended => {
                        let aad = extended_aad(header, job.sequence);
                        self.backend.seal(nonce, &aad, text, icv)
                    }
                }
            });
            if !sealed {
                return Err(SealError { job: index });
            }
        }
        Ok(())
    }

    /// Checks the ICV of every job and decrypts its text; sets [`OpenJob::authentic`]. The text
    /// of a job that is not authentic is undefined afterwards. A job that does not lie in its
    /// frame is not authentic.
    ///
    /// # Panics
    /// Only where [`Frames::bytes_mut`] does: a frame that is not one of `frames`.
    pub fn open<F: Frames>(&self, frames: &mut F, jobs: &mut [OpenJob]) {
        for job in jobs {
            let parts = Parts::of(frames.bytes_mut(job.frame), job.aad, job.text, job.text_length);
            job.authentic = parts.is_some_and(|Parts { header, text, icv }| {
                let nonce = nonce(&job.nonce);
                match self.numbers {
                    SequenceNumbers::Short => self.backend.open(nonce, header, text, icv),
                    SequenceNumbers::Extended => {
                        let aad = extended_aad(header, job.sequence);
                        self.backend.open(nonce, &aad, text, icv)
                    }
                }
            });
        }
    }

    /// The nonce of a packet with this IV: salt ‖ IV ‖ 4 bytes that are not used.
    #[inline]
    pub(crate) fn nonce(&self, iv: u64) -> [u8; 16] {
        (*self.salt | u128::from(iv) << 32).to_be_bytes()
    }
}

/// What a job names of its frame.
struct Parts<'a> {
    header: &'a [u8; HEADER_BYTES],
    text: &'a mut [u8],
    icv: &'a mut [u8; ICV_BYTES],
}

impl<'a> Parts<'a> {
    /// `None` if a part does not lie in the frame, or the header not in front of the text.
    #[inline]
    fn of(frame: &'a mut [u8], aad: u32, text: u32, text_length: u32) -> Option<Parts<'a>> {
        let (front, behind) = frame.split_at_mut_checked(text as usize)?;
        let header = front.get(aad as usize..)?.first_chunk()?;
        let (text, behind) = behind.split_at_mut_checked(text_length as usize)?;
        Some(Parts { header, text, icv: behind.first_chunk_mut()? })
    }
}

#[inline]
fn nonce(padded: &[u8; 16]) -> &[u8; NONCE_BYTES] {
    padded.first_chunk().expect("12 of 16 bytes")
}

/// SPI ‖ the whole 64-bit sequence number (RFC 4106 §5).
#[inline]
fn extended_aad(header: &[u8; AAD_BYTES], sequence: u64) -> [u8; AAD_BYTES_EXTENDED] {
    let mut aad = [0; AAD_BYTES_EXTENDED];
    aad[..4].copy_from_slice(&header[..4]);
    aad[4..].copy_from_slice(&sequence.to_be_bytes());
    aad
}

/// The libraries that can stand behind the seam.
enum Backend {
    AwsLc(LessSafeKey),
}

impl Backend {
    fn new(material: &KeyMaterial) -> Backend {
        let algorithm = match material.suite() {
            Suite::Aes128Gcm => &AES_128_GCM,
            Suite::Aes256Gcm => &AES_256_GCM,
        };
        let key = UnboundKey::new(algorithm, material.key()).expect("KeyMaterial has the length");
        Backend::AwsLc(LessSafeKey::new(key))
    }

    #[inline]
    fn seal(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &mut [u8],
        icv: &mut [u8; ICV_BYTES],
    ) -> bool {
        match self {
            Backend::AwsLc(key) => {
                let nonce = Nonce::assume_unique_for_key(*nonce);
                key.seal_in_place_scatter(nonce, Aad::from(aad), text, &[], icv).is_ok()
            }
        }
    }

    #[inline]
    fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &mut [u8],
        icv: &[u8; ICV_BYTES],
    ) -> bool {
        match self {
            Backend::AwsLc(key) => {
                let nonce = Nonce::assume_unique_for_key(*nonce);
                key.open_in_place_separate_tag(nonce, Aad::from(aad), icv, text).is_ok()
            }
        }
    }
}
