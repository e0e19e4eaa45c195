//! Measures a lookup in the flow cache alone: keys made, hashed, looked up in batches of 64, in
//! random order; nanoseconds of the thread's own time, medians of several rounds.
//!
//! `cargo run --release -p dataplane --example cache [FLOWS ...]`

use dataplane::cache::{Batch, CacheUse, CachedRoute, ENTRIES_A_FLOW, FlowCache, Key};
use dataplane::{NextHopId, RouteGeneration, Snapshot, SnapshotParts};
use policy::{Book, Deciders, DomainId, FlowVerdict, PolicyIndex, PortClass, ScopeBits, Spd};
use wire::{BATCH, Family, Flow, Upper};

const ROUNDS: usize = 9;

fn main() {
    let flows: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let flows = if flows.is_empty() { vec![1, 20_000, 1 << 20] } else { flows };
    println!(
        "{:>8} {:>4} {:>8} {:>8} {:>8} {:>8}",
        "flows", "ip", "hit", "stale", "miss", "lost %"
    );
    for count in flows {
        for family in [Family::V4, Family::V6] {
            measure(count, family);
        }
    }
}

fn measure(count: usize, family: Family) {
    let snapshot = snapshot(0);
    let room = (count * ENTRIES_A_FLOW).max(64) * if family == Family::V6 { 2 } else { 1 };
    let mut cache = FlowCache::new(room, &[9; 32], CacheUse::Always).expect("memory");
    cache.touch().expect("memory");
    let mut keys: Vec<Key> = (0..count as u32).map(|number| key(number, family)).collect();
    shuffle(&mut keys);
    let laps = (4_000_000 / count.max(BATCH)).max(1);
    let mut batch = Batch::default();
    let mut lap = |cache: &mut FlowCache, snapshot: &Snapshot, keys: &[Key], laps: usize| {
        let deciders = Deciders::one(PolicyIndex(7));
        let said =
            (FlowVerdict { deciders, ..FlowVerdict::NOT_ASKED }, CachedRoute::Via(NextHopId(3)));
        let (begin, mut sum) = (own_time_ns(), 0);
        for keys in (0..laps).flat_map(|_| keys.chunks(BATCH)) {
            batch.run(
                cache,
                snapshot,
                keys,
                |_| said,
                |_, found| sum += u32::from(found.is_some()),
            );
        }
        let lookups = (laps * keys.len()) as f64;
        ((own_time_ns() - begin) as f64 / lookups, f64::from(sum) / lookups)
    };
    let one = if count < BATCH { vec![keys[0]; BATCH] } else { keys };
    let (miss, _) = lap(&mut cache, &snapshot, &one, 1);
    let mut hits: Vec<(f64, f64)> =
        (0..ROUNDS).map(|_| lap(&mut cache, &snapshot, &one, laps)).collect();
    hits.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (hit, found) = hits[ROUNDS / 2];
    // The same flows at another generation of the routes: found, and their way is not.
    let (stale, _) = lap(&mut cache, &self::snapshot(1), &one, 1);
    let lost = 100.0 * (1.0 - found);
    let ip = if family == Family::V4 { 4 } else { 6 };
    println!("{count:>8} {ip:>4} {hit:>8.1} {stale:>8.1} {miss:>8.1} {lost:>8.3}");
}

/// Nanoseconds that this thread has run; the kernel writes them down at each of its ticks.
fn own_time_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next().and_then(|number| number.parse().ok());
    first.expect("a kernel with /proc/thread-self/schedstat")
}

fn snapshot(routes: u32) -> Snapshot {
    let parts = SnapshotParts {
        spd: Spd::default().into(),
        route_generation: RouteGeneration(routes),
        ..SnapshotParts::default()
    };
    Snapshot::new(parts).expect("nothing that could not fit together")
}

fn key(number: u32, family: Family) -> Key {
    let (source, destination) = match family {
        Family::V4 => (10 << 24 | u128::from(number >> 12), 10 << 24 | 2 << 16),
        Family::V6 => (0xfd << 120 | u128::from(number >> 12), 0xfd << 120 | 2),
    };
    let upper = Upper::Ports { source: number as u16 & 0xfff, destination: 443 };
    let flow = Flow { family, source, destination, protocol: 17, upper, opens: false };
    let domain = DomainId::new(PortClass(0), Book::SpdOut, family);
    let scope = ScopeBits::of(4).scope(domain, None);
    Key { scope, flow }
}

/// Fisher and Yates, by a xorshift.
fn shuffle(keys: &mut [Key]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for at in (1..keys.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        keys.swap(at, (state % (at as u64 + 1)) as usize);
    }
}
