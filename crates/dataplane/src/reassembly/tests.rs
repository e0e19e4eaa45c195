use std::collections::VecDeque;

use policy::SaSetId;
use proptest::prelude::*;
use wire::{Address, Upper};

use super::datagram::{Datagram, Way};
use super::model::{Model, Told};
use super::ranges::Part;
use super::table::{Answer, First, Limits, Piece, Table};
use super::{ESP_LIMITS, LIMITS, PATIENCE_NS};
use crate::fair_shares::{ShareBound, ShareGuarantee};
use crate::ids::PortId;
use crate::upper_layer::UpperLayer;
use crate::verdict::DropReason;

const SECRET: [u8; 32] = [7; 32];

fn ports(source: u16) -> UpperLayer {
    let upper = Upper::Ports { source, destination: 53 };
    UpperLayer { protocol: 17, upper, opens: false, echo: None }
}

fn datagram(port: u16, sender: u32, identification: u32) -> Datagram {
    Datagram {
        way: Way { ingress: PortId(port), opened_by: None, network: None },
        source: Address::v4(sender),
        destination: Address::v4(1),
        identification,
        protocol: 17,
    }
}

fn first(datagram: Datagram) -> Piece {
    let part = Part { start: 0, end: 3, is_last: false };
    let shown = First::Shows(ports(datagram.identification as u16));
    Piece { datagram, part, first: Some(Ok(shown)) }
}

/// Byte `number` behind a first fragment of 3 bytes.
fn later(datagram: Datagram, number: u16) -> Piece {
    let part = Part { start: 3 + number, end: 4 + number, is_last: false };
    Piece { datagram, part, first: None }
}

fn last(datagram: Datagram, number: u16) -> Piece {
    let later = later(datagram, number);
    Piece { part: Part { is_last: true, ..later.part }, ..later }
}

/// A table, asked as the model is.
fn ask(table: &mut Table<u32>, now_ns: u64, piece: &Piece, waits_as: Option<u32>) -> Told {
    match (table.take_in(now_ns, piece), waits_as) {
        (Answer::First, _) => Told::First,
        (Answer::Known(upper_layer), _) => Told::Known(upper_layer),
        (Answer::Unknown(place), None) => {
            place.release();
            Told::Unknown
        }
        (Answer::Unknown(place), Some(fragment)) => {
            place.hold(fragment).map_or_else(Told::Dropped, |()| Told::Held)
        }
        (Answer::Part(place), None) => {
            place.release();
            Told::Part
        }
        (Answer::Part(place), Some(fragment)) => {
            place.hold(fragment).map_or_else(Told::Dropped, |()| Told::Held)
        }
        (Answer::Complete, _) => Told::Complete,
        (Answer::Duplicate, _) => Told::Dropped(DropReason::FragmentDuplicate),
        (Answer::Refused { reason, .. }, _) => Told::Dropped(reason),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Fragment { piece: Piece, waits: bool },
    Pass(u64),
    Expire,
    Forget(u16),
}

fn a_datagram() -> impl Strategy<Value = Datagram> {
    (0..3u16, 0..4u32, 0..3u32, any::<bool>(), prop::bool::weighted(0.2), any::<bool>()).prop_map(
        |(port, sender, identification, is_v6, is_opened, is_low)| {
            let mut datagram = datagram(port, sender, identification);
            if is_v6 {
                // Two senders of each prefix.
                let prefix = u128::from(sender) << 64 | u128::from(is_low);
                (datagram.source, datagram.protocol) = (Address::v6(prefix), 0);
            }
            datagram.way.opened_by = is_opened.then_some(SaSetId(sender));
            datagram
        },
    )
}

fn a_step() -> impl Strategy<Value = Step> {
    // From 0 on, too: such a fragment shows no upper layer, whatever made it.
    let start = prop_oneof![8 => 0..12u16, 1 => 0..8200u16];
    let length = prop_oneof![6 => Just(1), 2 => 1..4u16];
    let part = (start, length, prop::bool::weighted(0.25))
        .prop_map(|(start, length, is_last)| Part { start, end: start + length, is_last });
    let first = prop_oneof![
        5 => (0..3u16).prop_map(|source| Ok(First::Shows(ports(source)))),
        5 => Just(Ok(First::Esp)),
        1 => Just(Err(DropReason::FragmentTiny)),
    ];
    let first = (1..4u16, first)
        .prop_map(|(end, first)| (Part { start: 0, end, is_last: false }, Some(first)));
    let piece = prop_oneof![1 => first, 3 => part.prop_map(|part| (part, None))];
    prop_oneof![
        20 => (a_datagram(), piece, prop::bool::weighted(0.8)).prop_map(
            |(datagram, (part, first), waits)| {
                Step::Fragment { piece: Piece { datagram, part, first }, waits }
            }
        ),
        2 => prop_oneof![0..3u64, Just(9), Just(10), Just(11)].prop_map(Step::Pass),
        1 => Just(Step::Expire),
        1 => (0..3u16).prop_map(Step::Forget),
    ]
}

/// Limits that few fragments reach.
fn narrow_limits() -> impl Strategy<Value = Limits> {
    let bound = || {
        let all = prop_oneof![1 => 1..4usize, 4 => 6..10usize];
        let guarantee = || prop_oneof![4 => 0..4usize, 1 => Just(usize::MAX)];
        (all, guarantee(), guarantee()).prop_map(|(all, port, sender)| ShareBound {
            all,
            guarantee: ShareGuarantee { port, sender },
        })
    };
    (bound(), bound(), 1..4usize).prop_map(|(datagrams, held, held_a_datagram)| Limits {
        datagrams,
        held,
        held_a_datagram,
        patience_ns: 10,
    })
}

proptest! {
    #[test]
    fn the_table_does_what_its_model_does(
        limits in narrow_limits(),
        steps in prop::collection::vec(a_step(), 0..300),
    ) {
        let (mut table, mut model) = (Table::new(limits, &SECRET), Model::new(limits));
        let (memory, mut now_ns) = (table.memory(), 0);
        for (number, step) in (0..).zip(steps) {
            match &step {
                Step::Fragment { piece, waits } => {
                    let waits_as = waits.then_some(number);
                    let told = ask(&mut table, now_ns, piece, waits_as);
                    prop_assert_eq!(told, model.take_in(now_ns, piece, waits_as), "{:?}", step);
                }
                Step::Pass(time) => now_ns += time,
                Step::Expire => {
                    table.expire(now_ns);
                    model.expire(now_ns);
                    prop_assert!(!table.is_due(now_ns));
                }
                Step::Forget(port) => {
                    table.forget_ports(|other| other == PortId(*port));
                    model.forget_port(PortId(*port));
                }
            }
            prop_assert_eq!(table.waiting(), model.waiting());
            prop_assert_eq!(table.memory(), memory, "the table grew");
            let released: Vec<u32> = table.released().collect();
            prop_assert_eq!(released, std::mem::take(&mut model.released), "{:?}", step);
            let mut dropped: Vec<(u32, DropReason)> = table.dropped().collect();
            let mut expected = std::mem::take(&mut model.dropped);
            if matches!(step, Step::Forget(_)) {
                // Tunnel after tunnel of a port.
                dropped.sort_by_key(|(number, _)| *number);
                expected.sort_by_key(|(number, _)| *number);
            }
            prop_assert_eq!(dropped, expected, "{:?}", step);
        }
        let waiting = table.waiting();
        table.expire(u64::MAX);
        prop_assert_eq!((table.waiting(), table.dropped().count()), (0, waiting));
    }
}

fn table() -> Table<u32> {
    Table::new(LIMITS, &SECRET)
}

#[test]
fn fragments_before_their_first_go_on_behind_it_in_their_order() {
    let mut table = table();
    let datagram = datagram(0, 1, 9);
    for (number, place) in [(0, 2), (1, 0), (2, 1)] {
        assert_eq!(ask(&mut table, 0, &later(datagram, place), Some(number)), Told::Held);
    }
    assert_eq!(ask(&mut table, PATIENCE_NS - 1, &first(datagram), None), Told::First);
    assert_eq!(table.released().collect::<Vec<_>>(), [0, 1, 2]);
    let known = Told::Known(ports(9));
    assert_eq!(ask(&mut table, PATIENCE_NS - 1, &last(datagram, 3), Some(3)), known);
    // All of it has come: what comes now is of another datagram.
    assert_eq!(ask(&mut table, PATIENCE_NS - 1, &last(datagram, 3), None), Told::Unknown);
}

#[test]
fn a_datagram_is_forgotten_after_its_time() {
    let mut table = table();
    let datagram = datagram(0, 1, 9);
    assert_eq!(ask(&mut table, 5, &later(datagram, 0), Some(0)), Told::Held);
    table.expire(5 + PATIENCE_NS - 1);
    assert_eq!((table.waiting(), table.dropped().len()), (1, 0));
    table.expire(5 + PATIENCE_NS);
    let dropped: Vec<_> = table.dropped().collect();
    assert_eq!((table.waiting(), dropped), (0, vec![(0, DropReason::FragmentTimeout)]));
    // The end of time is no overflow.
    assert_eq!(ask(&mut table, u64::MAX - 1, &later(datagram, 0), Some(1)), Told::Held);
}

#[test]
fn an_overlap_drops_the_whole_datagram_until_its_time_is_over() {
    let mut table = table();
    let (datagram, overlap) = (datagram(0, 1, 9), Told::Dropped(DropReason::FragmentOverlap));
    assert_eq!(ask(&mut table, 0, &later(datagram, 0), Some(0)), Told::Held);
    assert_eq!(ask(&mut table, 0, &last(datagram, 0), Some(1)), overlap);
    let dropped: Vec<_> = table.dropped().collect();
    assert_eq!(dropped, [(0, DropReason::FragmentOverlap)]);
    for piece in [first(datagram), later(datagram, 7), last(datagram, 9)] {
        assert_eq!(ask(&mut table, PATIENCE_NS - 1, &piece, Some(2)), overlap);
    }
    assert_eq!(ask(&mut table, PATIENCE_NS, &first(datagram), None), Told::First);
}

#[test]
fn an_exact_duplicate_leaves_its_datagram_as_it_is() {
    let duplicate = Told::Dropped(DropReason::FragmentDuplicate);
    let mut table = table();
    let datagram = datagram(0, 1, 9);
    for (number, expected) in [(0, Told::Held), (1, duplicate)] {
        assert_eq!(ask(&mut table, 0, &later(datagram, 0), Some(number)), expected);
    }
    // The earlier of two first fragments decides.
    let shown = Some(Ok(First::Shows(ports(7))));
    let other = Piece { first: shown, ..first(datagram) };
    for (piece, expected) in [(first(datagram), Told::First), (other, duplicate)] {
        assert_eq!(ask(&mut table, 0, &piece, None), expected);
    }
    assert_eq!(table.released().collect::<Vec<_>>(), [0]);
    let known = Told::Known(ports(9));
    for expected in [known, duplicate] {
        assert_eq!(ask(&mut table, 0, &later(datagram, 1), None), expected);
    }
    assert_eq!(ask(&mut table, 0, &last(datagram, 2), None), known);
    assert_eq!((table.waiting(), table.dropped().len()), (0, 0));
}

#[test]
fn a_complete_datagram_without_a_first_fragment_expires() {
    for limits in [LIMITS, ESP_LIMITS] {
        let mut table = Table::new(limits, &SECRET);
        for number in 0..limits.held.all as u32 {
            let part = Part { start: 0, end: 3, is_last: true };
            let piece = Piece { part, first: None, ..later(datagram(0, 1, number), 0) };
            assert_eq!(ask(&mut table, 0, &piece, Some(number)), Told::Held);
        }
        table.expire(PATIENCE_NS);
        assert_eq!((table.waiting(), table.dropped().len()), (0, limits.held.all));
        assert_eq!(ask(&mut table, 0, &later(datagram(0, 1, 0), 0), Some(0)), Told::Held);
    }
}

/// FRAG: one source sends fragments without end, of datagrams whose first never comes; whatever
/// others send meanwhile goes on, in any order.
#[test]
fn a_flood_from_one_source_keeps_no_others_out() {
    let mut table = table();
    let (mut flood, mut dropped) = (0, 0);
    for round in 0..200u32 {
        for sender in 10..14 {
            let datagram = datagram(0, sender, round);
            assert_eq!(ask(&mut table, 0, &later(datagram, 0), Some(sender)), Told::Held);
        }
        for _ in 0..100 {
            flood += 1;
            let fragment = later(datagram(0, 1, flood), 0);
            assert_eq!(ask(&mut table, 0, &fragment, Some(0)), Told::Held);
            dropped += table.dropped().filter(|(fragment, _)| *fragment == 0).count();
        }
        for sender in 10..14 {
            let datagram = datagram(0, sender, round);
            assert_eq!(ask(&mut table, 0, &first(datagram), None), Told::First);
            assert_eq!(table.released().collect::<Vec<_>>(), [sender]);
            let known = Told::Known(ports(round as u16));
            assert_eq!(ask(&mut table, 0, &last(datagram, 1), None), known);
        }
        assert_eq!(table.dropped().len(), 0, "another's was dropped");
    }
    // The honest fragments had the other places.
    assert_eq!((table.waiting(), dropped), (LIMITS.held.all - 4, 20_004 - LIMITS.held.all));
}

/// Time between two packets of a flood of 3,000 packets a second, nanoseconds.
const FLOOD_INTERVAL_NS: u64 = 1_000_000_000 / 3000;

/// Sends 20 datagrams a second of one sender beside a flood of 3,000 packets a second, for five
/// seconds. Of each datagram the last fragment comes first, and the first fragment comes after
/// `gap_ns`. Every datagram completes.
fn assert_datagrams_complete(
    limits: Limits,
    gap_ns: u64,
    late: fn(Datagram) -> Piece,
    flood: &dyn Fn(u32) -> Piece,
) {
    let completes = [Told::First, Told::Complete];
    let mut table = Table::new(limits, &SECRET);
    let mut under_way = VecDeque::new();
    for number in 0..15_000 {
        let now_ns = u64::from(number) * FLOOD_INTERVAL_NS;
        ask(&mut table, now_ns, &flood(number), Some(0));
        table.released();
        if number % 150 == 1 {
            let early = last(datagram(0, 7, number), 0);
            assert_eq!(ask(&mut table, now_ns, &early, Some(number)), Told::Held, "{number}");
            under_way.push_back((number, now_ns + gap_ns));
        }
        while let Some((number, due_ns)) = under_way.front().copied()
            && due_ns <= now_ns
        {
            under_way.pop_front();
            let told = ask(&mut table, now_ns, &late(datagram(0, 7, number)), None);
            assert!(completes.contains(&told), "{number}: {told:?}");
            assert_eq!(table.released().collect::<Vec<_>>(), [number]);
        }
        let lost: Vec<_> = table.dropped().filter(|(fragment, _)| *fragment != 0).collect();
        assert_eq!(lost, [], "at {number}");
    }
}

/// A flood of fragments whose datagrams never complete.
struct EndlessFlood {
    name: &'static str,
    /// The datagram of the fragment with this number.
    datagram: fn(u32) -> Datagram,
}

const ENDLESS_FLOODS: [EndlessFlood; 7] = [
    EndlessFlood { name: "forged senders behind the port", datagram: |n| datagram(0, 100 + n, n) },
    EndlessFlood {
        name: "450 senders behind the port",
        datagram: |n| datagram(0, 100 + n % 450, n),
    },
    EndlessFlood { name: "20 senders behind the port", datagram: |n| datagram(0, 100 + n % 20, n) },
    EndlessFlood { name: "one sender behind the port", datagram: |n| datagram(0, 100, n) },
    EndlessFlood {
        name: "one sender behind 4 ports",
        datagram: |n| datagram(n as u16 % 4, 100, n),
    },
    EndlessFlood {
        name: "one sender behind 3000 ports",
        datagram: |n| datagram(n as u16 % 3000, 100, n),
    },
    EndlessFlood {
        name: "forged senders, each fragment twice",
        datagram: |n| datagram(0, 100 + n / 2, n / 2),
    },
];

#[test]
fn datagrams_complete_beside_floods_of_endless_fragments() {
    for EndlessFlood { name, datagram } in ENDLESS_FLOODS {
        println!("{name}");
        assert_datagrams_complete(LIMITS, 250_000_000, first, &|n| later(datagram(n), 0));
        // Of half the flood's datagrams the first fragment comes, as in the siege.
        assert_datagrams_complete(LIMITS, 250_000_000, first, &|n| match n % 2 {
            0 => first(datagram(n)),
            _ => later(datagram(n), 0),
        });
    }
}

#[test]
fn esp_packets_complete_beside_floods_of_endless_fragments() {
    for EndlessFlood { name, datagram } in ENDLESS_FLOODS {
        println!("{name}");
        assert_datagrams_complete(ESP_LIMITS, 120_000_000, esp, &|n| esp(datagram(n)));
        assert_datagrams_complete(ESP_LIMITS, 120_000_000, esp, &|n| {
            later(datagram(n / 3), n as u16)
        });
    }
}

/// Every tenth datagram lost its first fragment: these entries make the sender's share long.
#[test]
fn datagrams_of_a_busy_sender_with_losses_complete_beside_forged_senders() {
    let mut table = table();
    for number in 0..15_000 {
        let now_ns = u64::from(number) * FLOOD_INTERVAL_NS;
        let honest = datagram(0, 7, number);
        assert_eq!(ask(&mut table, now_ns, &last(honest, 0), Some(number)), Told::Held);
        let flood = later(datagram(0, 100 + number, number), 0);
        ask(&mut table, now_ns, &flood, Some(u32::MAX));
        if number % 10 > 0 {
            assert_eq!(ask(&mut table, now_ns, &first(honest), None), Told::First);
            assert_eq!(table.released().collect::<Vec<_>>(), [number]);
        }
        table.dropped();
    }
}

#[test]
fn datagrams_complete_beside_a_flood_of_duplicates() {
    let duplicates: [&dyn Fn(u32) -> Piece; 3] = [
        &|_| later(datagram(0, 100, 1), 0),
        &|n| later(datagram(0, 100, n % 64), 0),
        // A whole datagram again and again: the last fragment comes before the next first one.
        &|n| match n % 2 {
            0 => last(datagram(0, 100, 1), 0),
            _ => first(datagram(0, 100, 1)),
        },
    ];
    for flood in duplicates {
        assert_datagrams_complete(LIMITS, 1_000_000_000, first, flood);
    }
}

/// Any number of sources by one port leave the other ports their room.
#[test]
fn a_flood_by_one_port_keeps_no_other_port_out() {
    let mut table = table();
    let other = datagram(1, 5, 5);
    assert_eq!(ask(&mut table, 0, &later(other, 0), Some(1)), Told::Held);
    for sender in 0..20_000 {
        ask(&mut table, 0, &later(datagram(0, 100 + sender, 1), 0), Some(0));
        assert!(table.dropped().all(|(fragment, _)| fragment == 0));
    }
    assert_eq!(table.waiting(), LIMITS.held.all);
    assert_eq!(ask(&mut table, 0, &first(other), None), Told::First);
    assert_eq!(table.released().collect::<Vec<_>>(), [1]);
}

/// All senders of a port together: the newest of each still meet.
#[test]
fn under_a_flood_from_everywhere_fragments_that_come_together_still_meet() {
    let mut table = table();
    for sender in 0..20_000 {
        ask(&mut table, 0, &later(datagram(0, 100 + sender, 1), 0), Some(0));
        if sender % 100 == 0 {
            let datagram = datagram(0, 7, sender);
            assert_eq!(ask(&mut table, 0, &first(datagram), None), Told::First);
            let known = Told::Known(ports(sender as u16));
            assert_eq!(ask(&mut table, 0, &later(datagram, 0), None), known);
        }
        table.dropped();
    }
}

/// The first of an ESP packet.
fn esp(datagram: Datagram) -> Piece {
    Piece { first: Some(Ok(First::Esp)), ..first(datagram) }
}

#[test]
fn fragments_of_esp_wait_until_the_last_to_come_and_are_released_in_their_order() {
    // REASM
    let mut table = Table::new(ESP_LIMITS, &SECRET);
    let datagram = datagram(0, 1, 9);
    let waits = |table: &mut Table<u32>, piece: &Piece, number| {
        assert_eq!(ask(table, 0, piece, Some(number)), Told::Held);
    };
    waits(&mut table, &last(datagram, 2), 0);
    waits(&mut table, &esp(datagram), 1);
    waits(&mut table, &later(datagram, 1), 2);
    assert_eq!(ask(&mut table, 0, &later(datagram, 0), None), Told::Complete);
    assert_eq!(table.released().collect::<Vec<_>>(), [0, 1, 2]);
    // All of it has come: what comes now is of another datagram.
    waits(&mut table, &last(datagram, 2), 3);
    assert_eq!((table.waiting(), table.dropped().len()), (1, 0));
}

#[test]
fn a_flood_of_esp_from_one_peer_keeps_no_other_peer_out() {
    // REASM
    let mut table = Table::new(ESP_LIMITS, &SECRET);
    for flood in 0..2000 {
        let (flooding, other) = (datagram(0, 1, flood), datagram(0, 2, flood));
        ask(&mut table, 0, &esp(flooding), Some(0));
        assert_eq!(ask(&mut table, 0, &esp(other), Some(1)), Told::Held);
        ask(&mut table, 0, &later(flooding, 1), Some(0));
        assert_eq!(ask(&mut table, 0, &last(other, 0), None), Told::Complete);
        assert_eq!(table.released().collect::<Vec<_>>(), [1]);
        assert!(table.dropped().all(|(fragment, _)| fragment == 0), "another's was dropped");
        assert!(table.waiting() <= ESP_LIMITS.held.all);
    }
}
