//! The whole walk of one packet, told plainly: DESIGN §2, RFC 4301 §5 and RFC 1812 §5.
//!
//! The oracle says what may become of a frame and, where the packet leaves, exactly which packet
//! must come out. Where no text says in which order two checks are made and both fail, either
//! reason is right: it then gives several [`Course`]s. Where DESIGN or an RFC is specific it gives
//! one.
//!
//! Not covered: the rate limit of ICMP (the caller keeps below it), running out of frames,
//! exhausted sequence numbers, more than 8 IPv6 extension headers, an MTU without room for any
//! data, which of our addresses an ICMP message is sent from (any may be), how a packet is cut
//! into fragments (only that they fit and are the packet), counters.

use std::collections::HashMap;

use dataplane::{DeviceId, DropReason, HostService, PortId, RouteTarget, SetIndex, Side, Verdict};
use policy::{Action, Direction};
use wire::{Address, Family, Flow, Upper};

use crate::esp::{self, Freshness, Numbers};
use crate::headers::{self, Defects, Ip, Part};
use crate::icmp::{self, Complaint};
use crate::spd::{self, Judgement};
use crate::world::{Keys, World};

/// One thing that may rightly become of a packet.
#[derive(Clone, Debug)]
pub struct Course {
    /// What becomes of the packet itself.
    pub fate: Fate,
    /// The ICMP messages that may be made because of it, one of which must be; empty: none.
    pub messages: Vec<Vec<Course>>,
}

/// What becomes of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Dropped.
    Dropped(DropReason),
    /// Given to Linux: one of these byte strings.
    Host(Vec<Vec<u8>>),
    /// Leaves, in fragments if it is longer than `mtu`.
    Leaves(Departure),
}

/// A packet that leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Departure {
    /// The port.
    pub port: PortId,
    /// Link address of the next hop; `None`: unknown, so it waits.
    pub to: Option<[u8; 6]>,
    /// Sealed by an SA of this set.
    pub sealed: Option<SetIndex>,
    /// The IP packet, or the one inside ESP.
    pub packet: Vec<u8>,
    /// Bytes of the largest packet that leaves whole.
    pub mtu: usize,
}

impl Departure {
    /// The verdict on each packet that leaves so.
    pub fn verdict(&self) -> Verdict {
        match (self.to, self.sealed) {
            (None, _) => Verdict::Hold(dataplane::HoldKind::Neighbour),
            (Some(_), Some(set)) => Verdict::Protect(set),
            (Some(_), None) => Verdict::Forward(self.port),
        }
    }
}

/// How a packet reached the gateway's inside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    /// By this port, in clear.
    Clear(PortId),
    /// By this port, sealed by the peer in this place.
    Sealed(PortId, usize),
    /// From Linux.
    FromHost(PortId),
    /// Made by us because of a packet from this port.
    Made(PortId),
    /// The same, quoting a packet that an SA opened or was to seal.
    MadeOfSecret(PortId),
}

impl Came {
    fn is_forwarded(self) -> bool {
        matches!(self, Came::Clear(_) | Came::Sealed(..))
    }
}

/// The oracle of one gateway. It remembers which sequence numbers were accepted, nothing else.
pub struct Oracle<'w> {
    world: &'w World,
    /// By SPI.
    seen: HashMap<u32, Numbers>,
}

impl<'w> Oracle<'w> {
    /// An oracle that has seen no packet.
    pub fn new(world: &'w World) -> Oracle<'w> {
        Oracle { world, seen: HashMap::new() }
    }

    /// What may become of a frame that is received now.
    ///
    /// 1. the link header: which port, and is it for us
    /// 2. the IP header
    /// 3. ESP to us is opened, and its packet goes on as if received on that side
    pub fn judge(&mut self, device: DeviceId, frame: &[u8]) -> Vec<Course> {
        if frame.len() > self.world.room {
            return dropped(DropReason::Oversize);
        }
        let (port, bytes) = match self.link(device, frame) {
            Ok(found) => found,
            Err(course) => return course,
        };
        let packet = match headers::ip(&bytes) {
            Ok(packet) => packet,
            Err(defects) => return any_of(defects),
        };
        if port == self.world.host {
            return self.onward(&packet, Came::FromHost(port));
        }
        let unprotected = self.world.port(port).side == Side::Unprotected;
        let to_us = self.world.route(packet.flow.destination_address()) == Some(RouteTarget::Local);
        if unprotected
            && to_us
            && let Some(course) = self.esp_in_udp(&packet)
        {
            return course;
        }
        if !(packet.flow.protocol == 50 && unprotected && to_us) {
            return self.inbound_clear(&packet, port);
        }
        match self.open(&packet) {
            Ok((peer, inner)) => self.inbound_opened(&inner, port, peer),
            Err(defects) => any_of(defects),
        }
    }

    /// DESIGN §2 "Ports and sides": by which port a frame came, and the bytes of its IP packet.
    ///
    /// # Errors
    /// What becomes of a frame that holds none for us.
    pub fn link(&self, device: DeviceId, frame: &[u8]) -> Result<(PortId, Vec<u8>), Vec<Course>> {
        let untagged = self.world.port_of(device, None);
        if let Some(port) = untagged.filter(|port| self.world.is_ip_medium(*port)) {
            return Ok((port, frame.to_vec()));
        }
        let link = headers::link(frame).ok_or_else(|| dropped(DropReason::Malformed))?;
        let port = self.world.port_of(device, link.vlan).filter(|_| !link.stacked);
        let port = port.ok_or_else(|| dropped(DropReason::Vlan))?;
        let info = self.world.port(port);
        let linux = || vec![sure(Fate::Host(vec![frame.to_vec()]))];
        let protected = info.side == Side::Protected;
        let is_arp = link.ethertype == 0x0806;
        let is_ip = link.ethertype == 0x0800 || link.ethertype == 0x86dd;
        if link.destination != info.mac {
            let is_group = link.destination[0] & 1 == 1;
            if protected || !is_group || is_arp {
                return Err(linux());
            }
            let flow = headers::group_flow(&link.payload);
            let listed = flow.is_some_and(|flow| {
                let source = flow.source_address();
                // Nobody outside speaks from inside; from no address one asks for one.
                let may_speak = source.value == 0 || !self.is_inside(source);
                may_speak && is_listed(&info.allow_host, &flow)
            });
            return Err(if listed { linux() } else { dropped(DropReason::LinkMulticast) });
        }
        match () {
            _ if is_ip => Ok((port, link.payload)),
            _ if is_arp || protected => Err(linux()),
            _ => Err(dropped(DropReason::NotIp)),
        }
    }

    /// RFC 4303 §3.4, RFC 4301 §5.2 steps 1 to 3: the peer's place, and the packet inside.
    fn open(&mut self, outer: &Ip) -> Result<(usize, Ip), Defects> {
        let only = |reason| Defects::from([reason]);
        if outer.part != Part::Whole {
            return Err(only(DropReason::EspFragment));
        }
        let bytes = &outer.bytes[outer.upper..];
        let (spi, low) = esp::header(bytes).ok_or_else(|| only(DropReason::Malformed))?;
        let (peer, keys) = self.inbound_sa(spi).ok_or_else(|| only(DropReason::UnknownSpi))?;
        let local = Address::from(self.world.peers[peer].tunnel.local);
        if outer.flow.destination_address() != local {
            return Err(only(DropReason::UnknownSpi));
        }
        // SPI, sequence number, IV, pad length and next header, ICV; a text of whole words.
        if bytes.len() < 8 + 8 + 2 + 16 || !bytes.len().is_multiple_of(4) {
            return Err(only(DropReason::Malformed));
        }
        let numbers = self.seen.entry(spi).or_default();
        let number = numbers.infer(low, keys.window, keys.numbers);
        match numbers.judge(number, keys.window) {
            Freshness::TooOld => return Err(only(DropReason::TooOld)),
            Freshness::Replayed => return Err(only(DropReason::Replayed)),
            Freshness::Fresh => {}
        }
        let text = esp::open(keys, number, bytes).ok_or_else(|| only(DropReason::Integrity))?;
        numbers.accept(number);
        let inner = unwrap(&text)?;
        Ok((peer, congestion(inner, outer.traffic_class)?))
    }

    /// RFC 3948 §2: to our port 4500 come keepalives, IKE behind four zero bytes, and ESP. No SA of
    /// these worlds is in UDP. `None`: it is IKE, or too short to be anything.
    fn esp_in_udp(&self, packet: &Ip) -> Option<Vec<Course>> {
        let to_port = matches!(packet.flow.upper, Upper::Ports { destination: 4500, .. });
        if packet.flow.protocol != 17 || !to_port {
            return None;
        }
        let datagram = &packet.bytes[packet.upper..];
        let length = usize::from(u16::from_be_bytes([datagram[4], datagram[5]]));
        let payload = datagram.get(8..length).unwrap_or_default();
        if payload == [0xff] {
            return Some(dropped(DropReason::Keepalive));
        }
        let spi = u32::from_be_bytes(*payload.first_chunk()?);
        if spi == 0 {
            return None;
        }
        if packet.part != Part::Whole {
            return Some(dropped(DropReason::EspFragment));
        }
        let local = |peer: usize| Address::from(self.world.peers[peer].tunnel.local);
        Some(match self.inbound_sa(spi) {
            _ if payload.len() < 8 => dropped(DropReason::Malformed),
            Some((peer, _)) if packet.flow.destination_address() == local(peer) => {
                dropped(DropReason::Encapsulation)
            }
            _ => dropped(DropReason::UnknownSpi),
        })
    }

    fn inbound_sa(&self, spi: u32) -> Option<(usize, &'w Keys)> {
        let with_place = self.world.peers.iter().enumerate();
        let mut all = with_place.flat_map(|(i, peer)| peer.inbound.iter().map(move |k| (i, k)));
        all.find(|(_, keys)| keys.spi == spi)
    }

    /// RFC 4301 §5.2 step 4: "match the packet against the inbound selectors identified by the
    /// SAD entry". An ICMP error is judged by the packet it quotes (§6.2).
    fn inbound_opened(&self, inner: &Ip, port: PortId, peer: usize) -> Vec<Course> {
        let mut flow = inner.flow;
        if icmp::is_from_far(&flow) {
            let quoted = headers::quoted_flow(&inner.bytes[inner.upper + 8..]);
            // About a packet of who is told, and no error itself; from no router on our side.
            let answers_it = |quoted: &Flow| {
                quoted.family == flow.family
                    && quoted.source == flow.destination
                    && !icmp::is_error(quoted)
                    && !self.is_inside(flow.source_address())
            };
            match quoted.filter(answers_it) {
                Some(quoted) => flow = quoted.reversed(),
                None => return dropped(DropReason::SelectorMismatch),
            }
        }
        match spd::judge(&self.world.policies, Direction::Inbound, &flow) {
            Judgement::Entry(_, Action::Protect(set))
                if self.world.set_place(set).0 as usize == peer =>
            {
                self.onward(inner, Came::Sealed(port, peer))
            }
            Judgement::Opaque(_) => dropped(DropReason::FragmentPorts),
            Judgement::Entry(..) | Judgement::Nothing => dropped(DropReason::SelectorMismatch),
        }
    }

    /// RFC 4301 §5.2: what enters unprotected must match BYPASS. What enters protected is free.
    fn inbound_clear(&self, packet: &Ip, port: PortId) -> Vec<Course> {
        if self.world.port(port).side == Side::Protected {
            return self.onward(packet, Came::Clear(port));
        }
        // Nobody out there sends from our own address (RFC 1812 §5.3.8) nor from one that lives
        // inside, to whatever service.
        if self.is_inside(packet.flow.source_address()) {
            return dropped(DropReason::BadAddress);
        }
        if self.is_carved_out(packet, port) {
            return vec![sure(Fate::Host(vec![packet.bytes.clone()]))];
        }
        match spd::judge(&self.world.policies, Direction::Inbound, &packet.flow) {
            Judgement::Entry(_, Action::Bypass) => self.onward(packet, Came::Clear(port)),
            Judgement::Entry(_, Action::Protect(_)) => dropped(DropReason::Unprotected),
            Judgement::Entry(_, Action::Discard) => dropped(DropReason::PolicyDiscard),
            Judgement::Opaque(_) => dropped(DropReason::FragmentPorts),
            Judgement::Nothing => dropped(DropReason::NoMatch),
        }
    }

    /// DESIGN §2 "To the box itself": what is listed, neighbour discovery, IKE with the zero
    /// marker on 4500 and NAT keepalives (RFC 3948 §2.2, §2.3).
    fn is_carved_out(&self, packet: &Ip, port: PortId) -> bool {
        let destination = packet.flow.destination_address();
        let unprotected = self.world.ports.iter().filter(|port| port.side == Side::Unprotected);
        let outside = unprotected.flat_map(|port| &port.addresses).any(|own| *own == destination);
        let on_link =
            is_link_local(destination) && self.world.route(destination) == Some(RouteTarget::Local);
        let listed = is_listed(&self.world.port(port).allow_host, &packet.flow);
        if !(outside || on_link) || !listed {
            return false;
        }
        if packet.flow.protocol == 17
            && let Upper::Ports { destination: 4500, .. } = packet.flow.upper
        {
            let payload = &packet.bytes[packet.upper + 8..];
            return payload.get(..4) == Some(&[0; 4]);
        }
        true
    }

    /// Ours, or behind a protected port.
    fn is_inside(&self, address: Address) -> bool {
        match self.world.route(address) {
            Some(RouteTarget::Local | RouteTarget::Broadcast) => true,
            Some(RouteTarget::Via(hop)) => {
                let port = self.world.next_hops[hop.0 as usize].port;
                self.world.port(port).side == Side::Protected
            }
            Some(RouteTarget::Blackhole | RouteTarget::Elsewhere) | None => false,
        }
    }

    fn is_own_source(&self, packet: &Ip) -> bool {
        let source = self.world.route(packet.flow.source_address());
        matches!(source, Some(RouteTarget::Local | RouteTarget::Broadcast))
    }

    /// Route, then the outbound SPD for whatever leaves by an unprotected port.
    fn onward(&self, packet: &Ip, came: Came) -> Vec<Course> {
        if came.is_forwarded() && self.is_own_source(packet) {
            return dropped(DropReason::BadAddress);
        }
        let destination = packet.flow.destination_address();
        let target = self.world.route(destination);
        if target == Some(RouteTarget::Local) {
            return vec![sure(Fate::Host(vec![packet.bytes.clone()]))];
        }
        let mut reasons = Defects::new();
        if is_link_local(packet.flow.source_address()) || is_link_local(destination) {
            reasons.insert(DropReason::BadAddress);
        }
        let hop = match target {
            Some(RouteTarget::Via(hop)) => Some(hop),
            Some(RouteTarget::Blackhole) => {
                reasons.insert(DropReason::Blackhole);
                None
            }
            Some(RouteTarget::Broadcast | RouteTarget::Local) => {
                reasons.insert(DropReason::BadAddress);
                None
            }
            Some(RouteTarget::Elsewhere) | None => {
                reasons.insert(DropReason::NoRoute);
                None
            }
        };
        let Some(hop) = hop.filter(|_| reasons.is_empty()) else { return any_of(reasons) };
        let (port, to) = self.next_hop(hop.0 as usize, destination);
        if self.world.port(port).side == Side::Protected {
            return self.leave(packet, came, port, to, None);
        }
        match spd::judge(&self.world.policies, Direction::Outbound, &packet.flow) {
            // What quotes a packet that an SA protects does not leave in clear.
            Judgement::Entry(_, Action::Bypass) if matches!(came, Came::MadeOfSecret(_)) => {
                dropped(DropReason::IcmpInClear)
            }
            Judgement::Entry(_, Action::Bypass) => self.leave(packet, came, port, to, None),
            Judgement::Entry(_, Action::Discard) => dropped(DropReason::PolicyDiscard),
            Judgement::Entry(_, Action::Protect(set)) => {
                self.protect(packet, came, self.world.set_place(set))
            }
            Judgement::Opaque(_) => dropped(DropReason::FragmentPorts),
            Judgement::Nothing => dropped(DropReason::NoMatch),
        }
    }

    /// RFC 4301 §5.1 step 3: an SA and a way to the peer.
    fn protect(&self, packet: &Ip, came: Came, set: SetIndex) -> Vec<Course> {
        let peer = &self.world.peers[set.0 as usize];
        let remote = Address::from(peer.tunnel.remote);
        let mut lacking = Defects::new();
        if peer.outbound.is_none() {
            lacking.insert(DropReason::NoSa);
        }
        let way = match self.world.route(remote) {
            Some(RouteTarget::Via(hop)) => Some(self.next_hop(hop.0 as usize, remote)),
            _ => {
                lacking.insert(DropReason::NoRoute);
                None
            }
        };
        match way.filter(|_| lacking.is_empty()) {
            Some((port, to)) => self.leave(packet, came, port, to, Some(set)),
            None => any_of(lacking),
        }
    }

    fn next_hop(&self, hop: usize, destination: Address) -> (PortId, Option<[u8; 6]>) {
        let hop = self.world.next_hops[hop];
        let to = match hop.gateway {
            _ if self.world.is_ip_medium(hop.port) => Some([0; 6]),
            Some(gateway) => self.world.link_address(hop.port, gateway),
            None => self.world.link_address(hop.port, destination),
        };
        (hop.port, to)
    }

    /// Bytes of the largest packet that goes through a tunnel whole: the largest that, sealed, is
    /// no larger than the port's MTU.
    fn tunnel_mtu(&self, set: SetIndex) -> Option<usize> {
        let peer = &self.world.peers[set.0 as usize];
        let remote = Address::from(peer.tunnel.remote);
        let Some(RouteTarget::Via(hop)) = self.world.route(remote) else { return None };
        peer.outbound.as_ref()?;
        let (port, _) = self.next_hop(hop.0 as usize, remote);
        let mtu = self.world.port(port).mtu as usize;
        let is_v4 = remote.family == Family::V4;
        (0..=mtu).rev().find(|inner| esp::sealed_length(*inner, is_v4) <= mtu)
    }

    /// Hop limit, then size (RFC 1812 §5.2.1.2), then the MSS of a SYN.
    fn leave(
        &self,
        packet: &Ip,
        came: Came,
        port: PortId,
        to: Option<[u8; 6]>,
        sealed: Option<SetIndex>,
    ) -> Vec<Course> {
        let mtu = match sealed {
            Some(set) => self.tunnel_mtu(set).unwrap_or(0),
            None => self.world.port(port).mtu as usize,
        };
        if came.is_forwarded() && packet.hop_limit == 1 {
            let complaint = Complaint::TimeExceeded;
            return self.complain(packet, came, DropReason::HopLimit, complaint, sealed);
        }
        if packet.bytes.len() > mtu && packet.dont_fragment {
            let complaint = Complaint::TooBig(mtu as u32);
            return self.complain(packet, came, DropReason::TooBig, complaint, sealed);
        }
        let mut bytes = packet.bytes.clone();
        if came.is_forwarded() {
            match packet.flow.family {
                Family::V4 => {
                    bytes[8] -= 1;
                    rewrite_checksum(&mut bytes);
                }
                Family::V6 => bytes[7] -= 1,
            }
        }
        let mut tunnels: Vec<SetIndex> = sealed.into_iter().collect();
        if let Came::Sealed(_, peer) = came {
            tunnels.push(SetIndex(peer as u32));
        }
        for set in tunnels {
            if self.world.peers[set.0 as usize].mss_clamp {
                clamp_mss(&mut bytes, packet, self.tunnel_mtu(set).unwrap_or(0));
            }
        }
        vec![sure(Fate::Leaves(Departure { port, to, sealed, packet: bytes, mtu }))]
    }

    /// Drops a packet and tells its sender, from any of our addresses; what we say takes the
    /// outbound walk like any packet of ours.
    fn complain(
        &self,
        packet: &Ip,
        came: Came,
        reason: DropReason,
        complaint: Complaint,
        sealed: Option<SetIndex>,
    ) -> Vec<Course> {
        let protected = sealed.is_some() || matches!(came, Came::Sealed(..));
        let ingress = match came {
            Came::Clear(port) | Came::Sealed(port, _) => port,
            Came::FromHost(port) | Came::Made(port) | Came::MadeOfSecret(port) => port,
        };
        let own = self.world.ports.iter().flat_map(|port| &port.addresses);
        let messages = own
            .filter(|address| address.family == packet.flow.family)
            .filter(|_| icmp::may_complain(packet))
            .map(|from| {
                let message = icmp::message(complaint, *from, packet);
                let message = headers::ip(&message).expect("a message without defects");
                let came =
                    if protected { Came::MadeOfSecret(ingress) } else { Came::Made(ingress) };
                self.onward(&message, came)
            })
            .collect();
        vec![Course { fate: Fate::Dropped(reason), messages }]
    }
}

fn sure(fate: Fate) -> Course {
    Course { fate, messages: vec![] }
}

fn dropped(reason: DropReason) -> Vec<Course> {
    vec![sure(Fate::Dropped(reason))]
}

fn any_of(reasons: Defects) -> Vec<Course> {
    reasons.into_iter().flat_map(dropped).collect()
}

/// RFC 4303 §2.4 to §2.7: the packet in a text.
fn unwrap(text: &esp::Text) -> Result<Ip, Defects> {
    let mut defects = Defects::new();
    let pad_length = usize::from(text.pad_length);
    let Some(end) = text.payload.len().checked_sub(pad_length) else {
        return Err(Defects::from([DropReason::BadPadding]));
    };
    let expected: Vec<u8> = (1..=pad_length).map(|n| n as u8).collect();
    if text.payload[end..] != expected[..] {
        defects.insert(DropReason::BadPadding);
    }
    let family = match text.next_header {
        4 => Some(Family::V4),
        41 => Some(Family::V6),
        59 => {
            defects.insert(DropReason::Dummy);
            None
        }
        _ => {
            defects.insert(DropReason::BadNextHeader);
            None
        }
    };
    let Some(family) = family.filter(|_| defects.is_empty()) else { return Err(defects) };
    let inner = headers::ip(&text.payload[..end])?;
    if inner.flow.family != family {
        return Err(Defects::from([DropReason::Malformed]));
    }
    Ok(inner)
}

/// RFC 6040 §4.2, Figure 4, row by row: Not-ECT 0, ECT(1) 1, ECT(0) 2, CE 3.
fn congestion(mut inner: Ip, outer_class: u8) -> Result<Ip, Defects> {
    let ecn = match (inner.traffic_class & 3, outer_class & 3) {
        (0, 3) => return Err(Defects::from([DropReason::Ecn])),
        (0, _) => 0,
        (1 | 2, 3) => 3,
        (2, 1) => 1,
        (inner, _) => inner,
    };
    inner.traffic_class = inner.traffic_class & 0b1111_1100 | ecn;
    let class = inner.traffic_class;
    match inner.flow.family {
        Family::V4 => {
            inner.bytes[1] = class;
            rewrite_checksum(&mut inner.bytes);
        }
        Family::V6 => {
            inner.bytes[0] = 0x60 | class >> 4;
            inner.bytes[1] = inner.bytes[1] & 0x0f | class << 4;
        }
    }
    Ok(inner)
}

/// Computes an IPv4 header's checksum anew. The header was right before.
fn rewrite_checksum(bytes: &mut [u8]) {
    let header_bytes = usize::from(bytes[0] & 15) * 4;
    bytes[10..12].fill(0);
    let checksum = icmp::internet_checksum(&bytes[..header_bytes]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// RFC 9293 §3.7.1: no segment larger than the tunnel carries. The TCP checksum is computed anew
/// if it was right, and stays as wrong as it was if not.
fn clamp_mss(bytes: &mut [u8], packet: &Ip, mtu: usize) {
    let tcp = packet.upper;
    let is_syn = packet.flow.protocol == 6
        && packet.part != Part::Later
        && bytes.get(tcp + 13).is_some_and(|flags| flags & 2 != 0);
    if !is_syn {
        return;
    }
    let end = tcp + usize::from(bytes[tcp + 12] >> 4) * 4;
    if end > bytes.len() || end < tcp + 20 {
        return;
    }
    let headers = if packet.flow.family == Family::V4 { 40 } else { 60 };
    let largest = mtu.saturating_sub(headers).min(65_535) as u16;
    let mut at = tcp + 20;
    while at + 1 < end && bytes[at] != 0 {
        if bytes[at] == 1 {
            at += 1;
            continue;
        }
        if bytes[at] == 2 && bytes[at + 1] == 4 && at + 4 <= end {
            let old = u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]);
            if old > largest {
                let before = sum_of(&bytes[tcp..]);
                bytes[at + 2..at + 4].copy_from_slice(&largest.to_be_bytes());
                let after = sum_of(&bytes[tcp..]);
                // What the segment lost, its checksum gains.
                let field = u32::from(u16::from_be_bytes([bytes[tcp + 16], bytes[tcp + 17]]));
                let value = (field + before + 0xffff - after) % 0xffff;
                bytes[tcp + 16..tcp + 18].copy_from_slice(&(value as u16).to_be_bytes());
            }
            return;
        }
        let length = usize::from(bytes[at + 1]);
        if length < 2 {
            return;
        }
        at += length;
    }
}

/// Ones'-complement sum, 0 … 0xfffe.
fn sum_of(bytes: &[u8]) -> u32 {
    u32::from(!icmp::internet_checksum(bytes)) % 0xffff
}

/// DESIGN §2: neighbour discovery always, and what the operator listed; a later fragment of a
/// listed service with ports too.
fn is_listed(services: &[HostService], flow: &Flow) -> bool {
    if let (58, Upper::Icmp { kind: 133..=137, .. }) = (flow.protocol, flow.upper) {
        return true;
    }
    services.iter().any(|service| {
        let port_fits = match (service.ports, flow.upper) {
            (None, _) | (Some(_), Upper::Fragment) => true,
            (Some(range), Upper::Ports { destination, .. }) => {
                range.lo <= destination && destination <= range.hi
            }
            (Some(_), Upper::Icmp { .. } | Upper::None) => false,
        };
        service.protocol == flow.protocol && port_fits
    })
}

/// RFC 3927 §7, RFC 4291 §2.5.6.
fn is_link_local(address: Address) -> bool {
    match std::net::IpAddr::from(address) {
        std::net::IpAddr::V4(address) => address.is_link_local(),
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
