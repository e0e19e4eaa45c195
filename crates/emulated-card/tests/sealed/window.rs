//! The card's replay window beside the gateway's: the same packets, in any order, are let in.

use emulated_card::{Loss, Opened};
use offload::Numbers;
use proptest::prelude::*;
use proptest::sample::select;

use super::other;
use super::scene::{PLAIN, Setting, WINDOW, around, card, card_with};

const EDGE: u64 = 1 << 32;

#[test]
fn a_packet_comes_in_once() {
    let (mut card, ours) = (card(&PLAIN), PLAIN.outbound());
    let came = |number| around(&other::seal(&ours, &PLAIN.packet(30).ip(), number));
    let ahead = 1 + u64::from(WINDOW);
    assert!(matches!(card.open(&came(1)), Opened::Clear { .. }));
    assert_eq!(card.open(&came(1)), Opened::Dropped(Loss::Replay));
    assert!(matches!(card.open(&came(ahead)), Opened::Clear { .. }));
    assert_eq!(card.open(&came(1)), Opened::Dropped(Loss::Replay), "too old");
    assert!(matches!(card.open(&came(2)), Opened::Clear { .. }), "the left edge");
    assert_eq!(card.esp_counts().dropped(offload::SaDirection::In, Loss::Replay), 2);
}

#[test]
fn a_forged_packet_moves_no_window() {
    let (mut card, ours) = (card(&PLAIN), PLAIN.outbound());
    let came = |number| around(&other::seal(&ours, &PLAIN.packet(30).ip(), number));
    let mut forged = came(1_000_000);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(card.open(&forged), Opened::Dropped(Loss::Authentication));
    assert!(matches!(card.open(&came(1)), Opened::Clear { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn card_and_gateway_let_the_same_packets_in(
        numbers in select(&[Numbers::Short, Numbers::Extended][..]),
        first in select(&[1u64, 40, EDGE - 70, EDGE - 1, EDGE, EDGE + 30, 5 * EDGE][..]),
        steps in prop::collection::vec(prop_oneof![8 => 0u64..150, 1 => 0u64..3000], 1..80),
    ) {
        let setting = Setting { numbers, ..PLAIN };
        let first = if numbers == Numbers::Short { first.min(EDGE - 4000) } else { first };
        let mut card = card_with(&setting, first, |sa| {
            sa.limits.hard_packets = sa.limits.hard_packets.map(|_| 1);
        });
        let (ours, opens) = (setting.outbound(), setting.inbound());
        opens.window.commit(first).unwrap();
        // Both have had the first.
        let clear = setting.packet(20);
        let came = other::seal(&ours, &clear.ip(), first);
        let is_clear = matches!(card.open(&around(&came)), Opened::Clear { .. });
        prop_assert!(is_clear);
        for step in steps {
            let came = other::seal(&ours, &clear.ip(), first + step);
            let expected = other::open(&opens, &came).is_ok();
            let found = matches!(card.open(&around(&came)), Opened::Clear { .. });
            prop_assert_eq!(found, expected, "{} + {}", first, step);
        }
    }
}
