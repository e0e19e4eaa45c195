//! AES-GCM (NIST SP 800-38D, RFC 4106): one packet a call, without state.

use std::mem::MaybeUninit;

use crate::library::library;
use crate::memory::Wiped;
use crate::sys::{self, Direction, GcmFn};
use crate::{ICV_BYTES, same};

/// Bytes that the library wants for the state of a packet, and somewhat more: as in `c/shim.c`,
/// which does not compile if they are too few.
const CONTEXT_BYTES: usize = 128;
/// Bytes that one nonce encrypts: fewer than the 2³⁶ − 32 of SP 800-38D §5.2.1.1, as the library
/// has it.
const MAX_TEXT_BYTES: u64 = (1 << 36) - 33;

#[repr(C, align(64))]
struct Context(MaybeUninit<[u8; CONTEXT_BYTES]>);

/// An expanded key of AES-GCM, 128, 192 or 256 bits. Threads share it; it is wiped on drop. No
/// `Debug`, no `Clone`: key bytes.
pub struct Gcm {
    expanded: Wiped,
    seal: GcmFn,
    open: GcmFn,
}

impl Gcm {
    /// Expands a key of 16, 24 or 32 bytes. `None`: another length, or there is no library.
    pub fn new(key: &[u8]) -> Option<Gcm> {
        let library = library()?;
        let mut expanded = Wiped::new(sys::lockgate_mb_gcm_key_bytes());
        let (mut seal, mut open) = (None, None);
        // SAFETY: the manager is set up, the key is as long as said, the memory as long as the
        // library asked for; the functions are written or left. Threat: a write behind the memory,
        // a read behind the key.
        let refused = unsafe {
            sys::lockgate_mb_gcm(
                library.manager.as_ptr(),
                key.as_ptr(),
                key.len(),
                expanded.as_mut_ptr(),
                &mut seal,
                &mut open,
            )
        };
        (refused == 0).then_some(Gcm { expanded, seal: seal?, open: open? })
    }

    /// Asks the processor for the expanded key, ahead of its use.
    #[inline]
    pub fn ask(&self) {
        self.expanded.ask();
    }

    /// Encrypts `text` in place and writes the ICV over it and `aad`.
    ///
    /// Of the nonce the first 12 bytes count: salt and IV (RFC 4106 §4). The caller answers for it
    /// that none comes twice under one key.
    ///
    /// # Panics
    /// With a text that is too long for the mode, 64 GiB.
    #[inline]
    pub fn seal(&self, nonce: &[u8; 16], aad: &[u8], text: &mut [u8], icv: &mut [u8; ICV_BYTES]) {
        self.call(Direction::Seal, nonce, aad, text, icv);
    }

    /// Decrypts `text` in place; returns whether `icv` is right for it and `aad`.
    ///
    /// If it is not, the text is zeroed: text that was not authenticated is never seen decrypted.
    ///
    /// # Panics
    /// With a text that is too long for the mode, 64 GiB.
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
        self.call(Direction::Open, nonce, aad, text, &mut computed);
        let authentic = same(&computed, icv);
        if !authentic {
            crate::forget(text);
        }
        authentic
    }

    #[inline]
    fn call(
        &self,
        direction: Direction,
        nonce: &[u8; 16],
        aad: &[u8],
        text: &mut [u8],
        icv: &mut [u8; ICV_BYTES],
    ) {
        // Such a text the library would leave as it is, saying nothing.
        assert!(text.len() as u64 <= MAX_TEXT_BYTES, "a text too long for AES-GCM");
        let function = match direction {
            Direction::Seal => self.seal,
            Direction::Open => self.open,
        };
        let mut context = Context(MaybeUninit::uninit());
        let bytes = text.as_mut_ptr();
        // SAFETY: the key was expanded by this library, which named the function for its length,
        // and is only read; the context is as long as the shim has asserted; text, authenticated
        // bytes and ICV are as long as said, the nonce longer than the 12 bytes that are read.
        // Input and output may be the same. Threat: a read behind the key or the text, a write
        // behind the text or the ICV.
        unsafe {
            function(
                self.expanded.as_ptr(),
                context.0.as_mut_ptr().cast(),
                bytes,
                bytes,
                text.len() as u64,
                nonce.as_ptr(),
                aad.as_ptr(),
                aad.len() as u64,
                icv.as_mut_ptr(),
                ICV_BYTES as u64,
            );
        }
    }
}
