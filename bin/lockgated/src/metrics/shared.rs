//! One report for all scrapes of a second, rendered on a thread for blocking work.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use api::v1;
use axum::body::Bytes;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinError;
use tokio::time::Instant;

use super::exposition::Format;
use super::{Report, unserved};

/// Time for which a report is shared.
pub(super) const SHARED_TIME: Duration = Duration::from_secs(1);

/// A future of a source.
pub(crate) type SourceFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Source of the content of scrapes.
pub(crate) trait ScrapeSource: Send + Sync + 'static {
    /// Makes a report; its cost grows with the numbers of policies and SAs.
    fn report(self: Arc<Self>) -> SourceFuture<Report>;
    /// Returns the ports without their counters; its cost grows with the number of ports alone.
    fn ports(self: Arc<Self>) -> SourceFuture<Vec<v1::Port>>;
}

/// Content for all readers of a second. The first reader of a second makes the content; others
/// wait. The work goes on after the reader has gone, so no other reader begins the same work.
pub(super) struct SharedScrapes<S> {
    source: Arc<S>,
    /// Age at which a report is made anew.
    shared_time: Duration,
    report: Arc<Mutex<Option<SharedReport>>>,
    health: Arc<Mutex<Option<SharedHealth>>>,
}

/// A report and its texts as far as readers asked for them.
struct SharedReport {
    made: Instant,
    report: Arc<Report>,
    texts: [Option<Bytes>; 2],
}

/// The ports that were not served at a moment.
struct SharedHealth {
    made: Instant,
    faults: Arc<[String]>,
}

impl<S: ScrapeSource> SharedScrapes<S> {
    pub(super) fn new(source: Arc<S>, shared_time: Duration) -> Arc<SharedScrapes<S>> {
        let (report, health) = Default::default();
        Arc::new(SharedScrapes { source, shared_time, report, health })
    }

    /// Returns the text of the latest report, which is at most as old as a report is shared.
    ///
    /// # Errors
    /// The source or rendering panicked.
    pub(super) async fn text(self: &Arc<Self>, format: Format) -> Result<Bytes, JoinError> {
        let shared = self.report.clone().lock_owned().await;
        tokio::spawn(self.clone().text_in_turn(shared, format)).await?
    }

    /// Returns the text of the latest report. Makes an outdated report and a missing text anew.
    async fn text_in_turn(
        self: Arc<Self>,
        mut shared: OwnedMutexGuard<Option<SharedReport>>,
        format: Format,
    ) -> Result<Bytes, JoinError> {
        let shared = match &mut *shared {
            Some(report) if report.made.elapsed() < self.shared_time => report,
            outdated => {
                // Two reports at a time would take twice the memory.
                *outdated = None;
                let made = Instant::now();
                let report = Arc::new(self.source.clone().report().await);
                tokio::spawn(forget(Arc::downgrade(&self), made, self.shared_time));
                outdated.insert(SharedReport { made, report, texts: [None, None] })
            }
        };
        let text = &mut shared.texts[format as usize];
        if let Some(text) = text {
            return Ok(text.clone());
        }
        let report = shared.report.clone();
        let rendered = tokio::task::spawn_blocking(move || report.text(format)).await?;
        Ok(text.insert(Bytes::from(rendered)).clone())
    }

    /// Returns whether a report is held.
    #[cfg(test)]
    pub(super) async fn holds_report(&self) -> bool {
        self.report.lock().await.is_some()
    }

    /// Returns the ports that are not served, one sentence each, as of the last second.
    ///
    /// # Errors
    /// The source panicked.
    pub(super) async fn unserved(&self) -> Result<Arc<[String]>, JoinError> {
        let mut health = self.health.clone().lock_owned().await;
        if let Some(SharedHealth { made, faults }) = &*health
            && made.elapsed() < self.shared_time
        {
            return Ok(faults.clone());
        }
        let source = self.source.clone();
        let look = async move {
            let made = Instant::now();
            let faults: Arc<[String]> = unserved(&source.ports().await).into();
            *health = Some(SharedHealth { made, faults: faults.clone() });
            faults
        };
        tokio::spawn(look).await
    }
}

/// Drops a report that nobody may read any more: an idle listener holds none.
async fn forget<S: ScrapeSource>(
    scrapes: Weak<SharedScrapes<S>>,
    made: Instant,
    shared_time: Duration,
) {
    tokio::time::sleep_until(made + shared_time).await;
    let Some(scrapes) = scrapes.upgrade() else { return };
    let mut shared = scrapes.report.lock().await;
    if shared.as_ref().is_some_and(|report| report.made == made) {
        *shared = None;
    }
}
