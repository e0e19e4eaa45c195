//! The laboratory's SAs in cards, and what is between a port and its wire.

use std::sync::Arc;

use dataplane::{NetdevId, SetIndex, SnapshotParts};
use ipsec::{CardSeat, CardWork, InboundSa, OutboundSa, ReplayWindow, SaId, SequenceCounter};
use wire::mark::MarkVlan;
use wire::{CardHeader, Deciphered, Mark};

use super::{Hub, REPLAY_WINDOW, spi};
use crate::peer::Agreement;

/// The netdev whose card can have SAs: that of [`WAN`](super::WAN).
pub const CARD: NetdevId = NetdevId(1);

impl Hub {
    /// Puts the SAs of a set, as they are agreed on now, into the card of [`CARD`], by their
    /// [`tags`].
    ///
    /// # Panics
    /// For a set without an agreement.
    pub fn seat(&mut self, set: SetIndex) {
        self.seat_on(set, CARD);
    }

    /// Puts the SAs of a set into the card of a netdev, as [`Hub::seat`] does.
    ///
    /// # Panics
    /// As [`Hub::seat`].
    pub fn seat_on(&mut self, set: SetIndex, netdev: NetdevId) {
        let place = set.0 as usize;
        let (outbound, inbound) = seated(&self.agreements[place], netdev);
        (self.parts.outbound[place], self.parts.inbound[place]) = (outbound, inbound);
    }

    /// Has the card of [`CARD`] do the cipher of a set's SAs, which are as they are otherwise.
    ///
    /// # Panics
    /// If there is no such set.
    pub fn seat_ciphers(&mut self, set: SetIndex) {
        let SnapshotParts { outbound, inbound, .. } = &mut self.parts;
        let [seals, opens] =
            tags(set).map(|tag| Some(CardSeat::of_worker(CARD.0, tag, CardWork::Cipher)));
        let place = set.0 as usize;
        let (out, back) = (&mut outbound[place], &mut inbound[place]);
        *out = Arc::new(out.at(out.id, out.set).seated(seals));
        *back = Arc::new(back.at(back.id, back.set).seated(opens));
    }
}

/// Tags of a set's SAs in the card of [`CARD`]: of the one that seals, and of the one that opens.
pub fn tags(set: SetIndex) -> [u64; 2] {
    let first = u64::from(set.0) * 2 + 1;
    [first, first + 1]
}

/// The mark of a packet that a card opened by the SA of this tag.
pub fn opened_mark(netdev: NetdevId, tag: u64) -> Mark {
    let mark = Mark {
        netdev: netdev.0,
        vlan: MarkVlan::Untagged,
        incarnation: 1,
        generation: 0,
        zone: 0,
        verdict: 0,
        domain: 0,
    };
    mark.with_card_sa(tag)
}

/// The mark of ESP that a card was to decipher by the SA of this tag.
pub fn deciphered_mark(netdev: NetdevId, tag: u64, outcome: Deciphered) -> Mark {
    opened_mark(netdev, tag).with_card_cipher(tag, outcome)
}

/// A card, or what else is between [`CARD`] and its wire.
pub trait Wire {
    /// A frame that came by the wire, as the gateway gets it, with its mark; `None`: the gateway
    /// gets nothing.
    fn came(&mut self, frame: &[u8]) -> Option<(Vec<u8>, Option<Mark>)>;
    /// The frame on the wire for one with this header in front; `None`: there is none.
    fn leaves(&mut self, header: CardHeader, frame: &[u8]) -> Option<Vec<u8>>;
}

/// The gateway's SAs of an agreement in the card of a netdev.
fn seated(a: &Agreement, netdev: NetdevId) -> (Arc<OutboundSa>, Arc<InboundSa>) {
    let (id, carried) = (SaId(a.index.0), a.encapsulation());
    let [seals, opens] =
        tags(a.index).map(|tag| Some(CardSeat::of_worker(netdev.0, tag, CardWork::Packets)));
    let counter = Arc::new(SequenceCounter::spent(a.numbers));
    let (key, number) = (a.material_from_hub(), spi(a.spi_from_hub));
    let outbound = OutboundSa::new(id, number, a.set, &key, carried, counter);
    let window = Arc::new(ReplayWindow::new(REPLAY_WINDOW, a.numbers).expect("a good size"));
    let (key, number) = (a.material_to_hub(), spi(a.spi_to_hub));
    let inbound = InboundSa::new(id, number, a.set, &key, carried, window);
    (
        Arc::new(outbound.expect("ends of one family").seated(seals)),
        Arc::new(inbound.expect("ends of one family").seated(opens)),
    )
}
