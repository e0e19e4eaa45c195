//! Peers behind NATs: ESP in UDP beside IKE and keepalives on port 4500 (RFC 3948), and peers that
//! show themselves at another place.

use dataplane::Verdict::{Drop, Forward, Hold, Protect};
use dataplane::{AddressUpdate, DropReason, HoldKind, SetIndex};
use ipsec::{Spi, UdpPorts};
use packets::lab::{BERLIN, CARLA, DORA, HOST, Hub, LAN, Laboratory, WAN};
use packets::peer::{Agreement, Peer};
use packets::table::{forwarded, run, sum_header};
use packets::{In, Out, Row};
use wire::Family::{self, V4, V6};
use wire::build::PacketBuilder;
use wire::{Address, Fragment};

use crate::{FAMILIES, datagram};

/// UDP ports of the gateway and, behind their NATs, of the peers.
const PORTS: UdpPorts = UdpPorts { local: 4500, remote: 61_234 };

/// One peer with each family outside.
const PEERS: [(SetIndex, u32, Family); 2] = [(BERLIN, 2, V4), (DORA, 4, V6)];

#[test]
fn nat_traversal() {
    run(&rows());
}

/// All peers' ESP in UDP.
fn in_udp(hub: &mut Hub) {
    for (set, ..) in PEERS {
        hub.agree(set, |agreement| agreement.udp = Some(PORTS));
    }
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for (set, network, outer) in PEERS {
        for family in FAMILIES {
            let there = datagram(family, 1, network).traffic_class(0xb9).ip();
            let back = datagram(family, network, 1).ip();
            let sealed = Out::Sealed(set, forwarded(&there));
            let arrives = Out::Clear(LAN, forwarded(&back));
            let received = In::crafted(set, move |peer| peer.seal_as(1, &back));
            rows.push(Row::passes("out, in UDP", In::Clear(LAN, there), sealed).with(in_udp));
            rows.push(Row::passes("in, in UDP", received.clone(), arrives).with(in_udp));
            rows.push(
                Row::drops("twice in UDP", received.clone(), DropReason::Replayed)
                    .with(in_udp)
                    .after(received),
            );
        }
        rows.extend(carriages(set, network));
        rows.extend(fragments(set, outer));
        rows.extend(datagrams(set));
        rows.extend(others_on_the_port(set));
    }
    rows
}

/// UDP from a peer to our port 4500.
fn to_4500(peer: &Peer, payload: &[u8]) -> PacketBuilder {
    let (from, to): (Address, Address) = (peer.agreement.address.into(), peer.agreement.hub.into());
    PacketBuilder::new(from, to).udp(PORTS.remote, PORTS.local).payload(payload)
}

/// ESP that comes in another way than its SA says.
fn carriages(set: SetIndex, network: u32) -> Vec<Row> {
    let inner = datagram(V4, network, 1).ip();
    let other_way = move |in_udp: bool| {
        let inner = inner.clone();
        In::crafted(set, move |peer| {
            let esp = peer.esp(1, &peer.text_of(&inner));
            peer.agreement.udp = in_udp.then_some(PORTS);
            peer.outer(&esp).ip()
        })
    };
    let reason = DropReason::Encapsulation;
    vec![
        Row::drops("ESP alone for an SA in UDP", other_way(false), reason).with(in_udp),
        Row::drops("ESP in UDP for an SA without it", other_way(true), reason),
        Row::drops("ESP alone, again", other_way(false), reason)
            .with(in_udp)
            .after(other_way(false)),
    ]
}

/// First fragments of ESP in UDP wait for the rest, if an SA comes so; those of IKE are Linux's.
fn fragments(set: SetIndex, outer: Family) -> Vec<Row> {
    let first = move |payload: [u8; 24]| {
        In::crafted(set, move |peer| to_4500(peer, &payload).fragment(0, true).ip())
    };
    // As a fragment is cut: its UDP header tells the whole datagram's length.
    let cut = move |payload: [u8; 24]| {
        In::crafted(set, move |peer| {
            let mut packet = to_4500(peer, &payload).fragment(0, true).ip();
            let udp = if outer == V4 { 20 } else { 48 };
            packet[udp + 4..udp + 6].copy_from_slice(&1400u16.to_be_bytes());
            packet
        })
    };
    let (esp, mut rows) = (DropReason::EspFragment, vec![]);
    for (what, packet) in [
        ("first fragment of ESP in UDP", cut([7; 24])),
        ("a fragment with a short length", first([7; 24])),
    ] {
        rows.push(Row::waits(what, packet.clone()).with(in_udp));
        rows.push(Row::drops(what, packet, esp));
    }
    let ike = cut([0; 24]);
    let mut laboratory = Laboratory::default();
    let delivered = match &ike {
        In::Crafted(_, craft) => craft(laboratory.peer(set)),
        _ => unreachable!("it was crafted"),
    };
    rows.push(Row::delivers("first fragment of IKE", ike, delivered).with(in_udp));
    rows
}

/// Datagrams whose lengths lie, and what is too short for ESP.
fn datagrams(set: SetIndex) -> Vec<Row> {
    let with_length = |length: u16, payload: &[u8]| {
        let payload = payload.to_vec();
        In::crafted(set, move |peer| {
            let mut packet = to_4500(peer, &payload).ip();
            let udp = packet.len() - payload.len() - 8;
            packet[udp + 4..udp + 6].copy_from_slice(&length.to_be_bytes());
            packet
        })
    };
    let spi = |number: u32| {
        In::crafted(set, move |peer| {
            to_4500(peer, &[&number.to_be_bytes()[..], &[1; 60]].concat()).ip()
        })
    };
    let own_spi = |length: usize| {
        In::crafted(set, move |peer| {
            let bytes = [&peer.agreement.spi_to_hub.to_be_bytes()[..], &[0; 60]].concat();
            to_4500(peer, &bytes[..length]).ip()
        })
    };
    let mut rows = vec![
        // Neither ESP nor IKE: judged like any other packet, and nobody wants it.
        Row::drops("UDP longer than its packet", with_length(200, &[7; 60]), DropReason::NoMatch),
        Row::drops("UDP shorter than its header", with_length(7, &[7; 60]), DropReason::NoMatch),
        Row::drops("UDP length 0", with_length(0, &[7; 60]), DropReason::NoMatch),
        Row::drops("three bytes by length", with_length(11, &[7; 60]), DropReason::NoMatch),
        Row::drops("four bytes by length", with_length(12, &[7; 60]), DropReason::Malformed),
    ];
    for number in [1, 255, 256, 0x4242, u32::MAX] {
        rows.push(Row::drops(format!("SPI {number}"), spi(number), DropReason::UnknownSpi));
    }
    for length in 4..8 {
        rows.push(Row::drops("an SPI without a number", own_spi(length), DropReason::Malformed));
    }
    for length in [8, 16, 33] {
        let row = Row::drops("ESP too short for its SA", own_spi(length), DropReason::Malformed);
        rows.push(row.with(in_udp));
    }
    rows.into_iter().map(|row| row.with(in_udp)).collect()
}

/// Rows about other traffic on port 4500, which ESP shares.
fn others_on_the_port(set: SetIndex) -> Vec<Row> {
    let from_peer = |payload: &'static [u8]| In::crafted(set, |peer| to_4500(peer, payload).ip());
    let no_services: fn(&mut Hub) = |hub| hub.parts.ports[2].allow_host.clear();
    let stranger = In::crafted(set, |peer| {
        let from = match peer.agreement.hub.is_ipv4() {
            true => Address::v4(0x0908_0706),
            false => Address::v6(0x2001_0db8_00ab << 80 | 9),
        };
        PacketBuilder::new(from, peer.agreement.hub.into()).udp(9, 4500).payload(&[0xff]).ip()
    });
    let to_us: fn(&[u8]) -> In = |payload| {
        let packet = PacketBuilder::v4("198.51.100.7", "192.0.2.1").udp(61_234, 4500);
        In::Clear(WAN, packet.payload(payload).ip())
    };
    let ike = to_us(&[0, 0, 0, 0, 7, 7, 7, 7, 0xff]);
    let In::Clear(_, delivered) = ike.clone() else { unreachable!("in clear") };
    let keepalive = DropReason::Keepalive;
    let mut rows = vec![Row::delivers("IKE by the zero marker", ike.clone(), delivered)];
    for setting in [in_udp as fn(&mut Hub), |_| {}, no_services] {
        rows.push(Row::drops("a keepalive", from_peer(&[0xff]), keepalive).with(setting));
        rows.push(
            Row::drops("a keepalive of a stranger", stranger.clone(), keepalive).with(setting),
        );
        let two = from_peer(&[0xff, 0xff]);
        rows.push(Row::drops("two bytes", two, DropReason::NoMatch).with(setting));
        let other = from_peer(&[0xfe]);
        rows.push(Row::drops("another byte", other, DropReason::NoMatch).with(setting));
    }
    rows.push(Row::drops("IKE that is not wanted", ike, DropReason::NoMatch).with(no_services));
    rows
}

/// A keepalive that is padded on its link is one all the same.
#[test]
fn a_keepalive_in_a_padded_frame_is_swallowed() {
    let mut lab = Laboratory::default();
    let packet = PacketBuilder::v4("198.51.100.7", "192.0.2.1").udp(9, 4500).payload(&[0xff]).ip();
    let mut frame = lab.frame(WAN, &packet);
    frame.resize(60, 0);
    let netdev = lab.snapshot.port(WAN).netdev;
    let outcome = lab.send_frames(netdev, &[frame]);
    assert_eq!(outcome.verdicts, [Drop(DropReason::Keepalive)]);
}

/// From a protected port and to others it is UDP like any other.
#[test]
fn udp_4500_that_is_not_from_outside_to_us_is_left_alone() {
    for family in FAMILIES {
        let mut lab = Laboratory::default();
        let keepalive =
            |from, to| crate::between(family, from, to).udp(4500, 4500).payload(&[0xff]);
        let esp = |from, to| crate::between(family, from, to).udp(4500, 4500).payload(&[9; 60]);
        for packet in [keepalive(1, 12), esp(1, 12)] {
            let outcome = lab.send(LAN, &packet.ip());
            assert_eq!(outcome.sent[0].packet, forwarded(&packet.ip()));
        }
        for packet in [keepalive(1, 2), esp(1, 2)] {
            assert_eq!(lab.send(LAN, &packet.ip()).verdicts, [Protect(BERLIN)]);
        }
        // From outside, but to a host behind us.
        for packet in [keepalive(8, 1), esp(8, 1)] {
            assert_eq!(lab.send(WAN, &packet.ip()).verdicts, [Forward(LAN)]);
        }
        let to_us = PacketBuilder::new(packets::lab::host(family, 1), packets::lab::own(family, 1));
        let outcome = lab.send(LAN, &to_us.udp(4500, 4500).payload(&[0xff]).ip());
        assert_eq!(outcome.sent[0].port, HOST);
    }
}

/// The outer packet as it comes from another place.
fn from_elsewhere(outer: &[u8], from: Address, port: u16) -> Vec<u8> {
    let mut moved = outer.to_vec();
    let udp = match from.family {
        V4 => {
            moved[12..16].copy_from_slice(&(from.value as u32).to_be_bytes());
            sum_header(&mut moved);
            20
        }
        V6 => {
            moved[8..24].copy_from_slice(&from.value.to_be_bytes());
            40
        }
    };
    moved[udp..udp + 2].copy_from_slice(&port.to_be_bytes());
    assert_eq!(wire::packet::parse(&moved).unwrap().fragment, Fragment::Whole);
    moved
}

fn elsewhere(outer: Family) -> Address {
    match outer {
        V4 => Address::v4(0xcb00_7109),
        V6 => Address::v6(0x2001_0db8_00dd << 80 | 0x99),
    }
}

/// The report of a peer that has shown itself at a place.
fn shown(agreement: &Agreement, address: Address, port: u16) -> AddressUpdate {
    let spi = Spi::new(agreement.spi_to_hub).unwrap();
    AddressUpdate { set: agreement.set, spi, address, port }
}

/// A laboratory whose peers are behind NATs and may move, or may not.
fn behind_nats(may_move: bool) -> Laboratory {
    let mut hub = Hub::default();
    in_udp(&mut hub);
    hub.parts.sets.iter_mut().for_each(|set| set.may_move = may_move);
    hub.laboratory()
}

#[test]
fn a_peer_moves_by_its_newest_packet_and_by_no_other() {
    for (set, network, outer) in PEERS {
        let there = elsewhere(outer);
        let inner = datagram(V4, network, 1).ip();
        let mut lab = behind_nats(true);
        let mut sealed = |number: u64| lab.peer(set).seal_as(number, &inner);
        let [first, ten, twenty, thirty] = [1, 10, 20, 30].map(&mut sealed);
        let home: Address = lab.peer(set).agreement.address.into();
        let agreement = lab.peer(set).agreement;
        let moved = |address, port| vec![shown(&agreement, address, port)];

        assert_eq!(lab.send(WAN, &ten).verdicts, [Forward(LAN)]);
        assert_eq!(lab.moved(), [], "where it always was");
        // A replay of what was recorded, and what was held back.
        let replayed = lab.send(WAN, &from_elsewhere(&ten, there, 7));
        assert_eq!(replayed.verdicts, [Drop(DropReason::Replayed)]);
        let older = lab.send(WAN, &from_elsewhere(&first, there, 7));
        assert_eq!(older.verdicts, [Forward(LAN)], "it is in the window");
        assert_eq!(lab.moved(), [], "an older packet says nothing of where the peer is now");
        // Forged.
        let mut forged = from_elsewhere(&twenty, there, 7);
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(lab.send(WAN, &forged).verdicts, [Drop(DropReason::Integrity)]);
        assert_eq!(lab.moved(), []);
        // The address, the port, each is a move.
        assert_eq!(lab.send(WAN, &from_elsewhere(&twenty, there, 7)).verdicts, [Forward(LAN)]);
        assert_eq!(lab.moved(), moved(there, 7));
        assert_eq!(lab.moved(), [], "told once");
        assert_eq!(lab.send(WAN, &from_elsewhere(&thirty, home, 8)).verdicts, [Forward(LAN)]);
        assert_eq!(lab.moved(), moved(home, 8));
    }
}

#[test]
fn of_several_moves_in_a_batch_the_last_is_told() {
    let (set, network, outer) = PEERS[0];
    let mut lab = behind_nats(true);
    let inner = datagram(V4, network, 1).ip();
    let batch: Vec<Vec<u8>> = (1..=5)
        .map(|port| from_elsewhere(&lab.peer(set).seal(&inner), elsewhere(outer), port))
        .collect();
    assert_eq!(lab.send_all(WAN, &batch).verdicts, [Forward(LAN); 5]);
    let expected = shown(&lab.peer(set).agreement, elsewhere(outer), 5);
    assert_eq!(lab.moved(), [expected]);
}

#[test]
fn who_may_not_move_is_opened_from_anywhere_and_stays_where_it_is() {
    for (set, network, outer) in PEERS {
        let mut lab = behind_nats(false);
        let inner = datagram(V4, network, 1).ip();
        let packet = from_elsewhere(&lab.peer(set).seal(&inner), elsewhere(outer), 7);
        assert_eq!(lab.send(WAN, &packet).verdicts, [Forward(LAN)]);
        assert_eq!(lab.moved(), []);
    }
    // Nor one whose ESP is not in UDP: no NAT lets it through.
    let mut hub = Hub::default();
    hub.parts.sets.iter_mut().for_each(|set| set.may_move = true);
    let mut lab = hub.laboratory();
    let mut packet = lab.peer(BERLIN).seal(&datagram(V4, 2, 1).ip());
    packet[12..16].copy_from_slice(&[203, 0, 113, 9]);
    sum_header(&mut packet);
    assert_eq!(lab.send(WAN, &packet).verdicts, [Forward(LAN)]);
    assert_eq!(lab.moved(), []);
}

#[test]
fn two_workers_tell_of_a_move_as_one_does() {
    for (set, network, outer) in PEERS {
        let mut hub = Hub::default();
        in_udp(&mut hub);
        hub.parts.workers = 2;
        hub.parts.sets.iter_mut().for_each(|set| set.may_move = true);
        let mut lab = hub.laboratory();
        let inner = datagram(V4, network, 1).ip();
        let [first, second] = [1, 2].map(|number| lab.peer(set).seal_as(number, &inner));
        let there = elsewhere(outer);
        assert_eq!(lab.send(WAN, &from_elsewhere(&second, there, 7)).verdicts, [Forward(LAN)]);
        let expected = shown(&lab.peer(set).agreement, there, 7);
        assert_eq!(lab.moved(), [expected]);
        assert_eq!(lab.send(WAN, &from_elsewhere(&first, there, 9)).verdicts, [Forward(LAN)]);
        assert_eq!(lab.moved(), []);
    }
}

/// Over IPv6 the UDP checksum covers what the cipher wrote, wherever the packet lies in its frame.
#[test]
fn in_udp_by_a_tagged_port_and_after_waiting_for_the_neighbour() {
    for (set, network, _) in PEERS {
        let packet = datagram(V6, 1, network).ip();
        let mut hub = Hub::default();
        in_udp(&mut hub);
        hub.parts.ports[usize::from(WAN.0)].vlan = Some(77);
        let mut lab = hub.laboratory();
        let outcome = lab.send(LAN, &packet);
        assert_eq!(outcome.verdicts, [Protect(set)]);
        let opened = lab.peer(set).open(&outcome.sent[0].packet).expect("the peer opens it");
        assert_eq!(opened.inner, forwarded(&packet));

        let mut hub = Hub::default();
        in_udp(&mut hub);
        hub.parts.neighbours.retain(|neighbour| neighbour.port != WAN);
        let mut lab = hub.laboratory().live();
        let outcome = lab.send(LAN, &packet);
        assert_eq!(outcome.verdicts, [Hold(HoldKind::Neighbour)]);
        let mut known = Hub::default().keeping_sas_of(&lab.snapshot);
        known.agreements = [BERLIN, CARLA, DORA].map(|set| lab.peer(set).agreement);
        lab.publish(known);
        let left = lab.release();
        let opened = lab.peer(set).open(&left[0].packet).expect("the peer opens it");
        assert_eq!(opened.inner, forwarded(&packet));
    }
}

/// The packet as it is without the UDP header, to another address of ours.
fn alone_to(outer: &[u8], to: [u8; 4]) -> Vec<u8> {
    let mut alone = [&outer[..20], &outer[28..]].concat();
    let length = (alone.len() as u16).to_be_bytes();
    alone[2..4].copy_from_slice(&length);
    alone[9] = 50;
    alone[16..20].copy_from_slice(&to);
    sum_header(&mut alone);
    alone
}

/// One gateway moves an SA before the other does (RFC 4555 §3.5).
#[test]
fn an_sa_that_ike_moves_opens_what_comes_to_any_address_of_ours_in_either_form() {
    let (set, network, _) = PEERS[0];
    let inner = datagram(V4, network, 1).ip();
    let ours = |lab: &mut Laboratory| match lab.peer(set).agreement.hub {
        std::net::IpAddr::V4(hub) => hub.octets(),
        std::net::IpAddr::V6(hub) => panic!("{hub}"),
    };
    // Of the other port: an address of the gateway all the same.
    const OTHER: [u8; 4] = [10, 1, 0, 1];
    for moves in [false, true] {
        let mut hub = Hub::default();
        in_udp(&mut hub);
        hub.parts.sets.iter_mut().for_each(|set| set.moves_by_ike = moves);
        let mut lab = hub.laboratory();
        let here = ours(&mut lab);
        let expected = |reason| if moves { Forward(LAN) } else { Drop(reason) };
        let alone = alone_to(&lab.peer(set).seal(&inner), here);
        assert_eq!(lab.send(WAN, &alone).verdicts, [expected(DropReason::Encapsulation)]);
        let elsewhere = alone_to(&lab.peer(set).seal(&inner), OTHER);
        assert_eq!(lab.send(WAN, &elsewhere).verdicts, [expected(DropReason::UnknownSpi)]);
        // Nothing that is not authentic, and nothing twice.
        if moves {
            assert_eq!(lab.send(WAN, &elsewhere).verdicts, [Drop(DropReason::Replayed)]);
            let mut forged = alone_to(&lab.peer(set).seal(&inner), OTHER);
            *forged.last_mut().unwrap() ^= 1;
            assert_eq!(lab.send(WAN, &forged).verdicts, [Drop(DropReason::Integrity)]);
        }
    }
}
