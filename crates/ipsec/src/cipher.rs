//! The cipher seam: all cryptographic work of a batch goes through [`Cipher::seal`] and
//! [`Cipher::open`].
//!
//! A call takes the jobs of one SA. Headers, trailers, IVs and nonces of the whole batch are
//! written before, because a cipher that reads what was stored just now, and narrower, stalls.
//! The seam only ciphers: it knows nothing of IP, and of ESP only what is authenticated beside the
//! text.
//!
//! ```text
//! AEAD        aad: SPI ‖ sequence number        authenticated: aad (with ESN all 64 bits of the
//!             text, ICV 16 behind it            number, RFC 4106 §5), text
//! CBC, NULL   aad: SPI ‖ sequence number ‖ IV   authenticated: from aad to the end of the text,
//! with HMAC   text, ICV behind it               with ESN the number's high half behind it, which
//!                                               is not sent (RFC 4303 §2.2.1)
//! ```
//! The library is chosen once, when a key is expanded; each call looks the choice up once and then
//! goes over its jobs. An AEAD of two libraries, one for short and one for long texts, looks it up
//! for each job ([`Choice`]).
//!
//! Not here: where a packet's IV is written, padding, sequence numbers and replay windows.

use std::borrow::Cow;
use std::sync::Arc;

use wire::Frames;
use zeroize::Zeroizing;

use crate::job::{OpenJob, SealJob};
use crate::layout::HEADER_BYTES;
use crate::sequence::SequenceNumbers;
use crate::suite::{Encryption, KeyMaterial, Suite};

mod aead;
mod aead_key;
mod backend;
mod burst;
mod by_size;
mod cbc_hmac;
mod choice;
mod iv;
mod kind;
mod measure;
mod place;
mod self_test;
#[cfg(test)]
mod tests;
mod trial;
mod wiped_ring;

use backend::Backend;
use iv::UnpredictableIv;

pub use choice::Choice;
pub use kind::BackendKind;
pub use self_test::{SelfTestError, SelfTestStep, self_test};

/// Sealing stopped at a job that does not lie in its frame, whose text is not whole blocks, or
/// that the cipher refused. The jobs before it are sealed; it and those behind it are **in clear**
/// and must never be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("job {job} of the batch could not be sealed")]
pub struct SealError {
    /// Index of the first job that is not sealed.
    pub job: usize,
}

/// Makes what a library keeps for each thread now, so that the thread's first packet does not wait
/// for it: ipsec-mb tests itself, for half a millisecond. A thread that has packets to cipher calls
/// it before them; AES-GCM needs nothing of it.
pub fn prepare_thread() {
    ipsec_mb::prepare_thread();
}

/// The expanded key of one SA. No `Debug`, no `Clone`: it holds key bytes.
pub struct Cipher {
    backend: Arc<Backend>,
    ivs: Ivs,
    numbers: SequenceNumbers,
    suite: Suite,
}

/// The source of a packet's IV.
#[derive(Clone)]
enum Ivs {
    /// The sequence number (RFC 4106 §3.1, RFC 7634 §2). The value is the salt at its place in a
    /// nonce: the highest 4 of 16 bytes.
    Counter(Zeroizing<u128>),
    /// The sequence number, encrypted (RFC 3602 §3).
    Unpredictable(Arc<UnpredictableIv>),
    /// The suite has no IV.
    None,
}

impl Cipher {
    /// Asks the processor for the expanded key, ahead of its use. Level 0: what the SA points to;
    /// 1: what that points to, once level 0 is there.
    pub fn ask(&self, level: u32) {
        match level {
            0 => cpu::prefetch_all(&*self.backend),
            _ => self.backend.ask(),
        }
    }

    /// Expands a key on the best backends of this machine, for an SA without ESN. The first key of
    /// an AEAD after the self-test measures them ([`Choice::of`]).
    ///
    /// # Panics
    /// If the operating system has no random bytes, for the IVs of AES-CBC or for the measurement.
    pub fn new(material: &KeyMaterial) -> Cipher {
        Cipher::with_choice(material, Choice::of(material.suite()))
            .expect("what was measured is there")
    }

    /// Expands a key on the first backend that has its suite, without measuring: where nothing is
    /// ciphered, or runs must be alike.
    ///
    /// # Panics
    /// As [`Cipher::new`].
    pub fn on_first_backend(material: &KeyMaterial) -> Cipher {
        let mut all = BackendKind::ALL.iter();
        all.find_map(|kind| Cipher::with_backend(material, *kind))
            .expect("the last backend has every suite")
    }

    /// Expands a key on this backend, for an SA without ESN. `None`: this machine does not have
    /// it, or it not the suite. For tests, the self-test and comparisons.
    ///
    /// # Panics
    /// As [`Cipher::new`].
    pub fn with_backend(material: &KeyMaterial, kind: BackendKind) -> Option<Cipher> {
        Cipher::with_choice(material, Choice::One(kind))
    }

    /// Expands a key on these backends, for an SA without ESN. `None`: this machine does not have
    /// one of them, or it not the suite; two of them have only AEADs.
    ///
    /// # Panics
    /// As [`Cipher::new`].
    pub fn with_choice(material: &KeyMaterial, choice: Choice) -> Option<Cipher> {
        let suite = material.suite();
        let ivs = match suite.encryption() {
            Encryption::Gcm | Encryption::ChaCha20Poly1305 => {
                let salt =
                    material.salt().iter().fold(0, |salt, byte| salt << 8 | u128::from(*byte));
                Ivs::Counter(Zeroizing::new(salt << 96))
            }
            Encryption::Cbc => Ivs::Unpredictable(Arc::new(UnpredictableIv::fresh())),
            Encryption::Null => Ivs::None,
        };
        let backend = Arc::new(Backend::new(material, choice)?);
        Some(Cipher { backend, ivs, numbers: SequenceNumbers::Short, suite })
    }

    /// Returns this cipher for sequence numbers of this width, which decides what is authenticated.
    pub fn with_numbers(self, numbers: SequenceNumbers) -> Cipher {
        Cipher { numbers, ..self }
    }

    /// Returns a handle to this expanded key for the same SA at another place; the key, and the key
    /// that makes its IVs, exist only once.
    pub(crate) fn share(&self) -> Cipher {
        let Cipher { numbers, suite, .. } = *self;
        Cipher { backend: self.backend.clone(), ivs: self.ivs.clone(), numbers, suite }
    }

    /// The libraries that do the work, with the version where it is known, and which of two does
    /// which texts: "ipsec-mb 1.3.0 (avx2) up to 512 B, ring 0.17.14 above".
    pub fn backend_name(&self) -> Cow<'static, str> {
        self.backend.name()
    }

    /// Returns the algorithms of the cipher.
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
        self.backend.seal(self.numbers, frames, jobs)
    }

    /// Checks the ICV of every job and decrypts its text; sets [`OpenJob::authentic`]. The text
    /// of a job that is not authentic is undefined afterwards. A job that does not lie in its
    /// frame, or whose text is not whole blocks, is not authentic.
    ///
    /// [`Suite::Null`] has nothing to check: every job that lies in its frame is authentic.
    ///
    /// # Panics
    /// Only where [`Frames::bytes_mut`] does: a frame that is not one of `frames`.
    pub fn open<F: Frames>(&self, frames: &mut F, jobs: &mut [OpenJob]) {
        self.backend.open(self.numbers, frames, jobs);
    }

    /// The nonce of the packet with this sequence number. The IV that the packet carries is the 8
    /// bytes behind the salt, all 16 bytes, or nothing.
    ///
    /// As a number whose bytes in memory are those that a job takes: so it stays in registers until
    /// it is stored in its place, where an array would be built on the stack in two halves and
    /// loaded whole at once, which stalls.
    ///
    /// Cost: nothing to speak of; under AES-CBC the encryption of one block.
    #[inline]
    pub(crate) fn nonce(&self, sequence: u64) -> u128 {
        match &self.ivs {
            Ivs::Counter(salt) => counter_nonce(salt, sequence),
            Ivs::Unpredictable(ivs) => u128::from_ne_bytes(ivs.of(sequence)),
            Ivs::None => 0,
        }
    }

    /// The salt of a suite whose IV is the sequence number, as it lies in a nonce; zeros of
    /// another.
    #[inline(always)]
    pub(crate) fn salt(&self) -> [u8; 4] {
        match &self.ivs {
            Ivs::Counter(salt) => ((**salt >> 96) as u32).to_be_bytes(),
            Ivs::Unpredictable(_) | Ivs::None => [0; 4],
        }
    }

    /// The nonce of a received packet that carries this IV, of [`Suite::iv_bytes`]. What is
    /// missing of it counts as 0.
    #[inline]
    pub(crate) fn received_nonce(&self, iv: &[u8]) -> u128 {
        match &self.ivs {
            Ivs::Counter(salt) => {
                counter_nonce(salt, iv.first_chunk().map_or(0, |iv| u64::from_be_bytes(*iv)))
            }
            Ivs::Unpredictable(_) => iv.first_chunk().map_or(0, |iv| u128::from_ne_bytes(*iv)),
            Ivs::None => 0,
        }
    }
}

/// Salt ‖ IV ‖ 4 bytes that are not used (RFC 4106 §4, RFC 7634 §2).
#[inline]
fn counter_nonce(salt: &u128, iv: u64) -> u128 {
    (salt | u128::from(iv) << 32).to_be()
}

/// The number's high half: what HMAC authenticates behind the text with ESN.
#[inline]
fn high_half(numbers: SequenceNumbers, sequence: u64) -> Option<[u8; 4]> {
    match numbers {
        SequenceNumbers::Short => None,
        SequenceNumbers::Extended => Some(((sequence >> 32) as u32).to_be_bytes()),
    }
}
