//! A card as the control thread sees it.

use serde::{Deserialize, Serialize};

use crate::capabilities::Capabilities;
use crate::handle::{Handle, Tag};
use crate::item::Item;

/// A network card, or what stands for one. One thread calls it, and no call waits: a card answers
/// by events.
pub trait Card {
    /// Says what the card can. Asked again after [`CardEvent::Reloaded`].
    fn probe(&self) -> Capabilities;

    /// Asks the card to take an item in, under this name. The answer is [`CardEvent::Live`] or
    /// [`CardEvent::Refused`]. An item is in the card as a whole or not at all.
    fn place(&mut self, item: &Item, tag: Tag);

    /// Asks the card to take an item out. The answer is [`CardEvent::Withdrawn`], also for an item
    /// that is not there.
    fn withdraw(&mut self, tag: Tag);

    /// Appends what happened since the last call, oldest first.
    fn poll(&mut self, into: &mut Vec<CardEvent>);

    /// Packets and bytes that an item has matched; `None`: the card has no such item.
    fn reading(&self, handle: Handle) -> Option<Reading>;
}

/// An answer of a card, or something that happened to it. Any may come late, twice, or not at all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CardEvent {
    /// The item is in the card.
    Live(Tag),
    /// The item is not in the card.
    Refused(Tag, Refusal),
    /// The item is no more in the card.
    Withdrawn(Tag),
    /// The item reached a limit; items of rules have none.
    Limit(Tag, Limit),
    /// A packet wants an SA that the card does not have.
    Acquire(Tag),
    /// The link of a port is down: the card has forgotten its items.
    Down,
    /// The link is up again.
    Up,
    /// The card began anew and has forgotten its items.
    Reset,
    /// Another driver runs the card, which has forgotten its items; it may do other things now.
    Reloaded,
    /// The card is gone.
    Unplugged,
}

/// A limit of an item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// It may go on.
    Soft,
    /// It passes nothing more.
    Hard,
}

/// The reason for which a card refused an item.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[error("{} (code {code}): {text}", .kind.name())]
pub struct Refusal {
    /// Kind of the reason.
    pub kind: RefusalKind,
    /// Number that the driver gave.
    pub code: i32,
    /// Text that the driver gave.
    pub text: Box<str>,
}

/// Kinds of refusals.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The card has no room.
    Full,
    /// The card cannot do this.
    Unsupported,
    /// The card failed.
    Failed,
}

impl RefusalKind {
    /// `full`, `unsupported` or `failed`.
    pub const fn name(self) -> &'static str {
        match self {
            RefusalKind::Full => "full",
            RefusalKind::Unsupported => "unsupported",
            RefusalKind::Failed => "failed",
        }
    }
}

/// The counts of an item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reading {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time of the count, milliseconds of the card's clock.
    pub as_of_ms: u64,
}
