//! Ctrl-C as a flag: every wait of a laboratory looks at it, so that the way out leads through
//! all destructors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::LabError;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

fn flag() -> &'static Arc<AtomicBool> {
    FLAG.get_or_init(Arc::default)
}

/// Makes Ctrl-C, SIGTERM and SIGHUP set the flag instead of ending the process. Once is enough.
///
/// # Errors
/// [`LabError::Socket`]: the operating system refuses a handler.
pub fn listen() -> Result<(), LabError> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag()))
            .map_err(LabError::socket("cannot listen to signals"))?;
    }
    Ok(())
}

/// Returns whether somebody asked to end.
pub fn is_set() -> bool {
    flag().load(Ordering::Relaxed)
}

/// Goes on, unless somebody asked to end.
///
/// # Errors
/// [`LabError::Interrupted`].
pub fn check() -> Result<(), LabError> {
    if is_set() { Err(LabError::Interrupted) } else { Ok(()) }
}

/// Sleeps, but not beyond an interruption.
///
/// # Errors
/// [`LabError::Interrupted`].
pub fn sleep(duration: std::time::Duration) -> Result<(), LabError> {
    let end = std::time::Instant::now() + duration;
    loop {
        check()?;
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(std::time::Duration::from_millis(50)));
    }
}
