//! Measures the table of connections alone, on one thread: finding an established connection at
//! several loads (one by one, and in batches of 64 whose memory is asked for ahead), reading and
//! observing it at its place, finding one that is not there, and opening one (SYN, SYN+ACK, ACK).
//! Keys in random order; nanoseconds of the thread's own time, medians of several rounds.
//!
//! `cargo run --release -p dataplane --example connections [MAX]`

use std::hint::black_box;

use dataplane::connections::{Connections, Inserted, Judgement, Key, Limits, Place, Zone};
use policy::connection::{Segment, Shown, Timeouts};
use policy::{DomainId, Generation, PolicyIndex};
use wire::{BATCH, Family, Flow, Upper};

const ROUNDS: usize = 5;
const LOOKUPS: usize = 1 << 20;
const NOW_S: u32 = 1000;

fn main() {
    let max = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(256 << 10);
    println!(
        "{:>8} {:>4} {:>6} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>9}",
        "max",
        "ip",
        "load",
        "find",
        "in batch",
        "at place",
        "observe",
        "not there",
        "refused",
        "opened/s"
    );
    for family in [Family::V4, Family::V6] {
        for load in [1, 50, 90] {
            measure(max, family, load);
        }
    }
}

fn measure(max: u32, family: Family, load: u32) {
    let limits = Limits { half_open_per_zone: max, ..Limits::of(max) };
    let table = Connections::new(limits, Timeouts::default(), &[9; 32]);
    let width = if family == Family::V6 { 2 } else { 1 };
    let count = max / width * load / 100;
    let keys: Vec<Key> = (0..count).map(|number| key(number, family)).collect();
    let begin = own_time_ns();
    let places: Vec<Option<Place>> = keys.iter().map(|key| open(&table, key)).collect();
    let opened = match own_time_ns() - begin {
        // A few ticks of the kernel's are no measurement.
        0..20_000_000 => "-".to_string(),
        took => format!("{:.0}", f64::from(count) * 1e9 / took as f64),
    };
    let refused = places.iter().filter(|place| place.is_none()).count();
    let mut there: Vec<(Key, Place)> =
        keys.iter().zip(places).filter_map(|(key, place)| Some((*key, place?))).collect();
    shuffle(&mut there);
    let others: Vec<(Key, Place)> =
        (0..count).map(|number| (key(number + (1 << 30), family), Place(0))).collect();
    let find = nanoseconds(&there, |key, _| table.find(key, NOW_S).is_some());
    let in_batch = nanoseconds_in_batches(&table, &there);
    let at = nanoseconds(&there, |key, place| table.at(place, key, NOW_S).is_some());
    let observe = nanoseconds(&there, |key, place| {
        black_box(table.observe(place, key, Shown::Tcp(Segment::Ack), NOW_S));
        true
    });
    let not_there = nanoseconds(&others, |key, _| table.find(key, NOW_S).is_none());
    let ip = if family == Family::V4 { 4 } else { 6 };
    println!(
        "{max:>8} {ip:>4} {load:>5}% {find:>8.1} {in_batch:>8.1} {at:>8.1} {observe:>8.1} \
         {not_there:>9.1} {refused:>8} {opened:>9}"
    );
}

/// Inserts a connection and establishes it.
fn open(table: &Connections, key: &Key) -> Option<Place> {
    let judgement =
        Judgement { rule: PolicyIndex(1), domain: DomainId(1), generation: Generation(1) };
    let syn = Shown::Tcp(Segment::Syn);
    let Inserted::New(place) = table.insert(key, syn, judgement, NOW_S) else { return None };
    table.observe(place, &key.reversed(), Shown::Tcp(Segment::SynAck), NOW_S);
    table.observe(place, key, Shown::Tcp(Segment::Ack), NOW_S);
    Some(place)
}

/// Nanoseconds of one call.
fn nanoseconds(keys: &[(Key, Place)], call: impl Fn(&Key, Place) -> bool) -> f64 {
    median(keys, || {
        for (key, place) in keys {
            assert!(call(black_box(key), *place));
        }
    })
}

/// Nanoseconds of finding one key of a batch whose memory was asked for ahead.
fn nanoseconds_in_batches(table: &Connections, keys: &[(Key, Place)]) -> f64 {
    median(keys, || {
        for batch in keys.chunks(BATCH) {
            batch.iter().for_each(|(key, _)| table.prefetch(key));
            assert!(batch.iter().all(|(key, _)| table.find(black_box(key), NOW_S).is_some()));
        }
    })
}

/// Median of rounds: nanoseconds of one key.
fn median(keys: &[(Key, Place)], lap: impl Fn()) -> f64 {
    let laps = LOOKUPS.div_ceil(keys.len().max(1));
    let round = |_| {
        let begin = own_time_ns();
        (0..laps).for_each(|_| lap());
        (own_time_ns() - begin) as f64 / (laps * keys.len().max(1)) as f64
    };
    let mut rounds: Vec<f64> = (0..ROUNDS).map(round).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// Nanoseconds that this thread has run; the kernel writes them down at each of its ticks.
fn own_time_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next().and_then(|number| number.parse().ok());
    first.expect("a kernel with /proc/thread-self/schedstat")
}

fn key(number: u32, family: Family) -> Key {
    let high = if family == Family::V6 { 0xfd << 120 } else { 10 << 24 };
    let (source, destination) = (high | u128::from(number >> 12), high | 2 << 16);
    let upper = Upper::Ports { source: 1024 + (number as u16 & 0xfff), destination: 443 };
    let flow = Flow { family, source, destination, protocol: 6, upper, opens: false };
    Key::of(&flow, Zone { attachment: 1, vni: 0 }).expect("ports")
}

/// Fisher and Yates, by a xorshift.
fn shuffle<T>(list: &mut [T]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for at in (1..list.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        list.swap(at, (state % (at as u64 + 1)) as usize);
    }
}
