//! A gateway with virtual networks, for the tests of this folder.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod memory;
pub mod picture;

use std::net::IpAddr;
use std::sync::Arc;

use bpf::tier::{FlowKey, Size, Tier};
use bpf::{BpfError, LinkForm, PortRule, Steering};
use dataplane::connections::Connections;
use dataplane::{
    L4Checksum, Medium, Neighbour, NetdevId, NextHop, NextHopId, Overlay, OverlayId, Overlays,
    PortId, PortInfo, Prefix, RouteEntry, RouteTarget, Side, Snapshot, SnapshotParts, SourceCheck,
    Sources, VirtualNetwork,
};
use endpoints::{Book, Change, Endpoint, EndpointKey, Table};
use placement::{Moment, PortPlace};
use policy::{
    Action, AddressRange, GroupMode, GroupSide, IcmpRange, Policy, PolicyId, PortRange, Selector,
    Spd, UpperSelector,
};
use proptest::prelude::*;
use proptest::sample::select;
use wire::build::PacketBuilder;
use wire::overlay::Kind;
use wire::{Address, LinkAddress, Vni};

/// Frames run through the program without a netdev come by the loopback's.
pub const LOOPBACK: u32 = 1;
pub const LAN: PortId = PortId(0);
pub const DMZ: PortId = PortId(1);
pub const DMZ_VLAN: u16 = 12;
pub const MACS: [[u8; 6]; 3] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]];
/// The lease: past every clock.
pub const FOREVER: u64 = u64::MAX;

/// Networks: of VXLAN without groups; with groups; of Geneve; of VXLAN on the tagged port; without
/// any check of senders.
pub const PLAIN: u32 = 7;
pub const GROUPED: u32 = 8;
pub const GENEVE: u32 = 9;
pub const TAGGED: u32 = 10;
pub const UNCHECKED: u32 = 0xff_ffff;
pub const NETWORKS: [u32; 5] = [PLAIN, GROUPED, GENEVE, TAGGED, UNCHECKED];

/// Hosts: on the link; behind a router; on the tagged link; outside; whose link address nobody
/// knows; behind nothing; and ourselves.
pub const HOSTS: [&str; 8] = [
    "10.1.0.11",
    "10.1.0.12",
    "10.3.0.5",
    "10.9.0.5",
    "198.51.100.7",
    "10.1.0.99",
    "10.66.0.1",
    "10.1.0.1",
];

/// A moment that both clocks tell alike.
pub fn moment(ns: u64) -> Moment {
    Moment { kernel_ns: ns, walk_ns: ns }
}

pub fn v4(text: &str) -> Address {
    Address::from(text.parse::<IpAddr>().expect("an address"))
}

pub fn vni(number: u32) -> Vni {
    Vni::new(number).expect("24 bits")
}

pub fn port(
    name: &str,
    vlan: Option<u16>,
    side: Side,
    mac: [u8; 6],
    own: &str,
    mtu: u32,
) -> PortInfo {
    PortInfo {
        name: name.into(),
        netdev: NetdevId(0),
        vlan,
        side,
        medium: Medium::Ethernet,
        mac,
        mtu,
        addresses: vec![v4(own)],
        allow_host: vec![],
        l4_checksum: L4Checksum::Pass,
    }
}

/// The overlays. `judged`: see [`snapshot`].
fn overlays(table: &Arc<Table>, judged: bool) -> Overlays {
    let overlay = |name: &str, kind, udp_port, port, own: &str| Overlay {
        name: name.into(),
        kind,
        udp_port,
        port,
        entrances: vec![v4(own)],
        direct_port: None,
    };
    let network = |number, overlay, attachment: Option<u16>, source_check| VirtualNetwork {
        vni: vni(number),
        overlay: OverlayId(overlay),
        attachment: attachment.or(judged.then_some(0x8000)),
        source_check,
    };
    Overlays::new(
        vec![
            overlay("vxlan", Kind::Vxlan, 4789, LAN, "10.1.0.1"),
            overlay("geneve", Kind::Geneve, 6081, LAN, "10.1.0.1"),
            overlay("tagged", Kind::Vxlan, 4789, DMZ, "10.9.0.1"),
        ],
        [
            network(PLAIN, 0, None, SourceCheck::Endpoint),
            network(GROUPED, 0, Some(0x8000), SourceCheck::Endpoint),
            network(GENEVE, 1, None, SourceCheck::Host),
            network(TAGGED, 2, None, SourceCheck::Endpoint),
            network(UNCHECKED, 0, None, SourceCheck::None),
        ],
        table.clone(),
    )
}

/// The gateway, with groups that permit everything. `judged`: they judge what is in every network,
/// not in one only.
pub fn snapshot(table: &Arc<Table>, judged: bool) -> Snapshot {
    ruled(table, (judged, Rules::Open), None)
}

/// The gateway with these rules, as it follows an earlier one.
pub fn ruled(table: &Arc<Table>, groups: (bool, Rules), earlier: Option<&Snapshot>) -> Snapshot {
    remembering(table, groups, earlier, None)
}

/// As [`ruled`], with a table of connections.
pub fn remembering(
    table: &Arc<Table>,
    (judged, rules): (bool, Rules),
    earlier: Option<&Snapshot>,
    connections: Option<Arc<Connections>>,
) -> Snapshot {
    let spd = match earlier {
        Some(earlier) => earlier.spd().renewed(rules.policies(), 100).expect("a few rules").0,
        None => Spd::new(rules.policies()).expect("a few rules"),
    };
    let route = |text: &str, length, target| RouteEntry {
        prefix: Prefix { address: v4(text), length },
        target,
    };
    let via = |hop| RouteTarget::Via(NextHopId(hop));
    let on_link = |port| NextHop { port, gateway: None };
    let neighbour =
        |port, text: &str, last| Neighbour { port, address: v4(text), mac: [2, 9, 0, 0, 0, last] };
    let parts = SnapshotParts {
        ports: vec![
            port("lan", None, Side::Protected, MACS[0], "10.1.0.1", 1500),
            PortInfo {
                l4_checksum: L4Checksum::Complete,
                ..port("dmz", Some(DMZ_VLAN), Side::Protected, MACS[1], "10.9.0.1", 900)
            },
            port("wan", Some(20), Side::Unprotected, MACS[2], "192.0.2.1", 1500),
        ],
        routes: vec![
            route("10.1.0.1", 32, RouteTarget::Local),
            route("10.9.0.1", 32, RouteTarget::Local),
            route("192.0.2.1", 32, RouteTarget::Local),
            route("10.1.0.0", 16, via(0)),
            route("10.3.0.0", 16, via(1)),
            route("10.9.0.0", 16, via(2)),
            route("0.0.0.0", 0, via(3)),
            route("10.66.0.0", 16, RouteTarget::Blackhole),
        ],
        next_hops: vec![
            on_link(LAN),
            NextHop { port: LAN, gateway: Some(v4("10.1.0.254")) },
            on_link(DMZ),
            on_link(PortId(2)),
        ],
        neighbours: vec![
            neighbour(LAN, "10.1.0.11", 11),
            neighbour(LAN, "10.1.0.12", 12),
            neighbour(LAN, "10.1.0.254", 254),
            neighbour(DMZ, "10.9.0.5", 5),
            neighbour(PortId(2), "198.51.100.7", 7),
        ],
        spd: spd.into(),
        overlays: Some(overlays(table, judged).into()),
        connections,
        ..SnapshotParts::default()
    };
    let sources = Sources::try_from(parts).expect("a small gateway");
    Snapshot::after(sources, earlier).expect("a small gateway")
}

pub fn place_of(port: PortId) -> Option<PortPlace> {
    let (vlan, mac, mtu) = match port {
        LAN => (None, MACS[0], 1500),
        DMZ => (Some(DMZ_VLAN), MACS[1], 900),
        _ => return None,
    };
    Some(PortPlace { ifindex: LOOPBACK, vlan, mac, mtu })
}

/// The rules of the group that judges what is in networks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// Everything is permitted.
    Open,
    /// All but DNS, and what is to tenant 2.
    Some,
    /// Nothing but TCP, pings and DNS; of tenant 3 nothing.
    Others,
    /// Connections are tracked, and everybody may begin one.
    Tracked,
    /// Only tenant 1 may begin connections, and everybody asks for names.
    Guarded,
    /// UDP is tried to be denied; everything is permitted.
    Audited,
}

pub const RULES: [Rules; 6] =
    [Rules::Open, Rules::Some, Rules::Others, Rules::Tracked, Rules::Guarded, Rules::Audited];

impl Rules {
    fn policies(self) -> Vec<Policy> {
        let permit = Action::Permit(GroupMode::Enforce);
        let deny = Action::Deny(GroupMode::Enforce);
        let (everyone, dns) = ((None, None), Some((17, 53)));
        let of = |tenant| (Some(tenant), None);
        let to = |tenant| (None, Some(tenant));
        let list = match self {
            Rules::Open => vec![(permit, everyone, None)],
            Rules::Some => {
                vec![(deny, everyone, dns), (deny, to(2), None), (permit, everyone, None)]
            }
            Rules::Others => vec![
                (deny, of(3), None),
                (permit, everyone, Some((6, 0))),
                (permit, everyone, Some((1, 8))),
                (permit, everyone, dns),
            ],
            Rules::Tracked => vec![(Action::Reflect(GroupMode::Enforce), everyone, None)],
            Rules::Guarded => {
                vec![(Action::Reflect(GroupMode::Enforce), of(1), None), (permit, everyone, dns)]
            }
            Rules::Audited => {
                vec![(Action::Deny(GroupMode::Audit), everyone, dns), (permit, everyone, None)]
            }
        };
        let number = 100 * (self as u32 + 1);
        (number..)
            .zip(list)
            .map(|(id, (action, ends, upper))| rule(id, action, ends, upper))
            .collect()
    }
}

/// A rule: source and destination, if not any; protocol with its port (0: any) or ICMP type.
fn rule(
    id: u32,
    action: Action,
    (from, to): (Option<u8>, Option<u8>),
    upper: Option<(u8, u16)>,
) -> Policy {
    let range = |number: Option<u8>| -> Vec<AddressRange> {
        let text = number.map_or("any".into(), |number| tenant(number).to_string());
        policy::selector::parse_addresses(&text).expect("words of the language")
    };
    let port = |port| vec![PortRange { lo: port, hi: port }];
    let upper_selector = match upper {
        Some((1, kind)) => UpperSelector::Icmp(vec![IcmpRange::of_type(kind as u8)]),
        Some((_, 0)) | None => UpperSelector::Any,
        Some((_, number)) => UpperSelector::Ports { local: vec![], remote: port(number) },
    };
    Policy {
        id: PolicyId(id),
        name: format!("rule {id}"),
        action,
        priority: 1000 - id,
        only: None,
        group: Some(GroupSide::In),
        ingress: Some(vec![0x8000].into()),
        selector: Selector {
            local: range(from),
            remote: range(to),
            protocol: upper.map(|(protocol, _)| protocol),
            upper: upper_selector,
        },
    }
}

/// A flow between two tenants of a network.
pub fn a_flow() -> impl Strategy<Value = FlowKey> {
    let upper = select(
        &[
            (6u8, [0x9c, 0x40, 1, 0xbb]),
            (17, [0x13, 0x88, 0, 53]),
            (17, [0x13, 0x88, 0, 54]),
            (1, [8, 0, 0, 0]),
            (50, [0; 4]),
        ][..],
    );
    let ends = (select(&NETWORKS[..]), 1..=TENANTS, 1..=TENANTS);
    (ends, upper).prop_map(|((vni, from, to), (protocol, upper))| {
        let address = |number| std::net::Ipv4Addr::from(tenant(number).value as u32);
        FlowKey { vni, source: address(from), destination: address(to), protocol, upper }
    })
}

/// The frame with a packet from one tenant to another, both on the first host's VXLAN network.
pub fn carried(
    network: u32,
    (from, to): (u8, u8),
    packet: impl FnOnce(PacketBuilder) -> PacketBuilder,
) -> Vec<u8> {
    let packet = packet(PacketBuilder::new(tenant(from), tenant(to)));
    let frame = packet.frame([2, 7, 7, 7, 7, 7], mac_of(from), None);
    let overlay = [&Kind::Vxlan.header(vni(network))[..], &frame].concat();
    PacketBuilder::new(v4(HOSTS[0]), v4("10.1.0.1"))
        .udp(0xc123, Kind::Vxlan.udp_port())
        .payload(&overlay)
        .frame(MACS[0], [2, 9, 0, 0, 0, 11], None)
}

/// Link address of a tenant.
pub fn mac_of(tenant: u8) -> [u8; 6] {
    [2, 7, 0, 0, 0, tenant]
}

pub fn tenant(number: u8) -> Address {
    Address::v4(0xac10_0000 | u32::from(number))
}

pub const TENANTS: u8 = 6;

pub fn an_endpoint() -> impl Strategy<Value = Endpoint> {
    let key = (select(&NETWORKS[..]), 1..=TENANTS, 0u8..12).prop_map(|(network, number, other)| {
        let address = match other {
            0 => Address::v6(0xfd00 << 112 | u128::from(number)),
            _ => tenant(number),
        };
        (EndpointKey { vni: vni(network), address }, number)
    });
    // Most hosts are on the first links.
    let host = prop_oneof![3 => select(&HOSTS[..4]), 1 => select(&HOSTS[..])];
    let host_mac =
        prop_oneof![3 => Just(None), 1 => Just(Some(LinkAddress::new([2, 8, 0, 0, 0, 1])))];
    (key, host, host_mac).prop_map(|((key, number), host, host_mac)| {
        let mac = LinkAddress::new(mac_of(number));
        Endpoint { key, host: v4(host), host_mac, mac }
    })
}

/// The endpoints of a world, each key once, with those that are tried to be placed.
pub fn a_world() -> impl Strategy<Value = (Vec<Endpoint>, Vec<bool>)> {
    let endpoints = prop::collection::vec(an_endpoint(), 4..60);
    let placed = prop::collection::vec(prop::bool::weighted(0.85), 60);
    (endpoints, placed)
}

pub fn book_of(endpoints: &[Endpoint]) -> Book {
    let mut book = Book::new(Table::new(128, &[7; 32]).expect("a small table"), 128);
    let changes: Vec<Change> =
        endpoints.iter().map(|endpoint| Change::Put { revision: 1, endpoint: *endpoint }).collect();
    book.apply(&changes);
    book
}

pub fn table_of(endpoints: &[Endpoint]) -> Arc<Table> {
    book_of(endpoints).table().clone()
}

/// A program with an empty tier, of which the lease holds; `None` (said aloud): no privilege.
pub fn program() -> Option<(Steering, Arc<Tier>)> {
    program_with(256)
}

/// A program with an empty tier of so many endpoints; as [`program`].
pub fn program_with(endpoints: u32) -> Option<(Steering, Arc<Tier>)> {
    let mut steering = match Steering::load(1, 1) {
        Ok(steering) => steering,
        Err(error @ (BpfError::NotPermitted { .. } | BpfError::Refused { .. })) => {
            eprintln!("SKIPPED: the kernel tier against the walk: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let rule = |vlan, mac, overlays: &[u16]| PortRule {
        vlan,
        side: bpf::Side::Protected,
        mac,
        services: vec![],
        overlays: overlays.to_vec(),
    };
    steering
        .set_ports(
            &[rule(None, MACS[0], &[4789, 6081]), rule(Some(DMZ_VLAN), MACS[1], &[4789])],
            LinkForm::Plain,
        )
        .expect("two ports");
    let tier = Tier::new(0x1234, Size { endpoints, flows: endpoints, networks: 16 })
        .expect("small tables");
    steering.add_tier(&tier, 1, 1).unwrap_or_else(|error| panic!("{error}"));
    tier.renew(FOREVER).expect("a lease");
    Some((steering, tier.into()))
}
