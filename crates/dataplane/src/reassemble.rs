//! Stage 1, fragments of ESP: an outer packet that the network cut is put together before it is
//! opened (RFC 4303 §3.4.1).
//!
//! **Whose.** Fragments from outside to one of our addresses, from the address of a peer: of ESP
//! where one of its SAs comes alone, of UDP where one comes in UDP. What strangers send is dropped
//! (`esp_fragment`): nobody but a peer sends ESP that is opened.
//!
//! **Which.** The first fragment alone shows the UDP port and the SPI. So later ones of UDP wait
//! until it has come. If it is not ESP, all of them go on as they are. In IPv6 a sender may name
//! another protocol in a later fragment than in the first (RFC 8200 §4.5); none is known to, and
//! what does is not put together.
//!
//! **How.** Fragments wait in the frames that they came in. When the last one has come, its row
//! becomes that of the whole packet; the others are consumed.
//!
//! * A frame holds most packets. They lie in it as if they had come whole, link header included,
//!   and go to the worker of their SA.
//! * A larger one is [`State::Large`]. The general walk opens it behind the batch (`large_packet`),
//!   on this worker, whosever its SA is: windows bear several writers.

use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use ipsec::{EspHeader, InboundSa};
use wire::flow::protocol;
use wire::link::{ETHERNET_BYTES, LinkTemplate, TAGGED_BYTES, ethertype};
use wire::{Descriptor, Family, Fragment, FrameId, Frames, HEADROOM, Upper};

use crate::addresses::is_to_us;
use crate::batch_context::BatchContext;
use crate::counters::Counters;
use crate::esp;
use crate::follow::{self, refuse};
use crate::frame_room::largest_mtu;
use crate::ids::{NetdevId, PortId};
use crate::outputs::Handover;
use crate::port::Medium;
use crate::reassembly::{self, Answer, Datagram, First, Part, Piece, Source, Way};
use crate::row::{Row, State};
use crate::snapshot::{PathPort, Snapshot};
use crate::verdict::{DropReason, HoldKind, Verdict};

/// Bytes of a UDP header.
const UDP_BYTES: usize = 8;
/// Bytes of ESP that a first fragment shows at least: SPI and sequence number.
const LEAST_ESP_BYTES: usize = ipsec::esp::HEADER_BYTES;

/// The outcome of taking a fragment in.
pub(crate) enum Taken {
    /// It is no part of a peer's ESP packet. It goes on as it is, and behind it those that waited
    /// for it: see [`release`].
    Other,
    /// Its row is the whole packet now.
    Whole,
    /// Its row is a whole packet that no frame holds.
    Large,
    /// It waits, is dropped, or is another worker's.
    Ended,
}

/// Takes a fragment in that this worker received, or was handed.
///
/// `rows`: where those go that are Linux's although they are refused.
pub(crate) fn take_in<F: Frames>(
    context: &mut BatchContext<'_, F>,
    netdev: NetdevId,
    row: &mut Row,
    rows: &mut Vec<Row>,
) -> Taken {
    let Some(piece) = piece(context, row) else { return Taken::Other };
    let taken = match context.reassembly.take_in_esp(context.now_ns, &piece) {
        Answer::First | Answer::Known(_) => Taken::Other,
        Answer::Complete => complete(context, netdev, row),
        Answer::Unknown(place) | Answer::Part(place) => {
            let held = place.hold(*row);
            context.counters.ledger(Some(row.ingress)).received += 1;
            match held {
                Ok(()) => {
                    context.end(row, Verdict::Hold(HoldKind::Fragment));
                    context.counters.ledger(Some(row.ingress)).held += 1;
                }
                Err(reason) => context.drop(row, reason),
            }
            Taken::Ended
        }
        Answer::Duplicate => {
            context.counters.ledger(Some(row.ingress)).received += 1;
            context.drop(row, DropReason::FragmentDuplicate);
            Taken::Ended
        }
        Answer::Refused { reason, may_be_esp } => {
            context.counters.ledger(Some(row.ingress)).received += 1;
            let shows_esp = matches!(piece.first, Some(Ok(First::Esp) | Err(_)));
            match may_be_esp || shows_esp || row.packet.flow.protocol == protocol::ESP {
                true => context.drop(row, reason),
                false => refuse(context, row, reason, rows),
            }
            Taken::Ended
        }
    };
    context.reassembly.drop_waiting(context.frames, context.counters);
    taken
}

/// Adds the fragments that waited for a first one which is not ESP, as rows with verdicts of their
/// own.
pub(crate) fn release<F: Frames>(context: &mut BatchContext<'_, F>, rows: &mut Vec<Row>) {
    let BatchContext { reassembly, counters, out, .. } = context;
    for waited in reassembly.released_esp() {
        counters.ledger(Some(waited.ingress)).held -= 1;
        out.verdicts.push(None);
        rows.push(Row { place: out.verdicts.len() as u32 - 1, state: State::Clear, ..waited });
    }
}

/// The fragment that a row is, if it is, or may be, of a peer's ESP packet.
fn piece<F: Frames>(context: &BatchContext<'_, F>, row: &Row) -> Option<Piece> {
    let (snapshot, flow) = (context.snapshot, &row.packet.flow);
    let (source, is_first) = (flow.source_address(), row.packet.fragment == Fragment::First);
    let is_in_udp = match flow.protocol {
        protocol::ESP => false,
        protocol::UDP => true,
        _ => return None,
    };
    let comes_so = |sa: &InboundSa| sa.encapsulation.udp.is_some() == is_in_udp;
    if !is_to_us(snapshot, row.ingress, &row.packet) || !snapshot.opens_from(source, comes_so) {
        return None;
    }
    let header = row.packet.fragment_header()?;
    let way = Way { ingress: row.ingress, opened_by: None, network: None };
    let datagram = Datagram::of(&row.packet, &header, way);
    let part = Part::of(&header)?;
    let first = is_first.then(|| first(row, row.bytes(context.frames)));
    Some(Piece { datagram, part, first })
}

/// The content of a first fragment.
///
/// # Errors
/// It shows too little of it.
fn first(row: &Row, bytes: &[u8]) -> Result<First, DropReason> {
    let shown = bytes.get(row.packet.upper_offset.into()..).unwrap_or_default();
    let esp = match (row.packet.flow.protocol, row.packet.flow.upper) {
        (protocol::ESP, _) => shown,
        (protocol::UDP, Upper::Ports { destination: NAT_TRAVERSAL_PORT, .. }) => {
            let esp = shown.get(UDP_BYTES..).unwrap_or_default();
            if esp.starts_with(&[0; 4]) {
                return Ok(First::Shows(follow::upper_layer(&row.packet, bytes)));
            }
            esp
        }
        _ => return Ok(First::Shows(follow::upper_layer(&row.packet, bytes))),
    };
    if esp.len() < LEAST_ESP_BYTES { Err(DropReason::FragmentTiny) } else { Ok(First::Esp) }
}

/// Makes the row of the fragment that came last that of the whole packet.
fn complete<F: Frames>(
    context: &mut BatchContext<'_, F>,
    netdev: NetdevId,
    row: &mut Row,
) -> Taken {
    let from = context.reassembly.gather(Row { state: State::Large, ..*row });
    let length = reassembly::length(sources(context.reassembly.gathered(from), context.frames));
    let room = largest_mtu(context.frames.bytes(row.frame).len()) as usize;
    if length.is_some_and(|length| length > room) {
        context.counters.ledger(Some(row.ingress)).received += 1;
        row.state = State::Large;
        return Taken::Large;
    }
    let stored = store(context, from, row);
    let BatchContext { reassembly, counters, frames, .. } = context;
    let others = reassembly.take_gathered(from).filter(|other| other.state != State::Large);
    others.for_each(|other| consume(counters, *frames, &other));
    match stored {
        Ok(whole) => {
            context.frames.give(row.frame);
            *row = whole;
            go_to_opener(context, netdev, row)
        }
        Err(reason) => {
            context.counters.ledger(Some(row.ingress)).received += 1;
            context.drop(row, reason);
            Taken::Ended
        }
    }
}

/// Hands a whole packet over if its SA is another worker's.
fn go_to_opener<F: Frames>(
    context: &mut BatchContext<'_, F>,
    netdev: NetdevId,
    row: &mut Row,
) -> Taken {
    let Some(worker) = opener(context, row) else { return Taken::Whole };
    let Row { frame, ip, ingress, .. } = *row;
    let link = link_bytes(context.snapshot, ingress) as u32;
    let packet = Descriptor { frame, offset: ip - link, length: link + row.packet.length };
    row.state = State::Ended;
    context.out.handovers.push(Handover { worker, netdev, ingress, packet });
    Taken::Ended
}

/// The worker whose SA a packet is for, if it is another one.
fn opener<F: Frames>(context: &BatchContext<'_, F>, row: &Row) -> Option<u32> {
    let bytes = row.bytes(context.frames);
    let (start, end) = esp::place(bytes, &row.packet, esp::carrier(&row.packet))?;
    let spi = EspHeader::read(bytes.get(start..end)?)?.spi?;
    let owner = context.snapshot.inbound_by_spi(spi)?.id.0 % context.share.workers;
    (owner != context.share.worker).then_some(owner)
}

/// Puts the packet of the fragments from a place on into a free frame, behind the link header of
/// the last.
///
/// # Errors
/// The reason why it is dropped.
fn store<F: Frames>(
    context: &mut BatchContext<'_, F>,
    from: usize,
    last: &Row,
) -> Result<Row, DropReason> {
    let link = link_bytes(context.snapshot, last.ingress);
    // All frames lie in one memory: the packet passes through the buffer.
    let mut buffer = context.reassembly.take_buffer();
    write_link(context.snapshot.path_port(last.ingress), last, &mut buffer);
    let parts = sources(context.reassembly.gathered(from), context.frames);
    let stored = reassembly::assemble(parts, &mut buffer[link..])
        .ok_or(DropReason::Malformed)
        .and_then(|length| {
            let whole = &buffer[..link + length];
            let packet = wire::packet::parse(&whole[link..])?;
            let frame = context.frames.take().ok_or(DropReason::NoFrame)?;
            context.frames.bytes_mut(frame)[HEADROOM..][..whole.len()].copy_from_slice(whole);
            Ok(Row { frame, ip: (HEADROOM + link) as u32, hint: 0, packet, ..*last })
        });
    context.reassembly.put_buffer(buffer);
    stored
}

/// Puts a packet together that no frame holds, behind the headroom of `buffer`, for which `frame`
/// stands. Returns its row, or drops it. `parts` end with the row of the fragment that came last.
pub(crate) fn assemble_large<F: Frames>(
    context: &mut BatchContext<'_, F>,
    parts: &[Row],
    (frame, buffer): (FrameId, &mut [u8]),
) -> Option<Row> {
    let (last, others) = parts.split_last()?;
    let into = buffer.get_mut(HEADROOM..).unwrap_or_default();
    let whole = reassembly::assemble(sources(parts, context.frames), into)
        .ok_or(DropReason::Malformed)
        .and_then(|length| {
            let packet = wire::packet::parse(&into[..length])?;
            Ok((packet, esp::state(&into[..length], &packet)?))
        });
    others.iter().for_each(|other| consume(context.counters, context.frames, other));
    let mut row = *last;
    match whole {
        Ok((packet, state)) => {
            context.frames.give(row.frame);
            Some(Row { frame, ip: HEADROOM as u32, hint: 0, state, packet, ..row })
        }
        Err(reason) => {
            context.drop(&mut row, reason);
            None
        }
    }
}

/// Fragments as they are put together.
fn sources<'b, F: Frames>(
    parts: &'b [Row],
    frames: &'b F,
) -> impl Iterator<Item = Source<'b>> + Clone {
    parts.iter().map(|part| Source { bytes: part.bytes(frames), packet: part.packet })
}

/// Ends a fragment that waited and is part of a packet now.
fn consume(counters: &mut Counters, frames: &mut impl Frames, fragment: &Row) {
    let ledger = counters.ledger(Some(fragment.ingress));
    ledger.held -= 1;
    ledger.consumed += 1;
    frames.give(fragment.frame);
}

/// Writes a link header as one that a packet to the port comes with: the fragments' own may have a
/// priority tag more.
fn write_link(port: &PathPort, fragment: &Row, into: &mut [u8]) {
    let link = LinkTemplate::new(port.mac, port.mac, port.vlan);
    let kind = match fragment.packet.flow.family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    };
    match (port.medium, into) {
        (Medium::Ip, _) => {}
        (Medium::Ethernet, into) if link.is_tagged() => {
            let header = into.first_chunk_mut::<TAGGED_BYTES>();
            link.write(header.expect("the buffer holds a packet"), kind);
        }
        (Medium::Ethernet, into) => {
            let header = into.first_chunk_mut::<ETHERNET_BYTES>();
            link.write(header.expect("the buffer holds a packet"), kind);
        }
    }
}

/// Bytes of the link header that packets of a port are received with.
fn link_bytes(snapshot: &Snapshot, port: PortId) -> usize {
    let port = snapshot.path_port(port);
    match (port.medium, port.vlan) {
        (Medium::Ip, _) => 0,
        (Medium::Ethernet, None) => ETHERNET_BYTES,
        (Medium::Ethernet, Some(_)) => TAGGED_BYTES,
    }
}
