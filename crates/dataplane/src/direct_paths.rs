//! Direct paths: the host that sends a flow of a virtual network is told where the flow's
//! destination is, so that its next packets go there without the gateway.
//!
//! Told are flows of which the walk asks nothing but who the endpoints are, as it would be for a
//! lower tier (I4): of IPv4, in a network without groups that checks its endpoints, between hosts
//! that are behind the overlay's protected port, with the link addresses that we would send to.
//! What a host sends directly no counter of ours sees, and no group of a network could judge.
//!
//! A worker tells the flows that it carries. It notes each in a bounded table, and messages wait
//! in a bounded queue; where either is full nothing is told, and the packets go by the gateway as
//! before. A flow whose packets keep coming is told again after 1, 2, 4, 8 seconds, and then every
//! 16 s.
//!
//! **How a path ends.** The host forgets it after [`TIMEOUT_S`] without packets. As long after the
//! last message we tell the host to send to us again, and forget the flow; if it goes on, it is
//! told anew. If an endpoint moves or goes, or a policy wants to see its packets, we tell the host
//! within [`LOOK_NS`]. So a message that is lost leaves a path wrong for [`TIMEOUT_S`] at most,
//! if this gateway lives. A gateway that ends tells nobody; its paths live on while packets use
//! them.

use std::net::Ipv4Addr;

use endpoints::EndpointKey;
use wire::direct_path::{MESSAGE_BYTES, Message, Operation};
use wire::flow::protocol::UDP;
use wire::outer::UDP_BYTES;
use wire::packet::IPV4_BYTES;
use wire::{Address, DirectFlow, DirectPath, Family, Frames, checksum};

use crate::counters::Counters;
use crate::direct_flows::{DirectFlows, Job, MAX_WAITING, Sender};
use crate::ids::NextHopId;
use crate::lower_tier::HostWay;
use crate::made_packet;
use crate::outputs::{HeldForm, Outputs};
use crate::overlays::Overlay;
use crate::port::Adjacency;
use crate::round_pace::RoundBounds;
use crate::snapshot::Snapshot;

/// Seconds without packets after which a host forgets a path, and after which we end it.
const TIMEOUT_S: u16 = 30;
/// Time within which all flows that were told are looked at again, nanoseconds.
pub(crate) const LOOK_NS: u64 = 50_000_000;

/// Most flows of a turn's look.
const FLOWS_A_TURN: u64 = 128;
/// Messages that leave in one turn at most.
const MESSAGES_A_TURN: usize = 64;
const TIMEOUT_NS: u64 = TIMEOUT_S as u64 * 1_000_000_000;
/// Bytes of the IP packet of a message.
const PACKET_BYTES: usize = IPV4_BYTES + UDP_BYTES + MESSAGE_BYTES;
const HOP_LIMIT: u8 = 64;

impl DirectFlows {
    /// Looks at the flows whose turn it is, and sends messages that wait.
    #[inline]
    pub(crate) fn step<F: Frames>(
        &mut self,
        (snapshot, now_ns): (&Snapshot, u64),
        frames: &mut F,
        counters: &mut Counters,
        out: &mut Outputs,
    ) {
        if self.has_some() {
            self.look(snapshot, now_ns);
            self.send(snapshot, frames, counters, out);
        } else {
            self.pace.rest(now_ns);
        }
    }

    /// Ends the paths that are over among those whose turn it is: all come up within [`LOOK_NS`].
    fn look(&mut self, snapshot: &Snapshot, now_ns: u64) {
        let bounds = RoundBounds { round_ns: LOOK_NS, step: FLOWS_A_TURN };
        let due = self.pace.step(self.count() as u64, now_ns, bounds);
        for _ in 0..due {
            if self.jobs.len() >= MAX_WAITING {
                return;
            }
            let Some((flow, told)) = self.next() else { return };
            let is_old = now_ns.saturating_sub(told.said_ns) >= TIMEOUT_NS;
            let is_way = told.path.is_none() || path(snapshot, &flow, &told.sender) == told.path;
            let ended = told.path.map(|path| Job::End(flow, told.sender, (told.udp_port, path)));
            if is_way && !is_old {
                self.keep(flow);
                continue;
            }
            self.jobs.extend(ended);
            self.forget(&flow);
        }
    }

    fn send<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        frames: &mut F,
        counters: &mut Counters,
        out: &mut Outputs,
    ) {
        for _ in 0..MESSAGES_A_TURN {
            let Some(job) = self.jobs.pop_front() else { return };
            let (operation, flow, sender, udp_port, path) = match job {
                Job::End(flow, sender, (udp_port, path)) => {
                    (Operation::Delete, flow, sender, udp_port, path)
                }
                Job::Tell(flow) => {
                    let Some(told) = self.told(&flow) else { continue };
                    let Some(path) = path(snapshot, &flow, &told.sender) else { continue };
                    told.path = Some(path);
                    (Operation::Encap, flow, told.sender, told.udp_port, path)
                }
            };
            let message = Message { operation, flow, path, timeout_s: TIMEOUT_S };
            let Some(()) = make(snapshot, (&message, &sender, udp_port), frames, counters, out)
            else {
                continue;
            };
            match operation {
                Operation::Encap => counters.direct.told += 1,
                Operation::Delete => counters.direct.ended += 1,
            }
        }
    }
}

/// Returns the path of a flow, if its packets may go it without the gateway.
fn path(snapshot: &Snapshot, flow: &DirectFlow, sender: &Sender) -> Option<DirectPath> {
    let overlays = snapshot.overlays()?;
    let overlay = overlays.overlays().get(usize::from(sender.overlay.0))?;
    let network = overlays.network(flow.vni, sender.overlay)?;
    let is_told =
        overlay.entrances.contains(&v4(sender.entrance)) && snapshot.tells_direct_paths(network);
    if !is_told {
        return None;
    }
    let [from, to] = [flow.source, flow.destination].map(|address| {
        overlays.endpoints().find(EndpointKey { vni: flow.vni, address: v4(address) })
    });
    let (from, to) = (from?, to?);
    if from.host != v4(sender.host) || to.host.family != Family::V4 || to.host == from.host {
        return None;
    }
    let HostWay { port, mac } = snapshot.way_below(overlay, to.host, to.host_mac)?;
    // Hosts behind other ports may not reach each other.
    let is_beside = port == overlay.port && hop_to(snapshot, overlay, sender).is_some();
    let host = Ipv4Addr::from(to.host.value as u32);
    is_beside.then_some(DirectPath { host, host_mac: mac, mac: to.mac })
}

fn v4(address: Ipv4Addr) -> Address {
    Address::v4(address.into())
}

/// The next hop to the host of a sender, if it is behind the overlay's port.
fn hop_to(snapshot: &Snapshot, overlay: &Overlay, sender: &Sender) -> Option<NextHopId> {
    let hop = snapshot.hop_below(overlay.port, v4(sender.entrance), v4(sender.host))?;
    (snapshot.egress(hop) == overlay.port).then_some(hop)
}

/// Makes the packet of a message, and puts it among what leaves. `None`: there is no way to the
/// host, or no free frame.
fn make<F: Frames>(
    snapshot: &Snapshot,
    (message, sender, udp_port): (&Message, &Sender, u16),
    frames: &mut F,
    counters: &mut Counters,
    out: &mut Outputs,
) -> Option<()> {
    let overlays = snapshot.overlays()?;
    let overlay = overlays.overlays().get(usize::from(sender.overlay.0))?;
    let hop = hop_to(snapshot, overlay, sender)?;
    let from = EndpointKey { vni: message.flow.vni, address: v4(message.flow.source) };
    let host_mac = overlays.endpoints().find(from).and_then(|it| it.host_mac);
    let mac = host_mac.filter(|_| snapshot.is_on_link(hop));
    let known = snapshot.adjacency(hop, v4(sender.host));
    let adjacency = Adjacency { mac: mac.or(known.mac), ..known };
    let packet = packet(message, sender, udp_port);
    let way = (adjacency, v4(sender.host));
    made_packet::send(snapshot, way, (HeldForm::Clear, &packet), frames, counters, out)
}

/// Writes the IP packet of a message.
fn packet(message: &Message, sender: &Sender, udp_port: u16) -> [u8; PACKET_BYTES] {
    let datagram = UDP_BYTES + MESSAGE_BYTES;
    let mut packet = [0; PACKET_BYTES];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(PACKET_BYTES as u16).to_be_bytes());
    // Don't fragment, so the identification may be 0 (RFC 6864 §4.1).
    packet[6..10].copy_from_slice(&[0x40, 0, HOP_LIMIT, UDP]);
    packet[12..16].copy_from_slice(&sender.entrance.octets());
    packet[16..20].copy_from_slice(&sender.host.octets());
    let sum = checksum::finish(checksum::sum(&packet[..IPV4_BYTES]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let udp = IPV4_BYTES;
    packet[udp..udp + 2].copy_from_slice(&udp_port.to_be_bytes());
    packet[udp + 2..udp + 4].copy_from_slice(&udp_port.to_be_bytes());
    packet[udp + 4..udp + 6].copy_from_slice(&(datagram as u16).to_be_bytes());
    packet[udp + UDP_BYTES..].copy_from_slice(&message.write());
    let ends = checksum::pseudo_header(v4(sender.entrance), v4(sender.host), UDP, datagram);
    let sum = match checksum::finish(ends + checksum::sum(&packet[udp..])) {
        0 => 0xffff, // RFC 768: 0 would say that there is none
        sum => sum,
    };
    packet[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
    packet
}
