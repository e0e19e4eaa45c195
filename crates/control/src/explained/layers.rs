//! The outer of two layers, in words.

use ipsec::Tunnel;

use super::Story;

impl Story<'_> {
    /// Describes the layer around the packet, if it is sealed again.
    pub(super) fn sealed_again(&self) -> Option<(&'static str, String)> {
        let (set, sa) = self.told.sealed_again_by?;
        let (set, sa) = (self.snapshot.set(set), self.snapshot.outbound_sa(sa));
        let spi = self.spi(sa).unwrap_or_else(|| "unknown".into());
        let card = if sa.card.is_some() { ", in the card of that port" } else { "" };
        let Tunnel { local, remote } = set.tunnel;
        let by = format!("SPI {spi}, {}{card}", sa.suite);
        Some(("outer", format!("sealed again for peer {}, {local} -> {remote}, {by}", set.peer)))
    }
}
