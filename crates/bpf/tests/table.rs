//! Tests the steering program's answers, one line a case.

mod common;

use std::os::fd::AsFd;

use bpf::{Action, BpfError, Counter, LinkForm, PortRule, Side, Steering};
use common::*;
use wire::build::PacketBuilder;
use wire::{Mark, MarkVlan};

/// The port that a case's frame comes by.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    Lan,
    Dmz,
    Wan,
}

impl By {
    fn vlan(self) -> Option<u16> {
        match self {
            By::Lan => None,
            By::Dmz => Some(DMZ_VLAN),
            By::Wan => Some(WAN_VLAN),
        }
    }

    fn mac(self) -> [u8; 6] {
        match self {
            By::Lan => LAN_MAC,
            By::Dmz => DMZ_MAC,
            By::Wan => WAN_MAC,
        }
    }
}

const BROADCAST: [u8; 6] = [0xff; 6];
const MULTICAST_V4: [u8; 6] = [1, 0, 0x5e, 0, 0, 0x12];
const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// Description, frame, how it ends, the tag that the mark tells of.
type Case = (&'static str, Vec<u8>, Counter, MarkVlan);

fn to_us(by: By, what: &'static str, packet: PacketBuilder, ends: Counter) -> Case {
    to(by, by.mac(), what, packet, ends)
}

fn to(by: By, mac: [u8; 6], what: &'static str, packet: PacketBuilder, ends: Counter) -> Case {
    let vlan = by.vlan().map_or(MarkVlan::Untagged, MarkVlan::Id);
    (what, packet.frame(mac, OTHER_MAC, by.vlan()), ends, vlan)
}

/// A frame with any EtherType, padded.
fn raw(by: By, mac: [u8; 6], ethertype: u16, what: &'static str, ends: Counter) -> Case {
    let mut frame = [mac, OTHER_MAC].concat();
    if let Some(vlan) = by.vlan() {
        frame.extend([0x81, 0]);
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.resize(60, 0);
    (what, frame, ends, by.vlan().map_or(MarkVlan::Untagged, MarkVlan::Id))
}

/// Changes bytes of the IP packet in a case's frame, and perhaps mends the IPv4 checksum.
fn changed((what, mut frame, ends, vlan): Case, at: usize, bytes: &[u8], mend: Mend) -> Case {
    let ip = if matches!(vlan, MarkVlan::Untagged) { 14 } else { 18 };
    frame[ip + at..ip + at + bytes.len()].copy_from_slice(bytes);
    if mend == Mend::Checksum {
        let length = usize::from(frame[ip] & 15) * 4;
        frame[ip + 10..ip + 12].fill(0);
        let sum = wire::checksum::finish(wire::checksum::sum(&frame[ip..ip + length]));
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    }
    (what, frame, ends, vlan)
}

#[derive(Clone, Copy, PartialEq)]
enum Mend {
    Checksum,
    Nothing,
}

fn cut((what, mut frame, ends, vlan): Case, length: usize) -> Case {
    frame.truncate(length);
    (what, frame, ends, vlan)
}

fn v4(source: &str, destination: &str) -> PacketBuilder {
    PacketBuilder::v4(source, destination).payload_of(20)
}

fn v6(source: &str, destination: &str) -> PacketBuilder {
    PacketBuilder::v6(source, destination).payload_of(20)
}

/// The mark of a frame that goes to a socket: it claims nothing.
fn mark_of(vlan: MarkVlan) -> Mark {
    let (incarnation, generation, zone, verdict, domain) = (INCARNATION, 0, 0, 0, 0);
    Mark { netdev: NETDEV, vlan, incarnation, generation, zone, verdict, domain }
}

/// Runs the cases and reports all that end otherwise.
fn check(steering: &Steering, cases: Vec<Case>) {
    let mut wrong = Vec::new();
    for (what, frame, ends, vlan) in cases {
        let before = steering.counters().unwrap();
        let run = steering.run(&frame).unwrap_or_else(|error| panic!("{what}: {error}"));
        let after = steering.counters().unwrap();
        let moved: Vec<_> =
            Counter::ALL.into_iter().filter(|c| after.of(*c) != before.of(*c)).collect();
        let (action, mark) = match ends {
            Counter::ToWorker => (Action::Redirect, Some(mark_of(vlan))),
            Counter::NoSocket => (Action::Drop, Some(mark_of(vlan))),
            Counter::MarkFailed => (Action::Drop, None),
            _ => (Action::Pass, None),
        };
        if moved != [ends] || after.received() != before.received() + 1 {
            wrong.push(format!("{what}: counted as {moved:?}, not {ends:?}"));
        }
        if (run.action, run.mark) != (action, mark.map(|mark| mark.bytes())) {
            wrong.push(format!("{what}: {run:?}, not {action:?} {mark:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// AX-27
#[test]
fn protected_ports_leave_to_linux_what_is_for_the_box_or_not_for_us() {
    let Some((steering, _socket)) = steering("protected ports") else { return };
    check(&steering, [from_inside(), odd_from_inside(), frames_from_inside()].concat());
}

/// By protected ports: what is forwarded, and what is for us.
fn from_inside() -> Vec<Case> {
    use By::{Dmz, Lan};
    use Counter::*;
    let host = |what, packet| to_us(Lan, what, packet, PassedToHost);
    let worker = |what, packet| to_us(Lan, what, packet, ToWorker);
    vec![
        worker("forwarded UDP", v4("10.1.0.5", "10.2.0.1").udp(1, 2)),
        worker("forwarded v6", v6("2001:db8:1::5", "2001:db8:2::1").tcp(1, 2)),
        to_us(Dmz, "forwarded, tagged", v4("10.9.0.5", "10.2.0.1").udp(1, 2), ToWorker),
        to_us(Dmz, "to us, tagged", v4("10.9.0.5", "10.9.0.1").udp(1, 2), PassedToHost),
        to_us(Dmz, "no overlay here", v4("10.9.0.5", "10.9.0.1").udp(1, OVERLAY), PassedToHost),
        host("to us", v4("10.1.0.5", "10.1.0.1").tcp(1, 22)),
        host("to us, another port's address", v4("10.1.0.5", "10.9.0.1").tcp(1, 22)),
        host("to us, the outer address", v4("10.1.0.5", "192.0.2.1").udp(1, 4500)),
        host("to us, v6", v6("2001:db8:1::5", "2001:db8:1::1").tcp(1, 22)),
        host("to us, link-local", v6("fe80::5", "fe80::1").icmp(135, 0, [0; 4])),
        host("to us, ESP", v4("10.1.0.5", "10.1.0.1").protocol(ESP)),
        host(
            "to us, first fragment",
            v4("10.1.0.5", "10.1.0.1").udp(1, 2).payload_of(24).fragment(0, true),
        ),
        host("to us, later fragment", v4("10.1.0.5", "10.1.0.1").udp(1, 2).fragment(4, false)),
        host(
            "to us, v6 fragment",
            v6("2001:db8:1::5", "2001:db8:1::1").udp(1, 2).fragment(4, false),
        ),
        host(
            "to us, extension headers",
            v6("2001:db8:1::5", "2001:db8:1::1").udp(1, 2).extension(0, &[]).extension(60, &[1, 4]),
        ),
    ]
}

/// By a protected port: to us, and nothing for Linux all the same.
fn odd_from_inside() -> Vec<Case> {
    let worker = |what, packet| to_us(By::Lan, what, packet, Counter::ToWorker);
    vec![
        worker("from our own address", v4("10.1.0.1", "10.9.0.1").udp(1, 2)),
        worker("to us, with options", v4("10.1.0.5", "10.1.0.1").udp(1, 2).options(&[1])),
        worker(
            "to us, two Fragment headers",
            v6("2001:db8:1::5", "2001:db8:1::1")
                .udp(1, 2)
                .payload_of(8)
                .extension(44, &[0, 0, 0, 0, 0, 1])
                .fragment(0, true),
        ),
        worker("to a mapped address", v6("2001:db8:1::5", "::ffff:10.1.0.1").udp(1, 2)),
        worker("from a mapped address", v6("::ffff:10.1.0.5", "2001:db8:1::1").udp(1, 2)),
        worker("from loopback", v4("127.0.0.1", "10.1.0.1").udp(1, 2)),
        worker("from a group", v4("224.0.0.1", "10.1.0.1").udp(1, 2)),
        worker("from nobody, v6", v6("::", "2001:db8:1::1").udp(1, 2)),
        worker("multicast to our station", v6("fe80::5", "ff02::1").icmp(135, 0, [0; 4])),
        worker("TTL 0", v4("10.1.0.5", "10.1.0.1").udp(1, 2).hop_limit(0)),
        worker("hop limit 0", v6("2001:db8:1::5", "2001:db8:1::1").udp(1, 2).hop_limit(0)),
        worker(
            "misplaced hop-by-hop options",
            v6("2001:db8:1::5", "2001:db8:1::1").udp(1, 2).extension(60, &[]).extension(0, &[]),
        ),
        worker(
            "source route",
            v6("2001:db8:1::5", "2001:db8:1::1").udp(1, 2).extension(43, &[0, 1]),
        ),
        worker(
            "ICMP cut short",
            PacketBuilder::v4("10.1.0.5", "10.1.0.1").protocol(ICMP).payload_of(7),
        ),
        worker(
            "TCP cut short",
            PacketBuilder::v4("10.1.0.5", "10.1.0.1").protocol(TCP).payload_of(19),
        ),
    ]
}

/// By a protected port: to other link addresses, and of other protocols.
fn frames_from_inside() -> Vec<Case> {
    use By::Lan;
    use Counter::*;
    vec![
        to(Lan, OTHER_MAC, "another station", v4("10.1.0.5", "10.2.0.1").udp(1, 2), PassedNotToUs),
        to(
            Lan,
            BROADCAST,
            "broadcast",
            v4("10.1.0.5", "255.255.255.255").udp(68, 67),
            PassedNotToUs,
        ),
        to(
            Lan,
            MULTICAST_V4,
            "multicast",
            v4("10.1.0.5", "224.0.0.18").protocol(112),
            PassedNotToUs,
        ),
        to(
            Lan,
            ALL_NODES,
            "multicast v6",
            v6("fe80::5", "ff02::1").icmp(134, 0, [0; 4]),
            PassedNotToUs,
        ),
        raw(Lan, LAN_MAC, 0x0806, "ARP to us", PassedArpNd),
        raw(Lan, BROADCAST, 0x0806, "ARP to all", PassedArpNd),
        raw(Lan, LAN_MAC, 0x88cc, "LLDP to us", PassedNotIp),
        raw(Lan, LAN_MAC, 0x0800, "IPv4 that is none", ToWorker),
        raw(Lan, LAN_MAC, 0x86dd, "IPv6 that is none", ToWorker),
    ]
}

#[test]
fn unprotected_ports_leave_to_linux_only_what_is_carved_out() {
    let Some((steering, _socket)) = steering("unprotected ports") else { return };
    check(&steering, [listed_or_not(), in_udp_or_in_fragments(), of_neighbours()].concat());
}

fn ike(source: &str, destination: &str) -> PacketBuilder {
    v4(source, destination).udp(500, 500)
}

fn allowed(what: &'static str, packet: PacketBuilder) -> Case {
    to_us(By::Wan, what, packet, Counter::PassedAllowHost)
}

fn by_worker(what: &'static str, packet: PacketBuilder) -> Case {
    to_us(By::Wan, what, packet, Counter::ToWorker)
}

/// By the unprotected port: packets of protocols and ports that are listed, and of others.
fn listed_or_not() -> Vec<Case> {
    let (pass, worker) = (allowed, by_worker);
    vec![
        worker("ESP to us", v4("198.51.100.7", "192.0.2.1").protocol(ESP)),
        worker("ESP v6 to us", v6("2001:db8:fd::9", "2001:db8:ff::1").protocol(ESP)),
        worker("clear, forwarded", v4("198.51.100.7", "10.1.0.5").tcp(1, 80)),
        worker("clear, to an address inside", ike("198.51.100.7", "10.1.0.1")),
        worker("clear, not listed", v4("198.51.100.7", "192.0.2.1").tcp(1, 22)),
        pass("IKE", ike("198.51.100.7", "192.0.2.1")),
        pass("IKE v6", v6("2001:db8:fd::9", "2001:db8:ff::1").udp(500, 500)),
        pass("IKE to link-local", v6("fe80::9", "fe80::2").udp(500, 500)),
        pass("IKE to any link-local of ours", v6("fe80::9", "fe80::1").udp(500, 500)),
        pass("IKE to v4 link-local", ike("198.51.100.7", "169.254.3.4")),
        pass("first port of a range", v4("198.51.100.7", "192.0.2.1").tcp(1, 8000)),
        pass("last port of a range", v4("198.51.100.7", "192.0.2.1").tcp(1, 8010)),
        worker("before a range", v4("198.51.100.7", "192.0.2.1").tcp(1, 7999)),
        worker("behind a range", v4("198.51.100.7", "192.0.2.1").tcp(1, 8011)),
        worker("a listed port as source", v4("198.51.100.7", "192.0.2.1").udp(500, 1)),
        pass("whole protocol", v4("198.51.100.7", "192.0.2.1").icmp(8, 0, [0; 4])),
        worker(
            "fragmentation needed",
            v4("198.51.100.7", "192.0.2.1").icmp(3, 4, [0; 4]).payload_of(28),
        ),
        pass(
            "unreachable for another reason",
            v4("198.51.100.7", "192.0.2.1").icmp(3, 3, [0; 4]).payload_of(28),
        ),
        pass(
            "fragmentation needed, in fragments",
            v4("198.51.100.7", "192.0.2.1").icmp(3, 4, [0; 4]).payload_of(56).fragment(0, true),
        ),
        worker("ICMPv6 is not ICMP", v6("2001:db8:fd::9", "2001:db8:ff::1").icmp(128, 0, [0; 4])),
    ]
}

/// By the unprotected port: by the marker of ESP in UDP, and in fragments.
fn in_udp_or_in_fragments() -> Vec<Case> {
    let (pass, worker) = (allowed, by_worker);
    let natt = |payload: &[u8]| {
        PacketBuilder::v4("198.51.100.7", "192.0.2.1").udp(4500, 4500).payload(payload)
    };
    vec![
        pass("IKE behind the zero marker", natt(&[0, 0, 0, 0, 9, 9])),
        pass("the zero marker alone", natt(&[0; 4])),
        worker("ESP in UDP", natt(&[0, 0, 1, 0, 0, 0, 0, 1])),
        worker("keepalive", natt(&[0xff])),
        worker("not a keepalive", natt(&[0xfe])),
        worker("two bytes", natt(&[0xff, 0xff])),
        worker("half a marker", natt(&[0, 0, 0])),
        worker("no data on 4500", natt(&[])),
        pass("later UDP fragment", v4("198.51.100.7", "192.0.2.1").udp(1, 2).fragment(4, false)),
        worker(
            "later fragment, not listed",
            v4("198.51.100.7", "192.0.2.1").protocol(47).fragment(4, false),
        ),
        pass(
            "first fragment of IKE",
            ike("198.51.100.7", "192.0.2.1").payload_of(24).fragment(0, true),
        ),
        worker(
            "first fragment, not listed",
            v4("198.51.100.7", "192.0.2.1").udp(1, 2).payload_of(24).fragment(0, true),
        ),
    ]
}

/// By the unprotected port: from addresses inside, and of neighbour discovery.
fn of_neighbours() -> Vec<Case> {
    let (pass, worker) = (allowed, by_worker);
    let found = |what, packet| to_us(By::Wan, what, packet, Counter::PassedArpNd);
    vec![
        worker("IKE from inside", ike("10.1.0.5", "192.0.2.1")),
        pass("IKE from a hole in what is inside", ike("10.2.0.5", "192.0.2.1")),
        worker("IKE from inside the hole", ike("10.2.129.5", "192.0.2.1")),
        pass("IKE from one host inside the hole", ike("10.2.200.1", "192.0.2.1")),
        worker("IKE v6 from inside", v6("2001:db8:1::5", "2001:db8:ff::1").udp(500, 500)),
        worker("IKE from our own address", ike("192.0.2.1", "192.0.2.1")),
        worker("IKE from our address inside", ike("10.1.0.1", "192.0.2.1")),
        found(
            "solicitation",
            v6("2001:db8:ff::9", "2001:db8:ff::1").icmp(135, 0, [0; 4]).hop_limit(255),
        ),
        worker(
            "solicitation from far",
            v6("2001:db8:ff::9", "2001:db8:ff::1").icmp(135, 0, [0; 4]).hop_limit(254),
        ),
        worker(
            "solicitation for one inside",
            v6("2001:db8:ff::9", "2001:db8:1::1").icmp(135, 0, [0; 4]).hop_limit(255),
        ),
        worker(
            "solicitation in fragments",
            v6("2001:db8:ff::9", "2001:db8:ff::1")
                .icmp(135, 0, [0; 4])
                .payload_of(24)
                .hop_limit(255)
                .fragment(0, true),
        ),
        worker(
            "multicast listener report",
            v6("fe80::9", "fe80::2").icmp(143, 0, [0; 4]).hop_limit(255),
        ),
    ]
}

#[test]
fn of_groups_on_unprotected_ports_only_what_is_listed_passes() {
    let Some((steering, _socket)) = steering("groups") else { return };
    check(&steering, [to_groups_v4(), to_groups_and_discovery()].concat());
}

fn to_group(mac: [u8; 6], what: &'static str, packet: PacketBuilder, ends: Counter) -> Case {
    to(By::Wan, mac, what, packet, ends)
}

/// By the unprotected port, over IPv4: broadcast, multicast, and frames that are not IP.
fn to_groups_v4() -> Vec<Case> {
    use Counter::*;
    let group = to_group;
    let ike = |destination| ike("198.51.100.7", destination);
    vec![
        group(OTHER_MAC, "another station", v4("10.1.0.5", "10.1.0.1").udp(1, 2), PassedNotToUs),
        raw(By::Wan, BROADCAST, 0x0806, "ARP to all", PassedArpNd),
        raw(By::Wan, WAN_MAC, 0x0806, "ARP to us", PassedArpNd),
        raw(By::Wan, WAN_MAC, 0x88cc, "LLDP to us", ToWorker),
        raw(By::Wan, BROADCAST, 0x88cc, "LLDP to a group", ToWorker),
        group(BROADCAST, "listed broadcast", ike("255.255.255.255"), PassedAllowHost),
        group(MULTICAST_V4, "listed multicast", ike("224.0.0.18"), PassedAllowHost),
        group(
            MULTICAST_V4,
            "listed, with options",
            ike("224.0.0.18").options(&[0x94, 4, 0, 0]),
            PassedAllowHost,
        ),
        group(BROADCAST, "DHCP", v4("0.0.0.0", "255.255.255.255").udp(67, 68), ToWorker),
        group(BROADCAST, "to our address, listed", ike("192.0.2.1"), PassedAllowHost),
        group(BROADCAST, "to our address inside, listed", ike("10.1.0.1"), ToWorker),
        group(
            BROADCAST,
            "to our address from an address inside",
            v4("10.1.0.5", "192.0.2.1").udp(500, 500),
            ToWorker,
        ),
        group(
            BROADCAST,
            "to all from an address of ours",
            v4("192.0.2.1", "255.255.255.255").udp(500, 500),
            ToWorker,
        ),
    ]
}

/// By the unprotected port: groups of IPv6, and what has no address.
fn to_groups_and_discovery() -> Vec<Case> {
    use Counter::*;
    let group = to_group;
    vec![
        group(
            ALL_NODES,
            "advertisement from an address inside",
            v6("2001:db8:1::5", "ff02::1").icmp(136, 0, [0; 4]).hop_limit(255),
            ToWorker,
        ),
        group(
            BROADCAST,
            "listed, from no address",
            v4("0.0.0.0", "255.255.255.255").udp(500, 500),
            PassedAllowHost,
        ),
        group(MULTICAST_V4, "ESP", v4("198.51.100.7", "224.0.0.1").protocol(ESP), ToWorker),
        group(
            ALL_NODES,
            "advertisement",
            v6("fe80::9", "ff02::1").icmp(134, 0, [0; 4]).hop_limit(255),
            PassedArpNd,
        ),
        group(
            ALL_NODES,
            "is the address free?",
            v6("::", "ff02::1").icmp(135, 0, [0; 4]).hop_limit(255),
            PassedArpNd,
        ),
        group(
            ALL_NODES,
            "advertisement from far",
            v6("fe80::9", "ff02::1").icmp(134, 0, [0; 4]),
            ToWorker,
        ),
        group(ALL_NODES, "ping to all", v6("fe80::9", "ff02::1").icmp(128, 0, [0; 4]), ToWorker),
    ]
}

#[test]
fn what_cannot_be_read_goes_to_the_worker() {
    use Counter::ToWorker;
    let Some((steering, _socket)) = steering("unreadable frames") else { return };
    let lan = || to_us(By::Lan, "", v4("10.1.0.5", "10.1.0.1").udp(1, 2), ToWorker);
    let wan = || to_us(By::Wan, "", v4("198.51.100.7", "192.0.2.1").udp(500, 500), ToWorker);
    let six = || to_us(By::Lan, "", v6("2001:db8:1::5", "2001:db8:1::1").udp(1, 2), ToWorker);
    let named = |what, (_, frame, ends, vlan): Case| (what, frame, ends, vlan);
    let tagged = |tag: [u8; 4], vlan| {
        let mut frame = v4("10.1.0.5", "10.1.0.1").udp(1, 2).frame(LAN_MAC, OTHER_MAC, None);
        frame.splice(12..12, tag);
        ("", frame, ToWorker, vlan)
    };
    let other = MarkVlan::Other;
    use Mend::{Checksum, Nothing};
    check(
        &steering,
        vec![
            named("wrong checksum", changed(lan(), 10, &[0, 1], Nothing)),
            named("wrong checksum, carved out", changed(wan(), 10, &[0, 1], Nothing)),
            named("version 5", changed(lan(), 0, &[0x55], Checksum)),
            named("version 6 as IPv4", changed(lan(), 0, &[0x65], Nothing)),
            named("version 4 as IPv6", changed(six(), 0, &[0x45], Nothing)),
            named("header of 16 bytes", changed(lan(), 0, &[0x44], Nothing)),
            named("longer than the frame", changed(lan(), 2, &[1, 0], Checksum)),
            named("shorter than its header", changed(lan(), 2, &[0, 19], Checksum)),
            named("v6 longer than the frame", changed(six(), 4, &[1, 0], Nothing)),
            named("jumbogram", changed(six(), 4, &[0, 0], Nothing)),
            named("beyond 65,535", changed(lan(), 6, &[0x1f, 0xff], Checksum)),
            named("a middle fragment of 28 bytes", changed(lan(), 6, &[0x20, 1], Checksum)),
            named("header cut", cut(lan(), 14 + 19)),
            named("upper layer cut", cut(lan(), 14 + 27)),
            named("v6 header cut", cut(six(), 14 + 39)),
            named("link header alone", cut(lan(), 14)),
            named("undeclared VLAN", tagged([0x81, 0, 0, 77], MarkVlan::Id(77))),
            named("802.1ad tag", tagged([0x88, 0xa8, 0, WAN_VLAN as u8], other)),
            named("two tags", {
                let mut case = tagged([0x81, 0, 0, DMZ_VLAN as u8], other);
                case.1.splice(12..12, [0x81, 0, 0, DMZ_VLAN as u8]);
                case
            }),
            named("tag cut", ("", cut(tagged([0x81, 0, 0, 12], other), 17).1, ToWorker, other)),
        ],
    );
}

#[test]
fn a_priority_tag_is_none() {
    let Some((steering, _socket)) = steering("priority tag") else { return };
    for (destination, ends) in
        [("10.1.0.1", Counter::PassedToHost), ("10.2.0.1", Counter::ToWorker)]
    {
        let mut frame = v4("10.1.0.5", destination).udp(1, 2).frame(LAN_MAC, OTHER_MAC, None);
        frame.splice(12..12, [0x81, 0, 0xe0, 0]);
        check(&steering, vec![("priority tag", frame, ends, MarkVlan::Untagged)]);
    }
}

#[test]
fn a_queue_without_a_socket_drops() {
    // AX-04
    let Some((steering, socket)) = steering("no socket") else { return };
    let forwarded = |ends| to_us(By::Lan, "forwarded", v4("10.1.0.5", "10.2.0.1").udp(1, 2), ends);
    let host =
        || to_us(By::Lan, "to us", v4("10.1.0.5", "10.1.0.1").udp(1, 2), Counter::PassedToHost);
    check(&steering, vec![forwarded(Counter::ToWorker)]);
    steering.set_queue(0, None).unwrap();
    check(&steering, vec![forwarded(Counter::NoSocket), host()]);
    steering.set_queue(0, None).unwrap();
    steering.set_queue(0, Some(socket.as_fd())).unwrap();
    check(&steering, vec![forwarded(Counter::ToWorker)]);
    let refused = steering.set_queue(bpf::MAX_QUEUES, None);
    assert!(matches!(refused, Err(BpfError::BadQueue { queue }) if queue == bpf::MAX_QUEUES));
    let not_a_socket = std::fs::File::open("/dev/null").unwrap();
    let refused = steering.set_queue(1, Some(not_a_socket.as_fd()));
    assert!(matches!(refused, Err(BpfError::Table { table: "sockets", .. })), "{refused:?}");
}

#[test]
fn a_program_without_rules_passes_nothing() {
    let steering = match Steering::load(NETDEV, INCARNATION) {
        Ok(steering) => steering,
        Err(error @ (BpfError::NotPermitted { .. } | BpfError::Refused { .. })) => {
            return eprintln!("SKIPPED: program without rules: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let cases = [
        raw(By::Lan, BROADCAST, 0x0806, "ARP", Counter::NoSocket),
        to(By::Lan, OTHER_MAC, "another station", v4("10.1.0.5", "10.2.0.1"), Counter::NoSocket),
        to_us(By::Lan, "to us", v4("10.1.0.5", "10.1.0.1").udp(1, 2), Counter::NoSocket),
    ];
    check(&steering, cases.into());
}

#[test]
fn tables_are_replaced_whole_or_not_at_all() {
    let Some((mut steering, _socket)) = steering("tables") else { return };
    let old = |ends| to_us(By::Lan, "old address", v4("10.3.0.5", "10.1.0.1").udp(1, 2), ends);
    let new = |ends| to_us(By::Lan, "new address", v4("10.3.0.5", "10.1.0.77").udp(1, 2), ends);
    check(&steering, vec![old(Counter::PassedToHost), new(Counter::ToWorker)]);
    steering.set_own_addresses(&[(address("10.1.0.77"), Side::Protected)]).unwrap();
    check(&steering, vec![old(Counter::ToWorker), new(Counter::PassedToHost)]);

    let many: Vec<_> = (0..=bpf::MAX_ADDRESSES as u32)
        .map(|i| (std::net::Ipv4Addr::from(0x0a01_0000 + i).into(), Side::Protected))
        .collect();
    let refused = steering.set_own_addresses(&many);
    assert!(matches!(refused, Err(BpfError::TooMany { count: 4097, limit: 4096, .. })));
    check(&steering, vec![old(Counter::ToWorker), new(Counter::PassedToHost)]);
    steering.set_own_addresses(&many[1..]).unwrap();
    check(&steering, vec![old(Counter::PassedToHost), new(Counter::PassedToHost)]);

    let lan = ports().remove(0);
    let twice = steering.set_ports(&[lan.clone(), lan.clone()], LinkForm::Plain);
    assert!(matches!(twice, Err(BpfError::SamePort { vlan: None })), "{twice:?}");
    let beyond =
        steering.set_ports(&[PortRule { vlan: Some(4095), ..lan.clone() }], LinkForm::Plain);
    assert!(matches!(beyond, Err(BpfError::BadVlan { vlan: 4095 })), "{beyond:?}");
    let mut busy = lan.clone();
    busy.services = vec![services()[0]; bpf::MAX_SERVICES + 1];
    let too_many = steering.set_ports(&[busy], LinkForm::Plain);
    assert!(matches!(too_many, Err(BpfError::TooMany { .. })), "{too_many:?}");
    check(&steering, vec![old(Counter::PassedToHost)]);
    steering.set_ports(&[PortRule { side: Side::Unprotected, ..lan }], LinkForm::Plain).unwrap();
    check(&steering, vec![old(Counter::ToWorker)]);
    steering.set_ports(&[], LinkForm::Plain).unwrap();
    check(&steering, vec![raw(By::Lan, BROADCAST, 0x0806, "ARP", Counter::ToWorker)]);
}

#[test]
fn the_last_of_many_services_counts() {
    let Some((mut steering, _socket)) = steering("many services") else { return };
    let mut rules = ports();
    let ports = |i: u16| Some((9000 + 2 * i, 9000 + 2 * i));
    rules[2].services = (0..bpf::MAX_SERVICES as u16).map(|i| service(TCP, ports(i))).collect();
    steering.set_ports(&rules, LinkForm::Plain).unwrap();
    let case = |port, ends| {
        to_us(By::Wan, "one of many", v4("198.51.100.7", "192.0.2.1").tcp(1, port), ends)
    };
    check(
        &steering,
        vec![
            case(9000, Counter::PassedAllowHost),
            case(9066, Counter::PassedAllowHost),
            case(9065, Counter::ToWorker),
            case(9068, Counter::ToWorker),
        ],
    );
}

#[test]
fn without_ports_nothing_is_passed_until_they_are_told_again() {
    let Some((mut steering, _socket)) = steering("no ports") else { return };
    let arp = |ends| raw(By::Wan, BROADCAST, 0x0806, "ARP", ends);
    let ike = |ends| to_us(By::Wan, "IKE", v4("198.51.100.7", "192.0.2.1").udp(500, 500), ends);
    check(&steering, vec![arp(Counter::PassedArpNd), ike(Counter::PassedAllowHost)]);
    steering.forget_ports().unwrap();
    check(&steering, vec![arp(Counter::ToWorker), ike(Counter::ToWorker)]);
    steering.set_ports(&ports(), LinkForm::Plain).unwrap();
    check(&steering, vec![arp(Counter::PassedArpNd), ike(Counter::PassedAllowHost)]);
}

#[test]
fn while_nobody_says_who_is_inside_only_discovery_passes() {
    let Some((mut steering, _socket)) = steering("inside unknown") else { return };
    let ike = |ends| to_us(By::Wan, "IKE", v4("198.51.100.7", "192.0.2.1").udp(500, 500), ends);
    let solicitation = v6("2001:db8:ff::9", "2001:db8:ff::1").icmp(135, 0, [0; 4]).hop_limit(255);
    let ours = v6("2001:db8:1::1", "2001:db8:ff::1").icmp(135, 0, [0; 4]).hop_limit(255);
    check(&steering, vec![ike(Counter::PassedAllowHost)]);
    steering.forget_inside().unwrap();
    check(
        &steering,
        vec![
            ike(Counter::ToWorker),
            to_us(By::Wan, "solicitation", solicitation, Counter::PassedArpNd),
            to_us(By::Wan, "from our own address", ours, Counter::ToWorker),
        ],
    );
    steering.set_inside(&[]).unwrap();
    check(&steering, vec![ike(Counter::PassedAllowHost)]);
}

#[test]
fn overlay_packets_to_another_station_are_left_to_linux_and_counted() {
    // AX-26
    use By::Lan;
    let Some((steering, _socket)) = steering("overlay packets") else { return };
    let overlay = || v4("10.1.0.5", "10.1.0.1").udp(1, OVERLAY);
    let another = [2, 0, 0, 0, 9, 9];
    check(
        &steering,
        vec![
            to_us(Lan, "to our station", overlay(), Counter::ToWorker),
            to(Lan, another, "to another station", overlay(), Counter::PassedNotToUs),
        ],
    );
}

#[test]
fn the_kernel_holds_the_sockets_in_an_xskmap() {
    // AX-03
    use libbpf_rs::MapType;
    use libbpf_rs::query::MapInfoIter;
    let Some((_steering, _socket)) = steering("the map of sockets") else { return };
    let of_this_name: Vec<MapType> = MapInfoIter::default()
        .filter(|map| map.name.as_encoded_bytes() == b"sockets")
        .map(|map| map.ty)
        .collect();
    assert!(!of_this_name.is_empty(), "the kernel lists no map of sockets");
    assert!(of_this_name.iter().all(|kind| *kind == MapType::Xskmap), "{of_this_name:?}");
}

// AX-29
#[test]
fn a_program_of_the_operators_sees_what_is_dropped_and_what_goes_to_workers() {
    use bpf::traffic::Sink;
    let Some((steering, _socket)) = steering("the operator's program") else { return };
    // UDP to a port that the sink counts, for somebody behind us.
    let frame = wire::build::PacketBuilder::v4("10.1.0.5", "10.9.0.9")
        .udp(1, 0x9000)
        .payload_of(40)
        .frame(LAN_MAC, OTHER_MAC, None);
    const DROP: u32 = 1;
    const REDIRECT: u32 = 4;
    let (dropped, redirected) = (Sink::load().unwrap(), Sink::load().unwrap());
    dropped.look_on(&steering, DROP).unwrap();
    redirected.look_on(&steering, REDIRECT).unwrap();
    steering.run(&frame).unwrap();
    let seen = || [&dropped, &redirected].map(|sink| sink.received().unwrap().packets);
    assert_eq!(seen(), [0, 1]);
    steering.set_queue(0, None).unwrap();
    for count in 1..=3 {
        steering.run(&frame).unwrap();
        assert_eq!(seen(), [count, 1]);
    }
    // What it answers is done: here it drops what was on its way to the worker, too.
    assert_eq!(steering.counters().unwrap().received(), 4);
    // There is no such answer.
    assert!(dropped.look_on(&steering, bpf::XDP_ACTIONS).is_err());
}

/// ESP of this SPI, in one piece.
fn esp(source: &str, destination: &str, spi: u32) -> PacketBuilder {
    let packet =
        |of: PacketBuilder| of.protocol(50).payload(&[&spi.to_be_bytes()[..], &[0; 40]].concat());
    match source.contains(':') {
        true => packet(PacketBuilder::v6(source, destination)),
        false => packet(PacketBuilder::v4(source, destination)),
    }
}

#[test]
fn what_linux_carries_is_passed_by_its_networks_and_sas_and_nothing_else_is() {
    use Counter::{PassedCarried, ToWorker};
    let Some((mut steering, _socket)) = steering("carried") else { return };
    let cases = |carried: Counter| {
        let out = |to, ends| to_us(By::Lan, to, v4("10.1.0.5", to).udp(1, 2), ends);
        let comes = |from, ends| to_us(By::Wan, from, v4(from, "10.1.0.5").udp(1, 2), ends);
        let sealed = |to, spi, ends| to_us(By::Wan, "ESP", esp("198.51.100.7", to, spi), ends);
        let six = |spi, ends| to_us(By::Wan, "ESP", esp("2001:db8::7", "2001:db8::1", spi), ends);
        vec![
            out("10.2.0.9", carried),
            out("10.2.255.255", carried),
            out("10.3.0.0", ToWorker),
            to_us(By::Lan, "IPv6", v6("2001:db8:1::5", "2001:db8:2::9"), carried),
            // What a card has opened looks like what came in clear: Linux knows.
            comes("10.2.0.9", carried),
            comes("10.1.255.255", ToWorker),
            to(
                By::Wan,
                OTHER_MAC,
                "another station",
                v4("10.2.0.9", "10.1.0.5"),
                Counter::PassedNotToUs,
            ),
            sealed("192.0.2.1", 0x2001, carried),
            sealed("192.0.2.1", 0x2002, ToWorker),
            sealed("192.0.2.2", 0x2001, ToWorker),
            six(0x2003, carried),
            six(0x2001, ToWorker),
            // A fragment of ESP shows no SPI, or is not the whole of it.
            changed(sealed("192.0.2.1", 0x2001, ToWorker), 6, &[0x20, 0], Mend::Checksum),
            cut(sealed("192.0.2.1", 0x2001, ToWorker), 18 + 27),
            // From inside ESP of an SA of ours is nothing special.
            to_us(By::Lan, "ESP from inside", esp("10.1.0.5", "192.0.2.9", 0x2001), ToWorker),
        ]
    };
    check(&steering, cases(ToWorker));
    let network =
        |text: &str, bits| (bpf::Prefix { address: address(text), bits }, bpf::Carried::Both);
    let networks = [network("10.2.7.7", 16), network("2001:db8:2::", 48)];
    let sas = [(address("192.0.2.1"), 0x2001), (address("2001:db8::1"), 0x2003)];
    steering.set_carried(&networks, &sas).unwrap();
    check(&steering, cases(PassedCarried));
    let many = vec![sas[0]; bpf::MAX_CARRIED_SAS + 1];
    let refused = steering.set_carried(&networks, &many);
    assert!(matches!(refused, Err(BpfError::TooMany { .. })), "{refused:?}");
    check(&steering, cases(PassedCarried));
    // One way alone.
    let out = || to_us(By::Lan, "out", v4("10.1.0.5", "10.2.0.9").udp(1, 2), PassedCarried);
    let comes = || to_us(By::Wan, "in", v4("10.2.0.9", "10.1.0.5").udp(1, 2), PassedCarried);
    let not = |(what, frame, _, vlan): Case| (what, frame, ToWorker, vlan);
    steering.set_carried(&[(networks[0].0, bpf::Carried::Out)], &[]).unwrap();
    check(&steering, vec![out(), not(comes())]);
    steering.set_carried(&[(networks[0].0, bpf::Carried::In)], &[]).unwrap();
    check(&steering, vec![not(out()), comes()]);
    steering.set_carried(&[], &[]).unwrap();
    check(&steering, cases(ToWorker));
}
