//! SAs that programs put while the gateway runs, into the sets of peers with `keys = "api"`.
//!
//! A change makes of the running configuration one that has a few SAs more or fewer and shares all
//! else: nothing is compiled, no other SA gets another slot, no generation rises.
//!
//! **Which outbound SA of a set seals.** The SAs stand in the order of their puts
//! ([`Snapshot::sealing_sa`](dataplane::Snapshot::sealing_sa)).
//!
//! * SAs over the API: a replacement stands in the place of the replaced SA. Worker *n* seals with
//!   the *n*th SA that lasts, modulo their number.
//! * SAs of charon: the newest SA that lasts seals for all workers, because a peer that restarted
//!   has no older one. A replacement is the newest.
//!
//! A replaced outbound SA is gone at once: packets of a
//! batch that has begun leave by it, all later ones by its replacement.
//!
//! **How long a replaced inbound SA opens.** Until [`LINGER_NS`] after the first authentic packet
//! of its replacement, or of one that replaced that; at most [`MOST_LINGER_NS`]; or until it is
//! deleted. So whoever learns of new SAs in this order loses no packet: both gateways put the new
//! inbound SA, then each replaces its outbound one.
//!
//! | file | |
//! |---|---|
//! | `plan` | what a put would do, and why it is refused |
//! | `leaving` | SAs that are deleted, or were replaced and have had their time |
//! | `carry` | SAs that stay while the configuration becomes another |
//! | `card` | SAs that a network card carries |
//! | `reserved` | SPIs that were promised |
//! | `reservation_shares` | shares of remote ends in the reserved SPIs |
//!
//! Keys, numbers and windows live in memory alone, and end with the process.

mod card;
mod carry;
mod leaving;
mod plan;
mod reservation_shares;
mod reserved;

use std::sync::Arc;

use config::SaOffload;
use dataplane::SaSet;
use ipsec::{
    Account, Allowance, CardSeat, DontFragment, Encapsulation, Fingerprint, Identifications,
    InboundSa, KeyMaterial, Lifetime, Mode, OutboundSa, ReplayWindow, SaId, SealingTurn,
    SequenceCounter, SequenceNumbers, Spi, Suite,
};
use keystate::Once;
use policy::{Direction, SaSetId};
use zeroize::Zeroizing;

pub use card::{
    CardUse, CardWish, CountedByCard, carried_by_linux, cipher_of, limits, planned_sas,
};
pub use leaving::{DeleteRefusal, GoneReason, GoneSa, LINGER_NS, MOST_LINGER_NS, SaName};
pub use plan::{LimitMistake, PutPlan, PutRefusal, RefusedPut};
pub use reserved::{MAX_RESERVED, RESERVED_NS, ReserveRefusal, ReservedSpis, SpiRequest};

use crate::compile::CompileError;
use crate::compiled::Compiled;
use crate::kept_sas::{Kept, KeptSa};
use crate::owner::{KeyManager, SaOwner};
use crate::peer_address::PeerEnds;

/// SAs of each direction that may be put at a time.
pub const MAX_PUT_SAS: usize = 65_536;
/// Outbound SAs that a peer may have at a time: one for each of the most workers (RFC 9611).
pub const MAX_OUTBOUND_OF_PEER: usize = 256;

/// A request to put an SA. No `Debug`: it holds key bytes.
pub struct PutSa {
    /// The way by which it comes.
    pub manager: KeyManager,
    /// Name of the peer.
    pub peer: String,
    /// Direction of the SA.
    pub direction: Direction,
    /// SPI of the SA.
    pub spi: Spi,
    /// Key material, as the suite takes it.
    pub key: Zeroizing<Vec<u8>>,
    /// Algorithms; `None`: those of the peer's section.
    pub suite: Option<Suite>,
    /// Width of its sequence numbers; `None`: as the peer's section says.
    pub numbers: Option<SequenceNumbers>,
    /// Packets that its replay window remembers, if it opens; `None`: as the peer's section says.
    pub window: Option<u32>,
    /// Its limits; `None`: those of the peer's section, as they are and as they become.
    pub lifetime: Option<Lifetime>,
    /// SPIs of the SAs of the same peer and direction that it replaces.
    pub replaces: Vec<Spi>,
    /// The worker that is to open its packets; `None`: any.
    pub worker: Option<OpeningWorker>,
    /// Its carrier; `None`: as the peer's section says.
    pub offload: Option<SaOffload>,
    /// Outer addresses and UDP ports that IKE gives it; `None`: those of the peer's section. SAs
    /// over the API have no ends of their own.
    pub ends: Option<PeerEnds>,
}

/// A worker that is to open an SA's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpeningWorker {
    /// Number of the worker.
    pub worker: u32,
    /// Workers that walk packets, more than `worker`.
    pub workers: u32,
}

/// The parts of an SA that depend on its direction.
enum Numbers {
    Seals(Arc<SequenceCounter>),
    Opens(Arc<ReplayWindow>),
}

/// An SA that can be put. No `Debug`: it holds key bytes.
struct FreshSa {
    /// Place in the request.
    place: usize,
    manager: KeyManager,
    set: SaSetId,
    spi: Spi,
    material: KeyMaterial,
    numbers: Numbers,
    lifetime: Option<Lifetime>,
    replaces: Vec<SaId>,
    worker: Option<OpeningWorker>,
    offload: SaOffload,
    ends: Option<PeerEnds>,
    /// Its place in a card, once that has taken it.
    seat: Option<CardSeat>,
}

impl FreshSa {
    /// The carriage of the SA, whose peer's section has this one.
    fn carriage(&self, section: Encapsulation) -> Encapsulation {
        self.ends.map_or(section, |ends| ends.carry(section))
    }

    fn direction(&self) -> Direction {
        match self.numbers {
            Numbers::Seals(_) => Direction::Outbound,
            Numbers::Opens(_) => Direction::Inbound,
        }
    }
}

/// The running configuration with other SAs.
pub struct ChangedSas {
    /// The configuration.
    pub compiled: Compiled,
    /// SAs that it no longer has.
    pub gone: Vec<GoneSa>,
}

impl Compiled {
    /// Puts the SAs of a plan that was made of this configuration. `proofs` are those of
    /// [`PutPlan::fingerprints`], in their order; `now_ns` is of the boot clock.
    ///
    /// Cost: by the SAs of the plan, and by those of their sets; the first key of a suite in this
    /// process measures the libraries that have it.
    ///
    /// # Errors
    /// [`CompileError`]: a mistake of ours. The keys are used up all the same.
    ///
    /// # Panics
    /// If a proof is missing or of another key.
    pub fn with_put(
        &self,
        plan: PutPlan,
        proofs: Vec<Once>,
        now_ns: u64,
    ) -> Result<ChangedSas, CompileError> {
        let (mut compiled, mut gone) = (self.copied(), Vec::new());
        assert_eq!(plan.fresh.len(), proofs.len(), "a proof for each key");
        for (fresh, proof) in plan.fresh.into_iter().zip(proofs) {
            assert!(proof.fingerprint() == fresh.material.fingerprint(), "the proof of its key");
            gone.extend(compiled.put_one(fresh, now_ns)?);
        }
        Ok(ChangedSas { compiled, gone })
    }

    /// Puts one SA. Returns the outbound SAs that it replaced.
    fn put_one(&mut self, fresh: FreshSa, now_ns: u64) -> Result<Vec<GoneSa>, CompileError> {
        let peer = self.peer_with(fresh.set).ok_or(CompileError::Overtaken)?.clone();
        let way = fresh.carriage(peer.encapsulation);
        let FreshSa { set, spi, material, numbers, lifetime, replaces, worker, .. } = fresh;
        let (seat, manager) = (fresh.seat, fresh.manager);
        let fingerprint = material.fingerprint();
        let allowance = allowance(lifetime.unwrap_or(peer.lifetime), (seat, manager), now_ns);
        match numbers {
            Numbers::Seals(counter) => {
                let id = self.sad.vacant_outbound();
                let counter = match seat {
                    // All of its numbers are the card's.
                    Some(seat) if seat.has_numbers() => {
                        Arc::new(SequenceCounter::spent(counter.numbers()))
                    }
                    Some(_) | None => counter,
                };
                let sa = OutboundSa::new(id, spi, set, &material, way, counter)?;
                let turn = turn_of(manager);
                let sa = Arc::new(sa.within(allowance).seated(seat).taking(turn));
                let kept =
                    KeptSa { sa, manager, fingerprint, lifetime, put_ns: now_ns, replaced: None };
                self.place_outbound(id, Kept(Arc::new(kept)))?;
                self.change_order(set, |order| {
                    let place = order.iter().position(|known| replaces.contains(known));
                    match (turn, place) {
                        (SealingTurn::InOrder, Some(place)) => order[place] = id,
                        (SealingTurn::Newest { .. }, _) | (_, None) => order.push(id),
                    }
                    order.retain(|known| !replaces.contains(known));
                });
                let gone = replaces.into_iter();
                Ok(gone.filter_map(|old| self.take_outbound(old, GoneReason::Replaced)).collect())
            }
            Numbers::Opens(window) => {
                let fits = |id: SaId| worker.is_none_or(|of| id.0 % of.workers == of.worker);
                let id = self.sad.vacant_inbound_where(fits);
                let sa = InboundSa::new(id, spi, set, &material, way, window)?;
                let sa = Arc::new(sa.within(allowance).seated(seat));
                let kept =
                    KeptSa { sa, manager, fingerprint, lifetime, put_ns: now_ns, replaced: None };
                self.place_inbound(id, Kept(Arc::new(kept)))?;
                for old in replaces {
                    self.put.note_replaced(old, spi, now_ns);
                }
                Ok(Vec::new())
            }
        }
    }

    /// Puts an SA that seals into a slot, between its present ends.
    fn place_outbound(&mut self, id: SaId, kept: Kept<OutboundSa>) -> Result<(), CompileError> {
        let way = self.present_way(kept.manager, kept.sa.set, kept.sa.encapsulation);
        self.sad.put_outbound(match way == kept.sa.encapsulation {
            true => kept.sa.clone(),
            false => Arc::new(kept.sa.carried(way)?),
        });
        self.put.outbound.insert(id, kept);
        Ok(())
    }

    /// Puts an SA that opens into a slot, between its present ends.
    fn place_inbound(&mut self, id: SaId, kept: Kept<InboundSa>) -> Result<(), CompileError> {
        let way = self.present_way(kept.manager, kept.sa.set, kept.sa.encapsulation);
        self.sad.put_inbound(match way == kept.sa.encapsulation {
            true => kept.sa.clone(),
            false => Arc::new(kept.sa.carried(way)?),
        })?;
        if kept.replaced.is_some() {
            self.put.lingering.insert(id);
        }
        self.put.inbound.insert(id, kept);
        Ok(())
    }

    /// The present carriage of an SA that was put with a carriage. SAs of IKE keep their own ends;
    /// SAs over the API go to the place where their peer is.
    fn present_way(&self, manager: KeyManager, set: SaSetId, way: Encapsulation) -> Encapsulation {
        match manager {
            KeyManager::Ike => way,
            KeyManager::Api => self.moved_peers.0.get(&set).map_or(way, |ends| ends.carry(way)),
        }
    }

    /// Changes the order of a set's outbound SAs.
    pub(crate) fn change_order(&mut self, set: SaSetId, change: impl FnOnce(&mut Vec<SaId>)) {
        let place = self.sad.places().get(set);
        let Some(known) = place.and_then(|place| self.sad.set(place)).cloned() else { return };
        let mut changed = SaSet::clone(&known);
        change(&mut changed.outbound);
        let changed = self.at_newest(changed);
        if changed != *known {
            self.sad.put_set(changed.clone());
        }
        self.share_identifications(&changed);
    }

    /// Returns a set between the ends of its newest SA, if IKE gave these: another path, of which
    /// nothing is known. A peer that charon made by itself has these ends too.
    fn at_newest(&mut self, set: SaSet) -> SaSet {
        let of_ike = |id: &SaId| {
            let kept = self.put.outbound.get(id)?;
            (kept.manager == KeyManager::Ike).then(|| PeerEnds::of(&kept.sa.encapsulation))
        };
        let Some(ends) = set.outbound.last().and_then(of_ike) else { return set };
        self.ike.set_ends(set.id, ends);
        if set.tunnel == ends.tunnel { set } else { set.moved_to(ends.tunnel) }
    }

    /// Has the outbound SAs of a set share out the identifications of outer packets, where these
    /// may be cut. Each SA keeps its key, numbers and slot.
    fn share_identifications(&mut self, set: &SaSet) {
        let count = set.outbound.len();
        for (place, id) in set.outbound.iter().enumerate() {
            let Some(sa) = self.sad.find_outbound(*id) else { continue };
            let Encapsulation { mode, dont_fragment, .. } = sa.encapsulation;
            let are_cut = mode == Mode::Tunnel || dont_fragment != DontFragment::Set;
            let identifications = Identifications::of_one_among(place, count);
            if are_cut && sa.identifications() != identifications {
                let sa = sa.at(*id, set.id).identified_by(identifications);
                self.sad.put_outbound(Arc::new(sa));
            }
        }
    }

    /// Name of the peer whose set it is.
    pub(crate) fn peer_of(&self, set: SaSetId) -> String {
        let place = self.sad.places().get(set);
        let set = place.and_then(|place| self.sad.set(place));
        set.map_or_else(String::new, |set| set.peer.clone())
    }

    /// Returns the owner of an SA that seals.
    pub fn owner_of_outbound(&self, sa: SaId) -> SaOwner {
        let put = self.put.outbound.get(&sa);
        put.map_or(SaOwner::File, |kept| kept.owner())
    }

    /// Returns the owner of an SA that opens.
    pub fn owner_of_inbound(&self, sa: SaId) -> SaOwner {
        let put = self.put.inbound.get(&sa);
        put.map_or(SaOwner::File, |kept| kept.owner())
    }

    /// The keys of all SAs that were put and run.
    pub fn put_fingerprints(&self) -> impl Iterator<Item = Fingerprint> {
        let outbound = self.put.outbound.values().map(|kept| kept.fingerprint);
        outbound.chain(self.put.inbound.values().map(|kept| kept.fingerprint))
    }

    /// Number of SAs that were put and run, of both directions.
    pub fn put_count(&self) -> usize {
        self.put.outbound.len() + self.put.inbound.len()
    }
}

/// The turn of a key manager's SAs. charon 5.9 names no CPU for an SA.
const fn turn_of(manager: KeyManager) -> SealingTurn {
    match manager {
        KeyManager::Api => SealingTurn::InOrder,
        KeyManager::Ike => SealingTurn::Newest { cpu: None },
    }
}

/// The limits of an SA that is put now; its time counts from now on. `None`: it has none. One whose
/// packets are a card's has an account all the same: the card's counts go there. One of IKE has it
/// too: charon asks for its use.
fn allowance(
    lifetime: Lifetime,
    (seat, manager): (Option<CardSeat>, KeyManager),
    now_ns: u64,
) -> Option<Allowance> {
    let is_cards = seat.is_some_and(CardSeat::has_numbers);
    let is_counted = is_cards || manager == KeyManager::Ike;
    (lifetime != Lifetime::NONE || is_counted).then(|| {
        let account = Account::new();
        account.begin(now_ns);
        Allowance { lifetime, account: Arc::new(account) }
    })
}
