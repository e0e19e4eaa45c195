//! Connections: what a `reflect` rule lets begin, its answers, and how it ends. Each scenario runs
//! with and without a flow cache, on the fast path and on the general walk alone.

use std::sync::Arc;

use dataplane::connections::{Connections, Limits};
use dataplane::{DropReason, FastPathUse, PortId, Verdict};
use packets::lab::{BERLIN, Hub, LAN, LAN2, Laboratory, WAN, with_ports};
use packets::table::{forwarded, run};
use packets::{In, Out, Row};
use policy::connection::{State, Timeouts};
use policy::{Action, GroupMode, GroupSide, Policy, PolicyId, Spd};
use wire::Family::{self, V4, V6};
use wire::build::PacketBuilder;
use wire::flow::protocol::TCP;

use crate::groups::{group, rule, with};
use crate::{FAMILIES, between};

const REFLECT: Action = Action::Reflect(GroupMode::Enforce);
const DENY: Action = Action::Deny(GroupMode::Enforce);

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

const NO_MATCH: Verdict = Verdict::Drop(DropReason::GroupNoMatch);

fn table(limits: Limits) -> Arc<Connections> {
    Arc::new(Connections::new(limits, Timeouts::default(), &[9; 32]))
}

/// Groups that enforce these rules on both sides of ports: what no rule names is denied.
fn closed(ports: &[PortId], rules: &[(GroupSide, PortId, Vec<Policy>)]) -> Vec<Policy> {
    let sides = ports.iter().flat_map(|port| GroupSide::ALL.map(|side| (side, *port)));
    let of = |(side, port)| {
        let named = rules.iter().find(|(its, at, _)| (*its, *at) == (side, port));
        let rules = named.map_or(Vec::new(), |(_, _, rules)| rules.clone());
        group(side, port, rules, GroupMode::Enforce)
    };
    sides.flat_map(of).collect()
}

/// A `reflect` rule from network 1 to everywhere, of what comes by the LAN.
fn from_lan() -> Vec<Policy> {
    vec![rule(GroupSide::In, LAN, REFLECT, &[1], &[])]
}

/// A gateway with these groups, in each way to walk.
fn each(groups: &[Policy], scenario: impl Fn(&mut Laboratory, Family)) {
    each_with(groups, Limits::of(1024), scenario);
}

fn each_with(groups: &[Policy], limits: Limits, scenario: impl Fn(&mut Laboratory, Family)) {
    for family in FAMILIES {
        for use_ in [FastPathUse::Eager, FastPathUse::Never] {
            for entries in [None, Some(1 << 10)] {
                let mut hub = Hub::default();
                hub.parts.connections = Some(table(limits));
                with(groups.to_vec())(&mut hub);
                hub.spd = Some(Spd::with_room(hub.policies.clone(), 200).unwrap());
                let mut lab = hub.laboratory().with_fast_path(use_);
                if let Some(entries) = entries {
                    lab = lab.remembering(entries);
                }
                scenario(&mut lab, family);
            }
        }
    }
}

/// Adds a rule in front of all others, as a change of single ones does.
fn add(lab: &mut Laboratory, rule: Policy) {
    let rule = Policy { id: PolicyId(1000), priority: 2000, ..rule };
    let spd = lab.snapshot.spd().changed(&[], vec![rule]).unwrap();
    lab.change(|sources| sources.spd = spd.into());
}

/// The states of all connections.
fn states(lab: &Laboratory) -> Vec<(PortId, State)> {
    let mut page = Vec::new();
    let connections = lab.snapshot.connections().unwrap();
    let now_s = (lab.now_ns / 1_000_000_000) as u32;
    let rest = connections.page(dataplane::connections::Place(0), usize::MAX, now_s, &mut page);
    assert_eq!(rest, None);
    let mut states: Vec<_> =
        page.iter().map(|it| (PortId(it.zone.attachment), it.status.state)).collect();
    states.sort_by_key(|(port, state)| (port.0, *state as u8));
    states
}

fn verdicts(lab: &mut Laboratory, port: PortId, packet: &[u8]) -> Verdict {
    let verdicts = lab.send(port, packet).verdicts;
    assert_eq!(verdicts.len(), 1);
    verdicts[0]
}

fn segment(
    family: Family,
    (from, to): (u32, u32),
    (source, to_port): (u16, u16),
    f: u8,
) -> Vec<u8> {
    between(family, from, to).tcp_with(source, to_port, f, None).ip()
}

/// A segment of the client 10.1.x, and one of the server 10.12.x.
fn client(family: Family, flags: u8) -> Vec<u8> {
    segment(family, (1, 12), (4000, 80), flags)
}

fn server(family: Family, flags: u8) -> Vec<u8> {
    segment(family, (12, 1), (80, 4000), flags)
}

pub(crate) fn rows() -> Vec<Row> {
    let of = |family: Family| {
        let question = between(family, 1, 12).udp(4000, 53).ip();
        let answer = between(family, 12, 1).udp(53, 4000).ip();
        let other = between(family, 12, 1).udp(54, 4000).ip();
        let lan = |packet: &[u8]| In::Clear(LAN, packet.to_vec());
        let lan2 = |packet: &[u8]| In::Clear(LAN2, packet.to_vec());
        let groups = |connections: Option<Arc<Connections>>| {
            let groups = closed(&[LAN], &[(GroupSide::In, LAN, from_lan())]);
            move |hub: &mut Hub| {
                hub.parts.connections = connections.clone();
                with(groups.clone())(hub);
            }
        };
        let roomy = || groups(Some(table(Limits::of(64))));
        vec![
            Row::passes("a reflect rule", lan(&question), Out::Clear(LAN2, forwarded(&question)))
                .with(roomy()),
            Row::drops("an answer to nobody", lan2(&answer), DropReason::GroupNoMatch)
                .with(roomy()),
            Row::passes("an answer", lan2(&answer), Out::Clear(LAN, forwarded(&answer)))
                .after(lan(&question))
                .with(groups(Some(table(Limits::of(64))))),
            Row::drops("an answer of another port", lan2(&other), DropReason::GroupNoMatch)
                .after(lan(&question))
                .with(groups(Some(table(Limits::of(64))))),
            Row::drops("no room", lan(&question), DropReason::ConnectionLimit).with(groups(None)),
        ]
    };
    FAMILIES.into_iter().flat_map(of).collect()
}

#[test]
fn reflect_rules_let_answers_through() {
    run(&rows());
}

// REPLY
#[test]
fn a_rule_that_goes_takes_its_connections_with_it_in_both_directions() {
    let groups = closed(
        &[LAN, LAN2],
        &[
            (GroupSide::In, LAN, from_lan()),
            (GroupSide::Out, LAN2, vec![rule(GroupSide::Out, LAN2, REFLECT, &[1], &[])]),
        ],
    );
    each(&groups, |lab, family| {
        let (to, back) = (Verdict::Forward(LAN2), Verdict::Forward(LAN));
        assert_eq!(verdicts(lab, LAN2, &server(family, SYN | ACK)), NO_MATCH);
        for _ in 0..2 {
            assert_eq!(verdicts(lab, LAN, &client(family, SYN)), to);
            assert_eq!(verdicts(lab, LAN2, &server(family, SYN | ACK)), back);
            assert_eq!(verdicts(lab, LAN, &client(family, ACK)), to);
            assert_eq!(verdicts(lab, LAN2, &server(family, ACK)), back);
        }
        let established = State::Established;
        assert_eq!(states(lab), [(LAN, established), (LAN2, established)]);
        // A rule that does not concern it comes: both are judged again, and stay.
        let deny = with_ports(rule(GroupSide::In, LAN, DENY, &[1], &[]), TCP, &["81"]);
        add(lab, deny);
        assert_eq!(verdicts(lab, LAN2, &server(family, ACK)), back);
        assert_eq!(verdicts(lab, LAN, &client(family, ACK)), to);
        assert_eq!(states(lab), [(LAN, established), (LAN2, established)]);
        // A rule above denies the client: the server speaks first.
        let deny = with_ports(rule(GroupSide::In, LAN, DENY, &[1], &[]), TCP, &["80"]);
        add(lab, deny);
        assert_eq!(verdicts(lab, LAN2, &server(family, ACK)), NO_MATCH);
        assert_eq!(states(lab), [(LAN2, established)], "at the port whose groups still permit it");
        let denied = Verdict::Drop(DropReason::GroupDeny);
        assert_eq!(verdicts(lab, LAN, &client(family, ACK)), denied);
    });
}

#[test]
fn only_the_originators_ack_establishes_a_connection() {
    let groups = closed(&[LAN], &[(GroupSide::In, LAN, from_lan())]);
    each(&groups, |lab, family| {
        for _ in 0..3 {
            verdicts(lab, LAN, &client(family, SYN));
            verdicts(lab, LAN2, &server(family, SYN | ACK));
        }
        assert_eq!(states(lab), [(LAN, State::SynReceived)]);
        verdicts(lab, LAN, &client(family, ACK));
        assert_eq!(states(lab), [(LAN, State::Established)]);
        verdicts(lab, LAN, &client(family, FIN | ACK));
        assert_eq!(states(lab), [(LAN, State::Closing)]);
        verdicts(lab, LAN2, &server(family, FIN | ACK));
        assert_eq!(states(lab), [(LAN, State::TimeWait)]);
        // The client opens it again.
        assert_eq!(verdicts(lab, LAN, &client(family, SYN)), Verdict::Forward(LAN2));
        assert_eq!(states(lab), [(LAN, State::SynSent)]);
        verdicts(lab, LAN2, &server(family, RST | ACK));
        assert_eq!(states(lab), [(LAN, State::Reset)]);
        lab.now_ns += 11_000_000_000;
        assert_eq!(verdicts(lab, LAN2, &server(family, ACK)), NO_MATCH);
        assert_eq!(states(lab), []);
    });
}

#[test]
fn what_begins_in_the_middle_needs_a_rule_in_its_own_direction() {
    let groups = closed(&[LAN], &[(GroupSide::In, LAN, from_lan())]);
    each(&groups, |lab, family| {
        assert_eq!(verdicts(lab, LAN2, &server(family, ACK)), NO_MATCH);
        assert_eq!(verdicts(lab, LAN, &client(family, ACK)), Verdict::Forward(LAN2));
        assert_eq!(states(lab), [(LAN, State::MidStream)]);
        assert_eq!(verdicts(lab, LAN2, &server(family, ACK)), Verdict::Forward(LAN));
        assert_eq!(states(lab), [(LAN, State::Established)]);
        // An RST passes by the rule, and begins nothing.
        let reset = segment(family, (1, 12), (4001, 80), RST);
        assert_eq!(verdicts(lab, LAN, &reset), Verdict::Forward(LAN2));
        assert_eq!(states(lab).len(), 1);
    });
}

#[test]
fn a_sealed_answer_is_known_and_one_in_cleartext_is_not_let_in() {
    // The port of the tunnel tracks: what it sealed is answered sealed.
    let out = vec![rule(GroupSide::Out, WAN, REFLECT, &[1], &[])];
    let groups = closed(&[WAN], &[(GroupSide::Out, WAN, out)]);
    each(&groups, |lab, family| {
        let question = between(family, 1, 2).udp(4000, 53).payload_of(20).ip();
        let answer = between(family, 2, 1).udp(53, 4000).payload_of(20).ip();
        let sealed = |lab: &mut Laboratory| {
            let packet = lab.peer(BERLIN).seal(&answer);
            verdicts(lab, WAN, &packet)
        };
        assert_eq!(sealed(lab), NO_MATCH);
        assert_eq!(verdicts(lab, LAN, &question), Verdict::Protect(BERLIN));
        for _ in 0..2 {
            assert_eq!(sealed(lab), Verdict::Forward(LAN));
            let in_clear = verdicts(lab, WAN, &answer);
            assert_eq!(in_clear, Verdict::Drop(DropReason::Unprotected));
        }
        assert_eq!(states(lab), [(WAN, State::Datagram)]);
    });
}

#[test]
fn an_echo_is_answered_once_asked_and_by_its_identifier() {
    let groups = closed(&[LAN], &[(GroupSide::In, LAN, from_lan())]);
    each(&groups, |lab, family| {
        let (request, reply) = if family == V4 { (8, 0) } else { (128, 129) };
        let ask = |id: u8| between(family, 1, 12).icmp(request, 0, [0, id, 0, 1]).ip();
        let tell = |id: u8| between(family, 12, 1).icmp(reply, 0, [0, id, 0, 1]).ip();
        assert_eq!(verdicts(lab, LAN2, &tell(1)), NO_MATCH);
        for id in [1, 2] {
            assert_eq!(verdicts(lab, LAN, &ask(id)), Verdict::Forward(LAN2));
            assert_eq!(verdicts(lab, LAN2, &tell(id)), Verdict::Forward(LAN));
        }
        assert_eq!(verdicts(lab, LAN2, &tell(3)), NO_MATCH);
        // Nor may the other end ask.
        let turned = between(family, 12, 1).icmp(request, 0, [0, 1, 0, 1]).ip();
        assert_eq!(verdicts(lab, LAN2, &turned), NO_MATCH);
        assert_eq!(states(lab), [(LAN, State::Echo), (LAN, State::Echo)]);
    });
}

/// An ICMP error of a router in network 12 to `to`, about a packet.
fn unreachable(family: Family, to: u32, quoted: &[u8]) -> Vec<u8> {
    let (kind, code) = if family == V4 { (3, 1) } else { (1, 0) };
    between(family, 12, to).icmp(kind, code, [0; 4]).payload(quoted).ip()
}

#[test]
fn an_icmp_error_is_of_the_connection_that_it_quotes() {
    let groups = closed(&[LAN], &[(GroupSide::In, LAN, from_lan())]);
    each(&groups, |lab, family| {
        let question = between(family, 1, 12).udp(4000, 53).ip();
        let other = between(family, 1, 12).udp(4001, 53).ip();
        let ping = if family == V4 { (8, 0) } else { (128, 0) };
        let ping = between(family, 1, 12).icmp(ping.0, ping.1, [0, 7, 0, 1]).ip();
        assert_eq!(verdicts(lab, LAN2, &unreachable(family, 1, &question)), NO_MATCH);
        for packet in [&question, &ping] {
            assert_eq!(verdicts(lab, LAN, packet), Verdict::Forward(LAN2));
            let error = unreachable(family, 1, packet);
            assert_eq!(verdicts(lab, LAN2, &error), Verdict::Forward(LAN));
        }
        assert_eq!(verdicts(lab, LAN2, &unreachable(family, 1, &other)), NO_MATCH);
        assert_eq!(states(lab).len(), 2, "an error begins nothing");
        // It refreshes nothing either.
        lab.now_ns += 29_000_000_000;
        let error = unreachable(family, 1, &question);
        assert_eq!(verdicts(lab, LAN2, &error), Verdict::Forward(LAN));
        lab.now_ns += 2_000_000_000;
        assert_eq!(verdicts(lab, LAN2, &error), NO_MATCH);
    });
}

#[test]
fn where_the_table_is_full_new_connections_are_refused_and_old_ones_go_on() {
    let groups = closed(&[LAN], &[(GroupSide::In, LAN, from_lan())]);
    let limits = Limits { max: 8, half_open: 8, per_zone: 4, ..Limits::of(8) };
    let limits = Limits { half_open_per_zone: 8, ..limits };
    each_with(&groups, limits, |lab, family| {
        let width = if family == V4 { 1 } else { 2 };
        let datagram = |turned: bool, port: u16| match turned {
            false => between(family, 1, 12).udp(port, 53).ip(),
            true => between(family, 12, 1).udp(53, port).ip(),
        };
        for port in 0..4 {
            assert_eq!(verdicts(lab, LAN, &datagram(false, port)), Verdict::Forward(LAN2));
            assert_eq!(verdicts(lab, LAN2, &datagram(true, port)), Verdict::Forward(LAN));
        }
        let refused = Verdict::Drop(DropReason::ConnectionLimit);
        for port in 4..40 {
            assert_eq!(verdicts(lab, LAN, &datagram(false, port)), refused);
            assert_eq!(verdicts(lab, LAN2, &datagram(true, port)), NO_MATCH);
        }
        for port in 0..4 {
            assert_eq!(verdicts(lab, LAN, &datagram(false, port)), Verdict::Forward(LAN2));
            assert_eq!(verdicts(lab, LAN2, &datagram(true, port)), Verdict::Forward(LAN));
        }
        let counts = lab.snapshot.connections().unwrap().counts();
        assert_eq!((counts.lines, counts.made), (4 * width, 4));
        assert_eq!(counts.refused.iter().sum::<u64>(), 36);
    });
}

#[test]
fn the_rule_that_let_a_connection_begin_counts_its_packets() {
    let groups = closed(&[LAN], &[(GroupSide::In, LAN, from_lan())]);
    each(&groups, |lab, family| {
        for _ in 0..3 {
            verdicts(lab, LAN, &client(family, SYN));
            verdicts(lab, LAN2, &server(family, SYN | ACK));
        }
        let mut rules = lab.snapshot.spd().holding_rules();
        let (slot, _) = rules.find(|(_, rule)| rule.action == REFLECT).unwrap();
        let slot = slot.0 as usize;
        let (out, into) = (&lab.counters().policy_outbound, &lab.counters().policy_inbound);
        assert_eq!(out[slot].packets + into[slot].packets, 6);
    });
}

#[test]
fn a_batch_of_packets_is_judged_in_its_order() {
    let groups = closed(&[LAN], &[(GroupSide::In, LAN, from_lan())]);
    each(&groups, |lab, family| {
        // The second has an option or an extension header, so only the general walk takes it.
        let odd = |packet: PacketBuilder| match family {
            V4 => packet.options(&[1, 1, 1, 1]),
            V6 => packet.extension(60, &[1, 4, 0, 0, 0, 0]),
        };
        let packets = [
            client(family, SYN),
            odd(between(family, 1, 12).tcp_with(4000, 80, RST, None)).ip(),
            client(family, SYN),
            client(family, ACK),
        ];
        let told = lab.send_all(LAN, &packets).verdicts;
        assert_eq!(told, [Verdict::Forward(LAN2); 4]);
        assert_eq!(states(lab), [(LAN, State::SynSent)]);
        let udp = |port| between(family, 1, 12).udp(port, 53).ip();
        let packets: Vec<_> = (0..64).map(udp).collect();
        assert_eq!(lab.send_all(LAN, &packets).verdicts, [Verdict::Forward(LAN2); 64]);
        assert_eq!(states(lab).len(), 65);
        let answers: Vec<_> =
            (0..64).map(|port| between(family, 12, 1).udp(53, port).ip()).collect();
        assert_eq!(lab.send_all(LAN2, &answers).verdicts, [Verdict::Forward(LAN); 64]);
    });
}

// FRAG
#[test]
fn fragments_are_of_the_connection_of_their_datagram() {
    let groups = closed(&[LAN], &[(GroupSide::In, LAN, from_lan())]);
    each(&groups, |lab, family| {
        let (request, reply) = if family == V4 { (8, 0) } else { (128, 129) };
        let ping = |from, to, kind| between(family, from, to).icmp(kind, 0, [0, 5, 0, 1]);
        let udp = |from, to, ports: (u16, u16)| between(family, from, to).udp(ports.0, ports.1);
        let next = if family == V4 { 1 } else { 58 };
        let rest = |from, to, protocol: u8, id: u32| {
            let rest = between(family, from, to).protocol(protocol).payload_of(32);
            rest.identification(id).fragment(64, false).ip()
        };
        let first = |packet: PacketBuilder, id: u32| {
            packet.payload_of(56).identification(id).fragment(0, true).ip()
        };
        for (number, protocol, there, back) in [
            (1, next, ping(1, 12, request), ping(12, 1, reply)),
            (2, 17, udp(1, 12, (4000, 53)), udp(12, 1, (53, 4000))),
        ] {
            // Nobody has asked yet.
            let answers = [first(back.clone(), number), rest(12, 1, protocol, number)];
            assert_eq!(lab.send_all(LAN2, &answers).verdicts, [NO_MATCH; 2]);
            let questions = [first(there, number), rest(1, 12, protocol, number)];
            assert_eq!(lab.send_all(LAN, &questions).verdicts, [Verdict::Forward(LAN2); 2]);
            let answers = [first(back.clone(), 10 + number), rest(12, 1, protocol, 10 + number)];
            assert_eq!(lab.send_all(LAN2, &answers).verdicts, [Verdict::Forward(LAN); 2]);
            // The later one first: it waits.
            let late = lab.send(LAN2, &rest(12, 1, protocol, 20 + number)).verdicts;
            assert_eq!(late, [Verdict::Hold(dataplane::HoldKind::Fragment)]);
            let both = lab.send(LAN2, &first(back, 20 + number)).verdicts;
            assert_eq!(both, [Verdict::Forward(LAN); 2]);
        }
        assert_eq!(states(lab).len(), 2);
    });
}
