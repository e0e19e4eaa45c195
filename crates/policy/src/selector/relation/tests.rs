//! Relations against the judgement of the rules, over every packet at the ends of ranges.

use proptest::prelude::*;
use wire::Flow;
use wire::Upper as Header;
use wire::flow::protocol::{ICMP, ICMPV6, TCP, UDP};

use super::*;
use crate::book::Direction;
use crate::ids::PolicyIndex;
use crate::policy::{Action, Policy, PolicyId};
use crate::verdict::Decider;

const ENDS: [u128; 4] = [0, 9, 10, 20];
const PORTS: [u16; 4] = [0, 79, 80, u16::MAX];
const MESSAGES: [u16; 4] = [0, 0x0800, 0x08ff, u16::MAX];
/// GRE has neither ports nor messages.
const PROTOCOLS: [u8; 5] = [TCP, UDP, ICMP, ICMPV6, 47];

fn range<T: Copy + Ord + std::fmt::Debug + 'static>(
    ends: &'static [T],
) -> impl Strategy<Value = (T, T)> {
    let end = || proptest::sample::select(ends);
    (end(), end()).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

fn addresses() -> impl Strategy<Value = Vec<AddressRange>> {
    let family = proptest::sample::select(&FAMILIES[..]);
    let range =
        (family, range(&ENDS)).prop_map(|(family, (lo, hi))| AddressRange { family, lo, hi });
    proptest::collection::vec(range, 1..3)
}

fn ports() -> impl Strategy<Value = Vec<PortRange>> {
    proptest::collection::vec(range(&PORTS).prop_map(|(lo, hi)| PortRange { lo, hi }), 0..3)
}

fn selector() -> impl Strategy<Value = Selector> {
    let messages = range(&MESSAGES).prop_map(|(lo, hi)| IcmpRange { lo, hi });
    let upper = prop_oneof![
        Just(UpperSelector::Any),
        (ports(), ports()).prop_map(|(local, remote)| UpperSelector::Ports { local, remote }),
        proptest::collection::vec(messages, 0..3).prop_map(UpperSelector::Icmp),
        (proptest::sample::select(&TcpSegments::ALL[..]), ports(), ports())
            .prop_map(|(segments, local, remote)| UpperSelector::Tcp { segments, local, remote }),
    ];
    let protocol = prop::option::of(proptest::sample::select(&PROTOCOLS[..]));
    (addresses(), addresses(), protocol, upper)
        .prop_map(|(local, remote, protocol, upper)| Selector { local, remote, protocol, upper })
}

/// Every kind of packet at the ends of ranges, and later fragments.
fn flows() -> Vec<Flow> {
    let mut uppers: Vec<(u8, Header)> = vec![(47, Header::None)];
    for protocol in [TCP, UDP] {
        let pairs = PORTS.iter().flat_map(|s| PORTS.iter().map(move |d| (*s, *d)));
        uppers.extend(
            pairs.map(|(source, destination)| (protocol, Header::Ports { source, destination })),
        );
    }
    for protocol in [ICMP, ICMPV6] {
        let header = |message: &u16| {
            let [kind, code] = message.to_be_bytes();
            (protocol, Header::Icmp { kind, code })
        };
        uppers.extend(MESSAGES.iter().map(header));
    }
    uppers.extend(PROTOCOLS.map(|protocol| (protocol, Header::Fragment)));
    let mut flows = Vec::new();
    for family in FAMILIES {
        for source in ENDS {
            for destination in ENDS {
                let opens = false;
                let flow = |&(protocol, upper): &(u8, Header)| Flow {
                    family,
                    source,
                    destination,
                    protocol,
                    upper,
                    opens,
                };
                flows.extend(uppers.iter().map(flow));
            }
        }
    }
    let is_whole_tcp =
        |flow: &&Flow| flow.protocol == TCP && matches!(flow.upper, Header::Ports { .. });
    let opening: Vec<Flow> = flows.iter().filter(is_whole_tcp).copied().collect();
    flows.extend(opening.into_iter().map(|flow| Flow { opens: true, ..flow }));
    flows
}

/// Flows that each packet of a list matches, outbound.
fn matched(selector: &Selector, flows: &[Flow]) -> Vec<bool> {
    let policy = Policy {
        id: PolicyId(0),
        name: String::new(),
        action: Action::Bypass,
        priority: 0,
        only: None,
        group: None,
        ingress: None,
        selector: selector.clone(),
    };
    let [v4, v6] = FAMILIES.map(|family| {
        let mut rules = Vec::new();
        policy.compile(PolicyIndex(0), Direction::Outbound, family, &mut rules);
        rules
    });
    let matches = |flow: &Flow| {
        let rules = if flow.family == Family::V4 { &v4 } else { &v6 };
        rules.iter().any(|rule| matches!(rule.judge(flow), Decider::Policy(_)))
    };
    flows.iter().map(matches).collect()
}

proptest! {
    #[test]
    fn two_selectors_overlap_if_a_packet_matches_both(one in selector(), other in selector()) {
        let flows = flows();
        let both = matched(&one, &flows).into_iter().zip(matched(&other, &flows));
        let overlap = both.into_iter().any(|(one, other)| one && other);
        prop_assert_eq!(one.overlaps(&other), overlap);
        prop_assert_eq!(other.overlaps(&one), overlap);
    }

    #[test]
    fn a_selector_that_covers_another_matches_all_its_packets(
        wide in selector(),
        narrow in selector(),
    ) {
        let flows = flows();
        let mut both = matched(&wide, &flows).into_iter().zip(matched(&narrow, &flows));
        let holds_all = both.all(|(wide, narrow)| wide || !narrow);
        prop_assert!(!wide.covers(&narrow) || holds_all);
        prop_assert!(wide.covers(&wide) && narrow.covers(&narrow));
        // Of lists with one entry each it is exact.
        let one = |list: &[AddressRange]| list.len() == 1;
        let is_simple = |selector: &Selector| {
            let any = selector.upper == UpperSelector::Any;
            any && one(&selector.local) && one(&selector.remote)
        };
        let has_packets = matched(&narrow, &flows).contains(&true);
        if is_simple(&wide) && is_simple(&narrow) && has_packets && wide.protocol.is_none() {
            prop_assert_eq!(wide.covers(&narrow), holds_all);
        }
    }
}
