//! Counts since the start with the picture that they belong to, and what readers make of both.
//! Threads for blocking work do it: the cost grows with the numbers of policies and SAs.

use std::sync::Arc;

use api::v1;

use crate::cache_report;
use crate::picture::Picture;
use crate::running::{CountedState, EntryIter, Running};
use crate::shown::{counters, ports, sa_entries};
use crate::totals::Totals;
use crate::worker::Report;

/// Counts since the start, with the picture that they belong to.
pub(crate) struct CountedPicture {
    pub(crate) picture: Arc<Picture>,
    pub(crate) reports: Vec<Report>,
    pub(crate) totals: Arc<Totals>,
}

impl CountedPicture {
    /// Adds up the workers' reports.
    pub(crate) fn of(picture: Arc<Picture>, reports: Vec<Report>) -> CountedPicture {
        let totals = Arc::new(picture.totals_with(&reports));
        CountedPicture { picture, reports, totals }
    }

    pub(crate) fn ports(&self) -> Vec<v1::Port> {
        ports(&self.picture, &self.reports, &self.totals)
    }

    pub(crate) fn counters(&self) -> v1::Counters {
        counters(&self.picture, &self.reports, &self.totals)
    }

    pub(crate) fn cache(&self) -> v1::Cache {
        cache_report::cache(&self.picture, &self.reports)
    }

    /// Returns the SAs, which are presented one by one.
    pub(crate) fn sas(&self) -> EntryIter<v1::SecurityAssociation> {
        sa_entries(self.picture.clone(), self.totals.clone())
    }

    /// Returns the state for answers that share the counts.
    pub(crate) fn into_state(self) -> CountedState {
        let (picture, totals) = (self.picture.clone(), self.totals.clone());
        let sas = Box::new(move || sa_entries(picture.clone(), totals.clone()));
        CountedState::new(self.into_running(), sas)
    }

    pub(crate) fn into_running(self) -> Running {
        let CountedPicture { picture, reports, totals } = self;
        let liveness = picture.liveness.clone();
        Running {
            settings: picture.config().clone(),
            ike_peers: picture.compiled.ike_peers().cloned().collect(),
            cache_entries: cache_report::entries(&picture, &reports),
            snapshot: picture.snapshot.clone(),
            routes: picture.live.routes.clone(),
            policies: totals.policies.clone(),
            actions: totals.actions,
            sas: totals.sas.clone(),
            retired: totals.retired.clone(),
            moves: picture.moves.clone(),
            liveness: Arc::new(move |peer: &str| liveness.of(peer)),
            ike_names: picture.ike_names.clone(),
            spis: control::Spis::Configured,
        }
    }
}
