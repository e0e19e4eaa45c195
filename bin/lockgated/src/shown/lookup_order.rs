//! Policies in the order of lookup, in the API's messages: what network cards carry in front.

use std::collections::{HashMap, HashSet};

use api::v1;
use control::{LookupPlace, Ordered, lookup_order};
use ipsec::{CardSeat, SeatCarrier, Spi};
use policy::{Action, Direction, Policy, SaSetId};

use super::sas::is_spent;
use crate::picture::Picture;
use crate::totals::Totals;

/// The SAs of a set in a card, in one direction.
struct Carried {
    card: String,
    carrier: SeatCarrier,
    /// SPI of one that has not ended, if there is one.
    spi: Spi,
    has_room: bool,
    count: u32,
    packets: u64,
}

/// The policies of both directions in their orders of lookup; none, if there are no cards.
pub(crate) fn policies_in_order(picture: &Picture, totals: &Totals) -> Vec<v1::PlacedPolicy> {
    if picture.config().cards.is_empty() {
        return Vec::new();
    }
    let snapshot = &picture.snapshot;
    let peers: HashMap<SaSetId, &str> =
        snapshot.sets().map(|(_, set)| (set.id, set.peer.as_str())).collect();
    let mut placed = Vec::new();
    for direction in [Direction::Outbound, Direction::Inbound] {
        let carried = carried(picture, totals, direction, &peers);
        let order = lookup_order(snapshot.spd(), direction, |set| carried.contains_key(&set));
        let present = |(at, of): (usize, &Ordered)| v1::PlacedPolicy {
            place: at as u32 + 1,
            ..policy(picture, totals, (direction, *of), (&carried, &peers))
        };
        placed.extend(order.iter().enumerate().map(present));
    }
    placed
}

/// The sets whose packets of a direction a card carries, or Linux for it. Where all SAs in a card
/// are at a hard limit, workers carry on if the set has others.
fn carried(
    picture: &Picture,
    totals: &Totals,
    direction: Direction,
    peers: &HashMap<SaSetId, &str>,
) -> HashMap<SaSetId, Carried> {
    let mut sets: HashMap<SaSetId, Carried> = HashMap::new();
    let mut have_others: HashSet<SaSetId> = HashSet::new();
    let mut add = |(set, spi): (SaSetId, Spi), seat: Option<CardSeat>, has_room: bool| {
        let Some(seat) = seat else {
            have_others.extend(has_room.then_some(set));
            return;
        };
        let card = picture.netdev_cards.get(&seat.netdev);
        let of = sets.entry(set).or_insert_with(|| Carried {
            card: card.map_or_else(String::new, |card| card.name.to_string()),
            carrier: seat.carrier,
            spi,
            has_room,
            count: 0,
            packets: 0,
        });
        if has_room && !of.has_room {
            (of.spi, of.has_room) = (spi, true);
        }
        let peer = peers.get(&set).copied().unwrap_or_default();
        let volume = totals.sas.get(&(direction, spi, peer.to_owned()));
        of.count += 1;
        of.packets += volume.map_or(0, |volume| volume.packets);
    };
    let snapshot = &picture.snapshot;
    match direction {
        Direction::Outbound => {
            snapshot.outbound().for_each(|sa| add((sa.set, sa.spi), sa.packet_card(), sa.lasts()))
        }
        Direction::Inbound => snapshot.inbound().for_each(|sa| {
            let has_room = !is_spent(sa.allowance.as_ref());
            add((sa.set, sa.spi), sa.packet_card(), has_room);
        }),
    }
    sets.retain(|set, of| of.has_room || !have_others.contains(set));
    sets
}

fn policy(
    picture: &Picture,
    totals: &Totals,
    (direction, Ordered { slot, place }): (Direction, Ordered),
    (carried, peers): (&HashMap<SaSetId, Carried>, &HashMap<SaSetId, &str>),
) -> v1::PlacedPolicy {
    let spd = picture.snapshot.spd();
    let of: &Policy = spd.policy(slot);
    let set = match of.action {
        Action::Protect(set) => Some(set),
        _ => None,
    };
    let (reason, because_of) = match place {
        LookupPlace::InFront | LookupPlace::Ranked => ("", String::new()),
        LookupPlace::Behind(other) => ("beaten", spd.policy(other).name.clone()),
        LookupPlace::NotCompared => ("effort", String::new()),
    };
    let [outbound, inbound] = totals.policies.get(of.name.as_str()).copied().unwrap_or_default();
    let decided = match direction {
        Direction::Outbound => outbound.packets,
        Direction::Inbound => inbound.packets,
    };
    let message = v1::PlacedPolicy {
        direction: direction.name().into(),
        policy: of.name.clone(),
        action: Action::NAMES[of.action.kind()].to_uppercase(),
        peer: set.and_then(|set| peers.get(&set)).map(|peer| (*peer).to_owned()),
        carrier: "workers".into(),
        in_front: place == LookupPlace::InFront,
        reason: reason.into(),
        because_of,
        packets: decided,
        ..v1::PlacedPolicy::default()
    };
    let Some(seats) = set.and_then(|set| carried.get(&set)) else { return message };
    v1::PlacedPolicy {
        carrier: match seats.carrier {
            SeatCarrier::Worker => "card".into(),
            SeatCarrier::Linux => "linux".into(),
        },
        card: seats.card.clone(),
        state: if seats.has_room { "live" } else { "ended" }.into(),
        spi: Some(seats.spi.to_string()),
        sas: seats.count,
        packets: seats.packets,
        ..message
    }
}
