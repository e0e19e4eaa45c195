//! NAT keepalives (RFC 3948 §4): sends a datagram with one byte to a peer behind a NAT after some
//! time without sealed packets to it, so that the NAT keeps its mapping.
//!
//! The SAs' sequence numbers tell whether something was sealed: all workers share them, so nothing
//! is counted for this on the path of packets.

use std::net::IpAddr;

use ipsec::encapsulation::UdpPorts;
use ipsec::{Encapsulation, Tunnel};
use policy::SaSetId;
use wire::flow::protocol::UDP;
use wire::{Frames, checksum};

use crate::counters::Counters;
use crate::esp::KEEPALIVE;
use crate::ids::SetIndex;
use crate::made_packet;
use crate::outputs::{HeldForm, Outputs};
use crate::sa_set::SaSet;
use crate::snapshot::Snapshot;
use crate::worker_share::WorkerShare;

/// Interval at which the sets are looked through, nanoseconds. A keepalive leaves at most that much
/// before its time, and at most that and a worker's sleep after it.
pub const CHECK_EVERY_NS: u64 = 250_000_000;

/// Bytes of the longest keepalive.
const LONGEST: usize = V6_BYTES + UDP_BYTES + KEEPALIVE.len();
const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// TTL and hop limit, as of the packets of the tunnel.
const HOP_LIMIT: u8 = 64;

/// Time of the last packet to a peer.
#[derive(Clone, Copy, Default)]
struct Silence {
    /// Sum of the last sequence numbers of its SAs.
    sealed: u64,
    /// Time since which no packet left, as of the last look at it, nanoseconds.
    since_ns: u64,
}

/// One worker's record of the peers' silence.
#[derive(Default)]
pub(crate) struct Keepalives {
    /// Silence of each set, by place.
    sets: Vec<Option<(SaSetId, Silence)>>,
    checked_ns: u64,
}

impl Keepalives {
    /// Makes the keepalives that are due at `now_ns`, of the sets that this worker sees to, and
    /// puts them among what leaves. They are on the ledger of the port that they leave by.
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
        if now_ns.saturating_sub(self.checked_ns) >= CHECK_EVERY_NS {
            self.look(snapshot, share, now_ns, frames, counters, out);
        }
    }

    #[cold]
    fn look<F: Frames>(
        &mut self,
        snapshot: &Snapshot,
        share: WorkerShare,
        now_ns: u64,
        frames: &mut F,
        counters: &mut Counters,
        out: &mut Outputs,
    ) {
        let before_ns = std::mem::replace(&mut self.checked_ns, now_ns);
        for (place, set) in snapshot.sets() {
            let silence = self.silence(snapshot, place, set, now_ns);
            let Some(due) = due_after(snapshot, set) else { continue };
            let sealed = sealed(snapshot, set);
            if silence.sealed != sealed {
                *silence = Silence { sealed, since_ns: before_ns };
            }
            if now_ns.saturating_sub(silence.since_ns) < due.after_ns {
                continue;
            }
            if place.0 % share.workers == share.worker
                && make(snapshot, place, &due, frames, counters, out).is_none()
            {
                continue; // no route, no frame: it stays due
            }
            silence.since_ns = now_ns;
        }
    }

    /// Returns the silence of the set at a place. A set that is new there counts as one that just
    /// sealed.
    fn silence(
        &mut self,
        snapshot: &Snapshot,
        place: SetIndex,
        set: &SaSet,
        now_ns: u64,
    ) -> &mut Silence {
        let place = place.0 as usize;
        if place >= self.sets.len() {
            self.sets.resize(place + 1, None);
        }
        let known = &mut self.sets[place];
        if known.is_some_and(|(id, _)| id != set.id) {
            *known = None;
        }
        let new = || (set.id, Silence { sealed: sealed(snapshot, set), since_ns: now_ns });
        &mut known.get_or_insert_with(new).1
    }
}

/// A set's keepalives.
struct Due {
    after_ns: u64,
    tunnel: Tunnel,
    ports: UdpPorts,
}

/// Returns the settings of a set's keepalives; `None`: none are wanted, no SA of it seals, or its
/// ESP is not in UDP.
fn due_after(snapshot: &Snapshot, set: &SaSet) -> Option<Due> {
    let after_ns = u64::from(set.keepalive_s?) * 1_000_000_000;
    let first = set.outbound.first()?;
    let Encapsulation { tunnel, udp, .. } = snapshot.outbound_sa(*first).encapsulation;
    Some(Due { after_ns, tunnel, ports: udp? })
}

/// Moves whenever one of a set's SAs seals, at whatever worker.
fn sealed(snapshot: &Snapshot, set: &SaSet) -> u64 {
    let last = |sa: &ipsec::SaId| snapshot.outbound_sa(*sa).sequence.last();
    set.outbound.iter().map(last).fold(0, u64::wrapping_add)
}

/// Makes a set's keepalive. `None`: there is no route to the peer, or no free frame.
fn make<F: Frames>(
    snapshot: &Snapshot,
    set: SetIndex,
    due: &Due,
    frames: &mut F,
    counters: &mut Counters,
    out: &mut Outputs,
) -> Option<()> {
    let adjacency = snapshot.set_adjacency(set)?;
    let mut packet = [0; LONGEST];
    let length = write(&mut packet, &due.tunnel, due.ports)?;
    let way = (adjacency, due.tunnel.remote.into());
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
