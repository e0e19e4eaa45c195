//! Rules of groups with sets of 100,000 members against naive membership, and the time of a change
//! of one member.

use std::collections::HashSet;
use std::time::Instant;

use wire::flow::protocol::TCP;
use wire::{Family, Flow, Upper};

use super::Spd;
use crate::{
    Action, AddressRange, Book, Decider, DomainId, GroupMode, GroupSide, Policy, PolicyId,
    Selector, UpperSelector,
};

const MEMBERS: u32 = 100_000;
const NET: u128 = 0x0a00_0000;

/// Every third address, which no two members adjoin.
fn members() -> HashSet<u128> {
    (0..MEMBERS).map(|n| NET + 3 * u128::from(n)).collect()
}

fn ranges(of: &HashSet<u128>) -> Vec<AddressRange> {
    let mut sorted: Vec<u128> = of.iter().copied().collect();
    sorted.sort_unstable();
    sorted.into_iter().map(|at| AddressRange { family: Family::V4, lo: at, hi: at }).collect()
}

fn rule(id: u32, local: Vec<AddressRange>, remote: Vec<AddressRange>) -> Policy {
    Policy {
        id: PolicyId(id),
        name: format!("web/{id}"),
        action: Action::Permit(GroupMode::Enforce),
        priority: u32::MAX - id,
        only: None,
        group: Some(GroupSide::In),
        ingress: Some([0].into()),
        selector: Selector { local, remote, protocol: None, upper: UpperSelector::Any },
    }
}

fn any() -> Vec<AddressRange> {
    vec![AddressRange::any(Family::V4)]
}

fn decider(spd: &Spd, source: u128, destination: u128) -> Option<u32> {
    let upper = Upper::Ports { source: 1, destination: 2 };
    let (family, protocol, opens) = (Family::V4, TCP, false);
    let flow = Flow { family, source, destination, protocol, upper, opens };
    let mut out = [Decider::None];
    spd.classify(DomainId::new(spd.class(0), Book::GroupIn, family), &[flow], &mut out);
    let linear = spd.search_linear(DomainId::new(spd.class(0), Book::GroupIn, family), &flow);
    assert_eq!(out[0], linear, "{flow}");
    out[0].slot().map(|slot| spd.policy(slot).id.0)
}

#[test]
fn a_member_of_a_set_of_100000_comes_and_goes_without_the_rules_being_made_anew() {
    let mut set = members();
    // Beside the set there are 2000 rules that name none, and a set that shares half of it.
    let host = |n: u32| vec![AddressRange { family: Family::V4, lo: n.into(), hi: n.into() }];
    let half: HashSet<u128> = set.iter().copied().filter(|at| at % 2 == 0).collect();
    let mut policies: Vec<Policy> = (0..2000).map(|n| rule(n, host(n), any())).collect();
    policies.push(rule(3000, ranges(&set), ranges(&half)));
    policies.push(rule(3001, ranges(&set), any()));
    policies.push(rule(4000, any(), any()));
    let mut spd = Spd::with_room(policies, 10_000).unwrap();
    let domain = DomainId::new(spd.class(0), Book::GroupIn, Family::V4);
    assert_eq!(spd.rules(domain), 2003, "a list counts once");
    assert!(spd.cost(domain).steps() < 64, "{:?}", spd.cost(domain));
    let expected = |set: &HashSet<u128>, changes: u32, source: u128, destination: u128| match source
    {
        0..2000 => source as u32,
        _ if set.contains(&source) && half.contains(&destination) => 3000 + 2 * changes,
        _ if set.contains(&source) => 3001 + 2 * changes,
        _ => 4000,
    };
    let probe = |spd: &Spd, set: &HashSet<u128>, changes: u32| {
        for step in 0..4000u128 {
            let (source, destination) = (NET + step * 73 % 300_010, NET + step * 41 % 300_010);
            let found = decider(spd, source, destination);
            assert_eq!(
                found,
                Some(expected(set, changes, source, destination)),
                "{source} {destination}"
            );
        }
        assert_eq!(decider(spd, 7, 9), Some(7));
    };
    probe(&spd, &set, 0);
    for (place, member) in (1..).zip([NET + 1, NET, NET + 299_998, NET + 1]) {
        if !set.insert(member) {
            set.remove(&member);
        }
        let naming = spd.holding().filter(|(_, policy)| policy.selector.local.len() > 64);
        let naming: Vec<_> = naming.map(|(slot, policy)| (slot, policy.clone())).collect();
        assert_eq!(naming.len(), 2);
        let (slots, mut rules): (Vec<_>, Vec<_>) = naming.into_iter().unzip();
        for rule in &mut rules {
            rule.selector.local = ranges(&set);
            rule.id = PolicyId(rule.id.0 + 2);
        }
        let generation = spd.generation(domain);
        let others = spd.holding().filter(|(slot, _)| !slots.contains(slot));
        let all: Vec<Policy> = others.map(|(_, policy)| policy.clone()).chain(rules).collect();
        let begun = Instant::now();
        let changed = spd.with_few_changed_rules(&all).expect("upon the same base");
        eprintln!("change {place} of one of {MEMBERS} members: {:?}", begun.elapsed());
        assert!(changed.holds_only(&all));
        assert!(changed.has_base_of(&spd), "the tree of the other rules stays");
        assert_eq!(changed.generation(domain).0, generation.0 + 1);
        assert_eq!(changed.rules(domain), 2003);
        spd = changed;
        probe(&spd, &set, place);
    }
    // Made anew, the database lets go of the lists that hold no more.
    let rebuilt = spd.rebuilt().unwrap();
    probe(&rebuilt, &set, 4);
    let long = |policy: &Policy| policy.selector.local.len() > 64;
    assert_eq!(rebuilt.counted().filter(|(_, policy)| long(policy)).count(), 2);
    assert!(rebuilt.with_few_changed_rules(&[]).is_none(), "thousands of rules are not few");
}
