//! Frames: VLANs, whom they are for, what is not IP, what does not fit.

use dataplane::Verdict::Host;
use dataplane::{DropReason, Medium, RouteTarget};
use packets::lab::{
    BERLIN, HOST_MAC, LAN, LAN_MAC, LAN2, LAN2_VLAN, ROUTER_MAC, WAN, WAN_MAC, agreements, frame,
    route,
};
use packets::peer::Peer;
use packets::table::{forwarded, run};
use packets::{Hub, In, Out, Row};
use wire::Family;
use wire::build::PacketBuilder;
use wire::link::ethertype::{ARP, IPV4, IPV6, STACKED_VLAN, VLAN};

use crate::{FAMILIES, datagram};

const BROADCAST: [u8; 6] = [0xff; 6];
const OTHER: [u8; 6] = [2, 0, 0, 0, 9, 9];
const LLDP: u16 = 0x88cc;

#[test]
fn frames() {
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for family in FAMILIES {
        rows.extend(vlans(family));
        rows.extend(stations(family));
        rows.extend(lengths(family));
        rows.extend(other_links(family));
    }
    rows.extend(carved_out());
    rows
}

fn type_of(family: Family) -> u16 {
    if family == Family::V4 { IPV4 } else { IPV6 }
}

fn vlans(family: Family) -> Vec<Row> {
    let kind = type_of(family);
    let out = datagram(family, 1, 2).ip();
    let sealed = Out::Sealed(BERLIN, forwarded(&out));
    let across = datagram(family, 1, 12).ip();
    let back = datagram(family, 12, 1).ip();
    let from_second = datagram(family, 12, 2).ip();
    let tagged = |id| frame(LAN_MAC, HOST_MAC, Some(id), kind, &out);
    let twice = |outer: u16, inner: u16| {
        let [high, low] = inner.to_be_bytes();
        let [kind_high, kind_low] = kind.to_be_bytes();
        let behind = [&[0, 12, high, low, 0, 12, kind_high, kind_low], &out[..]].concat();
        In::Frame(LAN, frame(LAN_MAC, HOST_MAC, None, outer, &behind))
    };
    vec![
        Row::passes("untagged in, sealed out", In::Clear(LAN, out.clone()), sealed.clone()),
        Row::passes(
            "tagged in, sealed out",
            In::Clear(LAN2, from_second.clone()),
            Out::Sealed(BERLIN, forwarded(&from_second)),
        ),
        Row::passes(
            "untagged in, tagged out",
            In::Clear(LAN, across.clone()),
            Out::Clear(LAN2, forwarded(&across)),
        ),
        Row::passes(
            "tagged in, untagged out",
            In::Clear(LAN2, back.clone()),
            Out::Clear(LAN, forwarded(&back)),
        ),
        Row::passes(
            "opened, tagged out",
            In::Sealed(BERLIN, datagram(family, 2, 12).ip()),
            Out::Clear(LAN2, forwarded(&datagram(family, 2, 12).ip())),
        ),
        Row::passes("a priority tag is no tag", In::Frame(LAN, tagged(0)), sealed),
        Row::drops("undeclared VLAN", In::Frame(LAN, tagged(13)), DropReason::Vlan),
        Row::drops("highest VLAN id", In::Frame(LAN, tagged(4095)), DropReason::Vlan),
        Row::drops(
            "a VLAN of another device",
            In::Frame(WAN, frame(WAN_MAC, ROUTER_MAC, Some(LAN2_VLAN), kind, &out)),
            DropReason::Vlan,
        ),
        Row::drops(
            "untagged on a device that has only tagged ports",
            In::Frame(LAN, frame(LAN_MAC, HOST_MAC, None, kind, &out)),
            DropReason::Vlan,
        )
        .with(|hub| hub.parts.ports[LAN.0 as usize].vlan = Some(100)),
        Row::drops("two 802.1Q tags", twice(VLAN, VLAN), DropReason::Vlan),
        Row::drops("802.1ad and 802.1Q tags", twice(STACKED_VLAN, VLAN), DropReason::Vlan),
        Row::drops("an 802.1ad tag alone", twice(STACKED_VLAN, kind), DropReason::Vlan),
    ]
}

fn stations(family: Family) -> Vec<Row> {
    let kind = type_of(family);
    let out = datagram(family, 1, 2).ip();
    let clear_in = datagram(family, 8, 1).ip();
    let to = |port, mac, kind, bytes: &[u8]| {
        let source = if port == WAN { ROUTER_MAC } else { HOST_MAC };
        In::Frame(port, frame(mac, source, None, kind, bytes))
    };
    let multicast = [0x33, 0x33, 0, 0, 0, 1];
    vec![
        Row::new("another station's, protected side", to(LAN, OTHER, kind, &out), Host),
        Row::new("another station's, unprotected side", to(WAN, OTHER, kind, &clear_in), Host),
        Row::new("broadcast, protected side", to(LAN, BROADCAST, kind, &out), Host),
        Row::new("multicast, protected side", to(LAN, multicast, kind, &out), Host),
        Row::drops(
            "broadcast from outside, though its addresses are unicast and bypassed",
            to(WAN, BROADCAST, kind, &clear_in),
            DropReason::LinkMulticast,
        ),
        Row::drops(
            "multicast from outside",
            to(WAN, multicast, kind, &clear_in),
            DropReason::LinkMulticast,
        ),
        Row::new("ARP broadcast, protected side", to(LAN, BROADCAST, ARP, &[0; 28]), Host),
        Row::new("ARP broadcast, unprotected side", to(WAN, BROADCAST, ARP, &[0; 28]), Host),
        Row::new("ARP to us, unprotected side", to(WAN, WAN_MAC, ARP, &[0; 28]), Host),
        Row::new("not IP, protected side", to(LAN, LAN_MAC, LLDP, &[0; 50]), Host),
        Row::drops("not IP, unprotected side", to(WAN, WAN_MAC, LLDP, &[0; 50]), DropReason::NotIp),
        Row::drops(
            "not IP to a group, unprotected side",
            to(WAN, [1, 0x80, 0xc2, 0, 0, 0xe], LLDP, &[0; 50]),
            DropReason::LinkMulticast,
        ),
    ]
}

/// Neighbour discovery and `allow_host` to groups and to link-local addresses.
fn carved_out() -> Vec<Row> {
    let solicitation = |to: &str| {
        PacketBuilder::v6("fe80::fe", to).icmp(135, 0, [0; 4]).payload_of(24).hop_limit(255).ip()
    };
    let group = [0x33, 0x33, 0xff, 0, 0, 1];
    let ike = |port| PacketBuilder::v4("192.0.2.9", "224.0.0.5").udp(500, port).payload_of(8).ip();
    let to_group = |bytes: &[u8]| {
        let kind = if bytes[0] >> 4 == 6 { IPV6 } else { IPV4 };
        In::Frame(WAN, frame(group, ROUTER_MAC, None, kind, bytes))
    };
    let echo = PacketBuilder::v6("fe80::fe", "fe80::1").icmp(128, 0, [0; 4]).ip();
    let ours: fn(&mut Hub) = |hub| hub.parts.routes.push(route("fe80::1/128", RouteTarget::Local));
    let mut rows = vec![
        Row::new("solicitation to our group", to_group(&solicitation("ff02::1:ff00:1")), Host),
        Row::delivers(
            "solicitation to our address, from outside",
            In::Clear(WAN, solicitation("2001:db8:ff::1")),
            solicitation("2001:db8:ff::1"),
        ),
        Row::delivers(
            "solicitation to our link-local address, from outside",
            In::Clear(WAN, solicitation("fe80::1")),
            solicitation("fe80::1"),
        )
        .with(ours),
        Row::drops(
            "solicitation to another's link-local address, from outside",
            In::Clear(WAN, solicitation("fe80::1")),
            DropReason::NoMatch,
        ),
        Row::delivers(
            "solicitation to our link-local address, protected side",
            In::Clear(LAN, solicitation("fe80::1")),
            solicitation("fe80::1"),
        )
        .with(ours),
        Row::drops(
            "solicitation to another's link-local address, protected side",
            In::Clear(LAN, solicitation("fe80::1")),
            DropReason::BadAddress,
        ),
        Row::drops(
            "echo to our link-local address, from outside",
            In::Clear(WAN, echo.clone()),
            DropReason::NoMatch,
        )
        .with(ours),
        Row::delivers(
            "echo to our link-local address, protected side",
            In::Clear(LAN, echo.clone()),
            echo,
        )
        .with(ours),
        Row::new("a listed service to a group", to_group(&ike(500)), Host),
        Row::drops("an unlisted one", to_group(&ike(501)), DropReason::LinkMulticast),
    ];
    for kind in [133, 134, 135, 136, 137] {
        let message = PacketBuilder::v6("fe80::fe", "2001:db8:ff::1")
            .icmp(kind, 0, [0; 4])
            .payload_of(16)
            .ip();
        let description = format!("neighbour discovery, type {kind}");
        rows.push(Row::delivers(description, In::Clear(WAN, message.clone()), message));
    }
    rows
}

fn lengths(family: Family) -> Vec<Row> {
    let kind = type_of(family);
    let small = crate::between(family, 1, 2).udp(1, 2).payload_of(1).ip();
    let padded = |packet: &[u8]| [packet, &[0xaa; 40]].concat();
    let jumbo = crate::between(family, 1, 2).udp(1, 2).payload_of(5000).ip();
    let full = frame(LAN_MAC, HOST_MAC, Some(LAN2_VLAN), kind, &small);
    let cut = |length: usize| In::Frame(LAN, full[..length].to_vec());
    let inside = crate::between(family, 2, 1).udp(2, 1).payload_of(1).ip();
    let expected = Out::Clear(LAN, forwarded(&inside));
    let sealed = inside.clone();
    let beyond = move |peer: &mut Peer| [&peer.seal(&sealed)[..], &[0xaa; 400]].concat();
    let outer = move |peer: &mut Peer| padded(&peer.seal(&inside));
    assert_eq!(agreements()[0].index, BERLIN);
    vec![
        Row::passes(
            "link padding is not sealed",
            In::Clear(LAN, padded(&small)),
            Out::Sealed(BERLIN, forwarded(&small)),
        ),
        Row::passes("link padding behind the ICV", In::crafted(BERLIN, outer), expected),
        Row::drops("a jumbo frame", In::Clear(LAN, jumbo), DropReason::Oversize),
        Row::drops(
            "link padding that reaches beyond the frame's memory",
            In::crafted(BERLIN, beyond),
            DropReason::Oversize,
        )
        .with(|hub| hub.frame_bytes = 600),
        Row::drops("no frame at all", cut(0), DropReason::Malformed),
        Row::drops("a link header cut short", cut(13), DropReason::Malformed),
        Row::drops("a VLAN tag cut short", cut(17), DropReason::Malformed),
        Row::drops("a link header and nothing behind", cut(18), DropReason::Malformed),
    ]
}

/// An unprotected port with a tag, and one whose medium has no link header.
fn other_links(family: Family) -> Vec<Row> {
    let tagged: fn(&mut Hub) = |hub| hub.parts.ports[usize::from(WAN.0)].vlan = Some(40);
    let bare: fn(&mut Hub) = |hub| {
        hub.parts.ports[usize::from(WAN.0)].medium = Medium::Ip;
        hub.parts.neighbours.retain(|neighbour| neighbour.port != WAN);
    };
    let (out, back) = (datagram(family, 1, 2).ip(), datagram(family, 2, 1).ip());
    let (clear_out, clear_in) = (datagram(family, 1, 8).ip(), datagram(family, 8, 1).ip());
    let mut rows = vec![];
    for (what, hub) in [("a tagged", tagged), ("an IP", bare)] {
        rows.extend([
            Row::passes(
                format!("sealed by {what} port"),
                In::Clear(LAN, out.clone()),
                Out::Sealed(BERLIN, forwarded(&out)),
            )
            .with(hub),
            Row::passes(
                format!("opened by {what} port"),
                In::Sealed(BERLIN, back.clone()),
                Out::Clear(LAN, forwarded(&back)),
            )
            .with(hub),
            Row::passes(
                format!("in clear out by {what} port"),
                In::Clear(LAN, clear_out.clone()),
                Out::Clear(WAN, forwarded(&clear_out)),
            )
            .with(hub),
            Row::passes(
                format!("in clear in by {what} port"),
                In::Clear(WAN, clear_in.clone()),
                Out::Clear(LAN, forwarded(&clear_in)),
            )
            .with(hub),
        ]);
    }
    let untagged = In::Frame(WAN, frame(WAN_MAC, ROUTER_MAC, None, type_of(family), &clear_in));
    rows.push(
        Row::drops("untagged where only a tag is declared", untagged, DropReason::Vlan)
            .with(tagged),
    );
    rows
}
