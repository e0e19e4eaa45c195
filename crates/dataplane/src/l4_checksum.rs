//! TCP and UDP checksums of received packets: completed where senders leave them unfinished, else
//! checked by sampling. The walk drops no packet because of its checksum: that is the receiver's
//! part.
//!
//! A sender behind veth, tap or virtio hands packets to its device with an unfinished checksum
//! ([`wire::upper_checksum`]). AF_XDP delivers them as they are, and the receiver drops them. So
//! [`complete`] finishes them before anything else is done with them, by these rules:
//!
//! 1. only on ports with [`L4Checksum::Complete`](crate::L4Checksum::Complete), which are protected
//!    and on such a netdev;
//! 2. only what was received there: never an opened packet, never one from Linux, never a fragment;
//! 3. only if the field holds exactly what such senders leave. All other packets stay as they are.
//!
//! [`Sampling`] draws packets, and of those that go on whose checksum is wrong are counted, so that
//! an operator learns why connections fail.

use wire::{FrameId, Frames, Packet, UpperChecksum};

use crate::batch_context::BatchContext;
use crate::ids::{NetdevId, PortId};
use crate::row::{Origin, Row, State};
use crate::snapshot::Snapshot;

/// Completes the unfinished checksums of a batch from one netdev.
///
/// Cost: one compare a batch where no port of the netdev completes; else about 85 instructions for
/// a TCP or UDP packet over IPv4 and 105 over IPv6, and for an unfinished one 1 more for each byte.
pub(crate) fn complete<F: Frames>(
    context: &mut BatchContext<'_, F>,
    netdev: NetdevId,
    rows: &[Row],
) {
    if !context.snapshot.completes_checksums(netdev) {
        return;
    }
    for row in rows {
        let is_received = row.state == State::Clear && row.origin == Origin::Received;
        if !is_received || !context.snapshot.path_port(row.ingress).completes_checksums {
            continue;
        }
        let found = UpperChecksum::find(row.bytes(context.frames), &row.packet);
        if let Some(checksum) = found.filter(UpperChecksum::is_unfinished) {
            checksum.complete(row.bytes_mut(context.frames));
            context.counters.l4_checksums[usize::from(row.ingress.0)].completed += 1;
        }
    }
}

/// Completes the checksum of one packet, if it is unfinished. Returns whether it was.
pub(crate) fn complete_packet(bytes: &mut [u8]) -> bool {
    let Ok(packet) = wire::packet::parse(bytes) else { return false };
    let found = UpperChecksum::find(bytes, &packet).filter(UpperChecksum::is_unfinished);
    found.inspect(|checksum| checksum.complete(bytes)).is_some()
}

/// Checks the first packet from the place on that was drawn for the batch, and counts it. Only one
/// that was received in cleartext and goes on is checked: what a policy drops is nobody's lost
/// connection.
pub(crate) fn check_sample<F: Frames>(context: &mut BatchContext<'_, F>, rows: &[Row]) {
    let Some(from) = context.sample else { return };
    let goes_on = |row: &&Row| {
        row.place >= from
            && row.origin == Origin::Received
            && matches!(row.state, State::Forward(_) | State::Protect(_))
    };
    for row in rows.iter().filter(goes_on) {
        if check(context, row.ingress, row.frame, row.ip, &row.packet) {
            context.sample = None;
            return;
        }
    }
}

/// Checks and counts the checksum of one packet, if it has one. Returns whether it has.
pub(crate) fn check<F: Frames>(
    context: &mut BatchContext<'_, F>,
    ingress: PortId,
    frame: FrameId,
    ip: u32,
    packet: &Packet,
) -> bool {
    let behind = context.frames.bytes(frame).get(ip as usize..);
    let bytes = behind.and_then(|bytes| bytes.get(..packet.length as usize)).unwrap_or_default();
    let found = UpperChecksum::find(bytes, packet).filter(|checksum| !checksum.is_absent());
    let Some(checksum) = found else { return false };
    let counts = &mut context.counters.l4_checksums[usize::from(ingress.0)];
    counts.checked += 1;
    counts.bad += u64::from(!checksum.is_good(bytes));
    true
}

/// Packets between two that are checked, on average.
const MEAN_GAP: u32 = 64;
/// Time in which one packet of a nearly silent netdev is checked, nanoseconds, so that the first
/// lost connection attempts are seen.
const LONGEST_GAP_NS: u64 = 100_000_000;

/// Draws packets whose checksums are checked: about one in 64 of each netdev, at least one each
/// 100 ms, at most one a batch.
///
/// Cost: about 8 instructions a batch, and for the packet that is drawn about 100, and 1 for each
/// of its bytes: spread over all packets 3 instructions at 64 bytes and 25 at 1,500.
#[derive(Default)]
pub(crate) struct Sampling {
    /// One entry per netdev.
    netdevs: Vec<Gap>,
    /// State of the generator that draws the gaps.
    random: u32,
}

/// The way to the next packet that is checked.
#[derive(Clone, Copy, Default)]
struct Gap {
    packets: u32,
    until_ns: u64,
}

impl Sampling {
    /// A sampling for a worker under this snapshot.
    pub(crate) fn new(snapshot: &Snapshot) -> Sampling {
        Sampling { netdevs: vec![Gap::default(); snapshot.netdev_slots()], random: 0x9e37_79b9 }
    }

    /// Makes room for the netdevs of a snapshot.
    pub(crate) fn adopt(&mut self, snapshot: &Snapshot) {
        self.make_room(snapshot.netdev_slots());
    }

    fn make_room(&mut self, netdevs: usize) {
        if self.netdevs.len() < netdevs {
            self.netdevs.resize(netdevs, Gap::default());
        }
    }

    /// Draws the place in a batch from where on a packet is checked; `None`: no packet of this
    /// batch.
    #[inline]
    pub(crate) fn draw(&mut self, netdev: NetdevId, packets: usize, now_ns: u64) -> Option<u32> {
        let place = usize::from(netdev.0);
        self.make_room(place + 1);
        let gap = &mut self.netdevs[place];
        let packets = packets as u32;
        if gap.packets > packets && now_ns < gap.until_ns {
            gap.packets -= packets;
            return None;
        }
        let first = gap.packets.min(packets).saturating_sub(1);
        // Xorshift (Marsaglia 2003): a fixed gap could always meet the same flow.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        gap.packets = MEAN_GAP / 2 + self.random % (MEAN_GAP + 1);
        gap.until_ns = now_ns.saturating_add(LONGEST_GAP_NS);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SnapshotParts;

    fn sampling() -> Sampling {
        Sampling::new(&Snapshot::new(SnapshotParts::default()).expect("nothing"))
    }

    #[test]
    fn about_one_packet_in_64_is_drawn_whatever_the_batch() {
        for packets in [1usize, 7, 63, 64] {
            let (mut sampling, mut drawn) = (sampling(), 0u64);
            let batches = 640_000 / packets;
            for _ in 0..batches {
                let place = sampling.draw(NetdevId(1), packets, 0);
                assert!(place.is_none_or(|place| (place as usize) < packets), "{packets}");
                drawn += u64::from(place.is_some());
            }
            let all = (batches * packets) as u64;
            // At most one a batch: what is due behind it waits for the next.
            assert!((all / 110..=all / 50).contains(&drawn), "{packets}: {drawn} of {all}");
        }
    }

    #[test]
    fn every_place_of_a_batch_is_drawn() {
        let mut sampling = sampling();
        let mut seen = [false; 64];
        for _ in 0..10_000 {
            sampling
                .draw(NetdevId(0), 64, 0)
                .into_iter()
                .for_each(|place| seen[place as usize] = true);
        }
        assert!(seen.iter().all(|seen| *seen), "{seen:?}");
    }

    #[test]
    fn a_nearly_silent_netdev_is_checked_every_100_ms_and_each_netdev_by_itself() {
        let mut sampling = sampling();
        let second = 1_000_000_000;
        assert_eq!(sampling.draw(NetdevId(0), 1, second), Some(0), "the first packet");
        assert_eq!(sampling.draw(NetdevId(0), 1, second + LONGEST_GAP_NS - 1), None);
        assert_eq!(sampling.draw(NetdevId(1), 1, second), Some(0), "another netdev's first");
        assert_eq!(sampling.draw(NetdevId(0), 1, second + LONGEST_GAP_NS), Some(0));
        // A clock at its end does not overflow.
        assert_eq!(sampling.draw(NetdevId(0), 1, u64::MAX), Some(0));
    }
}
