//! The card and crate `ipsec` write and read the same bytes.

use ipsec::{DontFragment, Dscp, Mode, ecn};
use offload::{
    Card as _, CardEvent, Numbers, OuterDontFragment, OuterDscp, OuterEcn, OuterFields,
    SaDirection, SaMode, Service,
};
use proptest::prelude::*;
use proptest::sample::select;
use wire::Family;

use super::other;
use super::scene::{
    PLAIN, SUITES, Setting, around, card, card_with, framed, opened, sealed, tag, told,
};
use emulated_card::{Opened, Sent};

const EDGE: u64 = 1 << 32;

/// The IP packet of a frame.
fn ip(frame: &[u8]) -> &[u8] {
    &frame[14..]
}

// XO-02
#[test]
fn what_the_card_seals_is_what_the_gateway_seals_byte_for_byte_and_the_gateway_opens_it() {
    for setting in Setting::all() {
        let (mut card, ours, opens) = (card(&setting), setting.outbound(), setting.inbound());
        for (payload, number) in (0..40).chain([100, 1392]).zip(1..) {
            let clear = setting.packet(payload);
            let left = sealed(&mut card, &framed(&clear));
            assert_eq!(left[..12], framed(&clear)[..12], "the link's addresses");
            assert_eq!(ip(&left), other::seal(&ours, &clear.ip(), number), "{setting:?} {payload}");
            assert_eq!(left, around(ip(&left)), "the type of the packet outside");
            assert_eq!(other::open(&opens, ip(&left)), Ok(clear.ip()), "{setting:?} {payload}");
        }
    }
}

// XO-02
#[test]
fn what_the_gateway_seals_the_card_opens_and_hands_over_in_clear_with_the_sas_mark() {
    for setting in Setting::all() {
        let (mut card, ours) = (card(&setting), setting.outbound());
        for (payload, number) in (0..40).chain([100, 1392]).zip(1..) {
            let clear = setting.packet(payload);
            let came = around(&other::seal(&ours, &clear.ip(), number));
            assert_eq!(opened(&mut card, &came), framed(&clear), "{setting:?} {payload}");
        }
        let reading = card.reading(tag(2).handle).unwrap();
        assert_eq!(reading.packets, 42);
    }
}

// XO-32
#[test]
fn extended_numbers_go_over_the_edge_of_32_bits_and_short_ones_end_there() {
    for suite in SUITES {
        for mode in [Mode::Tunnel, Mode::Transport] {
            let setting = Setting { suite, mode, numbers: Numbers::Extended, ..PLAIN };
            let first = EDGE - 5;
            let mut card = card_with(&setting, first, |_| ());
            let (ours, opens) = (setting.outbound(), setting.inbound());
            opens.window.commit(first - 1).unwrap();
            for number in first..EDGE + 5 {
                let clear = setting.packet(50);
                let left = sealed(&mut card, &framed(&clear));
                assert_eq!(ip(&left), other::seal(&ours, &clear.ip(), number), "{number:#x}");
                assert_eq!(other::open(&opens, ip(&left)), Ok(clear.ip()), "{number:#x}");
                assert_eq!(opened(&mut card, &left), framed(&clear), "{number:#x}");
            }
        }
    }
    let first = EDGE - 2;
    let mut card = card_with(&PLAIN, first, |sa| {
        sa.limits.hard_packets = sa.limits.hard_packets.map(|_| 2);
    });
    for _ in first..EDGE {
        sealed(&mut card, &framed(&PLAIN.packet(50)));
    }
    let sent = card.send(tag(1), &framed(&PLAIN.packet(50)));
    assert_eq!(sent, emulated_card::Sent::Dropped(emulated_card::Loss::HardLimit));
}

#[test]
fn the_tag_of_a_vlan_stays_on_the_frame() {
    for setting in Setting::all() {
        let mut card = card(&setting);
        let clear = setting.packet(77).frame([2; 6], [4; 6], Some(7));
        let left = sealed(&mut card, &clear);
        assert_eq!(left[..16], clear[..16]);
        assert_eq!(opened(&mut card, &left), clear);
    }
}

#[test]
fn congestion_is_combined_as_the_gateway_does_and_dropped_where_it_cannot_be() {
    for (outer, inner) in [(Family::V4, Family::V4), (Family::V6, Family::V6)] {
        let setting = Setting { outer, inner, ..PLAIN };
        let (mut card, ours) = (card(&setting), setting.outbound());
        for (number, (inside, outside)) in
            (1..).zip((0..4).flat_map(|inside| (0..4).map(move |outside| (inside, outside))))
        {
            let clear = |class: u8| setting.packet(20).traffic_class(0x48 | class);
            let mut came = around(&other::seal(&ours, &clear(inside).ip(), number));
            set_ecn(&mut came, outer, outside);
            let expected = ecn::decapsulate(inside, outside);
            match (card.open(&came), expected) {
                (Opened::Clear { frame, .. }, Some(combined)) => {
                    assert_eq!(frame, framed(&clear(combined)), "{inside} in {outside}");
                }
                (Opened::Dropped(emulated_card::Loss::Congestion), None) => {}
                (found, _) => panic!("{inside} in {outside}: {found:?}, not {expected:?}"),
            }
        }
    }
}

#[test]
fn an_outer_header_that_is_left_to_the_card_is_written_as_the_gateway_does_by_default() {
    let setting = Setting { dscp: Dscp::Fixed(9), dont_fragment: DontFragment::Clear, ..PLAIN };
    let mut card = card_with(&setting, 1, |sa| sa.mode = SaMode::Tunnel(OuterFields::LeftToCard));
    let clear = PLAIN.packet(20).traffic_class(0xb9);
    let left = sealed(&mut card, &framed(&clear));
    assert_eq!(ip(&left), other::seal(&PLAIN.outbound(), &clear.ip(), 1));
}

#[test]
fn hop_limit_and_ecn_of_outer_headers_are_as_configured() {
    for outer in [Family::V4, Family::V6] {
        let setting = Setting { outer, ..PLAIN };
        let mut card = card_with(&setting, 1, |sa| {
            let (dscp, ecn) = (OuterDscp::Copy, OuterEcn::Cleared);
            let dont_fragment = OuterDontFragment::Copy;
            let fields = OuterFields::Exactly { hop_limit: 17, dscp, ecn, dont_fragment };
            sa.mode = SaMode::Tunnel(fields);
        });
        let clear = setting.packet(20).traffic_class(0xb9);
        let mut left = sealed(&mut card, &framed(&clear));
        let read = wire::packet::parse(ip(&left)).unwrap();
        assert_eq!((read.hop_limit, read.traffic_class), (17, 0xb8), "{outer:?}");
        // What is marked outside is not looked at.
        set_ecn(&mut left, outer, 3);
        assert_eq!(opened(&mut card, &left), framed(&clear));
    }
}

/// Marks the packet outside on its way.
fn set_ecn(frame: &mut [u8], family: Family, ecn: u8) {
    match family {
        Family::V4 => frame[15] = frame[15] & !3 | ecn,
        Family::V6 => frame[15] = frame[15] & !0x30 | ecn << 4,
    }
}

// XO-03
#[test]
fn in_crypto_mode_the_host_has_the_headers_and_the_card_the_cipher_alone() {
    for setting in Setting::all().into_iter().filter(Setting::is_for_ciphers) {
        let mut card = card_with(&setting, 1, |sa| sa.service = Service::Crypto);
        let (ours, opens) = (setting.outbound(), setting.inbound());
        for (payload, number) in [0, 1, 2, 3, 700].into_iter().zip(1..) {
            let clear = setting.packet(payload).ip();
            let host = around(&other::unsealed(&ours, &clear, number));
            let Sent::Frame(wire) = card.encrypt(tag(1), &host) else { panic!("{setting:?}") };
            let whole = ip(&wire).to_vec();
            assert_eq!(whole, other::seal(&ours, &clear, number), "{setting:?} {payload}");
            assert_eq!(other::open(&opens, &whole), Ok(clear));

            let Opened::Deciphered { frame: came, mark } = card.open(&around(&whole)) else {
                panic!("{setting:?}")
            };
            assert_eq!(mark, tag(2).to_bits());
            // All as the host had written it, but for the integrity check value.
            let text = host.len() - 16;
            for place in 0..text {
                assert_eq!(came[place], host[place], "{setting:?} byte {place}");
            }
        }
    }
}

// XO-29
#[test]
fn each_mode_serves_its_own_packets_and_not_the_others() {
    use emulated_card::Loss;
    let mut crypto = card_with(&PLAIN, 1, |sa| sa.service = Service::Crypto);
    let clear = framed(&PLAIN.packet(10));
    assert_eq!(crypto.send(tag(1), &clear), Sent::Dropped(Loss::WrongSa));
    let came = around(&other::seal(&PLAIN.outbound(), &PLAIN.packet(10).ip(), 1));
    assert!(matches!(crypto.open(&came), Opened::Deciphered { .. }));
    let mut packet = card(&PLAIN);
    let frame = around(&other::unsealed(&PLAIN.outbound(), &PLAIN.packet(10).ip(), 1));
    assert_eq!(packet.encrypt(tag(1), &frame), Sent::Dropped(Loss::WrongSa));
    assert!(matches!(packet.open(&came), Opened::Clear { .. }));
    assert_eq!(crypto.encrypt(tag(2), &frame), Sent::Dropped(Loss::WrongSa), "it opens");
    assert_eq!(packet.send(tag(2), &clear), Sent::Dropped(Loss::WrongSa), "it opens");
    assert!(told(&mut packet).iter().all(|event| !matches!(event, CardEvent::Limit(..))));
}

#[test]
fn in_crypto_mode_no_number_is_sealed_twice() {
    use emulated_card::Loss;
    let mut card = card_with(&PLAIN, 1, |sa| sa.service = Service::Crypto);
    let mut seal = |number| {
        let frame = around(&other::unsealed(&PLAIN.outbound(), &PLAIN.packet(9).ip(), number));
        match card.encrypt(tag(1), &frame) {
            Sent::Frame(_) => None,
            Sent::Dropped(loss) => Some(loss),
        }
    };
    let twice = Some(Loss::Number);
    // Workers of a host send side by side: a number may come late, but not twice.
    assert_eq!([3, 3, 2, 4, 2, 4].map(&mut seal), [None, twice, None, None, twice, twice]);
    assert_eq!([5000, 904, 905, 5000].map(&mut seal), [None, twice, None, twice]);
}

#[test]
fn the_whole_number_is_in_the_iv_and_its_low_half_in_the_header_too() {
    use emulated_card::Loss;
    let setting = Setting { numbers: Numbers::Extended, ..PLAIN };
    let mut card = card_with(&setting, 1, |sa| sa.service = Service::Crypto);
    let frame = around(&other::unsealed(&setting.outbound(), &setting.packet(9).ip(), EDGE + 5));
    let esp = 14 + 20;
    for changed in [esp + 7, esp + 15] {
        let mut other = frame.clone();
        other[changed] ^= 1;
        assert_eq!(card.encrypt(tag(1), &other), Sent::Dropped(Loss::Number));
    }
    assert!(matches!(card.encrypt(tag(1), &frame), Sent::Frame(_)));
}

#[test]
fn in_crypto_mode_what_is_forged_goes_to_the_host_as_it_came_and_is_named_so() {
    use emulated_card::Loss;
    let mut card = card_with(&PLAIN, 1, |sa| sa.service = Service::Crypto);
    let whole = around(&other::seal(&PLAIN.outbound(), &PLAIN.packet(40).ip(), 7));
    for place in [14 + 20 + 4, 14 + 20 + 16, whole.len() - 1] {
        let mut forged = whole.clone();
        forged[place] ^= 1;
        assert_eq!(card.open(&forged), Opened::Forged { mark: tag(2).to_bits() }, "{place}");
    }
    assert_eq!(card.esp_counts().dropped(SaDirection::In, Loss::Authentication), 3);
    // Replayed or not the host says.
    for _ in 0..2 {
        assert!(matches!(card.open(&whole), Opened::Deciphered { .. }));
    }
}

fn a_setting() -> impl Strategy<Value = Setting> {
    let dscp = prop_oneof![Just(Dscp::Copy), (0u8..64).prop_map(Dscp::Fixed)];
    let flags = [DontFragment::Set, DontFragment::Copy, DontFragment::Clear];
    let udp = prop::option::of(any::<(u16, u16)>());
    (select(Setting::all()), dscp, select(flags.to_vec()), udp).prop_map(
        |(setting, dscp, dont_fragment, udp)| Setting { dscp, dont_fragment, udp, ..setting },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    // XO-02
    #[test]
    fn both_agree_on_any_packet_at_any_number(
        setting in a_setting(),
        payload in prop_oneof![0usize..70, 1300usize..1500, Just(9000)],
        (class, flag) in (any::<u8>(), any::<bool>()),
        number in prop_oneof![
            1u64..100,
            EDGE - 70..EDGE - 1,
            EDGE..EDGE + 70,
            EDGE * 7..EDGE * 7 + 9,
        ],
    ) {
        let is_short = setting.numbers == Numbers::Short;
        let number = if is_short { number % (EDGE - 2) + 1 } else { number };
        let clear = setting.packet(payload).traffic_class(class);
        let clear = if flag { clear.dont_fragment() } else { clear };
        let mut card = card_with(&setting, number, |sa| {
            sa.limits.hard_packets = sa.limits.hard_packets.map(|_| 1);
        });
        let left = sealed(&mut card, &framed(&clear));
        prop_assert_eq!(ip(&left), other::seal(&setting.outbound(), &clear.ip(), number));
        prop_assert_eq!(opened(&mut card, &left), framed(&clear));
        let opens = setting.inbound();
        if number > 1 {
            opens.window.commit(number - 1).unwrap();
        }
        prop_assert_eq!(other::open(&opens, ip(&left)), Ok(clear.ip()));
    }
}
