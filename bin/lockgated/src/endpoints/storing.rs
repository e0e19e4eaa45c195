//! The thread of the store: commits what waits for it in one transaction, and writes the image
//! when it has nothing to do.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use store::{Change, Journal, MemoryStore, SqliteStore, Store, StoreError};
use tokio::sync::oneshot;

use crate::events::{Events, Kind};

/// Time after which changes that could not be stored are tried again, and after which a store that
/// is left alone writes its image.
const PAUSE: Duration = Duration::from_secs(5);
/// Changes since the last image that are worth another one.
const WORTH_AN_IMAGE: u64 = 50_000;
/// Time that is waited for the next batch of many.
const BETWEEN_BATCHES: Duration = Duration::from_millis(10);
/// The most changes that are committed together.
const MOST_IN_ONE: usize = 1 << 20;
/// Changes that are kept while the store fails; with more, none of them is tried again.
const MOST_KEPT: usize = 4 << 20;

/// A batch to be stored.
pub(super) struct Job {
    pub(super) changes: Vec<Change>,
    /// Revisions of changes that came too late: they go to the journal alone.
    pub(super) stale: Vec<u64>,
    /// The book's floor behind these changes.
    pub(super) floor: u64,
    pub(super) done: oneshot::Sender<Result<u64, Arc<str>>>,
}

/// A store with, perhaps, an image for the next start.
pub(super) trait Imaged: Store {
    fn write_image(&mut self) -> Result<(), StoreError>;
}

impl Imaged for SqliteStore {
    fn write_image(&mut self) -> Result<(), StoreError> {
        SqliteStore::write_image(self).map(drop)
    }
}

impl Imaged for MemoryStore {
    fn write_image(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The thread.
pub(super) struct Storing(Option<JoinHandle<()>>);

impl Storing {
    /// Starts it; it ends when the sender is gone.
    pub(super) fn begin(store: Box<dyn Imaged>, events: Events) -> (Storing, Sender<Job>) {
        let (jobs, waiting) = mpsc::channel();
        let run = move || StoreThread::new(store, events).run(&waiting);
        let thread = std::thread::Builder::new().name("store".into()).spawn(run);
        // Without a thread the receiver is gone, and each batch is told that it is not durable.
        (Storing(thread.ok()), jobs)
    }

    /// Waits for its end.
    pub(super) fn end(mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

struct StoreThread {
    store: Box<dyn Imaged>,
    events: Events,
    /// Changes that could not be stored.
    kept: Vec<Change>,
    /// Revisions that could not be journaled.
    kept_stale: Vec<u64>,
    /// The book's floor behind what was stored.
    floor: u64,
    /// The time when the store last forgot tombstones.
    forgot: Instant,
    /// Changes since the last image.
    since_image: u64,
}

impl StoreThread {
    fn new(store: Box<dyn Imaged>, events: Events) -> StoreThread {
        let (kept, kept_stale, forgot) = (Vec::new(), Vec::new(), Instant::now());
        StoreThread { store, events, kept, kept_stale, floor: 0, forgot, since_image: 0 }
    }

    fn run(mut self, waiting: &Receiver<Job>) {
        loop {
            if self.forgot.elapsed() >= PAUSE {
                self.forget();
            }
            match waiting.recv_timeout(PAUSE) {
                Ok(job) => self.commit(self.gather(job, waiting)),
                Err(RecvTimeoutError::Timeout) if self.is_behind() => self.commit(vec![]),
                Err(RecvTimeoutError::Timeout) if self.since_image >= WORTH_AN_IMAGE => {
                    self.write_image();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if self.is_behind() {
            self.commit(vec![]);
        }
        self.forget();
        if self.since_image > 0 {
            self.write_image();
        }
    }

    /// Returns true if something could not be stored yet.
    fn is_behind(&self) -> bool {
        !self.kept.is_empty() || !self.kept_stale.is_empty()
    }

    /// Forgets the tombstones that the book has forgotten. Not while changes wait that the book
    /// took before: the store would refuse them.
    fn forget(&mut self) {
        self.forgot = Instant::now();
        if self.is_behind() || self.floor <= self.store.floor() {
            return;
        }
        if let Err(error) = self.store.forget_up_to(self.floor) {
            let message = format!("old deletions of endpoints stay in the store: {error}");
            self.events.record(Kind::StoreFailed, "", message, &[]);
        }
    }

    /// The batches that wait, up to what is good in one commit. Where some wait others are on their
    /// way: they are let come, so that applying them has the processor for itself.
    fn gather(&self, first: Job, waiting: &Receiver<Job>) -> Vec<Job> {
        let most = self.store.limits().good_batch.max(MOST_IN_ONE);
        let mut count = first.changes.len();
        let mut jobs = vec![first];
        let mut patience = Duration::ZERO;
        while count < most
            && let Ok(job) = waiting.recv_timeout(patience)
        {
            patience = BETWEEN_BATCHES;
            count += job.changes.len();
            jobs.push(job);
        }
        jobs
    }

    fn commit(&mut self, jobs: Vec<Job>) {
        self.kept.extend(jobs.iter().flat_map(|job| &job.changes));
        self.kept_stale.extend(jobs.iter().flat_map(|job| &job.stale));
        let floors = jobs.iter().map(|job| job.floor);
        self.floor = floors.fold(self.floor, u64::max);
        match self.store.commit(&self.kept, Journal::EachAnd(&self.kept_stale)) {
            Ok(number) => {
                self.since_image += self.kept.len() as u64;
                self.kept.clear();
                self.kept_stale.clear();
                answer(jobs, &Ok(number));
            }
            Err(error) => {
                let is_too_many = self.kept.len() + self.kept_stale.len() > MOST_KEPT;
                if is_too_many {
                    self.kept.clear();
                    self.kept_stale.clear();
                }
                let rest = match is_too_many {
                    true => "; too many wait for it: these are lost with the daemon",
                    false => "; they are tried again",
                };
                let message = format!("changes of endpoints are not stored: {error}{rest}");
                self.events.record(Kind::StoreFailed, "", message, &[]);
                answer(jobs, &Err(error.to_string().into()));
            }
        }
    }

    fn write_image(&mut self) {
        // Without one the next start takes longer.
        match self.store.write_image() {
            Ok(()) => self.since_image = 0,
            Err(error) => {
                let message = format!("no image of the endpoints for a fast start: {error}");
                self.events.record(Kind::StoreFailed, "", message, &[]);
                self.since_image = 0;
            }
        }
    }
}

fn answer(jobs: Vec<Job>, how: &Result<u64, Arc<str>>) {
    for job in jobs {
        // Whoever asked may have gone.
        let _ = job.done.send(how.clone());
    }
}
