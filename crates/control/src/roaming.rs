//! Follows peers behind NATs to where they are now, which need not be where the configuration says.
//!
//! The address learned of a peer is kept over changes of configuration as long as its mode, ends
//! and UDP port are configured as before, and lost with the process: the peer's next packet shows
//! it again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::SaSet;
use ipsec::{Encapsulation, Mode, SaError, Tunnel, UdpPorts};
use policy::{Action, SaSetId};

use crate::compiled::Compiled;
use crate::peer_address::PeerAddress;
use config::validated::{Peer, PeerPlace};

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
        let place = self.peers.iter().position(|known| *known == set);
        let peer = place.and_then(|place| self.settings().peers.get(place));
        let (Some(peer), Some(place)) = (peer.filter(|peer| may_move(peer)), place) else {
            return Err(MoveError::Stays);
        };
        let known = self.set_of(place).clone();
        let address = to.address;
        if let Some(why) = config::unusable(address) {
            return Err(MoveError::Unusable { address, why });
        }
        if to.port == 0 {
            return Err(MoveError::PortZero);
        }
        let from = self.peer_addresses.0.get(&known.id).copied().or(configured(peer));
        let from = from.ok_or(MoveError::Stays)?;
        if from == to {
            return Ok(None);
        }
        let Encapsulation { mode, tunnel, .. } = peer.encapsulation;
        if mode == Mode::Transport && address != tunnel.remote {
            return Err(MoveError::Transport { peer: peer.name.clone(), address });
        }
        let id = known.id;
        if let Some(policy) = self.policy_around(id, address, tunnel.remote) {
            return Err(MoveError::BehindPeer { address, policy });
        }
        let mut carried = (Vec::new(), Vec::new());
        for sa in &known.outbound {
            let sa = self.sad.outbound_sa(*sa);
            carried.0.push(sa.carried(towards(sa.encapsulation, to))?);
        }
        for sa in self.sad.inbound().filter(|sa| sa.set == id) {
            carried.1.push(sa.carried(towards(sa.encapsulation, to))?);
        }
        let moved = MovedPeer { peer: peer.name.clone(), from, to };
        carried.0.into_iter().for_each(|sa| self.sad.put_outbound(Arc::new(sa)));
        for sa in carried.1 {
            // In its own slot, with its own SPI.
            let _ = self.sad.put_inbound(Arc::new(sa));
        }
        self.sad.put_set(known.moved_to(address));
        self.peer_addresses.0.insert(id, to);
        Ok(Some(moved))
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
    /// are.
    pub fn keep_peer_addresses(&mut self, earlier: &Compiled) {
        let known = earlier.peers.iter().zip(&earlier.settings().peers);
        let known: HashMap<SaSetId, (&Peer, PeerAddress)> = known
            .filter_map(|(set, peer)| Some((*set, (peer, *earlier.peer_addresses.0.get(set)?))))
            .collect();
        for (place, set) in self.peers.clone().iter().enumerate() {
            let now = &self.settings().peers[place];
            if let Some((before, to)) = known.get(set)
                && says_the_same(before, now)
            {
                // It was taken once, under the same configuration.
                if self.move_peer(*set, *to).is_ok() {
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

    /// Returns the present addresses of the peers, in the order of the file.
    pub fn remotes(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.sets().map(|set| set.tunnel.remote)
    }
}

fn may_move(peer: &Peer) -> bool {
    peer.place == PeerPlace::BehindNat
}

/// Returns the address that the configuration gives a peer.
fn configured(peer: &Peer) -> Option<PeerAddress> {
    let Encapsulation { tunnel, udp, .. } = peer.encapsulation;
    Some(PeerAddress { address: tunnel.remote, port: udp?.remote })
}

fn says_the_same(before: &Peer, now: &Peer) -> bool {
    let of = |peer: &Peer| {
        let Encapsulation { mode, tunnel, udp, .. } = peer.encapsulation;
        (mode, tunnel, udp, peer.place)
    };
    of(before) == of(now)
}

/// Returns the encapsulation with another remote address.
pub(crate) fn towards(way: Encapsulation, to: PeerAddress) -> Encapsulation {
    Encapsulation {
        tunnel: Tunnel { remote: to.address, ..way.tunnel },
        udp: way.udp.map(|ports| UdpPorts { remote: to.port, ..ports }),
        ..way
    }
}
