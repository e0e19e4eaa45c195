//! Ends the process, with one clear line, when somebody makes the run file shorter under it.
//!
//! A page of a mapping beyond the end of its file answers every access with SIGBUS, on whichever
//! thread makes it: a worker that draws a sequence number, most likely. Nothing can go on then,
//! because where the numbers stand is not known any more. The handler says so in one line and ends
//! the process, which leaves the ports closed. It calls what a signal handler may call, and no more
//! (signal-safety(7)): `write` and `_exit`.

use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The exit status of a process whose run file was made shorter.
pub const RUN_FILE_CUT: u8 = 3;

/// First byte of the mapping that was made last, and the first behind it.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// The line to print; a leaked `String`.
static TEXT: AtomicPtr<String> = AtomicPtr::new(std::ptr::null_mut());

/// The line for the operator.
pub(crate) fn text(path: &Path) -> String {
    format!(
        "{} was truncated while lockgated used it: the current sequence numbers are lost. \
         lockgated ends; ports stay closed. Start it again: it continues behind the numbers that \
         it reserved, or names the keys to replace",
        path.display()
    )
}

/// Ends the process with [`RUN_FILE_CUT`] when a byte of the mapping is not there.
pub(crate) fn watch(start: usize, bytes: usize, path: &Path) -> std::io::Result<()> {
    let line = Box::leak(Box::new(format!("lockgated: {}\n", text(path))));
    TEXT.store(line, Ordering::Release);
    START.store(start, Ordering::Release);
    END.store(start + bytes, Ordering::Release);
    // SAFETY: an all-zero `sigaction` is a valid one: no flags, an empty mask, the default action.
    // Threat: a field that may not be zero would be read by the kernel as garbage.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus as extern "C" fn(_, _, _) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `action` outlives the call and names a handler of the three-argument form that
    // SA_SIGINFO asks for. Threat: a handler of another form would read arguments that are not
    // there.
    let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

extern "C" fn on_bus(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a handler that was set with SA_SIGINFO a whole `siginfo_t`, which
    // has an address for SIGBUS. Threat: somebody calls this function; it is private and only
    // `watch` names it.
    let at = unsafe { (*info).si_addr() } as usize;
    if (START.load(Ordering::Acquire)..END.load(Ordering::Acquire)).contains(&at) {
        // SAFETY: the string was leaked before START was set, and nobody changes or frees it.
        // Threat: a text that is freed while this reads it.
        if let Some(text) = unsafe { TEXT.load(Ordering::Acquire).as_ref() } {
            // SAFETY: the bytes are the string's. Threat: none; a short write loses words only.
            unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        }
        // SAFETY: `_exit` may be called by a handler at any point and runs nothing of ours.
        // Threat: `exit` would run destructors while another thread is amid a change.
        unsafe { libc::_exit(RUN_FILE_CUT.into()) };
    }
    // Another fault: it happens again when this returns, and ends the process as it would have.
    // SAFETY: sets the default action; a handler may call it. Threat: none.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
