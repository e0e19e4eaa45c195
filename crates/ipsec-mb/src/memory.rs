//! Heap memory for what holds key bytes: aligned for the widest registers, wiped before it goes.

use std::alloc::{self, Layout};
use std::ptr::NonNull;

use zeroize::Zeroize;

/// The alignment that the library wants of its structures: a cache line, and the widest register.
const ALIGNMENT: usize = 64;

/// Bytes at an address that stays, zero at first, wiped on drop. No `Debug`: key bytes.
pub(crate) struct Wiped {
    bytes: NonNull<u8>,
    length: usize,
    /// The length in whole words, for `words_mut`.
    layout: Layout,
}

// SAFETY: the memory belongs to this value alone, and to no thread. Threat: another thread that
// still uses it when it is wiped and freed.
unsafe impl Send for Wiped {}
// SAFETY: through `&` it is only read. Threat: a key that changes while a packet is sealed with it.
unsafe impl Sync for Wiped {}

impl Wiped {
    /// `length` bytes of 0.
    ///
    /// # Panics
    /// With a length of 0 or more than half the address space.
    pub(crate) fn new(length: usize) -> Wiped {
        assert_ne!(length, 0, "memory for nothing");
        let layout = Layout::from_size_align(length, ALIGNMENT).expect("a length that exists");
        let layout = layout.pad_to_align();
        // SAFETY: the layout is not empty, see above. Threat: an empty one has no address.
        let bytes = unsafe { alloc::alloc_zeroed(layout) };
        let Some(bytes) = NonNull::new(bytes) else { alloc::handle_alloc_error(layout) };
        Wiped { bytes, length, layout }
    }

    /// The first byte.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// Asks the processor for all of it, ahead of its use.
    pub(crate) fn ask(&self) {
        cpu::prefetch_bytes(self.as_ptr(), self.layout.size());
    }

    /// The first byte, to be written.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_ptr()
    }

    /// All of it.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the allocation is no shorter, its bytes were initialised to 0 when it was made,
        // and nobody else has it. Threat: a write behind it, or under somebody else's reference.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.length) }
    }
}

impl Wiped {
    /// All of it in words: few volatile writes wipe it.
    fn words_mut(&mut self) -> &mut [u128] {
        let (first, words) = (self.bytes.as_ptr().cast(), self.layout.size() / size_of::<u128>());
        // SAFETY: the allocation is aligned to 64 bytes and a multiple of them long, its bytes were
        // initialised, and nobody else has it. Threat: as for `bytes_mut`.
        unsafe { std::slice::from_raw_parts_mut(first, words) }
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        self.words_mut().zeroize();
        // SAFETY: allocated by `new` with this layout, and freed once. Threat: a heap that is
        // broken for everybody.
        unsafe { alloc::dealloc(self.bytes.as_ptr(), self.layout) };
    }
}
