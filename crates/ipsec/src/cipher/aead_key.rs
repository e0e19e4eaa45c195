//! The key of an AEAD in any of the libraries.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, CHACHA20_POLY1305, LessSafeKey, UnboundKey,
};

use super::aead::Aead;
use super::kind::{BackendKind, ipsec_mb_name};
use super::place::AeadParts;
use super::wiped_ring::{self, RingKey};
use crate::suite::Encryption;
use crate::{KeyMaterial, Suite};

/// The key of an AEAD in one library. As an [`Aead`] itself it asks which one for every packet.
pub(super) enum AeadKey {
    AwsLc(LessSafeKey),
    Ring(RingKey),
    MbGcm(ipsec_mb::Gcm),
    MbChaCha20Poly1305(ipsec_mb::ChaCha20Poly1305),
}

impl AeadKey {
    /// `None`: this machine does not have the backend, or it not the suite as an AEAD.
    pub(super) fn new(material: &KeyMaterial, kind: BackendKind) -> Option<AeadKey> {
        match (kind, material.suite().encryption()) {
            (BackendKind::IpsecMb, Encryption::Gcm) => {
                ipsec_mb::Gcm::new(material.key()).map(AeadKey::MbGcm)
            }
            (BackendKind::IpsecMb, Encryption::ChaCha20Poly1305) => {
                ipsec_mb::ChaCha20Poly1305::new(material.key()).map(AeadKey::MbChaCha20Poly1305)
            }
            (BackendKind::IpsecMb, Encryption::Cbc | Encryption::Null) => None,
            (BackendKind::Ring, _) => RingKey::new(material).map(AeadKey::Ring),
            (BackendKind::AwsLc, _) => portable(material).map(AeadKey::AwsLc),
        }
    }

    /// Asks the processor for what the key points to.
    pub(super) fn ask(&self) {
        if let AeadKey::MbGcm(key) = self {
            key.ask();
        }
    }

    /// The library with its version, if that is known.
    pub(super) fn name(&self) -> &'static str {
        match self {
            AeadKey::AwsLc(_) => BackendKind::AwsLc.name(),
            AeadKey::Ring(_) => wiped_ring::NAME,
            AeadKey::MbGcm(_) | AeadKey::MbChaCha20Poly1305(_) => ipsec_mb_name(),
        }
    }
}

impl Aead for AeadKey {
    #[inline]
    fn seal(
        &self,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &mut [u8; AeadParts::ICV_BYTES],
    ) -> bool {
        match self {
            AeadKey::AwsLc(key) => key.seal(nonce, aad, text, icv),
            AeadKey::Ring(key) => key.seal(nonce, aad, text, icv),
            AeadKey::MbGcm(key) => Aead::seal(key, nonce, aad, text, icv),
            AeadKey::MbChaCha20Poly1305(key) => Aead::seal(key, nonce, aad, text, icv),
        }
    }

    #[inline]
    fn open(
        &self,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &[u8; AeadParts::ICV_BYTES],
    ) -> bool {
        match self {
            AeadKey::AwsLc(key) => key.open(nonce, aad, text, icv),
            AeadKey::Ring(key) => key.open(nonce, aad, text, icv),
            AeadKey::MbGcm(key) => Aead::open(key, nonce, aad, text, icv),
            AeadKey::MbChaCha20Poly1305(key) => Aead::open(key, nonce, aad, text, icv),
        }
    }
}

/// The key of an AEAD in aws-lc-rs. `None` if the suite is not one.
fn portable(material: &KeyMaterial) -> Option<LessSafeKey> {
    let algorithm = match material.suite() {
        Suite::Aes128Gcm => &AES_128_GCM,
        Suite::Aes192Gcm => &AES_192_GCM,
        Suite::Aes256Gcm => &AES_256_GCM,
        Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        _ => return None,
    };
    let key = UnboundKey::new(algorithm, material.key()).expect("KeyMaterial has the length");
    Some(LessSafeKey::new(key))
}
