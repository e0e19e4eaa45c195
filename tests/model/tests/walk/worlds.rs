//! Random small gateways: two unprotected ports, two protected ones, Linux, two or three peers,
//! nested routes with holes, and policies that overlap in every way.

use dataplane::path_mtu::{FLOOR_V4, FLOOR_V6};
use dataplane::{
    HostService, L4Checksum, Medium, Neighbour, NetdevId, NextHop, NextHopId, PortId, PortInfo,
    Prefix, RouteEntry, RouteTarget, Side,
};
use ipsec::{DontFragment, Dscp, Encapsulation, Mode, SequenceNumbers, Suite, Tunnel, UdpPorts};
use model::world::{Keys, Peer, Supply, World, set_id};
use policy::{
    Action, AddressRange, Direction, GroupMode, GroupSide, IcmpRange, Policy, PolicyId, PortRange,
    Selector, TcpSegments, UpperSelector,
};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use wire::{Address, Family};

/// Bytes of a frame that is received whole; longer ones are cut.
pub(crate) const ROOM: usize = 2048;

pub(crate) const LAN: PortId = PortId(0);
pub(crate) const DMZ: PortId = PortId(1);
pub(crate) const WAN: PortId = PortId(2);
pub(crate) const WAN_TAGGED: PortId = PortId(3);
pub(crate) const HOST: PortId = PortId(4);
/// VLAN ids of the tagged ports.
pub(crate) const DMZ_VLAN: u16 = 12;
pub(crate) const WAN_VLAN: u16 = 20;

/// Ports with their addresses and the router on their link.
const LINKS: [(PortId, [&str; 2], [&str; 2]); 5] = [
    (LAN, ["10.1.0.1", "2001:db8:1::1"], ["10.1.0.254", "2001:db8:1::fe"]),
    (DMZ, ["10.9.0.1", "2001:db8:9::1"], ["10.9.0.254", "2001:db8:9::fe"]),
    (WAN, ["192.0.2.1", "2001:db8:ff::1"], ["192.0.2.254", "2001:db8:ff::fe"]),
    (WAN_TAGGED, ["198.18.0.1", "2001:db8:fe::1"], ["198.18.0.254", "2001:db8:fe::fe"]),
    (HOST, ["10.8.0.1", "2001:db8:8::1"], ["10.8.0.254", "2001:db8:8::fe"]),
];

/// Networks on the links of every gateway.
const CONNECTED: [(PortId, &str); 8] = [
    (LAN, "10.1.0.0/16"),
    (LAN, "2001:db8:1::/48"),
    (DMZ, "10.9.0.0/24"),
    (DMZ, "2001:db8:9::/64"),
    (WAN, "192.0.2.0/24"),
    (WAN, "2001:db8:ff::/64"),
    (WAN_TAGGED, "198.18.0.0/24"),
    (WAN_TAGGED, "2001:db8:fe::/64"),
];

/// Destinations that some gateways route besides: nested in one another and in what is connected.
const ROUTED: [&str; 18] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.2.0.0/15",
    "10.2.0.0/16",
    "10.2.128.0/17",
    "10.2.255.0/24",
    "10.2.255.255/32",
    "10.3.0.0/32",
    "10.1.128.0/17",
    "203.0.113.0/24",
    "::/0",
    "2001:db8::/32",
    "2001:db8:2::/47",
    "2001:db8:2::/48",
    "2001:db8:2:8000::/49",
    "2001:db8:2:ffff:ffff:ffff:ffff:ffff/128",
    "2001:db8:1:8000::/49",
    "2001:db8:fd::/64",
];

const OUR_RANGES: [&str; 15] = [
    "10.1.0.0/16",
    "10.1.0.0/16",
    "10.1.0.10-10.1.0.11",
    "10.1.128.0/17",
    "10.9.0.0/24",
    "10.0.0.0/8",
    "192.0.2.1",
    "0.0.0.0/0",
    "2001:db8:ff::1",
    "2001:db8:1::/48",
    "2001:db8:1::/48",
    "2001:db8:1::a-2001:db8:1::b",
    "2001:db8:9::/64",
    "2001:db8::/32",
    "::/0",
];

const THEIR_RANGES: [&str; 16] = [
    "10.2.0.0/16",
    "10.2.0.0/16",
    "10.2.0.0-10.2.127.255",
    "10.2.255.255",
    "10.3.0.0/16",
    "10.2.255.0-10.3.0.255",
    "192.0.2.0/24",
    "198.51.100.7",
    "2001:db8:fd::9",
    "0.0.0.0/0",
    "2001:db8:2::/48",
    "2001:db8:2::-2001:db8:2:7fff:ffff:ffff:ffff:ffff",
    "2001:db8:3::/48",
    "2001:db8:2:ffff::-2001:db8:3::ff",
    "2001:db8:ff::/64",
    "::/0",
];

/// Our end and the peer's end of the tunnels, and the networks behind the peer.
const PEERS: [([&str; 2], [&str; 2]); 3] = [
    (["192.0.2.1", "198.51.100.7"], ["10.2.0.0/16", "2001:db8:2::/48"]),
    (["2001:db8:ff::1", "2001:db8:fd::9"], ["10.3.0.0/16", "2001:db8:3::/48"]),
    (["198.18.0.1", "203.0.113.9"], ["10.4.0.0/16", "2001:db8:4::/48"]),
];

pub(crate) fn address(text: &str) -> Address {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

pub(crate) fn range(text: &str) -> AddressRange {
    text.parse().unwrap()
}

fn prefix(text: &str) -> Prefix {
    let (first, length) = text.split_once('/').unwrap();
    Prefix { address: address(first), length: length.parse().unwrap() }
}

/// Link address number `n` of our own ports.
pub(crate) fn own_mac(port: PortId) -> [u8; 6] {
    [2, 0, 0, 0, 0, port.0 as u8]
}

/// A gateway.
pub(crate) fn a_world() -> impl Strategy<Value = World> {
    let mtus = [
        select(&[1500, 600][..]),
        select(&[1500, 1280][..]),
        select(&[1500, 1400, 700][..]),
        select(&[1500, 1299][..]),
    ];
    let policies = (2usize..9)
        .prop_flat_map(|count| {
            let ids: Vec<u32> = (0..100).collect();
            (prop::collection::vec(a_policy(), count), subsequence(ids, count).prop_shuffle())
        })
        .prop_map(|(policies, ids)| {
            let named = |(policy, id): (Policy, u32)| Policy {
                id: PolicyId(id),
                name: format!("p{id}"),
                ..policy
            };
            policies.into_iter().zip(ids).map(named).collect::<Vec<Policy>>()
        });
    let port_facts = (mtus, services(), any::<[bool; 4]>(), any::<[bool; 5]>());
    let policies = (policies, groups());
    (routes(), any::<u64>(), policies, peers(), port_facts, 1..=2u32).prop_map(
        |((routes, next_hops), unresolved, (policies, groups), peers, port_facts, workers)| {
            let (mtus, services, speechless, completing) = port_facts;
            World {
                ports: ports(mtus, services, speechless, completing),
                host: HOST,
                routes,
                next_hops,
                neighbours: neighbours(unresolved),
                policies: with_basics(policies, &peers).into_iter().chain(groups).collect(),
                peers,
                room: ROOM,
                workers,
            }
        },
    )
}

/// The ranges, with many more where they are to be long: a rule over lists is searched by labels.
fn with_many((mut ranges, is_long): (Vec<AddressRange>, bool)) -> Vec<AddressRange> {
    let more = (0..70u32).map(|n| range(&format!("198.51.200.{}", 3 * n)));
    ranges.extend(more.filter(|_| is_long));
    ranges
}

/// The security groups of ports: in half of the gateways there are none; else some sides of ports
/// have rules, and a last one that says what becomes of the rest.
fn groups() -> impl Strategy<Value = Vec<Policy>> {
    let mode = || prop_oneof![4 => Just(GroupMode::Enforce), 1 => Just(GroupMode::Audit)];
    let action =
        prop_oneof![3 => mode().prop_map(Action::Permit), 1 => mode().prop_map(Action::Deny)];
    let segments = prop::option::weighted(0.3, select(&TcpSegments::ALL[..]));
    let long = || prop::bool::weighted(0.2);
    let rule = (a_policy(), action, 0..3u32, any::<bool>(), segments, [long(), long()]).prop_map(
        |(policy, action, priority, is_turned, segments, long)| {
            // The other way round the addresses are those of answers.
            let Selector { local, remote, protocol, upper } = policy.selector;
            let (local, remote) = if is_turned { (remote, local) } else { (local, remote) };
            let [local, remote] = [(local, long[0]), (remote, long[1])].map(with_many);
            let (protocol, upper) = match (segments, upper.ports()) {
                (Some(segments), Some([local, remote])) => {
                    let (local, remote) = (local.to_vec(), remote.to_vec());
                    (Some(6), UpperSelector::Tcp { segments, local, remote })
                }
                (Some(segments), None) => {
                    let (local, remote) = (Vec::new(), Vec::new());
                    (Some(6), UpperSelector::Tcp { segments, local, remote })
                }
                (None, _) => (protocol, upper),
            };
            let selector = Selector { local, remote, protocol, upper };
            Policy { action, priority: 1 + priority, only: None, selector, ..policy }
        },
    );
    let last = prop_oneof![
        2 => mode().prop_map(Action::NoRule),
        // A rule that permits everything else.
        3 => Just(Action::Permit(GroupMode::Enforce)),
    ];
    let side = (select(&GroupSide::ALL[..]), 0..5u16, prop::collection::vec(rule, 0..4), last);
    let sides = prop_oneof![
        1 => Just(Vec::new()),
        1 => prop::collection::vec(side, 1..4),
    ];
    sides.prop_map(|sides| {
        let any = vec![AddressRange::any(Family::V4), AddressRange::any(Family::V6)];
        let mut all = Vec::new();
        for (side, port, mut rules, last) in sides {
            let selector = Selector {
                local: any.clone(),
                remote: any.clone(),
                protocol: None,
                upper: UpperSelector::Any,
            };
            rules.push(Policy {
                id: PolicyId(0),
                name: String::new(),
                action: last,
                priority: 0,
                only: None,
                group: None,
                ingress: None,
                selector,
            });
            all.extend(rules.into_iter().map(|rule| (side, port, rule)));
        }
        let of_side = |(place, (side, port, rule)): (usize, (GroupSide, u16, Policy))| Policy {
            id: PolicyId(400 + place as u32),
            name: format!("rule{place}"),
            group: Some(side),
            ingress: Some([port].into()),
            ..rule
        };
        all.into_iter().enumerate().map(of_side).collect()
    })
}

/// A gateway with two peers and nothing that surprises: the policies of [`with_basics`], everybody
/// resolved, the world behind the WAN port. Both inbound SAs have this suite, window and numbers.
pub(crate) fn a_plain_world(suite: Suite, window: u32, numbers: SequenceNumbers) -> World {
    const LINK: NextHopId = NextHopId(0);
    const WORLD: NextHopId = NextHopId(1);
    let router = Some(address(LINKS[usize::from(WAN.0)].2[0]));
    let next_hops =
        vec![NextHop { port: LAN, gateway: None }, NextHop { port: WAN, gateway: router }];
    let mut routes = vec![];
    for ours in ["10.1.0.0/16", "2001:db8:1::/48"] {
        routes.push(RouteEntry { prefix: prefix(ours), target: RouteTarget::Via(LINK) });
    }
    for everything in ["0.0.0.0/0", "::/0"] {
        routes.push(RouteEntry { prefix: prefix(everything), target: RouteTarget::Via(WORLD) });
    }
    for ours in PEERS.iter().map(|(ends, _)| address(ends[0])) {
        let length = ours.family.address_bits();
        routes.push(RouteEntry {
            prefix: Prefix { address: ours, length },
            target: RouteTarget::Local,
        });
    }
    let keys = |spi: u32| {
        let byte = |n: usize| (n as u8).wrapping_mul(7).wrapping_add(spi as u8);
        let material = (0..suite.material_bytes()).map(byte).collect();
        Keys { spi, suite, material, numbers, window, supply: Supply::Plenty }
    };
    let peer = |place: usize| Peer {
        carriage: ends(place).into(),
        mss_clamp: false,
        may_move: false,
        path_mtu: None,
        inbound: vec![keys(0x1000 + place as u32)],
        outbound: vec![keys(0x2000 + place as u32)],
    };
    let peers = vec![peer(0), peer(1)];
    World {
        ports: ports([1500; 4], vec![], [false; 4], [false; 5]),
        host: HOST,
        routes,
        next_hops,
        neighbours: neighbours(u64::MAX),
        policies: basics(&peers),
        peers,
        room: ROOM,
        workers: 1,
    }
}

/// A plain world of tunnels under AEADs, in every carriage, with several SAs a peer and direction:
/// most packets in it are common.
pub(crate) fn a_common_world() -> impl Strategy<Value = World> {
    let suite = select(&SUITES[..4]);
    let numbers = select(&[SequenceNumbers::Short, SequenceNumbers::Extended][..]);
    let window = select(&[32u32, 64, 4096][..]);
    let carriages = [a_carriage(), a_carriage()];
    (suite, window, numbers, carriages, any::<bool>(), 1..=2u32).prop_map(
        |(suite, window, numbers, carriages, mss_clamp, workers)| {
            let mut world = a_plain_world(suite, window, numbers);
            // More addresses of our own than a history takes away.
            for own in (1..=9).flat_map(|n| [format!("10.9.0.{n}"), format!("2001:db8:9::{n}")]) {
                let address = address(&own);
                let length = address.family.address_bits();
                let (prefix, target) = (Prefix { address, length }, RouteTarget::Local);
                world.routes.push(RouteEntry { prefix, target });
            }
            for (place, carriage) in carriages.into_iter().enumerate() {
                let peer = &mut world.peers[place];
                peer.carriage =
                    Encapsulation { mode: Mode::Tunnel, tunnel: ends(place), ..carriage };
                peer.mss_clamp = mss_clamp;
                for sas in [&mut peer.inbound, &mut peer.outbound] {
                    let mut other = sas[0].clone();
                    other.spi += 0x100;
                    other.material[0] ^= 1;
                    sas.push(other);
                }
            }
            World { workers, ..world }
        },
    )
}

/// A world with groups. Most of their rules that permit, and of those behind them all, let the
/// answers back, too.
pub(crate) fn a_tracking_world() -> impl Strategy<Value = World> {
    let world = prop_oneof![2 => a_common_world(), 1 => a_world().prop_map(with_neighbours)];
    let groups = groups().prop_filter("no groups", |groups| !groups.is_empty());
    (world, groups, any::<[u64; 2]>()).prop_map(|(mut world, groups, [some, others])| {
        world.policies.retain(|policy| policy.group.is_none());
        world.policies.extend(groups);
        for (place, rule) in world.policies.iter_mut().enumerate() {
            if let Action::Permit(mode) | Action::NoRule(mode) = rule.action
                && (some | others) >> (place % 64) & 1 == 1
            {
                rule.action = Action::Reflect(mode);
            }
        }
        world
    })
}

/// The two ends of a peer's tunnel.
fn ends(peer: usize) -> Tunnel {
    let [local, remote] = PEERS[peer].0.map(|text| text.parse().unwrap());
    Tunnel { local, remote }
}

fn ports(
    mtus: [u32; 4],
    services: Vec<HostService>,
    speechless: [bool; 4],
    completing: [bool; 5],
) -> Vec<PortInfo> {
    let port = |id: PortId, name: &str, netdev, vlan, side| PortInfo {
        name: name.into(),
        netdev: NetdevId(netdev),
        vlan,
        side,
        medium: if id == HOST { Medium::Ip } else { Medium::Ethernet },
        mac: if id == HOST { [0; 6] } else { own_mac(id) },
        mtu: mtus.get(usize::from(id.0)).copied().unwrap_or(1500),
        // Some ports have no address of their own to speak from, but the gateway has.
        addresses: match speechless.get(usize::from(id.0)) {
            Some(true) => vec![],
            _ => LINKS[usize::from(id.0)].1.map(address).to_vec(),
        },
        allow_host: if side == Side::Unprotected { services.clone() } else { vec![] },
        // On unprotected ports and from Linux it must have no effect.
        l4_checksum: match completing[usize::from(id.0)] {
            true => L4Checksum::Complete,
            false => L4Checksum::Pass,
        },
    };
    vec![
        port(LAN, "lan", 0, None, Side::Protected),
        port(DMZ, "dmz", 0, Some(DMZ_VLAN), Side::Protected),
        port(WAN, "wan", 1, None, Side::Unprotected),
        port(WAN_TAGGED, "wan20", 1, Some(WAN_VLAN), Side::Unprotected),
        port(HOST, "host", 2, None, Side::Protected),
    ]
}

/// The connected networks, our addresses, broadcasts, and some of [`ROUTED`].
fn routes() -> impl Strategy<Value = (Vec<RouteEntry>, Vec<NextHop>)> {
    let port = || select(&[LAN, DMZ, WAN, WAN, WAN_TAGGED, HOST][..]);
    let target = prop_oneof![
        1 => Just(None),
        6 => (port(), prop::bool::weighted(0.7)).prop_map(Some),
    ];
    let extra = (0..ROUTED.len(), target, prop::bool::weighted(0.2));
    let defaults = (prop::bool::weighted(0.85), port());
    (prop::collection::vec(extra, 0..7), defaults).prop_map(|(extra, (has_default, port))| {
        let (mut routes, mut hops) = (vec![], vec![]);
        let mut via = |port: PortId, gateway: Option<Address>| {
            hops.push(NextHop { port, gateway });
            RouteTarget::Via(NextHopId(hops.len() as u32 - 1))
        };
        let gateway = |port: PortId, family: Family| {
            Some(address(LINKS[usize::from(port.0)].2[family as usize]))
        };
        let mut add = |prefix, target| routes.push(RouteEntry { prefix, target });
        for (port, network) in CONNECTED {
            add(prefix(network), via(port, None));
        }
        for ours in LINKS.iter().flat_map(|link| link.1).map(address) {
            add(Prefix { address: ours, length: ours.family.address_bits() }, RouteTarget::Local);
        }
        for broadcast in ["10.1.255.255/32", "10.9.0.255/32", "192.0.2.255/32"] {
            add(prefix(broadcast), RouteTarget::Broadcast);
        }
        if has_default {
            let port = if port == HOST { WAN } else { port };
            add(prefix("0.0.0.0/0"), via(port, gateway(port, Family::V4)));
            add(prefix("::/0"), via(port, gateway(port, Family::V6)));
        }
        for (network, target, on_link) in extra {
            let network = prefix(ROUTED[network]);
            let target = match target {
                None if on_link => RouteTarget::Elsewhere,
                None => RouteTarget::Blackhole,
                Some((port, _)) if on_link => via(port, None),
                Some((port, true)) => via(port, gateway(port, network.address.family)),
                Some((_, false)) => via(WAN, gateway(WAN, network.address.family)),
            };
            add(network, target);
        }
        (routes, hops)
    })
}

/// Everybody who can be a next hop, less a few by the bits of `unresolved`.
/// The world with every neighbour known.
pub(crate) fn with_neighbours(world: World) -> World {
    World { neighbours: neighbours(u64::MAX), ..world }
}

fn neighbours(unresolved: u64) -> Vec<Neighbour> {
    let mut list = vec![];
    for (port, _, gateways) in LINKS {
        for text in gateways.iter().chain(&INTERESTING) {
            let (address, number) = (address(text), list.len() as u8);
            list.push(Neighbour { port, address, mac: [4, 0, 0, 0, port.0 as u8, number] });
        }
    }
    let mut place = 0;
    list.retain(|_| {
        place += 1;
        // One in eight is unknown.
        unresolved.rotate_left(place * 5) & 7 != 0
    });
    list
}

/// Addresses of packets besides those that routes and policies name.
pub(crate) const INTERESTING: [&str; 22] = [
    "10.1.0.10",
    "10.1.0.11",
    "10.1.255.254",
    "10.2.0.1",
    "10.2.127.255",
    "10.2.128.0",
    "10.2.255.255",
    "10.3.0.0",
    "10.3.0.1",
    "10.4.0.1",
    "10.9.0.7",
    "192.0.2.77",
    "2001:db8:1::a",
    "2001:db8:1::b",
    "2001:db8:2::1",
    "2001:db8:2:7fff:ffff:ffff:ffff:ffff",
    "2001:db8:2:8000::",
    "2001:db8:3::1",
    "2001:db8:4::1",
    "2001:db8:9::7",
    "2001:db8:ff::77",
    "203.0.113.9",
];

/// The policies that one would write: what is behind a peer goes to it sealed; in transport mode
/// what goes to itself.
fn basics(peers: &[Peer]) -> Vec<Policy> {
    let of = |(place, peer): (usize, &Peer)| {
        let one = |end: std::net::IpAddr| vec![range(&end.to_string())];
        let (local, remote) = match peer.carriage.mode {
            Mode::Tunnel => (
                vec![range("10.0.0.0/8"), range("2001:db8::/32")],
                PEERS[place].1.map(range).to_vec(),
            ),
            Mode::Transport => (one(peer.tunnel().local), one(peer.tunnel().remote)),
        };
        Policy {
            id: PolicyId(200 + place as u32),
            name: format!("peer{place}-net"),
            action: Action::Protect(set_id(place)),
            priority: 1,
            only: None,
            group: None,
            ingress: None,
            selector: Selector { local, remote, protocol: None, upper: UpperSelector::Any },
        }
    };
    peers.iter().enumerate().map(of).collect()
}

/// Two thirds of the gateways have [`basics`], half let through in clear what nothing else speaks
/// of; what is drawn lies over these or, by its priority, under them.
fn with_basics(mut policies: Vec<Policy>, peers: &[Peer]) -> Vec<Policy> {
    let drawn = policies.len();
    if !drawn.is_multiple_of(3) {
        policies.extend(basics(peers));
    }
    if drawn.is_multiple_of(2) {
        policies.push(Policy {
            id: PolicyId(300),
            name: "rest".into(),
            action: Action::Bypass,
            priority: 0,
            only: None,
            group: None,
            ingress: None,
            selector: Selector {
                local: vec![AddressRange::any(Family::V4), AddressRange::any(Family::V6)],
                remote: vec![AddressRange::any(Family::V4), AddressRange::any(Family::V6)],
                protocol: None,
                upper: UpperSelector::Any,
            },
        });
    }
    policies
}

/// The suites of peers: every kind of cipher, of ICV and of block.
const SUITES: [Suite; 8] = [
    Suite::Aes128Gcm,
    Suite::Aes192Gcm,
    Suite::Aes256Gcm,
    Suite::ChaCha20Poly1305,
    Suite::Aes128CbcSha256,
    Suite::Aes256CbcSha384,
    Suite::Aes256CbcSha512,
    Suite::NullSha256,
];

/// Up to two or three peers, each with its own way of carrying packets, several SAs in each
/// direction among them, some without any number to send with.
fn peers() -> impl Strategy<Value = Vec<Peer>> {
    let supply = prop_oneof![
        20 => Just(Supply::Plenty), 1 => Just(Supply::UsedUp), 1 => Just(Supply::NotReserved),
    ];
    let keys = |supply| (any::<u8>(), select(&[32u32, 64, 4096][..]), supply);
    let outbound = prop_oneof![
        1 => prop::collection::vec(keys(Just(Supply::UsedUp).boxed()), 0..3),
        9 => prop::collection::vec(keys(supply.boxed()), 1..4),
    ];
    let inbound = prop::collection::vec(
        (any::<u8>(), select(&[32u32, 64, 4096][..]), Just(Supply::Plenty)),
        1..3,
    );
    let algorithms = (select(&SUITES[..]), any::<bool>());
    let path_mtu = prop_oneof![
        3 => Just(None),
        1 => select(&[576u16, 577, 800, 1280, 1281, 1400, 1499, 1500, 9000][..]).prop_map(Some),
    ];
    let one = (a_carriage(), any::<[bool; 2]>(), path_mtu, algorithms, outbound, inbound);
    prop::collection::vec(one, 2..=PEERS.len()).prop_map(|list| {
        let mut next_spi = 0xff;
        let mut peers = vec![];
        for (place, (carriage, switches, path_mtu, algorithms, outbound, inbound)) in
            list.into_iter().enumerate()
        {
            let [mss_clamp, may_move] = switches;
            let floor = if ends(place).local.is_ipv4() { FLOOR_V4 } else { FLOOR_V6 } as u16;
            let mut keys = |(seed, window, supply): (u8, u32, Supply), direction: u8| {
                let ((suite, is_extended), numbers) = (algorithms, SequenceNumbers::Short);
                let numbers = if is_extended { SequenceNumbers::Extended } else { numbers };
                let byte = |n: usize| seed.wrapping_add(n as u8).wrapping_mul(direction | 1);
                let material = (0..suite.material_bytes()).map(byte).collect();
                next_spi += 1;
                Keys { spi: next_spi, suite, material, numbers, window, supply }
            };
            peers.push(Peer {
                outbound: outbound.into_iter().map(|drawn| keys(drawn, 1)).collect(),
                inbound: inbound.into_iter().map(|drawn| keys(drawn, 2)).collect(),
                carriage: Encapsulation { tunnel: ends(place), ..carriage },
                mss_clamp,
                may_move,
                path_mtu: path_mtu.map(|mtu| mtu.max(floor)),
            });
        }
        peers
    })
}

/// Generates the carriage of a peer's packets; whose is not said yet.
fn a_carriage() -> impl Strategy<Value = Encapsulation> {
    let mode = prop_oneof![3 => Just(Mode::Tunnel), 2 => Just(Mode::Transport)];
    let udp = prop_oneof![
        1 => Just(None),
        1 => select(&[4500, 61_234, 1][..])
            .prop_map(|remote| Some(UdpPorts { local: 4500, remote })),
    ];
    let dscp =
        prop_oneof![2 => Just(Dscp::Copy), 1 => select(&[0, 46, 63][..]).prop_map(Dscp::Fixed)];
    let dont_fragment = select(&[DontFragment::Set, DontFragment::Copy, DontFragment::Clear][..]);
    (mode, udp, dscp, dont_fragment).prop_map(|(mode, udp, dscp, dont_fragment)| Encapsulation {
        mode,
        tunnel: ends(0),
        udp,
        dscp,
        dont_fragment,
    })
}

fn services() -> impl Strategy<Value = Vec<HostService>> {
    let all = vec![
        HostService { protocol: 17, ports: Some(PortRange { lo: 500, hi: 500 }) },
        HostService { protocol: 17, ports: Some(PortRange { lo: 4500, hi: 4500 }) },
        HostService { protocol: 1, ports: None },
        HostService { protocol: 6, ports: Some(PortRange { lo: 22, hi: 80 }) },
    ];
    subsequence(all, 0..=4)
}

fn a_policy() -> impl Strategy<Value = Policy> {
    let action = prop_oneof![
        3 => any::<Index>().prop_map(|peer| Action::Protect(set_id(peer.index(2)))),
        3 => Just(Action::Bypass),
        1 => Just(Action::Discard),
    ];
    let only = prop_oneof![
        4 => Just(None),
        1 => Just(Some(Direction::Inbound)),
        1 => Just(Some(Direction::Outbound)),
    ];
    let ranges =
        |pool: &'static [&'static str]| prop::collection::vec(select(pool).prop_map(range), 1..4);
    let protocol = prop_oneof![3 => Just(None), 1 => Just(Some(6)), 2 => Just(Some(17)),
                               1 => Just(Some(1)), 1 => Just(Some(58)), 1 => Just(Some(47))];
    (action, only, 0..3u32, ranges(&OUR_RANGES), ranges(&THEIR_RANGES), protocol, an_upper())
        .prop_map(|(action, only, priority, local, remote, protocol, upper)| Policy {
            id: PolicyId(0),
            name: String::new(),
            action,
            priority,
            only,
            group: None,
            ingress: None,
            selector: Selector { local, remote, protocol, upper },
        })
}

fn an_upper() -> impl Strategy<Value = UpperSelector> {
    let port = || {
        let edge = select(&[(0, 65_535), (53, 53), (80, 443), (443, 443), (1024, 65_535)][..]);
        prop::collection::vec(edge.prop_map(|(lo, hi)| PortRange { lo, hi }), 0..3)
    };
    let message = select(&[(0x0800, 0x08ff), (0x0304, 0x0304), (0x8000, 0x81ff)][..]);
    let messages = prop::collection::vec(message.prop_map(|(lo, hi)| IcmpRange { lo, hi }), 0..3);
    prop_oneof![
        5 => Just(UpperSelector::Any),
        3 => (port(), port()).prop_map(|(local, remote)| UpperSelector::Ports { local, remote }),
        1 => messages.prop_map(UpperSelector::Icmp),
    ]
}
