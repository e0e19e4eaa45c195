use proptest::prelude::*;

use super::*;
use crate::{Action, Direction, GroupMode, GroupSide, PolicyId, Selector, UpperSelector};

/// Ports of the tests; no policy names the last port.
const PORTS: u16 = 6;

fn policy() -> impl Strategy<Value = Policy> {
    let ingress = prop_oneof![
        1 => Just(None),
        3 => proptest::sample::subsequence((0..PORTS - 1).collect::<Vec<u16>>(), 1..5)
            .prop_map(Some),
    ];
    let group = proptest::sample::select(vec![None, Some(GroupSide::In), Some(GroupSide::Out)]);
    let only = proptest::sample::select(vec![None, Some(Direction::Inbound)]);
    let family = proptest::sample::select(vec!["0.0.0.0/0", "::/0"]);
    (ingress, group, only, family).prop_map(|(ingress, group, only, family)| Policy {
        id: PolicyId(0),
        name: String::new(),
        action: match group {
            None => Action::Bypass,
            Some(_) => Action::Permit(GroupMode::Enforce),
        },
        priority: 0,
        only: only.filter(|_| group.is_none()),
        group,
        ingress: ingress.map(Into::into),
        selector: Selector {
            local: vec![family.parse().unwrap()],
            remote: vec![family.parse().unwrap()],
            protocol: None,
            upper: UpperSelector::Any,
        },
    })
}

/// Returns the places of the policies of a domain.
fn holding(classes: &Classes, policies: &[Policy], domain: DomainId) -> Vec<usize> {
    let holds = |policy: &Policy| {
        let port = classes.port(domain.class());
        let ingress = policy.ingress.as_deref();
        policy.kinds().any(|kind| kind == (domain.book(), domain.family()))
            && ingress.is_none_or(|ports| port.is_some_and(|port| ports.contains(&port)))
    };
    (0..policies.len()).filter(|place| holds(&policies[*place])).collect()
}

/// Compares the policies of domains with one table, and a policy's tables with the tables of its
/// domains.
fn check(
    places: &TablePlaces,
    classes: &Classes,
    policies: &[Policy],
) -> Result<(), TestCaseError> {
    let mut domains = vec![0; places.count()];
    for domain in places.domains() {
        let place = places.at(domain);
        domains[place] += 1;
        let of_place = places.domain(place);
        prop_assert_eq!(places.at(of_place), place);
        prop_assert_eq!((domain.book(), domain.family()), (of_place.book(), of_place.family()));
        let [one, other] = [domain, of_place].map(|of| holding(classes, policies, of));
        prop_assert_eq!(one, other);
    }
    let counted: Vec<u32> = places.tables.iter().map(|table| table.domains).collect();
    prop_assert_eq!(domains, counted);
    for policy in policies {
        let mut expected: Vec<u32> =
            classes.domains_of(policy).map(|domain| places.at(domain) as u32).collect();
        let mut found = places.of_policy(classes, policy);
        [&mut expected, &mut found].into_iter().for_each(|places| places.sort_unstable());
        expected.dedup();
        prop_assert_eq!(found, expected);
    }
    Ok(())
}

proptest! {
    #[test]
    fn domains_share_a_table_exactly_if_the_same_policies_hold_in_them(
        policies in proptest::collection::vec(policy(), 0..10),
        added in proptest::collection::vec(policy(), 0..5),
    ) {
        let named = policies.iter().chain(&added);
        let classes = Classes::of(named.filter_map(|policy| policy.ingress.as_deref()));
        let mut places = TablePlaces::of(&classes, policies.iter().flat_map(IngressList::of));
        check(&places, &classes, &policies)?;
        let kinds = |domain: DomainId| (domain.book(), domain.family());
        for one in places.domains() {
            for other in places.domains().filter(|other| kinds(*other) == kinds(one)) {
                let [of_one, of_other] =
                    [one, other].map(|domain| holding(&classes, &policies, domain));
                prop_assert_eq!(of_one == of_other, places.at(one) == places.at(other));
            }
        }
        let mut policies = policies;
        for policy in added {
            let before = places.clone();
            let copied = places.split(&classes, &policy);
            prop_assert_eq!(places.count(), before.count() + copied.len());
            for domain in places.domains().filter(|domain| places.at(*domain) >= before.count()) {
                let copy_of = copied[places.at(domain) - before.count()];
                prop_assert_eq!(before.at(domain), copy_of as usize);
            }
            policies.push(policy);
            check(&places, &classes, &policies)?;
        }
    }
}
