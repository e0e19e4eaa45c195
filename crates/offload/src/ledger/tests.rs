//! The ledger against a card that does only what the test says.

use policy::{
    Action, AddressRange, GroupMode, GroupSide, PolicyId, Selector, UpperSelector,
    selector::parse_addresses,
};
use wire::Family;

use super::*;
use crate::capabilities::{Ability, RuleAbilities};
use crate::item::Effect;
use crate::placement::Outlook;
use crate::planner::{Problem, plan};

/// A card that has what a test says.
struct Scripted {
    capabilities: Capabilities,
    has: Vec<Handle>,
    packets: u64,
}

impl Card for Scripted {
    fn probe(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn place(&mut self, _: &Item, tag: Tag) {
        self.has.push(tag.handle);
    }

    fn withdraw(&mut self, tag: Tag) {
        self.has.retain(|handle| *handle != tag.handle);
    }

    fn poll(&mut self, _: &mut Vec<CardEvent>) {}

    fn reading(&self, handle: Handle) -> Option<Reading> {
        let reading = Reading { packets: self.packets, bytes: 60 * self.packets, as_of_ms: 0 };
        self.has.contains(&handle).then_some(reading)
    }
}

struct Place {
    rules: Vec<Policy>,
    ledger: Ledger,
    card: Scripted,
    /// Packets by rule.
    counted: fn(u32) -> u64,
}

fn rule(id: u32, action: Action, from: &str) -> Policy {
    let any = vec![AddressRange::any(Family::V4)];
    Policy {
        id: PolicyId(id),
        name: format!("g/{id}"),
        action,
        priority: id,
        only: None,
        group: Some(GroupSide::In),
        ingress: Some([0].into()),
        selector: Selector {
            local: parse_addresses(from).unwrap(),
            remote: any,
            protocol: None,
            upper: UpperSelector::Any,
        },
    }
}

fn permit(id: u32, from: &str) -> Policy {
    rule(id, Action::Permit(GroupMode::Enforce), from)
}

fn deny(id: u32, from: &str) -> Policy {
    rule(id, Action::Deny(GroupMode::Enforce), from)
}

fn key(id: u32) -> RuleKey {
    RuleKey { slot: PolicyIndex(id), family: Family::V4 }
}

fn card(entries: u32) -> Capabilities {
    Capabilities::emulated(RuleAbilities { entries, ..RuleAbilities::default() })
}

impl Place {
    fn of(rules: Vec<Policy>) -> Place {
        let capabilities = card(8);
        let ledger = Ledger::new(capabilities.clone());
        let card = Scripted { capabilities, has: Vec::new(), packets: 0 };
        Place { rules, ledger, card, counted: |_| 1 }
    }

    fn plan(&mut self) -> Plan {
        let rules: Vec<(PolicyIndex, &Policy)> =
            self.rules.iter().map(|policy| (PolicyIndex(policy.id.0), policy)).collect();
        plan(&Problem {
            rules: &rules,
            ports: &[0],
            unused: &[],
            card: self.ledger.card(),
            effect: Effect::Mark,
            own: &[],
            packets: &|slot| (self.counted)(slot.0),
            standing: &self.ledger.standing(),
            most_moves: usize::MAX,
        })
    }

    fn adopt(&mut self) {
        let plan = self.plan();
        self.ledger.adopt(&plan).unwrap();
    }

    /// Orders of a round; the tags that are placed.
    fn order(&mut self) -> Vec<Tag> {
        let orders = self.ledger.orders();
        let tags = orders.place.iter().map(|(tag, _)| *tag).collect();
        orders.give(&mut self.card);
        tags
    }

    fn live(&mut self, tags: &[Tag]) {
        for tag in tags {
            self.ledger.event(&CardEvent::Live(*tag));
        }
    }

    fn look(&mut self) -> Look {
        self.ledger.look(&self.card)
    }

    /// Everything is placed, answered and looked at.
    fn settle(&mut self) {
        for _ in 0..8 {
            let tags = self.order();
            self.live(&tags);
            self.look();
        }
    }

    fn counting(&self) -> Vec<u32> {
        let placements = self.ledger.placements();
        let mut rules: Vec<u32> = placements.rules().map(|placed| placed.rule.slot.0).collect();
        rules.sort_unstable();
        rules
    }

    fn tag(&self, id: u32) -> Tag {
        let handle = self.ledger.handles[&key(id)];
        Tag { handle, incarnation: self.ledger.incarnation }
    }
}

/// One below two.
fn pair() -> Vec<Policy> {
    vec![permit(1, "10.0.0.0/8"), deny(2, "10.1.0.0/16")]
}

#[test]
fn a_rule_counts_when_it_is_answered_looked_at_and_behind_those_that_win() {
    let mut place = Place::of(pair());
    place.adopt();
    let first = place.order();
    assert_eq!(first.len(), 1, "the winner first");
    assert_eq!(place.ledger.state(key(2)).name(), "pending");
    place.live(&first);
    assert_eq!(place.ledger.state(key(2)), State::Live);
    assert!(place.counting().is_empty() && place.order().is_empty(), "not looked at");
    place.look();
    assert_eq!(place.counting(), [2]);
    let second = place.order();
    place.look();
    place.live(&second);
    assert_eq!(place.counting(), [2], "the look was before the answer");
    place.look();
    assert_eq!(place.counting(), [1, 2]);
    let placements = place.ledger.placements();
    assert_eq!(placements.read(second[0].to_bits()), Some(key(1)));
    let other = Tag { incarnation: Incarnation(1), ..second[0] };
    for bits in [other.to_bits(), 0, u64::MAX, second[0].to_bits() + 1] {
        assert_eq!(placements.read(bits), None, "{bits:#x}");
    }
}

#[test]
fn rules_go_into_the_card_by_use_each_behind_its_guards() {
    let mut place = Place::of(vec![
        permit(1, "10.0.0.0/8"),
        permit(2, "11.0.0.0/8"),
        permit(3, "12.0.0.0/8"),
        deny(4, "11.1.0.0/16"),
    ]);
    place.counted = |id| [0, 10, 70, 40, 0][id as usize];
    place.adopt();
    let ordered = |place: &Place, tags: &[Tag]| -> Vec<u32> {
        tags.iter().map(|tag| place.ledger.rule(*tag).unwrap().0.slot.0).collect()
    };
    let first = place.order();
    assert_eq!(ordered(&place, &first), [3, 4, 1], "the second waits for its guard");
    place.live(&first);
    assert!(place.order().is_empty());
    place.look();
    let second = place.order();
    assert_eq!(ordered(&place, &second), [2]);
}

#[test]
fn a_card_is_asked_for_what_it_will_soon_program_and_a_later_plan_chooses_among_the_rest() {
    let rules = (0..60).map(|id| permit(id, &format!("10.{id}.0.0/16"))).collect();
    let mut place = Place::of(rules);
    place.card.capabilities = card(40);
    let Ability::Has(abilities) = &mut place.card.capabilities.rules else { unreachable!() };
    abilities.programming_ms = 100;
    place.look();
    place.counted = |id| u64::from(id) + 1;
    place.adopt();
    let first = place.order();
    assert_eq!(first.len(), LEAST_ADVANCE);
    assert!((44..60).all(|id| place.ledger.state(key(id)) == State::Pending(Outlook::Wanted)));
    assert!(place.order().is_empty(), "it has enough to do");
    assert_eq!(place.ledger.waiting(), 40 - LEAST_ADVANCE);
    // Others are used meanwhile: what was not asked for yet has no place to lose.
    place.counted = |id| if id < 4 { 1000 } else { 1 };
    place.adopt();
    place.live(&first[..4]);
    let second = place.order();
    assert_eq!(second.len(), 4);
    assert!((0..4).all(|id| place.ledger.state(key(id)) == State::Pending(Outlook::Wanted)));
    // No answer to the rest: others do not wait for ever.
    for _ in 0..LATE {
        place.look();
    }
    assert!(place.order().is_empty());
    place.look();
    assert_eq!(place.order().len(), LEAST_ADVANCE);
}

// HA-20
#[test]
fn a_loser_counts_no_more_when_a_winner_goes_and_gets_another_number_when_it_comes_back() {
    let mut place = Place::of(pair());
    place.adopt();
    place.settle();
    let (winner, loser) = (place.tag(2), place.tag(1));
    place.card.has.retain(|handle| *handle != winner.handle);
    place.ledger.event(&CardEvent::Withdrawn(winner));
    assert!(place.counting().is_empty());
    place.adopt();
    place.settle();
    assert_eq!(place.counting(), [1, 2]);
    assert_ne!(place.tag(1), loser, "packets on their way have the old mark");
    assert_eq!(place.ledger.placements().read(loser.to_bits()), None);
}

#[test]
fn a_new_rule_that_wins_puts_those_below_it_in_doubt_and_no_others() {
    let mut place = Place::of(vec![permit(1, "10.0.0.0/8"), permit(2, "11.0.0.0/8")]);
    place.adopt();
    place.settle();
    assert_eq!(place.counting(), [1, 2]);
    let before = place.tag(2);
    let new = deny(3, "10.1.0.0/16");
    let plan = place.plan();
    place.ledger.changed(&[], &[(PolicyIndex(3), &new)]);
    assert_eq!(place.counting(), [2]);
    assert_eq!(place.ledger.state(key(1)), State::Stale(Stale::Changed));
    assert_eq!(place.ledger.adopt(&plan), Err(Outdated), "the plan is of before");
    place.rules.push(new);
    place.adopt();
    place.settle();
    assert_eq!(place.counting(), [1, 2, 3]);
    assert_eq!(place.tag(2), before, "what the change does not concern stays");
    // A rule that decides the same is none of its business.
    let same = permit(4, "10.1.1.0/24");
    place.ledger.changed(&[], &[(PolicyIndex(4), &same)]);
    assert_eq!(place.counting(), [1, 2], "but of the one between");
}

// HA-23
#[test]
fn a_rule_that_goes_takes_only_its_own_entries_along() {
    let mut place = Place::of(vec![deny(1, "10.0.0.0/8"), deny(2, "11.0.0.0/8")]);
    place.adopt();
    place.settle();
    let (gone, stays) = (place.tag(1), place.tag(2));
    place.ledger.changed(&[key(1)], &[]);
    assert_eq!(place.counting(), [2]);
    let orders = place.ledger.orders();
    assert_eq!((orders.withdraw, orders.place), (vec![gone], vec![]));
    assert!(place.ledger.orders().withdraw.is_empty(), "asked once");
    place.ledger.event(&CardEvent::Withdrawn(gone));
    assert_eq!((place.ledger.entries_taken(), place.tag(2)), (1, stays));
}

// HA-10, HA-24
#[test]
fn ten_plans_of_the_same_rules_place_them_once() {
    let mut place = Place::of(pair());
    for _ in 0..10 {
        place.adopt();
        place.settle();
    }
    assert_eq!((place.card.has.len(), place.ledger.entries_taken()), (2, 2));
    place.rules.clear();
    place.ledger.changed(&[key(1), key(2)], &[]);
    place.settle();
    assert!(place.card.has.is_empty());
}

// HA-04
#[test]
fn answers_about_what_is_not_there_change_nothing_and_strays_are_withdrawn() {
    let mut place = Place::of(pair());
    place.adopt();
    place.settle();
    let stray = Tag { handle: Handle::new(4711).unwrap(), incarnation: Incarnation(0) };
    let old = Tag { incarnation: Incarnation(7), ..place.tag(1) };
    let refusal = Refusal { kind: RefusalKind::Full, code: 0, text: "".into() };
    for tag in [stray, old] {
        for event in [
            CardEvent::Withdrawn(tag),
            CardEvent::Refused(tag, refusal.clone()),
            CardEvent::Limit(tag, crate::card::Limit::Hard),
            CardEvent::Acquire(tag),
            CardEvent::Up,
        ] {
            assert_eq!(place.ledger.event(&event), Told::Nothing);
        }
        assert!(place.ledger.orders().withdraw.is_empty());
        assert_eq!(place.ledger.event(&CardEvent::Live(tag)), Told::Nothing);
        assert_eq!(place.ledger.orders().withdraw, [tag]);
    }
    assert_eq!(place.counting(), [1, 2]);
}

// HA-11
#[test]
fn a_card_that_lost_everything_has_nothing_and_is_filled_anew() {
    for event in [CardEvent::Down, CardEvent::Reset, CardEvent::Unplugged, CardEvent::Reloaded] {
        let mut place = Place::of(pair());
        place.adopt();
        place.settle();
        let old = place.tag(2);
        assert_eq!(place.ledger.event(&event), Told::Lost(2));
        assert_eq!(place.ledger.state(key(2)), State::Absent);
        assert!(place.counting().is_empty());
        assert_eq!(place.ledger.event(&event), Told::Lost(0), "told twice");
        place.card.has.clear();
        place.adopt();
        place.settle();
        assert_eq!(place.counting(), [1, 2]);
        assert_eq!(place.ledger.event(&CardEvent::Live(old)), Told::Nothing);
        assert_eq!(place.ledger.placements().read(old.to_bits()), None);
    }
}

#[test]
fn a_look_finds_what_was_forgotten_without_a_word_and_a_card_that_can_other_things() {
    let mut place = Place::of(pair());
    place.adopt();
    place.settle();
    place.card.packets = 7;
    let look = place.look();
    assert!(look.readings.iter().all(|(_, reading)| reading.packets == 7), "{look:?}");
    place.card.packets = 3;
    let look = place.look();
    assert!(look.readings.iter().all(|(_, reading)| reading.packets == 3), "it began anew");
    let winner = place.tag(2);
    place.card.has.retain(|handle| *handle != winner.handle);
    assert_eq!(place.look().missing, [key(2)]);
    assert!(place.counting().is_empty());
    place.adopt();
    place.settle();
    assert_eq!(place.counting(), [1, 2]);
    place.card.capabilities = card(1);
    assert_eq!(place.look().lost, 2);
    assert!(place.counting().is_empty());
    assert_eq!(place.ledger.card(), &card(1));
}

// HA-15
#[test]
fn a_refused_rule_rests_longer_each_time_and_says_why() {
    let mut place = Place::of(vec![permit(1, "10.0.0.0/8")]);
    let refusal = Refusal { kind: RefusalKind::Failed, code: -5, text: "no".into() };
    for rest in [1, 2, 4, 8, 16, 32, 64, 64] {
        place.adopt();
        let tags = place.order();
        assert_eq!(tags.len(), 1);
        let told = place.ledger.event(&CardEvent::Refused(tags[0], refusal.clone()));
        assert_eq!(told, Told::Refused(key(1), refusal.clone()));
        assert_eq!(place.ledger.state(key(1)), State::Refused);
        assert_eq!(place.ledger.refusal(key(1)), Some(&refusal));
        for _ in 0..rest {
            place.adopt();
            assert!(place.order().is_empty());
            place.ledger.end_period();
        }
        place.card.has.clear();
    }
    place.adopt();
    let tags = place.order();
    place.live(&tags);
    place.look();
    assert_eq!((place.counting(), place.ledger.refusal(key(1))), (vec![1], None));
}

#[test]
fn answers_that_do_not_come_are_given_up() {
    let mut place = Place::of(vec![permit(1, "10.0.0.0/8")]);
    place.adopt();
    let tag = place.order()[0];
    for _ in 0..=PATIENCE {
        place.look();
    }
    let refusal = place.ledger.refusal(key(1)).unwrap().to_string();
    assert!(refusal.contains("does not answer"), "{refusal}");
    assert_eq!(place.ledger.orders().withdraw, [tag]);
    for _ in 0..=PATIENCE {
        place.look();
    }
    assert_eq!(place.ledger.orders().withdraw, [tag], "it is still there: asked again");
    place.card.has.clear();
    for _ in 0..=PATIENCE {
        place.look();
    }
    assert_eq!(place.ledger.entries_taken(), 0);
}

#[test]
fn handles_are_never_given_twice_and_end() {
    let mut place = Place::of(vec![permit(1, "10.0.0.0/8")]);
    place.ledger.next = Handle::FIRST_OF_SAS - 1;
    place.adopt();
    let tags = place.order();
    assert_eq!(tags[0].handle.get(), Handle::FIRST_OF_SAS - 1);
    place.ledger.withdraw_all();
    place.order();
    place.ledger.event(&CardEvent::Withdrawn(tags[0]));
    place.adopt();
    assert!(place.order().is_empty(), "no number is left");
    assert_eq!((place.ledger.waiting(), place.counting()), (1, vec![]));
}
