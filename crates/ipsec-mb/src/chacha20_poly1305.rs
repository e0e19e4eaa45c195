//! ChaCha20-Poly1305 (RFC 8439, in ESP RFC 7634): one packet a call.

use crate::lanes::{self, Failure, Lanes};
use crate::library::{Library, library};
use crate::memory::Wiped;
use crate::sys::{self, Architecture, Direction, Row};
use crate::{ICV_BYTES, forget, same};

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
    /// Takes a key of 32 bytes. `None`: another length, there is no library, or a processor
    /// without AVX2: for such the library's code reads up to 15 bytes behind the text.
    pub fn new(key: &[u8]) -> Option<ChaCha20Poly1305> {
        let library = library().filter(|library| library.architecture >= Architecture::Avx2)?;
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
        self.call(Direction::Seal, nonce, aad, text, icv);
    }

    /// Decrypts `text` in place; returns whether `icv` is right for it and `aad`.
    ///
    /// If it is not, the text is zeroed: text that was not authenticated is never seen decrypted.
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
        let mut computed = [0; ICV_BYTES];
        let outcome = self.call(Direction::Open, nonce, aad, text, &mut computed);
        let authentic = outcome == Outcome::Done && same(&computed, icv);
        if !authentic {
            forget(text);
        }
        authentic
    }

    fn call(
        &self,
        direction: Direction,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &mut [u8; ICV_BYTES],
    ) -> Outcome {
        assert!(text.len() as u64 <= MAX_TEXT_BYTES, "a text too long for ChaCha20-Poly1305");
        let row = Row {
            text: text.as_mut_ptr(),
            text_bytes: text.len(),
            iv: nonce.as_ptr(),
            icv: icv.as_mut_ptr(),
            ..Row::NONE
        };
        let key = self.key.as_ptr();
        // SAFETY: key, nonce, text and ICV are as long as they must be, and borrowed for this call;
        // `new` has seen AVX2. Threat: a read behind the text, a write behind the ICV.
        let job = |lanes: &mut Lanes| unsafe { lanes.chacha20_poly1305(direction, key, &row, aad) };
        match lanes::with(job) {
            Ok(()) => return Outcome::Done,
            Err(Failure::NoLanes) => {}
            // Whoever gets this packet cannot open it.
            Err(Failure::Unfinished) => {
                forget(text);
                icv.fill(0);
                return Outcome::Undone;
            }
        }
        let manager = self.library.manager.as_ptr();
        // SAFETY: as above, and the manager is set up. Threat: as above.
        unsafe {
            sys::lockgate_mb_chacha20_poly1305_direct(
                manager,
                direction,
                key,
                &row,
                aad.as_ptr(),
                aad.len(),
            );
        }
        Outcome::Done
    }
}

/// The result of a call to the library.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// Failed: text and ICV are zeroed.
    Undone,
}
