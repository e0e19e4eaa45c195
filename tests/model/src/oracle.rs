//! The whole walk of one packet, told plainly: DESIGN §2, RFC 4301 §5 and RFC 1812 §5.
//!
//! The oracle says what may become of a frame and, where the packet leaves, exactly which packet
//! must come out. Where no text says in which order two checks are made and both fail, either
//! reason is right: it then gives several [`Course`]s. Where DESIGN or an RFC is specific it gives
//! one.
//!
//! Not covered: the rate limit of ICMP (the caller keeps below it), running out of frames, the last
//! sequence number (an SA has plenty or none), more than 8 IPv6 extension headers, an MTU without
//! room for any data, which of our addresses an ICMP message is sent from (any may be), how a
//! packet is cut into fragments (only that they fit and are the packet), which SA of a set seals
//! (any that can), keepalives of ours, counters.

mod onward;

use std::collections::{HashMap, HashSet};

use dataplane::{
    AddressUpdate, DropReason, HostService, L4Checksum, NetdevId, PortId, RouteTarget, SetIndex,
    Side, Verdict, largest_mtu,
};
use ipsec::{Mode, Spi};
use policy::{Action, Direction, GroupMode, GroupSide};
use wire::{Address, Family, Flow, HEADROOM, Upper};

use crate::carried::{self, Bearing, Carrier};
use crate::checksum;
use crate::esp::{self, Freshness, Numbers};
use crate::fragments::{Answer, Fragments, Way};
use crate::headers::{self, Defects, Ip, Part};
use crate::icmp;
use crate::parts::{self, Parts};
use crate::spd::{self, Judgement};
use crate::world::{Keys, World, set_id};

/// One thing that may rightly become of a packet.
#[derive(Clone, Debug)]
pub struct Course {
    /// Fate of the packet itself.
    pub fate: Fate,
    /// The ICMP messages that may be made because of it, one of which must be; empty: none.
    pub messages: Vec<Vec<Course>>,
    /// The peer that has shown itself at another place by this packet.
    pub moved: Option<AddressUpdate>,
    /// Fragments that waited for this one and follow it, each with its courses.
    pub followers: Vec<Vec<Course>>,
}

/// Fate of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Dropped.
    Dropped(DropReason),
    /// Waits for the first fragment of its datagram.
    Waits,
    /// Given to Linux: one of these byte strings.
    Host(Vec<Vec<u8>>),
    /// Leaves, in fragments if it is longer than `mtu`.
    Leaves(Departure),
    /// Cut into fragments, each of which is dropped.
    Torn(DropReason),
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

/// Way by which a packet reached the gateway's inside.
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
    /// Made by us likewise, quoting a packet that an SA opened or was to seal.
    MadeOfSecret(PortId),
}

impl Came {
    fn is_forwarded(self) -> bool {
        matches!(self, Came::Clear(_) | Came::Sealed(..))
    }
}

/// A first fragment to us from outside.
struct FirstFragment {
    /// The port, and what all fragments of its datagram have in common.
    datagram: (PortId, Address, Address, u32),
    at_ns: u64,
    is_esp_in_udp: bool,
}

/// Certainty that a gateway remembers a first fragment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Certainty {
    /// The gateway must remember it.
    Sure,
    /// So many others came since that it need not.
    Perhaps,
}

/// The oracle of one gateway. It remembers which sequence numbers were accepted and which fragments
/// came, nothing else.
pub struct Oracle<'w> {
    world: &'w World,
    /// By SPI.
    seen: HashMap<u32, Numbers>,
    /// All of them, in order.
    first_fragments: Vec<FirstFragment>,
    fragments: Fragments,
    parts: Parts,
    /// The peer that moved by the packet that is being judged.
    moved: Option<AddressUpdate>,
}

impl<'w> Oracle<'w> {
    /// An oracle that has seen no packet.
    pub fn new(world: &'w World) -> Oracle<'w> {
        let (seen, fragments, parts) = (HashMap::new(), Fragments::default(), Parts::default());
        Oracle { world, seen, first_fragments: vec![], fragments, parts, moved: None }
    }

    /// Returns the courses that a frame may take that is received at this time.
    ///
    /// 1. the link header: which port, and is it for us
    /// 2. the IP header
    /// 3. ESP to us is opened, and its packet goes on as if received on that side
    /// 4. a later fragment is judged as its first one shows the datagram to be
    pub fn judge(&mut self, now_ns: u64, netdev: NetdevId, frame: &[u8]) -> Vec<Course> {
        self.moved = None;
        let courses = self.courses(now_ns, netdev, frame);
        courses.into_iter().map(|course| Course { moved: self.moved, ..course }).collect()
    }

    fn courses(&mut self, now_ns: u64, netdev: NetdevId, frame: &[u8]) -> Vec<Course> {
        if frame.len() > self.world.room {
            return dropped(DropReason::Oversize);
        }
        let (port, bytes) = match self.link(netdev, frame) {
            Ok(found) => found,
            Err(course) => return course,
        };
        let mut packet = match headers::ip(&bytes) {
            Ok(packet) => packet,
            Err(defects) => return any_of(defects),
        };
        if port == self.world.host {
            return self.followed(now_ns, &packet, Came::FromHost(port), 0);
        }
        let unprotected = self.world.port(port).side == Side::Unprotected;
        if !unprotected && self.world.port(port).l4_checksum == L4Checksum::Complete {
            checksum::complete_unfinished(&mut packet);
        }
        let to_us = self.world.route(packet.flow.destination_address()) == Some(RouteTarget::Local);
        let came = Came::Clear(port);
        if !(unprotected && to_us) {
            return self.followed(now_ns, &packet, came, 0);
        }
        if packet.part == Part::Whole || packet.data.1 == 0 || !self.is_of_peer(&packet) {
            return self.borne(now_ns, &packet, port);
        }
        match self.parts.take_in(now_ns, &packet, port) {
            parts::Answer::Waits => vec![sure(Fate::Waits)],
            parts::Answer::Duplicate => dropped(DropReason::FragmentDuplicate),
            parts::Answer::Refused(reason) => dropped(reason),
            parts::Answer::RefusedUnknown(reason) => {
                let courses = self.judged(&packet, came);
                match is_for_linux(&courses) {
                    true => self.followed(now_ns, &packet, came, 0),
                    false => dropped(reason),
                }
            }
            parts::Answer::Whole(bytes) => match headers::ip(&bytes) {
                Ok(whole) => {
                    // Linux gets a larger one in fragments, which IPv6 makes at its source only.
                    let room = largest_mtu(HEADROOM + self.world.room) as usize;
                    let is_too_big = |it: &Vec<u8>| it[0] >> 4 == 6 && it.len() > room;
                    let courses = self.borne(now_ns, &whole, port).into_iter();
                    let course = |course: Course| match &course.fate {
                        Fate::Host(packets) if packets.iter().any(is_too_big) => {
                            dropped(DropReason::TooBig)
                        }
                        _ => vec![course],
                    };
                    courses.flat_map(course).collect()
                }
                Err(defects) => any_of(defects),
            },
            parts::Answer::Other(waited) => {
                let courses = self.borne(now_ns, &packet, port);
                let later: Vec<_> =
                    waited.iter().map(|later| self.followed(now_ns, later, came, 0)).collect();
                let behind = |course: Course| {
                    let followers = [course.followers.clone(), later.clone()].concat();
                    Course { followers, ..course }
                };
                courses.into_iter().map(behind).collect()
            }
        }
    }

    /// Returns whether a fragment comes from a peer, and as its ESP does: alone, or in UDP.
    fn is_of_peer(&self, packet: &Ip) -> bool {
        let is_in_udp = packet.flow.protocol == 17;
        (is_in_udp || packet.flow.protocol == 50)
            && self.world.peers.iter().any(|peer| {
                let source = Address::from(peer.carriage.tunnel.remote);
                let is_there = packet.flow.source_address() == source && !peer.inbound.is_empty();
                is_there && peer.carriage.udp.is_some() == is_in_udp
            })
    }

    /// A packet from outside to us, by what it bears.
    fn borne(&mut self, now_ns: u64, packet: &Ip, port: PortId) -> Vec<Course> {
        let came = Came::Clear(port);
        let bearing = carried::bearing(packet);
        match self.dropped_before(now_ns, packet, port, bearing) {
            Some(Certainty::Sure) => return dropped(DropReason::EspFragment),
            Some(Certainty::Perhaps) => {
                let other = self.followed(now_ns, packet, came, 0);
                return [dropped(DropReason::EspFragment), other].concat();
            }
            None => {}
        }
        match bearing {
            Bearing::Clear => self.followed(now_ns, packet, came, 0),
            Bearing::Keepalive => dropped(DropReason::Keepalive),
            Bearing::Esp(bytes, carrier) => match self.open(packet, bytes, carrier) {
                Ok((peer, inner, worker)) => {
                    self.followed(now_ns, &inner, Came::Sealed(port, peer), worker)
                }
                Err(defects) => any_of(defects),
            },
        }
    }

    /// RFC 4301 §7 approach 3: a later fragment is judged by the upper layer of its first one.
    /// Where policies want to see that and it has not come, the fragment waits for it. `worker`:
    /// the one that opened the packet.
    fn followed(&mut self, now_ns: u64, packet: &Ip, came: Came, worker: u32) -> Vec<Course> {
        if packet.part == Part::Whole {
            return self.judged(packet, came);
        }
        let way = match came {
            Came::Sealed(port, peer) => Way { port, opened: Some((peer, worker)) },
            Came::Clear(port) | Came::FromHost(port) => Way { port, opened: None },
            Came::Made(port) | Came::MadeOfSecret(port) => Way { port, opened: None },
        };
        match self.fragments.take_in(now_ns, packet, way) {
            Answer::Refused(reason) => {
                // Linux puts together itself what is for this machine and needs no policy.
                let to = self.world.route(packet.flow.destination_address());
                let is_for_us = to == Some(RouteTarget::Local) && matches!(came, Came::Clear(_));
                let courses = self.judged(packet, came);
                if is_for_us && is_for_linux(&courses) { courses } else { dropped(reason) }
            }
            Answer::Duplicate => dropped(DropReason::FragmentDuplicate),
            Answer::Known(later) => self.judged(&later, came),
            Answer::First(waited) => {
                let followers: Vec<_> =
                    waited.iter().map(|later| self.judged(later, came)).collect();
                let courses = self.judged(packet, came).into_iter();
                courses.map(|course| Course { followers: followers.clone(), ..course }).collect()
            }
            Answer::Unknown => {
                let courses = self.judged(packet, came);
                let wants_first = Fate::Dropped(DropReason::FragmentPorts);
                if !courses.iter().any(|course| course.fate == wants_first) {
                    return courses;
                }
                self.fragments.hold(now_ns, packet, way);
                vec![sure(Fate::Waits)]
            }
        }
    }

    fn judged(&self, packet: &Ip, came: Came) -> Vec<Course> {
        match came {
            Came::Sealed(port, peer) => self.inbound_opened(packet, port, peer),
            Came::Clear(port) => self.inbound_clear(packet, port),
            Came::FromHost(_) | Came::Made(_) | Came::MadeOfSecret(_) => self.onward(packet, came),
        }
    }

    /// Returns, as a certainty, whether a packet is a later fragment of a datagram whose first one
    /// showed ESP in UDP less than 120 s ago. A gateway remembers 16 such datagrams and may
    /// remember more. The protocol tells datagrams apart in IPv4 only (RFC 791 §2.3, RFC 8200
    /// §4.5).
    fn dropped_before(
        &mut self,
        now_ns: u64,
        packet: &Ip,
        port: PortId,
        bearing: Bearing<'_>,
    ) -> Option<Certainty> {
        let flow = &packet.flow;
        if flow.family == Family::V4 && flow.protocol != 17 {
            return None;
        }
        let (source, destination) = (flow.source_address(), flow.destination_address());
        let datagram = (port, source, destination, packet.identification);
        match packet.part {
            Part::Whole => return None,
            Part::First => {
                let is_esp_in_udp = matches!(bearing, Bearing::Esp(_, Carrier::Udp(_)));
                let first = FirstFragment { datagram, at_ns: now_ns, is_esp_in_udp };
                self.first_fragments.push(first);
                return None;
            }
            Part::Later => {}
        }
        let last = self.first_fragments.iter().rposition(|first| first.datagram == datagram)?;
        let first = &self.first_fragments[last];
        if !first.is_esp_in_udp || now_ns - first.at_ns >= 120_000_000_000 {
            return None;
        }
        let since = self.first_fragments[last + 1..].iter().filter(|first| first.is_esp_in_udp);
        let others: HashSet<_> = since.map(|first| first.datagram).collect();
        Some(if others.len() < 16 { Certainty::Sure } else { Certainty::Perhaps })
    }

    /// DESIGN §2 "Ports and sides": by which port a frame came, and the bytes of its IP packet.
    ///
    /// # Errors
    /// The courses of a frame that holds none for us.
    pub fn link(&self, netdev: NetdevId, frame: &[u8]) -> Result<(PortId, Vec<u8>), Vec<Course>> {
        let untagged = self.world.port_of(netdev, None);
        if let Some(port) = untagged.filter(|port| self.world.is_ip_medium(*port)) {
            return Ok((port, frame.to_vec()));
        }
        let link = headers::link(frame).ok_or_else(|| dropped(DropReason::Malformed))?;
        let port = self.world.port_of(netdev, link.vlan).filter(|_| !link.stacked);
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
            let flow = headers::group(&link.payload).map(|packet| packet.flow);
            let listed = flow.is_some_and(|flow| {
                let source = flow.source_address();
                // Nobody outside speaks from inside; from no address one asks for one.
                let may_speak = source.value == 0 || !self.is_inside(source);
                may_speak && is_listed(&info.allow_host, &flow)
            });
            return Err(match flow.filter(|_| listed) {
                None => dropped(DropReason::LinkMulticast),
                Some(flow) => self.wanted_group(&flow, port).map_or_else(linux, dropped),
            });
        }
        match () {
            _ if is_ip => Ok((port, link.payload)),
            _ if is_arp || protected => Err(linux()),
            _ => Err(dropped(DropReason::NotIp)),
        }
    }

    /// RFC 4303 §3.4, RFC 4301 §5.2 steps 1 to 3: the peer's place, the packet inside, and the
    /// worker that the SA belongs to.
    fn open(
        &mut self,
        outer: &Ip,
        bytes: &[u8],
        carrier: Carrier,
    ) -> Result<(usize, Ip, u32), Defects> {
        let only = |reason| Defects::from([reason]);
        if outer.part != Part::Whole {
            return Err(only(DropReason::EspFragment));
        }
        let (spi, low) = esp::header(bytes).ok_or_else(|| only(DropReason::Malformed))?;
        let (peer, keys) = self.inbound_sa(spi).ok_or_else(|| only(DropReason::UnknownSpi))?;
        let carriage = self.world.peers[peer].carriage;
        if outer.flow.destination_address() != Address::from(carriage.tunnel.local) {
            return Err(only(DropReason::UnknownSpi));
        }
        let worker = self.worker_of(spi);
        let mut defects = Defects::new();
        if carriage.udp.is_some() != matches!(carrier, Carrier::Udp(_)) {
            defects.insert(DropReason::Encapsulation);
        }
        // SPI, sequence number, IV, pad length and next header, ICV; a text of whole blocks.
        let esp::Layout { iv, icv, block } = esp::layout(keys.suite);
        let text = bytes.len().checked_sub(8 + iv + icv);
        if text.is_none_or(|text| text < 2 || !text.is_multiple_of(block)) {
            defects.insert(DropReason::Malformed);
        }
        if !defects.is_empty() {
            return Err(defects);
        }
        let numbers = self.seen.entry(spi).or_default();
        let number = numbers.infer(low, keys.window, keys.numbers);
        match numbers.judge(number, keys.window) {
            Freshness::TooOld => return Err(only(DropReason::TooOld)),
            Freshness::Replayed => return Err(only(DropReason::Replayed)),
            Freshness::Fresh => {}
        }
        let text = esp::open(keys, number, bytes).ok_or_else(|| only(DropReason::Integrity))?;
        let is_newest = number > numbers.highest();
        numbers.accept(number);
        if is_newest {
            self.moved = self.elsewhere((peer, spi), outer, carrier);
        }
        match carriage.mode {
            Mode::Tunnel => Ok((peer, carried::whole(&text, outer.traffic_class)?, worker)),
            Mode::Transport => Ok((peer, carried::restored(outer, &text, carrier)?, worker)),
        }
    }

    /// RFC 7296 §2.23: an authentic packet says where a peer behind a NAT is now; a copy that
    /// somebody sends from elsewhere says nothing, so it must be the newest.
    fn elsewhere(
        &self,
        (peer, spi): (usize, u32),
        outer: &Ip,
        carrier: Carrier,
    ) -> Option<AddressUpdate> {
        let (ports, Carrier::Udp(port)) = (self.world.peers[peer].carriage.udp?, carrier) else {
            return None;
        };
        let address = outer.flow.source_address();
        let known = Address::from(self.world.peers[peer].tunnel().remote);
        let is_elsewhere = (address, port) != (known, ports.remote);
        let may_move = self.world.peers[peer].may_move;
        let spi = Spi::new(spi)?;
        let set = set_id(peer);
        (is_elsewhere && may_move).then_some(AddressUpdate { set, spi, address, port })
    }

    /// The worker that opens with an SA: by its place among all.
    fn worker_of(&self, spi: u32) -> u32 {
        let mut all = self.world.peers.iter().flat_map(|peer| &peer.inbound);
        let place = all.position(|keys| keys.spi == spi).unwrap_or_default();
        place as u32 % self.world.workers
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
        // RFC 4301 §4.1: an SA in transport mode is between its two ends, routers are neither.
        let carriage = &self.world.peers[peer].carriage;
        let far = Address::from(carriage.tunnel.remote);
        if carriage.mode == Mode::Transport && flow.source_address() != far {
            return dropped(DropReason::SelectorMismatch);
        }
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
        // The groups judge what it is, not what it quotes.
        if let Some(reason) = self.refused_by_groups(GroupSide::In, port, &inner.flow) {
            return dropped(reason);
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
        let to_linux = || vec![sure(Fate::Host(vec![packet.bytes.clone()]))];
        let listed = self.is_carved_out(packet, port);
        if listed && is_spared(&self.world.port(port).allow_host, &packet.flow) {
            return to_linux();
        }
        if let Some(reason) = self.refused_by_groups(GroupSide::In, port, &packet.flow) {
            return dropped(reason);
        }
        // RFC 4301 §5.2: the SPD first.
        match spd::judge(&self.world.policies, Direction::Inbound, &packet.flow) {
            Judgement::Entry(_, Action::Bypass) => self.onward(packet, Came::Clear(port)),
            Judgement::Entry(_, Action::Protect(_)) => dropped(DropReason::Unprotected),
            Judgement::Entry(..) => dropped(DropReason::PolicyDiscard),
            Judgement::Opaque(_) => dropped(DropReason::FragmentPorts),
            Judgement::Nothing if listed => to_linux(),
            Judgement::Nothing => dropped(DropReason::NoMatch),
        }
    }

    /// Returns the reason to drop a listed packet to a group or in a broadcast frame: the SPD wants
    /// it. Of a packet to another station's address Linux takes nothing in.
    fn wanted_group(&self, flow: &Flow, port: PortId) -> Option<DropReason> {
        let destination = flow.destination_address();
        let group = match std::net::IpAddr::from(destination) {
            std::net::IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
            std::net::IpAddr::V6(address) => address.is_multicast(),
        };
        let taken_in = group
            || matches!(
                self.world.route(destination),
                Some(RouteTarget::Local | RouteTarget::Broadcast)
            );
        let unprotected = self.world.ports.iter().filter(|port| port.side == Side::Unprotected);
        let ours = unprotected.flat_map(|port| &port.addresses).any(|own| *own == destination)
            || is_link_local(destination)
                && self.world.route(destination) == Some(RouteTarget::Local);
        let discovery = flow.protocol == 58;
        let spared = is_spared(&self.world.port(port).allow_host, flow) && (ours || discovery);
        if !taken_in || spared {
            return None;
        }
        if let Some(reason) = self.refused_by_groups(GroupSide::In, port, flow) {
            return Some(reason);
        }
        match spd::judge(&self.world.policies, Direction::Inbound, flow) {
            Judgement::Entry(_, Action::Bypass) | Judgement::Nothing => None,
            Judgement::Entry(_, Action::Protect(_)) => Some(DropReason::Unprotected),
            Judgement::Entry(..) => Some(DropReason::PolicyDiscard),
            Judgement::Opaque(_) => Some(DropReason::FragmentPorts),
        }
    }

    /// The security groups of a port, on one side of it: the first rule that matches decides; where
    /// none does the packet is denied. In audit mode it passes.
    fn refused_by_groups(&self, side: GroupSide, port: PortId, flow: &Flow) -> Option<DropReason> {
        let policies = &self.world.policies;
        let mode = |id| match policies.iter().find(|rule| rule.id == id)?.action {
            Action::Permit(mode)
            | Action::Reflect(mode)
            | Action::Deny(mode)
            | Action::NoRule(mode) => Some(mode),
            Action::Protect(_) | Action::Bypass | Action::Discard => None,
        };
        match spd::judge_groups(policies, side, port.0, flow)? {
            Judgement::Entry(id, _) | Judgement::Opaque(id)
                if mode(id) == Some(GroupMode::Audit) =>
            {
                None
            }
            Judgement::Entry(_, Action::Deny(_)) => Some(DropReason::GroupDeny),
            Judgement::Entry(_, Action::NoRule(_)) | Judgement::Nothing => {
                Some(DropReason::GroupNoMatch)
            }
            Judgement::Entry(..) => None,
            Judgement::Opaque(_) => Some(DropReason::FragmentPorts),
        }
    }

    /// DESIGN §2 "Traffic to the host": what is listed, neighbour discovery, IKE with the zero
    /// marker on 4500 (RFC 3948 §2.2).
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
        // The first fragment shows the marker.
        if packet.flow.protocol == 17
            && packet.part != Part::Later
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
}

fn sure(fate: Fate) -> Course {
    Course { fate, messages: vec![], moved: None, followers: vec![] }
}

fn is_for_linux(courses: &[Course]) -> bool {
    courses.iter().all(|course| matches!(course.fate, Fate::Host(_)))
}

fn dropped(reason: DropReason) -> Vec<Course> {
    vec![sure(Fate::Dropped(reason))]
}

fn any_of(reasons: Defects) -> Vec<Course> {
    reasons.into_iter().flat_map(dropped).collect()
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

/// DESIGN §2: what passes whatever the SPD says. Neighbour discovery; where listed IKE, and later
/// fragments that may be of it.
fn is_spared(services: &[HostService], flow: &Flow) -> bool {
    let discovery =
        matches!((flow.protocol, flow.upper), (58, Upper::Icmp { kind: 133..=137, .. }));
    let lists = |port: u16| {
        let fits = |service: &&HostService| {
            service.ports.is_none_or(|range| range.lo <= port && port <= range.hi)
        };
        services.iter().filter(|service| service.protocol == 17).any(|service| fits(&service))
    };
    discovery
        || flow.protocol == 17
            && match flow.upper {
                Upper::Ports { destination, .. } => destination == 500 || destination == 4500,
                Upper::Fragment => lists(500) || lists(4500),
                Upper::Icmp { .. } | Upper::None => false,
            }
}

/// RFC 3927 §7, RFC 4291 §2.5.6.
fn is_link_local(address: Address) -> bool {
    match std::net::IpAddr::from(address) {
        std::net::IpAddr::V4(address) => address.is_link_local(),
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
