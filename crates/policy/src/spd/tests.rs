use super::*;
use crate::Direction;
use crate::{Action, AddressRange, PolicyId, PortRange, SaSetId, Selector, UpperSelector};
use wire::Address;
use wire::Upper;
use wire::flow::protocol::*;

/// A policy for everything between our 10.1.0.0/16 and 10.2.0.0/16.
fn policy(id: u32, priority: u32) -> Policy {
    Policy {
        id: PolicyId(id),
        name: format!("p{id}"),
        action: Action::Protect(SaSetId(id)),
        priority,
        only: None,
        group: None,
        ingress: None,
        selector: Selector {
            local: vec!["10.1.0.0/16".parse().unwrap()],
            remote: vec!["10.2.0.0/16".parse().unwrap()],
            protocol: None,
            upper: UpperSelector::Any,
        },
    }
}

fn ports(local: &[&str], remote: &[&str]) -> UpperSelector {
    let list = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    UpperSelector::Ports { local: list(local), remote: list(remote) }
}

fn icmp(messages: &[&str]) -> UpperSelector {
    UpperSelector::Icmp(messages.iter().map(|text| text.parse().unwrap()).collect())
}

fn with(policy: Policy, protocol: Option<u8>, upper: UpperSelector) -> Policy {
    let selector = Selector { protocol, upper, ..policy.selector };
    Policy { selector, ..policy }
}

fn between(policy: Policy, local: &[&str], remote: &[&str]) -> Policy {
    let list = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let selector = Selector { local: list(local), remote: list(remote), ..policy.selector };
    Policy { selector, ..policy }
}

fn flow(source: &str, destination: &str, protocol: u8, upper: Upper) -> Flow {
    let address = |text: &str| Address::from(text.parse::<std::net::IpAddr>().unwrap());
    let (source, destination) = (address(source), address(destination));
    assert_eq!(source.family, destination.family);
    Flow {
        family: source.family,
        source: source.value,
        destination: destination.value,
        protocol,
        upper,
        opens: false,
    }
}

/// From our 10.1.0.1 to the peer's 10.2.0.1.
fn out(protocol: u8, upper: Upper) -> Flow {
    flow("10.1.0.1", "10.2.0.1", protocol, upper)
}

fn numbers(source: u16, destination: u16) -> Upper {
    Upper::Ports { source, destination }
}

/// Returns the database's answer, by policy id: `Ok` decided, `Err` lacks ports, `None` nothing.
fn says(spd: &Spd, direction: Direction, flow: &Flow) -> Option<Result<u32, u32>> {
    let mut says = [Decider::None];
    spd.classify(common(direction.book(), flow.family), std::slice::from_ref(flow), &mut says);
    let id = |index| spd.policy(index).id.0;
    match says[0] {
        Decider::Policy(index) => Some(Ok(id(index))),
        Decider::FragmentPorts(index) => Some(Err(id(index))),
        Decider::None => None,
    }
}

/// Returns the answer of one policy, alone, about an outbound flow.
fn alone(policy: &Policy, flow: &Flow) -> Option<Result<(), ()>> {
    let spd = Spd::new(vec![policy.clone()]).unwrap();
    says(&spd, Direction::Outbound, flow).map(|says| says.map(|_| ()).map_err(|_| ()))
}

const MATCHES: Option<Result<(), ()>> = Some(Ok(()));
const LACKS: Option<Result<(), ()>> = Some(Err(()));

#[test]
fn higher_priority_wins_and_among_equals_the_newest() {
    // FC-41
    let given = [policy(4, 10), policy(1, 20), policy(9, 10), policy(3, 20), policy(7, 0)];
    for rotation in 0..given.len() {
        let mut policies = given.to_vec();
        policies.rotate_left(rotation);
        let spd = Spd::new(policies).unwrap();
        let order: Vec<u32> = spd.policies().iter().map(|(_, policy)| policy.id.0).collect();
        assert_eq!(order, [3, 1, 9, 4, 7]);
        assert_eq!(says(&spd, Direction::Outbound, &out(TCP, numbers(1, 2))), Some(Ok(3)));
    }
}

#[test]
fn policies_that_stand_behind_lose_to_all_others_and_are_ranked_among_themselves() {
    let PolicyId(behind) = PolicyId::FIRST_BEHIND;
    let given = [
        policy(behind + 9, u32::MAX),
        policy(behind - 1, 0),
        policy(0, 0),
        policy(u32::MAX, 4),
        policy(behind, 5),
        policy(behind + 1, 4),
        policy(2, u32::MAX),
    ];
    let order_of =
        |spd: &Spd| -> Vec<u32> { spd.policies().iter().map(|(_, policy)| policy.id.0).collect() };
    let expected = [2, behind - 1, 0, behind + 9, behind, u32::MAX, behind + 1];
    for rotation in 0..given.len() {
        let mut policies = given.to_vec();
        policies.rotate_left(rotation);
        let spd = Spd::new(policies).unwrap();
        assert_eq!(order_of(&spd), expected);
        assert_eq!(says(&spd, Direction::Outbound, &out(TCP, numbers(1, 2))), Some(Ok(2)));
    }
}

#[test]
fn what_matches_no_policy_is_none() {
    // FC-42
    let spd = Spd::new(vec![policy(1, 1)]).unwrap();
    for (source, destination) in [
        ("10.0.255.255", "10.2.0.1"),
        ("10.2.0.0", "10.2.0.1"),
        ("10.1.0.1", "10.1.255.255"),
        ("10.1.0.1", "10.3.0.0"),
        ("::a01:1", "::a02:1"), // the same numbers in the other family
    ] {
        let flow = flow(source, destination, TCP, numbers(1, 2));
        assert_eq!(says(&spd, Direction::Outbound, &flow), None, "{flow}");
    }
    let empty = Spd::default();
    assert_eq!(says(&empty, Direction::Inbound, &out(TCP, numbers(1, 2))), None);
}

#[test]
fn both_ends_of_an_address_range_are_in_it() {
    let spd = Spd::new(vec![policy(1, 1)]).unwrap();
    for (source, destination) in [("10.1.0.0", "10.2.0.0"), ("10.1.255.255", "10.2.255.255")] {
        let flow = flow(source, destination, UDP, Upper::Fragment);
        assert_eq!(says(&spd, Direction::Outbound, &flow), Some(Ok(1)));
    }
}

#[test]
fn a_policy_holds_mirrored_inbound() {
    let policy = with(policy(1, 1), Some(TCP), ports(&["1000-1999"], &["443"]));
    let spd = Spd::new(vec![policy]).unwrap();
    let there = out(TCP, numbers(1500, 443));
    assert_eq!(says(&spd, Direction::Outbound, &there), Some(Ok(1)));
    assert_eq!(says(&spd, Direction::Inbound, &there.reversed()), Some(Ok(1)));
    assert_eq!(says(&spd, Direction::Inbound, &there), None);
    assert_eq!(says(&spd, Direction::Outbound, &there.reversed()), None);
    // Addresses mirrored, ports not.
    let crossed = flow("10.2.0.1", "10.1.0.1", TCP, numbers(1500, 443));
    assert_eq!(says(&spd, Direction::Inbound, &crossed), None);
}

#[test]
fn a_policy_for_one_direction_has_no_rules_in_the_other() {
    for only in [Direction::Inbound, Direction::Outbound] {
        let spd = Spd::new(vec![Policy { only: Some(only), ..policy(1, 1) }]).unwrap();
        let there = out(TCP, numbers(1, 2));
        let (outbound, inbound) = match only {
            Direction::Outbound => (Some(Ok(1)), None),
            Direction::Inbound => (None, Some(Ok(1))),
        };
        assert_eq!(says(&spd, Direction::Outbound, &there), outbound);
        assert_eq!(says(&spd, Direction::Inbound, &there.reversed()), inbound);
        let rules = Book::ALL.map(|book| spd.rules(common(book, Family::V4)));
        assert_eq!(rules.iter().sum::<usize>(), 1);
    }
}

#[test]
fn only_addresses_of_one_family_are_combined() {
    let mixed = between(policy(1, 1), &["10.0.0.0/8", "fd00::/8"], &["0.0.0.0/0", "::/0"]);
    let spd = Spd::new(vec![mixed]).unwrap();
    assert_eq!(spd.rules(common(Book::SpdOut, Family::V4)), 1);
    assert_eq!(spd.rules(common(Book::SpdOut, Family::V6)), 1);
    let v4 = flow("10.1.0.1", "192.0.2.1", TCP, numbers(1, 2));
    let v6 = flow("fd00::1", "2001:db8::1", TCP, numbers(1, 2));
    assert_eq!(says(&spd, Direction::Outbound, &v4), Some(Ok(1)));
    assert_eq!(says(&spd, Direction::Outbound, &v6), Some(Ok(1)));
    let apart = between(policy(1, 1), &["10.0.0.0/8"], &["::/0"]);
    assert_eq!(Spd::new(vec![apart]).unwrap().rules(common(Book::SpdOut, Family::V4)), 0);
}

#[test]
fn every_combination_of_a_selectors_lists_matches() {
    let lists = between(policy(1, 1), &["10.1.0.1", "10.1.0.3"], &["10.2.0.1", "10.2.0.3"]);
    let lists = with(lists, Some(UDP), ports(&["5", "7"], &["50", "70"]));
    let spd = Spd::new(vec![lists]).unwrap();
    assert_eq!(spd.rules(common(Book::SpdOut, Family::V4)), 16);
    let mut matched = 0;
    for number in 0..4u32.pow(4) {
        let digit = |place: u32| number / 4u32.pow(place) % 4;
        let upper = numbers(4 + digit(2) as u16, 40 + 10 * digit(3) as u16);
        let source = format!("10.1.0.{}", digit(0));
        let flow = flow(&source, &format!("10.2.0.{}", digit(1)), UDP, upper);
        let expected = (0..4).all(|place| digit(place) % 2 == 1);
        let found = says(&spd, Direction::Outbound, &flow);
        assert_eq!(found == Some(Ok(1)), expected, "{flow}");
        matched += u32::from(found.is_some());
    }
    assert_eq!(matched, 16);
}

#[test]
fn ports_match_only_packets_that_have_ports() {
    // FC-04: "any protocol, port 80" matches no ICMP, no ESP, no packet without ports.
    let port_80 = with(policy(1, 1), None, ports(&[], &["80"]));
    let echo = Upper::Icmp { kind: 8, code: 0 };
    for (protocol, upper, expected) in [
        (TCP, numbers(0, 80), MATCHES),
        (UDP, numbers(65535, 80), MATCHES),
        (SCTP, numbers(1, 80), MATCHES),
        (TCP, numbers(80, 79), None),
        (TCP, numbers(80, 81), None),
        (ICMP, echo, None),
        (ESP, Upper::None, None),
        (IPV4, Upper::None, None),
        (ESP, Upper::Fragment, None),
        (ICMP, Upper::Fragment, None),
        (TCP, Upper::Fragment, LACKS),
        (UDP_LITE, Upper::Fragment, LACKS),
    ] {
        let flow = out(protocol, upper);
        assert_eq!(alone(&port_80, &flow), expected, "{flow}");
    }
}

#[test]
fn all_ports_are_still_ports_and_no_ports_are_any() {
    // FC-04
    let full = with(policy(1, 1), None, ports(&["0-65535"], &["0-65535"]));
    let none = with(policy(1, 1), None, ports(&[], &[]));
    for (protocol, upper, of_full) in [
        (UDP, numbers(0, 0), MATCHES),
        (UDP, numbers(65535, 65535), MATCHES),
        (UDP, Upper::Fragment, LACKS),
        (ESP, Upper::None, None),
        (ICMP, Upper::Icmp { kind: 0, code: 0 }, None),
    ] {
        assert_eq!(alone(&full, &out(protocol, upper)), of_full);
        assert_eq!(alone(&none, &out(protocol, upper)), MATCHES);
    }
}

#[test]
fn ports_zero_a_fragment_and_icmp_are_told_apart() {
    // FC-03
    let dns = with(policy(3, 30), Some(UDP), ports(&["0"], &["0"]));
    let echo = with(policy(2, 20), Some(ICMP), icmp(&["0/0"]));
    let spd = Spd::new(vec![dns, echo, policy(1, 10)]).unwrap();
    for (protocol, upper, expected) in [
        (UDP, numbers(0, 0), Ok(3)),
        (UDP, Upper::Fragment, Err(3)),
        (UDP, numbers(0, 1), Ok(1)),
        (UDP, Upper::None, Ok(1)),
        (ICMP, Upper::Icmp { kind: 0, code: 0 }, Ok(2)),
        (ICMP, Upper::Icmp { kind: 3, code: 0 }, Ok(1)),
        (ICMP, Upper::Fragment, Err(2)),
        (ESP, Upper::Fragment, Ok(1)),
    ] {
        let flow = out(protocol, upper);
        assert_eq!(says(&spd, Direction::Outbound, &flow), Some(expected), "{flow}");
    }
}

#[test]
fn icmp_types_match_only_their_familys_icmp() {
    // FC-04
    let v4 = with(policy(1, 1), None, icmp(&["8", "3/4"]));
    let v6 = between(v4.clone(), &["fd00::/8"], &["::/0"]);
    let out6 = |protocol, upper| flow("fd00::1", "2001:db8::1", protocol, upper);
    let message = |kind, code| Upper::Icmp { kind, code };
    for (policy, flow, expected) in [
        (&v4, out(ICMP, message(8, 0)), MATCHES),
        (&v4, out(ICMP, message(8, 255)), MATCHES),
        (&v4, out(ICMP, message(3, 4)), MATCHES),
        (&v4, out(ICMP, message(3, 3)), None),
        (&v4, out(ICMP, message(3, 5)), None),
        (&v4, out(ICMP, message(7, 255)), None),
        (&v4, out(ICMP, message(9, 0)), None),
        (&v4, out(ICMPV6, message(8, 0)), None),
        (&v4, out(TCP, numbers(0x0800, 0x0800)), None),
        (&v4, out(ICMP, Upper::Fragment), LACKS),
        (&v4, out(ICMPV6, Upper::Fragment), None),
        (&v4, out(UDP, Upper::Fragment), None),
        (&v6, out6(ICMPV6, message(8, 0)), MATCHES),
        (&v6, out6(ICMP, message(8, 0)), None),
        (&v6, out6(ICMPV6, Upper::Fragment), LACKS),
        (&v6, out6(ICMP, Upper::Fragment), LACKS),
    ] {
        assert_eq!(alone(policy, &flow), expected, "{flow}");
    }
    let any_message = with(policy(1, 1), None, icmp(&[]));
    assert_eq!(alone(&any_message, &out(ICMP, message(255, 255))), MATCHES);
    assert_eq!(alone(&any_message, &out(TCP, numbers(1, 1))), None);
}

// FC-44: the first IPv6 fragment alone says the protocol.
#[test]
fn a_later_ipv6_fragment_cannot_choose_its_protocol() {
    let list = |policy: Policy| between(policy, &["fd00::/8"], &["::/0"]);
    let tcp_only = list(with(policy(1, 2), Some(TCP), UpperSelector::Any));
    let anything = list(with(policy(2, 1), None, UpperSelector::Any));
    for claimed in [TCP, UDP, ESP, 253] {
        let later = flow("fd00::1", "2001:db8::1", claimed, Upper::Fragment);
        assert_eq!(alone(&tcp_only, &later), LACKS);
        assert_eq!(alone(&anything, &later), MATCHES);
    }
}

#[test]
fn a_protocol_matches_only_itself() {
    let udp = with(policy(1, 1), Some(UDP), UpperSelector::Any);
    assert_eq!(alone(&udp, &out(UDP, numbers(1, 1))), MATCHES);
    assert_eq!(alone(&udp, &out(UDP, Upper::Fragment)), MATCHES);
    assert_eq!(alone(&udp, &out(TCP, numbers(1, 1))), None);
    let zero = with(policy(1, 1), Some(0), UpperSelector::Any);
    assert_eq!(alone(&zero, &out(0, Upper::None)), MATCHES);
    assert_eq!(alone(&zero, &out(TCP, numbers(1, 1))), None);
}

#[test]
fn a_fragment_never_falls_past_a_policy_with_ports() {
    // FC-44
    let web = with(policy(5, 50), Some(TCP), ports(&[], &["443"]));
    let web = Policy { action: Action::Discard, ..web };
    let below = policy(1, 10);
    let fragment = |protocol| out(protocol, Upper::Fragment);
    let spd = Spd::new(vec![web.clone(), below.clone()]).unwrap();
    assert_eq!(says(&spd, Direction::Outbound, &fragment(TCP)), Some(Err(5)));
    assert_eq!(says(&spd, Direction::Inbound, &fragment(TCP).reversed()), Some(Err(5)));
    // Neither its protocol nor its addresses: it does not concern the fragment.
    assert_eq!(says(&spd, Direction::Outbound, &fragment(UDP)), Some(Ok(1)));
    let elsewhere = between(web.clone(), &["10.1.9.0/24"], &["0.0.0.0/0"]);
    let spd = Spd::new(vec![elsewhere, below]).unwrap();
    assert_eq!(says(&spd, Direction::Outbound, &fragment(TCP)), Some(Ok(1)));
    // A higher policy without ports has decided already.
    let spd = Spd::new(vec![policy(9, 90), web]).unwrap();
    assert_eq!(says(&spd, Direction::Outbound, &fragment(TCP)), Some(Ok(9)));
}

#[test]
fn matching_lists_each_policy_once_in_order_of_precedence() {
    let wide = between(policy(1, 10), &["10.0.0.0/8", "10.1.0.0/16"], &["0.0.0.0/0"]);
    let web = with(policy(2, 20), Some(TCP), ports(&[], &["80-90", "85"]));
    let other = between(policy(3, 30), &["10.9.0.0/16"], &["0.0.0.0/0"]);
    let spd = Spd::new(vec![wide, web, other]).unwrap();
    let matching = |flow: &Flow| spd.matching(common(Book::SpdOut, flow.family), flow);
    let (web, wide) = (PolicyIndex(1), PolicyIndex(2));
    let both = [Decider::Policy(web), Decider::Policy(wide)];
    assert_eq!(matching(&out(TCP, numbers(1, 85))), both);
    assert_eq!(matching(&out(TCP, numbers(1, 91))), [Decider::Policy(wide)]);
    let lacking = [Decider::FragmentPorts(web), Decider::Policy(wide)];
    assert_eq!(matching(&out(TCP, Upper::Fragment)), lacking);
    assert_eq!(matching(&flow("192.0.2.1", "10.2.0.1", TCP, numbers(1, 2))), []);
}

#[test]
fn a_batch_is_judged_flow_by_flow_in_its_domain() {
    let v6 = between(policy(2, 1), &["::/0"], &["::/0"]);
    let spd = Spd::new(vec![policy(1, 1), v6]).unwrap();
    let flows =
        [out(TCP, numbers(1, 2)), out(TCP, numbers(1, 2)).reversed(), out(UDP, Upper::Fragment)];
    let (v6, v4) = (Decider::Policy(PolicyIndex(0)), Decider::Policy(PolicyIndex(1)));
    let mut says = [Decider::None; 3];
    spd.classify(common(Book::SpdOut, Family::V4), &flows, &mut says);
    assert_eq!(says, [v4, Decider::None, v4]);
    let of_v6 = [flow("::1", "::2", TCP, numbers(1, 2))];
    spd.classify(common(Book::SpdOut, Family::V6), &of_v6, &mut says[..1]);
    assert_eq!(says[0], v6);
}

#[test]
fn searched_linearly_a_database_says_what_it_says_compiled() {
    let list = [(1, 10), (2, 20), (3, 20)].map(|(id, priority)| policy(id, priority));
    let compiled = Spd::new(list.to_vec()).unwrap();
    let linear = compiled.clone().searched(Search::Linear);
    let flows = [out(TCP, numbers(1, 2)), flow("192.0.2.1", "10.2.0.1", TCP, numbers(1, 2))];
    for spd in [&compiled, &linear] {
        let mut says = [Decider::None; 2];
        spd.classify(common(Book::SpdOut, Family::V4), &flows, &mut says);
        assert_eq!(says, [Decider::Policy(PolicyIndex(0)), Decider::None]);
    }
}

#[test]
fn too_many_rules_are_refused_before_they_are_made() {
    let list = |count: usize| vec![AddressRange::any(Family::V4); count];
    let wide = |id, local, remote| {
        let selector =
            Selector { local: list(local), remote: list(remote), ..policy(id, 0).selector };
        Policy { only: Some(Direction::Outbound), selector, ..policy(id, 1000 - id) }
    };
    // 10^18 rules, and more than a usize counts: neither is allocated or overflows.
    let ports = UpperSelector::Ports {
        local: vec![PortRange::ANY; 100_000],
        remote: vec![PortRange::ANY; 100_000],
    };
    for (local, expected) in [(10_000, 10usize.pow(18)), (200_000, usize::MAX)] {
        let huge = with(wide(1, local, 10_000), None, ports.clone());
        let error = Spd::new(vec![huge]).unwrap_err();
        let (policy, limit) = ("p1".into(), Spd::MAX_RULES);
        assert_eq!(error, SpdError::TooManyRules { policy, rules: expected, limit });
    }
    // The policy named is the one that passes the limit, both directions counted.
    let both = Policy { only: None, ..wide(2, 1000, 1000) };
    let error = Spd::new(vec![wide(3, 1, 1), both, wide(1, 2000, 1000)]).unwrap_err();
    let rules = 4_000_001;
    let limit = Spd::MAX_RULES;
    assert_eq!(error, SpdError::TooManyRules { policy: "p3".into(), rules, limit });
    assert!(error.to_string().contains("policy \"p3\" brings the set to 4000001 rules"));
}
