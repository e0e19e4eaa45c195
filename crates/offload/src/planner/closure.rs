//! Closures: what must be in the card before a rule (DESIGN I4).
//!
//! A closure is gathered from the rule upwards, and given up as soon as it takes more entries than
//! the card has. What is found is kept; the effort of all of it together is bounded, because rules
//! may overlap as much as they like.

use std::ops::ControlFlow;

use wire::Family;

use crate::capabilities::{Order, RuleAbilities};
use crate::index::{Index, Seen};
use crate::reason::{Reason, RuleKey};
use crate::unit::Unit;

use super::Standing;

/// Nodes and entries of the index that closures look at, all together: half a
/// second of work, about.
const MOST_STEPS: u64 = 20_000_000;

/// The rules that must be in the card with a rule, or the reason why it may not be there.
#[derive(Clone, Debug)]
pub(super) enum Closure {
    /// It may be there with these rules, in no order, itself not among them.
    Open(Box<[u32]>),
    /// It may not.
    Blocked(Reason),
}

/// The rules that win over a rule and decide otherwise, or the reason why it may not be in the
/// card.
type Direct = Result<Box<[u32]>, Reason>;

/// The closures of rules, found when they are first asked for.
pub(super) struct Closures<'u, 'p> {
    units: &'u [Unit<'p>],
    standing: &'u Standing,
    order: Order,
    capacity: u64,
    indexes: [Index; 2],
    seen: Seen,
    gathered: Seen,
    steps: u64,
    known: Vec<Option<Closure>>,
    direct: Vec<Option<Direct>>,
}

impl<'u, 'p> Closures<'u, 'p> {
    pub(super) fn new(
        units: &'u [Unit<'p>],
        standing: &'u Standing,
        card: &RuleAbilities,
    ) -> Closures<'u, 'p> {
        let of = |family: Family| {
            Index::new((0..).zip(units).filter(move |(_, unit)| unit.key.family == family))
        };
        Closures {
            units,
            standing,
            order: card.order,
            capacity: u64::from(card.entries),
            indexes: [of(Family::V4), of(Family::V6)],
            seen: Seen::of(units.len()),
            gathered: Seen::of(units.len()),
            steps: 0,
            known: vec![None; units.len()],
            direct: vec![None; units.len()],
        }
    }

    /// The closure of a rule.
    pub(super) fn of(&mut self, unit: u32) -> &Closure {
        if self.known[unit as usize].is_none() {
            let closure = match self.gather(unit) {
                Ok(members) => Closure::Open(members),
                Err(reason) => Closure::Blocked(reason),
            };
            self.known[unit as usize] = Some(closure);
        }
        self.known[unit as usize].as_ref().expect("found just now")
    }

    /// The closure of a rule, if somebody asked for it.
    pub(super) fn known(&self, unit: usize) -> Option<&Closure> {
        self.known[unit].as_ref()
    }

    /// The rules that win over a rule with an open closure and decide otherwise.
    pub(super) fn guards(&mut self, unit: u32) -> Box<[RuleKey]> {
        let key = |winner: &u32| self.units[*winner as usize].key;
        match &self.direct[unit as usize] {
            Some(Ok(winners)) => winners.iter().map(key).collect(),
            _ => unreachable!("what is in the card has an open closure"),
        }
    }

    /// Gathers the closure of a rule.
    fn gather(&mut self, unit: u32) -> Result<Box<[u32]>, Reason> {
        let units = self.units;
        self.gathered.begin();
        self.gathered.is_new(unit);
        let mut entries = units[unit as usize].entries.map_or(0, u64::from);
        let mut closure: Vec<u32> = Vec::new();
        let mut next = unit;
        for done in 0.. {
            let winners = match self.direct(next) {
                Ok(winners) => winners,
                Err(reason) if next == unit => return Err(reason.clone()),
                Err(reason) => return Err(because(units[next as usize].key, reason)),
            };
            let before = closure.len();
            closure.extend(winners);
            let mut kept = before;
            for place in before..closure.len() {
                let member = closure[place];
                if self.gathered.is_new(member) {
                    entries += units[member as usize].entries.map_or(0, u64::from);
                    closure[kept] = member;
                    kept += 1;
                }
            }
            closure.truncate(kept);
            if entries > self.capacity {
                return Err(Reason::BundleTooLarge);
            }
            match closure.get(done) {
                Some(member) => next = *member,
                None => break,
            }
        }
        Ok(closure.into())
    }

    /// The rules that win over a rule and decide otherwise.
    fn direct(&mut self, unit: u32) -> Result<&[u32], &Reason> {
        if self.direct[unit as usize].is_none() {
            self.direct[unit as usize] = Some(self.look_for_winners(unit));
        }
        let known = self.direct[unit as usize].as_ref().expect("found just now");
        known.as_ref().map(|winners| &**winners)
    }

    fn look_for_winners(&mut self, unit: u32) -> Direct {
        let of = &self.units[unit as usize];
        if let Some(refusal) = self.standing.refused.get(&of.key) {
            return Err(Reason::Refused(refusal.clone()));
        }
        let mut entries = of.entries.map(u64::from).map_err(Reason::Inexact)?;
        if entries > self.capacity {
            return Err(Reason::BundleTooLarge);
        }
        if self.steps > MOST_STEPS {
            return Err(Reason::Effort);
        }
        let mut winners = Vec::new();
        let index = &self.indexes[of.key.family as usize];
        let (units, order, standing) = (self.units, self.order, self.standing);
        let looked = (&mut self.seen, &mut self.steps);
        let blocked = index.winners(units, of, looked, |winner| {
            let unit = &units[winner as usize];
            if order == Order::None {
                return ControlFlow::Break(Reason::Order(unit.key));
            }
            let more = match unit.entries {
                Err(inexact) => return ControlFlow::Break(Reason::Beaten(unit.key, inexact)),
                Ok(_) if standing.refused.contains_key(&unit.key) => {
                    return ControlFlow::Break(Reason::BeatenByRefused(unit.key));
                }
                Ok(more) => more,
            };
            winners.push(winner);
            entries += u64::from(more);
            match entries > self.capacity {
                true => ControlFlow::Break(Reason::BundleTooLarge),
                false => ControlFlow::Continue(()),
            }
        });
        blocked.map_or(Ok(winners.into()), Err)
    }
}

/// The reason of a rule below one which itself cannot be in the card.
fn because(winner: RuleKey, reason: &Reason) -> Reason {
    match reason {
        Reason::Inexact(inexact) | Reason::Beaten(_, inexact) => Reason::Beaten(winner, *inexact),
        Reason::Refused(_) | Reason::BeatenByRefused(_) => Reason::BeatenByRefused(winner),
        Reason::Order(by) => Reason::Order(*by),
        Reason::Effort => Reason::Effort,
        Reason::BundleTooLarge | Reason::NoPackets | Reason::Capacity | Reason::Moves => {
            Reason::BundleTooLarge
        }
    }
}
