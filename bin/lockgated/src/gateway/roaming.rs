//! Peers that have moved. Of a peer behind a NAT workers see authentic packets from elsewhere, and
//! from then on everything for it goes there. A peer whose SAs IKE negotiates is moved by IKE: such
//! packets are told to it (RFC 7296 §2.23), and it answers with the ends that the SAs have from
//! then on.
//!
//! Outer headers are not authentic: who is on the way can make a peer seem to be anywhere. So a
//! place is taken only if packets to it leave by an unprotected port, each move is told, and the
//! peer's own next packet brings it back.

use std::net::IpAddr;
use std::sync::Arc;

use config::validated::{KeySource, Peer, PeerPlace};
use control::{
    ChangedSas, Compiled, MoveError, MovedEnds, MovedPeer, MovedSet, PeerAddress, PeerEnds, SaName,
};
use dataplane::{AddressUpdate, RouteTarget, Side, Snapshot, SnapshotError};
use ipsec::Spi;
use policy::SaSetId;
use tokio::sync::broadcast;

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

/// The reason why an SA is not moved to other ends. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveRefusal {
    /// The end is one of the gateway's own.
    #[error(
        "peer {peer} cannot be at {address}, which is this gateway's or behind a protected port"
    )]
    Inside {
        /// The peer's name.
        peer: String,
        /// The address.
        address: IpAddr,
    },
    /// The peer may not be there.
    #[error(transparent)]
    Refused(#[from] MoveError),
    /// The SAs do not become a snapshot: a bug of Lockgate.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The daemon is ending.
    #[error("lockgated is stopping")]
    Stopping,
}

/// An authentic packet of a peer whose SAs IKE negotiates, from elsewhere than they end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SeenElsewhere {
    /// Name of the peer.
    pub(crate) peer: String,
    /// SPI of the SA that opened the packet.
    pub(crate) spi: Spi,
    /// Address and port that the packet came from.
    pub(crate) at: PeerAddress,
}

/// Peers seen elsewhere that are told at most, until somebody reads of them.
pub(crate) const MAX_SEEN_ELSEWHERE: usize = 1024;

impl Gateway {
    /// Moves an SA to other ends, as IKE says; returns when every worker walks by them. `None`
    /// inside: the SA has these ends already.
    ///
    /// # Errors
    /// [`WorkerGone`]; inside, [`MoveRefusal`]: what ran before runs on.
    pub(crate) async fn move_sa(
        &mut self,
        name: &SaName,
        to: PeerEnds,
    ) -> Result<Result<Option<MovedEnds>, MoveRefusal>, WorkerGone> {
        let mut compiled = self.compiled.copied();
        let moved = match compiled.move_sa(name, to) {
            Ok(Some(moved)) => moved,
            Ok(None) => return Ok(Ok(None)),
            Err(why) => return Ok(Err(why.into())),
        };
        let address = to.tunnel.remote;
        if moved.from.tunnel.remote != address && is_inside(&self.snapshot, address) {
            return Ok(Err(MoveRefusal::Inside { peer: moved.peer, address }));
        }
        let changed = ChangedSas { compiled, gone: Vec::new() };
        match self.change_sas(changed).await? {
            Ok(_) => Ok(Ok(Some(moved))),
            Err(error) => Ok(Err(error.into())),
        }
    }

    /// Counts and reports peers whose packets go between other ends than before, because IKE has
    /// moved the newest SA or put another SA between other ends.
    pub(super) fn report_moved(&mut self, before: &Compiled) {
        for MovedSet { peer, from, to } in self.compiled.sets_moved_since(before) {
            self.count_move(&peer);
            let message = format!("IKE has moved peer {peer} from {from} to {to}");
            self.events.record(Kind::PeerMoved, &peer, message, &[("from", &from), ("to", &to)]);
        }
    }

    fn count_move(&mut self, peer: &str) {
        *Arc::make_mut(&mut self.moves).entry(peer.to_owned()).or_default() += 1;
    }

    /// Takes those whose SAs IKE negotiates out of what was seen, and tells IKE of them. A peer
    /// that its section has behind a NAT is followed at once all the same. A packet of an SA that
    /// is gone shows nothing.
    pub(crate) fn tell_ike(
        &self,
        seen: &mut Vec<AddressUpdate>,
        told: &broadcast::Sender<SeenElsewhere>,
    ) {
        seen.retain(|moved| {
            let Some(peer) = self.compiled.peer_named_by(moved.set) else { return false };
            if !self.compiled.has_opener(moved.set, moved.spi) {
                return false;
            }
            if peer.keys != KeySource::Ike {
                return true;
            }
            let at = PeerAddress { address: moved.address.into(), port: moved.port };
            let may_be_there = match is_outside(&self.snapshot, at.address) {
                true => self
                    .compiled
                    .may_have_moved(moved.set, moved.spi, at)
                    .map_err(AddressRefusal::from),
                false => Err(AddressRefusal::Inside(at.address)),
            };
            match may_be_there {
                Ok(()) => {
                    let (peer, spi) = (peer.name.clone(), moved.spi);
                    // Nobody may listen.
                    let _ = told.send(SeenElsewhere { peer, spi, at });
                }
                Err(why) => self.report_not_there(moved.set, &why),
            }
            may_be_there_by_packets(peer.place)
        });
    }

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
            self.count_move(peer);
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
        let is_ikes = |peer: &Peer| peer.keys == KeySource::Ike;
        let moved = match self.compiled.peer_named_by(moved.set).is_some_and(is_ikes) {
            true => self.compiled.follow_sa(moved.spi, to)?,
            false => self.compiled.move_peer(moved.set, to)?,
        };
        Ok(moved)
    }

    fn report_not_there(&self, set: SaSetId, why: &AddressRefusal) {
        // One that is gone meanwhile stays nowhere.
        let Some(peer) = self.compiled.peer_named_by(set) else { return };
        let peer = peer.name.as_str();
        let message = format!("peer {peer} stays where it was: {why}");
        self.events.record(Kind::PeerMoveRefused, peer, message, &[]);
    }
}

/// Returns whether packets of a peer show where it is, whatever IKE says.
const fn may_be_there_by_packets(place: PeerPlace) -> bool {
    matches!(place, PeerPlace::BehindNat)
}

/// Returns whether an address is one of ours, or behind a protected port.
pub(crate) fn is_inside(snapshot: &Snapshot, address: IpAddr) -> bool {
    match snapshot.routes().lookup(address.into()) {
        Some(RouteTarget::Local | RouteTarget::Broadcast) => true,
        Some(RouteTarget::Via(hop)) => {
            snapshot.port(snapshot.next_hop(hop).port).side == Side::Protected
        }
        _ => false,
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
