//! SAs and policies that charon has here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use charon_link::{
    AddPolicy, NameSa, Policy, PolicyAction, PolicyDirection, SaDirection, SaName, Selector,
};
use ipsec::{Spi, Tunnel};
use policy::Direction;

use super::matching::IkePeer;
use crate::ike_names::IkeNames;
use crate::totals::SaKey;

/// Identity of an SA: inbound its SPI, outbound the SPI at its destination's address.
pub(super) type SaPlace = (Direction, Spi, SocketAddr);

/// An SA that charon put.
#[derive(Clone, Debug)]
pub(super) struct KnownSa {
    pub(super) peer: Arc<str>,
    pub(super) name: SaName,
    pub(super) reqid: u32,
    /// It has reached its soft limit.
    pub(super) is_due: bool,
    /// It has reached its hard limit.
    pub(super) has_ended: bool,
    /// The charon that is connected has not named it.
    pub(super) is_orphan: bool,
}

/// SAs and policies that charon has here. Bounded by what may be put, and by [`MAX_POLICIES`].
#[derive(Default)]
pub(super) struct Book {
    /// The names that are shown.
    names: IkeNames,
    sas: HashMap<SaPlace, KnownSa>,
    policies: Vec<KnownPolicy>,
}

struct KnownPolicy {
    policy: AddPolicy,
    is_orphan: bool,
}

/// Policies that charon may have.
pub(super) const MAX_POLICIES: usize = 65_536;

/// The direction of an SA as the SPD calls it.
pub(super) const fn direction(of: SaDirection) -> Direction {
    match of {
        SaDirection::Inbound => Direction::Inbound,
        SaDirection::Outbound => Direction::Outbound,
    }
}

/// The identity of an SA of this name, in a direction.
pub(super) fn place(direction: Direction, name: &SaName) -> Option<SaPlace> {
    let spi = Spi::new(name.spi)?;
    // The port may change while the SA lives.
    Some((direction, spi, SocketAddr::new(name.destination.ip(), 0)))
}

/// Returns whether two are one policy for one SA.
fn is_same(one: &AddPolicy, other: &AddPolicy) -> bool {
    (one.reqid, one.spi, &one.policy) == (other.reqid, other.spi, &other.policy)
}

/// The key of an SA of a peer.
fn key((direction, spi, _): SaPlace, peer: &str) -> SaKey {
    (direction, spi, peer.to_owned())
}

impl Book {
    /// An empty book, whose SAs have names among others.
    pub(super) fn with(names: IkeNames) -> Book {
        Book { names, ..Book::default() }
    }

    /// Notes the names of an SA; returns whether it is known.
    pub(super) fn name(&self, NameSa { name, ike, child, .. }: &NameSa) -> bool {
        let Some((direction, known)) = self.find(name) else { return false };
        let place = place(direction, name);
        place.is_some_and(|place| self.names.name(&key(place, &known.peer), [ike, child]))
    }

    /// Notes an SA. One of the same peer, direction and SPI that was known by another name is that
    /// one.
    pub(super) fn add(&mut self, direction: Direction, sa: KnownSa) {
        let Some(place) = place(direction, &sa.name) else { return };
        if !self.sas.contains_key(&place) && self.at(direction, place.1, &sa.peer).is_some() {
            self.sas.retain(|(of, spi, _), known| {
                (*of, *spi) != (direction, place.1) || known.peer != sa.peer
            });
        }
        self.names.add(key(place, &sa.peer), sa.reqid);
        self.sas.insert(place, sa);
    }

    /// The SA of a name, in whichever direction it has one.
    pub(super) fn find(&self, name: &SaName) -> Option<(Direction, &KnownSa)> {
        let both = [Direction::Inbound, Direction::Outbound];
        both.into_iter().find_map(|direction| Some((direction, self.get(direction, name)?)))
    }

    /// The SA of a name in a direction.
    pub(super) fn get(&self, direction: Direction, name: &SaName) -> Option<&KnownSa> {
        self.sas.get(&place(direction, name)?)
    }

    /// Forgets an SA.
    pub(super) fn forget(&mut self, direction: Direction, name: &SaName) {
        if let Some(place) = place(direction, name)
            && let Some(gone) = self.sas.remove(&place)
        {
            self.names.forget(&key(place, &gone.peer));
        }
    }

    /// Notes that an SA has ended, and returns it.
    pub(super) fn end(&mut self, direction: Direction, spi: Spi, peer: &str) -> Option<&KnownSa> {
        let known = self.at(direction, spi, peer)?;
        known.has_ended = true;
        Some(known)
    }

    /// The SA of a direction, SPI and peer.
    pub(super) fn at(
        &mut self,
        direction: Direction,
        spi: Spi,
        peer: &str,
    ) -> Option<&mut KnownSa> {
        let mut all = self.sas.iter_mut();
        let found = all
            .find(|((of, number, _), sa)| *of == direction && *number == spi && *sa.peer == *peer);
        found.map(|(_, sa)| sa)
    }

    /// All SAs that pass a test: their directions, and what is known of them.
    pub(super) fn sas_that(&self, pass: impl Fn(&KnownSa) -> bool) -> Vec<(Direction, KnownSa)> {
        let of = self.sas.iter().filter(|(_, sa)| pass(sa));
        of.map(|((direction, ..), sa)| (*direction, sa.clone())).collect()
    }

    /// An SA of a peer and direction that the charon which is connected does not know.
    pub(super) fn orphan(&self, direction: Direction, peer: &str) -> Option<SaName> {
        let of = |((at, ..), sa): &(&SaPlace, &KnownSa)| {
            *at == direction && sa.is_orphan && *sa.peer == *peer
        };
        self.sas.iter().find(of).map(|(_, sa)| sa.name)
    }

    /// Notes that a charon has connected that has named nothing yet.
    pub(super) fn begin(&mut self) {
        self.sas.values_mut().for_each(|sa| sa.is_orphan = true);
        self.policies.iter_mut().for_each(|known| known.is_orphan = true);
    }

    /// Notes that charon has named all that it has: policies beyond that are gone.
    pub(super) fn settle(&mut self) {
        self.policies.retain(|known| !known.is_orphan);
    }

    /// Notes that charon knows an SA.
    pub(super) fn claim(&mut self, direction: Direction, name: &SaName) {
        if let Some(known) = place(direction, name).and_then(|place| self.sas.get_mut(&place)) {
            known.is_orphan = false;
        }
    }

    /// Notes a policy; returns whether there is room.
    pub(super) fn add_policy(&mut self, policy: AddPolicy) -> bool {
        self.policies.retain(|known| !is_same(&known.policy, &policy));
        let has_room = self.policies.len() < MAX_POLICIES;
        if has_room {
            self.policies.push(KnownPolicy { policy, is_orphan: false });
        }
        has_room
    }

    /// Forgets a policy; returns whether it was known.
    pub(super) fn forget_policy(&mut self, gone: &AddPolicy) -> bool {
        let before = self.policies.len();
        self.policies.retain(|known| !is_same(&known.policy, gone));
        self.policies.len() < before
    }

    /// Forgets all policies.
    pub(super) fn forget_policies(&mut self) {
        self.policies.clear();
    }

    /// Numbers of the policies of a direction with these selectors.
    pub(super) fn reqids_of(
        &self,
        direction: PolicyDirection,
        selectors: &[Selector; 2],
    ) -> Vec<u32> {
        let of = self.policies.iter().filter(|known| {
            let policy = &known.policy.policy;
            (policy.direction, &policy.selectors) == (direction, selectors)
        });
        of.map(|known| known.policy.reqid).collect()
    }

    /// SAs of a number.
    pub(super) fn sas_of(&self, reqid: u32) -> impl Iterator<Item = (&SaPlace, &KnownSa)> {
        self.sas.iter().filter(move |(_, sa)| sa.reqid == reqid)
    }

    /// The number of charon's policy that a packet to a peer needs an SA of: one between the ends
    /// that the peer is configured with, or else between such as it may move to. `packet` has the
    /// packet's source and destination.
    pub(super) fn reqid_for(&self, peer: &IkePeer, packet: &[Selector; 2]) -> Option<u32> {
        let ends =
            |policy: &Policy| Tunnel { local: policy.source.ip(), remote: policy.destination.ip() };
        let fits = |known: &&KnownPolicy| {
            let AddPolicy { policy, action, .. } = &known.policy;
            *action == PolicyAction::Protect
                && policy.direction == PolicyDirection::Outbound
                && peer.section.may_be_between(ends(policy))
                && policy.selectors.iter().zip(packet).all(|(of, packet)| of.covers(packet))
        };
        let is_here = |known: &&KnownPolicy| ends(&known.policy.policy) == peer.section.tunnel();
        let mut fit = self.policies.iter().filter(fits);
        let first = fit.next()?;
        let here = [first].into_iter().chain(fit).find(is_here);
        Some(here.unwrap_or(first).policy.reqid)
    }

    /// Returns whether there is a protecting policy of this name.
    pub(super) fn has_policy(&self, name: &Policy) -> bool {
        self.policies.iter().any(|known| {
            known.policy.policy == *name && known.policy.action == PolicyAction::Protect
        })
    }

    /// Notes that an SA has another name from now on.
    pub(super) fn rename(&mut self, direction: Direction, sa: KnownSa, before: &SaName) {
        if let Some(place) = place(direction, before) {
            self.sas.remove(&place);
        }
        self.add(direction, sa);
    }
}
