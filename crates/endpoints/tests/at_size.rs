//! Tables of the sizes that are used: all endpoints are found, and how long that takes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use endpoints::{Book, Change, Endpoint, EndpointKey, Found, MAX_ENDPOINTS, Outcome, Table};
use wire::{Address, LinkAddress, Vni};

const SECRET: [u8; 32] = [7; 32];
/// Networks of a table, and hosts of each.
const NETWORKS: u64 = 1000;
const HOSTS: u64 = 64;

/// A number that looks random: no two are the same (the mixer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut n = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

fn mac(number: u64) -> LinkAddress {
    let [.., a, b, c, d, e] = number.to_be_bytes();
    LinkAddress::new([2, a, b, c, d, e])
}

/// Endpoint of a number: in every fourth network they are of IPv6.
fn endpoint(number: u64) -> Endpoint {
    let vni = number % NETWORKS;
    // In 10.0.0.0/8, each once a network: an odd factor permutes 24 bits.
    let low = (number / NETWORKS).wrapping_mul(0x9e_3779) & 0xff_ffff;
    let address = match vni % 4 {
        0 => Address::v6(0xfd00 << 112 | u128::from(mixed(number))),
        _ => Address::v4(10 << 24 | low as u32),
    };
    let host = Address::v4(0xc612_0000 + (mixed(number) % HOSTS) as u32);
    let vni = Vni::new(vni as u32).expect("24 bits");
    let host_mac = (!number.is_multiple_of(3)).then(|| mac(number ^ 1 << 39));
    Endpoint { key: EndpointKey { vni, address }, host, host_mac, mac: mac(number) }
}

fn puts(count: u64) -> Vec<Change> {
    (0..count).map(|n| Change::Put { revision: n + 1, endpoint: endpoint(n) }).collect()
}

fn filled(count: u64) -> (Book, Duration) {
    let mut book = Book::new(Table::new(count as usize, &SECRET).expect("memory"), 1000);
    let changes = puts(count);
    let start = processor_time();
    book.apply_each(&changes, |at, outcome| assert_eq!(outcome, Outcome::Applied, "{at}"));
    (book, processor_time() - start)
}

/// Fills a table to the last endpoint and looks for all of them, one more, and all hosts.
fn all_are_found(count: u64) {
    let (mut book, _) = filled(count);
    let table = book.table().clone();
    let numbers: Vec<u64> = (0..count).collect();
    let mut found = Vec::new();
    for numbers in numbers.chunks(1000) {
        let keys: Vec<EndpointKey> = numbers.iter().map(|n| endpoint(*n).key).collect();
        table.find_many(&keys, &mut found);
        for (number, found) in numbers.iter().zip(&found) {
            let endpoint = endpoint(*number);
            assert_eq!(*found, Some(Found::from(endpoint)), "endpoint {number}");
            assert!(table.has_host(endpoint.key.vni, endpoint.host));
            assert_eq!(table.find(endpoint.key), *found);
        }
    }
    assert_eq!(table.find(endpoint(count).key), None);
    let one_more = Change::Put { revision: count + 1, endpoint: endpoint(count) };
    assert!(matches!(book.apply(&[one_more])[..], [Outcome::Refused(_)]), "the table is full");
    assert!(book.iter(None, None).map(|known| known.endpoint.key).is_sorted());
    assert_eq!(book.iter(None, None).count() as u64, count);
}

#[test]
fn all_endpoints_of_a_table_of_64_k_are_found() {
    // AX-22: and the largest, which takes longer, has room for as many as Arion's.
    assert_eq!(MAX_ENDPOINTS, 4_194_304);
    all_are_found(65_536);
}

#[test]
#[ignore = "make test-long PART=endpoints: 4 million endpoints"]
fn all_endpoints_of_the_largest_table_are_found() {
    // AX-22
    all_are_found(MAX_ENDPOINTS as u64);
}

/// Memory of the process that is in use, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
    pages * 4096
}

/// Time for which this thread has had a processor: others may use the machine, too.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("proc is mounted");
    let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.expect("nanoseconds"))
}

/// Nanoseconds of each of `count` calls, the best of some rounds.
fn best_ns(count: usize, mut round: impl FnMut()) -> f64 {
    let rounds = (0..7).map(|_| {
        let start = Instant::now();
        round();
        start.elapsed().as_secs_f64() * 1e9 / count as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}

/// Lookups of random keys of a table, in its columns.
fn lookups(book: &Book, count: u64) -> String {
    let table = book.table();
    let present = |n: u64| endpoint(mixed(n) % count).key;
    let keys: Vec<EndpointKey> = (0..1 << 20).map(present).collect();
    let absent: Vec<EndpointKey> = (0..1 << 20).map(|n| endpoint(count + n).key).collect();
    let mut found = Vec::new();
    let mut many = |keys: &[EndpointKey]| {
        best_ns(keys.len(), || {
            for keys in keys.chunks(64) {
                table.find_many(keys, &mut found);
                black_box(&found);
            }
        })
    };
    let (hits, misses) = (many(&keys), many(&absent));
    let single = best_ns(keys.len(), || {
        keys.iter().for_each(|key| _ = black_box(table.find(*key)));
    });
    let hosts = best_ns(keys.len(), || {
        for key in &keys {
            black_box(table.has_host(key.vni, Address::v4(0xc612_0000)));
        }
    });
    format!("find_many {hits:6.1}, absent {misses:6.1}, find {single:6.1}, has_host {hosts:6.1} ns")
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    for count in [1000, 65_536, 1_000_000, MAX_ENDPOINTS as u64] {
        let before = resident();
        let (book, time) = filled(count);
        let bytes = (resident() - before) as f64 / count as f64;
        let put = time.as_secs_f64() * 1e9 / count as f64;
        println!("{count:9}: put {put:6.1} ns, {bytes:6.1} B, {}", lookups(&book, count));
    }
}

#[test]
#[ignore = "a measurement"]
fn speed_of_changes() {
    const COUNT: u64 = 1_000_000;
    let one_network = |n: u64, revision: u64, hosts: u64| {
        let mut endpoint = endpoint(n);
        endpoint.key = EndpointKey {
            vni: Vni::MAX,
            address: Address::v4(1 << 24 | (mixed(n) as u32 >> 1) & 0x3fff_ffff),
        };
        endpoint.host = Address::v4(0x0a00_0000 + (mixed(n) % hosts) as u32 + revision as u32);
        Change::Put { revision, endpoint }
    };
    for hosts in [100, COUNT] {
        let table = Table::new(MAX_ENDPOINTS, &SECRET).expect("memory");
        let mut book = Book::new(table, COUNT as usize);
        let mut timed = |what: &str, changes: Vec<Change>| {
            let start = processor_time();
            let mut applied = 0;
            book.apply_each(&changes, |_, it| applied += usize::from(it == Outcome::Applied));
            let ns = (processor_time() - start).as_secs_f64() * 1e9 / changes.len() as f64;
            println!("{hosts} hosts: {what:12} {ns:6.1} ns, {applied} applied");
        };
        timed("put", (0..COUNT).map(|n| one_network(n, 1, hosts)).collect());
        timed("put again", (0..COUNT).map(|n| one_network(n, 1, hosts)).collect());
        timed("other host", (0..COUNT).map(|n| one_network(n, 2, hosts)).collect());
        let delete = |change: Change| Change::Delete { revision: 3, key: change.key() };
        timed("delete", (0..COUNT).map(|n| delete(one_network(n, 3, hosts))).collect());
        timed("late put", (0..COUNT).map(|n| one_network(n, 2, hosts)).collect());
    }
}
