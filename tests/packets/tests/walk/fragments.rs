//! Virtual reassembly: a later fragment is judged by the ports of its datagram's first one.

use dataplane::Verdict::{self, Drop, Forward, Hold, Protect};
use dataplane::reassembly::{MAX_PER_DATAGRAM, MAX_WAITING, PATIENCE_NS};
use dataplane::{DropReason, HoldKind, PortInfo};
use packets::lab::{BERLIN, HOST, Hub, LAN, Laboratory, WAN};
use packets::table::{forwarded, run};
use packets::{In, Out, Row};
use policy::Action;
use wire::Family::{self, V4, V6};
use wire::build::PacketBuilder;
use wire::flow::protocol::{FRAGMENT, ICMP, ICMPV6, TCP, UDP};

use crate::{FAMILIES, between};

/// Waits for the first fragment.
const WAITS: Verdict = Hold(HoldKind::Fragment);
const TO_BERLIN: Verdict = Protect(BERLIN);
const IN_CLEAR: Verdict = Forward(WAN);

/// A datagram to network 9: TCP to port 443 is berlin's, all else leaves in clear.
fn to_nine(family: Family, number: u32) -> PacketBuilder {
    between(family, 1, 9).identification(number)
}

/// The first 32 bytes of a TCP datagram to a port.
fn first(family: Family, number: u32, port: u16) -> Vec<u8> {
    to_nine(family, number).tcp(5, port).payload_of(12).fragment(0, true).ip()
}

/// 8 bytes of it, from a multiple of 8 on. They look like other ports.
fn middle(family: Family, number: u32, offset: u16) -> Vec<u8> {
    let payload = [0, 5, 0, 80, 0, 80, 0, 80];
    to_nine(family, number).protocol(TCP).payload(&payload).fragment(offset, true).ip()
}

/// Its last 5 bytes.
fn last(family: Family, number: u32, offset: u16) -> Vec<u8> {
    to_nine(family, number).protocol(TCP).payload_of(5).fragment(offset, false).ip()
}

fn lan(packet: &[u8]) -> In {
    In::Clear(LAN, packet.to_vec())
}

#[test]
fn overlaps_tiny_fragments_and_bounds() {
    // FC-44
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for family in FAMILIES {
        rows.extend(invalid(family));
        rows.extend(judged(family));
    }
    rows
}

/// Fragments that make their datagram invalid (RFC 5722, RFC 1858).
fn invalid(family: Family) -> Vec<Row> {
    use DropReason::{FragmentDuplicate, FragmentLimit, FragmentOverlap, FragmentPorts};
    use DropReason::{FragmentTiny, Malformed};
    let first = |port| lan(&first(family, 1, port));
    let middle = |offset| lan(&middle(family, 1, offset));
    let last = |offset| lan(&last(family, 1, offset));
    let of = |bytes: usize| to_nine(family, 1).protocol(TCP).payload_of(bytes);
    let longer = |offset| lan(&of(16).fragment(offset, true).ip());
    let ending = |offset| lan(&of(8).fragment(offset, false).ip());
    let tiny = lan(&of(8).fragment(0, true).ip());
    let empty = to_nine(family, 1).protocol(TCP).fragment(9, false).ip();
    let pieces = |row: Row| {
        // No policy to network 2 wants to see ports: none of these waits.
        let piece =
            |number| between(family, 1, 2).protocol(UDP).payload_of(8).fragment(number, true);
        (1..17).fold(row, |row, number| row.after(lan(&piece(2 * number).ip())))
    };
    let piece = between(family, 1, 2).protocol(UDP).payload_of(8).fragment(99, true).ip();
    let mut rows = vec![
        Row::drops("a part twice", middle(4), FragmentDuplicate).after(first(443)).after(middle(4)),
        Row::drops("a first twice", first(443), FragmentDuplicate).after(first(443)),
        Row::drops("a first with other ports", first(80), FragmentDuplicate).after(first(443)),
        Row::drops("a last part twice", last(5), FragmentDuplicate)
            .after(first(443))
            .after(last(5)),
        Row::drops("a longer part", longer(4), FragmentOverlap).after(first(443)).after(middle(4)),
        Row::drops("a shorter part", middle(4), FragmentOverlap).after(first(443)).after(longer(4)),
        Row::drops("the same part as the last", ending(4), FragmentOverlap)
            .after(first(443))
            .after(middle(4)),
        Row::drops("over the first", last(3), FragmentOverlap).after(first(443)),
        Row::drops("behind the end", middle(7), FragmentOverlap).after(first(443)).after(last(5)),
        Row::drops("an end before others", last(4), FragmentOverlap)
            .after(first(443))
            .after(middle(7)),
        Row::drops("what fits, behind an overlap", last(9), FragmentOverlap)
            .after(first(443))
            .after(middle(3)),
        Row::drops("too small for the flags of TCP", tiny.clone(), FragmentTiny),
        Row::drops("what is behind it", last(9), FragmentTiny).after(tiny.clone()),
        Row::drops("a first that is large enough", first(443), FragmentTiny).after(tiny),
        Row::drops("nothing in it", lan(&empty), Malformed),
        pieces(Row::drops("the 17th piece that touches no other", lan(&piece), FragmentLimit)),
    ];
    // An ICMP error is judged by what it quotes, which its later fragments do not.
    let (icmp, kind) = if family == V4 { (ICMP, 3) } else { (ICMPV6, 1) };
    let error = between(family, 1, 10).icmp(kind, 1, [0; 4]).payload_of(64).fragment(0, true).ip();
    let rest = between(family, 1, 10).protocol(icmp).payload_of(8).fragment(9, false).ip();
    let row = Row::drops("a later fragment of an ICMP error", lan(&rest), FragmentPorts);
    rows.push(row.after(lan(&error)));
    if family == V6 {
        // RFC 8200 §4.1: at most one. Two parsers could each take another one for the fragment's.
        for more in [0, 1] {
            let twice = between(V6, 1, 9).extension(FRAGMENT, &[0, more, 0, 0, 0, 1]);
            let twice = twice.protocol(UDP).payload_of(64).fragment(100, true).ip();
            rows.push(Row::drops("two Fragment headers", lan(&twice), Malformed));
        }
    }
    rows
}

/// Later fragments behind their first one.
fn judged(family: Family) -> Vec<Row> {
    let tcp = |port: u16| lan(&first(family, 1, port));
    let later = last(family, 1, 4);
    let sealed = Out::Sealed(BERLIN, forwarded(&later));
    let clear = Out::Clear(WAN, forwarded(&later));
    let mut rows = vec![
        Row::passes("a later fragment to port 443", lan(&later), sealed).after(tcp(443)),
        Row::passes("a later fragment to port 80", lan(&later), clear).after(tcp(80)),
        Row::waits("of another datagram", lan(&last(family, 2, 4))).after(tcp(80)),
    ];
    // The first to come counts, and passes; nothing behind the gateway sees the other one.
    let sealed = Out::Sealed(BERLIN, forwarded(&last(family, 1, 5)));
    let row = Row::passes("behind duplicates", lan(&last(family, 1, 5)), sealed);
    let part = || lan(&middle(family, 1, 4));
    rows.push(row.after(tcp(443)).after(tcp(80)).after(part()).after(part()));
    // By policies with ICMP types: echo requests to network 10 are berlin's, in IPv4.
    if family == V4 {
        let echo = between(V4, 1, 10).icmp(8, 0, [1; 4]).payload_of(64).fragment(0, true).ip();
        let rest = between(V4, 1, 10).protocol(ICMP).payload_of(800).fragment(9, false).ip();
        let out = Out::Sealed(BERLIN, forwarded(&rest));
        rows.push(Row::passes("the rest of a big ping", lan(&rest), out).after(lan(&echo)));
    }
    // Opened: berlin may not speak from network 9 to network 1 but by TCP from port 443.
    let answer = |builder: PacketBuilder| In::Sealed(BERLIN, builder.ip());
    let of = || between(family, 9, 1);
    let rest = of().protocol(TCP).payload_of(8).fragment(4, false);
    let from = |port| answer(of().tcp(port, 5).payload_of(12).fragment(0, true));
    let out = Out::Clear(LAN, forwarded(&rest.ip()));
    rows.push(Row::passes("opened, from port 443", answer(rest.clone()), out).after(from(443)));
    let reason = DropReason::SelectorMismatch;
    rows.push(Row::drops("opened, from port 80", answer(rest.clone()), reason).after(from(80)));
    // What comes in clear is no fragment of what was opened.
    let in_clear = In::Clear(WAN, rest.ip());
    rows.push(Row::waits("in clear, of what was opened", in_clear).after(from(443)));
    rows
}

#[test]
fn fragments_that_came_before_their_first_follow_it_in_their_order() {
    // FC-44, FRAG
    for family in FAMILIES {
        for (port, judged) in [(443, TO_BERLIN), (80, IN_CLEAR)] {
            let mut lab = Hub::default().laboratory();
            let early = [middle(family, 1, 5), last(family, 1, 6)];
            for packet in &early {
                assert_eq!(lab.send(LAN, packet).verdicts, [WAITS]);
            }
            assert_eq!(lab.waiting(), 2);
            // Those that waited have their verdicts behind those of the batch.
            let batch = [first(family, 2, 80), first(family, 1, port), middle(family, 1, 4)];
            let outcome = lab.send_all(LAN, &batch);
            assert_eq!(outcome.verdicts, [IN_CLEAR, judged, judged, judged, judged]);
            let left: Vec<Vec<u8>> = packets::table::opened(&mut lab, &outcome)
                .into_iter()
                .map(|out| match out {
                    Out::Clear(_, packet) | Out::Sealed(_, packet) => packet,
                })
                .collect();
            let [other, first, middle] = batch;
            let expected = [&other, &first, &early[0], &early[1], &middle].map(|p| forwarded(p));
            assert_eq!(left, expected);
            assert_eq!((lab.waiting(), lab.counters().total().held), (0, 0));
        }
    }
}

#[test]
fn a_fragment_waits_two_seconds_and_no_longer() {
    for family in FAMILIES {
        // Dropped by a timer, or by what comes next.
        for quiet in [true, false] {
            let mut lab = Hub::default().laboratory();
            let start_ns = lab.now_ns;
            assert_eq!(lab.send(LAN, &middle(family, 1, 4)).verdicts, [WAITS]);
            lab.now_ns = start_ns + PATIENCE_NS - 1;
            lab.tick();
            assert_eq!(
                (lab.waiting(), lab.counters().dropped(DropReason::FragmentTimeout)),
                (1, 0)
            );
            lab.now_ns = start_ns + PATIENCE_NS;
            if quiet {
                lab.tick();
            } else {
                assert_eq!(lab.send(LAN, &first(family, 1, 443)).verdicts, [TO_BERLIN]);
            }
            assert_eq!(
                (lab.waiting(), lab.counters().dropped(DropReason::FragmentTimeout)),
                (0, 1)
            );
        }
    }
}

#[test]
fn an_overlap_drops_what_waits_too() {
    for family in FAMILIES {
        let mut lab = Hub::default().laboratory();
        for offset in 4..4 + MAX_PER_DATAGRAM as u16 {
            assert_eq!(lab.send(LAN, &middle(family, 1, offset)).verdicts, [WAITS]);
        }
        let duplicate = Drop(DropReason::FragmentDuplicate);
        assert_eq!(lab.send(LAN, &middle(family, 1, 5)).verdicts, [duplicate]);
        let overlap = Drop(DropReason::FragmentOverlap);
        assert_eq!(lab.send(LAN, &last(family, 1, 4)).verdicts, [overlap]);
        let dropped = lab.counters().dropped(DropReason::FragmentOverlap);
        assert_eq!((lab.waiting(), dropped), (0, MAX_PER_DATAGRAM as u64 + 1));
        assert_eq!(lab.send(LAN, &first(family, 1, 443)).verdicts, [overlap]);
    }
}

#[test]
fn a_fragment_above_the_bound_of_a_datagram_drops_the_datagram() {
    for family in FAMILIES {
        let mut lab = Hub::default().laboratory();
        for offset in 4..4 + MAX_PER_DATAGRAM as u16 {
            assert_eq!(lab.send(LAN, &middle(family, 1, offset)).verdicts, [WAITS]);
        }
        let limit = Drop(DropReason::FragmentLimit);
        assert_eq!(lab.send(LAN, &middle(family, 1, 99)).verdicts, [limit]);
        let dropped = lab.counters().dropped(DropReason::FragmentLimit);
        assert_eq!((lab.waiting(), dropped), (0, MAX_PER_DATAGRAM as u64 + 1));
        assert_eq!(lab.send(LAN, &first(family, 1, 443)).verdicts, [limit]);
        assert_eq!(lab.counters().total().imbalance(), 0);
    }
}

/// Whatever one source sends, fragments of others meet.
#[test]
fn a_flood_from_one_source_keeps_no_others_out() {
    // FRAG
    for family in FAMILIES {
        let mut lab = Hub { frames: 2048, ..Hub::default() }.laboratory();
        // From network 1 in its own name, for a datagram each.
        let flood = |number: u32| {
            let from = PacketBuilder::new(packets::lab::host(family, 11), {
                packets::lab::host(family, 9)
            });
            let packet = from.identification(number).protocol(TCP).payload_of(8);
            packet.fragment(4, true).ip()
        };
        for round in 0..40 {
            let numbers = round * 64..(round + 1) * 64;
            let batch: Vec<Vec<u8>> = numbers.map(flood).collect();
            lab.send_all(packets::lab::LAN, &batch);
            assert_eq!(lab.send(LAN, &last(family, round, 4)).verdicts, [WAITS]);
            let outcome = lab.send(LAN, &first(family, round, 443));
            assert_eq!(outcome.verdicts, [TO_BERLIN, TO_BERLIN], "round {round}");
        }
        // The last fragment of another sender had one place.
        assert_eq!(lab.waiting(), MAX_WAITING - 1);
        let total = lab.counters().total();
        assert_eq!((total.held, total.imbalance()), (MAX_WAITING as u64 - 1, 0));
        assert!(lab.counters().dropped(DropReason::FragmentLimit) > 1000);
    }
}

/// IKE too large for one packet, in any order; a later fragment of another service does not pass
/// for one of IKE.
#[test]
fn later_fragments_to_the_machine_itself_are_judged_by_their_first() {
    let to_us = |number| PacketBuilder::between("203.0.113.9", "192.0.2.1").identification(number);
    let mut lab = Hub::default().laboratory();
    let rest = |number| to_us(number).protocol(UDP).payload(&[7; 16]).fragment(4, false).ip();
    for (number, port, payload) in [(1, 500, [7; 24]), (2, 4500, [0; 24])] {
        let first = to_us(number).udp(61_000, port).payload(&payload).fragment(0, true).ip();
        let outcome = lab.send_all(WAN, &[first, rest(number)]);
        assert_eq!(outcome.verdicts, [Verdict::Host; 2], "port {port}");
        assert!(outcome.sent.iter().all(|sent| sent.port == HOST));
    }
    let first = to_us(3).udp(61_000, 53).payload_of(24).fragment(0, true).ip();
    let verdict = Drop(DropReason::NoMatch);
    assert_eq!(lab.send_all(WAN, &[first, rest(3)]).verdicts, [verdict; 2]);
}

#[test]
fn what_waits_goes_with_its_port() {
    let mut lab = Hub::default().laboratory();
    assert_eq!(lab.send(LAN, &middle(V4, 1, 4)).verdicts, [WAITS]);
    let other: PortInfo =
        PortInfo { name: "other".into(), vlan: Some(7), ..lab.snapshot.port(LAN).clone() };
    lab.change(|sources| _ = sources.ports.set(4, Some(other)));
    assert_eq!(lab.waiting(), 1);
    lab.change(|sources| Laboratory::without_port(sources, LAN));
    assert_eq!(lab.waiting(), 0);
    assert_eq!(lab.counters().dropped(DropReason::FragmentTimeout), 1);
}

#[test]
fn what_waits_is_judged_by_the_policies_of_the_time_when_its_first_comes() {
    let mut lab = Hub::default().laboratory();
    assert_eq!(lab.send(LAN, &last(V6, 1, 4)).verdicts, [WAITS]);
    let mut hub = Hub::default();
    hub.policies.iter_mut().for_each(|policy| policy.action = Action::Discard);
    let spd = hub.snapshot().sources().spd.clone();
    lab.change(|sources| sources.spd = spd);
    let discarded = Drop(DropReason::PolicyDiscard);
    assert_eq!(lab.send(LAN, &first(V6, 1, 443)).verdicts, [discarded; 2]);
}
