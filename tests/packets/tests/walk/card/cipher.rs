//! SAs whose cipher is in a card (crypto mode), beside software's: the same bytes on the wire, the
//! same verdicts, the same counts.

use std::cell::RefCell;
use std::collections::BTreeMap;

use dataplane::{DropReason, FastPathUse, SetIndex, Verdict};
use emulated_card::Loss;
use ipsec::{SaId, SequenceNumbers, Suite};
use offload::Service;
use packets::lab::{
    BERLIN, CARD, CARLA, DORA, Hub, LAN, Laboratory, Sent, WAN, Wire as _, deciphered_mark,
    opened_mark, tags,
};
use packets::table::forwarded;
use packets::{Row, peer::Agreement};
use policy::Direction;
use proptest::prelude::*;
use proptest::sample::select;
use wire::{BATCH, Deciphered, Mark};

use super::emulated::{CardOnWire, is_carried};
use super::random::{Drawn, SETS, a_packet};
use super::twin::OF_ESP;
use crate::{FAMILIES, all_rows, datagram};

/// Ways to walk: general and fast.
const WAYS: [(FastPathUse, Option<usize>); 2] =
    [(FastPathUse::Never, None), (FastPathUse::Eager, Some(256))];

fn in_way(lab: Laboratory, (fast, entries): (FastPathUse, Option<usize>)) -> Laboratory {
    let lab = lab.with_fast_path(fast);
    match entries {
        Some(entries) => lab.remembering(entries),
        None => lab,
    }
}

/// A gateway with the cipher of all SAs in a card that can be there.
fn ciphered(mut hub: Hub) -> (Laboratory, CardOnWire) {
    let has = |set: &SetIndex| is_ciphered(&hub.agreements[set.0 as usize]);
    let sets: Vec<SetIndex> = [BERLIN, CARLA, DORA].into_iter().filter(has).collect();
    let card = CardOnWire::serving(Service::Crypto, &mut hub, &sets);
    (hub.laboratory().behind(card.clone()), card)
}

/// Returns whether a card is given the cipher: no checksum of UDP covers what it writes.
fn is_ciphered(agreement: &Agreement) -> bool {
    let encapsulation = agreement.encapsulation();
    is_carried(agreement) && (encapsulation.udp.is_none() || agreement.hub.is_ipv4())
}

/// The outcome of a row: verdicts, and what is on the wire, sealed.
type Course = (Vec<Verdict>, Vec<Sent>);

fn run(row: &Row, mut lab: Laboratory) -> Course {
    row.before.iter().for_each(|packet| drop(packet.arrive(&mut lab)));
    let outcome = row.packet.arrive(&mut lab);
    (outcome.verdicts, outcome.sent)
}

/// The kind of a difference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Difference {
    /// Equal byte by byte.
    None,
    /// Outside of ESP is what the card does not read: it drops the packet. Or it is no ESP.
    DroppedByCard,
    /// The card did not decipher: fragments that were put together, options, another port.
    NotDeciphered,
    /// The way leads to no card.
    NotThere,
    /// In transport mode the packet's own header has options.
    Options,
    /// The suite's IV is by chance, so that two of software differ too.
    Chance,
}

fn difference(what: &str, software: &[Course; 2], card: &Course, losses: &[Loss]) -> Difference {
    use Verdict::Drop;
    let [software, again] = software;
    if software == card {
        return Difference::None;
    }
    if software != again {
        assert_eq!(software.0, card.0, "{what}");
        return Difference::Chance;
    }
    let first = software.0.first().copied();
    let is_bad = matches!(first, Some(Drop(reason)) if OF_ESP.contains(&reason));
    if !losses.is_empty() {
        let is_for_form = losses.iter().all(|it| matches!(it, Loss::Fragment | Loss::Options));
        assert!(is_for_form || is_bad, "{what}: {software:?}, {card:?}, {losses:?}");
        return Difference::DroppedByCard;
    }
    assert!(card.1.is_empty(), "{what}: {card:?}");
    match card.0[..] {
        [Drop(DropReason::CardSa)] => Difference::NotDeciphered,
        // By an IP port, or another one.
        [Drop(DropReason::DevMismatch)] => Difference::NotThere,
        [Drop(DropReason::CardOptions)] => Difference::Options,
        _ => panic!("{what}: {software:?} by software, {card:?}"),
    }
}

// XO-01, XO-03
#[test]
fn all_rows_come_out_alike_byte_by_byte_with_the_cipher_in_a_card() {
    let mut kinds: BTreeMap<Difference, u32> = BTreeMap::new();
    let own = super::rows().into_iter().map(|row| row.description).collect::<Vec<_>>();
    for row in all_rows().iter().filter(|row| !own.contains(&row.description)) {
        let hub = || {
            let mut hub = Hub::default();
            (row.hub)(&mut hub);
            hub
        };
        let software = [(); 2].map(|()| run(row, hub().laboratory()));
        for way in WAYS {
            let (lab, card) = ciphered(hub());
            let got = run(row, in_way(lab, way));
            let kind = difference(&row.description, &software, &got, &card.losses());
            *kinds.entry(kind).or_default() += 1;
        }
    }
    println!("{kinds:#?}");
    assert!(kinds[&Difference::None] > 4000);
}

/// The packet of a host, or of a peer, sealed if it is from behind one.
fn bytes(lab: &mut Laboratory, drawn: &Drawn, way: Direction) -> Vec<u8> {
    let set = SETS.iter().find(|(_, network)| *network == drawn.network);
    match set {
        _ if way == Direction::Outbound => drawn.out(),
        Some((set, _)) => lab.peer(*set).seal(&drawn.back()),
        None => drawn.back(),
    }
}

// XO-03
#[test]
fn random_packets_come_out_alike_byte_by_byte_and_are_counted_alike() {
    let taken = RefCell::new(0);
    let config = ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() };
    proptest!(config, |(
        packets in prop::collection::vec((a_packet(), any::<bool>()), 1..BATCH),
        suite in select(&[Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305][..]),
        numbers in select(&[SequenceNumbers::Short, SequenceNumbers::Extended][..]),
        way in select(&WAYS[..]),
    )| {
        let hub = || {
            let mut hub = Hub::default();
            for set in [BERLIN, CARLA, DORA] {
                hub.agree(set, |agreement| (agreement.suite, agreement.numbers) = (suite, numbers));
            }
            hub
        };
        let (lab, card) = ciphered(hub());
        let mut twins = [hub().laboratory(), lab].map(|lab| in_way(lab, way));
        // A few at a time, as the fast path takes no batch of many runs.
        for packets in packets.chunks(4) {
            for way_of in [Direction::Outbound, Direction::Inbound] {
                let goes_out = way_of == Direction::Outbound;
                let drawn = packets.iter().filter(|(_, out)| *out == goes_out);
                let drawn: Vec<&Drawn> = drawn.map(|(it, _)| it).collect();
                let [software, by_card] = twins.each_mut().map(|lab| {
                    let packets: Vec<_> = drawn.iter().map(|it| bytes(lab, it, way_of)).collect();
                    let outcome = lab.send_all(if goes_out { LAN } else { WAN }, &packets);
                    (outcome.verdicts, outcome.sent)
                });
                prop_assert_eq!(software, by_card);
            }
        }
        prop_assert_eq!(card.losses(), []);
        let counters = twins.each_ref().map(|lab| {
            let mut counters = lab.counters().clone();
            // Their bytes are more by the headers for the card.
            counters.transmitted.iter_mut().for_each(|volume| volume.bytes = 0);
            counters
        });
        *taken.borrow_mut() += counters[1].fast_path;
        prop_assert!(counters[0] == counters[1]);
    });
    let taken = taken.into_inner();
    assert!(taken > 400, "{taken}");
}

// XO-03, XO-32
#[test]
fn extended_numbers_go_over_the_edge_of_32_bits_both_ways() {
    let edge = 1u64 << 32;
    for way in WAYS {
        let mut hub = Hub::default();
        hub.agree(DORA, |agreement| agreement.numbers = SequenceNumbers::Extended);
        hub.parts.outbound[DORA.0 as usize].sequence.draw(u32::MAX - 2).whole().unwrap();
        let (lab, card) = ciphered(hub);
        let mut lab = in_way(lab, way);
        let there = datagram(FAMILIES[0], 1, 4).ip();
        let outcome = lab.send_all(LAN, &[&there; 5]);
        assert_eq!(outcome.verdicts, [Verdict::Protect(DORA); 5]);
        for (sent, number) in outcome.sent.iter().zip(edge - 2..) {
            let opened = lab.peer(DORA).open(&sent.packet).expect("authentic with its high half");
            assert_eq!((opened.inner, opened.sequence_low), (forwarded(&there), number as u32));
        }
        let back = datagram(FAMILIES[0], 4, 1).ip();
        // A number of the upper half would be one from before the first of all.
        for number in [1 << 31].into_iter().chain(edge - 2..edge + 3) {
            let sealed = lab.peer(DORA).seal_as(number, &back);
            assert_eq!(lab.send(WAN, &sealed).verdicts, [Verdict::Forward(LAN)], "{number}");
            assert_eq!(lab.send(WAN, &sealed).verdicts, [Verdict::Drop(DropReason::Replayed)]);
        }
        let edge_of = |lab: &Laboratory| lab.snapshot.inbound_sa(SaId(DORA.0)).window.right_edge();
        assert_eq!((edge_of(&lab), card.losses()), (edge + 2, vec![]));
    }
}

// XO-03
#[test]
fn the_host_hands_over_esp_in_clear_with_zeros_for_the_icv_and_a_header_that_names_the_sa() {
    for way in WAYS {
        for (set, network) in SETS {
            let mut hub = Hub::default();
            hub.seat_ciphers(set);
            let mut lab = in_way(hub.laboratory(), way);
            let there = datagram(FAMILIES[0], 1, network).payload_of(33).ip();
            // Without a card on the wire: what the card would get.
            let sent = lab.send(LAN, &there).sent.remove(0);
            assert_eq!(sent.to_seal, Some(tags(set)[0]));
            let esp = if sent.packet[0] >> 4 == 4 { 20 } else { 40 };
            let text = sent.packet.windows(there.len()).position(|it| it == forwarded(&there));
            let udp = if sent.packet[if esp == 20 { 9 } else { 6 }] == 17 { 8 } else { 0 };
            assert_eq!(text, Some(esp + udp + 16), "behind SPI, number and IV");
            assert_eq!(sent.packet[sent.packet.len() - 16..], [0; 16]);
        }
    }
}

/// Marks of ESP that a card was to decipher: the verdict on what each comes with.
fn marks(set: SetIndex, other: SetIndex) -> Vec<(&'static str, Option<Mark>, Verdict)> {
    use Deciphered::{Authentic, Forged};
    let [seals, opens] = tags(set);
    let refused = Verdict::Drop(DropReason::CardSa);
    let by = |tag, outcome| Some(deciphered_mark(CARD, tag, outcome));
    vec![
        ("none", None, refused),
        ("another set's", by(tags(other)[1], Authentic), refused),
        ("of the SA that seals", by(seals, Authentic), refused),
        ("of another incarnation", by(5 << 32 | opens, Authentic), refused),
        ("garbage", by(u64::MAX, Authentic), refused),
        ("of packet mode", Some(opened_mark(CARD, opens)), refused),
        ("a rule's", Some(opened_mark(CARD, opens).with_card_tag(opens)), refused),
        ("forged", by(opens, Forged), Verdict::Drop(DropReason::Integrity)),
        ("another's, forged", by(tags(other)[1], Forged), refused),
        ("right", by(opens, Authentic), Verdict::Forward(LAN)),
        ("right, again", by(opens, Authentic), Verdict::Drop(DropReason::Replayed)),
    ]
}

// XO-03, XO-25
#[test]
fn nothing_is_taken_for_deciphered_but_by_the_mark_of_its_own_sa() {
    for (way, (set, other)) in WAYS.into_iter().zip([(BERLIN, DORA), (DORA, CARLA)]) {
        let network = SETS.iter().find(|(of, _)| *of == set).unwrap().1;
        let (lab, card) = ciphered(Hub::default());
        let mut lab = in_way(lab, way);
        let back = datagram(FAMILIES[0], network, 1).payload_of(20).ip();
        let sealed = lab.peer(set).seal(&back);
        let whole = lab.frame(WAN, &sealed);
        let (in_clear, _) = card.clone().came(&whole).unwrap();
        assert_ne!(in_clear, whole);
        for (what, mark, verdict) in marks(set, other) {
            let outcome = lab.send_marked(CARD, &[(&in_clear, mark)]);
            assert_eq!(outcome.verdicts, [verdict], "{what}");
            assert_eq!(outcome.sent.len(), usize::from(what == "right"), "{what}");
        }
        // A packet in clear is in clear, whatever its mark says.
        let clear = lab.frame(WAN, &back);
        for outcome in [Deciphered::Authentic, Deciphered::Forged] {
            let mark = deciphered_mark(CARD, tags(set)[1], outcome);
            let outcome = lab.send_marked(CARD, &[(&clear, Some(mark))]);
            assert_eq!(outcome.verdicts, [Verdict::Drop(DropReason::Unprotected)]);
        }
    }
}

// XO-03
#[test]
fn a_forged_packet_is_counted_and_never_delivered() {
    for way in WAYS {
        let (lab, card) = ciphered(Hub::default());
        let mut lab = in_way(lab, way);
        let back = datagram(FAMILIES[0], 2, 1).payload_of(20).ip();
        for bit in [0, 1, 15, 16] {
            let mut sealed = lab.peer(BERLIN).seal(&back);
            let last = sealed.len() - 1;
            sealed[last - bit] ^= 1;
            let outcome = lab.send(WAN, &sealed);
            assert_eq!(outcome.verdicts, [Verdict::Drop(DropReason::Integrity)]);
            assert_eq!(outcome.sent, []);
        }
        assert_eq!((lab.counters().dropped(DropReason::Integrity), card.losses()), (4, vec![]));
        assert_eq!(card.packets(tags(BERLIN)[1]), 0);
        let sealed = lab.peer(BERLIN).seal(&back);
        assert_eq!(lab.send(WAN, &sealed).verdicts, [Verdict::Forward(LAN)]);
    }
}
