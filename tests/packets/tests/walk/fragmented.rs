//! Fragments of ESP in UDP: later ones, which have neither ports nor an SPI, are dropped for the
//! reason of their first one.

use dataplane::DropReason::{EspFragment, FragmentPorts, NoMatch};
use dataplane::{HostService, PortId, PortInfo, Verdict};
use packets::lab::{HOST, Hub, Laboratory, WAN, own};
use wire::build::PacketBuilder;
use wire::flow::protocol;
use wire::{Address, Family};

use crate::{FAMILIES, between};

/// 120 s.
const MEMORY_NS: u64 = 120_000_000_000;
const MEMORY: u32 = 16;

/// A sender outside, by number.
fn sender(family: Family, number: u32) -> Address {
    match family {
        Family::V4 => Address::v4(0xcb00_7100 + number),
        Family::V6 => Address::v6(0x2001_0db8_00dd << 80 | u128::from(number)),
    }
}

/// Our address outside.
fn ours(family: Family) -> Address {
    match family {
        Family::V4 => Address::v4(0xc000_0201),
        Family::V6 => Address::v6(0x2001_0db8_00ff << 80 | 1),
    }
}

/// From a sender outside to us, of this datagram.
fn to_us(family: Family, from: u32, identification: u32) -> PacketBuilder {
    PacketBuilder::new(sender(family, from), ours(family))
        .udp(61_234, 4500)
        .identification(identification)
}

/// The first fragment of ESP in UDP.
fn first(family: Family, from: u32, identification: u32) -> Vec<u8> {
    to_us(family, from, identification).payload(&[7; 24]).fragment(0, true).ip()
}

/// A first fragment of anything else: IKE.
fn first_of_ike(family: Family, from: u32, identification: u32) -> Vec<u8> {
    to_us(family, from, identification).payload(&[0; 24]).fragment(0, true).ip()
}

/// A later fragment.
fn later(family: Family, from: u32, identification: u32) -> Vec<u8> {
    to_us(family, from, identification).payload_of(24).fragment(4, false).ip()
}

/// Returns the verdict of one packet from outside.
fn fate(lab: &mut Laboratory, packet: &[u8]) -> Verdict {
    lab.send(WAN, packet).verdicts[0]
}

/// A laboratory in which nobody wants UDP from outside: a later fragment that is not known to be
/// one of ESP is dropped by another reason.
fn laboratory() -> Laboratory {
    let mut hub = Hub::default();
    hub.parts.ports.iter_mut().for_each(|port| port.allow_host.clear());
    hub.laboratory()
}

/// The reason by which an unknown later fragment is dropped in [`laboratory`].
fn unknown(family: Family) -> Verdict {
    let mut lab = laboratory();
    let verdict = fate(&mut lab, &later(family, 1, 1));
    assert!(matches!(verdict, Verdict::Drop(NoMatch | FragmentPorts)), "{verdict:?}");
    verdict
}

const DROPPED: Verdict = Verdict::Drop(EspFragment);

#[test]
fn later_fragments_of_esp_in_udp_are_dropped_and_counted_as_their_first() {
    for family in FAMILIES {
        let mut lab = laboratory();
        let middle = to_us(family, 1, 9).payload_of(24).fragment(4, true).ip();
        let batch = [first(family, 1, 9), middle, later(family, 1, 9)];
        assert_eq!(lab.send_all(WAN, &batch).verdicts, [DROPPED; 3]);
        assert_eq!(fate(&mut lab, &later(family, 1, 9)), DROPPED, "in another batch");
        assert_eq!(lab.counters().dropped(EspFragment), 4);
    }
}

/// Fragments of IKE reach Linux where `allow_host` lists IKE, and so do those before their first.
#[test]
fn fragments_of_ike_and_those_before_their_first_go_on_to_linux() {
    for family in FAMILIES {
        let mut hub = Hub::default();
        let udp = HostService { protocol: protocol::UDP, ports: None };
        hub.parts.ports.iter_mut().for_each(|port| port.allow_host = vec![udp]);
        let mut lab = hub.laboratory();
        assert_eq!(fate(&mut lab, &later(family, 1, 9)), Verdict::Host, "nothing came before it");
        assert_eq!(fate(&mut lab, &first_of_ike(family, 1, 8)), Verdict::Host);
        assert_eq!(fate(&mut lab, &later(family, 1, 8)), Verdict::Host);
        let outcome = lab.send_all(WAN, &[first(family, 1, 9), later(family, 1, 9)]);
        assert_eq!(outcome.verdicts, [DROPPED; 2]);
        assert!(outcome.sent.iter().all(|sent| sent.port != HOST));
        // A new datagram has the old identification: it is IKE.
        let outcome = lab.send_all(WAN, &[first_of_ike(family, 1, 9), later(family, 1, 9)]);
        assert_eq!(outcome.verdicts, [Verdict::Host; 2]);
    }
}

#[test]
fn a_datagram_is_told_by_source_destination_identification_and_port() {
    for family in FAMILIES {
        let unknown = unknown(family);
        let mut hub = Hub::default();
        hub.parts.ports.iter_mut().for_each(|port| port.allow_host.clear());
        let mut other_port = hub.parts.ports[usize::from(WAN.0)].clone();
        (other_port.vlan, other_port.name) = (Some(99), "tagged".into());
        hub.parts.ports.push(other_port);
        let tagged = PortId(hub.parts.ports.len() as u16 - 1);
        let mut lab = hub.laboratory();
        assert_eq!(fate(&mut lab, &first(family, 1, 9)), DROPPED);
        assert_eq!(fate(&mut lab, &later(family, 2, 9)), unknown, "another source");
        assert_eq!(fate(&mut lab, &later(family, 1, 10)), unknown, "another identification");
        assert_eq!(lab.send(tagged, &later(family, 1, 9)).verdicts, [unknown], "another port");
        let elsewhere = PacketBuilder::new(sender(family, 1), own(family, 1)).identification(9);
        let elsewhere = elsewhere.udp(1, 4500).payload_of(24).fragment(4, false).ip();
        assert_ne!(fate(&mut lab, &elsewhere), DROPPED, "another address of ours");
        let through = between(family, 8, 1).identification(9).udp(1, 4500);
        assert_ne!(fate(&mut lab, &through.payload_of(24).fragment(4, false).ip()), DROPPED);
        let tcp = to_us(family, 1, 9).tcp(1, 4500).payload_of(24).fragment(4, false).ip();
        // In IPv6 the first fragment alone says the protocol (RFC 8200 §4.5).
        let is_same = family == Family::V6;
        assert_eq!(fate(&mut lab, &tcp) == DROPPED, is_same, "another protocol");
        assert_eq!(fate(&mut lab, &later(family, 1, 9)), DROPPED);
    }
}

#[test]
fn an_ipv6_datagram_is_known_behind_other_extension_headers() {
    let mut lab = laboratory();
    let options = [1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let first = to_us(Family::V6, 1, 9).extension(0, &options).payload(&[7; 24]);
    assert_eq!(fate(&mut lab, &first.fragment(0, true).ip()), DROPPED);
    assert_eq!(fate(&mut lab, &later(Family::V6, 1, 9)), DROPPED);
}

#[test]
fn sixteen_datagrams_are_remembered_and_the_oldest_gives_way_to_the_seventeenth() {
    for family in FAMILIES {
        let unknown = unknown(family);
        let mut lab = laboratory();
        for number in 0..MEMORY {
            assert_eq!(fate(&mut lab, &first(family, 1, number)), DROPPED);
        }
        for number in 0..MEMORY {
            assert_eq!(fate(&mut lab, &later(family, 1, number)), DROPPED, "{number}");
        }
        // Come once more it is the newest, and not there twice.
        assert_eq!(fate(&mut lab, &first(family, 1, 0)), DROPPED);
        assert_eq!(fate(&mut lab, &later(family, 1, 1)), DROPPED);
        assert_eq!(fate(&mut lab, &first(family, 1, MEMORY)), DROPPED);
        assert_eq!(fate(&mut lab, &later(family, 1, 1)), unknown);
        for number in [0].into_iter().chain(2..=MEMORY) {
            assert_eq!(fate(&mut lab, &later(family, 1, number)), DROPPED, "{number}");
        }
    }
}

#[test]
fn after_two_minutes_a_datagram_is_forgotten() {
    for family in FAMILIES {
        let unknown = unknown(family);
        let mut lab = laboratory();
        lab.now_ns = 5;
        assert_eq!(fate(&mut lab, &first(family, 1, 9)), DROPPED);
        lab.now_ns = 5 + MEMORY_NS - 1;
        assert_eq!(fate(&mut lab, &later(family, 1, 9)), DROPPED);
        lab.now_ns = 5 + MEMORY_NS;
        assert_eq!(fate(&mut lab, &later(family, 1, 9)), unknown);
        // Later fragments do not keep it awake, a first one does.
        lab.now_ns = 10 + MEMORY_NS;
        assert_eq!(fate(&mut lab, &first(family, 1, 9)), DROPPED);
        assert_eq!(fate(&mut lab, &later(family, 1, 9)), DROPPED);
    }
}

#[test]
fn datagrams_of_a_port_that_is_gone_are_forgotten_and_no_others() {
    let family = Family::V4;
    let mut lab = laboratory();
    assert_eq!(fate(&mut lab, &first(family, 1, 9)), DROPPED);
    let wan = lab.snapshot.port(WAN).clone();
    let other = PortInfo { name: "other".into(), vlan: Some(7), ..wan.clone() };
    lab.change(|sources| _ = sources.ports.set(4, Some(other)));
    assert_eq!(fate(&mut lab, &later(family, 1, 9)), DROPPED);
    let (routes, neighbours) = {
        let sources = lab.snapshot.sources();
        (sources.routes.clone(), sources.neighbours.clone())
    };
    lab.change(|sources| Laboratory::without_port(sources, WAN));
    lab.change(|sources| {
        sources.ports.set(usize::from(WAN.0), Some(wan));
        (sources.routes, sources.neighbours) = (routes, neighbours);
    });
    assert_eq!(fate(&mut lab, &later(family, 1, 9)), unknown(family));
}
