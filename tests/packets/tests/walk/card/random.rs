//! Random packets by a gateway whose SAs are in a card, beside one whose SAs are software's; the
//! fast path beside the general walk; tags that are right, missing, forged or another's.

use std::cell::RefCell;
use std::collections::BTreeMap;

use dataplane::{DropReason, FastPathUse, SetIndex, Verdict};
use packets::lab::{BERLIN, CARD, CARLA, DORA, Hub, LAN, Laboratory, WAN, opened_mark, tags};
use packets::table::opened;
use proptest::prelude::*;
use proptest::sample::select;
use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol::DESTINATION;
use wire::{BATCH, Family, Mark};

use super::carded;
use super::twin::{Course, Difference};
use crate::between;

/// Sets and the networks behind their peers; no policy names the last network.
const NETWORKS: [u32; 5] = [2, 3, 4, 9, 99];
pub(super) const SETS: [(SetIndex, u32); 3] = [(BERLIN, 2), (CARLA, 3), (DORA, 4)];
/// Largest inner packets of the sets.
const MTU: [usize; 3] = [1446, 1446, 1426];

/// A packet, as it is drawn.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    family: Family,
    pub(super) network: u32,
    upper: Upper,
    payload: usize,
    form: Form,
    hop_limit: u8,
    class: u8,
    dont_fragment: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Upper {
    Udp(u16),
    Syn,
    Tcp,
    Echo,
    Unreachable,
    Protocol(u8),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    Plain,
    Options,
    First,
    Later,
    Atomic,
}

pub(super) fn a_packet() -> impl Strategy<Value = Drawn> {
    let upper = select(
        &[
            Upper::Udp(5),
            Upper::Udp(5),
            Upper::Udp(6),
            Upper::Syn,
            Upper::Tcp,
            Upper::Echo,
            Upper::Unreachable,
            Upper::Protocol(51),
            Upper::Protocol(99),
            Upper::Protocol(253),
            Upper::Protocol(59),
        ][..],
    );
    let form = prop_oneof![
        12 => Just(Form::Plain),
        1 => Just(Form::Options),
        1 => Just(Form::First),
        1 => Just(Form::Later),
        1 => Just(Form::Atomic),
    ];
    let payload = prop_oneof![0usize..200, 1350usize..1470, select(&[1500usize, 2400][..])];
    let hop_limit = prop_oneof![8 => Just(64u8), 1 => Just(1), 1 => Just(2)];
    (
        select(&[Family::V4, Family::V6][..]),
        select(&NETWORKS[..]),
        upper,
        payload,
        form,
        hop_limit,
        any::<u8>(),
        any::<bool>(),
    )
        .prop_map(
            |(family, network, upper, payload, form, hop_limit, class, dont_fragment)| Drawn {
                family,
                network,
                upper,
                payload,
                form,
                hop_limit,
                class,
                dont_fragment,
            },
        )
}

impl Drawn {
    fn builder(&self, from: u32, to: u32) -> PacketBuilder {
        let Drawn { family, upper, payload, form, hop_limit, class, .. } = *self;
        let is_v4 = family == Family::V4;
        let packet = between(family, from, to).identification(9).hop_limit(hop_limit);
        let packet = packet.traffic_class(class);
        let packet = match upper {
            Upper::Udp(port) => packet.udp(port, 7),
            Upper::Syn => packet.tcp_with(5, 6, tcp_flags::SYN, Some(9000)),
            Upper::Tcp => packet.tcp(5, 6),
            Upper::Echo => packet.icmp(if is_v4 { 8 } else { 128 }, 0, [0, 1, 0, 2]),
            Upper::Unreachable => packet.icmp(if is_v4 { 3 } else { 1 }, 1, [0; 4]),
            Upper::Protocol(number) => packet.protocol(number),
        };
        let packet = match upper {
            Upper::Unreachable => packet.payload(&between(family, to, from).udp(1, 2).ip()),
            // Whole blocks, as fragments have.
            _ => packet.payload_of(payload / 8 * 8),
        };
        let packet = match (form, is_v4) {
            (Form::Plain, _) => packet,
            (Form::Options, true) => packet.options(&[1; 8]),
            (Form::Options, false) => packet.extension(DESTINATION, &[1, 4]),
            (Form::First, _) => packet.fragment(0, true),
            (Form::Later, _) => packet.fragment(64, false),
            (Form::Atomic, _) => packet.fragment(0, false),
        };
        if self.dont_fragment { packet.dont_fragment() } else { packet }
    }

    pub(super) fn out(&self) -> Vec<u8> {
        self.builder(1, self.network).ip()
    }

    pub(super) fn back(&self) -> Vec<u8> {
        self.builder(self.network, 1).ip()
    }

    /// Returns whether a card may be the reason why it is kept back.
    fn is_for(&self, reason: DropReason) -> bool {
        let is_large = self.out().len() > MTU[2];
        let is_extended = matches!(self.upper, Upper::Protocol(51 | 253));
        match reason {
            DropReason::CardFragmentTx => {
                is_large || matches!(self.form, Form::First | Form::Later)
            }
            DropReason::CardOptions => {
                let is_v6 = self.family == Family::V6;
                self.form == Form::Options || is_v6 && (self.form == Form::Atomic || is_extended)
            }
            _ => false,
        }
    }
}

fn software() -> Laboratory {
    Laboratory::default()
}

fn send(lab: &mut Laboratory, port: dataplane::PortId, packet: &[u8]) -> Course {
    let outcome = lab.send(port, packet);
    let out = opened(lab, &outcome);
    Course { verdicts: outcome.verdicts, out }
}

// XO-07, XO-23, XO-24
#[test]
fn random_packets_come_out_alike_by_a_card_but_for_what_cards_do_not_carry() {
    let kinds: RefCell<BTreeMap<Difference, u32>> = RefCell::default();
    let config = ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() };
    proptest!(config, |(
        packets in prop::collection::vec((a_packet(), any::<bool>()), 1..40),
        fast in select(&[FastPathUse::Never, FastPathUse::Eager][..]),
    )| {
        let mut twin = software();
        let (lab, card) = carded(Hub::default());
        let mut lab = lab.with_fast_path(fast).remembering(64);
        for (drawn, goes_out) in &packets {
            let lost = card.losses().len();
            let set = SETS.iter().find(|(_, network)| *network == drawn.network);
            let (by_software, by_card) = match (goes_out, set) {
                (true, _) => [&mut twin, &mut lab].map(|lab| send(lab, LAN, &drawn.out())).into(),
                (false, Some((set, _))) => [&mut twin, &mut lab]
                    .map(|lab| {
                        let sealed = lab.peer(*set).seal(&drawn.back());
                        send(lab, WAN, &sealed)
                    })
                    .into(),
                (false, None) => {
                    [&mut twin, &mut lab].map(|lab| send(lab, WAN, &drawn.back())).into()
                }
            };
            let losses = card.losses()[lost..].to_vec();
            let what = format!("{drawn:?}");
            let difference = Difference::of(&what, &by_software, &by_card, &losses);
            if let Difference::KeptBack(reason) = difference {
                prop_assert!(*goes_out && drawn.is_for(reason), "{} {:?}", reason, drawn);
            }
            *kinds.borrow_mut().entry(difference).or_default() += 1;
        }
        for reason in DropReason::ALL {
            let is_of_cards = matches!(
                reason,
                DropReason::CardFragmentTx | DropReason::CardOptions | DropReason::NoFrame
            );
            let [of_twin, of_card] = [&twin, &lab].map(|lab| lab.counters().dropped(*reason));
            prop_assert!(is_of_cards || of_card <= of_twin, "{}", reason);
        }
    });
    let kinds = kinds.into_inner();
    println!("{kinds:#?}");
    assert!(kinds[&Difference::None] > 1500);
    assert!(kinds[&Difference::DroppedByCard] > 50);
    for reason in [DropReason::CardFragmentTx, DropReason::CardOptions] {
        assert!(kinds[&Difference::KeptBack(reason)] > 10, "{reason}");
    }
}

/// A tag that comes with a packet.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Told {
    /// Of the set that the packet is of.
    Right,
    None,
    /// Of no SA.
    Forged(u64),
    /// Of an SA of this set.
    Of(SetIndex),
    /// Of the SA that seals.
    Seals(SetIndex),
}

fn a_tag() -> impl Strategy<Value = Told> {
    let set = || select(&[BERLIN, CARLA, DORA][..]);
    prop_oneof![
        6 => Just(Told::Right),
        1 => Just(Told::None),
        1 => select(&[0, 7, 77, 1 << 32 | 2, u64::MAX][..]).prop_map(Told::Forged),
        1 => set().prop_map(Told::Of),
        1 => set().prop_map(Told::Seals),
    ]
}

/// Ways to walk: general and fast, with and without a cache.
const WAYS: [(FastPathUse, Option<usize>); 4] = [
    (FastPathUse::Never, None),
    (FastPathUse::Never, Some(64)),
    (FastPathUse::Eager, None),
    (FastPathUse::Eager, Some(64)),
];

fn walking((fast, entries): (FastPathUse, Option<usize>)) -> Laboratory {
    let lab = carded(Hub::default()).0.with_fast_path(fast);
    match entries {
        Some(entries) => lab.remembering(entries),
        None => lab,
    }
}

// XO-25
#[test]
fn whatever_a_tag_says_the_packet_is_judged_by_the_sa_of_it_or_as_in_clear() {
    let taken = RefCell::new(0);
    let config = ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() };
    proptest!(config, |(
        packets in prop::collection::vec((a_packet(), a_tag()), 1..BATCH),
    )| {
        let list: Vec<(Vec<u8>, Option<SetIndex>, Option<u64>)> = packets.iter().map(|(it, told)| {
            let own = SETS.iter().find(|(_, network)| *network == it.network).map(|(set, _)| *set);
            let (set, tag) = match told {
                Told::Right => (own, own.map(|set| tags(set)[1])),
                Told::None => (None, None),
                Told::Forged(tag) => (None, Some(*tag)),
                Told::Of(set) => (Some(*set), Some(tags(*set)[1])),
                Told::Seals(set) => (None, Some(tags(*set)[0])),
            };
            // The tags of SAs that open may be among the forged.
            let opens = |(of, _): &(SetIndex, u32)| tag == Some(tags(*of)[1]);
            let set = SETS.into_iter().find(opens).map(|(of, _)| of).or(set);
            (it.back(), set, tag)
        }).collect();
        let mut expected = None;
        for way in WAYS {
            let mut lab = walking(way);
            let frames: Vec<(Vec<u8>, Option<Mark>)> = list.iter().map(|(packet, _, tag)| {
                (lab.frame(WAN, packet), tag.map(|tag| opened_mark(CARD, tag)))
            }).collect();
            // Twice, so that a cache knows them.
            let outcomes = [(); 2].map(|()| {
                let outcome = lab.send_marked(CARD, &frames);
                // Behind those of the batch the verdicts on what is made, and on what waited.
                (outcome.verdicts[..frames.len()].to_vec(), outcome.sent)
            });
            *taken.borrow_mut() += lab.counters().fast_path;
            let expected = expected.get_or_insert_with(|| outcomes.clone());
            prop_assert_eq!(&*expected, &outcomes, "{:?}", way);
        }
        let [(expected, _), _] = expected.unwrap();
        let mut twin = software();
        for ((packet, set, _), verdict) in list.iter().zip(&expected) {
            let is_fragment = wire::packet::parse(packet)
                .is_ok_and(|packet| packet.fragment != wire::Fragment::Whole);
            let alone = match set {
                Some(_) if is_fragment => Verdict::Drop(DropReason::CardFragmentRx),
                Some(set) => {
                    let sealed = twin.peer(*set).seal(packet);
                    twin.send(WAN, &sealed).verdicts[0]
                }
                None => twin.send(WAN, packet).verdicts[0],
            };
            // What waits for a first fragment does so in either.
            prop_assert_eq!(*verdict, alone, "{:?}", set);
        }
    });
    assert!(taken.into_inner() > 1000);
}

#[test]
fn the_fast_path_hands_cards_what_the_general_walk_does_byte_for_byte() {
    let taken = RefCell::new(0);
    let config = ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() };
    proptest!(config, |(packets in prop::collection::vec(a_packet(), 1..BATCH))| {
        let packets: Vec<Vec<u8>> = packets.iter().map(Drawn::out).collect();
        let mut expected = None;
        for way in WAYS {
            let mut lab = walking(way);
            let outcomes = [(); 2].map(|()| {
                let outcome = lab.send_all(LAN, &packets);
                (outcome.verdicts[..packets.len()].to_vec(), outcome.sent)
            });
            *taken.borrow_mut() += lab.counters().fast_path;
            let mut counted = lab.counters().clone();
            (counted.fast_path, counted.full_lookups) = (0, 0);
            counted.cache = Default::default();
            let got = (outcomes, counted);
            let expected = expected.get_or_insert_with(|| got.clone());
            prop_assert_eq!(&*expected, &got, "{:?}", way);
        }
    });
    assert!(taken.into_inner() > 1000);
}
