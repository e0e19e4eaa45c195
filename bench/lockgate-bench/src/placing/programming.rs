//! The time that a card takes to learn what is planned, and the packets that its tags decide
//! meanwhile. The card is emulated and its clock is moved by hand: nothing here is measured, it
//! follows from the card's time for an entry and from the rounds of the control thread.

use emulated_card::EmulatedCard;
use offload::{Capabilities, Card, Ledger, Plan, RuleAbilities, RuleKey};
use serde::Serialize;

use super::{Row, WrongPlan};

/// Milliseconds between two looks of the control thread at the card.
const ROUND_MS: u64 = 10;
/// Rounds at most.
const MOST_ROUNDS: u64 = 1_000_000;
/// Milliseconds after the plan for which the share is told.
const TOLD_MS: [u64; 6] = [50, 100, 500, 1000, 5000, 10_000];

/// The course of programming.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Programming {
    /// Milliseconds that the card takes for an entry.
    entry_ms: u32,
    /// Rules a second, until all are there.
    pub(super) rules_per_s: f64,
    /// Milliseconds until the first tag counts.
    pub(super) first_ms: u64,
    /// Milliseconds until the tags of all rules count.
    pub(super) all_ms: u64,
    /// Milliseconds, and the packets whose tags count by then as a part of all.
    pub(super) shares: Vec<(u64, f64)>,
}

impl Row {
    /// Has a card that takes its time learn a plan.
    pub(super) fn program(&self, plan: &Plan) -> Result<Programming, WrongPlan> {
        let of_defaults = RuleAbilities::default().programming_ms;
        let rules = self.card.rules.get().copied().unwrap_or_default();
        let abilities = RuleAbilities { programming_ms: of_defaults, ..rules };
        let capabilities = Capabilities::emulated(abilities);
        let mut card = EmulatedCard::new(capabilities.clone(), 1);
        let mut ledger = Ledger::new(capabilities);
        ledger.adopt(plan).expect("no rule has changed");
        let all: u64 = self.packets.iter().sum();
        let packets = |rule: RuleKey| self.packets[rule.slot.0 as usize];
        let (mut shares, mut first_ms, mut there) = (Vec::new(), None, 0);
        for round in 0..MOST_ROUNDS {
            let now_ms = round * ROUND_MS;
            ledger.orders().give(&mut card);
            card.advance(now_ms);
            let mut events = Vec::new();
            card.poll(&mut events);
            events.iter().for_each(|event| drop(ledger.event(event)));
            ledger.look(&card);
            let is_told = TOLD_MS.contains(&now_ms);
            if events.is_empty() && !is_told && there > 0 && there < plan.place.len() {
                continue;
            }
            let placements = ledger.placements();
            there = placements.rules().count();
            if there > 0 {
                first_ms.get_or_insert(now_ms);
            }
            let counted: u64 = placements.rules().map(|placed| packets(placed.rule)).sum();
            let share = counted as f64 / all as f64;
            if is_told {
                shares.push((now_ms, share));
            }
            if let Some(first_ms) = first_ms.filter(|_| there == plan.place.len()) {
                let (rules_per_s, entry_ms) = (there as f64 / (now_ms as f64 / 1e3), of_defaults);
                let all_ms = now_ms;
                let later = TOLD_MS.into_iter().filter(|ms| *ms > now_ms);
                shares.extend(later.map(|ms| (ms, share)));
                return Ok(Programming { entry_ms, rules_per_s, first_ms, all_ms, shares });
            }
        }
        Err(WrongPlan::NotThere(there, plan.place.len()))
    }
}
