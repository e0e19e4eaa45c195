//! A batch ≡ its packets one at a time, and a permuted batch ≡ the batch, permuted.

use std::cell::Cell;
use std::collections::BTreeMap;

use dataplane::{Counters, DropReason, NetdevId, RouteTarget, Verdict};
use model::headers::{self, Part};
use model::oracle::Oracle;
use model::world::World;
use proptest::prelude::*;
use proptest::sample::Index;
use wire::BATCH;

use crate::gateway::{Emission, Gateway, Observed, Out};
use crate::packets::{Arrival, Builder};
use crate::seeds::{Seed, a_seed};
use crate::worlds::a_world;

const WORLDS: u32 = 160;
/// Packets drawn for a world. They are sorted by netdev into batches.
const PACKETS: usize = 120;
/// Small enough that no order of them moves the smallest replay window past any of them.
const PERMUTED: usize = 32;

const DEVICES: [NetdevId; 3] = [NetdevId(0), NetdevId(1), NetdevId(2)];

#[test]
fn a_batch_comes_to_what_its_packets_come_to_one_at_a_time() {
    let judged = Cell::new(0);
    let copies = prop::collection::vec((any::<Index>(), any::<Index>()), 0..8);
    let sizes = prop::collection::vec(prop_oneof![1 => 1..64usize, 1 => Just(64)], 1..8);
    let seeds = (prop::collection::vec(a_seed(), PACKETS), any::<bool>()).prop_map(orderly);
    let world = a_world().prop_map(with_one_worker);
    crate::check(WORLDS, (world, seeds, copies, sizes), |(world, seeds, copies, sizes)| {
        let mut builder = Builder::new(&world);
        let arrivals: Vec<Arrival> = seeds.iter().map(|seed| builder.build(seed)).collect();
        let [mut together, mut alone] = [(); 2].map(|()| Gateway::new(&world).at_pace(100));
        let smallest = smallest_window(&world);
        for netdev in DEVICES {
            let mut packets = of(netdev, &arrivals);
            duplicate(&mut packets, &copies);
            let mut sizes = sizes.iter().map(|size| *size.min(&smallest)).cycle();
            while !packets.is_empty() {
                let size = sizes.next().unwrap();
                let batch: Vec<&[u8]> = packets.drain(..size.min(packets.len())).collect();
                judged.set(judged.get() + batch.len());
                let now_ns = together.next_ns();
                let (observed, _) = together.run(netdev, &batch);
                let mut alone_at_once = |packet: &&[u8]| {
                    alone.set_next_ns(now_ns);
                    alone.run(netdev, &[packet]).0
                };
                let singles: Vec<Observed> = batch.iter().map(&mut alone_at_once).collect();
                same(&world, &observed, &singles)?;
                prop_assert_eq!(comparable(together.counters()), comparable(alone.counters()));
            }
        }
        Ok(())
    });
    println!("{} packets judged twice", judged.get());
}

#[test]
fn a_permuted_batch_comes_to_the_same_permuted() {
    let judged = Cell::new(0);
    let copies = prop::collection::vec((any::<Index>(), any::<Index>()), 0..6);
    let seed = a_seed().prop_map(|seed| seed.steady().without_sealed_fragments());
    let seeds = prop::collection::vec(seed, 2 * PERMUTED);
    let order: Vec<usize> = (0..4 * PERMUTED).collect();
    let order = Just(order).prop_shuffle();
    let world = a_world().prop_map(with_one_worker);
    crate::check(WORLDS, (world, seeds, copies, order), |(world, seeds, copies, order)| {
        let mut builder = Builder::new(&world);
        let arrivals: Vec<Arrival> = seeds.iter().map(|seed| builder.build(seed)).collect();
        for netdev in DEVICES {
            let mut batch = of(netdev, &arrivals);
            batch.truncate(PERMUTED);
            duplicate(&mut batch, &copies);
            let order: Vec<usize> =
                order.iter().copied().filter(|place| *place < batch.len()).collect();
            let order = with_fragments_in_order(&world, netdev, &batch, order);
            let permuted: Vec<&[u8]> = order.iter().map(|place| batch[*place]).collect();
            judged.set(judged.get() + batch.len());
            let (mut straight, mut shuffled) = (Gateway::new(&world), Gateway::new(&world));
            let (expected, _) = straight.run(netdev, &batch);
            let (observed, _) = shuffled.run(netdev, &permuted);
            // Of equal packets one may be the replay of the other: which one, order decides.
            let expected_verdicts = by_packet(&batch, &expected.verdicts);
            let verdicts = by_packet(&permuted, &observed.verdicts);
            prop_assert_eq!(verdicts, expected_verdicts);
            prop_assert_eq!(sorted(&observed.emissions), sorted(&expected.emissions));
            prop_assert_eq!(comparable(shuffled.counters()), comparable(straight.counters()));
        }
        Ok(())
    });
    println!("{} packets judged twice", judged.get());
}

/// An order with the fragments among themselves as they came: only behind its first fragment is
/// a fragment known to be one of ESP in UDP, or of other ports.
fn with_fragments_in_order(
    world: &World,
    netdev: NetdevId,
    batch: &[&[u8]],
    mut order: Vec<usize>,
) -> Vec<usize> {
    let is_fragment = |place: &usize| {
        let link = Oracle::new(world).link(netdev, batch[*place]);
        let packet = link.ok().and_then(|(_, bytes)| headers::group(&bytes));
        packet.is_some_and(|packet| packet.part != Part::Whole)
    };
    let mut sorted: Vec<usize> = order.iter().copied().filter(is_fragment).collect();
    sorted.sort_unstable();
    let mut sorted = sorted.into_iter();
    for place in order.iter_mut().filter(|place| is_fragment(place)) {
        *place = sorted.next().expect("as many fragments");
    }
    order
}

/// Packets of which the order within a batch does not matter: with their numbers in order, or with
/// no ESP in fragments. What no frame holds is opened behind its batch, and numbers far ahead of it
/// would leave it behind the window.
fn orderly((seeds, in_order): (Vec<Seed>, bool)) -> Vec<Seed> {
    let orderly = |seed: Seed| match in_order {
        true => seed.steady(),
        false => seed.without_leaps().without_fragmented_esp(),
    };
    seeds.into_iter().map(orderly).collect()
}

/// The size of the smallest replay window: in a larger batch a packet that no frame holds may fall
/// out of it.
fn smallest_window(world: &World) -> usize {
    let inbound = world.peers.iter().flat_map(|peer| &peer.inbound);
    inbound.map(|keys| keys.window as usize).min().unwrap_or(BATCH)
}

/// Returns the world with one worker: packets that are handed over are not in the order of the
/// rest.
fn with_one_worker(world: World) -> World {
    World { workers: 1, ..world }
}

fn of(netdev: NetdevId, arrivals: &[Arrival]) -> Vec<&[u8]> {
    let here = arrivals.iter().filter(|arrival| arrival.netdev == netdev);
    here.map(|arrival| &arrival.bytes[..]).collect()
}

/// Puts copies of packets elsewhere.
fn duplicate(packets: &mut Vec<&[u8]>, copies: &[(Index, Index)]) {
    for (from, to) in copies.iter().filter(|_| !packets.is_empty()).collect::<Vec<_>>() {
        let copy = *from.get(packets);
        packets.insert(to.index(packets.len() + 1), copy);
    }
}

/// Holds a batch against its packets alone.
fn same(world: &World, batch: &Observed, singles: &[Observed]) -> Result<(), TestCaseError> {
    let (own, made) = batch.verdicts.split_at(singles.len());
    for (verdict, single) in own.iter().zip(singles) {
        prop_assert_eq!(blurred(*verdict), blurred(single.verdicts[0]));
    }
    let singles_made = singles.iter().flat_map(|single| &single.verdicts[1..]).copied();
    prop_assert_eq!(sorted_verdicts(made.iter().copied()), sorted_verdicts(singles_made));

    // What is made about packets leaves behind all of them; else the order is that of the rows.
    let (mut expected, mut later): (Vec<Emission>, Vec<Emission>) = (vec![], vec![]);
    for single in singles {
        let is_dropped = matches!(single.verdicts[0], Verdict::Drop(_));
        for emission in &single.emissions {
            // What follows a first fragment is no message about it.
            let is_made = is_dropped && !follows_a_first(world, emission);
            let list = if is_made { &mut later } else { &mut expected };
            list.push(emission.clone());
        }
    }
    expected.extend(later);
    let mut ports: BTreeMap<String, [Vec<&Emission>; 2]> = BTreeMap::new();
    for (side, emissions) in [&batch.emissions, &expected].into_iter().enumerate() {
        for emission in emissions {
            let port = match emission.fate {
                Out::Sent(port, _) => format!("sent {}", port.0),
                Out::Held(port) => format!("held {}", port.0),
                Out::Host => "host".into(),
            };
            ports.entry(port).or_default()[side].push(emission);
        }
    }
    for (port, [mut got, mut expected]) in ports {
        if port == "host" {
            // Linux gets what is not IP first.
            got.sort();
            expected.sort();
        }
        prop_assert_eq!(got, expected, "{}", port);
    }
    Ok(())
}

/// Returns whether a packet is a later fragment, but not of a message that we made.
fn follows_a_first(world: &World, emission: &Emission) -> bool {
    let Ok(packet) = headers::ip(&emission.packet) else { return false };
    let is_ours = world.route(packet.flow.source_address()) == Some(RouteTarget::Local);
    packet.part == Part::Later && !(is_ours && packet.flow.protocol == 1)
}

/// A damaged copy of a packet in the same batch is found out by the cipher, a damaged copy of a
/// packet of an earlier batch by its number: all three reasons are one here.
pub(crate) fn blurred(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Drop(DropReason::Replayed | DropReason::TooOld) => {
            Verdict::Drop(DropReason::Integrity)
        }
        verdict => verdict,
    }
}

fn sorted_verdicts(verdicts: impl Iterator<Item = Verdict>) -> Vec<String> {
    let mut list: Vec<String> = verdicts.map(|verdict| format!("{verdict:?}")).collect();
    list.sort();
    list
}

/// The verdicts on each packet, and those on what was made.
fn by_packet<'p>(
    packets: &[&'p [u8]],
    verdicts: &[Verdict],
) -> (BTreeMap<&'p [u8], Vec<String>>, Vec<String>) {
    let mut map: BTreeMap<&[u8], Vec<String>> = BTreeMap::new();
    for (packet, verdict) in packets.iter().zip(verdicts) {
        map.entry(packet).or_default().push(format!("{verdict:?}"));
    }
    map.values_mut().for_each(|list| list.sort());
    (map, sorted_verdicts(verdicts[packets.len()..].iter().copied()))
}

fn sorted(emissions: &[Emission]) -> Vec<Emission> {
    let mut list = emissions.to_vec();
    list.sort();
    list
}

/// Counters without the number of searches, which a batch may share, without the sample of
/// checksums, which is at most one packet of a batch, and with the reasons that [`blurred`] makes
/// one added up.
pub(crate) fn comparable(counters: &Counters) -> Counters {
    let mut counters = Counters { full_lookups: 0, fast_path: 0, ..counters.clone() };
    for counts in &mut counters.l4_checksums {
        (counts.checked, counts.bad) = (0, 0);
    }
    for reason in [DropReason::Replayed, DropReason::TooOld] {
        let count = std::mem::take(&mut counters.drops[reason as usize]);
        counters.drops[DropReason::Integrity as usize] += count;
    }
    counters
}
