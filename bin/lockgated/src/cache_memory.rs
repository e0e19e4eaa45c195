//! Memory for the workers' flow caches: made and touched beside the workers, on their nodes, and
//! handed in, so that no worker ever waits for it. The first are small; `growth.rs` says which
//! worker gets a larger one.

use std::path::Path;

use config::validated::{Cache, CacheUse};
use dataplane::FlowCache;
use dataplane::cache::{entries_of_fresh, memory_bytes};

/// Reason why there is no flow cache of the configured size.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheError {
    /// Not that much memory is available.
    #[error(
        "a flow cache for {flows} flows takes {needed} bytes and {available} bytes of memory are \
         available: write a smaller number into [cache] flows, or \"off\""
    )]
    TooLarge {
        /// Flows that it is sized for.
        flows: u64,
        /// Bytes that the cache takes, over all workers.
        needed: u64,
        /// Bytes of memory that the kernel reports as available.
        available: u64,
    },
    /// Not that much memory is available for larger caches.
    #[error(
        "larger flow caches take {needed} bytes and {available} bytes of memory are available: \
         those in use stay"
    )]
    NoRoomToGrow {
        /// Bytes that they take.
        needed: u64,
        /// Bytes of memory that the kernel reports as available.
        available: u64,
    },
    /// The kernel refuses the memory.
    #[error("the flow cache of {bytes} bytes cannot be had: {error}")]
    Refused {
        /// Bytes of one worker's cache.
        bytes: u64,
        /// The kernel's error.
        error: std::io::Error,
    },
    /// There are no random numbers.
    #[error("no random number for the flow cache: {0}")]
    NoSecret(getrandom::Error),
}

/// IPv4 entries of each worker's cache; `None`: none is made.
pub(crate) type Sizes = Vec<Option<usize>>;

/// Returns the sizes of fresh caches. `before`: one entry a worker, the size that its cache last
/// had; 0: it had none.
pub(crate) fn sizes(cache: Cache, before: &[usize]) -> Sizes {
    let most = most_entries(cache, before.len());
    before.iter().map(|before| Some(entries_of_fresh(*before, most?))).collect()
}

/// Returns the most entries of each worker's cache, among `workers` workers; `None`: it is off.
pub(crate) fn most_entries(cache: Cache, workers: usize) -> Option<usize> {
    cache.size(workers as u32).map(|size| size.entries as usize)
}

/// Refuses a cache that, with all entries that it may have, is larger than the memory there is.
/// `freed`: bytes that it takes the place of.
///
/// # Errors
/// [`CacheError::TooLarge`].
pub(crate) fn check(cache: Cache, workers: u32, freed: u64) -> Result<(), CacheError> {
    let needed = bytes(cache, workers);
    match available_bytes() {
        // Pages of the old ones are given back when the new ones are there.
        Some(available) if needed.saturating_sub(freed) > available => {
            let flows = cache.flows();
            Err(CacheError::TooLarge { flows, needed, available })
        }
        _ => Ok(()),
    }
}

/// Refuses larger caches than there is memory for. Those in use go when the larger ones are there.
///
/// # Errors
/// [`CacheError::NoRoomToGrow`].
pub(crate) fn check_growth(sizes: &[Option<usize>]) -> Result<(), CacheError> {
    let all = sizes.iter().flatten().map(|entries| memory_bytes(*entries));
    let needed = all.fold(0, u64::saturating_add);
    match available_bytes() {
        Some(available) if needed > available => {
            Err(CacheError::NoRoomToGrow { needed, available })
        }
        _ => Ok(()),
    }
}

/// Returns the bytes that a cache takes over all workers at most; 0 if it is off.
pub(crate) fn bytes(cache: Cache, workers: u32) -> u64 {
    let of_worker = cache.size(workers).map_or(0, |size| memory_bytes(size.entries as usize));
    of_worker.saturating_mul(workers.into())
}

/// Fresh caches of these sizes for the workers on these cores, on their nodes, their memory there.
/// Blocks: some 30 ms for 128 MB.
///
/// # Errors
/// [`CacheError`]: none is kept.
pub(crate) fn make(
    cache: Cache,
    sizes: &[Option<usize>],
    cores: &[usize],
    when: When,
) -> Result<Vec<Option<FlowCache>>, CacheError> {
    let usage = match cache {
        Cache::On { usage: CacheUse::Auto, .. } | Cache::Off => dataplane::CacheUse::WherePaid,
        Cache::On { usage: CacheUse::Always, .. } => dataplane::CacheUse::Always,
    };
    let one = |(core, entries): (&usize, &Option<usize>)| {
        let Some(entries) = *entries else { return Ok(None) };
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(CacheError::NoSecret)?;
        let made = on_node_of(*core, cores, when, || {
            let mut cache = FlowCache::new(entries, &secret, usage)?;
            cache.touch().map(|()| cache)
        });
        let refused = |error| CacheError::Refused { bytes: memory_bytes(entries), error };
        made.map(Some).map_err(refused)
    };
    cores.iter().zip(sizes).map(one).collect()
}

/// The workers' state while caches are made: not started, or processing packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    /// The workers do not run yet: their cores are free.
    AtStart,
    /// The workers run: their cores are taken.
    Running,
}

/// Does something on a core of the node of `core`: memory lies where it is first touched. Where no
/// other core of the node is free it is done where we are.
fn on_node_of<T: Send>(
    core: usize,
    taken: &[usize],
    when: When,
    make: impl FnOnce() -> T + Send,
) -> T {
    let is_free = |other: &usize| when == When::AtStart || !taken.contains(other);
    let near: Vec<usize> = cores_near(core).into_iter().filter(is_free).collect();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut set = rustix::thread::CpuSet::new();
            near.iter().for_each(|core| set.set(*core));
            if set.count() > 0 {
                // Refused, the memory may be farther away: slower, not wrong.
                let _ = rustix::thread::sched_setaffinity(None, &set);
            }
            make()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The cores of a core's node, itself among them; itself alone where the kernel does not say.
fn cores_near(core: usize) -> Vec<usize> {
    let node_of = |core: usize| {
        let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).ok()?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut numbers = names.filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
        numbers.next()
    };
    let Some(node) = node_of(core) else { return vec![core] };
    let cores = 0..rustix::thread::CpuSet::MAX_CPU;
    let is_there = |core: &usize| Path::new(&format!("/sys/devices/system/cpu/cpu{core}")).exists();
    cores.take_while(is_there).filter(|core| node_of(*core) == Some(node)).collect()
}

/// `MemAvailable` of /proc/meminfo.
pub(crate) fn available_bytes() -> Option<u64> {
    available_in(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_in(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use dataplane::cache::{Batch, CachedRoute, FIRST_ENTRIES, Key};
    use dataplane::{Snapshot, SnapshotParts};
    use policy::{FlowAction, FlowVerdict, PortClass, Question, Refusal};
    use wire::{Family, Flow, Upper};

    use super::*;

    fn of(flows: u64) -> Cache {
        Cache::On { flows, usage: CacheUse::Always }
    }

    #[test]
    fn available_memory_is_read_as_the_kernel_writes_it() {
        let text = "MemTotal:       24683456 kB\nMemFree:  1 kB\nMemAvailable:   23702004 kB\n";
        assert_eq!(available_in(text), Some(23_702_004 * 1024));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn a_cache_larger_than_memory_is_refused_with_both_figures() {
        // FC-10, and the bad input "larger than memory".
        let error = check(of(1 << 40), 1, 0).unwrap_err().to_string();
        let needed = bytes(of(1 << 40), 1).to_string();
        assert!(error.contains(&needed) && error.contains("are available"), "{error}");
        assert!(check(of(1 << 40), 1, u64::MAX).is_ok(), "what it takes the place of is freed");
        assert!(check(of(1000), 2, 0).is_ok() && check(Cache::Off, 1, 0).is_ok());
    }

    #[test]
    fn each_worker_has_a_cache_of_its_share_or_none() {
        // FC-48
        // FC-13
        for (cache, before, entries) in [
            (of(1000), 0, Some(2048)),
            (of(1000), 1 << 18, Some(2048)),
            (of(1 << 20), 0, Some(FIRST_ENTRIES)),
            (of(1 << 20), 1 << 18, Some(1 << 18)),
            (Cache::Off, 1 << 18, None),
        ] {
            let sizes = sizes(cache, &[before; 2]);
            assert_eq!(sizes, [entries; 2], "{cache:?}");
            let caches = make(cache, &sizes, &[0, 0], When::Running).unwrap();
            let capacities = caches.iter().map(|cache| cache.as_ref().map(FlowCache::capacity));
            assert_eq!(capacities.collect::<Sizes>(), sizes);
        }
        let (first, second) = (Some(1 << 10), None);
        let caches = make(of(1000), &[first, second], &[0, 0], When::Running).unwrap();
        assert!(caches[0].is_some() && caches[1].is_none(), "the second keeps its own");
    }

    #[test]
    fn a_cache_grows_as_far_as_there_is_memory() {
        assert!(check_growth(&[Some(1 << 16), None]).is_ok() && check_growth(&[None]).is_ok());
        let error = check_growth(&[Some(1 << 50), Some(1 << 50)]).unwrap_err().to_string();
        let needed = 2 * memory_bytes(1 << 50);
        assert!(
            needed > 1 << 56 && error.contains(&needed.to_string()) && error.contains("stay"),
            "{error}"
        );
    }

    /// The ports of flows in the order of their places in a cache.
    fn places(cache: &mut FlowCache) -> Vec<Upper> {
        let snapshot = Snapshot::new(SnapshotParts::default()).unwrap();
        let tables = snapshot.tables();
        let scope = tables.scope(PortClass(0), Question::Leave, Family::V4, None);
        let key = |source: u16| {
            let upper = Upper::Ports { source, destination: 53 };
            let flow = Flow {
                family: Family::V4,
                source: 1,
                destination: 2,
                protocol: 17,
                upper,
                opens: false,
            };
            Key { scope, flow }
        };
        let keys: Vec<Key> = (0..32).map(key).collect();
        let action = FlowAction::Refuse(Refusal::NoMatch);
        let said = (FlowVerdict { action, ..FlowVerdict::NOT_ASKED }, CachedRoute::Unknown);
        Batch::default().run(cache, &snapshot, &keys, |_| said, |_, _| {});
        let (entries, _) = cache.entries(0, usize::MAX);
        entries.iter().map(|entry| entry.key.flow.upper).collect()
    }

    #[test]
    fn each_cache_puts_flows_into_places_that_nobody_can_tell_beforehand() {
        // FC-29: 32 flows, equally placed by chance once in more than 10^30.
        let sizes = [Some(2048); 2];
        let mut caches = make(of(1000), &sizes, &[0, 0], When::Running).unwrap();
        caches.extend(make(of(1000), &sizes[..1], &[0], When::AtStart).unwrap());
        let all: Vec<Vec<Upper>> = caches.iter_mut().flatten().map(places).collect();
        assert!(all.len() == 3 && all.iter().all(|places| places.len() > 24), "{all:?}");
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
    }
}
