//! Lookups of policies and SAs, some of which are in cards and others are not.

use std::sync::Arc;

use dataplane::{DropReason, FastPathUse, NextHop, Prefix, RouteTarget, SaSet, Verdict};
use ipsec::{OutboundSa, SaId, SequenceCounter, SequenceNumbers, Spi};
use packets::lab::{
    BERLIN, CARD, CARLA, Hub, LAN, LAN2, Laboratory, ROUTER_MAC, WAN, agreements, numbered, policy,
    tags, with_ports,
};
use packets::peer::material;
use policy::{Action, Policy, SaSetId};
use wire::Family::V4;

use super::emulated::CardOnWire;
use super::sending::{WAN2, WAN2_NETDEV, with_another_device};
use crate::{between, datagram};

/// The SPI of the SA in software.
const IN_SOFTWARE: u32 = 0x3000;

/// SPI of an ESP packet over IPv4.
fn spi_of(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[20..24].try_into().unwrap())
}

fn protect(set: dataplane::SetIndex) -> Action {
    Action::Protect(SaSetId(100 + set.0))
}

/// Puts an SA of software between the same ends beside the one in the card; `order` puts the set's
/// SAs in their order.
fn put_beside(lab: &mut Laboratory, order: impl Fn([SaId; 2]) -> [SaId; 2]) {
    lab.change(|sources| {
        let agreement = agreements()[BERLIN.0 as usize];
        let counter = Arc::new(SequenceCounter::new(SequenceNumbers::Short));
        let (id, key) = (sources.sad.vacant_outbound(), material(agreement.suite, 90));
        let (spi, way) = (Spi::new(IN_SOFTWARE).unwrap(), agreement.encapsulation());
        let sa = OutboundSa::new(id, spi, agreement.set, &key, way, counter).unwrap();
        sources.sad.put_outbound(Arc::new(sa));
        let mut set = SaSet::clone(sources.sad.set(BERLIN).unwrap());
        let [in_card] = set.outbound[..] else { panic!("one SA") };
        set.outbound = order([in_card, id]).to_vec();
        sources.sad.put_set(set);
    });
}

// XO-13: among the SAs of a set, in the emulated card
#[test]
fn of_sas_between_the_same_ends_the_one_in_a_card_is_found_first() {
    let orders: [fn([SaId; 2]) -> [SaId; 2]; 2] = [|[a, b]| [a, b], |[a, b]| [b, a]];
    for fast in [FastPathUse::Never, FastPathUse::Eager] {
        for order in orders {
            let mut hub = Hub::default();
            let card = CardOnWire::with(&mut hub, &[BERLIN]);
            let mut lab = hub.laboratory().behind(card.clone()).with_fast_path(fast);
            put_beside(&mut lab, order);
            let there = datagram(V4, 1, 2).ip();
            let spis = |lab: &mut Laboratory| -> Vec<u32> {
                let outcome = lab.send_all(LAN, &[&there, &there, &there]);
                assert_eq!(outcome.verdicts, [Verdict::Protect(BERLIN); 3]);
                outcome.sent.iter().map(|sent| spi_of(&sent.packet)).collect()
            };
            assert_eq!(spis(&mut lab), [agreements()[BERLIN.0 as usize].spi_from_hub; 3]);
            assert_eq!(card.packets(tags(BERLIN)[0]), 3);
            // Without it the other one is found, and the card does nothing.
            lab.change(|sources| {
                let mut set = SaSet::clone(sources.sad.set(BERLIN).unwrap());
                let in_card = SaId(BERLIN.0);
                set.outbound.retain(|sa| *sa != in_card);
                sources.sad.put_set(set);
                sources.sad.remove_outbound(in_card);
            });
            assert_eq!(spis(&mut lab), [IN_SOFTWARE; 3]);
            assert_eq!(card.packets(tags(BERLIN)[0]), 3);
        }
    }
}

// XO-12: in the gateway's own lookup, with the SAs of the prefixes in the emulated card
#[test]
fn a_policy_of_prefixes_with_its_sa_in_a_card_is_found_where_no_exact_one_matches() {
    for fast in [FastPathUse::Never, FastPathUse::Eager] {
        let mut hub = Hub::default();
        let exact = |name, action, port| {
            with_ports(policy(name, 900, action, &["10.1.0.5"], &["10.20.0.5"]), 17, &[port])
        };
        hub.policies = numbered(vec![
            policy("prefixes", 100, protect(BERLIN), &["10.1.0.0/16"], &["10.20.0.0/16"]),
            exact("software", protect(CARLA), "2001"),
            exact("closed", Action::Discard, "2002"),
        ]);
        let card = CardOnWire::with(&mut hub, &[BERLIN]);
        let mut lab = hub.laboratory().behind(card.clone()).with_fast_path(fast);
        let to = |port| between(V4, 1, 20).udp(1000, port).payload_of(33).ip();
        let verdicts = lab.send_all(LAN, &[to(2000), to(2001), to(2002), to(2003)]).verdicts;
        let discarded = Verdict::Drop(DropReason::PolicyDiscard);
        let [prefixes, software] = [BERLIN, CARLA].map(Verdict::Protect);
        assert_eq!(verdicts, [prefixes, software, discarded, prefixes]);
        assert_eq!(card.packets(tags(BERLIN)[0]), 2, "those of no exact policy");
    }
}

// XO-14: of policies, each with its SA in the card of another device
#[test]
fn one_selector_and_priority_for_two_devices_is_two_policies_each_of_its_own_card() {
    for fast in [FastPathUse::Never, FastPathUse::Eager] {
        let mut hub = with_another_device();
        let of = |name, set, port: dataplane::PortId| Policy {
            ingress: Some([port.0].into()),
            ..policy(name, 100, protect(set), &["10.1.0.0/16"], &["10.20.0.0/16"])
        };
        hub.policies = numbered(vec![of("one", BERLIN, LAN), of("other", CARLA, LAN2)]);
        hub.seat_on(BERLIN, CARD);
        hub.seat_on(CARLA, WAN2_NETDEV);
        let mut lab = hub.laboratory().with_fast_path(fast);
        lab.change(|sources| {
            let address = |text: &str| text.parse::<std::net::IpAddr>().unwrap().into();
            let (network, gateway) = (address("203.0.113.0"), address("192.0.2.254"));
            let hop = NextHop { port: WAN2, gateway: Some(gateway) };
            let prefix = Prefix { address: network, length: 24 };
            sources.routes.insert(prefix, RouteTarget::Via(hop));
            sources.neighbours.insert((WAN2, gateway), ROUTER_MAC);
        });
        let there = datagram(V4, 1, 20).ip();
        for (came, set, left) in [(LAN, BERLIN, WAN), (LAN2, CARLA, WAN2), (LAN, BERLIN, WAN)] {
            let outcome = lab.send(came, &there);
            assert_eq!(outcome.verdicts, [Verdict::Protect(set)]);
            let [sent] = &outcome.sent[..] else { panic!("{:?}", outcome.sent) };
            assert_eq!((sent.port, sent.to_seal), (left, Some(tags(set)[0])), "{came:?}");
        }
    }
}
