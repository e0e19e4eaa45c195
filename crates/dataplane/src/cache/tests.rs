//! The table against an obvious model, without the walk.

use std::collections::HashMap;

use policy::{
    Action, Book, Deciders, Direction, FlowAction, GroupMode, GroupSide, Policy, PolicyId,
    PolicyIndex, PortClass, Question, Refusal, SaSetId, ScopeBits, Selector, Spd, TcpSegments,
    UpperSelector,
};
use proptest::prelude::*;
use wire::{Address, Family, Flow, Upper};

use policy::connection::Timeouts;

use super::lane::Lanes;
use super::*;
use crate::connections::Limits;
use crate::{NextHopId, SnapshotParts};

const SECRET: Secret = [7; 32];

fn domain(direction: Direction, family: Family) -> DomainId {
    DomainId::new(PortClass(0), direction.book(), family)
}

const OUT: DomainId = DomainId::new(PortClass(0), Book::SpdOut, Family::V4);
const OUT6: DomainId = DomainId::new(PortClass(0), Book::SpdOut, Family::V6);

/// The scope of a domain; no policy of these tests names a port.
fn scope(domain: DomainId, opened_by: Option<SaSetId>) -> Scope {
    ScopeBits::of(4).scope(domain, opened_by)
}

fn domain_of(key: &Key) -> DomainId {
    ScopeBits::of(4).domain(key.scope)
}

fn policy(id: u32, only: Option<Direction>) -> Policy {
    Policy {
        id: PolicyId(id),
        name: format!("p{id}"),
        action: Action::Bypass,
        priority: 1,
        only,
        group: None,
        ingress: None,
        selector: Selector {
            local: vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
            remote: vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
            protocol: None,
            upper: UpperSelector::Any,
        },
    }
}

fn spd() -> Spd {
    Spd::with_room(vec![policy(1, None)], 64).unwrap()
}

fn snapshot(spd: Spd) -> Snapshot {
    Snapshot::new(SnapshotParts { spd: spd.into(), ..SnapshotParts::default() }).unwrap()
}

/// A snapshot whose domains have had so many changes.
fn changed(spd: &Spd, only: Direction) -> Spd {
    let id = 2 + spd.capacity() as u32 + spd.changes() as u32;
    spd.changed(&[], vec![policy(id, Some(only))]).unwrap()
}

/// A cache under a snapshot, its lanes and counters.
struct Bench {
    cache: FlowCache,
    snapshot: Snapshot,
    batch: Batch,
}

impl Bench {
    fn new(entries: usize) -> Bench {
        let cache = FlowCache::new(entries, &SECRET, CacheUse::Always).unwrap();
        let mut bench = Bench { cache, snapshot: snapshot(spd()), batch: Batch::default() };
        bench.cache.sync(&bench.snapshot);
        bench
    }

    /// Goes over to another snapshot.
    fn sync(&mut self, snapshot: Snapshot) {
        self.cache.sync(&snapshot);
        self.snapshot = snapshot;
    }

    fn counters(&self) -> CacheCounters {
        self.batch.counters
    }

    /// Returns the value found for each key. Those not found are answered by `answer` and
    /// remembered.
    fn run(
        &mut self,
        keys: &[Key],
        answer: impl Fn(&Key) -> (FlowVerdict, CachedRoute),
    ) -> Vec<Option<(FlowVerdict, CachedRoute)>> {
        let mut found = vec![None; keys.len()];
        let Bench { cache, snapshot, batch } = self;
        batch.run(cache, snapshot, keys, answer, |at, told| found[at] = told);
        found
    }

    fn find(&mut self, key: Key) -> Option<(FlowVerdict, CachedRoute)> {
        let mut lanes = Lanes::default();
        lanes.push(0, key.scope, &key.flow);
        self.cache.look_up(&mut lanes.v4);
        self.cache.look_up(&mut lanes.v6);
        match key.flow.family {
            Family::V4 => self.cache.found(&lanes.v4, 0),
            Family::V6 => self.cache.found(&lanes.v6, 0),
        }
        .map(|(verdict, route)| (*verdict, route))
    }
}

fn flow(family: Family, source: u128, destination: u128, upper: Upper) -> Flow {
    Flow { family, source, destination, protocol: 17, upper, opens: false }
}

/// A flow of either family by number.
fn numbered(family: Family, number: u32) -> Key {
    let ports = Upper::Ports { source: number as u16, destination: 53 };
    let source = match family {
        Family::V4 => 0x0a00_0000 + u128::from(number >> 16),
        Family::V6 => 0x2001_0db8 << 96 | u128::from(number >> 16),
    };
    let flow = flow(family, source, source + 1, ports);
    Key { scope: scope(domain(Direction::Outbound, family), None), flow }
}

fn said(action: FlowAction, deciders: Deciders) -> FlowVerdict {
    FlowVerdict { action, deciders, ..FlowVerdict::NOT_ASKED }
}

fn says(slot: u32) -> FlowVerdict {
    said(FlowAction::Permit, Deciders::one(PolicyIndex(slot)))
}

fn lacks_ports(slot: u32) -> FlowVerdict {
    said(FlowAction::Refuse(Refusal::FragmentPorts), Deciders::one(PolicyIndex(slot)))
}

fn none() -> FlowVerdict {
    said(FlowAction::Refuse(Refusal::NoMatch), Deciders::NONE)
}

/// Many flows of a family that belong in one bucket, by trying.
fn colliding(cache: &FlowCache, family: Family, count: usize) -> Vec<Key> {
    let mut lanes = Lanes::default();
    let place = |lanes: &mut Lanes, key: &Key| {
        lanes.clear();
        lanes.push(0, key.scope, &key.flow);
        cache.look_up(&mut lanes.v4);
        cache.look_up(&mut lanes.v6);
        let hash = match family {
            Family::V4 => lanes.v4.hash(0),
            Family::V6 => lanes.v6.hash(0),
        };
        let lines = cache.table.lines().len() as u64;
        // The first bucket and the second.
        let mask = if family == Family::V4 { lines - 1 } else { lines - 2 };
        (hash & mask, hash >> 32 & mask)
    };
    let first = place(&mut lanes, &numbered(family, 0));
    let keys = (0..).map(|number| numbered(family, number));
    keys.filter(|key| place(&mut lanes, key) == first).take(count).collect()
}

#[test]
fn an_entry_is_32_bytes_of_ipv4_and_a_million_flows_take_128_mib() {
    // FC-10, FC-11
    let cache = |entries| FlowCache::new(entries, &SECRET, CacheUse::Always).unwrap();
    assert_eq!(cache(ENTRIES_A_FLOW << 20).bytes(), 134_217_728);
    assert_eq!(cache(ENTRIES_A_FLOW << 20).capacity(), 4_194_304);
    for (wanted, got) in [(0, 8), (1, 8), (16, 16), (1000, 1024), (1024, 1024), (1025, 2048)] {
        assert_eq!(cache(wanted).capacity(), got, "{wanted} entries");
    }
    assert!(FlowCache::new(usize::MAX / 2, &SECRET, CacheUse::Always).is_err());
}

#[test]
fn zeros_are_no_entry() {
    // FC-33: the flow of zeros, at generation 1 and where generations are zero.
    for family in [Family::V4, Family::V6] {
        for direction in [Direction::Inbound, Direction::Outbound] {
            let flow = Flow {
                family,
                source: 0,
                destination: 0,
                protocol: 0,
                upper: Upper::None,
                opens: false,
            };
            let domain = domain(direction, family);
            let key = Key { scope: scope(domain, None), flow };
            let mut bench = Bench::new(64);
            assert_eq!(bench.find(key), None);
            let mut empty = FlowCache::new(64, &SECRET, CacheUse::Always).unwrap();
            empty.sync(&snapshot(Spd::default()));
            bench.cache = empty;
            assert_eq!(bench.find(key), None);
        }
    }
}

#[test]
fn whatever_a_selector_sees_is_in_the_key() {
    // FC-02, FC-03: keys that differ in anything differ in what is found.
    let address = |text: &str| Address::from(text.parse::<std::net::IpAddr>().unwrap()).value;
    let (a, b) = (address("10.0.0.1"), address("10.0.0.2"));
    let udp = |source, destination| Upper::Ports { source, destination };
    let icmp = |kind, code| Upper::Icmp { kind, code };
    let uppers = [udp(0, 0), udp(0, 1), udp(1, 0), icmp(0, 0), icmp(0, 1), icmp(1, 0)];
    let uppers = uppers.into_iter().chain([Upper::None, Upper::Fragment]);
    let mut keys = vec![];
    for upper in uppers {
        for (family, source, destination) in
            [(Family::V4, a, b), (Family::V4, b, a), (Family::V6, a, b), (Family::V6, a << 64, b)]
        {
            for protocol in [0, 1, 17] {
                for opened_by in [None, Some(SaSetId(0)), Some(SaSetId(1))] {
                    for direction in [Direction::Inbound, Direction::Outbound] {
                        let domain = domain(direction, family);
                        let flow =
                            Flow { family, source, destination, protocol, upper, opens: false };
                        keys.push(Key { scope: scope(domain, opened_by), flow });
                    }
                }
            }
        }
    }
    let mut bench = Bench::new(1 << 16);
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(bench.find(*key), None, "{key:?}");
        bench.run(&[*key], |_| (says(at as u32), CachedRoute::Unknown));
    }
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(bench.find(*key), Some((says(at as u32), CachedRoute::Unknown)), "{key:?}");
    }
}

/// A database whose rule for each segment of a kind is in one book.
fn telling(book: Book) -> Spd {
    let (group, only) = match book {
        Book::SpdIn => (None, Some(Direction::Inbound)),
        Book::SpdOut => (None, Some(Direction::Outbound)),
        Book::GroupIn => (Some(GroupSide::In), None),
        Book::GroupOut => (Some(GroupSide::Out), None),
    };
    let upper =
        UpperSelector::Tcp { segments: TcpSegments::New, local: Vec::new(), remote: Vec::new() };
    let action = if group.is_some() { Action::Permit(GroupMode::Enforce) } else { Action::Bypass };
    let rule = policy(2, only);
    let selector = Selector { protocol: Some(6), upper, ..rule.selector.clone() };
    let ingress = group.map(|_| [0u16].into());
    let rule = Policy { action, group, ingress, selector, ..rule };
    Spd::with_room(vec![policy(1, None), rule], 64).unwrap()
}

#[test]
fn segments_that_open_a_connection_have_entries_of_their_own_where_a_book_that_is_asked_tells() {
    // FC-02: groups are of the port of class 1; out-groups are part of every question.
    let asks = |class: u16, question: Question, book: Book| match book {
        Book::SpdIn => question == Question::Enter,
        Book::SpdOut => question != Question::Enter,
        Book::GroupIn => class == 1 && question != Question::Leave,
        Book::GroupOut => true,
    };
    for book in Book::ALL {
        let snapshot = snapshot(telling(book));
        let classes = snapshot.spd().domains().count() / 8;
        for (class, question) in (0..classes as u16).flat_map(|class| {
            [Question::Enter, Question::Leave, Question::Through].map(|it| (class, it))
        }) {
            for family in [Family::V4, Family::V6] {
                let class = PortClass(class);
                let scope = snapshot.tables().scope(class, question, family, None);
                let flow = Flow { protocol: 6, ..numbered(family, 1).flow };
                let [new, other] =
                    [true, false].map(|opens| Key { scope, flow: Flow { opens, ..flow } });
                let mut cache = FlowCache::new(64, &SECRET, CacheUse::Always).unwrap();
                let mut batch = Batch::default();
                let mut told = Vec::new();
                let answer = |key: &Key| (says(u32::from(key.flow.opens)), CachedRoute::Unknown);
                batch.run(&mut cache, &snapshot, &[new], answer, |_, said| told.push(said));
                batch.run(&mut cache, &snapshot, &[other], answer, |_, said| told.push(said));
                let tells = told[1].is_none();
                let expected = asks(class.0, question, book);
                assert_eq!(tells, expected, "{book:?} {class:?} {question:?} {family:?}");
                let recalled = [new, other].map(|key| cache.recall(&key));
                assert_eq!(recalled, [Recall::Known; 2]);
                let entries = cache.entries(0, usize::MAX).0;
                let mut shown: Vec<bool> = entries.iter().map(|it| it.key.flow.opens).collect();
                shown.sort_unstable();
                assert_eq!(shown, if tells { vec![false, true] } else { vec![false] });
            }
        }
    }
}

#[test]
fn what_is_shown_is_what_was_remembered() {
    // FC-05
    let mut bench = Bench::new(1 << 16);
    let mut expected = vec![];
    for number in 0..100 {
        for family in [Family::V4, Family::V6] {
            let mut key = numbered(family, number * 0x1_0001);
            if number % 3 == 0 {
                key.scope = scope(domain(Direction::Inbound, family), Some(SaSetId(number)));
            }
            let answer = match number % 4 {
                0 => none(),
                1 => lacks_ports(number),
                _ => says(number),
            };
            let route = if number % 2 == 0 {
                CachedRoute::Via(NextHopId(number))
            } else {
                CachedRoute::Other
            };
            bench.run(&[key], |_| (answer, route));
            expected.push((key, answer, route));
        }
    }
    let mut shown = vec![];
    let mut line = Some(0);
    while let Some(from) = line {
        let (entries, next) = bench.cache.entries(from, 777);
        assert!(entries.len() <= 2 * 777);
        assert!(entries.iter().all(|entry| entry.is_current && entry.generation.0 == 1));
        shown.extend(entries.iter().map(|entry| (entry.key, entry.verdict, entry.route)));
        line = next;
    }
    assert_eq!(shown.len(), expected.len());
    assert!(expected.iter().all(|entry| shown.contains(entry)));
    assert_eq!(bench.cache.entries(usize::MAX, usize::MAX), (vec![], None));
}

#[test]
fn of_colliding_flows_a_bucket_keeps_two_and_says_the_truth() {
    // FC-06, with 16 buckets: three flows in turn, then four and five.
    for family in [Family::V4, Family::V6] {
        for count in 3..6usize {
            let mut bench = Bench::new(if family == Family::V4 { 32 } else { 64 });
            let keys = colliding(&bench.cache, family, count);
            for turn in 0..100 {
                let key = keys[turn % count];
                let answer = |key: &Key| (says(key.flow.source as u32), CachedRoute::Unknown);
                let found = bench.run(&[key], answer)[0];
                let (expected, _) = answer(&key);
                assert!(found.is_none_or(|(said, _)| said == expected));
            }
            // The second bucket takes in what is too much for the first.
            let (hits, misses) = (bench.counters().hits, bench.counters().misses);
            assert_eq!(hits + misses, 100);
            if count <= 4 {
                assert_eq!(misses, count as u64, "{family:?}");
                assert_eq!(bench.counters().evictions, 0);
            }
            let in_one = |line: usize| bench.cache.entries(line, 1).0.len();
            assert!((0..bench.cache.table.lines().len()).all(|line| in_one(line) <= 2));
        }
    }
}

#[test]
fn the_older_of_a_full_bucket_goes() {
    // FC-06
    for family in [Family::V4, Family::V6] {
        let mut bench = Bench::new(64);
        let keys = colliding(&bench.cache, family, 6);
        for key in &keys {
            bench.run(&[*key], |_| (says(1), CachedRoute::Unknown));
        }
        // Four places; the fifth took that of the oldest of the first bucket, the sixth the next.
        let there: Vec<bool> = keys.iter().map(|key| bench.find(*key).is_some()).collect();
        assert_eq!(there, [false, false, true, true, true, true], "{family:?}");
        let CacheCounters { inserts, evictions, crowded_out, .. } = bench.counters();
        assert_eq!((inserts, evictions, crowded_out), (6, 2, 2));
        let of_family = domain(Direction::Outbound, family);
        assert_eq!(bench.cache.entries_of(of_family), 4);
    }
}

#[test]
fn the_count_rises_on_empty_and_stale_ways_and_not_on_live_ones() {
    // FC-51: what a change makes stale, it makes stale by its generation alone.
    // FC-19, FC-21, and FC-18: nothing of the generation before is answered.
    for family in [Family::V4, Family::V6] {
        let mut bench = Bench::new(64);
        let of_family = domain(Direction::Outbound, family);
        let keys = colliding(&bench.cache, family, 5);
        for (at, key) in keys[..4].iter().enumerate() {
            bench.run(&[*key], |_| (says(1), CachedRoute::Unknown));
            assert_eq!(bench.cache.entries_of(of_family), at as u64 + 1, "fresh");
        }
        bench.run(&keys[4..], |_| (says(1), CachedRoute::Unknown));
        assert_eq!(bench.cache.entries_of(of_family), 4, "live");
        let before = spd();
        let after = changed(&before, Direction::Outbound);
        assert_eq!(after.generation(of_family).0, before.generation(of_family).0 + 1);
        bench.sync(snapshot(after));
        assert_eq!(bench.cache.entries_of(of_family), 0, "at once");
        assert!(keys.iter().all(|key| bench.find(*key).is_none()));
        for (at, key) in keys[..4].iter().enumerate() {
            bench.run(&[*key], |_| (says(2), CachedRoute::Unknown));
            assert_eq!(bench.cache.entries_of(of_family), at as u64 + 1, "stale");
            assert_eq!(bench.find(*key), Some((says(2), CachedRoute::Unknown)));
        }
        assert_eq!(bench.counters().stale, 4);
    }
}

#[test]
fn a_change_of_policies_writes_no_line_of_the_table() {
    // FC-20: so it takes as long whatever the table's size.
    for entries in [1 << 10, 1 << 16] {
        let mut bench = Bench::new(entries);
        let keys =
            [Family::V4, Family::V6].map(|family| (0..200).map(move |n| numbered(family, n)));
        for key in keys.into_iter().flatten() {
            bench.run(&[key], |_| (says(1), CachedRoute::Unknown));
        }
        let before = bench.cache.table.lines().to_vec();
        assert!(before.iter().filter(|line| line.0 != [0; 8]).count() > 200);
        bench.sync(snapshot(changed(&spd(), Direction::Outbound)));
        assert!(bench.cache.table.lines() == before);
    }
}

#[test]
fn a_change_of_one_domain_leaves_the_others() {
    // FC-16, FC-37
    let mut bench = Bench::new(1 << 10);
    let all = [Family::V4, Family::V6].into_iter().flat_map(|family| {
        [Direction::Inbound, Direction::Outbound].map(|direction| domain(direction, family))
    });
    let of_domain = |of: DomainId| Key { scope: scope(of, None), ..numbered(of.family(), 5) };
    let keys: Vec<Key> = all.map(of_domain).collect();
    bench.run(&keys, |_| (says(3), CachedRoute::Unknown));
    bench.sync(snapshot(changed(&spd(), Direction::Inbound)));
    for key in &keys {
        let holds = domain_of(key).book() == Book::SpdOut;
        assert_eq!(bench.find(*key).is_some(), holds, "{key:?}");
        assert_eq!(bench.cache.entries_of(domain_of(key)), u64::from(holds));
    }
}

#[test]
fn what_matched_nothing_costs_no_live_entry_its_place() {
    // FC-25, FC-26
    for family in [Family::V4, Family::V6] {
        let mut bench = Bench::new(64);
        let of_family = domain(Direction::Outbound, family);
        let keys = colliding(&bench.cache, family, 40);
        let (live, flood) = keys.split_at(4);
        bench.run(live, |_| (says(1), CachedRoute::Unknown));
        for key in flood {
            bench.run(&[*key], |_| (none(), CachedRoute::Unknown));
        }
        assert!(live.iter().all(|key| bench.find(*key).is_some()));
        assert_eq!(bench.counters().refused, flood.len() as u64);
        // Into an empty table it is written, one a bucket, and gives way to the next live one.
        let mut bench = Bench::new(64);
        for key in flood {
            bench.run(&[*key], |_| (none(), CachedRoute::Unknown));
        }
        assert_eq!(bench.cache.entries_of(of_family), 1);
        assert_eq!(bench.find(flood[35]), Some((none(), CachedRoute::Unknown)));
        for key in live {
            bench.run(&[*key], |_| (says(1), CachedRoute::Unknown));
        }
        assert!(live.iter().all(|key| bench.find(*key).is_some()));
        assert_eq!(bench.cache.entries_of(of_family), 4);
        // However many there are of them, the table is not too small.
        let CacheCounters { evictions, crowded_out, .. } = bench.counters();
        assert_eq!((evictions, crowded_out), (flood.len() as u64, 0));
    }
}

#[test]
fn equal_keys_of_a_batch_are_one() {
    // FC-46
    let mut bench = Bench::new(1 << 10);
    for family in [Family::V4, Family::V6] {
        let keys = [7, 7, 8, 7, 8, 9, 7].map(|number| numbered(family, number));
        let asked = std::cell::Cell::new(0);
        bench.run(&keys, |_| {
            asked.set(asked.get() + 1);
            (says(1), CachedRoute::Unknown)
        });
        assert_eq!(asked.get(), 3);
    }
    assert_eq!(bench.counters().inserts, 6);
}

#[test]
fn a_way_holds_while_the_routes_do() {
    let mut bench = Bench::new(1 << 10);
    let key = numbered(Family::V4, 1);
    bench.run(&[key], |_| (says(1), CachedRoute::Via(NextHopId(9))));
    assert_eq!(bench.find(key), Some((says(1), CachedRoute::Via(NextHopId(9)))));
    let routed = |generation| {
        let route_generation = RouteGeneration(generation);
        let spd = spd().into();
        Snapshot::new(SnapshotParts { spd, route_generation, ..SnapshotParts::default() }).unwrap()
    };
    for generation in [1, 0, u32::MAX, 0] {
        bench.sync(routed(generation));
        assert_eq!(bench.find(key), Some((says(1), CachedRoute::Unknown)), "the answer stands");
    }
    bench.run(&[key], |_| unreachable!("it is there"));
    let large = numbered(Family::V4, 2);
    bench.run(&[large], |_| (says(1), CachedRoute::Via(NextHopId(u16::MAX.into()))));
    assert_eq!(bench.find(large), Some((says(1), CachedRoute::Unknown)), "too large to be written");
    // Numbers of routing tables run out: routes are no longer remembered, answers are.
    for generation in 0..u32::from(u16::MAX) {
        bench.sync(routed(generation));
    }
    assert!(bench.cache.needs_replacement());
    let late = numbered(Family::V4, 3);
    bench.run(&[late], |_| (says(1), CachedRoute::Via(NextHopId(3))));
    assert_eq!(bench.find(late), Some((says(1), CachedRoute::Unknown)));
}

#[test]
fn where_generations_go_back_nothing_is_answered() {
    // FC-22
    let mut bench = Bench::new(1 << 10);
    let raised = changed(&spd(), Direction::Outbound);
    bench.sync(snapshot(raised));
    assert!(
        bench.cache.serves(scope(OUT, None))
            && bench.cache.serves(scope(OUT6, None))
            && !bench.cache.needs_replacement()
    );
    bench.sync(snapshot(spd()));
    assert!(
        bench.cache.needs_replacement()
            && !bench.cache.serves(scope(OUT, None))
            && !bench.cache.serves(scope(OUT6, None))
    );
    bench.sync(snapshot(changed(&spd(), Direction::Outbound)));
    assert!(bench.cache.needs_replacement(), "until it is replaced");
    bench.cache = FlowCache::new(64, &SECRET, CacheUse::Always).unwrap();
    bench.sync(snapshot(spd()));
    assert!(bench.cache.serves(scope(OUT, None)) && !bench.cache.needs_replacement());
}

#[test]
fn domains_without_rules_are_bypassed_unless_it_is_always_used() {
    let one = Spd::new(vec![policy(1, Some(Direction::Outbound))]).unwrap();
    let inbound = domain(Direction::Inbound, Family::V4);
    assert!(one.cost(OUT).steps() > BREAK_EVEN_STEPS && one.cost(inbound).steps() == 0);
    let one = snapshot(one);
    let mut cache = FlowCache::new(64, &SECRET, CacheUse::WherePaid).unwrap();
    assert!(cache.bypasses(OUT), "before the first batch");
    cache.sync(&one);
    assert!(!cache.bypasses(OUT) && cache.serves(scope(OUT, None)));
    assert!(cache.bypasses(inbound) && !cache.serves(scope(inbound, None)));
    let key = Key { scope: scope(inbound, None), ..numbered(Family::V4, 1) };
    assert_eq!(cache.recall(&key), Recall::Bypassed);
    let mut always = FlowCache::new(64, &SECRET, CacheUse::Always).unwrap();
    always.sync(&one);
    assert!(!always.bypasses(inbound) && always.serves(scope(inbound, None)));
}

/// An operation on a cache.
#[derive(Clone, Debug)]
enum Step {
    /// These flows are looked up together, and remembered if they are not there.
    Batch(Vec<(bool, bool, u32, u8)>),
    /// A change of the policies of one direction.
    Change(bool),
    /// Another routing table.
    Routes,
    /// A larger table, if there may be one.
    Grow,
}

/// Entries that a table grows to at most.
const MOST: usize = 4096;

fn a_step() -> impl Strategy<Value = Step> {
    let flow = (any::<bool>(), any::<bool>(), 0..60u32, any::<u8>());
    prop_oneof![
        8 => prop::collection::vec(flow, 1..=wire::BATCH).prop_map(Step::Batch),
        1 => any::<bool>().prop_map(Step::Change),
        1 => Just(Step::Routes),
        1 => Just(Step::Grow),
    ]
}

proptest! {
    /// Whatever is found was said of that key under the generation that stands, and the counts are
    /// those of the entries. Tables are small, so that everything collides.
    #[test]
    fn it_says_what_it_was_told_or_nothing(
        steps in prop::collection::vec(a_step(), 1..60),
        entries in prop_oneof![Just(8usize), Just(16), Just(64), Just(1024)],
        portable in any::<bool>(),
    ) {
        let cache = |entries| {
            let made = FlowCache::new(entries, &SECRET, CacheUse::Always).unwrap();
            if portable { made.with_portable_hash(&SECRET) } else { made }
        };
        let mut bench = Bench::new(entries);
        bench.cache = cache(entries);
        let (mut spd, mut routes, mut says_now) = (spd(), 0u32, 0u32);
        // By key: what was said, the domain's generation, the route and the routes' generation.
        let mut told: HashMap<Key, (FlowVerdict, Generation, CachedRoute, u32)> = HashMap::new();
        for step in steps {
            let spd_now = spd.clone().into();
            let route_generation = RouteGeneration(routes);
            let parts =
                SnapshotParts { spd: spd_now, route_generation, ..SnapshotParts::default() };
            bench.sync(Snapshot::new(parts).unwrap());
            match step {
                Step::Change(outbound) => {
                    let direction = if outbound { Direction::Outbound } else { Direction::Inbound };
                    spd = if spd.changes() < 60 { changed(&spd, direction) } else { spd };
                }
                Step::Routes => routes += 1,
                Step::Grow => {
                    let entries = bench.cache.capacity();
                    let over = std::time::Duration::from_secs(1);
                    let (most, crowded_out, is_full) = (MOST, entries as u64, false);
                    let usage = Usage { entries, most, crowded_out, over, is_full };
                    prop_assert_eq!(usage.larger().is_none(), entries == MOST);
                    if let Some(larger) = usage.larger() {
                        bench.cache = cache(larger);
                        told.clear();
                    }
                }
                Step::Batch(batch) => {
                    let keys: Vec<Key> = batch.iter().map(key_of).collect();
                    says_now += 1;
                    let answer = |key: &Key| answer_of(key, says_now);
                    for key in &keys {
                        let known = bench.cache.recall(key) == Recall::Known;
                        prop_assert_eq!(known, bench.find(*key).is_some());
                    }
                    let found = bench.run(&keys, answer);
                    for (key, found) in keys.iter().zip(found) {
                        let generation = spd.generation(domain_of(key));
                        if let Some((said, route)) = found {
                            let (expected, when, expected_route, under) = told[key];
                            prop_assert_eq!((said, generation), (expected, when));
                            let route_now = match under == routes {
                                true => expected_route,
                                false => CachedRoute::Unknown,
                            };
                            prop_assert_eq!(route, route_now);
                        } else {
                            let (said, route) = answer(key);
                            told.insert(*key, (said, generation, route, routes));
                        }
                    }
                    counts_agree(&bench.cache, &spd)?;
                }
            }
        }
        let CacheCounters { inserts, evictions, crowded_out, stale, .. } = bench.counters();
        prop_assert!(evictions + stale <= 2 * inserts && crowded_out <= evictions);
    }
}

fn key_of(&(v6, inbound, number, kind): &(bool, bool, u32, u8)) -> Key {
    let family = if v6 { Family::V6 } else { Family::V4 };
    let mut key = numbered(family, number % 7 * 0x1_0000 + number);
    // A stranger's address may look like any word of an entry.
    if v6 && kind & 64 != 0 {
        key.flow.source = u128::from(kind) << 40 | (u128::MAX << 64) >> (kind & 31);
    }
    if inbound {
        let opened_by = (kind & 1 != 0).then_some(SaSetId(u32::from(kind & 3)));
        key.scope = scope(domain(Direction::Inbound, family), opened_by);
    }
    key.flow.upper = match kind & 12 {
        0 => Upper::Fragment,
        4 => Upper::None,
        8 => Upper::Icmp { kind: 0, code: number as u8 },
        _ => key.flow.upper,
    };
    key
}

/// Numbers of a port's tick, one after the other.
struct TickBench {
    bench: Bench,
    tables: [Connections; 2],
}

impl TickBench {
    fn new() -> TickBench {
        let table = |_| Connections::new(Limits::of(64), Timeouts::default(), &SECRET);
        TickBench { bench: Bench::new(64), tables: [0, 1].map(table) }
    }

    fn tick(&mut self, port: u16, table: usize, now_s: u32) -> Option<Tick> {
        self.bench.cache.tick(crate::PortId(port), &self.tables[table], now_s)
    }
}

#[test]
fn a_tick_is_of_one_port_and_ends_with_its_second_a_change_of_rules_and_a_clearing() {
    let mut it = TickBench::new();
    let mut ticks = vec![it.tick(3, 0, 100), it.tick(4, 0, 100)];
    assert_eq!((it.tick(3, 0, 100), it.tick(4, 0, 100)), (ticks[0], ticks[1]));
    ticks.push(it.tick(3, 0, 101));
    ticks.push(it.tick(3, 0, 100));
    it.bench.sync(snapshot(changed(&spd(), Direction::Outbound)));
    ticks.push(it.tick(3, 0, 100));
    ticks.push(it.tick(3, 1, 100));
    ticks.push(it.tick(3, 0, 100));
    it.tables[0].clear(100, |_| false);
    ticks.push(it.tick(3, 0, 100));
    assert_eq!(it.tick(3, 0, 100), ticks[ticks.len() - 1]);
    assert!(ticks.iter().all(Option::is_some));
    let different: std::collections::HashSet<_> =
        ticks.iter().map(|it| format!("{it:?}")).collect();
    assert_eq!(different.len(), ticks.len(), "{ticks:?}");
}

#[test]
fn a_cache_whose_ticks_are_spent_gives_none_and_is_to_be_replaced() {
    let mut it = TickBench::new();
    let given = (0..).take_while(|now_s| it.tick(0, 0, *now_s).is_some()).count();
    assert_eq!(given, (1 << 19) - 1);
    assert!(it.bench.cache.needs_replacement());
    assert_eq!(it.tick(1, 0, 7), None);
}

proptest! {
    #[test]
    fn a_mark_changes_nothing_but_the_mark(
        (source, destination, ports) in (any::<u32>(), any::<u32>(), any::<u32>()),
        (number, route, epoch) in (0u32..1 << 18, any::<u16>(), any::<u16>()),
        flags in prop_oneof![Just(0u32), Just(1 << 31), Just(1 << 29), Just(5 << 29)],
        (upper, low) in (any::<u16>(), 0u32..1 << 11),
    ) {
        let flow = Flow {
            family: Family::V4,
            source: source.into(),
            destination: destination.into(),
            protocol: 6,
            upper: Upper::Ports { source: (ports >> 16) as u16, destination: ports as u16 },
            opens: false,
        };
        let key: [u64; entry::V4] = flow.words(Scope(5));
        let hop = CachedRoute::Via(NextHopId(route.min(u16::MAX - 2).into()));
        let value = Value::new(verdicts::VerdictNumber(number | flags), hop, epoch);
        let plain = entry::with_value(key, value);
        let mut marked = plain;
        let mark = Mark::of(upper, low);
        entry::set_mark(&mut marked, mark);
        prop_assert!(entry::is_of(&marked, &plain) && entry::is_of(&plain, &marked));
        prop_assert_eq!(entry::key(&marked), entry::key(&plain));
        let (value, bare) = (Value::of(&marked), Value::of(&plain));
        prop_assert_eq!(value.unmarked(), bare);
        prop_assert_eq!(value.verdict(), bare.verdict());
        prop_assert_eq!(value.route(epoch), hop);
        prop_assert_eq!(Mark::of(entry::upper_mark(&marked), value.low_mark()), mark);
        prop_assert_eq!(Mark::of(entry::upper_mark(&plain), bare.low_mark()), Mark::NONE);
    }
}

fn answer_of(key: &Key, now: u32) -> (FlowVerdict, CachedRoute) {
    let number = key.flow.source as u32 % 16;
    let route = match number % 3 {
        0 => CachedRoute::Via(NextHopId(now)),
        1 => CachedRoute::Other,
        _ => CachedRoute::Unknown,
    };
    match number % 5 {
        0 => (none(), route),
        1 => (lacks_ports(now), route),
        _ => (says(now), route),
    }
}

fn counts_agree(cache: &FlowCache, spd: &Spd) -> Result<(), TestCaseError> {
    let (entries, _) = cache.entries(0, usize::MAX);
    for domain in spd.domains() {
        let current = |entry: &&CacheEntry| domain_of(&entry.key) == domain && entry.is_current;
        let count = entries.iter().filter(current).count() as u64;
        prop_assert_eq!(cache.entries_of(domain), count);
    }
    Ok(())
}

/// Marks a domain as not visited by a sync.
const UNVISITED: u64 = u64::MAX;

#[test]
fn sync_visits_domains_only_when_the_snapshot_is_another() {
    let mut bench = Bench::new(1024);
    let Bench { cache, snapshot: first, .. } = &mut bench;
    cache.domains.list.iter_mut().for_each(|domain| domain.entries = UNVISITED);
    let visited = |cache: &FlowCache| {
        let visited = cache.domains.list.iter().filter(|domain| domain.entries != UNVISITED);
        visited.count()
    };
    for _ in 0..3 {
        cache.domains.list.iter_mut().for_each(|domain| domain.generation = Generation(0));
        cache.sync(first);
        assert_eq!(visited(cache), 0, "the same snapshot");
    }
    let again = snapshot(spd());
    cache.sync(&again);
    assert_eq!(visited(cache), cache.domains.list.len(), "another, with the same policies");
}

/// Snapshots come and go in the same memory.
#[test]
fn sync_never_takes_a_snapshot_for_one_that_was_freed() {
    let mut bench = Bench::new(1024);
    let mut generations = Vec::new();
    let mut policies = spd();
    for _ in 0..16 {
        policies = changed(&policies, Direction::Outbound);
        let next = Box::new(snapshot(policies.clone()));
        bench.cache.sync(&next);
        assert_eq!(
            bench.cache.domains.list[usize::from(OUT.0)].generation,
            next.spd().generation(OUT)
        );
        generations.push(next.spd().generation(OUT));
    }
    assert!(generations.is_sorted_by(|one, next| one < next), "{generations:?}");
}

#[test]
fn the_first_packet_of_a_port_takes_no_memory() {
    let port = |number: u16| crate::PortInfo {
        name: format!("port{number}"),
        netdev: crate::NetdevId(number),
        vlan: None,
        side: crate::Side::Protected,
        medium: crate::Medium::Ethernet,
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        addresses: Vec::new(),
        allow_host: Vec::new(),
        l4_checksum: crate::L4Checksum::Pass,
    };
    let ports = (0..100).map(port).collect();
    let snapshot = Snapshot::new(SnapshotParts { ports, ..SnapshotParts::default() }).unwrap();
    let mut cache = FlowCache::new(1024, &SECRET, CacheUse::Always).unwrap();
    cache.sync(&snapshot);
    let connections = Connections::new(Limits::of(64), Timeouts::default(), &[7; 32]);
    let room = cache.ticks.room();
    assert!(room >= 100);
    for port in [PortId(0), PortId(99)] {
        assert!(cache.tick(port, &connections, 1).is_some());
    }
    assert_eq!(cache.ticks.room(), room);
}
