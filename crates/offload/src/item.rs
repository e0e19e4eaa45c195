//! Items: what is placed in a card, in the card's words.
//!
//! A rule is said by addresses, protocol and ports as a packet on the wire has them, and by nothing
//! of the database of policies: a card, emulated or not, is written from these types alone.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;
use crate::sa::{CardPolicy, CardSa};

/// An item.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Item {
    /// A rule for packets that come by a port.
    Rule(Arc<CardRule>),
    /// An SA of one direction.
    Sa(Arc<CardSa>),
    /// A policy beside the SAs.
    Policy(Arc<CardPolicy>),
}

/// A rule: the card tags each packet that one of its patterns matches.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardRule {
    /// Ports of the card by which the packets come, ascending.
    pub ports: Arc<[u16]>,
    /// The higher wins, where the card keeps an order. No two rules of one port and family that
    /// say different things share one.
    pub rank: u64,
    /// The card's action on the packet.
    pub effect: Effect,
    /// The packets: those that match one of these.
    pub patterns: Box<[Pattern]>,
}

impl CardRule {
    /// Entries that the rule takes in a card: one a pattern and port.
    pub fn entries(&self) -> usize {
        self.patterns.len() * self.ports.len()
    }
}

/// The action of a card on a packet that a rule matches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The packet gets the rule's tag and goes on.
    #[default]
    Mark,
    /// The packet is dropped. Nothing overrules it, no later rule either, until the card has
    /// confirmed that it is gone.
    Drop,
}
