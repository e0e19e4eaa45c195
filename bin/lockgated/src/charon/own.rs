//! Peers and policies that charon makes by itself, within `[ike]` of the configuration.
//!
//! * A pair of ends that a peer of the file has is that peer's. Between all others charon's
//!   CHILD_SAs are peers of their own, `ike:REQID`: a peer is a reqid of one charon.
//! * An outbound policy of charon's becomes a policy for both directions, behind all policies of
//!   the file. It comes with the first of charon's that has its selectors, a trap or not, and goes
//!   with the last.
//! * A policy finds its SAs by its reqid. Ends belong to an SA, and each SA moves alone.
//! * A peer comes with its first policy or SA, and goes with its last.
//! * What an earlier charon left stays as long as it has SAs. A later charon takes it over with a
//!   policy or SA of the same selectors.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use charon_link::{AddPolicy, Policy, PolicyAction, Selector};
use config::validated::{KeySource, PathMtuUse, Peer, PeerPlace};
use config::{IkeBounds, SaOffload, ShuntAction};
use control::{IKE_NAMES, IkeAction, IkeChange, IkePolicy, PeerEnds, RemoteEnd};
use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use ipsec::{DontFragment, Dscp, Encapsulation, Mode, SequenceNumbers, Suite, Tunnel, UdpPorts};
use policy::{AddressRange, PortRange, UpperSelector};
use wire::flow::protocol::{self, ICMP, ICMPV6};

use super::book::MAX_POLICIES;
use super::child_shares::ChildShares;
use super::selector_pairs::pairs;
use super::small_set::SmallSet;

/// This gateway's end of a tunnel, and the other.
pub(super) type Ends = [IpAddr; 2];

/// Number, SPI and name of a policy that stands in for another.
type StandIn = (u32, u32, Policy);

/// Packets that a replay window remembers: as many as those of peers in the file by default.
pub(super) const REPLAY_WINDOW: u32 = 1024;

/// Policies of its own that charon may have, shunts too.
const MAX_OWN_POLICIES: usize = MAX_POLICIES / 3;

/// Policies that stand in at a time at most: more than charon moves SAs at a time.
const MAX_STAND_INS: usize = 1024;

/// Bits of a number that are its low part.
const LOW_BITS: u32 = 24;

/// Everything that charon made by itself and that runs.
#[derive(Default)]
pub(super) struct Own {
    peers: HashMap<Arc<str>, Box<OwnPeer>>,
    /// Peers of the charon that is connected, by its reqids.
    numbers: HashMap<u32, Arc<str>>,
    policies: HashMap<OwnKey, Arc<str>>,
    /// Peers that have a policy, by its selectors.
    by_selectors: HashMap<[Selector; 2], Vec<Arc<str>>>,
    /// Shunts among them.
    shunts: usize,
    /// Peers by their remote ends.
    shares: ChildShares,
    /// Policies of charon's that stand in for a protecting one while it moves SAs, by the number
    /// and the SPI that they have: one name may be that of several.
    stand_ins: HashMap<StandIn, (Arc<str>, [Selector; 2])>,
    /// Peers and shunts that there were so far: they give numbers.
    count: u64,
}

/// A peer of charon's own.
pub(super) struct OwnPeer {
    /// The reqid of its SAs that came last.
    pub(super) reqid: u32,
    /// Reqids of its SAs and policies: another virtual address changes the reqid.
    pub(super) numbers: SmallSet<u32>,
    /// Remote end of the newest SA, or of the first policy: the peer counts for the share of this
    /// end.
    end: RemoteEnd,
    is_of_earlier: bool,
    /// Selectors of its policies that run.
    pub(super) policies: SmallSet<[Selector; 2]>,
    /// Policies that it had so far: they give numbers.
    count: u64,
}

impl OwnPeer {
    /// Returns whether an earlier charon left the peer, and no later charon has taken it over.
    pub(super) fn is_of_earlier(&self) -> bool {
        self.is_of_earlier
    }

    /// Returns whether it has no policy.
    pub(super) fn is_bare(&self) -> bool {
        self.policies.is_empty()
    }
}

/// The first SA of a peer that comes; a policy has no suite.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnForm {
    pub(super) ends: PeerEnds,
    pub(super) suite: Option<Suite>,
}

/// A policy of charon's own: what it does, and its selectors, local and remote.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum OwnKey {
    Protect(Arc<str>, [Selector; 2]),
    Shunt(PolicyAction, [Selector; 2]),
}

/// The reason why something is beyond what charon may make by itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum NotOwn {
    /// It is beyond `[ike]`.
    #[error(transparent)]
    Beyond(#[from] config::BeyondBounds),
    /// Selectors that a policy of ours cannot say exactly.
    #[error(
        "Lockgate takes no policy of charon's with selectors {0} and {1}: name one protocol at \
         both ends, ports only where it has some, and no ICMP types"
    )]
    Selectors(String, String),
    /// As many as there may be.
    #[error(
        "charon has {0} CHILD_SAs and shunts of its own, as many as `max_children` of [ike] allows"
    )]
    TooManyChildren(u32),
    /// The remote end has its share.
    #[error(
        "{site} has its share of the {most} CHILD_SAs of `max_children` of [ike], and the last \
         eighth is for remote ends with few"
    )]
    ShareOfEnd {
        /// The remote address; of IPv6 its /64.
        site: IpAddr,
        /// The number that there may be.
        most: u32,
    },
    /// As many policies as there may be.
    #[error("charon has {MAX_OWN_POLICIES} policies of its own, as many as Lockgate takes")]
    TooManyPolicies,
    /// A peer of the file has the ends, or may move to them.
    #[error("{0} and {1} are ends that a [peer.NAME] has or may move to: that one's alone")]
    OfFile(IpAddr, IpAddr),
    /// Another peer of charon's has the reqid.
    #[error("reqid {0} is that of another CHILD_SA of charon's: make new SAs of that reqid")]
    Occupied(u32),
    /// The CHILD_SA of the reqid has other packets.
    #[error(
        "reqid {reqid} is that of CHILD_SA {peer}, which has no packet of {packets}: give each \
         child of swanctl.conf a `reqid` of its own, or none"
    )]
    OtherPackets {
        /// The reqid.
        reqid: u32,
        /// The peer that the reqid means.
        peer: Arc<str>,
        /// The first local and the first remote selector.
        packets: String,
    },
    /// Transport mode.
    #[error("between these ends charon may make tunnels alone: transport mode needs a [peer.NAME]")]
    Transport,
    /// ESP in UDP to no port.
    #[error("ESP in UDP goes to a port, and charon names port 0")]
    NoPort,
    /// ESP in UDP from another port than ours.
    #[error("ESP in UDP leaves by port {NAT_TRAVERSAL_PORT}, not by {0}")]
    Port(u16),
}

impl Own {
    /// The peer of a name.
    pub(super) fn peer(&self, name: &str) -> Option<&OwnPeer> {
        self.peers.get(name).map(|peer| &**peer)
    }

    /// The name of the peer of a reqid.
    pub(super) fn numbered(&self, reqid: u32) -> Option<&Arc<str>> {
        self.numbers.get(&reqid)
    }

    /// Returns whether a policy runs.
    pub(super) fn runs(&self, key: &OwnKey) -> bool {
        self.policies.contains_key(key)
    }

    /// All shunts that run.
    pub(super) fn shunts(&self) -> Vec<OwnKey> {
        let is_shunt = |key: &&OwnKey| matches!(key, OwnKey::Shunt(..));
        self.policies.keys().filter(is_shunt).cloned().collect()
    }

    /// The names of all peers.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        self.peers.keys().cloned().collect()
    }

    /// Notes that another charon has connected: numbers mean other things from now on.
    pub(super) fn leave_to_next(&mut self) {
        self.numbers.clear();
        for peer in self.peers.values_mut() {
            peer.is_of_earlier = true;
            peer.numbers.clear();
        }
    }

    /// Gives a reqid of this charon the peer of an earlier charon with a policy of these selectors.
    /// Returns the name of the peer.
    pub(super) fn take_over(
        &mut self,
        reqid: u32,
        mut selectors: impl Iterator<Item = [Selector; 2]>,
    ) -> Option<Arc<str>> {
        let name = selectors.find_map(|selectors| {
            let mut left = self.with_policy(&selectors).filter(|(_, peer)| peer.is_of_earlier);
            left.next().map(|(name, _)| name.clone())
        })?;
        self.peers.get_mut(&name)?.is_of_earlier = false;
        self.note_number(&name, reqid);
        Some(name)
    }

    /// Peers that have a policy with these selectors.
    fn with_policy(
        &self,
        selectors: &[Selector; 2],
    ) -> impl Iterator<Item = (&Arc<str>, &OwnPeer)> {
        let names = self.by_selectors.get(selectors).into_iter().flatten();
        names.filter_map(|name| Some((name, self.peer(name)?)))
    }

    /// Notes the reqid that a peer's SAs have from now on.
    pub(super) fn note_number(&mut self, name: &Arc<str>, reqid: u32) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.reqid = reqid;
            peer.numbers.insert(reqid);
            self.numbers.insert(reqid, name.clone());
        }
    }

    /// Checks that there is room for another CHILD_SA or shunt. All CHILD_SAs of a peer, which
    /// follow each other, count as one, however many policies they have.
    fn has_room_for_child(&self, bounds: &IkeBounds) -> Result<(), NotOwn> {
        let most = bounds.max_children;
        let has_room = self.peers.len() + self.shunts < most as usize;
        has_room.then_some(()).ok_or(NotOwn::TooManyChildren(most))
    }

    /// Plans a peer: a change that has it, and its name. Nothing is noted yet.
    ///
    /// # Errors
    /// [`NotOwn::TooManyChildren`], [`NotOwn::ShareOfEnd`].
    pub(super) fn plan_peer(
        &self,
        (reqid, end): (u32, RemoteEnd),
        form: OwnForm,
        bounds: &IkeBounds,
    ) -> Result<(Arc<str>, Peer), NotOwn> {
        self.has_room_for_child(bounds)?;
        let most = bounds.max_children;
        let free = (most as usize).saturating_sub(self.peers.len() + self.shunts);
        if !self.shares.admits(end, free, most as usize) {
            return Err(NotOwn::ShareOfEnd { site: end.site, most });
        }
        let plain = format!("{IKE_NAMES}{reqid}");
        let name = match self.peers.contains_key(plain.as_str()) {
            true => format!("{plain}.{}", self.count + 1),
            false => plain,
        };
        let peer = peer(&name, form, bounds);
        Ok((name.into(), peer))
    }

    /// Counts a peer for the share of the remote end that its newest SA has.
    pub(super) fn note_end(&mut self, name: &str, end: RemoteEnd) {
        if let Some(peer) = self.peers.get_mut(name) {
            self.shares.remove(std::mem::replace(&mut peer.end, end));
            self.shares.add(end);
        }
    }

    /// Forgets earlier reqids of a peer that no SA and no policy of charon's has.
    pub(super) fn forget_numbers(&mut self, name: &Arc<str>, is_used: impl Fn(u32) -> bool) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        let present = peer.reqid;
        let goes = |reqid: &u32| *reqid != present && !is_used(*reqid);
        for number in peer.numbers.take_if(goes) {
            self.numbers.remove(&number);
        }
    }

    /// Notes that a policy which drops packets stands in for one that protects them and runs: that
    /// runs on meanwhile, whether charon has it or not.
    pub(super) fn stand_in(&mut self, policy: &AddPolicy) {
        let Some(name) = self.numbered(policy.reqid).cloned() else { return };
        let key = OwnKey::Protect(name.clone(), local_first(policy));
        if self.runs(&key) && self.stand_ins.len() < MAX_STAND_INS {
            self.stand_ins.insert(stand_in_key(policy), (name, local_first(policy)));
        }
    }

    /// Forgets a policy that stood in; returns the peer whose policy it stood in for.
    pub(super) fn stand_down(&mut self, policy: &AddPolicy) -> Option<Arc<str>> {
        self.stand_ins.remove(&stand_in_key(policy)).map(|(name, _)| name)
    }

    /// Forgets all policies that stood in.
    pub(super) fn stand_down_all(&mut self) {
        self.stand_ins.clear();
    }

    /// Returns whether something stands in for a policy of a peer.
    pub(super) fn is_stood_in_for(&self, name: &Arc<str>, selectors: &[Selector; 2]) -> bool {
        self.stand_ins.values().any(|(of, same)| of == name && same == selectors)
    }

    /// Notes that a peer runs.
    pub(super) fn note_peer(&mut self, name: &Arc<str>, (reqid, end): (u32, RemoteEnd)) {
        self.count += 1;
        let (policies, numbers) = (SmallSet::default(), SmallSet::default());
        let (is_of_earlier, count) = (false, 0);
        let peer = OwnPeer { reqid, numbers, end, is_of_earlier, policies, count };
        self.peers.insert(name.clone(), Box::new(peer));
        self.shares.add(end);
        self.note_number(name, reqid);
    }

    /// Plans a policy: its name and all else of it.
    ///
    /// # Errors
    /// [`NotOwn`].
    pub(super) fn plan_policy(
        &self,
        key: &OwnKey,
        priority: u32,
        bounds: &IkeBounds,
    ) -> Result<IkePolicy, NotOwn> {
        if self.policies.len() >= MAX_OWN_POLICIES {
            return Err(NotOwn::TooManyPolicies);
        }
        if let OwnKey::Shunt(..) = key {
            self.has_room_for_child(bounds)?;
        }
        let (selectors, action, name) = match key {
            OwnKey::Protect(peer, selectors) => {
                let count = self.peers.get(peer).map_or(0, |peer| peer.count);
                let action = IkeAction::Protect(peer.to_string());
                (selectors, action, format!("{peer}/{}", count + 1))
            }
            OwnKey::Shunt(action, selectors) => {
                let action = shunt_action(*action);
                let name = format!("{IKE_NAMES}{}/{}", action.name(), self.count + 1);
                (selectors, IkeAction::Shunt(action), name)
            }
        };
        let selector = selector_of(selectors)?;
        match &action {
            IkeAction::Protect(_) => bounds.admit_packets(&selector)?,
            IkeAction::Shunt(action) => bounds.admit_shunt(*action, &selector)?,
        }
        let priority = rank(priority, &selector);
        Ok(IkePolicy { name, action, priority, selector })
    }

    /// Notes that a policy runs under a name.
    pub(super) fn note_policy(&mut self, key: OwnKey, name: &str) {
        match &key {
            OwnKey::Protect(name, selectors) => {
                if let Some(peer) = self.peers.get_mut(name) {
                    peer.count += 1;
                    peer.policies.insert(selectors.clone());
                    let names = self.by_selectors.entry(selectors.clone()).or_default();
                    // Most are alone.
                    names.reserve_exact(usize::from(names.is_empty()));
                    names.push(name.clone());
                }
            }
            OwnKey::Shunt(..) => {
                self.count += 1;
                self.shunts += 1;
            }
        }
        self.policies.insert(key, name.into());
    }

    /// A change that takes these away.
    pub(super) fn plan_removal(&self, keys: &[OwnKey], peers: &[Arc<str>]) -> IkeChange {
        let names = keys.iter().filter_map(|key| self.policies.get(key));
        IkeChange {
            policies_gone: names.map(ToString::to_string).collect(),
            peers_gone: peers.iter().map(ToString::to_string).collect(),
            ..IkeChange::default()
        }
    }

    /// Notes that a policy is gone.
    pub(super) fn forget_policy(&mut self, key: &OwnKey) {
        let was_there = self.policies.remove(key).is_some();
        match key {
            OwnKey::Protect(name, selectors) => {
                if let Some(peer) = self.peers.get_mut(name) {
                    peer.policies.remove(selectors);
                }
                self.forget_selectors(selectors, name);
            }
            OwnKey::Shunt(..) => self.shunts -= usize::from(was_there),
        }
    }

    /// Notes that a peer has no policy with these selectors any more.
    fn forget_selectors(&mut self, selectors: &[Selector; 2], name: &Arc<str>) {
        if let Some(names) = self.by_selectors.get_mut(selectors) {
            names.retain(|of| of != name);
            if names.is_empty() {
                self.by_selectors.remove(selectors);
            }
        }
    }

    /// Notes that a peer is gone, with its policies.
    pub(super) fn forget_peer(&mut self, name: &Arc<str>) {
        let Some(peer) = self.peers.remove(name) else { return };
        self.shares.remove(peer.end);
        for selectors in peer.policies.iter() {
            self.forget_selectors(selectors, name);
            self.policies.remove(&OwnKey::Protect(name.clone(), selectors.clone()));
        }
        for number in peer.numbers.iter() {
            if self.numbers.get(number) == Some(name) {
                self.numbers.remove(number);
            }
        }
        self.stand_ins.retain(|_, (of, _)| of != name);
    }

    /// Forgets what runs no more because another configuration runs. Returns the peers.
    pub(super) fn follow(&mut self, running: &control::Compiled) -> Vec<Arc<str>> {
        let is_gone = |name: &&Arc<str>| running.ike_peer(name).is_none();
        let gone: Vec<Arc<str>> = self.peers.keys().filter(is_gone).cloned().collect();
        gone.iter().for_each(|name| self.forget_peer(name));
        let names = running.spd.names();
        let is_gone = |(_, name): &(&OwnKey, &Arc<str>)| names.get(name).is_none();
        let policies: Vec<OwnKey> =
            self.policies.iter().filter(is_gone).map(|(key, _)| key.clone()).collect();
        policies.iter().for_each(|key| self.forget_policy(key));
        gone
    }
}

/// Checks an SA of charon's own: its ends, form, suite and selectors, local and remote. Returns its
/// ends.
///
/// # Errors
/// [`NotOwn`].
pub(super) fn check_sa(
    bounds: &IkeBounds,
    [local, remote]: [std::net::SocketAddr; 2],
    (mode, is_in_udp, suite): (Mode, bool, Suite),
    selectors: [&[Selector]; 2],
) -> Result<PeerEnds, NotOwn> {
    bounds.admit_tunnel(local.ip(), remote.ip())?;
    bounds.admit_suite(suite)?;
    if mode != Mode::Tunnel {
        return Err(NotOwn::Transport);
    }
    if is_in_udp && local.port() != NAT_TRAVERSAL_PORT {
        return Err(NotOwn::Port(local.port()));
    }
    if is_in_udp && remote.port() == 0 {
        return Err(NotOwn::NoPort);
    }
    for pair in pairs(selectors) {
        bounds.admit_packets(&selector_of(&pair)?)?;
    }
    let udp = is_in_udp.then(|| UdpPorts { local: local.port(), remote: remote.port() });
    Ok(PeerEnds { tunnel: Tunnel { local: local.ip(), remote: remote.ip() }, udp })
}

/// Returns the action of a shunt.
pub(super) fn shunt_action(action: PolicyAction) -> ShuntAction {
    match action {
        PolicyAction::Pass => ShuntAction::Bypass,
        PolicyAction::Drop | PolicyAction::Protect => ShuntAction::Discard,
    }
}

/// Selectors of charon's, local and remote, as a policy's.
///
/// # Errors
/// [`NotOwn::Selectors`]: a policy would have other packets.
pub(super) fn selector_of([local, remote]: &[Selector; 2]) -> Result<policy::Selector, NotOwn> {
    let inexact = || NotOwn::Selectors(local.to_string(), remote.to_string());
    let protocol = match (local.protocol, remote.protocol) {
        (0, 0) => None,
        (0, one) | (one, 0) => Some(one),
        (one, other) if one == other => Some(one),
        _ => return Err(inexact()),
    };
    let range = |selector: &Selector| {
        let [first, last] = [selector.addresses.0, selector.addresses.1].map(wire::Address::from);
        AddressRange { family: first.family, lo: first.value, hi: last.value }
    };
    let ends = [range(local), range(remote)];
    if ends[0].family != ends[1].family {
        return Err(inexact());
    }
    let is_any = [local, remote].map(|selector| selector.ports == Selector::ANY_PORT);
    let has_ports = protocol.is_some_and(protocol::has_ports);
    let upper = match is_any {
        [true, true] => UpperSelector::Any,
        _ if !has_ports || matches!(protocol, Some(ICMP | ICMPV6)) => return Err(inexact()),
        _ => {
            let of = |selector: &Selector| match selector.ports {
                Selector::ANY_PORT => Ok(Vec::new()),
                (lo, hi) if lo <= hi => Ok(vec![PortRange { lo, hi }]),
                _ => Err(inexact()),
            };
            UpperSelector::Ports { local: of(local)?, remote: of(remote)? }
        }
    };
    let [local, remote] = ends.map(|range| vec![range]);
    Ok(policy::Selector { local, remote, protocol, upper })
}

/// The rank of a policy among charon's: a shunt that passes packets wins over all else, and a
/// fallback loses to all else. Among the others those win that an administrator has numbered, the
/// lower the more; then the narrower. A trap ranks as what it becomes.
fn rank(priority: u32, selector: &policy::Selector) -> u32 {
    const PASS: u32 = 0;
    const FALLBACK: u32 = 3;
    let (class, number) = (priority >> LOW_BITS, priority & ((1 << LOW_BITS) - 1));
    let class = match class {
        PASS => 2,
        FALLBACK.. => 0,
        _ => 1,
    };
    let within = match number {
        0 => {
            let width = |range: &AddressRange| 128 - (range.hi - range.lo).leading_zeros();
            let widths = selector.local.iter().chain(&selector.remote).map(width);
            let narrow = 256 - widths.sum::<u32>().min(256);
            let has_ports = u32::from(selector.upper != UpperSelector::Any);
            narrow * 4 + u32::from(selector.protocol.is_some()) * 2 + has_ports
        }
        number => (1 << LOW_BITS) - number,
    };
    class << LOW_BITS | within
}

/// A peer between the ends of its first policy or SA, until another SA seals.
fn peer(name: &str, OwnForm { ends, suite }: OwnForm, bounds: &IkeBounds) -> Peer {
    let PeerEnds { tunnel, udp } = ends;
    let suite = suite.or(bounds.suites.first().copied());
    Peer {
        name: name.to_owned(),
        encapsulation: Encapsulation {
            mode: Mode::Tunnel,
            tunnel,
            udp,
            dscp: Dscp::Copy,
            dont_fragment: DontFragment::Set,
        },
        keys: KeySource::Ike,
        suite: suite.unwrap_or(Suite::Aes256Gcm),
        numbers: SequenceNumbers::Extended,
        replay_window: REPLAY_WINDOW,
        mss_clamp: true,
        pmtu: PathMtuUse::Learn,
        place: PeerPlace::Fixed,
        moves: config::PeerMoves { local: bounds.ends.clone(), remote: bounds.peers.clone() },
        nat_keepalive_s: None,
        lifetime: bounds.lifetime,
        offload: SaOffload::None,
        outer: None,
    }
}

/// The remote end that ends count for.
pub(super) fn remote_end(ends: &PeerEnds) -> RemoteEnd {
    RemoteEnd::new(ends.tunnel.remote, ends.udp.map_or(0, |ports| ports.remote))
}

/// The ends that an outbound policy names. A policy from the port of ESP in UDP is that of a peer
/// behind a NAT.
pub(super) fn ends_of_policy(Policy { source, destination, .. }: &Policy) -> PeerEnds {
    let tunnel = Tunnel { local: source.ip(), remote: destination.ip() };
    let ports = UdpPorts { local: source.port(), remote: destination.port() };
    let is_in_udp = ports.local == NAT_TRAVERSAL_PORT && ports.remote != 0;
    PeerEnds { tunnel, udp: is_in_udp.then_some(ports) }
}

fn stand_in_key(policy: &AddPolicy) -> StandIn {
    (policy.reqid, policy.spi, policy.policy.clone())
}

/// Selectors of a policy of charon's, local and remote.
pub(super) fn local_first(policy: &AddPolicy) -> [Selector; 2] {
    let mut selectors = policy.policy.selectors.clone();
    if policy.policy.direction != charon_link::PolicyDirection::Outbound {
        selectors.reverse();
    }
    selectors
}
