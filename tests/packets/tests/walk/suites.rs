//! Every suite through the walk, and what may happen to ciphertexts on their way.

use std::collections::BTreeSet;

use dataplane::Verdict::{Drop, Forward, Protect};
use dataplane::{DropReason, SetIndex};
use ipsec::{SequenceNumbers, Suite, UdpPorts};
use packets::lab::{BERLIN, DORA, Hub, LAN, Laboratory, REPLAY_WINDOW, WAN};
use packets::table::forwarded;
use proptest::prelude::*;
use wire::Family::V4;

use crate::{FAMILIES, between};

const PORTS: UdpPorts = UdpPorts { local: 4500, remote: 61_234 };
/// A peer of each outer family.
const PEERS: [(SetIndex, u32); 2] = [(BERLIN, 2), (DORA, 4)];

fn laboratory(
    set: SetIndex,
    suite: Suite,
    numbers: SequenceNumbers,
    udp: Option<UdpPorts>,
    workers: u32,
) -> Laboratory {
    let mut hub = Hub::default();
    hub.parts.workers = workers;
    hub.agree(set, |agreement| {
        (agreement.suite, agreement.numbers, agreement.udp) = (suite, numbers, udp);
    });
    hub.laboratory()
}

#[test]
fn every_suite_carries_batches_both_ways() {
    let widths = [SequenceNumbers::Short, SequenceNumbers::Extended];
    for &suite in Suite::ALL {
        for ((set, network), numbers) in PEERS.into_iter().flat_map(|p| widths.map(|w| (p, w))) {
            for udp in [None, Some(PORTS)] {
                let mut lab = laboratory(set, suite, numbers, udp, 1);
                for family in FAMILIES {
                    let payloads = (0..70).chain([1200, 1300]);
                    let (there, back): (Vec<_>, Vec<_>) = payloads
                        .map(|length| {
                            let packet =
                                |from, to| between(family, from, to).udp(1, 2).payload_of(length);
                            (packet(1, network).ip(), packet(network, 1).ip())
                        })
                        .unzip();
                    let outcome = lab.send_all(LAN, &there);
                    assert_eq!(outcome.verdicts, vec![Protect(set); there.len()], "{suite}");
                    for (sent, packet) in outcome.sent.iter().zip(&there) {
                        let opened = lab.peer(set).open(&sent.packet).expect("the peer opens it");
                        assert_eq!(opened.inner, forwarded(packet), "{suite}");
                    }
                    let sealed: Vec<_> = back.iter().map(|p| lab.peer(set).seal(p)).collect();
                    let outcome = lab.send_all(WAN, &sealed);
                    assert_eq!(outcome.verdicts, vec![Forward(LAN); back.len()], "{suite}");
                    for (sent, packet) in outcome.sent.iter().zip(&back) {
                        assert_eq!(sent.packet, forwarded(packet), "{suite}");
                    }
                }
            }
        }
    }
}

#[test]
fn any_flipped_bit_is_dropped_under_every_suite_that_authenticates() {
    for &suite in Suite::ALL.iter().filter(|suite| suite.is_authenticated()) {
        let mut hub = Hub::default();
        hub.agree(BERLIN, |agreement| {
            (agreement.suite, agreement.udp) = (suite, Some(PORTS));
            // No single bit makes it 0, which would be the marker of IKE.
            agreement.spi_to_hub = 0x1234;
        });
        let mut lab = hub.laboratory();
        let inner = between(V4, 2, 1).udp(1, 2).payload_of(5).ip();
        // Number 3: no single bit makes it 0.
        let outer = lab.peer(BERLIN).seal_as(3, &inner);
        let mut integrity = 0;
        for bit in 28 * 8..outer.len() * 8 {
            let mut flipped = outer.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let outcome = lab.send(WAN, &flipped);
            let expected = match bit / 8 {
                28..32 => DropReason::UnknownSpi,
                _ => DropReason::Integrity,
            };
            assert_eq!(outcome.verdicts, [Drop(expected)], "{suite} bit {bit}");
            integrity += u64::from(expected == DropReason::Integrity);
        }
        assert_eq!(lab.counters().dropped(DropReason::Integrity), integrity, "each is counted");
        assert_eq!(lab.send(WAN, &outer).verdicts, [Forward(LAN)], "the packet still opens");
    }
}

/// Packets that a peer seals.
const SEALED: usize = 150;

/// Generates the network's treatment of the packets: which arrive, in what order, how often, in
/// what batches.
fn arrivals() -> impl Strategy<Value = Vec<(usize, usize)>> {
    let anything = proptest::collection::vec(0..SEALED, 0..300);
    // In order but for some that come late, twice or never.
    let nearly = proptest::collection::vec((0..SEALED, 0..SEALED), 0..20).prop_map(|swaps| {
        let mut order: Vec<usize> = (0..SEALED).collect();
        for (place, (from, to)) in swaps.into_iter().enumerate() {
            match place % 3 {
                0 => order.swap(from, to),
                1 => order[from] = order[to],
                _ => order.insert(from, to),
            }
        }
        order
    });
    let order = prop_oneof![anything, nearly];
    (order, proptest::collection::vec(1usize..=100, 1..20)).prop_map(|(order, sizes)| {
        let mut batches = sizes.into_iter().cycle();
        let (mut batch, mut left) = (0, 0);
        let place = |packet| {
            if left == 0 {
                (batch, left) = (batch + 1, batches.next().unwrap_or(1));
            }
            left -= 1;
            (batch, packet)
        };
        order.into_iter().map(place).collect()
    })
}

/// RFC 4303 §3.4.3 told plainly: what was accepted, and the highest of it.
#[derive(Default)]
struct Window {
    accepted: BTreeSet<u64>,
}

impl Window {
    fn accepts(&mut self, number: u64) -> bool {
        let edge = self.accepted.last().copied().unwrap_or(0);
        number + u64::from(REPLAY_WINDOW) > edge && self.accepted.insert(number)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Loss, duplication and permutation in any batches: what arrives in the window and was not
    /// there before is delivered, and nothing twice.
    #[test]
    fn ciphertexts_in_any_order_and_number_are_delivered_at_most_once(
        suite in proptest::sample::select(Suite::ALL),
        numbers in proptest::sample::select(vec![
            SequenceNumbers::Short, SequenceNumbers::Extended,
        ]),
        (set, network) in proptest::sample::select(PEERS.to_vec()),
        (in_udp, workers, step) in (any::<bool>(), 1u32..=2, 1u64..4),
        start in prop_oneof![
            Just(1u64), 1u64..100, Just((1 << 31) - 50), Just(u64::from(u32::MAX) - 500),
        ],
        arrivals in arrivals(),
    ) {
        // Without integrity nothing tells that an old number was taken for one of the next 2³².
        let numbers = if suite.is_authenticated() { numbers } else { SequenceNumbers::Short };
        let mut lab = laboratory(set, suite, numbers, in_udp.then_some(PORTS), workers);
        let number = |packet: usize| start + packet as u64 * step;
        let inner = |packet: usize| between(V4, network, 1).udp(packet as u16, 9).ip();
        let sealed: Vec<Vec<u8>> = (0..SEALED)
            .map(|packet| lab.peer(set).seal_as(number(packet), &inner(packet)))
            .collect();
        let (mut window, mut expected, mut delivered) = (Window::default(), vec![], vec![]);
        for batch in arrivals.chunk_by(|a, b| a.0 == b.0) {
            let packets: Vec<&Vec<u8>> = batch.iter().map(|(_, packet)| &sealed[*packet]).collect();
            let outcome = lab.send_all(WAN, &packets);
            for ((_, packet), verdict) in batch.iter().zip(&outcome.verdicts) {
                let is_new = window.accepts(number(*packet));
                prop_assert_eq!(*verdict == Forward(LAN), is_new, "packet {}", packet);
                expected.extend(is_new.then(|| forwarded(&inner(*packet))));
            }
            delivered.extend(outcome.sent.into_iter().map(|sent| sent.packet));
        }
        prop_assert_eq!(delivered, expected);
    }
}
