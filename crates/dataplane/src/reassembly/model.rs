//! The table told plainly: one list of datagrams by age, searched from end to end.

use super::datagram::Datagram;
use super::ranges::{MOST, Part, REMEMBERED_PARTS};
use super::table::{First, Limits, Piece};
use crate::fair_shares::model::SharesModel;
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
    number: u32,
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
    next_number: u32,
    datagram_shares: SharesModel,
    held_shares: SharesModel,
    pub(super) released: Vec<u32>,
    pub(super) dropped: Vec<(u32, DropReason)>,
}

impl Model {
    pub(super) fn new(limits: Limits) -> Model {
        Model {
            limits,
            known: vec![],
            next_number: 0,
            datagram_shares: SharesModel::default(),
            held_shares: SharesModel::default(),
            released: vec![],
            dropped: vec![],
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.known.iter().map(|known| known.waiting.len()).sum()
    }

    /// Takes a fragment in, which waits if it may and has a number to wait under.
    pub(super) fn take_in(&mut self, now_ns: u64, piece: &Piece, waits_as: Option<u32>) -> Told {
        self.expire(now_ns);
        let is_it = |known: &Known| known.datagram == piece.datagram;
        if !self.known.iter().any(is_it) {
            self.insert(now_ns, piece.datagram);
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
            self.refuse(place, reason);
            return Told::Dropped(reason);
        }
        self.known[place].parts.push(piece.part);
        if let Some(Ok(first)) = piece.first {
            self.known[place].first = Some(first);
        }
        let known = &self.known[place];
        match (known.first, piece.first) {
            (Some(First::Shows(_)), Some(_)) => {
                self.release(place);
                self.forget_complete(place);
                Told::First
            }
            (Some(First::Shows(upper_layer)), None) => {
                self.forget_complete(place);
                Told::Known(upper_layer)
            }
            (Some(First::Esp), _) if is_complete(&known.parts) => {
                self.release(place);
                self.remove(place);
                Told::Complete
            }
            (Some(First::Esp), _) => self.hold(place, waits_as, Told::Part),
            (None, _) => self.hold(place, waits_as, Told::Unknown),
        }
    }

    fn insert(&mut self, now_ns: u64, datagram: Datagram) {
        let (number, since_ns) = (self.next_number, now_ns);
        let (parts, waiting) = (vec![], vec![]);
        let known =
            Known { number, datagram, since_ns, parts, first: None, refused: None, waiting };
        self.next_number += 1;
        self.known.push(known);
        self.datagram_shares.join(number, datagram.sender());
        let bound = self.limits.datagrams;
        if self.known.len() > bound.all {
            let number = self.datagram_shares.eviction_candidate(bound.guarantee).unwrap();
            let gives_way = self.known.iter().position(|known| known.number == number).unwrap();
            self.drop_waiting(gives_way, DropReason::FragmentLimit);
            self.remove(gives_way);
        }
    }

    fn hold(&mut self, place: usize, waits_as: Option<u32>, otherwise: Told) -> Told {
        let Some(fragment) = waits_as else { return otherwise };
        if self.known[place].waiting.len() >= self.limits.held_a_datagram {
            self.refuse(place, DropReason::FragmentLimit);
            return Told::Dropped(DropReason::FragmentLimit);
        }
        self.known[place].waiting.push(fragment);
        self.held_shares.join(fragment, self.known[place].datagram.sender());
        let bound = self.limits.held;
        if self.waiting() > bound.all {
            let fragment = self.held_shares.eviction_candidate(bound.guarantee).unwrap();
            let has_it = |known: &Known| known.waiting.contains(&fragment);
            let gives_way = self.known.iter().position(has_it).unwrap();
            self.refuse(gives_way, DropReason::FragmentLimit);
        }
        Told::Held
    }

    fn refuse(&mut self, place: usize, reason: DropReason) {
        self.known[place].refused = Some(reason);
        self.drop_waiting(place, reason);
    }

    fn release(&mut self, place: usize) {
        let waiting = self.take_waiting(place);
        self.released.extend(waiting);
    }

    fn drop_waiting(&mut self, place: usize, reason: DropReason) {
        let waiting = self.take_waiting(place);
        self.dropped.extend(waiting.into_iter().map(|fragment| (fragment, reason)));
    }

    fn take_waiting(&mut self, place: usize) -> Vec<u32> {
        let waiting = std::mem::take(&mut self.known[place].waiting);
        waiting.iter().for_each(|fragment| self.held_shares.leave(*fragment));
        waiting
    }

    fn remove(&mut self, place: usize) {
        let known = self.known.remove(place);
        self.datagram_shares.leave(known.number);
    }

    pub(super) fn expire(&mut self, now_ns: u64) {
        let patience_ns = self.limits.patience_ns;
        self.forget(DropReason::FragmentTimeout, |known| now_ns - known.since_ns >= patience_ns);
    }

    pub(super) fn forget_port(&mut self, port: PortId) {
        self.forget(DropReason::FragmentTimeout, |known| known.datagram.way.ingress == port);
    }

    fn forget(&mut self, reason: DropReason, is_gone: impl Fn(&Known) -> bool) {
        while let Some(place) = self.known.iter().position(&is_gone) {
            self.drop_waiting(place, reason);
            self.remove(place);
        }
    }

    fn forget_complete(&mut self, place: usize) {
        if is_complete(&self.known[place].parts) {
            self.remove(place);
        }
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
