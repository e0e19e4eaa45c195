//! Single SAs that come and go: a snapshot, and nothing else.

use std::sync::Arc;

use control::{ChangedSas, GoneSa};
use dataplane::SnapshotError;

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
        self.withhold_fragments(&compiled.sad).await;
        let old = std::mem::replace(&mut self.compiled, compiled);
        self.publish(snapshot, None).await?;
        self.free_fragments(&old.sad).await;
        // What they counted has come back by now.
        Arc::make_mut(&mut self.totals).retire(&gone);
        free_aside(old);
        Ok(Ok(gone))
    }
}
