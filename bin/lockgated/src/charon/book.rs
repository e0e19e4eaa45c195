//! SAs and policies that charon has here.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use charon_link::{
    AddPolicy, CharonId, NameSa, Policy, PolicyAction, PolicyDirection, SaDirection, SaHandle,
    SaName, Selector,
};
use ipsec::Spi;
use policy::Direction;

use super::small_set::SmallSet;
use crate::ike_names::IkeNames;
use crate::totals::SaKey;

/// Identity of an SA: inbound its SPI, outbound the SPI at its destination's address.
pub(super) type SaPlace = (Direction, Spi, IpAddr);

/// An SA that charon put.
#[derive(Clone, Debug)]
pub(super) struct KnownSa {
    pub(super) handle: SaHandle,
    /// The charon that put it.
    pub(super) owner: CharonId,
    pub(super) peer: Arc<str>,
    pub(super) name: SaName,
    pub(super) reqid: u32,
    /// Its selectors, local and remote.
    pub(super) selectors: Arc<[Vec<Selector>; 2]>,
    /// It has reached its soft limit.
    pub(super) is_due: bool,
    /// It has reached its hard limit.
    pub(super) has_ended: bool,
    /// The charon that is connected has not named it.
    pub(super) is_orphan: bool,
    /// The place that its peer was seen at and charon was told of last.
    pub(super) seen: Option<(SocketAddr, Instant)>,
}

/// Time after which charon is told again of a place that it has not moved an SA to.
const REPORT_AGAIN: Duration = Duration::from_secs(10);

impl KnownSa {
    /// Returns whether charon is to be told of a place of the SA's peer, and notes that it was.
    pub(super) fn reports(&mut self, place: SocketAddr, now: Instant) -> bool {
        let is_known = self.seen.is_some_and(|(known, since)| {
            known == place && now.saturating_duration_since(since) < REPORT_AGAIN
        });
        if !is_known {
            self.seen = Some((place, now));
        }
        !is_known
    }
}

/// SAs and policies that charon has here. Bounded by what may be put, and by [`MAX_POLICIES`].
#[derive(Default)]
pub(super) struct Book {
    /// The names that are shown.
    names: IkeNames,
    sas: HashMap<SaPlace, KnownSa>,
    by_handle: HashMap<SaHandle, SaPlace>,
    by_peer: HashMap<Arc<str>, SmallSet<SaPlace>>,
    by_reqid: HashMap<u32, SmallSet<SaPlace>>,
    policies: Policies,
    /// Some SAs may be orphans.
    may_have_orphans: bool,
}

/// Policies in the order in which they came, with ways to find them. A policy is stored once.
#[derive(Default)]
struct Policies {
    known: BTreeMap<u64, KnownPolicy>,
    by_name: HashMap<ByName, u64>,
    by_selectors: HashMap<BySelectors, Numbers>,
    /// Outbound ones that protect, by the tunnel's ends.
    by_ends: HashMap<[IpAddr; 2], Numbers>,
    /// The same, by their reqids.
    by_reqid: HashMap<u32, Numbers>,
    count: u64,
}

struct KnownPolicy {
    policy: Arc<AddPolicy>,
    is_orphan: bool,
}

/// A policy as a key: by its name and the SA that it was for. While charon moves an SA it has two
/// of one name, one that protects and one that drops.
struct ByName(Arc<AddPolicy>);

impl ByName {
    fn key(&self) -> (u32, u32, PolicyAction, &Policy) {
        let AddPolicy { reqid, spi, action, ref policy, .. } = *self.0;
        (reqid, spi, action, policy)
    }
}

/// A direction and selectors as a key: those of a policy, or those that are asked for.
enum BySelectors {
    Of(Arc<AddPolicy>),
    Asked(Box<(PolicyDirection, [Selector; 2])>),
}

impl BySelectors {
    fn key(&self) -> (PolicyDirection, &[Selector; 2]) {
        match self {
            BySelectors::Of(policy) => (policy.policy.direction, &policy.policy.selectors),
            BySelectors::Asked(asked) => (asked.0, &asked.1),
        }
    }
}

/// Numbers of policies. Most are alone.
#[expect(clippy::box_collection, reason = "one alone has no room for a tree's head")]
enum Numbers {
    One(u64),
    Several(Box<BTreeSet<u64>>),
}

impl Numbers {
    fn iter(&self) -> impl Iterator<Item = &u64> {
        let (one, several) = match self {
            Numbers::One(number) => (Some(number), None),
            Numbers::Several(numbers) => (None, Some(numbers)),
        };
        one.into_iter().chain(several.into_iter().flat_map(|several| several.iter()))
    }

    fn add(&mut self, number: u64) {
        match self {
            Numbers::One(one) => *self = Numbers::Several(Box::new([*one, number].into())),
            Numbers::Several(numbers) => _ = numbers.insert(number),
        }
    }

    /// Takes a number out; returns whether none is left.
    fn remove(&mut self, number: u64) -> bool {
        match self {
            Numbers::One(one) => *one == number,
            Numbers::Several(numbers) => {
                numbers.remove(&number);
                numbers.is_empty()
            }
        }
    }
}

/// The reason why an SA is refused whose name another peer's has.
pub(super) const OCCUPIED: &str = "another peer's SA has this SPI at this address";

/// Policies that charon may have: three for each CHILD_SA.
pub(super) const MAX_POLICIES: usize = 3 * 65_536;

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
    // The port is no part of it: it may change while the SA lives.
    Some((direction, spi, name.destination.ip()))
}

impl Policies {
    fn add(&mut self, policy: AddPolicy) {
        let policy = Arc::new(policy);
        self.forget(policy.clone());
        let number = self.count;
        self.count += 1;
        self.by_name.insert(ByName(policy.clone()), number);
        add_to(&mut self.by_selectors, BySelectors::Of(policy.clone()), number);
        if let Some(ends) = ends_of_protect(&policy) {
            add_to(&mut self.by_ends, ends, number);
            add_to(&mut self.by_reqid, policy.reqid, number);
        }
        self.known.insert(number, KnownPolicy { policy, is_orphan: false });
    }

    fn forget(&mut self, gone: Arc<AddPolicy>) -> Option<Arc<AddPolicy>> {
        let number = self.by_name.remove(&ByName(gone))?;
        let known = self.known.remove(&number)?.policy;
        drop_from(&mut self.by_selectors, &BySelectors::Of(known.clone()), number);
        if let Some(ends) = ends_of_protect(&known) {
            drop_from(&mut self.by_ends, &ends, number);
            drop_from(&mut self.by_reqid, &known.reqid, number);
        }
        Some(known)
    }
}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &ByName) -> bool {
        self.key() == other.key()
    }
}

impl Eq for ByName {}

impl Hash for BySelectors {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for BySelectors {
    fn eq(&self, other: &BySelectors) -> bool {
        self.key() == other.key()
    }
}

impl Eq for BySelectors {}

/// The ends of an outbound policy that protects.
fn ends_of_protect(policy: &AddPolicy) -> Option<[IpAddr; 2]> {
    let AddPolicy { policy, action, .. } = policy;
    let is_it = *action == PolicyAction::Protect && policy.direction == PolicyDirection::Outbound;
    is_it.then(|| [policy.source.ip(), policy.destination.ip()])
}

fn add_to<K: Hash + Eq>(index: &mut HashMap<K, Numbers>, key: K, number: u64) {
    match index.entry(key) {
        Entry::Occupied(mut known) => known.get_mut().add(number),
        Entry::Vacant(vacant) => _ = vacant.insert(Numbers::One(number)),
    }
}

fn drop_from<K: Hash + Eq>(index: &mut HashMap<K, Numbers>, key: &K, number: u64) {
    if index.get_mut(key).is_some_and(|numbers| numbers.remove(number)) {
        index.remove(key);
    }
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
    pub(super) fn name(&self, NameSa { handle, ike, child, .. }: &NameSa) -> bool {
        let Some(place) = self.by_handle.get(handle) else { return false };
        let known = self.sas.get(place);
        known.is_some_and(|known| self.names.name(&key(*place, &known.peer), [ike, child]))
    }

    /// The SA of a handle.
    pub(super) fn find(&self, handle: SaHandle) -> Option<(Direction, &KnownSa)> {
        let place = self.by_handle.get(&handle)?;
        Some((place.0, self.sas.get(place)?))
    }

    /// Notes that charon names an SA after its connection broke.
    pub(super) fn resume(&mut self, handle: SaHandle) {
        let place = self.by_handle.get(&handle);
        if let Some(known) = place.and_then(|place| self.sas.get_mut(place)) {
            known.is_orphan = false;
        }
    }

    /// Returns whether an SA of another peer has a name, and is in use. Two gateways choose their
    /// SPIs without each other, and an SA is found by SPI and destination.
    pub(super) fn is_of_another(&self, direction: Direction, name: &SaName, peer: &str) -> bool {
        let known = self.get(direction, name);
        known.is_some_and(|known| *known.peer != *peer && !known.is_orphan && !known.has_ended)
    }

    /// Notes an SA.
    pub(super) fn add(&mut self, direction: Direction, sa: KnownSa) {
        let Some(place) = place(direction, &sa.name) else { return };
        if let Some(gone) = self.remove(&place)
            && gone.peer != sa.peer
        {
            self.names.forget(&key(place, &gone.peer));
        }
        self.by_peer.entry(sa.peer.clone()).or_default().insert(place);
        self.by_reqid.entry(sa.reqid).or_default().insert(place);
        self.names.add(key(place, &sa.peer), sa.reqid);
        self.by_handle.insert(sa.handle, place);
        self.sas.insert(place, sa);
    }

    /// The SA of a name in a direction.
    pub(super) fn get(&self, direction: Direction, name: &SaName) -> Option<&KnownSa> {
        self.sas.get(&place(direction, name)?)
    }

    /// Forgets an SA.
    pub(super) fn forget(&mut self, direction: Direction, name: &SaName) {
        let Some(place) = place(direction, name) else { return };
        if let Some(gone) = self.remove(&place) {
            self.names.forget(&key(place, &gone.peer));
        }
    }

    /// Takes an SA out, and leaves its names.
    fn remove(&mut self, place: &SaPlace) -> Option<KnownSa> {
        let sa = self.sas.remove(place)?;
        self.by_handle.remove(&sa.handle);
        if let Some(places) = self.by_peer.get_mut(&sa.peer) {
            places.remove(place);
            if places.is_empty() {
                self.by_peer.remove(&sa.peer);
            }
        }
        if let Some(places) = self.by_reqid.get_mut(&sa.reqid) {
            places.remove(place);
            if places.is_empty() {
                self.by_reqid.remove(&sa.reqid);
            }
        }
        Some(sa)
    }

    /// The SA of a direction, SPI and peer.
    pub(super) fn at(
        &mut self,
        direction: Direction,
        spi: Spi,
        peer: &str,
    ) -> Option<&mut KnownSa> {
        let mut places = self.by_peer.get(peer)?.iter();
        let place = *places.find(|(of, number, _)| (*of, *number) == (direction, spi))?;
        self.sas.get_mut(&place)
    }

    /// All SAs that pass a test: their directions, and what is known of them.
    pub(super) fn sas_that(&self, pass: impl Fn(&KnownSa) -> bool) -> Vec<(Direction, KnownSa)> {
        let of = self.sas.iter().filter(|(_, sa)| pass(sa));
        of.map(|((direction, ..), sa)| (*direction, sa.clone())).collect()
    }

    /// All SAs that the charon which is connected does not know.
    pub(super) fn orphans(&mut self) -> Vec<(Direction, KnownSa)> {
        if !self.may_have_orphans {
            return Vec::new();
        }
        let orphans = self.sas_that(|sa| sa.is_orphan);
        self.may_have_orphans = !orphans.is_empty();
        orphans
    }

    /// The SAs of a peer, with their directions.
    pub(super) fn sas_of_peer(&self, peer: &str) -> impl Iterator<Item = (Direction, &KnownSa)> {
        let places = self.by_peer.get(peer).into_iter().flat_map(SmallSet::iter);
        places.filter_map(|place| Some((place.0, self.sas.get(place)?)))
    }

    /// Notes that a charon has connected that has named nothing yet.
    pub(super) fn begin(&mut self) {
        self.sas.values_mut().for_each(|sa| sa.is_orphan = true);
        self.may_have_orphans = true;
        self.policies.known.values_mut().for_each(|known| known.is_orphan = true);
    }

    /// Notes that charon has named all that it has: policies beyond that are gone. Returns them.
    pub(super) fn settle(&mut self) -> Vec<Arc<AddPolicy>> {
        let orphans = self.policies.known.values().filter(|known| known.is_orphan);
        let orphans: Vec<Arc<AddPolicy>> = orphans.map(|known| known.policy.clone()).collect();
        orphans.iter().for_each(|policy| _ = self.policies.forget(policy.clone()));
        orphans
    }

    /// Returns whether there is room for another policy.
    pub(super) fn has_room(&self) -> bool {
        self.policies.known.len() < MAX_POLICIES
    }

    /// Notes a policy.
    pub(super) fn add_policy(&mut self, policy: AddPolicy) {
        self.policies.add(policy);
    }

    /// Returns whether charon has a policy of this name.
    pub(super) fn has_the(&self, policy: &AddPolicy) -> bool {
        self.policies.by_name.contains_key(&ByName(Arc::new(policy.clone())))
    }

    /// Forgets a policy; returns it if it was known.
    pub(super) fn forget_policy(&mut self, gone: &Arc<AddPolicy>) -> Option<Arc<AddPolicy>> {
        self.policies.forget(gone.clone())
    }

    /// Forgets all policies.
    pub(super) fn forget_policies(&mut self) {
        self.policies = Policies { count: self.policies.count, ..Policies::default() };
    }

    /// All policies, in the order in which they came.
    pub(super) fn policies(&self) -> impl Iterator<Item = &AddPolicy> {
        self.policies.known.values().map(|known| &*known.policy)
    }

    /// The policies of a direction with these selectors.
    pub(super) fn policies_with(
        &self,
        direction: PolicyDirection,
        selectors: &[Selector; 2],
    ) -> impl Iterator<Item = &AddPolicy> {
        let asked = BySelectors::Asked(Box::new((direction, selectors.clone())));
        let numbers = self.policies.by_selectors.get(&asked);
        let numbers = numbers.into_iter().flat_map(Numbers::iter);
        numbers.filter_map(|of| self.policies.known.get(of)).map(|known| &*known.policy)
    }

    /// SAs that carry the packets of a direction's policies with these selectors, each once.
    pub(super) fn sas_behind(
        &self,
        way: PolicyDirection,
        selectors: &[Selector; 2],
    ) -> impl Iterator<Item = (Direction, &KnownSa)> {
        let direction = match way {
            PolicyDirection::Outbound => Direction::Outbound,
            PolicyDirection::Inbound | PolicyDirection::Forward => Direction::Inbound,
        };
        // All CHILD_SAs of one number have policies with the same selectors.
        let policies = self.policies_with(way, selectors);
        let reqids: BTreeSet<u32> = policies.map(|policy| policy.reqid).collect();
        let sas = reqids.into_iter().flat_map(|reqid| self.sas_of(reqid));
        // SAs of an earlier charon say nothing about the peer of this one.
        let sas = sas.filter(move |((of, ..), sa)| *of == direction && !sa.is_orphan);
        sas.map(move |(_, sa)| (direction, sa))
    }

    /// SAs of a number.
    pub(super) fn sas_of(&self, reqid: u32) -> impl Iterator<Item = (&SaPlace, &KnownSa)> {
        let places = self.by_reqid.get(&reqid).into_iter().flat_map(SmallSet::iter);
        places.filter_map(|place| Some((place, self.sas.get(place)?)))
    }

    /// The reqid of charon's policy that a packet to a peer of the file needs an SA of: one between
    /// the ends of the peer, or else between ends that it may move to. `packet` has the packet's
    /// source and destination.
    pub(super) fn reqid_for(
        &self,
        ends: [IpAddr; 2],
        may_move_to: impl Fn([IpAddr; 2]) -> bool,
        packet: &[Selector; 2],
    ) -> Option<u32> {
        self.reqid_between(&ends, packet).or_else(|| {
            let mut others = self.policies.by_ends.keys().filter(|ends| may_move_to(**ends));
            others.find_map(|ends| self.reqid_between(ends, packet))
        })
    }

    fn reqid_between(&self, ends: &[IpAddr; 2], packet: &[Selector; 2]) -> Option<u32> {
        self.reqid_among(self.policies.by_ends.get(ends)?, packet)
    }

    /// Returns whether the connected charon has a policy of a reqid for a packet.
    pub(super) fn covers(&self, reqid: u32, packet: &[Selector; 2]) -> bool {
        let numbers = self.policies.by_reqid.get(&reqid);
        numbers.and_then(|numbers| self.reqid_among(numbers, packet)).is_some()
    }

    /// The reqid of the first outbound policy of the connected charon that protects a packet. Cost:
    /// by all policies.
    pub(super) fn any_reqid_for(&self, packet: &[Selector; 2]) -> Option<u32> {
        let is_it = |known: &&KnownPolicy| ends_of_protect(&known.policy).is_some();
        Self::first_with(self.policies.known.values().filter(is_it), packet)
    }

    /// The reqid of the first of some policies that has a packet.
    fn reqid_among(&self, numbers: &Numbers, packet: &[Selector; 2]) -> Option<u32> {
        let known = numbers.iter().filter_map(|number| self.policies.known.get(number));
        Self::first_with(known, packet)
    }

    fn first_with<'p>(
        policies: impl Iterator<Item = &'p KnownPolicy>,
        packet: &[Selector; 2],
    ) -> Option<u32> {
        // The numbers of an earlier charon say nothing to this one.
        let mut known = policies.filter(|known| !known.is_orphan);
        let fit = known.find(|known| {
            let selectors = known.policy.policy.selectors.iter();
            selectors.zip(packet).all(|(of, packet)| of.covers(packet))
        });
        fit.map(|known| known.policy.reqid)
    }

    /// Outbound policies of a reqid that protect.
    pub(super) fn policies_of(&self, reqid: u32) -> impl Iterator<Item = &AddPolicy> {
        let numbers = self.policies.by_reqid.get(&reqid).into_iter().flat_map(Numbers::iter);
        numbers.filter_map(|of| self.policies.known.get(of)).map(|known| &*known.policy)
    }

    /// Returns whether there is a protecting policy of this name.
    pub(super) fn has_policy(&self, name: &Policy) -> bool {
        let mut like = self.policies_with(name.direction, &name.selectors);
        like.any(|known| known.policy == *name && known.action == PolicyAction::Protect)
    }

    /// Returns whether an outbound policy that protects has a reqid.
    pub(super) fn has_policy_of(&self, reqid: u32) -> bool {
        self.policies.by_reqid.contains_key(&reqid)
    }

    /// Notes that an SA has another name from now on.
    pub(super) fn rename(&mut self, direction: Direction, sa: KnownSa, before: &SaName) {
        if let Some(place) = place(direction, before) {
            self.remove(&place);
        }
        self.add(direction, sa);
    }
}
