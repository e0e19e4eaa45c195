//! Verdicts on flows in the kernel tier of overlays: which packets a network with groups lets the
//! program forward or drop, and under which generation.

mod common;

use std::cell::Cell;
use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use bpf::tier::{
    FlowClaim, FlowKey, FlowRecord, Key, NetworkState, Overlay, Record, Size, State, Tier, Verdict,
    Way,
};
use bpf::{Action, Answered, AnsweredSample, BpfError, Counter, LinkForm, Miss, Steering};
use common::*;
use policy::connection::Segment;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use wire::build::{PacketBuilder, chosen_packet};
use wire::flow::protocol;
use wire::glance::{self, V4_SEEN};
use wire::link::ethertype;
use wire::overlay::Kind;
use wire::{Address, CardHeader, Claim, ClaimKind, Family, Flow, Fragment, Mark, Upper, Vni};

const VNI: u32 = 7;
const NETWORK: u32 = 3;
/// Frames run through the program without a netdev come by the loopback's.
const LOOPBACK: u32 = 1;
const OWN: [u8; 4] = [10, 1, 0, 1];

fn host(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 0, 10 + number)
}

fn tenant(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 16, 0, number)
}

fn mac(number: u8) -> [u8; 6] {
    [2, 7, 0, 0, 0, number]
}

fn v4(address: Ipv4Addr) -> Address {
    Address::v4(address.into())
}

/// A gateway's program whose tier knows tenants 1 and 2; `None` (said aloud): no privilege.
fn program() -> Option<(Steering, Tier)> {
    let mut steering = match Steering::load(NETDEV, INCARNATION) {
        Ok(steering) => steering,
        Err(error @ (BpfError::NotPermitted { .. } | BpfError::Refused { .. })) => {
            eprintln!("SKIPPED: verdicts on flows in the kernel tier: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    steering.set_ports(&ports(), LinkForm::Plain).unwrap();
    let tier = Tier::new(1, Size { endpoints: 64, flows: 64, networks: 8 }).unwrap();
    steering.add_tier(&tier, NETDEV, INCARNATION).unwrap_or_else(|error| panic!("{error}"));
    tier.renew(u64::MAX).unwrap();
    let overlay = Overlay {
        kind: Kind::Vxlan,
        udp_port: OVERLAY,
        ifindex: LOOPBACK,
        vlan: None,
        entrances: vec![OWN.into()],
        unsummed: false,
    };
    tier.set_overlay(0, &overlay, State::Open).unwrap();
    tier.add_exit(LOOPBACK).unwrap();
    for number in 1..=2u8 {
        let way = Way {
            host: host(number),
            ifindex: LOOPBACK,
            vlan: None,
            mtu: 1500,
            destination: [2, 9, 0, 0, 0, number],
            source: LAN_MAC,
        };
        tier.set_way(number.into(), &way, State::Open).unwrap();
        let record = Record {
            key: Key { vni: VNI, address: tenant(number) },
            host: host(number),
            mac: mac(number),
            way: number.into(),
            answers: number.into(),
            network: NETWORK,
        };
        tier.write_record(number.into(), &record).unwrap();
        tier.publish(record.key, number.into()).unwrap();
    }
    Some((steering, tier))
}

/// A tenant's frame in a packet of the overlay.
fn carried(frame: &[u8]) -> Vec<u8> {
    let vni = Vni::new(VNI).unwrap();
    let overlay = [&Kind::Vxlan.header(vni)[..], frame].concat();
    PacketBuilder::new(v4(host(1)), v4(OWN.into())).udp(0xc123, OVERLAY).payload(&overlay).frame(
        LAN_MAC,
        [2, 9, 0, 0, 0, 1],
        None,
    )
}

/// A packet from tenant 1 to tenant 2.
fn packet(of: impl FnOnce(PacketBuilder) -> PacketBuilder) -> Vec<u8> {
    packet_to(tenant(2), of)
}

/// A packet from tenant 1.
fn packet_to(to: Ipv4Addr, of: impl FnOnce(PacketBuilder) -> PacketBuilder) -> Vec<u8> {
    let packet = of(PacketBuilder::new(v4(tenant(1)), v4(to)));
    carried(&packet.payload_of(20).frame([2, 7, 7, 7, 7, 7], mac(1), None))
}

fn arp() -> Vec<u8> {
    let mut frame = [[0xff; 6], mac(1)].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac(1));
    frame.extend(tenant(1).octets());
    frame.extend([0; 6]);
    frame.extend(tenant(2).octets());
    carried(&frame)
}

fn flow(protocol: u8, upper: [u8; 4]) -> FlowKey {
    FlowKey { vni: VNI, source: tenant(1), destination: tenant(2), protocol, upper }
}

/// The end of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Sent,
    Dropped,
    Answered,
    Missed(Miss),
}

fn end(steering: &Steering, tier: &Tier, frame: &[u8]) -> End {
    let before = (steering.counters().unwrap(), tier.misses().unwrap());
    let run = steering.run(frame).unwrap();
    let after = (steering.counters().unwrap(), tier.misses().unwrap());
    assert_eq!(after.0.received(), before.0.received() + 1);
    let moved = |counter: &Counter| after.0.of(*counter) > before.0.of(*counter);
    match Counter::ALL.into_iter().find(|counter| moved(counter)).unwrap() {
        Counter::Transmitted => End::Sent,
        Counter::ArpAnswered => End::Answered,
        Counter::VerdictDropped => {
            assert_eq!(run.action, Action::Drop);
            End::Dropped
        }
        _ => {
            let missed = |miss: &Miss| after.1[*miss as usize] > before.1[*miss as usize];
            End::Missed(Miss::ALL.into_iter().find(missed).unwrap())
        }
    }
}

const NO_VERDICT: End = End::Missed(Miss::Flow);

// AX-15
#[test]
fn a_network_that_asks_forwards_and_drops_by_verdicts_of_its_generation_only() {
    let Some((steering, tier)) = program() else { return };
    let end = |frame: &[u8]| end(&steering, &tier, frame);
    let set = |state| tier.set_network(NETWORK, VNI, 0, state).unwrap();
    let udp = |source, destination| packet(|packet| packet.udp(source, destination));
    let key = flow(protocol::UDP, [0x12, 0x34, 0, 53]);
    let write = |slot, generation, network, verdict| {
        let record = FlowRecord { key, generation, network, verdict, claim: None };
        tier.write_flow(slot, &record).unwrap();
    };
    assert_eq!(end(&udp(0x1234, 53)), End::Missed(Miss::Network));
    set(NetworkState::Open);
    assert_eq!(end(&udp(0x1234, 53)), End::Sent);
    set(NetworkState::Asks { generation: 1 });
    assert_eq!(end(&udp(0x1234, 53)), NO_VERDICT);
    // ARP is no groups' matter.
    assert_eq!(end(&arp()), End::Answered);
    for (slot, verdict, expected) in
        [(1, Verdict::Permit, End::Sent), (2, Verdict::Drop, End::Dropped)]
    {
        write(slot, 1, NETWORK, verdict);
        tier.publish_flow(key, slot).unwrap();
        let before = tier.flow_use(slot).unwrap();
        assert_eq!(end(&udp(0x1234, 53)), expected);
        let after = tier.flow_use(slot).unwrap();
        assert_eq!((after.packets, after.bytes), (before.packets + 1, before.bytes + 48));
        assert!(after.last_ns > before.last_ns || before.packets > 0);
        assert_eq!(end(&udp(0x1235, 53)), NO_VERDICT);
        assert_eq!(end(&udp(0x1234, 54)), NO_VERDICT);
        assert_eq!(end(&packet(|packet| packet.tcp_with(0x1234, 53, 0x10, None))), NO_VERDICT);
        // One write voids it; another generation does not bring it back, nor does none.
        for generation in [2, 0] {
            set(NetworkState::Asks { generation });
            assert_eq!(end(&udp(0x1234, 53)), NO_VERDICT);
        }
        set(NetworkState::Closed);
        assert_eq!(end(&udp(0x1234, 53)), End::Missed(Miss::Network));
        set(NetworkState::Asks { generation: 1 });
        assert_eq!(end(&udp(0x1234, 53)), expected);
        tier.withdraw_flow(key, slot).unwrap();
        assert_eq!(end(&udp(0x1234, 53)), NO_VERDICT);
    }
    // A verdict of another network, or of another flow, which the slot was used for since.
    write(1, 1, NETWORK + 1, Verdict::Permit);
    tier.publish_flow(key, 1).unwrap();
    assert_eq!(end(&udp(0x1234, 53)), NO_VERDICT);
    write(1, 1, NETWORK, Verdict::Permit);
    assert_eq!(end(&udp(0x1234, 53)), End::Sent);
    tier.publish_flow(flow(protocol::UDP, [0x12, 0x35, 0, 53]), 1).unwrap();
    assert_eq!(end(&udp(0x1235, 53)), NO_VERDICT);
}

#[test]
fn frames_with_a_tag_or_a_type_that_contradicts_the_content_go_up() {
    let Some((steering, tier)) = program() else { return };
    tier.set_network(NETWORK, VNI, 0, NetworkState::Open).unwrap();
    let inner = |vlan: Option<u16>| {
        let packet = PacketBuilder::new(v4(tenant(1)), v4(tenant(2))).udp(1, 2).payload_of(20);
        packet.frame([2, 7, 7, 7, 7, 7], mac(1), vlan)
    };
    assert_eq!(end(&steering, &tier, &carried(&inner(None))), End::Sent);
    let mut mistyped = inner(None);
    mistyped[12..14].copy_from_slice(&[0x86, 0xdd]);
    let of_v6 = PacketBuilder::v6("2001:db8::1", "2001:db8::2").udp(1, 2).payload_of(20);
    let mut of_v6 = of_v6.frame([2, 7, 7, 7, 7, 7], mac(1), None);
    of_v6[12..14].copy_from_slice(&[0x08, 0x00]);
    for frame in [inner(Some(5)), inner(Some(0)), mistyped, of_v6] {
        assert_eq!(end(&steering, &tier, &carried(&frame)), End::Missed(Miss::Unusual));
    }
}

/// The tier's parser against `wire::packet` and `wire::glance`: a tenant's packet is carried
/// exactly if it is whole, has a bare IPv4 header, and is no segment of TCP that the workers track.
#[test]
fn the_tier_carries_the_header_chains_that_are_plain_to_the_parser() {
    let Some((steering, tier)) = program() else { return };
    tier.set_network(NETWORK, VNI, 0, NetworkState::Open).unwrap();
    let config = Config { cases: 20_000, failure_persistence: None, ..Config::default() };
    let choices = proptest::collection::vec(any::<u8>(), 0..48);
    let (ends, carried_count) = ([v4(tenant(1)), v4(tenant(2))], Cell::new(0));
    let of_v6 = [1, 2].map(|host| Address::v6(0x2001_0db8 << 96 | host));
    let strategy = (any::<bool>(), any::<bool>(), choices);
    let result = TestRunner::new(config).run(&strategy, |(is_v6, is_typed_v6, choices)| {
        let [from, to] = if is_v6 { of_v6 } else { ends };
        let packet = chosen_packet(from, to, &choices);
        let kind = if is_typed_v6 { ethertype::IPV6 } else { ethertype::IPV4 };
        let link = [&[2, 7, 7, 7, 7, 7][..], &mac(1), &kind.to_be_bytes()].concat();
        let frame = [&link[..], &packet].concat();
        let run = steering.run(&carried(&frame)).unwrap();
        let parsed = wire::packet::parse(&packet).ok().filter(|parsed| {
            let flow = &parsed.flow;
            [flow.source_address(), flow.destination_address()] == ends
        });
        let is_plain = parsed.is_some_and(|parsed| {
            let is_bare = parsed.upper_offset == 20 && parsed.fragment == Fragment::Whole;
            let is_steady = parsed.flow.protocol != protocol::TCP
                || packet.get(33).is_some_and(|flags| Segment::of_flags(*flags) == Segment::Ack);
            is_bare && is_steady && !is_typed_v6
        });
        prop_assert_eq!(run.action == Action::Transmit, is_plain, "{:02x?}", packet);
        if is_plain && packet[8] > 1 {
            let seen: Vec<u8> = packet.iter().copied().chain([0xff; V4_SEEN]).collect();
            prop_assert!(glance::v4(seen.first_chunk().unwrap()).is_some(), "{:02x?}", packet);
        }
        carried_count.set(carried_count.get() + u32::from(is_plain));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(carried_count.get() > 300, "{carried_count:?}");
}

#[test]
fn flows_are_told_apart_as_selectors_do() {
    let Some((steering, tier)) = program() else { return };
    tier.set_network(NETWORK, VNI, 0, NetworkState::Asks { generation: 9 }).unwrap();
    let frames = [
        (flow(protocol::TCP, [0, 9, 0, 80]), packet(|it| it.tcp_with(9, 80, 0x10, None))),
        (flow(protocol::ICMP, [8, 0, 0, 0]), packet(|it| it.icmp(8, 0, [1, 2, 3, 4]))),
        (flow(protocol::ICMP, [3, 1, 0, 0]), packet(|it| it.icmp(3, 1, [0; 4]))),
        (flow(protocol::ESP, [0; 4]), packet(|it| it.protocol(protocol::ESP))),
    ];
    for (slot, (key, frame)) in (0u32..).zip(&frames) {
        assert_eq!(end(&steering, &tier, frame), NO_VERDICT);
        let (generation, network, verdict) = (9, NETWORK, Verdict::Permit);
        let record = FlowRecord { key: *key, generation, network, verdict, claim: None };
        tier.write_flow(slot, &record).unwrap();
        tier.publish_flow(*key, slot).unwrap();
        assert_eq!(end(&steering, &tier, frame), End::Sent);
        for (_, other) in &frames[slot as usize + 1..] {
            assert_eq!(end(&steering, &tier, other), NO_VERDICT);
        }
    }
    // Of TCP what does more than acknowledge is the workers', whatever verdict there is.
    for flags in 0..=u8::MAX {
        let segment = packet(|it| it.tcp_with(9, 80, flags, None));
        let end = end(&steering, &tier, &segment);
        let is_steady = Segment::of_flags(flags) == Segment::Ack;
        assert_eq!(end, if is_steady { End::Sent } else { End::Missed(Miss::Unusual) }, "{flags}");
    }
}

/// The mark in front of a frame that goes up.
fn mark(steering: &Steering, frame: &[u8]) -> Mark {
    let run = steering.run(frame).unwrap();
    Mark::read(&run.mark.expect("it goes up")).expect("a mark")
}

// AX-15
#[test]
fn a_packet_that_goes_up_with_its_verdict_bears_a_claim() {
    let Some((steering, tier)) = program() else { return };
    tier.set_network(NETWORK, VNI, 0, NetworkState::Asks { generation: 9 }).unwrap();
    let (key, frame) = (flow(protocol::UDP, [0x12, 0x34, 0, 53]), packet(|it| it.udp(0x1234, 53)));
    let plain = mark(&steering, &frame);
    assert!(!plain.claims());
    let claim = Claim { kind: ClaimKind::Permit, rule: 77 };
    let write = |slot, verdict, claim: Option<Claim>| {
        let claim = claim.map(|claim| FlowClaim { domain: 5, generation: 6, claim });
        let record = FlowRecord { key, generation: 9, network: NETWORK, verdict, claim };
        tier.write_flow(slot, &record).unwrap();
        tier.publish_flow(key, slot).unwrap();
    };
    // A way that is closed; an endpoint that is gone.
    let way = Way {
        host: host(2),
        ifindex: LOOPBACK,
        vlan: None,
        mtu: 1500,
        destination: [2, 9, 0, 0, 0, 2],
        source: LAN_MAC,
    };
    tier.set_way(2, &way, State::Closed).unwrap();
    write(1, Verdict::Permit, None);
    assert_eq!(mark(&steering, &frame), plain);
    tier.withdraw_flow(key, 1).unwrap();
    write(2, Verdict::Permit, Some(claim));
    let (generation, zone, verdict, domain) = (6, VNI, claim.word().unwrap(), 5);
    let claiming = Mark { generation, zone, verdict, domain, ..plain };
    assert_eq!(mark(&steering, &frame), claiming);
    tier.withdraw(Key { vni: VNI, address: tenant(2) }, 2).unwrap();
    assert_eq!(mark(&steering, &frame), claiming);
    // Not of another flow, nor by rules of an earlier generation.
    assert_eq!(mark(&steering, &packet(|it| it.udp(0x1235, 53))), plain);
    tier.set_network(NETWORK, VNI, 0, NetworkState::Asks { generation: 10 }).unwrap();
    assert_eq!(mark(&steering, &frame), plain);
}

#[test]
fn a_flow_and_its_key_say_the_same() {
    let flow = |protocol, upper| Flow {
        family: Family::V4,
        source: 0xac10_0001,
        destination: 0xac10_0002,
        protocol,
        upper,
        opens: false,
    };
    let ports = Upper::Ports { source: 0x1234, destination: 53 };
    let known = [
        flow(protocol::TCP, ports),
        flow(protocol::SCTP, ports),
        flow(protocol::ICMP, Upper::Icmp { kind: 8, code: 1 }),
        flow(protocol::ICMPV6, Upper::None),
        flow(47, Upper::None),
    ];
    for flow in known {
        assert_eq!(FlowKey::of(VNI, &flow).unwrap().flow(), flow);
    }
    let unknown = [
        Flow { opens: true, ..flow(protocol::TCP, ports) },
        flow(protocol::UDP, Upper::Fragment),
        Flow { family: Family::V6, ..flow(protocol::UDP, ports) },
    ];
    assert!(unknown.iter().all(|flow| FlowKey::of(VNI, flow).is_none()));
}

/// Publishes and withdraws more keys than there is room for, in an order that looks random, and
/// compares what the program finds with a set of those that were published.
fn publishes_as_a_set_does(
    keys: &[u16],
    publish: impl Fn(u16) -> Result<(), BpfError>,
    withdraw: impl Fn(u16),
    is_found: impl Fn(u16) -> bool,
) {
    let mut published = HashSet::new();
    let (mut refused, mut draw) = (0, 1_u32);
    for _ in 0..2000 {
        draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let key = keys[(draw >> 8) as usize % keys.len()];
        if published.remove(&key) {
            withdraw(key);
        } else {
            match publish(key) {
                Ok(()) => assert!(published.insert(key)),
                Err(BpfError::NoPlace { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        for key in keys.iter().skip(draw as usize >> 24).step_by(31) {
            assert_eq!(is_found(*key), published.contains(key), "{key}");
        }
    }
    assert!(refused > 100, "{refused}: buckets have been full");
    assert!(published.len() > 64, "{}", published.len());
    for key in keys {
        assert_eq!(is_found(*key), published.contains(key), "{key}");
    }
}

// AX-14 AX-34
#[test]
fn keys_that_are_published_are_found_and_no_others() {
    let Some((steering, tier)) = program() else { return };
    let set = |state| tier.set_network(NETWORK, VNI, 0, state).unwrap();
    // 64 keys have 128 places.
    let keys: Vec<u16> = (0x100..0x220).collect();
    let address = |key: u16| Ipv4Addr::new(172, 17, (key >> 8) as u8, key as u8);
    set(NetworkState::Open);
    let (way, network) = (2, NETWORK);
    publishes_as_a_set_does(
        &keys,
        |key| {
            let key = Key { vni: VNI, address: address(key) };
            // One record is enough: `is_found` rewrites it for each key.
            tier.publish(key, 5)
        },
        |key| tier.withdraw(Key { vni: VNI, address: address(key) }, 5).unwrap(),
        |key| {
            let to = Key { vni: VNI, address: address(key) };
            let record = Record { key: to, host: host(2), mac: mac(2), way, answers: way, network };
            tier.write_record(5, &record).unwrap();
            let packet = packet_to(address(key), |packet| packet.udp(1, 2));
            match end(&steering, &tier, &packet) {
                End::Sent => true,
                End::Missed(Miss::Endpoint) => false,
                other => panic!("{other:?}"),
            }
        },
    );

    set(NetworkState::Asks { generation: 1 });
    let flow = |key: u16| {
        let [high, low] = key.to_be_bytes();
        flow(protocol::UDP, [high, low, 0, 53])
    };
    publishes_as_a_set_does(
        &keys,
        |key| tier.publish_flow(flow(key), 6),
        |key| tier.withdraw_flow(flow(key), 6).unwrap(),
        |key| {
            let verdict = Verdict::Permit;
            let record =
                FlowRecord { key: flow(key), generation: 1, network, verdict, claim: None };
            tier.write_flow(6, &record).unwrap();
            end(&steering, &tier, &packet(|packet| packet.udp(key, 53))) == End::Sent
        },
    );
}

#[test]
fn what_goes_on_to_the_tier_loses_a_cards_tag_and_is_carried_as_without_a_card() {
    let Some((mut steering, tier)) = program() else { return };
    let socket = socket().expect("an AF_XDP socket");
    steering.set_queue(0, Some(socket.as_fd())).unwrap();
    steering.set_ports(&ports(), LinkForm::Carded).unwrap();
    let header = CardHeader::Rule(5 << 32 | 6).bytes();
    let behind = |frame: Vec<u8>| [&header[..], &frame].concat();
    let known = behind(packet(|tenant| tenant.udp(1, 2)));
    tier.set_network(NETWORK, VNI, 0, NetworkState::Open).unwrap();
    let carried = steering.run(&known).unwrap();
    assert_eq!(carried.action, Action::Transmit);
    let length = known.len() - CardHeader::BYTES;
    assert_eq!(carried.sent.map(|sent| sent.len()), Some(length));
    let unknown = behind(packet_to(tenant(3), |tenant| tenant.udp(1, 2)));
    let up = steering.run(&unknown).unwrap();
    assert_eq!((up.action, up.left.len()), (Action::Redirect, length));
    let mark = Mark::read(&up.mark.unwrap()).unwrap();
    assert_eq!((mark.card_tag(), mark.claims()), (None, false));
    assert_eq!(tier.misses().unwrap()[Miss::Endpoint as usize], 1);
}

/// The samples that are there.
fn samples(tier: &Tier) -> Vec<AnsweredSample> {
    let mut samples = Vec::new();
    tier.take_samples(&mut samples).unwrap();
    samples
}

fn sample_one_of(tier: &Tier, packets: u32) {
    tier.sample_one_of(packets);
    tier.renew(u64::MAX).unwrap();
}

#[test]
fn what_is_answered_in_front_of_the_workers_is_told_with_what_it_was_answered_by() {
    let Some((steering, tier)) = program() else { return };
    let end = |frame: &[u8]| end(&steering, &tier, frame);
    let set = |state| tier.set_network(NETWORK, VNI, 0, state).unwrap();
    let udp = packet(|packet| packet.udp(0x1234, 53));
    set(NetworkState::Open);
    assert_eq!((end(&udp), samples(&tier)), (End::Sent, vec![]), "none is asked for");
    sample_one_of(&tier, 1);
    let key = flow(protocol::UDP, [0x12, 0x34, 0, 53]);
    let expected = AnsweredSample {
        answer: Answered::Sent,
        key,
        network: NETWORK,
        generation: 0,
        flow_slot: None,
        claim: None,
        endpoint_slot: 2,
        host: host(2),
        mac: mac(2),
        at_ns: 0,
    };
    // The moment is that of the test, about.
    let told = |frame: &[u8], expected_end: End| {
        assert_eq!(end(frame), expected_end);
        let samples = samples(&tier);
        assert!(samples.iter().all(|sample| sample.at_ns > 0));
        samples.into_iter().map(|it| AnsweredSample { at_ns: 0, ..it }).collect::<Vec<_>>()
    };
    assert_eq!(told(&udp, End::Sent), [expected]);
    let tcp = packet(|it| it.tcp_with(9, 80, 0x10, None));
    let of_tcp = flow(protocol::TCP, [0, 9, 0, 80]);
    assert_eq!(told(&tcp, End::Sent), [AnsweredSample { key: of_tcp, ..expected }]);
    let esp = packet(|it| it.protocol(protocol::ESP));
    let of_esp = flow(protocol::ESP, [0; 4]);
    assert_eq!(told(&esp, End::Sent), [AnsweredSample { key: of_esp, ..expected }]);
    let (answer, asked) = (Answered::LinkAddress, flow(0, [0; 4]));
    let of_arp = AnsweredSample { answer, key: asked, ..expected };
    assert_eq!(told(&arp(), End::Answered), [of_arp]);

    // By verdicts, with the claim that they were written with.
    set(NetworkState::Asks { generation: 9 });
    assert_eq!(told(&udp, NO_VERDICT), []);
    let claim = Claim { kind: ClaimKind::Drop, rule: 77 };
    let claim = Some(FlowClaim { domain: 5, generation: 6, claim });
    for (slot, verdict, claim, answer) in
        [(11, Verdict::Permit, None, Answered::Sent), (12, Verdict::Drop, claim, Answered::Dropped)]
    {
        let record = FlowRecord { key, generation: 9, network: NETWORK, verdict, claim };
        tier.write_flow(slot, &record).unwrap();
        tier.publish_flow(key, slot).unwrap();
        let (generation, flow_slot) = (9, Some(slot));
        let by_verdict = AnsweredSample { answer, generation, flow_slot, claim, ..expected };
        let end = if answer == Answered::Sent { End::Sent } else { End::Dropped };
        assert_eq!(told(&udp, end), [by_verdict]);
        tier.withdraw_flow(key, slot).unwrap();
    }
    assert_eq!(told(&udp, NO_VERDICT), [], "what goes up is the workers' to audit");
    set(NetworkState::Open);
    sample_one_of(&tier, 0);
    assert_eq!(told(&udp, End::Sent), []);
}

#[test]
fn about_one_packet_of_so_many_is_sampled_of_each_of_flows_that_take_turns() {
    let Some((steering, tier)) = program() else { return };
    tier.set_network(NETWORK, VNI, 0, NetworkState::Open).unwrap();
    sample_one_of(&tier, 8);
    let frames = [53, 54].map(|port| packet(|packet| packet.udp(1, port)));
    let mut counts = [0u32; 2];
    for _ in 0..2000 {
        for frame in &frames {
            assert_eq!(steering.run(frame).unwrap().action, Action::Transmit);
        }
        for sample in samples(&tier) {
            counts[usize::from(sample.key.upper[3] - 53)] += 1;
        }
    }
    // 250 of each in the mean, with a deviation of 15.
    assert!(counts.iter().all(|count| (150..350).contains(count)), "{counts:?}");
    assert_eq!(tier.samples_lost().unwrap(), 0);
}

#[test]
fn samples_that_nobody_takes_are_lost_and_counted_and_packets_pass_as_before() {
    let Some((steering, tier)) = program() else { return };
    tier.set_network(NETWORK, VNI, 0, NetworkState::Open).unwrap();
    sample_one_of(&tier, 1);
    let frame = packet(|packet| packet.udp(1, 53));
    for _ in 0..2000 {
        assert_eq!(steering.run(&frame).unwrap().action, Action::Transmit);
    }
    let (taken, lost) = (samples(&tier).len() as u64, tier.samples_lost().unwrap());
    assert!(taken > 500 && lost > 500, "{taken} {lost}");
    assert_eq!(taken + lost, 2000);
    // There is room again.
    assert_eq!(steering.run(&frame).unwrap().action, Action::Transmit);
    assert_eq!((samples(&tier).len(), tier.samples_lost().unwrap()), (1, lost));
}
