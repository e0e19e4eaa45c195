//! SAs that an earlier charon left, and SAs of the connected charon that replace them.

use std::sync::Arc;

use charon_link::{AddPolicy, Selector};
use ipsec::Spi;
use policy::Direction;

use super::book::KnownSa;
use super::desk::Desk;
use super::selector_pairs::have_common_packet;

impl Desk {
    /// SPIs of the left SAs that a new SA of a peer replaces: all left SAs of the new SA's
    /// direction with a packet in common. `selectors` has the new SA's, local and remote.
    pub(super) fn replaced_spis(
        &self,
        (way, new): (Direction, Spi),
        peer: &str,
        selectors: [&[Selector]; 2],
    ) -> Vec<Spi> {
        let is_met = |sa: &KnownSa| {
            let known = sa.selectors.each_ref().map(Vec::as_slice);
            have_common_packet(known, selectors)
        };
        let left = self.book.sas_of_peer(peer).filter(|(of, sa)| *of == way && sa.is_orphan);
        let spis = left.filter(|(_, sa)| is_met(sa)).filter_map(|(_, sa)| Spi::new(sa.name.spi));
        spis.filter(|spi| *spi != new).collect()
    }

    /// Returns whether the peer of a trap has outbound SAs, and an earlier charon left all of them.
    pub(super) fn has_left_sas(&self, trap: &AddPolicy) -> bool {
        let (local, remote) = (trap.policy.source.ip(), trap.policy.destination.ip());
        let taken_over = self.own.numbered(trap.reqid).cloned();
        let of_file = self.peers.between(local, remote).map(|peer| peer.name.clone());
        taken_over.into_iter().chain(of_file).any(|peer| self.sends_by_left_sas(&peer))
    }

    fn sends_by_left_sas(&self, peer: &Arc<str>) -> bool {
        let is_sealing =
            |(way, sa): &(Direction, &KnownSa)| *way == Direction::Outbound && !sa.has_ended;
        let mut sealing = self.book.sas_of_peer(peer).filter(is_sealing).peekable();
        sealing.peek().is_some() && sealing.all(|(_, sa)| sa.is_orphan)
    }
}
