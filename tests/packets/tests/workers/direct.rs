//! Direct paths of virtual networks: which hosts are told which, and how each ends.

use std::net::Ipv4Addr;
use std::sync::Arc;

use dataplane::{DirectCounts, FastPathUse};
use endpoints::{Book, Change, Endpoint, EndpointKey};
use packets::lab::{LAN, host, own, policy};
use packets::overlay::{
    ATTACHMENT, BY_HOST, HOST_8_MAC, PLAIN, UNCHECKED, WEB, having, mac, overlays_telling, tenant,
    vni,
};
use policy::{Action, GroupMode, GroupSide, Policy};
use wire::build::PacketBuilder;
use wire::direct_path::{Message, Operation};
use wire::flow::protocol::{ICMP, TCP, UDP};
use wire::overlay::Kind;
use wire::{DirectFlow, DirectPath, Family, LinkAddress, Upper};

use crate::stage::{Stage, hub};

const V4: Family = Family::V4;
const PORT: u16 = 8300;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Use of direct paths.
#[derive(Clone, Copy, PartialEq)]
enum Direct {
    On,
    Off,
}

/// The gateway, whose overlays tell direct paths; and the book of its endpoints.
struct Telling {
    stage: Stage,
    book: Book,
    overlays: Arc<dataplane::Overlays>,
}

impl Telling {
    /// Without groups; or a group of the network of the web permits all.
    fn new(direct: Direct, fast: FastPathUse) -> Telling {
        let port = (direct == Direct::On).then_some(PORT);
        let (overlays, book) = overlays_telling(V4, Kind::Vxlan, (LAN, 1), port);
        let mut hub = hub();
        having(V4, Kind::Vxlan)(&mut hub);
        hub.parts.overlays = Some(overlays.clone());
        let permit = policy("all", 0, Action::Permit(GroupMode::Enforce), &["any"], &["any"]);
        let last = policy("none", 0, Action::NoRule(GroupMode::Enforce), &["any"], &["any"]);
        let (group, ingress) = (Some(GroupSide::In), Some([ATTACHMENT].as_slice().into()));
        for (rule, priority) in [(permit, 1), (last, 0)] {
            let id = policy::PolicyId(hub.policies.len() as u32 + 1);
            let ingress = ingress.clone();
            hub.policies.push(Policy { id, priority, group, ingress, ..rule });
        }
        let mut stage = Stage::of(hub);
        stage.workers[0].use_fast_path(fast);
        Telling { stage, book, overlays }
    }

    /// A tenant's packet comes from the host of another; all that leaves for hosts then.
    fn comes(&mut self, network: u32, inner: &[u8], from: u8, to: u8) -> Vec<Vec<u8>> {
        let frame = [&mac(to)[..], &mac(from), &ethertype(inner), inner].concat();
        let payload = [&Kind::Vxlan.header(vni(network))[..], &frame].concat();
        let outer = PacketBuilder::new(host(V4, 1), own(V4, 1)).udp(0xc123, 4789).payload(&payload);
        self.stage.arrive_inside(0, &outer.ip());
        self.stage.turn(0);
        self.left()
    }

    fn left(&mut self) -> Vec<Vec<u8>> {
        self.stage.sent(0, LAN)
    }

    /// Messages in a time that passes in steps of 10 ms.
    fn hears(&mut self, time_ns: u64) -> Vec<Message> {
        let until = self.stage.now_ns + time_ns;
        let mut heard = Vec::new();
        while self.stage.now_ns < until {
            self.stage.now_ns += (until - self.stage.now_ns).min(10 * MS);
            let (snapshot, now_ns) = (self.stage.snapshot.clone(), self.stage.now_ns);
            self.stage.workers[0].tick(&snapshot, now_ns);
            heard.extend(self.left().iter().map(|packet| message(packet)));
        }
        heard
    }

    /// Messages soon after a packet of UDP.
    fn after(&mut self, network: u32, from: u8, to: u8) -> Vec<Message> {
        assert_eq!(self.comes(network, &udp(from, to, 2), from, to).len(), 1, "it goes on");
        self.hears(MS)
    }

    fn counts(&mut self) -> DirectCounts {
        self.stage.counters(0).direct
    }
}

fn ethertype(packet: &[u8]) -> [u8; 2] {
    if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] }
}

fn udp(from: u8, to: u8, port: u16) -> Vec<u8> {
    PacketBuilder::new(tenant(V4, from), tenant(V4, to)).udp(1, port).payload_of(21).ip()
}

/// Reads the packet of a message, and looks at it whole.
fn message(packet: &[u8]) -> Message {
    let parsed = wire::packet::parse(packet).unwrap();
    assert_eq!(parsed.flow.source_address(), own(V4, 1));
    assert_eq!(parsed.flow.destination_address(), host(V4, 1));
    assert_eq!(parsed.flow.upper, Upper::Ports { source: PORT, destination: PORT });
    assert_eq!((parsed.hop_limit, packet.len()), (64, 20 + 8 + 44));
    let payload = &packet[28..];
    // It is the packet that any stack would make.
    let ends = (own(V4, 1), host(V4, 1));
    let built = PacketBuilder::new(ends.0, ends.1).udp(PORT, PORT).payload(payload);
    assert_eq!(packet, built.dont_fragment().hop_limit(64).ip());
    Message::read(payload).unwrap()
}

/// The flow of [`udp`] from tenant 1 to 8.
fn flow(protocol: u8, ports: (u16, u16)) -> DirectFlow {
    let address = |number| Ipv4Addr::from(tenant(V4, number).value as u32);
    DirectFlow { vni: vni(PLAIN), source: address(1), destination: address(8), protocol, ports }
}

/// The path to tenant 8.
fn path() -> DirectPath {
    let host = Ipv4Addr::from(host(V4, 1).value as u32 + 3);
    DirectPath { host, host_mac: LinkAddress::new(HOST_8_MAC), mac: LinkAddress::new(mac(8)) }
}

fn said(operation: Operation) -> Message {
    Message { operation, flow: flow(UDP, (1, 2)), path: path(), timeout_s: 30 }
}

// AX-31
#[test]
fn the_first_packet_of_a_flow_is_answered_by_its_direct_path() {
    for fast in [FastPathUse::Never, FastPathUse::Eager] {
        let mut telling = Telling::new(Direct::On, fast);
        assert_eq!(telling.after(PLAIN, 1, 8), [said(Operation::Encap)]);
        // The message may be on its way.
        assert_eq!(telling.after(PLAIN, 1, 8), []);
        // Each flow has its own.
        let (from, to) = (tenant(V4, 1), tenant(V4, 8));
        let tcp = PacketBuilder::new(from, to).tcp(5, 6).ip();
        let icmp = PacketBuilder::new(from, to).icmp(8, 0, [0, 1, 0, 2]).ip();
        let other = PacketBuilder::new(from, to).protocol(99).payload_of(40).ip();
        for (packet, flow) in
            [(tcp, flow(TCP, (5, 6))), (icmp, flow(ICMP, (0, 0))), (other, flow(99, (0, 0)))]
        {
            assert_eq!(telling.comes(PLAIN, &packet, 1, 8).len(), 1);
            assert_eq!(telling.hears(MS), [Message { flow, ..said(Operation::Encap) }]);
        }
        assert_eq!(telling.counts(), DirectCounts { told: 4, ended: 0, refused: 0 });
        let ledger = telling.stage.counters(0).ledgers[usize::from(LAN.0)];
        assert_eq!((ledger.received, ledger.made, ledger.sent), (5, 4, 9));
        assert_eq!(telling.stage.counters(0).fast_path > 0, fast == FastPathUse::Eager);
    }
}

#[test]
fn a_host_that_goes_on_by_us_is_told_again_after_longer_and_longer_times() {
    let mut telling = Telling::new(Direct::On, FastPathUse::Never);
    let start = telling.stage.now_ns;
    let mut told_at = Vec::new();
    while telling.stage.now_ns < start + 70 * SECOND {
        if telling.after(PLAIN, 1, 8) == [said(Operation::Encap)] {
            told_at.push((telling.stage.now_ns - start) / SECOND);
        }
        telling.hears(499 * MS);
    }
    assert_eq!(told_at, [0, 1, 3, 7, 15, 31, 47, 63]);
}

// AX-31
#[test]
fn a_path_ends_after_thirty_seconds_and_the_next_packet_is_told_anew() {
    let mut telling = Telling::new(Direct::On, FastPathUse::Eager);
    assert_eq!(telling.after(PLAIN, 1, 8), [said(Operation::Encap)]);
    assert_eq!(telling.hears(29 * SECOND + 900 * MS), []);
    assert_eq!(telling.hears(300 * MS), [said(Operation::Delete)]);
    assert_eq!(telling.hears(60 * SECOND), []);
    assert_eq!(telling.after(PLAIN, 1, 8), [said(Operation::Encap)]);
    assert_eq!(telling.counts(), DirectCounts { told: 2, ended: 1, refused: 0 });
}

// AX-31
#[test]
fn a_path_ends_when_an_endpoint_moves_or_goes() {
    let key = |number| EndpointKey { vni: vni(PLAIN), address: tenant(V4, number) };
    let moved = |number: u8, host| {
        let endpoint = Endpoint {
            key: key(number),
            host,
            host_mac: Some(LinkAddress::new(HOST_8_MAC)),
            mac: LinkAddress::new(mac(number)),
        };
        Change::Put { revision: 2, endpoint }
    };
    let elsewhere = wire::Address { value: host(V4, 1).value + 4, ..host(V4, 1) };
    for change in [
        moved(8, elsewhere),
        moved(1, elsewhere),
        // To the sender's own host, and to one behind another port.
        moved(8, host(V4, 1)),
        moved(8, host(V4, 12)),
        Change::Delete { revision: 2, key: key(8) },
        Change::Delete { revision: 2, key: key(1) },
    ] {
        let mut telling = Telling::new(Direct::On, FastPathUse::Eager);
        assert_eq!(telling.after(PLAIN, 1, 8), [said(Operation::Encap)]);
        telling.hears(SECOND);
        telling.book.apply(&[change]);
        assert_eq!(telling.hears(110 * MS), [said(Operation::Delete)], "{change:?}");
        assert_eq!(telling.hears(40 * SECOND), []);
    }
}

#[test]
fn a_path_ends_when_hosts_are_told_no_longer() {
    let mut telling = Telling::new(Direct::On, FastPathUse::Eager);
    assert_eq!(telling.after(PLAIN, 1, 8), [said(Operation::Encap)]);
    telling.stage.snapshot = Telling::new(Direct::Off, FastPathUse::Eager).stage.snapshot;
    let (snapshot, now_ns) = (telling.stage.snapshot.clone(), telling.stage.now_ns);
    telling.stage.workers[0].adopt(&snapshot, now_ns);
    assert_eq!(telling.hears(110 * MS), [said(Operation::Delete)]);
    assert_eq!(telling.after(PLAIN, 1, 8), []);
}

#[test]
fn nobody_is_told_what_a_host_could_not_or_must_not_do() {
    for fast in [FastPathUse::Never, FastPathUse::Eager] {
        let mut telling = Telling::new(Direct::On, fast);
        // To the sender's own host; a network with groups; networks that believe senders.
        for (network, to) in [(PLAIN, 3), (WEB, 8), (BY_HOST, 8), (UNCHECKED, 8)] {
            assert_eq!(telling.after(network, 1, to), [], "network {network}, to {to}");
        }
        // To a host behind another port; it leaves there.
        assert_eq!(telling.comes(PLAIN, &udp(1, 2, 2), 1, 2).len(), 1);
        assert_eq!(telling.hears(MS), []);
        let v6 = PacketBuilder::new(tenant(Family::V6, 1), tenant(Family::V6, 8)).udp(1, 2).ip();
        let (from, to) = (tenant(V4, 1), tenant(V4, 8));
        let first = PacketBuilder::new(from, to).udp(1, 2).payload_of(24).fragment(0, true).ip();
        let later =
            PacketBuilder::new(from, to).protocol(UDP).payload_of(9).fragment(4, false).ip();
        for packet in [v6, first, later] {
            assert_eq!(telling.comes(PLAIN, &packet, 1, 8).len(), 1);
            assert_eq!(telling.hears(MS), []);
        }
        assert_eq!(telling.counts(), DirectCounts::default());
        let mut off = Telling::new(Direct::Off, fast);
        assert_eq!(off.after(PLAIN, 1, 8), []);
    }
}

#[test]
fn what_is_told_leaves_the_kernel_nothing_to_answer() {
    use dataplane::NetworkBelow::{Asks, Closed, Open};
    let below = |direct, number| {
        let Telling { stage, overlays, .. } = Telling::new(direct, FastPathUse::Never);
        let network = overlays.networks().find(|of| of.vni == vni(number)).unwrap();
        stage.snapshot.network_below(network)
    };
    assert_eq!((below(Direct::Off, PLAIN), below(Direct::On, PLAIN)), (Open, Closed));
    // Their hosts are told nothing.
    assert_eq!(below(Direct::On, BY_HOST), Open);
    assert!(matches!(below(Direct::On, WEB), Asks(_)));
}

// AX-31
#[test]
fn tables_and_queues_of_direct_paths_are_bounded() {
    let mut telling = Telling::new(Direct::On, FastPathUse::Eager);
    for port in 0..1100 {
        telling.comes(PLAIN, &udp(1, 8, port), 1, 8);
    }
    let refused = 1100 - 1024;
    assert_eq!(telling.counts(), DirectCounts { told: 0, ended: 0, refused });
    // Messages leave in bounded numbers a turn.
    let (snapshot, now_ns) = (telling.stage.snapshot.clone(), telling.stage.now_ns);
    telling.stage.workers[0].tick(&snapshot, now_ns);
    assert_eq!(telling.left().len(), 64);
    assert_eq!(telling.hears(SECOND).len(), 1024 - 64);
    for port in 1100..20_000 {
        telling.comes(PLAIN, &udp(1, 8, port), 1, 8);
        if port % 500 == 0 {
            telling.hears(100 * MS);
        }
    }
    telling.hears(SECOND);
    let counts = telling.counts();
    assert_eq!(counts.told, 16_384);
    assert_eq!(counts.refused, refused + (1024 + 20_000 - 1100 - 16_384));
    // All end, whatever the queue holds.
    telling.hears(40 * SECOND);
    assert_eq!(telling.counts().ended, 16_384);
}
