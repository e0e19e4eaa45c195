//! Tools of both files of tests: memory with guards, bytes that differ, and a loud message where
//! there is nothing to test.
#![allow(dead_code, reason = "each file of tests is a program of its own and uses a part")]

use std::ptr;

/// Returns whether there is a library; if not, prints that.
pub(crate) fn is_there(test: &str) -> bool {
    if ipsec_mb::version().is_none() {
        eprintln!("SKIPPED: {test}: the ipsec-mb library is not there, or not for this processor");
        return false;
    }
    true
}

/// Returns `length` bytes that look random, the same for the same seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Memory between two pages that cannot be touched: a read or a write beside it ends the test.
pub(crate) struct Guarded {
    map: *mut u8,
    length: usize,
}

const PAGE: usize = 4096;

impl Guarded {
    /// At least so many bytes.
    pub(crate) fn new(length: usize) -> Guarded {
        let length = length.next_multiple_of(PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at a place that the kernel chooses. Threat: one over other memory.
        let map = unsafe {
            libc::mmap(ptr::null_mut(), length + 2 * PAGE, libc::PROT_NONE, flags, -1, 0)
        };
        assert_ne!(map, libc::MAP_FAILED);
        let map = map.cast::<u8>();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: all of it but the first and the last page of what was mapped just now. Threat:
        // other memory that becomes writable.
        let status = unsafe { libc::mprotect(map.add(PAGE).cast(), length, access) };
        assert_eq!(status, 0);
        Guarded { map, length }
    }

    /// All that can be touched.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped, initialised by the kernel, and borrowed from its owner. Threat: a
        // SIGSEGV.
        unsafe { std::slice::from_raw_parts_mut(self.map.add(PAGE), self.length) }
    }

    /// The first so many bytes, right behind a guard.
    pub(crate) fn first(&mut self, length: usize) -> &mut [u8] {
        &mut self.bytes()[..length]
    }

    /// The last so many bytes, right before a guard.
    pub(crate) fn last(&mut self, length: usize) -> &mut [u8] {
        let from = self.length - length;
        &mut self.bytes()[from..]
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: what `new` has mapped, and nobody borrows it any more. Threat: a SIGSEGV there.
        let status = unsafe { libc::munmap(self.map.cast(), self.length + 2 * PAGE) };
        assert_eq!(status, 0);
    }
}

/// Lengths at the edges of blocks, of the library's ways of working, and of packets.
pub(crate) fn edge_lengths() -> impl Iterator<Item = usize> {
    let around = |length: usize| length - 1..=length + 1;
    (0..=530)
        .chain([768, 1024, 1440, 1500, 2048, 4096, 8192].into_iter().flat_map(around))
        .chain([8999, 9000, 9001])
}
