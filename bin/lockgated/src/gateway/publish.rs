//! Publishes snapshots to the workers, with fresh flow caches and counters where these are needed.

use std::sync::Arc;

use config::validated::Cache;
use dataplane::{CounterRoom, Counters, FlowCache, Gone, Snapshot};

use super::Gateway;
use crate::caches::CacheError;
use crate::events::Kind;
use crate::worker::{Counted, Next, NextCache, NextCounters, Retired, WorkerGone};

/// Flow caches for the workers, one each.
pub(crate) type Caches = Vec<Option<FlowCache>>;

impl Gateway {
    /// Makes a snapshot the one that every worker walks by, and returns when all do.
    ///
    /// `caches`: other flow caches; `None`: the workers keep theirs, unless generations began anew.
    /// Makes here what else a worker needs, and frees aside what it needs no more.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(super) async fn publish(
        &mut self,
        snapshot: Arc<Snapshot>,
        caches: Option<Caches>,
    ) -> Result<(), WorkerGone> {
        let [before, after] = [&self.snapshot, &snapshot].map(|snapshot| snapshot.spd().wraps());
        let caches = match caches {
            // Generations began anew: an entry from before could look like one of now.
            None if before != after => Some(self.fresh_or_none().await),
            caches => caches,
        };
        let mut caches = caches.map(Vec::into_iter);
        let goes_on = CounterRoom::of(&snapshot) == CounterRoom::of(&self.snapshot);
        let gone = Gone::between(&self.snapshot, &snapshot);
        let mut next = Vec::with_capacity(self.workers);
        for _ in 0..self.workers {
            let counters = match goes_on {
                true => NextCounters::Same(gone.clone()),
                false => NextCounters::Other(Box::new(Counters::new(&snapshot))),
            };
            let cache = match &mut caches {
                None => NextCache::Same,
                Some(caches) => NextCache::Other(caches.next().flatten()),
            };
            let snapshot = snapshot.clone();
            next.push(Next { snapshot, counters, cache });
        }
        let mut dropped = Vec::with_capacity(self.workers);
        for retired in self.machine.publish(next).await? {
            let Retired { counted, snapshot, cache, wants_cache } = retired;
            let totals = Arc::make_mut(&mut self.totals);
            match &counted {
                Counted::All(flushed) => totals.add(flushed),
                Counted::Gone(gone) => totals.add_gone(&snapshot, gone),
            }
            self.cache_outworn |= wants_cache;
            dropped.push((counted, snapshot, cache));
        }
        let old = std::mem::replace(&mut self.snapshot, snapshot);
        // Of very many policies that takes milliseconds.
        aside(move || drop((old, dropped)));
        Ok(())
    }

    /// Gives every worker a fresh flow cache of the running configuration.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn renew_caches(&mut self) -> Result<(), WorkerGone> {
        self.cache_outworn = false;
        let caches = self.fresh_or_none().await;
        self.publish(self.snapshot.clone(), Some(caches)).await
    }

    /// Fresh flow caches of the running configuration; none where they cannot be had: slower, and
    /// told, and tried again.
    async fn fresh_or_none(&mut self) -> Caches {
        match self.fresh_caches(self.config().cache).await {
            Ok(caches) => caches,
            Err(error) => {
                self.events.record(Kind::CacheRefused, "", error.to_string(), &[]);
                self.cache_outworn = true;
                (0..self.workers).map(|_| None).collect()
            }
        }
    }

    /// Flow caches for the workers.
    ///
    /// # Errors
    /// [`CacheError`].
    pub(super) async fn fresh_caches(&mut self, cache: Cache) -> Result<Caches, CacheError> {
        self.machine.make_caches(cache).await
    }
}

/// Frees something large on a thread of its own.
pub(super) fn aside(free: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(free);
}
