//! A look at overlay packets from a protected port: tenants' packets that go from an entrance to
//! the host that has their destination.
//!
//! Taken is what comes to the entrance that the first packet came to, in an overlay header without
//! options, and carries a common packet of a network without groups whose endpoints are checked;
//! and goes on to a host of the same family on the protected side, about which no table is asked.
//! All checks are those of the general walk (`decide/crossing`); what fails one is left to it.

use endpoints::{Column, Content, EndpointKey, Found, Recent, Sender};
use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use policy::Question;
use wire::flow::protocol;
use wire::glance::{self, Glance, V6_SEEN, double, header_v4, word};
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

/// Bytes between the outer IP header and the tenant's frame.
const BETWEEN: usize = UDP_BYTES + HEADER_BYTES;
/// Bytes of a frame that are looked at, from the packet on, as long as the headers may be.
const SEEN: usize = TAGGED_BYTES + IPV6_BYTES + BETWEEN + ETHERNET_BYTES + V6_SEEN;
/// Bytes from a packet on within which the second line of its headers lies.
const SECOND_LINE: u32 = 64;

/// The entrance that the packets of a batch come to.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) overlay: OverlayId,
    kind: Kind,
    pub(super) entrance: Address,
    /// Its address as it lies in memory: that of IPv4 in the lower half of the first word.
    address: [u64; 2],
    /// The UDP port as it lies in memory.
    udp_port: u16,
    /// The bits of an overlay header that are read, as they lie in memory.
    read_bits: u64,
}

impl Entry {
    fn new(overlay: OverlayId, kind: Kind, (entrance, udp_port): (Address, u16)) -> Entry {
        let address = match entrance.family {
            Family::V4 => [u64::from((entrance.value as u32).to_be()), 0],
            Family::V6 => [(entrance.value >> 64) as u64, entrance.value as u64].map(u64::to_be),
        };
        let read_bits = u64::from_ne_bytes(kind.read_bits());
        Entry { overlay, kind, entrance, address, udp_port: udp_port.to_be(), read_bits }
    }
}

/// Columns of a batch of overlay packets: one entry a packet.
pub(super) struct OverlayColumns {
    /// The hosts that send, and the sources of the tenants' frames.
    senders: [Sender; BATCH],
    /// The endpoints that packets are from.
    from: Column,
    /// The endpoints that they are to.
    to: Column,
    recent: Recent,
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
            senders: [Sender::new(Address::v4(0), nobody); BATCH],
            from: Column::default(),
            to: Column::default(),
            recent: Recent::default(),
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
    is_entered.then(|| Entry::new(overlay, of.kind, (entrance, udp_port)))
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
        let (table, OverlayColumns { from, to, recent, .. }) =
            (overlays.endpoints(), &mut *self.overlay);
        table.ask(recent, to, count);
        table.ask(recent, from, count);
        table.ask_endpoints(recent, to);
        table.ask_endpoints(recent, from);
        let fit = match entry.entrance.family {
            Family::V4 => self.find_ways::<IPV4_BYTES, F>(context, (overlays, entry), common),
            Family::V6 => self.find_ways::<IPV6_BYTES, F>(context, (overlays, entry), common),
        };
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
        // By number: an iterator costs 5 instructions a packet.
        for place in 0..packets.len().min(BATCH) {
            let Descriptor { frame, offset, length } = packets[place].packet;
            let behind = frames.bytes(frame).get(offset as usize..);
            let Some(seen) = behind.and_then(<[u8]>::first_chunk::<SEEN>) else { continue };
            let is_family = gate.ethertype::<LINK, SEEN>(seen) == Some(ethertype.to_be());
            let (is_to_entrance, bytes) = outer::<LINK, OUTER>(seen, entry);
            let has_room = offset as usize + LINK >= TAGGED_BYTES;
            if !(is_family & is_to_entrance & has_room & (bytes + LINK as u32 <= length)) {
                continue;
            }
            // Packets whose headers agree in what is read are of one network.
            let header = double(seen, LINK + OUTER + UDP_BYTES) & entry.read_bits;
            if last.header != header {
                last = Admission::of(context, overlays, entry, header);
            }
            let frame = LINK + OUTER + BETWEEN;
            let is_common = match u16::from_be_bytes([seen[frame + 12], seen[frame + 13]]) {
                ethertype::IPV4 if last.admits[0] => {
                    tenant::<LINK, OUTER, IPV4_BYTES>(seen, (last.vni, bytes), place, columns)
                }
                ethertype::IPV6 if last.admits[1] => {
                    tenant::<LINK, OUTER, IPV6_BYTES>(seen, (last.vni, bytes), place, columns)
                }
                _ => false,
            };
            (rows[place].ip, rows[place].length) = (offset + LINK as u32, bytes);
            common |= u64::from(is_common) << place;
        }
        common
    }

    /// Checks senders, and gives each packet whose destination is known the path to its host;
    /// returns those that fit it.
    #[inline(always)]
    fn find_ways<const OUTER: usize, F: Frames>(
        &mut self,
        context: &mut BatchContext<'_, F>,
        (overlays, entry): (&Overlays, &Entry),
        common: u64,
    ) -> u64 {
        let Columns { rows, .. } = &mut *self.columns;
        let OverlayColumns { senders, from, to, recent, onward } = &mut *self.overlay;
        let table = overlays.endpoints();
        let mut ways = Ways::new(context, &mut self.paths, &self.gate, entry);
        let (mut fit, mut late) = (0, 0);
        let mut go_on = |place: usize, of_sender: Content, to: Content, fit: &mut u64| {
            let to = Found::from(to);
            if !of_sender.is_at(&senders[place]) | (to.host.family != family::<OUTER>()) {
                return;
            }
            let Some((way, neighbour)) = ways.to::<OUTER>(to.host.value, to.host_mac) else {
                return;
            };
            let Row { length, path, .. } = &mut rows[place];
            *path = way.path;
            onward[place] = Onward { host: to.host.value, tenant: to.mac, neighbour };
            *fit |= u64::from(*length <= way.mtu) << place;
        };
        for place in bits(common) {
            match (table.led(from, place), table.led(to, place)) {
                (Some(of_sender), Some(to)) => go_on(place, of_sender, to, &mut fit),
                _ => late |= 1 << place,
            }
        }
        for place in bits(late) {
            let of_sender = table.content(recent, from, place);
            let contents = (of_sender, table.content(recent, to, place));
            if let (Some(of_sender), Some(to)) = contents {
                go_on(place, of_sender, to, &mut fit);
            }
        }
        fit
    }
}

/// The families of packets that a network's lane admits.
#[derive(Clone, Copy)]
struct Admission {
    /// The bits that are read of the overlay header; all, of which some never are: of none yet.
    header: u64,
    vni: Vni,
    /// Of IPv4, and of IPv6.
    admits: [bool; 2],
}

impl Default for Admission {
    fn default() -> Admission {
        Admission { header: u64::MAX, vni: Vni::MAX, admits: [false; 2] }
    }
}

impl Admission {
    /// Looks at the network of a header without options: it must be there, check endpoints, and
    /// have no groups.
    #[inline(never)]
    fn of<F>(
        context: &BatchContext<'_, F>,
        overlays: &Overlays,
        entry: &Entry,
        header: u64,
    ) -> Admission {
        // Only headers without options fit the view.
        let parsed = wire::overlay::parse(entry.kind, &header.to_ne_bytes());
        let vni = parsed.map_or(Vni::MAX, |parsed| parsed.vni);
        let network = parsed.ok().and_then(|it| overlays.network(it.vni, entry.overlay));
        let network = network.filter(|network| network.source_check == SourceCheck::Endpoint);
        let admits = [Family::V4, Family::V6].map(|family| {
            network.is_some_and(|it| !decide::asks_inside(context.snapshot, it, family))
        });
        Admission { header, vni, admits }
    }
}

const fn family<const IP: usize>() -> Family {
    if IP == IPV4_BYTES { Family::V4 } else { Family::V6 }
}

/// Returns whether the outer headers are of a common packet to the entrance, with a frame behind
/// them that is for one station; and its bytes. An overlay header is not looked at.
#[inline(always)]
fn outer<const LINK: usize, const OUTER: usize>(seen: &[u8; SEEN], entry: &Entry) -> (bool, u32) {
    let ip = view::<LINK, V6_SEEN>(seen);
    let (is_ip, bytes, differs) = if OUTER == IPV4_BYTES {
        let differs =
            (u64::from(word(ip, 16)) ^ entry.address[0]) | u64::from(ip[9] ^ protocol::UDP);
        (header_v4(ip) & (ip[8] > 1), u16::from_be_bytes([ip[2], ip[3]]).into(), differs)
    } else {
        let address = (double(ip, 24) ^ entry.address[0]) | (double(ip, 32) ^ entry.address[1]);
        let differs = address | u64::from(ip[6] ^ protocol::UDP);
        let payload = u32::from(u16::from_be_bytes([ip[4], ip[5]]));
        ((ip[0] >> 4 == 6) & (ip[7] > 1), payload + IPV6_BYTES as u32, differs)
    };
    let behind = &seen[LINK + OUTER..];
    let udp_port = u16::from_ne_bytes([behind[2], behind[3]]);
    let udp_bytes = u32::from(u16::from_be_bytes([behind[4], behind[5]]));
    // Bit by bit, so that there is one branch for all.
    let differs = differs
        | u64::from(udp_port ^ entry.udp_port)
        | u64::from((udp_bytes + OUTER as u32) ^ bytes)
        | u64::from(behind[BETWEEN] & 1);
    (is_ip & (differs == 0), bytes)
}

/// The view from a place on, which the compiler sees to lie in it.
#[inline(always)]
fn view<const AT: usize, const N: usize>(seen: &[u8; SEEN]) -> &[u8; N] {
    const { assert!(AT + N <= SEEN) };
    seen[AT..].first_chunk().expect("it lies in the view")
}

/// Looks at a tenant's packet in a network and an outer packet of so many bytes, and writes its
/// sender and keys. Returns whether it is common. Messages between neighbours and routers are not:
/// some are answered, others go nowhere.
#[inline(always)]
fn tenant<const LINK: usize, const OUTER: usize, const INNER: usize>(
    seen: &[u8; SEEN],
    (vni, bytes): (Vni, u32),
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
    let (host, _) = addresses::<OUTER>(view::<LINK, V6_SEEN>(seen));
    // The frame's source, and two bytes in front of it.
    let [_, _, mac @ ..] = double(seen, LINK + OUTER + BETWEEN + 4).to_ne_bytes();
    let host_address = Address { family: family::<OUTER>(), value: host };
    let key = |value| EndpointKey { vni, address: Address { family: family::<INNER>(), value } };
    columns.senders[place] = Sender::new(host_address, LinkAddress::new(mac));
    columns.from.set(place, key(source));
    columns.to.set(place, key(destination));
    is_unicast::<OUTER>(host)
        & is_unicast::<INNER>(source)
        & is_unicast::<INNER>(destination)
        & !is_neighbours
        & (glance.length + around as u32 <= bytes)
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
    if BYTES == IPV4_BYTES {
        IPV4_UNICAST[address as usize >> 24 & 0xff]
    } else {
        ipv6_is_unicast(address)
    }
}

/// True for the first bytes of IPv4 addresses of single stations.
const IPV4_UNICAST: [bool; 256] = {
    let (mut by_first, mut first) = ([false; 256], 0);
    while first < 256 {
        let net = (first as u32) << 24;
        by_first[first] = ipv4_is_unicast(net);
        assert!(ipv4_is_unicast(net | 0x00ff_ffff) == by_first[first]);
        first += 1;
    }
    by_first
};

/// Returns whether an address is among those from a first one on, of which so many are behind it.
#[inline(always)]
fn is_among<const IP: usize>(address: u128, (first, behind): (u128, u128)) -> bool {
    if IP == IPV4_BYTES {
        (address as u32).wrapping_sub(first as u32) <= behind as u32
    } else {
        address.wrapping_sub(first) <= behind
    }
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
    fn to<const OUTER: usize>(
        &mut self,
        host: u128,
        host_mac: Option<LinkAddress>,
    ) -> Option<(Way, Option<LinkAddress>)> {
        match self.alike {
            Some((first, behind, way))
                if is_among::<OUTER>(host, (first, behind))
                    && !is_link_local(family::<OUTER>(), host) =>
            {
                Some((way, None))
            }
            _ => self.another(host, host_mac),
        }
    }

    #[inline(never)]
    fn another(
        &mut self,
        host: u128,
        host_mac: Option<LinkAddress>,
    ) -> Option<(Way, Option<LinkAddress>)> {
        self.flow.destination = host;
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
        let address = Address { family: self.flow.family, value: host };
        let mac = host_mac.or_else(|| snapshot.adjacency(hop, address).mac)?;
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
