//! Memory for the workers' flow caches: made and touched beside the workers, on their nodes, and
//! handed in, so that no worker ever waits for it.

use std::path::Path;

use config::validated::{Cache, CacheUse};
use dataplane::FlowCache;

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

/// Refuses a cache that is larger than the memory there is. `freed`: bytes that it takes the place
/// of.
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

/// Returns the bytes that a cache takes over all workers; 0 if it is off.
pub(crate) fn bytes(cache: Cache, workers: u32) -> u64 {
    cache.size(workers).map_or(0, |size| size.bytes.saturating_mul(u64::from(workers)))
}

/// A fresh cache for each of the workers on these cores, on their nodes, its memory there; `None`s
/// if it is off. Blocks: some 30 ms for 128 MB.
///
/// # Errors
/// [`CacheError`]: none is kept.
pub(crate) fn make(
    cache: Cache,
    cores: &[usize],
    when: When,
) -> Result<Vec<Option<FlowCache>>, CacheError> {
    let (Some(size), Cache::On { usage, .. }) = (cache.size(cores.len() as u32), cache) else {
        return Ok(cores.iter().map(|_| None).collect());
    };
    let usage = match usage {
        CacheUse::Auto => dataplane::CacheUse::WherePaid,
        CacheUse::Always => dataplane::CacheUse::Always,
    };
    let one = |core: &usize| {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(CacheError::NoSecret)?;
        let made = on_node_of(*core, cores, when, || {
            let mut cache = FlowCache::new(size.entries as usize, &secret, usage)?;
            cache.touch().map(|()| cache)
        });
        made.map(Some).map_err(|error| CacheError::Refused { bytes: size.bytes, error })
    };
    cores.iter().map(one).collect()
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
fn available_bytes() -> Option<u64> {
    available_in(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_in(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use dataplane::cache::{Batch, Key, Way};
    use dataplane::{Snapshot, SnapshotParts};
    use policy::{Book, FlowAction, FlowVerdict, IngressClass, Refusal};
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
        let caches = make(of(1000), &[0, 0], When::Running).unwrap();
        let sizes: Vec<Option<usize>> =
            caches.iter().map(|cache| cache.as_ref().map(FlowCache::capacity)).collect();
        assert_eq!(sizes, [Some(2048), Some(2048)]);
        assert!(make(Cache::Off, &[0, 0], When::AtStart).unwrap().iter().all(Option::is_none));
    }

    /// The ports of flows in the order of their places in a cache.
    fn places(cache: &mut FlowCache) -> Vec<Upper> {
        let snapshot = Snapshot::new(SnapshotParts::default()).unwrap();
        let tables = snapshot.tables();
        let scope = tables.scope(IngressClass(0), Book::SpdOut, Family::V4, None);
        let key = |source: u16| {
            let upper = Upper::Ports { source, destination: 53 };
            let flow = Flow { family: Family::V4, source: 1, destination: 2, protocol: 17, upper };
            Key { scope, flow }
        };
        let keys: Vec<Key> = (0..32).map(key).collect();
        let action = FlowAction::Refuse(Refusal::NoMatch);
        let said = (FlowVerdict { action, ..FlowVerdict::NOT_ASKED }, Way::Unknown);
        Batch::default().run(cache, &snapshot, &keys, |_| said, |_, _| {});
        let (entries, _) = cache.entries(0, usize::MAX);
        entries.iter().map(|entry| entry.key.flow.upper).collect()
    }

    #[test]
    fn each_cache_puts_flows_into_places_that_nobody_can_tell_beforehand() {
        // FC-29: 32 flows, equally placed by chance once in more than 10^30.
        let mut caches = make(of(1000), &[0, 0], When::Running).unwrap();
        caches.extend(make(of(1000), &[0], When::AtStart).unwrap());
        let all: Vec<Vec<Upper>> = caches.iter_mut().flatten().map(places).collect();
        assert!(all.len() == 3 && all.iter().all(|places| places.len() > 24), "{all:?}");
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
    }
}
