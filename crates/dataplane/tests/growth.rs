//! Checks the memory of a flow cache that grows as the daemon's does: one test in a process of its
//! own.

use std::time::Duration;

use dataplane::cache::{
    Batch, CacheUse, CachedRoute, ENTRIES_A_FLOW, FIRST_ENTRIES, FlowCache, Key, Usage,
};
use dataplane::{Snapshot, SnapshotParts};
use policy::{Deciders, FlowAction, FlowVerdict, PolicyIndex, PortClass, Question};
use wire::{BATCH, Family, Flow, Upper};

/// The configured size: a million flows.
const MOST: usize = ENTRIES_A_FLOW << 20;
const MIB: usize = 1 << 20;

/// Pages of this process in memory, bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("statm(5)");
    pages * 4096
}

/// Pages that the kernel had to provide so far because something touched them.
fn faults() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux");
    let (_, fields) = text.rsplit_once(')').expect("proc_pid_stat(5)");
    fields.split_ascii_whitespace().nth(7).and_then(|n| n.parse().ok()).expect("minflt")
}

/// A cache as a worker gets it.
fn given(entries: usize) -> FlowCache {
    let mut cache = FlowCache::new(entries, &[1; 32], CacheUse::Always).expect("memory");
    cache.touch().expect("memory");
    cache
}

struct Traffic {
    snapshot: Snapshot,
    batch: Batch,
    keys: Vec<Key>,
}

/// A flow by number.
fn flow(number: usize) -> Flow {
    let upper = Upper::Ports { source: number as u16, destination: 53 };
    let (source, destination) = (number as u128 >> 16, 1);
    Flow { family: Family::V4, source, destination, protocol: 17, upper, opens: false }
}

impl Traffic {
    /// One packet of each of so many flows, under one policy.
    fn carry(&mut self, cache: &mut FlowCache, flows: usize) {
        let scopes = self.snapshot.tables();
        let scope = scopes.scope(PortClass(0), Question::Leave, Family::V4, None);
        let deciders = Deciders::one(PolicyIndex(0));
        let said = FlowVerdict { action: FlowAction::Permit, deciders, ..FlowVerdict::NOT_ASKED };
        for first in (0..flows).step_by(BATCH) {
            for (at, place) in self.keys.iter_mut().enumerate() {
                *place = Key { scope, flow: flow(first + at) };
            }
            let Traffic { snapshot, batch, keys } = self;
            batch.run(cache, snapshot, keys, |_| (said, CachedRoute::Unknown), |_, _| {});
        }
    }

    /// The size that the flows carried within the last second ask for.
    fn larger(&mut self, cache: &FlowCache) -> Option<usize> {
        let crowded_out = std::mem::take(&mut self.batch.counters).crowded_out;
        let (entries, is_full) = (cache.capacity(), cache.is_full());
        let over = Duration::from_secs(1);
        Usage { entries, most: MOST, crowded_out, over, is_full }.larger()
    }
}

#[test]
fn a_lab_takes_less_than_4_mib_and_a_larger_table_is_there_before_its_use() {
    // FC-09
    let snapshot = Snapshot::new(SnapshotParts::default()).expect("nothing");
    let keys = vec![Key { scope: policy::Scope::default(), flow: flow(0) }; BATCH];
    let mut traffic = Traffic { snapshot, batch: Batch::default(), keys };
    traffic.carry(&mut given(1024), BATCH);
    let without = resident();
    let mut cache = given(FIRST_ENTRIES);
    assert_eq!(cache.bytes(), 2 * MIB);
    let first = resident() - without;
    assert!((2 * MIB..4 * MIB).contains(&first), "{first} bytes");
    // As many flows as a lab has, and as many as the first table is made for: nothing grows.
    for flows in [64, FIRST_ENTRIES / ENTRIES_A_FLOW] {
        traffic.carry(&mut cache, flows);
        traffic.carry(&mut cache, flows);
        assert_eq!(traffic.larger(&cache), None);
    }
    // A million flows: up to the configured size.
    let mut sizes = vec![cache.capacity()];
    loop {
        let before = faults();
        traffic.carry(&mut cache, 1 << 20);
        assert!(faults() < before + 8, "{} pages were not there", faults() - before);
        let Some(larger) = traffic.larger(&cache) else { break };
        cache = given(larger);
        sizes.push(larger);
    }
    assert_eq!(sizes, [1 << 16, 1 << 18, 1 << 20, 1 << 22]);
    let whole = resident() - without;
    assert!((128 * MIB..140 * MIB).contains(&whole), "{whole} bytes");
}
