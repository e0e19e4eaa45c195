//! Connections that give way at a bound, and connections that are over.

use super::*;

/// The key of a SYN of a host behind a zone, to one server.
fn syn(attachment: u16, vni: u32, host: u32) -> Key {
    let upper = Upper::Ports { source: 1024 + (host % 60_000) as u16, destination: 80 };
    let (source, destination) = (0x0a01_0000 + u128::from(host), 0x0a00_0001);
    let flow = Flow { family: Family::V4, source, destination, protocol: 6, upper, opens: true };
    Key::of(&flow, Zone { attachment, vni }).expect("ports")
}

fn begin(table: &Connections, key: &Key, now_s: u32) -> Inserted {
    table.insert(key, Shown::Tcp(Syn), judgement(1), now_s)
}

/// Begins a connection, and has both ends acknowledge it.
fn establish(table: &Connections, key: &Key, now_s: u32) {
    let Inserted::New(place) = begin(table, key, now_s) else { panic!("there is room") };
    for (key, segment) in [(key.reversed(), SynAck), (*key, Ack)] {
        table.observe(place, &key, Shown::Tcp(segment), now_s);
    }
}

// dataplane 6
#[test]
fn unanswered_syns_of_a_subnet_refuse_no_honest_one() {
    let table = Connections::new(Limits::of(1 << 18), Timeouts::default(), SECRET);
    let other = syn(2, 0, 7);
    begin(&table, &other, 100);
    for host in 0..40_000 {
        assert!(matches!(begin(&table, &syn(1, 0, host), 100), Inserted::New(_)), "{host}");
    }
    for host in 50_000..51_000 {
        let key = syn(1, 0, host);
        let Inserted::New(place) = begin(&table, &key, 101) else { panic!("{host} is refused") };
        let answer = table.observe(place, &key.reversed(), Shown::Tcp(SynAck), 101);
        assert!(matches!(answer, Observed::Seen { .. }), "{host}: {answer:?}");
    }
    let counts = table.counts();
    assert_eq!(counts.refused, [0; 4]);
    assert_eq!((counts.half_open_lines, counts.replaced), (32_769, 41_000 - 32_768));
    assert!((0..8_232).all(|host| table.find(&syn(1, 0, host), 101).is_none()), "the oldest went");
    assert!(table.find(&syn(1, 0, 8_232), 101).is_some());
    assert!(table.find(&other, 101).is_some(), "no bound of its own is reached");
}

#[test]
fn a_zone_at_its_bound_finds_its_own_half_open_ones_among_many_of_others() {
    let limits = Limits { half_open_per_zone: 4096, ..Limits::of(1 << 14) };
    let limits = Limits { half_open: 4099, ..limits };
    let table = Connections::new(limits, Timeouts::default(), SECRET);
    begin(&table, &syn(2, 0, 0), 100);
    (0..4096).for_each(|host| _ = begin(&table, &syn(1, 0, host), 100));
    (1..3).for_each(|host| _ = begin(&table, &syn(2, 0, host), 100));
    assert_eq!((table.counts().half_open_lines, table.counts().replaced), (4099, 0));
    // The bound of the table: the oldest of all.
    begin(&table, &syn(3, 0, 0), 100);
    assert!(table.find(&syn(2, 0, 0), 100).is_none());
    // The bound of the zone: its oldest.
    begin(&table, &syn(1, 0, 5000), 100);
    assert!(table.find(&syn(1, 0, 0), 100).is_none());
    assert!((1..3).all(|host| table.find(&syn(2, 0, host), 100).is_some()));
    assert_eq!(table.counts().refused, [0; 4]);
}

/// Limits with bounds of 4096 half-open connections of the table and 1024 of a zone.
fn limits_of_two_bounds() -> Limits {
    Limits { half_open: 4096, half_open_per_zone: 1024, ..Limits::of(1 << 14) }
}

/// Admits some SYNs of a zone, from a host on.
fn all_begin(table: &Connections, zone: u16, first: u32, count: u32) {
    for host in first..first + count {
        let begun = begin(table, &syn(zone, 0, host), 100);
        assert!(matches!(begun, Inserted::New(_)), "{zone}, {host}: {begun:?}");
    }
}

// dataplane 6
#[test]
fn a_zone_at_its_bound_finds_a_victim_behind_a_ring_of_other_zones() {
    for has_old_one in [false, true] {
        let table = Connections::new(limits_of_two_bounds(), Timeouts::default(), SECRET);
        // A connection of the zone that begins before all others and stays half-open.
        all_begin(&table, 1, 0, u32::from(has_old_one));
        for zone in 2..5 {
            all_begin(&table, zone, 0, 1000);
        }
        // At the bound the oldest gives way, then others of the zone.
        all_begin(&table, 1, 1, 2000);
        let counts = table.counts();
        assert_eq!((counts.refused, counts.half_open_lines), ([0; 4], 4024));
        assert!((2..5).all(|zone| table.find(&syn(zone, 0, 0), 100).is_some()));
        assert!(table.find(&syn(1, 0, 2000), 100).is_some());
    }
}

#[test]
fn a_full_table_finds_a_victim_behind_many_empty_slots() {
    let table = Connections::new(limits_of_two_bounds(), Timeouts::default(), SECRET);
    // One stays half-open; the slots behind are of established connections.
    all_begin(&table, 1, 0, 1);
    (0..3000).for_each(|host| establish(&table, &syn(2, 0, host), 100));
    for zone in 3..7 {
        all_begin(&table, zone, 0, 1023);
    }
    all_begin(&table, 7, 0, 500);
    let counts = table.counts();
    assert_eq!((counts.refused, counts.half_open_lines), ([0; 4], 4096));
    assert!(table.find(&syn(1, 0, 0), 100).is_none(), "the oldest goes first");
}

#[test]
fn a_full_zone_finds_a_victim_though_thousands_of_connections_lie_between_its_own() {
    let limits = Limits { half_open: 16_384, half_open_per_zone: 20, ..Limits::of(1 << 16) };
    let table = Connections::new(limits, Timeouts::default(), SECRET);
    for host in 0..60 {
        all_begin(&table, 1, host, 1);
        // A flood of another zone at its bound.
        all_begin(&table, 2, host * 2000, 2000);
    }
    assert_eq!((table.counts().refused, table.counts().half_open_lines), ([0; 4], 40));
    assert!(table.find(&syn(1, 0, 59), 100).is_some(), "the latest stays");
}

/// Two workers flood one zone at its bound, beside SYNs of other zones.
#[test]
fn two_workers_at_the_bound_of_a_zone_evict_its_own() {
    let limits = Limits { half_open_per_zone: 64, ..Limits::of(1 << 16) };
    let table = Connections::new(limits, Timeouts::default(), SECRET);
    let run = |me: u32| {
        for host in 0..5_000 {
            begin(&table, &syn(1, 0, me << 16 | host), 100);
            begin(&table, &syn((2 + (me << 8) + host / 60) as u16, 0, host), 100);
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        run(0);
        other.join().expect("it does not panic");
    });
    // Another worker may take the room of an eviction. Alone, a worker finds room.
    let before = table.counts().refused;
    all_begin(&table, 1, 2 << 16, 200);
    assert_eq!(table.counts().refused, before);
    let zone = table.zones().find(|zone| zone.attachment == 1).expect("it has connections");
    assert_eq!(zone.half_open, 64);
}

#[test]
fn connections_that_are_over_refuse_nobody_though_nothing_swept_them() {
    for limits in [Limits::of(512), Limits { per_zone: 512, ..Limits::of(1 << 12) }] {
        let table = Connections::new(limits, Timeouts::default(), SECRET);
        let established_s = Timeouts::default().tcp_established_s;
        (0..512).for_each(|host| establish(&table, &syn(1, 0, host), 100));
        let refused = begin(&table, &syn(1, 0, 9999), 101);
        assert!(matches!(refused, Inserted::Refused(_)), "{refused:?}");
        let later_s = 100 + established_s;
        // A refused attempt goes over a part of a table in which few are over.
        let attempts = (0..64).map(|_| begin(&table, &syn(1, 0, 9999), later_s));
        let admitted = attempts.take_while(|it| matches!(it, Inserted::Refused(_))).count();
        assert!(admitted < 64, "{:?}", table.counts());
    }
}

// dataplane 9
#[test]
fn more_virtual_networks_come_and_go_than_there_are_slots() {
    let table = Connections::new(Limits::of(1 << 14), Timeouts::default(), SECRET);
    for (round, now_s) in (0..3).zip([100, 200, 300]) {
        for network in 0..4000 {
            let vni = round * 4000 + network;
            let key = syn(Zone::FIRST_NETWORK + network as u16, vni, 1);
            let begun = begin(&table, &key, now_s);
            assert!(matches!(begun, Inserted::New(_)), "{vni}: {begun:?}");
        }
        let zones: Vec<_> = table.zones().map(|it| it.attachment).collect();
        assert_eq!(zones.len(), 4000, "counts of a slot are of its network alone");
        let gone = (0..4000).map(|network| Zone {
            attachment: Zone::FIRST_NETWORK + network as u16,
            vni: round * 4000 + network,
        });
        assert_eq!(table.clear_zones(gone.collect(), now_s), 4000);
        assert_eq!(table.zones().count(), 0);
    }
}
