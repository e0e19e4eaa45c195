//! Asking the processor for memory ahead of its use.

/// Asks for the cache line of the byte at `at`, and waits for nothing. Beyond the end of `bytes` it
/// asks for a line that is of no use, or for nothing: no bounds are checked for it.
#[inline(always)]
pub fn prefetch(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program sees and faults at no address, and
        // `wrapping_add` may point anywhere. Threat: none.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(bytes.get(at).copied());
}

/// Asks for the first cache line of a value, and waits for nothing.
#[inline(always)]
pub fn prefetch_ref<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: as above; a reference points to memory of ours. Threat: none.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Asks for all cache lines of a value, and waits for nothing. Not of what it points to.
#[inline(always)]
pub fn prefetch_all<T>(value: &T) {
    prefetch_bytes(std::ptr::from_ref(value).cast(), size_of::<T>());
}

/// Asks for the cache lines of so many bytes, and waits for nothing. The address may be any.
#[inline(always)]
pub fn prefetch_bytes(first: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let before = first.addr() % LINE_BYTES;
        let line = first.wrapping_sub(before);
        for at in (0..before + bytes).step_by(LINE_BYTES) {
            // SAFETY: a prefetch reads nothing that the program sees and faults at no address, and
            // `wrapping_add` may point anywhere. Threat: none.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(at).cast()) }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (first, bytes, LINE_BYTES);
}
