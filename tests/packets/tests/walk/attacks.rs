//! Tests an attacker's attempts: on the unprotected link, as an authenticated peer, inside. Each
//! row was once a hole, or would have been one.

use std::collections::HashSet;

use dataplane::Verdict::{self, Drop};
use dataplane::{DropReason, HoldKind};
use packets::lab::{BERLIN, Hub, LAN, WAN, numbered, policy, with_ports};
use packets::table::run;
use packets::{In, Row};
use policy::{Action, Policy, Selector};
use wire::build::PacketBuilder;
use wire::flow::protocol::{ICMP, TCP};

const WAN_PLACE: usize = WAN.0 as usize;

fn only(protocol: u8, policy: Policy) -> Policy {
    let selector = Selector { protocol: Some(protocol), ..policy.selector.clone() };
    Policy { selector, ..policy }
}

fn berlin(hub: &Hub) -> Action {
    Action::Protect(hub.parts.sets[usize::from(BERLIN.0 as u16)].id)
}

/// TCP to and from berlin is protected, and any ICMP bypasses.
fn icmp_bypasses(hub: &mut Hub) {
    let protect = policy("net", 100, berlin(hub), &["10.0.0.0/8"], &["10.2.0.0/16"]);
    let bypass = policy("icmp", 50, Action::Bypass, &["any"], &["any"]);
    hub.policies = numbered(vec![only(TCP, protect), only(ICMP, bypass)]);
}

/// Berlin may speak to TCP port 443 only.
fn https_only(hub: &mut Hub) {
    let protect = policy("net", 100, berlin(hub), &["10.1.0.0/16"], &["10.2.0.0/16"]);
    hub.policies = numbered(vec![with_ports(protect, TCP, &["443"])]);
}

/// Berlin may send ICMP only.
fn icmp_only(hub: &mut Hub) {
    let protect = policy("net", 100, berlin(hub), &["10.1.0.0/16"], &["10.2.0.0/16"]);
    hub.policies = numbered(vec![only(ICMP, protect)]);
}

/// TCP is protected, all else bypasses.
fn tcp_or_bypass(hub: &mut Hub) {
    let protect = policy("tcp", 100, berlin(hub), &["any"], &["2001:db8:2::/48"]);
    let bypass = policy("rest", 50, Action::Bypass, &["any"], &["any"]);
    hub.policies = numbered(vec![only(TCP, protect), bypass]);
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = quotes_of_secrets();
    rows.extend(forged_errors());
    rows.extend(clear_from_outside());
    rows
}

#[test]
fn attacks() {
    run(&rows());
}

/// An ICMP error of ours never carries a protected packet out in clear.
fn quotes_of_secrets() -> Vec<Row> {
    let secret =
        |from, to| PacketBuilder::v4(from, to).tcp(5, 6).payload(b"a secret of the peer's");
    let opened = secret("10.2.0.5", "10.1.0.5").hop_limit(1).ip();
    vec![
        Row::drops("an opened packet is quoted", In::Sealed(BERLIN, opened), DropReason::HopLimit)
            .with(icmp_bypasses)
            .makes(Drop(DropReason::IcmpInClear)),
    ]
}

/// An ICMP error is judged by what it quotes; that is no way around the selectors.
fn forged_errors() -> Vec<Row> {
    let about = PacketBuilder::v4("10.1.0.5", "10.2.0.9").tcp(5, 443).ip();
    let error =
        |from, kind| PacketBuilder::v4(from, "10.1.0.5").icmp(kind, 1, [0; 4]).payload(&about);
    let sealed = |packet: PacketBuilder| In::Sealed(BERLIN, packet.ip());
    let mismatch = |what: &str, packet| {
        Row::drops(what, sealed(packet), DropReason::SelectorMismatch).with(https_only)
    };
    let unreachable = PacketBuilder::v4("10.1.0.5", "10.2.0.9").icmp(3, 3, [0; 4]).ip();
    let nested = PacketBuilder::v4("8.8.8.8", "10.1.0.5").icmp(3, 1, [0; 4]).payload(&unreachable);
    vec![
        mismatch("a redirect", error("10.2.0.9", 5)),
        mismatch("a redirect from a neighbour of the victim's", error("10.1.0.77", 5)),
        mismatch("source quench", error("10.2.0.9", 4)),
        mismatch("unreachable, from a host on our side", error("10.1.0.77", 3)),
        mismatch("unreachable, from ourselves", error("10.1.0.1", 3)),
        Row::drops("an error about an error", sealed(nested), DropReason::SelectorMismatch)
            .with(icmp_only),
    ]
}

/// In clear from outside: our inner addresses are not the carve-out's, and nobody outside has an
/// address that lives inside.
fn clear_from_outside() -> Vec<Row> {
    let ike = |from, to| {
        In::Clear(WAN, PacketBuilder::between(from, to).udp(500, 500).payload_of(9).ip())
    };
    vec![
        Row::drops("to our LAN address", ike("10.2.0.5", "10.1.0.1"), DropReason::Unprotected),
        Row::drops("to our LAN address", ike("198.51.100.9", "10.1.0.1"), DropReason::NoMatch),
        Row::drops("as from the LAN", ike("10.1.0.9", "192.0.2.1"), DropReason::BadAddress),
        Row::drops(
            "as from the LAN, IPv6",
            ike("2001:db8:1::9", "2001:db8:ff::1"),
            DropReason::BadAddress,
        ),
    ]
}

// FC-44
#[test]
fn a_later_ipv6_fragment_does_not_choose_another_policy_than_the_first() {
    let mut hub = Hub::default();
    tcp_or_bypass(&mut hub);
    let mut lab = hub.laboratory();
    let of = || PacketBuilder::v6("2001:db8:1::5", "2001:db8:2::5");
    let first = of().tcp(5, 443).payload_of(76).fragment(0, true).ip();
    let later = of().protocol(253).payload_of(40).fragment(12, false).ip();
    let outcome = lab.send_all(LAN, &[&later, &first]);
    let protect = Verdict::Protect(BERLIN);
    assert_eq!(outcome.verdicts, [Verdict::Hold(HoldKind::Fragment), protect, protect]);
}

/// DESIGN I8: not even when one batch becomes more packets than 16 bits count.
#[test]
fn no_number_seals_twice_however_many_fragments_a_batch_becomes() {
    let mut hub = Hub::default();
    hub.parts.ports[WAN_PLACE].mtu = 84;
    (hub.frames, hub.frame_bytes, hub.ring) = (70_000, 9000, 200_000);
    let mut lab = hub.laboratory();
    let large = PacketBuilder::v4("10.1.0.5", "10.2.0.5").udp(1, 2).payload_of(8400).ip();
    let outcome = lab.send_all(LAN, &vec![large; 64]);
    let numbers: HashSet<_> =
        outcome.sent.iter().map(|sent| sent.packet[24..36].to_vec()).collect();
    assert!(outcome.sent.len() > 65_536, "{} packets", outcome.sent.len());
    assert_eq!(numbers.len(), outcome.sent.len());
}
