//! The header that an emulated card writes in front of each frame for the host.
//!
//! A real card hands its tag over beside the frame; a netdev that software makes has no such place.
//! So the emulated card's frames all begin with this header, whether tagged or not, and the host's
//! XDP program takes it away ([`Mark::with_card_tag`](crate::Mark::with_card_tag)). What comes from
//! the wire can neither lack nor forge it: the card writes it in front of every frame.
//!
//! `Fields` is the one list of its fields and their places: `struct lockgate_card_header` is made
//! from it ([`CardHeader::definition`]). Numbers are in the machine's order.

use alloc::string::String;

use crate::shared::{Shared, SharedStruct};
use crate::shared_struct;

/// First word of the header: "LGC1".
pub const CARD_MAGIC: u32 = 0x4c47_4331;
/// Kind of a frame without a tag.
pub const CARD_PLAIN: u32 = 0;
/// Kind of a frame with the tag of a rule.
pub const CARD_RULE: u32 = 1;
/// Kind of a frame with the tag of an SA: to the host, the SA that opened it; from the host, the SA
/// that is to seal it.
pub const CARD_SA_OF: u32 = 2;

shared_struct! {
    /// The header as it lies in front of a frame.
    struct Fields as "lockgate_card_header" {
        magic: u32,
        kind: u32,
        /// Number of the item in the card.
        handle: u32,
        /// Incarnation of the card in which the item was placed.
        incarnation: u32,
    }
}

/// The header in front of a frame of an emulated card.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CardHeader {
    /// The card has no rule for the frame.
    Plain,
    /// A rule of the card matches: its tag, the incarnation above the handle.
    Rule(u64),
    /// An SA of the card opened the frame, or is to seal it: its tag.
    Sa(u64),
}

impl CardHeader {
    /// Bytes of a header.
    pub const BYTES: usize = size_of::<Fields>();

    /// Returns the C definition of `struct lockgate_card_header`.
    pub fn definition() -> String {
        Fields::definition()
    }

    /// Returns the bytes of the header.
    pub fn bytes(self) -> [u8; CardHeader::BYTES] {
        let (kind, tag) = match self {
            CardHeader::Plain => (CARD_PLAIN, 0),
            CardHeader::Rule(tag) => (CARD_RULE, tag),
            CardHeader::Sa(tag) => (CARD_SA_OF, tag),
        };
        let (handle, incarnation) = (tag as u32, (tag >> 32) as u32);
        let mut bytes = [0; CardHeader::BYTES];
        Fields { magic: CARD_MAGIC, kind, handle, incarnation }.write(&mut bytes);
        bytes
    }

    /// Returns the header in these bytes. `None`: there is none, or one of a kind that is not
    /// known, of whose frame nothing may be assumed.
    pub fn read(bytes: &[u8; CardHeader::BYTES]) -> Option<CardHeader> {
        let Fields { magic, kind, handle, incarnation } = Fields::read(bytes);
        let tag = u64::from(incarnation) << 32 | u64::from(handle);
        match (magic, kind) {
            (CARD_MAGIC, CARD_PLAIN) => Some(CardHeader::Plain),
            (CARD_MAGIC, CARD_RULE) => Some(CardHeader::Rule(tag)),
            (CARD_MAGIC, CARD_SA_OF) => Some(CardHeader::Sa(tag)),
            _ => None,
        }
    }

    /// The tag; `None`: the frame has none.
    pub const fn tag(self) -> Option<u64> {
        match self {
            CardHeader::Plain => None,
            CardHeader::Rule(tag) | CardHeader::Sa(tag) => Some(tag),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for tag in [0, 1, 7 << 32 | 9, u64::MAX] {
            for header in [CardHeader::Rule(tag), CardHeader::Sa(tag)] {
                assert_eq!(CardHeader::read(&header.bytes()), Some(header));
                assert_eq!(header.tag(), Some(tag));
            }
        }
        assert_eq!(CardHeader::read(&CardHeader::Plain.bytes()), Some(CardHeader::Plain));
        assert_eq!(CardHeader::Plain.tag(), None);
    }

    #[test]
    fn what_is_no_header_or_of_an_unknown_kind_is_none() {
        assert_eq!(CardHeader::read(&[0; CardHeader::BYTES]), None);
        let good = CardHeader::Rule(5).bytes();
        for bit in 0..64 {
            let mut changed = good;
            changed[bit / 8] ^= 1 << (bit % 8);
            // One changed bit makes the other kind: a rule's of a plain one.
            let is_plain = changed[4..8] == CARD_PLAIN.to_ne_bytes();
            let expected = if is_plain { Some(CardHeader::Plain) } else { None };
            assert_eq!(CardHeader::read(&changed), expected, "bit {bit}");
        }
    }
}
