//! Peers behind NATs that have moved: workers see authentic packets of theirs from elsewhere, and
//! from then on everything for them goes there.
//!
//! Outer headers are not authentic: who is on the way can make a peer seem to be anywhere. So a
//! place is taken only if packets to it leave by an unprotected port, each move is told, and the
//! peer's own next packet brings it back.

use std::collections::BTreeMap;
use std::net::IpAddr;

use control::mirror::{LiveParts, View, live_parts_towards};
use control::{Compiled, End, MovedPeer};
use dataplane::{Moved, RouteTarget, Side, Snapshot};
use policy::SaSetId;
use tokio::sync::mpsc::Receiver;

use crate::events::Kind;
use crate::state::State;
use crate::worker::WorkerGone;

/// What a compiled configuration needs of the kernel's view, for peers where they are now.
pub(crate) fn live_parts_of(compiled: &Compiled, view: &View) -> LiveParts {
    live_parts_towards(compiled.settings(), view, compiled.remotes())
}

/// What workers have told since it was asked last: the last of each peer.
pub(crate) fn take_all(seen: &mut Receiver<Moved>) -> Vec<Moved> {
    let mut last: BTreeMap<SaSetId, Moved> = BTreeMap::new();
    while let Ok(moved) = seen.try_recv() {
        last.insert(moved.set, moved);
    }
    last.into_values().collect()
}

/// Why a place is not taken for a peer's.
#[derive(Debug, thiserror::Error)]
enum NotThere {
    #[error("{0} is not outside: no route by an unprotected port leads there")]
    Inside(IpAddr),
    #[error(transparent)]
    Refused(#[from] control::MoveError),
}

impl State {
    /// Has everything for the peers that moved go where they are now, in one snapshot. Says whether
    /// there were any.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn peers_moved(&mut self, seen: &[Moved]) -> Result<bool, WorkerGone> {
        let mut made = Vec::new();
        for moved in seen {
            match self.peer_moved(moved) {
                Ok(moved) => made.extend(moved),
                Err(why) => self.tell_not_there(moved.set, &why),
            }
        }
        if made.is_empty() {
            return Ok(false);
        }
        let live = live_parts_of(&self.compiled, &self.view);
        self.tell_problems(&live);
        self.live = live;
        match self.compiled.assemble(&self.live) {
            Ok(snapshot) => self.publish(snapshot).await?,
            Err(error) => self.events.record(Kind::RouteRefused, "", error.to_string(), &[]),
        }
        for MovedPeer { peer, from, to } in made {
            *self.moves.entry(peer.clone()).or_default() += 1;
            let message = format!("peer {peer} has moved from {from} to {to}");
            self.events.record(Kind::PeerMoved, &peer, message, &[("from", &from), ("to", &to)]);
        }
        Ok(true)
    }

    fn peer_moved(&mut self, moved: &Moved) -> Result<Option<MovedPeer>, NotThere> {
        let end = End { address: moved.address.into(), port: moved.port };
        if !is_outside(&self.snapshot, end.address) {
            return Err(NotThere::Inside(end.address));
        }
        Ok(self.compiled.move_peer(moved.set, end)?)
    }

    fn tell_not_there(&self, set: SaSetId, why: &NotThere) {
        // One that is gone meanwhile stays nowhere.
        let Some(set) = self.compiled.sets().find(|known| known.id == set) else { return };
        let peer = set.peer.as_str();
        let message = format!("peer {peer} stays where it was: {why}");
        self.events.record(Kind::PeerMoveRefused, peer, message, &[]);
    }
}

/// Whether packets to an address leave by an unprotected port.
fn is_outside(snapshot: &Snapshot, address: IpAddr) -> bool {
    match snapshot.routes().lookup(address.into()) {
        Some(RouteTarget::Via(hop)) => {
            snapshot.port(snapshot.next_hop(hop).port).side == Side::Unprotected
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_moves_of_a_peer_the_last_counts() {
        let (sender, mut seen) = tokio::sync::mpsc::channel(8);
        let moved = |set, port| {
            let address = IpAddr::from([192, 0, 2, 1]).into();
            Moved { set: SaSetId(set), address, port }
        };
        for (set, port) in [(1, 10), (0, 20), (1, 11), (0, 21), (1, 12)] {
            sender.try_send(moved(set, port)).unwrap();
        }
        assert_eq!(take_all(&mut seen), [moved(0, 21), moved(1, 12)]);
        assert_eq!(take_all(&mut seen), []);
    }
}
