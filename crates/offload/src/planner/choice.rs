//! The choice among rules that may be in the card: the most packets for its entries.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::capabilities::RuleAbilities;
use crate::reason::Reason;
use crate::unit::Unit;

use super::closure::{Closure, Closures};
use super::{CANDIDATES_AN_ENTRY, Problem, RESIDENT_TIMES, Standing};

/// Fixed-point bits of a score.
const SCORE_BITS: u32 = 16;

/// Rules that are to be in the card.
pub(super) struct Choice {
    /// The turn of each rule that was chosen: the best bundle first, and in it winners first.
    turns: Vec<Option<u32>>,
    chosen: u32,
    /// Rules that were passed over because of the bound on moves.
    not_moved: Vec<bool>,
}

/// The choice while it is made.
struct Choosing<'c, 'u, 'p> {
    problem: &'c Problem<'p>,
    units: &'u [Unit<'p>],
    closures: &'c mut Closures<'u, 'p>,
    choice: Choice,
    room: u64,
    moves: usize,
}

/// A bundle as it would be added now.
struct Bundle {
    members: Vec<u32>,
    entries: u64,
    moves: usize,
    score: u128,
}

impl Choice {
    /// Chooses: first among what is in the card and what may take its place, then among all others
    /// for the room that is left.
    pub(super) fn of<'u, 'p>(
        problem: &Problem<'p>,
        card: &RuleAbilities,
        units: &'u [Unit<'p>],
        closures: &mut Closures<'u, 'p>,
    ) -> Choice {
        let (turns, not_moved) = (vec![None; units.len()], vec![false; units.len()]);
        let choice = Choice { turns, chosen: 0, not_moved };
        let room = u64::from(card.entries);
        let mut choosing = Choosing { problem, units, closures, choice, room, moves: 0 };
        choosing.all(card.entries as usize);
        choosing.choice
    }

    /// The turn of a rule, if it was chosen.
    pub(super) fn turn(&self, unit: usize) -> Option<u32> {
        self.turns[unit]
    }

    fn choose(&mut self, unit: u32) {
        self.turns[unit as usize] = Some(self.chosen);
        self.chosen += 1;
    }

    /// The reason why a rule was not chosen.
    pub(super) fn reason(
        &self,
        place: usize,
        unit: &Unit<'_>,
        closures: &Closures<'_, '_>,
    ) -> Reason {
        match (unit.entries, closures.known(place)) {
            (Err(inexact), _) => Reason::Inexact(inexact),
            (_, Some(Closure::Blocked(reason))) => reason.clone(),
            _ if unit.hits == 0 => Reason::NoPackets,
            _ if self.not_moved[place] => Reason::Moves,
            _ => Reason::Capacity,
        }
    }
}

impl<'u, 'p> Choosing<'_, 'u, 'p> {
    fn all(&mut self, capacity: usize) {
        let standing = self.problem.standing;
        let is_resident = |unit: &Unit<'_>| standing.placed.contains_key(&unit.key);
        let (mut first, mut others) = (Vec::new(), Vec::new());
        for (place, unit) in (0..).zip(self.units) {
            if unit.entries.is_err() || (unit.hits == 0 && !is_resident(unit)) {
                continue;
            }
            let is_first = is_resident(unit) || standing.seasoned.contains(&unit.key);
            if is_first {
                first.push(place)
            } else {
                others.push(place)
            }
            if is_resident(unit) {
                // Before the bound on effort is reached: none goes because others are looked at.
                self.closures.of(place);
            }
        }
        let by_use = |units: &[Unit<'_>], place: u32| {
            let unit = &units[place as usize];
            let entries = unit.entries.map_or(1, u64::from);
            Reverse((score(worth(standing, unit), entries), unit.rank))
        };
        let at_once = (capacity * CANDIDATES_AN_ENTRY).max(1);
        for list in [&mut first, &mut others] {
            list.sort_by_cached_key(|place| by_use(self.units, *place));
            for candidates in list.chunks(at_once) {
                if self.room == 0 {
                    break;
                }
                self.choose(candidates);
            }
        }
    }

    /// Chooses among some rules, the best bundle first.
    fn choose(&mut self, candidates: &[u32]) {
        let mut heap = BinaryHeap::new();
        for &unit in candidates {
            if let Some(bundle) = self.bundle(unit) {
                heap.push((bundle.score, Reverse(unit)));
            }
        }
        while let Some((score, Reverse(unit))) = heap.pop() {
            let Some(bundle) = self.bundle(unit).filter(|bundle| bundle.entries <= self.room)
            else {
                continue;
            };
            let next_best = heap.peek().map_or(0, |(score, _)| *score);
            if bundle.score < score && bundle.score < next_best {
                // Others have taken what made it worth more.
                heap.push((bundle.score, Reverse(unit)));
                continue;
            }
            if self.moves + bundle.moves > self.problem.most_moves {
                self.choice.not_moved[unit as usize] = true;
                continue;
            }
            self.room -= bundle.entries;
            self.moves += bundle.moves;
            let mut members = bundle.members;
            members.sort_unstable_by_key(|member| Reverse(self.units[*member as usize].rank));
            members.into_iter().for_each(|member| self.choice.choose(member));
        }
    }

    /// A rule with those of its closure that are not chosen yet. `None`: it is chosen, or may not
    /// be.
    fn bundle(&mut self, unit: u32) -> Option<Bundle> {
        if self.choice.turn(unit as usize).is_some() {
            return None;
        }
        let Closure::Open(closure) = self.closures.of(unit) else { return None };
        let is_new = |member: &u32| self.choice.turn(*member as usize).is_none();
        let members: Vec<u32> = closure.iter().copied().filter(is_new).chain([unit]).collect();
        let (mut packets, mut entries, mut moves) = (0u64, 0, 0);
        for &member in &members {
            let unit = &self.units[member as usize];
            packets = packets.saturating_add(worth(self.problem.standing, unit));
            entries += unit.entries.map_or(0, u64::from);
            moves += usize::from(!self.problem.standing.placed.contains_key(&unit.key));
        }
        Some(Bundle { members, entries, moves, score: score(packets, entries) })
    }
}

/// Packets of a rule, for comparing.
fn worth(standing: &Standing, unit: &Unit<'_>) -> u64 {
    let times = if standing.placed.contains_key(&unit.key) { RESIDENT_TIMES } else { 1 };
    unit.hits.saturating_mul(times)
}

/// Packets for each entry.
fn score(packets: u64, entries: u64) -> u128 {
    (u128::from(packets) << SCORE_BITS) / u128::from(entries.max(1))
}
