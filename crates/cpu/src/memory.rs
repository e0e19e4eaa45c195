//! Large zeroed tables of cache lines, on huge pages where the kernel gives them.
//!
//! The kernel hands out pages as they are first written, so a table costs nothing until it is used,
//! unless it is asked for at once ([`Lines::touch`]).

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// One cache line: 64 bytes, aligned to 64.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C, align(64))]
pub struct Line(pub [u64; 8]);

/// Bytes of a cache line.
pub const LINE_BYTES: usize = size_of::<Line>();

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// A table of lines of a fixed length, zeros when it is made. Its memory is its own and goes back
/// to the kernel when it is dropped.
pub struct Lines {
    start: NonNull<Line>,
    lines: usize,
    /// Bytes that are mapped from `start` on.
    mapped: usize,
}

impl Lines {
    /// A table of so many lines, at least one. A table of a huge page or more begins at one.
    ///
    /// # Errors
    /// The kernel's error, or [`io::ErrorKind::InvalidInput`]: more bytes than there are addresses.
    /// Nothing stays mapped.
    pub fn zeroed(lines: usize) -> io::Result<Lines> {
        let lines = lines.max(1);
        let unit = if lines >= HUGE_PAGE / LINE_BYTES { HUGE_PAGE } else { 4096 };
        let mapped = lines
            .checked_mul(LINE_BYTES)
            .and_then(|bytes| bytes.checked_next_multiple_of(unit))
            .filter(|bytes| *bytes <= isize::MAX as usize / 2)
            .ok_or(io::ErrorKind::InvalidInput)?;
        // More than is needed, so that a huge page begins in it; what is around it is given back.
        let slack = if unit == HUGE_PAGE { HUGE_PAGE } else { 0 };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses the place of the new mapping. Threat: one at a place of ours
        // would replace memory that is in use.
        let got =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped + slack, protection, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let before = (got as usize).wrapping_neg() % unit;
        let start = got.wrapping_byte_add(before);
        // SAFETY: the part of the mapping in front of the table, into which nothing points. Threat:
        // as `unmap` says.
        unsafe { unmap(got, before) };
        // SAFETY: the part behind the table, likewise. Threat: as `unmap` says.
        unsafe { unmap(start.wrapping_byte_add(mapped), slack - before) };
        if unit == HUGE_PAGE {
            // SAFETY: the range is the mapping made above, and the advice changes nothing in it. A
            // kernel without huge pages refuses, and the table is on small ones. Threat: advice
            // about other memory, or such as empties it.
            unsafe { libc::madvise(start, mapped, libc::MADV_HUGEPAGE) };
        }
        let start = NonNull::new(start.cast()).expect("a mapping is not at address 0");
        Ok(Lines { start, lines, mapped })
    }

    /// Makes the kernel provide all pages now, so that no later write waits for one.
    ///
    /// # Errors
    /// The kernel's error: there is not that much memory.
    pub fn touch(&mut self) -> io::Result<()> {
        let start = self.start.as_ptr().cast();
        // SAFETY: the range is this table's mapping; populating it changes no byte. Threat: as
        // above.
        match unsafe { libc::madvise(start, self.mapped, libc::MADV_POPULATE_WRITE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Has memory on huge pages, as far as it fills whole ones. A kernel older than 6.1 does it later,
/// and one without huge pages not at all.
pub fn use_huge_pages<T>(memory: &[T]) {
    let start = memory.as_ptr().cast::<u8>();
    let first = start.align_offset(HUGE_PAGE);
    let bytes = size_of_val(memory).saturating_sub(first) / HUGE_PAGE * HUGE_PAGE;
    if bytes == 0 {
        return;
    }
    let start = start.wrapping_add(first).cast_mut().cast();
    for advice in [libc::MADV_HUGEPAGE, libc::MADV_COLLAPSE] {
        // SAFETY: the range lies in `memory`, and the advice changes no byte of it. Threat: advice
        // about other memory, or such as empties it.
        unsafe { libc::madvise(start, bytes, advice) };
    }
}

/// Gives back `bytes` of a mapping of ours, none or whole pages, from `start` on.
///
/// # Safety
/// The range is part of a mapping that the caller owns, and nothing points into it. Else memory
/// that is in use disappears: a SIGSEGV, or another mapping in its place.
unsafe fn unmap(start: *mut libc::c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller keeps the promise. Threat: as above.
        let done = unsafe { libc::munmap(start, bytes) };
        debug_assert_eq!(done, 0, "a mapping of ours can be given back");
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, whose only owner goes. Threat: as `unmap` says.
        unsafe { unmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

impl Deref for Lines {
    type Target = [Line];

    #[inline(always)]
    fn deref(&self) -> &[Line] {
        // SAFETY: `start` is the beginning of a readable mapping of at least `lines` lines, aligned
        // to a page, whose bytes (zeros or what was written as lines) are lines of any value; it
        // lives as long as `self`. Threat: a read behind the mapping.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.lines) }
    }
}

impl DerefMut for Lines {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Line] {
        // SAFETY: as above; it is writable, and `&mut self` is the only way to it. Threat: two
        // writers of one line.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.lines) }
    }
}

// SAFETY: the mapping belongs to the one `Lines` that made it, and to no thread. Threat: another
// thread that still uses it.
unsafe impl Send for Lines {}
// SAFETY: what `&Lines` gives is a shared slice of plain numbers. Threat: a write through `&Lines`.
unsafe impl Sync for Lines {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_the_same_on_huge_pages() {
        for numbers in [0, 1, 1000, (5 << 20) / 8] {
            let memory: Vec<u64> = (0..numbers).collect();
            use_huge_pages(&memory);
            assert!(memory.iter().copied().eq(0..numbers), "{numbers}");
        }
    }

    #[test]
    fn a_table_is_zeros_aligned_and_its_own() {
        for lines in [0, 1, 2, 63, 64, 65, 32_767, 32_768, 40_000] {
            let mut table = Lines::zeroed(lines).expect("a little memory");
            assert_eq!(table.len(), lines.max(1));
            assert_eq!(table.as_ptr() as usize % LINE_BYTES, 0);
            if lines >= HUGE_PAGE / LINE_BYTES {
                assert_eq!(table.as_ptr() as usize % HUGE_PAGE, 0);
            }
            assert!(table.iter().all(|line| *line == Line::default()));
            let last = table.len() - 1;
            (table[0].0[0], table[last].0[7]) = (1, 2);
            table.touch().expect("a little memory");
            let other = Lines::zeroed(lines).expect("a little memory");
            assert!(other.iter().all(|line| *line == Line::default()));
            assert_eq!((table[0].0[0], table[last].0[7]), (1, 2));
        }
    }

    #[test]
    fn more_lines_than_addresses_are_refused() {
        for lines in [usize::MAX, usize::MAX / LINE_BYTES, 1 << 57, 1 << 50] {
            assert!(Lines::zeroed(lines).is_err(), "{lines} lines");
        }
    }
}
