//! Items that drop packets and are to go, until it is known that they went.

use std::collections::HashMap;

use crate::card::CardEvent;
use crate::handle::{Handle, Tag};
use crate::placement::State;

/// Looks after which one that the card never answered about, and does not have, is gone.
const PATIENCE: u64 = 1200;

/// Items that are to go, and may be in the card.
#[derive(Debug, Default)]
pub(crate) struct LeavingDrops(HashMap<Tag, Leaving>);

/// An item that is to go.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    had: Had,
    /// Looks at the card when it was asked.
    since: u64,
}

/// Knowledge of whether the card had an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Had {
    /// It had it: when a look does not find it, it is gone.
    It,
    /// It was asked and has not answered: it may take the item in after a look.
    Unknown,
}

impl LeavingDrops {
    /// Notes that an item is to go which has this state.
    pub(crate) fn leaves(&mut self, tag: Tag, state: State, looks: u64) {
        let had = match state {
            State::Live | State::Stale(_) => Had::It,
            _ => Had::Unknown,
        };
        self.0.entry(tag).or_insert(Leaving { had, since: looks });
    }

    /// Takes what the card says of an item.
    pub(crate) fn event(&mut self, event: &CardEvent) {
        match event {
            CardEvent::Withdrawn(tag) => _ = self.0.remove(tag),
            CardEvent::Live(tag) => {
                if let Some(leaving) = self.0.get_mut(tag) {
                    leaving.had = Had::It;
                }
            }
            // Of one that it had it takes back what it said: it may have it or not.
            CardEvent::Refused(tag, _) => {
                if self.0.get(tag).is_some_and(|leaving| leaving.had == Had::Unknown) {
                    self.0.remove(tag);
                }
            }
            // Nothing comes by it any more.
            CardEvent::Unplugged => self.clear(),
            CardEvent::Limit(..)
            | CardEvent::Acquire(_)
            | CardEvent::Down
            | CardEvent::Up
            | CardEvent::Reset
            | CardEvent::Reloaded => {}
        }
    }

    /// Takes the findings of a look: what the card has.
    pub(crate) fn look(&mut self, looks: u64, has: impl Fn(Handle) -> bool) {
        let is_late = |leaving: &Leaving| looks - leaving.since > PATIENCE;
        self.0.retain(|tag, leaving| {
            has(tag.handle) || leaving.had == Had::Unknown && !is_late(leaving)
        });
    }

    /// Forgets all: the card has nothing.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns whether an item is among them.
    pub(crate) fn has(&self, tag: Tag) -> bool {
        self.0.contains_key(&tag)
    }

    /// Their number.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}
