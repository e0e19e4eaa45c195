//! The carve-out (`allow_host`): cleartext traffic from outside to this machine itself.
//!
//! `allow_host` decides only what no PROTECT or DISCARD policy wants (RFC 4301 §5.2). Always let
//! through, or a policy for everything would shut out its own key exchange:
//!
//! | | where |
//! |---|---|
//! | neighbour discovery (ARP is no IP) | on every unprotected port |
//! | IKE: UDP 500, and 4500 with the zero marker (RFC 3948 §2.2) | where listed by `allow_host` |
//! | later fragments of UDP | likewise: Linux has the first fragments of IKE, and no others |
//!
//! The walk evaluates each packet. The steering program knows no policies, so [`Reserved`] says
//! which packets of which service some policy may want: those it hands to a worker, which sends on
//! to Linux by the host port what may pass. A reserved service is closed while no worker runs.
//!
//! ICMP that tells of a path MTU to one of our addresses is always a worker's, listed or not: it
//! may be about a peer's path (`mtu_messages`). The worker sends on to Linux what is listed.
//!
//! Fragments of ESP in UDP look like those of IKE: only the first one shows a port. Where a peer's
//! ESP comes so, all fragments of UDP are a worker's, which puts the peer's together
//! (`reassemble`). What is IKE after all goes on to Linux, in fragments as it came.

use std::collections::{BTreeMap, HashMap};

use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use policy::{
    AddressRange, Direction, Exit, FlowAction, FlowVerdict, Policy, PortRange, Question, Refusal,
    UpperSelector,
};
use wire::flow::protocol;
use wire::{Address, Family, Flow, Fragment, Upper, packet::is_link_local};

use crate::ids::PortId;
use crate::port::{HostService, PortInfo, Side};
use crate::routes::{Prefix, RouteTarget};
use crate::row::Row;
use crate::sad::Sad;
use crate::snapshot::{PortInfos, Routes, Snapshot};
use crate::verdict::DropReason;

/// Port of IKE (RFC 7296 §2).
const IKE_PORT: u16 = 500;
/// Entries of a port's `allow_host` at most: the steering program has a place for each.
pub const MAX_SERVICES: usize = 32;
/// Most entries that the IKE of a port adds to those of its `allow_host` ([`Reserved::open`]).
pub const IKE_SERVICES: usize = 2;

/// Extent to which the carve-out lets a packet through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CarveOut {
    /// Not at all.
    No,
    /// If no PROTECT or DISCARD policy wants it.
    UnlessWanted,
    /// Whatever the policies say.
    Always,
}

/// Evaluates the carve-out for a cleartext packet from outside. `bytes` is the packet.
///
/// Only our addresses on unprotected ports and on the link are meant: those inside are the
/// policies' affair. UDP 4500 is shared: with the zero marker it is IKE, else ESP in UDP.
pub(crate) fn carve_out(snapshot: &Snapshot, row: &Row, bytes: &[u8]) -> CarveOut {
    let flow = &row.packet.flow;
    let services = &snapshot.port(row.ingress).allow_host;
    if !is_ours(snapshot, flow) || !is_host_service(services, flow) {
        return CarveOut::No;
    }
    // A later fragment shows no marker: its first one did, which was dropped if it was ESP.
    let is_nat_traversal = flow.protocol == protocol::UDP
        && row.packet.fragment != Fragment::Later
        && matches!(flow.upper, Upper::Ports { destination: NAT_TRAVERSAL_PORT, .. });
    let payload = bytes.get(usize::from(row.packet.upper_offset) + 8..).unwrap_or_default();
    match () {
        () if is_nat_traversal && !payload.starts_with(&[0; 4]) => CarveOut::No,
        () if is_discovery(flow) || is_ike(services, flow) => CarveOut::Always,
        () => CarveOut::UnlessWanted,
    }
}

/// Returns whether a packet is to one of our addresses that the carve-out covers.
fn is_ours(snapshot: &Snapshot, flow: &Flow) -> bool {
    let destination = flow.destination_address();
    snapshot.is_own_outside(destination)
        || is_link_local(flow.family, flow.destination)
            && snapshot.routes().lookup(destination) == Some(RouteTarget::Local)
}

/// Says why a listed packet to a group or in a broadcast frame is not Linux's: a policy wants it.
/// Linux takes in none that is to another station's address, so no policy has to be asked of it.
pub(crate) fn refused_group(
    snapshot: &Snapshot,
    ingress: PortId,
    flow: &Flow,
) -> Option<DropReason> {
    let destination = flow.destination_address();
    let is_taken_in = is_group(destination)
        || matches!(
            snapshot.routes().lookup(destination),
            Some(RouteTarget::Local | RouteTarget::Broadcast)
        );
    if is_discovery(flow) || !is_taken_in {
        return None;
    }
    if is_ours(snapshot, flow) && is_ike(&snapshot.port(ingress).allow_host, flow) {
        return None;
    }
    let scope = snapshot.scope(ingress, Question::Enter, flow.family, None);
    let mut verdict = [FlowVerdict::NOT_ASKED];
    snapshot.tables().classify(scope, Exit::Other, std::slice::from_ref(flow), &mut verdict);
    match verdict[0].action {
        FlowAction::Permit | FlowAction::Protect(_) => None,
        FlowAction::Refuse(Refusal::NoMatch) => None,
        FlowAction::Refuse(refusal) => Some(refusal.into()),
    }
}

/// Returns whether an unprotected port's carve-out lists a flow to this host: the services that the
/// operator configured, and neighbour discovery always (RFC 4861: types 133 to 137).
pub(crate) fn is_host_service(services: &[HostService], flow: &Flow) -> bool {
    let destination_port = match flow.upper {
        Upper::Ports { destination, .. } => Some(destination),
        _ => None,
    };
    is_discovery(flow)
        || services.iter().any(|service| {
            service.protocol == flow.protocol
                && match (service.ports, destination_port) {
                    (None, _) => true,
                    (Some(range), Some(port)) => (range.lo..=range.hi).contains(&port),
                    // A later fragment of a listed service: Linux reassembles and judges it.
                    (Some(_), None) => flow.upper == Upper::Fragment,
                }
        })
}

fn is_discovery(flow: &Flow) -> bool {
    flow.protocol == protocol::ICMPV6 && matches!(flow.upper, Upper::Icmp { kind: 133..=137, .. })
}

/// Returns whether a listed flow is IKE, or may be a later fragment of IKE.
fn is_ike(services: &[HostService], flow: &Flow) -> bool {
    flow.protocol == protocol::UDP
        && match flow.upper {
            Upper::Ports { destination, .. } => {
                matches!(destination, IKE_PORT | NAT_TRAVERSAL_PORT)
            }
            Upper::Fragment => services.iter().any(|service| ike_ports(service).next().is_some()),
            Upper::Icmp { .. } | Upper::None => false,
        }
}

/// The ports of IKE that a service lists.
fn ike_ports(service: &HostService) -> impl Iterator<Item = u16> {
    let HostService { protocol, ports } = *service;
    let lists = move |port: &u16| {
        protocol == protocol::UDP && ports.is_none_or(|range| (range.lo..=range.hi).contains(port))
    };
    [IKE_PORT, NAT_TRAVERSAL_PORT].into_iter().filter(lists)
}

/// Multicast, or the broadcast address of every link.
fn is_group(address: Address) -> bool {
    group_ranges().iter().any(|range| range.contains(address))
}

fn group_ranges() -> [AddressRange; 3] {
    let multicast_v4 = AddressRange { family: Family::V4, lo: 0xe000_0000, hi: 0xefff_ffff };
    let broadcast = AddressRange { family: Family::V4, lo: 0xffff_ffff, hi: 0xffff_ffff };
    let multicast_v6 = AddressRange { family: Family::V6, lo: 0xff << 120, hi: u128::MAX };
    [multicast_v4, broadcast, multicast_v6]
}

/// Packets of one entry of `allow_host`, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Packets(u8);

impl Packets {
    /// Packets to the gateway's own addresses.
    pub const TO_US: Packets = Packets(1);
    /// Packets to groups and broadcast addresses.
    pub const TO_GROUPS: Packets = Packets(2);
    /// Fragments to either: first ones, too, so that no datagram is parted.
    pub const FRAGMENTS: Packets = Packets(4);
    /// Fragments of IKE, which policies never want.
    pub const IKE_FRAGMENTS: Packets = Packets(8);
    /// All of them.
    pub const ALL: Packets = Packets(15);

    /// Returns whether all of `others` are among these.
    pub const fn has(self, others: Packets) -> bool {
        self.0 & others.0 == others.0
    }

    /// Returns whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the packets of either.
    #[must_use]
    pub const fn and(self, others: Packets) -> Packets {
        Packets(self.0 | others.0)
    }

    /// Returns these packets without `others`.
    #[must_use]
    pub const fn without(self, others: Packets) -> Packets {
        Packets(self.0 & !others.0)
    }
}

/// A service as far as the steering program passes it to Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenService {
    /// The service.
    pub service: HostService,
    /// The service's packets that no policy may match.
    pub packets: Packets,
}

/// Packets of each port's `allow_host` that some policy may want: a list for each port by its name,
/// an entry for each service. Precedence is not looked at, so a BYPASS policy in front makes no
/// difference. Of a port that has no list everything is reserved, and by default no port has one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reserved(BTreeMap<String, Vec<Packets>>);

impl Reserved {
    /// Returns the packets that these policies may want. Takes about a millisecond for 100 000
    /// policies.
    pub fn by<'p>(
        ports: &PortInfos,
        routes: &Routes,
        policies: impl IntoIterator<Item = &'p Policy>,
    ) -> Reserved {
        let mut reserving = Reserving::of(ports, routes);
        if reserving.to.is_some() {
            policies.into_iter().for_each(|policy| _ = reserving.add(policy));
        }
        reserving.reserved()
    }

    /// Returns whether these policies want all packets that are reserved here: whether none is free
    /// that was reserved for others. Asks no more policies than it takes to tell.
    pub fn is_wanted_by<'p>(
        &self,
        ports: &PortInfos,
        routes: &Routes,
        policies: impl IntoIterator<Item = &'p Policy>,
    ) -> bool {
        if self.is_empty() {
            return true;
        }
        let (mut reserving, mut policies) = (Reserving::of(ports, routes), policies.into_iter());
        policies.any(|policy| reserving.add(policy) && reserving.has(self))
    }

    /// Reserves also the fragments of UDP, those of IKE among them, if some SA opens ESP in UDP:
    /// they may be its. `ports` are those whose packets are reserved.
    #[must_use]
    pub fn with_fragments_of(mut self, sad: &Sad, ports: &PortInfos) -> Reserved {
        if !sad.opens_in_udp() {
            return self;
        }
        let fragments = Packets::FRAGMENTS.and(Packets::IKE_FRAGMENTS);
        let outside = ports.iter().filter(|(_, port)| port.side == Side::Unprotected);
        for (_, port) in outside {
            let list = self.0.get_mut(&port.name).into_iter().flatten();
            let of_udp = list.zip(&port.allow_host).filter(|(_, of)| of.protocol == protocol::UDP);
            of_udp.for_each(|(packets, _)| *packets = packets.and(fragments));
        }
        self
    }

    /// Nothing of these lists, each with the name of its port.
    pub fn nothing<'s>(lists: impl Iterator<Item = (&'s str, &'s [HostService])>) -> Reserved {
        let nothing = |(name, list): (&str, &[HostService])| {
            (name.to_owned(), vec![Packets::default(); list.len()])
        };
        Reserved(lists.map(nothing).collect())
    }

    /// Returns the packets that these policies may want of the services that the `earlier` ports
    /// listed, where `ports` and `policies` are of another configuration: until that one is
    /// applied, nothing is passed that it closes. Ports are matched by name.
    pub fn of_earlier<'p>(
        earlier: &PortInfos,
        ports: &PortInfos,
        routes: &Routes,
        policies: impl IntoIterator<Item = &'p Policy>,
    ) -> Reserved {
        let listed: HashMap<&str, &[HostService]> =
            earlier.iter().map(|(_, port)| (port.name.as_str(), &port.allow_host[..])).collect();
        let mut probed = ports.clone();
        for (place, port) in ports.iter() {
            let allow_host = listed.get(port.name.as_str()).map_or_else(Vec::new, |of| of.to_vec());
            probed.set(place, Some(PortInfo { allow_host, ..port.clone() }));
        }
        let mut now = Reserved::by(&probed, routes, policies);
        let of = |(_, port): (usize, &PortInfo)| {
            let list = now.0.remove(&port.name).unwrap_or_else(|| none_of(port));
            (port.name.clone(), list)
        };
        Reserved(earlier.iter().map(of).collect())
    }

    /// Returns the packets that either reserves; both must be of the same ports.
    #[must_use]
    pub fn and(&self, other: &Reserved) -> Reserved {
        let port = |(name, a): (&String, &Vec<Packets>)| {
            let b = other.0.get(name)?;
            Some((name.clone(), a.iter().zip(b).map(|(a, b)| a.and(*b)).collect()))
        };
        Reserved(self.0.iter().filter_map(port).collect())
    }

    /// Returns whether nothing is reserved.
    pub fn is_empty(&self) -> bool {
        self.0.values().flatten().all(|packets| packets.is_empty())
    }

    /// Returns the packets reserved of each service of a port, in the order of its `allow_host`.
    pub fn of(&self, port: &str) -> &[Packets] {
        self.0.get(port).map_or(&[], Vec::as_slice)
    }

    /// Returns the services that the steering program may pass of a port's `allow_host`: each as
    /// far as it is not reserved, and IKE always, but for its fragments where they are reserved. At
    /// most [`IKE_SERVICES`] more than the list has.
    pub fn open(&self, port: &str, services: &[HostService]) -> Vec<OpenService> {
        let mut open: Vec<OpenService> = Vec::with_capacity(services.len() + IKE_SERVICES);
        let (mut ike, mut of_ike) = (Vec::new(), Packets::TO_US.and(Packets::FRAGMENTS));
        for (place, service) in services.iter().enumerate() {
            // A list of other ports than these reserves everything.
            let reserved = self.of(port).get(place).copied().unwrap_or(Packets::ALL);
            let mut packets = Packets::ALL.without(reserved).without(Packets::IKE_FRAGMENTS);
            if reserved.has(Packets::TO_US) || reserved.has(Packets::FRAGMENTS) {
                ike.extend(ike_ports(service));
            }
            if service.protocol == protocol::UDP && reserved.has(Packets::IKE_FRAGMENTS) {
                of_ike = of_ike.without(Packets::FRAGMENTS);
            }
            if packets == Packets::FRAGMENTS {
                packets = Packets::default();
            }
            if !packets.is_empty() {
                open.push(OpenService { service: *service, packets });
            }
        }
        ike.sort_unstable();
        ike.dedup();
        open.extend(ike.into_iter().map(|port| OpenService {
            service: HostService {
                protocol: protocol::UDP,
                ports: Some(PortRange { lo: port, hi: port }),
            },
            packets: of_ike,
        }));
        open
    }
}

/// Packets that policies may want, as one policy after the other adds its own.
struct Reserving<'a> {
    /// Ports with their places, and the packets of each service so far.
    lists: Vec<(usize, &'a PortInfo, Vec<Packets>)>,
    /// `None`: no port lists a service, so that policies want nothing.
    to: Option<Destinations>,
}

impl<'a> Reserving<'a> {
    fn of(ports: &'a PortInfos, routes: &Routes) -> Reserving<'a> {
        let has_services = ports.iter().any(|(_, port)| Self::is_concerned(port));
        // It reads all routes.
        let to = has_services.then(|| Destinations::of(ports, routes));
        let lists = ports.iter().map(|(at, port)| (at, port, none_of(port))).collect();
        Reserving { lists, to }
    }

    /// Returns whether a port is concerned at all.
    fn is_concerned(port: &PortInfo) -> bool {
        port.side == Side::Unprotected && !port.allow_host.is_empty()
    }

    /// Adds the packets that a policy may want. Returns whether there are others than so far.
    fn add(&mut self, policy: &Policy) -> bool {
        let Some(to) = self.to.as_ref().filter(|_| policy.only != Some(Direction::Outbound)) else {
            return false;
        };
        let reaches = Packets::default()
            .and(if to.us_meet(policy) { Packets::TO_US } else { Packets(0) })
            .and(if to.groups_meet(policy) { Packets::TO_GROUPS } else { Packets(0) });
        if reaches.is_empty() {
            return false;
        }
        let mut has_more = false;
        for (place, port, list) in &mut self.lists {
            let ingress = policy.ingress.as_ref();
            let is_there = ingress.is_none_or(|of| of.contains(&(*place as u16)));
            if !(Self::is_concerned(port) && is_there) {
                continue;
            }
            for (packets, service) in list.iter_mut().zip(&port.allow_host) {
                let before = *packets;
                *packets = before.and(wanted(policy, service, reaches));
                has_more |= *packets != before;
            }
        }
        has_more
    }

    /// Returns whether all that is reserved elsewhere is reserved here.
    fn has(&self, other: &Reserved) -> bool {
        self.lists.iter().all(|(_, port, list)| {
            let pairs = list.iter().zip(other.of(&port.name));
            pairs.into_iter().all(|(packets, others)| packets.has(*others))
        })
    }

    fn reserved(self) -> Reserved {
        let lists = self.lists.into_iter();
        Reserved(lists.map(|(_, port, list)| (port.name.clone(), list)).collect())
    }
}

fn none_of(port: &PortInfo) -> Vec<Packets> {
    vec![Packets::default(); port.allow_host.len()]
}

/// Returns whether an inbound PROTECT or DISCARD policy may want packets to us of a service,
/// besides IKE, whatever its local addresses are.
pub fn may_want(policy: &Policy, service: &HostService) -> bool {
    let is_only = |port| service.ports == Some(PortRange { lo: port, hi: port });
    policy.only != Some(Direction::Outbound)
        && !ike_ports(service).any(is_only)
        && wanted(policy, service, Packets::TO_US).has(Packets::TO_US)
}

/// Destinations of what Linux takes in by an unprotected port.
struct Destinations {
    us: Vec<AddressRange>,
    groups: Vec<AddressRange>,
}

impl Destinations {
    fn of(ports: &PortInfos, routes: &Routes) -> Destinations {
        let outside = ports.iter().map(|(_, port)| port);
        let outside = outside.filter(|port| port.side == Side::Unprotected);
        let mut us: Vec<AddressRange> =
            outside.flat_map(|port| &port.addresses).map(|own| (*own).into()).collect();
        // Whichever of these are ours.
        us.push(AddressRange::network(Address::v4(0xa9fe_0000), 16));
        us.push(AddressRange::network(Address::v6(0xfe80 << 112), 10));
        let broadcast = routes.iter().filter(|(_, target)| **target == RouteTarget::Broadcast);
        let mut groups: Vec<AddressRange> = group_ranges().into();
        let network = |prefix: &Prefix| AddressRange::network(prefix.address, prefix.length);
        groups.extend(broadcast.map(|(prefix, _)| network(prefix)));
        Destinations { us, groups }
    }

    fn us_meet(&self, policy: &Policy) -> bool {
        meet(&policy.selector.local, &self.us)
    }

    fn groups_meet(&self, policy: &Policy) -> bool {
        meet(&policy.selector.local, &self.groups)
    }
}

fn meet(a: &[AddressRange], b: &[AddressRange]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.overlaps(b)))
}

/// Packets of a service that an inbound policy may want, of those that its local addresses reach.
///
/// A rule with ports stops every later fragment that it could concern (RFC 4301 §4.4.1.1), also a
/// BYPASS; of IPv6 such a fragment says no protocol either (RFC 8200 §4.5).
fn wanted(policy: &Policy, service: &HostService, reaches: Packets) -> Packets {
    let selector = &policy.selector;
    let is_bypass = policy.action == policy::Action::Bypass;
    let protocol_meets = selector.protocol.is_none_or(|protocol| protocol == service.protocol);
    let asks_upper = match &selector.upper {
        UpperSelector::Any => false,
        UpperSelector::Ports { local, remote } => !local.is_empty() || !remote.is_empty(),
        UpperSelector::Icmp(_) | UpperSelector::Tcp { .. } => true,
    };
    let upper_meets = match &selector.upper {
        UpperSelector::Any => true,
        UpperSelector::Ports { local, .. } => {
            !asks_upper
                || protocol::has_ports(service.protocol)
                    && (local.is_empty() || local.iter().any(|range| meets_ports(range, service)))
        }
        UpperSelector::Icmp(_) => {
            matches!(service.protocol, protocol::ICMP | protocol::ICMPV6)
        }
        UpperSelector::Tcp { local, .. } => {
            service.protocol == protocol::TCP
                && (local.is_empty() || local.iter().any(|range| meets_ports(range, service)))
        }
    };
    let mut packets = Packets::default();
    if !is_bypass && protocol_meets && upper_meets {
        packets = packets.and(reaches);
    }
    let names_v6 = selector.local.iter().any(|range| range.family == Family::V6);
    let stops_fragments =
        (protocol_meets && asks_upper) || (names_v6 && (asks_upper || selector.protocol.is_some()));
    if stops_fragments || !is_bypass && protocol_meets && !asks_upper {
        packets = packets.and(Packets::FRAGMENTS);
    }
    packets
}

fn meets_ports(range: &PortRange, service: &HostService) -> bool {
    service.ports.is_none_or(|listed| listed.overlaps(range))
}

#[cfg(test)]
mod tests;
