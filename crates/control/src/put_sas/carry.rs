//! SAs that were put stay while the configuration becomes another, with their keys, numbers,
//! windows and use.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use config::SaOffload;
use config::validated::Peer;
use dataplane::SaSet;
use imbl::ordmap::DiffItem::{Add, Remove, Update};
use ipsec::{
    Account, Allowance, CardSeat, CardWork, Encapsulation, Lifetime, SaError, SaId, Suite,
};
use policy::{Direction, SaSetId};

use super::{GoneReason, GoneSa};
use crate::compile::CompileError;
use crate::compiled::Compiled;
use crate::kept_sas::Kept;
use crate::owner::KeyManager;
use crate::peer_address::PeerEnds;

/// The slots that SAs have in this configuration, by those that they had in another.
type Slots = BTreeMap<SaId, SaId>;

impl Compiled {
    /// Takes over the SAs that were put into the running configuration, for the peers that are here
    /// too and have `keys` of the same source. Each keeps its slot if that is vacant here.
    ///
    /// Cost: by the SAs that differ, if this configuration was made of an earlier state of the
    /// running one; else by all.
    ///
    /// # Errors
    /// [`CompileError::Snapshot`]: a key file here has an inbound SPI that one of them has. The
    /// configuration is half changed and of no use.
    pub fn keep_put_sas(&mut self, running: &Compiled) -> Result<(), CompileError> {
        let mut judge = EndsJudge::between(running, self);
        self.keep_put_outbound(running, &mut judge)?;
        self.keep_put_inbound(running, &mut judge)
    }

    fn keep_put_outbound(
        &mut self,
        running: &Compiled,
        judge: &mut EndsJudge,
    ) -> Result<(), CompileError> {
        let (before, now) = (self.put.outbound.clone(), &running.put.outbound);
        let mut touched: HashSet<String> = HashSet::new();
        for change in before.diff(now) {
            if let Remove(id, kept) | Update { old: (id, kept), .. } = change {
                touched.insert(self.peer_of(kept.sa.set));
                self.take_outbound(*id, GoneReason::Deleted);
            }
        }
        let mut slots = Slots::new();
        for change in before.diff(now) {
            let (Add(id, kept) | Update { new: (id, kept), .. }) = change else { continue };
            let (sa, name) = (&kept.sa, running.peer_of(kept.sa.set));
            let by = (kept.manager, sa.suite);
            let Some((set, peer)) = self.peer_with_put_sas(&name, by) else { continue };
            let Some(way) = judge.admitted_way(self, kept, &sa.encapsulation, (set, peer)) else {
                continue;
            };
            let is_carried_so = way == sa.encapsulation;
            let stays = |seat| is_carried_so && stays_in_card(kept, seat, &sa.allowance, peer);
            if sa.card.is_some_and(|seat| !stays(seat)) {
                continue;
            }
            let slot = match self.sad.find_outbound(*id) {
                None => *id,
                Some(_) => self.sad.vacant_outbound(),
            };
            let allowance = kept.allowance(&sa.allowance, peer, sa.sequence.last());
            let is_same = (sa.id, sa.set, sa.encapsulation) == (slot, set, way);
            let is_same = is_same && sa.allowance == allowance;
            let kept = kept.in_form(
                (!is_same).then_some(|| Ok(sa.at(slot, set).carried(way)?.within(allowance))),
            )?;
            self.place_outbound(slot, kept)?;
            slots.insert(*id, slot);
            touched.insert(name);
        }
        touched.iter().for_each(|name| self.take_order(name, running, &slots));
        Ok(())
    }

    fn keep_put_inbound(
        &mut self,
        running: &Compiled,
        judge: &mut EndsJudge,
    ) -> Result<(), CompileError> {
        let (before, now) = (self.put.inbound.clone(), &running.put.inbound);
        for change in before.diff(now) {
            if let Remove(id, _) | Update { old: (id, _), .. } = change {
                self.take_inbound(*id, GoneReason::Deleted);
            }
        }
        for change in before.diff(now) {
            let (Add(id, kept) | Update { new: (id, kept), .. }) = change else { continue };
            let (sa, name) = (&kept.sa, running.peer_of(kept.sa.set));
            let by = (kept.manager, sa.suite);
            let Some((set, peer)) = self.peer_with_put_sas(&name, by) else { continue };
            let Some(way) = judge.admitted_way(self, kept, &sa.encapsulation, (set, peer)) else {
                continue;
            };
            let is_carried_so = way == sa.encapsulation;
            let stays = |seat| is_carried_so && stays_in_card(kept, seat, &sa.allowance, peer);
            if sa.card.is_some_and(|seat| !stays(seat)) {
                continue;
            }
            let slot = match self.sad.find_inbound(*id) {
                None => *id,
                Some(_) => self.sad.vacant_inbound(),
            };
            let allowance = kept.allowance(&sa.allowance, peer, sa.window.right_edge());
            let is_same = (sa.id, sa.set, sa.encapsulation) == (slot, set, way);
            let is_same = is_same && sa.allowance == allowance;
            let kept = kept.in_form(
                (!is_same).then_some(|| Ok(sa.at(slot, set).carried(way)?.within(allowance))),
            )?;
            self.place_inbound(slot, kept)?;
        }
        Ok(())
    }

    /// The set of a peer of this name and the peer, if its SAs are put this way. One of charon's
    /// own has SAs of the suites that `[ike]` lists alone.
    fn peer_with_put_sas(
        &self,
        name: &str,
        (by, suite): (KeyManager, Suite),
    ) -> Option<(SaSetId, &Peer)> {
        let set = self.set_named(name)?;
        let peer = self.peer_with(set)?;
        let bounds = self.settings().ike.as_ref();
        let is_admitted = self.ike.peer(set).is_none()
            || bounds.is_some_and(|bounds| bounds.admit_suite(suite).is_ok());
        (is_admitted && by.keys(&peer.keys)).then_some((set, peer))
    }

    /// Brings the outbound SAs of a peer into the order that they have in another configuration.
    fn take_order(&mut self, name: &str, running: &Compiled, slots: &Slots) {
        let Some(set) = self.set_named(name) else { return };
        let place = running.set_named(name).and_then(|set| running.sad.places().get(set));
        let of = place.and_then(|place| running.sad.set(place));
        let ids = of.iter().flat_map(|of| &of.outbound);
        let ids = ids.map(|id| slots.get(id).copied().unwrap_or(*id));
        let order: Vec<SaId> = ids.filter(|id| self.put.outbound.contains_key(id)).collect();
        self.change_order(set, |known| *known = order);
        let known = self.sad.places().get(set).and_then(|place| self.sad.set(place));
        if let (Some(known), Some(before)) = (known, of) {
            let mut set = SaSet::clone(known);
            set.keep_path_mtu_of(before);
            self.sad.put_set(set);
        }
    }

    /// Returns the SAs that were put into an earlier configuration and are not in this one.
    ///
    /// Cost: by the SAs that differ, if one was made of the other; else by all.
    pub fn put_sas_gone_since(&self, before: &Compiled) -> Vec<GoneSa> {
        let reason = GoneReason::PeerGone;
        let mut gone = Vec::new();
        for change in before.put.outbound.diff(&self.put.outbound) {
            let (Remove(_, kept) | Update { old: (_, kept), .. }) = change else { continue };
            let (spi, peer) = (kept.sa.spi, before.peer_of(kept.sa.set));
            let mut now = self.sad.outbound_by_spi(spi);
            if !now.any(|sa| self.put.outbound.contains_key(&sa.id) && self.peer_of(sa.set) == peer)
            {
                gone.push(GoneSa { direction: Direction::Outbound, spi, peer, reason });
            }
        }
        for change in before.put.inbound.diff(&self.put.inbound) {
            let (Remove(_, kept) | Update { old: (_, kept), .. }) = change else { continue };
            let (spi, peer) = (kept.sa.spi, before.peer_of(kept.sa.set));
            let now = self.sad.inbound_by_spi(spi);
            if !now.is_some_and(|sa| {
                self.put.inbound.contains_key(&sa.id) && self.peer_of(sa.set) == peer
            }) {
                gone.push(GoneSa { direction: Direction::Inbound, spi, peer, reason });
            }
        }
        gone
    }
}

/// Decides which ends of SAs of IKE another configuration admits, once for each set and ends. Under
/// the same sections nothing is decided: the ends were admitted when IKE gave them.
enum EndsJudge {
    SameSections,
    OtherSections(HashMap<(SaSetId, PeerEnds), bool>),
}

impl EndsJudge {
    fn between(running: &Compiled, next: &Compiled) -> EndsJudge {
        match Arc::ptr_eq(running.settings(), next.settings()) {
            true => EndsJudge::SameSections,
            false => EndsJudge::OtherSections(HashMap::new()),
        }
    }

    /// The carriage of an SA under a peer's section. An SA of IKE keeps its ends; `None`: the
    /// section does not admit the ends.
    fn admitted_way<S>(
        &mut self,
        next: &Compiled,
        kept: &Kept<S>,
        way: &Encapsulation,
        (set, peer): (SaSetId, &Peer),
    ) -> Option<Encapsulation> {
        let ends = PeerEnds::of(way);
        match kept.manager {
            KeyManager::Api => Some(peer.encapsulation),
            KeyManager::Ike => self.admits(next, set, ends).then(|| ends.carry(peer.encapsulation)),
        }
    }

    fn admits(&mut self, next: &Compiled, set: SaSetId, ends: PeerEnds) -> bool {
        match self {
            EndsJudge::SameSections => true,
            EndsJudge::OtherSections(judged) => {
                *judged.entry((set, ends)).or_insert_with(|| next.may_have_ends(set, ends).is_ok())
            }
        }
    }
}

/// Returns whether an SA in a card, whose headers stay, may stay there: limits in a card cannot be
/// changed.
fn stays_in_card<S>(
    kept: &Kept<S>,
    seat: CardSeat,
    counted: &Option<Allowance>,
    peer: &Peer,
) -> bool {
    let limits = counted.as_ref().map_or(Lifetime::NONE, |allowance| allowance.lifetime);
    let same_limits = kept.lifetime.is_some() || limits == peer.lifetime;
    let is_wanted = match peer.offload {
        SaOffload::None => false,
        SaOffload::Packet => seat.work == CardWork::Packets,
        SaOffload::Crypto => seat.work == CardWork::Cipher,
        SaOffload::Auto => true,
    };
    is_wanted && same_limits
}

impl<S> Kept<S> {
    /// Returns this one around another form of its SA; `None`: around the same.
    fn in_form(
        &self,
        form: Option<impl FnOnce() -> Result<S, SaError>>,
    ) -> Result<Kept<S>, SaError> {
        form.map_or_else(|| Ok(self.clone()), |form| Ok(self.around(form()?.into())))
    }

    /// The limits of the SA under a peer's section: those that it was put with, else the section's.
    /// The use goes on. Of an SA that was not counted so far, `most_used` is a bound from above of
    /// its packets, and its time runs since it was put.
    fn allowance(
        &self,
        counted: &Option<Allowance>,
        peer: &Peer,
        most_used: u64,
    ) -> Option<Allowance> {
        let lifetime = self.lifetime.unwrap_or(peer.lifetime);
        match counted {
            Some(Allowance { account, .. }) => {
                Some(Allowance { lifetime, account: account.clone() })
            }
            None if lifetime == Lifetime::NONE => None,
            None => {
                let account = Account::new();
                account.begin(self.put_ns);
                account.raise(most_used, 0);
                Some(Allowance { lifetime, account: account.into() })
            }
        }
    }
}
