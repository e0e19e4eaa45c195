use proptest::prelude::*;
use wire::{Address, Vni};

use super::model::RoomModel;
use super::*;
use crate::ids::PortId;

const NARROW: RoomBounds = RoomBounds { all: 12, key: 3 };
const SECOND_NS: u64 = 1_000_000_000;

fn sender(port: u16, address: u32) -> PacketSender {
    PacketSender::behind(PortId(port), Address::v4(address))
}

/// A step of a random room.
#[derive(Clone, Copy, Debug)]
enum Step {
    Admit { key: u32, sender: PacketSender },
    Remove(usize),
    TakeKey(usize),
    MoveTo(usize, u32),
    TakeBefore(u64),
    Pass(u64),
    Repeat,
    Requests(usize),
}

fn a_step() -> impl Strategy<Value = Step> {
    let senders = (0..3u16, 0..4u32, prop::bool::weighted(0.2)).prop_map(|(port, from, inside)| {
        let vni = Vni::new(from).filter(|_| inside);
        match vni {
            Some(vni) => PacketSender::inside(PortId(port), vni, Address::v4(from)),
            None => sender(port, from),
        }
    });
    prop_oneof![
        20 => (0..8u32, senders).prop_map(|(key, sender)| Step::Admit { key, sender }),
        2 => (0..12usize).prop_map(Step::Remove),
        2 => (0..8usize).prop_map(Step::TakeKey),
        2 => (0..12usize, 0..8u32).prop_map(|(at, key)| Step::MoveTo(at, key)),
        1 => (0..3 * SECOND_NS).prop_map(Step::TakeBefore),
        4 => prop_oneof![Just(SECOND_NS - 1), Just(1), 0..SECOND_NS].prop_map(Step::Pass),
        2 => Just(Step::Repeat),
        6 => (0..4usize).prop_map(Step::Requests),
    ]
}

fn slots(room: &WaitingRoom<u32, u32>) -> impl Iterator<Item = Slot> {
    std::iter::successors(room.oldest(), |slot| room.after(*slot))
}

/// Keys and packets of a room, oldest first.
fn packets(room: &WaitingRoom<u32, u32>) -> Vec<(u32, u32)> {
    slots(room).filter_map(|slot| room.packet(slot)).map(|(key, number)| (key, *number)).collect()
}

fn keys(room: &WaitingRoom<u32, u32>) -> Vec<Slot> {
    std::iter::successors(room.oldest_key(), |slot| room.key_after(*slot)).collect()
}

fn take_before(room: &mut WaitingRoom<u32, u32>, until_ns: u64) -> Vec<u32> {
    std::iter::from_fn(|| room.take_before(until_ns)).collect()
}

proptest! {
    #[test]
    fn the_room_does_what_lists_do(steps in prop::collection::vec(a_step(), 0..300)) {
        let mut room: WaitingRoom<u32, u32> = WaitingRoom::new(NARROW.all);
        let (mut model, mut now_ns) = (RoomModel::default(), 5 * SECOND_NS);
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Admit { key, sender } => {
                    let gives_way = room.admit(now_ns, (key, sender), number, NARROW);
                    let expected = model.admit(now_ns, (key, sender), number, NARROW);
                    prop_assert_eq!(gives_way, expected, "{:?}", step);
                }
                Step::Remove(at) if at < room.len() => {
                    let slot = slots(&room).nth(at);
                    let expected = model.packets[at].number;
                    prop_assert_eq!(room.remove(slot.unwrap()), Some(expected));
                    model.remove(expected);
                    prop_assert_eq!(room.remove(slot.unwrap()), None, "it is gone");
                }
                Step::MoveTo(at, key) if at < room.len() => {
                    let slot = slots(&room).nth(at);
                    room.move_to(slot.unwrap(), key);
                    model.move_to(model.packets[at].number, key);
                }
                Step::TakeKey(at) if at < keys(&room).len() => {
                    let mut taken = Vec::new();
                    room.take_key(keys(&room)[at], |number| taken.push(number));
                    prop_assert_eq!(taken, model.take_key(model.keys[at]));
                }
                Step::TakeBefore(ago_ns) => {
                    let until_ns = now_ns - ago_ns;
                    prop_assert_eq!(take_before(&mut room, until_ns), model.take_before(until_ns));
                }
                Step::Pass(ns) => now_ns += ns,
                Step::Repeat => {
                    room.queue_repetitions(now_ns);
                    model.queue_repetitions(now_ns);
                }
                Step::Requests(count) => for _ in 0..count {
                    let request = room.next_request(now_ns).map(|(key, first)| (key, *first));
                    let expected = model.next_request(now_ns).map(|key| {
                        (key, model.of_key(key)[0].number)
                    });
                    prop_assert_eq!(request, expected);
                },
                Step::Remove(_) | Step::TakeKey(_) | Step::MoveTo(..) => {}
            }
            let expected: Vec<(u32, u32)> =
                model.packets.iter().map(|packet| (packet.key, packet.number)).collect();
            prop_assert_eq!((room.len(), packets(&room)), (expected.len(), expected));
            let keys: Vec<u32> = keys(&room).into_iter().map(|slot| room.key(slot)).collect();
            prop_assert_eq!(&keys, &model.keys);
        }
        prop_assert_eq!(take_before(&mut room, u64::MAX).len(), model.packets.len());
        prop_assert!(!room.has_requests() && room.oldest_key().is_none());
    }

    #[test]
    fn a_room_never_grows(steps in prop::collection::vec(a_step(), 0..300)) {
        let mut room: WaitingRoom<u32, u32> = WaitingRoom::new(NARROW.all);
        let memory = room.memory();
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Admit { key, sender } => {
                    room.admit(number, (key, sender), 0, NARROW);
                    prop_assert!(room.len() <= NARROW.all);
                }
                Step::Requests(_) => _ = room.next_request(number),
                Step::TakeBefore(_) => _ = room.take_before(number / 2),
                _ => {}
            }
            prop_assert_eq!(room.memory(), memory);
        }
    }
}

const BOUNDS: RoomBounds = RoomBounds { all: 1024, key: 16 };

fn room() -> WaitingRoom<u32, u32> {
    WaitingRoom::new(BOUNDS.all)
}

#[test]
fn a_senders_flood_displaces_its_own_packets() {
    let mut room = room();
    for honest in 0..100 {
        assert_eq!(room.admit(0, (honest, sender(0, 100 + honest)), 1, BOUNDS), None);
    }
    for flood in 0..10_000 {
        let gives_way = room.admit(1, (1000 + flood, sender(0, 1)), 0, BOUNDS);
        assert!(gives_way.is_none_or(|packet| packet == 0), "another's gave way");
    }
    assert_eq!(room.len(), BOUNDS.all);
}

#[test]
fn a_ports_flood_from_everywhere_displaces_packets_of_the_port() {
    let mut room = room();
    for honest in 0..100 {
        assert_eq!(room.admit(0, (honest, sender(1, honest)), 1, BOUNDS), None);
    }
    for flood in 0..10_000 {
        let gives_way = room.admit(1, (1000 + flood, sender(0, flood)), 0, BOUNDS);
        assert!(gives_way.is_none_or(|packet| packet == 0), "another's gave way");
    }
}

#[test]
fn a_flood_to_one_neighbour_displaces_its_own_packets() {
    let mut room = room();
    assert_eq!(room.admit(0, (7, sender(0, 100)), 1, BOUNDS), None);
    for _ in 0..1000 {
        let gives_way = room.admit(1, (7, sender(0, 1)), 0, BOUNDS);
        assert!(gives_way.is_none_or(|packet| packet == 0), "another's gave way");
    }
    assert_eq!(room.len_of(7), BOUNDS.key);
    // The longest share sends one more packet to a full key: this packet goes.
    for other in 0..500 {
        room.admit(1, (100 + other, sender(0, 2)), 2, BOUNDS);
    }
    assert_eq!(room.admit(2, (7, sender(0, 2)), 2, BOUNDS), Some(2));
    assert!(room.has_requests());
}

#[test]
fn a_new_key_asks_at_once_beside_any_number_of_others() {
    let mut room = room();
    for flood in 0..5000 {
        room.admit(0, (1000 + flood, sender(0, 1)), 0, BOUNDS);
    }
    room.admit(0, (1, sender(0, 2)), 1, BOUNDS);
    room.admit(0, (2, sender(1, 1)), 1, BOUNDS);
    let next = |_| room.next_request(0).map(|(key, _)| key);
    let asked: Vec<u32> = (0..4).filter_map(next).collect();
    // Ports in turn, senders of a port in turn, of a sender the latest key.
    assert_eq!(asked, [5999, 2, 1, 5998]);
}

#[test]
fn a_key_of_a_scan_asks_at_once_for_another_sender() {
    let mut room = room();
    for scanned in 0..500 {
        room.admit(0, (scanned, sender(0, 1)), 0, BOUNDS);
    }
    room.admit(0, (7, sender(0, 2)), 1, BOUNDS);
    let next = |_| room.next_request(0).map(|(key, _)| key);
    let asked: Vec<u32> = (0..3).filter_map(next).collect();
    assert_eq!(asked, [499, 7, 498]);
}

#[test]
fn first_requests_come_before_repetitions() {
    let mut room = room();
    room.admit(0, (1, sender(0, 1)), 0, BOUNDS);
    assert_eq!(room.next_request(0), Some((1, &0)));
    room.admit(SECOND_NS, (2, sender(0, 1)), 1, BOUNDS);
    room.queue_repetitions(SECOND_NS);
    room.admit(SECOND_NS, (3, sender(0, 1)), 2, BOUNDS);
    let asked: Vec<u32> =
        std::iter::from_fn(|| room.next_request(SECOND_NS).map(|(key, _)| key)).collect();
    assert_eq!(asked, [3, 2, 1]);
    room.queue_repetitions(2 * SECOND_NS - 1);
    assert!(!room.has_requests());
}
