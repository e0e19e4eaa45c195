//! Writes the link header of packets that leave, then queues them or holds them for their next hop.

use ipsec::SaId;
use wire::link::{ETHERNET_BYTES, Untagged, VLAN_TAG_BYTES, ethertype};
use wire::{Descriptor, Family, Frames, link};

use crate::ids::{PortId, SetIndex};
use crate::outputs::{Held, HeldForm};
use crate::port::{Egress, Medium};
use crate::row::Row;
use crate::sends::Send;
use crate::snapshot::Snapshot;
use crate::turn::Turn;
use crate::verdict::{DropReason, HoldKind, Verdict};

/// The SA that seals a departure, and its set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Protection {
    pub(crate) set: SetIndex,
    pub(crate) sa: SaId,
}

/// An egress with its link header, which is the same for all packets of a batch that leave by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    pub(crate) egress: Egress,
    /// The link header, where it is an untagged one and the neighbour is known, as it mostly is.
    pub(crate) untagged: Option<Untagged>,
}

impl Exit {
    pub(crate) fn of(snapshot: &Snapshot, egress: Egress) -> Exit {
        let port = snapshot.path_port(egress.port);
        let is_untagged = port.medium == Medium::Ethernet && port.vlan.is_none();
        let mac = egress.mac.filter(|_| is_untagged);
        Exit { egress, untagged: mac.map(|mac| Untagged::new(mac, port.mac)) }
    }
}

/// A way out: egress, SA and MTU, which are the same for all packets of a batch that leave by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) exit: Exit,
    /// `None`: in clear.
    pub(crate) protection: Option<Protection>,
    /// Bytes of the largest packet that may go this way, before sealing.
    pub(crate) mtu: u32,
}

/// Puts the link header on a packet that leaves in clear, and sends it.
#[inline]
pub(crate) fn leave_in_clear<F: Frames>(turn: &mut Turn<'_, F>, row: &mut Row, exit: &Exit) {
    let (offset, length, family) = (row.ip as usize, row.packet.length, row.packet.flow.family);
    let frame = turn.frames.bytes_mut(row.frame);
    match write_link(turn.snapshot, frame, offset, exit, family) {
        Some(start) => {
            let length = length + (offset - start) as u32;
            let packet = Descriptor { frame: row.frame, offset: start as u32, length };
            leave(turn, row, exit.egress, packet, Verdict::Forward(exit.egress.port));
        }
        None => turn.drop(row, DropReason::Oversize),
    }
}

/// Writes the link header in front of `end`, where it has one and the neighbour is known; returns
/// where the packet then begins. `None`: there is no room.
#[inline(always)]
pub(crate) fn write_link(
    snapshot: &Snapshot,
    frame: &mut [u8],
    end: usize,
    exit: &Exit,
    family: Family,
) -> Option<usize> {
    let ethertype = match family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    };
    let Some(untagged) = &exit.untagged else {
        return write_other_link(snapshot, frame, end, exit.egress, ethertype);
    };
    let start = end.checked_sub(ETHERNET_BYTES)?;
    untagged.write(frame.get_mut(start..)?.first_chunk_mut()?, ethertype);
    Some(start)
}

/// [`write_link`] of a tagged header, or of none.
#[inline(never)]
fn write_other_link(
    snapshot: &Snapshot,
    frame: &mut [u8],
    end: usize,
    egress: Egress,
    ethertype: u16,
) -> Option<usize> {
    let port = snapshot.path_port(egress.port);
    match egress.mac.filter(|_| port.medium == Medium::Ethernet) {
        Some(mac) => link::write(frame, end, mac, port.mac, port.vlan, ethertype),
        None => Some(end),
    }
}

/// Bytes that [`write_link`] writes.
pub(crate) fn link_bytes(snapshot: &Snapshot, egress: Egress) -> usize {
    let port = snapshot.path_port(egress.port);
    match (egress.mac, port.medium, port.vlan) {
        (None, ..) | (_, Medium::Ip, _) => 0,
        (Some(_), Medium::Ethernet, None) => ETHERNET_BYTES,
        (Some(_), Medium::Ethernet, Some(_)) => ETHERNET_BYTES + VLAN_TAG_BYTES,
    }
}

/// A finished packet leaves, or waits for its neighbour.
#[inline(always)]
pub(crate) fn leave<F: Frames>(
    turn: &mut Turn<'_, F>,
    row: &Row,
    egress: Egress,
    packet: Descriptor,
    verdict: Verdict,
) {
    if egress.mac.is_none() {
        return hold(turn, row, egress.port, packet, verdict);
    }
    turn.out.sends.push(Send { egress: egress.port, ingress: row.ingress, packet });
    turn.out.verdicts[row.place as usize] = Some(verdict);
}

/// A finished packet waits for its next hop: that of its own destination, or of its tunnel's.
#[cold]
pub(crate) fn hold<F: Frames>(
    turn: &mut Turn<'_, F>,
    row: &Row,
    egress: PortId,
    packet: Descriptor,
    verdict: Verdict,
) {
    let (form, destination) = match verdict {
        Verdict::Protect(set) => (HeldForm::Sealed, turn.snapshot.set(set).tunnel.remote.into()),
        _ => (HeldForm::Clear, row.packet.flow.destination_address()),
    };
    let held = Held::of(turn.snapshot, (row.ingress, egress), destination, (form, packet));
    turn.out.held.push(held);
    turn.out.verdicts[row.place as usize] = Some(Verdict::Hold(HoldKind::Neighbour));
}
