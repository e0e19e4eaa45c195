//! A thread's own state for bursts: the library's lanes and its jobs.

use std::cell::RefCell;

use crate::library::Manager;
use crate::memory::Wiped;
use crate::sys::{self, Direction, HashNumber, Row};

/// Packets that a burst should have at least: as many as the library works on at once.
pub const LANES: usize = 16;

/// Packets of one burst of the library.
pub(crate) const BURST: usize = 64;

/// A thread's manager and jobs. Nothing is in the lanes between two calls.
pub(crate) struct Lanes {
    manager: Manager,
    jobs: Wiped,
}

/// The expanded keys of one SA.
pub(crate) struct Schedule {
    /// Memory for the shim's `schedule`.
    pub(crate) expanded: Wiped,
    /// Bytes of the AES key; 0: NULL encryption.
    pub(crate) cipher_key_bytes: usize,
    pub(crate) hash: HashNumber,
}

/// A burst that the library did not complete.
pub(crate) struct Unfinished;

thread_local! {
    static THREAD: RefCell<Option<Lanes>> = const { RefCell::new(None) };
}

/// Does something with this thread's lanes; they are made on first use, which takes the time of
/// the library's test of itself, and again after a burst that was not completed.
pub(crate) fn with<R>(
    work: impl FnOnce(&mut Lanes) -> Result<R, Unfinished>,
) -> Result<R, Unfinished> {
    let result = THREAD.try_with(|thread| {
        let mut thread = thread.borrow_mut();
        if thread.is_none() {
            *thread = Lanes::new();
        }
        let result = work(thread.as_mut().ok_or(Unfinished)?);
        if result.is_err() {
            *thread = None;
        }
        result
    });
    // A thread that ends has no lanes any more.
    result.unwrap_or(Err(Unfinished))
}

impl Lanes {
    fn new() -> Option<Lanes> {
        let jobs = Wiped::new(sys::lockgate_mb_jobs_bytes(BURST));
        Some(Lanes { manager: Manager::new()?, jobs })
    }

    /// Ciphers the text of every row.
    ///
    /// # Safety
    /// Every row's text and IV is valid for reading, the text for writing; no two texts overlap;
    /// the schedule has a cipher.
    pub(crate) unsafe fn cipher(
        &mut self,
        schedule: &Schedule,
        direction: Direction,
        rows: &[Row],
    ) -> Result<(), Unfinished> {
        if rows.is_empty() {
            return Ok(());
        }
        assert!(rows.len() <= BURST, "more rows than jobs");
        // SAFETY: manager and jobs are this thread's, set up and large enough; the schedule was
        // expanded; the caller answers for the rows.
        let refused = unsafe {
            sys::lockgate_mb_cipher(
                self.manager.as_mut_ptr(),
                self.jobs.as_mut_ptr(),
                schedule.expanded.as_ptr(),
                schedule.cipher_key_bytes,
                direction,
                rows.as_ptr(),
                rows.len(),
            )
        };
        if refused == 0 { Ok(()) } else { Err(Unfinished) }
    }

    /// Writes the ICV of every row.
    ///
    /// # Safety
    /// What every row authenticates is valid for reading, where its ICV goes for writing as many
    /// bytes as the hash has of it; no ICV overlaps anything else.
    pub(crate) unsafe fn authenticate(
        &mut self,
        schedule: &Schedule,
        rows: &[Row],
    ) -> Result<(), Unfinished> {
        if rows.is_empty() {
            return Ok(());
        }
        assert!(rows.len() <= BURST, "more rows than jobs");
        // SAFETY: as in `cipher`.
        let refused = unsafe {
            sys::lockgate_mb_authenticate(
                self.manager.as_mut_ptr(),
                self.jobs.as_mut_ptr(),
                schedule.expanded.as_ptr(),
                schedule.hash,
                rows.as_ptr(),
                rows.len(),
            )
        };
        if refused == 0 { Ok(()) } else { Err(Unfinished) }
    }
}
