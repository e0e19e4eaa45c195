//! Hearing of changes to nftables, so that a guard that was removed is noticed at once.

use std::io;
use std::time::Duration;

use super::{Guard, GuardError, Integrity};
use crate::mirror::{Events, NETFILTER_PROTOCOL};

/// `NFNLGRP_NFTABLES` (linux/netfilter/nfnetlink.h).
const TABLES_GROUP: u32 = 7;
/// Room for what the kernel tells while nobody reads, bytes.
const EVENT_ROOM_BYTES: u32 = 1 << 20;
/// Somebody's change is let finish before the guard is looked at.
const SETTLING: Duration = Duration::from_millis(10);
/// How often it is looked at if the kernel cannot be listened to.
const PERIOD: Duration = Duration::from_secs(2);
/// How often it is looked at in any case.
const LONG_PERIOD: Duration = Duration::from_secs(30);

/// Listens for changes to nftables.
pub struct GuardWatch {
    /// `None`: the kernel cannot be listened to, so the guard is looked at every 2 s.
    events: Option<Events>,
    /// Whether the guard is to be looked at.
    due: bool,
}

impl GuardWatch {
    /// Listens in this thread's network namespace; if that does not work, looks every 2 s.
    pub fn start() -> GuardWatch {
        let groups = [TABLES_GROUP];
        let events = Events::open(NETFILTER_PROTOCOL, &groups, EVENT_ROOM_BYTES).ok();
        GuardWatch { events, due: true }
    }

    /// Waits until the guard is not what was put in place: the caller puts it there again, and
    /// tells of it. Cancel safe.
    ///
    /// # Errors
    /// [`GuardError`]: `nft` could not be asked; the guard may stand or not.
    pub async fn broken(&mut self, guard: &Guard) -> Result<(), GuardError> {
        loop {
            if !self.due {
                self.something_changes().await;
                self.due = true;
            }
            let guard = guard.clone();
            // On a thread of its own: `nft` takes milliseconds.
            let asked = tokio::task::spawn_blocking(move || guard.integrity()).await;
            match asked {
                Ok(Ok(Integrity::Intact)) => self.due = false,
                Ok(Ok(Integrity::Broken)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(GuardError::Run { source: io::ErrorKind::Other.into() }),
            }
        }
    }

    /// Waits for a change, or for the time to look anyway.
    async fn something_changes(&mut self) {
        let Some(events) = &mut self.events else {
            tokio::time::sleep(PERIOD).await;
            return;
        };
        match tokio::time::timeout(LONG_PERIOD, events.receive(|_| {})).await {
            Err(_elapsed) => return,
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Ok(Err(_)) => {
                self.events = None;
                return;
            }
        }
        tokio::time::sleep(SETTLING).await;
        while let Ok(true) = events.receive_ready(|_| {}).await {}
    }
}
