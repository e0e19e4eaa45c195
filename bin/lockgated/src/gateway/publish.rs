//! Publishes snapshots to the workers, with fresh flow caches and counters where these are needed.

use std::sync::Arc;

use config::validated::Cache;
use dataplane::{CounterRoom, Counters, FlowCache, Snapshot, VacatedSlots};

use super::Gateway;
use super::connections::clear_outdated;
use crate::cache_memory::{self, CacheError, Sizes};
use crate::events::Kind;
use crate::freeing::free_aside;
use crate::worker::{Next, NextCache, NextCounters, RetiredParts, ReturnedCounts, WorkerGone};

/// Flow caches for the workers, one each.
pub(crate) type Caches = Vec<Option<FlowCache>>;

impl Gateway {
    /// Makes a snapshot the one that every worker walks by, and returns when all do.
    ///
    /// `caches`: one entry a worker; `None`: all keep theirs, unless generations began anew.
    /// Makes here what else a worker needs, and frees aside what it needs no more.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(super) async fn publish(
        &mut self,
        snapshot: Arc<Snapshot>,
        caches: Option<Vec<NextCache>>,
    ) -> Result<(), WorkerGone> {
        self.carry_less(&snapshot).await;
        let snapshot = self.cards.stamp(&self.snapshot, snapshot);
        let [before, after] = [&self.snapshot, &snapshot].map(|snapshot| snapshot.spd().wraps());
        let caches = match caches {
            // Generations began anew: an entry from before could look like one of now.
            None if before != after => Some(others(self.fresh_or_none().await)),
            caches => caches,
        };
        let mut caches = caches.map(Vec::into_iter);
        let goes_on = CounterRoom::of(&snapshot) == CounterRoom::of(&self.snapshot);
        let gone = VacatedSlots::between(&self.snapshot, &snapshot);
        let mut next = Vec::with_capacity(self.workers);
        for _ in 0..self.workers {
            let counters = match goes_on {
                true => NextCounters::Same(gone.clone()),
                false => NextCounters::Other(Box::new(Counters::new(&snapshot))),
            };
            let cache = caches.as_mut().and_then(Iterator::next).unwrap_or(NextCache::Same);
            let snapshot = snapshot.clone();
            next.push(Next { snapshot, counters, cache });
        }
        self.tier.narrow(&snapshot, &self.tier_places(&snapshot));
        let mut dropped = Vec::with_capacity(self.workers);
        for retired in self.machine.publish(next).await? {
            let RetiredParts { counted, snapshot, cache, wants_cache } = retired;
            let totals = Arc::make_mut(&mut self.totals);
            match &counted {
                ReturnedCounts::All(flushed) => totals.add(flushed),
                ReturnedCounts::Gone(gone) => totals.add_gone(&snapshot, gone),
            }
            self.caches_need_replacement |= wants_cache;
            dropped.push((counted, snapshot, cache));
        }
        let old = std::mem::replace(&mut self.snapshot, snapshot);
        clear_outdated(&old, self.snapshot.clone()).await;
        self.serve_tier();
        self.cards.release(&old, &self.snapshot);
        self.cards.order();
        self.carry_more().await;
        free_aside((old, dropped));
        Ok(())
    }

    /// Has the cards of the running configuration.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn has_cards_configured(&mut self) -> Result<(), WorkerGone> {
        let config = self.config().clone();
        self.cards.configure(&config);
        self.settle_cards().await.map(drop)
    }

    /// Has workers believe the tags of cards that count now, and no others; then asks the cards for
    /// what is due. Returns whether there is another snapshot.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn settle_cards(&mut self) -> Result<bool, WorkerGone> {
        let has_other_marks = self.cards.has_other_marks();
        match has_other_marks {
            true => self.publish(self.snapshot.clone(), None).await?,
            false => self.cards.order(),
        }
        Ok(has_other_marks)
    }

    /// Gives every worker a fresh flow cache of the running configuration.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn renew_caches(&mut self) -> Result<(), WorkerGone> {
        self.caches_need_replacement = false;
        let caches = self.fresh_or_none().await;
        self.publish(self.snapshot.clone(), Some(others(caches))).await
    }

    /// Allocates flow caches for the workers that need a larger one. `None` in the result: that
    /// worker keeps its cache.
    ///
    /// # Errors
    /// [`CacheError`]: none was made.
    pub(crate) async fn larger_caches(&mut self, sizes: Sizes) -> Result<Caches, CacheError> {
        self.machine.make_caches(self.config().cache, sizes).await
    }

    /// Gives workers their larger flow caches, which are empty at first. `None`: a worker keeps its
    /// own.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn grow_caches(&mut self, larger: Caches) -> Result<(), WorkerGone> {
        for (entries, larger) in self.cache_entries.iter_mut().zip(&larger) {
            *entries = larger.as_ref().map_or(*entries, FlowCache::capacity);
        }
        let next = larger.into_iter().map(|larger| match larger {
            None => NextCache::Same,
            larger => NextCache::Other(larger),
        });
        self.publish(self.snapshot.clone(), Some(next.collect())).await
    }

    /// Fresh flow caches of the running configuration; none where they cannot be had: slower, and
    /// told, and tried again.
    async fn fresh_or_none(&mut self) -> Caches {
        match self.fresh_caches(self.config().cache).await {
            Ok(caches) => caches,
            Err(error) => {
                self.events.record(Kind::CacheRefused, "", error.to_string(), &[]);
                self.caches_need_replacement = true;
                (0..self.workers).map(|_| None).collect()
            }
        }
    }

    /// Flow caches for the workers, as large as those in use as far as that is configured.
    ///
    /// # Errors
    /// [`CacheError`].
    pub(super) async fn fresh_caches(&mut self, cache: Cache) -> Result<Caches, CacheError> {
        let sizes = cache_memory::sizes(cache, &self.cache_entries);
        self.machine.make_caches(cache, sizes).await
    }
}

/// Returns the replacement of each worker's flow cache by one of these.
pub(super) fn others(caches: Caches) -> Vec<NextCache> {
    caches.into_iter().map(NextCache::Other).collect()
}
