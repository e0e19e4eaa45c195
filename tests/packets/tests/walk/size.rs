//! Path MTU, fragments before sealing, MSS clamp.

use dataplane::Verdict::{self, Consumed, Drop, Forward, Protect};
use dataplane::{DropReason, PortId, SetIndex};
use packets::lab::{BERLIN, CARLA, DORA, HOST, Hub, LAN, LAN2, LAN2_MTU, Laboratory, WAN, own};
use packets::table::{forwarded, opened, run};
use packets::{In, Out, Row};
use wire::Family::{self, V4};
use wire::build::{PacketBuilder, tcp_flags};
use wire::{Address, Fragment};

use crate::{FAMILIES, between};

/// Largest inner packet of a tunnel over a 1500-byte path: less outer IP, ESP header, IV and ICV,
/// down to a multiple of 4, less the trailer.
const IN_V4: usize = (1500 - 20 - 16 - 16) / 4 * 4 - 2;
const IN_V6: usize = (1500 - 40 - 16 - 16) / 4 * 4 - 2;

/// Way of a packet across the gateway.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    from: From,
    source: Ends,
    destination: u32,
    mtu: usize,
    out: Exit,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug)]
enum From {
    Port(PortId),
    Peer(SetIndex),
}

/// Origin of the packet: a network or the gateway itself.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Network(u32),
    Us,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Exit {
    Port(PortId),
    Peer(SetIndex),
}

const WAYS: [Way; 11] = [
    way("lan to berlin", From::Port(LAN), 1, 2, IN_V4, Exit::Peer(BERLIN)),
    way("lan2 to carla", From::Port(LAN2), 12, 3, IN_V4, Exit::Peer(CARLA)),
    way("lan to dora", From::Port(LAN), 1, 4, IN_V6, Exit::Peer(DORA)),
    way("lan to lan2", From::Port(LAN), 1, 12, LAN2_MTU as usize, Exit::Port(LAN2)),
    way("lan in clear", From::Port(LAN), 1, 8, 1500, Exit::Port(WAN)),
    way("in clear to lan2", From::Port(WAN), 8, 12, LAN2_MTU as usize, Exit::Port(LAN2)),
    way("berlin to lan2", From::Peer(BERLIN), 2, 12, LAN2_MTU as usize, Exit::Port(LAN2)),
    way("berlin to carla", From::Peer(BERLIN), 2, 3, IN_V4, Exit::Peer(CARLA)),
    way("berlin to dora", From::Peer(BERLIN), 2, 4, IN_V6, Exit::Peer(DORA)),
    way("dora to berlin", From::Peer(DORA), 4, 2, IN_V4, Exit::Peer(BERLIN)),
    Way {
        source: Ends::Us,
        ..way("Linux to dora", From::Port(HOST), 1, 4, IN_V6, Exit::Peer(DORA))
    },
];

const fn way(
    name: &'static str,
    from: From,
    source: u32,
    destination: u32,
    mtu: usize,
    out: Exit,
) -> Way {
    let verdict = match out {
        Exit::Port(port) => Forward(port),
        Exit::Peer(set) => Protect(set),
    };
    Way { name, from, source: Ends::Network(source), destination, mtu, out, verdict }
}

impl Way {
    fn source(&self, family: Family) -> Address {
        match self.source {
            Ends::Network(network) => packets::lab::host(family, network),
            Ends::Us => own(family, 1),
        }
    }

    /// A UDP packet of this many bytes on this way.
    fn packet(&self, family: Family, bytes: usize) -> PacketBuilder {
        let destination = packets::lab::host(family, self.destination);
        let header = if family == V4 { 28 } else { 48 };
        let packet = PacketBuilder::new(self.source(family), destination).udp(5, 6);
        packet.identification(0x1234).payload_of(bytes - header)
    }

    fn arrive(&self, packet: &[u8]) -> In {
        match self.from {
            From::Port(port) => In::Clear(port, packet.to_vec()),
            From::Peer(set) => In::Sealed(set, packet.to_vec()),
        }
    }

    fn leave(&self, packet: Vec<u8>) -> Out {
        match self.out {
            Exit::Port(port) => Out::Clear(port, packet),
            Exit::Peer(set) => Out::Sealed(set, packet),
        }
    }

    /// Returns the packet with the changes that a router on this way makes.
    fn passed(&self, packet: &[u8]) -> Vec<u8> {
        match self.source {
            Ends::Us => packet.to_vec(),
            Ends::Network(_) => forwarded(packet),
        }
    }

    /// Verdict of the ICMP message that goes back.
    fn answered(&self) -> Verdict {
        match self.from {
            From::Port(HOST) => Verdict::Host,
            From::Port(port) => Forward(port),
            From::Peer(set) => Protect(set),
        }
    }
}

#[test]
fn sizes() {
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for way in WAYS {
        for family in FAMILIES {
            let largest = way.packet(family, way.mtu).dont_fragment().ip();
            rows.push(Row::passes(
                format!("{}, {family:?}: the largest packet", way.name),
                way.arrive(&largest),
                way.leave(way.passed(&largest)),
            ));
        }
    }
    rows.extend(clamping());
    rows
}

/// XO-23: the number in the ICMP message is exactly the largest packet that then passes, sealed by
/// software or by a card.
#[test]
fn what_is_too_big_is_answered_by_the_largest_that_passes() {
    for laboratory in [Laboratory::default, crate::card::laboratory] {
        answered_by_the_largest(laboratory);
    }
}

fn answered_by_the_largest(laboratory: fn() -> Laboratory) {
    for way in WAYS {
        for family in FAMILIES {
            for excess in [1, 2, 3, 4, 77] {
                let mut lab = laboratory();
                let packet = way.packet(family, way.mtu + excess).dont_fragment().ip();
                let what = format!("{}, {family:?}, {excess} too many", way.name);
                let outcome = way.arrive(&packet).arrive(&mut lab);
                assert_eq!(outcome.verdicts, [Drop(DropReason::TooBig), way.answered()], "{what}");
                let left = opened(&mut lab, &outcome);
                let [Out::Clear(_, message) | Out::Sealed(_, message)] = &left[..] else {
                    panic!("{what}: one message goes back, not {left:?}")
                };
                let told = crate::icmp::check(message, family, way.source(family), &packet);
                let (kind, code) = if family == V4 { (3, 4) } else { (2, 0) };
                assert_eq!((told.kind, told.code), (kind, code), "{what}");
                assert_eq!(told.value as usize, way.mtu, "{what}");
                let then = way.packet(family, told.value as usize).dont_fragment().ip();
                let outcome = way.arrive(&then).arrive(&mut lab);
                assert_eq!(outcome.verdicts, [way.verdict], "{what}: what was told passes");
                assert!(outcome.sent[0].packet.len() <= 1500, "{what}");
            }
        }
    }
}

/// RFC 4303 §3.3.4: fragments are made before sealing, and each is sealed.
#[test]
fn without_df_the_fragments_leave_and_make_the_packet_again() {
    for way in WAYS {
        for (options, bytes) in [
            (0, way.mtu + 1),
            (0, way.mtu + 8),
            (0, 2 * way.mtu),
            (0, 3500),
            (12, way.mtu + 1),
            (40, 3500),
        ] {
            let mut lab = Laboratory::default();
            let options: Vec<u8> = (0..options).map(|_| 1).collect();
            let packet = way.packet(V4, bytes - options.len()).options(&options).ip();
            assert_eq!(packet.len(), bytes);
            let what = format!("{}, {bytes} bytes, {} of options", way.name, options.len());
            let outcome = way.arrive(&packet).arrive(&mut lab);
            let pieces = outcome.sent.len();
            assert_eq!(outcome.verdicts[0], Consumed, "{what}");
            assert_eq!(outcome.verdicts[1..], vec![way.verdict; pieces], "{what}");
            assert!(outcome.sent.iter().all(|sent| sent.packet.len() <= 1500), "{what}");
            let header = 20 + options.len();
            let room = (way.mtu - header) / 8 * 8;
            assert!(pieces <= (bytes - header).div_ceil(room), "{what}: {pieces} pieces");
            let left: Vec<Vec<u8>> = opened(&mut lab, &outcome)
                .into_iter()
                .map(|out| match out {
                    Out::Clear(_, bytes) | Out::Sealed(_, bytes) => bytes,
                })
                .collect();
            assert!(left.iter().all(|piece| piece.len() <= way.mtu), "{what}");
            assert_eq!(reassemble(&left), way.passed(&packet)[header..], "{what}");
            for piece in &left {
                let expected = packet[8] - u8::from(matches!(way.source, Ends::Network(_)));
                assert_eq!((piece[4], piece[5], piece[8]), (0x12, 0x34, expected), "{what}");
            }
            let ledger = lab.counters().total();
            assert_eq!((ledger.consumed, ledger.made), (1, pieces as u64), "{what}");
        }
    }
}

/// RFC 791 §3.2, plainly: the data of fragments in order.
fn reassemble(fragments: &[Vec<u8>]) -> Vec<u8> {
    let mut data = vec![];
    for (place, bytes) in fragments.iter().enumerate() {
        let packet = wire::packet::parse(bytes).expect("a fragment is a packet");
        let field = u16::from_be_bytes([bytes[6], bytes[7]]);
        assert_eq!(usize::from(field & 0x1fff) * 8, data.len(), "nothing missing, nothing twice");
        let more = field & 0x2000 != 0;
        assert_eq!(more, place + 1 < fragments.len());
        let expected = if place == 0 { Fragment::First } else { Fragment::Later };
        assert_eq!(packet.fragment, expected);
        data.extend(&bytes[packet.upper_offset.into()..]);
    }
    data
}

#[test]
fn a_fragment_too_big_is_cut_again() {
    let mut lab = Laboratory::default();
    let whole = between(V4, 1, 2).udp(5, 6).payload_of(3000).ip();
    let data = whole[20..].to_vec();
    // As the sender's own router would cut it, for a link of 2000 bytes.
    let later = |offset: usize, more: bool| {
        let end = (offset + 1968).min(data.len());
        let piece = &data[offset..end];
        let packet = between(V4, 1, 2).protocol(17).payload(piece);
        packet.fragment(offset as u16 / 8, more).ip()
    };
    let mut first = between(V4, 1, 2).udp(5, 6).payload_of(1960).fragment(0, true).ip();
    first[20..].copy_from_slice(&data[..1968]);
    let outcome = lab.send_all(LAN, &[first, later(1968, false)]);
    assert_eq!(outcome.verdicts[..2], [Consumed, Protect(BERLIN)]);
    let mut left: Vec<Vec<u8>> = opened(&mut lab, &outcome)
        .into_iter()
        .map(|out| match out {
            Out::Sealed(BERLIN, bytes) => bytes,
            other => panic!("{other:?} left"),
        })
        .collect();
    left.sort_by_key(|bytes| u16::from_be_bytes([bytes[6], bytes[7]]) & 0x1fff);
    assert_eq!(reassemble(&left), data);
}

#[test]
fn fragments_stand_in_the_place_of_their_packet_among_the_others() {
    let mut lab = Laboratory::default();
    let small = |port| between(V4, 1, 2).udp(port, 6).payload_of(10).ip();
    let large = between(V4, 1, 2).udp(7, 6).payload_of(2000).ip();
    let outcome = lab.send_all(LAN, &[small(1), large, small(2)]);
    let numbers: Vec<u32> = outcome
        .sent
        .iter()
        .map(|sent| lab.peer(BERLIN).open(&sent.packet).expect("opens").sequence_low)
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert_eq!(
        outcome.verdicts,
        [Protect(BERLIN), Consumed, Protect(BERLIN), Protect(BERLIN), Protect(BERLIN)]
    );
}

/// A TCP SYN on its way announces no segment larger than the tunnels on that way carry.
fn clamping() -> Vec<Row> {
    let mut rows = vec![];
    let announce = |family, from, to, flags, mss| {
        between(family, from, to).tcp_with(1000, 80, flags, Some(mss)).ip()
    };
    let (syn, ack) = (tcp_flags::SYN, tcp_flags::ACK);
    for family in FAMILIES {
        let headers = if family == V4 { 40 } else { 60 };
        let (v4, v6) = ((IN_V4 - headers) as u16, (IN_V6 - headers) as u16);
        let out = |to, set| (LAN, 1, to, Exit::Peer(set));
        let cases = [
            ("out to berlin", out(2, BERLIN), None, v4),
            ("out to dora", out(4, DORA), None, v6),
            ("in from berlin", (WAN, 2, 1, Exit::Port(LAN)), Some(BERLIN), v4),
            ("in from dora", (WAN, 4, 1, Exit::Port(LAN)), Some(DORA), v6),
            ("berlin to carla", (WAN, 2, 3, Exit::Peer(CARLA)), Some(BERLIN), v4),
            ("berlin to dora", (WAN, 2, 4, Exit::Peer(DORA)), Some(BERLIN), v6),
            ("dora to berlin", (WAN, 4, 2, Exit::Peer(BERLIN)), Some(DORA), v6),
            ("in clear", (LAN, 1, 8, Exit::Port(WAN)), None, u16::MAX),
            ("between protected ports", (LAN, 1, 12, Exit::Port(LAN2)), None, u16::MAX),
        ];
        for (what, (port, from, to, exit), peer, limit) in cases {
            let mut add = |what: String, packet: Vec<u8>, becomes: Vec<u8>, hub: fn(&mut Hub)| {
                let arrives = match peer {
                    Some(set) => In::Sealed(set, packet),
                    None => In::Clear(port, packet),
                };
                let leaves = match exit {
                    Exit::Port(port) => Out::Clear(port, forwarded(&becomes)),
                    Exit::Peer(set) => Out::Sealed(set, forwarded(&becomes)),
                };
                rows.push(Row::passes(what, arrives, leaves).with(hub));
            };
            for flags in [syn, syn | ack] {
                for mss in [limit - 1, limit, limit.saturating_add(1), 65_535] {
                    add(
                        format!("{family:?} {what}, MSS {mss}"),
                        announce(family, from, to, flags, mss),
                        announce(family, from, to, flags, mss.min(limit)),
                        |_| {},
                    );
                }
            }
            let plain = announce(family, from, to, ack, 65_535);
            add(format!("{family:?} {what}, no SYN"), plain.clone(), plain, |_| {});
            let silent = between(family, from, to).tcp_with(1, 2, syn, None).ip();
            add(format!("{family:?} {what}, no option"), silent.clone(), silent, |_| {});
            let as_is = announce(family, from, to, syn, 65_535);
            add(format!("{family:?} {what}, clamp off"), as_is.clone(), as_is, |hub| {
                hub.parts.sets.iter_mut().for_each(|set| set.mss_clamp = false);
            });
        }
    }
    rows
}

/// A segment as large as the clamped MSS allows fits the tunnel, one byte more does not.
#[test]
fn a_segment_of_the_clamped_size_passes() {
    for family in FAMILIES {
        for (set, network) in [(BERLIN, 2), (DORA, 4)] {
            let mut lab = Laboratory::default();
            let syn = between(family, 1, network).tcp_with(1, 2, tcp_flags::SYN, Some(9000)).ip();
            let outcome = lab.send(LAN, &syn);
            let inner = lab.peer(set).open(&outcome.sent[0].packet).expect("opens").inner;
            let mss =
                usize::from(u16::from_be_bytes([inner[inner.len() - 2], inner[inner.len() - 1]]));
            let segment = |bytes| {
                between(family, 1, network).tcp(1, 2).payload_of(bytes).dont_fragment().ip()
            };
            assert_eq!(lab.send(LAN, &segment(mss)).verdicts, [Protect(set)]);
            assert_eq!(lab.send(LAN, &segment(mss + 1)).verdicts[0], Drop(DropReason::TooBig));
        }
    }
}

#[test]
fn the_number_follows_the_mtu_of_the_unprotected_port() {
    for mtu in [576, 1279, 1280, 1281, 1282, 1283, 1284, 1492, 3000] {
        for (set, network, outer) in [(BERLIN, 2, 20), (DORA, 4, 40)] {
            let mut hub = Hub::default();
            hub.parts.ports[usize::from(WAN.0)].mtu = mtu;
            let mut lab = hub.laboratory();
            let largest = (mtu as usize - outer - 32) / 4 * 4 - 2;
            let packet = |bytes: usize| {
                between(V4, 1, network).udp(1, 2).payload_of(bytes - 28).dont_fragment().ip()
            };
            let outcome = lab.send(LAN, &packet(largest));
            assert_eq!(outcome.verdicts, [Protect(set)], "MTU {mtu}");
            let outer_bytes = outcome.sent[0].packet.len();
            assert!(outer_bytes <= mtu as usize && outer_bytes + 4 > mtu as usize, "MTU {mtu}");
            let outcome = lab.send(LAN, &packet(largest + 1));
            assert_eq!(outcome.verdicts, [Drop(DropReason::TooBig), Forward(LAN)], "MTU {mtu}");
            let message = &outcome.sent[0].packet;
            assert_eq!(usize::from(u16::from_be_bytes([message[26], message[27]])), largest);
        }
    }
}
