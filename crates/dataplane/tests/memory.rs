//! Checks the memory that a flow cache takes of the host: one test in a process of its own.

use dataplane::cache::{Batch, CacheUse, CachedRoute, ENTRIES_A_FLOW, FlowCache, Key};
use dataplane::{Snapshot, SnapshotParts};
use policy::{Deciders, FlowAction, FlowVerdict, PolicyIndex, PortClass, Question, Refusal};
use wire::{BATCH, Family, Flow, Upper};

/// Pages of this process in memory, bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("statm(5)");
    pages * 4096
}

#[test]
fn all_memory_is_taken_at_the_start_and_none_afterwards() {
    // FC-09, FC-13: more flows than entries, of which each is written.
    const FLOWS: usize = 1 << 17;
    const MIB: usize = 1 << 20;
    let snapshot = Snapshot::new(SnapshotParts::default()).expect("nothing");
    let tables = snapshot.tables();
    let scope = tables.scope(PortClass(0), Question::Leave, Family::V4, None);
    let mut batch = Batch::default();
    let key = |number: usize| {
        let upper = Upper::Ports { source: number as u16, destination: 53 };
        let (source, destination) = (number as u128 >> 16, 1);
        let flow =
            Flow { family: Family::V4, source, destination, protocol: 17, upper, opens: false };
        Key { scope, flow }
    };
    let without = resident();
    let mut cache =
        FlowCache::new(FLOWS * ENTRIES_A_FLOW, &[1; 32], CacheUse::Always).expect("memory");
    assert_eq!(cache.bytes(), 16 * MIB);
    assert!(resident() < without + 2 * MIB, "not used yet");
    cache.touch().expect("memory");
    let at_start = resident();
    // The table, and 24 + 8 bytes for each verdict.
    assert!((without + 19 * MIB..without + 22 * MIB).contains(&at_start), "{}", at_start - without);
    let mut keys = vec![key(0); BATCH];
    for first in (0..10 * FLOWS * ENTRIES_A_FLOW).step_by(BATCH) {
        keys.iter_mut().enumerate().for_each(|(at, place)| *place = key(first + at));
        let verdict = |key: &Key| {
            let Upper::Ports { source, .. } = key.flow.upper else { panic!("ports") };
            let number = (key.flow.source as u32) << 16 | u32::from(source);
            let slot = PolicyIndex(number / 8);
            let (action, deciders) = (FlowAction::Refuse(Refusal::Discard), Deciders::one(slot));
            (FlowVerdict { action, deciders, ..FlowVerdict::NOT_ASKED }, CachedRoute::Unknown)
        };
        batch.run(&mut cache, &snapshot, &keys, verdict, |_, _| {});
    }
    assert!(cache.is_full() && batch.counters.refused > 0);
    assert!(batch.counters.inserts > (FLOWS * ENTRIES_A_FLOW) as u64, "{:?}", batch.counters);
    assert!(resident() < at_start + MIB, "{} bytes more", resident() - at_start);
    drop(cache);
    assert!(resident() < without + 2 * MIB, "given back");
}
