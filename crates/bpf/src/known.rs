//! Lockgate's programs on netdevs, held open.
//!
//! Opening a program by its id takes CAP_SYS_ADMIN (bpf(2)), which a daemon gives away once it has
//! started. What this process attached, or looked at while it still had the right, it can tell
//! from others, replace and detach for as long as it lives.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A Lockgate program, at the netdev where it was last seen.
struct Known {
    ifindex: u32,
    id: u32,
    program: Arc<OwnedFd>,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

fn known() -> MutexGuard<'static, Vec<Known>> {
    // Nothing in here leaves the list half changed.
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the Lockgate program with this id on this netdev, if it was seen there.
pub(crate) fn find(ifindex: u32, id: u32) -> Option<Arc<OwnedFd>> {
    let known = known();
    let seen = known.iter().find(|known| (known.ifindex, known.id) == (ifindex, id))?;
    Some(seen.program.clone())
}

/// Keeps a Lockgate program that a netdev runs. `runs` tells what a netdev runs now: programs that
/// no netdev runs any more are closed.
pub(crate) fn keep(
    ifindex: u32,
    id: u32,
    program: BorrowedFd<'_>,
    runs: impl Fn(u32) -> Option<u32>,
) {
    // Out of descriptors: it is not known later, which is as safe.
    let Ok(program) = program.try_clone_to_owned() else { return };
    let mut known = known();
    known.retain(|known| known.ifindex != ifindex && runs(known.ifindex) == Some(known.id));
    known.push(Known { ifindex, id, program: Arc::new(program) });
}
