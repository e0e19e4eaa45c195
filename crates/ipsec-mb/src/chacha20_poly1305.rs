//! ChaCha20-Poly1305 (RFC 8439, in ESP RFC 7634): one packet a call, without state.

use crate::library::{Library, library};
use crate::memory::Wiped;
use crate::{ICV_BYTES, forget, same, sys};

const KEY_BYTES: usize = 32;
/// Bytes that one nonce can encrypt (RFC 8439 §2.8).
const MAX_TEXT_BYTES: u64 = (1 << 38) - 64;

/// A key of ChaCha20-Poly1305. Threads share it; it is wiped on drop. No `Debug`, no `Clone`: key
/// bytes.
pub struct ChaCha20Poly1305 {
    key: Wiped,
    library: &'static Library,
}

impl ChaCha20Poly1305 {
    /// Takes a key of 32 bytes. `None`: another length, or there is no library.
    pub fn new(key: &[u8]) -> Option<ChaCha20Poly1305> {
        let library = library()?;
        let key: &[u8; KEY_BYTES] = key.try_into().ok()?;
        let mut kept = Wiped::new(KEY_BYTES);
        kept.bytes_mut().copy_from_slice(key);
        Some(ChaCha20Poly1305 { key: kept, library })
    }

    /// Encrypts `text` in place and writes the ICV over it and `aad`.
    ///
    /// Of the nonce the first 12 bytes count: salt and IV (RFC 7634 §2). The caller answers for it
    /// that none comes twice under one key.
    ///
    /// # Panics
    /// With a text that is too long for the algorithm, 256 GiB.
    #[inline]
    pub fn seal(&self, nonce: &[u8; 16], aad: &[u8], text: &mut [u8], icv: &mut [u8; ICV_BYTES]) {
        check(text);
        // SAFETY: the manager is set up; key and nonce are at least as long as the 32 and 12
        // bytes that are read, the others as long as said.
        unsafe {
            sys::lockgate_mb_chacha20_poly1305_seal(
                self.library.manager.as_ptr(),
                self.key.as_ptr(),
                nonce.as_ptr(),
                aad.as_ptr(),
                aad.len(),
                text.as_mut_ptr(),
                text.len(),
                icv.as_mut_ptr(),
            );
        }
    }

    /// Decrypts `text` in place; whether `icv` is right for it and `aad`.
    ///
    /// Where it is not, the text is 0: what was not authenticated is never seen decrypted.
    ///
    /// # Panics
    /// With a text that is too long for the algorithm, 256 GiB.
    #[inline]
    #[must_use]
    pub fn open(
        &self,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &[u8; ICV_BYTES],
    ) -> bool {
        check(text);
        let mut computed = [0; ICV_BYTES];
        // SAFETY: as in `seal`.
        unsafe {
            sys::lockgate_mb_chacha20_poly1305_open(
                self.library.manager.as_ptr(),
                self.key.as_ptr(),
                nonce.as_ptr(),
                aad.as_ptr(),
                aad.len(),
                text.as_mut_ptr(),
                text.len(),
                computed.as_mut_ptr(),
            );
        }
        let authentic = same(&computed, icv);
        if !authentic {
            forget(text);
        }
        authentic
    }
}

#[inline]
fn check(text: &[u8]) {
    assert!(text.len() as u64 <= MAX_TEXT_BYTES, "a text too long for ChaCha20-Poly1305");
}
