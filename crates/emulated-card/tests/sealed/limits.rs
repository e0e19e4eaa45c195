//! Limits, readings, and what becomes of packets whose SA the card has forgotten.

use emulated_card::{EmulatedCard, Loss, Notice, Opened, Sent};
use offload::{
    Ability, Capabilities, Card as _, CardEvent, Item, Limit, RefusalKind, SaAbilities,
    SaDirection, SaLimits, Service,
};

use super::other;
use super::scene::{PLAIN, Setting, around, card, card_with, framed, sealed, tag, told};

// XO-17, XO-18, XO-20
#[test]
fn exactly_the_hard_limit_leaves_and_each_limit_is_told_once() {
    let limits = SaLimits { soft_packets: Some(7), hard_packets: Some(10), ..SaLimits::default() };
    let mut card = card_with(&PLAIN, 1, |sa| {
        if sa.direction == SaDirection::Out {
            sa.limits = limits;
        }
    });
    let frame = framed(&PLAIN.packet(100));
    for number in 1..=30 {
        let sent = card.send(tag(1), &frame);
        match number {
            1..=10 => assert!(matches!(sent, Sent::Frame(_)), "{number}"),
            _ => assert_eq!(sent, Sent::Dropped(Loss::HardLimit), "{number}"),
        }
        let expected: &[CardEvent] = match number {
            7 => &[CardEvent::Limit(tag(1), Limit::Soft)],
            10 => &[CardEvent::Limit(tag(1), Limit::Hard)],
            _ => &[],
        };
        assert_eq!(told(&mut card), expected, "{number}");
    }
    assert_eq!(card.reading(tag(1).handle).unwrap().packets, 10);
    assert_eq!(card.esp_counts().dropped(SaDirection::Out, Loss::HardLimit), 20);
    // The card changes no SA by itself: it is there until it is withdrawn.
    assert_eq!(card.sas(), 2);
}

// XO-18
#[test]
fn what_comes_beyond_the_hard_limit_of_an_sa_that_opens_is_dropped_too() {
    let limits = SaLimits { hard_packets: Some(3), ..SaLimits::default() };
    let (mut card, ours) = (card_with(&PLAIN, 1, |sa| sa.limits = limits), PLAIN.outbound());
    let opened = (1..6).map(|number| {
        let came = around(&other::seal(&ours, &PLAIN.packet(9).ip(), number));
        matches!(card.open(&came), Opened::Clear { .. })
    });
    assert_eq!(opened.collect::<Vec<_>>(), [true, true, true, false, false]);
    assert_eq!(told(&mut card), [CardEvent::Limit(tag(2), Limit::Hard)]);
    assert_eq!(card.esp_counts().dropped(SaDirection::In, Loss::HardLimit), 2);
}

// XO-16
#[test]
fn a_reading_says_packets_and_the_bytes_that_the_cipher_processed() {
    for setting in Setting::all() {
        let (mut card, ours) = (card(&setting), setting.outbound());
        let mut bytes = 0;
        for payload in 0..1000 {
            let clear = setting.packet(payload % 300);
            sealed(&mut card, &framed(&clear));
            bytes += ours.text_bytes(&wire::packet::parse(&clear.ip()).unwrap());
        }
        card.advance(4321);
        let reading = card.reading(tag(1).handle).unwrap();
        assert_eq!((reading.packets, reading.bytes, reading.as_of_ms), (1000, bytes, 4321));
    }
}

/// An event after which a card has forgotten its SAs.
type Forget = (&'static str, fn(&mut EmulatedCard), Loss);

const FORGETTING: [Forget; 6] = [
    ("a reset that it does not tell of", |card| card.reset(Notice::Silent), Loss::UnknownSa),
    ("a reset", |card| card.reset(Notice::Told), Loss::UnknownSa),
    ("another driver", |card| card.reload("emulated:sas=4".parse().unwrap()), Loss::UnknownSa),
    ("the SA alone", |card| card.forget(tag(1), Notice::Silent), Loss::UnknownSa),
    ("its link down", EmulatedCard::link_down, Loss::NoLink),
    ("no slot", EmulatedCard::unplug, Loss::NoLink),
];

// XO-22: nothing leaves in clear
#[test]
fn after_a_card_has_forgotten_an_sa_nothing_leaves_by_its_old_handle() {
    for (what, forget, loss) in FORGETTING {
        let mut card = card(&PLAIN);
        let frame = framed(&PLAIN.packet(100));
        sealed(&mut card, &frame);
        forget(&mut card);
        assert_eq!(card.send(tag(1), &frame), Sent::Dropped(loss), "{what}");
        assert_eq!(card.reading(tag(1).handle), None, "{what}");
        card.link_up();
        let again = card.send(tag(1), &frame);
        assert!(matches!(again, Sent::Dropped(Loss::UnknownSa | Loss::NoLink)), "{what}");
        assert_eq!(card.esp_counts().dropped(SaDirection::Out, loss).min(1), 1, "{what}");
    }
}

// XO-34
#[test]
fn no_packet_leaves_by_an_sa_that_was_withdrawn_or_by_another_incarnation_of_it() {
    let mut card = card(&PLAIN);
    let frame = framed(&PLAIN.packet(100));
    let other = offload::Tag { incarnation: offload::Incarnation(9), ..tag(1) };
    assert_eq!(card.send(other, &frame), Sent::Dropped(Loss::UnknownSa));
    card.withdraw(tag(1));
    sealed(&mut card, &frame);
    card.advance(200);
    assert_eq!(told(&mut card), [CardEvent::Withdrawn(tag(1))]);
    assert_eq!(card.send(tag(1), &frame), Sent::Dropped(Loss::UnknownSa));
}

/// Places an SA in a card that can what a change of the emulated one's abilities leaves.
fn answer(change: fn(&mut SaAbilities), service: Service) -> CardEvent {
    let emulated: Capabilities = "emulated:sas=4".parse().unwrap();
    let mut abilities = *emulated.sas.get().unwrap();
    change(&mut abilities);
    let mut card = EmulatedCard::new(Capabilities { sas: Ability::Has(abilities), ..emulated }, 7);
    let sa = offload::CardSa { service, ..PLAIN.sa(SaDirection::Out, 1) };
    card.place(&Item::Sa(sa.into()), tag(1));
    card.advance(100);
    assert_eq!(card.sas(), usize::from(told_one(&mut card.clone()) == CardEvent::Live(tag(1))));
    told_one(&mut card)
}

fn told_one(card: &mut EmulatedCard) -> CardEvent {
    told(card).remove(0)
}

// XO-29
#[test]
fn a_card_of_ciphers_alone_refuses_packet_mode_and_says_so() {
    let ciphers = |abilities: &mut SaAbilities| abilities.packet = Ability::Lacks("ciphers alone");
    assert_eq!(answer(ciphers, Service::Crypto), CardEvent::Live(tag(1)));
    let CardEvent::Refused(_, refusal) = answer(ciphers, Service::Packet) else {
        panic!("served as something else");
    };
    assert_eq!(refusal.kind, RefusalKind::Unsupported);
    assert!(refusal.text.contains("packet mode is never served as crypto"), "{refusal}");
    assert_eq!(answer(|_| (), Service::Packet), CardEvent::Live(tag(1)));
}

// XO-06: nothing is left of what was refused
#[test]
fn a_full_card_and_a_doubled_spi_are_refused_and_nothing_is_left() {
    let mut card = card(&PLAIN);
    let place = |card: &mut EmulatedCard, sa: offload::CardSa, number| {
        card.place(&Item::Sa(sa.into()), tag(number));
        card.advance(1000 * u64::from(number));
        told_one(card)
    };
    let kind = |event| match event {
        CardEvent::Refused(_, refusal) => Some((refusal.kind, refusal.text)),
        _ => None,
    };
    let double = place(&mut card, PLAIN.sa(SaDirection::In, 1), 3);
    assert!(kind(double).is_some_and(|(kind, _)| kind == RefusalKind::Failed));
    for number in 4..=5 {
        let spi = 0x2000 + number;
        let other = offload::CardSa { spi, ..PLAIN.sa(SaDirection::In, 1) };
        assert_eq!(place(&mut card, other, number), CardEvent::Live(tag(number)));
    }
    let full = place(&mut card, PLAIN.sa(SaDirection::Out, 1), 6);
    let (kind, text) = kind(full).unwrap();
    assert!(kind == RefusalKind::Full && text.contains("all of 4 SAs"), "{text}");
    assert_eq!(card.sas(), 4);
}
