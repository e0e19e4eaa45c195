//! Security groups: what comes by a port, what leaves by it, in turn with the policies.

use dataplane::{
    CacheCounters, DropReason, FastPathUse, PortId, RouteGeneration, RouteTarget, Verdict,
};
use packets::lab::{BERLIN, HOST, Hub, LAN, LAN2, Laboratory, WAN, host, own, policy, with_ports};
use packets::table::{forwarded, run};
use packets::{In, Out, Row};
use policy::{
    Action, GroupMode, GroupSide, Policy, PolicyId, Selector, TcpSegments, UpperSelector,
};
use wire::Family::{self, V4, V6};
use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol::{TCP, UDP};

use crate::{FAMILIES, between, datagram};

const PERMIT: Action = Action::Permit(GroupMode::Enforce);
const DENY: Action = Action::Deny(GroupMode::Enforce);

#[test]
fn groups_judge_in_turn_with_the_policies() {
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    FAMILIES
        .into_iter()
        .flat_map(|family| [of_family(family), by_segments(family)].concat())
        .collect()
}

/// A rule of the groups of a port, for source and destination networks of the laboratory.
pub(crate) fn rule(
    side: GroupSide,
    port: PortId,
    action: Action,
    from: &[u32],
    to: &[u32],
) -> Policy {
    let networks = |of: &[u32]| -> Vec<String> {
        let both = |n: &u32| [format!("10.{n}.0.0/16"), format!("2001:db8:{n}::/48")];
        match of {
            [] => vec!["any".into()],
            of => of.iter().flat_map(both).collect(),
        }
    };
    let (from, to) = (networks(from), networks(to));
    let from: Vec<&str> = from.iter().map(String::as_str).collect();
    let to: Vec<&str> = to.iter().map(String::as_str).collect();
    let policy = policy("rule", 0, action, &from, &to);
    Policy { group: Some(side), ingress: Some([port.0].as_slice().into()), ..policy }
}

/// The rules of a port's side in order, and the last one behind them.
pub(crate) fn group(
    side: GroupSide,
    port: PortId,
    rules: Vec<Policy>,
    mode: GroupMode,
) -> Vec<Policy> {
    let last = Policy { name: "none".into(), ..rule(side, port, Action::NoRule(mode), &[], &[]) };
    let rules = rules.into_iter().zip((1..=1000).rev());
    let rules = rules.map(|(rule, priority)| Policy { priority, ..rule });
    rules.chain([last]).collect()
}

/// Adds the rules of ports to the gateway's policies.
pub(crate) fn with(groups: Vec<Policy>) -> impl Fn(&mut Hub) {
    move |hub| {
        let first = hub.policies.len() as u32 + 1;
        let groups = (first..).map(PolicyId).zip(groups.clone());
        hub.policies.extend(groups.map(|(id, rule)| Policy { id, ..rule }));
    }
}

fn enforced(side: GroupSide, port: PortId, rules: Vec<Policy>) -> impl Fn(&mut Hub) {
    with(group(side, port, rules, GroupMode::Enforce))
}

fn of_family(family: Family) -> Vec<Row> {
    use GroupSide::{In as Into, Out as OutOf};
    let lan = |packet: &[u8]| In::Clear(LAN, packet.to_vec());
    let wan = |packet: &[u8]| In::Clear(WAN, packet.to_vec());
    let sealed = |packet: &[u8]| In::Sealed(BERLIN, packet.to_vec());
    let (deny, no_match) = (DropReason::GroupDeny, DropReason::GroupNoMatch);
    let inside = datagram(family, 1, 12).ip();
    let protected = datagram(family, 1, 2).ip();
    let clear = datagram(family, 1, 8).ip();
    let from_berlin = datagram(family, 2, 1).ip();
    let came = datagram(family, 8, 1).ip();
    let web = between(family, 1, 12).tcp(4000, 80).ip();
    let dns = between(family, 1, 12).udp(4000, 53).ip();
    let first_of_web = between(family, 1, 12).tcp(4000, 80).payload_of(44).fragment(0, true).ip();
    let later = between(family, 1, 12).protocol(TCP).payload_of(64).fragment(64, false).ip();
    let to_web = |side, port, action| with_ports(rule(side, port, action, &[], &[]), TCP, &["80"]);
    let in_clear = |packet: &[u8], port| Out::Clear(port, forwarded(packet));
    let audit = |rules| with(group(Into, LAN, rules, GroupMode::Audit));
    let answer = between(family, 12, 1).udp(2000, 1000).payload_of(33).ip();
    let for_us = match family {
        V4 => PacketBuilder::between("203.0.113.9", "192.0.2.1").tcp(4000, 22).ip(),
        V6 => PacketBuilder::between("2001:db8:203::9", "2001:db8:ff::1").tcp(4000, 22).ip(),
    };
    let listed = |hub: &mut Hub| {
        let service = dataplane::HostService { protocol: TCP, ports: None };
        hub.parts.ports[usize::from(WAN.0)].allow_host.push(service);
    };
    let of_linux = PacketBuilder::new(own(family, 1), host(family, 12)).udp(9, 9).ip();
    vec![
        // Between protected ports.
        Row::drops("nothing matches", lan(&inside), no_match).with(enforced(Into, LAN, vec![])),
        Row::passes("permitted", lan(&inside), in_clear(&inside, LAN2)).with(enforced(
            Into,
            LAN,
            vec![rule(Into, LAN, PERMIT, &[1], &[12])],
        )),
        Row::drops("denied", lan(&inside), deny).with(enforced(
            Into,
            LAN,
            vec![rule(Into, LAN, DENY, &[1], &[]), rule(Into, LAN, PERMIT, &[], &[])],
        )),
        Row::passes("the first rule decides", lan(&inside), in_clear(&inside, LAN2)).with(
            enforced(
                Into,
                LAN,
                vec![rule(Into, LAN, PERMIT, &[], &[12]), rule(Into, LAN, DENY, &[], &[])],
            ),
        ),
        Row::passes("another port's groups", lan(&inside), in_clear(&inside, LAN2)).with(enforced(
            Into,
            LAN2,
            vec![],
        )),
        Row::drops("out of a port", lan(&inside), no_match).with(enforced(OutOf, LAN2, vec![])),
        Row::passes("out of another", lan(&inside), in_clear(&inside, LAN2)).with(enforced(
            OutOf,
            LAN,
            vec![],
        )),
        Row::drops("the answer needs its own rule", In::Clear(LAN2, answer.clone()), no_match)
            .with(enforced(OutOf, LAN, vec![rule(OutOf, LAN, PERMIT, &[1], &[12])])),
        // Ports and protocols.
        Row::passes("a port", lan(&web), in_clear(&web, LAN2)).with(enforced(
            Into,
            LAN,
            vec![to_web(Into, LAN, PERMIT)],
        )),
        Row::drops("another protocol", lan(&dns), no_match).with(enforced(
            Into,
            LAN,
            vec![to_web(Into, LAN, PERMIT)],
        )),
        Row::waits("a later fragment shows no ports", lan(&later)).with(enforced(
            Into,
            LAN,
            vec![to_web(Into, LAN, PERMIT)],
        )),
        Row::passes("it has those of its first", lan(&later), in_clear(&later, LAN2))
            .with(enforced(Into, LAN, vec![to_web(Into, LAN, PERMIT)]))
            .after(lan(&first_of_web)),
        Row::drops("denied by those of its first", lan(&later), deny)
            .with(enforced(
                Into,
                LAN,
                vec![to_web(Into, LAN, DENY), rule(Into, LAN, PERMIT, &[], &[])],
            ))
            .after(lan(&first_of_web)),
        // Audit.
        Row::passes("nothing matches, in audit", lan(&inside), in_clear(&inside, LAN2))
            .with(audit(vec![])),
        Row::passes("denied in audit", lan(&inside), in_clear(&inside, LAN2))
            .with(audit(vec![rule(Into, LAN, Action::Deny(GroupMode::Audit), &[], &[])])),
        Row::drops("audit does not permit what is asked next", lan(&inside), no_match).with(with(
            [
                group(Into, LAN, vec![], GroupMode::Audit),
                group(OutOf, LAN2, vec![], GroupMode::Enforce),
            ]
            .concat(),
        )),
        Row::passes("a later fragment in audit", lan(&later), in_clear(&later, LAN2))
            .with(audit(vec![to_web(Into, LAN, Action::Permit(GroupMode::Audit))])),
        // With the policies.
        Row::drops("before it is protected", lan(&protected), no_match).with(enforced(
            OutOf,
            WAN,
            vec![],
        )),
        Row::passes(
            "permitted and protected",
            lan(&protected),
            Out::Sealed(BERLIN, forwarded(&protected)),
        )
        .with(with(
            [
                group(Into, LAN, vec![rule(Into, LAN, PERMIT, &[1], &[2])], GroupMode::Enforce),
                group(OutOf, WAN, vec![rule(OutOf, WAN, PERMIT, &[1], &[2])], GroupMode::Enforce),
            ]
            .concat(),
        )),
        Row::drops(
            "a group permits no more than the policies",
            lan(&datagram(family, 1, 200).ip()),
            DropReason::NoMatch,
        )
        .with(enforced(Into, LAN, vec![rule(Into, LAN, PERMIT, &[], &[])])),
        Row::drops("before it leaves in clear", lan(&clear), deny).with(enforced(
            OutOf,
            WAN,
            vec![rule(OutOf, WAN, DENY, &[], &[8])],
        )),
        Row::drops("decrypted by a port", sealed(&from_berlin), no_match).with(enforced(
            Into,
            WAN,
            vec![],
        )),
        Row::drops("decrypted, and out of another", sealed(&from_berlin), no_match).with(enforced(
            OutOf,
            LAN,
            vec![],
        )),
        Row::passes("decrypted and permitted", sealed(&from_berlin), in_clear(&from_berlin, LAN))
            .with(with(
                [
                    group(Into, WAN, vec![rule(Into, WAN, PERMIT, &[2], &[])], GroupMode::Enforce),
                    group(
                        OutOf,
                        LAN,
                        vec![rule(OutOf, LAN, PERMIT, &[], &[1])],
                        GroupMode::Enforce,
                    ),
                ]
                .concat(),
            )),
        Row::drops("came in clear", wan(&came), no_match).with(enforced(Into, WAN, vec![])),
        Row::drops("came in clear, and out of another", wan(&came), no_match).with(enforced(
            OutOf,
            LAN,
            vec![],
        )),
        Row::delivers("for this machine, listed", wan(&for_us), for_us.clone()).with(listed),
        Row::drops("for this machine, listed and denied", wan(&for_us), no_match).with(
            move |hub| {
                listed(hub);
                enforced(Into, WAN, vec![])(hub);
            },
        ),
        Row::drops("of this machine, out of a port", In::Clear(HOST, of_linux.clone()), no_match)
            .with(enforced(OutOf, LAN2, vec![])),
        Row::passes(
            "of this machine, in by a port",
            In::Clear(HOST, of_linux.clone()),
            Out::Clear(LAN2, of_linux.clone()),
        )
        .with(enforced(Into, LAN2, vec![])),
    ]
}

/// A rule for TCP segments of a kind to port 80.
fn of_kind(segments: TcpSegments, side: GroupSide, port: PortId, action: Action) -> Policy {
    let web = with_ports(rule(side, port, action, &[], &[]), TCP, &["80"]);
    let [local, remote] = web.selector.upper.ports().expect("ports").map(<[_]>::to_vec);
    let upper = UpperSelector::Tcp { segments, local, remote };
    Policy { selector: Selector { upper, ..web.selector }, ..web }
}

const SYN: u8 = tcp_flags::SYN;
const ACK: u8 = tcp_flags::ACK;
const FIN_AND_RST: u8 = 0x05;

/// Rules that tell segments that open a connection from others: in by a port, out of it, and of
/// what was decrypted.
fn by_segments(family: Family) -> Vec<Row> {
    use GroupSide::{In as Into, Out as OutOf};
    use TcpSegments::{Established, New};
    let (deny, no_match) = (DropReason::GroupDeny, DropReason::GroupNoMatch);
    let kinds = [
        ("SYN", SYN, New),
        ("SYN and ACK", SYN | ACK, Established),
        ("ACK", ACK, Established),
        ("no flags", 0, Established),
        ("FIN and RST", FIN_AND_RST, Established),
        ("SYN, FIN and RST", SYN | FIN_AND_RST, New),
    ];
    let mut rows = Vec::new();
    for (name, flags, kind) in kinds {
        let inside = between(family, 1, 12).tcp_with(4000, 80, flags, None).ip();
        let opened = between(family, 2, 1).tcp_with(4000, 80, flags, None).ip();
        let on_link = Out::Clear(LAN2, forwarded(&inside));
        for asked in TcpSegments::ALL {
            let text = |what: &str| format!("{name} where {what} is for {}", asked.name());
            let permit =
                |side, port| enforced(side, port, vec![of_kind(asked, side, port, PERMIT)]);
            for (place, side, port) in [("in", Into, LAN), ("out", OutOf, LAN2)] {
                let (text, packet) =
                    (text(&format!("permit {place}")), In::Clear(LAN, inside.clone()));
                let row = match kind == asked {
                    true => Row::passes(text, packet, on_link.clone()),
                    false => Row::drops(text, packet, no_match),
                };
                rows.push(row.with(permit(side, port)));
            }
            let (denies, packet) = (text("deny"), In::Clear(LAN, inside.clone()));
            let row = match kind == asked {
                true => Row::drops(denies, packet, deny),
                false => Row::passes(denies, packet, on_link.clone()),
            };
            let all = rule(Into, LAN, PERMIT, &[], &[]);
            rows.push(row.with(enforced(Into, LAN, vec![of_kind(asked, Into, LAN, DENY), all])));
            let (permits, packet) = (text("permit after ESP"), In::Sealed(BERLIN, opened.clone()));
            let row = match kind == asked {
                true => Row::passes(permits, packet, Out::Clear(LAN, forwarded(&opened))),
                false => Row::drops(permits, packet, no_match),
            };
            rows.push(row.with(permit(Into, WAN)));
        }
    }
    let fragment = |offset, more| {
        between(family, 1, 12).protocol(TCP).payload_of(64).fragment(offset, more).ip()
    };
    for asked in TcpSegments::ALL {
        let later = In::Clear(LAN, fragment(64, false));
        let row = Row::waits("a later fragment shows no flags", later);
        rows.push(row.with(enforced(Into, LAN, vec![of_kind(asked, Into, LAN, PERMIT)])));
    }
    // SCTP has ports, and no segments.
    let sctp = between(family, 1, 12)
        .protocol(132)
        .payload(&[0, 1, 0, 80, SYN, SYN, SYN, SYN, 0, 0, 0, 0])
        .ip();
    let of_all = TcpSegments::ALL.map(|asked| of_kind(asked, Into, LAN, PERMIT)).to_vec();
    rows.push(
        Row::drops("no TCP", In::Clear(LAN, sctp), no_match).with(enforced(Into, LAN, of_all)),
    );
    rows
}

/// A gateway with a cache and groups.
fn laboratory(groups: Vec<Policy>) -> Laboratory {
    let mut hub = Hub::default();
    with(groups)(&mut hub);
    hub.laboratory().remembering(1 << 10)
}

fn cache(lab: &Laboratory) -> CacheCounters {
    lab.counters().cache
}

#[test]
fn each_rule_that_decided_counts_the_packet_and_the_cache_counts_the_same() {
    // FC-38: in-group, policy and out-group; searched once.
    for family in FAMILIES {
        let permit = |side, port| vec![rule(side, port, PERMIT, &[], &[])];
        let groups = [
            group(GroupSide::In, LAN, permit(GroupSide::In, LAN), GroupMode::Enforce),
            group(GroupSide::Out, WAN, permit(GroupSide::Out, WAN), GroupMode::Enforce),
        ];
        let mut lab = laboratory(groups.concat());
        let packet = datagram(family, 1, 2).ip();
        for _ in 0..5 {
            assert_eq!(lab.send(LAN, &packet).verdicts, [Verdict::Protect(BERLIN)]);
        }
        let spd = lab.snapshot.spd().clone();
        let counted = |name: &str| -> Vec<u64> {
            let slots = spd.holding().filter(|(_, policy)| policy.name == name);
            let packets = slots.map(|(slot, _)| {
                let (out, into) = (&lab.counters().policy_outbound, &lab.counters().policy_inbound);
                out[slot.0 as usize].packets + into[slot.0 as usize].packets
            });
            packets.collect()
        };
        assert_eq!((counted("rule"), counted("berlin-net")), (vec![5, 5], vec![5]));
        assert_eq!(counted("none"), [0, 0]);
        assert_eq!((lab.counters().full_lookups, cache(&lab).hits), (1, 4));
    }
}

#[test]
fn a_verdict_for_one_egress_port_is_not_used_for_another() {
    // FC-32: the destination moves from LAN2, whose groups permit, to LAN, whose groups deny.
    for family in FAMILIES {
        for from_wan in [false, true] {
            let out = GroupSide::Out;
            let groups = [
                group(out, LAN2, vec![rule(out, LAN2, PERMIT, &[], &[])], GroupMode::Enforce),
                group(out, LAN, vec![], GroupMode::Enforce),
            ];
            let mut lab = laboratory(groups.concat());
            let port = if from_wan { WAN } else { LAN };
            // Behind the unprotected port is a network that a policy lets in.
            let packet = datagram(family, if from_wan { 8 } else { 1 }, 12).ip();
            let mut generation = 0;
            let mut with_routes = |lab: &mut Laboratory, moved: bool| {
                generation += 1;
                let mut hub = Hub::default();
                with(groups.concat())(&mut hub);
                hub.spd = Some(lab.snapshot.spd().clone());
                hub.parts.route_generation = RouteGeneration(generation);
                for route in &mut hub.parts.routes {
                    if moved && route.target == RouteTarget::Via(dataplane::NextHopId(3)) {
                        route.target = RouteTarget::Via(dataplane::NextHopId(2));
                    }
                }
                let hub = hub.keeping_sas_of(&lab.snapshot);
                lab.publish(hub);
            };
            let denied = Verdict::Drop(DropReason::GroupNoMatch);
            for _ in 0..2 {
                for _ in 0..3 {
                    let verdicts = lab.send(port, &packet).verdicts;
                    assert_eq!(verdicts, [Verdict::Forward(LAN2)], "{family:?} {from_wan}");
                }
                with_routes(&mut lab, true);
                for _ in 0..3 {
                    assert_eq!(lab.send(port, &packet).verdicts, [denied], "{family:?} {from_wan}");
                }
                with_routes(&mut lab, false);
            }
            assert!(cache(&lab).hits >= 6, "{:?}", cache(&lab));
        }
    }
}

#[test]
fn a_changed_rule_of_an_egress_port_is_asked_of_every_flow_that_is_remembered() {
    // FC-37: a change of groups out raises the generation of every question of its family.
    for family in FAMILIES {
        let out = GroupSide::Out;
        let rules = vec![rule(out, LAN2, PERMIT, &[], &[])];
        let mut hub = Hub::default();
        with(group(out, LAN2, rules, GroupMode::Enforce))(&mut hub);
        let spd = policy::Spd::with_room(hub.policies.clone(), 100).unwrap();
        hub.spd = Some(spd);
        let mut lab = hub.laboratory().remembering(1 << 10);
        let packet = datagram(family, 1, 12).ip();
        for _ in 0..2 {
            assert_eq!(lab.send(LAN, &packet).verdicts, [Verdict::Forward(LAN2)]);
        }
        let deny = Policy {
            id: PolicyId(1000),
            priority: 2000,
            ..with_ports(rule(out, LAN2, DENY, &[], &[]), UDP, &["2000"])
        };
        let spd = lab.snapshot.spd().changed(&[], vec![deny]).unwrap();
        let hub = Hub { spd: Some(spd), ..Hub::default() };
        let hub = hub.keeping_sas_of(&lab.snapshot);
        lab.publish(hub);
        let denied = Verdict::Drop(DropReason::GroupDeny);
        assert_eq!(lab.send(LAN, &packet).verdicts, [denied]);
        assert_eq!(lab.send(LAN, &packet).verdicts, [denied]);
        let echo = match family {
            V4 => between(V4, 1, 12).icmp(8, 0, [1; 4]).ip(),
            V6 => between(V6, 1, 12).icmp(128, 0, [1; 4]).ip(),
        };
        assert_eq!(lab.send(LAN, &echo).verdicts, [Verdict::Forward(LAN2)]);
    }
}

#[test]
fn icmp_types_are_told_apart() {
    for family in FAMILIES {
        let (echo, other, name) = match family {
            V4 => (8, 13, wire::flow::protocol::ICMP),
            V6 => (128, 140, wire::flow::protocol::ICMPV6),
        };
        let mut permit = rule(GroupSide::In, LAN, PERMIT, &[], &[]);
        permit.selector.protocol = Some(name);
        permit.selector.upper = UpperSelector::Icmp(vec![format!("{echo}").parse().unwrap()]);
        let mut lab = laboratory(group(GroupSide::In, LAN, vec![permit], GroupMode::Enforce));
        let message = |kind| between(family, 1, 12).icmp(kind, 0, [1; 4]).ip();
        for _ in 0..2 {
            assert_eq!(lab.send(LAN, &message(echo)).verdicts, [Verdict::Forward(LAN2)]);
            let denied = Verdict::Drop(DropReason::GroupNoMatch);
            assert_eq!(lab.send(LAN, &message(other)).verdicts, [denied]);
        }
    }
}

#[test]
fn segments_that_open_a_connection_are_remembered_apart_where_a_rule_asks() {
    // FC-02: one flow, three kinds of segments, in one batch and one after the other.
    let rules = |asked: Option<TcpSegments>| {
        let own = asked.map(|asked| of_kind(asked, GroupSide::Out, LAN2, DENY));
        let permit = rule(GroupSide::Out, LAN2, PERMIT, &[], &[]);
        group(GroupSide::Out, LAN2, own.into_iter().chain([permit]).collect(), GroupMode::Enforce)
    };
    let (passes, denied) = (Verdict::Forward(LAN2), Verdict::Drop(DropReason::GroupDeny));
    for (asked, expected, entries) in [
        (None, [passes; 3], 1),
        (Some(TcpSegments::New), [denied, passes, passes], 2),
        (Some(TcpSegments::Established), [passes, denied, denied], 2),
    ] {
        for (family, fast_path) in FAMILIES
            .into_iter()
            .flat_map(|family| [FastPathUse::Eager, FastPathUse::Never].map(|use_| (family, use_)))
        {
            let mut lab = laboratory(rules(asked)).with_fast_path(fast_path);
            let segment = |flags| between(family, 1, 12).tcp_with(4000, 80, flags, None).ip();
            let segments = [SYN, SYN | ACK, ACK].map(segment);
            for _ in 0..3 {
                for (segment, expected) in segments.iter().zip(expected) {
                    assert_eq!(lab.send(LAN, segment).verdicts, [expected], "{asked:?}");
                }
                assert_eq!(lab.send_all(LAN, &segments).verdicts, expected, "{asked:?}");
            }
            let counters = cache(&lab);
            assert_eq!((counters.inserts, counters.hits), (entries, 18 - entries), "{asked:?}");
        }
    }
}
