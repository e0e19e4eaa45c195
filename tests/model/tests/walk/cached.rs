//! The walk with a flow cache ≡ the walk without, whatever changes meanwhile.

use std::cell::RefCell;
use std::sync::Arc;

use dataplane::cache::Key;
use dataplane::{CacheCounters, Counters, RouteGeneration};
use model::world::World;
use policy::{DomainId, Exit, Policy, PolicyId, Search, Spd, Tables};
use proptest::prelude::*;
use proptest::sample::Index;
use wire::Address;

use crate::gateway::{Gateway, Observed, Out};
use crate::packets::{Arrival, Builder};
use crate::seeds::{Seed, a_seed};
use crate::worlds::a_world;

const WORLDS: u32 = 250;
/// Packets that a history is drawn from.
const SEEDS: usize = 24;
/// Policies that a history may have in all.
pub(crate) const ROOM: usize = 64;

/// A change between two stretches of a history.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Nothing.
    Stays,
    /// A policy goes.
    Removes(Index),
    /// A policy comes that says of the same flows what another one says of others.
    Adds(Index, Index, u32),
    /// Only packets of these ports are spoken of by a policy.
    Narrows(Index, Vec<u16>),
    /// Two routes lead where the other led.
    Swaps(Index, Index),
    /// A route goes.
    Unroutes(Index),
    /// All SAs have other SPIs.
    Rekeys,
}

pub(crate) fn a_change() -> impl Strategy<Value = Change> {
    let index = any::<Index>;
    let ports = prop::collection::btree_set(0..5u16, 1..3);
    prop_oneof![
        1 => Just(Change::Stays),
        2 => index().prop_map(Change::Removes),
        2 => (index(), index(), 0..4u32).prop_map(|(of, by, high)| Change::Adds(of, by, high)),
        2 => (index(), ports).prop_map(|(of, ports)| {
            Change::Narrows(of, ports.into_iter().collect())
        }),
        2 => (index(), index()).prop_map(|(one, other)| Change::Swaps(one, other)),
        1 => index().prop_map(Change::Unroutes),
        1 => Just(Change::Rekeys),
    ]
}

impl Change {
    /// The world afterwards.
    pub(crate) fn of(&self, world: &World) -> World {
        let mut world = world.clone();
        let next = world.policies.iter().map(|policy| policy.id.0 + 1).max().unwrap_or(0);
        match self {
            Change::Stays => {}
            // Packets are aimed at policies: one stays.
            Change::Removes(_) if world.policies.len() < 2 => {}
            Change::Removes(at) => drop(world.policies.remove(at.index(world.policies.len()))),
            Change::Adds(..) if world.policies.is_empty() => {}
            Change::Adds(of, by, priority) => {
                let (of, by) = (of.get(&world.policies), by.get(&world.policies));
                let is_of_a_kind = of.group.is_some() == by.group.is_some();
                let action = if is_of_a_kind { by.action } else { of.action };
                let (id, priority) = (PolicyId(next), *priority);
                let added = Policy { id, priority, action, ..of.clone() };
                world.policies.push(added);
            }
            Change::Narrows(..) if world.policies.is_empty() => {}
            Change::Narrows(at, ports) => {
                let at = at.index(world.policies.len());
                let policy = world.policies.remove(at);
                let ingress = Some(ports.as_slice().into());
                world.policies.push(Policy { id: PolicyId(next), ingress, ..policy });
            }
            Change::Swaps(one, other) => {
                let routes = &mut world.routes;
                let (one, other) = (one.index(routes.len()), other.index(routes.len()));
                if routes[one].prefix.address.family == routes[other].prefix.address.family {
                    let target = routes[one].target;
                    routes[one].target = std::mem::replace(&mut routes[other].target, target);
                }
            }
            Change::Unroutes(at) => drop(world.routes.remove(at.index(world.routes.len()))),
            Change::Rekeys => {
                let sas = |peer: &mut model::world::Peer| {
                    peer.outbound.iter_mut().chain(&mut peer.inbound).for_each(|sa| sa.spi += 99);
                };
                world.peers.iter_mut().for_each(sas);
            }
        }
        world
    }

    pub(crate) fn is_of_routes(&self) -> bool {
        matches!(self, Change::Swaps(..) | Change::Unroutes(_))
    }
}

/// The database of the next policies: upon the same base if it can be, else made anew.
pub(crate) fn next_spd(spd: &Arc<Spd>, policies: &[Policy]) -> Arc<Spd> {
    let gone = spd.holding().filter(|(_, policy)| !policies.contains(policy));
    let gone: Vec<_> = gone.map(|(index, _)| index).collect();
    let is_new = |policy: &&Policy| !spd.holding().any(|(_, known)| known == *policy);
    let new: Vec<Policy> = policies.iter().filter(is_new).cloned().collect();
    if gone.is_empty() && new.is_empty() {
        return spd.clone();
    }
    spd.changed(&gone, new)
        .unwrap_or_else(|_| spd.renewed(policies.to_vec(), ROOM).unwrap().0)
        .into()
}

#[test]
fn a_cache_changes_neither_verdict_nor_output_nor_count() {
    // FC-18, FC-24, FC-32, FC-38, FC-39, FC-40, FC-52; I1, I2
    let all: RefCell<CacheCounters> = RefCell::default();
    let seeds = prop::collection::vec(a_seed().prop_map(Seed::steady), SEEDS);
    let stretch = (a_change(), prop::collection::vec(any::<Index>(), 1..100), 1..=64usize);
    let stretches = prop::collection::vec(stretch, 1..8);
    let entries = prop_oneof![Just(8usize), Just(64), Just(1 << 14)];
    crate::check(
        WORLDS,
        (a_world(), seeds, stretches, entries),
        |(world, seeds, list, entries)| {
            let mut worlds = vec![world];
            for (change, ..) in &list {
                worlds.push(change.of(worlds.last().unwrap()));
            }
            let mut spd = Arc::new(Spd::with_room(worlds[0].policies.clone(), ROOM).unwrap());
            let mut routes = RouteGeneration(0);
            let snapshot = |world: &World, spd: &Arc<Spd>, routes| {
                Arc::new(world.snapshot_over(spd.clone(), routes))
            };
            let mut plain = Gateway::over(&worlds[0], snapshot(&worlds[0], &spd, routes));
            let remembering = Gateway::over(&worlds[0], snapshot(&worlds[0], &spd, routes));
            let mut remembering = remembering.remembering(entries);
            for ((change, picks, size), world) in list.iter().zip(&worlds[1..]) {
                spd = next_spd(&spd, &world.policies);
                routes.0 += u32::from(change.is_of_routes());
                for gateway in [&mut plain, &mut remembering] {
                    gateway.go_over(world, snapshot(world, &spd, routes));
                }
                let mut builder = Builder::new(world);
                let arrivals: Vec<Arrival> =
                    picks.iter().map(|pick| builder.build(pick.get(&seeds))).collect();
                for netdev in 0..3 {
                    let here = arrivals.iter().filter(|arrival| arrival.netdev.0 == netdev);
                    let packets: Vec<&[u8]> = here.map(|arrival| &arrival.bytes[..]).collect();
                    for batch in packets.chunks(*size) {
                        let netdev = dataplane::NetdevId(netdev);
                        let expected = ordered(plain.run(netdev, batch).0, batch.len());
                        let observed = ordered(remembering.run(netdev, batch).0, batch.len());
                        prop_assert_eq!(&observed.verdicts, &expected.verdicts, "{:?}", change);
                        prop_assert_eq!(&observed, &expected, "{:?}", change);
                    }
                }
                let linear = linear(&snapshot(world, &spd, routes));
                for (one, other) in remembering.walks().iter().zip(plain.walks()) {
                    prop_assert_eq!(comparable(one.counters()), comparable(other.counters()));
                    let searches = (one.counters().full_lookups, other.counters().full_lookups);
                    prop_assert!(searches.0 <= searches.1);
                    entries_are_true(one, &linear)?;
                }
            }
            for walk in remembering.walks() {
                all.borrow_mut().add(&walk.counters().cache);
            }
            Ok(())
        },
    );
    let all = all.into_inner();
    println!("{all:?}");
    let CacheCounters { hits, misses, routes, stale, evictions, negative, refused, .. } = all;
    for count in [hits, misses, routes, stale, evictions, negative, refused] {
        assert!(count > 0, "{all:?}");
    }
}

/// The tables of a snapshot, searched one rule after the other.
fn linear(snapshot: &dataplane::Snapshot) -> Tables {
    let spd = snapshot.spd().clone().searched(Search::Linear);
    Tables::new(spd.into(), snapshot.sad().places(), None).unwrap()
}

/// FC-05: each entry of the generation that stands says what the tables say, searched linearly.
fn entries_are_true(walk: &dataplane::Walk, tables: &Tables) -> Result<(), TestCaseError> {
    let (entries, _) = walk.cache().unwrap().entries(0, usize::MAX);
    for entry in entries.iter().filter(|entry| entry.verdict.is_asked() && entry.is_current) {
        let Key { scope, flow } = entry.key;
        let domain = tables.scopes().domain(scope);
        if tables.spd().domains().any(|known| known == domain) {
            let generation = tables.spd().generation(domain);
            prop_assert_eq!(entry.generation, generation);
            // The same for every way out that it is said to hold for.
            let classes = tables.spd().domains().map(DomainId::class);
            let exits = classes.flat_map(|class| [Exit::Inside(class), Exit::Outside(class)]);
            let mut held = 0;
            for exit in exits.chain([Exit::Other]) {
                if entry.verdict.egress.admits(tables.egress_class(scope, exit)) {
                    let expected = tables.judge(scope, exit, &flow, &mut |_| {});
                    prop_assert_eq!(entry.verdict, expected, "{:?}", exit);
                    held += 1;
                }
            }
            prop_assert!(held > 0);
        }
    }
    Ok(())
}

/// Linux gets what it gets in the order of each flow, not of all. Of several places that a peer's
/// packets of one batch came from, the paths may open that of another one last, and they may open
/// those of two peers in either order. Verdicts on packets that were made, or waited, stand behind
/// those of the `received` ones in the order in which the paths came to them.
pub(crate) fn ordered(mut observed: Observed, received: usize) -> Observed {
    let is_for_host = |emission: &crate::gateway::Emission| emission.fate == Out::Host;
    let (mut host, others) = observed.emissions.into_iter().partition::<Vec<_>, _>(is_for_host);
    host.sort();
    host.extend(others);
    observed.emissions = host;
    for moved in &mut observed.moved {
        (moved.address, moved.port) = (Address::v4(0), 0);
    }
    observed.moved.sort_by_key(|moved| moved.set);
    observed.verdicts[received..].sort_by_cached_key(|verdict| format!("{verdict:?}"));
    observed
}

/// Counters without those of searching.
fn comparable(counters: &Counters) -> Counters {
    let cache = CacheCounters::default();
    Counters { full_lookups: 0, fast_path: 0, cache, ..counters.clone() }
}
