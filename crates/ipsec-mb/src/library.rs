//! The library, once a process: whether it can be used here, and its functions without state.

use std::sync::OnceLock;

use crate::memory::Wiped;
use crate::sys::{self, Architecture};

/// The library's state: its functions for this processor, and the lanes of its bursts.
///
/// Direct calls only read function pointers in it, so that one serves all threads. A burst
/// changes it: each thread has its own.
pub(crate) struct Manager(Wiped);

impl Manager {
    /// `None`: there is no library, this processor cannot run it, or its test of itself failed.
    pub(crate) fn new() -> Option<Manager> {
        if sys::lockgate_mb_manager_bytes() == 0 {
            return None;
        }
        let mut memory = Wiped::new(sys::lockgate_mb_manager_bytes());
        // SAFETY: as much memory as the library asked for, aligned, and at an address that stays:
        // a manager holds pointers into itself. Threat: a write behind the memory, or later one
        // through a pointer to where the manager was.
        let refused = unsafe { sys::lockgate_mb_manager_init(memory.as_mut_ptr()) };
        (refused == 0).then_some(Manager(memory))
    }

    /// Returns the manager's address for the shim's direct calls.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    /// Returns the manager's address for the shim's bursts.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

/// The library as found on this machine.
pub(crate) struct Library {
    /// The manager for calls without state.
    pub(crate) manager: Manager,
    version: &'static str,
    /// The instructions of this processor that it uses.
    pub(crate) architecture: Architecture,
    residue: Residue,
}

/// The keys and plaintext that a call leaves in registers and on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residue {
    /// None: the library was built with `SAFE_DATA`.
    Wiped,
    /// The keys that the call used last.
    Left,
}

/// The library, where it can be used.
pub(crate) fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY.get_or_init(Library::new).as_ref()
}

impl Library {
    fn new() -> Option<Library> {
        let manager = Manager::new()?;
        // SAFETY: `Manager::new` has set it up. Threat: a jump through a pointer that is 0.
        let architecture = unsafe { sys::architecture(manager.as_ptr()) };
        // SAFETY: `Manager::new` has set it up. Threat: a jump through a pointer that is 0.
        let wipes = unsafe { sys::lockgate_mb_wipes(manager.as_ptr()) };
        Some(Library {
            version: sys::version()?,
            architecture: architecture?,
            residue: if wipes == 0 { Residue::Left } else { Residue::Wiped },
            manager,
        })
    }
}

/// Version of the library that is linked, that this processor can run, and whose test of itself
/// passed: `1.3.0`. `None`: there is none, and every key is `None`.
pub fn version() -> Option<&'static str> {
    Some(library()?.version)
}

/// The processor's instructions that the library uses: `avx512 vaes`, `avx512`, `avx2 vaes`,
/// `avx2`, `sse`; `none` without the library. The library chooses by itself: `avx2 vaes` from
/// version 2.0 on, and where the processor has GFNI and SHA instructions too.
pub fn architecture() -> &'static str {
    match library().map(|library| library.architecture) {
        None => "none",
        Some(Architecture::Sse) => "sse",
        Some(Architecture::Avx2) => "avx2",
        Some(Architecture::Avx2Vaes) => "avx2 vaes",
        Some(Architecture::Avx512) => "avx512",
        Some(Architecture::Avx512Vaes) => "avx512 vaes",
    }
}

/// Returns the residue that the library leaves behind after a call; `None` without the library.
pub fn residue() -> Option<Residue> {
    Some(library()?.residue)
}
