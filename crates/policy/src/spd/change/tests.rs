//! Databases made from one another against databases made at once.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use wire::flow::protocol::{TCP, UDP};
use wire::{Family, Flow, Upper};

use super::*;
use crate::list::List;
use crate::rule::Rule;
use crate::{Action, AddressRange, Book, Decider, Direction, Generation, GroupMode, GroupSide};
use crate::{PortRange, Selector, SpdError, TcpSegments, UpperSelector, common};

const DIRECTIONS: [Direction; 2] = [Direction::Inbound, Direction::Outbound];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// Ports that packets come by; policies name some of those below the last.
const PORTS: u16 = 5;

/// Bounds of the addresses in tests: few, so that ranges touch, nest and cross.
const BOUNDS: [u128; 5] = [0, 9, 10, 20, 21];

fn range(family: Family) -> impl Strategy<Value = AddressRange> {
    let bound = || proptest::sample::select(&BOUNDS[..]);
    (bound(), bound()).prop_map(move |(one, other)| AddressRange {
        family,
        lo: one.min(other),
        hi: one.max(other),
    })
}

fn ranges() -> impl Strategy<Value = Vec<AddressRange>> {
    prop_oneof![
        4 => proptest::collection::vec(range(Family::V4), 1..3),
        1 => proptest::collection::vec(range(Family::V6), 1..3),
        1 => (range(Family::V4), range(Family::V6)).prop_map(|(four, six)| vec![four, six]),
    ]
}

fn upper() -> impl Strategy<Value = (Option<u8>, UpperSelector)> {
    let port = || (79u16..82, 0u16..2).prop_map(|(lo, more)| PortRange { lo, hi: lo + more });
    prop_oneof![
        2 => Just((None, UpperSelector::Any)),
        1 => Just((Some(TCP), UpperSelector::Any)),
        2 => port().prop_map(|port| {
            (Some(TCP), UpperSelector::Ports { local: Vec::new(), remote: vec![port] })
        }),
        1 => (proptest::sample::select(&TcpSegments::ALL[..]), port()).prop_map(
            |(segments, port)| {
                let (local, remote) = (Vec::new(), vec![port]);
                (Some(TCP), UpperSelector::Tcp { segments, local, remote })
            },
        ),
    ]
}

/// A policy without a number.
fn policy() -> impl Strategy<Value = Policy> {
    let only = prop_oneof![
        3 => Just(None),
        1 => proptest::sample::select(&DIRECTIONS[..]).prop_map(Some),
    ];
    let ingress = prop_oneof![
        4 => Just(None),
        2 => proptest::sample::subsequence(vec![0u16, 1, 2, 3], 1..4).prop_map(Some),
    ];
    let group = prop_oneof![
        3 => Just(None),
        1 => proptest::sample::select(&GroupSide::ALL[..]).prop_map(Some),
    ];
    // A side of so many ranges is a list, of which a rule of a group is not expanded.
    let side = || {
        (ranges(), proptest::bool::weighted(0.2)).prop_map(|(ranges, is_long)| match is_long {
            true => ranges.iter().cycle().take(List::FEW + 3).copied().collect(),
            false => ranges,
        })
    };
    (side(), side(), upper(), 0u32..3, only, ingress, group).prop_map(
        |(local, remote, (protocol, upper), priority, only, ingress, group)| Policy {
            id: PolicyId(0),
            name: String::new(),
            action: match group {
                None => Action::Bypass,
                Some(_) => Action::Permit(GroupMode::Enforce),
            },
            priority,
            only: if group.is_none() { only } else { None },
            group,
            // A group's rule is of the ports that the group is bound to.
            ingress: ingress.or(group.map(|_| vec![1])).map(Into::into),
            selector: Selector { local, remote, protocol, upper },
        },
    )
}

/// The books that a policy has rules in.
fn books(policy: &Policy) -> &'static [Book] {
    match (policy.group, policy.only) {
        (Some(GroupSide::In), _) => &[Book::GroupIn],
        (Some(GroupSide::Out), _) => &[Book::GroupOut],
        (None, Some(Direction::Inbound)) => &[Book::SpdIn],
        (None, Some(Direction::Outbound)) => &[Book::SpdOut],
        (None, None) => &[Book::SpdIn, Book::SpdOut],
    }
}

/// Returns whether the question that one domain stands for asks the rules of another.
fn asks(question: DomainId, domain: DomainId) -> bool {
    let books: &[Book] = match question.book() {
        Book::SpdIn => &[Book::SpdIn, Book::GroupIn],
        Book::SpdOut => &[Book::SpdOut],
        Book::GroupIn => &[Book::GroupIn, Book::SpdOut],
        Book::GroupOut => &[],
    };
    let asks_of_way_out = domain.book() == Book::GroupOut;
    let asks_of_ingress = books.contains(&domain.book()) && question.class() == domain.class();
    question.family() == domain.family() && (asks_of_way_out || asks_of_ingress)
}

/// A change of a database; numbers choose among its policies.
#[derive(Clone, Debug)]
enum Step {
    Change {
        removed: Vec<usize>,
        added: Vec<Policy>,
    },
    /// Rebuilds the base while further changes come.
    FoldIn {
        removed: Vec<usize>,
        added: Vec<Policy>,
    },
    Renew {
        removed: Vec<usize>,
        added: Vec<Policy>,
        room: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let removed = || proptest::collection::vec(0usize..100, 0..4);
    let added = || proptest::collection::vec(policy(), 0..4);
    prop_oneof![
        4 => (removed(), added()).prop_map(|(removed, added)| Step::Change { removed, added }),
        1 => (removed(), added()).prop_map(|(removed, added)| Step::FoldIn { removed, added }),
        1 => (removed(), added(), 0usize..60)
            .prop_map(|(removed, added, room)| Step::Renew { removed, added, room }),
    ]
}

/// A database, and what it must be.
struct Life {
    spd: Spd,
    /// Policies that hold, by number.
    policies: BTreeMap<u32, Policy>,
    next: u32,
    /// Slots given since they were last given anew, and to whom.
    given: BTreeMap<PolicyIndex, PolicyId>,
}

impl Life {
    fn new(policies: Vec<Policy>, room: usize) -> Life {
        let (spd, given) = (Spd::default(), BTreeMap::new());
        let mut life = Life { spd, policies: BTreeMap::new(), next: 0, given };
        let policies = life.numbered(policies);
        life.spd = Spd::with_room(policies.clone(), room).unwrap();
        life.policies = policies.into_iter().map(|policy| (policy.id.0, policy)).collect();
        life.note_slots();
        life
    }

    /// Every other policy takes a number that another had and gave up, if there is one.
    fn numbered(&mut self, mut policies: Vec<Policy>) -> Vec<Policy> {
        let free = (0..self.next).filter(|number| !self.policies.contains_key(number));
        let mut free: Vec<u32> = free.collect();
        for (place, policy) in policies.iter_mut().enumerate() {
            let again = if place % 2 == 0 { free.pop() } else { None };
            let number = again.unwrap_or(self.next);
            self.next = self.next.max(number + 1);
            (policy.id, policy.name) = (PolicyId(number), format!("p{number}"));
        }
        policies
    }

    /// Takes away those that are meant and says which they were.
    fn take(&mut self, removed: &[usize]) -> Vec<Policy> {
        let mut taken = Vec::new();
        for place in removed {
            let place = place % self.policies.len().max(1);
            if let Some(id) = self.policies.keys().nth(place).copied() {
                taken.extend(self.policies.remove(&id));
            }
        }
        taken
    }

    fn slot(&self, policy: &Policy) -> PolicyIndex {
        let mut held = self.spd.holding();
        held.find(|(_, held)| *held == policy).expect("it holds").0
    }

    /// Asserts that every slot still means the policy that it meant before.
    fn note_slots(&mut self) {
        for (index, policy) in self.spd.counted() {
            let before = self.given.insert(index, policy.id);
            assert!(before.is_none_or(|before| before == policy.id), "FC-52: slot {index:?}");
        }
    }

    fn generations(&self) -> Vec<Generation> {
        self.spd.domains().map(|domain| self.spd.generation(domain)).collect()
    }

    /// Domains in which policies have rules, by what they say.
    fn touched(&self, policies: &[&Policy]) -> BTreeSet<DomainId> {
        let mut touched = BTreeSet::new();
        let sides = Book::ALL.into_iter().flat_map(|book| FAMILIES.map(|family| (book, family)));
        for (book, family) in sides {
            for policy in policies {
                if policy.selector.rules(family) == 0 || !books(policy).contains(&book) {
                    continue;
                }
                let named = |port: &u16| match &policy.ingress {
                    None => true,
                    Some(ports) => ports.contains(port),
                };
                let classes = (0..PORTS).filter(named).map(|port| self.spd.class(port));
                touched.extend(classes.map(|class| DomainId::new(class, book, family)));
            }
        }
        touched
    }

    /// Makes a change upon the base; the whole anew where that cannot be.
    fn change(&mut self, removed: &[usize], added: Vec<Policy>) {
        let removed = self.take(removed);
        let slots: Vec<PolicyIndex> = removed.iter().map(|policy| self.slot(policy)).collect();
        let added = self.numbered(added);
        self.policies.extend(added.iter().map(|policy| (policy.id.0, policy.clone())));
        match self.spd.changed(&slots, added.clone()) {
            Ok(next) => {
                let before = self.generations();
                self.spd = next;
                self.check_raised(&before, removed.iter().chain(&added));
            }
            Err(_) => self.renew(removed, added, 64),
        }
    }

    /// FC-17, FC-16, FC-37: by 1 in the domains that changed, by nothing in others.
    fn check_raised<'p>(&self, before: &[Generation], changed: impl Iterator<Item = &'p Policy>) {
        let touched = self.touched(&changed.collect::<Vec<_>>());
        for (domain, before) in self.spd.domains().zip(before) {
            let is_asked = touched.iter().any(|touched| asks(domain, *touched));
            let raised = before.0 + u32::from(is_asked || touched.contains(&domain));
            assert_eq!(self.spd.generation(domain), Generation(raised), "{domain:?}");
        }
    }

    fn renew(&mut self, removed: Vec<Policy>, added: Vec<Policy>, room: usize) {
        let before = self.generations();
        let classes = self.spd.base.classes.clone();
        let policies = self.policies.values().cloned().collect();
        let (next, slots) = self.spd.renewed(policies, room).unwrap();
        self.spd = next;
        if slots == Slots::GivenAnew {
            self.given.clear();
        }
        if slots == Slots::Kept && self.spd.base.classes == classes {
            self.check_raised(&before, removed.iter().chain(&added));
        } else {
            let highest = *before.iter().max().unwrap();
            assert!(self.generations().iter().all(|generation| *generation > highest));
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Change { removed, added } => self.change(&removed, added),
            Step::FoldIn { removed, added } => {
                let earlier = self.spd.clone();
                let rebuilt = earlier.rebuilt().unwrap();
                self.change(&removed, added);
                let before = self.generations();
                if let Ok(next) = self.spd.on(&rebuilt, &earlier) {
                    self.spd = next;
                    assert_eq!(self.generations(), before, "answers stay the same");
                }
            }
            Step::Renew { removed, added, room } => {
                let removed = self.take(&removed);
                let added = self.numbered(added);
                self.policies.extend(added.iter().map(|policy| (policy.id.0, policy.clone())));
                self.renew(removed, added, room);
            }
        }
        self.note_slots();
        self.check();
    }

    /// Checks that the database gives the answers of one made of the same policies at once.
    fn check(&self) {
        let policies: Vec<Policy> = self.policies.values().cloned().collect();
        let of_spd = policies.iter().filter(|policy| policy.group.is_none()).count();
        assert!(self.spd.holds_only(&policies) && self.spd.len() == of_spd);
        assert_eq!(self.spd.holding_rules().count(), policies.len() - of_spd);
        let names = self.spd.names();
        for number in 0..self.next + 1 {
            let name = format!("p{number}");
            let held = self.policies.get(&number).filter(|policy| policy.group.is_none());
            let held = held.map(|policy| self.slot(policy));
            assert_eq!((self.spd.named(&name), names.get(&name)), (held, held), "{name}");
        }
        let fresh = Spd::new(policies).unwrap();
        for book in Book::ALL {
            for family in FAMILIES {
                let flows = flows(family);
                (0..PORTS).for_each(|port| self.check_port(&fresh, port, book, &flows));
            }
        }
    }

    /// The oracle without tables: the rules for packets of a port in the book of a domain, the
    /// highest precedence first. The indices of rules are the numbers of policies.
    fn rules_of_port(&self, port: u16, domain: DomainId) -> Vec<Rule> {
        let (book, family) = (domain.book(), domain.family());
        let holds = |policy: &&Policy| {
            let ports = policy.ingress.as_deref();
            books(policy).contains(&book) && ports.is_none_or(|ports| ports.contains(&port))
        };
        let mut policies: Vec<&Policy> = self.policies.values().filter(holds).collect();
        policies.sort_by_key(|policy| std::cmp::Reverse(policy.precedence()));
        let mut rules = Vec::new();
        for policy in policies {
            policy.compile(PolicyIndex(policy.id.0), book.reads(), family, &mut rules);
        }
        rules
    }

    fn check_port(&self, fresh: &Spd, port: u16, book: Book, flows: &[Flow]) {
        let of = |spd: &Spd| DomainId::new(spd.class(port), book, flows[0].family);
        let (domain, of_fresh) = (of(&self.spd), of(fresh));
        let mut says = vec![Decider::None; flows.len()];
        let mut should = says.clone();
        let rules = self.rules_of_port(port, domain);
        self.spd.classify(domain, flows, &mut says);
        fresh.classify(of_fresh, flows, &mut should);
        for ((flow, says), should) in flows.iter().zip(says).zip(should) {
            let (says, should) = (id(&self.spd, says), id(fresh, should));
            assert_eq!(says, should, "port {port}, {book:?} {flow}");
            let linear = id(&self.spd, self.spd.search_linear(domain, flow));
            assert_eq!(says, linear, "port {port}, {book:?} {flow}");
            let decides = rules.iter().map(|rule| rule.judge(flow));
            let first = decides.into_iter().find(|decider| *decider != Decider::None);
            let by_policy = first.map(|decider| match decider {
                Decider::Policy(PolicyIndex(number)) => Ok(PolicyId(number)),
                Decider::FragmentPorts(PolicyIndex(number)) => Err(PolicyId(number)),
                Decider::None => unreachable!("a rule that decides"),
            });
            assert_eq!(says, by_policy, "port {port}, {book:?} {flow}");
        }
        assert_eq!(self.spd.rules(domain), fresh.rules(of_fresh));
        assert_eq!(self.spd.tells_segments(domain), fresh.tells_segments(of_fresh));
    }
}

/// An answer by the number of its policy; `Err`: it lacks ports.
fn id(spd: &Spd, says: Decider) -> Option<Result<PolicyId, PolicyId>> {
    match says {
        Decider::Policy(index) => Some(Ok(spd.policy(index).id)),
        Decider::FragmentPorts(index) => Some(Err(spd.policy(index).id)),
        Decider::None => None,
    }
}

/// Flows at every bound and beside it.
fn flows(family: Family) -> Vec<Flow> {
    let mut flows = Vec::new();
    let uppers = [
        (TCP, Upper::Ports { source: 1, destination: 80 }, false),
        (UDP, Upper::Ports { source: 82, destination: 1 }, false),
        (TCP, Upper::Fragment, false),
        (TCP, Upper::Ports { source: 1, destination: 80 }, true),
    ];
    for (place, source) in BOUNDS.into_iter().chain([11, 22]).enumerate() {
        for (other, destination) in BOUNDS.into_iter().chain([8, 19]).enumerate() {
            let (protocol, upper, opens) = uppers[(place + other) % uppers.len()];
            flows.push(Flow { family, source, destination, protocol, upper, opens });
        }
    }
    flows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(56))]

    // FC-16, FC-17, FC-18, FC-34, FC-37, FC-41, FC-52
    #[test]
    fn a_database_with_a_past_says_what_one_without_says(
        first in proptest::collection::vec(policy(), 0..12),
        room in 0usize..40,
        steps in proptest::collection::vec(step(), 1..12),
    ) {
        let mut life = Life::new(first, room);
        life.check();
        for step in steps {
            life.step(step);
        }
    }
}

/// Everything from one address to another.
fn between(id: u32, priority: u32, source: u128, destination: u128) -> Policy {
    let host = |value| vec![AddressRange { family: Family::V4, lo: value, hi: value }];
    Policy {
        id: PolicyId(id),
        name: format!("p{id}"),
        action: Action::Discard,
        priority,
        only: Some(Direction::Outbound),
        group: None,
        ingress: None,
        selector: Selector {
            local: host(source),
            remote: host(destination),
            protocol: None,
            upper: UpperSelector::Any,
        },
    }
}

const OUT: DomainId = common(Book::SpdOut, Family::V4);

#[test]
fn a_generation_rises_with_each_change_of_its_domain_alone() {
    // FC-17
    let spd = Spd::with_room(vec![between(0, 1, 1, 2)], 200).unwrap();
    let added = spd.changed(&[], vec![between(1, 1, 3, 4)]).unwrap();
    let deleted = added.changed(&[PolicyIndex(1)], Vec::new()).unwrap();
    let many = (2..102).map(|id| between(id, 1, 5, 6)).collect();
    let at_once = deleted.changed(&[], many).unwrap();
    let generations = [&spd, &added, &deleted, &at_once].map(|spd| spd.generation(OUT).0);
    assert_eq!(generations, [1, 2, 3, 4]);
    // Packets between protected ports are asked about in one question with what leaves.
    let through = common(Book::GroupIn, Family::V4);
    assert_eq!(at_once.generation(through), Generation(4));
    for other in at_once.domains().filter(|domain| ![OUT, through].contains(domain)) {
        assert_eq!(at_once.generation(other), Generation(1), "FC-16");
    }
    assert_eq!(at_once.wraps(), 0);
}

#[test]
fn a_generation_begins_anew_behind_the_highest_and_that_is_told() {
    // FC-22
    let mut spd = Spd::with_room(Vec::new(), 4).unwrap();
    spd.generations[usize::from(OUT.0)] = Generation(u32::MAX);
    let next = spd.changed(&[], vec![between(0, 1, 1, 2)]).unwrap();
    assert_eq!((next.generation(OUT), next.wraps()), (Generation(1), 1));
    let folded_in = next.on(&next.rebuilt().unwrap(), &next).unwrap();
    assert_eq!((folded_in.generation(OUT), folded_in.wraps()), (Generation(1), 1));
}

#[test]
fn what_went_twice_is_counted_once() {
    let mut spd = Spd::with_room(vec![between(0, 1, 1, 2)], 4).unwrap();
    for _ in 0..2 {
        spd = spd.changed(&[spd.named("p0").unwrap()], Vec::new()).unwrap();
        assert_eq!(spd.rules(OUT), 0);
        spd = spd.changed(&[], vec![between(0, 1, 1, 2)]).unwrap();
        assert_eq!(spd.rules(OUT), 1);
    }
}

#[test]
fn where_no_slot_is_left_all_are_given_anew() {
    // FC-52
    let spd = Spd::with_room(vec![between(0, 1, 1, 2)], 2).unwrap();
    let spd = spd.changed(&[PolicyIndex(0)], vec![between(1, 1, 1, 2)]).unwrap();
    let third = between(2, 1, 3, 4);
    assert_eq!(spd.changed(&[], vec![third.clone()]).unwrap_err(), NeedsRenewal::Slots);
    let (renewed, slots) = spd.renewed(vec![between(1, 1, 1, 2), third], 8).unwrap();
    assert_eq!((slots, renewed.capacity(), renewed.slots()), (Slots::GivenAnew, 8, 2));
    assert!(renewed.domains().all(|domain| renewed.generation(domain) > spd.generation(OUT)));
}

#[test]
fn a_base_is_taken_only_by_what_came_of_the_one_it_was_made_of() {
    let spd = Spd::with_room(vec![between(0, 1, 1, 2)], 8).unwrap();
    let one = spd.changed(&[], vec![between(1, 1, 3, 4)]).unwrap();
    let other = spd.changed(&[], vec![between(2, 1, 5, 6)]).unwrap();
    let rebuilt = one.rebuilt().unwrap();
    assert!(one.on(&rebuilt, &one).is_ok());
    assert_eq!(other.on(&rebuilt, &one).unwrap_err(), NeedsRenewal::Base);
    let elsewhere = Spd::with_room(vec![between(0, 1, 1, 2)], 8).unwrap();
    assert_eq!(elsewhere.on(&rebuilt, &one).unwrap_err(), NeedsRenewal::Base);
}

#[test]
fn a_base_is_taken_though_no_policy_names_a_port_any_more() {
    // Domains stay what they are: what is folded in again and again would never be taken.
    let at_port = Policy { ingress: Some([3].into()), ..between(2, 5, 1, 2) };
    let spd = Spd::with_room(vec![between(1, 1, 1, 2), at_port], 16).unwrap();
    let alone = spd.changed(&[spd.named("p2").unwrap()], vec![]).unwrap();
    let folded_in = alone.on(&alone.rebuilt().unwrap(), &alone).unwrap();
    assert_eq!((folded_in.changes(), folded_in.len()), (0, 1));
    assert!(folded_in.domains().eq(alone.domains()) && folded_in.class(3) == alone.class(3));
    for domain in alone.domains() {
        assert_eq!(folded_in.generation(domain), alone.generation(domain));
        assert_eq!(folded_in.rules(domain), alone.rules(domain));
    }
}

#[test]
fn a_list_in_front_of_the_base_has_a_bound() {
    let spd = Spd::with_room(Vec::new(), 10_000).unwrap();
    let many = |count: usize| (0..count as u32).map(|id| between(id, 1, 1, 2)).collect();
    assert!(spd.changed(&[], many(Spd::MAX_CHANGES)).is_ok());
    let refused = spd.changed(&[], many(Spd::MAX_CHANGES + 1)).unwrap_err();
    assert_eq!(refused, NeedsRenewal::Changes);
    // One policy of many rules is many.
    let mut wide = between(0, 1, 1, 2);
    let hosts = 0..=Spd::MAX_RULES_IN_FRONT as u128;
    wide.selector.local =
        hosts.map(|value| AddressRange { family: Family::V4, lo: value, hi: value }).collect();
    assert_eq!(spd.changed(&[], vec![wide.clone()]).unwrap_err(), NeedsRenewal::Changes);
    wide.selector.local.pop();
    assert_eq!(spd.changed(&[], vec![wide]).unwrap().rules(OUT), Spd::MAX_RULES_IN_FRONT);
}

/// Six policies of everything in front of as many networks of 256 addresses.
fn hidden(networks: u32) -> Vec<Policy> {
    let policy = |id: u32| {
        let any = AddressRange::any(Family::V4);
        let mut policy = between(id, if id < 6 { 20 - id } else { 1 }, 0, 0);
        let lo = u128::from(id) << 8;
        let network = AddressRange { lo, hi: lo + 255, ..any };
        policy.selector.local = vec![any];
        policy.selector.remote = vec![if id < 6 { any } else { network }];
        policy
    };
    (0..6 + networks).map(policy).collect()
}

/// Returns a database's answers for flows to some of those networks; they must equal the linear
/// search's.
fn says(spd: &Spd) -> Vec<Decider> {
    let upper = Upper::Ports { source: 1, destination: 80 };
    let to = |network: u128| Flow {
        family: Family::V4,
        source: 7,
        destination: (network * 37) << 8 | 3,
        protocol: TCP,
        upper,
        opens: false,
    };
    let flows: Vec<Flow> = (0..300).map(to).collect();
    let mut says = vec![Decider::None; flows.len()];
    spd.classify(OUT, &flows, &mut says);
    for (flow, &says) in flows.iter().zip(&says) {
        assert_eq!(says, spd.search_linear(OUT, flow), "{flow}");
    }
    says
}

// FC-52: what policies have hidden is never searched one by one beyond a bound.
#[test]
fn policies_behind_which_much_hides_go_with_a_base_made_anew() {
    let policies = hidden(8000);
    let mut spd = Spd::with_room(policies.clone(), 20_000).unwrap();
    let as_made = spd.cost(OUT).steps();
    let limit = Budget::default().steps;
    let of = |spd: &Spd, id: u32| spd.named(&format!("p{id}")).unwrap();
    let all: Vec<PolicyIndex> = (0..6).map(|id| of(&spd, id)).collect();
    assert_eq!(spd.changed(&all, vec![]).unwrap_err(), NeedsRenewal::Changes);
    let mut first = 0;
    let last = loop {
        match spd.changed(&[of(&spd, first)], vec![]) {
            Ok(next) => spd = next,
            Err(error) => break error,
        }
        first += 1;
        says(&spd);
        assert_eq!(spd.cost(OUT).steps(), as_made + spd.steps_of_changes());
        assert!((1..=limit).contains(&spd.steps_of_changes()));
    };
    assert_eq!((last, first), (NeedsRenewal::Changes, 2));
    let (renewed, slots) = spd.renewed(policies[6..].to_vec(), 20_000).unwrap();
    assert_eq!((slots, renewed.steps_of_changes()), (Slots::Kept, 0));
    assert!(renewed.cost(OUT).steps() <= limit);
    assert!(renewed.generation(OUT) > spd.generation(OUT));
    let spoken_of = says(&renewed).iter().filter(|says| **says != Decider::None).count();
    assert_eq!(spoken_of, (0..300).filter(|n| (6..8006).contains(&(n * 37))).count());
}

#[test]
fn what_changes_add_to_a_search_is_told_and_gone_with_a_rebuilt_base() {
    let spd = Spd::with_room(hidden(3000), 20_000).unwrap();
    assert_eq!(spd.steps_of_changes(), 0);
    let gone: Vec<PolicyIndex> = (0..6).map(|id| spd.named(&format!("p{id}")).unwrap()).collect();
    let without = spd.changed(&gone, vec![between(9000, 3, 1, 2)]).unwrap();
    assert!(without.steps_of_changes() > 3000 / 16);
    let rebuilt = without.on(&without.rebuilt().unwrap(), &without).unwrap();
    assert_eq!(rebuilt.steps_of_changes(), 0);
    assert!(rebuilt.cost(OUT).steps() < without.cost(OUT).steps() / 4);
    assert_eq!(says(&rebuilt), says(&without));
}

/// Ranges that are the narrower on one side the wider they are on the other, so that many cross in
/// every place and none hides another.
fn hostile(count: u32) -> Vec<Policy> {
    let policy = |id: u32| {
        let mut policy = between(id, id, 0, 0);
        let all = AddressRange::any(Family::V4);
        let inset = |by: u32| AddressRange { lo: by.into(), hi: all.hi - u128::from(by), ..all };
        policy.selector.local = vec![inset(id)];
        policy.selector.remote = vec![inset(count - id)];
        policy
    };
    (0..count).map(policy).collect()
}

#[test]
fn a_set_that_costs_too_much_is_refused_by_name_and_the_old_one_stands() {
    let spd = Spd::with_room(vec![between(0, 1, 1, 2)], 8).unwrap();
    let error = spd.renewed(hostile(10_000), 20_000).unwrap_err();
    let SpdError::TooCostly { book, family, steps, limit, policies } = &error else {
        panic!("{error}")
    };
    assert_eq!((*book, *family), (Book::SpdOut, Family::V4));
    assert!(steps > limit);
    assert!((1..=SpdError::MAX_NAMED).contains(&policies.len()), "{policies:?}");
    let named = format!("those that cost most: {:?}", policies[0]);
    assert!(error.to_string().contains(&named), "{error}");
    assert_eq!(spd.len(), 1);
}
