//! Outer packets in fragments, told plainly: RFC 791 §3.2, RFC 8200 §4.5, RFC 3168 §5.3, RFC 4303
//! §3.4.1.
//!
//! Not covered: bounds of memory, which the histories of these tests never reach.

use dataplane::{DropReason, PortId};
use wire::{Address, Family};

use crate::carried::{Bearing, bearing, rewrite_checksum};
use crate::headers::{Ip, Part};

/// Time that a datagram is known, nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;

/// The fields that fragments of a datagram share; the protocol in IPv4 only.
type Datagram = (PortId, Address, Address, u32, Option<u8>);

/// Content of a first fragment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Esp,
    /// Too little to tell.
    Tiny,
    Other,
}

/// A datagram of which fragments came.
struct Known {
    datagram: Datagram,
    since_ns: u64,
    came: Vec<Ip>,
    first: Option<Content>,
    refused: Option<DropReason>,
}

/// The answer about a fragment.
pub enum Answer {
    /// It is not of ESP; these waited for it.
    Other(Vec<Ip>),
    /// It waits.
    Waits,
    /// It completes this packet.
    Whole(Vec<u8>),
    /// It is an exact duplicate (RFC 8200 §4.5), and is dropped alone.
    Duplicate,
    /// It is dropped.
    Refused(DropReason),
    /// It is dropped, unless it is Linux's: nobody knows what it is of.
    RefusedUnknown(DropReason),
}

/// The datagrams of which fragments came lately from peers.
#[derive(Default)]
pub struct Parts {
    known: Vec<Known>,
}

impl Parts {
    /// Takes a fragment in that came by a port and is not empty.
    pub fn take_in(&mut self, now_ns: u64, packet: &Ip, port: PortId) -> Answer {
        self.known.retain(|known| now_ns - known.since_ns < PATIENCE_NS);
        let content = (packet.part == Part::First).then(|| content(packet));
        let known = self.find(now_ns, packet, port);
        if known.refused.is_none() {
            if known.came.iter().any(|other| other.data == packet.data) {
                return Answer::Duplicate;
            }
            let (offset, length, more) = packet.data;
            let (from, to) = (offset, offset + length);
            let contradicts = |other: &Ip| {
                let (other_from, length, other_more) = other.data;
                let other_to = other_from + length;
                from < other_to && other_from < to
                    || !more && (!other_more || other_to > to)
                    || !other_more && to > other_to
            };
            known.refused = match known.came.iter().any(contradicts) {
                true => Some(DropReason::FragmentOverlap),
                false => (content == Some(Content::Tiny)).then_some(DropReason::FragmentTiny),
            };
            // Of two first fragments, which contradict each other, one that may be ESP counts.
            if matches!(known.first, None | Some(Content::Other)) {
                known.first = content.or(known.first);
            }
        }
        if let Some(reason) = known.refused {
            let is_told = known.first.is_some_and(|first| first != Content::Other)
                || content.is_some_and(|content| content != Content::Other);
            return match is_told || packet.flow.protocol == 50 {
                true => Answer::Refused(reason),
                false => Answer::RefusedUnknown(reason),
            };
        }
        let before = known.came.clone();
        known.came.push(packet.clone());
        let come: usize = known.came.iter().map(|part| part.data.1).sum();
        let is_end = |part: &Ip| !part.data.2 && part.data.0 + part.data.1 == come;
        let is_complete = known.came.iter().any(is_end);
        let (first, all) = (known.first, known.came.clone());
        if is_complete {
            let datagram = known.datagram;
            self.known.retain(|known| known.datagram != datagram);
        }
        match first {
            Some(Content::Other) if content.is_some() => Answer::Other(before),
            Some(Content::Other) => Answer::Other(vec![]),
            Some(_) if is_complete && contradict_congestion(&all) => {
                Answer::Refused(DropReason::Malformed)
            }
            Some(_) if is_complete => Answer::Whole(whole(&all)),
            Some(_) | None => Answer::Waits,
        }
    }

    fn find(&mut self, now_ns: u64, packet: &Ip, port: PortId) -> &mut Known {
        let flow = &packet.flow;
        let protocol = (flow.family == Family::V4).then_some(flow.protocol);
        let (from, to) = (flow.source_address(), flow.destination_address());
        let datagram = (port, from, to, packet.identification, protocol);
        let place = self.known.iter().position(|known| known.datagram == datagram);
        let place = place.unwrap_or_else(|| {
            let came = vec![];
            self.known.push(Known { datagram, since_ns: now_ns, came, first: None, refused: None });
            self.known.len() - 1
        });
        &mut self.known[place]
    }
}

fn content(first: &Ip) -> Content {
    let data = &first.bytes[first.upper..];
    match bearing(first) {
        Bearing::Esp(esp, _) if esp.len() >= 8 => Content::Esp,
        Bearing::Esp(..) | Bearing::Keepalive => Content::Tiny,
        Bearing::Clear => {
            let to_4500 = first.flow.protocol == 17 && data.get(2..4) == Some(&[0x11, 0x94]);
            let is_ike = data.get(8..).is_some_and(|data| data.starts_with(&[0; 4]));
            if to_4500 && !is_ike { Content::Tiny } else { Content::Other }
        }
    }
}

/// RFC 3168 §5.3: one has experienced congestion, and another says that its sender knows nothing of
/// that.
fn contradict_congestion(parts: &[Ip]) -> bool {
    let has = |codepoint: u8| parts.iter().any(|part| part.traffic_class & 3 == codepoint);
    has(3) && has(0)
}

/// The packet of all its fragments.
fn whole(parts: &[Ip]) -> Vec<u8> {
    let first = parts.iter().find(|part| part.part == Part::First).expect("all have come");
    let fragment_header = if first.flow.family == Family::V6 { 8 } else { 0 };
    let head = first.bytes.len() - first.data.1 - fragment_header;
    let mut bytes = first.bytes[..head].to_vec();
    let length: usize = parts.iter().map(|part| part.data.1).sum();
    bytes.resize(head + length, 0);
    for part in parts {
        let data = &part.bytes[part.bytes.len() - part.data.1..];
        bytes[head + part.data.0..][..data.len()].copy_from_slice(data);
    }
    let is_congested = parts.iter().any(|part| part.traffic_class & 3 == 3);
    let class = first.traffic_class | if is_congested { 3 } else { 0 };
    match first.flow.family {
        Family::V4 => {
            bytes[1] = class;
            let total = bytes.len() as u16;
            bytes[2..4].copy_from_slice(&total.to_be_bytes());
            bytes[6] &= 0x40;
            bytes[7] = 0;
            rewrite_checksum(&mut bytes);
        }
        Family::V6 => {
            bytes[0] = 0x60 | class >> 4;
            bytes[1] = bytes[1] & 0x0f | class << 4;
            let payload = bytes.len() as u16 - 40;
            bytes[4..6].copy_from_slice(&payload.to_be_bytes());
            let (mut at, mut names) = (40, 6);
            while at < head {
                (at, names) = (at + 8 + 8 * usize::from(bytes[at + 1]), at);
            }
            bytes[names] = first.bytes[head];
        }
    }
    bytes
}
