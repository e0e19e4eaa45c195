//! Virtual networks: what comes to an entrance in VXLAN or Geneve, and goes on to another host.

use dataplane::explain::{Arrival, Inside, InsideError, explain_inside};
use dataplane::{Counters, DropReason, FastPathUse, HoldKind, Verdict};
use packets::lab::{
    BERLIN, HOST_MAC, Hub, LAN, LAN2, LAN2_MTU, Laboratory, WAN, host, own, policy, with_ports,
};
use packets::overlay::{
    ATTACHMENT, BY_HOST, ELSEWHERE, PLAIN, UNCHECKED, WEB, assert_rightly_sent, having, host_of,
    mac, other, overlays_at, tenant, vni,
};
use packets::table::run;
use packets::{In, Out, Row};
use policy::{Action, GroupMode, GroupSide, Policy};
use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol::TCP;
use wire::overlay::Kind;
use wire::{Address, Family, LinkAddress};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::FAMILIES;
use crate::groups::{group, with};

const SOURCE_PORT: u16 = 0xc123;

/// An overlay packet.
#[derive(Clone)]
struct OverlayPacket {
    from: Address,
    to: Address,
    udp: (u16, u16),
    header: Vec<u8>,
    frame: Vec<u8>,
    hops: u8,
    class: u8,
    has_checksum: bool,
}

impl OverlayPacket {
    fn new(outer: Family, kind: Kind, network: u32, frame: Vec<u8>) -> OverlayPacket {
        OverlayPacket {
            from: host(outer, 1),
            to: own(outer, 1),
            udp: (SOURCE_PORT, kind.udp_port()),
            header: kind.header(vni(network)).to_vec(),
            frame,
            hops: 64,
            class: 0,
            has_checksum: true,
        }
    }

    fn ip(&self) -> Vec<u8> {
        let mut packet = PacketBuilder::new(self.from, self.to)
            .udp(self.udp.0, self.udp.1)
            .hop_limit(self.hops)
            .traffic_class(self.class)
            .payload(&[&self.header[..], &self.frame].concat());
        if !self.has_checksum {
            packet = packet.no_upper_checksum();
        }
        packet.ip()
    }

    /// The packet that leaves, to a host, with this destination in its frame.
    fn onward(&self, host: Address, to: u8) -> Vec<u8> {
        let mut onward = self.clone();
        onward.frame[..6].copy_from_slice(&mac(to));
        (onward.from, onward.to, onward.hops) = (self.to, host, self.hops - 1);
        onward.ip()
    }

    fn arrives(&self) -> In {
        In::Clear(LAN, self.ip())
    }
}

/// A tenant's frame with a UDP datagram.
fn frame(inner: Family, from: u8, to: u8) -> Vec<u8> {
    let packet = PacketBuilder::new(tenant(inner, from), tenant(inner, to)).udp(1, 2);
    packet.payload_of(21).frame(mac(to), mac(from), None)
}

// AX-23, AX-24, AX-25, AX-26, AX-28, AX-38
#[test]
fn tenants_reach_each_other() {
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for outer in FAMILIES {
        for kind in [Kind::Vxlan, Kind::Geneve] {
            for inner in FAMILIES {
                rows.extend(between_hosts(outer, kind, inner));
                rows.extend(by_groups(outer, kind, inner));
                rows.extend(strangers(outer, kind, inner));
            }
            rows.extend(malformed(outer, kind));
        }
        rows.extend(options(outer));
    }
    rows.extend(questions());
    rows
}

fn between_hosts(outer: Family, kind: Kind, inner: Family) -> Vec<Row> {
    let of = |network, from, to| OverlayPacket::new(outer, kind, network, frame(inner, from, to));
    let packet = of(PLAIN, 1, 2);
    let to_lan2 = |packet: &OverlayPacket, to| Out::Clear(LAN2, packet.onward(host(outer, 12), to));
    let hairpin = of(PLAIN, 1, 3);
    let without_sum = OverlayPacket { has_checksum: outer == Family::V6, ..packet.clone() };
    let marked = OverlayPacket { class: 0xbb, ..packet.clone() };
    let wrong_mac = {
        let mut packet = packet.clone();
        packet.frame[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
        packet
    };
    let protected = of(PLAIN, 1, 4);
    let rewrapped = {
        let packet = of(PLAIN, 1, 5);
        let family = other(outer);
        let onward = OverlayPacket {
            from: own(family, 1),
            to: host(family, 12),
            hops: 63,
            has_checksum: family == Family::V6,
            ..packet.clone()
        };
        let mut bytes = onward.ip();
        if family == Family::V4 {
            // Written by us: it may not be fragmented.
            bytes[6] = 0x40;
            packets::table::sum_header(&mut bytes);
        }
        Row::passes("to a host of the other family", packet.arrives(), Out::Clear(LAN2, bytes))
    };
    let behind_us = of(PLAIN, 1, 6);
    let extended = {
        let packet = PacketBuilder::new(tenant(inner, 1), tenant(inner, 2));
        let packet = match inner {
            Family::V4 => packet.options(&[1; 8]),
            Family::V6 => packet.extension(60, &[1, 4, 0, 0, 0, 0]),
        };
        let frame = packet.udp(1, 2).payload_of(9).frame(mac(2), mac(1), None);
        OverlayPacket::new(outer, kind, PLAIN, frame)
    };
    let last_hop = OverlayPacket { hops: 1, ..packet.clone() };
    let unknown = of(PLAIN, 1, 77);
    let arrived_sealed = OverlayPacket { from: host(outer, 2), ..of(PLAIN, 4, 1) };
    let back_to_lan = Out::Clear(LAN, arrived_sealed.onward(host(outer, 1), 1));
    [
        Row::passes("to another host", packet.arrives(), to_lan2(&packet, 2)),
        Row::passes("UDP without checksum", without_sum.arrives(), to_lan2(&without_sum, 2)),
        Row::passes("DSCP and ECN stay", marked.arrives(), to_lan2(&marked, 2)),
        Row::passes("a longer inner header", extended.arrives(), to_lan2(&extended, 2)),
        Row::passes("the frame's destination is set", wrong_mac.arrives(), to_lan2(&packet, 2)),
        Row::passes(
            "back by the same port",
            hairpin.arrives(),
            Out::Clear(LAN, hairpin.onward(host(outer, 1), 3)),
        ),
        Row::passes(
            "sealed, as a policy says of the outer packet",
            protected.arrives(),
            Out::Sealed(BERLIN, protected.onward(host(outer, 2), 4)),
        ),
        Row::passes("opened by an SA before", In::Sealed(BERLIN, arrived_sealed.ip()), back_to_lan),
        rewrapped,
        Row::drops("a host that is ourselves", behind_us.arrives(), DropReason::BadAddress),
        Row::drops("the outer hop limit ends", last_hop.arrives(), DropReason::HopLimit),
        Row::drops("no such endpoint", unknown.arrives(), DropReason::NoEndpoint),
    ]
    .into_iter()
    .map(|row| row.with(having(outer, kind)))
    .collect()
}

/// Rules of the network: web is let through, and answered; the rest is not.
fn web_only(outer: Family, kind: Kind) -> impl Fn(&mut Hub) {
    let attached = |rule: Policy| Policy { ingress: Some([ATTACHMENT].into()), ..rule };
    let any = |action| {
        let rule = policy("web", 0, action, &["any"], &["any"]);
        Policy { group: Some(GroupSide::In), ..with_ports(rule, TCP, &["80"]) }
    };
    let rules = vec![any(Action::Reflect(GroupMode::Enforce))];
    let rules: Vec<Policy> =
        group(GroupSide::In, LAN, rules, GroupMode::Enforce).into_iter().map(attached).collect();
    let having = having(outer, kind);
    move |hub| {
        having(hub);
        with(rules.clone())(hub);
        let limits = dataplane::connections::Limits::of(64);
        let table = dataplane::connections::Connections::new(limits, Default::default(), &[9; 32]);
        hub.parts.connections = Some(table.into());
    }
}

fn by_groups(outer: Family, kind: Kind, inner: Family) -> Vec<Row> {
    let tcp = |from: u8, to: u8, ports: (u16, u16), flags| {
        let packet = PacketBuilder::new(tenant(inner, from), tenant(inner, to));
        let frame = packet.tcp_with(ports.0, ports.1, flags, None).frame(mac(to), mac(from), None);
        OverlayPacket::new(outer, kind, WEB, frame)
    };
    let ask = tcp(1, 3, (5000, 80), tcp_flags::SYN);
    let answer = tcp(3, 1, (80, 5000), tcp_flags::SYN | tcp_flags::ACK);
    let other = tcp(1, 3, (5000, 22), tcp_flags::SYN);
    let first = tcp(3, 1, (80, 5000), tcp_flags::ACK);
    let onward = |packet: &OverlayPacket, to| Out::Clear(LAN, packet.onward(host(outer, 1), to));
    [
        Row::passes("web", ask.arrives(), onward(&ask, 3)),
        Row::passes("its answer", answer.arrives(), onward(&answer, 1)).after(ask.arrives()),
        Row::drops("an answer to nothing", first.arrives(), DropReason::GroupNoMatch),
        Row::drops("another service", other.arrives(), DropReason::GroupNoMatch),
        Row::drops(
            "the same in a network without its endpoint",
            {
                let frame = ask.frame.clone();
                OverlayPacket::new(outer, kind, ELSEWHERE, frame).arrives()
            },
            DropReason::UnknownVni,
        ),
    ]
    .into_iter()
    .map(|row| row.with(web_only(outer, kind)))
    .collect()
}

fn strangers(outer: Family, kind: Kind, inner: Family) -> Vec<Row> {
    let of = |network, from, to| OverlayPacket::new(outer, kind, network, frame(inner, from, to));
    let from = |mut packet: OverlayPacket, host| {
        packet.from = host;
        packet
    };
    let stranger = Address { value: host(outer, 1).value + 1, ..host(outer, 1) };
    let with_mac = |mut packet: OverlayPacket, mac: [u8; 6]| {
        packet.frame[6..12].copy_from_slice(&mac);
        packet
    };
    let (no_host, no_source) = (DropReason::OverlayHost, DropReason::OverlaySource);
    let drops =
        |what: &str, packet: OverlayPacket, reason| Row::drops(what, packet.arrives(), reason);
    let passes = |what: &str, packet: OverlayPacket| {
        let onward = Out::Clear(LAN2, packet.onward(host(outer, 12), 2));
        Row::passes(what, packet.arrives(), onward)
    };
    [
        drops("a host without endpoints", from(of(PLAIN, 1, 2), stranger), no_host),
        drops("an endpoint of another host", of(PLAIN, 2, 1), no_source),
        drops("an endpoint that is not there", of(PLAIN, 77, 2), no_source),
        drops("a link address of another", with_mac(of(PLAIN, 1, 2), mac(3)), no_source),
        drops("a host without endpoints, by host", from(of(BY_HOST, 1, 2), stranger), no_host),
        passes("any source of a known host", of(BY_HOST, 77, 2)),
        passes("any source of any host", from(of(UNCHECKED, 77, 2), stranger)),
        drops("no such network", of(3, 1, 2), DropReason::UnknownVni),
    ]
    .into_iter()
    .map(|row| row.with(having(outer, kind)))
    .collect()
}

fn malformed(outer: Family, kind: Kind) -> Vec<Row> {
    let good = OverlayPacket::new(outer, kind, PLAIN, frame(Family::V4, 1, 2));
    let with_header = |header: &[u8]| OverlayPacket { header: header.to_vec(), ..good.clone() };
    let with_frame = |frame: Vec<u8>| OverlayPacket { frame, ..good.clone() };
    let changed = |at: usize, byte: u8| {
        let mut frame = good.frame.clone();
        frame[at] = byte;
        with_frame(frame)
    };
    let mut header = good.header.clone();
    header[usize::from(kind == Kind::Geneve)] ^= if kind == Kind::Geneve { 0x80 } else { 8 };
    let control = match kind {
        Kind::Geneve => DropReason::OverlayControl,
        Kind::Vxlan => DropReason::OverlayHeader,
    };
    let tagged = PacketBuilder::new(tenant(Family::V4, 1), tenant(Family::V4, 2));
    let tagged = tagged.udp(1, 2).frame(mac(2), mac(1), Some(5));
    let udp_at = if outer == Family::V4 { 20 } else { 40 };
    let mut long = good.ip();
    long[udp_at + 4..udp_at + 6].copy_from_slice(&2000u16.to_be_bytes());
    let later = {
        let packet = PacketBuilder::new(good.from, good.to).udp(SOURCE_PORT, kind.udp_port());
        packet.payload_of(64).fragment(0, true).ip()
    };
    let elsewhere = OverlayPacket { to: own(outer, 12), ..good.clone() };
    let drops =
        |what: &str, packet: OverlayPacket, reason| Row::drops(what, packet.arrives(), reason);
    [
        drops("no header", with_header(&[]).cut(), DropReason::OverlayHeader),
        drops("a header without VNI, or with the O bit", with_header(&header), control),
        drops("no frame", with_frame(vec![]), DropReason::Malformed),
        drops("a frame cut short", with_frame(good.frame[..20].to_vec()), DropReason::Malformed),
        drops("a VLAN in the frame", with_frame(tagged), DropReason::InnerVlan),
        drops("another EtherType", changed(12, 0x88), DropReason::NotIp),
        drops("a broadcast frame", changed(0, 0xff), DropReason::NoFlooding),
        drops("a wrong inner checksum", changed(24, 0x77), DropReason::Checksum),
        drops(
            "an inner TTL of 0",
            {
                let packet = PacketBuilder::new(tenant(Family::V4, 1), tenant(Family::V4, 2));
                with_frame(packet.udp(1, 2).hop_limit(0).frame(mac(2), mac(1), None))
            },
            DropReason::HopLimit,
        ),
        Row::drops("UDP says it is longer", In::Clear(LAN, long), DropReason::OverlayHeader),
        Row::drops("a fragment", In::Clear(LAN, later), DropReason::OverlayFragment),
        drops("to another address of ours", elsewhere, DropReason::EntranceIp),
    ]
    .into_iter()
    .map(|row| row.with(having(outer, kind)))
    .collect()
}

impl OverlayPacket {
    /// Nothing behind UDP.
    fn cut(mut self) -> OverlayPacket {
        self.frame.clear();
        self
    }
}

fn options(outer: Family) -> Vec<Row> {
    let kind = Kind::Geneve;
    let with = |options: &[u8]| {
        let mut packet = OverlayPacket::new(outer, kind, PLAIN, frame(Family::V4, 1, 2));
        packet.header[0] = (options.len() / 4) as u8;
        packet.header.extend(options);
        packet
    };
    let harmless = with(&[0x01, 0x02, 0x03, 1, 9, 9, 9, 9]);
    let arion = with(&[0x01, 0x11, 0xc8, 1, 9, 9, 9, 9]);
    let critical = with(&[0x01, 0x02, 0x83, 1, 9, 9, 9, 9]);
    let passes = |what: &str, packet: &OverlayPacket| {
        let onward = Out::Clear(LAN2, packet.onward(host(outer, 12), 2));
        Row::passes(what, packet.arrives(), onward)
    };
    [
        passes("options go on", &harmless),
        passes("so do those that are critical and known", &arion),
        Row::drops("a critical option", critical.arrives(), DropReason::OverlayOption),
    ]
    .into_iter()
    .map(|row| row.with(having(outer, kind)))
    .collect()
}

/// ARP, and neighbour discovery.
fn questions() -> Vec<Row> {
    let outer = Family::V4;
    let kind = Kind::Vxlan;
    let arp = |sender: (u8, [u8; 4]), target: [u8; 4], operation: u8| {
        let frame = [
            &[0xff; 6][..],
            &mac(sender.0),
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation],
            &mac(sender.0),
            &sender.1,
            &[0; 6],
            &target,
        ];
        OverlayPacket::new(outer, kind, PLAIN, frame.concat())
    };
    let of = |number: u8| [172, 16, 0, number];
    let ask = arp((1, of(1)), of(2), 1);
    let answered = |from: Address, asks: [u8; 4], target: [u8; 4], has: u8, asker: u8| {
        let frame = [
            &mac(asker)[..],
            &mac(has),
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
            &mac(has),
            &target,
            &mac(asker),
            &asks,
        ];
        let packet = OverlayPacket {
            from: own(outer, 1),
            to: from,
            has_checksum: false,
            ..OverlayPacket::new(outer, kind, PLAIN, frame.concat())
        };
        let mut bytes = packet.ip();
        bytes[6] = 0x40;
        packets::table::sum_header(&mut bytes);
        Out::Clear(LAN, bytes)
    };
    let probe = arp((1, [0; 4]), of(3), 1);
    let solicit = |sender: u8, target: Address, option: Option<[u8; 6]>| {
        let source = tenant(Family::V6, sender);
        let group = 0xff02 << 112 | 0x01_ff00_0000 | target.value & 0xff_ffff;
        let mut payload = target.value.to_be_bytes().to_vec();
        if let Some(mac) = option {
            payload.extend([1, 1]);
            payload.extend(mac);
        }
        let packet = PacketBuilder::new(source, Address::v6(group)).hop_limit(255);
        let packet = packet.icmp(135, 0, [0; 4]).payload(&payload);
        let [.., b, c, d] = target.value.to_be_bytes();
        let frame = packet.frame([0x33, 0x33, 0xff, b, c, d], mac(sender), None);
        OverlayPacket::new(outer, kind, PLAIN, frame)
    };
    let asked = solicit(1, tenant(Family::V6, 2), Some(mac(1)));
    let advertised = {
        let solicitation = wire::discovery::Solicitation {
            source: Some(tenant(Family::V6, 1)),
            source_mac: Some(mac(1)),
            target: tenant(Family::V6, 2),
        };
        let has = LinkAddress::new(mac(2));
        let frame = wire::discovery::advertisement(&solicitation, mac(1), has).to_vec();
        let packet = OverlayPacket {
            from: own(outer, 1),
            to: host(outer, 1),
            has_checksum: false,
            ..OverlayPacket::new(outer, kind, PLAIN, frame)
        };
        let mut bytes = packet.ip();
        bytes[6] = 0x40;
        packets::table::sum_header(&mut bytes);
        Out::Clear(LAN, bytes)
    };
    let drops =
        |what: &str, packet: OverlayPacket, reason| Row::drops(what, packet.arrives(), reason);
    let advertisement = {
        let packet = PacketBuilder::new(tenant(Family::V6, 1), tenant(Family::V6, 3));
        let packet = packet.hop_limit(255).icmp(136, 0, [0x60, 0, 0, 0]);
        let frame = packet.payload(&[9; 24]).frame(mac(3), mac(1), None);
        OverlayPacket::new(outer, kind, PLAIN, frame)
    };
    [
        // AX-24
        Row::passes("ARP is answered", ask.arrives(), {
            answered(host(outer, 1), of(1), of(2), 2, 1)
        }),
        Row::passes("an ARP probe too", probe.arrives(), {
            answered(host(outer, 1), [0; 4], of(3), 3, 1)
        }),
        Row::passes("a solicitation is answered", asked.arrives(), advertised),
        drops("ARP for nobody", arp((1, of(1)), of(77), 1), DropReason::NoEndpoint),
        drops("ARP for itself", arp((1, of(1)), of(1), 1), DropReason::NoFlooding),
        drops("an ARP reply", arp((1, of(1)), of(2), 2), DropReason::NoFlooding),
        drops("ARP in another's name", arp((1, of(3)), of(2), 1), DropReason::OverlaySource),
        drops(
            "ARP with another's link address",
            {
                let mut packet = arp((1, of(1)), of(2), 1);
                packet.frame[22..28].copy_from_slice(&mac(3));
                packet
            },
            DropReason::OverlaySource,
        ),
        drops("an advertisement to a neighbour", advertisement, DropReason::NoFlooding),
        drops(
            "a solicitation with another's link address",
            solicit(1, tenant(Family::V6, 2), Some(mac(3))),
            DropReason::OverlaySource,
        ),
        drops(
            "a solicitation in another's name",
            solicit(2, tenant(Family::V6, 3), None),
            DropReason::OverlaySource,
        ),
        drops(
            "a solicitation for nobody",
            solicit(1, tenant(Family::V6, 77), None),
            DropReason::NoEndpoint,
        ),
    ]
    .into_iter()
    .map(|row| row.with(having(outer, kind)))
    .collect()
}

/// A tenant whose packet does not fit the way to the host is told so, inside its network.
#[test]
fn tenants_are_told_what_fits() {
    for outer in FAMILIES {
        for inner in FAMILIES {
            let overhead = if outer == Family::V4 { 50 } else { 70 };
            let most = LAN2_MTU as usize - overhead;
            let header = if inner == Family::V4 { 28 } else { 48 };
            let sized = |bytes: usize| {
                let packet = PacketBuilder::new(tenant(inner, 1), tenant(inner, 2)).udp(1, 2);
                let packet = packet.dont_fragment().payload_of(bytes - header);
                let frame = packet.frame(mac(2), mac(1), None);
                OverlayPacket::new(outer, Kind::Vxlan, PLAIN, frame)
            };
            let mut hub = Hub::default();
            having(outer, Kind::Vxlan)(&mut hub);
            let mut lab: Laboratory = hub.laboratory();
            let fits = lab.send(LAN, &sized(most).ip());
            assert_eq!(fits.verdicts, [Verdict::Forward(LAN2)]);
            let told = lab.send(LAN, &sized(most + 1).ip());
            let too_big = Verdict::Drop(DropReason::TooBig);
            assert_eq!(told.verdicts, [too_big, Verdict::Forward(LAN)], "{outer:?} {inner:?}");
            let sent = &told.sent[0];
            assert_eq!(sent.to, Some(HOST_MAC));
            let packet = wire::packet::parse(&sent.packet).unwrap();
            assert_eq!(packet.flow.source_address(), own(outer, 1));
            assert_eq!(packet.flow.destination_address(), host(outer, 1));
            let overlay = &sent.packet[usize::from(packet.upper_offset) + 8..];
            let parsed = wire::overlay::parse(Kind::Vxlan, overlay).unwrap();
            assert_eq!(parsed.vni, vni(PLAIN));
            let frame = &overlay[parsed.length..];
            assert_eq!((&frame[..6], &frame[6..12]), (&mac(1)[..], &mac(2)[..]));
            let message = &frame[14..];
            let error = wire::packet::parse(message).unwrap();
            assert_eq!(error.flow.source_address(), tenant(inner, 2));
            assert_eq!(error.flow.destination_address(), tenant(inner, 1));
            let told = wire::icmp::too_big_message(message, &error).unwrap();
            assert_eq!(told.mtu as usize, most);
            assert_eq!(told.quoted.flow.destination_address(), tenant(inner, 2));
        }
    }
}

/// A packet that a tenant lets routers fragment is cut inside its network; each fragment has an
/// overlay packet of its own.
#[test]
fn tenants_packets_are_fragmented_inside() {
    for outer in FAMILIES {
        for kind in [Kind::Vxlan, Kind::Geneve] {
            for (has_checksum, to, port) in [(true, 2, LAN2), (false, 2, LAN2), (true, 4, WAN)] {
                let packet = PacketBuilder::new(tenant(Family::V4, 1), tenant(Family::V4, to));
                let packet = packet.identification(77).udp(1, 2).payload_of(1410).ip();
                let frame = |packet: &[u8]| [&mac(to)[..], &mac(1), &[8, 0], packet].concat();
                let sent = OverlayPacket {
                    has_checksum: has_checksum || outer == Family::V6,
                    ..OverlayPacket::new(outer, kind, PLAIN, frame(&packet))
                };
                let mut hub = Hub::default();
                having(outer, kind)(&mut hub);
                let mut lab = hub.laboratory();
                let outcome = lab.send(LAN, &sent.ip());
                assert_eq!(outcome.verdicts.first(), Some(&Verdict::Consumed), "{outer:?} {to}");
                let mut data = Vec::new();
                let left = packets::table::opened(&mut lab, &outcome);
                assert_eq!(left.len(), 2, "{outer:?} {to}");
                for left in left {
                    let (Out::Clear(_, bytes) | Out::Sealed(_, bytes)) = &left;
                    let whole = wire::packet::parse(bytes).unwrap();
                    assert!(whole.dont_fragment && whole.fragment == wire::Fragment::Whole);
                    let sum = wire::UpperChecksum::find(bytes, &whole).unwrap();
                    assert!(sum.is_good(bytes) || sum.is_absent() && !sent.has_checksum);
                    assert_eq!(whole.flow.destination_address(), host_of(outer, to).unwrap());
                    assert_eq!(whole.hop_limit, 63);
                    let overlay = &bytes[usize::from(whole.upper_offset) + 8..];
                    assert_eq!(overlay[..8], sent.header);
                    let (link, inner) = overlay[8..].split_at(14);
                    assert_eq!(link, &frame(&[])[..]);
                    let part = wire::packet::parse(inner).unwrap();
                    assert_eq!(part.length as usize, inner.len());
                    let fields = wire::packet::fragment_fields(inner, &part).unwrap();
                    assert_eq!((fields.identification, fields.offset as usize), (77, data.len()));
                    assert_eq!(fields.more, data.is_empty());
                    data.extend_from_slice(&inner[20..]);
                }
                assert_eq!(data, packet[20..]);
                assert!(port == WAN || outcome.sent.iter().all(|sent| sent.port == port));
            }
        }
    }
}

/// The fragments of a segment of TCP with SYN from tenant 1 to a port of tenant 3, each in an
/// overlay packet: the first one, and the later one, which shows no port.
fn segments((outer, kind, network): (Family, Kind, u32), inner: Family, port: u16) -> [Vec<u8>; 2] {
    let ends = || PacketBuilder::new(tenant(inner, 1), tenant(inner, 3)).identification(77);
    let mut tcp = vec![0; 24];
    tcp[..4].copy_from_slice(&[0x13, 0x88, (port >> 8) as u8, port as u8]);
    (tcp[12], tcp[13]) = (0x50, tcp_flags::SYN);
    let first = ends().protocol(TCP).payload(&tcp).fragment(0, true);
    let later = ends().protocol(TCP).payload_of(9).fragment(3, false);
    [first, later].map(|packet| {
        OverlayPacket::new(outer, kind, network, packet.frame(mac(3), mac(1), None)).ip()
    })
}

/// A later fragment, where groups name ports, is judged by its datagram's first one, and waits for
/// it; in each network by itself.
#[test]
fn tenants_later_fragments_follow_their_first() {
    let goes = Verdict::Forward(LAN);
    let (waits, refused) =
        (Verdict::Hold(HoldKind::Fragment), Verdict::Drop(DropReason::GroupNoMatch));
    for outer in FAMILIES {
        for (kind, inner) in [(Kind::Vxlan, Family::V4), (Kind::Geneve, Family::V6)] {
            let lab = || {
                let mut hub = Hub::default();
                web_only(outer, kind)(&mut hub);
                hub.laboratory()
            };
            let [first, later] = segments((outer, kind, WEB), inner, 80);
            let mut in_order = lab();
            assert_eq!(in_order.send_all(LAN, &[&first, &later]).verdicts, [goes; 2]);
            let mut together = lab();
            assert_eq!(together.send_all(LAN, &[&later, &first]).verdicts, [waits, goes, goes]);
            let mut waited = lab();
            assert_eq!(waited.send(LAN, &later).verdicts, [waits]);
            let released = waited.send(LAN, &first);
            assert_eq!(released.verdicts, [goes; 2]);
            let payload = |sent: &packets::lab::Sent| sent.packet.len();
            let lengths: Vec<usize> = released.sent.iter().map(payload).collect();
            assert_eq!(lengths, [first.len(), later.len()], "the first one first");
            assert_eq!(waited.send(LAN, &later).verdicts, [waits], "all of it had come");

            let [other, its_later] = segments((outer, kind, WEB), inner, 22);
            assert_eq!(lab().send_all(LAN, &[&other, &its_later]).verdicts, [refused; 2]);
            // A network without groups asks for no port.
            let [_, plain] = segments((outer, kind, PLAIN), inner, 80);
            assert_eq!(lab().send(LAN, &plain).verdicts, [goes]);
            let mut apart = lab();
            let [elsewhere, _] = segments((outer, kind, PLAIN), inner, 80);
            assert_eq!(apart.send_all(LAN, &[&elsewhere, &later]).verdicts, [goes, waits]);

            // A stranger's fragment spoils no datagram, and waits for none.
            let mut spoiled = first.clone();
            let at = spoiled.windows(6).position(|bytes| bytes == mac(1)).unwrap();
            spoiled[at..at + 6].copy_from_slice(&mac(2));
            let udp = usize::from(wire::packet::parse(&spoiled).unwrap().upper_offset);
            spoiled[udp + 6..udp + 8].fill(0);
            let no_source = Verdict::Drop(DropReason::OverlaySource);
            let mut honest = lab();
            let verdicts = honest.send_all(LAN, &[&spoiled, &first, &later]).verdicts;
            assert_eq!(verdicts, [no_source, goes, goes]);

            let mut late = lab();
            late.send(LAN, &later);
            late.now_ns += dataplane::reassembly::PATIENCE_NS + 1;
            late.send(LAN, &plain);
            assert_eq!(late.counters().dropped(DropReason::FragmentTimeout), 1);
        }
    }
}

/// `explain` says of a packet inside a network what the walk does with it, and changes nothing.
#[test]
fn packets_inside_a_network_are_explained_as_they_are_judged() {
    let tenants = [1u8, 2, 3, 4, 5, 6, 7, 8, 77];
    for outer in FAMILIES {
        let mut hub = Hub::default();
        web_only(outer, Kind::Vxlan)(&mut hub);
        let limits = dataplane::connections::Limits::of(4096);
        let table = dataplane::connections::Connections::new(limits, Default::default(), &[9; 32]);
        hub.parts.connections = Some(table.into());
        let mut lab = hub.laboratory();
        let mut seen = std::collections::HashMap::new();
        for network in [PLAIN, WEB, BY_HOST, UNCHECKED] {
            for (from, to) in tenants.iter().flat_map(|from| tenants.map(|to| (*from, to))) {
                for (inner, port) in [(Family::V4, 80u16), (Family::V6, 22)] {
                    let known = host_of(outer, from).filter(|host| host.family == outer);
                    let stranger = Address { value: host(outer, 1).value + 9, ..host(outer, 1) };
                    let from_host = known.unwrap_or(stranger);
                    let packet = PacketBuilder::new(tenant(inner, from), tenant(inner, to));
                    let packet = packet.tcp_with(5000, port, tcp_flags::SYN, None);
                    let frame = packet.frame(mac(to), mac(from), None);
                    let sent = OverlayPacket {
                        from: from_host,
                        ..OverlayPacket::new(outer, Kind::Vxlan, network, frame)
                    };
                    let flow = wire::packet::parse(&packet.ip()).unwrap().flow;
                    let inside = Inside { vni: vni(network), host: Some(from_host) };
                    let at = (&lab.snapshot, lab.now_ns);
                    let told = explain_inside(at, Arrival::Clear(LAN), inside, flow).unwrap();
                    let counters = lab.counters().clone();
                    let again = explain_inside(at, Arrival::Clear(LAN), inside, flow).unwrap();
                    assert_eq!(again, told);
                    assert_eq!(*lab.counters(), counters);
                    let carried = told.carried.unwrap();
                    let onward = carried.onward.map(|flow| flow.destination_address());
                    let expected = if to == 6 { Some(own(outer, 12)) } else { host_of(outer, to) };
                    assert_eq!(onward, expected);
                    let rules = told.consultations.iter().filter(|asked| asked.flow == flow);
                    let judged = lab.send(LAN, &sent.ip()).verdicts[0];
                    assert_eq!(told.verdict, judged, "{outer:?} {network} {from} {to}");
                    assert!(rules.count() <= usize::from(network == WEB));
                    *seen.entry(judged).or_insert(0) += 1;
                }
            }
        }
        assert!(seen.len() > 6, "{seen:?}");
    }
}

#[test]
fn without_a_host_the_explanation_takes_the_one_of_the_source() {
    let mut hub = Hub::default();
    having(Family::V4, Kind::Vxlan)(&mut hub);
    let lab = hub.laboratory();
    let at = (&lab.snapshot, lab.now_ns);
    let flow = |from, to| {
        let packet = PacketBuilder::new(tenant(Family::V4, from), tenant(Family::V4, to));
        wire::packet::parse(&packet.udp(1, 2).ip()).unwrap().flow
    };
    let ask = |network, flow| {
        let inside = Inside { vni: vni(network), host: None };
        explain_inside(at, Arrival::Clear(LAN), inside, flow)
    };
    let told = ask(PLAIN, flow(1, 4)).unwrap();
    assert_eq!(told.verdict, Verdict::Protect(BERLIN));
    let around = 20 + 8 + 8 + 14;
    let sizes = lab.snapshot.set_sizes(BERLIN, lab.now_ns).inner(Family::V4);
    assert_eq!(told.mtu, Some(sizes - around));
    assert_eq!(told.carried.unwrap().host, host(Family::V4, 1));
    let nobody = endpoints::EndpointKey { vni: vni(PLAIN), address: tenant(Family::V4, 77) };
    assert_eq!(ask(PLAIN, flow(77, 1)).unwrap_err(), InsideError::NoHost(nobody));
    assert_eq!(ask(3, flow(1, 2)).unwrap_err(), InsideError::NoNetwork(vni(3)));
}

/// A packet of a random sender, to be changed at random.
#[derive(Clone, Debug)]
struct Sending {
    outer: Family,
    /// The host of a tenant, or a stranger.
    host: u8,
    network: u32,
    inner: Family,
    ends: (u8, u8),
    /// The tenant whose link address is the frame's.
    mac: u8,
    tcp: Option<(u16, u8)>,
    has_checksum: bool,
    flips: Vec<(prop::sample::Index, u8)>,
}

fn a_family() -> impl Strategy<Value = Family> {
    prop::sample::select(&FAMILIES[..])
}

fn a_sending() -> impl Strategy<Value = Sending> {
    let number = || prop_oneof![8 => 1u8..=5, 1 => Just(77)];
    let network = prop_oneof![4 => Just(PLAIN), 4 => Just(WEB), 1 => Just(BY_HOST), 1 => 0u32..12];
    let flips = prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..4);
    let flips = prop_oneof![3 => Just(vec![]), 1 => flips];
    let flags = prop::sample::select(&[tcp_flags::SYN, tcp_flags::ACK, 0x12, 0x04][..]);
    let port = prop::sample::select(&[22u16, 80, 5000][..]);
    let tcp = prop_oneof![1 => Just(None), 2 => (port, flags).prop_map(Some)];
    let who = (a_family(), number(), network, a_family(), (number(), number()), number());
    (who, tcp, any::<bool>(), flips, any::<bool>()).prop_map(
        |((outer, host, network, inner, ends, mac), tcp, has_checksum, flips, is_honest)| {
            let (host, mac) = if is_honest { (ends.0, ends.0) } else { (host, mac) };
            Sending { outer, host, network, inner, ends, mac, tcp, has_checksum, flips }
        },
    )
}

impl Sending {
    fn bytes(&self) -> Vec<u8> {
        self.bytes_to(Kind::Vxlan, own(self.outer, 1))
    }

    /// The packet to an entrance.
    fn bytes_to(&self, kind: Kind, to: Address) -> Vec<u8> {
        let packet =
            PacketBuilder::new(tenant(self.inner, self.ends.0), tenant(self.inner, self.ends.1));
        let packet = match self.tcp {
            Some((port, flags)) if flags == tcp_flags::SYN => {
                packet.tcp_with(5000, port, flags, None)
            }
            Some((port, flags)) => packet.tcp_with(port, 5000, flags, None),
            None => packet.udp(1, 2).payload_of(21),
        };
        let frame = packet.frame(mac(self.ends.1), mac(self.mac), None);
        let stranger = Address { value: host(self.outer, 1).value + 9, ..host(self.outer, 1) };
        let sender = host_of(self.outer, self.host).filter(|host| host.family == self.outer);
        let sent = OverlayPacket {
            from: sender.unwrap_or(stranger),
            to,
            has_checksum: self.has_checksum || self.outer == Family::V6,
            ..OverlayPacket::new(self.outer, kind, self.network, frame)
        };
        let mut bytes = sent.ip();
        for (at, bits) in &self.flips {
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
        }
        bytes
    }

    /// The verdict on a packet that nobody changed, rule by rule; `None`: groups or connections
    /// decide.
    fn expected(&self, hosts: Family) -> Option<Result<u8, DropReason>> {
        let (known, mac_of) = (|tenant| host_of(hosts, tenant), self.mac);
        let sender = host_of(self.outer, self.host).filter(|host| host.family == self.outer);
        let is_host = (1..=5).any(|tenant| sender.is_some() && known(tenant) == sender);
        if ![PLAIN, WEB, BY_HOST, UNCHECKED].contains(&self.network) {
            return Some(Err(DropReason::UnknownVni));
        }
        let is_it = sender.is_some() && known(self.ends.0) == sender && mac_of == self.ends.0;
        let refused = match self.network {
            UNCHECKED => None,
            BY_HOST => (!is_host).then_some(DropReason::OverlayHost),
            _ if is_it => None,
            _ if is_host => Some(DropReason::OverlaySource),
            _ => Some(DropReason::OverlayHost),
        };
        Some(match (refused, known(self.ends.1)) {
            (Some(reason), _) => Err(reason),
            (None, None) => Err(DropReason::NoEndpoint),
            (None, Some(_)) if self.network == WEB => return None,
            (None, Some(_)) => Ok(self.ends.1),
        })
    }
}

/// A packet as hosts mostly send them, a few times: honest, in a network without groups.
fn a_common_run() -> impl Strategy<Value = (Sending, usize)> {
    let tenant = || prop::sample::select(&[1u8, 2, 3, 4, 5, 6, 7, 8, 77][..]);
    let network = prop_oneof![6 => Just(PLAIN), 1 => Just(WEB), 1 => Just(BY_HOST)];
    let who = (network, a_family(), tenant(), tenant(), any::<bool>());
    (a_sending(), who, 1..24usize).prop_map(|(sending, who, count)| {
        let (network, inner, from, to, is_changed) = who;
        let flips = if is_changed { sending.flips } else { vec![] };
        let (ends, host, mac) = ((from, to), from, from);
        (Sending { network, inner, ends, host, mac, flips, ..sending }, count)
    })
}

/// Counters but those that say which walk it was: the fast path asks the tables about packets that
/// it then leaves to the general walk.
fn comparable(lab: &Laboratory) -> Counters {
    Counters { fast_path: 0, full_lookups: 0, ..lab.counters().clone() }
}

/// The fast path ≡ the general walk for overlay packets: bytes in order, verdicts, every counter.
// AX-23
#[test]
fn overlay_packets_leave_by_the_fast_path_as_by_the_general_walk() {
    let runs = prop_oneof![6 => a_common_run(), 1 => (a_sending(), 1..4usize)];
    let strategy = (
        (a_family(), any::<bool>(), any::<bool>()),
        prop::collection::vec(runs, 1..12),
        1..=64usize,
    );
    let (taken, mut runner) = (std::cell::Cell::new([0u64; 2]), TestRunner::new(config()));
    let compared = runner.run(&strategy, |((hosts, is_geneve, is_tagged), runs, size)| {
        let kind = if is_geneve { Kind::Geneve } else { Kind::Vxlan };
        let (port, network) = if is_tagged { (LAN2, 12) } else { (LAN, 1) };
        let lab = |use_| {
            let mut hub = Hub::default();
            web_only(hosts, kind)(&mut hub);
            hub.parts.overlays = Some(overlays_at(hosts, kind, (port, network)));
            hub.laboratory().with_fast_path(use_)
        };
        let (mut fast, mut general) = (lab(FastPathUse::Eager), lab(FastPathUse::Never));
        let packets: Vec<Vec<u8>> = runs
            .iter()
            .flat_map(|(sending, count)| {
                // Mostly from the family of the hosts.
                let outer = if *count > 3 { hosts } else { sending.outer };
                let bytes =
                    Sending { outer, ..sending.clone() }.bytes_to(kind, own(outer, network));
                vec![bytes; *count]
            })
            .collect();
        for batch in packets.chunks(size) {
            prop_assert_eq!(fast.send_all(port, batch), general.send_all(port, batch));
            prop_assert_eq!(comparable(&fast), comparable(&general));
        }
        let [fast, all] = [fast.counters().fast_path, packets.len() as u64];
        taken.set([taken.get()[0] + fast, taken.get()[1] + all]);
        Ok(())
    });
    compared.unwrap_or_else(|failure| panic!("{failure}"));
    let [fast, all] = taken.get();
    assert!(fast * 5 > all, "{fast} of {all} by the fast path");
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever hosts send: no packet goes to another host than that of its destination, and those
    /// that nobody changed are judged as the rules say one by one.
    #[test]
    fn no_bytes_reach_another_tenant(
        hosts in a_family(),
        sendings in prop::collection::vec(a_sending(), 1..100),
        remembers in any::<bool>(),
    ) {
        let mut hub = Hub::default();
        web_only(hosts, Kind::Vxlan)(&mut hub);
        let mut lab = hub.laboratory();
        if remembers {
            lab = lab.remembering(256);
        }
        for batch in sendings.chunks(16) {
            let packets: Vec<Vec<u8>> = batch.iter().map(Sending::bytes).collect();
            let outcome = lab.send_all(LAN, &packets);
            for (sending, verdict) in batch.iter().zip(&outcome.verdicts) {
                let Some(expected) = sending.expected(hosts).filter(|_| sending.flips.is_empty())
                else {
                    continue;
                };
                match expected {
                    Err(why) => prop_assert_eq!(*verdict, Verdict::Drop(why), "{:?}", sending),
                    Ok(4) => prop_assert_eq!(*verdict, Verdict::Protect(BERLIN), "{:?}", sending),
                    Ok(1 | 3) => prop_assert_eq!(*verdict, Verdict::Forward(LAN), "{:?}", sending),
                    Ok(_) => prop_assert_eq!(*verdict, Verdict::Forward(LAN2), "{:?}", sending),
                }
            }
            for left in packets::table::opened(&mut lab, &outcome) {
                let (Out::Sealed(_, packet) | Out::Clear(_, packet)) = &left;
                // What does not come from an entrance was changed so that it entered none.
                let source = wire::packet::quoted(packet).map(|outer| outer.flow.source_address());
                let entrances = FAMILIES.map(|family| own(family, 1));
                if !source.is_some_and(|source| entrances.contains(&source)) {
                    continue;
                }
                match left {
                    Out::Sealed(set, packet) => {
                        prop_assert_eq!(set, BERLIN);
                        assert_rightly_sent(Kind::Vxlan, hosts, &packet);
                    }
                    Out::Clear(LAN | LAN2, packet) => {
                        assert_rightly_sent(Kind::Vxlan, hosts, &packet);
                    }
                    Out::Clear(port, _) => prop_assert!(false, "by {:?}", port),
                }
            }
        }
    }
}
