//! Follows peers to where they are now, which need not be where the configuration says: peers
//! behind NATs show their place by their packets, and IKE moves SAs.
//!
//! Each SA of IKE has its own ends, and moves alone. Its set is between the ends of the newest SA
//! that seals. SAs of key files and of the API have no ends of their own: all of them go where
//! their peer is.
//!
//! The ends learned of a peer of such keys are kept over changes of configuration as long as its
//! mode, ends and UDP port are configured as before, and lost with the process: the peer's next
//! packet shows them again.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::SaSet;
use imbl::ordmap::DiffItem::{Add, Remove, Update};
use ipsec::{Encapsulation, Mode, SaError, SaId, Spi, Tunnel};
use policy::{Action, Direction, SaSetId};

use crate::compiled::Compiled;
use crate::move_error::MoveError;
use crate::owner::KeyManager;
use crate::peer_address::{PeerAddress, PeerEnds};
use crate::put_sas::SaName;
use config::validated::{KeySource, Peer, PeerPlace};

/// A peer that has moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MovedPeer {
    /// The peer's name.
    pub peer: String,
    /// The address that it had.
    pub from: PeerAddress,
    /// The address that it has now.
    pub to: PeerAddress,
}

/// An SA that IKE has moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MovedEnds {
    /// The name of its peer.
    pub peer: String,
    /// Its direction.
    pub direction: Direction,
    /// Its SPI.
    pub spi: Spi,
    /// The ends that it had.
    pub from: PeerEnds,
    /// The ends that it has now.
    pub to: PeerEnds,
}

/// A peer with a change of the ends of its newest SA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MovedSet {
    /// The peer's name.
    pub peer: String,
    /// Earlier ends.
    pub from: PeerEnds,
    /// Present ends.
    pub to: PeerEnds,
}

impl Compiled {
    /// Returns the peers with a newest outbound SA of IKE here and in an earlier state, and other
    /// ends here. Cost: by the SAs that differ.
    pub fn sets_moved_since(&self, before: &Compiled) -> Vec<MovedSet> {
        let sets: BTreeSet<SaSetId> = before
            .put
            .outbound
            .diff(&self.put.outbound)
            .map(|change| match change {
                Add(_, kept) | Remove(_, kept) | Update { new: (_, kept), .. } => kept.sa.set,
            })
            .collect();
        let moved = |set: SaSetId| {
            let (from, to) = before.newest_ends(set).zip(self.newest_ends(set))?;
            (from != to).then(|| MovedSet { peer: self.peer_of(set), from, to })
        };
        sets.into_iter().filter_map(moved).collect()
    }

    /// The ends of the newest outbound SA of a set, if IKE put the SA.
    fn newest_ends(&self, set: SaSetId) -> Option<PeerEnds> {
        let newest = self.order_of(set).last()?;
        self.ends_of(Direction::Outbound, *newest).map(|(_, ends)| ends)
    }

    /// Moves a peer to its present address: packets for it go there, and its packets are expected
    /// from there. Its set and its SAs are carried over, with their keys, numbers and windows, in
    /// their slots.
    ///
    /// Returns the peer with both addresses; `None`: it is there already.
    ///
    /// Cost: reads every policy once.
    ///
    /// # Errors
    /// [`MoveError`]: nothing was changed.
    pub fn move_peer(
        &mut self,
        set: SaSetId,
        to: PeerAddress,
    ) -> Result<Option<MovedPeer>, MoveError> {
        let (place, peer) = self.peer_of_set(set).ok_or(MoveError::Stays)?;
        if peer.place != PeerPlace::BehindNat || peer.keys == KeySource::Ike {
            return Err(MoveError::Stays);
        }
        let name = peer.name.clone();
        let before = self.present_ends(place);
        let (from, ends) = before.peer().zip(before.towards(to)).ok_or(MoveError::Stays)?;
        let moved = self.shift(place, ends)?;
        Ok(moved.then_some(MovedPeer { peer: name, from, to }))
    }

    /// Returns whether a set has an inbound SA of this SPI.
    pub fn has_opener(&self, set: SaSetId, spi: Spi) -> bool {
        self.sad.inbound_by_spi(spi).is_some_and(|sa| sa.set == set)
    }

    /// Checks that a peer of IKE may be at the source of an authentic packet of an inbound SA.
    ///
    /// # Errors
    /// [`MoveError`].
    pub fn may_have_moved(&self, set: SaSetId, spi: Spi, to: PeerAddress) -> Result<(), MoveError> {
        let sa = self.sad.inbound_by_spi(spi).filter(|sa| sa.set == set).ok_or(MoveError::Stays)?;
        let ends = PeerEnds::of(&sa.encapsulation).towards(to).ok_or(MoveError::Stays)?;
        self.may_have_ends(set, ends)
    }

    /// Moves one SA to other ends, as IKE says (RFC 4555, RFC 7296 §2.23), with its key, numbers,
    /// window, limits and use, in its slot. The other SAs of its peer stay where they are.
    ///
    /// Returns the SA with both; `None`: it has these ends already.
    ///
    /// Cost: by the SAs of the peer. A remote address that is new to the peer reads every policy
    /// once.
    ///
    /// # Errors
    /// [`MoveError`]: nothing was changed.
    pub fn move_sa(&mut self, name: &SaName, to: PeerEnds) -> Result<Option<MovedEnds>, MoveError> {
        let id = self.named(name).map_err(|_| MoveError::Stays)?;
        let (set, from) = self.ends_of(name.direction, id).ok_or(MoveError::Stays)?;
        self.may_have_ends(set, to)?;
        if from == to {
            return Ok(None);
        }
        self.carry_to(name.direction, id, to)?;
        let (direction, spi, peer) = (name.direction, name.spi, self.peer_of(set));
        Ok(Some(MovedEnds { peer, direction, spi, from, to }))
    }

    /// Has all SAs between the ends of an inbound SA of IKE go to where a packet of that SA came
    /// from. Returns the peer with both addresses; `None`: they are there already.
    ///
    /// Cost: by the SAs of the peer.
    ///
    /// # Errors
    /// [`MoveError`]: nothing was changed.
    pub fn follow_sa(&mut self, spi: Spi, to: PeerAddress) -> Result<Option<MovedPeer>, MoveError> {
        let sa = self.sad.inbound_by_spi(spi).ok_or(MoveError::Stays)?;
        let (set, before) = self.ends_of(Direction::Inbound, sa.id).ok_or(MoveError::Stays)?;
        let (from, ends) = before.peer().zip(before.towards(to)).ok_or(MoveError::Stays)?;
        self.may_have_ends(set, ends)?;
        if ends == before {
            return Ok(None);
        }
        let mut sas = self.sas_of(set);
        sas.retain(|(direction, id)| self.ends_of(*direction, *id) == Some((set, before)));
        // The first is refused if any is: all have the same ends.
        sas.into_iter().try_for_each(|(direction, id)| self.carry_to(direction, id, ends))?;
        Ok(Some(MovedPeer { peer: self.peer_of(set), from, to }))
    }

    /// The set of an SA that IKE put, and its ends.
    fn ends_of(&self, direction: Direction, id: SaId) -> Option<(SaSetId, PeerEnds)> {
        let (manager, set, way) = match direction {
            Direction::Outbound => {
                let kept = self.put.outbound.get(&id)?;
                (kept.manager, kept.sa.set, &kept.sa.encapsulation)
            }
            Direction::Inbound => {
                let kept = self.put.inbound.get(&id)?;
                (kept.manager, kept.sa.set, &kept.sa.encapsulation)
            }
        };
        (manager == KeyManager::Ike).then(|| (set, PeerEnds::of(way)))
    }

    /// Carries an SA that was put between other ends.
    ///
    /// # Errors
    /// [`MoveError`]: nothing was changed.
    fn carry_to(&mut self, direction: Direction, id: SaId, to: PeerEnds) -> Result<(), MoveError> {
        match direction {
            Direction::Outbound => {
                let Some(kept) = self.put.outbound.get(&id).cloned() else { return Ok(()) };
                let set = kept.sa.set;
                if kept.sa.card.is_some() {
                    return Err(MoveError::InCard { peer: self.peer_of(set) });
                }
                let moved = Arc::new(kept.sa.carried(to.carry(kept.sa.encapsulation))?);
                self.sad.put_outbound(moved.clone());
                self.put.outbound.insert(id, kept.around(moved));
                let is_newest = self.order_of(set).last() == Some(&id);
                // Another port at the same address is another place behind the NAT.
                if is_newest && let Some(known) = self.set_with(set).cloned() {
                    self.sad.put_set(known.moved_to(to.tunnel));
                }
                self.change_order(set, |_| ());
            }
            Direction::Inbound => {
                let Some(kept) = self.put.inbound.get(&id).cloned() else { return Ok(()) };
                if kept.sa.card.is_some() {
                    return Err(MoveError::InCard { peer: self.peer_of(kept.sa.set) });
                }
                let moved = Arc::new(kept.sa.carried(to.carry(kept.sa.encapsulation))?);
                // In its own slot, with its own SPI.
                let _ = self.sad.put_inbound(moved.clone());
                self.put.inbound.insert(id, kept.around(moved));
            }
        }
        Ok(())
    }

    /// The set of a number.
    fn set_with(&self, id: SaSetId) -> Option<&Arc<SaSet>> {
        self.sad.places().get(id).and_then(|place| self.sad.set(place))
    }

    /// The outbound SAs of a set, the newest last.
    fn order_of(&self, id: SaSetId) -> &[SaId] {
        self.set_with(id).map_or(&[], |set| &set.outbound)
    }

    /// Checks that an SA of IKE may have these ends: within the section of its peer, or within
    /// `[ike]`.
    ///
    /// # Errors
    /// [`MoveError`].
    pub(crate) fn may_have_ends(&self, set: SaSetId, ends: PeerEnds) -> Result<(), MoveError> {
        let Tunnel { local, remote } = ends.tunnel;
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(SaError::MixedFamilies { local, remote }.into());
        }
        if let Some(own) = self.ike.peer(set) {
            if ends.udp.is_some_and(|ports| ports.remote == 0) {
                return Err(MoveError::PortZero);
            }
            let beyond = || MoveError::BeyondIke { peer: own.name.clone(), local, remote };
            return self.admits_ends(ends.tunnel).then_some(()).ok_or_else(beyond);
        }
        let (place, peer) = self.peer_of_set(set).ok_or(MoveError::Stays)?;
        may_have(peer, ends)?;
        self.may_be_sent_to(place, ends)
    }

    /// The ends of a peer's SAs now, by its place in the file.
    fn present_ends(&self, place: usize) -> PeerEnds {
        let configured = PeerEnds::of(&self.settings().peers[place].encapsulation);
        self.moved_peers.0.get(&self.peers[place]).copied().unwrap_or(configured)
    }

    /// The peer of a set, as configured, or as charon made it.
    pub fn peer_named_by(&self, set: SaSetId) -> Option<&Peer> {
        self.peer_with(set)
    }

    /// The peer of a set, and its place in the file.
    fn peer_of_set(&self, set: SaSetId) -> Option<(usize, &Peer)> {
        let place = self.peers.iter().position(|known| *known == set)?;
        Some((place, self.settings().peers.get(place)?))
    }

    /// Checks that packets can be sent between these ends without harm.
    fn may_be_sent_to(&self, place: usize, to: PeerEnds) -> Result<(), MoveError> {
        let peer = &self.settings().peers[place];
        for address in [to.tunnel.local, to.tunnel.remote] {
            if let Some(why) = config::unusable(address) {
                return Err(MoveError::Unusable { address, why });
            }
        }
        if to.udp.is_some_and(|ports| ports.remote == 0) {
            return Err(MoveError::PortZero);
        }
        if to == self.present_ends(place) {
            return Ok(());
        }
        let Encapsulation { mode, tunnel, .. } = peer.encapsulation;
        let address = to.tunnel.remote;
        if mode == Mode::Transport && to.tunnel != tunnel {
            return Err(MoveError::Transport { peer: peer.name.clone(), address });
        }
        if address == tunnel.remote || self.has_sa_towards(self.peers[place], address) {
            return Ok(());
        }
        match self.policy_around(self.peers[place], address, tunnel.remote) {
            Some(policy) => Err(MoveError::BehindPeer { address, policy }),
            None => Ok(()),
        }
    }

    /// Returns whether an SA of IKE in a set has a remote address. Cost: by the SAs of the set.
    fn has_sa_towards(&self, set: SaSetId, address: IpAddr) -> bool {
        self.sas_of(set).iter().any(|(direction, id)| {
            self.ends_of(*direction, *id).is_some_and(|(_, ends)| ends.tunnel.remote == address)
        })
    }

    /// The SAs of a set.
    fn sas_of(&self, set: SaSetId) -> Vec<(Direction, SaId)> {
        let place = self.sad.places().get(set);
        let opening = place.map_or(&[][..], |place| self.sad.openers_of(place));
        let sealing = self.order_of(set).iter().map(|id| (Direction::Outbound, *id));
        sealing.chain(opening.iter().map(|id| (Direction::Inbound, *id))).collect()
    }

    /// Moves a peer to other ends: its SAs, in their slots, and its set. Returns whether it was
    /// elsewhere.
    ///
    /// # Errors
    /// [`MoveError`]: nothing was changed.
    fn shift(&mut self, place: usize, to: PeerEnds) -> Result<bool, MoveError> {
        self.may_be_sent_to(place, to)?;
        if to == self.present_ends(place) {
            return Ok(false);
        }
        let known = self.set_of(place).clone();
        let id = known.id;
        let in_card = || MoveError::InCard { peer: known.peer.clone() };
        let mut carried = (Vec::new(), Vec::new());
        for sa in &known.outbound {
            let sa = self.sad.outbound_sa(*sa);
            if sa.card.is_some() {
                return Err(in_card());
            }
            carried.0.push(sa.carried(to.carry(sa.encapsulation))?);
        }
        for sa in self.sad.inbound().filter(|sa| sa.set == id) {
            if sa.card.is_some() {
                return Err(in_card());
            }
            carried.1.push(sa.carried(to.carry(sa.encapsulation))?);
        }
        carried.0.into_iter().for_each(|sa| self.sad.put_outbound(Arc::new(sa)));
        for sa in carried.1 {
            // In its own slot, with its own SPI.
            let _ = self.sad.put_inbound(Arc::new(sa));
        }
        self.sad.put_set(known.moved_to(to.tunnel));
        self.moved_peers.0.insert(id, to);
        Ok(true)
    }

    /// The name of a policy that protects with this set and has `address` among its remote
    /// addresses, but not the peer's `configured` address. A policy to everywhere has both.
    fn policy_around(&self, set: SaSetId, address: IpAddr, configured: IpAddr) -> Option<String> {
        let holds = |policy: &policy::Policy, address: IpAddr| {
            policy.selector.remote.iter().any(|range| range.contains(address.into()))
        };
        let mut policies = self.spd.holding_policies().map(|(_, policy)| policy);
        let around = policies.find(|policy| {
            policy.action == Action::Protect(set)
                && holds(policy, address)
                && !holds(policy, configured)
        });
        around.map(|policy| policy.name.clone())
    }

    /// Keeps what `earlier` has learned of peers whose configuration says the same of where they
    /// are, and still lets them be where they have moved to.
    pub fn keep_moved_peers(&mut self, earlier: &Compiled) {
        if earlier.moved_peers.0.is_empty() {
            return;
        }
        let known = earlier.peers.iter().zip(&earlier.settings().peers);
        let known: HashMap<SaSetId, (&Peer, PeerEnds)> = known
            .filter_map(|(set, peer)| Some((*set, (peer, *earlier.moved_peers.0.get(set)?))))
            .collect();
        for (place, set) in self.peers.clone().iter().enumerate() {
            let now = &self.settings().peers[place];
            if let Some((before, to)) = known.get(set)
                && says_the_same(before, now)
                && now.keys != KeySource::Ike
            {
                // It was taken once, under the same configuration.
                if self.shift(place, *to).is_ok() {
                    self.keep_path_mtu(place, earlier);
                }
            }
        }
    }

    /// Keeps what `earlier` has learned of the path to a peer, by its place in the file.
    fn keep_path_mtu(&mut self, peer: usize, earlier: &Compiled) {
        let mut set = SaSet::clone(self.set_of(peer));
        let before = earlier.sad.places().get(set.id).and_then(|place| earlier.sad.set(place));
        if let Some(before) = before {
            set.keep_path_mtu_of(before);
            self.sad.put_set(set);
        }
    }

    /// Returns the present addresses of the peers, in the order of the file, then those of charon's
    /// own, then the remote ends of all SAs that were put.
    pub fn remotes(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let own = self.ike_peers().map(|peer| peer.tunnel().remote);
        let sealing = self.put.outbound.values().map(|kept| kept.sa.tunnel().remote);
        let opening = self.put.inbound.values().map(|kept| kept.sa.tunnel().remote);
        self.sets().map(|set| set.tunnel.remote).chain(own).chain(sealing).chain(opening)
    }
}

/// Checks that a peer's section lets IKE move its SAs to these ends.
fn may_have(peer: &Peer, to: PeerEnds) -> Result<(), MoveError> {
    let name = || peer.name.clone();
    let Encapsulation { mode, tunnel, udp, .. } = peer.encapsulation;
    let is_fixed = peer.moves.is_none() && peer.place == PeerPlace::Fixed;
    if is_fixed && to.udp.is_some() != udp.is_some() {
        let configured = if udp.is_some() { "udp" } else { "none" };
        return Err(MoveError::Form { peer: name(), configured });
    }
    if peer.may_be_between(to.tunnel) {
        return Ok(());
    }
    if mode == Mode::Transport {
        return Err(MoveError::Transport { peer: name(), address: to.tunnel.remote });
    }
    let local = to.tunnel.local;
    let may_be_ours =
        local == tunnel.local || peer.moves.local.iter().any(|range| range.contains(local.into()));
    let (to, end, key, ranges) = match may_be_ours {
        true => (to.tunnel.remote, "remote", "moves_to", &peer.moves.remote),
        false => (local, "local", "local_moves_to", &peer.moves.local),
    };
    let allowed = match &config::validated::addresses(ranges)[..] {
        [] => format!("there is no `{key}`"),
        some => format!("`{key}` has {}", some.join(", ")),
    };
    Err(MoveError::NotAllowed { peer: name(), to, end, key, allowed })
}

fn says_the_same(before: &Peer, now: &Peer) -> bool {
    let of = |peer: &Peer| {
        let Encapsulation { mode, tunnel, udp, .. } = peer.encapsulation;
        (mode, tunnel, udp, peer.place)
    };
    of(before) == of(now) && before.keys == now.keys
}
