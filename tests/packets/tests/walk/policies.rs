//! Checks the SPD's answers both ways, the routes, and the gateway's own packets.

use std::sync::Arc;

use dataplane::Verdict::{self, Forward, Protect};
use dataplane::{DropReason, HostService, SetIndex};
use ipsec::OutboundSa;
use packets::lab::{
    BERLIN, CARLA, DORA, HOST, Hub, LAN, LAN2, Laboratory, ROUTER_MAC, WAN, agreements, frame,
    host, numbered, own, policy,
};
use packets::peer::{Agreement, Peer};
use packets::table::{forwarded, run};
use packets::{In, Out, Row};
use policy::{Action, PortRange, UpperSelector};
use wire::Family::{self, V4, V6};
use wire::build::PacketBuilder;
use wire::flow::protocol::{ICMP, ICMPV6, TCP, UDP};
use wire::link::ethertype;

use crate::{FAMILIES, between, datagram};

#[test]
fn policies_and_routes() {
    // FC-04, FC-41, FC-42, FC-44, XO-25, XO-33
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for family in FAMILIES {
        rows.extend(outbound(family));
        rows.extend(inbound_clear(family));
        rows.extend(selectors(family));
        rows.extend(quotes(family));
        rows.extend(hairpin(family));
        rows.extend(fragments(family));
        rows.extend(own_addresses(family));
        rows.extend(link_local(family));
        rows.extend(from_linux(family));
    }
    rows.extend(carve_outs());
    rows.extend(narrowed());
    rows.extend(broadcasts());
    rows
}

fn lan(packet: &[u8]) -> In {
    In::Clear(LAN, packet.to_vec())
}

fn wan(packet: &[u8]) -> In {
    In::Clear(WAN, packet.to_vec())
}

fn sealed(set: SetIndex, packet: &[u8]) -> In {
    In::Sealed(set, packet.to_vec())
}

fn to_dns(family: Family) -> PacketBuilder {
    let (ours, server) = match family {
        V4 => ("10.1.0.5", "9.9.9.9"),
        V6 => ("2001:db8:1::5", "2001:db8:53::9"),
    };
    PacketBuilder::between(ours, server)
}

fn from_dns(family: Family) -> PacketBuilder {
    let (ours, server) = match family {
        V4 => ("10.1.0.5", "9.9.9.9"),
        V6 => ("2001:db8:1::5", "2001:db8:53::9"),
    };
    PacketBuilder::between(server, ours)
}

fn outbound(family: Family) -> Vec<Row> {
    let bench = PacketBuilder::new(
        host(family, 1),
        match family {
            V4 => wire::Address::v4(0xc612_0005),
            V6 => host(V6, 198),
        },
    );
    let to = |network| datagram(family, 1, network).ip();
    let no_route = PacketBuilder::new(
        host(family, 1),
        match family {
            V4 => wire::Address::v4(0xac10_0001),
            V6 => wire::Address::v6(0x2a00 << 112 | 1),
        },
    );
    let query = to_dns(family).udp(4444, 53).payload_of(30).ip();
    let web = between(family, 1, 9).tcp(4444, 8500).ip();
    let echo = match family {
        V4 => between(V4, 1, 10).icmp(8, 0, [1; 4]).ip(),
        V6 => between(V6, 1, 10).icmp(128, 0, [1; 4]).ip(),
    };
    let mut rows = vec![
        // FC-42
        Row::drops("nothing speaks of it", lan(&to(200)), DropReason::NoMatch),
        // FC-41
        Row::passes(
            "of two equal priorities the newer decides",
            lan(&to(8)),
            Out::Clear(WAN, forwarded(&to(8))),
        ),
        Row::drops("DISCARD", lan(&bench.udp(1, 2).ip()), DropReason::PolicyDiscard),
        Row::passes("BYPASS", lan(&query), Out::Clear(WAN, forwarded(&query))),
        Row::drops(
            "another port than BYPASS names",
            lan(&to_dns(family).udp(53, 54).ip()),
            DropReason::NoMatch,
        ),
        Row::drops(
            "another protocol than BYPASS names",
            lan(&to_dns(family).tcp(4444, 53).ip()),
            DropReason::NoMatch,
        ),
        Row::passes(
            "PROTECT for a range of ports beats BYPASS for all",
            lan(&web),
            Out::Sealed(BERLIN, forwarded(&web)),
        ),
        Row::drops("no SA", lan(&datagram(family, 1, 5).ip()), DropReason::NoSa),
        Row::drops("no route", lan(&no_route.udp(1, 2).ip()), DropReason::NoRoute),
        Row::drops("no route to the peer", lan(&to(7)), DropReason::NoRoute),
        Row::drops("a blackhole", lan(&to(66)), DropReason::Blackhole),
    ];
    let echo_row = match family {
        V4 => Row::passes("an ICMP policy", lan(&echo), Out::Sealed(BERLIN, forwarded(&echo))),
        V6 => Row::drops("an ICMP policy for other types", lan(&echo), DropReason::NoMatch),
    };
    rows.push(echo_row);
    for (set, network) in [(BERLIN, 2), (CARLA, 3), (DORA, 4)] {
        let packet = to(network);
        let expected = Out::Sealed(set, forwarded(&packet));
        rows.push(Row::passes(format!("PROTECT by set {}", set.0), lan(&packet), expected));
    }
    // FC-04: a policy that names ports but no protocol speaks only of packets that have ports.
    let any_web: fn(&mut Hub) = |hub| {
        let both = ["10.200.0.0/16", "2001:db8:200::/48"];
        let mut any_web = policy("any-web", 300, Action::Bypass, &["any"], &both);
        let eighty = vec![PortRange { lo: 80, hi: 80 }];
        any_web.selector.upper = UpperSelector::Ports { local: vec![], remote: eighty };
        hub.policies.push(any_web);
        hub.policies = numbered(std::mem::take(&mut hub.policies));
    };
    let reply = if family == V4 { 0 } else { 129 };
    for (what, builder, passes) in [
        ("TCP 80", between(family, 1, 200).tcp(1, 80), true),
        ("UDP 80", between(family, 1, 200).udp(1, 80), true),
        ("TCP 81", between(family, 1, 200).tcp(1, 81), false),
        ("ICMP", between(family, 1, 200).icmp(reply, 0, [0; 4]), false),
        ("protocol 253", between(family, 1, 200).protocol(253).payload_of(8), false),
    ] {
        let packet = builder.ip();
        let what = format!("any protocol, port 80: {what}");
        let row = match passes {
            true => Row::passes(what, lan(&packet), Out::Clear(WAN, forwarded(&packet))),
            false => Row::drops(what, lan(&packet), DropReason::NoMatch),
        };
        rows.push(row.with(any_web));
    }
    rows
}

fn inbound_clear(family: Family) -> Vec<Row> {
    let from = |network| datagram(family, network, 1).ip();
    let answer = from_dns(family).udp(53, 4444).payload_of(30).ip();
    let to_box = PacketBuilder::new(host(family, 2), own(family, 1)).udp(1, 2).ip();
    let mut rows = vec![
        // XO-25: what a policy wants protected does not come in clear.
        Row::drops("berlin's in clear", wan(&from(2)), DropReason::Unprotected),
        Row::drops("berlin's in clear, to us", wan(&to_box), DropReason::Unprotected),
        Row::drops(
            "berlin's web answers in clear",
            wan(&between(family, 9, 1).tcp(443, 5).ip()),
            DropReason::Unprotected,
        ),
        Row::passes(
            "other ports of the same hosts",
            wan(&between(family, 9, 1).tcp(80, 5).ip()),
            Out::Clear(LAN, forwarded(&between(family, 9, 1).tcp(80, 5).ip())),
        ),
        Row::drops("nothing speaks of it", wan(&from(200)), DropReason::NoMatch),
        Row::passes("BYPASS", wan(&answer), Out::Clear(LAN, forwarded(&answer))),
        Row::drops(
            "a query from where only answers come",
            wan(&from_dns(family).udp(4444, 53).ip()),
            DropReason::NoMatch,
        ),
        Row::passes(
            "of two equal priorities the newer decides",
            wan(&from(8)),
            Out::Clear(LAN, forwarded(&from(8))),
        ),
        Row::drops(
            "in by a bypass, out again where nothing allows it",
            wan(&datagram(family, 8, 200).ip()),
            DropReason::NoMatch,
        ),
        Row::passes(
            "in by a bypass, out again sealed",
            wan(&datagram(family, 8, 2).ip()),
            Out::Sealed(BERLIN, forwarded(&datagram(family, 8, 2).ip())),
        ),
        Row::drops(
            "clear ESP to a host behind us",
            wan(&between(family, 200, 1).protocol(50).payload_of(40).ip()),
            DropReason::NoMatch,
        ),
    ];
    if family == V4 {
        let bench = PacketBuilder::v4("198.18.0.5", "10.1.0.5").udp(1, 2).ip();
        rows.push(Row::drops("DISCARD", wan(&bench), DropReason::PolicyDiscard));
        let out = datagram(V4, 1, 11).ip();
        let expected = Out::Clear(WAN, forwarded(&out));
        rows.push(Row::passes("a policy for out, out", lan(&out), expected));
        rows.push(Row::drops("a policy for out, in", wan(&from(11)), DropReason::NoMatch));
    }
    rows
}

/// RFC 4301 §5.2 step 4: what was opened must be what its SA is for.
fn selectors(family: Family) -> Vec<Row> {
    use DropReason::{NoMatch, PolicyDiscard, SelectorMismatch};
    let good = datagram(family, 2, 1).ip();
    let delivered = PacketBuilder::new(host(family, 2), own(family, 1)).udp(9, 9).ip();
    let on_lan2 = PacketBuilder::new(host(family, 2), own(family, 12)).udp(9, 9).ip();
    let web_answer = between(family, 9, 1).tcp(443, 5).ip();
    let forging = |what: &str, packet: Vec<u8>| {
        Row::drops(what, In::Sealed(BERLIN, packet), SelectorMismatch)
    };
    let mut rows = vec![
        Row::passes("berlin's own", sealed(BERLIN, &good), Out::Clear(LAN, forwarded(&good))),
        Row::delivers("berlin's to us", sealed(BERLIN, &delivered), delivered.clone()),
        Row::delivers("berlin's to us on lan2", sealed(BERLIN, &on_lan2), on_lan2.clone()),
        Row::passes(
            "a policy with ports, inbound",
            sealed(BERLIN, &web_answer),
            Out::Clear(LAN, forwarded(&web_answer)),
        ),
        forging("berlin as carla", datagram(family, 3, 1).ip()),
        forging("berlin as carla, to us", {
            PacketBuilder::new(host(family, 3), own(family, 1)).udp(9, 9).ip()
        }),
        forging("berlin as one of ours", datagram(family, 1, 12).ip()),
        forging("berlin as us", {
            PacketBuilder::new(own(family, 1), host(family, 12)).udp(9, 9).ip()
        }),
        forging("berlin as the name server", from_dns(family).udp(53, 4444).ip()),
        forging("berlin as a bypassed network", datagram(family, 8, 1).ip()),
        forging("berlin with a port that is bypassed", between(family, 9, 1).tcp(80, 5).ip()),
        forging("berlin as nobody", datagram(family, 200, 1).ip()),
        Row::passes(
            "opened, then bypassed",
            sealed(BERLIN, &datagram(family, 2, 8).ip()),
            Out::Clear(WAN, forwarded(&datagram(family, 2, 8).ip())),
        ),
        Row::drops("opened, then nothing", sealed(BERLIN, &datagram(family, 2, 200).ip()), NoMatch),
        Row::drops(
            "opened, no route",
            sealed(BERLIN, &datagram(family, 2, 66).ip()),
            DropReason::Blackhole,
        ),
    ];
    match family {
        V4 => {
            let bench = PacketBuilder::v4("198.18.0.5", "10.1.0.5").udp(1, 2).ip();
            rows.push(forging("berlin as a discarded network", bench));
        }
        V6 => {
            let packet = datagram(V6, 2, 198).ip();
            rows.push(Row::drops("opened, then DISCARD", sealed(BERLIN, &packet), PolicyDiscard));
        }
    }
    rows
}

fn unreachable(family: Family) -> (u8, u8) {
    if family == V4 { (3, 1) } else { (1, 3) }
}

/// RFC 4301 §6: an ICMP error inside a tunnel is judged by what it quotes, turned round.
fn quotes(family: Family) -> Vec<Row> {
    use DropReason::SelectorMismatch;
    let (kind, code) = unreachable(family);
    let anywhere = match family {
        V4 => wire::Address::v4(0xac10_0099),
        V6 => wire::Address::v6(0x2a00 << 112 | 0x99),
    };
    let error = |source, to: u32, quote: &[u8]| {
        let builder = PacketBuilder::new(source, host(family, to)).icmp(kind, code, [0; 4]);
        builder.payload(quote).ip()
    };
    let ours = datagram(family, 1, 2).ip();
    let good = error(host(family, 2), 1, &ours);
    let router = error(anywhere, 1, &ours);
    let shortest = error(anywhere, 1, &ours[..ours.len() - 33]);
    let spoke = error(anywhere, 3, &datagram(family, 3, 2).ip());
    let refused = |what: &str, packet: Vec<u8>| {
        Row::drops(what, In::Sealed(BERLIN, packet), SelectorMismatch)
    };
    let mut rows = vec![];
    for (what, packet) in
        [("the host's", &good), ("an unknown router's", &router), ("a short", &shortest)]
    {
        rows.push(Row::passes(
            format!("{what} ICMP error about our packet"),
            sealed(BERLIN, packet),
            Out::Clear(LAN, forwarded(packet)),
        ));
    }
    rows.extend([
        refused("an error to another than the quoted sender", error(anywhere, 12, &ours)),
        refused("an error to us about a host's packet", {
            let to_us = PacketBuilder::new(anywhere, own(family, 1)).icmp(kind, code, [0; 4]);
            to_us.payload(&ours).ip()
        }),
        refused(
            "an error about a packet to carla",
            error(anywhere, 1, &datagram(family, 1, 3).ip()),
        ),
        refused(
            "an error about a bypassed packet",
            error(anywhere, 1, &datagram(family, 1, 8).ip()),
        ),
        refused(
            "an error about berlin's own packet",
            error(anywhere, 1, &datagram(family, 2, 1).ip()),
        ),
        refused("an error that quotes nothing", error(host(family, 2), 1, &[])),
        refused("an error that quotes too little", error(host(family, 2), 1, &ours[..19])),
        refused("an error that quotes the other family", {
            let other = if family == V4 { V6 } else { V4 };
            error(host(family, 2), 1, &datagram(other, 1, 2).ip())
        }),
        // An unknown router's error about carla's packet goes no further than policies speak of it.
        Row::drops("carla's router is nobody's", sealed(BERLIN, &spoke), DropReason::NoMatch),
        Row::passes(
            "berlin's host answers carla",
            sealed(BERLIN, &error(host(family, 2), 3, &datagram(family, 3, 2).ip())),
            Out::Sealed(CARLA, forwarded(&error(host(family, 2), 3, &datagram(family, 3, 2).ip()))),
        ),
        Row::drops(
            "an error in clear about a protected packet",
            wan(&good),
            DropReason::Unprotected,
        ),
    ]);
    rows
}

/// Spoke to spoke: opened from one, sealed to the other.
fn hairpin(family: Family) -> Vec<Row> {
    let spokes = [(BERLIN, 2), (CARLA, 3), (DORA, 4)];
    let mut rows = vec![];
    for (from, source) in spokes {
        for (to, destination) in spokes {
            let packet = datagram(family, source, destination).ip();
            rows.push(Row::passes(
                format!("{family:?} from spoke {} to spoke {}", from.0, to.0),
                sealed(from, &packet),
                Out::Sealed(to, forwarded(&packet)),
            ));
        }
    }
    rows
}

/// FC-44: a later fragment never falls past a policy with ports (or ICMP types): it waits for its
/// first one.
fn fragments(family: Family) -> Vec<Row> {
    let icmp = if family == V4 { ICMP } else { ICMPV6 };
    let later = |from, to, protocol| {
        // Its first bytes look like the ports that the policy names.
        let payload = [1, 187, 1, 187, 0, 0, 0, 0];
        between(family, from, to).protocol(protocol).payload(&payload).fragment(7, true).ip()
    };
    // What protocol a later fragment says counts in IPv4 only (RFC 8200 §4.5).
    let another_protocol = |what: &str, packet, out| match family {
        V4 => Row::passes(what, packet, out),
        V6 => Row::waits(what, packet),
    };
    let first = |from, to, source, destination| {
        between(family, from, to).tcp(source, destination).payload_of(12).fragment(0, true).ip()
    };
    vec![
        Row::waits("later TCP fragment under a policy with ports", lan(&later(1, 9, TCP))),
        another_protocol(
            "later UDP fragment: that policy is about TCP",
            lan(&later(1, 9, UDP)),
            Out::Clear(WAN, forwarded(&later(1, 9, UDP))),
        ),
        Row::waits("later ICMP fragment under a policy with types", lan(&later(1, 10, icmp))),
        Row::waits(
            "later UDP fragment to the name server",
            lan(&to_dns(family).protocol(UDP).payload_of(8).fragment(7, false).ip()),
        ),
        Row::passes(
            "first TCP fragment, port 443",
            lan(&first(1, 9, 5, 443)),
            Out::Sealed(BERLIN, forwarded(&first(1, 9, 5, 443))),
        ),
        Row::passes(
            "first TCP fragment, port 80",
            lan(&first(1, 9, 5, 80)),
            Out::Clear(WAN, forwarded(&first(1, 9, 5, 80))),
        ),
        Row::waits("later TCP fragment in clear", wan(&later(9, 1, TCP))),
        another_protocol(
            "later UDP fragment in clear",
            wan(&later(9, 1, UDP)),
            Out::Clear(LAN, forwarded(&later(9, 1, UDP))),
        ),
        Row::waits("later TCP fragment, opened", sealed(BERLIN, &later(9, 1, TCP))),
        Row::waits("later TCP fragment, opened, then out", sealed(BERLIN, &later(2, 9, TCP))),
        Row::passes(
            "later TCP fragment under a policy without ports",
            lan(&later(1, 2, TCP)),
            Out::Sealed(BERLIN, forwarded(&later(1, 2, TCP))),
        ),
        Row::passes(
            "the same, opened",
            sealed(BERLIN, &later(2, 1, TCP)),
            Out::Clear(LAN, forwarded(&later(2, 1, TCP))),
        ),
    ]
}

/// Addresses that only we have.
fn own_addresses(family: Family) -> Vec<Row> {
    use DropReason::BadAddress;
    let ours = own(family, 1);
    let to_us = PacketBuilder::new(host(family, 1), ours).udp(1, 2).hop_limit(1).ip();
    let far_side = match family {
        V4 => PacketBuilder::v4("10.1.0.5", "192.0.2.1"),
        V6 => PacketBuilder::v6("2001:db8:1::5", "2001:db8:ff::1"),
    };
    let far_side = far_side.tcp(1, 22).ip();
    let esp_to_us = PacketBuilder::new(host(family, 1), ours).protocol(50).payload_of(60).ip();
    let from_us = |to: u32| PacketBuilder::new(ours, host(family, to)).udp(1, 2).ip();
    let to_ourselves = PacketBuilder::new(ours, own(family, 12)).udp(1, 2).ip();
    vec![
        Row::delivers("to us, hop limit 1", lan(&to_us), to_us.clone()),
        Row::delivers("to our outside address from inside", lan(&far_side), far_side.clone()),
        // ESP is opened on the unprotected side only.
        Row::delivers("ESP to us from inside", lan(&esp_to_us), esp_to_us.clone()),
        Row::drops("our address as source, to berlin", lan(&from_us(2)), BadAddress),
        Row::drops("our address as source, to lan2", lan(&from_us(12)), BadAddress),
        Row::drops("our address as source, to us", lan(&to_ourselves), BadAddress),
        Row::drops("our address as source, in clear from outside", wan(&from_us(12)), BadAddress)
            .with(allow_everything),
    ]
}

/// Everything may pass in clear, so that only the check at hand drops.
fn allow_everything(hub: &mut Hub) {
    hub.policies = numbered(vec![policy("all", 1, Action::Bypass, &["any"], &["any"])]);
}

/// Link-local addresses are never forwarded.
fn link_local(family: Family) -> Vec<Row> {
    use DropReason::BadAddress;
    let local = match family {
        V4 => wire::Address::v4(0xa9fe_0105),
        V6 => wire::Address::v6(0xfe80 << 112 | 5),
    };
    let source = |to| PacketBuilder::new(local, host(family, to)).udp(1, 2).ip();
    let destination = PacketBuilder::new(host(family, 1), local).udp(1, 2).ip();
    vec![
        Row::drops("link-local source, to lan2", lan(&source(12)), BadAddress),
        Row::drops("link-local source, out", lan(&source(2)), BadAddress),
        Row::drops("link-local source, in", wan(&source(1)), BadAddress).with(allow_everything),
        Row::drops("link-local destination on our link", lan(&destination), BadAddress),
        Row::drops("link-local destination, from Linux", In::Clear(HOST, destination), BadAddress),
    ]
}

/// Rows about packets of Linux on the gateway: the outbound walk, hop limit untouched, no router in
/// between.
fn from_linux(family: Family) -> Vec<Row> {
    let from_us = |to: u32| PacketBuilder::new(own(family, 1), host(family, to)).udp(1, 2);
    let linux = |packet: &[u8]| In::Clear(HOST, packet.to_vec());
    let same = |description: &str, packet: Vec<u8>, out: &dyn Fn(Vec<u8>) -> Out| {
        Row::passes(description, linux(&packet), out(packet.clone()))
    };
    vec![
        same("Linux to berlin", from_us(2).ip(), &|packet| Out::Sealed(BERLIN, packet)),
        same("Linux to dora, hop limit 1", from_us(4).hop_limit(1).ip(), &|packet| {
            Out::Sealed(DORA, packet)
        }),
        same("Linux to a bypassed network", from_us(8).ip(), &|packet| Out::Clear(WAN, packet)),
        same("Linux to lan", from_us(1).hop_limit(1).ip(), &|packet| Out::Clear(LAN, packet)),
        same("Linux to lan2", from_us(12).ip(), &|packet| Out::Clear(LAN2, packet)),
        Row::drops("Linux to nobody", linux(&from_us(200).ip()), DropReason::NoMatch),
        Row::drops("Linux to a blackhole", linux(&from_us(66).ip()), DropReason::Blackhole),
    ]
}

/// `allow_host` on the unprotected port. XO-33: no policy swallows IKE.
fn carve_outs() -> Vec<Row> {
    let everything_protected: fn(&mut Hub) = |hub| {
        let all = Action::Protect(hub.parts.sets[0].id);
        hub.policies = numbered(vec![policy("all", 1, all, &["any"], &["any"])]);
    };
    let to_us = |ends: (&str, &str)| PacketBuilder::between(ends.0, ends.1);
    let mut rows = vec![];
    let deliver = |what: &str, packet: Vec<u8>| {
        let row = Row::delivers(what, wan(&packet), packet.clone());
        [row.clone(), row.with(everything_protected)]
    };
    for ends in [("198.51.100.7", "192.0.2.1"), ("2001:db8:dd::4", "2001:db8:ff::1")] {
        let nat = |payload: &[u8]| to_us(ends).udp(4500, 4500).payload(payload).ip();
        rows.extend(deliver("IKE", to_us(ends).udp(500, 500).payload_of(40).ip()));
        rows.extend(deliver("IKE from any port", to_us(ends).udp(61_000, 500).payload_of(40).ip()));
        rows.extend(deliver("IKE behind NAT: the zero marker", nat(&[0, 0, 0, 0, 1, 2, 3, 4])));
        let own = to_us((ends.1, ends.1)).udp(500, 500).payload_of(40).ip();
        rows.push(Row::drops("IKE from our own address", wan(&own), DropReason::BadAddress));
        rows.extend(deliver("a local UDP fragment", {
            to_us(ends).protocol(UDP).payload_of(16).fragment(9, false).ip()
        }));
        for (what, packet) in [
            ("a zero marker cut short", nat(&[0, 0, 0])),
            ("nothing on UDP 4500", nat(&[])),
            ("an unlisted port", to_us(ends).udp(500, 501).ip()),
            ("TCP 500", to_us(ends).tcp(500, 500).ip()),
            ("SSH", to_us(ends).tcp(5, 22).ip()),
            (
                "an echo request",
                to_us(ends).icmp(if ends.0.contains(':') { 128 } else { 8 }, 0, [0; 4]).ip(),
            ),
        ] {
            rows.push(Row::drops(what, wan(&packet), DropReason::NoMatch));
            let row = Row::drops(what, wan(&packet), DropReason::Unprotected);
            rows.push(row.with(everything_protected));
        }
    }
    for family in FAMILIES {
        // Only for the box itself: behind it the policies decide.
        let behind = between(family, 200, 1).udp(500, 500).ip();
        rows.push(Row::drops("IKE to a host behind us", wan(&behind), DropReason::NoMatch));
        let zero = between(family, 200, 1).udp(4500, 4500).payload(&[0; 8]).ip();
        rows.push(Row::drops("4500 to a host behind us", wan(&zero), DropReason::NoMatch));
    }
    rows
}

/// `allow_host` decides only what no PROTECT or DISCARD policy wants (RFC 4301 §5.2).
// NARROW
// XO-33
fn narrowed() -> Vec<Row> {
    fn listing(hub: &mut Hub, decides: Option<Action>, remote: &str) {
        let service = |protocol, port| HostService {
            protocol,
            ports: Some(PortRange { lo: port, hi: port }),
        };
        let services = &mut hub.parts.ports[usize::from(WAN.0)].allow_host;
        services.extend([service(6, 22), service(17, 5353)]);
        services.push(HostService { protocol: 1, ports: None });
        let policy = decides.map(|action| policy("p", 1, action, &["any"], &[remote]));
        hub.policies = numbered(policy.into_iter().collect());
    }
    let nobody: fn(&mut Hub) = |hub| listing(hub, None, "any");
    let protected: fn(&mut Hub) = |hub| {
        let set = hub.parts.sets[0].id;
        listing(hub, Some(Action::Protect(set)), "any");
    };
    let elsewhere: fn(&mut Hub) = |hub| {
        let set = hub.parts.sets[0].id;
        listing(hub, Some(Action::Protect(set)), "203.0.113.0/24");
    };
    let discarded: fn(&mut Hub) = |hub| listing(hub, Some(Action::Discard), "any");
    let bypassed: fn(&mut Hub) = |hub| listing(hub, Some(Action::Bypass), "any");
    let to_us = PacketBuilder::v4("198.51.100.7", "192.0.2.1");
    let ssh = to_us.clone().tcp(5, 22).ip();
    let echo = to_us.clone().icmp(8, 0, [0; 4]).ip();
    let fragment = to_us.protocol(6).payload_of(16).fragment(9, false).ip();
    let mut rows = Vec::new();
    for (what, packet) in [("SSH", ssh), ("an echo", echo), ("a fragment", fragment)] {
        let row = |how| Row::delivers(format!("{what}, {how}"), wan(&packet), packet.clone());
        rows.push(row("no policy").with(nobody));
        rows.push(row("a policy for others").with(elsewhere));
        rows.push(row("a BYPASS policy").with(bypassed));
        for (policy, reason) in
            [(protected, DropReason::Unprotected), (discarded, DropReason::PolicyDiscard)]
        {
            rows.push(Row::drops(format!("listed {what}"), wan(&packet), reason).with(policy));
        }
    }
    let query = PacketBuilder::v4("198.51.100.7", "224.0.0.251").udp(5353, 5353).payload_of(8).ip();
    let group = [1, 0, 0x5e, 0, 0, 0xfb];
    let frame = frame(group, ROUTER_MAC, None, ethertype::IPV4, &query);
    let to_group = || In::Frame(WAN, frame.clone());
    rows.push(Row::new("a listed group, no policy", to_group(), Verdict::Host).with(nobody));
    rows.push(Row::drops("a listed group", to_group(), DropReason::Unprotected).with(protected));
    rows.push(Row::drops("a listed group", to_group(), DropReason::PolicyDiscard).with(discarded));
    rows
}

/// A subnet's broadcast address is nobody's packet to forward.
fn broadcasts() -> Vec<Row> {
    use DropReason::BadAddress;
    let from = |source: &str, destination: &str| {
        PacketBuilder::v4(source, destination).udp(1, 2).payload_of(8).ip()
    };
    vec![
        Row::drops("to lan2's broadcast", lan(&from("10.1.0.5", "10.12.255.255")), BadAddress),
        Row::drops("to lan's own broadcast", lan(&from("10.1.0.5", "10.1.255.255")), BadAddress),
        Row::drops("from a broadcast", lan(&from("10.1.255.255", "10.2.0.5")), BadAddress),
        Row::drops(
            "opened, to lan's broadcast",
            sealed(BERLIN, &from("10.2.0.5", "10.1.255.255")),
            BadAddress,
        ),
        Row::drops(
            "bypassed, to lan's broadcast",
            wan(&from("10.8.0.5", "10.1.255.255")),
            BadAddress,
        ),
        Row::drops(
            "Linux to a broadcast",
            In::Clear(HOST, from("10.1.0.1", "10.12.255.255")),
            BadAddress,
        ),
    ]
}

/// FC-38, FC-39: every packet of a flow is judged alike and counted on its policy.
#[test]
fn every_packet_of_a_flow_gets_its_verdict_and_is_counted_on_its_policy() {
    for family in FAMILIES {
        let mut lab = Laboratory::default();
        let bench = match family {
            V4 => PacketBuilder::v4("10.1.0.5", "198.18.0.5").udp(1, 2).payload_of(50),
            V6 => datagram(V6, 1, 198),
        };
        let flows = [
            (datagram(family, 1, 2).ip(), Protect(BERLIN), "berlin-net"),
            (datagram(family, 1, 8).ip(), Forward(WAN), "eight-new"),
            (bench.ip(), Verdict::Drop(DropReason::PolicyDiscard), "bench"),
        ];
        for (packet, verdict, name) in flows {
            let together = lab.send_all(LAN, &[&packet, &packet, &packet]);
            assert_eq!(together.verdicts, [verdict; 3]);
            assert_eq!(lab.send(LAN, &packet).verdicts, [verdict]);
            let policies = lab.snapshot.spd().policies();
            let place = policies.iter().position(|(_, policy)| policy.name == name).unwrap();
            let volume = lab.counters().policy_outbound[place];
            assert_eq!((volume.packets, volume.bytes), (4, 4 * packet.len() as u64), "{name}");
        }
        let back = datagram(family, 2, 1).ip();
        for _ in 0..3 {
            let outer = lab.peer(BERLIN).seal(&back);
            lab.send(WAN, &outer);
        }
        let volume =
            lab.counters().policy_inbound.iter().find(|volume| volume.packets > 0).unwrap();
        assert_eq!((volume.packets, volume.bytes), (3, 3 * back.len() as u64));
        assert_eq!(lab.counters().opened[0], *volume);
        assert_eq!(lab.counters().sealed[0].packets, 4);
    }
}

#[test]
fn between_protected_ports_no_policy_is_asked() {
    for family in FAMILIES {
        let mut hub = Hub::default();
        hub.policies.clear();
        let mut lab = hub.laboratory();
        let there = datagram(family, 1, 12).ip();
        assert_eq!(lab.send(LAN, &there).verdicts, [Forward(LAN2)]);
        assert_eq!(lab.send(LAN2, &datagram(family, 12, 1).ip()).verdicts, [Forward(LAN)]);
        assert_eq!(lab.counters().full_lookups, 0);
    }
}

/// FC-44: two fragments of one datagram get one verdict.
#[test]
fn all_fragments_of_a_datagram_are_sealed_under_a_policy_without_ports() {
    for family in FAMILIES {
        let mut lab = Laboratory::default();
        let first = between(family, 1, 2).udp(1, 2).payload_of(24).fragment(0, true).ip();
        let later = between(family, 1, 2).protocol(UDP).payload_of(8).fragment(4, false).ip();
        assert_eq!(lab.send_all(LAN, &[first, later]).verdicts, [Protect(BERLIN); 2]);
    }
}

/// A change of policies holds from the next packet on; SAs go on counting where they were.
#[test]
fn a_new_snapshot_decides_the_next_packet_and_keeps_numbers_and_windows() {
    for family in FAMILIES {
        let mut lab = Laboratory::default();
        let out = datagram(family, 1, 2).ip();
        let outer = lab.peer(BERLIN).seal(&datagram(family, 2, 1).ip());
        assert_eq!(lab.send(LAN, &out).verdicts, [Protect(BERLIN)]);
        assert_eq!(lab.send(WAN, &outer).verdicts, [Forward(LAN)]);

        let mut hub = Hub::default().keeping_sas_of(&lab.snapshot);
        hub.policies[0].action = Action::Discard;
        lab.publish(hub);
        assert_eq!(lab.send(LAN, &out).verdicts, [Verdict::Drop(DropReason::PolicyDiscard)]);

        lab.publish(Hub::default().keeping_sas_of(&lab.snapshot));
        let outcome = lab.send(LAN, &out);
        assert_eq!(lab.peer(BERLIN).open(&outcome.sent[0].packet).unwrap().sequence_low, 2);
        assert_eq!(lab.send(WAN, &outer).verdicts, [Verdict::Drop(DropReason::Replayed)]);
    }
}

/// FC-40: a policy names a set; what SA is in it may change under it.
#[test]
fn after_a_rekey_the_next_packet_carries_the_new_spi() {
    for family in FAMILIES {
        let mut lab = Laboratory::default();
        let out = datagram(family, 1, 2).ip();
        assert_eq!(lab.send(LAN, &out).verdicts, [Protect(BERLIN)]);
        let mut hub = Hub::default().keeping_sas_of(&lab.snapshot);
        let renewed = Agreement { spi_from_hub: 0x2fff, ..agreements()[0] };
        let old = hub.parts.outbound[0].clone();
        let spi = ipsec::Spi::new(renewed.spi_from_hub).unwrap();
        // The key stays in this test, so its counter must stay too.
        let key = renewed.material_from_hub();
        let counter = old.sequence.clone();
        let sa = OutboundSa::new(old.id, spi, old.set, &key, old.encapsulation, counter).unwrap();
        hub.parts.outbound[0] = Arc::new(sa);
        lab.publish(hub);
        let outcome = lab.send(LAN, &out);
        assert_eq!(outcome.verdicts, [Protect(BERLIN)]);
        assert_eq!(lab.peer(BERLIN).open(&outcome.sent[0].packet), None);
        let opened = Peer::new(renewed).open(&outcome.sent[0].packet).unwrap();
        assert_eq!(opened.inner, forwarded(&out));
    }
}
