//! Book and table against an obvious twin, and readers beside a writer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use wire::{Address, LinkAddress, Vni};

use crate::{
    AddressFault, Book, Change, Endpoint, EndpointKey, Found, InvalidEndpoint, Known,
    MAX_ENDPOINTS, MacFault, Outcome, Refusal, Table,
};

const SECRET: [u8; 32] = [3; 32];

/// Each key's last change that counted: its revision, and the endpoint unless it is deleted.
struct Twin {
    keys: BTreeMap<EndpointKey, (u64, Option<Endpoint>)>,
    max_endpoints: usize,
    max_tombstones: usize,
    floor: u64,
}

impl Twin {
    fn live(&self) -> impl Iterator<Item = Known> {
        let live = |(revision, endpoint): &(u64, Option<Endpoint>)| {
            Some(Known { endpoint: (*endpoint)?, revision: *revision })
        };
        self.keys.values().filter_map(live)
    }

    fn tombstones(&self) -> Vec<(EndpointKey, u64)> {
        let deleted = self.keys.iter().filter(|(_, (_, endpoint))| endpoint.is_none());
        let mut all: Vec<_> = deleted.map(|(key, (revision, _))| (*key, *revision)).collect();
        all.sort_by_key(|(key, revision)| (*revision, *key));
        all
    }

    fn apply(&mut self, change: &Change) -> Outcome {
        let (revision, new) = match change {
            Change::Put { revision, endpoint } => (*revision, Some(*endpoint)),
            Change::Delete { revision, .. } => (*revision, None),
        };
        if let Some(Err(invalid)) = new.map(|endpoint| endpoint.check()) {
            return Outcome::Refused(Refusal::Invalid(invalid));
        }
        let key = change.key();
        let old = self.keys.get(&key).copied();
        let known = old.map_or(self.floor, |(known, _)| known);
        if old == Some((revision, new)) {
            return Outcome::Repeated;
        }
        if revision <= known {
            return Outcome::Stale { known };
        }
        let (live, max) = (self.live().count(), self.max_endpoints);
        let is_new = old.is_none_or(|(_, endpoint)| endpoint.is_none());
        if new.is_some() && is_new && live == max {
            return Outcome::Refused(Refusal::Full { key, live, max });
        }
        self.keys.insert(key, (revision, new));
        if self.tombstones().len() > self.max_tombstones {
            self.floor = self.floor.max(self.tombstones()[0].1);
        }
        self.forget();
        Outcome::Applied
    }

    fn forget(&mut self) {
        let floor = self.floor;
        self.keys.retain(|_, (revision, endpoint)| endpoint.is_some() || *revision > floor);
    }
}

fn vnis() -> [Vni; 3] {
    [0, 1, 0xff_ffff].map(|number| Vni::new(number).expect("24 bits"))
}

/// Edges of what may be, numbers that both families have, and addresses that nobody may have.
fn addresses() -> [Address; 11] {
    [
        Address::v4(1),
        Address::v4(0x0a00_0001),
        Address::v6(0x0a00_0001),
        Address::v4(u32::MAX - 1),
        Address::v6(2),
        Address::v6(u128::from(u64::MAX)),
        Address::v6(1 << 64),
        Address::v6((0xff << 120) - 1),
        Address::v4(u32::MAX),
        Address::v6(1),
        Address { value: 1 << 32, ..Address::v4(0) },
    ]
}

fn hosts() -> [Address; 4] {
    [Address::v4(0xc000_0201), Address::v6(0xc000_0201), Address::v6(2 << 124), Address::v4(0)]
}

fn macs() -> [LinkAddress; 4] {
    [[2, 0, 0, 0, 0, 1], [0xfe, 255, 255, 255, 255, 255], [0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]]
        .map(LinkAddress::new)
}

/// A place in a list, the last ones, of what is refused, less often.
fn place(length: usize) -> impl Strategy<Value = usize> {
    prop_oneof![9 => 0..length - 1, 1 => 0..length]
}

fn key() -> impl Strategy<Value = EndpointKey> {
    (0..3usize, prop_oneof![9 => 0..8usize, 1 => 0..11usize])
        .prop_map(|(vni, at)| EndpointKey { vni: vnis()[vni], address: addresses()[at] })
}

fn change() -> impl Strategy<Value = Change> {
    let revision = prop_oneof![20 => 1..60u64, 1 => Just(0), 1 => Just(u64::MAX)];
    let put = (key(), place(4), prop::option::of(place(4)), place(4)).prop_map(
        |(key, host, host_mac, mac)| Endpoint {
            key,
            host: hosts()[host],
            host_mac: host_mac.map(|at| macs()[at]),
            mac: macs()[mac],
        },
    );
    (revision, put, 0..4u8).prop_map(|(revision, endpoint, kind)| match kind {
        0 => Change::Delete { revision, key: endpoint.key },
        _ => Change::Put { revision, endpoint },
    })
}

/// Checks all that can be asked, of every key that there may be.
fn same(book: &Book, twin: &Twin, recent: &mut crate::Recent) -> Result<(), TestCaseError> {
    let table = book.table();
    let all =
        vnis().into_iter().flat_map(|vni| addresses().map(|it| EndpointKey { vni, address: it }));
    let keys: Vec<EndpointKey> = all.collect();
    let mut found = Vec::new();
    table.find_many(&keys, &mut found);
    for (key, found) in keys.iter().zip(found) {
        let known = twin.live().find(|known| known.endpoint.key == *key);
        prop_assert_eq!(book.get(*key), known, "{}", key);
        prop_assert_eq!(found, known.map(|known| Found::from(known.endpoint)));
        prop_assert_eq!(table.find(*key), found);
        let probe = table.prefetch(*key);
        table.prefetch_endpoint(&probe);
        prop_assert_eq!(table.find_probed(&probe), found);
    }
    let mut column = crate::Column::default();
    for keys in keys.chunks(64) {
        keys.iter().enumerate().for_each(|(place, key)| column.set(place, *key));
        table.ask(recent, &mut column, keys.len());
        table.ask_endpoints(recent, &mut column);
        for (place, key) in keys.iter().enumerate() {
            let found = table.find(*key);
            let led = table.led(&column, place);
            let content = table.content(recent, &column, place);
            prop_assert_eq!(content.map(Found::from), found);
            prop_assert!(led.is_none() || led == content);
            for (host, mac) in hosts().into_iter().flat_map(|host| macs().map(|mac| (host, mac))) {
                let is_there = found.is_some_and(|it| (it.host, it.mac) == (host, mac));
                let sender = crate::Sender::new(host, mac);
                prop_assert_eq!(content.is_some_and(|it| it.is_at(&sender)), is_there);
            }
        }
    }
    let mut pairs = 0;
    for vni in vnis() {
        for host in hosts() {
            let lives_there = |it: Known| it.endpoint.key.vni == vni && it.endpoint.host == host;
            let expected = twin.live().any(lives_there);
            prop_assert_eq!(table.has_host(vni, host), expected, "{} in {}", host, vni);
            pairs += usize::from(expected);
        }
        let of_one: Vec<Known> = twin.live().filter(|it| it.endpoint.key.vni == vni).collect();
        prop_assert!(book.iter(Some(vni), None).eq(of_one.iter().copied()));
        let counted = book.live_by_vni().find(|(one, _)| *one == vni);
        prop_assert_eq!(counted.map_or(0, |(_, live)| live), of_one.len());
        for after in &keys {
            let rest = of_one.iter().copied().filter(|it| it.endpoint.key > *after);
            prop_assert!(book.iter(Some(vni), Some(*after)).eq(rest), "{vni} behind {after}");
        }
    }
    for after in &keys {
        let rest = twin.live().filter(|it| it.endpoint.key > *after);
        prop_assert!(book.iter(None, Some(*after)).eq(rest), "behind {after}");
    }
    prop_assert!(book.tombstones().eq(twin.tombstones()));
    let counts = book.counts();
    let numbers = (counts.live, counts.hosts, counts.tombstones, counts.floor);
    prop_assert_eq!(numbers, (twin.live().count(), pairs, twin.tombstones().len(), twin.floor));
    Ok(())
}

fn pair(table: Table, max_tombstones: usize) -> (Book, Twin) {
    let max_endpoints = table.max_endpoints();
    let twin = Twin { keys: BTreeMap::new(), max_endpoints, max_tombstones, floor: 0 };
    (Book::new(table, max_tombstones), twin)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn book_and_table_are_as_their_twin_says(
        max in 1..30usize,
        max_tombstones in 0..12usize,
        batches in prop::collection::vec(prop::collection::vec(change(), 0..90), 1..5),
        forgotten in prop::option::of(0..40u64),
    ) {
        let (mut book, mut twin) = pair(Table::new(max, &SECRET).expect("memory"), max_tombstones);
        let mut recent = crate::Recent::default();
        for batch in &batches {
            let expected: Vec<Outcome> = batch.iter().map(|change| twin.apply(change)).collect();
            prop_assert_eq!(book.apply(batch), expected);
            same(&book, &twin, &mut recent)?;
        }
        if let Some(floor) = forgotten {
            book.forget_up_to(floor);
            twin.floor = twin.floor.max(floor);
            twin.forget();
            same(&book, &twin, &mut recent)?;
        }
    }

    #[test]
    fn an_index_without_room_refuses_and_changes_nothing(
        seed: [u8; 32],
        numbers in prop::collection::vec((0..60u32, 0..60u32, 0..6u8), 60..200),
    ) {
        // 32 places for up to 60 endpoints on up to 60 hosts.
        let table = Table::with_buckets(60, 4, &seed).expect("memory");
        let (mut book, mut twin) = pair(table, 1000);
        for (revision, (number, host, kind)) in (1..).zip(numbers) {
            let key = EndpointKey { vni: vnis()[1], address: Address::v4(1 << 24 | number) };
            let host = Address::v4(2 << 24 | host);
            let endpoint = Endpoint { key, host, host_mac: None, mac: macs()[0] };
            let change = match kind {
                0 => Change::Delete { revision, key },
                _ => Change::Put { revision, endpoint },
            };
            let live = twin.live().count();
            match book.apply(&[change])[0] {
                Outcome::Refused(Refusal::Full { key: named, live: counted, max: 60 }) => {
                    prop_assert_eq!((named, counted), (key, live));
                    prop_assert!(live >= 14, "both buckets of one key have 14 places");
                }
                outcome => prop_assert_eq!(outcome, twin.apply(&change)),
            }
            for known in twin.live() {
                prop_assert_eq!(book.get(known.endpoint.key), Some(known));
                prop_assert_eq!(
                    book.table().find(known.endpoint.key),
                    Some(Found::from(known.endpoint))
                );
                prop_assert!(book.table().has_host(known.endpoint.key.vni, known.endpoint.host));
            }
            prop_assert!(book.iter(None, None).eq(twin.live()));
            let hosts: std::collections::BTreeSet<Address> =
                twin.live().map(|known| known.endpoint.host).collect();
            prop_assert_eq!(book.counts().hosts, hosts.len());
            let all = (0..60).filter(|it| {
                book.table().has_host(vnis()[1], Address::v4(2 << 24 | it))
            });
            prop_assert_eq!(all.count(), hosts.len());
        }
    }
}

#[test]
fn keys_move_until_nearly_all_places_are_taken() {
    for seed in 0..20 {
        // 64 buckets of 7 places.
        let table = Table::with_buckets(448, 64, &[seed; 32]).expect("memory");
        let mut book = Book::new(table, 0);
        let endpoint = |number: u32| {
            let key = EndpointKey { vni: vnis()[0], address: Address::v4(1 << 24 | number) };
            Endpoint { key, host: hosts()[0], host_mac: None, mac: macs()[0] }
        };
        let put = |number| Change::Put { revision: 1, endpoint: endpoint(number) };
        let fits = (0..448).take_while(|it| book.apply(&[put(*it)]) == [Outcome::Applied]).count();
        assert!(fits > 420, "{fits} of 448 places");
        let is_found = |it: u32| book.table().find(endpoint(it).key).is_some();
        assert!((0..fits as u32).all(is_found) && !is_found(fits as u32));
    }
}

#[test]
fn hints_lead_to_nearly_all_keys_of_a_table_as_full_as_it_may_be() {
    const KEYS: u32 = 4096;
    let mut book = Book::new(Table::new(KEYS as usize, &SECRET).expect("memory"), 1 << 20);
    let key = |number: u32| EndpointKey { vni: vnis()[0], address: Address::v4(1 << 24 | number) };
    let put = |number, revision| {
        let (key, mac) = (key(number), LinkAddress::new([2, 0, 0, 0, 0, revision as u8]));
        Change::Put { revision, endpoint: Endpoint { key, host: hosts()[0], host_mac: None, mac } }
    };
    let of = |rest: u32| (0..KEYS).filter(move |number| number % 3 == rest);
    let mut changes: Vec<Change> = (0..KEYS).map(|number| put(number, 1)).collect();
    changes.extend(of(1).map(|number| Change::Delete { revision: 2, key: key(number) }));
    changes.extend(of(2).map(|number| put(number, 2)));
    changes.extend(of(1).map(|number| put(number, 3)));
    for change in changes {
        assert_eq!(book.apply(&[change]), [Outcome::Applied]);
    }
    let table = book.table();
    let is_led = |number: &u32| {
        let words = key(*number).words();
        let hash = table.hash_of(&words);
        let led = table.endpoints.follow(table.endpoints.lead(hash), &words);
        let found = table.endpoints.find(&words, hash);
        assert!(found.is_some() && (led.is_none() || led == found), "{number}");
        led.is_some()
    };
    let led = (0..KEYS).filter(is_led).count();
    assert!(led > KEYS as usize * 9 / 10, "hints lead to {led} of {KEYS} keys");
}

#[test]
fn recent_keys_are_found_without_the_index_and_never_as_they_were() {
    (0..100).for_each(|byte| recent_keys(&[byte; 32]));
}

fn recent_keys(secret: &cpu::aes::Secret) {
    const KEYS: u32 = 1024;
    let mut book = Book::new(Table::new(KEYS as usize, secret).expect("memory"), 64);
    let table = book.table().clone();
    let key = |number: u32| EndpointKey { vni: vnis()[0], address: Address::v4(1 << 24 | number) };
    let put = |number, revision: u64| {
        let (key, mac) = (key(number), LinkAddress::new([2, 0, 0, 0, 0, revision as u8]));
        Change::Put { revision, endpoint: Endpoint { key, host: hosts()[0], host_mac: None, mac } }
    };
    let all: Vec<Change> = (0..KEYS).map(|number| put(number, 1)).collect();
    assert!(book.apply(&all).iter().all(|it| *it == Outcome::Applied));
    let (mut recent, mut column) = (crate::Recent::default(), crate::Column::default());
    let mut ask = |first: u32| {
        (0..64).for_each(|place| column.set(place, key(first + place as u32)));
        table.ask(&recent, &mut column, 64);
        let unknown = column.unknown();
        table.ask_endpoints(&mut recent, &mut column);
        let led = (0..64).map(|place| table.led(&column, place).map(Found::from));
        let led: Vec<Option<Found>> = led.collect();
        let content = (0..64).map(|it| table.content(&mut recent, &column, it).map(Found::from));
        (unknown, led, content.collect::<Vec<_>>())
    };
    let batches = || (0..KEYS).step_by(64);
    assert!(batches().map(|first| ask(first).0).sum::<usize>() > 1000, "all are new");
    let unknown: usize = batches().map(|first| ask(first).0).sum();
    assert!(unknown < 80, "{unknown} of {KEYS} keys fell out");
    // What changes is seen at the next look, although leads to it are remembered.
    assert_eq!(book.apply(&[put(3, 2)]), [Outcome::Applied]);
    assert_eq!(book.apply(&[Change::Delete { revision: 2, key: key(5) }]), [Outcome::Applied]);
    let (_, led, content) = ask(0);
    assert_eq!((led[5], content[5]), (None, None));
    // It may have fallen out before, and be led to anew.
    assert!(led[3].is_none() || led[3] == content[3]);
    assert_eq!(content[3].map(|found| found.mac.bytes()[5]), Some(2));
    let (unknown, led, _) = ask(0);
    assert!(unknown <= 5 && led[3] == content[3], "it is remembered where it is now");
}

#[test]
fn readers_never_see_parts_of_two_endpoints() {
    // TORN: the table's part of it. Two contents of each key, all words of which differ; two of
    // three keys are deleted now and then, and all share so few places that keys move.
    const KEYS: u32 = 24;
    const ROUNDS: u64 = 20_000;
    let content = |key: u32, second: bool| Found {
        host: if second {
            Address::v4(9 << 24 | key)
        } else {
            Address::v6(2 << 124 | 1 << 64 | u128::from(key))
        },
        host_mac: (!second).then(|| LinkAddress::new([2, 1, 1, 1, 1, key as u8])),
        mac: LinkAddress::new([2, if second { 2 } else { 3 }, 0, 0, 0, key as u8]),
    };
    let key = |number: u32| EndpointKey { vni: vnis()[2], address: Address::v4(1 << 24 | number) };
    let mut book = Book::new(Table::with_buckets(64, 4, &SECRET).expect("memory"), 64);
    let stays = |number: u32| number.is_multiple_of(3);
    let first = |it| Change::Put { revision: 1, endpoint: content(it, false).of(key(it)) };
    let outcomes = book.apply(&(0..KEYS).map(first).collect::<Vec<_>>());
    assert!(outcomes.iter().all(|it| *it == Outcome::Applied));
    let (table, is_over) = (book.table().clone(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let read = || {
            let mut seen = [0u64; 3];
            while !is_over.load(Ordering::Relaxed) {
                for number in 0..KEYS {
                    match table.find(key(number)) {
                        Some(found) if found == content(number, false) => seen[0] += 1,
                        Some(found) if found == content(number, true) => seen[1] += 1,
                        None if !stays(number) => seen[2] += 1,
                        other => panic!("key {number}: {other:?}"),
                    }
                }
            }
            seen
        };
        let mut all_applied = true;
        let readers = [scope.spawn(read), scope.spawn(read)];
        for round in 2..ROUNDS {
            let changes: Vec<Change> = (0..KEYS)
                .map(|it| match (round + u64::from(it)) % 7 {
                    0 if !stays(it) => Change::Delete { revision: round, key: key(it) },
                    _ => {
                        let content = content(it, round.is_multiple_of(2));
                        Change::Put { revision: round, endpoint: content.of(key(it)) }
                    }
                })
                .collect();
            book.apply_each(&changes, |_, outcome| all_applied &= outcome == Outcome::Applied);
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(all_applied);
        let seen = readers.map(|reader| reader.join().expect("it saw nothing wrong"));
        assert!(seen.iter().all(|it| it.iter().all(|count| *count > 0)), "{seen:?}");
    });
}

#[test]
fn endpoints_that_no_packet_could_reach_are_refused_with_a_reason() {
    let good = Endpoint {
        key: EndpointKey { vni: vnis()[1], address: Address::v4(0x0b00_0001) },
        host: Address::v4(0xc000_0201),
        host_mac: Some(macs()[1]),
        mac: macs()[0],
    };
    assert_eq!(good.check(), Ok(()));
    let bad = [
        (Address::v4(0), AddressFault::Unspecified),
        (Address::v6(0), AddressFault::Unspecified),
        (Address::v4(127 << 24), AddressFault::Loopback),
        (Address::v4((128 << 24) - 1), AddressFault::Loopback),
        (Address::v6(1), AddressFault::Loopback),
        (Address::v4(224 << 24), AddressFault::Multicast),
        (Address::v4((240 << 24) - 1), AddressFault::Multicast),
        (Address::v6(0xff << 120), AddressFault::Multicast),
        (Address::v6(u128::MAX), AddressFault::Multicast),
        (Address::v4(u32::MAX), AddressFault::Broadcast),
        (Address { value: 1 << 32, ..Address::v4(0) }, AddressFault::TooLong),
    ];
    for (address, fault) in bad {
        let key = EndpointKey { address, ..good.key };
        let refused = Endpoint { key, ..good }.check();
        assert_eq!(refused, Err(InvalidEndpoint::Address { key, fault }));
        let refused = Endpoint { host: address, ..good }.check();
        assert_eq!(refused, Err(InvalidEndpoint::Host { key: good.key, host: address, fault }));
    }
    for (bytes, fault) in [([0; 6], MacFault::Zero), ([255; 6], MacFault::Group)] {
        let mac = LinkAddress::new(bytes);
        let refused = Endpoint { mac, ..good }.check();
        assert_eq!(refused, Err(InvalidEndpoint::Mac { key: good.key, mac, fault }));
        let refused = Endpoint { host_mac: Some(mac), ..good }.check().expect_err("refused");
        assert_eq!(refused, InvalidEndpoint::HostMac { key: good.key, mac, fault });
        let text = refused.to_string();
        assert!(text.starts_with("endpoint 11.0.0.1 in VNI 1: the host's link address"), "{text}");
        assert!(text.contains(if bytes[0] == 0 { "00:00:00:00:00:00" } else { "ff:ff" }), "{text}");
    }
    let near = [Address::v4(128 << 24), Address::v4(240 << 24), Address::v6((0xff << 120) - 1)];
    for address in near {
        let key = EndpointKey { address, ..good.key };
        assert_eq!(Endpoint { key, host: address, ..good }.check(), Ok(()), "{address}");
    }
}

#[test]
fn a_deleted_endpoint_is_not_brought_back_by_a_late_put_even_when_its_tombstone_is_forgotten() {
    let mut book = Book::new(Table::new(8, &SECRET).expect("memory"), 2);
    let endpoint = |number: u32| Endpoint {
        key: EndpointKey { vni: vnis()[1], address: Address::v4(1 << 24 | number) },
        host: hosts()[0],
        host_mac: None,
        mac: macs()[0],
    };
    let put = |number, revision| Change::Put { revision, endpoint: endpoint(number) };
    let delete = |number, revision| Change::Delete { revision, key: endpoint(number).key };
    assert_eq!(book.apply(&[put(1, 5), delete(1, 6), put(1, 5)])[2], Outcome::Stale { known: 6 });
    assert_eq!((book.floor(), book.counts().tombstones), (0, 1));
    book.apply(&[delete(2, 8), delete(3, 9)]);
    assert_eq!((book.floor(), book.counts().tombstones), (6, 2), "the oldest is forgotten");
    assert_eq!(book.apply(&[put(1, 5)]), [Outcome::Stale { known: 6 }]);
    assert_eq!(book.apply(&[put(4, 6)]), [Outcome::Stale { known: 6 }], "never seen, but so late");
    assert_eq!(book.apply(&[put(1, 7), put(4, 7)]), [Outcome::Applied; 2]);
}

#[test]
fn a_table_has_1_to_4_194_304_endpoints() {
    for count in [0, MAX_ENDPOINTS + 1, usize::MAX] {
        let refused = Table::new(count, &SECRET).map(|_| ()).expect_err("out of range");
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    }
    assert_eq!(Table::new(1, &SECRET).expect("memory").max_endpoints(), 1);
}
