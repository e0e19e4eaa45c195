//! Removes connections that a snapshot's successors must not meet.

use std::sync::Arc;

use dataplane::Snapshot;

use super::Gateway;
use crate::clock;
use crate::worker::WorkerGone;

/// Removes, after every worker has gone over from `before` to `snapshot`, the connections of ports
/// that went: until another port has such a slot, there is a snapshot without one. Removes all if
/// generations began anew: a judgement from before could look like one of now.
pub(super) async fn clear_outdated(before: &Snapshot, snapshot: Arc<Snapshot>) {
    let began_anew = before.spd().wraps() != snapshot.spd().wraps();
    let gone: Vec<u16> = snapshot.ports_gone_since(before).map(|port| port.0).collect();
    if snapshot.connections().is_none() || !began_anew && gone.is_empty() {
        return;
    }
    // A look at a large table takes a while, and this thread has other things to do.
    let clear = move || {
        let Some(connections) = snapshot.connections() else { return };
        match began_anew {
            true => _ = connections.clear(clock::now_s(), |_| true),
            false => gone.iter().for_each(|port| {
                connections.clear_port(*port, clock::now_s());
            }),
        }
    };
    if let Err(panic) = tokio::task::spawn_blocking(clear).await {
        std::panic::resume_unwind(panic.into_panic());
    }
}

impl Gateway {
    /// Lets every worker begin a turn: none acts any more on what it read before.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn exchange_snapshots(&mut self) -> Result<(), WorkerGone> {
        self.publish(self.snapshot.clone(), None).await
    }
}
