//! Path MTUs that ICMP from outside tells: which messages are believed, and what follows.

use std::sync::Arc;

use dataplane::Verdict::{self, Drop, Forward, Protect};
use dataplane::path_mtu::{AGE_NS, FLOOR_V4, FLOOR_V6, RECENT_NUMBERS};
use dataplane::{DropReason, FastPathUse, HostService, SetIndex};
use ipsec::{Account, Allowance, DontFragment, Encapsulation, Identifications, Lifetime, UdpPorts};
use offload::Service;
use packets::lab::{BERLIN, CARLA, DORA, Hub, LAN, Laboratory, WAN};
use packets::table::opened;
use packets::{In, Out};
use proptest::prelude::*;
use wire::Family::{self, V4, V6};
use wire::Fragment;
use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol;

use crate::card::CardOnWire;
use crate::{FAMILIES, between, icmp};

/// A set, the family of its outer packets, our end and the peer's, and the network behind it.
type Peer = (SetIndex, Family, &'static str, &'static str, u32);
const PEERS: [Peer; 2] = [
    (BERLIN, V4, "192.0.2.1", "198.51.100.7", 2),
    (DORA, V6, "2001:db8:ff::1", "2001:db8:dd::4", 4),
];
const PORTS: UdpPorts = UdpPorts { local: 4500, remote: 61_234 };
/// An MTU that a router tells.
const TOLD: u32 = 1380;

fn plain(_: &mut Hub) {}

fn in_udp(hub: &mut Hub) {
    for (set, ..) in PEERS {
        hub.agree(set, |agreement| agreement.udp = Some(PORTS));
    }
}

fn laboratory(change: fn(&mut Hub)) -> Laboratory {
    let mut hub = Hub::default();
    change(&mut hub);
    hub.laboratory()
}

/// A router outside.
fn router(family: Family) -> &'static str {
    if family == V4 { "203.0.113.77" } else { "2001:db8:fd::9" }
}

/// Sends a packet of 1400 bytes to a peer, and returns the outer one.
fn sent(lab: &mut Laboratory, (set, _, _, _, network): Peer) -> Vec<u8> {
    let packet = between(V4, 1, network).udp(5, 6).payload_of(1372).dont_fragment().ip();
    let outcome = lab.send(LAN, &packet);
    assert_eq!(outcome.verdicts, [Protect(set)]);
    outcome.sent[0].packet.clone()
}

/// The message of a router to our end `to`, that the packet which begins so did not fit.
fn message(family: Family, to: &str, mtu: u32, quote: &[u8]) -> PacketBuilder {
    let (kind, code) = if family == V4 { (3, 4) } else { (2, 0) };
    let packet = PacketBuilder::between(router(family), to);
    packet.icmp(kind, code, mtu.to_be_bytes()).payload(quote)
}

/// The largest outer packet to a peer that leaves whole now.
fn outer(lab: &Laboratory, set: SetIndex) -> u32 {
    lab.snapshot.set_sizes(set, lab.now_ns).outer
}

/// Messages that lowered a path MTU, and others.
fn counted(lab: &Laboratory) -> (u64, u64) {
    (lab.counters().path_mtu_lowered, lab.counters().path_mtu_ignored)
}

/// XO-23: after a router has told the path MTU, the next packet that does not fit is answered at
/// once, with the size of the largest that does.
#[test]
fn what_a_router_tells_is_the_next_packets_limit() {
    for (change, what) in [(plain as fn(&mut Hub), "alone"), (in_udp, "in UDP")] {
        for fast_path in [FastPathUse::Eager, FastPathUse::Never] {
            for peer in PEERS {
                let (set, family, ours, _, network) = peer;
                let mut lab = laboratory(change).with_fast_path(fast_path).remembering(1 << 10);
                let quote = sent(&mut lab, peer)[..64].to_vec();
                let told = message(family, ours, TOLD, &quote).ip();
                // No policy wants it, and `allow_host` does not list it.
                assert_eq!(lab.send(WAN, &told).verdicts, [Drop(DropReason::NoMatch)]);
                assert_eq!((outer(&lab, set), counted(&lab)), (TOLD, (1, 0)), "{what}");
                let whole = lab.snapshot.set_sizes(set, lab.now_ns).whole;
                for inner in FAMILIES {
                    let header = if inner == V4 { 28 } else { 48 };
                    let packet = |bytes: u32| {
                        let packet = between(inner, 1, network).udp(5, 6).dont_fragment();
                        packet.payload_of(bytes as usize - header).ip()
                    };
                    let large = packet(whole + 1);
                    let outcome = lab.send(LAN, &large);
                    assert_eq!(outcome.verdicts, [Drop(DropReason::TooBig), Forward(LAN)]);
                    let to = packets::lab::host(inner, 1);
                    let answer = icmp::check(&outcome.sent[0].packet, inner, to, &large);
                    assert_eq!(answer.value, whole, "{what} {inner:?}");
                    let outcome = lab.send(LAN, &packet(whole));
                    assert_eq!(outcome.verdicts, [Protect(set)]);
                    let length = outcome.sent[0].packet.len() as u32;
                    assert!(length <= TOLD && length + 4 > TOLD, "{what} {length}");
                }
                // A packet without DF is cut before it is sealed.
                let outcome =
                    lab.send(LAN, &between(V4, 1, network).udp(5, 6).payload_of(1372).ip());
                assert_eq!(outcome.sent.len(), 2);
                assert!(outcome.sent.iter().all(|sent| sent.packet.len() <= TOLD as usize));
            }
        }
    }
}

#[test]
fn the_mss_follows_the_path_mtu_in_both_directions() {
    for peer in PEERS {
        let (set, family, ours, _, network) = peer;
        let mut lab = Laboratory::default();
        let quote = sent(&mut lab, peer)[..64].to_vec();
        lab.send(WAN, &message(family, ours, TOLD, &quote).ip());
        let whole = lab.snapshot.set_sizes(set, lab.now_ns).whole;
        let syn = |from, to| between(V4, from, to).tcp_with(1, 2, tcp_flags::SYN, Some(9000)).ip();
        let there = lab.send(LAN, &syn(1, network));
        let back = lab.peer(set).seal(&syn(network, 1));
        let back = lab.send(WAN, &back);
        for left in [opened(&mut lab, &there), opened(&mut lab, &back)] {
            let [Out::Clear(_, segment) | Out::Sealed(_, segment)] = &left[..] else {
                panic!("one leaves")
            };
            let mss = u16::from_be_bytes(*segment.last_chunk().unwrap());
            assert_eq!(u32::from(mss), whole - 40);
        }
    }
}

#[test]
fn a_path_mtu_is_one_peers_and_only_ever_falls_until_it_is_old() {
    let mut lab = Laboratory::default();
    let berlin = PEERS[0];
    let before = sent(&mut lab, berlin);
    let tell = |lab: &mut Laboratory, mtu| {
        lab.send(WAN, &message(V4, "192.0.2.1", mtu, &before[..28]).ip());
    };
    tell(&mut lab, 1300);
    tell(&mut lab, 1350);
    tell(&mut lab, 1300);
    assert_eq!((outer(&lab, BERLIN), counted(&lab)), (1300, (1, 2)));
    tell(&mut lab, 1200);
    assert_eq!((outer(&lab, BERLIN), counted(&lab)), (1200, (2, 2)));
    assert_eq!((outer(&lab, CARLA), outer(&lab, DORA)), (1500, 1500));
    // A snapshot that follows has it too.
    lab.change(|sources| sources.workers = 1);
    assert_eq!(outer(&lab, BERLIN), 1200);
    lab.now_ns += AGE_NS - 1;
    assert_eq!(outer(&lab, BERLIN), 1200);
    lab.now_ns += 1;
    assert_eq!(outer(&lab, BERLIN), 1500, "it is tried again");
    let again = sent(&mut lab, berlin);
    lab.send(WAN, &message(V4, "192.0.2.1", 1350, &again[..28]).ip());
    assert_eq!(outer(&lab, BERLIN), 1350);
}

#[test]
fn what_is_told_ends_at_the_floor_and_at_the_ports_mtu() {
    for (peer, told, expected) in [
        (PEERS[0], 575, FLOOR_V4),
        (PEERS[0], 68, FLOOR_V4),
        (PEERS[0], 67, 1500),
        (PEERS[0], 1, 1500),
        (PEERS[1], 1280, FLOOR_V6),
        (PEERS[1], 1279, 1500),
        (PEERS[1], 576, 1500),
        (PEERS[1], 0, 1500),
        (PEERS[1], 0x1_0000 + 1280, 1500),
        // Old routers: the plateau below the packet's own length.
        (PEERS[0], 0, 1006),
        // RFC 1191 §4: the upper half of the word means nothing.
        (PEERS[0], 0xffff_0000 + 1300, 1300),
    ] {
        let mut lab = Laboratory::default();
        let (set, family, ours, ..) = peer;
        let quote = sent(&mut lab, peer)[..80].to_vec();
        lab.send(WAN, &message(family, ours, told, &quote).ip());
        assert_eq!(outer(&lab, set), expected, "{family:?} told {told}");
        assert_eq!(counted(&lab).0, u64::from(expected != 1500));
    }
    // A port that carries less than the path.
    let mut hub = Hub::default();
    hub.parts.ports[usize::from(WAN.0)].mtu = 1600;
    let mut lab = hub.laboratory();
    let quote = sent(&mut lab, PEERS[0]);
    lab.send(WAN, &message(V4, "192.0.2.1", 1440, &quote[..28]).ip());
    assert_eq!(outer(&lab, BERLIN), 1440);
    lab.change(|sources| {
        let mut wan = sources.ports.at(usize::from(WAN.0)).clone();
        wan.mtu = 1400;
        sources.ports.set(usize::from(WAN.0), Some(wan));
    });
    assert_eq!(outer(&lab, BERLIN), 1400);
}

/// A way to make a message that a forger may send of a genuine one.
type Forge = fn(&Genuine) -> Vec<u8>;

/// A message that is not to be believed.
struct Forgery {
    what: &'static str,
    /// Families that it is of.
    families: &'static [Family],
    forge: Forge,
}

/// The message that a router would send.
struct Genuine {
    family: Family,
    ours: &'static str,
    /// The outer packet that did not fit.
    outer: Vec<u8>,
    /// Offset of ESP in it.
    esp: usize,
}

impl Genuine {
    fn of(&self, quote: &[u8]) -> Vec<u8> {
        message(self.family, self.ours, TOLD, quote).ip()
    }

    /// The message with another word of ESP: 0 is the SPI, 4 the sequence number.
    fn with_word(&self, at: usize, word: u32) -> Vec<u8> {
        let mut quote = self.outer.clone();
        quote[self.esp + at..][..4].copy_from_slice(&word.to_be_bytes());
        self.of(&quote[..self.esp + 8])
    }

    /// The message with another byte in the quote.
    fn with_byte(&self, at: usize, change: impl Fn(u8) -> u8) -> Vec<u8> {
        let mut quote = self.outer[..self.esp + 8].to_vec();
        quote[at] = change(quote[at]);
        self.of(&quote)
    }

    /// Offset of a byte of the outer IP header by family.
    fn at(&self, v4: usize, v6: usize) -> usize {
        if self.family == V4 { v4 } else { v6 }
    }

    fn packet(&self, kind: u8, code: u8, mtu: u32) -> PacketBuilder {
        let packet = PacketBuilder::between(router(self.family), self.ours);
        packet.icmp(kind, code, mtu.to_be_bytes()).payload(&self.outer[..self.esp + 8])
    }
}

const V4_ONLY: &[Family] = &[V4];
const V6_ONLY: &[Family] = &[V6];

const FORGERIES: [Forgery; 26] = [
    forgery("an SPI of nobody", |it| it.with_word(0, 0x7777)),
    forgery("an SPI that we open with", |it| it.with_word(0, 0x1000)),
    forgery("a reserved SPI", |it| it.with_word(0, 255)),
    forgery("a number that was not given out yet", |it| it.with_word(4, RECENT_NUMBERS + 8)),
    forgery("an old number", |it| it.with_word(4, 7)),
    forgery("number 0", |it| it.with_word(4, 0)),
    forgery("a packet of another sender", |it| it.with_byte(it.at(15, 23), |byte| byte ^ 2)),
    forgery("a packet to another peer", |it| it.with_byte(it.at(19, 39), |byte| byte ^ 2)),
    forgery("AH", |it| it.with_byte(it.at(9, 6), |_| 51)),
    forgery("UDP, where ESP is alone", |it| {
        let mut quote = it.outer[..it.esp].to_vec();
        quote[it.at(9, 6)] = 17;
        quote.extend([0x11, 0x94, 0x11, 0x94, 5, 0xa0, 0, 0]);
        quote.extend(&it.outer[it.esp..it.esp + 8]);
        it.of(&quote)
    }),
    forgery("a quote cut short in the number", |it| it.of(&it.outer[..it.esp + 7])),
    forgery("a quote without ESP", |it| it.of(&it.outer[..it.esp])),
    forgery("a quote cut short in its IP header", |it| it.of(&it.outer[..it.at(19, 39)])),
    forgery("no quote", |it| it.of(&[])),
    forgery("an MTU as large as the packet", |it| {
        message(it.family, it.ours, it.outer.len() as u32, &it.outer[..it.esp + 8]).ip()
    }),
    forgery("a wrong checksum", |it| {
        let mut bytes = it.of(&it.outer[..it.esp + 8]);
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    }),
    forgery("a later fragment", |it| it.packet_of_kind(0).fragment(4, false).ip()),
    forgery("a first fragment", |it| {
        it.packet_of_kind(0).payload(&it.outer[..64]).fragment(0, true).ip()
    }),
    forgery("from an address inside", |it| {
        let from = packets::lab::host(it.family, 1).to_string();
        let (kind, code) = kind(it.family);
        let packet = PacketBuilder::between(&from, it.ours).icmp(kind, code, TOLD.to_be_bytes());
        packet.payload(&it.outer[..it.esp + 8]).ip()
    }),
    forgery("unreachable for another reason", |it| it.packet_of_kind(1).ip()),
    only(V4_ONLY, "a packet that routers may cut", |it| it.with_byte(6, |byte| byte & !0x40)),
    only(V4_ONLY, "a fragment", |it| it.with_byte(6, |byte| byte | 0x20)),
    only(V4_ONLY, "to another address of ours", |it| {
        message(V4, "192.0.2.2", TOLD, &it.outer[..28]).ip()
    }),
    only(V4_ONLY, "an MTU that no link may have", |it| it.packet(3, 4, 67).ip()),
    only(V6_ONLY, "an MTU that no link may have", |it| it.packet(2, 0, 1279).ip()),
    only(V6_ONLY, "a later fragment of ours", |it| {
        let mut quote = it.outer[..40].to_vec();
        quote[6] = 44;
        quote.extend([50, 0, 0, 8, 0, 0, 0, 1]);
        quote.extend(&it.outer[it.esp..it.esp + 8]);
        it.of(&quote)
    }),
];

const fn forgery(what: &'static str, forge: Forge) -> Forgery {
    only(&FAMILIES, what, forge)
}

const fn only(families: &'static [Family], what: &'static str, forge: Forge) -> Forgery {
    Forgery { what, families, forge }
}

/// Type and code that tell of a path MTU.
fn kind(family: Family) -> (u8, u8) {
    if family == V4 { (3, 4) } else { (2, 0) }
}

impl Genuine {
    /// The message, or one with a type or code that is so much further.
    fn packet_of_kind(&self, further: u8) -> PacketBuilder {
        let (kind, code) = kind(self.family);
        let (kind, code) =
            if self.family == V4 { (kind, code + further) } else { (kind + further, code) };
        self.packet(kind, code, TOLD)
    }
}

/// A laboratory that has given out more numbers than may be quoted, and what a router would send.
fn quoted(lab: &mut Laboratory, peer: Peer) -> Genuine {
    let (set, family, ours, ..) = peer;
    let sa = lab.snapshot.set(set).outbound[0];
    let counter = lab.snapshot.outbound_sa(sa).sequence.clone();
    let _ = counter.draw(RECENT_NUMBERS + 6);
    let outer = sent(lab, peer);
    let in_udp = lab.snapshot.outbound_sa(sa).encapsulation.udp.is_some();
    let header = if family == V4 { 20 } else { 40 };
    Genuine { family, ours, outer, esp: header + if in_udp { 8 } else { 0 } }
}

/// Each on its own: a message that is not believed changes nothing, and has the verdict that it has
/// without.
#[test]
fn a_forged_message_teaches_nothing() {
    for Forgery { what, families, forge } in FORGERIES {
        for peer in PEERS.iter().filter(|(_, family, ..)| families.contains(family)) {
            let mut lab = Laboratory::default();
            let genuine = quoted(&mut lab, *peer);
            let forged = forge(&genuine);
            let outcome = lab.send(WAN, &forged);
            assert!(matches!(outcome.verdicts[..], [Drop(_)]), "{what}: {outcome:?}");
            assert_eq!((outer(&lab, peer.0), counted(&lab).0), (1500, 0), "{what} {:?}", peer.1);
            // What was forged was all that was wrong with it.
            lab.send(WAN, &genuine.of(&genuine.outer[..genuine.esp + 8]));
            assert_eq!((outer(&lab, peer.0), counted(&lab).0), (TOLD, 1), "{what} {:?}", peer.1);
        }
    }
}

#[test]
fn of_an_sa_in_udp_ports_and_spi_have_to_be_right() {
    for peer in PEERS {
        let forgeries: [(&str, Forge); 6] = [
            ("another port of ours", |it| it.with_byte(it.esp - 7, |byte| byte ^ 1)),
            ("another port of the peer", |it| it.with_byte(it.esp - 5, |byte| byte ^ 1)),
            ("an SPI of nobody", |it| it.with_word(0, 0x7777)),
            ("IKE", |it| it.with_word(0, 0)),
            ("eight bytes behind the IP header", |it| it.of(&it.outer[..it.esp])),
            ("ESP alone", |it| {
                let mut quote = it.outer[..it.esp - 8].to_vec();
                quote[it.at(9, 6)] = protocol::ESP;
                quote.extend(&it.outer[it.esp..it.esp + 8]);
                it.of(&quote)
            }),
        ];
        for (what, forge) in forgeries {
            let mut lab = laboratory(in_udp);
            let genuine = quoted(&mut lab, peer);
            lab.send(WAN, &forge(&genuine));
            assert_eq!((outer(&lab, peer.0), counted(&lab)), (1500, (0, 1)), "{what}");
            lab.send(WAN, &genuine.of(&genuine.outer[..genuine.esp + 8]));
            assert_eq!((outer(&lab, peer.0), counted(&lab)), (TOLD, (1, 1)), "{what}");
        }
    }
}

/// The oldest number that may be quoted, and the one before it.
#[test]
fn the_last_65_536_numbers_may_be_quoted() {
    for peer in PEERS {
        for (last, quoted, is_believed) in [
            (100_000, 100_000, true),
            (100_000, 100_001, false),
            (100_000, 34_465, true),
            (100_000, 34_464, false),
            (3, 1, true),
            (3, 0, false),
            (65_535, 0, false),
            (65_536, 1, true),
        ] {
            let mut lab = Laboratory::default();
            let first = sent(&mut lab, peer);
            let sa = lab.snapshot.set(peer.0).outbound[0];
            let _ = lab.snapshot.outbound_sa(sa).sequence.draw(last - 1);
            let esp = if peer.1 == V4 { 20 } else { 40 };
            let genuine = Genuine { family: peer.1, ours: peer.2, outer: first, esp };
            lab.send(WAN, &genuine.with_word(4, quoted));
            let expected = if is_believed { TOLD } else { 1500 };
            assert_eq!(outer(&lab, peer.0), expected, "{quoted} of {last}");
        }
    }
}

#[test]
fn messages_from_inside_and_through_tunnels_teach_nothing() {
    for peer in PEERS {
        let (set, family, ours, ..) = peer;
        let mut lab = Laboratory::default();
        let quote = sent(&mut lab, peer)[..48].to_vec();
        let (kind, code) = kind(family);
        let told = |network| {
            let source = packets::lab::host(family, network).to_string();
            let told = PacketBuilder::between(&source, ours).icmp(kind, code, TOLD.to_be_bytes());
            told.payload(&quote).ip()
        };
        for arrives in [In::Clear(LAN, told(1)), In::Sealed(set, told(peer.4))] {
            arrives.arrive(&mut lab);
            assert_eq!((outer(&lab, set), counted(&lab)), (1500, (0, 0)));
        }
    }
}

#[test]
fn a_peer_that_ignores_icmp_learns_nothing() {
    for peer in PEERS {
        let mut lab = laboratory(|hub| {
            hub.parts.sets.iter_mut().for_each(|set| set.path_mtu = None);
        });
        let quote = sent(&mut lab, peer)[..48].to_vec();
        lab.send(WAN, &message(peer.1, peer.2, TOLD, &quote).ip());
        assert_eq!((outer(&lab, peer.0), counted(&lab)), (1500, (0, 1)));
    }
}

/// A message that `allow_host` lists goes to Linux, too.
#[test]
fn a_listed_message_teaches_and_reaches_linux() {
    for peer in PEERS {
        let mut lab = laboratory(|hub| {
            let icmp = [1, 58].map(|protocol| HostService { protocol, ports: None });
            hub.parts.ports[usize::from(WAN.0)].allow_host.extend(icmp);
        });
        let quote = sent(&mut lab, peer)[..48].to_vec();
        let told = message(peer.1, peer.2, TOLD, &quote).ip();
        let outcome = lab.send(WAN, &told);
        assert_eq!(outcome.verdicts, [Verdict::Host]);
        assert_eq!(outcome.sent[0].packet, told);
        assert_eq!((outer(&lab, peer.0), counted(&lab)), (TOLD, (1, 0)));
    }
}

/// RFC 792's own parts of a message, in the plainest way.
fn naive(message: &[u8], last: u32) -> Option<u32> {
    let word = |at: usize| Some(u32::from_be_bytes(*message.get(at..)?.first_chunk()?));
    let byte = |at: usize| message.get(at).copied();
    let is_v4 = byte(0)? >> 4 == 4;
    let icmp = if is_v4 { 20 } else { 40 };
    if is_v4 && (byte(icmp)?, byte(icmp + 1)?) != (3, 4) || !is_v4 && byte(icmp)? != 2 {
        return None;
    }
    let quote = icmp + 8;
    let header = if is_v4 { usize::from(byte(quote)? & 15) * 4 } else { 40 };
    let ends = if is_v4 { quote + 12..quote + 20 } else { quote + 8..quote + 40 };
    let spi = if is_v4 { 0x2000 } else { 0x2222 };
    let (_, _, ours, theirs, _) = PEERS[usize::from(!is_v4)];
    let text = |text: &str| match text.parse().unwrap() {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    };
    if byte(quote)? >> 4 != if is_v4 { 4 } else { 6 } || header < 20 {
        return None;
    }
    if message.get(ends)? != [text(ours), text(theirs)].concat() {
        return None;
    }
    let length = if is_v4 { word(quote)? & 0xffff } else { (word(quote + 4)? >> 16) + 40 };
    let told = if is_v4 { word(icmp + 4)? & 0xffff } else { word(icmp + 4)? };
    let (number, is_esp) = (word(quote + header + 4)?, byte(quote + if is_v4 { 9 } else { 6 })?);
    let flags = if is_v4 { word(quote + 4)? & 0xffff } else { 0x4000 };
    // Reserved flag aside: DF, no more fragments, offset 0.
    let is_whole = flags & 0x7fff == 0x4000;
    let is_recent = number >= 1 && number <= last && last - number < RECENT_NUMBERS;
    if is_esp != 50 || word(quote + header)? != spi || !is_recent || !is_whole {
        return None;
    }
    match (is_v4, told) {
        (true, 0) => {
            let plateaus = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508];
            plateaus.into_iter().find(|lower| *lower < length).map(|lower| lower.max(576))
        }
        (true, _) if told >= 68 && told < length => Some(told.max(576)),
        (false, _) if told >= 1280 && told < length => Some(told),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    /// Oracle: `naive`.
    #[test]
    fn damaged_messages_are_believed_as_the_plain_reading_says(
        v6: bool,
        last in prop_oneof![1u32..10, 65_530u32..65_545, 70_000u32..200_000],
        behind in prop_oneof![0u32..10, 65_530u32..65_545],
        mtu in prop_oneof![Just(0u32), 60u32..80, 570u32..580, 1270u32..1290, 1400u32..1480],
        cut in prop_oneof![3 => Just(64usize), 1 => 0usize..64],
        damage in prop::collection::vec((0usize..72, any::<u8>()), 0..2),
    ) {
        let peer = PEERS[usize::from(v6)];
        let (set, family, ours, ..) = peer;
        let mut lab = Laboratory::default();
        let first = sent(&mut lab, peer);
        let sa = lab.snapshot.set(set).outbound[0];
        let _ = lab.snapshot.outbound_sa(sa).sequence.draw(last - 1);
        let esp = if v6 { 40 } else { 20 };
        let mut quote = first[..64].to_vec();
        quote[esp + 4..esp + 8].copy_from_slice(&last.wrapping_sub(behind).to_be_bytes());
        let mut head = mtu.to_be_bytes();
        for (at, byte) in damage {
            match at {
                0..4 => head[at] = byte,
                _ => if let Some(place) = quote.get_mut(at - 4) { *place = byte },
            }
        }
        let (kind, code) = kind(family);
        let packet = PacketBuilder::between(router(family), ours);
        let told = packet.icmp(kind, code, head).payload(&quote[..cut]).ip();
        lab.send(WAN, &told);
        let expected = naive(&told, last);
        prop_assert_eq!(outer(&lab, set), expected.unwrap_or(1500).min(1500), "{:02x?}", told);
        let counts = if expected.is_some() { (1, 0) } else { (0, 1) };
        prop_assert_eq!(counted(&lab), counts);
    }
}

/// RFC 791 §3.2 and RFC 8200 §4.5, plainly: the packet that fragments make.
pub(crate) fn whole(fragments: &[Vec<u8>]) -> Vec<u8> {
    let (mut packet, mut data) = (fragments[0].clone(), Vec::<u8>::new());
    let parsed = |bytes: &[u8]| wire::packet::parse(bytes).expect("a fragment is a packet");
    let header = |bytes: &[u8]| parsed(bytes).fragment_header().unwrap();
    for (number, bytes) in fragments.iter().enumerate() {
        let place = header(bytes);
        assert_eq!(usize::from(place.offset), data.len(), "in their order, nothing missing");
        assert_eq!(place.more, number + 1 < fragments.len());
        assert_eq!(place.identification, header(&fragments[0]).identification);
        data.extend(&bytes[usize::from(parsed(bytes).upper_offset)..]);
    }
    match packet[0] >> 4 {
        4 => {
            packet.truncate(20);
            packet[2..4].copy_from_slice(&(20 + data.len() as u16).to_be_bytes());
            packet[6..8].fill(0);
            packets::table::sum_header(&mut packet);
        }
        _ => {
            packet[6] = packet[40];
            packet.truncate(40);
            packet[4..6].copy_from_slice(&(data.len() as u16).to_be_bytes());
        }
    }
    packet.extend(data);
    packet
}

/// RFC 2473 §7.1, RFC 4213 §3.2: an IPv6 packet of 1280 bytes crosses whatever the path carries.
#[test]
fn on_narrow_paths_an_ipv6_packet_of_1280_bytes_leaves_in_outer_fragments() {
    for (change, what) in [(plain as fn(&mut Hub), "alone"), (in_udp, "in UDP")] {
        for (peer, mtu) in [(PEERS[0], 1310), (PEERS[0], 576), (PEERS[1], 1280)] {
            for fast_path in [FastPathUse::Eager, FastPathUse::Never] {
                let lab = laboratory(change).with_fast_path(fast_path).remembering(1 << 10);
                carries_ipv6(lab, peer, mtu, what);
            }
        }
    }
}

/// Sends IPv6 and IPv4 to a peer behind a path of this MTU.
fn carries_ipv6(mut lab: Laboratory, peer: Peer, mtu: u32, what: &str) {
    let (set, family, ours, _, network) = peer;
    let quote = sent(&mut lab, peer)[..64].to_vec();
    lab.send(WAN, &message(family, ours, mtu, &quote).ip());
    assert_eq!(outer(&lab, set), mtu);
    let packet =
        |bytes: usize| between(V6, 1, network).udp(5, 6).payload_of(bytes - 48).hop_limit(9).ip();
    let small = between(V6, 1, network).udp(5, 6).payload_of(100).ip();
    let outcome = lab.send_all(LAN, &[packet(1280), small.clone()]);
    let count = outcome.sent.len() - 1;
    assert!(count >= 2, "{what}: {outcome:?}");
    assert_eq!(outcome.verdicts, vec![Protect(set); count + 1], "{what}");
    // The general walk may send the large packet behind the packets of the fast path.
    let is_whole = |bytes: &Vec<u8>| {
        let packet = wire::packet::parse(bytes).expect("an IP packet");
        packet.fragment == Fragment::Whole
    };
    let (mut last, pieces): (Vec<_>, Vec<_>) =
        outcome.sent.iter().map(|sent| sent.packet.clone()).partition(is_whole);
    assert!(pieces.iter().all(|piece| piece.len() <= mtu as usize), "{what}");
    assert!(pieces.iter().all(|piece| family == V6 || piece[6] & 0x40 == 0), "DF, {what}");
    let opened = lab.peer(set).open(&whole(&pieces)).expect("opens");
    assert_eq!(opened.inner, packets::table::forwarded(&packet(1280)), "{what}");
    let opened = lab.peer(set).open(&last.pop().unwrap()).expect("opens");
    assert_eq!(opened.inner, packets::table::forwarded(&small), "{what}");
    let sa = lab.snapshot.set(set).outbound[0];
    // The quoted packet, the large packet and the small packet.
    assert_eq!(lab.counters().sealed[sa.0 as usize].packets, 3);
    // Larger IPv6 packets and IPv4 packets beyond the path are reported as too big.
    let outcome = lab.send(LAN, &packet(1281));
    assert_eq!(outcome.verdicts, [Drop(DropReason::TooBig), Forward(LAN)], "{what}");
    let answer = &outcome.sent[0].packet;
    assert_eq!(answer[44..48], 1280u32.to_be_bytes(), "{what}");
    let fits = lab.snapshot.set_sizes(set, lab.now_ns).whole as usize;
    let four = between(V4, 1, network).udp(5, 6).payload_of(fits - 27).dont_fragment();
    assert_eq!(lab.send(LAN, &four.ip()).verdicts[0], Drop(DropReason::TooBig));
}

/// An observer of the path forges the smallest MTU. Segments of IPv6 keep the 1280 bytes of the
/// tunnel's inside, segments of IPv4 obey the path.
#[test]
fn the_mss_follows_the_inside_mtu_of_each_family() {
    for fast_path in [FastPathUse::Eager, FastPathUse::Never] {
        for (inner, headers) in [(V4, 40), (V6, 60)] {
            let mut lab = Laboratory::default().with_fast_path(fast_path).remembering(1 << 10);
            let quote = sent(&mut lab, PEERS[0])[..64].to_vec();
            lab.send(WAN, &message(V4, "192.0.2.1", 68, &quote).ip());
            let sizes = lab.snapshot.set_sizes(BERLIN, lab.now_ns);
            assert_eq!((sizes.outer, sizes.inner(V4), sizes.inner(V6)), (576, sizes.whole, 1280));
            let syn =
                |from, to| between(inner, from, to).tcp_with(1, 2, tcp_flags::SYN, Some(9000)).ip();
            let there = lab.send(LAN, &syn(1, 2));
            let back = lab.peer(BERLIN).seal(&syn(2, 1));
            let back = lab.send(WAN, &back);
            for left in [opened(&mut lab, &there), opened(&mut lab, &back)] {
                let [Out::Clear(_, segment) | Out::Sealed(_, segment)] = &left[..] else {
                    panic!("one leaves")
                };
                let mss = u16::from_be_bytes(*segment.last_chunk().unwrap());
                assert_eq!(u32::from(mss), sizes.inner(inner) - headers, "{inner:?}");
            }
        }
    }
}

/// A card that writes whole packets draws the numbers: no software can seal a packet by the SA.
#[test]
fn a_set_in_a_card_that_writes_whole_packets_cuts_no_outer_packets() {
    let mut lab = laboratory(|hub| hub.seat(BERLIN));
    lab.snapshot.set(BERLIN).path_mtu.as_ref().unwrap().lower(576, lab.now_ns);
    let sizes = lab.snapshot.set_sizes(BERLIN, lab.now_ns);
    assert!(!sizes.fragments && sizes.whole < 576);
    assert_eq!(sizes.inner(V6), sizes.whole);
    let packet = between(V6, 1, 2).udp(5, 6).payload_of(1232).ip();
    assert_eq!(lab.send(LAN, &packet).verdicts[0], Drop(DropReason::TooBig));
    lab.now_ns += AGE_NS;
    assert_eq!(lab.snapshot.set_sizes(BERLIN, lab.now_ns).outer, 1500);
}

/// Nothing cuts behind a card. Software encrypts an IPv6 packet that leaves in fragments, by a
/// number of the SA; the card encrypts the others.
#[test]
fn beside_a_card_that_encrypts_software_encrypts_packets_that_leave_in_fragments() {
    // Cards in crypto mode refuse ESP in UDP over IPv6.
    for (change, set) in [(plain as fn(&mut Hub), BERLIN), (plain, DORA), (in_udp, BERLIN)] {
        for fast_path in [FastPathUse::Eager, FastPathUse::Never] {
            let mut hub = Hub::default();
            change(&mut hub);
            let card = CardOnWire::serving(Service::Crypto, &mut hub, &[set]);
            let lab = hub.laboratory().with_fast_path(fast_path).remembering(1 << 10);
            let mut lab = lab.behind(card.clone());
            lab.snapshot.set(set).path_mtu.as_ref().unwrap().lower(1320, lab.now_ns);
            let network = if set == BERLIN { 2 } else { 4 };
            let packet = |bytes: usize| between(V6, 1, network).udp(5, 6).payload_of(bytes - 48);
            let [large, small] = [1280, 200].map(|bytes| packet(bytes).ip());
            let outcome = lab.send_all(LAN, &[&small, &large, &small]);
            assert_eq!(outcome.verdicts, [Protect(set); 4], "{fast_path:?}");
            let is_whole = |bytes: &&Vec<u8>| {
                wire::packet::parse(bytes).is_ok_and(|packet| packet.fragment == Fragment::Whole)
            };
            let sent: Vec<_> = outcome.sent.into_iter().map(|sent| sent.packet).collect();
            let (one, pieces): (Vec<_>, Vec<_>) = sent.iter().partition(is_whole);
            assert!(pieces.iter().all(|piece| piece.len() <= 1320));
            let pieces: Vec<_> = pieces.into_iter().cloned().collect();
            let opened = lab.peer(set).open(&whole(&pieces)).expect("opens");
            assert_eq!(opened.inner, packets::table::forwarded(&large));
            for bytes in one {
                let opened = lab.peer(set).open(bytes).expect("the card has sealed it");
                assert_eq!(opened.inner, packets::table::forwarded(&small));
            }
            assert_eq!(card.packets(packets::lab::tags(set)[0]), 2, "the card encrypted these");
            assert_eq!(card.losses(), []);
        }
    }
}

#[test]
fn without_frames_for_all_fragments_none_leaves_and_the_limit_is_given_back() {
    let mut hub = Hub::default();
    let account: Arc<Account> = Arc::default();
    let allowance = Allowance { lifetime: Lifetime::NONE, account: account.clone() };
    let sa = &mut hub.parts.outbound[BERLIN.0 as usize];
    *sa = Arc::new(sa.at(sa.id, sa.set).within(Some(allowance)));
    hub.frames = 3;
    let mut lab = hub.laboratory();
    let quote = sent(&mut lab, PEERS[0]);
    lab.send(WAN, &message(V4, "192.0.2.1", 576, &quote[..28]).ip());
    let packet = between(V6, 1, 2).udp(5, 6).payload_of(1232).ip();
    // Three fragments and the packet itself are four.
    let outcome = lab.send(LAN, &packet);
    assert_eq!(outcome.verdicts, [Drop(DropReason::NoFrame)]);
    assert_eq!(outcome.sent, []);
    assert_eq!(account.used(0).packets, 1, "the one before");
}

/// RFC 6864 §4.3: over as many packets as there are numbers no identification comes twice.
#[test]
fn with_df_clear_each_packet_has_an_identification_of_its_own() {
    let mut lab = laboratory(|hub| {
        let sa = &mut hub.parts.outbound[BERLIN.0 as usize];
        let carried = Encapsulation { dont_fragment: DontFragment::Clear, ..sa.encapsulation };
        *sa = sa.carried(carried).unwrap().into();
    });
    let packet = between(V4, 1, 2).udp(5, 6).payload_of(4).dont_fragment().ip();
    let mut seen = vec![false; 1 << 16];
    for _ in 0..(1 << 16) / 64 {
        for sent in lab.send_all(LAN, &vec![&packet; 64]).sent {
            let identification = u16::from_be_bytes([sent.packet[4], sent.packet[5]]);
            assert_eq!(sent.packet[6] & 0x40, 0, "DF is clear");
            assert!(!std::mem::replace(&mut seen[usize::from(identification)], true));
        }
    }
    assert!(seen.iter().all(|seen| *seen));
}

/// RFC 6864 §4.3: an SA that shares its ends with others keeps to its own identifications, on
/// either walk.
#[test]
fn with_df_clear_an_sa_among_others_uses_its_own_identifications() {
    let own = Identifications::of_one_among(2, 3);
    for (change, fast_path) in [plain as fn(&mut Hub), in_udp]
        .into_iter()
        .flat_map(|change| [FastPathUse::Eager, FastPathUse::Never].map(|use_| (change, use_)))
    {
        let mut hub = Hub::default();
        change(&mut hub);
        let sa = &mut hub.parts.outbound[BERLIN.0 as usize];
        let carried = Encapsulation { dont_fragment: DontFragment::Clear, ..sa.encapsulation };
        *sa = sa.carried(carried).unwrap().identified_by(own).into();
        let mut lab = hub.laboratory().with_fast_path(fast_path);
        let mut numbers = 1..;
        for inner in FAMILIES {
            let packet = between(inner, 1, 2).udp(5, 6).payload_of(4).ip();
            let outcome = lab.send_all(LAN, &vec![&packet; 64]);
            assert_eq!(outcome.verdicts, [Protect(BERLIN); 64]);
            assert_eq!(opened(&mut lab, &outcome).len(), 64);
            for (sent, number) in outcome.sent.iter().zip(&mut numbers) {
                let found = u16::from_be_bytes([sent.packet[4], sent.packet[5]]);
                assert_eq!(found, own.of(number), "{fast_path:?} {inner:?} {number}");
                assert!(wire::packet::parse(&sent.packet).is_ok(), "its checksum is right");
            }
        }
        let by_fast_path = if fast_path == FastPathUse::Never { 0 } else { 128 };
        assert_eq!(lab.counters().fast_path, by_fast_path);
    }
}
