//! Says, of what the workers report once a second, which of them need larger flow caches.

use std::time::{Duration, Instant};

use config::validated::Cache;
use dataplane::cache::Usage;

use crate::cache_memory::{self, Sizes};
use crate::worker::Report;

/// Time from a refused allocation of larger caches to the next attempt.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// A worker's flow cache as it was reported.
#[derive(Clone, Copy)]
pub(crate) struct CacheSample {
    /// Room, in IPv4 entries; `None`: it has none.
    pub(crate) entries: Option<usize>,
    /// Entries crowded out since the start.
    crowded_out: u64,
    is_full: bool,
}

impl CacheSample {
    pub(crate) fn of(report: &Report) -> CacheSample {
        CacheSample {
            entries: report.cache.as_ref().map(|cache| cache.entries),
            crowded_out: report.cache_counters.crowded_out,
            is_full: report.cache.as_ref().is_some_and(|cache| cache.is_full),
        }
    }
}

/// The flow caches' use from second to second.
#[derive(Default)]
pub(crate) struct Growth {
    /// The last look, and what each worker had crowded out by then.
    last: Option<(Instant, Vec<u64>)>,
    /// Time of the last refused allocation of larger caches, unless one succeeded since.
    refused: Option<Instant>,
}

impl Growth {
    /// Returns the larger sizes that are needed; `None`: a worker keeps its cache.
    pub(crate) fn wanted(&mut self, now: Instant, cache: Cache, seen: &[CacheSample]) -> Sizes {
        let counts: Vec<u64> = seen.iter().map(|seen| seen.crowded_out).collect();
        let last = self.last.replace((now, counts));
        let most = cache_memory::most_entries(cache, seen.len());
        let (Some((then, before)), Some(most)) = (last, most) else {
            return vec![None; seen.len()];
        };
        let over = now.saturating_duration_since(then);
        let is_waiting =
            self.refused.is_some_and(|at| now.saturating_duration_since(at) < ASK_AGAIN);
        let larger = |(seen, before): (&CacheSample, &u64)| {
            let CacheSample { entries, crowded_out, is_full } = *seen;
            let (entries, crowded_out) = (entries?, crowded_out.saturating_sub(*before));
            Usage { entries, most, crowded_out, over, is_full }.larger().filter(|_| !is_waiting)
        };
        seen.iter().zip(&before).map(larger).collect()
    }

    /// Notes that the larger caches are in use.
    pub(crate) fn made(&mut self) {
        self.refused = None;
    }

    /// Notes that larger caches could not be allocated: the next attempt is a minute later.
    pub(crate) fn refused(&mut self, now: Instant) {
        self.refused = Some(now);
    }

    /// Returns whether the last allocation of larger caches was refused.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }
}

/// Says which workers have larger flow caches.
pub(crate) fn message(sizes: &[Option<usize>]) -> String {
    let larger = (0..).zip(sizes).filter_map(|(worker, entries): (usize, _)| {
        Some(format!("worker {worker} has room for {} entries", (*entries)?))
    });
    format!("the flow cache is larger: {}", larger.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use config::validated::CacheUse;
    use dataplane::cache::FIRST_ENTRIES;

    use super::*;

    const MILLION: Cache = Cache::On { flows: 1 << 20, usage: CacheUse::Auto };

    fn seen(entries: usize, crowded_out: u64) -> CacheSample {
        CacheSample { entries: Some(entries), crowded_out, is_full: false }
    }

    #[test]
    fn each_worker_gets_what_its_own_flows_need() {
        let (mut growth, start) = (Growth::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let (few, many) = (FIRST_ENTRIES as u64 / 64, 1_000_000);
        let first = [seen(FIRST_ENTRIES, many), seen(FIRST_ENTRIES, 0)];
        assert_eq!(growth.wanted(start, MILLION, &first), [None; 2], "nothing to compare with");
        let next = [seen(FIRST_ENTRIES, many + few), seen(FIRST_ENTRIES, many)];
        let larger = Some(4 * FIRST_ENTRIES);
        assert_eq!(growth.wanted(after(1), MILLION, &next), [None, larger]);
        // Counts go on where they were; four times the entries bear four times as many.
        let next = [seen(FIRST_ENTRIES, many + 3 * few), seen(4 * FIRST_ENTRIES, many + 4 * few)];
        assert_eq!(growth.wanted(after(2), MILLION, &next), [larger, None]);
        // Ten seconds later: as many a second are few.
        let next =
            next.map(|seen| CacheSample { crowded_out: seen.crowded_out + 10 * few, ..seen });
        assert_eq!(growth.wanted(after(12), MILLION, &next), [None; 2]);
    }

    #[test]
    fn a_cache_that_is_off_or_not_there_does_not_grow() {
        let (mut growth, start) = (Growth::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        growth.wanted(start, MILLION, &[seen(FIRST_ENTRIES, 0)]);
        let none = CacheSample { entries: None, ..seen(0, 1 << 30) };
        assert_eq!(growth.wanted(after(1), MILLION, &[none]), [None]);
        let pressed = seen(FIRST_ENTRIES, 1 << 40);
        assert_eq!(growth.wanted(after(2), Cache::Off, &[pressed]), [None]);
        let small = Cache::On { flows: 1000, usage: CacheUse::Auto };
        assert_eq!(growth.wanted(after(3), small, &[seen(4096, 1 << 50)]), [None]);
    }

    #[test]
    fn where_there_is_no_memory_it_is_asked_for_again_a_minute_later() {
        let (mut growth, start) = (Growth::default(), Instant::now());
        let full = [CacheSample { is_full: true, ..seen(FIRST_ENTRIES, 0) }];
        growth.wanted(start, MILLION, &full);
        growth.refused(start);
        let mut wanted = |seconds| growth.wanted(start + seconds, MILLION, &full);
        assert_eq!(wanted(ASK_AGAIN - Duration::from_secs(1)), [None]);
        assert_eq!(wanted(ASK_AGAIN), [Some(4 * FIRST_ENTRIES)]);
    }

    #[test]
    fn the_event_names_the_workers() {
        let text = message(&[None, Some(262_144), Some(65_536)]);
        let workers = "worker 1 has room for 262144 entries, worker 2 has room for 65536 entries";
        assert!(text.ends_with(workers), "{text}");
    }
}
