//! Says what a put would do, before anything is taken for it.

use std::sync::Arc;

use config::validated::{KeySource, Peer};
use config::{MAX_LIMIT_SECONDS, SaOffload, nearest};
use ipsec::{
    Encapsulation, Fingerprint, KeyMaterial, Lifetime, Limit, OutboundSa, ReplayWindow, SaId,
    SequenceCounter, Spi, Suite, WindowSizeError,
};
use policy::{Direction, SaSetId};

use super::{FreshSa, MAX_OUTBOUND_OF_PEER, MAX_PUT_SAS, Numbers, PutSa};
use crate::change::did_you_mean;
use crate::compiled::Compiled;
use crate::ike_peers::IKE_NAMES;
use crate::kept_sas::Kept;
use crate::move_error::MoveError;
use crate::owner::{KeyManager, SaOwner};
use crate::peer_address::PeerEnds;

/// The reason why an SA is not put. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PutRefusal {
    /// No peer has the name.
    #[error("there is no peer \"{name}\"{}", did_you_mean(.nearest))]
    UnknownPeer {
        /// The name.
        name: String,
        /// Name of a peer that was probably meant.
        nearest: Option<String>,
    },
    /// The peer's keys come from a file.
    #[error("the keys of peer {peer} come from a file: write keys = \"{asks}\" in its section")]
    FileKeys {
        /// The peer's name.
        peer: String,
        /// The way that was tried.
        asks: &'static str,
    },
    /// The peer's SAs are put another way.
    #[error("the section of peer {peer} does not have keys = \"{asks}\": its SAs come another way")]
    OtherManager {
        /// The peer's name.
        peer: String,
        /// The way that was tried.
        asks: &'static str,
    },
    /// The key is not as long as the suite's keys are.
    #[error("{suite} takes {expected} bytes of key material, not {got}")]
    KeyLength {
        /// The suite.
        suite: Suite,
        /// Bytes that it takes.
        expected: usize,
        /// Bytes that were given.
        got: usize,
    },
    /// The configuration does not admit the suite for peers that charon made.
    #[error(transparent)]
    BeyondIke(#[from] config::BeyondBounds),
    /// The suite authenticates nothing.
    #[error("suite {suite} has no integrity: it is for benchmarks with a key file alone")]
    NoIntegrity {
        /// The suite.
        suite: Suite,
    },
    /// The peer's section says another carrier.
    #[error(
        "peer {peer} has offload = \"{section}\": an SA with offload \"{asked}\" is not put for it"
    )]
    Offload {
        /// The peer's name.
        peer: String,
        /// The carrier that its section names.
        section: &'static str,
        /// The carrier that was asked for.
        asked: &'static str,
    },
    /// The size of the replay window is not offered.
    #[error(transparent)]
    Window(#[from] WindowSizeError),
    /// The limits make no sense.
    #[error(transparent)]
    Limits(#[from] LimitMistake),
    /// IKE gives the SA ends that its peer may not have.
    #[error(transparent)]
    Ends(#[from] MoveError),
    /// Another SA has the SPI: one with another key, other limits or another peer, or that of a
    /// key file.
    #[error("{direction} SPI {spi} is taken by another SA, of peer {peer} (owner: {owner})")]
    SpiTaken {
        /// Direction of both.
        direction: &'static str,
        /// The SPI.
        spi: Spi,
        /// Peer of the SA that runs.
        peer: String,
        /// Its owner.
        owner: &'static str,
    },
    /// The SPI was reserved for another peer.
    #[error("inbound SPI {spi} is reserved for peer {peer}")]
    SpiReserved {
        /// The SPI.
        spi: Spi,
        /// The peer that it is reserved for.
        peer: String,
    },
    /// The SPI comes twice in one request.
    #[error("{direction} SPI {spi} comes twice in this request")]
    Twice {
        /// Direction of both.
        direction: &'static str,
        /// The SPI.
        spi: Spi,
    },
    /// The SA that is to be replaced does not run, or is replaced by this request already.
    #[error("peer {peer} has no {direction} SA {spi} that was put, so that nothing replaces it")]
    NothingToReplace {
        /// The peer's name.
        peer: String,
        /// Direction of both.
        direction: &'static str,
        /// SPI of the missing one.
        spi: Spi,
    },
    /// There are as many SAs as there may be.
    #[error("{most} {direction} SAs were put, as many as may be: delete some first")]
    TooMany {
        /// Direction of the SA.
        direction: &'static str,
        /// The number that there may be.
        most: usize,
    },
    /// The peer has as many outbound SAs as it may have.
    #[error("peer {peer} has {most} outbound SAs, as many as may be: delete some first")]
    TooManyOfPeer {
        /// The peer's name.
        peer: String,
        /// The number that there may be.
        most: usize,
    },
}

/// Limits that make no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LimitMistake {
    /// A limit of nothing: the SA would never live.
    #[error("a limit of 0 {}: write 1 at least, or none", .0.name())]
    Zero(Limit),
    /// A limit by time that is longer than a configuration's may be.
    #[error("a limit of more than {MAX_LIMIT_SECONDS} {}", .0.name())]
    TooLong(Limit),
    /// A soft limit beyond the hard one would never be told.
    #[error("soft limit {soft} is above hard limit {hard} {}", .limit.name())]
    SoftAboveHard {
        /// Kind of both limits.
        limit: Limit,
        /// The soft one.
        soft: u64,
        /// The hard one.
        hard: u64,
    },
}

/// A refusal, and the SA that it is about.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}")]
pub struct RefusedPut {
    /// Place of the SA in the request, from 0.
    pub place: usize,
    /// The reason.
    pub why: PutRefusal,
}

impl PutRefusal {
    /// Returns the word of the reason in the API: one of a closed set.
    pub const fn word(&self) -> &'static str {
        match self {
            PutRefusal::UnknownPeer { .. } => "unknown_peer",
            PutRefusal::FileKeys { .. } => "file_keys",
            PutRefusal::OtherManager { .. } => "other_manager",
            PutRefusal::KeyLength { .. } => "bad_key",
            PutRefusal::BeyondIke(_) | PutRefusal::NoIntegrity { .. } => "bad_suite",
            PutRefusal::Offload { .. } => "bad_offload",
            PutRefusal::Window(_) => "bad_window",
            PutRefusal::Limits(_) => "bad_limit",
            PutRefusal::Ends(_) => "bad_ends",
            PutRefusal::SpiTaken { .. } | PutRefusal::SpiReserved { .. } => "spi_taken",
            PutRefusal::Twice { .. } => "twice",
            PutRefusal::NothingToReplace { .. } => "unknown_sa",
            PutRefusal::TooMany { .. } | PutRefusal::TooManyOfPeer { .. } => "too_many",
        }
    }
}

/// SAs that can be put into the configuration that the plan was made of. No `Debug`: it holds key
/// bytes.
#[derive(Default)]
pub struct PutPlan {
    pub(super) fresh: Vec<FreshSa>,
    /// The keys of the SAs that run already.
    running: Vec<Fingerprint>,
}

impl PutPlan {
    /// The keys of the SAs that do not run yet, in the order of the request.
    pub fn fingerprints(&self) -> Vec<Fingerprint> {
        self.fresh.iter().map(|fresh| fresh.material.fingerprint()).collect()
    }

    /// Number of SAs that run already, exactly as they were asked for.
    pub const fn unchanged(&self) -> usize {
        self.running.len()
    }

    /// The keys of the SAs that run already, in the order of the request.
    pub fn running_fingerprints(&self) -> &[Fingerprint] {
        &self.running
    }

    /// Returns the place in the request of the SA with a key that does not run yet; of two with one
    /// key the later.
    pub fn place_of(&self, key: Fingerprint) -> Option<usize> {
        let mut from_behind = self.fresh.iter().rev();
        from_behind.find(|fresh| fresh.material.fingerprint() == key).map(|fresh| fresh.place)
    }

    /// SPIs of the inbound SAs that do not run yet.
    pub fn inbound_spis(&self) -> impl Iterator<Item = Spi> {
        let inbound = self.fresh.iter().filter(|fresh| fresh.direction() == Direction::Inbound);
        inbound.map(|fresh| fresh.spi)
    }

    /// Number of SAs of a direction that do not run yet.
    fn count(&self, direction: Direction) -> usize {
        self.fresh.iter().filter(|fresh| fresh.direction() == direction).count()
    }
}

/// An SA of a request.
enum PlannedSa {
    Fresh(Box<FreshSa>),
    /// It runs already, with this key.
    Running(Fingerprint),
}

/// A peer whose SAs are put.
struct ApiPeer<'c> {
    set: SaSetId,
    of: &'c config::validated::Peer,
}

/// The name of an SA of a request: an outbound one is found by its remote end too.
struct PlannedName {
    direction: Direction,
    spi: Spi,
    set: SaSetId,
    end: RemotePlace,
}

/// The place that packets go to: an address and, in UDP, a port.
type RemotePlace = (std::net::IpAddr, Option<u16>);

impl Compiled {
    /// Plans to put SAs, all or none. Takes nothing, and changes nothing.
    ///
    /// An SA that runs exactly as it is asked for is not put again, whatever it replaces.
    ///
    /// # Errors
    /// [`RefusedPut`]: the first SA that cannot be put.
    pub fn plan_put(&self, asked: Vec<PutSa>) -> Result<PutPlan, RefusedPut> {
        let mut plan = PutPlan::default();
        let mut names = Vec::with_capacity(asked.len());
        for (place, asked) in asked.into_iter().enumerate() {
            let planned = self.plan_one((place, asked), &plan, &mut names);
            match planned.map_err(|why| RefusedPut { place, why })? {
                PlannedSa::Fresh(fresh) => plan.fresh.push(*fresh),
                PlannedSa::Running(fingerprint) => plan.running.push(fingerprint),
            }
        }
        Ok(plan)
    }

    /// Plans an SA of a request, after the SAs in front of it.
    fn plan_one(
        &self,
        (place, asked): (usize, PutSa),
        plan: &PutPlan,
        names: &mut Vec<PlannedName>,
    ) -> Result<PlannedSa, PutRefusal> {
        let PutSa { manager, direction, spi, lifetime, worker, .. } = asked;
        let ApiPeer { set, of: peer } = self.api_peer(&asked.peer, manager)?;
        let suite = asked.suite.unwrap_or(peer.suite);
        if !suite.is_authenticated() {
            return Err(PutRefusal::NoIntegrity { suite });
        }
        if let Some(bounds) = &self.settings().ike
            && peer.name.starts_with(IKE_NAMES)
        {
            bounds.admit_suite(suite)?;
        }
        let wrong = |_| PutRefusal::KeyLength {
            suite,
            expected: suite.material_bytes(),
            got: asked.key.len(),
        };
        let material = KeyMaterial::new(suite, &asked.key).map_err(wrong)?;
        let width = asked.numbers.unwrap_or(peer.numbers);
        let numbers = match direction {
            Direction::Outbound => Numbers::Seals(Arc::new(SequenceCounter::new(width))),
            Direction::Inbound => {
                let size = asked.window.unwrap_or(peer.replay_window);
                Numbers::Opens(Arc::new(ReplayWindow::new(size, width)?))
            }
        };
        lifetime.iter().try_for_each(check_limits)?;
        asked.ends.map_or(Ok(()), |ends| self.may_have_ends(set, ends))?;
        let way = asked.ends.map_or(peer.encapsulation, |ends| ends.carry(peer.encapsulation));
        let end = end_of(&self.present_way(manager, set, way));
        let is_named = |known: &PlannedName| {
            let is_there =
                direction == Direction::Inbound || (known.set == set || known.end == end);
            (known.direction, known.spi) == (direction, spi) && is_there
        };
        if names.iter().any(is_named) {
            return Err(PutRefusal::Twice { direction: direction.name(), spi });
        }
        names.push(PlannedName { direction, spi, set, end });
        let offload = carrier(peer, asked.offload)?;
        let (replaces, seat) = (Vec::new(), None);
        let fresh = FreshSa {
            place,
            manager,
            set,
            spi,
            material,
            numbers,
            lifetime,
            replaces,
            worker,
            offload,
            ends: asked.ends,
            seat,
        };
        if self.runs(&fresh, end)? {
            return Ok(PlannedSa::Running(fresh.material.fingerprint()));
        }
        let replaces = asked.replaces.iter().map(|old| self.to_be_replaced(&fresh, *old, plan));
        let fresh = FreshSa { replaces: replaces.collect::<Result<_, _>>()?, ..fresh };
        self.check_room(&fresh, plan)?;
        Ok(PlannedSa::Fresh(Box::new(fresh)))
    }

    /// The peer of this name, if its SAs are put this way.
    fn api_peer(&self, name: &str, manager: KeyManager) -> Result<ApiPeer<'_>, PutRefusal> {
        let set = self.set_named(name);
        let found = set.and_then(|set| Some((set, self.peer_with(set)?)));
        let Some((set, of)) = found else {
            let names = self.settings().peers.iter().map(|peer| peer.name.as_str());
            let nearest = nearest(name, names);
            return Err(PutRefusal::UnknownPeer { name: name.to_owned(), nearest });
        };
        let peer = name.to_owned();
        match &of.keys {
            keys if manager.keys(keys) => Ok(ApiPeer { set, of }),
            KeySource::File(_) => Err(PutRefusal::FileKeys { peer, asks: manager.name() }),
            _ => Err(PutRefusal::OtherManager { peer, asks: manager.name() }),
        }
    }

    /// Checks that SAs can be put for a peer of this name.
    ///
    /// # Errors
    /// [`PutRefusal::UnknownPeer`], [`PutRefusal::FileKeys`], [`PutRefusal::OtherManager`].
    pub fn check_manager(&self, name: &str, manager: KeyManager) -> Result<(), PutRefusal> {
        // Peers of charon's own come with their first SA.
        let is_own = name.starts_with(IKE_NAMES) && self.settings().ike.is_some();
        if is_own && manager == KeyManager::Ike {
            return Ok(());
        }
        self.api_peer(name, manager).map(|_| ())
    }

    /// Returns whether an SA runs exactly as it is asked for.
    ///
    /// # Errors
    /// [`PutRefusal::SpiTaken`]: another runs under its SPI.
    fn runs(&self, fresh: &FreshSa, end: RemotePlace) -> Result<bool, PutRefusal> {
        let (set, spi, direction) = (fresh.set, fresh.spi, fresh.direction().name());
        let fingerprint = fresh.material.fingerprint();
        let (is_same, id_of_set, owner) = match &fresh.numbers {
            Numbers::Seals(counter) => {
                let mut others = self.sad.outbound_by_spi(spi);
                let is_there =
                    |sa: &&Arc<OutboundSa>| sa.set == set || end_of(&sa.encapsulation) == end;
                let Some(there) = others.find(is_there) else { return Ok(false) };
                let is_same = self.put.outbound.get(&there.id).is_some_and(|kept| {
                    let of = (kept.sa.suite, kept.sa.sequence.numbers());
                    of == (fresh.material.suite(), counter.numbers())
                        && has_ends(&kept.sa.encapsulation, fresh.ends)
                        && is_kept(kept, fingerprint, fresh.lifetime)
                });
                (is_same, there.set, self.owner_of_outbound(there.id))
            }
            Numbers::Opens(window) => {
                let Some(there) = self.sad.inbound_by_spi(spi) else { return Ok(false) };
                let is_same = self.put.inbound.get(&there.id).is_some_and(|kept| {
                    let known = &kept.sa.window;
                    let of = (kept.sa.suite, known.numbers(), known.size());
                    of == (fresh.material.suite(), window.numbers(), window.size())
                        && has_ends(&kept.sa.encapsulation, fresh.ends)
                        && is_kept(kept, fingerprint, fresh.lifetime)
                });
                (is_same, there.set, self.owner_of_inbound(there.id))
            }
        };
        if is_same && id_of_set == set {
            return Ok(true);
        }
        let (peer, owner) = (self.peer_of(id_of_set), SaOwner::name(owner));
        Err(PutRefusal::SpiTaken { direction, spi, peer, owner })
    }

    /// The slot of the SA that another is to replace.
    fn to_be_replaced(
        &self,
        fresh: &FreshSa,
        old: Spi,
        plan: &PutPlan,
    ) -> Result<SaId, PutRefusal> {
        let is_put = |id: &SaId| match fresh.direction() {
            Direction::Outbound => self.put.outbound.contains_key(id),
            Direction::Inbound => self.put.inbound.contains_key(id),
        };
        let found = match fresh.direction() {
            Direction::Outbound => {
                let mut of_spi = self.sad.outbound_by_spi(old);
                of_spi.find(|sa| sa.set == fresh.set).map(|sa| sa.id)
            }
            Direction::Inbound => {
                let of_spi = self.sad.inbound_by_spi(old).filter(|sa| sa.set == fresh.set);
                of_spi.map(|sa| sa.id)
            }
        };
        // An outbound one is gone with its first replacement.
        let is_gone = |id: &SaId| {
            let same = |other: &FreshSa| {
                other.direction() == Direction::Outbound && other.replaces.contains(id)
            };
            fresh.direction() == Direction::Outbound && plan.fresh.iter().any(same)
        };
        found.filter(is_put).filter(|id| !is_gone(id)).ok_or_else(|| {
            let (peer, direction) = (self.peer_of(fresh.set), fresh.direction().name());
            PutRefusal::NothingToReplace { peer, direction, spi: old }
        })
    }

    /// Refuses an SA for which there is no room beside those before it.
    fn check_room(&self, fresh: &FreshSa, plan: &PutPlan) -> Result<(), PutRefusal> {
        let direction = fresh.direction();
        let run = match direction {
            Direction::Outbound => self.put.outbound.len(),
            Direction::Inbound => self.put.inbound.len(),
        };
        if run + plan.count(direction) >= MAX_PUT_SAS {
            let direction = direction.name();
            return Err(PutRefusal::TooMany { direction, most: MAX_PUT_SAS });
        }
        if direction == Direction::Inbound || !fresh.replaces.is_empty() {
            return Ok(());
        }
        let adds = |other: &&FreshSa| {
            let is_of = (other.direction(), other.set) == (direction, fresh.set);
            is_of && other.replaces.is_empty()
        };
        let place = self.sad.places().get(fresh.set);
        let set = place.and_then(|place| self.sad.set(place));
        let run = set.map_or(0, |set| set.outbound.len());
        match run + plan.fresh.iter().filter(adds).count() < MAX_OUTBOUND_OF_PEER {
            true => Ok(()),
            false => {
                let peer = self.peer_of(fresh.set);
                Err(PutRefusal::TooManyOfPeer { peer, most: MAX_OUTBOUND_OF_PEER })
            }
        }
    }
}

/// The carrier of an SA of a peer, for which one may have been asked.
fn carrier(peer: &Peer, asked: Option<SaOffload>) -> Result<SaOffload, PutRefusal> {
    match (peer.offload, asked) {
        (section, None) => Ok(section),
        (section, Some(asked)) if section == SaOffload::Auto || section == asked => Ok(asked),
        (section, Some(asked)) => {
            let (peer, section, asked) = (peer.name.clone(), section.name(), asked.name());
            Err(PutRefusal::Offload { peer, section, asked })
        }
    }
}

/// Returns whether an SA is between the ends that IKE gives it, if IKE gives some.
fn has_ends(way: &Encapsulation, ends: Option<PeerEnds>) -> bool {
    ends.is_none_or(|ends| PeerEnds::of(way) == ends)
}

/// Returns whether an SA has this key and was put with these limits.
fn is_kept<S>(kept: &Kept<S>, fingerprint: Fingerprint, lifetime: Option<Lifetime>) -> bool {
    (kept.fingerprint, kept.lifetime) == (fingerprint, lifetime)
}

/// The place that packets of a carriage go to.
fn end_of(way: &Encapsulation) -> RemotePlace {
    (way.tunnel.remote, way.udp.map(|ports| ports.remote))
}

/// Checks that limits are such as a configuration may have.
fn check_limits(lifetime: &Lifetime) -> Result<(), LimitMistake> {
    for limit in Limit::ALL {
        let (soft, hard) = (lifetime.soft.of(limit), lifetime.hard.of(limit));
        if soft == Some(0) || hard == Some(0) {
            return Err(LimitMistake::Zero(limit));
        }
        let is_time = matches!(limit, Limit::Seconds | Limit::Idle);
        let is_long = |of: Option<u64>| of.is_some_and(|time| time > MAX_LIMIT_SECONDS.into());
        if is_time && (is_long(soft) || is_long(hard)) {
            return Err(LimitMistake::TooLong(limit));
        }
        if let (Some(soft), Some(hard)) = (soft, hard)
            && soft > hard
        {
            return Err(LimitMistake::SoftAboveHard { limit, soft, hard });
        }
    }
    Ok(())
}
