//! The planner: which rules a card should have.
//!
//! ```text
//! rules ─▶ what the card can say (express.rs) ─▶ what is safe there (closure) ─▶ what is worth it
//! ```
//!
//! * **Exact** (DESIGN I5): a rule that the card cannot say is not placed.
//! * **Safe** (I4): a rule is in the card only with every rule that wins over it, decides otherwise
//!   and has packets in common with it; on a card that keeps no order, only if there is none. What
//!   must be there first is its *closure*; a rule with its closure is a *bundle*.
//! * **Worth it**: bundles by packets for each entry, under the entries of the whole card. What is
//!   in the card counts [`RESIDENT_TIMES`] as much, so that places do not change hands for a burst,
//!   and what is to take another's place must have been busy for a while ([`Seasons`]).
//!
//! A pure function of the rules, their packets, what the card can and what it has.
//!
//! Marks say which rule of the ingress groups decides a packet. Whoever reads them reads none of a
//! packet that those groups are not asked about (what the gateway opens, takes apart, or sends
//! itself), nor of one that a card may see otherwise than the walk does: fragments, IPv4 options,
//! IPv6 extension headers. So a mark on such a packet does no harm, and only a card that *drops*
//! must leave them alone.
//!
//! [`Seasons`]: crate::Seasons

mod choice;
mod closure;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use policy::{Action, GroupSide, Policy, PolicyIndex, Selector};
use wire::Family;

use crate::capabilities::{Capabilities, RuleAbilities};
use crate::card::Refusal;
use crate::decision::Decision;
use crate::express::{Expressed, common_ports};
use crate::item::{CardRule, Effect};
use crate::reason::{Inexact, Reason, RuleKey};
use crate::unit::{Unit, overlap};
use choice::Choice;
use closure::Closures;

/// A rule in the card counts this many times as much as one that would take its place.
pub const RESIDENT_TIMES: u64 = 2;
/// Rules that are looked at first, for each entry of the card.
const CANDIDATES_AN_ENTRY: usize = 4;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A problem to plan for.
#[derive(Clone, Copy)]
pub struct Problem<'p> {
    /// All rules and policies that hold, in any order.
    pub rules: &'p [(PolicyIndex, &'p Policy)],
    /// Ports of the card, as rules name them, ascending.
    pub ports: &'p [u16],
    /// Further ports of the card, whose rules it is not to decide (`offload_groups = "none"`).
    pub unused: &'p [u16],
    /// The card's abilities.
    pub card: &'p Capabilities,
    /// The card's action on packets that a rule denies.
    pub effect: Effect,
    /// Packets that come by ports of the card and that its groups are not asked about.
    pub own: &'p [Selector],
    /// Packets that the rule of a slot decided in the last period.
    pub packets: &'p dyn Fn(PolicyIndex) -> u64,
    /// Rules that the card has, and those that it refused.
    pub standing: &'p Standing,
    /// Rules that go into the card at most.
    pub most_moves: usize,
}

/// The rules of a card.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// Rules in the card, or that it was asked for, and that nobody asked to go.
    pub placed: HashMap<RuleKey, Arc<CardRule>>,
    /// Rules that the card refused and that it is not asked for again yet.
    pub refused: HashMap<RuleKey, Refusal>,
    /// Rules that have been busy long enough to take others' places.
    pub seasoned: HashSet<RuleKey>,
    /// Changes of rules that the ledger was told of.
    pub revision: u64,
}

/// A rule that is to be in the card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placing {
    /// The rule.
    pub key: RuleKey,
    /// The rule in the card's words.
    pub rule: Arc<CardRule>,
    /// The policy that it says.
    pub policy: Arc<Policy>,
    /// Rules that must be in the card before it.
    pub guards: Box<[RuleKey]>,
    /// Its turn among the rules of the plan: those that decide most packets for their entries come
    /// first, each behind its guards.
    pub turn: u32,
}

/// The plan for a card.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Rules in the card that stay, and are safe there.
    pub keep: Vec<Placing>,
    /// Rules to be placed, winners first; they go into the card by their turns.
    pub place: Vec<Placing>,
    /// Rules to be withdrawn, in this order: losers first. One that is to be there with other words
    /// is in [`place`](Self::place) too.
    pub withdraw: Vec<RuleKey>,
    /// All other rules, with the reason; in the order of the rules.
    pub left: Vec<(RuleKey, Reason)>,
    /// Entries that the card has then.
    pub entries: u64,
    /// Packets of the period whose verdict the card would have had.
    pub share: Share,
    /// Changes of rules that the ledger had been told of.
    pub revision: u64,
}

/// A share of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Packets that rules in the card decided.
    pub tagged: u64,
    /// All packets that rules of the card's ports decided.
    pub of: u64,
}

impl Share {
    /// The share, from 0 to 1; 0 of nothing.
    pub fn fraction(self) -> f64 {
        if self.of == 0 { 0.0 } else { self.tagged as f64 / self.of as f64 }
    }
}

/// Plans.
pub fn plan(problem: &Problem<'_>) -> Plan {
    let mut plan = Plan { revision: problem.standing.revision, ..Plan::default() };
    let Some(card) = problem.card.rules.get() else {
        let keys = problem.rules.iter().flat_map(|(slot, policy)| keys(*slot, policy));
        plan.left.extend(keys.map(|key| (key, Reason::Inexact(Inexact::NoRules))));
        plan.withdraw = problem.standing.placed.keys().copied().collect();
        plan.withdraw.sort_unstable();
        return plan;
    };
    let units = units(problem, card, &mut plan.left);
    let mut closures = Closures::new(&units, problem.standing, card);
    let choice = Choice::of(problem, card, &units, &mut closures);
    finish(problem, card, &units, &mut closures, &choice, &mut plan);
    plan
}

/// The rules of a policy.
fn keys(slot: PolicyIndex, policy: &Policy) -> impl Iterator<Item = RuleKey> + use<'_> {
    let has = |family: &Family| policy.selector.rules_of_group(*family) > 0;
    FAMILIES.into_iter().filter(has).map(move |family| RuleKey { slot, family })
}

/// The rules that ports of the card ask; all others are left with their reason.
fn units<'p>(
    problem: &Problem<'p>,
    card: &RuleAbilities,
    left: &mut Vec<(RuleKey, Reason)>,
) -> Vec<Unit<'p>> {
    let reflects = |(_, policy): &(_, &Policy)| matches!(policy.action, Action::Reflect(_));
    let connections = match problem.rules.iter().any(reflects) {
        true => Connections::Tracked,
        false => Connections::None,
    };
    let mut units = Vec::with_capacity(problem.rules.len());
    let mut lists: HashMap<Vec<u16>, u32> = HashMap::new();
    for &(slot, policy) in problem.rules {
        let ports = common_ports(policy, problem.ports);
        let elsewhere = match policy.group {
            None => Some(Inexact::Policy),
            Some(GroupSide::Out) => Some(Inexact::Egress),
            Some(GroupSide::In) if !ports.is_empty() => None,
            Some(GroupSide::In) if common_ports(policy, problem.unused).is_empty() => {
                Some(Inexact::OtherPort)
            }
            Some(GroupSide::In) => Some(Inexact::OffloadNone),
        };
        let of_both = keys(slot, policy).count() as u64;
        for (place, key) in keys(slot, policy).enumerate() {
            if let Some(inexact) = elsewhere {
                left.push((key, Reason::Inexact(inexact)));
                continue;
            }
            let entries = entries(problem, card, key, policy, connections);
            // Packets are counted by policy: each family gets its part of them.
            let packets = (problem.packets)(slot);
            let hits = packets / of_both + u64::from((place as u64) < packets % of_both);
            let (rank, decision) = (policy.rank(), Decision::of(policy.action));
            let number = lists.len() as u32;
            let ports_number = *lists.entry(ports.clone()).or_insert(number);
            let ports = ports.clone().into();
            units.push(Unit { key, policy, rank, decision, ports, ports_number, entries, hits });
        }
    }
    units
}

/// The connections of packets that come by ports of the card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Connections {
    /// None are followed.
    None,
    /// A rule lets some begin, whose packets pass whatever rules say.
    Tracked,
}

/// Entries that a rule takes in the card, or the reason why it cannot be there.
fn entries(
    problem: &Problem<'_>,
    card: &RuleAbilities,
    key: RuleKey,
    policy: &Policy,
    connections: Connections,
) -> Result<u32, Inexact> {
    let expressed = Expressed::new(policy, key.family, problem.ports, card)?;
    if problem.effect == Effect::Drop && Decision::of(policy.action).drops() {
        let meets = |own: &Selector| policy.selector.overlaps_in(own, key.family);
        match () {
            () if !card.drop.is_there() => return Err(Inexact::NoDrop),
            () if !card.fragments.is_there() => return Err(Inexact::Fragments),
            () if connections == Connections::Tracked => return Err(Inexact::Connections),
            () if problem.own.iter().any(meets) => return Err(Inexact::OwnTraffic),
            () => {}
        }
    }
    Ok(expressed.entries() as u32)
}

/// Writes the chosen rules down, and the reasons of the others.
fn finish(
    problem: &Problem<'_>,
    card: &RuleAbilities,
    units: &[Unit<'_>],
    closures: &mut Closures<'_, '_>,
    choice: &Choice,
    plan: &mut Plan,
) {
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_unstable_by_key(|place| std::cmp::Reverse((units[*place].rank, units[*place].key)));
    let mut leaving: Vec<RuleKey> = Vec::new();
    let mut standing: HashSet<RuleKey> = problem.standing.placed.keys().copied().collect();
    for place in order {
        let unit = &units[place];
        plan.share.of = plan.share.of.saturating_add(unit.hits);
        let before = problem.standing.placed.get(&unit.key);
        standing.remove(&unit.key);
        let Some(turn) = choice.turn(place) else {
            leaving.extend(before.map(|_| unit.key));
            let reason = choice.reason(place, unit, closures);
            plan.left.push((unit.key, reason));
            continue;
        };
        plan.share.tagged = plan.share.tagged.saturating_add(unit.hits);
        let placing = placing(problem, card, unit, turn, closures.guards(place as u32));
        plan.entries += placing.rule.entries() as u64;
        match before {
            Some(rule) if **rule == *placing.rule => plan.keep.push(placing),
            Some(_) => {
                leaving.push(unit.key);
                plan.place.push(placing);
            }
            None => plan.place.push(placing),
        }
    }
    // What is in the card and in no book any more goes too.
    let mut gone: Vec<RuleKey> = standing.into_iter().collect();
    gone.sort_unstable();
    plan.withdraw = gone;
    plan.withdraw.extend(leaving.into_iter().rev());
    plan.left.sort_by_key(|(key, _)| *key);
}

fn placing(
    problem: &Problem<'_>,
    card: &RuleAbilities,
    unit: &Unit<'_>,
    turn: u32,
    guards: Box<[RuleKey]>,
) -> Placing {
    let expressed = Expressed::new(unit.policy, unit.key.family, problem.ports, card);
    let effect = match unit.decision.drops() {
        true => problem.effect,
        false => Effect::Mark,
    };
    let rule = expressed.expect("what is chosen can be said").rule(unit.rank, effect);
    let (rule, policy) = (Arc::new(rule), Arc::new(unit.policy.clone()));
    Placing { key: unit.key, rule, policy, guards, turn }
}

impl Placing {
    /// Returns whether a rule that ports of the card ask wins over this one and decides otherwise,
    /// and a packet may match both.
    pub(crate) fn is_beaten_by(&self, policy: &Policy) -> bool {
        policy.group == Some(GroupSide::In)
            && policy.rank() > self.policy.rank()
            && Decision::of(policy.action) != Decision::of(self.policy.action)
            && !common_ports(policy, &self.rule.ports).is_empty()
            && overlap(policy, &self.policy, self.key.family)
    }
}
