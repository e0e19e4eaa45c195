//! An emulated card in front of lan, which has all rules of the group: the tags of its packets, and
//! those that count. The card's own work is not measured: each flow is tagged before the laps.

use std::sync::Arc;

use emulated_card::EmulatedCard;
use offload::{Capabilities, CardEvent, Effect, Ledger, Problem, RuleAbilities, plan};
use policy::{Policy, PolicyIndex, Spd};
use scene::{Case, HOP_LIMIT, LAN, own_mac, router_mac};

use super::super::lap_error::LapError;
use super::super::station::CardTags;

/// Rules at most that the card is given: it has that many entries.
pub(super) const MOST_RULES: usize = 2000;
/// Rounds of orders at most: rules that stand behind others follow these.
const ROUNDS: usize = 64;

/// Has a card learn the rules, and tag the packets of the flows.
///
/// # Errors
/// [`LapError::Tags`]: a flow has no tag that counts.
pub(super) fn tags(traffic: &Case, spd: &Spd, flows: usize) -> Result<CardTags, LapError> {
    let abilities = RuleAbilities { programming_ms: 0, ..RuleAbilities::default() };
    let capabilities = Capabilities::emulated(abilities);
    let mut card = EmulatedCard::new(capabilities.clone(), 1);
    let mut ledger = Ledger::new(capabilities);
    let rules: Vec<(PolicyIndex, &Policy)> = spd.holding_rules().collect();
    let plan = plan(&Problem {
        rules: &rules,
        ports: &[LAN.0],
        unused: &[],
        card: &ledger.card().clone(),
        effect: Effect::Mark,
        own: &[],
        packets: &|_| 1000,
        standing: &ledger.standing(),
        most_moves: usize::MAX,
    });
    ledger.adopt(&plan).expect("no rule has changed");
    for _ in 0..ROUNDS {
        let orders = ledger.orders();
        if orders.place.is_empty() {
            break;
        }
        orders.give(&mut card);
        card.advance(0);
        let mut events: Vec<CardEvent> = Vec::new();
        offload::Card::poll(&mut card, &mut events);
        events.iter().for_each(|event| drop(ledger.event(event)));
        ledger.look(&card);
    }
    let placements = Arc::new(ledger.placements());
    let (to, from) = (own_mac(LAN), router_mac(LAN));
    let tag_of = |flow| {
        let frame = traffic.inner(flow, HOP_LIMIT).frame(to, from, None);
        card.receive(LAN.0, &frame).mark
    };
    let tags: Vec<u64> = (0..flows).map(tag_of).collect();
    let tagged = tags.iter().filter(|tag| placements.read(**tag).is_some()).count();
    if tagged < flows {
        let placed = placements.rules().count();
        return Err(LapError::Tags { tagged, packets: flows, placed });
    }
    Ok(CardTags { placements, tags })
}
