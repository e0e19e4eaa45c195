//! ESP: what the gateway opens and refuses, and what its own looks like from the far end.

use std::sync::Arc;

use dataplane::Verdict::{Drop, Forward, Protect};
use dataplane::{DropReason, SetIndex};
use ipsec::{KeyMaterial, OutboundSa, SequenceCounter, SequenceNumbers};
use packets::lab::{BERLIN, CARLA, DORA, Hub, LAN, Laboratory, REPLAY_WINDOW, WAN};
use packets::peer::{Peer, text_of, text_with};
use packets::table::{forwarded, run, sum_header};
use packets::{In, Out, Row};
use wire::Address;
use wire::Family::{V4, V6};
use wire::flow::protocol::{IPV4, IPV6, NONE, TCP};

use crate::{FAMILIES, between, datagram};

const PEERS: [(SetIndex, u32); 3] = [(BERLIN, 2), (CARLA, 3), (DORA, 4)];

#[test]
fn esp() {
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for (set, network) in PEERS {
        rows.extend(numbers(set, network));
        rows.extend(spis(set, network));
        rows.extend(lengths(set, network));
        for family in FAMILIES {
            let inner = datagram(family, network, 1).ip();
            rows.extend(trailers(set, inner.clone()));
            rows.extend(congestion(set, network, family));
        }
    }
    rows.extend(sequence_ends());
    rows
}

/// The replay window.
fn numbers(set: SetIndex, network: u32) -> Vec<Row> {
    let inner = datagram(V4, network, 1).ip();
    let arrives = Out::Clear(LAN, forwarded(&inner));
    let numbered = |sequence: u64| {
        let inner = inner.clone();
        In::crafted(set, move |peer| peer.seal_as(sequence, &inner))
    };
    let forged = |sequence: u64| {
        let inner = inner.clone();
        In::crafted(set, move |peer| {
            let mut outer = peer.seal_as(sequence, &inner);
            *outer.last_mut().unwrap() ^= 1;
            outer
        })
    };
    let window = u64::from(REPLAY_WINDOW);
    // With ESN the number is taken for one of the next 2³², which it does not authenticate as.
    let too_old = if set == DORA { DropReason::Integrity } else { DropReason::TooOld };
    vec![
        Row::drops("the same number again", numbered(5), DropReason::Replayed).after(numbered(5)),
        Row::passes("an older number, in the window", numbered(1), arrives.clone())
            .after(numbered(window)),
        Row::drops("an older number, left of the window", numbered(1), too_old)
            .after(numbered(window + 1)),
        Row::drops("number 0", numbered(0), too_old).after(numbered(window + 1)),
        Row::passes("a forged number moves no window", numbered(1), arrives.clone())
            .after(forged(1000)),
        Row::passes("a forged number uses no number up", numbered(7), arrives).after(forged(7)),
        Row::drops("a wrong ICV", forged(1), DropReason::Integrity),
    ]
}

/// Rows about the SA that an SPI finds, and the address by which it finds it.
fn spis(set: SetIndex, network: u32) -> Vec<Row> {
    let inner = datagram(V6, network, 1).ip();
    let text = text_of(&inner);
    let with_spi = |spi: u32| {
        let text = text.clone();
        In::crafted(set, move |peer| {
            let mut esp = peer.esp(1, &text);
            esp[..4].copy_from_slice(&spi.to_be_bytes());
            peer.outer(&esp).ip()
        })
    };
    let mut rows = vec![];
    for spi in [0, 1, 255, 256, 0x2000, u32::MAX] {
        rows.push(Row::drops(format!("SPI {spi}"), with_spi(spi), DropReason::UnknownSpi));
    }
    // Our own SPI, to an address of ours that is not the tunnel's.
    let elsewhere = In::crafted(set, move |peer| {
        let esp = peer.esp(1, &text);
        let to = match peer.agreement.hub {
            std::net::IpAddr::V4(_) => Address::v4(0xc000_0202),
            std::net::IpAddr::V6(_) => packets::lab::own(V6, 1),
        };
        let from: Address = peer.agreement.address.into();
        wire::build::PacketBuilder::new(from, to).protocol(50).payload(&esp).ip()
    });
    rows.push(Row::drops("to another address of ours", elsewhere, DropReason::UnknownSpi));
    rows
}

/// ESP packets that are too short or badly aligned.
fn lengths(set: SetIndex, network: u32) -> Vec<Row> {
    let inner = datagram(V4, network, 1).ip();
    let cut = |length: usize| {
        let inner = inner.clone();
        In::crafted(set, move |peer| {
            let esp = peer.esp(1, &text_of(&inner));
            peer.outer(&esp[..length]).ip()
        })
    };
    let mut rows = vec![];
    for length in 0..34 {
        rows.push(Row::drops(format!("{length} bytes of ESP"), cut(length), DropReason::Malformed));
    }
    for (length, reason) in [
        (34, DropReason::Malformed),
        (36, DropReason::Integrity),
        (37, DropReason::Malformed),
        (40, DropReason::Integrity),
    ] {
        rows.push(Row::drops(format!("{length} bytes of ESP"), cut(length), reason));
    }
    rows
}

/// Authentic packets whose trailers are odd.
fn trailers(set: SetIndex, inner: Vec<u8>) -> Vec<Row> {
    let is_v4 = inner[0] >> 4 == 4;
    let (own, other) = if is_v4 { (IPV4, IPV6) } else { (IPV6, IPV4) };
    let arrives = Out::Clear(LAN, forwarded(&inner));
    let text =
        |padding: &[u8], pad_length: u8, next: u8| text_with(&inner, padding, pad_length, next);
    let carrying = |text: Vec<u8>| {
        In::crafted(set, move |peer: &mut Peer| {
            let esp = peer.esp(1, &text);
            peer.outer(&esp).ip()
        })
    };
    // Padding of any length is right as long as the trailer ends on a multiple of 4.
    let least = (4 - (inner.len() + 2) % 4) % 4;
    let counting: Vec<u8> = (1..=255).collect();
    let longest = least + (255 - least) / 4 * 4;
    let pad = &counting[..least + 4];
    let swapped = [&pad[..least + 2], &[0x55, pad[least + 3]]].concat();
    let from_zero: Vec<u8> = (0..pad.len() as u8).collect();
    let beyond = text(pad, 255, own);
    let beyond_refused = inner.len() + pad.len() < 255;
    let filled = [&inner[..], &[0xdd; 100]].concat();
    let aligned = (4 - (filled.len() + 2) % 4) % 4;
    let filled = text_with(&filled, &counting[..aligned], aligned as u8, own);
    let padding = DropReason::BadPadding;
    assert!(beyond_refused, "the packet is short, so that 255 is more than there is");
    vec![
        Row::passes(
            "more padding than needed",
            carrying(text(pad, pad.len() as u8, own)),
            arrives.clone(),
        ),
        Row::passes(
            "most padding",
            carrying(text(&counting[..longest], longest as u8, own)),
            arrives.clone(),
        ),
        Row::passes("traffic flow confidentiality padding", carrying(filled), arrives),
        Row::drops(
            "padding that does not count",
            carrying(text(&swapped, pad.len() as u8, own)),
            padding,
        ),
        Row::drops("padding from 0", carrying(text(&from_zero, pad.len() as u8, own)), padding),
        Row::drops("more padding than there is", carrying(beyond), padding),
        Row::drops(
            "the other family's number",
            carrying(text(pad, pad.len() as u8, other)),
            DropReason::Malformed,
        ),
        Row::drops(
            "TCP: transport mode",
            carrying(text(pad, pad.len() as u8, TCP)),
            DropReason::BadNextHeader,
        ),
        Row::drops(
            "next header 0",
            carrying(text(pad, pad.len() as u8, 0)),
            DropReason::BadNextHeader,
        ),
        Row::drops("a dummy", carrying(text(pad, pad.len() as u8, NONE)), DropReason::Dummy),
        Row::drops("an empty dummy", carrying(vec![1, 2, 2, NONE]), DropReason::Dummy),
        Row::drops("a tunnel of nothing", carrying(vec![1, 2, 2, own]), DropReason::Malformed),
    ]
}

/// RFC 6040 Figure 4, and a DSCP outside that stays outside.
fn congestion(set: SetIndex, network: u32, family: wire::Family) -> Vec<Row> {
    let mut rows = vec![];
    for inside in 0..4u8 {
        for outside in 0..4u8 {
            let inner = datagram(family, network, 1).traffic_class(0x28 | inside).ip();
            let result = match (inside, outside) {
                (0, 3) => None,
                (0, _) => Some(0),
                (_, 3) => Some(3),
                (2, 1) => Some(1),
                (inside, _) => Some(inside),
            };
            let sent = inner.clone();
            let packet = In::crafted(set, move |peer| {
                let esp = peer.esp(1, &text_of(&sent));
                peer.outer(&esp).traffic_class(0xb8 | outside).ip()
            });
            let what = format!("{family:?} ECN {inside:02b} inside, {outside:02b} outside");
            rows.push(match result {
                None => Row::drops(what, packet, DropReason::Ecn),
                Some(ecn) => {
                    let marked = datagram(family, network, 1).traffic_class(0x28 | ecn).ip();
                    Row::passes(what, packet, Out::Clear(LAN, forwarded(&marked)))
                }
            });
        }
    }
    rows
}

/// The last numbers of an SA without ESN.
fn sequence_ends() -> Vec<Row> {
    let packet = datagram(V4, 1, 2).ip();
    let sealed = Out::Sealed(BERLIN, forwarded(&packet));
    let leave: [fn(&mut Hub); 2] = [
        |hub| _ = hub.parts.outbound[0].sequence.draw(u32::MAX),
        |hub| _ = hub.parts.outbound[0].sequence.draw(u32::MAX - 1),
    ];
    let lan = In::Clear(LAN, packet);
    vec![
        Row::drops("no number left", lan.clone(), DropReason::SequenceExhausted).with(leave[0]),
        Row::passes("one number left", lan.clone(), sealed).with(leave[1]),
        Row::drops("one number used", lan.clone(), DropReason::SequenceExhausted)
            .with(leave[1])
            .after(lan),
    ]
}

#[test]
fn of_two_equal_numbers_in_a_batch_one_is_delivered() {
    for ((set, network), workers) in PEERS.into_iter().flat_map(|peer| [(peer, 1), (peer, 2)]) {
        let mut hub = Hub::default();
        hub.parts.workers = workers;
        let mut lab = hub.laboratory();
        let inner = datagram(V4, network, 1).ip();
        let outer = lab.peer(set).seal(&inner);
        let outcome = lab.send_all(WAN, &[&outer, &outer, &outer]);
        let replayed = Drop(DropReason::Replayed);
        assert_eq!(outcome.verdicts, [Forward(LAN), replayed, replayed]);
        assert_eq!(outcome.sent.len(), 1);
        assert_eq!(lab.send(WAN, &outer).verdicts, [replayed], "in a later batch too");
    }
}

#[test]
fn a_batch_gets_the_last_numbers_and_its_rest_is_dropped() {
    let hub = Hub::default();
    hub.parts.outbound[0].sequence.draw(u32::MAX - 2).whole().unwrap();
    let mut lab = hub.laboratory();
    let packet = datagram(V4, 1, 2).ip();
    let outcome = lab.send_all(LAN, &[&packet, &packet, &packet]);
    let exhausted = Drop(DropReason::SequenceExhausted);
    assert_eq!(outcome.verdicts, [Protect(BERLIN), Protect(BERLIN), exhausted]);
    assert_eq!(outcome.sent.len(), 2);
    assert_eq!(lab.send(LAN, &packet).verdicts, [exhausted]);
}

#[test]
fn what_is_not_reserved_is_not_sent_until_it_is() {
    let mut hub = Hub::default();
    let old = &hub.parts.outbound[0];
    let last = Box::leak(Box::default());
    let counter = Arc::new(SequenceCounter::shared(last, 3, SequenceNumbers::Short));
    let spi = old.spi;
    let key = KeyMaterial::new(old.suite, &vec![7; old.suite.material_bytes()]).unwrap();
    let sa =
        OutboundSa::new(old.id, spi, old.set, &key, old.encapsulation, counter.clone()).unwrap();
    hub.parts.outbound[0] = Arc::new(sa);
    let mut lab = hub.laboratory();
    let packet = datagram(V4, 1, 2).ip();
    let refused = Drop(DropReason::SequenceNotReserved);
    assert_eq!(lab.send_all(LAN, &[&packet, &packet]).verdicts, [Protect(BERLIN); 2]);
    let outcome = lab.send_all(LAN, &[&packet, &packet]);
    assert_eq!(outcome.verdicts, [Protect(BERLIN), refused], "one more is reserved");
    assert_eq!(outcome.sent.len(), 1);
    assert_eq!(lab.send(LAN, &packet).verdicts, [refused]);
    counter.reserve(100);
    assert_eq!(lab.send(LAN, &packet).verdicts, [Protect(BERLIN)]);
    assert_eq!(counter.last(), 4);
}

#[test]
fn any_flipped_bit_of_an_esp_packet_is_found() {
    let mut lab = Laboratory::default();
    let inner = datagram(V4, 2, 1).ip();
    // Number 3: no single bit makes it 0.
    let outer = lab.peer(BERLIN).seal_as(3, &inner);
    for bit in 20 * 8..outer.len() * 8 {
        let mut flipped = outer.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let outcome = lab.send(WAN, &flipped);
        let expected = match bit / 8 {
            20..24 => DropReason::UnknownSpi,
            _ => DropReason::Integrity,
        };
        assert_eq!(outcome.verdicts, [Drop(expected)], "bit {bit}");
    }
    assert_eq!(lab.send(WAN, &outer).verdicts, [Forward(LAN)], "the packet itself still opens");
}

/// The outer header is not authenticated: a changed source address does not matter to ESP, the
/// packet inside is judged by its SA.
#[test]
fn a_peer_behind_another_address_is_still_that_peer() {
    let mut lab = Laboratory::default();
    let inner = datagram(V4, 2, 1).ip();
    let mut outer = lab.peer(BERLIN).seal(&inner);
    outer[12..16].copy_from_slice(&[203, 0, 113, 9]);
    sum_header(&mut outer);
    assert_eq!(lab.send(WAN, &outer).verdicts, [Forward(LAN)]);
}

#[test]
fn what_we_seal_carries_the_inner_class_the_next_number_and_no_more_padding_than_needed() {
    for (set, network) in PEERS {
        for family in FAMILIES {
            let mut lab = Laboratory::default();
            let packets: Vec<Vec<u8>> = (0..=255)
                .map(|class: u8| {
                    let length = usize::from(class);
                    let packet = between(family, 1, network).udp(5, 6).payload_of(length);
                    packet.traffic_class(class).ip()
                })
                .collect();
            let outcome = lab.send_all(LAN, &packets);
            assert_eq!(outcome.verdicts, [Protect(set); 256]);
            for (place, (sent, packet)) in outcome.sent.iter().zip(&packets).enumerate() {
                let opened = lab.peer(set).open(&sent.packet).unwrap();
                assert_eq!(opened.inner, forwarded(packet));
                assert_eq!(usize::from(opened.traffic_class), place);
                assert!(opened.dont_fragment);
                assert_eq!((opened.sequence_low, opened.iv), (place as u32 + 1, place as u64 + 1));
                let outer_ip = if set == DORA { 40 } else { 20 };
                let least = outer_ip + 16 + (packet.len() + 2).next_multiple_of(4) + 16;
                assert_eq!(opened.outer_bytes, least);
            }
        }
    }
}

#[test]
fn extended_numbers_pass_over_32_bits_both_ways() {
    let hub = Hub::default();
    hub.parts.outbound[2].sequence.draw(u32::MAX - 2).whole().unwrap();
    let mut lab = hub.laboratory();
    let packets = vec![datagram(V6, 1, 4).ip(); 6];
    let outcome = lab.send_all(LAN, &packets);
    assert_eq!(outcome.verdicts, [Protect(DORA); 6]);
    for (sent, number) in outcome.sent.iter().zip(u64::from(u32::MAX) - 1..) {
        let opened = lab.peer(DORA).open(&sent.packet).unwrap();
        assert_eq!((opened.iv, opened.sequence_low), (number, number as u32));
    }
    let inner = datagram(V6, 4, 1).ip();
    for number in u64::from(u32::MAX) - 3..u64::from(u32::MAX) + 5 {
        let outer = lab.peer(DORA).seal_as(number, &inner);
        assert_eq!(lab.send(WAN, &outer).verdicts, [Forward(LAN)], "number {number}");
    }
    // The same low half, sealed under the high half that has passed, is not authentic.
    let late = lab.peer(DORA).seal_as(100, &inner);
    assert_eq!(lab.send(WAN, &late).verdicts, [Drop(DropReason::Integrity)]);
}

#[test]
fn a_batch_of_all_peers_is_opened_and_sealed_in_the_order_it_came() {
    let mut lab = Laboratory::default();
    let mut outers = vec![];
    let mut expected = vec![];
    for round in 0..10u16 {
        for (set, network) in PEERS {
            let inner = between(V4, network, 1).udp(round, network as u16).ip();
            outers.push(lab.peer(set).seal(&inner));
            expected.push(forwarded(&inner));
        }
    }
    let outcome = lab.send_all(WAN, &outers);
    assert_eq!(outcome.verdicts, vec![Forward(LAN); 30]);
    let left: Vec<Vec<u8>> = outcome.sent.into_iter().map(|sent| sent.packet).collect();
    assert_eq!(left, expected);

    let out: Vec<Vec<u8>> =
        (0..30).map(|i| between(V4, 1, 2 + i % 3).udp(i as u16, 1).ip()).collect();
    let outcome = lab.send_all(LAN, &out);
    for (place, (sent, packet)) in outcome.sent.iter().zip(&out).enumerate() {
        let (set, _) = PEERS[place % 3];
        assert_eq!(lab.peer(set).open(&sent.packet).unwrap().inner, forwarded(packet));
    }
}

/// ESP of others, from a protected port: a packet like any other (XO-26).
#[test]
fn esp_from_inside_is_sealed_again() {
    let mut lab = Laboratory::default();
    for family in FAMILIES {
        let packet = between(family, 1, 2).protocol(50).payload_of(60).ip();
        let outcome = lab.send(LAN, &packet);
        assert_eq!(outcome.verdicts, [Protect(BERLIN)]);
        let opened = lab.peer(BERLIN).open(&outcome.sent[0].packet).unwrap();
        assert_eq!(opened.inner, forwarded(&packet));
    }
}
