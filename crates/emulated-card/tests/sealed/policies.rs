//! Several policies beside the SAs of cards.

use emulated_card::{EmulatedCard, Loss, Sent};
use offload::{
    Card as _, CardEvent, CardPolicy, Item, Pattern, PolicyAction, SaDirection, Span, UpperPattern,
};
use wire::build::PacketBuilder;

use super::scene::{PLAIN, card, framed, tag, told};

/// A policy for what leaves by the SA of tag 1, to these addresses.
fn to(first: [u8; 4], last: [u8; 4]) -> CardPolicy {
    let span = |first: [u8; 4], last: [u8; 4]| Span { first: first.into(), last: last.into() };
    CardPolicy {
        direction: SaDirection::Out,
        ports: [0].into(),
        rank: 7,
        patterns: [Pattern {
            source: span([10, 1, 0, 0], [10, 1, 255, 255]),
            destination: span(first, last),
            upper: UpperPattern::Any,
        }]
        .into(),
        action: PolicyAction::Protect(tag(1).handle),
    }
}

/// Gives a card a policy, which it takes.
fn place(card: &mut EmulatedCard, policy: CardPolicy, number: u32) {
    card.place(&Item::Policy(policy.into()), tag(number));
    card.advance(1000 * u64::from(number));
    assert_eq!(told(card), [CardEvent::Live(tag(number))]);
}

fn send(card: &mut EmulatedCard, destination: &str) -> Sent {
    card.send(tag(1), &framed(&PacketBuilder::v4("10.1.0.5", destination).udp(7, 8)))
}

// XO-12: in the emulated card
#[test]
fn a_policy_of_prefixes_is_found_in_the_card_where_no_exact_one_matches() {
    let (exact, prefix) = (([10, 2, 0, 9], [10, 2, 0, 9]), ([10, 3, 0, 0], [10, 3, 255, 255]));
    for [first, second] in [[exact, prefix], [prefix, exact]] {
        let mut card = card(&PLAIN);
        place(&mut card, to(first.0, first.1), 3);
        place(&mut card, to(second.0, second.1), 4);
        for destination in ["10.2.0.9", "10.3.0.0", "10.3.7.1", "10.3.255.255"] {
            let sent = send(&mut card, destination);
            assert!(matches!(sent, Sent::Frame(_)), "{destination}: {sent:?}");
        }
        for destination in ["10.2.0.8", "10.2.0.10", "10.4.0.0", "10.2.255.255"] {
            let sent = send(&mut card, destination);
            assert_eq!(sent, Sent::Dropped(Loss::Policy), "{destination}");
        }
    }
}

// XO-14: of policies beside SAs, on two emulated cards
#[test]
fn one_selector_and_rank_is_taken_by_two_cards_and_each_seals_its_own_packets() {
    let mut cards = [card(&PLAIN), card(&PLAIN)];
    for card in &mut cards {
        place(card, to([10, 2, 0, 0], [10, 2, 255, 255]), 3);
    }
    let readings = |cards: &[EmulatedCard; 2]| {
        [0, 1].map(|of: usize| cards[of].reading(tag(1).handle).map(|reading| reading.packets))
    };
    for (of, expected) in [(0, [1, 0]), (1, [1, 1]), (1, [1, 2])] {
        assert!(matches!(send(&mut cards[of], "10.2.0.9"), Sent::Frame(_)));
        assert_eq!(readings(&cards).map(Option::unwrap_or_default), expected);
    }
    // One without its policy seals nothing; the other goes on.
    let [first, second] = &mut cards;
    first.withdraw(tag(3));
    first.advance(9000);
    assert_eq!(told(first), [CardEvent::Withdrawn(tag(3))]);
    assert_eq!(send(first, "10.2.0.9"), Sent::Dropped(Loss::Policy));
    assert!(matches!(send(second, "10.2.0.9"), Sent::Frame(_)));
}
