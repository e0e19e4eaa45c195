//! ICMP that the gateway makes: about what, to whom, which way, how often, and about what never.

use dataplane::DropReason;
use dataplane::Verdict::{self, Drop, Forward, Protect};
use packets::lab::{BERLIN, CARLA, DORA, HOST, Hub, LAN, LAN2, Laboratory, WAN, host, own};
use packets::table::{opened, run};
use packets::{In, Out, Row};
use wire::Family::{self, V4, V6};
use wire::build::PacketBuilder;
use wire::flow::protocol::UDP;
use wire::{Address, checksum};

use crate::{FAMILIES, between, datagram};

/// Contents of an ICMP message.
pub(crate) struct Told {
    pub(crate) kind: u8,
    pub(crate) code: u8,
    /// The second word.
    pub(crate) value: u32,
    /// The sender.
    pub(crate) source: Address,
}

/// Reads an ICMP error byte by byte and checks all that RFC 792, RFC 1812 §4.3.2 and RFC 4443 ask
/// of it: to whom, checksums, what it quotes, how long it is.
///
/// # Panics
/// If anything is wrong.
pub(crate) fn check(message: &[u8], family: Family, to: Address, about: &[u8]) -> Told {
    let (header, limit) = if family == V4 { (20, 576) } else { (40, 1280) };
    let word = |at: usize| u32::from_be_bytes(*message[at..].first_chunk().unwrap());
    let wide = |at: usize| u128::from_be_bytes(*message[at..].first_chunk().unwrap());
    let (source, destination, pseudo) = match family {
        V4 => {
            assert_eq!((message[0], message[9]), (0x45, 1));
            assert_eq!(usize::from(u16::from_be_bytes([message[2], message[3]])), message.len());
            assert!(checksum::header_is_good(&message[..20]));
            (Address::v4(word(12)), Address::v4(word(16)), 0)
        }
        V6 => {
            assert_eq!((message[0] >> 4, message[6]), (6, 58));
            let payload = usize::from(u16::from_be_bytes([message[4], message[5]]));
            assert_eq!(payload + 40, message.len());
            let (source, destination) = (Address::v6(wide(8)), Address::v6(wide(24)));
            (source, destination, checksum::pseudo_header(source, destination, 58, payload))
        }
    };
    assert_eq!(destination, to, "to the sender of what it is about");
    let body = &message[header..];
    assert_eq!(checksum::finish(checksum::sum(body) + pseudo), 0, "ICMP checksum");
    let quoted = &body[8..];
    assert_eq!(quoted, &about[..quoted.len()], "quotes the packet as it was received");
    assert!(quoted.len() == about.len() || message.len() == limit, "quotes as much as it may");
    assert!(message.len() <= limit);
    Told { kind: body[0], code: body[1], value: word(header + 4), source }
}

#[test]
fn icmp() {
    run(&rows());
}

/// Rows in which no message goes back, or where it goes is the point.
pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for family in FAMILIES {
        rows.extend(unanswered(family));
    }
    rows
}

/// An ICMP error of every type about a packet of lan's, on its way to berlin.
fn errors(family: Family) -> Vec<(u8, PacketBuilder)> {
    let kinds: &[u8] = if family == V4 { &[3, 4, 5, 11, 12] } else { &[1, 2, 3, 4, 100, 127] };
    let quote = datagram(family, 2, 1).ip();
    let of = |kind: &u8| (*kind, between(family, 1, 2).icmp(*kind, 0, [0; 4]).payload(&quote));
    kinds.iter().map(of).collect()
}

fn unanswered(family: Family) -> Vec<Row> {
    let lan = |packet: Vec<u8>| In::Clear(LAN, packet);
    let mut rows = vec![];
    for (kind, packet) in errors(family) {
        let used_up = packet.clone().hop_limit(1).ip();
        let what = format!("{family:?} ICMP error {kind}, hop limit used up");
        rows.push(Row::drops(what, lan(used_up), DropReason::HopLimit));
        let quote = vec![0x45; 2000];
        let large = packet.payload(&quote).dont_fragment().ip();
        let what = format!("{family:?} ICMP error {kind}, too big");
        rows.push(Row::drops(what, lan(large), DropReason::TooBig));
    }
    let later = |bytes| {
        let packet = between(family, 1, 2).protocol(UDP).payload_of(bytes);
        packet.fragment(9, false).dont_fragment()
    };
    rows.extend([
        Row::drops(
            format!("{family:?} later fragment, hop limit used up"),
            lan(later(16).hop_limit(1).ip()),
            DropReason::HopLimit,
        ),
        Row::drops(
            format!("{family:?} later fragment, too big"),
            lan(later(1600).ip()),
            DropReason::TooBig,
        ),
        // No policy lets the message to the name server out.
        Row::drops(
            format!("{family:?} the answer leaves by no policy"),
            In::Clear(
                WAN,
                match family {
                    V4 => PacketBuilder::v4("9.9.9.9", "10.1.0.5"),
                    V6 => PacketBuilder::v6("2001:db8:53::9", "2001:db8:1::5"),
                }
                .udp(53, 5)
                .hop_limit(1)
                .ip(),
            ),
            DropReason::HopLimit,
        )
        .makes(Drop(DropReason::NoMatch)),
        Row::drops(
            format!("{family:?} nothing is answered that policies drop"),
            lan(datagram(family, 1, 200).hop_limit(1).ip()),
            DropReason::NoMatch,
        ),
    ]);
    rows
}

/// A packet whose hop limit ends here: where it comes from, its ends, where the answer goes, and
/// whose address the answer has.
struct Case {
    name: &'static str,
    arrives: fn(Vec<u8>) -> In,
    from: u32,
    to: u32,
    answer: Verdict,
    speaker: fn(Family) -> Address,
}

#[test]
fn hop_limits_used_up_are_told_to_the_sender_on_the_way_its_packets_take() {
    let outside = |family| match family {
        V4 => Address::v4(0xc000_0201),
        V6 => Address::v6(0x2001_0db8_00ff << 80 | 1),
    };
    let outside: fn(Family) -> Address = outside;
    let lan: fn(Family) -> Address = |family| own(family, 1);
    let lan2: fn(Family) -> Address = |family| own(family, 12);
    let from_lan: fn(Vec<u8>) -> In = |packet| In::Clear(LAN, packet);
    let from_lan2: fn(Vec<u8>) -> In = |packet| In::Clear(LAN2, packet);
    let from_wan: fn(Vec<u8>) -> In = |packet| In::Clear(WAN, packet);
    let berlin: fn(Vec<u8>) -> In = |packet| In::Sealed(BERLIN, packet);
    let dora: fn(Vec<u8>) -> In = |packet| In::Sealed(DORA, packet);
    let case = |name, arrives, from, to, answer, speaker| Case {
        name,
        arrives,
        from,
        to,
        answer,
        speaker,
    };
    let cases = [
        case("lan to berlin", from_lan, 1, 2, Forward(LAN), lan),
        case("lan to dora", from_lan, 1, 4, Forward(LAN), lan),
        case("lan to lan2", from_lan, 1, 12, Forward(LAN), lan),
        case("lan2 to lan", from_lan2, 12, 1, Forward(LAN2), lan2),
        case("lan in clear", from_lan, 1, 8, Forward(LAN), lan),
        case("in clear to lan", from_wan, 8, 1, Forward(WAN), outside),
        case("berlin to lan", berlin, 2, 1, Protect(BERLIN), lan),
        case("berlin to lan2", berlin, 2, 12, Protect(BERLIN), lan2),
        case("berlin to carla", berlin, 2, 3, Protect(BERLIN), lan),
        case("berlin in clear", berlin, 2, 8, Protect(BERLIN), lan),
        case("dora to lan", dora, 4, 1, Protect(DORA), lan),
    ];
    for case in cases {
        for family in FAMILIES {
            for payload in [0, 5, 900, 1300] {
                let mut lab = Laboratory::default();
                let packet = between(family, case.from, case.to).udp(7, 8).payload_of(payload);
                let packet = packet.hop_limit(1).ip();
                let what = format!("{}, {family:?}, {payload} bytes", case.name);
                let outcome = (case.arrives)(packet.clone()).arrive(&mut lab);
                let expected = [Drop(DropReason::HopLimit), case.answer];
                assert_eq!(outcome.verdicts, expected, "{what}");
                let left = opened(&mut lab, &outcome);
                let [Out::Clear(_, message) | Out::Sealed(_, message)] = &left[..] else {
                    panic!("{what}: one message goes back, not {left:?}")
                };
                let told = check(message, family, host(family, case.from), &packet);
                let time_exceeded = if family == V4 { (11, 0) } else { (3, 0) };
                assert_eq!(
                    (told.kind, told.code, told.value),
                    (time_exceeded.0, time_exceeded.1, 0)
                );
                assert_eq!(told.source, (case.speaker)(family), "{what}");
            }
        }
    }
}

#[test]
fn linux_and_what_is_for_us_need_no_hop_limit() {
    for family in FAMILIES {
        let mut lab = Laboratory::default();
        let ours = PacketBuilder::new(own(family, 1), host(family, 2)).udp(1, 2).hop_limit(1).ip();
        assert_eq!(lab.send(HOST, &ours).verdicts, [Protect(BERLIN)]);
        let to_us = PacketBuilder::new(host(family, 2), own(family, 1)).udp(1, 2).hop_limit(1).ip();
        let outer = lab.peer(BERLIN).seal(&to_us);
        assert_eq!(lab.send(WAN, &outer).verdicts, [Verdict::Host]);
    }
}

#[test]
fn a_first_fragment_and_an_echo_request_are_answered() {
    for family in FAMILIES {
        let mut lab = Laboratory::default();
        let echo = if family == V4 { 8 } else { 128 };
        for packet in [
            between(family, 1, 2).udp(1, 2).payload_of(24).fragment(0, true),
            between(family, 1, 2).icmp(echo, 0, [1; 4]),
            between(family, 1, 2).tcp(1, 2),
            between(family, 1, 2).protocol(253).payload_of(5),
        ] {
            let packet = packet.hop_limit(1).ip();
            let outcome = lab.send(LAN, &packet);
            assert_eq!(outcome.verdicts, [Drop(DropReason::HopLimit), Forward(LAN)]);
            check(&outcome.sent[0].packet, family, host(family, 1), &packet);
        }
    }
}

/// A message that there is no frame for is counted as such, and nowhere else: its packet has one
/// drop reason, and the ledger balances.
#[test]
fn a_message_without_a_frame_is_not_made_and_counted() {
    for family in FAMILIES {
        // The batch takes all frames; those of packets that are dropped are free for later ones.
        let hub = Hub { frames: 3, ..Hub::default() };
        let mut lab: Laboratory = hub.laboratory();
        let expired = datagram(family, 1, 2).hop_limit(1).ip();
        let outcome = lab.send_all(LAN, &[&expired; 3]);
        let dropped = [Drop(DropReason::HopLimit); 3];
        assert_eq!(outcome.verdicts[..3], dropped, "{:?}", outcome.verdicts);
        let (made, counters) = (outcome.sent.len() as u64, lab.counters());
        assert_eq!((made, counters.icmp_no_frame, counters.icmp_limited), (2, 1, 0));
        assert_eq!(counters.dropped(DropReason::HopLimit), 3);
        assert_eq!(counters.drops.iter().sum::<u64>(), 3, "one reason a packet");
        let ledger = counters.port(LAN).ledger;
        assert_eq!((ledger.received, ledger.made, ledger.imbalance()), (3, made, 0));
        // One by one there is a frame for each.
        let before = lab.counters().icmp_no_frame;
        for _ in 0..3 {
            let outcome = lab.send(LAN, &expired);
            assert_eq!(outcome.verdicts, [Drop(DropReason::HopLimit), Forward(LAN)]);
        }
        assert_eq!(lab.counters().icmp_no_frame, before);
    }
}

/// RFC 1812 §4.3.2.8, RFC 4443 §2.4 f.
#[test]
fn messages_to_one_sender_are_limited_to_a_burst_of_32_and_one_in_ten_milliseconds() {
    for family in FAMILIES {
        let mut lab = Laboratory::default();
        let packet = datagram(family, 1, 2).hop_limit(1).ip();
        let made = |lab: &mut Laboratory, count: usize| {
            let before = lab.counters().icmp_limited;
            let outcome = lab.send_all(LAN, &vec![&packet; count]);
            let limited = (lab.counters().icmp_limited - before) as usize;
            assert_eq!(outcome.sent.len() + limited, count, "each made or counted as not made");
            assert_eq!(outcome.verdicts.len(), count + outcome.sent.len());
            outcome.sent.len()
        };
        assert_eq!(made(&mut lab, 200), 32);
        assert_eq!(made(&mut lab, 10), 0);
        lab.now_ns += 10_000_000;
        assert_eq!(made(&mut lab, 10), 1);
        lab.now_ns += 50_000_000;
        assert_eq!(made(&mut lab, 10), 5);
        lab.now_ns += 3_600_000_000_000;
        assert_eq!(made(&mut lab, 200), 32);
        assert_eq!(lab.counters().dropped(DropReason::HopLimit), 430);
    }
}

/// Path MTU discovery goes on beside 3,000 packets with TTL 1 a second, of one host or of many.
#[test]
fn too_big_is_answered_beside_packets_with_ttl_1() {
    for hosts in [1, 4096] {
        let mut lab = Laboratory::default();
        let big = between(V4, 1, 2).dont_fragment().udp(1, 2).payload_of(1472).ip();
        let (mut answered, mut flood) = (0, 0u32);
        for _ in 0..100 {
            let expired: Vec<Vec<u8>> = (0..300)
                .map(|_| {
                    flood += 1;
                    let from = Address::v4(0x0a01_1000 + flood % hosts);
                    PacketBuilder::new(from, host(V4, 2)).hop_limit(1).udp(1, 2).ip()
                })
                .collect();
            lab.send_all(LAN, &expired);
            answered += lab.send(LAN, &big).sent.len();
            lab.now_ns += 100_000_000;
        }
        assert_eq!(answered, 100, "beside {hosts} hosts");
        assert!(lab.counters().icmp_limited > 10_000, "the flood is limited");
    }
}

/// Two peers of a batch are each answered through their own tunnel.
#[test]
fn each_peer_is_answered_through_its_own_tunnel() {
    let mut lab = Laboratory::default();
    let spokes = [(BERLIN, 2), (CARLA, 3), (DORA, 4)];
    let outers: Vec<Vec<u8>> = spokes
        .iter()
        .map(|(set, network)| {
            let packet = datagram(V4, *network, 1).hop_limit(1).ip();
            lab.peer(*set).seal(&packet)
        })
        .collect();
    let outcome = lab.send_all(WAN, &outers);
    let left = opened(&mut lab, &outcome);
    assert_eq!(left.len(), 3);
    for (out, (set, network)) in left.iter().zip(spokes) {
        let Out::Sealed(to, message) = out else { panic!("{out:?} left in clear") };
        assert_eq!(*to, set);
        let packet = datagram(V4, network, 1).hop_limit(1).ip();
        check(message, V4, host(V4, network), &packet);
    }
}
