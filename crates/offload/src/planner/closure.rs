//! Closures: what must be in the card before a rule (DESIGN I4).

use std::ops::ControlFlow;

use wire::Family;

use crate::capabilities::{Order, RuleAbilities};
use crate::index::{Index, Seen};
use crate::reason::{Reason, RuleKey};
use crate::unit::Unit;

use super::Standing;

/// The rules that must be in the card with a rule, or the reason why it may not be there.
#[derive(Clone, Debug)]
pub(super) enum Closure {
    /// It may be there with these rules, in no order, itself not among them.
    Open(Box<[u32]>),
    /// It may not.
    Blocked(Reason),
}

/// The closures of rules, found when they are first asked for.
pub(super) struct Closures<'u, 'p> {
    units: &'u [Unit<'p>],
    standing: &'u Standing,
    order: Order,
    capacity: u64,
    indexes: [Index; 2],
    seen: Seen,
    gathered: Seen,
    known: Vec<Option<Closure>>,
    /// Rules that win directly, of those whose closure is being looked for.
    winners: Vec<Option<Box<[u32]>>>,
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
            known: vec![None; units.len()],
            winners: vec![None; units.len()],
        }
    }

    /// The closure of a rule.
    pub(super) fn of(&mut self, unit: u32) -> &Closure {
        if self.known[unit as usize].is_none() {
            self.settle(unit);
        }
        self.known[unit as usize].as_ref().expect("settled just now")
    }

    /// The closure of a rule, if somebody asked for it.
    pub(super) fn known(&self, unit: usize) -> Option<&Closure> {
        self.known[unit].as_ref()
    }

    /// The rules that win over a rule with an open closure and decide otherwise.
    pub(super) fn guards(&mut self, unit: u32) -> Box<[RuleKey]> {
        if self.order == Order::None {
            return Box::default();
        }
        let of = &self.units[unit as usize];
        let mut guards = Vec::new();
        let index = &self.indexes[of.key.family as usize];
        let none: Option<()> = index.winners(self.units, of, &mut self.seen, |winner| {
            guards.push(self.units[winner as usize].key);
            ControlFlow::Continue(())
        });
        debug_assert!(none.is_none());
        guards.into()
    }

    /// Finds the closure of a rule, winners before it. Not by recursion: chains may be long.
    fn settle(&mut self, unit: u32) {
        let mut stack = vec![unit];
        while let Some(&top) = stack.last() {
            if self.known[top as usize].is_some() {
                stack.pop();
                continue;
            }
            if self.winners[top as usize].is_none() {
                match self.direct(top) {
                    Ok(winners) => self.winners[top as usize] = Some(winners),
                    Err(reason) => {
                        self.known[top as usize] = Some(Closure::Blocked(reason));
                        continue;
                    }
                }
            }
            let winners = self.winners[top as usize].as_ref().expect("found just now");
            // A winner has a higher rank, so that no chain comes back to where it began.
            let open = winners.iter().find(|winner| self.known[**winner as usize].is_none());
            match open {
                Some(&winner) => stack.push(winner),
                None => {
                    let closure = self.gather(top);
                    self.known[top as usize] = Some(closure);
                    self.winners[top as usize] = None;
                }
            }
        }
    }

    /// The rules that win over a rule and decide otherwise, if all of them can be in the card.
    fn direct(&mut self, unit: u32) -> Result<Box<[u32]>, Reason> {
        let of = &self.units[unit as usize];
        let own = self.entries(of)?;
        if own > self.capacity {
            return Err(Reason::BundleTooLarge);
        }
        let (mut winners, mut entries) = (Vec::new(), own);
        let index = &self.indexes[of.key.family as usize];
        let (units, order, standing) = (self.units, self.order, self.standing);
        let blocked = index.winners(units, of, &mut self.seen, |winner| {
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

    /// Entries of a rule by itself.
    fn entries(&self, unit: &Unit<'_>) -> Result<u64, Reason> {
        if let Some(refusal) = self.standing.refused.get(&unit.key) {
            return Err(Reason::Refused(refusal.clone()));
        }
        unit.entries.map(u64::from).map_err(Reason::Inexact)
    }

    /// The closure of a rule whose winners' closures are known.
    fn gather(&mut self, unit: u32) -> Closure {
        let winners = self.winners[unit as usize].as_ref().expect("its winners are known");
        let of = |place: u32| &self.units[place as usize];
        let mut entries = of(unit).entries.map_or(0, u64::from);
        let mut closure = Vec::new();
        self.gathered.begin();
        for &winner in winners {
            let above = match self.known[winner as usize].as_ref() {
                Some(Closure::Open(above)) => above,
                Some(Closure::Blocked(reason)) => {
                    return Closure::Blocked(because(of(winner).key, reason));
                }
                None => unreachable!("winners are settled first"),
            };
            for &member in [winner].iter().chain(above) {
                if self.gathered.is_new(member) {
                    entries += of(member).entries.map_or(0, u64::from);
                    closure.push(member);
                }
            }
            if entries > self.capacity {
                return Closure::Blocked(Reason::BundleTooLarge);
            }
        }
        Closure::Open(closure.into())
    }
}

/// The reason of a rule that one wins over which itself cannot be in the card.
fn because(winner: RuleKey, reason: &Reason) -> Reason {
    match reason {
        Reason::Inexact(inexact) | Reason::Beaten(_, inexact) => Reason::Beaten(winner, *inexact),
        Reason::Refused(_) | Reason::BeatenByRefused(_) => Reason::BeatenByRefused(winner),
        Reason::Order(by) => Reason::Order(*by),
        Reason::BundleTooLarge | Reason::NoPackets | Reason::Capacity | Reason::Moves => {
            Reason::BundleTooLarge
        }
    }
}
