//! Follows peers to where they are now, which need not be where the configuration says: peers
//! behind NATs show it by their packets, and IKE says it of peers whose SAs it negotiates.
//!
//! The ends learned of a peer are kept over changes of configuration as long as its mode, ends
//! and UDP port are configured as before, and lost with the process: the peer's next packet shows
//! them again, or IKE negotiates new SAs.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::SaSet;
use ipsec::{Encapsulation, Mode, SaError};
use policy::{Action, SaSetId};

use crate::compiled::Compiled;
use crate::peer_address::{PeerAddress, PeerEnds};
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

/// A peer whose SAs IKE has moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MovedEnds {
    /// The peer's name.
    pub peer: String,
    /// The ends that its SAs had.
    pub from: PeerEnds,
    /// The ends that they have now.
    pub to: PeerEnds,
}

/// The reason why a peer is not taken to be where it seems to be. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MoveError {
    /// No such peer, or its configuration says that it stays where it is.
    #[error("the peer stays where the configuration says")]
    Stays,
    /// The address is that of no single machine.
    #[error("{address} is {why}")]
    Unusable {
        /// The address.
        address: IpAddr,
        /// Kind of address that it is.
        why: &'static str,
    },
    /// No UDP datagram can be sent to port 0.
    #[error("packets cannot be sent to UDP port 0")]
    PortZero,
    /// The address lies in a network behind the peer: packets sealed for that network would be sent
    /// there.
    #[error(
        "{address} is among the `remote` addresses of policy `{policy}`, the networks behind the \
         peer, and its configured address is not"
    )]
    BehindPeer {
        /// Its new address, as it seems.
        address: IpAddr,
        /// The policy's name.
        policy: String,
    },
    /// In transport mode only the port may change: packets keep their own addresses, which the
    /// policies name.
    #[error("{address}: in transport mode only the port of peer `{peer}` may change")]
    Transport {
        /// The peer's name.
        peer: String,
        /// Its new address, as it seems.
        address: IpAddr,
    },
    /// IKE moves an end to where the peer's section does not say.
    #[error(
        "peer {peer} may not move to {to}: neither `{end}` of its section nor `{key}` has that \
         address; {allowed}"
    )]
    NotAllowed {
        /// The peer's name.
        peer: String,
        /// The address.
        to: IpAddr,
        /// Key of the end as configured.
        end: &'static str,
        /// Key of the addresses that it may move to.
        key: &'static str,
        /// The addresses that the key has, in words.
        allowed: String,
    },
    /// IKE puts ESP into UDP, or no more, and the peer's section says that it stays as it is.
    #[error(
        "peer {peer} has encapsulation = \"{configured}\" and charon wants the other: write \
         that, or, if it moves to and fro behind NATs, `moves_to`"
    )]
    Form {
        /// The peer's name.
        peer: String,
        /// The form of its section.
        configured: &'static str,
    },
    /// `[ike]` does not admit it.
    #[error("[ike] does not admit tunnels of peer {peer} between {local} and {remote}")]
    BeyondIke {
        /// The peer's name.
        peer: String,
        /// This gateway's end.
        local: IpAddr,
        /// The other end.
        remote: IpAddr,
    },
    /// A card has one of its SAs, whose headers stay.
    #[error("an SA of peer {peer} is in a card, which cannot move it: new ones can go there")]
    InCard {
        /// The peer's name.
        peer: String,
    },
    /// The address is of the other family than the gateway's own address.
    #[error(transparent)]
    Sa(#[from] SaError),
}

impl Compiled {
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
        if peer.place != PeerPlace::BehindNat {
            return Err(MoveError::Stays);
        }
        let name = peer.name.clone();
        let before = self.present_ends(place);
        let (from, ends) = before.peer().zip(before.towards(to)).ok_or(MoveError::Stays)?;
        let moved = self.shift(place, ends)?;
        Ok(moved.then_some(MovedPeer { peer: name, from, to }))
    }

    /// Checks that a peer whose SAs IKE negotiates may be where an authentic packet came from.
    ///
    /// # Errors
    /// [`MoveError`].
    pub fn may_have_moved(&self, set: SaSetId, to: PeerAddress) -> Result<(), MoveError> {
        if let Some(own) = self.ike.peer(set) {
            let ends = PeerEnds::of(&own.encapsulation).towards(to).ok_or(MoveError::Stays)?.tunnel;
            let (peer, local, remote) = (own.name.clone(), ends.local, ends.remote);
            let beyond = MoveError::BeyondIke { peer, local, remote };
            return self.admits_ends(ends).then_some(()).ok_or(beyond);
        }
        let (place, peer) = self.peer_of_set(set).ok_or(MoveError::Stays)?;
        let ends = self.present_ends(place).towards(to).ok_or(MoveError::Stays)?;
        may_have(peer, ends)?;
        self.may_be_sent_to(place, ends)
    }

    /// Moves the SAs of a peer to other ends, as IKE says (RFC 4555, RFC 7296 §2.23). All of them
    /// go at once, with their keys, numbers, windows, limits and use, in their slots.
    ///
    /// Returns the peer with both; `None`: they have these ends already.
    ///
    /// Cost: reads every policy once.
    ///
    /// # Errors
    /// [`MoveError`]: nothing was changed.
    pub fn move_ends(&mut self, name: &str, to: PeerEnds) -> Result<Option<MovedEnds>, MoveError> {
        let peers = &self.settings().peers;
        let place = peers.iter().position(|peer| peer.name == name && peer.keys == KeySource::Ike);
        let place = place.ok_or(MoveError::Stays)?;
        may_have(&peers[place], to)?;
        let from = self.present_ends(place);
        let moved = self.shift(place, to)?;
        Ok(moved.then(|| MovedEnds { peer: name.to_owned(), from, to }))
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
        match self.policy_around(self.peers[place], address, tunnel.remote) {
            Some(policy) => Err(MoveError::BehindPeer { address, policy }),
            None => Ok(()),
        }
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
                && (now.keys != KeySource::Ike || may_have(now, *to).is_ok())
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
    /// own.
    pub fn remotes(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let own = self.ike_peers().map(|peer| peer.tunnel().remote);
        self.sets().map(|set| set.tunnel.remote).chain(own)
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
