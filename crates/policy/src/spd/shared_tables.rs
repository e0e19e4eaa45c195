//! Memory and work follow the number of different rules, whatever the number of ports.

use super::*;
use crate::{AddressRange, GroupMode, GroupSide, Selector, UpperSelector};

/// A policy for a network of its own.
fn policy(id: u32) -> Policy {
    let range =
        |lo: u32| AddressRange { family: Family::V4, lo: lo.into(), hi: u128::from(lo) + 255 };
    Policy {
        id: PolicyId(id),
        name: format!("p{id}"),
        action: Action::Bypass,
        priority: 1,
        only: None,
        group: None,
        ingress: None,
        selector: Selector {
            local: vec![range(0x0a00_0000)],
            remote: vec![range(0x1400_0000 + (id << 8))],
            protocol: None,
            upper: UpperSelector::Any,
        },
    }
}

/// A rule of the groups of some ports.
fn rule(id: u32, side: GroupSide, ports: &[u16]) -> Policy {
    let action = Action::Permit(GroupMode::Enforce);
    Policy { action, group: Some(side), ingress: Some(ports.into()), ..policy(id) }
}

/// Policies for all ports, and for each of so many ports a rule of its groups in and one of its
/// groups out.
fn with_groups(policies: u32, ports: u16) -> Vec<Policy> {
    let mut all: Vec<Policy> = (0..policies).map(policy).collect();
    for port in 0..ports {
        let id = policies + 2 * u32::from(port);
        all.push(rule(id, GroupSide::In, &[port]));
        all.push(rule(id + 1, GroupSide::Out, &[port]));
    }
    all
}

#[test]
fn ports_with_groups_share_the_policies_of_the_spd() {
    const POLICIES: u32 = 25_000;
    let alone = Spd::new(with_groups(POLICIES, 0)).unwrap();
    for ports in [1, 100] {
        let spd = Spd::new(with_groups(POLICIES, ports)).unwrap();
        let memory = spd.memory();
        assert_eq!(memory.rules, 2 * POLICIES as usize + 2 * usize::from(ports));
        assert!(memory.bytes < alone.memory().bytes + 8192 * usize::from(ports), "{memory:?}");
        assert!(memory.bytes < 100 << 20, "{memory:?}");
        // Four lists of the SPD, four of ports without groups, and one a side and family of each
        // port with groups; the rules speak of IPv4 alone.
        assert_eq!(spd.rule_lists(), 8 + 2 * usize::from(ports));
    }
}

#[test]
fn a_policy_that_comes_makes_as_many_rules_as_it_has_whatever_the_ports() {
    let spd = Spd::with_room(with_groups(100, 50), 1000).unwrap();
    let before = spd.memory().rules;
    let added = spd.changed(&[], vec![policy(900)]).unwrap();
    assert_eq!((added.memory().rules, added.rule_lists()), (before + 2, spd.rule_lists()));
    let gone = added.changed(&[added.named("p900").unwrap()], vec![]).unwrap();
    assert_eq!(gone.memory().rules, before);
}

#[test]
fn groups_of_one_more_port_leave_the_compiled_policies_as_they_are() {
    let base = |spd: &Spd, port| {
        spd.table(DomainId::new(spd.class(port), Book::SpdOut, Family::V4)).base_address()
    };
    let spd = Spd::with_room(with_groups(100, 3), 1000).unwrap();
    let mut policies = with_groups(100, 3);
    policies.push(rule(700, GroupSide::In, &[3]));
    let (next, slots) = spd.renewed(policies, 1000).unwrap();
    assert_eq!((slots, next.class(3)), (Slots::Kept, PortClass(4)));
    for port in 0..5 {
        assert_eq!(base(&next, port), base(&spd, port), "port {port}");
    }
    assert!(next.domains().all(|domain| next.generation(domain) == Generation(2)));
}

#[test]
fn a_policy_for_one_of_the_ports_that_share_a_list_splits_the_list_and_not_its_rules() {
    let of_ports = |id, ports: &[u16]| Policy { ingress: Some(ports.into()), ..policy(id) };
    let mut policies: Vec<Policy> = (0..100).map(policy).collect();
    policies.push(of_ports(100, &[1, 2, 3]));
    let spd = Spd::with_room(policies, 1000).unwrap();
    // One copy for ports 1 to 3, one for all other ports.
    assert_eq!((spd.memory().rules, spd.rule_lists()), (2 * (100 + 101), 10));
    let added = spd.changed(&[], vec![of_ports(101, &[2])]).unwrap();
    assert_eq!((added.memory().rules, added.rule_lists()), (2 * (100 + 101) + 2, 12));
    let rules = |port| added.rules(DomainId::new(added.class(port), Book::SpdIn, Family::V4));
    assert_eq!([0, 1, 2, 3].map(rules), [100, 101, 102, 101]);
    let gone = added.changed(&[added.named("p101").unwrap()], vec![]).unwrap();
    let rebuilt = gone.on(&gone.rebuilt().unwrap(), &gone).unwrap();
    assert_eq!((rebuilt.memory().rules, rebuilt.rule_lists()), (2 * (100 + 101), 10));
}
