//! A thread's own state for bursts: the library's lanes and its jobs.

use std::cell::RefCell;

use crate::library::{Manager, library};
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

/// The expanded keys of one SA. Nothing else than [`Schedule::new`] makes one, so that the memory
/// always holds what the shim reads.
pub(crate) struct Schedule {
    /// Memory for the shim's `schedule`.
    expanded: Wiped,
    /// Bytes of the AES key; 0: NULL encryption.
    cipher_key_bytes: usize,
    hash: HashNumber,
}

impl Schedule {
    /// Expands an AES key of 16, 24 or 32 bytes (`None`: NULL encryption) and an HMAC key of any
    /// length but 0. `None`: another length, or there is no library.
    pub(crate) fn new(cipher: Option<&[u8]>, hash: HashNumber, hmac: &[u8]) -> Option<Schedule> {
        let manager = library()?.manager.as_ptr();
        if hmac.is_empty() {
            return None;
        }
        let mut expanded = Wiped::new(sys::lockgate_mb_schedule_bytes());
        let into = expanded.as_mut_ptr();
        if let Some(key) = cipher {
            // SAFETY: the manager is set up, the key as long as said, the memory as large as the
            // shim asked for. Threat: a write behind the memory, a read behind the key.
            let refused =
                unsafe { sys::lockgate_mb_expand_aes(manager, key.as_ptr(), key.len(), into) };
            if refused != 0 {
                return None;
            }
        }
        // SAFETY: as above. Threat: as above.
        unsafe { sys::lockgate_mb_expand_hmac(manager, hash, hmac.as_ptr(), hmac.len(), into) };
        Some(Schedule { expanded, cipher_key_bytes: cipher.map_or(0, <[u8]>::len), hash })
    }

    /// Returns whether there is a cipher; without one it is NULL encryption.
    pub(crate) fn has_cipher(&self) -> bool {
        self.cipher_key_bytes != 0
    }
}

/// Reason why the lanes did not do a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The thread has no lanes: it ends, or the library failed its test of itself. Nothing has
    /// been touched.
    NoLanes,
    /// The library did not complete the job, and how much of it was done is unknown.
    Unfinished,
}

thread_local! {
    static THREAD: RefCell<Option<Lanes>> = const { RefCell::new(None) };
}

/// Does something with this thread's lanes; they are made on first use, which takes the time of
/// the library's test of itself, and again after a burst that was not completed.
pub(crate) fn with<R>(work: impl FnOnce(&mut Lanes) -> Result<R, Failure>) -> Result<R, Failure> {
    let result = THREAD.try_with(|thread| {
        let mut thread = thread.borrow_mut();
        if thread.is_none() {
            *thread = Lanes::new();
        }
        let result = work(thread.as_mut().ok_or(Failure::NoLanes)?);
        if result.is_err() {
            *thread = None;
        }
        result
    });
    result.unwrap_or(Err(Failure::NoLanes))
}

/// Makes this thread's lanes now, if there is a library, so that its first packet of
/// ChaCha20-Poly1305 or of a burst does not wait for them: the library tests itself, which takes
/// 0.4 ms, and on a busy core more. AES-GCM needs none.
pub fn prepare_thread() {
    let _ = with(|_| Ok(()));
}

impl Lanes {
    fn new() -> Option<Lanes> {
        // First: without a library there are no jobs, and there is no memory for them.
        let manager = Manager::new()?;
        Some(Lanes { manager, jobs: Wiped::new(sys::lockgate_mb_jobs_bytes(BURST)) })
    }

    /// Ciphers the text of every row; with NULL encryption it does nothing.
    ///
    /// # Panics
    /// With more rows than [`BURST`].
    ///
    /// # Safety
    /// Every row's text is valid for reading and writing and made of whole blocks, its IV valid for
    /// reading 16 bytes; no two texts overlap. Else the library reads and writes behind a packet.
    pub(crate) unsafe fn cipher(
        &mut self,
        schedule: &Schedule,
        direction: Direction,
        rows: &[Row],
    ) -> Result<(), Failure> {
        if rows.is_empty() || !schedule.has_cipher() {
            return Ok(());
        }
        assert!(rows.len() <= BURST, "more rows than jobs");
        // SAFETY: manager and jobs are this thread's, set up and large enough; the schedule was
        // expanded with a cipher; the caller answers for the rows. Threat: as above; two threads in
        // one manager mix their packets.
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
        if refused == 0 { Ok(()) } else { Err(Failure::Unfinished) }
    }

    /// Writes the ICV of every row.
    ///
    /// # Panics
    /// With more rows than [`BURST`].
    ///
    /// # Safety
    /// The bytes that every row authenticates are valid for reading, at least 1 byte and at most
    /// 65535; the place of its ICV is valid for writing as many bytes as the hash has of it; no ICV
    /// overlaps anything else. Else the library reads behind a packet or writes behind an ICV.
    pub(crate) unsafe fn authenticate(
        &mut self,
        schedule: &Schedule,
        rows: &[Row],
    ) -> Result<(), Failure> {
        if rows.is_empty() {
            return Ok(());
        }
        assert!(rows.len() <= BURST, "more rows than jobs");
        // SAFETY: as in `cipher`; every schedule has a hash. Threat: as in `cipher`.
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
        if refused == 0 { Ok(()) } else { Err(Failure::Unfinished) }
    }

    /// Ciphers the text of a row and writes its ICV of 16 bytes.
    ///
    /// # Safety
    /// The key has 32 bytes; the row's text is valid for reading and writing, its IV for reading
    /// 12 bytes, its ICV for writing 16; none of them overlap. The library uses AVX2 at least. Else
    /// it reads behind the key or the text, or writes behind the ICV.
    pub(crate) unsafe fn chacha20_poly1305(
        &mut self,
        direction: Direction,
        key: *const u8,
        row: &Row,
        aad: &[u8],
    ) -> Result<(), Failure> {
        // SAFETY: the manager is this thread's and set up; the caller answers for the rest. Threat:
        // as above; two threads in one manager mix their packets.
        let refused = unsafe {
            sys::lockgate_mb_chacha20_poly1305(
                self.manager.as_mut_ptr(),
                direction,
                key,
                row,
                aad.as_ptr(),
                aad.len(),
            )
        };
        if refused == 0 { Ok(()) } else { Err(Failure::Unfinished) }
    }
}
