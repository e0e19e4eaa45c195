//! Outer packets of ESP that the network cut: put together before they are opened (RFC 4303
//! §3.4.1).

use dataplane::Verdict::{self, Consumed, Drop, Forward, Hold, Host, Protect};
use dataplane::reassembly::{MAX_ESP_PER_DATAGRAM, MAX_ESP_WAITING, PATIENCE_NS};
use dataplane::{DropReason, HoldKind, HostService, SetIndex};
use ipsec::UdpPorts;
use packets::lab::{BERLIN, CARLA, DORA, HOST, Hub, LAN, Laboratory, WAN, own};
use packets::peer::Peer;
use packets::table::{forwarded, opened, run};
use packets::{In, Out, Row};
use proptest::prelude::*;
use wire::Family::{self, V4, V6};
use wire::build::PacketBuilder;
use wire::flow::protocol::UDP;

use crate::{FAMILIES, between};

/// Units of 8 bytes by which a packet of [`inner`] with 120 bytes is in three parts.
const UNITS: usize = 9;
const WAITS: Verdict = Hold(HoldKind::Fragment);

/// A peer of each family outside, alone and in UDP: its set, its network, the change that makes it
/// so.
type Far = (SetIndex, u32, fn(&mut Hub));

const FAR: [Far; 4] = [
    (BERLIN, 2, |_| {}),
    (BERLIN, 2, |hub| in_udp(hub, BERLIN)),
    (DORA, 4, |_| {}),
    (DORA, 4, |hub| in_udp(hub, DORA)),
];

fn in_udp(hub: &mut Hub, set: SetIndex) {
    hub.agree(set, |agreement| agreement.udp = Some(UdpPorts { local: 4500, remote: 61_234 }));
}

/// Cuts an outer packet: each fragment but the last has this many units of 8 bytes.
fn cut(packet: &[u8], number: u32, units: usize) -> Vec<Vec<u8>> {
    let whole = wire::packet::parse(packet).unwrap();
    let data = &packet[whole.upper_offset.into()..];
    let flow = whole.flow;
    let count = data.len().div_ceil(8 * units);
    let fragment = |(place, part): (usize, &[u8])| {
        let outer = PacketBuilder::new(flow.source_address(), flow.destination_address());
        let outer = outer.protocol(flow.protocol).identification(number).payload(part);
        outer.fragment((place * units) as u16, place + 1 < count).ip()
    };
    data.chunks(8 * units).enumerate().map(fragment).collect()
}

/// UDP of so many bytes from behind a peer to our network.
fn inner(family: Family, network: u32, bytes: usize) -> PacketBuilder {
    between(family, network, 1).udp(1000, 2000).payload_of(bytes)
}

/// The part of a packet sealed as number 1.
fn part(set: SetIndex, inner: &[u8], place: usize) -> In {
    let inner = inner.to_vec();
    In::crafted(set, move |peer| cut(&peer.seal_as(1, &inner), 9, UNITS)[place].clone())
}

#[test]
fn fragments_of_esp_are_opened_together_or_dropped() {
    // REASM
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for (set, network, setting) in FAR {
        let mut of_peer = vec![];
        for family in FAMILIES {
            of_peer.extend(orders(set, &inner(family, network, 120).ip()));
        }
        of_peer.extend(refused(set, network));
        of_peer.extend(of_others(set, network));
        rows.extend(of_peer.into_iter().map(|row| {
            row.with(move |hub| {
                setting(hub);
                hub.parts.ports[usize::from(WAN.0)].allow_host.clear();
            })
        }));
    }
    rows.extend(of_udp(BERLIN, 2));
    rows.extend(of_udp(DORA, 4));
    rows
}

/// The parts in every order.
fn orders(set: SetIndex, inner: &[u8]) -> Vec<Row> {
    let part = |place| part(set, inner, place);
    let arrives = || Out::Clear(LAN, forwarded(inner));
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let whole = orders.map(|[one, two, three]| {
        let row = Row::passes(format!("{one}, {two}, {three}"), part(three), arrives());
        row.after(part(one)).after(part(two))
    });
    let mut rows = Vec::from(whole);
    for [one, two, _] in orders {
        rows.push(Row::waits(format!("{two} behind {one}"), part(two)).after(part(one)));
    }
    rows
}

/// Datagrams that are invalid, and packets that are.
fn refused(set: SetIndex, network: u32) -> Vec<Row> {
    use DropReason::{FragmentDuplicate, FragmentOverlap};
    use DropReason::{Integrity, Replayed, SelectorMismatch};
    let packet = inner(V4, network, 120).ip();
    let elsewhere = inner(V4, 1, 120).ip();
    let whole = {
        let packet = packet.clone();
        In::crafted(set, move |peer| peer.seal_as(1, &packet))
    };
    let damaged = {
        let packet = packet.clone();
        In::crafted(set, move |peer| {
            let mut part = cut(&peer.seal_as(1, &packet), 9, UNITS)[1].clone();
            *part.last_mut().unwrap() ^= 1;
            part
        })
    };
    // One unit of 8 bytes at an offset, as a last part or not.
    let unit = |offset: u16, more: bool| {
        In::crafted(set, move |peer| {
            let outer = wire::packet::parse(&peer.seal_as(1, &[0x45; 20])).unwrap().flow;
            let packet = PacketBuilder::new(outer.source_address(), outer.destination_address());
            let packet = packet.protocol(outer.protocol).identification(9).payload_of(8);
            packet.fragment(offset, more).ip()
        })
    };
    let part = |place| part(set, &packet, place);
    vec![
        Row::drops("a part twice", part(1), FragmentDuplicate).after(part(1)),
        Row::drops("the first twice", part(0), FragmentDuplicate).after(part(0)),
        Row::drops("over the first", unit(8, false), FragmentOverlap)
            .in_vain(FragmentOverlap)
            .after(part(0)),
        Row::drops("behind the end", unit(99, true), FragmentOverlap)
            .in_vain(FragmentOverlap)
            .in_vain(FragmentOverlap)
            .after(part(0))
            .after(part(2)),
        Row::drops("damaged", part(2), Integrity).after(part(0)).after(damaged),
        Row::drops("received whole before", part(2), Replayed)
            .after(whole.clone())
            .after(part(0))
            .after(part(1)),
        Row::drops("received in parts before", whole, Replayed)
            .after(part(0))
            .after(part(1))
            .after(part(2)),
        {
            let part = |place| self::part(set, &elsewhere, place);
            let row = Row::drops("from another's network", part(2), SelectorMismatch);
            row.after(part(0)).after(part(1))
        },
    ]
}

/// Later and tiny first fragments of UDP, which may be anything.
fn of_udp(set: SetIndex, network: u32) -> Vec<Row> {
    use DropReason::{FragmentDuplicate, FragmentTiny};
    let packet = inner(V4, network, 120).ip();
    let part = |place| part(set, &packet, place);
    let tiny = In::crafted(set, |peer| cut(&peer.outer(&[7; 40]).ip(), 9, 1)[0].clone());
    // IKE, in two parts.
    let ike = |place: usize| {
        In::crafted(set, move |peer| cut(&peer.outer(&[0; 40]).ip(), 9, 3)[place].clone())
    };
    let other = |place: usize| {
        In::crafted(set, move |peer| {
            let to_500 = peer.outer(&[7; 40]).udp(500, 500).ip();
            cut(&to_500, 9, 3)[place].clone()
        })
    };
    let bytes = |of: &In| match of {
        In::Crafted(set, craft) => {
            let mut hub = Hub::default();
            in_udp(&mut hub, *set);
            craft(hub.laboratory().peer(*set))
        }
        _ => unreachable!("it is crafted"),
    };
    let mut rows = vec![
        Row::drops("a first without an SPI", tiny.clone(), FragmentTiny),
        Row::drops("the rest of it", part(1), FragmentTiny).after(tiny),
    ];
    for of in [&ike as &dyn Fn(usize) -> In, &other] {
        let delivered = |place: usize| Out::Clear(HOST, bytes(&of(place)));
        rows.extend([
            Row::delivers("a first of other UDP", of(0), bytes(&of(0))),
            Row::delivers("its rest", of(1), bytes(&of(1))).after(of(0)),
            Row::waits("its rest alone", of(1)),
            Row::delivers("what waited behind its first", of(0), bytes(&of(0)))
                .makes(Host)
                .out(delivered(1))
                .after(of(1)),
            Row::drops("twice, before its first", of(1), FragmentDuplicate).after(of(1)),
        ]);
    }
    let udp = HostService { protocol: UDP, ports: None };
    rows.into_iter()
        .map(|row| {
            row.with(move |hub| {
                in_udp(hub, set);
                // Of a later fragment nothing is known but that it is UDP.
                hub.parts.ports[usize::from(WAN.0)].allow_host = vec![udp];
            })
        })
        .collect()
}

/// Fragments that nobody opens.
fn of_others(set: SetIndex, network: u32) -> Vec<Row> {
    let packet = inner(V4, network, 120).ip();
    let moved = |place: usize, to_us: bool| {
        let packet = packet.clone();
        In::crafted(set, move |peer| {
            let bytes = cut(&peer.seal_as(1, &packet), 9, UNITS)[place].clone();
            let fragment = wire::packet::parse(&bytes).unwrap();
            let flow = fragment.flow;
            let (mut from, mut to) = (flow.source_address(), flow.destination_address());
            match to_us {
                true => from.value += 1,
                false => to = own(to.family, 1),
            }
            let outer = PacketBuilder::new(from, to).protocol(flow.protocol).identification(9);
            let data = &bytes[fragment.upper_offset.into()..];
            outer.payload(data).fragment((UNITS * place) as u16, place < 2).ip()
        })
    };
    vec![
        Row::drops("a stranger's first", moved(0, true), DropReason::EspFragment),
        // An SA is between two addresses.
        Row::drops("to another address of ours", moved(2, false), DropReason::UnknownSpi)
            .after(moved(0, false))
            .after(moved(1, false)),
    ]
}

/// Sends an inner packet in parts, all but the last of so many units.
fn send(
    lab: &mut Laboratory,
    set: SetIndex,
    inner: &[u8],
    units: usize,
) -> (Vec<Verdict>, Vec<Out>) {
    let sealed = lab.peer(set).seal(inner);
    let outcome = lab.send_all(WAN, &cut(&sealed, 9, units));
    let left = opened(lab, &outcome);
    (outcome.verdicts, left)
}

/// Puts IPv4 fragments together as plainly as can be.
fn joined(fragments: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = fragments[0].clone();
    for later in &fragments[1..] {
        let packet = wire::packet::parse(later).unwrap();
        let header = packet.fragment_header().unwrap();
        assert_eq!(usize::from(header.offset) + 20, whole.len(), "in order, nothing missing");
        whole.extend(&later[packet.upper_offset.into()..]);
    }
    let length = whole.len() as u16;
    whole[2..4].copy_from_slice(&length.to_be_bytes());
    whole[6..8].fill(0);
    packets::table::sum_header(&mut whole);
    whole
}

fn laboratory(setting: fn(&mut Hub)) -> Laboratory {
    let mut hub = Hub::default();
    setting(&mut hub);
    hub.laboratory()
}

/// Packets that a frame holds, ones that only just do or do not, and the largest that there are.
const SIZES: [usize; 8] = [1400, 1480, 2000, 3600, 3680, 3720, 9000, 65_400];

/// A Linux peer seals datagrams without DF whole, whatever their size, and cuts what comes of it.
#[test]
fn datagrams_over_the_mtu_without_df_all_arrive_in_fragments() {
    // REASM
    for (set, network, setting) in FAR {
        let mut lab = laboratory(setting);
        for bytes in SIZES {
            let packet = inner(V4, network, bytes - 28).ip();
            let (verdicts, left) = send(&mut lab, set, &packet, 160);
            let fragments: Vec<Vec<u8>> = left
                .into_iter()
                .map(|out| match out {
                    Out::Clear(LAN, packet) => packet,
                    other => panic!("{bytes}: {other:x?}"),
                })
                .collect();
            assert!(fragments.iter().all(|fragment| fragment.len() <= 1500));
            assert_eq!(joined(&fragments), forwarded(&packet), "{bytes}");
            let parts = verdicts.len() - if bytes > 1500 { fragments.len() } else { 0 };
            assert_eq!(verdicts[..parts - 1], vec![WAITS; parts - 1]);
            let own = if bytes > 1500 { Consumed } else { Forward(LAN) };
            assert_eq!(verdicts[parts - 1], own, "{bytes}");
            assert!(verdicts[parts..].iter().all(|verdict| *verdict == Forward(LAN)));
        }
        let opened = lab.counters().opened[set.0 as usize];
        assert_eq!(opened.packets, SIZES.len() as u64, "each once");
        assert_eq!(opened.bytes, SIZES.iter().sum::<usize>() as u64);
        assert_eq!(lab.waiting(), 0);
    }
}

#[test]
fn a_datagram_too_big_for_the_way_out_that_may_not_be_cut_is_answered_through_the_tunnel() {
    // REASM
    for (set, network, setting) in FAR {
        for bytes in [1600, 9000, 60_000] {
            for packet in
                [inner(V4, network, bytes).dont_fragment().ip(), inner(V6, network, bytes).ip()]
            {
                let mut lab = laboratory(setting);
                let (verdicts, left) = send(&mut lab, set, &packet, 160);
                let parts = verdicts.len() - 1;
                assert_eq!(verdicts[parts - 1], Drop(DropReason::TooBig));
                assert_eq!(verdicts[parts], Protect(set));
                let [Out::Sealed(to, answer)] = &left[..] else { panic!("{left:x?}") };
                assert_eq!(*to, set);
                let answer = wire::packet::parse(answer).unwrap();
                assert!(wire::icmp::is_error(&answer.flow));
            }
        }
    }
}

#[test]
fn a_large_datagram_to_the_gateway_reaches_linux_in_fragments() {
    // REASM
    for (set, network, setting) in FAR {
        for bytes in [3000, 9000, 65_000] {
            let mut lab = laboratory(setting);
            let ping = PacketBuilder::new(packets::lab::host(V4, network), own(V4, 1));
            let ping = ping.icmp(8, 0, [0, 1, 0, 1]).payload_of(bytes).ip();
            let (verdicts, left) = send(&mut lab, set, &ping, 160);
            let delivered: Vec<Vec<u8>> = left
                .into_iter()
                .map(|out| match out {
                    Out::Clear(HOST, packet) => packet,
                    other => panic!("{other:x?}"),
                })
                .collect();
            assert_eq!(joined(&delivered), ping, "{bytes}");
            let last = verdicts.last().unwrap();
            assert_eq!(*last, Host);
        }
        // Nobody on the way may cut IPv6.
        let mut lab = laboratory(setting);
        let ping = PacketBuilder::new(packets::lab::host(V6, network), own(V6, 1));
        let (verdicts, left) = send(&mut lab, set, &ping.udp(1, 2).payload_of(9000).ip(), 160);
        assert_eq!((verdicts.last(), left.len()), (Some(&Drop(DropReason::TooBig)), 0));
    }
}

/// Spoke to spoke: cut again before it is sealed again.
#[test]
fn a_large_datagram_to_another_peer_is_sealed_in_fragments() {
    // REASM
    for bytes in [1480, 3000, 9000] {
        let mut lab = Laboratory::default();
        let packet = between(V4, 2, 3).udp(1000, 2000).payload_of(bytes).ip();
        let (_, left) = send(&mut lab, BERLIN, &packet, 160);
        let fragments: Vec<Vec<u8>> = left
            .into_iter()
            .map(|out| match out {
                Out::Sealed(CARLA, packet) => packet,
                other => panic!("{other:x?}"),
            })
            .collect();
        assert!(fragments.len() > 1);
        assert_eq!(joined(&fragments), forwarded(&packet));
    }
}

/// TCP from port 443 of network 9 is berlin's: a later fragment of it has to wait for its first,
/// and waits in a frame.
#[test]
fn an_inner_fragment_that_no_frame_holds_follows_its_first_and_never_waits() {
    // REASM
    let datagram = between(V4, 9, 1).tcp(443, 5).payload_of(12_000).ip();
    let inner = cut(&datagram, 5, 800);
    assert_eq!(inner.len(), 2);
    for (order, expected) in [([0, 1], vec![]), ([1, 0], vec![DropReason::FragmentLimit])] {
        let mut lab = Laboratory::default();
        let mut reasons = vec![];
        for place in order {
            let (verdicts, left) = send(&mut lab, BERLIN, &inner[place], 160);
            reasons.extend(verdicts.into_iter().filter_map(|verdict| match verdict {
                Drop(reason) => Some(reason),
                _ => None,
            }));
            assert_eq!(left.is_empty(), reasons.len() == 1 && place == 1, "{order:?}");
        }
        assert_eq!(reasons, expected);
    }
}

/// To the gateway itself: the first fragment of the inner datagram fits no frame, and the later
/// one, which came before it, follows it.
#[test]
fn a_large_first_fragment_for_the_machine_goes_before_the_one_that_waited() {
    // REASM
    let datagram = PacketBuilder::new(packets::lab::host(V4, 9), own(V4, 1));
    let datagram = datagram.tcp(443, 5).payload_of(5000).ip();
    let inner = cut(&datagram, 5, 600);
    assert_eq!(inner.len(), 2);
    let mut lab = Laboratory::default();
    let sealed = lab.peer(BERLIN).seal(&inner[1]);
    assert_eq!(lab.send_all(WAN, &[sealed]).verdicts, [WAITS]);
    let sealed = lab.peer(BERLIN).seal(&inner[0]);
    let outcome = lab.send_all(WAN, &cut(&sealed, 9, 160));
    let mut fragments: Vec<Vec<u8>> = opened(&mut lab, &outcome)
        .into_iter()
        .map(|out| match out {
            Out::Clear(HOST, packet) => packet,
            other => panic!("{other:x?}"),
        })
        .collect();
    let offset = |fragment: &Vec<u8>| {
        let packet = wire::packet::parse(fragment).unwrap();
        packet.fragment_header().unwrap().offset
    };
    fragments.sort_by_key(offset);
    assert_eq!(joined(&fragments)[20..], datagram[20..]);
    assert_eq!(lab.waiting(), 0);
}

#[test]
fn an_overlap_drops_what_waited_and_what_comes_until_its_time_is_over() {
    // REASM
    for (set, network, setting) in FAR {
        let mut lab = laboratory(setting);
        let sealed = lab.peer(set).seal(&inner(V4, network, 120).ip());
        let (parts, longer) = (cut(&sealed, 9, UNITS), cut(&sealed, 9, UNITS + 1));
        let order = [&parts[0], &parts[1], &longer[1], &parts[2]].map(Clone::clone);
        let overlap = Drop(DropReason::FragmentOverlap);
        assert_eq!(lab.send_all(WAN, &order).verdicts, [WAITS, WAITS, overlap, overlap]);
        assert_eq!(lab.counters().dropped(DropReason::FragmentOverlap), 4);
        lab.now_ns += PATIENCE_NS;
        assert_eq!(lab.send_all(WAN, &parts).verdicts, [WAITS, WAITS, Forward(LAN)]);
    }
}

#[test]
fn duplicates_are_dropped_alone_and_the_packet_is_opened() {
    // REASM
    for (set, network, setting) in FAR {
        let mut lab = laboratory(setting);
        let parts = cut(&lab.peer(set).seal(&inner(V4, network, 120).ip()), 9, UNITS);
        let order = [1, 1, 0, 1, 0, 2].map(|place: usize| parts[place].clone());
        let duplicate = Drop(DropReason::FragmentDuplicate);
        let expected = [WAITS, duplicate, WAITS, duplicate, duplicate, Forward(LAN)];
        assert_eq!(lab.send_all(WAN, &order).verdicts, expected);
        assert_eq!((lab.waiting(), lab.counters().total().held), (0, 0));
    }
}

#[test]
fn what_does_not_become_whole_in_two_seconds_is_dropped() {
    // REASM
    for (set, network, setting) in FAR {
        let mut lab = laboratory(setting);
        let parts = cut(&lab.peer(set).seal(&inner(V4, network, 120).ip()), 9, UNITS);
        lab.send_all(WAN, &parts[..2]);
        lab.now_ns += PATIENCE_NS - 1;
        lab.tick();
        assert_eq!((lab.waiting(), lab.counters().dropped(DropReason::FragmentTimeout)), (2, 0));
        lab.now_ns += 1;
        lab.tick();
        assert_eq!((lab.waiting(), lab.counters().dropped(DropReason::FragmentTimeout)), (0, 2));
        assert_eq!(lab.send(WAN, &parts[2]).verdicts, [WAITS], "of a new datagram");
    }
}

#[test]
fn a_packet_in_too_many_pieces_is_dropped_whole() {
    // REASM
    for (set, network, setting) in FAR {
        for (pieces, arrives) in
            [(MAX_ESP_PER_DATAGRAM + 1, true), (MAX_ESP_PER_DATAGRAM + 2, false)]
        {
            let mut lab = laboratory(setting);
            // Pieces of 16 bytes, and the rest of 16 to 31.
            let esp = lab.peer(set).seal(&inner(V4, network, 16 * pieces - 28).ip());
            let mut parts = cut(&esp, 9, 2);
            let rest = cut(&esp, 9, 2 * (pieces - 1)).swap_remove(1);
            parts.truncate(pieces - 1);
            parts.push(rest);
            assert_eq!(parts.len(), pieces);
            let verdicts = lab.send_all(WAN, &parts).verdicts;
            match arrives {
                true => assert_eq!(verdicts.last(), Some(&Forward(LAN))),
                false => {
                    let limit = Drop(DropReason::FragmentLimit);
                    assert_eq!(verdicts[MAX_ESP_PER_DATAGRAM..], [limit; 2]);
                    let dropped = lab.counters().dropped(DropReason::FragmentLimit);
                    assert_eq!(dropped, pieces as u64, "those that waited too");
                }
            }
            assert_eq!(lab.waiting(), 0);
        }
    }
}

/// Somebody sends fragments in berlin's name without end, and never a last one.
#[test]
fn a_flood_in_one_peers_name_keeps_no_other_peer_out() {
    // REASM
    let mut lab = Hub { frames: 1024, ..Hub::default() }.laboratory();
    for round in 0..4 {
        let sealed = lab.peer(CARLA).seal(&inner(V4, 3, 1480).ip());
        let parts = cut(&sealed, 9, 160);
        assert_eq!(lab.send(WAN, &parts[0]).verdicts, [WAITS]);
        for number in 0..300 {
            let outer = lab.peer(BERLIN).outer(&[7; 64]).identification(round * 300 + number);
            for offset in [0, 20, 40] {
                lab.send(WAN, &outer.clone().fragment(offset, true).ip());
            }
        }
        assert!(lab.waiting() <= MAX_ESP_WAITING);
        assert_eq!(lab.send(WAN, &parts[1]).sent.len(), 2, "what waited is still there");
    }
    assert!(lab.counters().dropped(DropReason::FragmentLimit) > 0, "the flood met its bound");
}

/// Later fragments of strangers, of which there may be many, take no room of peers.
#[test]
fn a_flood_of_strangers_keeps_no_peer_out() {
    // REASM
    let mut lab = Hub { frames: 2048, ..Hub::default() }.laboratory();
    let sealed = lab.peer(BERLIN).seal(&inner(V4, 2, 1480).ip());
    let parts = cut(&sealed, 9, 160);
    assert_eq!(lab.send(WAN, &parts[0]).verdicts, [WAITS]);
    for number in 0..2000 {
        let from = wire::Address::v4(0xcb00_0000 + number);
        let to = lab.peer(BERLIN).agreement.hub.into();
        let fragment = PacketBuilder::new(from, to).protocol(UDP).payload_of(8).fragment(9, false);
        lab.send(WAN, &fragment.ip());
    }
    assert_eq!(lab.send(WAN, &parts[1]).sent.len(), 2, "what waited is still there");
}

/// Outer packets that no frame holds and whose last fragments come in one batch.
#[test]
fn several_large_packets_of_one_batch_all_arrive() {
    // REASM
    for (set, network, setting) in FAR {
        let mut lab = laboratory(setting);
        let packets = [5000, 9000, 4000].map(|bytes| inner(V4, network, bytes).ip());
        let parts: Vec<Vec<u8>> = (0..)
            .zip(&packets)
            .flat_map(|(number, packet)| cut(&lab.peer(set).seal(packet), number, 160))
            .collect();
        let outcome = lab.send_all(WAN, &parts);
        let mut left = opened(&mut lab, &outcome).into_iter().map(|out| match out {
            Out::Clear(LAN, packet) => packet,
            other => panic!("{other:x?}"),
        });
        for packet in &packets {
            let fragments: Vec<Vec<u8>> = left.by_ref().take(packet.len().div_ceil(1496)).collect();
            assert_eq!(joined(&fragments), forwarded(packet));
        }
        assert_eq!((left.count(), lab.waiting()), (0, 0));
    }
}

/// A port that goes takes along what waits.
#[test]
fn fragments_of_a_port_that_is_gone_are_dropped() {
    // REASM
    let mut lab = Laboratory::default();
    let parts = cut(&lab.peer(BERLIN).seal(&inner(V4, 2, 120).ip()), 9, UNITS);
    lab.send_all(WAN, &parts[..2]);
    lab.change(|sources| Laboratory::without_port(sources, WAN));
    assert_eq!(lab.waiting(), 0);
}

fn parts_of(
    lab: &mut Laboratory,
    far: Far,
    family: Family,
    bytes: usize,
    number: u32,
) -> Vec<Vec<u8>> {
    let (set, network, _) = far;
    let packet = inner(family, network, bytes).ip();
    let sealed = |peer: &mut Peer| peer.seal_as(u64::from(number) + 1, &packet);
    cut(&sealed(lab.peer(set)), number, 40)
}

#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Whole,
    Lost,
    Twice,
}

proptest! {
    /// Several packets, their fragments in any order, one twice, one lost.
    #[test]
    fn packets_arrive_if_all_their_fragments_come_once(
        far in prop::sample::select(&FAR[..]),
        is_v6: bool,
        sizes in prop::collection::vec(
            prop_oneof![3 => 200..1400usize, 1 => 3700..5000usize], 1..5),
        order in Just((0..160usize).collect::<Vec<_>>()).prop_shuffle(),
        lost in prop::option::of(0..160usize),
        twice in prop::option::of(0..160usize),
    ) {
        // REASM
        let family = if is_v6 { V6 } else { V4 };
        let mut hub = Hub::default();
        far.2(&mut hub);
        hub.parts.ports[usize::from(WAN.0)].allow_host.clear();
        hub.parts.ports[usize::from(LAN.0)].mtu = 3773;
        let mut lab = hub.laboratory();
        let mut arriving = vec![];
        for (number, bytes) in sizes.iter().enumerate() {
            let parts = parts_of(&mut lab, far, family, *bytes, number as u32);
            arriving.extend(parts.into_iter().map(|part| (number, part)));
        }
        let order: Vec<usize> = order.into_iter().filter(|at| *at < arriving.len()).collect();
        let mut left = vec![0; sizes.len()];
        let mut fates = vec![Fate::Whole; sizes.len()];
        for at in order {
            let (number, part) = &arriving[at];
            let times = match (lost == Some(at), twice == Some(at)) {
                (true, _) => 0,
                (false, false) => 1,
                (false, true) => 2,
            };
            for _ in 0..times {
                left[*number] += lab.send(WAN, part).sent.len();
            }
            match times {
                0 => fates[*number] = Fate::Lost,
                2 if fates[*number] == Fate::Whole => fates[*number] = Fate::Twice,
                _ => {}
            }
        }
        for (number, left) in left.into_iter().enumerate() {
            match fates[number] {
                Fate::Whole => prop_assert!(left > 0, "{}", number),
                Fate::Lost => prop_assert_eq!(left, 0, "{}", number),
                // It was whole before a part came again, or it never is.
                Fate::Twice => {}
            }
        }
    }
}
