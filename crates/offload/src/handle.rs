//! The names of what is in a card.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// The number of an item in a card. It is not given again while the daemon lives, so that a late
/// answer or mark never means another item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Handle(NonZeroU32);

/// A number that is no handle's. Its author is at fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is no handle: handles are 1 to {highest}", highest = Handle::HIGHEST)]
pub struct NoHandle(pub u32);

impl TryFrom<u32> for Handle {
    type Error = NoHandle;

    fn try_from(number: u32) -> Result<Handle, NoHandle> {
        Handle::new(number).ok_or(NoHandle(number))
    }
}

impl From<Handle> for u32 {
    fn from(handle: Handle) -> u32 {
        handle.get()
    }
}

impl Handle {
    /// The highest number that is given: a mark of all ones names nothing (HA-21).
    pub const HIGHEST: u32 = u32::MAX - 1;
    /// The lowest number of an SA; rules have lower ones.
    pub const FIRST_OF_SAS: u32 = 1 << 31;

    /// The handle of a number; `None`: 0 and numbers above [`HIGHEST`](Self::HIGHEST) are of none.
    pub const fn new(number: u32) -> Option<Handle> {
        if number > Handle::HIGHEST {
            return None;
        }
        match NonZeroU32::new(number) {
            Some(number) => Some(Handle(number)),
            None => None,
        }
    }

    /// Returns whether it is an SA's.
    pub const fn is_of_sa(self) -> bool {
        self.0.get() >= Handle::FIRST_OF_SAS
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// The number of the times that a card lost what it had: what was placed in an earlier one is gone.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Incarnation(pub u32);

/// The name of an item in a card's answers and marks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tag {
    /// Number of the item.
    pub handle: Handle,
    /// Incarnation of the card in which the item was placed.
    pub incarnation: Incarnation,
}

impl Tag {
    /// The tag as a mark of 64 bits: incarnation, handle.
    pub const fn to_bits(self) -> u64 {
        (self.incarnation.0 as u64) << 32 | self.handle.get() as u64
    }

    /// Reads a mark. Any bits may come from a card; `None`: they name no item.
    pub const fn from_bits(bits: u64) -> Option<Tag> {
        match Handle::new(bits as u32) {
            Some(handle) => Some(Tag { handle, incarnation: Incarnation((bits >> 32) as u32) }),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // HA-21
    #[test]
    fn a_mark_of_all_ones_or_of_none_names_no_item() {
        for bits in [u64::MAX, 0, 7 << 32, u64::from(u32::MAX), 7 << 32 | u64::from(u32::MAX)] {
            assert_eq!(Tag::from_bits(bits), None, "{bits:#x}");
        }
    }

    #[test]
    fn a_tag_is_read_back_from_its_mark() {
        for number in [1, 2, 0x8000_0000, Handle::HIGHEST] {
            for incarnation in [0, 1, u32::MAX] {
                let handle = Handle::new(number).unwrap();
                let tag = Tag { handle, incarnation: Incarnation(incarnation) };
                assert_eq!(Tag::from_bits(tag.to_bits()), Some(tag));
            }
        }
    }
}
