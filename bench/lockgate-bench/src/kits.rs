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
    /// Policies of both families, by their kind. Every lap uses the same ones, with the
    /// same generations, and caches of their own: otherwise a cache would hold entries of other
    /// policies.
    spds: HashMap<Policies, Arc<Spd>>,
}

/// The policies of a benchmark: PROTECT for some number of peers, or BYPASS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Policies {
    peers: usize,
    are_bypass: bool,
}

impl Policies {
    /// The policies of a case.
    pub(super) fn of(case: &Case) -> Policies {
        Policies { peers: case.sas, are_bypass: case.direction == Direction::Bypass }
    }
}

/// One worker's equipment.
pub(super) struct Kit {
    pub(super) frames: MemoryFrames,
    pub(super) caches: Caches,
}

/// Caches of a worker, one for each use and kind of policies, made when first needed.
pub(super) struct Caches {
    entries: usize,
    /// By their use and the policies.
    made: HashMap<(CacheUse, Policies), FlowCache>,
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

    /// The policies of a kind.
    ///
    /// # Errors
    /// The policies are refused; this is not expected.
    pub(super) fn spd(&mut self, kind: Policies) -> Result<Arc<Spd>, LapError> {
        if let Some(spd) = self.spds.get(&kind) {
            return Ok(spd.clone());
        }
        let families = (0..).zip([Family::V4, Family::V6]);
        let peers = kind.peers as u32;
        let policies =
            families.flat_map(|(n, family)| any_of(family, kind).peers_policies(n * peers, n + 1));
        let spd: Arc<Spd> = Spd::new(policies.collect())?.into();
        self.spds.insert(kind, spd.clone());
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
        (caching, kind): (Caching, Policies),
    ) -> Result<Option<FlowCache>, LapError> {
        let Some(use_) = caching.use_() else { return Ok(None) };
        match self.made.remove(&(use_, kind)) {
            Some(cache) => Ok(Some(cache)),
            None => fresh(self.entries, use_).map(Some),
        }
    }

    /// Takes back the equipment that was lent.
    pub(super) fn take_back(
        &mut self,
        (caching, kind): (Caching, Policies),
        cache: Option<FlowCache>,
    ) {
        let use_ = caching.use_().map(|use_| (use_, kind));
        self.made.extend(use_.zip(cache));
    }
}

/// A case of a family, made for its policies alone.
fn any_of(family: Family, kind: Policies) -> Case {
    let (sas, suite, size) = (kind.peers, Suite::Null, 64);
    let direction = if kind.are_bypass { Direction::Bypass } else { Direction::Out };
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
        let one = Policies { peers: 1, are_bypass: false };
        assert!(caches.lend((Caching::Off, one)).unwrap().is_none());
        for caching in [Caching::Auto, Caching::Always] {
            let lent = caches.lend((caching, one)).unwrap();
            assert!(lent.as_ref().is_some_and(|cache| cache.capacity() >= 64));
            caches.take_back((caching, one), lent);
        }
        assert_eq!(caches.made.len(), 2);
        // Of other policies.
        for other in [Policies { peers: 7, ..one }, Policies { are_bypass: true, ..one }] {
            assert!(caches.lend((Caching::Auto, other)).unwrap().is_some());
        }
        assert_eq!(caches.made.len(), 2);
        caches.take_back((Caching::Off, one), None);
        assert_eq!(caches.made.len(), 2);
    }
}
