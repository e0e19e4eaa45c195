//! Many lives of SAs in a card, one after the other, each ended in another way.

use std::thread::sleep;
use std::time::Duration;

use netlab::CardPlan;
use netlab::capture::Tally;
use netlab::sealed::{BACK, End, THERE};

use crate::place::Place;
use crate::{CARD, PACKET, tell};

/// Lives, in `make test` and in `make test-long`.
const LIVES: [u32; 2] = [7, 200];
/// Time for which packets are sent in a life.
const SENT_FOR: Duration = Duration::from_millis(60);

/// The end of a life.
#[derive(Clone, Copy, Debug)]
enum Death {
    Withdrawn,
    ResetTold,
    ResetSilent,
    LinkOfTheCard,
    Unplugged,
    DaemonKilled,
    CardKilled,
}

const DEATHS: [Death; 7] = [
    Death::Withdrawn,
    Death::ResetTold,
    Death::ResetSilent,
    Death::LinkOfTheCard,
    Death::Unplugged,
    Death::DaemonKilled,
    Death::CardKilled,
];

/// Ends the life of the SAs of this number, and has everything ready for the next.
fn die(place: &mut Place, death: Death, number: u32) {
    match death {
        Death::Withdrawn => {
            for spi in [THERE + number, BACK + number] {
                let spi = format!("{spi:#x}");
                place.daemon(End::Near).unwrap().run(&["sa", "del", &spi]).unwrap();
            }
        }
        Death::ResetTold => tell(place, "reset told"),
        Death::ResetSilent => tell(place, "reset silent"),
        Death::LinkOfTheCard => {
            tell(place, "link down");
            place.until("lost", |place| place.sa(THERE + number).unwrap().is_null());
            tell(place, "link up");
        }
        Death::Unplugged => {
            tell(place, "unplug");
            place.until("lost", |place| place.sa(THERE + number).unwrap().is_null());
            replug(place);
        }
        Death::CardKilled => {
            place.card.as_mut().unwrap().kill();
            place.until("lost", |place| place.sa(THERE + number).unwrap().is_null());
            replug(place);
        }
        Death::DaemonKilled => {
            place.near.as_mut().unwrap().kill();
            place.start_one(End::Near, PACKET).unwrap();
        }
    }
    place.until("lost", |place| place.sa(THERE + number).unwrap().is_null());
    place.serves();
}

/// Plugs another card in, where the one before is out of its slot.
fn replug(place: &mut Place) {
    place.card = None;
    place.insert(CardPlan { card: CARD, ..CardPlan::new("", "") }).unwrap();
}

// BIRTH
#[test]
fn no_number_is_on_the_wire_twice_and_no_packet_in_clear_however_sas_end() {
    let Some(mut place) = Place::build("lives", CARD, PACKET) else { return };
    let lives = LIVES[usize::from(std::env::var_os("LOCKGATE_LONG").is_some())];
    let capture = place.capture("lives").unwrap();
    let (mut there, mut back) = (0, 0);
    for number in 0..lives {
        place.put_pair(number, "");
        if number > 0 {
            place.end_at_far(BACK + number - 1);
        }
        let stream = place.stream().unwrap();
        sleep(SENT_FOR);
        there += u32::from(place.pings(2) == 2);
        // The stream goes on over the end of the life.
        let death = DEATHS[number as usize % DEATHS.len()];
        die(&mut place, death, number);
        back += u32::from(stream.finish_cut().received() > 0);
    }
    assert_eq!((there, back), (lives, lives), "each life carried packets: {}", place.story());
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    println!("{lives} lives, {} packets of {} SAs", wire.esp, wire.spis().len());
    assert_eq!((wire.clear, wire.repeated), (0, 0), "{wire:?}");
    assert_eq!(wire.spis().len(), 2 * lives as usize);
    place.balances();
}
