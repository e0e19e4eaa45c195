//! SAs whose ends move, and peers that were seen elsewhere.
//!
//! Ends belong to an SA. A move takes one SA elsewhere in one snapshot, with key, numbers, window,
//! limits and use; the other SAs of its peer stay. The peer's section says how far an SA may go,
//! `[ike]` says it for peers of charon's own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use charon_link::{
    AddPolicy, Answer, PolicyAction, PolicyDirection, Report, SaName, Status, UpdateSa,
};
use control::PeerEnds;
use ipsec::Spi;
use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use policy::Direction;

use super::book::{KnownSa, OCCUPIED};
use super::desk::Desk;
use super::own::{NotOwn, remote_end};
use super::requested_ends::RequestedEnds;
use crate::gateway::{MoveRefusal, SeenElsewhere, is_inside};
use crate::orders::{Order, SaOrder};

impl Desk {
    /// Moves an SA of charon's to other ends.
    pub(super) async fn update_sa(&mut self, asked: UpdateSa) -> Answer {
        let UpdateSa { handle, source, destination, in_udp, reqid, ref selectors } = asked;
        let Some((way, known)) = self.known(handle) else {
            return Answer::plain(Status::Unknown, "");
        };
        let moved = SaName { source, destination, spi: known.name.spi };
        if self.book.is_of_another(way, &moved, &known.peer) {
            return Answer::plain(Status::Refused, OCCUPIED);
        }
        if let Some(why) = selectors.as_ref().and_then(|of| self.lacks(of, way, &known)) {
            return Answer::plain(Status::Refused, why);
        }
        let said = RequestedEnds { direction: way, source, destination, in_udp };
        let before = known.reqid;
        let (to, reqid) = (said.ends(), reqid.unwrap_or(before));
        let is_own = self.own.peer(&known.peer).is_some();
        if is_own {
            let port = said.both().0.port();
            let checked = match in_udp && port != NAT_TRAVERSAL_PORT {
                true => Err(NotOwn::Port(port)),
                false => self.check_own_move(&known.peer, (reqid, to)),
            };
            if let Err(why) = checked {
                return Answer::plain(Status::Refused, why.to_string());
            }
        }
        if let Err(refused) = self.move_sa((way, &known), to).await {
            return refused;
        }
        let (name, peer) = (known.name, known.peer.clone());
        let selectors = match asked.selectors {
            Some(mut selectors) => {
                if way == Direction::Inbound {
                    selectors.reverse();
                }
                Arc::new(selectors)
            }
            None => known.selectors.clone(),
        };
        self.book.rename(way, KnownSa { name: moved, reqid, selectors, ..known }, &name);
        if is_own {
            // A move without another reqid says nothing of the newest SA's.
            if reqid != before {
                self.own.note_number(&peer, reqid);
            }
            // The remote end of the newest SA has the share.
            let picture = self.daemon.picture();
            let running = picture.compiled.ike_peer(&peer);
            let ends = running.map_or(to, |running| PeerEnds::of(&running.encapsulation));
            self.own.note_end(&peer, remote_end(&ends));
            self.forget_numbers(&peer);
        }
        Answer::done()
    }

    /// The reason why an SA may not have other selectors; `None`: it may.
    fn lacks(
        &self,
        selectors: &[Vec<charon_link::Selector>; 2],
        way: Direction,
        known: &KnownSa,
    ) -> Option<String> {
        let mut selectors = selectors.each_ref().map(Vec::as_slice);
        if way == Direction::Inbound {
            selectors.reverse();
        }
        match self.peers.named(&known.peer) {
            Some(peer) => peer.is_served_by(selectors).err().map(|why| why.to_string()),
            None => self.check_own_selectors(selectors).err().map(|why| why.to_string()),
        }
    }

    async fn move_sa(
        &self,
        (way, known): (Direction, &KnownSa),
        to: PeerEnds,
    ) -> Result<(), Answer> {
        let unknown = || Answer::plain(Status::Unknown, "");
        let spi = Spi::new(known.name.spi).ok_or_else(unknown)?;
        let name = control::SaName { direction: way, spi, peer: Some(known.peer.to_string()) };
        let done = self.daemon.order(|reply| Order::Sas(SaOrder::Move { name, to, reply })).await;
        let done = done.unwrap_or(Err(MoveRefusal::Stopping));
        done.map(drop).map_err(|why| Answer::plain(Status::Refused, why.to_string()))
    }

    /// Checks that the remote end of an SA that is to be put is no address of this gateway and not
    /// behind a protected port. The end that the peer has already is not checked again.
    pub(super) fn check_remote(&self, peer: &str, ends: PeerEnds) -> Result<(), Answer> {
        let (picture, address) = (self.daemon.picture(), ends.tunnel.remote);
        let own = picture.compiled.ike_peer(peer);
        let section = own.or_else(|| self.peers.named(peer).map(|peer| &peer.section));
        let is_other = section.is_none_or(|peer| peer.tunnel().remote != address);
        match is_other && is_inside(&picture.snapshot, address) {
            true => {
                let inside = MoveRefusal::Inside { peer: peer.to_owned(), address };
                Err(Answer::plain(Status::Refused, inside.to_string()))
            }
            false => Ok(()),
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
        if known.is_orphan || known.name.source == place || !known.reports(place, Instant::now()) {
            return None;
        }
        Some(Report::Mapping { handle: known.handle, peer: place })
    }
}
