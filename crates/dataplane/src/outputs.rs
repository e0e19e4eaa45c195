//! The outputs of the walk of a batch.

use ipsec::{CardSeat, SaId, Spi};
use policy::SaSetId;
use wire::{Address, Descriptor, Family};

use crate::ids::{NetdevId, PortId};
use crate::packet_sender::PacketSender;
use crate::port::Medium;
use crate::row::Row;
use crate::snapshot::Snapshot;
use crate::tx_batch::TxBatch;
use crate::verdict::Verdict;
use crate::verdict_basis::VerdictBasis;
use crate::waiting_row::WaitingRow;

/// A packet for Linux on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToHost {
    /// The port whose ledger it is on.
    pub ingress: PortId,
    /// First header: that of the link, as received, or that of the IP packet that was opened.
    pub form: Medium,
    /// The packet; the frame is the receiver's.
    pub packet: Descriptor,
}

/// The form of a packet that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeldForm {
    /// In clear, by a verdict of the policies: judged again after a change of policies.
    Clear,
    /// Sealed, or made by us for a peer.
    Sealed,
    /// In clear, for a card to seal by this SA, or to encrypt, which has this place there: it
    /// leaves only while the SA is there.
    ForCard(SaId, CardSeat),
}

/// A packet that waits for the link address of its next hop. It is finished but for that: sealed if
/// a policy says so, and without a link header.
#[derive(Clone, Copy, Debug)]
pub struct HeldPacket {
    /// The port it will leave by.
    pub egress: PortId,
    /// The neighbour that it waits for, on the link of that port.
    pub next_hop: Address,
    /// The port whose ledger it is on.
    pub ingress: PortId,
    /// Family of the IP packet that leaves, or that the card is to seal.
    pub family: Family,
    /// Form of the packet: in cleartext or sealed.
    pub form: HeldForm,
    /// The IP packet; the frame is the receiver's.
    pub packet: Descriptor,
    /// Sender of the packet, for shares of the waiting room.
    pub(crate) sender: PacketSender,
    /// Basis of the verdict.
    pub(crate) basis: VerdictBasis,
    /// Judged row of a cleartext packet; `None`: the gateway's own message, judged by no policy.
    pub(crate) row: Option<WaitingRow>,
}

impl HeldPacket {
    /// A row's packet, waiting for the next hop of the route to `destination`.
    pub(crate) fn of_row(
        snapshot: &Snapshot,
        (row, egress): (&Row, PortId),
        destination: Address,
        (form, packet): (HeldForm, Descriptor),
    ) -> HeldPacket {
        let made = HeldPacket::made(snapshot, egress, destination, (form, packet));
        let sender = PacketSender::behind(row.ingress, row.packet.flow.source_address());
        let row_of_clear = (form == HeldForm::Clear).then(|| WaitingRow::of(snapshot, row));
        HeldPacket { ingress: row.ingress, sender, row: row_of_clear, ..made }
    }

    /// The gateway's own packet, waiting for the next hop of the route to `destination`.
    pub(crate) fn made(
        snapshot: &Snapshot,
        egress: PortId,
        destination: Address,
        (form, packet): (HeldForm, Descriptor),
    ) -> HeldPacket {
        HeldPacket {
            egress,
            next_hop: snapshot.next_hop_to(destination),
            ingress: egress,
            family: destination.family,
            form,
            packet,
            sender: PacketSender::gateway(egress),
            basis: VerdictBasis::of(snapshot),
            row: None,
        }
    }
}

/// A packet whose SA, or whose datagram, is another worker's. It is on no ledger yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handover {
    /// The worker that it belongs to.
    pub worker: u32,
    /// The netdev it was received from.
    pub netdev: NetdevId,
    /// The port it came by.
    pub ingress: PortId,
    /// The packet as it was received; the frame is the receiver's.
    pub packet: Descriptor,
}

/// The outputs of a batch. The receiver owns the frames in it.
#[derive(Default, Debug)]
pub struct Outputs {
    /// Packets to transmit, in the order of the rows.
    pub tx: TxBatch,
    /// Packets for the host.
    pub host: Vec<ToHost>,
    /// Waiting for a neighbour.
    pub held: Vec<HeldPacket>,
    /// Peers that have shown themselves at another place, each at most once.
    pub moved: Vec<AddressUpdate>,
    /// Packets that another worker is to walk.
    pub handovers: Vec<Handover>,
    /// Verdicts: one per packet given in, in its order, then one per packet made, or that waited
    /// and goes on. `None`: the packet is among the handovers, and the other worker gives its
    /// verdict.
    pub verdicts: Vec<Option<Verdict>>,
}

impl Outputs {
    /// Forgets what was there; the frames must have found their owners.
    pub fn clear(&mut self) {
        self.tx.clear();
        self.host.clear();
        self.held.clear();
        self.moved.clear();
        self.handovers.clear();
        self.verdicts.clear();
    }
}

/// The new address of a peer behind a NAT that has shown itself there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressUpdate {
    /// The set of the SA that opened the packet.
    pub set: SaSetId,
    /// The SA's SPI.
    pub spi: Spi,
    /// Address that the packet came from.
    pub address: wire::Address,
    /// The UDP port it came from.
    pub port: u16,
}
