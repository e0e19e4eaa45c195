//! DESIGN §1: what must hold after any history, whatever the packets were.

use std::cell::Cell;
use std::collections::HashSet;

use dataplane::Side;
use model::carried::{self, Bearing};
use model::headers::{self, Ip, Part};
use model::oracle::Oracle;
use model::spd::{Judgement, judge};
use model::world::World;
use policy::{Action, Direction};
use proptest::prelude::*;
use wire::Family;

use crate::explained::opened;
use crate::gateway::{Emission, Gateway, Out};
use crate::packets::{Arrival, Builder};
use crate::seeds::a_seed;
use crate::worlds::a_world;

const WORLDS: u32 = 120;
const PACKETS: usize = 150;
const WORKERS: usize = 2;

#[test]
fn no_number_is_sealed_with_twice_by_any_worker() {
    // I8
    let sealed = Cell::new(0);
    histories(|gateways, batches, _| {
        let (mut sequences, mut ivs) = (HashSet::new(), HashSet::new());
        for (number, batch) in batches.iter().enumerate() {
            let frames: Vec<&[u8]> = batch.iter().map(|arrival| &arrival.bytes[..]).collect();
            let (_, on_the_wire) = gateways[number % WORKERS].run(batch[0].netdev, &frames);
            for packet in on_the_wire {
                sealed.set(sealed.get() + 1);
                prop_assert!(sequences.insert((packet.spi, packet.sequence)), "{:?}", packet);
                let is_new = packet.iv.is_none_or(|iv| ivs.insert((packet.spi, iv)));
                prop_assert!(is_new, "{:?}", packet);
            }
        }
        Ok(())
    });
    println!("{} packets sealed", sealed.get());
    assert!(sealed.get() > 0);
}

#[test]
fn what_leaves_unprotected_is_what_the_policies_say() {
    // I1: in clear only under BYPASS, sealed only by an SA of the set that PROTECT names.
    let (clear, sealed, later) = (Cell::new(0), Cell::new(0), Cell::new(0));
    histories(|gateways, batches, world| {
        let mut firsts: Vec<Ip> = vec![];
        for batch in batches {
            let frames: Vec<&[u8]> = batch.iter().map(|arrival| &arrival.bytes[..]).collect();
            firsts.extend(batch.iter().filter_map(|arrival| first_fragment(world, arrival)));
            let (observed, _) = gateways[0].run(batch[0].netdev, &frames);
            let mut before: Option<(&Emission, Ip)> = None;
            for emission in &observed.emissions {
                let (Out::Sent(port, _) | Out::Held(port)) = emission.fate else { continue };
                if emission.sealed.is_none() && world.port(port).side == Side::Protected {
                    continue;
                }
                let packet = headers::ip(&emission.packet).expect("what leaves has no defects");
                let count = if emission.sealed.is_some() { &sealed } else { &clear };
                count.set(count.get() + 1);
                let follows = before.is_some_and(|(first, ip)| {
                    first.sealed == emission.sealed && are_of_one_datagram(&ip, &packet)
                });
                // A later fragment has the protocol and ports of a first one that came.
                let as_of = |first: &Ip| Ip { flow: first.flow, ..packet.clone() };
                let of_datagram = firsts.iter().filter(|first| are_of_one_datagram(first, &packet));
                let is_allowed = |packet: &Ip| is_allowed(world, emission, packet);
                let followed = of_datagram.map(as_of).any(|packet| is_allowed(&packet));
                later.set(later.get() + usize::from(followed && !is_allowed(&packet)));
                prop_assert!(follows || is_allowed(&packet) || followed, "{:02x?}", emission);
                before = Some((emission, packet));
            }
        }
        Ok(())
    });
    let [clear, sealed, later] = [clear, sealed, later].map(|count| count.get());
    println!("{clear} packets left in clear, {sealed} sealed, {later} by the ports of a first one");
    // Too few worlds for a fragment of each kind: `verdicts` sees to these.
    assert!(clear > 0 && sealed > 0);
}

/// The first fragment that a frame bears, in clear or sealed.
fn first_fragment(world: &World, arrival: &Arrival) -> Option<Ip> {
    let (_, bytes) = Oracle::new(world).link(arrival.netdev, &arrival.bytes).ok()?;
    let packet = headers::group(&bytes)?;
    let inner = match carried::bearing(&packet) {
        Bearing::Esp(bytes, carrier) if packet.part == Part::Whole => {
            opened(world, &packet, bytes, carrier).and_then(|(_, inner)| headers::group(&inner))
        }
        _ => None,
    };
    [Some(packet), inner].into_iter().flatten().find(|packet| packet.part == Part::First)
}

fn is_allowed(world: &World, emission: &Emission, packet: &Ip) -> bool {
    match judge(&world.policies, Direction::Outbound, &packet.flow) {
        Judgement::Entry(_, Action::Bypass) => emission.sealed.is_none(),
        Judgement::Entry(_, Action::Protect(set)) => {
            emission.sealed == Some(world.set_place(set).0)
        }
        Judgement::Entry(..) | Judgement::Opaque(_) | Judgement::Nothing => false,
    }
}

/// Returns whether the second is a later fragment of the datagram that the first is a fragment of:
/// where we cut it, it was judged before that, when it had its ports.
fn are_of_one_datagram(first: &Ip, second: &Ip) -> bool {
    first.part != Part::Whole
        && second.part == Part::Later
        && first.flow.source_address() == second.flow.source_address()
        && first.flow.destination_address() == second.flow.destination_address()
        && (first.flow.family == Family::V6 || first.flow.protocol == second.flow.protocol)
        && first.identification == second.identification
}

/// Runs a property over histories of batches through the workers of random gateways.
fn histories(
    property: impl Fn(&mut [Gateway<'_>], &[Vec<Arrival>], &World) -> Result<(), TestCaseError>,
) {
    let seeds = prop::collection::vec(a_seed(), PACKETS);
    let sizes = prop::collection::vec(1..=64usize, 1..8);
    crate::check(WORLDS, (a_world(), seeds, sizes), |(world, seeds, sizes)| {
        let mut builder = Builder::new(&world);
        let mut batches: Vec<Vec<Arrival>> = vec![];
        let mut sizes = sizes.iter().cycle();
        let mut room = [0; 3];
        let mut open = [None; 3];
        for seed in &seeds {
            // Each netdev fills its own batch; a full one is followed by another.
            let arrival = builder.build(seed);
            let netdev = usize::from(arrival.netdev.0);
            if room[netdev] == 0 {
                room[netdev] = *sizes.next().unwrap();
                open[netdev] = Some(batches.len());
                batches.push(vec![]);
            }
            room[netdev] -= 1;
            batches[open[netdev].unwrap()].push(arrival);
        }
        let first = Gateway::new(&world).at_pace(100);
        let beside = || first.beside().at_pace(100);
        let mut gateways: Vec<Gateway<'_>> = (1..WORKERS).map(|_| beside()).collect();
        gateways.push(first);
        property(&mut gateways, &batches, &world)
    });
}
