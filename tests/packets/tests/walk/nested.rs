//! Peers behind another one: their packets are sealed twice (XO-26). The inner layer is software's;
//! the outer one software's or a card's, which is emulated.

use std::sync::Arc;

use dataplane::Verdict::{self, Drop, Forward, Hold, Protect};
use dataplane::{DropReason, FastPathUse, HoldKind, KeyManager, SetIndex};
use ipsec::SaId;
use offload::Service;
use packets::lab::{BERLIN, CARLA, DORA, Hub, LAN, Laboratory, WAN, numbered, policy};
use packets::table::forwarded;
use policy::{Action, Policy, Selector, Spd};
use wire::Family::{self, V4, V6};
use wire::flow::protocol::ESP;

use crate::card::CardOnWire;
use crate::path_mtu::whole;
use crate::{FAMILIES, between, datagram};

/// Peers behind berlin, with their networks.
const BEHIND: [(SetIndex, u32); 2] = [(CARLA, 3), (DORA, 4)];

/// A hub at which carla and dora are behind berlin, whose policy covers their ESP.
fn hub() -> Hub {
    let mut hub = Hub::default();
    let berlin = hub.parts.sets[BERLIN.0 as usize].id;
    for (set, _) in BEHIND {
        hub.parts.sets[set.0 as usize].outer = Some(berlin);
    }
    let local = ["192.0.2.1", "2001:db8:ff::1"];
    let remote = ["203.0.113.9", "2001:db8:dd::4"];
    let esp = policy("esp-in-berlin", 300, Action::Protect(berlin), &local, &remote);
    let selector = Selector { protocol: Some(ESP), ..esp.selector };
    let mut policies = hub.policies;
    policies.push(Policy { selector, ..esp });
    Hub { policies: numbered(policies), ..hub }
}

/// The hub's laboratories: all ways through the walk.
fn laboratories() -> impl Iterator<Item = Laboratory> {
    let uses = [FastPathUse::Never, FastPathUse::Eager, FastPathUse::WherePossible];
    let plain = uses.into_iter().map(|use_| hub().laboratory().with_fast_path(use_));
    plain.chain(uses.map(|use_| hub().laboratory().with_fast_path(use_).remembering(1 << 10)))
}

/// Takes both layers off a packet for a peer behind berlin.
fn opened(lab: &mut Laboratory, set: SetIndex, packet: &[u8]) -> Vec<u8> {
    let esp = lab.peer(BERLIN).open(packet).expect("sealed for berlin").inner;
    let within = wire::packet::parse(&esp).expect("a packet");
    let ends = lab.snapshot.set(set).tunnel;
    assert_eq!(within.flow.protocol, ESP);
    assert_eq!(within.flow.source_address(), ends.local.into());
    assert_eq!(within.flow.destination_address(), ends.remote.into());
    lab.peer(set).open(&esp).expect("sealed for the peer behind it").inner
}

/// Puts both layers around a packet from a peer behind berlin.
fn sealed(lab: &mut Laboratory, set: SetIndex, inner: &[u8]) -> Vec<u8> {
    let esp = lab.peer(set).seal(inner);
    lab.peer(BERLIN).seal(&esp)
}

// XO-26
#[test]
fn what_is_for_a_peer_behind_another_leaves_in_two_layers_and_comes_in_two() {
    for mut lab in laboratories() {
        for ((set, network), family) in BEHIND.into_iter().flat_map(|of| FAMILIES.map(|f| (of, f)))
        {
            for round in 0..3 {
                let packet = datagram(family, 1, network).payload_of(40 + round).ip();
                let outcome = lab.send_all(LAN, &[&packet[..], &packet, &packet]);
                assert_eq!(outcome.verdicts, [Protect(set); 3]);
                assert_eq!(outcome.sent.len(), 3);
                for sent in &outcome.sent {
                    assert_eq!(sent.port, WAN);
                    assert_eq!(opened(&mut lab, set, &sent.packet), forwarded(&packet));
                }
                let inner = datagram(family, network, 1).payload_of(50 + round).ip();
                let esp = lab.peer(set).seal(&inner);
                let outers = [lab.peer(BERLIN).seal(&esp), sealed(&mut lab, set, &inner)];
                let outcome = lab.send_all(WAN, &outers);
                assert_eq!(outcome.verdicts, [Forward(LAN); 2]);
                let left: Vec<_> = outcome.sent.into_iter().map(|sent| sent.packet).collect();
                assert_eq!(left, [forwarded(&inner), forwarded(&inner)]);
                // Neither layer is taken twice.
                let again = lab.peer(BERLIN).seal(&esp);
                let outcome = lab.send_all(WAN, &[&again, &outers[1]]);
                assert_eq!(outcome.verdicts, [Drop(DropReason::Replayed); 2]);
            }
        }
        let sealed =
            |lab: &Laboratory, set: SetIndex| lab.counters().sealed[set.0 as usize].packets;
        let by_set = [BERLIN, CARLA, DORA].map(|set| sealed(&lab, set));
        assert_eq!(by_set, [36, 18, 18], "each layer is counted");
    }
}

// XO-26
/// Only the outer layer of the peer that is configured makes the inner one good.
#[test]
fn esp_of_a_peer_behind_another_comes_by_that_one_alone() {
    for mut lab in laboratories() {
        for (set, network) in BEHIND {
            let inner = datagram(V4, network, 1).ip();
            let bare = lab.peer(set).seal(&inner);
            let outcome = lab.send_all(WAN, &[&bare, &bare]);
            assert_eq!(outcome.verdicts, [Drop(DropReason::Unprotected); 2]);
            // The number was not taken: with its layer it comes in.
            let whole = lab.peer(BERLIN).seal(&bare);
            assert_eq!(lab.send(WAN, &whole).verdicts, [Forward(LAN)]);
            // By the tunnel of the other peer behind berlin it does not, nor through one by itself.
            let other = if set == CARLA { DORA } else { CARLA };
            let bare = lab.peer(set).seal(&inner);
            for around in [other, set] {
                let wrong = lab.peer(around).seal(&bare);
                let wrong = lab.peer(BERLIN).seal(&wrong);
                let verdicts = lab.send(WAN, &wrong).verdicts;
                assert_eq!(verdicts, [Drop(DropReason::SelectorMismatch)]);
            }
            let whole = lab.peer(BERLIN).seal(&bare);
            assert_eq!(lab.send(WAN, &whole).verdicts, [Forward(LAN)]);
        }
    }
}

/// The outer peer's policies say what may come by its SAs, ESP too.
#[test]
fn without_a_policy_for_it_the_inner_layer_is_not_opened() {
    let mut hub = hub();
    hub.policies.retain(|policy| policy.name != "esp-in-berlin");
    let mut lab = hub.laboratory();
    let inner = datagram(V4, 3, 1).ip();
    let outer = sealed(&mut lab, CARLA, &inner);
    assert_eq!(lab.send(WAN, &outer).verdicts, [Drop(DropReason::SelectorMismatch)]);
    assert_eq!(lab.counters().opened[CARLA.0 as usize].packets, 0);
}

/// A hub whose berlin has no SA to seal with.
fn without_outer_sa() -> Hub {
    let mut hub = hub();
    let berlin = &mut hub.parts.sets[BERLIN.0 as usize];
    (berlin.acquires, berlin.outbound) = (true, Vec::new());
    hub
}

#[test]
fn without_an_sa_for_the_outer_layer_nothing_leaves_and_one_is_asked_for() {
    let packet = datagram(V4, 1, 3).ip();
    let mut lab = without_outer_sa().laboratory().live();
    let outcome = lab.send(LAN, &packet);
    assert_eq!(outcome.verdicts, [Drop(DropReason::NoSa)]);
    assert!(outcome.sent.is_empty());

    let hub = without_outer_sa();
    hub.parts.acquires.set(KeyManager::Present);
    let mut lab = hub.laboratory().live();
    let outcome = lab.send_all(LAN, &[&packet, &packet]);
    assert_eq!(outcome.verdicts, [Hold(HoldKind::Sa); 2]);
    assert!(outcome.sent.is_empty());
    let asked: Vec<_> = lab.acquire_requests().into_iter().map(|asked| asked.set).collect();
    assert_eq!(asked, [lab.snapshot.set(BERLIN).id], "one request, for the outer layer's");
    lab.change(|sources| {
        let mut berlin = (**sources.sad.set(BERLIN).expect("a set")).clone();
        berlin.outbound = vec![SaId(BERLIN.0)];
        sources.sad.put_set(berlin);
    });
    let sent = lab.release();
    assert_eq!((sent.len(), lab.waiting()), (2, 0));
    for sent in sent {
        assert_eq!(opened(&mut lab, CARLA, &sent.packet), forwarded(&packet));
    }
}

/// Sizes are those of both layers, and change with the path of the outer one.
#[test]
fn the_largest_packet_fits_both_layers_and_a_larger_one_is_answered() {
    let mut lab = hub().laboratory();
    for (set, network) in BEHIND {
        let around = lab.snapshot.set_sizes(BERLIN, lab.now_ns);
        let sizes = lab.snapshot.set_sizes(set, lab.now_ns);
        assert_eq!(sizes.outer, around.whole);
        let largest = sizes.whole as usize;
        assert!((1340..1440).contains(&largest), "{largest}");
        let packet = |length: usize| {
            between(V4, 1, network).dont_fragment().udp(1, 2).payload_of(length - 28)
        };
        let outcome = lab.send(LAN, &packet(largest).ip());
        assert_eq!(outcome.verdicts, [Protect(set)]);
        assert!(outcome.sent[0].packet.len() <= 1500, "{}", outcome.sent[0].packet.len());
        assert_eq!(opened(&mut lab, set, &outcome.sent[0].packet).len(), largest);
        let outcome = lab.send(LAN, &packet(largest + 1).ip());
        assert_eq!(outcome.verdicts[0], Drop(DropReason::TooBig));
        let answer = &outcome.sent[0].packet;
        let told = u16::from_be_bytes([answer[26], answer[27]]);
        assert_eq!(usize::from(told), largest, "the MTU in fragmentation needed");
    }
}

/// RFC 2473 §7.1, RFC 4213 §3.2: the packets of the outer layer leave in fragments around IPv6
/// packets of up to 1280 bytes. IPv4 obeys the path.
#[test]
fn ipv6_of_1280_bytes_behind_another_peer_crosses_a_narrow_path_in_outer_fragments() {
    for (mtu, mut lab) in
        [1380, 1310, 576].into_iter().flat_map(|mtu| laboratories().map(move |lab| (mtu, lab)))
    {
        lab.snapshot.set(BERLIN).path_mtu.as_ref().unwrap().lower(mtu, lab.now_ns);
        for (set, network) in BEHIND {
            let packet = |bytes: usize| datagram(V6, 1, network).payload_of(bytes - 48).ip();
            let outcome = lab.send_all(LAN, &[packet(1280), packet(200)]);
            assert!(outcome.verdicts.iter().all(|verdict| *verdict == Protect(set)), "{mtu}");
            let sent: Vec<_> = outcome.sent.into_iter().map(|sent| sent.packet).collect();
            assert!(sent.len() > 2 && sent.iter().all(|piece| piece.len() <= mtu as usize));
            let (last, pieces) = sent.split_last().expect("packets");
            assert_eq!(opened(&mut lab, set, &whole(pieces)), forwarded(&packet(1280)));
            assert_eq!(opened(&mut lab, set, last), forwarded(&packet(200)));
            let sizes = lab.snapshot.set_sizes(set, lab.now_ns);
            assert_eq!(sizes.inner(V6), sizes.whole.max(1280));
            let outcome = lab.send(LAN, &packet(sizes.inner(V6) as usize + 1));
            assert_eq!(outcome.verdicts[0], Drop(DropReason::TooBig), "{mtu}");
            let four = between(V4, 1, network).dont_fragment().udp(1, 2);
            let four = four.payload_of(sizes.whole as usize - 27).ip();
            assert_eq!(lab.send(LAN, &four).verdicts[0], Drop(DropReason::TooBig), "{mtu}");
        }
    }
}

/// The path behind the outer peer is narrow, or a forged report says so: fragments of the outer
/// layer end at the outer peer, and routers behind it may cut the inner ESP packets of IPv4.
#[test]
fn no_path_mtu_behind_the_outer_peer_ends_ipv6() {
    for (mtu, mut lab) in
        [1300, 576].into_iter().flat_map(|mtu| laboratories().map(move |l| (mtu, l)))
    {
        for (set, network) in BEHIND {
            lab.snapshot.set(set).path_mtu.as_ref().unwrap().lower(mtu, lab.now_ns);
            let sizes = lab.snapshot.set_sizes(set, lab.now_ns);
            assert!(sizes.fragments && sizes.whole < 1280 && sizes.inner(V6) == 1280);
            let packet = |bytes: usize| datagram(V6, 1, network).payload_of(bytes - 48).ip();
            let outcome = lab.send_all(LAN, &[packet(1280), packet(200)]);
            assert_eq!(outcome.verdicts, [Protect(set); 2], "{mtu}");
            let sent: Vec<_> = outcome.sent.into_iter().map(|sent| sent.packet).collect();
            assert_eq!(sent.len(), 2);
            for (sent, (bytes, is_large)) in sent.iter().zip([(1280, true), (200, false)]) {
                let esp = lab.peer(BERLIN).open(sent).expect("sealed for berlin").inner;
                let within = wire::packet::parse(&esp).expect("a packet");
                let is_v4 = within.flow.family == V4;
                assert_eq!(is_v4 && !within.dont_fragment, is_v4 && is_large, "{mtu}, {bytes}");
                let inner = lab.peer(set).open(&esp).expect("sealed for the peer behind it").inner;
                assert_eq!(inner, forwarded(&packet(bytes)));
            }
            let outcome = lab.send(LAN, &packet(1281));
            assert_eq!(outcome.verdicts[0], Drop(DropReason::TooBig), "{mtu}");
            let four = between(V4, 1, network).dont_fragment().udp(1, 2);
            let four = four.payload_of(sizes.whole as usize - 27).ip();
            assert_eq!(lab.send(LAN, &four).verdicts[0], Drop(DropReason::TooBig), "{mtu}");
        }
    }
}

/// A set that is there no more leads nowhere: nothing leaves with one layer alone.
#[test]
fn when_the_outer_peer_goes_nothing_leaves_with_one_layer() {
    let mut lab = hub().laboratory();
    let packet = datagram(V4, 1, 3).ip();
    assert_eq!(lab.send(LAN, &packet).verdicts, [Protect(CARLA)]);
    lab.change(|sources| {
        let gone = sources.sad.set(BERLIN).expect("a set").id;
        let mut policies = hub().policies;
        let of_gone = |policy: &&mut Policy| policy.action == Action::Protect(gone);
        policies.iter_mut().filter(of_gone).for_each(|policy| policy.action = Action::Discard);
        sources.spd = Arc::new(Spd::new(policies).expect("few policies"));
        sources.sad.remove_set(gone);
    });
    let outcome = lab.send(LAN, &packet);
    assert_eq!(outcome.verdicts, [Drop(DropReason::NoRoute)]);
    assert!(outcome.sent.is_empty());
}

// XO-26
#[test]
fn the_outer_layer_may_be_a_cards_in_either_mode_and_the_wire_shows_both() {
    for service in [Service::Packet, Service::Crypto] {
        let mut hub = hub();
        let card = CardOnWire::serving(service, &mut hub, &[BERLIN]);
        let mut lab = hub.laboratory().behind(card.clone());
        for ((set, network), family) in BEHIND.into_iter().flat_map(|of| FAMILIES.map(|f| (of, f)))
        {
            let packet = datagram(family, 1, network).ip();
            let outcome = lab.send_all(LAN, &[&packet, &packet]);
            assert_eq!(outcome.verdicts, [Protect(set); 2], "{service:?}");
            for sent in &outcome.sent {
                assert_eq!(opened(&mut lab, set, &sent.packet), forwarded(&packet));
            }
            let inner = datagram(family, network, 1).ip();
            let outer = sealed(&mut lab, set, &inner);
            let outcome = lab.send(WAN, &outer);
            assert_eq!(outcome.verdicts, [Forward(LAN)], "{service:?}");
            assert_eq!(outcome.sent[0].packet, forwarded(&inner));
            let bare = lab.peer(set).seal(&inner);
            assert_eq!(lab.send(WAN, &bare).verdicts, [Drop(DropReason::Unprotected)]);
        }
        assert_eq!(card.packets(packets::lab::tags(BERLIN)[0]), 8, "the card sealed each");
    }
}

/// Behind a card nobody could seal again.
#[test]
fn an_inner_layer_that_is_a_cards_is_refused() {
    let mut hub = hub();
    hub.seat(CARLA);
    let mut lab = hub.laboratory();
    let outcome = lab.send(LAN, &datagram(V4, 1, 3).ip());
    assert_eq!(outcome.verdicts, [Drop(DropReason::DevMismatch)]);
    assert!(outcome.sent.is_empty());
}

#[test]
fn an_explanation_tells_of_both_layers() {
    let lab = hub().laboratory();
    let flow = wire::packet::parse(&datagram(Family::V4, 1, 3).ip()).expect("a packet").flow;
    let arrival = dataplane::explain::Arrival::Clear(LAN);
    let told = dataplane::explain::explain((&lab.snapshot, lab.now_ns), arrival, flow);
    assert_eq!(told.verdict, Verdict::Protect(CARLA));
    assert_eq!(told.sealed_by, Some(SaId(CARLA.0)));
    assert_eq!(told.sealed_again_by, Some((BERLIN, SaId(BERLIN.0))));
    assert_eq!(told.egress, Some(WAN));
}
