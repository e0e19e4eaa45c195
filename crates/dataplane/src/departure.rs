//! The departure of packets for a next hop with a new link address.
//!
//! A cleartext packet leaves only by a current verdict. If policies, groups, ports, sides or routes
//! have changed, the general walk judges the packet again, from the fourth stage on, and may seal
//! the packet, drop it or send it elsewhere. A tenant's packet leaves only if the host of the
//! endpoint is still the same.

use wire::Frames;

use crate::decide;
use crate::outputs::{HeldForm, HeldPacket};
use crate::row::{Origin, Row, State};
use crate::snapshot::Snapshot;
use crate::verdict::DropReason;
use crate::verdict_basis::VerdictBasis;
use crate::waiting_row::WaitingRow;

/// The next step of a packet with a known next hop.
pub(crate) enum Departure {
    /// Leave unchanged.
    Leave,
    /// Pass through the general walk again, as this row.
    JudgeAgain(Row),
    /// Drop for this reason.
    Drop(DropReason),
}

/// Returns the next step of a packet whose next hop is known now.
pub(crate) fn departure<F: Frames>(
    (snapshot, now_ns): (&Snapshot, u64),
    held: &HeldPacket,
    frames: &mut F,
) -> Departure {
    if held.form != HeldForm::Clear {
        return Departure::Leave;
    }
    let is_current = held.basis == VerdictBasis::of(snapshot);
    let Some(waiting) = &held.row else {
        // The gateway's own message, not judged by policies: the receiver may be gone.
        return if is_current {
            Departure::Leave
        } else {
            Departure::Drop(DropReason::NoNeighbour)
        };
    };
    let row = waiting.row();
    if matches!(row.origin, Origin::Carried(_)) {
        let crossed = decide::cross_again((snapshot, now_ns), row, row.bytes(frames), held.basis);
        if let Err(reason) = crossed {
            return Departure::Drop(reason);
        }
    }
    if is_current {
        return Departure::Leave;
    }
    match row_again(snapshot, waiting, held, frames) {
        Ok(row) => Departure::JudgeAgain(row),
        Err(reason) => Departure::Drop(reason),
    }
}

/// Turns a finished packet back into a row for the fourth stage.
///
/// # Errors
/// The reason to drop the packet.
fn row_again<F: Frames>(
    snapshot: &Snapshot,
    waiting: &WaitingRow,
    held: &HeldPacket,
    frames: &mut F,
) -> Result<Row, DropReason> {
    let mut row = waiting.under(snapshot).ok_or(DropReason::NoNeighbour)?;
    (row.frame, row.ip) = (held.packet.frame, held.packet.offset);
    row.packet.length = held.packet.length;
    if row.origin.is_forwarded() {
        wire::packet::restore_hop_limit(row.bytes_mut(frames), row.packet.flow.family);
    }
    // A fragment made here has the flow of the whole packet.
    let packet = wire::packet::parse(row.bytes(frames))?;
    row.packet = wire::Packet { flow: row.packet.flow, ..packet };
    row.state = State::Clear;
    Ok(row)
}
