//! The service manager's store of descriptors (sd_notify(3), `FDSTORE=1`).
//!
//! The manager passes the stored descriptors to the next process of the unit, and closes them when
//! the unit stops. A new memory is sent to the manager before a caller can store a key in it.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use sd_notify::NotifyState;

use crate::{DescriptorRefused, MemoryUnavailable, StoredMemory};

/// The name of the memory in the manager's store.
pub const DESCRIPTOR_NAME: &str = "lockgate-keys";
/// The manager's socket (sd_notify(3)).
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// A process takes the passed descriptors once.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The memory of the unit.
pub enum KeptMemory {
    /// An earlier process of the unit made it.
    Restored(StoredMemory),
    /// This process made it, and the manager has a copy of its descriptor.
    Created {
        /// The empty memory.
        memory: StoredMemory,
        /// Reasons why passed descriptors were closed and removed from the manager's store.
        refused: Vec<DescriptorRefused>,
    },
}

/// No memory outlives this process: its SAs end with it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoMemory {
    /// No manager runs the process.
    #[error("no service manager keeps descriptors: keys end with the process")]
    NoManager,
    /// The process took its descriptors before.
    #[error("the stored descriptors were taken before")]
    Taken,
    /// The machine cannot hold keys in memory only.
    #[error(transparent)]
    Unavailable(#[from] MemoryUnavailable),
    /// The manager did not take a message.
    #[error("the service manager does not take descriptors: {0}")]
    Manager(String),
}

/// Opens the passed memory, or makes a new memory and sends its descriptor to the manager.
///
/// A manager whose unit lacks `FileDescriptorStoreMax=` drops the descriptor without an answer; the
/// memory then ends with the process.
///
/// # Errors
/// The reason why no memory outlives the process.
pub fn start(cells: u32) -> Result<KeptMemory, NoMemory> {
    if std::env::var_os(SOCKET_VARIABLE).is_none() {
        return Err(NoMemory::NoManager);
    }
    let passed = take_passed()?;
    // Of two memories with one name, the newer one is unknown.
    let is_single = passed.len() == 1;
    let mut refused = Vec::new();
    for descriptor in passed {
        match StoredMemory::open(descriptor, cells) {
            Ok(memory) if is_single => return Ok(KeptMemory::Restored(memory)),
            Ok(mut memory) => {
                memory.erase();
                refused.push(DescriptorRefused::Ambiguous);
            }
            Err(reason) => refused.push(reason),
        }
    }
    if !refused.is_empty() {
        let states = [NotifyState::FdStoreRemove, NotifyState::FdName(DESCRIPTOR_NAME)];
        sd_notify::notify(&states).map_err(manager)?;
    }
    let memory = StoredMemory::create(cells)?;
    let states = [NotifyState::FdStore, NotifyState::FdName(DESCRIPTOR_NAME)];
    sd_notify::notify_with_fds(&states, &[memory.as_fd()]).map_err(manager)?;
    Ok(KeptMemory::Created { memory, refused })
}

/// The passed descriptors of our name.
fn take_passed() -> Result<Vec<OwnedFd>, NoMemory> {
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(NoMemory::Taken);
    }
    let passed = sd_notify::listen_fds_with_names().map_err(manager)?;
    let ours = passed.filter(|(_, name)| name == DESCRIPTOR_NAME);
    // SAFETY: the manager opened the descriptors for this very process (`LISTEN_PID`), and the
    // flag above lets one caller own them. Threat: a caller that closed or took descriptors from 3
    // on by their numbers; lockgated takes none.
    Ok(ours.map(|(number, _)| unsafe { OwnedFd::from_raw_fd(number) }).collect())
}

fn manager(error: std::io::Error) -> NoMemory {
    NoMemory::Manager(error.to_string())
}
