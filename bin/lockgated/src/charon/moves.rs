//! SAs whose ends move, and peers that were seen elsewhere.
//!
//! All SAs of a peer have the same ends: those that charon said last of one of them, or of the
//! newest that seals. They move at once, in one snapshot, with keys, numbers, windows, limits and
//! use. The peer's section says how far they may go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use charon_link::{
    AddPolicy, AddSa, Answer, PolicyAction, PolicyDirection, Report, SaName, Status, UpdateSa,
};
use control::PeerEnds;
use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use ipsec::{Tunnel, UdpPorts};
use policy::Direction;

use super::book::{KnownSa, OCCUPIED, direction};
use super::desk::Desk;
use super::own::{NotOwn, OwnPeer};
use crate::gateway::{MoveRefusal, SeenElsewhere};
use crate::orders::{Order, SaOrder};

/// Ends of an SA as charon says them.
struct Said {
    direction: Direction,
    source: SocketAddr,
    destination: SocketAddr,
    in_udp: bool,
}

impl Said {
    /// This gateway's end and the other.
    fn both(&self) -> (SocketAddr, SocketAddr) {
        match self.direction {
            Direction::Outbound => (self.source, self.destination),
            Direction::Inbound => (self.destination, self.source),
        }
    }

    fn ends(&self) -> PeerEnds {
        let (local, remote) = self.both();
        // Lockgate receives ESP in UDP at this port alone, as charon does.
        let ports = UdpPorts { local: NAT_TRAVERSAL_PORT, remote: remote.port() };
        let tunnel = Tunnel { local: local.ip(), remote: remote.ip() };
        PeerEnds { tunnel, udp: self.in_udp.then_some(ports) }
    }
}

impl Desk {
    /// Moves an SA of charon's to other ends, and those of the same peer with it.
    pub(super) async fn update_sa(&mut self, asked: UpdateSa) -> Answer {
        let UpdateSa { handle, source, destination, in_udp, reqid, selectors } = asked;
        let Some((way, known)) = self.known(handle) else {
            return Answer::plain(Status::Unknown, "");
        };
        let name = known.name;
        if let Some(mut selectors) = selectors {
            if way == Direction::Inbound {
                selectors.reverse();
            }
            let selectors = [selectors[0].as_slice(), selectors[1].as_slice()];
            let refused = match self.peers.named(&known.peer) {
                Some(peer) => peer.is_served_by(selectors).err().map(|why| why.to_string()),
                None => self.check_own_selectors(selectors).err().map(|why| why.to_string()),
            };
            if let Some(why) = refused {
                return Answer::plain(Status::Refused, why);
            }
        }
        let moved = SaName { source, destination, spi: name.spi };
        if self.book.is_of_another(way, &moved, &known.peer) {
            return Answer::plain(Status::Refused, OCCUPIED);
        }
        let said = Said { direction: way, source, destination, in_udp };
        let (to, port) = (said.ends(), said.both().0.port());
        let reqid = reqid.unwrap_or(known.reqid);
        let done = match self.own.peer(&known.peer).is_some() {
            true if in_udp && port != NAT_TRAVERSAL_PORT => {
                Err(Answer::plain(Status::Refused, NotOwn::Port(port).to_string()))
            }
            true => self.move_own(&known.peer, (reqid, to)).await,
            false => self.move_peer(&known.peer, to).await.map(drop),
        };
        if let Err(refused) = done {
            return refused;
        }
        self.book.rename(way, KnownSa { name: moved, reqid, ..known }, &name);
        Answer::done()
    }

    /// Moves a peer to the ends of an SA that is about to be put, if it is the first or seals.
    ///
    /// One that opens may have been negotiated from elsewhere while the one that seals still goes
    /// to the old place: that stays until there is one for the new place.
    /// Returns the ends from which it has moved.
    pub(super) async fn make_room(
        &mut self,
        sa: &AddSa,
        peer: &Arc<str>,
    ) -> Result<Option<PeerEnds>, Answer> {
        let way = direction(sa.direction);
        let seals = || {
            let picture = self.daemon.picture();
            let mut sets = picture.snapshot.sets();
            sets.any(|(_, set)| *set.peer == **peer && !set.outbound.is_empty())
        };
        let AddSa { name: SaName { source, destination, .. }, in_udp, .. } = *sa;
        let to = Said { direction: way, source, destination, in_udp }.ends();
        let own = self.own.peer(peer).map(OwnPeer::present);
        if own == Some(to) || (way == Direction::Inbound && seals()) {
            return Ok(None);
        }
        match own {
            Some(before) => self.move_own(peer, (sa.reqid, to)).await.map(|()| Some(before)),
            None => self.move_peer(peer, to).await,
        }
    }

    /// Moves a peer back to where it was, because the SA that it made room for does not come.
    pub(super) async fn move_back(&mut self, peer: &Arc<str>, reqid: u32, before: PeerEnds) {
        // Refused, it stays where charon said last.
        let _ = match self.own.peer(peer).is_some() {
            true => self.move_own(peer, (reqid, before)).await,
            false => self.move_peer(peer, before).await.map(drop),
        };
    }

    /// Moves a peer. Returns the ends from which it has moved; `None`: it has these already.
    async fn move_peer(&self, peer: &str, to: PeerEnds) -> Result<Option<PeerEnds>, Answer> {
        let peer = peer.to_owned();
        let done = self.daemon.order(|reply| Order::Sas(SaOrder::Move { peer, to, reply })).await;
        match done.unwrap_or(Err(MoveRefusal::Stopping)) {
            Ok(moved) => Ok(moved.map(|moved| moved.from)),
            Err(why) => Err(Answer::plain(Status::Refused, why.to_string())),
        }
    }

    /// Returns whether a policy stands in for a protecting one of charon's of the same name: charon
    /// has it drop packets while it moves the SAs. Here they move at once, and no packet that a
    /// policy of the configuration protects leaves in clear meanwhile, so there is nothing to do.
    pub(super) fn stands_in(&self, policy: &AddPolicy) -> bool {
        policy.action == PolicyAction::Drop
            && policy.policy.direction == PolicyDirection::Outbound
            && self.book.has_policy(&policy.policy)
    }

    /// The report that a peer was seen elsewhere than charon has it (RFC 7296 §2.23); `None`:
    /// charon knows, or was told a moment ago.
    pub(super) fn elsewhere(&mut self, seen: &SeenElsewhere) -> Option<Report> {
        let SeenElsewhere { peer, spi, at } = seen;
        let known = self.book.at(Direction::Inbound, *spi, peer)?;
        let place = SocketAddr::new(at.address, at.port);
        let (handle, name, is_orphan) = (known.handle, known.name, known.is_orphan);
        let peer = known.peer.clone();
        if is_orphan || name.source == place || !self.told.tell(&peer, place, Instant::now()) {
            return None;
        }
        Some(Report::Mapping { handle, peer: place })
    }
}
