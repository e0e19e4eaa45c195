//! The libraries that can stand behind the seam, and the one choice among them.

use std::sync::OnceLock;

use aws_lc_rs::aead::LessSafeKey;
use wire::Frames;

use super::burst::BurstCbcHmac;
use super::cbc_hmac::CbcHmac;
use super::place::HmacLayout;
use super::{OpenJob, SealError, SealJob, aead};
use crate::{KeyMaterial, SequenceNumbers, Suite};

/// A library, or a set of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BackendKind {
    /// Intel's multi-buffer library, where it was found and this processor can run it; on old
    /// processors without ChaCha20-Poly1305.
    IpsecMb,
    /// AWS-LC, with RustCrypto's AES-CBC: everywhere, and every suite.
    AwsLc,
}

impl BackendKind {
    /// All, the fastest first; the last is everywhere.
    pub const ALL: &[BackendKind] = &[BackendKind::IpsecMb, BackendKind::AwsLc];

    /// Its name, as options and results give it.
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::IpsecMb => "ipsec-mb",
            BackendKind::AwsLc => "aws-lc-rs",
        }
    }

    /// The backend with this name.
    pub fn from_name(name: &str) -> Option<BackendKind> {
        BackendKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// The version of a library that was found on the machine; `None` if it is not there, or was
    /// chosen when the program was built.
    pub fn version(self) -> Option<&'static str> {
        match self {
            BackendKind::IpsecMb => ipsec_mb::version(),
            BackendKind::AwsLc => None,
        }
    }

    /// Returns whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            BackendKind::IpsecMb => ipsec_mb::version().is_some(),
            BackendKind::AwsLc => true,
        }
    }
}

/// "ipsec-mb 1.3.0 (avx512 vaes)": the library and what it uses of the processor.
fn ipsec_mb_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let version = ipsec_mb::version().unwrap_or("not there");
        format!("ipsec-mb {version} ({})", ipsec_mb::architecture())
    })
}

/// The expanded keys of one SA in one library.
pub(super) enum Backend {
    /// Neither encryption nor integrity.
    Nothing,
    /// An AEAD of aws-lc-rs.
    Aead(LessSafeKey),
    /// AES-CBC of RustCrypto, or none, with HMAC of aws-lc-rs.
    CbcHmac(Box<CbcHmac>),
    /// AES-GCM of ipsec-mb.
    MbGcm(ipsec_mb::Gcm),
    /// ChaCha20-Poly1305 of ipsec-mb.
    MbChaCha20Poly1305(ipsec_mb::ChaCha20Poly1305),
    /// AES-CBC of ipsec-mb, or none, with its HMAC.
    MbCbcHmac(BurstCbcHmac),
}

impl Backend {
    /// `None`: this machine does not have it, or it not the suite.
    pub(super) fn new(material: &KeyMaterial, kind: BackendKind) -> Option<Backend> {
        if !kind.is_available() {
            return None;
        }
        match (kind, material.suite()) {
            (_, Suite::Null) => Some(Backend::Nothing),
            (BackendKind::IpsecMb, Suite::Aes128Gcm | Suite::Aes192Gcm | Suite::Aes256Gcm) => {
                ipsec_mb::Gcm::new(material.key()).map(Backend::MbGcm)
            }
            (BackendKind::IpsecMb, Suite::ChaCha20Poly1305) => {
                ipsec_mb::ChaCha20Poly1305::new(material.key()).map(Backend::MbChaCha20Poly1305)
            }
            (BackendKind::IpsecMb, _) => BurstCbcHmac::new(material).map(Backend::MbCbcHmac),
            (BackendKind::AwsLc, _) => aead::portable(material)
                .map(Backend::Aead)
                .or_else(|| Some(Backend::CbcHmac(Box::new(CbcHmac::new(material)?)))),
        }
    }

    /// The libraries at work.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Backend::Nothing => "none",
            Backend::CbcHmac(keys) if keys.encrypts() => "aws-lc-rs, RustCrypto AES-CBC",
            Backend::Aead(_) | Backend::CbcHmac(_) => BackendKind::AwsLc.name(),
            Backend::MbGcm(_) | Backend::MbChaCha20Poly1305(_) | Backend::MbCbcHmac(_) => {
                ipsec_mb_name()
            }
        }
    }

    pub(super) fn seal<F: Frames>(
        &self,
        numbers: SequenceNumbers,
        frames: &mut F,
        jobs: &[SealJob],
    ) -> Result<(), SealError> {
        match self {
            Backend::MbGcm(key) => aead::seal(key, numbers, frames, jobs),
            Backend::MbChaCha20Poly1305(key) => aead::seal(key, numbers, frames, jobs),
            Backend::MbCbcHmac(keys) => keys.seal(numbers, frames, jobs),
            Backend::Aead(key) => aead::seal(key, numbers, frames, jobs),
            Backend::CbcHmac(keys) => keys.seal(numbers, frames, jobs),
            Backend::Nothing => {
                let mut lies = |job: &SealJob| {
                    NOTHING.parts(frames.bytes_mut(job.frame), job.into()).is_some()
                };
                jobs.iter().position(|job| !lies(job)).map_or(Ok(()), |job| Err(SealError { job }))
            }
        }
    }

    pub(super) fn open<F: Frames>(
        &self,
        numbers: SequenceNumbers,
        frames: &mut F,
        jobs: &mut [OpenJob],
    ) {
        match self {
            Backend::MbGcm(key) => aead::open(key, numbers, frames, jobs),
            Backend::MbChaCha20Poly1305(key) => aead::open(key, numbers, frames, jobs),
            Backend::MbCbcHmac(keys) => keys.open(numbers, frames, jobs),
            Backend::Aead(key) => aead::open(key, numbers, frames, jobs),
            Backend::CbcHmac(keys) => keys.open(numbers, frames, jobs),
            Backend::Nothing => {
                for job in jobs {
                    let frame = frames.bytes_mut(job.frame);
                    job.authentic = NOTHING.parts(frame, (&*job).into()).is_some();
                }
            }
        }
    }
}

/// A packet of [`Backend::Nothing`] has to lie in its frame all the same.
const NOTHING: HmacLayout = HmacLayout::of(Suite::Null);
