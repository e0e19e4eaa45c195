//! Regions: boxes in the space that a selector speaks of, and what is left of one beside another.
//!
//! A selector is a union of such boxes, one for each combination of the entries of its lists. What
//! it asks of the upper layer splits into three kinds of protocols that have nothing in common:
//! those with ports, the family's ICMP, and all others. A later fragment is no kind of its own:
//! where one reaches a policy, an unfragmented packet between the same addresses does too.

use std::ops::ControlFlow;

use wire::flow::protocol;
use wire::{Family, Flow, Upper};

use crate::book::Direction;
use crate::selector::{AddressRange, IcmpRange, PortRange, Selector, TcpSegments, UpperSelector};
use crate::steps::{Exhausted, Steps};

/// Protocols with ports: bit `i` of a set of them is entry `i`. TCP is there twice, by what its
/// segments are: as two protocols, none of whose packets is of both.
const WITH_PORTS: [u8; 6] = [
    protocol::TCP,
    protocol::TCP,
    protocol::UDP,
    protocol::SCTP,
    protocol::DCCP,
    protocol::UDP_LITE,
];
/// All of [`WITH_PORTS`].
const ALL_WITH_PORTS: u8 = 0b11_1111;
/// The bit of TCP segments that open no connection.
const TCP_ESTABLISHED: u8 = 0b01;
/// The bit of those that do.
const TCP_NEW: u8 = 0b10;

/// Lowest and highest address.
pub(crate) type Addresses = (u128, u128);

/// A box of packets of one family, seen from the gateway as a selector sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    pub(crate) local: Addresses,
    pub(crate) remote: Addresses,
    pub(crate) upper: UpperRegion,
}

/// Upper-layer headers of one kind of protocols. No set or range is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UpperRegion {
    /// Headers of protocols in [`WITH_PORTS`].
    Ports { protocols: u8, local: (u16, u16), remote: (u16, u16) },
    /// The family's ICMP: `type << 8 | code`.
    Icmp((u16, u16)),
    /// Headers of all others: bit `n` is protocol `n`.
    Others([u128; 2]),
}

/// Returns the overlap of two ranges.
pub(crate) fn common<T: Ord + Copy>(one: (T, T), other: (T, T)) -> Option<(T, T)> {
    let (lo, hi) = (one.0.max(other.0), one.1.min(other.1));
    (lo <= hi).then_some((lo, hi))
}

impl UpperRegion {
    fn common(self, other: UpperRegion) -> Option<UpperRegion> {
        match (self, other) {
            (
                UpperRegion::Ports { protocols, local, remote },
                UpperRegion::Ports { protocols: p, local: l, remote: r },
            ) => {
                let protocols = protocols & p;
                let (local, remote) = (common(local, l)?, common(remote, r)?);
                (protocols != 0).then_some(UpperRegion::Ports { protocols, local, remote })
            }
            (UpperRegion::Icmp(one), UpperRegion::Icmp(other)) => {
                common(one, other).map(UpperRegion::Icmp)
            }
            (UpperRegion::Others(one), UpperRegion::Others(other)) => {
                let both = [one[0] & other[0], one[1] & other[1]];
                (both != [0, 0]).then_some(UpperRegion::Others(both))
            }
            _ => None,
        }
    }
}

impl Region {
    /// Appends what lies in this region and not in `hole`, which lies in it.
    pub(crate) fn without(&self, hole: &Region, pieces: &mut Vec<Region>) {
        let mut rest = *self;
        for local in beside(rest.local, hole.local) {
            pieces.push(Region { local, ..rest });
        }
        rest.local = hole.local;
        for remote in beside(rest.remote, hole.remote) {
            pieces.push(Region { remote, ..rest });
        }
        rest.remote = hole.remote;
        let mut piece = |upper| pieces.push(Region { upper, ..rest });
        match (rest.upper, hole.upper) {
            (
                UpperRegion::Ports { protocols, local, remote },
                UpperRegion::Ports { protocols: p, local: l, remote: r },
            ) => {
                if protocols & !p != 0 {
                    piece(UpperRegion::Ports { protocols: protocols & !p, local, remote });
                }
                let protocols = p;
                for local in beside(local, l) {
                    piece(UpperRegion::Ports { protocols, local, remote });
                }
                for remote in beside(remote, r) {
                    piece(UpperRegion::Ports { protocols, local: l, remote });
                }
            }
            (UpperRegion::Icmp(range), UpperRegion::Icmp(hole)) => {
                beside(range, hole).for_each(|range| piece(UpperRegion::Icmp(range)));
            }
            (UpperRegion::Others(set), UpperRegion::Others(hole)) => {
                let left = [set[0] & !hole[0], set[1] & !hole[1]];
                if left != [0, 0] {
                    piece(UpperRegion::Others(left));
                }
            }
            _ => {}
        }
    }

    /// A packet of the region, as it crosses the boundary this way.
    pub(crate) fn packet(&self, family: Family, direction: Direction) -> Flow {
        // The second address of a network is a host's, where the first is not.
        let host = |(lo, hi): Addresses| if hi - lo > 1 { lo + 1 } else { lo };
        let (local, remote) = (host(self.local), host(self.remote));
        let mut opens = false;
        let (protocol, upper) = match self.upper {
            UpperRegion::Ports { protocols, local, remote } => {
                let protocol = WITH_PORTS[protocols.trailing_zeros() as usize];
                opens = protocol == protocol::TCP && protocols & TCP_ESTABLISHED == 0;
                let (source, destination) = (likely(local), likely(remote));
                (protocol, Upper::Ports { source, destination })
            }
            UpperRegion::Icmp((message, _)) => {
                let [kind, code] = message.to_be_bytes();
                (icmp_of(family), Upper::Icmp { kind, code })
            }
            UpperRegion::Others([low, high]) => {
                let lowest =
                    if low == 0 { 128 + high.trailing_zeros() } else { low.trailing_zeros() };
                (lowest as u8, Upper::None)
            }
        };
        let outbound = Flow { family, source: local, destination: remote, protocol, upper, opens };
        match direction {
            Direction::Outbound => outbound,
            Direction::Inbound => Flow { opens, ..outbound.reversed() },
        }
    }
}

/// A port of a range: the first that programs choose for themselves if it is there.
fn likely((lo, hi): (u16, u16)) -> u16 {
    const FIRST: u16 = 1024;
    if (lo..=hi).contains(&FIRST) { FIRST } else { lo }
}

/// The parts of a range below and above another, which lies in it.
fn beside<T: Number>((lo, hi): (T, T), hole: (T, T)) -> impl Iterator<Item = (T, T)> {
    let below = (lo < hole.0).then(|| (lo, hole.0.before()));
    let above = (hole.1 < hi).then(|| (hole.1.after(), hi));
    below.into_iter().chain(above)
}

/// A number with neighbours.
trait Number: Ord + Copy {
    fn before(self) -> Self;
    fn after(self) -> Self;
}

impl Number for u16 {
    fn before(self) -> u16 {
        self - 1
    }

    fn after(self) -> u16 {
        self + 1
    }
}

impl Number for u128 {
    fn before(self) -> u128 {
        self - 1
    }

    fn after(self) -> u128 {
        self + 1
    }
}

const fn icmp_of(family: Family) -> u8 {
    match family {
        Family::V4 => protocol::ICMP,
        Family::V6 => protocol::ICMPV6,
    }
}

/// The entries of a selector's lists in one family, as the sides of its boxes.
pub(crate) struct Sides<'s> {
    selector: &'s Selector,
    family: Family,
}

impl<'s> Sides<'s> {
    pub(crate) fn new(selector: &'s Selector, family: Family) -> Sides<'s> {
        Sides { selector, family }
    }

    pub(crate) fn locals(&self) -> impl Iterator<Item = Addresses> + Clone + use<'s> {
        of_family(&self.selector.local, self.family)
    }

    pub(crate) fn remotes(&self) -> impl Iterator<Item = Addresses> + Clone + use<'s> {
        of_family(&self.selector.remote, self.family)
    }

    /// The upper-layer sides, each to `visit`, until that breaks.
    fn uppers<B>(&self, mut visit: impl FnMut(UpperRegion) -> ControlFlow<B>) -> ControlFlow<B> {
        let asked = self.selector.protocol;
        let icmp = icmp_of(self.family);
        let asks_icmp = asked.is_none_or(|asked| asked == icmp);
        let protocols = with_ports(asked) & of_segments(&self.selector.upper);
        let ports = |local: &PortRange, remote: &PortRange| UpperRegion::Ports {
            protocols,
            local: (local.lo, local.hi),
            remote: (remote.lo, remote.hi),
        };
        match &self.selector.upper {
            UpperSelector::Ports { local, remote } | UpperSelector::Tcp { local, remote, .. }
                if asks_ports(&self.selector.upper) =>
            {
                if protocols == 0 {
                    return ControlFlow::Continue(());
                }
                let any = [PortRange::ANY];
                let local = if local.is_empty() { &any } else { &local[..] };
                let remote = if remote.is_empty() { &any } else { &remote[..] };
                for local in local {
                    for remote in remote {
                        visit(ports(local, remote))?;
                    }
                }
            }
            UpperSelector::Any | UpperSelector::Ports { .. } | UpperSelector::Tcp { .. } => {
                if protocols != 0 {
                    visit(ports(&PortRange::ANY, &PortRange::ANY))?;
                }
                if asks_icmp {
                    visit(UpperRegion::Icmp((IcmpRange::ANY.lo, IcmpRange::ANY.hi)))?;
                }
                let others = others(asked, icmp);
                if others != [0, 0] {
                    visit(UpperRegion::Others(others))?;
                }
            }
            UpperSelector::Icmp(messages) if asks_icmp => {
                let any = [IcmpRange::ANY];
                let messages = if messages.is_empty() { &any } else { &messages[..] };
                for message in messages {
                    visit(UpperRegion::Icmp((message.lo, message.hi)))?;
                }
            }
            UpperSelector::Icmp(_) => {}
        }
        ControlFlow::Continue(())
    }

    /// The first part of a region that the selector speaks of.
    pub(crate) fn first_within(
        &self,
        region: &Region,
        steps: &mut Steps,
    ) -> Result<Option<Region>, Exhausted> {
        let clipped = |range, within| common(range, within);
        let Some(local) = first(self.locals(), |side| clipped(side, region.local), steps)? else {
            return Ok(None);
        };
        let Some(remote) = first(self.remotes(), |side| clipped(side, region.remote), steps)?
        else {
            return Ok(None);
        };
        let found = self.uppers(|upper| {
            if let Err(exhausted) = steps.take(1) {
                return ControlFlow::Break(Err(exhausted));
            }
            match upper.common(region.upper) {
                Some(upper) => ControlFlow::Break(Ok(upper)),
                None => ControlFlow::Continue(()),
            }
        });
        match found {
            ControlFlow::Break(found) => found.map(|upper| Some(Region { local, remote, upper })),
            ControlFlow::Continue(()) => Ok(None),
        }
    }

    /// Passes each box that both sides cover to `visit`, until that returns a value.
    pub(crate) fn with<T>(
        &self,
        other: &Sides<'_>,
        steps: &mut Steps,
        mut visit: impl FnMut(Region, &mut Steps) -> Result<Option<T>, Exhausted>,
    ) -> Result<Option<T>, Exhausted> {
        let locals = pairs(self.locals(), other.locals(), steps)?;
        if locals.is_empty() {
            return Ok(None);
        }
        let remotes = pairs(self.remotes(), other.remotes(), steps)?;
        if remotes.is_empty() {
            return Ok(None);
        }
        let mut uppers = Vec::new();
        let all = self.uppers(|mine| {
            other.uppers(|theirs| match steps.take(1) {
                Ok(()) => {
                    uppers.extend(mine.common(theirs));
                    ControlFlow::Continue(())
                }
                Err(exhausted) => ControlFlow::Break(exhausted),
            })
        });
        if let ControlFlow::Break(exhausted) = all {
            return Err(exhausted);
        }
        for &upper in &uppers {
            for &local in &locals {
                for &remote in &remotes {
                    steps.take(1)?;
                    if let Some(found) = visit(Region { local, remote, upper }, steps)? {
                        return Ok(Some(found));
                    }
                }
            }
        }
        Ok(None)
    }
}

fn of_family(
    ranges: &[AddressRange],
    family: Family,
) -> impl Iterator<Item = Addresses> + Clone + use<'_> {
    let ranges = ranges.iter().filter(move |range| range.family == family);
    ranges.map(|range| (range.lo, range.hi))
}

fn first<T>(
    sides: impl Iterator<Item = T>,
    clip: impl Fn(T) -> Option<T>,
    steps: &mut Steps,
) -> Result<Option<T>, Exhausted> {
    for side in sides {
        steps.take(1)?;
        if let Some(found) = clip(side) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Lists whose product is above this are sorted before their entries are compared.
const FEW: usize = 64;

/// Returns the overlaps of the entries of two lists, pair by pair. Cost: close to linear for long
/// lists whose entries do not overlap each other.
fn pairs(
    one: impl Iterator<Item = Addresses> + Clone,
    other: impl Iterator<Item = Addresses> + Clone,
    steps: &mut Steps,
) -> Result<Vec<Addresses>, Exhausted> {
    let mut found = Vec::new();
    let (rows, columns) = (one.clone().count(), other.clone().count());
    if rows * columns <= FEW {
        steps.take((rows * columns) as u64)?;
        for mine in one {
            found.extend(other.clone().filter_map(|theirs| common(mine, theirs)));
        }
        return Ok(found);
    }
    steps.take((rows + columns) as u64)?;
    let mut sorted: Vec<Addresses> = other.collect();
    sorted.sort_unstable();
    // The highest end so far never falls: what ends before a range begins is a head of the list.
    let mut highest = 0;
    let reach: Vec<u128> = sorted
        .iter()
        .map(|(_, hi)| {
            highest = highest.max(*hi);
            highest
        })
        .collect();
    for mine in one {
        let start = reach.partition_point(|reach| *reach < mine.0);
        for theirs in sorted[start..].iter().take_while(|(lo, _)| *lo <= mine.1) {
            steps.take(1)?;
            found.extend(common(mine, *theirs));
        }
    }
    Ok(found)
}

/// Returns whether a condition can be met by packets with ports only.
fn asks_ports(upper: &UpperSelector) -> bool {
    upper.segments().is_some()
        || upper.ports().is_some_and(|ports| ports.iter().any(|ports| !ports.is_empty()))
}

/// The protocols with ports that have segments of the kind that a selector asks for.
fn of_segments(upper: &UpperSelector) -> u8 {
    match upper.segments() {
        None => ALL_WITH_PORTS,
        Some(TcpSegments::New) => TCP_NEW,
        Some(TcpSegments::Established) => TCP_ESTABLISHED,
    }
}

/// The protocols with ports that a selector asks for.
fn with_ports(asked: Option<u8>) -> u8 {
    let Some(asked) = asked else { return ALL_WITH_PORTS };
    let places = WITH_PORTS.iter().enumerate().filter(|(_, protocol)| **protocol == asked);
    places.fold(0, |set, (place, _)| set | 1 << place)
}

/// The protocols that have neither ports nor the family's ICMP messages, of those asked for.
fn others(asked: Option<u8>, icmp: u8) -> [u128; 2] {
    let bit = |number: u8| {
        let mut set = [0; 2];
        set[usize::from(number >> 7)] = 1u128 << (number & 127);
        set
    };
    let asked = asked.map_or([u128::MAX; 2], bit);
    WITH_PORTS.iter().chain([&icmp]).fold(asked, |set, number| {
        let known = bit(*number);
        [set[0] & !known[0], set[1] & !known[1]]
    })
}
