//! Virtual reassembly told plainly: RFC 4301 §7 approach 3, RFC 5722, RFC 1858.
//!
//! Not covered: bounds of memory, which the histories of these tests never reach.

use dataplane::{DropReason, PortId};
use wire::{Address, Family, Upper};

use crate::headers::{Ip, Part};
use crate::icmp;

/// Time that a datagram is known, and a fragment waits, nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;

/// The way by which a fragment came: by a port, in clear or from a peer, opened by a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// The port.
    pub port: PortId,
    /// The place of the peer, and the worker that its SA belongs to; `None`: in clear.
    pub opened: Option<(usize, u32)>,
}

/// The fields that fragments of a datagram share; the protocol in IPv4 only.
type Datagram = (Way, Address, Address, u32, Option<u8>);

/// A datagram of which fragments came.
struct Known {
    datagram: Datagram,
    since_ns: u64,
    /// From and to, in bytes, and whether it ends the datagram.
    parts: Vec<(usize, usize, bool)>,
    /// Protocol, upper layer, and whether it opens a TCP connection.
    first: Option<First>,
    refused: Option<DropReason>,
    waiting: Vec<Ip>,
}

/// The values of a first fragment by which its datagram is judged.
type First = (u8, Upper, bool);

/// The answer about a fragment.
pub enum Answer {
    /// It is a first one; these follow it.
    First(Vec<Ip>),
    /// It is a later one, and is judged as this packet.
    Known(Ip),
    /// It is a later one whose first has not come.
    Unknown,
    /// It is an exact duplicate (RFC 8200 §4.5), and is dropped alone.
    Duplicate,
    /// It is dropped.
    Refused(DropReason),
}

/// The datagrams of which fragments came lately.
#[derive(Default)]
pub struct Fragments {
    known: Vec<Known>,
}

impl Fragments {
    /// Takes a fragment in that came by a way.
    pub fn take_in(&mut self, now_ns: u64, packet: &Ip, way: Way) -> Answer {
        self.known.retain(|known| now_ns - known.since_ns < PATIENCE_NS);
        let (offset, length, more) = packet.data;
        if length == 0 {
            return Answer::Refused(DropReason::Malformed);
        }
        let known = self.find(now_ns, packet, way);
        if let Some(reason) = known.refused {
            return Answer::Refused(reason);
        }
        let (from, to, ends) = (offset, offset + length, !more);
        if known.parts.contains(&(from, to, ends)) {
            return Answer::Duplicate;
        }
        let contradicts = |(other_from, other_to, other_ends): &(usize, usize, bool)| {
            let overlaps = from < *other_to && *other_from < to;
            overlaps || ends && (*other_ends || *other_to > to) || *other_ends && to > *other_to
        };
        let is_tiny = packet.part == Part::First
            && packet.flow.protocol == 6
            && packet.bytes.len() - packet.upper < 16;
        let refused = match known.parts.iter().any(contradicts) {
            true => Some(DropReason::FragmentOverlap),
            false => is_tiny.then_some(DropReason::FragmentTiny),
        };
        if let Some(reason) = refused {
            known.refused = Some(reason);
            known.waiting.clear();
            return Answer::Refused(reason);
        }
        known.parts.push((from, to, ends));
        let answer = match (packet.part, known.first) {
            (Part::First, _) => {
                // An ICMP error is judged by what it quotes; its later fragments quote nothing.
                let upper = match icmp::is_error(&packet.flow) {
                    true => Upper::Fragment,
                    false => packet.flow.upper,
                };
                let first = (packet.flow.protocol, upper, packet.flow.opens);
                known.first = Some(first);
                let waited = std::mem::take(&mut known.waiting).into_iter();
                Answer::First(waited.map(|later| of_datagram(later, first)).collect())
            }
            (_, Some(first)) => Answer::Known(of_datagram(packet.clone(), first)),
            (_, None) => Answer::Unknown,
        };
        let come: usize = known.parts.iter().map(|(from, to, _)| to - from).sum();
        if known.parts.iter().any(|(_, to, ends)| *ends && *to == come) {
            let datagram = known.datagram;
            self.known.retain(|known| known.datagram != datagram);
        }
        answer
    }

    /// Lets a fragment wait that was taken in just now.
    pub fn hold(&mut self, now_ns: u64, packet: &Ip, way: Way) {
        self.find(now_ns, packet, way).waiting.push(packet.clone());
    }

    fn find(&mut self, now_ns: u64, packet: &Ip, way: Way) -> &mut Known {
        let flow = &packet.flow;
        let protocol = (flow.family == Family::V4).then_some(flow.protocol);
        let (from, to) = (flow.source_address(), flow.destination_address());
        let datagram = (way, from, to, packet.identification, protocol);
        let place = self.known.iter().position(|known| known.datagram == datagram);
        let place = place.unwrap_or_else(|| {
            self.known.push(Known {
                datagram,
                since_ns: now_ns,
                parts: vec![],
                first: None,
                refused: None,
                waiting: vec![],
            });
            self.known.len() - 1
        });
        &mut self.known[place]
    }
}

/// A later fragment with the protocol and upper layer of its first one.
fn of_datagram(mut later: Ip, (protocol, upper, opens): First) -> Ip {
    let flow = &mut later.flow;
    (flow.protocol, flow.upper, flow.opens) = (protocol, upper, opens);
    later
}
