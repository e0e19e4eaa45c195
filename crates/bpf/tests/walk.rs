//! The steering program against the walk's own first stage, over random frames: what it passes, the
//! walk would have left to Linux.

mod common;

use std::cell::Cell;

use bpf::{Action, Counter, Inside, LinkForm, Scope, Side, Steering};
use common::*;
use dataplane::carve_out::{OpenService, Packets, Reserved};
use dataplane::{
    HostService, Input, L4Checksum, Medium, NetdevId, NextHop, NextHopId, Overlay, Overlays,
    PortId, PortInfo, Prefix, RouteEntry, RouteTarget, SaSet, Sad, Snapshot, SnapshotParts,
    Sources, Verdict, Walk,
};
use ipsec::{
    Encapsulation, InboundSa, KeyMaterial, ReplayWindow, SaId, SequenceNumbers, Spi, Suite, Tunnel,
    UdpPorts,
};
use policy::{AddressRange, Policy, PolicyId, PortRange, SaSetId, Selector, Spd, UpperSelector};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use wire::build::PacketBuilder;
use wire::overlay::Kind;
use wire::{Address, Descriptor, Family, FrameId, Frames, HEADROOM};

/// One frame of memory.
struct OneFrame(Vec<u8>);

impl Frames for OneFrame {
    fn bytes(&self, _: FrameId) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self, _: FrameId) -> &mut [u8] {
        &mut self.0
    }
    fn many_mut<'f>(&'f mut self, frames: &[FrameId], into: &mut [&'f mut [u8]]) -> bool {
        match (frames, into) {
            ([_], [place]) => *place = &mut self.0,
            _ => return frames.is_empty(),
        }
        true
    }
    fn take(&mut self) -> Option<FrameId> {
        None
    }
    fn give(&mut self, _: FrameId) {}
}

/// A peer whose ESP comes in UDP.
const PEER: [u8; 4] = [198, 51, 100, 7];

/// SAs of [`PEER`], in UDP.
fn in_udp() -> Sad {
    let (id, set) = (SaId(0), SaSetId(1));
    let tunnel = Tunnel { local: [192, 0, 2, 1].into(), remote: PEER.into() };
    let udp = Some(UdpPorts { local: 4500, remote: 4500 });
    let encapsulation = Encapsulation { udp, ..Encapsulation::from(tunnel) };
    let suite = Suite::Aes128Gcm;
    let key = KeyMaterial::new(suite, &vec![1; suite.material_bytes()]).unwrap();
    let window = ReplayWindow::new(64, SequenceNumbers::Short).unwrap().into();
    let sa = InboundSa::new(id, Spi::LOWEST, set, &key, encapsulation, window).unwrap();
    let mut sad = Sad::default();
    sad.put_set(SaSet {
        id: set,
        peer: "peer".into(),
        tunnel,
        outbound: vec![],
        acquires: false,
        mss_clamp: false,
        may_move: false,
        moves_by_ike: false,
        keepalive_s: None,
        path_mtu: None,
        outer: None,
    });
    sad.put_inbound(sa.into()).unwrap();
    sad
}

/// The overlay of the untagged port, without networks.
fn overlays() -> Overlays {
    let overlay = Overlay {
        name: "fabric".into(),
        kind: Kind::Vxlan,
        udp_port: common::OVERLAY,
        port: PortId(0),
        entrances: vec![Address::from(address("10.1.0.1"))],
        direct_port: None,
    };
    let endpoints = endpoints::Table::new(1, &[0; 32]).expect("a small table");
    Overlays::new(vec![overlay], [], endpoints.into())
}

/// The rules of [`common`] as the walk has them.
fn snapshot(policies: Vec<Policy>, sad: Sad) -> (Snapshot, Reserved) {
    let port = |rule: bpf::PortRule| PortInfo {
        name: format!("port {:?}", rule.vlan),
        netdev: NetdevId(0),
        vlan: rule.vlan,
        side: match rule.side {
            Side::Protected => dataplane::Side::Protected,
            Side::Unprotected => dataplane::Side::Unprotected,
        },
        medium: Medium::Ethernet,
        mac: rule.mac,
        mtu: 1500,
        addresses: OWN
            .iter()
            .filter(|(_, side)| *side == rule.side)
            .map(|(text, _)| Address::from(address(text)))
            .collect(),
        allow_host: rule
            .services
            .iter()
            .map(|service| HostService {
                protocol: service.protocol,
                ports: service.ports.map(|(lo, hi)| PortRange { lo, hi }),
            })
            .collect(),
        l4_checksum: L4Checksum::Pass,
    };
    let own = |text: &str| address(text);
    let routes = inside()
        .into_iter()
        .map(|(prefix, inside)| RouteEntry {
            prefix: Prefix { address: prefix.address.into(), length: prefix.bits },
            target: match inside {
                _ if OWN.iter().any(|(text, _)| own(text) == prefix.address) => RouteTarget::Local,
                Inside::Yes => RouteTarget::Via(NextHopId(0)),
                Inside::No => RouteTarget::Via(NextHopId(1)),
            },
        })
        .collect();
    let hop = |port| NextHop { port: PortId(port), gateway: None };
    let parts = SnapshotParts {
        ports: ports().into_iter().map(port).collect(),
        routes,
        next_hops: vec![hop(0), hop(2)],
        overlays: Some(overlays().into()),
        ..SnapshotParts::default()
    };
    let spd = Spd::new(policies.clone()).expect("few policies").into();
    let parts = SnapshotParts { spd, ..parts };
    let mut sources = Sources::try_from(parts).expect("a small gateway");
    sources.sad = sad;
    let reserved = Reserved::by(&sources.ports, &sources.routes, &policies)
        .with_fragments_of(&sources.sad, &sources.ports);
    (Snapshot::after(sources, None).expect("a small gateway"), reserved)
}

/// Has the program pass what is not reserved.
fn reserve(steering: &mut Steering, snapshot: &Snapshot, reserved: &Reserved) {
    let mut rules = ports();
    for (place, rule) in rules.iter_mut().enumerate() {
        let id = PortId(place as u16);
        let open = reserved.open(&snapshot.port(id).name, &snapshot.port(id).allow_host);
        rule.services = open.iter().map(service_of).collect();
    }
    steering.set_ports(&rules, LinkForm::Plain).expect("few services");
}

fn service_of(open: &OpenService) -> bpf::Service {
    let scopes = [
        (Packets::TO_US, Scope::TO_US),
        (Packets::TO_GROUPS, Scope::TO_GROUPS),
        (Packets::FRAGMENTS, Scope::FRAGMENTS),
    ];
    let scope = scopes
        .into_iter()
        .filter(|(packets, _)| open.packets.has(*packets))
        .fold(Scope::NONE, |all, (_, scope)| all.and(scope));
    let HostService { protocol, ports } = open.service;
    bpf::Service { protocol, ports: ports.map(|range| (range.lo, range.hi)), scope }
}

/// Policies of different reach; a BYPASS in front of a DISCARD makes no difference to the program.
fn policies(which: usize) -> Vec<Policy> {
    let any = || ["any"].map(|text| policy::selector::parse_addresses(text).unwrap()).concat();
    let of = |id, action, local: Vec<AddressRange>, protocol, upper| Policy {
        id: PolicyId(id),
        name: format!("p{id}"),
        action,
        priority: id,
        only: None,
        group: None,
        ingress: None,
        selector: Selector { local, remote: any(), protocol, upper },
    };
    let ports = |lo, hi| UpperSelector::Ports { local: vec![PortRange { lo, hi }], remote: vec![] };
    let own = || policy::selector::parse_addresses("192.0.2.1").unwrap();
    let (discard, bypass) = (policy::Action::Discard, policy::Action::Bypass);
    match which {
        0 => vec![],
        1 => vec![of(1, discard, any(), None, UpperSelector::Any)],
        2 => vec![of(1, discard, own(), Some(TCP), ports(8005, 9000))],
        3 => vec![of(1, discard, any(), Some(ICMP), UpperSelector::Icmp(vec![]))],
        4 => vec![
            of(1, discard, any(), Some(UDP), UpperSelector::Any),
            of(2, bypass, any(), Some(UDP), ports(500, 500)),
        ],
        _ => vec![of(1, bypass, any(), None, UpperSelector::Any)],
    }
}

/// Returns the verdict of the walk on a frame.
fn walked(snapshot: &Snapshot, frame: &[u8]) -> Verdict {
    let mut frames = OneFrame([&[0; HEADROOM], frame].concat());
    let descriptor =
        Descriptor { frame: FrameId(0), offset: HEADROOM as u32, length: frame.len() as u32 };
    let mut out = dataplane::Outputs::default();
    let packets = [descriptor.into()];
    let input = Input::received(NetdevId(0), &packets);
    Walk::new(snapshot).run(snapshot, 0, input, &mut frames, &mut out);
    out.verdicts[0].expect("one verdict")
}

/// Returns whether the steering program leaves a frame to the worker because it is unusual,
/// although the walk would leave it to Linux.
fn is_unusual(frame: &[u8]) -> bool {
    let Some(link) = wire::link::Link::parse(frame) else { return false };
    let ip = &frame[link.length..];
    let said = match link.ethertype {
        wire::link::ethertype::IPV4 => 4,
        wire::link::ethertype::IPV6 => 6,
        _ => return link.is_group(), // the walk reads a group's payload as IP, whatever it is
    };
    let Some(first) = ip.first() else { return false };
    let flow = wire::packet::parse_group(ip);
    let hop_limit = if said == 4 { ip.get(8) } else { ip.get(7) };
    let is_discovery = flow.is_some_and(|flow| {
        flow.protocol == 58 && matches!(flow.upper, wire::Upper::Icmp { kind: 133..=137, .. })
    });
    let to_inside = flow.is_some_and(|flow| {
        let destination = flow.destination_address();
        OWN.iter().any(|(text, side)| {
            *side == Side::Protected && Address::from(address(text)) == destination
        })
    });
    let mapped = |value: u128| said == 6 && value >> 32 == 0xffff;
    // The worker learns path MTUs of it before it hands it on.
    let tells_mtu = wire::packet::parse(ip).is_ok_and(|packet| {
        packet.fragment == wire::Fragment::Whole && wire::icmp::is_too_big(&packet.flow)
    });
    tells_mtu && !link.is_group()
        || first >> 4 != said
        || said == 4 && *first != 0x45
        || is_discovery && (hop_limit != Some(&255) || is_fragment(ip))
        || link.is_group()
            && (to_inside
                || flow.is_some_and(|flow| {
                    flow.protocol == ESP || mapped(flow.source) || mapped(flow.destination)
                })
                // A quote's parser is lenient: source routes, fragments cut short.
                || wire::packet::parse(ip).is_err())
}

fn is_fragment(ip: &[u8]) -> bool {
    match wire::packet::parse(ip) {
        Ok(packet) => packet.fragment != wire::Fragment::Whole,
        Err(_) => true,
    }
}

const ADDRESSES: [&str; 30] = [
    "10.1.0.1",
    "10.1.0.1",
    "10.9.0.1",
    "169.254.3.4",
    "169.254.9.9",
    "192.0.2.1",
    "192.0.2.1",
    "192.0.2.1",
    "10.1.0.5",
    "10.2.0.5",
    "10.2.129.5",
    "10.2.200.1",
    "198.51.100.7",
    "224.0.0.18",
    "255.255.255.255",
    "127.0.0.1",
    "0.0.0.0",
    "2001:db8:1::1",
    "2001:db8:1::1",
    "2001:db8:ff::1",
    "2001:db8:ff::1",
    "fe80::1",
    "fe80::2",
    "fe80::9",
    "2001:db8:1::5",
    "2001:db8:1:8000::5",
    "2001:db8:fd::9",
    "ff02::1",
    "::",
    "::ffff:10.1.0.1",
];

fn an_address(family: Family) -> impl Strategy<Value = Address> {
    let all: Vec<Address> = ADDRESSES
        .iter()
        .map(|text| Address::from(address(text)))
        .filter(|address| address.family == family)
        .collect();
    select(all)
}

fn an_upper() -> impl Strategy<Value = (u8, u16, Vec<u8>)> {
    let port = select(
        &[500u16, 4500, 4500, common::OVERLAY, common::OVERLAY, 53, 7999, 8000, 8010, 8011][..],
    );
    let kind = prop_oneof![Just(8u16), Just(128), 132u16..139, 0u16..256];
    let payload = prop_oneof![
        Just(vec![0; 4]),
        Just(vec![0xff]),
        Just(vec![0, 0, 0, 0, 7, 7]),
        Just(vec![0; 24]),
        Just(Vec::new()),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    let protocol = prop_oneof![
        4 => Just(UDP), 2 => Just(TCP), 3 => Just(1u8), 1 => Just(ESP), 1 => Just(47u8),
        1 => Just(132u8), 1 => any::<u8>(),
    ];
    (protocol, prop_oneof![port, kind], payload)
}

/// A packet, right or nearly so.
fn a_packet() -> impl Strategy<Value = PacketBuilder> {
    let family = select(&[Family::V4, Family::V6][..]);
    let ends = family.prop_flat_map(|family| (an_address(family), an_address(family)));
    let hops = select(&[0u8, 1, 64, 255, 255][..]);
    let fragment = prop_oneof![
        5 => Just(None),
        1 => (select(&[0u16, 1, 3, 185, 8191][..]), any::<bool>()).prop_map(Some),
    ];
    let options = prop_oneof![
        6 => Just(Vec::new()),
        1 => Just(vec![0x94, 4, 0, 0]),
        1 => Just(vec![131, 3, 4]),
    ];
    let extensions = proptest::collection::vec(
        (select(&[0u8, 43, 44, 60, 135][..]), select(vec![vec![], vec![0u8, 1], vec![1; 20]])),
        0..3,
    );
    let extensions = prop_oneof![3 => Just(Vec::new()), 1 => extensions];
    (ends, an_upper(), hops, fragment, options, extensions).prop_map(
        |((source, destination), (protocol, number, payload), hops, fragment, options, chain)| {
            let mut packet = PacketBuilder::new(source, destination);
            packet = match protocol {
                UDP => packet.udp(number, number),
                TCP => packet.tcp(1, number),
                // "Fragmentation needed" and its neighbours, and all others.
                ICMP if number % 4 == 1 => packet.icmp(3, (number % 8) as u8, [0; 4]),
                ICMP => packet.icmp(u8::try_from(number).unwrap_or(135), 0, [0; 4]),
                other => packet.protocol(other),
            };
            packet = packet.payload(&payload).hop_limit(hops).options(&options);
            for (number, rest) in chain {
                packet = packet.extension(number, &rest);
            }
            match fragment {
                Some((offset, more)) => packet.fragment(offset, more),
                None => packet,
            }
        },
    )
}

/// A frame by one of the ports or none, whole or damaged.
fn a_frame() -> impl Strategy<Value = Vec<u8>> {
    let macs = [LAN_MAC, DMZ_MAC, WAN_MAC, OTHER_MAC, [0xff; 6], [1, 0, 0x5e, 0, 0, 1]];
    let port = prop_oneof![
        4 => Just((None, LAN_MAC)),
        2 => Just((Some(DMZ_VLAN), DMZ_MAC)),
        8 => Just((Some(WAN_VLAN), WAN_MAC)),
        1 => Just((Some(77), WAN_MAC)),
    ];
    let station = prop_oneof![4 => Just(None), 1 => select(macs.to_vec()).prop_map(Some)];
    let damage = prop_oneof![
        5 => Just(None),
        1 => (0usize..70, any::<u8>()).prop_map(Some),
    ];
    let cut = prop_oneof![8 => Just(usize::MAX), 1 => 14usize..80];
    (a_packet(), port, station, damage, cut, 0usize..8).prop_map(
        |(packet, (vlan, mac), station, damage, cut, padding)| {
            let mut frame = packet.frame(station.unwrap_or(mac), OTHER_MAC, vlan);
            frame.resize(frame.len() + padding, 0);
            if let Some((at, byte)) = damage
                && let Some(place) = frame.get_mut(at)
            {
                *place = byte;
            }
            frame.truncate(cut);
            frame
        },
    )
}

/// Counts of each answer seen, so that the test is known to test.
#[derive(Default)]
struct Seen {
    passed: Cell<u64>,
    to_worker: Cell<u64>,
    unusual: Cell<u64>,
}

fn agree(
    steering: &Steering,
    snapshot: &Snapshot,
    frame: &[u8],
    seen: &Seen,
) -> Result<(), TestCaseError> {
    let run = steering.run(frame).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let verdict = walked(snapshot, frame);
    let count = |cell: &Cell<u64>| cell.set(cell.get() + 1);
    match (run.action, verdict) {
        (Action::Pass, Verdict::Host) => count(&seen.passed),
        (Action::Redirect, Verdict::Host) if is_unusual(frame) => count(&seen.unusual),
        (Action::Redirect, Verdict::Host) => {
            prop_assert!(false, "the walk leaves it to Linux, the program does not: {frame:02x?}")
        }
        (Action::Redirect, _) => count(&seen.to_worker),
        (action, verdict) => {
            prop_assert!(false, "{action:?}, but the walk says {verdict:?}: {frame:02x?}")
        }
    }
    Ok(())
}

/// Returns the number of random frames: `few`, or `many` in a long hunt (`LOCKGATE_LONG`).
fn cases(few: u32, many: u32) -> u32 {
    if std::env::var_os("LOCKGATE_LONG").is_some() { many } else { few }
}

// NARROW
#[test]
fn what_a_policy_wants_is_never_passed_and_the_rest_is_as_before() {
    let Some((mut steering, _socket)) = steering("policies against walk") else { return };
    for which in 0..6 {
        let (snapshot, reserved) = snapshot(policies(which), Sad::default());
        reserve(&mut steering, &snapshot, &reserved);
        let config =
            Config { cases: cases(4_000, 8_000), failure_persistence: None, ..Config::default() };
        let result = TestRunner::new(config).run(&a_frame(), |frame| {
            let run = steering.run(&frame);
            let run = run.map_err(|error| TestCaseError::fail(error.to_string()))?;
            let verdict = walked(&snapshot, &frame);
            if run.action == Action::Pass {
                prop_assert_eq!(verdict, Verdict::Host, "policies {}: {:02x?}", which, frame);
            }
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
        // A frame of each kind, with what the program must do while these policies run.
        let to_us = |packet: PacketBuilder| packet.frame(WAN_MAC, OTHER_MAC, Some(WAN_VLAN));
        let from = || PacketBuilder::v4("198.51.100.7", "192.0.2.1");
        let cases = [
            (from().udp(500, 500).payload(&[1; 20]), [true; 6]),
            (from().udp(4500, 4500).payload(&[0; 24]), [true; 6]),
            (from().tcp(1, 8000), [true, false, false, true, true, true]),
            (from().icmp(8, 0, [0; 4]), [true, false, true, false, true, true]),
        ];
        for (packet, passes) in cases {
            let run = steering.run(&to_us(packet.clone())).unwrap();
            let expected = if passes[which] { Action::Pass } else { Action::Redirect };
            assert_eq!(run.action, expected, "policies {which}: {packet:?}");
        }
    }
}

/// UDP to us, whole.
fn to_us(from: &str, port: u16, payload: &[u8]) -> PacketBuilder {
    let packet = match from.contains(':') {
        false => PacketBuilder::v4(from, "192.0.2.1"),
        true => PacketBuilder::v6(from, "2001:db8:ff::1"),
    };
    packet.udp(port, port).payload(payload)
}

// REASM
#[test]
fn fragments_of_one_datagram_go_the_same_way_and_with_a_peer_in_udp_to_the_worker() {
    let Some((mut steering, _socket)) = steering("fragments of ESP in UDP") else { return };
    let froms = ["198.51.100.7", "203.0.113.9", "2001:db8:fd::9"];
    for (which, has_peer) in (0..6).flat_map(|which| [(which, false), (which, true)]) {
        let sad = if has_peer { in_udp() } else { Sad::default() };
        let (snapshot, reserved) = snapshot(policies(which), sad);
        reserve(&mut steering, &snapshot, &reserved);
        let run = |packet: PacketBuilder| {
            steering.run(&packet.frame(WAN_MAC, OTHER_MAC, Some(WAN_VLAN))).unwrap().action
        };
        let in_two = |packet: PacketBuilder| {
            [run(packet.clone().fragment(0, true)), run(packet.fragment(4, false))]
        };
        let of_ike = if has_peer { Action::Redirect } else { Action::Pass };
        for from in froms {
            let whole = run(to_us(from, 500, &[1; 24]));
            let ike = in_two(to_us(from, 500, &[1; 24]));
            let with_marker = in_two(to_us(from, 4500, &[0; 24]));
            let esp = in_two(to_us(from, 4500, &[1; 24]));
            let seen = (whole, ike, with_marker, esp);
            let expected = (Action::Pass, [of_ike; 2], [of_ike; 2], [Action::Redirect, of_ike]);
            assert_eq!(seen, expected, "policies {which}, from {from}");
        }
        // Of another protocol: where policies want one fragment, they get all.
        let [first, later] =
            in_two(PacketBuilder::v4("203.0.113.9", "192.0.2.1").tcp(1, 8000).payload_of(28));
        assert_eq!(first, later, "policies {which}");
    }
}

// REASM
#[test]
fn with_a_peer_in_udp_nothing_is_passed_that_the_walk_does_not_leave_to_linux() {
    let Some((mut steering, _socket)) = steering("a peer in UDP against walk") else { return };
    let (snapshot, reserved) = snapshot(vec![], in_udp());
    reserve(&mut steering, &snapshot, &reserved);
    let config =
        Config { cases: cases(8_000, 20_000), failure_persistence: None, ..Config::default() };
    let (passed, fragments) = (Cell::new(0), Cell::new(0));
    let result = TestRunner::new(config).run(&a_frame(), |frame| {
        let run = steering.run(&frame);
        let run = run.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let verdict = walked(&snapshot, &frame);
        if run.action == Action::Pass {
            prop_assert_eq!(verdict, Verdict::Host, "{:02x?}", frame);
            passed.set(passed.get() + 1);
        }
        if is_fragment_of_udp_to_us(&frame) {
            prop_assert_ne!(run.action, Action::Pass, "{:02x?}", frame);
            fragments.set(fragments.get() + 1);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    println!("{passed:?} passed, {fragments:?} fragments of UDP to us");
    assert!(passed.get() > 200 && fragments.get() > 8, "{passed:?} {fragments:?}");
}

/// Returns whether a frame by the unprotected port is a fragment of UDP to us.
fn is_fragment_of_udp_to_us(frame: &[u8]) -> bool {
    let tag = [0x81, 0, 0, WAN_VLAN as u8];
    if !frame.starts_with(&WAN_MAC) || frame.get(12..16) != Some(&tag) {
        return false;
    }
    let packet = frame.get(18..).map(wire::packet::parse);
    packet.and_then(Result::ok).is_some_and(|packet| {
        packet.flow.protocol == UDP && packet.fragment != wire::Fragment::Whole
    })
}

#[test]
fn what_is_passed_the_walk_would_leave_to_linux() {
    let Some((steering, _socket)) = steering("program against walk") else { return };
    let ((snapshot, _), seen) = (snapshot(vec![], Sad::default()), Seen::default());
    let cases = cases(40_000, 200_000);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let result = runner.run(&a_frame(), |frame| agree(&steering, &snapshot, &frame, &seen));
    if let Err(error) = result {
        panic!("{error}");
    }
    let Seen { passed, to_worker, unusual } = seen;
    println!("passed {passed:?}, to the worker {to_worker:?}, unusual {unusual:?}");
    assert!(passed.get() > 3_000 && to_worker.get() > 3_000 && unusual.get() > 50);
    let counters = steering.counters().unwrap();
    assert_eq!(counters.received(), u64::from(cases));
    for counter in [Counter::PassedToHost, Counter::PassedAllowHost, Counter::PassedArpNd] {
        assert!(counters.of(counter) > 10, "{}: {}", counter.name(), counters.of(counter));
    }
}
