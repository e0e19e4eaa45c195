//! Peers behind NATs that have moved: workers see authentic packets of theirs from elsewhere, and
//! from then on everything for them goes there.
//!
//! Outer headers are not authentic: who is on the way can make a peer seem to be anywhere. So a
//! place is taken only if packets to it leave by an unprotected port, each move is told, and the
//! peer's own next packet brings it back.

use std::net::IpAddr;

use control::{MovedPeer, PeerAddress};
use dataplane::{AddressUpdate, RouteTarget, Side, Snapshot};
use policy::SaSetId;

use super::{Gateway, live_parts_of};
use crate::events::Kind;
use crate::worker::WorkerGone;

/// The reason why a place is not taken for a peer's.
#[derive(Debug, thiserror::Error)]
enum AddressRefusal {
    #[error("{0} is not outside: no route by an unprotected port leads there")]
    Inside(IpAddr),
    #[error(transparent)]
    Refused(#[from] control::MoveError),
}

impl Gateway {
    /// Sends everything for the peers that moved to where they are now, in one snapshot. Returns
    /// those that did.
    ///
    /// # Errors
    /// [`WorkerGone`]. A place that is not taken is an event.
    pub(crate) async fn peers_moved(
        &mut self,
        seen: &[AddressUpdate],
    ) -> Result<Vec<MovedPeer>, WorkerGone> {
        let mut made = Vec::new();
        for moved in seen {
            match self.peer_moved(moved) {
                Ok(moved) => made.extend(moved),
                Err(why) => self.report_not_there(moved.set, &why),
            }
        }
        if made.is_empty() {
            return Ok(made);
        }
        let live = live_parts_of(&self.compiled, &self.view, self.frame_bytes);
        self.report_problems(&live);
        self.publish_view(live).await?;
        for MovedPeer { peer, from, to } in &made {
            let message = format!("peer {peer} has moved from {from} to {to}");
            self.events.record(Kind::PeerMoved, peer, message, &[("from", from), ("to", to)]);
        }
        Ok(made)
    }

    fn peer_moved(&mut self, moved: &AddressUpdate) -> Result<Option<MovedPeer>, AddressRefusal> {
        let to = PeerAddress { address: moved.address.into(), port: moved.port };
        if !is_outside(&self.snapshot, to.address) {
            return Err(AddressRefusal::Inside(to.address));
        }
        Ok(self.compiled.move_peer(moved.set, to)?)
    }

    fn report_not_there(&self, set: SaSetId, why: &AddressRefusal) {
        // One that is gone meanwhile stays nowhere.
        let Some(set) = self.compiled.sets().find(|known| known.id == set) else { return };
        let peer = set.peer.as_str();
        let message = format!("peer {peer} stays where it was: {why}");
        self.events.record(Kind::PeerMoveRefused, peer, message, &[]);
    }
}

/// Returns whether packets to an address leave by an unprotected port.
fn is_outside(snapshot: &Snapshot, address: IpAddr) -> bool {
    match snapshot.routes().lookup(address.into()) {
        Some(RouteTarget::Via(hop)) => {
            snapshot.port(snapshot.next_hop(hop).port).side == Side::Unprotected
        }
        _ => false,
    }
}
