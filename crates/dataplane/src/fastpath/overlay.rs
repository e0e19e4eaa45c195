//! A look at overlay packets from a protected port: tenants' packets that go from an entrance to
//! the host that has their destination.
//!
//! Taken is what comes to the entrance that the first packet came to, in an overlay header without
//! options, and carries a common packet of a network without groups whose endpoints are checked;
//! and goes on to a host of the same family on the protected side, about which no table is asked.
//! All checks are those of the general walk (`decide/crossing`); what fails one is left to it.

use endpoints::Column;
use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use policy::Question;
use wire::flow::protocol;
use wire::glance::{self, Glance, V6_SEEN, double, word};
use wire::link::{ETHERNET_BYTES, TAGGED_BYTES, ethertype};
use wire::outer::UDP_BYTES;
use wire::overlay::{HEADER_BYTES, Kind};
use wire::packet::{IPV4_BYTES, IPV6_BYTES, ipv4_is_unicast, ipv6_is_unicast, is_link_local};
use wire::{Address, BATCH, Descriptor, Family, Flow, Frames, LinkAddress, Received, Upper, Vni};

use super::prepared_path::{PathId, PathTarget, PreparedPaths};
use super::{Columns, FastPath, Gate, Row};
use crate::batch_context::BatchContext;
use crate::cache::bits;
use crate::decide::{self, Routed};
use crate::ids::NextHopId;
use crate::overlays::{OverlayId, Overlays, SourceCheck};
use crate::routes::LastRoute;
use crate::stage::{Stage, StageClock};
use endpoints::{EndpointKey, Found};

/// Bytes between the outer IP header and the tenant's frame.
const BETWEEN: usize = UDP_BYTES + HEADER_BYTES;
/// Bytes of a frame that are looked at, from the packet on, as long as the headers may be.
const SEEN: usize = TAGGED_BYTES + IPV6_BYTES + BETWEEN + ETHERNET_BYTES + V6_SEEN;
/// Bytes from a packet on within which the second line of its headers lies.
const SECOND_LINE: u32 = 64;

/// The entrance that the packets of a batch come to.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    overlay: OverlayId,
    kind: Kind,
    udp_port: u16,
    pub(super) entrance: Address,
}

/// Columns of a batch of overlay packets: one entry a packet.
pub(super) struct OverlayColumns {
    /// The hosts that send, and the sources of the tenants' frames.
    senders: [(u128, LinkAddress); BATCH],
    /// The endpoints that packets are from.
    from: Column,
    /// The endpoints that they are to.
    to: Column,
    pub(super) onward: [Onward; BATCH],
}

impl OverlayColumns {
    /// The endpoints that the packet at a place is from and to.
    pub(super) fn keys(&self, place: usize) -> (EndpointKey, EndpointKey) {
        (self.from.endpoint_key(place), self.to.endpoint_key(place))
    }
}

/// All that is written into a packet that goes on.
#[derive(Clone, Copy)]
pub(super) struct Onward {
    /// Address of the host.
    pub(super) host: u128,
    /// Link address of the tenant.
    pub(super) tenant: LinkAddress,
    /// Link address of the host, where its path leads to several.
    pub(super) neighbour: Option<LinkAddress>,
}

impl Default for OverlayColumns {
    fn default() -> OverlayColumns {
        let nobody = LinkAddress::new([0; 6]);
        let nowhere = Onward { host: 0, tenant: nobody, neighbour: None };
        OverlayColumns {
            senders: [(0, nobody); BATCH],
            from: Column::default(),
            to: Column::default(),
            onward: [nowhere; BATCH],
        }
    }
}

/// Returns the entrance on the port of a batch that its first packet is for; `None`: the batch is
/// not looked at as one of an overlay.
#[inline]
pub(super) fn entry<F: Frames>(
    context: &BatchContext<'_, F>,
    gate: &Gate,
    packets: &[Received],
) -> Option<Entry> {
    let overlays = context.snapshot.overlays()?;
    let Descriptor { frame, offset, .. } = packets.first()?.packet;
    let link = if gate.is_tagged { TAGGED_BYTES } else { ETHERNET_BYTES };
    let ip = context.frames.bytes(frame).get(offset as usize + link..)?;
    let ip = ip.first_chunk::<V6_SEEN>()?;
    let (port, entrance) = match ip[0] >> 4 {
        4 => (word(ip, IPV4_BYTES), Address::v4(u32::from_be(word(ip, 16)))),
        6 => (word(ip, IPV6_BYTES), Address::v6(address_v6(ip, 24))),
        _ => return None,
    };
    let udp_port = u32::from_be(port) as u16;
    let (overlay, of) = overlays.entered_on(gate.ingress, udp_port, entrance)?;
    let is_station = match entrance.family {
        Family::V4 => ipv4_is_unicast(entrance.value as u32),
        Family::V6 => ipv6_is_unicast(entrance.value),
    };
    // What is sent to that port is taken for sealed packets before.
    let is_entered = is_station && udp_port != NAT_TRAVERSAL_PORT;
    is_entered.then_some(Entry { overlay, kind: of.kind, udp_port, entrance })
}

impl FastPath {
    /// Looks at packets to an entrance, by link headers of `LINK` bytes.
    #[inline(never)]
    pub(super) fn look_overlay<const LINK: usize, F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        packets: &[Received],
        entry: &Entry,
        clock: &mut impl StageClock,
    ) -> u64 {
        let Some(overlays) = context.snapshot.overlays() else { return 0 };
        for Received { packet, .. } in packets {
            context.frames.prefetch(packet.frame, packet.offset + SECOND_LINE);
        }
        let common = match entry.entrance.family {
            Family::V4 => self.glance::<LINK, IPV4_BYTES, F>(context, packets, (overlays, entry)),
            Family::V6 => self.glance::<LINK, IPV6_BYTES, F>(context, packets, (overlays, entry)),
        };
        clock.ended(Stage::Receive);
        if common == 0 {
            return self.taken(0);
        }
        let count = 64 - common.leading_zeros() as usize;
        let (table, OverlayColumns { from, to, .. }) = (overlays.endpoints(), &mut *self.overlay);
        table.ask(to, count);
        table.ask(from, count);
        table.ask_endpoints(to, count);
        table.ask_endpoints(from, count);
        let fit = self.find_ways(context, (overlays, entry), common);
        clock.ended(Stage::Decide);
        self.taken(fit)
    }

    /// Writes place, length, sender and keys of each packet that looks common.
    #[inline(always)]
    fn glance<const LINK: usize, const OUTER: usize, F: Frames>(
        &mut self,
        context: &BatchContext<'_, F>,
        packets: &[Received],
        (overlays, entry): (&Overlays, &Entry),
    ) -> u64 {
        let (frames, gate) = (&*context.frames, self.gate.entrance);
        let ethertype = if OUTER == IPV4_BYTES { ethertype::IPV4 } else { ethertype::IPV6 };
        let (rows, columns) = (&mut self.columns.rows, &mut *self.overlay);
        let (mut common, mut last) = (0u64, Admission::default());
        for (place, (Received { packet, .. }, row)) in packets.iter().zip(rows).enumerate() {
            let Descriptor { frame, offset, length } = *packet;
            let behind = frames.bytes(frame).get(offset as usize..);
            let Some(seen) = behind.and_then(<[u8]>::first_chunk::<SEEN>) else { continue };
            if gate.ethertype::<LINK, SEEN>(seen) != Some(ethertype.to_be()) {
                continue;
            }
            let Some(outer) = outer::<LINK, OUTER>(seen, entry) else { continue };
            let has_room = offset as usize + LINK >= TAGGED_BYTES;
            if !has_room | (outer.length + LINK as u32 > length) {
                continue;
            }
            if last.vni != Some(outer.vni) {
                last = Admission::of(context, overlays, entry, outer.vni);
            }
            let is_common = match outer.ethertype {
                ethertype::IPV4 if last.admits[0] => {
                    tenant::<LINK, OUTER, IPV4_BYTES>(seen, &outer, place, columns)
                }
                ethertype::IPV6 if last.admits[1] => {
                    tenant::<LINK, OUTER, IPV6_BYTES>(seen, &outer, place, columns)
                }
                _ => false,
            };
            (row.ip, row.length) = (offset + LINK as u32, outer.length);
            common |= u64::from(is_common) << place;
        }
        common
    }

    /// Checks senders, and gives each packet whose destination is known the path to its host;
    /// returns those that fit it.
    #[inline(always)]
    fn find_ways<F: Frames>(
        &mut self,
        context: &BatchContext<'_, F>,
        (overlays, entry): (&Overlays, &Entry),
        common: u64,
    ) -> u64 {
        let Columns { rows, .. } = &mut *self.columns;
        let OverlayColumns { senders, from, to, onward } = &mut *self.overlay;
        let table = overlays.endpoints();
        let mut ways = Ways::new(context, &mut self.paths, &self.gate, entry);
        let family = entry.entrance.family;
        let mut fit = 0;
        for place in bits(common) {
            let (Some(sender), Some(to)) = (table.found(from, place), table.found(to, place))
            else {
                continue;
            };
            let host = Address { family, value: senders[place].0 };
            if (sender.host, sender.mac) != (host, senders[place].1) || to.host.family != family {
                continue;
            }
            let Some((way, neighbour)) = ways.to(&to) else { continue };
            let Row { length, path, .. } = &mut rows[place];
            *path = way.path;
            onward[place] = Onward { host: to.host.value, tenant: to.mac, neighbour };
            fit |= u64::from(*length <= way.mtu) << place;
        }
        fit
    }
}

/// The families of packets that a network's lane admits.
#[derive(Clone, Copy, Default)]
struct Admission {
    vni: Option<Vni>,
    /// Of IPv4, and of IPv6.
    admits: [bool; 2],
}

impl Admission {
    /// Looks at a network: it must be there, check endpoints, and have no groups.
    #[inline(never)]
    fn of<F>(
        context: &BatchContext<'_, F>,
        overlays: &Overlays,
        entry: &Entry,
        vni: Vni,
    ) -> Admission {
        let network = overlays.network(vni, entry.overlay);
        let network = network.filter(|network| network.source_check == SourceCheck::Endpoint);
        let admits = [Family::V4, Family::V6].map(|family| {
            network.is_some_and(|it| !decide::asks_inside(context.snapshot, it, family))
        });
        Admission { vni: Some(vni), admits }
    }
}

/// A common overlay packet.
#[derive(Clone, Copy)]
struct Outer {
    /// Bytes of the packet.
    length: u32,
    vni: Vni,
    /// EtherType of the tenant's frame.
    ethertype: u16,
}

/// Reads an overlay packet to an entrance, up to the link header of the tenant's frame.
#[inline(always)]
fn outer<const LINK: usize, const OUTER: usize>(seen: &[u8; SEEN], entry: &Entry) -> Option<Outer> {
    let ip = seen[LINK..].first_chunk::<V6_SEEN>()?;
    let glance = look::<OUTER>(ip)?;
    let (host, entrance) = addresses::<OUTER>(ip);
    let overlay = seen[LINK + OUTER..].first_chunk::<BETWEEN>()?;
    let udp_bytes = u32::from(u16::from_be_bytes([overlay[4], overlay[5]]));
    let frame = &seen[LINK + OUTER + BETWEEN..];
    let is_to_entrance = (glance.protocol == protocol::UDP)
        & (glance.upper as u16 == entry.udp_port)
        & (entrance == entry.entrance.value)
        & (udp_bytes + OUTER as u32 == glance.length)
        & (frame[0] & 1 == 0)
        & is_unicast::<OUTER>(host);
    if !is_to_entrance {
        return None;
    }
    // Only headers without options fit the view.
    let vni = wire::overlay::parse(entry.kind, &overlay[UDP_BYTES..]).ok()?.vni;
    let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
    Some(Outer { length: glance.length, vni, ethertype })
}

/// Looks at a tenant's packet, and writes its sender and keys. Returns whether it is common.
/// Messages between neighbours and routers are not: some are answered, others go nowhere.
#[inline(always)]
fn tenant<const LINK: usize, const OUTER: usize, const INNER: usize>(
    seen: &[u8; SEEN],
    outer: &Outer,
    place: usize,
    columns: &mut OverlayColumns,
) -> bool {
    let around = OUTER + BETWEEN + ETHERNET_BYTES;
    let Some(ip) = seen[LINK + around..].first_chunk::<V6_SEEN>() else { return false };
    let Some(glance) = look::<INNER>(ip) else { return false };
    let (source, destination) = addresses::<INNER>(ip);
    let is_neighbours = (INNER == IPV6_BYTES)
        & (glance.protocol == protocol::ICMPV6)
        & matches!(glance.upper >> 8, 130..=137 | 143);
    let family = if INNER == IPV4_BYTES { Family::V4 } else { Family::V6 };
    let key = |value| EndpointKey { vni: outer.vni, address: Address { family, value } };
    let (host, _) = addresses::<OUTER>(seen[LINK..].first_chunk().unwrap_or(ip));
    let frame = &seen[LINK + OUTER + BETWEEN..];
    let mac = LinkAddress::new([frame[6], frame[7], frame[8], frame[9], frame[10], frame[11]]);
    columns.senders[place] = (host, mac);
    columns.from.set(place, key(source));
    columns.to.set(place, key(destination));
    is_unicast::<INNER>(source)
        & is_unicast::<INNER>(destination)
        & !is_neighbours
        & (glance.length + around as u32 <= outer.length)
}

#[inline(always)]
fn look<const BYTES: usize>(ip: &[u8; V6_SEEN]) -> Option<Glance> {
    if BYTES == IPV4_BYTES { glance::v4(ip.first_chunk()?) } else { glance::v6(ip) }
}

/// Source and destination of a packet.
#[inline(always)]
fn addresses<const BYTES: usize>(ip: &[u8; V6_SEEN]) -> (u128, u128) {
    if BYTES == IPV4_BYTES {
        let address = |at| u128::from(u32::from_be(word(ip, at)));
        (address(12), address(16))
    } else {
        (address_v6(ip, 8), address_v6(ip, 24))
    }
}

#[inline(always)]
fn address_v6(ip: &[u8; V6_SEEN], at: usize) -> u128 {
    let half = |at| u128::from(u64::from_be(double(ip, at)));
    half(at) << 64 | half(at + 8)
}

#[inline(always)]
fn is_unicast<const BYTES: usize>(address: u128) -> bool {
    if BYTES == IPV4_BYTES { ipv4_is_unicast(address as u32) } else { ipv6_is_unicast(address) }
}

/// A way to hosts by a next hop.
#[derive(Clone, Copy)]
struct Way {
    path: PathId,
    /// Bytes of the largest packet that may take it.
    mtu: u32,
}

/// The ways to the hosts of a batch: most have that of the host before.
struct Ways<'a, 'c, F> {
    context: &'a BatchContext<'c, F>,
    paths: &'a mut PreparedPaths,
    gate: &'a Gate,
    /// A packet from the entrance.
    flow: Flow,
    last_route: LastRoute,
    /// The next hop that was used last, and the way by it, if the lane goes it.
    last: Option<(NextHopId, Option<Way>)>,
    /// Hosts that all have one way: the first, and how many are behind it.
    alike: Option<(u128, u128, Way)>,
}

impl<'a, 'c, F: Frames> Ways<'a, 'c, F> {
    fn new(
        context: &'a BatchContext<'c, F>,
        paths: &'a mut PreparedPaths,
        gate: &'a Gate,
        entry: &Entry,
    ) -> Self {
        let Address { family, value: source } = entry.entrance;
        let (protocol, upper) = (protocol::UDP, Upper::None);
        let flow = Flow { family, source, destination: 0, protocol, upper, opens: false };
        let (last_route, last, alike) = (LastRoute::nothing(), None, None);
        Ways { context, paths, gate, flow, last_route, last, alike }
    }

    /// Returns the way to an endpoint's host, and the host's link address where hosts are
    /// neighbours. `None`: the general walk says what becomes of its packets.
    #[inline(always)]
    fn to(&mut self, to: &Found) -> Option<(Way, Option<LinkAddress>)> {
        match self.alike {
            Some((first, behind, way))
                if to.host.value.wrapping_sub(first) <= behind
                    && !is_link_local(to.host.family, to.host.value) =>
            {
                Some((way, None))
            }
            _ => self.another(to),
        }
    }

    #[inline(never)]
    fn another(&mut self, to: &Found) -> Option<(Way, Option<LinkAddress>)> {
        self.flow.destination = to.host.value;
        let snapshot = self.context.snapshot;
        let routed = decide::route_carried(snapshot, &mut self.last_route, &self.flow);
        let Ok(Routed::Inside(hop)) = routed else { return None };
        if matches!(self.last, Some((last, None)) if last == hop) {
            return None;
        }
        if !snapshot.is_on_link(hop) {
            let way = self.by(hop, None);
            self.last = Some((hop, way));
            let way = way?;
            if let Some((first, behind, _)) = self.last_route.via(self.flow.family) {
                self.alike = Some((first, behind, way));
            }
            return Some((way, None));
        }
        let mac = to.host_mac.or_else(|| snapshot.adjacency(hop, to.host).mac)?;
        let way = match self.last {
            Some((last, way)) if last == hop => way,
            _ => self.by(hop, Some(mac)),
        };
        self.last = Some((hop, way));
        Some((way?, Some(mac)))
    }

    /// Prepares the way by a next hop, with the link address of one of its neighbours.
    #[inline(never)]
    fn by(&mut self, hop: NextHopId, neighbour: Option<LinkAddress>) -> Option<Way> {
        let (context, family) = (self.context, self.flow.family);
        let scope = context.snapshot.scope(self.gate.ingress, Question::Leave, family, None);
        if context.snapshot.tables().asks(scope, context.snapshot.exit(hop)) {
            return None;
        }
        let target = PathTarget::Hop(hop, None);
        let path = match neighbour {
            None => self.paths.place(context, target, family),
            Some(mac) => self.paths.place_on_link(context, (hop, mac), family),
        }?;
        let mtu = self.paths.list[path.place()].mtu;
        Some(Way { path, mtu })
    }
}
