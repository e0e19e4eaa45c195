//! Moves of SAs for which `[ike]` has charon make peers by itself ([`own`](super::own)).
//!
//! Their ends go wherever the section lets charon make tunnels. charon takes a protecting policy
//! away before it moves the SAs, and has another one drop packets until the policy comes again
//! with the other ends: meanwhile the policy runs on here, so no packet is lost for want of it.

use std::sync::Arc;

use charon_link::{AddPolicy, Answer, PolicyAction, Selector, Status};
use config::BeyondBounds;
use control::PeerEnds;

use super::desk::Desk;
use super::own::{NotOwn, pairs, selector_of};

fn refused(why: impl std::fmt::Display) -> Answer {
    Answer::plain(Status::Refused, why.to_string())
}

impl Desk {
    /// Moves all SAs of a peer of charon's own, whose number is this one from now on.
    pub(super) async fn move_own(
        &mut self,
        name: &Arc<str>,
        (reqid, to): (u32, PeerEnds),
    ) -> Result<(), Answer> {
        let Some(own) = self.own.peer(name) else { return Err(Answer::plain(Status::Unknown, "")) };
        let ends = [to.tunnel.local, to.tunnel.remote];
        if own.present() == to && own.numbers.contains(&(reqid, ends)) {
            return Ok(());
        }
        let is_there = own.present() == to;
        let picture = self.daemon.picture();
        let bounds = picture.config().ike.as_ref();
        let bounds = bounds.filter(|_| !self.peers.has_ends(ends));
        let of_file = || refused(NotOwn::OfFile(ends[0], ends[1]));
        let bounds = bounds.ok_or_else(of_file)?;
        let change = self.own.plan_move(name, (reqid, to), bounds).map_err(refused)?;
        if !is_there {
            self.change(change).await.map_err(refused)?;
        }
        self.own.note_move(name, (reqid, to));
        self.forget_spare_numbers(name);
        Ok(())
    }

    /// Checks selectors that an SA of charon's own has from now on, local and remote.
    pub(super) fn check_own_selectors(&self, selectors: [&[Selector]; 2]) -> Result<(), NotOwn> {
        let picture = self.daemon.picture();
        let bounds = picture.config().ike.as_ref().ok_or(BeyondBounds::Packets)?;
        for pair in pairs(selectors) {
            bounds.admit_packets(&selector_of(&pair)?)?;
        }
        Ok(())
    }

    /// Takes note that a policy of charon's is gone that is not known here: it may have stood in
    /// for one that protects, which goes if charon has not added it again.
    pub(super) async fn stand_down(&mut self, policy: &AddPolicy) -> Answer {
        let stood = policy.action == PolicyAction::Drop;
        let peer = stood.then(|| self.own.stand_down(policy)).flatten();
        match peer {
            Some(peer) => match self.tidy_peer(&peer).await {
                Ok(()) => Answer::plain(Status::Unknown, ""),
                Err(why) => refused(why),
            },
            None => Answer::plain(Status::Unknown, ""),
        }
    }
}
