//! Rules in a card's words say what the rules say.

use policy::{Action, GroupMode, PolicyId, Selector, selector::parse_addresses};
use proptest::prelude::*;

use super::*;
use crate::capabilities::Ability;

fn range(family: Family, lo: u128, hi: u128) -> AddressRange {
    AddressRange { family, lo, hi }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn ends(span: &Span) -> (u128, u128) {
    (number(span.first), number(span.last))
}

fn prefixes_of(range: &AddressRange) -> Vec<Span> {
    let mut spans = Vec::new();
    prefixes(range, &mut spans);
    spans
}

// HA-19
#[test]
fn any_is_every_address_and_all_but_the_ends_is_not() {
    for (family, bits) in [(Family::V4, 32), (Family::V6, 128)] {
        let highest = family.highest_address();
        let any = prefixes_of(&AddressRange::any(family));
        assert_eq!(any.iter().map(ends).collect::<Vec<_>>(), [(0, highest)]);
        let inner = prefixes_of(&range(family, 1, highest - 1));
        assert_eq!(inner.len(), 2 * bits - 2);
        assert_eq!(ends(&inner[0]), (1, 1));
        assert_eq!(ends(&inner[inner.len() - 1]), (highest - 1, highest - 1));
    }
}

proptest! {
    #[test]
    fn a_range_is_as_many_prefixes_as_it_takes_and_no_address_more(
        v6: bool,
        a in prop_oneof![0..40u128, (0..40u128).prop_map(|n| u128::MAX - n), any::<u128>()],
        b in prop_oneof![0..40u128, (0..40u128).prop_map(|n| u128::MAX - n), any::<u128>()],
    ) {
        let family = if v6 { Family::V6 } else { Family::V4 };
        let mask = family.highest_address();
        let (a, b) = (a & mask, b & mask);
        let of = range(family, a.min(b), a.max(b));
        let spans = prefixes_of(&of);
        let mut next = Some(of.lo);
        for span in &spans {
            let (lo, hi) = ends(span);
            prop_assert_eq!(Some(lo), next, "they follow one another");
            let part = range(family, lo, hi);
            prop_assert!(part.prefix_length().is_some(), "{} is no prefix", part);
            next = hi.checked_add(1);
        }
        prop_assert_eq!(spans.last().map(|span| ends(span).1), Some(of.hi));
        prop_assert!(spans.len() <= 2 * usize::from(family.address_bits()) - 2 || spans.len() == 1);
    }
}

fn rule(upper: UpperSelector, protocol: Option<u8>) -> Policy {
    let any = parse_addresses("any").unwrap();
    Policy {
        id: PolicyId(7),
        name: "g/r".into(),
        action: Action::Permit(GroupMode::Enforce),
        priority: 1,
        only: None,
        group: Some(GroupSide::In),
        ingress: Some([3, 4, 9].into()),
        selector: Selector { local: any.clone(), remote: any, protocol, upper },
    }
}

fn said(policy: &Policy, card: &RuleAbilities) -> Result<CardRule, Inexact> {
    let expressed = Expressed::new(policy, Family::V4, &[4, 5, 9], card)?;
    let entries = expressed.entries();
    let rule = expressed.rule(policy.rank(), Effect::Mark);
    assert_eq!(rule.entries(), entries);
    Ok(rule)
}

#[test]
fn ports_without_a_protocol_are_those_of_every_protocol_that_has_ports() {
    let remote = vec![PortRange { lo: 53, hi: 53 }, PortRange { lo: 80, hi: 90 }];
    let policy = rule(UpperSelector::Ports { local: Vec::new(), remote }, None);
    let card = RuleAbilities::default();
    let found = said(&policy, &card).unwrap();
    assert_eq!((*found.ports).to_vec(), [4, 9], "the card's ports that ask it");
    assert_eq!((found.rank, found.patterns.len(), found.entries()), (policy.rank(), 10, 20));
    let protocols: Vec<u8> = found
        .patterns
        .iter()
        .filter_map(|pattern| match pattern.upper {
            UpperPattern::Ports {
                protocol, destination: (53, 53), source: (0, 0xffff), ..
            } => Some(protocol),
            _ => None,
        })
        .collect();
    assert_eq!(protocols, WITH_PORTS);
    let single = RuleAbilities { ports: Ability::Has(PortForm::Single), ..card };
    assert_eq!(said(&policy, &single).unwrap().patterns.len(), 5 * 12);
    let two = RuleAbilities { protocols: Protocols::TcpUdp, ..card };
    assert_eq!(said(&policy, &two), Err(Inexact::Protocol));
}

#[test]
fn a_rule_that_names_every_port_matches_only_packets_with_ports() {
    let remote = vec![PortRange::ANY];
    let policy = rule(UpperSelector::Ports { local: Vec::new(), remote }, Some(17));
    let found = said(&policy, &RuleAbilities::default()).unwrap();
    let ports = UpperPattern::Ports {
        protocol: 17,
        source: (0, 0xffff),
        destination: (0, 0xffff),
        segments: Segments::All,
    };
    assert_eq!(found.patterns[0].upper, ports);
    let policy = rule(UpperSelector::Any, Some(17));
    let found = said(&policy, &RuleAbilities::default()).unwrap();
    assert_eq!(found.patterns[0].upper, UpperPattern::Protocol(17));
}
