//! The card by itself: what it takes in, when, and what it says.

use std::sync::Arc;

use offload::{
    Ability, CardRule, Effect, Incarnation, Order, Pattern, RuleAbilities, Segments, Span,
    UpperPattern,
};

use super::*;

fn capabilities(change: impl FnOnce(&mut RuleAbilities)) -> Capabilities {
    let mut rules = RuleAbilities { entries: 4, ..RuleAbilities::default() };
    change(&mut rules);
    Capabilities::emulated(rules)
}

fn card() -> EmulatedCard {
    EmulatedCard::new(capabilities(|_| {}), 7)
}

fn tag(number: u32) -> Tag {
    Tag { handle: Handle::new(number).unwrap(), incarnation: Incarnation(0) }
}

/// A rule for UDP to a port, or for everything.
fn item(rank: u64, ports: &[u16], to_port: Option<u16>) -> Item {
    let any = Span { first: [0, 0, 0, 0].into(), last: [255, 255, 255, 255].into() };
    let upper = to_port.map_or(UpperPattern::Any, |port| UpperPattern::Ports {
        protocol: 17,
        source: (0, 0xffff),
        destination: (port, port),
        segments: Segments::All,
    });
    let patterns = [Pattern { source: any, destination: any, upper }].into();
    Item::Rule(Arc::new(CardRule { ports: ports.into(), rank, effect: Effect::Mark, patterns }))
}

/// UDP from 10.0.0.1 port 1 to 10.0.0.2.
fn frame(to_port: u16) -> Vec<u8> {
    let [high, low] = to_port.to_be_bytes();
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let ip = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    [&ethernet[..], &ip, &[0, 1, high, low, 0, 8, 0, 0]].concat()
}

fn told(card: &mut EmulatedCard) -> Vec<CardEvent> {
    let mut events = Vec::new();
    card.poll(&mut events);
    events
}

fn refused(event: &CardEvent) -> Option<(RefusalKind, i32)> {
    match event {
        CardEvent::Refused(_, refusal) => Some((refusal.kind, refusal.code)),
        _ => None,
    }
}

#[test]
fn programming_takes_time_and_operations_are_done_one_after_the_other() {
    let mut card = card();
    card.place(&item(1, &[0], None), tag(1));
    card.place(&item(2, &[0], None), tag(2));
    card.withdraw(tag(1));
    card.advance(4);
    assert!(told(&mut card).is_empty() && card.entries() == 0);
    assert_eq!(card.receive(0, &frame(53)).mark, 0);
    card.advance(5);
    assert_eq!(told(&mut card), [CardEvent::Live(tag(1))]);
    assert_eq!(card.receive(0, &frame(53)).mark, tag(1).to_bits());
    card.advance(100);
    assert_eq!(told(&mut card), [CardEvent::Live(tag(2)), CardEvent::Withdrawn(tag(1))]);
    assert_eq!(card.receive(0, &frame(53)).mark, tag(2).to_bits());
    let reading = card.reading(tag(2).handle).unwrap();
    assert_eq!((reading.packets, reading.bytes, reading.as_of_ms), (1, 42, 100));
    assert_eq!(card.reading(tag(1).handle), None);
}

// HA-14
#[test]
fn the_capacity_is_the_whole_cards_and_a_rule_is_in_it_whole_or_not_at_all() {
    let mut card = card();
    card.place(&item(1, &[0, 1, 2], None), tag(1));
    card.place(&item(2, &[0, 1], None), tag(2));
    card.place(&item(3, &[5], None), tag(3));
    card.place(&item(3, &[6], None), tag(4));
    card.advance(100);
    let events = told(&mut card);
    assert_eq!(events[0], CardEvent::Live(tag(1)));
    assert_eq!(refused(&events[1]), Some((RefusalKind::Full, NO_SPACE)));
    assert_eq!(events[2], CardEvent::Live(tag(3)));
    assert_eq!(refused(&events[3]), Some((RefusalKind::Full, NO_SPACE)));
    assert_eq!(card.entries(), 4);
}

// HA-04
#[test]
fn withdrawing_what_is_not_there_takes_nothing_else_out_and_no_name_is_taken_twice() {
    let mut card = card();
    card.place(&item(1, &[0], None), tag(1));
    card.withdraw(tag(9));
    card.withdraw(Tag { incarnation: Incarnation(3), ..tag(1) });
    card.place(&item(2, &[0], None), tag(1));
    card.advance(100);
    let events = told(&mut card);
    assert_eq!(events[1], CardEvent::Withdrawn(tag(9)));
    assert_eq!(refused(&events[3]), Some((RefusalKind::Failed, INPUT_OUTPUT)));
    assert_eq!(card.tags().collect::<Vec<_>>(), [tag(1)]);
}

// HA-28
#[test]
fn a_card_with_an_order_tags_by_rank_and_one_without_by_any() {
    let marks = |order| {
        let mut card = EmulatedCard::new(capabilities(|rules| rules.order = order), 3);
        for number in 1..=3 {
            card.place(&item(u64::from(number % 3), &[0], None), tag(number));
        }
        card.advance(100);
        let mut marks: Vec<u64> = (0..64).map(|_| card.receive(0, &frame(1)).mark).collect();
        marks.sort_unstable();
        marks.dedup();
        marks
    };
    assert_eq!(marks(Order::Priority), [tag(2).to_bits()]);
    assert_eq!(marks(Order::None), [1, 2, 3]);
}

// HA-26, HA-09
#[test]
fn ports_are_compared_as_they_are_on_the_wire_and_rules_are_a_ports() {
    let mut card = card();
    card.place(&item(1, &[0], Some(0x0102)), tag(1));
    card.advance(100);
    assert_eq!(card.receive(0, &frame(0x0102)).mark, tag(1).to_bits());
    assert_eq!(card.receive(0, &frame(0x0201)).mark, 0);
    assert_eq!(card.receive(1, &frame(0x0102)).mark, 0, "another port");
    // Where the ports end.
    for short in 0..38 {
        assert_eq!(card.receive(0, &frame(0x0102)[..short]).mark, 0, "{short} bytes");
    }
    let mut tagged = frame(0x0102);
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    assert_eq!(card.receive(0, &tagged).mark, 0, "a VLAN tag");
}

// HA-27
#[test]
fn a_flow_keeps_its_queue_when_its_packets_are_tagged() {
    let queues = |card: &mut EmulatedCard| -> Vec<usize> {
        (0..256).map(|port| card.receive(0, &frame(port)).queue).collect()
    };
    let mut card = card();
    let before = queues(&mut card);
    card.place(&item(1, &[0], None), tag(1));
    card.advance(100);
    assert_eq!(queues(&mut card), before);
    for queue in 0..QUEUES {
        assert!(before.iter().filter(|of| **of == queue).count() > 32, "queue {queue}");
    }
}

#[test]
fn faults_of_the_card_are_told_or_not_and_leave_nothing() {
    let filled = || {
        let mut card = card();
        card.place(&item(1, &[0], None), tag(1));
        card.advance(100);
        told(&mut card);
        card.place(&item(2, &[0], None), tag(2));
        card
    };
    let mut silent = filled();
    silent.reset(Notice::Silent);
    silent.advance(1000);
    assert!(told(&mut silent).is_empty() && silent.entries() == 0, "what was asked is forgotten");
    let mut loud = filled();
    loud.reset(Notice::Told);
    assert_eq!(told(&mut loud), [CardEvent::Reset]);
    let mut down = filled();
    down.link_down();
    assert!(down.receive(0, &frame(1)).dropped);
    down.link_up();
    assert_eq!(told(&mut down), [CardEvent::Down, CardEvent::Up]);
    let received = down.receive(0, &frame(1));
    assert_eq!((received.mark, received.dropped), (0, false));
    let mut other = filled();
    other.reload(capabilities(|rules| rules.entries = 1));
    assert_eq!(told(&mut other), [CardEvent::Reloaded]);
    assert_eq!(other.probe().rules.get().unwrap().entries, 1);
    let mut gone = filled();
    gone.unplug();
    gone.link_up();
    gone.place(&item(3, &[0], None), tag(3));
    gone.advance(10_000);
    assert_eq!(told(&mut gone), [CardEvent::Unplugged]);
    let mut one = filled();
    one.forget(tag(1), Notice::Told);
    assert_eq!(told(&mut one), [CardEvent::Withdrawn(tag(1))]);
}

#[test]
fn answers_come_late_twice_or_never_and_the_same_seed_does_the_same() {
    let run = |faults, seed| {
        let card = capabilities(|rules| (rules.entries, rules.programming_ms) = (1000, 0));
        let mut card = EmulatedCard::new(card, seed);
        card.set_faults(faults);
        for number in 1..=200 {
            card.place(&item(1, &[0], None), tag(number));
        }
        card.advance(0);
        let at_once = told(&mut card).len();
        card.advance(1000);
        (at_once, told(&mut card).len(), card.entries())
    };
    let half = |set: fn(&mut Faults)| {
        let mut faults = Faults::default();
        set(&mut faults);
        faults
    };
    assert_eq!(run(Faults::default(), 1), (200, 0, 200));
    let (at_once, later, there) = run(half(|faults| faults.never = 500), 1);
    assert!((50..150).contains(&at_once) && later == 0 && there == 200);
    let (at_once, _, _) = run(half(|faults| faults.twice = 500), 1);
    assert!((250..350).contains(&at_once));
    let late = half(|faults| (faults.late, faults.late_ms) = (500, 900));
    let (at_once, later, _) = run(late, 1);
    assert!((50..150).contains(&at_once) && at_once + later == 200);
    let (answers, _, there) = run(half(|faults| faults.refuse = 500), 1);
    assert!(answers == 200 && (50..150).contains(&there));
    assert_eq!(run(late, 5), run(late, 5));
    assert_ne!(run(late, 5), run(late, 6));
}

// HA-21
#[test]
fn garbage_names_no_item_of_this_life() {
    let mut card = card();
    card.place(&item(1, &[0], None), tag(1));
    card.advance(100);
    card.set_faults(Faults { garbage: 1000, ..Faults::default() });
    let marks: Vec<u64> = (0..200).map(|_| card.receive(0, &frame(1)).mark).collect();
    assert!(marks.contains(&u64::MAX) && !marks.contains(&tag(1).to_bits()));
}

// HA-02
#[test]
fn a_card_without_rules_refuses_each() {
    let mut card = EmulatedCard::new(Capabilities::named("v9").unwrap(), 1);
    card.place(&item(1, &[0], None), tag(1));
    card.advance(100);
    let events = told(&mut card);
    assert_eq!(refused(&events[0]), Some((RefusalKind::Unsupported, NOT_SUPPORTED)));
    assert!(matches!(card.probe().rules, Ability::Lacks(_)));
}

#[test]
fn a_card_that_is_to_drop_drops_and_counts() {
    let mut card = card();
    let Item::Rule(rule) = item(1, &[0], None) else { unreachable!("a rule") };
    let rule = CardRule { effect: Effect::Drop, ..(*rule).clone() };
    card.place(&Item::Rule(Arc::new(rule)), tag(1));
    card.advance(100);
    assert!(card.receive(0, &frame(1)).dropped);
    assert_eq!(card.reading(tag(1).handle).unwrap().packets, 1);
}
