//! A look at packets from a protected port.

use ipsec::template::{MOST_FRONT, TAIL_BYTES};
use policy::{Question, Tracks};
use wire::glance::{self, Glance, V4_SEEN, V6_SEEN, double};
use wire::link::{Entrance, TAGGED_BYTES, ethertype};
use wire::{Address, BATCH, Descriptor, Family, Frames, Received, packet};

use super::judge::{FramesOf, Judge, PacketGroup};
use super::prepared_path::{Heading, PathId, PathTarget};
use super::{Columns, FastPath, Row, TOO_MANY_RUNS, mask_of};
use crate::batch_context::BatchContext;
use crate::cache::{Column, FlowCache, Scopes, bits, v4_head, v6_head};
use crate::ids::{NextHopId, PortId};
use crate::port::Side;
use crate::routes::RouteTable;
use crate::stage::{Stage, StageClock};

/// Bytes of a frame that are looked at, from the packet on, as long as it may be.
pub(super) const SEEN: usize = TAGGED_BYTES + V6_SEEN;
/// Bytes in front of an IP packet that headers may take.
const FRONT: usize = TAGGED_BYTES + MOST_FRONT;
/// Bytes in front of an IP packet within which its outer headers mostly begin.
const HEADERS_BYTES: usize = 50;

/// Packets that look common: a bit each.
#[derive(Clone, Copy, Default)]
pub(super) struct Common {
    pub(super) v4: u64,
    pub(super) v6: u64,
    pub(super) syn: u64,
}

impl Common {
    /// The packets before the first that does not look common.
    #[cold]
    pub(super) fn first(self) -> Common {
        let run = mask_of(&(0..(self.v4 | self.v6).trailing_ones() as usize));
        Common { v4: self.v4 & run, v6: self.v6 & run, syn: self.syn & run }
    }
}

impl FastPath {
    /// Looks at packets that came in clear, by link headers of `LINK` bytes.
    #[inline]
    pub(super) fn look_clear<const LINK: usize, F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        cache: Option<&mut FlowCache>,
        clock: &mut impl StageClock,
    ) -> u64 {
        let common =
            parse::<LINK, F>(&mut self.columns, context.frames, packets, self.gate.entrance);
        clock.ended(Stage::Receive);
        let all = common.v4 | common.v6;
        self.syn = common.syn;
        // Before anything is hashed: what is common may not be taken for all that.
        if all == 0 || (all & !(all << 1)).count_ones() >= TOO_MANY_RUNS {
            return self.taken(all);
        }
        let frame = |_: &_, place: usize| packets[place].packet.frame;
        self.tell_segments(context, Question::Through, [common.v4, common.v6], frame);
        let by_tag = self.by_tag(context, packets, common);
        let fit = match by_tag.all {
            0 => match self.one_route(context, common, cache.as_deref()) {
                OneRoute::Inside => all,
                OneRoute::Asked(hop) => self.search(context, common, hop),
                OneRoute::No => self.look_up(context, packets, common, cache),
            },
            tagged if tagged == all => by_tag.fit,
            tagged => {
                let rest = Common { v4: common.v4 & !tagged, v6: common.v6 & !tagged, ..common };
                by_tag.fit | self.look_up(context, packets, rest, cache)
            }
        };
        let fit = match self.paths.lead_to_cards() {
            true => self.carried_by_cards(fit, common.v6),
            false => fit,
        };
        self.audit(context, common, fit);
        clock.ended(Stage::Decide);
        self.taken(fit)
    }

    /// Judges packets by the cache, and by routes and tables what it does not know.
    #[inline(always)]
    fn look_up<F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        common: Common,
        mut cache: Option<&mut FlowCache>,
    ) -> u64 {
        self.counts_lookups = cache.is_some();
        let tracks = |family| context.snapshot.spd().tracks_any(family);
        // Each connection sees its packets in order: those up to the first of the general walk.
        let is_tracked = tracks(Family::V4) || tracks(Family::V6);
        let common = if is_tracked { common.first() } else { common };
        let ingress = self.gate.ingress;
        let scope = |family| context.snapshot.scope(ingress, Question::Through, family, None);
        let (of_v4, of_v6) = (scope(Family::V4), scope(Family::V6));
        let (mut judge, v4, v6) = self.judge();
        let (mut fit, frames) = (0, FramesOf::Received(packets));
        if common.v4 != 0 {
            let (heading, family, mask) = (Heading::Out, Family::V4, common.v4);
            let scopes = Scopes::One(of_v4);
            let group = PacketGroup { ingress, frames, scopes, heading, family, mask };
            fit |= judge.judge::<2, 4, F>(context, cache.as_deref_mut(), v4, &group);
        }
        if common.v6 != 0 {
            let (heading, family, mask) = (Heading::Out, Family::V6, common.v6);
            let scopes = Scopes::One(of_v6);
            let group = PacketGroup { ingress, frames, scopes, heading, family, mask };
            fit |= judge.judge::<6, 8, F>(context, cache, v6, &group);
        }
        fit
    }

    /// Judges packets that all leave by one next hop, without a cache.
    #[inline(never)]
    fn search<F>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        common: Common,
        hop: NextHopId,
    ) -> u64 {
        let (ingress, heading) = (self.gate.ingress, Heading::Out);
        let scope = |family| context.snapshot.scope(ingress, Question::Through, family, None);
        let (of_v4, of_v6) = (scope(Family::V4), scope(Family::V6));
        let (mut judge, v4, v6) = self.judge();
        let frames = FramesOf::Received(&[]);
        match (common.v4, common.v6) {
            (mask, 0) => {
                let (family, scopes) = (Family::V4, Scopes::One(of_v4));
                let group = PacketGroup { ingress, frames, scopes, heading, family, mask };
                judge.search::<2, 4, F>(context, hop, v4, &group)
            }
            (_, mask) => {
                let (family, scopes) = (Family::V6, Scopes::One(of_v6));
                let group = PacketGroup { ingress, frames, scopes, heading, family, mask };
                judge.search::<6, 8, F>(context, hop, v6, &group)
            }
        }
    }

    /// The lists that judgements are written into, and the keys.
    pub(super) fn judge(&mut self) -> (Judge<'_>, &mut Column<2>, &mut Column<6>) {
        let Columns { rows, v4, v6, .. } = &mut *self.columns;
        let (paths, learning, misses) = (&mut self.paths, &mut self.learning, &mut self.misses);
        let tracking = &mut *self.tracking;
        (Judge { rows, paths, learning, tracking, misses }, v4, v6)
    }

    /// Looks whether all packets go the route of the first. If it leads to the protected side, by
    /// one neighbour, neither tables nor cache have to be asked, and each packet has its path then.
    /// If the tables have to be asked, that is of use only where no cache is.
    #[inline(always)]
    pub(super) fn one_route<F>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        common: Common,
        cache: Option<&FlowCache>,
    ) -> OneRoute {
        match (common.v4, common.v6) {
            (mask, 0) => self.one_route_v4(context, mask, cache),
            (0, mask) => self.one_route_v6(context, mask, cache),
            _ => OneRoute::No,
        }
    }

    #[inline(always)]
    fn one_route_v4<F>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        mask: u64,
        cache: Option<&FlowCache>,
    ) -> OneRoute {
        let Columns { rows, v4, .. } = &mut *self.columns;
        let to = (v4.heads[mask.trailing_zeros() as usize][0] >> 32) as u32;
        let Some(last_route) = around(context, Address::v4(to)) else { return OneRoute::No };
        let Some(route) =
            self.paths.route(context, (self.gate.ingress, last_route.hop), Family::V4, cache)
        else {
            return OneRoute::No;
        };
        let routes = context.snapshot.routes();
        let (first, behind) = (last_route.first as u32, last_route.behind as u32);
        let goes = |head: &[u64; 2]| {
            let (from, to) = (head[0] as u32, (head[0] >> 32) as u32);
            to.wrapping_sub(first) <= behind
                && PLAIN[(to >> 24) as usize] & PLAIN[(from >> 24) as usize]
                && !is_ours(routes, Address::v4(from))
        };
        give(rows, &v4.heads, mask, route, goes)
    }

    #[inline(always)]
    fn one_route_v6<F>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        mask: u64,
        cache: Option<&FlowCache>,
    ) -> OneRoute {
        let Columns { rows, v6, .. } = &mut *self.columns;
        let address = |low: u64, high: u64| u128::from(high) << 64 | u128::from(low);
        let head = &v6.heads[mask.trailing_zeros() as usize];
        let to = Address { family: Family::V6, value: address(head[3], head[4]) };
        let Some(last_route) = around(context, to) else { return OneRoute::No };
        let Some(route) =
            self.paths.route(context, (self.gate.ingress, last_route.hop), Family::V6, cache)
        else {
            return OneRoute::No;
        };
        let routes = context.snapshot.routes();
        let is_plain = |address: u128| {
            packet::ipv6_is_unicast(address) & !packet::is_link_local(Family::V6, address)
        };
        let goes = |head: &[u64; 6]| {
            let (from, to) = (address(head[0], head[2]), address(head[3], head[4]));
            to.wrapping_sub(last_route.first) <= last_route.behind
                && is_plain(from) & is_plain(to)
                && !is_ours(routes, Address { family: Family::V6, value: from })
        };
        give(rows, &v6.heads, mask, route, goes)
    }
}

/// The route that all packets go, if it is one.
pub(super) enum OneRoute {
    /// Not known, or they do not.
    No,
    /// Yes, to the protected side: each has its path.
    Inside,
    /// Yes, by this next hop: to the unprotected side, or by ports with security groups.
    Asked(NextHopId),
}

/// A route that all packets may go.
struct Route {
    hop: NextHopId,
    /// The path and its decision, and its MTU, to the protected side.
    inside: Option<((PathId, u16), u32)>,
}

impl super::prepared_path::PreparedPaths {
    /// Returns the route by a next hop. `None`: it is of no use that all go there.
    #[inline]
    fn route<F>(
        &mut self,
        context: &BatchContext<'_, F>,
        (ingress, hop): (PortId, NextHopId),
        family: Family,
        cache: Option<&FlowCache>,
    ) -> Option<Route> {
        let (scope, exit) = (
            context.snapshot.scope(ingress, Question::Through, family, None),
            context.snapshot.exit(hop),
        );
        if context.snapshot.tables().tracks(scope, exit) != Tracks::default() {
            return None;
        }
        if context.snapshot.side_of(hop) == Side::Unprotected {
            return cache.is_none().then_some(Route { hop, inside: None });
        }
        let has_groups = context.snapshot.tables().asks(scope, exit);
        if has_groups {
            return cache.is_none().then_some(Route { hop, inside: None });
        }
        if context.snapshot.is_on_link(hop) {
            return None;
        }
        let path = self.place(context, PathTarget::Hop(hop, None), family)?;
        let said = self.without_rule(path);
        Some(Route { hop, inside: Some(((path, said.place), said.mtu)) })
    }
}

/// Gives all packets the path of a route, if it is the route of all and has one.
#[inline(always)]
fn give<const HEAD: usize>(
    rows: &mut [Row; BATCH],
    heads: &[[u64; HEAD]; BATCH],
    mask: u64,
    route: Route,
    goes: impl Fn(&[u64; HEAD]) -> bool,
) -> OneRoute {
    let count = 64 - mask.leading_zeros() as usize;
    let ((path, decision), mtu) = route.inside.unwrap_or(((PathId::NONE, 0), u32::MAX));
    let mut all = 0u64;
    for (place, (row, head)) in rows[..count].iter_mut().zip(&heads[..count]).enumerate() {
        all |= u64::from(goes(head) && row.length <= mtu) << place;
        (row.path, row.decision) = (path, decision);
    }
    match (all & mask == mask, route.inside) {
        (false, _) => OneRoute::No,
        (true, Some(_)) => OneRoute::Inside,
        (true, None) => OneRoute::Asked(route.hop),
    }
}

/// The addresses around a destination that have its route, and its next hop.
struct Around {
    first: u128,
    behind: u128,
    hop: NextHopId,
}

#[inline(always)]
fn around<F>(context: &BatchContext<'_, F>, to: Address) -> Option<Around> {
    let (first, behind, hop) = context.snapshot.routes().lookup_range(to).via(to.family)?;
    Some(Around { first, behind, hop })
}

#[inline(always)]
fn is_ours(routes: &RouteTable, address: Address) -> bool {
    routes.may_be_ours(address.value) && routes.is_ours(address)
}

/// First bytes of IPv4 addresses that anybody may have, those that stay on a link left out.
const PLAIN: [bool; 256] = {
    let (mut plain, mut first) = ([false; 256], 0);
    while first < 256 {
        plain[first] = packet::ipv4_is_unicast((first as u32) << 24) && first != 169;
        first += 1;
    }
    plain
};

/// Writes place, length and key of each packet that looks common: whole, to this station, with a
/// hop left to go, and with room around it for all headers. First those of the first packet's
/// family: mostly there are no others.
#[inline(never)]
pub(super) fn parse<const LINK: usize, F: Frames>(
    columns: &mut Columns,
    frames: &F,
    packets: &[Received],
    entrance: Entrance,
) -> Common {
    let Columns { rows, v4, v6, .. } = columns;
    let mut glances = Glances { frames, packets, entrance, rows, common: Common::default() };
    let is_v6 = glances.ethertype::<LINK>(0) == Some(ethertype::IPV6.to_be());
    if is_v6 {
        let others = glances.all::<LINK, 6, V6>(&mut v6.heads);
        if others != 0 {
            glances.some::<LINK, 2, V4>(&mut v4.heads, others);
        }
    } else {
        let others = glances.all::<LINK, 2, V4>(&mut v4.heads);
        if others != 0 {
            glances.some::<LINK, 6, V6>(&mut v6.heads, others);
        }
    }
    glances.common
}

/// A family of packets: the parts of a look that differ.
trait Version<const HEAD: usize> {
    const ETHERTYPE: u16;

    /// Returns a glance at a packet, and writes the head of its key.
    fn look(ip: &[u8; V6_SEEN], head: &mut [u64; HEAD]) -> Option<Glance>;

    /// The packets of the family that are common.
    fn of(common: &mut Common) -> &mut u64;
}

struct V4;
struct V6;

impl Version<2> for V4 {
    const ETHERTYPE: u16 = ethertype::IPV4;

    #[inline(always)]
    fn look(ip: &[u8; V6_SEEN], head: &mut [u64; 2]) -> Option<Glance> {
        let ip = ip.first_chunk()?;
        let glance = glance::v4(ip)?;
        *head = head_v4(ip, &glance);
        Some(glance)
    }

    #[inline(always)]
    fn of(common: &mut Common) -> &mut u64 {
        &mut common.v4
    }
}

impl Version<6> for V6 {
    const ETHERTYPE: u16 = ethertype::IPV6;

    #[inline(always)]
    fn look(ip: &[u8; V6_SEEN], head: &mut [u64; 6]) -> Option<Glance> {
        let glance = glance::v6(ip)?;
        *head = head_v6(ip, &glance);
        Some(glance)
    }

    #[inline(always)]
    fn of(common: &mut Common) -> &mut u64 {
        &mut common.v6
    }
}

/// Glances at the packets of a batch.
struct Glances<'a, F> {
    frames: &'a F,
    packets: &'a [Received],
    entrance: Entrance,
    rows: &'a mut [Row; BATCH],
    common: Common,
}

impl<F: Frames> Glances<'_, F> {
    /// The EtherType of a packet to this station, as it lies in memory.
    #[inline(always)]
    fn ethertype<const LINK: usize>(&self, place: usize) -> Option<u16> {
        let Descriptor { frame, offset, .. } = self.packets.get(place)?.packet;
        let seen = self.frames.bytes(frame).get(offset as usize..)?.first_chunk::<SEEN>()?;
        self.entrance.ethertype::<LINK, SEEN>(seen)
    }

    /// Looks at all packets as one family; returns those to this station that are of another.
    #[expect(clippy::needless_range_loop, reason = "an iterator costs 5 instructions a packet")]
    #[inline(always)]
    fn all<const LINK: usize, const HEAD: usize, V: Version<HEAD>>(
        &mut self,
        heads: &mut [[u64; HEAD]; BATCH],
    ) -> u64 {
        let mut others = 0;
        for place in 0..self.packets.len().min(BATCH) {
            others |= self.one::<LINK, HEAD, V>(place, &mut heads[place]);
        }
        others
    }

    /// Looks at some packets as one family.
    #[inline(never)]
    fn some<const LINK: usize, const HEAD: usize, V: Version<HEAD>>(
        &mut self,
        heads: &mut [[u64; HEAD]; BATCH],
        places: u64,
    ) {
        for place in bits(places) {
            self.one::<LINK, HEAD, V>(place, &mut heads[place]);
        }
    }

    /// Looks at a packet as one family; returns its bit if it is of another.
    #[inline(always)]
    fn one<const LINK: usize, const HEAD: usize, V: Version<HEAD>>(
        &mut self,
        place: usize,
        head: &mut [u64; HEAD],
    ) -> u64 {
        let Descriptor { frame, offset, length } = self.packets[place].packet;
        let memory = self.frames.bytes(frame);
        let Some(behind) = memory.get(offset as usize..) else { return 0 };
        let Some(seen) = behind.first_chunk::<SEEN>() else { return 0 };
        let Some(ethertype) = self.entrance.ethertype::<LINK, SEEN>(seen) else { return 0 };
        if ethertype != V::ETHERTYPE.to_be() {
            return 1 << place;
        }
        let has_room =
            (length as usize + TAIL_BYTES <= behind.len()) & (offset as usize + LINK >= FRONT);
        let Some(glance) = seen[LINK..].first_chunk().and_then(|ip| V::look(ip, head)) else {
            return 0;
        };
        if !has_room | (glance.length + LINK as u32 > length) {
            return 0;
        }
        let ip = offset + LINK as u32;
        let row = &mut self.rows[place];
        (row.ip, row.length) = (ip, glance.length);
        // Where the outer headers and the trailer will be written.
        cpu::prefetch(memory, (ip as usize).wrapping_sub(HEADERS_BYTES));
        cpu::prefetch(memory, (ip + glance.length) as usize);
        *V::of(&mut self.common) |= 1 << place;
        self.common.syn |= u64::from(glance.is_syn) << place;
        0
    }
}

/// The head of a packet's key.
#[inline(always)]
pub(super) fn head_v4(ip: &[u8; V4_SEEN], glance: &Glance) -> [u64; 2] {
    // Source and destination lie behind each other: one load, and the halves change places.
    let addresses = u64::from_be(double(ip, 12)).rotate_left(32);
    v4_head(addresses, glance)
}

/// The head of a packet's key.
#[inline(always)]
pub(super) fn head_v6(ip: &[u8; V6_SEEN], glance: &Glance) -> [u64; 6] {
    let at = |at: usize| u64::from_be(double(ip, at));
    let addresses = ([at(8), at(16)], [at(24), at(32)]);
    v6_head(addresses, glance)
}
