//! Single SAs that come and go: a snapshot, and nothing else.

use std::sync::Arc;

use control::{ChangedSas, Compiled, GoneSa, LiveParts};
use dataplane::{Snapshot, SnapshotError};

use super::Gateway;
use crate::freeing::free_aside;
use crate::worker::WorkerGone;

impl Gateway {
    /// Goes over to the running configuration with other SAs; returns when every worker walks by
    /// it, with the SAs that are gone. Guard, programs, netdevs and policies are as they were.
    ///
    /// # Errors
    /// [`WorkerGone`]; inside, [`SnapshotError`]: what ran before runs on.
    pub(crate) async fn change_sas(
        &mut self,
        changed: ChangedSas,
    ) -> Result<Result<Vec<GoneSa>, SnapshotError>, WorkerGone> {
        let ChangedSas { compiled, gone } = changed;
        let snapshot = match compiled.assemble(&self.live, Some(&self.snapshot)) {
            Ok(snapshot) => snapshot,
            Err(error) => return Ok(Err(error)),
        };
        let live = self.live_towards_ends(&compiled, &snapshot);
        self.ends_have_changed |= !Arc::ptr_eq(&live, &self.live);
        self.withhold_fragments(&compiled.sad).await;
        self.live = live;
        let old = std::mem::replace(&mut self.compiled, compiled);
        self.publish(snapshot, None).await?;
        self.report_moved(&old);
        self.free_fragments(&old.sad).await;
        // What they counted has come back by now.
        Arc::make_mut(&mut self.totals).retire(&gone);
        free_aside(old);
        Ok(Ok(gone))
    }

    /// Returns the live parts with the remote ends that SAs and sets have in a snapshot that comes.
    /// Cost: by the SAs of changed sets.
    pub(super) fn live_towards_ends(&self, next: &Compiled, snapshot: &Snapshot) -> Arc<LiveParts> {
        let mut live = self.live.clone();
        for end in next.sad.remotes_of_changed(&self.compiled.sad) {
            let has_end = snapshot.sets_towards(end.into()).next().is_some();
            match (live.has_remote(end.into()), has_end) {
                (false, true) => live = live.towards(end).into(),
                (true, false) => live = live.away_from(end).into(),
                (true, true) | (false, false) => {}
            }
        }
        live
    }
}
