//! The shim's functions (`c/shim.c`), and their twins where there is no library.
//!
//! Pointers are valid for the lengths beside them, and for the length of the call; a `manager` is
//! memory that [`lockgate_mb_manager_init`] has set up. The shim checks no range.

use std::ffi::{c_char, c_int};
use std::ptr;

/// One of the library's one-packet functions of AES-GCM: expanded key (aligned to 64), context,
/// output, input, bytes, nonce (12 bytes), authenticated bytes and their number, ICV and its
/// length. It writes nothing but the context, the output and the ICV.
pub(crate) type GcmFn = unsafe extern "C" fn(
    *const u8,
    *mut u8,
    *mut u8,
    *const u8,
    u64,
    *const u8,
    *const u8,
    u64,
    *mut u8,
    u64,
);

/// The processor's instructions that the library uses; the older, the less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Architecture {
    /// At most AVX.
    Sse,
    Avx2,
    /// AVX2, and AES on such registers: from version 2.0 on.
    Avx2Vaes,
    Avx512,
    /// AVX-512, and AES on such registers.
    Avx512Vaes,
}

/// Architectures in the order in which the shim numbers them.
const ARCHITECTURES: [Architecture; 5] = [
    Architecture::Sse,
    Architecture::Avx2,
    Architecture::Avx2Vaes,
    Architecture::Avx512,
    Architecture::Avx512Vaes,
];

/// Hashes as the shim numbers them.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(crate) enum HashNumber {
    Sha256 = 0,
    Sha384 = 1,
    Sha512 = 2,
}

/// Directions as the shim numbers them.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(crate) enum Direction {
    Seal = 0,
    Open = 1,
}

/// A packet of a burst, as the shim knows it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Row {
    /// The bytes that are ciphered in place; a multiple of 16.
    pub(crate) text: *mut u8,
    pub(crate) text_bytes: usize,
    /// 16 bytes.
    pub(crate) iv: *const u8,
    /// The bytes that are authenticated, the text among them.
    pub(crate) authenticated: *const u8,
    pub(crate) authenticated_bytes: usize,
    /// The place for the ICV: as many bytes as the hash has of it.
    pub(crate) icv: *mut u8,
}

impl Row {
    /// A row without any buffer.
    pub(crate) const NONE: Row = Row {
        text: ptr::null_mut(),
        text_bytes: 0,
        iv: ptr::null(),
        authenticated: ptr::null(),
        authenticated_bytes: 0,
        icv: ptr::null_mut(),
    };
}

#[cfg(ipsec_mb)]
unsafe extern "C" {
    /// The library's version: a string that lives as long as the process.
    pub(crate) safe fn lockgate_mb_version() -> *const c_char;

    /// Bytes of a manager; its memory is aligned to 64.
    pub(crate) safe fn lockgate_mb_manager_bytes() -> usize;

    /// Sets a manager up in `memory`; not 0: this processor cannot run the library, or the
    /// library's test of itself failed.
    pub(crate) fn lockgate_mb_manager_init(memory: *mut u8) -> c_int;

    /// The number of an [`Architecture`].
    pub(crate) fn lockgate_mb_architecture(manager: *const u8) -> c_int;

    /// Not 0: the library wipes what it leaves in registers and on the stack.
    pub(crate) fn lockgate_mb_wipes(manager: *const u8) -> c_int;

    /// Bytes of an expanded AES-GCM key; its memory is aligned to 64.
    pub(crate) safe fn lockgate_mb_gcm_key_bytes() -> usize;

    /// Expands a key of 16, 24 or 32 bytes and tells the functions for it; not 0: another length,
    /// and nothing is written.
    pub(crate) fn lockgate_mb_gcm(
        manager: *const u8,
        key: *const u8,
        key_bytes: usize,
        expanded: *mut u8,
        seal: *mut Option<GcmFn>,
        open: *mut Option<GcmFn>,
    ) -> c_int;

    /// Ciphers a row's text in place and writes its ICV of 16 bytes; the key has 32 bytes, of the
    /// IV the first 12 count, and the row's `authenticated` is not used. Not 0: not done.
    pub(crate) fn lockgate_mb_chacha20_poly1305(
        manager: *mut u8,
        direction: Direction,
        key: *const u8,
        row: *const Row,
        aad: *const u8,
        aad_bytes: usize,
    ) -> c_int;

    /// Seals or opens like [`lockgate_mb_chacha20_poly1305`], without state in the manager.
    pub(crate) fn lockgate_mb_chacha20_poly1305_direct(
        manager: *const u8,
        direction: Direction,
        key: *const u8,
        row: *const Row,
        aad: *const u8,
        aad_bytes: usize,
    );

    /// Bytes of the expanded keys of AES-CBC and HMAC; their memory is aligned to 16.
    pub(crate) safe fn lockgate_mb_schedule_bytes() -> usize;

    /// Bytes of so many of the library's jobs; their memory is aligned to 8 and 0 at first.
    pub(crate) safe fn lockgate_mb_jobs_bytes(jobs: usize) -> usize;

    /// Expands an AES key of 16, 24 or 32 bytes; not 0: another length, and nothing is written.
    pub(crate) fn lockgate_mb_expand_aes(
        manager: *const u8,
        key: *const u8,
        key_bytes: usize,
        schedule: *mut u8,
    ) -> c_int;

    /// Expands an HMAC key of any length.
    pub(crate) fn lockgate_mb_expand_hmac(
        manager: *const u8,
        hash: HashNumber,
        key: *const u8,
        key_bytes: usize,
        schedule: *mut u8,
    );

    /// Ciphers the texts of so many rows, at most as many as there are `jobs`; not 0: not all.
    pub(crate) fn lockgate_mb_cipher(
        manager: *mut u8,
        jobs: *mut u8,
        schedule: *const u8,
        key_bytes: usize,
        direction: Direction,
        rows: *const Row,
        count: usize,
    ) -> c_int;

    /// Writes the ICVs of so many rows, at most as many as there are `jobs`; not 0: not all.
    pub(crate) fn lockgate_mb_authenticate(
        manager: *mut u8,
        jobs: *mut u8,
        schedule: *const u8,
        hash: HashNumber,
        rows: *const Row,
        count: usize,
    ) -> c_int;
}

/// Returns the instructions of the processor that a manager uses.
///
/// # Safety
/// The manager is set up.
pub(crate) unsafe fn architecture(manager: *const u8) -> Option<Architecture> {
    // SAFETY: the caller keeps the promise. Threat: bytes of anything taken for a number.
    let number = unsafe { lockgate_mb_architecture(manager) };
    ARCHITECTURES.get(usize::try_from(number).ok()?).copied()
}

/// The library's version; `None` without it.
pub(crate) fn version() -> Option<&'static str> {
    let version = lockgate_mb_version();
    if version.is_null() {
        return None;
    }
    // SAFETY: a constant of the library, ended by 0. Threat: a read on until some 0.
    unsafe { std::ffi::CStr::from_ptr(version) }.to_str().ok()
}

#[cfg(not(ipsec_mb))]
pub(crate) use absent::*;

/// Stands in where there is no library: no memory would do for a manager, so that nothing else is
/// called.
#[cfg(not(ipsec_mb))]
mod absent {
    use super::*;

    pub(crate) fn lockgate_mb_version() -> *const c_char {
        ptr::null()
    }

    pub(crate) fn lockgate_mb_manager_bytes() -> usize {
        0
    }

    pub(crate) fn lockgate_mb_gcm_key_bytes() -> usize {
        0
    }

    pub(crate) fn lockgate_mb_schedule_bytes() -> usize {
        0
    }

    pub(crate) fn lockgate_mb_jobs_bytes(_: usize) -> usize {
        0
    }

    /// Functions that touch nothing and return one value.
    macro_rules! refusing {
        ($($name:ident($($argument:ty),*) -> $result:ty = $value:expr;)*) => {
            $(
                /// Touches nothing.
                ///
                /// # Safety
                /// As the function of the shim: so that callers are the same with and without it.
                pub(crate) unsafe fn $name($(_: $argument),*) -> $result {
                    $value
                }
            )*
        };
    }

    refusing! {
        lockgate_mb_manager_init(*mut u8) -> c_int = 1;
        lockgate_mb_architecture(*const u8) -> c_int = -1;
        lockgate_mb_wipes(*const u8) -> c_int = 0;
        lockgate_mb_gcm(
            *const u8, *const u8, usize, *mut u8, *mut Option<GcmFn>, *mut Option<GcmFn>
        ) -> c_int = 1;
        lockgate_mb_chacha20_poly1305(
            *mut u8, Direction, *const u8, *const Row, *const u8, usize
        ) -> c_int = 1;
        lockgate_mb_chacha20_poly1305_direct(
            *const u8, Direction, *const u8, *const Row, *const u8, usize
        ) -> () = ();
        lockgate_mb_expand_aes(*const u8, *const u8, usize, *mut u8) -> c_int = 1;
        lockgate_mb_expand_hmac(*const u8, HashNumber, *const u8, usize, *mut u8) -> () = ();
        lockgate_mb_cipher(
            *mut u8, *mut u8, *const u8, usize, Direction, *const Row, usize
        ) -> c_int = 1;
        lockgate_mb_authenticate(
            *mut u8, *mut u8, *const u8, HashNumber, *const Row, usize
        ) -> c_int = 1;
    }
}
