//! Listens for changes to nftables, so that a guard that was removed is noticed at once.

use linux::nft::{Changes, NftError};

use super::{Guard, GuardError, Integrity};

/// Listens for changes to nftables.
pub struct GuardWatch {
    changes: Changes,
    /// Set if the guard is to be compared.
    due: bool,
}

impl GuardWatch {
    /// Listens in this thread's network namespace; if that does not work, looks every 2 s.
    pub fn start() -> GuardWatch {
        GuardWatch { changes: Changes::listen(), due: true }
    }

    /// Waits until the installed guard is changed or removed: the caller restores and reports it.
    /// Cancel safe.
    ///
    /// # Errors
    /// [`GuardError`]: `nft` could not be asked; the guard may stand or not.
    pub async fn broken(&mut self, guard: &Guard) -> Result<(), GuardError> {
        loop {
            if !self.due {
                self.changes.next().await;
                self.due = true;
            }
            let guard = guard.clone();
            // On a thread of its own: `nft` takes milliseconds.
            let asked = tokio::task::spawn_blocking(move || guard.integrity()).await;
            match asked {
                Ok(Ok(Integrity::Intact)) => self.due = false,
                Ok(Ok(Integrity::Broken)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(NftError::interrupted().into()),
            }
        }
    }
}
