//! NAT keepalives (RFC 3948 §4): sends a datagram with one byte to a peer behind a NAT after some
//! time without sealed packets, so that the NAT keeps the mapping.
//!
//! The snapshot lists the sets with keepalives. Each worker's hand goes round the list and visits
//! at most [`STEP_SETS`] sets a tick; the worker serves only its share. A round takes [`ROUND_NS`],
//! however long the list is: while a hand is behind, the worker ticks again without a sleep.
//!
//! The SAs' sequence numbers show sealed packets. All workers share the numbers, so the path of
//! packets counts nothing for keepalives.

use std::net::IpAddr;

use ipsec::Tunnel;
use ipsec::encapsulation::UdpPorts;
use policy::SetIndex;
use wire::flow::protocol::UDP;
use wire::{Frames, checksum};

use crate::counters::Counters;
use crate::esp::KEEPALIVE;
use crate::made_packet;
use crate::outputs::{HeldForm, Outputs};
use crate::round_pace::{RoundBounds, RoundPace};
use crate::sa_set::SaSet;
use crate::snapshot::{KeepaliveSet, KeepaliveSettings, Snapshot};
use crate::worker_share::WorkerShare;

/// Time in which a worker visits every set with keepalives, nanoseconds. A keepalive leaves at most
/// a round early, and at most a round and a worker's sleep late.
pub const ROUND_NS: u64 = 1_000_000_000;
/// Most sets of a worker's tick.
pub const STEP_SETS: u64 = 64;
/// Least time between two steps of a hand in time, nanoseconds.
const STEP_NS: u64 = 1_000_000;

/// Bytes of the longest keepalive.
const LONGEST: usize = V6_BYTES + UDP_BYTES + KEEPALIVE.len();
const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// TTL and hop limit, as of the packets of the tunnel.
const HOP_LIMIT: u8 = 64;

/// A worker's hand in the list of sets with keepalives.
pub(crate) struct Keepalives {
    /// First place of the next step.
    hand: SetIndex,
    pace: RoundPace,
    /// Time of the next step.
    next_ns: u64,
}

impl Default for Keepalives {
    fn default() -> Keepalives {
        Keepalives { hand: SetIndex(0), pace: RoundPace::default(), next_ns: 0 }
    }
}

impl Keepalives {
    /// Makes the due keepalives among the sets of a step, for this worker's share. The egress
    /// port's ledger counts the packets.
    #[inline]
    pub(crate) fn make<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        share: WorkerShare,
        now_ns: u64,
        frames: &mut F,
        counters: &mut Counters,
        out: &mut Outputs,
    ) {
        if now_ns >= self.next_ns {
            self.step(snapshot, share, now_ns, frames, counters, out);
        }
    }

    /// Returns whether the last step left due sets over.
    pub(crate) fn is_behind(&self) -> bool {
        self.pace.is_behind()
    }

    #[cold]
    fn step<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        share: WorkerShare,
        now_ns: u64,
        frames: &mut F,
        counters: &mut Counters,
        out: &mut Outputs,
    ) {
        let sets = snapshot.keepalive_sets();
        let bounds = RoundBounds { round_ns: ROUND_NS, step: STEP_SETS };
        let visits = self.pace.step(sets.len() as u64, now_ns, bounds);
        let rest_ns = if self.pace.is_behind() { 0 } else { STEP_NS };
        self.next_ns = now_ns.saturating_add(rest_ns);
        if visits == 0 {
            return;
        }
        let from = self.hand;
        for (place, listed) in sets.range(from..).chain(sets.range(..from)).take(visits as usize) {
            self.hand = SetIndex(place.0.wrapping_add(1));
            if place.0 % share.workers == share.worker
                && let Some(set) = snapshot.find_set(*place)
                && let Some(settings) = snapshot.keepalive_settings(set)
                && silence_ns(snapshot, set, listed, now_ns) >= settings.after_ns
                && make(snapshot, *place, &settings, frames, counters, out).is_some()
            {
                // Without a route or a frame the keepalive stays due.
                listed.silence.end(now_ns);
            }
        }
    }
}

/// Returns the nanoseconds since the last packet of a set's SAs.
fn silence_ns(snapshot: &Snapshot, set: &SaSet, listed: &KeepaliveSet, now_ns: u64) -> u64 {
    listed.silence.look(last_sequences(snapshot, set), now_ns)
}

/// Returns the sum of the last sequence numbers of a set's SAs. The sum moves with each sealed
/// packet, on any worker.
fn last_sequences(snapshot: &Snapshot, set: &SaSet) -> u64 {
    let last = |sa: &ipsec::SaId| snapshot.outbound_sa(*sa).sequence.last();
    set.outbound.iter().map(last).fold(0, u64::wrapping_add)
}

/// Makes a set's keepalive. `None`: there is no route to the peer, or no free frame.
fn make<F: Frames>(
    snapshot: &Snapshot,
    set: SetIndex,
    settings: &KeepaliveSettings,
    frames: &mut F,
    counters: &mut Counters,
    out: &mut Outputs,
) -> Option<()> {
    let adjacency = snapshot.sealing_adjacency(set, settings.sa)?;
    let mut packet = [0; LONGEST];
    let length = write(&mut packet, &settings.tunnel, settings.ports)?;
    let way = (adjacency, settings.tunnel.remote.into());
    made_packet::send(snapshot, way, (HeldForm::Sealed, &packet[..length]), frames, counters, out)?;
    counters.keepalives += 1;
    Some(())
}

/// Writes a keepalive and returns its bytes. `None`: the ends are of two families.
fn write(packet: &mut [u8; LONGEST], tunnel: &Tunnel, ports: UdpPorts) -> Option<usize> {
    let datagram = UDP_BYTES + KEEPALIVE.len();
    let udp = match (tunnel.local, tunnel.remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let total = (V4_BYTES + datagram) as u16;
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&total.to_be_bytes());
            // Don't fragment, so the identification may be 0 (RFC 6864 §4.1).
            packet[6..10].copy_from_slice(&[0x40, 0, HOP_LIMIT, UDP]);
            packet[12..16].copy_from_slice(&local.octets());
            packet[16..20].copy_from_slice(&remote.octets());
            let sum = checksum::finish(checksum::sum(&packet[..V4_BYTES]));
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            V4_BYTES
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&(datagram as u16).to_be_bytes());
            packet[6..8].copy_from_slice(&[UDP, HOP_LIMIT]);
            packet[8..24].copy_from_slice(&local.octets());
            packet[24..40].copy_from_slice(&remote.octets());
            V6_BYTES
        }
        _ => return None,
    };
    packet[udp..udp + 2].copy_from_slice(&ports.local.to_be_bytes());
    packet[udp + 2..udp + 4].copy_from_slice(&ports.remote.to_be_bytes());
    packet[udp + 4..udp + 6].copy_from_slice(&(datagram as u16).to_be_bytes());
    let length = udp + datagram;
    packet[udp + UDP_BYTES..length].copy_from_slice(&KEEPALIVE);
    if udp == V6_BYTES {
        // Over IPv4 there need be none (RFC 3948 §2.3), over IPv6 there must (RFC 8200 §8.1).
        ipsec::finish_udp(&mut packet[..length]);
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::build::PacketBuilder;

    #[test]
    fn a_keepalive_is_one_byte_in_udp_with_the_checksum_that_its_family_wants() {
        let ports = UdpPorts { local: 4500, remote: 61_234 };
        for (local, remote) in [("192.0.2.1", "198.51.100.7"), ("2001:db8::1", "2001:db8::7")] {
            let tunnel = Tunnel { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
            let mut packet = [0; LONGEST];
            let length = write(&mut packet, &tunnel, ports).unwrap();
            let built = match tunnel.local {
                IpAddr::V4(_) => PacketBuilder::v4(local, remote),
                IpAddr::V6(_) => PacketBuilder::v6(local, remote),
            };
            let mut built = built.udp(4500, 61_234).payload(&[0xff]).dont_fragment().ip();
            if tunnel.local.is_ipv4() {
                built[26..28].fill(0);
            }
            assert_eq!(packet[..length], built);
        }
    }
}
