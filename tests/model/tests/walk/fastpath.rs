//! The fast path ≡ the general walk: bytes in order, verdicts, sequence numbers and every counter,
//! with a cache and without one, while policies, routes and SAs change between batches.

use std::cell::RefCell;
use std::sync::Arc;

use dataplane::{CacheCounters, Counters, FastPathUse, NetdevId, RouteGeneration, Verdict};
use model::world::World;
use policy::Spd;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::batches::{blurred, comparable as without_samples};
use crate::cached::{ROOM, a_change, next_spd, ordered};
use crate::gateway::{Gateway, Observed, OnTheWire};
use crate::packets::{Arrival, Builder};
use crate::seeds::{Seed, a_seed};
use crate::worlds::{a_common_world, a_world, with_neighbours};

/// Packets that a history is drawn from.
const SEEDS: usize = 24;

/// Packets of a history, and how many of them took the fast path.
#[derive(Default, Debug)]
struct Walked {
    packets: u64,
    fast: u64,
    without_cache: u64,
}

/// Bits that are flipped in a packet: its place in the batch, the byte and the bit.
type Flip = (Index, Index, u8);

fn a_flip() -> impl Strategy<Value = Flip> {
    (any::<Index>(), any::<Index>(), 0..8u8)
}

/// Compares both walks over random histories that begin with such a world; of `odd` in `of` seeds
/// nothing is known, the others are of common packets.
fn compare(worlds: u32, world: impl Strategy<Value = World>, (odd, of): (u32, u32)) -> Walked {
    let all: RefCell<Walked> = RefCell::default();
    let seed = prop_oneof![of - odd => a_seed().prop_map(Seed::common), odd => a_seed()];
    let seeds = prop::collection::vec(seed.prop_map(Seed::steady), SEEDS);
    // Packets of one seed follow each other, so that there are runs.
    let picks = prop::collection::vec((any::<Index>(), 1..24usize), 1..12);
    let flips = prop::collection::vec(a_flip(), 0..6);
    let stretch = (a_change(), picks, 1..=64usize, flips);
    let stretches = prop::collection::vec(stretch, 1..8);
    let entries = prop_oneof![Just(None), Just(Some(8usize)), Just(Some(1 << 14))];
    crate::check(worlds, (world, seeds, stretches, entries), |(world, seeds, list, entries)| {
        let mut worlds = vec![world];
        for (change, ..) in &list {
            worlds.push(change.of(worlds.last().unwrap()));
        }
        let mut spd = Arc::new(Spd::with_room(worlds[0].policies.clone(), ROOM).unwrap());
        let mut routes = RouteGeneration(0);
        let gateway = || {
            let snapshot = worlds[0].snapshot_over(spd.clone(), routes);
            let gateway = Gateway::over(&worlds[0], Arc::new(snapshot));
            match entries {
                Some(entries) => gateway.remembering(entries),
                None => gateway,
            }
        };
        let mut fast = gateway().with_fast_path(FastPathUse::Eager);
        let mut general = gateway().with_fast_path(FastPathUse::Never);
        for ((change, picks, size, flips), world) in list.iter().zip(&worlds[1..]) {
            spd = next_spd(&spd, &world.policies);
            routes.0 += u32::from(change.is_of_routes());
            for gateway in [&mut fast, &mut general] {
                gateway.go_over(world, Arc::new(world.snapshot_over(spd.clone(), routes)));
            }
            let mut builder = Builder::new(world);
            let picked = picks.iter().flat_map(|(pick, count)| vec![pick.get(&seeds); *count]);
            let arrivals: Vec<Arrival> = picked.map(|seed| builder.build(seed)).collect();
            for netdev in (0..3).map(NetdevId) {
                let here = arrivals.iter().filter(|arrival| arrival.netdev == netdev);
                let mut packets: Vec<Vec<u8>> = here.map(|arrival| arrival.bytes.clone()).collect();
                flip(&mut packets, flips);
                for batch in packets.chunks(*size) {
                    let batch: Vec<&[u8]> = batch.iter().map(|packet| &packet[..]).collect();
                    same(netdev, &batch, &mut fast, &mut general)?;
                    all.borrow_mut().packets += batch.len() as u64;
                }
            }
            for (one, other) in fast.walks().iter().zip(general.walks()) {
                prop_assert_eq!(comparable(one.counters()), comparable(other.counters()));
            }
        }
        let taken: u64 = fast.walks().iter().map(|walk| walk.counters().fast_path).sum();
        let mut all = all.borrow_mut();
        all.fast += taken;
        all.without_cache += if entries.is_none() { taken } else { 0 };
        Ok(())
    });
    all.into_inner()
}

fn flip(packets: &mut [Vec<u8>], flips: &[Flip]) {
    let mut packets: Vec<_> = packets.iter_mut().filter(|packet| !packet.is_empty()).collect();
    if packets.is_empty() {
        return;
    }
    for (packet, byte, bit) in flips {
        let at = packet.index(packets.len());
        let byte = byte.index(packets[at].len());
        packets[at][byte] ^= 1 << bit;
    }
}

fn same(
    netdev: NetdevId,
    batch: &[&[u8]],
    fast: &mut Gateway<'_>,
    general: &mut Gateway<'_>,
) -> Result<(), TestCaseError> {
    let expected = general.run(netdev, batch);
    same_as(&expected, (netdev, batch), fast)
}

/// Compares what a gateway makes of a batch with what another one made of it.
pub(crate) fn same_as(
    (expected, numbers): &(Observed, Vec<OnTheWire>),
    (netdev, batch): (NetdevId, &[&[u8]]),
    gateway: &mut Gateway<'_>,
) -> Result<(), TestCaseError> {
    let (observed, drawn) = gateway.run(netdev, batch);
    let (expected, observed) =
        (judged(expected.clone(), batch.len()), judged(observed, batch.len()));
    prop_assert_eq!(&observed.verdicts, &expected.verdicts);
    prop_assert_eq!(&observed, &expected);
    // IVs of AES-CBC are another's each time.
    let of = |all: &[OnTheWire]| -> Vec<_> { all.iter().map(|n| (n.spi, n.sequence)).collect() };
    prop_assert_eq!(of(&drawn), of(numbers));
    Ok(())
}

/// A damaged copy of a packet in the same batch is found out by the cipher or by its number: by the
/// number, where the copy is walked by itself behind the packet.
fn judged(observed: Observed, received: usize) -> Observed {
    let verdicts: Vec<Verdict> = observed.verdicts.iter().copied().map(blurred).collect();
    ordered(Observed { verdicts, ..observed }, received)
}

/// Counters without those of the cache, which a flow of a batch is looked up in once or twice.
pub(crate) fn comparable(counters: &Counters) -> Counters {
    let checksums = counters.l4_checksums.clone();
    let cache = CacheCounters::default();
    Counters { cache, l4_checksums: checksums, ..without_samples(counters) }
}

/// The worlds of a test; of a long one so many that there are a million packets.
fn worlds(few: u32) -> u32 {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<u32>().ok());
    cases.map_or(few, |cases| 2 * cases)
}

#[test]
fn in_any_world_the_fast_path_comes_to_what_the_general_walk_comes_to() {
    let world = prop_oneof![4 => a_world().prop_map(with_neighbours), 1 => a_world()];
    let walked = compare(worlds(150), world, (1, 5));
    println!("{walked:?}");
    assert!(walked.fast * 20 > walked.packets, "{walked:?}");
    assert!(walked.without_cache > 0, "{walked:?}");
}

#[test]
fn of_common_packets_the_fast_path_takes_most_and_comes_to_what_the_general_walk_comes_to() {
    let walked = compare(worlds(150), a_common_world(), (1, 12));
    println!("{walked:?}");
    assert!(walked.fast * 10 > walked.packets, "{walked:?}");
    assert!(walked.without_cache > 0, "{walked:?}");
}
