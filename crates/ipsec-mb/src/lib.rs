//! Intel's multi-buffer cipher library ("ipsec-mb") behind a shim of C and a safe face.
//!
//! | type | what | how |
//! |---|---|---|
//! | [`Gcm`] | AES-GCM, 128, 192 and 256 bits | one packet a call |
//! | [`ChaCha20Poly1305`] | ChaCha20-Poly1305 | one packet a call |
//! | [`CbcHmac`] | AES-CBC or NULL, and HMAC-SHA-2 | a burst a call, best [`LANES`] or more |
//!
//! The library is optional: where it is not installed when this is built, where the architecture
//! has none, where the processor lacks AES instructions, or where the library's test of itself
//! fails, [`version`] and every `new` say `None` and the caller takes another backend. Which
//! library is taken, and how to name one: `build.rs`.
//!
//! A thread's first burst, and its first packet of ChaCha20-Poly1305, sets its lanes up; a thread
//! that must not wait then calls [`prepare_thread`] before.
//!
//! A key is expanded once, into memory that is wiped when the key goes; what the library leaves in
//! registers and on the stack is told by [`residue`]. Comparing ICVs takes the same time wherever
//! they differ.
//!
//! Not handled here: sequence numbers, padding, IVs; the bytes of a packet are ciphered and
//! authenticated as the caller says.
#![deny(clippy::undocumented_unsafe_blocks)]

mod cbc_hmac;
mod chacha20_poly1305;
mod gcm;
mod lanes;
mod library;
mod memory;
mod sys;

pub use cbc_hmac::{CbcHmac, Hash, MAX_PACKET_BYTES, Packet, SealError};
pub use chacha20_poly1305::ChaCha20Poly1305;
pub use gcm::Gcm;
pub use lanes::{LANES, prepare_thread};
pub use library::{Residue, architecture, residue, version};

/// Bytes of an AEAD's ICV (RFC 4106 §6, RFC 7634 §2).
pub const ICV_BYTES: usize = 16;

/// Returns whether two ICVs are the same, in a time that does not tell where they differ.
#[inline]
fn same(one: &[u8; ICV_BYTES], other: &[u8; ICV_BYTES]) -> bool {
    u128::from_ne_bytes(*one) ^ u128::from_ne_bytes(*other) == 0
}

/// Zeroes a text that must not be seen.
#[cold]
fn forget(text: &mut [u8]) {
    text.fill(0);
}
