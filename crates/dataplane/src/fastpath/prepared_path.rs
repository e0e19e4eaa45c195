//! The paths that packets of a batch leave by, and what was decided of them: one entry for many
//! packets.

use ipsec::template::Form;
use ipsec::{CardSeat, Mode, OutboundSa, SaId};
use policy::{Deciders, EgressClass, FlowAction, FlowVerdict};
use wire::link::LinkTemplate;
use wire::{Address, CardHeader, Family, LinkAddress};

use crate::batch_context::BatchContext;
use crate::cache::{CachedRoute, FlowCache, Value};
use crate::card_sas;
use crate::ids::{NextHopId, PortId, SetIndex};
use crate::mss::SegmentMtu;
use crate::port::{Adjacency, Medium};
use crate::snapshot::Snapshot;
use crate::verdict::{DropReason, Verdict};

/// The target of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PathTarget {
    /// Sealed by an SA of this set.
    Set(SetIndex),
    /// In clear, by a next hop; on a link without a router the destination is the neighbour.
    Hop(NextHopId, Option<Address>),
    /// Dropped.
    Drop(DropReason),
}

/// An output path with everything that is the same for all packets that take it.
#[derive(Clone, Copy)]
pub(super) struct PreparedPath {
    pub(super) target: PathTarget,
    /// Bytes of the largest packet that may take it.
    pub(super) mtu: u32,
    pub(super) egress: PortId,
    pub(super) link: LinkTemplate,
    pub(super) verdict: Verdict,
    /// The SA that seals, and the form of its headers.
    pub(super) sealing: Option<(SaId, Form)>,
    /// Header for the card that seals, or encrypts what `sealing` writes; `None`: none does.
    pub(super) card: Option<[u8; CardHeader::BYTES]>,
    /// MTU that clamps the MSS.
    pub(super) clamp: SegmentMtu,
    /// `None`: all packets of a run have a number.
    pub(super) numberless: Option<Numberless>,
    pub(super) run: PathRun,
}

/// Packets of a run that have no number: those behind the first ones.
#[derive(Clone, Copy)]
pub(super) struct Numberless {
    /// Packets that have a number.
    pub(super) numbered: u32,
    /// Packets that the limits of the SA allowed; not fewer.
    pub(super) allowed: u32,
    pub(super) reason: DropReason,
}

/// The part that a run of packets takes of a path.
#[derive(Clone, Copy, Default)]
pub(super) struct PathRun {
    /// Packets, and their bytes before they are sealed.
    pub(super) count: u32,
    pub(super) bytes: u64,
    /// The next sequence number.
    pub(super) next: u64,
    /// The places of its jobs among those of the run: the first, and the next.
    pub(super) first_job: usize,
    pub(super) next_job: usize,
}

/// The place of a path, with the family of the packets that take it, before they are sealed: what
/// is written around them differs, and the numbers of an SA are drawn for all of them together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathId(u16);

/// Set for IPv6.
const IS_V6: u16 = 0x8000;

impl PathId {
    /// No path.
    pub(super) const NONE: PathId = PathId(u16::MAX);

    fn new(place: usize, family: Family) -> PathId {
        match family {
            Family::V4 => PathId(place as u16),
            Family::V6 => PathId(place as u16 | IS_V6),
        }
    }

    #[inline(always)]
    pub(super) fn place(self) -> usize {
        usize::from(self.0 & !IS_V6)
    }

    #[inline(always)]
    pub(super) fn family(self) -> Family {
        if self.0 & IS_V6 == 0 { Family::V4 } else { Family::V6 }
    }
}

impl Default for PathId {
    fn default() -> PathId {
        PathId::NONE
    }
}

/// A decision on the packets of one flow, or of many.
#[derive(Clone, Copy)]
pub(super) struct Decision {
    /// Its path; [`PathId::NONE`]: the general walk judges.
    pub(super) path: PathId,
    /// Its own place.
    pub(super) place: u16,
    /// Bytes of the largest packet that takes the path; 0 without a path.
    pub(super) mtu: u32,
    /// True if it is of one destination, whatever else is equal.
    pub(super) is_on_link: bool,
    pub(super) deciders: Deciders,
}

impl Decision {
    pub(super) const NONE: Decision = Decision {
        path: PathId::NONE,
        place: 0,
        mtu: 0,
        is_on_link: false,
        deciders: Deciders::NONE,
    };
}

/// The direction in which packets are asked about, and what opened them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heading {
    /// From a protected port.
    Out,
    /// Opened, towards a protected port.
    In,
}

/// All paths of a batch, and all decisions. Kept over batches for their memory alone.
#[derive(Default)]
pub(super) struct PreparedPaths {
    pub(super) list: Vec<PreparedPath>,
    decisions: Vec<Decision>,
}

impl PreparedPaths {
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.decisions.clear();
    }

    /// The decision at a place.
    #[inline(always)]
    pub(super) fn decision(&self, place: u16) -> &Decision {
        &self.decisions[usize::from(place)]
    }

    /// Returns whether a card seals whole packets on any of the paths.
    #[inline(always)]
    pub(super) fn lead_to_cards(&self) -> bool {
        self.list.iter().any(PreparedPath::is_cards)
    }

    /// Returns whether all packets that have a path have it by one decision.
    #[inline(always)]
    pub(super) fn is_one_decision(&self) -> bool {
        self.decisions.len() == 1
    }

    #[inline(always)]
    pub(super) fn path_mut(&mut self, id: PathId) -> &mut PreparedPath {
        &mut self.list[id.place()]
    }

    /// Decides by an entry of the cache. Where connections are tracked, the packet is one that
    /// changes nothing of those that the entry was marked for.
    #[inline(never)]
    pub(super) fn by_entry<F>(
        &mut self,
        context: &BatchContext<'_, F>,
        (value, cache): (Value, &FlowCache),
        (heading, family): (Heading, Family),
        destination: impl FnOnce() -> Address,
    ) -> Decision {
        let (verdict, route) = cache.said_steady(value);
        let is_refused = matches!(verdict.action, FlowAction::Refuse(_));
        let hop = match route {
            _ if value.is_nothing() => return self.push(Decision::NONE),
            CachedRoute::Via(hop) => hop,
            // Refused whatever its way: no route is remembered with it.
            _ if is_refused && heading == Heading::In && verdict.egress == EgressClass::Any => {
                NextHopId(u32::MAX)
            }
            CachedRoute::Unknown | CachedRoute::Other => return self.push(Decision::NONE),
        };
        self.by_verdict(context, (verdict, hop), (heading, family), destination)
    }

    /// Decides by what the tables said, and where the route leads.
    pub(super) fn by_verdict<F>(
        &mut self,
        context: &BatchContext<'_, F>,
        (verdict, hop): (&FlowVerdict, NextHopId),
        (heading, family): (Heading, Family),
        destination: impl FnOnce() -> Address,
    ) -> Decision {
        let mut is_on_link = false;
        let target = match (verdict.action, heading) {
            (FlowAction::Protect(set), Heading::Out) => PathTarget::Set(set),
            (FlowAction::Permit, _) => {
                is_on_link = context.snapshot.is_on_link(hop);
                PathTarget::Hop(hop, is_on_link.then(destination))
            }
            (FlowAction::Refuse(refusal), _) => PathTarget::Drop(refusal.into()),
            // No book says so of what was opened.
            (FlowAction::Protect(_), Heading::In) => return self.push(Decision::NONE),
        };
        let Some(path) = self.place(context, target, family) else {
            return self.push(Decision::NONE);
        };
        let (mtu, deciders) = (self.list[path.place()].mtu, verdict.deciders);
        self.push(Decision { path, place: 0, mtu, is_on_link, deciders })
    }

    /// Decides that packets leave by a path, of which no rule says anything.
    pub(super) fn without_rule(&mut self, path: PathId) -> Decision {
        let mtu = self.list[path.place()].mtu;
        self.push(Decision { path, mtu, ..Decision::NONE })
    }

    fn push(&mut self, decision: Decision) -> Decision {
        let decision = Decision { place: self.decisions.len() as u16, ..decision };
        self.decisions.push(decision);
        decision
    }

    /// Returns the place of a path to a target, which is made if it is new. `None`: only the
    /// general walk can go there.
    pub(super) fn place<F>(
        &mut self,
        context: &BatchContext<'_, F>,
        target: PathTarget,
        family: Family,
    ) -> Option<PathId> {
        let place = match self.list.iter().rposition(|path| path.target == target) {
            Some(place) => place,
            None => {
                self.list.push(PreparedPath::to(context, target)?);
                self.list.len() - 1
            }
        };
        Some(PathId::new(place, family))
    }

    /// Returns the place of a path to neighbours on a link, with the link address of one of them.
    pub(super) fn place_on_link<F>(
        &mut self,
        context: &BatchContext<'_, F>,
        (hop, mac): (NextHopId, LinkAddress),
        family: Family,
    ) -> Option<PathId> {
        let (snapshot, port) = (context.snapshot, context.snapshot.egress(hop));
        let mtu = snapshot.path_port(port).mtu;
        let by = (Adjacency { port, mac: Some(mac) }, mtu, Verdict::Forward(port));
        self.list.push(PreparedPath::by(snapshot, PathTarget::Hop(hop, None), by)?);
        Some(PathId::new(self.list.len() - 1, family))
    }

    /// A path on which packets are dropped for a reason that came up while they were leaving.
    #[cold]
    pub(super) fn dropping(&mut self, reason: DropReason) -> PathId {
        self.list.push(PreparedPath::dropping(reason));
        PathId::new(self.list.len() - 1, Family::V4)
    }
}

/// The header for the card that seals by an SA what leaves by an adjacency. `None`: the general
/// walk says what becomes of it, as in transport mode and where the way leads to no such card.
fn card_header(
    snapshot: &Snapshot,
    (sa, seat): (&OutboundSa, CardSeat),
    adjacency: Adjacency,
) -> Option<[u8; CardHeader::BYTES]> {
    let is_common = sa.encapsulation.mode == Mode::Tunnel
        && card_sas::leads_there(snapshot, adjacency.port, seat);
    is_common.then(|| card_sas::header(seat).bytes())
}

impl PreparedPath {
    #[cold]
    fn to<F>(context: &BatchContext<'_, F>, target: PathTarget) -> Option<PreparedPath> {
        let snapshot = context.snapshot;
        match target {
            PathTarget::Drop(reason) => Some(PreparedPath::dropping(reason)),
            PathTarget::Hop(hop, neighbour) => {
                let destination = neighbour.unwrap_or(Address::v4(0));
                let adjacency = snapshot.adjacency(hop, destination);
                let mtu = snapshot.path_port(adjacency.port).mtu;
                let verdict = Verdict::Forward(adjacency.port);
                PreparedPath::by(snapshot, target, (adjacency, mtu, verdict))
            }
            // What is to be sealed again only the general walk seals.
            PathTarget::Set(set) if snapshot.outer_of(set).is_some() => None,
            PathTarget::Set(set) => {
                // Where no SA lasts, the general walk lets packets wait.
                let id = snapshot.ready_sa(set, context.share).ok()?;
                let sa = snapshot.outbound_sa(id);
                let adjacency = snapshot.sealing_adjacency(set, id)?;
                let (sealing, card) = match sa.card {
                    None => (Some((id, sa.form()?)), None),
                    // The general walk says why its packets do not leave.
                    Some(_) if card_sas::is_spent(sa.allowance.as_ref()) => return None,
                    Some(seat) => {
                        let header = card_header(snapshot, (sa, seat), adjacency)?;
                        let writes = !seat.has_numbers();
                        (if writes { Some((id, sa.form()?)) } else { None }, Some(header))
                    }
                };
                let mtu = snapshot.sealing_sizes(set, id, context.now_ns).whole;
                let path =
                    PreparedPath::by(snapshot, target, (adjacency, mtu, Verdict::Protect(set)))?;
                let clamp = SegmentMtu::of_set(snapshot, set, context.now_ns);
                Some(PreparedPath { sealing, card, clamp, ..path })
            }
        }
    }

    /// `None`: the neighbour is not known, or has no link address.
    fn by(
        snapshot: &Snapshot,
        target: PathTarget,
        (adjacency, mtu, verdict): (Adjacency, u32, Verdict),
    ) -> Option<PreparedPath> {
        let port = snapshot.path_port(adjacency.port);
        let mac = adjacency.mac.filter(|_| port.medium == Medium::Ethernet)?;
        let link = LinkTemplate::new(mac, port.mac, port.vlan);
        let (egress, run, clamp) = (adjacency.port, PathRun::default(), SegmentMtu::NONE);
        let (sealing, card, numberless) = (None, None, None);
        Some(PreparedPath {
            target,
            mtu,
            egress,
            link,
            verdict,
            sealing,
            card,
            clamp,
            numberless,
            run,
        })
    }

    fn dropping(reason: DropReason) -> PreparedPath {
        let nobody = wire::LinkAddress::new([0; 6]);
        PreparedPath {
            target: PathTarget::Drop(reason),
            mtu: u32::MAX,
            egress: PortId(0),
            link: LinkTemplate::new(nobody, nobody, None),
            verdict: Verdict::Drop(reason),
            sealing: None,
            card: None,
            clamp: SegmentMtu::NONE,
            numberless: None,
            run: PathRun::default(),
        }
    }

    /// Returns whether a card seals whole packets on the path.
    #[inline(always)]
    pub(super) fn is_cards(&self) -> bool {
        self.card.is_some() && self.sealing.is_none()
    }

    /// The reason why packets that take the path are dropped, if they are.
    #[inline(always)]
    pub(super) fn drops(&self) -> Option<DropReason> {
        match self.target {
            PathTarget::Drop(reason) => Some(reason),
            PathTarget::Set(_) | PathTarget::Hop(..) => None,
        }
    }
}
