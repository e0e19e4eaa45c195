//! The mark that a lower tier writes in front of a packet for the walk: which netdev's program it
//! was, and what it already knows of the packet.
//!
//! `Fields` is the one list of its fields and their places: `struct lockgate_mark`, which the
//! programs write, is made from it ([`Mark::definition`]).

use alloc::string::String;

use crate::shared::{Shared, SharedStruct};
use crate::shared_struct;

/// The mark in front of a packet.
///
/// `generation`, `domain`, `zone` and `verdict` are a claim about the packet, and hold only while
/// the policy domain has this generation: else the walk judges the packet in full. Or they are the
/// [tag](Mark::card_tag) that a card gave the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mark {
    /// Number of the program's netdev, as this process counts.
    pub netdev: u16,
    /// VLAN tag of the packet.
    pub vlan: MarkVlan,
    /// Number of the attachment in its process: what another attachment claims does not count.
    pub incarnation: u32,
    /// Generation of the policy domain that the claim is of; 0: there is no claim.
    pub generation: u32,
    /// Virtual network of the packet; 0: none.
    pub zone: u32,
    /// The claim's words: see [`Claim`]; 0: none.
    pub verdict: u32,
    /// Number of the policy domain that the claim is of.
    pub domain: u32,
}

/// A lower tier's claim of what the rules say of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Claim {
    /// The verdict.
    pub kind: ClaimKind,
    /// Slot of the rule that decides, below [`Claim::RULES`].
    pub rule: u32,
}

/// The verdict that a lower tier claims.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClaimKind {
    /// The packet is permitted.
    Permit,
    /// It is refused.
    Drop,
}

impl Claim {
    /// Slots that a claim can name.
    pub const RULES: u32 = 1 << RULE_BITS;

    /// The claim as a word, which is not 0. `None`: it cannot name its rule.
    pub const fn word(self) -> Option<u32> {
        let kind = match self.kind {
            ClaimKind::Permit => 1,
            ClaimKind::Drop => 2,
        };
        if self.rule < Claim::RULES { Some(kind << RULE_BITS | self.rule) } else { None }
    }

    /// The claim of a word. `None`: it is none.
    pub const fn of_word(word: u32) -> Option<Claim> {
        let kind = match word >> RULE_BITS {
            1 => ClaimKind::Permit,
            2 => ClaimKind::Drop,
            _ => return None,
        };
        Some(Claim { kind, rule: word % Claim::RULES })
    }
}

/// Bits of a claim's word that name the rule.
const RULE_BITS: u32 = 30;
/// The word of a mark with a card's tag.
pub const CARD_TAG: u32 = 3 << RULE_BITS;
/// The word of a mark whose packet an SA in a card opened.
pub const CARD_SA: u32 = 3 << RULE_BITS | 1;
/// The word of a mark whose packet is ESP that an SA in a card deciphered.
pub const CARD_DECIPHERED: u32 = 3 << RULE_BITS | 2;
/// The word of a mark whose packet is ESP that an SA in a card could not authenticate.
pub const CARD_NOT_AUTHENTIC: u32 = 3 << RULE_BITS | 3;

/// A card's answer about ESP that it was to decipher and no more (crypto mode).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Deciphered {
    /// The ICV was right; text and trailer are in clear.
    Authentic,
    /// The ICV was wrong; the packet is as it came.
    Forged,
}

/// The program that marks the packets of a netdev.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// [`Mark::netdev`].
    pub netdev: u16,
    /// [`Mark::incarnation`].
    pub incarnation: u32,
}

/// The VLAN tag of a marked packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MarkVlan {
    /// No tag, or one with id 0.
    Untagged,
    /// One tag with this id, 1 to 4095.
    Id(u16),
    /// More than one tag, an 802.1ad tag, or a header cut short: no port has it.
    Other,
}

/// First word of a mark: "LGK1".
pub const MAGIC: u32 = 0x4c47_4b31;
/// Stands for no VLAN tag, or a priority tag, in place of a VLAN id (which has 12 bits).
pub const VLAN_UNTAGGED: u16 = 0xffff;
/// Stands for tags that no port has: more than one, or one that cannot be read.
pub const VLAN_OTHER: u16 = 0xfffe;

shared_struct! {
    /// The mark as it lies in front of a packet; [`Mark`] explains the fields.
    struct Fields as "lockgate_mark" {
        magic: u32,
        netdev: u16,
        vlan: u16,
        incarnation: u32,
        generation: u32,
        zone: u32,
        verdict: u32,
        domain: u32,
        reserved: u32,
    }
}

// Older kernels give no more room in front of a frame (`xdp_metalen_invalid`).
const _: () = assert!(Mark::BYTES <= 32);

impl Mark {
    /// Bytes of a mark.
    pub const BYTES: usize = size_of::<Fields>();

    /// Returns the C definition of `struct lockgate_mark`.
    pub fn definition() -> String {
        Fields::definition()
    }

    /// Returns the mark in these bytes. `None`: there is none.
    pub fn read(bytes: &[u8; Mark::BYTES]) -> Option<Mark> {
        let fields = Fields::read(bytes);
        let vlan = match fields.vlan {
            VLAN_UNTAGGED => MarkVlan::Untagged,
            id @ 1..=0x0fff => MarkVlan::Id(id),
            _ => MarkVlan::Other,
        };
        let Fields { magic, netdev, incarnation, generation, zone, verdict, domain, .. } = fields;
        let mark = Mark { netdev, vlan, incarnation, generation, zone, verdict, domain };
        (magic == MAGIC).then_some(mark)
    }

    /// The tag that a card gave the packet: the number of an item in the card, and above it the
    /// card's incarnation. `None`: no card did.
    #[inline]
    pub const fn card_tag(&self) -> Option<u64> {
        match self.verdict {
            CARD_TAG => Some((self.generation as u64) << 32 | self.domain as u64),
            _ => None,
        }
    }

    /// The mark with a card's tag.
    pub const fn with_card_tag(self, tag: u64) -> Mark {
        Mark { verdict: CARD_TAG, generation: (tag >> 32) as u32, domain: tag as u32, ..self }
    }

    /// The tag of the SA in a card that opened the packet. `None`: none did.
    #[inline]
    pub const fn card_sa(&self) -> Option<u64> {
        match self.verdict {
            CARD_SA => Some((self.generation as u64) << 32 | self.domain as u64),
            _ => None,
        }
    }

    /// The mark of a packet that an SA in a card opened.
    pub const fn with_card_sa(self, tag: u64) -> Mark {
        Mark { verdict: CARD_SA, ..self.with_card_tag(tag) }
    }

    /// The tag of the SA in a card that was to decipher the packet, which is still ESP, and the
    /// outcome. `None`: none was.
    #[inline]
    pub const fn card_cipher(&self) -> Option<(u64, Deciphered)> {
        let outcome = match self.verdict {
            CARD_DECIPHERED => Deciphered::Authentic,
            CARD_NOT_AUTHENTIC => Deciphered::Forged,
            _ => return None,
        };
        Some(((self.generation as u64) << 32 | self.domain as u64, outcome))
    }

    /// The mark of ESP that an SA in a card was to decipher.
    pub const fn with_card_cipher(self, tag: u64, outcome: Deciphered) -> Mark {
        let verdict = match outcome {
            Deciphered::Authentic => CARD_DECIPHERED,
            Deciphered::Forged => CARD_NOT_AUTHENTIC,
        };
        Mark { verdict, ..self.with_card_tag(tag) }
    }

    /// Returns the bytes of the mark.
    pub fn bytes(&self) -> [u8; Mark::BYTES] {
        let Mark { netdev, vlan, incarnation, generation, zone, verdict, domain } = *self;
        let vlan = match vlan {
            MarkVlan::Untagged => VLAN_UNTAGGED,
            MarkVlan::Id(id) => id,
            MarkVlan::Other => VLAN_OTHER,
        };
        let (magic, reserved) = (MAGIC, 0);
        let fields = Fields {
            magic,
            netdev,
            vlan,
            incarnation,
            generation,
            zone,
            verdict,
            domain,
            reserved,
        };
        let mut bytes = [0; Mark::BYTES];
        fields.write(&mut bytes);
        bytes
    }

    /// Reads and wipes the mark that ends at `offset` of a frame: one that is found was written for
    /// this packet.
    pub fn take(frame: &mut [u8], offset: u32) -> Option<Mark> {
        let end = offset as usize;
        let bytes = frame.get_mut(end.checked_sub(Mark::BYTES)?..end)?;
        let bytes: &mut [u8; Mark::BYTES] = bytes.try_into().ok()?;
        let mark = Mark::read(bytes);
        bytes[..4].fill(0);
        mark
    }

    /// Returns whether it claims anything about its packet.
    pub fn claims(&self) -> bool {
        self.generation != 0 || matches!(self.verdict, CARD_TAG..=CARD_NOT_AUTHENTIC)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(vlan: MarkVlan) -> Mark {
        let (incarnation, generation, zone, verdict, domain) = (0x0102_0304, 5, 6, 7, 8);
        Mark { netdev: 7, vlan, incarnation, generation, zone, verdict, domain }
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        for vlan in [MarkVlan::Untagged, MarkVlan::Id(1), MarkVlan::Id(4095), MarkVlan::Other] {
            assert_eq!(Mark::read(&mark(vlan).bytes()), Some(mark(vlan)));
        }
        assert_eq!(Mark::read(&[0; Mark::BYTES]), None);
    }

    #[test]
    fn a_claim_is_read_as_it_was_written() {
        for kind in [ClaimKind::Permit, ClaimKind::Drop] {
            for rule in [0, 1, Claim::RULES - 1] {
                let claim = Claim { kind, rule };
                assert_eq!(Claim::of_word(claim.word().unwrap()), Some(claim));
            }
            assert_eq!(Claim { kind, rule: Claim::RULES }.word(), None);
        }
        assert_eq!([0, Claim::RULES - 1, u32::MAX].map(Claim::of_word), [None; 3]);
    }

    #[test]
    fn a_mark_is_found_once_and_only_where_it_is_whole() {
        let mut frame = [0u8; 512];
        frame[224..256].copy_from_slice(&mark(MarkVlan::Untagged).bytes());
        for elsewhere in [0, 31, 255, 257, 512, 513, u32::MAX] {
            assert_eq!(Mark::take(&mut frame.clone(), elsewhere), None, "{elsewhere}");
        }
        assert_eq!(Mark::take(&mut frame, 256), Some(mark(MarkVlan::Untagged)));
        assert_eq!(Mark::take(&mut frame, 256), None);
    }
}
