//! Sizes of packets to peers, by their paths, in one layer or two.

use ipsec::{InboundSa, OutboundSa, SaId};
use policy::SetIndex;
use wire::{Address, Family};

use super::Snapshot;
use super::links::{PeerWay, SetLink};
use crate::sa_set::SaSet;

/// Sizes of packets to a set's peer at some time, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetSizes {
    /// Largest outer packet that the path carries whole: by the MTU of the port that it leaves by,
    /// and the path MTU, as far as it is known. 0: there is no route to the peer.
    pub outer: u32,
    /// Largest inner packet whose outer packet the path carries whole.
    pub whole: u32,
    /// True if outer packets may leave in fragments: then IPv6 packets of up to 1280 bytes are
    /// sealed whatever the path carries.
    pub fragments: bool,
}

/// The least MTU of a link with IPv6, bytes (RFC 8200 §5). A tunnel is a link: over a narrower path
/// the ends of the tunnel fragment and reassemble outer packets (RFC 2473 §7.1, over IPv4 RFC 4213
/// §3.2). Hosts ignore smaller MTUs (RFC 8201 §4), in transport mode too: there the fragments are
/// those of the host's own packet, made behind ESP (RFC 4303 §3.3.4).
pub(crate) const LEAST_MTU_V6: u32 = 1280;

impl SetSizes {
    /// Returns the MTU of the tunnel's inside for a family, bytes.
    #[inline]
    pub fn inner(&self, family: Family) -> u32 {
        match self.cuts(family) {
            true => LEAST_MTU_V6,
            false => self.whole,
        }
    }

    /// Returns whether outer packets around packets of a family leave in fragments at need.
    #[inline]
    pub fn cuts(&self, family: Family) -> bool {
        let is_narrow = self.whole < LEAST_MTU_V6 && self.outer > 0;
        is_narrow && self.fragments && family == Family::V6
    }
}

impl Snapshot {
    /// Sizes of packets to a set's remote end, by the path MTU that is known at `now_ns`, a time by
    /// the walk's clock. Cost: a load, unless a path MTU is known.
    ///
    /// # Panics
    /// If `set` is from another snapshot.
    #[inline]
    pub fn set_sizes(&self, set: SetIndex, now_ns: u64) -> SetSizes {
        let link = self.set_link(set);
        self.sizes_on(link, &link.way, now_ns)
    }

    /// Sizes of packets that an SA of a set seals, as [`Snapshot::set_sizes`] has sizes of a set.
    ///
    /// # Panics
    /// If `set` is from another snapshot.
    #[inline]
    pub(crate) fn sealing_sizes(&self, set: SetIndex, sa: SaId, now_ns: u64) -> SetSizes {
        let link = self.set_link(set);
        self.sizes_on(link, self.sealing_way(link, sa), now_ns)
    }

    #[inline]
    fn sizes_on(&self, link: &SetLink, way: &PeerWay, now_ns: u64) -> SetSizes {
        if let Some(outer) = link.outer {
            return self.nested_sizes(link, outer, now_ns);
        }
        let (outer, whole, fragments) = (way.outer_mtu, way.mtu, link.fragments);
        // A path MTU was learned on the path of one of the set's SAs, and bounds all of them.
        let known = link.set.path_mtu.as_ref().and_then(|path| path.known(now_ns));
        match known.filter(|known| *known < outer) {
            None => SetSizes { outer, whole, fragments },
            Some(known) => self.narrow_sizes(link, way, known),
        }
    }

    /// Sizes where packets are sealed again: by the path MTUs of both peers. The packets of the
    /// outer layer leave in fragments; no packet of the inner layer does. On a narrow path behind
    /// the outer peer, routers cut the inner ESP packets of IPv4. An observer of this path may
    /// forge the path MTU, so no path MTU ends IPv6 in the tunnel.
    #[cold]
    fn nested_sizes(&self, link: &SetLink, outer: SetIndex, now_ns: u64) -> SetSizes {
        let known = link.set.path_mtu.as_ref().and_then(|path| path.known(now_ns));
        let around = self.set_sizes(outer, now_ns);
        let room = around.whole.min(link.way.outer_mtu);
        let behind = known.filter(|known| *known < room);
        let outer = behind.unwrap_or(room);
        let fragments = link.fragments && around.fragments;
        SetSizes { outer, whole: self.largest_inner(&link.set, outer), fragments }
    }

    /// The set whose SA seals again what an SA of a set has sealed; `None`: none does.
    #[inline]
    pub fn outer_of(&self, set: SetIndex) -> Option<SetIndex> {
        self.set_link(set).outer
    }

    /// Returns whether packets of any set are sealed again.
    #[inline]
    pub(crate) fn seals_again(&self) -> bool {
        !self.nested.is_empty()
    }

    /// Returns whether what comes by an SA comes inside of another set's packets alone.
    #[inline]
    pub(crate) fn needs_outer(&self, sa: &InboundSa) -> bool {
        self.seals_again() && self.set(self.set_of(sa.id)).outer.is_some()
    }

    #[cold]
    fn narrow_sizes(&self, link: &SetLink, way: &PeerWay, outer: u32) -> SetSizes {
        let whole = self.largest_inner_to(&link.set, way.remote, outer);
        SetSizes { outer, whole, fragments: link.fragments }
    }

    /// Returns whether outer packets of a set may leave in fragments. Nothing cuts behind a card,
    /// so software seals such packets, unless the sequence numbers are the card's.
    pub(super) fn may_cut(&self, set: &SaSet) -> bool {
        set.outbound.iter().all(|sa| self.outbound_sa(*sa).packet_card().is_none())
    }

    /// Largest inner packet that every outbound SA of a set puts into an outer one of at most so
    /// many bytes. 0: none fits, or there are no such SAs.
    pub(super) fn largest_inner(&self, set: &SaSet, outer_mtu: u32) -> u32 {
        self.largest_of(set, outer_mtu, |_| true)
    }

    /// Largest inner packet as [`Snapshot::largest_inner`] has it, of the SAs with a remote end.
    pub(super) fn largest_inner_to(&self, set: &SaSet, remote: Address, outer_mtu: u32) -> u32 {
        self.largest_of(set, outer_mtu, |sa| Address::from(sa.tunnel().remote) == remote)
    }

    fn largest_of(&self, set: &SaSet, outer_mtu: u32, takes: impl Fn(&OutboundSa) -> bool) -> u32 {
        let sas = set.outbound.iter().map(|sa| self.outbound_sa(*sa)).filter(|sa| takes(sa));
        sas.map(|sa| sa.largest_inner(outer_mtu as usize) as u32).min().unwrap_or(0)
    }
}
