//! ICMP from outside that tells the path MTU to a peer: which messages are believed (RFC 4301 §8.2,
//! RFC 1191, RFC 8201).
//!
//! An ICMP error from outside is not authentic, so little of it is believed: "fragmentation needed"
//! or "packet too big", whole and with a right checksum, to our end of a tunnel, that quotes a
//! packet of a live outbound SA between the same two ends, carried as the SA carries it, with one
//! of the last [`RECENT_NUMBERS`] sequence numbers that the SA gave out, and that names an MTU
//! smaller than the packet it quotes. Who cannot see our packets has to guess an SPI and a number.
//!
//! * **Floors.** Of IPv4, 576 bytes is the least that is taken for a path MTU; less is taken for
//!   576, and less than 68, which no link may have (RFC 791 §3.2), is ignored. Of IPv6, less than
//!   1280 is ignored (RFC 8201 §4).
//! * **Old routers** name no MTU (0): then it is the next lower of the plateaus of RFC 1191 §7.1.
//!
//! Not here: packets that a card sealed, whose numbers it alone knows: a message about them is
//! ignored. Quotes that end before the SPI and the sequence number, as 8 bytes behind the IP
//! header do where ESP is in UDP. They are ignored.

use ipsec::{EspHeader, OutboundSa};
use wire::flow::protocol;
use wire::icmp::{self, TooBigMessage};
use wire::{Family, Fragment, Frames, Upper};

use crate::batch_context::BatchContext;
use crate::path_mtu::{FLOOR_V4, FLOOR_V6, PathMtu, RECENT_NUMBERS};
use crate::row::Row;
use crate::sa_set::SaSet;
use crate::snapshot::Snapshot;

/// The least MTU that an IPv4 link may have, bytes (RFC 791 §3.2).
const LEAST_LINK_V4: u32 = 68;
/// Common MTUs, bytes (RFC 1191 §7.1), down to the first that is not above [`FLOOR_V4`].
const PLATEAUS: [u32; 9] = [65_535, 32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508];
const UDP_BYTES: usize = 8;

/// Lowers a peer's path MTU if a cleartext ICMP error from outside says so of it and is to be
/// believed; counts it in either case. The packet itself goes on as any other.
#[cold]
pub(crate) fn learn<F: Frames>(context: &mut BatchContext<'_, F>, row: &Row) {
    let message = icmp::too_big_message(row.bytes(context.frames), &row.packet);
    let is_lower = message.is_some_and(|message| {
        let believed = believed(context.snapshot, row, &message);
        believed.is_some_and(|(path, mtu)| path.lower(mtu, context.now_ns))
    });
    let counters = &mut *context.counters;
    let count = match is_lower {
        true => &mut counters.path_mtu_lowered,
        false => &mut counters.path_mtu_ignored,
    };
    *count += 1;
}

/// Returns the path that a message is about and the MTU that it gives it; `None`: it is not
/// believed, or its peer learns none.
fn believed<'s>(
    snapshot: &'s Snapshot,
    row: &Row,
    message: &TooBigMessage<'_>,
) -> Option<(&'s PathMtu, u16)> {
    let quoted = &message.quoted;
    if row.packet.flow.destination_address() != quoted.flow.source_address() {
        return None;
    }
    let mtu = path_mtu(message)?;
    let sets = snapshot.sets_towards(quoted.flow.destination_address());
    let is_ours = |set: &&SaSet| {
        let mut sas = set.outbound.iter().map(|sa| snapshot.outbound_sa(*sa));
        sas.any(|sa| has_sent(sa, message))
    };
    let set = sets.filter(|set| set.path_mtu.is_some()).find(is_ours)?;
    Some((set.path_mtu.as_ref()?, mtu))
}

/// Returns whether a message quotes a packet that an SA has sent lately.
fn has_sent(sa: &OutboundSa, message: &TooBigMessage<'_>) -> bool {
    let TooBigMessage { quote, quoted, .. } = message;
    let flow = &quoted.flow;
    let esp = match (sa.encapsulation.udp, flow.protocol, flow.upper) {
        (None, protocol::ESP, _) => 0,
        (Some(ports), protocol::UDP, Upper::Ports { source, destination, .. })
            if (source, destination) == (ports.local, ports.remote) =>
        {
            UDP_BYTES
        }
        _ => return false,
    };
    let header = quote.get(usize::from(quoted.upper_offset) + esp..).and_then(EspHeader::read);
    let Some(EspHeader { spi: Some(spi), sequence_low }) = header else { return false };
    let ends = (flow.source_address(), flow.destination_address());
    let last = if sa.packet_card().is_some() { 0 } else { sa.sequence.last() };
    // How many numbers were given out behind the quoted one.
    let behind = (last as u32).wrapping_sub(sequence_low);
    spi == sa.spi
        && ends == (sa.tunnel().local.into(), sa.tunnel().remote.into())
        && behind < RECENT_NUMBERS
        && u64::from(behind) < last
}

/// Returns the path MTU that a message gives the path of the packet that it quotes; `None`: no
/// router can have meant that.
fn path_mtu(message: &TooBigMessage<'_>) -> Option<u16> {
    let TooBigMessage { mtu: told, quoted, .. } = message;
    let length = quoted.length;
    let mtu = match quoted.flow.family {
        // We clear DF only where routers may cut the packet, and then none has to tell.
        Family::V4 if !quoted.dont_fragment || quoted.fragment != Fragment::Whole => return None,
        Family::V4 if *told == 0 => {
            let lower = PLATEAUS.iter().find(|plateau| **plateau < length)?;
            FLOOR_V4.max(*lower)
        }
        Family::V4 if *told < LEAST_LINK_V4 || *told >= length => return None,
        Family::V4 => FLOOR_V4.max(*told),
        Family::V6 if *told < FLOOR_V6 || *told >= length => return None,
        // The first fragment of a packet that we cut shows what it is, later ones do not.
        Family::V6 if quoted.fragment == Fragment::Later => return None,
        Family::V6 => *told,
    };
    u16::try_from(mtu).ok()
}
