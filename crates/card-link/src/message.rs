//! Requests of a host, and reports of a card.

use std::sync::Arc;

use offload::{CardEvent, CardPolicy, CardRule, CardSa, Handle, Tag};
use serde::{Deserialize, Serialize};

/// A message of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The first message of a host: the card forgets all that it has and answers
    /// [`Report::Begun`].
    Begin {},
    /// Asks the card to take a rule in, under this name. The answer is [`CardEvent::Live`] or
    /// [`CardEvent::Refused`].
    Place {
        /// Name of the rule.
        tag: Tag,
        /// The rule.
        rule: Arc<CardRule>,
    },
    /// Asks the card to take an SA in, under this name. The answer is as to [`Request::Place`].
    PlaceSa {
        /// Name of the SA.
        tag: Tag,
        /// The SA, with its key.
        #[serde(with = "crate::sa")]
        sa: Arc<CardSa>,
    },
    /// Asks the card to take a policy beside the SAs in, under this name. The answer is as to
    /// [`Request::Place`].
    PlacePolicy {
        /// Name of the policy.
        tag: Tag,
        /// The policy.
        policy: Arc<CardPolicy>,
    },
    /// Asks the card to take an item out. The answer is [`CardEvent::Withdrawn`].
    Withdraw {
        /// Name of the item.
        tag: Tag,
    },
    /// Asks for all that the card has. The answer is [`Report::Found`].
    Look {
        /// Number that the answer has too.
        number: u64,
    },
}

/// A message of a card.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Report {
    /// The card has forgotten all and serves this host.
    Begun {
        /// The card, as `offload::Capabilities` reads it: `emulated:rules=2000,ms=5,order=none`.
        card: String,
    },
    /// Something happened.
    Event(CardEvent),
    /// The answer to [`Request::Look`].
    Found(Found),
}

/// All that the card has, at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// Number of the request.
    pub number: u64,
    /// The card, as in [`Report::Begun`]; it may have been reloaded since.
    pub card: String,
    /// The moment, milliseconds of the card's clock.
    pub at_ms: u64,
    /// The items in the card: rules and SAs.
    pub items: Vec<Item>,
    /// Of each SA that opens and has opened: the highest number so far, the right edge of its
    /// window.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<(Handle, u64)>,
}

/// An item in the card, written as `[handle, packets, bytes]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "(Handle, u64, u64)", into = "(Handle, u64, u64)")]
pub struct Item {
    /// Number of the item.
    pub handle: Handle,
    /// Packets that it matched; of an SA, that it sealed or opened.
    pub packets: u64,
    /// Their bytes; of an SA, those that the cipher processed.
    pub bytes: u64,
}

impl From<(Handle, u64, u64)> for Item {
    fn from((handle, packets, bytes): (Handle, u64, u64)) -> Item {
        Item { handle, packets, bytes }
    }
}

impl From<Item> for (Handle, u64, u64) {
    fn from(Item { handle, packets, bytes }: Item) -> (Handle, u64, u64) {
        (handle, packets, bytes)
    }
}
