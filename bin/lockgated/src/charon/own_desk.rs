//! Carries out requests for what charon makes by itself ([`own`](super::own)).
//!
//! A policy or peer is published before charon is told that it is there, and it is gone from the
//! workers before charon is told so. In between packets wait or are dropped: a policy without an SA
//! protects, and an SA without a policy carries nothing.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

use charon_link::{
    AddPolicy, AddSa, Answer, Hardness, LinkMode, PolicyAction, PolicyDirection, Report, Selector,
    Status,
};
use config::{BeyondBounds, IkeBounds};
use control::{IkeChange, PeerEnds};
use ipsec::{Mode, Suite, Tunnel};

use super::desk::{Desk, Home, NewPeer, ROOT};
use super::matching::NoPeer;
use super::own::{
    Ends, NotOwn, OwnForm, OwnKey, OwnPeer, REPLAY_WINDOW, check_sa, local_first, remote_end,
    selector_of, shunt_action,
};
use super::own_return::Coming;
use super::selector_pairs::{have_common_packet, pairs};
use super::small_set::SmallSet;
use crate::ike_changes::{IkeRefusal, MadeIke};
use crate::sa_changes::SaPut;

fn refused(why: impl std::fmt::Display) -> Answer {
    Answer::plain(Status::Refused, why.to_string())
}

/// The refusal of selectors: the CHILD_SA of the reqid has none of their packets.
fn other_packets(reqid: u32, peer: &Arc<str>, selectors: [&[Selector]; 2]) -> NotOwn {
    let [local, remote] = selectors.map(|of| of.first().map(ToString::to_string));
    let packets = format!("{} - {}", local.unwrap_or_default(), remote.unwrap_or_default());
    NotOwn::OtherPackets { reqid, peer: peer.clone(), packets }
}

impl Desk {
    /// The bounds of the running configuration, if nothing of the file is between two ends.
    ///
    /// # Errors
    /// The answer that nothing may be there.
    fn bounds_between(&self, [local, remote]: Ends) -> Result<IkeBounds, Answer> {
        let picture = self.daemon.picture();
        let bounds = picture.config().ike.as_ref();
        match bounds.filter(|_| !self.peers.has_ends([local, remote])) {
            Some(bounds) => Ok(bounds.clone()),
            None => Err(refused(NoPeer::Ends { local, remote })),
        }
    }

    /// Checks that charon may make tunnels between two ends by itself.
    pub(super) fn check_own_ends(&self, ends: Ends) -> Result<(), Answer> {
        let bounds = self.bounds_between(ends)?;
        bounds.admit_tunnel(ends[0], ends[1]).map_err(refused)
    }

    /// Makes a change of what charon makes by itself. The peers of the file stay known.
    pub(super) async fn change(&mut self, change: IkeChange) -> Result<(), IkeRefusal> {
        let made = self.daemon.change_ike(change).await?;
        self.follow_change(&made);
        Ok(())
    }

    fn follow_change(&mut self, made: &MadeIke) {
        self.peers_of = self.peers_of.map(|(revision, generation)| {
            (revision, if generation == made.before { made.after } else { generation })
        });
    }

    /// Has a policy of charon's between ends of no peer in the file run, if it is outbound; checks
    /// another.
    pub(super) async fn protect(&mut self, policy: &AddPolicy, ends: Ends) -> Result<(), Answer> {
        let bounds = self.bounds_between(ends)?;
        bounds.admit_tunnel(ends[0], ends[1]).map_err(refused)?;
        let selectors = local_first(policy);
        if policy.policy.direction != PolicyDirection::Outbound {
            let selector = selector_of(&selectors).map_err(refused)?;
            return bounds.admit_packets(&selector).map_err(refused);
        }
        let mut coming = Coming::default();
        self.plan_protect(policy, &bounds, &mut coming).map_err(refused)?;
        self.make(coming).await.map_err(refused)
    }

    /// Has a shunt of charon's run, if it is outbound; checks another.
    pub(super) async fn shunt(&mut self, policy: &AddPolicy) -> Result<(), Answer> {
        let picture = self.daemon.picture();
        let Some(bounds) = &picture.config().ike else {
            return Err(refused(
                "policies that pass or drop packets stand in Lockgate's configuration, which \
                 charon does not change: there is no [ike] that lists some",
            ));
        };
        let selectors = local_first(policy);
        if policy.policy.direction != PolicyDirection::Outbound {
            let selector = selector_of(&selectors).map_err(refused)?;
            let action = shunt_action(policy.action);
            return bounds.admit_shunt(action, &selector).map_err(refused);
        }
        let mut coming = Coming::default();
        self.plan_shunt(policy, bounds, &mut coming).map_err(refused)?;
        self.make(coming).await.map_err(refused)
    }

    /// The peer of charon's own that an SA is for; one that is not there is to come with the SA.
    /// Selectors and ends are in the order local, remote.
    pub(super) async fn own_home(
        &mut self,
        sa: &AddSa,
        suite: Suite,
        (ends, selectors): ([SocketAddr; 2], [&[Selector]; 2]),
    ) -> Result<Home, Answer> {
        let addresses = ends.map(|end| end.ip());
        let bounds = self.bounds_between(addresses)?;
        let mode = match sa.mode {
            LinkMode::Tunnel => Mode::Tunnel,
            LinkMode::Transport => Mode::Transport,
        };
        let ends = check_sa(&bounds, ends, (mode, sa.in_udp, suite), selectors).map_err(|why| {
            let is_suite = matches!(why, NotOwn::Beyond(config::BeyondBounds::Suite(_)));
            let status = if is_suite { Status::NoSuite } else { Status::Refused };
            Answer::plain(status, why.to_string())
        })?;
        let known = self.own.numbered(sa.reqid).cloned();
        if let Some(name) = &known
            && !self.has_packets_of(name, selectors)
        {
            return Err(refused(other_packets(sa.reqid, name, selectors)));
        }
        let known = known.or_else(|| self.own.take_over(sa.reqid, pairs(selectors)));
        let (lifetime, window) = (bounds.lifetime, REPLAY_WINDOW);
        let Some(name) = known else {
            let number = (sa.reqid, remote_end(&ends));
            let form = OwnForm { ends, suite: Some(suite) };
            let (name, peer) = self.own.plan_peer(number, form, &bounds).map_err(refused)?;
            let new = NewPeer { name: name.clone(), peer, number };
            return Ok(Home { name, lifetime, window, ends, new: Some(new) });
        };
        Ok(Home { name, lifetime, window, ends, new: None })
    }

    /// Returns whether a policy or an SA of a peer has a packet of these selectors, local and
    /// remote, or the peer has neither.
    pub(super) fn has_packets_of(&self, name: &Arc<str>, selectors: [&[Selector]; 2]) -> bool {
        let mut policies = self.own.peer(name).into_iter().flat_map(|peer| peer.policies.iter());
        let mut sas = self.book.sas_of_peer(name).filter(|(_, sa)| !sa.has_ended).peekable();
        let is_new = sas.peek().is_none() && self.own.peer(name).is_none_or(OwnPeer::is_bare);
        is_new
            || policies
                .any(|of| have_common_packet(of.each_ref().map(std::slice::from_ref), selectors))
            || sas.any(|(_, sa)| {
                have_common_packet(sa.selectors.each_ref().map(Vec::as_slice), selectors)
            })
    }

    /// Checks that a policy belongs to the CHILD_SA of its reqid: both have a packet in common, or
    /// a running policy of the CHILD_SA has the same ends. A child with several selectors adds its
    /// policies one by one.
    ///
    /// # Errors
    /// [`NotOwn::OtherPackets`].
    pub(super) fn check_policy_of(
        &self,
        name: &Arc<str>,
        policy: &AddPolicy,
    ) -> Result<(), NotOwn> {
        let selectors = local_first(policy);
        let ends = |of: &AddPolicy| [of.policy.source.ip(), of.policy.destination.ip()];
        let is_beside = |of: &AddPolicy| {
            ends(of) == ends(policy)
                && self.own.runs(&OwnKey::Protect(name.clone(), local_first(of)))
        };
        let pair = selectors.each_ref().map(std::slice::from_ref);
        let is_of_child =
            self.book.policies_of(policy.reqid).any(is_beside) || self.has_packets_of(name, pair);
        is_of_child.then_some(()).ok_or_else(|| other_packets(policy.reqid, name, pair))
    }

    /// Puts the first SA of a peer that comes with it: neither is there without the other.
    pub(super) async fn put_first(&mut self, new: NewPeer, put: SaPut) -> Result<(), IkeRefusal> {
        let NewPeer { name, peer, number } = new;
        let change = IkeChange { peers: vec![peer], ..IkeChange::default() };
        let made = self.daemon.put_first_sas(change, put, ROOT).await?;
        self.follow_change(&made);
        self.own.note_peer(&name, number);
        Ok(())
    }

    /// Forgets reqids of a peer that nothing of charon's has any more.
    pub(super) fn forget_numbers(&mut self, name: &Arc<str>) {
        let book = &self.book;
        self.own.forget_numbers(name, |reqid| {
            book.has_policy_of(reqid) || book.sas_of(reqid).next().is_some()
        });
    }

    /// Takes away what charon has no policy or SA for any more: of one peer of its own.
    pub(super) async fn tidy_peer(&mut self, name: &Arc<str>) -> Result<(), IkeRefusal> {
        self.forget_numbers(name);
        let Some(peer) = self.own.peer(name) else { return Ok(()) };
        let is_live = |of: &super::book::KnownSa| of.is_orphan && !of.has_ended;
        let is_left = self.book.sas_of_peer(name).any(|(_, sa)| is_live(sa));
        let is_wanted = |selectors: &&[Selector; 2]| {
            is_left
                || self.own.is_stood_in_for(name, selectors)
                || self.wants(PolicyAction::Protect, selectors, Some(&peer.numbers))
        };
        let gone: Vec<OwnKey> = peer
            .policies
            .iter()
            .filter(|selectors| !is_wanted(selectors))
            .map(|selectors| OwnKey::Protect(name.clone(), selectors.clone()))
            .collect();
        let has_sas = self.book.sas_of_peer(name).any(|(_, sa)| !sa.is_orphan || is_live(sa));
        let goes = gone.len() == peer.policies.len() && !has_sas;
        self.take_away(&gone, if goes { std::slice::from_ref(name) } else { &[] }).await
    }

    /// Takes away shunts that charon has no more.
    async fn tidy_shunts(&mut self, keys: impl Iterator<Item = OwnKey>) -> Result<(), IkeRefusal> {
        let gone: Vec<OwnKey> = keys
            .filter(|key| match key {
                OwnKey::Shunt(action, selectors) => {
                    self.own.runs(key) && !self.wants(*action, selectors, None)
                }
                OwnKey::Protect(..) => false,
            })
            .collect();
        self.take_away(&gone, &[]).await
    }

    /// Takes away what follows from these policies of charon's, which are gone.
    pub(super) async fn tidy_after(&mut self, gone: &[AddPolicy]) -> Answer {
        let (mut peers, mut shunts) = (HashSet::new(), HashSet::new());
        for policy in gone.iter().filter(|of| of.policy.direction == PolicyDirection::Outbound) {
            match policy.action {
                PolicyAction::Protect => peers.extend(self.own.numbered(policy.reqid).cloned()),
                action => _ = shunts.insert(OwnKey::Shunt(action, local_first(policy))),
            }
        }
        let mut done = Answer::done();
        for peer in peers {
            if let Err(why) = self.tidy_peer(&peer).await {
                done = refused(why);
            }
        }
        if let Err(why) = self.tidy_shunts(shunts.into_iter()).await {
            done = refused(why);
        }
        done
    }

    /// Takes away all that charon has no policy or SA for any more.
    pub(super) async fn tidy(&mut self) -> Answer {
        let mut done = Answer::done();
        for peer in self.own.names() {
            if let Err(why) = self.tidy_peer(&peer).await {
                done = refused(why);
            }
        }
        let shunts = self.own.shunts();
        if let Err(why) = self.tidy_shunts(shunts.into_iter()).await {
            done = refused(why);
        }
        done
    }

    /// Takes policies and peers away, in one transaction.
    async fn take_away(&mut self, keys: &[OwnKey], peers: &[Arc<str>]) -> Result<(), IkeRefusal> {
        if keys.is_empty() && peers.is_empty() {
            return Ok(());
        }
        let change = self.own.plan_removal(keys, peers);
        self.change(change).await?;
        keys.iter().for_each(|key| self.own.forget_policy(key));
        peers.iter().for_each(|peer| self.own.forget_peer(peer));
        Ok(())
    }

    /// Returns whether charon has an outbound policy. A protecting policy has one of these reqids,
    /// and no ends of the file.
    fn wants(
        &self,
        action: PolicyAction,
        selectors: &[Selector; 2],
        numbers: Option<&SmallSet<u32>>,
    ) -> bool {
        let ends = |policy: &AddPolicy| -> Ends {
            [policy.policy.source.ip(), policy.policy.destination.ip()]
        };
        let mut policies = self.book.policies_with(PolicyDirection::Outbound, selectors);
        policies.any(|policy| {
            let is_of = |numbers: &SmallSet<u32>| {
                numbers.contains(&policy.reqid) && !self.peers.has_ends(ends(policy))
            };
            policy.action == action && numbers.is_none_or(is_of)
        })
    }

    /// Follows another configuration: forgets what it does not have, and reports SAs that went with
    /// it as ended, so that charon makes others. What it admits anew is to be brought back.
    pub(super) async fn follow(&mut self) {
        let picture = self.daemon.picture();
        let gone: HashSet<Arc<str>> = self.own.follow(&picture.compiled).into_iter().collect();
        // Others went alone: `keys` or `suites` changed. One that ended before was reported then.
        let mut lost = self.book.sas_that(|sa| !sa.has_ended && !sa.is_orphan);
        lost.retain(|(way, sa)| !gone.contains(&sa.peer) && self.used(*way, sa).is_none());
        lost.extend(self.book.sas_that(|sa| gone.contains(&sa.peer)));
        for (way, sa) in lost {
            if !sa.has_ended {
                self.due.push(Report::Expire { handle: sa.handle, hardness: Hardness::Hard });
            }
            self.book.forget(way, &sa.name);
        }
        (self.must_bring_back, self.retry_at) = (true, None);
    }

    pub(super) fn runs_as_own(&self, policy: &AddPolicy) -> bool {
        let selectors = local_first(policy);
        match policy.action {
            PolicyAction::Protect => self
                .own
                .numbered(policy.reqid)
                .is_some_and(|name| self.own.runs(&OwnKey::Protect(name.clone(), selectors))),
            action => self.own.runs(&OwnKey::Shunt(action, selectors)),
        }
    }

    /// Checks that an SA of charon's own may go to other ends, with a reqid.
    ///
    /// # Errors
    /// [`NotOwn`].
    pub(super) fn check_own_move(
        &self,
        name: &Arc<str>,
        (reqid, to): (u32, PeerEnds),
    ) -> Result<(), NotOwn> {
        let Tunnel { local, remote } = to.tunnel;
        let picture = self.daemon.picture();
        let bounds =
            picture.config().ike.as_ref().filter(|_| !self.peers.has_ends([local, remote]));
        bounds.ok_or(NotOwn::OfFile(local, remote))?.admit_tunnel(local, remote)?;
        if to.udp.is_some_and(|ports| ports.remote == 0) {
            return Err(NotOwn::NoPort);
        }
        match self.own.numbered(reqid).is_some_and(|known| known != name) {
            true => Err(NotOwn::Occupied(reqid)),
            false => Ok(()),
        }
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

    /// Removes a policy that may have stood in for a protecting policy. charon removes a protecting
    /// policy before a move of its SAs, and a policy drops packets until the policy with the new
    /// ends comes. Meanwhile the protecting policy runs on here.
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
