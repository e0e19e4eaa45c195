//! A gateway whose SAs are in a card, beside one whose SAs are software's: what comes of any packet
//! is equal, but for what cards do not carry.

use std::collections::BTreeMap;

use dataplane::{DropReason, FastPathUse, SetIndex, Verdict};
use emulated_card::Loss;
use packets::lab::{BERLIN, CARLA, DORA, Hub, Laboratory};
use packets::table::opened;
use packets::{Out, Row};

use super::emulated::{CardOnWire, is_carried};
use crate::all_rows;

/// Reasons of what is wrong with a sealed packet: the card drops it, and the gateway gets nothing.
pub(super) const OF_ESP: [DropReason; 9] = [
    DropReason::Replayed,
    DropReason::TooOld,
    DropReason::Integrity,
    DropReason::BadPadding,
    DropReason::BadNextHeader,
    DropReason::Dummy,
    DropReason::Ecn,
    DropReason::Malformed,
    DropReason::NotIp,
];
/// Reasons that come of an SA's numbers and limits, which a card has for itself, and of the room in
/// a frame, of which a card needs none.
const OF_THE_SA: [DropReason; 3] =
    [DropReason::SequenceExhausted, DropReason::SaHardLimit, DropReason::Oversize];

/// The outcome of a packet.
#[derive(PartialEq, Debug)]
pub(super) struct Course {
    pub(super) verdicts: Vec<Verdict>,
    pub(super) out: Vec<Out>,
}

/// The kind of a difference between software and a card.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Difference {
    None,
    /// The card drops what software would drop too, or fragments and options.
    DroppedByCard,
    /// The walk keeps a packet back from the card, or does not open for it.
    KeptBack(DropReason),
    /// The numbers and the limits are others.
    OfTheSa,
}

impl Difference {
    /// Tells the difference; panics where none may be.
    pub(super) fn of(what: &str, by_software: &Course, by_card: &Course, losses: &[Loss]) -> Self {
        use DropReason::{CardFragmentTx, CardOptions, CardSa, DevMismatch};
        use Verdict::{Consumed, Drop, Forward, Host, Protect};
        let unlike = || panic!("{what}: {by_software:?} by software, {by_card:?}, {losses:?}");
        if by_card == by_software {
            return Difference::None;
        }
        let first = by_software.verdicts.first().copied();
        if matches!(first, Some(Drop(reason)) if OF_THE_SA.contains(&reason)) {
            return Difference::OfTheSa;
        }
        if !losses.is_empty() {
            let is_for_form = losses.iter().all(|it| matches!(it, Loss::Fragment | Loss::Options));
            let is_bad = matches!(first, Some(Drop(reason)) if OF_ESP.contains(&reason));
            return if is_for_form || is_bad { Difference::DroppedByCard } else { unlike() };
        }
        let [Drop(reason)] = by_card.verdicts[..] else { return unlike() };
        let may_be = match (reason, first) {
            (CardFragmentTx, Some(Protect(_) | Consumed | Drop(DropReason::TransportMode))) => true,
            // Of the pieces that a card does not get.
            (CardFragmentTx, Some(Drop(DropReason::NoFrame | DropReason::TooBig))) => true,
            (CardOptions, Some(Protect(_) | Drop(DropReason::TransportMode))) => true,
            (DevMismatch, Some(Protect(_))) => true,
            // Behind options, or by another port.
            (CardSa, Some(Host | Forward(_) | Drop(DropReason::Replayed))) => true,
            _ => false,
        };
        match may_be && by_card.out.is_empty() {
            true => Difference::KeptBack(reason),
            false => unlike(),
        }
    }
}

fn run(row: &Row, mut lab: Laboratory) -> Course {
    row.before.iter().for_each(|packet| drop(packet.arrive(&mut lab)));
    let outcome = row.packet.arrive(&mut lab);
    let out = opened(&mut lab, &outcome);
    Course { verdicts: outcome.verdicts, out }
}

/// The row with all SAs in a card that it can have.
fn in_card(row: &Row, fast: FastPathUse, entries: Option<usize>) -> (Course, CardOnWire) {
    let mut hub = Hub::default();
    (row.hub)(&mut hub);
    let sets = [BERLIN, CARLA, DORA];
    let sets: Vec<SetIndex> =
        sets.into_iter().filter(|set| is_carried(&hub.agreements[set.0 as usize])).collect();
    let card = CardOnWire::with(&mut hub, &sets);
    let lab = hub.laboratory().behind(card.clone()).with_fast_path(fast);
    let lab = match entries {
        Some(entries) => lab.remembering(entries),
        None => lab,
    };
    (run(row, lab), card)
}

// XO-07, XO-24, XO-25
#[test]
fn all_rows_come_out_alike_by_a_card_but_for_what_cards_do_not_carry() {
    let mut kinds: BTreeMap<Difference, u32> = BTreeMap::new();
    let ways = [(FastPathUse::Never, None), (FastPathUse::Eager, Some(256))];
    let own = super::rows().into_iter().map(|row| row.description).collect::<Vec<_>>();
    for row in all_rows().iter().filter(|row| !own.contains(&row.description)) {
        let mut hub = Hub::default();
        (row.hub)(&mut hub);
        let expected = run(row, hub.laboratory());
        for (fast, entries) in ways {
            let (got, card) = in_card(row, fast, entries);
            let kind = Difference::of(&row.description, &expected, &got, &card.losses());
            *kinds.entry(kind).or_default() += 1;
        }
    }
    println!("{kinds:#?}");
    assert!(kinds[&Difference::None] > 4000);
    for reason in [DropReason::CardFragmentTx, DropReason::CardOptions, DropReason::CardSa] {
        assert!(kinds[&Difference::KeptBack(reason)] > 10, "{reason}");
    }
}
