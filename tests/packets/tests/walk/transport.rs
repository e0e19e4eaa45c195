//! Transport mode: between the gateway itself and a peer, through the host port.

use dataplane::Verdict::{self, Consumed, Drop};
use dataplane::{DropReason, SetIndex};
use ipsec::{Mode, Suite, UdpPorts};
use packets::lab::{BERLIN, CARLA, DORA, HOST, Hub, LAN, Laboratory, WAN, numbered, policy};
use packets::peer::with_upper;
use packets::table::{run, sum_header};
use packets::{In, Out, Row};
use policy::Action;
use wire::Family::{self, V4, V6};
use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol::{DESTINATION, HOP_BY_HOP, IPV4, NONE, ROUTING, TCP};

use crate::datagram;
use crate::path_mtu::whole;

/// The gateway's outer address and a peer's.
const PEERS: [(SetIndex, Family, &str, &str); 2] =
    [(BERLIN, V4, "192.0.2.1", "198.51.100.7"), (DORA, V6, "2001:db8:ff::1", "2001:db8:dd::4")];

const PORTS: UdpPorts = UdpPorts { local: 4500, remote: 61_234 };

#[test]
fn transport_mode() {
    run(&rows());
}

/// Berlin and dora in transport mode, for what passes between them and the gateway itself.
fn transport(hub: &mut Hub) {
    for (set, _, ours, theirs) in PEERS {
        hub.agree(set, |agreement| agreement.mode = Mode::Transport);
        let action = Action::Protect(hub.agreements[set.0 as usize].set);
        hub.policies.push(policy("own", 300, action, &[ours], &[theirs]));
    }
    hub.policies = numbered(std::mem::take(&mut hub.policies));
}

fn in_udp(hub: &mut Hub) {
    transport(hub);
    for (set, ..) in PEERS {
        hub.agree(set, |agreement| agreement.udp = Some(PORTS));
    }
}

fn in_blocks(hub: &mut Hub) {
    in_udp(hub);
    for (set, ..) in PEERS {
        hub.agree(set, |agreement| agreement.suite = Suite::Aes128CbcSha384);
    }
}

/// Packets of many forms from one end to the other.
fn forms(from: &str, to: &str) -> Vec<(&'static str, Vec<u8>)> {
    let packet = || PacketBuilder::between(from, to).traffic_class(0xb9).hop_limit(7);
    let mut forms = vec![
        ("UDP", packet().udp(5, 6).payload_of(33)),
        ("an empty datagram", packet().udp(5, 6)),
        ("TCP", packet().tcp(5, 6).payload_of(600)),
        ("a SYN", packet().tcp_with(5, 6, tcp_flags::SYN, Some(1300))),
        ("a protocol without anything", packet().protocol(253)),
        ("IP in IP", packet().protocol(IPV4).payload(&datagram(V4, 1, 2).ip())),
    ];
    if from.contains(':') {
        forms.extend([
            ("an echo", packet().icmp(128, 0, [1; 4]).payload_of(8)),
            ("hop-by-hop options", packet().extension(HOP_BY_HOP, &[1, 4]).udp(5, 6)),
            ("destination options", packet().extension(DESTINATION, &[1, 20]).tcp(5, 6)),
            (
                "both",
                packet().extension(HOP_BY_HOP, &[1, 4]).extension(DESTINATION, &[1, 4]).udp(5, 6),
            ),
            ("a routing header that is used up", packet().extension(ROUTING, &[0, 0]).udp(5, 6)),
            ("an atomic fragment", packet().fragment(0, false).udp(5, 6)),
        ]);
    } else {
        forms.extend([
            ("an echo", packet().icmp(8, 0, [1; 4]).payload_of(8)),
            ("don't fragment", packet().dont_fragment().udp(5, 6).payload_of(9)),
            ("an identification", packet().identification(0x4242).udp(5, 6).payload_of(9)),
            ("options", packet().options(&[1, 1, 148, 4, 0, 0]).udp(5, 6).payload_of(9)),
            ("most options", packet().options(&[1; 40]).tcp(5, 6)),
        ]);
    }
    forms.into_iter().map(|(name, packet)| (name, packet.ip())).collect()
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for (set, family, ours, theirs) in PEERS {
        for setting in [transport as fn(&mut Hub), in_udp, in_blocks] {
            for (what, packet) in forms(ours, theirs) {
                let sealed = Out::Sealed(set, packet.clone());
                let row = Row::passes(format!("{what}, out"), In::Clear(HOST, packet), sealed);
                rows.push(row.with(setting));
            }
            for (what, packet) in forms(theirs, ours) {
                let received = In::Sealed(set, packet.clone());
                rows.push(
                    Row::delivers(format!("{what}, in"), received, packet.clone()).with(setting),
                );
                let sent = packet.clone();
                let first = In::crafted(set, move |peer| peer.seal_as(1, &sent));
                rows.push(
                    Row::drops(format!("{what}, again"), first.clone(), DropReason::Replayed)
                        .after(first)
                        .with(setting),
                );
                let clear = Row::drops(what, In::Clear(WAN, packet), DropReason::Unprotected);
                rows.push(clear.with(setting));
            }
        }
        rows.extend(not_carried(set, family, ours, theirs));
        rows.extend(odd_texts(set, family, ours, theirs));
    }
    rows
}

/// Rows about packets that a transport SA does not carry: they never leave in another way.
fn not_carried(set: SetIndex, family: Family, ours: &str, theirs: &str) -> Vec<Row> {
    let reason = DropReason::TransportMode;
    let network = if set == BERLIN { 2 } else { 4 };
    let udp = || PacketBuilder::between(ours, theirs).udp(5, 6);
    let host = |packet: PacketBuilder| In::Clear(HOST, packet.ip());
    let mut rows = vec![];
    for inner in [V4, V6] {
        let packet = datagram(inner, 1, network).ip();
        rows.push(Row::drops("of a network behind us", In::Clear(LAN, packet), reason));
    }
    for (what, packet) in [
        ("a first fragment", udp().payload_of(64).fragment(0, true)),
        ("a last fragment", udp().payload_of(64).fragment(8, false)),
        ("nothing above IP", PacketBuilder::between(ours, theirs).protocol(NONE)),
    ] {
        rows.push(Row::drops(what, host(packet), reason));
    }
    if family == V4 {
        // Its fragments would have to be made behind ESP (RFC 4303 §3.3.4), which is not done.
        let row = Row::new("too large, may be fragmented", host(udp().payload_of(1470)), Consumed);
        rows.push(row.makes(Drop(reason)).makes(Drop(reason)));
    }
    rows.into_iter().map(|row| row.with(transport)).collect()
}

/// Authentic texts that make no packet of what came.
fn odd_texts(set: SetIndex, family: Family, ours: &str, theirs: &str) -> Vec<Row> {
    let own = PacketBuilder::between(theirs, ours).protocol(253).ip();
    let carrying = |next_header: u8, upper: &[u8]| {
        let (own, mut text) = (own.clone(), upper.to_vec());
        assert!((text.len() + 2).is_multiple_of(4), "no padding is needed");
        text.extend([0, next_header]);
        In::crafted(set, move |peer| with_upper(&own, 50, &peer.esp(1, &text)))
    };
    let mut rows = vec![
        Row::drops("a dummy", carrying(NONE, &[9; 30]), DropReason::Dummy),
        Row::drops("TCP cut short", carrying(TCP, &[9; 18]), DropReason::Malformed),
        Row::drops("UDP cut short", carrying(17, &[9; 6]), DropReason::Malformed),
    ];
    if family == V6 {
        let used = [17, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 2, 0, 8, 0, 0, 0, 0];
        rows.push(Row::drops("a source route", carrying(ROUTING, &used), DropReason::SourceRoute));
        let options = [17, 0, 1, 4, 0, 0, 0, 0, 0, 1, 0, 2, 0, 8, 0, 0, 0, 0];
        // Behind the fixed header it is where it belongs: there is none in front of it.
        let packet = with_upper(&own, HOP_BY_HOP, &options);
        rows.push(Row::delivers("hop-by-hop options", carrying(HOP_BY_HOP, &options), packet));
    }
    rows.into_iter().map(|row| row.with(transport)).collect()
}

fn laboratory(change: fn(&mut Hub)) -> Laboratory {
    let mut hub = Hub::default();
    change(&mut hub);
    hub.laboratory()
}

#[test]
fn another_peer_may_not_speak_as_this_one() {
    let mut lab = laboratory(|hub| {
        transport(hub);
        hub.agree(CARLA, |agreement| agreement.mode = Mode::Transport);
    });
    // Carla's own SA, but berlin's address.
    let packet = PacketBuilder::between("198.51.100.7", "192.0.2.1").udp(5, 6).ip();
    let sealed = lab.peer(CARLA).seal(&packet);
    assert_eq!(lab.send(WAN, &sealed).verdicts, [Drop(DropReason::SelectorMismatch)]);
}

#[test]
fn the_largest_packet_of_linux_is_what_the_path_takes_sealed() {
    for (change, v4, v6) in [
        // 1500 less header, ESP, IV, ICV; whole blocks; less the trailer.
        (transport as fn(&mut Hub), 20 + 1448 - 2, 40 + 1428 - 2),
        (in_udp, 20 + 1440 - 2, 40 + 1420 - 2),
        (in_blocks, 20 + 1424 - 2, 40 + 1392 - 2),
    ] {
        let mut lab = laboratory(change);
        for ((set, family, ours, theirs), mtu) in PEERS.into_iter().zip([v4, v6]) {
            assert_eq!(lab.snapshot.set_sizes(set, lab.now_ns).whole, mtu);
            let headers = if family == V4 { 28 } else { 48 };
            let packet = PacketBuilder::between(ours, theirs).udp(5, 6).dont_fragment();
            let fits = packet.clone().payload_of(mtu as usize - headers).ip();
            let outcome = lab.send(HOST, &fits);
            assert_eq!(outcome.verdicts, [Verdict::Protect(set)]);
            assert!(outcome.sent[0].packet.len() <= 1500);
            assert_eq!(lab.peer(set).open(&outcome.sent[0].packet).unwrap().inner, fits);
            let larger = packet.payload_of(mtu as usize - headers + 1).ip();
            assert_eq!(lab.send(HOST, &larger).verdicts[0], Drop(DropReason::TooBig));
        }
    }
}

/// RFC 4303 §3.3.4: in transport mode, fragmentation comes behind ESP. The host need not send less
/// than 1280 bytes (RFC 8200 §5). A packet with extension headers stays whole.
#[test]
fn ipv6_of_1280_bytes_crosses_a_narrow_path_in_fragments_behind_esp() {
    for change in [transport as fn(&mut Hub), in_udp, in_blocks] {
        let mut lab = laboratory(change);
        let (set, _, ours, theirs) = PEERS[1];
        lab.snapshot.set(set).path_mtu.as_ref().unwrap().lower(1280, lab.now_ns);
        let fits = lab.snapshot.set_sizes(set, lab.now_ns).whole as usize;
        assert!(fits < 1280);
        let packet =
            |bytes: usize| PacketBuilder::between(ours, theirs).udp(5, 6).payload_of(bytes - 48);
        for bytes in [fits, fits + 1, 1280] {
            let packet = packet(bytes).ip();
            let outcome = lab.send(HOST, &packet);
            let sent: Vec<_> = outcome.sent.into_iter().map(|sent| sent.packet).collect();
            assert!(sent.iter().all(|sent| sent.len() <= 1280), "{bytes}");
            assert_eq!(outcome.verdicts, vec![Verdict::Protect(set); sent.len()], "{bytes}");
            assert_eq!(sent.len() > 1, bytes > fits, "{bytes}");
            let outer = if sent.len() > 1 { whole(&sent) } else { sent[0].clone() };
            assert_eq!(lab.peer(set).open(&outer).expect("opens").inner, packet, "{bytes}");
        }
        assert_eq!(lab.send(HOST, &packet(1281).ip()).verdicts[0], Drop(DropReason::TooBig));
        let extended = PacketBuilder::between(ours, theirs).extension(HOP_BY_HOP, &[1, 4]);
        let extended = extended.udp(5, 6).payload_of(1280 - 56).ip();
        assert_eq!(lab.send(HOST, &extended).verdicts[0], Drop(DropReason::TooBig));
    }
}

/// A packet by its source.
type Form<'f> = Box<dyn Fn(&str) -> PacketBuilder + 'f>;

/// RFC 3948 §3.1.2: the checksum was made with the address that the peer has behind its NAT.
#[test]
fn behind_a_nat_the_upper_layers_checksum_is_mended() {
    for (set, family, ours, theirs) in PEERS {
        let private = if family == V4 { "172.16.3.4" } else { "fd00::34" };
        let udp = |from: &str| PacketBuilder::between(from, ours).udp(5, 6);
        // The payload for which the sum with the address that is seen is 0, written as all ones.
        let bare = udp(theirs).payload(&[0, 0]).ip();
        let at = bare.len() - 4;
        let zero_sum = [bare[at], bare[at + 1]];
        assert_eq!(udp(theirs).payload(&zero_sum).ip()[at..at + 2], [0xff, 0xff]);
        let tcp = |from: &str| PacketBuilder::between(from, ours).tcp(5, 6);
        let extended = |packet: PacketBuilder| match family {
            V4 => packet.options(&[1; 8]),
            V6 => packet.extension(DESTINATION, &[1, 4]),
        };
        let forms: Vec<Form<'_>> = vec![
            Box::new(udp),
            Box::new(|from| udp(from).payload_of(301)),
            Box::new(|from| udp(from).payload(&zero_sum)),
            Box::new(|from| tcp(from).payload_of(77)),
            Box::new(|from| extended(tcp(from)).payload_of(2)),
            Box::new(|from| extended(udp(from)).payload_of(3)),
            Box::new(|from| PacketBuilder::between(from, ours).protocol(253).payload_of(20)),
        ];
        for change in [in_udp as fn(&mut Hub), in_blocks] {
            let mut lab = laboratory(change);
            for form in &forms {
                let outer = lab.peer(set).seal(&form(private).ip());
                let outcome = lab.send(WAN, &translated(&outer, theirs));
                assert_eq!(outcome.verdicts, [Verdict::Host]);
                assert_eq!(outcome.sent[0].packet, form(theirs).ip());
            }
        }
    }
}

/// Translates a packet as a NAT does: another source.
fn translated(outer: &[u8], source: &str) -> Vec<u8> {
    let mut outer = outer.to_vec();
    match source.parse().unwrap() {
        std::net::IpAddr::V4(source) => {
            outer[12..16].copy_from_slice(&source.octets());
            sum_header(&mut outer);
        }
        std::net::IpAddr::V6(source) => outer[8..24].copy_from_slice(&source.octets()),
    }
    outer
}

/// RFC 768: the sum is of the datagram, whose own length may leave bytes of the packet behind it
/// (where RFC 9868 has its options).
#[test]
fn behind_a_nat_the_checksum_of_a_datagram_covers_it_alone() {
    let mut lab = laboratory(in_udp);
    let (set, _, ours, theirs) = PEERS[0];
    let with_options = |from: &str| {
        let packet = PacketBuilder::between(from, ours).udp(5, 6).payload_of(9).ip();
        let mut packet = with_upper(&packet[..20], 17, &[&packet[20..], &[7; 6]].concat());
        // More than the packet has, or too few for a header: nothing is touched.
        let right = packet.clone();
        let of_length = move |length: u16| {
            packet[24..26].copy_from_slice(&length.to_be_bytes());
            packet.clone()
        };
        (right, of_length)
    };
    let ((private, mut lying), (expected, mut delivered)) =
        (with_options("172.16.3.4"), with_options(theirs));
    let outer = lab.peer(set).seal(&private);
    assert_eq!(lab.send(WAN, &translated(&outer, theirs)).sent[0].packet, expected);
    for length in [0, 7, 24, u16::MAX] {
        let outer = lab.peer(set).seal(&lying(length));
        let sum = &lying(length)[26..28].to_vec();
        let mut left_alone = delivered(length);
        left_alone[26..28].copy_from_slice(sum);
        assert_eq!(lab.send(WAN, &translated(&outer, theirs)).sent[0].packet, left_alone);
    }
}

#[test]
fn a_datagram_that_has_no_checksum_gets_none() {
    let mut lab = laboratory(in_udp);
    let (set, _, ours, theirs) = PEERS[0];
    let mut packet = PacketBuilder::between(theirs, ours).udp(5, 6).payload_of(9).ip();
    packet[26..28].fill(0);
    let sealed = lab.peer(set).seal(&packet);
    assert_eq!(lab.send(WAN, &sealed).sent[0].packet, packet);
}

/// Without a NAT in between a wrong checksum was wrong from the start, and Linux finds it out.
#[test]
fn without_udp_the_upper_layers_checksum_is_left_alone() {
    let mut lab = laboratory(transport);
    for (set, _, ours, theirs) in PEERS {
        for packet in [
            PacketBuilder::between(theirs, ours).udp(5, 6).bad_upper_checksum().ip(),
            PacketBuilder::between(theirs, ours).tcp(5, 6).bad_upper_checksum().ip(),
        ] {
            let sealed = lab.peer(set).seal(&packet);
            assert_eq!(lab.send(WAN, &sealed).sent[0].packet, packet);
        }
    }
}
