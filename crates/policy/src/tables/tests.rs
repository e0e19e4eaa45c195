//! Verdicts against RFC 4301's own words, and how tables are made from one another.

use super::*;
use proptest::prelude::*;
use wire::Upper;

use crate::book::Direction;
use crate::policy::PolicyId;
use crate::selector::{PortRange, Selector, TcpSegments, UpperSelector};

const BERLIN: SaSetId = SaSetId(7);
const CARLA: SaSetId = SaSetId(9);
const CLASS: PortClass = PortClass(0);

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
        group: None,
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
        UpperSelector::Ports { local: vec![], remote: vec![PortRange { lo: 80, hi: 80 }] };
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
    let (source, destination) = match book.reads() {
        Direction::Outbound => (local, remote),
        Direction::Inbound => (remote, local),
    };
    Flow { family: Family::V4, source, destination, protocol: 6, upper, opens: false }
}

fn judge(tables: &Tables, book: Book, by: Option<SetIndex>, flow: Flow) -> FlowVerdict {
    let scope = tables.scope(CLASS, Question::of(book), Family::V4, by);
    let exit = match book {
        Book::SpdOut => Exit::Outside(CLASS),
        _ => Exit::Other,
    };
    tables.judge(scope, exit, &flow, &mut |_| {})
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
    for book in [Book::SpdIn, Book::SpdOut] {
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
    let scope = |tables: &Tables| {
        tables.scope(CLASS, Question::Enter, Family::V6, tables.sets().get(BERLIN))
    };
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

/// The tables that come of changes, of policies and of sets, are those that are made of all.
#[test]
fn tables_after_changes_count_the_policies_of_each_set_as_tables_made_of_all_do() {
    let (mut spd, mut sets) = (Arc::new(Spd::with_room(policies(), 64).unwrap()), sets());
    let mut tables = Tables::new(spd.clone(), &sets, None).unwrap();
    for number in 0..24u32 {
        let set = SaSetId(20 + number % 5);
        let name = format!("p{}", 10 + number % 5);
        let (removed, added) = match spd.named(&name) {
            Some(slot) => (vec![slot], vec![]),
            None => (vec![], vec![policy(10 + number % 5, Action::Protect(set))]),
        };
        if added.is_empty() {
            let mut still_named = sets.clone();
            still_named.remove(set);
            let refused = Tables::new(spd.clone(), &still_named, Some(&tables)).err();
            assert_eq!(refused, Some(TablesError::UnknownSet(set)), "a policy names it");
            sets.remove(set);
        } else {
            let refused = spd.changed(&removed, added.clone()).unwrap();
            let refused = Tables::new(refused.into(), &sets, Some(&tables)).err();
            assert_eq!(refused, Some(TablesError::UnknownSet(set)), "it is not there yet");
            sets.add(set);
        }
        spd = Arc::new(spd.changed(&removed, added).unwrap());
        let base = tables.actions.base().clone();
        tables = Tables::new(spd.clone(), &sets, Some(&tables)).unwrap();
        assert!(Arc::ptr_eq(tables.actions.base(), &base), "nothing of the base is made anew");
        let alone = Tables::new(spd.clone(), &sets, None).unwrap();
        assert_eq!(tables.uses, alone.uses);
        for (slot, _) in spd.holding() {
            let of = |tables: &Tables| *tables.actions.at(slot.0 as usize);
            assert_eq!(of(&tables), of(&alone));
        }
    }
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
    let highest = ScopeBits::of(4097 * 8).highest_set();
    assert_eq!(highest, SaSetId((1 << 16) - 2));
    assert!(Tables::new(spd.clone(), &[highest].into_iter().collect(), None).is_ok());
    let set = SaSetId(highest.0 + 1);
    let error = Tables::new(spd, &[set].into_iter().collect(), None).unwrap_err();
    assert_eq!(error, TablesError::TooManySets { set, highest });
    assert!(error.to_string().contains("restart the daemon"), "{error}");
}

/// Ports of the worlds below: a protected one and an unprotected one, with groups or without.
const LAN: u16 = 0;
const WAN: u16 = 1;

/// A rule of a port's groups, or a policy, as the test thinks of it.
#[derive(Clone, Debug)]
struct Line {
    book: Book,
    /// The port that a rule of a group is bound to.
    port: u16,
    action: Action,
    source: (u8, u8),
    destination: (u8, u8),
    ports: Option<(u16, u16)>,
    /// Only of a line with ports.
    segments: Option<TcpSegments>,
}

impl Line {
    fn policy(&self, place: usize) -> Policy {
        let of = |(lo, hi): (u8, u8)| vec![format!("10.0.0.{lo}-10.0.0.{hi}").parse().unwrap()];
        let (source, destination) = (of(self.source), of(self.destination));
        let (local, remote) = match self.book {
            Book::SpdIn => (destination, source),
            _ => (source, destination),
        };
        let ports = |(lo, hi)| vec![PortRange { lo, hi }];
        let [local_ports, remote_ports] = match (self.ports, self.book) {
            (None, _) => [vec![], vec![]],
            (Some(range), Book::SpdIn) => [ports(range), vec![]],
            (Some(range), _) => [vec![], ports(range)],
        };
        let upper = match self.segments {
            _ if self.ports.is_none() => UpperSelector::Any,
            None => UpperSelector::Ports { local: local_ports, remote: remote_ports },
            Some(segments) => {
                UpperSelector::Tcp { segments, local: local_ports, remote: remote_ports }
            }
        };
        let group = match self.book {
            Book::SpdIn | Book::SpdOut => None,
            Book::GroupIn => Some(GroupSide::In),
            Book::GroupOut => Some(GroupSide::Out),
        };
        Policy {
            id: PolicyId(place as u32),
            name: format!("line{place}"),
            action: self.action,
            priority: u32::MAX - place as u32,
            only: self.book.direction(),
            group,
            ingress: group.map(|_| [self.port].into()),
            selector: Selector { local, remote, protocol: Some(6), upper },
        }
    }

    /// Says whether a line matches a flow; `None`: no, `Some(false)`: the flow lacks ports.
    fn matches(&self, flow: &Flow) -> Option<bool> {
        let within = |address: u128, (lo, hi): (u8, u8)| {
            (0x0a00_0000 + u128::from(lo)..=0x0a00_0000 + u128::from(hi)).contains(&address)
        };
        if !within(flow.source, self.source) || !within(flow.destination, self.destination) {
            return None;
        }
        match (self.ports, flow.upper) {
            (None, _) => Some(true),
            (Some((lo, hi)), Upper::Ports { destination, .. }) => {
                let is_kind = self.segments.is_none_or(|kind| kind.has(flow));
                (is_kind && (lo..=hi).contains(&destination)).then_some(true)
            }
            (Some(_), _) => Some(false),
        }
    }
}

fn line() -> impl Strategy<Value = Line> {
    let mode = || prop_oneof![3 => Just(GroupMode::Enforce), 1 => Just(GroupMode::Audit)];
    let of_group = prop_oneof![
        mode().prop_map(Action::Permit),
        mode().prop_map(Action::Reflect),
        mode().prop_map(Action::Deny),
        mode().prop_map(Action::NoRule),
    ];
    let of_spd = prop_oneof![
        3 => Just(Action::Protect(BERLIN)),
        1 => Just(Action::Protect(CARLA)),
        2 => Just(Action::Bypass),
        1 => Just(Action::Discard),
    ];
    let kind = prop_oneof![
        (proptest::sample::select(vec![Book::GroupIn, Book::GroupOut]), of_group),
        (proptest::sample::select(vec![Book::SpdIn, Book::SpdOut]), of_spd),
    ];
    let range = || (0u8..4, 0u8..4).prop_map(|(one, other)| (one.min(other), one.max(other)));
    let ports = prop_oneof![Just(None), Just(Some((80u16, 81u16)))];
    let kinds = proptest::sample::select(&TcpSegments::ALL[..]);
    let segments = proptest::option::weighted(0.3, kinds);
    (kind, 0u16..2, range(), range(), ports, segments).prop_map(
        |((book, action), port, source, destination, ports, segments)| Line {
            book,
            port,
            action,
            source,
            destination,
            ports,
            segments,
        },
    )
}

/// Reads the lines naively, one book after the other: returns the action, and the lines that
/// decided.
fn read(
    lines: &[Line],
    books: &[(Book, u16)],
    by: Option<SaSetId>,
    flow: &Flow,
) -> (FlowAction, Vec<usize>) {
    let (mut action, mut deciders) = (FlowAction::Permit, Vec::new());
    let refuse = FlowAction::Refuse;
    let place_of = |set| if set == BERLIN { SetIndex(0) } else { SetIndex(1) };
    for &(book, port) in books {
        let is_group = matches!(book, Book::GroupIn | Book::GroupOut);
        let of_book =
            |line: &&(usize, &Line)| line.1.book == book && (!is_group || line.1.port == port);
        let numbered: Vec<_> = lines.iter().enumerate().collect();
        let mut of_book = numbered.iter().filter(of_book).peekable();
        if is_group && of_book.peek().is_none() {
            continue; // a port without groups
        }
        let found = of_book.find_map(|(place, line)| Some((*place, *line, line.matches(flow)?)));
        deciders.extend(found.map(|(place, ..)| place));
        let said = found.map(|(_, line, whole)| (line.action, whole));
        use GroupMode::{Audit, Enforce};
        action = match (book, said) {
            (Book::GroupIn | Book::GroupOut, None) => refuse(Refusal::GroupNoMatch),
            (
                _,
                Some((
                    Action::Permit(Audit)
                    | Action::Reflect(Audit)
                    | Action::Deny(Audit)
                    | Action::NoRule(Audit),
                    _,
                )),
            ) => action,
            (Book::SpdIn, Some((_, false))) | (_, Some((_, false))) => {
                refuse(Refusal::FragmentPorts)
            }
            (_, Some((Action::Permit(Enforce) | Action::Reflect(Enforce), _))) => action,
            (_, Some((Action::Deny(Enforce), _))) => refuse(Refusal::GroupDeny),
            (_, Some((Action::NoRule(Enforce), _))) => refuse(Refusal::GroupNoMatch),
            (Book::SpdIn, Some((Action::Protect(set), _))) if by == Some(set) => FlowAction::Permit,
            (Book::SpdIn, _) if by.is_some() => refuse(Refusal::SelectorMismatch),
            (Book::SpdIn, Some((Action::Protect(_), _))) => refuse(Refusal::Unprotected),
            (_, Some((Action::Protect(set), _))) => FlowAction::Protect(place_of(set)),
            (_, Some((Action::Bypass, _))) => FlowAction::Permit,
            (_, Some((Action::Discard, _))) => refuse(Refusal::Discard),
            (_, None) => refuse(Refusal::NoMatch),
        };
        if matches!(action, FlowAction::Refuse(_)) {
            break;
        }
    }
    (action, deciders)
}

/// Port of arrival, question, SA set, way out.
type Asking = (u16, Question, Option<SetIndex>, Exit);

fn some_flow() -> impl Strategy<Value = Flow> {
    let upper = prop_oneof![
        3 => (79u16..=82).prop_map(|destination| Upper::Ports { source: 1, destination }),
        1 => Just(Upper::Fragment),
    ];
    (0u128..5, 0u128..5, upper, any::<bool>()).prop_map(|(source, destination, upper, opens)| {
        Flow {
            family: Family::V4,
            source: 0x0a00_0000 + source,
            destination: 0x0a00_0000 + destination,
            protocol: 6,
            upper,
            opens: opens && upper != Upper::Fragment,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    // FC-24
    #[test]
    fn books_are_asked_in_turn_and_the_first_refusal_decides(
        lines in proptest::collection::vec(line(), 0..14),
        flows in proptest::collection::vec(some_flow(), 1..80),
    ) {
        let policies = lines.iter().enumerate().map(|(place, line)| line.policy(place)).collect();
        let tables = Tables::new(Spd::new(policies).unwrap().into(), &sets(), None).unwrap();
        let (lan, wan) = (tables.spd().class(LAN), tables.spd().class(WAN));
        let spd = |book| (book, u16::MAX);
        let (inside, outside) = (Exit::Inside(lan), Exit::Outside(wan));
        let (into, out) = (Book::GroupIn, Book::GroupOut);
        let berlin = Some(SetIndex(0));
        let all_in = vec![(into, WAN), spd(Book::SpdIn), (out, LAN)];
        let all_out = vec![(into, LAN), spd(Book::SpdOut), (out, WAN)];
        // Port of arrival, question, SA set, way out; and the books that are then asked.
        let rows: [(Asking, Vec<(Book, u16)>); 9] = [
            ((WAN, Question::Enter, berlin, inside), all_in.clone()),
            ((WAN, Question::Enter, None, inside), all_in),
            ((WAN, Question::Enter, None, outside), vec![(into, WAN), spd(Book::SpdIn)]),
            ((WAN, Question::Enter, berlin, Exit::Other), vec![(into, WAN), spd(Book::SpdIn)]),
            ((WAN, Question::Leave, None, outside), vec![spd(Book::SpdOut), (out, WAN)]),
            ((WAN, Question::Leave, None, inside), vec![(out, LAN)]),
            ((LAN, Question::Through, None, inside), vec![(into, LAN), (out, LAN)]),
            ((LAN, Question::Through, None, outside), all_out),
            ((LAN, Question::Through, None, Exit::Inside(wan)), vec![(into, LAN), (out, WAN)]),
        ];
        let mut by_class = std::collections::HashMap::new();
        for ((port, question, opened_by, exit), books) in rows {
            let class = tables.spd().class(port);
            let scope = tables.scope(class, question, Family::V4, opened_by);
            let mut verdicts = vec![FlowVerdict::NOT_ASKED; flows.len()];
            tables.classify(scope, exit, &flows, &mut verdicts);
            let egress = tables.egress_class(scope, exit);
            let set = opened_by.map(|_| BERLIN);
            for (flow, verdict) in flows.iter().zip(&verdicts) {
                let (action, deciders) = read(&lines, &books, set, flow);
                let name = |slot: PolicyIndex| tables.spd().policy(slot).id.0 as usize;
                prop_assert_eq!(verdict.action, action, "{:?} {:?} {}", question, exit, flow);
                let told: Vec<usize> = verdict.deciders.slots().map(name).collect();
                prop_assert_eq!(&told, &deciders, "{:?} {:?} {}", question, exit, flow);
                // A verdict that admits a way out is the one that is given for it.
                prop_assert!(verdict.egress.admits(egress));
                // As a cache remembers it: where no rule asks, all segments of a flow are alike.
                let opens = flow.opens && tables.tells_segments(scope);
                let remembered = (scope, Flow { opens, ..*flow });
                for (other, of_other) in by_class.entry(remembered).or_insert(Vec::new()) {
                    let (other, of_other): (&FlowVerdict, &u16) = (other, of_other);
                    if other.egress.admits(egress) && other.is_asked() {
                        prop_assert_eq!(other.action, verdict.action);
                        prop_assert_eq!(other.deciders, verdict.deciders);
                    }
                    if verdict.egress.admits(*of_other) && verdict.is_asked() {
                        prop_assert_eq!(other.action, verdict.action);
                    }
                }
                by_class.get_mut(&remembered).unwrap().push((*verdict, egress));
                let mut asked = Vec::new();
                let again = tables.judge(scope, exit, flow, &mut |told| asked.push(told));
                prop_assert_eq!(again, *verdict);
                let decided: Vec<_> = asked.iter().filter_map(|told| told.decider.slot()).collect();
                prop_assert_eq!(decided, verdict.deciders.slots().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_port_that_knows_the_connection_does_not_ask_its_groups(
        lines in proptest::collection::vec(line(), 0..14),
        flows in proptest::collection::vec(some_flow(), 1..80),
        knows: [bool; 2],
    ) {
        let policies = lines.iter().enumerate().map(|(place, line)| line.policy(place)).collect();
        let tables = Tables::new(Spd::new(policies).unwrap().into(), &sets(), None).unwrap();
        let [lan, wan] = [LAN, WAN].map(|port| tables.spd().class(port));
        let (into, out) = (Book::GroupIn, Book::GroupOut);
        let reflects = |port: u16, line: &Line| {
            line.port == port && matches!(line.action, Action::Reflect(_))
        };
        let is_tracked = |port| lines.iter().any(|line| reflects(port, line));
        let rows = [
            (WAN, Question::Enter, Exit::Inside(lan), [true, true], Some(Book::SpdIn)),
            (WAN, Question::Enter, Exit::Outside(wan), [true, false], Some(Book::SpdIn)),
            (WAN, Question::Leave, Exit::Outside(wan), [false, true], Some(Book::SpdOut)),
            (LAN, Question::Through, Exit::Outside(wan), [true, true], Some(Book::SpdOut)),
            (LAN, Question::Through, Exit::Inside(lan), [true, true], None),
        ];
        for (port, question, exit, sides, spd) in rows {
            let scope = tables.scope(tables.spd().class(port), question, Family::V4, None);
            let egress = match exit {
                Exit::Inside(class) | Exit::Outside(class) if class == lan => LAN,
                _ => WAN,
            };
            let tracks = Tracks {
                ingress: sides[0] && is_tracked(port),
                egress: sides[1] && is_tracked(egress),
            };
            prop_assert_eq!(tables.tracks(scope, exit), tracks);
            let mut said = vec![TrackedVerdict::NOT_ASKED; flows.len()];
            tables.classify_tracked(scope, exit, &flows, &mut said);
            let mut plain = vec![FlowVerdict::NOT_ASKED; flows.len()];
            tables.classify(scope, exit, &flows, &mut plain);
            for ((flow, said), plain) in flows.iter().zip(&said).zip(&plain) {
                let (action, deciders) = (plain.action, plain.deciders);
                prop_assert_eq!((said.plain().action, said.plain().deciders), (action, deciders));
                prop_assert_eq!(said.tracks, tracks);
                // A rule that every other test would notice.
                let rule = |knows: bool, tracks: bool| (knows && tracks).then_some(PolicyIndex(99));
                let known = KnownConnections {
                    ingress: rule(knows[0], tracks.ingress),
                    egress: rule(knows[1], tracks.egress),
                };
                let mut books: Vec<(Book, u16)> = Vec::new();
                books.extend((sides[0] && known.ingress.is_none()).then_some((into, port)));
                books.extend(spd.map(|book| (book, u16::MAX)));
                books.extend((sides[1] && known.egress.is_none()).then_some((out, egress)));
                let (action, _) = read(&lines, &books, None, flow);
                let with = said.with(known);
                prop_assert_eq!(with.action, action);
                let named = with.deciders.slots().filter(|slot| *slot == PolicyIndex(99)).count();
                let asked = [known.ingress, known.egress].iter().flatten().count();
                prop_assert!(named == asked || !with.passes() && named <= asked);
                // What reflects is a reflect rule, and the first that matches.
                let books = [(GroupSide::In, into, port), (GroupSide::Out, out, egress)];
                for ((side, book, port), is_asked) in books.into_iter().zip(sides) {
                    let first = lines.iter().position(|line| {
                        line.book == book && line.port == port && line.matches(flow).is_some()
                    });
                    let reflects = first.filter(|first| {
                        let line = &lines[*first];
                        is_asked
                            && match line.action {
                                // No connection is known by a fragment: it makes none either.
                                Action::Reflect(GroupMode::Audit) => true,
                                Action::Reflect(_) => line.matches(flow) == Some(true),
                                _ => false,
                            }
                    });
                    let name = |slot: PolicyIndex| tables.spd().policy(slot).id.0 as usize;
                    let said = said.reflects(side).map(name);
                    if is_asked && lines.iter().any(|line| line.book == book && line.port == port) {
                        let by_book = DomainId::new(tables.spd().class(port), book, Family::V4);
                        prop_assert_eq!(tables.reflects(by_book, flow).map(name), reflects);
                    }
                    prop_assert_eq!(said, reflects);
                }
            }
        }
    }
}
