//! Bytes that somebody on the way has changed, and peers that seal what they like: nothing passes
//! that was not sealed, nothing passes twice, and nobody speaks for another.

use std::collections::BTreeSet;
use std::net::IpAddr;

use dataplane::Verdict::{self, Drop, Forward, Hold, Host};
use dataplane::{DropReason, HoldKind, SetIndex};
use ipsec::{Encryption, Mode, SequenceNumbers, Suite, UdpPorts};
use packets::lab::{BERLIN, DORA, HOST, Hub, LAN, Laboratory, WAN, numbered, policy};
use packets::peer::with_upper;
use packets::table::sum_header;
use policy::Action;
use proptest::prelude::*;
use wire::Address;
use wire::Family::{V4, V6};
use wire::build::PacketBuilder;
use wire::flow::protocol;

use crate::{between, datagram};

const PORTS: UdpPorts = UdpPorts { local: 4500, remote: 61_234 };

/// A peer: its set, its network, and in transport mode our address and its own.
#[derive(Clone, Copy, Debug)]
struct Far {
    set: SetIndex,
    network: u32,
    ours: &'static str,
    theirs: &'static str,
}

const FAR: [Far; 2] = [
    Far { set: BERLIN, network: 2, ours: "192.0.2.1", theirs: "198.51.100.7" },
    Far { set: DORA, network: 4, ours: "2001:db8:ff::1", theirs: "2001:db8:dd::4" },
];

/// Properties of an SA.
#[derive(Clone, Copy, Debug)]
struct Like {
    far: Far,
    suite: Suite,
    mode: Mode,
    numbers: SequenceNumbers,
    udp: Option<UdpPorts>,
    workers: u32,
}

fn like() -> impl Strategy<Value = Like> {
    let suites: Vec<Suite> =
        Suite::ALL.iter().copied().filter(|suite| suite.is_authenticated()).collect();
    let modes = vec![Mode::Tunnel, Mode::Transport];
    let widths = vec![SequenceNumbers::Short, SequenceNumbers::Extended];
    (
        prop::sample::select(&FAR[..]),
        prop::sample::select(suites),
        prop::sample::select(modes),
        prop::sample::select(widths),
        prop::option::of(Just(PORTS)),
        1u32..=2,
    )
        .prop_map(|(far, suite, mode, numbers, udp, workers)| Like {
            far,
            suite,
            mode,
            numbers,
            udp,
            workers,
        })
}

/// Bytes in every packet of ours.
const SECRET: &[u8; 16] = b"not to be seen! ";

fn laboratory(like: Like) -> Laboratory {
    hub_of(like).laboratory()
}

fn hub_of(like: Like) -> Hub {
    let Like { far, suite, mode, numbers, udp, workers } = like;
    let mut hub = Hub::default();
    hub.parts.workers = workers;
    // Nothing in clear comes in: later fragments of UDP would, for Linux's IKE.
    hub.parts.ports[usize::from(WAN.0)].allow_host.clear();
    hub.agree(far.set, |agreement| {
        (agreement.suite, agreement.numbers) = (suite, numbers);
        (agreement.mode, agreement.udp) = (mode, udp);
    });
    hub.parts.sets.iter_mut().for_each(|set| set.may_move = true);
    hub.policies.retain(|policy| matches!(policy.action, Action::Protect(_)));
    if mode == Mode::Transport {
        // A peer in transport mode has policies for the two ends alone (RFC 4301 §4.1): its
        // source address is not authenticated, and a wider selector would let it be changed.
        let own = hub.agreements[far.set.0 as usize].set;
        hub.policies.retain(|policy| policy.action != Action::Protect(own));
        let action = Action::Protect(hub.agreements[far.set.0 as usize].set);
        hub.policies.push(policy("own", 300, action, &[far.ours], &[far.theirs]));
        hub.policies = numbered(std::mem::take(&mut hub.policies));
    }
    hub
}

/// Returns a packet that the peer sends, of so many bytes behind its headers.
fn plain(like: Like, bytes: usize) -> Vec<u8> {
    let Far { network, ours, theirs, .. } = like.far;
    match like.mode {
        Mode::Tunnel => datagram(V4, network, 1).payload_of(bytes).ip(),
        Mode::Transport => PacketBuilder::between(theirs, ours).udp(5, 6).payload_of(bytes).ip(),
    }
}

/// A change that somebody on the way makes to a packet.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Changes bits of a byte, counted from the front.
    Bits(usize, u8),
    /// Changes bits of a byte, counted from the end.
    LastBits(usize, u8),
    /// Sets a pair of bytes in the headers.
    Word(usize, u16),
    /// Cuts bytes off the end.
    Cut(usize),
    /// Adds bytes at the end.
    Add(usize),
    /// Has the IP header tell the length that there is.
    TrueLength,
}

fn change() -> impl Strategy<Value = Change> {
    let word = prop_oneof![0u16..=80, Just(0xffff), Just(0x8000), any::<u16>()];
    prop_oneof![
        3 => (0usize..120, 1u8..=255).prop_map(|(at, bits)| Change::Bits(at, bits)),
        1 => (0usize..60, 1u8..=255).prop_map(|(at, bits)| Change::LastBits(at, bits)),
        3 => (0usize..80, word).prop_map(|(at, word)| Change::Word(at, word)),
        1 => (0usize..140).prop_map(Change::Cut),
        1 => (0usize..40).prop_map(Change::Add),
        2 => Just(Change::TrueLength),
    ]
}

fn changed(mut packet: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let length = packet.len();
        match *change {
            Change::Bits(at, bits) if at < length => packet[at] ^= bits,
            Change::LastBits(at, bits) if at < length => packet[length - 1 - at] ^= bits,
            Change::Word(at, word) if at + 2 <= length => {
                packet[at..at + 2].copy_from_slice(&word.to_be_bytes());
            }
            Change::Cut(bytes) => packet.truncate(length.saturating_sub(bytes).max(1)),
            Change::Add(bytes) => packet.resize(length + bytes, 0xa5),
            Change::TrueLength if packet[0] >> 4 == 6 && length >= 40 => {
                packet[4..6].copy_from_slice(&(length as u16 - 40).to_be_bytes());
            }
            Change::TrueLength if length >= 20 => {
                packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {}
        }
    }
    // Else almost nothing would come as far as ESP.
    let header = usize::from(packet[0] & 0xf) * 4;
    if packet[0] >> 4 == 4 && header >= 20 && packet.len() >= header {
        sum_header(&mut packet);
    }
    packet
}

fn passed(verdict: &Verdict) -> bool {
    !matches!(verdict, Drop(_) | Hold(HoldKind::Fragment))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Somebody on the way sends what he has recorded, changed, any number of times.
    #[test]
    fn changed_packets_pass_only_as_what_was_sealed_and_once(
        like in like(),
        attempts in prop::collection::vec(
            (1u64..6, prop::collection::vec(change(), 0..5)), 1..40),
    ) {
        let mut lab = laboratory(like);
        let inner = |number: u64| plain(like, 20 * number as usize);
        let sealed: Vec<Vec<u8>> =
            (0..6).map(|number| lab.peer(like.far.set).seal_as(number, &inner(number))).collect();
        let arriving: Vec<Vec<u8>> = attempts
            .iter()
            .map(|(number, changes)| changed(sealed[*number as usize].clone(), changes))
            .collect();
        let outcome = lab.send_all(WAN, &arriving);
        let mut seen = BTreeSet::new();
        for sent in &outcome.sent {
            prop_assert!(sent.port != WAN);
            let packet = wire::packet::parse(&sent.packet).unwrap();
            let payload = packet.length as usize - usize::from(packet.upper_offset) - 8;
            let number = (payload / 20) as u64;
            let was = wire::packet::parse(&inner(number)).unwrap();
            prop_assert_eq!(packet.flow, was.flow, "{:?}", like);
            let (got, sealed) = (&sent.packet[packet.upper_offset.into()..], inner(number));
            prop_assert_eq!(&got[8..], &sealed[usize::from(was.upper_offset) + 8..]);
            prop_assert!(seen.insert(number), "{number} twice: {:?}", like);
        }
        prop_assert_eq!(outcome.verdicts.iter().filter(|v| passed(v)).count(), seen.len());
    }

    /// Packets of ours, of any form and size, through frames that are hardly large enough.
    #[test]
    fn nothing_of_what_is_protected_leaves_in_clear(
        like in like().prop_filter("encrypts", |like| like.suite.encryption() != Encryption::Null),
        frame_bytes in prop_oneof![600usize..2400, Just(1 << 16), Just((1 << 17) - 64)],
        mtu in prop_oneof![Just(576u32), Just(1280), Just(1500), Just(9000), Just(65_535)],
        packets in prop::collection::vec(
            (0usize..12, prop_oneof![0usize..200, 1100usize..1600, 8000usize..9000,
                64_500usize..65_480], any::<bool>(), prop::collection::vec(change(), 0..2)),
            1..12),
    ) {
        let mut hub = hub_of(like);
        (hub.frame_bytes, hub.frames) = (frame_bytes, 512);
        hub.parts.ports.iter_mut().for_each(|port| port.mtu = mtu.max(9000));
        hub.parts.ports[usize::from(WAN.0)].mtu = mtu;
        let mut lab = hub.laboratory();
        let Far { network, ours, theirs, .. } = like.far;
        let (mut arriving, mut number) = (Vec::new(), 0u64);
        for (form, bytes, v6, changes) in packets {
            let packet = match (like.mode, v6) {
                (Mode::Tunnel, false) => between(V4, 1, network),
                (Mode::Tunnel, true) => between(V6, 1, network),
                (Mode::Transport, _) => PacketBuilder::between(ours, theirs),
            };
            let packet = match form {
                0 => packet.udp(5, 6),
                1 => packet.tcp(5, 6),
                2 => packet.udp(5, 6).dont_fragment(),
                3 => packet.protocol(253),
                4 => packet.udp(5, 6).fragment(0, true),
                5 => packet.protocol(17).fragment(64, false),
                6 => packet.udp(4500, 4500),
                7 => packet.protocol(50),
                8 => packet.udp(5, 6).hop_limit(1),
                _ => packet.udp(5, 6).hop_limit(2),
            };
            number += 1;
            let secret: Vec<u8> = SECRET.iter().copied().cycle().take(bytes).collect();
            let mut packet = packet.payload(&secret).ip();
            if form == 9 {
                packet = changed(packet, &changes);
            }
            if packet.len() + 300 < frame_bytes {
                arriving.push(packet);
            }
        }
        let port = if like.mode == Mode::Tunnel { LAN } else { HOST };
        let outcome = lab.send_all(port, &arriving);
        prop_assert!(outcome.verdicts.len() as u64 <= 12 * 200 + number);
        for sent in outcome.sent.iter().filter(|sent| sent.port == WAN) {
            let is_secret = |window: &[u8]| window == &SECRET[..8];
            prop_assert!(!sent.packet.windows(8).any(is_secret), "in clear: {like:?}");
            prop_assert!(sent.packet.len() <= mtu as usize + 12, "{} {mtu}", sent.packet.len());
            // An outer packet with IPv6 inside may leave in fragments.
            if wire::packet::parse(&sent.packet).unwrap().fragment != wire::Fragment::Whole {
                continue;
            }
            let peer = lab.peer(like.far.set);
            prop_assert!(peer.open(&sent.packet).is_some(), "{like:?}");
        }
    }

    /// A peer whose software is wrong, or who is no friend: any text, authentic.
    #[test]
    fn what_a_peer_seals_comes_from_nobody_but_itself(
        like in like(),
        texts in prop::collection::vec(
            (
                prop::collection::vec(change(), 0..4),
                0usize..300,
                any::<u8>(),
                prop_oneof![Just(4u8), Just(41), Just(17), Just(6), Just(50), Just(59), Just(44),
                    Just(43), Just(0), Just(60), Just(51), any::<u8>()],
                0u8..3,
            ),
            1..20),
    ) {
        let mut lab = laboratory(like);
        let Far { network, ours, theirs, .. } = like.far;
        let ends = [theirs, ours].map(|end| Address::from(end.parse::<IpAddr>().unwrap()));
        let block = like.suite.alignment();
        for (place, (changes, bytes, pad, next_header, kind)) in texts.into_iter().enumerate() {
            let mut text = match kind {
                0 => changed(datagram(V4, network, 1).payload_of(bytes).ip(), &changes),
                1 => changed(datagram(V6, network, 1).payload_of(bytes).ip(), &changes),
                _ => (0..bytes).map(|n| (n as u8).wrapping_mul(pad)).collect(),
            };
            if kind < 2 && pad < 0x80 {
                let length = (block - (text.len() + 2) % block) % block;
                text.extend((1..=length as u8).chain([length as u8]));
            } else {
                text.resize(text.len().next_multiple_of(block) + block - 2, 1);
                text.push(pad);
            }
            text.push(next_header);
            let peer = lab.peer(like.far.set);
            let esp = peer.esp(place as u64 + 1, &text);
            let packet = match (like.mode, like.udp) {
                (Mode::Tunnel, _) | (_, Some(_)) => peer.outer(&esp).ip(),
                (Mode::Transport, None) => {
                    let own = PacketBuilder::between(theirs, ours).protocol(253).ip();
                    with_upper(&own, protocol::ESP, &esp)
                }
            };
            let outcome = lab.send(WAN, &packet);
            let verdict = outcome.verdicts[0];
            prop_assert!(verdict != Drop(DropReason::Integrity));
            // To another peer's network it is sealed again: what it was is not to be seen.
            for sent in outcome.sent.iter().filter(|sent| sent.port != WAN) {
                let flow = wire::packet::parse(&sent.packet).unwrap().flow;
                match like.mode {
                    Mode::Transport => {
                        prop_assert_eq!(verdict, Host);
                        prop_assert_eq!([flow.source_address(), flow.destination_address()], ends);
                    }
                    Mode::Tunnel => {
                        let own = match flow.family {
                            V4 => flow.source >> 16 == u128::from(0x0a00u32 | network),
                            V6 => flow.source >> 80 == 0x2001_0db8_0000 | u128::from(network),
                        };
                        // ICMP errors of routers on the way are judged by what they quote.
                        let by_quote = wire::icmp::is_from_routers(&flow);
                        prop_assert!(own || by_quote, "{flow:?}");
                        prop_assert!(matches!(verdict, Forward(_) | Host));
                    }
                }
            }
        }
    }
}
