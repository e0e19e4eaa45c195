//! The peer that an SA of charon's is for.
//!
//! An SA is for a peer with `keys = "ike"` and the SA's ends, or that may move to these, if its
//! selectors have all packets of all of the peer's policies: then the other gateway takes whatever
//! these policies have sealed. If several peers fit, the SA is for the one whose policies also
//! cover the selectors, and of these for the one that is configured with its ends. The gateway
//! checks received packets against the policies of that peer and ignores the SA's own selectors.
//! Between ends that no peer in the file has or may move to, `[ike]` may admit peers of charon's
//! own (`own`).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use charon_link::Selector;
use config::validated::{KeySource, Peer, PeerPlace};
use dataplane::Snapshot;
use ipsec::{Encapsulation, Tunnel};
use policy::selector::{AddressRange, PortRange, UpperSelector};
use policy::{Action, SaSetId};

/// A peer whose SAs charon puts.
#[derive(Clone, Debug)]
pub(super) struct IkePeer {
    pub(super) name: Arc<str>,
    pub(super) encapsulation: Encapsulation,
    pub(super) suite: ipsec::Suite,
    pub(super) lifetime: ipsec::Lifetime,
    /// Its section.
    pub(super) section: Peer,
    /// The packets of its policies.
    policies: Vec<Wanted>,
}

/// The packets of a policy: any of the local selectors with any of the remote ones.
#[derive(Clone, Debug)]
struct Wanted {
    name: String,
    ends: [Vec<Selector>; 2],
}

/// The reason why an SA is for no peer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum NoPeer {
    /// No peer has these ends.
    #[error(
        "no peer with keys = \"ike\" has local = \"{local}\" and remote = \"{remote}\", or these \
         addresses in `local_moves_to` and `moves_to`"
    )]
    Ends { local: IpAddr, remote: IpAddr },
    /// No policy names one of the peers.
    #[error("no policy protects anything for peer {0}: there is nothing that its SAs are for")]
    NoPolicy(Arc<str>),
    /// The selectors leave out packets of a policy.
    #[error(
        "the selectors of the CHILD_SA leave out packets of policy \"{policy}\" of peer {peer}: \
         make them as wide, or the policy as narrow"
    )]
    Narrow { peer: Arc<str>, policy: String },
    /// Several peers fit equally well.
    #[error("peers {0} and {1} fit this CHILD_SA equally well: give their policies other packets")]
    Several(Arc<str>, Arc<str>),
}

/// The peers whose SAs charon puts, of one configuration.
#[derive(Clone, Default, Debug)]
pub(super) struct IkePeers {
    peers: Vec<IkePeer>,
    /// Places of those with the same ends.
    by_ends: HashMap<[IpAddr; 2], Vec<usize>>,
    /// Places of those that may move.
    movable: Vec<usize>,
    /// The ends of all peers, those with other keys too.
    ends: HashSet<[IpAddr; 2]>,
}

impl IkePeers {
    /// The peers of a configuration, with the policies of a snapshot.
    pub(super) fn of(peers: &[Peer], snapshot: &Snapshot) -> IkePeers {
        let ends = peers.iter().map(|peer| [peer.tunnel().local, peer.tunnel().remote]).collect();
        let with_ike = peers.iter().filter(|peer| peer.keys == KeySource::Ike);
        let mut known: Vec<IkePeer> = with_ike
            .map(|peer| IkePeer {
                name: peer.name.as_str().into(),
                encapsulation: peer.encapsulation,
                suite: peer.suite,
                lifetime: peer.lifetime,
                section: peer.clone(),
                policies: Vec::new(),
            })
            .collect();
        if known.is_empty() {
            return IkePeers { ends, ..IkePeers::default() };
        }
        let by_name: HashMap<Arc<str>, usize> =
            known.iter().enumerate().map(|(place, peer)| (peer.name.clone(), place)).collect();
        let sets = snapshot.sets();
        let places: HashMap<SaSetId, usize> =
            sets.filter_map(|(_, set)| Some((set.id, *by_name.get(&*set.peer)?))).collect();
        for (_, policy) in snapshot.spd().policies() {
            let Action::Protect(set) = policy.action else { continue };
            let Some(place) = places.get(&set) else { continue };
            known[*place].policies.push(wanted(policy));
        }
        let mut by_ends: HashMap<[IpAddr; 2], Vec<usize>> = HashMap::new();
        for (place, peer) in known.iter().enumerate() {
            let tunnel = peer.encapsulation.tunnel;
            by_ends.entry([tunnel.local, tunnel.remote]).or_default().push(place);
        }
        let may_move = |peer: &IkePeer| {
            !peer.section.moves.is_none() || peer.section.place == PeerPlace::BehindNat
        };
        let movable = (0..known.len()).filter(|place| may_move(&known[*place])).collect();
        IkePeers { peers: known, by_ends, movable, ends }
    }

    /// The peers that have these ends, or may move to them; those that have them first.
    pub(super) fn between(&self, local: IpAddr, remote: IpAddr) -> impl Iterator<Item = &IkePeer> {
        let ends = [local, remote];
        let have_them = self.by_ends.get(&ends).into_iter().flatten();
        let may_have_them = self.movable.iter().filter(move |place| {
            let peer = &self.peers[**place];
            let tunnel = peer.encapsulation.tunnel;
            [tunnel.local, tunnel.remote] != ends
                && peer.section.may_be_between(Tunnel { local, remote })
        });
        have_them.chain(may_have_them).map(|place| &self.peers[*place])
    }

    /// Returns whether any peer of the file has these ends, or may move to them.
    pub(super) fn has_ends(&self, ends: [IpAddr; 2]) -> bool {
        self.ends.contains(&ends) || self.between(ends[0], ends[1]).next().is_some()
    }

    /// The peer of this name.
    pub(super) fn named(&self, name: &str) -> Option<&IkePeer> {
        self.peers.iter().find(|peer| *peer.name == *name)
    }

    /// The peer that an SA with these ends and selectors is for.
    ///
    /// # Errors
    /// [`NoPeer`].
    pub(super) fn choose(
        &self,
        [local, remote]: [SocketAddr; 2],
        selectors: [&[Selector]; 2],
    ) -> Result<&IkePeer, NoPeer> {
        let (local, remote) = (local.ip(), remote.ip());
        let mut why = NoPeer::Ends { local, remote };
        let mut fit: Vec<(&IkePeer, bool)> = Vec::new();
        // Where a section has these ends, none that may only move to them takes part.
        let are_here = self.by_ends.contains_key(&[local, remote]);
        let here = Tunnel { local, remote };
        let takes_part = |peer: &&IkePeer| !are_here || peer.encapsulation.tunnel == here;
        for peer in self.between(local, remote).filter(takes_part) {
            match peer.is_served_by(selectors) {
                Ok(()) => fit.push((peer, peer.has_all_of(selectors))),
                Err(error) => why = error,
            }
        }
        let exact: Vec<&IkePeer> =
            fit.iter().filter(|(_, is_exact)| *is_exact).map(|(peer, _)| *peer).collect();
        let all: Vec<&IkePeer> = fit.iter().map(|(peer, _)| *peer).collect();
        let is_here = |peer: &&&IkePeer| peer.encapsulation.tunnel == Tunnel { local, remote };
        match (&exact[..], &all[..]) {
            ([one], _) | ([], [one]) => Ok(one),
            (equal @ [one, other, ..], _) | ([], equal @ [one, other, ..]) => {
                match equal.iter().filter(is_here).collect::<Vec<_>>()[..] {
                    [here] => Ok(here),
                    _ => Err(NoPeer::Several(one.name.clone(), other.name.clone())),
                }
            }
            ([], []) => Err(why),
        }
    }
}

impl IkePeer {
    /// Checks that the selectors have all packets of all policies.
    pub(super) fn is_served_by(&self, selectors: [&[Selector]; 2]) -> Result<(), NoPeer> {
        if self.policies.is_empty() {
            return Err(NoPeer::NoPolicy(self.name.clone()));
        }
        let leaves_out = |wanted: &&Wanted| {
            let ends = wanted.ends.iter().zip(selectors);
            ends.into_iter().any(|(wanted, given)| {
                !wanted.iter().all(|wanted| given.iter().any(|given| given.covers(wanted)))
            })
        };
        match self.policies.iter().find(leaves_out) {
            Some(policy) => {
                let (peer, policy) = (self.name.clone(), policy.name.clone());
                Err(NoPeer::Narrow { peer, policy })
            }
            None => Ok(()),
        }
    }

    /// Returns whether each selector is within one of a policy.
    fn has_all_of(&self, selectors: [&[Selector]; 2]) -> bool {
        selectors.iter().enumerate().all(|(end, given)| {
            let wanted = || self.policies.iter().flat_map(|policy| &policy.ends[end]);
            given.iter().all(|given| wanted().any(|wanted| wanted.covers(given)))
        })
    }
}

/// The packets of a policy as selectors of IKE.
fn wanted(policy: &policy::Policy) -> Wanted {
    let selector = &policy.selector;
    let ports = match &selector.upper {
        UpperSelector::Ports { local, remote } => [local.as_slice(), remote.as_slice()],
        _ => [&[][..], &[]],
    };
    let protocol = selector.protocol.unwrap_or(0);
    let ends = [(&selector.local, ports[0]), (&selector.remote, ports[1])];
    let ends = ends.map(|(addresses, ports)| of_end(protocol, addresses, ports));
    Wanted { name: policy.name.clone(), ends }
}

/// The selectors of one end. ICMP types are asked for as any, the widest.
fn of_end(protocol: u8, addresses: &[AddressRange], ports: &[PortRange]) -> Vec<Selector> {
    let any = [PortRange::ANY];
    let ports = if ports.is_empty() { &any[..] } else { ports };
    let of = |range: &AddressRange| {
        let ends = [range.lo, range.hi]
            .map(|value| IpAddr::from(wire::Address { family: range.family, value }));
        ports.iter().map(move |ports| Selector {
            protocol,
            ports: (ports.lo, ports.hi),
            addresses: (ends[0], ends[1]),
        })
    };
    addresses.iter().flat_map(of).collect()
}
