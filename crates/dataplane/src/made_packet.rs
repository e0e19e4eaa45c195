//! Packets that a worker makes by itself and sends, outside the walk: keepalives, and messages to
//! hosts.

use wire::{Address, Descriptor, Frames, HEADROOM};

use crate::counters::Counters;
use crate::neighbour_queues;
use crate::outputs::{HeldForm, HeldPacket, Outputs};
use crate::port::Adjacency;
use crate::snapshot::Snapshot;

/// Puts an IP packet among what leaves, or among what waits for its next hop's link address. It is
/// on the ledger of the port that it leaves by. `None`: there is no free frame, or none so large.
pub(crate) fn send<F: Frames>(
    snapshot: &Snapshot,
    (adjacency, destination): (Adjacency, Address),
    (form, bytes): (HeldForm, &[u8]),
    frames: &mut F,
    counters: &mut Counters,
    out: &mut Outputs,
) -> Option<()> {
    let frame = frames.take()?;
    let Some(into) = frames.bytes_mut(frame).get_mut(HEADROOM..HEADROOM + bytes.len()) else {
        frames.give(frame);
        return None;
    };
    into.copy_from_slice(bytes);
    let packet = Descriptor { frame, offset: HEADROOM as u32, length: bytes.len() as u32 };
    let held = HeldPacket::made(snapshot, adjacency.port, destination, (form, packet));
    match neighbour_queues::finish(snapshot, adjacency, &held, frames) {
        Some(tx_packet) => out.tx.push(tx_packet),
        None => out.held.push(held),
    }
    counters.ledger(Some(adjacency.port)).made += 1;
    Some(())
}
