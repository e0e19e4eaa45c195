//! Verdicts against RFC 4301's own words, and how tables are made from one another.

use super::*;
use crate::book::Direction;
use crate::policy::PolicyId;
use crate::selector::{Selector, UpperSelector};
use wire::Upper;

const BERLIN: SaSetId = SaSetId(7);
const CARLA: SaSetId = SaSetId(9);
const CLASS: IngressClass = IngressClass(0);

fn sets() -> SetPlaces {
    [BERLIN, CARLA].into_iter().collect()
}

/// A policy for what lies behind 10.`id`.0.0/16.
fn policy(id: u32, action: Action) -> Policy {
    Policy {
        id: PolicyId(id),
        name: format!("p{id}"),
        action,
        priority: 1,
        only: None,
        ingress: None,
        selector: Selector {
            local: vec!["0.0.0.0/0".parse().unwrap()],
            remote: vec![format!("10.{id}.0.0/16").parse().unwrap()],
            protocol: None,
            upper: UpperSelector::Any,
        },
    }
}

fn policies() -> Vec<Policy> {
    let with_ports =
        UpperSelector::Ports { local: vec![], remote: vec![crate::PortRange { lo: 80, hi: 80 }] };
    let mut web = policy(4, Action::Bypass);
    (web.selector.protocol, web.selector.upper) = (Some(6), with_ports);
    vec![
        policy(1, Action::Protect(BERLIN)),
        policy(2, Action::Bypass),
        policy(3, Action::Discard),
        web,
    ]
}

fn tables() -> Tables {
    Tables::new(Spd::with_room(policies(), 64).unwrap().into(), &sets(), None).unwrap()
}

/// A packet to or from 10.`network`.0.1.
fn flow(book: Book, network: u128, upper: Upper) -> Flow {
    let (local, remote) = (0x0909_0909, 0x0a00_0001 | network << 16);
    let (source, destination) = match book {
        Book::SpdOut => (local, remote),
        Book::SpdIn => (remote, local),
    };
    Flow { family: Family::V4, source, destination, protocol: 6, upper }
}

fn judge(tables: &Tables, book: Book, by: Option<SetIndex>, flow: Flow) -> FlowVerdict {
    let scope = tables.scope(CLASS, book, Family::V4, by);
    tables.judge(scope, &flow, &mut |_| {})
}

#[test]
fn each_action_is_read_as_the_packet_passes() {
    let (tables, refuse) = (tables(), FlowAction::Refuse);
    let (berlin, carla) = (SetIndex(0), SetIndex(1));
    let ports = Upper::Ports { source: 1, destination: 2 };
    let mismatch = refuse(Refusal::SelectorMismatch);
    // Network, to leave, came in clear, opened by Berlin's SA, by Carla's.
    let rows = [
        (1, FlowAction::Protect(berlin), refuse(Refusal::Unprotected), FlowAction::Permit),
        (2, FlowAction::Permit, FlowAction::Permit, mismatch),
        (3, refuse(Refusal::Discard), refuse(Refusal::Discard), mismatch),
        (4, refuse(Refusal::NoMatch), refuse(Refusal::NoMatch), mismatch),
        (5, refuse(Refusal::NoMatch), refuse(Refusal::NoMatch), mismatch),
    ];
    for (network, out, clear, opened) in rows {
        let of = |book, by| judge(&tables, book, by, flow(book, network, ports)).action;
        assert_eq!(of(Book::SpdOut, None), out, "network {network}");
        assert_eq!(of(Book::SpdIn, None), clear, "network {network}");
        assert_eq!(of(Book::SpdIn, Some(berlin)), opened, "network {network}");
        assert_eq!(of(Book::SpdIn, Some(carla)), mismatch, "network {network}");
    }
    for book in Book::ALL {
        let verdict = judge(&tables, book, None, flow(book, 4, Upper::Fragment));
        assert_eq!(verdict.action, refuse(Refusal::FragmentPorts));
        let web = tables.spd().named("p4").unwrap();
        assert_eq!(verdict.deciders.slots().collect::<Vec<_>>(), [web]);
    }
}

#[test]
fn a_verdict_names_its_rule_and_says_whether_one_was_asked() {
    let tables = tables();
    let of = |network| judge(&tables, Book::SpdOut, None, flow(Book::SpdOut, network, Upper::None));
    for network in 1..=3 {
        let slot = tables.spd().named(&format!("p{network}")).unwrap();
        assert_eq!(of(network).deciders, Deciders::one(slot));
        assert!(of(network).is_asked() && !of(network).is_negative());
    }
    assert!(of(5).is_negative() && of(5).is_asked() && of(5).deciders.is_empty());
    assert!(!FlowVerdict::NOT_ASKED.is_asked() && !FlowVerdict::NOT_ASKED.is_negative());
}

#[test]
fn a_set_keeps_its_place_as_long_as_it_is_there() {
    let mut sets = sets();
    let places = |sets: &SetPlaces| sets.iter().collect::<Vec<_>>();
    assert_eq!(places(&sets), [(SetIndex(0), BERLIN), (SetIndex(1), CARLA)]);
    sets.remove(BERLIN);
    assert_eq!((sets.get(BERLIN), sets.get(CARLA)), (None, Some(SetIndex(1))));
    assert_eq!((sets.add(SaSetId(11)), sets.add(CARLA)), (SetIndex(0), SetIndex(1)));
    assert_eq!((sets.add(BERLIN), sets.id(SetIndex(2))), (SetIndex(2), BERLIN));
    let tables = tables();
    let moved = Tables::new(tables.spd().clone(), &sets, Some(&tables)).unwrap();
    let protect = flow(Book::SpdOut, 1, Upper::None);
    let verdict = judge(&moved, Book::SpdOut, None, protect);
    assert_eq!(verdict.action, FlowAction::Protect(SetIndex(2)), "not what was said before");
    let scope =
        |tables: &Tables| tables.scope(CLASS, Book::SpdIn, Family::V6, tables.sets().get(BERLIN));
    assert_eq!(scope(&tables), scope(&moved), "a scope is of the set, not of its place");
}

#[test]
fn what_is_the_same_is_taken_from_the_tables_before() {
    let tables = tables();
    let gone = tables.spd().named("p1").unwrap();
    let spd = tables.spd().changed(&[gone], vec![policy(5, Action::Protect(CARLA))]).unwrap();
    let next = Tables::new(spd.into(), &sets(), Some(&tables)).unwrap();
    assert!(Arc::ptr_eq(next.actions.base(), tables.actions.base()));
    let mut more = sets();
    more.add(SaSetId(11));
    let with_more = Tables::new(next.spd().clone(), &more, Some(&next)).unwrap();
    assert!(Arc::ptr_eq(with_more.actions.base(), tables.actions.base()));
    let of = |network| judge(&next, Book::SpdOut, None, flow(Book::SpdOut, network, Upper::None));
    assert_eq!(of(5).action, FlowAction::Protect(SetIndex(1)));
    assert_eq!(of(1).action, FlowAction::Refuse(Refusal::NoMatch));
    let alone = Tables::new(next.spd().clone(), &sets(), None).unwrap();
    assert!(alone.actions.iter().eq(next.actions.iter()));
}

#[test]
fn a_policy_must_not_name_a_set_that_is_not_there() {
    let tables = tables();
    let unknown = |spd: Spd, sets: &SetPlaces| Tables::new(spd.into(), sets, Some(&tables)).err();
    let spd = || Spd::clone(tables.spd());
    assert_eq!(
        unknown(spd(), &[CARLA].into_iter().collect()),
        Some(TablesError::UnknownSet(BERLIN))
    );
    let one_more = spd().changed(&[], vec![policy(5, Action::Protect(SaSetId(8)))]).unwrap();
    assert_eq!(unknown(one_more.clone(), &sets()), Some(TablesError::UnknownSet(SaSetId(8))));
    // One that went may name a set that went with it.
    let gone = one_more.changed(&[one_more.named("p5").unwrap()], vec![]).unwrap();
    assert_eq!(unknown(gone, &sets()), None);
}

#[test]
fn a_set_number_that_fits_into_no_scope_is_refused() {
    let ingress: Vec<u16> = (0..4096).collect();
    let mut named = policy(1, Action::Bypass);
    (named.ingress, named.only) = (Some(ingress.into()), Some(Direction::Outbound));
    let spd = Arc::new(Spd::new(vec![named]).unwrap());
    let highest = ScopeBits::of(4097 * 4).highest_set();
    assert_eq!(highest, SaSetId((1 << 17) - 2));
    assert!(Tables::new(spd.clone(), &[highest].into_iter().collect(), None).is_ok());
    let set = SaSetId(highest.0 + 1);
    let error = Tables::new(spd, &[set].into_iter().collect(), None).unwrap_err();
    assert_eq!(error, TablesError::TooManySets { set, highest });
    assert!(error.to_string().contains("restart the daemon"), "{error}");
}
