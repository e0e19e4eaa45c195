//! Publishes snapshots to the workers, with fresh flow caches and counters where these are needed.

use std::sync::Arc;

use control::validated::Cache;
use dataplane::counters::Volume;
use dataplane::{CounterRoom, Counters, FlowCache, GoneSas, Snapshot};

use crate::caches::{self, CacheError, When};
use crate::events::Kind;
use crate::state::{State, netdevs};
use crate::worker::{Command, Counted, Next, NextCache, NextCounters, Retired, WorkerGone};

impl State {
    /// Makes a snapshot the one that every worker walks by, and returns when all do.
    pub(crate) async fn publish(&mut self, snapshot: Arc<Snapshot>) -> Result<(), WorkerGone> {
        self.publish_with(snapshot, None).await
    }

    /// Publishes a snapshot with other flow caches, one a worker. `None`: the workers keep theirs,
    /// unless generations began anew. Makes here what else a worker needs, and frees aside what it
    /// needs no more.
    pub(crate) async fn publish_with(
        &mut self,
        snapshot: Arc<Snapshot>,
        caches: Option<Vec<Option<FlowCache>>>,
    ) -> Result<(), WorkerGone> {
        let arrangement = (snapshot.layout() != self.snapshot.layout()).then(|| {
            let old = self.device_names.clone();
            netdevs(self.config())
                .iter()
                .map(|name| old.iter().position(|old| old == name))
                .collect::<Vec<_>>()
        });
        let [before, after] = [&self.snapshot, &snapshot].map(|snapshot| snapshot.spd().wraps());
        let caches = match caches {
            // Generations began anew: an entry from before could look like one of now.
            None if before != after => Some(self.fresh_or_none().await),
            caches => caches,
        };
        let mut caches = caches.map(Vec::into_iter);
        let goes_on = CounterRoom::of(&snapshot) == CounterRoom::of(&self.snapshot);
        let gone = gone(&self.snapshot, &snapshot);
        let mut answers = Vec::new();
        for worker in &self.workers {
            let counters = match goes_on && arrangement.is_none() {
                true => NextCounters::Same(gone.clone()),
                false => NextCounters::Other(Box::new(Counters::new(&snapshot))),
            };
            let arrangement = arrangement.clone();
            let cache = match &mut caches {
                None => NextCache::Same,
                Some(caches) => NextCache::Other(caches.next().flatten()),
            };
            let next = Box::new(Next { snapshot: snapshot.clone(), arrangement, counters, cache });
            answers.push(worker.send(|reply| Command::Publish { next, reply })?);
        }
        let mut retired = Vec::with_capacity(answers.len());
        for answer in answers {
            let Retired { counted, snapshot, cache, wants_cache } =
                answer.await.map_err(|_| WorkerGone)?;
            match &counted {
                Counted::All(flushed) => self.totals.add(flushed),
                Counted::Gone(gone) => self.totals.add_gone(&snapshot, gone),
            }
            self.cache_outworn |= wants_cache;
            retired.push((counted, snapshot, cache));
        }
        let old = std::mem::replace(&mut self.snapshot, snapshot);
        // Of very many policies that takes milliseconds.
        tokio::task::spawn_blocking(move || drop((old, retired)));
        self.device_names = netdevs(self.config());
        Ok(())
    }

    /// Gives every worker a fresh flow cache of the running configuration.
    pub(crate) async fn renew_caches(&mut self) -> Result<(), WorkerGone> {
        self.cache_outworn = false;
        let caches = self.fresh_or_none().await;
        self.publish_with(self.snapshot.clone(), Some(caches)).await
    }

    /// Fresh flow caches of the running configuration; none where they cannot be had: slower, and
    /// told, and tried again.
    async fn fresh_or_none(&mut self) -> Vec<Option<FlowCache>> {
        match self.fresh_caches(self.config().cache).await {
            Ok(caches) => caches,
            Err(error) => {
                self.events.record(Kind::CacheRefused, "", error.to_string(), &[]);
                self.cache_outworn = true;
                self.workers.iter().map(|_| None).collect()
            }
        }
    }

    /// Flow caches for the workers, made on a thread of its own.
    pub(crate) async fn fresh_caches(
        &self,
        cache: Cache,
    ) -> Result<Vec<Option<FlowCache>>, CacheError> {
        let cores = caches::cores_of(&self.workers);
        let make = move || caches::make(cache, &cores, When::Running);
        let made = tokio::task::spawn_blocking(make).await;
        made.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

/// Lists the SAs that are in a snapshot but no longer in the next, with counts of zero.
fn gone(before: &Snapshot, next: &Snapshot) -> GoneSas {
    let (outbound, inbound) = next.sad().gone_since(before.sad());
    GoneSas {
        outbound: outbound.iter().map(|sa| (sa.id, Volume::default())).collect(),
        inbound: inbound.iter().map(|sa| (sa.id, Volume::default())).collect(),
    }
}
