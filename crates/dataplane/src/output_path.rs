//! The paths that packets of the general walk leave by: writes their link headers, and holds
//! packets whose next hop has no known link address.

use ipsec::{CardSeat, SaId};
use wire::link::{ETHERNET_BYTES, VLAN_TAG_BYTES, ethertype};
use wire::{Descriptor, Family, Frames, link};

use crate::batch_context::BatchContext;
use crate::ids::SetIndex;
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
    /// The SA's place in a card, which seals or encrypts; `None`: software does all.
    pub(crate) card: Option<CardSeat>,
}

impl Protection {
    /// The SA, if software writes headers and numbers by it.
    pub(crate) fn by_software(self) -> Option<SaId> {
        let is_whole = self.card.is_some_and(CardSeat::has_numbers);
        (!is_whole).then_some(self.sa)
    }
}

/// An output path: adjacency and SA are the same for all packets of a batch that leave by it; the
/// MTU depends on the packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputPath {
    pub(crate) adjacency: Adjacency,
    /// `None`: in clear.
    pub(crate) protection: Option<Protection>,
    /// Bytes of the largest packet of the same kind, before sealing.
    pub(crate) mtu: u32,
    /// Bytes above which outer packets leave in fragments; if they are sealed again, above which
    /// routers behind the outer peer may cut them. `None`: all fit.
    pub(crate) cut_at: Option<u32>,
    /// The set whose SA seals again what was sealed; `None`: it leaves as it is.
    pub(crate) outer: Option<SetIndex>,
}

impl OutputPath {
    /// The SA that software writes headers and numbers by on the path, for its own cipher or a
    /// card's; `None`: in clear, or a card writes them.
    pub(crate) fn sealed_by_software(&self) -> Option<SaId> {
        self.protection.and_then(Protection::by_software)
    }

    /// The place of the SA in the card that seals or encrypts what leaves by the path; `None`: in
    /// clear, or software does all.
    pub(crate) fn card(&self) -> Option<CardSeat> {
        self.protection.and_then(|protection| protection.card)
    }

    /// As [`card`](Self::card), of a card that writes whole packets.
    pub(crate) fn packet_card(&self) -> Option<CardSeat> {
        self.card().filter(|seat| seat.has_numbers())
    }

    /// As [`card`](Self::card), of a card that encrypts what software wrote.
    pub(crate) fn cipher_card(&self) -> Option<CardSeat> {
        self.card().filter(|seat| !seat.has_numbers())
    }

    /// The verdict on packets that leave by the path.
    pub(crate) fn verdict(&self) -> Verdict {
        match self.protection {
            Some(Protection { set, .. }) => Verdict::Protect(set),
            None => Verdict::Forward(self.adjacency.port),
        }
    }
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
    path: &OutputPath,
    packet: Descriptor,
) {
    let (form, destination) = match path.protection {
        Some(Protection { sa, card, .. }) => {
            let form = card.map_or(HeldForm::Sealed, |seat| HeldForm::ForCard(sa, seat));
            (form, context.snapshot.outbound_sa(sa).tunnel().remote.into())
        }
        None => (HeldForm::Clear, row.packet.flow.destination_address()),
    };
    let way = (row, path.adjacency.port);
    let mut held = HeldPacket::of_row(context.snapshot, way, destination, (form, packet));
    if path.packet_card().is_some() {
        held.family = row.packet.flow.family;
    }
    context.out.held.push(held);
    context.out.verdicts[row.place as usize] = Some(Verdict::Hold(HoldKind::Neighbour));
}
