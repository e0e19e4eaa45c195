//! AEADs of ring, which wipes nothing by itself.

use std::hint::black_box;

use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};

use super::aead::{Aead, nonce_bytes};
use super::place::AeadParts;
use crate::{KeyMaterial, Suite};

/// Name and version of the library; `Cargo.toml` pins the version.
pub(super) const NAME: &str = "ring 0.17.14";

/// Bytes of the longest key.
const MOST_KEY_BYTES: usize = 32;

/// An expanded key of ring. It stays at one place of the heap and is overwritten on drop. No
/// `Debug`, no `Clone`: key bytes.
pub(super) struct RingKey(Box<LessSafeKey>);

impl RingKey {
    /// Expands a key. `None`: ring does not have the suite.
    pub(super) fn new(material: &KeyMaterial) -> Option<RingKey> {
        let algorithm = match material.suite() {
            Suite::Aes128Gcm => &AES_128_GCM,
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            _ => return None,
        };
        let key = expand(algorithm, material.key());
        // The same call once more, with nothing: its stack lies where that of the first one lay,
        // and key bytes with it.
        drop(RingKey(expand_nothing(algorithm)));
        Some(RingKey(key))
    }
}

impl Drop for RingKey {
    fn drop(&mut self) {
        *self.0 = *expand_nothing(self.0.algorithm());
        // A value that somebody looks at is written.
        black_box(&mut *self.0);
    }
}

/// Expands a key of the algorithm's length.
#[inline(never)]
fn expand(algorithm: &'static Algorithm, key: &[u8]) -> Box<LessSafeKey> {
    let key = UnboundKey::new(algorithm, key).expect("KeyMaterial has the length");
    Box::new(LessSafeKey::new(key))
}

/// Expands a key of zeros, of the same shape as any other key of the algorithm.
fn expand_nothing(algorithm: &'static Algorithm) -> Box<LessSafeKey> {
    expand(algorithm, &[0; MOST_KEY_BYTES][..algorithm.key_len()])
}

impl Aead for RingKey {
    #[inline]
    fn seal(
        &self,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &mut [u8; AeadParts::ICV_BYTES],
    ) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce_bytes(nonce));
        match self.0.seal_in_place_separate_tag(nonce, Aad::from(aad), text) {
            Ok(tag) => {
                icv.copy_from_slice(tag.as_ref());
                true
            }
            Err(_) => false,
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
        let nonce = Nonce::assume_unique_for_key(nonce_bytes(nonce));
        let icv = (*icv).into();
        self.0.open_in_place_separate_tag(nonce, Aad::from(aad), icv, text, 0..).is_ok()
    }
}
