//! A packet of a batch between the stages.

use wire::{Flow, FrameId, Frames, LinkAddress, Packet};

use crate::ids::{PortId, SetIndex};
use crate::port::Adjacency;
use crate::upper_layer::UpperLayer;

/// The source of a row's packet; it selects the checks that `decide` makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A port, in clear.
    Received,
    /// Opened by an SA of this set.
    Opened(SetIndex),
    /// Linux on this machine, through the host port.
    Host,
    /// Made by us: an ICMP error.
    Made(Quote),
    /// Sealed by us by an SA of this set, and to be sealed again by one of the set around it.
    Sealed(SetIndex),
    /// A host of a virtual network; the row is the overlay packet that we send on to another host,
    /// with that one's link address, where endpoints say it.
    Carried(Option<LinkAddress>),
}

/// Kind of the packet that an ICMP error made by the gateway quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quote {
    /// A packet that came in clear and was to leave in clear.
    Clear,
    /// A packet that was opened or was to be sealed: the message never leaves in clear.
    Protected,
}

impl Origin {
    /// Returns whether the packet is forwarded, so that its hop limit is lowered.
    pub(crate) fn is_forwarded(self) -> bool {
        matches!(self, Origin::Received | Origin::Opened(_))
    }
}

/// The form in which a packet carries another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carrier {
    /// In ESP behind the IP header.
    Esp,
    /// In ESP behind a UDP header (RFC 3948).
    EspInUdp {
        /// UDP source port of the sender, or of its NAT.
        source: u16,
    },
}

/// The stage that a row has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// A packet to us that carries another one, which is to be taken out.
    Outer(Carrier),
    /// An outer packet in fragments, all of which have come, that no frame holds; the row is that
    /// of the last. It is opened behind the batch.
    Large,
    /// An IP packet that is to be judged.
    Clear,
    /// To leave in clear.
    Forward(Adjacency),
    /// To leave sealed by an SA of this set.
    Protect(SetIndex),
    /// To be handed to Linux.
    Host,
    /// Finished: its verdict is written.
    Ended,
}

/// A packet of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Place of the packet in [`Outputs::verdicts`](crate::Outputs::verdicts).
    pub(crate) place: u32,
    pub(crate) frame: FrameId,
    /// Offset of its IP header in the frame.
    pub(crate) ip: u32,
    /// [`Received::hint`](wire::Received::hint): the place, from 1, of what a lower tier claims of
    /// the packet. What is taken out of the packet, or made, has none; of what waited it is of
    /// another batch.
    pub(crate) hint: u32,
    /// Of a later fragment, the identifier of the ICMP echo that its datagram's first one shows.
    pub(crate) echo: Option<u16>,
    /// Of an overlay packet with a later fragment of a tenant's datagram, the upper layer that the
    /// first one shows.
    pub(crate) tenant: Option<UpperLayer>,
    pub(crate) ingress: PortId,
    pub(crate) origin: Origin,
    pub(crate) state: State,
    pub(crate) packet: Packet,
}

impl Row {
    /// Returns the row of the overlay packet that goes on in the place of this one.
    pub(crate) fn carried(&self, (flow, mac): (Flow, Option<LinkAddress>)) -> Row {
        Row { origin: Origin::Carried(mac), packet: Packet { flow, ..self.packet }, ..*self }
    }

    /// The IP packet, its link padding cut off.
    pub(crate) fn bytes<'f, F: Frames>(&self, frames: &'f F) -> &'f [u8] {
        let start = self.ip as usize;
        &frames.bytes(self.frame)[start..start + self.packet.length as usize]
    }

    /// The IP packet for writing.
    pub(crate) fn bytes_mut<'f, F: Frames>(&self, frames: &'f mut F) -> &'f mut [u8] {
        let start = self.ip as usize;
        &mut frames.bytes_mut(self.frame)[start..start + self.packet.length as usize]
    }
}
