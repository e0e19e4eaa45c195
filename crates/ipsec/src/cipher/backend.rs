//! The expanded keys of an SA, and the one place where a call finds its library.

use std::borrow::Cow;
use std::sync::OnceLock;

use wire::Frames;

use super::aead;
use super::aead_key::AeadKey;
use super::burst::BurstCbcHmac;
use super::by_size::BySize;
use super::cbc_hmac::CbcHmac;
use super::choice::Choice;
use super::kind::{BackendKind, ipsec_mb_name};
use super::place::HmacLayout;
use super::{OpenJob, SealError, SealJob};
use crate::{KeyMaterial, SequenceNumbers, Suite};

impl BackendKind {
    /// Returns whether this machine has it, and it the suite.
    pub fn has(self, suite: Suite) -> bool {
        let material = KeyMaterial::new(suite, &vec![0; suite.material_bytes()]);
        material.is_ok_and(|material| Backend::new(&material, Choice::One(self)).is_some())
    }

    /// Returns the first backend of [`BackendKind::ALL`] that has a suite. The result is the same
    /// on every start; [`Choice::of`] measures instead.
    pub fn first(suite: Suite) -> BackendKind {
        static FIRST: [OnceLock<BackendKind>; Suite::ALL.len()] =
            [const { OnceLock::new() }; Suite::ALL.len()];
        *FIRST[suite.place()].get_or_init(|| {
            let mut all = BackendKind::ALL.iter().copied();
            all.find(|kind| kind.has(suite)).expect("the last backend has every suite")
        })
    }
}

/// The expanded keys of one SA.
pub(super) enum Backend {
    /// Neither encryption nor integrity.
    Nothing,
    /// An AEAD of one library.
    Aead(AeadKey),
    /// An AEAD of two libraries.
    BySize(Box<BySize>),
    /// AES-CBC of RustCrypto, or none, with HMAC of aws-lc-rs.
    CbcHmac(Box<CbcHmac>),
    /// AES-CBC of ipsec-mb, or none, with its HMAC.
    MbCbcHmac(BurstCbcHmac),
}

impl Backend {
    /// `None`: this machine does not have a chosen backend, or it not the suite.
    pub(super) fn new(material: &KeyMaterial, choice: Choice) -> Option<Backend> {
        if !choice.kinds().all(BackendKind::is_available) {
            return None;
        }
        let suite = material.suite();
        match choice {
            Choice::One(_) if suite == Suite::Null => Some(Backend::Nothing),
            Choice::One(kind) if suite.is_aead() => AeadKey::new(material, kind).map(Backend::Aead),
            Choice::One(BackendKind::IpsecMb) => {
                BurstCbcHmac::new(material).map(Backend::MbCbcHmac)
            }
            Choice::One(BackendKind::Ring) => None,
            Choice::One(BackendKind::AwsLc) => {
                Some(Backend::CbcHmac(Box::new(CbcHmac::new(material)?)))
            }
            Choice::BySize { short, long, short_bytes } => {
                let keys = BySize::new(material, short, long, short_bytes)?;
                Some(Backend::BySize(Box::new(keys)))
            }
        }
    }

    /// Asks the processor for what it points to, as far as that is one step away.
    pub(super) fn ask(&self) {
        match self {
            Backend::Aead(key) => key.ask(),
            Backend::BySize(keys) => cpu::prefetch_all(&**keys),
            Backend::CbcHmac(keys) => cpu::prefetch_all(&**keys),
            Backend::Nothing | Backend::MbCbcHmac(_) => {}
        }
    }

    /// The libraries at work.
    pub(super) fn name(&self) -> Cow<'static, str> {
        match self {
            Backend::Nothing => "none".into(),
            Backend::Aead(key) => key.name().into(),
            Backend::BySize(keys) => keys.name().into(),
            Backend::CbcHmac(keys) if keys.encrypts() => "aws-lc-rs, RustCrypto AES-CBC".into(),
            Backend::CbcHmac(_) => BackendKind::AwsLc.name().into(),
            Backend::MbCbcHmac(_) => ipsec_mb_name().into(),
        }
    }

    // Once for many packets: out of line it leaves its caller the registers.
    #[inline(never)]
    pub(super) fn seal<F: Frames>(
        &self,
        numbers: SequenceNumbers,
        frames: &mut F,
        jobs: &[SealJob],
    ) -> Result<(), SealError> {
        match self {
            Backend::Aead(AeadKey::MbGcm(key)) => aead::seal(key, numbers, frames, jobs),
            Backend::Aead(AeadKey::MbChaCha20Poly1305(key)) => {
                aead::seal(key, numbers, frames, jobs)
            }
            Backend::Aead(AeadKey::Ring(key)) => aead::seal(key, numbers, frames, jobs),
            Backend::Aead(AeadKey::AwsLc(key)) => aead::seal(key, numbers, frames, jobs),
            Backend::BySize(keys) => aead::seal(&**keys, numbers, frames, jobs),
            Backend::MbCbcHmac(keys) => keys.seal(numbers, frames, jobs),
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
            Backend::Aead(AeadKey::MbGcm(key)) => aead::open(key, numbers, frames, jobs),
            Backend::Aead(AeadKey::MbChaCha20Poly1305(key)) => {
                aead::open(key, numbers, frames, jobs)
            }
            Backend::Aead(AeadKey::Ring(key)) => aead::open(key, numbers, frames, jobs),
            Backend::Aead(AeadKey::AwsLc(key)) => aead::open(key, numbers, frames, jobs),
            Backend::BySize(keys) => aead::open(&**keys, numbers, frames, jobs),
            Backend::MbCbcHmac(keys) => keys.open(numbers, frames, jobs),
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
