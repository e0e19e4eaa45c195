//! The header that an emulated card writes in front of each frame for the host.
//!
//! A real card hands its tag over beside the frame; a netdev that software makes has no such place.
//! So the emulated card's frames all begin with this header, whether tagged or not, and the host's
//! XDP program takes it away ([`Mark::with_card_tag`](crate::Mark::with_card_tag)). What comes from
//! the wire can neither lack nor forge it: the card writes it in front of every frame.
//!
//! | kind | from the host | to the host |
//! |---|---|---|
//! | `CARD_PLAIN`, none | leaves as it is | came as it is |
//! | `CARD_RULE` | dropped | a rule matches |
//! | `CARD_SA_OF` | in clear: the card seals the packet | in clear: the card opened the packet |
//! | `CARD_CIPHER` | ESP in clear: the card encrypts | ESP in clear: deciphered, authentic |
//! | `CARD_FORGED` | dropped | ESP as it came: its ICV is wrong |
//!
//! **Crypto mode** (the last two kinds). The host writes all of the packet: outer headers, UDP, SPI
//! and number, IV, padding and trailer, and behind them 16 bytes of zeros, where the ICV goes. The
//! card changes the text and the ICV, and nothing else, so that lengths and checksums of headers
//! stand. It reads the whole number out of the IV, which is the number itself in 8 bytes: so the
//! high half of an extended number needs no field of its own, and a card that would derive it can
//! be wrong. The other way the card derives the high half by RFC 4303, appendix A2, from the
//! highest authentic number so far: it must know it before it can authenticate, and a hint of the
//! host's would be behind the packets in flight. Host and card go by the same rule and the same
//! packets. They could differ only if 2^32 less a window of them were lost between the two. Then
//! the host would count an authentic packet as too old or replayed, and never deliver it twice.
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
/// Kind of ESP whose text is in clear: to the host, deciphered and authentic by this SA; from the
/// host, to be encrypted by it.
pub const CARD_CIPHER: u32 = 3;
/// Kind of ESP as it came: its ICV is wrong by this SA.
pub const CARD_FORGED: u32 = 4;

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
    /// ESP with its text in clear: an SA of the card has deciphered it, or is to encrypt it.
    Cipher(u64),
    /// ESP for an SA of the card, which does not authenticate it. The host must drop it.
    Forged(u64),
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
            CardHeader::Cipher(tag) => (CARD_CIPHER, tag),
            CardHeader::Forged(tag) => (CARD_FORGED, tag),
        };
        let (handle, incarnation) = (tag as u32, (tag >> 32) as u32);
        let mut bytes = [0; CardHeader::BYTES];
        Fields { magic: CARD_MAGIC, kind, handle, incarnation }.write(&mut bytes);
        bytes
    }

    /// Writes the header in front of `end` of a frame; returns where it begins. `None`: there is no
    /// room.
    #[inline]
    pub fn write(self, frame: &mut [u8], end: usize) -> Option<usize> {
        let start = end.checked_sub(CardHeader::BYTES)?;
        frame.get_mut(start..end)?.copy_from_slice(&self.bytes());
        Some(start)
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
            (CARD_MAGIC, CARD_CIPHER) => Some(CardHeader::Cipher(tag)),
            (CARD_MAGIC, CARD_FORGED) => Some(CardHeader::Forged(tag)),
            _ => None,
        }
    }

    /// The tag; `None`: the frame has none.
    pub const fn tag(self) -> Option<u64> {
        match self {
            CardHeader::Plain => None,
            CardHeader::Rule(tag)
            | CardHeader::Sa(tag)
            | CardHeader::Cipher(tag)
            | CardHeader::Forged(tag) => Some(tag),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for tag in [0, 1, 7 << 32 | 9, u64::MAX] {
            for of in [CardHeader::Rule, CardHeader::Sa, CardHeader::Cipher, CardHeader::Forged] {
                let header = of(tag);
                assert_eq!(CardHeader::read(&header.bytes()), Some(header));
                assert_eq!(header.tag(), Some(tag));
            }
        }
        assert_eq!(CardHeader::read(&CardHeader::Plain.bytes()), Some(CardHeader::Plain));
        assert_eq!(CardHeader::Plain.tag(), None);
    }

    #[test]
    fn a_header_is_written_in_front_of_a_place_where_there_is_room() {
        let mut frame = [7u8; 40];
        let header = CardHeader::Sa(3 << 32 | 4);
        for (end, start) in [(15, None), (41, None), (16, Some(0)), (20, Some(4)), (40, Some(24))] {
            assert_eq!(header.write(&mut frame, end), start, "{end}");
        }
        assert_eq!(frame[24..], header.bytes());
        assert_eq!(frame[20..24], [7; 4]);
    }

    #[test]
    fn what_is_no_header_or_of_an_unknown_kind_is_none() {
        assert_eq!(CardHeader::read(&[0; CardHeader::BYTES]), None);
        let good = CardHeader::Rule(5).bytes();
        for bit in 0..64 {
            let mut changed = good;
            changed[bit / 8] ^= 1 << (bit % 8);
            // One changed bit makes another kind: a plain one of a rule's, or a cipher's.
            let expected = match u32::from_ne_bytes(changed[4..8].try_into().unwrap()) {
                CARD_PLAIN => Some(CardHeader::Plain),
                CARD_CIPHER => Some(CardHeader::Cipher(5)),
                _ => None,
            };
            assert_eq!(CardHeader::read(&changed), expected, "bit {bit}");
        }
    }
}
