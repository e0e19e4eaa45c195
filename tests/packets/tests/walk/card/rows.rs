//! Rows of packets that a card does not carry, and of what it opened.

use dataplane::{DropReason, NetdevId, SetIndex};
use packets::lab::{BERLIN, CARLA, DORA, Hub, LAN, WAN, numbered, policy};
use packets::table::{forwarded, run};
use packets::{In, Out, Row};
use policy::Action;
use wire::Family::{self, V4, V6};
use wire::build::PacketBuilder;
use wire::flow::protocol::{DESTINATION, UDP};

use crate::{FAMILIES, between, datagram};

/// Sets and the networks behind their peers.
const PEERS: [(SetIndex, u32); 3] = [(BERLIN, 2), (CARLA, 3), (DORA, 4)];
/// The netdev of the protected ports.
const ANOTHER: NetdevId = NetdevId(0);

// XO-05, XO-07, XO-24, XO-25, NARROW
#[test]
fn what_cards_do_not_carry_and_what_they_opened() {
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for family in FAMILIES {
        for (set, network) in PEERS {
            rows.extend(kept_back(family, set, network));
            rows.extend(opened(family, set, network));
        }
        rows.extend(narrowed(family));
    }
    rows
}

fn seat(set: SetIndex) -> impl Fn(&mut Hub) {
    move |hub| hub.seat(set)
}

/// Packets that are kept back from a card.
fn kept_back(family: Family, set: SetIndex, network: u32) -> Vec<Row> {
    let out = || datagram(family, 1, network).payload_of(32).identification(7);
    let tx = |what: &str, packet: PacketBuilder, reason| {
        let what = format!("to a card: {family:?} {what}");
        Row::drops(what, In::Clear(LAN, packet.ip()), reason).with(seat(set))
    };
    let mut rows = vec![
        tx("first fragment", out().fragment(0, true), DropReason::CardFragmentTx),
        tx("later fragment", out().fragment(8, false), DropReason::CardFragmentTx),
        tx("nobody's device", out(), DropReason::DevMismatch)
            .with(move |hub| hub.seat_on(set, ANOTHER)),
    ];
    match family {
        V4 => {
            rows.push(tx("options", out().options(&[1; 4]), DropReason::CardOptions));
            let large = out().payload_of(2000);
            rows.push(tx("too large without DF", large, DropReason::CardFragmentTx));
        }
        V6 => {
            let extended = out().extension(DESTINATION, &[1, 4]);
            rows.push(tx("options", extended, DropReason::CardOptions));
            let atomic = out().fragment(0, false);
            rows.push(tx("an atomic fragment", atomic, DropReason::CardOptions));
            for number in [51, 253, 254] {
                let packet = between(V6, 1, network).protocol(number).payload_of(24);
                rows.push(tx("what cards take for options", packet, DropReason::CardOptions));
            }
        }
    }
    rows
}

/// Packets with the tag of an SA, and without.
fn opened(family: Family, set: SetIndex, network: u32) -> Vec<Row> {
    let back = |from| datagram(family, from, 1).payload_of(32).identification(7);
    let packet = back(network).ip();
    let what = |what: &str| format!("from a card: {family:?} {what}");
    let tagged = || In::Opened(set, back(network).ip());
    let refused = |text: &str, hub: fn(&mut Hub, SetIndex)| {
        let row = Row::drops(what(text), tagged(), DropReason::Unprotected);
        row.with(move |gateway| hub(gateway, set))
    };
    let fragment = |more| In::Opened(set, back(network).fragment(0, more).ip());
    let mut rows = vec![
        Row::passes(what("opened"), tagged(), Out::Clear(LAN, forwarded(&packet))),
        Row::drops(what("a fragment"), fragment(true), DropReason::CardFragmentRx),
        Row::drops(
            what("what its policies do not name"),
            In::Opened(set, back(8).ip()),
            DropReason::SelectorMismatch,
        ),
        Row::drops(what("ESP that it left"), In::Sealed(set, packet.clone()), DropReason::CardSa),
        Row::drops(what("no tag"), In::Clear(WAN, packet), DropReason::Unprotected),
    ];
    rows = rows.into_iter().map(|row| row.with(seat(set))).collect();
    // A tag that nobody has, or has at another device, says nothing.
    rows.push(refused("a forged tag", |_, _| {}));
    rows.push(refused("another device's tag", |hub, set| hub.seat_on(set, ANOTHER)));
    rows.push(refused("another set's tag", |hub, set| {
        hub.seat(PEERS.map(|(set, _)| set).into_iter().find(|other| *other != set).unwrap());
    }));
    rows
}

/// Rows about a policy whose SAs are in a card, for the gateway itself: nothing passes in clear
/// that `allow_host` lists, but with the card's tag it does.
fn narrowed(family: Family) -> Vec<Row> {
    let (ours, set) = match family {
        V4 => ("192.0.2.1", BERLIN),
        V6 => ("2001:db8:ff::1", DORA),
    };
    let theirs = if family == V4 { "10.2.0.5" } else { "2001:db8:4::5" };
    let hub = move |hub: &mut Hub| {
        let action = Action::Protect(hub.agreements[set.0 as usize].set);
        hub.policies.push(policy("own", 300, action, &[ours], &[theirs]));
        hub.policies = numbered(std::mem::take(&mut hub.policies));
        let udp = dataplane::HostService { protocol: UDP, ports: None };
        hub.parts.ports[usize::from(WAN.0)].allow_host.push(udp);
        hub.seat(set);
    };
    let packet = PacketBuilder::between(theirs, ours).udp(9, 53).payload_of(20).ip();
    let what = |what: &str| format!("to the gateway behind a card: {family:?} {what}");
    let passes = Row::delivers(what("opened"), In::Opened(set, packet.clone()), packet.clone());
    let refused = Row::drops(what("in clear"), In::Clear(WAN, packet), DropReason::Unprotected);
    vec![passes.with(hub), refused.with(hub)]
}
