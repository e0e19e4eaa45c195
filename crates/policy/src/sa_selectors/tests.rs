use proptest::prelude::*;

use super::*;
use crate::ids::PolicyIndex;
use crate::rule::{Rule, UpperRule};
use crate::selector::{IcmpRange, PortRange};
use crate::verdict::Decider;

const TCP: u8 = protocol::TCP;

fn end(addresses: &str, protocol: Option<u8>, upper: EndUpper) -> EndSelector {
    EndSelector { addresses: addresses.parse().unwrap(), protocol, upper }
}

fn ports(lo: u16, hi: u16) -> EndUpper {
    EndUpper::Range { lo, hi }
}

/// Packets of a protocol from 10.2.0.5 to 10.1.0.5.
fn flow(protocol: u8, upper: Upper) -> Flow {
    let [source, destination] = [0x0a02_0005, 0x0a01_0005].map(Address::v4);
    Flow { upper, ..Flow::between(source, destination, protocol) }
}

fn tcp(source: u16, destination: u16) -> Flow {
    flow(TCP, Upper::Ports { source, destination })
}

fn sa(local: EndSelector, remote: EndSelector) -> SaSelectors {
    SaSelectors { local: vec![local], remote: vec![remote] }
}

const OUTSIDE: Result<(), Refusal> = Err(Refusal::SelectorMismatch);
const FRAGMENT: Result<(), Refusal> = Err(Refusal::FragmentPorts);

#[test]
fn the_source_is_in_the_remote_selectors_and_the_destination_in_the_local_ones() {
    let [local, remote] =
        ["10.1.0.0-10.1.0.5", "10.2.0.5"].map(|range| end(range, None, EndUpper::Any));
    let selectors = sa(local, remote);
    assert_eq!(selectors.admit(&tcp(1, 2)), Ok(()));
    assert_eq!(selectors.admit(&tcp(1, 2).reversed()), OUTSIDE);
    for (source, destination) in [(4, 5), (6, 5), (5, 6)] {
        let outside = Flow {
            source: 0x0a02_0000 + source,
            destination: 0x0a01_0000 + destination,
            ..tcp(1, 2)
        };
        assert_eq!(selectors.admit(&outside), OUTSIDE, "{outside}");
    }
}

#[test]
fn the_ports_of_each_end_are_checked_up_to_their_edges() {
    let local = end("10.1.0.0/16", Some(TCP), ports(0, 79));
    let remote = end("10.2.0.0/16", Some(TCP), ports(u16::MAX, u16::MAX));
    let selectors = sa(local, remote);
    for (source, destination, expected) in [
        (u16::MAX, 0, Ok(())),
        (u16::MAX, 79, Ok(())),
        (u16::MAX, 80, OUTSIDE),
        (u16::MAX - 1, 79, OUTSIDE),
        (0, 79, OUTSIDE),
        (79, u16::MAX, OUTSIDE),
    ] {
        assert_eq!(selectors.admit(&tcp(source, destination)), expected);
    }
    let udp = Upper::Ports { source: u16::MAX, destination: 0 };
    assert_eq!(selectors.admit(&flow(protocol::UDP, udp)), OUTSIDE);
}

#[test]
fn a_later_fragment_lacks_the_ports_that_selectors_name() {
    let named = end("10.0.0.0/8", Some(TCP), ports(80, 80));
    let any_port = end("10.0.0.0/8", Some(TCP), EndUpper::Any);
    let fragment = flow(TCP, Upper::Fragment);
    assert_eq!(sa(named, any_port).admit(&fragment), FRAGMENT);
    assert_eq!(sa(any_port, named).admit(&fragment), FRAGMENT);
    assert_eq!(sa(any_port, any_port).admit(&fragment), Ok(()));
    assert_eq!(sa(named, named).admit(&flow(47, Upper::Fragment)), OUTSIDE);
    let both = SaSelectors { local: vec![named, any_port], remote: vec![any_port] };
    assert_eq!(both.admit(&fragment), Ok(()));
}

#[test]
fn icmp_messages_are_in_the_ranges_of_both_ends() {
    let echo = end("10.0.0.0/8", Some(protocol::ICMP), ports(0x0800, 0x08ff));
    let any = end("10.0.0.0/8", None, EndUpper::Any);
    let message = |kind, code| flow(protocol::ICMP, Upper::Icmp { kind, code });
    for selectors in [sa(echo, any), sa(any, echo), sa(echo, echo)] {
        assert_eq!(selectors.admit(&message(8, 0)), Ok(()));
        assert_eq!(selectors.admit(&message(8, 255)), Ok(()));
        assert_eq!(selectors.admit(&message(9, 0)), OUTSIDE);
        assert_eq!(selectors.admit(&message(0, 0)), OUTSIDE);
        assert_eq!(selectors.admit(&flow(protocol::ICMP, Upper::Fragment)), FRAGMENT);
    }
}

#[test]
fn opaque_ports_and_empty_lists_have_no_packet() {
    let any = end("10.0.0.0/8", None, EndUpper::Any);
    let opaque = end("10.0.0.0/8", None, ports(u16::MAX, 0));
    for port in [0, 1, u16::MAX] {
        assert_eq!(sa(opaque, any).admit(&tcp(port, port)), OUTSIDE);
        assert_eq!(sa(any, opaque).admit(&tcp(port, port)), OUTSIDE);
    }
    for (local, remote) in [(vec![], vec![]), (vec![any], vec![]), (vec![], vec![any])] {
        assert_eq!(SaSelectors { local, remote }.admit(&tcp(1, 2)), OUTSIDE);
    }
}

/// An end of a packet.
#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

/// Returns the selector of one end as a rule of the linear search; the other end is any.
fn rule(selector: &EndSelector, side: Side) -> Rule {
    let any = (0, u128::MAX);
    let addresses = (selector.addresses.lo, selector.addresses.hi);
    let (source, destination) = match side {
        Side::Source => (addresses, any),
        Side::Destination => (any, addresses),
    };
    let upper = match (selector.upper, selector.protocol, side) {
        (EndUpper::Any, ..) => UpperRule::Any,
        (EndUpper::Range { lo, hi }, Some(protocol::ICMP | protocol::ICMPV6), _) => {
            UpperRule::Icmp(IcmpRange { lo, hi })
        }
        (EndUpper::Range { lo, hi }, _, Side::Source) => {
            UpperRule::Ports { source: PortRange { lo, hi }, destination: PortRange::ANY }
        }
        (EndUpper::Range { lo, hi }, _, Side::Destination) => {
            UpperRule::Ports { source: PortRange::ANY, destination: PortRange { lo, hi } }
        }
    };
    let (lists, index) = ([None, None], PolicyIndex(0));
    Rule { source, destination, lists, protocol: selector.protocol, upper, index }
}

/// The obvious twin: every pair of selectors, each a rule of the linear search.
fn admit_by_rules(selectors: &SaSelectors, flow: &Flow) -> Result<(), Refusal> {
    let judge = |selector: &EndSelector, side| match rule(selector, side).judge(flow) {
        _ if selector.addresses.family != flow.family => EndMatch::Outside,
        Decider::Policy(_) => EndMatch::Inside,
        Decider::FragmentPorts(_) => EndMatch::FragmentPorts,
        Decider::None => EndMatch::Outside,
    };
    let pairs = selectors.remote.iter().flat_map(|remote| {
        let source = judge(remote, Side::Source);
        let locals = selectors.local.iter();
        locals.map(move |local| source.min(judge(local, Side::Destination)))
    });
    match pairs.max() {
        Some(EndMatch::Inside) => Ok(()),
        Some(EndMatch::FragmentPorts) => FRAGMENT,
        Some(EndMatch::Outside) | None => OUTSIDE,
    }
}

fn some_family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
}

/// Addresses at both edges of a family, few enough to meet.
fn some_address(family: Family) -> impl Strategy<Value = u128> {
    let highest = family.highest_address();
    prop_oneof![0..3u128, (0..3u128).prop_map(move |below| highest - below)]
}

fn some_number() -> impl Strategy<Value = u16> {
    let messages = prop::sample::select(vec![0x0300u16, 0x0304, 0x07ff, 0x0800, 0x08ff, 0x0900]);
    prop_oneof![0..3u16, (u16::MAX - 2)..=u16::MAX, messages]
}

fn some_protocol() -> impl Strategy<Value = u8> {
    prop::sample::select(vec![TCP, protocol::UDP, protocol::ICMP, protocol::ICMPV6, 47, 0, 255])
}

prop_compose! {
    fn some_selector()(family in some_family())(
        (one, other) in (some_address(family), some_address(family)),
        family in Just(family),
        protocol in prop::option::of(some_protocol()),
        // Not in order: an inverted range is OPAQUE.
        upper in prop_oneof![
            Just(EndUpper::Any),
            Just(ports(0, u16::MAX)),
            Just(ports(u16::MAX, 0)),
            (some_number(), some_number()).prop_map(|(lo, hi)| ports(lo, hi)),
        ],
    ) -> EndSelector {
        let addresses = AddressRange { family, lo: one.min(other), hi: one.max(other) };
        EndSelector { addresses, protocol, upper }
    }
}

prop_compose! {
    fn some_flow()(family in some_family())(
        (source, destination) in (some_address(family), some_address(family)),
        (from, to) in (some_number(), some_number()),
        (family, protocol) in (Just(family), some_protocol()),
        is_fragment in any::<bool>(),
    ) -> Flow {
        let [source, destination] = [source, destination].map(|value| Address { family, value });
        let flow = Flow::between(source, destination, protocol);
        let upper = match from.to_be_bytes() {
            _ if is_fragment => Upper::Fragment,
            _ if protocol::has_ports(protocol) => Upper::Ports { source: from, destination: to },
            [kind, code] if is_icmp(&flow) => Upper::Icmp { kind, code },
            _ => Upper::None,
        };
        Flow { upper, ..flow }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_packet_is_inside_where_the_rules_of_a_pair_have_it(
        local in prop::collection::vec(some_selector(), 0..4),
        remote in prop::collection::vec(some_selector(), 0..4),
        flows in prop::collection::vec(some_flow(), 16),
    ) {
        let selectors = SaSelectors { local, remote };
        for flow in &flows {
            prop_assert_eq!(selectors.admit(flow), admit_by_rules(&selectors, flow), "{}", flow);
        }
    }
}
