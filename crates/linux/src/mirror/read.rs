//! Translates netlink messages to the plain data of [`crate::view`].
//!
//! A message that cannot be read is skipped, except that a route that is read but not understood
//! stays as [`RouteStatus::Refused`]: it shadows wider routes.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use dataplane::Prefix;
use netlink_packet_core::{NlaBuffer, NlasIterator, Parseable, ParseableParametrized};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage,
    NeighbourState as Nud,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHopFlags, RouteType, RouteVia,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use policy::AddressRange;
use wire::{Address, Family};

use crate::view::{
    HOST_ROUTE_PROTOCOL, HOST_ROUTE_TABLE, Hop, KernelRoute, LOCAL_TABLE, Link, LinkKind,
    MAIN_TABLE, NeighbourEntry, NeighbourState, Refused, RouteKind, RouteStatus, Usability,
};

/// Reads a message of rtnetlink.
pub(super) fn message(kind: u16, payload: &[u8]) -> Option<RouteNetlinkMessage> {
    RouteNetlinkMessage::parse_with_param(payload, kind).ok()
}

/// A netdev.
pub(super) fn link(message: &LinkMessage) -> Option<Link> {
    let LinkMessage { header, attributes, .. } = message;
    let mut link = Link {
        index: header.index,
        name: String::new(),
        mac: [0; 6],
        mtu: 0,
        admin_up: header.flags.contains(LinkFlags::Up),
        carrier: header.flags.contains(LinkFlags::LowerUp),
        kind: LinkKind::Physical,
        ethernet: header.link_layer_type == LinkLayerType::Ether,
        master: None,
        lower: None,
        queues: (1, 1),
    };
    let (mut parent, mut parent_is_here, mut vlan, mut is_virtio) = (0, true, 0, false);
    for attribute in attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(bytes) => {
                link.mac = bytes.as_slice().try_into().unwrap_or_default();
            }
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Controller(master) => link.master = Some(*master).filter(|i| *i != 0),
            LinkAttribute::NumRxQueues(count) => link.queues.0 = *count,
            LinkAttribute::NumTxQueues(count) => link.queues.1 = *count,
            LinkAttribute::Link(index) => parent = *index,
            LinkAttribute::LinkNetNsId(_) => parent_is_here = false,
            LinkAttribute::ParentDevBusName(bus) => is_virtio = bus == "virtio",
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => link.kind = link_kind(kind),
                        LinkInfo::Data(InfoData::Vlan(data)) => {
                            let id = |info: &InfoVlan| match info {
                                InfoVlan::Id(id) => Some(*id),
                                _ => None,
                            };
                            vlan = data.iter().find_map(id).unwrap_or(0);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if header.flags.contains(LinkFlags::Loopback) {
        link.kind = LinkKind::Loopback;
    }
    if link.kind == LinkKind::Physical && is_virtio {
        link.kind = LinkKind::Virtio;
    }
    link.lower = Some(parent).filter(|index| parent_is_here && *index != 0);
    if let LinkKind::Vlan { parent: on, id } = &mut link.kind {
        (*on, *id) = (link.lower.unwrap_or(0), vlan);
    }
    (!link.name.is_empty()).then_some(link)
}

fn link_kind(kind: &InfoKind) -> LinkKind {
    match kind {
        InfoKind::Veth => LinkKind::Veth,
        InfoKind::Bond => LinkKind::BondMaster,
        InfoKind::Bridge => LinkKind::Bridge,
        InfoKind::Vrf => LinkKind::Vrf,
        InfoKind::Vlan => LinkKind::Vlan { parent: 0, id: 0 },
        InfoKind::Tun => LinkKind::Tun,
        other => LinkKind::Other(other.to_string()),
    }
}

/// Reads an address of this machine: interface index, address, prefix length. `None`: duplicate
/// address detection has not finished, or failed (RFC 4862 §5.4).
pub(super) fn address(message: &AddressMessage) -> Option<(u32, Address, u8)> {
    let flags = message.header.flags;
    let is_optimistic = flags.contains(AddressHeaderFlags::Optimistic);
    if flags.contains(AddressHeaderFlags::Dadfailed)
        || flags.contains(AddressHeaderFlags::Tentative) && !is_optimistic
    {
        return None;
    }
    let (mut ours, mut other) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link `Address` is the other end's.
            AddressAttribute::Local(ip) => ours = Some(*ip),
            AddressAttribute::Address(ip) => other = Some(*ip),
            _ => {}
        }
    }
    let ip = ours.or(other)?;
    Some((message.header.index, ip.into(), message.header.prefix_len))
}

/// Reads a neighbour: its address and its state.
pub(super) fn neighbour(message: &NeighbourMessage) -> Option<((u32, Address), NeighbourEntry)> {
    let header = &message.header;
    if header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let (mut address, mut mac, mut managed) = (None, None, false);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => {
                address = Some(IpAddr::V4(*ip));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => {
                address = Some(IpAddr::V6(*ip));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
            NeighbourAttribute::ExtFlags(flags) => {
                managed = flags.contains(NeighbourExtFlags::Managed);
            }
            _ => {}
        }
    }
    let state = match header.state {
        Nud::Permanent => NeighbourState::Permanent,
        Nud::Reachable | Nud::Delay | Nud::Probe | Nud::Noarp => NeighbourState::Good,
        Nud::Stale => NeighbourState::Stale,
        Nud::Failed => NeighbourState::Failed,
        _ => NeighbourState::Unresolved,
    };
    let is_unicast = |mac: &[u8; 6]| mac[0] & 1 == 0 && *mac != [0; 6];
    let mac = mac.filter(is_unicast);
    let address = address.filter(|ip| !ip.is_multicast())?;
    Some(((header.ifindex, address.into()), NeighbourEntry { mac, state, managed }))
}

/// Nexthop objects by number.
pub(super) type Nexthops = HashMap<u32, Nexthop>;

/// A nexthop object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Nexthop {
    /// One way.
    Hop(Hop),
    /// Ways by other objects.
    Group(Vec<u32>),
    /// Drops.
    Blackhole,
    /// A nexthop of a kind that is not followed.
    Unknown,
}

/// Reads a nexthop object (`struct nhmsg` and its attributes, linux/nexthop.h), which
/// netlink-packet-route does not know.
pub(super) fn nexthop(payload: &[u8]) -> Option<(u32, Nexthop)> {
    const HEADER_BYTES: usize = 8;
    const FLAGS: std::ops::Range<usize> = 4..8;
    const ID: u16 = 1;
    const GROUP: u16 = 2;
    const BLACKHOLE: u16 = 4;
    const LINK: u16 = 5;
    const GATEWAY: u16 = 6;
    const ENCAP_TYPE: u16 = 7;
    const ENCAP: u16 = 8;
    const FDB: u16 = 11;
    /// `struct nexthop_grp`: number, weight, reserved.
    const GROUP_ENTRY_BYTES: usize = 8;

    let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let flags = number(payload.get(FLAGS)?)?;
    let dead = RouteNextHopFlags::Dead | RouteNextHopFlags::Linkdown;
    let mut hop = Hop { link: 0, gateway: None, usability: Usability::Usable };
    if flags & u32::from(dead.bits()) != 0 {
        hop.usability = Usability::Dead;
    }
    let (mut id, mut meaning) = (None, None);
    for attribute in NlasIterator::new(payload.get(HEADER_BYTES..)?) {
        let attribute: NlaBuffer<&[u8]> = attribute.ok()?;
        let value = attribute.value();
        match attribute.kind() {
            ID => id = number(value),
            GROUP => {
                let members = value.chunks_exact(GROUP_ENTRY_BYTES).filter_map(number);
                meaning = Some(Nexthop::Group(members.collect()));
            }
            BLACKHOLE => meaning = Some(Nexthop::Blackhole),
            LINK => hop.link = number(value)?,
            GATEWAY => hop.gateway = Some(address_of_bytes(value)?),
            ENCAP_TYPE | ENCAP | FDB => meaning = Some(Nexthop::Unknown),
            _ => {}
        }
    }
    Some((id?, meaning.unwrap_or(Nexthop::Hop(hop))))
}

fn address_of_bytes(bytes: &[u8]) -> Option<Address> {
    match bytes.len() {
        4 => Some(Address::v4(u32::from_be_bytes(bytes.try_into().ok()?))),
        16 => Some(Address::v6(u128::from_be_bytes(bytes.try_into().ok()?))),
        _ => None,
    }
}

/// Reads a route, and the reason if it is refused. `None`: the route does not matter here (another
/// table, multicast, cached).
pub(super) fn route(payload: &[u8], nexthops: &Nexthops) -> Option<(KernelRoute, Option<Refused>)> {
    match RouteMessage::parse(payload) {
        Ok(message) => read_route(&message, nexthops),
        Err(_) => unreadable_route(payload),
    }
}

fn read_route(
    message: &RouteMessage,
    nexthops: &Nexthops,
) -> Option<(KernelRoute, Option<Refused>)> {
    let mut reading = Reading::new(message)?;
    for attribute in &message.attributes {
        reading.take(attribute);
    }
    if ![MAIN_TABLE, LOCAL_TABLE, HOST_ROUTE_TABLE].contains(&reading.route.table) {
        return None;
    }
    Some(reading.finish(nexthops))
}

/// A route that is being read.
struct Reading {
    route: KernelRoute,
    /// The only hop of a route that is not ECMP.
    hop: Option<Hop>,
    nexthop: Option<u32>,
    encapsulated: bool,
    conditional: bool,
}

impl Reading {
    fn new(message: &RouteMessage) -> Option<Reading> {
        let header = &message.header;
        let family = family(header.address_family)?;
        let kind = match header.kind {
            RouteType::Unicast => RouteKind::Unicast,
            RouteType::Local | RouteType::Anycast => RouteKind::Local,
            RouteType::Broadcast => RouteKind::Broadcast,
            RouteType::BlackHole => RouteKind::Blackhole,
            RouteType::Unreachable => RouteKind::Unreachable,
            RouteType::Prohibit => RouteKind::Prohibit,
            RouteType::Throw => RouteKind::Throw,
            _ => return None,
        };
        if header.flags.contains(RouteFlags::Cloned) {
            return None;
        }
        let address = AddressRange::any(family).first();
        let is_dead = header.flags.intersects(RouteFlags::Dead | RouteFlags::Linkdown);
        let usability = if is_dead { Usability::Dead } else { Usability::Usable };
        Some(Reading {
            route: KernelRoute {
                prefix: Prefix { address, length: header.destination_prefix_length },
                table: u32::from(header.table),
                metric: 0,
                protocol: header.protocol.into(),
                kind,
                hops: Vec::new(),
                source: None,
                standing: RouteStatus::Followed,
            },
            hop: Some(Hop { link: 0, gateway: None, usability }),
            nexthop: None,
            encapsulated: false,
            conditional: header.tos != 0 || header.source_prefix_length != 0,
        })
    }

    fn take(&mut self, attribute: &RouteAttribute) {
        match attribute {
            RouteAttribute::Destination(address) => {
                if let Some(address) = route_address(address) {
                    self.route.prefix.address = address;
                }
            }
            RouteAttribute::Table(table) => self.route.table = *table,
            RouteAttribute::Priority(metric) => self.route.metric = *metric,
            RouteAttribute::PrefSource(address) => self.route.source = route_address(address),
            RouteAttribute::NhId(id) => self.nexthop = Some(*id),
            RouteAttribute::EncapType(_) | RouteAttribute::Encap(_) => self.encapsulated = true,
            RouteAttribute::MultiPath(hops) => {
                for each in hops {
                    let dead = RouteNextHopFlags::Dead | RouteNextHopFlags::Linkdown;
                    let is_dead = each.flags.intersects(dead);
                    let usability = if is_dead { Usability::Dead } else { Usability::Usable };
                    let mut hop = Hop { link: each.interface_index, gateway: None, usability };
                    for attribute in &each.attributes {
                        self.encapsulated |= is_encapsulation(attribute);
                        hop.gateway = gateway(attribute).or(hop.gateway);
                    }
                    self.route.hops.push(hop);
                }
            }
            RouteAttribute::Oif(link) => {
                if let Some(hop) = &mut self.hop {
                    hop.link = *link;
                }
            }
            other => {
                if let Some(hop) = &mut self.hop {
                    hop.gateway = gateway(other).or(hop.gateway);
                }
            }
        }
    }

    fn finish(self, nexthops: &Nexthops) -> (KernelRoute, Option<Refused>) {
        let Reading { mut route, hop, nexthop, encapsulated, conditional } = self;
        if route.hops.is_empty() {
            route.hops.extend(hop.filter(|hop| hop.link != 0));
        }
        let Prefix { address, length } = route.prefix;
        let mut refused = None;
        if let Some(id) = nexthop {
            match resolve(id, nexthops) {
                Some(Nexthop::Blackhole) => route.kind = RouteKind::Blackhole,
                Some(Nexthop::Hop(hop)) => route.hops = vec![hop],
                Some(Nexthop::Group(members)) => {
                    let hops = members.iter().filter_map(|id| match nexthops.get(id)? {
                        Nexthop::Hop(hop) => Some(*hop),
                        _ => None,
                    });
                    route.hops = hops.collect();
                }
                Some(Nexthop::Unknown) | None => refused = Some(Refused::NexthopObject { id }),
            }
        }
        if encapsulated {
            refused = Some(Refused::LightweightTunnel { address, length });
        } else if conditional {
            refused = Some(Refused::ConditionalRoute { address, length });
        }
        if refused.is_some() {
            route.standing = RouteStatus::Refused;
        }
        (route, refused)
    }
}

/// A nexthop object, if it and the members of its group are known and followed.
fn resolve(id: u32, nexthops: &Nexthops) -> Option<Nexthop> {
    let found = nexthops.get(&id)?;
    let Nexthop::Group(members) = found else { return Some(found.clone()) };
    let first = nexthops.get(members.first()?)?;
    let all_hops = members.iter().all(|id| matches!(nexthops.get(id), Some(Nexthop::Hop(_))));
    match (first, members.len(), all_hops) {
        (Nexthop::Blackhole, 1, _) => Some(Nexthop::Blackhole),
        (_, _, true) => Some(found.clone()),
        _ => None,
    }
}

/// A route whose attributes netlink-packet-route cannot read: where it leads is not known, but
/// what it leads there is.
fn unreadable_route(payload: &[u8]) -> Option<(KernelRoute, Option<Refused>)> {
    const HEADER_BYTES: usize = 12;
    const DESTINATION: u16 = 1;
    const TABLE: u16 = 15;
    let header = netlink_packet_route::route::RouteHeader::parse(payload).ok()?;
    let mut message = RouteMessage::default();
    message.header = header;
    let Reading { mut route, .. } = Reading::new(&message)?;
    for attribute in NlasIterator::new(payload.get(HEADER_BYTES..)?).flatten() {
        let attribute: NlaBuffer<&[u8]> = attribute;
        match attribute.kind() {
            DESTINATION => route.prefix.address = address_of_bytes(attribute.value())?,
            TABLE => route.table = u32::from_ne_bytes(attribute.value().try_into().ok()?),
            _ => {}
        }
    }
    let Prefix { address, length } = route.prefix;
    route.standing = RouteStatus::Refused;
    let is_used = [MAIN_TABLE, LOCAL_TABLE, HOST_ROUTE_TABLE].contains(&route.table);
    is_used.then_some((route, Some(Refused::UnreadableRoute { address, length })))
}

fn is_encapsulation(attribute: &RouteAttribute) -> bool {
    matches!(attribute, RouteAttribute::EncapType(_) | RouteAttribute::Encap(_))
}

fn gateway(attribute: &RouteAttribute) -> Option<Address> {
    match attribute {
        RouteAttribute::Gateway(address) => route_address(address),
        RouteAttribute::Via(RouteVia::Inet(ip)) => Some(IpAddr::V4(*ip).into()),
        RouteAttribute::Via(RouteVia::Inet6(ip)) => Some(IpAddr::V6(*ip).into()),
        _ => None,
    }
}

fn route_address(address: &RouteAddress) -> Option<Address> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip).into()),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip).into()),
        _ => None,
    }
}

fn family(family: AddressFamily) -> Option<Family> {
    match family {
        AddressFamily::Inet => Some(Family::V4),
        AddressFamily::Inet6 => Some(Family::V6),
        _ => None,
    }
}

/// A policy rule that is not one of the kernel's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rule {
    pub(super) family: Family,
    priority: u32,
    destination: Prefix,
    /// The table it looks up; `None`: it drops.
    pub(super) table: Option<u32>,
}

/// Table `default`: asked last, empty but by hand.
const DEFAULT_TABLE: u32 = 253;

/// Reads a policy rule. `None`: the kernel made it, or it changes nothing.
pub(super) fn rule(message: &RuleMessage) -> Option<Rule> {
    let family = family(message.header.family)?;
    let length = message.header.dst_len;
    let mut rule = Rule {
        family,
        priority: 0,
        destination: Prefix { address: AddressRange::any(family).first(), length },
        table: Some(u32::from(message.header.table)),
    };
    let mut conditional = message.header.src_len != 0 || length != 0 || message.header.tos != 0;
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::Table(table) => rule.table = Some(*table),
            RuleAttribute::Destination(ip) => rule.destination.address = (*ip).into(),
            // The table of the VRF that a packet's netdev is in, if it is in one: no port is.
            RuleAttribute::L3MDev(true) => return None,
            // Ours: it leads the box's own packets to us.
            RuleAttribute::Protocol(by) if u8::from(*by) == HOST_ROUTE_PROTOCOL => return None,
            RuleAttribute::Protocol(_) | RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
            RuleAttribute::SuppressIfGroup(u32::MAX) => {}
            _ => conditional = true,
        }
    }
    match message.header.action {
        // A jump to a later rule, which is judged itself.
        RuleAction::Goto | RuleAction::Nop => return None,
        RuleAction::ToTable => {}
        _ => rule.table = None,
    }
    let is_default = match rule.table {
        Some(LOCAL_TABLE | MAIN_TABLE) => !conditional,
        Some(DEFAULT_TABLE) => rule.priority >= 32_767,
        _ => false,
    };
    (!is_default).then_some(rule)
}

impl Rule {
    pub(super) fn refused(&self) -> Refused {
        let Rule { family, priority, table, .. } = *self;
        Refused::PolicyRule { family, priority, table }
    }

    /// Destinations that the rule may lead elsewhere, by the routes of the table it looks up.
    pub(super) fn shadows(&self, tables: &HashMap<u32, BTreeSet<(Address, u8)>>) -> Shadows {
        let range = |address, length| AddressRange::network(address, length);
        let whole = (self.destination.address, self.destination.length);
        let Some(table) = self.table else { return BTreeSet::from([whole]) };
        // `main` and `local` under a condition: what they say is said already.
        if [MAIN_TABLE, LOCAL_TABLE].contains(&table) {
            return BTreeSet::new();
        }
        let matched = range(whole.0, whole.1);
        let mut shadows = BTreeSet::new();
        for &(address, length) in tables.get(&table).into_iter().flatten() {
            let route = range(address, length);
            if matched.contains_range(&route) {
                shadows.insert((address, length));
            } else if route.contains_range(&matched) {
                shadows.insert(whole);
            }
        }
        shadows
    }
}

/// Destinations, as first address and prefix length.
pub(super) type Shadows = BTreeSet<(Address, u8)>;

/// Table and destination of a route of whatever table.
pub(super) fn table_of(message: &RouteMessage) -> Option<(u32, (Address, u8))> {
    let header = &message.header;
    let mut table = u32::from(header.table);
    let mut address = AddressRange::any(family(header.address_family)?).first();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(destination) => address = route_address(destination)?,
            _ => {}
        }
    }
    Some((table, (address, header.destination_prefix_length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Address {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn a_vlan_netdev_names_what_it_is_on_unless_that_is_in_another_namespace() {
        let mut message = LinkMessage::default();
        message.header.index = 7;
        message.header.link_layer_type = LinkLayerType::Ether;
        message.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
        message.attributes = vec![
            LinkAttribute::IfName("eth1.12".into()),
            LinkAttribute::Link(3),
            LinkAttribute::Mtu(1496),
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1]),
            LinkAttribute::Controller(9),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Vlan),
                LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(12)])),
            ]),
        ];
        let read = link(&message).unwrap();
        assert_eq!(read.kind, LinkKind::Vlan { parent: 3, id: 12 });
        assert_eq!((read.lower, read.master, read.mtu), (Some(3), Some(9), 1496));
        assert!(read.is_up() && read.ethernet);
        message.attributes.push(LinkAttribute::LinkNetNsId(1));
        let read = link(&message).unwrap();
        assert_eq!((read.kind, read.lower), (LinkKind::Vlan { parent: 0, id: 12 }, None));
    }

    #[test]
    fn a_card_on_the_virtio_bus_is_told_from_others() {
        let card = |bus: &str| {
            let mut message = LinkMessage::default();
            message.header.link_layer_type = LinkLayerType::Ether;
            message.attributes = vec![
                LinkAttribute::IfName("eth0".into()),
                LinkAttribute::ParentDevName("a0".into()),
                LinkAttribute::ParentDevBusName(bus.into()),
            ];
            link(&message).unwrap().kind
        };
        assert_eq!(card("virtio"), LinkKind::Virtio);
        assert_eq!(card("pci"), LinkKind::Physical);
        let unfinished = |kind: LinkKind| kind.passes_unfinished_checksums();
        assert!(unfinished(LinkKind::Virtio) && unfinished(LinkKind::Veth));
        assert!(unfinished(LinkKind::Tun) && !unfinished(LinkKind::Physical));
        assert!(!unfinished(LinkKind::Other("macvlan".into())));
    }

    fn of_rule(action: RuleAction, table: u8, attributes: Vec<RuleAttribute>) -> Option<Rule> {
        let mut message = RuleMessage::default();
        message.header.family = AddressFamily::Inet;
        (message.header.action, message.header.table) = (action, table);
        message.attributes = attributes;
        rule(&message)
    }

    #[test]
    fn only_rules_that_lead_elsewhere_are_refused() {
        use RuleAttribute::{FwMark, L3MDev, Priority, SuppressPrefixLen, Table};
        let to_table = RuleAction::ToTable;
        for own in [
            of_rule(to_table, 255, vec![Table(255), SuppressPrefixLen(u32::MAX)]),
            of_rule(to_table, 254, vec![Table(254), Priority(32_766)]),
            of_rule(to_table, 253, vec![Table(253), Priority(32_767)]),
            of_rule(to_table, 0, vec![L3MDev(true), Priority(1000)]),
            of_rule(RuleAction::Nop, 0, vec![Priority(9)]),
            of_rule(to_table, 76, vec![RuleAttribute::Protocol(HOST_ROUTE_PROTOCOL.into())]),
        ] {
            assert_eq!(own, None);
        }
        let marked = of_rule(to_table, 254, vec![Table(254), FwMark(1)]).expect("a condition");
        assert_eq!(marked.shadows(&HashMap::new()), BTreeSet::new());
        let other = of_rule(to_table, 0, vec![Table(1000)]).expect("another table");
        let tables = HashMap::from([(1000, BTreeSet::from([(ip("10.8.0.0"), 16)]))]);
        assert_eq!(other.shadows(&tables), BTreeSet::from([(ip("10.8.0.0"), 16)]));
        let dropping = of_rule(RuleAction::Blackhole, 0, vec![]).expect("drops");
        assert_eq!(dropping.shadows(&tables), BTreeSet::from([(ip("0.0.0.0"), 0)]));
    }

    #[test]
    fn a_rule_for_some_destinations_shadows_only_these() {
        let mut message = RuleMessage::default();
        message.header.family = AddressFamily::Inet;
        (message.header.action, message.header.dst_len) = (RuleAction::ToTable, 24);
        message.attributes = vec![
            RuleAttribute::Table(1000),
            RuleAttribute::Destination(IpAddr::from([10, 8, 3, 0])),
        ];
        let rule = rule(&message).unwrap();
        let routes = [("0.0.0.0", 0), ("10.8.3.128", 25), ("10.9.0.0", 16)];
        let routes = routes.map(|(address, length)| (ip(address), length));
        let tables = HashMap::from([(1000, BTreeSet::from(routes))]);
        let expected = [(ip("10.8.3.0"), 24), (ip("10.8.3.128"), 25)];
        assert_eq!(rule.shadows(&tables), BTreeSet::from(expected));
    }

    /// The header of an IPv4 unicast route to a /16 of table main.
    const ROUTE: [u8; 12] = [2, 16, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];

    fn with_attributes(head: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = head.to_vec();
        for (kind, value) in attributes {
            bytes.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn a_route_that_cannot_be_read_still_shadows_wider_ones() {
        // A priority of three bytes is none.
        let payload = with_attributes(&ROUTE, &[(1, &[10, 6, 0, 0]), (6, &[1, 2, 3])]);
        let (route, refused) = route(&payload, &Nexthops::new()).unwrap();
        assert_eq!(route.prefix, Prefix { address: ip("10.6.0.0"), length: 16 });
        assert_eq!(route.standing, RouteStatus::Refused);
        assert_eq!(refused, Some(Refused::UnreadableRoute { address: ip("10.6.0.0"), length: 16 }));
    }

    #[test]
    fn a_route_by_an_object_that_is_gone_still_shadows_wider_ones() {
        let payload = with_attributes(&ROUTE, &[(1, &[10, 6, 0, 0]), (30, &7u32.to_ne_bytes())]);
        let (gone, refused) = route(&payload, &Nexthops::new()).unwrap();
        assert_eq!(gone.standing, RouteStatus::Refused);
        assert_eq!(refused, Some(Refused::NexthopObject { id: 7 }));
        let of_tunnel = with_attributes(
            &[2, 0, 0, 0, 0, 0, 0, 0],
            &[(1, &7u32.to_ne_bytes()), (5, &3u32.to_ne_bytes()), (7, &[1, 0])],
        );
        assert_eq!(nexthop(&of_tunnel), Some((7, Nexthop::Unknown)));
        let objects = Nexthops::from([(7, Nexthop::Unknown)]);
        assert_eq!(route(&payload, &objects).unwrap().0.standing, RouteStatus::Refused);
    }

    #[test]
    fn hostile_messages_are_read_without_harm() {
        let payload =
            with_attributes(&ROUTE, &[(1, &[10, 6, 0, 0]), (9, &[8, 0, 0, 0, 3, 0, 0, 0])]);
        for length in 0..payload.len() {
            for flip in 0..length {
                let mut bytes = payload[..length].to_vec();
                bytes[flip] ^= 0xff;
                let _ = route(&bytes, &Nexthops::new());
                let _ = nexthop(&bytes);
                for kind in [16, 20, 24, 28, 32] {
                    let _ = super::message(kind, &bytes);
                }
            }
        }
    }
}
