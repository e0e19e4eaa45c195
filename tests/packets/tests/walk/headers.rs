//! IP headers: what is dropped wherever it comes from, and what is forwarded byte for byte.

use dataplane::DropReason;
use packets::lab::{BERLIN, HOST, LAN, WAN, host};
use packets::table::{forwarded, run, sum_header};
use packets::{In, Out, Row};
use wire::Family::{self, V4, V6};
use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol::{DESTINATION, HOP_BY_HOP, NONE, ROUTING};

use crate::{FAMILIES, between, datagram};

#[test]
fn bad_headers_are_dropped_and_odd_ones_forwarded() {
    // FC-43, FC-45
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for family in FAMILIES {
        for (what, packet, reason) in bad(family, 1, 2) {
            rows.push(Row::drops(format!("{what}, from lan"), In::Clear(LAN, packet), reason));
        }
        for (what, packet, reason) in bad(family, 1, 2) {
            rows.push(Row::drops(format!("{what}, from Linux"), In::Clear(HOST, packet), reason));
        }
        for (what, packet, reason) in bad(family, 8, 1) {
            rows.push(Row::drops(format!("{what}, from wan"), In::Clear(WAN, packet), reason));
        }
        for (what, packet, reason) in bad(family, 2, 1) {
            rows.push(Row::drops(format!("{what}, inside"), In::Sealed(BERLIN, packet), reason));
        }
        rows.extend(both_ways(odd(family)));
    }
    rows.extend(ports_behind_options());
    rows.extend(other_versions());
    rows
}

type Bad = (String, Vec<u8>, DropReason);

/// Packets between two networks that nobody forwards, with the reason.
fn bad(family: Family, from: u32, to: u32) -> Vec<Bad> {
    let mut list = match family {
        V4 => bad_v4(from, to),
        V6 => bad_v6(from, to),
    };
    let good = datagram(family, from, to);
    let whole = good.ip();
    let source = |text: &str| {
        PacketBuilder::new(address(text), host(family, to)).udp(1, 2).payload_of(9).ip()
    };
    let target = |text: &str| {
        PacketBuilder::new(host(family, from), address(text)).udp(1, 2).payload_of(9).ip()
    };
    for text in martians(family) {
        list.push((format!("source {text}"), source(text), DropReason::BadAddress));
        list.push((format!("destination {text}"), target(text), DropReason::BadAddress));
    }
    let mut add =
        |what: &str, packet, reason| list.push((format!("{family:?} {what}"), packet, reason));
    add("hop limit 0", good.clone().hop_limit(0).ip(), DropReason::HopLimit);
    add("one byte too few", whole[..whole.len() - 1].to_vec(), DropReason::Malformed);
    // FC-45
    let ports_cut = between(family, from, to).protocol(17).payload(&[0, 7]).ip();
    add("two bytes of UDP", ports_cut, DropReason::Malformed);
    let tcp_cut = between(family, from, to).protocol(6).payload(&[0; 19]).ip();
    add("19 bytes of TCP", tcp_cut, DropReason::Malformed);
    let icmp = if family == V4 { 1 } else { 58 };
    let icmp_cut = between(family, from, to).protocol(icmp).payload(&[8; 7]).ip();
    add("7 bytes of ICMP", icmp_cut, DropReason::Malformed);
    let first_cut = between(family, from, to).protocol(6).fragment(0, true);
    add("a first fragment of nothing", first_cut.ip(), DropReason::Malformed);
    let uneven = between(family, from, to).udp(1, 2).payload_of(3).fragment(0, true).ip();
    add("a first fragment of 11 bytes", uneven, DropReason::Malformed);
    let beyond = between(family, from, to).payload_of(40).fragment(0x1fff, false).ip();
    add("a fragment beyond 65,535", beyond, DropReason::Malformed);
    list
}

fn address(text: &str) -> wire::Address {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

fn martians(family: Family) -> &'static [&'static str] {
    match family {
        V4 => &[
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.255",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
        ],
        V6 => &["::", "::1", "ff02::1", "ff0e::1", "::ffff:10.1.0.5"],
    }
}

/// `packet` with bytes changed and the header checksum made right again.
fn changed(packet: &[u8], change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut packet = packet.to_vec();
    change(&mut packet);
    sum_header(&mut packet);
    packet
}

fn bad_v4(from: u32, to: u32) -> Vec<Bad> {
    use DropReason::{Checksum, Malformed, SourceRoute};
    let good = datagram(V4, from, to);
    let bytes = good.ip();
    let length = bytes.len() as u16;
    let lying =
        |total: u16| changed(&bytes, |packet| packet[2..4].copy_from_slice(&total.to_be_bytes()));
    let options = |options: &[u8]| good.clone().options(options).ip();
    let wrong_sum = |bit: usize| {
        let mut packet = bytes.clone();
        packet[10 + bit / 8] ^= 1 << (bit % 8);
        packet
    };
    let mut list = vec![
        ("total length one more than there is", lying(length + 1), Malformed),
        ("total length 65,535", lying(65_535), Malformed),
        ("total length shorter than the header", lying(19), Malformed),
        ("total length 0", lying(0), Malformed),
        ("header of 16 bytes", changed(&bytes, |p| p[0] = 0x44), Malformed),
        ("header of 0 bytes", changed(&bytes, |p| p[0] = 0x40), Malformed),
        ("an option longer than the header", options(&[7, 9, 4, 0]), Malformed),
        ("an option of 1 byte", options(&[7, 1, 0, 0]), Malformed),
        ("an option of 0 bytes", options(&[7, 0, 0, 0]), Malformed),
        ("an option without its length", options(&[1, 1, 1, 7]), Malformed),
        ("loose source route", options(&[131, 7, 4, 10, 9, 0, 1]), SourceRoute),
        ("strict source route", options(&[137, 7, 4, 10, 9, 0, 1]), SourceRoute),
        ("a source route behind others", options(&[1, 7, 3, 4, 131, 3, 4]), SourceRoute),
    ];
    let short = [0x45u8; 19];
    list.push(("19 bytes", short.to_vec(), Malformed));
    list.push(("one byte", vec![0x45], Malformed));
    let mut named: Vec<Bad> =
        list.into_iter().map(|(what, packet, why)| (format!("IPv4 {what}"), packet, why)).collect();
    for bit in 0..16 {
        named.push((format!("IPv4 checksum bit {bit}"), wrong_sum(bit), Checksum));
    }
    named
}

fn bad_v6(from: u32, to: u32) -> Vec<Bad> {
    use DropReason::{FragmentPorts, Malformed, SourceRoute};
    let good = datagram(V6, from, to);
    let bytes = good.ip();
    let lying = |payload: u16| {
        let mut packet = bytes.clone();
        packet[4..6].copy_from_slice(&payload.to_be_bytes());
        packet
    };
    let with = |number, rest: &[u8]| good.clone().extension(number, rest);
    let mut long = with(DESTINATION, &[1, 4]).ip();
    long[41] = 200;
    let nine = (0..9).fold(good.clone(), |packet, _| packet.extension(DESTINATION, &[1, 4]));
    let late = with(DESTINATION, &[1, 4]).extension(HOP_BY_HOP, &[1, 4]);
    let elsewhere = between(V6, from, to).protocol(DESTINATION).fragment(3, false).payload_of(16);
    let list = vec![
        ("payload one byte more than there is", lying(42), Malformed),
        ("payload 65,535", lying(65_535), Malformed),
        ("payload 0: a jumbogram", lying(0), Malformed),
        ("an extension header beyond the packet", long, Malformed),
        ("nine extension headers", nine.ip(), Malformed),
        ("hop-by-hop options not in front", late.ip(), Malformed),
        ("a routing header in use", with(ROUTING, &[0, 1]).ip(), SourceRoute),
        ("a segment routing header in use", with(ROUTING, &[4, 3]).ip(), SourceRoute),
        // RFC 4301 §7: what it is can be read only in the first fragment.
        ("a later fragment of an extension header", elsewhere.ip(), FragmentPorts),
        ("39 bytes", bytes[..39].to_vec(), Malformed),
    ];
    list.into_iter().map(|(what, packet, why)| (format!("IPv6 {what}"), packet, why)).collect()
}

/// Makes a packet between two networks.
type Make = Box<dyn Fn(u32, u32) -> PacketBuilder>;

/// Packets that are odd and right. XO-24: options and extension headers are no reason to drop.
fn odd(family: Family) -> Vec<(String, Make)> {
    let mut list: Vec<(String, Make)> = vec![];
    let mut add = |what: &str, make: Make| list.push((format!("{family:?} {what}"), make));
    add("UDP without payload", Box::new(move |a, b| between(family, a, b).udp(1, 2)));
    add("nothing behind the header", Box::new(move |a, b| between(family, a, b).protocol(253)));
    add("no next header", Box::new(move |a, b| between(family, a, b).protocol(NONE)));
    add("ports 0", Box::new(move |a, b| between(family, a, b).udp(0, 0)));
    add("a wrong UDP checksum", Box::new(move |a, b| datagram(family, a, b).bad_upper_checksum()));
    let syn = move |a, b| between(family, a, b).tcp_with(1, 2, tcp_flags::SYN, Some(500));
    add("a wrong TCP checksum", Box::new(move |a, b| syn(a, b).bad_upper_checksum()));
    add(
        "a wrong ICMP checksum",
        Box::new(move |a, b| between(family, a, b).icmp(129, 0, [7; 4]).bad_upper_checksum()),
    );
    add("hop limit 255", Box::new(move |a, b| datagram(family, a, b).hop_limit(255)));
    add("hop limit 2", Box::new(move |a, b| datagram(family, a, b).hop_limit(2)));
    add(
        "a first fragment",
        Box::new(move |a, b| {
            between(family, a, b).udp(1, 2).payload_of(32).fragment(0, true).identification(9)
        }),
    );
    add(
        "a later fragment",
        Box::new(move |a, b| {
            between(family, a, b).protocol(17).payload_of(11).fragment(5, false).identification(9)
        }),
    );
    match family {
        V4 => odd_v4(&mut list),
        V6 => odd_v6(&mut list),
    }
    list
}

fn odd_v4(list: &mut Vec<(String, Make)>) {
    let options: [(&str, &[u8]); 6] = [
        ("a record route", &[7, 7, 4, 0, 0, 0, 0]),
        ("a timestamp", &[68, 8, 5, 0, 0, 0, 0, 0]),
        ("a router alert", &[148, 4, 0, 0]),
        ("a security option", &[130, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("an unknown option", &[99, 3, 1]),
        ("bytes behind the end of options", &[0, 131, 0, 7]),
    ];
    for (what, bytes) in options {
        let make = move |a, b| datagram(V4, a, b).options(bytes);
        list.push((format!("IPv4 with {what}"), Box::new(make)));
    }
    // FC-43: every header length.
    for words in 0..=10 {
        let make = move |a, b| datagram(V4, a, b).options(&vec![1; words * 4]);
        list.push((format!("IPv4 header of {} words", words + 5), Box::new(make)));
    }
}

fn odd_v6(list: &mut Vec<(String, Make)>) {
    let headers: [(&str, u8, &[u8]); 6] = [
        ("hop-by-hop options", HOP_BY_HOP, &[5, 2, 0, 0]),
        ("destination options", DESTINATION, &[1, 12]),
        ("long destination options", DESTINATION, &[1; 78]),
        ("a routing header that is used up", ROUTING, &[4, 0, 0, 0]),
        ("a mobility header", 135, &[0; 6]),
        ("a HIP header", 139, &[0; 38]),
    ];
    for (what, number, bytes) in headers {
        let make = move |a, b| datagram(V6, a, b).extension(number, bytes);
        list.push((format!("IPv6 with {what}"), Box::new(make)));
    }
    let chain = |a, b| {
        let first = datagram(V6, a, b).extension(HOP_BY_HOP, &[1, 4]);
        (0..7).fold(first, |packet, _| packet.extension(DESTINATION, &[1, 4]))
    };
    list.push(("IPv6 with eight extension headers".into(), Box::new(chain)));
    let flow_label = |a, b| datagram(V6, a, b).traffic_class(0xb8);
    list.push(("IPv6 traffic class".into(), Box::new(flow_label)));
}

/// Odd packets pass through the tunnel out, in, and in clear both ways, byte for byte.
fn both_ways(odd: Vec<(String, Make)>) -> Vec<Row> {
    let mut rows = vec![];
    for (what, make) in odd {
        let (out, back) = (make(1, 2).ip(), make(2, 1).ip());
        let (clear_out, clear_in) = (make(1, 8).ip(), make(8, 1).ip());
        let across = make(1, 12).ip();
        rows.push(Row::passes(
            format!("{what}, sealed"),
            In::Clear(LAN, out.clone()),
            Out::Sealed(BERLIN, forwarded(&out)),
        ));
        rows.push(Row::passes(
            format!("{what}, opened"),
            In::Sealed(BERLIN, back.clone()),
            Out::Clear(LAN, forwarded(&back)),
        ));
        let ways = [
            (LAN, WAN, clear_out, "bypassed out"),
            (WAN, LAN, clear_in, "bypassed in"),
            (LAN, packets::lab::LAN2, across, "between protected ports"),
        ];
        for (from, to, packet, way) in ways {
            let expected = Out::Clear(to, forwarded(&packet));
            rows.push(Row::passes(format!("{what}, {way}"), In::Clear(from, packet), expected));
        }
    }
    rows
}

/// FC-43: a policy with ports finds them behind options and extension headers.
fn ports_behind_options() -> Vec<Row> {
    let mut rows = vec![];
    let mut add = |what: String, make: &dyn Fn(u16) -> Vec<u8>| {
        let (web, other) = (make(443), make(80));
        let (sealed, clear) =
            (Out::Sealed(BERLIN, forwarded(&web)), Out::Clear(WAN, forwarded(&other)));
        rows.push(Row::passes(format!("port 443 behind {what}"), In::Clear(LAN, web), sealed));
        rows.push(Row::passes(format!("port 80 behind {what}"), In::Clear(LAN, other), clear));
    };
    for words in 0..=10 {
        let make = |port| between(V4, 1, 9).tcp(5, port).options(&vec![1; words * 4]).ip();
        add(format!("{words} words of options"), &make);
    }
    for headers in 0..=8 {
        let make = |port| {
            let packet = between(V6, 1, 9).tcp(5, port);
            (0..headers).fold(packet, |packet, _| packet.extension(DESTINATION, &[1, 4])).ip()
        };
        add(format!("{headers} extension headers"), &make);
    }
    rows
}

/// Neither IPv4 nor IPv6, whatever stood in front of it.
fn other_versions() -> Vec<Row> {
    let mut rows = vec![];
    for version in (0..16).filter(|version| ![4, 6].contains(version)) {
        let of = |from, to| {
            let mut packet = datagram(V4, from, to).ip();
            packet[0] = version << 4 | 5;
            packet
        };
        for (way, arrives) in [
            ("from lan", In::Clear(LAN, of(1, 2))),
            ("from wan", In::Clear(WAN, of(8, 1))),
            ("from Linux", In::Clear(HOST, of(1, 2))),
            ("inside", In::Sealed(BERLIN, of(2, 1))),
        ] {
            rows.push(Row::drops(
                format!("IP version {version}, {way}"),
                arrives,
                DropReason::NotIp,
            ));
        }
    }
    rows
}
