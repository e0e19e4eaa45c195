//! Packets cut short at every length, and with every byte changed: no panic, one verdict, the books
//! balance (the laboratory checks both after every batch), and nothing cut passes.

use dataplane::Verdict::{self, Drop};
use packets::Laboratory;
use packets::lab::{
    BERLIN, DORA, HOST_MAC, LAN, LAN_MAC, LAN2_VLAN, ROUTER_MAC, WAN, WAN_MAC, frame, own,
};
use packets::peer::text_of;
use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol::{DESTINATION, HOP_BY_HOP, ROUTING, UDP};
use wire::link::ethertype::ARP;

use crate::{FAMILIES, between, datagram};

/// A valid packet of every form, of lan's network towards berlin's or the other way.
fn forms(from: u32, to: u32) -> Vec<PacketBuilder> {
    let mut forms = vec![];
    for family in FAMILIES {
        let echo = if family == wire::Family::V4 { 8 } else { 128 };
        let error = if family == wire::Family::V4 { 3 } else { 1 };
        let quote = datagram(family, to, from).ip();
        forms.extend([
            datagram(family, from, to),
            between(family, from, to).udp(1, 2),
            between(family, from, to).tcp(1, 2).payload_of(9),
            between(family, from, to).tcp_with(1, 2, tcp_flags::SYN, Some(9000)),
            between(family, from, to).icmp(echo, 0, [1; 4]).payload_of(20),
            between(family, from, to).icmp(error, 1, [0; 4]).payload(&quote),
            between(family, from, to).protocol(253),
            between(family, from, to).protocol(132).payload_of(12),
            between(family, from, to).udp(1, 2).payload_of(24).fragment(0, true),
            between(family, from, to).protocol(UDP).payload_of(13).fragment(7, false),
            datagram(family, from, to).hop_limit(1),
        ]);
    }
    let v4 = datagram(wire::Family::V4, from, to);
    let v6 = datagram(wire::Family::V6, from, to);
    forms.extend([
        v4.clone().options(&[7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0]),
        v4.options(&[1; 40]),
        v6.clone().extension(HOP_BY_HOP, &[5, 2, 0, 0]).extension(DESTINATION, &[1, 20]),
        v6.extension(ROUTING, &[4, 0]).extension(DESTINATION, &[1, 4]).fragment(0, false),
    ]);
    forms
}

fn is_let_through(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Forward(_) | Verdict::Protect(_) | Verdict::Consumed)
}

#[test]
fn no_prefix_of_a_packet_in_clear_passes() {
    let mut lab = Laboratory::default();
    for form in forms(1, 2) {
        for vlan in [None, Some(LAN2_VLAN)] {
            let whole = form.frame(LAN_MAC, HOST_MAC, vlan);
            let prefixes: Vec<&[u8]> = (0..whole.len()).map(|length| &whole[..length]).collect();
            let outcome = lab.send_frames(lab.snapshot.port(LAN).netdev, &prefixes);
            assert_eq!(outcome.verdicts.len(), prefixes.len(), "nothing is made of a prefix");
            for (length, verdict) in outcome.verdicts.iter().enumerate() {
                assert!(matches!(verdict, Drop(_)), "{length} bytes of {form:?}: {verdict:?}");
            }
        }
    }
}

#[test]
fn no_prefix_of_a_sealed_packet_passes() {
    let mut lab = Laboratory::default();
    for set in [BERLIN, DORA] {
        let network = 2 + 2 * u32::from(set == DORA);
        for form in forms(network, 1) {
            let outer = lab.peer(set).seal(&form.ip());
            let whole = lab.frame(WAN, &outer);
            let prefixes: Vec<&[u8]> = (0..whole.len()).map(|length| &whole[..length]).collect();
            let outcome = lab.send_frames(lab.snapshot.port(WAN).netdev, &prefixes);
            for (length, verdict) in outcome.verdicts.iter().enumerate() {
                assert!(matches!(verdict, Drop(_)), "{length} bytes of {form:?}: {verdict:?}");
            }
            // The same with an outer header that admits to being short.
            let esp = lab.peer(set).esp(100_000, &text_of(&form.ip()));
            let cut: Vec<Vec<u8>> =
                (0..esp.len()).map(|length| lab.peer(set).outer(&esp[..length]).ip()).collect();
            let outcome = lab.send_all(WAN, &cut);
            assert!(outcome.verdicts.iter().all(|verdict| matches!(verdict, Drop(_))), "{form:?}");
        }
    }
}

#[test]
fn no_prefix_of_an_inner_packet_passes() {
    for form in forms(2, 1) {
        let mut lab = Laboratory::default();
        let inner = form.ip();
        let outers: Vec<Vec<u8>> =
            (0..inner.len()).map(|length| lab.peer(BERLIN).seal(&inner[..length])).collect();
        let outcome = lab.send_all(WAN, &outers);
        assert_eq!(outcome.verdicts.len(), inner.len(), "nothing is made of a prefix");
        for (length, verdict) in outcome.verdicts.iter().enumerate() {
            assert!(matches!(verdict, Drop(_)), "{length} bytes of {form:?}: {verdict:?}");
        }
    }
}

#[test]
fn arp_and_carved_out_packets_are_walked_at_every_length() {
    let mut lab = Laboratory::default();
    let ike = PacketBuilder::v4("198.51.100.7", "192.0.2.1").udp(4500, 4500).payload(&[0; 12]);
    let discovery = PacketBuilder::v6("fe80::fe", "ff02::1").icmp(134, 0, [0; 4]).payload_of(24);
    let to_us =
        PacketBuilder::new(packets::lab::host(wire::Family::V6, 1), own(wire::Family::V6, 1));
    let frames = [
        (WAN, frame([0xff; 6], ROUTER_MAC, None, ARP, &[0; 46])),
        (WAN, ike.frame(WAN_MAC, ROUTER_MAC, None)),
        (WAN, discovery.frame([0x33, 0x33, 0, 0, 0, 1], ROUTER_MAC, None)),
        (LAN, to_us.udp(1, 2).frame(LAN_MAC, HOST_MAC, None)),
    ];
    for (port, whole) in frames {
        let prefixes: Vec<&[u8]> = (0..=whole.len()).map(|length| &whole[..length]).collect();
        let outcome = lab.send_frames(lab.snapshot.port(port).netdev, &prefixes);
        assert!(!outcome.verdicts.iter().any(is_let_through));
        assert_eq!(outcome.verdicts.last(), Some(&Verdict::Host));
    }
}

/// Any byte of the headers changed to any of some values: whatever comes of it, it is told.
#[test]
fn packets_with_any_byte_changed_are_walked() {
    for (from, to) in [(1, 2), (2, 1)] {
        for form in forms(from, to) {
            let mut lab = Laboratory::default();
            lab.now_ns = 0;
            let whole = form.frame(LAN_MAC, HOST_MAC, None);
            let mut changed = vec![];
            for place in 0..whole.len().min(14 + 80) {
                for mask in [0x01, 0x0f, 0x10, 0x40, 0x80, 0xf0, 0xff] {
                    let mut bytes = whole.clone();
                    bytes[place] ^= mask;
                    changed.push(bytes);
                }
            }
            lab.send_frames(lab.snapshot.port(LAN).netdev, &changed);
            // As a peer would seal it: behind the cipher nothing else stands before the parser.
            let inner: Vec<Vec<u8>> =
                changed.iter().map(|bytes| lab.peer(BERLIN).seal(&bytes[14..])).collect();
            lab.send_all(WAN, &inner);
            let counted = lab.counters().total();
            assert_eq!(counted.received, 2 * changed.len() as u64);
        }
    }
}
