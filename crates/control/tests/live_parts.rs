//! Tests the parts of a snapshot that come from the kernel's view.

use std::net::IpAddr;

use config::{Validated, parse};
use control::{
    Cure, LiveParts, LiveProblem, PortRefusalReason, PortState, check_netdevs, host_routes,
    live_parts,
};
use dataplane::{L4Checksum, NextHop, PortId, Prefix, RouteTarget};
use linux::{
    Hop, KernelRoute, LOCAL_TABLE, Link, LinkKind, MAIN_TABLE, NeighbourEntry, NeighbourState,
    Refused, RouteKind, RouteStatus, Usability, View,
};
use policy::AddressRange;
use proptest::prelude::*;
use wire::Address;

const TEXT: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
addresses = ["10.99.0.1/24"]
[port.dmz]
netdev = "eth1"
vlan = 12
side = "protected"
[port.wan]
netdev = "eth0"
side = "unprotected"
addresses = ["192.0.2.1/24"]
[peer.a]
local = "192.0.2.1"
remote = "198.51.100.1"
keys = "file:a"
manual = "laboratory"
suite = "aes-128-gcm"
[peer.b]
local = "192.0.2.1"
remote = "192.0.2.77"
keys = "file:b"
manual = "laboratory"
suite = "aes-128-gcm"
[[route]]
to = "10.77.0.0/16"
type = "blackhole"
[[neighbour]]
port = "wan"
address = "192.0.2.99"
mac = "02:00:00:00:00:99"
[[policy]]
name = "far"
peer = "a"
local = ["10.1.0.0/16"]
remote = ["10.2.0.0-10.2.2.255", "10.3.0.0/16"]
[[policy]]
name = "all"
peer = "a"
local = ["10.1.0.0/16"]
remote = ["any"]
priority = 1
[[policy]]
name = "none-of-ours"
peer = "a"
local = ["10.200.0.0/16"]
remote = ["10.4.0.0/16"]
"#;

const LAN: u32 = 11;
const WAN: u32 = 10;
const DMZ: u32 = 12;
const MANAGEMENT: u32 = 13;
const HOST: u32 = 14;

fn config() -> Validated {
    parse(TEXT, "test").unwrap_or_else(|errors| panic!("{errors}")).validated
}

fn ip(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

fn prefix(text: &str) -> Prefix {
    let range: AddressRange = text.parse().unwrap();
    Prefix { address: range.first(), length: range.prefix_length().unwrap() }
}

fn link(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.into(),
        mac: [2, 0, 0, 0, 0, index as u8],
        mtu: 1400 + index,
        admin_up: true,
        carrier: true,
        kind: LinkKind::Veth,
        ethernet: true,
        master: None,
        lower: None,
        queues: (1, 1),
    }
}

fn hop(link: u32, gateway: Option<&str>) -> Hop {
    Hop { link, gateway: gateway.map(ip), usability: Usability::Usable }
}

fn route(to: &str, kind: RouteKind, metric: u32, hops: &[Hop]) -> KernelRoute {
    KernelRoute {
        prefix: prefix(to),
        table: MAIN_TABLE,
        metric,
        protocol: 4,
        kind,
        hops: hops.to_vec(),
        source: None,
        standing: RouteStatus::Followed,
    }
}

fn by(to: &str, link: u32, gateway: Option<&str>) -> KernelRoute {
    route(to, RouteKind::Unicast, 0, &[hop(link, gateway)])
}

/// lan, wan, the VLAN netdev of dmz, a netdev that is no port, and the host port, all up.
fn view() -> View {
    let mut view = View::default();
    let mut dmz = link(DMZ, "vlan-of-dmz");
    (dmz.kind, dmz.lower) = (LinkKind::Vlan { parent: LAN, id: 12 }, Some(LAN));
    let mut host = link(HOST, "lockgate0");
    (host.kind, host.ethernet, host.mac, host.mtu) = (LinkKind::Tun, false, [0; 6], 1500);
    let links = [link(LAN, "eth1"), link(WAN, "eth0"), dmz, link(MANAGEMENT, "mgmt"), host];
    view.links = links.into_iter().map(|link| (link.index, link)).collect();
    view.addresses = [
        (LAN, ip("10.1.0.1"), 24),
        (LAN, ip("fe80::11"), 64),
        (LAN, ip("2001:db8:1::1"), 64),
        (WAN, ip("192.0.2.1"), 24),
        (DMZ, ip("10.9.0.1"), 24),
        (MANAGEMENT, ip("172.16.0.1"), 24),
        (MANAGEMENT, ip("fe80::13"), 64),
    ]
    .into();
    let routes = [
        by("10.1.0.0/24", LAN, None),
        by("192.0.2.0/24", WAN, None),
        by("10.9.0.0/24", DMZ, None),
        by("172.16.0.0/24", MANAGEMENT, None),
        by("0.0.0.0/0", WAN, Some("192.0.2.254")),
    ];
    routes.into_iter().for_each(|route| view.add_route(route));
    view
}

/// Returns the route of a destination: a word, or `PORT` or `PORT GATEWAY`.
fn way(live: &LiveParts, to: &str) -> String {
    let bits = ip(to).family.address_bits();
    let prefixes = (0..=bits)
        .rev()
        .map(|length| Prefix { address: AddressRange::network(ip(to), length).first(), length });
    match prefixes.filter_map(|prefix| live.routes.get(&prefix)).next() {
        None => "nowhere".into(),
        Some(RouteTarget::Local) => "local".into(),
        Some(RouteTarget::Broadcast) => "broadcast".into(),
        Some(RouteTarget::Blackhole) => "blackhole".into(),
        Some(RouteTarget::Elsewhere) => "elsewhere".into(),
        Some(RouteTarget::Via(hop)) => {
            let NextHop { port, gateway } = *hop;
            let port = &live.ports.at(usize::from(port.0)).name;
            gateway.map_or_else(|| port.clone(), |gateway| format!("{port} {gateway}"))
        }
    }
}

type Change = fn(&mut View);
/// Name of the case, change to the kernel's view, and the routes of destinations after it.
type Case = (&'static str, Change, &'static [(&'static str, &'static str)]);

#[test]
fn routes_become_what_the_walk_may_do() {
    let cases: &[Case] = &[
        (
            "the plain case",
            |_| {},
            &[
                ("10.1.0.9", "lan"),
                ("10.9.0.9", "dmz"),
                ("192.0.2.9", "wan"),
                ("8.8.8.8", "wan 192.0.2.254"),
                ("10.1.0.1", "local"),
                ("10.9.0.1", "local"),
                ("172.16.0.1", "local"),
                ("172.16.0.9", "elsewhere"),
                ("255.255.255.255", "broadcast"),
                ("127.0.0.1", "blackhole"),
                ("fe80::11", "local"),
                ("fe80::99", "elsewhere"),
                ("169.254.1.1", "elsewhere"),
                ("2001:db8:9::1", "nowhere"),
            ],
        ),
        (
            "another's link-local address may be the one that a netdev which is no port has",
            |_| {},
            &[("fe80::13", "elsewhere")],
        ),
        (
            "the configuration's own routes and addresses are for replay",
            |_| {},
            &[("10.77.0.1", "wan 192.0.2.254"), ("10.99.0.1", "wan 192.0.2.254")],
        ),
        (
            "a local table",
            |view| {
                let mut broadcast = by("10.1.0.255/32", LAN, None);
                (broadcast.table, broadcast.kind) = (LOCAL_TABLE, RouteKind::Broadcast);
                let mut any = by("10.5.0.0/24", LAN, None);
                (any.table, any.kind) = (LOCAL_TABLE, RouteKind::Local);
                // Main says otherwise, and is asked later.
                let routes = [broadcast, any, by("10.5.0.0/24", LAN, None)];
                routes.into_iter().for_each(|route| view.add_route(route));
            },
            &[("10.1.0.255", "broadcast"), ("10.5.0.7", "local")],
        ),
        (
            "routes that drop",
            |view| {
                view.add_route(route("10.6.0.0/16", RouteKind::Blackhole, 0, &[]));
                view.add_route(route("10.7.0.0/16", RouteKind::Unreachable, 0, &[]));
                view.add_route(route("10.8.0.0/16", RouteKind::Prohibit, 0, &[]));
            },
            &[("10.6.0.1", "blackhole"), ("10.7.0.1", "blackhole"), ("10.8.0.1", "blackhole")],
        ),
        (
            "the lowest metric wins, whatever the order",
            |view| {
                let way = |metric, link| route("10.6.0.0/16", RouteKind::Unicast, metric, &[link]);
                view.add_route(way(20, hop(WAN, None)));
                view.add_route(way(10, hop(LAN, Some("10.1.0.254"))));
            },
            &[("10.6.0.1", "lan 10.1.0.254")],
        ),
        (
            "of equals the kernel's first wins",
            |view| {
                view.add_route(by("10.6.0.0/16", LAN, Some("10.1.0.2")));
                view.add_route(by("10.6.0.0/16", LAN, Some("10.1.0.3")));
            },
            &[("10.6.0.1", "lan 10.1.0.2")],
        ),
        (
            "of ECMP the first usable way is used",
            |view| {
                let mut dead = hop(WAN, Some("192.0.2.250"));
                dead.usability = Usability::Dead;
                let hops = [dead, hop(LAN, Some("10.1.0.2")), hop(LAN, Some("10.1.0.3"))];
                view.add_route(route("10.6.0.0/16", RouteKind::Unicast, 0, &hops));
            },
            &[("10.6.0.1", "lan 10.1.0.2")],
        ),
        (
            "of ECMP over ports and other netdevs a port is used",
            |view| {
                let hops = [hop(MANAGEMENT, None), hop(LAN, Some("10.1.0.3"))];
                view.add_route(route("10.6.0.0/16", RouteKind::Unicast, 0, &hops));
            },
            &[("10.6.0.1", "lan 10.1.0.3")],
        ),
        (
            "a netdev that is no port takes it, though a worse route leads to a port",
            |view| {
                let way = |metric, link| route("10.6.0.0/16", RouteKind::Unicast, metric, &[link]);
                view.add_route(way(10, hop(MANAGEMENT, None)));
                view.add_route(way(20, hop(WAN, None)));
            },
            &[("10.6.0.1", "elsewhere")],
        ),
        (
            "a port that is down leads nowhere, and no wider route takes its place",
            |view| {
                view.add_route(by("10.6.0.0/16", LAN, None));
                view.links.get_mut(&LAN).unwrap().carrier = false;
            },
            &[("10.6.0.1", "elsewhere"), ("10.1.0.9", "elsewhere"), ("10.1.0.1", "local")],
        ),
        (
            "a port that is down makes the next metric of the same prefix good",
            |view| {
                let way = |metric, link| route("10.6.0.0/16", RouteKind::Unicast, metric, &[link]);
                view.add_route(way(10, hop(LAN, None)));
                view.add_route(way(20, hop(WAN, None)));
                view.links.get_mut(&LAN).unwrap().admin_up = false;
            },
            &[("10.6.0.1", "wan")],
        ),
        (
            "what Lockgate leads into the host port for the box itself is not there for others",
            |view| {
                let into_host = route("10.6.0.0/16", RouteKind::Unicast, 1, &[hop(HOST, None)]);
                view.add_route(into_host.clone());
                view.add_route(KernelRoute { prefix: prefix("10.1.0.0/24"), ..into_host });
            },
            &[("10.6.0.1", "wan 192.0.2.254"), ("10.1.0.9", "lan")],
        ),
        (
            "a refused route shadows wider ones",
            |view| {
                let mut tunnel = by("10.6.0.0/16", WAN, None);
                tunnel.standing = RouteStatus::Refused;
                view.add_route(tunnel);
            },
            &[("10.6.0.1", "elsewhere"), ("10.7.0.1", "wan 192.0.2.254")],
        ),
        (
            "what a refused rule may lead elsewhere shadows narrower routes too",
            |view| {
                view.shadows.insert((ip("10.0.0.0"), 8));
                view.shadows.insert((ip("11.1.0.0"), 16));
            },
            &[
                ("10.1.0.9", "elsewhere"),
                ("10.200.0.1", "elsewhere"),
                ("10.1.0.1", "local"),
                ("11.1.0.1", "elsewhere"),
                ("11.2.0.1", "wan 192.0.2.254"),
            ],
        ),
        (
            "a throw route is as if it were not there",
            |view| view.add_route(route("10.6.0.0/16", RouteKind::Throw, 0, &[])),
            &[("10.6.0.1", "wan 192.0.2.254")],
        ),
        (
            "IPv6: link-local routers, anycast, multicast",
            |view| {
                view.add_route(by("::/0", WAN, Some("fe80::1")));
                view.add_route(by("fe80::/64", LAN, None));
                view.add_route(by("ff00::/8", LAN, None));
                let mut anycast = by("2001:db8:1::/128", LAN, None);
                (anycast.table, anycast.kind) = (LOCAL_TABLE, RouteKind::Local);
                view.add_route(anycast);
            },
            &[
                ("2001:db8:9::1", "wan fe80::1"),
                ("2001:db8:1::1", "local"),
                ("2001:db8:1::", "local"),
                ("fe80::77", "elsewhere"),
                ("ff02::1", "wan fe80::1"),
            ],
        ),
        (
            "an IPv4 network behind an IPv6 router",
            |view| view.add_route(by("10.6.0.0/16", WAN, Some("fe80::1"))),
            &[("10.6.0.1", "wan fe80::1")],
        ),
    ];
    for (case, change, expected) in cases {
        let mut view = view();
        let before = (view.clone(), live_parts(&config(), &view));
        change(&mut view);
        let live = live_parts(&config(), &view);
        if let Some(followed) = before.1.followed(&before.0, &view) {
            assert_eq!(followed, live, "{case}");
        }
        for (to, way_of) in *expected {
            assert_eq!(way(&live, to), *way_of, "{case}: {to}");
        }
    }
}

#[test]
fn ports_have_the_addresses_mac_and_mtu_of_their_netdevs() {
    let live = live_parts(&config(), &view());
    let names: Vec<&str> = live.ports.iter().map(|(_, port)| port.name.as_str()).collect();
    assert_eq!(names, ["lan", "dmz", "wan", "host"]);
    let mtus: Vec<u32> = live.ports.iter().map(|(_, port)| port.mtu).collect();
    assert_eq!(mtus, [1400 + LAN, 1400 + DMZ, 1400 + WAN, 1500]);
    assert_eq!(live.ports.at(0).mac, [2, 0, 0, 0, 0, LAN as u8]);
    assert_eq!(live.ports.at(1).mac, [2, 0, 0, 0, 0, DMZ as u8]);
    // Good on one link only: last, since ICMP speaks from the first.
    let lan = [ip("10.1.0.1"), ip("2001:db8:1::1"), ip("fe80::11")];
    assert_eq!(live.ports.at(0).addresses, lan);
    assert_eq!(live.ports.at(1).addresses, [ip("10.9.0.1")]);
    // lan and dmz share a netdev.
    assert_eq!(live.netdevs, [Some(LAN), Some(WAN), Some(HOST)]);
    assert_eq!(live.links, [Some(LAN), Some(DMZ), Some(WAN), Some(HOST)]);
    assert_eq!(live.states, [PortState::Up; 4]);
    assert_eq!(live.port_of_link(DMZ), Some(PortId(1)));
    assert_eq!(live.problems, []);
}

#[test]
fn what_is_missing_is_told_and_takes_nothing_else_along() {
    let mut view = view();
    view.links.remove(&DMZ);
    view.links.remove(&HOST);
    view.links.get_mut(&LAN).unwrap().admin_up = false;
    view.links.get_mut(&WAN).unwrap().name = "eth7".into();
    view.addresses.retain(|(link, _, _)| *link != LAN);
    view.addresses.remove(&(WAN, ip("192.0.2.1"), 24));
    let live = live_parts(&config(), &view);
    assert_eq!(
        live.states,
        [PortState::Down, PortState::Down, PortState::Absent, PortState::Absent]
    );
    assert_eq!(live.netdevs, [Some(LAN), None, None]);
    let port = |name: &str| name.to_owned();
    assert_eq!(
        live.problems,
        [
            LiveProblem::NoAddress { port: port("lan"), netdev: "eth1".into() },
            LiveProblem::NoVlanNetdev { port: port("dmz"), netdev: "eth1".into(), vlan: 12 },
            LiveProblem::NoNetdev { port: port("wan"), netdev: "eth0".into() },
            LiveProblem::NoHostNetdev,
            LiveProblem::TunnelAddressAbsent { peer: "a".into(), address: ip("192.0.2.1") },
            LiveProblem::TunnelAddressAbsent { peer: "b".into(), address: ip("192.0.2.1") },
        ]
    );
    // The netdev that was wan is another's now.
    assert_eq!(way(&live, "8.8.8.8"), "elsewhere");
    assert!(live.neighbours.is_empty());
}

#[test]
fn ports_whose_packets_are_too_long_for_the_frames_are_told_with_a_cure() {
    // Bytes of a frame, the MTUs of lan and dmz, and what is told of lan's and dmz's.
    type Told = Option<Cure>;
    let cases: &[(usize, [u32; 2], [Told; 2])] = &[
        (2048, [1500, 1500], [None, None]),
        (2048, [1725, 68], [None, None]),
        (2048, [1726, 1500], [Some(Cure::Restart), None]),
        (2048, [3773, 1726], [Some(Cure::Restart), Some(Cure::Restart)]),
        (2048, [9000, 1725], [Some(Cure::Restart), None]),
        (4096, [3773, 1726], [None, None]),
        (4096, [3774, 1500], [Some(Cure::LowerMtu), None]),
        (4096, [65535, 9000], [Some(Cure::LowerMtu), Some(Cure::LowerMtu)]),
    ];
    for &(frame_bytes, mtus, told) in cases {
        let mut view = view();
        for (link, mtu) in [LAN, DMZ].into_iter().zip(mtus) {
            view.links.get_mut(&link).unwrap().mtu = mtu;
        }
        let mut live = live_parts(&config(), &view);
        live.judge_mtus(&view, frame_bytes);
        let expected: Vec<LiveProblem> = [("lan", "eth1"), ("dmz", "vlan-of-dmz")]
            .into_iter()
            .zip(mtus.into_iter().zip(told))
            .filter_map(|((port, netdev), (mtu, cure))| {
                let (port, netdev) = (port.to_owned(), netdev.to_owned());
                Some(LiveProblem::LongPackets { port, netdev, mtu, frame_bytes, cure: cure? })
            })
            .collect();
        assert_eq!(live.problems, expected, "{frame_bytes} {mtus:?}");
        for problem in live.problems {
            let (text, says_restart) = (problem.to_string(), frame_bytes == 2048);
            let most = dataplane::largest_mtu(frame_bytes);
            assert!(text.contains(&format!("{most} bytes at most")), "{text}");
            assert!(text.contains(&format!("mtu {most}")), "{text}");
            assert_eq!(text.contains("restart lockgated"), says_restart, "{text}");
        }
    }
    // Without its netdev nothing is told but that.
    let mut live = live_parts(&config(), &View::default());
    let before = live.problems.clone();
    live.judge_mtus(&View::default(), 2048);
    assert_eq!(live.problems, before);
}

#[test]
fn neighbours_are_used_while_the_kernel_would_use_them() {
    let mut view = view();
    let mac = [2, 0, 0, 0, 1, 1];
    let entry = |state, mac| NeighbourEntry { mac, state, managed: false };
    for (link, address, state, mac) in [
        (LAN, "10.1.0.2", NeighbourState::Good, Some(mac)),
        (LAN, "10.1.0.3", NeighbourState::Stale, Some(mac)),
        (LAN, "10.1.0.4", NeighbourState::Permanent, Some(mac)),
        (LAN, "10.1.0.5", NeighbourState::Failed, Some(mac)),
        (LAN, "10.1.0.6", NeighbourState::Unresolved, None),
        (DMZ, "10.9.0.2", NeighbourState::Good, Some(mac)),
        (MANAGEMENT, "172.16.0.2", NeighbourState::Good, Some(mac)),
    ] {
        view.neighbours.insert((link, ip(address)), entry(state, mac));
    }
    let live = live_parts(&config(), &view);
    let found: Vec<(u16, Address)> =
        live.neighbours.keys().map(|(port, address)| (port.0, *address)).collect();
    let expected =
        [(0, ip("10.1.0.2")), (0, ip("10.1.0.3")), (0, ip("10.1.0.4")), (1, ip("10.9.0.2"))];
    assert_eq!(found, expected);
}

#[test]
fn routers_and_peers_on_a_link_are_kept_fresh() {
    let live = live_parts(&config(), &view());
    let fresh: Vec<_> = live.fresh.into_iter().collect();
    assert_eq!(fresh, [(WAN, ip("192.0.2.77")), (WAN, ip("192.0.2.254"))]);
}

#[test]
fn netdevs_that_cannot_be_ports_are_refused_by_name() {
    type Reason = fn(&PortRefusalReason) -> bool;
    let cases: &[(Change, Reason, &str)] = &[
        (
            |view| view.links.get_mut(&LAN).unwrap().name = "eth3".into(),
            |reason| matches!(reason, PortRefusalReason::NoNetdev { .. }),
            "did you mean eth",
        ),
        (
            |view| view.links.get_mut(&LAN).unwrap().kind = LinkKind::BondMaster,
            |reason| matches!(reason, PortRefusalReason::BondMaster { .. }),
            "a bond",
        ),
        (
            |view| view.links.get_mut(&LAN).unwrap().kind = LinkKind::Bridge,
            |reason| matches!(reason, PortRefusalReason::Bridge { .. }),
            "a bridge",
        ),
        (
            |view| view.links.get_mut(&LAN).unwrap().kind = LinkKind::Loopback,
            |reason| matches!(reason, PortRefusalReason::Loopback { .. }),
            "loopback",
        ),
        (
            |view| view.links.get_mut(&LAN).unwrap().ethernet = false,
            |reason| matches!(reason, PortRefusalReason::NotEthernet { .. }),
            "does not carry Ethernet",
        ),
        (
            |view| {
                view.links.get_mut(&LAN).unwrap().kind = LinkKind::Vlan { parent: WAN, id: 9 };
            },
            |reason| matches!(reason, PortRefusalReason::VlanNetdev { id: 9, .. }),
            "netdev = \"eth0\" and vlan = 9",
        ),
        (
            |view| {
                let mut bridge = link(20, "br0");
                bridge.kind = LinkKind::Bridge;
                view.links.insert(20, bridge);
                view.links.get_mut(&LAN).unwrap().master = Some(20);
            },
            |reason| matches!(reason, PortRefusalReason::Member { .. }),
            "a member of bridge br0",
        ),
        (
            |view| {
                let mut vrf = link(20, "red");
                vrf.kind = LinkKind::Vrf;
                view.links.insert(20, vrf);
                view.links.get_mut(&DMZ).unwrap().master = Some(20);
            },
            |reason| matches!(reason, PortRefusalReason::Member { .. }),
            "vlan-of-dmz is a member of VRF red",
        ),
    ];
    assert_eq!(check_netdevs(&config(), &view()), Ok(()));
    for (change, is_reason, words) in cases {
        let mut view = view();
        change(&mut view);
        let refusals = check_netdevs(&config(), &view).expect_err(words);
        assert!(is_reason(&refusals[0].reason), "{words}: {refusals:?}");
        let text = refusals[0].to_string();
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn protected_far_nets_get_routes_into_the_host_port() {
    let (routes, skipped) = host_routes(&config(), &view());
    let shown: Vec<String> = routes
        .iter()
        .map(|route| {
            format!("{}/{} from {}", route.prefix.address, route.prefix.length, route.source)
        })
        .collect();
    assert_eq!(
        shown,
        ["10.2.0.0/23 from 10.1.0.1", "10.2.2.0/24 from 10.1.0.1", "10.3.0.0/16 from 10.1.0.1"]
    );
    let skipped: Vec<String> = skipped.iter().map(ToString::to_string).collect();
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    assert!(skipped[0].starts_with("policy none-of-ours: this machine has no address"));
    assert!(skipped[1].starts_with("policy all: its remote side is every address"));
}

/// A peer in transport mode is a far net of one address; its guard, the same policy.
#[test]
fn what_this_machine_says_to_a_transport_mode_peer_enters_the_walk_and_never_leaves_in_clear() {
    let text = "[node]\nname = \"n\"\n[port.wan]\nnetdev = \"eth0\"\nside = \"unprotected\"\n\
         [peer.p]\nlocal = \"192.0.2.1\"\nremote = \"198.51.100.1\"\nkeys = \"file:p\"\n\
         manual = \"laboratory\"\nsuite = \"aes-128-gcm\"\nmode = \"transport\"\n\
         [[policy]]\nname = \"p\"\npeer = \"p\"\nlocal = [\"192.0.2.1\"]\n\
         remote = [\"198.51.100.1\"]\n";
    let config = parse(text, "test").unwrap_or_else(|errors| panic!("{errors}")).validated;
    let (routes, skipped) = host_routes(&config, &view());
    assert_eq!((routes.len(), skipped.len()), (1, 0));
    let (to, source) = (ip("198.51.100.1"), ip("192.0.2.1"));
    assert_eq!((routes[0].prefix.address, routes[0].prefix.length), (to, 32));
    assert_eq!(routes[0].source, source);
    let lists = config.ports.iter().map(|port| (&*port.name, &port.allow_host[..]));
    let reserved = dataplane::carve_out::Reserved::nothing(lists);
    let guard = control::guard::Guard::new(&config, &view(), &reserved).unwrap().text();
    let drops = "ip saddr 192.0.2.1 ip daddr 198.51.100.1 counter drop";
    let [esp, ike, dropped] = ["meta l4proto esp accept", "udp dport { 500, 4500 } accept", drops]
        .map(|rule| guard.find(rule).unwrap_or_else(|| panic!("{rule} is not in\n{guard}")));
    assert!(esp < dropped && ike < dropped, "{guard}");
}

#[test]
fn refusals_say_what_they_are() {
    let refused = Refused::LightweightTunnel { address: ip("10.6.0.0"), length: 16 };
    assert!(refused.to_string().starts_with("the route to 10.6.0.0/16 uses a lightweight"));
}

/// The ports' treatment of unfinished checksums: lan, wan, dmz, host.
fn l4_checksums(live: &LiveParts) -> Vec<L4Checksum> {
    live.ports.iter().map(|(_, port)| port.l4_checksum).collect()
}

#[test]
fn checksums_are_completed_on_protected_ports_whose_netdev_leaves_them_unfinished() {
    use L4Checksum::{Complete, Pass};
    let of = |kind: LinkKind| {
        let mut view = view();
        view.links.get_mut(&LAN).unwrap().kind = kind;
        l4_checksums(&live_parts(&config(), &view))
    };
    // The tagged port dmz is on the same netdev; the host port is not one of them.
    let ports = live_parts(&config(), &view()).ports;
    let expected = |complete: &[&str]| -> Vec<L4Checksum> {
        let choose = |name: &str| if complete.contains(&name) { Complete } else { Pass };
        ports.iter().map(|(_, port)| choose(&port.name)).collect()
    };
    for kind in [LinkKind::Veth, LinkKind::Tun, LinkKind::Virtio] {
        assert_eq!(of(kind.clone()), expected(&["lan", "dmz"]), "{kind:?}");
    }
    for kind in [LinkKind::Physical, LinkKind::Other("macvlan".into())] {
        assert_eq!(of(kind.clone()), expected(&[]), "{kind:?}");
    }
    let mut passing = config();
    passing.ports.iter_mut().for_each(|port| port.l4_checksum = Pass);
    assert_eq!(l4_checksums(&live_parts(&passing, &view())), expected(&[]));
}

/// A change of routes and neighbours.
#[derive(Clone, Debug)]
enum Step {
    Route(KernelRoute),
    NoRoutes(Prefix),
    Neighbour((u32, Address), NeighbourState),
    NoNeighbour((u32, Address)),
}

fn step() -> impl Strategy<Value = Step> {
    let prefixes = ["0.0.0.0/0", "192.0.2.0/24", "192.0.2.77/32", "198.51.100.0/24", "10.6.0.0/16"];
    let to = || proptest::sample::select(prefixes.to_vec());
    let gateways = [None, Some("192.0.2.254"), Some("10.1.0.254"), Some("192.0.2.77")];
    let links = || proptest::sample::select(vec![LAN, WAN, DMZ, MANAGEMENT, HOST]);
    let kinds = [RouteKind::Unicast, RouteKind::Unicast, RouteKind::Local, RouteKind::Blackhole];
    let kind = proptest::sample::select(kinds.to_vec());
    let route_to = (to(), kind, 0u32..3, links(), proptest::sample::select(gateways.to_vec()));
    let one = route_to.prop_map(|(to, kind, metric, link, gateway)| {
        Step::Route(route(to, kind, metric, &[hop(link, gateway)]))
    });
    let states = [NeighbourState::Good, NeighbourState::Stale, NeighbourState::Failed];
    let who = || (links(), proptest::sample::select(vec!["192.0.2.254", "192.0.2.77", "10.1.0.9"]));
    let known = (who(), proptest::sample::select(states.to_vec()));
    prop_oneof![
        3 => one,
        2 => to().prop_map(|to| Step::NoRoutes(prefix(to))),
        2 => known.prop_map(|((link, at), state)| Step::Neighbour((link, ip(at)), state)),
        1 => who().prop_map(|(link, at)| Step::NoNeighbour((link, ip(at)))),
    ]
}

proptest! {
    /// Following any changes gives the same parts as reading everything anew.
    #[test]
    fn what_follows_is_what_reading_all_anew_says(
        steps in prop::collection::vec(prop::collection::vec(step(), 1..3), 1..12),
    ) {
        let config = config();
        let mut view = view();
        let mut live = live_parts(&config, &view);
        for changes in steps {
            let before = view.clone();
            for change in changes {
                match change {
                    Step::Route(route) => view.add_route(route),
                    Step::NoRoutes(prefix) => _ = view.routes.remove(&prefix),
                    Step::Neighbour(who, state) => {
                        let entry = NeighbourEntry { mac: Some([2; 6]), state, managed: false };
                        view.neighbours.insert(who, entry);
                    }
                    Step::NoNeighbour(who) => _ = view.neighbours.remove(&who),
                }
            }
            live = live.followed(&before, &view).expect("netdevs and addresses are the same");
            prop_assert_eq!(&live, &live_parts(&config, &view));
        }
    }
}
