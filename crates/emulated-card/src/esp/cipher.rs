//! The card's ciphers, of RustCrypto. A key is wiped by whoever gave it; the schedules that are
//! made of it here are an emulation's and are not.

use std::sync::Arc;

use aes_gcm::aead::consts::{U12, U16};
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20poly1305::ChaCha20Poly1305;

/// Bytes of the integrity check value of all suites.
pub(super) const ICV: usize = 16;
/// Bytes of the IV of all suites.
pub(super) const IV: usize = 8;
/// Bytes of the salt behind a key (RFC 4106 §8.1, RFC 7634 §2).
const SALT: usize = 4;
/// Bytes of which the text is a multiple.
pub(super) const BLOCK: usize = 4;

/// The key of an SA, with its salt.
#[derive(Clone)]
pub(super) struct Key {
    aead: Arc<dyn Aead>,
    salt: [u8; SALT],
}

trait Aead: Send + Sync {
    fn seal(&self, nonce: [u8; 12], header: &[u8], text: &mut [u8]) -> Option<[u8; ICV]>;
    fn open(&self, nonce: [u8; 12], header: &[u8], text: &mut [u8], icv: [u8; ICV]) -> bool;
}

impl<A: AeadInOut<NonceSize = U12, TagSize = U16> + Send + Sync> Aead for A {
    fn seal(&self, nonce: [u8; 12], header: &[u8], text: &mut [u8]) -> Option<[u8; ICV]> {
        self.encrypt_inout_detached(&nonce.into(), header, text.into()).ok().map(Into::into)
    }

    fn open(&self, nonce: [u8; 12], header: &[u8], text: &mut [u8], icv: [u8; ICV]) -> bool {
        self.decrypt_inout_detached(&nonce.into(), header, text.into(), &icv.into()).is_ok()
    }
}

impl Key {
    /// The key of a suite. `None`: the card has not the suite, or the key has another length.
    pub(super) fn new(suite: &str, bytes: &[u8]) -> Option<Key> {
        let (key, salt) = bytes.split_last_chunk::<SALT>()?;
        fn made<A: Aead + KeyInit + 'static>(key: &[u8]) -> Option<Arc<dyn Aead>> {
            Some(Arc::new(A::new_from_slice(key).ok()?))
        }
        let aead = match suite {
            "aes-128-gcm" => made::<Aes128Gcm>(key)?,
            "aes-256-gcm" => made::<Aes256Gcm>(key)?,
            "chacha20-poly1305" => made::<ChaCha20Poly1305>(key)?,
            _ => return None,
        };
        Some(Key { aead, salt: *salt })
    }

    /// Encrypts in place; returns the integrity check value. `header` is SPI and number.
    pub(super) fn seal(&self, iv: [u8; IV], header: &[u8], text: &mut [u8]) -> Option<[u8; ICV]> {
        self.aead.seal(self.nonce(iv), header, text)
    }

    /// Decrypts in place; returns whether the integrity check value is right.
    pub(super) fn open(
        &self,
        iv: [u8; IV],
        header: &[u8],
        text: &mut [u8],
        icv: [u8; ICV],
    ) -> bool {
        self.aead.open(self.nonce(iv), header, text, icv)
    }

    fn nonce(&self, iv: [u8; IV]) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..SALT].copy_from_slice(&self.salt);
        nonce[SALT..].copy_from_slice(&iv);
        nonce
    }
}
