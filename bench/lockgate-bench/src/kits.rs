//! Equipment that laps reuse: frames, flow caches, policies. A figure depends on where frames and
//! caches lie in memory, and allocating 128 MiB of cache for every lap would take too long.

use std::collections::HashMap;
use std::sync::Arc;

use dataplane::{CacheUse, FlowCache};
use io::memory::MemoryFrames;
use ipsec::Suite;
use policy::Spd;
use scene::{Case, Direction, SceneError};
use wire::Family;

use super::lap_error::LapError;
use super::subject::Caching;

/// Equipment of all workers, and the policies of all laps.
pub(super) struct Kits {
    /// One entry a worker.
    pub(super) workers: Vec<Kit>,
    /// Policies of both families, by the number of peers. Every lap uses the same ones, with the
    /// same generations, and caches of their own: otherwise a cache would hold entries of other
    /// policies.
    spds: HashMap<usize, Arc<Spd>>,
}

/// One worker's equipment.
pub(super) struct Kit {
    pub(super) frames: MemoryFrames,
    pub(super) caches: Caches,
}

/// Caches of a worker, one for each use and number of peers, made when first needed.
pub(super) struct Caches {
    entries: usize,
    /// By their use and the number of peers.
    made: HashMap<(CacheUse, usize), FlowCache>,
}

impl Kits {
    /// Makes the frames and caches of the workers, by the given numbers of flows and entries.
    pub(super) fn new(workers: usize, flows: usize, frame_bytes: usize, entries: usize) -> Kits {
        let kit = |_| Kit {
            frames: MemoryFrames::with_frame_bytes(flows as u32, frame_bytes),
            caches: Caches { entries, made: HashMap::new() },
        };
        Kits { workers: (0..workers).map(kit).collect(), spds: HashMap::new() }
    }

    /// The policies for this number of peers.
    ///
    /// # Errors
    /// The policies are refused; this is not expected.
    pub(super) fn spd(&mut self, peers: usize) -> Result<Arc<Spd>, LapError> {
        if let Some(spd) = self.spds.get(&peers) {
            return Ok(spd.clone());
        }
        let families = (0..).zip([Family::V4, Family::V6]);
        let policies = families
            .flat_map(|(n, family)| any_of(family, peers).peers_policies(n * peers as u32, n + 1));
        let spd: Arc<Spd> = Spd::new(policies.collect())?.into();
        self.spds.insert(peers, spd.clone());
        Ok(spd)
    }
}

impl Caches {
    /// Lends the cache that a row needs; `None`: the row runs without one.
    ///
    /// # Errors
    /// No memory, or no random bytes.
    pub(super) fn lend(
        &mut self,
        (caching, peers): (Caching, usize),
    ) -> Result<Option<FlowCache>, LapError> {
        let Some(use_) = caching.use_() else { return Ok(None) };
        match self.made.remove(&(use_, peers)) {
            Some(cache) => Ok(Some(cache)),
            None => fresh(self.entries, use_).map(Some),
        }
    }

    /// Takes back the equipment that was lent.
    pub(super) fn take_back(
        &mut self,
        (caching, peers): (Caching, usize),
        cache: Option<FlowCache>,
    ) {
        let use_ = caching.use_().map(|use_| (use_, peers));
        self.made.extend(use_.zip(cache));
    }
}

/// A case of a family, made for its policies alone.
fn any_of(family: Family, sas: usize) -> Case {
    let (direction, suite, size) = (Direction::Out, Suite::Null, 64);
    Case { direction, suite, family, size, flows: 1, backend: None, workers: 1, sas }
}

/// Makes a cache. Touches all of its memory, as the daemon does, so that no page fault occurs while
/// packets are processed.
///
/// # Errors
/// No memory, or no random bytes.
pub(super) fn fresh(entries: usize, use_: CacheUse) -> Result<FlowCache, LapError> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(SceneError::Random)?;
    let cache = FlowCache::new(entries, &secret, use_);
    let mut cache = cache.map_err(LapError::Memory)?;
    cache.touch().map_err(LapError::Memory)?;
    Ok(cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_has_a_cache_of_its_own_and_off_has_none() {
        let mut caches = Kits::new(1, 64, 2048, 64).workers.remove(0).caches;
        assert!(caches.lend((Caching::Off, 1)).unwrap().is_none());
        for caching in [Caching::Auto, Caching::Always] {
            let lent = caches.lend((caching, 1)).unwrap();
            assert!(lent.as_ref().is_some_and(|cache| cache.capacity() >= 64));
            caches.take_back((caching, 1), lent);
        }
        assert_eq!(caches.made.len(), 2);
        // Of other policies.
        assert!(caches.lend((Caching::Auto, 7)).unwrap().is_some());
        assert_eq!(caches.made.len(), 2);
        caches.take_back((Caching::Off, 1), None);
        assert_eq!(caches.made.len(), 2);
    }
}
