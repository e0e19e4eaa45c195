//! The table told plainly: one list of datagrams by age, searched from end to end.

use super::datagram::Datagram;
use super::ranges::{MOST, Part, REMEMBERED_PARTS};
use super::table::{First, Limits, Piece};
use crate::ids::PortId;
use crate::upper_layer::UpperLayer;
use crate::verdict::DropReason;

/// The answer about a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    First,
    Known(UpperLayer),
    Held,
    /// It may wait and does not want to.
    Unknown,
    /// The same, of ESP.
    Part,
    Complete,
    Dropped(DropReason),
}

struct Known {
    datagram: Datagram,
    since_ns: u64,
    parts: Vec<Part>,
    first: Option<First>,
    refused: Option<DropReason>,
    waiting: Vec<u32>,
}

/// The datagrams that are known, oldest first.
pub(super) struct Model {
    limits: Limits,
    known: Vec<Known>,
    pub(super) released: Vec<u32>,
    pub(super) dropped: Vec<(u32, DropReason)>,
}

impl Model {
    pub(super) fn new(limits: Limits) -> Model {
        Model { limits, known: vec![], released: vec![], dropped: vec![] }
    }

    pub(super) fn waiting(&self) -> usize {
        self.known.iter().map(|known| known.waiting.len()).sum()
    }

    /// Takes a fragment in, which waits if it may and has a number to wait under.
    pub(super) fn take_in(&mut self, now_ns: u64, piece: &Piece, waits_as: Option<u32>) -> Told {
        self.expire(now_ns);
        let is_it = |known: &Known| known.datagram == piece.datagram;
        if !self.known.iter().any(is_it) {
            self.make_room(&piece.datagram);
            self.known.push(Known {
                datagram: piece.datagram,
                since_ns: now_ns,
                parts: vec![],
                first: None,
                refused: None,
                waiting: vec![],
            });
        }
        let place = self.known.iter().position(is_it).unwrap();
        if let Some(reason) = self.known[place].refused {
            return Told::Dropped(reason);
        }
        let newest = self.known[place].parts.iter().rev().take(REMEMBERED_PARTS);
        if newest.into_iter().any(|part| *part == piece.part) {
            return Told::Dropped(DropReason::FragmentDuplicate);
        }
        let fault = fault(&self.known[place].parts, piece.part);
        if let Some(reason) = fault.or(piece.first.and_then(Result::err)) {
            self.known[place].refused = Some(reason);
            let waiting = std::mem::take(&mut self.known[place].waiting);
            self.dropped.extend(waiting.into_iter().map(|fragment| (fragment, reason)));
            return Told::Dropped(reason);
        }
        self.known[place].parts.push(piece.part);
        if let Some(Ok(first)) = piece.first {
            self.known[place].first = Some(first);
        }
        let known = &mut self.known[place];
        match (known.first, piece.first) {
            (Some(First::Shows(_)), Some(_)) => {
                self.released.append(&mut known.waiting);
                self.forget_complete(place);
                Told::First
            }
            (Some(First::Shows(upper_layer)), None) => {
                self.forget_complete(place);
                Told::Known(upper_layer)
            }
            (Some(First::Esp), _) if is_complete(&known.parts) => {
                self.released.append(&mut known.waiting);
                self.known.remove(place);
                Told::Complete
            }
            (Some(First::Esp), _) => self.hold(place, waits_as, Told::Part),
            (None, _) => self.hold(place, waits_as, Told::Unknown),
        }
    }

    fn hold(&mut self, place: usize, waits_as: Option<u32>, otherwise: Told) -> Told {
        let Some(fragment) = waits_as else { return otherwise };
        if self.has_room_to_wait(place) {
            self.known[place].waiting.push(fragment);
            return Told::Held;
        }
        let reason = DropReason::FragmentLimit;
        if otherwise == Told::Part {
            // Without this one it never becomes whole.
            let waiting = std::mem::take(&mut self.known[place].waiting);
            self.dropped.extend(waiting.into_iter().map(|fragment| (fragment, reason)));
            self.known[place].refused = Some(reason);
        }
        Told::Dropped(reason)
    }

    pub(super) fn expire(&mut self, now_ns: u64) {
        let patience_ns = self.limits.patience_ns;
        self.forget(DropReason::FragmentTimeout, |known| now_ns - known.since_ns >= patience_ns);
    }

    pub(super) fn forget_port(&mut self, port: PortId) {
        self.forget(DropReason::FragmentTimeout, |known| known.datagram.way.ingress == port);
    }

    fn forget(&mut self, reason: DropReason, is_gone: impl Fn(&Known) -> bool) {
        for known in std::mem::take(&mut self.known) {
            if is_gone(&known) {
                self.dropped.extend(known.waiting.into_iter().map(|fragment| (fragment, reason)));
            } else {
                self.known.push(known);
            }
        }
    }

    fn forget_complete(&mut self, place: usize) {
        if is_complete(&self.known[place].parts) {
            self.known.remove(place);
        }
    }

    /// The oldest of the sender, then of the port, then of all gives way.
    fn make_room(&mut self, datagram: &Datagram) {
        let of_sender = |known: &Known| known.datagram.sender() == datagram.sender();
        let of_port = |known: &Known| known.datagram.way.ingress == datagram.way.ingress;
        let bounds = self.limits.datagrams;
        self.keep_below(bounds.sender, of_sender);
        self.keep_below(bounds.port, of_port);
        self.keep_below(bounds.all, |_| true);
    }

    fn keep_below(&mut self, bound: usize, counts: impl Fn(&Known) -> bool) {
        if self.known.iter().filter(|known| counts(known)).count() >= bound {
            let oldest = self.known.iter().position(counts).unwrap();
            let waiting = self.known.remove(oldest).waiting;
            let reason = DropReason::FragmentLimit;
            self.dropped.extend(waiting.into_iter().map(|fragment| (fragment, reason)));
        }
    }

    fn has_room_to_wait(&self, place: usize) -> bool {
        let Known { datagram, waiting, .. } = &self.known[place];
        let waits = |counts: &dyn Fn(&Known) -> bool| -> usize {
            self.known.iter().filter(|known| counts(known)).map(|known| known.waiting.len()).sum()
        };
        let Limits { held, held_a_datagram, .. } = self.limits;
        waiting.len() < held_a_datagram
            && waits(&|known| known.datagram.sender() == datagram.sender()) < held.sender
            && waits(&|known| known.datagram.way.ingress == datagram.way.ingress) < held.port
            && waits(&|_| true) < held.all
    }
}

fn is_complete(parts: &[Part]) -> bool {
    let end = parts.iter().find(|part| part.is_last).map(|part| part.end);
    let come: u32 = parts.iter().map(|part| u32::from(part.end - part.start)).sum();
    end.map(u32::from) == Some(come)
}

fn fault(parts: &[Part], new: Part) -> Option<DropReason> {
    let overlaps = |part: &Part| part.start < new.end && new.start < part.end;
    let lies_behind = |last: &Part, other: &Part| last.is_last && other.end > last.end;
    let contradicts = |part: &Part| {
        overlaps(part)
            || lies_behind(part, &new)
            || lies_behind(&new, part)
            || part.is_last && new.is_last
    };
    if parts.iter().any(contradicts) {
        return Some(DropReason::FragmentOverlap);
    }
    let mut all: Vec<Part> = parts.iter().copied().chain([new]).collect();
    all.sort_by_key(|part| part.start);
    let gaps = all.windows(2).filter(|pair| pair[0].end != pair[1].start).count();
    (gaps + 1 > MOST).then_some(DropReason::FragmentLimit)
}
