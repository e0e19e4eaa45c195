//! SA sets, with the ways to their peers.
//!
//! Outer addresses belong to an SA (RFC 4301 §4.4.2.1). Nearly all SAs of a set have the remote end
//! of the set, and share its way. While a peer moves, SAs of one set have several remote ends: each
//! other end has a way of its own.

use std::sync::Arc;

use ipsec::{InboundSa, Mode, SaId};
use policy::SetIndex;
use wire::Address;

use super::Snapshot;
use crate::error::SnapshotError;
use crate::ids::NextHopId;
use crate::port::Adjacency;
use crate::sa_set::SaSet;

/// An SA set, with the way to its peer.
#[derive(Clone)]
pub(super) struct SetLink {
    pub(super) set: Arc<SaSet>,
    /// Mode of its SAs.
    mode: Mode,
    /// The way to the set's remote end.
    pub(super) way: PeerWay,
    /// True if outer packets may leave in fragments.
    pub(super) fragments: bool,
    /// The set whose SA seals again what an SA of this one has sealed; then the hop is that one's,
    /// and its largest inner packet is the MTU.
    pub(super) outer: Option<SetIndex>,
    /// The ways to the other remote ends of its SAs, sorted by these; `None`: there are no others.
    others: Option<Box<[PeerWay]>>,
}

/// The way to a remote end.
#[derive(Clone, Copy)]
pub(super) struct PeerWay {
    pub(super) remote: Address,
    /// Next hop of the outer packets; `None`: no route leads to the remote end.
    hop: Option<NextHopId>,
    /// MTU of the egress port, bytes; 0: no route leads to the remote end.
    pub(super) outer_mtu: u32,
    /// Largest inner packet whose outer packet the egress port carries whole, bytes.
    pub(super) mtu: u32,
}

impl SetLink {
    /// All ways, the set's own first.
    fn ways(&self) -> impl Iterator<Item = &PeerWay> {
        std::iter::once(&self.way).chain(self.others.iter().flatten())
    }
}

impl Snapshot {
    /// Finds anew what hangs on a set and on the ways to its peer.
    pub(super) fn link(&mut self, place: SetIndex) -> Result<(), SnapshotError> {
        let slot = place.0 as usize;
        let before = self.links.get(slot).cloned();
        let link = match self.sources.sad.set(place).cloned() {
            None => None,
            Some(set) => Some(self.linked(place, set)?),
        };
        match link.as_ref().and_then(|link| link.set.outer) {
            Some(_) => _ = self.nested.insert(place),
            None => _ = self.nested.remove(&place),
        }
        for way in before.iter().flat_map(SetLink::ways) {
            way.hop.into_iter().for_each(|hop| self.routing.release(hop));
            self.remotes.remove(&(way.remote, place));
        }
        for way in link.iter().flat_map(SetLink::ways) {
            self.remotes.insert((way.remote, place));
        }
        self.links.set(slot, link);
        self.list_keepalives(place);
        Ok(())
    }

    fn linked(&mut self, place: SetIndex, set: Arc<SaSet>) -> Result<SetLink, SnapshotError> {
        let mode = self.sources.sad.mode(place);
        let outer = set.outer.and_then(|outer| self.sources.sad.places().get(outer));
        if set.outbound.iter().any(|sa| self.sources.sad.find_outbound(*sa).is_none()) {
            return Err(SnapshotError::Dangling("an SA set"));
        }
        let remote = set.tunnel.remote.into();
        let (way, others) = match set.outer {
            None => (self.way_to(&set, remote), self.other_ways(place, &set)),
            Some(_) => (self.way_inside(&set, outer), None),
        };
        let fragments = self.may_cut(&set);
        Ok(SetLink { set, mode, way, fragments, outer, others })
    }

    /// The way to a remote end of a set. Takes a hop.
    fn way_to(&mut self, set: &SaSet, remote: Address) -> PeerWay {
        let hop = self.routing.hop_to(remote);
        let outer_mtu = hop.map_or(0, |hop| self.port(hop.port).mtu);
        let mtu = self.largest_inner_to(set, remote, outer_mtu);
        let hop = hop.map(|hop| self.routing.take(hop, &self.ports));
        PeerWay { remote, hop, outer_mtu, mtu }
    }

    /// The way of a set whose packets an SA of another set seals again. Takes a hop.
    fn way_inside(&mut self, set: &SaSet, outer: Option<SetIndex>) -> PeerWay {
        let around = outer.and_then(|outer| self.links.get(outer.0 as usize));
        // Nothing is sealed but once: a set around another is around no third.
        let around = around.filter(|link| link.set.outer.is_none()).map(|link| link.way);
        let hop = around.and_then(|way| way.hop).map(|hop| self.routing.hop(hop).hop);
        let outer_mtu = around.map_or(0, |way| way.mtu);
        let mtu = self.largest_inner(set, outer_mtu);
        let hop = hop.map(|hop| self.routing.take(hop, &self.ports));
        PeerWay { remote: set.tunnel.remote.into(), hop, outer_mtu, mtu }
    }

    /// The ways to the remote ends of a set's SAs that are not the set's. Takes hops.
    fn other_ways(&mut self, place: SetIndex, set: &SaSet) -> Option<Box<[PeerWay]>> {
        let sad = &self.sources.sad;
        let own: Address = set.tunnel.remote.into();
        let sealing = set.outbound.iter().map(|sa| sad.outbound_sa(*sa).tunnel().remote);
        let opening = sad.members(place).iter().map(|sa| sad.inbound_sa(*sa).tunnel().remote);
        let remotes = sealing.chain(opening).map(Address::from);
        let mut others: Vec<Address> = remotes.filter(|remote| *remote != own).collect();
        others.sort_unstable();
        others.dedup();
        let is_any = !others.is_empty();
        is_any.then(|| others.into_iter().map(|remote| self.way_to(set, remote)).collect())
    }

    #[inline]
    pub(super) fn set_link(&self, set: SetIndex) -> &SetLink {
        self.links.at(set.0 as usize)
    }

    /// The way of the packets that an SA of a set seals.
    #[inline]
    pub(super) fn sealing_way<'s>(&'s self, link: &'s SetLink, sa: SaId) -> &'s PeerWay {
        match &link.others {
            None => &link.way,
            Some(others) => self.way_among(link, others, sa),
        }
    }

    #[cold]
    fn way_among<'s>(&self, link: &'s SetLink, others: &'s [PeerWay], sa: SaId) -> &'s PeerWay {
        let remote = self.outbound_sa(sa).tunnel().remote.into();
        let place = others.binary_search_by_key(&remote, |way| way.remote);
        place.map_or(&link.way, |place| &others[place])
    }

    /// Slots for sets, vacant ones too.
    #[inline]
    pub(crate) fn set_slots(&self) -> usize {
        self.links.capacity()
    }

    /// Asks the processor for what hangs on a set, ahead of its use.
    #[inline]
    pub(crate) fn ask_for_link(&self, set: SetIndex) {
        self.links.get(set.0 as usize).into_iter().for_each(cpu::prefetch_all);
    }

    /// An SA set, if there is one.
    #[inline]
    pub(crate) fn find_set(&self, set: SetIndex) -> Option<&SaSet> {
        self.links.get(set.0 as usize).map(|link| &*link.set)
    }

    /// Returns an SA set.
    ///
    /// # Panics
    /// If `set` is from another snapshot.
    #[inline]
    pub fn set(&self, set: SetIndex) -> &SaSet {
        &self.set_link(set).set
    }

    /// Returns whether a packet with this source may come by an SA of a set. A transport mode SA is
    /// between its two ends (RFC 4301 §4.1): its policies say so too, but the source, which nothing
    /// authenticates there, is not left to them alone.
    #[inline]
    pub(crate) fn may_come_by(&self, set: SetIndex, source: Address) -> bool {
        let SetLink { mode, way, .. } = self.set_link(set);
        match mode {
            Mode::Tunnel => true,
            Mode::Transport => source == way.remote,
        }
    }

    /// Returns the egress of the outer packets to a set's remote end; `None`: there is no route.
    #[inline]
    pub(crate) fn set_adjacency(&self, set: SetIndex) -> Option<Adjacency> {
        Some(self.hop(self.set_link(set).way.hop?).adjacency)
    }

    /// Returns the egress of the outer packets of a set's SA; `None`: there is no route to its
    /// remote end.
    #[inline]
    pub(crate) fn sealing_adjacency(&self, set: SetIndex, sa: SaId) -> Option<Adjacency> {
        let hop = self.sealing_way(self.set_link(set), sa).hop?;
        Some(self.hop(hop).adjacency)
    }

    /// The sets with a remote end of this address, their own or of an SA.
    pub fn sets_towards(&self, peer: Address) -> impl Iterator<Item = &SaSet> {
        let sets = self.remotes.range((peer, SetIndex(0))..=(peer, SetIndex(u32::MAX)));
        sets.map(|(_, set)| self.set(*set))
    }

    /// Returns whether an SA with this remote end passes a test.
    pub(crate) fn opens_from(&self, peer: Address, is_meant: impl Fn(&InboundSa) -> bool) -> bool {
        let sets = self.remotes.range((peer, SetIndex(0))..=(peer, SetIndex(u32::MAX)));
        let members = sets.flat_map(|(_, set)| self.sources.sad.members(*set));
        let mut sas = members.map(|sa| self.inbound_sa(*sa));
        sas.any(|sa| Address::from(sa.tunnel().remote) == peer && is_meant(sa))
    }
}
