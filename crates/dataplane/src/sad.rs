//! The security association database (RFC 4301 §4.4.2): the SAs, and the sets that policies name.

use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use imbl::shared_ptr::DefaultSharedPtr;
use imbl::{GenericHashMap, OrdMap, OrdSet};
use ipsec::{CardSeat, InboundSa, Mode, OutboundSa, SaId, SeatCarrier, Spi};
use persistent::Slotted;
use policy::{SaSetId, SetIndex, SetPlaces, TablesError};

use crate::error::SnapshotError;
use crate::sa_set::SaSet;

/// SAs and SA sets by slot. A set, and an SA of either direction, keeps its slot as long as it is
/// there: counters, flow caches and the share of a worker go by it. Cheap to copy; a changed copy
/// shares what did not change.
#[derive(Clone, Default)]
pub struct Sad {
    places: SetPlaces,
    sets: Slotted<SetRow>,
    outbound: Slotted<Arc<OutboundSa>>,
    inbound: Slotted<Opener>,
    /// SAs that open ESP in UDP.
    in_udp: usize,
    by_spi: GenericHashMap<u32, SaId, BuildHasherDefault<SpiHasher>, DefaultSharedPtr>,
    /// SAs that open and are in a card, by their place there.
    by_seat: OrdMap<CardSeat, SaId>,
    /// SAs that seal in a card, by place in the card.
    sealed_seats: OrdSet<(CardSeat, SaId)>,
    /// SAs that seal, by SPI. Their SPIs are the peers' numbers: several may have the same.
    outbound_spis: OrdSet<(Spi, SaId)>,
}

#[derive(Clone)]
struct SetRow {
    set: Arc<SaSet>,
    /// Its SAs that open.
    inbound: Arc<[SaId]>,
}

/// An SA that opens.
#[derive(Clone)]
struct Opener {
    sa: Arc<InboundSa>,
    set: SetIndex,
}

impl Sad {
    /// The sets' places.
    pub fn places(&self) -> &SetPlaces {
        &self.places
    }

    /// The sets in the order of their places.
    pub fn sets(&self) -> impl Iterator<Item = (SetIndex, &Arc<SaSet>)> {
        self.sets.iter().map(|(place, row)| (SetIndex(place as u32), &row.set))
    }

    /// The set at a place.
    pub fn set(&self, place: SetIndex) -> Option<&Arc<SaSet>> {
        self.sets.get(place.0 as usize).map(|row| &row.set)
    }

    /// SAs that seal, by slot.
    pub fn outbound(&self) -> impl Iterator<Item = &Arc<OutboundSa>> {
        self.outbound.iter().map(|(_, sa)| sa)
    }

    /// Returns whether some SA opens ESP in UDP.
    pub fn opens_in_udp(&self) -> bool {
        self.in_udp > 0
    }

    /// SAs that open, by slot.
    pub fn inbound(&self) -> impl Iterator<Item = &Arc<InboundSa>> {
        self.inbound.iter().map(|(_, opener)| &opener.sa)
    }

    /// The SA that seals in a slot.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn outbound_sa(&self, id: SaId) -> &Arc<OutboundSa> {
        self.outbound.at(id.0 as usize)
    }

    /// The SA that opens in a slot.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn inbound_sa(&self, id: SaId) -> &Arc<InboundSa> {
        &self.inbound.at(id.0 as usize).sa
    }

    /// The SA that seals in a slot, if there is one.
    pub fn find_outbound(&self, id: SaId) -> Option<&Arc<OutboundSa>> {
        self.outbound.get(id.0 as usize)
    }

    /// The SA that opens in a slot, if there is one.
    pub fn find_inbound(&self, id: SaId) -> Option<&Arc<InboundSa>> {
        self.inbound.get(id.0 as usize).map(|opener| &opener.sa)
    }

    /// The place of the set that an inbound SA belongs to.
    #[inline]
    pub(crate) fn set_of(&self, id: SaId) -> SetIndex {
        self.inbound.at(id.0 as usize).set
    }

    /// The SA that opens packets with this SPI.
    #[inline]
    pub fn inbound_by_spi(&self, spi: Spi) -> Option<&Arc<InboundSa>> {
        self.by_spi.get(&spi.value()).map(|id| self.inbound_sa(*id))
    }

    /// The SA that opens and has this place in a card.
    #[inline]
    pub fn opened_in_card(&self, seat: CardSeat) -> Option<SaId> {
        self.by_seat.get(&seat).copied()
    }

    /// Returns whether any SA that opens is in a card.
    #[inline]
    pub(crate) fn has_openers_in_cards(&self) -> bool {
        !self.by_seat.is_empty()
    }

    /// Returns whether an outbound SA has this place in a card.
    pub(crate) fn is_sealed_in_card(&self, seat: CardSeat) -> bool {
        self.sealed_seats.range((seat, SaId(0))..=(seat, SaId(u32::MAX))).next().is_some()
    }

    /// The SAs that seal under this SPI, each for another peer.
    pub fn outbound_by_spi(&self, spi: Spi) -> impl Iterator<Item = &Arc<OutboundSa>> {
        let all = self.outbound_spis.range((spi, SaId(0))..=(spi, SaId(u32::MAX)));
        all.map(|(_, id)| self.outbound_sa(*id))
    }

    /// Slots that there is room for, of SAs that seal and of those that open.
    pub fn room(&self) -> [usize; 2] {
        [self.outbound.capacity(), self.inbound.capacity()]
    }

    /// Returns the lowest vacant slot for an outbound SA.
    pub fn vacant_outbound(&self) -> SaId {
        SaId(self.outbound.vacant() as u32)
    }

    /// Returns the lowest vacant slot for an outbound SA that fits; some high one must.
    pub fn vacant_outbound_where(&self, fits: impl Fn(SaId) -> bool) -> SaId {
        SaId(self.outbound.vacant_where(|slot| fits(SaId(slot as u32))) as u32)
    }

    /// Returns the lowest vacant slot for an inbound SA.
    pub fn vacant_inbound(&self) -> SaId {
        SaId(self.inbound.vacant() as u32)
    }

    /// Returns the lowest vacant slot for an inbound SA that fits; some high one must.
    pub fn vacant_inbound_where(&self, fits: impl Fn(SaId) -> bool) -> SaId {
        SaId(self.inbound.vacant_where(|slot| fits(SaId(slot as u32))) as u32)
    }

    /// Puts a set into the place that it has, or into the lowest vacant one.
    pub fn put_set(&mut self, set: SaSet) -> SetIndex {
        let place = self.places.add(set.id);
        let slot = place.0 as usize;
        let inbound = self.sets.get(slot).map_or_else(Arc::default, |row| row.inbound.clone());
        self.sets.set(slot, Some(SetRow { set: Arc::new(set), inbound }));
        place
    }

    /// Puts a set into a place of an earlier database. Whatever else is there is taken out.
    pub fn put_set_at(&mut self, place: SetIndex, set: Arc<SaSet>) {
        let other = self.set(place).map(|there| there.id).filter(|there| *there != set.id);
        other.into_iter().for_each(|other| self.remove_set(other));
        if self.places.get(set.id).is_some_and(|there| there != place) {
            self.remove_set(set.id);
        }
        self.places.add_at(place, set.id);
        let slot = place.0 as usize;
        let inbound = self.sets.get(slot).map_or_else(Arc::default, |row| row.inbound.clone());
        self.sets.set(slot, Some(SetRow { set, inbound }));
    }

    /// Takes a set out, with its SAs that open.
    pub fn remove_set(&mut self, id: SaSetId) {
        if let Some(place) = self.places.get(id) {
            let members = self.sets.get(place.0 as usize).map(|row| row.inbound.clone());
            members.iter().flat_map(|members| &**members).for_each(|sa| self.remove_inbound(*sa));
            self.sets.set(place.0 as usize, None);
            self.places.remove(id);
        }
    }

    /// Puts an SA that seals into its slot.
    pub fn put_outbound(&mut self, sa: Arc<OutboundSa>) {
        let (id, spi) = (sa.id, sa.spi);
        self.remove_outbound(id);
        self.sealed_seats.extend(sa.card.map(|seat| (seat, id)));
        self.outbound.set(id.0 as usize, Some(sa));
        self.outbound_spis.insert((spi, id));
    }

    /// Takes an SA that seals out of its slot.
    pub fn remove_outbound(&mut self, id: SaId) {
        if let Some(before) = self.outbound.set(id.0 as usize, None) {
            self.outbound_spis.remove(&(before.spi, id));
            before.card.into_iter().for_each(|seat| _ = self.sealed_seats.remove(&(seat, id)));
        }
    }

    /// Puts an SA that opens into its slot. Its set is there.
    ///
    /// # Errors
    /// Its set is not there, or another SA has its SPI, its slot or its place in a card: nothing is
    /// changed.
    pub fn put_inbound(&mut self, sa: Arc<InboundSa>) -> Result<(), SnapshotError> {
        let (id, spi) = (sa.id, sa.spi);
        let set = self.places.get(sa.set).ok_or(TablesError::UnknownSet(sa.set))?;
        if self.by_spi.get(&spi.value()).is_some_and(|other| *other != id) {
            return Err(SnapshotError::SameSpi(spi));
        }
        if self.find_inbound(id).is_some_and(|there| there.spi != spi) {
            return Err(SnapshotError::Taken(id));
        }
        if let Some(seat) = sa.card
            && self.opened_in_card(seat).is_some_and(|other| other != id)
        {
            return Err(SnapshotError::SameSeat(seat));
        }
        self.remove_inbound(id);
        if let Some(seat) = sa.card.filter(|seat| seat.carrier == SeatCarrier::Worker) {
            self.by_seat.insert(seat, id);
        }
        self.in_udp += usize::from(sa.encapsulation.udp.is_some());
        self.inbound.set(id.0 as usize, Some(Opener { sa, set }));
        self.by_spi.insert(spi.value(), id);
        self.with_members(set, |members| members.push(id));
        Ok(())
    }

    /// Takes an SA that opens out of its slot.
    pub fn remove_inbound(&mut self, id: SaId) {
        if let Some(Opener { sa, set }) = self.inbound.set(id.0 as usize, None) {
            self.by_spi.remove(&sa.spi.value());
            self.in_udp -= usize::from(sa.encapsulation.udp.is_some());
            if let Some(seat) = sa.card.filter(|seat| seat.carrier == SeatCarrier::Worker) {
                self.by_seat.remove(&seat);
            }
            self.with_members(set, |members| members.retain(|member| *member != id));
        }
    }

    fn with_members(&mut self, set: SetIndex, change: impl FnOnce(&mut Vec<SaId>)) {
        if let Some(SetRow { set: of, inbound }) = self.sets.get(set.0 as usize).cloned() {
            let mut members = inbound.to_vec();
            change(&mut members);
            let row = SetRow { set: of, inbound: members.into() };
            self.sets.set(set.0 as usize, Some(row));
        }
    }

    /// SAs of the set at a place that open.
    pub fn openers_of(&self, set: SetIndex) -> &[SaId] {
        self.members(set)
    }

    /// SAs of a set that open.
    pub(crate) fn members(&self, set: SetIndex) -> &[SaId] {
        self.sets.get(set.0 as usize).map_or(&[][..], |row| &row.inbound)
    }

    /// The mode of a set's SAs; of a set without any that open it does not matter.
    pub(crate) fn mode(&self, set: SetIndex) -> Mode {
        self.members(set).last().map_or(Mode::Tunnel, |sa| self.inbound_sa(*sa).encapsulation.mode)
    }

    /// Places of sets that are not what they were, or have SAs that are not.
    pub(crate) fn changed_sets(&self, before: &Sad) -> Vec<SetIndex> {
        let same_set = |one: &SetRow, other: &SetRow| {
            Arc::ptr_eq(&one.set, &other.set) && Arc::ptr_eq(&one.inbound, &other.inbound)
        };
        let sets = self.sets.changes(&before.sets, same_set);
        let mut changed: Vec<SetIndex> = sets.map(|(place, ..)| SetIndex(place as u32)).collect();
        let of_outbound = self.changed_outbound(before).flat_map(|(_, both)| both).flatten();
        changed.extend(of_outbound.filter_map(|sa| self.places.get(sa.set)));
        let of_inbound = self.changed_inbound(before).flat_map(|(_, both)| both).flatten();
        changed.extend(of_inbound.filter_map(|sa| self.places.get(sa.set)));
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// Returns the remote ends of changed sets and their SAs, before and after the change. An end
    /// may come twice.
    pub fn remotes_of_changed(&self, before: &Sad) -> Vec<IpAddr> {
        let changed = self.changed_sets(before);
        let both = changed.iter().flat_map(|place| [(self, *place), (before, *place)]);
        both.flat_map(|(sad, place)| sad.remotes_of(place)).collect()
    }

    /// Remote ends of a set and of its SAs.
    fn remotes_of(&self, place: SetIndex) -> Vec<IpAddr> {
        let Some(set) = self.set(place) else { return Vec::new() };
        let sealing = set.outbound.iter().filter_map(|sa| self.find_outbound(*sa));
        let opening = self.members(place).iter().map(|sa| self.inbound_sa(*sa).tunnel().remote);
        let sas = sealing.map(|sa| sa.tunnel().remote).chain(opening);
        std::iter::once(set.tunnel.remote).chain(sas).collect()
    }

    /// Slots in which SAs that seal are others than in an earlier state, or in another form: each
    /// with the SA before, and the SA now. Cost: by pages, and by what differs.
    pub fn changed_outbound<'s>(
        &'s self,
        before: &'s Sad,
    ) -> impl Iterator<Item = (SaId, [Option<&'s Arc<OutboundSa>>; 2])> {
        let changes = self.outbound.changes(&before.outbound, Arc::ptr_eq);
        changes.map(|(slot, before, now)| (SaId(slot as u32), [before, now]))
    }

    /// Slots in which SAs that open are others, as [`changed_outbound`](Self::changed_outbound) has
    /// those that seal.
    pub fn changed_inbound<'s>(
        &'s self,
        before: &'s Sad,
    ) -> impl Iterator<Item = (SaId, [Option<&'s Arc<InboundSa>>; 2])> {
        let is_same = |one: &Opener, other: &Opener| Arc::ptr_eq(&one.sa, &other.sa);
        let changes = self.inbound.changes(&before.inbound, is_same);
        let sa = |opener: Option<&'s Opener>| opener.map(|opener| &opener.sa);
        changes.map(move |(slot, before, now)| (SaId(slot as u32), [sa(before), sa(now)]))
    }

    /// SAs that are gone from their slots since an earlier state, those that seal and those that
    /// open. One that is carried elsewhere is not gone.
    pub fn gone_since<'s>(
        &'s self,
        before: &'s Sad,
    ) -> (Vec<&'s Arc<OutboundSa>>, Vec<&'s Arc<InboundSa>>) {
        let is_same =
            |one: &OutboundSa, other: &OutboundSa| (one.spi, one.set) == (other.spi, other.set);
        let outbound = self.outbound.changes(&before.outbound, |one, other| is_same(one, other));
        let is_same =
            |one: &Opener, other: &Opener| (one.sa.spi, one.sa.set) == (other.sa.spi, other.sa.set);
        let inbound = self.inbound.changes(&before.inbound, is_same);
        (
            outbound.filter_map(|(_, before, _)| before).collect(),
            inbound.filter_map(|(_, before, _)| Some(&before?.sa)).collect(),
        )
    }
}

impl std::fmt::Debug for Sad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let spis = |of: &mut dyn Iterator<Item = Spi>| of.map(|spi| spi.to_string()).collect();
        let outbound: Vec<String> = spis(&mut self.outbound().map(|sa| sa.spi));
        let inbound: Vec<String> = spis(&mut self.inbound().map(|sa| sa.spi));
        let sets: Vec<_> = self.sets().map(|(_, set)| &set.peer).collect();
        f.debug_struct("Sad")
            .field("sets", &sets)
            .field("outbound", &outbound)
            .field("inbound", &inbound)
            .finish()
    }
}

/// Hash of an SPI: one multiplication. The SPIs in the map are ours, so nobody outside can choose
/// them to collide.
#[derive(Default)]
struct SpiHasher(u64);

impl Hasher for SpiHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        // The multiplier is 2^64 / golden ratio; the map takes both the high and the low bits.
        let product = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}
