//! SAs in a network card: what the walk hands to the card, and what it takes from it. Where nothing
//! is said of a mode, it is packet mode.
//! The card is emulated.

mod cipher;
mod emulated;
mod lookup;
mod random;
mod rows;
mod sending;
mod twin;
mod waiting;

use packets::lab::{BERLIN, CARLA, DORA, Hub, Laboratory};

pub(crate) use emulated::CardOnWire;
use offload::Service;
pub(crate) use rows::rows;

/// The laboratory with all its SAs in a card.
pub(crate) fn laboratory() -> Laboratory {
    carded(Hub::default()).0
}

/// A laboratory with the SAs of all peers in a card, and the card.
fn carded(hub: Hub) -> (Laboratory, CardOnWire) {
    serving(Service::Packet, hub)
}

/// As [`carded`], in a mode.
fn serving(service: Service, mut hub: Hub) -> (Laboratory, CardOnWire) {
    let card = CardOnWire::serving(service, &mut hub, &[BERLIN, CARLA, DORA]);
    (hub.laboratory().behind(card.clone()), card)
}
