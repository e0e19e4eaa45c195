//! A peer behind another one: software seals, and the SA around it seals again, in the card or not.

use netlab::capture::{Tally, esp_frames_to};
use netlab::sealed::{BACK, End, FAR, NEAR, SealedLab, THERE};

use crate::place::Place;
use crate::{CARD, ESP, IPV4, PACKET, kind};

/// Addresses of the inner tunnel.
const WITHIN: [&str; 2] = ["192.0.2.11", "192.0.2.12"];
/// SPIs of the inner SAs: of the one from the near gateway, and of the one back.
const INNER: [u32; 2] = [0x3000, 0x4000];

/// Lines of the peer's section, and the sections of the peer behind it.
fn lines(end: End, peer: &str) -> String {
    let ([local, remote], [here, there]) = match end {
        End::Near => (WITHIN, ["10.1.0.0/24", "10.2.0.0/24"]),
        End::Far => ([WITHIN[1], WITHIN[0]], ["10.2.0.0/24", "10.1.0.0/24"]),
    };
    format!(
        "{peer}\n[peer.within]\nlocal = \"{local}\"\nremote = \"{remote}\"\nkeys = \"api\"\n\
         suite = \"aes-256-gcm\"\nouter = \"other\"\n\
         [[policy]]\nname = \"inner-esp\"\npeer = \"other\"\nlocal = [\"{local}\"]\n\
         remote = [\"{remote}\"]\nprotocol = \"esp\"\npriority = 300\n\
         [[policy]]\nname = \"deep\"\npeer = \"within\"\nlocal = [\"{here}\"]\n\
         remote = [\"{there}\"]\npriority = 200\n"
    )
}

fn build(test: &str, peer: &str) -> Option<Place> {
    let [near, far] = [(End::Near, peer), (End::Far, "")].map(|(end, peer)| lines(end, peer));
    Place::build_with(test, CARD, [&near, &far], |lab: &SealedLab| {
        lab.near_gateway.ip(&format!("address add {}/24 dev wan0", WITHIN[0])).unwrap();
        lab.far_gateway.ip(&format!("address add {}/24 dev x0", WITHIN[1])).unwrap();
    })
}

/// Puts the inner SAs at both ends: first those that open.
fn put_inner(place: &Place) {
    let keys = ["11".repeat(36), "22".repeat(36)];
    let line =
        |way: &str, of: usize| format!("{way} {:#010x} {} peer=within\n", INNER[of], keys[of]);
    for (end, text) in [
        (End::Far, line("in", 0)),
        (End::Near, line("in", 1)),
        (End::Near, line("out", 0)),
        (End::Far, line("out", 1)),
    ] {
        place.put_at(end, &text).unwrap().success().unwrap();
    }
}

/// The SPI at a place of a frame.
fn spi(frame: &[u8], at: usize) -> Option<u32> {
    frame.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

// XO-26
#[test]
fn software_seals_inside_and_the_card_around_it_and_the_wire_has_both() {
    let Some(mut place) = build("two_layers", PACKET) else { return };
    // Without an SA for one of the layers nothing leaves.
    put_inner(&place);
    place.no_answer(2);
    place.put_pair(0, "");
    assert_eq!(place.seats().unwrap(), 2, "the inner SAs are software's");
    let capture = place.capture("wire").unwrap();
    assert_eq!(place.pings(20), 20, "{}", place.story());
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((wire.clear, wire.repeated), (0, 0), "{wire:?}");
    assert_eq!(wire.spis(), [THERE, BACK].into(), "only the outer layer shows outside");
    // Between host and card is the inner layer, both ways, and nothing in clear.
    let seen = place.card().unwrap().seen().unwrap();
    let of = |to_host: bool, number: u32| {
        let frames = seen.iter().filter(|frame| frame.to_host == to_host);
        let esp = frames.filter(|frame| kind(&frame.bytes) == (IPV4, ESP));
        esp.filter(|frame| spi(&frame.bytes, 34) == Some(number)).count()
    };
    assert_eq!([of(false, INNER[0]), of(true, INNER[1])], [20, 20]);
    let side = place.host_side().unwrap();
    assert_eq!((side.clear, side.esp, side.esp_in_clear), (0, 40, 0));
    // Each layer is counted by its SA.
    for number in [THERE, BACK, INNER[0], INNER[1]] {
        place.until("counted", |place| place.sa(number).unwrap()["packets"] == 20);
    }
    let near = place.daemon(End::Near).unwrap();
    let words = ["explain", "--in", "lan", "icmp/8/0", "10.1.0.2", "10.2.0.2"];
    let told = near.ask(&words).unwrap();
    assert_eq!((&told["peer"], &told["outer"]), (&"within".into(), &"other".into()), "{told:#}");
    let text = near.run(&words).unwrap().stdout;
    assert!(text.contains("sealed again for peer other"), "{text}");
    // The card loses its SAs: nothing leaves with the inner layer alone.
    let capture = place.capture("after").unwrap();
    place.card().unwrap().tell("reset told").unwrap();
    place.until("both told", |place| place.events("sa_lost").len() == 2);
    let sealed = place.counted("/sealed");
    place.no_answer(3);
    assert_eq!(place.counted("/sealed"), sealed);
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert!(wire.clear == 0 && wire.spis().is_empty(), "{wire:?}");
    place.balances();
}

// XO-26
#[test]
fn around_an_outer_layer_that_encrypts_nothing_both_headers_show_on_the_wire() {
    let Some(place) = build("both_headers", "") else { return };
    put_inner(&place);
    let line = |way: &str, number: u32| {
        let key = format!("{number:08x}").repeat(8);
        format!("{way} {number:#010x} {key} peer=other suite=null-hmac-sha-256\n")
    };
    for (end, text) in [
        (End::Far, line("in", THERE)),
        (End::Near, line("in", BACK)),
        (End::Near, line("out", THERE)),
        (End::Far, line("out", BACK)),
    ] {
        place.put_at(end, &text).unwrap().success().unwrap();
    }
    let capture = place.capture("wire").unwrap();
    assert_eq!(place.pings(10), 10, "{}", place.story());
    let capture = capture.stop().unwrap();
    // Outer header at 14, its SPI at 34, ESP header 8; inner header at 42, its SPI at 62.
    let layers = |to: &str, spis: [u32; 2]| {
        let frames = esp_frames_to(&capture, to.parse().unwrap()).unwrap();
        let both = |frame: &&Vec<u8>| {
            [spi(frame, 34), spi(frame, 62)] == spis.map(Some) && frame.get(51) == Some(&ESP)
        };
        (frames.iter().filter(both).count(), frames.len())
    };
    assert_eq!(layers(FAR, [THERE, INNER[0]]), (10, 10));
    assert_eq!(layers(NEAR, [BACK, INNER[1]]), (10, 10));
    place.balances();
}
