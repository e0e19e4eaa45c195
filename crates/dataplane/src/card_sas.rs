//! SAs that are in network cards. In packet mode a card writes and takes off all headers, and has
//! key, numbers, window and limits: the walk hands it packets in clear, and takes them in clear. In
//! crypto mode (below) it has the key alone.
//!
//! * **Out.** A packet leaves behind a [`CardHeader`] that names the SA, by a port of the card's
//!   netdev and by no other (`dev_mismatch`). The card seals it, or drops it. What cards do not
//!   seal is dropped before: fragments (`card_fragment_tx`), IPv4 options and IPv6 extension
//!   headers (`card_options`). Sizes, hop limit, MSS and ICMP are the walk's, as for any tunnel.
//! * **In.** A packet that a card opened has the SA's tag in its [mark](wire::Mark), and is judged
//!   as any that was opened by the SA's set. Its number and the SA's limits are the card's. A tag
//!   that no SA of the netdev has says nothing: the packet came in clear.
//! * **Crypto mode.** The walk goes by such an SA as by one of software, both ways, but for the
//!   cipher: it writes all of the packet with the text in clear and zeros for the ICV, behind a
//!   [`CardHeader::Cipher`], and the card encrypts, or drops. What comes is ESP that the card has
//!   deciphered, and has a mark with the SA's tag that says so: if it says *forged*, or the mark is
//!   missing or another SA's, nothing of the packet is looked at (`integrity`, `card_sa`). Window,
//!   numbers, limits, sizes and counts are the walk's, exactly. Packets too large are cut before
//!   they are sealed, as nothing can be cut behind the card. An IPv6 packet whose outer packet must
//!   leave in fragments is encrypted by software, with a number of the SA.
//! * **Beside.** But for such fragments, software neither seals nor opens by such an SA
//!   (`card_sa`), and does not count its packets: the card does. Their policies and ports are
//!   counted as always.

use ipsec::{Allowance, CardSeat, CardWork, InboundSa, Mode, OutboundSa, SaId, SeatCarrier};
use wire::flow::protocol;
use wire::{CardHeader, Deciphered, Descriptor, Family, Fragment, Frames, Mark, Packet};

use crate::batch_context::BatchContext;
use crate::ids::{NetdevId, PortId};
use crate::output_path::Protection;
use crate::outputs::{HeldForm, HeldPacket};
use crate::port::Medium;
use crate::row::{Origin, Row};
use crate::sa_selectors;
use crate::snapshot::Snapshot;
use crate::tx_batch::TxPacket;
use crate::verdict::DropReason;

/// Next headers of IPv6 that are extension headers for a card though the walk has them for upper
/// layers: authentication, and two for experiments (RFC 4302, RFC 3692).
pub(crate) const EXTENSIONS: [u8; 3] = [51, 253, 254];

/// The SA by which a card opened a packet that came by a netdev; `None`: none did.
#[inline(always)]
pub(crate) fn opener<F>(
    context: &BatchContext<'_, F>,
    netdev: NetdevId,
    row: &Row,
) -> Option<SaId> {
    let mark = context.marks.get((row.hint as usize).checked_sub(1)?)?;
    let seat = CardSeat::of_worker(netdev.0, mark.card_sa()?, CardWork::Packets);
    context.snapshot.sad().opened_in_card(seat)
}

/// The header with which a packet is handed to the card in which an SA has its place.
#[inline]
pub(crate) const fn header(seat: CardSeat) -> CardHeader {
    match seat.work {
        CardWork::Packets => CardHeader::Sa(seat.tag),
        CardWork::Cipher => CardHeader::Cipher(seat.tag),
    }
}

/// Says what a card that deciphers made of a packet for an SA in it, by the packet's hint.
///
/// # Errors
/// `card_sa`: the SA is not of that kind, or its card says nothing of the packet: it went past the
/// card, or was put together of fragments, and software has not to open by this key.
#[inline]
pub(crate) fn deciphered<F>(
    context: &BatchContext<'_, F>,
    sa: &InboundSa,
    (ingress, hint): (PortId, u32),
) -> Result<Deciphered, DropReason> {
    let said = || {
        let seat = sa.cipher_card()?;
        let mark = context.marks.get((hint as usize).checked_sub(1)?)?;
        let (tag, outcome) = mark.card_cipher()?;
        let netdev = context.snapshot.path_port(ingress).netdev.0;
        ((netdev, tag) == (seat.netdev, seat.tag)).then_some(outcome)
    };
    said().ok_or(DropReason::CardSa)
}

/// Returns whether a card says that it deciphered a packet by the SA of a tag, and that the packet
/// is authentic. What it says otherwise the general walk sorts out.
#[inline(never)]
pub(crate) fn is_deciphered<F>(context: &BatchContext<'_, F>, hint: u32, tag: u64) -> bool {
    let mark = (hint as usize).checked_sub(1).and_then(|at| context.marks.get(at));
    mark.and_then(Mark::card_cipher) == Some((tag, Deciphered::Authentic))
}

/// The tag of an SA whose ESP a card of a port deciphers. `None`: no card there does, and the
/// general walk drops what comes.
pub(crate) fn tag_at(snapshot: &Snapshot, sa: &InboundSa, port: PortId) -> Option<u64> {
    let seat = sa.cipher_card()?;
    (seat.netdev == snapshot.path_port(port).netdev.0).then_some(seat.tag)
}

/// Takes in a packet that a card opened by an SA, or drops it.
#[inline(never)]
pub(crate) fn take_in<F: Frames>(
    context: &mut BatchContext<'_, F>,
    mut row: Row,
    sa: SaId,
    rows: &mut Vec<Row>,
) {
    context.counters.ledger(Some(row.ingress)).received += 1;
    row.origin = Origin::Opened(context.snapshot.set_of(sa));
    row.hint = 0;
    let bytes = row.bytes(context.frames);
    let selected = context.snapshot.inbound_sa(sa);
    let may_come = may_come(context.snapshot, sa, &row.packet)
        .and_then(|()| sa_selectors::check(context.snapshot, selected, &row, bytes));
    match may_come {
        Ok(()) => rows.push(row),
        Err(reason) => context.drop(&mut row, reason),
    }
}

/// Says whether a packet may come by an SA in a card.
///
/// # Errors
/// The SA is at a hard limit; a fragment; or in transport mode a packet that is not to the SA's own
/// end, which the policies do not name alone.
fn may_come(snapshot: &Snapshot, sa: SaId, packet: &Packet) -> Result<(), DropReason> {
    let sa = snapshot.inbound_sa(sa);
    if is_spent(sa.allowance.as_ref()) {
        return Err(DropReason::SaHardLimit);
    }
    if packet.fragment != Fragment::Whole {
        return Err(DropReason::CardFragmentRx);
    }
    let is_to_us = || packet.flow.destination_address() == sa.tunnel().local.into();
    match sa.encapsulation.mode {
        Mode::Transport if !is_to_us() => Err(DropReason::SelectorMismatch),
        Mode::Transport | Mode::Tunnel => Ok(()),
    }
}

/// Returns whether an SA in a card is at a hard limit. Those of packets and bytes the card keeps to
/// by itself; those of time, of which it knows nothing, are kept here.
#[inline]
pub(crate) fn is_spent(allowance: Option<&Allowance>) -> bool {
    allowance.is_some_and(Allowance::is_spent)
}

/// Returns whether what a worker sends by a port comes to the card in which an SA has its place.
/// Nothing does where Linux carries the SA's packets.
#[inline]
pub(crate) fn leads_there(snapshot: &Snapshot, port: PortId, seat: CardSeat) -> bool {
    let port = snapshot.path_port(port);
    seat.carrier == SeatCarrier::Worker
        && port.netdev.0 == seat.netdev
        && port.medium == Medium::Ethernet
}

/// Says whether a card may be given a row's packet to seal.
///
/// # Errors
/// The reason why it would drop the packet.
#[inline]
pub(crate) fn may_seal(
    snapshot: &Snapshot,
    protection: Protection,
    row: &Row,
) -> Result<(), DropReason> {
    fits(snapshot.outbound_sa(protection.sa), &row.packet)
}

/// Says whether a card would encrypt ESP by an SA around a packet: in transport mode the packet's
/// own header is in front.
///
/// # Errors
/// The reason why it would drop it.
#[inline]
pub(crate) fn may_encrypt(sa: &OutboundSa, packet: &Packet) -> Result<(), DropReason> {
    match sa.encapsulation.mode {
        Mode::Tunnel => Ok(()),
        // Of a fragment the caller says why it cannot leave.
        Mode::Transport if packet.fragment != Fragment::Whole || is_bare(packet) => Ok(()),
        Mode::Transport => Err(DropReason::CardOptions),
    }
}

/// Returns whether a packet has neither IPv4 options nor what a card has for extension headers.
#[inline]
fn is_bare(packet: &Packet) -> bool {
    let of_protocol = packet.flow.protocol;
    let is_extended = packet.flow.family == Family::V6 && EXTENSIONS.contains(&of_protocol);
    // By its header's length alone: of a flow that is explained there is none.
    !is_extended && (packet.upper_offset == 0 || offload::is_plain(packet))
}

/// Says whether a card seals a packet by an SA.
///
/// # Errors
/// The reason why it would drop the packet.
#[inline]
pub(crate) fn fits(sa: &OutboundSa, packet: &Packet) -> Result<(), DropReason> {
    if packet.fragment != Fragment::Whole {
        return Err(DropReason::CardFragmentTx);
    }
    if !is_bare(packet) {
        return Err(DropReason::CardOptions);
    }
    let of_protocol = packet.flow.protocol;
    if sa.encapsulation.mode == Mode::Tunnel {
        return Ok(());
    }
    let (source, destination) = (packet.flow.source_address(), packet.flow.destination_address());
    let ends = sa.tunnel();
    let is_between = source == ends.local.into() && destination == ends.remote.into();
    match is_between && of_protocol != protocol::NONE {
        true => Ok(()),
        false => Err(DropReason::TransportMode),
    }
}

/// Says whether a packet that has waited for its next hop may leave. One that a card is to seal may
/// while the SA is there, and its port leads to the card.
///
/// # Errors
/// The reason why it is dropped.
pub(crate) fn may_leave(snapshot: &Snapshot, held: &HeldPacket) -> Result<(), DropReason> {
    let HeldForm::ForCard(sa, seat) = held.form else { return Ok(()) };
    let there = snapshot.sad().find_outbound(sa).filter(|sa| sa.card == Some(seat));
    match there {
        None => Err(DropReason::NoSa),
        Some(_) if leads_there(snapshot, held.egress, seat) => Ok(()),
        Some(_) => Err(DropReason::DevMismatch),
    }
}

/// The reason why a packet that has waited for its next hop is dropped.
pub(crate) fn lost_for(snapshot: &Snapshot, held: &HeldPacket) -> DropReason {
    may_leave(snapshot, held).err().unwrap_or(DropReason::NoNeighbour)
}

/// The part of a packet that leaves by which it is shown: what a card is to seal or encrypt without
/// the header for the card.
pub(crate) fn behind_header<F: Frames>(
    snapshot: &Snapshot,
    sent: &TxPacket,
    frames: &F,
) -> Descriptor {
    let (port, packet) = (snapshot.path_port(sent.egress), sent.packet);
    let header = frames.bytes(packet.frame).get(packet.offset as usize..);
    let header = header.and_then(<[u8]>::first_chunk).and_then(CardHeader::read);
    let netdev = port.netdev.0;
    let seat = match header {
        Some(CardHeader::Sa(tag)) => Some(CardSeat::of_worker(netdev, tag, CardWork::Packets)),
        Some(CardHeader::Cipher(tag)) => Some(CardSeat::of_worker(netdev, tag, CardWork::Cipher)),
        _ => None,
    };
    match seat {
        Some(seat) if port.medium == Medium::Ethernet => {
            let bytes = CardHeader::BYTES as u32;
            match snapshot.sad().is_sealed_in_card(seat) && packet.length > bytes {
                true => Descriptor {
                    offset: packet.offset + bytes,
                    length: packet.length - bytes,
                    ..packet
                },
                false => packet,
            }
        }
        _ => packet,
    }
}
