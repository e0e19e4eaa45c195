//! The paths that packets of the general walk leave by: writes their link headers, and holds
//! packets whose next hop has no known link address.

use ipsec::SaId;
use wire::link::{ETHERNET_BYTES, VLAN_TAG_BYTES, ethertype};
use wire::{Descriptor, Family, Frames, link};

use crate::batch_context::BatchContext;
use crate::ids::{PortId, SetIndex};
use crate::outputs::{HeldForm, HeldPacket};
use crate::port::{Adjacency, Medium};
use crate::row::Row;
use crate::snapshot::Snapshot;
use crate::verdict::{HoldKind, Verdict};

/// The SA that seals on a path, and its set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Protection {
    pub(crate) set: SetIndex,
    pub(crate) sa: SaId,
}

/// An output path: adjacency, SA and MTU, which are the same for all packets of a batch that leave
/// by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputPath {
    pub(crate) adjacency: Adjacency,
    /// `None`: in clear.
    pub(crate) protection: Option<Protection>,
    /// Bytes of the largest packet that may take it, before sealing.
    pub(crate) mtu: u32,
    /// Bytes of outer packets above which they leave in fragments; `None`: none does.
    pub(crate) cut_at: Option<u32>,
}

/// Writes the link header in front of `end`, where it has one and the neighbour is known; returns
/// where the packet then begins. `None`: there is no room.
pub(crate) fn write_link(
    snapshot: &Snapshot,
    frame: &mut [u8],
    end: usize,
    adjacency: Adjacency,
    family: Family,
) -> Option<usize> {
    let port = snapshot.path_port(adjacency.port);
    let ethertype = match family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    };
    match adjacency.mac.filter(|_| port.medium == Medium::Ethernet) {
        Some(mac) => link::write(frame, end, mac, port.mac, port.vlan, ethertype),
        None => Some(end),
    }
}

/// Bytes that [`write_link`] writes.
pub(crate) fn link_bytes(snapshot: &Snapshot, adjacency: Adjacency) -> usize {
    let port = snapshot.path_port(adjacency.port);
    match (adjacency.mac, port.medium, port.vlan) {
        (None, ..) | (_, Medium::Ip, _) => 0,
        (Some(_), Medium::Ethernet, None) => ETHERNET_BYTES,
        (Some(_), Medium::Ethernet, Some(_)) => ETHERNET_BYTES + VLAN_TAG_BYTES,
    }
}

/// A finished packet waits for its next hop: that of its own destination, or of its tunnel's.
#[cold]
pub(crate) fn hold<F: Frames>(
    context: &mut BatchContext<'_, F>,
    row: &Row,
    egress: PortId,
    packet: Descriptor,
    verdict: Verdict,
) {
    let (form, destination) = match verdict {
        Verdict::Protect(set) => (HeldForm::Sealed, context.snapshot.set(set).tunnel.remote.into()),
        _ => (HeldForm::Clear, row.packet.flow.destination_address()),
    };
    let held = HeldPacket::of(context.snapshot, (row.ingress, egress), destination, (form, packet));
    context.out.held.push(held);
    context.out.verdicts[row.place as usize] = Some(Verdict::Hold(HoldKind::Neighbour));
}
