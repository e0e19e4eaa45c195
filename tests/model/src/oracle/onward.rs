//! The part of the oracle about packets that go on: the route, the outbound SPD, the groups of the
//! port, an SA, size and hop limit, and ICMP about packets that do not leave.

use dataplane::{DropReason, PortId, RouteTarget, SetIndex, Side};
use ipsec::Mode;
use policy::{Action, Direction, GroupSide};
use wire::{Address, Family};

use super::{Came, Course, Departure, Fate, Oracle, any_of, dropped, is_link_local, sure};
use crate::carried;
use crate::esp;
use crate::headers::{self, Defects, Ip, Part};
use crate::icmp::{self, Complaint};
use crate::spd::{self, Judgement};
use crate::world::Supply;

impl Oracle<'_> {
    /// Route, then the outbound SPD for whatever leaves by an unprotected port.
    pub(super) fn onward(&self, packet: &Ip, came: Came) -> Vec<Course> {
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
        // What came in clear by a protected port is asked about now, all in one question.
        if let Came::Clear(ingress) = came
            && self.world.port(ingress).side == Side::Protected
            && let Some(reason) = self.refused_by_groups(GroupSide::In, ingress, &packet.flow)
        {
            return dropped(reason);
        }
        let refused_on_leaving =
            || self.refused_by_groups(GroupSide::Out, port, &packet.flow).map(dropped);
        if self.world.port(port).side == Side::Protected {
            let refused = refused_on_leaving();
            return refused.unwrap_or_else(|| self.leave(packet, came, port, to, None));
        }
        let judgement = spd::judge(&self.world.policies, Direction::Outbound, &packet.flow);
        if matches!(judgement, Judgement::Entry(_, Action::Bypass | Action::Protect(_)))
            && let Some(refused) = refused_on_leaving()
        {
            return refused;
        }
        match judgement {
            // What quotes a packet that an SA protects does not leave in clear.
            Judgement::Entry(_, Action::Bypass) if matches!(came, Came::MadeOfSecret(_)) => {
                dropped(DropReason::IcmpInClear)
            }
            Judgement::Entry(_, Action::Bypass) => self.leave(packet, came, port, to, None),
            Judgement::Entry(_, Action::Protect(set)) => {
                self.protect(packet, came, self.world.set_place(set))
            }
            Judgement::Entry(..) => dropped(DropReason::PolicyDiscard),
            Judgement::Opaque(_) => dropped(DropReason::FragmentPorts),
            Judgement::Nothing => dropped(DropReason::NoMatch),
        }
    }

    /// RFC 4301 §5.1 step 3: an SA and a way to the peer.
    fn protect(&self, packet: &Ip, came: Came, set: SetIndex) -> Vec<Course> {
        let peer = &self.world.peers[set.0 as usize];
        let remote = Address::from(peer.tunnel().remote);
        let mut lacking = Defects::new();
        if peer.outbound.is_empty() {
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

    /// Bytes of the largest packet that an SA of a set carries whole: the largest that, sealed, is
    /// no larger than the port's MTU and the path's. In transport mode that of a packet without IP
    /// options.
    fn tunnel_mtu(&self, set: SetIndex) -> Option<usize> {
        let peer = &self.world.peers[set.0 as usize];
        let remote = Address::from(peer.tunnel().remote);
        let Some(RouteTarget::Via(hop)) = self.world.route(remote) else { return None };
        let suite = peer.outbound.first()?.suite;
        let (port, _) = self.next_hop(hop.0 as usize, remote);
        let mtu = self.world.mtu_to(peer, port);
        let ip = if remote.family == Family::V4 { 20 } else { 40 };
        let udp = if peer.carriage.udp.is_some() { 8 } else { 0 };
        let sealed = |length: usize| match peer.carriage.mode {
            Mode::Tunnel => ip + udp + esp::sealed_length(suite, length),
            Mode::Transport => ip + udp + esp::sealed_length(suite, length.saturating_sub(ip)),
        };
        (0..=mtu).rev().find(|length| sealed(*length) <= mtu)
    }

    /// Bytes of the largest packet of a family that a set carries. RFC 2473 §7.1, RFC 4213 §3.2,
    /// RFC 4303 §3.3.4: an SA carries 1280 bytes of IPv6 over every path.
    fn inside_mtu(&self, set: SetIndex, family: Family) -> usize {
        let peer = &self.world.peers[set.0 as usize];
        let whole = self.tunnel_mtu(set).unwrap_or(0);
        let remote = Address::from(peer.tunnel().remote);
        let has_way = matches!(self.world.route(remote), Some(RouteTarget::Via(_)));
        match family {
            Family::V6 if has_way => whole.max(1280),
            _ => whole,
        }
    }

    /// Bytes of the largest packet of a packet's kind that a set carries. Extension headers in
    /// front of ESP keep a packet whole.
    fn mtu_for(&self, set: SetIndex, packet: &Ip) -> usize {
        let is_extended = packet.flow.family == Family::V6 && packet.upper > 40;
        match self.world.peers[set.0 as usize].carriage.mode {
            Mode::Transport if is_extended => self.tunnel_mtu(set).unwrap_or(0),
            _ => self.inside_mtu(set, packet.flow.family),
        }
    }

    /// Returns the reasons why no SA of a set would seal a packet. Which of its SAs is asked is the
    /// gateway's affair, but one that is used up is passed over.
    fn refusals(&self, packet: &Ip, set: SetIndex, is_cut: bool) -> (Defects, bool) {
        let peer = &self.world.peers[set.0 as usize];
        let mut reasons = Defects::new();
        let mut lasting: Vec<Supply> = peer.outbound.iter().map(|keys| keys.supply).collect();
        lasting.retain(|supply| *supply != Supply::UsedUp);
        if lasting.is_empty() {
            reasons.insert(DropReason::SequenceExhausted);
        }
        if lasting.contains(&Supply::NotReserved) {
            reasons.insert(DropReason::SequenceNotReserved);
        }
        // RFC 4301 §4.1 and RFC 4303 §3.3.4: transport mode between the two ends, for whole
        // packets; one without an upper layer (RFC 4303 §2.6) would be taken for a dummy.
        let tunnel = peer.tunnel();
        let ends = (Address::from(tunnel.local), Address::from(tunnel.remote));
        let is_between = (packet.flow.source_address(), packet.flow.destination_address()) == ends;
        let fits =
            is_between && packet.part == Part::Whole && !is_cut && packet.flow.protocol != 59;
        if peer.carriage.mode == Mode::Transport && !fits {
            reasons.insert(DropReason::TransportMode);
        }
        let is_sure =
            lasting.contains(&Supply::Plenty) && !reasons.contains(&DropReason::TransportMode);
        (reasons, is_sure)
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
            Some(set) => self.mtu_for(set, packet),
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
                    carried::rewrite_checksum(&mut bytes);
                }
                Family::V6 => bytes[7] -= 1,
            }
        }
        let mut tunnels: Vec<SetIndex> = sealed.into_iter().collect();
        if let Came::Sealed(_, peer) = came {
            tunnels.push(SetIndex(peer as u32));
        }
        for set in tunnels {
            // A set that cannot seal has no size.
            let has_size = self.tunnel_mtu(set).is_some_and(|mtu| mtu > 0);
            if self.world.peers[set.0 as usize].mss_clamp && has_size {
                clamp_mss(&mut bytes, packet, self.inside_mtu(set, packet.flow.family));
            }
        }
        let is_cut = bytes.len() > mtu;
        let (reasons, may_leave) = match sealed {
            Some(set) => self.refusals(packet, set, is_cut),
            None => (Defects::new(), true),
        };
        let refused = reasons.into_iter().map(|reason| match is_cut {
            true => sure(Fate::Torn(reason)),
            false => sure(Fate::Dropped(reason)),
        });
        let departure = Departure { port, to, sealed, packet: bytes, mtu };
        refused.chain(may_leave.then(|| sure(Fate::Leaves(departure)))).collect()
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
        vec![Course { messages, ..sure(Fate::Dropped(reason)) }]
    }
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
