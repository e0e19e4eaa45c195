//! Removes connections that later snapshots must not meet.

use std::sync::Arc;

use dataplane::Snapshot;
use dataplane::connections::Zone;

use super::Gateway;
use crate::clock;
use crate::worker::WorkerGone;

/// Removes the connections of removed ports and virtual networks, after every worker has gone over
/// from `before` to `snapshot`. A slot stays vacant in at least one snapshot before its next owner.
/// Removes all connections if generations began anew: an old judgement could look current.
pub(super) async fn clear_outdated(before: &Snapshot, snapshot: Arc<Snapshot>) {
    let began_anew = before.spd().wraps() != snapshot.spd().wraps();
    let gone: Vec<Zone> = snapshot.zones_gone_since(before).collect();
    if snapshot.connections().is_none() || !began_anew && gone.is_empty() {
        return;
    }
    // A look at a large table takes a while, and this thread has other things to do.
    let clear = move || {
        let Some(connections) = snapshot.connections() else { return };
        match began_anew {
            true => _ = connections.clear(clock::now_s(), |_| true),
            false => _ = connections.clear_zones(gone, clock::now_s()),
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
