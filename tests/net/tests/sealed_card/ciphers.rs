//! Crypto mode: the gateway writes ESP, and the card does the cipher alone.

use std::time::Duration;

use netlab::capture::{Tally, carries_clear, esp_in_clear};
use netlab::sealed::{BACK, End, NewSa, THERE};
use netlab::stream::Delivery;

use super::place::Place;
use super::{CARD, ESP, IPV4, kind, tell};

const CRYPTO: &str = "offload = \"crypto\"";

// XO-01, XO-03
#[test]
fn in_crypto_mode_the_host_has_esp_in_clear_and_the_wire_has_it_sealed() {
    let Some(mut place) = Place::build("crypto_mode", CARD, CRYPTO) else { return };
    place.put_pair(0, "");
    assert_eq!(place.seats().unwrap(), 2);
    let capture = place.capture("wire").unwrap();
    assert_eq!(place.pings(20), 20, "{}", place.story());
    let captured = capture.stop().unwrap();
    let wire = Tally::of(&captured).unwrap();
    assert_eq!((wire.clear, wire.repeated), (0, 0), "{wire:?}");
    assert_eq!(wire.spis(), [THERE, BACK].into());
    assert_eq!(esp_in_clear(&captured).unwrap(), (40, 0));
    let seen = place.card().unwrap().seen().unwrap();
    let ipv4: Vec<_> = seen.iter().filter(|frame| kind(&frame.bytes).0 == IPV4).collect();
    for to_host in [true, false] {
        let way = || ipv4.iter().filter(|frame| frame.to_host == to_host);
        assert_eq!(way().count(), 20);
        assert!(way().all(|frame| kind(&frame.bytes) == (IPV4, ESP)));
        assert!(way().all(|frame| carries_clear(&frame.bytes) && frame.tag.is_some()));
    }
    // The gateway counts: numbers, window and limits are its own.
    for spi in [THERE, BACK] {
        place.until("counted", |place| place.sa(spi).unwrap()["packets"] == 20);
        let sa = place.sa(spi).unwrap();
        let told = [&sa["card"], &sa["card_mode"], &sa["state"], &sa["sequence"]];
        assert_eq!(told.map(|it| it.to_string().replace('"', "")), ["nic0", "crypto", "ok", "20"]);
    }
    let before = place.dropped("unprotected");
    place.spoof(10).unwrap();
    place.until("dropped", |place| place.dropped("unprotected") == before + 10);
    let delivery = with_new_keys(&mut place, 3);
    assert_eq!((delivery.lost(), delivery.repeated()), (0, 0), "of {}", delivery.sent.len());
    place.balances();
}

/// Sends while keys are exchanged so many times.
pub(crate) fn with_new_keys(place: &mut Place, times: u32) -> Delivery {
    let stream = place.stream().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    for number in 1..=times {
        let replaces = |from| format!("replaces={:#x}", NewSa::new(from, number - 1).spi());
        let sa = |from: End| NewSa {
            near: replaces(from),
            far: replaces(from),
            ..NewSa::new(from, number)
        };
        place.must_put(&[sa(End::Near), sa(End::Far)]);
        std::thread::sleep(Duration::from_millis(50));
    }
    stream.finish()
}

// XO-03, XO-22
#[test]
fn in_crypto_mode_nothing_leaves_unencrypted_when_the_card_forgets_or_its_link_goes_down() {
    let Some(mut place) = Place::build("crypto_lost", CARD, CRYPTO) else { return };
    place.put_pair(0, "");
    assert_eq!(place.pings(3), 3, "{}", place.story());
    let capture = place.capture("lost").unwrap();
    let stream = place.stream().unwrap();
    // Until the gateway knows, the card drops what it gets.
    tell(&place, "reset silent");
    place.until("both told", |place| place.events("sa_lost").len() == 2);
    stream.finish_cut();
    assert!(place.counted("/dropped_by_sa/out/unknown_sa") > 0);
    place.no_answer(2);
    place.end_at_far(BACK);
    place.put_pair(1, "");
    assert_eq!(place.pings(3), 3, "{}", place.story());
    let captured = capture.stop().unwrap();
    let wire = Tally::of(&captured).unwrap();
    assert_eq!((wire.clear, wire.repeated), (0, 0), "{wire:?}");
    assert_eq!(esp_in_clear(&captured).unwrap().1, 0);
    place.near_gateway.ip("link set wan0 down").unwrap();
    let took = place.until("flushed", |place| place.seats().unwrap() == 0);
    println!("link down: {} ms until the card had no SA any more", took.as_millis());
    place.until("all told", |place| place.events("sa_lost").len() == 4);
    place.balances();
}
