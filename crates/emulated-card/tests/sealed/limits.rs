//! Limits, readings, and what becomes of packets whose SA the card has forgotten.

use emulated_card::{EmulatedCard, Loss, Notice, Opened, Sent};
use ipsec::Mode;
use offload::{
    Ability, Capabilities, Card as _, CardEvent, CardPolicy, CardSa, Carrier, FlowConfidentiality,
    Item, Limit, Numbers, OuterFields, Pattern, PolicyAction, RefusalKind, SaAbilities,
    SaDirection, SaLimits, SaMode, Service, Span, UdpEnds, UpperPattern,
};
use wire::build::PacketBuilder;

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

// XO-09, XO-31, XO-32
#[test]
fn a_card_of_each_profile_refuses_what_it_cannot_do_by_name_and_nothing_of_it_is_left() {
    let kernels = |change: fn(&mut CardSa)| {
        let mut sa = Setting { mode: Mode::Transport, ..PLAIN }.sa(SaDirection::Out, 1);
        (sa.carrier, sa.numbers) = (Carrier::Kernel, Numbers::Short);
        sa.limits = SaLimits { hard_packets: Some(1000), ..SaLimits::default() };
        change(&mut sa);
        sa
    };
    let tunnel: fn(&mut CardSa) = |sa| sa.mode = SaMode::Tunnel(OuterFields::LeftToCard);
    let nat: fn(&mut CardSa) = |sa| sa.udp = Some(UdpEnds { source: 4500, destination: 4500 });
    let tfc: fn(&mut CardSa) = |sa| sa.flow_confidentiality = FlowConfidentiality::To(1400);
    let esn: fn(&mut CardSa) = |sa| sa.numbers = Numbers::Extended;
    for (profile, change, refused) in [
        ("v9", tunnel, Some("no tunnel mode")),
        ("6.4+", tunnel, None),
        ("v9", nat, Some("no ESP in UDP")),
        ("v9", tfc, Some("no padding against traffic analysis")),
        ("emulated:sas=1", nat, None),
        ("emulated:sas=1", tfc, Some("no padding against traffic analysis")),
        ("v9", esn, Some("cannot advance extended sequence numbers")),
        ("6.4+", esn, Some("cannot advance extended sequence numbers")),
        ("mlx5-as-read", esn, None),
        ("emulated:sas=1", esn, None),
    ] {
        let mut card = EmulatedCard::new(profile.parse().unwrap(), 1);
        card.place(&Item::Sa(kernels(change).into()), tag(1));
        card.advance(1000);
        match (told_one(&mut card), refused) {
            (CardEvent::Live(_), None) => assert_eq!(card.sas(), 1),
            (CardEvent::Refused(_, refusal), Some(cause)) => {
                assert_eq!((refusal.kind, card.sas()), (RefusalKind::Unsupported, 0));
                assert!(refusal.text.contains(cause), "{profile}: {refusal}");
            }
            (answer, refused) => panic!("{profile}: {answer:?}, not {refused:?}"),
        }
        // Without what it cannot do it takes the same SA.
        card.place(&Item::Sa(kernels(|sa| sa.spi += 1).into()), tag(2));
        card.advance(2000);
        if refused.is_some() {
            assert_eq!(told_one(&mut card), CardEvent::Live(tag(2)), "{profile}");
        }
    }
}

// XO-04
#[test]
fn an_sa_with_a_policy_beside_it_carries_what_that_matches_while_it_is_there() {
    let mut card = card(&PLAIN);
    let policy = |direction, of: u32| {
        let to = |last: [u8; 4]| Span { first: [10, 0, 0, 0].into(), last: last.into() };
        let (source, destination) = (to([10, 255, 0, 0]), to([10, 2, 0, 9]));
        CardPolicy {
            direction,
            ports: [0].into(),
            rank: 0,
            patterns: [Pattern { source, destination, upper: UpperPattern::Any }].into(),
            action: PolicyAction::Protect(tag(of).handle),
        }
    };
    let place = |card: &mut EmulatedCard, policy: CardPolicy, number: u32| {
        card.place(&Item::Policy(policy.into()), tag(number));
        card.advance(1000 * u64::from(number));
        told_one(card)
    };
    let frame = framed(&PLAIN.packet(50));
    assert!(matches!(card.send(tag(1), &frame), Sent::Frame(_)), "none was given yet");
    // Of an SA that is not there, or of the other direction.
    for (direction, of, number, cause) in [
        (SaDirection::Out, 9, 3, "an SA that is not there"),
        (SaDirection::In, 1, 4, "the other direction"),
    ] {
        let answer = place(&mut card, policy(direction, of), number);
        let CardEvent::Refused(_, refusal) = answer else { panic!("taken") };
        assert!(refusal.text.contains(cause), "{refusal}");
    }
    assert_eq!(place(&mut card, policy(SaDirection::Out, 1), 5), CardEvent::Live(tag(5)));
    assert_eq!(place(&mut card, policy(SaDirection::In, 2), 6), CardEvent::Live(tag(6)));
    assert!(matches!(card.send(tag(1), &frame), Sent::Frame(_)));
    let elsewhere = framed(&PacketBuilder::v4("10.1.0.5", "10.2.0.10").udp(7, 8));
    assert_eq!(card.send(tag(1), &elsewhere), Sent::Dropped(Loss::Policy));
    let came = |packet: &PacketBuilder, number| {
        around(&other::seal(&PLAIN.outbound(), &packet.ip(), number))
    };
    assert!(matches!(card.open(&came(&PLAIN.packet(9), 1)), Opened::Clear { .. }));
    let wrong = PacketBuilder::v4("10.1.0.5", "10.2.0.10").udp(7, 8);
    assert_eq!(card.open(&came(&wrong, 2)), Opened::Dropped(Loss::Policy));
    // Without its policy it carries nothing.
    for number in [5, 6] {
        card.forget(tag(number), Notice::Silent);
    }
    assert_eq!(card.send(tag(1), &frame), Sent::Dropped(Loss::Policy));
    assert_eq!(card.open(&came(&PLAIN.packet(9), 3)), Opened::Dropped(Loss::Policy));
    assert_eq!((card.sas(), card.policies().count()), (2, 0));
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
