//! TCP and UDP checksums that senders leave to their device: completed on ports that say so and
//! nowhere else, and wrong ones counted.

use dataplane::{DropReason, L4Checksum, L4ChecksumCounts, PortId};
use packets::lab::{BERLIN, HOST, Hub, LAN, LAN2, Laboratory, WAN, own};
use packets::table::{forwarded, run};
use packets::{In, Out, Row};
use wire::build::{PacketBuilder, tcp_flags};
use wire::{Family, UpperChecksum, packet};

use crate::{FAMILIES, between};

/// Every port completes, as far as a port can.
fn complete(hub: &mut Hub) {
    hub.parts.ports.iter_mut().for_each(|port| port.l4_checksum = L4Checksum::Complete);
}

/// TCP and UDP of odd and even length, and without data.
fn forms(family: Family, from: u32, to: u32) -> Vec<PacketBuilder> {
    let base = between(family, from, to);
    let extended = match family {
        Family::V4 => base.clone().options(&[7, 4, 0, 0]),
        Family::V6 => base.clone().extension(0, &[1, 4]).extension(60, &[1, 12]),
    };
    vec![
        base.clone().udp(1000, 2000).payload_of(33),
        base.clone().udp(1000, 2000),
        base.clone().tcp(1000, 443).payload_of(1300),
        base.tcp(1000, 443).payload_of(7),
        extended.udp(1000, 2000).payload_of(40),
    ]
}

/// A row whose packet leaves as another packet, which the gateway forwards.
fn becomes(what: &str, from: PortId, sent: &PacketBuilder, left: &PacketBuilder, to: To) -> Row {
    let left = forwarded(&left.ip());
    let out = match to {
        To::Berlin => Out::Sealed(BERLIN, left),
        To::Port(port) => Out::Clear(port, left),
    };
    Row::passes(what, In::Clear(from, sent.ip()), out)
}

#[derive(Clone, Copy)]
enum To {
    Berlin,
    Port(PortId),
}

fn completed(family: Family) -> Vec<Row> {
    let mut rows = vec![];
    let ways = [(LAN, 1, 2, To::Berlin), (LAN2, 12, 2, To::Berlin), (LAN, 1, 12, To::Port(LAN2))];
    for (port, from, destination, to) in ways {
        for right in forms(family, from, destination) {
            let unfinished = right.clone().unfinished_upper_checksum();
            rows.push(becomes("an unfinished checksum", port, &unfinished, &right, to));
            rows.push(becomes("a right checksum", port, &right, &right, to));
            let wrong = right.bad_upper_checksum();
            rows.push(becomes("a wrong checksum", port, &wrong, &wrong, to));
        }
        let without = between(family, from, destination).udp(1, 2).no_upper_checksum();
        rows.push(becomes("UDP without a checksum", port, &without, &without, to));
        let zero = between(family, from, destination).tcp(1, 2).no_upper_checksum();
        rows.push(becomes("TCP whose checksum is 0", port, &zero, &zero, to));
    }
    let first = between(family, 1, 2).fragment(0, true).udp(1, 2).payload_of(16);
    let first = first.unfinished_upper_checksum();
    rows.push(becomes("a first fragment", LAN, &first, &first, To::Berlin));
    let clear = between(family, 1, 8).udp(1, 2).payload_of(9);
    let unfinished = clear.clone().unfinished_upper_checksum();
    rows.push(becomes("what leaves in cleartext", LAN, &unfinished, &clear, To::Port(WAN)));
    let to_us = PacketBuilder::new(packets::lab::host(family, 1), own(family, 1)).udp(1, 2);
    let unfinished = In::Clear(LAN, to_us.clone().unfinished_upper_checksum().ip());
    rows.push(Row::delivers("what is for Linux", unfinished, to_us.ip()));
    rows
}

/// On ports that complete, too.
fn never_completed(family: Family) -> Vec<Row> {
    let mut rows = vec![];
    for form in forms(family, 2, 1) {
        let unfinished = form.unfinished_upper_checksum().ip();
        rows.push(Row::passes(
            "what an SA opened",
            In::Sealed(BERLIN, unfinished.clone()),
            Out::Clear(LAN, forwarded(&unfinished)),
        ));
    }
    let outside = between(family, 8, 1).udp(1, 2).payload_of(5).unfinished_upper_checksum();
    rows.push(becomes("what comes from outside", WAN, &outside, &outside, To::Port(LAN)));
    let ours = PacketBuilder::new(own(family, 1), packets::lab::host(family, 2));
    let ours = ours.udp(1, 2).unfinished_upper_checksum().ip();
    let out = Out::Sealed(BERLIN, ours.clone());
    rows.push(Row::passes("what comes from Linux", In::Clear(HOST, ours), out));
    rows
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for family in FAMILIES {
        let completing = completed(family).into_iter().chain(never_completed(family));
        rows.extend(completing.map(|row| row.with(complete)));
        // The laboratory's ports pass everything as it is.
        let passed = forms(family, 1, 2).into_iter().map(|form| {
            let unfinished = form.unfinished_upper_checksum();
            becomes("a port that passes", LAN, &unfinished, &unfinished, To::Berlin)
        });
        rows.extend(passed);
    }
    rows
}

#[test]
fn checksums() {
    run(&rows());
}

fn laboratory(change: fn(&mut Hub)) -> Laboratory {
    let mut hub = Hub::default();
    change(&mut hub);
    hub.laboratory()
}

fn counts(lab: &Laboratory, port: PortId) -> L4ChecksumCounts {
    lab.counters().l4_checksums[usize::from(port.0)]
}

/// A SYN is completed before its MSS is clamped: the clamp changes a checksum, it makes none.
#[test]
fn a_syn_with_an_unfinished_checksum_leaves_with_a_right_one_and_clamped() {
    for family in FAMILIES {
        let mut lab = laboratory(|hub| {
            complete(hub);
            hub.parts.sets[BERLIN.0 as usize].mss_clamp = true;
        });
        let syn = between(family, 1, 2).tcp_with(1000, 443, tcp_flags::SYN, Some(1460));
        let outcome = lab.send(LAN, &syn.unfinished_upper_checksum().ip());
        let inner = lab.peer(BERLIN).open(&outcome.sent[0].packet).expect("sealed").inner;
        let parsed = packet::parse(&inner).unwrap();
        let checksum = UpperChecksum::find(&inner, &parsed).unwrap();
        assert!(checksum.is_good(&inner), "{inner:x?}");
        let option = usize::from(parsed.upper_offset) + 20;
        let mss = u16::from_be_bytes([inner[option + 2], inner[option + 3]]);
        assert!(inner[option] == 2 && mss < 1460, "MSS {mss}");
    }
}

#[test]
fn completed_checksums_are_counted_on_their_port_and_are_not_bad() {
    let mut lab = laboratory(complete);
    let packets: Vec<Vec<u8>> = FAMILIES
        .iter()
        .flat_map(|family| forms(*family, 1, 2))
        .map(|form| form.unfinished_upper_checksum().ip())
        .collect();
    for _ in 0..100 {
        lab.send_all(LAN, &packets);
        lab.now_ns += 1_000_000_000;
    }
    let L4ChecksumCounts { completed, checked, bad } = counts(&lab, LAN);
    assert_eq!((completed, bad), (100 * packets.len() as u64, 0));
    assert!(checked >= 100, "at least one each 100 ms: {checked}");
    for port in [LAN2, WAN, HOST] {
        assert_eq!(counts(&lab, port), L4ChecksumCounts::default());
    }
}

#[test]
fn bad_checksums_are_counted_by_sampling_and_drop_nothing() {
    let wrong = between(Family::V4, 1, 2).tcp(1, 2).payload_of(100).bad_upper_checksum().ip();
    let mut lab = laboratory(|_| {});
    // The first packet is seen, however few there are.
    lab.send(LAN, &wrong);
    let first = L4ChecksumCounts { completed: 0, checked: 1, bad: 1 };
    assert_eq!(counts(&lab, LAN), first);
    // Of many at once about one in 64, at most one a batch.
    let many = vec![wrong; 64 * 200];
    let outcome = lab.send_all(LAN, &many);
    assert_eq!(outcome.sent.len(), many.len());
    let L4ChecksumCounts { checked, bad, .. } = counts(&lab, LAN);
    assert_eq!(checked, bad);
    assert!((100..=200).contains(&checked), "{checked} of {}", many.len());
    assert!(DropReason::ALL.iter().all(|reason| lab.counters().dropped(*reason) == 0));
}

#[test]
fn what_has_no_checksum_or_goes_nowhere_is_not_in_the_sample() {
    let mut lab = laboratory(|_| {});
    let mut send = |port, packet: PacketBuilder| {
        lab.now_ns += 1_000_000_000;
        lab.send(port, &packet.ip());
    };
    for family in FAMILIES {
        send(LAN, between(family, 1, 2).udp(1, 2).no_upper_checksum());
        send(LAN, between(family, 1, 2).fragment(0, true).udp(1, 2).payload_of(16));
        send(LAN, between(family, 1, 2).icmp(8, 0, [0; 4]));
        // A policy drops the one, and the other has no route.
        send(WAN, between(family, 3, 1).udp(1, 2).bad_upper_checksum());
        send(LAN, between(family, 1, 200).udp(1, 2).bad_upper_checksum());
    }
    for port in [LAN, WAN] {
        assert_eq!(counts(&lab, port), L4ChecksumCounts::default(), "{port:?}");
    }
}
