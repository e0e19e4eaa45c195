//! Ways to all workers, for everybody who wants to know something of them. Asking them takes
//! nothing from whoever changes what runs.

use std::sync::Arc;

use dataplane::cache::{Key, Recall};
use dataplane::{Counters, Snapshot};

use crate::worker::{Caller, Command, Report, ReportLists, WorkerGone};

/// Policies whose counters a worker copies between two turns.
const COUNTED_AT_A_TIME: usize = 4096;

/// The workers, by their numbers.
#[derive(Clone)]
pub(crate) struct Workers(Arc<[Caller]>);

impl Workers {
    pub(crate) fn new(callers: Vec<Caller>) -> Workers {
        Workers(callers.into())
    }

    pub(crate) fn all(&self) -> &[Caller] {
        &self.0
    }

    /// Returns each worker's report under a snapshot, counters included; `None`: one has gone over
    /// to another.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn reports(
        &self,
        snapshot: &Arc<Snapshot>,
    ) -> Result<Option<Vec<Report>>, WorkerGone> {
        let mut reports = self.brief_reports(snapshot).await?;
        let slots = snapshot.spd().slots();
        // Piece by piece: a worker copies no more of it between two turns.
        for from in (0..slots).step_by(COUNTED_AT_A_TIME) {
            let mut answers = Vec::new();
            for worker in self.all() {
                let into = Vec::with_capacity(COUNTED_AT_A_TIME.min(slots - from));
                let ask = |reply| Command::ReportPolicies { from, into, reply };
                answers.push(worker.send(ask)?);
            }
            for (report, answer) in reports.iter_mut().zip(answers) {
                let (under, counted) = answer.await.map_err(|_| WorkerGone)?;
                if !Arc::ptr_eq(&under, snapshot) {
                    return Ok(None);
                }
                let Counters { policy_outbound, policy_inbound, .. } = &mut report.flushed.counters;
                policy_outbound.extend(counted.iter().map(|[outbound, _]| *outbound));
                policy_inbound.extend(counted.iter().map(|[_, inbound]| *inbound));
            }
        }
        Ok(Some(reports))
    }

    /// Returns each worker's report without the counters of policies: the cost does not depend on
    /// the number of policies. The lists have room for `snapshot`, the workers' probable snapshot.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn brief_reports(
        &self,
        snapshot: &Snapshot,
    ) -> Result<Vec<Report>, WorkerGone> {
        let mut answers = Vec::new();
        for worker in self.all() {
            let lists = Box::new(ReportLists::with_room(snapshot));
            answers.push(worker.send(|reply| Command::Report { lists, reply })?);
        }
        let mut reports = Vec::new();
        for answer in answers {
            reports.push(answer.await.map_err(|_| WorkerGone)?);
        }
        Ok(reports)
    }

    /// Returns what each worker's flow cache would do with packets; `None`: it has none.
    pub(crate) async fn recall(&self, keys: &[Key]) -> Vec<Option<Vec<Recall>>> {
        let mut recalled = Vec::with_capacity(self.all().len());
        for worker in self.all() {
            let ask = |reply| Command::Recall { keys: keys.to_vec(), reply };
            // A worker that has ended ends the daemon.
            recalled.push(worker.ask(ask).await.unwrap_or_default());
        }
        recalled
    }
}
