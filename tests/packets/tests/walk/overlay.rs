//! Virtual networks: what comes to an entrance in VXLAN or Geneve, and goes on to another host.

mod explained;
mod fits;
mod questions;
mod random;
mod waiting;

use dataplane::explain::{Arrival, Inside, InsideError, explain_inside};
use dataplane::{Counters, DropReason, FastPathUse, HoldKind, Verdict};
use packets::lab::{
    BERLIN, HOST_MAC, Hub, LAN, LAN2, LAN2_MTU, Laboratory, WAN, host, own, policy, with_ports,
};
use packets::overlay::{
    ATTACHMENT, BY_HOST, ELSEWHERE, PLAIN, UNCHECKED, WEB, assert_rightly_sent, having, host_of,
    mac, other, overlays_of_book, tenant, vni,
};
use packets::table::run;
use packets::{In, Out, Row};
use policy::{Action, GroupMode, GroupSide, Policy};
use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol::TCP;
use wire::overlay::Kind;
use wire::{Address, Family, LinkAddress};

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
    rows.extend(questions::rows());
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
    let tagged = |vlan: u16| {
        let packet = PacketBuilder::new(tenant(Family::V4, 1), tenant(Family::V4, 2));
        with_frame(packet.udp(1, 2).frame(mac(2), mac(1), Some(vlan)))
    };
    let typed = |family: Family, ethertype: u16| {
        let mut frame = frame(family, 1, 2);
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        with_frame(frame)
    };
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
        drops("a VLAN in the frame", tagged(5), DropReason::InnerVlan),
        drops("a priority tag in the frame", tagged(0), DropReason::InnerVlan),
        drops("IPv4 typed as IPv6", typed(Family::V4, 0x86dd), DropReason::Malformed),
        drops("IPv6 typed as IPv4", typed(Family::V6, 0x0800), DropReason::Malformed),
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
