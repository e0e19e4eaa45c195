//! Tests the steering program on the netdev of an emulated card, whose frames begin with a header.

mod common;

use bpf::{Action, Counter, LinkForm, Run, Steering};
use common::*;
use wire::build::PacketBuilder;
use wire::{CardHeader, Deciphered, Mark};

/// A tag of a card: incarnation 3, handle 0x89abcdef.
const TAG: u64 = 3 << 32 | 0x89ab_cdef;

/// Frames with their descriptions: to Linux, to the worker, tagged with a VLAN id and not.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |packet: PacketBuilder, mac, vlan| packet.frame(mac, OTHER_MAC, vlan);
    let v4 = PacketBuilder::v4;
    let v6 = PacketBuilder::v6;
    let mut arp = frame(v4("10.1.0.5", "10.1.0.1").udp(1, 1), [0xff; 6], None);
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut cut = frame(v4("10.1.0.5", "10.9.0.9").udp(1, 1), LAN_MAC, None);
    cut.truncate(20);
    vec![
        ("ARP", arp),
        ("a cut header", cut),
        ("through us", frame(v4("10.1.0.5", "10.9.0.9").udp(1, 2).payload_of(90), LAN_MAC, None)),
        ("to us", frame(v4("10.1.0.5", "10.1.0.1").tcp(1, 22), LAN_MAC, None)),
        ("to another", frame(v4("10.1.0.5", "10.1.0.1").tcp(1, 22), OTHER_MAC, None)),
        ("IPv6", frame(v6("2001:db8:1::5", "2001:db8:7::1").udp(1, 2), LAN_MAC, None)),
        ("VLAN", frame(v4("198.51.100.7", "192.0.2.1").tcp(1, 2), WAN_MAC, Some(WAN_VLAN))),
        ("IKE", frame(v4("198.51.100.7", "192.0.2.1").udp(500, 500), WAN_MAC, Some(WAN_VLAN))),
        ("undeclared", frame(v4("10.1.0.5", "10.9.0.9").udp(1, 2), LAN_MAC, Some(77))),
        ("14 bytes", [&LAN_MAC[..], &OTHER_MAC, &[8, 0]].concat()),
    ]
}

fn behind(header: CardHeader, frame: &[u8]) -> Vec<u8> {
    [&header.bytes()[..], frame].concat()
}

fn run(steering: &Steering, what: &str, frame: &[u8]) -> Run {
    steering.run(frame).unwrap_or_else(|error| panic!("{what}: {error}"))
}

// HA-09, HA-21
#[test]
fn a_cards_tag_is_in_the_mark_and_its_header_is_gone_whatever_becomes_of_the_frame() {
    let Some((plain, _first)) = steering("a card's tag") else { return };
    let Some((mut carded, _second)) = steering("a card's tag") else { return };
    carded.set_ports(&ports(), LinkForm::Carded).unwrap();
    let (mut passed, mut redirected) = (0, 0);
    for (what, frame) in frames() {
        let expected = run(&plain, what, &frame);
        for header in [CardHeader::Plain, CardHeader::Rule(TAG), CardHeader::Rule(u64::MAX)] {
            let got = run(&carded, what, &behind(header, &frame));
            assert_eq!(got.action, expected.action, "{what}");
            assert_eq!(got.left, frame, "{what}");
            let mark = expected.mark.map(|mark| Mark::read(&mark).unwrap());
            let tagged = mark.map(|mark| match header.tag() {
                Some(tag) => mark.with_card_tag(tag),
                None => mark,
            });
            let got = got.mark.map(|mark| Mark::read(&mark).unwrap());
            assert_eq!(got, tagged, "{what}");
            assert_eq!(got.and_then(|mark| mark.card_tag()), got.and(header.tag()), "{what}");
        }
        match expected.action {
            Action::Pass => passed += 1,
            Action::Redirect => redirected += 1,
            other => panic!("{what}: {other:?}"),
        }
    }
    assert!(passed >= 3 && redirected >= 4, "{passed} passed, {redirected} redirected");
    let counters = carded.counters().unwrap();
    assert_eq!(counters.of(Counter::NoCardHeader), 0);
    assert_eq!(counters.received(), 3 * frames().len() as u64);
}

#[test]
fn what_an_sa_of_the_card_opened_is_the_workers_whatever_it_is_to() {
    let Some((mut carded, _socket)) = steering("an SA's tag") else { return };
    carded.set_ports(&ports(), LinkForm::Carded).unwrap();
    for (what, frame) in frames() {
        let got = run(&carded, what, &behind(CardHeader::Sa(TAG), &frame));
        assert_eq!((got.action, &got.left), (Action::Redirect, &frame), "{what}");
        let mark = Mark::read(&got.mark.unwrap()).unwrap();
        assert_eq!((mark.card_sa(), mark.card_tag()), (Some(TAG), None), "{what}");
    }
}

// XO-03
#[test]
fn of_esp_that_a_card_was_to_decipher_the_mark_says_by_which_sa_and_with_what_outcome() {
    let Some((mut carded, _socket)) = steering("a deciphered packet's mark") else { return };
    carded.set_ports(&ports(), LinkForm::Carded).unwrap();
    let (_, frame) = frames().swap_remove(2);
    for (header, outcome) in [
        (CardHeader::Cipher(TAG), Deciphered::Authentic),
        (CardHeader::Forged(TAG), Deciphered::Forged),
    ] {
        let got = run(&carded, "deciphered", &behind(header, &frame));
        assert_eq!((got.action, &got.left), (Action::Redirect, &frame));
        let mark = Mark::read(&got.mark.unwrap()).unwrap();
        assert_eq!(mark.card_cipher(), Some((TAG, outcome)));
        assert_eq!((mark.card_sa(), mark.card_tag()), (None, None));
    }
}

#[test]
fn a_frame_without_the_cards_header_is_dropped_and_counted() {
    let Some((mut steering, _socket)) = steering("no card's header") else { return };
    steering.set_ports(&ports(), LinkForm::Carded).unwrap();
    let (_, frame) = frames().swap_remove(2);
    let whole = behind(CardHeader::Rule(TAG), &frame);
    let mut dropped: Vec<Vec<u8>> = frames().into_iter().map(|(_, frame)| frame).collect();
    // Too short for header and Ethernet; a wrong first word; kinds that are not known.
    dropped.extend([14, 15, 16, 17, 29].map(|length| whole[..length].to_vec()));
    for (at, byte) in [(0, 0), (3, 0xff), (4, 5), (4, 0xff), (7, 1)] {
        let mut changed = whole.clone();
        changed[at] = byte;
        dropped.push(changed);
    }
    for frame in &dropped {
        let run = run(&steering, "without a header", frame);
        assert_eq!((run.action, run.mark), (Action::Drop, None), "{frame:02x?}");
    }
    let counters = steering.counters().unwrap();
    assert_eq!(counters.of(Counter::NoCardHeader), dropped.len() as u64);
    assert_eq!(counters.received(), dropped.len() as u64);
    assert_eq!(run(&steering, "whole", &whole).action, Action::Redirect);
    // The shortest: a header and an Ethernet header.
    assert_eq!(run(&steering, "short", &whole[..30]).action, Action::Redirect);
}

#[test]
fn on_a_plain_netdev_a_header_is_no_header() {
    let Some((mut steering, _socket)) = steering("a plain netdev") else { return };
    let (_, frame) = frames().swap_remove(2);
    let carded = behind(CardHeader::Rule(TAG), &frame);
    for form in [LinkForm::Plain, LinkForm::Carded, LinkForm::Plain] {
        steering.set_ports(&ports(), form).unwrap();
        let run = run(&steering, "a header from the wire", &carded);
        let mark = run.mark.map(|mark| Mark::read(&mark).unwrap());
        match form {
            // Its first word is taken for a station, which is not ours.
            LinkForm::Plain => {
                assert_eq!((run.action, mark, run.left), (Action::Pass, None, carded.clone()));
            }
            LinkForm::Carded => assert_eq!(mark.unwrap().card_tag(), Some(TAG)),
        }
    }
    // Without ports nobody has said that there are headers, and nothing is passed.
    steering.set_ports(&ports(), LinkForm::Carded).unwrap();
    steering.forget_ports().unwrap();
    let run = run(&steering, "no ports", &carded);
    assert_eq!((run.action, run.left), (Action::Redirect, carded));
    assert_eq!(Mark::read(&run.mark.unwrap()).unwrap().card_tag(), None);
}
